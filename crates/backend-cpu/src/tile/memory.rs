//! Memory that tiles live in: 64-byte aligned, grown between launches, never while one runs.

/// One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed bytes on a 64-byte boundary.
#[derive(Debug, Default)]
pub(super) struct Bytes {
    lines: Vec<Line>,
}

impl Bytes {
    /// At least `len` bytes; old contents may stay.
    pub fn reserve(&mut self, len: usize) {
        let lines = len.div_ceil(64);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0; 64]));
        }
    }

    /// The first byte.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }
}
