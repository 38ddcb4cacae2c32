//! What was submitted and has not ended: its order, and the thread that runs it.
//!
//! ```text
//! submit ─┬─ nothing queued, no overlap asked ──────────── tickets ─> run on the caller's thread
//!         └─ else: tickets, queued (bounded) ─> device thread: wait for `after` ─> enter ─> run ─> complete
//! write, read, map ────────────────────────────────────── ticket ──> run on the caller's thread
//! ```
//!
//! - **One lock gives the order.** Under it a submission takes its tickets, one at the turnstile of each buffer that it
//!   touches, and its place in the queue. Whoever waits at a turnstile, in the queue or for `after` waits for something
//!   that was submitted earlier. So there is no ring of waits: of all that has not ended, the earliest waits for nobody
//!   here. Work on other buffers is not waited for, except by what is queued behind it.
//! - The queue is run in order by one thread, started when first needed, so completions are in the order submitted.
//! - **No lock is held** while a turn runs, a waker is woken or a visitor looks.
//! - A device that is dropped runs to its end the turn it is at; what is queued behind ends as `Cancelled`. Its slots,
//!   tickets and memory are given back like those of any other.
//! - Not here: what a turn does (`queue`), and slots (`slot`).

use crate::error::no_threads;
use crate::memory::{CpuBuffer, Entered, Move, Passage};
use crate::plan::CpuExecutable;
use crate::pool::Pool;
use crate::queue;
use crate::slot::{CpuSlot, Queued, SlotCell};
use lanes_core::device::{Completer, Completion, Completions, DeviceError, Order, Outcome, Ticket, TurnRows};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};

/// The most submissions in flight. Beyond it, `Busy`.
pub(crate) const DEPTH_MAX: usize = 256;

/// Completions of copies and row operations that are kept for the next ones.
const COMPLETIONS: usize = 16;

/// The submissions of one device.
pub(crate) struct Flight {
    pub pool: Pool,
    state: Mutex<State>,
    /// Something was queued, or the device is closing.
    arrived: Condvar,
    closing: AtomicBool,
}

struct State {
    order: Order,
    jobs: VecDeque<Job>,
    /// How many are queued or run by the device thread.
    in_flight: usize,
    completions: Completions,
    /// What moves came after, emptied and kept for the next ones: as many as were ever queued at once.
    earlier: Vec<Vec<Completion>>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    work: Work,
    completer: Completer,
}

enum Work {
    /// Its seats, tickets and what it comes after are in the slot.
    Turn { executable: Arc<CpuExecutable>, slot: Arc<SlotCell> },
    /// With a ticket for each of its buffers.
    Move { motion: Move, tickets: [Option<Ticket>; 2], after: Vec<Completion> },
}

impl Flight {
    pub fn new(pool: Pool) -> Self {
        // As many as there are completions: a list comes back a little later than what it was for ends.
        let mut earlier = Vec::with_capacity(DEPTH_MAX);
        earlier.resize_with(COMPLETIONS, || Vec::with_capacity(4));
        let state = State {
            order: Order::default(),
            jobs: VecDeque::with_capacity(DEPTH_MAX),
            in_flight: 0,
            completions: Completions::new(COMPLETIONS),
            earlier,
            thread: None,
        };
        Self { pool, state: Mutex::new(state), arrived: Condvar::new(), closing: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Critical sections only move what is there already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sole use of `buffer` after what was submitted before.
    pub fn pass<'a>(&self, buffer: &'a CpuBuffer) -> Passage<'a> {
        let ticket = buffer.turnstile.ticket(&mut self.lock().order);
        Passage::enter(buffer, ticket)
    }

    /// One turn of `slot`, which is idle and whose executable `turn` was checked for.
    pub fn turn(
        self: &Arc<Self>,
        slot: &mut CpuSlot,
        turn: TurnRows<'_>,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        let CpuSlot { executable, cell } = slot;
        let mut queued = cell.queued.lock().unwrap_or_else(PoisonError::into_inner);
        let Queued { seats, after: earlier, tickets, completions } = &mut *queued;
        let inline = !executable.overlap && after.iter().all(Completion::is_done);
        let mut state = self.lock();
        if inline && state.in_flight == 0 {
            if let Some(cause) = after.iter().find_map(|earlier| earlier.result()?.err()) {
                return Ok(Completion::ready(Err(cause.upstream())));
            }
            take(tickets, &executable.entered, &mut state.order);
            drop(state);
            let _entered = Entered::all(&executable.entered, tickets);
            // SAFETY: the turnstiles are entered, the slot is idle and borrowed, and the caller matched the turn.
            let ran = unsafe { queue::run(&self.pool, executable, &cell.memory, turn.seats()) };
            return Ok(Completion::ready(ran.map(|()| Outcome::default())));
        }
        self.admit(&mut state)?;
        take(tickets, &executable.entered, &mut state.order);
        seats.clear();
        seats.extend_from_slice(turn.seats());
        earlier.clear();
        earlier.extend_from_slice(after);
        let (completion, completer) = completions.pending();
        cell.fly();
        let work = Work::Turn { executable: Arc::clone(executable), slot: Arc::clone(cell) };
        self.enqueue(state, Job { work, completer });
        Ok(completion)
    }

