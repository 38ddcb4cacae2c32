//! Writes ONNX models: for tests, benchmarks and tools that need one of an exact shape.
//!
//! ```
//! use lanes_model::onnx::build::ModelBuilder;
//! use lanes_model::{ImportOptions, load_bytes};
//!
//! let bytes = ModelBuilder::new(18)
//!     .input("x", lanes_core::DType::F32, &["batch", "64"])
//!     .tensor("two", &lanes_model::Tensor::scalar(2f32))
//!     .node("Mul", &["x", "two"], &["y"], &[])
//!     .output("y", lanes_core::DType::F32, &["batch", "64"])
//!     .encode();
//! let model = load_bytes(bytes, "null", &ImportOptions::default())?;
//! assert_eq!(model.signature.inputs[0].shape, [64]);
//! # Ok::<(), lanes_model::ModelError>(())
//! ```

mod stack;

pub use stack::LstmStack;

use super::file;
use super::proto::{
    AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::tensor::Tensor;
use lanes_core::DType;
use prost::Message;

/// An attribute's value.
#[derive(Clone, Debug)]
pub enum Value {
    /// FLOAT.
    Float(f32),
    /// INT.
    Int(i64),
    /// STRING.
    Text(&'static str),
    /// TENSOR.
    Tensor(Tensor),
    /// GRAPH.
    Graph(GraphProto),
    /// FLOATS.
    Floats(Vec<f32>),
    /// INTS.
    Ints(Vec<i64>),
    /// STRINGS.
    Texts(Vec<&'static str>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f32> for Value {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

impl From<&'static str> for Value {
    fn from(value: &'static str) -> Self {
        Self::Text(value)
    }
}

impl<const N: usize> From<[i64; N]> for Value {
    fn from(value: [i64; N]) -> Self {
        Self::Ints(value.into())
    }
}

/// A model, or the body of a branch, part by part.
#[derive(Clone, Debug)]
pub struct ModelBuilder {
    opset: i64,
    graph: GraphProto,
}

impl ModelBuilder {
    /// An empty model in version `opset` of the default operator set.
    pub fn new(opset: i64) -> Self {
        Self { opset, graph: GraphProto { name: "graph".into(), ..GraphProto::default() } }
    }

    /// Adds an input. A dimension is a number, a name, or `?` for neither.
    pub fn input(mut self, name: &str, dtype: DType, dims: &[&str]) -> Self {
        self.graph.input.push(info(name, dtype, dims));
        self
    }

    /// Adds an output, which a node or an input must be called.
    pub fn output(mut self, name: &str, dtype: DType, dims: &[&str]) -> Self {
        self.graph.output.push(info(name, dtype, dims));
        self
    }

    /// Adds a constant.
    pub fn tensor(mut self, name: &str, tensor: &Tensor) -> Self {
        self.graph.initializer.push(proto(name, tensor));
        self
    }

    /// Adds a node, named after its first output that has a name. An empty operand is one left out.
    pub fn node(mut self, op: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, Value)]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        self.graph.node.push(NodeProto {
            input: owned(inputs),
            output: owned(outputs),
            name: format!("{op}_{}", outputs.iter().find(|name| !name.is_empty()).copied().unwrap_or_default()),
            op_type: op.into(),
            attribute: attributes.iter().map(|(name, value)| attribute(name, value)).collect(),
            domain: String::new(),
        });
        self
    }

    /// The graph alone, for a branch of `If`.
    pub fn graph(self) -> GraphProto {
        self.graph
    }

    /// The message of the model.
    pub fn model(self) -> ModelProto {
        ModelProto {
            ir_version: 8,
            producer_name: "lanes".into(),
            graph: Some(self.graph),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: self.opset }],
            functions: Vec::new(),
        }
    }

    /// The bytes of the file.
    pub fn encode(self) -> Vec<u8> {
        self.model().encode_to_vec()
    }
}

fn info(name: &str, dtype: DType, dims: &[&str]) -> ValueInfoProto {
    let dim = |dim: &&str| match (*dim, dim.parse()) {
        ("?", _) => DimensionProto::default(),
        (_, Ok(extent)) => DimensionProto { dim_value: Some(extent), dim_param: None },
        (name, _) => DimensionProto { dim_value: None, dim_param: Some(name.into()) },
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor_type = TensorTypeProto { elem_type: file::dtype_code(dtype), shape: Some(shape) };
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) }
}

/// The message of a tensor, its values as raw bytes.
pub fn proto(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        dims: tensor.shape().iter().map(|&extent| extent as i64).collect(),
        data_type: file::dtype_code(tensor.dtype()),
        name: name.into(),
        raw_data: tensor.bytes().clone(),
        ..TensorProto::default()
    }
}

fn attribute(name: &str, value: &Value) -> AttributeProto {
    let mut proto = AttributeProto { name: name.into(), ..AttributeProto::default() };
    let text = |text: &&str| bytes::Bytes::copy_from_slice(text.as_bytes());
    proto.kind = match value {
        Value::Float(value) => {
            proto.f = *value;
            1
        }
        Value::Int(value) => {
            proto.i = *value;
            2
        }
        Value::Text(value) => {
            proto.s = text(value);
            3
        }
        Value::Tensor(tensor) => {
            proto.t = Some(Box::new(self::proto("", tensor)));
            4
        }
        Value::Graph(graph) => {
            proto.g = Some(Box::new(graph.clone()));
            5
        }
        Value::Floats(values) => {
            proto.floats = values.clone();
            6
        }
        Value::Ints(values) => {
            proto.ints = values.clone();
            7
        }
        Value::Texts(values) => {
            proto.strings = values.iter().map(text).collect();
            8
        }
    };
    proto
}
