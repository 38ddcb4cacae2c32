//! What must hold on hardware beside right answers, each in a process of its own. Exits with 1, or by a panic, where it does not.
//!
//! `proofs allocations` · `proofs churn [TURNS]` · `proofs trap` · `proofs refused` · `proofs memory` · `proofs exit [TIMES [AT_ONCE]]`
//!
//! `cargo run --release -p backend-cuda --features instruments --example proofs -- churn`

use backend_cuda::{CudaDevice, CudaOptions};
use lanes_core::device::{Completion, Device, DeviceError, Placement, Purpose};
use lanes_core::lanes::{Capacity, LanedModel, LanesBuilder, RowId, SeatRows, StreamError, Value};
use lanes_core::plan::{Command, Plan, Region, Storage};
use lanes_core::planned::PlannedModel;
use lanes_core::{DType, Port, Scope, Signature, StateKind, StateSpec};
use lanes_tests::counting::Counting;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

type Proof = Result<(), Box<dyn Error>>;

/// Within it everything that goes wrong is told.
const SOON: Duration = Duration::from_secs(1);
/// Floats of a state and of an input.
const WIDTH: usize = 256;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: usize| arguments.get(at).and_then(|n| n.parse().ok()).unwrap_or(otherwise);
    let began = Instant::now();
    let proved = match arguments.first().map_or("", String::as_str) {
        "allocations" => allocations(),
        "churn" => churn(number(1, 100_000)),
        "trap" => trap(),
        "refused" => refused(),
        "memory" => memory(),
        "exit" => exit(number(1, 1000), number(2, 8)),
        "leave" => leave(number(1, 0)),
        other => Err(format!("`{other}`: one of allocations, churn, trap, refused, memory, exit").into()),
    };
    match proved {
        Ok(()) => {
            if arguments[0] != "leave" {
                println!("{} holds ({:.1} s)", arguments[0], began.elapsed().as_secs_f64());
            }
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{}: {why}", arguments.join(" "));
            ExitCode::FAILURE
        }
    }
}

/// That `what` holds.
fn check(holds: bool, what: impl FnOnce() -> String) -> Proof {
    if holds { Ok(()) } else { Err(what().into()) }
}

fn open() -> Result<Arc<CudaDevice>, DeviceError> {
    CudaDevice::open(0, CudaOptions::default()).map(Arc::new)
}

/// `y = h`, `h' = x`: a stream answers with what it was told the call before.
fn model(device: &Arc<CudaDevice>) -> Result<PlannedModel, DeviceError> {
    let mut plan = Plan { name: "last".into(), ..Plan::default() };
    let (bytes, whole) = (WIDTH * 4, Region::contiguous(0, WIDTH * 4));
    let x = plan.storage(Storage::Input { port: 0, bytes });
    let y = plan.storage(Storage::Output { port: 0, bytes });
    let state = plan.storage(Storage::State { state: 0, bytes });
    plan.commands = vec![
        Command::Gather { state, row: whole, to: (y, whole) },
        Command::Scatter { from: (x, whole), state, row: whole },
    ];
    let port = |name: &str| Port { name: name.into(), dtype: DType::F32, shape: vec![WIDTH], scope: Scope::Seat };
    let signature = Signature {
        name: "last".into(),
        inputs: vec![port("x")],
        outputs: vec![port("y")],
        states: vec![StateSpec {
            input: "h".into(),
            output: "h_out".into(),
            dtype: DType::F32,
            lane_shape: vec![WIDTH],
            initial: None,
            kind: StateKind::Replaced,
        }],
    };
    PlannedModel::new(Arc::<CudaDevice>::clone(device), plan, signature)
}

const CAPACITY: Capacity = Capacity { rows: 9, max_seats: 4 };

/// One turn of one seat in slot 0, from `read` to `write`: what it answers.
fn turn(model: &mut PlannedModel, read: u32, write: u32, x: f32) -> Result<f32, DeviceError> {
    bytes_of(model.slot_input_mut(0, 0), x);
    model.start(0, &[SeatRows { read: RowId(read), write: RowId(write) }])?.wait()?;
    model.finish(0, 1, &mut Vec::new())?;
    let y = model.slot_output(0, 0);
    Ok(f32::from_le_bytes([y[0], y[1], y[2], y[3]]))
}

