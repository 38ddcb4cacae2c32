//! The loops: one element-wise op over a run of elements.
//!
//! - Each op reads all operands of 16 elements, or of twice as many, before it writes their results, so that a result may
//!   overwrite an operand in place. Pointers need no alignment.
//! - The same source is compiled for each instruction set; every set gives the same bits, which are `eval`'s.
//! - Ops without a loop of their own go element by element through `eval`.
//! - Not here: which elements, and whether an access is in bounds (`run`, `memory`).

use std::mem::MaybeUninit;

use loom_compiler::math;
use loom_compiler::ops::{Binary, Combine, Convert, FloatPredicate, IntPredicate, REDUCTION_CHAINS, Ternary, Unary};
use loom_compiler::tile::Op;
use loom_compiler::types::ScalarType;

use super::folds::{Chain, Sums, chains, sums};
use super::product::{Products, products};
use crate::isa::Isa;

/// Elements of a chunk: read before any of their results is written.
const CHUNK: usize = 16;

/// Elements, one for each `run` results: one each, one for all, or one for each segment of a tile.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    /// The first.
    pub at: *const u8,
    /// How many results share an element.
    pub run: usize,
}

impl Operand {
    /// One element for each result.
    pub fn each(at: *const u8) -> Self {
        Self { at, run: 1 }
    }

    /// One element for all results.
    pub fn one(at: *const u8) -> Self {
        Self { at, run: usize::MAX }
    }

    /// Whether there is one for each result.
    pub fn is_each(self) -> bool {
        self.run == 1
    }

    /// Which element is result `i`'s.
    pub fn index(self, i: usize) -> usize {
        match self.run {
            1 => i,
            run => i / run,
        }
    }

    /// The operand of the results after `done`, a multiple of `run` unless one element is for all.
    #[inline(always)]
    fn after<T>(self, done: usize) -> Self {
        let elements = match self.run {
            1 => done,
            usize::MAX => 0,
            run => done / run,
        };
        Self { at: self.at.wrapping_add(elements * size_of::<T>()), ..self }
    }
}

/// How many results from the first on have the same element of every operand that has not one for each.
#[inline(always)]
fn span<const N: usize>(operands: [Operand; N], n: usize) -> usize {
    operands.iter().fold(n, |span, operand| if operand.run == 1 { span } else { span.min(operand.run) })
}

/// Applies the op to `n` elements.
///
/// # Safety
///
/// `to` is valid for writing `n` results, each operand for reading one element for each of its runs in `n`; operands that
/// overlap the result start where it starts, or are dead once it is written. Runs are 1, at least `n`, or all alike. The set
/// of instructions is available.
pub(super) type Map = unsafe fn(op: Op, to: *mut u8, from: [Operand; 3], n: usize);

/// The bits of `n` elements of the type combined, `n` at least 1, in the order of [`OpKind::SubgroupReduce`].
///
/// # Safety
///
/// `from` is valid for reading `n` elements. The set of instructions is available.
///
/// [`OpKind::SubgroupReduce`]: loom_compiler::ops::OpKind::SubgroupReduce
pub(super) type Fold = unsafe fn(combine: Combine, ty: ScalarType, from: *const u8, n: usize) -> u64;

/// The bits of the sum of `n` terms of f32, `n` at least 1, each rounded as it is made; in the order of [`Fold`]. The terms are
/// products with `b`'s elements, or squares of differences from the one element of `b`.
///
/// # Safety
///
/// `a` is valid for reading `n` elements, `b` for as many or one. The set of instructions is available.
pub(super) type FoldTerms = unsafe fn(a: *const u8, b: *const u8, n: usize) -> u64;

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
    pub fold_products: FoldTerms,
    pub fold_squares: FoldTerms,
    pub swap: Swap,
    pub chain: Chain,
    pub sums: Sums,
    pub products: Products,
    /// Whether large reductions fetch ahead. Machines with AVX-512 see through bursts by themselves, and lose by it.
    pub fetch: bool,
}

