//! What every device of queued work answers alike: handles checked, then passed on to its `flight`.

use super::Flight;
use super::buffer::{Held, Move};
use super::engine::Engine;
use super::slot::{Leased, Ready, SlotCell};
use crate::device::{
    Budget, Buffer, Capabilities, Completion, Device, DeviceError, Executable, MemoryReport, MemoryUse, Placement,
    PrepareOptions, Purpose, Resident, RowOp, Slot, StateRows, TurnRows, TurnTimes, Turnstile,
};
use crate::lanes::{Capacity, RowId, SeatRows};
use crate::plan::Checked;
use crate::{Port, Scope};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Tells the handles of one open device from those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceId(u64);

/// One open device's share of what all have. Dropping it ends the device's threads; what is queued then ends as
/// [`DeviceError::Cancelled`].
pub struct Host<E: Engine> {
    id: DeviceId,
    capabilities: Capabilities,
    budget: Budget,
    flight: Arc<Flight<E>>,
}

/// What a plan was bound to, in its options' order.
pub struct Bindings<E: Engine> {
    /// The rows of each state.
    pub states: Vec<Arc<Held<E>>>,
    /// The memory of each binding, and where it starts there. It lies inside where the plan names the binding.
    pub residents: Vec<(Arc<Held<E>>, usize)>,
}

/// A plan made ready.
pub struct Made<E: Engine> {
    /// What turns run.
    pub plan: E::Plan,
    /// For each slot that was asked for, what it owns.
    pub slots: Vec<E::Staging>,
    /// Bytes that were charged for all of it, or are shared with others.
    pub memory: MemoryUse,
}

/// A backend whose work is an [`Engine`]'s: what is its own. It is a [`Device`].
pub trait Backend: Sized + Send + Sync + 'static {
    /// What does the work.
    type Engine: Engine;

    /// Made when the device was opened.
    fn host(&self) -> &Host<Self::Engine>;

    /// `len` zeroed bytes for `what`, which are charged already.
    fn zeroed(
        &self,
        what: &str,
        placement: Placement,
        len: usize,
    ) -> Result<<Self::Engine as Engine>::Memory, DeviceError>;

    /// Makes `plan` ready. `options` were [checked](PrepareOptions::check), `bound` is what they name, no two states lie in one
    /// buffer, and the executable will keep all buffers alive.
    fn ready(
        &self,
        plan: &Checked<'_>,
        options: &PrepareOptions<'_>,
        bound: &Bindings<Self::Engine>,
    ) -> Result<Made<Self::Engine>, DeviceError>;

    /// [`Device::measure`] of a turn of `seats`, which were checked for the options' capacity. Nobody else touches what is bound
    /// meanwhile. `inputs` are those of the signature, each as long as that many seats take.
    fn measured(
        &self,
        plan: &Checked<'_>,
        options: &PrepareOptions<'_>,
        bound: &Bindings<Self::Engine>,
        turn: &Sample<'_>,
    ) -> Result<Option<TurnTimes>, DeviceError> {
        let _ = (plan, options, bound, turn);
        Ok(None)
    }

    /// The same device opened anew, empty.
    fn anew(&self) -> Result<Self, DeviceError>;
}

/// A turn whose time is asked for.
pub struct Sample<'a> {
    /// Its inputs by port of the signature, stacked.
    pub inputs: &'a [&'a [u8]],
    /// Its seats, at least one.
    pub seats: &'a [SeatRows],
    /// How often it is run.
    pub times: usize,
}

fn foreign(what: &str) -> DeviceError {
    DeviceError::Invalid { what: format!("this {what} belongs to another device") }
}

/// That `turn` was checked for a plan of `capacity`.
fn check_turn(capacity: Capacity, has_states: bool, turn: &TurnRows<'_>) -> Result<(), DeviceError> {
    if turn.capacity() == capacity && (turn.rows_checked() || !has_states) {
        return Ok(());
    }
    let what = format!("a turn checked for {:?}, on a plan of {capacity:?}", turn.capacity());
    Err(DeviceError::Invalid { what })
}

fn address(what: &str, bytes: u64) -> Result<usize, DeviceError> {
    let len = usize::try_from(bytes).ok().filter(|&len| len <= isize::MAX as usize);
    len.ok_or_else(|| DeviceError::unaddressable(what.to_owned(), bytes))
}

impl<E: Engine> Host<E> {
    /// Of a device just opened.
    pub fn new(engine: E, capabilities: Capabilities, budget: Budget) -> Self {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let id = DeviceId(OPENED.fetch_add(1, Ordering::Relaxed));
        Self { id, capabilities, budget, flight: Arc::new(Flight::new(engine)) }
    }

