//! A plan on a device, as a model that lanes can serve.
//!
//! `LanedModel::start = check the rows, submit one turn`; `run` also waits for it
//!
//! - Everything derives from the signature: the states' rows and their initial value, staging, what is returned.
//! - Works over any device; what varies per turn is the rows and the stacked inputs.
//! - A plan that can refuse a seat has one more output than the signature: a u32 per seat, 0 or the number of a reason.

use crate::device::{
    Completion, Device, DeviceError, Executable, MemoryUse, Placement, PrepareOptions, Purpose, RowCheck, Slot,
    StateRows, TurnTimes,
};
use crate::lanes::{Capacity, Identity, LanedModel, Refusal, RowId, SeatRows};
use crate::plan::{Plan, identity};
use crate::{DType, Port, Scope, Signature, StateSpec};
use std::sync::{Arc, OnceLock};

/// A model made of one plan.
pub struct PlannedModel {
    device: Arc<dyn Device>,
    plan: Plan,
    signature: Signature,
    /// The signature as the plan has it: with the status output, if it can refuse a seat.
    planned: Signature,
    reasons: Vec<String>,
    prepared: Option<Prepared>,
    /// Computed when first asked for: it reads all weights.
    identity: OnceLock<Identity>,
}

struct Prepared {
    states: Vec<StateRows>,
    executable: Executable,
    slots: Vec<Slot>,
    check: RowCheck,
}

impl PlannedModel {
    /// `plan` on `device`, serving `signature`; [`DeviceError::Invalid`] when the two do not fit.
    pub fn new(device: Arc<dyn Device>, plan: Plan, signature: Signature) -> Result<Self, DeviceError> {
        Self::refusing(device, plan, signature, Vec::new())
    }

    /// [`new`](Self::new) for a plan that refuses seats because of their data: where `reasons` are given, it has one
    /// output more than the signature, the last, of one u32 a seat. 0 is a good seat, and `n` is refused for
    /// `reasons[n - 1]`.
    pub fn refusing(
        device: Arc<dyn Device>,
        plan: Plan,
        signature: Signature,
        reasons: Vec<String>,
    ) -> Result<Self, DeviceError> {
        let mut planned = signature.clone();
        if !reasons.is_empty() {
            let (name, scope) = ("status of the seat".to_string(), Scope::Seat);
            planned.outputs.push(Port { name, dtype: DType::U32, shape: vec![1], scope });
        }
        if let Err(error) = plan.check(&planned) {
            return Err(error.of_plan(&plan.name));
        }
        Ok(Self { device, plan, signature, planned, reasons, prepared: None, identity: OnceLock::new() })
    }

