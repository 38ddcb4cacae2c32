//! One case per refusal: what the message says and what the caret points at.

mod common;

use common::{config, single, specialise};
use loom_compiler::{Diagnostics, Module};

/// The text that the first diagnostic points at.
fn pointed(source: &str, diagnostics: &Diagnostics) -> String {
    let item = &diagnostics.items[0];
    let line = source.lines().nth(item.line - 1).unwrap_or("");
    line.chars().skip(item.column - 1).take(item.width).collect()
}

#[track_caller]
fn check(source: &str, result: Result<(), Diagnostics>, at: &str, message: &str) {
    let diagnostics = result.expect_err(source);
    assert_eq!(diagnostics.items.len(), 1, "{diagnostics}");
    assert!(diagnostics.items[0].message.contains(message), "{diagnostics}\nshould say: {message}");
    assert_eq!(pointed(source, &diagnostics), at, "{diagnostics}");
    // The rendering points at the same text: the caret line is under the quote.
    let text = diagnostics.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let caret = lines[2].find('^').unwrap();
    assert!(lines[1].chars().skip(caret).collect::<String>().starts_with(at), "{text}");
}

/// A body that is refused.
#[track_caller]
fn body(arguments: &str, ops: &str, at: &str, message: &str) {
    let source = single(arguments, ops);
    check(&source, specialise(&source, "k", &[]).map(drop), at, message);
}

/// A whole text that is refused.
#[track_caller]
fn text(source: &str, bound: &[(&str, &str)], at: &str, message: &str) {
    check(source, specialise(source, "k", bound).map(drop), at, message);
}

const F: &str = "%f = scalar.constant 1.0 : f32\n%i = scalar.constant 1 : i32\n%x = index.constant 1 : index\n%t = scalar.constant true : i1\n";

#[track_caller]
fn ops(ops: &str, at: &str, message: &str) {
    body("", &format!("{F}{ops}"), at, message);
}

#[test]
fn lexical() {
    body("", "%a = index.constant 1 : index é", "é", "only ASCII");
    body("", "%a = index.constant 1 ; index", ";", "starts no token");
    body("", "%a = scalar.constant .5 : f32", ".", "not a number");
    body("", "% = index.constant 1 : index", "%", "a name must follow");
    body("", "@ index.constant 1", "@", "a name must follow");
    body("", "index.constant -x", "-", "must follow `-`");
    body("", "kernel.assert \"a\\q\"", "\\", "not an escape");
}

#[test]
fn structure() {
    ops("%y = index.add %x, %x) : index", ")", "closes no bracket");
    ops("%y = index.add (%x, %x : index\n%z = index.add %x, %x : index", "(", "not closed before the next op");
    ops("%y = index.add [%x, %x) : index", ")", "`[` is still open");
    ops("scf.if %t {\n%y, = 4\n}", "=", "expected an op name");
    ops("scf.if %t {\n%y %z = index.add %x, %x : index\n}", "%z", "expected `,` or `=`");
    ops("scf.if %t {\n%c = index.constant 1 : index\n^b:\nscf.yield\n}", "}", "several blocks");
    ops("scf.if %t {\n^b:\nscf.yield\n}", "^b", "only blocks of a function or kernel have labels");
    text("foo.bar @x", &[], "foo.bar", "is no top-level op");
    // A misspelt definition is not passed over, as ops that nobody here knows are.
    text("check.cases @x {}", &[], "check.cases", "`check.case` is one");
    text("kernel.deff @x() {}", &[], "kernel.deff", "`kernel.def` is one");
    text("check.bencmark<@x> @y", &[], "check.bencmark", "`check.benchmark` is one");
    text("config.decl @k : index\nconfig.decl @k : index", &[], "@k", "defined twice");
    text("func.def @k() { func.return }", &[], "f", "no kernel `k`");
}

#[test]
fn names_and_results() {
    ops("%y = index.add %x, %nope : index", "%nope", "not defined here");
    ops("%x = index.constant 2 : index", "%x", "already defined in this region");
    ops("scf.if %t {\n%in = index.constant 1 : index\n}\n%y = index.add %in, %x : index", "%in", "not defined here");
    ops("%y = index.add %y, %x : index", "%y", "not defined here");
    ops("%y, %z = index.add %x, %x : index", "index.add", "has 1 results; 2 names");
    ops("index.add %x, %x : index", "index.add", "has 1 results; 0 names");
    body("%n: index", "%n = index.constant 1 : index", "%n", "already defined");
    body("%n: index, %n: index", "", "%n", "already a parameter");
    ops(
        "%l = encoding.layout.dense : encoding<layout>\n%y = index.add %l, %x : index",
        "%l",
        "is a layout or encoding",
    );
}

