//! What a second slot gains where stacking and computing each take half of a turn. Prints one JSON object.
//!
//! `pipelined_turns [--seats 32] [--kib 256] [--turns 60] [--repeats 5]`
//!
//! One thread drives twice as many streams as a turn has seats, in a closed loop, so that a turn can be stacked while
//! the one before computes. Inputs are large, so that stacking them is work; a turn computes for as long as stacking,
//! handing out and waking take without it, which is measured first. Slots alternate, and the ratio is the median's.
//!
//! - `elsewhere`: the compute thread sleeps for that time, as an accelerator's work takes no core of the host.
//! - `on a core`: it keeps a core busy. On two cores this leaves the driving thread no core of its own.

use lanes_core::device::{Completer, Completion, Completions, DeviceError, Outcome};
use lanes_core::lanes::{Capacity, LanedModel, LanesBuilder, Refusal, Runnable, SeatRows, Value};
use lanes_core::{DType, Port, Scope, Signature};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How the compute thread passes its time.
#[derive(Clone, Copy, PartialEq)]
enum Compute {
    Elsewhere,
    OnACore,
}

/// Gives the sum of a large input's first and last element. Answers are there at once, and told when the turn's time is
/// over.
struct Summer {
    signature: Signature,
    elements: usize,
    slots: Vec<SummerSlot>,
    /// Turns for the compute thread; `None` once dropped.
    turns: Option<mpsc::Sender<Completer>>,
    compute: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct SummerSlot {
    x: Vec<f32>,
    y: Vec<f32>,
    source: Completions,
}

impl Summer {
    fn new(elements: usize, how: Compute, time: Duration) -> Self {
        let port = |name: &str, elements| Port {
            name: name.into(),
            dtype: DType::F32,
            shape: vec![elements],
            scope: Scope::Seat,
        };
        let (inputs, outputs) = (vec![port("x", elements)], vec![port("y", 1)]);
        let signature = Signature { name: "summer".into(), inputs, outputs, states: Vec::new() };
        let (turns, started) = mpsc::channel::<Completer>();
        let compute = thread::spawn(move || {
            for completer in started {
                pass(how, time);
                completer.complete(Ok(Outcome::default()));
            }
        });
        Self { signature, elements, slots: Vec::new(), turns: Some(turns), compute: Some(compute) }
    }
}

fn pass(how: Compute, time: Duration) {
    let began = Instant::now();
    if how == Compute::Elsewhere {
        thread::sleep(time);
    }
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

impl Drop for Summer {
    fn drop(&mut self) {
        self.turns = None;
        if let Some(compute) = self.compute.take() {
            compute.join().expect("it computes until it is told to end");
        }
    }
}

impl LanedModel for Summer {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError> {
        self.prepare_slots(capacity, 1)
    }

    fn input_mut(&mut self, port: usize) -> &mut [u8] {
        self.slot_input_mut(0, port)
    }

    fn run(&mut self, seats: &[SeatRows], refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        refused.extend(self.start(0, seats)?.wait()?.refused);
        Ok(())
    }

    fn output(&self, port: usize) -> &[u8] {
        self.slot_output(0, port)
    }

    fn device_bytes(&self) -> u64 {
        0
    }

    fn slots_max(&self) -> usize {
        2
    }

    fn prepare_slots(&mut self, capacity: Capacity, slots: usize) -> Result<(), DeviceError> {
        let seats = capacity.max_seats as usize;
        let slot = || SummerSlot { x: vec![0.0; seats * self.elements], y: vec![0.0; seats], ..SummerSlot::default() };
        self.slots = (0..slots).map(|_| slot()).collect();
        Ok(())
    }

    fn slot_input_mut(&mut self, slot: usize, _port: usize) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.slots[slot].x)
    }

    fn start(&mut self, slot: usize, seats: &[SeatRows]) -> Result<Completion, DeviceError> {
        let SummerSlot { x, y, source } = &mut self.slots[slot];
        for (y, x) in y.iter_mut().zip(x.chunks_exact(self.elements)).take(seats.len()) {
            *y = x[0] + x[self.elements - 1];
        }
        let (completion, completer) = source.pending();
        let turns = self.turns.as_ref().expect("it is there until dropped");
        turns.send(completer).expect("the compute thread lives as long");
        Ok(completion)
    }

