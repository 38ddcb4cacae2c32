//! A double with several slots. What it starts waits on a bench until the test, or a thread of it, runs it.

use super::super::model::{Capacity, LanedModel, Refusal, RowId, SeatRows};
use super::super::sync::lock;
use super::double::{BALK, FAIL, INITIAL, LOSE, PANIC, REFUSE, next, signature};
use crate::Signature;
use crate::device::{Completer, Completion, DeviceError, Outcome};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// What a row or an output holds that nobody may be told.
const BAD: u64 = 0xbad;

/// Where started turns wait, oldest first.
#[derive(Clone, Default)]
pub struct Bench(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
pub struct State {
    rows: Vec<u64>,
    waiting: VecDeque<Started>,
    slots: Vec<Slot>,
    /// The inputs of each turn started, in seat order.
    pub turns: Vec<Vec<u64>>,
    /// A turn is run as it is started.
    pub runs_at_once: bool,
    pub at_bad_rows: AtBadRows,
    /// The threads of the bench run nothing.
    pub is_held: bool,
    /// The model was dropped.
    pub is_gone: bool,
}

/// What a turn does that reads a bad row, as one might that takes an index from its state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum AtBadRows {
    /// Bad answers.
    #[default]
    GoesOn,
    /// The seat is refused.
    Refuses,
    /// The turn fails.
    Fails,
}

#[derive(Default)]
struct Slot {
    in_flight: bool,
    y: Vec<u64>,
    /// Refusals that the completion does not tell of.
    refused: Vec<Refusal>,
}

struct Started {
    slot: usize,
    seats: Vec<SeatRows>,
    xs: Vec<u64>,
    completer: Completer,
}

impl Bench {
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.0)
    }

    pub fn rows(&self) -> usize {
        self.state().rows.len()
    }

    pub fn in_flight(&self) -> usize {
        self.state().waiting.len()
    }

    pub fn turns(&self) -> Vec<Vec<u64>> {
        self.state().turns.clone()
    }

    /// Runs the oldest turn, and tells its completion how it went. Whether there was one.
    pub fn run_one(&self) -> bool {
        let mut state = self.state();
        let Some(started) = state.waiting.pop_front() else { return false };
        let result = state.run(&started.seats, &started.xs, started.slot);
        state.slots[started.slot].in_flight = false;
        drop(state);
        started.completer.complete(result);
        true
    }

    /// Runs turns on a thread of its own, which ends with the model. `delay` is told how many turns have run.
    pub fn run_on_a_thread(&self, delay: impl Fn(u64) + Send + 'static) -> std::thread::JoinHandle<()> {
        let bench = self.clone();
        std::thread::spawn(move || {
            for turn in 0.. {
                let state = bench.state();
                let waits = |state: &mut State| (state.is_held || state.waiting.is_empty()) && !state.is_gone;
                let state = bench.0.1.wait_while(state, waits).unwrap();
                if state.is_gone && state.waiting.is_empty() {
                    return;
                }
                drop(state);
                delay(turn);
                bench.run_one();
            }
        })
    }

    pub fn hold(&self) {
        self.state().is_held = true;
    }

    pub fn let_go(&self) {
        self.state().is_held = false;
        self.0.1.notify_all();
    }

    /// Waits until `n` turns have been started.
    pub fn wait_for_turns(&self, n: usize) {
        let state = self.state();
        drop(self.0.1.wait_while(state, |state| state.turns.len() < n).unwrap());
    }
}

impl State {
    fn run(&mut self, seats: &[SeatRows], xs: &[u64], slot: usize) -> Result<Outcome, DeviceError> {
        let read: Vec<u64> = seats.iter().map(|seat| self.rows[seat.read.0 as usize]).collect();
        // Whatever does not succeed leaves rubbish behind.
        seats.iter().for_each(|seat| self.rows[seat.write.0 as usize] = BAD);
        let (mut outcome, slot) = (Outcome::default(), &mut self.slots[slot]);
        slot.y.fill(BAD);
        slot.refused.clear();
        if xs.contains(&LOSE) {
            return Err(DeviceError::Lost("unplugged".into()));
        }
        if xs.contains(&FAIL) || self.at_bad_rows == AtBadRows::Fails && read.contains(&BAD) {
            return Err(DeviceError::Fault { at: "double".into(), what: "told to fail".into() });
        }
        for (seat, (rows, x)) in seats.iter().zip(xs).enumerate() {
            if *x == REFUSE || self.at_bad_rows == AtBadRows::Refuses && read[seat] == BAD {
                let refusal = Refusal { seat: seat as u32, reason: "told to refuse".into() };
                // By turns in either of the two ways.
                if seat % 2 == 0 { outcome.refused.push(refusal) } else { slot.refused.push(refusal) }
            } else {
                slot.y[seat] = next(read[seat], *x);
                self.rows[rows.write.0 as usize] = slot.y[seat];
            }
        }
        Ok(outcome)
    }
}

/// The ports of a `Double`, in up to three slots.
pub struct Slotted {
    signature: Signature,
    bench: Bench,
    capacity: Capacity,
    /// Of each slot.
    x: Vec<Vec<u64>>,
    rate: Vec<i32>,
    y: Vec<Vec<u64>>,
}

