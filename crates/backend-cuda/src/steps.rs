//! What the commands of a turn become in its graph, and after what: nodes cost a microsecond each, so there are as few as there can be.
//!
//! ```text
//! gathers, copies ─┐                   ┌─> scatters
//! kernel ──────────┴─> kernel ─> cell ─┴─> kernel
//! ```
//!
//! - A launch that goes on with a contraction is done with it in one kernel, where nothing needs to come between.
//! - Zeros that nobody overwrites are there already: scratch is zeroed when it is made, and such a storage shares memory with none.
//! - What moves first, or last, moves in one launch. States that only contractions and cells touch do not move (`states`).
//! - Rows that are multiplied rounded are packed by a launch of their own, once for all contractions that read the same. What a
//!   contraction makes of them for another it writes there itself.
//! - Nothing here needs a GPU: [`outline`] tells what a plan would become.
//! - Not here: what goes up and down, and the driver's nodes (`plan`).

use crate::contract::cell;
use crate::matrices;
use crate::moves::MOVES_MOST;
use crate::states::{self, States};
use crate::writer::step;
use lanes_core::device::DeviceError;
use lanes_core::hazard::Hazards;
use lanes_core::plan::{
    Access, Checked, Command, Epilogue, Operand, Place, Plan, Precision, Region, Storage, StorageId,
};
use lanes_core::scratch::Layout;

/// The most bytes, for all seats, that zeros are kept for.
const KEPT_MOST: usize = 64 << 20;

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
    /// A gather that is left out: kernels read the state where it lies.
    Read,
    /// A scatter that the cell of this launch does.
    Written(usize),
}

/// By storage, the commands that write it, in program order, and what of it.
pub(crate) type Writers = Vec<Vec<(usize, Region)>>;

pub(crate) fn writers(plan: &Plan) -> Writers {
    let mut writers = vec![Vec::new(); plan.storages.len()];
    for (at, command) in plan.commands.iter().enumerate() {
        for touch in command.touches().into_iter().filter(|touch| touch.access.writes()) {
            if let Place::Storage(StorageId(id)) = touch.place {
                writers[id as usize].push((at, touch.region));
            }
        }
    }
    writers
}

