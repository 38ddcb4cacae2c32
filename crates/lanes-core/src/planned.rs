//! A plan on a device, as a model that lanes can serve.
//!
//! `LanedModel::run = check the rows, submit one turn, wait for it`
//!
//! - Everything derives from the signature: the states' rows and their initial value, staging, what is returned.
//! - Works over any device; what varies per turn is the rows and the stacked inputs.
//! - A plan that can refuse a seat has one more output than the signature: a u32 per seat, 0 or the number of a reason.

use crate::device::{
    Device, DeviceError, Executable, MemoryUse, Placement, PrepareOptions, Purpose, RowCheck, Slot, StateRows,
};
use crate::lanes::{Capacity, Identity, LanedModel, Refusal, RowId, SeatRows};
use crate::plan::{Plan, identity};
use crate::{DType, Port, Scope, Signature};
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
    slot: Slot,
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
        // What an earlier prepare holds is given back before the new is charged.
        self.prepared = None;
        if capacity.rows == 0 {
            return Err(DeviceError::Invalid { what: "0 rows, and the initial row takes one".into() });
        }
        let states = self.allocate_states(capacity)?;
        let checked = self.plan.check(&self.planned).map_err(|error| error.of_plan(&self.plan.name))?;
        let options = PrepareOptions { capacity, slots: 1, states: &states };
        let executable = self.device.prepare(&checked, &options)?;
        let slot = self.device.lease(&executable)?;
        let check = if states.is_empty() { RowCheck::stateless(capacity) } else { RowCheck::new(capacity) };
        self.prepared = Some(Prepared { states, executable, slot, check });
        Ok(())
    }

    fn input_mut(&mut self, port: usize) -> &mut [u8] {
        // Between runs the slot is not in flight; before `prepare` there is no staging.
        self.prepared.as_mut().and_then(|prepared| prepared.slot.input_mut(port).ok()).unwrap_or_default()
    }

    fn run(&mut self, seats: &[SeatRows], refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        let Some(prepared) = &mut self.prepared else {
            return Err(DeviceError::Invalid { what: format!("{} was run before it was prepared", self.plan.name) });
        };
        let turn = prepared.check.check(seats)?;
        let completion = self.device.submit(&prepared.executable, &mut prepared.slot, turn, &[])?;
        refused.extend(completion.wait()?.refused);
        if !self.reasons.is_empty() {
            let statuses = prepared.slot.output(self.signature.outputs.len())?.chunks_exact(4);
            for (seat, status) in statuses.take(seats.len()).enumerate() {
                let status = status.iter().rev().fold(0, |word, &byte| word << 8 | usize::from(byte));
                if let Some(number) = status.checked_sub(1) {
                    let reason = self.reasons.get(number).cloned();
                    let reason = reason.unwrap_or_else(|| format!("the plan gave status {status}"));
                    refused.push(Refusal { seat: seat as u32, reason });
                }
            }
        }
        Ok(())
    }

    fn output(&self, port: usize) -> &[u8] {
        let Some(prepared) = &self.prepared else {
            return &[];
        };
        prepared.slot.output(port).unwrap_or_default()
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
