//! A call allocates nothing once its stream has made some: on no thread, in no form that has room for its answer.

use lanes_core::device::{Completer, Completion, Completions, DeviceError, Outcome};
use lanes_core::lanes::{Capacity, LanedModel, LanesBuilder, Refusal, SeatRows, Stream, Value};
use lanes_core::{DType, Port, Scope, Signature};
use lanes_tests::counting::Counting;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

const WIDTH: usize = 16;

/// Adds its input to a state, and gives the sum.
struct Adder {
    signature: Signature,
    rows: Vec<f32>,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Adder {
    fn new() -> Self {
        let port = |name: &str| Port { name: name.into(), dtype: DType::F32, shape: vec![WIDTH], scope: Scope::Seat };
        let (inputs, outputs) = (vec![port("x")], vec![port("y")]);
        let signature = Signature { name: "adder".into(), inputs, outputs, states: Vec::new() };
        Self { signature, rows: Vec::new(), x: Vec::new(), y: Vec::new() }
    }
}

impl LanedModel for Adder {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError> {
        let elements = capacity.max_seats as usize * WIDTH;
        self.rows = vec![0.0; capacity.rows as usize];
        (self.x, self.y) = (vec![0.0; elements], vec![0.0; elements]);
        Ok(())
    }

    fn input_mut(&mut self, _port: usize) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.x)
    }

    fn run(&mut self, seats: &[SeatRows], _refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        for (seat, rows) in seats.iter().enumerate() {
            let sum = self.rows[rows.read.0 as usize] + self.x[seat * WIDTH];
            self.rows[rows.write.0 as usize] = sum;
            self.y[seat * WIDTH..][..WIDTH].fill(sum);
        }
        Ok(())
    }

    fn output(&self, _port: usize) -> &[u8] {
        bytemuck::cast_slice(&self.y)
    }

    fn device_bytes(&self) -> u64 {
        0
    }
}

/// Two `Adder`s that share their rows, whose turns end on another thread.
struct Pipelined {
    slots: [(Adder, Completions); 2],
    /// The slot of the last turn.
    last: usize,
    ending: Arc<(Mutex<Ending>, Condvar)>,
}

#[derive(Default)]
struct Ending {
    turns: VecDeque<Completer>,
    is_over: bool,
}

impl Pipelined {
    fn new() -> Self {
        let ending = Arc::<(Mutex<Ending>, Condvar)>::default();
        ending.0.lock().unwrap().turns.reserve(2);
        let ender = Arc::clone(&ending);
        std::thread::spawn(move || {
            loop {
                let waits = |ending: &mut Ending| ending.turns.is_empty() && !ending.is_over;
                let mut ending = ender.1.wait_while(ender.0.lock().unwrap(), waits).unwrap();
                let Some(completer) = ending.turns.pop_front() else { return };
                drop(ending);
                completer.complete(Ok(Outcome::default()));
            }
        });
        let slot = || (Adder::new(), Completions::default());
        Self { slots: [slot(), slot()], last: 0, ending }
    }
}

impl Drop for Pipelined {
    fn drop(&mut self) {
        self.ending.0.lock().unwrap().is_over = true;
        self.ending.1.notify_all();
    }
}

impl LanedModel for Pipelined {
    fn signature(&self) -> &Signature {
        &self.slots[0].0.signature
    }

    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError> {
        self.slots.iter_mut().try_for_each(|(adder, _)| adder.prepare(capacity))
    }

    fn input_mut(&mut self, port: usize) -> &mut [u8] {
        self.slots[0].0.input_mut(port)
    }

    fn run(&mut self, _seats: &[SeatRows], _refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        unreachable!("its turns are started")
    }

    fn output(&self, port: usize) -> &[u8] {
        self.slots[0].0.output(port)
    }

    fn device_bytes(&self) -> u64 {
        0
    }

    fn slots_max(&self) -> usize {
        2
    }

    fn slot_input_mut(&mut self, slot: usize, port: usize) -> &mut [u8] {
        self.slots[slot].0.input_mut(port)
    }

