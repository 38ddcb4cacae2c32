//! The CUDA backend: NVIDIA GPUs, through nothing but the driver's library.
//!
//! ```text
//! plan ──prepare──> per slot and bucket one graph:  upload ──> kernels, moves, fills ──> download
//! turn of 5 seats ── rows into the parameter block ──> the graph for 6 seats, launched once
//! ```
//!
//! - Nothing of CUDA is needed to build. At run time `libcuda` is looked for, symbol by symbol.
//! - A plan is a graph of explicit nodes with the edges that its hazards, and rows packed for contractions, need. What varies per turn, its seats and
//!   rows, is data in a block that the graph uploads with the inputs.
//! - Buckets size launches. A turn of fewer seats than its bucket has its first seat's inputs and row stand in for those
//!   that lack, so they fault only where that one does; they write no row.
//! - Kernels are compiled for this GPU out of the text that an image came from, every access checked.
//!
//! | file | holds |
//! | --- | --- |
//! | `device` | opening one, and what it answers |
//! | `plan` | a plan made ready: its graphs |
//! | `steps` | what a graph is made of, and after what |
//! | `states` | states that kernels read and write where they lie |
//! | `slot` | staging and graphs |
//! | `queue` | a turn: block, launch, end, faults |
//! | `moves` | copies, gathers, scatters and fills of strided runs, and what is carried to the host and back, as PTX |
//! | `contract` | contractions, as Loom, and what goes on with one in the same kernel |
//! | `matrices` | contractions of operands of 16 bits, for tensor cores, and what packs their rows |
//! | `writer` | what the texts of both have in common |
//! | `agree` | whether a GPU's two kinds of products have the same bits |
//! | `image` | kernels, compiled once |
//! | `binaries` | what the driver made of them, on disk |
//! | `weights` | constants that several plans share |
//! | `error` | what went wrong, as a `DeviceError` |
//! | `sys` | the driver's library: the only raw calls |
//!
//! Order, queueing, slots and handles are `lanes_core::device::flight`'s. Turns are of one stream: the next is launched while the
//! one before runs, and a watcher publishes their ends.
//!
//! What this API cannot do: run two turns of one device at the same time; take back a turn that was launched; go on after
//! an illegal address, in this process: the device is lost, and so is whatever else of the process uses it.

mod agree;
mod binaries;
mod contract;
mod device;
#[cfg(test)]
mod emulated;
mod error;
mod image;
#[cfg(feature = "instruments")]
pub mod instruments;
mod matrices;
mod moves;
mod plan;
mod queue;
mod slot;
mod states;
mod steps;
mod sys;
mod weights;
mod writer;

pub use device::{CudaDevice, CudaOptions, device_capabilities, device_count, devices};
pub use steps::outline;
