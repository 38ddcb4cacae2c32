//! What was compiled, in files: one folder, a file for each key.
//!
//! ```text
//! <key in hex>.<ending>   magic 8 │ format u32 │ key 32 │ length u64 │ SHA-256 of all before and of the payload │ payload
//! .<key>.<process>.<n>.part    the same, not complete yet
//! ```
//!
//! - A file is written under a name of its own and then renamed: who reads sees a whole file or none, from any process.
//! - A file is good if its header is right, its checksum too, and its payload decodes. Anything else is as if it was not there,
//!   and is replaced.
//! - The time of last change is that of last use.
//! - Kinds that differ in their ending lie in one folder, and each is pruned by itself.
//! - Not here: what a payload is, and counting what happened (`cache`).

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Of the file around the payload; what the payload is depends on the compiler, which the key names.
const FORMAT: u32 = 1;
const CHECKSUM_AT: usize = 8 + 4 + 32 + 8;
const HEADER: usize = CHECKSUM_AT + 32;
const PART_ENDING: &str = "part";
/// A file that is still not complete after so long was left behind by a process that is gone.
const ABANDONED: Duration = Duration::from_secs(3600);

/// What tells the files of one kind from those of another.
#[derive(Clone, Copy, Debug)]
pub struct FileKind {
    /// The first bytes of each.
    pub magic: [u8; 8],
    /// The ending of their names.
    pub ending: &'static str,
    /// The longest payload that is read, in bytes.
    pub payload_max: usize,
}

/// Files of one kind in a folder, by a digest of what they were made from. Made for its owner only when the first is written;
/// any number of processes may share it.
#[derive(Debug)]
pub struct Files {
    kind: FileKind,
    folder: PathBuf,
    bytes_max: u64,
}

/// A digest that says what a file was made from.
pub type FileKey = [u8; 32];

/// What came of looking for a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<T> {
    /// What its payload is.
    Whole(T),
    /// No file.
    Missing,
    /// A file that is none for its key, and what is wrong with it.
    Damaged(String),
}

impl Files {
    /// Files in `folder`, which [`prune`](Self::prune) brings back to `bytes_max`.
    pub fn new(kind: FileKind, folder: PathBuf, bytes_max: u64) -> Self {
        Self { kind, folder, bytes_max }
    }

    fn path(&self, key: &FileKey) -> PathBuf {
        self.folder.join(format!("{}.{}", hex(key), self.kind.ending))
    }

    /// What `decode` makes of the payload of the file of `key`.
    pub fn read<T>(&self, key: &FileKey, decode: impl FnOnce(&[u8]) -> Result<T, String>) -> Found<T> {
        let path = self.path(key);
        let said = |why: &dyn std::fmt::Display| Found::Damaged(format!("{}: {why}", path.display()));
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Missing,
            Err(error) => return said(&error),
            // Opening anything else might wait forever.
            Ok(found) if !found.is_file() => return said(&"not a file"),
            Ok(_) => {}
        }
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| {
            // However long it is.
            file.take((HEADER + self.kind.payload_max) as u64 + 1).read_to_end(&mut bytes)
        });
        match read {
            Ok(_) => {}
            // Pruned since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Missing,
            Err(error) => return said(&error),
        }
        match self.payload(key, &bytes).and_then(decode) {
            Ok(whole) => {
                // Only pruning reads this, and only to choose: a folder that is read-only is none to prune.
                let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
                Found::Whole(whole)
            }
            Err(why) => said(&why),
        }
    }

    /// Writes the file of `key`, or says why it cannot be. A payload larger than the folder may be, or than is read again, is not
    /// written, and that is no failure.
    pub fn write(&self, key: &FileKey, payload: &[u8]) -> Result<(), String> {
        if payload.len() > self.kind.payload_max || (HEADER + payload.len()) as u64 > self.bytes_max {
            return Ok(());
        }
        static PARTS: AtomicU64 = AtomicU64::new(0);
        let part = PARTS.fetch_add(1, Ordering::Relaxed);
        let part = self.folder.join(format!(".{}.{}.{part}.{PART_ENDING}", hex(key), std::process::id()));
        let path = self.path(key);
        let written = make_folder(&self.folder).and_then(|()| {
            let mut file = File::options().write(true).create_new(true).open(&part)?;
            file.write_all(&self.header(key, payload))?;
            file.write_all(payload)?;
            drop(file);
            fs::rename(&part, &path)
        });
        written.map_err(|error| {
            // Whatever of it is there is of no use to anybody.
            let _ = fs::remove_file(&part);
            format!("{}: {error}", path.display())
        })
    }

    /// Removes files used longest ago until the rest is within bounds: how many, and what went wrong.
    pub fn prune(&self) -> (u64, Option<String>) {
        let mut note = None;
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) => return (0, Some(format!("{}: {error}", self.folder.display()))),
        };
        let (mut whole, mut total) = (Vec::new(), 0u64);
        for entry in entries.flatten() {
            let path = entry.path();
            // Other processes come and go: what vanished since is no matter. Links and folders are not ours.
            let Ok(found) = entry.metadata() else { continue };
            let Ok(used) = found.modified() else { continue };
            let ending = path.extension().and_then(|ending| ending.to_str());
            match ending.filter(|_| found.is_file() && is_ours(&path)) {
                Some(ending) if ending == self.kind.ending => {
                    total += found.len();
                    whole.push((used, path, found.len()));
                }
                Some(PART_ENDING) if used.elapsed().is_ok_and(|age| age > ABANDONED) => {
                    let _ = fs::remove_file(path);
                }
                _ => {}
            }
        }
        whole.sort();
        let mut removed = 0;
        for (_, path, bytes) in whole {
            if total <= self.bytes_max {
                break;
            }
            match fs::remove_file(&path) {
                Ok(()) => removed += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    note = Some(format!("{}: {error}", path.display()));
                    continue;
                }
            }
            total -= bytes;
        }
        (removed, note)
    }

    fn header(&self, key: &FileKey, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(self.kind.magic);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(key);
        bytes.extend((payload.len() as u64).to_le_bytes());
        bytes.extend(checksum(&bytes, payload));
        bytes
    }

    /// What follows the header of a whole file for `key`.
    fn payload<'a>(&self, key: &FileKey, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let Some((found, payload)) = bytes.split_at_checked(HEADER) else {
            return Err(format!("{} bytes, less than a header of {HEADER}", bytes.len()));
        };
        let expected = self.header(key, payload);
        for (what, range) in [
            ("magic", 0..8),
            ("format", 8..12),
            ("key", 12..44),
            ("length", 44..CHECKSUM_AT),
            ("checksum", CHECKSUM_AT..HEADER),
        ] {
            if found[range.clone()] != expected[range] {
                return Err(format!("its {what} is not that of an {} for this key", self.kind.ending));
            }
        }
        Ok(payload)
    }
}

/// Whether the name is one of those that are written here: a digest, perhaps after a dot.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let digest = name.strip_prefix('.').unwrap_or(name).split('.').next().unwrap_or_default();
    digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hex(key: &FileKey) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn checksum(header: &[u8], payload: &[u8]) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(header);
    digest.update(payload);
    digest.finalize().into()
}
