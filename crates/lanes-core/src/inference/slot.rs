//! One in-flight instance of a prepared model, and who has it.
//!
//! ```text
//! Line ──grant──> Acquired ──submit──> Inference ──await──> Outputs ──tensor──> Tensor
//!   ^                └───────────────── each is a Hold ─────────────────────────────┘
//!   └── given back once nobody holds it and the device is done with it; never, if its plan failed
//! ```
//!
//! - Whoever has an [`Acquired`] is alone with the slot's inputs. Holding it after that only reads.
//! - A handle that is dropped neither waits nor fails: what still flies gives the slot back when it has landed.
//! - A refusal is complete before anything is queued. What a failed submission had queued by then is cancelled.
//! - Nothing is allocated by a submission from the host, once there was one.

use super::descriptor::Layout;
use super::line::{Grant, Line};
use super::prepare::SlotPort;
use super::run::Inference;
use super::storage::{At, Storage, copy};
use super::{ModelContext, Place, Tensor, invalid, root};
use crate::device::{Buffer, Completion, DeviceError};
use crate::plan::Region;
use crate::session::Session;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// What all slots of a prepared model share.
pub(super) struct Model {
    pub name: String,
    pub context: ModelContext,
    pub session: Session,
    pub inputs: Vec<SlotPort>,
    pub outputs: Vec<SlotPort>,
    pub line: Line,
}

impl Model {
    /// `cause` as everybody is told it: a lost device has one.
    pub fn note(&self, cause: DeviceError) -> DeviceError {
        match root(&cause) {
            lost @ DeviceError::Lost(_) => self.line.lose(lost),
            _ => cause,
        }
    }

    /// That there are as many as ports, and each of the bytes of its port.
    pub fn check_bytes(
        &self,
        what: &str,
        ports: &[SlotPort],
        lens: impl ExactSizeIterator<Item = usize>,
    ) -> Result<(), DeviceError> {
        self.check_count(what, ports, lens.len())?;
        for (port, len) in ports.iter().zip(lens) {
            if len != port.desc.bytes() {
                let (SlotPort { name, desc }, of) = (port, &self.name);
                let bytes = desc.bytes();
                return Err(invalid(format!(
                    "{what} {name} of model {of} is {desc} of {bytes} bytes; {len} were given"
                )));
            }
        }
        Ok(())
    }

    fn check_count(&self, what: &str, ports: &[SlotPort], found: usize) -> Result<(), DeviceError> {
        if found == ports.len() {
            return Ok(());
        }
        let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        let (of, count, names) = (&self.name, ports.len(), names.join(", "));
        Err(invalid(format!("model {of} has {count} {what}s ({names}); {found} were given")))
    }

    fn check_tensors(&self, tensors: &[&Tensor]) -> Result<(), DeviceError> {
        self.check_count("input", &self.inputs, tensors.len())?;
        for (port, tensor) in self.inputs.iter().zip(tensors) {
            tensor.check_context(&self.context, format_args!("model {}", self.name))?;
            let SlotPort { name, desc } = port;
            if tensor.dtype() != desc.dtype() || tensor.shape() != desc.shape() {
                let (of, found) = (&self.name, tensor.descriptor());
                return Err(invalid(format!("input {name} of model {of} is {desc}; {found} was given")));
            }
        }
        Ok(())
    }
}

/// Where an input lies, and where the host writes it if that is elsewhere.
pub(super) struct Input {
    pub buffer: Buffer,
    pub offset: usize,
    pub staging: Option<Buffer>,
}

/// Where an output lies, and where the host reads it if that is elsewhere.
pub(super) struct Output {
    pub storage: Arc<Storage>,
    pub offset: usize,
    pub staging: Option<Arc<Storage>>,
}

/// A slot, on lease or not.
pub(super) struct SlotCell {
    pub model: Arc<Model>,
    pub index: usize,
    /// What its plan is recorded under.
    pub key: String,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    pub flight: Mutex<Flight>,
    /// Locked by whoever has the slot, so never waited for.
    pub work: Mutex<Work>,
}

/// Who has the slot, and what of it has not landed.
#[derive(Default)]
pub(super) struct Flight {
    is_out: bool,
    holds: usize,
    /// In the order submitted.
    flying: VecDeque<Completion>,
    /// Of its own submissions.
    failure: Option<DeviceError>,
}

/// Room that is used again.
pub(super) struct Work {
    pub after: Vec<Completion>,
    pub earlier: Vec<Completion>,
    /// Host memory for each output, in words, so that any element type is aligned. Empty while somebody looks at it.
    pub host: Vec<Box<[u64]>>,
}

