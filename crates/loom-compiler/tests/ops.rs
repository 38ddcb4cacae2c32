//! Element-wise ops at their edges: results worked out by hand, once folded and once run.

mod common;

use common::{Bound, kernel, run, single};
use loom_compiler::ops::OpKind;

/// `{0}`, `{1}`, .. in `op` stand for the operands; all bits are those of the types.
#[track_caller]
fn gives(op: &str, operands: &[(&str, u64)], result: &str, expected: u64) {
    gives_stored(op, operands, result, expected, "%r");
}

/// The same, storing the value `stored` of several ops.
#[track_caller]
fn gives_stored(op: &str, operands: &[(&str, u64)], result: &str, expected: u64, stored: &str) {
    let bits = |ty: &str| match ty {
        "i1" => 1,
        "i8" | "f8E4M3" | "f8E5M2" => 8,
        "i16" | "f16" | "bf16" => 16,
        "i32" | "f32" => 32,
        _ => 64,
    };
    let signed = |ty: &str, value: u64| ((value << (64 - bits(ty))) as i64) >> (64 - bits(ty));
    let name = |op: &str| {
        let named =
            (0..operands.len()).fold(op.to_owned(), |op, at| op.replace(&format!("{{{at}}}"), &format!("%x{at}")));
        let ends = if result == "i1" {
            format!(
                "%s = scalar.extui {stored} : i1 to i8\n%o = buffer.view %b[64] : buffer -> view<1xi8>\nview.store %s, %o[0] : i8, view<1xi8>"
            )
        } else {
            format!(
                "%o = buffer.view %b[64] : buffer -> view<1x{result}>\nview.store {stored}, %o[0] : {result}, view<1x{result}>"
            )
        };
        format!("%r = {named}\n{ends}\n")
    };
    let (mut folded, mut loaded) = (String::new(), String::new());
    for (at, (ty, value)) in operands.iter().enumerate() {
        folded += &match *ty {
            "i1" => format!("%x{at} = scalar.constant {value} : i1\n"),
            "index" | "offset" => format!("%x{at} = index.constant {} : {ty}\n", *value as i64),
            "i8" | "i16" | "i32" | "i64" => {
                format!("%x{at} = scalar.constant {} : {ty}\n", signed(ty, *value))
            }
            _ => {
                let int = bits(ty);
                let value = signed(ty, *value);
                format!("%c{at} = scalar.constant {value} : i{int}\n%x{at} = scalar.bitcast %c{at} : i{int} to {ty}\n")
            }
        };
        let memory = if *ty == "i1" { "i8" } else { ty };
        let name = if *ty == "i1" { "l" } else { "x" };
        loaded += &format!("%v{at} = buffer.view %b[{}] : buffer -> view<1x{memory}>\n", 8 * at);
        loaded += &format!("%{name}{at} = view.load %v{at}[0] : view<1x{memory}> -> {memory}\n");
        if *ty == "i1" {
            loaded += &format!("%x{at} = scalar.trunci %l{at} : i8 to i1\n");
        }
    }
    for (what, body) in [("folded", folded), ("run", loaded)] {
        let kernel = kernel(&single("%b: buffer", &(body + &name(op))), "k", &[]);
        if what == "folded" {
            let store = kernel.body.blocks[0].ops.iter().find(|op| op.kind == OpKind::Store).unwrap();
            assert!(kernel.body.constant(store.operands[0]).is_some(), "{op} did not fold");
        }
        let mut bytes: Vec<u8> = operands.iter().flat_map(|(_, value)| value.to_le_bytes()).collect();
        bytes.resize(72, 0);
        let mut bound = [Bound::Bytes(bytes)];
        run(&kernel, &[], &mut bound).unwrap();
        let found = u64::from_le_bytes(bound[0].bytes()[64..72].try_into().unwrap());
        assert_eq!(found, expected, "{op} of {operands:x?}, {what}: {found:#x}, expected {expected:#x}");
    }
}

