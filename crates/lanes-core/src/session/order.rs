//! What a submission comes after.
//!
//! ```text
//! recording --once--> bytes it reads from before it, bytes it writes
//! submit: after = whoever last wrote what is read (a failed writer makes it Upstream); then: noted as a writer itself
//! ```
//!
//! - What a plan writes before it reads is not read from before it.
//! - Submissions of a session are noted in the order in which the device took them: one at a time.
//! - Not here: which bytes are poisoned (`device::Ledger`), the order of commands within a plan (`hazard`).

use super::Session;
use super::record::Recording;
use super::region::{Kind, Region};
use super::replay::Ready;
use crate::device::{Completion, DeviceError, minus};
use crate::plan::{self, Place, StorageId};
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

/// A region that was cut into more parts is taken for whole: nothing is missed then, and the lists stay short.
const PARTS_MAX: usize = 64;

/// Bytes of a session's memory that a recording touches: the store's place in the recording, and the region in it.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub reads: Vec<(usize, plan::Region)>,
    pub writes: Vec<(usize, plan::Region)>,
}

impl Touched {
    pub fn of(recording: &Recording) -> Self {
        let mut touched = Self::default();
        let mut written = BTreeMap::<usize, Vec<plan::Region>>::new();
        for command in &recording.plan.commands {
            let touches = command.touches();
            let memory = touches.iter().filter_map(|touch| match touch.place {
                Place::Storage(StorageId(id)) => {
                    let at = id as usize;
                    let is_memory = matches!(recording.stores.get(at)?.kind, Kind::Memory { .. });
                    is_memory.then_some((at, touch.region.joined(), touch.access))
                }
                Place::RowRead(_) | Place::RowWritten(_) => None,
            });
            let memory: Vec<_> = memory.collect();
            for (at, region, _) in memory.iter().filter(|(_, _, access)| access.reads()) {
                for part in without(*region, written.get(at).map_or(&[], Vec::as_slice)) {
                    touched.add_read(*at, part.joined());
                }
            }
            for (at, region, _) in memory.iter().filter(|(_, _, access)| access.writes()) {
                let known = written.entry(*at).or_default();
                if !without(*region, known).is_empty() {
                    known.push(*region);
                }
            }
        }
        touched.writes =
            written.into_iter().flat_map(|(at, all)| all.into_iter().map(move |part| (at, part))).collect();
        touched
    }

    fn add_read(&mut self, at: usize, part: plan::Region) {
        if !self.reads.contains(&(at, part)) {
            self.reads.push((at, part));
        }
    }
}

/// The parts of `region` that are in none of `covered`; all of it where that would be too many.
fn without(region: plan::Region, covered: &[plan::Region]) -> Vec<plan::Region> {
    let mut left = vec![region];
    for by in covered {
        if left.is_empty() {
            break;
        }
        let mut next = Vec::new();
        left.iter().for_each(|part| minus(*part, *by, &mut next));
        left = next;
        if left.len() > PARTS_MAX {
            return vec![region];
        }
    }
    left
}

impl Session {
    /// Submits a recording after whoever wrote what it reads.
    pub(super) fn submit(&self, ready: &mut Ready) -> Result<Completion, DeviceError> {
        self.submit_after(ready, &[])
    }

    /// The same, and after `others`.
    pub(super) fn submit_after(&self, ready: &mut Ready, others: &[Completion]) -> Result<Completion, DeviceError> {
        let mut memory = ready.recording.stores.iter().filter(|store| matches!(store.kind, Kind::Memory { .. }));
        memory.try_for_each(|store| store.check(&[self.life()]))?;
        let mut after = self.order();
        after.extend_from_slice(others);
        let recording = Arc::clone(&ready.recording);
        for (at, region) in &ready.touched.reads {
            recording.stores[*at].reading(*region, &mut after);
        }
        let submitted = ready.submit(&**self.device(), &after);
        // A device may use what nobody holds again.
        after.clear();
        let completion = self.note(submitted)?;
        for (at, region) in &ready.touched.writes {
            recording.stores[*at].wrote(*region, &completion);
        }
        Ok(completion)
    }

    /// Runs `transfer`, which copies `region` out, if all that it can see was written well.
    pub(super) fn reading(
        &self,
        region: &Region,
        transfer: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        // Waited for without the lock, so that whoever submits meanwhile waits for the transfer only.
        let result = self.written_well(region).and_then(|()| {
            let mut order = self.order();
            region.store.reading(region.at, &mut order);
            // Nothing is submitted between that look and the transfer: a failed write could be overwritten by then, and
            // its bytes be here all the same.
            transfer()?;
            self.ended_well(order)
        });
        self.note(result)
    }

    /// Runs `visit` once what last wrote `region` has ended, if all of that ended well. The session may be used
    /// meanwhile; what that wrote to `region` has to end well too.
    pub(super) fn visiting(
        &self,
        region: &Region,
        visit: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let result = self.written_well(region).and_then(|()| visit()).and_then(|()| self.written_well(region));
        self.note(result)
    }

    /// Waits for what last wrote `region`; [`DeviceError::Upstream`] where any of that failed.
    fn written_well(&self, region: &Region) -> Result<(), DeviceError> {
        // Taken under the lock, so that nothing is between its submission and its note.
        let mut order = self.order();
        region.store.reading(region.at, &mut order);
        self.ended_well(order)
    }

    /// Lets the lock go and waits for those named.
    fn ended_well(&self, mut order: MutexGuard<'_, Vec<Completion>>) -> Result<(), DeviceError> {
        let mut writers = std::mem::take(&mut *order);
        drop(order);
        let failed = writers.iter().find_map(|writer| writer.wait().err());
        // Given back for its room.
        writers.clear();
        *self.order() = writers;
        failed.map_or(Ok(()), |cause| Err(cause.upstream()))
    }

    /// Runs `transfer`, which writes all of `region`.
    pub(super) fn writing(
        &self,
        region: &Region,
        transfer: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let _order = self.order();
        self.note(transfer())?;
        region.store.wrote(region.at, &Completion::ready(Ok(Default::default())));
        Ok(())
    }

    fn order(&self) -> MutexGuard<'_, Vec<Completion>> {
        let mut after = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        after.clear();
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::record::Commands;
    use crate::session::region::{Life, Store};
    use std::sync::Mutex;

    #[test]
    fn what_a_plan_writes_first_is_not_read_from_before_it() {
        let life = Life::new("session a".into());
        let memory = |label: &str| {
            let kind = Kind::Memory { buffer: Mutex::new(None), ledger: Mutex::default(), shared: false };
            Region::whole(Store::new(&life, label, 64, kind))
        };
        let (a, b) = (memory("a"), memory("b"));
        let mut commands = Commands::new("p", Some(&life), None);
        commands.fill(&a.slice(0..32).unwrap(), 1).unwrap();
        commands.copy(&a, &b).unwrap();
        commands.copy(&b.slice(0..16).unwrap(), &a.slice(16..32).unwrap()).unwrap();
        let touched = Touched::of(&commands.finish());
        // The distance of runs means nothing where there is one.
        let runs = |touched: &[(usize, plan::Region)]| -> Vec<_> {
            touched.iter().map(|(at, region)| (*at, region.offset, region.row_bytes, region.rows)).collect()
        };
        assert_eq!(runs(&touched.reads), [(0, 32, 32, 1)]);
        assert_eq!(runs(&touched.writes), [(0, 0, 32, 1), (1, 0, 64, 1)]);
    }
}
