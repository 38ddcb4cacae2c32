//! Weights that the executables of one device share.
//!
//! ```text
//! prepare ──address, length, columns, precision──> known and alive: shared ─┐
//!                                  └──> charged, packed, noted ──┴─> Arc held by the executable; the last one forgets it
//! ```
//!
//! - An entry is for the very `Arc` that it was made from: its `Weak` keeps that address from being used for another.
//!   Weights whose `Arc` is gone while an executable still runs with them therefore keep its memory too.
//! - Bytes are charged once, however many executables hold them.
//! - Not here: how a matrix is packed (`contract`).

use crate::contract::Packed;
use lanes_core::device::{Charge, DeviceError};
use lanes_core::plan::Precision;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Address, length, columns and what they are rounded to; for plain bytes no columns and no rounding.
type Key = (usize, usize, usize, Precision);

/// What was given, whose address nobody else gets while this is held, and what was made of it.
type Made<S, T> = (Weak<S>, Weak<Held<T>>);

#[derive(Default)]
struct Known {
    matrices: HashMap<Key, Made<[f32], Packed>>,
    constants: HashMap<Key, Made<[u8], ()>>,
}

/// What is shared on one device.
#[derive(Clone, Default)]
pub(crate) struct Weights(Arc<Mutex<Known>>);

/// Something shared, with what it is charged.
pub(crate) struct Held<T> {
    pub value: T,
    pub charge: Charge,
    key: Key,
    home: Weights,
}

impl Weights {
    fn known(&self) -> MutexGuard<'_, Known> {
        // Critical sections are single operations on a map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The packed form of `source`, rounded to `precision`, in `columns` columns: what another executable has, or what `make` gives.
    pub fn matrix(
        &self,
        source: &Arc<[f32]>,
        columns: usize,
        precision: Precision,
        make: impl FnOnce() -> Result<(Packed, Charge), DeviceError>,
    ) -> Result<Arc<Held<Packed>>, DeviceError> {
        let key = (Arc::as_ptr(source).cast::<f32>() as usize, source.len(), columns, precision);
        let known = self.known().matrices.get(&key).and_then(|(_, held)| held.upgrade());
        if let Some(known) = known {
            return Ok(known);
        }
        let (value, charge) = make()?;
        let held = Arc::new(Held { value, charge, key, home: self.clone() });
        self.known().matrices.insert(key, (Arc::downgrade(source), Arc::downgrade(&held)));
        Ok(held)
    }

    /// What stands for `source`, charged by `make` unless another executable has it.
    pub fn constant(
        &self,
        source: &Arc<[u8]>,
        make: impl FnOnce() -> Result<Charge, DeviceError>,
    ) -> Result<Arc<Held<()>>, DeviceError> {
        let key = (Arc::as_ptr(source).cast::<u8>() as usize, source.len(), 0, Precision::F32);
        let known = self.known().constants.get(&key).and_then(|(_, held)| held.upgrade());
        if let Some(known) = known {
            return Ok(known);
        }
        let held = Arc::new(Held { value: (), charge: make()?, key, home: self.clone() });
        self.known().constants.insert(key, (Arc::downgrade(source), Arc::downgrade(&held)));
        Ok(held)
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        let mut known = self.home.known();
        // Another may have taken the place since.
        let matrix = known.matrices.get(&self.key).is_some_and(|(_, held)| held.strong_count() == 0);
        let constant = known.constants.get(&self.key).is_some_and(|(_, held)| held.strong_count() == 0);
        let matrix = if matrix { known.matrices.remove(&self.key) } else { None };
        let constant = if constant { known.constants.remove(&self.key) } else { None };
        drop(known);
        drop((matrix, constant));
    }
}
