//! `lanes check`: the same inputs on a backend and on what it is checked against.
//!
//! Outputs first; where one is out of tolerance, the stream it happened on runs again with every node's result as an
//! output, and the first node in graph order that parts is named.

use crate::args::{Against, CheckArgs};
use crate::error::{CliError, CliResult};
use crate::load::{self, Loaded};
use crate::out::Out;
use crate::say;
use crate::serve::{Drive, chain, drive};
use lanes::device::Device;
use lanes::onnx::oracle::OracleModel;
use lanes::onnx::{Model, ValueId};
use lanes::{DType, OpenOptions, Port};
use serde::Serialize;
use std::sync::Arc;

/// The JSON object; keys are a contract.
#[derive(Serialize)]
struct Report {
    model: String,
    backend: String,
    against: &'static str,
    outputs: Vec<Output>,
    first_difference: Option<Difference>,
    ok: bool,
}

#[derive(Serialize)]
struct Output {
    name: String,
    max_abs: f64,
    max_rel: f64,
    max_ulp: u64,
    tolerance: f64,
    ok: bool,
}

#[derive(Serialize)]
struct Difference {
    node: String,
    op: String,
    max_abs: f64,
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> CliResult {
    if let Some(folder) = &args.out {
        Out::make_folder(folder)?;
    }
    let device = load::device(&args.serve.backend, args.serve.threads)?;
    let loaded = load::load(&args.model)?;
    let streams = args.streams as usize;
    let turns = load::turns(&loaded.sources, streams, args.turns)?;
    let ports = &loaded.model.signature.outputs;
    let out = args.out.as_ref().map(|folder| Out::choose(folder, ports));
    let ours = outputs(args, &loaded, &loaded.model, &device, (0, streams), turns)?;
    if let Some(out) = &out {
        out.write(ports, &ours, streams, turns)?;
    }
    let theirs = reference(args, &loaded, &loaded.model, (0, streams), turns)?;
    let compared: Vec<Output> =
        ports.iter().zip(ours.iter().zip(&theirs)).map(|(port, (a, e))| compare(port, a, e)).collect();
    let ok = compared.iter().all(|output| output.ok);
    let first_difference = if ok { None } else { first_difference(args, &loaded, &device, &ours, &theirs, turns)? };
    let report = Report {
        model: args.model.path.display().to_string(),
        backend: device.capabilities().backend.to_owned(),
        against: match args.against {
            Against::Cpu => "cpu",
            Against::Oracle => "oracle",
        },
        outputs: compared,
        first_difference,
        ok,
    };
    if args.json {
        say::json(&report)?;
    } else {
        say::result(&table(&report, streams, turns))?;
    }
    if report.ok {
        return Ok(());
    }
    let at = report
        .first_difference
        .map_or(String::new(), |d| format!("; first at node {} ({}), by {:.2e}", d.node, d.op, d.max_abs));
    Err(CliError::failed(format!("{} parts from the {} past tolerance{at}", report.backend, report.against)))
}

fn table(report: &Report, streams: usize, turns: usize) -> String {
    let mut lines = vec![
        format!("{} on {} against {}: {streams} streams, {turns} turns", report.model, report.backend, report.against),
        "output                            max abs     max rel     max ulp  tolerance".to_owned(),
    ];
    for o in &report.outputs {
        let verdict = if o.ok { "ok" } else { "PARTS" };
        lines.push(format!(
            "{:30} {:10.2e} {:11.2e} {:11} {:10.1e}  {verdict}",
            o.name, o.max_abs, o.max_rel, o.max_ulp, o.tolerance
        ));
    }
    if let Some(first) = &report.first_difference {
        lines.push(format!("first difference: node {} ({}), by {:.2e}", first.node, first.op, first.max_abs));
    }
    lines.join("\n")
}

/// All outputs of streams `first..first + count` on `device`: `[stream, turn, …]` bytes each.
fn outputs(
    args: &CheckArgs,
    loaded: &Loaded,
    model: &Model,
    device: &Arc<dyn Device>,
    streams: (usize, usize),
    turns: usize,
) -> CliResult<Vec<Vec<u8>>> {
    let planned = lanes::planned(device.clone(), model).map_err(|why| CliError::file(&args.model.path, chain(&why)))?;
    served(args, loaded, planned, streams, turns)
}

fn reference(
    args: &CheckArgs,
    loaded: &Loaded,
    model: &Model,
    streams: (usize, usize),
    turns: usize,
) -> CliResult<Vec<Vec<u8>>> {
    match args.against {
        Against::Cpu => {
            let options = OpenOptions { threads: Some(1), budget: crate::machine::available_bytes() };
            let cpu = lanes::open("cpu", &options).map_err(|why| CliError::usage(why.to_string()))?;
            outputs(args, loaded, model, &cpu, streams, turns)
        }
        Against::Oracle => served(args, loaded, OracleModel::new(model), streams, turns),
    }
}

fn served(
    args: &CheckArgs,
    loaded: &Loaded,
    model: impl lanes::lanes::LanedModel + 'static,
    (first, streams): (usize, usize),
    turns: usize,
) -> CliResult<Vec<Vec<u8>>> {
    let runnable = load::serve(model, &args.serve, streams as u32)?;
    let run = Drive {
        runnable: &runnable,
        sources: &loaded.sources,
        first,
        streams,
        turns,
        seed: args.model.seed,
        churn: args.serve.churn,
        keep: true,
        pace: None,
    };
    let served = drive(&run, |_| {})?;
    match served.first_error {
        Some(first) => {
            Err(CliError::failed(format!("{} of {} calls failed; the first: {first}", served.errors, served.calls)))
        }
        None => Ok(served.outputs),
    }
}

fn first_difference(
    args: &CheckArgs,
    loaded: &Loaded,
    device: &Arc<dyn Device>,
    ours: &[Vec<u8>],
    theirs: &[Vec<u8>],
    turns: usize,
) -> CliResult<Option<Difference>> {
    let ports = &loaded.model.signature.outputs;
    // The first turn at which any stream's output parts, and that stream.
    let parted = ports.iter().zip(ours.iter().zip(theirs)).flat_map(|(port, (a, e))| {
        let size = port.bytes().max(1);
        a.chunks_exact(size)
            .zip(e.chunks_exact(size))
            .enumerate()
            .filter(move |(_, (a, e))| !compare(port, a, e).ok)
            .map(|(at, _)| at)
    });
    let Some(at) = parted.min_by_key(|at| at % turns) else { return Ok(None) };
    let (stream, turns) = (at / turns, at % turns + 1);
    let values = results(&loaded.model);
    let extra: Vec<ValueId> = values.iter().map(|&(id, _)| id).collect();
    let seen = loaded.model.with_outputs(&extra);
    let ours = outputs(args, loaded, &seen, device, (stream, 1), turns)?;
    let theirs = reference(args, loaded, &seen, (stream, 1), turns)?;
    for turn in 0..turns {
        for (n, &(id, node)) in values.iter().enumerate() {
            let info = loaded.model.graph.value(id);
            let port = Port {
                name: info.name.clone(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                scope: lanes::Scope::Seat,
            };
            let size = port.bytes();
            let part = |all: &[Vec<u8>]| all[ports.len() + n][turn * size..][..size].to_vec();
            let found = compare(&port, &part(&ours), &part(&theirs));
            if !found.ok {
                let node = &loaded.model.graph.nodes[node];
                return Ok(Some(Difference { node: node.name.clone(), op: node.onnx.clone(), max_abs: found.max_abs }));
            }
        }
    }
    Ok(None)
}

/// Every node's results that can be compared, in graph order, with the node's place.
fn results(model: &Model) -> Vec<(ValueId, usize)> {
    let graph = &model.graph;
    let nodes = graph.nodes.iter().enumerate();
    nodes
        .flat_map(|(at, node)| node.outputs.iter().flatten().map(move |&id| (id, at)))
        .filter(|(id, _)| graph.value(*id).elements() > 0)
        .collect()
}

/// Values of one output on both sides. Floats agree within `tolerance · max(1, |expected|)`: f32 sums of some hundred
/// terms in another order, and functions good to 2 ulp, stay an order of magnitude below 1e-5. All else is exact.
fn compare(port: &Port, actual: &[u8], expected: &[u8]) -> Output {
    let tolerance = match port.dtype {
        DType::F32 | DType::F64 => 1e-5,
        // Half an ulp of the narrow type, and as much again for a value that rounds the other way.
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 0.0,
    };
    let (a, e) = (numbers(port.dtype, actual), numbers(port.dtype, expected));
    let mut found =
        Output { name: port.name.clone(), max_abs: 0.0, max_rel: 0.0, max_ulp: 0, tolerance, ok: a.len() == e.len() };
    for (a, e) in a.iter().zip(&e) {
        if a.to_bits() == e.to_bits() || (a.is_nan() && e.is_nan()) {
            continue;
        }
        let abs = if a == e { 0.0 } else { (a - e).abs() };
        // JSON has no infinity: what parts without bound is the largest number.
        let bounded = |x: f64| if x.is_nan() { f64::MAX } else { x.min(f64::MAX) };
        found.max_abs = found.max_abs.max(bounded(abs));
        found.max_rel = found.max_rel.max(bounded(abs / e.abs().max(f64::MIN_POSITIVE)));
        if port.dtype == DType::F32 {
            found.max_ulp = found.max_ulp.max(ulps(*a as f32, *e as f32));
        }
        // Written so that NaN parts.
        found.ok &= abs <= tolerance * e.abs().max(1.0);
    }
    found
}

/// How many floats lie between two, counting from one to the other.
fn ulps(a: f32, b: f32) -> u64 {
    let ordered = |x: f32| {
        let bits = x.to_bits() as i32;
        i64::from(if bits < 0 { i32::MIN.wrapping_sub(bits) } else { bits })
    };
    ordered(a).abs_diff(ordered(b))
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn each<T: bytemuck::AnyBitPattern>(bytes: &[u8], as_f64: impl Fn(T) -> f64) -> Vec<f64> {
        bytes.chunks_exact(size_of::<T>()).map(|element| as_f64(bytemuck::pod_read_unaligned(element))).collect()
    }
    match dtype {
        DType::F32 => each(bytes, |x: f32| x.into()),
        DType::F64 => each(bytes, |x: f64| x),
        DType::F16 => each(bytes, |x: half::f16| x.into()),
        DType::BF16 => each(bytes, |x: half::bf16| x.into()),
        DType::I8 => each(bytes, |x: i8| x.into()),
        DType::I16 => each(bytes, |x: i16| x.into()),
        DType::I32 => each(bytes, |x: i32| x.into()),
        DType::I64 => each(bytes, |x: i64| x as f64),
        DType::U16 => each(bytes, |x: u16| x.into()),
        DType::U32 => each(bytes, |x: u32| x.into()),
        DType::U64 => each(bytes, |x: u64| x as f64),
        _ => bytes.iter().map(|&x| x.into()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(dtype: DType) -> Port {
        Port { name: "y".to_owned(), dtype, shape: vec![1], scope: lanes::Scope::Seat }
    }

    #[test]
    fn tolerance_is_absolute_below_one_and_relative_above() {
        let check = |a: f32, e: f32| compare(&port(DType::F32), &a.to_le_bytes(), &e.to_le_bytes());
        assert!(check(0.000_009, 0.0).ok && !check(0.000_011, 0.0).ok);
        assert!(check(100_000.9, 100_000.0).ok && !check(100_001.1, 100_000.0).ok);
        assert!(check(f32::NAN, f32::NAN).ok && !check(f32::NAN, 0.0).ok && !check(0.0, f32::NAN).ok);
        assert!(check(f32::INFINITY, f32::INFINITY).ok && !check(f32::INFINITY, 1.0).ok);
        assert!(check(0.0, -0.0).ok);
        assert_eq!(check(1.0 + f32::EPSILON, 1.0).max_ulp, 1);
        assert_eq!(ulps(-f32::from_bits(1), f32::from_bits(1)), 2);
    }

    #[test]
    fn integers_are_exact() {
        let check = |a: i64, e: i64| compare(&port(DType::I64), &a.to_le_bytes(), &e.to_le_bytes()).ok;
        assert!(check(-7, -7) && !check(-7, -6));
    }
}
