//! Memory that tensors lie in, and copies between any two of them.
//!
//! - Who writes a storage is noted in the order in which the device took the writes: its ledger is held meanwhile.
//! - Bytes that were made by a submission which failed, or never ran, are nobody's to read until they are written anew.
//! - Not here: what the bytes mean (`descriptor`).

use super::descriptor::{Descriptor, Layout, pairs};
use crate::Signature;
use crate::device::{Buffer, Completion, Device, DeviceError, Ledger, PrepareOptions, Resident, RowCheck};
use crate::lanes::{Capacity, RowId, SeatRows};
use crate::plan::{Command, Plan, Region, Storage as PlanStorage, StorageId};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One buffer, and what its bytes wait for.
pub(super) struct Storage {
    pub device: Arc<dyn Device>,
    pub buffer: Buffer,
    ledger: Mutex<Ledger>,
}

impl Storage {
    pub fn new(device: Arc<dyn Device>, buffer: Buffer) -> Arc<Self> {
        Arc::new(Self { device, buffer, ledger: Mutex::default() })
    }

    // A panic while it is held comes from a broken invariant of regions, which no later call repairs or worsens.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until who made `region` has ended, and copies it out.
    pub fn read(&self, region: Region, into: &mut [u8]) -> Result<(), DeviceError> {
        let ended_well = |writers: &[Completion]| {
            writers.iter().try_for_each(|writer| writer.wait().map(drop)).map_err(DeviceError::upstream)
        };
        let mut writers = Vec::new();
        self.ledger().reading(region, &mut writers);
        ended_well(&writers)?;
        writers.clear();
        // Held over the transfer, so that it sees none but these writers: one that fails could be overwritten before it
        // is looked for, and its bytes be here all the same.
        let mut ledger = self.ledger();
        ledger.reading(region, &mut writers);
        self.device.read(&self.buffer, region.offset as u64, into)?;
        drop(ledger);
        ended_well(&writers)
    }
}

/// A tensor's place: the buffer, what lies there, and its first byte.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub buffer: &'a Buffer,
    pub desc: &'a Descriptor,
    pub offset: usize,
}

/// Copies all elements of `from` to those of `to`, which has the same type and shape and at least one element, once `after`
/// have succeeded.
pub(super) fn copy(
    device: &dyn Device,
    from: At<'_>,
    to: At<'_>,
    after: &[Completion],
) -> Result<Completion, DeviceError> {
    if from.desc.layout() == Layout::RowMajor && to.desc.layout() == Layout::RowMajor {
        let (source, target) = ((from.buffer, from.offset as u64), (to.buffer, to.offset as u64));
        return device.copy(source, target, from.desc.bytes() as u64, after);
    }
    // A device copies runs; rows of runs are a plan of it, for this once.
    let resident = |binding: usize, buffer: &Buffer| PlanStorage::Resident { binding, bytes: buffer.bytes() as usize };
    let mut plan = Plan { name: format!("copy of {}", from.desc), ..Plan::default() };
    let source = plan.storage(resident(0, from.buffer));
    let mut residents = vec![Resident { buffer: from.buffer.clone(), offset: 0 }];
    let target: StorageId = if from.buffer.is(to.buffer) {
        source
    } else {
        residents.push(Resident { buffer: to.buffer.clone(), offset: 0 });
        plan.storage(resident(1, to.buffer))
    };
    let pairs = pairs(from.desc, from.offset, to.desc, to.offset);
    plan.commands = pairs.into_iter().map(|(a, b)| Command::Copy { from: (source, a), to: (target, b) }).collect();
    let signature = Signature { name: plan.name.clone(), ..Signature::default() };
    let checked = plan.check(&signature).map_err(|error| error.of_plan(&plan.name))?;
    let capacity = Capacity { rows: 1, max_seats: 1 };
    let options = PrepareOptions { capacity, slots: 1, states: &[], residents: &residents, overlap: true };
    let executable = device.prepare(&checked, &options)?;
    let mut slot = device.lease(&executable)?;
    let seat = [SeatRows { read: RowId(0), write: RowId(0) }];
    device.submit(&executable, &mut slot, RowCheck::stateless(capacity).check(&seat)?, after)
}
