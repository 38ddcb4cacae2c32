//! A laned model written with kernels: no file, no plan by hand.
//!
//! ```text
//! input, state, output ──> regions ──commands──> build ──> Definition ──planned──> LanesBuilder
//! ```
//!
//! - A region here is one seat's value. Kernels see the values of all seats of a turn end to end, and are told how many
//!   by [`Index::Seats`](super::Index::Seats); products, copies and fills are said for one seat.
//! - A kernel must treat seats alike and apart: a turn may be run in parts.
//! - Not here: streams and turns (`lanes`).

use super::definition::{Definition, Interface};
use super::record::{Commands, sized};
use super::region::{Kind, Region, Store, Weights};
use crate::DType;
use crate::device::DeviceError;
use std::sync::Arc;

/// Declares a model and records what it does.
pub struct LanedBuilder {
    commands: Commands<'static>,
    interface: Interface,
}

/// One state of a model being built.
#[derive(Clone, Debug)]
pub struct StateRegions {
    /// What the turn before left.
    pub read: Region,
    /// What this turn leaves: all of it is to be written.
    pub next: Region,
}

impl LanedBuilder {
    /// A model that errors and metrics will call `name`.
    pub fn new(name: &str) -> Self {
        Self { commands: Commands::new(name, None, None), interface: Interface::new() }
    }

    /// The next input of a call: a tensor of this type and shape for a seat.
    ///
    /// # Errors
    /// A shape without elements, or with more than there can be.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<Region, DeviceError> {
        let region = self.region(name, dtype, shape)?;
        self.interface = std::mem::take(&mut self.interface).input(name, dtype, shape, &region);
        Ok(region)
    }

    /// The next output of a call.
    ///
    /// # Errors
    /// As [`input`](Self::input).
    pub fn output(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<Region, DeviceError> {
        let region = self.region(name, dtype, shape)?;
        self.interface = std::mem::take(&mut self.interface).output(name, dtype, shape, &region);
        Ok(region)
    }

    /// A state of every stream; `initial` is its value before the first call, zeros if `None`.
    ///
    /// # Errors
    /// As [`input`](Self::input).
    pub fn state(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        initial: Option<Arc<[u8]>>,
    ) -> Result<StateRegions, DeviceError> {
        let read = self.region(name, dtype, shape)?;
        let next = self.region(&format!("{name}_next"), dtype, shape)?;
        self.interface = std::mem::take(&mut self.interface).state(name, dtype, shape, initial, (&read, &next));
        Ok(StateRegions { read, next })
    }

    /// Weights, one value for all seats.
    ///
    /// # Errors
    /// No bytes.
    pub fn weights(&mut self, label: &str, bytes: impl Into<Arc<[u8]>>) -> Result<Region, DeviceError> {
        let bytes = bytes.into();
        self.named(label, bytes.len(), Kind::Weights(Arc::new(Weights::of_bytes(bytes))))
    }

    /// The same from numbers, as [`Commands::contract`] takes them.
    ///
    /// # Errors
    /// No numbers.
    pub fn weights_f32(&mut self, label: &str, values: impl Into<Arc<[f32]>>) -> Result<Region, DeviceError> {
        let values = values.into();
        self.named(label, values.len().saturating_mul(4), Kind::Weights(Arc::new(Weights::of_floats(values))))
    }

    /// Where its commands are recorded.
    pub fn commands(&mut self) -> &mut Commands<'static> {
        &mut self.commands
    }

    /// The definition.
    ///
    /// # Errors
    /// A name given twice, an input, output or state that no command touches.
    pub fn build(self) -> Result<Definition, DeviceError> {
        Definition::new(None, &self.commands.finish(), self.interface)
    }

    fn region(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<Region, DeviceError> {
        let bytes = shape.iter().try_fold(dtype.size(), |bytes, &extent| bytes.checked_mul(extent));
        let bytes = bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(|| DeviceError::TooLarge {
            what: format!("{name} of shape {shape:?}"),
            bytes: u64::MAX,
            limit: isize::MAX as u64,
        })?;
        self.named(name, bytes, Kind::Named)
    }

    fn named(&self, name: &str, bytes: usize, kind: Kind) -> Result<Region, DeviceError> {
        sized(name, bytes)?;
        Ok(Region::whole(Store::new(self.commands.life(), name, bytes, kind)))
    }
}
