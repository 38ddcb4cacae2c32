//! Blocks of packed numbers, decoded in every form of `vector.decode`, against a plain reading of the same bytes in f64.
//!
//! The reading follows the loops of the public definition (<https://github.com/ggml-org/ggml>, `dequantize_row_*`), byte by byte
//! and group by group; the compiler goes by a list of bits for each element.

mod common;

use common::{Bound, kernel, run, single};

/// Numbers as `code · scale + least`, an entry each.
#[derive(Default)]
struct Numbers {
    codes: Vec<f64>,
    scales: Vec<f64>,
    least: Vec<f64>,
}

impl Numbers {
    fn push(&mut self, code: i32, scale: f64, least: f64) {
        self.codes.push(f64::from(code));
        self.scales.push(scale);
        self.least.push(least);
    }
}

/// A kind of blocks: its name, elements, bytes, where its codes lie, elements of a group with a scale of its own, and what the
/// `min` of such a group does (−1: is taken away, 1: is added, 0: there is none).
struct Kind {
    name: &'static str,
    elements: usize,
    bytes: usize,
    codes: std::ops::Range<usize>,
    group: usize,
    min: i32,
    read: fn(&[u8]) -> Numbers,
}

const fn kind(
    name: &'static str,
    [elements, bytes, group]: [usize; 3],
    codes: std::ops::Range<usize>,
    min: i32,
    read: fn(&[u8]) -> Numbers,
) -> Kind {
    Kind { name, elements, bytes, codes, group, min, read }
}

const KINDS: [Kind; 13] = [
    kind("q4_0", [32, 18, 32], 2..18, 0, |b| nibbles(&b[2..], None, -8, half(b, 0), 0.0)),
    kind("q4_1", [32, 20, 32], 4..20, 1, |b| nibbles(&b[4..], None, 0, half(b, 0), half(b, 2))),
    kind("q5_0", [32, 22, 32], 2..22, 0, |b| nibbles(&b[6..], Some(&b[2..6]), -16, half(b, 0), 0.0)),
    kind("q5_1", [32, 24, 32], 4..24, 1, |b| nibbles(&b[8..], Some(&b[4..8]), 0, half(b, 0), half(b, 2))),
    kind("q8_0", [32, 34, 32], 2..34, 0, |b| bytes(&b[2..], half(b, 0))),
    kind("q8_1", [32, 36, 32], 4..36, 0, |b| bytes(&b[4..], half(b, 0))),
    kind("q2_k", [256, 84, 16], 16..80, -1, q2_k),
    kind("q3_k", [256, 110, 16], 0..96, 0, q3_k),
    kind("q4_k", [256, 144, 32], 16..144, -1, |b| q4_k(b, None, &b[16..])),
    kind("q5_k", [256, 176, 32], 16..176, -1, |b| q4_k(b, Some(&b[16..48]), &b[48..])),
    kind("q6_k", [256, 210, 16], 0..192, 0, q6_k),
    kind("iq4_nl", [32, 18, 32], 2..18, 0, |b| {
        const TABLE: [i32; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
        looked_up(&b[2..], |code| f64::from(TABLE[code]), half(b, 0))
    }),
    kind("mxfp4", [32, 17, 32], 1..17, 0, |b| {
        let number =
            |code: usize| [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code % 8] * if code < 8 { 1.0 } else { -1.0 };
        looked_up(&b[1..], number, 2f64.powi(i32::from(b[0]) - 127))
    }),
];

/// The half at `bytes[at..at + 2]`; it is finite.
fn half(bytes: &[u8], at: usize) -> f64 {
    let bits = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff) / 1024.0);
    let magnitude = if exponent == 0 { fraction * 2f64.powi(-14) } else { (1.0 + fraction) * 2f64.powi(exponent - 15) };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// 16 bytes: the lower nibbles, then the upper ones; the fifth bit of element `j` is bit `j` of `high`.
fn nibbles(codes: &[u8], high: Option<&[u8]>, bias: i32, scale: f64, least: f64) -> Numbers {
    let high = high.map_or(0, |high| u32::from_le_bytes(high.try_into().unwrap()));
    let mut numbers = Numbers::default();
    for j in 0..32 {
        let nibble = if j < 16 { codes[j] & 15 } else { codes[j - 16] >> 4 };
        let fifth = (high >> j & 1) as i32 * 16;
        numbers.push(i32::from(nibble) + fifth + bias, scale, least);
    }
    numbers
}

