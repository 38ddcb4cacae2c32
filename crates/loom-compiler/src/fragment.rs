//! Matrix fragments: how a 16-row or 16-column tile is spread over the lanes of a subgroup.
//!
//! ```text
//! lhs [m,k]   lane L, slot s: row L mod 16, column s             every group of 16 lanes holds a copy
//! rhs [k,n]   lane L, slot s: row s, column L mod 16             likewise
//! init [m,n]  lane L, slot s: row G·(s/spread) + L div 16, column L mod 16    with G = lanes / 16 groups
//! ```
//!
//! - This is the register layout of the WMMA instructions of AMD RDNA3 (gfx11), for subgroups of 32 and of 64 lanes, which
//!   public kernels rely on. Sources: "How to accelerate AI applications on RDNA 3 using WMMA" (gpuopen.com/learn/wmma_on_rdna3)
//!   and its sample in GPUOpen's Orochi (`Test/WMMA`) for 32 lanes. For 64 lanes, rows alternate between the four groups of 16
//!   lanes: as an emulator of RDNA3 by others has it, and as public kernels need it; not found in a text of AMD's.
//! - A 16-bit accumulator lies in the low half of a 32-bit register, so its payload has a slot of data and a slot without in turn
//!   (`spread` 2, the hardware's OPSEL 0). The slot without data is kept as it is.
//! - On RDNA4 (gfx12) no operand is held twice: group g of 16 lanes has the slots' worth of sums from `g · slots` on (`split`).
//!   Its layouts are not public enough to be relied on, so only kernels that do not see them are compiled (`opaque`).
//! - Slots count elements, not vector lanes: four `i32` lanes of packed bytes are 16 slots, lowest bits first.
//! - Not here: the arithmetic of a product (`interp`, and the executors), spelling (`build`), what makes a layout visible (`opaque`).

use serde::{Deserialize, Serialize};

use crate::types::ScalarType;

/// Rows of an lhs and of an accumulator, columns of an rhs and of an accumulator: what 16 lanes count.
pub const TILE: u32 = 16;

/// The longest sum of one product.
pub const MAX_DEPTH: u32 = 128;

/// What part of a tile product a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// The left operand, `[m, k]`.
    Lhs,
    /// The right operand, `[k, n]`.
    Rhs,
    /// What the product is added to, `[m, n]`.
    Init,
    /// The sum, `[m, n]`: the same payload as `Init`.
    Result,
}

impl Role {
    /// The spelling in Loom text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lhs => "lhs",
            Self::Rhs => "rhs",
            Self::Init => "init",
            Self::Result => "result",
        }
    }

    /// Whether it is `[m, n]`.
    pub const fn is_accumulator(self) -> bool {
        matches!(self, Self::Init | Self::Result)
    }
}

/// The numbers of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Format {
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// E4M3FN.
    F8E4M3,
    /// E5M2.
    F8E5M2,
    /// 8 bits, two's complement.
    I8,
    /// 8 bits without a sign.
    U8,
    /// 4 bits, two's complement.
    I4,
    /// 4 bits without a sign.
    U4,
}

impl Format {
    /// Bits of one element.
    pub const fn bits(self) -> u32 {
        match self {
            Self::F16 | Self::BF16 => 16,
            Self::F8E4M3 | Self::F8E5M2 | Self::I8 | Self::U8 => 8,
            Self::I4 | Self::U4 => 4,
        }
    }

    /// Whether products are summed as integers.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I8 | Self::U8 | Self::I4 | Self::U4)
    }

    /// The float type with these values; `None` for integers.
    pub const fn float(self) -> Option<ScalarType> {
        match self {
            Self::F16 => Some(ScalarType::F16),
            Self::BF16 => Some(ScalarType::BF16),
            Self::F8E4M3 => Some(ScalarType::F8E4M3),
            Self::F8E5M2 => Some(ScalarType::F8E5M2),
            Self::I8 | Self::U8 | Self::I4 | Self::U4 => None,
        }
    }

    /// The integer that the low bits of `bits` stand for. For integer formats.
    pub const fn integer(self, bits: u64) -> i32 {
        let width = self.bits();
        let low = (bits as u32) << (32 - width);
        match self {
            Self::I8 | Self::I4 => (low as i32) >> (32 - width),
            Self::U8 | Self::U4 | Self::F16 | Self::BF16 | Self::F8E4M3 | Self::F8E5M2 => (low >> (32 - width)) as i32,
        }
    }
}

