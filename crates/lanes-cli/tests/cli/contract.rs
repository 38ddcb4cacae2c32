//! Names, keys and exit statuses that scripts depend on.

use crate::common::{SPEECH, VAD, command, lanes, place};
use serde_json::Value;

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

const LATENCY: [&str; 4] = ["p50", "p90", "p99", "max"];
const RUN: [&str; 17] = [
    "model",
    "backend",
    "device",
    "streams",
    "lanes",
    "max_seats",
    "turns",
    "seats",
    "seats_per_turn",
    "padded_seats",
    "calls",
    "calls_per_s",
    "wall_s",
    "latency_us",
    "state_bytes_per_lane",
    "device_bytes",
    "errors",
];

#[test]
fn devices_lists_every_backend_once() {
    let here = place();
    let found = lanes(here.path(), "devices --json").json();
    assert_eq!(keys(&found), ["devices", "absent"]);
    let devices = found["devices"].as_array().unwrap();
    for device in devices {
        assert_eq!(keys(device), ["backend", "index", "name", "driver", "memory_bytes", "capabilities"]);
    }
    let absent = found["absent"].as_array().unwrap();
    let mut names: Vec<_> = devices.iter().chain(absent).map(|entry| entry["backend"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["cpu", "cuda", "vulkan", "wgpu"]);
    assert!(absent.iter().all(|a| keys(a) == ["backend", "why"] && !a["why"].as_str().unwrap().is_empty()));
}

#[test]
fn run_reports_its_keys_and_consistent_counts() {
    let here = place();
    let found = lanes(here.path(), "run {}/adder.onnx --input normal --streams 5 --lanes 3 --turns 7 --json").json();
    assert_eq!(keys(&found), RUN);
    assert_eq!(keys(&found["latency_us"]), LATENCY);
    for (key, expected) in [
        ("streams", 5),
        ("lanes", 3),
        ("max_seats", 3),
        ("seats", 35),
        ("calls", 35),
        ("errors", 0),
        ("state_bytes_per_lane", 12),
    ] {
        assert_eq!(found[key], expected, "{key}: {found}");
    }
    let (seats, turns) = (found["seats"].as_f64().unwrap(), found["turns"].as_f64().unwrap());
    assert_eq!(found["seats_per_turn"], seats / turns);
    assert_eq!(found["model"].as_str().unwrap(), here.path().join("adder.onnx").to_str().unwrap());
}

#[test]
fn a_wav_adds_the_frame_and_streams_in_real_time() {
    let here = place();
    let line = format!("run {VAD} --input input={SPEECH} --streams 3 --turns 4 --json");
    let found = lanes(here.path(), &line).json();
    assert_eq!(keys(&found)[..17], RUN);
    assert_eq!(keys(&found)[17..], ["frame_ms", "realtime_streams"]);
    // 512 samples at 16 kHz.
    assert_eq!(found["frame_ms"], 32.0);
    let (streams, calls) = (found["realtime_streams"].as_f64().unwrap(), found["calls_per_s"].as_f64().unwrap());
    // The parser of the test reads a number to within an ulp.
    assert!((streams / (calls * 32.0 / 1000.0) - 1.0).abs() < 4e-15, "{found}");
}

#[test]
fn bench_has_a_closed_row_and_a_paced_one_where_there_is_a_rate() {
    let here = place();
    let line = format!("bench {VAD} --input {SPEECH} --streams 1,3 --turns 4 --frame-ms 2 --json");
    let found = lanes(here.path(), &line).json();
    assert_eq!(keys(&found), ["model", "backend", "device", "threads", "frame_ms", "rows"]);
    let rows = found["rows"].as_array().unwrap();
    let modes: Vec<_> =
        rows.iter().map(|r| (r["streams"].as_u64().unwrap(), r["mode"].as_str().unwrap().to_owned())).collect();
    let row = |streams, mode: &str| (streams, mode.to_owned());
    assert_eq!(modes, [row(1, "closed"), row(1, "paced"), row(3, "closed"), row(3, "paced")]);
    for row in rows {
        let expected = [
            "streams",
            "mode",
            "calls_per_s",
            "us_per_seat",
            "turn_us_p50",
            "latency_us",
            "seats_per_turn",
            "realtime_streams",
            "device_us",
        ];
        assert_eq!(keys(row), expected);
        // The CPU keeps no time of its own.
        assert_eq!(row["device_us"], Value::Null);
        assert_eq!(keys(&row["latency_us"]), LATENCY);
    }
    let without = lanes(here.path(), "bench {}/adder.onnx --input normal --streams 2 --turns 3 --json");
    let found = without.json();
    assert_eq!((&found["frame_ms"], found["rows"].as_array().unwrap().len()), (&Value::Null, 1));
    assert!(without.err.contains("--frame-ms"), "{without:?}");
}

#[test]
fn check_compares_every_output_with_either_reference() {
    let here = place();
    for (line, against) in [
        (format!("check {VAD} --input {SPEECH} --streams 2 --turns 3 --json"), "oracle"),
        (format!("check {VAD} --input normal --turns 3 --backend cpu --against cpu --json"), "cpu"),
        ("check {}/adder.onnx --input nan --turns 2 --against oracle --json".to_owned(), "oracle"),
    ] {
        let found = lanes(here.path(), &line).json();
        assert_eq!(keys(&found), ["model", "backend", "against", "outputs", "first_difference", "ok"]);
        assert_eq!((found["against"].as_str(), found["ok"].as_bool()), (Some(against), Some(true)));
        for output in found["outputs"].as_array().unwrap() {
            assert_eq!(keys(output), ["name", "max_abs", "max_rel", "max_ulp", "tolerance", "ok"]);
        }
        assert_eq!(found["first_difference"], Value::Null);
    }
}

/// Rounded operands show beside the oracle, which rounds nothing, and not beside the same backend.
#[test]
fn a_precision_rounds_the_operands_of_products() {
    let here = place();
    let check = |options: &str| {
        let line = format!("check {{}}/product.onnx --input normal --turns 3 --streams 2 --json {options}");
        let output = &lanes(here.path(), &line).json()["outputs"][0];
        (output["max_abs"].as_f64().unwrap(), output["tolerance"].as_f64().unwrap(), output["ok"].as_bool().unwrap())
    };
    let (exact, tolerance, ok) = check("--against oracle");
    assert!(ok && exact < 1e-5 && tolerance == 1e-5, "{exact} {tolerance}");
    let (rounded, tolerance, ok) = check("--against oracle --precision bf16");
    assert!(ok && rounded > 1e-4 && tolerance == 0.015625, "{rounded} {tolerance}");
    assert_eq!(check("--against cpu --precision bf16").0, 0.0);
}

#[test]
fn without_json_a_table_is_printed_and_stderr_stays_empty() {
    let here = place();
    for line in [
        "devices",
        "inspect {}/adder.onnx",
        "run {}/adder.onnx --input normal --turns 2",
        "check {}/adder.onnx --input normal --turns 2",
        "--help",
        "--version",
        "run --help",
    ] {
        let ran = lanes(here.path(), line);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{line}");
        assert!(ran.out.lines().count() >= 1 && !ran.out.starts_with('{'), "{line}: {ran:?}");
    }
}

/// Every kind of wrong usage: exit 2, one paragraph, with what was found and what is accepted.
#[test]
fn wrong_usage_is_refused_in_words() {
    let here = place();
    let model = "run {}/adder.onnx --turns 2";
    let cases: Vec<(String, &[&str])> = vec![
        ("bogus".into(), &["bogus"]),
        ("run".into(), &["<MODEL>"]),
        ("".into(), &["no command", "devices, inspect, run, check, bench, loom"]),
        ("devices --nope".into(), &["--nope", "lanes devices accepts --json"]),
        (format!("{model} --input normal --nope"), &["--nope", "--input", "--streams", "--out"]),
        ("run {}/adder.onnx --input normal --turns x".into(), &["--turns", "'x'", "whole number from 1 to 4294967295"]),
        (format!("{model} --input normal --seed=-1"), &["--seed", "whole number from 0 to 18446744073709551615"]),
        (format!("{model} --input normal --lanes 4611686018427387904"), &["--lanes", "16777216"]),
        ("inspect {}/adder.onnx --backend vulkan:1".into(), &["--backend vulkan:1", "not written yet"]),
        ("inspect {}/adder.onnx --backend tpu".into(), &["tpu", "wgpu[:N]"]),
        ("inspect {}/adder.onnx --backend cpu:1".into(), &["cpu", "device 1"]),
        (format!("{model} --input normal --pulse x"), &["--pulse x", "not written yet"]),
        (format!("{model} --input normal --init state={{}}"), &["`state`", "audio", "FILE.npy", "uniform"]),
        (
            format!("{model} --input normal --init state=bogus"),
            &["`state`", "`bogus`", "FILE.npy", "normal", "uniform"],
        ),
        (format!("{model} --input normal --init state=normal --init state=1"), &["`state`", "twice"]),
        (format!("{model} --input normal --init nope=normal"), &["nope", "state"]),
        (format!("{model} --input normal --init state=normal,frame=4"), &["`state`", "frame=4"]),
        (format!("{model} --input normal --fix x=normal"), &["x", "`normal`", "zeros", "FILE.npy"]),
        (format!("{model} --input normal --fix x=bogus"), &["x", "`bogus`", "zeros", "FILE.npy"]),
        ("run {}/adder.onnx".into(), &["`x`", "float32", "--input x=SPEC"]),
        ("run {}/adder.onnx --input normal".into(), &["--turns"]),
        (format!("{model} --input x=normal --input x=zeros"), &["`x`", "twice"]),
        (format!("{model} --input nope=normal"), &["nope", "`x`"]),
        (format!("{model} --input bogus"), &["bogus", "FILE.npy", "normal", "uniform", "zeros"]),
        (format!("{model} --input normal,frame=4"), &["`x`", "[3]", "frame=4"]),
        (format!("{model} --input normal,frame=18446744073709551615"), &["`x`", "[3]"]),
        (format!("{model} --input normal,frame=18446744073709551616"), &["positive whole number"]),
        (format!("{model} --input normal --streams 0"), &["--streams", "0"]),
        (format!("{model} --input normal --lanes 16777217"), &["--lanes", "16777216"]),
        (format!("{model} --input normal --linger-us 60000001"), &["--linger-us", "60000000"]),
        (format!("{model} --input normal --threads 1025"), &["--threads", "1024"]),
        (format!("{model} --input normal --churn nan"), &["--churn", "from 0 to 1"]),
        (format!("{model} --input normal --churn 1.5"), &["--churn", "from 0 to 1"]),
        (format!("{model} --input normal --backend vulkan:1"), &["vulkan", "not written yet"]),
        // Without the feature it is named; with it a machine has no driver, or not as many devices.
        (format!("{model} --input normal --backend cuda:99"), &["cuda"]),
        (format!("{model} --input normal --backend cpu:1"), &["cpu", "device 1"]),
        (format!("{model} --input normal --backend tpu"), &["tpu", "vulkan[:N]"]),
        (format!("{model} --input normal --precision f16"), &["f16", "cpu", "f32 and bf16"]),
        (format!("{model} --input normal --precision tf32"), &["tf32", "f32 and bf16"]),
        (format!("{model} --input normal --precision f8"), &["f8", "tf32"]),
        (format!("{model} --input normal --state state"), &["IN=OUT"]),
        (format!("{model} --input normal --state state=y@x"), &["@x", "axis"]),
        (format!("{model} --input normal --state state=state_out@2"), &["@2", "below 2"]),
        (format!("{model} --input normal --state state=nope"), &["nope", "state_out"]),
        (format!("{model} --input normal --state nope=y"), &["nope", "state"]),
        (format!("{model} --input normal --init nope=1"), &["nope", "state"]),
        (
            format!("{model} --input normal --init state={{}}/a.wav"),
            &["--init", "`state`", "a.wav", "FILE.npy", "uniform"],
        ),
        (format!("{model} --input normal --fix x"), &["NAME=VALUE"]),
        (format!("{model} --input normal --shared nope"), &["nope", "x"]),
        ("run {}/unnamed.onnx --input normal --turns 2".into(), &["`x`", "`total`"]),
        ("run {}/three.onnx --input normal --turns 2".into(), &["`x`", "`z`", "`scale`"]),
        ("run {}/null.onnx --input normal --turns 2".into(), &["`x`", "frame=F"]),
        ("run {}/mixing.onnx --input normal --turns 2".into(), &["mixing.onnx", "Softmax_y", "Softmax", "mixes lanes"]),
        ("run {}/unknown.onnx --input normal --turns 2".into(), &["unknown.onnx", "NoSuchOp_y", "not supported"]),
        ("run {}/foreign.onnx --input normal --turns 2".into(), &["foreign.onnx", "operator set 99", "7 to 27"]),
        ("bench {}/adder.onnx --input normal --frame-ms 1e300".into(), &["--frame-ms", "'1e300'", "0.001 to 3600000"]),
        ("bench {}/adder.onnx --input normal --frame-ms 0".into(), &["--frame-ms", "0.001 to 3600000"]),
        ("bench {}/adder.onnx --input normal --frame-ms -1".into(), &["--frame-ms", "'-1'", "0.001 to 3600000"]),
        ("bench {}/adder.onnx --input normal --streams -1".into(), &["--streams", "'-1'", "whole number from 1"]),
        (format!("{model} --input normal --streams -1"), &["--streams", "'-1'", "whole number from 1"]),
        (format!("{model} --input normal --seed -1"), &["--seed", "'-1'", "whole number from 0"]),
        (format!("{model} --input normal --churn -0.1"), &["--churn", "'-0.1'", "from 0 to 1"]),
        (format!("{model} --input normal --max-seats 16777217"), &["--max-seats", "1 to 16777216"]),
        ("inspect {}/adder.onnx --max-seats 16777217".into(), &["--max-seats", "1 to 16777216"]),
        ("bench {}/adder.onnx --input normal --streams 1,,2".into(), &["--streams"]),
        ("check {}/adder.onnx --input normal --turns 2 --against tpu".into(), &["tpu", "cpu", "oracle"]),
        ("inspect {}/adder.onnx --lanes 4294967295".into(), &["--lanes", "16777216"]),
    ];
    for (line, says) in cases {
        let ran = lanes(here.path(), &line);
        ran.refused(2, says);
    }
}

#[test]
fn names_outside_ascii_are_names() {
    let here = place();
    let path = here.path().join("größe 模型.onnx");
    std::fs::copy(here.path().join("adder.onnx"), &path).unwrap();
    let out = here.path().join("вы ход");
    let ran = command(["run".as_ref(), path.as_os_str(), "--input=normal".as_ref(), "--turns=2".as_ref()])
        .arg("--json")
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    let found = crate::common::Ran::from(ran).json();
    assert_eq!(found["model"].as_str().unwrap(), path.to_str().unwrap());
    assert!(out.join("y.npy").is_file());
}

#[test]
fn one_state_that_may_be_either_output_is_advised_once() {
    let here = place();
    let ran = lanes(here.path(), "run {}/either.onnx --input x=normal --turns 1");
    ran.refused(2, &["hn [batch, 3]", "next_h [batch, 3]", "--state h=OUTPUT"]);
    // Not the first output that has its shape.
    assert_eq!(ran.err.matches("--state").count(), 1, "{ran:?}");
    // Where nothing is named after it, that is the advice.
    lanes(here.path(), "run {}/unnamed.onnx --input x=normal --turns 1").refused(2, &["--state total=y"]);
    lanes(here.path(), "run {}/either.onnx --input x=normal --turns 1 --state h=hn --json").json();
}