/// What becomes of each command of `plan` for `seats` seats.
pub(crate) fn parts(checked: &Checked<'_>, seats: usize) -> Vec<Part> {
    let hazards = Hazards::of(checked);
    let plan = checked.plan();
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
    let writers = writers(plan);
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
    states::mark(checked, &hazards, &mut parts);
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

/// Where scratch lies: what is done at once lives together, kept zeros always, and what is read where it was gathered from nowhere.
pub(crate) fn layout(plan: &Checked<'_>, parts: &[Part], seats: usize) -> Option<Layout> {
    let commands = &plan.plan().commands;
    let last = commands.len().saturating_sub(1);
    let (mut is_kept, mut is_left) = (vec![false; plan.plan().storages.len()], vec![false; plan.plan().storages.len()]);
    for (command, part) in commands.iter().zip(parts) {
        match (part, command) {
            (Part::Kept, Command::Fill { to: (StorageId(id), _), .. }) => is_kept[*id as usize] = true,
            (Part::Read, Command::Gather { to: (StorageId(id), _), .. }) => is_left[*id as usize] = true,
            _ => {}
        }
    }
    Layout::living(plan, seats, |at, id| match parts[at] {
        _ if is_left[id.0 as usize] => None,
        _ if is_kept[id.0 as usize] => Some(0..=last),
        Part::Early(late) => Some(at..=late),
        Part::Cell(epilogue) => Some(plan.plan().epilogues[epilogue].contraction..=at),
        Part::Written(cell) => Some(cell..=at),
        Part::Alone | Part::Kept | Part::Read => Some(at..=at),
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

/// By command: the contraction whose packed rows a contraction of rounded operands reads, its own or those of an earlier one that reads
/// the same.
fn packs(plan: &Checked<'_>) -> Vec<Option<usize>> {
    let commands = &plan.plan().commands;
    let mut packs = vec![None; commands.len()];
    // Those whose rows are still what their terms say.
    let mut valid: Vec<usize> = Vec::new();
    for (at, command) in commands.iter().enumerate() {
        if let Command::Contract(contraction) = command
            && contraction.precision != Precision::F32
        {
            let reads_alike = |earlier: &&usize| match &commands[**earlier] {
                Command::Contract(other) => {
                    other.terms == contraction.terms && other.positions == contraction.positions
                }
                _ => false,
            };
            let owner = valid.iter().find(reads_alike).copied().unwrap_or(at);
            packs[at] = Some(owner);
            if owner == at {
                valid.push(at);
            }
        }
        let written: Vec<_> = command.touches().into_iter().filter(|touch| touch.access.writes()).collect();
        valid.retain(|&owner| {
            let Command::Contract(contraction) = &commands[owner] else { return false };
            let reads = |place: Place| contraction.terms.iter().any(|term| Place::Storage(term.storage) == place);
            !written.iter().any(|touch| reads(touch.place))
        });
    }
    packs
}

/// A term of packed rows that whoever makes its values writes there too, rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handed {
    /// The contraction that packs the rows.
    pub owner: usize,
    /// Which of its terms.
    pub term: usize,
    /// The contraction that makes the values, by itself or with what goes on with it.
    pub maker: usize,
    /// Which result of what goes on with it; 0 where nothing does.
    pub result: usize,
    /// The first of the maker's columns, or units, that the term reads.
    pub from: usize,
}

/// What a contraction packs of its rows.
#[derive(Clone, Debug)]
pub(crate) struct Pack {
    /// Its terms that others write.
    pub others: Vec<usize>,
    /// What the other terms are read from.
    pub storages: Vec<StorageId>,
    /// The commands that write these. The contraction may wait for one by way of another, of which its pack knows nothing.
    pub after: Vec<usize>,
}

/// Packed rows of a plan: who packs, and what others write of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    /// As [`packs`] has it.
    pub owner_of: Vec<Option<usize>>,
    pub handed: Vec<Handed>,
    /// By command: what it packs. Nothing where others write all: what fills rows up is zero from the start, and nobody writes it.
    pub pack_of: Vec<Option<Pack>>,
    /// Contractions whose rows are packed by one launch. First those that wait for no command, all that there are.
    pub launches: Vec<Vec<usize>>,
    /// How many of these launches wait for none.
    pub early: usize,
}

/// The most contractions whose rows one launch packs.
const PACKED_MOST: usize = 16;

impl Rows {
    pub fn of(plan: &Checked<'_>, parts: &[Part]) -> Self {
        let (owner_of, writers, plan) = (packs(plan), writers(plan.plan()), plan.plan());
        let handed = handed(plan, parts, &owner_of, &writers);
        let pack = |(at, command): (usize, &Command)| {
            let Command::Contract(contraction) = command else { return None };
            if owner_of[at] != Some(at) {
                return None;
            }
            let others: Vec<usize> =
                handed.iter().filter(|handed| handed.owner == at).map(|handed| handed.term).collect();
            let own = contraction.terms.iter().enumerate().filter(|(term, _)| !others.contains(term));
            let storages: Vec<StorageId> = own.map(|(_, term)| term.storage).collect();
            let mine = command.touches();
            let writes = |&id: &StorageId| {
                let reads = |region: &Region| {
                    mine.iter().any(|touch| touch.place == Place::Storage(id) && touch.region.overlaps(region))
                };
                let before = writers[id.0 as usize].iter().filter(|(earlier, region)| *earlier < at && reads(region));
                before.map(|(earlier, _)| *earlier).collect::<Vec<_>>()
            };
            let after = storages.iter().flat_map(writes).collect();
            (!storages.is_empty()).then_some(Pack { others, storages, after })
        };
        let pack_of: Vec<Option<Pack>> = plan.commands.iter().enumerate().map(pack).collect();
        // A gather that is left out is nobody to wait for.
        let is_early = |pack: &Pack| pack.after.iter().all(|&earlier| parts[earlier] == Part::Read);
        let packs = pack_of.iter().enumerate().filter_map(|(at, pack)| Some((at, is_early(pack.as_ref()?))));
        let (early, late): (Vec<_>, Vec<_>) = packs.partition(|(_, is_early)| *is_early);
        let early: Vec<usize> = early.into_iter().map(|(at, _)| at).collect();
        let mut launches: Vec<Vec<usize>> = early.chunks(PACKED_MOST).map(<[usize]>::to_vec).collect();
        let early = launches.len();
        launches.extend(late.into_iter().map(|(at, _)| vec![at]));
        Self { owner_of, handed, pack_of, launches, early }
    }
}

/// What is handed on: of each row and position the same elements, in whole pieces, that nobody else writes.
fn handed(plan: &Plan, parts: &[Part], packs: &[Option<usize>], writers: &Writers) -> Vec<Handed> {
    // What a command makes of a storage: the contraction, which result, the first element, that of the next position, and how many.
    let made = |at: usize, storage: StorageId| match (&plan.commands[at], parts[at]) {
        (Command::Contract(contraction), Part::Alone) => {
            let stride = step(contraction.positions, contraction.out_position_stride);
            Some((at, 0, contraction.out_offset, stride, contraction.n, contraction.positions))
        }
        (Command::Dispatch { .. }, Part::Cell(epilogue)) => {
            let epilogue = &plan.epilogues[epilogue];
            let Command::Contract(contraction) = &plan.commands[epilogue.contraction] else { return None };
            let is_it = |result: &lanes_core::plan::Elements| result.storage == storage && result.unit_stride == 1;
            let result = epilogue.results.iter().position(is_it)?;
            let lies = &epilogue.results[result];
            let stride = step(contraction.positions, lies.position_stride);
            Some((epilogue.contraction, result, lies.offset, stride, epilogue.units, contraction.positions))
        }
        _ => None,
    };
    let mut handed = Vec::new();
    for (owner, command) in plan.commands.iter().enumerate() {
        let Command::Contract(contraction) = command else { continue };
        if packs[owner] != Some(owner) {
            continue;
        }
        let mut done = 0;
        for (term, read) in contraction.terms.iter().enumerate() {
            let start = done;
            done += read.k();
            let storage = &plan.storages[read.storage.0 as usize];
            let [(writer, _)] = writers[read.storage.0 as usize][..] else { continue };
            if !matches!(storage, Storage::Scratch { .. }) || writer >= owner || read.taps != 1 {
                continue;
            }
            let Some((maker, result, offset, stride, count, positions)) = made(writer, read.storage) else { continue };
            let is_alike = positions == contraction.positions && stride == step(positions, read.position_stride);
            let Some(from) = read.offset.checked_sub(offset) else { continue };
            if is_alike && from + read.tap_len <= count && matrices::in_pieces(start, read.tap_len) {
                handed.push(Handed { owner, term, maker, result, from });
            }
        }
    }
    handed
}

/// A node to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// These commands, which move bytes, in one launch.
    Moves(Vec<usize>),
    /// The rows, rounded, of the contractions of this launch, for them and others.
    Pack(usize),
    /// A command.
    Command(usize),
    /// The contraction and the launch of an epilogue.
    Cell(usize),
}

/// What steps are made of.
pub(crate) struct Commands<'a> {
    pub plan: &'a Checked<'a>,
    pub hazards: &'a Hazards,
    pub parts: &'a [Part],
    pub rows: &'a Rows,
    /// By command: whether it has a fault record.
    pub reports: &'a [bool],
    pub states: &'a States,
}