    /// The same model on the same device, not prepared. While one of them is, a device that keeps constants once has them for all.
    pub fn unprepared(&self) -> Self {
        Self {
            device: Arc::clone(&self.device),
            plan: self.plan.clone(),
            signature: self.signature.clone(),
            planned: self.planned.clone(),
            reasons: self.reasons.clone(),
            prepared: None,
            identity: self.identity.clone(),
        }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The device it runs on.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The rows of each state, in the signature's order; none before `prepare`.
    pub fn states(&self) -> &[StateRows] {
        self.prepared.as_ref().map_or(&[], |prepared| &prepared.states)
    }

    /// Bytes it holds on its device, by purpose; none before `prepare`.
    pub fn memory(&self) -> MemoryUse {
        self.prepared.as_ref().map_or(MemoryUse::default(), |prepared| {
            let state = prepared.states.iter().map(|state| state.buffer().bytes()).sum();
            prepared.executable.memory() + MemoryUse { state, ..MemoryUse::default() }
        })
    }

    /// How long turns of `seats` seats take by the device's own clock, `samples` times over, prepared for exactly as many; `None`
    /// where it cannot tell. `inputs` are stacked, by port of the signature; each seat reads a row of its own, which holds the
    /// initial value. Rows are allocated for it and given back: a model that serves is not disturbed.
    pub fn measure(&self, seats: u32, inputs: &[&[u8]], samples: usize) -> Result<Option<TurnTimes>, DeviceError> {
        let count = seats.checked_mul(2).and_then(|rows| rows.checked_add(1));
        let Some(count) = count.filter(|_| seats > 0) else {
            return Err(DeviceError::Invalid { what: format!("turns of {seats} seats") });
        };
        let capacity = Capacity { rows: count, max_seats: seats };
        self.check_budget(capacity, 1)?;
        let states = self.allocate_states(capacity)?;
        for (state, spec) in states.iter().zip(&self.signature.states) {
            let initial = spec.initial.iter().flat_map(|initial| initial.repeat(seats as usize));
            self.device.write(state.buffer(), 0, &initial.collect::<Vec<u8>>())?;
        }
        let rows = |seat| SeatRows { read: RowId(seat), write: RowId(seats + seat) };
        let turn: Vec<SeatRows> = (0..seats).map(rows).collect();
        let mut check = if states.is_empty() { RowCheck::stateless(capacity) } else { RowCheck::new(capacity) };
        let checked = self.plan.check(&self.planned).map_err(|error| error.of_plan(&self.plan.name))?;
        let options = PrepareOptions { capacity, slots: 1, states: &states, residents: &[], overlap: false };
        self.device.measure(&checked, &options, inputs, check.check(&turn)?, samples)
    }

    /// Refuses a capacity whose rows and staging alone pass the budget, before the first of them is allocated.
    fn check_budget(&self, capacity: Capacity, slots: usize) -> Result<(), DeviceError> {
        let report = self.device.memory();
        let Some(budget) = report.budget else { return Ok(()) };
        let total = |bytes: &mut dyn Iterator<Item = usize>| bytes.fold(0u64, |sum, b| sum.saturating_add(b as u64));
        let row = total(&mut self.signature.states.iter().map(StateSpec::bytes));
        let ports = self.signature.inputs.iter().chain(&self.signature.outputs);
        let seat = total(&mut ports.filter(|port| port.scope == Scope::Seat).map(Port::bytes));
        let state = row.saturating_mul(capacity.rows.into());
        let seats = u64::from(capacity.max_seats).saturating_mul(slots as u64);
        let need = state.saturating_add(seat.saturating_mul(seats));
        let used = report.used.total();
        if used.saturating_add(need) <= budget {
            return Ok(());
        }
        let (rows, name) = (capacity.rows, &self.signature.name);
        let what = format!("{rows} rows of {row} bytes and {seats} seats of {seat} bytes of {name}");
        Err(DeviceError::OverBudget { what, need, used, budget })
    }

    fn allocate_states(&self, capacity: Capacity) -> Result<Vec<StateRows>, DeviceError> {
        let name = &self.signature.name;
        let states = self.signature.states.iter().map(|spec| {
            let (what, row_bytes) = (format!("{} rows of state {} of {name}", capacity.rows, spec.input), spec.bytes());
            let bytes = (row_bytes as u64).checked_mul(capacity.rows.into()).ok_or_else(|| DeviceError::TooLarge {
                what: what.clone(),
                bytes: u64::MAX,
                limit: self.device.capabilities().buffer_bytes_max,
            })?;
            let buffer = self.device.allocate(&what, Purpose::State, Placement::Device, bytes)?;
            if let Some(initial) = &spec.initial {
                if initial.len() != row_bytes {
                    let what = format!("initial value of {} is {} bytes, not {row_bytes}", spec.input, initial.len());
                    return Err(DeviceError::Invalid { what });
                }
                // Fresh memory is zero, so a state without an initial value has it already.
                self.device.write(&buffer, u64::from(capacity.initial_row().0) * row_bytes as u64, initial)?;
            }
            StateRows::new(buffer, row_bytes, capacity.rows)
        });
        states.collect()
    }

    /// Where state `state` has `row`, if its rows are `bytes` long.
    fn place(&self, state: usize, row: RowId, bytes: usize) -> Result<(&StateRows, u64), DeviceError> {
        let Some(rows) = self.states().get(state).filter(|rows| rows.row_bytes() == bytes && row.0 < rows.rows())
        else {
            let what = format!("{row} of {bytes} bytes of state {state} of {}: none such is prepared", self.plan.name);
            return Err(DeviceError::Invalid { what });
        };
        Ok((rows, u64::from(row.0) * bytes as u64))
    }
}

impl LanedModel for PlannedModel {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError> {
        self.prepare_slots(capacity, 1)
    }

    fn input_mut(&mut self, port: usize) -> &mut [u8] {
        self.slot_input_mut(0, port)
    }

    fn run(&mut self, seats: &[SeatRows], refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        refused.extend(self.start(0, seats)?.wait()?.refused);
        self.finish(0, seats.len(), refused)
    }

