//! Random kernels: the tile executor against the scalar interpreter, bit for bit (a NaN equals any NaN).
//!
//! Every kernel is free of races: items store to their own elements only, and read each other's data only through
//! collectives and what a barrier separates.

use std::collections::BTreeMap;
use std::fmt::Write;

use backend_cpu::isa::Isa;
use backend_cpu::tile::{Team, TileScratch, run_slices};
use loom_compiler::interp::{self, Argument, Limits};
use loom_compiler::{CpuImage, Module, compile_cpu, tile};

/// A deterministic source of choices.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

const UNARY: [&str; 30] = [
    "negf",
    "absf",
    "signf",
    "ceilf",
    "floorf",
    "truncf",
    "roundf",
    "roundevenf",
    "expf",
    "exp2f",
    "logf",
    "log1pf",
    "sqrtf",
    "rsqrtf",
    "cbrtf",
    "sinf",
    "cosf",
    "atanf",
    "sinhf",
    "tanhf",
    "asinhf",
    "erff",
    "erfcf",
    "logisticf",
    "siluf",
    "softplusf",
    "geluf<erf>",
    "geluf<tanh>",
    "expm1f",
    "log2f",
];
const BINARY: [&str; 11] =
    ["addf", "subf", "mulf", "divf", "minnumf", "maxnumf", "minimumf", "maximumf", "copysignf", "powf", "remf"];
const INTEGER: [&str; 22] = [
    "addi",
    "subi",
    "muli",
    "divsi",
    "remsi",
    "divui",
    "remui",
    "ceildivsi",
    "floordivsi",
    "minsi",
    "maxsi",
    "minui",
    "maxui",
    "andi",
    "ori",
    "xori",
    "shli",
    "shrsi",
    "shrui",
    "rotli",
    "rotri",
    "ceildivui",
];
const FLOAT_PREDICATES: [&str; 14] =
    ["oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno"];
const INT_PREDICATES: [&str; 10] = ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"];
const COMBINE: [&str; 4] = ["addf", "maximumf", "minnumf", "mulf"];

/// Elements of each input.
const LEN: usize = 1024;

struct Case {
    text: String,
    grid: [usize; 3],
    size: [usize; 3],
    n: usize,
}

/// Names in scope, by type.
#[derive(Clone, Default)]
struct Scope {
    floats: Vec<String>,
    ints: Vec<String>,
    indices: Vec<String>,
    bools: Vec<String>,
}

struct Writer<'a> {
    dice: &'a mut Dice,
    text: String,
    names: usize,
    /// Collectives are legal here: all items of a workgroup are.
    together: bool,
    /// Work-items per subgroup.
    subgroup: usize,
    /// Workgroups lie in one tile, so that subgroups may exchange, wherever they are.
    lanes: bool,
    /// Items of the launch.
    all: usize,
    /// Workgroups of the launch.
    groups: usize,
    /// Whether each workgroup has a row of the buffer that loops store to, of which an item has each so manieth element, or
    /// each turn one, of which an item has its own.
    rows: bool,
    /// Nobody has left: workgroup memory holds what everybody wrote.
    shared: bool,
}