/// Steps, each with the nodes that it comes after.
type Steps = Vec<(Step, Vec<usize>)>;

impl Commands<'_> {
    /// The nodes of the commands, numbered on from `first`, and by command the node that does it; zeros that are kept have none. Block
    /// and fault records are there after node `up`, the input of each port after the node that `inputs` tells.
    pub fn steps(&self, first: usize, up: Option<usize>, inputs: &[Option<usize>]) -> (Steps, Vec<Option<usize>>) {
        let plan = self.plan.plan();
        let mut steps = Steps::new();
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
        let late = several(self.moves(|at| is_last[at]).into_iter().filter(is_scatter).collect());
        let is_in = |all: &[usize]| {
            let mut is_in = vec![false; plan.commands.len()];
            all.iter().for_each(|&at| is_in[at] = true);
            is_in
        };
        let is_late = is_in(&late);
        let early = several(self.moves(|at| self.hazards.before(at).is_empty() && !is_late[at]));
        let is_early = is_in(&early);

        let packs = &self.rows.owner_of;
        // By command: the node that packs its rows for all.
        let mut packed = vec![None; plan.commands.len()];
        let mut node_of = vec![None; plan.commands.len()];
        let mut add = |step: Step, commands: &[usize]| {
            let mut after = Vec::new();
            // Those of commands before: what a gather that is left out would wait for, whoever waits for it waits for.
            let nodes = |before: Vec<usize>, node_of: &[Option<usize>]| {
                let (mut nodes, mut before) = (Vec::new(), before);
                while let Some(earlier) = before.pop() {
                    nodes.extend(node_of[earlier]);
                    if self.parts[earlier] == Part::Read {
                        before.extend(self.hazards.before(earlier).iter().map(|&earlier| earlier as usize));
                    }
                }
                nodes
            };
            if let Step::Pack(launch) = step {
                for &owner in &self.rows.launches[launch] {
                    let Some(pack) = &self.rows.pack_of[owner] else { continue };
                    after.extend(pack.storages.iter().filter_map(|id| input(*id)));
                    after.extend(pack.after.iter().filter_map(|&earlier| node_of[earlier]));
                    after.extend(up.filter(|_| self.states.by_row[owner]));
                    packed[owner] = Some(first + steps.len());
                }
                after.sort_unstable();
                after.dedup();
                steps.push((step, after));
                return;
            }
            for &owner in commands.iter().filter_map(|&at| packs[at].as_ref()) {
                after.extend(packed[owner]);
            }
            for &at in commands {
                let before = self.hazards.before(at).iter().map(|&earlier| earlier as usize).collect();
                after.extend(nodes(before, &node_of));
                after.extend(up.filter(|_| self.states.by_row[at]));
                for touch in plan.commands[at].touches() {
                    match touch.place {
                        Place::Storage(id) => after.extend(input(id)),
                        Place::RowRead(_) | Place::RowWritten(_) => after.extend(up),
                    }
                }
                if self.reports[at] {
                    after.extend(up);
                }
            }
            after.sort_unstable();
            after.dedup();
            commands.iter().for_each(|&at| node_of[at] = Some(first + steps.len()));
            steps.push((step, after));
        };
        early.chunks(MOVES_MOST).for_each(|group| add(Step::Moves(group.to_vec()), group));
        (0..self.rows.early).for_each(|launch| add(Step::Pack(launch), &[]));
        let mut late_packs = (self.rows.early..self.rows.launches.len()).peekable();
        for (at, command) in plan.commands.iter().enumerate() {
            // Later writers of what it reads wait for the contraction, which waits for it.
            if let Some(launch) = late_packs.next_if(|&launch| self.rows.launches[launch] == [at]) {
                add(Step::Pack(launch), &[]);
            }
            match self.parts[at] {
                Part::Early(_) | Part::Kept | Part::Read | Part::Written(_) => {}
                Part::Cell(epilogue) => {
                    let stored = (at..plan.commands.len()).filter(|&later| self.parts[later] == Part::Written(at));
                    let all = [plan.epilogues[epilogue].contraction, at].into_iter().chain(stored);
                    add(Step::Cell(epilogue), &all.collect::<Vec<_>>());
                }
                Part::Alone if is_early[at] || is_late[at] => {}
                Part::Alone => match command {
                    Command::Copy { .. } | Command::Gather { .. } | Command::Scatter { .. } => {
                        add(Step::Moves(vec![at]), &[at]);
                    }
                    _ => add(Step::Command(at), &[at]),
                },
            }
        }
        late.chunks(MOVES_MOST).for_each(|group| add(Step::Moves(group.to_vec()), group));
        (steps, node_of)
    }

    /// By command: whether the node that does it comes after another that comes after the turn's rows have gone up. A kernel begins when
    /// those before it have waited for all before them (`ptx::Start::Early`), so what went up is there.
    pub fn behind_rows(&self) -> Vec<bool> {
        const UP: usize = 0;
        let (steps, node_of) = self.steps(UP + 1, Some(UP), &[]);
        let (mut behind, mut twice) = (vec![true], vec![false]);
        for (_, after) in &steps {
            twice.push(after.iter().any(|&earlier| earlier != UP && behind[earlier]));
            behind.push(after.iter().any(|&earlier| behind[earlier]));
        }
        node_of.into_iter().map(|node| node.is_some_and(|node| twice[node])).collect()
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
        let is_left = |&at: &usize| self.parts[at] == Part::Alone && moves(&plan.commands[at]) && may(at);
        (0..plan.commands.len()).filter(is_left).collect()
    }
}