#[test]
fn types_of_operands() {
    ops("%y = scalar.addi %i, %f : i32", "i32", "the type written is i32, the value's is f32");
    ops("%y = scalar.addf %i, %i : i32", "i32", "takes f16, bf16, f32 or f64");
    ops("%y = scalar.addi %f, %f : f32", "f32", "takes i8, i16, i32 or i64");
    ops("%y = scalar.addi %t, %t : i1", "i1", "takes i8, i16, i32 or i64");
    ops("%y = scalar.addi %x, %x : index", "index", "takes i8, i16, i32 or i64");
    ops("%y = index.andi %t, %t : i1", "i1", "takes index, found i1");
    ops("%y = index.mul %base, %base : offset", "offset", "takes index, found offset");
    ops("%y = vector.addf %f, %f : f32", "f32", "takes vectors");
    ops("%v = vector.splat %f : vector<4xf32>\n%y = scalar.addf %v, %v : vector<4xf32>", "vector", "takes scalars");
    ops("%y = scalar.cmpf olt, %i, %i : i32", "i32", "takes f16");
    ops("%y = index.cmp lt, %x, %x : index", "lt", "expected one of eq, ne, slt");
    ops("%y = scalar.cmpf slt, %f, %f : f32", "slt", "expected one of oeq");
    ops("%y = scalar.addf<fats> %f, %f : f32", "fats", "expected a flag");
    ops("%y = scalar.nope %f : f32", "scalar.nope", "is not an op that is compiled here; legal: scalar.constant");
    ops("%v = vector.splat %f : vector<,8xf32>", ",", "expected an element type or an extent, found `,`;");
    ops("%y = scalar.fpext %f : f32 to f64", "scalar.fpext", "spelt most like it: extf");
    ops("%y = scalar.sin %f : f32", "scalar.sin", "spelt most like it: sinf");
    ops("%y = scalar.adif %f, %f : f32", "scalar.adif", "spelt most like it: addf");
    ops("%y = index.adds %x, %x : index", "index.adds", "legal: index.constant, add");
    ops("%y = tensor.add %x, %x : index", "tensor.add", "legal families");
    ops("%y = index.add %x, : index", ":", "expected a value `%name`, found `:`");
    ops("%y = index.add %x, %x : index index", "index", "expected the end of the op");
    ops("%y = index.add %x, %x : tensor<4xf32>", "tensor", "is no type of a kernel's values");
    ops("%y = index.add %x, %x : indexes", "indexes", "expected a type, found `indexes`");
    ops("%y = scf.select %i, %f, %f : f32", "%i", "expected a value of type i1, found i32");
}

#[test]
fn literals() {
    ops("%y = scalar.constant 0 : f32", "0", "written as a float");
    ops("%y = scalar.constant 0.0 : i32", "0.0", "written as an integer");
    ops("%y = scalar.constant 255 : i8", "255", "out of range for i8: -128 to 127");
    ops("%y = scalar.constant -129 : i8", "-129", "out of range");
    ops("%y = index.constant -1 : offset", "-1", "out of range for offset");
    ops("%y = scalar.constant 2 : i1", "2", "`true`, `false`, `0` or `1`");
    ops("%y = scalar.constant 9223372036854775808 : i64", "9223372036854775808", "does not fit a signed 64-bit");
    ops("%y = scalar.constant 1 : index", "index", "is an integer or float, found index");
    ops("%y = index.constant 1 : i32", "i32", "is an index or offset, found i32");
    ops("%y = scalar.constant foo : i32", "foo", "expected a literal");
}

#[test]
fn conversions() {
    ops("%y = scalar.extsi %i : i32 to i32", "i32", "to a wider one");
    ops("%y = scalar.trunci %i : i32 to i64", "i32", "to a narrower one");
    ops("%y = scalar.sitofp %x : index to f32", "index", "goes from i1, i8");
    ops("%y = scalar.extf %f : f32 to f16", "f32", "to a wider one");
    ops("%y = scalar.fptrunc %f : f32 to f64", "f32", "to a narrower one");
    ops("%y = scalar.bitcast %f : f32 to i64", "f32", "keeps the total bits");
    ops("%y = index.cast %f : f32 to index", "f32", "goes between index or offset");
    ops("%y = index.cast %i : i32 to i64", "i32", "goes between index or offset");
    ops(
        "%v = vector.splat %i : vector<4xi32>\n%y = vector.extsi %v : vector<4xi32> to vector<2xi64>",
        "vector",
        "keeps the shape",
    );
    ops("%y = scalar.bitfield.extractu %i {offset = 30, width = 4} : i32 -> i32", "{", "not inside 32 bits");
    ops("%y = scalar.geluf<logistic> %f : f32", ":", "needs exactly `{scale");
    ops("%y = scalar.clampf<tight> %f, %f, %f : f32", "tight", "one of ordered, number, ieee");
}

