//! Elementwise expressions: what a fused chain of operations computes of one element, and its Loom text.
//!
//! - An instruction names earlier instructions only; every one has a type.
//! - f16 and bf16 are computed in f32 and rounded once after each operation, as the graph's ops say.
//! - Booleans are bytes in memory and `i1` in registers.

use crate::graph::{Binary, CellActivation, Unary};
use lanes_core::DType;
use std::fmt::Write;

/// An instruction of one expression: an index.
pub type Reg = usize;

/// One step of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Instr {
    /// The element of operand `n`.
    Input(usize),
    /// A number, in the instruction's type.
    Const(f64),
    /// A function of one.
    Unary(Unary, Reg),
    /// A function of two of one type.
    Binary(Binary, Reg, Reg),
    /// a·b + c in one rounding.
    Fma(Reg, Reg, Reg),
    /// The second where the first is true, else the third.
    Select(Reg, Reg, Reg),
    /// Conversion to the instruction's type.
    Cast(Reg),
}

/// An elementwise function of `inputs` operands with one or more results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expr {
    /// In order.
    pub instrs: Vec<(Instr, DType)>,
    /// Which instructions are results.
    pub results: Vec<Reg>,
    /// How many operands.
    pub inputs: usize,
}

impl Expr {
    /// Starts an expression whose first instructions are its operands.
    pub fn of(inputs: &[DType]) -> Self {
        let instrs = inputs.iter().enumerate().map(|(n, &dtype)| (Instr::Input(n), dtype)).collect();
        Self { instrs, results: Vec::new(), inputs: inputs.len() }
    }

    /// The type of a register.
    pub fn dtype(&self, reg: Reg) -> DType {
        self.instrs[reg].1
    }

    /// Appends an instruction.
    pub fn push(&mut self, instr: Instr, dtype: DType) -> Reg {
        self.instrs.push((instr, dtype));
        self.instrs.len() - 1
    }

    /// A number of the type of `like`.
    pub fn number(&mut self, value: f64, like: Reg) -> Reg {
        self.push(Instr::Const(value), self.dtype(like))
    }

    /// A function of one.
    pub fn unary(&mut self, op: Unary, a: Reg) -> Reg {
        self.push(Instr::Unary(op, a), self.dtype(a))
    }

    /// A function of two.
    pub fn binary(&mut self, op: Binary, a: Reg, b: Reg) -> Reg {
        let dtype = if is_comparison(op) { DType::Bool } else { self.dtype(a) };
        self.push(Instr::Binary(op, a, b), dtype)
    }

    /// A choice.
    pub fn select(&mut self, condition: Reg, a: Reg, b: Reg) -> Reg {
        self.push(Instr::Select(condition, a, b), self.dtype(a))
    }

    /// Ends with one result.
    pub fn result(mut self, reg: Reg) -> Self {
        self.results.push(reg);
        self
    }

    /// An activation of a recurrent cell, applied to `x`.
    pub fn activation(&mut self, function: CellActivation, x: Reg) -> Reg {
        use CellActivation as A;
        match function {
            A::Relu => self.unary(Unary::Relu, x),
            A::Tanh => self.unary(Unary::Tanh, x),
            A::Sigmoid => self.unary(Unary::Sigmoid, x),
            A::Softplus => self.unary(Unary::Softplus, x),
            A::LeakyRelu { alpha } => self.unary(Unary::LeakyRelu { alpha }, x),
            A::Affine { alpha, beta } => self.affine(alpha, beta, x),
            A::ThresholdedRelu { alpha } => {
                let (alpha, zero) = (self.number(alpha.into(), x), self.number(0.0, x));
                let above = self.binary(Binary::GreaterOrEqual, x, alpha);
                self.select(above, x, zero)
            }
            A::ScaledTanh { alpha, beta } => {
                let beta = self.number(beta.into(), x);
                let inner = self.binary(Binary::Mul, beta, x);
                let tanh = self.unary(Unary::Tanh, inner);
                let alpha = self.number(alpha.into(), x);
                self.binary(Binary::Mul, alpha, tanh)
            }
            A::HardSigmoid { alpha, beta } => {
                let line = self.affine(alpha, beta, x);
                let (zero, one) = (self.number(0.0, x), self.number(1.0, x));
                let low = self.binary(Binary::Max, line, zero);
                self.binary(Binary::Min, low, one)
            }
            A::Elu { alpha } => {
                let (zero, one) = (self.number(0.0, x), self.number(1.0, x));
                let alpha = self.number(alpha.into(), x);
                let power = self.unary(Unary::Exp, x);
                let less = self.binary(Binary::Sub, power, one);
                let low = self.binary(Binary::Mul, alpha, less);
                let above = self.binary(Binary::GreaterOrEqual, x, zero);
                self.select(above, x, low)
            }
            A::Softsign => {
                let one = self.number(1.0, x);
                let size = self.unary(Unary::Abs, x);
                let below = self.binary(Binary::Add, one, size);
                self.binary(Binary::Div, x, below)
            }
        }
    }

