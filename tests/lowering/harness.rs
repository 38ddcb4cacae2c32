//! One model on the CPU with one thread and with two, seats together and alone, against the oracle.

use half::{bf16, f16};
use lanes::lanes::{Capacity, LanedModel, RowId, SeatRows};
use lanes::onnx::lower::lower;
use lanes::onnx::onnx::build::{ModelBuilder, Value};
use lanes::onnx::oracle::OracleModel;
use lanes::onnx::{ImportOptions, Tensor, load_bytes};
use lanes::planned::PlannedModel;
use lanes::{DType, OpenOptions, Scope, Signature};
use std::ops::RangeInclusive;

/// What multiplies the numbers of each stream.
const SCALES: [f64; 5] = [1.0, 3e4, 1.0, 1e-2, 3e4];
/// Turns that each case runs.
const TURNS: usize = 4;

/// A generator of numbers that look random: splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between −1 and 1, a multiple of 2⁻¹².
    pub fn unit(&mut self) -> f64 {
        (self.next() % 8193) as f64 / 4096.0 - 1.0
    }

    /// A constant of f32 between −1 and 1.
    pub fn tensor(&mut self, shape: &[usize]) -> Tensor {
        Tensor::from_vec(shape.to_vec(), (0..shape.iter().product()).map(|_| self.unit() as f32).collect())
    }
}

/// A model and how it is fed and compared.
pub struct Case {
    bytes: Vec<u8>,
    options: ImportOptions,
    ints: RangeInclusive<i64>,
    of_largest: f64,
    scales: [f64; SCALES.len()],
}

/// A case with inputs over the whole range of their types, and without tolerance for sums.
pub fn case(model: ModelBuilder) -> Case {
    Case {
        bytes: model.encode(),
        options: ImportOptions::default(),
        ints: i64::MIN..=i64::MAX,
        of_largest: 0.0,
        scales: SCALES,
    }
}

impl Case {
    pub fn options(mut self, options: ImportOptions) -> Self {
        self.options = options;
        self
    }

    /// Integer inputs lie in this range.
    pub fn ints(mut self, ints: RangeInclusive<i64>) -> Self {
        self.ints = ints;
        self
    }

    /// Results are sums whose terms may cancel: each may be off by so much of the stream's largest.
    pub fn sums(mut self) -> Self {
        self.of_largest = 2e-6;
        self
    }

    /// Results are of half precision and went through others that were: off by some of its steps.
    pub fn halves(mut self) -> Self {
        self.of_largest = 1.0 / 128.0;
        self
    }

    /// Functions of sums of functions of sums: rounding grows on its way, and would grow more from larger numbers.
    /// What is wrong is wrong by far more than this.
    pub fn deep(mut self) -> Self {
        (self.of_largest, self.scales) = (1e-3, [1.0; SCALES.len()]);
        self
    }

    /// Runs it; panics with what differs. How many steps were refused.
    #[track_caller]
    pub fn check(self) -> usize {
        let model = load_bytes(self.bytes, "case", &self.options).expect("the model imports");
        let lowered = lower(&model).expect("the model lowers");
        let signature = &model.signature;
        let mut random = Random(1);
        let shared: Vec<Step> = (0..TURNS).map(|_| step(signature, 1.0, &self.ints, &mut random)).collect();
        let steps: Vec<Vec<Step>> = self
            .scales
            .iter()
            .map(|&scale| {
                let with_shared = |turn: usize| {
                    let mut step = step(signature, scale, &self.ints, &mut random);
                    for (port, value) in step.iter_mut().enumerate() {
                        if signature.inputs[port].scope == Scope::Turn {
                            value.clone_from(&shared[turn][port]);
                        }
                    }
                    step
                };
                (0..TURNS).map(with_shared).collect()
            })
            .collect();
        let mut oracle = OracleModel::new(&model);
        oracle.prepare(ROOM).expect("the oracle has room");
        let wanted: Vec<_> = (0..SCALES.len()).map(|stream| alone(&mut oracle, &steps, stream)).collect();
        let mut before: Option<Vec<Vec<Answer>>> = None;
        for threads in [1, 2] {
            let device = lanes::open("cpu", &OpenOptions { threads: Some(threads), ..OpenOptions::default() })
                .expect("cpu opens");
            let (plan, reasons) = (lowered.plan.clone(), lowered.reasons.clone());
            let mut planned = PlannedModel::refusing(device, plan, lowered.signature.clone(), reasons)
                .expect("the plan fits the signature");
            planned.prepare(ROOM).expect("the device takes the plan");
            let found = together(&mut planned, &steps);
            for stream in 0..SCALES.len() {
                self::compare(signature, self.of_largest, stream, &found[stream], &wanted[stream]);
                let by_itself = alone(&mut planned, &steps, stream);
                assert_same(&by_itself, &found[stream], || format!("stream {stream} alone, {threads} threads"));
            }
            if let Some(before) = &before {
                for (stream, (one, two)) in before.iter().zip(&found).enumerate() {
                    assert_same(one, two, || format!("stream {stream} with one thread and with two"));
                }
            }
            before = Some(found);
        }
        wanted.iter().flatten().filter(|answer| answer.is_err()).count()
    }
}

