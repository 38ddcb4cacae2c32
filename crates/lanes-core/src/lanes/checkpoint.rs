//! Rows that are kept to go back to.
//!
//! `Stream::checkpoint --share--> a place of Kept, its row --Stream::rollback--> the lane points there again`
//!
//! - A place is free, or has one `Checkpoint`, whose clones share it, and holds one row.
//! - Dropping the last clone sets the place's flag, which neither fails nor waits; whoever holds the baton collects it.
//! - Not here: how a checkpoint is asked for (`stream`), and when it is served (`operation`).

use super::model::RowId;
use super::rows::Rows;
use super::worker::Shared;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A state of a stream, kept to go back to. Clones are the same checkpoint; the last one dropped lets it go, which
/// neither fails nor waits. It outlives the stream it was taken of, and any stream of its runnable may go back to it.
#[derive(Clone)]
pub struct Checkpoint(Arc<Place>);

struct Place {
    shared: Arc<Shared>,
    at: u32,
    position: u64,
}

impl Checkpoint {
    pub(super) fn new(shared: &Arc<Shared>, at: u32, position: u64) -> Self {
        Self(Arc::new(Place { shared: Arc::clone(shared), at, position }))
    }

    /// The position of its stream when it was taken, which a stream that goes back to it has too.
    pub fn position(&self) -> u64 {
        self.0.position
    }

    /// Its place, below the number of checkpoints.
    pub(super) fn at(&self) -> u32 {
        self.0.at
    }

    pub(super) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.0.shared, shared)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.let_go.set(self.at);
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint").field("position", &self.position()).finish_non_exhaustive()
    }
}

/// Flags of places whose last checkpoint is gone.
pub(super) struct LetGo {
    flags: Box<[AtomicBool]>,
    any: AtomicBool,
}

impl LetGo {
    pub fn new(checkpoints: u32) -> Self {
        Self { flags: (0..checkpoints).map(|_| AtomicBool::new(false)).collect(), any: AtomicBool::new(false) }
    }

    fn set(&self, at: u32) {
        self.flags[at as usize].store(true, Ordering::Release);
        self.any.store(true, Ordering::Release);
    }
}

/// The rows that checkpoints hold.
pub(super) struct Kept {
    rows: Vec<Option<RowId>>,
    free: Vec<u32>,
}

impl Kept {
    pub fn new(checkpoints: u32) -> Self {
        Self { rows: vec![None; checkpoints as usize], free: (0..checkpoints).rev().collect() }
    }

    /// Keeps `row`, which its caller has shared for it; `None` when every place is taken.
    pub fn keep(&mut self, row: RowId) -> Option<u32> {
        let at = self.free.pop()?;
        self.rows[at as usize] = Some(row);
        Some(at)
    }

    /// The row kept at `at`, for as long as its checkpoint lives.
    pub fn row(&self, at: u32) -> RowId {
        self.rows[at as usize].expect("a checkpoint holds its place")
    }

    /// Frees what was let go.
    pub fn collect(&mut self, let_go: &LetGo, rows: &mut Rows) {
        if !let_go.any.swap(false, Ordering::AcqRel) {
            return;
        }
        for (at, flag) in let_go.flags.iter().enumerate() {
            if flag.swap(false, Ordering::AcqRel)
                && let Some(row) = self.rows[at].take()
            {
                rows.free(row);
                self.free.push(at as u32);
            }
        }
    }
}
