//! The worker thread, who else may hold the baton, and how both end.
//!
//! ```text
//! submit --push--> queue --wake--> worker --lock engine--> turns --unlock--> wakers
//! a turn in flight ends -nudge-------^
//! a blocked caller alone ---------------lock engine--> one turn (no queue, no other thread)
//! ```
//!
//! - The engine's lock is the baton. Locks are taken in the order engine, queue; whoever holds the queue may only try
//!   the engine.
//! - Who runs the next turn is decided under the queue's lock (`in_flight`). A caller alone to whom it fell may find the
//!   worker still settling after a spawn or a turn: it claims the baton (`Queue::claimed`) and waits for the engine. A
//!   settling worker waits for nobody, and one that meets a claim begins nothing and lets go, so the wait ends with what
//!   the worker was at, which is no turn, and whoever comes meanwhile queues behind the claim.
//! - Wakers run with no lock held; one that panics hurts nobody.
//! - The worker is joined when the last `Runnable` is dropped, so the model is gone when that returns.
//! - Not here: what a turn is (`turn`).

use super::checkpoint::LetGo;
use super::error::{Closed, StreamError};
use super::job::{JobBox, ModelInfo};
use super::knobs::Knobs;
use super::queue::{Queue, Request, Sleeper};
use super::stats::Counters;
use super::sync::{DRIVER, lock};
use super::table::{LaneId, Lease};
use super::turn::{Engine, Outbox, Step};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::{Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Instant;

/// What handles, reapers and the worker share.
pub(super) struct Shared {
    pub info: Arc<ModelInfo>,
    pub knobs: Knobs,
    pub queue: Mutex<Queue>,
    pub engine: Mutex<Engine>,
    /// A turn is seated or claimed, and not run yet. Set with the queue locked, cleared before its answers are out: who
    /// has one finds the baton free, or about to be.
    pub in_flight: AtomicBool,
    /// `Queue::claimed` has become false.
    claim_over: Condvar,
    pub releases: Releases,
    /// The worker lingers: a lane given back may be the last that it waits for.
    is_lingering: AtomicBool,
    /// Checkpoints whose last handle is gone.
    pub let_go: LetGo,
    pub counters: Counters,
    /// The queue's depth, for those who do not hold its lock.
    pub depth: Arc<AtomicUsize>,
    pub nudge: Arc<Nudge>,
    /// `nudge`, for the completions of turns.
    pub nudge_waker: Waker,
}

impl Shared {
    pub fn new(engine: Engine, info: Arc<ModelInfo>, knobs: Knobs) -> Self {
        let depth = Arc::<AtomicUsize>::default();
        let nudge = Arc::<Nudge>::default();
        Self {
            queue: Mutex::new(Queue::new(knobs.queue, knobs.lanes, Arc::clone(&depth))),
            engine: Mutex::new(engine),
            in_flight: AtomicBool::new(false),
            claim_over: Condvar::new(),
            releases: Releases::new(knobs.lanes),
            is_lingering: AtomicBool::new(false),
            let_go: LetGo::new(knobs.checkpoints),
            counters: Counters::new(&info.signature.name),
            nudge_waker: Waker::from(Arc::clone(&nudge)),
            nudge,
            depth,
            info,
            knobs,
        }
    }

    /// The seats that fill a turn: no more fit, or no other stream could send one.
    pub fn full_turn(&self) -> usize {
        (self.knobs.max_seats as usize).min(self.releases.live())
    }

    /// A lease was given out.
    pub fn leased(&self, lease: Lease) {
        self.releases.leased(lease);
        self.counters.lane_taken();
    }

    /// The last handle of `lease` is gone. Takes no lock, so a lingering worker is woken to see for itself whether its
    /// turn is full now.
    pub fn release(&self, lease: Lease) {
        self.releases.release(lease);
        self.counters.lane_released();
        // Either this sees that the worker lingers, or the worker, which looks again after it has said so, sees the release.
        if self.is_lingering.load(Ordering::SeqCst) {
            self.wake_worker();
        }
    }

    /// Queues a request, or lets it wait for room; `Err` gives it back with the cause when closed.
    pub fn submit(&self, request: Request) -> Result<(), (Request, Arc<Closed>)> {
        let mut queue = lock(&self.queue);
        if let Some(cause) = queue.closed() {
            let cause = Arc::clone(cause);
            return Err((request, cause));
        }
        queue.admit(request);
        self.end_admission(queue);
        Ok(())
    }

    /// Queues a call if there is room.
    pub fn try_submit(&self, job: JobBox) -> Result<(), (JobBox, StreamError)> {
        let mut queue = lock(&self.queue);
        if let Some(cause) = queue.closed() {
            let error = StreamError::Closed(Arc::clone(cause));
            return Err((job, error));
        }
        if queue.is_full() {
            return Err((job, StreamError::Busy { depth: queue.depth() }));
        }
        queue.admit(Request::Call(job));
        self.end_admission(queue);
        Ok(())
    }

    /// Queues all of `jobs`, which leaves it empty, under one lock; those without room wait for it. Returns the cause
    /// and leaves `jobs` as it is when closed.
    pub fn submit_all(&self, jobs: &mut Vec<JobBox>) -> Result<(), Arc<Closed>> {
        let mut queue = lock(&self.queue);
        if let Some(cause) = queue.closed() {
            return Err(Arc::clone(cause));
        }
        for job in jobs.drain(..) {
            queue.admit(Request::Call(job));
        }
        self.end_admission(queue);
        Ok(())
    }

    /// Runs one turn of `job` on this thread if its caller is alone: nothing queued, nothing in flight, and no other
    /// lease live. Otherwise gives it back as it is.
    pub fn run_alone(self: &Arc<Self>, job: JobBox) -> Result<JobBox, JobBox> {
        let queue = lock(&self.queue);
        let is_alone = queue.depth() == 0 && queue.waiting() == 0 && queue.closed().is_none();
        if !is_alone || self.releases.live() != 1 || self.in_flight.load(Ordering::Acquire) {
            return Err(job);
        }
        self.in_flight.store(true, Ordering::Release);
        let mut engine = self.take_baton(queue);
        let job = engine.run_alone(self, job);
        self.in_flight.store(false, Ordering::Release);
        let mut wakers = Vec::new();
        engine.take_wakers(&mut wakers);
        drop(engine);
        wake_all(&mut wakers);
        Ok(job)
    }

    /// Unlocks the queue, then wakes the worker if what is queued now should. Never the other way round, or the worker
    /// would wake to wait for the lock.
    fn end_admission(&self, mut queue: MutexGuard<'_, Queue>) {
        let wakes = queue.wakes(self.full_turn());
        drop(queue);
        if wakes {
            self.wake_worker();
        }
    }

    /// The engine, for a caller that has just set `in_flight`: it is free, or whoever had the turn before settles.
    fn take_baton(&self, mut queue: MutexGuard<'_, Queue>) -> MutexGuard<'_, Engine> {
        match self.engine.try_lock() {
            Ok(engine) => return engine,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => queue.claimed = true,
        }
        drop(queue);
        let engine = lock(&self.engine);
        lock(&self.queue).claimed = false;
        self.claim_over.notify_one();
        engine
    }

    /// Waits until the claimant has the engine: the lock itself would let the worker have it again and again.
    fn wait_for_claimant(&self) {
        let queue = lock(&self.queue);
        drop(self.claim_over.wait_while(queue, |queue| queue.claimed).unwrap_or_else(PoisonError::into_inner));
    }

    pub fn wake_worker(&self) {
        self.nudge.unpark();
    }

    /// Takes a reading of the counters.
    pub fn stats(&self) -> super::stats::Stats {
        let mut stats = self.counters.read();
        let queue = lock(&self.queue);
        stats.queue_depth = queue.depth();
        stats.queue_waiting = queue.waiting();
        stats.lanes = self.knobs.lanes;
        stats.lanes_taken = self.releases.live() as u32;
        stats
    }
}

/// How a turn in flight wakes the worker.
#[derive(Default)]
pub(super) struct Nudge {
    /// A turn has ended since the worker last looked. Set before the thread is woken, so that it is seen by a worker whose
    /// wake-up went to something else.
    ended: AtomicBool,
    worker: OnceLock<Thread>,
}

impl Nudge {
    /// The worker is about to look at the turns in flight.
    pub fn look(&self) {
        // Most often none has ended, and then nothing is written.
        if self.has_ended() {
            self.ended.store(false, Ordering::SeqCst);
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn unpark(&self) {
        if let Some(worker) = self.worker.get() {
            worker.unpark();
        }
    }
}

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ended.store(true, Ordering::SeqCst);
        self.unpark();
    }
}

/// The most lanes whose flags are made together.
const BLOCK_LANES_MAX: u32 = 1024;

/// Flags of lanes whose last handle is gone. Setting one cannot fail and waits for nothing.
pub(super) struct Releases {
    /// The highest generation of each lane that was released, in blocks that are made when their first lane is leased.
    /// Lanes are leased lowest first, so the blocks made are the first.
    blocks: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// Lanes of a block.
    block_lanes: usize,
    any: AtomicBool,
    live: AtomicUsize,
}

impl Releases {
    fn new(lanes: u32) -> Self {
        let block_lanes = lanes.min(BLOCK_LANES_MAX);
        let blocks = (0..lanes.div_ceil(block_lanes)).map(|_| OnceLock::new()).collect();
        let (any, live) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self { blocks, block_lanes: block_lanes as usize, any, live }
    }

    /// A lease was given out.
    pub fn leased(&self, lease: Lease) {
        let block = &self.blocks[lease.lane.index() / self.block_lanes];
        block.get_or_init(|| (0..self.block_lanes).map(|_| AtomicU64::new(0)).collect());
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    /// The last handle of `lease`, which was given out, is gone.
    pub fn release(&self, lease: Lease) {
        if let Some(flags) = self.blocks[lease.lane.index() / self.block_lanes].get() {
            // The highest wins: a late release of an earlier holder must not hide the present one's.
            flags[lease.lane.index() % self.block_lanes].fetch_max(lease.generation, Ordering::AcqRel);
        }
        self.any.store(true, Ordering::Release);
        // Before `Shared::is_lingering` is looked at, for everyone.
        self.live.fetch_sub(1, Ordering::SeqCst);
    }

    /// Leases that have a handle.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    /// Tells of every release there ever was, at least once.
    pub fn collect(&self, mut released: impl FnMut(Lease)) {
        if !self.any.swap(false, Ordering::AcqRel) {
            return;
        }
        let made = self.blocks.iter().map_while(OnceLock::get);
        for (index, flag) in made.flatten().enumerate() {
            let generation = flag.load(Ordering::Acquire);
            if generation > 0 {
                released(Lease { lane: LaneId(index as u32), generation });
            }
        }
    }
}

/// Owns the worker: the last one dropped ends it.
pub(super) struct Owner {
    pub shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Owner {
    pub fn start(shared: Arc<Shared>) -> Result<Self, std::io::Error> {
        let name = format!("lanes {}", shared.info.signature.name.replace('\0', ""));
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name).spawn(move || work(&worker))?;
        // The worker may have gone to sleep before this: it is woken by its own handle from here on.
        let _ = shared.nudge.worker.set(thread.thread().clone());
        thread.thread().unpark();
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let cause = Arc::new(Closed::Dropped);
        let queued = lock(&self.shared.queue).close(Arc::clone(&cause));
        self.shared.wake_worker();
        let mut outbox = Outbox::default();
        outbox.refuse(queued, &cause);
        wake_all(&mut outbox.wakers);
        if let Some(thread) = self.thread.take()
            // A waker that owns the last handle is dropped on the worker itself, which ends when it gets back.
            && thread.thread().id() != thread::current().id()
        {
            // Panics are caught inside; one that slipped through has ended the thread as well.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Arc<Shared>) {
    let mut wakers = Vec::with_capacity(shared.knobs.max_seats as usize);
    loop {
        let mut engine = lock(&shared.engine);
        let step = engine.step(shared, Instant::now());
        engine.take_wakers(&mut wakers);
        drop(engine);
        wake_all(&mut wakers);
        match step {
            Step::Ran => {}
            Step::Idle => sleep_idle(shared),
            Step::Occupied => sleep_occupied(shared),
            Step::Lingering(until) => sleep_until(shared, until),
            Step::Claimed => shared.wait_for_claimant(),
            Step::Stopped => return,
        }
    }
}

fn sleep_idle(shared: &Shared) {
    if DRIVER.look(|| shared.depth.load(Ordering::Acquire) > 0 || shared.nudge.has_ended()) {
        return;
    }
    let mut queue = lock(&shared.queue);
    if queue.depth() > 0 || queue.closed().is_some() {
        return;
    }
    queue.sleeper = Sleeper::Idle;
    sleep(shared, queue, None);
}

fn sleep_occupied(shared: &Shared) {
    if DRIVER.look(|| shared.nudge.has_ended()) {
        return;
    }
    let mut queue = lock(&shared.queue);
    queue.sleeper = Sleeper::Occupied;
    sleep(shared, queue, None);
}

fn sleep_until(shared: &Shared, until: Instant) {
    let mut queue = lock(&shared.queue);
    if queue.closed().is_some() {
        return;
    }
    queue.sleeper = Sleeper::Lingering;
    shared.is_lingering.store(true, Ordering::SeqCst);
    sleep(shared, queue, Some(until));
    shared.is_lingering.store(false, Ordering::Relaxed);
}

/// Sleeps until what `queue.sleeper` waits for, or a turn ends.
fn sleep(shared: &Shared, mut queue: MutexGuard<'_, Queue>, until: Option<Instant>) {
    let is_due = queue.wakes(shared.full_turn());
    drop(queue);
    // Whatever comes from here on wakes this thread.
    if !is_due && !shared.nudge.has_ended() {
        match until {
            Some(until) => thread::park_timeout(until.saturating_duration_since(Instant::now())),
            None => thread::park(),
        }
    }
    lock(&shared.queue).sleeper = Sleeper::Awake;
}

/// Wakes and empties `wakers`.
pub(super) fn wake_all(wakers: &mut Vec<Waker>) {
    for waker in wakers.drain(..) {
        // It is the host's code.
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::model::RowId;
    use crate::lanes::table::LaneTable;

    /// Of the most lanes there may be, only what was ever leased is kept and looked at; whichever it is, its release is
    /// told.
    #[test]
    fn lanes_that_nobody_ever_held_have_no_flags() {
        let releases = Releases::new(1 << 24);
        let made = || releases.blocks.iter().filter(|block| block.get().is_some()).count();
        assert_eq!(made(), 0);
        let mut table = LaneTable::new(1 << 24, RowId(99));
        let leases: Vec<Lease> = (0..2500).map(|_| table.lease().expect("a lane is free")).collect();
        leases.iter().for_each(|lease| releases.leased(*lease));
        assert_eq!((made(), releases.live()), (3, 2500));
        let gone = [leases[2499], leases[0], leases[1024]];
        gone.iter().for_each(|lease| releases.release(*lease));
        let mut told = Vec::new();
        releases.collect(|lease| told.push(lease));
        assert_eq!(told, [leases[0], leases[1024], leases[2499]]);
        assert_eq!(releases.live(), 2497);
    }
}
