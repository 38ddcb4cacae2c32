//! A launch, shared by threads where that pays.
//!
//! ```text
//! caller:   small, or order seen? ── yes ─> all of it alone
//!              └ no ─> runs tiles alone ── what is left takes others long enough ─> asks them ─> claims ranges with them
//! ```
//!
//! - How long a launch takes is measured, not guessed: the first time it is run with an eye on the clock, and later the launches
//!   before say at once. One that was short is looked at again now and then. Results do not depend on it.
//! - Those who help are idle threads of the pool. Nobody waits for one that has not begun by the time all is claimed.
//! - Not here: who claims what, faults and budgets (`run/share.rs`), and which kernels may be shared (`order`).

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use loom_compiler::launch::Geometry;
use loom_compiler::tile::{CpuImage, Inst, Program};

use super::order::Order;
use super::run::{self, Patience, Role, Share};
use super::{Arg, Fault, TileScratch, arguments, check, kernels};
use crate::isa::Isa;
use crate::pool::Pool;

/// What a thread must have to do, in nanoseconds, to be asked: a few times what waking it takes.
pub(crate) const WORTH_NS: u64 = 20_000;

/// Instructions times work-items of a launch without loops that is not even timed: some tens of microseconds.
const SMALL: u64 = 1 << 15;

/// Of launches that are expected to be short, one in so many is timed.
const TIMED: u32 = 16;

/// What is known of a kernel that may be shared.
#[derive(Debug)]
pub(crate) struct Profile {
    order: Order,
    /// Instructions, each taken to be run once for every item; none if there are loops, of which that is not known.
    instructions: Option<u64>,
    pace: Pace,
}

impl Profile {
    /// Looks through the program.
    pub fn of(program: &Program) -> Self {
        let loops = program.blocks.iter().flatten().any(|inst| matches!(inst, Inst::For { .. } | Inst::Loop { .. }));
        let instructions = program.blocks.iter().map(|block| block.len() as u64).sum();
        Self { order: Order::of(program), instructions: (!loops).then_some(instructions), pace: Pace::default() }
    }

    /// What a launch should take one thread, by those before (0: there was none), if it may be worth a second one and nobody
    /// can tell whether it had one.
    fn expected(&self, geometry: &Geometry, args: &[Arg], worth_ns: u64) -> Option<u64> {
        let groups = groups(geometry);
        let size = geometry.workgroup_size.iter().fold(1, |product: u64, &count| product.saturating_mul(count.into()));
        let small = |count: u64| groups.saturating_mul(size).saturating_mul(count) <= SMALL;
        if groups < 2 || self.instructions.is_some_and(small) {
            return None;
        }
        let expected = self.pace.of(groups);
        let short = expected > 0 && expected < worth_ns && !self.pace.due();
        (!short && self.order.is_free(args)).then_some(expected)
    }
}

fn groups(geometry: &Geometry) -> u64 {
    geometry.workgroups.iter().fold(1, |product: u64, &count| product.saturating_mul(count.into()))
}

/// How long a kernel takes, going by the launches so far.
#[derive(Debug, Default)]
struct Pace {
    /// Nanoseconds of a workgroup times 1024; 0 before the first.
    group: AtomicU64,
    /// Launches that were not timed since.
    since: AtomicU32,
}

impl Pace {
    /// Nanoseconds that so many workgroups take one thread.
    fn of(&self, groups: u64) -> u64 {
        let group = self.group.load(Ordering::Relaxed);
        if group == 0 { 0 } else { (group.saturating_mul(groups) >> 10).max(1) }
    }

    /// Whether to time the next launch whatever is known.
    fn due(&self) -> bool {
        self.since.fetch_add(1, Ordering::Relaxed) % TIMED == TIMED - 1
    }

    /// So many workgroups took so long. Falls at once, and at most doubles: a thread that was interrupted took longer for no reason
    /// of the kernel's.
    fn measured(&self, groups: u64, ns: u64) {
        let (known, group) = (self.group.load(Ordering::Relaxed), (ns.saturating_mul(1024) / groups.max(1)).max(1));
        self.group.store(if known == 0 { group } else { group.min(known.saturating_mul(2)) }, Ordering::Relaxed);
    }
}

/// Threads that may help with a launch.
pub(crate) struct Crew<'a> {
    pub pool: &'a Pool,
    /// How many there may be, the caller's included.
    pub most: usize,
    /// For each thread from 1 on, what it keeps between launches.
    pub scratch: &'a (dyn Fn(usize) -> *mut TileScratch + Sync),
    /// Nanoseconds that a thread must have to do to be asked; 0 asks all, always.
    pub worth_ns: u64,
}

/// A launch as all threads see it.
struct Launch<'a> {
    image: &'a CpuImage,
    geometry: &'a Geometry,
    args: &'a [Arg],
    share: &'a Share<'a>,
    step_limit: u64,
}