#[test]
fn vectors() {
    let v = |rest: &str| format!("%v = vector.splat %f : vector<4xf32>\n{rest}");
    ops(&v("%y = vector.extract %v[4] : vector<4xf32> -> f32"), "4", "outside the extent 4");
    ops(&v("%y = vector.extract %v[0, 0] : vector<4xf32> -> f32"), "[", "2 indices for a vector of rank 1");
    ops(&v("%y = vector.extract %v[0] : vector<4xf32> -> i32"), "i32", "these indices name f32");
    ops(&v("%y = vector.insert %i into %v[0] : i32, vector<4xf32>"), "%i", "these indices name f32");
    ops(&v("%y = vector.reduce<addi> %v, %f : vector<4xf32>, f32"), "%v", "f32 is not combined this way");
    ops(&v("%y = vector.reduce<addf> %v, %i : vector<4xf32>, i32"), "%i", "expected a value of type f32");
    ops(&v("%y = vector.select %t, %v, %v : vector<4xf32>"), "%t", "the mask is vector<4xi1>");
    ops(&v("%y = vector.cmpf olt, %v, %v : vector<4xf32> -> vector<4xi8>"), "vector", "the result is vector<4xi1>");
    ops(&v("%y = vector.slice %v[2] : vector<4xf32> -> vector<3xf32>"), "%v", "do not fit");
    ops(&v("%y = vector.shuffle<[0, 1, 2, 4]> %v : vector<4xf32>"), "%v", "do not fit");
    ops(&v("%y = vector.transpose<[0, 1]> %v : vector<4xf32> -> vector<4xf32>"), "%v", "do not fit");
    ops(&v("%y = vector.dotf %v, %v, %i : vector<4xf32>, vector<4xf32>, i32"), "%v", "two equal float vectors");
    ops("%y = vector.from_elements %f, %f : vector<3xf32>", "vector", "2 elements for vector<3xf32>");
    ops("%y = vector.splat %f : vector<4097xf32>", "vector", "at most 4096 lanes");
    ops("%y = vector.splat %f : vector<65x64xf32>", "vector", "this one has 4160");
    ops("%y = vector.splat %f : vector<f32>", "vector", "at least one dimension");
    ops("%y = vector.iota %t step %t : vector<4xi1>", "vector", "has lanes of numbers");
    body("%n: index", &format!("{F}%y = vector.splat %f : vector<[%n]xf32>"), "vector", "must be constant");
    ops("%y = vector.splat %f : vector<4xq32>", "q32", "expected an element type");
    ops("%y = vector.splat %f : vector<-4xf32>", "-4", "an extent, found `-4`; legal: index");
    ops("%y = vector.splat %f : vector<>", ">", "an extent, found `>`");
    ops("%y = vector.splat %f : vector<99999999999999999999xf32>", "9", "does not fit");
    ops("%y = vector.splat %f : vector<[%f]xf32>", "%f", "an extent is an index");
}

#[test]
fn memory() {
    let b = |rest: &str| format!("{F}%v = buffer.view %b[%base] : buffer -> view<4x8xf32>\n{rest}");
    let view = |rest: &str, at: &str, message: &str| body("%b: buffer", &b(rest), at, message);
    view("%y = view.load %v[0] : view<4x8xf32> -> f32", "%v", "1 indices for a view of rank 2");
    view("%y = view.load %v[4, 0] : view<4x8xf32> -> f32", "4", "outside the extent 4");
    view("%y = view.load %v[0, -1] : view<4x8xf32> -> f32", "-1", "outside the extent 8");
    view("%y = view.load %v[0, %i] : view<4x8xf32> -> f32", "%i", "expected a value of type index");
    view("%y = view.load %v[0, 0] : view<4x9xf32> -> f32", "view<4x9xf32>", "the type written is view<4x9xf32>");
    view("%y = view.load %v[0, 0] : view<4x8xf32> -> bf16", "bf16", "elements are f32");
    view("view.store %i, %v[0, 0] : i32, view<4x8xf32>", "%i", "elements are f32, found i32");
    view("%y = vector.load %v[0, 0] : view<4x8xf32> -> vector<9xf32>", "vector", "9 lanes along an extent of 8");
    view("%y = vector.load %v[0, 0] : view<4x8xf32> -> vector<4xbf16>", "vector", "elements are bf16");
    view("%y = vector.load %v[0, 0] : view<4x8xf32> -> vector<1x1x1xf32>", "vector", "rank 3 in a view of rank 2");
    view("%y = view.subview %v[0, 0] : view<4x8xf32> -> view<4xf32>", "view", "keeps element type and rank");
    view("%y = view.refine %v : view<4x8xf32> -> view<32xi32>", "view", "keeps the element type");
    view("%y = view.load %v[0, 0] {cache_scoop = cu} : view<4x8xf32> -> f32", "cache_scoop", "`cache_scope`");
    view(
        "%m = vector.splat %t : vector<2xi1>\n%p = vector.splat %f : vector<4xf32>\n%y = vector.load.mask %v[0, 0], %m, %p : view<4x8xf32>, vector<2xi1>, vector<4xf32>",
        "%m",
        "the mask is vector<4xi1>",
    );
    view("%y = buffer.view %b[%x] : buffer -> view<4xf32>", "%x", "expected a value of type offset");
    view("%y = buffer.view %v[%base] : view<4x8xf32> -> view<4xf32>", "%v", "expected a buffer");
    view("%y = buffer.view %b[%base] : buffer -> view<4xi1>", "view", "i1 has no layout");
    view(
        "%l = encoding.layout.strided [1] : encoding<layout>\n%y = buffer.view %b[%base] : buffer -> view<4x8xf32, %l>",
        "%l",
        "has 1 strides, the view 2",
    );
    view("%y = buffer.view %b[%base] : buffer -> view<4x8xf32, #odd>", "#odd", "expected a layout");
    view("%y = buffer.measure %b", "buffer.measure", "legal: buffer.view");
    view("%a = buffer.alloca<workgroup> align(3) %base : buffer", "3", "a power of two");
    view("%a = buffer.alloca<host> align(4) %base : buffer", "host", "workgroup or private memory, found `host`");
    view("%a = buffer.alloca align(4) %base : buffer", "buffer.alloca", "needs a memory space");
    view(
        "%s = index.constant 1048577 : offset\n%a = buffer.alloca<workgroup> align(4) %s : buffer",
        "%s",
        "at most 1048576 bytes",
    );
    view(
        "%s = index.constant 65537 : offset\n%a = buffer.alloca<private> align(4) %s : buffer",
        "%s",
        "at most 65536 bytes",
    );
    view("%a = buffer.alloca<workgroup> align(4) %x : buffer", "%x", "expected a value of type offset");
    body("%b: buffer, %n: offset", "%a = buffer.alloca<workgroup> align(4) %n : buffer", "%n", "must be constant");
    view("%y = buffer.assume.alignment %b {minimum_alignment = 3} : buffer", "3", "does not take this attribute value");
    view("%y = buffer.view %b[%base] : buffer -> view<4611686018427387904x4x2xf32>\n", "buffer.view", "more than 2^63");
}

