//! Random plans that are valid by construction, and random turns for them.

use lanes_core::lanes::{Capacity, RowId, SeatRows};
use lanes_core::plan::{Activation, Command, Contraction, Plan, Precision, Region, Storage, StorageId, Term};
use lanes_core::{DType, Port, Scope, Signature, StateKind, StateSpec};
use std::sync::Arc;

/// SplitMix64 (Steele, Lea and Flood 2014): small, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// A number in `0..below`.
    pub fn below(&mut self, below: usize) -> usize {
        (self.bits() % below as u64) as usize
    }

    /// A number in `from..=to`.
    pub fn within(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }

    /// True once in `of` times.
    pub fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// An f32 in -1..1, of the kind that models have.
    pub fn f32(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `count` of them.
    pub fn f32s(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.f32()).collect()
    }
}

/// `count` f32s as bytes.
pub fn f32_bytes(random: &mut Random, count: usize) -> Vec<u8> {
    random.f32s(count).into_iter().flat_map(f32::to_le_bytes).collect()
}

/// A port of `count` f32s.
pub fn port(name: &str, count: usize, scope: Scope) -> Port {
    Port { name: name.into(), dtype: DType::F32, shape: vec![count], scope }
}

/// Bytes of the constant that every random plan has, and any run can be copied from.
const POOL_BYTES: usize = 8192;

/// A random plan with the signature it fits: every kind of storage but resident memory, and every command but dispatches.
pub fn plan(seed: u64) -> (Plan, Signature) {
    random_plan(Random(seed), seed, false)
}

/// [`plan`] with one to three residents, bindings in order; half of the plans write them.
pub fn resident_plan(seed: u64) -> (Plan, Signature) {
    random_plan(Random(seed ^ 0x7e51de47), seed, true)
}

fn random_plan(mut random: Random, seed: u64, has_residents: bool) -> (Plan, Signature) {
    let random = &mut random;
    // Now and then a plan with so much scratch or work that seats are cut into chunks, and those over threads.
    let large = random.one_in(4);
    let mut signature = Signature { name: format!("random{seed}"), ..Signature::default() };
    let mut build = Build {
        plan: Plan { name: format!("random{seed}"), ..Plan::default() },
        readable: vec![],
        writable: vec![],
        large,
        grain: if random.one_in(3) { 1 } else { 4 },
    };
    let pool: Arc<[u8]> = f32_bytes(random, POOL_BYTES / 4).into();
    let pool = build.plan.storage(Storage::Constant { label: "pool".into(), bytes: pool });
    build.readable.push(pool);
    for at in 0..random.within(1, 3) {
        let scope = if random.one_in(3) { Scope::Turn } else { Scope::Seat };
        let port_at = port(&format!("in{at}"), random.within(1, 40), scope);
        let bytes = port_at.bytes();
        let storage = match scope {
            Scope::Seat => Storage::Input { port: at, bytes },
            Scope::Turn => Storage::SharedInput { port: at, bytes },
        };
        let id = build.plan.storage(storage);
        build.readable.push(id);
        signature.inputs.push(port_at);
    }
    let mut states = Vec::new();
    for at in 0..random.below(3) {
        let count = random.within(1, 40);
        let initial = (!random.one_in(2)).then(|| f32_bytes(random, count).into());
        let name = format!("state{at}");
        signature.states.push(StateSpec {
            output: format!("{name}_out"),
            input: name,
            dtype: DType::F32,
            lane_shape: vec![count],
            initial,
            kind: StateKind::Replaced,
        });
        states.push(build.plan.storage(Storage::State { state: at, bytes: count * 4 }));
    }
    let residents: Vec<_> = (0..if has_residents { random.within(1, 3) } else { 0 })
        .map(|binding| build.plan.storage(Storage::Resident { binding, bytes: random.within(1, 60) * 4 }))
        .collect();
    build.readable.extend(&residents);
    for _ in 0..random.within(1, 6) {
        let most = if large && random.one_in(3) { 8000 } else { 60 };
        let bytes = random.within(1, most) * 4;
        let scratch = build.plan.storage(Storage::Scratch { bytes });
        build.write_whole(random, scratch, bytes, &states);
        build.readable.push(scratch);
        build.writable.push(scratch);
        build.write_again(random, &states);
    }
    if seed.is_multiple_of(2) {
        // Not read meanwhile, as no command may write what it reads. What reads them later sees what was written.
        for &resident in &residents {
            build.readable.retain(|&id| id != resident);
            let bytes = build.plan.storages[resident.0 as usize].bytes();
            build.write_whole(random, resident, bytes, &states);
            build.readable.push(resident);
        }
    }
    for at in 0..random.within(1, 2) {
        let port_at = port(&format!("out{at}"), random.within(1, 40), Scope::Seat);
        let bytes = port_at.bytes();
        let output = build.plan.storage(Storage::Output { port: at, bytes });
        build.write_whole(random, output, bytes, &states);
        build.readable.push(output);
        build.writable.push(output);
        build.write_again(random, &states);
        signature.outputs.push(port_at);
    }
    for state in states {
        let bytes = build.plan.storages[state.0 as usize].bytes();
        for row in pieces(random, bytes, build.grain) {
            let from = build.source(random, (state, row));
            build.plan.commands.push(Command::Scatter { from, state, row });
        }
    }
    (build.plan, signature)
}

