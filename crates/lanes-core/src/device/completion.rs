//! When submitted work is done, and how it ended.
//!
//! `submit --> Completion  <-- Completer (held by whoever watches the device)`
//!
//! - Clones share one result; the first one given stands.
//! - A `Completer` dropped without a result means that the submission was cancelled: nobody waits for ever.
//! - Work that ended before `submit` returned costs no allocation and no lock.
//! - What others wait with is their code: it is cloned and woken outside the lock, and a panic in it is contained.
//! - A [`Completions`] gives out pending ones without allocating, once the handles of earlier ones are gone.

use super::DeviceError;
use crate::lanes::Refusal;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

struct End {
    result: Option<Result<Outcome, DeviceError>>,
    /// The work runs or has run: too late to cancel.
    begun: bool,
    /// Somebody asked that it not be begun.
    cancelled: bool,
    /// Whom the end wakes.
    wakers: Vec<Waker>,
    /// Whom a cancel wakes: who would begin the work.
    beginner: Option<Waker>,
}

impl End {
    fn new() -> Self {
        // Room for a task and a device that wait, so that only a crowd allocates.
        Self { result: None, begun: false, cancelled: false, wakers: Vec::with_capacity(2), beginner: None }
    }
}

impl Shared {
    fn new() -> Self {
        Self { end: Mutex::new(End::new()), ended: Condvar::new() }
    }

    // A panic while the lock is held leaves nothing half done: every critical section is one assignment.
    fn lock(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes a task of somebody else, whose panics are not ours.
pub(crate) fn wake(waker: Waker) {
    // The panic hook has said it; whoever submitted is not the one to hear it.
    drop(catch_unwind(AssertUnwindSafe(|| waker.wake())));
}

/// Ends one submission. Dropped unused, it ends it as [`DeviceError::Cancelled`].
pub struct Completer(Arc<Shared>);

impl Completer {
    /// Ends the submission and wakes everyone who waits for it.
    pub fn complete(self, result: Result<Outcome, DeviceError>) {
        self.end(result);
    }

    /// Whether the work may be begun: not if it was [cancelled](Completion::cancel). Afterwards it is too late to.
    pub fn begin(&self) -> bool {
        let mut end = self.0.lock();
        end.begun = !end.cancelled;
        end.begun
    }

    /// Whether the work was [cancelled](Completion::cancel) before it was begun. If not, `waker` (the one given last) is
    /// woken when it is.
    pub fn is_cancelled(&self, waker: &Waker) -> bool {
        {
            let end = self.0.lock();
            if end.cancelled || end.beginner.as_ref().is_some_and(|known| known.will_wake(waker)) {
                return end.cancelled;
            }
        }
        let waker = waker.clone();
        let mut end = self.0.lock();
        let earlier = end.beginner.replace(waker);
        let cancelled = end.cancelled;
        drop(end);
        drop(earlier);
        cancelled
    }

    fn end(&self, result: Result<Outcome, DeviceError>) {
        let mut end = self.0.lock();
        if end.result.is_some() {
            return;
        }
        end.result = Some(result);
        let (mut wakers, beginner) = (std::mem::take(&mut end.wakers), end.beginner.take());
        drop(end);
        self.0.ended.notify_all();
        drop(beginner);
        if wakers.capacity() > 0 {
            wakers.drain(..).for_each(wake);
            // Given back for its room. Nobody adds to the list of work that has ended.
            self.0.lock().wakers = wakers;
        }
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
        Self::of(Arc::new(Shared::new()))
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

    /// How the work has ended, if it has.
    pub fn result(&self) -> Option<Result<Outcome, DeviceError>> {
        match &self.0 {
            State::Ready(result) => Some(result.clone()),
            State::Pending(shared) => shared.lock().result.clone(),
        }
    }

    /// Whether the two are handles to one submission that was pending when it was accepted.
    pub fn is(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (State::Pending(this), State::Pending(other)) => Arc::ptr_eq(this, other),
            _ => false,
        }
    }

    /// Asks that the work not be begun. If it has not been, it ends as [`DeviceError::Cancelled`] in its turn, without
    /// having touched anything, and what it held is given back; if it has, it ends as if nobody had asked.
    pub fn cancel(&self) {
        let State::Pending(shared) = &self.0 else { return };
        let mut end = shared.lock();
        if end.begun || end.result.is_some() {
            return;
        }
        end.cancelled = true;
        let beginner = end.beginner.take();
        drop(end);
        beginner.into_iter().for_each(wake);
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
        {
            let end = shared.lock();
            if let Some(result) = &end.result {
                return Poll::Ready(result.clone());
            }
            // One entry per task, however often it polls.
            if end.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                return Poll::Pending;
            }
        }
        let waker = context.waker().clone();
        let mut end = shared.lock();
        if let Some(result) = &end.result {
            let result = result.clone();
            drop(end);
            return Poll::Ready(result);
        }
        end.wakers.push(waker);
        Poll::Pending
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.is_done() { "Completion(done)" } else { "Completion(pending)" };
        f.write_str(name)
    }
}

/// A few pending completions that are used again and again, for a backend that must not allocate per submission.
///
/// One is free once every handle of its last submission is gone: the completer and all clones of the completion. If
/// callers keep all of them, a new one is allocated and takes the place of the one given out longest ago.
pub struct Completions {
    kept: Box<[Arc<Shared>]>,
    /// The one given out last.
    last: usize,
}

impl Completions {
    /// `count` of them; at least one.
    pub fn new(count: usize) -> Self {
        Self { kept: (0..count.max(1)).map(|_| Arc::new(Shared::new())).collect(), last: 0 }
    }

