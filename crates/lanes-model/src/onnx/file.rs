//! From a path or bytes to a decoded model, and from its tensor messages to tensors.
//!
//! - A file is untrusted: sizes are checked with checked arithmetic before anything is allocated for them, and
//!   protobuf nesting is bounded (prost stops at 100 messages).
//! - External data lies inside the model's folder: no absolute path, no `..`, no link that leads out of it.

use super::proto::{ModelProto, TensorProto};
use crate::error::ModelError;
use crate::tensor::{Tensor, elements};
use bytes::Bytes;
use half::{bf16, f16};
use lanes_core::DType;
use prost::Message;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// Files longer than this are refused: a protobuf message is shorter, and external data comes in files of its own.
const FILE_BYTES_MAX: u64 = 1 << 31;
/// External files longer than this are refused.
const EXTERNAL_BYTES_MAX: u64 = 1 << 36;

/// A decoded file, and where its external data may lie.
pub(crate) struct OnnxFile {
    pub(crate) model: ModelProto,
    pub(crate) data: TensorSource,
}

/// Reads the tensors of a file. Each external file is read once.
pub(crate) struct TensorSource {
    folder: Option<PathBuf>,
    external: RefCell<BTreeMap<PathBuf, Bytes>>,
}

impl OnnxFile {
    /// Reads and decodes the file at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let model = decode(read(path, FILE_BYTES_MAX)?)
            .map_err(|error| ModelError::malformed(format!("{}: {error}", path.display())))?;
        Ok(Self { model, data: TensorSource { folder: Some(folder.into()), external: RefCell::default() } })
    }

    /// Decodes a model from memory. It has no folder, so it cannot have external data.
    pub(crate) fn from_bytes(bytes: Bytes) -> Result<Self, ModelError> {
        Ok(Self { model: decode(bytes)?, data: TensorSource { folder: None, external: RefCell::default() } })
    }
}

impl TensorSource {
    /// Tensors that lie in their messages.
    pub(crate) fn in_memory() -> Self {
        Self { folder: None, external: RefCell::default() }
    }

    /// The tensor that a message describes. `at` says where it was found, for errors.
    pub(crate) fn tensor(&self, proto: &TensorProto, at: &str) -> Result<Tensor, ModelError> {
        let dtype = dtype(proto.data_type).ok_or_else(|| {
            ModelError::malformed(format!("{at} has {}; {DTYPES} are supported", dtype_name(proto.data_type)))
        })?;
        let shape = proto
            .dims
            .iter()
            .map(|&dim| usize::try_from(dim).ok())
            .collect::<Option<Vec<usize>>>()
            .ok_or_else(|| ModelError::malformed(format!("{at} has a negative extent in {:?}", proto.dims)))?;
        let bytes = elements(&shape)
            .and_then(|count| count.checked_mul(dtype.size()))
            .ok_or_else(|| ModelError::malformed(format!("{at} has shape {shape:?}, which is too large")))?;
        let data = if proto.data_location == 1 {
            self.external(proto, bytes, at)?
        } else if !proto.raw_data.is_empty() {
            proto.raw_data.clone()
        } else {
            typed_data(proto, dtype)
        };
        let found = data.len();
        Tensor::new(dtype, shape.clone(), data).ok_or_else(|| {
            let why = if found == bytes {
                "has a boolean that is neither 0 nor 1".into()
            } else {
                format!("holds {found} bytes where its shape {shape:?} of {dtype} needs {bytes}")
            };
            ModelError::malformed(format!("{at} {why}"))
        })
    }

    fn external(&self, proto: &TensorProto, bytes: usize, at: &str) -> Result<Bytes, ModelError> {
        let entry =
            |key: &str| proto.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
        let number = |key: &str, default: usize| match entry(key) {
            None => Ok(default),
            Some(text) => text.parse::<usize>().map_err(|_| {
                ModelError::malformed(format!("{at}: external data has {key} {text:?}, which is no size"))
            }),
        };
        let location =
            entry("location").ok_or_else(|| ModelError::malformed(format!("{at}: external data names no location")))?;
        let Some(folder) = &self.folder else {
            return Err(ModelError::malformed(format!(
                "{at} lies in the file {location:?}, and a model from memory has no folder; load it by its path"
            )));
        };
        let (offset, length) = (number("offset", 0)?, number("length", bytes)?);
        if length != bytes {
            return Err(ModelError::malformed(format!(
                "{at}: external data of {length} bytes where its shape needs {bytes}"
            )));
        }
        let path = inside(folder, location, at)?;
        let known = self.external.borrow().get(&path).cloned();
        let file = match known {
            Some(file) => file,
            None => {
                let file = read(&path, EXTERNAL_BYTES_MAX)?;
                self.external.borrow_mut().insert(path.clone(), file.clone());
                file
            }
        };
        let end = offset.checked_add(length).filter(|&end| end <= file.len()).ok_or_else(|| {
            ModelError::malformed(format!(
                "{at} lies at {offset} of {}, {length} bytes long, and the file has {}",
                path.display(),
                file.len()
            ))
        })?;
        Ok(file.slice(offset..end))
    }
}