struct Build {
    plan: Plan,
    /// Storages that are wholly written by now, or never are.
    readable: Vec<StorageId>,
    /// Those of them that commands may write.
    writable: Vec<StorageId>,
    large: bool,
    /// Bytes that runs and their distances are multiples of. By the byte, floats get the bytes of others, which gives NaN;
    /// which NaN a sum is then is nobody's promise, so those plans have no sums.
    grain: usize,
}

impl Build {
    /// Commands that together write all of `storage`.
    fn write_whole(&mut self, random: &mut Random, storage: StorageId, bytes: usize, states: &[StorageId]) {
        for region in pieces(random, bytes, self.grain) {
            self.write(random, (storage, region), states);
        }
    }

    /// Now and then, commands that write over parts of what was written before, in regions that overlap any way.
    fn write_again(&mut self, random: &mut Random, states: &[StorageId]) {
        for _ in 0..random.below(3) {
            let storage = self.writable[random.below(self.writable.len())];
            let bytes = self.plan.storages[storage.0 as usize].bytes();
            let run = random.within(1, (bytes / self.grain).min(64 / self.grain)) * self.grain;
            let run = if random.one_in(3) { run } else { (run / 4 * 4).max(4).min(bytes) };
            let rows = random.within(1, 6).min(bytes / run);
            let runs = Region { rows, ..Region::contiguous(0, run) };
            let Some(region) = place(random, runs, bytes, self.grain) else { continue };
            self.write(random, (storage, region), states);
        }
    }

    /// One command that writes the region, and reads nothing of that storage.
    fn write(&mut self, random: &mut Random, to: (StorageId, Region), states: &[StorageId]) {
        let region = to.1;
        let command = match random.below(4) {
            0 if region.row_bytes.is_multiple_of(4) => Command::Fill { to, pattern: random.f32().to_bits() },
            1 | 2 if self.grain == 4 && region.bytes() <= 4096 => Command::Contract(self.contraction(random, to)),
            3 => match self.row(random, region, states) {
                Some((state, row)) => Command::Gather { state, row, to },
                None => Command::Copy { from: self.source(random, to), to },
            },
            _ => Command::Copy { from: self.source(random, to), to },
        };
        self.plan.commands.push(command);
    }

    /// A storage to read, but not `not`.
    fn readable(&self, random: &mut Random, not: StorageId) -> StorageId {
        let id = self.readable[random.below(self.readable.len())];
        // The pool is written by nobody.
        if id == not { self.readable[0] } else { id }
    }

    /// Something to read with the same runs as `to`: the pool, where nothing else is long enough.
    fn source(&self, random: &mut Random, (not, to): (StorageId, Region)) -> (StorageId, Region) {
        for _ in 0..4 {
            let id = self.readable(random, not);
            if let Some(region) = place(random, to, self.plan.storages[id.0 as usize].bytes(), self.grain) {
                return (id, region);
            }
        }
        let region = place(random, to, POOL_BYTES, self.grain).expect("pieces are shorter than the pool");
        (self.readable[0], region)
    }

    fn row(&self, random: &mut Random, to: Region, states: &[StorageId]) -> Option<(StorageId, Region)> {
        let state = *states.get(random.below(states.len().max(1)))?;
        Some((state, place(random, to, self.plan.storages[state.0 as usize].bytes(), self.grain)?))
    }

