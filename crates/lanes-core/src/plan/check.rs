//! Whether a plan says something that can be run, for any device.
//!
//! What is checked, so that no backend looks again:
//! - every number that names a port, state, storage or kernel names one; a port or state has one storage, of the size
//!   and scope that the signature gives; every output and state of the signature has one;
//! - every region and every window lies in its storage, is not empty, and its runs do not overlap one another;
//! - constants and inputs are only read, states only gathered and scattered; f32 operands are whole f32s;
//! - a window on shared storage lies in it and holds every use;
//! - within one command nothing is written that another operand of it touches;
//! - nothing is read before it was written, and every byte of every output and of every state's row is written: what
//!   another stream left there is never seen;
//! - weights and bias have the lengths that their contraction says; launch arguments are those the kernel declares.
//!
//! Sums and products of the plan's numbers are checked, so that after it they cannot pass `usize`.

use super::{
    Access, Argument, Command, Contraction, Place, Plan, Region, Scalar, Storage, StorageId, Term, Touch, WINDOW_ALIGN,
};
use crate::device::DeviceError;
use crate::{Scope, Signature};
use loom_compiler::ir::ParameterKind;
use std::collections::BTreeMap;
use std::ops::Range;

/// The most commands of a plan: inferring hazards takes memory in the square of it.
pub const COMMANDS_MAX: usize = 1 << 15;

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A number names nothing.
    #[error("{at} names {what} {id}, and there are {count}")]
    Unknown {
        /// The command or storage.
        at: String,
        /// What kind of thing it names.
        what: &'static str,
        /// The number.
        id: usize,
        /// How many there are.
        count: usize,
    },
    /// Sizes, scopes or counts that must agree do not.
    #[error("{at}: {what}")]
    Mismatch {
        /// The command or storage.
        at: String,
        /// What was found, and what would be accepted.
        what: String,
    },
    /// A region is empty, folds over itself or does not lie in its storage.
    #[error("{at}: {region:?} in storage {storage} of {bytes} bytes {why}")]
    Region {
        /// The command.
        at: String,
        /// The storage it is in.
        storage: u32,
        /// The region.
        region: Region,
        /// Bytes of one seat of the storage.
        bytes: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A storage is used as its kind does not allow.
    #[error("{at} {verb} storage {storage}, {kind}")]
    Access {
        /// The command.
        at: String,
        /// What it does.
        verb: &'static str,
        /// The storage.
        storage: u32,
        /// What the storage is, and how it may be used.
        kind: &'static str,
    },
    /// A command reads bytes that no command wrote before it.
    #[error("{at} reads byte {byte} of storage {storage} before anything writes it")]
    ReadBeforeWrite {
        /// The command.
        at: String,
        /// The storage.
        storage: u32,
        /// The first such byte of a seat.
        byte: usize,
    },
    /// An output or a state's new row is left with bytes from another turn.
    #[error("nothing writes byte {byte} of {what}")]
    Unwritten {
        /// The port or state.
        what: String,
        /// The first such byte of a seat or row.
        byte: usize,
    },
    /// A command writes what another operand of it touches.
    #[error("{at} writes bytes of storage {storage} that another of its operands touches")]
    Overlap {
        /// The command.
        at: String,
        /// The storage.
        storage: u32,
    },
}

impl PlanError {
    /// For a device: the request is wrong, whatever the device.
    pub fn of_plan(self, name: &str) -> DeviceError {
        DeviceError::Invalid { what: format!("plan {name}: {self}") }
    }
}

/// A plan that was checked against its signature; it cannot change while this lives.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    plan: &'a Plan,
    signature: &'a Signature,
}

impl<'a> Checked<'a> {
    /// The plan.
    pub fn plan(&self) -> &'a Plan {
        self.plan
    }

    /// For each storage, whether it is resident and a command writes it.
    pub fn resident_written(&self) -> Vec<bool> {
        let mut written = vec![false; self.plan.storages.len()];
        let touches = self.plan.commands.iter().flat_map(Command::touches);
        for touch in touches.filter(|touch| touch.access.writes()) {
            if let Place::Storage(StorageId(id)) = touch.place {
                written[id as usize] = matches!(self.plan.storages[id as usize], Storage::Resident { .. });
            }
        }
        written
    }

    /// What it was checked against.
    pub fn signature(&self) -> &'a Signature {
        self.signature
    }
}

