//! The CPU backend.
//!
//! - [`contract`]: matrix products, convolutions and the products of recurrent cells, in place, from packed weights.
//! - [`isa`]: which vector instructions are used, chosen at run time.
//! - [`tile`]: runs kernels, one loop over a tile of work-items per op.

pub mod contract;
pub mod isa;
pub mod tile;
