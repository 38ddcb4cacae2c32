//! Public packages by name, version and hash, through the ordinary client, kept under `target/`.

use crate::shell::{Chore, ChoreError, at, finish, root};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One wheel from the Python package index.
struct Wheel {
    /// `name==version`.
    requirement: &'static str,
    /// The file it arrives as.
    file: &'static str,
    /// SHA-256 of the file, in hex.
    sha256: &'static str,
}

const TRIES: u32 = 3;

/// `python3`, which the zoo needs for its client and its reference.
fn python() -> Command {
    Command::new("python3")
}

/// The wheel's path under `folder`, downloaded unless it is there already; its hash is checked either way.
fn wheel(wheel: &Wheel, folder: &Path) -> Chore<PathBuf> {
    let path = folder.join(wheel.file);
    for attempt in 1..=TRIES {
        if path.exists() {
            let found = sha256(&path)?;
            if found == wheel.sha256 {
                return Ok(path);
            }
            println!("{}: SHA-256 is {found}, expected {}; fetching it again", path.display(), wheel.sha256);
            std::fs::remove_file(&path).map_err(at(&path))?;
        }
        let mut pip = python();
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest"])
            .arg(folder);
        if let Err(why) = finish(pip.arg(wheel.requirement)) {
            println!("attempt {attempt} of {TRIES}: {why}");
            std::thread::sleep(std::time::Duration::from_secs(u64::from(2 * attempt)));
        }
    }
    Err(ChoreError::Words(format!(
        "{} could not be fetched with the expected SHA-256 in {TRIES} attempts; the package index may be unreachable from here",
        wheel.requirement
    )))
}

fn sha256(path: &Path) -> Chore<String> {
    let bytes = std::fs::read(path).map_err(at(path))?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Unpacks a wheel, which is a zip archive.
fn unpack(wheel: &Path, folder: &Path) -> Chore {
    finish(python().args(["-m", "zipfile", "-e"]).arg(wheel).arg(folder))
}

/// The interpreter of a virtual environment with `requirements` installed, made unless it is there already.
pub fn environment(folder: &Path, requirements: &[&str]) -> Chore<PathBuf> {
    let interpreter = folder.join("bin/python");
    let stamp = folder.join("requirements.txt");
    let wanted = requirements.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(interpreter);
    }
    finish(python().args(["-m", "venv", "--clear"]).arg(folder)).map_err(|why| {
        ChoreError::Words(format!("{why}; the zoo needs Python 3 with venv and pip (Debian: python3-venv)"))
    })?;
    for attempt in 1..=TRIES {
        let mut pip = Command::new(&interpreter);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]);
        match finish(pip.args(requirements)) {
            Ok(()) => {
                std::fs::write(&stamp, wanted).map_err(at(&stamp))?;
                return Ok(interpreter);
            }
            Err(why) => println!("attempt {attempt} of {TRIES}: {why}"),
        }
    }
    Err(ChoreError::Words(format!(
        "{requirements:?} could not be installed; the package index may be unreachable from here"
    )))
}

const SILERO: Wheel = Wheel {
    requirement: "silero-vad==6.2.3",
    file: "silero_vad-6.2.3-py3-none-any.whl",
    sha256: "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
};
const FLASHVAD: Wheel = Wheel {
    requirement: "flashvad==0.1.0a1",
    file: "flashvad-0.1.0a1-py3-none-any.whl",
    sha256: "372a49e434743a4f04094a9b877ff3db84e524207927a906cfaa5eca72837df8",
};

const SOLUTIONS: Wheel = Wheel {
    requirement: "hrx-solutions==0.3.0",
    file: "hrx_solutions-0.3.0-py3-none-manylinux_2_28_x86_64.whl",
    sha256: "20cf02ee24c71695143bf313f9ff1339758cdf9b1825c400d322252877b7e216",
};

/// A crate of Loom files, and the SHA-256 of its archive, which is what a `Cargo.lock` calls its checksum.
const HRX: (&str, &str) = ("hrx-rs-0.12.0", "14ae59ae3fb6699c2c3f2f85863d32fd9b3255d727a76588802a7e176d9b375f");

/// The folders of public Loom files, a package each, fetched unless they are there already.
pub fn kernels() -> Chore<Vec<PathBuf>> {
    let folder = root().join("target/corpus");
    std::fs::create_dir_all(&folder).map_err(at(&folder))?;
    let python = folder.join("hrx-solutions");
    unpack(&wheel(&SOLUTIONS, &folder)?, &python)?;
    let (name, sha256) = HRX;
    let archive = crate_archive(name, sha256)?;
    finish(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&folder))?;
    Ok(vec![folder.join(name), python])
}

/// A crate's archive in Cargo's own cache, where Cargo puts it when it is asked about the crate.
fn crate_archive(name: &str, wanted: &str) -> Chore<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let home =
        home.ok_or_else(|| ChoreError::Words("neither CARGO_HOME nor HOME says where Cargo keeps crates".into()))?;
    let cache = home.join("registry/cache");
    for _ in 0..TRIES {
        for registry in std::fs::read_dir(&cache).into_iter().flatten().flatten() {
            let path = registry.path().join(format!("{name}.crate"));
            if path.exists() {
                let found = sha256(&path)?;
                if found == wanted {
                    return Ok(path);
                }
                println!("{}: SHA-256 is {found}, expected {wanted}", path.display());
            }
        }
        let (package, version) = name.rsplit_once('-').unwrap_or((name, ""));
        let mut info = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Outside of the workspace, whose lock file is none of its business.
        info.current_dir(std::env::temp_dir()).args(["info", "--quiet", &format!("{package}@{version}")]);
        if let Err(why) = finish(info.stdout(std::process::Stdio::null())) {
            println!("{why}");
        }
    }
    Err(ChoreError::Words(format!("{name} could not be fetched; the crate index may be unreachable from here")))
}

const NVCC: Wheel = Wheel {
    requirement: "nvidia-cuda-nvcc==13.0.88",
    file: "nvidia_cuda_nvcc-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    sha256: "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",
};

/// The assembler of PTX, fetched unless it is there already. It runs on x86-64 Linux.
pub fn ptxas() -> Chore<PathBuf> {
    let folder = root().join("target/nvcc");
    let ptxas = folder.join("nvidia/cu13/bin/ptxas");
    std::fs::create_dir_all(&folder).map_err(at(&folder))?;
    let archive = wheel(&NVCC, &folder)?;
    if !ptxas.exists() {
        unpack(&archive, &folder)?;
        // A wheel unpacked by hand has no permissions.
        finish(Command::new("chmod").arg("+x").arg(&ptxas))?;
    }
    Ok(ptxas)
}

/// Where everything fetched is kept.
pub fn folder() -> PathBuf {
    root().join("target/zoo")
}

/// The folder with the public models in it, fetched unless they are there already.
pub fn unpack_models() -> Chore<PathBuf> {
    let models = folder().join("models");
    std::fs::create_dir_all(&models).map_err(at(&models))?;
    for package in [&SILERO, &FLASHVAD] {
        unpack(&wheel(package, &folder())?, &models)?;
    }
    Ok(models)
}
