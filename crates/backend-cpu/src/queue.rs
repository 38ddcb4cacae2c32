//! A turn: cut into chunks of seats, each run through the whole plan by one thread.
//!
//! - Chunks are even, and threads take neighbouring ones: which seat runs where is a function of the number of seats.
//! - A thread writes its own scratch, the rows its seats write, and its seats' part of the outputs: nothing that another
//!   thread touches.
//! - Where there are more threads than parts, those that are idle help with launches that take long (`tile`): nobody waits
//!   for one.
//! - A fault ends its chunk; the others run on, and the turn reports the fault of the lowest seats.

use crate::contract::{OutPtr, TermPtr};
use crate::error::faulted;
use crate::memory::Bytes;
use crate::moves::fill;
use crate::plan::{Base, Bound, CpuPlan, Operand, Step, ThreadMemory};
use crate::pool::Pool;
use crate::slot::SlotMemory;
use crate::tile::{self, Arg, Crew, TileScratch, WORTH_NS};
use lanes_core::device::DeviceError;
use lanes_core::lanes::SeatRows;
use std::ops::Range;
use std::sync::PoisonError;

/// What a second thread must save before it is asked: a few times what waking it takes.
const THREAD_NS: usize = 20_000;
/// Fewer seats than this per thread gain nothing: weights are read once per chunk, whatever its size.
const THREAD_SEATS_MIN: usize = 4;

/// How a turn is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    seats: usize,
    chunks: usize,
    threads: usize,
}

impl Cut {
    fn new(seats: usize, threads: usize, chunk_seats: usize, seat_ns: usize) -> Self {
        let worth = (seats.saturating_mul(seat_ns) / THREAD_NS).min(seats / THREAD_SEATS_MIN);
        let threads = threads.min(worth).max(1);
        // As few chunks as hold all seats and, where there are seats enough, the same number for every thread.
        let chunks = seats.div_ceil(chunk_seats).next_multiple_of(threads).min(seats);
        Self { seats, chunks, threads }
    }

    /// The seats of each chunk that `thread` runs.
    fn of_thread(self, thread: usize) -> impl Iterator<Item = Range<usize>> {
        let first = move |thread: usize| thread * self.chunks / self.threads;
        let border = move |chunk: usize| chunk * self.seats / self.chunks;
        (first(thread)..first(thread + 1)).map(move |chunk| border(chunk)..border(chunk + 1))
    }
}

/// Runs one turn to its end.
///
/// # Safety
/// - The caller has entered the turnstiles of the executable's buffers.
/// - `slot` is of `executable` and used by nobody else; `seats` were checked against its capacity, rows too if it has
///   states.
pub(crate) unsafe fn run(
    pool: &Pool,
    executable: &CpuPlan,
    slot: &SlotMemory,
    seats: &[SeatRows],
) -> Result<(), DeviceError> {
    let cut = Cut::new(seats.len(), pool.threads(), executable.chunk_seats, executable.seat_ns);
    let SlotMemory { inputs, outputs } = slot;
    // Turns of one executable run one after the other, so one scratch serves all its slots.
    let mut threads = executable.scratch.lock().unwrap_or_else(PoisonError::into_inner);
    threads.iter_mut().for_each(|thread| thread.fault = None);
    let apart = Apart(threads.as_mut_ptr());
    let ran = pool.run(cut.threads, &|part| {
        // SAFETY: there is an entry for every thread of the pool, and no two parts have one number.
        let thread = unsafe { apart.get(part) };
        // Threads that no part has may help with its launches: each part has every so manieth for itself.
        let lent = |helper: usize| apart.tiles(part + helper * cut.threads);
        let most = (pool.threads() - part).div_ceil(cut.threads);
        let crew = Crew { pool, most, scratch: &lent, worth_ns: WORTH_NS };
        for chunk in cut.of_thread(part) {
            let rows = &seats[chunk.clone()];
            thread.find(executable, inputs, outputs, chunk.start);
            for step in &executable.steps {
                // SAFETY: `find` has just set the bases for these seats. Their part of the outputs, and the rows that
                // they write, are touched by no other chunk (`TurnRows`); scratch is the thread's own, and that of helpers
                // is reached by no other part.
                if let Err(fault) = unsafe { step.run(thread, rows, &crew) } {
                    thread.fault.get_or_insert(fault);
                    break;
                }
            }
        }
    });
    ran.map_err(|said| crate::error::panicked(&executable.name, said))?;
    threads.iter_mut().find_map(|thread| thread.fault.take()).map_or(Ok(()), Err)
}

/// The threads' memory, reached by number from as many threads.
struct Apart(*mut ThreadMemory);

// SAFETY: `get` gives each entry to one part only.
unsafe impl Sync for Apart {}

impl Apart {
    /// # Safety
    /// `part` is in bounds, and no other reference to that entry lives.
    #[allow(clippy::mut_from_ref, reason = "the pointer stands for a mutable slice that is cut up by number")]
    unsafe fn get(&self, part: usize) -> &mut ThreadMemory {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0.add(part) }
    }

    /// What the thread with that number, which is in bounds, keeps for its launches.
    fn tiles(&self, part: usize) -> *mut TileScratch {
        // SAFETY: in bounds; no reference is made.
        unsafe { &raw mut (*self.0.add(part)).tiles }
    }
}

