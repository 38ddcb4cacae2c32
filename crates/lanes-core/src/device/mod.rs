//! What every backend implements, and the handles it gives out.
//!
//! ```text
//! Plan --check--> Checked --prepare--> Executable --lease--> Slot --submit--> Completion
//!                                          └ StateRows: rows of the states, which executables may share
//! ```
//!
//! - A device describes resources, code, plans and time, never single launches: an eager launch is a plan of one
//!   command. After `prepare` nothing allocates.
//! - Executables, slots and completions own what they touch; dropping a handle cannot fail.
//! - A check that every backend needs is made once, above the trait, and handed down as a proof: [`Checked`] for a
//!   plan, [`TurnRows`] for a turn's rows, [`StateRows`] for a state's memory, [`Slot`] for sole use of staging.
//! - A backend implements [`flight::Backend`], which is a [`Device`] with the order of submissions kept, or `Device` itself.
//! - Not here: what a plan says (`plan`), in which order its commands must run (`hazard`), and any driver.
//!
//! [`Checked`]: crate::plan::Checked

mod budget;
mod completion;
mod error;
pub mod flight;
mod handle;
mod poison;
mod turn;
mod turnstile;

pub use budget::{Budget, Charge, MemoryUse, Purpose};
pub(crate) use completion::wake;
pub use completion::{Completer, Completion, Completions, Outcome};
pub use error::DeviceError;
pub use handle::{Buffer, BufferObject, Executable, ExecutableObject, Slot, SlotObject, StateRows};
pub use poison::Ledger;
pub(crate) use poison::minus;
pub use turn::{RowCheck, TurnRows};
pub use turnstile::{Order, Ticket, Turnstile};

use crate::lanes::{Capacity, RowId};
use crate::plan::{Checked, Command, Precision};
use std::sync::Arc;
use std::time::Duration;

/// Where memory lies, and so who reaches it fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// Next to the compute units.
    Device,
    /// Written by the host, read by the device.
    Upload,
    /// Written by the device, read by the host.
    Readback,
    /// Reached by both at full speed; the same as `Device` where memory is one.
    Shared,
}

/// What a device is and can do. Never changes while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The backend's short name, as `--backend` spells it.
    pub backend: &'static str,
    /// What the maker calls the device.
    pub name: String,
    /// What kernels are compiled for, as `backend[:architecture]`: `cpu:avx2`, say.
    pub target: String,
    /// Driver and version, or the instruction set that was chosen.
    pub driver: String,
    /// Compute units, or threads, that one turn may use.
    pub units: usize,
    /// All its memory, where it says so.
    pub memory_bytes: Option<u64>,
    /// The longest buffer.
    pub buffer_bytes_max: u64,
    /// The most slots of one executable.
    pub slots_max: usize,
    /// Whether host and device share one memory.
    pub unified: bool,
    /// Whether a kernel may hold a barrier over its whole grid.
    pub grid_barrier: bool,
    /// Whether kernels have 64-bit atomics.
    pub atomics_64: bool,
    /// Whether it tells how long a turn takes by a clock of its own ([`Device::measure`]).
    pub clock: bool,
    /// In which order contractions of 32-bit floats add.
    pub sums: Sums,
    /// How contractions of operands that are rounded to bfloat16 add; `None` where it has none.
    pub bf16: Option<RoundedSums>,
}

impl Capabilities {
    /// Whether contractions may round their operands to `precision`.
    pub fn has(&self, precision: Precision) -> bool {
        match precision {
            Precision::F32 => true,
            Precision::Bf16 => self.bf16.is_some(),
        }
    }
}

/// How products of rounded operands are added. They are exact in 32 bits, so that each step rounds once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundedSums {
    /// As those of 32-bit floats are, in this order.
    Chains(Sums),
    /// Cut into runs as this says, each from zero, their sums added ascending; within a run as the hardware's products of matrices
    /// add, which nobody tells: the same for every row and whoever sits beside it, and off by at most about a unit in the last
    /// place of the largest sum so far for every term.
    Matrices(Sums),
}

/// The order of a contraction's sum over `k` terms: runs of equally many terms but for the last, each one ascending chain of fused
/// multiply-adds from zero, their sums added ascending. It depends on `k` and on the device, and on nothing else: a seat's bits
/// do not depend on who sits beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    /// The most runs: a power of two.
    pub runs_max: usize,
    /// The fewest terms for which a sum is cut once more.
    pub run_min: usize,
    /// A run is of whole blocks of at most this many terms, all of one length.
    pub block_max: usize,
    /// What the length of a run is a multiple of, where runs are of one block; 1 where they are not.
    pub run_step: usize,
}

