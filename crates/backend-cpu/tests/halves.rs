//! All bit patterns of the narrow floats through the ops that must keep them, and every point between two neighbours
//! through the one rounding of a conversion. Expectations are integer arithmetic on the bits.

use std::collections::BTreeMap;

use backend_cpu::isa::Isa;
use backend_cpu::tile::{TileScratch, run_slices};
use loom_compiler::interp::{self, Argument, Limits};
use loom_compiler::{Module, tile};

/// `ops` makes `%r`, of type `to`, of each `%x`, of type `from`: on the interpreter and on every set of instructions.
fn each(input: &[u8], from: (&str, usize), ops: &str, to: (&str, usize)) -> Vec<u8> {
    let n = input.len() / from.1;
    let (from, to, size) = (from.0, to.0, to.1);
    let text = format!(
        "kernel.def @k() {{\n%one = index.constant 1 : index\n%g = index.constant {} : index\n%s = index.constant 256 : index\n\
         kernel.launch.config workgroups(%g, %one, %one) workgroup_size(%s, %one, %one) : index\n\
         }} launch(%b: buffer, %o: buffer) {{\n%base = index.constant 0 : offset\n%i = kernel.workitem.dispatch.id<x> : index\n\
         %in = buffer.view %b[%base] : buffer -> view<{n}x{from}>\n%out = buffer.view %o[%base] : buffer -> view<{n}x{to}>\n\
         %n = index.constant {n} : index\n%live = index.cmp ult, %i, %n : index\nscf.if %live {{\n\
         %x = view.load %in[%i] : view<{n}x{from}> -> {from}\n{ops}\nview.store %r, %out[%i] : {to}, view<{n}x{to}>\n}}\nkernel.return\n}}\n",
        n.div_ceil(256)
    );
    let module = Module::parse("test", &text).unwrap_or_else(|e| panic!("{e}"));
    let kernel = module.specialise("k", &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let image = tile::compile(&kernel).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let geometry = image.launch.geometry(&[]).unwrap();
    let mut expected = [input.to_vec(), vec![0x77u8; n * size]];
    let mut arguments: Vec<_> = expected.iter_mut().map(|b| Argument::Buffer(b)).collect();
    interp::run(&kernel, geometry, &mut arguments, Limits::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        let mut found = [input.to_vec(), vec![0x77u8; n * size]];
        let mut slices: Vec<&mut [u8]> = found.iter_mut().map(Vec::as_mut_slice).collect();
        run_slices(&image, &geometry, &mut slices, &[0; 2], &mut TileScratch::new(isa)).unwrap();
        assert!(found == expected, "{isa:?} and the interpreter part over {ops}");
    }
    let [_, out] = expected;
    out
}

fn u16s(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]))
}

fn all() -> Vec<u8> {
    (0..=u16::MAX).flat_map(u16::to_le_bytes).collect()
}

/// The number that `bits` stand for, of a format with so many bits of exponent and mantissa; exact in f64.
fn value(bits: u32, exponent: u32, mantissa: u32) -> f64 {
    let bias = (1i32 << (exponent - 1)) - 1;
    let sign = if bits >> (exponent + mantissa) & 1 == 1 { -1.0 } else { 1.0 };
    let (e, m) = (bits >> mantissa & ((1 << exponent) - 1), f64::from(bits & ((1 << mantissa) - 1)));
    let scale = |e: i32| 2f64.powi(e - bias - mantissa as i32);
    if e == 0 { sign * m * scale(1) } else { sign * (m + f64::from(1u32 << mantissa)) * scale(e as i32) }
}

#[test]
fn sign_ops_keep_every_pattern() {
    let bits = all();
    for ty in ["f16", "bf16"] {
        let at = (ty, 2);
        let run = |ops: &str| each(&bits, at, &ops.replace("TY", ty), at);
        assert!(u16s(&run("%r = scalar.negf %x : TY")).eq((0..=u16::MAX).map(|x| x ^ 0x8000)), "{ty}");
        assert!(u16s(&run("%r = scalar.absf %x : TY")).eq((0..=u16::MAX).map(|x| x & 0x7fff)), "{ty}");
        let minus = run("%c = scalar.constant -0.0 : TY\n%r = scalar.copysignf %x, %c : TY");
        assert!(u16s(&minus).eq((0..=u16::MAX).map(|x| x | 0x8000)), "{ty}");
        // The sign of every pattern, on a number that has none of its own.
        let of = run("%c = scalar.constant 1.0 : TY\n%r = scalar.copysignf %c, %x : TY");
        let one = if ty == "f16" { 0x3c00 } else { 0x3f80 };
        assert!(u16s(&of).eq((0..=u16::MAX).map(|x| x & 0x8000 | one)), "{ty}");
        let vector = run(
            "%v = vector.splat %x : vector<3xTY>\n%w = vector.negf %v : vector<3xTY>\n%r = vector.extract %w[1] : vector<3xTY> -> TY",
        );
        assert!(u16s(&vector).eq((0..=u16::MAX).map(|x| x ^ 0x8000)), "{ty}");
    }
}

