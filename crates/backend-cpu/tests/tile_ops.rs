//! Packed, gathered and encoded vectors: results worked out by hand, on the tile executor and on the interpreter, with one
//! work-item (everything uniform) and with many (everything in registers).

use std::collections::BTreeMap;

use backend_cpu::isa::Isa;
use backend_cpu::tile::{TileScratch, run_slices};
use half::{bf16, f16};
use loom_compiler::interp::{self, Argument, Limits};
use loom_compiler::{Module, tile};

const ITEMS: usize = 37;

fn bytes_of(ty: &str) -> usize {
    match ty {
        "i8" | "f8E4M3" | "f8E5M2" => 1,
        "i16" | "f16" | "bf16" => 2,
        "i32" | "f32" => 4,
        _ => 8,
    }
}

/// Runs `ops` where each item has `%x`, its own `lanes` elements of `input`, as a vector; `%in` its own row as a view of rank
/// 1; `%i`, its number; and must leave `%r`, a vector of `out` as it is written in memory. The bytes of one item's result.
#[track_caller]
fn on(input: &[u8], ty: &str, ops: &str, out: &str, out_lanes: usize) -> Vec<u8> {
    let lanes = input.len() / bytes_of(ty);
    let mut results: Vec<Vec<u8>> = Vec::new();
    for items in [1, ITEMS] {
        // One item is number 0, known to the compiler: its addresses are uniform.
        let id = if items == 1 { "index.constant 0 : index" } else { "kernel.workitem.dispatch.id<x> : index" };
        let text = format!(
            "kernel.def @k() {{\n%one = index.constant 1 : index\n%n = index.constant {items} : index\n\
             kernel.launch.config workgroups(%one, %one, %one) workgroup_size(%n, %one, %one) : index\n\
             }} launch(%b: buffer, %o: buffer) {{\n%base = index.constant 0 : offset\n%i = {id}\n\
             %all = buffer.view %b[%base] : buffer -> view<{items}x{lanes}x{ty}>\n\
             %bytes = index.constant {bytes} : offset\n%start = index.scale %i, %bytes : index, offset -> offset\n\
             %in = buffer.view %b[%start] : buffer -> view<{lanes}x{ty}>\n\
             %x = vector.load %all[%i, 0] : view<{items}x{lanes}x{ty}> -> vector<{lanes}x{ty}>\n\
             %z0 = index.constant 0 : index\n{ops}\n\
             %out = buffer.view %o[%base] : buffer -> view<{items}x{out_lanes}x{out}>\n\
             vector.store %r, %out[%i, 0] : vector<{out_lanes}x{out}>, view<{items}x{out_lanes}x{out}>\nkernel.return\n}}\n",
            bytes = input.len()
        );
        let module = Module::parse("test", &text).unwrap_or_else(|e| panic!("{e}"));
        let kernel = module.specialise("k", &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let image = tile::compile(&kernel).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let geometry = image.launch.geometry(&[]).unwrap();
        let size = out_lanes * bytes_of(out);
        let fresh = || [input.repeat(items), vec![0xeeu8; size * items]];
        let mut expected = fresh();
        let mut arguments: Vec<_> = expected.iter_mut().map(|b| Argument::Buffer(b)).collect();
        interp::run(&kernel, geometry, &mut arguments, Limits::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        results.push(expected[1][..size].to_vec());
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let mut found = fresh();
            let mut slices: Vec<&mut [u8]> = found.iter_mut().map(Vec::as_mut_slice).collect();
            run_slices(&image, &geometry, &mut slices, &[0; 2], &mut TileScratch::new(isa))
                .unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(found, expected, "{items} items, {isa:?}\n{text}");
        }
    }
    assert_eq!(results[0], results[1], "{ops}");
    results.swap_remove(0)
}

fn i32s(bytes: Vec<u8>) -> Vec<i32> {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn f32s(bytes: Vec<u8>) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn le32(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn lef(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn packed_integer_dots() {
    // Lanes 0..4 are `a`, 4..8 are `b`: with sign −1, 2, −128, 127 and 3, −1, −128, 1.
    let x = [0xffu8, 2, 0x80, 0x7f, 3, 0xff, 0x80, 1];
    let case = |signs: &str, expected: i64| {
        let ops = format!(
            "%a = vector.slice %x[0] : vector<8xi8> -> vector<4xi8>\n%b2 = vector.slice %x[4] : vector<8xi8> -> vector<4xi8>\n\
             %c = vector.constant 10 : vector<1xi32>\n\
             %r = vector.dot4i<{signs}> %a, %b2, %c : vector<4xi8>, vector<4xi8>, vector<1xi32>"
        );
        assert_eq!(i32s(on(&x, "i8", &ops, "i32", 1)), [expected as i32], "{signs}");
    };
    case("s8s8", 10 - 3 - 2 + 16384 + 127);
    case("u8s8", 10 + 765 - 2 - 16384 + 127);
    case("s8u8", 10 - 3 + 510 - 16384 + 127);
    case("u8u8", 10 + 765 + 510 + 16384 + 127);
    // The sum wraps.
    let ops = "%c = vector.constant 2147483647 : vector<2xi32>\n%r = vector.dot4i<u8u8> %x, %x, %c : vector<8xi8>, vector<8xi8>, vector<2xi32>";
    let squares = [65025 + 4 + 16384 + 16129, 9 + 65025 + 16384 + 1];
    assert_eq!(i32s(on(&x, "i8", ops, "i32", 2)), squares.map(|sum: i32| i32::MAX.wrapping_add(sum)));
    // Nibbles of 0x8f21_00f7, low first: 7, f, 0, 0, 1, 2, f, 8; with sign 7, −1, 0, 0, 1, 2, −1, −8.
    let word = 0x8f21_00f7u32.to_le_bytes();
    let case = |signs: &str, expected: i32| {
        let ops =
            format!("%c = vector.constant 1 : vector<1xi32>\n%r = vector.dot8i4<{signs}> %x, %x, %c : vector<1xi32>");
        assert_eq!(i32s(on(&word, "i32", &ops, "i32", 1)), [expected], "{signs}");
    };
    case("s4s4", 1 + 49 + 1 + 1 + 4 + 1 + 64);
    case("u4u4", 1 + 49 + 225 + 1 + 4 + 225 + 64);
    case("u4s4", 1 + 49 - 15 + 1 + 4 - 15 - 64);
    case("s4u4", 1 + 49 - 15 + 1 + 4 - 15 - 64);
}

#[test]
fn packed_float_dots() {
    // 2^-11 is lost beside 1 in f16, not in f32: each product is exact, each sum rounded once.
    let a: Vec<u8> = [1.0f32, 2048.0, 3.0, -0.5].iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
    let ops = "%c = vector.constant 0.25 : vector<2xf32>\n%r = vector.dot2f %x, %x, %c : vector<4xf16>, vector<4xf16>, vector<2xf32>";
    assert_eq!(f32s(on(&a, "f16", ops, "f32", 2)), [4_194_305.25f32.mul_add(1.0, 0.0), 9.5]);
    let a: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
    let ops = "%c = vector.constant -6.25 : vector<1xf32>\n%r = vector.dot2f %x, %x, %c : vector<2xbf16>, vector<2xbf16>, vector<1xf32>";
    assert_eq!(f32s(on(&a, "bf16", ops, "f32", 1)), [0.0]);
    // The order shows: (2^24 + 1) + 1 stays 2^24, 2^24 + 2 would not.
    let a: Vec<u8> = [1.0f32, 1.0].iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
    let ops = "%c = vector.constant 16777216.0 : vector<1xf32>\n%r = vector.dot2f %x, %x, %c : vector<2xf16>, vector<2xf16>, vector<1xf32>";
    assert_eq!(f32s(on(&a, "f16", ops, "f32", 1)), [16777216.0]);
    // E4M3: 0x38 = 1, 0xc0 = −2, 0x7e = 448, 0x01 = 2^-9. E5M2: 0x3c = 1, 0xc0 = −2, 0x7b = 57344, 0x01 = 2^-16.
    let words = [0x01_7e_c0_38u32, 0x01_7b_c0_3c].map(|word| word as i32);
    let case = |formats: &str, a: usize, b: usize, expected: f32| {
        let ops = format!(
            "%a = vector.slice %x[{a}] : vector<2xi32> -> vector<1xi32>\n%b2 = vector.slice %x[{b}] : vector<2xi32> -> vector<1xi32>\n\
             %c = vector.constant 1.0 : vector<1xf32>\n\
             %r = vector.dot4f8<{formats}> %a, %b2, %c : vector<1xi32>, vector<1xf32>"
        );
        assert_eq!(f32s(on(&le32(&words), "i32", &ops, "f32", 1)), [expected], "{formats}");
    };
    case("fp8fp8", 0, 0, (1.0 + 1.0 + 4.0 + 448.0 * 448.0) + 2f32.powi(-18));
    case("fp8bf8", 0, 1, (1.0 + 1.0 + 4.0 + 448.0 * 57344.0) + 2f32.powi(-25));
    case("bf8fp8", 1, 0, (1.0 + 1.0 + 4.0 + 448.0 * 57344.0) + 2f32.powi(-25));
    case("bf8bf8", 1, 1, 57344f32.mul_add(57344.0, 6.0));
}

#[test]
fn dotf_is_a_chain_of_fused_products() {
    let e = f32::EPSILON;
    let x = lef(&[1.0 + e, 1.0, 1.0 - e, 1.0]);
    for flags in ["", "<reassoc|contract>", "<fast>"] {
        let ops = format!(
            "%a = vector.slice %x[0] : vector<4xf32> -> vector<2xf32>\n%b2 = vector.slice %x[2] : vector<4xf32> -> vector<2xf32>\n\
             %c = scalar.constant -1.0 : f32\n%s = vector.dotf{flags} %a, %b2, %c : vector<2xf32>, vector<2xf32>, f32\n%r = vector.splat %s : vector<1xf32>"
        );
        // The first product alone would round to 1.
        assert_eq!(f32s(on(&x, "f32", &ops, "f32", 1)), [(-e * e) + 1.0], "{flags}");
    }
    let x: Vec<u8> = [3.0f64, 0.1].iter().flat_map(|x| x.to_le_bytes()).collect();
    let ops = "%c = scalar.constant 1.0 : f64\n%s = vector.dotf %x, %x, %c : vector<2xf64>, vector<2xf64>, f64\n%r = vector.splat %s : vector<1xf64>";
    assert_eq!(on(&x, "f64", ops, "f64", 1), 0.1f64.mul_add(0.1, 10.0).to_le_bytes());
}

#[test]
fn bit_fields() {
    let x = [0b1011_0100u8, 0x0f, 0xf0];
    let case = |ops: &str, expected: &[i32]| assert_eq!(i32s(on(&x, "i8", ops, "i32", 3)), expected, "{ops}");
    case("%r = vector.bitfield.extractu %x {offset = 2, width = 3} : vector<3xi8> -> vector<3xi32>", &[5, 3, 4]);
    case("%r = vector.bitfield.extracts %x {offset = 2, width = 3} : vector<3xi8> -> vector<3xi32>", &[-3, 3, -4]);
    case("%r = vector.bitfield.extractu %x {offset = 0, width = 8} : vector<3xi8> -> vector<3xi32>", &[0xb4, 15, 0xf0]);
    case("%r = vector.bitfield.extracts %x {offset = 4, width = 4} : vector<3xi8> -> vector<3xi32>", &[-5, 0, -1]);
    let ops = "%f = vector.constant -1 : vector<3xi32>\n%r = vector.bitfield.insert %f into %x {offset = 1, width = 2} : vector<3xi32>, vector<3xi8>";
    assert_eq!(on(&x, "i8", ops, "i8", 3), [0b1011_0110, 0x0f, 0xf6]);
    let ops = "%f = vector.constant 4 : vector<3xi32>\n%r = vector.bitfield.insert %f into %x {offset = 0, width = 4} : vector<3xi32>, vector<3xi8>";
    assert_eq!(on(&x, "i8", ops, "i8", 3), [0xb4, 0x04, 0xf4]);
    let ops = "%a = vector.extract %x[0] : vector<3xi8> -> i8\n%w = scalar.bitfield.extractu %a {offset = 4, width = 4} : i8 -> i32\n\
               %c = scalar.constant 0 : i32\n%d = scalar.bitfield.insert %w into %c {offset = 28, width = 4} : i32, i32\n%r = vector.splat %d : vector<1xi32>";
    assert_eq!(i32s(on(&x, "i8", ops, "i32", 1)), [0xb000_0000u32 as i32]);
}

#[test]
fn bit_streams() {
    let x = [0x21u8, 0x43, 0xf5];
    let ops = "%r = vector.bitunpacku<4> %x : vector<3xi8> -> vector<6xi8>";
    assert_eq!(on(&x, "i8", ops, "i8", 6), [1, 2, 3, 4, 5, 15]);
    let ops = "%r = vector.bitunpacks<4> %x : vector<3xi8> -> vector<6xi8>";
    assert_eq!(on(&x, "i8", ops, "i8", 6), [1, 2, 3, 4, 5, 0xff]);
    let ops = "%r = vector.bitunpacks<4> %x : vector<3xi8> -> vector<6xi32>";
    assert_eq!(i32s(on(&x, "i8", ops, "i32", 6)), [1, 2, 3, 4, 5, -1]);
    // Fields of six bits lie across bytes: 0xf54321 from its lowest bit on.
    let fields = [0x21, 0xc, 0x14, 0x3d];
    let ops = "%r = vector.bitunpacku<6> %x : vector<3xi8> -> vector<4xi32>";
    assert_eq!(i32s(on(&x, "i8", ops, "i32", 4)), fields);
    let ops = "%f = vector.bitunpacku<6> %x : vector<3xi8> -> vector<4xi32>\n%r = vector.bitpack<6> %f : vector<4xi32> -> vector<3xi8>";
    assert_eq!(on(&x, "i8", ops, "i8", 3), x);
    // Wider than a byte: three fields of eight from one of 24, and back.
    let ops = "%f = vector.bitunpacku<12> %x : vector<3xi8> -> vector<2xi16>\n%r = vector.bitpack<12> %f : vector<2xi16> -> vector<3xi8>";
    assert_eq!(on(&x, "i8", ops, "i8", 3), x);
    // What a field has above its bits is not packed.
    let ops = "%r = vector.bitpack<4> %x : vector<3xi8> -> vector<3xi4>".replace("vector<3xi4>", "vector<1xi8>");
    let ops = format!(
        "%w = vector.slice %x[1] : vector<3xi8> -> vector<2xi8>\n{}",
        ops.replace("%x : vector<3xi8>", "%w : vector<2xi8>")
    );
    assert_eq!(on(&x, "i8", &ops, "i8", 1), [0x53]);
    // Lanes of other widths, lane 0 lowest.
    let words = le32(&[0x0403_0201, -2]);
    let ops = "%r = vector.bitcast %x : vector<2xi32> to vector<8xi8>";
    assert_eq!(on(&words, "i32", ops, "i8", 8), words);
    let ops = "%b2 = vector.bitcast %x : vector<2xi32> to vector<8xi8>\n%r = vector.bitcast %b2 : vector<8xi8> to vector<1xi64>";
    assert_eq!(on(&words, "i32", ops, "i64", 1), words);
    let ops = "%b2 = vector.bitcast %x : vector<2xi32> to vector<4xf16>\n%r = vector.bitcast %b2 : vector<4xf16> to vector<2xf32>";
    assert_eq!(on(&words, "i32", ops, "f32", 2), words);
    let ops = "%m = vector.bitcast %x : vector<2xi32> to vector<64xi1>\n%r = vector.bitcast %m : vector<64xi1> to vector<8xi8>";
    assert_eq!(on(&words, "i32", ops, "i8", 8), words);
}

#[test]
fn tables() {
    // Five entries: not a power of two.
    let table = lef(&[0.5, -1.0, 3.0, f32::INFINITY, 7.0, 0.0, 0.0, 0.0]);
    let ops = "%t = vector.slice %x[0] : vector<8xf32> -> vector<5xf32>\n%b0 = scalar.constant 4 : i8\n%s0 = scalar.constant -1 : i8\n\
               %idx = vector.iota %b0 step %s0 : vector<5xi8>\n%r = vector.table.lookup %t[%idx] : vector<5xf32>, vector<5xi8> -> vector<5xf32>";
    assert_eq!(f32s(on(&table, "f32", ops, "f32", 5)), [7.0, f32::INFINITY, 3.0, -1.0, 0.5]);
    // Out of range: any entry or zero, and no fault.
    let ops = "%t = vector.slice %x[0] : vector<8xf32> -> vector<5xf32>\n%idx = vector.constant -1 : vector<2xi32>\n\
               %r = vector.table.lookup %t[%idx] : vector<5xf32>, vector<2xi32> -> vector<2xf32>";
    assert_eq!(on(&table, "f32", ops, "f32", 2).len(), 8);
    let x = lef(&[-5.0, 1.0, 1.5, 2.0, 9.0, f32::NAN]);
    let thresholds = "%t0 = scalar.constant 1.0 : f32\n%t1 = scalar.constant 2.0 : f32\n%t = vector.from_elements %t0, %t1 : vector<2xf32>\n";
    for (attributes, expected) in [
        ("{nan = zero, tie = lower}", [0u8, 0, 1, 1, 2, 0]),
        ("{nan = max, tie = lower}", [0, 0, 1, 1, 2, 2]),
        ("{nan = zero, tie = upper}", [0, 1, 1, 2, 2, 0]),
        ("{tie = upper, nan = max}", [0, 1, 1, 2, 2, 2]),
    ] {
        let ops = format!(
            "{thresholds}%r = vector.table.quantize %x, %t {attributes} : vector<6xf32>, vector<2xf32> -> vector<6xi8>"
        );
        assert_eq!(on(&x, "f32", &ops, "i8", 6), expected, "{attributes}");
    }
}

#[test]
fn reductions_along_axes() {
    let x = le32(&[1, 2, 3, 4, 5, 6]);
    let block = "%p = vector.slice %x[0] : vector<6xi32> -> vector<3xi32>\n%q = vector.slice %x[3] : vector<6xi32> -> vector<3xi32>\n\
                 %z = vector.constant 0 : vector<2x3xi32>\n%m0 = vector.insert %p into %z[0] : vector<3xi32>, vector<2x3xi32>\n\
                 %m = vector.insert %q into %m0[1] : vector<3xi32>, vector<2x3xi32>\n";
    let ops = format!(
        "{block}%c = vector.constant 100 : vector<3xi32>\n%r = vector.reduce.axes<addi> %m, %c axes [0] : vector<2x3xi32>, vector<3xi32>"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 3)), [105, 107, 109]);
    let ops = format!(
        "{block}%c = vector.constant 10 : vector<2xi32>\n%r = vector.reduce.axes<muli> %m, %c axes [1] : vector<2x3xi32>, vector<2xi32>"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 2)), [60, 1200]);
    let ops = format!(
        "{block}%c = scalar.constant 1 : i32\n%s = vector.reduce.axes<maxsi> %m, %c axes [0, 1] : vector<2x3xi32>, i32\n%r = vector.splat %s : vector<1xi32>"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 1)), [6]);
    // The order shows: 1e8, then 1, then −1e8 ascending loses the 1.
    let x = lef(&[1e8, 1.0, -1e8]);
    let ops = "%t = vector.broadcast %x : vector<3xf32> -> vector<1x3xf32>\n%c = vector.constant 0.0 : vector<1xf32>\n%r = vector.reduce.axes<addf> %t, %c axes [1] : vector<1x3xf32>, vector<1xf32>";
    assert_eq!(f32s(on(&x, "f32", ops, "f32", 1)), [0.0]);
}