#[track_caller]
fn i8s(op: &str, a: i8, b: i8, expected: i8) {
    let op = format!("scalar.{op} {{0}}, {{1}} : i8");
    gives(&op, &[("i8", u64::from(a as u8)), ("i8", u64::from(b as u8))], "i8", u64::from(expected as u8));
}

#[test]
fn integers_wrap_and_never_trap() {
    i8s("addi", 127, 1, -128);
    i8s("subi", -128, 1, 127);
    i8s("muli", 64, 3, -64);
    i8s("divsi", -7, 2, -3);
    i8s("remsi", -7, 2, -1);
    i8s("remsi", -128, -1, 0);
    i8s("divsi", -128, -1, -128);
    i8s("divsi", 5, 0, 0);
    i8s("remsi", 5, 0, 0);
    i8s("divui", -1, 2, 127);
    i8s("remui", -1, 16, 15);
    i8s("divui", 5, 0, 0);
    i8s("remui", 5, 0, 0);
    i8s("ceildivsi", 7, 2, 4);
    i8s("ceildivsi", -7, 2, -3);
    i8s("ceildivsi", -7, -2, 4);
    i8s("floordivsi", -7, 2, -4);
    i8s("floordivsi", 7, -2, -4);
    i8s("floordivsi", -8, 2, -4);
    i8s("ceildivui", -1, 2, -128);
    i8s("minsi", -1, 1, -1);
    i8s("maxsi", -1, 1, 1);
    i8s("minui", -1, 1, 1);
    i8s("maxui", -1, 1, -1);
    i8s("shli", 1, 7, -128);
    i8s("shli", 1, 9, 2);
    i8s("shrsi", -128, 7, -1);
    i8s("shrui", -128, 7, 1);
    i8s("rotli", -127, 1, 3);
    i8s("rotri", 3, 1, -127);
    i8s("rotli", 5, 8, 5);
    let unary = |op: &str, x: i8, expected: i8| {
        gives(&format!("scalar.{op} {{0}} : i8"), &[("i8", u64::from(x as u8))], "i8", u64::from(expected as u8));
    };
    unary("negi", -128, -128);
    unary("absi", -128, -128);
    unary("absi", -3, 3);
    unary("ctlzi", 0, 8);
    unary("ctlzi", 1, 7);
    unary("cttzi", 0, 8);
    unary("cttzi", 8, 3);
    unary("ctpopi", -1, 8);
    unary("signi", -9, -1);
    unary("signi", 0, 0);
    let three = [("i8", 20), ("i8", 20), ("i8", 1)];
    gives("scalar.fmai {0}, {1}, {2} : i8", &three, "i8", (401 % 256) as u64);
    gives("scalar.bitfield.extractu {0} {offset = 2, width = 3} : i8 -> i8", &[("i8", 0b1011_0100)], "i8", 0b101);
    gives("scalar.bitfield.extracts {0} {offset = 2, width = 3} : i8 -> i8", &[("i8", 0b1011_0100)], "i8", 0xfd);
}

#[test]
fn booleans() {
    let pair = [("i1", 1), ("i1", 0)];
    gives("scalar.andi {0}, {1} : i1", &pair, "i1", 0);
    gives("scalar.ori {0}, {1} : i1", &pair, "i1", 1);
    gives("scalar.xori {0}, {1} : i1", &pair, "i1", 1);
    // True is −1 when signed, 1 when not.
    gives("scalar.cmpi slt, {0}, {1} : i1", &pair, "i1", 1);
    gives("scalar.cmpi ult, {0}, {1} : i1", &pair, "i1", 0);
    gives("scalar.extsi {0} : i1 to i32", &[("i1", 1)], "i32", 0xffff_ffff);
    gives("scalar.extui {0} : i1 to i32", &[("i1", 1)], "i32", 1);
    gives("index.cast {0} : i1 to index", &[("i1", 1)], "index", 1);
    gives("scalar.sitofp {0} : i1 to f32", &[("i1", 1)], "f32", u64::from((-1f32).to_bits()));
}

