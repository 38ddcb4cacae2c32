//! Launches that only go on with what a contraction made: the update of a recurrent cell, the magnitude of a spectrum.
//!
//! ```text
//! contraction ──> [position, column] ──columns of one unit──┐
//! c, h, peepholes … ──elements at position and unit─────────┴─> body ──> elements at position and unit
//! ```
//!
//! - A hint: the commands say all that is computed, and a device may leave hints alone. One that follows it computes the sums and the
//!   body in one kernel, and the result has the same bits.
//! - That body and launch are the same is the word of whoever made the plan. That they touch no byte that the launch does not declare to
//!   touch is checked.

use super::check::PlanError;
use super::{Access, Argument, Command, Plan, Region, StorageId};

/// Elements of f32, one for each position and unit: position `p` and unit `u` have the one at
/// `offset + p*position_stride + u*unit_stride` of the seat, or of what all seats share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements {
    /// Where they lie.
    pub storage: StorageId,
    /// The first.
    pub offset: usize,
    /// Elements between positions.
    pub position_stride: usize,
    /// Elements between units.
    pub unit_stride: usize,
}

/// What a body works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// What the contraction makes of this column for unit 0, of the next for unit 1, and so on.
    Columns(usize),
    /// What lies in memory.
    Memory(Elements),
}

/// A launch that goes on with the result of a contraction, for every seat, position and unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// The contraction's place among the plan's commands.
    pub contraction: usize,
    /// The launch's; after the contraction.
    pub dispatch: usize,
    /// Units of a position: N is a multiple of them.
    pub units: usize,
    /// What the body works on, `%operand0` and so on.
    pub operands: Vec<Operand>,
    /// Where its results go.
    pub results: Vec<Elements>,
    /// Lines of Loom, scalar operations on f32.
    pub body: String,
    /// What the body calls its results.
    pub made: Vec<String>,
}

impl Elements {
    /// The bytes of a seat that it touches; `None` if that is no number.
    fn region(&self, positions: usize, units: usize) -> Option<Region> {
        let last = |count: usize, stride: usize| count.checked_sub(1)?.checked_mul(stride);
        let end = last(positions, self.position_stride)?.checked_add(last(units, self.unit_stride)?)?.checked_add(1)?;
        self.offset.checked_add(end)?.checked_mul(4)?;
        Some(Region::contiguous(self.offset.checked_mul(4)?, end.checked_mul(4)?))
    }
}