#[test]
fn lanes_anywhere_in_memory() {
    let x = le32(&[10, 11, 12, 13, 14, 15, 16, 17]);
    let offsets = "%o0 = index.constant -2 : index\n%o1 = index.constant 3 : index\n%o2 = index.constant 0 : index\n\
                   %idx = vector.from_elements %o0, %o1, %o2 : vector<3xindex>\n";
    let ops = format!("{offsets}%r = vector.gather %in[4][%idx] : view<8xi32>, vector<3xindex> -> vector<3xi32>");
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 3)), [12, 17, 14]);
    let mask = "%t = scalar.constant true : i1\n%f = scalar.constant false : i1\n%m = vector.from_elements %t, %f, %t : vector<3xi1>\n%p = vector.constant -1 : vector<3xi32>\n";
    // A lane that is off may lie anywhere.
    let far = offsets.replace("constant 3", "constant 1000000");
    let ops = format!(
        "{far}{mask}%r = vector.gather.mask %in[4][%idx], %m, %p {{cache_scope = device}} : view<8xi32>, vector<3xindex>, vector<3xi1>, vector<3xi32>"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 3)), [12, -1, 14]);
    // Masks and offsets that the item decides.
    let lanes = "%k = vector.constant 4 : vector<8xi32>\n%w = vector.constant 12 : vector<8xi32>\n%m = vector.cmpi sgt, %x, %w : vector<8xi32> -> vector<8xi1>\n\
                 %c10 = vector.constant 10 : vector<8xi32>\n%d = vector.subi %x, %c10 : vector<8xi32>\n%n = vector.xori %d, %k : vector<8xi32>\n%p = vector.constant 7 : vector<8xi32>\n";
    let ops = format!(
        "{lanes}%r = vector.gather.mask %in[0][%n], %m, %p : view<8xi32>, vector<8xi32>, vector<8xi1>, vector<8xi32> -> vector<8xi32>"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 8)), [7, 7, 7, 17, 10, 11, 12, 13]);
    let read = "\n%r = vector.load %in[0] : view<8xi32> -> vector<8xi32>";
    let ops = format!(
        "{offsets}%v = vector.slice %x[0] : vector<8xi32> -> vector<3xi32>\nvector.scatter %v, %in[4][%idx] : vector<3xi32>, view<8xi32>, vector<3xindex>{read}"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 8)), [10, 11, 10, 13, 12, 15, 16, 11]);
    let ops = format!(
        "{far}{mask}%v = vector.slice %x[0] : vector<8xi32> -> vector<3xi32>\nvector.scatter.mask %v, %in[4][%idx], %m : vector<3xi32>, view<8xi32>, vector<3xindex>, vector<3xi1>{read}"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 8)), [10, 11, 10, 13, 12, 15, 16, 17]);
    // Active lanes lie one behind the other: lanes 3 to 7 of `%m`.
    let ops = format!("{lanes}%r = vector.load.expand %in[1], %m, %p : view<8xi32>, vector<8xi1>, vector<8xi32>");
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 8)), [7, 7, 7, 11, 12, 13, 14, 15]);
    let ops = format!("{lanes}vector.store.compress %d, %in[2], %m : vector<8xi32>, view<8xi32>, vector<8xi1>{read}");
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 8)), [10, 11, 3, 4, 5, 6, 7, 17]);
    // Along the last axis of a strided view: column steps of two elements.
    let view = "%l = encoding.layout.strided [4, 2] : encoding<layout>\n%s = buffer.view %b[%start] : buffer -> view<2x2xi32, %l>\n";
    let ops = format!(
        "{view}{offsets}%one2 = vector.constant 1 : vector<2xindex>\n%r = vector.gather %s[1, 0][%one2] : view<2x2xi32, %l>, vector<2xindex> -> vector<2xi32>"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 2)), [16, 16]);
    // Two rows at once, each where the view's own stride has it.
    let ops = format!(
        "{view}%q = vector.load %s[0, 0] : view<2x2xi32, %l> -> vector<2x2xi32>\n%t = vector.transpose<[1, 0]> %q : vector<2x2xi32> -> vector<2x2xi32>\n%r = vector.extract %t[0] : vector<2x2xi32> -> vector<2xi32>"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 2)), [10, 14]);
}