impl Writer<'_> {
    fn value(&mut self, op: &str) -> String {
        self.names += 1;
        let name = format!("%v{}", self.names);
        let _ = writeln!(self.text, "  {name} = {op}");
        name
    }

    /// View `p` of an item's own memory, or another one of the same kind that holds `c`, whichever a condition says: by a select, a
    /// branch, or what a loop carries.
    fn one_of_two(&mut self, scope: &Scope, p: &str, c: &str) -> String {
        let ty = "view<8xi32>";
        let b = self.value("index.constant 32 : offset");
        let b = self.value(&format!("buffer.alloca<private> align(4) {b} : buffer"));
        let q = self.value(&format!("buffer.view {b}[%base] : buffer -> {ty}"));
        let turned = self.value(&format!("vector.shuffle<[7, 6, 5, 4, 3, 2, 1, 0]> {c} : vector<8xi32>"));
        self.line(&format!("vector.store {turned}, {q}[0] : vector<8xi32>, {ty}"));
        let t = self.dice.pick(&scope.bools).clone();
        match self.dice.below(3) {
            0 => self.value(&format!("scf.select {t}, {p}, {q} : {ty}")),
            1 => self.value(&format!(
                "scf.if {t} -> ({ty}) {{\n  scf.yield {p} : {ty}\n  }} else {{\n  scf.yield {q} : {ty}\n  }}"
            )),
            _ => self.swapped(&t, [p, &q], ty),
        }
    }

    /// What is first of two views after a loop that swaps them, once or twice.
    fn swapped(&mut self, twice: &str, [p, q]: [&str; 2], ty: &str) -> String {
        let turns = self.value("index.constant 2 : index");
        let high = self.value(&format!("scf.select {twice}, {turns}, %unit : index"));
        self.names += 1;
        let id = self.names;
        self.line(&format!(
            "%sa{id}, %sb{id} = scf.for %si{id} = [%zero to {high} step %unit](%sp{id} = {p} : {ty}, %sq{id} = {q} : {ty}) \
             -> ({ty}, {ty}) {{\n  scf.yield %sq{id}, %sp{id} : {ty}, {ty}\n  }}"
        ));
        format!("%sa{id}")
    }

    /// The float, or a number in place of a NaN: a NaN's sign and payload are nobody's promise, so nothing may depend on them.
    fn signed(&mut self, float: &str) -> String {
        let nan = self.value(&format!("scalar.isnanf {float} : f32"));
        let number = self.value("scalar.constant -0.25 : f32");
        self.value(&format!("scf.select {nan}, {number}, {float} : f32"))
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "  {line}");
    }

    fn ops(&mut self, scope: &mut Scope, count: usize, depth: usize) {
        for _ in 0..count {
            self.op(scope, depth);
        }
    }

    /// An index in `0..LEN`.
    fn place(&mut self, scope: &Scope) -> String {
        let index = self.dice.pick(&scope.indices).clone();
        self.value(&format!("index.rem {index}, %len : index"))
    }

    fn op(&mut self, scope: &mut Scope, depth: usize) {
        let float = |w: &mut Self, scope: &Scope| w.dice.pick(&scope.floats).clone();
        let int = |w: &mut Self, scope: &Scope| w.dice.pick(&scope.ints).clone();
        let index = |w: &mut Self, scope: &Scope| w.dice.pick(&scope.indices).clone();
        let choices = if depth == 0 { 28 } else { 17 };
        if depth == 0 && self.dice.below(8) == 0 {
            return self.rounds(scope);
        }
        if self.lanes && self.dice.below(10) == 0 {
            return self.exchange(scope);
        }
        if self.dice.below(14) == 0 {
            return self.atomic(scope);
        }
        if self.dice.below(16) == 0 {
            return self.idiom(scope);
        }
        match self.dice.below(choices) {
            0 | 1 => {
                let (op, a) = (*self.dice.pick(&UNARY), float(self, scope));
                let v = self.value(&format!("scalar.{op} {a} : f32"));
                scope.floats.push(v);
            }
            2..=4 => {
                let (op, a, mut b) = (*self.dice.pick(&BINARY), float(self, scope), float(self, scope));
                if op == "copysignf" {
                    b = self.signed(&b);
                }
                let v = self.value(&format!("scalar.{op} {a}, {b} : f32"));
                scope.floats.push(v);
            }
            5 => {
                let (a, b, c) = (float(self, scope), float(self, scope), float(self, scope));
                let v = self.value(&format!("scalar.fmaf {a}, {b}, {c} : f32"));
                scope.floats.push(v);
            }
            6 => {
                let (op, a, b) = (*self.dice.pick(&INTEGER), int(self, scope), int(self, scope));
                let v = self.value(&format!("scalar.{op} {a}, {b} : i32"));
                scope.ints.push(v);
            }
            7 => {
                let (p, a, b) = (*self.dice.pick(&FLOAT_PREDICATES), float(self, scope), float(self, scope));
                let v = self.value(&format!("scalar.cmpf {p}, {a}, {b} : f32"));
                scope.bools.push(v);
            }
            8 => {
                let (p, a, b) = (*self.dice.pick(&INT_PREDICATES), index(self, scope), index(self, scope));
                let v = self.value(&format!("index.cmp {p}, {a}, {b} : index"));
                scope.bools.push(v);
            }
            9 => {
                let (op, a, b) = (
                    *self.dice.pick(&["andi", "ori", "xori"]),
                    self.dice.pick(&scope.bools).clone(),
                    self.dice.pick(&scope.bools).clone(),
                );
                let v = self.value(&format!("scalar.{op} {a}, {b} : i1"));
                scope.bools.push(v);
            }
            10 => {
                let (c, a, b) = (self.dice.pick(&scope.bools).clone(), float(self, scope), float(self, scope));
                let v = self.value(&format!("scf.select {c}, {a}, {b} : f32"));
                scope.floats.push(v);
            }
            11 => {
                let a = index(self, scope);
                let v = match self.dice.below(6) {
                    0 => {
                        let b = index(self, scope);
                        self.value(&format!("index.add {a}, {b} : index"))
                    }
                    1 => {
                        let k = self.dice.pick(&["%k3", "%k40", "%len", "%n"]).to_string();
                        self.value(&format!("index.mul {a}, {k} : index"))
                    }
                    2 => {
                        let k = self.dice.pick(&["%k3", "%k40", "%n"]).to_string();
                        self.value(&format!("index.div {a}, {k} : index"))
                    }
                    3 => {
                        let k = self.dice.pick(&["%k3", "%k40", "%n"]).to_string();
                        self.value(&format!("index.rem {a}, {k} : index"))
                    }
                    4 => {
                        let b = index(self, scope);
                        self.value(&format!("index.min {a}, {b} : index"))
                    }
                    _ => {
                        let b = index(self, scope);
                        self.value(&format!("index.madd {a}, %k3, {b} : index"))
                    }
                };
                scope.indices.push(v);
            }
            12 => {
                let place = self.place(scope);
                let from = if self.dice.below(4) == 0 {
                    let t = self.dice.pick(&scope.bools).clone();
                    let other = self.value("buffer.view %b1[%base] : buffer -> view<1024xf32>");
                    self.value(&format!("scf.select {t}, %in0, {other} : view<1024xf32>"))
                } else {
                    "%in0".to_owned()
                };
                let v = self.value(&format!("view.load {from}[{place}] : view<1024xf32> -> f32"));
                scope.floats.push(v);
            }
            13 => {
                // Often neighbours: affine, or the same for all.
                let (row, column) = (
                    self.dice.pick(&["%wy", "%k3", "%wz"]).to_string(),
                    self.dice.pick(&["%column", "%k3", "%wy"]).to_string(),
                );
                let v = self.value(&format!("view.load %in1[{row}, {column}] : view<16x2048xf32> -> f32"));
                scope.floats.push(v);
            }
            14 => {
                let place = self.place(scope);
                let v = self.value(&format!("view.load %inI[{place}] : view<1024xi32> -> i32"));
                scope.ints.push(v);
            }
            15 => {
                let v = match self.dice.below(4) {
                    0 => {
                        let a = int(self, scope);
                        let v = self.value(&format!("scalar.sitofp {a} : i32 to f32"));
                        scope.floats.push(v.clone());
                        return;
                    }
                    1 => {
                        let a = float(self, scope);
                        self.value(&format!("scalar.fptosi {a} : f32 to i32"))
                    }
                    2 => {
                        let a = index(self, scope);
                        self.value(&format!("index.cast {a} : index to i32"))
                    }
                    _ => {
                        let a = float(self, scope);
                        let a = self.signed(&a);
                        self.value(&format!("scalar.bitcast {a} : f32 to i32"))
                    }
                };
                scope.ints.push(v);
            }
            16 => {
                let a = float(self, scope);
                let narrow = *self.dice.pick(&["f16", "bf16"]);
                let v = self.value(&format!("scalar.fptrunc {a} : f32 to {narrow}"));
                let op = *self.dice.pick(&["addf", "mulf", "subf", "divf", "minnumf", "maximumf", "copysignf"]);
                let w = self.value(&format!("scalar.{op} {v}, {v} : {narrow}"));
                let v = self.value(&format!("scalar.fmaf {v}, {w}, {v} : {narrow}"));
                let v = self.value(&format!("scalar.extf {v} : {narrow} to f32"));
                scope.floats.push(v);
            }
            17 | 18 => self.branch(scope),
            19 => self.counted(scope),
            20 | 26 | 27 if self.together => self.meet(scope),
            20 => self.vector(scope),
            21 => self.strided(scope),
            _ => self.packed(scope),
        }
    }

    /// Ops that the compiler makes one of, where nobody else reads what is between; here somebody may.
    fn idiom(&mut self, scope: &mut Scope) {
        let [a, b, c] = [0; 3].map(|_| self.dice.pick(&scope.floats).clone());
        let d = self.value(&format!("scalar.subf {a}, {b} : f32"));
        let v = match self.dice.below(if self.together { 5 } else { 3 }) {
            0 => self.value(&format!("scalar.fmaf {c}, {d}, {b} : f32")),
            1 => self.value(&format!("scalar.mulf {c}, {d} : f32")),
            2 => self.value(&format!("scalar.expf {d} : f32")),
            choice => {
                let other = if choice == 3 { d.clone() } else { c };
                let product = self.value(&format!("scalar.mulf {d}, {other} : f32"));
                let scaled = self.value(&format!("scalar.mulf {d}, {a} : f32"));
                scope.floats.push(scaled);
                let over = *self.dice.pick(&["workgroup", "subgroup"]);
                self.value(&format!("kernel.{over}.reduce<addf> {product} : f32"))
            }
        };
        scope.floats.push(v);
        if self.dice.below(3) == 0 {
            scope.floats.push(d);
        }
    }

    fn branch(&mut self, scope: &mut Scope) {
        let condition = self.dice.pick(&scope.bools).clone();
        self.names += 1;
        let (r, s) = (format!("%r{}", self.names), format!("%s{}", self.names));
        self.line(&format!("{r}, {s} = scf.if {condition} -> (f32, i32) {{"));
        let together = std::mem::replace(&mut self.together, false);
        for arm in 0..2 {
            let mut inner = scope.clone();
            let count = self.dice.below(5);
            self.ops(&mut inner, count, 1);
            let (a, b) = (self.dice.pick(&inner.floats).clone(), self.dice.pick(&inner.ints).clone());
            self.line(&format!("scf.yield {a}, {b} : f32, i32"));
            self.line(if arm == 0 { "} else {" } else { "}" });
        }
        self.together = together;
        scope.floats.push(r);
        scope.ints.push(s);
    }

    fn counted(&mut self, scope: &mut Scope) {
        self.names += 1;
        let id = self.names;
        let high = self.dice.pick(&["%k3", "%seven"]).to_string();
        // Sometimes the bound differs between items.
        let varying = self.dice.below(3) == 0;
        let high = if varying {
            let i = self.dice.pick(&scope.indices).clone();
            self.value(&format!("index.rem {i}, %seven : index"))
        } else {
            high
        };
        let (a, b) = (self.dice.pick(&scope.floats).clone(), self.dice.pick(&scope.floats).clone());
        self.line(&format!("%ra{id}, %rb{id} = scf.for %i{id} = [%zero to {high} step %unit](%ca{id} = {a} : f32, %cb{id} = {b} : f32) -> (f32, f32) {{"));
        let mut inner = scope.clone();
        inner.floats.extend([format!("%ca{id}"), format!("%cb{id}")]);
        inner.indices.push(format!("%i{id}"));
        let together = self.together;
        self.together &= !varying;
        let count = 1 + self.dice.below(4);
        self.ops(&mut inner, count, 1);
        self.together = together;
        let last: Vec<String> = inner.floats[scope.floats.len()..].to_vec();
        let (x, y) = (self.dice.pick(&last).clone(), self.dice.pick(&last).clone());
        self.line(&format!("scf.yield {x}, {y} : f32, f32"));
        self.line("}");
        scope.floats.extend([format!("%ra{id}"), format!("%rb{id}")]);
    }

    /// A loop that starts at the item: each item takes its own share of a row.
    fn strided(&mut self, scope: &mut Scope) {
        self.names += 1;
        let id = self.names;
        let a = self.dice.pick(&scope.floats).clone();
        let high = *self.dice.pick(&["%n", "%k40", "%len"]);
        let step = *self.dice.pick(&["%k40", "%items"]);
        self.line(&format!(
            "%ra{id} = scf.for %i{id} = [%local to {high} step {step}](%ca{id} = {a} : f32) -> (f32) {{"
        ));
        self.line(&format!("%l{id} = view.load %in1[%k3, %i{id}] : view<16x2048xf32> -> f32"));
        let op = *self.dice.pick(&["addf", "maximumf"]);
        self.line(&format!("%m{id} = scalar.{op} %ca{id}, %l{id} : f32"));
        self.line(&format!("scf.yield %m{id} : f32"));
        self.line("}");
        scope.floats.push(format!("%ra{id}"));
    }

    /// A loop whose turns may be taken together: it folds into what it carries and maps rows, mostly by items that take every
    /// so manieth element each. What an item stores is its own, and may be what it reads, in this turn or in another one.
    fn rounds(&mut self, scope: &mut Scope) {
        self.names += 1;
        let id = self.names;
        let own = self.rows;
        let (start, step, high) = if own {
            ("%flat", "%items", *self.dice.pick(&["%n", "%k40", "%len", "%len", "%many"]))
        } else {
            (
                *self.dice.pick(&["%zero", "%unit"]),
                *self.dice.pick(&["%unit", "%k3"]),
                *self.dice.pick(&["%seven", "%k40", "%k40"]),
            )
        };
        let carried = self.dice.below(4);
        let inits: Vec<String> = (0..carried).map(|_| self.dice.pick(&scope.floats).clone()).collect();
        let whole = self.dice.below(3) == 0;
        let mut names: Vec<String> = (0..carried).map(|at| format!("%ca{id}_{at}")).collect();
        let mut parts: Vec<String> =
            names.iter().zip(&inits).map(|(name, init)| format!("{name} = {init} : f32")).collect();
        let mut results: Vec<String> = (0..carried).map(|at| format!("%ra{id}_{at}")).collect();
        let mut types = vec!["f32"; carried];
        if whole {
            let init = self.dice.pick(&scope.ints).clone();
            names.push(format!("%ci{id}"));
            parts.push(format!("%ci{id} = {init} : i32"));
            results.push(format!("%ri{id}"));
            types.push("i32");
        }
        let head = format!("scf.for %i{id} = [{start} to {high} step {step}]");
        let typed = types.join(", ");
        if results.is_empty() {
            self.line(&format!("{head} {{"));
        } else {
            self.line(&format!("{} = {head}({}) -> ({typed}) {{", results.join(", "), parts.join(", ")));
        }
        let c = format!("%i{id}");
        let next = self.value(&format!("index.add {c}, %items : index"));
        let aside = self.value(&format!("index.add {c}, %column : index"));
        let mut values: Vec<String> = Vec::new();
        let all = self.all;
        for _ in 0..1 + self.dice.below(3) {
            let row = *self.dice.pick(&["%wy", "%k3"]);
            let near = if own { [&c, &c, &c, &next] } else { [&c, &aside, &aside, &aside] };
            let at = (*self.dice.pick(&near)).clone();
            let v = match self.dice.below(6) {
                0 | 1 => self.value(&format!("view.load %in1[{row}, {at}] : view<16x2048xf32> -> f32")),
                2 => {
                    let (x, y) = (
                        self.value(&format!("view.load %inB[{row}, {at}] : view<16x4096xbf16> -> bf16")),
                        self.value(&format!("view.load %inB[%k3, {at}] : view<16x4096xbf16> -> bf16")),
                    );
                    let (x, y) = (
                        self.value(&format!("scalar.extf {x} : bf16 to f32")),
                        self.value(&format!("scalar.extf {y} : bf16 to f32")),
                    );
                    values.push(x);
                    y
                }
                3 if own => {
                    let at = self.dice.pick(&[&c, &c, &next]).to_string();
                    self.value(&format!("view.load %mine[%wgflat, {at}] : view<{}x2048xf32> -> f32", self.groups))
                }
                3 => self.value(&format!("view.load %turn[%seven, %at] : view<8x{all}xf32> -> f32")),
                4 => {
                    let a = self.dice.pick(&scope.floats).clone();
                    let v = self.value(&format!("view.load %in1[{row}, {at}] : view<16x2048xf32> -> f32"));
                    let v = self.value(&format!("scalar.subf {v}, {a} : f32"));
                    let op = *self.dice.pick(&["expf", "absf", "negf", "tanhf"]);
                    self.value(&format!("scalar.{op} {v} : f32"))
                }
                _ => {
                    let n = self.value(&format!("index.cast {at} : index to i32"));
                    self.value(&format!("scalar.sitofp {n} : i32 to f32"))
                }
            };
            values.push(v);
        }
        let mut yields = Vec::new();
        for name in &names[..carried] {
            let x = self.dice.pick(&values).clone();
            let y = match self.dice.below(5) {
                0 | 1 => {
                    let op = *self.dice.pick(&["addf", "maxnumf", "minimumf", "mulf"]);
                    self.value(&format!("scalar.{op} {name}, {x} : f32"))
                }
                2 => {
                    let op = *self.dice.pick(&["subf", "addf", "maximumf", "divf"]);
                    self.value(&format!("scalar.{op} {x}, {name} : f32"))
                }
                3 => {
                    let other = self.dice.pick(&values).clone();
                    self.value(&format!("scalar.fmaf {x}, {other}, {name} : f32"))
                }
                _ => {
                    let other = self.dice.pick(&scope.floats).clone();
                    self.value(&format!("scalar.fmaf {x}, {other}, {name} : f32"))
                }
            };
            // What is folded may be read by others, too.
            if self.dice.below(6) == 0 {
                values.push(y.clone());
            }
            yields.push(y);
        }
        if whole {
            let x = self.value(&format!("view.load %inI[{c}] : view<1024xi32> -> i32"));
            let op = *self.dice.pick(&["addi", "maxsi", "minsi", "xori", "muli"]);
            yields.push(self.value(&format!("scalar.{op} %ci{id}, {x} : i32")));
        }
        for _ in 0..self.dice.below(3) {
            let x = self.dice.pick(&values).clone();
            if own {
                let at = self.dice.pick(&[&c, &c, &c, &next]).to_string();
                self.line(&format!("view.store {x}, %mine[%wgflat, {at}] : f32, view<{}x2048xf32>", self.groups));
            } else if high == "%seven" {
                self.line(&format!("view.store {x}, %turn[{c}, %at] : f32, view<8x{all}xf32>"));
            }
        }
        if !yields.is_empty() {
            self.line(&format!("scf.yield {} : {typed}", yields.join(", ")));
        }
        self.line("}");
        scope.floats.extend_from_slice(&results[..carried]);
        scope.ints.extend_from_slice(&results[carried..]);
    }

    fn vector(&mut self, scope: &mut Scope) {
        let a = self.dice.pick(&scope.floats).clone();
        let v = self.value("vector.load %in1[%k3, %column] : view<16x2048xf32> -> vector<4xf32>");
        let s = self.value(&format!("vector.splat {a} : vector<4xf32>"));
        let m = self.value(&format!("vector.mulf {v}, {s} : vector<4xf32>"));
        let r = self.value(&format!("vector.shuffle<[3, 1, 0, 2]> {m} : vector<4xf32>"));
        let sum = self.value(&format!("vector.reduce<addf> {r}, {a} : vector<4xf32>, f32"));
        let e = self.value(&format!("vector.extract {v}[2] : vector<4xf32> -> f32"));
        scope.floats.extend([sum, e]);
    }

    fn scan_mode(&mut self) -> String {
        let (mode, direction) =
            (*self.dice.pick(&["inclusive", "exclusive"]), *self.dice.pick(&["forward", "reverse"]));
        format!("mode = {mode}, direction = {direction}")
    }

    /// Among the lanes of a subgroup that come here together.
    fn exchange(&mut self, scope: &mut Scope) {
        let (a, x, p) = (
            self.dice.pick(&scope.floats).clone(),
            self.dice.pick(&scope.ints).clone(),
            self.dice.pick(&scope.bools).clone(),
        );
        let combine = *self.dice.pick(&COMBINE);
        let cluster = *self.dice.pick(&["", ", cluster_size = 8", ", cluster_size = 2, cluster_stride = 4"]);
        match self.dice.below(9) {
            0 => {
                let mode = self.scan_mode();
                let v = self.value(&format!("kernel.subgroup.scan<{combine}> {a} {{{mode}{cluster}}} : f32"));
                scope.floats.push(v);
            }
            1 => {
                let mode = self.scan_mode();
                let kind = *self.dice.pick(&["addi", "minsi", "maxui", "andi", "muli"]);
                let v = self.value(&format!("kernel.subgroup.scan<{kind}> {x} {{{mode}{cluster}}} : i32"));
                scope.ints.push(v);
            }
            2 => {
                let l = self.value(&format!("scalar.andi {x}, %five_bits : i32"));
                let v = self.value(&format!("kernel.subgroup.broadcast {a} from {l} : f32, i32"));
                scope.floats.push(v);
            }
            3 => {
                let v = self.value(&format!("kernel.subgroup.broadcast.first {a} : f32"));
                scope.floats.push(v);
            }
            4 => {
                let vote = *self.dice.pick(&["any", "all"]);
                let v = self.value(&format!("kernel.subgroup.vote.{vote} {p} : i1"));
                scope.bools.push(v);
            }
            5 => {
                let v = self.value(&format!("kernel.subgroup.vote.ballot {p} : i1 -> i64"));
                let v = self.value(&format!("index.cast {v} : i64 to index"));
                let v = self.value(&format!("index.ctpopi {v} : index"));
                scope.indices.push(v);
            }
            6 => {
                let v = self.value("kernel.subgroup.active.mask : i64");
                let v = self.value(&format!("scalar.trunci {v} : i64 to i32"));
                scope.ints.push(v);
            }
            7 => {
                let v = self.value(&format!("kernel.subgroup.match.any {x} : i32 -> i64"));
                let v = self.value(&format!("scalar.trunci {v} : i64 to i32"));
                scope.ints.push(v);
            }
            _ => {
                self.names += 1;
                let id = self.names;
                self.line(&format!("%mm{id}, %ma{id} = kernel.subgroup.match.all {x} : i32 -> i64, i1"));
                scope.bools.push(format!("%ma{id}"));
                let v = self.value(&format!("scalar.trunci %mm{id} : i64 to i32"));
                scope.ints.push(v);
            }
        }
    }

    /// On cells that all items share, each for one kind whose order does not matter; or on the item's own.
    fn atomic(&mut self, scope: &mut Scope) {
        let (x, y) = (self.dice.pick(&scope.ints).clone(), self.dice.pick(&scope.ints).clone());
        let order = "{ordering = relaxed, scope = device}";
        let kinds = ["addi", "xori", "minsi", "maxsi", "minui", "maxui", "andi", "ori"];
        let which = self.dice.below(kinds.len());
        let kind = kinds[which];
        match self.dice.below(5) {
            0 | 1 => {
                let i = self.dice.pick(&scope.indices).clone();
                let i = self.value(&format!("index.rem {i}, %seven : index"));
                self.line(&format!(
                    "view.atomic.reduce<{kind}> {x}, %cells[{which}, {i}] {order} : i32, view<8x8xi32>"
                ));
            }
            2 => {
                let m = self.dice.pick(&scope.bools).clone();
                let v = self.value(&format!("vector.from_elements {x}, {y} : vector<2xi32>"));
                let m = self.value(&format!("vector.from_elements {m}, %c0 : vector<2xi1>"));
                let o = self.value("vector.iota %k3 step %unit : vector<2xindex>");
                self.line(&format!(
                    "vector.atomic.reduce.mask<{kind}> {v}, %cells[{which}, 2][{o}], {m} {order} : vector<2xi32>, view<8x8xi32>, vector<2xindex>, vector<2xi1>"
                ));
            }
            3 => {
                let kind = *self.dice.pick(&["addi", "subi", "xchgi", "maxsi", "xori"]);
                let v = self.value(&format!(
                    "view.atomic.rmw<{kind}> {x}, %own[%at] {order} : i32, view<{}xi32> -> i32",
                    self.all
                ));
                scope.ints.push(v);
            }
            _ => {
                let all = self.all;
                let held = self.value(&format!(
                    "view.atomic.load %own[%at] {{ordering = acquire, scope = device}} : view<{all}xi32> -> i32"
                ));
                let e = self.dice.pick(&[held, x]).clone();
                let v = self.value(&format!("view.atomic.cmpxchg {e}, {y}, %own[%at] {{success_ordering = acq_rel, failure_ordering = relaxed, scope = device}} : i32, view<{all}xi32> -> i32"));
                scope.ints.push(v);
            }
        }
    }

    /// Four lanes of the second input from `column` on, and four of the third.
    fn lanes(&mut self, scope: &Scope) -> (String, String) {
        let row = *self.dice.pick(&["%wy", "%k3"]);
        let v = self.value(&format!("vector.load %in1[{row}, %column] : view<16x2048xf32> -> vector<4xf32>"));
        let index = self.dice.pick(&scope.indices).clone();
        let at = self.value(&format!("index.rem {index}, %k40 : index"));
        let w = self.value(&format!("vector.load %inI[{at}] : view<1024xi32> -> vector<4xi32>"));
        let mixed = self.value("vector.constant -1640531527 : vector<4xi32>");
        (v, self.value(&format!("vector.muli {w}, {mixed} : vector<4xi32>")))
    }

    fn packed(&mut self, scope: &mut Scope) {
        let (v, w) = self.lanes(scope);
        let f = self.dice.pick(&scope.floats).clone();
        let lane = self.dice.below(4);
        let int = |this: &mut Self, scope: &mut Scope, vector: &str, ty: &str| {
            let e = this.value(&format!("vector.extract {vector}[{lane}] : vector<{ty}> -> i32"));
            scope.ints.push(e);
        };
        match self.dice.below(16) {
            0 => {
                let signs = *self.dice.pick(&["s8s8", "u8s8", "s8u8", "u8u8"]);
                let bytes = self.value(&format!("vector.bitcast {w} : vector<4xi32> to vector<16xi8>"));
                let turned = self.value(&format!(
                    "vector.shuffle<[5, 1, 9, 2, 0, 15, 4, 3, 8, 7, 6, 10, 14, 13, 12, 11]> {bytes} : vector<16xi8>"
                ));
                let r = self.value(&format!(
                    "vector.dot4i<{signs}> {bytes}, {turned}, {w} : vector<16xi8>, vector<16xi8>, vector<4xi32>"
                ));
                int(self, scope, &r, "4xi32");
            }
            1 => {
                let width = *self.dice.pick(&[1, 2, 4, 8]);
                let (op, fields) = (*self.dice.pick(&["bitunpacku", "bitunpacks"]), 128 / width);
                let u = self.value(&format!("vector.{op}<{width}> {w} : vector<4xi32> -> vector<{fields}xi8>"));
                let r = self.value(&format!("vector.bitpack<{width}> {u} : vector<{fields}xi8> -> vector<4xi32>"));
                let e = self.value(&format!(
                    "vector.extract {u}[{}] : vector<{fields}xi8> -> i8",
                    self.dice.0 as usize % fields
                ));
                let e = self.value(&format!("scalar.extsi {e} : i8 to i32"));
                scope.ints.push(e);
                int(self, scope, &r, "4xi32");
            }
            2 => {
                let width = *self.dice.pick(&[3, 6, 12]);
                let (op, fields) = (*self.dice.pick(&["bitunpacku", "bitunpacks"]), 96 / width);
                let s = self.value(&format!("vector.slice {w}[1] : vector<4xi32> -> vector<3xi32>"));
                let u = self.value(&format!("vector.{op}<{width}> {s} : vector<3xi32> -> vector<{fields}xi16>"));
                let r = self.value(&format!("vector.bitpack<{width}> {u} : vector<{fields}xi16> -> vector<12xi8>"));
                let r = self.value(&format!("vector.bitcast {r} : vector<12xi8> to vector<3xi32>"));
                let e = self.value(&format!("vector.reduce<xori> {r}, %i0 : vector<3xi32>, i32"));
                let x = self.value(&format!("vector.extract {u}[5] : vector<{fields}xi16> -> i16"));
                let x = self.value(&format!("scalar.extsi {x} : i16 to i32"));
                scope.ints.extend([e, x]);
            }
            3 => {
                let (offset, width) = (self.dice.below(20), 1 + self.dice.below(12));
                let op = *self.dice.pick(&["extractu", "extracts"]);
                let field = format!("{{offset = {offset}, width = {width}}}");
                let e = self.value(&format!("vector.bitfield.{op} {w} {field} : vector<4xi32> -> vector<4xi16>"));
                let turned = self.value(&format!("vector.shuffle<[2, 3, 1, 0]> {w} : vector<4xi32>"));
                let r = self
                    .value(&format!("vector.bitfield.insert {e} into {turned} {field} : vector<4xi16>, vector<4xi32>"));
                int(self, scope, &r, "4xi32");
            }
            4 | 5 => {
                let k = self.value("vector.constant 63 : vector<4xi32>");
                let o = self.value(&format!("vector.andi {w}, {k} : vector<4xi32>"));
                let p = *self.dice.pick(&FLOAT_PREDICATES);
                let s = self.value(&format!("vector.splat {f} : vector<4xf32>"));
                let m = self.value(&format!("vector.cmpf {p}, {v}, {s} : vector<4xf32> -> vector<4xi1>"));
                let r = match self.dice.below(3) {
                    0 => self.value(&format!("vector.gather %in1[%wy, %k3][{o}] : view<16x2048xf32>, vector<4xi32> -> vector<4xf32>")),
                    1 => self.value(&format!("vector.gather.mask %in1[%wy, %column][{o}], {m}, {v} : view<16x2048xf32>, vector<4xi32>, vector<4xi1>, vector<4xf32>")),
                    _ => self.value(&format!("vector.load.expand %in1[%wy, %column], {m}, {s} : view<16x2048xf32>, vector<4xi1>, vector<4xf32>")),
                };
                let e = self.value(&format!("vector.reduce<maxnumf> {r}, {f} : vector<4xf32>, f32"));
                scope.floats.push(e);
            }
            6 => {
                let t =
                    self.value(&format!("vector.concat<0> {v}, {v} : vector<4xf32>, vector<4xf32> -> vector<8xf32>"));
                let k = self.value("vector.constant 7 : vector<4xi32>");
                let i = self.value(&format!("vector.andi {w}, {k} : vector<4xi32>"));
                let r = self
                    .value(&format!("vector.table.lookup {t}[{i}] : vector<8xf32>, vector<4xi32> -> vector<4xf32>"));
                let e = self.value(&format!("vector.extract {r}[{lane}] : vector<4xf32> -> f32"));
                scope.floats.push(e);
            }
            7 => {
                let (nan, tie) = (*self.dice.pick(&["zero", "max"]), *self.dice.pick(&["lower", "upper"]));
                let (a, b) = (self.value("scalar.constant -1.0 : f32"), self.value("scalar.constant 2.5 : f32"));
                let t = self.value(&format!("vector.from_elements {a}, %f0, {b} : vector<3xf32>"));
                let r = self.value(&format!("vector.table.quantize {v}, {t} {{nan = {nan}, tie = {tie}}} : vector<4xf32>, vector<3xf32> -> vector<4xi32>"));
                int(self, scope, &r, "4xi32");
            }
            8 => {
                let narrow = *self.dice.pick(&["f16", "bf16"]);
                let n = self.value(&format!("vector.fptrunc {v} : vector<4xf32> to vector<4x{narrow}>"));
                let c = self.value(&format!("vector.splat {f} : vector<2xf32>"));
                let r = self.value(&format!(
                    "vector.dot2f {n}, {n}, {c} : vector<4x{narrow}>, vector<4x{narrow}>, vector<2xf32>"
                ));
                let e = self.value(&format!("vector.extract {r}[1] : vector<2xf32> -> f32"));
                scope.floats.push(e);
            }
            9 => {
                let formats = *self.dice.pick(&["fp8fp8", "fp8bf8", "bf8fp8", "bf8bf8"]);
                let r = self.value(&format!("vector.dot4f8<{formats}> {w}, {w}, {v} : vector<4xi32>, vector<4xf32>"));
                let e = self.value(&format!("vector.extract {r}[{lane}] : vector<4xf32> -> f32"));
                scope.floats.push(e);
            }
            10 => {
                let signs = *self.dice.pick(&["s4s4", "u4s4", "s4u4", "u4u4"]);
                let turned = self.value(&format!("vector.shuffle<[2, 3, 1, 0]> {w} : vector<4xi32>"));
                let r = self.value(&format!("vector.dot8i4<{signs}> {w}, {turned}, {w} : vector<4xi32>"));
                int(self, scope, &r, "4xi32");
            }
            11 => {
                let (format, lanes) = *self.dice.pick(&[
                    ("f8e4m3", 16),
                    ("f8e5m2", 16),
                    ("f4e2m1", 32),
                    ("i4", 32),
                    ("u2", 64),
                    ("i8", 16),
                    ("f16", 8),
                    ("bf16", 8),
                ]);
                let s = self
                    .value(&format!("encoding.define #encoding.operand<element_format={format}> : encoding<schema>"));
                let r = self.value(&format!("vector.decode {w} using {s} {{scale = {f} : f32}} : vector<4xi32>, encoding<schema> -> vector<{lanes}xf32>"));
                let e = self.value(&format!("vector.extract {r}[{}] : vector<{lanes}xf32> -> f32", lane + 3));
                scope.floats.push(e);
            }
            12 => {
                let (format, lanes) = *self.dice.pick(&[
                    ("f8e4m3", "1xi32"),
                    ("f8e5m2", "4xi8"),
                    ("i4", "2xi8"),
                    ("u4", "1xi16"),
                    ("bf16", "2xi32"),
                ]);
                let s = self
                    .value(&format!("encoding.define #encoding.operand<element_format={format}> : encoding<schema>"));
                let r = self.value(&format!(
                    "vector.encode {v} using {s} : vector<4xf32>, encoding<schema> -> vector<{lanes}>"
                ));
                let r = match lanes {
                    "1xi32" | "2xi32" => r,
                    _ => {
                        let bytes = if lanes == "4xi8" { 4 } else { 2 };
                        let r = if lanes == "1xi16" {
                            self.value(&format!("vector.bitcast {r} : vector<1xi16> to vector<2xi8>"))
                        } else {
                            r
                        };
                        self.value(&format!("vector.extui {r} : vector<{bytes}xi8> to vector<{bytes}xi32>"))
                    }
                };
                let count = match lanes {
                    "1xi32" => 1,
                    "4xi8" => 4,
                    _ => 2,
                };
                let e = self.value(&format!("vector.reduce<xori> {r}, %i0 : vector<{count}xi32>, i32"));
                // A NaN's payload is free.
                let (a, b) = (
                    self.value(&format!("vector.cmpf uno, {v}, {v} : vector<4xf32> -> vector<4xi1>")),
                    self.value("scalar.constant false : i1"),
                );
                let nan = self.value(&format!("vector.reduce<ori> {a}, {b} : vector<4xi1>, i1"));
                let e = self.value(&format!("scf.select {nan}, %i0, {e} : i32"));
                scope.ints.push(e);
            }
            13 => {
                let b = self.value(&format!("vector.broadcast {v} : vector<4xf32> -> vector<2x4xf32>"));
                let axis = self.dice.below(2);
                let left = if axis == 0 { 4 } else { 2 };
                let c = self.value(&format!("vector.splat {f} : vector<{left}xf32>"));
                let combine = *self.dice.pick(&COMBINE);
                let r = self.value(&format!(
                    "vector.reduce.axes<{combine}> {b}, {c} axes [{axis}] : vector<2x4xf32>, vector<{left}xf32>"
                ));
                let e = self.value(&format!("vector.extract {r}[1] : vector<{left}xf32> -> f32"));
                scope.floats.push(e);
            }
            14 => {
                // Each item's own memory: written whole, then here and there.
                let b = self.value("index.constant 32 : offset");
                let b = self.value(&format!("buffer.alloca<private> align(4) {b} : buffer"));
                let p = self.value(&format!("buffer.view {b}[%base] : buffer -> view<8xi32>"));
                let c =
                    self.value(&format!("vector.concat<0> {w}, {w} : vector<4xi32>, vector<4xi32> -> vector<8xi32>"));
                self.line(&format!("vector.store {c}, {p}[0] : vector<8xi32>, view<8xi32>"));
                let p = if self.dice.below(2) == 0 { self.one_of_two(scope, &p, &c) } else { p };
                let zero = self.value("vector.constant 0 : vector<4xi32>");
                let m = self.value(&format!("vector.cmpi sgt, {w}, {zero} : vector<4xi32> -> vector<4xi1>"));
                let turned = self.value(&format!("vector.shuffle<[1, 3, 2, 0]> {w} : vector<4xi32>"));
                if self.dice.below(2) == 0 {
                    let (k7, k1) = (self.value("index.constant 7 : index"), self.value("index.constant -2 : index"));
                    let o = self.value(&format!("vector.iota {k7} step {k1} : vector<4xindex>"));
                    self.line(&format!("vector.scatter.mask {turned}, {p}[0][{o}], {m} : vector<4xi32>, view<8xi32>, vector<4xindex>, vector<4xi1>"));
                } else {
                    self.line(&format!(
                        "vector.store.compress {turned}, {p}[2], {m} : vector<4xi32>, view<8xi32>, vector<4xi1>"
                    ));
                }
                let index = self.dice.pick(&scope.indices).clone();
                let k8 = self.value("index.constant 8 : index");
                let at = self.value(&format!("index.rem {index}, {k8} : index"));
                let e = self.value(&format!("view.load {p}[{at}] : view<8xi32> -> i32"));
                scope.ints.push(e);
                if self.dice.below(2) == 0 {
                    // Each element, or each other one: strides are swapped with the views.
                    let l = self.value("encoding.layout.strided [2] : encoding<layout>");
                    let near = self.value(&format!("buffer.view {b}[%base] : buffer -> view<4xi32>"));
                    let far = self.value(&format!("buffer.view {b}[%base] : buffer -> view<4xi32, {l}>"));
                    let twice = self.dice.pick(&scope.bools).clone();
                    let s = self.swapped(&twice, [&near, &far], "view<4xi32>");
                    let k4 = self.value("index.constant 4 : index");
                    let at = self.value(&format!("index.rem {index}, {k4} : index"));
                    let e = self.value(&format!("view.load {s}[{at}] : view<4xi32> -> i32"));
                    scope.ints.push(e);
                }
            }
            _ => {
                let index = self.dice.pick(&scope.indices).clone();
                let (k2, k4) = (self.value("index.constant 2 : index"), self.value("index.constant 4 : index"));
                let (i, j) = (
                    self.value(&format!("index.rem {index}, {k4} : index")),
                    self.value(&format!("index.rem {index}, {k2} : index")),
                );
                let b = self.value(&format!("vector.broadcast {v} : vector<4xf32> -> vector<2x4xf32>"));
                let n = self.value(&format!("vector.insert {f} into {b}[{j}, {i}] : f32, vector<2x4xf32>"));
                let e = self.value(&format!("vector.extract {n}[1, {i}] : vector<2x4xf32> -> f32"));
                let g = self.value(&format!("vector.extract {n}[{j}] : vector<2x4xf32> -> vector<4xf32>"));
                let g = self.value(&format!("vector.reduce<addf> {g}, {f} : vector<4xf32>, f32"));
                scope.floats.extend([e, g]);
            }
        }
    }

    fn meet(&mut self, scope: &mut Scope) {
        let a = self.dice.pick(&scope.floats).clone();
        let combine = *self.dice.pick(&COMBINE);
        match self.dice.below(if self.shared { 7 } else { 5 }) {
            0 => {
                let v = self.value(&format!("kernel.workgroup.reduce<{combine}> {a} : f32"));
                scope.floats.push(v);
            }
            1 => {
                let cluster = *self.dice.pick(&["", " {cluster_size = 8}", " {cluster_size = 4, cluster_stride = 8}"]);
                let v = self.value(&format!("kernel.subgroup.reduce<{combine}> {a}{cluster} : f32"));
                scope.floats.push(v);
            }
            2 => {
                let d = *self.dice.pick(&[1, 4, 16, 33]);
                let width = *self.dice.pick(&[2, 8, 16, 32, self.subgroup]);
                let mode = *self.dice.pick(&["xor", "up", "down", "index"]);
                let (d, w) = (
                    self.value(&format!("scalar.constant {d} : i32")),
                    self.value(&format!("scalar.constant {width} : i32")),
                );
                self.names += 1;
                let id = self.names;
                self.line(&format!("%sh{id}, %ok{id} = kernel.subgroup.shuffle<{mode}> {a}, {d}, {w} : f32, i32, i32"));
                // Out of range the value is unspecified.
                let v = self.value(&format!("scf.select %ok{id}, %sh{id}, {a} : f32"));
                scope.floats.push(v);
                scope.bools.push(format!("%ok{id}"));
            }
            3 => {
                let mode = self.scan_mode();
                let v = self.value(&format!("kernel.workgroup.scan<{combine}> {a} {{{mode}}} : f32"));
                scope.floats.push(v);
            }
            4 => {
                let p = self.dice.pick(&scope.bools).clone();
                let v = self.value(&format!("kernel.workgroup.vote.count {p} : i1 -> i32"));
                scope.ints.push(v);
                let vote = *self.dice.pick(&["any", "all"]);
                let v = self.value(&format!("kernel.workgroup.vote.{vote} {p} : i1"));
                scope.bools.push(v);
            }
            5 => {
                let x = self.dice.pick(&scope.ints).clone();
                let (kind, other) =
                    (*self.dice.pick(&["addi", "xori", "maxsi", "minui"]), *self.dice.pick(&["%lane", "%flat"]));
                self.line(&format!("view.store {x}, %sharedi[%flat] : i32, view<1024xi32>"));
                self.line("kernel.barrier<global> {ordering = acq_rel, scope = workgroup}");
                self.line(&format!("view.atomic.reduce<{kind}> {x}, %sharedi[{other}] {{ordering = relaxed, scope = workgroup}} : i32, view<1024xi32>"));
                self.line("kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)");
                let v = self.value("view.load %sharedi[%flat] : view<1024xi32> -> i32");
                self.line("kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)");
                scope.ints.push(v);
            }
            _ => {
                self.line(&format!("view.store {a}, %sharedv[%flat] : f32, view<1024xf32>"));
                self.line("kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)");
                let other = self.value("index.sub %last, %flat : index");
                let v = self.value(&format!("view.load %sharedv[{other}] : view<1024xf32> -> f32"));
                self.line("kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)");
                scope.floats.push(v);
            }
        }
    }
}