/// One turn's inputs of one stream, by port.
type Step = Vec<Vec<u8>>;
/// One turn's outputs by port, or why the seat was refused.
type Answer = Result<Vec<Vec<u8>>, String>;

const ROOM: Capacity = Capacity { rows: 2 * SCALES.len() as u32 + 1, max_seats: SCALES.len() as u32 };

fn step(signature: &Signature, scale: f64, ints: &RangeInclusive<i64>, random: &mut Random) -> Step {
    let value = |port: &lanes::Port| {
        (0..port.elements()).flat_map(|_| element(port.dtype, scale, ints, random)).collect::<Vec<u8>>()
    };
    signature.inputs.iter().map(value).collect()
}

fn element(dtype: DType, scale: f64, ints: &RangeInclusive<i64>, random: &mut Random) -> Vec<u8> {
    let float = random.unit() * scale;
    let raw = random.next();
    let width = ints.end().wrapping_sub(*ints.start()).wrapping_add(1) as u64;
    let int = if width == 0 { raw as i64 } else { ints.start().wrapping_add((raw % width) as i64) };
    match dtype {
        DType::F16 => f16::from_f64(float).to_le_bytes().into(),
        DType::BF16 => bf16::from_f64(float).to_le_bytes().into(),
        DType::F32 => (float as f32).to_le_bytes().into(),
        DType::F64 => float.to_le_bytes().into(),
        DType::Bool => vec![(raw % 2) as u8],
        _ => int.to_le_bytes()[..dtype.size()].into(),
    }
}

/// Whether a stream sits out a turn, so that company changes.
fn absent(stream: usize, turn: usize) -> bool {
    (stream + turn) % 4 == 3
}

/// The rows of a stream, which point at the initial row before its first turn.
struct Rows {
    now: RowId,
    stream: u32,
}

impl Rows {
    fn of(stream: usize) -> Self {
        Self { now: ROOM.initial_row(), stream: stream as u32 }
    }

    fn seat(&self) -> SeatRows {
        let first = RowId(2 * self.stream);
        SeatRows { read: self.now, write: if self.now == first { RowId(2 * self.stream + 1) } else { first } }
    }
}

/// One turn of `streams` in seat order.
fn turn(
    model: &mut dyn LanedModel,
    rows: &mut [Rows],
    streams: &[usize],
    steps: &[Vec<Step>],
    at: usize,
) -> Vec<Answer> {
    let signature = model.signature().clone();
    for (seat, &stream) in streams.iter().enumerate() {
        for (port, value) in steps[stream][at].iter().enumerate() {
            let seat = if signature.inputs[port].scope == Scope::Turn { 0 } else { seat };
            model.input_mut(port)[seat * value.len()..][..value.len()].copy_from_slice(value);
        }
    }
    let seats: Vec<SeatRows> = streams.iter().map(|&stream| rows[stream].seat()).collect();
    let mut refused = Vec::new();
    model.run(&seats, &mut refused).expect("the turn runs");
    let answer = |(seat, &stream): (usize, &usize)| {
        if let Some(refusal) = refused.iter().find(|refusal| refusal.seat as usize == seat) {
            return Err(refusal.reason.clone());
        }
        rows[stream].now = seats[seat].write;
        let output = |(port, declared): (usize, &lanes::Port)| {
            model.output(port)[seat * declared.bytes()..][..declared.bytes()].to_vec()
        };
        Ok(signature.outputs.iter().enumerate().map(output).collect())
    };
    streams.iter().enumerate().map(answer).collect()
}

fn alone(model: &mut dyn LanedModel, steps: &[Vec<Step>], stream: usize) -> Vec<Answer> {
    let mut rows: Vec<Rows> = (0..SCALES.len()).map(Rows::of).collect();
    let present = (0..TURNS).filter(|&at| !absent(stream, at));
    present.flat_map(|at| turn(model, &mut rows, &[stream], steps, at)).collect()
}

