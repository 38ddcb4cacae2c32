//! Tensors of a device.
//!
//! ```text
//! allocate, wrap, upload, concat ──> Tensor ──slice, reshape, transpose──> Tensor on the same memory
//!                                       └── copy_from, download, read_into, Acquired::submit
//! ```
//!
//! - A tensor keeps its memory alive, and so does every view of it; that of a slot's output keeps the slot.
//! - Whatever reads one comes after who made it, and is [`DeviceError::Upstream`] where that failed.
//! - A tensor without elements needs no device. It has no bytes to wait for, but it fails as its makers did.
//! - Not here: arithmetic. That is what kernels are for.

use super::descriptor::{Descriptor, Layout};
use super::download::Download;
use super::slot::Hold;
use super::storage::{At, Storage, copy};
use super::{ModelContext, invalid};
use crate::device::{Buffer, Completion, DeviceError, Placement, Purpose};
use crate::lanes::Element;
use crate::plan::Region;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Memory of a context's device as elements of one type, in some order. Cheap to clone; clones share the memory.
#[derive(Clone)]
pub struct Tensor {
    context: ModelContext,
    desc: Descriptor,
    memory: Memory,
}

#[derive(Clone)]
enum Memory {
    /// No elements; who would have made them.
    Empty(Arc<[Completion]>),
    /// From byte `offset` of a storage on. The hold is that of the slot whose output it is.
    Full { storage: Arc<Storage>, offset: usize, hold: Option<Hold> },
}

impl Tensor {
    /// Zeros, placed where `placement` says. `label` is what errors call the memory.
    ///
    /// # Errors
    /// A descriptor that is not row-major, and those of opening the device and allocating.
    pub fn allocate(
        context: &ModelContext,
        label: &str,
        desc: Descriptor,
        placement: Placement,
    ) -> Result<Self, DeviceError> {
        if desc.layout() != Layout::RowMajor {
            let strides = desc.strides();
            return Err(invalid(format!("{label} of {desc} with strides {strides:?}: what is allocated is row-major")));
        }
        if desc.is_empty() {
            return Ok(Self::empty(context, desc, Vec::new()));
        }
        let device = context.device()?;
        let buffer = device.allocate(label, Purpose::Staging, placement, desc.bytes() as u64)?;
        Ok(Self::full(context, desc, Storage::new(device, buffer), 0, None))
    }

    /// What lies in `buffer` from byte `offset` on, once `producer` has succeeded. The buffer is shared, not copied.
    ///
    /// # Errors
    /// A start that is no multiple of the element's size, an end past the buffer's, and those of opening the device.
    pub fn wrap(
        context: &ModelContext,
        buffer: &Buffer,
        offset: usize,
        desc: Descriptor,
        producer: Option<&Completion>,
    ) -> Result<Self, DeviceError> {
        if desc.is_empty() {
            return Ok(Self::empty(context, desc, producer.into_iter().cloned().collect()));
        }
        let (size, bytes) = (desc.dtype().size(), buffer.bytes());
        let end = offset.checked_add(desc.span_bytes()).filter(|&end| end as u64 <= bytes);
        if end.is_none() || !offset.is_multiple_of(size) {
            return Err(invalid(format!(
                "{desc} of {} bytes from byte {offset} on of a buffer of {bytes}: it starts on a multiple of {size} and \
                 ends inside",
                desc.span_bytes()
            )));
        }
        let storage = Storage::new(context.device()?, buffer.clone());
        if let Some(producer) = producer {
            desc.regions(offset).into_iter().for_each(|region| storage.ledger().made(region, producer));
        }
        Ok(Self::full(context, desc, storage, offset, None))
    }

    /// `elements` in row-major order. They are free when it returns.
    ///
    /// # Errors
    /// Another number of elements than `shape` has, and what [`allocate`](Self::allocate) says.
    pub fn upload<T: Element>(context: &ModelContext, shape: &[usize], elements: &[T]) -> Result<Self, DeviceError> {
        Self::upload_bytes(context, Descriptor::new(T::DTYPE, shape)?, bytemuck::cast_slice(elements))
    }

    /// The same from bytes.
    ///
    /// # Errors
    /// Another number of bytes than `desc` has, and what [`allocate`](Self::allocate) says.
    pub fn upload_bytes(context: &ModelContext, desc: Descriptor, bytes: &[u8]) -> Result<Self, DeviceError> {
        if bytes.len() != desc.bytes() {
            let (found, expected) = (bytes.len(), desc.bytes());
            return Err(invalid(format!("{found} bytes are uploaded as {desc} of {expected}")));
        }
        let tensor = Self::allocate(context, "upload", desc, Placement::Device)?;
        if let Memory::Full { storage, .. } = &tensor.memory {
            storage.device.write(&storage.buffer, 0, bytes)?;
        }
        Ok(tensor)
    }

