//! Which tiles cover an output, and in which order.
//!
//! ```text
//! block of rows ─> segment of K ─> group of panels (in the first-level cache) ─> tile of rows
//!       └─> activation over the block, still in cache
//! ```
//!
//! Tiles are chosen by rows and columns alone for speed; no choice shows in the result (`tile`).

use super::pack::{BLOCK_K, MAX_SLOTS, Panels, Run, Segment};
use super::tile::{Kernels, MAX_ROWS, NARROW_ROWS, Tile};
use super::{OutPtr, Packed, TermPtr};
use lanes_core::plan::{Activation, Precision};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Elements of the left operand that a block of rows may have: they stay in the second-level cache.
const BLOCK_ELEMENTS: usize = 64 << 10;
/// Bytes of panels that stay in the first-level cache beside a tile's rows.
const NEAR_BYTES: usize = 16 << 10;
/// Bounds of a block's rows: enough to repay fetching a panel, few enough that its results are still in cache for the
/// activation.
const BLOCK_ROWS: Range<usize> = 64..512;

/// A range cut into `count` parts that differ by at most one.
#[derive(Clone, Copy)]
struct Parts {
    start: usize,
    count: usize,
    /// The length of the shorter ones, and how many are longer.
    len: usize,
    longer: usize,
}

impl Parts {
    fn of(range: &Range<usize>, count: usize) -> Self {
        Self { start: range.start, count, len: range.len() / count, longer: range.len() % count }
    }

    /// Part `i`.
    fn get(&self, i: usize) -> Range<usize> {
        let start = self.start + self.len * i + self.longer.min(i);
        start..start + self.len + usize::from(i < self.longer)
    }
}

/// Into how many row tiles and column groups to cut `rows` by `vectors`.
fn cut(kernels: &Kernels, k: usize, rows: usize, vectors: usize) -> (usize, usize) {
    // In half cycles: a tile step takes one for each multiply-add and each load, and at least the eight that one
    // multiply-add takes to finish; starting a tile takes some more.
    let step = |r: usize, v: usize| k * (r * v).max(r + v).max(8) + 80;
    let cost = |tiles: usize, groups: usize| {
        let (r, more_r) = (rows / tiles, rows % tiles);
        let (v, more_v) = (vectors / groups, vectors % groups);
        (tiles - more_r) * ((groups - more_v) * step(r, v) + more_v * step(r, v + 1))
            + more_r * ((groups - more_v) * step(r + 1, v) + more_v * step(r + 1, v + 1))
    };
    let choices = (1..=rows.min(kernels.tiles.len())).map(|most| {
        let tiles = rows.div_ceil(most);
        // Equal tiles may need fewer rows than `most`, which leaves room for wider ones.
        (tiles, vectors.div_ceil(kernels.tiles[rows.div_ceil(tiles) - 1].len()))
    });
    choices.min_by_key(|&(tiles, groups)| cost(tiles, groups)).unwrap_or((rows, vectors))
}

/// See [`Packed::run_part`].
///
/// # Safety
/// As there.
pub(super) unsafe fn run(packed: &Packed, terms: &[TermPtr], out: OutPtr, rows: Range<usize>, columns: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe {
        match packed.precision {
            Precision::F32 => run_blocks(packed, terms, out, rows, columns, None),
            _ => run_rounded(packed, terms, out, rows, columns),
        }
    }
}

/// [`run`] with room to round in: in a frame of its own, so that who does not round does not pay for as much stack.
///
/// # Safety
/// As [`run`].
#[inline(never)]
unsafe fn run_rounded(packed: &Packed, terms: &[TermPtr], out: OutPtr, rows: Range<usize>, columns: Range<usize>) {
    let mut room: Room = [MaybeUninit::uninit(); NARROW_ROWS * BLOCK_K];
    // SAFETY: the caller's promise.
    unsafe { run_blocks(packed, terms, out, rows, columns, Some(&mut room)) }
}