fn bytes(codes: &[u8], scale: f64) -> Numbers {
    let mut numbers = Numbers::default();
    codes.iter().for_each(|code| numbers.push(i32::from(*code as i8), scale, 0.0));
    numbers
}

fn looked_up(codes: &[u8], number: impl Fn(usize) -> f64, scale: f64) -> Numbers {
    let low = codes.iter().map(|code| number(usize::from(code & 15)));
    let high = codes.iter().map(|code| number(usize::from(code >> 4)));
    Numbers { codes: low.chain(high).collect(), scales: vec![scale; 32], least: vec![0.0; 32] }
}

fn q2_k(block: &[u8]) -> Numbers {
    let (d, least) = (half(block, 80), half(block, 82));
    let mut numbers = Numbers::default();
    let mut group = 0;
    for half in block[16..80].chunks(32) {
        for shift in [0, 2, 4, 6] {
            for part in half.chunks(16) {
                let both = block[group];
                group += 1;
                for byte in part {
                    let scale = d * f64::from(both & 15);
                    numbers.push(i32::from(byte >> shift & 3), scale, -least * f64::from(both >> 4));
                }
            }
        }
    }
    numbers
}

fn q3_k(block: &[u8]) -> Numbers {
    let (mask, packed, d) = (&block[..32], &block[96..108], half(block, 108));
    // Sixteen scales of six bits.
    let mut scales = [0i32; 16];
    for at in 0..4 {
        let upper = packed[8 + at];
        let [a, b] = [packed[at], packed[4 + at]];
        for (which, (low, pair)) in
            [(a & 15, upper), (b & 15, upper >> 2), (a >> 4, upper >> 4), (b >> 4, upper >> 6)].into_iter().enumerate()
        {
            scales[4 * which + at] = i32::from(low | (pair & 3) << 4) - 32;
        }
    }
    let mut numbers = Numbers::default();
    let (mut group, mut bit) = (0, 1u8);
    for half in block[32..96].chunks(32) {
        for shift in [0, 2, 4, 6] {
            for (at, part) in half.chunks(16).enumerate() {
                let scale = d * f64::from(scales[group]);
                group += 1;
                for (l, byte) in part.iter().enumerate() {
                    let above = if mask[16 * at + l] & bit == 0 { 4 } else { 0 };
                    numbers.push(i32::from(byte >> shift & 3) - above, scale, 0.0);
                }
            }
            bit = bit.wrapping_shl(1);
        }
    }
    numbers
}