fn generate(seed: u64) -> Case {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let together = dice.below(3) == 0;
    let named = together || dice.below(3) == 0;
    let size =
        *dice.pick(&[[64, 1, 1], [32, 1, 1], [100, 1, 1], [256, 1, 1], [8, 1, 1], [16, 4, 1], [300, 1, 1], [4, 3, 5]]);
    let grid = [1 + dice.below(if size[0] > 64 { 3 } else { 6 }), 1 + dice.below(3), 1 + dice.below(2)];
    let items = size[0] * size[1] * size[2];
    let subgroup = if dice.below(3) == 0 { 64 } else { 32 };
    let total = grid[0] * size[0];
    let n = 1 + dice.below(total);
    let mut text = format!(
        "amdgpu.target<gfx9-4-generic> @t {{subgroup_size = {subgroup}}}\nkernel.def target(@t) export(\"k\") @k() {{\n  %gx = index.constant {} : index\n  %gy = index.constant {} : index\n  %gz = index.constant {} : index\n  %sx = index.constant {} : index\n  %sy = index.constant {} : index\n  %sz = index.constant {} : index\n  kernel.launch.config workgroups(%gx, %gy, %gz) workgroup_size(%sx, %sy, %sz) : index\n}} launch(%n: index, %s: f32, %b0: buffer, %b1: buffer, %bi: buffer, %o0: buffer, %o1: buffer, %o2: buffer, %o3: buffer, %o4: buffer) {{\n",
        grid[0], grid[1], grid[2], size[0], size[1], size[2]
    );
    let all = grid[0] * grid[1] * grid[2] * items;
    let mut w = Writer {
        dice: &mut dice,
        text: String::new(),
        names: 0,
        together,
        subgroup,
        lanes: together,
        all,
        groups: grid.iter().product(),
        rows: false,
        shared: true,
    };
    w.line("%base = index.constant 0 : offset");
    w.line("%zero = index.constant 0 : index");
    w.line("%unit = index.constant 1 : index");
    w.line("%k3 = index.constant 3 : index");
    w.line("%seven = index.constant 7 : index");
    w.line("%k40 = index.constant 40 : index");
    w.line("%len = index.constant 1024 : index");
    w.line(&format!("%items = index.constant {items} : index"));
    w.line(&format!("%last = index.constant {} : index", items - 1));
    w.line("%in0 = buffer.view %b0[%base] : buffer -> view<1024xf32>");
    w.line("%in1 = buffer.view %b1[%base] : buffer -> view<16x2048xf32>");
    w.line("%inI = buffer.view %bi[%base] : buffer -> view<1024xi32>");
    w.line(&format!("%outF = buffer.view %o0[%base] : buffer -> view<{all}xf32>"));
    w.line(&format!("%outI = buffer.view %o1[%base] : buffer -> view<{all}xi32>"));
    w.line("%cells = buffer.view %o2[%base] : buffer -> view<8x8xi32>");
    w.line(&format!("%own = buffer.view %o3[%base] : buffer -> view<{all}xi32>"));
    w.line("%many = index.constant 700 : index");
    w.line("%inB = buffer.view %b1[%base] : buffer -> view<16x4096xbf16>");
    w.line(&format!("%turn = buffer.view %o4[%base] : buffer -> view<8x{all}xf32>"));
    w.line("%five_bits = scalar.constant 31 : i32");
    w.line("%gid = kernel.workitem.dispatch.id<x> : index");
    w.line("%gidy = kernel.workitem.dispatch.id<y> : index");
    w.line("%gidz = kernel.workitem.dispatch.id<z> : index");
    w.line("%wy = kernel.workgroup.id<y> : index");
    w.line("%wz = kernel.workgroup.id<z> : index");
    // Within a row of the second input, and one vector further.
    w.line(&format!("%row = index.constant {total} : index"));
    w.line(&format!("%rows = index.constant {} : index", grid[1] * size[1]));
    w.line("%at0 = index.madd %gidz, %rows, %gidy : index");
    w.line("%at = index.madd %at0, %row, %gid : index");
    w.line("%column = index.add %gid, %k3 : index");
    let mut scope = Scope {
        floats: vec!["%s".into()],
        ints: Vec::new(),
        indices: vec!["%gid".into(), "%gid".into(), "%n".into(), "%k3".into(), "%wy".into(), "%gidy".into()],
        bools: Vec::new(),
    };
    w.rows = named && w.dice.below(4) > 0;
    if named {
        w.line("%local = kernel.workitem.id<x> : index");
        w.line("%localy = kernel.workitem.id<y> : index");
        w.line("%localz = kernel.workitem.id<z> : index");
        w.line("%group = kernel.workgroup.id<x> : index");
        w.line(&format!("%sy = index.constant {} : index", size[1]));
        w.line(&format!("%sx = index.constant {} : index", size[0]));
        w.line("%plane = index.madd %localz, %sy, %localy : index");
        w.line("%flat = index.madd %plane, %sx, %local : index");
        scope.indices.extend(["%local", "%group", "%flat", "%localy"].map(String::from));
        w.line(&format!("%gx = index.constant {} : index", grid[0]));
        w.line(&format!("%gy = index.constant {} : index", grid[1]));
        w.line("%wg0 = index.madd %wz, %gy, %wy : index");
        w.line("%wgflat = index.madd %wg0, %gx, %group : index");
        w.line(&format!(
            "%mine = buffer.view %o4[%base] : buffer -> view<{}x2048xf32>",
            grid.iter().product::<usize>()
        ));
        if together {
            w.line("%lane = kernel.subgroup.lane.id : index");
            w.line("%sub = kernel.subgroup.id : index");
            scope.indices.extend(["%lane", "%sub"].map(String::from));
        }
    } else {
        w.line("%local = index.add %gid, %zero : index");
    }
    if together {
        w.line("%bytes = index.constant 4096 : offset");
        w.line("%shared = buffer.alloca<workgroup> align(16) %bytes : buffer");
        w.line("%sharedv = buffer.view %shared[%base] : buffer -> view<1024xf32>");
        w.line("%words = buffer.alloca<workgroup> align(64) %bytes : buffer");
        w.line("%sharedi = buffer.view %words[%base] : buffer -> view<1024xi32>");
    }
    let guard = !together && w.dice.below(3) > 0;
    if guard {
        let p = *w.dice.pick(&["ult", "ult", "ult", "slt", "slt", "ule", "ugt", "ne", "sge"]);
        // A limit known to the compiler, or only to the launch.
        w.line(&format!("%nc = index.constant {n} : index"));
        let limit = *w.dice.pick(&["%n", "%nc"]);
        w.line(&format!("%live = index.cmp {p}, %gid, {limit} : index"));
        w.line("scf.if %live {");
    }
    if !guard && w.dice.below(3) == 0 {
        w.shared = false;
        let p = *w.dice.pick(&["uge", "sge", "ult", "eq", "ne"]);
        w.line(&format!("%gone = index.cmp {p}, %gid, %n : index"));
        let works = w.dice.below(2) == 0;
        w.line(if works { "kernel.exit %gone : i1 {" } else { "kernel.exit %gone : i1" });
        if works {
            w.line("%lost = scalar.constant -7 : i32");
            w.line(&format!("view.store %lost, %own[%at] : i32, view<{all}xi32>"));
            w.line("}");
        }
        w.line("%stays = index.cmp eq, %gid, %gid : index");
        w.line("kernel.assert %stays \"always\" : i1");
    }
    w.line("%f0 = view.load %in0[%k3] : view<1024xf32> -> f32");
    w.line("%f1 = view.load %in1[%wy, %column] : view<16x2048xf32> -> f32");
    w.line("%p1 = index.rem %gid, %len : index");
    w.line("%i0 = view.load %inI[%p1] : view<1024xi32> -> i32");
    w.line("%c0 = index.cmp slt, %gid, %k40 : index");
    scope.floats.extend(["%f0", "%f1", "%f1"].map(String::from));
    scope.ints.push("%i0".into());
    scope.bools.push("%c0".into());
    let count = 3 + w.dice.below(25);
    w.ops(&mut scope, count, 0);
    let (f, i) = (scope.floats[scope.floats.len() - 1].clone(), scope.ints[scope.ints.len() - 1].clone());
    let g = w.dice.pick(&scope.floats).clone();
    w.line(&format!("%sumF = scalar.addf {f}, {g} : f32"));
    w.line(&format!("view.store %sumF, %outF[%at] : f32, view<{all}xf32>"));
    w.line(&format!("view.store {i}, %outI[%at] : i32, view<{all}xi32>"));
    if guard {
        w.line("}");
    }
    w.line("kernel.return");
    text.push_str(&w.text);
    text.push_str("}\n");
    Case { text, grid, size, n }
}

