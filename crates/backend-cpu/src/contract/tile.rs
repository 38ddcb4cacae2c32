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
#![allow(clippy::needless_range_loop, reason = "sums are a matrix, and equal indices say which belong together")]

use super::pack::Run;
use lanes_core::plan::Activation;

/// Steps of K between two looks at the end of a stretch.
const UNROLL: usize = 4;

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
    /// `LANES` elements of which the upper halves lie from `from` on, and the lower ones are zero.
    unsafe fn load_upper(from: *const u16) -> Self;
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

/// How a weight lies in a panel.
pub(super) trait Weight {
    /// Weights of one k, as a vector.
    ///
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn load<T: Vector>(from: *const Self) -> T;
}

impl Weight for f32 {
    #[inline(always)]
    unsafe fn load<T: Vector>(from: *const Self) -> T {
        // SAFETY: the caller's promise.
        unsafe { T::load(from) }
    }
}

/// bfloat16.
impl Weight for u16 {
    #[inline(always)]
    unsafe fn load<T: Vector>(from: *const Self) -> T {
        // SAFETY: the caller's promise.
        unsafe { T::load_upper(from) }
    }
}

/// The most rows of a tile of `narrow`.
pub(super) const NARROW_ROWS: usize = 32;

/// What a tile reads and writes.
pub(super) struct Tile<'a> {
    /// The segment's stretches of K, ascending.
    pub runs: &'a [Run],
    /// Where the elements of row `r` start in the segment's term `slot`: entry `slot * height + r`.
    pub rows: &'a [*const f32],
    /// See `rows`.
    pub height: usize,
    /// How many of the rows to store, where a tile may be given more.
    pub stored: usize,
    /// The first panel (for `narrow`: the weights), at the segment's first k; of the tile's kind of weight.
    pub panel: *const u8,
    /// Elements from one panel to the next.
    pub panel_stride: usize,
    /// Where each row's column 0 goes.
    pub out: &'a [*mut f32],
    /// The first column.
    pub column: usize,
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
    /// `tiles[r - 1][v - 1]` computes `r` rows by `v` vectors of f32 weights.
    pub tiles: &'static [&'static [TileFn]],
    /// The same for weights of bfloat16.
    pub rounded: &'static [&'static [TileFn]],
    /// For as few columns as it has entries; see `narrow`.
    pub narrow: &'static [TileFn],
    /// Applies an activation to each element.
    pub activate: unsafe fn(&mut [f32], Activation),
}

/// One tile of `R` rows by `V` vectors.
///
/// # Safety
/// The instruction set of `T` exists. The first `R` rows hold every element that the runs name, the panels are `V`
/// whole ones, `out` is writable for `columns` elements from `column` in each of the first `R` rows, and overlaps nothing
/// read. `(V - 1) * LANES < columns <= V * LANES`.
#[inline(always)]
pub(super) unsafe fn tile<T: Vector, W: Weight, const R: usize, const V: usize>(tile: &Tile<'_>) {
    debug_assert!(tile.height >= R);
    debug_assert!(tile.columns > (V - 1) * T::LANES && tile.columns <= V * T::LANES);
    let tail = tile.columns - (V - 1) * T::LANES;
    let whole = tail == T::LANES;
    let out: &[*mut f32; R] = tile.out.first_chunk().expect("tiles are called with all their rows");
    // SAFETY: as the caller promises; every access below stays in what it names.
    unsafe {
        let mut sums = [[T::splat(0.0); V]; R];
        if !tile.first {
            for r in 0..R {
                for v in 0..V {
                    let from = out[r].add(tile.column + v * T::LANES);
                    sums[r][v] = if v + 1 < V || whole { T::load(from) } else { T::load_first(from, tail) };
                }
            }
        }
        let mut panel = tile.panel.cast::<W>();
        for run in tile.runs {
            let mut a = [std::ptr::null::<f32>(); R];
            for r in 0..R {
                a[r] = (*tile.rows.as_ptr().add(run.slot * tile.height + r)).add(run.offset);
            }
            let mut k = 0;
            // Unrolled, because the end of a short loop is guessed where that of a long one is not.
            while k + UNROLL <= run.len {
                for u in 0..UNROLL {
                    step(&mut sums, &a, k + u, panel.add(u * T::LANES), tile.panel_stride);
                }
                panel = panel.add(UNROLL * T::LANES);
                k += UNROLL;
            }
            while k < run.len {
                step(&mut sums, &a, k, panel, tile.panel_stride);
                panel = panel.add(T::LANES);
                k += 1;
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
                let to = out[r].add(tile.column + v * T::LANES);
                if v + 1 < V || whole { sum.store(to) } else { sum.store_first(to, tail) }
            }
        }
    }
}

/// Adds the products of one k to the sums.
///
/// # Safety
/// As [`tile`]: `a` holds element `k` of each row, `panel` points at k in the first panel.
#[inline(always)]
unsafe fn step<T: Vector, W: Weight, const R: usize, const V: usize>(
    sums: &mut [[T; V]; R],
    a: &[*const f32; R],
    k: usize,
    panel: *const W,
    panel_stride: usize,
) {
    // What there is less of is held in registers, the other passes by: all of both would not fit.
    // SAFETY: the caller's promise.
    unsafe {
        if R < V {
            let mut x = [T::splat(0.0); R];
            for r in 0..R {
                x[r] = T::splat(*a[r].add(k));
            }
            for v in 0..V {
                let b: T = W::load(panel.add(v * panel_stride));
                for r in 0..R {
                    sums[r][v] = x[r].mul_add(b, sums[r][v]);
                }
            }
        } else {
            let mut b = [T::splat(0.0); V];
            for v in 0..V {
                b[v] = W::load(panel.add(v * panel_stride));
            }
            for r in 0..R {
                let x = T::splat(*a[r].add(k));
                for v in 0..V {
                    sums[r][v] = x.mul_add(b[v], sums[r][v]);
                }
            }
        }
    }
}

/// The table of an instruction set: `kernels!(Vector, "features"; narrow; [1 2 3] [1 2])` has tiles of one row by up to
/// three vectors and of two rows by up to two, and the table `narrow` for few columns.
macro_rules! kernels {
    ($vector:ty $(, $features:literal)?; $narrow:expr; $([$($v:literal)+])+) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn sized<W: $crate::contract::tile::Weight, const R: usize, const V: usize>(
            tile: &$crate::contract::tile::Tile<'_>,
        ) {
            // SAFETY: the same contract.
            unsafe { $crate::contract::tile::tile::<$vector, W, R, V>(tile) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn activate(data: &mut [f32], activation: lanes_core::plan::Activation) {
            $crate::contract::activate::activate(data, activation);
        }

        /// What this instruction set offers.
        pub(in $crate::contract) static KERNELS: $crate::contract::tile::Kernels = $crate::contract::tile::Kernels {
            lanes: <$vector as $crate::contract::tile::Vector>::LANES,
            tiles: kernels!(@rows f32; [] [1 2 3 4 5 6 7 8] $([$($v)+])+),
            rounded: kernels!(@rows u16; [] [1 2 3 4 5 6 7 8] $([$($v)+])+),
            narrow: $narrow,
            activate,
        };
    };
    (@rows $w:ty; [$($done:tt)*] [$r:literal $($rs:literal)*] [$($v:literal)+] $($more:tt)*) => {
        kernels!(@rows $w; [$($done)* &[$(sized::<$w, $r, $v>),+],] [$($rs)*] $($more)*)
    };
    (@rows $w:ty; [$($done:tt)*] [$($rs:literal)*]) => { &[$($done)*] };
}
pub(super) use kernels;
