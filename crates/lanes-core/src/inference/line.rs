//! Who gets the next free slot.
//!
//! ```text
//! join ──> waiting, first come first served ──give──> granted ──take──> on lease ──release──┐
//!               └──leave (dropped): skipped                                                 │
//! free <── nobody waits ────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - A slot is free only while nobody waits: one that comes free while somebody does is theirs, and no later caller's.
//! - One waiter is woken per slot, outside the lock; all are, once no slot is left or the device is lost.
//! - A slot whose plan failed is given to nobody any more.
//! - Nothing is allocated once there have been as many waiters at once.
//! - Not here: what a slot is (`slot`), and how one waits (`acquire`).

use crate::device::{DeviceError, wake};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The slots of one model and those who wait for one.
pub(super) struct Line(Mutex<State>);

struct State {
    /// The one that was given back longest ago first.
    free: VecDeque<usize>,
    /// By slot: why it is given to nobody.
    failed: Vec<Option<DeviceError>>,
    /// Slots that have not failed.
    healthy: usize,
    lost: Option<DeviceError>,
    /// Entries in the order in which they came.
    waiting: VecDeque<usize>,
    entries: Vec<Entry>,
    /// Entries of nobody.
    spare: Vec<usize>,
    asked: u64,
    given: u64,
}

enum Entry {
    Spare,
    Waiting { asked: u64, waker: Option<Waker> },
    Granted(Grant),
}

/// A slot that is given to a caller, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub slot: usize,
    /// Callers before this one.
    pub asked: u64,
    /// Slots given before this one.
    pub given: u64,
}

/// A place in the line. Whoever has one takes its slot, or leaves.
#[derive(Debug)]
pub(super) struct Waiter(usize);

impl State {
    fn give(&mut self, slot: usize, asked: u64) -> Grant {
        self.given += 1;
        Grant { slot, asked, given: self.given - 1 }
    }

    fn ask(&mut self) -> u64 {
        self.asked += 1;
        self.asked - 1
    }

    /// Why no slot will ever be free.
    fn dead(&self) -> Option<DeviceError> {
        if let Some(cause) = &self.lost {
            return Some(cause.clone());
        }
        let first = || self.failed.iter().flatten().next().cloned();
        (self.healthy == 0).then(first).flatten()
    }

    /// A slot for who has just come, before whom nobody waits.
    fn take(&mut self) -> Result<Option<Grant>, DeviceError> {
        if let Some(cause) = self.dead() {
            return Err(cause);
        }
        let Some(slot) = self.free.pop_front() else { return Ok(None) };
        let asked = self.ask();
        Ok(Some(self.give(slot, asked)))
    }

    /// The wakers of all who wait: each will find that it does so in vain.
    fn give_up(&mut self) -> Vec<Waker> {
        let waiting = std::mem::take(&mut self.waiting);
        let waker = |at: usize| match &mut self.entries[at] {
            Entry::Waiting { waker, .. } => waker.take(),
            Entry::Spare | Entry::Granted(_) => None,
        };
        waiting.into_iter().filter_map(waker).collect()
    }
}

impl Line {
    /// Of `slots` free slots.
    pub fn new(slots: usize) -> Self {
        Self(Mutex::new(State {
            free: (0..slots).collect(),
            failed: vec![None; slots],
            healthy: slots,
            lost: None,
            waiting: VecDeque::new(),
            entries: Vec::new(),
            spare: Vec::new(),
            asked: 0,
            given: 0,
        }))
    }

    // Nothing that may panic runs under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot at once, or [`DeviceError::Busy`] with how many are on lease.
    pub fn try_take(&self) -> Result<Grant, DeviceError> {
        let mut state = self.lock();
        let depth = state.healthy;
        state.take()?.ok_or(DeviceError::Busy { depth })
    }

    /// A slot at once, or a place in the line, whose waker is woken when there is one.
    pub fn join(&self, waker: Waker) -> Result<Result<Grant, Waiter>, DeviceError> {
        let mut state = self.lock();
        if let Some(grant) = state.take()? {
            return Ok(Ok(grant));
        }
        let entry = Entry::Waiting { asked: state.ask(), waker: Some(waker) };
        let at = match state.spare.pop() {
            Some(at) => {
                state.entries[at] = entry;
                at
            }
            None => {
                state.entries.push(entry);
                state.entries.len() - 1
            }
        };
        state.waiting.push_back(at);
        Ok(Err(Waiter(at)))
    }

