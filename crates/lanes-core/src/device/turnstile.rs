//! Who may touch a memory when: one at a time, in the order submitted. For backends.
//!
//! `ticket (under the device's one lock) --> enter: wait for those before --> leave: let in the next`
//!
//! - Tickets are taken under one lock of the device, so whoever waits, waits for something submitted earlier: no ring.
//! - What a device does in order by itself *passes*: it need not wait for those that passed before it, though they have not left.
//! - Not here: what is done inside.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// The order of all that a device was asked to do. There is one a device, in its lock: holding it is taking part.
#[derive(Debug, Default)]
pub struct Order(());

/// A place in the line before a turnstile. Every one taken is entered and left, or all behind it wait for ever.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(u64);

/// Lets in one at a time, in the order of their tickets. Left by name, so a turn can hold any number without a list.
#[derive(Debug, Default)]
pub struct Turnstile {
    /// Tickets taken so far. Changed only with the device's `Order` in hand.
    taken: AtomicU64,
    /// The ticket that may be in.
    serving: AtomicU64,
    /// One more than the last ticket that has passed; it means nothing where `serving` is further.
    passed: AtomicU64,
    /// How many wait in `line`, so that leaving costs no lock where nobody does.
    waiting: AtomicUsize,
    line: Mutex<()>,
    moved: Condvar,
}

impl Turnstile {
    /// The next place in the line.
    pub fn ticket(&self, _order: &mut Order) -> Ticket {
        Ticket(self.taken.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits until all with earlier tickets have left.
    pub fn enter(&self, ticket: Ticket) {
        // Acquire: what they did to the memory is seen.
        if self.serving.load(Ordering::Acquire) != ticket.0 {
            self.wait(|| self.serving.load(Ordering::SeqCst) == ticket.0);
        }
    }

    /// Waits until all with earlier tickets have left or passed. Only for work that is done in order after those that passed;
    /// it leaves as it does who entered.
    pub fn pass(&self, ticket: Ticket) {
        let is_next = || self.serving.load(Ordering::SeqCst).max(self.passed.load(Ordering::SeqCst)) == ticket.0;
        if !is_next() {
            self.wait(is_next);
        }
        self.passed.store(ticket.0 + 1, Ordering::SeqCst);
        self.wake();
    }

    /// Whether [`pass`](Self::pass) with the ticket that is next to be taken would not wait.
    pub fn is_passable(&self, _order: &mut Order) -> bool {
        let next = self.serving.load(Ordering::SeqCst).max(self.passed.load(Ordering::SeqCst));
        next == self.taken.load(Ordering::Relaxed)
    }

    fn wait(&self, is_over: impl Fn() -> bool) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        // Either this load sees what was stored, or `wake` sees that somebody waits, and notifies once the lock is free,
        // which is when this thread sleeps.
        while !is_over() {
            line = self.moved.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        drop(line);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.line.lock().unwrap_or_else(PoisonError::into_inner));
            self.moved.notify_all();
        }
    }

    /// Lets the next one in. Only for who is in.
    pub fn leave(&self) {
        self.serving.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// However late they come, they are let in by ticket, one at a time, and see what the one before did.
    #[test]
    fn a_turnstile_keeps_the_order_of_tickets() {
        let (turnstile, mut order, count) = (Turnstile::default(), Order::default(), AtomicU64::new(0));
        let visitors = if cfg!(miri) { 6 } else { 200 };
        let tickets: Vec<_> = (0..visitors).map(|_| turnstile.ticket(&mut order)).collect();
        thread::scope(|scope| {
            for (at, &ticket) in tickets.iter().enumerate().rev() {
                let (turnstile, count) = (&turnstile, &count);
                scope.spawn(move || {
                    turnstile.enter(ticket);
                    // Not atomic as a whole: two at a time would lose one.
                    let seen = count.load(Ordering::Relaxed);
                    assert_eq!(seen, at as u64);
                    thread::yield_now();
                    count.store(seen + 1, Ordering::Relaxed);
                    turnstile.leave();
                });
            }
        });
        assert_eq!(count.into_inner(), visitors);
    }

    /// Work of a device passes what passed before it and waits for a visitor; a visitor waits until all of it has left.
    #[test]
    fn who_passes_waits_for_visitors_and_visitors_for_who_passed() {
        let (turnstile, mut order) = (Turnstile::default(), Order::default());
        let mut ticket = || turnstile.ticket(&mut order);
        let (first, second, visit, third) = (ticket(), ticket(), ticket(), ticket());
        turnstile.pass(first);
        turnstile.pass(second);
        let (visited, inside) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                turnstile.enter(visit);
                visited.store(1, Ordering::SeqCst);
                thread::sleep(std::time::Duration::from_millis(20));
                inside.store(1, Ordering::SeqCst);
                turnstile.leave();
            });
            scope.spawn(|| {
                turnstile.pass(third);
                assert_eq!(inside.load(Ordering::SeqCst), 1, "a visitor is not passed");
                turnstile.leave();
            });
            for _ in 0..2 {
                thread::sleep(std::time::Duration::from_millis(20));
                assert_eq!(visited.load(Ordering::SeqCst), 0, "what passed has not left");
                turnstile.leave();
            }
        });
        assert!(turnstile.is_passable(&mut order));
        let last = turnstile.ticket(&mut order);
        assert!(!turnstile.is_passable(&mut order), "somebody is before");
        turnstile.pass(last);
        assert!(turnstile.is_passable(&mut order), "and has passed");
    }
}
