//! What a model's commands would be on a GPU, node by node; none is needed to say so.
//!
//! `cargo run -p backend-cuda --example graph -- MODEL SEATS [NAME=NUMBER | NAME:EXTENT,EXTENT …]`: a line for each node between what goes up
//! and what comes down, with those it comes after, and how many there are, for turns of at most SEATS seats. `=` binds an input to a
//! constant, `:` gives one seat's shape of an input.

use lanes_core::{DType, Port, Scope};
use lanes_model::{Given, ImportOptions};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    const USAGE: &str = "graph MODEL SEATS [NAME=NUMBER | NAME:EXTENT,EXTENT …]";
    let mut arguments = std::env::args().skip(1);
    let (path, seats) = (arguments.next().ok_or(USAGE)?, arguments.next().ok_or(USAGE)?.parse()?);
    let mut options = ImportOptions::default();
    for given in arguments {
        if let Some((name, number)) = given.split_once('=') {
            options.fix.insert(name.to_owned(), Given::Number(number.parse()?));
        } else if let Some((name, extents)) = given.split_once(':') {
            let extents = extents.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
            options.shapes.insert(name.to_owned(), extents);
        } else {
            return Err(format!("{given}: neither NAME=NUMBER nor NAME:EXTENT,EXTENT").into());
        }
    }
    let lowered = lanes_model::lower::lower(&lanes_model::load(Path::new(&path), &options)?)?;
    let mut signature = lowered.signature;
    if !lowered.reasons.is_empty() {
        let (name, scope) = ("status".to_owned(), Scope::Seat);
        signature.outputs.push(Port { name, dtype: DType::U32, shape: vec![1], scope });
    }
    let plan = lowered.plan.check(&signature)?;
    let nodes = backend_cuda::outline(&plan, seats)?;
    nodes.iter().for_each(|node| println!("{node}"));
    println!("{path}: {} nodes for {seats} seats", nodes.len());
    Ok(())
}