// SAFETY: the arguments point to memory that whoever made the launch lends to all of its threads (`spread`); the rest is shared
// as any reference.
unsafe impl Sync for Launch<'_> {}

impl Launch<'_> {
    /// Runs what falls to the thread of `scratch`.
    ///
    /// # Safety
    /// As [`spread`]; the arguments were checked.
    unsafe fn run(&self, scratch: &mut TileScratch, role: Role<'_>) -> Result<(), Fault> {
        let Self { image, geometry, args, share, step_limit } = *self;
        let loops = kernels::loops(scratch.isa);
        // SAFETY: the caller's promise, and `loops` are for an available set. Plain accesses of one thread to what another
        // writes are a race of the kernel's own. What it reads then is any bits, as from any memory: every address is checked
        // after it was read, in memory of the thread's own.
        unsafe { run::launch(image, geometry, args, &mut scratch.state, loops, step_limit, Some((share, role))) }
    }
}

/// Runs every workgroup of `geometry`: on this thread, and on others of `crew` where that pays and nobody can tell.
///
/// # Safety
///
/// As [`super::run`], for all threads of the crew. `crew.scratch` gives each number below `crew.most` scratch of its own, that
/// nobody else uses until the call returns.
pub(crate) unsafe fn spread(
    image: &CpuImage,
    geometry: &Geometry,
    args: &[Arg],
    scratch: &mut TileScratch,
    profile: &Profile,
    crew: &Crew<'_>,
) -> Result<(), Fault> {
    let expected = if crew.most < 2 { None } else { profile.expected(geometry, args, crew.worth_ns) };
    let Some(expected_ns) = expected else {
        // SAFETY: the caller's promise.
        return unsafe { super::run(image, geometry, args, scratch) };
    };
    check(image, geometry, args)?;
    let step_limit = scratch.step_limit;
    let mut turns = std::mem::take(&mut scratch.turns);
    let share = Share::new(crew.most, &mut turns);
    let launch = Launch { image, geometry, args, share: &share, step_limit };
    // Where threads are late to begin, as on a machine that is busy, they must have more to do.
    let worth_ns = crew.worth_ns << crew.pool.reluctance();
    let patience = Patience { worth_ns, threads: crew.most, expected_ns };
    // SAFETY: the caller's promise.
    let begun = unsafe { launch.run(scratch, Role::First(&patience)) };
    let result = begun.and_then(|()| {
        if share.wanted() > 1 {
            let mine = Mine(scratch);
            let all = crew.pool.help(share.wanted(), &|part| {
                let scratch = if part == 0 { mine.get() } else { (crew.scratch)(part) };
                // SAFETY: part 0 is this thread, whose scratch is lent to nobody else; the others are of the crew. The launch
                // was begun on this thread, so that it does not fail before its first tile.
                let begun = unsafe { launch.run(&mut *scratch, Role::Claim) };
                debug_assert!(begun.is_ok(), "{begun:?}");
            });
            all.map_err(|said| Fault::Panicked { kernel: image.name.clone(), said })?;
        }
        Ok(())
    });
    if share.took() > 0 {
        profile.pace.measured(groups(geometry), share.took());
    }
    let result = result.and_then(|()| share.result(image, step_limit));
    scratch.turns = turns;
    result
}

/// The caller's scratch, for part 0 only.
struct Mine(*mut TileScratch);

// SAFETY: it is used by the thread that runs part 0, which is the one that made it.
unsafe impl Sync for Mine {}

impl Mine {
    fn get(&self) -> *mut TileScratch {
        self.0
    }
}

/// Some threads and what they keep between launches, for who runs tile programs without a device.
///
/// Each launch gives the bits of [`super::run`] and tells the same fault. A budget of turns of loops is the launch's; the fault of a
/// launch that oversteps it may name another of its loops.
pub struct Team {
    pool: Pool,
    scratch: Box<[TileScratch]>,
    worth_ns: u64,
}

impl Team {
    /// `threads` in all, the caller's counted and at least that one, with loops of `isa` (see [`TileScratch::new`]).
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn new(threads: usize, isa: Isa) -> io::Result<Self> {
        let threads = threads.max(1);
        let scratch = (0..threads).map(|_| TileScratch::new(isa)).collect();
        Ok(Self { pool: Pool::new(threads)?, scratch, worth_ns: WORTH_NS })
    }

    /// As [`TileScratch::set_step_limit`].
    pub fn set_step_limit(&mut self, turns: u64) {
        self.scratch[0].set_step_limit(turns);
    }

    /// Asks another thread for help if that has `nanoseconds` of work to do, as far as can be told; 20,000 unless told
    /// otherwise. 0 asks all threads, however little there is to do.
    pub fn set_worth(&mut self, nanoseconds: u64) {
        self.worth_ns = nanoseconds;
    }

