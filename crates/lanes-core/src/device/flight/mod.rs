//! What was submitted and has not ended: its order, and the threads that run it. For backends: one that keeps what it does
//! in an [`Engine`] and how it is opened in a [`Backend`] is a [`Device`](super::Device), and the rest is here.
//!
//! ```text
//! submit ─┬─ nothing in flight, no overlap asked ───────────── tickets ─> run on the caller's thread, and waited for
//!         ├─ nothing queued, the device watched ── tickets ─> begun on the caller's thread ─┐
//!         └─ else: tickets, queued (bounded) ─> device thread: wait for `after`, begin ─────┴─> watcher: end ─> complete
//! write, read, map ─────────────────────────────────────────── ticket ──> run on the caller's thread
//! ```
//!
//! - **One lock gives the order.** Under it a submission takes its tickets, one at the turnstile of each buffer that it
//!   touches, and its place in the queue. Whoever waits at a turnstile, in the queue or for `after` waits for something
//!   that was submitted earlier. So there is no ring of waits: of all that has not ended, the earliest waits for nobody
//!   here. Work on other buffers is not waited for, except by what is queued behind it.
//! - The queue is begun in order by one thread, started when first needed. A device whose work ends where it is begun needs no
//!   other; for one that is *watched* a second thread waits for the ends, in the order begun. So completions are in the order
//!   submitted.
//! - What a watched device has begun it does in that order by itself: it *passes* turnstiles that the host must wait at.
//! - **No lock is held** while a turn runs, a waker is woken or a visitor looks. One is while a turn is begun on a device that is
//!   watched, which is handing it over.
//! - A device that is dropped runs to their end the turns that were begun; what is queued behind ends as `Cancelled`. Slots,
//!   tickets and memory are given back like those of any other.
//! - Not here: what a turn does (`engine`), slots (`slot`), buffers (`buffer`), and what a device answers (`host`).

mod buffer;
mod engine;
mod host;
mod slot;

pub use buffer::Held;
pub use engine::{Engine, Idle, Stretch, Turn};
pub use host::{Backend, Bindings, Host, Made, Sample};

