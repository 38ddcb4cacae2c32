//! Images that were compiled before.
//!
//! - A key is a digest of all that an image depends on. Nothing is ever looked up by less.
//! - A key is kept, or in flight, or neither; a flight lands exactly once, and whoever waits for it gets what landed.
//! - Only images are kept. A failure is reported and forgotten, so that the same kernel may be tried again.
//! - Not here: files (`disk`), and threads (`batch`).

use super::disk::{FileKind, Files, Found};
use super::{KernelSource, Target};
use crate::device::DeviceError;
use loom_compiler::{CpuImage, MAX_IMAGE_BYTES};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// SHA-256 of everything that an image depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(pub [u8; 32]);

impl Key {
    pub fn of(source: &KernelSource, target: &Target, version: &str) -> Self {
        let mut digest = Sha256::new();
        // Lengths first: no two lists of parts run together to the same bytes.
        let mut part = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        part(b"lanes kernel");
        part(version.as_bytes());
        part(target.name.as_bytes());
        part(target.driver.as_bytes());
        part(source.symbol.as_bytes());
        part(&(source.config.len() as u64).to_le_bytes());
        for (name, value) in &source.config {
            part(name.as_bytes());
            part(value.as_bytes());
        }
        part(source.text.as_bytes());
        Self(digest.finalize().into())
    }
}

/// How much is kept, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// The most images kept in memory; those used longest ago are dropped first.
    pub images_max: usize,
    /// Where images are kept on disk; `None` keeps none there. Made when the first image is written, for its owner only.
    /// Whoever may write to the folder decides what its kernels compute, but not what memory they touch: an image from
    /// disk is validated before it is used.
    pub folder: Option<PathBuf>,
    /// The most bytes of files in the folder; those used longest ago are removed first.
    pub folder_bytes_max: u64,
}

impl Default for CacheOptions {
    /// 4,096 images in memory, none on disk; 256 MiB, where a folder is named.
    fn default() -> Self {
        Self { images_max: 4096, folder: None, folder_bytes_max: 256 << 20 }
    }
}

const IMAGES: FileKind = FileKind { magic: *b"LANESIMG", ending: "image", payload_max: MAX_IMAGE_BYTES };

/// What a cache did. Each kernel asked for is a memory hit, a disk hit or a miss; each miss was compiled, or failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Kernels compiled, without failures.
    pub compiled: u64,
    /// Kernels that were in memory, on their way already, or asked for twice in one batch.
    pub memory_hits: u64,
    /// Kernels read from disk.
    pub disk_hits: u64,
    /// Kernels that were nowhere.
    pub misses: u64,
    /// Files that could not be read, or were no image for their key: cut off, altered, of another format. The kernel was
    /// compiled, and the file replaced.
    pub damaged: u64,
    /// Images that could not be written to disk; they are in memory all the same.
    pub write_failures: u64,
    /// Files removed because the folder was over its size.
    pub pruned: u64,
    /// What last went wrong with a file, in words.
    pub note: Option<String>,
}

