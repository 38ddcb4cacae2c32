//! What an image is launched with, and how numbers are handed to it.
//!
//! - Buffers and scalars are apart: bindings count buffers, in order; scalars are packed, in order.
//! - Packed scalars are little-endian words of 4 bytes without padding: one word for types of up to 32 bits, two (the low
//!   one first) for `i64`, `f64`, `index` and `offset`. Alignment is 4. A narrower integer is extended to its word, with or
//!   without its sign; a narrower float is followed by zeros. This is the order and the packing of Loom's reference ABI,
//!   which leaves the width of an `index` open; here it is 8 bytes always.
//! - Not here: what a kernel may touch (`plan`), and the number of workgroups (`LaunchProgram::geometry`).

use loom_compiler::CpuImage;
use loom_compiler::ir::{Parameter, ParameterKind};
use loom_compiler::types::ScalarType;

/// How an argument is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// As a binding.
    Buffer {
        /// Its number among the buffers.
        binding: usize,
    },
    /// Among the packed scalars.
    Scalar {
        /// Its type.
        ty: ScalarType,
        /// Byte offset of its first word among packed scalars.
        offset: usize,
        /// 4 or 8.
        bytes: usize,
    },
}

/// One argument, by its name in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchArgument {
    /// Without `%`.
    pub name: String,
    /// How it is passed.
    pub passed: Passed,
}

/// What an image is launched with: launch arguments, which the device sees, and workload arguments, which decide how many
/// workgroups there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentLayout {
    kernel: String,
    launch: Vec<LaunchArgument>,
    workload: Vec<LaunchArgument>,
}

/// Numbers for the scalars of one argument list, in order.
#[derive(Clone, Copy, Debug)]
pub enum Scalars<'a> {
    /// One number each, where all scalars are `index` or `offset`.
    Indices(&'a [u64]),
    /// The same from sizes.
    Sizes(&'a [usize]),
    /// Any types, packed as this module says.
    Packed(&'a [u8]),
}

impl<'a> From<&'a [u64]> for Scalars<'a> {
    fn from(indices: &'a [u64]) -> Self {
        Self::Indices(indices)
    }
}

impl<'a> From<&'a [usize]> for Scalars<'a> {
    fn from(sizes: &'a [usize]) -> Self {
        Self::Sizes(sizes)
    }
}

impl<'a> From<&'a [u8]> for Scalars<'a> {
    fn from(packed: &'a [u8]) -> Self {
        Self::Packed(packed)
    }
}

/// Numbers that do not fit the arguments they are for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// Too few or too many numbers.
    #[error("kernel {kernel}: {found} {list} scalars given, it has {expected}: {names}")]
    Count {
        /// The kernel.
        kernel: String,
        /// Which list: launch or workload.
        list: &'static str,
        /// How many were given.
        found: usize,
        /// How many there are.
        expected: usize,
        /// Their names and types.
        names: String,
    },
    /// Too few or too many bytes.
    #[error("kernel {kernel}: {found} bytes of packed {list} scalars given, it has {expected}: {names}")]
    Bytes {
        /// The kernel.
        kernel: String,
        /// Which list: launch or workload.
        list: &'static str,
        /// How many were given.
        found: usize,
        /// How many there are.
        expected: usize,
        /// The scalars' names and types.
        names: String,
    },
    /// An index for an argument of another type.
    #[error("kernel {kernel}: an index given for {list} argument {name}, which is {ty}: it takes packed scalars")]
    Type {
        /// The kernel.
        kernel: String,
        /// Which list: launch or workload.
        list: &'static str,
        /// The argument.
        name: String,
        /// Its type.
        ty: ScalarType,
    },
    /// A number that the argument's type does not have.
    #[error("kernel {kernel}: {found:#x} given for {list} argument {name}, which is {ty}: {accepted}")]
    Value {
        /// The kernel.
        kernel: String,
        /// Which list: launch or workload.
        list: &'static str,
        /// The argument.
        name: String,
        /// Its type.
        ty: ScalarType,
        /// The bits given.
        found: u64,
        /// What is accepted.
        accepted: &'static str,
    },
}

impl ArgumentLayout {
    /// Of an image.
    pub fn of(image: &CpuImage) -> Self {
        Self::new(&image.name, &image.parameters, &image.launch.workload)
    }

    /// Of a kernel with these launch and workload arguments, whatever it is compiled for.
    pub fn new(kernel: &str, launch: &[Parameter], workload: &[Parameter]) -> Self {
        Self { kernel: kernel.to_owned(), launch: laid_out(launch), workload: laid_out(workload) }
    }

    /// Launch arguments, in order.
    pub fn launch(&self) -> &[LaunchArgument] {
        &self.launch
    }

    /// Workload arguments, in order; all are scalars.
    pub fn workload(&self) -> &[LaunchArgument] {
        &self.workload
    }

    /// How many buffers a launch binds.
    pub fn bindings(&self) -> usize {
        self.launch.iter().filter(|argument| matches!(argument.passed, Passed::Buffer { .. })).count()
    }

    /// Bytes of the packed launch scalars.
    pub fn launch_bytes(&self) -> usize {
        packed_bytes(&self.launch)
    }

