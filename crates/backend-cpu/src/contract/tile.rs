//! One register tile of a contraction: a few rows by a few vectors of columns, all of a segment of K.
//!
//! ```text
//!            panel v ──load──┐
//! row r ──broadcast a[r,k]───┴─ fma ─> sums[r][v] ── + bias, relu ──> out
//! ```
//!
//! - A sum is one chain of fused multiply-adds, k ascending, from zero or from what the segment before left in `out`.
//!   Which tile, which place in it and which instruction set an output gets never shows in its bits.
//! - Written once over [`Vector`]; an instruction set adds only that trait and a table of tile sizes.
//! - Not here: which tiles cover an output (`run`), and activations other than `Relu` (`activate`).

use super::pack::{MAX_SLOTS, Run};
use lanes_core::plan::Activation;

/// The most rows of any tile.
pub(super) const MAX_ROWS: usize = 8;

/// A register of f32.
///
/// # Safety
/// Every method may only be called where the instruction set it stands for exists; pointers must be valid for the
/// elements named, at any alignment.
pub(super) trait Vector: Copy {
    /// Elements in it.
    const LANES: usize;
    /// `x` in every element.
    unsafe fn splat(x: f32) -> Self;
    /// `LANES` elements from `from`.
    unsafe fn load(from: *const f32) -> Self;
    /// The first `count < LANES` elements; the rest is zero and its memory is not touched.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    /// `self * b + c` with one rounding.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// The sum.
    unsafe fn add(self, other: Self) -> Self;
    /// [`relu`](super::activate::relu) of every element.
    unsafe fn relu(self) -> Self;
    /// Writes all elements to `to`.
    unsafe fn store(self, to: *mut f32);
    /// Writes the first `count < LANES` elements and touches no other memory.
    unsafe fn store_first(self, to: *mut f32, count: usize);
}

/// What a tile reads and writes.
pub(super) struct Tile<'a> {
    /// The segment's stretches of K, ascending.
    pub runs: &'a [Run],
    /// For each term of the segment, where each row's elements start.
    pub rows: &'a [[*const f32; MAX_ROWS]; MAX_SLOTS],
    /// The first panel, at the segment's first k.
    pub panel: *const f32,
    /// Elements from one panel to the next.
    pub panel_stride: usize,
    /// Where each row's first column goes.
    pub out: [*mut f32; MAX_ROWS],
    /// Columns to store; the last vector may be partial, no other.
    pub columns: usize,
    /// The tile's bias, a whole number of vectors.
    pub bias: *const f32,
    /// Whether sums start at zero (else from `out`).
    pub first: bool,
    /// Whether the sums are complete: add the bias, apply `relu`.
    pub last: bool,
    /// Whether negative results become zero.
    pub relu: bool,
}

/// Computes one tile.
pub(super) type TileFn = unsafe fn(&Tile<'_>);

/// What an instruction set offers.
pub(super) struct Kernels {
    /// Columns of a panel: elements of a vector.
    pub lanes: usize,
    /// `tiles[r - 1][v - 1]` computes `r` rows by `v` vectors.
    pub tiles: &'static [&'static [TileFn]],
    /// Applies an activation to each element.
    pub activate: unsafe fn(&mut [f32], Activation),
}

/// One tile of `R` rows by `V` vectors.
///
/// # Safety
/// The instruction set of `T` exists. The first `R` rows hold every element that the runs name, the panels are `V`
/// whole ones, `out` is writable for `columns` elements in each of the first `R` rows and overlaps nothing read.
/// `(V - 1) * LANES < columns <= V * LANES`.
#[inline(always)]
pub(super) unsafe fn tile<T: Vector, const R: usize, const V: usize>(tile: &Tile<'_>) {
    debug_assert!(tile.columns > (V - 1) * T::LANES && tile.columns <= V * T::LANES);
    let tail = tile.columns - (V - 1) * T::LANES;
    let whole = tail == T::LANES;
    // SAFETY: as the caller promises; every access below stays in what it names.
    unsafe {
        let mut sums = [[T::splat(0.0); V]; R];
        if !tile.first {
            for r in 0..R {
                for v in 0..V {
                    let from = tile.out[r].add(v * T::LANES);
                    sums[r][v] = if v + 1 < V || whole {
                        T::load(from)
                    } else {
                        T::load_first(from, tail)
                    };
                }
            }
        }
        let mut panel = tile.panel;
        for run in tile.runs {
            let mut a = [std::ptr::null::<f32>(); R];
            for r in 0..R {
                a[r] = tile.rows[run.slot][r].add(run.offset);
            }
            for k in 0..run.len {
                let mut b = [T::splat(0.0); V];
                for v in 0..V {
                    b[v] = T::load(panel.add(v * tile.panel_stride));
                }
                for r in 0..R {
                    let x = T::splat(*a[r].add(k));
                    for v in 0..V {
                        sums[r][v] = x.mul_add(b[v], sums[r][v]);
                    }
                }
                panel = panel.add(T::LANES);
            }
        }
        for v in 0..V {
            let bias = T::load(tile.bias.add(v * T::LANES));
            for r in 0..R {
                let mut sum = sums[r][v];
                if tile.last {
                    sum = sum.add(bias);
                    if tile.relu {
                        sum = sum.relu();
                    }
                }
                let to = tile.out[r].add(v * T::LANES);
                if v + 1 < V || whole {
                    sum.store(to)
                } else {
                    sum.store_first(to, tail)
                }
            }
        }
    }
}

/// The table of an instruction set: `kernels!(Vector, "features"; [1 2 3] [1 2])` has tiles of one row by up to three
/// vectors and of two rows by up to two.
macro_rules! kernels {
    ($vector:ty $(, $features:literal)?; $([$($v:literal)+])+) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn sized<const R: usize, const V: usize>(tile: &$crate::contract::tile::Tile<'_>) {
            // SAFETY: the same contract.
            unsafe { $crate::contract::tile::tile::<$vector, R, V>(tile) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn activate(data: &mut [f32], activation: lanes_core::plan::Activation) {
            $crate::contract::activate::activate(data, activation);
        }

        /// What this instruction set offers.
        pub(in $crate::contract) static KERNELS: $crate::contract::tile::Kernels = $crate::contract::tile::Kernels {
            lanes: <$vector as $crate::contract::tile::Vector>::LANES,
            tiles: kernels!(@rows [] [1 2 3 4 5 6 7 8] $([$($v)+])+),
            activate,
        };
    };
    (@rows [$($done:tt)*] [$r:literal $($rs:literal)*] [$($v:literal)+] $($more:tt)*) => {
        kernels!(@rows [$($done)* &[$(sized::<$r, $v>),+],] [$($rs)*] $($more)*)
    };
    (@rows [$($done:tt)*] [$($rs:literal)*]) => { &[$($done)*] };
}
pub(super) use kernels;
