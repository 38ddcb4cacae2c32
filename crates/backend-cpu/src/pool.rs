//! A fixed set of threads that work is cut over.
//!
//! ```text
//! caller:  for each idle worker: take it, publish, post ─ run part 0, and those nobody took ─ wait until pending is 0 ─> done
//! worker:  spin, then park ── see post, begin ─ run its part ─ idle again ─ pending - 1 ─ wake the caller ─ spin, then park
//! ```
//!
//! - The caller takes part 0; a pool of one has no threads, and a job of one part wakes nobody.
//! - A job is given the workers that are idle, each by itself. So jobs run beside each other, from any thread, a worker
//!   in the midst of a part among them: nobody waits for a worker that is busy elsewhere.
//! - What is posted is begun by the worker or taken back by the caller ([`Pool::help`]), never both.
//! - A panic in a part ends that part alone; the job ends with the first part's message, and the threads live on.
//! - Nothing is allocated by a job that does not panic.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// How often a waiting thread looks before it parks: some tens of microseconds, a few times what waking it takes.
const SPINS: u32 = if cfg!(miri) { 4 } else { 2000 };

/// Calls in vain until a worker must have twice as much to do to be woken.
const RETRIES: u32 = 4;

/// How often that doubles.
const DOUBLINGS: u32 = 6;

/// Of so many questions [`RETRIES`] are answered as if no call had been in vain.
const CHANCE: u32 = 64;

/// What the parts of a job share, on the stack of the caller.
struct Job<'a> {
    part: &'a (dyn Fn(usize) + Sync),
    /// Parts that workers still have to end.
    pending: AtomicUsize,
    /// The first part that panicked, and what it said.
    panic: Mutex<Option<(usize, String)>>,
}

/// What a worker is given.
struct Post {
    job: *const Job<'static>,
    part: usize,
    /// Whom to wake when it is done.
    caller: Thread,
}

/// Where a worker gets its posts.
struct Mailbox {
    /// `IDLE`, `QUIT`, `TAKEN`, or the number of the job that is posted and not begun.
    state: AtomicU64,
    /// Belongs to whoever made the state `TAKEN`.
    post: UnsafeCell<Option<Post>>,
}

// SAFETY: `post` is touched only by the thread that changed `state` to `TAKEN` (Acquire), until it changes it again
// (Release): a caller from `IDLE`, or the worker from a job's number. The job that a post points at outlives it: see `Pool::each`.
unsafe impl Sync for Mailbox {}
// SAFETY: as above; a post that was left behind is dropped, and its pointer never followed.
unsafe impl Send for Mailbox {}

const IDLE: u64 = 0;
const QUIT: u64 = 1;
/// A caller is writing the post, or the worker runs it.
const TAKEN: u64 = 2;
/// Numbers of jobs begin here.
const JOBS: u64 = 3;

struct Shared {
    mailboxes: Box<[Mailbox]>,
    /// Parts that a worker began.
    handed: AtomicU64,
}

pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The next job's number.
    jobs: AtomicU64,
    /// Calls for help, one after the other, that nobody answered in time.
    missed: AtomicU32,
    /// How often that was asked for.
    asked: AtomicU32,
}

