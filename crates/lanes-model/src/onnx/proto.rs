//! The protobuf messages of ONNX that an importer needs: a subset of the fields of `onnx.proto` (IR version 3 to 13,
//! <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>), with its field numbers. Unknown fields are skipped.

use bytes::Bytes;
use prost::Message;

/// A file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the file format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// What wrote the file.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// The model.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// The operator sets it is written in.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Functions local to the model.
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

/// An operator set.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// Empty, or `ai.onnx`, for the default one.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Its version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A function local to a model; only its name is read, to say that it is not supported.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    /// Its name, an operator for its callers.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A graph, or the body of a branch.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// In topological order.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Constants by name.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// Inputs; before IR version 4 these list initializers too.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Constants in sparse form; only their number is used, to say that they are not supported.
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
}

/// A sparse constant; nothing of it is read.
#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {}

/// One operation.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Operands by name; empty where left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Results by name; empty where not wanted.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// May be empty.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// The operator's set.
    #[prost(string, tag = "7")]
    pub domain: String,
}

/// One attribute of a node. Which field counts is told by `kind`.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// FLOAT.
    #[prost(float, tag = "2")]
    pub f: f32,
    /// INT.
    #[prost(int64, tag = "3")]
    pub i: i64,
    /// STRING.
    #[prost(bytes = "bytes", tag = "4")]
    pub s: Bytes,
    /// TENSOR.
    #[prost(message, optional, boxed, tag = "5")]
    pub t: Option<Box<TensorProto>>,
    /// GRAPH.
    #[prost(message, optional, boxed, tag = "6")]
    pub g: Option<Box<GraphProto>>,
    /// FLOATS.
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    /// INTS.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// STRINGS.
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    /// `AttributeType`: 1 FLOAT, 2 INT, 3 STRING, 4 TENSOR, 5 GRAPH, 6 FLOATS, 7 INTS, 8 STRINGS.
    #[prost(int32, tag = "20")]
    pub kind: i32,
}

/// A constant.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Extents.
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    /// A `TensorProto.DataType`.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Values of FLOAT.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Values of INT32, INT16, INT8, UINT16, UINT8, BOOL, and the bits of FLOAT16 and BFLOAT16.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Values of INT64.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// Its name among the initializers.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Values of any type, little-endian, row-major.
    #[prost(bytes = "bytes", tag = "9")]
    pub raw_data: Bytes,
    /// Values of DOUBLE.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// Values of UINT32 and UINT64.
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    /// Where the values lie when `data_location` is 1: `location`, `offset`, `length`.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 0: in this message, 1: in a file.
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

/// A pair of strings.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// What.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// The declaration of an input or output.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type; may be left out for outputs.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type; only tensors are read.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// Set when it is a tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// A tensor's type.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// A `TensorProto.DataType`.
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// Its extents; not set when even the rank is unknown.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A tensor's extents.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// Outermost first.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// One extent: a number, a name, or neither.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    /// The number; 0 or less when unknown.
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    /// The name.
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}
