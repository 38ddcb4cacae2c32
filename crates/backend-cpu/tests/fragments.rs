//! Tile products and fragments: the kernels of the corpus on the tile executor, on every set of instructions, and on the
//! interpreter, against tiles worked out in plain Rust.

use std::collections::BTreeMap;

use backend_cpu::isa::Isa;
use backend_cpu::tile::{TileScratch, run_slices};
use loom_compiler::eval;
use loom_compiler::interp::{self, Argument, Limits};
use loom_compiler::types::ScalarType;
use loom_compiler::{CpuImage, Module, tile};

const CORPUS: &str = include_str!("../../tests/loom/matrix.loom");

/// Runs the kernel on everything there is; all must agree bit for bit.
#[track_caller]
fn run(text: &str, name: &str, workload: &[u64], buffers: &[Vec<u8>], scalars: &[u64]) -> Vec<Vec<u8>> {
    let kernel = Module::parse("test.loom", text).and_then(|module| module.specialise(name, &BTreeMap::new()));
    let kernel = kernel.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let geometry = kernel.launch.geometry(workload).unwrap();
    let mut expected = buffers.to_vec();
    // Scalars before buffers, in every kernel here.
    let mut arguments: Vec<Argument<'_>> = scalars.iter().map(|slot| Argument::Scalar(*slot)).collect();
    arguments.extend(expected.iter_mut().map(|bytes| Argument::Buffer(bytes)));
    interp::run(&kernel, geometry, &mut arguments, Limits::default()).unwrap();
    let image = tile::compile(&kernel).unwrap_or_else(|error| panic!("{error}"));
    let image = CpuImage::decode(&image.encode().unwrap()).unwrap();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        let mut found = buffers.to_vec();
        let mut slices: Vec<&mut [u8]> = found.iter_mut().map(Vec::as_mut_slice).collect();
        run_slices(&image, &geometry, &mut slices, scalars, &mut TileScratch::new(isa)).unwrap();
        assert!(found == expected, "{name}: {isa} and the interpreter part");
    }
    expected
}

fn pack(ty: ScalarType, values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    let bits = |value: f64| if ty.is_float() { eval::from_f64(ty, value) } else { value as i64 as u64 };
    values.into_iter().flat_map(|value| bits(value).to_le_bytes()[..ty.bytes() as usize].to_vec()).collect()
}

fn unpack(ty: ScalarType, bytes: &[u8]) -> Vec<f64> {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let number = |bits| if ty.is_float() { eval::to_f64(ty, bits) } else { eval::signed(ty, bits) as f64 };
    bytes.chunks_exact(ty.bytes() as usize).map(|bytes| number(word(bytes))).collect()
}

fn iota(count: usize) -> impl Iterator<Item = f64> {
    (0..count).map(|at| at as f64)
}

/// Small numbers without a pattern.
fn noise(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 40
    };
    (0..count).map(|_| next() as f64 / f64::from(1 << 23) - 1.0).collect()
}

const F16: ScalarType = ScalarType::F16;
const F32: ScalarType = ScalarType::F32;