#[test]
fn control() {
    body("%c: i1", &format!("{F}%y = scf.if %c -> (f32) {{\nscf.yield %f : f32\n}}"), "scf.if", "needs an `else`");
    body(
        "%c: i1",
        &format!("{F}%y = scf.if %c -> (f32) {{\nscf.yield %f : f32\n}} else {{\nscf.yield %i : i32\n}}"),
        "scf.if",
        "a result is f32, found i32",
    );
    body(
        "%c: i1",
        &format!("{F}%y = scf.if %c -> (f32) {{\nscf.yield %f : f32\n}} else {{\n}}"),
        "scf.if",
        "0 values for 1 results",
    );
    ops("scf.if %x {\n}", "%x", "expected a value of type i1");
    ops("scf.if %t {\nkernel.return\n}", "kernel.return", "ends in `scf.yield`");
    ops("scf.if %t {\nscf.yield\n%y = index.add %x, %x : index\n}", "index.add", "nothing may follow `scf.yield`");
    ops("scf.for %k = [%x to %x step %base] {\n}", "%base", "expected a value of type index");
    ops("scf.for %k = [%i to %i step %i] {\n}", "%i", "an index or offset");
    ops("scf.for %k = [0 to 4 step 0] {\n}", "0", "the step of a loop is positive");
    ops(
        "%y = scf.for %k = [0 to 4 step 1](%a = %f : f32) -> (f32) {\nscf.yield %i : i32\n}",
        "scf.for",
        "a result is f32, found i32",
    );
    ops(
        "%y = scf.for %k = [0 to 4 step 1](%a = %f : f32) -> (i32) {\nscf.yield %f : f32\n}",
        "scf.for",
        "a result is i32",
    );
    ops("scf.for %k = [0 to 4 step 1] wide {\n}", "wide", "expected a region");
    ops("scf.while {\nscf.condition %x : index\n} do {\n}", "scf.condition", "takes an i1 first");
    ops("scf.while {\n} do {\n}", "}", "must end in `scf.condition`");
    ops(
        "%r = scf.while(%s = %i : i32) -> (i32) {\nscf.condition %t, %s : i1, i32\n} do {\nscf.yield %i : i32\n}",
        "scf.while",
        "forwards 1 values, `do` takes 0",
    );
    ops("scf.switch %x {\ncase 1 {\n}\ncase 1 {\n}\ndefault {\n}\n}", "1", "ascend and are unique");
    ops("scf.switch %x {\ncase 1 {\n}\n}", "scf.switch", "needs a `default`");
    ops("%y = scf.lookup %x { 0 = (%f, %f) } default(%f) : index, f32", "scf.lookup", "a row: 2 values for 1 results");
    ops("%y = func.call @nope(%f) : (f32) -> (f32)", "@nope", "not defined in this text");
    ops("cfg.br ^a", "cfg.br", "`cfg.br` ends a block of a function or kernel");
}

fn with_function(function: &str, call: &str) -> String {
    format!("{function}\n{}", single("", &format!("{F}{call}")))
}

