//! A device that fails when a test says so, around one that does not.
//!
//! ```text
//! submit ─> FaultyDevice ─(gate)─> device under it ─> watcher thread ─> what the caller was given
//!                 └ plan of faults: the next few, at random by seed, late, out of memory, lost for good
//! ```
//!
//! - Buffers and executables are the inner device's own; slots are wrapped, so that they are `Busy` for as long as their
//!   completion is pending.
//! - Without a fault, a delay or a hold in force a submission is the inner device's, at its speed: only what is pending
//!   is watched, so that a loss can end it.
//! - Completions are in the order submitted. Once lost, always lost: `reopen` gives a healthy device.
//! - Not here: bytes that change by themselves. What a fault leaves in memory is what the inner device did.

use crate::random::Random;
use lanes_core::device::{
    Buffer, Capabilities, Completer, Completion, Device, DeviceError, Executable, MemoryReport, Outcome, Placement,
    PrepareOptions, Purpose, RowOp, Slot, SlotObject, StateRows, TurnRows, TurnTimes,
};
use lanes_core::plan::Checked;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a submission of a turn is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// It ends as a [`DeviceError::Fault`] and nothing of it ran.
    Unrun,
    /// It runs, and ends as a [`DeviceError::Fault`] all the same.
    Ran,
}

/// A device that does as told. All methods but those of [`Device`] are the test's control, and may be called while
/// others use the device.
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Something for the watcher to look at.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// For the next submissions, one each.
    script: VecDeque<Option<Injected>>,
    random: Option<(Random, usize)>,
    delay: Duration,
    is_held: bool,
    /// Allocations to refuse.
    exhausted: usize,
    lost: Option<Arc<str>>,
    flying: VecDeque<Flying>,
    injected: u64,
    is_closing: bool,
    /// Changed since the watcher looked.
    is_new: bool,
}

/// A submission whose end is not yet told.
struct Flying {
    /// The inner device's; `None` where it was not asked.
    inner: Option<Completion>,
    /// What the inner device waits for.
    gate: Option<Completer>,
    /// What it waits for where the inner device was not asked.
    after: Vec<Completion>,
    /// When the gate is opened, unless everything is held.
    due: Instant,
    is_ran: Option<Injected>,
    outer: Completer,
    /// Woken by whoever cancels it: a [`Cancels`].
    cancels: Waker,
}

/// Passes a cancel on before the call that asked for it returns, so that what is held is not begun afterwards.
struct Cancels {
    inner: Option<Completion>,
    shared: Arc<Shared>,
}

impl Wake for Cancels {
    fn wake(self: Arc<Self>) {
        self.inner.iter().for_each(Completion::cancel);
        Wake::wake_by_ref(&self.shared);
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.lock().is_new = true;
        self.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What becomes of the next submission, and whether the script says so.
    fn next(&mut self) -> (bool, Option<Injected>) {
        if let Some(scripted) = self.script.pop_front() {
            return (true, scripted);
        }
        let chance = self.random.as_mut().and_then(|(random, of)| {
            random.one_in(*of).then(|| if random.one_in(2) { Injected::Unrun } else { Injected::Ran })
        });
        (false, chance)
    }
}

fn fault(how: Injected) -> DeviceError {
    let what = match how {
        Injected::Unrun => "injected, and nothing ran",
        Injected::Ran => "injected after it ran",
    };
    DeviceError::Fault { at: "faulty device".into(), what: what.into() }
}

impl FaultyDevice {
    /// Around `inner`; it behaves until told otherwise.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        let shared = Arc::new(Shared::default());
        let watched = Arc::clone(&shared);
        let watcher = std::thread::spawn(move || watch(&watched));
        Self { inner, shared, watcher: Some(watcher) }
    }