    /// The slot of a waiter, if there is one by now; if not, `waker` is woken when there is. Otherwise the place is gone.
    pub fn poll(&self, waiter: Waiter, new: Waker) -> Result<Result<Grant, Waiter>, DeviceError> {
        let mut state = self.lock();
        let dead = state.dead();
        let old = match &mut state.entries[waiter.0] {
            Entry::Granted(grant) => {
                let grant = *grant;
                state.vacate(waiter.0);
                return Ok(Ok(grant));
            }
            Entry::Waiting { waker, .. } if dead.is_none() => waker.replace(new),
            Entry::Waiting { .. } | Entry::Spare => None,
        };
        if let Some(cause) = dead {
            state.vacate(waiter.0);
            return Err(cause);
        }
        drop(state);
        // Whatever dropping it runs.
        drop(old);
        Ok(Err(waiter))
    }

    /// Gives a place up; a slot that was granted there goes to the next.
    pub fn leave(&self, waiter: Waiter) {
        let mut state = self.lock();
        let entry = state.vacate(waiter.0);
        state.waiting.retain(|&at| at != waiter.0);
        drop(state);
        if let Entry::Granted(grant) = entry {
            self.release(grant.slot);
        }
    }

    /// Gives a slot back: to who has waited longest.
    pub fn release(&self, slot: usize) {
        let mut state = self.lock();
        if state.failed[slot].is_some() {
            return;
        }
        let Some(at) = state.waiting.pop_front() else {
            state.free.push_back(slot);
            return;
        };
        let Entry::Waiting { asked, waker } = std::mem::replace(&mut state.entries[at], Entry::Spare) else {
            unreachable!("who is in the line waits");
        };
        state.entries[at] = Entry::Granted(state.give(slot, asked));
        drop(state);
        waker.into_iter().for_each(wake);
    }

    /// Takes a slot that is on lease out of service.
    pub fn disable(&self, slot: usize, cause: &DeviceError) {
        let mut state = self.lock();
        if state.failed[slot].is_some() {
            return;
        }
        state.failed[slot] = Some(cause.clone());
        state.healthy -= 1;
        let woken = if state.healthy == 0 { state.give_up() } else { Vec::new() };
        drop(state);
        woken.into_iter().for_each(wake);
    }

    /// The device is gone: everybody is told the first cause.
    pub fn lose(&self, cause: &DeviceError) -> DeviceError {
        let mut state = self.lock();
        let cause = state.lost.get_or_insert_with(|| cause.clone()).clone();
        let woken = state.give_up();
        drop(state);
        woken.into_iter().for_each(wake);
        cause
    }

    /// Whether every slot that has not failed is free.
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.free.len() == state.healthy
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Slots that failed, and why.
    pub fn failed(&self) -> Vec<(usize, DeviceError)> {
        let state = self.lock();
        state.failed.iter().enumerate().filter_map(|(slot, cause)| Some((slot, cause.clone()?))).collect()
    }
}