#[test]
fn calls() {
    let call = "%y = func.call @g(%f) : (f32) -> (f32)";
    let case = |function: &str, at: &str, message: &str| text(&with_function(function, call), &[], at, message);
    case(
        "func.def @g(%a: f32) -> (f32) {\n%r = func.call @g(%a) : (f32) -> (f32)\nfunc.return %r : f32\n}",
        "@g",
        "recursion",
    );
    case(
        "func.def @g(%a: i32) -> (f32) {\n%r = scalar.constant 1.0 : f32\nfunc.return %r : f32\n}",
        "@g",
        "`%a` is i32, the argument is f32",
    );
    case(
        "func.def @g() -> (f32) {\n%r = scalar.constant 1.0 : f32\nfunc.return %r : f32\n}",
        "@g",
        "it takes 0 arguments, 1 are given",
    );
    case(
        "func.def @g(%a: f32) -> (i32) {\n%r = scalar.constant 1 : i32\nfunc.return %r : i32\n}",
        "@g",
        "results written here",
    );
    case("func.def @g(%a: f32) -> (f32) {\nfunc.return\n}", "}", "func.return: 0 values for 1 results");
    case(
        "func.def @g(%a: f32) -> (%a as i32) {\n%r = scalar.constant 1 : i32\nfunc.return %r : i32\n}",
        "%a",
        "a result tied to `%a` has its type, f32, found i32",
    );
    case("func.def @g(%a: f32) -> (%c as f32) {\nfunc.return %a : f32\n}", "%c", "`%c` is not defined here");
    case("func.def @g(%a: f32) -> (f32) {\n}", "}", "must end in `func.return`");
    case("func.def fancy @g(%a: f32) -> (f32) {\nfunc.return %a : f32\n}", "fancy", "is no modifier");
    // The caller's names are not visible.
    case("func.def @g(%a: f32) -> (f32) {\nfunc.return %f : f32\n}", "%f", "not defined here");
    case("config.decl @g : f32", "@g", "is a `config.decl`");
}

fn launch(config: &str, launch: &str) -> String {
    format!(
        "kernel.def @k(%n: index) {{\n%one = index.constant 1 : index\n{config}\n}} launch({launch}) {{\nkernel.return\n}}\n"
    )
}

#[test]
fn kernels() {
    let good = "kernel.launch.config workgroups(%n, %one, %one) workgroup_size(%one, %one, %one) : index";
    let case = |region: &str, at: &str, message: &str| text(&launch(region, ""), &[], at, message);
    case("", "}", "must end in `kernel.launch.config`");
    case(&good.replace("workgroup_size(%one", "workgroup_size(%n"), "kernel.launch.config", "must be constant");
    case(&good.replace("workgroup_size(%one", "workgroup_size(0"), "kernel.launch.config", "1 to 1024, found 0");
    case(
        &good.replace("workgroup_size(%one, %one", "workgroup_size(64, 32"),
        "kernel.launch.config",
        "at most 1024 work-items, found 2048",
    );
    case(
        &good.replace(" : index", " cluster_size(0, 1, 1) : index"),
        "0",
        "a cluster size is a constant from 1 to 1024",
    );
    case(&format!("%i = kernel.workitem.id<x> : index\n{good}"), "kernel.workitem.id", "runs on the host");
    case(&format!("%b = buffer.alloca<private> align(4) %n : buffer\n{good}"), "buffer.alloca", "has no memory");
    text(&launch(good, "%v: view<4xf32>"), &[], "%v", "scalars and buffers; `%v` is view<4xf32>");
    text(
        &launch(good, "").replace("(%n: index)", "(%n: index, %b: buffer)"),
        &[],
        "%b",
        "a workload argument is a scalar",
    );
    text(&launch(good, "").replace("@k(", "target(@t) @k("), &[], "@t", "is not defined");
    text(
        &format!("aie2p.target<array> @t\n{}", launch(good, "").replace("@k(", "target(@t) @k(")),
        &[],
        "@t",
        "an NPU",
    );
    text(
        &format!(
            "amdgpu.target<gfx9-generic> @t {{subgroup_size = 48}}\n{}",
            launch(good, "").replace("@k(", "target(@t) @k(")
        ),
        &[],
        "@t",
        "subgroups that are not compiled here; legal: 32 or 64 work-items",
    );
    text(&launch(good, "").replace("@k(", "shiny @k("), &[], "shiny", "no modifier of a kernel");
    let twice = launch(good, "").replace("@k(", "export(\"e\") @k(");
    text(&format!("{twice}{}", twice.replace("@k(", "@l(")), &[], "kernel.def", "two kernels are exported as `e`");
    text(
        &launch(good, "%v: index").replace(") {\nkernel.return", ") where [lt(%v, 8)] more {\nkernel.return"),
        &[],
        "more",
        "expected the kernel's body",
    );
    text(
        &launch(good, "%v: index").replace(") {\nkernel.return", ") where [lt(%w, 8)] {\nkernel.return"),
        &[],
        "%w",
        "not defined here",
    );
}

