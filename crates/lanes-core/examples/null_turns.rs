//! What the lanes themselves cost: a model that doubles 64 floats, called in three ways. Prints one JSON object.
//!
//! `null_turns [--streams 64] [--max-seats 256] [--seconds 0.5] [--repeats 5] [--mode blocking|reaper|alone|all]`
//!
//! - `blocking`: a thread a stream, each in a closed loop of `call_into_blocking`.
//! - `reaper`: one thread in a closed loop over all streams.
//! - `alone`: one stream, one thread, nothing else; the latency of a call.

use lanes_core::device::DeviceError;
use lanes_core::lanes::{Capacity, LanedModel, LanesBuilder, Refusal, Runnable, SeatRows, Value};
use lanes_core::{DType, Port, Scope, Signature};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WIDTH: usize = 64;

/// `[64]` f32 in, doubled out, no state.
struct Doubler {
    signature: Signature,
    inputs: Vec<f32>,
    outputs: Vec<f32>,
}

impl Doubler {
    fn new() -> Self {
        let port = |name: &str| Port { name: name.into(), dtype: DType::F32, shape: vec![WIDTH], scope: Scope::Seat };
        let signature =
            Signature { name: "doubler".into(), inputs: vec![port("x")], outputs: vec![port("y")], states: Vec::new() };
        Self { signature, inputs: Vec::new(), outputs: Vec::new() }
    }
}

impl LanedModel for Doubler {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError> {
        let elements = capacity.max_seats as usize * WIDTH;
        (self.inputs, self.outputs) = (vec![0.0; elements], vec![0.0; elements]);
        Ok(())
    }

    fn input_mut(&mut self, _port: usize) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.inputs)
    }

    fn run(&mut self, seats: &[SeatRows], _refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        let elements = seats.len() * WIDTH;
        for (y, x) in self.outputs[..elements].iter_mut().zip(&self.inputs) {
            *y = 2.0 * x;
        }
        Ok(())
    }

    fn output(&self, _port: usize) -> &[u8] {
        bytemuck::cast_slice(&self.outputs)
    }

    fn device_bytes(&self) -> u64 {
        0
    }
}

/// Drives a number of streams for a time. Gives the calls made, and the latency of each where it was taken.
type Drive = fn(&Runnable, u32, Duration) -> (u64, Vec<Duration>);

struct Options {
    streams: u32,
    max_seats: u32,
    time: Duration,
    repeats: usize,
    mode: String,
}

/// Calls a second, and the p50 and p99 of a call where it was taken.
struct Sample {
    calls_per_s: f64,
    p50: Duration,
    p99: Duration,
    seats_per_turn: f64,
    handoffs_per_call: f64,
}

fn main() {
    let options = options();
    let build = |lanes: u32| {
        LanesBuilder::new(Doubler::new()).lanes(lanes).max_seats(options.max_seats).build().expect("the doubler builds")
    };
    let mut rows = Vec::new();
    let modes: [(&str, u32, Drive); 3] =
        [("blocking", options.streams, blocking), ("reaper", options.streams, reaper), ("alone", 1, blocking)];
    for (mode, streams, drive) in modes {
        if options.mode != "all" && options.mode != mode {
            continue;
        }
        let samples = (0..options.repeats).map(|_| sample(&build(streams), streams, options.time, drive));
        rows.push(row(mode, streams, samples.collect()));
    }
    println!(
        "{{\"model\":\"doubler\",\"width\":{WIDTH},\"max_seats\":{},\"rows\":[{}]}}",
        options.max_seats,
        rows.join(",")
    );
}

fn options() -> Options {
    let mut options =
        Options { streams: 64, max_seats: 256, time: Duration::from_millis(500), repeats: 5, mode: "all".into() };
    let usage =
        "null_turns [--streams N] [--max-seats N] [--seconds S] [--repeats N] [--mode blocking|reaper|alone|all]";
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().expect(usage);
        match name.as_str() {
            "--streams" => options.streams = value.parse().expect(usage),
            "--max-seats" => options.max_seats = value.parse().expect(usage),
            "--seconds" => options.time = Duration::from_secs_f64(value.parse().expect(usage)),
            "--repeats" => options.repeats = value.parse().expect(usage),
            "--mode" => options.mode = value,
            _ => panic!("{usage}"),
        }
    }
    options
}

