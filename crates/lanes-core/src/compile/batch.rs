//! A batch of kernels: who compiles which, in what order results come back, and all that went wrong.
//!
//! - Every key of a batch is kept already, on its way in another batch, or this batch's to make. A batch makes all of its
//!   own before it waits for others, so two batches never wait for each other.
//! - Threads are the batch's own, for its duration: a compiler may use any pool without one waiting for the other.

use super::cache::{Flight, KernelCache, Key, Lookup};
use super::{KernelCompiler, KernelSource, Target};
use crate::device::DeviceError;
use loom_compiler::CpuImage;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The kernels of a batch that did not build, all of them.
#[derive(Clone, Debug)]
pub struct CompileErrors {
    /// Position in the batch, and why; ascending, never empty.
    pub failed: Vec<(usize, DeviceError)>,
    /// Kernels in the batch.
    pub of: usize,
}

impl std::fmt::Display for CompileErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} kernels did not build", self.failed.len(), self.of)?;
        self.failed.iter().try_for_each(|(at, error)| write!(f, "\n[{at}] {error}"))
    }
}

impl std::error::Error for CompileErrors {}

impl CompileErrors {
    /// As one error of a device: the only one there is, or a [`DeviceError::Build`] that names every kernel and has every
    /// log.
    pub fn into_device_error(mut self) -> DeviceError {
        if self.failed.len() == 1
            && let Some((_, error)) = self.failed.pop()
        {
            return error;
        }
        let name = |(_, error): &(usize, DeviceError)| match error {
            DeviceError::Build { kernel, .. } => Some(kernel.clone()),
            _ => None,
        };
        let kernels: Vec<String> = self.failed.iter().filter_map(name).collect();
        DeviceError::Build { kernel: kernels.join(", "), log: self.to_string() }
    }
}

/// Compiles `sources`, as many at a time as the machine has processors, and gives their images in the same order. Equal
/// kernels share one image; what `cache` has is not compiled again.
///
/// # Errors
/// Every kernel that failed with its reason, not only the first. What built is in the cache, so that a corrected batch
/// compiles little more than the corrections.
///
/// A compiler that panics is a [`DeviceError::Build`] of the kernel it panicked on.
pub fn compile_batch(
    compiler: &dyn KernelCompiler,
    target: &Target,
    cache: &KernelCache,
    sources: &[KernelSource],
) -> Result<Vec<Arc<CpuImage>>, CompileErrors> {
    let key = |(at, source)| {
        let key = unless_it_panics(source, || Ok(Key::of(source, target, compiler.version())));
        key.map_err(|error| CompileErrors { failed: vec![(at, error)], of: sources.len() })
    };
    let keys = sources.iter().enumerate().map(key).collect::<Result<Vec<Key>, _>>()?;
    let mut first = BTreeMap::new();
    for (at, key) in keys.iter().enumerate() {
        first.entry(*key).or_insert(at);
    }
    let found = cache.look_up(first.keys().copied(), sources.len());
    let own: Vec<(Key, &Flight)> = found
        .iter()
        .filter_map(|(key, lookup)| match lookup {
            Lookup::Own(flight) => Some((*key, &**flight)),
            Lookup::Kept(_) | Lookup::Flying(_) => None,
        })
        .collect();
    let make = |key: Key, flight: &Flight| {
        let source = &sources[first[&key]];
        let made = unless_it_panics(source, || match cache.read(&key) {
            Some(image) => Ok((image, false)),
            None => compiler.compile(source, target).map(|image| (image, true)),
        });
        cache.land(&key, flight, made.clone().map(|(image, _)| image));
        // Nobody waits for the file.
        if let Ok((image, true)) = made {
            cache.write(&key, &image);
        }
    };
    side_by_side(own.len(), |at| make(own[at].0, own[at].1));
    cache.settle();

    let results: BTreeMap<Key, Result<Arc<CpuImage>, DeviceError>> = found
        .into_iter()
        .map(|(key, lookup)| match lookup {
            Lookup::Kept(image) => (key, Ok(image)),
            Lookup::Own(flight) | Lookup::Flying(flight) => (key, flight.wait()),
        })
        .collect();
    let (mut images, mut failed) = (Vec::with_capacity(sources.len()), Vec::new());
    for (at, key) in keys.iter().enumerate() {
        match &results[key] {
            Ok(image) => images.push(Arc::clone(image)),
            Err(error) => failed.push((at, error.clone())),
        }
    }
    if failed.is_empty() { Ok(images) } else { Err(CompileErrors { failed, of: sources.len() }) }
}

fn unless_it_panics<T>(source: &KernelSource, make: impl FnOnce() -> Result<T, DeviceError>) -> Result<T, DeviceError> {
    // A panic must not leave others waiting for this kernel. Nothing of ours is halfway changed by one.
    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(DeviceError::Build { kernel: source.symbol.clone(), log: format!("the compiler panicked: {said}") })
    })
}

/// Calls `work` with each of `0..count`, on as many threads as there are processors, two at least.
fn side_by_side(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let run = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            work(at);
        }
    };
    let threads = thread::available_parallelism().map_or(2, NonZeroUsize::get).max(2).min(count);
    thread::scope(|scope| {
        for _ in 1..threads {
            // Without a thread more, this one does it all.
            let builder = thread::Builder::new().name("lanes-compile".into());
            if builder.spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
}
