//! The oracle as a laned model: rows of host bytes, one evaluation per seat. What a faster model is checked against
//! through the same worker, and what serves a model before it is lowered.

use super::{EvalError, Evaluator};
use crate::model::Model;
use crate::tensor::Tensor;
use bytes::Bytes;
use lanes_core::device::DeviceError;
use lanes_core::lanes::{Capacity, LanedModel, Refusal, SeatRows};
use lanes_core::{Scope, Signature};
use std::sync::Arc;

/// A [`Model`] served by the [`Evaluator`], seat by seat.
#[derive(Clone, Debug)]
pub struct OracleModel {
    signature: Signature,
    evaluator: Evaluator,
    /// For each graph input, where its value comes from.
    sources: Vec<Source>,
    /// For each of the signature's outputs and states, its place among the graph's outputs.
    outputs: Vec<usize>,
    next_states: Vec<usize>,
    stacked_inputs: Vec<Vec<u8>>,
    stacked_outputs: Vec<Vec<u8>>,
    /// Rows of every state, one after the other.
    rows: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Input(usize),
    State(usize),
}

impl OracleModel {
    /// Serves `model`.
    pub fn new(model: &Model) -> Self {
        let graph = &model.graph;
        let sources = graph.inputs.iter().map(|id| {
            let port = model.inputs.iter().position(|input| input == id).map(Source::Input);
            let state = || model.states.iter().position(|state| state.input == *id).map(Source::State);
            port.or_else(state).expect("import gives every graph input a port or a state")
        });
        let place = |id| graph.outputs.iter().position(|output| *output == id).expect("ports are graph outputs");
        Self {
            signature: model.signature.clone(),
            sources: sources.collect(),
            outputs: model.outputs.iter().map(|&id| place(id)).collect(),
            next_states: model.states.iter().map(|state| place(state.output)).collect(),
            evaluator: Evaluator::new(Arc::new(graph.clone())),
            stacked_inputs: Vec::new(),
            stacked_outputs: Vec::new(),
            rows: Vec::new(),
        }
    }

    fn seat_inputs(&self, seat: usize, rows: SeatRows) -> Vec<Option<Tensor>> {
        let graph = self.evaluator.graph();
        let of = |(id, source): (&crate::ValueId, &Source)| {
            let (bytes, at) = match *source {
                Source::Input(port) => {
                    let at = if self.signature.inputs[port].scope == Scope::Turn { 0 } else { seat };
                    (&self.stacked_inputs[port], at)
                }
                Source::State(state) => (&self.rows[state], rows.read.0 as usize),
            };
            let value = graph.value(*id);
            let one = &bytes[at * value.bytes()..][..value.bytes()];
            Tensor::new(value.dtype, value.shape.clone(), Bytes::copy_from_slice(one))
        };
        graph.inputs.iter().zip(&self.sources).map(of).collect()
    }
}

impl LanedModel for OracleModel {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError> {
        let room = |what: &str, bytes: usize, count: u32| {
            let total = bytes.checked_mul(count as usize).ok_or_else(|| DeviceError::TooLarge {
                what: what.into(),
                bytes: u64::MAX,
                limit: usize::MAX as u64,
            })?;
            let mut room = Vec::new();
            room.try_reserve_exact(total)
                .map_err(|_| DeviceError::OutOfMemory { what: what.into(), asked: total as u64 })?;
            room.resize(total, 0u8);
            Ok(room)
        };
        let seats = capacity.max_seats;
        let stack = |ports: &[lanes_core::Port]| {
            ports
                .iter()
                .map(|port| room(&port.name, port.bytes(), if port.scope == Scope::Turn { 1 } else { seats }))
                .collect::<Result<Vec<_>, _>>()
        };
        self.stacked_inputs = stack(&self.signature.inputs)?;
        self.stacked_outputs = stack(&self.signature.outputs)?;
        let states = self.signature.states.iter();
        self.rows =
            states.map(|state| room(&state.input, state.bytes(), capacity.rows)).collect::<Result<Vec<_>, _>>()?;
        for (state, rows) in self.signature.states.iter().zip(&mut self.rows) {
            if let Some(initial) = &state.initial {
                let at = capacity.initial_row().0 as usize * state.bytes();
                rows[at..][..initial.len()].copy_from_slice(initial);
            }
        }
        Ok(())
    }

    fn input_mut(&mut self, port: usize) -> &mut [u8] {
        &mut self.stacked_inputs[port]
    }

    fn run(&mut self, seats: &[SeatRows], refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        for (seat, &rows) in seats.iter().enumerate() {
            // Only a boolean that is neither 0 nor 1 makes no tensor.
            let inputs: Option<Vec<Tensor>> = self.seat_inputs(seat, rows).into_iter().collect();
            let results = match inputs {
                Some(inputs) => self.evaluator.run(&inputs).map_err(|error| match error.source {
                    EvalError::Missing(_) => {
                        Err(DeviceError::Fault { at: error.node.clone(), what: error.to_string() })
                    }
                    _ => Ok(error.to_string()),
                }),
                None => Err(Ok("a boolean input has a byte that is neither 0 nor 1".into())),
            };
            let results = match results {
                Ok(results) => results,
                Err(Ok(reason)) => {
                    refused.push(Refusal { seat: seat as u32, reason });
                    continue;
                }
                Err(Err(fault)) => return Err(fault),
            };
            for (port, &at) in self.outputs.iter().enumerate() {
                let bytes = results[at].bytes();
                self.stacked_outputs[port][seat * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
            }
            for (state, &at) in self.next_states.iter().enumerate() {
                let bytes = results[at].bytes();
                self.rows[state][rows.write.0 as usize * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn output(&self, port: usize) -> &[u8] {
        &self.stacked_outputs[port]
    }

    fn device_bytes(&self) -> u64 {
        let weights: usize = self.evaluator.graph().constants.values().map(|tensor| tensor.bytes().len()).sum();
        let room = self.stacked_inputs.iter().chain(&self.stacked_outputs).chain(&self.rows);
        (weights + room.map(Vec::len).sum::<usize>()) as u64
    }
}
