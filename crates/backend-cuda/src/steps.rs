//! What the graph of a turn is made of, and after what: nodes cost a microsecond each, so there are as few as there can be.
//!
//! ```text
//! up: block, records, inputs ─┬─> moves: gathers, copies ─┐                        ┌─> moves: scatters
//!                             └─> pad ─> kernel ──────────┴─> kernel ─> cell ──────┴─> down: records, outputs
//! ```
//!
//! - A launch that goes on with a contraction is done with it in one kernel, where nothing needs to come between.
//! - Zeros that nobody overwrites are there already: scratch is zeroed when it is made, and such a storage shares memory with none.
//! - What moves first, or last, moves in one launch; stretches of staging that lie close together are copied as one.
//! - Nothing here needs a GPU: [`outline`] tells what a plan would become.
//! - Not here: the driver's nodes (`plan`), and what is written into the block (`queue`).

use crate::contract::cell;
use crate::moves::MOVES_MOST;
use crate::queue::block_bytes;
use lanes_core::device::DeviceError;
use lanes_core::hazard::Hazards;
use lanes_core::plan::{Access, Checked, Command, Epilogue, Operand, Place, Region, Storage, StorageId};
use lanes_core::scratch::Layout;
use lanes_core::{Port, Scope};
use loom_compiler::ptx::FAULT_BYTES;
use std::ops::Range;

/// Starts of what lies in staging: what a device's copies like best.
const ALIGN: usize = 256;

/// Stretches of staging that are no further apart are copied as one: the bytes between take less time than another node.
const GAP_MOST: usize = 16 << 10;

/// The most bytes, for all seats, that zeros are kept for.
const KEPT_MOST: usize = 64 << 20;

/// Where staging holds what. The parameter block comes first.
pub(crate) struct Staging {
    pub inputs: Box<[Range<usize>]>,
    pub outputs: Box<[Range<usize>]>,
    /// Fault records.
    pub faults: Range<usize>,
    pub bytes: usize,
}

impl Staging {
    /// For turns of `seats` seats of a plan with `records` commands that report faults.
    pub fn of(plan: &Checked<'_>, records: usize, seats: usize) -> Result<Self, DeviceError> {
        let mut at = block_bytes(seats);
        let mut place = |name: &str, bytes: Option<usize>| {
            let start = at.checked_next_multiple_of(ALIGN);
            let range = start.and_then(|start| Some(start..start.checked_add(bytes?)?));
            let range = range.filter(|range| isize::try_from(range.end).is_ok());
            let range = range.ok_or_else(|| DeviceError::unaddressable(format!("staging of {name}"), u64::MAX))?;
            at = range.end;
            Ok::<_, DeviceError>(range)
        };
        let faults = place("fault records", records.checked_mul(FAULT_BYTES))?;
        let signature = plan.signature();
        let mut ports = |ports: &[Port]| {
            let place = |port: &Port| {
                let seats = if port.scope == Scope::Seat { seats } else { 1 };
                place(&port.name, port.bytes().checked_mul(seats))
            };
            ports.iter().map(place).collect::<Result<Box<[_]>, _>>()
        };
        // The block and the records go up with the inputs, and short outputs come down with the records.
        let bytes =
            signature.outputs.iter().map(|port| port.bytes().saturating_mul(seats)).fold(0, usize::saturating_add);
        let (inputs, outputs) = if records > 0 && bytes <= GAP_MOST {
            let outputs = ports(&signature.outputs)?;
            (ports(&signature.inputs)?, outputs)
        } else {
            (ports(&signature.inputs)?, ports(&signature.outputs)?)
        };
        Ok(Self { inputs, outputs, faults, bytes: at })
    }
}

/// What becomes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It is done by itself, or moves with others.
    Alone,
    /// A contraction that is done with this later launch.
    Early(usize),
    /// A launch that is done with the contraction of this epilogue.
    Cell(usize),
    /// A fill whose zeros are there.
    Kept,
}

