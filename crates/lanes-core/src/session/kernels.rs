//! Compiled kernels, and the numbers they are launched with.
//!
//! - Numbers are checked against the kernel's own list when a launch is recorded, not when it runs.
//! - Not here: compiling and keeping images (`compile`).

use super::region::invalid;
use crate::compile::{ArgumentLayout, Passed, Scalars};
use crate::device::DeviceError;
use crate::plan::Scalar;
use loom_compiler::CpuImage;
use std::sync::Arc;

/// A kernel that was compiled for a session's device. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kernel(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    image: Arc<CpuImage>,
    layout: ArgumentLayout,
}

impl Kernel {
    /// Of an image.
    pub fn new(image: Arc<CpuImage>) -> Self {
        let layout = ArgumentLayout::of(&image);
        Self(Arc::new(Compiled { image, layout }))
    }

    /// Its export name.
    pub fn name(&self) -> &str {
        &self.0.image.name
    }

    /// The image; two kernels compiled from equal sources share one.
    pub fn image(&self) -> &Arc<CpuImage> {
        &self.0.image
    }

    /// What it is launched with.
    pub fn layout(&self) -> &ArgumentLayout {
        &self.0.layout
    }
}

/// A number of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Itself.
    Is(u64),
    /// The number of seats being run: 1 in a session, and what the turn has where the definition serves lanes.
    Seats,
}

/// The numbers of one launch, for its workload or for its scalar arguments, in order.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// All are of type `index` or `offset`.
    Indices(&'a [u64]),
    /// The same from sizes.
    Sizes(&'a [usize]),
    /// The same, the number of seats among them.
    Seated(&'a [Index]),
    /// Any types, packed as [`compile`](crate::compile::ArgumentLayout) says.
    Packed(&'a [u8]),
}

impl From<()> for Numbers<'_> {
    fn from((): ()) -> Self {
        Self::Indices(&[])
    }
}

macro_rules! numbers {
    ($($element:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a [$element]> for Numbers<'a> {
            fn from(numbers: &'a [$element]) -> Self {
                Self::$variant(numbers)
            }
        }
        impl<'a, const N: usize> From<&'a [$element; N]> for Numbers<'a> {
            fn from(numbers: &'a [$element; N]) -> Self {
                Self::$variant(numbers)
            }
        }
    )*};
}

numbers!(u64 => Indices, usize => Sizes, Index => Seated, u8 => Packed);

impl Numbers<'_> {
    /// As the plan has them, checked against `kernel`'s workload, or its scalar arguments.
    pub(super) fn resolve(self, kernel: &Kernel, workload: bool) -> Result<Vec<Scalar>, DeviceError> {
        let check = |scalars: Scalars<'_>| {
            let layout = kernel.layout();
            let checked = if workload { layout.workload_scalars(scalars) } else { layout.launch_scalars(scalars) };
            checked.map_err(|error| invalid(error.to_string()))
        };
        let bits = |bits: Vec<u64>| bits.into_iter().map(Scalar::Bits).collect();
        match self {
            Self::Indices(indices) => check(Scalars::Indices(indices)).map(bits),
            Self::Sizes(sizes) => check(Scalars::Sizes(sizes)).map(bits),
            Self::Packed(bytes) => check(Scalars::Packed(bytes)).map(bits),
            Self::Seated(indices) => {
                // One seat stands for any number: they have the same type.
                let number = |index: &Index| match index {
                    Index::Is(number) => *number,
                    Index::Seats => 1,
                };
                let checked = check(Scalars::Indices(&indices.iter().map(number).collect::<Vec<_>>()))?;
                let scalar = |(index, bits): (&Index, u64)| match index {
                    Index::Is(_) => Scalar::Bits(bits),
                    Index::Seats => Scalar::Seats,
                };
                Ok(indices.iter().zip(checked).map(scalar).collect())
            }
        }
    }
}

/// The names of a kernel's buffers, for errors.
pub(super) fn buffers(kernel: &Kernel) -> Vec<&str> {
    let launch = kernel.layout().launch().iter();
    launch.filter(|argument| matches!(argument.passed, Passed::Buffer { .. })).map(|a| a.name.as_str()).collect()
}