    fn affine(&mut self, alpha: f32, beta: f32, x: Reg) -> Reg {
        let alpha = self.number(alpha.into(), x);
        let scaled = self.binary(Binary::Mul, alpha, x);
        let beta = self.number(beta.into(), x);
        self.binary(Binary::Add, scaled, beta)
    }

    /// Appends `other` with its operand `n` replaced by register `operands[n]`; the registers of its results.
    pub fn inline(&mut self, other: &Self, operands: &[Reg]) -> Vec<Reg> {
        let mut place: Vec<Reg> = Vec::with_capacity(other.instrs.len());
        for &(instr, dtype) in &other.instrs {
            let at = |reg: Reg| place[reg];
            let moved = match instr {
                Instr::Input(n) => {
                    place.push(operands[n]);
                    continue;
                }
                Instr::Const(_) => instr,
                Instr::Unary(op, a) => Instr::Unary(op, at(a)),
                Instr::Binary(op, a, b) => Instr::Binary(op, at(a), at(b)),
                Instr::Fma(a, b, c) => Instr::Fma(at(a), at(b), at(c)),
                Instr::Select(a, b, c) => Instr::Select(at(a), at(b), at(c)),
                Instr::Cast(a) => Instr::Cast(at(a)),
            };
            // The same step twice is one: fused chains share constants and operands.
            let known = self.instrs.iter().position(|known| *known == (moved, dtype));
            place.push(known.unwrap_or_else(|| self.push(moved, dtype)));
        }
        other.results.iter().map(|&reg| place[reg]).collect()
    }
}

/// Whether the result is boolean whatever the operands.
pub fn is_comparison(op: Binary) -> bool {
    matches!(op, Binary::Equal | Binary::Less | Binary::LessOrEqual | Binary::Greater | Binary::GreaterOrEqual)
}

/// The type that elements have in memory, as Loom spells it.
pub fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::I16 | DType::U16 => "i16",
        DType::I32 | DType::U32 => "i32",
        DType::I64 | DType::U64 => "i64",
        // `DType` may grow; what it grows by is refused before text is written (`supported`).
        _ => "i8",
    }
}

/// Whether expressions over this type can be written.
pub fn supported(dtype: DType) -> bool {
    use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(dtype, BF16 | Bool | F16 | F32 | F64 | I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64)
}

/// The type that a register has while it is computed with.
fn register_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "i1",
        DType::F16 | DType::BF16 => "f32",
        other => memory_type(other),
    }
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

fn is_unsigned(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64)
}

/// A float literal that reads back as exactly `value`.
pub fn float_literal(value: f64) -> String {
    if value.is_nan() {
        "nan".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "inf" } else { "-inf" }.to_owned()
    } else {
        // Rust prints the shortest decimal that reads back; `{:e}` may lack the point that Loom asks for.
        let text = format!("{value:e}");
        match text.split_once('e') {
            Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0e{exponent}"),
            _ => text,
        }
    }
}

/// Writes Loom operations line by line, naming values as it goes.
pub struct Writer {
    text: String,
    indent: usize,
    next: usize,
}

impl Writer {
    /// Starts at an indentation of `indent` spaces.
    pub fn new(indent: usize) -> Self {
        Self { text: String::new(), indent, next: 0 }
    }

    /// Changes the indentation by `by` spaces.
    pub fn indent(&mut self, by: isize) {
        self.indent = self.indent.saturating_add_signed(by);
    }