/// With `high`, Q5_K.
fn q4_k(block: &[u8], high: Option<&[u8]>, codes: &[u8]) -> Numbers {
    let (d, least, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    let both = |j: usize| match j {
        0..4 => (packed[j] & 63, packed[j + 4] & 63),
        _ => (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4),
    };
    let mut numbers = Numbers::default();
    for (at, part) in codes.chunks(32).enumerate() {
        for upper in [0, 1] {
            let group = 2 * at + upper;
            let (scale, minimum) = both(group);
            for (l, byte) in part.iter().enumerate() {
                let fifth = high.map_or(0, |high| i32::from(high[l] >> group & 1) * 16);
                let nibble = i32::from(if upper == 0 { byte & 15 } else { byte >> 4 });
                numbers.push(nibble + fifth, d * f64::from(scale), -least * f64::from(minimum));
            }
        }
    }
    numbers
}

fn q6_k(block: &[u8]) -> Numbers {
    let d = half(block, 208);
    let mut numbers = Numbers::default();
    for part in 0..2 {
        let (low, high) = (&block[64 * part..][..64], &block[128 + 32 * part..][..32]);
        let scales = &block[192 + 8 * part..][..8];
        for quarter in 0..4 {
            for l in 0..32 {
                let byte = low[l + 32 * (quarter % 2)];
                let nibble = if quarter < 2 { byte & 15 } else { byte >> 4 };
                let code = i32::from(nibble | (high[l] >> (2 * quarter) & 3) << 4) - 32;
                numbers.push(code, d * f64::from(scales[l / 16 + 2 * quarter] as i8), 0.0);
            }
        }
    }
    numbers
}

fn dice(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 24
}

/// Blocks of random bytes whose halves are between 1/16 and 2, of either sign.
fn some_blocks(kind: &Kind, count: usize, seed: &mut u64) -> Vec<u8> {
    let halves: &[usize] = match kind.name {
        "q4_0" | "q5_0" | "q8_0" | "q8_1" | "iq4_nl" => &[0],
        "q4_1" | "q5_1" | "q4_k" | "q5_k" => &[0, 2],
        "q2_k" => &[80, 82],
        "q3_k" => &[108],
        "q6_k" => &[208],
        _ => &[],
    };
    let mut all = Vec::new();
    for _ in 0..count {
        let mut block: Vec<u8> = (0..kind.bytes).map(|_| dice(seed) as u8).collect();
        for at in halves {
            let bits = (0x2c00 + (dice(seed) % 0x1400) as u16) | (dice(seed) as u16 & 0x8000);
            block[*at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
        if kind.name == "mxfp4" {
            block[0] = 120 + (dice(seed) % 14) as u8;
        }
        all.extend(block);
    }
    all
}

fn values_of(kind: &Kind, blocks: &[u8]) -> Vec<Numbers> {
    let all: Vec<Numbers> = blocks.chunks(kind.bytes).map(kind.read).collect();
    assert!(all.iter().all(|numbers| numbers.codes.len() == kind.elements), "{}", kind.name);
    all
}

/// Compares with what f64 gives, each within a few roundings of its largest part.
fn compare(what: &str, found: &[f64], wanted: impl Iterator<Item = (f64, f64)>, ulp: f64) {
    let mut count = 0;
    for (at, ((product, least), found)) in wanted.zip(found).enumerate() {
        let (want, slack) = (product + least, 4.0 * ulp * (product.abs() + least.abs()));
        assert!((found - want).abs() <= slack, "{what}, element {at}: {found} instead of {want}");
        count += 1;
    }
    assert_eq!(count, found.len(), "{what}");
}

fn floats(element: &str, bytes: &[u8]) -> Vec<f64> {
    match element {
        "f16" => (0..bytes.len() / 2).map(|at| half(bytes, 2 * at)).collect(),
        "f64" => bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        _ => bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
    }
}

/// Whole blocks, as they lie in memory: one or several, as bytes or words, a record or a value, to each type of results.
#[test]
fn blocks_are_decoded_as_they_lie() {
    let mut seed = 0x1234_5678_9abc_def1;
    for kind in &KINDS {
        for (count, carrier, element, named) in [
            (1, 8, "f32", true),
            (2, 8, "f32", false),
            (3, 16, "f64", true),
            (2, 32, "f16", false),
            (4, 64, "f32", true),
        ] {
            let length = count * kind.bytes;
            // Words only where the blocks fill them.
            let carrier = if (8 * length).is_multiple_of(carrier) { carrier } else { 8 };
            let (lanes, numbers) = (8 * length / carrier, count * kind.elements);
            let ty = if count == 2 { format!("2x{}x{element}", kind.elements) } else { format!("{numbers}x{element}") };
            let record = format!("#ggml.{}", kind.name);
            let (define, schema) = if named {
                (format!("%s = encoding.define {record} : encoding<schema>"), "%s".to_owned())
            } else {
                (String::new(), record)
            };
            let origin = if count == 2 { "0, 0" } else { "0" };
            let text = single(
                "%x: buffer, %o: buffer",
                &format!(
                    "  {define}
  %xv = buffer.view %x[%base] : buffer -> view<{lanes}xi{carrier}>
  %ov = buffer.view %o[%base] : buffer -> view<{ty}>
  %p = vector.load %xv[0] : view<{lanes}xi{carrier}> -> vector<{lanes}xi{carrier}>
  %v = vector.decode %p using {schema} : vector<{lanes}xi{carrier}>, encoding<schema> -> vector<{ty}>
  vector.store %v, %ov[{origin}] : vector<{ty}>, view<{ty}>"
                ),
            );
            let blocks = some_blocks(kind, count, &mut seed);
            let size = if element == "f64" { 8 } else { 4 };
            let size = if element == "f16" { 2 } else { size };
            let mut bound = [Bound::Bytes(blocks.clone()), Bound::zeros(numbers * size)];
            run(&kernel(&text, "k", &[]), &[], &mut bound).unwrap();
            let wanted = values_of(kind, &blocks);
            let wanted = wanted.iter().flat_map(|numbers| {
                let pairs = numbers.codes.iter().zip(&numbers.scales).zip(&numbers.least);
                pairs.map(|((code, scale), least)| (code * scale, *least))
            });
            let ulp = if element == "f16" { 2f64.powi(-11) } else { 2f64.powi(-24) };
            let what = format!("{} x {count} in i{carrier} to {element}", kind.name);
            compare(&what, &floats(element, bound[1].bytes()), wanted, ulp);
        }
    }
}

/// The codes alone, with scales and what is added or taken away beside them: a number, or one for each group.
#[test]
fn codes_are_decoded_with_their_scales_beside() {
    let mut seed = 0x0fed_cba9_8765_4321;
    for kind in &KINDS {
        for (count, grouped, with_min) in
            [(1, false, false), (1, true, false), (2, true, true), (3, true, false), (1, false, true)]
        {
            let numbers = count * kind.elements;
            // One scale is that of one group.
            let grouped = grouped || numbers != kind.group;
            let groups = if grouped { numbers / kind.group } else { 1 };
            // The exponents of powers of two are bytes.
            let powers = kind.name == "mxfp4";
            let with_min = with_min && kind.min != 0;
            let element = if powers { "i8" } else { "f32" };
            let scale = if grouped { format!("vector<{groups}x{element}>") } else { element.to_owned() };
            let lanes = count * kind.codes.len();
            let load = |name: &str, from: &str, element: &str| {
                if grouped {
                    format!("%{name} = vector.load %{from}[0] : view<{groups}x{element}> -> vector<{groups}x{element}>")
                } else {
                    format!("%{name} = view.load %{from}[0] : view<{groups}x{element}> -> {element}")
                }
            };
            let minimum = if with_min { format!(", min = %m : {scale}") } else { String::new() };
            let text = single(
                "%x: buffer, %s: buffer, %n: buffer, %o: buffer",
                &format!(
                    "  %xv = buffer.view %x[%base] : buffer -> view<{lanes}xi8>
  %sv = buffer.view %s[%base] : buffer -> view<{groups}x{element}>
  %nv = buffer.view %n[%base] : buffer -> view<{groups}xf32>
  %ov = buffer.view %o[%base] : buffer -> view<{numbers}xf32>
  %p = vector.load %xv[0] : view<{lanes}xi8> -> vector<{lanes}xi8>
  {}
  {}
  %v = vector.decode %p using #ggml.{} {{scale = %c : {scale}{minimum}}} : vector<{lanes}xi8>, encoding<schema> -> vector<{numbers}xf32>
  vector.store %v, %ov[0] : vector<{numbers}xf32>, view<{numbers}xf32>",
                    load("c", "sv", element),
                    load("m", "nv", "f32"),
                    kind.name
                ),
            );
            let blocks = some_blocks(kind, count, &mut seed);
            let codes = blocks.chunks(kind.bytes).flat_map(|block| block[kind.codes.clone()].to_vec()).collect();
            let bytes: Vec<u8> = (0..groups).map(|_| 110 + (dice(&mut seed) % 30) as u8).collect();
            let mut number = || (dice(&mut seed) % 4001) as f32 / 64.0 - 31.0;
            let (scales, least): (Vec<f32>, Vec<f32>) = (0..groups).map(|_| (number(), number())).unzip();
            let given = if powers { Bound::Bytes(bytes.clone()) } else { Bound::f32s(&scales) };
            let mut bound = [Bound::Bytes(codes), given, Bound::f32s(&least), Bound::zeros(4 * numbers)];
            run(&kernel(&text, "k", &[]), &[], &mut bound).unwrap();
            let read = values_of(kind, &blocks);
            let read = read.iter().flat_map(|numbers| numbers.codes.iter().copied());
            let wanted = read.enumerate().map(|(at, code)| {
                let group = if grouped { at / kind.group } else { 0 };
                let scale = if powers { 2f64.powi(i32::from(bytes[group]) - 127) } else { f64::from(scales[group]) };
                (code * scale, if with_min { f64::from(kind.min) * f64::from(least[group]) } else { 0.0 })
            });
            let what = format!("codes of {} x {count}, {groups} scales, min {with_min}", kind.name);
            compare(&what, &floats("f32", bound[3].bytes()), wanted, 2f64.powi(-24));
        }
    }
}