fn bytes_of(place: &mut [u8], x: f32) {
    place.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&x.to_le_bytes()));
}

/// Turns allocate nothing, on any thread: over one slot, whose caller waits, and over two, whose turns are watched.
fn allocations() -> Proof {
    let device = open()?;
    for slots in [1, 2] {
        let mut model = model(&device)?;
        model.prepare_slots(CAPACITY, slots)?;
        let mut failed = None;
        let allocated = ALLOCATOR.in_rounds(200, |round| {
            let (read, write) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
            failed = turn(&mut model, read, write, 1.0).err().or(failed.take());
        });
        check(failed.is_none(), || format!("a turn fails: {failed:?}"))?;
        check(allocated == 0, || format!("200 turns over {slots} slots allocate {allocated} times"))?;
    }
    Ok(())
}

/// Resident bytes of this process (`proc(5)`).
fn host_bytes() -> Result<u64, Box<dyn Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    Ok(statm.split(' ').nth(1).ok_or("no resident size")?.parse::<u64>()? * 4096)
}

/// Streams come and go, models are prepared and dropped; memory of device and host stays what it is.
fn churn(turns: usize) -> Proof {
    const STREAMS: usize = 64;
    let device = open()?;
    let instruments = device.instruments();
    let runnable = LanesBuilder::new(model(&device)?).lanes(STREAMS as u32).max_seats(48).build()?;
    let mut reaper = runnable.reaper();
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push((runnable.spawn_blocking()?, 0f32));
    }
    let (mut random, mut at_start) = (1u32, None);
    let mut draw = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) % below
    };
    let (mut rounds, mut next_look) = (0u64, turns as u64 / 10);
    while runnable.stats().turns < turns as u64 {
        rounds += 1;
        let mut called = Vec::new();
        for at in 0..STREAMS {
            if draw(64) == 0 {
                // The lane of one that leaves is another's at once, from the initial row.
                let (stream, _) = streams.swap_remove(at);
                drop(stream);
                streams.push((runnable.spawn_blocking()?, 0.0));
            }
        }
        for (at, (stream, _)) in streams.iter().enumerate() {
            if draw(4) > 0 {
                let x = (rounds % 1000) as f32 + at as f32;
                reaper.submit(stream, at as u64, &[Value::new(&[WIDTH], &[x; WIDTH])]).map_err(|_| "no room")?;
                called.push((at, x));
            }
        }
        reaper.flush();
        for _ in 0..called.len() {
            let reaped = reaper.next_blocking().ok_or("an answer lacks")?;
            let (outputs, at) = (reaped.result?, reaped.tag as usize);
            let expected = streams[at].1;
            check(outputs.get::<f32>(0) == Some(&[expected; WIDTH][..]), || {
                format!("round {rounds}, stream {at}: {:?}, not {expected}", outputs.get::<f32>(0).map(|y| y[0]))
            })?;
        }
        called.into_iter().for_each(|(at, x)| streams[at].1 = x);
        if rounds % 500 == 0 {
            let mut other = model(&device)?;
            other.prepare_slots(CAPACITY, 2)?;
            check(turn(&mut other, 8, 0, 3.0)? == 0.0, || "the initial row is not zero".into())?;
            check(turn(&mut other, 0, 1, 4.0)? == 3.0, || "a row was not written".into())?;
        }
        if runnable.stats().turns >= next_look {
            next_look += turns as u64 / 10;
            // What was dropped last may still be on its way.
            std::thread::sleep(Duration::from_millis(100));
            let now = (instruments.free_bytes()?, host_bytes()?, device.memory().used.total());
            println!("{} turns: device free {}, host {}, charged {}", runnable.stats().turns, now.0, now.1, now.2);
            let (free, host, charged) = *at_start.get_or_insert(now);
            check(now.2 == charged, || format!("charged {charged} before"))?;
            check(now.0 + (2 << 20) >= free, || format!("the device had {free} free"))?;
            check(now.1 <= host + (8 << 20), || format!("the host held {host}"))?;
        }
    }
    Ok(())
}

