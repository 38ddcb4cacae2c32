//! `lanes inspect`: what a model asks for, and whether its lanes are independent.

use crate::args::InspectArgs;
use crate::error::{CliError, CliResult};
use crate::load;
use crate::serve::chain;
use lanes::device::Purpose;
use lanes::lanes::{Capacity, LanedModel};
use lanes::onnx::{Dim, Inspection, Role};
use serde_json::{Map, Value, json};

/// Runs the command.
pub fn run(args: &InspectArgs) -> CliResult {
    let options = load::import_options(&args.model)?;
    let seen = lanes::onnx::inspect(&args.model.path, &options).map_err(|why| load::model_error(&args.model.path, &why))?;
    // With its inputs fed, the model is bound, and everything is known.
    let seen = if args.model.input.is_empty() { seen } else { bound(args)? };
    let memory = memory(args, &seen);
    if args.json {
        println!("{}", object(args, &seen, memory));
    } else {
        print(args, &seen, &memory);
    }
    Ok(())
}

fn bound(args: &InspectArgs) -> CliResult<Inspection> {
    let options = load::bound_options(&args.model)?;
    lanes::onnx::inspect(&args.model.path, &options).map_err(|why| load::model_error(&args.model.path, &why))
}

/// Bytes by purpose for `--lanes` lanes on the CPU backend, or why that is not known.
fn memory(args: &InspectArgs, seen: &Inspection) -> Result<Map<String, Value>, String> {
    let lanes = args.lanes.unwrap_or(1);
    let model = seen.model.as_ref().ok_or_else(|| "the model is not bound: see what is missing above".to_owned())?;
    let device = lanes::open("cpu", &lanes::OpenOptions { threads: Some(1), budget: None }).map_err(|why| chain(&why))?;
    let mut planned = lanes::planned(device, model).map_err(|why| chain(&why))?;
    let rows = lanes.checked_mul(2).and_then(|rows| rows.checked_add(1)).ok_or("too many lanes")?;
    planned.prepare(Capacity { rows, max_seats: lanes }).map_err(|why| chain(&why))?;
    let used = planned.memory();
    let mut memory = Map::new();
    memory.insert("lanes".to_owned(), lanes.into());
    for (name, purpose) in
        [("weights", Purpose::Weights), ("state", Purpose::State), ("scratch", Purpose::Scratch), ("staging", Purpose::Staging)]
    {
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
    let port = |name: &str, dtype: &str, shape: &[Dim], of: Role, axis: Option<usize>| {
        json!({"name": name, "dtype": dtype, "shape": dims(shape), "role": role(of), "lane_axis": axis})
    };
    let inputs: Vec<Value> =
        seen.inputs.iter().map(|i| port(&i.name, i.dtype.name(), &i.dims, i.role, i.lane_axis)).collect();
    let outputs: Vec<Value> =
        seen.outputs.iter().map(|o| port(&o.name, o.dtype.name(), &o.dims, o.role, o.lane_axis)).collect();
    let states: Vec<Value> = seen
        .states
        .iter()
        .map(|s| {
            json!({
                "input": s.input, "output": s.output, "dtype": s.dtype.name(), "lane_shape": s.lane_shape,
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

fn print(args: &InspectArgs, seen: &Inspection, memory: &Result<Map<String, Value>, String>) {
    let shape = |shape: &[Dim]| shape.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ");
    let axis = |axis: Option<usize>| axis.map_or(String::new(), |axis| format!("  lanes on axis {axis}"));
    println!("{}  opset {}, {} parameters, {} weight bytes", args.model.path.display(), seen.opset, seen.parameters, seen.weight_bytes);
    for i in &seen.inputs {
        println!("input   {:24} {:8} [{}]  {}{}", i.name, i.dtype, shape(&i.dims), role(i.role), axis(i.lane_axis));
    }
    for o in &seen.outputs {
        println!("output  {:24} {:8} [{}]  {}{}", o.name, o.dtype, shape(&o.dims), role(o.role), axis(o.lane_axis));
    }
    for s in &seen.states {
        println!("state   {} <- {}  {} {:?}  {} bytes a lane", s.input, s.output, s.dtype, s.lane_shape, s.bytes_per_lane);
    }
    match (&seen.lane_independent, &seen.why) {
        (true, _) => println!("lanes   independent"),
        (false, Some(why)) => println!("lanes   NOT independent: {why}"),
        (false, None) => println!("lanes   not proved independent"),
    }
    for p in &seen.per_lane {
        println!("        per lane: node {} ({}): {}", p.node, p.op, p.why);
    }
    for u in &seen.unsupported {
        println!("not supported: node {} ({}): {}", u.node, u.op, u.why);
    }
    let ops: Vec<String> = seen.ops.iter().map(|(op, count)| format!("{op} {count}")).collect();
    println!("ops     {}", ops.join(", "));
    match memory {
        Ok(memory) => println!("memory  {}", serde_json::Value::Object(memory.clone())),
        Err(why) => println!("memory  not known: {why}"),
    }
}