/// A lane that is off touches no memory, so that neither the lanes nor where the first one lies need be inside the view.
#[test]
fn masked_lanes_may_lie_outside_their_view() {
    let x = le32(&[10, 11, 12, 13]);
    let mask = |lo: i64, hi: i64| {
        format!(
            "%lo = index.constant {lo} : index\n%hi = index.constant {hi} : index\n%st = index.constant 1 : index\n\
             %m = vector.mask.range [%lo to %hi step %st] : index -> vector<6xi1>\n%p = vector.constant -1 : vector<6xi32>\n"
        )
    };
    let load = "%r = vector.load.mask %in[AT], %m, %p : view<4xi32>, vector<6xi1>, vector<6xi32>";
    let ops = mask(0, 4) + &load.replace("AT", "0");
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 6)), [10, 11, 12, 13, -1, -1]);
    // The two before the view are off, as around an edge.
    let ends = mask(0, 6)
        + "%two = index.constant 2 : index\n%n0 = vector.mask.range [%lo to %two step %st] : index -> vector<6xi1>\n\
                             %m0 = vector.xori %m, %n0 : vector<6xi1>\n";
    let ops = ends.clone() + &load.replace("AT", "-2").replace("%m", "%m0");
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 6)), [-1, -1, 10, 11, 12, 13]);
    let ops = mask(0, 0) + &load.replace("AT", "9");
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 6)), [-1; 6]);
    let read = "\n%r = vector.load %in[0] : view<4xi32> -> vector<4xi32>";
    let store = "vector.store.mask %p, %in[AT], %m : vector<6xi32>, view<4xi32>, vector<6xi1>";
    let ops = mask(0, 2) + &store.replace("AT", "2") + read;
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 4)), [10, 11, -1, -1]);
    let ops = ends + &store.replace("AT", "-2").replace("%m", "%m0") + read;
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 4)), [-1; 4]);
    // Nor need the place that offsets are counted from.
    let offsets = "%o0 = index.constant 5 : index\n%o1 = index.constant 7 : index\n\
                   %idx = vector.from_elements %o0, %o1 : vector<2xindex>\n";
    let ops = format!("{offsets}%r = vector.gather %in[-4][%idx] : view<4xi32>, vector<2xindex> -> vector<2xi32>");
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 2)), [11, 13]);
    let ops = format!(
        "{offsets}%v = vector.constant 5 : vector<2xi32>\n\
         vector.atomic.reduce<addi> %v, %in[-4][%idx] {{ordering = relaxed, scope = device}} : vector<2xi32>, view<4xi32>, vector<2xindex>{read}"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 4)), [10, 16, 12, 18]);
    let ops = mask(0, 0) + &load.replace("load.mask", "load.expand").replace("AT", "4");
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 6)), [-1; 6]);
}

