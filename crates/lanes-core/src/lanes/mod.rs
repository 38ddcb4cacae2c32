//! Streams, leases, the queue and the turns that serve them.

mod model;

pub use model::{Capacity, LanedModel, Refusal, RowId, SeatRows};