impl Plan {
    /// The proof that a device can take it, or the first thing that is wrong with it, in program order.
    pub fn check<'a>(&'a self, signature: &'a Signature) -> Result<Checked<'a>, PlanError> {
        let mut check = Check { plan: self, at: String::new(), written: BTreeMap::new() };
        check.storages(signature)?;
        if self.commands.len() > COMMANDS_MAX {
            let what = format!("{} commands, and a plan has at most {COMMANDS_MAX}", self.commands.len());
            return Err(PlanError::Mismatch { at: "the plan".into(), what });
        }
        for (number, command) in self.commands.iter().enumerate() {
            check.at = format!("command {number} ({})", command.label());
            check.command(command)?;
        }
        check.all_written(signature)?;
        self.epilogues.iter().enumerate().try_for_each(|(at, epilogue)| epilogue.check(at, self))?;
        Ok(Checked { plan: self, signature })
    }
}

struct Check<'a> {
    plan: &'a Plan,
    /// The command at hand, for errors.
    at: String,
    /// What the commands so far have written.
    written: BTreeMap<Place, Runs>,
}

impl<'a> Check<'a> {
    fn mismatch(&self, what: impl Into<String>) -> PlanError {
        PlanError::Mismatch { at: self.at.clone(), what: what.into() }
    }

    fn storages(&mut self, signature: &Signature) -> Result<(), PlanError> {
        let (inputs, outputs) = (signature.inputs.len(), signature.outputs.len());
        let (mut has_input, mut has_output) = (vec![false; inputs], vec![false; outputs]);
        let mut has_state = vec![false; signature.states.len()];
        for (number, storage) in self.plan.storages.iter().enumerate() {
            self.at = format!("storage {number}");
            let (what, id, has, found, declared) = match *storage {
                Storage::Constant { .. } | Storage::Scratch { .. } | Storage::Resident { .. } => continue,
                Storage::Input { port, bytes } => {
                    let port_at = signature.inputs.get(port).map(|port| (port.bytes(), port.scope));
                    ("input", port, &mut has_input, (bytes, Scope::Seat), port_at)
                }
                Storage::SharedInput { port, bytes } => {
                    let port_at = signature.inputs.get(port).map(|port| (port.bytes(), port.scope));
                    ("input", port, &mut has_input, (bytes, Scope::Turn), port_at)
                }
                Storage::Output { port, bytes } => {
                    let port_at = signature.outputs.get(port).map(|port| (port.bytes(), port.scope));
                    ("output", port, &mut has_output, (bytes, Scope::Seat), port_at)
                }
                Storage::State { state, bytes } => {
                    let spec = signature.states.get(state).map(|spec| (spec.bytes(), Scope::Seat));
                    ("state", state, &mut has_state, (bytes, Scope::Seat), spec)
                }
            };
            let Some(declared) = declared else {
                return Err(PlanError::Unknown { at: self.at.clone(), what, id, count: has.len() });
            };
            if found != declared {
                let ((bytes, scope), (declared_bytes, declared_scope)) = (found, declared);
                return Err(self.mismatch(format!(
                    "{bytes} bytes per {scope:?} for {what} {id}, which has {declared_bytes} per {declared_scope:?}"
                )));
            }
            if std::mem::replace(&mut has[id], true) {
                return Err(self.mismatch(format!("{what} {id} has a storage already")));
            }
        }
        self.at = "the plan".into();
        if let Some(port) = has_output.iter().position(|has| !has) {
            return Err(self.mismatch(format!("no storage for output {}", signature.outputs[port].name)));
        }
        if let Some(state) = has_state.iter().position(|has| !has) {
            return Err(self.mismatch(format!("no storage for state {}", signature.states[state].input)));
        }
        Ok(())
    }

    fn command(&mut self, command: &Command) -> Result<(), PlanError> {
        match command {
            Command::Dispatch { kernel, workload, arguments, .. } => {
                self.dispatch(kernel.0 as usize, workload, arguments)?;
            }
            Command::Contract(contraction) => self.contract(contraction)?,
            Command::Copy { from, to } => {
                self.read_from(from.0, &from.1)?;
                self.write_to(to.0, &to.1)?;
                self.same_runs(&from.1, &to.1)?;
            }
            Command::Fill { to, .. } => {
                self.write_to(to.0, &to.1)?;
                if to.1.row_bytes % 4 != 0 {
                    return Err(self.mismatch(format!("runs of {} bytes, not whole 4-byte patterns", to.1.row_bytes)));
                }
            }
            Command::Gather { state, row, to } => {
                self.state(*state, row)?;
                self.write_to(to.0, &to.1)?;
                self.same_runs(row, &to.1)?;
            }
            Command::Scatter { from, state, row } => {
                self.read_from(from.0, &from.1)?;
                self.state(*state, row)?;
                self.same_runs(&from.1, row)?;
            }
        }
        self.order(command)
    }