/// What the commands of `plan` become in the graph of a turn of at most `max_seats` seats, between what goes up and what comes down: a line
/// for each node, with the numbers of those that it comes after. Needs no GPU.
///
/// # Errors
/// Scratch that no address can name.
pub fn outline(plan: &Checked<'_>, max_seats: usize) -> Result<Vec<String>, DeviceError> {
    let parts = parts(plan, max_seats);
    let layout = layout(plan, &parts, max_seats);
    let layout = layout.ok_or_else(|| DeviceError::unaddressable("scratch".into(), u64::MAX))?;
    let hazards = Hazards::with_layout(plan, &layout);
    let commands = &plan.plan().commands;
    let reports = vec![false; commands.len()];
    let rows = Rows::of(plan, &parts);
    let states = States::of(plan, &parts, &rows);
    let turn = Commands { plan, hazards: &hazards, parts: &parts, rows: &rows, reports: &reports, states: &states };
    let (steps, _) = turn.steps(0, None, &[]);
    let said = |step: &Step| match step {
        Step::Moves(moved) => moved.iter().map(|&at| commands[at].label()).collect::<Vec<_>>().join(", "),
        Step::Pack(launch) => {
            let owners = rows.launches[*launch].iter().map(|&at| commands[at].label());
            format!("rows of {}", owners.collect::<Vec<_>>().join(", "))
        }
        Step::Command(at) => commands[*at].label().to_owned(),
        Step::Cell(epilogue) => {
            let epilogue = &plan.plan().epilogues[*epilogue];
            format!("{} with {}", commands[epilogue.contraction].label(), commands[epilogue.dispatch].label())
        }
    };
    Ok(steps.iter().enumerate().map(|(at, (step, after))| format!("{at}: {} after {after:?}", said(step))).collect())
}

#[cfg(test)]
mod tests;