#[test]
fn collectives() {
    ops("kernel.barrier<private> scope(workgroup) ordering(acq_rel)", "private", "`workgroup` or `global`");
    ops("kernel.barrier<workgroup> scope(device) ordering(acq_rel)", "scope", "legal barriers");
    ops("kernel.barrier<workgroup> {ordering = relaxed, scope = workgroup}", "{", "legal barriers");
    ops("%y, %ok = kernel.subgroup.shuffle<xor> %f, %x, %i : f32, index, i32", "%x", "expected a value of type i32");
    ops(
        "%w = scalar.constant 3 : i32\n%y, %ok = kernel.subgroup.shuffle<xor> %f, %i, %w : f32, i32, i32",
        "%f",
        "width divides 32, found 3",
    );
    ops(
        "%y = kernel.subgroup.shuffle<xor> %f, %i, %i : f32, i32, i32",
        "kernel.subgroup.shuffle",
        "has 2 results; 1 names",
    );
    ops("%y = kernel.subgroup.reduce<addf> %f {cluster_size = 5} : f32", "cluster_size", "powers of two");
    ops(
        "%y = kernel.subgroup.reduce<addf> %f {cluster_size = 16, cluster_stride = 4} : f32",
        "%f",
        "do not fit a subgroup",
    );
    ops("%y = kernel.workgroup.reduce<andi> %f : f32", "%f", "not combined this way");
    ops("%y = kernel.subgroup.sort<addf> %f : f32", "kernel.subgroup.sort", "legal: kernel.workitem.id");
    ops("%y = kernel.workitem.id<w> : index", "w", "an axis: x, y or z");
}

#[test]
fn config_values() {
    let source = |decl: &str| format!("{decl}\n{}", single("", "%v = config.get @a.b : index"));
    let ranged = source("config.decl @a.b : %v: index where [range(%v, 1, 64), multiple_of(%v, 8)]");
    text(&ranged, &[], "@a.b", "config `a.b` has no value; bind it as index");
    text(&ranged, &[("a.b", "65")], "@a.b", "= 65 breaks its predicate `range(%v, 1, 64)`");
    text(&ranged, &[("@a.b", "12")], "@a.b", "breaks its predicate `multiple_of(%v, 8)`");
    text(&ranged, &[("a.b", "many")], "@a.b", "expected an integer of type index");
    text(&ranged, &[("a.b", "--8")], "@a.b", "expected an integer");
    text(&source(""), &[], "@a.b", "is not defined");
    text(&source("config.decl @a.b : i32"), &[("a.b", "1")], "index", "declared as i32");
    text(&source("config.decl @a.b : i8"), &[("a.b", "128")], "@a.b", "out of range for i8");
    text(&source("func.def @a.b() { func.return }"), &[], "@a.b", "not a config value");
    text(
        &source("config.decl @a.b : %v: index where [range(%v, 1)]"),
        &[("a.b", "1")],
        "range",
        "takes 3 arguments, found 2",
    );
    text(&source("config.decl @a.b : %v: index where [odd(%v)]"), &[("a.b", "1")], "odd", "is no predicate");
    text(&source("config.decl @a.b : %v: index where [lt(%w, 1)]"), &[("a.b", "1")], "%w", "is not the declared value");
    for (value, good) in [("8", true), ("64", true), ("0x10", true), ("0", false), ("-8", false)] {
        assert_eq!(specialise(&ranged, "k", &[("a.b", value), ("unused", "x")]).is_ok(), good, "{value}");
    }
    ops("%y = index.assume %x : index", ":", "expected `[`");
    ops("%y = index.assume %x [] : index", ":", "expected a predicate list");
    ops("%y = index.assume %x [lt(%nope, 3)] : index", "%nope", "not defined here");
    assert!(config(&[]).is_empty());
}

#[test]
fn several_faults_are_reported_in_one_run_and_their_consequences_are_not() {
    let source = single(
        "",
        "%a = index.add %p, %p : index\n%b = index.mul %a, %a : index\n%c = scalar.constant 1 : f32\n%d = scalar.addf %c, %c : f32\n%e = foo.bar",
    );
    let diagnostics = specialise(&source, "k", &[]).unwrap_err();
    let lines: Vec<usize> = diagnostics.items.iter().map(|item| item.line).collect();
    assert_eq!(lines, [6, 8, 10], "{diagnostics}");
}

#[test]
fn messages_stop_at_a_bound() {
    let many = "%a = foo.bar\n".repeat(500);
    let diagnostics = specialise(&single("", &many), "k", &[]).unwrap_err();
    assert_eq!(diagnostics.items.len(), loom_compiler::MAX_DIAGNOSTICS);
    assert!(diagnostics.truncated);
}

#[test]
fn what_is_not_reached_is_refused_by_verify_only() {
    let source =
        format!("func.def @odd(%a: f32) {{\n%x = vector.weave %a, %a : f32, f32\nfunc.return\n}}\n{}", single("", ""));
    let module = Module::parse("m.loom", &source).unwrap();
    assert!(module.specialise("k", &config(&[])).is_ok());
    let diagnostics = module.verify().unwrap_err();
    assert!(diagnostics.to_string().starts_with("m.loom:2:6: `vector.weave` is not an op"), "{diagnostics}");
}

/// Line and start of each message of a check.
fn checked(source: &str) -> (Vec<String>, Vec<(usize, String)>) {
    let (kernels, result) = Module::check("c.loom", source);
    let items = result.err().map_or(Vec::new(), |diagnostics| diagnostics.items);
    (kernels, items.into_iter().map(|item| (item.line, item.message)).collect())
}