#[test]
fn indices() {
    let minus = (-1i64) as u64;
    gives("index.cmp ult, {0}, {1} : index", &[("index", minus), ("index", 7)], "i1", 0);
    gives("index.cmp slt, {0}, {1} : index", &[("index", minus), ("index", 7)], "i1", 1);
    gives("index.div {0}, {1} : index", &[("index", 100), ("index", 0xffff_ffff)], "index", 0);
    gives("index.rem {0}, {1} : index", &[("index", 100), ("index", 7)], "index", 2);
    gives("index.min {0}, {1} : index", &[("index", minus), ("index", 7)], "index", minus);
    gives("index.madd {0}, {1}, {2} : index", &[("index", 6), ("index", 7), ("index", 8)], "index", 50);
    gives("index.scale {0}, {1} : index, offset -> offset", &[("index", 6), ("offset", 12)], "offset", 72);
    gives("index.sub {0}, {1} : offset", &[("offset", 8), ("offset", 3)], "offset", 5);
    gives("index.ctlzi {0} : index", &[("index", 0)], "index", 64);
    gives("index.cast {0} : i8 to index", &[("i8", 0x80)], "index", (-128i64) as u64);
    gives("index.cast {0} : i8 to offset", &[("i8", 0x80)], "offset", 0x80);
    gives("index.cast {0} : index to i8", &[("index", 0x1ff)], "i8", 0xff);
    gives("index.cast {0} : offset to index", &[("offset", 9)], "index", 9);
}

fn f(value: f32) -> (&'static str, u64) {
    ("f32", u64::from(value.to_bits()))
}

#[track_caller]
fn floats(op: &str, operands: &[f32], expected: f32) {
    let names = (0..operands.len()).map(|at| format!("{{{at}}}")).collect::<Vec<_>>().join(", ");
    let bound: Vec<_> = operands.iter().map(|value| f(*value)).collect();
    gives(&format!("scalar.{op} {names} : f32"), &bound, "f32", u64::from(expected.to_bits()));
}

#[test]
fn float_arithmetic() {
    let tiny = f32::from_bits(1);
    floats("addf", &[tiny, tiny], f32::from_bits(2));
    floats("mulf", &[f32::MIN_POSITIVE, 0.5], f32::from_bits(0x0040_0000));
    floats("divf", &[1.0, 3.0], 1.0 / 3.0);
    floats("divf", &[1.0, 0.0], f32::INFINITY);
    floats("remf", &[-5.5, 2.0], -1.5);
    // One rounding: the product alone would round its last bit away.
    floats("fmaf", &[1.0 + f32::EPSILON, 1.0 - f32::EPSILON, -1.0], -f32::EPSILON * f32::EPSILON);
    floats("minnumf", &[f32::NAN, 1.0], 1.0);
    floats("maxnumf", &[1.0, f32::NAN], 1.0);
    floats("minnumf", &[0.0, -0.0], -0.0);
    floats("maxnumf", &[-0.0, 0.0], 0.0);
    floats("minimumf", &[0.0, -0.0], -0.0);
    floats("maximumf", &[-0.0, 0.0], 0.0);
    floats("copysignf", &[3.0, -0.0], -3.0);
    floats("clampf<ordered>", &[5.0, 0.0, 1.0], 1.0);
    floats("clampf<number>", &[f32::NAN, 0.0, 1.0], 0.0);
    floats("roundf", &[2.5], 3.0);
    floats("roundf", &[-2.5], -3.0);
    floats("roundevenf", &[2.5], 2.0);
    floats("truncf", &[-2.7], -2.0);
    floats("ceilf", &[-0.5], -0.0);
    floats("floorf", &[-0.5], -1.0);
    floats("signf", &[-7.0], -1.0);
    floats("signf", &[-0.0], -0.0);
    floats("sqrtf", &[2.0], 2f32.sqrt());
    floats("logisticf", &[-200.0], (-200f64).exp() as f32);
    floats("logisticf", &[200.0], 1.0);
    floats("siluf", &[-1000.0], -0.0);
    floats("softplusf", &[1000.0], 1000.0);
    for op in ["minimumf", "maximumf"] {
        gives_nan(op, &[f32::NAN, 1.0]);
        gives_nan(op, &[1.0, f32::NAN]);
    }
    gives_nan("clampf<ieee>", &[f32::NAN, 0.0, 1.0]);
    gives_nan("clampf<ordered>", &[f32::NAN, 0.0, 1.0]);
}

