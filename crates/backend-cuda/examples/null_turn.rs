//! What a turn costs beside its kernels, on the first GPU, next to the bare driver in the same run. Exits with 1 where a bar is missed.
//!
//! `cargo run --release -p backend-cuda --features instruments --example null_turn`
//!
//! - A null model of 64 seats: from the worker's last stacked seat to the outputs in its hands, p50, at most 12 µs above the bare
//!   floor: 4 KiB up, a graph of one kernel, 4 KiB down, and the wait.
//! - A chain of 100 trivial kernels as a plan: device time at most 1.15 times that of as many nodes put together by hand.
//! - A kernel that reads 1 GiB and writes 1 GiB: at least 85 % of the speed of the driver's copy of 1 GiB.

use backend_cuda::instruments::Instruments;
use backend_cuda::{CudaDevice, CudaOptions};
use lanes_core::device::{
    Completion, Device, DeviceError, Placement, PrepareOptions, Purpose, Resident, RowCheck, TurnTimes,
};
use lanes_core::lanes::{Capacity, LanedModel, LanesBuilder, Refusal, RowId, SeatRows, Value};
use lanes_core::plan::{Access, Argument, Command, Plan, Region, Storage};
use lanes_core::planned::PlannedModel;
use lanes_core::{DType, Port, Scope, Signature, StateKind, StateSpec};
use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const SEATS: u32 = 64;
/// Floats of a seat: 64 seats have 4 KiB.
const WIDTH: usize = 16;
const CHAIN: usize = 100;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let device = Arc::new(CudaDevice::open(0, CudaOptions::default())?);
    let (instruments, capabilities) = (device.instruments(), device.capabilities());
    println!("{} ({}), {}", capabilities.name, capabilities.target, capabilities.driver);
    let mut holds = true;
    holds &= null_turn(&device, &instruments)?;
    holds &= chain(&device, &instruments)?;
    holds &= memory(&device, &instruments)?;
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The sample that a share of all stay below, in microseconds.
fn quantile(samples: &[Duration], of: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let at = ((sorted.len() as f64 * of) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(f64::NAN, |taken| taken.as_secs_f64() * 1e6)
}

fn said(holds: bool) -> &'static str {
    if holds { "holds" } else { "MISSED" }
}

fn whole(floats: usize) -> Region {
    Region::contiguous(0, floats * 4)
}

fn port(name: &str, floats: usize) -> Port {
    Port { name: name.into(), dtype: DType::F32, shape: vec![floats], scope: Scope::Seat }
}

/// `y = x`, and a state that stays as it is: rows are gathered and scattered.
fn null_plan() -> (Plan, Signature) {
    let mut plan = Plan { name: "null".into(), ..Plan::default() };
    let bytes = WIDTH * 4;
    let x = plan.storage(Storage::Input { port: 0, bytes });
    let y = plan.storage(Storage::Output { port: 0, bytes });
    let state = plan.storage(Storage::State { state: 0, bytes });
    let h = plan.storage(Storage::Scratch { bytes });
    plan.commands = vec![
        Command::Copy { from: (x, whole(WIDTH)), to: (y, whole(WIDTH)) },
        Command::Gather { state, row: whole(WIDTH), to: (h, whole(WIDTH)) },
        Command::Scatter { from: (h, whole(WIDTH)), state, row: whole(WIDTH) },
    ];
    let signature = Signature {
        name: "null".into(),
        inputs: vec![port("x", WIDTH)],
        outputs: vec![port("y", WIDTH)],
        states: vec![StateSpec {
            input: "h".into(),
            output: "h_out".into(),
            dtype: DType::F32,
            lane_shape: vec![WIDTH],
            initial: None,
            kind: StateKind::Replaced,
        }],
    };
    (plan, signature)
}

/// Seats and time of every turn.
type Taken = Arc<Mutex<Vec<(usize, Duration)>>>;

/// A model that notes, for each turn, how long after its last stacked seat its outputs were in the worker's hands.
struct Timed {
    inner: PlannedModel,
    begun: Vec<(usize, Instant)>,
    taken: Taken,
}