#[track_caller]
fn finds(source: &str, kernels: &[&str], expected: &[(usize, &str)]) {
    let (found, messages) = checked(source);
    assert_eq!(found, kernels);
    assert_eq!(messages.len(), expected.len(), "{messages:?}");
    for ((line, message), (at, part)) in messages.iter().zip(expected) {
        assert!(line == at && message.contains(part), "{line}: {message}; expected {at}: {part}");
    }
}

#[test]
fn one_run_reports_what_is_wrong_with_every_definition() {
    // A definition of one line, and one that nothing is wrong with.
    let f = |name: &str, body: &str| format!("func.def @{name}(%a: f32) {{ {body} func.return }}\n");
    let fine = f("fine", "");
    finds(&fine, &[], &[]);
    // What can not be read hides nothing of the rest: neither a stray bracket, a character that starts no token, a `{` that
    // is never closed, nor an op where a definition should be.
    let wrong = f("wrong", "%b = scalar.negf %c : f32");
    let undefined = "`%c` is not defined";
    for (broken, message) in [
        (f("broken", "%b = scalar.negf %a) : f32"), "closes no bracket"),
        (f("broken", "%b = scalar.negf ; %a : f32"), "starts no token"),
        (f("broken", "scf.if %a {"), "`{` is never closed"),
        ("index.add %a, %b : index\n".to_owned(), "no top-level op"),
        ("kernel.def @k(".to_owned() + "\n", "`(` is never closed"),
    ] {
        finds(
            &format!("{wrong}{broken}{fine}{wrong2}", wrong2 = wrong.replace("@wrong", "@wrong2")),
            &[],
            &[(1, undefined), (2, message), (4, undefined)],
        );
    }
    // A user of what is broken is not blamed for it, nor is a user of what could not be read at all.
    let user = f("user", "func.call @broken(%a) : (f32) func.call @nowhere(%a) : (f32)");
    finds(&format!("{user}{}", f("broken", "%b = scalar.negf %a) : f32")), &[], &[(2, "closes no bracket")]);
    finds(&user, &[], &[(1, "@broken"), (1, "@nowhere")]);
    // Kernels are found whatever is wrong elsewhere.
    finds(
        &format!("{}{fine})\n", single("", "%x = index.add %y, %y : index")),
        &["k"],
        &[(6, "`%y`"), (10, "closes no bracket")],
    );
}

#[test]
fn a_scalar_is_written_as_a_config_value_is() {
    use loom_compiler::ir::ParameterKind::{Buffer, Scalar};
    use loom_compiler::types::ScalarType::{F32, I1, I8, Index, Offset};
    assert_eq!(Scalar(Index).slot("-3"), Ok(-3i64 as u64));
    assert_eq!(Scalar(Index).slot("0x10"), Ok(16));
    assert_eq!(Scalar(I8).slot("-1").map(|bits| bits & 0xff), Ok(0xff));
    assert_eq!(Scalar(F32).slot("1.5"), Ok(1.5f32.to_bits().into()));
    assert_eq!(Scalar(I1).slot("true"), Ok(1));
    for (kind, text) in
        [(Scalar(Index), "1.5"), (Scalar(I8), "128"), (Scalar(Offset), "-1"), (Scalar(F32), "x"), (Buffer, "0")]
    {
        assert!(kind.slot(text).is_err(), "{kind:?} {text}");
    }
}

#[test]
fn what_functions_take_and_give_has_its_role() {
    let call = "%l = encoding.layout.dense : encoding<layout>\nfunc.call @g(%l) : (encoding<layout>)";
    let case = |function: &str, at: &str, message: &str| text(&with_function(function, call), &[], at, message);
    case("func.def @g(%a: f32) {\nfunc.return\n}", "@g", "its `%a` is f32, the argument is encoding<layout>");
    case(
        "func.def @g(%a: encoding<schema>) {\nfunc.return\n}",
        "@g",
        "its `%a` is encoding<schema>, the argument is encoding<layout>",
    );
    let other = call.replace("(encoding<layout>)", "(encoding<schema>)");
    let whole = with_function("func.def @g(%a: encoding<layout>) {\nfunc.return\n}", &other);
    text(&whole, &[], "encoding", "expected encoding<layout>, found encoding<schema>");
    let gives = "func.def @g(%a: encoding<layout>) -> (encoding<layout>) {\n%z = index.constant 0 : index\nfunc.return %z : index\n}";
    let call = "%l = encoding.layout.dense : encoding<layout>\n%m = func.call @g(%l) : (encoding<layout>) -> (encoding<layout>)";
    text(&with_function(gives, call), &[], "}", "func.return: a result is encoding<layout>, found index");
}

