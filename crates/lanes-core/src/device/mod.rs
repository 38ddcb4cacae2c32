//! What every backend implements, and the handles it gives out.
//!
//! `Plan --prepare--> Executable --submit(slot)--> Completion`
//!
//! A device describes resources, code, plans and time, never single launches: an eager launch is a plan of one
//! command. After `prepare` nothing allocates.

mod error;

pub use error::DeviceError;