/// `location` below `folder`, links resolved.
fn inside(folder: &Path, location: &str, at: &str) -> Result<PathBuf, ModelError> {
    let relative = Path::new(location);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let refuse = || {
        ModelError::malformed(format!(
            "{at}: external data at {location:?}; only files inside the model's folder are read"
        ))
    };
    if !plain || location.is_empty() {
        return Err(refuse());
    }
    let canonical =
        |path: &Path| fs::canonicalize(path).map_err(|source| ModelError::Read { path: path.into(), source });
    let (root, path) = (canonical(folder)?, canonical(&folder.join(relative))?);
    if path.starts_with(&root) { Ok(path) } else { Err(refuse()) }
}

/// The whole of a regular file of at most `limit` bytes.
fn read(path: &Path, limit: u64) -> Result<Bytes, ModelError> {
    let fail = |source| ModelError::Read { path: path.into(), source };
    // Looked at before it is opened: opening a pipe waits for whoever writes to it.
    let meta = fs::metadata(path).map_err(fail)?;
    let refuse = |what: String| Err(ModelError::malformed(format!("{}: {what}", path.display())));
    if !meta.is_file() {
        return refuse("not a regular file".into());
    }
    if meta.len() > limit {
        return refuse(format!("{} bytes, and at most {limit} are read", meta.len()));
    }
    let file = fs::File::open(path).map_err(fail)?;
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    // A file that grows while it is read is cut off, not followed.
    file.take(limit).read_to_end(&mut bytes).map_err(fail)?;
    Ok(bytes.into())
}

fn decode(bytes: Bytes) -> Result<ModelProto, ModelError> {
    let model = ModelProto::decode(bytes)
        .map_err(|error| ModelError::malformed(format!("not an ONNX model, or a damaged one: {error}")))?;
    if model.graph.is_none() || model.opset_import.is_empty() {
        return Err(ModelError::malformed("not an ONNX model, or a truncated one: it has no graph or no operator set"));
    }
    Ok(model)
}

/// The values of a message that does not use `raw_data`, as they lie in memory. Too few or too many are noticed by the caller.
fn typed_data(proto: &TensorProto, dtype: DType) -> Bytes {
    fn narrow<T: bytemuck::Pod>(values: &[i32], to: impl Fn(i32) -> T) -> Bytes {
        let narrow: Vec<T> = values.iter().map(|&value| to(value)).collect();
        Bytes::copy_from_slice(bytemuck::cast_slice(&narrow))
    }
    match dtype {
        DType::F32 => Bytes::copy_from_slice(bytemuck::cast_slice(&proto.float_data)),
        DType::F64 => Bytes::copy_from_slice(bytemuck::cast_slice(&proto.double_data)),
        DType::I64 => Bytes::copy_from_slice(bytemuck::cast_slice(&proto.int64_data)),
        DType::U64 => Bytes::copy_from_slice(bytemuck::cast_slice(&proto.uint64_data)),
        DType::U32 => {
            let narrow: Vec<u32> = proto.uint64_data.iter().map(|&value| value as u32).collect();
            Bytes::copy_from_slice(bytemuck::cast_slice(&narrow))
        }
        DType::F16 => narrow(&proto.int32_data, |value| f16::from_bits(value as u16)),
        DType::BF16 => narrow(&proto.int32_data, |value| bf16::from_bits(value as u16)),
        DType::I8 => narrow(&proto.int32_data, |value| value as i8),
        DType::I16 => narrow(&proto.int32_data, |value| value as i16),
        DType::I32 => narrow(&proto.int32_data, |value| value),
        DType::U8 => narrow(&proto.int32_data, |value| value as u8),
        DType::U16 => narrow(&proto.int32_data, |value| value as u16),
        DType::Bool => narrow(&proto.int32_data, |value| u8::from(value != 0)),
        // An element type that this format does not have: no bytes, so the caller refuses it.
        _ => Bytes::new(),
    }
}

/// The element types that are read.
pub(crate) const DTYPES: &str = "float16, bfloat16, float32, float64, int8 to int64, uint8 to uint64 and bool";

/// The element type of a `TensorProto.DataType`.
pub(crate) fn dtype(code: i32) -> Option<DType> {
    Some(match code {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::BF16,
        _ => return None,
    })
}

/// The `TensorProto.DataType` of an element type.
pub(crate) fn dtype_code(dtype: DType) -> i32 {
    (1..=16).find(|&code| self::dtype(code) == Some(dtype)).unwrap_or(0)
}

/// What to call a `TensorProto.DataType` that is not read.
pub(crate) fn dtype_name(code: i32) -> String {
    match code {
        8 => "strings".into(),
        14 | 15 => "complex numbers".into(),
        17..=20 => "8-bit floating point".into(),
        21 | 22 => "4-bit integers".into(),
        _ => format!("element type {code}"),
    }
}
