//! What is said, where, and when: states in `check`, figures before files, names that would act on a terminal, and
//! options that meet each other or the environment.

use crate::common::{Ran, command, lanes, place, write_npy, write_wav};
use lanes::DType::F32;
use lanes::onnx::Tensor;
use lanes::onnx::onnx::build::ModelBuilder;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

fn model(here: &Path, name: &str, model: ModelBuilder) {
    std::fs::write(here.join(name), model.encode()).unwrap();
}

/// A model whose only output is its state: h(t) = h(t - 1) + 1.
fn only_state(here: &Path) {
    let one = Tensor::scalar(1f32);
    let counter = ModelBuilder::new(17).input("h", F32, &["batch", "4"]).tensor("one", &one);
    let counter = counter.node("Add", &["h", "one"], &["hn"], &[]).output("hn", F32, &["batch", "4"]);
    model(here, "only_state.onnx", counter);
}

fn compared(ran: &Ran) -> Vec<String> {
    let found = ran.json();
    found["outputs"].as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn check_compares_the_states_after_the_last_turn() {
    let here = place();
    only_state(here.path());
    for options in ["", "--against cpu", "--streams 5 --lanes 2 --churn 0.5"] {
        let ran = lanes(here.path(), &format!("check {{}}/adder.onnx --input normal --turns 6 --json {options}"));
        assert_eq!(compared(&ran), ["y", "state_out"], "{options}");
        let ran = lanes(here.path(), &format!("check {{}}/only_state.onnx --turns 6 --json {options}"));
        assert_eq!(compared(&ran), ["hn"], "{options}");
    }
    let table = lanes(here.path(), "check {}/only_state.onnx --turns 1").out;
    assert!(table.contains("1 stream, 1 turn\n") && table.contains("(state, at the end)"), "{table}");
}

#[test]
fn check_refuses_a_model_with_nothing_to_compare() {
    let here = place();
    let empty = ModelBuilder::new(17).input("x", F32, &["batch", "0"]).node("Neg", &["x"], &["y"], &[]);
    model(here.path(), "empty.onnx", empty.output("y", F32, &["batch", "0"]));
    write_npy(here.path().join("x.npy"), &[2, 0], []);
    let line = "check {}/empty.onnx --input {}/x.npy";
    lanes(here.path(), line).refused(2, &["empty.onnx", "nothing to compare"]);
}

#[test]
fn out_says_when_there_is_nothing_to_write() {
    let here = place();
    only_state(here.path());
    let ran = lanes(here.path(), "run {}/only_state.onnx --turns 2 --out {}/out --json");
    ran.json();
    assert!(ran.err.contains("no file is written"), "{ran:?}");
    assert_eq!(std::fs::read_dir(here.path().join("out")).unwrap().count(), 0);
}

#[test]
fn runs_that_share_a_folder_do_not_fail_each_other() {
    let here = place();
    // A name that another writer might have taken.
    std::fs::create_dir_all(here.path().join("out/y.npy.partial")).unwrap();
    let line = "run M --input 1 --turns 50 --streams 8 --out O";
    let (model, out) = (here.path().join("adder.onnx"), here.path().join("out"));
    let words = || {
        line.split(' ').map(|word| match word {
            "M" => model.as_os_str(),
            "O" => out.as_os_str(),
            word => word.as_ref(),
        })
    };
    let start = || command(words()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let running: Vec<_> = (0..6).map(|_| start()).collect();
    for child in running {
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    }
    let mut left: Vec<_> = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["y.npy", "y.npy.partial"]);
}

#[test]
fn a_folder_where_a_file_should_go_is_refused_before_the_run() {
    let here = place();
    std::fs::create_dir_all(here.path().join("out/y.npy")).unwrap();
    for command in ["run", "check"] {
        let line = format!("{command} {{}}/adder.onnx --input 1 --turns 2 --out {{}}/out");
        lanes(here.path(), &line).refused(2, &["--out", "out/y.npy", "is a folder"]);
    }
}

/// A limit of the shell stands for a full disk: files may be made and not grow.
#[cfg(target_os = "linux")]
#[test]
fn figures_come_before_files_that_cannot_be_written() {
    let here = place();
    for (name, says) in [("run", "\"calls\":2"), ("check", "\"ok\":true")] {
        let line = format!("{name} \"$1\" --input 1 --turns 2 --out \"$2\" --json");
        let script = format!("trap '' XFSZ; ulimit -f 0; exec {} {line}", env!("CARGO_BIN_EXE_lanes"));
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script, "sh"]).arg(here.path().join("adder.onnx")).arg(here.path().join("out"));
        let ran = Ran::from(shell.output().unwrap());
        assert_eq!(ran.status, Some(1), "{ran:?}");
        assert!(ran.out.contains(says) && ran.err.contains("out/y.npy: "), "{ran:?}");
        assert_eq!(std::fs::read_dir(here.path().join("out")).unwrap().count(), 0, "{name} left something");
    }
}

