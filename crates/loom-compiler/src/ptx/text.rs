//! Registers, operands and the lines of a kernel's text.
//!
//! - Four classes of registers without types: predicates, 16, 32 and 64 bits. An instruction says what its operands mean.
//! - A value of a type narrower than its register has zeros above ([`class_of`]); so `i8` and `i16` are 32 bits, `f16` 16.
//! - An immediate is bits; how it is written follows from the last type of the instruction.
//! - Not here: which instruction computes what.

use std::fmt::{self, Write as _};

use crate::types::ScalarType;

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Class {
    /// A predicate.
    Pred,
    /// 16 bits.
    Half,
    /// 32 bits.
    Word,
    /// 64 bits.
    Long,
}

impl Class {
    /// `b16`, `b32`, `b64`; predicates have a type of their own.
    pub(super) const fn bits_type(self) -> &'static str {
        match self {
            Self::Pred => "pred",
            Self::Half => "b16",
            Self::Word => "b32",
            Self::Long => "b64",
        }
    }

    const fn prefix(self) -> &'static str {
        match self {
            Self::Pred => "p",
            Self::Half => "h",
            Self::Word => "r",
            Self::Long => "rd",
        }
    }

    const ALL: [Self; 4] = [Self::Pred, Self::Half, Self::Word, Self::Long];
}

/// The class that holds a value of type `ty`.
pub(super) const fn class_of(ty: ScalarType) -> Class {
    match ty {
        ScalarType::I1 => Class::Pred,
        ScalarType::F16 | ScalarType::BF16 => Class::Half,
        ScalarType::I8
        | ScalarType::I16
        | ScalarType::I32
        | ScalarType::F32
        | ScalarType::F8E4M3
        | ScalarType::F8E5M2 => Class::Word,
        ScalarType::Index | ScalarType::Offset | ScalarType::I64 | ScalarType::F64 => Class::Long,
    }
}

/// A virtual register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reg {
    pub(super) class: Class,
    number: u32,
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}{}", self.class.prefix(), self.number)
    }
}

/// What an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operand {
    /// A register.
    Reg(Reg),
    /// These bits, of a class.
    Bits(Class, u64),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl Operand {
    /// 32 bits.
    pub(super) const fn word(bits: u32) -> Self {
        Self::Bits(Class::Word, bits as u64)
    }

    /// 64 bits.
    pub(super) const fn long(bits: u64) -> Self {
        Self::Bits(Class::Long, bits)
    }

    /// A predicate.
    pub(super) const fn truth(holds: bool) -> Self {
        Self::Bits(Class::Pred, holds as u64)
    }

    pub(super) const fn class(self) -> Class {
        match self {
            Self::Reg(reg) => reg.class,
            Self::Bits(class, _) => class,
        }
    }

    /// Its bits, if they are known.
    pub(super) const fn bits(self) -> Option<u64> {
        match self {
            Self::Bits(_, bits) => Some(bits),
            Self::Reg(_) => None,
        }
    }

    /// As an operand of an instruction whose last type is `suffix`.
    fn write(self, f: &mut String, suffix: &str) {
        let written = match self {
            Self::Reg(reg) => write!(f, "{reg}"),
            Self::Bits(_, bits) => match suffix {
                "f32" => write!(f, "0f{:08X}", bits as u32),
                "f64" => write!(f, "0d{bits:016X}"),
                "s32" => write!(f, "{}", bits as u32 as i32),
                "s64" => write!(f, "{}", bits as i64),
                _ if bits < 1 << 16 => write!(f, "{bits}"),
                _ => write!(f, "{bits:#x}"),
            },
        };
        // Writing to a string does not fail.
        debug_assert!(written.is_ok());
    }
}

/// The lines of a kernel's body, and the registers that they name.
#[derive(Default)]
pub(super) struct Text {
    lines: String,
    counts: [u32; 4],
    instructions: usize,
    labels: u32,
    /// What the next instruction is of.
    comment: Option<String>,
}

