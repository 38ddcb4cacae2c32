//! Outputs: what is written, and that it depends on model, inputs and seed alone.

use crate::common::{SPEECH, VAD, lanes, place, read_npy, write_npy, write_wav};
use std::path::Path;

/// Whole numbers, whose sums and doubles are exact in any order.
fn x(stream: usize, turn: usize, at: usize) -> f32 {
    ((stream * 31 + turn * 7 + at * 3) % 19) as f32 - 9.0
}

#[track_caller]
fn done(place: &Path, line: &str) {
    let ran = lanes(place, line);
    assert_eq!(ran.status, Some(0), "{line}: {ran:?}");
}

/// y(t) = 2 Σ x(0..=t) from `x`, whatever the churn and however the streams share lanes, seats and threads.
#[test]
fn an_accumulator_gives_its_closed_form_however_it_is_served() {
    let here = place();
    let (streams, turns) = (6, 9);
    let all = (0..streams).flat_map(|s| (0..turns).flat_map(move |t| (0..3).map(move |i| x(s, t, i))));
    write_npy(here.path().join("x.npy"), &[streams as u64, turns as u64, 3], all);
    let mut expected = Vec::new();
    for stream in 0..streams {
        let mut sum = [0.0; 3];
        for turn in 0..turns {
            for (at, sum) in sum.iter_mut().enumerate() {
                *sum += x(stream, turn, at);
                expected.push(2.0 * *sum);
            }
        }
    }
    let mut bytes = None;
    for options in [
        "",
        "--churn 0.4",
        "--churn 1.0 --seed 9",
        "--lanes 1",
        "--lanes 2 --churn 1",
        "--lanes 4 --max-seats 3 --churn 0.3 --seed 1",
        "--max-seats 1 --threads 1",
        "--lanes 17 --max-seats 5 --threads 2 --linger-us 300",
    ] {
        done(here.path(), &format!("run {{}}/adder.onnx --input {{}}/x.npy --streams 6 --out {{}}/out {options}"));
        let path = here.path().join("out/y.npy");
        let file = std::fs::read(&path).unwrap();
        assert_eq!(read_npy(path), (vec![6, 9, 3], expected.clone()), "{options}");
        assert_eq!(bytes.get_or_insert_with(|| file.clone()), &file, "{options}");
        std::fs::remove_dir_all(here.path().join("out")).unwrap();
    }
}

/// Rounding shows company, order and threads; the sums of the model of this repository round everywhere.
#[test]
fn the_speech_model_gives_each_stream_the_same_bits_in_any_company() {
    let here = place();
    let mut bytes = None;
    for options in ["--lanes 1 --max-seats 1 --threads 1", "", "--churn 0.5", "--lanes 5 --max-seats 3 --churn 1"] {
        let line = format!("run {VAD} --input {SPEECH} --streams 9 --turns 12 --out {{}}/out {options}");
        done(here.path(), &line);
        let file = std::fs::read(here.path().join("out/output.npy")).unwrap();
        assert_eq!(bytes.get_or_insert_with(|| file.clone()), &file, "{options}");
    }
    let (shape, values) = read_npy(here.path().join("out/output.npy"));
    assert_eq!(shape, [9, 12, 1]);
    assert!(values.iter().all(|p| (0.0..=1.0).contains(p)));
    // Stream i takes file i mod 8.
    assert_eq!(values[..12], values[8 * 12..]);
    assert_ne!(values[..12], values[12..24]);
}

#[test]
fn an_array_without_streams_feeds_every_stream() {
    let here = place();
    write_npy(here.path().join("x.npy"), &[4, 3], (0..12).map(|v| v as f32));
    done(here.path(), "run {}/null.onnx --input {}/x.npy --streams 2 --out {}/out");
    let once = (0..12).map(|v| 2.0 * v as f32);
    assert_eq!(read_npy(here.path().join("out/y.npy")), (vec![2, 4, 3], once.clone().chain(once).collect()));
    for (options, says) in [("--turns 5", "4 turns"), ("--streams 3 --turns 0", "--turns")] {
        lanes(here.path(), &format!("run {{}}/null.onnx --input {{}}/x.npy {options}")).refused(2, &[says]);
    }
    // Three axes where two are left over: those of a stream each.
    write_npy(here.path().join("s.npy"), &[2, 2, 3], (0..12).map(|v| v as f32));
    for command in ["run", "check", "bench"] {
        let line = format!("{command} {{}}/adder.onnx --input {{}}/s.npy --streams 3");
        lanes(here.path(), &line).refused(2, &["2 streams", "3"]);
    }
    lanes(here.path(), "bench {}/adder.onnx --input {}/s.npy --streams 2 --turns 3").refused(2, &["2 turns", "3"]);
}

