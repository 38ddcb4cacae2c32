//! Prints the commands that a model becomes.
use lanes_core::plan::Command;
fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap();
    let mut options = lanes::onnx::ImportOptions::default();
    for a in args {
        let (n, v) = a.split_once('=').unwrap();
        if n == "sr" {
            options.fix.insert(n.into(), lanes::onnx::Given::Number(v.parse().unwrap()));
        } else {
            options.shapes.insert(n.into(), v.split(',').map(|x| x.parse().unwrap()).collect());
        }
    }
    let model = lanes::onnx::load(&path, &options).unwrap();
    let l = lanes::onnx::lower::lower(&model).unwrap();
    for (n, c) in l.plan.commands.iter().enumerate() {
        match c {
            Command::Dispatch { label, kernel, arguments, .. } => {
                println!("{n:3} dispatch {label} k{} args {}", kernel.0, arguments.len())
            }
            Command::Contract(c) => println!(
                "{n:3} contract {} pos {} k {} n {} {:?} terms {:?}",
                c.label,
                c.positions,
                c.k(),
                c.n,
                c.activation,
                c.terms
                    .iter()
                    .map(|t| (t.storage.0, t.offset, t.position_stride, t.taps, t.tap_stride, t.tap_len))
                    .collect::<Vec<_>>()
            ),
            Command::Copy { from, to } => println!("{n:3} copy {from:?} -> {to:?}"),
            Command::Fill { to, .. } => println!("{n:3} fill {to:?}"),
            Command::Gather { state, row, to } => println!("{n:3} gather {state:?} {row:?} -> {to:?}"),
            Command::Scatter { from, state, row } => println!("{n:3} scatter {from:?} -> {state:?} {row:?}"),
        }
    }
}
