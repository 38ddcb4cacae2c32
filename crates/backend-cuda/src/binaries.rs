//! What the driver made of texts, on disk.
//!
//! ```text
//! text, GPU, driver ──SHA-256──> file ── whole ──> loaded
//!                                  └─ none, damaged, refused ──> driver compiles ──> loaded, written
//! ```
//!
//! - Nothing that goes wrong with a file fails a kernel: it is compiled then, and a folder that takes no file is one that has none.
//! - Files are whole or not there, however many processes write them (`lanes_core::compile::Files`).
//! - A file is trusted as its folder is, which is made for its owner only: a checksum shows damage, and nothing else.

use crate::sys::{Context, Module};
use lanes_core::compile::{FileKey, FileKind, Files, Found};
use lanes_core::device::DeviceError;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

const BINARIES: FileKind = FileKind { magic: *b"LANESBIN", ending: "cubin", payload_max: 64 << 20 };

/// What the folder is brought back to, in bytes.
const FOLDER_MAX: u64 = 256 << 20;

/// The first bytes of every binary that a driver gives: it is an ELF file.
const ELF: &[u8] = b"\x7fELF";

/// The binaries of one GPU and driver.
pub(crate) struct Binaries {
    files: Files,
    /// What all of them depend on, beside their texts.
    made_by: String,
}

/// Where binaries are kept if nobody says: the folder that `LANES_CACHE_DIR` names (none at all if it is set and empty), else
/// `lanes` in the user's folder of caches (XDG base directory specification 0.8), where there is one.
fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(named) = variable("LANES_CACHE_DIR") {
        return Some(PathBuf::from(named)).filter(|named| !named.as_os_str().is_empty());
    }
    // One that is not absolute is as if it were not set, says the specification.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    let caches = caches.or_else(|| absolute("LOCALAPPDATA"));
    caches.map(|caches| caches.join("lanes"))
}

/// Which build of the driver there is, where the system says: the interface tells its version of CUDA alone.
fn build() -> String {
    let said = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    said.lines().next().unwrap_or_default().to_owned()
}

impl Binaries {
    /// Those for the GPU `target`, made by the driver for CUDA `driver`; `None` if there is no folder for them.
    pub fn of(target: &str, driver: u32) -> Option<Self> {
        let folder = folder(|name| std::env::var_os(name))?;
        Some(Self::within(folder, format!("{target}\n{driver}\n{}", build())))
    }

    fn within(folder: PathBuf, made_by: String) -> Self {
        Self { files: Files::new(BINARIES, folder, FOLDER_MAX), made_by }
    }

    fn key(&self, text: &str) -> FileKey {
        let mut digest = Sha256::new();
        // Its length first: no two pairs run together to the same bytes.
        digest.update((self.made_by.len() as u64).to_le_bytes());
        digest.update(&self.made_by);
        digest.update(text);
        digest.finalize().into()
    }

    /// What `load` makes of the binary of `text`, of the one on disk or else of the one that `compile` makes; that is written there if it
    /// was loaded. `None` if no binary is made, or none is taken.
    fn loaded<M, E>(
        &self,
        text: &str,
        compile: impl FnOnce() -> Result<Option<Vec<u8>>, E>,
        load: impl Fn(&[u8]) -> Result<Option<M>, E>,
    ) -> Result<Option<M>, E> {
        let key = self.key(text);
        let is_one = |bytes: &[u8]| if bytes.starts_with(ELF) { Ok(bytes.to_vec()) } else { Err("no ELF file".into()) };
        if let Found::Whole(binary) = self.files.read(&key, is_one)
            && let Some(module) = load(&binary)?
        {
            return Ok(Some(module));
        }
        let Some(binary) = compile()? else { return Ok(None) };
        let module = load(&binary)?;
        // Where it cannot be written the next process compiles it again.
        if module.is_some() && binary.starts_with(ELF) && self.files.write(&key, &binary).is_ok() {
            self.files.prune();
        }
        Ok(module)
    }