    /// Bytes of the packed workload scalars.
    pub fn workload_bytes(&self) -> usize {
        packed_bytes(&self.workload)
    }

    /// One slot for each launch scalar, in order: the value's bits in the low end, zeros above.
    ///
    /// # Errors
    /// A count, type or number that does not fit, naming the argument.
    pub fn launch_scalars<'a>(&self, given: impl Into<Scalars<'a>>) -> Result<Vec<u64>, ArgumentError> {
        self.scalars("launch", &self.launch, given.into())
    }

    /// The same for the workload: what [`loom_compiler::launch::LaunchProgram::geometry`] takes.
    ///
    /// # Errors
    /// As [`Self::launch_scalars`].
    pub fn workload_scalars<'a>(&self, given: impl Into<Scalars<'a>>) -> Result<Vec<u64>, ArgumentError> {
        self.scalars("workload", &self.workload, given.into())
    }

    fn scalars(
        &self,
        list: &'static str,
        arguments: &[LaunchArgument],
        given: Scalars<'_>,
    ) -> Result<Vec<u64>, ArgumentError> {
        let scalars: Vec<(&str, ScalarType, usize)> = arguments
            .iter()
            .filter_map(|argument| match argument.passed {
                Passed::Scalar { ty, offset, .. } => Some((argument.name.as_str(), ty, offset)),
                Passed::Buffer { .. } => None,
            })
            .collect();
        let kernel = || self.kernel.clone();
        let names = || scalars.iter().map(|(name, ty, _)| format!("{name}: {ty}")).collect::<Vec<_>>().join(", ");
        let sizes: Vec<u64>;
        let indices = match given {
            Scalars::Indices(indices) => indices,
            Scalars::Sizes(given) => {
                sizes = given.iter().map(|&size| size as u64).collect();
                &sizes
            }
            Scalars::Packed(bytes) => {
                let (found, expected) = (bytes.len(), packed_bytes(arguments));
                if found != expected {
                    return Err(ArgumentError::Bytes { kernel: kernel(), list, found, expected, names: names() });
                }
                return scalars.iter().map(|&(name, ty, at)| self.word(list, name, ty, &bytes[at..])).collect();
            }
        };
        let (found, expected) = (indices.len(), scalars.len());
        if found != expected {
            return Err(ArgumentError::Count { kernel: kernel(), list, found, expected, names: names() });
        }
        let index = |(&(name, ty, _), &found): (&(&str, ScalarType, usize), &u64)| {
            let name = || name.to_owned();
            if !ty.is_address() {
                return Err(ArgumentError::Type { kernel: kernel(), list, name: name(), ty });
            }
            if found >> 63 == 1 {
                let accepted = "0 to 2^63 - 1 are accepted";
                return Err(ArgumentError::Value { kernel: kernel(), list, name: name(), ty, found, accepted });
            }
            Ok(found)
        };
        scalars.iter().zip(indices).map(index).collect()
    }

    /// The number at the start of `bytes`, which are enough for it.
    fn word(&self, list: &'static str, name: &str, ty: ScalarType, bytes: &[u8]) -> Result<u64, ArgumentError> {
        let mut word = [0; 8];
        let size = word_bytes(ty);
        word[..size].copy_from_slice(&bytes[..size]);
        let found = u64::from_le_bytes(word);
        let value = found & (u64::MAX >> (64 - ty.bits()));
        let signed = ((value << (64 - ty.bits())) as i64 >> (64 - ty.bits())) as u64 & (u64::MAX >> (64 - 8 * size));
        let accepted = if ty == ScalarType::Offset {
            (found >> 63 == 1).then_some("0 to 2^63 - 1 are accepted")
        } else if ty.is_float() {
            (found != value).then_some("its bits followed by zeros are accepted")
        } else {
            (found != value && found != signed).then_some("its bits extended by zeros or by the sign are accepted")
        };
        accepted.map_or(Ok(value), |accepted| {
            let (kernel, name) = (self.kernel.clone(), name.to_owned());
            Err(ArgumentError::Value { kernel, list, name, ty, found, accepted })
        })
    }
}

const fn word_bytes(ty: ScalarType) -> usize {
    if ty.bits() > 32 { 8 } else { 4 }
}

fn laid_out(parameters: &[Parameter]) -> Vec<LaunchArgument> {
    let (mut binding, mut offset) = (0, 0);
    let mut passed = |kind| match kind {
        ParameterKind::Buffer => {
            binding += 1;
            Passed::Buffer { binding: binding - 1 }
        }
        ParameterKind::Scalar(ty) => {
            let bytes = word_bytes(ty);
            offset += bytes;
            Passed::Scalar { ty, offset: offset - bytes, bytes }
        }
    };
    let argument =
        |parameter: &Parameter| LaunchArgument { name: parameter.name.clone(), passed: passed(parameter.kind) };
    parameters.iter().map(argument).collect()
}

fn packed_bytes(arguments: &[LaunchArgument]) -> usize {
    let bytes = arguments.iter().map(|argument| match argument.passed {
        Passed::Buffer { .. } => 0,
        Passed::Scalar { bytes, .. } => bytes,
    });
    bytes.sum()
}