/// Payloads are free, so only NaN-ness is looked at: in a NaN every exponent bit is one and some other is too.
#[track_caller]
fn gives_nan(op: &str, operands: &[f32]) {
    let names = (0..operands.len()).map(|at| format!("{{{at}}}")).collect::<Vec<_>>().join(", ");
    let bound: Vec<_> = operands.iter().map(|value| f(*value)).collect();
    // The op's own result is named %m, and what `gives` stores is whether it is NaN.
    let ops = format!("scalar.constant 1 : i1\n%m = scalar.{op} {names} : f32\n%nan = scalar.isnanf %m : f32");
    gives_stored(&ops, &bound, "i1", 1, "%nan");
}

#[test]
fn sign_bits_keep_payloads() {
    for bits in [0x7f80_0001u32, 0xffc0_1234, 0x8000_0000, 0x0000_0001] {
        gives("scalar.negf {0} : f32", &[("f32", u64::from(bits))], "f32", u64::from(bits ^ 0x8000_0000));
        gives("scalar.absf {0} : f32", &[("f32", u64::from(bits))], "f32", u64::from(bits & 0x7fff_ffff));
    }
    for bits in (0..=0xffffu64).step_by(257) {
        gives("scalar.negf {0} : f16", &[("f16", bits)], "f16", bits ^ 0x8000);
    }
    gives("scalar.negf {0} : f8E4M3", &[("f8E4M3", 0x7f)], "f8E4M3", 0xff);
}

#[test]
fn float_comparisons() {
    let nan = f32::NAN;
    for (predicate, less, equal, greater, unordered) in [
        ("oeq", 0, 1, 0, 0),
        ("ogt", 0, 0, 1, 0),
        ("oge", 0, 1, 1, 0),
        ("olt", 1, 0, 0, 0),
        ("ole", 1, 1, 0, 0),
        ("one", 1, 0, 1, 0),
        ("ord", 1, 1, 1, 0),
        ("ueq", 0, 1, 0, 1),
        ("ugt", 0, 0, 1, 1),
        ("uge", 0, 1, 1, 1),
        ("ult", 1, 0, 0, 1),
        ("ule", 1, 1, 0, 1),
        ("une", 1, 0, 1, 1),
        ("uno", 0, 0, 0, 1),
    ] {
        let op = format!("scalar.cmpf {predicate}, {{0}}, {{1}} : f32");
        gives(&op, &[f(1.0), f(2.0)], "i1", less);
        gives(&op, &[f(-0.0), f(0.0)], "i1", equal);
        gives(&op, &[f(2.0), f(1.0)], "i1", greater);
        gives(&op, &[f(nan), f(1.0)], "i1", unordered);
        gives(&op, &[f(nan), f(nan)], "i1", unordered);
    }
    gives("scalar.isinff {0} : f32", &[f(f32::NEG_INFINITY)], "i1", 1);
    gives("scalar.isfinitef {0} : f32", &[f(f32::MAX)], "i1", 1);
    gives("scalar.isfinitef {0} : f32", &[f(nan)], "i1", 0);
}