impl Pool {
    /// `threads` in all, the caller counted; at least one.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let mailbox = |_| Mailbox { state: AtomicU64::new(IDLE), post: UnsafeCell::new(None) };
        let shared = Arc::new(Shared { mailboxes: (1..threads).map(mailbox).collect(), handed: AtomicU64::new(0) });
        // From here on, an error drops the pool, and that ends the threads that did start.
        let mut pool = Self {
            shared,
            workers: Vec::new(),
            jobs: AtomicU64::new(JOBS),
            missed: AtomicU32::new(0),
            asked: AtomicU32::new(0),
        };
        for worker in 0..pool.shared.mailboxes.len() {
            let shared = Arc::clone(&pool.shared);
            let name = format!("lanes-cpu-{}", worker + 1);
            pool.workers.push(thread::Builder::new().name(name).spawn(move || shared.work(worker))?);
        }
        Ok(pool)
    }

    /// How many threads a job can have, the caller counted.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Parts that another thread has begun so far.
    pub fn handed(&self) -> u64 {
        self.shared.handed.load(Ordering::Relaxed)
    }

    /// Runs `part(0)` to `part(parts - 1)`, each on a thread of its own as far as threads are idle, and returns when all
    /// have ended; `Err` is what the first part that panicked said. `parts` is at most [`threads`](Self::threads).
    pub fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) -> Result<(), String> {
        assert!(parts <= self.threads(), "{parts} parts on {} threads", self.threads());
        self.each(parts, part, true)
    }

    /// `part(0)` on this thread, and up to `parts - 1` others on threads that are idle and begin before it has ended: the
    /// job must be done when `part(0)` and those that began have ended. Otherwise as [`run`](Self::run).
    pub fn help(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) -> Result<(), String> {
        self.each(parts.min(self.threads()), part, false)
    }

    /// How much more than otherwise a thread must have to do to be woken for it, as a power of two: workers that did not begin
    /// in time, call after call, do not get a processor. Now and then it is nothing for some calls in a row, of which the first
    /// wakes a worker and the next finds it awake.
    pub fn reluctance(&self) -> u32 {
        match self.missed.load(Ordering::Relaxed) / RETRIES {
            0 => 0,
            _ if self.asked.fetch_add(1, Ordering::Relaxed) % CHANCE < RETRIES => 0,
            doublings => doublings,
        }
    }

    fn each(&self, parts: usize, part: &(dyn Fn(usize) + Sync), all: bool) -> Result<(), String> {
        let run = |at: usize| catch_unwind(AssertUnwindSafe(|| part(at))).map_err(|panic| said(&*panic));
        if parts < 2 {
            return (0..parts).try_for_each(run);
        }
        let job = Job { part, pending: AtomicUsize::new(0), panic: Mutex::new(None) };
        let number = self.jobs.fetch_add(1, Ordering::Relaxed);
        let given = self.post(&job, number, parts);
        let mine = if all { given + 1..parts } else { 0..0 };
        for at in std::iter::once(0).chain(mine) {
            if let Err(said) = run(at) {
                job.panicked(at, said);
            }
        }
        if !all && given > 0 {
            let missed =
                if self.take_back(&job, number) == given { self.missed.load(Ordering::Relaxed) + 1 } else { 0 };
            self.missed.store(missed.min(RETRIES * DOUBLINGS), Ordering::Relaxed);
        }
        wait(|| job.pending.load(Ordering::Acquire) == 0);
        let panic = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
        panic.map_or(Ok(()), |(_, said)| Err(said))
    }

    /// Posts parts from 1 on to workers that are idle; how many.
    fn post(&self, job: &Job<'_>, number: u64, parts: usize) -> usize {
        let mut given = 0;
        for (mailbox, worker) in self.shared.mailboxes.iter().zip(&self.workers) {
            if given + 1 == parts {
                break;
            }
            if mailbox.state.compare_exchange(IDLE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue;
            }
            given += 1;
            // Only the lifetime is changed: a worker uses the pointer until it has counted `pending` down, and `each` does
            // not return, nor unwind, before `pending` is 0.
            let post = Post { job: std::ptr::from_ref(job).cast(), part: given, caller: thread::current() };
            // SAFETY: this thread has just made the state `TAKEN`.
            unsafe { *mailbox.post.get() = Some(post) };
            // Before it can be ended.
            job.pending.fetch_add(1, Ordering::Relaxed);
            mailbox.state.store(number, Ordering::Release);
            worker.thread().unpark();
        }
        given
    }

    /// Takes back what was posted and is not begun; how many.
    fn take_back(&self, job: &Job<'_>, number: u64) -> usize {
        let mut taken = 0;
        for mailbox in &self.shared.mailboxes {
            // Only this call posts under this number, so it is the post that was made above.
            let back = mailbox.state.compare_exchange(number, IDLE, Ordering::AcqRel, Ordering::Relaxed);
            if back.is_ok() {
                job.pending.fetch_sub(1, Ordering::Relaxed);
                taken += 1;
            }
        }
        taken
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (mailbox, worker) in self.shared.mailboxes.iter().zip(&self.workers) {
            mailbox.state.store(QUIT, Ordering::Release);
            worker.thread().unpark();
        }
        // A worker catches every panic, so there is none to pass on.
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }
}

