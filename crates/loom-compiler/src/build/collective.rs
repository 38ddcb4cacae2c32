//! What work-items of a subgroup or workgroup tell each other, and where a workgroup stands in its cluster.
//!
//! - Votes are reductions of `i1`, the active mask is the ballot of a true everybody casts, and ids in a cluster are
//!   quotients and remainders of workgroup ids: built as those.
//! - A mask of lanes is an i32 or i64 that has a bit for every lane.

use crate::diag::{Built, refuse};
use crate::eval;
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::ops::{Axis, Binary, Combine, Convert, IdKind, OpKind, Scan, ShuffleMode};
use crate::reader::{Attribute, Entry, Reader};
use crate::types::{ScalarType, Type};

use super::kernel::{AXES, axis};
use super::names::Binding;
use super::vector::{COMBINES, combine};
use super::{Builder, one};

/// Lanes that a reduction or scan goes over: how many, and how far apart.
#[derive(Clone, Copy)]
struct Cluster {
    size: u32,
    stride: u32,
}

impl<'m> Builder<'m> {
    /// `subgroup.*`, `workgroup.*` and `cluster.*` of `kernel`, but for ids; `None` if it is none of these.
    pub(super) fn collective_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Option<Vec<Binding>>> {
        let i1 = Type::Scalar(ScalarType::I1);
        Ok(Some(match op {
            "subgroup.shuffle" => self.shuffle(reader)?,
            "subgroup.reduce" => self.subgroup_reduce(reader)?,
            "subgroup.scan" => self.scan(reader, true)?,
            "subgroup.broadcast" => {
                let (value, _) = self.exchanged(reader)?;
                reader.expect_word("from")?;
                let span = reader.here();
                let lane = self.operand(reader)?;
                self.require(reader, lane, span, ScalarType::I32)?;
                if let Some(lane) = self.constant_of(lane)
                    && lane >= u64::from(self.subgroup_size)
                {
                    let (lane, limit) = (eval::signed(ScalarType::I32, lane), self.subgroup_size);
                    return refuse(span, format!("lane {lane} of a subgroup of {limit} work-items"));
                }
                reader.expect(Kind::Colon)?;
                self.all_typed(reader, [value, lane])?;
                reader.end()?;
                let ty = self.ty(value).clone();
                one(self.emit_here(OpKind::SubgroupBroadcast, &[value, lane], ty))
            }
            "subgroup.broadcast.first" => {
                let (value, _) = self.exchanged(reader)?;
                reader.expect(Kind::Colon)?;
                self.typed(reader, value)?;
                reader.end()?;
                let ty = self.ty(value).clone();
                one(self.emit_here(OpKind::SubgroupBroadcastFirst, &[value], ty))
            }
            "subgroup.vote.any" | "subgroup.vote.all" => {
                let vote = self.vote(reader)?;
                reader.end()?;
                let combine = if op.ends_with("any") { Combine::OrI } else { Combine::AndI };
                let kind = OpKind::SubgroupReduce { combine, size: self.subgroup_size, stride: 1 };
                one(self.emit_here(kind, &[vote], i1))
            }
            "subgroup.vote.ballot" => {
                let vote = self.vote(reader)?;
                reader.expect(Kind::Arrow)?;
                let mask = self.mask_type(reader)?;
                reader.end()?;
                one(self.emit_here(OpKind::SubgroupBallot, &[vote], mask))
            }
            "subgroup.active.mask" => {
                reader.expect(Kind::Colon)?;
                let mask = self.mask_type(reader)?;
                reader.end()?;
                let here = self.constant(i1, 1);
                one(self.emit_here(OpKind::SubgroupBallot, &[here], mask))
            }
            "subgroup.match.any" | "subgroup.match.all" => {
                let span = reader.here();
                let value = self.operand(reader)?;
                if self.ty(value).scalar().is_none() {
                    return refuse(span, format!("`{}` takes a scalar, found {}", reader.name(), self.ty(value)));
                }
                reader.expect(Kind::Colon)?;
                self.typed(reader, value)?;
                reader.expect(Kind::Arrow)?;
                let all = op.ends_with("all");
                let parenthesised = all && reader.accept(Kind::ParenOpen);
                let mask = self.mask_type(reader)?;
                if all {
                    reader.expect(Kind::Comma)?;
                    self.i1_type(reader)?;
                }
                if parenthesised {
                    reader.expect(Kind::ParenClose)?;
                }
                reader.end()?;
                if !all {
                    return Ok(Some(one(self.emit_here(OpKind::SubgroupMatchAny, &[value], mask))));
                }
                let results = vec![self.new_value(mask), self.new_value(i1)];
                self.push(OpKind::SubgroupMatchAll, &[value], results.clone(), Vec::new());
                results.into_iter().map(Binding::Value).collect()
            }
            "workgroup.reduce" => {
                let combine = self.keyword_and_flags(reader, COMBINES, combine)?;
                let (value, span) = self.exchanged(reader)?;
                reader.expect(Kind::Colon)?;
                self.combined(reader, value, combine, span)?;
                let ty = self.ty(value).clone();
                one(self.emit_here(OpKind::WorkgroupReduce(combine), &[value], ty))
            }
            "workgroup.scan" => self.scan(reader, false)?,
            "workgroup.vote.any" | "workgroup.vote.all" => {
                let vote = self.vote(reader)?;
                reader.end()?;
                let combine = if op.ends_with("any") { Combine::OrI } else { Combine::AndI };
                one(self.emit_here(OpKind::WorkgroupReduce(combine), &[vote], i1))
            }
            "workgroup.vote.count" => {
                let vote = self.vote(reader)?;
                reader.expect(Kind::Arrow)?;
                let span = reader.here();
                let count = self.plain_type(reader)?;
                if !matches!(count, Type::Scalar(ScalarType::I32 | ScalarType::I64)) {
                    return refuse(span, format!("a count of votes is an i32 or i64, found {count}"));
                }
                reader.end()?;
                let number = self.emit(OpKind::Convert(Convert::ExtUI), &[vote], count.clone());
                one(self.emit_here(OpKind::WorkgroupReduce(Combine::AddI), &[number], count))
            }
            "cluster.id" | "cluster.size" | "cluster.count" | "cluster.workgroup.id" => {
                let axis = reader.keyword(AXES, axis)?;
                self.index_type(reader)?;
                one(self.in_cluster(op, axis))
            }
            "cluster.workgroup.flat_id" => {
                self.index_type(reader)?;
                let [x, y, z] = [Axis::X, Axis::Y, Axis::Z].map(|axis| self.in_cluster("cluster.workgroup.id", axis));
                let [sx, sy] = [Axis::X, Axis::Y].map(|axis| self.in_cluster("cluster.size", axis));
                let plane = self.index_binary(Binary::MulI, sy, z);
                let row = self.index_binary(Binary::AddI, plane, y);
                let row = self.index_binary(Binary::MulI, sx, row);
                one(self.index_binary(Binary::AddI, row, x))
            }
            _ => return Ok(None),
        }))
    }

