//! A prepared model, and getting a slot of it.
//!
//! - One line for all callers, those that block and those that await: first come, first served.
//! - Who waits in vain is told so: once no slot is left, or the device is lost, every wait ends with the cause.
//! - Not here: the line itself (`line`).

use super::line::Waiter;
use super::prepare::SlotPort;
use super::slot::{Acquired, Model, SlotCell};
use super::{ModelContext, root};
use crate::device::DeviceError;
use crate::lanes::sync::{CALLER, block_on};
use crate::session::Session;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A model with a bounded number of inferences in flight. Clones share them; slots in use outlive all of them.
#[derive(Clone)]
pub struct PreparedModel(Arc<Prepared>);

struct Prepared {
    model: Arc<Model>,
    cells: Vec<Arc<SlotCell>>,
}

/// When a slot was asked for and given, each counted from 0 over all slots of a model. Sorted by one, those that were
/// given are sorted by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Callers that came before.
    pub asked: u64,
    /// Slots that were given before.
    pub given: u64,
}

impl PreparedModel {
    pub(super) fn new(model: Arc<Model>, cells: Vec<Arc<SlotCell>>) -> Self {
        Self(Arc::new(Prepared { model, cells }))
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.0.model.name
    }

    /// How many slots it was prepared with.
    pub fn capacity(&self) -> usize {
        self.0.cells.len()
    }

    /// What it takes.
    pub fn inputs(&self) -> &[SlotPort] {
        &self.0.model.inputs
    }

    /// What it gives.
    pub fn outputs(&self) -> &[SlotPort] {
        &self.0.model.outputs
    }

    /// Whose device it is on.
    pub fn context(&self) -> &ModelContext {
        &self.0.model.context
    }

    /// Where its slots were recorded.
    pub fn session(&self) -> &Session {
        &self.0.model.session
    }

    /// A slot, if one is free now. It never waits, and takes none from who does.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] with how many are in use; and what [`acquire`](Self::acquire) says.
    pub fn try_acquire(&self) -> Result<Acquired, DeviceError> {
        self.0.alive()?;
        let grant = self.0.model.line.try_take()?;
        Ok(Acquired::new(&self.0.cells[grant.slot], grant))
    }

    /// A slot, as a future: it joins the line when it is first polled, and leaves it when it is dropped.
    ///
    /// # Errors
    /// Once every slot has failed, what the first of them failed with; [`DeviceError::Lost`] once the device is lost.
    pub fn acquire(&self) -> Acquire {
        Acquire { prepared: Arc::clone(&self.0), waiter: None }
    }

    /// The same, blocking.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn acquire_blocking(&self) -> Result<Acquired, DeviceError> {
        // Only who has joined has something to look for.
        block_on(self.acquire(), CALLER, |acquire| acquire.waiter.is_none())
    }

    /// Whether nothing is in flight and nobody holds a slot.
    pub fn is_idle(&self) -> bool {
        self.0.model.line.is_idle()
    }

    /// How many wait for a slot.
    pub fn waiting(&self) -> usize {
        self.0.model.line.waiting()
    }

    /// The slots that are out of service, and why.
    pub fn failed(&self) -> Vec<(usize, DeviceError)> {
        self.0.model.line.failed()
    }
}

impl fmt::Debug for PreparedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparedModel({}: {} slots)", self.name(), self.capacity())
    }
}

impl Prepared {
    /// Asked where the line could not know it: nothing may be in flight that would say so.
    fn alive(&self) -> Result<(), DeviceError> {
        self.model.session.device().health().map_err(|cause| match root(&cause) {
            lost @ DeviceError::Lost(_) => self.model.line.lose(lost),
            _ => cause,
        })
    }
}

/// A slot to come.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquire {
    prepared: Arc<Prepared>,
    waiter: Option<Waiter>,
}

impl Future for Acquire {
    type Output = Result<Acquired, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Whatever cloning it runs, not under a lock.
        let waker = context.waker().clone();
        let waiter = self.waiter.take();
        let line = &self.prepared.model.line;
        let looked = match waiter {
            None => self.prepared.alive().and_then(|()| line.join(waker)),
            Some(waiter) => line.poll(waiter, waker),
        };
        match looked {
            Ok(Ok(grant)) => Poll::Ready(Ok(Acquired::new(&self.prepared.cells[grant.slot], grant))),
            Ok(Err(waiter)) => {
                self.waiter = Some(waiter);
                Poll::Pending
            }
            Err(cause) => Poll::Ready(Err(cause)),
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            self.prepared.model.line.leave(waiter);
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Acquire({})", self.prepared.model.name)
    }
}