impl Sums {
    /// One chain.
    pub const CHAIN: Self = Self { runs_max: 1, run_min: usize::MAX, block_max: usize::MAX, run_step: 1 };

    /// Into how many runs `k` terms are cut, and of how many blocks of how many terms a run is.
    pub fn cut(&self, k: usize) -> [usize; 3] {
        let (mut runs, k) = (self.runs_max.max(1), k.max(1));
        while runs > 1 && k / runs < self.run_min {
            runs /= 2;
        }
        let run = k.div_ceil(runs).checked_next_multiple_of(self.run_step.max(1)).unwrap_or(k);
        let blocks = run.div_ceil(self.block_max.max(1));
        let block = run.div_ceil(blocks);
        // Longer runs may leave fewer.
        [k.div_ceil(blocks.saturating_mul(block)), blocks, block]
    }

    /// How many terms a run of a sum over `k` terms has.
    pub fn run(&self, k: usize) -> usize {
        let [_, blocks, block] = self.cut(k);
        blocks.saturating_mul(block)
    }
}

/// What a device holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// Charged bytes, by purpose.
    pub used: MemoryUse,
    /// The budget, where one was set.
    pub budget: Option<u64>,
    /// The device's memory, where it says so.
    pub total: Option<u64>,
}

/// What a plan's resident memory is: its size says how many bytes from `offset` on.
#[derive(Clone, Debug)]
pub struct Resident {
    /// The memory.
    pub buffer: Buffer,
    /// Bytes from its start; a multiple of [`WINDOW_ALIGN`](crate::plan::WINDOW_ALIGN).
    pub offset: u64,
}

/// How a plan is to be prepared.
#[derive(Clone, Copy, Debug)]
pub struct PrepareOptions<'a> {
    /// Rows of the states and seats of a turn.
    pub capacity: Capacity,
    /// In-flight instances of its mutable storage.
    pub slots: usize,
    /// The rows of each state of the signature, in its order.
    pub states: &'a [StateRows],
    /// The memory of each binding of the plan's resident storages. Two of them may share bytes only if the plan writes
    /// neither.
    pub residents: &'a [Resident],
    /// Whether `submit` should return before the work is done. A device whose host does the work may do it inside
    /// `submit` where this is false and nothing else is in flight: the fastest way for a caller who waits anyway.
    pub overlap: bool,
}