/// What becomes of each command of `plan` for `seats` seats.
pub(crate) fn parts(plan: &Checked<'_>, seats: usize) -> Vec<Part> {
    let hazards = Hazards::of(plan);
    let plan = plan.plan();
    let mut parts = vec![Part::Alone; plan.commands.len()];
    for (at, epilogue) in plan.epilogues.iter().enumerate() {
        let Command::Contract(contraction) = &plan.commands[epilogue.contraction] else { continue };
        let (early, late) = (epilogue.contraction, epilogue.dispatch);
        let between = (early + 1..late).any(|at| hazards.before(at).contains(&(early as u32)));
        let is_free = parts[early] == Part::Alone && parts[late] == Part::Alone;
        if is_free && !between && cell::fits(contraction, epilogue) && lie_apart(&plan.commands, epilogue) {
            (parts[early], parts[late]) = (Part::Early(late), Part::Cell(at));
        }
    }
    // What each storage is written by.
    let mut writers = vec![Vec::new(); plan.storages.len()];
    for (at, command) in plan.commands.iter().enumerate() {
        for touch in command.touches().into_iter().filter(|touch| touch.access.writes()) {
            if let Place::Storage(StorageId(id)) = touch.place {
                writers[id as usize].push((at, touch.region));
            }
        }
    }
    let mut is_kept = vec![false; plan.storages.len()];
    let mut left = KEPT_MOST;
    for (at, command) in plan.commands.iter().enumerate() {
        let Command::Fill { to: (StorageId(id), region), pattern: 0 } = command else { continue };
        let Storage::Scratch { bytes } = plan.storages[*id as usize] else { continue };
        if writers[*id as usize].iter().any(|(other, written)| *other != at && written.overlaps(region)) {
            continue;
        }
        if !is_kept[*id as usize] {
            let Some(rest) = bytes.checked_mul(seats).and_then(|bytes| left.checked_sub(bytes)) else { continue };
            left = rest;
            is_kept[*id as usize] = true;
        }
        parts[at] = Part::Kept;
    }
    parts
}

/// Whether no result of the launch lies where the contraction or the launch reads: workgroups write while others still read.
fn lie_apart(commands: &[Command], epilogue: &Epilogue) -> bool {
    let touches = |at: usize| commands[at].touches().into_iter();
    let written: Vec<(Place, Region)> = touches(epilogue.dispatch)
        .filter(|touch| touch.access.writes())
        .map(|touch| (touch.place, touch.region))
        .collect();
    let mut others =
        touches(epilogue.contraction).chain(touches(epilogue.dispatch).filter(|touch| touch.access.reads()));
    let meets = |place: Place, region: &Region| written.iter().any(|(to, over)| *to == place && over.overlaps(region));
    let updates =
        touches(epilogue.dispatch).any(|touch| matches!(touch.access, Access::ReadWrite | Access::Accumulate));
    !updates && !others.any(|touch| meets(touch.place, &touch.region))
}

/// Where scratch lies: what is done at once lives together, and kept zeros always.
pub(crate) fn layout(plan: &Checked<'_>, parts: &[Part], seats: usize) -> Option<Layout> {
    let commands = &plan.plan().commands;
    let last = commands.len().saturating_sub(1);
    let mut is_kept = vec![false; plan.plan().storages.len()];
    for (command, part) in commands.iter().zip(parts) {
        if let (Part::Kept, Command::Fill { to: (StorageId(id), _), .. }) = (part, command) {
            is_kept[*id as usize] = true;
        }
    }
    Layout::living(plan, seats, |at, id| match parts[at] {
        _ if is_kept[id.0 as usize] => 0..=last,
        Part::Early(late) => at..=late,
        Part::Cell(epilogue) => plan.plan().epilogues[epilogue].contraction..=at,
        Part::Alone | Part::Kept => at..=at,
    })
}