    /// One operation without a result.
    pub fn line(&mut self, operation: &str) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.text, "{:indent$}{operation}", "", indent = self.indent);
    }

    /// One operation with a result; its name.
    pub fn value(&mut self, operation: &str) -> String {
        let name = format!("%t{}", self.next);
        self.next += 1;
        self.line(&format!("{name} = {operation}"));
        name
    }

    /// What was written.
    pub fn finish(self) -> String {
        self.text
    }

    /// Loads an element as it is computed with.
    pub fn load(&mut self, view: &str, index: &str, view_type: &str, dtype: DType) -> String {
        let memory = memory_type(dtype);
        let loaded = self.value(&format!("view.load {view}[{index}] : {view_type} -> {memory}"));
        match dtype {
            DType::Bool => {
                let zero = self.value("scalar.constant 0 : i8");
                self.value(&format!("scalar.cmpi ne, {loaded}, {zero} : i8"))
            }
            DType::F16 | DType::BF16 => self.value(&format!("scalar.extf {loaded} : {memory} to f32")),
            _ => loaded,
        }
    }

    /// Stores an element as memory has it.
    pub fn store(&mut self, value: &str, view: &str, index: &str, view_type: &str, dtype: DType) {
        let memory = memory_type(dtype);
        let stored = match dtype {
            DType::Bool => self.value(&format!("scalar.extui {value} : i1 to i8")),
            DType::F16 | DType::BF16 => self.value(&format!("scalar.fptrunc {value} : f32 to {memory}")),
            _ => value.to_owned(),
        };
        self.line(&format!("view.store {stored}, {view}[{index}] : {memory}, {view_type}"));
    }

    /// Writes `expr` over loaded operands; the names of its results.
    pub fn expr(&mut self, expr: &Expr, inputs: &[String]) -> Vec<String> {
        let mut names: Vec<String> = Vec::with_capacity(expr.instrs.len());
        for &(instr, dtype) in &expr.instrs {
            let name = match instr {
                Instr::Input(n) => inputs[n].clone(),
                Instr::Const(value) => self.constant(value, dtype),
                Instr::Unary(op, a) => {
                    let done = self.unary(op, &names[a], dtype);
                    self.rounded(done, dtype)
                }
                Instr::Binary(op, a, b) => {
                    let done = self.binary(op, &names[a], &names[b], expr.dtype(a));
                    self.rounded(done, dtype)
                }
                Instr::Fma(a, b, c) => {
                    let ty = register_type(dtype);
                    let done = self.value(&format!("scalar.fmaf {}, {}, {} : {ty}", names[a], names[b], names[c]));
                    self.rounded(done, dtype)
                }
                Instr::Select(condition, a, b) => {
                    let ty = register_type(dtype);
                    self.value(&format!("scf.select {}, {}, {} : {ty}", names[condition], names[a], names[b]))
                }
                Instr::Cast(a) => self.cast(&names[a], expr.dtype(a), dtype),
            };
            names.push(name);
        }
        expr.results.iter().map(|&reg| names[reg].clone()).collect()
    }

    /// The narrow types' one rounding after an operation in f32.
    fn rounded(&mut self, value: String, dtype: DType) -> String {
        if !matches!(dtype, DType::F16 | DType::BF16) {
            return value;
        }
        let narrow = memory_type(dtype);
        let stored = self.value(&format!("scalar.fptrunc {value} : f32 to {narrow}"));
        self.value(&format!("scalar.extf {stored} : {narrow} to f32"))
    }

    fn constant(&mut self, value: f64, dtype: DType) -> String {
        let ty = register_type(dtype);
        let literal = match dtype {
            DType::Bool => (value != 0.0).to_string(),
            _ if is_float(dtype) => float_literal(value),
            _ => (value as i64).to_string(),
        };
        self.value(&format!("scalar.constant {literal} : {ty}"))
    }

    fn unary(&mut self, op: Unary, a: &str, dtype: DType) -> String {
        let ty = register_type(dtype);
        let float = is_float(dtype);
        let call = |name: &str| format!("scalar.{name} {a} : {ty}");
        let text = match op {
            Unary::Sqrt => call("sqrtf"),
            Unary::Abs if float => call("absf"),
            Unary::Abs if is_unsigned(dtype) => return a.to_owned(),
            Unary::Abs => call("absi"),
            Unary::Neg if float => call("negf"),
            Unary::Neg => call("negi"),
            Unary::Exp => call("expf"),
            Unary::Log => call("logf"),
            Unary::Erf => call("erff"),
            Unary::Sigmoid => call("logisticf"),
            Unary::Tanh => call("tanhf"),
            Unary::Softplus => call("softplusf"),
            Unary::Gelu => format!("scalar.geluf<erf> {a} : {ty}"),
            Unary::GeluTanh => format!("scalar.geluf<tanh> {a} : {ty}"),
            Unary::Floor if float => call("floorf"),
            Unary::Ceil if float => call("ceilf"),
            Unary::Round if float => call("roundevenf"),
            Unary::Floor | Unary::Ceil | Unary::Round => return a.to_owned(),
            Unary::Sin => call("sinf"),
            Unary::Cos => call("cosf"),
            Unary::Not => {
                let yes = self.value("scalar.constant true : i1");
                format!("scalar.xori {a}, {yes} : i1")
            }
            Unary::Relu => {
                let zero = self.constant(0.0, dtype);
                // `maximumf` keeps NaN and gives +0 for −0, as max(x, 0) does.
                let name = if float {
                    "maximumf"
                } else if is_unsigned(dtype) {
                    "maxui"
                } else {
                    "maxsi"
                };
                format!("scalar.{name} {a}, {zero} : {ty}")
            }
            Unary::LeakyRelu { alpha } => {
                let zero = self.constant(0.0, dtype);
                let slope = self.constant(alpha.into(), dtype);
                let scaled = self.value(&format!("scalar.mulf {a}, {slope} : {ty}"));
                let below = self.value(&format!("scalar.cmpf olt, {a}, {zero} : {ty}"));
                format!("scf.select {below}, {scaled}, {a} : {ty}")
            }
        };
        self.value(&text)
    }

    fn binary(&mut self, op: Binary, a: &str, b: &str, dtype: DType) -> String {
        let ty = register_type(dtype);
        let (float, unsigned) = (is_float(dtype), is_unsigned(dtype));
        let compare = |float_predicate: &str, signed: &str, unsigned_predicate: &str| {
            if float {
                format!("scalar.cmpf {float_predicate}, {a}, {b} : {ty}")
            } else {
                format!(
                    "scalar.cmpi {}, {a}, {b} : {ty}",
                    if unsigned || dtype == DType::Bool { unsigned_predicate } else { signed }
                )
            }
        };
        let pick = |float_name: &str, signed: &str, unsigned_name: &str| {
            let name = if float {
                float_name
            } else if unsigned {
                unsigned_name
            } else {
                signed
            };
            format!("scalar.{name} {a}, {b} : {ty}")
        };
        let text = match op {
            Binary::Add => pick("addf", "addi", "addi"),
            Binary::Sub => pick("subf", "subi", "subi"),
            Binary::Mul => pick("mulf", "muli", "muli"),
            Binary::Div => pick("divf", "divsi", "divui"),
            Binary::Pow => format!("scalar.powf {a}, {b} : {ty}"),
            Binary::Min => pick("minimumf", "minsi", "minui"),
            Binary::Max => pick("maximumf", "maxsi", "maxui"),
            Binary::Equal => compare("oeq", "eq", "eq"),
            Binary::Less => compare("olt", "slt", "ult"),
            Binary::LessOrEqual => compare("ole", "sle", "ule"),
            Binary::Greater => compare("ogt", "sgt", "ugt"),
            Binary::GreaterOrEqual => compare("oge", "sge", "uge"),
            Binary::And => format!("scalar.andi {a}, {b} : {ty}"),
            Binary::Or => format!("scalar.ori {a}, {b} : {ty}"),
        };
        self.value(&text)
    }

    fn cast(&mut self, a: &str, from: DType, to: DType) -> String {
        let (source, target) = (register_type(from), register_type(to));
        let (wide, narrow) = (to.size() > from.size(), to.size() < from.size());
        if from == to {
            return a.to_owned();
        }
        let text = match (is_float(from), is_float(to)) {
            _ if to == DType::Bool => {
                let zero = self.constant(0.0, from);
                if is_float(from) {
                    format!("scalar.cmpf une, {a}, {zero} : {source}")
                } else {
                    format!("scalar.cmpi ne, {a}, {zero} : {source}")
                }
            }
            (true, true) => {
                let wide_source = source == "f64";
                // A narrow target is rounded from the widest form once: f64 goes straight to f16.
                if matches!(to, DType::F16 | DType::BF16) {
                    let name = memory_type(to);
                    let stored = self.value(&format!("scalar.fptrunc {a} : {source} to {name}"));
                    format!("scalar.extf {stored} : {name} to f32")
                } else if to == DType::F64 {
                    format!("scalar.extf {a} : f32 to f64")
                } else if wide_source {
                    format!("scalar.fptrunc {a} : f64 to f32")
                } else {
                    return a.to_owned();
                }
            }
            (true, false) => {
                let name = if is_unsigned(to) { "fptoui" } else { "fptosi" };
                format!("scalar.{name} {a} : {source} to {target}")
            }
            (false, true) => {
                let name = if is_unsigned(from) || from == DType::Bool { "uitofp" } else { "sitofp" };
                let done = self.value(&format!("scalar.{name} {a} : {source} to {target}"));
                return self.rounded(done, to);
            }
            (false, false) if wide || from == DType::Bool => {
                let name = if is_unsigned(from) || from == DType::Bool { "extui" } else { "extsi" };
                format!("scalar.{name} {a} : {source} to {target}")
            }
            (false, false) if narrow => format!("scalar.trunci {a} : {source} to {target}"),
            (false, false) => return a.to_owned(),
        };
        self.value(&text)
    }
}