/// A step past the end of the numbers ends a loop, however its counter is kept: one for all items, a line, or one each.
#[test]
fn loops_end_where_numbers_end() {
    const MAX: i64 = i64::MAX;
    let counted = "%none = scalar.constant 0 : i64\n%unit = scalar.constant 1 : i64\n\
                   %s = scf.for %k = [%low to %high step %step](%n = %none : i64) -> (i64) {\n\
                   %m = scalar.addi %n, %unit : i64\nscf.yield %m : i64\n}\n%r = vector.splat %s : vector<1xi64>";
    let bounds = [
        (MAX - 1, MAX, 2),
        (MAX - 5, MAX, 3),
        (MAX - 40, MAX - 1, 30),
        (i64::MIN, MAX, MAX),
        (i64::MIN, MAX, 1 << 62),
        (i64::MIN, i64::MIN + 4, 2),
        (0, MAX, MAX),
        (MAX, MAX, 1),
        (5, -5, 1),
        (0, 10, MAX),
    ];
    for (low, high, step) in bounds {
        let turns = if low < high { ((high as i128 - low as i128) as u128).div_ceil(step as u128) as i64 } else { 0 };
        let x: Vec<u8> = [low, high, step].iter().flat_map(|bound| bound.to_le_bytes()).collect();
        let given = |name: &str, at: usize| {
            format!(
                "%{name}6 = vector.extract %x[{at}] : vector<3xi64> -> i64\n%{name} = index.cast %{name}6 : i64 to index\n"
            )
        };
        let written = |name: &str, bound: i64| format!("%{name} = index.constant {bound} : index\n");
        // Away from the end of the numbers that is near.
        let op = if low > 0 { "sub" } else { "add" };
        let lines = written("from", low) + &format!("%low = index.{op} %from, %i : index\n");
        for head in [
            given("low", 0) + &given("high", 1) + &given("step", 2),
            written("low", low) + &written("high", high) + &written("step", step),
            lines.clone() + &written("high", high) + &written("step", step),
            lines + &given("high", 1) + &written("step", step),
            written("low", low) + &given("high", 1) + &written("step", step),
        ] {
            let found = on(&x, "i64", &(head.clone() + counted), "i64", 1);
            assert_eq!(i64::from_le_bytes(found.try_into().unwrap()), turns, "{low} to {high} by {step}:\n{head}");
        }
    }
}