    /// The device it is around.
    pub fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }

    /// What becomes of the next submissions of turns, one each, after those scripted before; `None` is left alone.
    pub fn script(&self, next: impl IntoIterator<Item = Option<Injected>>) {
        self.shared.lock().script.extend(next);
    }

    /// From now on one submission in `of` fails, by chance from `seed`, where nothing is scripted; 0 is never.
    pub fn fail_randomly(&self, seed: u64, of: usize) {
        self.shared.lock().random = (of > 0).then_some((Random(seed), of));
    }

    /// From now on work is begun this long after it was submitted, at the earliest.
    pub fn delay(&self, delay: Duration) {
        self.shared.lock().delay = delay;
    }

    /// From now on nothing that is submitted is begun before [`release`](Self::release).
    pub fn hold(&self) {
        self.shared.lock().is_held = true;
    }

    /// Lets go what was held.
    pub fn release(&self) {
        self.change(|state| state.is_held = false);
    }

    /// The next `count` allocations and prepares are [`DeviceError::OutOfMemory`].
    pub fn exhaust(&self, count: usize) {
        self.shared.lock().exhausted = count;
    }

    /// Loses the device for good: what is pending, and every later call, ends as [`DeviceError::Lost`] with `cause`.
    pub fn lose(&self, cause: &str) {
        self.change(|state| state.lost = state.lost.take().or_else(|| Some(cause.into())));
    }

    /// Submissions that were made to fail so far.
    pub fn injected(&self) -> u64 {
        self.shared.lock().injected
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.shared.lock();
        change(&mut state);
        state.is_new = true;
        drop(state);
        self.shared.changed.notify_all();
    }

    fn alive(&self) -> Result<(), DeviceError> {
        self.shared.lock().lost.clone().map_or(Ok(()), |cause| Err(DeviceError::Lost(cause)))
    }

    /// An inner call that can wait for work which a loss ends: it is lost too if the device is by then.
    fn through<T>(&self, call: impl FnOnce(&dyn Device) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        self.alive()?;
        let result = call(&*self.inner);
        self.alive()?;
        result
    }

    fn spend(&self, what: &str, asked: u64) -> Result<(), DeviceError> {
        let mut state = self.shared.lock();
        match state.exhausted.checked_sub(1) {
            None => Ok(()),
            Some(left) => {
                state.exhausted = left;
                Err(DeviceError::OutOfMemory { what: what.into(), asked })
            }
        }
    }

    /// Submits by `call`, which is given what to come after, unless it is to fail without having run.
    fn fly(
        &self,
        how: Option<Injected>,
        after: &[Completion],
        call: impl FnOnce(&[Completion]) -> Result<Completion, DeviceError>,
    ) -> Result<Completion, DeviceError> {
        let (delay, is_held, is_behind) = {
            let state = self.shared.lock();
            (state.delay, state.is_held, !state.flying.is_empty())
        };
        let gated = is_held || !delay.is_zero();
        let (mut gate, mut inner) = (None, None);
        if how != Some(Injected::Unrun) {
            let completion = if gated {
                let (closed, opens) = Completion::pending();
                gate = Some(opens);
                call(&[after, &[closed]].concat())?
            } else {
                call(after)?
            };
            if completion.is_done() && !is_behind {
                return Ok(match (how, completion.result()) {
                    (Some(how), Some(Ok(_))) => self.inject(how),
                    _ => completion,
                });
            }
            inner = Some(completion);
        } else if !gated && !is_behind && after.iter().all(Completion::is_done) {
            let failed = after.iter().find_map(|earlier| earlier.result()?.err());
            return Ok(match failed {
                Some(cause) => Completion::ready(Err(cause.upstream())),
                None => self.inject(Injected::Unrun),
            });
        }
        let after = if inner.is_none() { after.to_vec() } else { Vec::new() };
        let (completion, outer) = Completion::pending();
        let due = Instant::now() + delay;
        let cancels = Waker::from(Arc::new(Cancels { inner: inner.clone(), shared: Arc::clone(&self.shared) }));
        // Nobody has had it to cancel it yet.
        outer.is_cancelled(&cancels);
        self.change(|state| state.flying.push_back(Flying { inner, gate, after, due, is_ran: how, outer, cancels }));
        Ok(completion)
    }

    fn inject(&self, how: Injected) -> Completion {
        self.shared.lock().injected += 1;
        Completion::ready(Err(fault(how)))
    }
}

