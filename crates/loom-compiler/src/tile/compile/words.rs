//! Words: 64 bits that all items of a tile share.
//!
//! - What is constant is folded; a constant has one slot in the program.
//! - What depends on nothing but arguments is computed before the first tile; all else once in a block.

use super::{Compiler, ONE, Result, Word, ZERO};
use crate::ops::Binary;
use crate::tile::program::{Builtin, Inst, Op, ScalarInst, Shape, Slot};
use crate::types::ScalarType;

impl Compiler<'_> {
    pub(super) fn slot(&mut self) -> Slot {
        self.program.slots += 1;
        Slot(self.program.slots - 1)
    }

    /// A slot holding `word`.
    pub(super) fn slot_of(&mut self, word: Word) -> Slot {
        match word {
            Word::Slot { slot, .. } => slot,
            Word::Constant(bits) => match self.constants.get(&bits) {
                Some(&slot) => slot,
                None => {
                    let slot = self.slot();
                    self.constants.insert(bits, slot);
                    self.known.insert(slot, word);
                    slot
                }
            },
        }
    }

    pub(super) fn builtin(&mut self, builtin: Builtin) -> Word {
        // A tile of whole workgroups begins with the first item of one; where it has one only, with that one's own number 0.
        let whole = self.program.whole_groups;
        let alone = whole && self.many && self.program.shape == Shape::Group;
        match builtin {
            Builtin::First if whole => return ZERO,
            Builtin::Segment | Builtin::Flat if alone => return ZERO,
            _ => {}
        }
        let (key, launch) = match builtin {
            Builtin::Segment => (0, false),
            Builtin::First => (1, false),
            Builtin::Flat => (2, false),
            Builtin::Width => (3, true),
            Builtin::WorkGroup(axis) => (4 + u32::from(axis), false),
            Builtin::WorkGroupCount(axis) => (7 + u32::from(axis), true),
            Builtin::Length(argument) => (10 + argument, true),
        };
        let slot = match self.builtins.get(&key) {
            Some(&slot) => slot,
            None => {
                let slot = self.slot();
                self.builtins.insert(key, slot);
                self.program.builtins.push((slot, builtin));
                slot
            }
        };
        let word = Word::Slot { slot, launch };
        self.known.insert(slot, word);
        word
    }

    /// What is in `slot`.
    pub(super) fn held(&self, slot: Slot) -> Word {
        self.known.get(&slot).copied().unwrap_or(Word::Slot { slot, launch: false })
    }

    /// `op` of words, folded, simplified, or emitted: before the first tile if it may be.
    pub(super) fn word(&mut self, op: Op, from: &[Word]) -> Result<Word> {
        if let (Op::Binary(binary, ty), &[a, b]) = (op, from)
            && ty.bits() == 64
        {
            match binary {
                Binary::AddI if a == ZERO => return Ok(b),
                Binary::AddI | Binary::SubI if b == ZERO => return Ok(a),
                Binary::MulI if a == ZERO || b == ZERO => return Ok(ZERO),
                Binary::MulI if a == ONE => return Ok(b),
                Binary::MulI | Binary::DivUI if b == ONE => return Ok(a),
                _ => {}
            }
        }
        let constants: Vec<u64> =
            from.iter().filter_map(|word| if let Word::Constant(bits) = word { Some(*bits) } else { None }).collect();
        if constants.len() == from.len() {
            let mut bits = [0; 3];
            bits[..constants.len()].copy_from_slice(&constants);
            return Ok(Word::Constant(op.evaluate(bits)));
        }
        let launch = from.iter().all(|word| !matches!(word, Word::Slot { launch: false, .. }));
        let mut slots = [Slot(0); 3];
        for (slot, &word) in slots.iter_mut().zip(from) {
            *slot = self.slot_of(word);
        }
        // The same value is computed once in a block: addresses repeat.
        let key = ((!launch).then_some(self.at), format!("{op:?}"), slots);
        if let Some(&slot) = self.words.get(&key) {
            return Ok(Word::Slot { slot, launch });
        }
        let to = self.slot();
        self.words.insert(key, to);
        let inst = ScalarInst { op, to, from: slots };
        if launch {
            self.count()?;
            self.program.prologue.push(inst);
        } else {
            self.emit(Inst::Scalar(inst))?;
        }
        let word = Word::Slot { slot: to, launch };
        if launch {
            self.known.insert(to, word);
        }
        Ok(word)
    }

    pub(super) fn add(&mut self, a: Word, b: Word) -> Result<Word> {
        self.word(Op::Binary(Binary::AddI, ScalarType::I64), &[a, b])
    }

    pub(super) fn sub(&mut self, a: Word, b: Word) -> Result<Word> {
        self.word(Op::Binary(Binary::SubI, ScalarType::I64), &[a, b])
    }

    pub(super) fn mul(&mut self, a: Word, b: Word) -> Result<Word> {
        self.word(Op::Binary(Binary::MulI, ScalarType::I64), &[a, b])
    }
}
