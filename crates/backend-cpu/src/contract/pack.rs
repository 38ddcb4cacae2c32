//! Weights in the order that tiles read them, and K as the stretches that rows are read in.
//!
//! ```text
//! weights [K, N] ──> panels: ┌ columns 0..W, k = 0, 1, .. ┐┌ columns W..2W ┐ ..   the last one filled up with zeros
//! K              ──> segments of at most BLOCK_K: stretches that lie in one piece in a row, ascending
//! ```
//!
//! A sum crosses segments by way of the output: stored, and loaded again, which rounds nothing.

use lanes_core::plan::{Contraction, Precision, Term, bf16_bits};

/// Terms that one segment may read.
pub(super) const MAX_SLOTS: usize = 8;

/// The most k of a segment: with it the panels of one tile stay in the first-level cache while all rows pass by.
pub(super) const BLOCK_K: usize = 512;

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

/// A cache line of `N` elements, so that panels start on one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line<E, const N: usize>([E; N]);

/// Elements in whole cache lines of `N`.
pub(super) struct Lines<E, const N: usize>(Vec<Line<E, N>>);

/// f32 in cache lines.
pub(super) type Floats = Lines<f32, 16>;

/// bfloat16 in cache lines.
pub(super) type Halves = Lines<u16, 32>;

impl<E: Copy, const N: usize> Lines<E, N> {
    /// `len` copies of `value`, rounded up to whole lines.
    fn new(len: usize, value: E) -> Self {
        Self(vec![Line([value; N]); len.div_ceil(N)])
    }

    fn set(&mut self, at: usize, value: E) {
        self.0[at / N].0[at % N] = value;
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        self.0.len() * size_of::<Line<E, N>>()
    }

    /// The first of them.
    pub(super) fn as_ptr(&self) -> *const E {
        self.0.as_ptr().cast()
    }
}

/// Weights as panels of columns: panel `p` starts at element `p * stride`, k follows k at a vector's elements.
pub(super) enum Panels {
    /// As they were given; or rounded, where `narrow` reads the few there are one by one.
    F32(Floats, usize),
    /// Rounded, as their upper halves.
    Bf16(Halves, usize),
}

impl Panels {
    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::F32(lines, _) => lines.bytes(),
            Self::Bf16(lines, _) => lines.bytes(),
        }
    }

    /// Element `at` of panel `panel`, and elements from one panel to the next.
    pub(super) fn at(&self, panel: usize, at: usize) -> (*const u8, usize) {
        // Not past the lines' end: the caller has such an element, so wrapping never happens.
        match *self {
            Self::F32(ref lines, stride) => (lines.as_ptr().wrapping_add(panel * stride + at).cast(), stride),
            Self::Bf16(ref lines, stride) => (lines.as_ptr().wrapping_add(panel * stride + at).cast(), stride),
        }
    }
}

/// Packs `[K, N]` weights, whose length has been checked, as panels of `lanes` columns.
pub(super) fn panels(weights: &[f32], n: usize, lanes: usize, precision: Precision) -> Panels {
    match precision {
        Precision::Bf16 => {
            let (lines, stride) = in_panels(weights, n, lanes, bf16_bits);
            Panels::Bf16(lines, stride)
        }
        _ => {
            let (lines, stride) = in_panels(weights, n, lanes, |weight| weight);
            Panels::F32(lines, stride)
        }
    }
}

fn in_panels<E: Copy, const N: usize>(
    weights: &[f32],
    n: usize,
    lanes: usize,
    of: impl Fn(f32) -> E,
) -> (Lines<E, N>, usize) {
    let k = weights.len() / n;
    // A line more than needed: panels a power of two apart would all fall into the same set of the cache.
    let stride = (k * lanes).next_multiple_of(N) + N;
    let mut data = Lines::new(n.div_ceil(lanes) * stride, of(0.0));
    for (k, row) in weights.chunks_exact(n).enumerate() {
        for (column, &weight) in row.iter().enumerate() {
            data.set(column / lanes * stride + k * lanes + column % lanes, of(weight));
        }
    }
    (data, stride)
}

/// `[K, N]` weights where they are, rounded, for `narrow`.
pub(super) fn unpacked(weights: &[f32], precision: Precision) -> Panels {
    let mut data = Floats::new(weights.len(), 0.0);
    for (at, &weight) in weights.iter().enumerate() {
        data.set(at, precision.round(weight));
    }
    Panels::F32(data, 0)
}

/// The bias in whole vectors. Without one it is -0, which changes no sum.
pub(super) fn bias(contraction: &Contraction, lanes: usize) -> Floats {
    let mut data = Lines::new(contraction.n.next_multiple_of(lanes), -0.0);
    for (column, &value) in contraction.bias.iter().flat_map(|bias| bias.iter()).enumerate() {
        data.set(column, value);
    }
    data
}
