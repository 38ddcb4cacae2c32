//! What is done to a lane between turns: fork, checkpoint, rollback, snapshot, and the restore of a new stream.
//!
//! ```text
//! lane2 -> row5 --fork--> lane3 -> row5 --a turn of lane3--> lane3 -> row9
//!               --checkpoint--> kept: row5 --rollback--> any lane -> row5
//!               --snapshot--> bytes --restore--> any lane of any process, its own row
//! ```
//!
//! - An operation is served when every earlier call of its stream has been, and before every later one.
//! - Nothing is copied but by snapshot and restore: a fork, a checkpoint and a rollback point at a row that is there.
//! - One that fails has changed nothing.
//! - Not here: the order of operations and calls (`queue`), what a snapshot looks like (`snapshot`).

use super::checkpoint::Checkpoint;
use super::error::{Closed, StreamError};
use super::job::{Job, JobBox};
use super::model::RowId;
use super::snapshot::{Sealed, SnapshotError, encode};
use super::stream::Stream;
use super::table::Lease;
use super::turn::{Engine, panicked};
use super::worker::Shared;
use crate::device::DeviceError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One operation, and what came of it.
pub(super) enum Op {
    Fork { count: u32, streams: Vec<Stream> },
    Checkpoint(Option<Checkpoint>),
    Rollback(Checkpoint),
    Snapshot(Vec<u8>),
}

impl Engine {
    /// Does what `job` asks for, and gives it back answered.
    pub fn operate(&mut self, shared: &Arc<Shared>, mut job: JobBox) -> JobBox {
        let Some(mut op) = job.op.take() else { return job };
        job.result = self.contained(shared, |engine| engine.perform(shared, &job, &mut op));
        job.step = job.steps;
        job.op = Some(op);
        job
    }

    /// Leases a lane that goes on from `snapshot`, at the position that comes with it.
    pub fn restore(&mut self, shared: &Arc<Shared>, snapshot: &Sealed) -> Result<(Lease, u64), StreamError> {
        self.contained(shared, |engine| {
            let identity = engine.model().identity().map_err(SnapshotError::from)?;
            let opened = snapshot.open(&shared.info.signature, &identity)?;
            // A lane whose last holder has a seat in flight still has the row that it reads: there is none for it yet.
            let is_busy = |lane| engine.flight.lanes().any(|busy| busy == lane);
            let lease = engine.table.lease_idle(is_busy);
            let lease = lease.ok_or(StreamError::Full { asked: 1, free: 0, lanes: engine.knobs.lanes })?;
            let row = engine.rows.take();
            let mut write = || opened.rows().try_for_each(|(state, bytes)| engine.model().write_row(state, row, bytes));
            if let Err(error) = write() {
                engine.rows.free(row);
                engine.release(lease);
                return Err(SnapshotError::from(error).into());
            }
            engine.table.point(lease, row, 0);
            Ok((lease, opened.position()))
        })
    }

    fn perform(&mut self, shared: &Arc<Shared>, job: &Job, op: &mut Op) -> Result<(), StreamError> {
        let (lease, epoch) = (job.cell.lease, job.epoch);
        let row = self.table.row(lease, epoch).map_err(|_| StreamError::Stale { lane: lease.lane })?;
        let position = job.cell.position_at(epoch);
        match op {
            Op::Fork { count, streams } => self.fork(shared, (row, position), *count, streams)?,
            Op::Checkpoint(taken) => {
                self.kept.collect(&shared.let_go, &mut self.rows);
                let none = StreamError::NoCheckpoint { checkpoints: self.knobs.checkpoints };
                let at = self.kept.keep(row).ok_or(none)?;
                self.rows.share(row);
                *taken = Some(Checkpoint::new(shared, at, position));
            }
            Op::Rollback(checkpoint) => {
                let kept = self.kept.row(checkpoint.at());
                self.rows.share(kept);
                if let Some(left) = self.table.point(lease, kept, epoch) {
                    self.rows.free(left);
                }
                job.cell.go_back(checkpoint.position(), epoch);
            }
            Op::Snapshot(bytes) => {
                let model = self.model();
                let identity = model.identity().map_err(SnapshotError::from)?;
                let read = |state: usize, into: &mut [u8]| model.read_row(state, row, into);
                *bytes = encode(&shared.info.signature, &identity, position, read)?;
            }
        }
        Ok(())
    }

    /// Adds `count` streams that go on from a row and a position, or none.
    fn fork(
        &mut self,
        shared: &Arc<Shared>,
        (row, position): (RowId, u64),
        count: u32,
        streams: &mut Vec<Stream>,
    ) -> Result<(), StreamError> {
        self.collect_released(shared);
        if count as usize > self.table.free_count() {
            return Err(self.full(count));
        }
        streams.reserve_exact(count as usize);
        for _ in 0..count {
            let lease = self.table.lease().expect("the free lanes were counted");
            self.rows.share(row);
            self.table.point(lease, row, 0);
            streams.push(Stream::new(shared, lease, position));
        }
        Ok(())
    }

    /// What one is told who asked for `asked` lanes.
    pub fn full(&self, asked: u32) -> StreamError {
        StreamError::Full { asked, free: self.table.free_count() as u32, lanes: self.knobs.lanes }
    }

    /// `work`, and the end of everything if the model panics in it or its device is lost.
    fn contained<T>(
        &mut self,
        shared: &Arc<Shared>,
        work: impl FnOnce(&mut Self) -> Result<T, StreamError>,
    ) -> Result<T, StreamError> {
        let cause = match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(Err(StreamError::Snapshot(SnapshotError::Device(error)))) if matches!(*error, DeviceError::Lost(_)) => {
                Closed::Lost(error)
            }
            Ok(result) => return result,
            Err(panic) => panicked(&*panic),
        };
        let cause = Arc::new(cause);
        self.close(shared, &cause);
        Err(StreamError::Closed(cause))
    }
}
