//! Locks without poison, and blocking on a future.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

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

/// How often a blocked caller offers its core to other threads before it parks. With more callers than cores this
/// costs less than the two system calls and the wake-up of a park; alone it is a short spin.
const YIELDS: u32 = 8;

/// Runs `future` on this thread. `is_ready` is a cheap hint, asked before parking.
pub(super) fn block_on<F: Future + Unpin>(mut future: F, is_ready: impl Fn(&F) -> bool) -> F::Output {
    let waker = UNPARKER.try_with(Waker::clone).unwrap_or_else(|_| unparker());
    let mut cx = Context::from_waker(&waker);
    for _ in 0..YIELDS {
        if is_ready(&future) {
            break;
        }
        thread::yield_now();
    }
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut cx) {
            return output;
        }
        thread::park();
    }
}
