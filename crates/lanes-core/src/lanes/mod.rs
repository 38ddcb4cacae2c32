//! Streams, leases, the queue and the turns that serve them.
//!
//! ```text
//! Runnable --spawn--> Stream --call--> queue --worker--> turn over rows --> Outputs
//!                     Reaper --submit many--^                      \--> reap what is ready
//! ```
//!
//! - A stream's answers are those of its own calls in order, whoever shares its turns.
//! - Whoever holds the baton owns lanes, rows and model: the worker, or for one turn a blocking caller who is alone.
//! - Every queue is bounded, a call allocates nothing once its stream has made some, and dropping a handle never waits.
//! - `table`, `rows`, `queue`, `job`, `flight`, `checkpoint`, `snapshot` each keep one invariant; `turn` and `operation`
//!   tie them; `worker` gives it a thread; `stream`, `reaper`, `runnable` and `staged` are what a caller sees.
//! - Not here: what a model is made of; policies for a full table; deadlines.

mod checkpoint;
mod error;
mod flight;
mod job;
mod knobs;
mod model;
mod operation;
mod queue;
mod reaper;
mod rows;
mod runnable;
mod snapshot;
mod staged;
mod stats;
mod stream;
pub(crate) mod sync;
mod table;
#[cfg(test)]
mod tests;
mod turn;
mod value;
mod worker;

pub use checkpoint::Checkpoint;
pub use error::{BuildError, Closed, InputError, StreamError};
pub use model::{Capacity, Identity, LanedModel, Refusal, RowId, SeatRows};
pub use reaper::{Reaped, Reaper};
pub use runnable::{LanesBuilder, Runnable};
pub use snapshot::{SNAPSHOT_BYTES_MAX, SnapshotError};
pub use staged::{Staged, StagedCheckpoint, StagedOperation, StagedStream};
pub use stats::Stats;
pub use stream::{Call, CallInto, CallMany, Operation, Spawn, Stream};
pub use table::LaneId;
pub use value::{Element, Outputs, Value};
