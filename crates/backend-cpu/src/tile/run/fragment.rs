//! Fragments: a tile spread over the lanes of a subgroup, one register a slot.
//!
//! - A register holds one slot of all items, so sixteen neighbouring lanes are a row (or, of an lhs, a column) of the tile, side
//!   by side: a product reads and writes whole rows.
//! - Whole subgroups whose lanes agree on where a tile lies are checked once, at its corners. All else goes lane by lane.
//! - Only subgroups with an active item are worked on. Lanes that a partial last subgroup lacks count as zeros.

use std::ptr;

use loom_compiler::eval;
use loom_compiler::fragment::{Format, Fragment, Role, TILE};
use loom_compiler::tile::{Reg, Repack, Source, TileAccess, TileProduct};
use loom_compiler::types::ScalarType;

use super::super::kernels::{bits, set_bits};
use super::super::product::{Float, Rows, Square, Steps, transposed};
use super::{Exec, Run, Stop};

/// Lanes of a group: as many as a tile has rows or columns.
const GROUP: usize = TILE as usize;

/// A subgroup with an active item.
#[derive(Clone, Copy)]
struct Subgroup {
    /// Its first item.
    start: usize,
    /// Items it has: fewer than its lanes at the end of a workgroup.
    count: usize,
    /// Whether all of them are active.
    whole: bool,
}

/// Where a tile lies: its first element, and the distances of rows and columns, in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    origin: i64,
    row: i64,
    column: i64,
}

impl Place {
    fn offset(&self, row: u32, column: u32) -> i64 {
        let rows = self.row.wrapping_mul(i64::from(row));
        self.origin.wrapping_add(rows).wrapping_add(self.column.wrapping_mul(i64::from(column)))
    }
}