impl LanedModel for Timed {
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError> {
        self.prepare_slots(capacity, 1)
    }

    fn input_mut(&mut self, port: usize) -> &mut [u8] {
        self.inner.input_mut(port)
    }

    fn run(&mut self, seats: &[SeatRows], refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        self.inner.run(seats, refused)
    }

    fn output(&self, port: usize) -> &[u8] {
        self.inner.output(port)
    }

    fn device_bytes(&self) -> u64 {
        self.inner.device_bytes()
    }

    fn slots_max(&self) -> usize {
        self.inner.slots_max()
    }

    fn prepare_slots(&mut self, capacity: Capacity, slots: usize) -> Result<(), DeviceError> {
        self.begun = vec![(0, Instant::now()); slots];
        self.inner.prepare_slots(capacity, slots)
    }

    fn slot_input_mut(&mut self, slot: usize, port: usize) -> &mut [u8] {
        self.inner.slot_input_mut(slot, port)
    }

    fn start(&mut self, slot: usize, seats: &[SeatRows]) -> Result<Completion, DeviceError> {
        self.begun[slot] = (seats.len(), Instant::now());
        self.inner.start(slot, seats)
    }

    fn finish(&mut self, slot: usize, seats: usize, refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        self.inner.finish(slot, seats, refused)
    }

    fn slot_output(&self, slot: usize, port: usize) -> &[u8] {
        let output = self.inner.slot_output(slot, port);
        let (seats, begun) = self.begun[slot];
        // Kept for the loop's whole length, so that nothing is allocated here.
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.len() < taken.capacity() {
            taken.push((seats, begun.elapsed()));
        }
        output
    }
}

/// One thread in a closed loop over 64 streams; times of turns of all of them.
fn served(device: &Arc<CudaDevice>, slots: usize, turns: usize) -> Result<Vec<Duration>, Box<dyn Error>> {
    let (plan, signature) = null_plan();
    let taken: Taken = Arc::new(Mutex::new(Vec::with_capacity(2 * turns)));
    let inner = PlannedModel::new(Arc::<CudaDevice>::clone(device), plan, signature)?;
    let model = Timed { inner, begun: Vec::new(), taken: Arc::clone(&taken) };
    let runnable = LanesBuilder::new(model).lanes(SEATS).max_seats(SEATS).slots(slots).build()?;
    let streams = (0..SEATS).map(|_| runnable.spawn_blocking()).collect::<Result<Vec<_>, _>>()?;
    let mut reaper = runnable.reaper();
    for turn in 0..turns {
        let input = [turn as f32; WIDTH];
        for (tag, stream) in streams.iter().enumerate() {
            reaper.submit(stream, tag as u64, &[Value::new(&[WIDTH], &input)]).map_err(|_| "there is no room")?;
        }
        reaper.flush();
        for _ in 0..SEATS {
            let reaped = reaper.next_blocking().ok_or("an answer lacks")?;
            let outputs = reaped.result?;
            if outputs.get::<f32>(0) != Some(&input[..]) {
                return Err(format!("turn {turn} answers {:?}", outputs.get::<f32>(0)).into());
            }
        }
    }
    let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
    // The first turns make what is made once.
    let full = taken.iter().skip(100).filter(|(seats, _)| *seats == SEATS as usize);
    Ok(full.map(|(_, taken)| *taken).collect())
}

