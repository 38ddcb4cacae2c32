//! Atomic accesses: one lane after the other, each a read and a write that nothing comes between.

use super::{Fault, Item, Machine, Slot, collect, part};
use crate::eval;
use crate::ir::Op;
use crate::ops::{Atomic, Binary, OpKind};
use crate::types::{ScalarType, Type};

impl Machine<'_, '_, '_> {
    pub(super) fn atomic(&mut self, item: &mut Item, op: &Op) -> Result<Slot, Fault> {
        let OpKind::Atomic { atomic, gathered, masked, .. } = op.kind else {
            return Ok(Slot::Unset);
        };
        let body = self.body();
        let (values, rest) = op.operands.split_at(atomic.values());
        let (Type::View(view), Slot::View(root, offset)) = (body.ty(rest[0]), item.slot(rest[0])) else {
            return Ok(Slot::Unset);
        };
        let (indices, rest) = rest[1..].split_at(view.dims.len());
        let origin: Vec<i128> = indices.iter().map(|index| i128::from(item.scalar(*index) as i64)).collect();
        let offsets = gathered.then(|| {
            let ty = body.ty(rest[0]).element().unwrap_or(ScalarType::Index);
            item.lanes(rest[0]).iter().map(|lane| i128::from(eval::signed(ty, *lane))).collect::<Vec<_>>()
        });
        let mut old = match op.result() {
            Some(_) if masked => item.lanes(rest[2]).to_vec(),
            _ => vec![0; offsets.as_ref().map_or(1, Vec::len)],
        };
        let size = view.element.bytes() as usize;
        for (lane, old) in old.iter_mut().enumerate() {
            if masked && item.lanes(rest[1])[lane] != 1 {
                continue;
            }
            let mut start = i128::from(offset);
            for (axis, index) in origin.iter().enumerate() {
                let mut index = *index;
                if let (Some(offsets), true) = (&offsets, axis + 1 == origin.len()) {
                    index += offsets[lane];
                }
                let limit = item.dim(view.dims[axis]);
                if index < 0 || index >= i128::from(limit) {
                    return Err(Fault::OutOfBounds { axis, index, limit, at: op.span });
                }
                start += index * i128::from(item.dim(view.strides[axis])) * size as i128;
            }
            let given = [0, 1].map(|at| values.get(at).map_or(0, |value| item.lanes(*value)[lane]));
            let bytes = part(self.bytes(item, root), start, size, view.dims.len(), op)?;
            if start % size as i128 != 0 {
                return Err(Fault::Misaligned { index: start, bytes: size, at: op.span });
            }
            let mut word = [0; 8];
            word[..size].copy_from_slice(bytes);
            *old = u64::from_le_bytes(word);
            let value = |at: usize| given[at];
            let new = match atomic {
                Atomic::Load => *old,
                Atomic::Store | Atomic::Exchange => value(0),
                Atomic::SubI => eval::binary(Binary::SubI, view.element, *old, value(0)),
                Atomic::Combine(combine) => eval::binary(combine.binary(), view.element, *old, value(0)),
                Atomic::CompareExchange { .. } => {
                    if *old == value(0) {
                        value(1)
                    } else {
                        *old
                    }
                }
            };
            bytes.copy_from_slice(&new.to_le_bytes()[..size]);
        }
        Ok(op.result().map_or(Slot::Unset, |result| collect(body.ty(result), old.into_iter())))
    }
}