/// The loops compiled for `isa`, which must be available.
pub(super) fn loops(isa: Isa) -> Loops {
    let (products, chain, sums) = (products(isa), chains(isa), sums(isa));
    let portable = Loops {
        map: portable,
        fold: fold_portable,
        fold_products: fold_products_portable,
        fold_squares: fold_squares_portable,
        swap: swap_portable,
        chain,
        sums,
        products,
        fetch: true,
    };
    #[cfg(target_arch = "x86_64")]
    let avx2 = Loops {
        map: avx2,
        fold: fold_avx2,
        fold_products: fold_products_avx2,
        fold_squares: fold_squares_avx2,
        swap: swap_avx2,
        chain,
        sums,
        products,
        fetch: true,
    };
    #[cfg(target_arch = "x86_64")]
    let avx512 = Loops {
        map: avx512,
        fold: fold_avx512,
        fold_products: fold_products_avx512,
        fold_squares: fold_squares_avx512,
        swap: swap_avx512,
        chain,
        sums,
        products,
        fetch: false,
    };
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

/// A place on the stack that has whoever holds it align its frame to a vector of the widest registers. What registers have no room for lies
/// there, otherwise aligned to 16 bytes alone: across two lines, and for one process in 256 across two pages, which made an
/// exponential 2.7 times slower.
#[cfg(target_arch = "x86_64")]
#[repr(align(64))]
struct Aligned(std::mem::MaybeUninit<[u8; 64]>);

#[cfg(target_arch = "x86_64")]
impl Aligned {
    #[inline(always)]
    fn frame() -> Self {
        Self(std::mem::MaybeUninit::uninit())
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(op: Op, to: *mut u8, from: [Operand; 3], n: usize) {
    let frame = Aligned::frame();
    std::hint::black_box(&frame.0);
    // SAFETY: the caller's promises are `Map`'s.
    unsafe { any::<true>(op, to, from, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512(op: Op, to: *mut u8, from: [Operand; 3], n: usize) {
    let frame = Aligned::frame();
    std::hint::black_box(&frame.0);
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
each_set!(fold_products_any: fold_products_portable fold_products_avx2 fold_products_avx512 (a: *const u8, b: *const u8, n: usize) -> u64);
each_set!(fold_squares_any: fold_squares_portable fold_squares_avx2 fold_squares_avx512 (a: *const u8, b: *const u8, n: usize) -> u64);
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
unsafe fn fold_products_any(a: *const u8, b: *const u8, n: usize) -> u64 {
    let (a, b) = (a.cast::<f32>(), b.cast::<f32>());
    // SAFETY: the caller's promises are `FoldTerms`'s: elements below `n` are read.
    let sum = unsafe {
        let product = |at: usize| a.add(at).read_unaligned() * b.add(at).read_unaligned();
        let products = |at: usize| {
            let (a, b) = (chunk(a.add(at)), chunk(b.add(at)));
            let mut r = [0.0; CHUNK];
            for i in 0..CHUNK {
                r[i] = a[i] * b[i];
            }
            r
        };
        folded(n, product, products, |a, b| a + b)
    };
    u64::from(sum.to_bits())
}

#[inline(always)]
unsafe fn fold_squares_any(a: *const u8, b: *const u8, n: usize) -> u64 {
    let a = a.cast::<f32>();
    // SAFETY: the caller's promises are `FoldTerms`'s: elements below `n` are read, and the first of `b`.
    let sum = unsafe {
        let b = b.cast::<f32>().read_unaligned();
        let square = |at: usize| {
            let difference = a.add(at).read_unaligned() - b;
            difference * difference
        };
        let squares = |at: usize| {
            let a = chunk(a.add(at));
            let mut r = [0.0; CHUNK];
            for i in 0..CHUNK {
                r[i] = (a[i] - b) * (a[i] - b);
            }
            r
        };
        folded(n, square, squares, |a, b| a + b)
    };
    u64::from(sum.to_bits())
}

/// Partial results of a reduction: two chunks of them, which loops over a chunk are compiled best for.
const CHAINS: usize = REDUCTION_CHAINS;
const _: () = assert!(CHAINS == 2 * CHUNK);

#[inline(always)]
unsafe fn fold_as<T: Copy + Default>(from: *const T, n: usize, f: impl Fn(T, T) -> T) -> T {
    // SAFETY: elements below `n` are read.
    unsafe { folded(n, |at| from.add(at).read_unaligned(), |at| chunk(from.add(at)), f) }
}

/// Combines `n` values: `one(i)` is a value, `some(i)` a chunk of them.
#[inline(always)]
fn folded<T: Copy + Default>(
    n: usize,
    one: impl Fn(usize) -> T,
    some: impl Fn(usize) -> [T; CHUNK],
    f: impl Fn(T, T) -> T,
) -> T {
    if n < CHAINS {
        let mut sums = [T::default(); CHAINS];
        for (at, sum) in sums.iter_mut().enumerate().take(n) {
            *sum = one(at);
        }
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
    let (mut low, mut high) = (some(0), some(CHUNK));
    let mut at = CHAINS;
    while at + CHAINS <= n {
        let (next, after) = (some(at), some(at + CHUNK));
        for c in 0..CHUNK {
            low[c] = f(low[c], next[c]);
        }
        for c in 0..CHUNK {
            high[c] = f(high[c], after[c]);
        }
        at += CHAINS;
    }
    if at < n {
        let mut sums = [T::default(); CHAINS];
        sums[..CHUNK].copy_from_slice(&low);
        sums[CHUNK..].copy_from_slice(&high);
        for (c, sum) in sums.iter_mut().enumerate().take(n - at) {
            *sum = f(*sum, one(at + c));
        }
        low.copy_from_slice(&sums[..CHUNK]);
        high.copy_from_slice(&sums[CHUNK..]);
    }
    butterfly(&low, &high, f)
}

/// The last steps of a reduction. On its own: what is done to two values at the end would else make the compiler think of the
/// whole reduction as one of pairs.
#[inline(never)]
fn butterfly<T: Copy + Default>(low: &[T; CHUNK], high: &[T; CHUNK], f: impl Fn(T, T) -> T) -> T {
    let mut s16 = [T::default(); CHUNK];
    for c in 0..CHUNK {
        s16[c] = f(low[c], high[c]);
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
        if operand.is_each() {
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

/// `$map`, the loop of an op with such operands, of two chunks a turn while there are two; `$with` for either, and one; `$chunk` for one chunk.
macro_rules! maps {
    ($map:ident $with:ident $chunk:ident: $($operand:ident $ty:ident $at:ident $x:ident $step:ident),*) => {
        #[inline(always)]
        unsafe fn $map<$($ty: Copy + Default,)* R: Copy + Default>(
            to: *mut u8,
            from: [Operand; 3],
            n: usize,
            f: impl Fn($($ty),*) -> R,
        ) {
            // SAFETY: the caller's promises are `Map`'s.
            unsafe { $with::<true, $($ty,)* R>(to, from, n, f) }
        }

        /// The results of a chunk. A function, as closures are not sure to be compiled into their callers, for whose instructions.
        #[inline(always)]
        fn $chunk<$($ty: Copy,)* R: Copy + Default>($($x: [$ty; CHUNK],)* f: &impl Fn($($ty),*) -> R) -> [R; CHUNK] {
            let mut r = [R::default(); CHUNK];
            for i in 0..CHUNK {
                r[i] = f($($x[i]),*);
            }
            r
        }

        /// Functions of many instructions take one chunk a turn: `TWO` is false.
        #[inline(always)]
        unsafe fn $with<const TWO: bool, $($ty: Copy + Default,)* R: Copy + Default>(
            to: *mut u8,
            [$($operand,)* ..]: [Operand; 3],
            n: usize,
            f: impl Fn($($ty),*) -> R,
        ) {
            let (mut to, mut left) = (to.cast::<R>(), n);
            $(let mut $operand = $operand;)*
            let span = span([$($operand),*], n);
            let mut partial = MaybeUninit::<[R; CHUNK]>::uninit();
            while left > 0 {
                let n = span.min(left);
                let (whole, rest) = (n - n % CHUNK, n % CHUNK);
                // SAFETY: the caller's promises are `Map`'s; whole chunks are within `n`, the rest is copied out and in.
                unsafe {
                    $(
                        let mut $at = Chunks::<$ty>::new($operand);
                        let (mut $x, $step) = ($at.start(), $at.step * CHUNK);
                    )*
                    let (mut out, mut first) = (to.cast::<[R; CHUNK]>(), 0);
                    while TWO && first + 2 * CHUNK <= n {
                        let r = $chunk($(chunk($x),)* &f);
                        let next = $chunk($(chunk($x.wrapping_add($step)),)* &f);
                        out.write_unaligned(r);
                        out.wrapping_add(1).write_unaligned(next);
                        out = out.wrapping_add(2);
                        $($x = $x.wrapping_add(2 * $step);)*
                        first += 2 * CHUNK;
                    }
                    while first < n {
                        if first == whole {
                            $($x = $at.tail(first, rest);)*
                            out = partial.as_mut_ptr();
                        }
                        out.write_unaligned($chunk($(chunk($x),)* &f));
                        out = out.wrapping_add(1);
                        $($x = $x.wrapping_add($step);)*
                        first += CHUNK;
                    }
                    finish(&partial, to.wrapping_add(whole), rest);
                }
                to = to.wrapping_add(n);
                left -= n;
                $($operand = $operand.after::<$ty>(n);)*
            }
        }
    };
}
maps!(map1 map1_with chunk1: a A pa x sa);
maps!(map2 map2_with chunk2: a A pa x sa, b B pb y sb);
maps!(map3 map3_with chunk3: a A pa x sa, b B pb y sb, c C pc z sc);

/// Whether the op is one of a loop that computes for longer than memory takes: what the operands that it does not have point
/// to, if anywhere, is fetched meanwhile, element by element of four bytes. It need not exist.
pub(super) fn fetches(op: Op) -> bool {
    use Unary::{AbsF, NegF, RsqrtF, SqrtF};
    match op {
        Op::Unary(unary, ScalarType::F32) => !matches!(unary, NegF | AbsF | SqrtF | RsqrtF),
        Op::ExpDifference { .. } => true,
        _ => false,
    }
}

/// Elements that are computed for each few lines that are fetched.
const FETCHED: usize = 64;

#[inline(always)]
fn fetch(operand: Operand, first: usize) {
    #[cfg(target_arch = "x86_64")]
    if !operand.at.is_null() {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for line in (0..4 * FETCHED).step_by(64) {
            // SAFETY: a prefetch of any address is no access: it neither faults nor reads as far as the program can tell.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(operand.at.wrapping_add(4 * first + line).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (operand, first);
}

/// [`map1`] of a function of many instructions, which fetches what the other operands point to.
#[inline(always)]
unsafe fn long1<A: Copy + Default, R: Copy + Default>(
    to: *mut u8,
    [a, b, c]: [Operand; 3],
    n: usize,
    f: impl Fn(A) -> R + Copy,
) {
    let part = if b.at.is_null() && c.at.is_null() || !a.is_each() { n } else { FETCHED };
    let mut first = 0;
    while first < n {
        let count = part.min(n - first);
        if part < n {
            fetch(b, first);
            fetch(c, first);
        }
        let to = to.wrapping_add(first * size_of::<R>());
        // SAFETY: the caller's promises are `Map`'s.
        unsafe { map1_with::<false, A, R>(to, [a.after::<A>(first); 3], count, f) };
        first += count;
    }
}

/// [`map2`] of one.
#[inline(always)]
unsafe fn long2<A: Copy + Default, B: Copy + Default, R: Copy + Default>(
    to: *mut u8,
    from: [Operand; 3],
    n: usize,
    f: impl Fn(A, B) -> R,
) {
    // SAFETY: the caller's promises are `Map`'s.
    unsafe { map2_with::<false, A, B, R>(to, from, n, f) }
}

/// For each run of the operand `$one`: its element as `$value`, the first result as `$at`, how many as `$count`. No closure: one
/// that is not compiled into its caller is not compiled for the set of instructions.
macro_rules! each_run {
    ($one:ident, $n:expr, |$value:ident, $at:ident, $count:ident| $loop:expr) => {
        let (mut one, mut $at) = ($one, 0);
        while $at < $n {
            let $count = one.run.min($n - $at);
            let $value = one.at.cast::<f32>().read_unaligned();
            $loop;
            $at += $count;
            one = one.after::<f32>($count);
        }
    };
}

/// [`map2`] of the ops that are most used: what is one element stays in a register.
#[inline(always)]
unsafe fn hot2(to: *mut u8, [a, b, c]: [Operand; 3], n: usize, f: impl Fn(f32, f32) -> f32) {
    // SAFETY: the caller's promises are `Map`'s.
    unsafe {
        match (a.is_each(), b.is_each()) {
            (false, true) => {
                each_run!(a, n, |x, at, n| map1(to.add(4 * at), [b.after::<f32>(at); 3], n, |y| f(x, y)));
            }
            (true, false) => {
                each_run!(b, n, |y, at, n| map1(to.add(4 * at), [a.after::<f32>(at); 3], n, |x| f(x, y)));
            }
            _ => map2(to, [a, b, c], n, f),
        }
    }
}

/// [`map3`], likewise.
#[inline(always)]
unsafe fn hot3(to: *mut u8, [a, b, c]: [Operand; 3], n: usize, f: impl Fn(f32, f32, f32) -> f32) {
    // SAFETY: the caller's promises are `Map`'s.
    unsafe {
        let [ea, eb, ec] = [a, b, c].map(Operand::is_each);
        if !ea && eb && ec {
            each_run!(a, n, |x, at, n| {
                let rest = [b.after::<f32>(at), c.after::<f32>(at), c];
                map2(to.add(4 * at), rest, n, |y, z| f(x, y, z))
            });
        } else if ea && !eb && ec {
            each_run!(b, n, |y, at, n| {
                let rest = [a.after::<f32>(at), c.after::<f32>(at), c];
                map2(to.add(4 * at), rest, n, |x, z| f(x, y, z))
            });
        } else if ea && eb && !ec {
            each_run!(c, n, |z, at, n| {
                let rest = [a.after::<f32>(at), b.after::<f32>(at), c];
                map2(to.add(4 * at), rest, n, |x, y| f(x, y, z))
            });
        } else if ea && !eb && b.run == c.run {
            each_run!(b, n, |y, at, n| {
                let z = c.at.cast::<f32>().add(c.index(at)).read_unaligned();
                map1(to.add(4 * at), [a.after::<f32>(at); 3], n, |x| f(x, y, z))
            });
        } else {
            map3(to, [a, b, c], n, f);
        }
    }
}

/// `exp(a - b)`, by one of two functions.
#[inline(always)]
unsafe fn exp_difference(to: *mut u8, [a, b, c]: [Operand; 3], n: usize, exp: impl Fn(f32) -> f32 + Copy) {
    // SAFETY: the caller's promises are `Map`'s.
    unsafe {
        if a.is_each() && !b.is_each() {
            let nothing = Operand::one(std::ptr::null());
            each_run!(b, n, |y, at, n| {
                let ahead = if c.at.is_null() { c } else { c.after::<f32>(at) };
                long1(to.add(4 * at), [a.after::<f32>(at), ahead, nothing], n, |x: f32| exp(x - y))
            });
        } else {
            long2(to, [a, b, c], n, |x: f32, y: f32| exp(x - y));
        }
    }
}

#[inline(always)]
unsafe fn fill<T: Copy>(to: *mut u8, mut from: Operand, n: usize) {
    let (mut to, mut left) = (to.cast::<T>(), n);
    while left > 0 {
        let count = from.run.min(left);
        // SAFETY: the caller has an element for each run there, and room for `n`.
        unsafe {
            let one = from.at.cast::<T>().read_unaligned();
            for i in 0..count {
                to.add(i).write_unaligned(one);
            }
            to = to.add(count);
        }
        left -= count;
        from = from.after::<T>(count);
    }
}

#[inline(always)]
unsafe fn any<const MATH: bool>(op: Op, to: *mut u8, from: [Operand; 3], n: usize) {
    use ScalarType as S;
    // SAFETY: for all of it, the caller's promises are `Map`'s, and the types read are the op's.
    unsafe {
        match op {
            // An operand may overlap the result where memory is moved to memory.
            Op::Move(ty) if from[0].is_each() => std::ptr::copy(from[0].at, to, n * ty.bytes() as usize),
            Op::Move(ty) => match ty.bytes() {
                1 => fill::<u8>(to, from[0], n),
                2 => fill::<u16>(to, from[0], n),
                4 => fill::<u32>(to, from[0], n),
                _ => fill::<u64>(to, from[0], n),
            },
            Op::Unary(unary, S::F32) => unary_f32::<MATH>(unary, op, to, from, n),
            Op::Binary(binary, S::F32) => binary_f32::<MATH>(binary, op, to, from, n),
            Op::Ternary(Ternary::FmaF, S::F32) if MATH => hot3(to, from, n, f32::mul_add),
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
            Op::Convert(Convert::Bitcast, ..) => match op.result().bytes() {
                1 => map1(to, from, n, |x: u8| x),
                2 => map1(to, from, n, |x: u16| x),
                4 => map1(to, from, n, |x: u32| x),
                _ => map1(to, from, n, |x: u64| x),
            },
            Op::FmaExtended(S::BF16) if MATH => {
                map3(to, from, n, |a: u16, b: u16, c: f32| bf16_to_f32(a).mul_add(bf16_to_f32(b), c))
            }
            Op::FmaExtended(S::F16) if MATH => {
                map3(to, from, n, |a: u16, b: u16, c: f32| f16_to_f32(a).mul_add(f16_to_f32(b), c))
            }
            Op::Blend if MATH => hot3(to, from, n, blend),
            Op::ScaledDifference => hot3(to, from, n, scaled_difference),
            Op::ExpDifference { approximate: false } if MATH => exp_difference(to, from, n, math::exp),
            Op::ExpDifference { approximate: true } if MATH => exp_difference(to, from, n, math::approximate_exp),
            Op::FmaExtended(_)
            | Op::ExpDifference { .. }
            | Op::Blend
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
fn blend(t: f32, a: f32, b: f32) -> f32 {
    t.mul_add(a - b, b)
}

#[inline(always)]
fn scaled_difference(a: f32, b: f32, c: f32) -> f32 {
    (a - b) * c
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
                $(Unary::$name if MATH => long1(to, from, n, $f),)*
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
        ApproximateExpF math::approximate_exp,
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
            Binary::AddF => hot2(to, from, n, |a: f32, b: f32| a + b),
            Binary::SubF => hot2(to, from, n, |a: f32, b: f32| a - b),
            Binary::MulF => hot2(to, from, n, |a: f32, b: f32| a * b),
            Binary::DivF => map2(to, from, n, |a: f32, b: f32| a / b),
            Binary::CopySignF => map2(to, from, n, f32::copysign),
            Binary::MinNumF => map2(to, from, n, math::minnum),
            Binary::MaxNumF => map2(to, from, n, math::maxnum),
            Binary::MinimumF => map2(to, from, n, math::minimum),
            Binary::MaximumF => map2(to, from, n, math::maximum),
            Binary::PowF if MATH => long2(to, from, n, math::pow),
            Binary::GeluLogisticF if MATH => long2(to, from, n, math::gelu_logistic),
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
            *value = unsafe { bits(op.operand(at), operand.at, operand.index(i)) };
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
