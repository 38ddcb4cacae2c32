//! What a file declares of its inputs and outputs.

use crate::error::ModelError;
use crate::onnx::file;
use crate::onnx::proto::{GraphProto, ValueInfoProto};
use lanes_core::DType;
use std::collections::HashSet;
use std::fmt;

/// A model has at most so many inputs, and as many outputs: pairing compares each with each.
const PORTS_MAX: usize = 1024;

/// One extent as a file declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// A number.
    Known(usize),
    /// A name; equal names have equal extents.
    Named(String),
    /// Nothing.
    Unknown,
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(extent) => write!(f, "{extent}"),
            Self::Named(name) => f.write_str(name),
            Self::Unknown => f.write_str("?"),
        }
    }
}

/// An input or output as a file declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Declared {
    pub(super) name: String,
    /// `None` when the file does not say.
    pub(super) dtype: Option<DType>,
    /// `None` when the file does not even say the rank.
    pub(super) dims: Option<Vec<Dim>>,
}

impl Declared {
    fn read(info: &ValueInfoProto) -> Result<Self, ModelError> {
        let tensor = info.r#type.as_ref().map(|kind| {
            kind.tensor_type.as_ref().ok_or_else(|| {
                ModelError::malformed(format!("{:?} is a sequence, map or optional; tensors are supported", info.name))
            })
        });
        let tensor = tensor.transpose()?;
        let dtype = match tensor.map(|tensor| tensor.elem_type) {
            None | Some(0) => None,
            Some(code) => Some(file::dtype(code).ok_or_else(|| {
                let found = file::dtype_name(code);
                ModelError::malformed(format!("{:?} holds {found}; {} are supported", info.name, file::DTYPES))
            })?),
        };
        let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
        let dims = shape.map(|shape| {
            let dim = |dim: &crate::onnx::proto::DimensionProto| match (&dim.dim_param, dim.dim_value) {
                (Some(name), _) if !name.is_empty() => Dim::Named(name.clone()),
                (_, Some(extent)) if extent > 0 => Dim::Known(usize::try_from(extent).unwrap_or(usize::MAX)),
                _ => Dim::Unknown,
            };
            shape.dim.iter().map(dim).collect()
        });
        Ok(Self { name: info.name.clone(), dtype, dims })
    }

    /// The extents in words, for messages.
    pub(super) fn shape(&self) -> String {
        match &self.dims {
            None => "of unknown rank".into(),
            Some(dims) => format!("[{}]", dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ")),
        }
    }
}

/// The inputs that a caller brings (those that are initializers too are constants), and the outputs.
pub(super) fn read(graph: &GraphProto) -> Result<(Vec<Declared>, Vec<Declared>), ModelError> {
    let constants: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    let inputs = graph.input.iter().filter(|input| !constants.contains(input.name.as_str()));
    let inputs = inputs.map(Declared::read).collect::<Result<Vec<_>, _>>()?;
    let outputs = graph.output.iter().map(Declared::read).collect::<Result<Vec<_>, _>>()?;
    for (what, list) in [("input", &inputs), ("output", &outputs)] {
        if list.len() > PORTS_MAX {
            return Err(ModelError::malformed(format!("{} {what}s; at most {PORTS_MAX} are read", list.len())));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = list.iter().find(|declared| !seen.insert(&declared.name)) {
            return Err(ModelError::malformed(format!("the {what} {:?} is there twice", twice.name)));
        }
    }
    for input in &inputs {
        if input.dtype.is_none() || input.dims.is_none() {
            return Err(ModelError::malformed(format!(
                "the input {:?} has no element type or no rank; tensors of known rank are supported",
                input.name
            )));
        }
    }
    Ok((inputs, outputs))
}
