//! Kernels from text to images: many at once, each once, and kept.
//!
//! ```text
//! sources ──keys──> memo ──miss──> disk ──miss──> compiler, in parallel ──> images in the order asked for
//!                     └── an equal kernel on its way: waited for, not compiled again
//! ```
//!
//! - A kernel is its text, symbol and config. Two with the same are compiled once, whatever the files are called and
//!   whoever asks, as long as they share a [`KernelCache`].
//! - A cache is in memory; it is on disk too only where a folder was named. Nothing that goes wrong with a file fails a
//!   compile, or changes what comes out.
//! - [`ArgumentLayout`] says what an image is launched with.
//! - Not here: what the language means (`loom_compiler`), and running images (`device`, `plan`).
//!
//! ```
//! use lanes_core::compile::{ArgumentLayout, KernelCache, KernelSource, LoomCompiler, Target, compile_batch};
//!
//! let text = "
//!     kernel.def @twice(%n: index) {
//!       %one = index.constant 1 : index
//!       kernel.launch.config workgroups(%n, %one, %one) workgroup_size(%one, %one, %one) : index
//!     } launch(%n: index, %x: buffer) {
//!       %zero = index.constant 0 : offset
//!       %view = buffer.view %x[%zero] : buffer -> view<[%n]xf32>
//!       %at = kernel.workgroup.id<x> : index
//!       %value = view.load %view[%at] : view<[%n]xf32> -> f32
//!       %sum = scalar.addf %value, %value : f32
//!       view.store %sum, %view[%at] : f32, view<[%n]xf32>
//!       kernel.return
//!     }";
//! let cache = KernelCache::in_memory();
//! let source = KernelSource::new("twice.loom", text, "twice");
//! let images = compile_batch(&LoomCompiler, &Target::cpu(), &cache, &[source.clone(), source])?;
//! assert_eq!(cache.stats().compiled, 1);
//! let layout = ArgumentLayout::of(&images[1]);
//! assert_eq!(layout.launch_scalars(&[1000usize][..])?, [1000]);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod arguments;
mod batch;
mod cache;
mod disk;

pub use arguments::{ArgumentError, ArgumentLayout, LaunchArgument, Passed, Scalars};
pub use batch::{CompileErrors, compile_batch};
pub use cache::{CacheOptions, CacheStats, KernelCache};
pub use disk::{FileKey, FileKind, Files, Found};

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
    /// Whatever else the images depend on: the driver and its version. Empty for the CPU, whose images depend on the
    /// compiler only.
    pub driver: String,
}

impl Target {
    /// The tile executor of this build.
    pub fn cpu() -> Self {
        Self { name: "cpu".into(), driver: String::new() }
    }
}

/// Makes images. One compiler is used from many threads at once.
pub trait KernelCompiler: Send + Sync {
    /// Which compiler this is, so that an image made by another one is never taken for its own: two compilers with the
    /// same version make the same image of the same source.
    fn version(&self) -> &str;

    /// The image of one kernel.
    ///
    /// # Errors
    /// [`DeviceError::Build`] with what is wrong with the text; [`DeviceError::Unsupported`] for a target that it does
    /// not know.
    fn compile(&self, source: &KernelSource, target: &Target) -> Result<Arc<CpuImage>, DeviceError>;
}

/// The compiler of this build: Loom text to images for the CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoomCompiler;

impl KernelCompiler for LoomCompiler {
    fn version(&self) -> &str {
        loom_compiler::VERSION
    }

    fn compile(&self, source: &KernelSource, target: &Target) -> Result<Arc<CpuImage>, DeviceError> {
        if target.name != "cpu" {
            let what = format!("images for target {:?}; this compiler makes them for \"cpu\"", target.name);
            return Err(DeviceError::Unsupported { what });
        }
        loom_compiler::compile_cpu(&source.name, &source.text, &source.symbol, &source.config)
            .map(Arc::new)
            .map_err(|log| DeviceError::Build { kernel: source.symbol.clone(), log: log.to_string() })
    }
}

#[cfg(test)]
mod tests;