/// Whether the sums of an epilogue's contraction are read by others too.
pub(crate) fn keeps(plan: &Checked<'_>, epilogue: &Epilogue) -> bool {
    let commands = &plan.plan().commands;
    let Command::Contract(contraction) = &commands[epilogue.contraction] else { return true };
    let is_scratch = matches!(plan.plan().storages[contraction.out.0 as usize], Storage::Scratch { .. });
    let place = Place::Storage(contraction.out);
    let reads = |command: &Command| command.touches().iter().any(|touch| touch.place == place && touch.access.reads());
    // A launch may read columns that its body does not name.
    let by_columns = epilogue.operands.iter().all(|operand| match operand {
        Operand::Columns(_) => true,
        Operand::Memory(elements) => elements.storage != contraction.out,
    });
    let others = commands.iter().enumerate().any(|(at, command)| at != epilogue.dispatch && reads(command));
    !is_scratch || !by_columns || others
}

/// A node to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A stretch of staging to the device.
    Up(Range<usize>),
    /// And back.
    Down(Range<usize>),
    /// The first seat's input of this port to the seats that lack.
    Pad { port: usize, bytes: usize },
    /// These commands, which move bytes, in one launch.
    Moves(Vec<usize>),
    /// A command.
    Command(usize),
    /// The contraction and the launch of an epilogue.
    Cell(usize),
}

/// What steps are made of.
pub(crate) struct Turn<'a> {
    pub plan: &'a Checked<'a>,
    pub hazards: &'a Hazards,
    pub parts: &'a [Part],
    pub staging: &'a Staging,
    /// By command: whether it has a fault record.
    pub reports: &'a [bool],
    pub max_seats: usize,
}

type Steps = Vec<(Step, Vec<usize>)>;