#[test]
fn accumulators_lie_as_the_layout_says() {
    for (name, lanes) in [("vector_fragment_load_result", 32), ("vector_fragment_load_init_wave64", 64)] {
        let found = run(CORPUS, name, &[], &[pack(F32, iota(256)), vec![0; 1024]], &[]);
        // Slot-major: row (lanes / 16)·s + L div 16, column L mod 16.
        let expected = (0..256).map(|at| {
            let (slot, lane) = (at / lanes, at % lanes);
            f64::from(16 * (lanes / 16 * slot + lane / 16) + lane % 16)
        });
        assert_eq!(unpack(F32, &found[1]), expected.collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn operands_lie_once_in_each_group_of_lanes() {
    for part in ["load", "repack"] {
        for role in ["lhs", "rhs"] {
            for (suffix, lanes) in [("", 32), ("_wave64", 64)] {
                let name = format!("vector_fragment_{part}_{role}{suffix}");
                let found = run(CORPUS, &name, &[], &[pack(F16, iota(256)), vec![0; 2 * 16 * lanes]], &[]);
                let expected: Vec<f64> = (0..16 * lanes).map(|at| (at % 256) as f64).collect();
                assert_eq!(unpack(F16, &found[1]), expected, "{name}");
            }
        }
    }
}

/// `A·B + C` of 16-row, 16-column tiles, each sum in ascending k with one rounding to f32 a step, `depth` long.
fn product(a: &[f64], b: &[f64], c: &[f64], depth: usize) -> Vec<f64> {
    let sum = |row: usize, column: usize| {
        (0..depth).fold(c[16 * row + column] as f32, |sum, k| {
            (a[depth * row + k] as f32).mul_add(b[16 * k + column] as f32, sum)
        })
    };
    (0..256).map(|at| f64::from(sum(at / 16, at % 16))).collect()
}

#[test]
fn float_products_are_ascending_chains() {
    for (name, ty, sum) in [
        ("vector_mma_f16", F16, F32),
        ("vector_mma_bf16", ScalarType::BF16, F32),
        ("vector_mma_f16_wave64", F16, F32),
        ("vector_mma_f16_sum", F16, F16),
        ("vector_mma_f16_sum_wave64", F16, F16),
    ] {
        for seed in 1..4 {
            let [a, b] = [1, 2].map(|part| pack(ty, noise(256, 10 * seed + part)));
            let c = pack(sum, noise(256, 77 + seed));
            let wanted = product(&unpack(ty, &a), &unpack(ty, &b), &unpack(sum, &c), 16);
            let size = c.len();
            let found = run(CORPUS, name, &[], &[a, b, c, vec![0; size]], &[]);
            assert_eq!(found[3], pack(sum, wanted), "{name}");
        }
    }
}

#[test]
fn a_half_sum_is_rounded_once() {
    // Halves from 2048 on are 2 apart: were each step rounded, 2048 + 1 would be 2048 again, sixteen times.
    let a = pack(F16, [1.0; 256]);
    let b = pack(F16, [1.0; 256]);
    let c = pack(F16, [2048.0; 256]);
    for name in ["vector_mma_f16_sum", "vector_mma_f16_sum_wave64"] {
        let found = run(CORPUS, name, &[], &[a.clone(), b.clone(), c.clone(), vec![0; 512]], &[]);
        assert_eq!(unpack(F16, &found[3]), [2064.0; 256], "{name}");
    }
}

#[test]
fn integer_products_wrap_and_are_signed() {
    let i8s = |f: &dyn Fn(i64) -> i64| pack(ScalarType::I8, (0..256).map(|at| f(at) as f64));
    for name in ["vector_mma_i8", "vector_mma_i8_wave64"] {
        let a = i8s(&|at| (at * 37) % 256 - 128);
        let b = i8s(&|at| (at * at * 11) % 256 - 128);
        let [x, y] = [&a, &b].map(|bytes| unpack(ScalarType::I8, bytes));
        let found = run(CORPUS, name, &[], &[a, b, vec![0; 1024]], &[]);
        let cell = |at: usize| (0..16).map(|k| x[at / 16 * 16 + k] * y[16 * k + at % 16]).sum::<f64>();
        assert_eq!(unpack(ScalarType::I32, &found[2]), (0..256).map(cell).collect::<Vec<_>>(), "{name}");
    }
}

/// Formats by name: bits, and the number that the low bits of a word stand for.
fn number(format: &str, word: u32) -> f64 {
    match format {
        "i8" => f64::from(word as u8 as i8),
        "u8" => f64::from(word as u8),
        "i4" => f64::from(((word & 15) as i32) << 28 >> 28),
        "u4" => f64::from(word & 15),
        "f8e4m3" => eval::to_f64(ScalarType::F8E4M3, u64::from(word & 255)),
        _ => eval::to_f64(ScalarType::F8E5M2, u64::from(word & 255)),
    }
}

#[test]
fn packed_operands_hold_what_their_schema_says() {
    for (name, formats, bits, sum) in [
        ("vector_fragment_i8_u8", ["i8", "u8"], 8, ScalarType::I32),
        ("vector_fragment_i8_i8_wave64", ["i8", "i8"], 8, ScalarType::I32),
        ("vector_fragment_i4_u4", ["i4", "u4"], 4, ScalarType::I32),
        ("vector_fragment_fp8", ["f8e4m3", "f8e5m2"], 8, F32),
    ] {
        let bytes = 16 * 16 * bits / 8;
        // No NaN: its payload is nobody's business.
        let noisy = |seed| noise(bytes, seed).iter().map(|x| ((x * 128.0) as i64 as u8) & 0x77).collect::<Vec<u8>>();
        let (a, b) = (noisy(3), noisy(4));
        let element = |words: &[u8], format: &str, line: usize, k: usize| {
            let bit = (line * 16 + k) * bits;
            number(format, u32::from(words[bit / 8]) >> (bit % 8))
        };
        let cell = |at: usize| {
            (0..16).fold(0f32, |total, k| {
                let (x, y) = (element(&a, formats[0], at / 16, k), element(&b, formats[1], at % 16, k));
                (x as f32).mul_add(y as f32, total)
            })
        };
        let expected: Vec<f64> = (0..256).map(|at| f64::from(cell(at))).collect();
        let found = run(CORPUS, name, &[], &[a.clone(), b.clone(), vec![0; 1024]], &[]);
        assert_eq!(unpack(sum, &found[2]), expected, "{name}");
    }
}

#[test]
fn a_tiled_product_of_any_size() {
    for (m, n, k) in [(1, 1, 1), (16, 16, 16), (17, 5, 33), (3, 40, 16), (33, 18, 7), (16, 32, 64)] {
        let (a, b) = (pack(F16, noise(m * k, 5)), pack(F16, noise(k * n, 6)));
        let bias = pack(F32, noise(n, 7));
        let (x, y, z) = (unpack(F16, &a), unpack(F16, &b), unpack(F32, &bias));
        let cell = |at: usize| {
            let (row, column) = (at / n, at % n);
            let chain = |sum: f32, i: usize| (x[row * k + i] as f32).mul_add(y[i * n + column] as f32, sum);
            f64::from((0..k).fold(z[column] as f32, chain))
        };
        let expected = pack(F16, (0..m * n).map(cell));
        let [ml, nl, kl] = [m, n, k].map(|size| size as u64);
        let found = run(CORPUS, "tile_matmul", &[ml, nl], &[a, b, bias, vec![0; 2 * m * n]], &[ml, nl, kl]);
        assert_eq!(found[3], expected, "{m} x {n} x {k}");
    }
}

/// A deterministic source of choices.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn pick<'a>(&mut self, from: &'a [String]) -> &'a str {
        let at = self.below(from.len());
        &from[at]
    }
}

/// A kernel of a few subgroups that loads, labels, multiplies, changes and repacks tiles as `dice` fall, and stores every sum: as a
/// tile, by some of its lanes only, and slot by slot.
fn chain(dice: &mut Dice) -> String {
    let lanes = [32, 64][dice.below(2)];
    let size = [[lanes, 1, 1], [lanes / 2, 2, 1], [lanes * 2, 1, 1], [16, lanes / 16, 3]][dice.below(4)];
    let slots = 256 / lanes;
    let sum = format!("vector<{slots}xf32>");
    let mut ops = String::new();
    let [mut lhs, mut rhs, mut sums] = [const { Vec::<String>::new() }; 3];
    let views = [("%dense", "view<64x64xf16>"), ("%across", "view<64x64xf16, %turned>")];
    let load = |dice: &mut Dice, role: &str, name: &str, ty: &str| {
        let (view, view_ty) = views[dice.below(2)];
        let (row, column) = (["0", "%row", "8"][dice.below(3)], 3 * dice.below(16));
        format!("  {name} = vector.fragment.load<{role}> {view}[{row}, {column}] shape [%s, %s] : {view_ty} -> {ty}\n")
    };
    for (role, ty, to) in
        [("lhs", "vector<16xf16>", &mut lhs), ("rhs", "vector<16xf16>", &mut rhs), ("init", &sum, &mut sums)]
    {
        let name = format!("%{role}first");
        ops += &load(dice, role, &name, ty);
        to.push(name);
    }
    for step in 0..6 + dice.below(8) {
        let name = format!("%v{step}");
        match dice.below(7) {
            0 => {
                ops += &load(dice, "lhs", &name, "vector<16xf16>");
                lhs.push(name);
            }
            1 => {
                ops += &format!(
                    "  %w{step} = vector.load %dense[%line, {}] : view<64x64xf16> -> vector<16xf16>\n  \
                     {name} = vector.fragment<rhs> %w{step} shape [%s, %s] : vector<16xf16>\n",
                    dice.below(48)
                );
                rhs.push(name);
            }
            2 => {
                let (role, to) = if dice.below(2) == 0 { ("lhs", &mut lhs) } else { ("rhs", &mut rhs) };
                ops += &format!(
                    "  %n{step} = vector.mulf {}, %small : {sum}\n  {name} = vector.fragment.repack<{role}> %n{step} shape [%s, %s] : {sum} -> vector<16xf16>\n",
                    dice.pick(&sums)
                );
                to.push(name);
            }
            3 => {
                ops += &format!("  {name} = vector.addf {}, {} : {sum}\n", dice.pick(&sums), dice.pick(&sums));
                sums.push(name);
            }
            4 => {
                ops += &format!("  {name} = scf.select %low, {}, {} : {sum}\n", dice.pick(&sums), dice.pick(&sums));
                sums.push(name);
            }
            _ => {
                ops += &format!(
                    "  {name} = vector.mma {}, {}, {} : vector<16xf16>, vector<16xf16>, {sum}\n",
                    dice.pick(&lhs),
                    dice.pick(&rhs),
                    dice.pick(&sums)
                );
                sums.push(name);
            }
        }
    }
    for (at, value) in sums.iter().enumerate() {
        let block = 64 * at;
        ops += &format!(
            "  %r{at} = index.madd %sub, %s, %c{block} : index\n  \
             vector.fragment.store<result> {value}, %tiles[%r{at}, 0] shape [%s, %s] : {sum}, view<2048x16xf32>\n  \
             scf.if %low {{\n    vector.fragment.store<result> {value}, %some[%r{at}, 0] shape [%s, %s] : {sum}, view<2048x16xf16>\n  }}\n  \
             scf.if %one_sub {{\n    vector.fragment.store<result> {value}, %some[%r{at}, 0] shape [%s, %s] : {sum}, view<2048x16xf16>\n  }}\n  \
             %q{at} = index.madd %flat, %c32, %c{at}i : index\n  \
             vector.store {value}, %slots[%q{at}, 0] : {sum}, view<8192x{slots}xf32>\n"
        );
    }
    let constants: String = (0..32)
        .map(|at| {
            format!("  %c{}i = index.constant {at} : index\n  %c{} = index.constant {} : index\n", at, 64 * at, 64 * at)
        })
        .collect();
    format!(
        "amdgpu.target<gfx11-generic> @t {{subgroup_size = {lanes}}}\nkernel.def target(@t) @k() {{\n  \
         kernel.launch.config workgroups(1, 1, 1) workgroup_size({}, {}, {}) : index\n}} launch(%in: buffer, %o0: buffer, %o1: buffer, %o2: buffer) {{\n  \
         %base = index.constant 0 : offset\n  %s = index.constant 16 : index\n  %c32 = index.constant 32 : index\n{constants}  \
         %turned = encoding.layout.strided [1, 64] : encoding<layout>\n  \
         %dense = buffer.view %in[%base] : buffer -> view<64x64xf16>\n  %across = buffer.view %in[%base] : buffer -> view<64x64xf16, %turned>\n  \
         %tiles = buffer.view %o0[%base] : buffer -> view<2048x16xf32>\n  %some = buffer.view %o1[%base] : buffer -> view<2048x16xf16>\n  \
         %slots = buffer.view %o2[%base] : buffer -> view<8192x{slots}xf32>\n  %lane = kernel.subgroup.lane.id : index\n  \
         %sub = kernel.subgroup.id : index\n  %line = index.rem %lane, %s : index\n  %row = index.mul %sub, %c4i : index\n  \
         %size = index.constant {lanes} : index\n  %flat = index.madd %sub, %size, %lane : index\n  \
         %eleven = index.constant 11 : index\n  %low = index.cmp ult, %lane, %eleven : index\n  \
         %zero = index.constant 0 : index\n  %one_sub = index.cmp eq, %sub, %zero : index\n  \
         %small = vector.constant 0.0625 : {sum}\n{ops}  kernel.return\n}}\n",
        size[0], size[1], size[2]
    )
}

#[test]
fn random_chains_give_the_interpreters_bits() {
    let mut stored = 0;
    for seed in 1..=60 {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        for _ in 0..8 {
            dice.below(2);
        }
        let text = chain(&mut dice);
        let input = pack(F16, noise(64 * 64, seed));
        let found = run(&text, "k", &[], &[input, vec![0; 2048 * 64], vec![0; 2048 * 32], vec![0; 8192 * 32]], &[]);
        stored += unpack(F32, &found[1]).iter().filter(|x| **x != 0.0 && x.is_finite()).count();
    }
    assert!(stored > 60 * 256, "hardly anything was computed: {stored}");
}

#[test]
fn a_tile_past_the_end_is_a_fault_that_names_it() {
    let kernel = Module::parse("test.loom", CORPUS).unwrap().specialise("vector_mma_f16", &BTreeMap::new()).unwrap();
    let geometry = kernel.launch.geometry(&[]).unwrap();
    let image = tile::compile(&kernel).unwrap();
    for (short, op) in [(0, "vector.fragment.load"), (3, "vector.fragment.store")] {
        let mut buffers = [vec![0u8; 512], vec![0; 512], vec![0; 1024], vec![0; 1024]];
        let length = buffers[short].len() - 2;
        buffers[short].truncate(length);
        let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
        let fault =
            run_slices(&image, &geometry, &mut slices, &[], &mut TileScratch::default()).unwrap_err().to_string();
        assert!(
            fault.contains(op) && fault.ends_with(&format!("of buffer argument {short}, which has {length} bytes")),
            "{fault}"
        );
    }
}
