//! `lanes inspect`: what a model asks for, and whether its lanes are independent.

use crate::args::InspectArgs;
use crate::error::CliResult;
use crate::load;
use crate::say;
use crate::serve::chain;
use lanes::DType;
use lanes::device::{Device, Purpose};
use lanes::lanes::{Capacity, LanedModel};
use lanes::onnx::{Dim, ImportOptions, Inspection, PortInspection, Role};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Runs the command.
pub fn run(args: &InspectArgs) -> CliResult {
    let device = load::device(&args.backend, args.threads)?;
    // With its inputs fed, the model is bound, and everything is known.
    let options = if args.model.input.is_empty() {
        let mut options = load::import_options(&args.model)?;
        load::ignore_absent_fixes(&args.model, &mut options)?;
        load::generate_inits(&args.model, &mut options)?;
        options
    } else {
        load::bound_options(&args.model)?.0
    };
    let path = &args.model.path;
    let seen = lanes::onnx::inspect(path, &options).map_err(|why| load::model_error(path, &why))?;
    let memory = memory(args, device, &options);
    if !args.json {
        return say::lines(&table(args, &seen, &memory));
    }
    if let Err(why) = &memory {
        say::aside(&format!("memory is not known: {why}"));
    }
    say::json(&object(args, &seen, memory))
}

/// Bytes by purpose for `--lanes` lanes on `device`, or why that is not known.
fn memory(args: &InspectArgs, device: Arc<dyn Device>, options: &ImportOptions) -> Result<Map<String, Value>, String> {
    let lanes = args.lanes;
    let max_seats = args.max_seats.unwrap_or(lanes).min(lanes);
    let model = lanes::onnx::load(&args.model.path, options).map_err(|why| chain(&why))?;
    let mut planned = load::planned(&device, &model, &args.model).map_err(|why| why.to_string())?;
    // What the worker asks for with one slot: a row a lane, one a seat, and the initial row.
    planned.prepare(Capacity { rows: lanes + max_seats + 1, max_seats }).map_err(|why| chain(&why))?;
    let used = planned.memory();
    let mut memory = Map::new();
    memory.insert("lanes".to_owned(), lanes.into());
    for (name, purpose) in [
        ("weights", Purpose::Weights),
        ("state", Purpose::State),
        ("scratch", Purpose::Scratch),
        ("staging", Purpose::Staging),
    ] {
        memory.insert(name.to_owned(), used.of(purpose).into());
    }
    Ok(memory)
}

const fn role(role: Role) -> &'static str {
    match role {
        Role::Stream => "stream",
        Role::State => "state",
        Role::Shared => "shared",
        Role::Fixed => "fixed",
    }
}

fn dims(dims: &[Dim]) -> Vec<Value> {
    dims.iter()
        .map(|dim| match dim {
            Dim::Known(extent) => json!(extent),
            Dim::Named(name) => json!(name),
            Dim::Unknown => Value::Null,
        })
        .collect()
}

fn object(args: &InspectArgs, seen: &Inspection, memory: Result<Map<String, Value>, String>) -> Value {
    let port = |p: &PortInspection| {
        let dtype = p.dtype.map(DType::name);
        json!({"name": p.name, "dtype": dtype, "shape": dims(&p.shape), "role": role(p.role), "lane_axis": p.lane_axis})
    };
    let inputs: Vec<Value> = seen.inputs.iter().map(port).collect();
    let outputs: Vec<Value> = seen.outputs.iter().map(port).collect();
    let states: Vec<Value> = seen
        .states
        .iter()
        .map(|s| {
            json!({
                "input": s.input, "output": s.output, "dtype": s.dtype.name(), "lane_shape": dims(&s.lane_shape),
                "lane_axis": s.lane_axis, "bytes_per_lane": s.bytes_per_lane,
            })
        })
        .collect();
    let per_lane: Vec<Value> =
        seen.per_lane.iter().map(|p| json!({"node": p.node, "op": p.op, "why": p.why})).collect();
    let unsupported: Vec<Value> =
        seen.unsupported.iter().map(|u| json!({"node": u.node, "op": u.op, "why": u.why})).collect();
    let ops: Map<String, Value> = seen.ops.iter().map(|(op, count)| (op.clone(), json!(count))).collect();
    json!({
        "model": args.model.path.display().to_string(), "opset": seen.opset, "inputs": inputs, "outputs": outputs,
        "states": states, "lane_independent": seen.lane_independent, "why": seen.why, "per_lane": per_lane, "ops": ops,
        "unsupported": unsupported, "parameters": seen.parameters, "weight_bytes": seen.weight_bytes,
        "memory": memory.map_or(Value::Null, Value::Object),
    })
}

fn table(args: &InspectArgs, seen: &Inspection, memory: &Result<Map<String, Value>, String>) -> Vec<String> {
    let shape = |shape: &[Dim]| shape.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ");
    let mut lines = vec![format!(
        "{}  opset {}, {} parameters, {} weight bytes",
        args.model.path.display(),
        seen.opset,
        seen.parameters,
        seen.weight_bytes
    )];
    for (kind, ports) in [("input ", &seen.inputs), ("output", &seen.outputs)] {
        for p in ports {
            let dtype = p.dtype.map_or("?", DType::name);
            let axis = p.lane_axis.map_or(String::new(), |axis| format!("  lanes on axis {axis}"));
            lines.push(format!("{kind}  {:24} {dtype:8} [{}]  {}{axis}", p.name, shape(&p.shape), role(p.role)));
        }
    }
    for s in &seen.states {
        let bytes = s.bytes_per_lane.map_or("?".to_owned(), |bytes| bytes.to_string());
        lines.push(format!(
            "state   {} <- {}  {} [{}]  {bytes} bytes a lane",
            s.input,
            s.output,
            s.dtype,
            shape(&s.lane_shape)
        ));
    }
    for (name, extent) in &seen.assumed {
        lines.push(format!("assumed {name} = {extent}; feed the input to bind it"));
    }
    match (&seen.lane_independent, &seen.why) {
        (true, _) => lines.push("lanes   independent".to_owned()),
        (false, Some(why)) => lines.push(format!("lanes   NOT independent: {why}")),
        (false, None) => lines.push("lanes   not proved independent".to_owned()),
    }
    for p in &seen.per_lane {
        lines.push(format!("        per lane: node {} ({}): {}", p.node, p.op, p.why));
    }
    for u in &seen.unsupported {
        lines.push(format!("not supported: node {} ({}): {}", u.node, u.op, u.why));
    }
    let ops: Vec<String> = seen.ops.iter().map(|(op, count)| format!("{op} {count}")).collect();
    lines.push(format!("ops     {}", ops.join(", ")));
    match memory {
        Ok(memory) => {
            let parts = ["weights", "state", "scratch", "staging"].map(|part| format!("{part} {}", memory[part]));
            lines.push(format!("memory  {}, in bytes: {}", say::count(args.lanes, "lane"), parts.join(", ")));
        }
        Err(why) => lines.push(format!("memory  not known: {why}")),
    }
    lines
}