    fn start(&mut self, slot: usize, seats: &[SeatRows]) -> Result<Completion, DeviceError> {
        // The rows are where the last turn ran.
        if self.last != slot {
            let [first, second] = &mut self.slots;
            std::mem::swap(&mut first.0.rows, &mut second.0.rows);
            self.last = slot;
        }
        let (adder, source) = &mut self.slots[slot];
        adder.run(seats, &mut Vec::new())?;
        let (completion, completer) = source.pending();
        self.ending.0.lock().unwrap().turns.push_back(completer);
        self.ending.1.notify_all();
        Ok(completion)
    }

    fn slot_output(&self, slot: usize, port: usize) -> &[u8] {
        self.slots[slot].0.output(port)
    }
}

/// Allocations of 100 rounds, once warm.
fn allocations(mut round: impl FnMut()) -> u64 {
    ALLOCATOR.in_rounds(100, |_| round())
}

fn wait<F: Future + Unpin>(mut future: F) -> F::Output {
    loop {
        if let Poll::Ready(output) = pin!(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        std::thread::yield_now();
    }
}

// Without a harness: its own thread would allocate meanwhile.
fn main() {
    let ones = [1f32; WIDTH];
    let inputs = [Value::new(&[WIDTH], &ones)];
    let runnable = LanesBuilder::new(Adder::new()).lanes(4).linger(Duration::from_micros(20)).build().unwrap();
    let mut buffer = [0u8; WIDTH * 4];
    let stream = runnable.spawn_blocking().unwrap();
    assert_eq!(allocations(|| stream.call_into_blocking(&inputs, &mut [&mut buffer]).unwrap()), 0, "alone");
    assert_eq!(runnable.stats().handoffs, 0);
    let others: Vec<Stream> = (0..3).map(|_| runnable.spawn_blocking().unwrap()).collect();
    assert_eq!(allocations(|| stream.call_into_blocking(&inputs, &mut [&mut buffer]).unwrap()), 0, "by the worker");
    assert_eq!(runnable.stats().handoffs, 120);
    assert_eq!(allocations(|| wait(stream.call_into(&inputs, &mut [&mut buffer])).unwrap()), 0, "by a future");
    assert_eq!(f32::from_le_bytes(buffer[..4].try_into().unwrap()), 360.0);
    let outputs = allocations(|| drop(wait(stream.call(&inputs)).unwrap()));
    assert_eq!(outputs, 0, "outputs that are dropped before the next call");
    let mut reaper = runnable.reaper();
    let reaped = allocations(|| {
        for (tag, stream) in others.iter().enumerate() {
            reaper.submit(stream, tag as u64, &inputs).unwrap();
        }
        while let Some(reaped) = reaper.next_blocking() {
            assert_eq!(reaped.result.unwrap().get::<f32>(0).unwrap().len(), WIDTH);
        }
    });
    assert_eq!(reaped, 0, "by a reaper");
    drop((reaper, others, stream, runnable));
    pipelined(&inputs);
    // The counter does count.
    let runnable = LanesBuilder::new(Adder::new()).lanes(4).build().unwrap();
    assert_ne!(allocations(|| drop(runnable.spawn())), 0);
    println!("calls_allocate_nothing_after_the_first: ok");
}

/// Two turns in flight, and calls of one stream in both.
fn pipelined(inputs: &[Value<'_>]) {
    let runnable = LanesBuilder::new(Pipelined::new()).lanes(4).max_seats(2).slots(2).build().unwrap();
    let streams: Vec<Stream> = (0..4).map(|_| runnable.spawn_blocking().unwrap()).collect();
    let mut reaper = runnable.reaper();
    let mut rounds = 0f32;
    let reaped = allocations(|| {
        for tag in 0..8 {
            reaper.submit(&streams[tag % 4], tag as u64, inputs).unwrap();
        }
        while let Some(reaped) = reaper.next_blocking() {
            let outputs = reaped.result.unwrap();
            let expected = 2.0 * rounds + if reaped.tag < 4 { 1.0 } else { 2.0 };
            assert_eq!(outputs.get::<f32>(0).unwrap()[0], expected);
        }
        rounds += 1.0;
    });
    assert_eq!((reaped, runnable.stats().seats), (0, 120 * 8), "in two slots");
}
