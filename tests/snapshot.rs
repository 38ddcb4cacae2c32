//! A stream outlives its process: the answers after a restore in a fresh one are bit for bit those of a stream that was
//! never interrupted. The test runs its own executable for the other processes.

use lanes::lanes::{LanesBuilder, Runnable, Stream, Value};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

const NAME: &str = "the_answers_after_a_kill_are_those_of_an_uninterrupted_stream";
/// Which process this is; unset in the one that the harness started.
const ROLE: &str = "LANES_TEST_ROLE";
/// The folder that the processes share.
const FOLDER: &str = "LANES_TEST_FOLDER";
const FRAME: usize = 512;
/// Frames before the snapshot, and after it.
const BEFORE: usize = 20;
const AFTER: usize = 30;

fn serve() -> Runnable {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/vad/vad.onnx");
    let model = lanes::onnx::load(path, &Default::default()).expect("the model imports");
    let device = lanes::open("cpu", &Default::default()).expect("cpu opens");
    LanesBuilder::new(lanes::planned(device, &model).expect("it lowers")).lanes(3).build().expect("it is served")
}

/// The bytes that `stream` answers to frame number `at` of a made-up signal.
fn answer(stream: &Stream, at: usize) -> Vec<u8> {
    let sample = |t: usize| {
        let t = (at * FRAME + t) as f32 / 16_000.0;
        0.3 * (t * 900.0).sin() * (t * 17.0).sin() + 0.1 * (t * 5000.0).sin()
    };
    let frame: Vec<f32> = (0..FRAME).map(sample).collect();
    let outputs = stream.call_blocking(&[Value::new(&[FRAME], &frame)]).expect("the call is served");
    outputs.bytes(0).expect("an output").to_vec()
}

fn answers(stream: &Stream, frames: std::ops::Range<usize>) -> Vec<u8> {
    frames.flat_map(|at| answer(stream, at)).collect()
}

fn save(folder: &Path) -> ! {
    let runnable = serve();
    // Not on the first lane, and not alone.
    let (other, stream) = (runnable.spawn_blocking().expect("a lane"), runnable.spawn_blocking().expect("a lane"));
    answer(&other, 99);
    answers(&stream, 0..BEFORE);
    let bytes = stream.snapshot_blocking().expect("it is taken");
    std::fs::write(folder.join("snapshot"), bytes).expect("it is written");
    // No destructor runs, no thread is joined.
    std::process::abort()
}

fn restore(folder: &Path) {
    let bytes = std::fs::read(folder.join("snapshot")).expect("it is there");
    let runnable = serve();
    let stream = runnable.restore_blocking(&bytes).expect("it is the same model");
    assert_eq!(stream.position(), BEFORE as u64);
    std::fs::write(folder.join("answers"), answers(&stream, BEFORE..BEFORE + AFTER)).expect("they are written");
}

/// Runs this test in a process of its own.
fn run(role: &str, folder: &Path) -> ExitStatus {
    let this = std::env::current_exe().expect("the test has a path");
    let mut command = Command::new(this);
    command.args(["--exact", NAME, "--nocapture"]).env(ROLE, role).env(FOLDER, folder);
    command.output().expect("it starts").status
}

#[test]
fn the_answers_after_a_kill_are_those_of_an_uninterrupted_stream() {
    let folder = || PathBuf::from(std::env::var_os(FOLDER).expect("it comes with the role"));
    match std::env::var(ROLE).as_deref() {
        Ok("save") => save(&folder()),
        Ok("restore") => return restore(&folder()),
        _ => {}
    }
    let folder = std::env::temp_dir().join(format!("lanes-snapshot-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("there is room for files");
    assert!(!run("save", &folder).success(), "it was to be killed");
    assert!(run("restore", &folder).success());
    let found = std::fs::read(folder.join("answers")).expect("they were written");
    std::fs::remove_dir_all(&folder).expect("the folder is ours");

    let runnable = serve();
    let stream = runnable.spawn_blocking().expect("a lane");
    let before = answers(&stream, 0..BEFORE);
    let expected = answers(&stream, BEFORE..BEFORE + AFTER);
    assert!(found == expected, "the answers differ");
    assert!(before[..] != expected[..before.len()], "a stream that had started over would not show");
}
