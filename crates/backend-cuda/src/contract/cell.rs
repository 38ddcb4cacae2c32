//! A contraction and the launch that goes on with it, in one kernel: the update of a recurrent cell, say.
//!
//! ```text
//! weights as given:  i i i i o o o o f f f f c c c c        as packed:  i o f c i o f c i o f c i o f c
//! ```
//!
//! - Columns of one unit stand side by side, so that they meet in one workgroup. Sums are what they are without.
//! - A workgroup writes while others still read operands: the results may not lie where operands do.
//! - Not here: which launches go with which contraction (`steps`).

use crate::matrices;
use crate::writer::{LANES, Row, Writer, line, step};
use lanes_core::plan::{Activation, Contraction, Elements, Epilogue, Operand, Precision};
use std::fmt::Write;
use std::ops::Range;

/// What a kernel does with sums instead of storing them.
#[derive(Clone, Copy)]
pub(crate) struct Cell<'a> {
    pub epilogue: &'a Epilogue,
    /// Elements of a seat, or a state's row, of what each of [`places`] lies in; 0 where one value serves all.
    pub seat_elements: &'a [usize],
    /// Whether the sums are stored too.
    pub keeps: bool,
}

/// Whether there is a kernel for both: the columns of a unit meet in the smallest workgroup.
pub(crate) fn fits(contraction: &Contraction, epilogue: &Epilogue) -> bool {
    let groups = contraction.n / epilogue.units;
    let most = if contraction.precision == Precision::F32 { LANES } else { matrices::SIDE };
    contraction.activation == Activation::None && groups.is_power_of_two() && groups <= most
}

/// What the kernel touches besides what the contraction alone does, in the order of its arguments.
pub(crate) fn places(epilogue: &Epilogue) -> impl Iterator<Item = &Elements> {
    let operands = epilogue.operands.iter().filter_map(|operand| match operand {
        Operand::Memory(elements) => Some(elements),
        Operand::Columns(_) => None,
    });
    epilogue.results.iter().chain(operands)
}

/// `weights` with the columns of each of `units` units side by side, `n` in a row.
pub(crate) fn side_by_side(weights: &[f32], n: usize, units: usize) -> Vec<f32> {
    let groups = n / units;
    let row = |row: &[f32]| (0..n).map(|at| row[at % groups * units + at / groups]).collect::<Vec<_>>();
    weights.chunks_exact(n).flat_map(row).collect()
}