#[test]
fn vectors_at_any_byte() {
    let x: Vec<u8> = (0..12).collect();
    let odd = "%k = index.constant 3 : offset\n%p = index.add %start, %k : offset\n%w = buffer.view %b[%p] : buffer -> view<2xi32>\n";
    let ops = format!("{odd}%r = vector.load %w[0] : view<2xi32> -> vector<2xi32>");
    assert_eq!(on(&x, "i8", &ops, "i32", 2), [3, 4, 5, 6, 7, 8, 9, 10]);
    let ops = format!(
        "{odd}%c = vector.constant -1 : vector<2xi32>\nvector.store<volatile> %c, %w[0] {{cache_temporal = non_temporal}} : vector<2xi32>, view<2xi32>\n%r = vector.load<volatile> %in[0] : view<12xi8> -> vector<12xi8>"
    );
    assert_eq!(on(&x, "i8", &ops, "i8", 12), [0, 1, 2, 255, 255, 255, 255, 255, 255, 255, 255, 11]);
}

#[test]
fn lanes_chosen_at_run_time() {
    let x = le32(&[1, 5, 2, 7, 0, 9]);
    let at = "%e = vector.extract %x[2] : vector<6xi32> -> i32\n%j = index.cast %e : i32 to index\n%e0 = vector.extract %x[0] : vector<6xi32> -> i32\n%k = index.cast %e0 : i32 to index\n";
    let block = "%b0 = vector.slice %x[0] : vector<6xi32> -> vector<3xi32>\n%b1 = vector.slice %x[3] : vector<6xi32> -> vector<3xi32>\n%z = vector.constant 0 : vector<2x3xi32>\n\
                 %m0 = vector.insert %b0 into %z[0] : vector<3xi32>, vector<2x3xi32>\n%m = vector.insert %b1 into %m0[1] : vector<3xi32>, vector<2x3xi32>\n";
    let case = |ops: &str, lanes: usize, expected: &[i32]| {
        assert_eq!(i32s(on(&x, "i32", &format!("{at}{block}{ops}"), "i32", lanes)), expected, "{ops}");
    };
    case("%s = vector.extract %x[%j] : vector<6xi32> -> i32\n%r = vector.splat %s : vector<1xi32>", 1, &[2]);
    case("%s = vector.extract %m[%k, %j] : vector<2x3xi32> -> i32\n%r = vector.splat %s : vector<1xi32>", 1, &[9]);
    case("%s = vector.extract %m[%k, 0] : vector<2x3xi32> -> i32\n%r = vector.splat %s : vector<1xi32>", 1, &[7]);
    case("%s = vector.extract %m[1, %k] : vector<2x3xi32> -> i32\n%r = vector.splat %s : vector<1xi32>", 1, &[0]);
    case("%r = vector.extract %m[%k] : vector<2x3xi32> -> vector<3xi32>", 3, &[7, 0, 9]);
    case(
        "%n = vector.insert %e into %m[%k, %k] : i32, vector<2x3xi32>\n%r = vector.extract %n[1] : vector<2x3xi32> -> vector<3xi32>",
        3,
        &[7, 2, 9],
    );
    case(
        "%n = vector.insert %b0 into %m[%k] : vector<3xi32>, vector<2x3xi32>\n%r = vector.extract %n[1] : vector<2x3xi32> -> vector<3xi32>",
        3,
        &[1, 5, 2],
    );
}

