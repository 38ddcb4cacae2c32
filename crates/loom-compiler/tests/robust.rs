//! Any text ends quickly in a module or in diagnostics, never in a panic; and what specialises runs within its limits.

mod common;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use common::programs::ALL;
use common::{config, single, specialise};
use loom_compiler::interp::{self, Argument, Limits};
use loom_compiler::ir::ParameterKind;
use loom_compiler::launch::Geometry;
use loom_compiler::{Module, tile};
use proptest::prelude::*;

/// Checks, parses, verifies, specialises every kernel, compiles and interprets it on small buffers. Must come back.
fn exercise(source: &str) {
    let checked = Module::check("fuzz.loom", source).1;
    let Ok(module) = Module::parse("fuzz.loom", source) else {
        assert!(checked.is_err());
        return;
    };
    // A check refuses what parsing and verifying refuse, and nothing else.
    assert_eq!(checked.is_ok(), module.verify().is_ok());
    let bound = config(&[("rows.width", "5")]);
    for name in module.kernels() {
        let Ok(kernel) = module.specialise(&name, &bound) else {
            continue;
        };
        let _ = tile::compile(&kernel);
        let workload = vec![3; kernel.launch.workload.len()];
        let workgroups = match kernel.launch.geometry(&workload) {
            Ok(geometry) => geometry.workgroups.map(|count| count.min(2)),
            Err(_) => continue,
        };
        let mut buffers = vec![vec![1u8; 64]; kernel.parameters.len()];
        let mut arguments: Vec<Argument<'_>> = kernel
            .parameters
            .iter()
            .zip(&mut buffers)
            .map(|(parameter, buffer)| match parameter.kind {
                ParameterKind::Buffer => Argument::Buffer(buffer),
                ParameterKind::Scalar(_) => Argument::Scalar(3),
            })
            .collect();
        let geometry = Geometry { workgroups, workgroup_size: kernel.workgroup_size };
        let _ = interp::run(&kernel, geometry, &mut arguments, Limits { steps: 20_000, bytes: 1 << 24 });
    }
}

