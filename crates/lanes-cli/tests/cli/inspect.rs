//! `lanes inspect`: exit 0 whenever the file can be read, and what it says of good, mixing and unsupported models.

use crate::common::{VAD, lanes, place};
use serde_json::{Value, json};

const KEYS: [&str; 13] = [
    "model",
    "opset",
    "inputs",
    "outputs",
    "states",
    "lane_independent",
    "why",
    "per_lane",
    "ops",
    "unsupported",
    "parameters",
    "weight_bytes",
    "memory",
];

fn inspect(line: &str) -> Value {
    let here = place();
    let found = lanes(here.path(), &format!("inspect {line} --json")).json();
    let keys: Vec<&str> = found.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, KEYS);
    found
}

#[test]
fn a_model_with_states() {
    let found = inspect(&format!("{VAD} --lanes 10"));
    let port = |name, width, role| json!({"name": name, "dtype": "float32", "shape": ["batch", width], "role": role, "lane_axis": 0});
    assert_eq!(
        found["inputs"],
        json!([port("input", 512, "stream"), port("context", 128, "state"), port("state", 64, "state")])
    );
    assert_eq!(
        found["outputs"],
        json!([port("output", 1, "stream"), port("next_context", 128, "state"), port("next_state", 64, "state")])
    );
    let state = |input, output, width| {
        json!({"input": input, "output": output, "dtype": "float32", "lane_shape": [width], "lane_axis": 0,
               "bytes_per_lane": width * 4})
    };
    assert_eq!(found["states"], json!([state("context", "next_context", 128), state("state", "next_state", 64)]));
    assert_eq!((&found["lane_independent"], &found["why"]), (&json!(true), &Value::Null));
    assert_eq!((&found["unsupported"], &found["opset"]), (&json!([]), &json!(17)));
    assert_eq!(found["weight_bytes"], found["parameters"].as_u64().unwrap() * 4);
    let memory = &found["memory"];
    assert_eq!(memory["lanes"], 10);
    // A row a lane, one a seat, and the initial row.
    assert_eq!(memory["state"], 21 * (128 + 64) * 4);
    for key in ["weights", "scratch", "staging"] {
        assert!(memory[key].as_u64().unwrap() > 0, "{memory}");
    }
}

#[test]
fn models_that_would_be_refused_are_still_described() {
    let mixing = inspect("{}/mixing.onnx");
    assert_eq!(mixing["lane_independent"], false);
    let why = mixing["why"].as_str().unwrap();
    assert!(why.contains("Softmax_y") && why.contains("(Softmax)"), "{why}");
    assert_eq!((&mixing["ops"], &mixing["memory"]), (&json!({"Softmax": 1}), &Value::Null));

    let unknown = inspect("{}/unknown.onnx");
    let unsupported = &unknown["unsupported"][0];
    assert_eq!((&unsupported["node"], &unsupported["op"]), (&json!("NoSuchOp_y"), &json!("NoSuchOp")));
    assert_eq!(unknown["lane_independent"], false);

    let foreign = inspect("{}/foreign.onnx");
    assert_eq!((&foreign["opset"], &foreign["lane_independent"]), (&json!(99), &json!(false)));
    let why = foreign["why"].as_str().unwrap();
    assert!(why.contains("operator set 99") && why.contains("7 to 27"), "{why}");

    let per_lane = inspect("{}/per_lane.onnx");
    let rewritten = &per_lane["per_lane"][0];
    assert_eq!((&rewritten["node"], &rewritten["op"]), (&json!("ReduceMax_m"), &json!("ReduceMax")));
    assert_eq!(per_lane["lane_independent"], true);
}

#[test]
fn options_change_the_roles() {
    let declared = inspect("{}/unnamed.onnx --state total=more@0");
    assert_eq!(declared["states"][0]["bytes_per_lane"], 12);
    let roles = |found: &Value| -> Vec<String> {
        found["inputs"].as_array().unwrap().iter().map(|i| i["role"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(roles(&declared), ["stream", "state"]);
    assert_eq!(roles(&inspect("{}/unnamed.onnx")), ["stream", "stream"]);
    assert_eq!(roles(&inspect("{}/three.onnx --shared scale")), ["stream", "stream", "shared"]);
    assert_eq!(roles(&inspect("{}/three.onnx --fix scale=2")), ["stream", "stream", "fixed"]);
}

/// What `inspect` says of a number of lanes is what `run` then takes.
#[test]
fn memory_is_that_of_a_run_with_the_same_options() {
    for options in ["--lanes 3", "--lanes 40 --max-seats 5 --threads 1", "--backend cpu --lanes 9 --threads 3"] {
        let memory = inspect(&format!("{VAD} {options}"))["memory"].clone();
        let bytes = |key: &str| memory[key].as_u64().unwrap();
        let here = place();
        let ran = lanes(here.path(), &format!("run {VAD} --input zeros --turns 1 {options} --json")).json();
        let parts = bytes("weights") + bytes("state") + bytes("scratch") + bytes("staging");
        // What is left is the plan's own tables.
        let graphs = ran["device_bytes"].as_u64().unwrap() - parts;
        assert!(graphs < 100_000, "{options}: {memory} {ran}");
    }
}
