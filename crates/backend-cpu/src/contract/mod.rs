//! `out = activation(left · weights + bias)` in f32, with the left operand read in place, or rounded to bfloat16 on the way.
//!
//! ```text
//! Contraction ──Packed::new──> Packed ──run(term pointers, seats, out pointer)──> rows of results
//!                 weights as panels            row = (seat, position)
//! ```
//!
//! - Every output is *one* chain of fused multiply-adds over ascending k from +0, then one addition of the bias, then
//!   the activation. Its bits are the same for every count of seats, tile, thread, split of rows or columns, and
//!   instruction set. That holds for rounded operands too: weights are stored narrow and widened as they are read. The
//!   instruction that multiplies pairs of bfloat16 (`vdpbf16ps`) would give other bits, and other ones where it lacks.
//! - Running allocates nothing and takes no lock.
//! - Not here: which thread runs what, and where storages lie.
//!
//! | file | holds |
//! | --- | --- |
//! | `pack` | weights as panels, K as stretches |
//! | `run` | which tiles cover an output |
//! | `tile` | one register tile, over a small vector trait |
//! | `portable`, `avx2`, `avx512` | the trait, and the tiles each has registers for |
//! | `narrow` | tiles of few columns, rows as the elements of a vector |
//! | `activate` | activations |

mod activate;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod narrow;
mod pack;
mod portable;
mod run;
#[cfg(test)]
mod tests;
mod tile;

use crate::isa::Isa;
use lanes_core::device::DeviceError;
use lanes_core::plan::{Activation, Contraction, Precision, Term};
use std::ops::Range;
use std::sync::Arc;

/// Where a term's storage lies for the seats of one call.
#[derive(Clone, Copy, Debug)]
pub struct TermPtr {
    /// Seat 0 of the storage (not of the term: its offset is added when running).
    pub base: *const f32,
    /// Elements between seats; 0 for a constant or shared input.
    pub seat_stride: usize,
}

/// Where the result's storage lies for the seats of one call.
#[derive(Clone, Copy, Debug)]
pub struct OutPtr {
    /// Seat 0 of the storage (not of the result: its offset is added when running).
    pub base: *mut f32,
    /// Elements between seats.
    pub seat_stride: usize,
}

/// A term's storage as a slice, for [`Packed::run_checked`].
#[derive(Clone, Copy, Debug)]
pub struct TermSlice<'a> {
    /// The storage, from seat 0.
    pub data: &'a [f32],
    /// Elements between seats; 0 for a constant or shared input.
    pub seat_stride: usize,
}

/// A contraction made ready to run: checked, its weights packed for one instruction set.
pub struct Packed {
    label: String,
    isa: Isa,
    kernels: &'static tile::Kernels,
    terms: Vec<Term>,
    segments: Vec<pack::Segment>,
    /// Shared by contractions that apply the same weights elsewhere.
    panels: Arc<pack::Panels>,
    bias: pack::Floats,
    activation: Activation,
    precision: Precision,
    k: usize,
    n: usize,
    positions: usize,
    out_offset: usize,
    out_position_stride: usize,
    /// Elements of a seat that each term reaches, and the result.
    term_extents: Vec<usize>,
    out_extent: usize,
}

/// One past the last of `count` runs of `len` elements, `stride` apart from `offset`; `None` when that overflows.
fn extent(offset: usize, strides: &[(usize, usize)], len: usize) -> Option<usize> {
    if len == 0 || strides.iter().any(|&(count, _)| count == 0) {
        return Some(0);
    }
    let last = strides.iter().try_fold(offset, |at, &(count, stride)| at.checked_add((count - 1).checked_mul(stride)?));
    // In bytes it must fit an offset from a pointer, too.
    last?.checked_add(len).filter(|&end| end <= isize::MAX as usize / size_of::<f32>())
}

impl Packed {
    /// Checks `contraction` and packs its weights for the fastest instruction set of this machine.
    ///
    /// # Errors
    /// `Invalid` when lengths of weights or bias do not fit K and N, when N is zero, when extents overflow, when
    /// positions of the result overlap, or when the activation is not known.
    pub fn new(contraction: &Contraction) -> Result<Self, DeviceError> {
        Self::with_isa(contraction, Isa::best())
    }

    /// [`new`](Self::new) for one instruction set.
    ///
    /// # Errors
    /// Also `Unsupported` when this machine lacks `isa`.
    pub fn with_isa(contraction: &Contraction, isa: Isa) -> Result<Self, DeviceError> {
        Self::build(contraction, isa, None)
    }