#[test]
fn widening_is_exact_and_narrowing_takes_it_back() {
    let bits = all();
    for (ty, exponent, mantissa) in [("f16", 5, 10), ("bf16", 8, 7)] {
        for wide in ["f32", "f64"] {
            let size = if wide == "f32" { 4 } else { 8 };
            let found = each(&bits, (ty, 2), &format!("%r = scalar.extf %x : {ty} to {wide}"), (wide, size));
            let back = each(&found, (wide, size), &format!("%r = scalar.fptrunc %x : {wide} to {ty}"), (ty, 2));
            for (x, (found, back)) in (0..=u16::MAX).zip(found.chunks_exact(size).zip(u16s(&back))) {
                let found = if size == 4 {
                    f64::from(f32::from_le_bytes(found.try_into().unwrap()))
                } else {
                    f64::from_le_bytes(found.try_into().unwrap())
                };
                let top = (1u16 << exponent) - 1;
                let (e, m) = (x >> mantissa & top, x & ((1 << mantissa) - 1));
                match (e == top, m) {
                    (true, 0) => assert_eq!(found.abs(), f64::INFINITY, "{ty} {x:#x}"),
                    (true, _) => {
                        assert!(found.is_nan(), "{ty} {x:#x}");
                        assert!(back >> mantissa & top == top && back & ((1 << mantissa) - 1) != 0, "{ty} {x:#x}");
                        continue;
                    }
                    _ => assert_eq!(found, value(x.into(), exponent, mantissa), "{ty} {x:#x}"),
                }
                assert_eq!(found.is_sign_negative(), x >> 15 == 1, "{ty} {x:#x}");
                assert_eq!(back, x, "{ty} by way of {wide}");
            }
        }
    }
}

/// The number next to `value`, towards zero or away from it, as f32 or as f64.
fn beside(value: f64, wide: &str, away: bool) -> f64 {
    let step = if away { 1i64 } else { -1 };
    if wide == "f32" {
        f64::from(f32::from_bits((i64::from((value as f32).to_bits()) + step) as u32))
    } else {
        f64::from_bits((value.to_bits() as i64 + step) as u64)
    }
}

/// Half way between two neighbours goes to the even one; the next number on either side goes to its own, which from f64 a
/// step by way of f32 would not give.
#[test]
fn narrowing_rounds_once() {
    for (ty, exponent, mantissa, size) in [("f16", 5u32, 10u32, 2), ("bf16", 8, 7, 2), ("f8E5M2", 5, 2, 1)] {
        for wide in ["f64", "f32"] {
            let last = ((1u32 << exponent) - 1) << mantissa;
            let mut inputs: Vec<f64> = Vec::new();
            let mut expected = Vec::new();
            // Of bfloat16 a sample: all of them take long to interpret.
            for low in (0..last).step_by(if ty == "bf16" { 7 } else { 1 }) {
                // Past the largest number the next would-be number rounds to infinity, whose bits it has.
                let middle = (value(low, exponent, mantissa) + value(low + 1, exponent, mantissa)) / 2.0;
                let even = if low % 2 == 0 { low } else { low + 1 };
                for (input, bits) in
                    [(middle, even), (beside(middle, wide, false), low), (beside(middle, wide, true), low + 1)]
                {
                    inputs.extend([input, -input]);
                    expected.extend([bits, bits | 1 << (exponent + mantissa)]);
                }
            }
            let bytes: Vec<u8> = if wide == "f32" {
                inputs.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect()
            } else {
                inputs.iter().flat_map(|x| x.to_le_bytes()).collect()
            };
            let from = (wide, if wide == "f32" { 4 } else { 8 });
            let found = each(&bytes, from, &format!("%r = scalar.fptrunc %x : {wide} to {ty}"), (ty, size));
            let found =
                found.chunks_exact(size).map(|b| b.iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte)));
            for ((input, found), expected) in inputs.iter().zip(found).zip(expected) {
                assert_eq!(found, expected, "{input:e} from {wide} to {ty}");
            }
        }
    }
}

#[test]
fn fp8_decodes_and_saturates() {
    let bits: Vec<u8> = (0..=255).collect();
    for (ty, exponent, mantissa) in [("f8E4M3", 4, 3), ("f8E5M2", 5, 2)] {
        assert!(
            each(&bits, (ty, 1), &format!("%r = scalar.negf %x : {ty}"), (ty, 1)).iter().eq(bits
                .iter()
                .map(|x| x ^ 0x80)
                .collect::<Vec<_>>()
                .iter())
        );
        let wide = each(&bits, (ty, 1), &format!("%r = scalar.extf %x : {ty} to f32"), ("f32", 4));
        let back = each(&wide, ("f32", 4), &format!("%r = scalar.fptrunc %x : f32 to {ty}"), (ty, 1));
        for (x, (found, back)) in (0..=255u8).zip(wide.chunks_exact(4).zip(back)) {
            let found = f32::from_le_bytes(found.try_into().unwrap());
            let magnitude = x & 0x7f;
            // E4M3 has one NaN and no infinity; E5M2 is as IEEE has it.
            match (ty, magnitude) {
                ("f8E4M3", 0x7f) | ("f8E5M2", 0x7d..) => {
                    assert!(found.is_nan(), "{ty} {x:#x}");
                    continue;
                }
                ("f8E5M2", 0x7c) => assert_eq!(found.abs(), f32::INFINITY),
                _ => assert_eq!(f64::from(found), value(x.into(), exponent, mantissa), "{ty} {x:#x}"),
            }
            assert_eq!(back, x, "{ty}");
        }
    }
    let inputs: Vec<u8> =
        [448.0f32, 464.0, 465.0, 1e30, f32::INFINITY, -1e30].iter().flat_map(|x| x.to_le_bytes()).collect();
    let found = each(&inputs, ("f32", 4), "%r = scalar.fptrunc %x : f32 to f8E4M3", ("f8E4M3", 1));
    assert_eq!(found, [0x7e, 0x7e, 0x7e, 0x7e, 0x7e, 0xfe]);
    let found = each(&inputs, ("f32", 4), "%r = scalar.fptrunc %x : f32 to f8E5M2", ("f8E5M2", 1));
    assert_eq!(found, [0x5f, 0x5f, 0x5f, 0x7c, 0x7c, 0xfc]);
}
