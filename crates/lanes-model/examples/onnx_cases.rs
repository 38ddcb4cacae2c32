//! Runs ONNX test cases through the importer and the oracle, and prints which pass.
//!
//! ```text
//! cargo run --release -p lanes-model --example onnx_cases -- [--fix NAME=NUMBER]... CASE_DIR...
//! ```
//!
//! A case is a folder as ONNX's own backend tests have it: `model.onnx`, and `test_data_set_N/{input,output}_M.pb`. Every case
//! runs twice: with its integer and boolean inputs bound at import, and with none, if that can be imported.

use bytes::Bytes;
use lanes_model::onnx::proto::{ModelProto, TensorProto};
use lanes_model::oracle::Evaluator;
use lanes_model::{Given, ImportOptions, ModelError, Tensor, load};
use prost::Message;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn main() {
    let mut fixed = BTreeMap::new();
    let mut cases = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--fix" {
            let pair = arguments.next().unwrap_or_default();
            let (name, value) = pair.split_once('=').expect("--fix NAME=NUMBER");
            fixed.insert(name.to_owned(), Given::Number(value.parse().expect("a number")));
        } else {
            cases.push(PathBuf::from(argument));
        }
    }
    let mut counts = BTreeMap::<&str, usize>::new();
    for case in &cases {
        let (status, what) = match run_case(case, &fixed) {
            Ok(worst) => ("pass", format!("worst difference {worst:.2e}")),
            Err(Verdict::Unsupported(why)) => ("unsupported", why),
            Err(Verdict::Wrong(why)) => ("FAIL", why),
        };
        *counts.entry(status).or_default() += 1;
        println!("{status}\t{}\t{what}", case.file_name().unwrap_or_default().to_string_lossy());
    }
    println!("{counts:?}");
}

enum Verdict {
    Unsupported(String),
    Wrong(String),
}

fn run_case(case: &Path, fixed: &BTreeMap<String, Given>) -> Result<f64, Verdict> {
    let wrong = |what: String| Verdict::Wrong(what);
    let path = case.join("model.onnx");
    let bytes = std::fs::read(&path).map_err(|error| wrong(error.to_string()))?;
    let proto = ModelProto::decode(Bytes::from(bytes)).map_err(|error| wrong(error.to_string()))?;
    let graph = proto.graph.unwrap_or_default();
    let names: Vec<String> = graph.input.iter().map(|input| input.name.clone()).collect();
    let mut worst = 0f64;
    for set in 0.. {
        let set = case.join(format!("test_data_set_{set}"));
        if !set.is_dir() {
            break;
        }
        let inputs =
            (0..names.len()).map(|at| tensor(&set.join(format!("input_{at}.pb")))).collect::<Result<Vec<_>, _>>()?;
        let outputs = (0..graph.output.len())
            .map(|at| tensor(&set.join(format!("output_{at}.pb"))))
            .collect::<Result<Vec<_>, _>>()?;
        let given = |all: bool| {
            let mut options = ImportOptions { fix: fixed.clone(), ..ImportOptions::default() };
            for (name, input) in names.iter().zip(&inputs) {
                if options.fix.contains_key(name) {
                    continue;
                }
                if all && input.to_i64s().is_some() {
                    options.fix.insert(name.clone(), Given::Tensor(input.clone()));
                } else {
                    // The same for every lane: a case is no stream.
                    options.shared.push(name.clone());
                    options.shapes.insert(name.clone(), input.shape().to_vec());
                }
            }
            options
        };
        worst = worst.max(run(&path, &names, &inputs, &outputs, &given(true))?);
        match run(&path, &names, &inputs, &outputs, &given(false)) {
            Ok(difference) => worst = worst.max(difference),
            Err(Verdict::Unsupported(_)) => {}
            Err(wrong) => return Err(wrong),
        }
    }
    Ok(worst)
}

fn run(
    path: &Path,
    names: &[String],
    inputs: &[Tensor],
    outputs: &[Tensor],
    options: &ImportOptions,
) -> Result<f64, Verdict> {
    let model = load(path, options).map_err(|error| match error {
        ModelError::Unsupported { .. } => Verdict::Unsupported(error.to_string()),
        other => Verdict::Wrong(other.to_string()),
    })?;
    let graph = Arc::new(model.graph);
    let brought: Vec<Tensor> = (names.iter().zip(inputs))
        .filter(|(name, _)| !options.fix.contains_key(*name))
        .map(|(_, input)| input.clone())
        .collect();
    let results = Evaluator::new(graph).run(&brought).map_err(|error| Verdict::Wrong(error.to_string()))?;
    let mut worst = 0f64;
    for (at, (result, expected)) in results.iter().zip(outputs).enumerate() {
        if (result.dtype(), result.shape()) != (expected.dtype(), expected.shape()) {
            let (found, wanted) = ((result.dtype(), result.shape()), (expected.dtype(), expected.shape()));
            return Err(Verdict::Wrong(format!("output {at} is {found:?}, expected {wanted:?}")));
        }
        let (Some(found), Some(wanted)) = (result.to_f32s(), expected.to_f32s()) else {
            if result != expected {
                return Err(Verdict::Wrong(format!("output {at} differs")));
            }
            continue;
        };
        // Half precision rounds to 2^-11, and expectations were computed in another order.
        let tolerance = if result.dtype().size() == 2 { 2e-3 } else { 1e-5 };
        for (a, e) in found.iter().zip(wanted.iter()) {
            let (a, e) = (f64::from(*a), f64::from(*e));
            let difference = if a == e || (a.is_nan() && e.is_nan()) { 0.0 } else { (a - e).abs() / e.abs().max(1.0) };
            worst = if difference.is_nan() { f64::INFINITY } else { worst.max(difference) };
            if difference.is_nan() || difference > tolerance {
                return Err(Verdict::Wrong(format!("output {at}: {a} where {e} is expected")));
            }
        }
    }
    Ok(worst)
}

fn tensor(path: &Path) -> Result<Tensor, Verdict> {
    let bytes = std::fs::read(path).map_err(|error| Verdict::Wrong(format!("{}: {error}", path.display())))?;
    let proto = TensorProto::decode(Bytes::from(bytes))
        .map_err(|error| Verdict::Unsupported(format!("{}: {error}", path.display())))?;
    lanes_model::onnx::read_tensor(&proto).map_err(|error| Verdict::Unsupported(error.to_string()))
}
