//! Compiles a text and interprets it over plain vectors.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod layout;
pub mod programs;

use std::collections::BTreeMap;

use loom_compiler::interp::{self, Argument, Fault, Limits};
use loom_compiler::ir::Kernel;
use loom_compiler::{Diagnostics, Module};

/// What a test binds to a launch argument.
#[derive(Clone, Debug)]
pub enum Bound {
    Bytes(Vec<u8>),
    Slot(u64),
}

impl Bound {
    pub fn f32s(values: &[f32]) -> Self {
        Self::Bytes(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    pub fn i32s(values: &[i32]) -> Self {
        Self::Bytes(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    pub fn zeros(bytes: usize) -> Self {
        Self::Bytes(vec![0; bytes])
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Slot(_) => panic!("not a buffer"),
        }
    }

    pub fn to_f32s(&self) -> Vec<f32> {
        self.bytes().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    pub fn to_i32s(&self) -> Vec<i32> {
        self.bytes().chunks_exact(4).map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }
}

pub fn config(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The kernel, or the diagnostics. Whatever text a test is about, its formatted text must be the same module.
pub fn specialise(source: &str, kernel: &str, bound: &[(&str, &str)]) -> Result<Kernel, Diagnostics> {
    layout::formatted(source);
    Module::parse("test.loom", source)?.specialise(kernel, &config(bound))
}

/// The only kernel of a text that must be right.
pub fn kernel(source: &str, name: &str, bound: &[(&str, &str)]) -> Kernel {
    specialise(source, name, bound).unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
}

/// Interprets; the bound buffers are changed in place.
pub fn run(kernel: &Kernel, workload: &[u64], bound: &mut [Bound]) -> Result<(), Fault> {
    let geometry = kernel.launch.geometry(workload).expect("a geometry");
    let mut arguments: Vec<Argument<'_>> = bound
        .iter_mut()
        .map(|bound| match bound {
            Bound::Bytes(bytes) => Argument::Buffer(bytes),
            Bound::Slot(slot) => Argument::Scalar(*slot),
        })
        .collect();
    interp::run(kernel, geometry, &mut arguments, Limits { steps: 10_000_000, ..Limits::default() })
}

/// A kernel of one work-item with these arguments and this body.
pub fn single(arguments: &str, body: &str) -> String {
    format!(
        "kernel.def @k() {{\n  %one = index.constant 1 : index\n  kernel.launch.config workgroups(%one, %one, %one) \
         workgroup_size(%one, %one, %one) : index\n}} launch({arguments}) {{\n  %base = index.constant 0 : offset\n{body}\n  \
         kernel.return\n}}\n"
    )
}
