//! The loops: one element-wise op over a run of elements.
//!
//! - Each op reads all operands of 16 elements before it writes their results, so that a result may overwrite an operand
//!   in place. Pointers need no alignment.
//! - The same source is compiled for each instruction set; every set gives the same bits, which are `eval`'s.
//! - Ops without a loop of their own go element by element through `eval`.
//! - Not here: which elements, and whether an access is in bounds (`run`, `memory`).

use std::mem::MaybeUninit;

use loom_compiler::math;
use loom_compiler::ops::{Binary, Combine, Convert, FloatPredicate, IntPredicate, REDUCTION_CHAINS, Ternary, Unary};
use loom_compiler::tile::Op;
use loom_compiler::types::ScalarType;

use super::folds::{Chain, chains};
use super::product::{Products, products};
use crate::isa::Isa;

/// Elements that are read before any of their results is written.
const CHUNK: usize = 16;

/// A run of elements, or one element that stands for all.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    /// The first.
    pub at: *const u8,
    /// Whether there is one for each result.
    pub each: bool,
}

/// Applies the op to `n` elements.
///
/// # Safety
///
/// `to` is valid for writing `n` results, each operand for reading `n` elements (one, if not `each`); operands that
/// overlap the result start where it starts, or are dead once it is written. The set of instructions is available.
pub(super) type Map = unsafe fn(op: Op, to: *mut u8, from: [Operand; 3], n: usize);

/// The bits of `n` elements of the type combined, `n` at least 1, in the order of [`OpKind::SubgroupReduce`].
///
/// # Safety
///
/// `from` is valid for reading `n` elements. The set of instructions is available.
///
/// [`OpKind::SubgroupReduce`]: loom_compiler::ops::OpKind::SubgroupReduce
pub(super) type Fold = unsafe fn(combine: Combine, ty: ScalarType, from: *const u8, n: usize) -> u64;

/// Writes element `i ^ distance` of `from` to element `i` of `to`, for `n` elements of `bytes` bytes, 32 at a time.
///
/// # Safety
///
/// `n` is a multiple of 32, `distance` below 32; both are valid for `n` elements and do not overlap. The set of
/// instructions is available.
pub(super) type Swap = unsafe fn(bytes: u64, to: *mut u8, from: *const u8, n: usize, distance: usize);

/// The loops of one set of instructions.
#[derive(Clone, Copy)]
pub(super) struct Loops {
    pub map: Map,
    pub fold: Fold,
    pub swap: Swap,
    pub chain: Chain,
    pub products: Products,
}

