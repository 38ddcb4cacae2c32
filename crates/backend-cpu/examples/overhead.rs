//! What a command costs beyond its work: nanoseconds per command of a turn of small moves, and per seat of a turn that
//! is mostly memory, by number of seats.

use backend_cpu::{CpuDevice, CpuOptions};
use lanes_core::lanes::{Capacity, LanedModel, RowId, SeatRows};
use lanes_core::plan::{Command, Plan, Region, Storage};
use lanes_core::planned::PlannedModel;
use lanes_core::{DType, Port, Scope, Signature};
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let threads = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1);
    for (moves, bytes) in [(40, 64), (40, 4096)] {
        let port = |name: &str| Port { name: name.into(), dtype: DType::U8, shape: vec![bytes], scope: Scope::Seat };
        let signature =
            Signature { name: "moves".into(), inputs: vec![port("x")], outputs: vec![port("y")], states: vec![] };
        let mut plan = Plan { name: "moves".into(), ..Plan::default() };
        let whole = Region::contiguous(0, bytes);
        let mut from = plan.storage(Storage::Input { port: 0, bytes });
        for _ in 1..moves {
            let to = plan.storage(Storage::Scratch { bytes });
            plan.commands.push(Command::Copy { from: (from, whole), to: (to, whole) });
            from = to;
        }
        let to = plan.storage(Storage::Output { port: 0, bytes });
        plan.commands.push(Command::Copy { from: (from, whole), to: (to, whole) });
        for seats in [1u32, 32, 64, 256, 1024] {
            let device = CpuDevice::open(CpuOptions { threads: Some(threads), ..CpuOptions::default() });
            let device = Arc::new(device.expect("threads start"));
            let mut model = PlannedModel::new(device, plan.clone(), signature.clone()).expect("the plan fits");
            model.prepare(Capacity { rows: 1, max_seats: seats }).expect("it is prepared");
            let turn = vec![SeatRows { read: RowId(0), write: RowId(0) }; seats as usize];
            let turns = 20_000_000 / (moves * (100 + seats as usize * bytes / 8));
            let mut run = |turns: usize| {
                let start = Instant::now();
                for _ in 0..turns {
                    model.run(&turn, &mut Vec::new()).expect("the turn runs");
                }
                start.elapsed().as_nanos() as f64 / turns as f64
            };
            run(turns / 10 + 1);
            let turn_ns = run(turns + 1);
            println!(
                "{moves} copies of {bytes} bytes, {seats} seats: {:.2} us a turn, {:.0} ns a command, {:.1} ns a seat",
                turn_ns / 1e3,
                turn_ns / moves as f64,
                turn_ns / f64::from(seats)
            );
        }
    }
}
