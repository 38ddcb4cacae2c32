//! `lanes check`: the same inputs on a backend and on what it is checked against.
//!
//! - Outputs are those of the plan that is served. The states after the last turn are compared too: as outputs of a plan
//!   that has them, since a device keeps its rows in an order of its own.
//! - Where something is out of tolerance, the stream it happened on runs again with every node's result as an output, and
//!   the first node in graph order that parts is named.

use crate::args::{Against, CheckArgs, Precision};
use crate::error::{CliError, CliResult};
use crate::load::{self, Loaded};
use crate::out::Out;
use crate::say::{self, count};
use crate::serve::{Drive, drive};
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
    let states: Vec<Port> = loaded.model.signature.states.iter().map(final_state).collect();
    if ports.iter().chain(&states).all(|port| port.bytes() == 0) {
        let text = "nothing to compare: it has no outputs and no states with elements";
        return Err(CliError::file(&args.model.path, text));
    }
    let out = args.out.as_ref().map(|folder| Out::choose(folder, ports)).transpose()?;
    let all = Part { first: 0, streams, turns, last_from: ports.len() };
    let mut ours = outputs(args, &loaded, &loaded.model, &device, all)?;
    let theirs = if states.is_empty() {
        reference(args, &loaded, &loaded.model, all)?
    } else {
        let values: Vec<ValueId> = loaded.model.states.iter().map(|state| state.output).collect();
        let seen = loaded.model.with_outputs(&values);
        ours.extend(outputs(args, &loaded, &seen, &device, all)?.split_off(ports.len()));
        reference(args, &loaded, &seen, all)?
    };
    let compared: Vec<Output> = ports
        .iter()
        .chain(&states)
        .zip(ours.iter().zip(&theirs))
        .map(|(port, (a, e))| compare(port, a, e, args.model.precision))
        .collect();
    let ok = compared.iter().all(|output| output.ok);
    let parted = if ok { None } else { first_parted((ports, &states), &ours, &theirs, turns, args.model.precision) };
    let first_difference = match parted {
        Some(parted) => first_difference(args, &loaded, &device, parted)?,
        None => None,
    };
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
    // The verdict first: a disk that fills up must not take it too.
    let said = if args.json { say::json(&report) } else { say::lines(&table(&report, streams, turns, ports.len())) };
    let written = match &out {
        Some(out) => out.write(ports, &ours, streams, turns),
        None => Ok(()),
    };
    let agrees = if report.ok {
        Ok(())
    } else {
        let at = report
            .first_difference
            .map_or(String::new(), |d| format!("; first at node {} ({}), by {:.2e}", d.node, d.op, d.max_abs));
        Err(CliError::failed(format!("{} parts from the {} past tolerance{at}", report.backend, report.against)))
    };
    say::first_error([agrees, written, said])
}

/// A state as it is after the last turn, under the name of the output that is its next value.
fn final_state(state: &lanes::StateSpec) -> Port {
    Port { name: state.output.clone(), dtype: state.dtype, shape: state.lane_shape.clone(), scope: lanes::Scope::Seat }
}

fn table(report: &Report, streams: usize, turns: usize, states_from: usize) -> Vec<String> {
    let mut lines = vec![
        format!(
            "{} on {} against {}: {}, {}",
            report.model,
            report.backend,
            report.against,
            count(streams, "stream"),
            count(turns, "turn")
        ),
        "output                            max abs     max rel     max ulp  tolerance".to_owned(),
    ];
    for (at, o) in report.outputs.iter().enumerate() {
        let verdict = if o.ok { "ok" } else { "PARTS" };
        let what = if at < states_from { "" } else { " (state, at the end)" };
        lines.push(format!(
            "{:30} {:10.2e} {:11.2e} {:11} {:10.1e}  {verdict}{what}",
            o.name, o.max_abs, o.max_rel, o.max_ulp, o.tolerance
        ));
    }
    if let Some(first) = &report.first_difference {
        lines.push(format!("first difference: node {} ({}), by {:.2e}", first.node, first.op, first.max_abs));
    }
    lines
}

/// The streams `first..first + streams` for `turns` turns, with their outputs: of those from `last_from` on, the last
/// turn's.
#[derive(Clone, Copy)]
struct Part {
    first: usize,
    streams: usize,
    turns: usize,
    last_from: usize,
}

/// The outputs of `part` on `device`: `[stream, turn, …]` bytes each.
fn outputs(
    args: &CheckArgs,
    loaded: &Loaded,
    model: &Model,
    device: &Arc<dyn Device>,
    part: Part,
) -> CliResult<Vec<Vec<u8>>> {
    let planned = load::planned(device, model, &args.model)?;
    served(args, loaded, planned, part)
}

fn reference(args: &CheckArgs, loaded: &Loaded, model: &Model, part: Part) -> CliResult<Vec<Vec<u8>>> {
    match args.against {
        Against::Cpu => {
            let options =
                OpenOptions { threads: Some(1), budget: crate::machine::available_bytes(), ..OpenOptions::default() };
            let cpu = lanes::open("cpu", &options).map_err(|why| CliError::usage(why.to_string()))?;
            outputs(args, loaded, model, &cpu, part)
        }
        Against::Oracle => served(args, loaded, OracleModel::new(model), part),
    }
}

