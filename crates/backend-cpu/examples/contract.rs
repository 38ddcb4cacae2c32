//! How fast contractions of streaming size run on one thread: GFLOP/s, median and best of short rounds.
//!
//! `cargo run --release -p backend-cpu --example contract [-- ISA]`

use backend_cpu::contract::{OutPtr, Packed, TermPtr};
use backend_cpu::isa::Isa;
use lanes_core::plan::{Activation, Contraction, Precision, StorageId, Term};
use std::time::Instant;

/// K, N, and elements between rows of the left operand: the products of public voice-activity models and of ours.
const SHAPES: [(usize, usize, usize); 13] = [
    (256, 258, 128),
    (387, 128, 387),
    (384, 64, 384),
    (192, 64, 192),
    (192, 128, 192),
    (256, 512, 256),
    (64, 192, 64),
    (64, 64, 64),
    (43, 64, 43),
    (64, 3, 64),
    (128, 1, 128),
    (64, 1, 64),
    (1024, 1024, 1024),
];

fn main() {
    let named = std::env::args().nth(1);
    let isa = Isa::ALL.into_iter().find(|isa| Some(isa.to_string()) == named).unwrap_or_else(Isa::best);
    for precision in [Precision::F32, Precision::Bf16] {
        println!("{isa}, {precision}, GFLOP/s median (best)");
        for (k, n, row_stride) in SHAPES {
            let rows = [1, 2, 4, 8, 16, 32, 64, 128, 512];
            let line: Vec<_> = rows.map(|rows| measure(isa, precision, [rows, k, n, row_stride])).into();
            println!("{:>9}  {}", format!("{k}x{n}"), line.join("  "));
        }
    }
}

fn measure(isa: Isa, precision: Precision, [rows, k, n, row_stride]: [usize; 4]) -> String {
    let contraction = Contraction {
        label: "bench".into(),
        terms: vec![Term { storage: StorageId(0), offset: 0, position_stride: 0, taps: 1, tap_stride: k, tap_len: k }],
        weights: (0..k * n).map(|i| (i % 13) as f32 / 13.0 - 0.4).collect(),
        precision,
        bias: Some(vec![0.5; n].into()),
        activation: Activation::None,
        positions: 1,
        n,
        out: StorageId(1),
        out_offset: 0,
        out_position_stride: n,
    };
    let packed = Packed::with_isa(&contraction, isa).expect("a shape of the table, on a set this machine has");
    let left: Vec<f32> = (0..(rows - 1) * row_stride + k).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
    let mut out = vec![0.0f32; rows * n];
    let terms = [TermPtr { base: left.as_ptr(), seat_stride: row_stride }];
    let to = OutPtr { base: out.as_mut_ptr(), seat_stride: n };
    let flops = (2 * rows * k * n) as f64;
    // Short rounds: on a busy machine some of them run undisturbed.
    let repeats = (5e6 / flops).ceil() as usize;
    let mut rates: Vec<f64> = (0..31)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..repeats {
                // SAFETY: `left` and `out` hold all rows at the strides given.
                unsafe { packed.run(std::hint::black_box(&terms), rows, to) }
            }
            flops * repeats as f64 / start.elapsed().as_secs_f64() / 1e9
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    format!("m{rows} {:.0} ({:.0})", rates[rates.len() / 2], rates[rates.len() - 1])
}
