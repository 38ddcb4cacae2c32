//! Elementwise launches that go on with one contraction: said to the device, which may do both at once.
//!
//! - Of the contractions that a launch reads, the last one: what others made lies in memory by then.
//! - A launch walks the contraction's positions and, at each, units: columns of a unit are read together.

use super::{Emitter, Home};
use crate::lower::expr::{Expr, Writer};
use crate::lower::view::{View, loops};
use lanes_core::DType;
use lanes_core::plan::{Command, Contraction, Elements, Epilogue, Operand};

/// Commands before a launch among which its contraction is looked for.
const BEFORE_MOST: usize = 16;

impl Emitter {
    /// Notes the launch of `expr` that was just recorded, if it goes on with a contraction.
    pub(super) fn note_epilogue(&mut self, expr: &Expr, targets: &[(DType, Home)], sources: &[(DType, Home)]) {
        let Some(dispatch) = self.plan.commands.len().checked_sub(1) else { return };
        let reads = |contraction: &Contraction| sources.iter().any(|(_, home)| home.storage == contraction.out);
        let before = self.plan.commands.iter().enumerate().rev().skip(1).take(BEFORE_MOST);
        let found = before.filter_map(|(at, command)| match command {
            Command::Contract(contraction) if reads(contraction) => Some((at, contraction)),
            _ => None,
        });
        let Some((at, contraction)) = found.max_by_key(|&(at, _)| at) else { return };
        let is_free = self.plan.epilogues.iter().all(|known| known.contraction != at);
        let is_f32 = targets.iter().chain(sources).all(|(dtype, _)| *dtype == DType::F32);
        if let (true, true, Some(epilogue)) =
            (is_free, is_f32, epilogue((at, contraction), dispatch, expr, targets, sources))
        {
            self.plan.epilogues.push(epilogue);
        }
    }
}

fn epilogue(
    (at, contraction): (usize, &Contraction),
    dispatch: usize,
    expr: &Expr,
    targets: &[(DType, Home)],
    sources: &[(DType, Home)],
) -> Option<Epilogue> {
    let homes: Vec<&Home> = targets.iter().chain(sources).map(|(_, home)| home).collect();
    let is_column: Vec<bool> = homes.iter().map(|home| home.storage == contraction.out).collect();
    let steps = loops(&homes.iter().map(|home| &home.view).collect::<Vec<&View>>());
    let (positions, apart) = (contraction.positions, contraction.out_position_stride as isize);
    // What every view moves by from one column to the next, and from one position to the next.
    let columns = |strides: &[isize], stride: isize| strides.iter().zip(&is_column).all(|(&s, is)| !is || s == stride);
    let (units, by_unit, by_position) = match &steps[..] {
        [only] if columns(&only.strides, 1) && positions == 1 => (only.extent, only.strides.clone(), None),
        // Rows that lie end to end are one loop if it walks all of them: half of two rows may be one whole row.
        [only] if columns(&only.strides, 1) && apart == contraction.n as isize => {
            let by_position = only.strides.iter().map(|stride| stride * apart).collect::<Vec<_>>();
            (contraction.n, only.strides.clone(), Some((positions, by_position)))
        }
        [a, b] => {
            let (outer, inner) = if columns(&b.strides, 1) { (a, b) } else { (b, a) };
            let fits = columns(&inner.strides, 1) && columns(&outer.strides, apart);
            let by_position = fits.then(|| (outer.extent, outer.strides.clone()))?;
            (inner.extent, inner.strides.clone(), Some(by_position))
        }
        _ => return None,
    };
    let (walked, by_position) = by_position.unwrap_or_else(|| (1, vec![0; homes.len()]));
    let total: usize = steps.iter().map(|step| step.extent).product();
    if walked != positions || units * positions != total || !contraction.n.is_multiple_of(units) {
        return None;
    }
    let elements = |n: usize| {
        let Home { storage, view } = homes[n];
        let unit_stride = usize::try_from(by_unit[n]).ok()?;
        let position_stride = usize::try_from(by_position[n]).ok()?;
        Some(Elements { storage: *storage, offset: view.offset, position_stride, unit_stride })
    };
    let operand = |n: usize| {
        if !is_column[n] {
            return elements(n).map(Operand::Memory);
        }
        let column = homes[n].view.offset.checked_sub(contraction.out_offset)?;
        (column < contraction.n && column.is_multiple_of(units)).then_some(Operand::Columns(column))
    };
    if is_column[..targets.len()].contains(&true) {
        return None;
    }
    let results = (0..targets.len()).map(elements).collect::<Option<_>>()?;
    let operands = (targets.len()..homes.len()).map(operand).collect::<Option<_>>()?;
    let mut writer = Writer::new(6);
    let names: Vec<String> = (0..expr.inputs).map(|n| format!("%operand{n}")).collect();
    let made = writer.expr(expr, &names);
    Some(Epilogue { contraction: at, dispatch, units, operands, results, body: writer.finish(), made })
}