impl Slotted {
    pub fn new(bench: &Bench, shared: bool) -> Self {
        let capacity = Capacity { rows: 1, max_seats: 0 };
        Self { signature: signature(shared), bench: bench.clone(), capacity, x: vec![], rate: vec![], y: vec![] }
    }

    fn assert_free(&self, slot: usize) {
        assert!(!self.bench.state().slots[slot].in_flight, "slot {slot} is touched in flight");
    }
}

impl LanedModel for Slotted {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn prepare(&mut self, _: Capacity) -> Result<(), DeviceError> {
        unreachable!("it is prepared with slots")
    }

    fn input_mut(&mut self, _: usize) -> &mut [u8] {
        unreachable!("its inputs are those of a slot")
    }

    fn run(&mut self, _: &[SeatRows], _: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        unreachable!("its turns are started")
    }

    fn output(&self, _: usize) -> &[u8] {
        unreachable!("its outputs are those of a slot")
    }

    fn device_bytes(&self) -> u64 {
        0
    }

    fn identity(&self) -> Result<[u8; 32], DeviceError> {
        Ok([7; 32])
    }

    fn read_row(&self, _state: usize, row: RowId, into: &mut [u8]) -> Result<(), DeviceError> {
        into.copy_from_slice(&self.bench.state().rows[row.0 as usize].to_le_bytes());
        Ok(())
    }

    fn write_row(&mut self, _state: usize, row: RowId, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut state = self.bench.state();
        let mut seats = state.waiting.iter().flat_map(|started| &started.seats);
        assert!(seats.all(|seat| seat.read != row && seat.write != row), "{row} is written, and in flight");
        state.rows[row.0 as usize] = u64::from_le_bytes(bytes.try_into().unwrap());
        Ok(())
    }

    fn slots_max(&self) -> usize {
        3
    }

    fn prepare_slots(&mut self, capacity: Capacity, slots: usize) -> Result<(), DeviceError> {
        let (mut state, seats) = (self.bench.state(), capacity.max_seats as usize);
        state.rows = vec![0xdead; capacity.rows as usize];
        state.rows[capacity.initial_row().0 as usize] = INITIAL;
        state.slots = (0..slots).map(|_| Slot { y: vec![0; seats], ..Slot::default() }).collect();
        drop(state);
        self.capacity = capacity;
        (self.x, self.y, self.rate) = (vec![vec![0; seats]; slots], vec![vec![0; seats]; slots], vec![0; slots]);
        Ok(())
    }

    fn slot_input_mut(&mut self, slot: usize, port: usize) -> &mut [u8] {
        self.assert_free(slot);
        match port {
            0 => bytemuck::cast_slice_mut(&mut self.x[slot]),
            _ => bytemuck::bytes_of_mut(&mut self.rate[slot]),
        }
    }

    fn start(&mut self, slot: usize, seats: &[SeatRows]) -> Result<Completion, DeviceError> {
        self.assert_free(slot);
        let xs = self.x[slot][..seats.len()].to_vec();
        let mut state = self.bench.state();
        let earlier: Vec<SeatRows> = state.waiting.iter().flat_map(|started| started.seats.iter().copied()).collect();
        for (at, SeatRows { write, .. }) in seats.iter().enumerate() {
            assert!(*write < self.capacity.initial_row(), "a seat writes the initial row");
            assert!(seats.iter().all(|seat| seat.read != *write), "a row that is read is written: {seats:?}");
            assert!(seats[..at].iter().all(|seat| seat.write != *write), "two seats write one row: {seats:?}");
            let is_touched = earlier.iter().any(|seat| seat.read == *write || seat.write == *write);
            assert!(!is_touched, "{write} is given out, and in flight: {earlier:?}, then {seats:?}");
        }
        assert!(!xs.contains(&PANIC), "told to panic");
        let (completion, completer) = Completion::pending();
        state.turns.push(xs.clone());
        if xs.contains(&BALK) {
            return Err(DeviceError::Fault { at: "double".into(), what: "told not to start".into() });
        }
        state.slots[slot].in_flight = true;
        state.waiting.push_back(Started { slot, seats: seats.to_vec(), xs, completer });
        let runs_at_once = state.runs_at_once;
        drop(state);
        self.bench.0.1.notify_all();
        if runs_at_once {
            self.bench.run_one();
        }
        Ok(completion)
    }

    fn finish(&mut self, slot: usize, _seats: usize, refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        self.assert_free(slot);
        let slot_state = &mut self.bench.state().slots[slot];
        refused.append(&mut slot_state.refused);
        self.y[slot].copy_from_slice(&slot_state.y);
        Ok(())
    }

    fn slot_output(&self, slot: usize, _port: usize) -> &[u8] {
        self.assert_free(slot);
        bytemuck::cast_slice(&self.y[slot])
    }
}

impl Drop for Slotted {
    fn drop(&mut self) {
        self.bench.state().is_gone = true;
        self.bench.0.1.notify_all();
    }
}
