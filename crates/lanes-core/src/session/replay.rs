//! Recordings made ready, and bytes going in and out.
//!
//! - A recording is prepared once, with all that a replay needs; a replay allocates nothing.
//! - A failure of the device is final: everything after it is refused with the same cause.
//! - Not here: what a recording says (`record`).

use super::Session;
use super::order::Touched;
use super::record::{Commands, Recording};
use super::region::{Kind, Region, invalid};
use crate::device::{
    Buffer, Completion, Device, DeviceError, Executable, Placement, PrepareOptions, Purpose, Resident, RowCheck, Slot,
};
use crate::lanes::{Capacity, RowId, SeatRows};
use crate::{Signature, session::region::Store};
use std::sync::{Arc, Mutex, PoisonError};

/// Resident plans have one seat and no rows.
const CAPACITY: Capacity = Capacity { rows: 1, max_seats: 1 };
/// Replays of one plan in flight.
const SLOTS: usize = 4;
const SEAT: [SeatRows; 1] = [SeatRows { read: RowId(0), write: RowId(0) }];

/// A recording on its device.
pub(super) struct Ready {
    pub recording: Arc<Recording>,
    pub touched: Touched,
    executable: Executable,
    /// Taken in turn, so that the next one is the one that was submitted longest ago.
    slots: Vec<Slot>,
    next: usize,
    rows: RowCheck,
}

impl Ready {
    pub fn new(device: &dyn Device, recording: Arc<Recording>, overlap: bool) -> Result<Self, DeviceError> {
        let plan = &recording.plan;
        let signature = Signature { name: plan.name.clone(), ..Signature::default() };
        let checked = plan.check(&signature).map_err(|error| error.of_plan(&plan.name))?;
        let bound = recording.stores.iter().filter(|store| matches!(store.kind, Kind::Memory { .. }));
        let resident = |store: &Arc<Store>| Ok(Resident { buffer: store.buffer()?, offset: 0 });
        let residents = bound.map(resident).collect::<Result<Vec<_>, DeviceError>>()?;
        let slots = SLOTS.min(device.capabilities().slots_max);
        let options = PrepareOptions { capacity: CAPACITY, slots, states: &[], residents: &residents, overlap };
        let executable = device.prepare(&checked, &options)?;
        let slots = (0..slots).map(|_| device.lease(&executable)).collect::<Result<_, _>>()?;
        let touched = Touched::of(&recording);
        Ok(Self { recording, touched, executable, slots, next: 0, rows: RowCheck::stateless(CAPACITY) })
    }

    pub fn submit(&mut self, device: &dyn Device, after: &[Completion]) -> Result<Completion, DeviceError> {
        // Replays end in order: where the slot that was submitted longest ago is in flight, all of them are.
        let slots = self.slots.len();
        let all = |error| match error {
            DeviceError::Busy { depth } => DeviceError::Busy { depth: depth.max(slots) },
            other => other,
        };
        let slot = &mut self.slots[self.next];
        let completion = device.submit(&self.executable, slot, self.rows.check(&SEAT)?, after).map_err(all)?;
        self.next = (self.next + 1) % self.slots.len();
        Ok(completion)
    }
}

/// Host memory for what several regions hold, and all that fetching them takes; reserved once and used again.
pub struct Readback {
    ready: Ready,
    staging: Buffer,
    /// Where each region starts in `host`, and past the last.
    starts: Vec<usize>,
    host: Vec<u8>,
}

impl Readback {
    /// What region `at` held when it was fetched last; zeros before. Empty past the last region.
    pub fn bytes(&self, at: usize) -> &[u8] {
        let range = self.starts.get(at).zip(self.starts.get(at + 1));
        range.and_then(|(&start, &end)| self.host.get(start..end)).unwrap_or_default()
    }

    /// The same as numbers; `None` where the bytes are not whole numbers of that type.
    pub fn get<T: bytemuck::AnyBitPattern>(&self, at: usize) -> Option<&[T]> {
        bytemuck::try_cast_slice(self.bytes(at)).ok()
    }
}

impl Session {
    /// Runs the plan recorded under `key`, after all that was submitted before and touches the same bytes. It allocates
    /// nothing once it has run. While another thread submits to this session it waits its turn; where replays do not
    /// [overlap](super::SessionBuilder::overlap), submitting may be all of the run.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] where nothing is recorded under `key` or memory of it went, [`DeviceError::Busy`] while
    /// as many replays of it run as there are slots or the device takes no more, and the device's own. What fails while
    /// it runs is in the completion.
    pub fn replay(&self, key: &str) -> Result<Completion, DeviceError> {
        self.replay_after(key, &[])
    }

    /// The same, and after `after`.
    pub(crate) fn replay_after(&self, key: &str, after: &[Completion]) -> Result<Completion, DeviceError> {
        self.usable()?;
        let _replay = tracing::debug_span!("replay", session = %self.life().name, key).entered();
        let ready = self.ready(key)?;
        // Held only while another thread submits, which any submission of the session waits for anyway (`order`).
        let mut ready = ready.lock().unwrap_or_else(PoisonError::into_inner);
        let completion = self.submit_after(&mut ready, after)?;
        drop(ready);
        self.watch(&completion);
        Ok(completion)
    }

    /// Copies `bytes` into a region, after what was submitted before; the source is free when it returns.
    ///
    /// # Errors
    /// A region that is foreign, stale, scratch or weights; another number of bytes than the region has.
    pub fn upload(&self, region: &Region, bytes: &[u8]) -> Result<(), DeviceError> {
        self.usable()?;
        let buffer = self.memory_of(region, "uploaded to", bytes.len())?;
        self.writing(region, || {
            let mut at = 0;
            region.runs().try_for_each(|run| {
                let from = &bytes[at..at + run.len()];
                at += run.len();
                self.device().write(&buffer, run.start as u64, from)
            })
        })
    }

