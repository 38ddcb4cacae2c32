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
//! - A launch that takes long is spread over the threads that no chunk keeps busy (`tile`).
//! - One thread means none but the caller's: no hand-off, no lock that another thread holds.
//!
//! | file | holds |
//! | --- | --- |
//! | `device` | opening one, and what it answers |
//! | `memory` | bytes |
//! | `plan` | a plan made ready: every number that a turn needs, resolved |
//! | `slot` | staging |
//! | `queue` | a turn: cut, run, faults collected |
//! | `moves` | copies and fills of strided runs |
//! | `pool` | the threads |
//! | `contract` | matrix products, convolutions and the products of recurrent cells, in place, from packed weights |
//! | `tile` | kernels, one loop over a tile of work-items per op |
//! | `weights` | packed weights and constants that several plans share |
//! | `isa` | which vector instructions are used, chosen at run time |
//! | `error` | what went wrong, as a `DeviceError` |
//!
//! Order, queueing, slots and handles are `lanes_core::device::flight`'s: a turn runs on the caller's thread, inside `submit`,
//! where nothing is queued and the executable was not prepared to overlap. Otherwise one device thread runs it, in the order
//! submitted, and `submit` returns at once.
//!
//! What this API cannot do: run two queued turns at the same time, since there is one device thread (turns inside
//! `submit` do run beside each other, if they share no buffer and no executable); begin a queued turn before one queued
//! earlier, though that one waits for `after`; stop a turn that has begun; be lost. A visitor of `map` that waits for
//! work on the buffer it looks at waits for ever.

pub mod contract;
mod device;
mod error;
pub mod isa;
mod memory;
mod moves;
mod plan;
mod pool;
mod queue;
mod slot;
pub mod tile;
#[cfg(test)]
mod watched;
mod weights;

pub use device::{CpuDevice, CpuOptions};