    /// `parts` one after the other along axis 0, copied on the device.
    ///
    /// # Errors
    /// No parts, parts that differ in type or in other axes, a part of another context, what
    /// [`allocate`](Self::allocate) says, and [`DeviceError::Busy`] where the device does not take a copy for every part
    /// now: nothing of it can be seen then, and it may be called again.
    pub fn concat(context: &ModelContext, parts: &[&Self]) -> Result<Self, DeviceError> {
        let Some(first) = parts.first() else {
            return Err(invalid("a concatenation of no tensors: it takes at least one".into()));
        };
        parts.iter().try_for_each(|part| part.check_context(context, "a concatenation"))?;
        let rest = first.shape().get(1..);
        let mut rows = Some(0_usize);
        for (at, part) in parts.iter().enumerate() {
            if rest.is_none() || part.dtype() != first.dtype() || part.shape().get(1..) != rest {
                let (desc, first) = (&part.desc, &first.desc);
                return Err(invalid(format!(
                    "part {at} of a concatenation is {desc}, and part 0 {first}: only axis 0 may differ"
                )));
            }
            rows = rows.and_then(|rows| rows.checked_add(part.shape()[0]));
        }
        let shape = [&[rows.unwrap_or(usize::MAX)], rest.unwrap_or_default()].concat();
        let desc = Descriptor::new(first.dtype(), &shape)?;
        // Parts without bytes have makers too.
        let mut makers = Vec::new();
        parts.iter().filter(|part| part.desc.is_empty()).for_each(|part| part.after(&mut makers));
        if desc.is_empty() {
            return Ok(Self::empty(context, desc, makers));
        }
        let whole = Self::allocate(context, "concatenation", desc, Placement::Device)?;
        let mut row = 0;
        for part in parts.iter().filter(|part| !part.desc.is_empty()) {
            let rows = part.shape()[0];
            whole.slice(0, row..row + rows)?.fill(part, &makers, true)?;
            row += rows;
        }
        Ok(whole)
    }

    fn empty(context: &ModelContext, desc: Descriptor, producers: Vec<Completion>) -> Self {
        Self { context: context.clone(), desc, memory: Memory::Empty(producers.into()) }
    }

    pub(super) fn full(
        context: &ModelContext,
        desc: Descriptor,
        storage: Arc<Storage>,
        offset: usize,
        hold: Option<Hold>,
    ) -> Self {
        Self { context: context.clone(), desc, memory: Memory::Full { storage, offset, hold } }
    }

    /// The same memory from `before` bytes further on.
    fn view(&self, desc: Descriptor, before: usize) -> Self {
        let memory = match &self.memory {
            Memory::Full { storage, offset, hold } if !desc.is_empty() => {
                Memory::Full { storage: Arc::clone(storage), offset: offset + before, hold: hold.clone() }
            }
            _ => {
                let mut producers = Vec::new();
                self.after(&mut producers);
                Memory::Empty(producers.into())
            }
        };
        Self { context: self.context.clone(), desc, memory }
    }

    /// Elements `range` along `axis`: a view.
    ///
    /// # Errors
    /// An axis that it does not have, and a range that ends past it.
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Result<Self, DeviceError> {
        let (desc, before) = self.desc.slice(axis, range)?;
        Ok(self.view(desc, before))
    }