impl Epilogue {
    /// Whether commands and memory are as it says.
    pub(super) fn check(&self, at: usize, plan: &Plan) -> Result<(), PlanError> {
        let wrong = |what: String| PlanError::Mismatch { at: format!("epilogue {at}"), what };
        let commands = (plan.commands.get(self.contraction), plan.commands.get(self.dispatch));
        let (Some(Command::Contract(contraction)), Some(Command::Dispatch { arguments, .. })) = commands else {
            return Err(wrong("its commands are no contraction and launch".into()));
        };
        if self.contraction >= self.dispatch {
            return Err(wrong("the launch comes before the contraction".into()));
        }
        if self.units == 0 || !contraction.n.is_multiple_of(self.units) {
            return Err(wrong(format!("{} units of {} columns", self.units, contraction.n)));
        }
        if self.made.len() != self.results.len() {
            return Err(wrong(format!("{} results for {} places", self.made.len(), self.results.len())));
        }
        let mut touched = self.results.iter().map(|to| (to, true)).collect::<Vec<_>>();
        for operand in &self.operands {
            match operand {
                Operand::Columns(first) => {
                    if !first.is_multiple_of(self.units) || *first >= contraction.n {
                        return Err(wrong(format!("{} columns from {first} of {}", self.units, contraction.n)));
                    }
                }
                Operand::Memory(from) => touched.push((from, false)),
            }
        }
        for (elements, writes) in touched {
            let uses = arguments.iter().filter_map(|argument| match argument {
                Argument::Buffer { storage, uses, .. } if *storage == elements.storage => Some(uses),
                _ => None,
            });
            let mut declared = uses.flatten().filter(|(_, access)| match writes {
                true => *access == Access::Write,
                false => access.reads(),
            });
            // Its bytes lie between the first and the last that the launch names.
            let found = elements.region(contraction.positions, self.units);
            let inside = found.is_some_and(|found| {
                let (mut start, mut end) = (usize::MAX, 0);
                declared
                    .by_ref()
                    .for_each(|(region, _)| (start, end) = (start.min(region.offset), end.max(region.end())));
                start <= found.offset && found.end() <= end
            });
            if !inside {
                return Err(wrong(format!(
                    "{elements:?} is not what the launch {}",
                    if writes { "writes" } else { "reads" }
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Activation, Contraction, Precision, Storage, Term};
    use crate::{DType, Port, Scope, Signature};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    /// x · W, of 4 columns, and a launch that adds the two halves.
    fn plan() -> (Plan, Signature) {
        let text = "kernel.def export(\"add\") @add(%seats: index) {\n  %one = index.constant 1 : index\n  \
                    kernel.launch.config workgroups(%seats, %one, %one) workgroup_size(%one, %one, %one) : index\n\
                    } launch(%seats: index, %a: buffer, %b: buffer) {\n  %start = index.constant 0 : offset\n  \
                    %at = index.constant 0 : index\n  %x = buffer.view %a[%start] : buffer -> view<4xf32>\n  \
                    %y = buffer.view %b[%start] : buffer -> view<2xf32>\n  %v = view.load %x[%at] : view<4xf32> -> f32\n  \
                    view.store %v, %y[%at] : f32, view<2xf32>\n  kernel.return\n}\n";
        let mut plan = Plan { name: "sums".into(), ..Plan::default() };
        let x = plan.storage(Storage::Input { port: 0, bytes: 4 });
        let product = plan.storage(Storage::Scratch { bytes: 16 });
        let y = plan.storage(Storage::Output { port: 0, bytes: 8 });
        let image = loom_compiler::compile_cpu("add", text, "add", &BTreeMap::new()).expect("it compiles");
        let kernel = plan.kernel(Arc::new(image));
        plan.commands.push(Command::Contract(Contraction {
            label: "product".into(),
            terms: vec![Term { storage: x, offset: 0, position_stride: 0, taps: 1, tap_stride: 0, tap_len: 1 }],
            weights: vec![1.0; 4].into(),
            precision: Precision::F32,
            bias: None,
            activation: Activation::None,
            positions: 1,
            n: 4,
            out: product,
            out_offset: 0,
            out_position_stride: 4,
        }));
        let uses = |storage, bytes, access| Argument::Buffer {
            storage,
            window: None,
            uses: vec![(Region::contiguous(0, bytes), access)],
        };
        plan.commands.push(Command::Dispatch {
            label: "add".into(),
            kernel,
            workload: vec![crate::plan::Scalar::Seats],
            arguments: vec![
                Argument::Scalar(crate::plan::Scalar::Seats),
                uses(product, 16, Access::Read),
                uses(y, 8, Access::Write),
            ],
        });
        plan.epilogues.push(Epilogue {
            contraction: 0,
            dispatch: 1,
            units: 2,
            operands: vec![Operand::Columns(0), Operand::Columns(2)],
            results: vec![Elements { storage: y, offset: 0, position_stride: 0, unit_stride: 1 }],
            body: "%r = scalar.addf %operand0, %operand1 : f32\n".into(),
            made: vec!["%r".into()],
        });
        let port = |name: &str, n| Port { name: name.into(), dtype: DType::F32, shape: vec![n], scope: Scope::Seat };
        let (inputs, outputs) = (vec![port("x", 1)], vec![port("y", 2)]);
        (plan, Signature { name: "sums".into(), inputs, outputs, states: Vec::new() })
    }

    #[test]
    fn an_epilogue_stays_within_its_commands() {
        let (good, signature) = plan();
        good.check(&signature).expect("it is sound");
        let elements = |storage, offset, unit_stride| Elements { storage, offset, position_stride: 0, unit_stride };
        let (product, y) = (StorageId(1), StorageId(2));
        type Change = Box<dyn Fn(&mut Epilogue)>;
        let changes: [(&str, Change); 9] = [
            ("no contraction and launch", Box::new(|e| e.dispatch = 0)),
            ("no contraction and launch", Box::new(|e| e.contraction = 7)),
            ("0 units of 4 columns", Box::new(|e| e.units = 0)),
            ("3 units of 4 columns", Box::new(|e| e.units = 3)),
            ("2 columns from 1 of 4", Box::new(|e| e.operands[0] = Operand::Columns(1))),
            ("2 columns from 4 of 4", Box::new(|e| e.operands[1] = Operand::Columns(4))),
            ("is not what the launch writes", Box::new(move |e| e.results[0] = elements(y, 1, 1))),
            ("is not what the launch writes", Box::new(move |e| e.results[0] = elements(product, 0, 1))),
            (
                "is not what the launch reads",
                Box::new(move |e| e.operands[0] = Operand::Memory(elements(product, 0, usize::MAX))),
            ),
        ];
        for (why, change) in changes {
            let mut bad = good.clone();
            change(&mut bad.epilogues[0]);
            let found = bad.check(&signature).expect_err(why).to_string();
            assert!(found.contains(why), "{found}, expected {why}");
        }
        let mut bad = good;
        bad.epilogues[0].made.clear();
        assert!(bad.check(&signature).is_err());
    }
}
