//! What a call brings and takes home, and where each port lies in a call's buffers.
//!
//! `caller's Value --copied once--> a job's inputs --copied once--> staging --run--> a job's outputs --> Outputs`
//!
//! Buffers are made of 8-byte words and every port starts on one, so that a result can be read as its element type
//! without a copy and without unsafe code.

use super::error::InputError;
use super::job::{JobBox, Pooled};
use crate::{DType, Port, Signature};
use std::fmt;
use std::ops::Range;

/// An element type of Rust that a port can hold.
pub trait Element: bytemuck::NoUninit {
    /// What the model calls it.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}
elements!(half::f16 => F16, half::bf16 => BF16, f32 => F32, f64 => F64, bool => Bool,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64);

/// One input of one call, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    /// The element type.
    pub dtype: DType,
    /// One seat's shape, without the lane axis, in elements.
    pub shape: &'a [usize],
    /// The elements, row-major and little-endian.
    pub bytes: &'a [u8],
}

impl<'a> Value<'a> {
    /// `data` in row-major order as a value of `shape`. That the two agree is checked by the call.
    pub fn new<T: Element>(shape: &'a [usize], data: &'a [T]) -> Self {
        Self { dtype: T::DTYPE, shape, bytes: bytemuck::cast_slice(data) }
    }
}

/// Where the ports of a signature lie in one call's buffers.
#[derive(Debug)]
pub(super) struct Layout {
    pub inputs: Vec<Range<usize>>,
    pub outputs: Vec<Range<usize>>,
    /// 8-byte words of one step's inputs.
    pub input_words: usize,
    /// 8-byte words of one step's outputs.
    pub output_words: usize,
}

impl Layout {
    pub fn new(signature: &Signature) -> Self {
        let place = |ports: &[Port]| {
            let mut words = 0;
            let ranges = ports.iter().map(|port| {
                let start = words * 8;
                words += port.bytes().div_ceil(8);
                start..start + port.bytes()
            });
            (ranges.collect::<Vec<_>>(), words)
        };
        let (inputs, input_words) = place(&signature.inputs);
        let (outputs, output_words) = place(&signature.outputs);
        Self { inputs, outputs, input_words, output_words }
    }
}

/// Refuses inputs that are not what `signature` declares, before anything is queued.
pub(super) fn check_inputs(signature: &Signature, values: &[Value<'_>]) -> Result<(), InputError> {
    let ports = &signature.inputs;
    check_count("inputs", values.len(), ports)?;
    for (port, value) in ports.iter().zip(values) {
        let name = || port.name.clone();
        if value.dtype != port.dtype {
            return Err(InputError::DType { name: name(), found: value.dtype, expected: port.dtype });
        }
        if value.shape != port.shape {
            let (found, expected) = (value.shape.to_vec(), port.shape.clone());
            return Err(if found.len() != expected.len() {
                InputError::Rank { name: name(), found, expected }
            } else {
                InputError::Shape { name: name(), found, expected }
            });
        }
        check_bytes(port, value.bytes.len())?;
    }
    Ok(())
}

/// Refuses output buffers that do not fit the outputs of `signature` exactly.
pub(super) fn check_outputs(signature: &Signature, buffers: &[&mut [u8]]) -> Result<(), InputError> {
    check_count("outputs", buffers.len(), &signature.outputs)?;
    signature.outputs.iter().zip(buffers).try_for_each(|(port, buffer)| check_bytes(port, buffer.len()))
}

fn check_count(what: &'static str, found: usize, ports: &[Port]) -> Result<(), InputError> {
    if found == ports.len() {
        return Ok(());
    }
    let names = ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
    Err(InputError::Count { what, found, expected: ports.len(), names })
}

fn check_bytes(port: &Port, found: usize) -> Result<(), InputError> {
    if found == port.bytes() {
        return Ok(());
    }
    Err(InputError::Bytes { name: port.name.clone(), found, expected: port.bytes() })
}

/// The outputs of one served call. Its memory goes back to the stream for the next call when it is dropped; it does
/// not keep the stream's lane.
pub struct Outputs {
    job: Pooled,
}

impl Outputs {
    pub(super) fn new(job: JobBox) -> Self {
        Self { job: Pooled::new(job) }
    }

    /// How many outputs there are.
    pub fn len(&self) -> usize {
        self.ports().len()
    }

    /// Whether the model has no outputs.
    pub fn is_empty(&self) -> bool {
        self.ports().is_empty()
    }

    /// Name, element type and shape of each, in the model's order.
    pub fn ports(&self) -> &[Port] {
        &self.job.cell.model.signature.outputs
    }

    /// The bytes of output `port`, row-major and little-endian; `None` past the last output.
    pub fn bytes(&self, port: usize) -> Option<&[u8]> {
        let range = self.job.cell.model.layout.outputs.get(port)?.clone();
        Some(&bytemuck::cast_slice(&self.job.outputs)[range])
    }

    /// The elements of output `port`; `None` past the last output, or when its element type is not `T`.
    pub fn get<T: Element + bytemuck::AnyBitPattern>(&self, port: usize) -> Option<&[T]> {
        if self.ports().get(port)?.dtype != T::DTYPE {
            return None;
        }
        // Ports start on a word, so only a dtype wider than a word could be misaligned, and there is none.
        bytemuck::try_cast_slice(self.bytes(port)?).ok()
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs = self.ports().iter().enumerate().map(|(at, port)| (&port.name, self.bytes(at)));
        f.debug_map().entries(outputs).finish()
    }
}
