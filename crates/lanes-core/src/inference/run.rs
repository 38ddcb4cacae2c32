//! An inference in flight, and what it leaves.
//!
//! `Acquired::submit* ──> Inference ──await, wait──> Outputs ──read_into, fetch, tensor`
//!
//! - Outputs are leased: the slot is nobody else's while an inference, its outputs or a tensor of them is kept.
//! - An inference that is dropped runs on and is forgotten; one that is cancelled before it began touches nothing.
//! - Not here: when a slot comes back (`slot`).

use super::slot::Hold;
use super::{Tensor, invalid, root};
use crate::device::{Completion, DeviceError, Outcome};
use crate::lanes::Element;
use crate::plan::Region;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// One run of a prepared model that was submitted. Awaiting it gives its outputs.
pub struct Inference {
    /// Until it has been awaited.
    hold: Option<Hold>,
    run: Completion,
    /// What was submitted last of it: the run, or what brings its outputs to the host.
    last: Completion,
    is_staged: bool,
    is_cancelled: bool,
}

impl Inference {
    pub(super) fn new(hold: Hold, run: Completion, last: Completion, is_staged: bool) -> Self {
        Self { hold: Some(hold), run, last, is_staged, is_cancelled: false }
    }

    /// Whether it has ended, well or not.
    pub fn is_done(&self) -> bool {
        self.run.is_done() && self.last.is_done()
    }

    /// When its outputs are made.
    pub fn completion(&self) -> &Completion {
        &self.run
    }

    /// Output `port` as a tensor that can be used at once: whatever reads it comes after this inference. It keeps the
    /// slot.
    ///
    /// # Errors
    /// An output that the model does not have.
    pub fn tensor(&self, port: usize) -> Result<Tensor, DeviceError> {
        self.hold.as_ref().ok_or_else(taken)?.tensor(port)
    }

    /// Asks that it not be begun. If it has not been, it ends as [`DeviceError::Cancelled`]; if it has, as if nobody had
    /// asked. Either way its slot comes back only when the device is done with it.
    pub fn cancel(&mut self) {
        self.is_cancelled = true;
        if let Some(hold) = &self.hold {
            hold.cell().cancel();
        }
    }

    /// Blocks until it has ended.
    ///
    /// # Errors
    /// [`DeviceError::Fault`] when its own plan failed, which takes the slot out of service;
    /// [`DeviceError::Upstream`] when a maker of its inputs failed; [`DeviceError::Cancelled`]; [`DeviceError::Invalid`]
    /// when a kernel refused its data; [`DeviceError::Lost`].
    pub fn wait(mut self) -> Result<Outputs, DeviceError> {
        self.take()
    }

    /// Blocks until it has ended, or until `limit` has passed, which is `None`: then it may be waited for again.
    ///
    /// # Errors
    /// As from [`wait`](Self::wait).
    pub fn wait_timeout(&mut self, limit: Duration) -> Option<Result<Outputs, DeviceError>> {
        // What comes last ends last.
        drop(self.last.wait_timeout(limit)?);
        Some(self.take())
    }

    /// How it ends, waited for if need be.
    fn take(&mut self) -> Result<Outputs, DeviceError> {
        let hold = self.hold.take().ok_or_else(taken)?;
        let model = hold.model();
        let outcome = self.run.wait().and_then(|outcome| self.last.wait().map(|_| outcome));
        match outcome {
            Ok(Outcome { refused }) => match refused.first() {
                Some(refusal) => Err(invalid(format!("model {} refused its input: {}", model.name, refusal.reason))),
                None => Ok(Outputs::new(hold, self.is_staged)),
            },
            Err(cause) if self.is_cancelled && matches!(root(&cause), DeviceError::Cancelled) => {
                Err(DeviceError::Cancelled)
            }
            Err(cause) => Err(model.note(cause)),
        }
    }
}

fn taken() -> DeviceError {
    invalid("this inference has been awaited".into())
}

impl Future for Inference {
    type Output = Result<Outputs, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if Pin::new(&mut self.run).poll(context).is_pending() || Pin::new(&mut self.last).poll(context).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(self.take())
    }
}

impl fmt::Debug for Inference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_done() { "Inference(done)" } else { "Inference(in flight)" })
    }
}

/// What an inference left. Dropping it, and all tensors taken from it, gives the slot back.
pub struct Outputs {
    hold: Hold,
    is_staged: bool,
    /// The slot's own host memory, on loan.
    host: Vec<Box<[u64]>>,
    /// Until then it holds what an earlier inference left there.
    is_fetched: bool,
}

impl Outputs {
    fn new(hold: Hold, is_staged: bool) -> Self {
        let host = std::mem::take(&mut hold.cell().work().host);
        Self { hold, is_staged, host, is_fetched: false }
    }

    /// Output `port` as a tensor, where it lies. It keeps the slot.
    ///
    /// # Errors
    /// An output that the model does not have.
    pub fn tensor(&self, port: usize) -> Result<Tensor, DeviceError> {
        self.hold.tensor(port)
    }

    /// Copies every output into a buffer of the caller's. It allocates nothing.
    ///
    /// # Errors
    /// Another number of buffers than outputs, one of another size, and the device's own.
    pub fn read_into(&self, buffers: &mut [&mut [u8]]) -> Result<(), DeviceError> {
        let model = self.hold.model();
        model.check_bytes("output", &model.outputs, buffers.iter().map(|buffer| buffer.len()))?;
        buffers.iter_mut().enumerate().try_for_each(|(port, buffer)| self.read(port, buffer))
    }

    /// Copies every output into host memory that the slot keeps for it: see [`bytes`](Self::bytes).
    ///
    /// # Errors
    /// The device's own.
    pub fn fetch(&mut self) -> Result<(), DeviceError> {
        let mut host = std::mem::take(&mut self.host);
        let fetched = host.iter_mut().enumerate().try_for_each(|(port, words)| {
            let bytes = self.hold.output(port)?.1.desc.bytes();
            self.read(port, &mut bytemuck::cast_slice_mut(words)[..bytes])
        });
        self.host = host;
        self.is_fetched = fetched.is_ok();
        fetched
    }

    /// Output `port` as it was [fetched](Self::fetch); `None` before that, and for a port that the model lacks.
    pub fn bytes(&self, port: usize) -> Option<&[u8]> {
        let bytes = self.hold.output(port).ok()?.1.desc.bytes();
        let host = self.host.get(port).filter(|_| self.is_fetched)?;
        bytemuck::cast_slice(host).get(..bytes)
    }

    /// The same as elements; `None` where the output has another type.
    pub fn get<T: Element + bytemuck::AnyBitPattern>(&self, port: usize) -> Option<&[T]> {
        let is_of_type = self.hold.output(port).ok()?.1.desc.dtype() == T::DTYPE;
        bytemuck::try_cast_slice(self.bytes(port)?).ok().filter(|_| is_of_type)
    }

    fn read(&self, port: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        let (output, _) = self.hold.output(port)?;
        let read = match output.staging.as_ref().filter(|_| self.is_staged) {
            Some(staging) => staging.read(Region::contiguous(0, into.len()), into),
            None => output.storage.read(Region::contiguous(output.offset, into.len()), into),
        };
        read.map_err(|cause| self.hold.model().note(cause))
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        // Before the slot is given back, which the hold does after this.
        self.hold.cell().work().host = std::mem::take(&mut self.host);
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outputs(slot {} of {})", self.hold.cell().index, self.hold.model().name)
    }
}
