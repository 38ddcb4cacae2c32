//! Commands over regions, as a plan.
//!
//! `session.record(key, |commands| fill, copy, dispatch, contract, fragment) --> Recording --check--> replay`
//!
//! - Every store is one storage of the plan, however many regions of it are used: two slices of one memory are ordered
//!   exactly when they share a byte.
//! - A kernel sees the bytes of its region, from its first to its last: other bytes of the memory are out of its reach.
//! - Order is inferred from declared access; what the commands say in program order is what a replay gives.
//! - Not here: what a plan may say (`plan::Plan::check`), and running it (`replay`).

use super::kernels::{Kernel, Numbers, buffers};
use super::region::{Kind, Life, Region, Store, Use, invalid};
use crate::device::{Device, DeviceError};
use crate::plan::{
    Activation, Argument, Command, Contraction, KernelId, Plan, Precision, Scalar, Storage, StorageId, Term,
    WINDOW_ALIGN,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A plan, and the memory that each of its storages stands for.
#[derive(Clone, Default)]
pub(super) struct Recording {
    pub plan: Plan,
    /// By storage.
    pub stores: Vec<Arc<Store>>,
}

/// Where a recording is made for; without one it is for any device.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    /// Fresh memory for what a fragment keeps between replays: label, bytes, and whether the host sees it.
    pub memory: &'a dyn Fn(&str, usize, bool) -> Result<Region, DeviceError>,
    pub device: &'a dyn Device,
}

/// What a recording says, command by command.
pub struct Commands<'a> {
    /// The session's, if there is one, and the recording's own, for scratch.
    lives: Vec<Arc<Life>>,
    pub(super) host: Option<Host<'a>>,
    pub(super) recording: Recording,
    /// Of the next command.
    label: Option<String>,
    /// Storages by the addresses of their stores, which `recording` keeps.
    storages: BTreeMap<usize, StorageId>,
    kernels: BTreeMap<usize, KernelId>,
}

/// One operand of a contraction, `K` elements for every position: row `p` of a region, or the window of a convolution
/// over channels-last data, which is read in place. Counts are f32 elements.
#[derive(Clone, Debug)]
pub struct Window {
    /// Where it reads; bytes that lie end to end.
    pub region: Region,
    /// The first element.
    pub offset: usize,
    /// Elements between positions.
    pub position_stride: usize,
    /// Runs of a window.
    pub taps: usize,
    /// Elements between runs.
    pub tap_stride: usize,
    /// Elements of a run.
    pub tap_len: usize,
}

/// `out[p] = activation(left[p] · weights + bias)` for each row `p` of `out`, in f32.
#[derive(Clone, Debug)]
pub struct Product {
    left: Vec<Left>,
    weights: Region,
    bias: Option<Region>,
    activation: Activation,
    precision: Precision,
    out: Region,
}

#[derive(Clone, Debug)]
enum Left {
    Rows(Region),
    Window(Window),
}

impl Product {
    /// Rows of `left`, times `weights` (all of a weight storage, `[K, N]`), to rows of `out`: `K` and `N` f32 each.
    pub fn new(left: &Region, weights: &Region, out: &Region) -> Self {
        let (left, activation) = (vec![Left::Rows(left.clone())], Activation::None);
        let precision = Precision::F32;
        Self { left, weights: weights.clone(), bias: None, activation, precision, out: out.clone() }
    }

    /// The same over windows of a convolution.
    pub fn windows(left: Window, weights: &Region, out: &Region) -> Self {
        Self { left: vec![Left::Window(left)], ..Self::new(out, weights, out) }
    }

    /// Continues `K` with rows of another region.
    #[must_use]
    pub fn then(mut self, left: &Region) -> Self {
        self.left.push(Left::Rows(left.clone()));
        self
    }

    /// Adds `bias` (all of a weight storage, `[N]`) to every row.
    #[must_use]
    pub fn bias(mut self, bias: &Region) -> Self {
        self.bias = Some(bias.clone());
        self
    }

    /// Applies `activation` last.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Rounds rows and weights to `precision` before they are multiplied.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }
}

