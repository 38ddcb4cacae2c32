//! Branches, loops, exits and assertions.
//!
//! ```text
//! If:   @!c bra else; then..; bra end; else: ..; end:        results are registers that both sides write
//! For:  counter, carried <- ..; @!(low < high) bra end; turn: ..; carried <- yielded, at once; @more bra turn; end:
//! ```
//!
//! - Who takes part in exchanges is followed only into bodies that have some, and only where lanes may part.
//! - A counted loop goes on while more than a step is left: no counter passes the end of its type.

use super::emitter::{Emitter, Held, Result};
use super::fault::SiteKind;
use super::memory::Place;
use super::text::{Class, Label, Operand, Reg};
use crate::ir::{BlockId, Op, ValueId};
use crate::ops::{Family, OpKind};
use crate::types::{ScalarType, Type};

/// The registers of a value that control flow decides.
#[derive(Clone, Debug)]
enum Home {
    Lanes(Vec<Reg>),
    Place(Place),
}

impl<'a> Emitter<'a> {
    /// Goes to `label` where `condition` is `holds`.
    pub(super) fn branch(&mut self, condition: Operand, holds: bool, label: Label) {
        match condition.bits() {
            Some(bits) if (bits == 1) == holds => self.jump(label),
            Some(_) => {}
            None => {
                let condition = self.in_register(condition);
                let not = if holds { "" } else { "!" };
                self.text.raw(&format!("@{not}{condition} bra {label}"));
            }
        }
    }

    /// Goes to `label`.
    pub(super) fn jump(&mut self, label: Label) {
        self.text.raw(&format!("bra {label}"));
    }

    pub(super) fn control(&mut self, op: &'a Op) -> Result {
        match &op.kind {
            OpKind::If => self.branches(op, &[]),
            OpKind::Switch(keys) => self.branches(op, keys),
            OpKind::For => self.counted(op),
            OpKind::While => self.unbounded(op),
            OpKind::Exit => self.exit(op),
            OpKind::Assert(text) => self.assert(op, text),
            _ => self.refuse("an end in the middle of a block"),
        }
    }

    // ---- homes

    fn homes(&mut self, values: &[ValueId]) -> Result<Vec<Home>> {
        values.iter().map(|value| self.home(*value)).collect()
    }

    fn home(&mut self, value: ValueId) -> Result<Home> {
        match self.body.ty(value) {
            Type::Buffer | Type::View(_) => {
                let space = self.spaces.space(value);
                let mut place = Place::unknown(space, self.text.reg(Place::address_class(space)).into());
                if self.options.checked {
                    place.offset = Some(self.text.reg(Class::Long).into());
                }
                if self.lengths {
                    place.length = Some(self.text.reg(Class::Long).into());
                }
                Ok(Home::Place(place))
            }
            Type::Async(_) => self.refuse("copies carried through control flow"),
            Type::Scalar(_) | Type::Vector(_) => {
                let Some(class) = self.class(value) else {
                    return self.refuse("a value without a type");
                };
                let count = self.lane_count(value)?;
                Ok(Home::Lanes((0..count).map(|_| self.text.reg(class)).collect()))
            }
        }
    }

    /// The values are what their homes hold.
    fn settle(&mut self, values: &[ValueId], homes: &[Home]) {
        for (value, home) in values.iter().zip(homes) {
            match home {
                Home::Lanes(regs) => self.set_lanes(*value, regs.iter().map(|reg| Operand::from(*reg)).collect()),
                Home::Place(place) => self.set_place(*value, place.clone()),
            }
        }
    }

    /// Copies values to homes, those of `to`, all at once: what a home still holds may be read for another.
    fn fill(&mut self, homes: &[Home], to: &[ValueId], from: &[ValueId]) -> Result {
        let mut moves: Vec<(Reg, Operand)> = Vec::new();
        for ((home, to), from) in homes.iter().zip(to).zip(from) {
            match (home, self.held(*from)?) {
                (Home::Lanes(regs), Held::Lanes(lanes)) => {
                    for (reg, lane) in regs.iter().zip(lanes.iter()) {
                        moves.push((*reg, self.as_held(*to, *lane)));
                    }
                }
                (Home::Place(home), Held::Place(place)) => {
                    let parts = self.place_parts(&place, home.space);
                    let mut pair = |reg: Option<Operand>, part: Operand| {
                        if let Some(Operand::Reg(reg)) = reg {
                            moves.push((reg, part));
                        }
                    };
                    pair(Some(home.base), parts.base);
                    pair(home.offset, parts.offset);
                    pair(home.length, parts.length);
                }
                _ => return self.refuse("a value carried as another kind"),
            }
        }
        let written: Vec<Reg> = moves.iter().map(|(reg, _)| *reg).collect();
        for (to, from) in &mut moves {
            if let Operand::Reg(reg) = *from
                && reg != *to
                && written.contains(&reg)
            {
                let aside = self.text.reg(reg.class);
                self.copy(aside, *from);
                *from = aside.into();
            }
        }
        for (to, from) in moves {
            self.copy(to, from);
        }
        Ok(())
    }