    /// What does the work.
    pub fn engine(&self) -> &E {
        &self.flight.engine
    }

    /// What all that the device holds is charged to.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    fn own(&self, buffer: &Buffer, what: &str) -> Result<Arc<Held<E>>, DeviceError> {
        buffer.object::<Held<E>>().filter(|buffer| buffer.device == self.id).ok_or_else(|| foreign(what))
    }

    fn ready(&self, executable: &Executable) -> Result<Arc<Ready<E>>, DeviceError> {
        let ready = executable.object::<Ready<E>>().filter(|ready| ready.device == self.id);
        ready.ok_or_else(|| foreign("executable"))
    }

    fn bindings(&self, plan: &str, options: &PrepareOptions<'_>) -> Result<Bindings<E>, DeviceError> {
        let states = options.states.iter().map(|state| self.own(state.buffer(), "state"));
        let states = states.collect::<Result<Vec<_>, _>>()?;
        let resident = |resident: &Resident| {
            // The options' check keeps the offset inside the buffer where the plan names the binding.
            let offset = usize::try_from(resident.offset).unwrap_or(0);
            Ok((self.own(&resident.buffer, "resident memory")?, offset))
        };
        let residents = options.residents.iter().map(resident).collect::<Result<Vec<_>, _>>()?;
        let mut sorted: Vec<_> = states.iter().map(Arc::as_ptr).collect();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(DeviceError::Invalid { what: format!("two states of plan {plan} lie in one buffer") });
        }
        Ok(Bindings { states, residents })
    }
}

impl<E: Engine> Bindings<E> {
    /// The buffers, each once.
    fn buffers(self) -> Box<[Arc<Held<E>>]> {
        let mut buffers = self.states;
        buffers.extend(self.residents.into_iter().map(|(buffer, _)| buffer));
        buffers.sort_by_key(Arc::as_ptr);
        buffers.dedup_by(|a, b| Arc::ptr_eq(a, b));
        buffers.into()
    }
}

impl<E: Engine> Drop for Host<E> {
    fn drop(&mut self) {
        self.flight.close();
    }
}

impl<B: Backend> Device for B {
    fn capabilities(&self) -> &Capabilities {
        &self.host().capabilities
    }