/// The cause that lost the device, or what was said instead.
fn lost(result: Result<(), DeviceError>) -> Result<Arc<str>, Box<dyn Error>> {
    match result {
        Err(DeviceError::Lost(cause)) => Ok(cause),
        other => Err(format!("{other:?}, where a loss was to be told").into()),
    }
}

/// A kernel traps between turns in flight: every waiter has one cause, soon; health says so; opening anew says that it cannot be
/// trusted; streams are told too.
fn trap() -> Proof {
    let device = open()?;
    let mut flying = model(&device)?;
    flying.prepare_slots(CAPACITY, 4)?;
    let runnable = LanesBuilder::new(model(&device)?).lanes(4).build()?;
    let stream = runnable.spawn_blocking()?;
    stream.call_blocking(&[Value::new(&[WIDTH], &[1f32; WIDTH])])?;
    check(turn(&mut flying, 8, 0, 1.0)? == 0.0, || "the first turn is wrong".into())?;

    let began = Instant::now();
    device.instruments().trap()?;
    let rows = |slot: u32| [SeatRows { read: RowId(8), write: RowId(slot) }];
    let after: Vec<Result<Completion, DeviceError>> =
        (0..4u32).map(|slot| flying.start(slot as usize, &rows(slot))).collect();
    let mut causes = Vec::new();
    for started in after {
        let ended = started.and_then(|completion| {
            let ended = completion.wait_timeout(SOON);
            ended.unwrap_or(Err(DeviceError::Busy { depth: 0 })).map(|_| ())
        });
        causes.push(lost(ended)?);
    }
    causes.push(lost(device.health())?);
    check(began.elapsed() < SOON, || format!("it took {:?}", began.elapsed()))?;
    let first = &causes[0];
    check(causes.iter().all(|cause| Arc::ptr_eq(cause, first)), || format!("causes differ: {causes:?}"))?;
    println!("the cause: {first}");
    let allocated = device.allocate("more", Purpose::State, Placement::Device, 16).map(|_| ());
    check(Arc::ptr_eq(&lost(allocated)?, first), || "an allocation has another cause".into())?;
    match stream.call_blocking(&[Value::new(&[WIDTH], &[1f32; WIDTH])]) {
        Err(StreamError::Closed(cause)) => println!("a stream: {cause}"),
        other => return Err(format!("a stream of a lost device is told {:?}", other.map(|_| ())).into()),
    }
    for said in [device.reopen().err(), CudaDevice::open(0, CudaOptions::default()).err()] {
        let said = said.ok_or("it opens again")?.to_string();
        check(said.contains("cannot be trusted"), || said)?;
    }
    check(began.elapsed() < 2 * SOON, || format!("it took {:?}", began.elapsed()))
}

/// Launches that the driver refuses fail their turns alone, and leave rows as they were.
fn refused() -> Proof {
    let device = open()?;
    let mut model = model(&device)?;
    model.prepare_slots(CAPACITY, 2)?;
    check(turn(&mut model, 8, 0, 5.0)? == 0.0, || "the first turn is wrong".into())?;
    for (status, kind) in [(1, "fault"), (2, "out of device memory"), (701, "fault")] {
        device.instruments().refuse_launch(status);
        let began = Instant::now();
        let said = turn(&mut model, 0, 1, 6.0).err().ok_or("a launch that was refused succeeds")?.to_string();
        println!("status {status}: {said}");
        check(said.contains(kind), || format!("{said}: no {kind}"))?;
        check(began.elapsed() < SOON, || format!("it took {:?}", began.elapsed()))?;
        device.health()?;
        check(turn(&mut model, 0, 1, 6.0)? == 5.0, || "the row read has changed".into())?;
    }
    Ok(())
}