    /// The module of `text`, compiled now or before.
    pub fn module(&self, context: &Arc<Context>, kernel: &str, text: &str) -> Result<Module, DeviceError> {
        let compile = || match context.binary(kernel, text) {
            Ok(binary) => Ok(Some(binary)),
            // It is the text that is wrong, and this says where; or nothing can be done now.
            Err(error @ (DeviceError::Build { .. } | DeviceError::Lost(_) | DeviceError::OutOfMemory { .. })) => {
                Err(error)
            }
            Err(_) => Ok(None),
        };
        // SAFETY: the driver just made it, or its checksum was right.
        let load = |binary: &[u8]| match unsafe { context.module_of(kernel, binary) } {
            Ok(module) => Ok(Some(module)),
            Err(error @ (DeviceError::Lost(_) | DeviceError::OutOfMemory { .. })) => Err(error),
            Err(_) => Ok(None),
        };
        // A driver that makes no binaries, or does not take its own, compiles the text as it loads it.
        self.loaded(text, compile, load)?.map_or_else(|| context.module(kernel, text), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::fs;

    fn made(of: &str) -> Vec<u8> {
        [ELF, of.as_bytes()].concat()
    }

    /// What `binaries` gives for `text`, and whether it compiled.
    fn asked(binaries: &Binaries, text: &str) -> (Vec<u8>, bool) {
        let mut compiled = false;
        let compile = || {
            compiled = true;
            Ok::<_, Infallible>(Some(made(text)))
        };
        let Ok(Some(binary)) = binaries.loaded(text, compile, |binary| Ok(Some(binary.to_vec()))) else {
            panic!("what is made is taken")
        };
        (binary, compiled)
    }

    #[test]
    fn a_binary_is_made_once_for_a_text_a_gpu_and_a_driver() {
        let home = tempfile::tempdir().expect("there is room");
        let of = |made_by: &str| Binaries::within(home.path().join("deep/down"), made_by.into());
        assert_eq!(asked(&of("sm_90 12080"), "text"), (made("text"), true));
        assert_eq!(asked(&of("sm_90 12080"), "text"), (made("text"), false));
        assert_eq!(asked(&of("sm_90 12080"), "texts"), (made("texts"), true));
        assert_eq!(asked(&of("sm_90 13000"), "text"), (made("text"), true));
        assert_eq!(asked(&of("sm_80 12080"), "text"), (made("text"), true));
        // Where one ends and the other begins is part of it.
        assert_eq!(asked(&of("sm_80 12080t"), "ext"), (made("ext"), true));
    }

    #[test]
    fn a_file_that_is_cut_off_or_altered_is_made_again() {
        let home = tempfile::tempdir().expect("there is room");
        let binaries = Binaries::within(home.path().into(), "sm_90".into());
        assert!(asked(&binaries, "text").1);
        let mut files = fs::read_dir(home.path()).expect("it was made");
        let file = files.next().expect("one was written").expect("it is read").path();
        assert!(files.next().is_none(), "no part is left behind");
        let whole = fs::read(&file).expect("it is whole");
        for at in [0, 9, 20, 50, 60, whole.len() - 1] {
            let mut altered = whole.clone();
            altered[at] ^= 1;
            for bytes in [&altered[..], &whole[..at]] {
                fs::write(&file, bytes).expect("it is ours");
                assert_eq!(asked(&binaries, "text"), (made("text"), true), "byte {at}");
                assert_eq!(fs::read(&file).expect("it is back"), whole);
            }
        }
        assert!(!asked(&binaries, "text").1);
    }

    #[test]
    fn a_folder_that_takes_no_file_is_one_that_has_none() {
        let home = tempfile::tempdir().expect("there is room");
        let file = home.path().join("file");
        fs::write(&file, "not a folder").expect("there is room");
        for folder in [file.clone(), file.join("below"), "/proc/no/such".into()] {
            let binaries = Binaries::within(folder, "sm_90".into());
            for _ in 0..2 {
                assert_eq!(asked(&binaries, "text"), (made("text"), true));
            }
        }
        // A device without room: every write to it fails so.
        if cfg!(target_os = "linux") {
            let full = home.path().join("full");
            fs::create_dir(&full).expect("there is room");
            let binaries = Binaries::within(full.clone(), "sm_90".into());
            let name: String = binaries.key("text").iter().map(|byte| format!("{byte:02x}")).collect();
            fs::create_dir(full.join(format!("{name}.cubin"))).expect("a folder in the file's place");
            assert_eq!(asked(&binaries, "text"), (made("text"), true));
            assert_eq!(fs::read_dir(&full).expect("it is there").count(), 1, "nothing is left of what was not written");
        }
        // What does not compile is not written, nor is what is no binary, or is not taken.
        let binaries = Binaries::within(home.path().join("none"), "sm_90".into());
        let take = |binary: &[u8]| Ok(Some(binary.to_vec()));
        assert_eq!(binaries.loaded("text", || Err("bad text"), take), Err("bad text"));
        assert_eq!(binaries.loaded("text", || Ok(None), take), Ok::<_, &str>(None));
        assert_eq!(binaries.loaded("text", || Ok(Some(b"text".to_vec())), take), Ok::<_, &str>(Some(b"text".to_vec())));
        assert_eq!(binaries.loaded("text", || Ok(Some(made("text"))), |_| Ok::<Option<()>, &str>(None)), Ok(None));
        assert_eq!(binaries.loaded("text", || Ok(Some(made("text"))), |_| Err::<Option<()>, _>("lost")), Err("lost"));
        assert!(!home.path().join("none").exists());
    }

    /// One that the driver refuses, though its checksum is right, is made again once, and not by every process.
    #[test]
    fn a_binary_that_is_refused_is_made_again() {
        let home = tempfile::tempdir().expect("there is room");
        let binaries = Binaries::within(home.path().into(), "sm_90".into());
        binaries.files.write(&binaries.key("text"), &made("of another kind")).expect("there is room");
        let take = |binary: &[u8]| Ok::<_, Infallible>((binary == made("text")).then(|| binary.to_vec()));
        let mut compiled = 0;
        for _ in 0..3 {
            let compile = || {
                compiled += 1;
                Ok(Some(made("text")))
            };
            assert_eq!(binaries.loaded("text", compile, take), Ok(Some(made("text"))));
        }
        assert_eq!(compiled, 1);
    }

    #[test]
    fn writers_at_once_leave_whole_files() {
        let home = tempfile::tempdir().expect("there is room");
        let text = "text".repeat(10_000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let binaries = Binaries::within(home.path().into(), "sm_90".into());
                    for round in 0..20 {
                        let text = format!("{text}{}", round % 5);
                        assert_eq!(asked(&binaries, &text).0, made(&text));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(home.path()).expect("it was made").count(), 5);
    }

    #[test]
    fn the_folder_is_the_one_named_or_the_users() {
        let named = |set: &[(&str, &str)]| {
            let found = folder(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()));
            found.map(|path| path.display().to_string())
        };
        let (xdg, home) = (("XDG_CACHE_HOME", "/caches"), ("HOME", "/home/me"));
        assert_eq!(named(&[("LANES_CACHE_DIR", "here"), xdg, home]).as_deref(), Some("here"));
        assert_eq!(named(&[("LANES_CACHE_DIR", ""), xdg, home]), None, "turned off");
        assert_eq!(named(&[xdg, home]).as_deref(), Some("/caches/lanes"));
        assert_eq!(named(&[("XDG_CACHE_HOME", "caches"), home]).as_deref(), Some("/home/me/.cache/lanes"));
        assert_eq!(named(&[]), None);
    }
}