impl Turn<'_> {
    /// The nodes for `seats` seats, each with those that it comes after; not `exact` if turns of fewer are done by them too. Not `whole` is
    /// the commands alone: what the host gives lies on the device, and what it gets stays there.
    pub fn steps(&self, seats: usize, exact: bool, whole: bool) -> Steps {
        let plan = self.plan.plan();
        let mut steps = Steps::new();
        let (block, inputs) = if whole { self.uploads(&mut steps, seats, exact) } else { (None, Vec::new()) };
        let input = |id: StorageId| match plan.storages[id.0 as usize] {
            Storage::Input { port, .. } | Storage::SharedInput { port, .. } => inputs.get(port).copied().flatten(),
            _ => None,
        };
        let mut is_last = vec![true; plan.commands.len()];
        for at in 0..plan.commands.len() {
            self.hazards.before(at).iter().for_each(|&earlier| is_last[earlier as usize] = false);
        }
        // A lone one stays where it is.
        let several = |all: Vec<usize>| if all.len() > 1 { all } else { Vec::new() };
        let is_scatter = |at: &usize| matches!(plan.commands[*at], Command::Scatter { .. });
        let last = several(self.moves(|at| is_last[at]).into_iter().filter(is_scatter).collect());
        let is_in = |all: &[usize]| {
            let mut is_in = vec![false; plan.commands.len()];
            all.iter().for_each(|&at| is_in[at] = true);
            is_in
        };
        let is_in_last = is_in(&last);
        let first = several(self.moves(|at| self.hazards.before(at).is_empty() && !is_in_last[at]));
        let is_in_first = is_in(&first);

        // By command: the node that does it, once there is one.
        let mut node_of = vec![None; plan.commands.len()];
        let needs = |node_of: &[Option<usize>], commands: &[usize], reports: bool| {
            let mut after = Vec::new();
            for &at in commands {
                after.extend(self.hazards.before(at).iter().filter_map(|&earlier| node_of[earlier as usize]));
                for touch in plan.commands[at].touches() {
                    match touch.place {
                        Place::Storage(id) => after.extend(input(id)),
                        Place::RowRead(_) | Place::RowWritten(_) => after.extend(block),
                    }
                }
                if reports && self.reports[at] {
                    after.extend(block);
                }
            }
            after.sort_unstable();
            after.dedup();
            after
        };
        for group in first.chunks(MOVES_MOST) {
            let after = needs(&node_of, group, false);
            steps.push((Step::Moves(group.to_vec()), after));
            group.iter().for_each(|&at| node_of[at] = Some(steps.len() - 1));
        }
        for (at, command) in plan.commands.iter().enumerate() {
            let (step, does) = match self.parts[at] {
                Part::Early(_) | Part::Kept => continue,
                Part::Cell(epilogue) => (Step::Cell(epilogue), vec![plan.epilogues[epilogue].contraction, at]),
                Part::Alone if is_in_first[at] || is_in_last[at] => continue,
                Part::Alone => match command {
                    Command::Copy { .. } | Command::Gather { .. } | Command::Scatter { .. } => {
                        (Step::Moves(vec![at]), vec![at])
                    }
                    _ => (Step::Command(at), vec![at]),
                },
            };
            let reports = !matches!(self.parts[at], Part::Cell(_));
            let after = needs(&node_of, &does, reports);
            steps.push((step, after));
            does.iter().for_each(|&at| node_of[at] = Some(steps.len() - 1));
        }
        for group in last.chunks(MOVES_MOST) {
            let after = needs(&node_of, group, false);
            steps.push((Step::Moves(group.to_vec()), after));
        }
        if whole {
            self.downloads(&mut steps, seats, &node_of);
        }
        steps
    }

    /// Commands that move bytes of every seat, of those that `may`.
    fn moves(&self, may: impl Fn(usize) -> bool) -> Vec<usize> {
        let plan = self.plan.plan();
        let moves = |command: &Command| match command {
            Command::Gather { to: (to, _), .. } | Command::Copy { to: (to, _), .. } => {
                !plan.storages[to.0 as usize].is_shared()
            }
            Command::Scatter { .. } => true,
            _ => false,
        };
        (0..plan.commands.len()).filter(|&at| moves(&plan.commands[at]) && may(at)).collect()
    }

    /// What goes up: the node after which block and records are there, and those after which each input is.
    fn uploads(&self, steps: &mut Steps, seats: usize, exact: bool) -> (Option<usize>, Vec<Option<usize>>) {
        let (plan, staging) = (self.plan.plan(), self.staging);
        let moves_rows = |command: &Command| matches!(command, Command::Gather { .. } | Command::Scatter { .. });
        let has_input = |storage: &Storage| matches!(storage, Storage::Input { bytes: 1.., .. });
        let mut needed = Vec::new();
        if !staging.faults.is_empty() {
            needed.push(0..staging.faults.end);
        } else if plan.commands.iter().any(moves_rows) || (!exact && plan.storages.iter().any(has_input)) {
            needed.push(0..block_bytes(self.max_seats));
        }
        let mut bytes_of = vec![None; staging.inputs.len()];
        for storage in &plan.storages {
            if let Storage::Input { port, bytes: bytes @ 1.. } = *storage {
                bytes_of[port] = Some((bytes, bytes * seats));
            } else if let Storage::SharedInput { port, bytes: bytes @ 1.. } = *storage {
                bytes_of[port] = Some((0, bytes));
            }
        }
        let range = |port: usize, bytes: usize| staging.inputs[port].start..staging.inputs[port].start + bytes;
        needed.extend(bytes_of.iter().enumerate().filter_map(|(port, bytes)| Some(range(port, (*bytes)?.1))));
        let from = steps.len();
        steps.extend(stretches(needed).into_iter().map(|stretch| (Step::Up(stretch), Vec::new())));
        let holds = |steps: &Steps, at: usize| {
            let found = |(step, _): &(Step, Vec<usize>)| matches!(step, Step::Up(range) if range.contains(&at));
            steps[from..].iter().position(found).map(|node| from + node)
        };
        let block = holds(steps, 0);
        let inputs = bytes_of.iter().enumerate().map(|(port, bytes)| {
            let (each, _) = (*bytes)?;
            let there = holds(steps, staging.inputs[port].start)?;
            let Some(block) = block.filter(|_| !exact && each > 0) else { return Some(there) };
            let mut after = vec![there, block];
            after.dedup();
            steps.push((Step::Pad { port, bytes: each }, after));
            Some(steps.len() - 1)
        });
        let inputs = inputs.collect();
        (block, inputs)
    }

    /// What comes down, after those that write it.
    fn downloads(&self, steps: &mut Steps, seats: usize, node_of: &[Option<usize>]) {
        let (plan, staging) = (self.plan.plan(), self.staging);
        // Stretches, and the nodes that write each.
        let mut needed = Vec::new();
        if !staging.faults.is_empty() {
            let reporting = (0..plan.commands.len()).filter(|&at| self.reports[at]).filter_map(|at| node_of[at]);
            needed.push((staging.faults.clone(), reporting.collect::<Vec<_>>()));
        }
        for (id, storage) in plan.storages.iter().enumerate() {
            let Storage::Output { port, bytes: bytes @ 1.. } = *storage else { continue };
            let mine = Place::Storage(StorageId(id as u32));
            let writes =
                |command: &Command| command.touches().iter().any(|touch| touch.place == mine && touch.access.writes());
            let writers = plan.commands.iter().zip(node_of).filter(|(command, _)| writes(command));
            let start = staging.outputs[port].start;
            needed.push((start..start + bytes * seats, writers.filter_map(|(_, node)| *node).collect()));
        }
        for stretch in stretches(needed.iter().map(|(range, _)| range.clone()).collect()) {
            let inside = needed.iter().filter(|(range, _)| stretch.contains(&range.start));
            let mut after: Vec<usize> = inside.flat_map(|(_, nodes)| nodes.clone()).collect();
            after.sort_unstable();
            after.dedup();
            steps.push((Step::Down(stretch), after));
        }
    }
}