    fn allocate(&self, what: &str, purpose: Purpose, placement: Placement, bytes: u64) -> Result<Buffer, DeviceError> {
        let (host, len) = (self.host(), address(what, bytes)?);
        let charge = host.budget.charge(purpose, what, bytes)?;
        let (memory, turnstile) = (self.zeroed(what, placement, len)?, Turnstile::default());
        let held = Held::<B::Engine> { memory, turnstile, device: host.id, placement, _charge: charge };
        Ok(Buffer::new(Arc::new(held)))
    }

    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let buffer = self.host().own(buffer, "buffer")?;
        let start = buffer.range(offset, bytes.len())?;
        let mut passage = self.host().flight.pass(&buffer);
        self.host().engine().write(passage.stretch(start, bytes.len()), bytes)
    }

    fn read(&self, buffer: &Buffer, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let buffer = self.host().own(buffer, "buffer")?;
        let start = buffer.range(offset, into.len())?;
        let mut passage = self.host().flight.pass(&buffer);
        self.host().engine().read(passage.stretch(start, into.len()), into)
    }

    fn copy(
        &self,
        from: (&Buffer, u64),
        to: (&Buffer, u64),
        bytes: u64,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        let (host, len) = (self.host(), address("a copy", bytes)?);
        let own = |(buffer, at): (&Buffer, u64)| Ok::<_, DeviceError>((host.own(buffer, "buffer")?, at));
        let motion = Move::copy(own(from)?, own(to)?, len)?;
        host.engine().health()?;
        host.flight.motion(motion, after)
    }

    fn map(
        &self,
        buffer: &Buffer,
        offset: u64,
        bytes: usize,
        visit: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let own = self.host().own(buffer, "buffer")?;
        if buffer.placement() == Placement::Device {
            let what = "the host sees no memory placed as Device; Upload, Readback and Shared are mapped".to_string();
            return Err(DeviceError::Invalid { what });
        }
        let start = own.range(offset, bytes)?;
        let mut passage = self.host().flight.pass(&own);
        self.host().engine().health()?;
        visit(self.host().engine().map(passage.stretch(start, bytes)));
        Ok(())
    }

    fn rows(&self, state: &StateRows, op: RowOp) -> Result<Completion, DeviceError> {
        state.check(op)?;
        let host = self.host();
        let (buffer, len) = (host.own(state.buffer(), "buffer")?, state.row_bytes());
        let at = |row: RowId| (Arc::clone(&buffer), u64::from(row.0) * len as u64);
        let motion = match op {
            // A row over itself stays, in its turn.
            RowOp::Copy { from, to } => Move::copy(at(from), at(to), if from == to { 0 } else { len })?,
            RowOp::Fill { row, byte } => Move::fill(at(row), byte, len)?,
            RowOp::Reset { row } => Move::copy(at(state.initial_row()), at(row), len)?,
        };
        host.engine().health()?;
        host.flight.motion(motion, &[])
    }

    fn prepare(&self, plan: &Checked<'_>, options: &PrepareOptions<'_>) -> Result<Executable, DeviceError> {
        let host = self.host();
        options.check(plan, &host.capabilities)?;
        host.engine().health()?;
        let bound = host.bindings(&plan.plan().name, options)?;
        let Made { plan, slots, memory } = Backend::ready(self, plan, options, &bound)?;
        let entered = bound.buffers();
        let seats_max = options.capacity.max_seats as usize;
        let cells = slots.into_iter().map(|staging| Arc::new(SlotCell::new(staging, seats_max, entered.len())));
        let cells: Vec<_> = cells.collect();
        Ok(Executable::new(Arc::new(Ready::<B::Engine> {
            plan,
            device: host.id,
            capacity: options.capacity,
            has_states: !options.states.is_empty(),
            overlap: options.overlap,
            entered,
            memory,
            slots: cells.len(),
            free: Mutex::new(cells),
        })))
    }

    fn lease(&self, executable: &Executable) -> Result<Slot, DeviceError> {
        Ok(Slot::new(Box::new(Leased::of(self.host().ready(executable)?)?)))
    }

    fn submit(
        &self,
        executable: &Executable,
        slot: &mut Slot,
        turn: TurnRows<'_>,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        let (host, asked) = (self.host(), self.host().ready(executable)?);
        let slot = slot.object_mut::<Leased<B::Engine>>().ok_or_else(|| foreign("slot"))?;
        if !Arc::ptr_eq(&slot.ready, &asked) {
            return Err(DeviceError::Invalid { what: "this slot is of another executable".into() });
        }
        check_turn(asked.capacity, asked.has_states, &turn)?;
        slot.idle()?;
        host.engine().health()?;
        host.flight.turn(slot, turn, after)
    }

    fn measure(
        &self,
        plan: &Checked<'_>,
        options: &PrepareOptions<'_>,
        inputs: &[&[u8]],
        turn: TurnRows<'_>,
        samples: usize,
    ) -> Result<Option<TurnTimes>, DeviceError> {
        let host = self.host();
        let options = PrepareOptions { slots: 1, ..*options };
        options.check(plan, &host.capabilities)?;
        host.engine().health()?;
        check_turn(options.capacity, !options.states.is_empty(), &turn)?;
        let ports = &plan.signature().inputs;
        let fits = |(port, given): (&Port, &&[u8])| {
            let seats = if port.scope == Scope::Seat { turn.seats().len() } else { 1 };
            port.bytes().checked_mul(seats) == Some(given.len())
        };
        if inputs.len() != ports.len() || !ports.iter().zip(inputs).all(fits) {
            let (name, seats) = (&plan.plan().name, turn.seats().len());
            let what = format!(
                "inputs of {:?} bytes for {seats} seats of {name}",
                inputs.iter().map(|given| given.len()).collect::<Vec<_>>()
            );
            return Err(DeviceError::Invalid { what });
        }
        let bound = host.bindings(&plan.plan().name, &options)?;
        // Handles to the same buffers, so that these stay whole while `bound` is used.
        let buffers = Bindings { states: bound.states.clone(), residents: bound.residents.clone() }.buffers();
        let _entered = host.flight.enter(&buffers);
        self.measured(plan, &options, &bound, &Sample { inputs, seats: turn.seats(), times: samples })
    }

    fn memory(&self) -> MemoryReport {
        let Host { budget, capabilities, .. } = self.host();
        MemoryReport { used: budget.used(), budget: budget.limit(), total: capabilities.memory_bytes }
    }

    fn health(&self) -> Result<(), DeviceError> {
        self.host().engine().health()
    }

    fn reopen(&self) -> Result<Arc<dyn Device>, DeviceError> {
        Ok(Arc::new(self.anew()?))
    }
}