    fn find(&self, id: StorageId) -> Result<&'a Storage, PlanError> {
        let count = self.plan.storages.len();
        self.plan.storages.get(id.0 as usize).ok_or_else(|| PlanError::Unknown {
            at: self.at.clone(),
            what: "storage",
            id: id.0 as usize,
            count,
        })
    }

    fn region(&self, id: StorageId, storage: &Storage, region: &Region) -> Result<(), PlanError> {
        let why = if region.bytes_checked().is_none_or(|bytes| bytes == 0) {
            "is empty or has more bytes than there can be"
        } else if region.rows > 1 && region.stride < region.row_bytes {
            "has runs that overlap"
        } else if region.checked_end().is_none_or(|end| end > storage.bytes()) {
            "ends past it"
        } else {
            return Ok(());
        };
        let (at, bytes) = (self.at.clone(), storage.bytes());
        Err(PlanError::Region { at, storage: id.0, region: *region, bytes, why })
    }

    fn access(&self, verb: &'static str, id: StorageId, kind: &'static str) -> PlanError {
        PlanError::Access { at: self.at.clone(), verb, storage: id.0, kind }
    }

    fn read_from(&self, id: StorageId, region: &Region) -> Result<(), PlanError> {
        let storage = self.find(id)?;
        if matches!(storage, Storage::State { .. }) {
            return Err(self.access("reads", id, "a state: only a gather reads it"));
        }
        self.region(id, storage, region)
    }

    fn write_to(&self, id: StorageId, region: &Region) -> Result<(), PlanError> {
        let storage = self.find(id)?;
        match storage {
            Storage::Output { .. } | Storage::Resident { .. } | Storage::Scratch { .. } => {
                self.region(id, storage, region)
            }
            Storage::State { .. } => Err(self.access("writes", id, "a state: only a scatter writes it")),
            Storage::Constant { .. } => Err(self.access("writes", id, "a constant: it is only read")),
            Storage::Input { .. } | Storage::SharedInput { .. } => {
                Err(self.access("writes", id, "an input: it is only read"))
            }
        }
    }

    fn state(&self, id: StorageId, row: &Region) -> Result<(), PlanError> {
        let storage = self.find(id)?;
        if !matches!(storage, Storage::State { .. }) {
            return Err(self.access("gathers from or scatters to", id, "no state"));
        }
        self.region(id, storage, row)
    }

    fn same_runs(&self, from: &Region, to: &Region) -> Result<(), PlanError> {
        if (from.row_bytes, from.rows) == (to.row_bytes, to.rows) {
            return Ok(());
        }
        let (Region { rows, row_bytes, .. }, Region { rows: to_rows, row_bytes: to_bytes, .. }) = (from, to);
        Err(self.mismatch(format!("{rows} runs of {row_bytes} bytes go to {to_rows} runs of {to_bytes}")))
    }

    fn dispatch(&self, kernel: usize, workload: &[Scalar], arguments: &[Argument]) -> Result<(), PlanError> {
        let count = self.plan.kernels.len();
        let image = self.plan.kernels.get(kernel).ok_or_else(|| PlanError::Unknown {
            at: self.at.clone(),
            what: "kernel",
            id: kernel,
            count,
        })?;
        let wrong = |what: String| self.mismatch(format!("kernel {}: {what}", image.name));
        let (found, expected) = (workload.len(), image.launch.workload.len());
        if found != expected {
            return Err(wrong(format!("{found} workload arguments, and it has {expected}")));
        }
        let (found, expected) = (arguments.len(), image.parameters.len());
        if found != expected {
            return Err(wrong(format!("{found} arguments, and it has {expected}")));
        }
        for (at, (argument, parameter)) in arguments.iter().zip(&image.parameters).enumerate() {
            let name = &parameter.name;
            let (storage, window, uses) = match (argument, parameter.kind) {
                (Argument::Scalar(_), ParameterKind::Scalar(_)) => continue,
                (Argument::Buffer { storage, window, uses }, ParameterKind::Buffer) => (*storage, window, uses),
                (Argument::Scalar(_), ParameterKind::Buffer) => {
                    return Err(wrong(format!("a scalar for argument {name}, which is a buffer")));
                }
                (Argument::Buffer { .. }, ParameterKind::Scalar(ty)) => {
                    return Err(wrong(format!("a buffer for argument {name}, which is {ty}")));
                }
            };
            for (region, access) in uses {
                if access.writes() {
                    self.write_to(storage, region)?;
                } else {
                    self.read_from(storage, region)?;
                }
            }
            if let Some(window) = window {
                self.window(storage, window, uses).map_err(|what| wrong(format!("argument {name}: {what}")))?;
            }
            // An argument without uses binds the storage all the same.
            if matches!(self.find(storage)?, Storage::State { .. }) {
                let kind = "a state: it is only gathered and scattered";
                return Err(self.access("binds", storage, kind));
            }
            // What is only read may be shared by threads, so the kernel itself is asked.
            if image.stores_to(at) && !uses.iter().any(|(_, access)| access.writes()) {
                return Err(wrong(format!("it stores to argument {name}, which is only read")));
            }
        }
        Ok(())
    }

    /// Why `window` cannot be what a kernel sees of `storage`.
    fn window(&self, storage: StorageId, window: &Range<usize>, uses: &[(Region, Access)]) -> Result<(), String> {
        let Some(bound) = self.plan.storages.get(storage.0 as usize) else {
            // The caller's next look at the storage says so.
            return Ok(());
        };
        let (bytes, Range { start, end }) = (bound.bytes(), window);
        if !bound.is_shared() {
            return Err(format!("bytes {start}..{end} of storage {}, which has one value a seat", storage.0));
        }
        if start > end || *end > bytes || start % WINDOW_ALIGN != 0 {
            return Err(format!(
                "bytes {start}..{end} of {bytes}: windows start on {WINDOW_ALIGN} bytes and end inside"
            ));
        }
        match uses.iter().find(|(region, _)| region.offset < *start || region.end() > *end) {
            Some((region, _)) => Err(format!("{region:?} is outside of its window, bytes {start}..{end}")),
            None => Ok(()),
        }
    }

    fn contract(&self, contraction: &Contraction) -> Result<(), PlanError> {
        let Contraction { terms, weights, bias, positions, n, out, out_position_stride, .. } = contraction;
        let k = terms
            .iter()
            .try_fold(0usize, |sum, term| sum.checked_add(term.taps.checked_mul(term.tap_len)?))
            .filter(|&k| k.checked_mul(*n) == Some(weights.len()));
        let Some(k) = k else {
            let runs: Vec<_> = terms.iter().map(|term| (term.taps, term.tap_len)).collect();
            return Err(self.mismatch(format!("{} weights for windows {runs:?} and {n} columns", weights.len())));
        };
        if k == 0 || *n == 0 || *positions == 0 {
            return Err(self.mismatch(format!("K is {k}, N is {n}, {positions} positions: none may be 0")));
        }
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != *n) {
            return Err(self.mismatch(format!("{} bias values for {n} columns", bias.len())));
        }
        for term in terms {
            self.term(term, *positions)?;
        }
        let storage = self.whole_f32s(*out)?;
        let bytes = |elements: usize| elements.checked_mul(4);
        let apart = if *positions > 1 { *out_position_stride } else { *n };
        let (Some(offset), Some(row_bytes), Some(stride)) = (bytes(contraction.out_offset), bytes(*n), bytes(apart))
        else {
            return Err(self.mismatch(format!("results {out_position_stride} elements apart end past any storage")));
        };
        let region = Region { offset, row_bytes, stride, rows: *positions };
        self.region(*out, storage, &region)?;
        self.write_to(*out, &region)
    }

    fn term(&self, term: &Term, positions: usize) -> Result<(), PlanError> {
        let storage = self.whole_f32s(term.storage)?;
        if matches!(storage, Storage::State { .. }) {
            return Err(self.access("reads", term.storage, "a state: only a gather reads it"));
        }
        let Term { offset, position_stride, taps, tap_stride, tap_len, .. } = *term;
        let end = || {
            let last = positions.checked_sub(1)?.checked_mul(position_stride)?;
            let tap = taps.checked_sub(1)?.checked_mul(tap_stride)?;
            let end = offset.checked_add(last)?.checked_add(tap)?.checked_add(tap_len)?;
            (tap_len > 0).then_some(end)
        };
        match end() {
            Some(end) if end <= storage.bytes() / 4 => Ok(()),
            _ => Err(self.mismatch(format!(
                "{term:?} over {positions} positions is empty or ends past the {} elements of its storage",
                storage.bytes() / 4
            ))),
        }
    }

    fn whole_f32s(&self, id: StorageId) -> Result<&'a Storage, PlanError> {
        let storage = self.find(id)?;
        match storage.bytes() % 4 {
            0 => Ok(storage),
            _ => Err(self.mismatch(format!("storage {} of {} bytes, not whole f32s", id.0, storage.bytes()))),
        }
    }

    /// Reads follow writes, and no operand is written under another's feet.
    fn order(&mut self, command: &Command) -> Result<(), PlanError> {
        let touches = command.touches();
        for (at, a) in touches.iter().enumerate() {
            for (b_at, b) in touches.iter().enumerate().skip(at + 1) {
                let conflict = a.place == b.place && a.access.conflicts(b.access) && a.region.overlaps(&b.region);
                if conflict && operand(command, at) != operand(command, b_at) {
                    return Err(PlanError::Overlap { at: self.at.clone(), storage: number(a.place) });
                }
            }
        }
        for Touch { place, region, access } in &touches {
            let Place::Storage(id) = *place else { continue };
            let kept = matches!(self.plan.storages[id.0 as usize], Storage::Scratch { .. } | Storage::Output { .. });
            if kept && access.reads() {
                let gap = match self.written.get(place) {
                    Some(written) => region.runs().find_map(|(start, end)| written.gap(start, end)),
                    None => Some(region.offset),
                };
                if let Some(byte) = gap {
                    return Err(PlanError::ReadBeforeWrite { at: self.at.clone(), storage: id.0, byte });
                }
            }
        }
        for touch in touches.iter().filter(|touch| touch.access.writes()) {
            let written = self.written.entry(touch.place).or_default();
            touch.region.runs().for_each(|(start, end)| written.add(start, end));
        }
        Ok(())
    }

    fn all_written(&self, signature: &Signature) -> Result<(), PlanError> {
        let nothing = Runs::default();
        for (number, storage) in self.plan.storages.iter().enumerate() {
            let id = StorageId(number as u32);
            let (place, what) = match *storage {
                Storage::Output { port, .. } => {
                    (Place::Storage(id), format!("output {}", signature.outputs[port].name))
                }
                Storage::State { state, .. } => {
                    (Place::RowWritten(id), format!("the new row of state {}", signature.states[state].input))
                }
                _ => continue,
            };
            if let Some(byte) = self.written.get(&place).unwrap_or(&nothing).gap(0, storage.bytes()) {
                return Err(PlanError::Unwritten { what, byte });
            }
        }
        Ok(())
    }
}

