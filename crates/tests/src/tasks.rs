//! Futures on threads of a test: one on this thread, or many that take turns.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// How often it was woken.
#[derive(Default)]
pub struct Woken(AtomicUsize);

impl Woken {
    /// So far.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls a future once.
pub fn poll_once<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

/// Lets other tasks run first.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(move |context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[derive(Default)]
struct Ready {
    queue: Mutex<VecDeque<usize>>,
    arrived: Condvar,
}

struct Task {
    at: usize,
    ready: Arc<Ready>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.at);
        self.ready.arrived.notify_one();
    }
}

/// Runs all of `tasks` on this thread, each when it was woken, until all have ended.
pub fn run_all(tasks: Vec<Pin<Box<dyn Future<Output = ()>>>>) {
    let ready = Arc::new(Ready::default());
    let wakers: Vec<Waker> =
        (0..tasks.len()).map(|at| Waker::from(Arc::new(Task { at, ready: Arc::clone(&ready) }))).collect();
    wakers.iter().for_each(Waker::wake_by_ref);
    let mut tasks: Vec<_> = tasks.into_iter().map(Some).collect();
    let mut left = tasks.len();
    while left > 0 {
        let mut queue = ready.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let at = loop {
            match queue.pop_front() {
                Some(at) => break at,
                None => queue = ready.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        let Some(task) = &mut tasks[at] else { continue };
        if task.as_mut().poll(&mut Context::from_waker(&wakers[at])).is_ready() {
            tasks[at] = None;
            left -= 1;
        }
    }
}