    fn contraction(&self, random: &mut Random, (out, region): (StorageId, Region)) -> Contraction {
        let (positions, n) = (region.rows, region.row_bytes / 4);
        let mut terms = Vec::new();
        for _ in 0..random.within(1, 3) {
            let storage = self.readable(random, out);
            let elements = self.plan.storages[storage.0 as usize].bytes() / 4;
            // Small windows anywhere, then strides as large as the storage lets them be.
            let tap_len = random.within(1, elements.min(if self.large { 64 } else { 9 }));
            let room = elements - tap_len;
            let taps = random.within(1, 3);
            let tap_stride = random.below(room / taps + 1);
            let room = room - (taps - 1) * tap_stride;
            let position_stride = random.below(room / positions + 1);
            let offset = random.below(room - (positions - 1) * position_stride + 1);
            terms.push(Term { storage, offset, position_stride, taps, tap_stride, tap_len });
        }
        let k: usize = terms.iter().map(Term::k).sum();
        Contraction {
            label: format!("contraction{}", self.plan.commands.len()),
            terms,
            weights: random.f32s(k * n).into(),
            precision: Precision::F32,
            bias: (!random.one_in(3)).then(|| random.f32s(n).into()),
            // The others are not exact: `plans::activations`.
            activation: if random.one_in(2) { Activation::Relu } else { Activation::None },
            positions,
            n,
            out,
            out_offset: region.offset / 4,
            out_position_stride: region.stride / 4,
        }
    }
}

/// Regions that together cover `0..bytes` once, of whole grains of `grain` bytes: runs one after the other, or columns side by
/// side.
fn pieces(random: &mut Random, bytes: usize, grain: usize) -> Vec<Region> {
    let mut pieces = Vec::new();
    let bytes = bytes / grain;
    let mut start = 0;
    while start < bytes {
        let left = bytes - start;
        let most = left.min(POOL_BYTES / 4 / grain);
        let length = if left <= most && random.one_in(2) { left } else { random.within(1, most) };
        let length = if random.one_in(3) { length } else { (length / 4 * 4).max(4).min(left) };
        let rows = [1, 2, 3, 4, 5, 8][random.below(6)];
        let width = length / rows;
        if length % rows == 0 && width >= 2 {
            let split = random.within(1, width - 1);
            let split = if width > 4 && !random.one_in(3) { (split / 4 * 4).max(4).min(width - 1) } else { split };
            pieces.push(Region { offset: start, row_bytes: split, stride: width, rows });
            pieces.push(Region { offset: start + split, row_bytes: width - split, stride: width, rows });
        } else {
            pieces.push(Region::contiguous(start, length));
        }
        start += length;
    }
    pieces.into_iter().map(|region| in_bytes(region, grain)).collect()
}

/// A region counted in grains, in bytes.
fn in_bytes(region: Region, grain: usize) -> Region {
    let Region { offset, row_bytes, stride, rows } = region;
    Region { offset: offset * grain, row_bytes: row_bytes * grain, stride: stride * grain, rows }
}

/// A region with the same runs as `runs` somewhere in `bytes` bytes, of whole grains, if it fits at all.
fn place(random: &mut Random, runs: Region, bytes: usize, grain: usize) -> Option<Region> {
    let (bytes, row_bytes, rows) = (bytes / grain, runs.row_bytes / grain, runs.rows);
    let room = bytes.checked_sub(row_bytes * rows)?;
    let gap = if rows > 1 { random.below(room / (rows - 1) + 1) } else { 0 };
    let stride = row_bytes + gap;
    let offset = random.below(bytes - (rows - 1) * stride - row_bytes + 1);
    Some(in_bytes(Region { offset, row_bytes, stride, rows }, grain))
}

/// Rows for a turn of `seats` seats: reads anything, writes rows of its own.
pub fn turn(random: &mut Random, capacity: Capacity, seats: usize) -> Vec<SeatRows> {
    let mut rows: Vec<u32> = (0..capacity.rows - 1).collect();
    for at in 0..seats {
        let other = random.within(at, rows.len() - 1);
        rows.swap(at, other);
    }
    let (written, mut kept) = rows.split_at(seats);
    let initial = [capacity.initial_row().0];
    if kept.is_empty() {
        kept = &initial;
    }
    written
        .iter()
        .map(|&write| {
            let read = if random.one_in(4) { initial[0] } else { kept[random.below(kept.len())] };
            SeatRows { read: RowId(read), write: RowId(write) }
        })
        .collect()
}
