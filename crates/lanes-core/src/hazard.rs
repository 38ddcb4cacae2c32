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
        let (mut before, mut level) = (Vec::with_capacity(commands.len()), Vec::with_capacity(commands.len()));
        for (at, command) in commands.iter().enumerate() {
            let touches = command.touches();
            let mut conflicts = Vec::new();
            for touch in &touches {
                for (place, earlier) in &seen {
                    let same = *place == touch.place;
                    if !same && !matches!((place, touch.place), (Place::Storage(a), Place::Storage(b)) if share(*a, b))
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
                seen.entry(touch.place).or_default().push((at, touch.region, touch.access));
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
            level.push(edges.iter().map(|&earlier| level[earlier as usize] + 1).max().unwrap_or(0));
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
        let mut levels = vec![Vec::new(); self.level.iter().max().map_or(0, |&last| last as usize + 1)];
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
        self.0.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
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
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Argument, KernelId};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    type Use = (u32, Region, Access);

    fn uses() -> impl Strategy<Value = Vec<Vec<Use>>> {
        let access =
            prop_oneof![Just(Access::Read), Just(Access::Write), Just(Access::ReadWrite), Just(Access::Accumulate)];
        let region = (0usize..24, 1usize..5, 0usize..5, 1usize..4);
        let one = (0u32..4, region, access).prop_map(|(storage, (offset, row_bytes, gap, rows), access)| {
            (storage, Region { offset, row_bytes, stride: row_bytes + gap, rows }, access)
        });
        prop::collection::vec(prop::collection::vec(one, 0..4), 0..24)
    }

    fn command(uses: &[Use]) -> Command {
        let buffer = |&(storage, region, access)| Argument::Buffer {
            storage: StorageId(storage),
            window: None,
            uses: vec![(region, access)],
        };
        Command::Dispatch {
            label: String::new(),
            kernel: KernelId(0),
            workload: vec![],
            arguments: uses.iter().map(buffer).collect(),
        }
    }

    fn bytes((storage, region, _): &Use) -> BTreeSet<(u32, usize)> {
        let runs = (0..region.rows).map(|row| region.offset + row * region.stride);
        runs.flat_map(|start| (start..start + region.row_bytes).map(|at| (*storage, at))).collect()
    }

    /// Everything that reaches `at` over edges.
    fn reaching(before: impl Fn(usize) -> Vec<usize>, commands: usize) -> Vec<BTreeSet<usize>> {
        let mut reach = Vec::<BTreeSet<usize>>::new();
        for at in 0..commands {
            let mut all = BTreeSet::new();
            for earlier in before(at) {
                all.insert(earlier);
                all.extend(&reach[earlier]);
            }
            reach.push(all);
        }
        reach
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        /// Against the rule said byte by byte: per byte the last writer, the readers since, the accumulators since.
        #[test]
        fn the_order_is_that_of_bytes_and_no_edge_is_implied(commands in uses(), shared in any::<bool>()) {
            // With storages 2 and 3 in one place, a byte of either is a byte of both.
            let place = |storage: u32| if shared && storage == 3 { 2 } else { storage };
            let touched = |use_: &Use| -> BTreeSet<(u32, usize)> {
                let whole = shared && use_.0 >= 2;
                let bytes = bytes(use_).into_iter().map(|(storage, at)| (place(storage), at));
                if whole { bytes.chain((0..60).map(|at| (2, at + 1000))).collect() } else { bytes.collect() }
            };
            let rule = |at: usize| -> Vec<usize> {
                (0..at).filter(|&earlier| commands[at].iter().any(|now| commands[earlier].iter().any(|then| {
                    let ordered = match (then.2, now.2) {
                        (Access::Read, Access::Read) | (Access::Accumulate, Access::Accumulate) => false,
                        (Access::Read, _) | (_, Access::Read) => then.2 != Access::Read || now.2 != Access::Read,
                        _ => true,
                    };
                    // In one storage bytes tell; two storages that share memory conflict as wholes.
                    let meet = if then.0 == now.0 {
                        !bytes(then).is_disjoint(&bytes(now))
                    } else {
                        !touched(then).is_disjoint(&touched(now))
                    };
                    ordered && meet
                }))).collect()
            };
            let expected = reaching(rule, commands.len());
            let recorded: Vec<_> = commands.iter().map(|uses| command(uses)).collect();
            let share = |a: StorageId, b: StorageId| shared && a != b && a.0 >= 2 && b.0 >= 2;
            let hazards = Hazards::infer(&recorded, share);
            let edges = |at: usize| hazards.before(at).iter().map(|&earlier| earlier as usize).collect::<Vec<_>>();
            let found = reaching(edges, commands.len());
            prop_assert_eq!(&found, &expected);
            let mut count = 0;
            for at in 0..commands.len() {
                let before = edges(at);
                count += before.len();
                for &edge in &before {
                    let implied = before.iter().any(|&other| other != edge && found[other].contains(&edge));
                    prop_assert!(!implied, "{} -> {} is implied", edge, at);
                    prop_assert!(hazards.level(edge) < hazards.level(at));
                }
                let level = before.iter().map(|&edge| hazards.level(edge) + 1).max().unwrap_or(0);
                prop_assert_eq!(hazards.level(at), level);
            }
            prop_assert_eq!(hazards.edges(), count);
            prop_assert_eq!(hazards.levels().concat().len(), commands.len());
        }
    }

    #[test]
    fn heads_that_write_columns_of_one_buffer_are_independent() {
        let column = |head: usize| Region { offset: head * 8, row_bytes: 8, stride: 64, rows: 16 };
        let mut commands: Vec<_> = (0..8).map(|head| command(&[(0, column(head), Access::Write)])).collect();
        commands.push(command(&[(0, Region::contiguous(0, 1024), Access::Read)]));
        let hazards = Hazards::infer(&commands, |_, _| false);
        assert_eq!(hazards.levels(), [(0..8).collect::<Vec<_>>(), vec![8]]);
        assert_eq!(hazards.before(8), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn the_row_read_and_the_row_written_are_two_places() {
        let (state, own, whole) = (StorageId(0), StorageId(1), Region::contiguous(0, 16));
        let scatter = Command::Scatter { from: (own, whole), state, row: whole };
        let commands = [scatter.clone(), Command::Gather { state, row: whole, to: (StorageId(2), whole) }, scatter];
        let hazards = Hazards::infer(&commands, |_, _| false);
        assert_eq!((hazards.before(1), hazards.before(2)), (&[][..], &[0][..]));
    }
}
