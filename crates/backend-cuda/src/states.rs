//! States that kernels read and write where they lie, by the rows of each seat, so that nobody moves them.
//!
//! ```text
//! gather ─> c ──┐                                  row that the seat reads ──┐
//!               cell ──> next c ─> scatter   becomes                         cell ──> row that the seat writes
//! ```
//!
//! - A gather is left out if only contractions, and what goes on with them, read what it would make; a scatter if a cell makes all of it.
//! - The rows that a turn's seats read and those that they write never meet, so a cell may write while others still read.
//! - Contractions and epilogues say the same as before, of the state's storage instead of the copy's.
//! - Not here: how a kernel finds rows (`writer`), and what it waits for (`steps`).

use crate::steps::{Part, Rows, Writers, writers};
use lanes_core::hazard::Hazards;
use lanes_core::plan::{
    Checked, Command, Contraction, Elements, Epilogue, Operand, Place, Plan, Precision, Region, Storage, StorageId,
    Touch,
};
use std::collections::HashMap;

/// Bytes of an element.
const ELEMENT: usize = 4;

/// A plan's contractions and epilogues with the states that they touch.
pub(crate) struct States {
    /// By command: a contraction that reads states itself, or whose rows are packed from them.
    contractions: HashMap<usize, Contraction>,
    /// By their numbers in the plan.
    pub epilogues: Vec<Epilogue>,
    /// By command: whether it is, or goes on with, a contraction that is told rows.
    pub by_row: Vec<bool>,
}

/// Marks the gathers and scatters of `plan` that kernels do without.
pub(crate) fn mark(plan: &Checked<'_>, hazards: &Hazards, parts: &mut [Part]) {
    let plan = plan.plan();
    let writers = writers(plan);
    for (at, command) in plan.commands.iter().enumerate() {
        match command {
            Command::Gather { row, to, .. } if is_read_in_place(plan, parts, &writers, (row, to)) => {
                parts[at] = Part::Read;
            }
            Command::Scatter { from: (from, region), row, .. } => {
                let [(cell, _)] = writers[from.0 as usize][..] else { continue };
                let comes_after = |&earlier: &u32| earlier as usize == cell;
                let is_last = hazards.before(at).iter().all(comes_after);
                if is_last && result_of(plan, parts, cell, *from, region).is_some() && is_run(row) {
                    parts[at] = Part::Written(cell);
                }
            }
            _ => {}
        }
    }
}

/// Whether a region is whole elements side by side.
const fn is_run(region: &Region) -> bool {
    let region = region.joined();
    region.rows == 1 && region.offset.is_multiple_of(ELEMENT) && region.row_bytes.is_multiple_of(ELEMENT)
}

/// Whether only kernels of contractions read what a gather of `row` would make.
fn is_read_in_place(
    plan: &Plan,
    parts: &[Part],
    writers: &Writers,
    (row, (to, region)): (&Region, &(StorageId, Region)),
) -> bool {
    let is_scratch = matches!(plan.storages[to.0 as usize], Storage::Scratch { .. });
    if !is_scratch || writers[to.0 as usize].len() != 1 || !is_run(row) || !is_run(region) {
        return false;
    }
    let made = region.joined();
    let is_it = |touch: &Touch| touch.place == Place::Storage(*to) && touch.access.reads();
    let is_made = |read: &Region| made.offset <= read.offset && read.end() <= made.end();
    plan.commands.iter().zip(parts).all(|(command, part)| {
        let touches = command.touches();
        let mut read = touches.iter().filter(|touch| is_it(touch)).peekable();
        let is_kernel = match (command, part) {
            (Command::Contract(_), _) => true,
            // Its launch, and not the body, may read what the epilogue does not name.
            (Command::Dispatch { .. }, Part::Cell(_)) => true,
            _ => false,
        };
        read.peek().is_none() || is_kernel && read.all(|touch| is_made(&touch.region))
    })
}

/// The result of the cell that launch `at` is, if there is one, that makes all of `region` of storage `from`.
fn result_of(plan: &Plan, parts: &[Part], at: usize, from: StorageId, region: &Region) -> Option<(usize, usize)> {
    let Part::Cell(number) = parts[at] else { return None };
    let epilogue = &plan.epilogues[number];
    let Command::Contract(contraction) = &plan.commands[epilogue.contraction] else { return None };
    let is_all = |to: &Elements| {
        let run = region.joined();
        let is_run = to.unit_stride == 1 && (contraction.positions == 1 || to.position_stride == epilogue.units);
        let (first, count) = (to.offset * ELEMENT, contraction.positions * epilogue.units * ELEMENT);
        to.storage == from && is_run && run.rows == 1 && (run.offset, run.row_bytes) == (first, count)
    };
    Some((number, epilogue.results.iter().position(is_all)?))
}