/// `ranges` as the fewest that have no more than [`GAP_MOST`] bytes between them; none of `ranges` is empty.
fn stretches(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut found: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match found.last_mut() {
            Some(last) if range.start <= last.end + GAP_MOST => last.end = last.end.max(range.end),
            _ => found.push(range),
        }
    }
    found
}

/// What the graph of `plan` for `seats` of at most `max_seats` seats is made of: a line for each node, with the numbers of those that it
/// comes after. Needs no GPU. Every launch of a kernel is taken to report faults.
///
/// # Errors
/// Staging or scratch that no address can name.
pub fn outline(plan: &Checked<'_>, max_seats: usize, seats: usize) -> Result<Vec<String>, DeviceError> {
    let parts = parts(plan, max_seats);
    let layout = layout(plan, &parts, max_seats);
    let layout = layout.ok_or_else(|| DeviceError::unaddressable("scratch".into(), u64::MAX))?;
    let hazards = Hazards::with_layout(plan, &layout);
    let commands = &plan.plan().commands;
    let reports: Vec<bool> = commands
        .iter()
        .zip(&parts)
        .map(|(command, part)| *part == Part::Alone && matches!(command, Command::Dispatch { .. }))
        .collect();
    let records = reports.iter().filter(|reports| **reports).count();
    let staging = Staging::of(plan, records, max_seats)?;
    let turn = Turn { plan, hazards: &hazards, parts: &parts, staging: &staging, reports: &reports, max_seats };
    let said = |step: &Step| match step {
        Step::Up(range) => format!("up {range:?}"),
        Step::Down(range) => format!("down {range:?}"),
        Step::Pad { port, .. } => format!("pad input {port}"),
        Step::Moves(moved) => moved.iter().map(|&at| commands[at].label()).collect::<Vec<_>>().join(", "),
        Step::Command(at) => commands[*at].label().to_owned(),
        Step::Cell(epilogue) => {
            let epilogue = &plan.plan().epilogues[*epilogue];
            format!("{} with {}", commands[epilogue.contraction].label(), commands[epilogue.dispatch].label())
        }
    };
    let steps = turn.steps(seats, seats == 1, true);
    Ok(steps.iter().enumerate().map(|(at, (step, after))| format!("{at}: {} after {after:?}", said(step))).collect())
}

#[cfg(test)]
mod tests;