impl<'a> Commands<'a> {
    pub(super) fn new(name: &str, life: Option<&Arc<Life>>, host: Option<Host<'a>>) -> Self {
        let own = Life::new(format!("plan {name}"));
        let lives = life.into_iter().cloned().chain([own]).collect();
        let plan = Plan { name: name.to_string(), ..Plan::default() };
        let recording = Recording { plan, stores: Vec::new() };
        let (storages, kernels) = (BTreeMap::new(), BTreeMap::new());
        Self { lives, host, recording, label: None, storages, kernels }
    }

    /// The recording; its scratch is its own from now on.
    pub(super) fn finish(self) -> Recording {
        self.life().end();
        self.recording
    }

    /// What the next kernel or product is called in errors, profiles and traces; a move is called by its kind.
    pub fn label(&mut self, label: impl Into<String>) -> &mut Self {
        self.label = Some(label.into());
        self
    }

    /// Memory that lives within one replay, for this recording only: undefined before its first write.
    ///
    /// # Errors
    /// No bytes.
    pub fn scratch(&mut self, label: &str, bytes: usize) -> Result<Region, DeviceError> {
        sized(label, bytes)?;
        Ok(Region::whole(Store::new(self.life(), label, bytes, Kind::Scratch)))
    }

    /// Repeats `pattern`, little-endian, over a region whose rows are whole times 4 bytes.
    ///
    /// # Errors
    /// A region that is foreign, stale or weights.
    pub fn fill(&mut self, to: &Region, pattern: u32) -> Result<(), DeviceError> {
        let to = (self.written(to)?, to.at);
        self.push(Command::Fill { to, pattern });
        Ok(())
    }

    /// Copies `from` to `to`: rows to rows of the same size, or as many bytes end to end to or from rows.
    ///
    /// # Errors
    /// A region that is foreign, stale, or weights and written; different sizes.
    pub fn copy(&mut self, from: &Region, to: &Region) -> Result<(), DeviceError> {
        let ids = (self.storage(from)?, self.written(to)?);
        if from.bytes() != to.bytes() {
            return Err(invalid(format!(
                "{} bytes of region {} are copied to {} of region {}",
                from.bytes(),
                from.label(),
                to.bytes(),
                to.label()
            )));
        }
        // One that lies end to end takes the other's rows.
        let (from, to) = match (from.is_contiguous(), to.is_contiguous()) {
            (true, false) => (from.as_rows(to.row_bytes())?.at, to.at),
            (false, true) => (from.at, to.as_rows(from.row_bytes())?.at),
            (true, true) => (from.at.joined(), to.at.joined()),
            (false, false) => (from.at, to.at),
        };
        self.push(Command::Copy { from: (ids.0, from), to: (ids.1, to) });
        Ok(())
    }