/// A place that branches go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(u32);

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "$L{}", self.0)
    }
}

impl Text {
    /// A register that nothing uses yet.
    pub(super) fn reg(&mut self, class: Class) -> Reg {
        let count = &mut self.counts[class as usize];
        *count += 1;
        Reg { class, number: *count }
    }

    /// A label that nothing is at yet.
    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    /// How many instructions there are.
    pub(super) const fn instructions(&self) -> usize {
        self.instructions
    }

    /// The next instruction is at `label`.
    pub(super) fn at(&mut self, label: Label) {
        let _ = writeln!(self.lines, "{label}:");
    }

    /// What the following instructions are of; nothing is written until there is one.
    pub(super) fn comment(&mut self, words: String) {
        self.comment = Some(words);
    }

    /// A line of its own that only says something, behind the one that says what it is of.
    pub(super) fn note(&mut self, words: &str) {
        if let Some(of) = self.comment.take() {
            let _ = writeln!(self.lines, "    // {of}");
        }
        let _ = writeln!(self.lines, "    // {words}");
    }

    fn count(&mut self) {
        self.instructions += 1;
        if let Some(words) = self.comment.take() {
            let _ = writeln!(self.lines, "    // {words}");
        }
    }

    /// An instruction as written.
    pub(super) fn raw(&mut self, instruction: &str) {
        self.count();
        let _ = writeln!(self.lines, "    {instruction};");
    }

    /// `mnemonic operands..;`, the first operand being what it defines.
    pub(super) fn instruction(&mut self, mnemonic: &str, operands: &[Operand]) {
        self.count();
        let suffix = mnemonic.rsplit('.').next().unwrap_or_default();
        let _ = write!(self.lines, "    {mnemonic}");
        for (at, operand) in operands.iter().enumerate() {
            self.lines.push_str(if at == 0 { " " } else { ", " });
            operand.write(&mut self.lines, suffix);
        }
        self.lines.push_str(";\n");
    }

    /// Declarations of the registers, and the lines.
    pub(super) fn finish(self) -> String {
        let mut whole = String::with_capacity(self.lines.len() + 128);
        for class in Class::ALL {
            let count = self.counts[class as usize];
            if count > 0 {
                let _ = writeln!(whole, "    .reg .{} %{}<{}>;", class.bits_type(), class.prefix(), count + 1);
            }
        }
        whole + &self.lines
    }
}

/// A line of a source as a comment: printable ASCII, and no backslash at its end, which would take the next line along.
pub(super) fn comment_of(line: &str) -> String {
    let plain = line.trim().chars().map(|char| if (' '..='~').contains(&char) { char } else { '?' });
    plain.collect::<String>().trim_end_matches('\\').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediates_are_written_as_the_instruction_reads_them() {
        let mut text = Text::default();
        let to = Operand::from(text.reg(Class::Word));
        text.instruction("add.rn.f32", &[to, Operand::word(0x3f80_0000), Operand::word(0x8000_0000)]);
        text.instruction("add.s32", &[to, to, Operand::word(u32::MAX)]);
        text.instruction("and.b32", &[to, to, Operand::word(u32::MAX)]);
        text.instruction("mul.rn.f64", &[to, to, Operand::long(1f64.to_bits())]);
        let lines = text.finish();
        assert!(lines.contains("    .reg .b32 %r<2>;\n"), "{lines}");
        assert!(lines.contains("add.rn.f32 %r1, 0f3F800000, 0f80000000;"), "{lines}");
        assert!(lines.contains("add.s32 %r1, %r1, -1;"), "{lines}");
        assert!(lines.contains("and.b32 %r1, %r1, 0xffffffff;"), "{lines}");
        assert!(lines.contains("mul.rn.f64 %r1, %r1, 0d3FF0000000000000;"), "{lines}");
    }

    #[test]
    fn comments_stay_on_their_line() {
        assert_eq!(comment_of("  %a = \u{fc}\tb \\\\"), "%a = ??b ");
        assert_eq!(comment_of("plain"), "plain");
    }
}