impl SlotCell {
    fn flight(&self) -> MutexGuard<'_, Flight> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fly(&self, completion: &Completion) {
        self.flight().flying.push_back(completion.clone());
    }

    /// Looks at what has landed by now; gives the slot back if that was the last of it and nobody holds it. What is
    /// still in the air calls this again.
    fn settle(self: &Arc<Self>) {
        let mut lost = None;
        let (failure, is_over) = {
            let mut guard = self.flight();
            let flight = &mut *guard;
            // Made of what is there: nothing is allocated.
            let waker = (!flight.flying.is_empty()).then(|| Waker::from(Arc::clone(self)));
            while let (Some(first), Some(waker)) = (flight.flying.front_mut(), &waker) {
                let Poll::Ready(result) = Pin::new(first).poll(&mut Context::from_waker(waker)) else { break };
                flight.flying.pop_front();
                let Err(cause) = result else { continue };
                match (root(&cause), &cause) {
                    (DeviceError::Lost(_), _) => lost = Some(root(&cause).clone()),
                    // It never ran; the slot is as good as before.
                    (_, DeviceError::Cancelled | DeviceError::Upstream(_)) => {}
                    _ => drop(flight.failure.get_or_insert(cause)),
                }
            }
            let is_over = flight.is_out && flight.holds == 0 && flight.flying.is_empty();
            flight.is_out &= !is_over;
            (flight.failure.clone(), is_over)
        };
        let line = &self.model.line;
        lost.iter().for_each(|cause| drop(line.lose(cause)));
        // Before it is given back, whoever found it out.
        failure.iter().for_each(|cause| line.disable(self.index, cause));
        if is_over {
            line.release(self.index);
        }
    }

    /// Asks that nothing of it that has not begun be begun.
    pub fn cancel(&self) {
        let flying = self.flight().flying.clone();
        // The last first: what comes after something cancelled is to end as cancelled itself.
        flying.iter().rev().for_each(Completion::cancel);
    }

    /// Runs the plan; `is_staged` says that the host wants the outputs. Gives the run and what was submitted last.
    fn run(&self, after: &[Completion], is_staged: bool) -> Result<(Completion, Completion), DeviceError> {
        let run = self.model.session.replay_after(&self.key, after)?;
        self.fly(&run);
        let mut last = run.clone();
        for (output, port) in self.outputs.iter().zip(&self.model.outputs) {
            let bytes = port.desc.bytes();
            output.storage.ledger().made(Region::contiguous(output.offset, bytes), &run);
            let Some(staging) = output.staging.as_ref().filter(|_| is_staged) else { continue };
            let from = (&output.storage.buffer, output.offset as u64);
            let device = &output.storage.device;
            last = device.copy(from, (&staging.buffer, 0), bytes as u64, std::slice::from_ref(&run))?;
            self.fly(&last);
            staging.ledger().made(Region::contiguous(0, bytes), &last);
        }
        Ok((run, last))
    }

    /// Shows `fill` each input where the host writes it, and sends it on its way.
    fn stage(&self, fill: &mut dyn FnMut(usize, &mut [u8]), after: &mut Vec<Completion>) -> Result<(), DeviceError> {
        let device = self.model.session.device();
        for (at, (input, port)) in self.inputs.iter().zip(&self.model.inputs).enumerate() {
            let bytes = port.desc.bytes();
            let (seen, offset) = input.staging.as_ref().map_or((&input.buffer, input.offset), |staging| (staging, 0));
            device.map(seen, offset as u64, bytes, &mut |bytes| fill(at, bytes))?;
            if let Some(staging) = &input.staging {
                let to = (&input.buffer, input.offset as u64);
                let copied = device.copy((staging, 0), to, bytes as u64, &[])?;
                self.fly(&copied);
                after.push(copied);
            }
        }
        Ok(())
    }

    /// Copies tensors that were checked to the inputs, each after its makers.
    fn gather(&self, tensors: &[&Tensor], work: &mut Work) -> Result<(), DeviceError> {
        let Work { after, earlier, .. } = work;
        for ((input, port), tensor) in self.inputs.iter().zip(&self.model.inputs).zip(tensors) {
            debug_assert_eq!(port.desc.layout(), Layout::RowMajor, "slots' ports are");
            earlier.clear();
            tensor.after(earlier);
            let Some(from) = tensor.at() else { continue };
            let to = At { buffer: &input.buffer, desc: &port.desc, offset: input.offset };
            let copied = copy(&**self.model.session.device(), from, to, earlier)?;
            self.fly(&copied);
            after.push(copied);
        }
        Ok(())
    }
}

