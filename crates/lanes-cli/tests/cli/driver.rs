//! `--backend cuda` on a machine without a GPU: drivers that are missing, old, half there or broken, and one that only pretends.

use crate::common::{Ran, command, place};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A folder with `libcuda.so.1` (see `libcuda.rs`) in `whole`, one that lacks what graphs take in `half`, and none in `none`.
fn drivers() -> &'static Path {
    static DRIVERS: OnceLock<PathBuf> = OnceLock::new();
    DRIVERS.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("drivers");
        for (name, more) in [("whole", &[][..]), ("half", &["--cfg", "half"])] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
            let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
            rustc.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "cuda", "-O"]).args(more);
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/libcuda.rs");
            let built = rustc.arg(source).arg("-o").arg(folder.join(name).join("libcuda.so.1")).output().unwrap();
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        std::fs::create_dir_all(folder.join("none")).unwrap();
        std::fs::create_dir_all(folder.join("text")).unwrap();
        std::fs::write(folder.join("text/libcuda.so.1"), "no library").unwrap();
        folder
    })
}

/// Runs `line` with the driver in folder `which`, of which `says` holds; `{}` stands for `place`.
fn with(which: &str, says: &[(&str, &str)], place: &Path, line: &str) -> Ran {
    let mut command = command(line.split_whitespace().map(|word| word.replace("{}", place.to_str().unwrap())));
    command.env("LD_LIBRARY_PATH", drivers().join(which)).env("LANES_CACHE_DIR", place.join("cache"));
    command.envs(says.iter().copied()).output().unwrap().into()
}

const RUN: &str = "run {}/adder.onnx --input normal --turns 2 --backend cuda";

/// What `lanes devices` says of the backend's devices, and why it has none.
fn devices(which: &str, says: &[(&str, &str)]) -> (Vec<u64>, Option<String>) {
    let here = tempfile::tempdir().unwrap();
    let found = with(which, says, here.path(), "devices --json").json();
    let of_cuda = |list: &serde_json::Value| {
        let all = list.as_array().unwrap().clone();
        all.into_iter().filter(|one| one["backend"] == "cuda").collect::<Vec<_>>()
    };
    let devices = of_cuda(&found["devices"]).iter().map(|device| device["index"].as_u64().unwrap()).collect();
    let absent = of_cuda(&found["absent"]).first().map(|absent| absent["why"].as_str().unwrap().to_owned());
    (devices, absent)
}

#[test]
fn a_driver_that_is_not_as_it_should_be_is_named() {
    let here = place();
    let fails = |what| ("DRIVER_FAILS", what);
    for (which, says, why) in [
        ("none", ("", ""), &["no NVIDIA driver", "libcuda.so.1", "No such file"][..]),
        ("text", ("", ""), &["no NVIDIA driver", "libcuda.so.1", "file too short"]),
        ("half", ("", ""), &["lacks cuGraphCreate", "CUDA 12.0 or newer"]),
        ("whole", ("DRIVER_VERSION", "11080"), &["for CUDA 11.8", "12.0 or newer"]),
        ("whole", ("DRIVER_DEVICES", "0"), &["finds no GPU", "cuDeviceGetCount says 0"]),
        ("whole", ("DRIVER_ARCHITECTURE", "70"), &["Pretended is sm_70", "sm_75 or newer"]),
        ("whole", fails("cuInit:100"), &["finds no GPU", "NO_DEVICE (no device)"]),
        ("whole", fails("cuInit:804"), &["does not start", "COMPAT_NOT_SUPPORTED_ON_DEVICE"]),
        ("whole", fails("cuInit:12345"), &["does not start", "cuInit says error 12345"]),
        ("whole", fails("cuDeviceGetCount:100"), &["finds no GPU", "cuDeviceGetCount says NO_DEVICE"]),
        ("whole", fails("cuDeviceGetName:1"), &["CUDA device 0", "cuDeviceGetName says error 1"]),
    ] {
        // The loader looks on where the system keeps libraries.
        if which != "whole" && Path::new("/proc/driver/nvidia").exists() {
            continue;
        }
        let ran = with(which, &[says], here.path(), RUN);
        ran.refused(2, &[&["--backend cuda: "], why].concat());
        let (_, absent) = devices(which, &[says]);
        // In the same words, and no more.
        assert_eq!(ran.err.trim_end(), format!("lanes: --backend cuda: {}", absent.unwrap()));
    }
}

/// What is there and fails is a failure, not a mistake of who asks: exit 1, with the file that it was for.
#[test]
fn a_device_that_fails_is_a_failure() {
    let here = place();
    for (fails, status, why) in [
        ("cuDevicePrimaryCtxRetain:46", 1, &["--backend cuda", "CUDA device 0", "PrimaryCtxRetain says error 46"][..]),
        ("cuDevicePrimaryCtxRetain:2", 1, &["--backend cuda", "out of device memory: the context of CUDA device 0"]),
        ("cuModuleLoadDataEx:209", 1, &["--backend cuda", "kernel moves did not build"]),
        (
            "cuMemAlloc_v2:700",
            1,
            &["adder.onnx", "device lost", "cuMemAlloc says ILLEGAL_ADDRESS (an illegal address)"],
        ),
        ("cuGraphInstantiateWithFlags:801", 1, &["adder.onnx", "graph of", "says NOT_SUPPORTED"]),
        ("cuGraphInstantiateWithFlags:2", 2, &["adder.onnx", "out of device memory: graph of"]),
        // Fewer lanes may fit.
        ("cuMemAlloc_v2:2", 2, &["adder.onnx", "1 lane and 1 seat: ", "asked for 36 bytes"]),
    ] {
        let says = [("DRIVER_FAILS", fails)];
        let ran = with("whole", &says, here.path(), RUN);
        ran.refused(status, why);
        assert!(!ran.err.contains(" 0 bytes"), "{ran:?}");
        let line = RUN.replace("run", "bench").replace("--turns 2", "--streams 1 --turns 2");
        let ran = with("whole", &says, here.path(), &line);
        // No table is begun that has no rows.
        assert_eq!((ran.status, &*ran.out), (Some(status), ""), "{ran:?}");
        with("whole", &says, here.path(), &RUN.replace("run", "check")).refused(status, why);
    }
    let ran = with("whole", &[("DRIVER_FAILS", "cuGraphLaunch:700")], here.path(), RUN);
    ran.refused(1, &["device lost", "cuGraphLaunch says ILLEGAL_ADDRESS"]);
}