fn null_turn(device: &Arc<CudaDevice>, instruments: &Instruments) -> Result<bool, Box<dyn Error>> {
    let floor = || instruments.bare_turns(4096, 2000);
    // Before, between and after, so that a machine that changes its pace is seen.
    let mut floors = vec![quantile(&floor()?, 0.5)];
    let mut best = f64::INFINITY;
    for slots in [1, 2] {
        let taken = served(device, slots, 5000)?;
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|of| quantile(&taken, of));
        floors.push(quantile(&floor()?, 0.5));
        println!(
            "null turn, {SEATS} seats, {slots} slots: p50 {p50:.1} µs, p90 {p90:.1}, p99 {p99:.1}, of {} full turns",
            taken.len()
        );
        best = best.min(p50);
    }
    let (plan, signature) = null_plan();
    let model = PlannedModel::new(Arc::<CudaDevice>::clone(device), plan, signature)?;
    let input = vec![0; SEATS as usize * WIDTH * 4];
    if let Some(TurnTimes { turn, compute }) = model.measure(SEATS, &[&input], 200)? {
        println!(
            "  by the device's clock: turn {:.1} µs, its three moves alone {:.1}",
            quantile(&turn, 0.5),
            quantile(&compute, 0.5)
        );
    }
    floors.sort_by(f64::total_cmp);
    let floor = floors[floors.len() / 2];
    let holds = best <= floor + 12.0;
    println!(
        "  bare floor p50 {floor:.1} µs ({:.1} to {:.1}): {:+.1} µs, {:.2} times; bar +12: {}",
        floors[0],
        floors[floors.len() - 1],
        best - floor,
        best / floor,
        said(holds)
    );
    Ok(holds)
}

fn compiled(name: &str, text: &str) -> Result<Arc<loom_compiler::CpuImage>, Box<dyn Error>> {
    Ok(Arc::new(loom_compiler::compile_cpu(name, text, name, &BTreeMap::new()).map_err(|error| error.to_string())?))
}

const STEP: &str = "
kernel.def export(\"step\") @step() {
  %one = index.constant 1 : index
  kernel.launch.config workgroups(%one, %one, %one) workgroup_size(%one, %one, %one) : index
} launch(%x: buffer) {
  %zero = index.constant 0 : offset
  %view = buffer.view %x[%zero] : buffer -> view<1xf32>
  %at = index.constant 0 : index
  %value = view.load %view[%at] : view<1xf32> -> f32
  %sum = scalar.addf %value, %value : f32
  view.store %sum, %view[%at] : f32, view<1xf32>
  kernel.return
}
";

/// [`CHAIN`] launches of one kernel on one word.
fn chain_plan() -> Result<(Plan, Signature), Box<dyn Error>> {
    let mut plan = Plan { name: "chain".into(), ..Plan::default() };
    let kernel = plan.kernel(compiled("step", STEP)?);
    let word = plan.storage(Storage::Scratch { bytes: 4 });
    let out = plan.storage(Storage::Output { port: 0, bytes: 4 });
    let uses = vec![(whole(1), Access::ReadWrite)];
    plan.commands.push(Command::Fill { to: (word, whole(1)), pattern: 0 });
    for at in 0..CHAIN {
        plan.commands.push(Command::Dispatch {
            label: format!("step {at}"),
            kernel,
            workload: Vec::new(),
            arguments: vec![Argument::Buffer { storage: word, window: None, uses: uses.clone() }],
        });
    }
    plan.commands.push(Command::Copy { from: (word, whole(1)), to: (out, whole(1)) });
    Ok((plan, Signature { name: "chain".into(), outputs: vec![port("y", 1)], ..Signature::default() }))
}

fn chain(device: &Arc<CudaDevice>, instruments: &Instruments) -> Result<bool, Box<dyn Error>> {
    let (plan, signature) = chain_plan()?;
    let nodes = plan.commands.len();
    let model = PlannedModel::new(Arc::<CudaDevice>::clone(device), plan, signature)?;
    let Some(times) = model.measure(1, &[], 100)? else { return Err("the device keeps no time".into()) };
    let bare = quantile(&instruments.bare_chain(nodes, 100)?, 0.5);
    let [turn, compute] = [times.turn, times.compute].map(|taken| quantile(&taken, 0.5));
    let holds = compute <= 1.15 * bare;
    println!(
        "chain of {nodes} kernels: {compute:.1} µs, by hand {bare:.1} ({:.2} µs a kernel): {:.3} times; bar 1.15: {}; with upload and \
         download {turn:.1}",
        bare / nodes as f64,
        compute / bare,
        said(holds)
    );
    Ok(holds)
}