#[test]
fn empty_vectors_and_iotas() {
    let x = le32(&[3, 4]);
    let ops = "%e = vector.empty : vector<0xi32>\n%r = vector.concat<0> %e, %x : vector<0xi32>, vector<2xi32> -> vector<2xi32>";
    assert_eq!(i32s(on(&x, "i32", ops, "i32", 2)), [3, 4]);
    let ops = "%c = scalar.constant 8 : i32\n%e = vector.poison : vector<0xi32>\n%s = vector.reduce<addi> %e, %c : vector<0xi32>, i32\n%r = vector.splat %s : vector<1xi32>";
    assert_eq!(i32s(on(&x, "i32", ops, "i32", 1)), [8]);
    for (element, step, expected) in [("i8", -100, [3u8, 159, 59]), ("i16", 7, [3, 10, 17]), ("i64", -1, [3, 2, 1])] {
        let ops = format!(
            "%c = scalar.constant 3 : {element}\n%s = scalar.constant {step} : {element}\n%v = vector.iota %c step %s : vector<3x{element}>\n{}",
            if element == "i8" {
                "%z1 = vector.constant 0 : vector<3xi8>\n%r = vector.ori %v, %z1 : vector<3xi8>".to_owned()
            } else {
                format!("%r = vector.trunci %v : vector<3x{element}> to vector<3xi8>")
            }
        );
        assert_eq!(on(&x, "i32", &ops, "i8", 3), expected, "{element}");
    }
    for element in ["index", "offset"] {
        let ops = format!(
            "%c = index.constant 3 : {element}\n%s = index.constant 5 : {element}\n%v = vector.iota %c step %s : vector<3x{element}>\n%y = vector.extract %v[2] : vector<3x{element}> -> {element}\n%w = index.cast %y : {element} to i32\n%r = vector.splat %w : vector<1xi32>"
        );
        assert_eq!(i32s(on(&x, "i32", &ops, "i32", 1)), [13], "{element}");
    }
}

#[test]
fn interleaving_on_any_axis() {
    let x = le32(&[0, 1, 2, 3, 10, 11, 12, 13]);
    let block = |name: &str, at: usize| {
        format!(
            "%{name}p = vector.slice %x[{at}] : vector<8xi32> -> vector<2xi32>\n%{name}q = vector.slice %x[{}] : vector<8xi32> -> vector<2xi32>\n\
             %{name}z = vector.constant 0 : vector<2x2xi32>\n%{name}0 = vector.insert %{name}p into %{name}z[0] : vector<2xi32>, vector<2x2xi32>\n\
             %{name} = vector.insert %{name}q into %{name}0[1] : vector<2xi32>, vector<2x2xi32>\n",
            at + 2
        )
    };
    let both = block("a", 0) + &block("c", 4);
    let ops = format!(
        "{both}%v = vector.interleave<0> %a, %c : vector<2x2xi32>, vector<2x2xi32> -> vector<4x2xi32>\n%r = vector.extract %v[1] : vector<4x2xi32> -> vector<2xi32>"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 2)), [10, 11]);
    let ops = format!(
        "{both}%v = vector.interleave<1> %a, %c : vector<2x2xi32>, vector<2x2xi32> -> vector<2x4xi32>\n%r = vector.extract %v[1] : vector<2x4xi32> -> vector<4xi32>"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 4)), [2, 12, 3, 13]);
    let ops = format!(
        "{both}%even, %odd = vector.deinterleave<1> %c : vector<2x2xi32> -> vector<2x1xi32>, vector<2x1xi32>\n%t = vector.transpose<[1, 0]> %odd : vector<2x1xi32> -> vector<1x2xi32>\n%r = vector.extract %t[0] : vector<1x2xi32> -> vector<2xi32>"
    );
    assert_eq!(i32s(on(&x, "i32", &ops, "i32", 2)), [11, 13]);
}

#[test]
fn storages_as_such() {
    let x = le32(&[1]);
    // One item binds 4 bytes, many bind more: so only that it is a multiple is looked at, and that of scratch exactly.
    let ops = "%len = buffer.length %b\n%four = index.constant 4 : offset\n%l = index.cast %len : offset to index\n%f = index.constant 4 : index\n%m = index.rem %l, %f : index\n\
               %least = index.cmp uge, %len, %four : offset\n%nb = index.constant 24 : offset\n%p = buffer.alloca<private> align(16) %nb : buffer\n%pl = buffer.length %p\n\
               %w0 = index.cast %m : index to i32\n%w1 = scalar.extui %least : i1 to i32\n%w2 = index.cast %pl : offset to i32\n%r = vector.from_elements %w0, %w1, %w2 : vector<3xi32>";
    assert_eq!(i32s(on(&x, "i32", ops, "i32", 3)), [0, 1, 24]);
    let ops = "%e = vector.extract %x[0] : vector<1xi32> -> i32\n%e8 = index.cast %e : i32 to offset\n%hundred = index.constant 100 : offset\n\
               %total, %o0, %o1, %o2 = buffer.pack [align(16) %hundred, align(256) %e8, %hundred] : offset\nbuffer.fence scope(system) ordering(acq_rel)\n\
               %w0 = index.cast %total : offset to i32\n%w1 = index.cast %o0 : offset to i32\n%w2 = index.cast %o1 : offset to i32\n%w3 = index.cast %o2 : offset to i32\n\
               %r = vector.from_elements %w0, %w1, %w2, %w3 : vector<4xi32>";
    assert_eq!(i32s(on(&x, "i32", ops, "i32", 4)), [512, 0, 256, 257]);
}