    // ---- branches

    /// Whether lanes of a subgroup may part at `condition`, and anything inside `op` tells others.
    fn parts(&self, op: &Op, conditions: &[ValueId]) -> bool {
        conditions.iter().any(|condition| self.varies(*condition)) && self.exchanges(op)
    }

    /// Whether `op`, or what is inside, is an exchange, or needs to know who is there.
    fn exchanges(&self, op: &Op) -> bool {
        self.body.any_within(op, &mut |inner| {
            let family = inner.kind.family();
            // A loop that lanes leave one by one asks them.
            matches!(family, Family::Exchange | Family::Meeting)
        })
    }

    /// `If`, or `Switch` of these keys.
    fn branches(&mut self, op: &'a Op, keys: &[i64]) -> Result {
        let homes = self.homes(&op.results)?;
        let end = self.text.label();
        let selector = self.scalar(op.operands[0])?;
        let ty = self.element_type(op.operands[0])?;
        let parts = self.parts(op, &op.operands[..1]);
        let outer = self.mask.clone();
        for (at, block) in op.blocks.iter().enumerate() {
            let last = at + 1 == op.blocks.len();
            let next = self.text.label();
            if !last {
                let here = if op.kind == OpKind::If { selector } else { self.equals_key(ty, selector, keys[at]) };
                if parts {
                    // Of those who came as far as this test.
                    let here_mask = self.ballot_of(here);
                    let rest = self.rest_of(&here_mask);
                    self.branch(here, false, next);
                    self.mask = here_mask;
                    self.arm(*block, op, &homes)?;
                    self.mask = rest;
                } else {
                    self.branch(here, false, next);
                    self.arm(*block, op, &homes)?;
                }
                self.jump(end);
                self.text.at(next);
            } else {
                self.arm(*block, op, &homes)?;
            }
        }
        self.text.at(end);
        self.mask = outer;
        self.settle(&op.results, &homes);
        Ok(())
    }

    fn equals_key(&mut self, ty: ScalarType, selector: Operand, key: i64) -> Operand {
        match selector {
            Operand::Bits(_, bits) => Operand::truth(bits == key as u64 & (u64::MAX >> (64 - ty.bits()))),
            Operand::Reg(reg) => match reg.class {
                Class::Pred => {
                    if key & 1 == 1 {
                        selector
                    } else {
                        self.not(selector)
                    }
                }
                Class::Long => self.make(Class::Pred, "setp.eq.s64", &[selector, Operand::long(key as u64)]),
                _ => {
                    let key = key as u32 & (u32::MAX >> (32 - ty.bits()));
                    self.make(Class::Pred, "setp.eq.s32", &[selector, Operand::word(key)])
                }
            },
        }
    }

    fn arm(&mut self, block: BlockId, op: &'a Op, homes: &[Home]) -> Result {
        self.open();
        let end = self.block(block)?;
        self.fill(homes, &op.results, &end.operands)?;
        self.close();
        Ok(())
    }

    // ---- loops

