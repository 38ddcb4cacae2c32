//! Locks without poison, and blocking on a future.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Locks. A panic under one of this module's locks is either caught before the lock is released (the model's), or
/// leaves nothing half done, so poison says nothing here.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

fn unparker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

thread_local! {
    // Made once a thread, so that a blocking call allocates nothing.
    static UNPARKER: Waker = unparker();
}

/// How long a thread looks for something before it sleeps. Between looks it gives its core away: with more of our
/// threads than cores that costs less than the system calls and the wake-up of a sleep; with few it is a short spin.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Looks at least, however long they take.
    looks_min: u32,
    time: Duration,
    /// What it spins while yields are off.
    spin: Duration,
}

/// Of one caller of many: were the turn long, all of them would spin.
pub(crate) const CALLER: Patience =
    Patience { looks_min: 2, time: Duration::from_micros(10), spin: Duration::from_micros(2) };
/// Of the worker and of one who drives many streams: each wake-up of theirs holds up all streams.
pub(super) const DRIVER: Patience =
    Patience { looks_min: 2, time: Duration::from_micros(50), spin: Duration::from_micros(30) };

/// A yield that took longer than this went to somebody else's work.
const YIELD_MAX: Duration = Duration::from_micros(500);
/// Waits without a yield after one that took too long.
const CROWDED_WAITS: u32 = 4096;

/// Waits left for which this process gives up yielding. Linux charges a yield a whole time slice, so on a machine whose
/// cores others want too, a thread that yields waits for milliseconds, and one that sleeps is back at once.
static CROWDED: AtomicU32 = AtomicU32::new(0);

impl Patience {
    /// Whether `is_ready` came true in time.
    pub fn look(self, is_ready: impl Fn() -> bool) -> bool {
        if is_ready() {
            return true;
        }
        let began = Instant::now();
        let crowded = CROWDED.load(Ordering::Relaxed);
        if crowded > 0 {
            // Two who count down at once count one: it is a rough number.
            CROWDED.store(crowded - 1, Ordering::Relaxed);
            while began.elapsed() < self.spin {
                std::hint::spin_loop();
                if is_ready() {
                    return true;
                }
            }
            return false;
        }
        let (mut looks, mut waited) = (0, Duration::ZERO);
        while looks < self.looks_min || waited < self.time {
            thread::yield_now();
            if is_ready() {
                return true;
            }
            let before = std::mem::replace(&mut waited, began.elapsed());
            if waited - before > YIELD_MAX {
                CROWDED.store(CROWDED_WAITS, Ordering::Relaxed);
                return false;
            }
            looks += 1;
        }
        false
    }
}

/// Runs `future` on this thread. `is_ready` is a cheap hint, asked before sleeping.
pub(crate) fn block_on<F: Future + Unpin>(future: F, patience: Patience, is_ready: impl Fn(&F) -> bool) -> F::Output {
    block(future, patience, is_ready, || {
        thread::park();
        true
    })
    .expect("it blocks without an end")
}

/// `block_on`, but no longer than until `until`.
pub(super) fn block_before<F: Future + Unpin>(
    until: Instant,
    future: F,
    patience: Patience,
    is_ready: impl Fn(&F) -> bool,
) -> Option<F::Output> {
    block(future, patience, is_ready, || {
        let left = until.saturating_duration_since(Instant::now());
        thread::park_timeout(left);
        !left.is_zero()
    })
}

/// Polls `future` until it is ready; `None` once `sleep` says that the time is over.
fn block<F: Future + Unpin>(
    mut future: F,
    patience: Patience,
    is_ready: impl Fn(&F) -> bool,
    sleep: impl Fn() -> bool,
) -> Option<F::Output> {
    let waker = UNPARKER.try_with(Waker::clone).unwrap_or_else(|_| unparker());
    let mut cx = Context::from_waker(&waker);
    patience.look(|| is_ready(&future));
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut cx) {
            return Some(output);
        }
        if !sleep() {
            return None;
        }
    }
}