    fn slot_output(&self, slot: usize, _port: usize) -> &[u8] {
        bytemuck::cast_slice(&self.slots[slot].y)
    }
}

struct Options {
    seats: u32,
    elements: usize,
    turns: u64,
    repeats: usize,
}

fn main() {
    let options = options();
    let rows = [("elsewhere", Compute::Elsewhere), ("on a core", Compute::OnACore)];
    let rows = rows.map(|(name, how)| {
        let host = host_time(&options, how);
        let mut calls_per_s = [Vec::new(), Vec::new()];
        for _ in 0..options.repeats {
            for (slots, samples) in [1, 2].into_iter().zip(&mut calls_per_s) {
                samples.push(drive(&build(&options, how, host, slots), &options));
            }
        }
        let [one, two] = calls_per_s.map(median);
        let host_us = host.as_secs_f64() * 1e6;
        let ratio = two / one;
        format!(
            "{{\"compute\":\"{name}\",\"half_turn_us\":{host_us:.0},\"calls_per_s\":{{\"1 slot\":{one:.0},\"2 slots\":{two:.0}}},\"ratio\":{ratio:.2}}}"
        )
    });
    println!(
        "{{\"model\":\"summer\",\"seats\":{},\"input_kib\":{},\"rows\":[{}]}}",
        options.seats,
        options.elements / 256,
        rows.join(",")
    );
}

fn options() -> Options {
    let mut options = Options { seats: 32, elements: 256 * 256, turns: 60, repeats: 5 };
    let usage = "pipelined_turns [--seats N] [--kib N] [--turns N] [--repeats N]";
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value: u32 = arguments.next().and_then(|value| value.parse().ok()).expect(usage);
        match name.as_str() {
            "--seats" => options.seats = value,
            "--kib" => options.elements = value as usize * 256,
            "--turns" => options.turns = value.into(),
            "--repeats" => options.repeats = value as usize,
            _ => panic!("{usage}"),
        }
    }
    options
}

fn build(options: &Options, how: Compute, time: Duration, slots: usize) -> Runnable {
    let builder = LanesBuilder::new(Summer::new(options.elements, how, time));
    builder.lanes(2 * options.seats).max_seats(options.seats).slots(slots).build().expect("the summer builds")
}

/// What a turn takes when its compute takes no time.
fn host_time(options: &Options, how: Compute) -> Duration {
    let times = (0..options.repeats).map(|_| {
        let runnable = build(options, how, Duration::ZERO, 1);
        drive(&runnable, options);
        let stats = runnable.stats();
        stats.turn_time.as_secs_f64() / stats.turns as f64
    });
    Duration::from_secs_f64(median(times.collect()))
}

/// Calls a second of one thread that drives all streams. Every answer is checked.
fn drive(runnable: &Runnable, options: &Options) -> f64 {
    let streams: Vec<_> = (0..2 * options.seats).map(|_| runnable.spawn_blocking().expect("a lane is free")).collect();
    let mut reaper = runnable.reaper();
    let mut inputs = vec![vec![0f32; options.elements]; streams.len()];
    let shape = [options.elements];
    let mut submit = |reaper: &mut lanes_core::lanes::Reaper, at: usize, call: u64| {
        let input = &mut inputs[at];
        input[0] = call as f32;
        reaper.submit(&streams[at], call << 32 | at as u64, &[Value::new(&shape, input)]).expect("there is room");
    };
    (0..streams.len()).for_each(|at| submit(&mut reaper, at, 0));
    let calls_of_each = options.turns / 2;
    let (began, mut calls) = (Instant::now(), 0u64);
    while let Some(reaped) = reaper.next_blocking() {
        let (at, call) = (reaped.tag as u32 as usize, reaped.tag >> 32);
        let outputs = reaped.result.expect("the summer answers");
        assert_eq!(outputs.get::<f32>(0).expect("an f32 output"), [call as f32]);
        drop(outputs);
        calls += 1;
        if call + 1 < calls_of_each {
            submit(&mut reaper, at, call + 1);
        }
    }
    calls as f64 / began.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