/// The loops compiled for `isa`, which must be available.
pub(super) fn loops(isa: Isa) -> Loops {
    let (products, chain) = (products(isa), chains(isa));
    let portable = Loops { map: portable, fold: fold_portable, swap: swap_portable, chain, products };
    #[cfg(target_arch = "x86_64")]
    let avx2 = Loops { map: avx2, fold: fold_avx2, swap: swap_avx2, chain, products };
    #[cfg(target_arch = "x86_64")]
    let avx512 = Loops { map: avx512, fold: fold_avx512, swap: swap_avx512, chain, products };
    match isa {
        Isa::Portable => portable,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => {
            // What the loops use beyond the foundation came with the same processors, but for the first of all.
            let all = is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if all { avx512 } else { avx2 }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => portable,
    }
}

/// Whether a fused multiply-add is an instruction on every machine of the build's target: without one, the polynomials
/// of `math` are calls, and loops over them are not worth compiling.
const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

unsafe fn portable(op: Op, to: *mut u8, from: [Operand; 3], n: usize) {
    // SAFETY: the caller's promises are `Map`'s.
    unsafe { any::<FUSED>(op, to, from, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(op: Op, to: *mut u8, from: [Operand; 3], n: usize) {
    // SAFETY: the caller's promises are `Map`'s.
    unsafe { any::<true>(op, to, from, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512(op: Op, to: *mut u8, from: [Operand; 3], n: usize) {
    // SAFETY: the caller's promises are `Map`'s.
    unsafe { any::<true>(op, to, from, n) }
}

/// `$portable`, `$avx2` and `$avx512`: `$any`, compiled for each set.
macro_rules! each_set {
    ($any:ident: $portable:ident $avx2:ident $avx512:ident ($($arg:ident: $ty:ty),*) $(-> $result:ty)?) => {
        unsafe fn $portable($($arg: $ty),*) $(-> $result)? {
            // SAFETY: the caller's promises are the type's.
            unsafe { $any($($arg),*) }
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn $avx2($($arg: $ty),*) $(-> $result)? {
            // SAFETY: the caller's promises are the type's.
            unsafe { $any($($arg),*) }
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        unsafe fn $avx512($($arg: $ty),*) $(-> $result)? {
            // SAFETY: the caller's promises are the type's.
            unsafe { $any($($arg),*) }
        }
    };
}
each_set!(fold_any: fold_portable fold_avx2 fold_avx512 (combine: Combine, ty: ScalarType, from: *const u8, n: usize) -> u64);
each_set!(swap_any: swap_portable swap_avx2 swap_avx512 (bytes: u64, to: *mut u8, from: *const u8, n: usize, distance: usize));

#[inline(always)]
unsafe fn fold_any(combine: Combine, ty: ScalarType, from: *const u8, n: usize) -> u64 {
    use Combine as C;
    use ScalarType as S;
    macro_rules! as_bits {
        ($f:expr) => {
            // SAFETY: the caller's promises are `Fold`'s.
            u64::from(unsafe { fold_as::<f32>(from.cast(), n, $f) }.to_bits())
        };
    }
    match (combine, ty) {
        (C::AddF, S::F32) => as_bits!(|a, b| a + b),
        (C::MulF, S::F32) => as_bits!(|a, b| a * b),
        (C::MaxNumF, S::F32) => as_bits!(math::maxnum),
        (C::MinNumF, S::F32) => as_bits!(math::minnum),
        (C::MaximumF, S::F32) => as_bits!(math::maximum),
        (C::MinimumF, S::F32) => as_bits!(math::minimum),
        // SAFETY: as above.
        (C::AddI, S::I32) => u64::from(unsafe { fold_as::<u32>(from.cast(), n, u32::wrapping_add) }),
        // SAFETY: as above.
        _ => unsafe { fold_each(combine, ty, from, n) },
    }
}

#[inline(always)]
unsafe fn fold_as<T: Copy + Default>(from: *const T, n: usize, f: impl Fn(T, T) -> T) -> T {
    const CHAINS: usize = REDUCTION_CHAINS;
    let mut sums = [T::default(); CHAINS];
    // SAFETY: for all of it, elements below `n` are read.
    unsafe {
        if n < CHAINS {
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), sums.as_mut_ptr().cast::<u8>(), n * size_of::<T>());
            let mut width = CHAINS / 2;
            let mut held = n;
            while width > 0 {
                for c in 0..held.saturating_sub(width) {
                    sums[c] = f(sums[c], sums[c + width]);
                }
                held = held.min(width);
                width /= 2;
            }
            return sums[0];
        }
        sums = from.cast::<[T; CHAINS]>().read_unaligned();
        let mut at = CHAINS;
        while at + CHAINS <= n {
            let next = from.add(at).cast::<[T; CHAINS]>().read_unaligned();
            for c in 0..CHAINS {
                sums[c] = f(sums[c], next[c]);
            }
            at += CHAINS;
        }
        for (c, sum) in sums.iter_mut().enumerate().take(n - at) {
            *sum = f(*sum, from.add(at + c).read_unaligned());
        }
    }
    // Written out, so that each step is one of vectors.
    let mut s16 = [T::default(); 16];
    for c in 0..16 {
        s16[c] = f(sums[c], sums[c + 16]);
    }
    let mut s8 = [T::default(); 8];
    for c in 0..8 {
        s8[c] = f(s16[c], s16[c + 8]);
    }
    let mut s4 = [T::default(); 4];
    for c in 0..4 {
        s4[c] = f(s8[c], s8[c + 4]);
    }
    f(f(s4[0], s4[2]), f(s4[1], s4[3]))
}

/// Any type, one element after the other.
#[inline(never)]
unsafe fn fold_each(combine: Combine, ty: ScalarType, from: *const u8, n: usize) -> u64 {
    let op = Op::Binary(combine.binary(), ty);
    // SAFETY: the caller's promises are `Fold`'s.
    let value = |at: usize| unsafe { bits(ty, from, at) };
    let mut sums: [u64; REDUCTION_CHAINS] = std::array::from_fn(|c| if c < n { value(c) } else { 0 });
    for at in REDUCTION_CHAINS..n {
        sums[at % REDUCTION_CHAINS] = op.evaluate([sums[at % REDUCTION_CHAINS], value(at), 0]);
    }
    let (mut width, mut held) = (REDUCTION_CHAINS / 2, n.min(REDUCTION_CHAINS));
    while width > 0 {
        for c in 0..held.saturating_sub(width) {
            sums[c] = op.evaluate([sums[c], sums[c + width], 0]);
        }
        held = held.min(width);
        width /= 2;
    }
    sums[0]
}

#[inline(always)]
unsafe fn swap_any(bytes: u64, to: *mut u8, from: *const u8, n: usize, distance: usize) {
    // SAFETY: the caller's promises are `Swap`'s.
    unsafe {
        match bytes {
            1 => swap_as::<u8>(to, from, n, distance),
            2 => swap_as::<u16>(to, from, n, distance),
            4 => swap_as::<u32>(to, from, n, distance),
            _ => swap_as::<u64>(to, from, n, distance),
        }
    }
}

#[inline(always)]
unsafe fn swap_as<T: Copy + Default>(to: *mut u8, from: *const u8, n: usize, distance: usize) {
    macro_rules! by {
        ($($distance:literal)*) => {
            match distance {
                // Known distances are shuffles of registers.
                $($distance => by!(loop $distance),)*
                _ => by!(loop distance),
            }
        };
        (loop $distance:expr) => {
            for start in (0..n).step_by(32) {
                // SAFETY: the caller's promises are `Swap`'s.
                unsafe {
                    let x = from.cast::<T>().add(start).cast::<[T; 32]>().read_unaligned();
                    let mut r = [T::default(); 32];
                    for i in 0..32 {
                        r[i] = x[(i ^ $distance) & 31];
                    }
                    to.cast::<T>().add(start).cast::<[T; 32]>().write_unaligned(r);
                }
            }
        };
    }
    by!(1 2 4 8 16);
}

/// An operand's elements, chunk after chunk: every chunk is read whole, without a branch on what the operand is.
struct Chunks<T> {
    at: *const T,
    /// 1, or 0 for an operand that is one element: `local` is filled with it.
    step: usize,
    local: MaybeUninit<[T; CHUNK]>,
}

impl<T: Copy + Default> Chunks<T> {
    #[inline(always)]
    unsafe fn new(operand: Operand) -> Self {
        let at = operand.at.cast::<T>();
        if operand.each {
            return Self { at, step: 1, local: MaybeUninit::uninit() };
        }
        // SAFETY: the caller's operand is valid for one element.
        let one = unsafe { at.read_unaligned() };
        Self { at, step: 0, local: MaybeUninit::new([one; CHUNK]) }
    }

    /// Where to read from: a borrowed copy for what is one element.
    #[inline(always)]
    fn start(&self) -> *const T {
        if self.step == 0 { self.local.as_ptr().cast() } else { self.at }
    }

    /// The last, partial chunk, as a whole one.
    #[inline(always)]
    unsafe fn tail(&mut self, first: usize, count: usize) -> *const T {
        if self.step == 1 {
            let local = self.local.write([T::default(); CHUNK]);
            // SAFETY: the caller's operand is valid for `first + count` elements; `count < CHUNK`.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    self.at.add(first).cast::<u8>(),
                    local.as_mut_ptr().cast::<u8>(),
                    count * size_of::<T>(),
                );
            }
        }
        self.local.as_ptr().cast()
    }
}

#[inline(always)]
unsafe fn chunk<T: Copy>(at: *const T) -> [T; CHUNK] {
    // SAFETY: the caller has `CHUNK` elements there.
    unsafe { at.cast::<[T; CHUNK]>().read_unaligned() }
}

/// Copies the results of the last, partial chunk to where they go. Mostly there are none, and no call.
#[inline(always)]
unsafe fn finish<R>(partial: &MaybeUninit<[R; CHUNK]>, to: *mut R, count: usize) {
    if count > 0 {
        // SAFETY: the caller wrote a whole chunk of results, and `to` has room for `count` of them.
        unsafe {
            std::ptr::copy_nonoverlapping(partial.as_ptr().cast::<u8>(), to.cast::<u8>(), count * size_of::<R>())
        };
    }
}

#[inline(always)]
unsafe fn map1<A: Copy + Default, R: Copy + Default>(to: *mut u8, [a, ..]: [Operand; 3], n: usize, f: impl Fn(A) -> R) {
    let to = to.cast::<R>();
    let (whole, rest) = (n - n % CHUNK, n % CHUNK);
    let mut partial = MaybeUninit::<[R; CHUNK]>::uninit();
    // SAFETY: the caller's promises are `Map`'s; whole chunks are within `n`, the rest is copied out and in.
    unsafe {
        let mut a = Chunks::<A>::new(a);
        let (mut pa, sa) = (a.start(), a.step * CHUNK);
        let (mut out, mut first) = (to, 0);
        while first < n {
            if first == whole {
                pa = a.tail(first, rest);
                out = partial.as_mut_ptr().cast();
            }
            let x = chunk(pa);
            let mut r = [R::default(); CHUNK];
            for i in 0..CHUNK {
                r[i] = f(x[i]);
            }
            out.cast::<[R; CHUNK]>().write_unaligned(r);
            out = out.wrapping_add(CHUNK);
            pa = pa.wrapping_add(sa);
            first += CHUNK;
        }
        finish(&partial, to.add(whole), rest);
    }
}

#[inline(always)]
unsafe fn map2<A: Copy + Default, B: Copy + Default, R: Copy + Default>(
    to: *mut u8,
    [a, b, _]: [Operand; 3],
    n: usize,
    f: impl Fn(A, B) -> R,
) {
    let to = to.cast::<R>();
    let (whole, rest) = (n - n % CHUNK, n % CHUNK);
    let mut partial = MaybeUninit::<[R; CHUNK]>::uninit();
    // SAFETY: as in `map1`.
    unsafe {
        let (mut a, mut b) = (Chunks::<A>::new(a), Chunks::<B>::new(b));
        let (mut pa, sa) = (a.start(), a.step * CHUNK);
        let (mut pb, sb) = (b.start(), b.step * CHUNK);
        let (mut out, mut first) = (to, 0);
        while first < n {
            if first == whole {
                (pa, pb) = (a.tail(first, rest), b.tail(first, rest));
                out = partial.as_mut_ptr().cast();
            }
            let (x, y) = (chunk(pa), chunk(pb));
            let mut r = [R::default(); CHUNK];
            for i in 0..CHUNK {
                r[i] = f(x[i], y[i]);
            }
            out.cast::<[R; CHUNK]>().write_unaligned(r);
            out = out.wrapping_add(CHUNK);
            (pa, pb) = (pa.wrapping_add(sa), pb.wrapping_add(sb));
            first += CHUNK;
        }
        finish(&partial, to.add(whole), rest);
    }
}

#[inline(always)]
unsafe fn map3<A: Copy + Default, B: Copy + Default, T: Copy + Default>(
    to: *mut u8,
    [a, b, c]: [Operand; 3],
    n: usize,
    f: impl Fn(A, B, T) -> T,
) {
    let to = to.cast::<T>();
    let (whole, rest) = (n - n % CHUNK, n % CHUNK);
    let mut partial = MaybeUninit::<[T; CHUNK]>::uninit();
    // SAFETY: as in `map1`.
    unsafe {
        let (mut a, mut b, mut c) = (Chunks::<A>::new(a), Chunks::<B>::new(b), Chunks::<T>::new(c));
        let (mut pa, sa) = (a.start(), a.step * CHUNK);
        let (mut pb, sb) = (b.start(), b.step * CHUNK);
        let (mut pc, sc) = (c.start(), c.step * CHUNK);
        let (mut out, mut first) = (to, 0);
        while first < n {
            if first == whole {
                (pa, pb, pc) = (a.tail(first, rest), b.tail(first, rest), c.tail(first, rest));
                out = partial.as_mut_ptr().cast();
            }
            let (x, y, z) = (chunk(pa), chunk(pb), chunk(pc));
            let mut r = [T::default(); CHUNK];
            for i in 0..CHUNK {
                r[i] = f(x[i], y[i], z[i]);
            }
            out.cast::<[T; CHUNK]>().write_unaligned(r);
            out = out.wrapping_add(CHUNK);
            (pa, pb, pc) = (pa.wrapping_add(sa), pb.wrapping_add(sb), pc.wrapping_add(sc));
            first += CHUNK;
        }
        finish(&partial, to.add(whole), rest);
    }
}

#[inline(always)]
unsafe fn fill<T: Copy>(to: *mut u8, one: *const u8, n: usize) {
    // SAFETY: the caller has one element there, and room for `n`.
    unsafe {
        let (to, one) = (to.cast::<T>(), one.cast::<T>().read_unaligned());
        for i in 0..n {
            to.add(i).write_unaligned(one);
        }
    }
}

#[inline(always)]
unsafe fn any<const MATH: bool>(op: Op, to: *mut u8, from: [Operand; 3], n: usize) {
    use ScalarType as S;
    // SAFETY: for all of it, the caller's promises are `Map`'s, and the types read are the op's.
    unsafe {
        match op {
            // An operand may overlap the result where memory is moved to memory.
            Op::Move(ty) if from[0].each => std::ptr::copy(from[0].at, to, n * ty.bytes() as usize),
            Op::Move(ty) => match ty.bytes() {
                1 => to.write_bytes(from[0].at.read(), n),
                2 => fill::<u16>(to, from[0].at, n),
                4 => fill::<u32>(to, from[0].at, n),
                _ => fill::<u64>(to, from[0].at, n),
            },
            Op::Unary(unary, S::F32) => unary_f32::<MATH>(unary, op, to, from, n),
            Op::Binary(binary, S::F32) => binary_f32::<MATH>(binary, op, to, from, n),
            Op::Ternary(Ternary::FmaF, S::F32) if MATH => map3(to, from, n, f32::mul_add),
            Op::Ternary(Ternary::ClampOrderedF, S::F32) => map3(to, from, n, |v: f32, low: f32, high: f32| {
                let r = if v < low { low } else { v };
                if r > high { high } else { r }
            }),
            Op::CompareF(predicate, S::F32) => compare_f32(predicate, to, from, n),
            Op::Binary(binary, S::I32) => binary_i32(binary, op, to, from, n),
            Op::Binary(binary, S::I64 | S::Index | S::Offset) => binary_i64(binary, op, to, from, n),
            Op::Binary(binary, S::I8) => binary_i8(binary, op, to, from, n),
            Op::Binary(binary, S::I16) => binary_i16(binary, op, to, from, n),
            Op::Binary(Binary::AndI, S::I1) => map2(to, from, n, |a: u8, b: u8| a & b),
            Op::Binary(Binary::OrI, S::I1) => map2(to, from, n, |a: u8, b: u8| a | b),
            Op::Binary(Binary::XorI, S::I1) => map2(to, from, n, |a: u8, b: u8| a ^ b),
            Op::CompareI(predicate, S::I8) => compare_i8(predicate, to, from, n),
            Op::CompareI(predicate, S::I16) => compare_i16(predicate, to, from, n),
            Op::CompareI(predicate, S::I32) => compare_i32(predicate, to, from, n),
            Op::CompareI(predicate, S::I64 | S::Index | S::Offset) => compare_i64(predicate, to, from, n),
            Op::Select(ty) => match ty.bytes() {
                1 => map3(to, from, n, |c: u8, a: u8, b: u8| if c & 1 == 1 { a } else { b }),
                2 => map3(to, from, n, |c: u8, a: u16, b: u16| if c & 1 == 1 { a } else { b }),
                4 => map3(to, from, n, |c: u8, a: u32, b: u32| if c & 1 == 1 { a } else { b }),
                _ => map3(to, from, n, |c: u8, a: u64, b: u64| if c & 1 == 1 { a } else { b }),
            },
            Op::Convert(Convert::ExtF, S::BF16, S::F32) => {
                map1(to, from, n, |x: u16| bf16_to_f32(x));
            }
            Op::Convert(Convert::TruncF, S::F32, S::BF16) => map1(to, from, n, f32_to_bf16),
            Op::Convert(Convert::ExtF, S::F16, S::F32) => map1(to, from, n, f16_to_f32),
            Op::Convert(Convert::TruncF, S::F32, S::F16) => map1(to, from, n, f32_to_f16),
            Op::Convert(Convert::ExtSI, S::I8, S::I16) => map1(to, from, n, |x: i8| x as i16),
            Op::Convert(Convert::ExtSI, S::I8, S::I32) => map1(to, from, n, |x: i8| x as i32),
            Op::Convert(Convert::ExtSI, S::I16, S::I32) => map1(to, from, n, |x: i16| x as i32),
            Op::Convert(Convert::ExtUI, S::I8, S::I16) => map1(to, from, n, |x: u8| x as u16),
            Op::Convert(Convert::ExtUI, S::I8, S::I32) => map1(to, from, n, |x: u8| x as u32),
            Op::Convert(Convert::ExtUI, S::I16, S::I32) => map1(to, from, n, |x: u16| x as u32),
            Op::Convert(Convert::TruncI, S::I16, S::I8) => map1(to, from, n, |x: u16| x as u8),
            Op::Convert(Convert::TruncI, S::I32, S::I8) => map1(to, from, n, |x: u32| x as u8),
            Op::Convert(Convert::TruncI, S::I32, S::I16) => map1(to, from, n, |x: u32| x as u16),
            Op::Ternary(Ternary::FmaI, S::I32) => {
                map3(to, from, n, |a: u32, b: u32, c: u32| a.wrapping_mul(b).wrapping_add(c));
            }
            Op::Convert(Convert::SiToF, S::I32, S::F32) => map1(to, from, n, |x: i32| x as f32),
            Op::Convert(Convert::UiToF, S::I32, S::F32) => map1(to, from, n, |x: u32| x as f32),
            Op::Convert(Convert::SiToF, S::I8, S::F32) => map1(to, from, n, |x: i8| x as f32),
            Op::Convert(Convert::UiToF, S::I8, S::F32) => map1(to, from, n, |x: u8| x as f32),
            Op::Convert(Convert::SiToF, S::I16, S::F32) => map1(to, from, n, |x: i16| x as f32),
            Op::Convert(Convert::SiToF, S::I64 | S::Index, S::F32) => map1(to, from, n, |x: i64| x as f32),
            Op::Convert(Convert::FToSi, S::F32, S::I32) => map1(to, from, n, |x: f32| x as i32),
            Op::Convert(Convert::FToUi, S::F32, S::I32) => map1(to, from, n, |x: f32| x as u32),
            Op::Convert(Convert::UiToF, S::I1, S::F32) => map1(to, from, n, |x: u8| (x & 1) as f32),
            Op::Convert(Convert::ExtSI, S::I32, S::I64 | S::Index) => map1(to, from, n, |x: i32| x as i64),
            Op::Convert(Convert::ExtUI, S::I32, S::I64 | S::Index | S::Offset) => map1(to, from, n, |x: u32| x as u64),
            Op::Convert(Convert::TruncI, S::I64 | S::Index | S::Offset, S::I32) => map1(to, from, n, |x: u64| x as u32),
            Op::Convert(Convert::Bitcast, S::I32, S::F32) | Op::Convert(Convert::Bitcast, S::F32, S::I32) => {
                map1(to, from, n, |x: u32| x);
            }
            Op::FmaExtended(S::BF16) if MATH => {
                map3(to, from, n, |a: u16, b: u16, c: f32| bf16_to_f32(a).mul_add(bf16_to_f32(b), c))
            }
            Op::FmaExtended(S::F16) if MATH => {
                map3(to, from, n, |a: u16, b: u16, c: f32| f16_to_f32(a).mul_add(f16_to_f32(b), c))
            }
            Op::FmaExtended(_)
            | Op::Unary(..)
            | Op::Binary(..)
            | Op::Ternary(..)
            | Op::CompareI(..)
            | Op::CompareF(..)
            | Op::Classify(..)
            | Op::Convert(..) => each(op, to, from, n),
        }
    }
}

#[inline(always)]
fn bf16_to_f32(x: u16) -> f32 {
    // A signalling NaN becomes quiet, as `half` has it.
    let quiet = if x & 0x7fff > 0x7f80 { 0x40 } else { 0 };
    f32::from_bits(u32::from(x | quiet) << 16)
}

/// Exact. Without a branch, so that a loop of them is one of vectors.
#[inline(always)]
pub(super) fn f16_to_f32(x: u16) -> f32 {
    let (sign, magnitude) = (u32::from(x & 0x8000) << 16, u32::from(x & 0x7fff));
    // The exponent is 112 more: a multiplication, which also makes subnormals normal.
    let scaled = (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits();
    // Infinities and NaNs keep their exponent full; a signalling NaN becomes quiet, as `half` has it.
    let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
    let special = (magnitude << 13) | 0x7f80_0000 | quiet;
    f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { scaled })
}

/// To nearest, ties to even; overflow to infinity. Without a branch, as above.
#[inline(always)]
fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let (sign, magnitude) = ((bits >> 16) & 0x8000, bits & 0x7fff_ffff);
    // Normal results: round at bit 13, then rebase the exponent.
    let rounded = magnitude.wrapping_add(0xfff + ((magnitude >> 13) & 1));
    let normal = rounded.wrapping_sub(112 << 23) >> 13;
    // Subnormal results: adding 2^-1 of the half's last place aligns the significand, and the addition rounds it.
    let aligned = (f32::from_bits(magnitude) + f32::from_bits(0x3f00_0000)).to_bits().wrapping_sub(0x3f00_0000);
    let small = if magnitude < 0x3880_0000 { aligned } else { normal };
    let finite = if magnitude >= 0x477f_f000 { 0x7c00 } else { small };
    let nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    (sign | if magnitude > 0x7f80_0000 { nan } else { finite }) as u16
}

#[inline(always)]
fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if x.is_nan() { nan } else { rounded }) as u16
}

#[inline(always)]
unsafe fn unary_f32<const MATH: bool>(unary: Unary, op: Op, to: *mut u8, from: [Operand; 3], n: usize) {
    macro_rules! functions {
        ($($name:ident $f:expr,)*) => {
            // SAFETY: the caller's promises are `Map`'s.
            unsafe { match unary {
                Unary::NegF => map1(to, from, n, |x: u32| x ^ 0x8000_0000),
                Unary::AbsF => map1(to, from, n, |x: u32| x & 0x7fff_ffff),
                Unary::SqrtF => map1(to, from, n, math::sqrt),
                Unary::RsqrtF => map1(to, from, n, math::rsqrt),
                $(Unary::$name if MATH => map1(to, from, n, $f),)*
                _ => each(op, to, from, n),
            } }
        };
    }
    // The others are calls of the standard library, whatever the instructions.
    functions! {
        SignF math::sign,
        CeilF f32::ceil,
        FloorF f32::floor,
        TruncF f32::trunc,
        RoundF f32::round,
        RoundEvenF f32::round_ties_even,
        ExpF math::exp,
        Exp2F math::exp2,
        Expm1F math::expm1,
        LogF math::log,
        Log2F math::log2,
        Log10F math::log10,
        Log1pF math::log1p,
        CbrtF math::cbrt,
        SinhF math::sinh,
        CoshF math::cosh,
        TanhF math::tanh,
        AsinhF math::asinh,
        AcoshF math::acosh,
        AtanhF math::atanh,
        ErfF math::erf,
        ErfcF math::erfc,
        LogisticF math::logistic,
        SiluF math::silu,
        SoftplusF math::softplus,
        GeluErfF math::gelu_erf,
        GeluTanhF math::gelu_tanh,
    }
}

#[inline(always)]
unsafe fn binary_f32<const MATH: bool>(binary: Binary, op: Op, to: *mut u8, from: [Operand; 3], n: usize) {
    // SAFETY: the caller's promises are `Map`'s.
    unsafe {
        match binary {
            Binary::AddF => map2(to, from, n, |a: f32, b: f32| a + b),
            Binary::SubF => map2(to, from, n, |a: f32, b: f32| a - b),
            Binary::MulF => map2(to, from, n, |a: f32, b: f32| a * b),
            Binary::DivF => map2(to, from, n, |a: f32, b: f32| a / b),
            Binary::CopySignF => map2(to, from, n, f32::copysign),
            Binary::MinNumF => map2(to, from, n, math::minnum),
            Binary::MaxNumF => map2(to, from, n, math::maxnum),
            Binary::MinimumF => map2(to, from, n, math::minimum),
            Binary::MaximumF => map2(to, from, n, math::maximum),
            Binary::PowF if MATH => map2(to, from, n, math::pow),
            Binary::GeluLogisticF if MATH => map2(to, from, n, math::gelu_logistic),
            _ => each(op, to, from, n),
        }
    }
}

#[inline(always)]
unsafe fn compare_f32(predicate: FloatPredicate, to: *mut u8, [a, b, c]: [Operand; 3], n: usize) {
    use FloatPredicate as P;
    // Five loops: the other predicates exchange the operands, or are the opposite of one.
    let (base, from, opposite) = match predicate {
        P::Oeq | P::Olt | P::Ole | P::One | P::Ord => (predicate, [a, b, c], 0),
        P::Ogt => (P::Olt, [b, a, c], 0),
        P::Oge => (P::Ole, [b, a, c], 0),
        P::Une => (P::Oeq, [a, b, c], 1),
        P::Uge => (P::Olt, [a, b, c], 1),
        P::Ugt => (P::Ole, [a, b, c], 1),
        P::Ule => (P::Olt, [b, a, c], 1),
        P::Ult => (P::Ole, [b, a, c], 1),
        P::Ueq => (P::One, [a, b, c], 1),
        P::Uno => (P::Ord, [a, b, c], 1),
    };
    // SAFETY: the caller's promises are `Map`'s.
    unsafe {
        match base {
            P::Oeq => map2(to, from, n, |a: f32, b: f32| u8::from(a == b) ^ opposite),
            P::Olt => map2(to, from, n, |a: f32, b: f32| u8::from(a < b) ^ opposite),
            P::Ole => map2(to, from, n, |a: f32, b: f32| u8::from(a <= b) ^ opposite),
            P::One => map2(to, from, n, |a: f32, b: f32| u8::from((a < b) | (a > b)) ^ opposite),
            _ => map2(to, from, n, |a: f32, b: f32| u8::from(!a.is_nan() & !b.is_nan()) ^ opposite),
        }
    }
}

macro_rules! integers {
    ($binary:ident, $compare:ident, $unsigned:ident, $signed:ident) => {
        /// Compiled once: integers are rarely what a kernel waits for.
        #[inline(never)]
        unsafe fn $binary(binary: Binary, op: Op, to: *mut u8, from: [Operand; 3], n: usize) {
            const MASK: $unsigned = $unsigned::BITS as $unsigned - 1;
            // SAFETY: the caller's promises are `Map`'s.
            unsafe {
                match binary {
                    Binary::AddI => map2(to, from, n, $unsigned::wrapping_add),
                    Binary::SubI => map2(to, from, n, $unsigned::wrapping_sub),
                    Binary::MulI => map2(to, from, n, $unsigned::wrapping_mul),
                    Binary::MinSI => map2(to, from, n, |a: $signed, b: $signed| a.min(b)),
                    Binary::MaxSI => map2(to, from, n, |a: $signed, b: $signed| a.max(b)),
                    Binary::MinUI => map2(to, from, n, |a: $unsigned, b: $unsigned| a.min(b)),
                    Binary::MaxUI => map2(to, from, n, |a: $unsigned, b: $unsigned| a.max(b)),
                    // By zero is 0, as `eval` has it.
                    Binary::DivUI => map2(to, from, n, |a: $unsigned, b: $unsigned| a.checked_div(b).unwrap_or(0)),
                    Binary::RemUI => map2(to, from, n, |a: $unsigned, b: $unsigned| a.checked_rem(b).unwrap_or(0)),
                    Binary::ShrSI => map2(to, from, n, |a: $signed, b: $signed| a >> (b & MASK as $signed)),
                    Binary::AndI => map2(to, from, n, |a: $unsigned, b: $unsigned| a & b),
                    Binary::OrI => map2(to, from, n, |a: $unsigned, b: $unsigned| a | b),
                    Binary::XorI => map2(to, from, n, |a: $unsigned, b: $unsigned| a ^ b),
                    Binary::ShlI => map2(to, from, n, |a: $unsigned, b: $unsigned| a << (b & MASK)),
                    Binary::ShrUI => map2(to, from, n, |a: $unsigned, b: $unsigned| a >> (b & MASK)),
                    _ => each(op, to, from, n),
                }
            }
        }

        #[inline(never)]
        unsafe fn $compare(predicate: IntPredicate, to: *mut u8, [a, b, c]: [Operand; 3], n: usize) {
            use IntPredicate as P;
            let (base, from, opposite) = match predicate {
                P::Eq | P::Slt | P::Ult => (predicate, [a, b, c], 0),
                P::Ne => (P::Eq, [a, b, c], 1),
                P::Sge => (P::Slt, [a, b, c], 1),
                P::Uge => (P::Ult, [a, b, c], 1),
                P::Sgt => (P::Slt, [b, a, c], 0),
                P::Ugt => (P::Ult, [b, a, c], 0),
                P::Sle => (P::Slt, [b, a, c], 1),
                P::Ule => (P::Ult, [b, a, c], 1),
            };
            // SAFETY: the caller's promises are `Map`'s.
            unsafe {
                match base {
                    P::Eq => map2(to, from, n, |a: $unsigned, b: $unsigned| u8::from(a == b) ^ opposite),
                    P::Slt => map2(to, from, n, |a: $signed, b: $signed| u8::from(a < b) ^ opposite),
                    _ => map2(to, from, n, |a: $unsigned, b: $unsigned| u8::from(a < b) ^ opposite),
                }
            }
        }
    };
}
integers!(binary_i8, compare_i8, u8, i8);
integers!(binary_i16, compare_i16, u16, i16);
integers!(binary_i32, compare_i32, u32, i32);
integers!(binary_i64, compare_i64, u64, i64);

/// The bits of element `i` of type `ty`.
///
/// # Safety
///
/// `at` is valid for reading `i + 1` elements.
pub(super) unsafe fn bits(ty: ScalarType, at: *const u8, i: usize) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        match ty.bytes() {
            1 => u64::from(at.add(i).read()),
            2 => u64::from(at.cast::<u16>().add(i).read_unaligned()),
            4 => u64::from(at.cast::<u32>().add(i).read_unaligned()),
            _ => at.cast::<u64>().add(i).read_unaligned(),
        }
    }
}

