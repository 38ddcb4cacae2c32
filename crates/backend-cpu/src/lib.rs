//! The CPU backend: the default everywhere, and the reference for every other.
//!
//! ```text
//! turn of 40 seats ─ cut into chunks ─┬─ thread 0: seats  0..10, 10..20 ┐ each chunk through the *whole* plan,
//!                                     └─ thread 1: seats 20..30, 30..40 ┘ in scratch of the thread's own
//! ```
//!
//! - A chunk's intermediates fit half of the second-level cache, so a seat costs the same in any company; constants and
//!   packed weights are shared.
//! - A seat's bits depend on nothing but its inputs and its row: not on chunks, threads, or who sits beside it.
//! - One thread means none but the caller's: no hand-off, no lock that another thread holds.
//!
//! | file | holds |
//! | --- | --- |
//! | `device` | opening one, and what it answers |
//! | `memory` | buffers, and who may touch them when |
//! | `plan` | a plan made ready: every number that a turn needs, resolved |
//! | `queue` | a turn: cut, run, faults collected |
//! | `moves` | copies and fills of strided runs |
//! | `pool` | the threads |
//! | `contract` | matrix products, convolutions and the products of recurrent cells, in place, from packed weights |
//! | `tile` | kernels, one loop over a tile of work-items per op |
//! | `isa` | which vector instructions are used, chosen at run time |
//! | `error` | what went wrong, as a `DeviceError` |
//!
//! What this API cannot do: overlap. `submit` runs the turn before it returns, on the caller's thread and the pool's;
//! its completions are done when they are given out, and its one slot is free again.

pub mod contract;
mod device;
mod error;
pub mod isa;
mod memory;
mod moves;
mod plan;
mod pool;
mod queue;
pub mod tile;

pub use device::{CpuDevice, CpuOptions};