#[test]
fn names_do_nothing_to_a_terminal() {
    let here = place();
    let odd = "a\nlanes: b\x1b[2J\u{9b}c";
    let odd_model = ModelBuilder::new(17).input(odd, F32, &["batch", "2"]).node("Neg", &[odd], &["y\x1b\n"], &[]);
    model(here.path(), "odd.onnx", odd_model.output("y\x1b\n", F32, &["batch", "2"]));
    let (path, out) = (here.path().join("odd.onnx"), here.path().join("out"));
    let (path, out) = (path.to_str().unwrap(), out.to_str().unwrap());
    for (words, status, lines) in [
        (&["inspect", path][..], 0, 0),
        (&["run", path, "--input", "1", "--turns", "1", "--out", out], 0, 1),
        (&["check", path, "--input", "1", "--turns", "1"], 0, 0),
        (&["run", path, "--turns", "1"], 2, 1),
        (&["run", path, "--input", "x\x1b\n=1", "--turns", "1"], 2, 1),
        (&["run", "no\x1b\nfile.onnx"], 2, 1),
        (&["run", path, "--no\x1b\nsuch"], 2, 1),
        (&["bo\x1b\ngus"], 2, 1),
        (&["loom", "a\x1b\nb"], 2, 1),
    ] {
        let ran = Ran::from(command(words).output().unwrap());
        assert_eq!((ran.status, ran.err.lines().count()), (Some(status), lines), "{ran:?}");
        let acts = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
        assert!(!acts(&ran.out) && !acts(&ran.err), "{ran:?}");
        assert!(!ran.out.lines().any(|line| line.starts_with("lanes: ")), "{ran:?}");
    }
}

/// Twenty rows of two seconds each, of which nobody reads the second.
#[test]
fn bench_ends_when_its_reader_has_gone() {
    let here = place();
    let began = Instant::now();
    let streams = ["1"; 20].join(",");
    let model = here.path().join("adder.onnx");
    let words = ["bench", model.to_str().unwrap(), "--input", "1", "--streams", &streams];
    let mut child = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("adder.onnx on cpu"), "{first}");
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.status, Some(1));
    assert_eq!(ran.err.lines().count(), 1, "what has no rate, and nothing of the reader: {ran:?}");
    assert!(began.elapsed().as_secs() < 25, "{:?}", began.elapsed());
}

#[test]
fn tables_say_one_of_what_there_is_one() {
    let here = place();
    let text = lanes(here.path(), "run {}/adder.onnx --input 1 --turns 1").out;
    assert!(text.contains("1 over 1 lane, at most 1 seat a turn"), "{text}");
    let text = lanes(here.path(), "inspect {}/adder.onnx").out;
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("memory  1 lane, in bytes: weights ") && !last.contains(['{', '"']), "{text}");
    let text = lanes(here.path(), "bench {}/adder.onnx --input 1 --streams 2 --turns 3 --frame-ms 1").out;
    let seat = |mode: &str| text.lines().find(|line| line.contains(mode)).unwrap().split_whitespace().nth(3).unwrap();
    assert!(seat("closed").parse::<f64>().unwrap() > 0.0, "{text}");
    assert_eq!(seat("paced"), "-", "{text}");
}

#[test]
fn a_clip_without_samples_is_named_wherever_it_is() {
    let here = place();
    let clips = here.path().join("clips");
    std::fs::create_dir(&clips).unwrap();
    write_wav(clips.join("a.wav"), 8000, [1i16; 30]);
    write_wav(clips.join("b.wav"), 8000, []);
    for place in ["clips", "clips/b.wav"] {
        let line = format!("run {{}}/adder.onnx --input {{}}/{place}");
        lanes(here.path(), &line).refused(2, &["clips/b.wav", "no samples"]);
    }
    write_npy(here.path().join("none.npy"), &[2, 0, 3], []);
    lanes(here.path(), "run {}/adder.onnx --input {}/none.npy").refused(2, &["none.npy", "no turns", "axis 1"]);
}

