//! `Einsum`: sums of products by labels, as transposes and matrix products.

use super::axis;
use super::builder::{Builder, Fault};
use super::nodes::Call;
use crate::graph::{Reduction, ValueId};

/// A value and the label of each of its axes.
type Labelled = (ValueId, Vec<char>);

impl Builder<'_> {
    /// `Einsum`.
    pub(super) fn einsum(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let equation = call.attributes.text("equation")?.unwrap_or_default();
        let plain: String = equation.chars().filter(|label| !label.is_whitespace()).collect();
        if plain.contains('.') {
            return Err(Fault::Unsupported(format!("equation {equation:?} has an ellipsis; labels are supported")));
        }
        let malformed = || Fault::Malformed(format!("equation {equation:?} of {} operands", call.operands.len()));
        let (left, result) = plain.split_once("->").map_or((&plain[..], None), |(left, right)| (left, Some(right)));
        let terms: Vec<Vec<char>> = left.split(',').map(|term| term.chars().collect()).collect();
        let all: Vec<char> = terms.concat();
        let result: Vec<char> = match result {
            Some(result) => result.chars().collect(),
            None => {
                // What occurs once, in alphabetical order.
                let mut once = all.clone();
                once.retain(|label| all.iter().filter(|other| *other == label).count() == 1);
                once.sort_unstable();
                once
            }
        };
        let once = |labels: &[char]| labels.iter().all(|a| labels.iter().filter(|b| *b == a).count() == 1);
        if terms.len() != call.operands.len() || !result.iter().all(|label| all.contains(label)) || !once(&result) {
            return Err(malformed());
        }
        let mut operands = Vec::new();
        for (at, labels) in terms.into_iter().enumerate() {
            let id = call.operand(at)?;
            if labels.len() != self.shape(id).len() {
                return Err(malformed());
            }
            if !once(&labels) {
                let why = format!("equation {equation:?} takes a diagonal; each label once in an operand is supported");
                return Err(Fault::Unsupported(why));
            }
            operands.push((id, labels));
        }
        let mut rest = operands.into_iter();
        let mut total = rest.next().ok_or_else(malformed)?;
        while let Some(next) = rest.next() {
            let wanted: Vec<char> =
                rest.as_slice().iter().flat_map(|(_, labels)| labels).chain(&result).copied().collect();
            total = self.contracted(total, next, &wanted)?;
        }
        let (id, labels) = self.summed(total, &result)?;
        self.transposed(id, &positions(&labels, &result))
    }

    /// Without the labels that nobody else wants.
    fn summed(&mut self, (id, labels): Labelled, wanted: &[char]) -> Result<Labelled, Fault> {
        let axes: Vec<usize> = (0..labels.len()).filter(|&axis| !wanted.contains(&labels[axis])).collect();
        if axes.is_empty() {
            return Ok((id, labels));
        }
        self.refuse_lanes_among(id, &axes, "sums over");
        let id = self.reduced(Reduction::Sum, id, &axes, false)?;
        Ok((id, labels.into_iter().filter(|label| wanted.contains(label)).collect()))
    }

    /// The product of two operands, summed over what they share and `wanted` does not name.
    fn contracted(&mut self, a: Labelled, b: Labelled, wanted: &[char]) -> Result<Labelled, Fault> {
        let a = self.summed(a, &[&b.1[..], wanted].concat())?;
        let b = self.summed(b, &[&a.1[..], wanted].concat())?;
        for (at, label) in a.1.iter().enumerate() {
            if let Some(other) = b.1.iter().position(|other| other == label)
                && self.shape(a.0)[at] != self.shape(b.0)[other]
            {
                let shapes = (self.shape(a.0), self.shape(b.0));
                return Err(Fault::Malformed(format!(
                    "label {label} has two extents in {:?} and {:?}",
                    shapes.0, shapes.1
                )));
            }
        }
        let those =
            |of: &[char], keep: &dyn Fn(char) -> bool| of.iter().copied().filter(|&c| keep(c)).collect::<Vec<_>>();
        let batch = those(&a.1, &|c| b.1.contains(&c) && wanted.contains(&c));
        let sum = those(&a.1, &|c| b.1.contains(&c) && !wanted.contains(&c));
        let (left, right) = (those(&a.1, &|c| !b.1.contains(&c)), those(&b.1, &|c| !a.1.contains(&c)));
        let labels = [&batch[..], &left, &right].concat();
        let extent = |builder: &Self, label: &char| {
            let of =
                |(id, labels): &Labelled| labels.iter().position(|at| at == label).map(|at| builder.shape(*id)[at]);
            of(&a).or_else(|| of(&b)).unwrap_or(1)
        };
        let shape: Vec<usize> = labels.iter().map(|label| extent(self, label)).collect();
        // The label that holds the lanes, to find them again when merged axes part.
        let lane_label = |builder: &Self, (id, labels): &Labelled| builder.lane(*id).axis().map(|axis| labels[axis]);
        let held = lane_label(self, &a).or_else(|| lane_label(self, &b));
        let rows = self.merged(&a, &batch, &left, &sum)?;
        let columns = self.merged(&b, &batch, &sum, &right)?;
        let product = self.product(rows, columns)?;
        let from = self.shape(product).to_vec();
        let taken: Vec<bool> = labels.iter().map(|label| Some(*label) == held).collect();
        let place = axis::reshape(self.lane(product), &from, &shape, &taken, None);
        let lane = self.place(place);
        Ok((self.renamed(product, shape, lane)?, labels))
    }

    /// The operand as matrices, one for each entry of `batch`.
    fn merged(
        &mut self,
        (id, labels): &Labelled,
        batch: &[char],
        rows: &[char],
        columns: &[char],
    ) -> Result<ValueId, Fault> {
        let order = [batch, rows, columns].concat();
        let turned = self.transposed(*id, &positions(labels, &order))?;
        let from = self.shape(turned).to_vec();
        let (outer, inner) = (batch.len(), batch.len() + rows.len());
        let mut shape = from[..outer].to_vec();
        shape.extend([from[outer..inner].iter().product::<usize>(), from[inner..].iter().product::<usize>()]);
        // More lanes would make the axis that theirs goes into longer.
        let into =
            self.lane(turned).axis().map(|axis| if axis < outer { axis } else { outer + usize::from(axis >= inner) });
        let taken: Vec<bool> = (0..shape.len()).map(|axis| Some(axis) == into).collect();
        let place = axis::reshape(self.lane(turned), &from, &shape, &taken, None);
        let lane = self.place(place);
        self.renamed(turned, shape, lane)
    }
}

/// Where each of `wanted` is among `labels`, which has them all.
fn positions(labels: &[char], wanted: &[char]) -> Vec<usize> {
    wanted.iter().filter_map(|label| labels.iter().position(|at| at == label)).collect()
}
