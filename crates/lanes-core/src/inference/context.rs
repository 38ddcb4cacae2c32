//! One device, its compiler and its budget, shared by whoever runs on it.
//!
//! `ModelContext::lazy(how to open) --first need--> device`, once; an opening that failed is tried again at the next need.
//!
//! - Clones are one context: [`ModelContext::is`].
//! - The budget is the device's, so that all of a context's memory is charged to one account.

use crate::compile::{CompileErrors, KernelCache, KernelCompiler, KernelSource, LoomCompiler, Target, compile_batch};
use crate::device::{Device, DeviceError};
use loom_compiler::CpuImage;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Where devices come from: what a program that has backends gives to one that only knows [`Device`].
pub trait Devices: Send + Sync {
    /// Opens device `index` of the backend of this name, with a budget in bytes where one is given.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for a backend that is not there, [`DeviceError::Invalid`] for an index past its last
    /// device, and whatever keeps the device from opening.
    fn open(&self, backend: &str, index: usize, budget: Option<u64>) -> Result<Arc<dyn Device>, DeviceError>;
}

type Opening = Box<dyn Fn() -> Result<Arc<dyn Device>, DeviceError> + Send + Sync>;

/// A device, opened at first need, and what all who use it share. Cheap to clone.
#[derive(Clone)]
pub struct ModelContext(Arc<Shared>);

/// Contexts made so far in this process.
static MADE: AtomicU64 = AtomicU64::new(0);

struct Shared {
    /// Tells it from others in errors: 1 for the first.
    number: u64,
    opening: Opening,
    compiler: Arc<dyn KernelCompiler>,
    cache: Arc<KernelCache>,
    device: Mutex<Option<Arc<dyn Device>>>,
}

impl ModelContext {
    /// Of a device that is open.
    pub fn new(device: Arc<dyn Device>) -> Self {
        let again = Arc::clone(&device);
        let context = Self::lazy(move || Ok(Arc::clone(&again)));
        *context.held() = Some(device);
        context
    }

    /// Of a device that `open` opens when something first needs it.
    pub fn lazy(open: impl Fn() -> Result<Arc<dyn Device>, DeviceError> + Send + Sync + 'static) -> Self {
        Self::with_compiler(open, Arc::new(LoomCompiler), Arc::new(KernelCache::in_memory()))
    }

    /// The same with another compiler, or with images kept elsewhere than in memory.
    pub fn with_compiler(
        open: impl Fn() -> Result<Arc<dyn Device>, DeviceError> + Send + Sync + 'static,
        compiler: Arc<dyn KernelCompiler>,
        cache: Arc<KernelCache>,
    ) -> Self {
        let number = MADE.fetch_add(1, Ordering::Relaxed) + 1;
        Self(Arc::new(Shared { number, opening: Box::new(open), compiler, cache, device: Mutex::new(None) }))
    }

    /// Of device `index` of a backend, opened when something first needs it.
    pub fn by_index(devices: Arc<dyn Devices>, backend: &str, index: usize, budget: Option<u64>) -> Self {
        let backend = backend.to_string();
        Self::lazy(move || devices.open(&backend, index, budget))
    }

    /// The device, opened now if it was not. Whoever comes while another opens it waits, so that it is opened once.
    ///
    /// # Errors
    /// Those of the opening; it is tried again at the next call.
    pub fn device(&self) -> Result<Arc<dyn Device>, DeviceError> {
        let mut held = self.held();
        if let Some(device) = &*held {
            return Ok(Arc::clone(device));
        }
        let device = (self.0.opening)()?;
        Ok(Arc::clone(held.insert(device)))
    }

    /// Compiles kernels for the device, many at a time: in the order asked for, equal ones once.
    ///
    /// # Errors
    /// Those of opening the device, and [`DeviceError::Build`] for all that failed.
    pub fn compile(&self, sources: &[KernelSource]) -> Result<Vec<Arc<CpuImage>>, DeviceError> {
        self.compile_with(&*self.0.compiler, &self.0.cache, sources)
    }

    /// The same with a compiler and a cache of one's own.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_with(
        &self,
        compiler: &dyn KernelCompiler,
        cache: &KernelCache,
        sources: &[KernelSource],
    ) -> Result<Vec<Arc<CpuImage>>, DeviceError> {
        let device = self.device()?;
        let capabilities = device.capabilities();
        // Images for the CPU do not depend on its vector instructions.
        let target = match capabilities.backend {
            // A GPU's device compiles for itself out of what an image of the CPU came from.
            "cpu" | "cuda" => Target::cpu(),
            _ => Target { name: capabilities.target.clone(), driver: capabilities.driver.clone() },
        };
        compile_batch(compiler, &target, cache, sources).map_err(CompileErrors::into_device_error)
    }

    /// Whether the device has been opened.
    pub fn is_open(&self) -> bool {
        self.held().is_some()
    }

    /// Whether the two are clones of one context.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    // An opening that panics leaves nothing half done: the device is stored by one assignment.
    fn held(&self) -> std::sync::MutexGuard<'_, Option<Arc<dyn Device>>> {
        self.0.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `context 3 (cpu:avx2)`: its number among those of this process, and the target of its device once that is open.
impl fmt::Display for ModelContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.number;
        match &*self.held() {
            Some(device) => write!(f, "context {number} ({})", device.capabilities().target),
            None => write!(f, "context {number} (not open)"),
        }
    }
}

impl fmt::Debug for ModelContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.held() {
            Some(device) => write!(f, "ModelContext({})", device.capabilities().target),
            None => f.write_str("ModelContext(not open)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn an_opening_is_lazy_and_tried_again_after_it_failed() {
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&tries);
        let context = ModelContext::lazy(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Err(DeviceError::Unsupported { what: "no driver".into() })
        });
        let other = context.clone();
        assert!(context.is(&other) && !context.is_open());
        assert_eq!(tries.load(Ordering::Relaxed), 0);
        for _ in 0..2 {
            assert_eq!(other.device().err().unwrap().to_string(), "unsupported: no driver");
        }
        assert_eq!(tries.load(Ordering::Relaxed), 2);
        assert_eq!(format!("{context:?}"), "ModelContext(not open)");
    }
}