impl Run<'_> {
    /// Calls `visit` for each subgroup of `lanes` lanes with an active item, ascending, until it stops.
    fn subgroups(
        &self,
        lanes: u32,
        exec: Exec,
        mut visit: impl FnMut(&Self, Subgroup) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let lanes = lanes as usize;
        let length = self.program.workgroup_size.iter().product::<u32>().max(1) as usize;
        // SAFETY: the mask covers the tile.
        let on = |i: usize| unsafe { *exec.mask.add(i) } != 0;
        let mut group = exec.lo / length * length;
        while group < exec.hi {
            let mut start = group;
            while start < (group + length).min(exec.hi) {
                let end = (start + lanes).min(group + length).min(self.program.capacity as usize);
                let (first, last) = (start.max(exec.lo), end.min(exec.hi));
                let active = match exec.mask.is_null() {
                    true => last.saturating_sub(first),
                    false => (first..last).filter(|&i| on(i)).count(),
                };
                if active > 0 {
                    visit(self, Subgroup { start, count: end - start, whole: active == end - start })?;
                }
                start += lanes;
            }
            group += length;
        }
        Ok(())
    }

    fn number(&self, source: Source, item: usize) -> i64 {
        match source {
            Source::Slot(slot) => self.slot(slot) as i64,
            // SAFETY: the register holds the tile's items.
            Source::Reg(reg) => unsafe { self.element(reg, ScalarType::I64, item).cast::<i64>().read() },
            // Not in a program that was validated or compiled.
            Source::Segment(_) | Source::Memory(_) => 0,
        }
    }

    /// Whether `source` is the same number for all items of the subgroup.
    fn is_one(&self, source: Source, subgroup: Subgroup) -> bool {
        let Source::Reg(reg) = source else { return true };
        // SAFETY: the register holds the tile's items.
        let at = unsafe { self.element(reg, ScalarType::I64, subgroup.start) }.cast::<i64>();
        // SAFETY: as above.
        let number = |item: usize| unsafe { at.add(item).read() };
        // Without a branch, for vectors.
        let first = number(0);
        (0..subgroup.count).fold(0, |differ, item| differ | (number(item) ^ first)) == 0
    }

    fn place(&self, access: &TileAccess, item: usize) -> Place {
        let [row, column] = access.steps.map(|step| self.number(step, item));
        Place { origin: self.number(access.origin, item), row, column }
    }

    /// The address of the tile's first element, if all items of the subgroup mean the same tile and all of it is in bounds.
    fn shared(&self, access: &TileAccess, subgroup: Subgroup) -> Option<(*mut u8, Place)> {
        let fragment = access.fragment;
        if !subgroup.whole || subgroup.count != fragment.lanes as usize {
            return None;
        }
        let place = self.place(access, subgroup.start);
        let [rows, columns] = access.steps;
        if ![access.origin, rows, columns].into_iter().all(|source| self.is_one(source, subgroup)) {
            return None;
        }
        let rows = place.row.checked_mul(i64::from(fragment.rows - 1))?;
        let columns = place.column.checked_mul(i64::from(fragment.columns - 1))?;
        let least = place.origin.checked_add(rows.min(0))?.checked_add(columns.min(0))?;
        let most = place.origin.checked_add(rows.max(0))?.checked_add(columns.max(0))?;
        let binding = self.buffers[access.buffer as usize];
        let room = i64::try_from(binding.len).ok()?.checked_sub(access.ty.bytes() as i64)?;
        if least < 0 || most > room {
            return None;
        }
        // SAFETY: the origin lies between `least` and `most`, inside of the buffer.
        Some((unsafe { binding.ptr.add(place.origin as usize) }, place))
    }

    pub(super) unsafe fn fragment_load(&mut self, access: &TileAccess, exec: Exec) -> Result<(), Stop> {
        // SAFETY: the caller's promises.
        unsafe {
            match access.ty.bytes() {
                1 => self.load_as::<u8>(access, exec),
                2 => self.load_as::<u16>(access, exec),
                4 => self.load_as::<u32>(access, exec),
                _ => self.load_as::<u64>(access, exec),
            }
        }
    }

    pub(super) unsafe fn fragment_store(&mut self, access: &TileAccess, exec: Exec) -> Result<(), Stop> {
        // SAFETY: the caller's promises.
        unsafe {
            match access.ty.bytes() {
                1 => self.store_as::<u8>(access, exec),
                2 => self.store_as::<u16>(access, exec),
                4 => self.store_as::<u32>(access, exec),
                _ => self.store_as::<u64>(access, exec),
            }
        }
    }

    unsafe fn load_as<T: Copy + Default>(&self, access: &TileAccess, exec: Exec) -> Result<(), Stop> {
        let fragment = access.fragment;
        self.subgroups(fragment.lanes, exec, |run, subgroup| {
            let Some((first, place)) = run.shared(access, subgroup) else {
                return run.each_lane::<T>(access, subgroup, exec, |memory, register| {
                    // SAFETY: `each_lane` gives addresses inside of the buffer and of the frame.
                    unsafe { register.write(memory.map_or(T::default(), |at| at.read_unaligned())) };
                });
            };
            // SAFETY: the tile's elements are in bounds, and `shared` found all of the subgroup's items.
            if size_of::<T>() == 2 && unsafe { run.load_columns(access, first, place, subgroup) } {
                return Ok(());
            }
            for (slot, &reg) in access.registers.iter().enumerate() {
                // SAFETY: the register holds the tile's items; the tile's elements are in bounds, and may be unaligned.
                unsafe {
                    let to = run.element(reg, access.ty, subgroup.start).cast::<T>();
                    for group in 0..fragment.groups() as usize {
                        let to = to.add(group * GROUP);
                        if group > 0 && !fragment.role.is_accumulator() && !fragment.split {
                            ptr::copy_nonoverlapping(to.sub(GROUP), to, GROUP);
                            continue;
                        }
                        match run_of::<T>(fragment, first, place, group, slot) {
                            Some((from, step)) if step == size_of::<T>() as i64 => {
                                ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), GROUP * size_of::<T>());
                            }
                            Some((from, step)) => {
                                for lane in 0..GROUP {
                                    let from = from.wrapping_byte_offset(step as isize * lane as isize);
                                    to.add(lane).write(from.read_unaligned());
                                }
                            }
                            None => (0..GROUP).for_each(|lane| to.add(lane).write(T::default())),
                        }
                    }
                }
            }
            Ok(())
        })
    }

    /// Reads an operand of two-byte elements whose slots lie side by side in memory, eight by eight, if it is one.
    unsafe fn load_columns(&self, access: &TileAccess, first: *mut u8, place: Place, subgroup: Subgroup) -> bool {
        const SIDE: usize = 8;
        let fragment = access.fragment;
        let (lane_step, slot_step) = match fragment.role {
            Role::Lhs => (place.row, place.column),
            Role::Rhs => (place.column, place.row),
            Role::Init | Role::Result => return false,
        };
        if slot_step != 2 || lane_step == 2 || !access.registers.len().is_multiple_of(SIDE) {
            return false;
        }
        let groups = if fragment.split { fragment.groups() as usize } else { 1 };
        for group in 0..groups {
            for (block, registers) in access.registers.chunks_exact(SIDE).enumerate() {
                let slot = group * access.registers.len() + block * SIDE;
                for half in [0, SIDE] {
                    let from = first.wrapping_add(slot * 2).wrapping_byte_offset(lane_step as isize * half as isize);
                    // SAFETY: rows of the tile, which is in bounds; registers hold the subgroup's items.
                    unsafe {
                        let columns = transposed(std::array::from_fn(|lane| {
                            let at = from.wrapping_byte_offset(lane_step as isize * lane as isize);
                            at.cast::<[u16; SIDE]>().read_unaligned()
                        }));
                        for (&reg, column) in registers.iter().zip(columns) {
                            let to = self.element(reg, access.ty, subgroup.start + group * GROUP + half);
                            to.cast::<[u16; SIDE]>().write_unaligned(column);
                        }
                    }
                }
            }
        }
        for &reg in access.registers.iter().filter(|_| !fragment.split) {
            // SAFETY: as above; the first group holds what the others do.
            unsafe {
                let of = self.element(reg, access.ty, subgroup.start).cast::<[u16; GROUP]>();
                let held = of.read_unaligned();
                (1..fragment.groups() as usize).for_each(|group| of.add(group).write_unaligned(held));
            }
        }
        true
    }

    unsafe fn store_as<T: Copy>(&self, access: &TileAccess, exec: Exec) -> Result<(), Stop> {
        let fragment = access.fragment;
        self.subgroups(fragment.lanes, exec, |run, subgroup| {
            let Some((first, place)) = run.shared(access, subgroup) else {
                return run.each_lane::<T>(access, subgroup, exec, |memory, register| {
                    if let Some(at) = memory {
                        // SAFETY: `each_lane` gives addresses inside of the buffer and of the frame.
                        unsafe { at.write_unaligned(register.read()) };
                    }
                });
            };
            for (slot, &reg) in access.registers.iter().enumerate() {
                // SAFETY: as for loads.
                unsafe {
                    let from = run.element(reg, access.ty, subgroup.start).cast::<T>();
                    for group in 0..fragment.groups() as usize {
                        let from = from.add(group * GROUP);
                        match run_of::<T>(fragment, first, place, group, slot) {
                            Some((to, step)) if step == size_of::<T>() as i64 => {
                                ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), GROUP * size_of::<T>());
                            }
                            Some((to, step)) => {
                                for lane in 0..GROUP {
                                    let to = to.wrapping_byte_offset(step as isize * lane as isize);
                                    to.write_unaligned(from.add(lane).read());
                                }
                            }
                            None => {}
                        }
                    }
                }
            }
            Ok(())
        })
    }

    /// Calls `visit` with the place in memory, checked, and in its register of every slot of every active item.
    fn each_lane<T>(
        &self,
        access: &TileAccess,
        subgroup: Subgroup,
        exec: Exec,
        visit: impl Fn(Option<*mut T>, *mut T),
    ) -> Result<(), Stop> {
        for lane in 0..subgroup.count {
            let item = subgroup.start + lane;
            // SAFETY: the mask covers the tile.
            let on = || exec.mask.is_null() || unsafe { *exec.mask.add(item) } != 0;
            if item < exec.lo || item >= exec.hi || !on() {
                continue;
            }
            let place = self.place(access, item);
            for (slot, &reg) in access.registers.iter().enumerate() {
                let memory = match access.fragment.element(lane as u32, slot as u32) {
                    Some((row, column)) => {
                        let offset = place.offset(row, column);
                        Some(self.checked(access.buffer, offset, size_of::<T>(), access.site)?.cast())
                    }
                    None => None,
                };
                // SAFETY: the register holds the tile's items.
                visit(memory, unsafe { self.element(reg, access.ty, item) }.cast());
            }
        }
        Ok(())
    }

    pub(super) unsafe fn fragment_repack(&mut self, repack: &Repack, exec: Exec) -> Result<(), Stop> {
        let Repack { from, to, ty, values, results } = repack;
        self.subgroups(from.lanes, exec, |run, subgroup| {
            let mut tile = vec![0u64; (from.rows * from.columns) as usize];
            let index = |row: u32, column: u32| (row * from.columns + column) as usize;
            for row in 0..from.rows {
                for column in 0..from.columns {
                    let (lane, slot) = from.place(row, column);
                    if (lane as usize) < subgroup.count {
                        // SAFETY: the register holds the tile's items.
                        tile[index(row, column)] = unsafe {
                            bits(*ty, run.element(values[slot as usize], *ty, 0), subgroup.start + lane as usize)
                        };
                    }
                }
            }
            for (slot, &reg) in results.iter().enumerate() {
                for lane in 0..subgroup.count {
                    let held = to.element(lane as u32, slot as u32).map_or(0, |(row, column)| tile[index(row, column)]);
                    // SAFETY: as above.
                    unsafe { set_bits(*ty, run.element(reg, *ty, 0), subgroup.start + lane, held) };
                }
            }
            Ok(())
        })
    }

    pub(super) unsafe fn mma(&mut self, inst: &TileProduct, exec: Exec) -> Result<(), Stop> {
        self.subgroups(inst.product.sum.lanes, exec, |run, subgroup| {
            // SAFETY: the caller's promises.
            unsafe {
                if inst.product.lhs.is_integer() {
                    let mut sums = run.rows(inst, subgroup, |_, at| at.cast::<i32>().read());
                    for first in (0..inst.product.depth).step_by(GROUP) {
                        let a = run.integers(inst, Role::Lhs, first, subgroup);
                        let b = run.integers(inst, Role::Rhs, first, subgroup);
                        (run.loops.products.integers)(&a, &b, &mut sums);
                    }
                    run.spread_rows(inst, subgroup, &sums, |_, at, sum| at.cast::<i32>().write(sum));
                } else if inst.ty == ScalarType::F32
                    && inst.product.sum.spread == 1
                    && subgroup.count == inst.product.sum.lanes as usize
                {
                    run.float_sums(inst, subgroup, run.float_rows(inst, subgroup));
                } else {
                    let mut sums = run.rows(inst, subgroup, |ty, at| match ty {
                        ScalarType::F32 => at.cast::<f32>().read(),
                        _ => eval::to_f64(ty, bits(ty, at, 0)) as f32,
                    });
                    let to = std::array::from_fn(|row| sums[row].as_mut_ptr());
                    run.float_sums(inst, subgroup, Rows { from: to.map(|row| row.cast_const()), to });
                    run.spread_rows(inst, subgroup, &sums, |ty, at, sum| match ty {
                        ScalarType::F32 => at.cast::<f32>().write(sum),
                        _ => set_bits(ty, at, 0, eval::from_f64(ty, f64::from(sum))),
                    });
                }
            }
            Ok(())
        })
    }

    /// Adds the product of two tiles to the rows of a third.
    unsafe fn float_sums(&self, inst: &TileProduct, subgroup: Subgroup, mut rows: Rows) {
        for first in (0..inst.product.depth).step_by(GROUP) {
            let (mut a, mut b) = ([[0.0; GROUP]; GROUP], [[0.0; GROUP]; GROUP]);
            // SAFETY: as the caller's.
            unsafe {
                let a = self.floats(inst, Role::Lhs, first, subgroup, &mut a);
                let b = self.floats(inst, Role::Rhs, first, subgroup, &mut b);
                (self.loops.products.floats)(&a, &b, &rows);
            }
            rows.from = rows.to.map(|row| row.cast_const());
        }
    }

    /// Where the rows of f32 sums lie, all lanes of the subgroup being there.
    unsafe fn float_rows(&self, inst: &TileProduct, subgroup: Subgroup) -> Rows {
        let row = |of: &[Reg], row: usize| {
            let (lane, slot) = inst.product.sum.place(row as u32, 0);
            // SAFETY: registers hold the tile's items.
            unsafe { self.element(of[slot as usize], ScalarType::F32, subgroup.start + lane as usize) }.cast::<f32>()
        };
        let from = std::array::from_fn(|at| row(&inst.from, at).cast_const());
        Rows { from, to: std::array::from_fn(|at| row(&inst.to, at)) }
    }

    /// The tile that is added to.
    unsafe fn rows<T: Copy + Default>(
        &self,
        inst: &TileProduct,
        subgroup: Subgroup,
        read: impl Fn(ScalarType, *mut u8) -> T,
    ) -> Square<T> {
        let sum = inst.product.sum;
        let mut rows = [[T::default(); GROUP]; GROUP];
        for (row, to) in rows.iter_mut().enumerate() {
            let (lane, slot) = sum.place(row as u32, 0);
            let lane = lane as usize;
            // SAFETY: the register holds the tile's items.
            let at = unsafe { self.element(inst.from[slot as usize], inst.ty, subgroup.start + lane) };
            for (column, to) in to.iter_mut().enumerate().take(subgroup.count.saturating_sub(lane)) {
                *to = read(inst.ty, at.wrapping_add(column * inst.ty.bytes() as usize));
            }
        }
        rows
    }

    unsafe fn spread_rows<T: Copy>(
        &self,
        inst: &TileProduct,
        subgroup: Subgroup,
        rows: &Square<T>,
        write: impl Fn(ScalarType, *mut u8, T),
    ) {
        let sum = inst.product.sum;
        let size = inst.ty.bytes() as usize;
        for (row, from) in rows.iter().enumerate() {
            let (lane, slot) = sum.place(row as u32, 0);
            let lane = lane as usize;
            // SAFETY: the register holds the tile's items.
            let at = unsafe { self.element(inst.to[slot as usize], inst.ty, subgroup.start + lane) };
            for (column, from) in from.iter().enumerate().take(subgroup.count.saturating_sub(lane)) {
                write(inst.ty, at.wrapping_add(column * size), *from);
            }
        }
        // What a slot without data holds stays.
        for slot in (0..inst.to.len()).filter(|slot| !slot.is_multiple_of(sum.spread as usize)) {
            // SAFETY: both registers hold the tile's items, and no result is an operand.
            unsafe {
                let from = self.element(inst.from[slot], inst.ty, subgroup.start);
                ptr::copy_nonoverlapping(
                    from,
                    self.element(inst.to[slot], inst.ty, subgroup.start),
                    subgroup.count * size,
                );
            }
        }
    }

    /// Sixteen steps of an integer operand, from step `first` on.
    unsafe fn integers(&self, inst: &TileProduct, role: Role, first: u32, subgroup: Subgroup) -> Square<i32> {
        let mut steps = [[0; GROUP]; GROUP];
        let ((ty, registers), format) = operand(inst, role);
        let per = ty.bits() / format.bits();
        for (k, step) in (first..).zip(&mut steps) {
            let (lane, slot) = step_place(inst, role, k);
            let (register, shift) = (registers[(slot / per) as usize], slot % per * format.bits());
            // SAFETY: the register holds the tile's items.
            let at = unsafe { self.element(register, *ty, subgroup.start + lane) };
            let count = subgroup.count.saturating_sub(lane).min(GROUP);
            if *ty == ScalarType::I32 && count == GROUP {
                // SAFETY: sixteen items of four bytes.
                let words = unsafe { at.cast::<[u32; GROUP]>().read_unaligned() };
                *step = words.map(|word| format.integer(u64::from(word >> shift)));
            } else {
                for (lane, to) in step.iter_mut().enumerate().take(count) {
                    // SAFETY: the register holds the tile's items.
                    *to = format.integer(unsafe { bits(*ty, at, lane) } >> shift);
                }
            }
        }
        steps
    }

    /// Sixteen steps of a float operand, from step `first` on: where they lie, or a copy in `to`.
    unsafe fn floats(
        &self,
        inst: &TileProduct,
        role: Role,
        first: u32,
        subgroup: Subgroup,
        to: &mut Square<f32>,
    ) -> Steps {
        let mut steps = Steps { float: Float::F32, at: [ptr::null(); GROUP] };
        let ((ty, registers), format) = operand(inst, role);
        // A step that lies where it is read is of that type in every group, or in none.
        let whole =
            subgroup.count >= GROUP && (!inst.product.split || subgroup.count == inst.product.sum.lanes as usize);
        let own = match (format, ty) {
            (Format::F16, ScalarType::F16) => Some(Float::F16),
            (Format::BF16, ScalarType::BF16) => Some(Float::BF16),
            _ => None,
        };
        if let Some(float) = own.filter(|_| whole) {
            // A register each.
            steps.float = float;
            let (mut group, mut slot) = (first as usize / registers.len(), first as usize % registers.len());
            for step in &mut steps.at {
                // SAFETY: the register holds the tile's items.
                *step = unsafe { self.element(registers[slot], *ty, subgroup.start + group * GROUP) };
                slot += 1;
                if slot == registers.len() {
                    (group, slot) = (group + 1, 0);
                }
            }
            return steps;
        }
        let per = ty.bits() / format.bits();
        for ((k, to), step) in (first..).zip(to).zip(&mut steps.at) {
            let (lane, slot) = step_place(inst, role, k);
            let (register, shift) = (registers[(slot / per) as usize], slot % per * format.bits());
            // SAFETY: the register holds the tile's items.
            let at = unsafe { self.element(register, *ty, subgroup.start + lane) };
            let float = format.float().unwrap_or(ScalarType::F32);
            for (lane, to) in to.iter_mut().enumerate().take(subgroup.count.saturating_sub(lane)) {
                // SAFETY: as above.
                let element = unsafe { bits(*ty, at, lane) } >> shift & (u64::MAX >> (64 - format.bits()));
                *to = eval::to_f64(float, element) as f32;
            }
            *step = to.as_ptr().cast();
        }
        steps
    }
}

/// The payload of an operand, and its numbers.
fn operand(inst: &TileProduct, role: Role) -> (&(ScalarType, Vec<Reg>), Format) {
    if role == Role::Lhs { (&inst.lhs, inst.product.lhs) } else { (&inst.rhs, inst.product.rhs) }
}

/// The first of the sixteen lanes that hold step `k` of an operand, and the slot.
fn step_place(inst: &TileProduct, role: Role, k: u32) -> (usize, u32) {
    let (lane, slot) = match role {
        Role::Lhs => inst.product.lhs_fragment().place(0, k),
        _ => inst.product.rhs_fragment().place(k, 0),
    };
    (lane as usize, slot)
}

/// Where the first of a group's sixteen lanes has its element of a slot, and the distance to the next lane's. `None` for a slot
/// without data.
fn run_of<T>(fragment: Fragment, first: *mut u8, place: Place, group: usize, slot: usize) -> Option<(*mut T, i64)> {
    let (row, column) = fragment.element((group * GROUP) as u32, slot as u32)?;
    let offset = Place { origin: 0, ..place }.offset(row, column);
    let step = if fragment.role == Role::Lhs { place.row } else { place.column };
    Some((first.wrapping_offset(offset as isize).cast(), step))
}