    fn output(&self, port: usize) -> &[u8] {
        self.slot_output(0, port)
    }

    fn slots_max(&self) -> usize {
        self.device.capabilities().slots_max
    }

    fn prepare_slots(&mut self, capacity: Capacity, slots: usize) -> Result<(), DeviceError> {
        // What an earlier prepare holds is given back before the new is charged.
        self.prepared = None;
        if capacity.rows == 0 {
            return Err(DeviceError::Invalid { what: "0 rows, and the initial row takes one".into() });
        }
        self.check_budget(capacity, slots)?;
        let states = self.allocate_states(capacity)?;
        let checked = self.plan.check(&self.planned).map_err(|error| error.of_plan(&self.plan.name))?;
        // With one slot somebody waits for the turn anyway.
        let overlap = slots > 1;
        let options = PrepareOptions { capacity, slots, states: &states, residents: &[], overlap };
        let executable = self.device.prepare(&checked, &options)?;
        let slots = (0..slots).map(|_| self.device.lease(&executable)).collect::<Result<_, _>>()?;
        let check = if states.is_empty() { RowCheck::stateless(capacity) } else { RowCheck::new(capacity) };
        self.prepared = Some(Prepared { states, executable, slots, check });
        Ok(())
    }

    fn slot_input_mut(&mut self, slot: usize, port: usize) -> &mut [u8] {
        // Whoever stacks knows that the slot is not in flight; before `prepare` there is no staging.
        let slot = self.prepared.as_mut().and_then(|prepared| prepared.slots.get_mut(slot));
        slot.and_then(|slot| slot.input_mut(port).ok()).unwrap_or_default()
    }

    fn start(&mut self, slot: usize, seats: &[SeatRows]) -> Result<Completion, DeviceError> {
        let Some(Prepared { executable, slots, check, .. }) = &mut self.prepared else {
            return Err(DeviceError::Invalid { what: format!("{} was run before it was prepared", self.plan.name) });
        };
        let (slots_len, turn) = (slots.len(), check.check(seats)?);
        let Some(slot) = slots.get_mut(slot) else {
            return Err(DeviceError::Invalid {
                what: format!("slot {slot} of {}, which has {slots_len}", self.plan.name),
            });
        };
        // Not `after` the turns before: where one fails, the seats that did not read its rows are still good.
        self.device.submit(executable, slot, turn, &[])
    }

    fn finish(&mut self, slot: usize, seats: usize, refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        let slot = self.prepared.as_ref().and_then(|prepared| prepared.slots.get(slot));
        let Some(slot) = slot.filter(|_| !self.reasons.is_empty()) else { return Ok(()) };
        let statuses = slot.output(self.signature.outputs.len())?.chunks_exact(4);
        for (seat, status) in statuses.take(seats).enumerate() {
            let status = status.iter().rev().fold(0, |word, &byte| word << 8 | usize::from(byte));
            if let Some(number) = status.checked_sub(1) {
                let reason = self.reasons.get(number).cloned();
                let reason = reason.unwrap_or_else(|| format!("the plan gave status {status}"));
                refused.push(Refusal { seat: seat as u32, reason });
            }
        }
        Ok(())
    }

    fn slot_output(&self, slot: usize, port: usize) -> &[u8] {
        let slot = self.prepared.as_ref().and_then(|prepared| prepared.slots.get(slot));
        slot.and_then(|slot| slot.output(port).ok()).unwrap_or_default()
    }

    fn device_bytes(&self) -> u64 {
        self.memory().total()
    }

    fn identity(&self) -> Result<Identity, DeviceError> {
        Ok(*self.identity.get_or_init(|| identity(&self.plan, &self.signature)))
    }

    fn read_row(&self, state: usize, row: RowId, into: &mut [u8]) -> Result<(), DeviceError> {
        let (rows, offset) = self.place(state, row, into.len())?;
        self.device.read(rows.buffer(), offset, into)
    }

    fn write_row(&mut self, state: usize, row: RowId, bytes: &[u8]) -> Result<(), DeviceError> {
        let (rows, offset) = self.place(state, row, bytes.len())?;
        if row == rows.initial_row() {
            return Err(DeviceError::Invalid { what: format!("{row} of {} is the initial row", self.plan.name) });
        }
        self.device.write(rows.buffer(), offset, bytes)
    }
}
