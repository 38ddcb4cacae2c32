//! Which tiles cover an output, and in which order.
//!
//! ```text
//! block of rows ─> segment of K ─> group of panels (in the first-level cache) ─> tile of rows
//!       └─> activation over the block, still in cache
//! ```
//!
//! Tiles are chosen by rows and columns alone for speed; no choice shows in the result (`tile`).

use super::pack::{MAX_SLOTS, Segment};
use super::tile::{Kernels, MAX_ROWS, Tile};
use super::{OutPtr, Packed, TermPtr};
use lanes_core::plan::Activation;
use std::ops::Range;

/// Elements of the left operand that a block of rows may have: they stay in the second-level cache.
const BLOCK_ELEMENTS: usize = 64 << 10;
/// Bounds of a block's rows: enough to repay fetching a panel, few enough that its results are still in cache for the
/// activation.
const BLOCK_ROWS: Range<usize> = 64..512;

/// `parts` parts of `range` that differ by at most one: part `i`.
fn part(range: &Range<usize>, parts: usize, i: usize) -> Range<usize> {
    let at = |i: usize| range.start + range.len() / parts * i + (range.len() % parts).min(i);
    at(i)..at(i + 1)
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
        (
            tiles,
            vectors.div_ceil(kernels.tiles[rows.div_ceil(tiles) - 1].len()),
        )
    });
    choices
        .min_by_key(|&(tiles, groups)| cost(tiles, groups))
        .unwrap_or((rows, vectors))
}

/// See [`Packed::run_part`].
///
/// # Safety
/// As there.
pub(super) unsafe fn run(
    packed: &Packed,
    terms: &[TermPtr],
    out: OutPtr,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    let block = (BLOCK_ELEMENTS / packed.k.max(1)).clamp(BLOCK_ROWS.start, BLOCK_ROWS.end);
    let blocks = rows.len().div_ceil(block);
    for i in 0..blocks {
        let rows = part(&rows, blocks, i);
        for (s, segment) in packed.segments.iter().enumerate() {
            let ends = (s == 0, s + 1 == packed.segments.len());
            // SAFETY: as the caller promises, for a part of the rows.
            unsafe { run_segment(packed, segment, ends, terms, out, &rows, &columns) }
        }
        if !matches!(packed.activation, Activation::None | Activation::Relu) {
            // SAFETY: the segments have written these rows and columns.
            unsafe { activate(packed, out, &rows, &columns) }
        }
    }
}

/// Adds one segment of K to the sums of `rows` by `columns`; `first` and `last` say where it stands among them.
///
/// # Safety
/// As [`run`].
unsafe fn run_segment(
    packed: &Packed,
    segment: &Segment,
    (first, last): (bool, bool),
    terms: &[TermPtr],
    out: OutPtr,
    rows: &Range<usize>,
    columns: &Range<usize>,
) {
    let lanes = packed.kernels.lanes;
    let vectors = columns.start / lanes..columns.end.div_ceil(lanes);
    let (tiles, groups) = cut(packed.kernels, packed.k, rows.len(), vectors.len());
    let mut starts = [[std::ptr::null::<f32>(); MAX_ROWS]; MAX_SLOTS];
    for group in 0..groups {
        let vectors = part(&vectors, groups, group);
        let column = vectors.start * lanes;
        for tile in 0..tiles {
            let rows = part(rows, tiles, tile);
            // SAFETY: the pointers made here stay inside what the caller describes: rows of the seats for the terms and
            // the output, whole panels for the weights and the bias. The tile's size is one of the table's.
            unsafe {
                for (starts, &term) in starts.iter_mut().zip(&segment.terms) {
                    let layout = &packed.terms[term];
                    let base = terms[term].base.add(layout.offset);
                    let strides = (terms[term].seat_stride, layout.position_stride);
                    packed.each_row(&rows, strides, |r, at| starts[r] = base.add(at));
                }
                let mut to = [std::ptr::null_mut::<f32>(); MAX_ROWS];
                let base = out.base.add(packed.out_offset + column);
                let strides = (out.seat_stride, packed.out_position_stride);
                packed.each_row(&rows, strides, |r, at| to[r] = base.add(at));
                packed.kernels.tiles[rows.len() - 1][vectors.len() - 1](&Tile {
                    runs: &segment.runs,
                    rows: &starts,
                    panel: packed
                        .panels
                        .data
                        .as_ptr()
                        .add(vectors.start * packed.panels.stride + segment.start * lanes),
                    panel_stride: packed.panels.stride,
                    out: to,
                    columns: columns.end.min(vectors.end * lanes) - column,
                    bias: packed.bias.as_ptr().add(column),
                    first,
                    last,
                    relu: packed.activation == Activation::Relu,
                });
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
    packed.each_row(
        rows,
        (out.seat_stride, packed.out_position_stride),
        |_, at| {
            let at = at + columns.start;
            if len > 0 && start + len != at {
                apply(start, len);
                len = 0;
            }
            if len == 0 {
                start = at;
            }
            len += columns.len();
        },
    );
    apply(start, len);
}