impl Writer<'_> {
    /// The arguments after the result's storage.
    pub(crate) fn cell_arguments(&self) -> String {
        let count = self.cell.map_or(0, |cell| places(cell.epilogue).count());
        (0..count).map(|at| format!(", %more{at}: buffer")).collect()
    }

    /// Their views.
    pub(crate) fn cell_views(&mut self) {
        let Some(cell) = self.cell else { return };
        let positions = self.contraction.positions;
        for (at, place) in places(cell.epilogue).enumerate() {
            let last = place.offset
                + step(positions, place.position_stride) * (positions - 1)
                + step(cell.epilogue.units, place.unit_stride) * (cell.epilogue.units - 1);
            self.length(&format!("more{at}"), place.storage, cell.seat_elements[at], last + 1);
            line!(self, "  %place{at} = buffer.view %more{at}[%start] : buffer -> view<[%more{at}length]xf32>");
        }
    }

    /// `%first`, the first of the columns of an item's unit in the workgroup, `%unit`, whether there is that unit, and its biases.
    pub(crate) fn unit(&mut self, cell: Cell<'_>) {
        let (n, units) = (self.contraction.n, cell.epilogue.units);
        for (name, value) in [("groups", n / units), ("units", units), ("lastunit", units - 1)] {
            self.index(name, value);
        }
        line!(self, "  %firstunit = index.div %firstcolumn, %groups : index");
        line!(self, "  %wantedunit = index.add %firstunit, %l : index");
        line!(self, "  %isthing = index.cmp ult, %wantedunit, %units : index");
        line!(self, "  %unit = index.min %wantedunit, %lastunit : index");
        line!(self, "  %first = index.mul %l, %groups : index");
        if self.contraction.bias.is_some() {
            for group in 0..n / units {
                self.index(&format!("from{group}"), group * units);
                line!(self, "  %column{group} = index.add %unit, %from{group} : index");
                line!(self, "  %plus{group} = view.load %b[%column{group}] : view<{n}xf32> -> f32");
            }
        }
    }

    /// Of rows of an item by number, the rows of states that their seats read, `%read{i}`, and write, `%written{i}`, and whether these are kept:
    /// those of seats that only fill a bucket are not. Where nothing lies in states, nothing.
    pub(crate) fn state_rows(&mut self, cell: Cell<'_>, numbers: Range<usize>) {
        let Cell { epilogue, .. } = cell;
        let is_state = |place: &Elements| self.is_state(place.storage);
        let results = epilogue.results.iter().any(is_state);
        let operands = places(epilogue).skip(epilogue.results.len()).any(is_state);
        if results {
            self.occupied();
        }
        for i in numbers {
            if operands {
                self.row(&format!("read{i}"), &format!("seat{i}"), Row::Read);
            }
            if results {
                self.row(&format!("written{i}"), &format!("seat{i}"), Row::Written);
                line!(self, "  %kept{i} = index.cmp ult, %seat{i}, %occupied : index");
            }
        }
    }

    /// What row `%ofrow{i}` of `%unit` is made of besides sums: `%loaded{n}of{i}`.
    pub(crate) fn operands(&mut self, cell: Cell<'_>, i: usize) {
        let mut loaded = cell.epilogue.results.len();
        for (n, operand) in cell.epilogue.operands.iter().enumerate() {
            if let Operand::Memory(elements) = operand {
                let seat = if self.is_state(elements.storage) { "read" } else { "seat" };
                let at = self.place(&format!("in{n}of{i}"), seat, i, elements, cell.seat_elements[loaded]);
                let view = format!("view<[%more{loaded}length]xf32>");
                line!(self, "  %loaded{n}of{i} = view.load %place{loaded}[{at}] : {view} -> f32");
                loaded += 1;
            }
        }
    }

    /// What is made of the sums of `%unit` in row `%ofrow{i}`: the results, then the sums themselves.
    pub(crate) fn units_made(&mut self, cell: Cell<'_>, i: usize, sums: &[String]) -> Vec<String> {
        let epilogue = cell.epilogue;
        let mut sums = sums.to_vec();
        if self.contraction.bias.is_some() {
            for (group, sum) in sums.iter_mut().enumerate() {
                line!(self, "  %biased{group}of{i} = scalar.addf {sum}, %plus{group} : f32");
                *sum = format!("%biased{group}of{i}");
            }
        }
        let operand = |(n, operand): (usize, &Operand)| match operand {
            Operand::Columns(first) => sums[first / epilogue.units].clone(),
            Operand::Memory(_) => format!("%loaded{n}of{i}"),
        };
        let operands: Vec<String> = epilogue.operands.iter().enumerate().map(operand).collect();
        let body = named(&epilogue.body, &operands, i);
        self.text.push_str(&body);
        epilogue.made.iter().map(|made| named(made, &operands, i)).chain(sums).collect()
    }

    /// Stores what [`Self::units_made`] gives.
    pub(crate) fn units_stored(&mut self, cell: Cell<'_>, i: usize, made: &[String]) {
        let Cell { epilogue, keeps, .. } = cell;
        let Contraction { positions, out_offset, out_position_stride, .. } = self.contraction;
        let (made, sums) = made.split_at(epilogue.results.len());
        if keeps {
            let lies = Elements {
                storage: self.contraction.out,
                offset: *out_offset,
                position_stride: step(*positions, *out_position_stride),
                unit_stride: 1,
            };
            for (group, sum) in sums.iter().enumerate() {
                let lies = Elements { offset: lies.offset + group * epilogue.units, ..lies };
                let at = self.place(&format!("out{group}"), "seat", i, &lies, self.out_seat_elements);
                line!(self, "    view.store {sum}, %result[{at}] : f32, view<[%outlength]xf32>");
            }
        }
        for (at, (elements, made)) in epilogue.results.iter().zip(made).enumerate() {
            let is_state = self.is_state(elements.storage);
            if is_state {
                line!(self, "    scf.if %kept{i} {{");
            }
            let seat = if is_state { "written" } else { "seat" };
            let to = self.place(&format!("to{at}"), seat, i, elements, cell.seat_elements[at]);
            line!(self, "    view.store {made}, %place{at}[{to}] : f32, view<[%more{at}length]xf32>");
            if is_state {
                line!(self, "    }}");
            }
            self.hand_on(at, i, made, "%unit", epilogue.units, 1);
        }
    }

    /// Where the element at `%{seat}{i}`, `%position{i}` and `%unit` lies; the names that it takes end in `name`.
    fn place(&mut self, name: &str, seat: &str, i: usize, elements: &Elements, seat_elements: usize) -> String {
        for (part, value) in [
            ("each", seat_elements),
            ("offset", elements.offset),
            ("ofposition", step(self.contraction.positions, elements.position_stride)),
            ("ofunit", elements.unit_stride),
        ] {
            self.index(&format!("{part}{name}"), value);
        }
        line!(self, "      %s{name} = index.mul %{seat}{i}, %each{name} : index");
        line!(self, "      %p{name} = index.madd %position{i}, %ofposition{name}, %s{name} : index");
        line!(self, "      %u{name} = index.madd %unit, %ofunit{name}, %p{name} : index");
        line!(self, "      %at{name} = index.add %u{name}, %offset{name} : index");
        format!("%at{name}")
    }
}

/// `text` of a body with these operands, every name that it takes of number `i` alone.
fn named(text: &str, operands: &[String], i: usize) -> String {
    let mut parts = text.split('%');
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|at: char| !at.is_ascii_alphanumeric() && at != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        let operand = name.strip_prefix("operand").and_then(|n| operands.get(n.parse::<usize>().ok()?));
        match operand {
            Some(operand) => named.push_str(operand),
            None => named.extend(["%", name, &format!("body{i}")]),
        }
        named.push_str(rest);
    }
    named
}

#[cfg(test)]
mod tests;
