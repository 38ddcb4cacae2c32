//! The order that commands need, inferred from what they declare to touch.
//!
//! ```text
//! write x ──> read x ──┬──> write x        a read follows the last writer,
//!       └───> read x ──┘                   a write follows the last writer and every reader since
//! ```
//!
//! - Two commands are ordered exactly when one reaches the other over conflicts; edges that others imply are dropped,
//!   so what is left is the transitive reduction.
//! - Accumulations of one byte are unordered among themselves.
//! - Scratch that shares memory (`scratch`) adds its own conflicts: the whole of one storage against the whole of the
//!   other.
//! - Not here: how a device keeps the order (graph edges, a barrier per level, program order on the CPU).

use crate::plan::{Access, Checked, Command, Place, Region, StorageId};
use crate::scratch::Layout;
use std::collections::BTreeMap;

/// Which commands of a plan must follow which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hazards {
    before: Vec<Vec<u32>>,
    level: Vec<u32>,
}

impl Hazards {
    /// Of a plan whose storages lie apart.
    pub fn of(plan: &Checked<'_>) -> Self {
        Self::infer(&plan.plan().commands, |_, _| false)
    }

    /// Of a plan whose scratch lies as `layout` has it.
    pub fn with_layout(plan: &Checked<'_>, layout: &Layout) -> Self {
        Self::infer(&plan.plan().commands, |a, b| layout.share(a, b))
    }

    fn infer(commands: &[Command], share: impl Fn(StorageId, StorageId) -> bool) -> Self {
        let mut seen = BTreeMap::<Place, Vec<(usize, Region, Access)>>::new();
        let mut reach = Vec::<Bits>::with_capacity(commands.len());
        let (mut before, mut level) = (
            Vec::with_capacity(commands.len()),
            Vec::with_capacity(commands.len()),
        );
        for (at, command) in commands.iter().enumerate() {
            let touches = command.touches();
            let mut conflicts = Vec::new();
            for touch in &touches {
                for (place, earlier) in &seen {
                    let same = *place == touch.place;
                    if !same
                        && !matches!((place, touch.place), (Place::Storage(a), Place::Storage(b)) if share(*a, b))
                    {
                        continue;
                    }
                    let meets = |region: &Region| !same || region.overlaps(&touch.region);
                    conflicts.extend(earlier.iter().filter_map(|(earlier, region, access)| {
                        (access.conflicts(touch.access) && meets(region)).then_some(*earlier)
                    }));
                }
            }
            for touch in touches {
                seen.entry(touch.place)
                    .or_default()
                    .push((at, touch.region, touch.access));
            }
            // From the latest back, so that whatever an edge implies is known before it is asked for.
            conflicts.sort_unstable_by(|a, b| b.cmp(a));
            conflicts.dedup();
            let (mut reached, mut edges) = (Bits::default(), Vec::new());
            for earlier in conflicts {
                if !reached.has(earlier) {
                    edges.push(earlier as u32);
                    reached.set(earlier);
                    reached.join(&reach[earlier]);
                }
            }
            edges.reverse();
            level.push(
                edges
                    .iter()
                    .map(|&earlier| level[earlier as usize] + 1)
                    .max()
                    .unwrap_or(0),
            );
            before.push(edges);
            reach.push(reached);
        }
        Self { before, level }
    }

    /// The commands that command `at` waits for itself, ascending.
    pub fn before(&self, at: usize) -> &[u32] {
        &self.before[at]
    }

    /// Edges over all commands.
    pub fn edges(&self) -> usize {
        self.before.iter().map(Vec::len).sum()
    }

    /// How many edges lie between command `at` and the start, at most. Commands of one level are independent.
    pub fn level(&self, at: usize) -> u32 {
        self.level[at]
    }

    /// The commands of each level, in program order.
    pub fn levels(&self) -> Vec<Vec<u32>> {
        let mut levels =
            vec![Vec::new(); self.level.iter().max().map_or(0, |&last| last as usize + 1)];
        for (at, &level) in self.level.iter().enumerate() {
            levels[level as usize].push(at as u32);
        }
        levels
    }
}

/// A set of command numbers.
#[derive(Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn has(&self, at: usize) -> bool {
        self.0
            .get(at / 64)
            .is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    fn set(&mut self, at: usize) {
        if self.0.len() <= at / 64 {
            self.0.resize(at / 64 + 1, 0);
        }
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0
            .iter_mut()
            .zip(&other.0)
            .for_each(|(word, more)| *word |= more);
    }
}
