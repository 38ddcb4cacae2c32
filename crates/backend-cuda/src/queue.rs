//! A turn: its seats and rows into the parameter block, one launch, and what the fault records say.
//!
//! - The block is little-endian words of 32 bits: the number of seats, three that mean nothing, the row that each of
//!   `max_seats` reads, and the row that each writes.
//! - Seats past the last one, up to the bucket's end, read the row of seat 0.

use crate::error::faulted;
use crate::plan::CudaExecutable;
use crate::slot::SlotMemory;
use crate::sys::Context;
use lanes_core::device::DeviceError;
use lanes_core::lanes::SeatRows;
use loom_compiler::ptx::{FAULT_BYTES, Fault};
use std::sync::PoisonError;

/// Bytes before the rows in a block.
pub(crate) const BLOCK_HEAD: usize = 16;

/// Bytes of the block of turns of up to `seats`.
pub(crate) const fn block_bytes(seats: usize) -> usize {
    BLOCK_HEAD + 8 * seats
}

/// Runs one turn to its end.
///
/// # Safety
/// - The caller has entered the turnstiles of the executable's buffers.
/// - `slot` is of `executable` and used by nobody else; `seats` were checked against its capacity, rows too if it has states.
pub(crate) unsafe fn run(
    context: &Context,
    executable: &CudaExecutable,
    slot: &SlotMemory,
    seats: &[SeatRows],
) -> Result<(), DeviceError> {
    context.health()?;
    let bucket = executable.buckets.partition_point(|&most| (most as usize) < seats.len());
    let max_seats = executable.capacity.max_seats as usize;
    // SAFETY: the slot is the caller's, and the block is reached here alone.
    let block = unsafe { slot.host.bytes(0, block_bytes(max_seats)) };
    write_block(block, max_seats, executable.buckets[bucket] as usize, seats);
    // Turns of one executable run one after the other, so one scratch serves all its slots.
    let turn = executable.running.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the graph names the slot's memory, the executable's scratch, whose lock is held, its constants, which nobody
    // writes, and its buffers, whose turnstiles are entered. Rows were checked, and all else was when it was prepared.
    let ran = unsafe { context.run(&executable.name, &slot.graphs[bucket]) };
    drop(turn);
    ran?;
    // SAFETY: as above; the graph has ended.
    let records = unsafe { slot.host.bytes(executable.faults_at, executable.faulting.len() * FAULT_BYTES) };
    // Commands are in program order: the first one is the one to tell.
    let faults = records.as_chunks::<FAULT_BYTES>().0.iter().zip(&executable.faulting);
    let fault = faults.into_iter().find_map(|(record, (label, image))| {
        let fault = Fault::read(record)?;
        Some(faulted(label, image, &fault))
    });
    fault.map_or(Ok(()), Err)
}

fn write_block(block: &mut [u8], max_seats: usize, bucket: usize, seats: &[SeatRows]) {
    let mut word = |at: usize, value: u32| block[at..at + 4].copy_from_slice(&value.to_le_bytes());
    word(0, seats.len() as u32);
    for at in 0..bucket {
        let rows = seats.get(at).unwrap_or(&seats[0]);
        word(BLOCK_HEAD + 4 * at, rows.read.0);
        // That of a seat past the last one is not looked at.
        word(BLOCK_HEAD + 4 * (max_seats + at), rows.write.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanes_core::lanes::RowId;

    #[test]
    fn a_block_holds_seats_and_rows_and_the_first_seat_stands_in() {
        let mut block = vec![0xff; block_bytes(4)];
        let seat = |read, write| SeatRows { read: RowId(read), write: RowId(write) };
        write_block(&mut block, 4, 3, &[seat(7, 1), seat(9, 2)]);
        let words: Vec<u32> = block.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        assert_eq!((words[0], &words[4..7], &words[8..10]), (2, &[7, 9, 7][..], &[1, 2][..]));
    }
}