/// A float's bits, all NaNs as one.
fn canonical(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|b| {
            let bits = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            if f32::from_bits(bits).is_nan() { 0x7fc0_0000 } else { bits }
        })
        .collect()
}

fn compare(seed: u64, scratch: &mut [TileScratch], team: &mut Team) {
    let case = generate(seed);
    let module = Module::parse("random", &case.text).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.text));
    let kernel = module.specialise("k", &BTreeMap::new()).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.text));
    let compiled = tile::compile(&kernel).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.text));
    // What runs has been through bytes, as from a cache.
    let image = CpuImage::decode(&compiled.encode().unwrap()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    assert_eq!(image, compiled, "seed {seed}");
    let geometry = image.launch.geometry(&[]).unwrap();
    assert_eq!(geometry.workgroups, case.grid.map(|g| g as u32));
    let all = case.grid.iter().product::<usize>() * case.size.iter().product::<usize>();
    let mut dice = Dice(seed | 1);
    let mut floats = |n: usize| -> Vec<u8> {
        (0..n)
            .flat_map(|_| {
                let value = match dice.below(40) {
                    0 => f32::NAN,
                    1 => f32::INFINITY,
                    2 => -0.0,
                    3 => 1e-40,
                    4 => -1e30,
                    _ => (dice.next() % 20001) as f32 / 2000.0 - 5.0,
                };
                value.to_le_bytes()
            })
            .collect()
    };
    let (in0, in1) = (floats(LEN), floats(16 * 2048));
    let ints: Vec<u8> = (0..LEN).flat_map(|_| (dice.next() as i32 % 100).to_le_bytes()).collect();
    let fresh = || {
        [
            in0.clone(),
            in1.clone(),
            ints.clone(),
            vec![0x11u8; 4 * all],
            vec![0x22u8; 4 * all],
            vec![0x33u8; 256],
            vec![0x44u8; 4 * all],
            in1.iter().copied().cycle().take(4 * (8 * all).max(2048 * case.grid.iter().product::<usize>())).collect(),
        ]
    };
    let scalars = [case.n as u64, u64::from(0.7f32.to_bits())];

    let mut expected = fresh();
    {
        let mut arguments = vec![Argument::Scalar(scalars[0]), Argument::Scalar(scalars[1])];
        arguments.extend(expected.iter_mut().map(|b| Argument::Buffer(b)));
        interp::run(&kernel, geometry, &mut arguments, Limits::default())
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.text));
    }
    // Every set of instructions on one thread, then several threads.
    for scratch in scratch.iter_mut().map(Some).chain([None]) {
        let mut found = fresh();
        let mut slices: Vec<&mut [u8]> = found.iter_mut().map(Vec::as_mut_slice).collect();
        let ran = match scratch {
            Some(scratch) => run_slices(&image, &geometry, &mut slices, &scalars, scratch),
            None => team.run_slices(&team.kernel(&image), &geometry, &mut slices, &scalars),
        };
        ran.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.text));
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            if found == expected {
                continue;
            }
            let (found, expected) = (canonical(found), canonical(expected));
            if let Some(i) = (0..found.len()).find(|&i| found[i] != expected[i]) {
                panic!(
                    "seed {seed}, buffer {at}, element {i}: {:e} ({:#x}) instead of {:e} ({:#x}), n = {}\n{}",
                    f32::from_bits(found[i]),
                    found[i],
                    f32::from_bits(expected[i]),
                    expected[i],
                    case.n,
                    case.text
                );
            }
        }
    }
}

