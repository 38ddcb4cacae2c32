//! Folding keeps meaning: random expressions give the same bits whichever of their inputs are constants.

mod common;

use std::fmt::Write as _;

use common::{Bound, kernel, run, single};
use proptest::prelude::*;

const INT_OPS: [&str; 21] = [
    "addi",
    "subi",
    "muli",
    "divsi",
    "remsi",
    "divui",
    "remui",
    "ceildivsi",
    "ceildivui",
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
];
const FLOAT_OPS: [&str; 8] = ["addf", "subf", "mulf", "divf", "minnumf", "maximumf", "copysignf", "powf"];
const FLOAT_UNARY: [&str; 10] =
    ["negf", "expf", "tanhf", "logisticf", "floorf", "roundevenf", "sqrtf", "erff", "siluf", "signf"];

/// One op over earlier values: the choice of op, and of up to three operands.
type Step = (u8, u8, u8, u8);

/// Inputs 0..4 are i32, 4..8 f32; `constants` says which are literals. Every value is stored.
fn program(steps: &[Step], inputs: &[u32; 8], constants: u8) -> String {
    let mut body = String::new();
    let (mut ints, mut floats) = (Vec::new(), Vec::new());
    for (at, bits) in inputs.iter().enumerate() {
        let ty = if at < 4 { "i32" } else { "f32" };
        if constants >> at & 1 == 1 {
            let _ = writeln!(body, "%c{at} = scalar.constant {} : i32", *bits as i32);
            if at >= 4 {
                let _ = writeln!(body, "%x{at} = scalar.bitcast %c{at} : i32 to f32");
            }
        } else {
            let _ = writeln!(body, "%v{at} = buffer.view %in[{}] : buffer -> view<1x{ty}>", 4 * at);
            let name = if at < 4 { "c" } else { "x" };
            let _ = writeln!(body, "%{name}{at} = view.load %v{at}[0] : view<1x{ty}> -> {ty}");
        }
        if at < 4 { ints.push(format!("%c{at}")) } else { floats.push(format!("%x{at}")) }
    }
    for (at, (op, a, b, c)) in steps.iter().enumerate() {
        let int = |pick: &u8| ints[usize::from(*pick) % ints.len()].clone();
        let float = |pick: &u8| floats[usize::from(*pick) % floats.len()].clone();
        let op = usize::from(*op);
        let (is_int, text) = match op % 12 {
            0..=4 => (true, format!("scalar.{} {}, {} : i32", INT_OPS[op / 12 % 21], int(a), int(b))),
            5 => (true, format!("scalar.fmai {}, {}, {} : i32", int(a), int(b), int(c))),
            6 | 7 => (false, format!("scalar.{} {}, {} : f32", FLOAT_OPS[op / 12 % 8], float(a), float(b))),
            8 => (false, format!("scalar.{} {} : f32", FLOAT_UNARY[op / 12 % 10], float(a))),
            9 => (false, format!("scalar.sitofp {} : i32 to f32", int(a))),
            10 => (true, format!("scalar.fptosi {} : f32 to i32", float(a))),
            _ => {
                let _ = writeln!(body, "%p{at} = scalar.cmpi slt, {}, {} : i32", int(a), int(b));
                (false, format!("scf.select %p{at}, {}, {} : f32", float(b), float(c)))
            }
        };
        let _ = writeln!(body, "%r{at} = {text}");
        let ty = if is_int { "i32" } else { "f32" };
        let _ = writeln!(body, "%w{at} = buffer.view %out[{}] : buffer -> view<1x{ty}>", 4 * at);
        let _ = writeln!(body, "view.store %r{at}, %w{at}[0] : {ty}, view<1x{ty}>");
        if is_int { ints.push(format!("%r{at}")) } else { floats.push(format!("%r{at}")) }
    }
    single("%in: buffer, %out: buffer", &body)
}

fn outputs(steps: &[Step], inputs: &[u32; 8], constants: u8) -> Vec<u8> {
    let kernel = kernel(&program(steps, inputs, constants), "k", &[]);
    let bytes = inputs.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let mut bound = [Bound::Bytes(bytes), Bound::zeros(4 * steps.len())];
    run(&kernel, &[], &mut bound).unwrap();
    bound[1].bytes().to_vec()
}

fn interesting() -> impl Strategy<Value = u32> {
    let special = prop::sample::select(vec![
        0u32,
        1,
        2,
        31,
        32,
        0xffff_ffff,
        0x8000_0000,
        0x7fff_ffff,
        0x3f80_0000,
        0x7f80_0000,
        0x7fc0_0000,
        0xbf00_0000,
        0x0000_0100,
    ]);
    prop_oneof![special, any::<u32>()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn of_scalars(
        steps in prop::collection::vec(any::<Step>(), 1..40),
        inputs in prop::array::uniform8(interesting()),
        constants in any::<u8>(),
    ) {
        let run = outputs(&steps, &inputs, 0);
        prop_assert_eq!(&run, &outputs(&steps, &inputs, 0xff), "all folded");
        prop_assert_eq!(&run, &outputs(&steps, &inputs, constants), "some folded: {:#b}", constants);
    }
}

#[test]
fn what_folds_leaves_only_the_stores() {
    let steps: Vec<Step> = (0..40).map(|at| (at * 5, at, at + 1, at + 2)).collect();
    let folded = kernel(&program(&steps, &[3; 8], 0xff), "k", &[]);
    use loom_compiler::ops::OpKind;
    for op in &folded.body.blocks[0].ops {
        assert!(
            matches!(op.kind, OpKind::Constant(_) | OpKind::BufferView | OpKind::Store | OpKind::Return),
            "{op:?} is left"
        );
    }
}

#[test]
fn equal_ops_are_one_and_unused_ones_none() {
    use loom_compiler::ops::{Binary, OpKind};
    let body = "%v = buffer.view %b[%base] : buffer -> view<4xi32>\n%x = view.load %v[0] : view<4xi32> -> i32\n\
                %a = scalar.muli %x, %x : i32\n%c = scalar.muli %x, %x : i32\n%d = scalar.addi %a, %c : i32\n\
                %unused = scalar.divsi %d, %x : i32\nview.store %d, %v[1] : i32, view<4xi32>";
    let kernel = kernel(&single("%b: buffer", body), "k", &[]);
    let count = |op: Binary| kernel.body.blocks[0].ops.iter().filter(|other| other.kind == OpKind::Binary(op)).count();
    assert_eq!((count(Binary::MulI), count(Binary::AddI), count(Binary::DivSI)), (1, 1, 0));
}

#[test]
fn reuse_does_not_reach_out_of_a_branch() {
    // The product in the branch must not stand for the one behind it.
    let body = "%v = buffer.view %b[%base] : buffer -> view<4xi32>\n%x = view.load %v[0] : view<4xi32> -> i32\n\
                %z = scalar.constant 0 : i32\n%p = scalar.cmpi sgt, %x, %z : i32\n\
                scf.if %p {\n%a = scalar.muli %x, %x : i32\nview.store %a, %v[1] : i32, view<4xi32>\n}\n\
                %c = scalar.muli %x, %x : i32\nview.store %c, %v[2] : i32, view<4xi32>";
    let kernel = kernel(&single("%b: buffer", body), "k", &[]);
    for (x, expected) in [(-3, [-3, 0, 9, 0]), (3, [3, 9, 9, 0])] {
        let mut bound = [Bound::i32s(&[x, 0, 0, 0])];
        run(&kernel, &[], &mut bound).unwrap();
        assert_eq!(bound[0].to_i32s(), expected);
    }
}
