//! Indivisible accesses: of a tile's items, ascending, to memory that other threads may access the same way meanwhile.
//!
//! - Every address is checked as that of a plain access is, and must be a multiple of the cell's size: what is not is a fault.
//! - Whatever a kernel asks for is sequentially consistent here, which is an ordering at least as strong.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use loom_compiler::ops::{Atomic, Binary, Combine};
use loom_compiler::tile::{Access, Op, Reg, Source};
use loom_compiler::types::ScalarType;

use super::super::Fault;
use super::super::kernels::{Operand, bits, set_bits};
use super::{Exec, Run, Stop};

/// A cell in memory, its content in the low bits of a word.
trait Memory: Sized {
    /// # Safety
    ///
    /// `at` is a valid address for reading and (unless the cell is only read) writing, a multiple of the size, and is accessed
    /// without being atomic by no other thread while the reference lives.
    unsafe fn at<'a>(at: *mut u8) -> &'a Self;
    fn read(&self) -> u64;
    fn write(&self, value: u64);
    fn swap(&self, value: u64) -> u64;
    fn add(&self, value: u64) -> u64;
    fn and(&self, value: u64) -> u64;
    fn or(&self, value: u64) -> u64;
    fn xor(&self, value: u64) -> u64;
    fn exchange(&self, expected: u64, value: u64) -> Result<u64, u64>;
}

macro_rules! memory {
    ($($cell:ident $word:ident),*) => {$(
        impl Memory for $cell {
            unsafe fn at<'a>(at: *mut u8) -> &'a Self {
                // SAFETY: the caller's promise.
                unsafe { $cell::from_ptr(at.cast()) }
            }

            fn read(&self) -> u64 {
                self.load(Ordering::SeqCst).into()
            }

            fn write(&self, value: u64) {
                self.store(value as $word, Ordering::SeqCst);
            }

            fn swap(&self, value: u64) -> u64 {
                $cell::swap(self, value as $word, Ordering::SeqCst).into()
            }

            fn add(&self, value: u64) -> u64 {
                self.fetch_add(value as $word, Ordering::SeqCst).into()
            }

            fn and(&self, value: u64) -> u64 {
                self.fetch_and(value as $word, Ordering::SeqCst).into()
            }

            fn or(&self, value: u64) -> u64 {
                self.fetch_or(value as $word, Ordering::SeqCst).into()
            }

            fn xor(&self, value: u64) -> u64 {
                self.fetch_xor(value as $word, Ordering::SeqCst).into()
            }

            fn exchange(&self, expected: u64, value: u64) -> Result<u64, u64> {
                let (expected, value) = (expected as $word, value as $word);
                let found = self.compare_exchange(expected, value, Ordering::SeqCst, Ordering::SeqCst);
                found.map(u64::from).map_err(u64::from)
            }
        }
    )*};
}

memory!(AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64);

/// Does `atomic` to `cell`; what it held.
#[inline(always)]
fn act(atomic: Atomic, ty: ScalarType, cell: &impl Memory, values: [u64; 2]) -> u64 {
    let update = |op: Binary| {
        let mut old = cell.read();
        loop {
            match cell.exchange(old, Op::Binary(op, ty).evaluate([old, values[0], 0])) {
                Ok(old) => return old,
                Err(found) => old = found,
            }
        }
    };
    match atomic {
        Atomic::Load => cell.read(),
        Atomic::Store => {
            cell.write(values[0]);
            0
        }
        Atomic::Exchange => cell.swap(values[0]),
        Atomic::CompareExchange { .. } => cell.exchange(values[0], values[1]).unwrap_or_else(|found| found),
        Atomic::SubI => cell.add(values[0].wrapping_neg()),
        Atomic::Combine(Combine::AddI) => cell.add(values[0]),
        Atomic::Combine(Combine::AndI) => cell.and(values[0]),
        Atomic::Combine(Combine::OrI) => cell.or(values[0]),
        Atomic::Combine(Combine::XorI) => cell.xor(values[0]),
        Atomic::Combine(combine) => update(combine.binary()),
    }
}

impl Run<'_> {
    pub(super) unsafe fn atomic(
        &mut self,
        atomic: Atomic,
        ty: ScalarType,
        to: Option<Reg>,
        from: &[Source; 2],
        access: Access,
        exec: Exec,
    ) -> Result<(), Stop> {
        let mut values = [Operand::one(std::ptr::null()); 2];
        // SAFETY: for all of it, registers hold the tile's items, and the caller's promises.
        unsafe {
            for (at, value) in values.iter_mut().enumerate().take(atomic.values()) {
                *value = self.source(from[at], ty, exec, at)?;
            }
            match ty.bytes() {
                1 => self.atomic_as::<AtomicU8, u8>(atomic, ty, to, values, access, exec),
                2 => self.atomic_as::<AtomicU16, u16>(atomic, ty, to, values, access, exec),
                4 => self.atomic_as::<AtomicU32, u32>(atomic, ty, to, values, access, exec),
                _ => self.atomic_as::<AtomicU64, u64>(atomic, ty, to, values, access, exec),
            }
        }
    }

    unsafe fn atomic_as<M: Memory, T>(
        &self,
        atomic: Atomic,
        ty: ScalarType,
        to: Option<Reg>,
        values: [Operand; 2],
        access: Access,
        exec: Exec,
    ) -> Result<(), Stop> {
        // SAFETY: the register holds the tile's items.
        let to = to.map(|to| unsafe { self.element(to, ty, exec.lo) });
        let crooked: Cell<*mut u8> = Cell::new(std::ptr::null_mut());
        let visit = |run: super::access::Stretch<T>| {
            for i in 0..run.count {
                let (at, item) = (run.element(i).cast::<u8>(), run.first + i);
                if !(at as usize).is_multiple_of(size_of::<T>()) && crooked.get().is_null() {
                    crooked.set(at);
                }
                if !crooked.get().is_null() {
                    return;
                }
                // SAFETY: the address is in bounds and aligned; values and results hold the range's items. Others access the
                // cell atomically, or not at all: that is what a kernel without races is.
                unsafe {
                    let value = |at: usize| {
                        let value = values[at];
                        if value.at.is_null() { 0 } else { bits(ty, value.at, value.index(item)) }
                    };
                    let old = act(atomic, ty, M::at(at), [value(0), value(1)]);
                    if let Some(to) = to {
                        set_bits(ty, to, item, old);
                    }
                }
            }
        };
        // SAFETY: as the caller's.
        unsafe { self.each_run(access, exec, visit)? };
        if crooked.get().is_null() {
            return Ok(());
        }
        let site = &self.program.sites[access.site.0 as usize];
        let start = self.buffers[access.buffer as usize].ptr as i64;
        Err(Box::new(Fault::Misaligned {
            kernel: self.name.to_owned(),
            op: site.op.clone(),
            at: site.span.start,
            line: site.line,
            index: (crooked.get() as i64).wrapping_sub(start),
            bytes: size_of::<T>(),
            memory: self.memory(access.buffer),
            buffer: access.buffer,
        }))
    }
}