    /// [`new`](Self::new) for a contraction that applies the weights of `other` elsewhere: they are packed once.
    ///
    /// # Errors
    /// Also `Invalid` when K, N or the precision are not those of `other`. That the weights are is for the caller to know.
    pub fn sharing(contraction: &Contraction, other: &Self) -> Result<Self, DeviceError> {
        Self::build(contraction, other.isa, Some(other))
    }

    fn build(contraction: &Contraction, isa: Isa, other: Option<&Self>) -> Result<Self, DeviceError> {
        let invalid =
            |what: String| DeviceError::Invalid { what: format!("contraction {}: {what}", contraction.label) };
        if !isa.available() {
            return Err(DeviceError::Unsupported { what: format!("instruction set {isa} on this machine") });
        }
        let kernels = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::KERNELS,
            _ => &portable::KERNELS,
        };
        let c = contraction;
        if c.n == 0 {
            return Err(invalid("no columns".into()));
        }
        let mut k = 0usize;
        let mut term_extents = Vec::with_capacity(c.terms.len());
        for (i, term) in c.terms.iter().enumerate() {
            let strides = [(c.positions, term.position_stride), (term.taps, term.tap_stride)];
            let reach = extent(term.offset, &strides, term.tap_len);
            let total = term.taps.checked_mul(term.tap_len).and_then(|len| k.checked_add(len));
            let (Some(reach), Some(total)) = (reach, total) else {
                return Err(invalid(format!("term {i} reaches past the address space: {term:?}")));
            };
            term_extents.push(reach);
            k = total;
        }
        if k.checked_mul(c.n) != Some(c.weights.len()) {
            return Err(invalid(format!("{} weights, expected {k} x {}", c.weights.len(), c.n)));
        }
        if let Some(bias) = c.bias.as_ref().filter(|bias| bias.len() != c.n) {
            return Err(invalid(format!("a bias of {}, expected {}", bias.len(), c.n)));
        }
        if c.positions > 1 && c.out_position_stride < c.n {
            let found = c.out_position_stride;
            return Err(invalid(format!("results {found} elements apart, expected at least {}", c.n)));
        }
        if !matches!(c.precision, Precision::F32 | Precision::Bf16) {
            return Err(invalid(format!("precision {} is not known", c.precision)));
        }
        if !activate::known(c.activation) {
            return Err(invalid(format!("activation {:?} is not known", c.activation)));
        }
        let panels = match other {
            Some(other) if (other.k, other.n, other.precision) == (k, c.n, c.precision) => Arc::clone(&other.panels),
            Some(other) => {
                let (here, there) = (c.precision, other.precision);
                return Err(invalid(format!("{k} x {} {here} weights, shared {} x {} {there}", c.n, other.k, other.n)));
            }
            None if c.n <= kernels.narrow.len() => Arc::new(pack::unpacked(&c.weights, c.precision)),
            None => Arc::new(pack::panels(&c.weights, c.n, kernels.lanes, c.precision)),
        };
        let out_extent = extent(c.out_offset, &[(c.positions, c.out_position_stride)], c.n)
            .ok_or_else(|| invalid("the result reaches past the address space".into()))?;
        Ok(Self {
            label: c.label.clone(),
            isa,
            kernels,
            terms: c.terms.clone(),
            segments: pack::segments(&c.terms),
            panels,
            bias: pack::bias(c, kernels.lanes),
            activation: c.activation,
            precision: c.precision,
            k,
            n: c.n,
            positions: c.positions,
            out_offset: c.out_offset,
            out_position_stride: c.out_position_stride,
            term_extents,
            out_extent,
        })
    }

    /// The node it came from.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The instruction set it was packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// K: the length of every sum.
    pub fn k(&self) -> usize {
        self.k
    }

    /// N: columns.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Positions per seat: `seats * positions` rows in all.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Columns of a panel: what splits of the columns must be multiples of.
    pub fn panel(&self) -> usize {
        self.kernels.lanes
    }

    /// Bytes that the packed weights take, however many share them.
    pub fn weight_bytes(&self) -> usize {
        self.panels.bytes()
    }

    /// Bytes that the packed weights and the bias take.
    pub fn bytes(&self) -> usize {
        self.weight_bytes() + self.bias.bytes()
    }

    /// Multiplications and additions of a row: a measure of work for whoever splits it.
    pub fn flops_per_row(&self) -> usize {
        2 * self.k * self.n
    }

    /// Elements of a seat that term `term` reaches, from the storage's seat.
    pub fn term_extent(&self, term: usize) -> usize {
        self.term_extents[term]
    }

    /// Elements of a seat that the result reaches, from the storage's seat.
    pub fn out_extent(&self) -> usize {
        self.out_extent
    }

    /// Computes all rows of `seats` seats.
    ///
    /// # Safety
    /// - `terms` has one entry for each term of the contraction, in order; each may be read, for every seat `s`, at
    ///   elements `s * seat_stride ..` up to [`term_extent`](Self::term_extent).
    /// - `out` may be written for every seat up to [`out_extent`](Self::out_extent), seats do not overlap in what
    ///   is written, nothing written is read through `terms`, and nobody else touches it meanwhile.
    pub unsafe fn run(&self, terms: &[TermPtr], seats: usize, out: OutPtr) {
        // SAFETY: the caller's promise covers every row and column.
        unsafe { self.run_part(terms, out, 0..seats * self.positions, 0..self.n) }
    }

    /// Computes some rows and columns, so that threads may share a call. Row `s * positions + p` is position `p` of
    /// seat `s`; it and column `c` are written for each of `rows` and `columns`, nothing else is.
    ///
    /// # Panics
    /// When `columns` are not in `0..N`, or begin, or end short of N, elsewhere than at a multiple of
    /// [`panel`](Self::panel); or when `terms` are too few.
    ///
    /// # Safety
    /// As [`run`](Self::run), for the seats and columns named.
    pub unsafe fn run_part(&self, terms: &[TermPtr], out: OutPtr, rows: Range<usize>, columns: Range<usize>) {
        assert_eq!(terms.len(), self.terms.len(), "terms of contraction {}", self.label);
        let border = |at: usize| at.is_multiple_of(self.panel()) || at == self.n;
        assert!(
            columns.end <= self.n && border(columns.start) && border(columns.end),
            "columns {columns:?} of {} in panels of {}",
            self.n,
            self.panel()
        );
        if rows.is_empty() || columns.is_empty() {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { run::run(self, terms, out, rows, columns) }
    }

    /// [`run`](Self::run) over slices, checked.
    ///
    /// # Errors
    /// `Invalid` when a slice is too short, the number of terms is wrong, or seats of the result overlap.
    pub fn run_checked(
        &self,
        terms: &[TermSlice<'_>],
        seats: usize,
        out: &mut [f32],
        seat_stride: usize,
    ) -> Result<(), DeviceError> {
        let invalid = |what: String| DeviceError::Invalid { what: format!("contraction {}: {what}", self.label) };
        if terms.len() != self.terms.len() {
            return Err(invalid(format!("{} terms, expected {}", terms.len(), self.terms.len())));
        }
        let fits = |len: usize, stride: usize, reach: usize| {
            seats == 0 || (seats - 1).checked_mul(stride).and_then(|at| at.checked_add(reach)).is_some_and(|e| e <= len)
        };
        for (i, (term, &reach)) in terms.iter().zip(&self.term_extents).enumerate() {
            if !fits(term.data.len(), term.seat_stride, reach) {
                return Err(invalid(format!("term {i} has {} elements, too few for {seats} seats", term.data.len())));
            }
        }
        if !fits(out.len(), seat_stride, self.out_extent) {
            return Err(invalid(format!("the result has {} elements, too few for {seats} seats", out.len())));
        }
        if seats > 1 && self.out_extent - self.out_offset.min(self.out_extent) > seat_stride {
            return Err(invalid(format!("seats of the result {seat_stride} elements apart overlap")));
        }
        let terms: Vec<_> =
            terms.iter().map(|term| TermPtr { base: term.data.as_ptr(), seat_stride: term.seat_stride }).collect();
        // SAFETY: lengths have been checked for every seat; `out` is borrowed mutably, so nothing aliases it.
        unsafe { self.run(&terms, seats, OutPtr { base: out.as_mut_ptr(), seat_stride }) };
        Ok(())
    }

    /// The tile for few columns, if there are few and the instruction set has one.
    fn narrow(&self) -> Option<tile::TileFn> {
        self.kernels.narrow.get(self.n - 1).copied()
    }

    /// The seat and the position of a row.
    #[inline(always)]
    fn row(&self, row: usize) -> (usize, usize) {
        // Mostly there is one position, and a division costs as much as several vectors.
        if self.positions == 1 { (row, 0) } else { (row / self.positions, row % self.positions) }
    }

    /// Calls `f(i, element)` for each of `count` rows from `(s, p)`: where it starts, by strides of seats and positions.
    #[inline(always)]
    fn each_row(
        &self,
        (mut s, mut p): (usize, usize),
        count: usize,
        (seat, position): (usize, usize),
        mut f: impl FnMut(usize, usize),
    ) {
        for i in 0..count {
            f(i, s * seat + p * position);
            p += 1;
            if p == self.positions {
                (s, p) = (s + 1, 0);
            }
        }
    }
}
