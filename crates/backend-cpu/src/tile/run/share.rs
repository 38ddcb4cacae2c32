//! The tiles of one launch, run by several threads.
//!
//! ```text
//! tiles 0..n, cut into ranges ── claimed ascending, by a counter ──┬─ thread 0: range 0, range 2, ..
//!                                                                  └─ thread 1: range 1, range 3, ..
//! ```
//!
//! - The fault that is told is that of the lowest tile. Ranges are claimed ascending, so what is below a fault is done or
//!   somebody is at it, and goes on to its end; what is above stops at its next tile, or some turns of a loop later.
//! - The budget of turns is the launch's. A range may take what those that ended before it was claimed, all of them lower,
//!   have left; at the end the turns are added up in order. So a launch oversteps if and only if it would on one thread, and where
//!   another fault lies beyond that, it is the budget's that is told. Up to then each thread may have taken as many turns as
//!   the budget has. Of several loops, the fault may name another one than on one thread.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use loom_compiler::tile::{CpuImage, Inst};

use super::super::Fault;
use super::{Lines, Run, Stop, still_running};

/// Ranges for each thread: at the end, threads wait for about half of one.
const RANGES: usize = 32;

/// Turns of a loop after which to look whether others have found a fault.
const PAUSE: u64 = 1 << 12;

/// What a thread does for a launch.
#[derive(Clone, Copy)]
pub(in super::super) enum Role<'a> {
    /// Runs tiles until the others are worth asking: see [`Share::alone`].
    First(&'a Patience),
    /// Runs ranges until all are claimed.
    Claim,
}

/// What decides whether others are asked.
pub(in super::super) struct Patience {
    /// Nanoseconds that a thread must have to do to be asked; 0 asks whoever there is.
    pub worth_ns: u64,
    /// Threads that may be asked, this one included.
    pub threads: usize,
    /// Nanoseconds that the launch would take one thread, going by earlier ones; 0 where there was none.
    pub expected_ns: u64,
}

/// A launch that is shared.
pub(in super::super) struct Share<'a> {
    /// Turns of loops, by range. A run of ranges that one thread ran as one is counted at its first.
    turns: &'a [AtomicU64],
    /// How many tiles there are: known when the first thread has looked.
    tiles: AtomicU64,
    /// And into how many ranges they are cut.
    ranges: AtomicU64,
    /// The first range that nobody has claimed.
    next: AtomicU64,
    /// Turns of the ranges that have ended.
    spent: AtomicU64,
    /// Tiles from this one on need not be run.
    end: AtomicU64,
    /// Threads that are worth asking for what is left.
    wanted: AtomicU64,
    /// Nanoseconds that the launch would take one thread, going by the thread that ended last.
    took: AtomicU64,
    found: Mutex<Option<Found>>,
}

/// A fault.
struct Found {
    tile: u64,
    range: usize,
    /// Turns of loops of the range up to it.
    turns: u64,
    fault: Fault,
}

impl<'a> Share<'a> {
    /// Of a launch by up to `threads`. `turns` are for this launch only, and grow to what so many threads take.
    pub fn new(threads: usize, turns: &'a mut Vec<AtomicU64>) -> Self {
        let ranges = threads * RANGES;
        if turns.len() < ranges {
            turns.resize_with(ranges, AtomicU64::default);
        }
        Self {
            turns: &turns[..ranges],
            tiles: AtomicU64::new(0),
            ranges: AtomicU64::new(0),
            next: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            end: AtomicU64::new(u64::MAX),
            wanted: AtomicU64::new(0),
            took: AtomicU64::new(0),
            found: Mutex::new(None),
        }
    }

    /// How many threads to ask for what the first has left, itself included; less than two if that is nothing.
    pub fn wanted(&self) -> usize {
        self.wanted.load(Ordering::Relaxed) as usize
    }

    /// Nanoseconds that the launch would take one thread, as far as one can tell; 0 if nothing was run.
    pub fn took(&self) -> u64 {
        self.took.load(Ordering::Relaxed)
    }

    /// The tiles of these ranges.
    fn cut(&self, ranges: Range<u64>) -> Range<u64> {
        // Tiles are fewer than 2^37 and ranges than 2^18.
        let (tiles, all) = (self.tiles.load(Ordering::Relaxed), self.ranges.load(Ordering::Relaxed).max(1));
        tiles * ranges.start / all..tiles * ranges.end / all
    }