/// Turn t is the F samples that end at (t + 1) H, zeros outside; turns cover the longest file.
#[test]
fn wav_frames_follow_their_formula() {
    let here = place();
    let folder = here.path().join("speech");
    std::fs::create_dir(&folder).unwrap();
    let samples = |file: usize| [11usize, 6][file];
    let sample = |file: usize, at: usize| ((at + 1) * 256 + file * 8192) as i16;
    for file in 0..2 {
        let all = (0..samples(file)).map(|at| sample(file, at));
        write_wav(folder.join(format!("{file}.wav")), 8000, all);
    }
    for (frame, hop, options) in [(4, 4, "frame=4"), (6, 4, "frame=6,hop=4"), (3, 5, "frame=3,hop=5")] {
        let line = format!("run {{}}/null.onnx --input x={{}}/speech,{options} --streams 3 --out {{}}/out --json");
        let found = lanes(here.path(), &line).json();
        assert_eq!(found["frame_ms"], 1000.0 * hop as f64 / 8000.0);
        let turns = 11usize.div_ceil(hop);
        let mut expected = Vec::new();
        for stream in 0..3 {
            for turn in 0..turns {
                let end = (turn + 1) * hop;
                for at in 0..frame {
                    let place = (end + at).checked_sub(frame).filter(|&place| place < samples(stream % 2));
                    expected.push(place.map_or(0.0, |place| 2.0 * f32::from(sample(stream % 2, place)) / 32768.0));
                }
            }
        }
        let shape = vec![3, turns as u64, frame as u64];
        assert_eq!(read_npy(here.path().join("out/y.npy")), (shape, expected), "{options}");
    }
}

#[test]
fn states_are_declared_and_start_where_init_says() {
    let here = place();
    write_npy(here.path().join("x.npy"), &[2, 3], [1.0, 2.0, 3.0, 10.0, 20.0, 30.0]);
    write_npy(here.path().join("init.npy"), &[3], [5.0, 6.0, 7.0]);
    for (init, expected) in [
        ("", [2.0, 4.0, 6.0, 22.0, 44.0, 66.0]),
        ("--init total=100", [202.0, 204.0, 206.0, 222.0, 244.0, 266.0]),
        ("--init total={}/init.npy", [12.0, 16.0, 20.0, 32.0, 56.0, 80.0]),
    ] {
        for axis in ["", "@0"] {
            let state = format!("--state total=more{axis} --lanes 1 --churn 0.5");
            let line = format!("run {{}}/unnamed.onnx --input {{}}/x.npy {state} {init} --streams 2 --out {{}}/out");
            done(here.path(), &line);
            let (_, found) = read_npy(here.path().join("out/y.npy"));
            assert_eq!(found, [expected, expected].concat(), "{line}");
        }
    }
}

/// With x = 0, y / 2 is the initial state for as long as it runs.
#[test]
fn init_takes_every_spec_of_one_lane_and_gives_it_to_all() {
    let here = place();
    let run = |options: &str| {
        let line = "run {}/adder.onnx --input zeros --turns 2 --streams 3 --lanes 2 --churn 0.5 --out {}/out";
        done(here.path(), &format!("{line} {options}"));
        let (shape, values) = read_npy(here.path().join("out/y.npy"));
        assert_eq!(shape, [3, 2, 3]);
        assert!(values.chunks(3).all(|y| y == &values[..3]), "{options}: {values:?}");
        [values[0] / 2.0, values[1] / 2.0, values[2] / 2.0]
    };
    assert_eq!(run("--init state=zeros"), [0.0; 3]);
    assert_eq!(run("--init state=-1.5"), [-1.5; 3]);
    let (normal, uniform) = (run("--init state=normal"), run("--init state=uniform"));
    assert_eq!(normal, run("--init state=normal --seed 0 --threads 1"));
    assert_ne!(normal, run("--init state=normal --seed 1"));
    assert!(normal[0] != normal[1] && uniform[0] != uniform[1] && normal != uniform);
    assert!(uniform.iter().all(|value| (0.0..1.0).contains(value)), "{uniform:?}");
    write_npy(here.path().join("four.npy"), &[4], [0.0; 4]);
    let line = "run {}/adder.onnx --input zeros --turns 2 --init state={}/four.npy";
    lanes(here.path(), line).refused(2, &["--init state", "[4]", "[batch, 3]", "number"]);
}

