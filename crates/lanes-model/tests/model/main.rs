//! The importer and the oracle from outside: models written by `onnx::build`, expectations from closed forms.

mod hostile;
mod lanes;
mod operators;
mod plans;
mod states;

use bytes::Bytes;
use lanes_core::lanes::{Capacity, LanedModel, RowId, SeatRows};
use lanes_model::oracle::OracleModel;
use lanes_model::{ImportOptions, Model, ModelError, load_bytes};

/// Imports a model without options.
fn import(bytes: Vec<u8>) -> Result<Model, ModelError> {
    load_bytes(Bytes::from(bytes), "test", &ImportOptions::default())
}

/// Runs one turn of `seats` streams, each with its own f32 inputs by port, from the initial row; f32 outputs by seat.
fn turn(model: &Model, seats: &[Vec<Vec<f32>>]) -> Vec<Vec<Vec<f32>>> {
    let mut laned = OracleModel::new(model);
    let count = seats.len() as u32;
    let capacity = Capacity { rows: count + 1, max_seats: count };
    laned.prepare(capacity).unwrap();
    for (seat, inputs) in seats.iter().enumerate() {
        for (port, input) in inputs.iter().enumerate() {
            let bytes: &[u8] = bytemuck::cast_slice(input);
            laned.input_mut(port)[seat * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
        }
    }
    let rows: Vec<SeatRows> =
        (0..count).map(|seat| SeatRows { read: capacity.initial_row(), write: RowId(seat) }).collect();
    let mut refused = Vec::new();
    laned.run(&rows, &mut refused).unwrap();
    assert_eq!(refused, []);
    let output = |seat: usize, port: usize| {
        let bytes = model.signature.outputs[port].bytes();
        f32s(&laned.output(port)[seat * bytes..][..bytes])
    };
    (0..seats.len()).map(|seat| (0..model.signature.outputs.len()).map(|port| output(seat, port)).collect()).collect()
}

/// The f32 that `bytes` hold.
fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

/// Asserts that `found` is `wanted` to a few f32 roundings of values of its size, or of values around 0.1.
#[track_caller]
fn close(found: &[f32], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len(), "{found:?} {wanted:?}");
    for (a, e) in found.iter().zip(wanted) {
        assert!((f64::from(*a) - e).abs() <= 1e-6 * e.abs().max(0.1), "{found:?} where {wanted:?} is expected");
    }
}