    /// Whether `tile` (counted from 1) need still be run. What is said otherwise is told to nobody: a lower tile has a fault.
    #[inline(always)]
    pub(super) fn go_on(&self, tile: u64, kernel: &str) -> Result<(), Stop> {
        if tile <= self.end.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Box::new(Fault::Launch { kernel: kernel.to_owned(), what: "stopped by another thread".to_owned() }))
    }

    /// When to look again, after `steps` turns of at most `most`.
    pub(super) fn pause(&self, steps: u64, most: u64) -> u64 {
        steps.saturating_add(PAUSE).min(most)
    }

    /// Runs what falls to a thread.
    ///
    /// # Safety
    /// As [`super::launch`]; `lines` are those of the launch.
    pub(super) unsafe fn work(&self, run: &mut Run<'_>, lines: &Lines, clear: (*mut u8, usize), role: Role<'_>) {
        // Whoever unwinds leaves nothing behind that is worth finishing.
        let stop = StopOthers(&self.end);
        // SAFETY: the caller's promises.
        unsafe {
            match role {
                Role::First(patience) => self.alone(run, lines, clear, patience),
                Role::Claim => self.claim(run, lines, clear),
            }
        }
        std::mem::forget(stop);
    }

    /// Opens the launch and runs tiles for as long as nothing says that what is left would take others long enough: the pace of
    /// earlier launches, then that of the tiles run last.
    unsafe fn alone(&self, run: &mut Run<'_>, lines: &Lines, clear: (*mut u8, usize), patience: &Patience) {
        let tiles = lines.tiles();
        let ranges = tiles.min(self.turns.len() as u64);
        self.tiles.store(tiles, Ordering::Relaxed);
        self.ranges.store(ranges, Ordering::Relaxed);
        let begin = Instant::now();
        // Of one tile.
        let mut ns = patience.expected_ns.div_ceil(tiles);
        let (mut at, mut looked) = (0, 0);
        while at < ranges && self.cut(at..at + 1).start < self.end.load(Ordering::Relaxed) {
            let left = tiles - self.cut(at..at + 1).start;
            let whole = ns.saturating_mul(left);
            let wanted = whole.checked_div(patience.worth_ns).unwrap_or(u64::MAX);
            let wanted = wanted.min(patience.threads as u64).min(ranges - at);
            if wanted > 1 && (ns > 0 || patience.worth_ns == 0) {
                self.next.store(at, Ordering::Relaxed);
                self.wanted.store(wanted, Ordering::Relaxed);
                return;
            }
            // As much as is worth one thread, and a range to begin with.
            let worth = patience.worth_ns.checked_div(ns).unwrap_or(0);
            let share = worth.saturating_mul(ranges).div_ceil(tiles).max(1);
            let end = at.saturating_add(share).min(ranges);
            let part = self.cut(at..end);
            let count = part.end - part.start;
            // SAFETY: the caller's promises.
            unsafe { self.ranges(run, lines, at..end, self.spent.load(Ordering::Acquire), clear) };
            let now = nanoseconds(begin);
            ns = ((now - looked) / count).max(1);
            (at, looked) = (end, now);
        }
        if at == ranges {
            self.took.store(looked, Ordering::Relaxed);
        }
    }

    /// Claims ranges and runs them, until none is left.
    unsafe fn claim(&self, run: &mut Run<'_>, lines: &Lines, clear: (*mut u8, usize)) {
        let ranges = self.ranges.load(Ordering::Relaxed);
        let (begin, mut tiles) = (Instant::now(), 0);
        loop {
            // Before the claim: what has ended by now was claimed earlier, and so lies below.
            let spent = self.spent.load(Ordering::Acquire);
            let range = self.next.fetch_add(1, Ordering::AcqRel);
            let part = self.cut(range..range + 1);
            if range >= ranges || part.start >= self.end.load(Ordering::Relaxed) {
                break;
            }
            tiles += part.end - part.start;
            // SAFETY: the caller's promises.
            unsafe { self.ranges(run, lines, range..range + 1, spent, clear) };
        }
        if let Some(ns) = nanoseconds(begin).checked_div(tiles) {
            self.took.store(ns.saturating_mul(self.tiles.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// Runs ranges, given how many turns those below them took at the least.
    unsafe fn ranges(&self, run: &mut Run<'_>, lines: &Lines, ranges: Range<u64>, spent: u64, clear: (*mut u8, usize)) {
        run.steps = 0;
        run.steps_max = run.step_limit.saturating_sub(spent);
        run.pause = self.pause(0, run.steps_max);
        // SAFETY: the caller's promises.
        let ran = unsafe { run.tiles(lines, self.cut(ranges.clone()), clear) };
        let (turns, range) = (run.steps, ranges.start as usize);
        self.turns[range].store(turns, Ordering::Relaxed);
        self.turns[range + 1..ranges.end as usize].iter().for_each(|none| none.store(0, Ordering::Relaxed));
        // Release: whoever sees it claims a range after this one was claimed.
        self.spent.fetch_add(turns, Ordering::AcqRel);
        if let Err(stop) = ran {
            let tile = run.tiles - 1;
            self.end.fetch_min(tile, Ordering::Relaxed);
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            if found.as_ref().is_none_or(|found| tile < found.tile) {
                *found = Some(Found { tile, range, turns, fault: *stop });
            }
        }
    }

    /// What came of it, once all threads have ended.
    pub fn result(self, image: &CpuImage, step_limit: u64) -> Result<(), Fault> {
        let found = self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let ranges = self.ranges.load(Ordering::Relaxed) as usize;
        // All ranges below a fault have ended.
        let whole = found.as_ref().map_or(ranges, |found| found.range);
        let below =
            self.turns[..whole].iter().fold(0, |sum: u64, turns| sum.saturating_add(turns.load(Ordering::Relaxed)));
        let turns = below.saturating_add(found.as_ref().map_or(0, |found| found.turns));
        let fault = found.map(|found| found.fault);
        if turns <= step_limit || matches!(fault, Some(Fault::Steps { .. })) {
            return fault.map_or(Ok(()), Err);
        }
        let program = image.program();
        // Blocks are named by those before them, so the first of the list is the first of the source.
        let site = program.blocks.iter().flatten().find_map(|inst| match inst {
            Inst::For { site, .. } | Inst::Loop { site, .. } => Some(*site),
            _ => None,
        });
        site.map_or(Ok(()), |site| Err(still_running(&image.name, program, site, step_limit)))
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Ends a launch, when dropped.
struct StopOthers<'a>(&'a AtomicU64);

impl Drop for StopOthers<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
