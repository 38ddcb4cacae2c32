//! Images in files: one folder, a file for each key.
//!
//! ```text
//! <key in hex>.image   magic 8 │ format u32 │ key 32 │ length u64 │ SHA-256 of all before and of the payload │ payload
//! .<key>.<process>.<n>.part    the same, not complete yet
//! ```
//!
//! - A file is written under a name of its own and then renamed: who reads sees a whole file or none, from any process.
//! - A file is an image if its header is right, its checksum too, and its payload decodes to an image that validates.
//!   Anything else is as if it was not there, and is replaced.
//! - The time of last change is that of last use.
//! - Not here: counting what happened (`cache`).

use super::cache::Key;
use loom_compiler::{CpuImage, MAX_IMAGE_BYTES};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const MAGIC: &[u8; 8] = b"LANESIMG";
/// Of the file around the payload; what the payload is depends on the compiler, which the key names.
const FORMAT: u32 = 1;
const CHECKSUM_AT: usize = 8 + 4 + 32 + 8;
const HEADER: usize = CHECKSUM_AT + 32;
const ENDING: &str = "image";
const PART_ENDING: &str = "part";
/// A file that is still not complete after so long was left behind by a process that is gone.
const ABANDONED: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    bytes_max: u64,
}

pub(super) enum Read {
    Image(Box<CpuImage>),
    /// No file.
    Missing,
    /// A file that is no image for its key, and what is wrong with it.
    Damaged(String),
}

impl Disk {
    pub fn new(folder: PathBuf, bytes_max: u64) -> Self {
        Self { folder, bytes_max }
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}.{ENDING}", hex(key)))
    }

    pub fn read(&self, key: &Key) -> Read {
        let path = self.path(key);
        let said = |why: &dyn std::fmt::Display| Read::Damaged(format!("{}: {why}", path.display()));
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Read::Missing,
            Err(error) => return said(&error),
            // Opening anything else might wait forever.
            Ok(found) if !found.is_file() => return said(&"not a file"),
            Ok(_) => {}
        }
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| {
            // However long it is.
            file.take((HEADER + MAX_IMAGE_BYTES) as u64 + 1).read_to_end(&mut bytes)
        });
        match read {
            Ok(_) => {}
            // Pruned since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Read::Missing,
            Err(error) => return said(&error),
        }
        let image = payload(key, &bytes).and_then(|payload| CpuImage::decode(payload).map_err(|why| why.to_string()));
        match image {
            Ok(image) => {
                // Only pruning reads this, and only to choose: a folder that is read-only is none to prune.
                let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
                Read::Image(Box::new(image))
            }
            Err(why) => said(&why),
        }
    }

    /// An image larger than the folder may be, or than can be read again, is not written, and that is no failure.
    pub fn write(&self, key: &Key, image: &CpuImage) -> Result<(), String> {
        let Ok(payload) = image.encode() else {
            return Ok(());
        };
        if (HEADER + payload.len()) as u64 > self.bytes_max {
            return Ok(());
        }
        static PARTS: AtomicU64 = AtomicU64::new(0);
        let part = PARTS.fetch_add(1, Ordering::Relaxed);
        let part = self.folder.join(format!(".{}.{}.{part}.{PART_ENDING}", hex(key), std::process::id()));
        let path = self.path(key);
        let written = make_folder(&self.folder).and_then(|()| {
            let mut file = File::options().write(true).create_new(true).open(&part)?;
            file.write_all(&header(key, &payload))?;
            file.write_all(&payload)?;
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
        let (mut images, mut total) = (Vec::new(), 0u64);
        for entry in entries.flatten() {
            let path = entry.path();
            // Other processes come and go: what vanished since is no matter. Links and folders are not ours.
            let Ok(found) = entry.metadata() else { continue };
            let Ok(used) = found.modified() else { continue };
            let ending = path.extension().and_then(|ending| ending.to_str());
            match ending.filter(|_| found.is_file() && is_ours(&path)) {
                Some(ENDING) => {
                    total += found.len();
                    images.push((used, path, found.len()));
                }
                Some(PART_ENDING) if used.elapsed().is_ok_and(|age| age > ABANDONED) => {
                    let _ = fs::remove_file(path);
                }
                _ => {}
            }
        }
        images.sort();
        let mut removed = 0;
        for (_, path, bytes) in images {
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
}

/// Whether the name is one of those that are written here: a digest, perhaps after a dot.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let digest = name.strip_prefix('.').unwrap_or(name).split('.').next().unwrap_or_default();
    digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hex(key: &Key) -> String {
    key.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn header(key: &Key, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER);
    bytes.extend(MAGIC);
    bytes.extend(FORMAT.to_le_bytes());
    bytes.extend(key.0);
    bytes.extend((payload.len() as u64).to_le_bytes());
    bytes.extend(checksum(&bytes, payload));
    bytes
}

fn checksum(header: &[u8], payload: &[u8]) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(header);
    digest.update(payload);
    digest.finalize().into()
}

/// What follows the header of a whole file for `key`.
fn payload<'a>(key: &Key, bytes: &'a [u8]) -> Result<&'a [u8], String> {
    let Some((found, payload)) = bytes.split_at_checked(HEADER) else {
        return Err(format!("{} bytes, less than a header of {HEADER}", bytes.len()));
    };
    let expected = header(key, payload);
    for (what, range) in [
        ("magic", 0..8),
        ("format", 8..12),
        ("key", 12..44),
        ("length", 44..CHECKSUM_AT),
        ("checksum", CHECKSUM_AT..HEADER),
    ] {
        if found[range.clone()] != expected[range] {
            return Err(format!("its {what} is not that of an image for this key"));
        }
    }
    Ok(payload)
}
