//! Dot products of packed lanes, and lanes that lie anywhere in memory.

use super::{Access, Fault, Item, Machine, Op, OpKind, part};
use crate::eval;
use crate::ops::Ternary;
use crate::types::ScalarType;

/// Two lanes a result, each product added by a fused multiply-add in f32.
pub(super) fn dot2f(ty: ScalarType, a: &[u64], b: &[u64], acc: &[u64]) -> Vec<u64> {
    let wide = |x: u64| eval::convert(crate::ops::Convert::ExtF, ty, ScalarType::F32, x);
    acc.iter()
        .enumerate()
        .map(|(at, acc)| {
            [2 * at, 2 * at + 1].iter().fold(*acc, |sum, lane| {
                eval::ternary(Ternary::FmaF, ScalarType::F32, wide(a[*lane]), wide(b[*lane]), sum)
            })
        })
        .collect()
}

/// Four lanes a result, in 64 bits, cut to 32.
pub(super) fn dot4i(a_signed: bool, b_signed: bool, a: &[u64], b: &[u64], acc: &[u64]) -> Vec<u64> {
    let value = |signed: bool, x: u64| if signed { i64::from(x as u8 as i8) } else { i64::from(x as u8) };
    acc.iter()
        .enumerate()
        .map(|(at, acc)| {
            let products = (4 * at..4 * at + 4).map(|lane| value(a_signed, a[lane]) * value(b_signed, b[lane]));
            (i64::from(*acc as u32) + products.sum::<i64>()) as u64 & 0xffff_ffff
        })
        .collect()
}

impl Machine<'_, '_, '_> {
    /// The first byte of the element `offset` beyond the access's own on the last axis.
    fn beyond(access: &Access<'_>, item: &Item, offset: u64, op: &Op) -> Result<i128, Fault> {
        Access { shift: [offset as i64, 0], ..*access }.byte(item, op, 0)
    }

    pub(super) fn gather(&mut self, item: &mut Item, op: &Op) -> Result<Vec<u64>, Fault> {
        let masked = op.kind == OpKind::GatherMask;
        let (indices, rest) = op.operands[1..].split_at(op.operands.len() - if masked { 4 } else { 2 });
        let mut lanes = if masked { item.lanes(rest[2]).to_vec() } else { vec![0; item.lanes(rest[0]).len()] };
        let access = Access::new(self.body(), item, op.operands[0], indices, &[]);
        for (lane, value) in lanes.iter_mut().enumerate() {
            if masked && item.lanes(rest[1])[lane] != 1 {
                continue;
            }
            let start = Self::beyond(&access, item, item.lanes(rest[0])[lane], op)?;
            let bytes = part(self.bytes(item, access.root), start, access.size, access.dims.len(), op)?;
            let mut word = [0; 8];
            word[..access.size].copy_from_slice(bytes);
            *value = u64::from_le_bytes(word);
        }
        Ok(lanes)
    }

    pub(super) fn scatter(&mut self, item: &mut Item, op: &Op) -> Result<(), Fault> {
        let masked = op.kind == OpKind::ScatterMask;
        let (indices, rest) = op.operands[2..].split_at(op.operands.len() - if masked { 4 } else { 3 });
        let access = Access::new(self.body(), item, op.operands[1], indices, &[]);
        for lane in 0..item.lanes(op.operands[0]).len() {
            if masked && item.lanes(rest[1])[lane] != 1 {
                continue;
            }
            let value = item.lanes(op.operands[0])[lane];
            let start = Self::beyond(&access, item, item.lanes(rest[0])[lane], op)?;
            let size = access.size;
            let bytes = part(self.bytes(item, access.root), start, size, access.dims.len(), op)?;
            bytes.copy_from_slice(&value.to_le_bytes()[..size]);
        }
        Ok(())
    }
}
