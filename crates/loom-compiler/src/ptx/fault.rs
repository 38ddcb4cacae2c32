//! What a text reports when an access or an assertion fails: one record, of whoever comes first.
//!
//! - The record is [`FAULT_BYTES`] of device memory that the launch passes, cleared before. Who changes its first word from 0 to 1
//!   fills in the rest; all others leave it alone.
//! - An access that fails is not made: a load gives zeros. An assertion that fails ends its work-item.

use super::emitter::Emitter;
use super::text::Operand;
use crate::ir::Span;

/// Bytes of the fault record.
pub const FAULT_BYTES: usize = 40;

/// What can fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiteKind {
    /// An access: past the buffer's end, or, with a limit of 0, at an offset that is no multiple of the element's size.
    Access,
    /// A `kernel.assert` with this text.
    Assert(String),
}

/// An op that can fail: what [`Fault::site`] counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// What.
    pub kind: SiteKind,
    /// Where it was written.
    pub span: Span,
    /// The line of that.
    pub line: u32,
}

/// A fault record.
///
/// Little-endian: a word that is 1, the site (32 bits), the index (64), the limit (64), the dispatch id (three of 32), and 4 bytes
/// that mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which of [`super::Image::sites`].
    pub site: u32,
    /// Of an access: its first byte, in the buffer.
    pub index: i64,
    /// Of an access: the buffer's length in bytes.
    pub limit: u64,
    /// The work-item, x, y and z, in the dispatch.
    pub item: [u32; 3],
}

impl Fault {
    /// What a record says; nothing if it is still clear.
    pub fn read(record: &[u8; FAULT_BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        (word(0) != 0).then(|| Self {
            site: word(4),
            index: long(8) as i64,
            limit: long(16),
            item: [word(24), word(28), word(32)],
        })
    }
}

/// The function that writes the record.
pub(super) fn fault_function() -> String {
    let mut text = String::from(
        ".func fault(.reg .b64 %record, .reg .b32 %site, .reg .b64 %index, .reg .b64 %limit)\n{\n    .reg .pred %p;\n    \
         .reg .b32 %old, %group, %size, %item;\n    atom.global.cas.b32 %old, [%record], 0, 1;\n    setp.ne.s32 %p, %old, 0;\n    \
         @%p ret;\n    st.global.b32 [%record+4], %site;\n    st.global.b64 [%record+8], %index;\n    \
         st.global.b64 [%record+16], %limit;\n",
    );
    for (at, axis) in ["x", "y", "z"].into_iter().enumerate() {
        let offset = 24 + 4 * at;
        text.push_str(&format!(
            "    mov.u32 %group, %ctaid.{axis};\n    mov.u32 %size, %ntid.{axis};\n    mov.u32 %item, %tid.{axis};\n    \
             mad.lo.s32 %item, %group, %size, %item;\n    st.global.b32 [%record+{offset}], %item;\n"
        ));
    }
    text + "    ret;\n}\n\n"
}

impl Emitter<'_> {
    /// A site here.
    pub(super) fn site(&mut self, kind: SiteKind) -> u32 {
        let line = self.kernel.lines.line(self.span.start);
        let site = Site { kind, span: self.span, line };
        if let Some(known) = self.sites.iter().position(|other| *other == site) {
            return known as u32;
        }
        self.sites.push(site);
        self.sites.len() as u32 - 1
    }

    /// Reports that `site` fails, where `fails` holds.
    pub(super) fn report(&mut self, fails: Operand, site: u32, index: Operand, limit: Operand) {
        let Some(record) = self.memory.faults else { return };
        let [fails, record, index, limit] = [fails, record, index, limit].map(|operand| self.in_register(operand));
        self.text.raw(&format!("@{fails} call fault, ({record}, {site}, {index}, {limit})"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_is_written() {
        let mut record = [0; FAULT_BYTES];
        assert_eq!(Fault::read(&record), None);
        for (at, byte) in record.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let fault = Fault::read(&record).expect("its first word is set");
        assert_eq!((fault.site, fault.index, fault.limit), (0x0706_0504, 0x0f0e_0d0c_0b0a_0908, 0x1716_1514_1312_1110));
        assert_eq!(fault.item, [0x1b1a_1918, 0x1f1e_1d1c, 0x2322_2120]);
    }
}