    /// One copy or fill.
    pub fn motion(self: &Arc<Self>, motion: Move, after: &[Completion]) -> Result<Completion, DeviceError> {
        let inline = after.iter().all(Completion::is_done);
        let mut state = self.lock();
        let tickets = |state: &mut State| {
            let mut tickets = [None; 2];
            for (ticket, buffer) in tickets.iter_mut().zip(motion.buffers.as_slice()) {
                *ticket = Some(buffer.turnstile.ticket(&mut state.order));
            }
            tickets
        };
        if inline && state.in_flight == 0 {
            if let Some(cause) = after.iter().find_map(|earlier| earlier.result()?.err()) {
                return Ok(Completion::ready(Err(cause.upstream())));
            }
            let tickets = tickets(&mut state);
            drop(state);
            run_move(&motion, tickets, || Ok(()))?;
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

    /// That there is room for one more, and a thread to run it.
    fn admit(self: &Arc<Self>, state: &mut State) -> Result<(), DeviceError> {
        if state.in_flight >= DEPTH_MAX {
            return Err(DeviceError::Busy { depth: state.in_flight });
        }
        if state.thread.is_none() {
            let flight = Arc::clone(self);
            let thread = thread::Builder::new().name("lanes-cpu-device".into()).spawn(move || flight.work());
            state.thread = Some(thread.map_err(|error| no_threads(1, &error))?);
        }
        Ok(())
    }

    fn enqueue(&self, mut state: MutexGuard<'_, State>, job: Job) {
        state.jobs.push_back(job);
        state.in_flight += 1;
        drop(state);
        self.arrived.notify_one();
    }

    /// Ends the device thread. Nobody submits any more.
    pub fn close(&self) {
        let thread = {
            // Under the lock, so that the thread is either before its look at the queue or asleep.
            let mut state = self.lock();
            self.closing.store(true, Ordering::Release);
            state.thread.take()
        };
        self.arrived.notify_all();
        let Some(thread) = thread else { return };
        thread.thread().unpark();
        // A task woken by the device thread may drop the device there; the thread ends by itself then.
        if thread.thread().id() != thread::current().id() {
            // It catches every panic of others, and there is none to pass on.
            drop(thread.join());
        }
    }

    /// The device thread.
    fn work(&self) {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            let job = {
                let mut state = self.lock();
                loop {
                    if let Some(job) = state.jobs.pop_front() {
                        break job;
                    }
                    if self.closing.load(Ordering::Acquire) {
                        return;
                    }
                    state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            self.run(job, &waker);
            self.lock().in_flight -= 1;
        }
    }

    /// Runs one job, gives back all it held, and only then says so.
    fn run(&self, Job { work, completer }: Job, waker: &Waker) {
        let begin = || if completer.begin() { Ok(()) } else { Err(DeviceError::Cancelled) };
        let result = match work {
            Work::Turn { executable, slot } => {
                let mut queued = slot.queued.lock().unwrap_or_else(PoisonError::into_inner);
                let Queued { seats, after, tickets, .. } = &mut *queued;
                let may = self.earlier(after, &completer, waker);
                after.clear();
                // Entered whatever comes of it: those behind wait for it to pass.
                let entered = Entered::all(&executable.entered, tickets);
                let ran = may.and_then(|()| begin()).and_then(|()| {
                    // SAFETY: the turnstiles are entered, the slot is in flight, and `turn` was given its seats.
                    unsafe { queue::run(&self.pool, &executable, &slot.memory, seats) }
                });
                drop(entered);
                drop(queued);
                slot.land(&executable);
                ran
            }
            Work::Move { motion, tickets, mut after } => {
                let may = self.earlier(&mut after, &completer, waker);
                let ran = run_move(&motion, tickets, || may.and_then(|()| begin()));
                after.clear();
                self.lock().earlier.push(after);
                ran
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
            thread::park();
        }
    }
}

fn take(tickets: &mut Vec<Ticket>, buffers: &[Arc<CpuBuffer>], order: &mut Order) {
    tickets.clear();
    tickets.extend(buffers.iter().map(|buffer| buffer.turnstile.ticket(order)));
}

/// Passes the turnstiles of `motion`, and does it there if it may.
fn run_move(
    motion: &Move,
    tickets: [Option<Ticket>; 2],
    may: impl FnOnce() -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let passages = tickets.into_iter().zip(motion.buffers.as_slice());
    let mut passages = passages.filter_map(|(ticket, buffer)| Some(Passage::enter(buffer, ticket?)));
    let _entered = (passages.next(), passages.next());
    may()?;
    // SAFETY: the turnstiles were just entered.
    unsafe { motion.run() };
    Ok(())
}

/// Wakes the device thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
