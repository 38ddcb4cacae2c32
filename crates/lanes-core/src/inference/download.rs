//! Bytes on their way from a device to the host.
//!
//! `tensor ──copied once its producers have succeeded──> staging ──read when that is done──> Vec`
//!
//! - What arrives is what the tensor held when it was asked for, whatever is written there afterwards.
//! - Dropping one before it is ready stops nothing that has begun, and keeps nothing.

use crate::device::{Buffer, Completion, Device, DeviceError};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The elements of a tensor, row-major, as a future. [`wait`](Self::wait) is its blocking form.
#[must_use = "a download does nothing for who does not await it"]
pub struct Download<T> {
    state: State,
    element: PhantomData<fn() -> T>,
}

enum State {
    /// Refused when it was asked for, or answered.
    Over(Option<DeviceError>),
    /// No bytes; but who made the tensor may have failed.
    Empty(Vec<Completion>),
    Flying {
        device: Arc<dyn Device>,
        staging: Buffer,
        copied: Completion,
        bytes: usize,
    },
}

impl<T> Download<T> {
    fn of(state: State) -> Self {
        Self { state, element: PhantomData }
    }

    pub(super) fn refused(cause: DeviceError) -> Self {
        Self::of(State::Over(Some(cause)))
    }

    pub(super) fn empty(producers: Vec<Completion>) -> Self {
        Self::of(State::Empty(producers))
    }

    pub(super) fn flying(device: Arc<dyn Device>, staging: Buffer, copied: Completion, bytes: usize) -> Self {
        Self::of(State::Flying { device, staging, copied, bytes })
    }

    /// Whether awaiting it would not wait.
    pub fn is_ready(&self) -> bool {
        match &self.state {
            State::Over(_) => true,
            State::Empty(producers) => producers.iter().all(Completion::is_done),
            State::Flying { copied, .. } => copied.is_done(),
        }
    }
}

impl<T: bytemuck::Pod> Download<T> {
    /// Blocks until they have arrived.
    ///
    /// # Errors
    /// [`DeviceError::Upstream`] when who made the tensor failed, and the device's own.
    pub fn wait(self) -> Result<Vec<T>, DeviceError> {
        match &self.state {
            State::Over(_) => {}
            State::Empty(producers) => producers.iter().for_each(|producer| drop(producer.wait())),
            State::Flying { copied, .. } => drop(copied.wait()),
        }
        self.take()
    }

    /// What to say once it is ready.
    fn take(mut self) -> Result<Vec<T>, DeviceError> {
        match std::mem::replace(&mut self.state, State::Over(None)) {
            State::Over(Some(cause)) => Err(cause),
            State::Over(None) => Err(super::invalid("a download was taken before".into())),
            State::Empty(producers) => {
                let failed = producers.iter().find_map(|producer| producer.result()?.err());
                failed.map_or(Ok(Vec::new()), |cause| Err(cause.upstream()))
            }
            State::Flying { device, staging, copied, bytes } => {
                copied.wait()?;
                let mut elements = vec![T::zeroed(); bytes / size_of::<T>()];
                device.read(&staging, 0, bytemuck::cast_slice_mut(&mut elements))?;
                Ok(elements)
            }
        }
    }
}

impl<T: bytemuck::Pod> Future for Download<T> {
    type Output = Result<Vec<T>, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waits: &mut [Completion] = match &mut self.state {
            State::Over(_) => &mut [],
            State::Empty(producers) => producers,
            State::Flying { copied, .. } => std::slice::from_mut(copied),
        };
        for wait in waits {
            if Pin::new(wait).poll(context).is_pending() {
                return Poll::Pending;
            }
        }
        let state = std::mem::replace(&mut self.state, State::Over(None));
        Poll::Ready(Self::of(state).take())
    }
}
