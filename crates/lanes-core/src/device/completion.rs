//! When submitted work is done, and how it ended.
//!
//! `submit --> Completion  <-- Completer (held by whoever watches the device)`
//!
//! - Clones share one result; the first one given stands.
//! - A `Completer` dropped without a result means that the submission was cancelled: nobody waits for ever.
//! - Work that ended before `submit` returned costs no allocation and no lock.

use super::DeviceError;
use crate::lanes::Refusal;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// What a submission that did not fail leaves to be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Seats refused because of their data, in seat order; the others are good.
    pub refused: Vec<Refusal>,
}

/// The end of one submission: pollable, waitable, a `Future`. Dropping it cancels nothing.
#[derive(Clone)]
pub struct Completion(State);

#[derive(Clone)]
enum State {
    Ready(Result<Outcome, DeviceError>),
    Pending(Arc<Shared>),
}

struct Shared {
    end: Mutex<End>,
    ended: Condvar,
}

#[derive(Default)]
struct End {
    result: Option<Result<Outcome, DeviceError>>,
    wakers: Vec<Waker>,
}

impl Shared {
    // A panic while the lock is held leaves nothing half done: every critical section is one assignment.
    fn lock(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends one submission. Dropped unused, it ends it as [`DeviceError::Cancelled`].
pub struct Completer(Arc<Shared>);

impl Completer {
    /// Ends the submission and wakes everyone who waits for it.
    pub fn complete(self, result: Result<Outcome, DeviceError>) {
        self.end(result);
    }

    fn end(&self, result: Result<Outcome, DeviceError>) {
        let mut end = self.0.lock();
        if end.result.is_some() {
            return;
        }
        end.result = Some(result);
        let wakers = std::mem::take(&mut end.wakers);
        drop(end);
        self.0.ended.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        self.end(Err(DeviceError::Cancelled));
    }
}

impl Completion {
    /// Of work that has ended already.
    pub fn ready(result: Result<Outcome, DeviceError>) -> Self {
        Self(State::Ready(result))
    }

    /// Of work that ends when the completer is told so.
    pub fn pending() -> (Self, Completer) {
        let shared = Arc::new(Shared { end: Mutex::default(), ended: Condvar::new() });
        (Self(State::Pending(Arc::clone(&shared))), Completer(shared))
    }

    /// Whether the work has ended, well or not.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            State::Ready(_) => true,
            State::Pending(shared) => shared.lock().result.is_some(),
        }
    }

    /// Blocks until the work has ended.
    pub fn wait(&self) -> Result<Outcome, DeviceError> {
        let shared = match &self.0 {
            State::Ready(result) => return result.clone(),
            State::Pending(shared) => shared,
        };
        let mut end = shared.lock();
        loop {
            if let Some(result) = &end.result {
                return result.clone();
            }
            end = shared.ended.wait(end).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Blocks until the work has ended or `limit` has passed; `None` is the latter.
    pub fn wait_timeout(&self, limit: Duration) -> Option<Result<Outcome, DeviceError>> {
        let shared = match &self.0 {
            State::Ready(result) => return Some(result.clone()),
            State::Pending(shared) => shared,
        };
        // A limit too long for the clock is no limit.
        let Some(deadline) = Instant::now().checked_add(limit) else {
            return Some(self.wait());
        };
        let mut end = shared.lock();
        loop {
            if let Some(result) = &end.result {
                return Some(result.clone());
            }
            let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            end = shared.ended.wait_timeout(end, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Future for Completion {
    type Output = Result<Outcome, DeviceError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = match &self.0 {
            State::Ready(result) => return Poll::Ready(result.clone()),
            State::Pending(shared) => shared,
        };
        let mut end = shared.lock();
        if let Some(result) = &end.result {
            return Poll::Ready(result.clone());
        }
        // One entry per task, however often it polls.
        if !end.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            end.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.is_done() { "Completion(done)" } else { "Completion(pending)" };
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn refused() -> Outcome {
        Outcome { refused: vec![Refusal { seat: 3, reason: "index 9 of 4".into() }] }
    }

    #[test]
    fn every_clone_and_every_way_of_waiting_sees_the_one_result() {
        let (completion, completer) = Completion::pending();
        let (count, mut polled) = (Arc::new(Count::default()), completion.clone());
        let waker = Waker::from(Arc::clone(&count));
        for _ in 0..3 {
            assert!(Pin::new(&mut polled).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(!completion.is_done());
        assert!(completion.wait_timeout(Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| completion.wait());
            completer.complete(Ok(refused()));
            assert_eq!(waiting.join().unwrap().unwrap(), refused());
        });
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "one task is woken once");
        assert!(completion.is_done());
        match Pin::new(&mut polled).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Ok(outcome)) => assert_eq!(outcome, refused()),
            other => panic!("{other:?}"),
        }
        assert_eq!(completion.wait_timeout(Duration::ZERO).unwrap().unwrap(), refused());
    }

    #[test]
    fn a_watcher_that_goes_away_cancels_instead_of_hanging() {
        let (completion, completer) = Completion::pending();
        drop(completer);
        assert!(matches!(completion.wait(), Err(DeviceError::Cancelled)));
    }
}
