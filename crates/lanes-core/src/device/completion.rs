//! When submitted work is done, and how it ended.
//!
//! `submit --> Completion  <-- Completer (held by whoever watches the device)`
//!
//! - Clones share one result; the first one given stands.
//! - A `Completer` dropped without a result means that the submission was cancelled: nobody waits for ever.
//! - Work that ended before `submit` returned costs no allocation and no lock; work that ends later costs none where its
//!   completions come from one source.

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
    /// The first to wait: most often there is no other, and then no list is made.
    waker: Option<Waker>,
    wakers: Vec<Waker>,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self { end: Mutex::default(), ended: Condvar::new() })
    }

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
        let (waker, wakers) = (end.waker.take(), std::mem::take(&mut end.wakers));
        drop(end);
        self.0.ended.notify_all();
        waker.into_iter().chain(wakers).for_each(Waker::wake);
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        self.end(Err(DeviceError::Cancelled));
    }
}

/// Makes pending completions, of the memory of earlier ones that everybody has let go of: a slot that keeps a source
/// allocates nothing for its turns after the first.
#[derive(Default)]
pub struct CompletionSource(Vec<Arc<Shared>>);

impl CompletionSource {
    /// Of work that ends when the completer is told so.
    pub fn pending(&mut self) -> (Completion, Completer) {
        if self.0.is_empty() {
            // Two: when the next turn starts, whoever ended the last may not have let go of it yet.
            self.0.extend([Shared::new(), Shared::new()]);
        }
        let reset = |shared: &mut Arc<Shared>| {
            let end = Arc::get_mut(shared)?.end.get_mut().unwrap_or_else(PoisonError::into_inner);
            *end = End::default();
            Some(Arc::clone(shared))
        };
        let shared = self.0.iter_mut().find_map(reset).unwrap_or_else(|| {
            self.0.push(Shared::new());
            Arc::clone(&self.0[self.0.len() - 1])
        });
        Completion::of(shared)
    }
}

impl Completion {
    /// Of work that has ended already.
    pub fn ready(result: Result<Outcome, DeviceError>) -> Self {
        Self(State::Ready(result))
    }

    /// Of work that ends when the completer is told so.
    pub fn pending() -> (Self, Completer) {
        Self::of(Shared::new())
    }

    fn of(shared: Arc<Shared>) -> (Self, Completer) {
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
        if !end.waker.iter().chain(&end.wakers).any(|waker| waker.will_wake(context.waker())) {
            let waker = context.waker().clone();
            if end.waker.is_none() { end.waker = Some(waker) } else { end.wakers.push(waker) }
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
    fn a_source_uses_memory_again_once_nobody_holds_it() {
        let address = |completion: &Completion| match &completion.0 {
            State::Pending(shared) => Arc::as_ptr(shared),
            State::Ready(_) => panic!("it is pending"),
        };
        let mut source = CompletionSource::default();
        let (first, completer) = source.pending();
        let count = Arc::<Count>::default();
        let waker = Waker::from(Arc::clone(&count));
        assert!(Pin::new(&mut first.clone()).poll(&mut Context::from_waker(&waker)).is_pending());
        let first_address = address(&first);
        completer.complete(Ok(refused()));
        // Somebody may still ask the first how it ended.
        let (second, _completer) = source.pending();
        assert_ne!(address(&second), first_address);
        assert_eq!(first.wait().unwrap(), refused());
        drop(first);
        let (third, completer) = source.pending();
        assert_eq!(address(&third), first_address);
        assert!(!third.is_done(), "it is another submission's");
        completer.complete(Ok(Outcome::default()));
        assert_eq!(third.wait().unwrap(), Outcome::default());
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "whoever waited for the first is woken for the first");
    }

    #[test]
    fn a_watcher_that_goes_away_cancels_instead_of_hanging() {
        let (completion, completer) = Completion::pending();
        drop(completer);
        assert!(matches!(completion.wait(), Err(DeviceError::Cancelled)));
    }
}