/// Floats of 1 GiB.
const FLOATS: usize = 1 << 28;

const TWICE: &str = "
kernel.def export(\"twice\") @twice() {
  %one = index.constant 1 : index
  %size = index.constant 256 : index
  %groups = index.constant 262144 : index
  kernel.launch.config workgroups(%groups, %one, %one) workgroup_size(%size, %one, %one) : index
} launch(%x: buffer, %y: buffer) {
  %zero = index.constant 0 : offset
  %xn, %yn = buffer.assume.noalias %x, %y : buffer, buffer
  %xa = buffer.assume.alignment %xn {minimum_alignment = 16} : buffer
  %ya = buffer.assume.alignment %yn {minimum_alignment = 16} : buffer
  %xv = buffer.view %xa[%zero] : buffer -> view<268435456xf32>
  %yv = buffer.view %ya[%zero] : buffer -> view<268435456xf32>
  %item = kernel.workitem.dispatch.id<x> : index
  %four = index.constant 4 : index
  %at = index.mul %item, %four : index
  %a = vector.load %xv[%at] : view<268435456xf32> -> vector<4xf32>
  %b = vector.addf %a, %a : vector<4xf32>
  vector.store %b, %yv[%at] : vector<4xf32>, view<268435456xf32>
  kernel.return
}
";

/// One launch that reads one buffer and writes another.
fn memory_plan() -> Result<(Plan, Signature), Box<dyn Error>> {
    let bytes = FLOATS * 4;
    let mut plan = Plan { name: "twice".into(), ..Plan::default() };
    let kernel = plan.kernel(compiled("twice", TWICE)?);
    let [from, to] = [0, 1].map(|binding| plan.storage(Storage::Resident { binding, bytes }));
    let argument = |storage, access| Argument::Buffer { storage, window: None, uses: vec![(whole(FLOATS), access)] };
    plan.commands = vec![Command::Dispatch {
        label: "twice".into(),
        kernel,
        workload: Vec::new(),
        arguments: vec![argument(from, Access::Read), argument(to, Access::Write)],
    }];
    Ok((plan, Signature { name: "twice".into(), ..Signature::default() }))
}

fn memory(device: &Arc<CudaDevice>, instruments: &Instruments) -> Result<bool, Box<dyn Error>> {
    let bytes = FLOATS * 4;
    let (plan, signature) = memory_plan()?;
    let checked = plan.check(&signature).map_err(|error| error.of_plan(&plan.name))?;
    let resident = |what| -> Result<Resident, DeviceError> {
        Ok(Resident { buffer: device.allocate(what, Purpose::State, Placement::Device, bytes as u64)?, offset: 0 })
    };
    let residents = [resident("x")?, resident("y")?];
    let capacity = Capacity { rows: 1, max_seats: 1 };
    let options = PrepareOptions { capacity, slots: 1, states: &[], residents: &residents, overlap: false };
    let seat = [SeatRows { read: RowId(0), write: RowId(0) }];
    let mut check = RowCheck::stateless(capacity);
    let times = device.measure(&checked, &options, &[], check.check(&seat)?, 30)?;
    let ours = quantile(&times.ok_or("the device keeps no time")?.compute, 0.5);
    let bare = quantile(&instruments.bare_copy(bytes, 30)?, 0.5);
    let speed = |us: f64| 2.0 * bytes as f64 / us / 1e6;
    let holds = bare / ours >= 0.85;
    println!(
        "1 GiB read, 1 GiB written: {ours:.1} µs, {:.2} TB/s; the driver's copy {bare:.1} µs, {:.2} TB/s: {:.2} of it; bar 0.85: {}",
        speed(ours),
        speed(bare),
        bare / ours,
        said(holds)
    );
    Ok(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_what_a_device_takes() {
        for (plan, signature) in [null_plan(), chain_plan().expect("it compiles"), memory_plan().expect("it compiles")]
        {
            plan.check(&signature).unwrap_or_else(|error| panic!("{}: {error}", plan.name));
        }
    }
}