    /// [`Completion::pending`], out of those kept if one is free.
    pub fn pending(&mut self) -> (Completion, Completer) {
        let count = self.kept.len();
        for at in (1..=count).map(|step| (self.last + step) % count) {
            if let Some(shared) = Arc::get_mut(&mut self.kept[at]) {
                let end = shared.end.get_mut().unwrap_or_else(PoisonError::into_inner);
                let wakers = std::mem::take(&mut end.wakers);
                *end = End { result: None, begun: false, cancelled: false, wakers, beginner: None };
                return self.give(at);
            }
        }
        let at = (self.last + 1) % count;
        self.kept[at] = Arc::new(Shared::new());
        self.give(at)
    }

    fn give(&mut self, at: usize) -> (Completion, Completer) {
        self.last = at;
        Completion::of(Arc::clone(&self.kept[at]))
    }
}

impl Default for Completions {
    /// Two: when work is submitted again, whoever ended the last may not have let go of it yet.
    fn default() -> Self {
        Self::new(2)
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completions({})", self.kept.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanes_tests::tasks::Woken;
    use std::task::Wake;

    fn refused() -> Outcome {
        Outcome { refused: vec![Refusal { seat: 3, reason: "index 9 of 4".into() }] }
    }

    #[test]
    fn every_clone_and_every_way_of_waiting_sees_the_one_result() {
        let (completion, completer) = Completion::pending();
        let (count, mut polled) = (Arc::new(Woken::default()), completion.clone());
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
        assert_eq!(count.count(), 1, "one task is woken once");
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

    #[test]
    fn a_cancel_before_the_beginning_is_seen_and_one_after_it_is_not() {
        let (count, (completion, completer)) = (Arc::new(Woken::default()), Completion::pending());
        let waker = Waker::from(Arc::clone(&count));
        assert!(!completer.is_cancelled(&waker));
        completion.cancel();
        completion.clone().cancel();
        assert_eq!(count.count(), 1, "who would begin is woken once");
        assert!(completer.is_cancelled(&waker) && !completer.begin());
        assert!(!completion.is_done(), "it ends in its turn");
        drop(completer);
        assert!(matches!(completion.result(), Some(Err(DeviceError::Cancelled))));

        let (completion, completer) = Completion::pending();
        assert!(completer.begin());
        completion.cancel();
        assert!(!completer.is_cancelled(&waker));
        completer.complete(Ok(refused()));
        assert_eq!(completion.wait().unwrap(), refused());
    }

    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a task of somebody else");
        }
    }

    #[test]
    fn a_waker_that_panics_keeps_nobody_from_being_woken() {
        let ((completion, completer), count) = (Completion::pending(), Arc::new(Woken::default()));
        for waker in [Waker::from(Arc::new(Panics)), Waker::from(Arc::clone(&count))] {
            assert!(Pin::new(&mut completion.clone()).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(!completer.is_cancelled(&Waker::from(Arc::new(Panics))));
        completion.cancel();
        completer.complete(Ok(Outcome::default()));
        assert_eq!(count.count(), 1);
        assert_eq!(completion.wait().unwrap(), Outcome::default());
    }

    /// A completion is used again only when no handle of it is left, and tells nothing of its past then.
    #[test]
    fn kept_completions_are_given_out_again_and_clean() {
        let mut completions = Completions::new(2);
        let addresses: Vec<_> = completions.kept.iter().map(Arc::as_ptr).collect();
        let kept = |completions: &Completions| completions.kept.iter().map(Arc::as_ptr).collect::<Vec<_>>();
        for round in 0..10 {
            let (completion, completer) = completions.pending();
            assert!(!completion.is_done(), "round {round}");
            let waker = Waker::from(Arc::new(Woken::default()));
            assert!(Pin::new(&mut completion.clone()).poll(&mut Context::from_waker(&waker)).is_pending());
            // Both of those kept are cancelled in some round and not in the next one they are used in.
            if round % 3 == 0 {
                completion.cancel();
                assert!(completer.is_cancelled(&waker));
                drop(completer);
            } else {
                assert!(completer.begin());
                completer.complete(Ok(refused()));
            }
            assert_eq!(completion.wait().is_ok(), round % 3 != 0);
            assert_eq!(kept(&completions), addresses);
        }
        let (held, completer) = completions.pending();
        completer.complete(Ok(refused()));
        for _ in 0..5 {
            let (other, _completer) = completions.pending();
            assert!(!other.is(&held) && other.is(&other.clone()));
        }
        assert_eq!(kept(&completions), addresses, "one is enough for the others");
        let both = (completions.pending(), completions.pending());
        assert_eq!(held.wait().unwrap(), refused());
        assert!(!both.0.0.is_done() && !both.1.0.is_done());
        assert_ne!(kept(&completions), addresses, "the one that is held is no longer kept");
    }
}