/// Pieces that valid programs are made of.
const PIECES: [&str; 58] = [
    "%a",
    "%b",
    "%0",
    "@k",
    "@a.b",
    "#dense",
    "^l",
    "=",
    ":",
    ",",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    "<",
    ">",
    "|",
    "->",
    "0",
    "1",
    "-1",
    "0x7f",
    "4096",
    "1.5",
    "inf",
    "-inf",
    "true",
    "\"s\"",
    "index",
    "offset",
    "i1",
    "i32",
    "f32",
    "bf16",
    "buffer",
    "vector<4xf32>",
    "view<[%a]x4xf32>",
    "index.add",
    "index.constant",
    "scalar.addf",
    "scalar.constant",
    "vector.splat",
    "vector.extract",
    "scf.if",
    "scf.for",
    "scf.yield",
    "view.load",
    "buffer.view",
    "kernel.def",
    "launch",
    "func.def",
    "func.call",
    "kernel.return",
    "kernel.launch.config",
    "where",
    "config.get",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        exercise(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn pieces(picks in prop::collection::vec(0..PIECES.len(), 0..200)) {
        let mut source = String::new();
        for pick in picks {
            let _ = write!(source, "{} ", PIECES[pick]);
        }
        exercise(&source);
        exercise(&single("%a: index, %b: buffer", &source));
    }

    /// A valid program with some of its words replaced, dropped or doubled.
    #[test]
    fn mutations(which in 0..ALL.len(), edits in prop::collection::vec((any::<u16>(), 0..PIECES.len() + 2), 1..6)) {
        let mut words: Vec<&str> = ALL[which].0.split_inclusive([' ', '\n', ',', '(', ')', '<', '>', '[', ']']).collect();
        for (at, edit) in edits {
            let at = usize::from(at) % words.len();
            match edit.checked_sub(2) {
                Some(piece) => words[at] = PIECES[piece],
                None if edit == 0 => { words.remove(at); }
                None => words.insert(at, words[at]),
            }
        }
        exercise(&words.concat());
    }

    /// A valid program cut or with one byte changed.
    #[test]
    fn cuts(which in 0..ALL.len(), at in any::<u16>(), byte in 0x20u8..0x7f, cut in any::<bool>()) {
        let mut source = ALL[which].0.as_bytes().to_vec();
        let at = usize::from(at) % source.len();
        if cut { source.truncate(at) } else { source[at] = byte }
        exercise(&String::from_utf8_lossy(&source));
    }
}

/// An unoptimised build on a busy machine; what this guards against is quadratic and worse.
const SOON: Duration = Duration::from_secs(10);

#[track_caller]
fn refused_soon(source: &str, message: &str) {
    let start = Instant::now();
    let diagnostics = specialise(source, "k", &[]).map(drop).expect_err("must be refused").to_string();
    assert!(diagnostics.contains(message), "{}", diagnostics.chars().take(500).collect::<String>());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn nesting_is_bounded() {
    for (open, close) in [("scf.if %t {", "}"), ("vector.splat (", ")"), ("index.add [", "]"), ("index.add <", ">")] {
        let body = format!("%t = scalar.constant true : i1\n{}{}", open.repeat(100_000), close.repeat(100_000));
        refused_soon(&single("", &body), "nested deeper than 64");
    }
    // As deep as it may be, it still works.
    let body = format!("%t = scalar.constant true : i1\n{}{}", "scf.if %t {".repeat(60), "}".repeat(60));
    specialise(&single("", &body), "k", &[]).unwrap();
    specialise(&single("%t0: i1", &body.replace("%t ", "%t0 ").replace("%t0 = ", "%t = ")), "k", &[]).unwrap();
}

#[test]
fn inlining_is_bounded() {
    // Each function calls the next twice: 2^30 ops if all were inlined.
    let mut source = String::from("func.def @f0() {\nfunc.return\n}\n");
    for at in 1..=30 {
        let _ = writeln!(
            source,
            "func.def @f{at}() {{\nfunc.call @f{0}() : ()\nfunc.call @f{0}() : ()\nfunc.return\n}}",
            at - 1
        );
    }
    source += &single("", "func.call @f30() : ()");
    refused_soon(&source, "more than 262144 ops");
    let mut chain = String::from("func.def @f0() {\nfunc.return\n}\n");
    for at in 1..=40 {
        let _ = writeln!(chain, "func.def @f{at}() {{\nfunc.call @f{}() : ()\nfunc.return\n}}", at - 1);
    }
    chain += &single("", "func.call @f40() : ()");
    refused_soon(&chain, "calls are nested deeper than 32");
}

#[test]
fn hostile_lists_are_read_in_linear_time() {
    let names = "%t, ".repeat(200_000);
    refused_soon(&single("", &format!("scf.yield {names}")), "");
    refused_soon(&single("", &names), "");
    refused_soon(&format!("{}\n{names}", single("", "")), "");
    refused_soon(&"(".repeat(1_000_000), "expected an op name");
    refused_soon(&"}".repeat(1_000_000), "");
    refused_soon(&format!("\"{}", "a".repeat(1_000_000)), "ends inside a string");
}

#[test]
fn labelled_blocks_and_parameters_are_bounded() {
    let chain: String = (0..40_000).map(|at| format!("cfg.br ^b{at}\n^b{at}:\n")).collect();
    refused_soon(&single("", &chain), "too long to be one loop");
    // What blocks name is looked up, not looked for: two of them may be long.
    let named =
        |from: &str| (0..20_000).map(|at| format!("%{from}{at} = index.constant 0 : index\n")).collect::<String>();
    let (a, b) = (named("a"), named("b"));
    let start = Instant::now();
    specialise(&single("", &format!("cfg.br ^a\n^a:\n{a}cfg.br ^b\n^b:\n{b}")), "k", &[]).unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let parameters: Vec<String> = (0..100_000).map(|at| format!("%a{at}: f32")).collect();
    let function = format!("func.def @f({}) {{\nfunc.return\n}}\n", parameters.join(", "));
    refused_soon(&format!("{function}{}", single("", "func.call @f() : ()")), "more than 256 arguments");
}

#[test]
fn a_text_above_the_limit_is_refused() {
    let source = " ".repeat(loom_compiler::MAX_SOURCE_BYTES + 1);
    let diagnostics = Module::parse("big.loom", &source).unwrap_err();
    assert!(diagnostics.items[0].message.contains("at most 16777216"));
}

#[test]
fn conditions_and_providers_cost_what_is_written() {
    // Each condition is both of the one before: 2^200 paths.
    let mut body = String::from("%c0 = index.cmp slt, %n, %m : index\n");
    for at in 1..=200 {
        let _ = writeln!(body, "%d{at} = scalar.xori %c{0}, %q : i1\n%c{at} = scalar.andi %c{0}, %d{at} : i1", at - 1);
    }
    body += "scf.if %c200 {\n}\n";
    let text = single("%n: index, %m: index, %q: i1", &body);
    let begin = std::time::Instant::now();
    assert!(Module::parse("a.loom", &text).unwrap().specialise("k", &config(&[])).is_ok());
    assert!(begin.elapsed().as_secs() < 20);
    // Many providers, and many that apply them.
    let mut many = String::new();
    for at in 0..2000 {
        let _ = writeln!(many, "func.template<a.b> priority({at}) @p{at}(%n: index) {{\nfunc.return\n}}");
    }
    many += &single("%n: index", &"func.apply<a.b>(%n) : (index)\n".repeat(2000));
    let module = Module::parse("a.loom", &many).unwrap();
    let refused = module.specialise("k", &config(&[])).unwrap_err();
    assert!(refused.items[0].message.contains("ops and providers"), "{refused}");
    // Many faults of one kind.
    let twice = "func.def @f() {\nfunc.return\n}\nfunc.decl @f(%a: i32)\n".repeat(20_000);
    let begin = std::time::Instant::now();
    assert!(Module::parse("a.loom", &twice).is_err());
    assert!(begin.elapsed().as_secs() < 20);
}

#[test]
fn verifying_many_definitions_is_bounded() {
    // Each calls the one before it twice, in rows that end before any is too long for itself.
    let mut rows = String::new();
    for row in 0..100 {
        let _ = writeln!(rows, "func.def @f{row}_0() {{\nfunc.return\n}}");
        for at in 1..=16 {
            let call = format!("func.call @f{row}_{}() : ()\n", at - 1);
            let _ = writeln!(rows, "func.def @f{row}_{at}() {{\n{call}{call}func.return\n}}");
        }
    }
    let begin = Instant::now();
    let refused = Module::parse("a.loom", &rows).unwrap().verify().unwrap_err();
    assert!(refused.to_string().contains("more than 2097152 ops once their calls are inlined"), "{refused}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    // A kernel costs what it holds, however long the text is: 2000 times 8 MB are not looked at.
    let mut kernels = "// a comment\n".repeat(600_000);
    for at in 0..2000 {
        kernels += &single("", "").replace("@k", &format!("@k{at}"));
    }
    let module = Module::parse("a.loom", &kernels).unwrap();
    let begin = Instant::now();
    assert!(module.verify().is_ok());
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[test]
fn lanes_that_are_alike_are_bounded_when_compiling() {
    let mut body = String::from("%q0 = vector.splat %n : vector<4096xi32>\n");
    for at in 0..20_000 {
        let _ = writeln!(body, "%q{} = vector.muli %q{at}, %q{at} : vector<4096xi32>", at + 1);
    }
    body += "%b = index.constant 0 : offset\n%v = buffer.view %a[%b] : buffer -> view<4096xi32>\n";
    body += "vector.store %q20000, %v[0] : vector<4096xi32>, view<4096xi32>\n";
    let kernel = specialise(&single("%a: buffer, %n: i32", &body), "k", &[]).unwrap();
    let start = Instant::now();
    let refused = tile::compile(&kernel).unwrap_err();
    assert!(refused.to_string().contains("more than eight million lanes"), "{refused}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn compiling_a_long_body_takes_time_by_its_length() {
    let head = "%v = buffer.view %a[%base] : buffer -> view<64xi32>\n\
                %l = kernel.workitem.id<x> : index\n%s0 = index.cast %l : index to i32\n";
    // A chain in which each value is read by the next, and loads that are all read at the end.
    let (mut chain, mut loads, mut reads) = (head.to_owned(), head.to_owned(), String::new());
    for at in 0..100_000 {
        let _ = writeln!(chain, "%s{} = scalar.muli %s{at}, %n : i32", at + 1);
    }
    chain += "view.store %s100000, %v[%l] : i32, view<64xi32>\n";
    for at in 0..30_000 {
        let _ = writeln!(loads, "%q{at} = view.load %v[%l] : view<64xi32> -> i32");
        let _ = writeln!(reads, "view.store %q{at}, %v[%l] : i32, view<64xi32>");
    }
    // A loop that carries many values.
    let list = |item: &dyn Fn(usize) -> String| (0..20_000).map(item).collect::<Vec<String>>().join(", ");
    let (results, types) = (list(&|at| format!("%z{at}")), list(&|_| "i32".to_owned()));
    let (carried, yielded) = (list(&|at| format!("%r{at} = %n : i32")), list(&|at| format!("%u{at}")));
    let mut carry = format!("{head}%zero = index.constant 0 : index\n%step = index.constant 1 : index\n");
    let _ = writeln!(carry, "{results} = scf.for %t = [%zero to %l step %step]({carried}) -> ({types}) {{");
    for at in 0..20_000 {
        let _ = writeln!(carry, "%u{at} = scalar.addi %r{at}, %s0 : i32");
    }
    let _ = writeln!(carry, "scf.yield {yielded} : {types}\n}}\nview.store %z7, %v[%l] : i32, view<64xi32>");
    for body in [chain, loads + &reads, carry] {
        // Items differ only where there are several.
        let text = single("%a: buffer, %n: i32", &body).replace("workgroup_size(%one", "workgroup_size(%many");
        let text = text.replacen("kernel.launch", "%many = index.constant 64 : index\n  kernel.launch", 1);
        let kernel = specialise(&text, "k", &[]).unwrap();
        let start = Instant::now();
        tile::compile(&kernel).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}

#[test]
fn records_are_bounded() {
    let start = Instant::now();
    // Each parameter is compared with those before it, and an alias is read wherever it is named.
    let many: Vec<String> = (0..60_000).map(|at| format!("x{at}=1")).collect();
    let define = "%s = encoding.define #a : encoding<schema>\n";
    refused_soon(&single("", &format!("%s = encoding.define #b<{}> : encoding<schema>", many.join(","))), "at most 64");
    for long in ["x", "\"x"] {
        let word = long.to_owned() + &"y".repeat(400_000) + &long.replace('x', "");
        let uses: String = (0..2_000).map(|at| define.replace("%s", &format!("%s{at}"))).collect();
        let alias = format!("#a = #b<format={word}>\n{}", single("", &uses));
        refused_soon(&alias, "the alias `#a` is longer than 2048 bytes");
        // Named once, what is long is no word that is known.
        specialise(&single("", &define.replace("#a", &format!("#b<format={word}>"))), "k", &[]).unwrap();
    }
    refused_soon(&single("", &define.replace("#a", &format!("#{}", "a".repeat(300)))), "at most 256 bytes");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}
