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
use crate::writer::{Extent, LANES, Summed, Writer, line, step};
use lanes_core::plan::{Activation, Contraction, Elements, Epilogue, Operand, Precision};
use std::fmt::Write;

/// What a kernel does with sums instead of storing them.
#[derive(Clone, Copy)]
pub(crate) struct Cell<'a> {
    pub epilogue: &'a Epilogue,
    /// Elements of a seat of what each of [`places`] lies in; 0 where one value serves all.
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
            self.length(&format!("more{at}"), cell.seat_elements[at], last + 1);
            line!(self, "  %place{at} = buffer.view %more{at}[%start] : buffer -> view<[%more{at}length]xf32>");
        }
    }

    /// What is made of the sums of each unit, up to the end of the block of an item.
    pub(crate) fn meet_in_units(&mut self, extent: Extent, cell: Cell<'_>, sum: &Summed<'_>) {
        let Cell { epilogue, keeps, .. } = cell;
        let Contraction { n, positions, out_offset, out_position_stride, .. } = self.contraction;
        let groups = n / epilogue.units;
        for (name, value) in [("groups", groups), ("units", epilogue.units)] {
            self.index(name, value);
        }
        line!(self, "  %firstunit = index.div %firstcolumn, %groups : index");
        self.each_of(extent, extent.columns / groups);
        line!(self, "    %unit = index.add %firstunit, %l : index");
        line!(self, "    %isunit = index.cmp ult, %unit, %units : index");
        line!(self, "    %live = scalar.andi %isrow, %isunit : i1");
        line!(self, "    scf.if %live {{");
        line!(self, "      %seat = index.div %row, %positions : index");
        line!(self, "      %position = index.rem %row, %positions : index");
        line!(self, "      %firstof = index.mul %l, %groups : index");
        // Of the columns of a unit as many as may be at once.
        let together = if extent.together > 1 { groups } else { 1 };
        let mut sums = Vec::with_capacity(groups);
        for at in 0..groups / together {
            self.index(&format!("group{at}"), at);
            line!(self, "      %beside{at} = index.add %firstof, %group{at} : index");
            let sum = sum(self, &format!("%beside{at}"), &at.to_string(), together);
            if together == 1 {
                sums.push(sum);
                continue;
            }
            for group in 0..groups {
                line!(self, "      %of{group} = vector.extract {sum}[{group}] : vector<{together}xf32> -> f32");
                sums.push(format!("%of{group}"));
            }
        }
        let sums: Vec<String> =
            sums.into_iter().enumerate().map(|(group, sum)| self.biased(group, epilogue.units, sum)).collect();
        if keeps {
            let lies = Elements {
                storage: self.contraction.out,
                offset: *out_offset,
                position_stride: step(*positions, *out_position_stride),
                unit_stride: 1,
            };
            for (group, sum) in sums.iter().enumerate() {
                let lies = Elements { offset: lies.offset + group * epilogue.units, ..lies };
                let at = self.place(&format!("out{group}"), &lies, self.out_seat_elements);
                line!(self, "      view.store {sum}, %result[{at}] : f32, view<[%outlength]xf32>");
            }
        }
        let results = epilogue.results.len();
        let mut loaded = results;
        let mut operands = Vec::with_capacity(epilogue.operands.len());
        for (n, operand) in epilogue.operands.iter().enumerate() {
            operands.push(match operand {
                Operand::Columns(first) => sums[first / epilogue.units].clone(),
                Operand::Memory(elements) => {
                    let at = self.place(&format!("in{n}"), elements, cell.seat_elements[loaded]);
                    line!(
                        self,
                        "      %loaded{n} = view.load %place{loaded}[{at}] : view<[%more{loaded}length]xf32> -> f32"
                    );
                    loaded += 1;
                    format!("%loaded{n}")
                }
            });
        }
        // From the last, so that no name is taken for the start of a longer one.
        let named = |text: &str| {
            let names = operands.iter().enumerate().rev();
            names.fold(text.to_owned(), |text, (n, name)| text.replace(&format!("%operand{n}"), name))
        };
        let body = named(&epilogue.body);
        self.text.push_str(&body);
        for (at, (elements, made)) in epilogue.results.iter().zip(&epilogue.made).enumerate() {
            let made = named(made);
            let to = self.place(&format!("to{at}"), elements, cell.seat_elements[at]);
            line!(self, "      view.store {made}, %place{at}[{to}] : f32, view<[%more{at}length]xf32>");
            self.hand_on(at, &made, "%unit", epilogue.units, 1);
        }
    }

    /// `sum`, that of column `group` of `%unit`, with its bias: its name.
    fn biased(&mut self, group: usize, units: usize, sum: String) -> String {
        if self.contraction.bias.is_none() {
            return sum;
        }
        self.index(&format!("from{group}"), group * units);
        line!(self, "      %column{group} = index.add %unit, %from{group} : index");
        line!(self, "      %plus{group} = view.load %b[%column{group}] : view<{}xf32> -> f32", self.contraction.n);
        line!(self, "      %biased{group} = scalar.addf {sum}, %plus{group} : f32");
        format!("%biased{group}")
    }

    /// Where the element at `%seat`, `%position` and `%unit` lies; the names that it takes end in `name`.
    fn place(&mut self, name: &str, elements: &Elements, seat_elements: usize) -> String {
        for (part, value) in [
            ("each", seat_elements),
            ("offset", elements.offset),
            ("ofposition", step(self.contraction.positions, elements.position_stride)),
            ("ofunit", elements.unit_stride),
        ] {
            self.index(&format!("{part}{name}"), value);
        }
        line!(self, "      %s{name} = index.mul %seat, %each{name} : index");
        line!(self, "      %p{name} = index.madd %position, %ofposition{name}, %s{name} : index");
        line!(self, "      %u{name} = index.madd %unit, %ofunit{name}, %p{name} : index");
        line!(self, "      %at{name} = index.add %u{name}, %offset{name} : index");
        format!("%at{name}")
    }
}

#[cfg(test)]
mod tests;
