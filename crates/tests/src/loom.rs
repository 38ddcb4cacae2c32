//! The cases of `loom/*.loom`: every op of the language, by what it gives for operands whose results are known.
//!
//! - Each text runs on the device under test and on the interpreter; both must pass every sample.
//! - A case that a device does not support is named in the failure. The CPU has no exceptions; a GPU has those that it refuses
//!   of its own hardware.

use crate::Open;
use lanes_core::checks::DeviceTarget;
use loom_compiler::check::{Interpreted, Limits, NoFiles, Status, run};
use loom_compiler::{Module, interp};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a GPU may say it does not support, of its own hardware: a warp's width, and payloads laid out for another maker's.
const REFUSED: [&str; 2] = ["a subgroup of 64 work-items", "of a fragment that is shorter than its product"];

/// The texts of the corpus, in order.
pub fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("loom");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("it is listed").path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "loom"));
    files.sort();
    files
}

/// Every sample of every case of the corpus passes on the device and on the interpreter.
pub fn corpus(open: Open<'_>) {
    let mut wrong = Vec::new();
    let mut passed = 0;
    for path in files() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{name}: {why}"));
        passed += text_passes(&name, &text, open, &mut wrong);
    }
    assert!(wrong.is_empty(), "{} samples passed; {} did not:\n{}", passed, wrong.len(), wrong.join("\n"));
    assert!(passed > 0, "the corpus has no case");
}

/// How many samples of one text pass on both; what does not goes to `wrong`.
pub fn text_passes(name: &str, text: &str, open: Open<'_>, wrong: &mut Vec<String>) -> usize {
    let config = BTreeMap::new();
    let module = match Module::with_cases(name, text, &[]) {
        Ok(module) => module,
        Err(errors) => {
            wrong.push(errors.to_string());
            return 0;
        }
    };
    let limits = interp::Limits::default();
    let device = open(None);
    let backend = device.capabilities().backend;
    let mut device = DeviceTarget::new(device, &module, &config).expect("the device opens");
    let mut oracle = Interpreted::new(&module, &config, limits);
    let mut host = Interpreted::new(&module, &config, limits);
    let mut passed = 0;
    for case in module.cases().into_iter().filter(|case| case.public) {
        let case = match module.case(&case.name, &config) {
            Ok(case) => case,
            Err(errors) => {
                wrong.push(errors.to_string());
                continue;
            }
        };
        for sample in (0..case.samples()).filter_map(|ordinal| case.sample(ordinal)) {
            let on_device = run(&case, &sample, &mut device, &mut host, &mut NoFiles, Limits::default());
            let on_oracle = run(&case, &sample, &mut oracle, &mut host, &mut NoFiles, Limits::default());
            if backend != "cpu" && on_device.status == Status::Unsupported {
                let why = on_device.message.as_deref().unwrap_or_default();
                if on_oracle.status == Status::Passed && REFUSED.iter().any(|refused| why.contains(refused)) {
                    continue;
                }
            }
            passed += 1;
            for (where_run, verdict) in [("the device", on_device), ("the interpreter", on_oracle)] {
                if verdict.status != Status::Passed || verdict.expectations == 0 {
                    let why = verdict.message.unwrap_or_else(|| "no expectation was compared".to_owned());
                    let status = verdict.status;
                    wrong.push(format!(
                        "{name}: @{} sample {} on {where_run}: {status:?}: {why}",
                        case.name, sample.ordinal
                    ));
                    passed -= 1;
                    break;
                }
            }
        }
    }
    passed
}
