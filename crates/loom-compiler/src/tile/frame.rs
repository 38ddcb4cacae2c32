//! Registers: where in the frame they lie, and how many values still need each.

use std::collections::BTreeMap;

use super::program::Reg;
use crate::types::ScalarType;

/// The most bytes of registers a program may have: what a hostile kernel can make an executor allocate per thread.
pub(super) const MAX_FRAME_BYTES: u32 = 64 << 20;

/// Frees registers by count: one that no value holds at the end of an op is free for the next op's results.
pub(super) struct Frame {
    top: u32,
    /// By offset: size in bytes, and holders.
    taken: BTreeMap<u32, (u32, u32)>,
    /// By size.
    free: BTreeMap<u32, Vec<u32>>,
    /// Taken since the last [`Self::settle`].
    fresh: Vec<Reg>,
}

impl Frame {
    pub fn new() -> Self {
        Self { top: 0, taken: BTreeMap::new(), free: BTreeMap::new(), fresh: Vec::new() }
    }

    /// Bytes needed so far.
    pub fn bytes(&self) -> u32 {
        self.top
    }

    /// A register of so many elements that nothing holds yet. `None` when the frame would be too large.
    pub fn take(&mut self, ty: ScalarType, elements: u32) -> Option<Reg> {
        let size = (ty.bytes() as u32 * elements).next_multiple_of(64);
        let at = match self.free.get_mut(&size).and_then(Vec::pop) {
            Some(at) => at,
            None => {
                let at = self.top;
                self.top = at.checked_add(size).filter(|&top| top <= MAX_FRAME_BYTES)?;
                at
            }
        };
        self.taken.insert(at, (size, 0));
        self.fresh.push(Reg(at));
        Some(Reg(at))
    }

    /// How many values hold it.
    pub fn holders(&self, reg: Reg) -> u32 {
        self.taken.get(&reg.0).map_or(0, |&(_, holders)| holders)
    }

    pub fn hold(&mut self, reg: Reg) {
        if let Some((_, holders)) = self.taken.get_mut(&reg.0) {
            *holders += 1;
        }
    }

    pub fn release(&mut self, reg: Reg) {
        if let Some((_, holders)) = self.taken.get_mut(&reg.0) {
            *holders -= 1;
            if *holders == 0 {
                self.drop(reg);
            }
        }
    }

    /// Ends an op: what it took and nothing holds is free again.
    pub fn settle(&mut self) {
        for reg in std::mem::take(&mut self.fresh) {
            if self.taken.get(&reg.0).is_some_and(|&(_, holders)| holders == 0) {
                self.drop(reg);
            }
        }
    }

    fn drop(&mut self, reg: Reg) {
        if let Some((size, _)) = self.taken.remove(&reg.0) {
            self.free.entry(size).or_default().push(reg.0);
        }
    }
}