impl PrepareOptions<'_> {
    /// What every backend must know before it prepares `plan`: seats, slots and rows are there, the states' rows have
    /// the sizes the signature gives and lie in memory of their own, and no size passes `usize`.
    pub fn check(&self, plan: &Checked<'_>, capabilities: &Capabilities) -> Result<(), DeviceError> {
        let Capacity { rows, max_seats } = self.capacity;
        let name = &plan.plan().name;
        let invalid = |what: String| Err(DeviceError::Invalid { what: format!("plan {name}: {what}") });
        if max_seats == 0 || rows == 0 || self.slots == 0 {
            return invalid(format!("{max_seats} seats, {rows} rows and {} slots: none may be 0", self.slots));
        }
        if self.slots > capabilities.slots_max {
            let (asked, most) = (self.slots, capabilities.slots_max);
            return Err(DeviceError::Unsupported {
                what: format!("{asked} slots of plan {name}, {} has at most {most}", capabilities.backend),
            });
        }
        let states = &plan.signature().states;
        if self.states.len() != states.len() {
            return invalid(format!("rows of {} states given, and {} declared", self.states.len(), states.len()));
        }
        for (spec, state) in states.iter().zip(self.states) {
            if state.row_bytes() != spec.bytes() || state.rows() != rows {
                return invalid(format!(
                    "state {} has {rows} rows of {} bytes, and was given {} rows of {}",
                    spec.input,
                    spec.bytes(),
                    state.rows(),
                    state.row_bytes()
                ));
            }
        }
        self.check_residents(plan)?;
        for command in &plan.plan().commands {
            if let Command::Contract(contraction) = command
                && !capabilities.has(contraction.precision)
            {
                let (label, precision, device) = (&contraction.label, contraction.precision, &capabilities.name);
                return Err(DeviceError::Unsupported {
                    what: format!("{precision} operands of {label} of plan {name}: {device} multiplies f32"),
                });
            }
        }
        for (at, bytes) in plan.plan().storages.iter().map(crate::plan::Storage::bytes).enumerate() {
            if bytes.checked_mul(max_seats as usize).is_none_or(|all| all > isize::MAX as usize) {
                return Err(DeviceError::TooLarge {
                    what: format!("storage {at} of plan {name} for {max_seats} seats"),
                    bytes: (bytes as u64).saturating_mul(max_seats.into()),
                    limit: isize::MAX as u64,
                });
            }
        }
        Ok(())
    }

    /// That every resident storage has memory, alone where the plan writes it.
    fn check_residents(&self, plan: &Checked<'_>) -> Result<(), DeviceError> {
        let name = &plan.plan().name;
        let invalid = |what: String| Err(DeviceError::Invalid { what: format!("plan {name}: {what}") });
        let mut spans = Vec::<(usize, &Resident, u64, bool)>::new();
        let written = plan.resident_written();
        for (storage, written) in plan.plan().storages.iter().zip(written) {
            let crate::plan::Storage::Resident { binding, bytes } = *storage else { continue };
            let Some(resident) = self.residents.get(binding) else {
                let count = self.residents.len();
                return invalid(format!("resident memory {binding} is bound to nothing: {count} were given"));
            };
            if written && self.capacity.max_seats != 1 {
                let seats = self.capacity.max_seats;
                return invalid(format!(
                    "it writes resident memory {binding}, which turns of {seats} seats cannot share"
                ));
            }
            let end = resident.offset.checked_add(bytes as u64).filter(|&end| end <= resident.buffer.bytes());
            let Some(end) = end.filter(|_| resident.offset % crate::plan::WINDOW_ALIGN as u64 == 0) else {
                let (offset, size) = (resident.offset, resident.buffer.bytes());
                return invalid(format!(
                    "resident memory {binding}: {bytes} bytes from byte {offset} on of a buffer of {size}; a start is a \
                     multiple of {}, and the end inside",
                    crate::plan::WINDOW_ALIGN
                ));
            };
            // Rows are written by turns of any number of seats, in any order within one.
            let states = plan.signature().states.iter().zip(self.states);
            if let Some((spec, _)) = states.into_iter().find(|(_, state)| state.buffer().is(&resident.buffer)) {
                return invalid(format!("resident memory {binding} lies in the rows of state {}", spec.input));
            }
            for (other, before, before_end, before_written) in &spans {
                let meet = before.buffer.is(&resident.buffer) && before.offset < end && resident.offset < *before_end;
                if meet && (written || *before_written) {
                    return invalid(format!("it writes resident memory {other} or {binding}, which share bytes"));
                }
            }
            spans.push((binding, resident, end, written));
        }
        Ok(())
    }
}

/// How long a device takes for a turn by its own clock: an element a sample, in the order taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnTimes {
    /// All of it: inputs and rows to the device, commands, outputs back to the host.
    pub turn: Vec<Duration>,
    /// The commands alone, moves of rows among them, over inputs that lie on the device already and outputs that stay there;
    /// empty where the device cannot tell these apart.
    pub compute: Vec<Duration>,
}

/// An operation on rows of one state, ordered with the turns that touch them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOp {
    /// Copies one row over another.
    Copy {
        /// The row read.
        from: RowId,
        /// The row written.
        to: RowId,
    },
    /// Repeats a byte over a row.
    Fill {
        /// The row written.
        row: RowId,
        /// The byte.
        byte: u8,
    },
    /// Writes the initial value over a row.
    Reset {
        /// The row written.
        row: RowId,
    },
}

/// One open device. The same calls give the same results on every backend; `backend-cpu` is the reference.
///
/// A handle of another device is [`DeviceError::Invalid`]. Once a device is lost, every call says so at once.
///
/// What was submitted is done in the order of submission as far as it touches the same buffers, transfers of the host
/// included, which wait for no more than that. Work that is queued and bounded never waits in the caller: a submission
/// finds room or is [`DeviceError::Busy`]. A device that is dropped ends what it has not begun as
/// [`DeviceError::Cancelled`], so nobody waits for ever. Code of the host that is called back (tasks, visitors of
/// [`map`](Self::map)) may panic without harm to others; it must not wait for work of the device that calls it.
pub trait Device: Send + Sync {
    /// What it is and can do.
    fn capabilities(&self) -> &Capabilities;

    /// `bytes` of zeroed memory for `what` (a label for errors), charged to the budget first.
    fn allocate(&self, what: &str, purpose: Purpose, placement: Placement, bytes: u64) -> Result<Buffer, DeviceError>;