/// [`run`], with room to round in where operands are rounded.
///
/// # Safety
/// As [`run`].
unsafe fn run_blocks(
    packed: &Packed,
    terms: &[TermPtr],
    out: OutPtr,
    rows: Range<usize>,
    columns: Range<usize>,
    mut room: Option<&mut Room>,
) {
    let block = (BLOCK_ELEMENTS / packed.k.max(1)).clamp(BLOCK_ROWS.start, BLOCK_ROWS.end);
    let blocks = rows.len().div_ceil(block);
    let blocks = Parts::of(&rows, blocks);
    for i in 0..blocks.count {
        let rows = blocks.get(i);
        for (s, segment) in packed.segments.iter().enumerate() {
            let ends = (s == 0, s + 1 == packed.segments.len());
            // SAFETY: as the caller promises, for a part of the rows.
            unsafe { run_segment(packed, segment, ends, (terms, out), &rows, &columns, room.as_deref_mut()) }
        }
        if !matches!(packed.activation, Activation::None | Activation::Relu) {
            // SAFETY: the segments have written these rows and columns.
            unsafe { activate(packed, out, &rows, &columns) }
        }
    }
}

/// Where the rows of one tile start, in each term of a segment and in the output.
struct Starts<const ROWS: usize> {
    terms: [[*const f32; ROWS]; MAX_SLOTS],
    out: [*mut f32; ROWS],
}

impl<const ROWS: usize> Starts<ROWS> {
    fn new() -> Self {
        Self { terms: [[std::ptr::null(); ROWS]; MAX_SLOTS], out: [std::ptr::null_mut(); ROWS] }
    }

    /// Finds them for `rows`.
    ///
    /// # Safety
    /// As [`run`], for these rows.
    #[inline(always)]
    unsafe fn find(&mut self, packed: &Packed, segment: &Segment, terms: &[TermPtr], out: OutPtr, rows: &Range<usize>) {
        let first = packed.row(rows.start);
        // SAFETY: the pointers stay inside what the caller describes: rows of its seats.
        unsafe {
            for (starts, &term) in self.terms.iter_mut().zip(&segment.terms) {
                let base = terms[term].base.add(packed.terms[term].offset);
                let strides = (terms[term].seat_stride, packed.terms[term].position_stride);
                packed.each_row(first, rows.len(), strides, |r, at| starts[r] = base.add(at));
            }
            let base = out.base.add(packed.out_offset);
            let strides = (out.seat_stride, packed.out_position_stride);
            packed.each_row(first, rows.len(), strides, |r, at| self.out[r] = base.add(at));
        }
    }
}

/// Where the operands of one tile's rows in one segment are put when they are rounded.
type Room = [MaybeUninit<f32>; NARROW_ROWS * BLOCK_K];

/// Rounds the operands that `starts` name of `rows` rows into `room`, one row after the other, and lets them name the copy, of which
/// it returns the only stretch.
///
/// # Safety
/// The rows hold the elements that the segment's stretches name.
#[inline(always)]
unsafe fn round<const ROWS: usize>(room: &mut Room, segment: &Segment, starts: &mut Starts<ROWS>, rows: usize) -> Run {
    let len: usize = segment.runs.iter().map(|run| run.len).sum();
    for (r, row) in room.chunks_exact_mut(len.max(1)).take(rows).enumerate() {
        let mut rest = &mut *row;
        for run in &segment.runs {
            let (to, behind) = rest.split_at_mut(run.len);
            // SAFETY: the caller's promise.
            let from = unsafe { std::slice::from_raw_parts(starts.terms[run.slot][r].add(run.offset), run.len) };
            for (to, &from) in to.iter_mut().zip(from) {
                to.write(Precision::Bf16.round(from));
            }
            rest = behind;
        }
        starts.terms[0][r] = row.as_ptr().cast();
    }
    Run { slot: 0, offset: 0, len }
}

