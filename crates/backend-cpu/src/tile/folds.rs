//! The loops of folds: what each item holds, combined with a value of each turn.
//!
//! - Each item's values are combined in the order of the turns, on every set of instructions: the bits of turn after turn.
//! - What some items hold stays in registers while the turns run.
//! - Ops without a loop of their own go turn by turn through the loops of single ops.
//! - Not here: whether an access is in bounds (`run::turns`).

use loom_compiler::math;
use loom_compiler::ops::{Binary, REDUCTION_CHAINS, Ternary};
use loom_compiler::tile::Op;
use loom_compiler::types::ScalarType;

use super::kernels::{Map, Operand, f16_to_f32};
use crate::isa::Isa;

/// An operand of a fold: the first turn's of the first row, bytes from a turn to the next, and from a row to the next.
#[derive(Clone, Copy)]
pub(super) struct Course {
    pub first: Operand,
    pub step: isize,
    pub row: isize,
}

/// Rows that lie side by side where they are held, items of a row, and turns.
pub(super) type Extents = [usize; 3];

/// `to[i] = op(.., to[i], ..)` for each item of each row and for each turn, `to` being operand `at`; before the first turn it is
/// one element for all, unless `start` is null.
///
/// # Safety
///
/// `to` is valid for all items, `start` for one element or null, and each other operand in each turn for those of each row (one element, if it is for all); operand
/// `at` is not read. The set of instructions is available.
pub(super) type Chain =
    unsafe fn(map: Map, op: Op, at: usize, to: *mut u8, start: *const u8, from: &[Course; 3], extents: Extents);

/// The loop for `isa`, which must be available.
pub(super) fn chains(isa: Isa) -> Chain {
    match isa {
        Isa::Portable => portable,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512,
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => portable,
    }
}

/// As [`Chain`], but what a row's items hold in the end is added, in the order of `OpKind::SubgroupReduce`, into an element of
/// `sums` for each row; nothing else is written. `false` if there is no such loop: then nothing is done.
///
/// # Safety
///
/// As for [`Chain`], with room for a result for each row in `sums`; `start` is not null.
pub(super) type Sums =
    unsafe fn(op: Op, at: usize, sums: *mut u8, start: *const u8, from: &[Course; 3], extents: Extents) -> bool;

/// The loop for `isa`, which must be available.
pub(super) fn sums(isa: Isa) -> Sums {
    match isa {
        Isa::Portable => sums_portable,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => sums_avx2,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => sums_avx512,
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => sums_portable,
    }
}