/// Bytes without a pattern.
fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// One block of ggml as its layout says, element by element.
fn block(name: &str, b: &[u8]) -> Vec<f32> {
    let d = half(b, 0);
    let low = |at: usize, start: usize| f32::from(if at < 16 { b[start + at] & 15 } else { b[start + at - 16] >> 4 });
    let fifth = |at: usize, start: usize| f32::from(b[start + at / 8] >> (at % 8) & 1) * 16.0;
    let groups = |at: usize| {
        let q = &b[4..16];
        if at < 4 {
            (q[at] & 63, q[at + 4] & 63)
        } else {
            (q[at + 4] & 15 | q[at - 4] >> 6 << 4, q[at + 4] >> 4 | q[at] >> 6 << 4)
        }
    };
    let k = |at: usize, code: f32| {
        let (scale, minimum) = groups(at / 32);
        d * f32::from(scale) * code - half(b, 2) * f32::from(minimum)
    };
    let wide = |at: usize, start: usize| {
        let byte = b[start + at / 64 * 32 + at % 32];
        f32::from(if at % 64 < 32 { byte & 15 } else { byte >> 4 })
    };
    match name {
        "q4_0" => (0..32).map(|at| (low(at, 2) - 8.0) * d).collect(),
        "q4_1" => (0..32).map(|at| low(at, 4) * d + half(b, 2)).collect(),
        "q5_0" => (0..32).map(|at| (low(at, 6) + fifth(at, 2) - 16.0) * d).collect(),
        "q5_1" => (0..32).map(|at| (low(at, 8) + fifth(at, 4)) * d + half(b, 2)).collect(),
        "q8_0" => (0..32).map(|at| f32::from(b[2 + at] as i8) * d).collect(),
        "q8_1" => (0..32).map(|at| f32::from(b[4 + at] as i8) * d).collect(),
        "iq4_nl" => {
            let codes = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113i8];
            (0..32).map(|at| f32::from(codes[low(at, 2) as usize]) * d).collect()
        }
        "mxfp4" => {
            let codes = [0.0f32, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];
            let scale = 2f32.powi(i32::from(b[0]) - 128);
            let number = |code: f32| codes[code as usize % 8] * if code >= 8.0 { -scale } else { scale };
            (0..32).map(|at| number(low(at, 1))).collect()
        }
        "q2_k" => {
            let two = |at: usize| f32::from(b[16 + at / 128 * 32 + at % 32] >> (at % 128 / 32 * 2) & 3);
            let (d, least) = (half(b, 80), half(b, 82));
            (0..256).map(|at| d * f32::from(b[at / 16] & 15) * two(at) - least * f32::from(b[at / 16] >> 4)).collect()
        }
        "q3_k" => {
            let q = &b[96..108];
            let scale = |at: usize| {
                let low = if at < 8 { q[at] & 15 } else { q[at - 8] >> 4 };
                f32::from(low | (q[8 + at % 4] >> (at / 4 * 2) & 3) << 4) - 32.0
            };
            let d = half(b, 108);
            let code = |at: usize| {
                let two = b[32 + at / 128 * 32 + at % 32] >> (at % 128 / 32 * 2) & 3;
                f32::from(two) - if b[at % 32] >> (at / 32) & 1 == 1 { 0.0 } else { 4.0 }
            };
            (0..256).map(|at| d * scale(at / 16) * code(at)).collect()
        }
        "q4_k" => (0..256).map(|at| k(at, wide(at, 16))).collect(),
        "q5_k" => (0..256).map(|at| k(at, wide(at, 48) + f32::from(b[16 + at % 32] >> (at / 32) & 1) * 16.0)).collect(),
        _ => {
            let d = half(b, 208);
            let mut y = vec![0.0; 256];
            for part in 0..2 {
                let (ql, qh, sc) = (&b[64 * part..], &b[128 + 32 * part..], &b[192 + 8 * part..]);
                for l in 0..32 {
                    let code = [
                        ql[l] & 15 | (qh[l] & 3) << 4,
                        ql[l + 32] & 15 | (qh[l] >> 2 & 3) << 4,
                        ql[l] >> 4 | (qh[l] >> 4 & 3) << 4,
                        ql[l + 32] >> 4 | (qh[l] >> 6) << 4,
                    ];
                    for (quarter, code) in code.into_iter().enumerate() {
                        let scale = f32::from(sc[l / 16 + 2 * quarter] as i8);
                        y[128 * part + 32 * quarter + l] = d * scale * (f32::from(code) - 32.0);
                    }
                }
            }
            y
        }
    }
}

#[test]
fn blocks_of_ggml() {
    for (name, bytes, codes, start) in [
        ("q4_0", 18, 16, 2),
        ("q4_1", 20, 16, 4),
        ("q5_0", 22, 20, 2),
        ("q5_1", 24, 20, 4),
        ("q8_0", 34, 32, 2),
        ("q8_1", 36, 32, 0),
        ("iq4_nl", 18, 16, 2),
        ("mxfp4", 17, 16, 1),
        ("q2_k", 84, 64, 0),
        ("q3_k", 110, 96, 0),
        ("q4_k", 144, 128, 16),
        ("q5_k", 176, 160, 16),
        ("q6_k", 210, 192, 0),
    ] {
        for seed in 1..4 {
            let mut b = noise(bytes, seed * 0x9e37_79b9);
            // Scales that are numbers, in f16: 0.0371.. and −1.25.
            let at = match name {
                "q6_k" => 208,
                "q3_k" => 108,
                "q2_k" => 80,
                _ => 0,
            };
            b[at..at + 2].copy_from_slice(&0x28c1u16.to_le_bytes());
            if matches!(name, "q4_1" | "q5_1" | "q2_k" | "q4_k" | "q5_k") {
                b[at + 2..at + 4].copy_from_slice(&0xbd00u16.to_le_bytes());
            }
            if name == "mxfp4" {
                b[0] = 130;
            }
            let expected = block(name, &b);
            let lanes = expected.len();
            let ops = format!(
                "%s = encoding.define #ggml.{name} : encoding<schema>\n\
                 %r = vector.decode %x using %s : vector<{bytes}xi8>, encoding<schema> -> vector<{lanes}xf32>"
            );
            let found = f32s(on(&b, "i8", &ops, "f32", lanes));
            assert_eq!(found, expected, "{name}");
            // The codes alone, the scale beside them.
            if lanes == 32 && start >= 2 {
                let (min, minimum) = if start == 4 {
                    ("%mh = vector.slice %h[1] : vector<2xf16> -> vector<1xf16>\n", ", min = %mh : vector<1xf16>")
                } else {
                    ("", "")
                };
                let halves = start / 2;
                let ops = format!(
                    "%hb = vector.slice %x[0] : vector<{bytes}xi8> -> vector<{start}xi8>\n%h = vector.bitcast %hb : vector<{start}xi8> to vector<{halves}xf16>\n{min}\
                     %sh = vector.slice %h[0] : vector<{halves}xf16> -> vector<1xf16>\n%c = vector.slice %x[{start}] : vector<{bytes}xi8> -> vector<{codes}xi8>\n\
                     %w = vector.bitcast %c : vector<{codes}xi8> to vector<{}xi32>\n%s = encoding.define #ggml.{name} : encoding<schema>\n\
                     %r = vector.decode %w using %s {{scale = %sh : vector<1xf16>{minimum}}} : vector<{}xi32>, encoding<schema> -> vector<32xf32>",
                    codes / 4,
                    codes / 4
                );
                assert_eq!(f32s(on(&b, "i8", &ops, "f32", 32)), expected, "{name}, taken apart");
            }
        }
    }
}

