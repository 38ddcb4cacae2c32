//! Weights in the order that tiles read them, and K as the stretches that rows are read in.
//!
//! ```text
//! weights [K, N] ──> panels: ┌ columns 0..W, k = 0, 1, .. ┐┌ columns W..2W ┐ ..   the last one filled up with zeros
//! K              ──> segments of at most BLOCK_K: stretches that lie in one piece in a row, ascending
//! ```
//!
//! A sum crosses segments by way of the output: stored, and loaded again, which rounds nothing.

use lanes_core::plan::{Contraction, Term};

/// Terms that one segment may read.
pub(super) const MAX_SLOTS: usize = 8;

/// The most k of a segment: with it the panels of one tile stay in the first-level cache while all rows pass by.
const BLOCK_K: usize = 512;

/// K elements that lie in one piece in every row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Which of the segment's terms.
    pub slot: usize,
    /// First element, from where the row starts in that term.
    pub offset: usize,
    /// How many, never zero.
    pub len: usize,
}

/// Consecutive k that a tile takes at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Segment {
    /// The first k.
    pub start: usize,
    /// The terms read, by index; at most [`MAX_SLOTS`].
    pub terms: Vec<usize>,
    /// The stretches, k ascending.
    pub runs: Vec<Run>,
}

/// Cuts K into segments; at least one, which is empty when K is zero.
pub(super) fn segments(terms: &[Term]) -> Vec<Segment> {
    let all: usize = terms.iter().map(Term::k).sum();
    // Equal blocks: a short last one would cost a pass over the output for little.
    let block = all.div_ceil(all.div_ceil(BLOCK_K).max(1)).next_multiple_of(8);
    let (mut done, mut open, mut k) = (Vec::new(), Segment::default(), 0);
    for (index, term) in terms.iter().enumerate() {
        // A window whose runs follow one another is one stretch.
        let joined = term.tap_stride == term.tap_len;
        let (count, len) = if joined { (1, term.k()) } else { (term.taps, term.tap_len) };
        for tap in 0..count {
            let mut at = 0;
            while at < len {
                let new_term = open.terms.last() != Some(&index);
                if k - open.start == block || new_term && open.terms.len() == MAX_SLOTS {
                    done.push(std::mem::replace(&mut open, Segment { start: k, ..Segment::default() }));
                    continue;
                }
                if new_term {
                    open.terms.push(index);
                }
                let take = (len - at).min(block - (k - open.start));
                open.runs.push(Run { slot: open.terms.len() - 1, offset: tap * term.tap_stride + at, len: take });
                at += take;
                k += take;
            }
        }
    }
    done.push(open);
    done
}

/// A cache line, so that panels start on one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// f32 of a cache line.
const LINE: usize = 16;

/// f32 in whole cache lines.
pub(super) struct Lines(Vec<Line>);

impl Lines {
    /// `len` copies of `value`, rounded up to whole lines.
    fn new(len: usize, value: f32) -> Self {
        Self(vec![Line([value; LINE]); len.div_ceil(LINE)])
    }

    fn set(&mut self, at: usize, value: f32) {
        self.0[at / LINE].0[at % LINE] = value;
    }

    /// How many f32 there are.
    pub(super) fn len(&self) -> usize {
        self.0.len() * LINE
    }

    /// The first of them.
    pub(super) fn as_ptr(&self) -> *const f32 {
        self.0.as_ptr().cast()
    }
}

/// Weights as panels of `lanes` columns.
pub(super) struct Panels {
    /// Panel `p` starts at element `p * stride`; k follows k at `lanes` elements.
    pub data: Lines,
    /// Elements between panels.
    pub stride: usize,
}

/// Packs `[K, N]` weights, whose length has been checked.
pub(super) fn panels(weights: &[f32], n: usize, lanes: usize) -> Panels {
    let k = weights.len() / n;
    // A line more than needed: panels a power of two apart would all fall into the same set of the cache.
    let stride = (k * lanes).next_multiple_of(LINE) + LINE;
    let mut data = Lines::new(n.div_ceil(lanes) * stride, 0.0);
    for (k, row) in weights.chunks_exact(n).enumerate() {
        for (column, &weight) in row.iter().enumerate() {
            data.set(column / lanes * stride + k * lanes + column % lanes, weight);
        }
    }
    Panels { data, stride }
}

/// `[K, N]` weights as they are, for `narrow`.
pub(super) fn unpacked(weights: &[f32]) -> Panels {
    let mut data = Lines::new(weights.len(), 0.0);
    for (at, &weight) in weights.iter().enumerate() {
        data.set(at, weight);
    }
    Panels { data, stride: 0 }
}

/// The bias in whole vectors. Without one it is -0, which changes no sum.
pub(super) fn bias(contraction: &Contraction, lanes: usize) -> Lines {
    let mut data = Lines::new(contraction.n.next_multiple_of(lanes), -0.0);
    for (column, &value) in contraction.bias.iter().flat_map(|bias| bias.iter()).enumerate() {
        data.set(column, value);
    }
    data
}
