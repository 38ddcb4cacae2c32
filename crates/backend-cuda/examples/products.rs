//! Contractions on the first GPU: microseconds for each of twenty with weights of their own, one after the other.
//!
//! `cargo run --release -p backend-cuda --example products [f32|bf16] [ROWS …]`: a line for each K×N, a figure for each number of rows,
//! with operands of 32 bits or rounded. By the device's clock, the median of 50; what the graph of none takes (rows gathered and
//! scattered) is subtracted. Beside it in the same run belong the figures of a program that multiplies the same sizes by the vendor's
//! library: `bench/peers/gpu_beside.py`.
//!
//! `products tiles K N POSITIONS STRIDE SEATS`: one size in every tile there is, and in the one that the table has for it. A seat has POSITIONS
//! rows whose operands begin STRIDE elements apart: `tiles 387 128 4 129 64` is a convolution of three taps over 129 channels.

use backend_cuda::{CudaDevice, CudaOptions};
use lanes_core::lanes::{Capacity, LanedModel};
use lanes_core::plan::{Activation, Command, Contraction, Plan, Precision, Region, Storage, Term};
use lanes_core::planned::PlannedModel;
use lanes_core::{DType, Port, Scope, Signature, StateKind, StateSpec};
use std::error::Error;
use std::sync::Arc;

const PRODUCTS: usize = 20;
const SAMPLES: usize = 50;
const SIZES: [(usize, usize); 3] = [(256, 256), (512, 2048), (1024, 4096)];

/// What is multiplied: windows of K elements, `stride` apart.
#[derive(Clone, Copy)]
struct Size {
    k: usize,
    n: usize,
    positions: usize,
    stride: usize,
    precision: Precision,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("tiles", sizes)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        let sizes = sizes.iter().map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
        let [k, n, positions, stride, seats] = sizes[..] else { return Err("tiles K N POSITIONS STRIDE SEATS".into()) };
        return tiles(Size { k, n, positions, stride, precision: Precision::F32 }, seats as u32);
    }
    let named =
        |name: &String| [Precision::F32, Precision::Bf16].into_iter().find(|precision| precision.name() == name);
    let precision = arguments.first().and_then(named);
    if precision.is_some() {
        arguments.remove(0);
    }
    let precision = precision.unwrap_or_default();
    let given = arguments.iter().map(|rows| rows.parse()).collect::<Result<Vec<u32>, _>>()?;
    let rows = if given.is_empty() { vec![1, 8, 32, 64, 128, 512] } else { given };
    for (k, n) in SIZES {
        print!("K {k} N {n} {precision}:");
        let size = Size { k, n, positions: 1, stride: k, precision };
        for (rows, us) in rows.iter().zip(times(size, &rows, None)?) {
            print!("  {rows} rows {us:.2} µs");
        }
        println!();
    }
    Ok(())
}

fn tiles(size: Size, seats: u32) -> Result<(), Box<dyn Error>> {
    let Size { k, n, positions, .. } = size;
    let product = |tile| times(size, &[seats], tile).map(|times| times[0]);
    println!("K {k} N {n}, {positions} positions, {seats} seats: by the table {:.2} µs", product(None)?);
    for columns in [1, 2, 4] {
        for rows in [1, 2, 4, 8, 16] {
            print!("  {rows}x{columns} {:.2} µs", product(Some((rows, columns)))?);
        }
        println!();
    }
    Ok(())
}

/// Microseconds of one of [`PRODUCTS`], for each number of seats.
fn times(size: Size, seats: &[u32], tile: Option<(usize, usize)>) -> Result<Vec<f64>, Box<dyn Error>> {
    let device = Arc::new(CudaDevice::open(0, CudaOptions { tile, ..CudaOptions::default() })?);
    let model = |products| {
        let (plan, signature) = products_of(size, products);
        let mut model = PlannedModel::new(Arc::<CudaDevice>::clone(&device), plan, signature)?;
        // Its weights stay on the device from one number of seats to the next.
        model.prepare(Capacity { rows: 3, max_seats: 1 })?;
        Ok::<_, Box<dyn Error>>(model)
    };
    let [with, without] = [model(PRODUCTS)?, model(0)?];
    let median = |model: &PlannedModel, seats| {
        let mut samples = model.measure(seats, &[], SAMPLES)?.ok_or("the device has no clock")?.compute;
        samples.sort_unstable();
        let median = samples.get(samples.len() / 2).ok_or("the device does not tell commands apart")?;
        Ok::<_, Box<dyn Error>>(median.as_secs_f64() * 1e6)
    };
    seats.iter().map(|&seats| Ok((median(&with, seats)? - median(&without, seats)?) / PRODUCTS as f64)).collect()
}

/// A turn of so many products of one state.
fn products_of(size: Size, products: usize) -> (Plan, Signature) {
    let Size { k, n, positions, stride, precision } = size;
    let held = (positions - 1) * stride + k;
    let mut plan = Plan { name: "products".into(), ..Plan::default() };
    let state = plan.storage(Storage::State { state: 0, bytes: held * 4 });
    let x = plan.storage(Storage::Scratch { bytes: held * 4 });
    let y = plan.storage(Storage::Scratch { bytes: positions * n * 4 });
    let out = plan.storage(Storage::Output { port: 0, bytes: 4 });
    let whole = |bytes: usize| Region::contiguous(0, bytes);
    plan.commands.push(Command::Gather { state, row: whole(held * 4), to: (x, whole(held * 4)) });
    let mut bits = 1u32;
    let mut float = || {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (bits >> 8) as f32 / 16_777_216.0 - 0.5
    };
    for at in 0..products {
        plan.commands.push(Command::Contract(Contraction {
            label: format!("product {at}"),
            terms: vec![Term { storage: x, offset: 0, position_stride: stride, taps: 1, tap_stride: 0, tap_len: k }],
            weights: (0..k * n).map(|_| float()).collect(),
            precision,
            bias: None,
            activation: Activation::None,
            positions,
            n,
            out: y,
            out_offset: 0,
            out_position_stride: n,
        }));
    }
    let last = if products > 0 { y } else { x };
    plan.commands.push(Command::Copy { from: (last, whole(4)), to: (out, whole(4)) });
    plan.commands.push(Command::Scatter { from: (x, whole(held * 4)), state, row: whole(held * 4) });
    let signature = Signature {
        name: "products".into(),
        inputs: Vec::new(),
        outputs: vec![Port { name: "y".into(), dtype: DType::F32, shape: vec![1], scope: Scope::Seat }],
        states: vec![StateSpec {
            input: "x".into(),
            output: "x_out".into(),
            dtype: DType::F32,
            lane_shape: vec![held],
            // Zeros are multiplied faster than what is random.
            initial: Some((0..held).flat_map(|_| float().to_le_bytes()).collect()),
            kind: StateKind::Replaced,
        }],
    };
    (plan, signature)
}
