//! A fixed set of threads that a turn is cut over.
//!
//! ```text
//! caller:  publish job ─ post 1..n ─ run part 0 ───────────── wait until pending is 0 ─> done
//! worker:  spin, then park ── see post ─ run part w ─ pending - 1 ─ wake the caller ─ spin, then park
//! ```
//!
//! - The caller takes part 0; a pool of one has no threads, and a job of one part wakes nobody.
//! - One job at a time. A second caller does not wait for the first: it is told so and runs its parts itself.
//! - A panic in a part ends that part alone; the job ends with the first part's message, and the threads live on.
//! - Nothing is allocated by a job that does not panic.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};

/// How often a waiting thread looks before it parks: some tens of microseconds, a few times what waking it takes.
const SPINS: u32 = if cfg!(miri) { 4 } else { 2000 };

type Job = *const (dyn Fn(usize) + Sync);

/// What the caller and the workers share.
struct Shared {
    /// The job, and whom to wake when it is done. Written by the caller between jobs, read by workers once posted.
    job: UnsafeCell<Option<(Job, Thread)>>,
    /// Parts that workers still have to run.
    pending: AtomicUsize,
    /// One mailbox a worker; worker `w` runs part `w + 1`.
    posts: Box<[AtomicU32]>,
    /// The first part that panicked, and what it said.
    panic: Mutex<Option<(usize, String)>>,
}

// SAFETY: `job` is the only field that is not `Sync`. It is written while no worker has a post (`pending` is 0, read with
// Acquire), and read by a worker only after it saw its post (Acquire, stored with Release after the write). The job
// pointer is used by a worker only before it counts `pending` down, and its referent outlives that: see `Pool::run`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer it may still hold between jobs is never used then.
unsafe impl Send for Shared {}

const EMPTY: u32 = 0;
const POSTED: u32 = 1;
const QUIT: u32 = 2;

pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    one_job: Mutex<()>,
    handed: AtomicU64,
}

impl Pool {
    /// `threads` in all, the caller counted; at least one.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            pending: AtomicUsize::new(0),
            posts: (1..threads).map(|_| AtomicU32::new(EMPTY)).collect(),
            panic: Mutex::new(None),
        });
        // From here on, an error drops the pool, and that ends the threads that did start.
        let mut pool = Self { shared, workers: Vec::new(), one_job: Mutex::new(()), handed: AtomicU64::new(0) };
        for worker in 0..pool.shared.posts.len() {
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

    /// Parts that were handed to another thread so far.
    pub fn handed(&self) -> u64 {
        self.handed.load(Ordering::Relaxed)
    }

    /// Runs `part(0)` to `part(parts - 1)`, each on a thread of its own unless the pool is taken, and returns when all
    /// have ended; `Err` is what the first part that panicked said. `parts` is at most [`threads`](Self::threads).
    pub fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) -> Result<(), String> {
        assert!(parts <= self.threads(), "{parts} parts on {} threads", self.threads());
        let taken = if parts < 2 {
            None
        } else {
            match self.one_job.try_lock() {
                Ok(taken) => Some(taken),
                Err(TryLockError::Poisoned(taken)) => Some(taken.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        };
        if taken.is_none() {
            return (0..parts)
                .try_for_each(|at| catch_unwind(AssertUnwindSafe(|| part(at))).map_err(|panic| said(&*panic)));
        }
        self.handed.fetch_add(parts as u64 - 1, Ordering::Relaxed);
        let shared = &*self.shared;
        // SAFETY: only the lifetime is changed. The pointer is used by workers until they have counted `pending` down,
        // and this call does not return, nor unwind, before `pending` is 0.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Job>(part) };
        // SAFETY: `one_job` is held and `pending` is 0, so no worker reads the cell: see `Shared`.
        unsafe { *shared.job.get() = Some((job, thread::current())) };
        shared.pending.store(parts - 1, Ordering::Relaxed);
        for (post, worker) in shared.posts.iter().zip(&self.workers).take(parts - 1) {
            post.store(POSTED, Ordering::Release);
            worker.thread().unpark();
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| part(0))) {
            shared.panicked(0, &*panic);
        }
        wait(|| shared.pending.load(Ordering::Acquire) == 0);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        panic.map_or(Ok(()), |(_, said)| Err(said))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (post, worker) in self.shared.posts.iter().zip(&self.workers) {
            post.store(QUIT, Ordering::Release);
            worker.thread().unpark();
        }
        // A worker catches every panic, so there is none to pass on.
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }
}

impl Shared {
    fn work(&self, worker: usize) {
        let post = &self.posts[worker];
        loop {
            wait(|| post.load(Ordering::Acquire) != EMPTY);
            if post.load(Ordering::Acquire) == QUIT {
                return;
            }
            // Before the count below, after which the next post may come.
            post.store(EMPTY, Ordering::Relaxed);
            // SAFETY: this worker has a post and has not counted down: see `Shared`.
            if let Some((job, caller)) = unsafe { (*self.job.get()).clone() } {
                // SAFETY: `Pool::run` keeps the job alive until the count below.
                let part = unsafe { &*job };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| part(worker + 1))) {
                    self.panicked(worker + 1, &*panic);
                }
                self.pending.fetch_sub(1, Ordering::Release);
                caller.unpark();
            }
        }
    }

    fn panicked(&self, part: usize, panic: &(dyn Any + Send)) {
        let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|(at, _)| part < *at) {
            *first = Some((part, said(panic)));
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
}