/// Which operand of its command a touch belongs to. Uses of one kernel argument are one operand: a kernel may work in
/// place. So are the terms of a contraction: they are only read.
fn operand(command: &Command, touch: usize) -> usize {
    let Command::Dispatch { arguments, .. } = command else {
        return touch;
    };
    let mut past = 0;
    let uses = arguments.iter().map(|argument| match argument {
        Argument::Buffer { uses, .. } => uses.len(),
        Argument::Scalar(_) => 0,
    });
    uses.take_while(|uses| {
        past += uses;
        past <= touch
    })
    .count()
}

fn number(place: Place) -> u32 {
    match place {
        Place::Storage(id) | Place::RowRead(id) | Place::RowWritten(id) => id.0,
    }
}

impl Region {
    fn bytes_checked(&self) -> Option<usize> {
        self.row_bytes.checked_mul(self.rows)
    }

    fn runs(&self) -> impl Iterator<Item = (usize, usize)> {
        let Self { offset, row_bytes, stride, rows } = self.joined();
        (0..rows).map(move |row| (offset + row * stride, offset + row * stride + row_bytes))
    }
}

/// Disjoint runs of bytes that do not touch, by start.
#[derive(Default)]
struct Runs(BTreeMap<usize, usize>);

impl Runs {
    fn add(&mut self, mut start: usize, mut end: usize) {
        // Take in every run that overlaps or touches the new one.
        while let Some((&at, &past)) = self.0.range(..=end).next_back().filter(|&(_, &past)| past >= start) {
            self.0.remove(&at);
            (start, end) = (start.min(at), end.max(past));
        }
        self.0.insert(start, end);
    }

    /// The first byte of `start..end` that is in none.
    fn gap(&self, start: usize, end: usize) -> Option<usize> {
        let covered = self.0.range(..=start).next_back().map_or(start, |(_, &past)| past.max(start));
        (covered < end).then_some(covered)
    }
}

#[cfg(test)]
mod tests;