impl Drop for FaultyDevice {
    fn drop(&mut self) {
        self.change(|state| state.is_closing = true);
        // A test that drops the device in a task of its own is not waited for.
        if let Some(watcher) = self.watcher.take().filter(|it| it.thread().id() != std::thread::current().id()) {
            drop(watcher.join());
        }
    }
}

/// Tells the ends of what flies, in order.
fn watch(shared: &Arc<Shared>) {
    let waker = Waker::from(Arc::clone(shared));
    let mut state = shared.lock();
    loop {
        state.is_new = false;
        let (lost, is_closing, is_held) = (state.lost.clone(), state.is_closing, state.is_held);
        let now = Instant::now();
        let mut sleep = None;
        if lost.is_some() || is_closing {
            // Nothing more is begun, behind a gate or not. The last first: the device under this one begins what is next as
            // soon as the one before it has ended, which a cancel may do at once.
            state.flying.iter().rev().filter_map(|flying| flying.inner.as_ref()).for_each(Completion::cancel);
        }
        for flying in state.flying.iter_mut().filter(|_| lost.is_none() && !is_closing) {
            if flying.gate.is_some() || flying.inner.is_none() {
                if !is_held && flying.due <= now {
                    if let Some(gate) = flying.gate.take() {
                        gate.complete(Ok(Outcome::default()));
                    }
                } else if !is_held {
                    let left = flying.due - now;
                    sleep = Some(sleep.map_or(left, |sleep: Duration| sleep.min(left)));
                }
            }
        }
        let front = state.flying.front_mut().and_then(|front| end_of(front, now, is_held, is_closing, &lost, &waker));
        if let Some((result, is_injected)) = front {
            state.injected += u64::from(is_injected);
            if let Some(flying) = state.flying.pop_front() {
                // Tasks of the test are woken without the lock.
                drop(state);
                flying.outer.complete(result);
                state = shared.lock();
            }
            continue;
        }
        if is_closing && state.flying.is_empty() {
            return;
        }
        while !state.is_new {
            let Some(limit) = sleep else {
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (woken, timeout) = shared.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if timeout.timed_out() {
                break;
            }
        }
    }
}

/// How the oldest submission ends, if it does now, and whether by injection.
fn end_of(
    flying: &mut Flying,
    now: Instant,
    is_held: bool,
    is_closing: bool,
    lost: &Option<Arc<str>>,
    waker: &Waker,
) -> Option<(Result<Outcome, DeviceError>, bool)> {
    if let Some(cause) = lost {
        return Some((Err(DeviceError::Lost(Arc::clone(cause))), false));
    }
    if let Some(inner) = &mut flying.inner {
        return match (Pin::new(inner).poll(&mut Context::from_waker(waker)), flying.is_ran) {
            (std::task::Poll::Pending, _) => None,
            (std::task::Poll::Ready(Ok(_)), Some(how)) => Some((Err(fault(how)), true)),
            (std::task::Poll::Ready(result), _) => Some((result, false)),
        };
    }
    if is_closing || flying.outer.is_cancelled(&flying.cancels) {
        return Some((Err(DeviceError::Cancelled), false));
    }
    let mut is_pending = is_held || flying.due > now;
    for earlier in &mut flying.after {
        match Pin::new(earlier).poll(&mut Context::from_waker(waker)) {
            std::task::Poll::Pending => is_pending = true,
            std::task::Poll::Ready(Ok(_)) => {}
            std::task::Poll::Ready(Err(cause)) => return Some((Err(cause.upstream()), false)),
        }
    }
    (!is_pending).then(|| (Err(fault(Injected::Unrun)), true))
}

/// A slot that is in flight for as long as its completion is pending.
struct FaultySlot {
    inner: Slot,
    last: Option<Completion>,
}

impl FaultySlot {
    fn idle(&self) -> Result<(), DeviceError> {
        match &self.last {
            Some(last) if !last.is_done() => Err(DeviceError::Busy { depth: 1 }),
            _ => Ok(()),
        }
    }
}

impl SlotObject for FaultySlot {
    fn input_mut(&mut self, port: usize) -> Result<&mut [u8], DeviceError> {
        self.idle()?;
        self.inner.input_mut(port)
    }

    fn output(&self, port: usize) -> Result<&[u8], DeviceError> {
        self.idle()?;
        self.inner.output(port)
    }
}

impl Device for FaultyDevice {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn allocate(&self, what: &str, purpose: Purpose, placement: Placement, bytes: u64) -> Result<Buffer, DeviceError> {
        self.alive()?;
        self.spend(what, bytes)?;
        self.inner.allocate(what, purpose, placement, bytes)
    }

    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.through(|inner| inner.write(buffer, offset, bytes))
    }

    fn read(&self, buffer: &Buffer, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.through(|inner| inner.read(buffer, offset, into))
    }

    fn copy(
        &self,
        from: (&Buffer, u64),
        to: (&Buffer, u64),
        bytes: u64,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        self.alive()?;
        self.fly(None, after, |after| self.inner.copy(from, to, bytes, after))
    }

    fn map(
        &self,
        buffer: &Buffer,
        offset: u64,
        bytes: usize,
        visit: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.through(|inner| inner.map(buffer, offset, bytes, visit))
    }

    fn rows(&self, state: &StateRows, op: RowOp) -> Result<Completion, DeviceError> {
        self.through(|inner| inner.rows(state, op))
    }

    fn prepare(&self, plan: &Checked<'_>, options: &PrepareOptions<'_>) -> Result<Executable, DeviceError> {
        self.alive()?;
        self.spend(&format!("plan {}", plan.plan().name), 0)?;
        self.inner.prepare(plan, options)
    }

    fn lease(&self, executable: &Executable) -> Result<Slot, DeviceError> {
        self.alive()?;
        Ok(Slot::new(Box::new(FaultySlot { inner: self.inner.lease(executable)?, last: None })))
    }

    fn submit(
        &self,
        executable: &Executable,
        slot: &mut Slot,
        turn: TurnRows<'_>,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        self.alive()?;
        let Some(slot) = slot.object_mut::<FaultySlot>() else {
            return Err(DeviceError::Invalid { what: "this slot belongs to another device".into() });
        };
        slot.idle()?;
        let (is_scripted, how) = self.shared.lock().next();
        let inner = &mut slot.inner;
        let completion = self.fly(how, after, |after| self.inner.submit(executable, inner, turn, after));
        let completion = completion.inspect_err(|_| {
            // What was not accepted spends nothing of the script.
            if is_scripted {
                self.shared.lock().script.push_front(how);
            }
        })?;
        slot.last = (!completion.is_done()).then(|| completion.clone());
        Ok(completion)
    }

    fn measure(
        &self,
        plan: &Checked<'_>,
        options: &PrepareOptions<'_>,
        inputs: &[&[u8]],
        turn: TurnRows<'_>,
        samples: usize,
    ) -> Result<Option<TurnTimes>, DeviceError> {
        self.through(|inner| inner.measure(plan, options, inputs, turn, samples))
    }

    fn memory(&self) -> MemoryReport {
        self.inner.memory()
    }

    fn health(&self) -> Result<(), DeviceError> {
        self.through(|inner| inner.health())
    }

    fn reopen(&self) -> Result<Arc<dyn Device>, DeviceError> {
        Ok(Arc::new(Self::new(self.inner.reopen()?)))
    }
}