    /// Launches `kernel`: `workload` decides how many workgroups there are, `scalars` and `regions` are its arguments,
    /// scalars and buffers each in their order. A buffer starts at the region's first byte and ends after its last; a
    /// region in rows is addressed by the distance of its rows.
    ///
    /// # Errors
    /// Numbers that do not fit the kernel's own list, another number of regions than it has buffers, a region that is
    /// foreign, stale, misaligned, or weights and written.
    pub fn dispatch<'n>(
        &mut self,
        kernel: &Kernel,
        workload: impl Into<Numbers<'n>>,
        scalars: impl Into<Numbers<'n>>,
        regions: &[Use],
    ) -> Result<(), DeviceError> {
        let workload = workload.into().resolve(kernel, true)?;
        let mut scalars = scalars.into().resolve(kernel, false)?.into_iter();
        let names = buffers(kernel);
        if names.len() != regions.len() {
            let (found, expected) = (regions.len(), names.len());
            return Err(invalid(format!(
                "kernel {}: {found} regions given, it has {expected} buffers: {}",
                kernel.name(),
                names.join(", ")
            )));
        }
        let mut regions = regions.iter();
        let arguments = kernel.image().parameters.iter().map(|parameter| {
            if parameter.kind == loom_compiler::ir::ParameterKind::Buffer {
                regions.next().map_or_else(|| Ok(Argument::Scalar(Scalar::Seats)), |region| self.buffer(region))
            } else {
                Ok(Argument::Scalar(scalars.next().unwrap_or(Scalar::Bits(0))))
            }
        });
        let arguments = arguments.collect::<Result<_, DeviceError>>()?;
        let label = self.label.take().unwrap_or_else(|| kernel.name().to_string());
        let kernel = self.kernel(kernel.image());
        self.push(Command::Dispatch { label, kernel, workload, arguments });
        Ok(())
    }

    /// A matrix product, or a convolution over channels-last data.
    ///
    /// # Errors
    /// A region that is foreign, stale or not whole f32s; weights or a bias that are no weight storage, or part of one.
    pub fn contract(&mut self, product: &Product) -> Result<(), DeviceError> {
        let out = &product.out;
        let n = floats(out, out.row_bytes())?;
        let terms = product.left.iter().map(|left| self.term(left, out)).collect::<Result<_, _>>()?;
        let contraction = Contraction {
            label: self.label.take().unwrap_or_else(|| format!("product with {}", product.weights.label())),
            terms,
            weights: self.weights(&product.weights)?,
            bias: product.bias.as_ref().map(|bias| self.weights(bias)).transpose()?,
            precision: product.precision,
            activation: product.activation,
            positions: out.rows(),
            n,
            out: self.written(out)?,
            out_offset: floats(out, out.at.offset)?,
            out_position_stride: floats(out, out.at.stride)?,
        };
        self.push(Command::Contract(contraction));
        Ok(())
    }

    fn term(&mut self, left: &Left, out: &Region) -> Result<Term, DeviceError> {
        match left {
            Left::Rows(region) => {
                if region.rows() != out.rows() {
                    let (found, rows) = (region.rows(), out.rows());
                    let (label, out) = (region.label(), out.label());
                    return Err(invalid(format!("{found} rows of region {label} give {rows} rows of region {out}")));
                }
                let len = floats(region, region.row_bytes())?;
                Ok(Term {
                    storage: self.storage(region)?,
                    offset: floats(region, region.at.offset)?,
                    position_stride: floats(region, region.at.stride)?,
                    taps: 1,
                    tap_stride: len,
                    tap_len: len,
                })
            }
            Left::Window(window) => {
                let region = &window.region;
                let at = region.contiguous("is read in windows")?;
                let Window { offset, position_stride, taps, tap_stride, tap_len, .. } = *window;
                let end = || {
                    let last = out.rows().checked_sub(1)?.checked_mul(position_stride)?;
                    let tap = taps.checked_sub(1)?.checked_mul(tap_stride)?;
                    offset.checked_add(last)?.checked_add(tap)?.checked_add(tap_len)?.checked_mul(4)
                };
                if end().is_none_or(|end| end > at.row_bytes) {
                    let (label, bytes) = (region.label(), at.row_bytes);
                    let said = format!("{taps} runs of {tap_len}, {tap_stride} apart, from {offset}");
                    return Err(invalid(format!(
                        "windows of {said} at {} positions {position_stride} apart end past region {label} of {bytes} \
                         bytes",
                        out.rows()
                    )));
                }
                let offset = floats(region, at.offset)? + offset;
                Ok(Term { storage: self.storage(region)?, offset, position_stride, taps, tap_stride, tap_len })
            }
        }
    }

    fn buffer(&mut self, used: &Use) -> Result<Argument, DeviceError> {
        let Use { region, access } = used;
        let storage = if access.writes() { self.written(region)? } else { self.storage(region)? };
        let (start, end) = (region.at.offset, region.at.end());
        if start % WINDOW_ALIGN != 0 {
            let label = region.label();
            return Err(invalid(format!(
                "region {label} from byte {start} on: what a kernel sees starts on multiples of {WINDOW_ALIGN}"
            )));
        }
        let window = ((start, end) != (0, region.store.bytes)).then_some(start..end);
        if window.is_some() && matches!(region.store.kind, Kind::Scratch | Kind::Named) {
            let label = region.label();
            return Err(invalid(format!(
                "part of region {label}: a kernel sees scratch, and what varies by seat, whole; memory that it is to see \
                 in parts is allocated"
            )));
        }
        Ok(Argument::Buffer { storage, window, uses: vec![(region.at, *access)] })
    }

    fn weights(&self, region: &Region) -> Result<Arc<[f32]>, DeviceError> {
        self.check(region)?;
        let label = region.label();
        let Kind::Weights(weights) = &region.store.kind else {
            return Err(invalid(format!("region {label} is no weight storage: weights never change")));
        };
        if region.at.joined() != (crate::plan::Region::contiguous(0, region.store.bytes)) {
            return Err(invalid(format!("part of region {label}: the weights of a product are all of a storage")));
        }
        let whole = || invalid(format!("region {label} of {} bytes is not whole f32s", region.store.bytes));
        weights.floats().cloned().ok_or_else(whole)
    }

    pub(super) fn life(&self) -> &Arc<Life> {
        self.lives.last().expect("made with the recording")
    }

    fn check(&self, region: &Region) -> Result<(), DeviceError> {
        // What asks is the recording; the session speaks for it.
        match self.lives.as_slice() {
            [session, own] => region.store.check(&[own, session]),
            lives => region.store.check(&lives.iter().collect::<Vec<_>>()),
        }
    }

    pub(super) fn written(&mut self, region: &Region) -> Result<StorageId, DeviceError> {
        if matches!(region.store.kind, Kind::Weights(_)) {
            self.check(region)?;
            return Err(invalid(format!("region {} is weights, which are never written", region.label())));
        }
        self.storage(region)
    }

    /// The storage of the plan that a region lies in.
    pub(super) fn storage(&mut self, region: &Region) -> Result<StorageId, DeviceError> {
        self.check(region)?;
        let store = &region.store;
        // Weights are known by what they hold: fragments of one definition share them.
        let address = match &store.kind {
            Kind::Weights(weights) => Arc::as_ptr(weights) as usize,
            Kind::Memory { .. } | Kind::Scratch | Kind::Named => Arc::as_ptr(store) as usize,
        };
        if let Some(&known) = self.storages.get(&address) {
            return Ok(known);
        }
        let (label, bytes) = (store.label.clone(), store.bytes);
        let bound = self.recording.plan.storages.iter().filter(|s| matches!(s, Storage::Resident { .. })).count();
        let storage = self.recording.plan.storage(match &store.kind {
            Kind::Weights(weights) => Storage::Constant { label, bytes: Arc::clone(weights.bytes()) },
            Kind::Scratch => Storage::Scratch { bytes },
            Kind::Memory { .. } | Kind::Named => Storage::Resident { binding: bound, bytes },
        });
        self.recording.stores.push(Arc::clone(store));
        self.storages.insert(address, storage);
        Ok(storage)
    }

    pub(super) fn kernel(&mut self, image: &Arc<loom_compiler::CpuImage>) -> KernelId {
        let plan = &mut self.recording.plan;
        *self.kernels.entry(Arc::as_ptr(image) as usize).or_insert_with(|| plan.kernel(Arc::clone(image)))
    }

    pub(super) fn push(&mut self, command: Command) {
        // A move is called by its kind; a label given for one is not kept for the next command.
        self.label = None;
        self.recording.plan.commands.push(command);
    }
}

/// That memory called `label` has a size.
pub(super) fn sized(label: &str, bytes: usize) -> Result<(), DeviceError> {
    match bytes {
        0 => Err(invalid(format!("region {label} of 0 bytes: memory has at least one"))),
        _ => Ok(()),
    }
}

/// `bytes` of a region, in f32s.
fn floats(region: &Region, bytes: usize) -> Result<usize, DeviceError> {
    let whole = || invalid(format!("{region:?} is not whole f32s"));
    bytes.is_multiple_of(4).then_some(bytes / 4).ok_or_else(whole)
}