use super::{Completer, Completion, Completions, DeviceError, Order, Outcome, Ticket, TurnRows};
use buffer::{Entered, Move, Passage};
use slot::{Leased, Queued, Ready, SlotCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

/// The most submissions in flight. Beyond it, `Busy`.
const DEPTH_MAX: usize = 256;

/// Completions of copies and row operations that are kept for the next ones.
const COMPLETIONS: usize = 16;

/// How often a thread that waits for earlier work looks whether a watched device was lost.
const LOSS_SEEN: Duration = Duration::from_millis(100);

/// The submissions of one device.
struct Flight<E: Engine> {
    engine: E,
    state: Mutex<State<E>>,
    /// Something was queued, or the device is closing.
    arrived: Condvar,
    /// Something was begun, or nothing will be any more.
    began: Condvar,
    closing: AtomicBool,
}

struct State<E: Engine> {
    order: Order,
    jobs: VecDeque<Job<E>>,
    /// Whether the device thread has a job that it has not begun.
    is_beginning: bool,
    /// What the watcher is to end, in this order.
    begun: VecDeque<Begun<E>>,
    /// Whether the device thread is gone, so that nothing more will be begun.
    is_over: bool,
    /// How many are queued, begun or being ended.
    in_flight: usize,
    completions: Completions,
    /// What moves came after, emptied and kept for the next ones: as many as were ever queued at once.
    earlier: Vec<Vec<Completion>>,
    threads: Vec<JoinHandle<()>>,
}

struct Job<E: Engine> {
    work: Work<E>,
    completer: Completer,
}

enum Work<E: Engine> {
    /// Its seats, tickets and what it comes after are in the slot.
    Turn { ready: Arc<Ready<E>>, cell: Arc<SlotCell<E>> },
    /// With a ticket for each of its buffers.
    Move { motion: Move<E>, tickets: [Option<Ticket>; 2], after: Vec<Completion> },
}

/// A job whose turnstiles were passed. It was done, goes on until its mark, or was not begun and why.
struct Begun<E: Engine> {
    job: Job<E>,
    mark: Result<Option<E::Mark>, DeviceError>,
}

impl<E: Engine> Flight<E> {
    fn new(engine: E) -> Self {
        // As many as there are completions: a list comes back a little later than what it was for ends.
        let mut earlier = Vec::with_capacity(DEPTH_MAX);
        earlier.resize_with(COMPLETIONS, || Vec::with_capacity(4));
        let state = State {
            order: Order::default(),
            jobs: VecDeque::with_capacity(DEPTH_MAX),
            is_beginning: false,
            begun: VecDeque::with_capacity(if E::WATCHED { DEPTH_MAX } else { 0 }),
            is_over: false,
            in_flight: 0,
            completions: Completions::new(COMPLETIONS),
            earlier,
            threads: Vec::new(),
        };
        let (arrived, began) = (Condvar::new(), Condvar::new());
        Self { engine, state: Mutex::new(state), arrived, began, closing: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        // Critical sections only move what is there already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sole use of `buffer` after what was submitted before.
    fn pass<'a>(&self, buffer: &'a Held<E>) -> Passage<'a, E> {
        let ticket = buffer.turnstile.ticket(&mut self.lock().order);
        Passage::enter(buffer, ticket)
    }

    /// Sole use of `buffers` after what was submitted before.
    fn enter<'a>(&self, buffers: &'a [Arc<Held<E>>]) -> Entered<'a, E> {
        let mut tickets = Vec::with_capacity(buffers.len());
        take(&mut tickets, buffers, &mut self.lock().order);
        Entered::all(buffers, &tickets)
    }

    /// One turn of `slot`, which is idle and whose executable `turn` was checked for.
    fn turn(
        self: &Arc<Self>,
        slot: &mut Leased<E>,
        turn: TurnRows<'_>,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        let Leased { ready, cell } = slot;
        let mut queued = cell.queued();
        let Queued { seats, after: earlier, tickets, completions } = &mut *queued;
        let is_settled = after.iter().all(Completion::is_done);
        let mut state = self.lock();
        if is_settled && !ready.overlap && state.in_flight == 0 {
            if let Some(cause) = failed(after) {
                return Ok(Completion::ready(Err(cause.upstream())));
            }
            take(tickets, &ready.entered, &mut state.order);
            drop(state);
            let _entered = Entered::all(&ready.entered, tickets);
            let turn = Turn { plan: &ready.plan, staging: &cell.staging, seats: turn.seats() };
            let ran = self.engine.begin(&turn);
            let ran = ran.and_then(|mark| mark.map_or(Ok(()), |mark| self.engine.end(&turn, mark)));
            return Ok(Completion::ready(ran.map(|()| Outcome::default())));
        }
        self.admit(&mut state)?;
        let at_once = E::WATCHED && is_settled && state.may_begin(&ready.entered) && failed(after).is_none();
        take(tickets, &ready.entered, &mut state.order);
        seats.clear();
        seats.extend_from_slice(turn.seats());
        earlier.clear();
        let (completion, completer) = completions.pending();
        cell.fly();
        let job = Job { work: Work::Turn { ready: Arc::clone(ready), cell: Arc::clone(cell) }, completer };
        if at_once {
            pass(&ready.entered, tickets);
            // Nobody has its completion yet to cancel it.
            let mark = self.engine.begin(&Turn { plan: &ready.plan, staging: &cell.staging, seats });
            state.in_flight += 1;
            self.watch(state, Begun { job, mark });
        } else {
            earlier.extend_from_slice(after);
            self.enqueue(state, job);
        }
        Ok(completion)
    }

    /// One copy or fill.
    fn motion(self: &Arc<Self>, motion: Move<E>, after: &[Completion]) -> Result<Completion, DeviceError> {
        let is_settled = after.iter().all(Completion::is_done);
        let mut state = self.lock();
        let tickets = |state: &mut State<E>| {
            let mut tickets = [None; 2];
            for (ticket, buffer) in tickets.iter_mut().zip(motion.buffers()) {
                *ticket = Some(buffer.turnstile.ticket(&mut state.order));
            }
            tickets
        };
        if is_settled && state.in_flight == 0 {
            if let Some(cause) = failed(after) {
                return Ok(Completion::ready(Err(cause.upstream())));
            }
            let tickets = tickets(&mut state);
            drop(state);
            let passages = tickets.into_iter().flatten().zip(motion.buffers());
            let mut passages = passages.map(|(ticket, buffer)| Passage::enter(buffer, ticket));
            let _entered = (passages.next(), passages.next());
            motion.run(&self.engine)?;
            return Ok(Completion::ready(Ok(Outcome::default())));
        }
        self.admit(&mut state)?;
        let tickets = tickets(&mut state);
        let (completion, completer) = state.completions.pending();
        let mut earlier = state.earlier.pop().unwrap_or_default();
        earlier.extend_from_slice(after);
        self.enqueue(state, Job { work: Work::Move { motion, tickets, after: earlier }, completer });
        Ok(completion)
    }

    /// That there is room for one more, and threads to run it.
    fn admit(self: &Arc<Self>, state: &mut State<E>) -> Result<(), DeviceError> {
        if state.in_flight >= DEPTH_MAX {
            return Err(DeviceError::Busy { depth: state.in_flight });
        }
        // One that did not start is asked for again the next time.
        while state.threads.len() < 1 + usize::from(E::WATCHED) {
            let (flight, is_first) = (Arc::clone(self), state.threads.is_empty());
            let name = format!("lanes-{}-{}", E::NAME, if is_first { "device" } else { "watcher" });
            let run = move || if is_first { flight.begin_all() } else { flight.end_all() };
            let thread = thread::Builder::new().name(name).spawn(run);
            state.threads.push(thread.map_err(|error| DeviceError::Unsupported {
                what: format!("a thread for device {}: {error}", E::NAME),
            })?);
        }
        Ok(())
    }

    fn enqueue(&self, mut state: MutexGuard<'_, State<E>>, job: Job<E>) {
        state.jobs.push_back(job);
        state.in_flight += 1;
        drop(state);
        self.arrived.notify_one();
    }

    fn watch(&self, mut state: MutexGuard<'_, State<E>>, begun: Begun<E>) {
        state.begun.push_back(begun);
        drop(state);
        self.began.notify_one();
    }

    /// Ends the threads. Nobody submits any more.
    fn close(&self) {
        let threads = {
            // Under the lock, so that the device thread is either before its look at the queue or asleep.
            let mut state = self.lock();
            self.closing.store(true, Ordering::Release);
            std::mem::take(&mut state.threads)
        };
        self.arrived.notify_all();
        threads.iter().for_each(|thread| thread.thread().unpark());
        // A task woken by one of the threads may drop the device there; they end by themselves then.
        if threads.iter().all(|thread| thread.thread().id() != thread::current().id()) {
            // They catch every panic of others, and there is none to pass on.
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }

    /// The device thread.
    fn begin_all(&self) {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            let mut job = {
                let mut state = self.lock();
                loop {
                    if let Some(job) = state.jobs.pop_front() {
                        state.is_beginning = true;
                        break job;
                    }
                    if self.closing.load(Ordering::Acquire) {
                        state.is_over = true;
                        drop(state);
                        self.began.notify_all();
                        return;
                    }
                    state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let mark = self.begin(&mut job, &waker);
            let begun = Begun { job, mark };
            if E::WATCHED {
                let mut state = self.lock();
                state.is_beginning = false;
                self.watch(state, begun);
            } else {
                self.end(begun);
                let mut state = self.lock();
                state.is_beginning = false;
                state.in_flight -= 1;
            }
        }
    }

    /// The watcher.
    fn end_all(&self) {
        loop {
            let begun = {
                let mut state = self.lock();
                loop {
                    if let Some(begun) = state.begun.pop_front() {
                        break begun;
                    }
                    if state.is_over {
                        return;
                    }
                    state = self.began.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            self.end(begun);
            self.lock().in_flight -= 1;
        }
    }

    /// Passes the turnstiles of a job, whatever comes of it, since those behind wait for that, and begins it if it may be.
    fn begin(&self, job: &mut Job<E>, waker: &Waker) -> Result<Option<E::Mark>, DeviceError> {
        let completer = &job.completer;
        let begin = || if completer.begin() { Ok(()) } else { Err(DeviceError::Cancelled) };
        match &mut job.work {
            Work::Turn { ready, cell } => {
                let mut queued = cell.queued();
                let Queued { seats, after, tickets, .. } = &mut *queued;
                let may = self.earlier(after, completer, waker);
                after.clear();
                pass(&ready.entered, tickets);
                may.and_then(|()| begin())?;
                self.engine.begin(&Turn { plan: &ready.plan, staging: &cell.staging, seats })
            }
            Work::Move { motion, tickets, after } => {
                let may = self.earlier(after, completer, waker);
                after.clear();
                motion
                    .buffers()
                    .iter()
                    .zip(tickets.iter().flatten())
                    .for_each(|(buffer, &ticket)| buffer.turnstile.pass(ticket));
                may.and_then(|()| begin())?;
                motion.run(&self.engine)?;
                Ok(None)
            }
        }
    }

    /// Waits for the end of a job, gives back all it held, and only then says so.
    fn end(&self, Begun { job: Job { work, completer }, mark }: Begun<E>) {
        let result = match work {
            Work::Turn { ready, cell } => {
                let queued = cell.queued();
                let turn = Turn { plan: &ready.plan, staging: &cell.staging, seats: &queued.seats };
                let ended = mark.and_then(|mark| mark.map_or(Ok(()), |mark| self.engine.end(&turn, mark)));
                ready.entered.iter().for_each(|buffer| buffer.turnstile.leave());
                drop(queued);
                cell.land(&ready);
                ended
            }
            Work::Move { motion, after, .. } => {
                motion.buffers().iter().for_each(|buffer| buffer.turnstile.leave());
                self.lock().earlier.push(after);
                mark.map(drop)
            }
        };
        completer.complete(result.map(|()| Outcome::default()));
    }

    /// Waits until all of `after` have succeeded, one has failed, or the work is not wanted any more.
    fn earlier(&self, after: &mut [Completion], completer: &Completer, waker: &Waker) -> Result<(), DeviceError> {
        loop {
            if self.closing.load(Ordering::Acquire) {
                return Err(DeviceError::Cancelled);
            }
            let mut pending = false;
            for earlier in &mut *after {
                match Pin::new(earlier).poll(&mut Context::from_waker(waker)) {
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(cause)) => return Err(cause.upstream()),
                    Poll::Pending => pending = true,
                }
            }
            if !pending {
                return Ok(());
            }
            if completer.is_cancelled(waker) {
                return Err(DeviceError::Cancelled);
            }
            if E::WATCHED {
                // A device that a call of the host has lost fails what is queued too.
                self.engine.health()?;
                thread::park_timeout(LOSS_SEEN);
            } else {
                thread::park();
            }
        }
    }
}

impl<E: Engine> State<E> {
    /// Whether a turn on `buffers` can be begun now without waiting, and nothing is to be begun before it.
    fn may_begin(&mut self, buffers: &[Arc<Held<E>>]) -> bool {
        let Self { order, jobs, is_beginning, .. } = self;
        jobs.is_empty() && !*is_beginning && buffers.iter().all(|buffer| buffer.turnstile.is_passable(order))
    }
}

/// Why one of `after`, which have all ended, has failed.
fn failed(after: &[Completion]) -> Option<DeviceError> {
    after.iter().find_map(|earlier| earlier.result()?.err())
}

fn take<E: Engine>(tickets: &mut Vec<Ticket>, buffers: &[Arc<Held<E>>], order: &mut Order) {
    tickets.clear();
    tickets.extend(buffers.iter().map(|buffer| buffer.turnstile.ticket(order)));
}

fn pass<E: Engine>(buffers: &[Arc<Held<E>>], tickets: &[Ticket]) {
    debug_assert_eq!(buffers.len(), tickets.len());
    buffers.iter().zip(tickets).for_each(|(buffer, &ticket)| buffer.turnstile.pass(ticket));
}

/// Wakes the device thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
