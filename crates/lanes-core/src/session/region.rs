//! Handles to a session's memory.
//!
//! `Region --slice, as_rows, columns--> Region --read, write, read_write--> Use, which commands take`
//!
//! - A handle lies in its memory: whatever makes one checks it.
//! - Memory is its session's. A handle used in another session, or after its memory went, is refused by name.
//! - Weights are the host's bytes, shared and never written.
//! - Not here: what is done with a region (`record`), and bytes going in and out (`replay`).

use crate::device::{Buffer, Completion, DeviceError, Ledger};
use crate::plan::{self, Access};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A session, or one recording in it, as far as its memory is concerned.
#[derive(Debug)]
pub(super) struct Life {
    /// For errors: `session asr`, `plan step`.
    pub name: String,
    ended: AtomicBool,
}

impl Life {
    pub fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, ended: AtomicBool::new(false) })
    }

    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

/// One stretch of memory.
pub(super) struct Store {
    pub label: String,
    pub bytes: usize,
    pub kind: Kind,
    life: Arc<Life>,
    /// Freed, or its session was reset.
    gone: AtomicBool,
}

/// What it is.
pub(super) enum Kind {
    /// Memory of the device, until it goes.
    Memory { buffer: Mutex<Option<Buffer>>, ledger: Mutex<Ledger>, shared: bool },
    /// Host memory, only read.
    Weights(Arc<Weights>),
    /// Memory that lives within one replay.
    Scratch,
    /// Named by a definition, and memory only where that is used.
    Named,
}

/// Bytes or numbers, each made from the other when first asked for.
#[derive(Default)]
pub(super) struct Weights {
    bytes: OnceLock<Arc<[u8]>>,
    floats: OnceLock<Arc<[f32]>>,
}

impl Weights {
    pub fn of_bytes(bytes: Arc<[u8]>) -> Self {
        Self { bytes: OnceLock::from(bytes), floats: OnceLock::new() }
    }

    pub fn of_floats(floats: Arc<[f32]>) -> Self {
        Self { bytes: OnceLock::new(), floats: OnceLock::from(floats) }
    }

    pub fn bytes(&self) -> &Arc<[u8]> {
        self.bytes.get_or_init(|| {
            let floats = self.floats.get().map_or(&[][..], |floats| floats);
            floats.iter().flat_map(|value| value.to_le_bytes()).collect()
        })
    }

    /// `None` where they are not whole numbers of 4 bytes.
    pub fn floats(&self) -> Option<&Arc<[f32]>> {
        if let Some(floats) = self.floats.get() {
            return Some(floats);
        }
        let bytes = self.bytes();
        let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        bytes.len().is_multiple_of(4).then(|| self.floats.get_or_init(|| bytes.chunks_exact(4).map(value).collect()))
    }
}

impl Store {
    pub fn new(life: &Arc<Life>, label: &str, bytes: usize, kind: Kind) -> Arc<Self> {
        let (life, gone) = (Arc::clone(life), AtomicBool::new(false));
        Arc::new(Self { label: label.to_string(), bytes, kind, life, gone })
    }

    /// Its memory goes, unless something submitted still holds it.
    pub fn free(&self) {
        self.gone.store(true, Ordering::Release);
        if let Kind::Memory { buffer, .. } = &self.kind {
            buffer.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// That it may be used by one of `lives`.
    pub fn check(&self, lives: &[&Arc<Life>]) -> Result<(), DeviceError> {
        let (label, own) = (&self.label, &self.life.name);
        if !lives.iter().any(|life| Arc::ptr_eq(life, &self.life)) {
            let asked = lives.last().map_or("nothing", |life| &life.name);
            return Err(invalid(format!("region {label} is of {own}, not of {asked}")));
        }
        if self.life.ended.load(Ordering::Acquire) {
            return Err(invalid(format!("region {label} is stale: {own} has ended")));
        }
        if self.gone.load(Ordering::Acquire) {
            return Err(invalid(format!("region {label} is stale: its memory was freed")));
        }
        Ok(())
    }

    /// Adds to `after` whom a reader of `region` must come after.
    pub fn reading(&self, region: plan::Region, after: &mut Vec<Completion>) {
        if let Kind::Memory { ledger, .. } = &self.kind {
            ledger.lock().unwrap_or_else(PoisonError::into_inner).reading(region, after);
        }
    }

    /// Notes that a submission writes `region`.
    pub fn wrote(&self, region: plan::Region, completion: &Completion) {
        if let Kind::Memory { ledger, .. } = &self.kind {
            ledger.lock().unwrap_or_else(PoisonError::into_inner).wrote(region, completion);
        }
    }

    /// The memory, where it is the device's.
    pub fn buffer(&self) -> Result<Buffer, DeviceError> {
        let held = match &self.kind {
            Kind::Memory { buffer, .. } => buffer.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Kind::Weights(_) | Kind::Scratch | Kind::Named => None,
        };
        held.ok_or_else(|| invalid(format!("region {} is no memory of the device", self.label)))
    }
}

/// Part of a session's memory: a run of bytes, or equally long runs at equal distances (`rows`). Cheap to clone.
#[derive(Clone)]
pub struct Region {
    pub(super) store: Arc<Store>,
    pub(super) at: plan::Region,
}

/// A region, and how a kernel touches it.
#[derive(Clone, Debug)]
pub struct Use {
    pub(super) region: Region,
    pub(super) access: Access,
}

impl Region {
    pub(super) fn whole(store: Arc<Store>) -> Self {
        let at = plan::Region::contiguous(0, store.bytes);
        Self { store, at }
    }

    /// What its memory is called.
    pub fn label(&self) -> &str {
        &self.store.label
    }

    /// All bytes it covers.
    pub fn bytes(&self) -> usize {
        self.at.bytes()
    }

    /// Its first byte, from the start of its memory.
    pub fn start(&self) -> usize {
        self.at.offset
    }

    /// How many runs.
    pub fn rows(&self) -> usize {
        self.at.rows
    }

    /// Bytes of each run.
    pub fn row_bytes(&self) -> usize {
        self.at.row_bytes
    }

    /// Whether its bytes lie end to end.
    pub fn is_contiguous(&self) -> bool {
        self.at.joined().rows == 1
    }

    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store) && self.at.overlaps(&other.at)
    }

