//! Kernels from text to images.

mod arguments;

pub use arguments::{ArgumentError, ArgumentLayout, LaunchArgument, Passed, Scalars};

use crate::device::DeviceError;
use loom_compiler::CpuImage;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A kernel to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// What errors call the text: a file name. Of no other effect.
    pub name: String,
    /// Loom text; one text may hold many kernels.
    pub text: Arc<str>,
    /// The symbol or export name of the kernel in it.
    pub symbol: String,
    /// Values of the text's `config` declarations, by name.
    pub config: BTreeMap<String, String>,
}

impl KernelSource {
    /// Kernel `symbol` of `text`, without config values.
    pub fn new(name: impl Into<String>, text: impl Into<Arc<str>>, symbol: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), symbol: symbol.into(), config: BTreeMap::new() }
    }

    /// The same with one config value more, or another.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.insert(name.into(), value.into());
        self
    }
}

/// What images are made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The kind of device and its generation, as its backend spells it: `cpu`.
    pub name: String,
    /// Whatever else the images depend on.
    pub driver: String,
}

impl Target {
    /// The tile executor of this build.
    pub fn cpu() -> Self {
        Self { name: "cpu".into(), driver: String::new() }
    }
}

/// Makes images.
pub trait KernelCompiler: Send + Sync {
    /// Which compiler this is.
    fn version(&self) -> &str;

    /// The image of one kernel.
    ///
    /// # Errors
    /// [`DeviceError::Build`] with what is wrong with the text.
    fn compile(&self, source: &KernelSource, target: &Target) -> Result<Arc<CpuImage>, DeviceError>;
}

/// The compiler of this build.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoomCompiler;

impl KernelCompiler for LoomCompiler {
    fn version(&self) -> &str {
        "0"
    }

    fn compile(&self, source: &KernelSource, _: &Target) -> Result<Arc<CpuImage>, DeviceError> {
        loom_compiler::compile_cpu(&source.name, &source.text, &source.symbol, &source.config)
            .map(Arc::new)
            .map_err(|log| DeviceError::Build { kernel: source.symbol.clone(), log: log.to_string() })
    }
}

/// Images that were compiled before.
#[derive(Debug, Default)]
pub struct KernelCache;

impl KernelCache {
    /// In memory only.
    pub fn in_memory() -> Self {
        Self
    }
}

/// Compiles `sources`.
///
/// # Errors
/// The first that failed.
pub fn compile_batch(
    compiler: &dyn KernelCompiler,
    target: &Target,
    _: &KernelCache,
    sources: &[KernelSource],
) -> Result<Vec<Arc<CpuImage>>, DeviceError> {
    sources.iter().map(|source| compiler.compile(source, target)).collect()
}