    /// How often a thread other than the caller's has helped.
    pub fn helped(&self) -> u64 {
        self.pool.handed()
    }

    /// A kernel as this team runs it: launches that belong together share one, as it keeps how long they take.
    pub fn kernel<'a>(&self, image: &'a CpuImage) -> TeamKernel<'a> {
        TeamKernel { image, profile: Profile::of(image.program()) }
    }

    /// Runs every workgroup of `geometry`.
    ///
    /// # Errors
    /// As [`super::run`].
    ///
    /// # Safety
    /// As [`super::run`], where the threads of the team count as this one.
    pub unsafe fn run(&mut self, kernel: &TeamKernel<'_>, geometry: &Geometry, args: &[Arg]) -> Result<(), Fault> {
        let most = self.scratch.len();
        let Some((mine, others)) = self.scratch.split_first_mut() else { return Ok(()) };
        let others = Others(others.as_mut_ptr());
        let crew = Crew { pool: &self.pool, most, scratch: &|part| others.get(part), worth_ns: self.worth_ns };
        // SAFETY: the caller's promise; each of the others has scratch of its own.
        unsafe { spread(kernel.image, geometry, args, mine, &kernel.profile, &crew) }
    }

    /// [`run`](Self::run) over slices, as [`super::run_slices`].
    ///
    /// # Errors
    /// As [`super::run`].
    pub fn run_slices(
        &mut self,
        kernel: &TeamKernel<'_>,
        geometry: &Geometry,
        buffers: &mut [&mut [u8]],
        scalars: &[u64],
    ) -> Result<(), Fault> {
        let args = arguments(kernel.image, buffers, scalars);
        // SAFETY: the slices are borrowed mutably, so nobody but this team touches them while this runs.
        unsafe { self.run(kernel, geometry, &args) }
    }
}

/// A kernel that a [`Team`] runs, and what is known of it.
pub struct TeamKernel<'a> {
    image: &'a CpuImage,
    profile: Profile,
}

/// The scratch of threads from 1 on.
struct Others(*mut TileScratch);

// SAFETY: `get` makes a pointer of a number; who follows it argues for that.
unsafe impl Sync for Others {}

impl Others {
    fn get(&self, part: usize) -> *mut TileScratch {
        self.0.wrapping_add(part - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom_compiler::{Module, tile::compile};
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// 64 workgroups, each some thousand turns of a loop.
    const TEXT: &str = "kernel.def export(\"k\") @k() {
  kernel.launch.config workgroups(64, 1, 1) workgroup_size(256, 1, 1) : index
} launch(%out: buffer) {
  %base = index.constant 0 : offset
  %zero = index.constant 0 : index
  %one = index.constant 1 : index
  %turns = index.constant 3000 : index
  %v = buffer.view %out[%base] : buffer -> view<16384xi32>
  %i = kernel.workitem.dispatch.id<x> : index
  %x = index.cast %i : index to i32
  %r = scf.for %k = [%zero to %turns step %one](%a = %x : i32) -> (i32) {
    %next = scalar.muli %a, %x : i32
    scf.yield %next : i32
  }
  view.store %r, %v[%i] : i32, view<16384xi32>
  kernel.return
}
";

    #[test]
    fn a_thread_that_panics_is_a_fault_and_nobody_hangs() {
        let module = Module::parse("test", TEXT).unwrap();
        let image = compile(&module.specialise("k", &BTreeMap::new()).unwrap()).unwrap();
        let geometry = image.launch.geometry(&[]).unwrap();
        let (profile, pool) = (Profile::of(image.program()), Pool::new(3).unwrap());
        let mut memory = vec![0u32; 16384];
        let args = [Arg::Buffer { ptr: memory.as_mut_ptr().cast(), len: 65536 }];
        let (mut mine, asked) = (TileScratch::default(), AtomicUsize::new(0));
        let broken = |part: usize| {
            asked.fetch_add(1, Ordering::Relaxed);
            panic!("no scratch for part {part}")
        };
        for _ in 0..1000 {
            let before = asked.load(Ordering::Relaxed);
            let crew = Crew { pool: &pool, most: 3, scratch: &broken, worth_ns: 0 };
            // SAFETY: `memory` is what the kernel writes, and the others get no scratch at all.
            let ran = unsafe { spread(&image, &geometry, &args, &mut mine, &profile, &crew) };
            let said = match ran {
                Ok(()) => String::new(),
                Err(fault) => fault.to_string(),
            };
            // Nobody came, or whoever did broke.
            assert_eq!(said.is_empty(), asked.load(Ordering::Relaxed) == before, "{said}");
            if !said.is_empty() {
                assert!(said.starts_with("kernel `k`: panicked: no scratch for part "), "{said}");
                return;
            }
        }
        panic!("nobody ever helps");
    }
}