unsafe fn sums_portable(
    op: Op,
    at: usize,
    sums: *mut u8,
    start: *const u8,
    from: &[Course; 3],
    extents: Extents,
) -> bool {
    // SAFETY: the caller's promises are `Sums`'.
    FUSED && unsafe { sums_any(op, at, sums, start, from, extents) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn sums_avx2(op: Op, at: usize, sums: *mut u8, start: *const u8, from: &[Course; 3], extents: Extents) -> bool {
    // SAFETY: the caller's promises are `Sums`'.
    unsafe { sums_any(op, at, sums, start, from, extents) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn sums_avx512(
    op: Op,
    at: usize,
    sums: *mut u8,
    start: *const u8,
    from: &[Course; 3],
    extents: Extents,
) -> bool {
    // SAFETY: the caller's promises are `Sums`'.
    unsafe { sums_any(op, at, sums, start, from, extents) }
}

/// Products of bf16, 32 of which are read at a time.
#[inline(always)]
unsafe fn sums_any(
    op: Op,
    at: usize,
    sums: *mut u8,
    start: *const u8,
    [a, b, _]: &[Course; 3],
    [rows, n, turns]: Extents,
) -> bool {
    let each = a.first.is_each() && b.first.is_each();
    if (op, at) != (Op::FmaExtended(ScalarType::BF16), 2) || !each || n == 0 || !n.is_multiple_of(PAIRED) {
        return false;
    }
    let operands = [a, b];
    // SAFETY: the caller's promises are `Sums`'.
    unsafe {
        match turns {
            2 => sums_of::<2>(sums, start, operands, [rows, n, turns]),
            4 => sums_of::<4>(sums, start, operands, [rows, n, turns]),
            _ => sums_of::<0>(sums, start, operands, [rows, n, turns]),
        }
    }
    true
}

/// [`sums_any`] for `TURNS` turns, or for any number if it is 0: a loop of two turns costs as much as they do.
#[inline(always)]
unsafe fn sums_of<const TURNS: usize>(
    sums: *mut u8,
    start: *const u8,
    operands: [&Course; 2],
    [rows, n, turns]: Extents,
) {
    for row in 0..rows {
        let place = |course: &Course, first: usize| {
            let at = course.first.at.wrapping_offset(course.row.wrapping_mul(row as isize));
            (at.wrapping_add(first * size_of::<u16>()), course.step)
        };
        // SAFETY: the caller's promises are `Sums`'; blocks end at `n`.
        unsafe {
            let start = start.cast::<f32>().read_unaligned();
            let one = [start; PAIRED / 2];
            // Each chain's own sum, as `kernels::folded` has it.
            let [mut low, mut high] = pairs_of::<TURNS>(one, one, operands.map(|course| place(course, 0)), turns);
            let mut first = PAIRED;
            while first < n {
                let [next, after] = pairs_of::<TURNS>(one, one, operands.map(|course| place(course, first)), turns);
                for i in 0..PAIRED / 2 {
                    low[i] += next[i];
                }
                for i in 0..PAIRED / 2 {
                    high[i] += after[i];
                }
                first += PAIRED;
            }
            // Chains 16 apart are of one kind too.
            for half in [&mut low, &mut high] {
                for i in 0..PAIRED / 4 {
                    half[i] += half[i + PAIRED / 4];
                }
            }
            let [low, high] = [&low, &high].map(|half| half.first_chunk().unwrap_or(&[0.0; PAIRED / 4]));
            let sum = paired_butterfly(low, high);
            sums.cast::<f32>().add(row).write_unaligned(sum);
        }
    }
}

/// The last steps of a reduction whose chains are those of even and odd elements, after the first. On its own, as
/// `kernels::butterfly` is.
#[inline(never)]
fn paired_butterfly(low: &[f32; PAIRED / 4], high: &[f32; PAIRED / 4]) -> f32 {
    // Chains 8, 4 and 2 apart are of one kind.
    let half = |x: &[f32; PAIRED / 4]| {
        let mut s4 = [0.0f32; 4];
        for i in 0..4 {
            s4[i] = x[i] + x[i + 4];
        }
        (s4[0] + s4[2]) + (s4[1] + s4[3])
    };
    half(low) + half(high)
}

/// What neighbours hold, the first of two and the second, after `TURNS` turns, or `turns` if that is 0.
#[inline(always)]
unsafe fn pairs_of<const TURNS: usize>(
    mut low: [f32; PAIRED / 2],
    mut high: [f32; PAIRED / 2],
    [(mut x, x_step), (mut y, y_step)]: [(*const u8, isize); 2],
    turns: usize,
) -> [[f32; PAIRED / 2]; 2] {
    const HALF: usize = PAIRED / 2;
    let first = |pair: u32| f32::from_bits(pair << 16);
    let second = |pair: u32| f32::from_bits(pair & 0xffff_0000);
    for _ in 0..if TURNS > 0 { TURNS } else { turns } {
        // SAFETY: the caller has so many elements there in each turn.
        let (a, b): ([u32; HALF], [u32; HALF]) = unsafe { (some(x.cast(), true), some(y.cast(), true)) };
        for i in 0..HALF {
            low[i] = first(a[i]).mul_add(first(b[i]), low[i]);
        }
        for i in 0..HALF {
            high[i] = second(a[i]).mul_add(second(b[i]), high[i]);
        }
        x = x.wrapping_offset(x_step);
        y = y.wrapping_offset(y_step);
    }
    [low, high]
}

/// As in `kernels`: without the instruction, a fused multiply-add is a call.
const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

unsafe fn portable(map: Map, op: Op, at: usize, to: *mut u8, start: *const u8, from: &[Course; 3], extents: Extents) {
    // SAFETY: the caller's promises are `Chain`'s.
    unsafe { any::<FUSED>(map, op, at, to, start, from, extents) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(map: Map, op: Op, at: usize, to: *mut u8, start: *const u8, from: &[Course; 3], extents: Extents) {
    // SAFETY: the caller's promises are `Chain`'s.
    unsafe { any::<true>(map, op, at, to, start, from, extents) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn avx512(map: Map, op: Op, at: usize, to: *mut u8, start: *const u8, from: &[Course; 3], extents: Extents) {
    // SAFETY: the caller's promises are `Chain`'s.
    unsafe { any::<true>(map, op, at, to, start, from, extents) }
}

#[inline(always)]
unsafe fn any<const MATH: bool>(
    map: Map,
    op: Op,
    at: usize,
    to: *mut u8,
    start: *const u8,
    from: &[Course; 3],
    extents: Extents,
) {
    use ScalarType as S;
    let [a, b, _] = *from;
    // SAFETY: for all of it, the caller's promises are `Chain`'s, and the types read are the op's.
    unsafe {
        macro_rules! one {
            ($f:expr) => {
                one!($f, false)
            };
            ($f:expr, $long:literal) => {
                if at == 0 {
                    one::<_, _, $long>(to, start, b, extents, |held, x| $f(held, x))
                } else {
                    one::<_, _, $long>(to, start, a, extents, |held, x| $f(x, held))
                }
            };
        }
        match (op, at) {
            (Op::Binary(Binary::AddF, S::F32), _) => one!(|x: f32, y: f32| x + y),
            (Op::Binary(Binary::MulF, S::F32), _) => one!(|x: f32, y: f32| x * y),
            (Op::Binary(Binary::MaxNumF, S::F32), _) => one!(math::maxnum, true),
            (Op::Binary(Binary::MinNumF, S::F32), _) => one!(math::minnum, true),
            (Op::Binary(Binary::MaximumF, S::F32), _) => one!(math::maximum, true),
            (Op::Binary(Binary::MinimumF, S::F32), _) => one!(math::minimum, true),
            (Op::Binary(Binary::AddI, S::I32), _) => one!(u32::wrapping_add),
            (Op::Binary(Binary::MaxSI, S::I32), _) => one!(|x: i32, y: i32| x.max(y)),
            (Op::Binary(Binary::MinSI, S::I32), _) => one!(|x: i32, y: i32| x.min(y)),
            (Op::Ternary(Ternary::FmaF, S::F32), 2) if MATH => {
                two(to, start, [a, b], extents, |held: f32, x: f32, y: f32| x.mul_add(y, held))
            }
            (Op::Ternary(Ternary::FmaI, S::I32), 2) => {
                two(to, start, [a, b], extents, |held: u32, x: u32, y: u32| x.wrapping_mul(y).wrapping_add(held))
            }
            // A multiply-add makes a signalling NaN quiet by itself.
            (Op::FmaExtended(S::BF16), 2) if MATH => two(to, start, [a, b], extents, |held: f32, x: u16, y: u16| {
                f32::from_bits(u32::from(x) << 16).mul_add(f32::from_bits(u32::from(y) << 16), held)
            }),
            (Op::FmaExtended(S::F16), 2) if MATH => {
                two(to, start, [a, b], extents, |held: f32, x: u16, y: u16| f16_to_f32(x).mul_add(f16_to_f32(y), held))
            }
            _ => each_turn(map, op, at, to, start, from, extents),
        }
    }
}

/// Any op, one turn after the other.
#[inline(never)]
unsafe fn each_turn(
    map: Map,
    op: Op,
    at: usize,
    to: *mut u8,
    start: *const u8,
    from: &[Course; 3],
    [rows, n, turns]: Extents,
) {
    for row in 0..rows {
        let to = to.wrapping_add(row * n * op.result().bytes() as usize);
        let mut operands = from.map(|course| {
            let at = course.first.at.wrapping_offset(course.row.wrapping_mul(row as isize));
            Operand { at, ..course.first }
        });
        operands[at] = if start.is_null() { Operand::each(to) } else { Operand::one(start) };
        for _ in 0..turns {
            // SAFETY: the caller's promises are `Chain`'s; the result starts where the operand that it overlaps starts.
            unsafe { map(op, to, operands, n) };
            operands[at] = Operand::each(to);
            for (other, operand) in operands.iter_mut().enumerate().filter(|&(other, _)| other != at) {
                operand.at = operand.at.wrapping_offset(from[other].step);
            }
        }
    }
}

/// Elements that are combined side by side. Comparisons are vectors only in loops too long to be unrolled early: `LONG`.
const LANES: usize = 16;

#[inline(always)]
unsafe fn some<T: Copy, const N: usize>(at: *const T, each: bool) -> [T; N] {
    // SAFETY: the caller has as many elements there, or one.
    unsafe { if each { at.cast::<[T; N]>().read_unaligned() } else { [at.read_unaligned(); N] } }
}

#[inline(always)]
unsafe fn one<X: Copy, T: Copy, const LONG: bool>(
    to: *mut u8,
    start: *const u8,
    x: Course,
    extents: Extents,
    f: impl Fn(T, X) -> T + Copy,
) {
    let nothing = Course { first: x.first, step: 0, row: 0 };
    // The second operand is the first one's address, and not read.
    // SAFETY: the caller's promises are `Chain`'s.
    unsafe {
        if x.first.is_each() {
            rows::<X, (), T, true, false, LONG>(to, start, [x, nothing], extents, |held, x, ()| f(held, x));
        } else {
            rows::<X, (), T, false, false, LONG>(to, start, [x, nothing], extents, |held, x, ()| f(held, x));
        }
    }
}

#[inline(always)]
unsafe fn two<X: Copy, T: Copy>(
    to: *mut u8,
    start: *const u8,
    [x, y]: [Course; 2],
    extents: Extents,
    f: impl Fn(T, X, X) -> T + Copy,
) {
    // SAFETY: the caller's promises are `Chain`'s.
    unsafe {
        match (x.first.is_each(), y.first.is_each()) {
            (true, true) => rows::<X, X, T, true, true, false>(to, start, [x, y], extents, f),
            (true, false) => rows::<X, X, T, true, false, false>(to, start, [x, y], extents, f),
            (false, true) => rows::<X, X, T, false, true, false>(to, start, [x, y], extents, f),
            (false, false) => rows::<X, X, T, false, false, false>(to, start, [x, y], extents, f),
        }
    }
}

/// Elements of a block of pairs.
const PAIRED: usize = 32;
const _: () = assert!(PAIRED == REDUCTION_CHAINS);

#[inline(always)]
unsafe fn rows<X: Copy, Y: Copy, T: Copy, const EACH_X: bool, const EACH_Y: bool, const LONG: bool>(
    to: *mut u8,
    start: *const u8,
    operands: [Course; 2],
    [rows, n, turns]: Extents,
    f: impl Fn(T, X, Y) -> T + Copy,
) {
    for row in 0..rows {
        let operands = operands.map(|course| {
            let at = course.first.at.wrapping_offset(course.row.wrapping_mul(row as isize));
            Course { first: Operand { at, ..course.first }, ..course }
        });
        // SAFETY: the caller's promises are `Chain`'s.
        unsafe {
            a_row::<X, Y, T, EACH_X, EACH_Y, LONG>(to.cast::<T>().add(row * n), start.cast(), operands, n, turns, f)
        };
    }
}

#[inline(always)]
unsafe fn a_row<X: Copy, Y: Copy, T: Copy, const EACH_X: bool, const EACH_Y: bool, const LONG: bool>(
    to: *mut T,
    start: *const T,
    operands: [Course; 2],
    n: usize,
    turns: usize,
    f: impl Fn(T, X, Y) -> T + Copy,
) {
    let mut first = 0;
    // SAFETY: the caller's promises are `Chain`'s; blocks end at `n`.
    unsafe {
        while LONG && first + 2 * LANES <= n {
            block::<X, Y, T, EACH_X, EACH_Y, 32, 1>(to, start, operands, first, turns, f);
            first += 2 * LANES;
        }
        while first + 4 * LANES <= n {
            block::<X, Y, T, EACH_X, EACH_Y, 16, 4>(to, start, operands, first, turns, f);
            first += 4 * LANES;
        }
        if first + 2 * LANES <= n {
            block::<X, Y, T, EACH_X, EACH_Y, 16, 2>(to, start, operands, first, turns, f);
            first += 2 * LANES;
        }
        if first + LANES <= n {
            block::<X, Y, T, EACH_X, EACH_Y, 16, 1>(to, start, operands, first, turns, f);
            first += LANES;
        }
        let [x, y] = operands;
        for i in first..n {
            let mut held = if start.is_null() { to.add(i).read_unaligned() } else { start.read_unaligned() };
            let mut px = x.first.at.cast::<X>().wrapping_add(if EACH_X { i } else { 0 });
            let mut py = y.first.at.cast::<Y>().wrapping_add(if EACH_Y { i } else { 0 });
            for _ in 0..turns {
                held = f(held, px.read_unaligned(), py.read_unaligned());
                px = px.wrapping_byte_offset(x.step);
                py = py.wrapping_byte_offset(y.step);
            }
            to.add(i).write_unaligned(held);
        }
    }
}

#[inline(always)]
unsafe fn block<
    X: Copy,
    Y: Copy,
    T: Copy,
    const EACH_X: bool,
    const EACH_Y: bool,
    const N: usize,
    const BLOCKS: usize,
>(
    to: *mut T,
    start: *const T,
    [x, y]: [Course; 2],
    first: usize,
    turns: usize,
    f: impl Fn(T, X, Y) -> T,
) {
    // SAFETY: the caller's promises are `Chain`'s, and `first + BLOCKS * N <= n`.
    unsafe {
        let to = to.add(first);
        let mut held: [[T; N]; BLOCKS] = if start.is_null() {
            std::array::from_fn(|at| some(to.add(at * N), true))
        } else {
            [[start.read_unaligned(); N]; BLOCKS]
        };
        let mut px = x.first.at.cast::<X>().wrapping_add(if EACH_X { first } else { 0 });
        let mut py = y.first.at.cast::<Y>().wrapping_add(if EACH_Y { first } else { 0 });
        for _ in 0..turns {
            for (at, held) in held.iter_mut().enumerate() {
                let x: [X; N] = some(px.wrapping_add(if EACH_X { at * N } else { 0 }), EACH_X);
                let y: [Y; N] = some(py.wrapping_add(if EACH_Y { at * N } else { 0 }), EACH_Y);
                for i in 0..N {
                    held[i] = f(held[i], x[i], y[i]);
                }
            }
            px = px.wrapping_byte_offset(x.step);
            py = py.wrapping_byte_offset(y.step);
        }
        for (at, held) in held.iter().enumerate() {
            to.add(at * N).cast::<[T; N]>().write_unaligned(*held);
        }
    }
}