    fn counted(&mut self, op: &'a Op) -> Result {
        let block = op.blocks[0];
        let arguments = &self.body.block(block).arguments;
        let (counter, carried) = (arguments[0], &arguments[1..]);
        let ty = self.element_type(counter)?;
        let homes = self.homes(carried)?;
        self.fill(&homes, carried, &op.operands[3..])?;
        let narrow = self.class(counter) == Some(Class::Word);
        let mut bounds = [Operand::long(0); 3];
        for (bound, value) in bounds.iter_mut().zip(&op.operands[..3]) {
            *bound = if narrow {
                let raw = self.raw(*value)?;
                self.low(raw)
            } else {
                self.scalar(*value)?
            };
        }
        let [low, high, step] = bounds;
        let (class, width) = if narrow { (Class::Word, 32) } else { (Class::Long, 64) };
        let sign = if ty == ScalarType::Offset { 'u' } else { 's' };
        let parts = self.parts(op, &op.operands[..3]);
        let outer = self.mask.clone();
        let (turn, end) = (self.text.label(), self.text.label());
        let now = self.text.reg(class);
        self.copy(now, low);
        let start = self.make(Class::Pred, &format!("setp.lt.{sign}{width}"), &[now.into(), high]);
        let inside = if parts { Some(self.shrinking_mask(start)) } else { None };
        self.branch(start, false, end);
        if let Some(mask) = &inside {
            self.mask = mask.clone();
        }
        self.text.at(turn);
        self.settle(carried, &homes);
        self.set_lanes(counter, vec![now.into()]);
        self.open();
        let yielded = self.block(block)?;
        self.fill(&homes, carried, &yielded.operands)?;
        self.close();
        // What is left is positive; a step that is not would be huge.
        let left = self.make(class, &format!("sub.s{width}"), &[high, now.into()]);
        let more = self.make(Class::Pred, &format!("setp.gt.u{width}"), &[left, step]);
        self.emit(&format!("add.s{width}"), now.into(), &[now.into(), step]);
        if let Some(mask) = &inside {
            self.shrink(mask, more);
        }
        self.branch(more, true, turn);
        self.text.at(end);
        self.mask = outer;
        self.settle(&op.results, &homes);
        Ok(())
    }

    fn unbounded(&mut self, op: &'a Op) -> Result {
        let (head, tail) = (op.blocks[0], op.blocks[1]);
        let (states, forwarded) = (&self.body.block(head).arguments, &self.body.block(tail).arguments);
        let (homes, passed) = (self.homes(states)?, self.homes(forwarded)?);
        let results = self.homes(&op.results)?;
        self.fill(&homes, states, &op.operands)?;
        let condition = self.body.block(head).ops.last().and_then(|end| end.operands.first().copied());
        let parts = self.exchanges(op) && condition.is_none_or(|condition| self.varies(condition));
        let outer = self.mask.clone();
        let inside = if parts { Some(self.shrinking_mask(Operand::truth(true))) } else { None };
        if let Some(mask) = &inside {
            self.mask = mask.clone();
        }
        let (turn, end) = (self.text.label(), self.text.label());
        self.text.at(turn);
        self.settle(states, &homes);
        self.open();
        let test = self.block(head)?;
        let goes_on = self.scalar(test.operands[0])?;
        if let Some(mask) = &inside {
            self.shrink(mask, goes_on);
        }
        // Leaving and going on take the same values to different homes.
        self.fill(&results, &op.results, &test.operands[1..])?;
        self.branch(goes_on, false, end);
        self.fill(&passed, forwarded, &test.operands[1..])?;
        self.settle(forwarded, &passed);
        let yielded = self.block(tail)?;
        self.fill(&homes, states, &yielded.operands)?;
        self.close();
        self.jump(turn);
        self.text.at(end);
        self.mask = outer;
        self.settle(&op.results, &results);
        Ok(())
    }

    // ---- ends

    /// Items with a true condition run the block and are gone.
    fn exit(&mut self, op: &'a Op) -> Result {
        let condition = self.scalar(op.operands[0])?;
        let stay = self.text.label();
        let follows = self.body.ops().any(|op| matches!(op.kind.family(), Family::Exchange | Family::Meeting));
        let outer = if follows && self.varies(op.operands[0]) {
            let leaving = self.ballot_of(condition);
            let rest = self.rest_of(&leaving);
            self.mask = leaving;
            rest
        } else {
            self.mask.clone()
        };
        self.branch(condition, false, stay);
        self.open();
        self.block(op.blocks[0])?;
        self.close();
        self.text.raw("ret");
        self.text.at(stay);
        self.mask = outer;
        Ok(())
    }

    /// A false condition is reported, and ends the item.
    fn assert(&mut self, op: &'a Op, text: &str) -> Result {
        let condition = self.scalar(op.operands[0])?;
        let fails = self.not(condition);
        let site = self.site(SiteKind::Assert(text.to_owned()));
        self.report(fails, site, Operand::long(0), Operand::long(0));
        let fails = self.in_register(fails);
        self.text.raw(&format!("@{fails} ret"));
        Ok(())
    }
}