/// Memory runs out: told as such, soon, and what is there goes on; all of it can be had again at once.
fn memory() -> Proof {
    let device = open()?;
    let mut model = model(&device)?;
    model.prepare_slots(CAPACITY, 2)?;
    let total = device.capabilities().memory_bytes.ok_or("no memory is told")?;
    let allocate = |bytes| device.allocate("all there is", Purpose::State, Placement::Device, bytes);
    let short = |result: Result<(), DeviceError>| match result {
        Err(DeviceError::OutOfMemory { .. }) => Ok(()),
        other => Err(format!("{other:?}, where there is too little memory")),
    };
    let began = Instant::now();
    short(allocate(total * 2).map(|_| ()))?;
    check(began.elapsed() < SOON, || format!("it took {:?}", began.elapsed()))?;
    for round in 0..3 {
        let mut held = Vec::new();
        let error = loop {
            match allocate(total / 16) {
                Ok(buffer) => held.push(buffer),
                Err(error) => break error,
            }
            check(held.len() <= 16, || "there is more memory than there is".into())?;
        };
        short(Err(error))?;
        println!("round {round}: {} sixteenths", held.len());
        check(held.len() >= 8, || format!("only {} sixteenths", held.len()))?;
        let value = round as f32;
        check(turn(&mut model, 8, 0, value)? == 0.0, || "a turn is wrong when memory is full".into())?;
        check(turn(&mut model, 0, 1, 0.0)? == value, || "a turn is wrong when memory is full".into())?;
    }
    device.health()?;
    Ok(())
}

/// Processes that end with handles alive, in several orders, all well.
fn exit(times: usize, at_once: usize) -> Proof {
    let this = std::env::current_exe()?;
    let (next, failed) = (Mutex::new(0..times), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.lock().ok().and_then(|mut next| next.next());
                    let Some(at) = at else { return };
                    let ended = std::process::Command::new(&this).args(["leave", &at.to_string()]).output();
                    let why = match ended {
                        Ok(ended) if ended.status.success() => continue,
                        Ok(ended) => format!("{}: {}", ended.status, String::from_utf8_lossy(&ended.stderr)),
                        Err(why) => why.to_string(),
                    };
                    if let Ok(mut failed) = failed.lock() {
                        failed.push(format!("process {at}: {why}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner()?;
    check(failed.is_empty(), || {
        format!("{} of {times} ended badly; the first: {}", failed.len(), failed.first().map_or("", String::as_str))
    })
}

/// One process that ends in one of eight ways.
fn leave(way: usize) -> Proof {
    let device = open()?;
    let mut flying = model(&device)?;
    flying.prepare_slots(CAPACITY, 2)?;
    let buffer = device.allocate("kept", Purpose::State, Placement::Device, 1 << 16)?;
    let runnable = LanesBuilder::new(model(&device)?).lanes(4).build()?;
    let stream = runnable.spawn_blocking()?;
    stream.call_blocking(&[Value::new(&[WIDTH], &[1f32; WIDTH])])?;
    let completion = flying.start(0, &[SeatRows { read: RowId(8), write: RowId(0) }])?;
    match way % 8 {
        // In the order of declaration, reversed, with a turn in flight.
        0 => {}
        1 => drop(device),
        2 => {
            drop(flying);
            drop(device);
            drop(completion);
        }
        // Nothing is dropped.
        3 => std::mem::forget((device, flying, buffer, runnable, stream)),
        4 => std::process::exit(0),
        // Dropped elsewhere while this thread leaves.
        5 => drop(std::thread::spawn(move || drop((buffer, flying, stream, runnable, device)))),
        6 => {
            drop(stream);
            drop(runnable);
            drop(buffer);
            completion.wait()?;
            drop(device);
            drop(flying);
        }
        // A thread still submits when the process ends.
        _ => {
            std::thread::spawn(move || while stream.call_blocking(&[Value::new(&[WIDTH], &[1f32; WIDTH])]).is_ok() {});
            std::thread::sleep(Duration::from_millis(way as u64 % 5));
            std::mem::forget(runnable);
        }
    }
    Ok(())
}
