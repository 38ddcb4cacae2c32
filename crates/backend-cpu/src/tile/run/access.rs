//! Reads and writes of a tile's items: every address is checked here, and nowhere else.
//!
//! - What is handed out ([`Run::checked`], [`Run::contiguous`]) lies inside its buffer; what does not is a fault that names
//!   the access. Of scratch, an item has the part of its own workgroup, or its own.
//! - Items whose mask is off touch no memory.

use std::ptr;

use loom_compiler::tile::{Access, Buffer, Offsets, SiteId};
use loom_compiler::types::ScalarType;

use super::super::{Fault, Memory};
use super::{Binding, Exec, Line, Owner, Run, Stop};

/// Active items of a tile whose elements are evenly spaced: `count` of them from item `first` (counted from the
/// range's start), element `i` at `at + i·step` bytes.
pub(super) struct Stretch<T> {
    pub(super) first: usize,
    at: *mut T,
    step: isize,
    pub(super) count: usize,
}

impl<T> Stretch<T> {
    pub(super) fn element(&self, i: usize) -> *mut T {
        self.at.wrapping_byte_offset(self.step * i as isize)
    }
}

/// The most bytes that are asked for at once.
const FETCH_MAX: usize = 8192;

/// Asks for the `bytes` from `at` on, which need not exist. A reduction does little for each element, in a burst, which the
/// machine's own prefetching is slow to see through; what is written is better left to it.
#[inline(always)]
pub(super) fn fetch(at: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes.min(FETCH_MAX)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch of any address is no access: it neither faults nor reads as far as the program can tell.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, bytes);
}

/// Whether all items of the range may access `size` bytes at their offsets, as far as that can be told at once.
///
/// # Safety
///
/// `offsets` is valid for reading an element for each item of the tile.
unsafe fn all_inside(binding: Binding, offsets: *const i64, exec: Exec, size: usize) -> bool {
    let Some(last) = binding.len.checked_sub(size).filter(|_| binding.owner == Owner::Launch) else {
        return false;
    };
    let last = last as i64;
    // The sign of what is below the start, and of what is past the last place; without a branch, for vectors.
    let outside = (exec.lo..exec.hi).fold(0, |outside, i| {
        // SAFETY: the caller's promise.
        let offset = unsafe { offsets.add(i).read() };
        outside | offset | last.wrapping_sub(offset)
    });
    outside >= 0
}