impl Shared {
    fn work(&self, worker: usize) {
        let Mailbox { state, post } = &self.mailboxes[worker];
        loop {
            wait(|| !matches!(state.load(Ordering::Relaxed), IDLE | TAKEN));
            let seen = state.load(Ordering::Relaxed);
            if seen == QUIT {
                return;
            }
            // A post may have been taken back since it was seen.
            if seen < JOBS || state.compare_exchange(seen, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue;
            }
            // SAFETY: this thread has just made the state `TAKEN`.
            let post = unsafe { (*post.get()).take() };
            self.handed.fetch_add(1, Ordering::Relaxed);
            if let Some(Post { job, part, caller }) = post {
                // SAFETY: `Pool::each` keeps the job alive until the count below.
                let job = unsafe { &*job };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (job.part)(part))) {
                    job.panicked(part, said(&*panic));
                }
                // Before the count, so that the caller's next job finds it idle.
                state.store(IDLE, Ordering::Release);
                job.pending.fetch_sub(1, Ordering::Release);
                caller.unpark();
            }
        }
    }
}

impl Job<'_> {
    fn panicked(&self, part: usize, said: String) {
        let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|(at, _)| part < *at) {
            *first = Some((part, said));
        }
    }
}

/// What a panic said, as far as it is text.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without a message"))
}

/// Looks for a while, then parks between looks: whoever makes `done` true unparks this thread after it.
fn wait(done: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if done() {
            return;
        }
        std::hint::spin_loop();
    }
    while !done() {
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_once_on_a_thread_of_its_own() {
        for threads in 1..5 {
            let pool = Pool::new(threads).unwrap();
            for round in 0..if cfg!(miri) { 20 } else { 2000 } {
                let parts = round % threads + 1;
                let ran: Vec<_> = (0..parts).map(|_| Mutex::new(Vec::new())).collect();
                pool.run(parts, &|part| ran[part].lock().unwrap().push(thread::current().id())).unwrap();
                let mut ran: Vec<_> = ran.into_iter().map(|part| part.into_inner().unwrap()).collect();
                assert!(ran.iter().all(|part| part.len() == 1));
                assert_eq!(ran[0], [thread::current().id()]);
                ran.sort_by_key(|part| format!("{part:?}"));
                ran.dedup();
                assert_eq!(ran.len(), parts);
            }
        }
    }

    #[test]
    fn a_job_of_one_part_is_handed_to_nobody() {
        let pool = Pool::new(3).unwrap();
        pool.run(1, &|_| {}).unwrap();
        assert_eq!(pool.handed(), 0);
        pool.run(3, &|_| {}).unwrap();
        assert_eq!(pool.handed(), 2);
    }

    #[test]
    fn a_panic_is_told_and_the_pool_goes_on() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..3 {
            let error = pool.run(3, &|part| assert!(part < bad, "part {part} broke")).unwrap_err();
            assert_eq!(error, format!("panicked: part {bad} broke"));
        }
        pool.run(3, &|_| {}).unwrap();
        assert_eq!(pool.run(1, &|_| panic!("alone")).unwrap_err(), "panicked: alone");
    }

    #[test]
    fn callers_who_meet_both_get_their_work_done() {
        let pool = Pool::new(2).unwrap();
        let rounds = if cfg!(miri) { 10 } else { 500 };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let ran = AtomicUsize::new(0);
                        let add = |part| {
                            ran.fetch_add(part + 1, Ordering::Relaxed);
                        };
                        pool.run(2, &add).unwrap();
                        assert_eq!(ran.load(Ordering::Relaxed), 3);
                    }
                });
            }
        });
    }

    /// Helpers claim what there is to do, callers meet, and parts ask for help themselves: all is done, once.
    #[test]
    fn whoever_helps_the_work_is_done_when_help_returns() {
        let pool = Pool::new(3).unwrap();
        let rounds = if cfg!(miri) { 5 } else { 500 };
        let claim_all = |left: &AtomicUsize, done: &AtomicUsize| {
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let done = AtomicUsize::new(0);
                        let part = |_| {
                            let left = AtomicUsize::new(20);
                            pool.help(9, &|_| claim_all(&left, &done)).unwrap();
                        };
                        pool.run(2, &part).unwrap();
                        assert_eq!(done.load(Ordering::Relaxed), 40);
                    }
                });
            }
        });
        assert_eq!(
            pool.help(3, &|part| assert!(part > 0, "the caller broke")).unwrap_err(),
            "panicked: the caller broke"
        );
        let (begun, told) = (AtomicUsize::new(0), std::sync::Barrier::new(2));
        let late = |part: usize| {
            if part < 2 {
                told.wait();
                begun.fetch_add(1, Ordering::Relaxed);
                assert!(part == 0, "part {part} broke");
            }
        };
        assert_eq!(pool.help(2, &late).unwrap_err(), "panicked: part 1 broke");
        assert_eq!(begun.load(Ordering::Relaxed), 2);
    }
}