    /// The same elements in another shape: a view.
    ///
    /// # Errors
    /// Another number of elements, and a tensor whose elements do not lie end to end.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, DeviceError> {
        Ok(self.view(self.desc.reshape(shape)?, 0))
    }

    /// Axis `order[i]` as axis `i`: a view.
    ///
    /// # Errors
    /// An order that does not name each axis once.
    pub fn transpose(&self, order: &[usize]) -> Result<Self, DeviceError> {
        Ok(self.view(self.desc.transpose(order)?, 0))
    }

    /// What it is.
    pub fn descriptor(&self) -> &Descriptor {
        &self.desc
    }

    /// The element type.
    pub fn dtype(&self) -> crate::DType {
        self.desc.dtype()
    }

    /// Elements along each axis.
    pub fn shape(&self) -> &[usize] {
        self.desc.shape()
    }

    /// Whose device it lies on.
    pub fn context(&self) -> &ModelContext {
        &self.context
    }

    /// Who makes what it holds: those that have not ended, and those that have failed. Whatever reads it comes after
    /// them.
    pub fn producers(&self) -> Vec<Completion> {
        let mut after = Vec::new();
        self.after(&mut after);
        after
    }

    /// Blocks until it is made.
    ///
    /// # Errors
    /// [`DeviceError::Upstream`] with what went wrong.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.producers().iter().try_for_each(|producer| producer.wait().map(drop)).map_err(DeviceError::upstream)
    }

    /// Copies `source`, of the same type and shape, over it: all elements of it and of no other, so that a view is a
    /// sub-range of what it was cut from. The memory is shared with every view, and the copy clears what failed there
    /// before.
    ///
    /// # Errors
    /// Another type, shape or context, memory that the two share, and the device's own. What fails while it is copied is
    /// in the completion.
    pub fn copy_from(&self, source: &Self) -> Result<Completion, DeviceError> {
        source.check_context(&self.context, format_args!("a copy to {}", self.desc))?;
        if source.dtype() != self.dtype() || source.shape() != self.shape() {
            return Err(invalid(format!("{} is copied to {}", source.desc, self.desc)));
        }
        self.fill(source, &[], false)
    }

    /// Copies a checked source. `first` says that nothing was there before.
    fn fill(&self, source: &Self, after: &[Completion], first: bool) -> Result<Completion, DeviceError> {
        let mut earlier = after.to_vec();
        source.after(&mut earlier);
        let (Memory::Full { storage, offset, .. }, Some(from)) = (&self.memory, source.at()) else {
            // Nothing to copy: it ends as its maker does. A device's submissions end in order, so the last one is the one.
            let failed = earlier.iter().find_map(|earlier| earlier.result()?.err());
            let failed = failed.map(|cause| Completion::ready(Err(cause.upstream())));
            return Ok(failed.or(earlier.pop()).unwrap_or_else(|| Completion::ready(Ok(Default::default()))));
        };
        let to = At { buffer: &storage.buffer, desc: &self.desc, offset: *offset };
        let regions = self.desc.regions(*offset);
        if from.buffer.is(to.buffer) {
            let read = from.desc.regions(from.offset);
            if read.iter().any(|read| regions.iter().any(|written| written.overlaps(read))) {
                return Err(invalid(format!("{} is copied to {}, and the two share bytes", from.desc, self.desc)));
            }
        }
        // Held, so that writes are noted in the order in which the device took them.
        let mut ledger = storage.ledger();
        let completion = copy(&*storage.device, from, to, &earlier)?;
        for region in regions {
            if first {
                ledger.made(region, &completion);
            } else {
                ledger.wrote(region, &completion);
            }
        }
        Ok(completion)
    }

    /// Its bytes, row-major, on their way to the host.
    pub fn download_bytes(&self) -> Download<u8> {
        self.downloading()
    }

    /// Its elements, row-major, on their way to the host. Of another type than its own it is refused.
    pub fn download<T: Element + bytemuck::Pod>(&self) -> Download<T> {
        if T::DTYPE != self.dtype() {
            return Download::refused(invalid(format!("{} is downloaded as {}", self.desc, T::DTYPE)));
        }
        self.downloading()
    }

    fn downloading<T>(&self) -> Download<T> {
        let producers = self.producers();
        let (Memory::Full { storage, .. }, Some(from)) = (&self.memory, self.at()) else {
            return Download::empty(producers);
        };
        let (device, bytes) = (&storage.device, self.desc.bytes());
        let fly = || {
            let staging = device.allocate("download", Purpose::Staging, Placement::Readback, bytes as u64)?;
            let desc = Descriptor::new(self.dtype(), self.shape())?;
            let copied = copy(&**device, from, At { buffer: &staging, desc: &desc, offset: 0 }, &producers)?;
            Ok(Download::flying(Arc::clone(device), staging, copied, bytes))
        };
        fly().unwrap_or_else(Download::refused)
    }

    /// Blocks until it is made, and copies its bytes, row-major, into a buffer of the caller's.
    ///
    /// # Errors
    /// A buffer of another size, [`DeviceError::Upstream`] where who made it failed, and the device's own.
    pub fn read_into(&self, into: &mut [u8]) -> Result<(), DeviceError> {
        if into.len() != self.desc.bytes() {
            let (found, bytes) = (into.len(), self.desc.bytes());
            return Err(invalid(format!("{} of {bytes} bytes is read into {found}", self.desc)));
        }
        match &self.memory {
            Memory::Full { storage, offset, .. } if self.desc.layout() == Layout::RowMajor => {
                storage.read(Region::contiguous(*offset, self.desc.bytes()), into)
            }
            _ => {
                into.copy_from_slice(&self.download_bytes().wait()?);
                Ok(())
            }
        }
    }

    /// Adds what a reader comes after.
    pub(super) fn after(&self, after: &mut Vec<Completion>) {
        match &self.memory {
            Memory::Empty(producers) => after.extend_from_slice(producers),
            Memory::Full { storage, offset, .. } if self.desc.layout() == Layout::RowMajor => {
                storage.ledger().reading(Region::contiguous(*offset, self.desc.bytes()), after);
            }
            Memory::Full { storage, offset, .. } => {
                let mut ledger = storage.ledger();
                self.desc.regions(*offset).into_iter().for_each(|region| ledger.reading(region, after));
            }
        }
    }

    /// Where it lies, if it has elements.
    pub(super) fn at(&self) -> Option<At<'_>> {
        match &self.memory {
            Memory::Empty(_) => None,
            Memory::Full { storage, offset, .. } => {
                Some(At { buffer: &storage.buffer, desc: &self.desc, offset: *offset })
            }
        }
    }

    /// That it is of `context`; `who` asks.
    pub(super) fn check_context(&self, context: &ModelContext, who: impl fmt::Display) -> Result<(), DeviceError> {
        if self.context.is(context) {
            return Ok(());
        }
        Err(invalid(format!("tensor {} is of {}, and {who} of {context}", self.desc, self.context)))
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} in {})", self.desc, self.context)
    }
}