fn sample(runnable: &Runnable, streams: u32, time: Duration, drive: Drive) -> Sample {
    let before = runnable.stats();
    let began = Instant::now();
    let (calls, mut latencies) = drive(runnable, streams, time);
    let elapsed = began.elapsed();
    let after = runnable.stats();
    latencies.sort_unstable();
    let at = |percent: usize| latencies.get(latencies.len() * percent / 100).copied().unwrap_or_default();
    Sample {
        calls_per_s: calls as f64 / elapsed.as_secs_f64(),
        p50: at(50),
        p99: at(99),
        seats_per_turn: (after.seats - before.seats) as f64 / (after.turns - before.turns) as f64,
        handoffs_per_call: (after.handoffs - before.handoffs) as f64 / calls as f64,
    }
}

/// A thread a stream. Every answer is checked.
fn blocking(runnable: &Runnable, streams: u32, time: Duration) -> (u64, Vec<Duration>) {
    let (stop, start) = (AtomicBool::new(false), Barrier::new(streams as usize + 1));
    std::thread::scope(|scope| {
        let client = |_| {
            let stream = runnable.spawn_blocking().expect("a lane is free");
            let (stop, start) = (&stop, &start);
            scope.spawn(move || {
                let (mut latencies, mut output) = (Vec::with_capacity(1 << 20), [0f32; WIDTH]);
                start.wait();
                while !stop.load(Ordering::Relaxed) {
                    let input = [latencies.len() as f32; WIDTH];
                    let began = Instant::now();
                    let value = Value::new(&[WIDTH], &input);
                    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut output);
                    stream.call_into_blocking(&[value], &mut [bytes]).expect("the doubler answers");
                    latencies.push(began.elapsed());
                    assert_eq!(output[WIDTH - 1], 2.0 * input[0]);
                }
                latencies
            })
        };
        let clients: Vec<_> = (0..streams).map(client).collect();
        start.wait();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let latencies: Vec<_> = clients.into_iter().flat_map(|client| client.join().expect("a client ran")).collect();
        (latencies.len() as u64, latencies)
    })
}

/// One thread for all streams. Every answer is checked.
fn reaper(runnable: &Runnable, streams: u32, time: Duration) -> (u64, Vec<Duration>) {
    let streams: Vec<_> = (0..streams).map(|_| runnable.spawn_blocking().expect("a lane is free")).collect();
    let mut reaper = runnable.reaper();
    let input = |stream: u64, turn: u64| [(stream * 1000 + turn % 1000) as f32; WIDTH];
    let mut turns = vec![0u64; streams.len()];
    for (at, stream) in streams.iter().enumerate() {
        reaper.submit(stream, at as u64, &[Value::new(&[WIDTH], &input(at as u64, 0))]).expect("there is room");
    }
    let (began, mut calls) = (Instant::now(), 0);
    let mut is_over = false;
    while let Some(reaped) = reaper.next_blocking() {
        let (tag, at) = (reaped.tag, reaped.tag as usize);
        let outputs = reaped.result.expect("the doubler answers");
        assert_eq!(outputs.get::<f32>(0).expect("an f32 output")[WIDTH - 1], 2.0 * input(tag, turns[at])[0]);
        drop(outputs);
        calls += 1;
        turns[at] += 1;
        if calls % 1024 == 0 {
            is_over = began.elapsed() >= time;
        }
        if !is_over {
            let input = input(tag, turns[at]);
            reaper.submit(&streams[at], tag, &[Value::new(&[WIDTH], &input)]).expect("there is room");
        }
    }
    (calls, Vec::new())
}

fn row(mode: &str, streams: u32, samples: Vec<Sample>) -> String {
    let median = |of: &dyn Fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    format!(
        "{{\"mode\":\"{mode}\",\"streams\":{streams},\"calls_per_s\":{:.0},\"us_per_seat\":{:.3},\"seats_per_turn\":{:.1},\
         \"latency_us\":{{\"p50\":{:.2},\"p99\":{:.2}}},\"handoffs_per_call\":{:.3}}}",
        median(&|sample| sample.calls_per_s),
        median(&|sample| 1e6 / sample.calls_per_s),
        median(&|sample| sample.seats_per_turn),
        median(&|sample| us(sample.p50)),
        median(&|sample| us(sample.p99)),
        median(&|sample| sample.handoffs_per_call),
    )
}