/// A tile and where its elements lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fragment {
    /// Which part of a product.
    pub role: Role,
    /// Rows of the tile.
    pub rows: u32,
    /// Columns of the tile.
    pub columns: u32,
    /// Lanes of the subgroup: 32 or 64.
    pub lanes: u32,
    /// Distance of slots that carry data: 1, or 2 for a 16-bit accumulator in 32-bit registers.
    pub spread: u32,
    /// Of an operand: each group of 16 lanes holds a part of the sums, not a copy.
    pub split: bool,
}

impl Fragment {
    /// Whether it is one that can be laid out: what everything else here relies on.
    pub const fn is_valid(&self) -> bool {
        let Self { rows, columns, lanes, spread, split, .. } = *self;
        let lanes_fit = lanes == 32 || lanes == 64;
        let depth = match self.role {
            Role::Lhs => columns,
            Role::Rhs => rows,
            Role::Init | Role::Result => TILE,
        };
        let across = match self.role {
            Role::Lhs => rows == TILE,
            Role::Rhs => columns == TILE,
            Role::Init | Role::Result => rows == TILE && columns == TILE,
        };
        let spread_fits = spread == 1 || (spread == 2 && self.role.is_accumulator());
        let split_fits = !split || !self.role.is_accumulator();
        lanes_fit
            && across
            && spread_fits
            && split_fits
            && depth >= TILE
            && depth <= MAX_DEPTH
            && depth.is_multiple_of(TILE)
    }

    /// Groups of 16 lanes.
    pub const fn groups(&self) -> u32 {
        self.lanes / TILE
    }

    /// Length of the sums: the shared extent of an operand.
    pub const fn depth(&self) -> u32 {
        match self.role {
            Role::Lhs => self.columns,
            Role::Rhs => self.rows,
            Role::Init | Role::Result => TILE,
        }
    }

    /// Slots of one lane, those without data too.
    pub const fn slots(&self) -> u32 {
        match self.role {
            Role::Lhs | Role::Rhs if self.split => self.depth() / self.groups(),
            Role::Lhs | Role::Rhs => self.depth(),
            Role::Init | Role::Result => self.rows / self.groups() * self.spread,
        }
    }

    /// The row and column of the element in slot `slot` of lane `lane`, or nothing where the slot carries no data.
    pub const fn element(&self, lane: u32, slot: u32) -> Option<(u32, u32)> {
        match self.role {
            Role::Lhs => Some((lane % TILE, self.first(lane) + slot)),
            Role::Rhs => Some((self.first(lane) + slot, lane % TILE)),
            Role::Init | Role::Result if slot.is_multiple_of(self.spread) => {
                Some((self.groups() * (slot / self.spread) + lane / TILE, lane % TILE))
            }
            Role::Init | Role::Result => None,
        }
    }

    /// The place in the sums of slot 0 of an operand's lane.
    const fn first(&self, lane: u32) -> u32 {
        if self.split { lane / TILE * self.slots() } else { 0 }
    }

    /// The first lane, and the slot, that hold an element of the tile: the inverse of [`Self::element`].
    pub const fn place(&self, row: u32, column: u32) -> (u32, u32) {
        match self.role {
            Role::Lhs => (column / self.slots() * TILE + row, column % self.slots()),
            Role::Rhs => (row / self.slots() * TILE + column, row % self.slots()),
            Role::Init | Role::Result => (row % self.groups() * TILE + column, row / self.groups() * self.spread),
        }
    }
}

/// `D = A·B + C` over one tile of 16 rows and 16 columns.
///
/// Each element starts from its element of `C` and adds its products in ascending `k`: floats widened to f32, each step one
/// fused multiply-add in f32; a 16-bit `C` is widened before and the sum rounded once, to nearest even, behind the last step.
/// Integers add wrapping in 32 bits. A lane that a partial last subgroup lacks counts as zeros. Operands are read from the
/// first 16 lanes where the other groups hold copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Product {
    /// Length of the sums, `k`.
    pub depth: u32,
    /// Numbers of `A`.
    pub lhs: Format,
    /// Numbers of `B`.
    pub rhs: Format,
    /// How `C` and `D` lie.
    pub sum: Fragment,
    /// Whether the operands are [`Fragment::split`].
    pub split: bool,
}

