//! How long it takes to fork a thousand streams from one. Prints one JSON object.
//!
//! `forks [--streams 1000] [--repeats 20]`
//!
//! The model has a state of 4 KiB a lane; that a fork copies none of it shows in `device_bytes`, which does not change,
//! and in the time.

use lanes_core::device::DeviceError;
use lanes_core::lanes::{Capacity, LanedModel, LanesBuilder, Refusal, SeatRows, Value};
use lanes_core::{DType, Port, Scope, Signature, StateKind, StateSpec};
use std::time::Instant;

const WIDTH: usize = 1024;

/// `y` = the sum of all `x` so far, kept in each of `WIDTH` elements.
struct Sum {
    signature: Signature,
    x: Vec<f32>,
    y: Vec<f32>,
    rows: Vec<f32>,
}

impl Sum {
    fn new() -> Self {
        let port = |name: &str| Port { name: name.into(), dtype: DType::F32, shape: vec![1], scope: Scope::Seat };
        let state = StateSpec {
            input: "sum".into(),
            output: "sum_out".into(),
            dtype: DType::F32,
            lane_shape: vec![WIDTH],
            initial: None,
            kind: StateKind::Replaced,
        };
        let (inputs, outputs) = (vec![port("x")], vec![port("y")]);
        let signature = Signature { name: "sum".into(), inputs, outputs, states: vec![state] };
        Self { signature, x: Vec::new(), y: Vec::new(), rows: Vec::new() }
    }
}

impl LanedModel for Sum {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError> {
        let seats = capacity.max_seats as usize;
        (self.x, self.y) = (vec![0.0; seats], vec![0.0; seats]);
        self.rows = vec![0.0; capacity.rows as usize * WIDTH];
        Ok(())
    }

    fn input_mut(&mut self, _port: usize) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.x)
    }

    fn run(&mut self, seats: &[SeatRows], _refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        for (seat, rows) in seats.iter().enumerate() {
            let (read, write) = (rows.read.0 as usize * WIDTH, rows.write.0 as usize * WIDTH);
            for at in 0..WIDTH {
                self.rows[write + at] = self.rows[read + at] + self.x[seat];
            }
            self.y[seat] = self.rows[write];
        }
        Ok(())
    }

    fn output(&self, _port: usize) -> &[u8] {
        bytemuck::cast_slice(&self.y)
    }

    fn device_bytes(&self) -> u64 {
        ((self.rows.len() + self.x.len() + self.y.len()) * 4) as u64
    }
}

fn flag(name: &str, default: u32) -> u32 {
    let arguments: Vec<String> = std::env::args().collect();
    let value = arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1));
    value.map_or(default, |value| value.parse().expect("a flag takes a number"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (streams, repeats) = (flag("--streams", 1000), flag("--repeats", 20).max(1));
    let runnable = LanesBuilder::new(Sum::new()).lanes(streams + 2).build()?;
    let (root, _other) = (runnable.spawn_blocking()?, runnable.spawn_blocking()?);
    root.call_blocking(&[Value::new(&[1], &[3.0f32])])?;
    let bytes = runnable.device_bytes();
    let mut times_us = Vec::new();
    for _ in 0..repeats {
        let began = Instant::now();
        let forks = root.fork_many_blocking(streams)?;
        times_us.push(began.elapsed().as_secs_f64() * 1e6);
        let outputs = forks[forks.len() - 1].call_blocking(&[Value::new(&[1], &[4.0f32])])?;
        assert_eq!(outputs.get::<f32>(0), Some(&[7.0][..]));
    }
    assert_eq!(runnable.device_bytes(), bytes);
    times_us.sort_by(f64::total_cmp);
    let (least, median) = (times_us[0], times_us[times_us.len() / 2]);
    println!(
        "{{\"streams\": {streams}, \"fork_us_min\": {least:.0}, \"fork_us_median\": {median:.0}, \"device_bytes\": {bytes}}}"
    );
    Ok(())
}
