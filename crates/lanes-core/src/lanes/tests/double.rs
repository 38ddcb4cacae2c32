//! A test double of a model, and an engine driven by hand.

use super::super::job::ModelInfo;
use super::super::knobs::{Asked, Knobs};
use super::super::model::{Capacity, Identity, LanedModel, Refusal, RowId, SeatRows};
use super::super::stream::{Spawn, Stream};
use super::super::sync::lock;
use super::super::turn::{Engine, Step};
use super::super::value::{Layout, Outputs, Value};
use super::super::worker::{Shared, wake_all};
use super::super::{LanesBuilder, StreamError};
use crate::device::DeviceError;
use crate::{DType, Port, Scope, Signature, StateKind, StateSpec};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// An input at or above this is an order to the model.
pub const ORDERS: u64 = u64::MAX - 8;
/// This seat is refused.
pub const REFUSE: u64 = ORDERS;
/// The turn fails.
pub const FAIL: u64 = ORDERS + 1;
/// The model panics.
pub const PANIC: u64 = ORDERS + 2;
/// The device is lost.
pub const LOSE: u64 = ORDERS + 3;
/// The turn does not even start. For a model with slots.
pub const BALK: u64 = ORDERS + 4;

/// A test that fails while it holds the model must not hang as well.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a fresh stream starts from.
pub const INITIAL: u64 = 7;

