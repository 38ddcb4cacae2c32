//! Which vector instructions the backend's loops use, chosen once at run time.
//!
//! - Every set gives the same bits: each rounding is written down in the loops that are compiled for it.
//! - `LANES_CPU_ISA` (`portable`, `avx2` or `avx512`) lowers the choice, for tests and for reports of faults; a set
//!   that the machine lacks is not taken.

use std::fmt;
use std::sync::OnceLock;

/// A set of vector instructions. Later ones are faster where they exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Loops over arrays, vectorised for whatever the build targets.
    Portable,
    /// x86-64 with AVX2, FMA and F16C: 8 f32 a register.
    Avx2,
    /// x86-64 with AVX-512F: 16 f32 a register.
    Avx512,
}

impl Isa {
    /// All of them, slowest first.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// Whether this machine has it.
    pub fn available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Self::Avx2.available() && is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// The fastest that this machine has, or the one that `LANES_CPU_ISA` names if that is available.
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let asked = std::env::var("LANES_CPU_ISA").ok();
            let usable = || Self::ALL.into_iter().rev().filter(|isa| isa.available());
            let named = usable().find(|isa| Some(isa.to_string()) == asked);
            named.or_else(|| usable().next()).unwrap_or(Self::Portable)
        })
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        })
    }
}