impl Wake for SlotCell {
    fn wake(self: Arc<Self>) {
        self.settle();
    }
}

/// One of those who keep a slot from being given to another.
pub(super) struct Hold(Arc<SlotCell>);

impl Hold {
    fn first(cell: &Arc<SlotCell>) -> Self {
        let mut flight = cell.flight();
        assert!(!flight.is_out && flight.flying.is_empty(), "a slot in use was given to another");
        (flight.is_out, flight.holds) = (true, 1);
        Self(Arc::clone(cell))
    }

    pub fn cell(&self) -> &Arc<SlotCell> {
        &self.0
    }

    pub fn model(&self) -> &Model {
        &self.0.model
    }

    /// Output `port`, as a tensor that keeps the slot.
    pub fn tensor(&self, port: usize) -> Result<Tensor, DeviceError> {
        let (output, SlotPort { desc, .. }) = self.output(port)?;
        let storage = Arc::clone(&output.storage);
        Ok(Tensor::full(&self.model().context, desc.clone(), storage, output.offset, Some(self.clone())))
    }

    pub fn output(&self, port: usize) -> Result<(&Output, &SlotPort), DeviceError> {
        let found = self.0.outputs.get(port).zip(self.model().outputs.get(port));
        found.ok_or_else(|| {
            let (name, count) = (&self.model().name, self.0.outputs.len());
            invalid(format!("output {port} of model {name}, which has {count}"))
        })
    }
}

impl Clone for Hold {
    fn clone(&self) -> Self {
        self.0.flight().holds += 1;
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let is_last = {
            let mut flight = self.0.flight();
            flight.holds -= 1;
            flight.holds == 0
        };
        if is_last {
            self.0.settle();
        }
    }
}

/// A slot that is the caller's: for one inference. Dropping it gives it back.
pub struct Acquired {
    hold: Hold,
    place: Place,
}

impl Acquired {
    pub(super) fn new(cell: &Arc<SlotCell>, grant: Grant) -> Self {
        Self { hold: Hold::first(cell), place: Place { asked: grant.asked, given: grant.given } }
    }

    /// Which slot it is.
    pub fn slot(&self) -> usize {
        self.hold.0.index
    }

    /// When it was asked for and when given, among all slots of the model.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Runs the model on `tensors`, copied to its inputs on the device after whoever makes them. They are free for other
    /// use when it returns; what is written to them later comes after the copy.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for another number of tensors than inputs, one of another context, type or shape; the
    /// slot is given back. What fails later is the inference's.
    pub fn submit(self, tensors: &[&Tensor]) -> Result<Inference, DeviceError> {
        self.hold.model().check_tensors(tensors)?;
        self.launch(false, |cell, work| cell.gather(tensors, work))
    }

    /// Runs the model on the bytes of `inputs`, row-major, which are free when it returns.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for another number of inputs, or of bytes of one; the slot is given back.
    pub fn submit_host(self, inputs: &[&[u8]]) -> Result<Inference, DeviceError> {
        let model = self.hold.model();
        model.check_bytes("input", &model.inputs, inputs.iter().map(|input| input.len()))?;
        self.submit_with(|port, bytes| bytes.copy_from_slice(inputs[port]))
    }

    /// Runs the model on what `fill` writes, in place, into the memory of each input: its number, and its bytes as the
    /// inference before left them. What it does not write is undefined.
    ///
    /// # Errors
    /// Those of the device.
    pub fn submit_with(self, mut fill: impl FnMut(usize, &mut [u8])) -> Result<Inference, DeviceError> {
        self.launch(true, |cell, work| cell.stage(&mut fill, &mut work.after))
    }

    fn launch(
        self,
        is_staged: bool,
        stack: impl FnOnce(&SlotCell, &mut Work) -> Result<(), DeviceError>,
    ) -> Result<Inference, DeviceError> {
        let cell = &self.hold.0;
        let mut work = cell.work();
        let submitted = stack(cell, &mut work).and_then(|()| cell.run(&work.after, is_staged));
        // A device may use what nobody holds again.
        work.after.clear();
        work.earlier.clear();
        drop(work);
        match submitted {
            Ok((run, last)) => {
                cell.settle();
                Ok(Inference::new(self.hold, run, last, is_staged))
            }
            Err(cause) => {
                cell.cancel();
                Err(cell.model.note(cause))
            }
        }
    }
}

impl fmt::Debug for Acquired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Acquired(slot {} of {})", self.slot(), self.hold.model().name)
    }
}