    fn exchanged(&mut self, reader: &mut Reader<'m>) -> Built<(ValueId, Span)> {
        let span = reader.here();
        let value = self.operand(reader)?;
        self.check_exchanged(reader, value, span)?;
        Ok((value, span))
    }

    /// The written type of `value`, which is combined, and the end of the op.
    fn combined(&mut self, reader: &mut Reader<'m>, value: ValueId, combine: Combine, span: Span) -> Built<()> {
        self.typed(reader, value)?;
        reader.end()?;
        let element = self.check_exchanged(reader, value, span)?;
        self.check_combine(reader, combine, element, span)
    }

    /// `%p : i1`.
    fn vote(&mut self, reader: &mut Reader<'m>) -> Built<ValueId> {
        let span = reader.here();
        let vote = self.operand(reader)?;
        self.require(reader, vote, span, ScalarType::I1)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, vote)?;
        Ok(vote)
    }

    fn i1_type(&mut self, reader: &mut Reader<'m>) -> Built<()> {
        let span = reader.here();
        match self.plain_type(reader)? {
            Type::Scalar(ScalarType::I1) => Ok(()),
            other => refuse(span, format!("`{}` gives an i1, found {other}", reader.name())),
        }
    }

    fn mask_type(&mut self, reader: &mut Reader<'m>) -> Built<Type> {
        let span = reader.here();
        let lanes = self.subgroup_size;
        match self.plain_type(reader)? {
            Type::Scalar(ty @ (ScalarType::I32 | ScalarType::I64)) if ty.bits() >= lanes => Ok(Type::Scalar(ty)),
            other => refuse(
                span,
                format!("a mask of {lanes} lanes is an i64{}, found {other}", if lanes == 32 { " or i32" } else { "" }),
            ),
        }
    }

    /// `<mode> %v, %off, %width : T, i32, i32`.
    fn shuffle(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let mode = reader.keyword("one of xor, up, down, index", |word| match word {
            "xor" => Some(ShuffleMode::Xor),
            "up" => Some(ShuffleMode::Up),
            "down" => Some(ShuffleMode::Down),
            "index" => Some(ShuffleMode::Index),
            _ => None,
        })?;
        let span = reader.here();
        let value = self.operand(reader)?;
        let mut operands = vec![value];
        for _ in 0..2 {
            reader.expect(Kind::Comma)?;
            let span = reader.here();
            let operand = self.operand(reader)?;
            self.require(reader, operand, span, ScalarType::I32)?;
            operands.push(operand);
        }
        reader.expect(Kind::Colon)?;
        self.all_typed(reader, operands.iter().copied())?;
        reader.end()?;
        self.check_exchanged(reader, value, span)?;
        let limit = self.subgroup_size;
        if let Some(width) = self.constant_of(operands[2])
            && (!width.is_power_of_two() || width > u64::from(limit))
        {
            let message = format!("a shuffle's width divides {limit}, found {}", eval::signed(ScalarType::I32, width));
            return refuse(span, message);
        }
        let ty = self.ty(value).clone();
        let results = vec![self.new_value(ty), self.new_value(Type::Scalar(ScalarType::I1))];
        self.push(OpKind::SubgroupShuffle(mode), &operands, results.clone(), Vec::new());
        Ok(results.into_iter().map(Binding::Value).collect())
    }

    /// Takes `cluster_size` or `cluster_stride`; `false` if the entry is neither.
    fn cluster_entry(&self, entry: &Entry<'m>, cluster: &mut Cluster) -> Built<bool> {
        if !matches!(entry.key, "cluster_size" | "cluster_stride") {
            return Ok(false);
        }
        let number = match entry.value {
            Attribute::Int(number) => u32::try_from(number).ok(),
            _ => None,
        };
        let limit = self.subgroup_size;
        let Some(number) = number.filter(|number| number.is_power_of_two() && *number <= limit) else {
            let message = format!("legal here: `cluster_size` and `cluster_stride`, powers of two up to {limit}");
            return refuse(entry.span, message);
        };
        if entry.key == "cluster_size" {
            cluster.size = number
        } else {
            cluster.stride = number
        }
        Ok(true)
    }

    fn check_cluster(&self, cluster: Cluster, span: Span) -> Built<()> {
        let Cluster { size, stride } = cluster;
        let limit = self.subgroup_size;
        if size * stride <= limit {
            return Ok(());
        }
        refuse(span, format!("{size} lanes at a distance of {stride} do not fit a subgroup of {limit}"))
    }

    /// `<kind> %v [{cluster_size = 8[, cluster_stride = 1]}] : T`.
    fn subgroup_reduce(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let combine = self.keyword_and_flags(reader, COMBINES, combine)?;
        let span = reader.here();
        let value = self.operand(reader)?;
        let mut cluster = Cluster { size: self.subgroup_size, stride: 1 };
        for entry in reader.dictionary()? {
            if !self.cluster_entry(&entry, &mut cluster)? {
                let limit = self.subgroup_size;
                let message = format!("legal here: `cluster_size` and `cluster_stride`, powers of two up to {limit}");
                return refuse(entry.span, message);
            }
        }
        reader.expect(Kind::Colon)?;
        self.combined(reader, value, combine, span)?;
        self.check_cluster(cluster, span)?;
        let ty = self.ty(value).clone();
        let Cluster { size, stride } = cluster;
        Ok(one(self.emit_here(OpKind::SubgroupReduce { combine, size, stride }, &[value], ty)))
    }

    /// `<kind> %v {mode = inclusive|exclusive, direction = forward|reverse[, cluster_size = 8, ..]} : T`.
    fn scan(&mut self, reader: &mut Reader<'m>, subgroup: bool) -> Built<Vec<Binding>> {
        let combine = self.keyword_and_flags(reader, COMBINES, combine)?;
        let span = reader.here();
        let value = self.operand(reader)?;
        let mut cluster = Cluster { size: self.subgroup_size, stride: 1 };
        let (mut exclusive, mut reverse) = (None, None);
        for entry in reader.dictionary()? {
            let word = if let Attribute::Word(word) = entry.value { word } else { "" };
            match (entry.key, word) {
                ("mode", "inclusive" | "exclusive") => exclusive = Some(word == "exclusive"),
                ("direction", "forward" | "reverse") => reverse = Some(word == "reverse"),
                _ if subgroup && self.cluster_entry(&entry, &mut cluster)? => {}
                _ => {
                    let more = if subgroup { ", cluster_size, cluster_stride" } else { "" };
                    let message = format!(
                        "legal here: mode = inclusive or exclusive, direction = forward or reverse{more}, each once"
                    );
                    return refuse(entry.span, message);
                }
            }
        }
        let Some(exclusive) = exclusive else {
            return refuse(
                span,
                format!("`{}` needs a mode: `{{mode = inclusive, direction = forward}}`", reader.name()),
            );
        };
        let reverse = reverse.unwrap_or(false);
        reader.expect(Kind::Colon)?;
        self.combined(reader, value, combine, span)?;
        self.check_cluster(cluster, span)?;
        let scan = Scan { exclusive, reverse };
        let Cluster { size, stride } = cluster;
        let kind = if subgroup {
            OpKind::SubgroupScan { combine, scan, size, stride }
        } else {
            OpKind::WorkgroupScan(combine, scan)
        };
        let ty = self.ty(value).clone();
        Ok(one(self.emit_here(kind, &[value], ty)))
    }

    fn index_binary(&mut self, op: Binary, a: ValueId, b: ValueId) -> ValueId {
        self.emit(OpKind::Binary(op), &[a, b], Type::Scalar(ScalarType::Index))
    }

    /// Where the workgroup stands on `axis`. Without clusters, every size is 1 and every id 0, of a workgroup and of its cluster.
    fn in_cluster(&mut self, what: &str, axis: Axis) -> ValueId {
        if self.cluster_size == [1; 3] && what == "cluster.id" {
            return self.index(0);
        }
        let size = self.cluster_size[axis.index()];
        let size = self.index(i64::from(size));
        let index = Type::Scalar(ScalarType::Index);
        let (id, op) = match what {
            "cluster.id" => (IdKind::WorkGroup(axis), Binary::DivUI),
            "cluster.count" => (IdKind::WorkGroupCount(axis), Binary::CeilDivUI),
            "cluster.workgroup.id" => (IdKind::WorkGroup(axis), Binary::RemUI),
            _ => return size,
        };
        let id = self.emit(OpKind::Id(id), &[], index);
        self.index_binary(op, id, size)
    }
}
