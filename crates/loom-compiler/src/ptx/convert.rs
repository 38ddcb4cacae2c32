//! Changes of type, and the same bits in other lanes.
//!
//! - Where an instruction rounds once from the source, it is used; else a first rounding goes to odd, so that the second is right
//!   (Boldo and Melquiond, "When double rounding is odd").
//! - Float to integer is made total by hand: what the instruction gives for a NaN depends on its width.
//! - fp8 goes by way of f16: E5M2 is its upper half, E4M3 lies in it eight binades lower.

use super::emitter::{Emitter, Result};
use super::text::{Class, Operand, class_of};
use crate::ir::Op;
use crate::ops::Convert;
use crate::types::ScalarType;

impl Emitter<'_> {
    /// `a` of type `from` as a value of type `to`.
    pub(super) fn convert(&mut self, op: Convert, from: ScalarType, to: ScalarType, a: Operand) -> Result<Operand> {
        Ok(match op {
            Convert::ExtSI | Convert::ExtUI | Convert::TruncI => self.resize(op == Convert::ExtSI, from, to, a),
            Convert::Bitcast => self.same_bits(to, a),
            Convert::SiToF | Convert::UiToF => return self.int_to_float(op == Convert::SiToF, from, to, a),
            Convert::FToSi | Convert::FToUi => return self.float_to_int(op == Convert::FToSi, from, to, a),
            Convert::ExtF | Convert::TruncF => return self.float_to_float(from, to, a),
        })
    }

    fn resize(&mut self, signed: bool, from: ScalarType, to: ScalarType, a: Operand) -> Operand {
        // To 32 bits first, all of them.
        let word = match from {
            ScalarType::I1 => {
                let one = if signed { u32::MAX } else { 1 };
                self.choose_word(a, one, 0)
            }
            _ if from.bits() == 64 => {
                if to.bits() == 64 {
                    return a;
                }
                self.low(a)
            }
            _ if signed => self.signed(from, a),
            _ => a,
        };
        match to.bits() {
            1 => {
                let bit = self.make(Class::Word, "and.b32", &[word, Operand::word(1)]);
                self.truth_of(bit)
            }
            width @ (8 | 16) => self.make(Class::Word, "and.b32", &[word, Operand::word(u32::MAX >> (32 - width))]),
            64 if signed => self.make(Class::Long, "cvt.s64.s32", &[word]),
            64 => self.make(Class::Long, "cvt.u64.u32", &[word]),
            _ => word,
        }
    }

    fn choose_word(&mut self, c: Operand, a: u32, b: u32) -> Operand {
        self.choose(c, Operand::word(a), Operand::word(b))
    }

    /// A value of one width in the register class of another type of that width.
    pub(super) fn same_bits(&mut self, to: ScalarType, a: Operand) -> Operand {
        match (a.class(), class_of(to)) {
            (Class::Half, Class::Word) => match a.bits() {
                Some(bits) => Operand::word(bits as u32),
                None => self.make(Class::Word, "cvt.u32.u16", &[a]),
            },
            (Class::Word, Class::Half) => match a.bits() {
                Some(bits) => Operand::Bits(Class::Half, bits & 0xffff),
                None => self.make(Class::Half, "cvt.u16.u32", &[a]),
            },
            _ => a,
        }
    }

    fn int_to_float(&mut self, signed: bool, from: ScalarType, to: ScalarType, a: Operand) -> Result<Operand> {
        let (width, sign) = (if from.bits() == 64 { 64 } else { 32 }, if signed { 's' } else { 'u' });
        let a = match from {
            ScalarType::I1 => self.choose_word(a, if signed { u32::MAX } else { 1 }, 0),
            _ if signed => self.signed(from, a),
            _ => a,
        };
        match to {
            ScalarType::F32 | ScalarType::F64 => {
                Ok(self.make(class_of(to), &format!("cvt.rn.{to}.{sign}{width}"), &[a]))
            }
            _ => {
                // Toward zero, and an odd last bit where that lost something.
                let near = self.make(Class::Long, &format!("cvt.rz.f64.{sign}{width}"), &[a]);
                if width == 32 {
                    return self.float_to_float(ScalarType::F64, to, near);
                }
                let back = self.make(Class::Long, &format!("cvt.rzi.{sign}64.f64"), &[near]);
                let lost = self.make(Class::Pred, "setp.ne.s64", &[back, a]);
                let sticky = self.choose(lost, Operand::long(1), Operand::long(0));
                let odd = self.make(Class::Long, "or.b64", &[near, sticky]);
                self.float_to_float(ScalarType::F64, to, odd)
            }
        }
    }

    fn float_to_int(&mut self, signed: bool, from: ScalarType, to: ScalarType, a: Operand) -> Result<Operand> {
        let a = self.extended(from, a)?;
        let float = if from == ScalarType::F64 { "f64" } else { "f32" };
        let (width, class) = if to.bits() == 64 { (64, Class::Long) } else { (32, Class::Word) };
        let sign = if signed { 's' } else { 'u' };
        let value = self.make(class, &format!("cvt.rzi.{sign}{width}.{float}"), &[a]);
        let nan = self.make(Class::Pred, &format!("setp.nan.{float}"), &[a, a]);
        let value = self.choose(nan, Operand::Bits(class, 0), value);
        if to.bits() >= 32 {
            return Ok(value);
        }
        let all = u32::MAX >> (32 - to.bits());
        let bounded = if signed {
            let high = self.make(Class::Word, "min.s32", &[value, Operand::word(all >> 1)]);
            self.make(Class::Word, "max.s32", &[high, Operand::word(!(all >> 1))])
        } else {
            self.make(Class::Word, "min.u32", &[value, Operand::word(all)])
        };
        let low = self.make(Class::Word, "and.b32", &[bounded, Operand::word(all)]);
        Ok(if to == ScalarType::I1 { self.truth_of(low) } else { low })
    }

    fn float_to_float(&mut self, from: ScalarType, to: ScalarType, a: Operand) -> Result<Operand> {
        if from == to {
            return Ok(a);
        }
        // Widening, exactly, to f32 and on.
        let a = match from {
            ScalarType::F16 => self.make(Class::Word, "cvt.f32.f16", &[a]),
            ScalarType::BF16 => {
                let a = self.in_register(a);
                let to = self.text.reg(Class::Word);
                let zero = self.in_register(Operand::Bits(Class::Half, 0));
                self.text.raw(&format!("mov.b32 {to}, {{{zero}, {a}}}"));
                to.into()
            }
            ScalarType::F8E5M2 => {
                let half = self.make(Class::Word, "shl.b32", &[a, Operand::word(8)]);
                let half = self.same_bits(ScalarType::F16, half);
                self.make(Class::Word, "cvt.f32.f16", &[half])
            }
            ScalarType::F8E4M3 => {
                let low = self.make(Class::Word, "and.b32", &[a, Operand::word(0x7f)]);
                let magnitude = self.make(Class::Word, "shl.b32", &[low, Operand::word(7)]);
                let sign = self.make(Class::Word, "and.b32", &[a, Operand::word(0x80)]);
                let sign = self.make(Class::Word, "shl.b32", &[sign, Operand::word(8)]);
                let half = self.make(Class::Word, "or.b32", &[magnitude, sign]);
                let half = self.same_bits(ScalarType::F16, half);
                let value = self.make(Class::Word, "cvt.f32.f16", &[half]);
                let value = self.make(Class::Word, "mul.rn.f32", &[value, Operand::word(256f32.to_bits())]);
                let nan = self.make(Class::Pred, "setp.eq.s32", &[low, Operand::word(0x7f)]);
                self.choose(nan, Operand::word(0x7fc0_0000), value)
            }
            _ => a,
        };
        let from = if from == ScalarType::F64 { from } else { ScalarType::F32 };
        Ok(match (from, to) {
            _ if from == to => a,
            (_, ScalarType::F64) => self.make(Class::Long, "cvt.f64.f32", &[a]),
            (_, ScalarType::F32) => self.make(Class::Word, "cvt.rn.f32.f64", &[a]),
            (_, ScalarType::F16) => self.make(Class::Half, &format!("cvt.rn.f16.{from}"), &[a]),
            (ScalarType::F64, _) => {
                let odd = self.rounded_to_odd(a);
                self.narrowed(to, odd)
            }
            _ => self.narrowed(to, a),
        })
    }

    /// An f64 in f32, with an odd last bit where something was lost.
    fn rounded_to_odd(&mut self, a: Operand) -> Operand {
        let near = self.make(Class::Word, "cvt.rz.f32.f64", &[a]);
        let back = self.make(Class::Long, "cvt.f64.f32", &[near]);
        let lost = self.make(Class::Pred, "setp.ne.f64", &[back, a]);
        let sticky = self.choose_word(lost, 1, 0);
        self.make(Class::Word, "or.b32", &[near, sticky])
    }

    /// An f32 rounded to bf16 or fp8.
    fn narrowed(&mut self, to: ScalarType, a: Operand) -> Operand {
        if to == ScalarType::BF16 {
            if self.may(80, (7, 0)) {
                return self.make(Class::Half, "cvt.rn.bf16.f32", &[a]);
            }
            let upper = self.nearest(a, 16);
            let nan = self.make(Class::Pred, "setp.nan.f32", &[a, a]);
            let upper = self.choose(nan, Operand::word(0x7fc0), upper);
            return self.same_bits(to, upper);
        }
        // E4M3 lies in f16 once it is scaled; what that makes subnormal in f32 rounds to zero here.
        let scaled = if to == ScalarType::F8E4M3 {
            self.make(Class::Word, "mul.rn.f32", &[a, Operand::word((1f32 / 256.0).to_bits())])
        } else {
            a
        };
        let half = self.make(Class::Half, "cvt.rz.f16.f32", &[scaled]);
        let back = self.make(Class::Word, "cvt.f32.f16", &[half]);
        let lost = self.make(Class::Pred, "setp.ne.f32", &[back, scaled]);
        let sticky = self.choose_word(lost, 1, 0);
        let half = self.same_bits(ScalarType::I16, half);
        let odd = self.make(Class::Word, "or.b32", &[half, sticky]);
        let magnitude = self.make(Class::Word, "and.b32", &[odd, Operand::word(0x7fff)]);
        let (drop, largest, nan) = if to == ScalarType::F8E4M3 { (7, 0x7e, 0x7f) } else { (8, 0x7c, 0x7e) };
        let nearest = self.nearest(magnitude, drop);
        let bounded = self.make(Class::Word, "min.u32", &[nearest, Operand::word(largest)]);
        let unknown = self.make(Class::Pred, "setp.nan.f32", &[a, a]);
        let value = self.choose(unknown, Operand::word(nan), bounded);
        let sign = self.make(Class::Word, "shr.u32", &[a, Operand::word(24)]);
        let sign = self.make(Class::Word, "and.b32", &[sign, Operand::word(0x80)]);
        self.make(Class::Word, "or.b32", &[value, sign])
    }

    /// `a / 2^drop` to the nearest integer, ties to even.
    fn nearest(&mut self, a: Operand, drop: u32) -> Operand {
        let kept = self.make(Class::Word, "shr.u32", &[a, Operand::word(drop)]);
        let odd = self.make(Class::Word, "and.b32", &[kept, Operand::word(1)]);
        let half = self.make(Class::Word, "add.s32", &[a, Operand::word((1 << (drop - 1)) - 1)]);
        let sum = self.make(Class::Word, "add.s32", &[half, odd]);
        self.make(Class::Word, "shr.u32", &[sum, Operand::word(drop)])
    }

    /// `(vector) -> vector`: the same bits; the number of lanes may change, lane 0 lowest.
    pub(super) fn bitcast(&mut self, op: &Op) -> Result {
        let (from, to) = (self.element_type(op.operands[0])?, self.element_type(op.results[0])?);
        let lanes = self.lanes(op.operands[0])?;
        let made: Vec<Operand> = if from.bits() == to.bits() {
            lanes.iter().map(|lane| self.same_bits(to, *lane)).collect()
        } else {
            let words = self.pack(from, &lanes);
            self.unpack(to, &words, self.lane_count(op.results[0])?)
        };
        if let [lane] = made[..] {
            self.set_scalar(op.results[0], lane);
        } else {
            self.set_lanes(op.results[0], made);
        }
        Ok(())
    }

    /// Lanes of f32 rounded to 16 bits by twos: the words that a product takes, and their halves for who asks for a lane. Nothing
    /// where the target or the types have no such instruction.
    pub(super) fn rounded_pairs(
        &mut self,
        from: ScalarType,
        to: ScalarType,
        lanes: &[Operand],
    ) -> Option<Vec<Operand>> {
        let has = from == ScalarType::F32 && matches!(to, ScalarType::F16 | ScalarType::BF16);
        if !has || !lanes.len().is_multiple_of(2) || !self.may(80, (7, 0)) {
            return None;
        }
        let mut halves = Vec::with_capacity(lanes.len());
        for pair in lanes.chunks_exact(2) {
            // Slots without data.
            if pair.iter().all(|lane| lane.bits() == Some(0)) {
                halves.extend([Operand::Bits(Class::Half, 0); 2]);
                continue;
            }
            let [low, high] = [pair[0], pair[1]].map(|lane| self.in_register(lane));
            let word = self.text.reg(Class::Word);
            self.text.raw(&format!("cvt.rn.{to}x2.f32 {word}, {high}, {low}"));
            let [low, high] = [(); 2].map(|()| self.text.reg(Class::Half));
            self.text.raw(&format!("mov.b32 {{{low}, {high}}}, {word}"));
            self.words.insert((low, high), word);
            halves.extend([low, high].map(Operand::from));
        }
        Some(halves)
    }

    /// Lanes of type `ty` end to end in 32-bit words, lane 0 lowest; zeros behind the last.
    pub(super) fn pack(&mut self, ty: ScalarType, lanes: &[Operand]) -> Vec<Operand> {
        let mut words = Vec::new();
        match ty.bits() {
            64 => {
                for lane in lanes {
                    words.extend(self.halves(*lane));
                }
            }
            32 => words.extend_from_slice(lanes),
            16 if class_of(ty) == Class::Half => {
                for pair in lanes.chunks(2) {
                    if let [Operand::Reg(low), Operand::Reg(high)] = pair
                        && let Some(word) = self.words.get(&(*low, *high))
                    {
                        words.push((*word).into());
                        continue;
                    }
                    let low = self.in_register(pair[0]);
                    let high = self.in_register(pair.get(1).copied().unwrap_or(Operand::Bits(Class::Half, 0)));
                    let word = self.text.reg(Class::Word);
                    self.text.raw(&format!("mov.b32 {word}, {{{low}, {high}}}"));
                    words.push(word.into());
                }
            }
            width => {
                for part in lanes.chunks(32 / width as usize) {
                    let mut word = Operand::word(0);
                    for (at, lane) in part.iter().enumerate() {
                        let lane = if ty == ScalarType::I1 { self.number_of(*lane) } else { *lane };
                        word = match at as u32 * width {
                            0 => lane,
                            shift => {
                                let moved = self.make(Class::Word, "shl.b32", &[lane, Operand::word(shift)]);
                                self.make(Class::Word, "or.b32", &[word, moved])
                            }
                        };
                    }
                    words.push(word);
                }
            }
        }
        words
    }

    /// The inverse of [`Self::pack`].
    pub(super) fn unpack(&mut self, ty: ScalarType, words: &[Operand], count: usize) -> Vec<Operand> {
        let mut lanes = Vec::with_capacity(count);
        match ty.bits() {
            64 => {
                for pair in words.chunks(2) {
                    let high = pair.get(1).copied().unwrap_or(Operand::word(0));
                    lanes.push(self.joined(pair[0], high));
                }
            }
            32 => lanes.extend_from_slice(words),
            16 if class_of(ty) == Class::Half => {
                for word in words {
                    let word = self.in_register(*word);
                    let (low, high) = (self.text.reg(Class::Half), self.text.reg(Class::Half));
                    self.text.raw(&format!("mov.b32 {{{low}, {high}}}, {word}"));
                    lanes.extend([Operand::from(low), Operand::from(high)]);
                }
            }
            width => {
                for word in words {
                    for at in 0..32 / width {
                        let bits = [*word, Operand::word(at * width), Operand::word(width)];
                        let lane = self.make(Class::Word, "bfe.u32", &bits);
                        lanes.push(if ty == ScalarType::I1 { self.truth_of(lane) } else { lane });
                    }
                }
            }
        }
        lanes.truncate(count);
        lanes
    }

    /// The two words of 64 bits, the lower one first.
    pub(super) fn halves(&mut self, long: Operand) -> [Operand; 2] {
        if let Some(bits) = long.bits() {
            return [Operand::word(bits as u32), Operand::word((bits >> 32) as u32)];
        }
        let long = self.in_register(long);
        let (low, high) = (self.text.reg(Class::Word), self.text.reg(Class::Word));
        self.text.raw(&format!("mov.b64 {{{low}, {high}}}, {long}"));
        [low.into(), high.into()]
    }

    /// 64 bits of two words.
    pub(super) fn joined(&mut self, low: Operand, high: Operand) -> Operand {
        let (low, high) = (self.in_register(low), self.in_register(high));
        let long = self.text.reg(Class::Long);
        self.text.raw(&format!("mov.b64 {long}, {{{low}, {high}}}"));
        long.into()
    }
}