#[test]
fn rates_and_hops_have_a_range() {
    let here = place();
    write_wav(here.path().join("fast.wav"), 10_000_001, [1i16; 3]);
    write_wav(here.path().join("a.wav"), 100, [1i16; 3]);
    lanes(here.path(), "run {}/adder.onnx --input {}/fast.wav").refused(2, &["fast.wav", "10000001", "1 to 10000000"]);
    // An hour at 100 Hz.
    let line = "run {}/adder.onnx --input {}/a.wav,hop=";
    lanes(here.path(), &format!("{line}360001")).refused(2, &["`x`", "hop=H to 360000"]);
    assert_eq!(lanes(here.path(), &format!("{line}360000 --json")).json()["frame_ms"], 3_600_000.0);
}

#[test]
fn a_path_may_hold_commas() {
    let here = place();
    write_wav(here.path().join("a,hop=2,b.wav"), 8000, [1i16; 9]);
    let line = "run {}/adder.onnx --input {}/a,hop=2,b.wav --json";
    assert_eq!(lanes(here.path(), line).json()["calls"], 3);
    let line = "run {}/adder.onnx --input x={}/a,hop=2,b.wav,frame=3,hop=1 --json";
    assert_eq!(lanes(here.path(), line).json()["calls"], 9);
}

#[test]
fn an_input_that_is_taken_says_by_what() {
    let here = place();
    for (options, says) in [
        ("adder.onnx --fix x=1 --input x=normal", &["`x`", "fixed"][..]),
        ("adder.onnx --fix x=1 --input normal", &["no inputs to feed"]),
        ("adder.onnx --input x=1 --input state=1", &["`state`", "is a state", "--init"]),
    ] {
        let ran = lanes(here.path(), &format!("run {{}}/{options} --turns 1"));
        ran.refused(2, says);
        assert!(!ran.err.contains("it has \n") && !ran.err.trim_end().ends_with("it has"), "{ran:?}");
    }
}

/// Options win over the environment, and it over the command's own defaults.
#[test]
fn the_environment_serves_as_a_default() {
    let here = place();
    let model = here.path().join("adder.onnx");
    let run = |variables: &[(&str, &str)], options: &[&str]| {
        let words = ["run", model.to_str().unwrap(), "--input", "1", "--streams", "5", "--turns", "4", "--json"];
        let mut command = command(words);
        command.args(options).envs(variables.iter().copied());
        Ran::from(command.output().unwrap())
    };
    let of = |ran: Ran| {
        let found = ran.json();
        ["lanes", "max_seats", "calls"].map(|key| found[key].as_u64().unwrap())
    };
    assert_eq!(of(run(&[], &[])), [5, 5, 20]);
    let variables = [("LANES_MAX_LANES", "3"), ("LANES_MAX_SEATS", "2"), ("LANES_QUEUE", "1")];
    assert_eq!(of(run(&variables, &[])), [3, 2, 20]);
    assert_eq!(of(run(&variables, &["--lanes", "4", "--max-seats", "3"])), [4, 3, 20]);
    for name in ["LANES_MAX_LANES", "LANES_MAX_SEATS", "LANES_LINGER_US", "LANES_QUEUE", "LANES_SLOTS"] {
        run(&[(name, "-1")], &[]).refused(2, &[name, "\"-1\"", "expected"]);
    }
    let words = ["check", model.to_str().unwrap(), "--input", "1", "--turns", "2", "--json"];
    Ran::from(command(words).env("LANES_SLOTS", "2").output().unwrap()).json();
}

#[cfg(unix)]
#[test]
fn a_word_that_is_no_text_is_named() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let words = ["run".as_ref(), "m.onnx".as_ref(), "--input".as_ref(), OsStr::from_bytes(b"x=\xff.wav")];
    Ran::from(command(words).output().unwrap()).refused(2, &["x=\\xFF.wav", "UTF-8"]);
    Ran::from(command(["devices", "--json", "--backend", ""]).output().unwrap()).refused(2, &["--backend"]);
    Ran::from(command(["run", "m.onnx", "--backend", ""]).output().unwrap()).refused(2, &["--backend", "cuda[:N]"]);
}
