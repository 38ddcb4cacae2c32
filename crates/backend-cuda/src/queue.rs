//! A turn: its seats and rows into the parameter block, one launch, and what the fault records say.
//!
//! - The block is little-endian words of 32 bits: the number of seats, the number of the turn, two that mean nothing, the row that
//!   each of `max_seats` reads, and the row that each writes.
//! - Seats past the last one, up to the bucket's end, read the row of seat 0, and have its inputs: small ones are repeated here, large
//!   ones by the graph.
//! - The end of a turn is that the host's tick has its number.

use crate::error::faulted;
use crate::plan::{CudaPlan, Stacked};
use crate::slot::SlotMemory;
use crate::sys::Context;
use lanes_core::device::DeviceError;
use lanes_core::lanes::SeatRows;
use loom_compiler::ptx::{FAULT_BYTES, Fault};
use std::sync::atomic::Ordering;

/// Bytes before the rows in a block.
pub(crate) const BLOCK_HEAD: usize = 16;

/// Where a block has the number of its turn.
pub(crate) const BLOCK_NUMBER: usize = 4;

/// The number of a turn, which its graph has written to the tick when it has ended.
pub struct Mark(u32);

/// Bytes of the block of turns of up to `seats`.
pub(crate) const fn block_bytes(seats: usize) -> usize {
    BLOCK_HEAD + 8 * seats
}

/// Begins one turn: writes its block, and launches its graph.
///
/// # Safety
/// Until [`end`] returns for it:
/// - nothing but work of the same stream touches the buffers of `plan`;
/// - `slot` is of `plan` and used by nobody else.
///
/// `seats` were checked against the plan's capacity, rows too if it has states.
pub(crate) unsafe fn begin(
    context: &Context,
    plan: &CudaPlan,
    slot: &SlotMemory,
    seats: &[SeatRows],
) -> Result<Mark, DeviceError> {
    context.health()?;
    let at = plan.buckets.partition_point(|&most| (most as usize) < seats.len());
    let bucket = plan.buckets[at] as usize;
    // Nobody else counts: the slot is the caller's. Never the number of the turn before, which the tick has.
    let number = slot.turns.load(Ordering::Relaxed).wrapping_add(1);
    slot.turns.store(number, Ordering::Relaxed);
    // SAFETY: the slot is the caller's, and the block is reached here alone.
    let block = unsafe { slot.host.bytes(0, block_bytes(plan.max_seats)) };
    write_block(block, plan.max_seats, bucket, seats, number);
    if seats.len() < bucket {
        for &Stacked { start, bytes } in &plan.repeated[at] {
            // SAFETY: inputs of a slot that is the caller's. They have room for `max_seats` seats.
            let input = unsafe { slot.host.bytes(start, bytes * bucket) };
            (seats.len()..bucket).for_each(|seat| input.copy_within(0..bytes, seat * bytes));
        }
    }
    // SAFETY: the graph names the slot's memory, constants, which nobody writes, the plan's buffers, and scratch, which all
    // slots of a plan share: turns are of one stream, so one runs after the other. Rows were checked, and all else was when
    // it was prepared.
    unsafe { context.launch(&plan.name, &slot.graphs[at]) }?;
    Ok(Mark(number))
}

/// Waits for the end of a turn, and tells how it ended.
///
/// # Safety
/// `mark` is what [`begin`] gave for `plan` and `slot`, with its promise kept until now.
pub(crate) unsafe fn end(context: &Context, plan: &CudaPlan, slot: &SlotMemory, mark: Mark) -> Result<(), DeviceError> {
    context.finish(&plan.name, slot.host.word(plan.tick_at), mark.0)?;
    // SAFETY: the slot is the caller's, and its graph has ended.
    let records = unsafe { slot.host.bytes(plan.faults_at, plan.faulting.len() * FAULT_BYTES) };
    // Commands are in program order: the first one is the one to tell.
    let faults = records.as_chunks::<FAULT_BYTES>().0.iter().zip(&plan.faulting);
    let fault = faults.into_iter().find_map(|(record, (label, image))| {
        let fault = Fault::read(record)?;
        Some(faulted(label, image, &fault))
    });
    let Some(fault) = fault else { return Ok(()) };
    // The next turn begins with what the host has of them.
    records.fill(0);
    Err(fault)
}

/// Writes the block of a turn of `seats`, launched for `bucket` of them.
pub(crate) fn write_block(block: &mut [u8], max_seats: usize, bucket: usize, seats: &[SeatRows], number: u32) {
    let mut word = |at: usize, value: u32| block[at..at + 4].copy_from_slice(&value.to_le_bytes());
    word(0, seats.len() as u32);
    word(BLOCK_NUMBER, number);
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
        write_block(&mut block, 4, 3, &[seat(7, 1), seat(9, 2)], 77);
        let words: Vec<u32> = block.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        assert_eq!((&words[..2], &words[4..7], &words[8..10]), (&[2, 77][..], &[7, 9, 7][..], &[1, 2][..]));
    }
}