#[test]
fn encodings_as_config_values() {
    let get = "%s = config.get @e : encoding<schema>";
    let case = |declared: &str, bound: &[(&str, &str)], at: &str, message: &str| {
        text(&format!("{declared}\n{}", single("", get)), bound, at, message);
    };
    case("config.decl @e : encoding<schema>", &[], "@e", "config `e` has no value; bind it as encoding<schema>");
    case("config.decl @e : encoding<schema>", &[("e", "i4")], "@e", "config `e` = `i4`: expected a record such as");
    case("config.decl @e : encoding<schema>", &[("e", "#a<b = 1> }")], "@e", "expected a record such as");
    case("config.decl @e : encoding<schema>", &[("e", "#a<b = 1, b = 2>")], "@e", "expected a record such as");
    case("config.decl @e : index", &[("e", "1")], "index", "`config.decl`: expected `encoding`, found `index`");
    case(
        "config.decl @e : encoding<storage>",
        &[],
        "@e",
        "`@e` is declared as encoding<storage>, found encoding<schema>",
    );
    let ok = format!("config.decl @e : encoding<schema>\n{}", single("", get));
    assert!(specialise(&ok, "k", &[("@e", "#encoding.operand<element_format = i4>")]).is_ok());
    assert!(Module::parse("ok.loom", &ok).unwrap().verify().is_ok());
}

#[test]
fn facts_of_floats_are_of_floats() {
    for fact in ["finite", "not_nan", "not_inf"] {
        let about = format!("`{fact}(%i)` is about floats; `%i` is i32");
        body("", &format!("%i = scalar.constant 1 : i32\n%j = scalar.assume %i [{fact}(%i)] : i32"), "%i", &about);
    }
    let declared = "config.decl @n : %v: index where [finite(%v)]";
    let whole = format!("{declared}\n{}", single("", "%n = config.get @n : index"));
    text(&whole, &[("n", "1")], "finite", "`finite(%v)` is about floats; `@n` is index");
}

#[test]
fn conditions_of_what_is_only_declared_hold_for_every_call() {
    let family = "template.decl @f(%n: index) -> (index) where [range(%n, 1, 4)]\n\
                  template.def<@f> @any(%n: index) -> (index) {\ntemplate.return %n : index\n}";
    let applied = |n: u32| {
        let ops = format!("%n = index.constant {n} : index\n%r = template.apply<@f>(%n) : (index) -> (index)");
        format!("{family}\n{}", single("", &ops))
    };
    text(&applied(5), &[], "@f", "this call breaks the condition `range(%n, 1, 4)`");
    assert!(specialise(&applied(4), "k", &[]).is_ok());
    let narrow = applied(1).replace("template.decl @f", "template.decl requires [#target.subgroup.size<64>] @f");
    text(&narrow, &[], "@f", "`@f` cannot be applied here: it requires subgroups of 64 work-items, these have 32");
    // What a declaration promises proves the conditions of providers.
    let promised = applied(4).replace("-> (index) {", "-> (index) where [le(%n, 4)] {").replace(
        "%n = index.constant 4 : index",
        "%z = index.constant 0 : offset\n%b = buffer.view %buffer[%z] : buffer -> view<1xi32>\n%l = view.load %b[0] : view<1xi32> -> i32\n%n = index.cast %l : i32 to index",
    );
    let promised =
        promised.replacen("launch(", "launch(%buffer: buffer, ", 1).replace("(%buffer: buffer, )", "(%buffer: buffer)");
    specialise(&promised, "k", &[]).unwrap();
    // A call in a branch that may be dead is looked at where it is built.
    let text = format!(
        "config.def @c = 9 : index\n{family}\n{}",
        single(
            "",
            "%n = config.get @c : index\n%four = index.constant 4 : index\n%few = index.cmp sle, %n, %four : index\nscf.if %few {\n%r = template.apply<@f>(%n) : (index) -> (index)\n}"
        )
    );
    assert!(Module::parse("dead.loom", &text).unwrap().verify().is_ok());
    assert!(specialise(&text, "k", &[]).is_ok());
}

#[test]
fn graphs_of_blocks() {
    let case = |blocks: &str, at: &str, message: &str| {
        let function = format!("func.def @g(%a: f32) -> (f32) {{\n{blocks}\n}}");
        text(&with_function(&function, "%y = func.call @g(%f) : (f32) -> (f32)"), &[], at, message);
    };
    case("cfg.br ^x\n^b:\nfunc.return %a : f32", "^x", "`^x` is no block of this region");
    case("cfg.br ^b\n^b(%v: f32):\nfunc.return %v : f32", "^b", "`^b` takes (f32), found ()");
    case("cfg.br ^b(%a: f32)\n^b:\nfunc.return %a : f32", "^b", "`^b` takes (), found (f32)");
    case("cfg.br ^b\n^b:\nfunc.return %a : f32\n^b:\nfunc.return %a : f32", "}", "`^b` labels two blocks");
    case("cfg.cond_br %a, ^b, ^b\n^b:\nfunc.return %a : f32", "%a", "expected a value of type i1, found f32");
    case("cfg.br ^b\n^b:\nscf.yield", "scf.yield", "this region ends in `func.return`, found `scf.yield`");
    case(
        "%t = scalar.constant true : i1\ncfg.cond_br %t, ^b, ^c\n^b:\nfunc.return %a : f32\n^c:\nfunc.return %t : i1",
        "func.return",
        "the blocks of this region return different types",
    );
    case("cfg.br ^b\n^b(%v: buffer):\nfunc.return %a : f32", "^b", "`^b` takes (buffer), found ()");
}