/// Every stream's answers, in seats that change.
fn together(model: &mut dyn LanedModel, steps: &[Vec<Step>]) -> Vec<Vec<Answer>> {
    let mut rows: Vec<Rows> = (0..SCALES.len()).map(Rows::of).collect();
    let mut answers = vec![Vec::new(); SCALES.len()];
    for at in 0..TURNS {
        let mut streams: Vec<usize> = (0..SCALES.len()).filter(|&stream| !absent(stream, at)).collect();
        streams.rotate_left(at);
        for (stream, answer) in streams.iter().zip(turn(model, &mut rows, &streams, steps, at)) {
            answers[*stream].push(answer);
        }
    }
    answers
}

#[track_caller]
fn assert_same(a: &[Answer], b: &[Answer], what: impl Fn() -> String) {
    for (step, (a, b)) in a.iter().zip(b).enumerate() {
        // NaN has many bit patterns, and all of them must be the same too.
        assert!(a == b, "{}: step {step} has other bits: {a:?} {b:?}", what());
    }
}

#[track_caller]
fn compare(signature: &Signature, of_largest: f64, stream: usize, found: &[Answer], wanted: &[Answer]) {
    for (step, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let (found, wanted) = match (found, wanted) {
            (Ok(found), Ok(wanted)) => (found, wanted),
            (Err(_), Err(_)) => continue,
            _ => panic!("stream {stream} step {step}: one is refused: {found:?} {wanted:?}"),
        };
        for (port, declared) in signature.outputs.iter().enumerate() {
            let (found, wanted) = (numbers(declared.dtype, &found[port]), numbers(declared.dtype, &wanted[port]));
            let (Numbers::Float(found), Numbers::Float(wanted)) = (&found, &wanted) else {
                assert!(found == wanted, "stream {stream} step {step} {}: {found:?} {wanted:?}", declared.name);
                continue;
            };
            // A result of half precision may round to the other neighbour; f64 is computed as f64.
            let (least, relative) = match declared.dtype {
                DType::F16 => (1e-5, 1.0 / 1024.0),
                DType::BF16 => (1e-5, 1.0 / 128.0),
                DType::F64 => (1e-11, 0.0),
                _ => (1e-5, 0.0),
            };
            let largest =
                wanted.iter().filter(|value| value.is_finite()).fold(0f64, |most, value| most.max(value.abs()));
            for (at, (a, e)) in found.iter().zip(wanted).enumerate() {
                let tolerance = least * e.abs().max(1.0) + relative * e.abs() + of_largest * largest;
                assert!(
                    a == e || a.is_nan() && e.is_nan() || (a - e).abs() <= tolerance,
                    "stream {stream} step {step} {}[{at}] is {a} where {e} is expected: {found:?} {wanted:?}",
                    declared.name
                );
            }
        }
    }
}

#[derive(Debug, PartialEq)]
enum Numbers {
    Float(Vec<f64>),
    Exact(Vec<u8>),
}

fn numbers(dtype: DType, bytes: &[u8]) -> Numbers {
    let each = bytes.chunks_exact(dtype.size());
    let float = |read: fn(&[u8]) -> f64| Numbers::Float(each.map(read).collect());
    match dtype {
        DType::F16 => float(|b| f16::from_le_bytes([b[0], b[1]]).to_f64()),
        DType::BF16 => float(|b| bf16::from_le_bytes([b[0], b[1]]).to_f64()),
        DType::F32 => float(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()),
        DType::F64 => float(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])),
        _ => Numbers::Exact(bytes.to_vec()),
    }
}

/// A tensor of i64 of rank 1.
pub fn ints(values: &[i64]) -> Tensor {
    Tensor::from_vec(vec![values.len()], values.to_vec())
}

/// A model in opset `opset` so far: inputs `x0`, `x1`, … of one seat's shape, and constants `c0`, `c1`, ….
pub fn model(opset: i64, inputs: &[(DType, &[usize])], constants: &[Tensor]) -> ModelBuilder {
    let mut model = ModelBuilder::new(opset);
    for (n, (dtype, shape)) in inputs.iter().enumerate() {
        let dims: Vec<String> =
            std::iter::once("batch".to_owned()).chain(shape.iter().map(ToString::to_string)).collect();
        model = model.input(&format!("x{n}"), *dtype, &dims.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for (n, tensor) in constants.iter().enumerate() {
        model = model.tensor(&format!("c{n}"), tensor);
    }
    model
}

/// One node over inputs and constants by name, giving `y`.
pub fn one(
    op: &str,
    inputs: &[(DType, &[usize])],
    constants: &[Tensor],
    operands: &[&str],
    attributes: &[(&str, Value)],
    result: DType,
) -> ModelBuilder {
    model(18, inputs, constants).node(op, operands, &["y"], attributes).output("y", result, &["?", "?"])
}
