//! Entropy of scenarios: a pure function of names and numbers, 128 bits wide, without a cursor.
//!
//! - Every constant is that of the language's reference; its published test vector is a test here.
//! - The entropy of a scenario is the root's, forked by the scenario's name: the language leaves it open, and both sides
//!   of a comparison see the same inputs whatever it is.

/// The finaliser of splitmix64 (Steele, Lea and Flood 2014), without its increment.
pub(super) const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// One value of `check.entropy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entropy {
    /// The low word.
    pub low: u64,
    /// The high word.
    pub high: u64,
}

impl Entropy {
    /// Of a seed.
    pub const fn root(seed: u64) -> Self {
        Self { low: mix(seed ^ 0x524f_4f54_4c4f_4f4d), high: mix(seed ^ 0x6d6f_6f6c_544f_4f52) }
    }

    /// By name.
    #[must_use]
    pub fn fork(self, name: &str) -> Self {
        let word = |start: u64| {
            let start = start ^ mix(name.len() as u64 ^ 0x4e41_4d45_444c_4f4f);
            // The prime of 64-bit FNV-1a.
            mix(name.bytes().fold(start, |word, byte| (word ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
        };
        Self {
            low: word(self.low ^ self.high.rotate_left(17) ^ 0x464f_524b_4c4f_4f4d),
            high: word(self.high ^ self.low.rotate_left(41) ^ 0x6d6f_6f6c_4b52_4f46),
        }
    }

    /// By number.
    #[must_use]
    pub const fn at(self, ordinal: u64) -> Self {
        Self {
            low: mix(self.low ^ self.high.rotate_left(17) ^ mix(ordinal ^ 0x4f52_4449_4e41_4c30)),
            high: mix(self.high ^ self.low.rotate_left(41) ^ mix(ordinal ^ 0x314c_414e_4944_524f)),
        }
    }

    /// 64 bits.
    pub const fn read(self, ordinal: u64) -> u64 {
        let at = self.at(ordinal);
        mix(at.low ^ at.high.rotate_left(23) ^ 0x5245_4144_4c4f_4f4d)
    }
}
