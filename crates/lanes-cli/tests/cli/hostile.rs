//! Files, places and numbers that are wrong on purpose: an answer in words, soon, and never a panic.

use crate::common::{VAD, command, lanes, place};
use std::process::Stdio;

#[test]
fn damaged_files_are_named() {
    let here = place();
    let file = |name: &str, bytes: &[u8]| std::fs::write(here.path().join(name), bytes).unwrap();
    let whole = std::fs::read(VAD).unwrap();
    let garbage: Vec<u8> = (0..3000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for kind in ["onnx", "npy", "wav"] {
        file(&format!("empty.{kind}"), b"");
        file(&format!("garbage.{kind}"), &garbage);
        std::fs::create_dir(here.path().join(format!("folder.{kind}"))).unwrap();
    }
    file("cut.onnx", &whole[..whole.len() / 3]);
    let mut huge = b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec();
    huge.extend([b' '; 200]);
    file("cut.npy", &huge);
    file(
        "cut.wav",
        b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\xff\xff",
    );
    for name in ["missing", "empty", "garbage", "folder", "cut"] {
        for line in ["inspect {}/N.onnx --json", "run {}/N.onnx --input normal --turns 1", "check {}/N.onnx --turns 1"]
        {
            lanes(here.path(), &line.replace('N', name)).refused(2, &[&format!("{name}.onnx")]);
        }
        for kind in ["npy", "wav"] {
            let line = format!("run {{}}/adder.onnx --input {{}}/{name}.{kind} --json");
            lanes(here.path(), &line).refused(2, &[&format!("{name}.{kind}")]);
        }
    }
}

#[test]
fn a_missing_file_is_said_to_be_missing_once() {
    let here = place();
    let ran = lanes(here.path(), "run {}/missing.onnx --input normal");
    assert_eq!(ran.err.matches("No such file").count(), 1, "{ran:?}");
}

/// Opening a pipe waits for a writer who may never come.
#[cfg(target_os = "linux")]
#[test]
fn pipes_and_devices_are_no_files() {
    let here = place();
    for name in ["a.npy", "a.wav", "a.onnx"] {
        let made = std::process::Command::new("mkfifo").arg(here.path().join(name)).status().unwrap();
        assert!(made.success());
    }
    for line in ["run {}/a.onnx --input 1", "run {}/adder.onnx --input {}/a.npy", "run {}/adder.onnx --input {}/a.wav"]
    {
        lanes(here.path(), line).refused(2, &["not a regular file"]);
    }
    lanes(here.path(), "inspect /dev/zero").refused(2, &["not a regular file"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_that_has_gone_or_a_full_disk_is_no_panic() {
    let here = place();
    let model = here.path().join("adder.onnx");
    for line in ["devices --json", "inspect M", "run M --input 1 --turns 2", "bogus", "--help"] {
        let words = || line.split(' ').map(|word| if word == "M" { model.to_str().unwrap() } else { word });
        // The read end is closed before anything is written.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (out, err) = (writer.try_clone().unwrap(), writer);
        let status = command(words()).stdout(out).stderr(err).status().unwrap();
        assert_eq!(status.code(), Some(if line == "bogus" { 2 } else { 0 }), "{line}");

        if line == "bogus" {
            continue;
        }
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ran = command(words()).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let err = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(1), "{line}: {err}");
        assert!(err.starts_with("lanes: writing to stdout"), "{line}: {err}");
    }
}

#[test]
fn a_folder_that_cannot_be_is_refused_before_the_run() {
    let here = place();
    let line = "run {}/adder.onnx --input 1 --turns 2 --out {}/adder.onnx";
    lanes(here.path(), line).refused(2, &["--out", "adder.onnx", "not a folder"]);
    lanes(here.path(), &format!("{line}/below")).refused(2, &["--out", "below"]);
}

/// More than any machine of today has: refused by arithmetic, before anything is allocated.
#[cfg(target_os = "linux")]
#[test]
fn claims_beyond_the_machine_are_refused_in_words() {
    let here = place();
    let started = std::time::Instant::now();
    for (line, says) in [
        ("run {}/adder.onnx --input 1 --turns 4294967295 --streams 4096 --lanes 1 --out {}/out", "outputs"),
        ("check {}/adder.onnx --input 1 --turns 4294967295 --streams 4096", "outputs"),
        ("run {}/adder.onnx --input 1 --turns 1 --streams 4294967295", "--lanes"),
        ("run {}/adder.onnx --input 1 --turns 1 --streams 4294967295 --lanes 2", "4294967295 streams"),
        // 16777216 seats of 200000000 elements in and out, of four bytes each.
        (
            "run {}/null.onnx --input 1,frame=200000000 --turns 1 --lanes 16777216",
            "needs 26843545600000000 bytes, 0 of",
        ),
        ("run {}/null.onnx --input 1,frame=4611686018427387904 --turns 1", "larger than any memory"),
        ("run {}/null.onnx --input 1,frame=100000000000 --turns 1", "at most"),
    ] {
        lanes(here.path(), line).refused(2, &[says]);
    }
    let ran = lanes(here.path(), "inspect {}/null.onnx --input 1,frame=200000000 --lanes 16777216 --json");
    assert_eq!(ran.json()["memory"], serde_json::Value::Null);
    assert!(ran.err.contains("memory is not known"), "{ran:?}");
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}

#[test]
fn more_threads_seats_and_patience_than_needed_change_nothing() {
    let here = place();
    let line = "run {}/adder.onnx --input 1 --turns 3 --streams 2 --threads 64 --max-seats 16777216 --json";
    assert_eq!(lanes(here.path(), line).json()["max_seats"], 2);
}