    /// Copies a region out, after what was submitted before.
    ///
    /// # Errors
    /// A region that is foreign, stale, scratch or weights; another number of bytes than the region has.
    pub fn download(&self, region: &Region, into: &mut [u8]) -> Result<(), DeviceError> {
        self.usable()?;
        let buffer = self.memory_of(region, "downloaded from", into.len())?;
        self.reading(region, || {
            let mut at = 0;
            region.runs().try_for_each(|run| {
                let to = &mut into[at..at + run.len()];
                at += run.len();
                self.device().read(&buffer, run.start as u64, to)
            })
        })
    }

    /// Shows `visit` a shared region where it lies, once what was submitted before is done with it. `visit` must not use
    /// the session where another thread may upload to the region or download it meanwhile: each would wait for the other.
    ///
    /// # Errors
    /// A region that is foreign or stale, one of other memory, and one in several rows.
    pub fn map(&self, region: &Region, visit: &mut dyn FnMut(&mut [u8])) -> Result<(), DeviceError> {
        self.usable()?;
        let at = region.contiguous("is mapped")?;
        let buffer = self.memory_of(region, "mapped from", region.bytes())?;
        if matches!(region.store.kind, Kind::Memory { shared: false, .. }) {
            let label = region.label();
            return Err(invalid(format!("region {label} is mapped, and is not shared: allocate_shared gives such")));
        }
        self.visiting(region, || self.device().map(&buffer, at.offset as u64, at.row_bytes, visit))
    }

    /// Reserves what [`readback`](Self::readback) of these regions needs: one submission fetches them all.
    ///
    /// # Errors
    /// A region that is foreign, stale or scratch, and those of preparing the copies.
    pub fn reserve(&self, regions: &[&Region]) -> Result<Readback, DeviceError> {
        self.usable()?;
        let mut starts = vec![0];
        for region in regions {
            let start = starts.last().copied().unwrap_or(0);
            let end = region.bytes().checked_add(start).filter(|&end| end <= isize::MAX as usize);
            starts.push(end.ok_or_else(|| invalid(format!("a readback of more than {} bytes", isize::MAX)))?);
        }
        let all = starts.last().copied().unwrap_or(0);
        let staged = self.region("readback", all, Placement::Readback)?;
        let mut commands = Commands::new("readback", Some(self.life()), None);
        for (region, range) in regions.iter().zip(starts.windows(2)) {
            commands.copy(region, &staged.slice(range[0]..range[1])?)?;
        }
        let ready = self.note(Ready::new(&**self.device(), Arc::new(commands.finish()), false))?;
        Ok(Readback { ready, staging: staged.store.buffer()?, starts, host: vec![0; all] })
    }

    /// Fetches all regions of `readback` at once, after what was submitted before, and waits for them. It allocates
    /// nothing.
    ///
    /// # Errors
    /// A region that went, and the device's own; what was fetched before is then still there.
    pub fn readback(&self, readback: &mut Readback) -> Result<(), DeviceError> {
        self.usable()?;
        self.note(self.submit(&mut readback.ready)?.wait())?;
        self.note(self.device().read(&readback.staging, 0, &mut readback.host))
    }

    /// Waits for all that was submitted.
    ///
    /// # Errors
    /// The first failure among what still ran.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let pending = std::mem::take(&mut self.state().pending);
        let mut first = Ok(());
        for completion in &pending {
            let ended = self.note(completion.wait().map(drop));
            first = first.and(ended);
        }
        first?;
        self.usable()
    }

    /// The memory of a region that `bytes` bytes are to be `what`.
    fn memory_of(&self, region: &Region, what: &str, bytes: usize) -> Result<Buffer, DeviceError> {
        region.store.check(&[self.life()])?;
        if bytes != region.bytes() {
            let (label, has) = (region.label(), region.bytes());
            return Err(invalid(format!("{bytes} bytes {what} region {label}, which has {has}")));
        }
        region.store.buffer()
    }

    fn ready(&self, key: &str) -> Result<Arc<Mutex<Ready>>, DeviceError> {
        let ready = self.state().plans.get(key).cloned();
        ready.ok_or_else(|| invalid(format!("nothing is recorded as {key} in {}", self.life().name)))
    }

    /// Remembers what still runs, and forgets what does no more.
    fn watch(&self, completion: &Completion) {
        if completion.is_done() {
            return;
        }
        let mut state = self.state();
        state.pending.retain(|pending| !pending.is_done());
        state.pending.push(completion.clone());
    }

    /// The recording under `key`.
    pub(super) fn recording(&self, key: &str) -> Result<Arc<Recording>, DeviceError> {
        let ready = self.ready(key)?;
        let ready = ready.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(&ready.recording))
    }

    pub(crate) fn region(&self, label: &str, bytes: usize, placement: Placement) -> Result<Region, DeviceError> {
        self.usable()?;
        super::record::sized(label, bytes)?;
        let buffer = self.note(self.device().allocate(label, Purpose::State, placement, bytes as u64))?;
        let kind = Kind::Memory {
            buffer: Mutex::new(Some(buffer)),
            ledger: Mutex::default(),
            shared: placement == Placement::Shared,
        };
        let store = Store::new(self.life(), label, bytes, kind);
        self.state().remember(&store);
        Ok(Region::whole(store))
    }
}