    /// Copies `bytes` into a buffer, from byte `offset` of it on, after what was submitted before.
    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies out of a buffer, from byte `offset` of it on, after what was submitted before.
    fn read(&self, buffer: &Buffer, offset: u64, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies `bytes` bytes between two buffers, or within one where the two ranges lie apart, once `after` have
    /// succeeded and what was submitted before is done with them. Byte offsets.
    fn copy(
        &self,
        from: (&Buffer, u64),
        to: (&Buffer, u64),
        bytes: u64,
        after: &[Completion],
    ) -> Result<Completion, DeviceError>;

    /// Shows `visit` `bytes` bytes of host-visible memory ([`Placement::Upload`], `Readback` or `Shared`) where they
    /// lie, once what was submitted before is done with them; nothing submitted touches them meanwhile.
    /// [`DeviceError::Invalid`] for memory of another placement.
    fn map(
        &self,
        buffer: &Buffer,
        offset: u64,
        bytes: usize,
        visit: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError>;

    /// Runs one operation on the rows of a state. The initial row is never its target.
    fn rows(&self, state: &StateRows, op: RowOp) -> Result<Completion, DeviceError>;

    /// Uploads constants, loads kernels and allocates all that turns of `plan` need.
    fn prepare(&self, plan: &Checked<'_>, options: &PrepareOptions<'_>) -> Result<Executable, DeviceError>;

    /// One of the executable's slots; [`DeviceError::Busy`] when all are on lease. Never waits.
    fn lease(&self, executable: &Executable) -> Result<Slot, DeviceError>;

    /// Starts one turn over the inputs stacked in `slot`, once `after` have succeeded; when one of them failed, the
    /// completion is [`DeviceError::Upstream`] and nothing was run. `Busy` while the slot is in flight or the queue is
    /// full: nothing is queued and the call may be made again. Completions of one device finish in the order submitted;
    /// one that is [cancelled](Completion::cancel) before its turn has begun ends as [`DeviceError::Cancelled`] then.
    ///
    /// The completion is [`DeviceError::Fault`] when the turn failed and was contained: the rows it was to write and its
    /// outputs hold anything, all else is as it was.
    fn submit(
        &self,
        executable: &Executable,
        slot: &mut Slot,
        turn: TurnRows<'_>,
        after: &[Completion],
    ) -> Result<Completion, DeviceError>;

    /// How long turns like `turn` take by the device's own clock, `samples` times over; `None` where it cannot tell. `plan` is
    /// prepared anew for it, as `options` say but with one slot, and `inputs` are stacked by port. What was submitted before ends
    /// first, and what is submitted meanwhile waits for the end. Rows that `turn` writes hold anything afterwards.
    fn measure(
        &self,
        plan: &Checked<'_>,
        options: &PrepareOptions<'_>,
        inputs: &[&[u8]],
        turn: TurnRows<'_>,
        samples: usize,
    ) -> Result<Option<TurnTimes>, DeviceError> {
        let _ = (plan, options, inputs, turn, samples);
        Ok(None)
    }

    /// What it holds now.
    fn memory(&self) -> MemoryReport;

    /// The cause that lost the device, if it is lost.
    fn health(&self) -> Result<(), DeviceError>;

    /// The same device opened anew, empty. How to go on after a loss.
    fn reopen(&self) -> Result<Arc<dyn Device>, DeviceError>;
}

#[cfg(test)]
mod tests {
    use super::Sums;

    /// Runs, blocks of a run, terms of a block, by hand: no run is empty, and all but the last are full.
    #[test]
    fn sums_are_cut_by_their_length_alone() {
        let sums = Sums { runs_max: 16, run_min: 8, block_max: 32, run_step: 1 };
        for (k, cut) in [
            (1, [1, 1, 1]),
            (15, [1, 1, 15]),
            (16, [2, 1, 8]),
            (64, [8, 1, 8]),
            (128, [16, 1, 8]),
            // Nine terms a run, and fifteen runs have them all.
            (130, [15, 1, 9]),
            (387, [16, 1, 25]),
            (512, [16, 1, 32]),
            // 33 terms are two blocks of 17.
            (528, [16, 2, 17]),
            (1024, [16, 2, 32]),
        ] {
            assert_eq!(sums.cut(k), cut, "{k}");
            let run = sums.run(k);
            assert!(cut[0] * run >= k && (cut[0] - 1) * run < k, "{k}");
            assert_eq!((Sums::CHAIN.cut(k), Sums::CHAIN.run(k)), ([1, 1, k], k));
        }
        // Of whole steps.
        let sums = Sums { runs_max: 4, run_min: 64, block_max: usize::MAX, run_step: 64 };
        for (k, cut) in [
            (1, [1, 1, 64]),
            (127, [1, 1, 128]),
            (128, [2, 1, 64]),
            (129, [2, 1, 128]),
            (270, [3, 1, 128]),
            (592, [4, 1, 192]),
            (1024, [4, 1, 256]),
        ] {
            assert_eq!((sums.cut(k), sums.run(k)), (cut, cut[2]), "{k}");
        }
    }
}
