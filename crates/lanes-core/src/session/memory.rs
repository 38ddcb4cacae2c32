//! Which memory a recording touches, for who keeps recordings apart.
//!
//! - Not here: which bytes of it, and in which order. A slot that shares memory with another shares all of it.

use super::Session;
use super::region::{Kind, Region, Store};
use crate::device::{Buffer, DeviceError};
use crate::plan::Place;
use std::sync::Arc;

/// Memory that is kept between replays.
pub(crate) struct Footprint {
    /// Tells it from all other memory that lives.
    pub store: usize,
    /// What it is called.
    pub label: String,
    /// Whether it is written.
    pub is_written: bool,
}

fn id(store: &Arc<Store>) -> usize {
    Arc::as_ptr(store) as usize
}

impl Region {
    /// Tells its memory from all other that lives.
    pub(crate) fn store_id(&self) -> usize {
        id(&self.store)
    }

    pub(crate) fn touched(&self, is_written: bool) -> Footprint {
        Footprint { store: self.store_id(), label: self.label().to_string(), is_written }
    }

    /// The buffer it lies in, and its first byte there.
    pub(crate) fn memory(&self) -> Result<(Buffer, usize), DeviceError> {
        Ok((self.store.buffer()?, self.at.offset))
    }
}

impl Session {
    /// The memory that the plan recorded under `key` touches, each once.
    pub(crate) fn touched(&self, key: &str) -> Result<Vec<Footprint>, DeviceError> {
        let recording = self.recording(key)?;
        let touches: Vec<_> = recording.plan.commands.iter().flat_map(|command| command.touches()).collect();
        let memory = recording.stores.iter().enumerate();
        let memory = memory.filter(|(_, store)| matches!(store.kind, Kind::Memory { .. }));
        let touched = memory.map(|(at, store)| Footprint {
            store: id(store),
            label: store.label.clone(),
            is_written: touches.iter().any(|touch| {
                matches!(touch.place, Place::Storage(storage) if storage.0 as usize == at) && touch.access.writes()
            }),
        });
        Ok(touched.collect())
    }
}
