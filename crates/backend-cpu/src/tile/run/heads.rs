//! One item of each segment, as a tile of its own: each of its segments is one item.

use std::ptr;

use loom_compiler::tile::Heads;

use super::{Exec, Run, Stop};

impl Run<'_> {
    /// Whether it could be done so: all items of several segments are here.
    pub(super) unsafe fn heads(&mut self, heads: &Heads, exec: Exec) -> Result<bool, Stop> {
        let width = self.width;
        if !exec.mask.is_null() || exec.lo != 0 || exec.hi <= width || !exec.hi.is_multiple_of(width) {
            return Ok(false);
        }
        if self.slot(heads.item) < width as u64 {
            self.width = 1;
            // SAFETY: as the caller's; there are fewer segments than items.
            let done = unsafe { self.block(heads.body, Exec { lo: 0, hi: exec.hi / width, mask: ptr::null() }) };
            self.width = width;
            done?;
        }
        Ok(true)
    }
}
