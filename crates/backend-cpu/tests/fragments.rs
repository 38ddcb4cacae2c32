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
fn run(text: &str, name: &str, config: &[(&str, &str)], buffers: &[Vec<u8>], scalars: &[u64]) -> Vec<Vec<u8>> {
    let config: BTreeMap<String, String> = config.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let kernel = Module::parse("test.loom", text).and_then(|module| module.specialise(name, &config));
    let kernel = kernel.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let geometry = kernel.launch.geometry(&[]).unwrap();
    let mut expected = buffers.to_vec();
    let mut arguments: Vec<Argument<'_>> = expected.iter_mut().map(|bytes| Argument::Buffer(bytes)).collect();
    arguments.extend(scalars.iter().map(|slot| Argument::Scalar(*slot)));
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
    // 2048 + 16·(2048/1024) = 2080; rounded after each step it would stay 2048 + 2·16 too, but 2048 + 16·1 = 2064 would not: a half
    // there is 2 apart, and 2048 + 1 rounds back to 2048.
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