impl State {
    fn vacate(&mut self, at: usize) -> Entry {
        self.spare.push(at);
        std::mem::replace(&mut self.entries[at], Entry::Spare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanes_tests::tasks::Woken;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[derive(Clone, Debug)]
    enum Step {
        Try,
        Join,
        /// The nth of those waiting looks, or leaves.
        Poll(usize),
        Leave(usize),
        /// The nth of those on lease comes back, or fails.
        Release(usize),
        Fail(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => Just(Step::Try),
            5 => Just(Step::Join),
            4 => (0usize..9).prop_map(Step::Poll),
            2 => (0usize..9).prop_map(Step::Leave),
            6 => (0usize..4).prop_map(Step::Release),
            1 => (0usize..4).prop_map(Step::Fail),
        ]
    }

    struct Waits {
        waiter: Waiter,
        asked: u64,
        count: Arc<Woken>,
        /// As the model of it has it.
        granted: Option<usize>,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Against the sentences above, said with lists.
        #[test]
        fn who_came_first_is_served_first(slots in 1usize..4, steps in prop::collection::vec(step(), 1..60)) {
            let line = Line::new(slots);
            let (mut free, mut leased, mut failed) = ((0..slots).collect::<VecDeque<_>>(), Vec::<usize>::new(), 0);
            let (mut waits, mut asked) = (Vec::<Waits>::new(), 0u64);
            let fault = DeviceError::Fault { at: "slot".into(), what: "on purpose".into() };
            // A slot that comes back, in the model.
            let back = |slot: usize, waits: &mut Vec<Waits>, free: &mut VecDeque<usize>| {
                match waits.iter_mut().find(|waits| waits.granted.is_none()) {
                    Some(first) => first.granted = Some(slot),
                    None => free.push_back(slot),
                }
            };
            for step in steps {
                let is_dead = failed == slots;
                match step {
                    Step::Try => match line.try_take() {
                        Ok(grant) => {
                            prop_assert_eq!(Some(grant.slot), free.pop_front());
                            prop_assert_eq!(grant.asked, asked);
                            asked += 1;
                            leased.push(grant.slot);
                        }
                        Err(DeviceError::Busy { depth }) => prop_assert!(free.is_empty() && depth == slots - failed),
                        Err(cause) => prop_assert!(is_dead && cause.to_string() == fault.to_string()),
                    },
                    Step::Join => {
                        let count = Arc::new(Woken::default());
                        match line.join(Waker::from(Arc::clone(&count))) {
                            Ok(Ok(grant)) => {
                                prop_assert_eq!(Some(grant.slot), free.pop_front());
                                asked += 1;
                                leased.push(grant.slot);
                            }
                            Ok(Err(waiter)) => {
                                prop_assert!(free.is_empty() && !is_dead);
                                waits.push(Waits { waiter, asked, count, granted: None });
                                asked += 1;
                            }
                            Err(_) => prop_assert!(is_dead),
                        }
                    }
                    Step::Poll(at) if !waits.is_empty() => {
                        let at = at % waits.len();
                        let Waits { waiter, asked, count, granted } = waits.remove(at);
                        let woken = usize::from(granted.is_some() || is_dead);
                        prop_assert_eq!(count.count(), woken);
                        match line.poll(waiter, Waker::from(Arc::clone(&count))) {
                            Ok(Ok(grant)) => {
                                prop_assert_eq!((Some(grant.slot), grant.asked), (granted, asked));
                                leased.push(grant.slot);
                            }
                            Ok(Err(waiter)) => {
                                prop_assert!(granted.is_none() && !is_dead);
                                waits.insert(at, Waits { waiter, asked, count, granted });
                            }
                            Err(_) => prop_assert!(granted.is_none() && is_dead),
                        }
                    }
                    Step::Leave(at) if !waits.is_empty() => {
                        let gone = waits.remove(at % waits.len());
                        line.leave(gone.waiter);
                        if let Some(slot) = gone.granted {
                            back(slot, &mut waits, &mut free);
                        }
                    }
                    Step::Release(at) if !leased.is_empty() => {
                        let slot = leased.swap_remove(at % leased.len());
                        line.release(slot);
                        back(slot, &mut waits, &mut free);
                    }
                    Step::Fail(at) if !leased.is_empty() => {
                        let slot = leased.swap_remove(at % leased.len());
                        line.disable(slot, &fault);
                        line.release(slot);
                        failed += 1;
                    }
                    _ => {}
                }
                // A dead line has woken everybody; how often those were woken who had been is looked at when they poll.
                prop_assert_eq!(line.is_idle(), free.len() == slots - failed);
                if failed < slots {
                    prop_assert_eq!(line.waiting(), waits.iter().filter(|waits| waits.granted.is_none()).count());
                }
            }
        }
    }

    #[test]
    fn a_lost_device_is_told_to_all_with_the_first_cause() {
        let line = Line::new(1);
        let grant = line.try_take().unwrap();
        let count = Arc::new(Woken::default());
        let waker = || Waker::from(Arc::clone(&count));
        let waiters: Vec<_> = (0..3).map(|_| line.join(waker()).unwrap().unwrap_err()).collect();
        line.lose(&DeviceError::Lost("first".into()));
        let said = line.lose(&DeviceError::Lost("second".into()));
        assert_eq!(said.to_string(), "device lost: first");
        assert_eq!(count.count(), 3);
        for waiter in waiters {
            assert_eq!(line.poll(waiter, waker()).unwrap_err().to_string(), "device lost: first");
        }
        line.release(grant.slot);
        assert_eq!(line.try_take().unwrap_err().to_string(), "device lost: first");
    }
}