/// Cases: `TILE_CASES` to run more of them, from `TILE_FIRST` on.
#[test]
fn random_kernels_give_the_interpreters_bits() {
    let cases = std::env::var("TILE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let mut scratch: Vec<TileScratch> =
        Isa::ALL.into_iter().filter(|isa| isa.available()).map(TileScratch::new).collect();
    let mut team = Team::new(3, Isa::best()).unwrap();
    team.set_worth(0);
    let first = std::env::var("TILE_FIRST").ok().and_then(|n| n.parse().ok()).unwrap_or(0u64);
    for seed in first..first + cases {
        compare(seed, &mut scratch, &mut team);
    }
}

/// Bytes that were altered are refused, or run without touching anything but their buffers: to the end, to a fault, never to
/// a panic. In a debug build arithmetic and indices are checked, too.
#[test]
fn altered_images_are_refused_or_run_within_their_buffers() {
    let cases = std::env::var("TILE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let mut scratch = TileScratch::default();
    scratch.set_step_limit(500);
    let (mut refused, mut ran, mut faults) = (0, 0, 0);
    for seed in 0..cases {
        let image = compile_cpu("random", &generate(seed).text, "k", &BTreeMap::new()).unwrap();
        let good = image.encode().unwrap();
        let mut dice = Dice(seed.wrapping_mul(77) | 1);
        for _ in 0..100 {
            let mut bytes = good.clone();
            for _ in 0..1 + dice.below(3) {
                let at = dice.below(bytes.len());
                match dice.below(4) {
                    0 => bytes[at] ^= 1 << dice.below(8),
                    1 => bytes[at] = dice.next() as u8,
                    2 => bytes[at] = bytes[at].wrapping_add(1),
                    _ => bytes[at] = bytes[dice.below(good.len())],
                }
            }
            let image = match CpuImage::decode(&bytes) {
                Ok(image) => image,
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            let workload = vec![2; image.launch.workload.len()];
            let Ok(mut geometry) = image.launch.geometry(&workload) else {
                continue;
            };
            geometry.workgroups = geometry.workgroups.map(|count| count.min(3));
            let mut buffers = vec![vec![0x5au8; 3000]; image.parameters.len()];
            let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
            let scalars = vec![dice.next() >> dice.below(64); image.parameters.len()];
            match run_slices(&image, &geometry, &mut slices, &scalars, &mut scratch) {
                Ok(()) => ran += 1,
                Err(_) => faults += 1,
            }
        }
    }
    // Else this would be a test of nothing.
    assert!(refused > cases && ran > cases && faults > cases, "{refused} refused, {ran} ran, {faults} faults");
}