impl States {
    pub fn of(plan: &Checked<'_>, parts: &[Part], rows: &Rows) -> Self {
        let plan = plan.plan();
        // By storage that is not gathered: the state, its first element, and the storage's.
        let mut copies = HashMap::new();
        let mut epilogues = plan.epilogues.clone();
        for (command, part) in plan.commands.iter().zip(parts) {
            match (command, part) {
                (Command::Gather { state, row, to: (to, region) }, Part::Read) => {
                    copies.insert(*to, (*state, row.offset / ELEMENT, region.offset / ELEMENT));
                }
                (Command::Scatter { from: (from, region), state, row }, Part::Written(cell)) => {
                    let Some((number, result)) = result_of(plan, parts, *cell, *from, region) else { continue };
                    let epilogue = &mut epilogues[number];
                    let lies = Elements {
                        storage: *state,
                        offset: row.offset / ELEMENT,
                        position_stride: epilogue.units,
                        unit_stride: 1,
                    };
                    // What nobody reads but to scatter it lies in the state alone; the second state is another's copy.
                    if epilogue.results[result].storage == *from && !is_read(plan, parts, rows, *from) {
                        epilogue.results[result] = lies;
                    } else {
                        let made = epilogue.made[result].clone();
                        epilogue.results.push(lies);
                        epilogue.made.push(made);
                    }
                }
                _ => {}
            }
        }
        let moved = |storage: &mut StorageId, offset: &mut usize| {
            if let Some(&(state, first, of_copy)) = copies.get(storage) {
                (*storage, *offset) = (state, *offset - of_copy + first);
            }
        };
        for epilogue in &mut epilogues {
            for operand in &mut epilogue.operands {
                if let Operand::Memory(elements) = operand {
                    moved(&mut elements.storage, &mut elements.offset);
                }
            }
        }
        let mut contractions = HashMap::new();
        for (at, command) in plan.commands.iter().enumerate() {
            let Command::Contract(contraction) = command else { continue };
            if contraction.terms.iter().any(|term| copies.contains_key(&term.storage)) {
                let mut contraction = contraction.clone();
                contraction.terms.iter_mut().for_each(|term| moved(&mut term.storage, &mut term.offset));
                contractions.insert(at, contraction);
            }
        }
        let mut by_row = vec![false; plan.commands.len()];
        contractions.keys().for_each(|&at| by_row[at] = true);
        for (at, part) in parts.iter().enumerate() {
            let Part::Cell(number) = part else { continue };
            let epilogue = &epilogues[*number];
            let is_state = |id: StorageId| matches!(plan.storages[id.0 as usize], Storage::State { .. });
            let is_told = crate::contract::cell::places(epilogue).any(|place| is_state(place.storage));
            by_row[at] = is_told || by_row[epilogue.contraction];
        }
        Self { contractions, epilogues, by_row }
    }

    /// `contraction`, command `at`, with the states that it reads.
    pub fn contraction<'c>(&'c self, at: usize, contraction: &'c Contraction) -> &'c Contraction {
        self.contractions.get(&at).unwrap_or(contraction)
    }
}

/// Whether anybody reads a cell's result where the plan has it.
fn is_read(plan: &Plan, parts: &[Part], rows: &Rows, id: StorageId) -> bool {
    let is_scratch = matches!(plan.storages[id.0 as usize], Storage::Scratch { .. });
    let reads = |(at, (command, part)): (usize, (&Command, &Part))| match (command, part) {
        (_, Part::Read | Part::Written(_)) => false,
        (Command::Contract(contraction), _) if contraction.precision != Precision::F32 => {
            // Rounded rows are what it reads, and others may make them.
            rows.owner_of[at] == Some(at) && rows.pack_of[at].iter().any(|pack| pack.storages.contains(&id))
        }
        (_, Part::Cell(number)) => plan.epilogues[*number].operands.iter().any(|operand| match operand {
            Operand::Memory(elements) => elements.storage == id,
            Operand::Columns(_) => false,
        }),
        (command, _) => command.touches().iter().any(|touch| touch.place == Place::Storage(id) && touch.access.reads()),
    };
    !is_scratch || plan.commands.iter().zip(parts).enumerate().any(reads)
}

#[cfg(test)]
mod tests;
