//! The interpreter as a target: what every device is compared with, and the host that runs reference functions.

use super::{Actual, Stop, Target};
use crate::interp::{self, Argument, Limits};
use crate::ir::Kernel;
use crate::module::Module;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Kernels of one module, run by [`interp`] with its checks.
#[derive(Debug)]
pub struct Interpreted<'m> {
    module: &'m Module,
    config: &'m BTreeMap<String, String>,
    limits: Limits,
    kernels: BTreeMap<String, Rc<Kernel>>,
    storages: BTreeMap<usize, Vec<u8>>,
}

impl<'m> Interpreted<'m> {
    /// Of the kernels of `module` with `config` bound; `limits` hold for each launch.
    pub const fn new(module: &'m Module, config: &'m BTreeMap<String, String>, limits: Limits) -> Self {
        Self { module, config, limits, kernels: BTreeMap::new(), storages: BTreeMap::new() }
    }

    fn kernel(&mut self, name: &str) -> Result<Rc<Kernel>, Stop> {
        if let Some(kernel) = self.kernels.get(name) {
            return Ok(Rc::clone(kernel));
        }
        let kernel = self.module.specialise(name, self.config).map_err(|errors| Stop::Error(errors.to_string()))?;
        let kernel = Rc::new(kernel);
        self.kernels.insert(name.to_owned(), Rc::clone(&kernel));
        Ok(kernel)
    }

    /// A storage's bytes; empty if it was never written.
    pub(super) fn bytes(&self, storage: usize) -> &[u8] {
        self.storages.get(&storage).map_or(&[], Vec::as_slice)
    }
}

impl Target for Interpreted<'_> {
    fn write(&mut self, storage: usize, bytes: &[u8]) -> Result<(), Stop> {
        self.storages.insert(storage, bytes.to_vec());
        Ok(())
    }

    fn read(&mut self, storage: usize, into: &mut [u8]) -> Result<(), Stop> {
        let bytes = self.bytes(storage);
        let count = into.len().min(bytes.len());
        into[..count].copy_from_slice(&bytes[..count]);
        Ok(())
    }

    fn launch(&mut self, kernel: &str, workload: &[u64], actuals: &mut [Actual]) -> Result<(), Stop> {
        let name = kernel;
        let kernel = self.kernel(name)?;
        let geometry =
            kernel.launch.geometry(workload).map_err(|why| Stop::Error(format!("kernel `{name}`: {why}")))?;
        // Windows of one storage are parts of its bytes, or of another window that holds them.
        let mut arguments: Vec<Option<Argument<'_>>> = actuals.iter().map(|_| None).collect();
        let mut windows: BTreeMap<usize, Vec<(Range<u64>, usize)>> = BTreeMap::new();
        for (at, actual) in actuals.iter().enumerate() {
            match actual {
                Actual::Scalar(slot) => arguments[at] = Some(Argument::Scalar(*slot)),
                Actual::Tensor { storage, bytes, .. } => {
                    windows.entry(*storage).or_default().push((bytes.clone(), at));
                }
            }
        }
        for (storage, bytes) in &mut self.storages {
            let Some(mut windows) = windows.remove(storage) else { continue };
            // The longest of those that begin together comes first.
            windows.sort_by_key(|(window, at)| (window.start, std::cmp::Reverse(window.end), *at));
            let (mut rest, mut behind) = (bytes.as_mut_slice(), 0u64);
            let mut holder: Option<(Range<u64>, usize)> = None;
            for (window, at) in windows {
                match &holder {
                    Some((held, argument)) if window.start < held.end && window.end <= held.end => {
                        let start = (window.start - held.start) as usize;
                        let bytes = (window.end - window.start) as usize;
                        arguments[at] = Some(Argument::Part { argument: *argument, start, bytes });
                        continue;
                    }
                    Some((held, _)) if window.start < held.end => {
                        let what = format!("kernel `{name}` is given tensors that overlap in part");
                        return Err(Stop::Unsupported(what));
                    }
                    _ => {}
                }
                let missing = || Stop::Error(format!("kernel `{name}`: a tensor ends past its storage"));
                let skip = usize::try_from(window.start - behind).map_err(|_| missing())?;
                let length = usize::try_from(window.end - window.start).map_err(|_| missing())?;
                let (_, tail) = rest.split_at_mut_checked(skip).ok_or_else(missing)?;
                let (part, tail) = tail.split_at_mut_checked(length).ok_or_else(missing)?;
                (rest, behind) = (tail, window.end);
                arguments[at] = Some(Argument::Buffer(part));
                holder = Some((window, at));
            }
        }
        let mut arguments: Vec<Argument<'_>> =
            arguments.into_iter().map(|argument| argument.unwrap_or(Argument::Scalar(0))).collect();
        interp::run(&kernel, geometry, &mut arguments, self.limits)
            .map_err(|fault| Stop::Error(format!("kernel `{name}`: {fault}")))
    }

    fn clear(&mut self) {
        self.storages.clear();
    }
}