/// Adds one segment of K to the sums of `rows` by `columns`; `first` and `last` say where it stands among them.
///
/// # Safety
/// As [`run`].
unsafe fn run_segment(
    packed: &Packed,
    segment: &Segment,
    (first, last): (bool, bool),
    (terms, out): (&[TermPtr], OutPtr),
    rows: &Range<usize>,
    columns: &Range<usize>,
    mut room: Option<&mut Room>,
) {
    let kernels = packed.kernels;
    let relu = packed.activation == Activation::Relu;
    if let Some(narrow) = packed.narrow() {
        let mut starts = Starts::<NARROW_ROWS>::new();
        for start in rows.clone().step_by(NARROW_ROWS) {
            let rows = start..rows.end.min(start + NARROW_ROWS);
            // SAFETY: rows of the caller's; those that fill up a vector repeat its last one.
            unsafe {
                starts.find(packed, segment, terms, out, &rows);
                let whole = room.as_deref_mut().map(|room| round(room, segment, &mut starts, rows.len()));
                for starts in &mut starts.terms[..segment.terms.len()] {
                    let last = starts[rows.len() - 1];
                    starts[rows.len()..].fill(last);
                }
                let (panel, panel_stride) = packed.panels.at(0, segment.start * packed.n);
                narrow(&Tile {
                    runs: whole.as_ref().map_or(&segment.runs, std::slice::from_ref),
                    rows: starts.terms.as_flattened(),
                    height: NARROW_ROWS,
                    stored: rows.len(),
                    panel,
                    panel_stride,
                    out: &starts.out,
                    column: 0,
                    columns: packed.n,
                    bias: packed.bias.as_ptr(),
                    first,
                    last,
                    relu,
                });
            }
        }
        return;
    }
    let mut starts = Starts::<MAX_ROWS>::new();
    let table = if matches!(*packed.panels, Panels::Bf16(..)) { kernels.rounded } else { kernels.tiles };
    let lanes = kernels.lanes;
    let vectors = columns.start / lanes..columns.end.div_ceil(lanes);
    let (tiles, groups) = cut(kernels, packed.k, rows.len(), vectors.len());
    // Where K is short, several groups of panels share the first-level cache, and a tile's rows are found once for all.
    let panel_bytes = packed.k.max(1) * lanes * size_of::<f32>();
    let at_once = (NEAR_BYTES * groups / (panel_bytes * vectors.len())).clamp(1, groups);
    let (tiles, groups) = (Parts::of(rows, tiles), Parts::of(&vectors, groups));
    for near in (0..groups.count).step_by(at_once) {
        for tile in 0..tiles.count {
            let rows = tiles.get(tile);
            // SAFETY: rows of the caller's, whole panels for the weights and the bias. The tile's size is in the table.
            unsafe {
                starts.find(packed, segment, terms, out, &rows);
                let whole = room.as_deref_mut().map(|room| round(room, segment, &mut starts, rows.len()));
                for group in near..groups.count.min(near + at_once) {
                    let vectors = groups.get(group);
                    let column = vectors.start * lanes;
                    let (panel, panel_stride) = packed.panels.at(vectors.start, segment.start * lanes);
                    table[rows.len() - 1][vectors.len() - 1](&Tile {
                        runs: whole.as_ref().map_or(&segment.runs, std::slice::from_ref),
                        rows: starts.terms.as_flattened(),
                        height: MAX_ROWS,
                        stored: rows.len(),
                        panel,
                        panel_stride,
                        out: &starts.out,
                        column,
                        columns: columns.end.min(vectors.end * lanes) - column,
                        bias: packed.bias.as_ptr().add(column),
                        first,
                        last,
                        relu,
                    });
                }
            }
        }
    }
}

/// Applies the activation to results that have been stored.
///
/// # Safety
/// `out` holds initialised elements for `rows` by `columns`, which nothing else touches meanwhile.
unsafe fn activate(packed: &Packed, out: OutPtr, rows: &Range<usize>, columns: &Range<usize>) {
    let apply = |at: usize, len: usize| {
        // SAFETY: the caller's promise; `kernels` are of an instruction set that exists.
        unsafe {
            let base = out.base.add(packed.out_offset + at);
            (packed.kernels.activate)(std::slice::from_raw_parts_mut(base, len), packed.activation);
        }
    };
    // Rows that follow one another are one stretch: short ones would not fill vectors.
    let (mut start, mut len) = (0, 0);
    packed.each_row(packed.row(rows.start), rows.len(), (out.seat_stride, packed.out_position_stride), |_, at| {
        let at = at + columns.start;
        if len > 0 && start + len != at {
            apply(start, len);
            len = 0;
        }
        if len == 0 {
            start = at;
        }
        len += columns.len();
    });
    apply(start, len);
}
