//! Tile products, plainly: gather the tiles, three loops, spread the result.

use super::{Access, Item, Machine, Slot};
use crate::eval;
use crate::fragment::{Format, Fragment, Product, unpacked};
use crate::interp::Fault;
use crate::ir::{Op, ValueId};
use crate::types::ScalarType;

/// A matrix of numbers as bits, row-major.
struct Matrix {
    columns: u32,
    bits: Vec<u64>,
}

impl Matrix {
    /// The tile that `items`, the lanes of a subgroup, hold. `width` bits an element.
    fn gather(items: &[Item], value: ValueId, fragment: Fragment, ty: ScalarType, width: u32) -> Self {
        let mut matrix = Self { columns: fragment.columns, bits: vec![0; (fragment.rows * fragment.columns) as usize] };
        // Descending, so that of several copies the first lane's counts.
        for (lane, item) in items.iter().enumerate().rev() {
            let payload = item.lanes(value);
            for slot in 0..fragment.slots() {
                if let Some((row, column)) = fragment.element(lane as u32, slot) {
                    *matrix.at(row, column) = unpacked(payload, ty.bits(), width, slot);
                }
            }
        }
        matrix
    }

    fn at(&mut self, row: u32, column: u32) -> &mut u64 {
        &mut self.bits[(row * self.columns + column) as usize]
    }

    fn get(&self, row: u32, column: u32) -> u64 {
        self.bits[(row * self.columns + column) as usize]
    }
}

fn float(format: Format, bits: u64) -> f32 {
    format.float().map_or(0.0, |ty| eval::to_f64(ty, bits) as f32)
}

impl<'k> Machine<'k, '_, '_> {
    fn element_of(&self, value: ValueId) -> ScalarType {
        self.body().ty(value).element().unwrap_or(ScalarType::I32)
    }

    /// The results of a product, one for each of the subgroup's items.
    pub(super) fn mma(&self, items: &[Item], op: &Op, product: Product) -> Vec<Vec<Slot>> {
        let [lhs, rhs, init] = [op.operands[0], op.operands[1], op.operands[2]];
        let [lhs_ty, rhs_ty, ty] = [lhs, rhs, init].map(|value| self.element_of(value));
        let a = Matrix::gather(items, lhs, product.lhs_fragment(), lhs_ty, product.lhs.bits());
        let b = Matrix::gather(items, rhs, product.rhs_fragment(), rhs_ty, product.rhs.bits());
        let mut d = Matrix::gather(items, init, product.sum, ty, ty.bits());
        for row in 0..product.sum.rows {
            for column in 0..product.sum.columns {
                let cell = d.at(row, column);
                *cell = if product.lhs.is_integer() {
                    let term = |k| {
                        let (x, y) = (product.lhs.integer(a.get(row, k)), product.rhs.integer(b.get(k, column)));
                        x.wrapping_mul(y)
                    };
                    let sum = (0..product.depth).fold(*cell as i32, |sum, k| sum.wrapping_add(term(k)));
                    u64::from(sum as u32)
                } else {
                    let term = |k| (float(product.lhs, a.get(row, k)), float(product.rhs, b.get(k, column)));
                    let start = eval::to_f64(ty, *cell) as f32;
                    let sum = (0..product.depth).map(term).fold(start, |sum, (x, y)| x.mul_add(y, sum));
                    eval::from_f64(ty, f64::from(sum))
                };
            }
        }
        let spread = |(lane, item): (usize, &Item)| {
            let mut payload = item.lanes(init).to_vec();
            for (slot, value) in payload.iter_mut().enumerate() {
                if let Some((row, column)) = product.sum.element(lane as u32, slot as u32) {
                    *value = d.get(row, column);
                }
            }
            vec![Slot::Lanes(payload.into())]
        };
        items.iter().enumerate().map(spread).collect()
    }

    /// The results of a repack, one for each of the subgroup's items.
    pub(super) fn repack(&self, items: &[Item], op: &Op, from: Fragment, to: Fragment) -> Vec<Vec<Slot>> {
        let ty = self.element_of(op.operands[0]);
        let tile = Matrix::gather(items, op.operands[0], from, ty, ty.bits());
        let lanes = |lane| {
            let value = |slot| to.element(lane, slot).map_or(0, |(row, column)| tile.get(row, column));
            vec![Slot::Lanes((0..to.slots()).map(value).collect())]
        };
        (0..items.len() as u32).map(lanes).collect()
    }

    /// Where each slot of the item's part of a tile lies; `None` for slots without data.
    fn slots_of<'o>(
        item: &Item,
        first: Access<'o>,
        fragment: Fragment,
    ) -> impl Iterator<Item = Option<Access<'o>>> + use<'o> {
        let lane = item.flat % fragment.lanes;
        (0..fragment.slots()).map(move |slot| {
            let (row, column) = fragment.element(lane, slot)?;
            Some(Access { shift: [i64::from(column), i64::from(row)], ..first })
        })
    }

    pub(super) fn fragment_load(&mut self, item: &mut Item, op: &Op, fragment: Fragment) -> Result<Vec<u64>, Fault> {
        let first = Access::new(self.body(), item, op.operands[0], &op.operands[1..], &[]);
        let mut lanes = Vec::new();
        for access in Self::slots_of(item, first, fragment) {
            lanes.push(match access {
                Some(access) => self.load(item, op, &access, 0)?,
                None => 0,
            });
        }
        Ok(lanes)
    }

    pub(super) fn fragment_store(&mut self, item: &mut Item, op: &Op, fragment: Fragment) -> Result<(), Fault> {
        let first = Access::new(self.body(), item, op.operands[1], &op.operands[2..], &[]);
        for (slot, access) in Self::slots_of(item, first, fragment).enumerate() {
            if let (Some(access), Some(value)) = (access, item.lanes(op.operands[0]).get(slot).copied()) {
                self.store(item, op, &access, 0, value)?;
            }
        }
        Ok(())
    }
}