#[test]
fn streams_of_numbers() {
    let schema =
        |parameters: &str| format!("%s = encoding.define #encoding.operand<{parameters}> : encoding<schema>\n");
    let decode = |parameters: &str, input: &[u8], operands: &str, lanes: usize| {
        let n = input.len();
        let ops = format!(
            "{}%r = vector.decode %x using %s {operands} : vector<{n}xi8>, encoding<schema> -> vector<{lanes}xf32>",
            schema(parameters)
        );
        f32s(on(input, "i8", &ops, "f32", lanes))
    };
    assert_eq!(decode("element_format=i4", &[0x87, 0xf1], "", 4), [7.0, -8.0, 1.0, -1.0]);
    assert_eq!(decode("element_format=u4, payload_elements=4", &[0x87, 0xf1], "", 4), [7.0, 8.0, 1.0, 15.0]);
    assert_eq!(decode("element_format=i8", &[0x80, 0x7f], "", 2), [-128.0, 127.0]);
    // OCP MX, table of FP4: 0 0.5 1 1.5 2 3 4 6, and with a sign.
    let all: Vec<u8> = (0..8).map(|at| (2 * at) | ((2 * at + 1) << 4)).collect();
    let fp4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let found = decode("element_format=f4e2m1", &all, "", 16);
    assert_eq!(found[..8], fp4);
    assert_eq!(found[8..].iter().map(|x| -x).collect::<Vec<_>>(), fp4);
    // FP6: 0b011111 is 7.5 in E2M3 and 28 in E3M2, 0b000001 is 0.125 and 0.0625, 0b100001 its negative.
    let bits = (0b0_11111u32 | 0b000001 << 6 | 0b100001 << 12 | 0b001000 << 18).to_le_bytes();
    assert_eq!(decode("element_format=f6e2m3", &bits[..3], "", 4), [7.5, 0.125, -0.125, 1.0]);
    assert_eq!(decode("element_format=f6e3m2", &bits[..3], "", 4), [28.0, 0.0625, -0.0625, 0.5]);
    assert_eq!(decode("element_format=f8e4m3, rounding=finite_only", &[0x7e, 0x01], "", 2), [448.0, 2f32.powi(-9)]);
}

#[test]
fn scales_in_groups_and_exponents() {
    // Four groups of two, E8M0: 2^0, 2^1, 2^-127, NaN.
    let x = [0x11u8, 0x11, 0x11, 0x11, 127, 128, 0, 255];
    let ops = "%p = vector.slice %x[0] : vector<8xi8> -> vector<4xi8>\n%e = vector.slice %x[4] : vector<8xi8> -> vector<4xi8>\n\
               %s = encoding.define #matrix_operand<element_format=f4e2m1, scale_format=f8e8m0, scale_group_elements=2> : encoding<schema>\n\
               %r = vector.decode %p using %s {scale = %e : vector<4xi8>} : vector<4xi8>, encoding<schema> -> vector<8xf32>";
    let found = f32s(on(&x, "i8", ops, "f32", 8));
    // 2^-128 has this one bit.
    assert_eq!(found[..6], [0.5, 0.5, 1.0, 1.0, f32::from_bits(0x0020_0000), f32::from_bits(0x0020_0000)]);
    assert!(found[6].is_nan() && found[7].is_nan());
    let ops = "%p = vector.slice %x[0] : vector<8xi8> -> vector<4xi8>\n%z = scalar.constant 1.0 : f32\n%k = scalar.constant 3.0 : f32\n%m = scalar.constant 0.5 : f32\n\
               %s = encoding.define #matrix_operand<element_format=u8> : encoding<schema>\n\
               %r = vector.decode %p using %s {zero_point = %z : f32, scale = %k : f32, min = %m : f32} : vector<4xi8>, encoding<schema> -> vector<4xf32>";
    assert_eq!(f32s(on(&x, "i8", ops, "f32", 4)), [48.5; 4]);
    let ops = "%p = vector.slice %x[0] : vector<8xi8> -> vector<2xi8>\n%s = encoding.define #matrix_operand<element_format=i4> : encoding<schema>\n\
               %r = vector.decode %p using %s : vector<2xi8>, encoding<schema> -> vector<4xi16>";
    assert_eq!(on(&x, "i8", ops, "i16", 4), [1, 0, 1, 0, 1, 0, 1, 0]);
}

#[test]
fn encoding_rounds_and_saturates() {
    let x = lef(&[1.0, 1000.0, -1e9, 2.5]);
    let encode = |parameters: &str, operands: &str, ty: &str, lanes: usize| {
        let ops = format!(
            "%two = scalar.constant 2.0 : f32\n%s = encoding.define #encoding.operand<{parameters}> : encoding<schema>\n\
             %r = vector.encode %x using %s {operands} : vector<4xf32>, encoding<schema> -> vector<{lanes}x{ty}>"
        );
        on(&x, "f32", &ops, ty, lanes)
    };
    // 2.5 is 1.25 · 2: exact in both.
    assert_eq!(encode("element_format=f8e4m3", "", "i8", 4), [0x38, 0x7e, 0xfe, 0x42]);
    assert_eq!(encode("element_format=f8e5m2", "", "i32", 1), [0x3c, 0x64, 0xfc, 0x41]);
    assert_eq!(encode("element_format=f8e5m2, rounding=finite_only", "", "i8", 4), [0x3c, 0x64, 0xfb, 0x41]);
    assert_eq!(encode("element_format=i8", "", "i8", 4), [1, 127, 128, 2]);
    assert_eq!(encode("element_format=u8", "{scale = %two : f32}", "i8", 4), [0, 255, 0, 1]);
    assert_eq!(encode("element_format=i4", "", "i8", 2), [0x71, 0x28]);
    assert_eq!(encode("element_format=bf16", "", "i16", 4)[..2], [0x80, 0x3f]);
}
