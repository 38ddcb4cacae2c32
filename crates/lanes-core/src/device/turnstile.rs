//! Who may touch a memory when: one at a time, in the order submitted. For backends.
//!
//! `ticket (under the device's one lock) --> enter: wait for those before --> leave: let in the next`
//!
//! - Tickets are taken under one lock of the device, so whoever waits, waits for something submitted earlier: no ring.
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
        if self.serving.load(Ordering::Acquire) == ticket.0 {
            return;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        // Either this load sees what `leave` stored, or `leave` sees that somebody waits, and notifies once the lock is
        // free, which is when this thread sleeps.
        while self.serving.load(Ordering::SeqCst) != ticket.0 {
            line = self.moved.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        drop(line);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lets the next one in. Only for who is in.
    pub fn leave(&self) {
        self.serving.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.line.lock().unwrap_or_else(PoisonError::into_inner));
            self.moved.notify_all();
        }
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
}