fn served(
    args: &CheckArgs,
    loaded: &Loaded,
    model: impl lanes::lanes::LanedModel + 'static,
    part: Part,
) -> CliResult<Vec<Vec<u8>>> {
    let runnable = load::serve(model, &args.model, &args.serve, part.streams as u32)?;
    let run = Drive {
        runnable: &runnable,
        sources: &loaded.sources,
        first: part.first,
        streams: part.streams,
        turns: part.turns,
        seed: args.model.seed,
        churn: args.serve.churn,
        keep: true,
        last_from: part.last_from,
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

/// The stream that parts first, and the turns it takes to get there. A state parts after the last one.
fn first_parted(
    (ports, states): (&[Port], &[Port]),
    ours: &[Vec<u8>],
    theirs: &[Vec<u8>],
    turns: usize,
    precision: Precision,
) -> Option<(usize, usize)> {
    let parted = |port: &Port, a: &[u8], e: &[u8]| -> Vec<usize> {
        let size = port.bytes().max(1);
        let pairs = a.chunks_exact(size).zip(e.chunks_exact(size)).enumerate();
        pairs.filter(|(_, (a, e))| !compare(port, a, e, precision).ok).map(|(at, _)| at).collect()
    };
    let sides = || ours.iter().zip(theirs);
    let of_outputs = ports.iter().zip(sides()).flat_map(|(port, (a, e))| parted(port, a, e));
    let of_outputs = of_outputs.map(|at| (at / turns, at % turns + 1));
    let of_states = states.iter().zip(sides().skip(ports.len())).flat_map(|(port, (a, e))| parted(port, a, e));
    of_outputs.chain(of_states.map(|stream| (stream, turns))).min_by_key(|&(_, turns)| turns)
}

/// The first node in graph order whose result parts, at the first turn where one does.
fn first_difference(
    args: &CheckArgs,
    loaded: &Loaded,
    device: &Arc<dyn Device>,
    (stream, turns): (usize, usize),
) -> CliResult<Option<Difference>> {
    let values = results(&loaded.model);
    let extra: Vec<ValueId> = values.iter().map(|&(id, _)| id).collect();
    let seen = loaded.model.with_outputs(&extra);
    let ports = &loaded.model.signature.outputs;
    let one = Part { first: stream, streams: 1, turns, last_from: usize::MAX };
    let ours = outputs(args, loaded, &seen, device, one)?;
    let theirs = reference(args, loaded, &seen, one)?;
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
            let found = compare(&port, &part(&ours), &part(&theirs), args.model.precision);
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
fn compare(port: &Port, actual: &[u8], expected: &[u8], precision: Precision) -> Output {
    let tolerance = match port.dtype {
        // Four units in the last place of a rounded operand: one that rounds the other way moves what is made of it by a part of a
        // unit, and a recurrence adds some up.
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 if precision == Precision::Bf16 => 0.015625,
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
        let check = |a: f32, e: f32| compare(&port(DType::F32), &a.to_le_bytes(), &e.to_le_bytes(), Precision::F32);
        assert!(check(0.000_009, 0.0).ok && !check(0.000_011, 0.0).ok);
        assert!(check(100_000.9, 100_000.0).ok && !check(100_001.1, 100_000.0).ok);
        assert!(check(f32::NAN, f32::NAN).ok && !check(f32::NAN, 0.0).ok && !check(0.0, f32::NAN).ok);
        assert!(check(f32::INFINITY, f32::INFINITY).ok && !check(f32::INFINITY, 1.0).ok);
        assert!(check(0.0, -0.0).ok);
        let rounded =
            |a: f32, e: f32| compare(&port(DType::F32), &a.to_le_bytes(), &e.to_le_bytes(), Precision::Bf16).ok;
        assert!(rounded(1.015, 1.0) && !rounded(1.017, 1.0));
        assert_eq!(check(1.0 + f32::EPSILON, 1.0).max_ulp, 1);
        assert_eq!(ulps(-f32::from_bits(1), f32::from_bits(1)), 2);
    }

    /// An output parts at its turn, a state after the last, and the earliest is looked into.
    #[test]
    fn the_stream_that_parts_first_is_looked_into() {
        let of = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let (outputs, states) = ([port(DType::I64)], [port(DType::I64)]);
        let parted = |output: &[i64], state: &[i64]| {
            let theirs = [of(&[0; 6]), of(&[0; 2])];
            first_parted((&outputs, &states), &[of(output), of(state)], &theirs, 3, Precision::F32)
        };
        assert_eq!(parted(&[0; 6], &[0; 2]), None);
        assert_eq!(parted(&[0; 6], &[0, 9]), Some((1, 3)));
        assert_eq!(parted(&[0, 0, 9, 0, 9, 0], &[9, 0]), Some((1, 2)));
    }

    #[test]
    fn integers_are_exact() {
        let check = |a: i64, e: i64| compare(&port(DType::I64), &a.to_le_bytes(), &e.to_le_bytes(), Precision::Bf16).ok;
        assert!(check(-7, -7) && !check(-7, -6));
    }
}