impl Product {
    /// How `A` lies.
    pub const fn lhs_fragment(&self) -> Fragment {
        Fragment {
            role: Role::Lhs,
            rows: TILE,
            columns: self.depth,
            lanes: self.sum.lanes,
            spread: 1,
            split: self.split,
        }
    }

    /// How `B` lies.
    pub const fn rhs_fragment(&self) -> Fragment {
        Fragment {
            role: Role::Rhs,
            rows: self.depth,
            columns: TILE,
            lanes: self.sum.lanes,
            spread: 1,
            split: self.split,
        }
    }

    /// Whether the operands' formats may be multiplied and summed in elements of `sum`; if not, what may.
    pub const fn check(&self, sum: ScalarType) -> Result<(), &'static str> {
        let legal = match (self.lhs, self.rhs) {
            (Format::F16, Format::F16) => matches!(sum, ScalarType::F32 | ScalarType::F16),
            (Format::BF16, Format::BF16) => matches!(sum, ScalarType::F32 | ScalarType::BF16),
            (Format::F8E4M3 | Format::F8E5M2, Format::F8E4M3 | Format::F8E5M2) => matches!(sum, ScalarType::F32),
            (lhs, rhs) if lhs.is_integer() && lhs.bits() == rhs.bits() => matches!(sum, ScalarType::I32),
            _ => false,
        };
        if legal {
            Ok(())
        } else {
            Err("legal: f16 into f32 or f16, bf16 into f32 or bf16, fp8 into f32, and integers of one width into i32")
        }
    }
}

/// Element `slot` of a payload whose vector lanes have `bits` bits, elements of `width` bits in them, lowest first.
pub fn unpacked(payload: &[u64], bits: u32, width: u32, slot: u32) -> u64 {
    let per = (bits / width).max(1);
    let word = payload.get((slot / per) as usize).copied().unwrap_or(0);
    word >> (slot % per * width) & (u64::MAX >> (64 - width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_of_a_tile_has_a_place_and_each_slot_of_data_is_one() {
        for lanes in [32, 64] {
            for (role, rows, columns, spread, split) in [
                (Role::Lhs, 16, 16, 1, false),
                (Role::Lhs, 16, 32, 1, false),
                (Role::Rhs, 16, 16, 1, false),
                (Role::Lhs, 16, 32, 1, true),
                (Role::Rhs, 16, 16, 1, true),
                (Role::Result, 16, 16, 1, false),
                (Role::Init, 16, 16, 2, false),
            ] {
                let fragment = Fragment { role, rows, columns, lanes, spread, split };
                assert!(fragment.is_valid());
                let mut held = vec![0; (rows * columns) as usize];
                for lane in 0..lanes {
                    for slot in 0..fragment.slots() {
                        if let Some((row, column)) = fragment.element(lane, slot) {
                            held[(row * columns + column) as usize] += 1;
                        }
                    }
                }
                // Accumulators and split operands lie once, other operands once in each group of lanes.
                let copies = if role.is_accumulator() || split { 1 } else { lanes / 16 };
                assert!(held.iter().all(|count| *count == copies), "{fragment:?}");
                for row in 0..rows {
                    for column in 0..columns {
                        let (lane, slot) = fragment.place(row, column);
                        assert_eq!(fragment.element(lane, slot), Some((row, column)), "{fragment:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn layouts_that_public_kernels_rely_on() {
        let sum = Fragment { role: Role::Result, rows: 16, columns: 16, lanes: 32, spread: 1, split: false };
        assert_eq!(sum.slots(), 8);
        assert_eq!(sum.element(0, 1), Some((2, 0)));
        assert_eq!(sum.element(31, 7), Some((15, 15)));
        let wide = Fragment { lanes: 64, ..sum };
        assert_eq!(wide.slots(), 4);
        assert_eq!(wide.element(50, 1), Some((7, 2)));
        let half = Fragment { spread: 2, ..sum };
        assert_eq!(half.slots(), 16);
        assert_eq!(half.element(17, 6), Some((7, 1)));
        assert_eq!(half.element(17, 7), None);
    }

    #[test]
    fn packed_elements_come_lowest_first() {
        assert_eq!(unpacked(&[0x0403_0201, 0x0807_0605], 32, 8, 6), 7);
        assert_eq!(unpacked(&[0x8765_4321], 32, 4, 7), 8);
        assert_eq!(Format::I4.integer(8), -8);
        assert_eq!(Format::U8.integer(0x1ff), 255);
        assert_eq!(Format::I8.integer(0xff), -1);
    }
}
