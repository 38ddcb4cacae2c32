//! A plan's documentation, read literally: one seat after the other, one element after the other, nothing shared,
//! nothing planned. What every device is compared with, bit by bit.

use lanes_core::Signature;
use lanes_core::device::{Capabilities, RoundedSums};
use lanes_core::lanes::{Capacity, SeatRows};
use lanes_core::plan::{Activation, Command, Contraction, Plan, Precision, Region, Storage, StorageId};
use std::ops::Range;

/// The rows of every state: `[state][row]`, each a row's bytes.
pub type Rows = Vec<Vec<Vec<u8>>>;

/// Rows as `prepare` leaves them: zeros, and in the last the initial value.
pub fn initial_rows(signature: &Signature, capacity: Capacity) -> Rows {
    let rows = signature.states.iter().map(|spec| {
        let mut rows = vec![vec![0; spec.bytes()]; capacity.rows as usize];
        if let (Some(initial), Some(last)) = (&spec.initial, rows.last_mut()) {
            last.copy_from_slice(initial);
        }
        rows
    });
    rows.collect()
}

/// Runs one turn of a plan without resident memory. `inputs` are the stacked bytes of each port, `device` tells the order of sums;
/// returns the stacked outputs, and writes `rows`.
pub fn run(
    plan: &Plan,
    signature: &Signature,
    inputs: &[Vec<u8>],
    seats: &[SeatRows],
    rows: &mut Rows,
    device: &Capabilities,
) -> Vec<Vec<u8>> {
    run_over(plan, signature, inputs, seats, rows, &mut [], device)
}

/// [`run`] over resident memory, by binding.
pub fn run_over(
    plan: &Plan,
    signature: &Signature,
    inputs: &[Vec<u8>],
    seats: &[SeatRows],
    rows: &mut Rows,
    residents: &mut [Vec<u8>],
    device: &Capabilities,
) -> Vec<Vec<u8>> {
    let mut outputs: Vec<_> = signature.outputs.iter().map(|port| vec![0; port.bytes() * seats.len()]).collect();
    for (seat, seat_rows) in seats.iter().enumerate() {
        let mut memory: Vec<Vec<u8>> = plan
            .storages
            .iter()
            .map(|storage| match storage {
                Storage::Constant { bytes, .. } => bytes.to_vec(),
                Storage::Input { port, bytes } => inputs[*port][seat * bytes..(seat + 1) * bytes].to_vec(),
                Storage::SharedInput { port, bytes } => inputs[*port][..*bytes].to_vec(),
                Storage::Resident { binding, bytes } => residents[*binding][..*bytes].to_vec(),
                // What nobody wrote is no number that could pass for a right one.
                storage => vec![0xfe; storage.bytes()],
            })
            .collect();
        for command in &plan.commands {
            run_command(plan, command, &mut memory, seat_rows, rows, device);
        }
        for (at, storage) in plan.storages.iter().enumerate() {
            match storage {
                Storage::Output { port, bytes } => {
                    outputs[*port][seat * bytes..(seat + 1) * bytes].copy_from_slice(&memory[at]);
                }
                Storage::Resident { binding, bytes } => residents[*binding][..*bytes].copy_from_slice(&memory[at]),
                _ => {}
            }
        }
    }
    outputs
}

fn run_command(
    plan: &Plan,
    command: &Command,
    memory: &mut [Vec<u8>],
    seat: &SeatRows,
    rows: &mut Rows,
    device: &Capabilities,
) {
    let state_of = |id: StorageId| match plan.storages[id.0 as usize] {
        Storage::State { state, .. } => state,
        ref other => panic!("{other:?} is no state"),
    };
    match command {
        Command::Copy { from, to } => {
            let bytes = take(&memory[from.0.0 as usize], from.1);
            put(&mut memory[to.0.0 as usize], to.1, bytes);
        }
        Command::Fill { to, pattern } => {
            let bytes = pattern.to_le_bytes().into_iter().cycle().take(to.1.row_bytes);
            let runs = (0..to.1.rows).flat_map(|_| bytes.clone()).collect();
            put(&mut memory[to.0.0 as usize], to.1, runs);
        }
        Command::Gather { state, row, to } => {
            let bytes = take(&rows[state_of(*state)][seat.read.0 as usize], *row);
            put(&mut memory[to.0.0 as usize], to.1, bytes);
        }
        Command::Scatter { from, state, row } => {
            let bytes = take(&memory[from.0.0 as usize], from.1);
            put(&mut rows[state_of(*state)][seat.write.0 as usize], *row, bytes);
        }
        Command::Contract(contraction) => contract(contraction, memory, device),
        Command::Dispatch { label, .. } => {
            panic!("{label} is a kernel, which only its interpreter can check")
        }
    }
}

fn take(memory: &[u8], region: Region) -> Vec<u8> {
    let runs = (0..region.rows).map(|row| region.offset + row * region.stride);
    runs.flat_map(|start| memory[start..start + region.row_bytes].to_vec()).collect()
}

fn put(memory: &mut [u8], region: Region, bytes: Vec<u8>) {
    for (row, run) in bytes.chunks(region.row_bytes).enumerate() {
        let start = region.offset + row * region.stride;
        memory[start..start + region.row_bytes].copy_from_slice(run);
    }
}

fn contract(contraction: &Contraction, memory: &mut [Vec<u8>], device: &Capabilities) {
    let precision = contraction.precision;
    let sums = match (precision, device.bf16) {
        (Precision::F32, _) => device.sums,
        (Precision::Bf16, Some(RoundedSums::Chains(sums))) => sums,
        (precision, order) => panic!("{precision} operands are added as {order:?}: there is no exact reference"),
    };
    for p in 0..contraction.positions {
        let left: Vec<f32> = left(contraction, memory, p).into_iter().map(|x| precision.round(x)).collect();
        let run = sums.run(left.len());
        for n in 0..contraction.n {
            let weight = |k: usize| precision.round(contraction.weights[k * contraction.n + n]);
            let chain = |run: Range<usize>| run.fold(0f32, |sum, k| left[k].mul_add(weight(k), sum));
            let runs =
                (0..left.len()).step_by(run).map(|start| chain(start..left.len().min(start.saturating_add(run))));
            let mut sum = runs.reduce(|sum, run| sum + run).unwrap_or(0.0);
            if let Some(bias) = &contraction.bias {
                sum += bias[n];
            }
            let result = match contraction.activation {
                Activation::None => sum,
                // max(x, 0), NaN staying NaN.
                Activation::Relu if sum <= 0.0 => 0.0,
                Activation::Relu => sum,
                other => panic!("{other:?} has no exact reference"),
            };
            let at = (contraction.out_offset + p * contraction.out_position_stride + n) * 4;
            memory[contraction.out.0 as usize][at..at + 4].copy_from_slice(&result.to_le_bytes());
        }
    }
}

/// The left operand of one position: K values, not rounded.
pub fn left(contraction: &Contraction, memory: &[Vec<u8>], position: usize) -> Vec<f32> {
    let mut left = Vec::new();
    for term in &contraction.terms {
        let memory = &memory[term.storage.0 as usize];
        for t in 0..term.taps {
            for c in 0..term.tap_len {
                let at = (term.offset + position * term.position_stride + t * term.tap_stride + c) * 4;
                left.push(f32::from_le_bytes([memory[at], memory[at + 1], memory[at + 2], memory[at + 3]]));
            }
        }
    }
    left
}