#[test]
fn conversions() {
    let to_int = |value: f64, ty: &str, expected: u64| {
        gives(&format!("scalar.fptosi {{0}} : f64 to {ty}"), &[("f64", value.to_bits())], ty, expected);
    };
    to_int(-2147483648.75, "i32", 0x8000_0000);
    to_int(3e9, "i32", 0x7fff_ffff);
    to_int(f64::NAN, "i32", 0);
    to_int(-1e300, "i64", 1 << 63);
    to_int(-1.9, "i8", 0xff);
    let to_uint = |value: f64, ty: &str, expected: u64| {
        gives(&format!("scalar.fptoui {{0}} : f64 to {ty}"), &[("f64", value.to_bits())], ty, expected);
    };
    to_uint(4294967295.5, "i32", 0xffff_ffff);
    to_uint(-1.0, "i32", 0);
    to_uint(300.0, "i8", 255);
    to_uint(f64::INFINITY, "i64", u64::MAX);
    gives("scalar.uitofp {0} : i64 to f32", &[("i64", u64::MAX)], "f32", u64::from(18446744073709551616f32.to_bits()));
    gives("scalar.sitofp {0} : i64 to f32", &[("i64", (1 << 53) + 1)], "f32", u64::from(9007199254740992f32.to_bits()));
    // 2^60 + 2^49 + 1 lies just above half way between two neighbours in bf16 that a step through f32 would call even.
    gives("scalar.uitofp {0} : i64 to bf16", &[("i64", (1 << 60) + (1 << 52) + 1)], "bf16", 0x5d81);
    gives("scalar.uitofp {0} : i64 to bf16", &[("i64", (1 << 60) + (1 << 52))], "bf16", 0x5d80);
    let narrow = |value: f64, ty: &str, expected: u64| {
        gives(&format!("scalar.fptrunc {{0}} : f64 to {ty}"), &[("f64", value.to_bits())], ty, expected);
    };
    // Just above a tie: by way of f32 it would become the tie and round down to even.
    narrow(1.0 + 2f64.powi(-11) + 2f64.powi(-40), "f16", 0x3c01);
    narrow(1.0 + 2f64.powi(-11), "f16", 0x3c00);
    narrow(1.0 + 2f64.powi(-8) + 2f64.powi(-40), "bf16", 0x3f81);
    narrow(1.0 + 2f64.powi(-8), "bf16", 0x3f80);
    narrow(65520.0, "f16", 0x7c00);
    narrow(65519.999, "f16", 0x7bff);
    narrow(2f64.powi(-25), "f16", 0);
    narrow(2f64.powi(-25) * 1.0001, "f16", 1);
    narrow(1e300, "bf16", 0x7f80);
    narrow(1e300, "f8E4M3", 0x7e);
    narrow(f64::NEG_INFINITY, "f8E4M3", 0xfe);
    narrow(464.0, "f8E4M3", 0x7e);
    narrow(1e300, "f8E5M2", 0x7c);
    narrow(61440.0, "f8E5M2", 0x7c);
    narrow(61439.0, "f8E5M2", 0x7b);
    narrow(2f64.powi(-9), "f8E4M3", 1);
    narrow(2f64.powi(-10), "f8E4M3", 0);
    narrow(2f64.powi(-10) * 1.001, "f8E4M3", 1);
    narrow(-1.0, "f8E5M2", 0xbc);
    let wide = |ty: &str, bits: u64, expected: f32| {
        gives(&format!("scalar.extf {{0}} : {ty} to f32"), &[(ty, bits)], "f32", u64::from(expected.to_bits()));
    };
    wide("f8E4M3", 0x7e, 448.0);
    wide("f8E4M3", 0x01, 2f32.powi(-9));
    wide("f8E4M3", 0xb8, -1.0);
    wide("f8E5M2", 0x7c, f32::INFINITY);
    wide("f8E5M2", 0x03, 3.0 * 2f32.powi(-16));
    wide("bf16", 0x4049, 3.140625);
    wide("f16", 0x0001, 2f32.powi(-24));
    gives("scalar.trunci {0} : i32 to i8", &[("i32", 0x1234)], "i8", 0x34);
    gives("scalar.extsi {0} : i8 to i64", &[("i8", 0x80)], "i64", (-128i64) as u64);
}