/// Images by what they were made from, shared by all who compile. Cheap to look up, and never the reason why a compile fails.
#[derive(Debug)]
pub struct KernelCache {
    images_max: usize,
    disk: Option<Files>,
    memo: Mutex<Memo>,
    counts: Counts,
    note: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct Memo {
    kept: BTreeMap<Key, Kept>,
    flying: BTreeMap<Key, Arc<Flight>>,
    /// Counts uses, to tell which was the last.
    clock: u64,
}

#[derive(Debug)]
struct Kept {
    image: Arc<CpuImage>,
    used: u64,
}

#[derive(Debug, Default)]
struct Counts {
    compiled: AtomicU64,
    memory_hits: AtomicU64,
    disk_hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    write_failures: AtomicU64,
    pruned: AtomicU64,
    /// Files written since the folder was last pruned.
    unpruned: AtomicU64,
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// What waits for a kernel that somebody makes.
#[derive(Debug, Default)]
pub(super) struct Flight {
    landed: Mutex<Option<Result<Arc<CpuImage>, DeviceError>>>,
    changed: Condvar,
}

impl Flight {
    pub fn wait(&self) -> Result<Arc<CpuImage>, DeviceError> {
        let mut landed = lock(&self.landed);
        loop {
            if let Some(result) = &*landed {
                return result.clone();
            }
            landed = self.changed.wait(landed).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Nothing below panics while it holds a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) enum Lookup {
    Kept(Arc<CpuImage>),
    /// Somebody else makes it.
    Flying(Arc<Flight>),
    /// The caller must land it.
    Own(Arc<Flight>),
}

impl Default for KernelCache {
    fn default() -> Self {
        Self::in_memory()
    }
}

impl KernelCache {
    /// A cache with nothing in memory yet.
    pub fn new(options: CacheOptions) -> Self {
        let CacheOptions { images_max, folder, folder_bytes_max } = options;
        Self {
            images_max,
            disk: folder.map(|folder| Files::new(IMAGES, folder, folder_bytes_max)),
            memo: Mutex::default(),
            counts: Counts::default(),
            note: Mutex::default(),
        }
    }

    /// In memory only, as it is unless a folder is named.
    pub fn in_memory() -> Self {
        Self::new(CacheOptions::default())
    }

    /// On disk too, in `folder`, with the default sizes.
    pub fn on_disk(folder: impl Into<PathBuf>) -> Self {
        Self::new(CacheOptions { folder: Some(folder.into()), ..CacheOptions::default() })
    }

    /// On disk too if the environment names a folder in `LANES_CACHE_DIR`, and it is not empty.
    pub fn from_env() -> Self {
        let folder = std::env::var_os("LANES_CACHE_DIR").filter(|folder| !folder.is_empty());
        Self::new(CacheOptions { folder: folder.map(PathBuf::from), ..CacheOptions::default() })
    }

    /// What it did so far.
    pub fn stats(&self) -> CacheStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CacheStats {
            compiled: read(&self.counts.compiled),
            memory_hits: read(&self.counts.memory_hits),
            disk_hits: read(&self.counts.disk_hits),
            misses: read(&self.counts.misses),
            damaged: read(&self.counts.damaged),
            write_failures: read(&self.counts.write_failures),
            pruned: read(&self.counts.pruned),
            note: lock(&self.note).clone(),
        }
    }

    /// Forgets the images in memory. Files stay.
    pub fn clear(&self) {
        lock(&self.memo).kept.clear();
    }

    /// Where each key is; `asked` counts repetitions, too.
    pub(super) fn look_up(&self, keys: impl ExactSizeIterator<Item = Key>, asked: usize) -> Vec<(Key, Lookup)> {
        let mut memo = lock(&self.memo);
        let memo = &mut *memo;
        let mut own = 0;
        let found = keys
            .map(|key| {
                memo.clock += 1;
                if let Some(kept) = memo.kept.get_mut(&key) {
                    kept.used = memo.clock;
                    return (key, Lookup::Kept(Arc::clone(&kept.image)));
                }
                if let Some(flight) = memo.flying.get(&key) {
                    return (key, Lookup::Flying(Arc::clone(flight)));
                }
                own += 1;
                let flight = Arc::<Flight>::default();
                memo.flying.insert(key, Arc::clone(&flight));
                (key, Lookup::Own(flight))
            })
            .collect();
        add(&self.counts.memory_hits, asked as u64 - own);
        found
    }

    /// The image from disk.
    pub(super) fn read(&self, key: &Key) -> Option<Arc<CpuImage>> {
        let decode = |payload: &[u8]| CpuImage::decode(payload).map_err(|why| why.to_string());
        let read = self.disk.as_ref().map_or(Found::Missing, |disk| disk.read(&key.0, decode));
        match read {
            Found::Whole(image) => {
                add(&self.counts.disk_hits, 1);
                return Some(Arc::new(image));
            }
            Found::Missing => {}
            Found::Damaged(why) => {
                add(&self.counts.damaged, 1);
                *lock(&self.note) = Some(why);
            }
        }
        add(&self.counts.misses, 1);
        None
    }

    /// Ends a flight of [`Self::look_up`] with what came of it; an image is kept.
    pub(super) fn land(&self, key: &Key, flight: &Flight, result: Result<Arc<CpuImage>, DeviceError>) {
        let image = result.as_ref().ok().cloned();
        {
            let mut memo = lock(&self.memo);
            memo.flying.remove(key);
            if let Some(image) = &image {
                memo.clock += 1;
                let used = memo.clock;
                memo.kept.insert(*key, Kept { image: Arc::clone(image), used });
                while memo.kept.len() > self.images_max {
                    let oldest = memo.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key);
                    oldest.map(|key| memo.kept.remove(&key));
                }
            }
        }
        *lock(&flight.landed) = Some(result);
        flight.changed.notify_all();
    }

    /// Counts an image that was just compiled, and puts it on disk.
    pub(super) fn write(&self, key: &Key, image: &CpuImage) {
        add(&self.counts.compiled, 1);
        let Some(disk) = &self.disk else {
            return;
        };
        // One too long to be written is in memory all the same.
        let Ok(payload) = image.encode() else {
            return;
        };
        match disk.write(&key.0, &payload) {
            Ok(()) => add(&self.counts.unpruned, 1),
            Err(why) => {
                add(&self.counts.write_failures, 1);
                *lock(&self.note) = Some(why);
            }
        }
    }

    /// Brings the folder back to its size, if anything was written since it last was.
    pub(super) fn settle(&self) {
        let Some(disk) = &self.disk else {
            return;
        };
        if self.counts.unpruned.swap(0, Ordering::Relaxed) > 0 {
            let (removed, note) = disk.prune();
            add(&self.counts.pruned, removed);
            if note.is_some() {
                *lock(&self.note) = note;
            }
        }
    }
}