/// The device is asked for turns of as many seats as those that are served have, whoever bounds them.
#[test]
fn turns_are_timed_with_the_seats_that_they_have() {
    let here = place();
    let line = "bench {}/adder.onnx --input normal --backend cuda --streams 5 --turns 2 --frame-ms 1 --json";
    for (more, says, seats) in [
        ("", ("", ""), 5),
        (" --lanes 3", ("", ""), 3),
        (" --max-seats 2", ("", ""), 2),
        ("", ("LANES_MAX_SEATS", "2"), 2),
        ("", ("LANES_MAX_LANES", "4"), 4),
        (" --lanes 7", ("LANES_MAX_SEATS", "6"), 5),
    ] {
        let found = with("whole", &[says], here.path(), &format!("{line}{more}")).json();
        let rows = found["rows"].as_array().unwrap();
        assert_eq!(rows.iter().map(|row| &row["mode"]).collect::<Vec<_>>(), ["closed", "paced"]);
        for row in rows {
            // The pretended clock says a quarter of a millisecond of everything.
            let expected = serde_json::json!({"seats": seats, "turn": 250.0, "compute": 250.0});
            assert_eq!(row["device_us"], expected, "{more} {says:?}");
        }
    }
}

#[test]
fn devices_are_listed_and_chosen_by_number() {
    assert_eq!(devices("whole", &[]), (vec![0], None));
    assert_eq!(devices("whole", &[("DRIVER_DEVICES", "3")]), (vec![0, 1, 2], None));
    let here = place();
    let ran = |backend: &str| with("whole", &[("DRIVER_DEVICES", "2")], here.path(), &RUN.replace("cuda", backend));
    for backend in ["cuda", "cuda:0", "cuda:1"] {
        assert_eq!(ran(backend).status, Some(0), "{backend}");
    }
    ran("cuda:2").refused(2, &["--backend cuda:2", "no device 2", "it has 2"]);
    for backend in ["cuda:", "cuda:+0", "cuda:-1", "cuda:x", "cuda:0:0", "CUDA", "cuda:99999999999999999999"] {
        ran(backend).refused(2, &[&format!("--backend {backend}"), "cuda[:N]"]);
    }
}

#[test]
fn a_precision_that_a_device_lacks_is_refused_with_what_it_has() {
    let here = place();
    for (architecture, has) in [("75", &["f32"][..]), ("80", &["f32", "bf16"]), ("120", &["f32", "bf16"])] {
        for precision in ["f32", "bf16", "tf32", "f16"] {
            for line in ["run", "bench --streams 1", "check", "check --against cpu"] {
                let line = RUN.replace("run", line).replace("adder", "product") + " --precision " + precision;
                let ran = with("whole", &[("DRIVER_ARCHITECTURE", architecture)], here.path(), &line);
                if has.contains(&precision) {
                    assert!(matches!(ran.status, Some(0 | 1)), "{ran:?}");
                } else {
                    let takes = format!("the cuda backend takes {} on Pretended", has.join(" and "));
                    assert_eq!((ran.status, &*ran.out), (Some(2), ""), "{ran:?}");
                    let said = format!("lanes: --precision {precision}: {takes}\n");
                    assert!(ran.err.ends_with(&said), "{ran:?}");
                }
            }
        }
    }
}

/// Whatever a folder for compiled kernels is, kernels are compiled and turns run.
#[test]
fn a_folder_of_kernels_may_be_anything() {
    let here = place();
    let ran = |folder: &Path| {
        let says = [("LANES_CACHE_DIR", folder.to_str().unwrap())];
        let ran = with("whole", &says, here.path(), RUN);
        assert_eq!((ran.status, &*ran.err), (Some(0), ""), "{ran:?}");
    };
    let folder = here.path().join("kernels");
    ran(&folder);
    let files = || std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    let whole: Vec<_> = files().iter().map(|file| std::fs::read(file).unwrap()).collect();
    assert!(!whole.is_empty());
    for (at, file) in files().iter().enumerate() {
        match at % 3 {
            0 => std::fs::write(file, "damaged").unwrap(),
            1 => std::fs::write(file, &whole[at][..whole[at].len() - 1]).unwrap(),
            _ => {
                std::fs::remove_file(file).unwrap();
                std::fs::create_dir(file).unwrap();
            }
        }
    }
    ran(&folder);
    let is_back = |(at, file): (usize, &PathBuf)| at % 3 == 2 || std::fs::read(file).unwrap() == whole[at];
    assert!(files().iter().enumerate().all(is_back), "what was damaged is written anew");
    for other in ["/proc/no/such", "/dev/null/below", ""] {
        ran(Path::new(other));
    }
    // Several at once.
    std::fs::remove_dir_all(&folder).unwrap();
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| ran(&folder)))));
    assert_eq!(files().len(), whole.len(), "no part is left behind");
}