#[test]
fn narrow_floats_round_once() {
    // 1 + 2^-10 squared is 1 + 2^-9 + 2^-20; with c = -2^-20 the sum is exact, in f16.
    let one = 0x3c01;
    gives("scalar.fmaf {0}, {1}, {2} : f16", &[("f16", one), ("f16", one), ("f16", 0x8010)], "f16", 0x3c02);
    // 7 * 37 is 259, half way between 258 and 260 in bf16; -2^-100 puts it below, and is lost in a sum in f64.
    let fma = "scalar.fmaf {0}, {1}, {2} : bf16";
    gives(fma, &[("bf16", 0x40e0), ("bf16", 0x4214), ("bf16", 0)], "bf16", 0x4382);
    gives(fma, &[("bf16", 0x40e0), ("bf16", 0x4214), ("bf16", 0x8d80)], "bf16", 0x4381);
    gives("scalar.addf {0}, {1} : bf16", &[("bf16", 0x3f80), ("bf16", 0x3b80)], "bf16", 0x3f80);
    gives("scalar.addf {0}, {1} : bf16", &[("bf16", 0x3f81), ("bf16", 0x3b80)], "bf16", 0x3f82);
    gives("scalar.mulf {0}, {1} : f16", &[("f16", 0x7bff), ("f16", 0x4000)], "f16", 0x7c00);
}

#[test]
fn math_is_close_to_f64() {
    // Four ulp of f32: `tests/math.rs` holds each function to its own bound.
    let close = |op: &str, x: f32, expected: f64| {
        let attributes = if op == "geluf<logistic>" { "{scale = 1.5}" } else { "" };
        let body = format!(
            "%o = buffer.view %b[%base] : buffer -> view<1xf32>\n%x = view.load %o[0] : view<1xf32> -> f32\n\
             %r = scalar.{op} %x {attributes} : f32\nview.store %r, %o[0] : f32, view<1xf32>\n"
        );
        let kernel = kernel(&single("%b: buffer", &body), "k", &[]);
        let mut bound = [Bound::f32s(&[x])];
        run(&kernel, &[], &mut bound).unwrap();
        let found = f64::from(bound[0].to_f32s()[0]);
        assert!(
            (found - expected).abs() <= 4.8e-7 * expected.abs().max(1e-6),
            "{op}({x}) = {found}, expected {expected}"
        );
    };
    for x in [0.3f32, 0.75, 0.9] {
        let d = f64::from(x);
        close("expf", x, d.exp());
        close("exp2f", x, d.exp2());
        close("expm1f", x, d.exp_m1());
        close("logf", x, d.ln());
        close("log2f", x, d.log2());
        close("log10f", x, d.log10());
        close("log1pf", x, d.ln_1p());
        close("rsqrtf", x, 1.0 / d.sqrt());
        close("cbrtf", x, d.cbrt());
        close("sinf", x, d.sin());
        close("cosf", x, d.cos());
        close("tanf", x, d.tan());
        close("asinf", x, d.asin());
        close("acosf", x, d.acos());
        close("atanf", x, d.atan());
        close("sinhf", x, d.sinh());
        close("coshf", x, d.cosh());
        close("tanhf", x, d.tanh());
        close("asinhf", x, d.asinh());
        close("atanhf", x, d.atanh());
        close("acoshf", x + 1.0, (f64::from(x + 1.0)).acosh());
        close("sinturnsf", x, (std::f64::consts::TAU * d).sin());
        close("costurnsf", x, (std::f64::consts::TAU * d).cos());
        close("logisticf", x, 1.0 / (1.0 + (-d).exp()));
        close("siluf", x, d / (1.0 + (-d).exp()));
        close("softplusf", x, (1.0 + d.exp()).ln());
        close("geluf<logistic>", x, d / (1.0 + (-1.5 * d).exp()));
    }
    // Abramowitz and Stegun, table 7.1.
    close("erff", 0.5, 0.520_499_877_8);
    close("erfcf", 0.5, 0.479_500_122_2);
    close("geluf<erf>", 1.0, 0.841_344_746_1);
    close("geluf<tanh>", 1.0, 0.841_191_990_6);
}