impl ThreadMemory {
    /// Sets where each storage starts for a chunk whose first seat is `first`.
    fn find(&mut self, executable: &CpuPlan, inputs: &[Bytes], outputs: &[Bytes], first: usize) {
        for (base, storage) in self.bases.iter_mut().zip(&executable.bases) {
            *base = match storage {
                // Never written through: the check lets no command write a constant.
                Base::Constant(bytes) => bytes.as_ptr().cast_mut(),
                Base::Input { port, seat_bytes } => inputs[*port].base().wrapping_add(first * seat_bytes),
                Base::Output { port, seat_bytes } => outputs[*port].base().wrapping_add(first * seat_bytes),
                Base::State(state) => executable.states[*state].0,
                Base::Resident(binding) => executable.residents[*binding].0,
                Base::Scratch(start) => self.scratch.base().wrapping_add(*start),
            };
        }
    }
}

impl Step {
    /// Runs one command for the seats whose rows are `rows`.
    ///
    /// # Safety
    /// `thread.bases` are those of the seats' chunk, and `crew` is the thread's; what the plan's commands write for these seats is touched by nobody
    /// else meanwhile. Bounds were proved when the plan was checked, for `capacity` seats and rows.
    unsafe fn run(&self, thread: &mut ThreadMemory, rows: &[SeatRows], crew: &Crew<'_>) -> Result<(), DeviceError> {
        let at = |operand: &Operand, seat: usize| {
            thread.bases[operand.storage].wrapping_add(operand.offset + seat * operand.seat_stride)
        };
        // SAFETY: every pointer lies in its storage for a seat of the chunk or a row of the state, and the plan's check
        // keeps the runs from there on in the seat or row, and what is written apart from what is read. A kernel is given the
        // bytes of the chunk's seats, which nobody else touches, or of what all share, which it does not store to.
        unsafe {
            match self {
                Self::Copy { from, to, runs } => {
                    (0..rows.len()).for_each(|seat| runs.copy(at(from, seat), at(to, seat)));
                }
                Self::CopyWhole { from, to, seat_bytes } => {
                    at(to, 0).copy_from_nonoverlapping(at(from, 0), seat_bytes * rows.len());
                }
                Self::Fill { to, row_bytes, stride, rows: runs, pattern } => {
                    (0..rows.len()).for_each(|seat| fill(at(to, seat), *row_bytes, *stride, *runs, *pattern));
                }
                Self::Gather { from, to, runs } => {
                    let seats = rows.iter().enumerate();
                    seats.for_each(|(seat, rows)| runs.copy(at(from, rows.read.0 as usize), at(to, seat)));
                }
                Self::Scatter { from, to, runs } => {
                    let seats = rows.iter().enumerate();
                    seats.for_each(|(seat, rows)| runs.copy(at(from, seat), at(to, rows.write.0 as usize)));
                }
                Self::Dispatch { label, image, geometries, arguments, profile } => {
                    thread.arguments.clear();
                    for argument in arguments {
                        thread.arguments.push(match *argument {
                            Bound::Bits(bits) => Arg::Scalar(bits),
                            Bound::Seats => Arg::Scalar(rows.len() as u64),
                            Bound::Buffer { at, shared_len } => {
                                let ptr = thread.bases[at.storage].wrapping_add(at.offset);
                                let seated = at.seat_stride * rows.len();
                                Arg::Buffer { ptr, len: if seated > 0 { seated } else { shared_len } }
                            }
                        });
                    }
                    let geometry = &geometries[rows.len() - 1];
                    tile::spread(image, geometry, &thread.arguments, &mut thread.tiles, profile, crew)
                        .map_err(|fault| faulted(label, &fault))?;
                }
                Self::Contract { packed, terms, out } => {
                    thread.terms.clear();
                    for term in terms {
                        let base = thread.bases[term.storage].cast::<f32>().cast_const();
                        thread.terms.push(TermPtr { base, seat_stride: term.seat_stride / 4 });
                    }
                    let base = thread.bases[out.storage].cast::<f32>();
                    packed.run(&thread.terms, rows.len(), OutPtr { base, seat_stride: out.seat_stride / 4 });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_seat_is_in_one_chunk_and_none_is_too_large(
            seats in 1usize..2000, threads in 1usize..9, chunk_seats in 1usize..129, seat_ns in 0usize..100_000,
        ) {
            let cut = Cut::new(seats, threads, chunk_seats, seat_ns);
            prop_assert!(cut.threads <= threads);
            let chunks: Vec<_> = (0..cut.threads).flat_map(|thread| cut.of_thread(thread)).collect();
            prop_assert_eq!(chunks.iter().cloned().flatten().collect::<Vec<_>>(), (0..seats).collect::<Vec<_>>());
            prop_assert!(chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= chunk_seats));
        }
    }

    #[test]
    fn small_turns_wake_nobody_and_large_ones_share() {
        assert_eq!(Cut::new(1, 2, 32, 1_000_000).threads, 1);
        assert_eq!(Cut::new(64, 2, 32, 10).threads, 1);
        assert_eq!(Cut::new(64, 2, 128, 1_000), Cut { seats: 64, chunks: 2, threads: 2 });
    }
}