    /// Bytes `range` of it.
    ///
    /// # Errors
    /// An empty range, one that ends past it, and a region whose bytes do not lie end to end.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, DeviceError> {
        let (Range { start, end }, at) = (range, self.contiguous("is sliced")?);
        if start >= end || end > at.row_bytes {
            return Err(invalid(format!(
                "bytes {start}..{end} of region {}, which has {}: a slice lies inside and is not empty",
                self.label(),
                at.row_bytes
            )));
        }
        Ok(self.with(plan::Region::contiguous(at.offset + start, end - start)))
    }

    /// The same bytes as rows of `row_bytes`, to take columns of, or to be the rows of a contraction.
    ///
    /// # Errors
    /// Bytes that are not whole rows, and a region whose bytes do not lie end to end.
    pub fn as_rows(&self, row_bytes: usize) -> Result<Self, DeviceError> {
        let at = self.contiguous("is cut into rows")?;
        if row_bytes == 0 || at.row_bytes % row_bytes != 0 {
            let (label, bytes) = (self.label(), at.row_bytes);
            return Err(invalid(format!("region {label} of {bytes} bytes is not whole rows of {row_bytes}")));
        }
        let rows = at.row_bytes / row_bytes;
        Ok(self.with(plan::Region { offset: at.offset, row_bytes, stride: row_bytes, rows }))
    }

    /// Bytes `range` of each of its rows.
    ///
    /// # Errors
    /// An empty range, and one that ends past a row.
    pub fn columns(&self, range: Range<usize>) -> Result<Self, DeviceError> {
        let (Range { start, end }, at) = (range, self.at);
        if start >= end || end > at.row_bytes {
            return Err(invalid(format!(
                "columns {start}..{end} of region {}, whose rows have {} bytes: columns lie inside and are not empty",
                self.label(),
                at.row_bytes
            )));
        }
        Ok(self.with(plan::Region { offset: at.offset + start, row_bytes: end - start, ..at }))
    }

    /// It is only read.
    pub fn read(&self) -> Use {
        self.used(Access::Read)
    }

    /// All of it is written, nothing read.
    pub fn write(&self) -> Use {
        self.used(Access::Write)
    }

    /// It is read and written.
    pub fn read_write(&self) -> Use {
        self.used(Access::ReadWrite)
    }

    /// It is updated by atomics in any order.
    pub fn accumulate(&self) -> Use {
        self.used(Access::Accumulate)
    }

    fn used(&self, access: Access) -> Use {
        Use { region: self.clone(), access }
    }

    fn with(&self, at: plan::Region) -> Self {
        Self { store: Arc::clone(&self.store), at }
    }

    /// Itself as one run, or that it is not `what` because it has several.
    pub(super) fn contiguous(&self, what: &str) -> Result<plan::Region, DeviceError> {
        let at = self.at.joined();
        if at.rows == 1 {
            return Ok(at);
        }
        let plan::Region { row_bytes, stride, rows, .. } = at;
        let label = self.label();
        Err(invalid(format!("region {label} {what}, and is {rows} rows of {row_bytes} bytes that lie {stride} apart")))
    }

    /// Each run: its start in the store.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let plan::Region { offset, row_bytes, stride, rows } = self.at.joined();
        (0..rows).map(move |row| offset + row * stride..offset + row * stride + row_bytes)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan::Region { offset, row_bytes, stride, rows } = self.at;
        write!(f, "Region({}: {rows} x {row_bytes} bytes from {offset}, {stride} apart)", self.label())
    }
}

pub(super) fn invalid(what: String) -> DeviceError {
    DeviceError::Invalid { what }
}