#[test]
fn no_two_outputs_share_a_file() {
    let here = place();
    let ran = lanes(here.path(), "run {}/names.onnx --input 3 --turns 1 --out {}/out");
    assert_eq!(ran.status, Some(0), "{ran:?}");
    for (file, value) in [("a_b", 6.0), ("a_b~1", 6.0), ("_..", 0.0), ("y_0", -3.0)] {
        assert_eq!(read_npy(here.path().join(format!("out/{file}.npy"))).1, [value], "{file}");
    }
    assert_eq!(std::fs::read_dir(here.path().join("out")).unwrap().count(), 4);
    let said: Vec<&str> = ran.err.lines().collect();
    let expected = ["`a/b` goes to a_b~1.npy", "`..` goes to _...npy", "`y:0` goes to y_0.npy"];
    assert_eq!(said, expected.map(|what| format!("lanes: output {what}")), "{ran:?}");
}

/// `check` writes what the backend gave, and takes the streams' churn as `run` does.
#[test]
fn check_serves_with_churn_and_writes_as_run_does() {
    let here = place();
    let options = "--input normal --streams 3 --lanes 2 --turns 5 --churn 0.6";
    done(here.path(), &format!("run {{}}/adder.onnx {options} --out {{}}/run"));
    done(here.path(), &format!("check {{}}/adder.onnx {options} --out {{}}/check"));
    let bytes = |folder: &str| std::fs::read(here.path().join(folder).join("y.npy")).unwrap();
    assert_eq!(bytes("run"), bytes("check"));
}

/// Without `--turns`, every turn that the input holds is checked, and no more than the shortest array holds is run.
#[test]
fn turns_are_what_the_inputs_hold() {
    let here = place();
    write_npy(here.path().join("long.npy"), &[70, 3], (0..210).map(|v| v as f32));
    let line = "check {}/adder.onnx --input {}/long.npy --out {}/out";
    done(here.path(), line);
    assert_eq!(read_npy(here.path().join("out/y.npy")).0, [1, 70, 3]);
    write_npy(here.path().join("x.npy"), &[7, 2], (0..14).map(|v| v as f32));
    write_npy(here.path().join("z.npy"), &[5, 2], (0..10).map(|v| v as f32));
    done(here.path(), "run {}/three.onnx --input x={}/x.npy --input z={}/z.npy --fix scale=1 --out {}/out");
    assert_eq!(read_npy(here.path().join("out/y.npy")).0, [1, 5, 2]);
}

/// y = x + z · scale, with scale for the whole turn.
#[test]
fn two_inputs_and_a_shared_one() {
    let here = place();
    let array = |name: &str, factor: f32| {
        write_npy(here.path().join(name), &[2, 3, 2], (0..12).map(|v| factor * v as f32));
    };
    array("x.npy", 1.0);
    array("z.npy", 100.0);
    let inputs = "--input x={}/x.npy --input z={}/z.npy";
    for scale in ["--input scale=-2 --shared scale", "--fix scale=-2"] {
        done(here.path(), &format!("run {{}}/three.onnx {inputs} {scale} --streams 2 --out {{}}/out"));
        let expected = (0..12).map(|v| v as f32 - 200.0 * v as f32).collect();
        assert_eq!(read_npy(here.path().join("out/y.npy")), (vec![2, 3, 2], expected), "{scale}");
    }
    // One input streams, so its name may be left out whatever else is fed.
    let line = "run {}/three.onnx --input {}/x.npy --input z=3 --shared z --input scale=2 --shared scale";
    done(here.path(), &format!("{line} --streams 2 --out {{}}/out"));
    assert_eq!(read_npy(here.path().join("out/y.npy")).1, (0..12).map(|v| v as f32 + 6.0).collect::<Vec<_>>());
}

#[test]
fn generated_values_depend_on_the_seed() {
    let here = place();
    let run = |options: &str| {
        done(here.path(), &format!("run {{}}/null.onnx --turns 3 --streams 2 --out {{}}/out {options}"));
        read_npy(here.path().join("out/y.npy")).1
    };
    let first = run("--input normal,frame=5");
    assert_eq!(first, run("--input x=normal,frame=5 --seed 0 --churn 1"));
    assert_ne!(first, run("--input normal,frame=5 --seed 1"));
    assert!(run("--input uniform,frame=5").iter().all(|y| (0.0..2.0).contains(y)));
    assert_eq!(run("--input -1.5,frame=1"), [-3.0; 6]);
    assert!(run("--input nan,frame=2").iter().all(|y| y.is_nan()));
}
