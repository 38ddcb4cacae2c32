//! What a laned model asks for: its inputs, outputs and states, declared once.
//!
//! Allocation, initial value, reset, gather and scatter, snapshot and size all derive from this declaration.

use crate::DType;
use std::sync::Arc;

/// Whether a turn holds one value of a port per seat, or one for all its seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Stacked in seat order on axis 0.
    Seat,
    /// One value serves the whole turn; seats that disagree do not share a turn.
    Turn,
}

/// One input or output that a caller sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The name in the model.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// One seat's value (or, of a shared port, the turn's), without the lane axis, in elements.
    pub shape: Vec<usize>,
    /// Per seat or per turn.
    pub scope: Scope,
}

impl Port {
    /// Elements of one value.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of one value.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }
}

/// How a state is kept between turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateKind {
    /// A turn reads one row and writes another whole.
    Replaced,
}

/// One state: a model input that the model's own output feeds on the next turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// The model input that reads it.
    pub input: String,
    /// The model output that replaces it.
    pub output: String,
    /// The element type.
    pub dtype: DType,
    /// One lane's worth, without the lane axis, in elements.
    pub lane_shape: Vec<usize>,
    /// One lane's initial bytes, `bytes()` long, in the order the model keeps its rows; `None` is all zeros.
    pub initial: Option<Arc<[u8]>>,
    /// How it is kept.
    pub kind: StateKind,
}

impl StateSpec {
    /// Bytes of one row.
    pub fn bytes(&self) -> usize {
        self.lane_shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// Everything a laned model declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Labels metrics and errors.
    pub name: String,
    /// What a call brings, in order.
    pub inputs: Vec<Port>,
    /// What a call takes home, in order.
    pub outputs: Vec<Port>,
    /// What stays on the device between calls.
    pub states: Vec<StateSpec>,
}

impl Signature {
    /// Bytes of one lane's row over all states.
    pub fn state_bytes_per_lane(&self) -> usize {
        self.states.iter().map(StateSpec::bytes).sum()
    }
}