/// Writes the bits of element `i` of type `ty`.
///
/// # Safety
///
/// `to` is valid for writing `i + 1` elements.
pub(super) unsafe fn set_bits(ty: ScalarType, to: *mut u8, i: usize, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match ty.bytes() {
            1 => to.add(i).write(value as u8),
            2 => to.cast::<u16>().add(i).write_unaligned(value as u16),
            4 => to.cast::<u32>().add(i).write_unaligned(value as u32),
            _ => to.cast::<u64>().add(i).write_unaligned(value),
        }
    }
}

/// Any op, one element after the other.
#[inline(never)]
unsafe fn each(op: Op, to: *mut u8, from: [Operand; 3], n: usize) {
    for i in 0..n {
        let mut values = [0; 3];
        for (at, value) in values.iter_mut().enumerate().take(op.operands()) {
            let operand = from[at];
            // SAFETY: the caller's promises are `Map`'s.
            *value = unsafe { bits(op.operand(at), operand.at, if operand.each { i } else { 0 }) };
        }
        // SAFETY: as above.
        unsafe { set_bits(op.result(), to, i, op.evaluate(values)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom_compiler::eval;

    /// The branch-free conversions against the one definition: every half, and floats all over the range with the ties
    /// and limits between halves among them.
    #[test]
    fn halves_convert_as_defined() {
        for bits in 0..=u16::MAX {
            let expected = eval::convert(Convert::ExtF, ScalarType::F16, ScalarType::F32, bits.into()) as u32;
            assert_eq!(f16_to_f32(bits).to_bits(), expected, "{bits:#06x}");
        }
        let check = |bits: u32| {
            let expected = eval::convert(Convert::TruncF, ScalarType::F32, ScalarType::F16, bits.into()) as u16;
            assert_eq!(f32_to_f16(f32::from_bits(bits)), expected, "{bits:#010x}");
        };
        (0..=u32::MAX).step_by(1009).for_each(check);
        for half in 0..=u16::MAX {
            let bits = f16_to_f32(half).to_bits();
            for near in [bits, bits ^ 1, bits.wrapping_add(0xfff), bits.wrapping_add(0x1000), bits.wrapping_add(0x1001)]
            {
                check(near);
            }
        }
        (0x3300_0000u32..0x3880_2000).step_by(41).for_each(check);
    }
}