/// One step of a stream: order, inputs and starting point all show in the result.
pub fn next(state: u64, x: u64) -> u64 {
    (state.rotate_left(5) ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The states of a stream alone, after each of `xs`.
pub fn alone(xs: &[u64]) -> Vec<u64> {
    xs.iter()
        .scan(INITIAL, |state, x| {
            *state = next(*state, *x);
            Some(*state)
        })
        .collect()
}

/// Lets a test hold the model in a turn, and see what it was asked.
#[derive(Clone, Default)]
pub struct Control(Arc<(Mutex<Seen>, Condvar)>);

#[derive(Default)]
pub struct Seen {
    pub is_held: bool,
    /// The inputs of each turn, in seat order.
    pub turns: Vec<Vec<u64>>,
    /// The model was dropped.
    pub is_gone: bool,
    /// Every byte of its identity; without one it has no snapshots.
    pub identity: Option<u8>,
    /// What it does when a row is read or written for a snapshot.
    pub rows: RowAccess,
    /// Rows it was asked to read or write.
    pub accesses: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RowAccess {
    #[default]
    Works,
    /// While the model is held.
    Waits,
    Fails,
    Panics,
    Loses,
}

impl Control {
    pub fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        lock(&self.0.0)
    }

    /// The next turns wait until `let_go`.
    pub fn hold(&self) {
        self.seen().is_held = true;
    }

    pub fn let_go(&self) {
        self.seen().is_held = false;
        self.0.1.notify_all();
    }

    /// Waits until the model was asked for `n` rows.
    pub fn wait_for_accesses(&self, n: usize) {
        let mut seen = self.seen();
        while seen.accesses < n {
            seen = self.0.1.wait(seen).unwrap();
        }
    }

    /// Waits until `n` turns have begun.
    pub fn wait_for_turns(&self, n: usize) {
        let mut seen = self.seen();
        while seen.turns.len() < n {
            seen = self.0.1.wait(seen).unwrap();
        }
    }
}

/// Inputs `x` u64 `[1]`, and `rate` i32 `[]` that a turn shares if `shared`; output `y` u64 `[1]`, the state after `x`.
pub struct Double {
    signature: Signature,
    control: Control,
    rows: Vec<u64>,
    x: Vec<u64>,
    rate: Vec<i32>,
    y: Vec<u64>,
    capacity: Capacity,
}

/// The signature of a double.
pub fn signature(shared: bool) -> Signature {
    let port =
        |name: &str, dtype, shape: &[usize], scope| Port { name: name.into(), dtype, shape: shape.into(), scope };
    let mut inputs = vec![port("x", DType::U64, &[1], Scope::Seat)];
    if shared {
        inputs.push(port("rate", DType::I32, &[], Scope::Turn));
    }
    Signature {
        name: "double".into(),
        inputs,
        outputs: vec![port("y", DType::U64, &[1], Scope::Seat)],
        states: vec![StateSpec {
            input: "s".into(),
            output: "s_out".into(),
            dtype: DType::U64,
            lane_shape: vec![1],
            initial: Some(INITIAL.to_le_bytes().as_slice().into()),
            kind: StateKind::Replaced,
        }],
    }
}

impl Double {
    pub fn new(control: &Control, shared: bool) -> Self {
        let signature = signature(shared);
        let capacity = Capacity { rows: 1, max_seats: 0 };
        Self { signature, control: control.clone(), rows: vec![], x: vec![], rate: vec![0], y: vec![], capacity }
    }
}

impl LanedModel for Double {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError> {
        self.rows = vec![0xdead; capacity.rows as usize];
        self.rows[capacity.initial_row().0 as usize] = INITIAL;
        (self.x, self.y) = (vec![0; capacity.max_seats as usize], vec![0; capacity.max_seats as usize]);
        self.capacity = capacity;
        Ok(())
    }

    fn input_mut(&mut self, port: usize) -> &mut [u8] {
        if port == 0 { bytemuck::cast_slice_mut(&mut self.x) } else { bytemuck::cast_slice_mut(&mut self.rate) }
    }

    fn run(&mut self, seats: &[SeatRows], refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        let xs = self.x[..seats.len()].to_vec();
        let mut seen = self.control.seen();
        seen.turns.push(xs.clone());
        self.control.0.1.notify_all();
        drop(self.control.0.1.wait_timeout_while(seen, PATIENCE, |seen| seen.is_held).unwrap());
        let initial = self.capacity.initial_row();
        let mut written: Vec<_> = seats.iter().map(|seat| seat.write).collect();
        written.sort();
        written.dedup();
        assert_eq!(written.len(), seats.len(), "two seats write one row: {seats:?}");
        assert!(written.iter().all(|row| *row < initial), "a seat writes the initial row");
        assert!(seats.iter().all(|seat| !written.contains(&seat.read)), "a row that is read is written: {seats:?}");
        // Whatever does not succeed leaves rubbish behind.
        seats.iter().for_each(|seat| self.rows[seat.write.0 as usize] = 0xbad);
        self.y.fill(0xbad);
        assert!(!xs.contains(&PANIC), "told to panic");
        if xs.contains(&LOSE) {
            return Err(DeviceError::Lost("unplugged".into()));
        }
        if xs.contains(&FAIL) {
            return Err(DeviceError::Fault { at: "double".into(), what: "told to fail".into() });
        }
        for (seat, (rows, x)) in seats.iter().zip(xs).enumerate() {
            if x == REFUSE {
                refused.push(Refusal { seat: seat as u32, reason: "told to refuse".into() });
            } else {
                self.y[seat] = next(self.rows[rows.read.0 as usize], x);
                self.rows[rows.write.0 as usize] = self.y[seat];
            }
        }
        Ok(())
    }

    fn output(&self, _port: usize) -> &[u8] {
        bytemuck::cast_slice(&self.y)
    }

    fn padded_seats(&self, seats: u32) -> u32 {
        seats.next_power_of_two() - seats
    }

    fn device_bytes(&self) -> u64 {
        1234
    }

    fn identity(&self) -> Result<Identity, DeviceError> {
        let identity = self.control.seen().identity;
        identity.map(|byte| [byte; 32]).ok_or(DeviceError::Unsupported { what: "double has no identity today".into() })
    }

    fn read_row(&self, _state: usize, row: RowId, into: &mut [u8]) -> Result<(), DeviceError> {
        self.row_access("read")?;
        into.copy_from_slice(&self.rows[row.0 as usize].to_le_bytes());
        Ok(())
    }

    fn write_row(&mut self, _state: usize, row: RowId, bytes: &[u8]) -> Result<(), DeviceError> {
        assert!(row < self.capacity.initial_row(), "the initial row is written");
        self.row_access("write")?;
        self.rows[row.0 as usize] = u64::from_le_bytes(bytes.try_into().unwrap());
        Ok(())
    }
}

impl Double {
    fn row_access(&self, what: &str) -> Result<(), DeviceError> {
        let mut seen = self.control.seen();
        seen.accesses += 1;
        let access = seen.rows;
        if access == RowAccess::Waits {
            self.control.0.1.notify_all();
            drop(self.control.0.1.wait_timeout_while(seen, PATIENCE, |seen| seen.is_held).unwrap());
        } else {
            drop(seen);
        }
        match access {
            RowAccess::Works | RowAccess::Waits => Ok(()),
            RowAccess::Fails => Err(DeviceError::Fault { at: what.into(), what: "told to fail".into() }),
            RowAccess::Loses => Err(DeviceError::Lost("unplugged".into())),
            RowAccess::Panics => panic!("told to panic in a {what}"),
        }
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.control.seen().is_gone = true;
    }
}

/// A builder over a `Double` without a shared input.
pub fn builder() -> (LanesBuilder, Control) {
    let control = Control::default();
    (LanesBuilder::new(Double::new(&control, false)), control)
}

/// `x` as the inputs of a call.
pub fn x(x: &u64) -> [Value<'_>; 1] {
    [Value::new(&[1], std::slice::from_ref(x))]
}

/// `x` and `rate` as the inputs of a call.
pub fn x_at<'a>(x: &'a u64, rate: &'a i32) -> [Value<'a>; 2] {
    [Value::new(&[1], std::slice::from_ref(x)), Value::new(&[], std::slice::from_ref(rate))]
}

/// The one output.
pub fn y(result: Result<Outputs, StreamError>) -> Result<u64, StreamError> {
    result.map(|outputs| outputs.get::<u64>(0).unwrap()[0])
}

/// Polls once, with a waker that does nothing.
pub fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// The answer of a future that must have one.
pub fn now<F: Future + Unpin>(mut future: F) -> F::Output {
    match poll(&mut future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("no answer yet"),
    }
}

/// Waits for a future without any executor of ours.
pub fn wait<F: Future + Unpin>(mut future: F) -> F::Output {
    loop {
        if let Poll::Ready(output) = poll(&mut future) {
            return output;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// An engine without a worker: turns form when the test says so, at a time that it chooses.
pub struct ByHand {
    pub shared: Arc<Shared>,
    pub control: Control,
}

impl ByHand {
    pub fn new(asked: Asked, shared_input: bool) -> Self {
        let control = Control::default();
        Self::over(Double::new(&control, shared_input), control, asked)
    }

    pub fn over(mut model: impl LanedModel + 'static, control: Control, asked: Asked) -> Self {
        let knobs = Knobs::resolve(asked, |_| None).unwrap();
        model.prepare_slots(knobs.capacity(), knobs.slots).unwrap();
        let signature = model.signature().clone();
        let info = Arc::new(ModelInfo { layout: Layout::new(&signature), signature });
        let engine = Engine::new(Box::new(model), Arc::clone(&info), knobs);
        Self { shared: Arc::new(Shared::new(engine, info, knobs)), control }
    }

    pub fn step_at(&self, now: Instant) -> Step {
        let mut engine = lock(&self.shared.engine);
        let step = engine.step(&self.shared, now);
        let mut wakers = Vec::new();
        engine.take_wakers(&mut wakers);
        drop(engine);
        wake_all(&mut wakers);
        step
    }

    pub fn step(&self) -> Step {
        self.step_at(Instant::now())
    }

    pub fn spawn(&self) -> Result<Stream, StreamError> {
        let spawn = Spawn::new(&self.shared);
        self.step();
        now(spawn)
    }

    /// Rows that are neither free nor the initial one.
    pub fn rows_held(&self) -> usize {
        let knobs = self.shared.knobs;
        (knobs.capacity().rows - 1) as usize - lock(&self.shared.engine).free_rows()
    }

    pub fn turns(&self) -> Vec<Vec<u64>> {
        self.control.seen().turns.clone()
    }
}