impl Run<'_> {
    /// What buffer `buffer` of the program is.
    pub(super) fn memory(&self, buffer: u32) -> Memory {
        match self.program.buffers[buffer as usize] {
            Buffer::Argument(_) => Memory::Argument,
            Buffer::Workgroup { .. } => Memory::Workgroup,
            Buffer::Private { .. } => Memory::Private,
            Buffer::Constant { .. } => Memory::Constant,
        }
    }

    #[cold]
    pub(super) fn out_of_bounds(&self, buffer: u32, index: i64, bytes: usize, limit: usize, site: SiteId) -> Stop {
        let site = &self.program.sites[site.0 as usize];
        Box::new(Fault::OutOfBounds {
            kernel: self.name.to_owned(),
            op: site.op.clone(),
            at: site.span.start,
            line: site.line,
            index,
            bytes,
            memory: self.memory(buffer),
            buffer,
            limit,
        })
    }

    /// The address of `bytes` bytes at `offset`, if the buffer has them.
    pub(super) fn checked(&self, buffer: u32, offset: i64, bytes: usize, site: SiteId) -> Result<*mut u8, Stop> {
        let binding = self.buffers[buffer as usize];
        let fits = usize::try_from(offset).is_ok_and(|offset| bytes <= binding.len && offset <= binding.len - bytes);
        if fits {
            // SAFETY: inside of the buffer.
            Ok(unsafe { binding.ptr.add(offset as usize) })
        } else {
            Err(self.out_of_bounds(buffer, offset, bytes, binding.len, site))
        }
    }

    /// The bytes of a buffer that an item may touch: its own part, where each has one.
    #[inline(always)]
    fn part(&self, buffer: u32, segment: usize, item: usize) -> (i64, i64) {
        let Binding { len, part, owner, .. } = self.buffers[buffer as usize];
        let (start, end) = match owner {
            Owner::Launch => (0, len),
            Owner::Segment => (segment.saturating_mul(part), (segment + 1).saturating_mul(part)),
            Owner::Item => (item.saturating_mul(part), (item + 1).saturating_mul(part)),
        };
        (start.min(len) as i64, end.min(len) as i64)
    }

    /// [`Self::checked`] for the item `item` of segment `segment`: in its own part.
    fn checked_own(
        &self,
        access: Access,
        offset: i64,
        bytes: usize,
        [segment, item]: [usize; 2],
    ) -> Result<*mut u8, Stop> {
        let (start, end) = self.part(access.buffer, segment, item);
        if offset >= start && offset.checked_add(bytes as i64).is_some_and(|past| past <= end) {
            // SAFETY: inside of the buffer.
            return Ok(unsafe { self.buffers[access.buffer as usize].ptr.add(offset as usize) });
        }
        let limit = (end - start) as usize;
        Err(self.out_of_bounds(access.buffer, offset.wrapping_sub(start), bytes, limit, access.site))
    }

    /// Whether all items of the range, each accessing `size` bytes along `line`, stay in their own parts, as far as that can
    /// be told at once.
    fn all_own(&self, buffer: u32, line: Line, size: i64, exec: Exec) -> bool {
        let Binding { part, owner, .. } = self.buffers[buffer as usize];
        let part = part as i64;
        let one = exec.hi <= self.width;
        let (first, last) = match owner {
            Owner::Launch => return true,
            Owner::Segment if one => (exec.lo, exec.hi - 1),
            Owner::Segment if line.g == part => (0, self.width - 1),
            Owner::Item if line.l == part && (one || line.g == part.wrapping_mul(self.width as i64)) => (0, 0),
            Owner::Segment | Owner::Item => return false,
        };
        let at = |item: usize| line.l.checked_mul(item as i64).and_then(|span| line.base.checked_add(span));
        let inside = |at: i64| at >= 0 && at.checked_add(size).is_some_and(|past| past <= part);
        at(first).is_some_and(inside) && at(last).is_some_and(inside)
    }

    /// The address of item `lo`'s element, if the range's elements lie side by side and all of them are accessed.
    #[inline(always)]
    pub(super) fn contiguous(&self, access: Access, ty: ScalarType, exec: Exec) -> Result<Option<*mut u8>, Stop> {
        let Offsets::Affine(offsets) = access.offsets else {
            return Ok(None);
        };
        let line = self.numbers(offsets);
        let size = ty.bytes() as i64;
        if !exec.mask.is_null() || self.stride(line, exec) != Some(size) {
            return Ok(None);
        }
        if !self.all_own(access.buffer, line, size, exec) {
            return Ok(None);
        }
        let start = line.base.wrapping_add(size * exec.lo as i64);
        let bytes = (exec.hi - exec.lo) * size as usize;
        let at = self.checked(access.buffer, start, bytes, access.site)?;
        Ok(Some(at))
    }

    /// Copies the active items' elements to `to`, item `lo`'s first.
    pub(super) unsafe fn gather(&self, access: Access, ty: ScalarType, exec: Exec, to: *mut u8) -> Result<(), Stop> {
        // SAFETY: `to` holds a tile; addresses are checked.
        unsafe {
            match ty.bytes() {
                1 => self.gather_as::<u8>(access, exec, to.cast()),
                2 => self.gather_as::<u16>(access, exec, to.cast()),
                4 => self.gather_as::<u32>(access, exec, to.cast()),
                _ => self.gather_as::<u64>(access, exec, to.cast()),
            }
        }
    }

    unsafe fn gather_as<T: Copy>(&self, access: Access, exec: Exec, to: *mut T) -> Result<(), Stop> {
        let copy = |run: Stretch<T>| {
            // SAFETY: the run's addresses are in bounds and may be unaligned; `to` holds the range's items.
            unsafe {
                let to = to.add(run.first);
                if run.step == size_of::<T>() as isize {
                    // Rows of a tensor are what most runs are: copied whole.
                    ptr::copy_nonoverlapping(run.at.cast::<u8>(), to.cast::<u8>(), run.count * size_of::<T>());
                } else if run.step == 0 {
                    let value = run.at.read_unaligned();
                    (0..run.count).for_each(|i| to.add(i).write(value));
                } else {
                    (0..run.count).for_each(|i| to.add(i).write(run.element(i).read_unaligned()));
                }
            }
        };
        // SAFETY: as the caller's.
        unsafe { self.each_run(access, exec, copy) }
    }

    /// Copies elements from `from` to the active items' places, in ascending order.
    pub(super) unsafe fn scatter(
        &self,
        access: Access,
        ty: ScalarType,
        exec: Exec,
        from: *const u8,
    ) -> Result<(), Stop> {
        // SAFETY: `from` holds a tile; addresses are checked.
        unsafe {
            match ty.bytes() {
                1 => self.scatter_as::<u8>(access, exec, from.cast()),
                2 => self.scatter_as::<u16>(access, exec, from.cast()),
                4 => self.scatter_as::<u32>(access, exec, from.cast()),
                _ => self.scatter_as::<u64>(access, exec, from.cast()),
            }
        }
    }

    unsafe fn scatter_as<T: Copy>(&self, access: Access, exec: Exec, from: *const T) -> Result<(), Stop> {
        let copy = |run: Stretch<T>| {
            // SAFETY: the run's addresses are in bounds and may be unaligned; `from` holds the range's items, in memory
            // of the executor's own.
            unsafe {
                let from = from.add(run.first);
                if run.step == size_of::<T>() as isize {
                    ptr::copy_nonoverlapping(from.cast::<u8>(), run.at.cast::<u8>(), run.count * size_of::<T>());
                } else {
                    (0..run.count).for_each(|i| run.element(i).write_unaligned(from.add(i).read()));
                }
            }
        };
        // SAFETY: as the caller's.
        unsafe { self.each_run(access, exec, copy) }
    }

    /// Calls `visit` for runs of active items in ascending order, all their addresses being in bounds.
    #[inline(always)]
    pub(super) unsafe fn each_run<T>(
        &self,
        access: Access,
        exec: Exec,
        visit: impl Fn(Stretch<T>),
    ) -> Result<(), Stop> {
        let size = size_of::<T>();
        let one = |place: usize, at: *mut u8| Stretch { first: place, at: at.cast(), step: 0, count: 1 };
        let mut fault = None;
        match access.offsets {
            Offsets::Affine(offsets) => {
                let line = self.numbers(offsets);
                let binding = self.buffers[access.buffer as usize];
                self.runs(exec, |segment, item, first, count| {
                    let start = line.base.wrapping_add(line.g.wrapping_mul(segment as i64));
                    let start = start.wrapping_add(line.l.wrapping_mul(item as i64));
                    // Both ends inside: everything between is.
                    let last = line.l.checked_mul(count as i64 - 1).and_then(|span| start.checked_add(span));
                    let own = |item: usize| self.part(access.buffer, segment, item);
                    let ((from, _), (_, to)) = (own(first), own(first + count - 1));
                    let fits = |at: i64, from: i64, to: i64| at >= from && at <= to.wrapping_sub(size as i64);
                    // Where each item has a part of its own, all are inside if the first is and all are alike.
                    let inside = last.is_some_and(|last| match binding.owner {
                        Owner::Item => line.l == binding.part as i64 && fits(start, from, own(first).1),
                        Owner::Launch | Owner::Segment => {
                            fits(start.min(last), from, to) && fits(start.max(last), from, to)
                        }
                    });
                    if inside && exec.mask.is_null() {
                        // SAFETY: the start is inside.
                        let at = unsafe { binding.ptr.add(start as usize) }.cast();
                        visit(Stretch { first: first - exec.lo, at, step: line.l as isize, count });
                        return true;
                    }
                    for i in 0..count {
                        // SAFETY: the mask covers the tile.
                        if !exec.mask.is_null() && unsafe { *exec.mask.add(first + i) } == 0 {
                            continue;
                        }
                        let offset = start.wrapping_add(line.l.wrapping_mul(i as i64));
                        match self.checked_own(access, offset, size, [segment, first + i]) {
                            Ok(at) => visit(one(first - exec.lo + i, at)),
                            Err(found) => {
                                fault = Some(found);
                                return false;
                            }
                        }
                    }
                    true
                });
            }
            Offsets::Gather(reg) => {
                // SAFETY: the register holds the tile's items.
                let offsets = unsafe { self.element(reg, ScalarType::I64, 0) }.cast::<i64>();
                let binding = self.buffers[access.buffer as usize];
                // SAFETY: as above.
                if exec.mask.is_null() && unsafe { all_inside(binding, offsets, exec, size) } {
                    for i in exec.lo..exec.hi {
                        // SAFETY: all offsets are inside of the buffer, which everybody may touch.
                        visit(one(i - exec.lo, unsafe { binding.ptr.add(offsets.add(i).read() as usize) }));
                    }
                    return Ok(());
                }
                for i in exec.lo..exec.hi {
                    // SAFETY: the mask and the register cover the tile.
                    let (on, offset) =
                        unsafe { (exec.mask.is_null() || *exec.mask.add(i) != 0, offsets.add(i).read()) };
                    if on {
                        visit(one(i - exec.lo, self.checked_own(access, offset, size, [i / self.width, i])?));
                    }
                }
            }
        }
        fault.map_or(Ok(()), Err)
    }
}
