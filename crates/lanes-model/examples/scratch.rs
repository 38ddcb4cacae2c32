//! How close the scratch of a model's plan comes to the least that any layout takes.
//!
//! `cargo run --example scratch -- MODEL [NAME=NUMBER | NAME:EXTENT,EXTENT …]`: a line for each count of seats. Ends in an
//! error where a layout is more than 1.1 times the bytes that are alive at once. `=` binds an input to a constant, `:` gives
//! one seat's shape of an input.

use lanes_core::scratch::Layout;
use lanes_core::{DType, Port, Scope};
use lanes_model::{Given, ImportOptions};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

const SEATS: [usize; 7] = [1, 2, 3, 8, 24, 64, 256];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("scratch MODEL [NAME=NUMBER | NAME:EXTENT,EXTENT …]")?;
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
    let mut signature = lowered.signature.clone();
    if !lowered.reasons.is_empty() {
        // The plan's own output, of the status of each seat.
        let (name, scope) = ("status".to_owned(), Scope::Seat);
        signature.outputs.push(Port { name, dtype: DType::U32, shape: vec![1], scope });
    }
    let plan = lowered.plan.check(&signature)?;
    for seats in SEATS {
        let start = Instant::now();
        let layout = Layout::of(&plan, seats).ok_or("more scratch than an address can name")?;
        let (bytes, least, took) = (layout.bytes(), layout.least(), start.elapsed());
        let ratio = bytes as f64 / least.max(1) as f64;
        println!("{path}: {seats} seats: {bytes} bytes, {least} alive at once, {ratio:.3} times; {took:.1?}");
        // In whole numbers, so that a bound is a bound.
        if bytes * 10 > least * 11 {
            return Err(format!("{path}: scratch for {seats} seats is more than 1.1 times the least").into());
        }
    }
    Ok(())
}
