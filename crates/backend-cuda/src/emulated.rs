//! A driver of functions here, for tests: its device's memory is the host's, and a graph that is launched does what its copies say, what
//! the launches of `moves` say, read literally, and what the interpreter makes of other kernels. Of the nodes that may be next, any is.

use crate::sys::{Driver, Status};
use crate::{CudaDevice, CudaOptions, contract, matrices};
use cudarc::driver::sys as raw;
use lanes_core::device::Device;
use lanes_core::lanes::{Capacity, LanedModel, RowId, SeatRows};
use lanes_core::plan::{Command, Plan, Precision, Region, Storage};
use lanes_core::planned::PlannedModel;
use lanes_core::{DType, Port, Scope, Signature, StateKind, StateSpec};
use lanes_model::onnx::build::LstmStack;
use lanes_model::{ImportOptions, load_bytes};
use lanes_tests::random::Random;
use loom_compiler::interp::{self, Argument, Limits};
use loom_compiler::ir::{Kernel, ParameterKind};
use loom_compiler::launch::Geometry;
use loom_compiler::ptx::{Image, Passed};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What a node does, and the numbers of those before it.
#[derive(Clone)]
struct Node {
    what: What,
    after: Vec<usize>,
}

#[derive(Clone)]
enum What {
    Copy { to: u64, from: u64, bytes: usize },
    Launch { name: String, parameters: Vec<u64> },
    Kernel { known: Arc<Known>, geometry: Geometry, parameters: Vec<u64> },
    Nothing,
}

/// A kernel, and how it is launched.
struct Known {
    kernel: Kernel,
    image: Image,
}

/// Kernels by their text for the driver.
static KNOWN: Mutex<BTreeMap<String, Arc<Known>>> = Mutex::new(BTreeMap::new());

/// Notes what `image` was made of, for whoever launches it here.
pub(crate) fn note(kernel: &Kernel, image: &Image) {
    let known = || Arc::new(Known { kernel: kernel.clone(), image: image.clone() });
    KNOWN.lock().expect("nothing panics with it").entry(image.text.clone()).or_insert_with(known);
}

/// A stretch of memory: so many bytes in these words.
struct Stretch {
    bytes: usize,
    _words: Box<[u128]>,
}

/// By their starts, those that there are.
static MEMORY: Mutex<BTreeMap<u64, Stretch>> = Mutex::new(BTreeMap::new());

/// What a function's handle points at.
struct Function {
    name: String,
    known: Option<Arc<Known>>,
}

/// Graphs launched, and the nodes of the last one.
static LAUNCHES: AtomicUsize = AtomicUsize::new(0);
static LAST: Mutex<Vec<Node>> = Mutex::new(Vec::new());

/// # Safety
/// Both stretches are there, and lie apart.
unsafe fn copied(to: u64, from: u64, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
}

/// # Safety
/// An aligned word is there.
unsafe fn word(at: u64) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { *(at as *const u32) }
}

/// # Safety
/// Every address is of memory that is there: what `Context::graph` asks for.
unsafe fn run(node: &Node) {
    // SAFETY: the caller's promise.
    unsafe {
        match &node.what {
            What::Nothing => {}
            What::Copy { to, from, bytes } => copied(*to, *from, *bytes),
            What::Kernel { known, geometry, parameters } => interpret(known, *geometry, parameters),
            What::Launch { name, parameters } if name == "carry" => {
                let [from, to, number, tick, ranges @ ..] = &parameters[..] else { panic!("{parameters:?}") };
                for range in ranges {
                    let (start, units) = (range & 0xffff_ffff, range >> 32);
                    copied(to + start * 16, from + start * 16, units as usize * 16);
                }
                if *tick != 0 {
                    *(*tick as *mut u32) = word(*number);
                }
            }
            What::Launch { name, parameters } if name.starts_with("fill_") => {
                let [to, run, total, stride, of_seat, seats, pattern] = parameters[..] else {
                    panic!("{parameters:?}")
                };
                let unit: usize = name["fill_".len()..].parse().expect("its unit");
                for (seat, item) in (0..seats).flat_map(|seat| (0..total).map(move |item| (seat, item))) {
                    let (line, column) = (item / run, item % run * unit as u64);
                    let value = (pattern as u32 >> (column * 8 % 32)).to_le_bytes();
                    copied(to + seat * of_seat + line * stride + column, value.as_ptr() as u64, unit);
                }
            }
            What::Launch { name, parameters } => {
                let Some(unit) = name.strip_prefix("copy_").and_then(|unit| unit.parse::<u64>().ok()) else { return };
                let [block, seats, most, moves @ ..] = &parameters[..] else { panic!("{parameters:?}") };
                for moved in moves.chunks_exact(9).filter(|moved| moved[3] > 0) {
                    let [from, to, run, total, from_stride, to_stride, from_seat, to_seat, kind] = moved[..] else {
                        panic!("{moved:?}")
                    };
                    let live = if kind == 0 { *seats } else { u64::from(word(*block)) };
                    for seat in 0..*seats {
                        if (kind == 2 && seat >= live) || (kind == 4 && seat < live) {
                            continue;
                        }
                        let row = |first: u64| u64::from(word(block + 16 + 4 * (first + seat)));
                        let source = [seat, row(0), seat, 0, 0][kind as usize];
                        let target = if kind == 2 { row(*most) } else { seat };
                        for item in 0..total {
                            let (line, column) = (item / run, item % run * unit);
                            let at = from + source * from_seat + line * from_stride + column;
                            copied(to + target * to_seat + line * to_stride + column, at, unit as usize);
                        }
                    }
                }
            }
        }
    }
}

/// An argument: its bits, or where it starts, which stretch it lies in, and until where.
type Given = (u64, Option<(u64, u64)>);

/// # Safety
/// As for [`run`].
unsafe fn interpret(known: &Known, geometry: Geometry, parameters: &[u64]) {
    let mut given: Vec<Given> = vec![(0, None); known.kernel.parameters.len()];
    for (slot, &value) in known.image.slots.iter().zip(parameters) {
        match slot.passed {
            Passed::Scalar { argument, .. } => given[argument].0 = value,
            Passed::Buffer { argument } => {
                let memory = MEMORY.lock().expect("nothing panics with it");
                let (&start, Stretch { bytes, .. }) = memory.range(..=value).next_back().expect("it is a stretch's");
                given[argument] = (value, Some((start, start + *bytes as u64)));
            }
            Passed::Length { .. } | Passed::Faults => {}
        }
    }
    // Of the arguments of one stretch the first byte of all is a buffer, and the others are parts of it.
    let mut first = HashMap::new();
    for (number, (at, stretch)) in given.iter().enumerate() {
        let Some((start, _)) = stretch else { continue };
        let first = first.entry(*start).or_insert((*at, number));
        *first = (*first).min((*at, number));
    }
    let is_buffer = |number: usize| matches!(known.kernel.parameters[number].kind, ParameterKind::Buffer);
    let argument = |(number, &(at, stretch)): (usize, &Given)| match stretch {
        Some((start, end)) if first[&start].1 == number => {
            let bytes = end.saturating_sub(at) as usize;
            // SAFETY: it is there, and of each stretch there is one such slice, while nobody else touches it.
            Argument::Buffer(unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes) })
        }
        Some((start, end)) => {
            let (from, argument) = first[&start];
            Argument::Part { argument, start: (at - from) as usize, bytes: (end - at) as usize }
        }
        None if is_buffer(number) => Argument::Buffer(&mut []),
        None => Argument::Scalar(at),
    };
    let mut arguments: Vec<Argument<'_>> = given.iter().enumerate().map(argument).collect();
    interp::run(&known.kernel, geometry, &mut arguments, Limits::default())
        .unwrap_or_else(|fault| panic!("{}: {fault}", known.image.name));
    drop(arguments);
    let last = given.iter().rev().find(|(_, stretch)| stretch.is_some());
    if let Some(&(at, _)) = last.filter(|_| DIFFERS.load(SeqCst) && known.image.text.contains("wgmma")) {
        // SAFETY: it is there, as the caller promises.
        unsafe { *(at as *mut u8) ^= 1 };
    }
}

/// Whether products of four subgroups at once differ from those of one, in the lowest bit of the last buffer.
static DIFFERS: AtomicBool = AtomicBool::new(false);

/// The nodes of a graph, each behind those that it comes after, otherwise in any order.
fn any_order(nodes: &[Node], random: &mut Random) -> Vec<usize> {
    let (mut order, mut left) = (Vec::new(), (0..nodes.len()).collect::<Vec<_>>());
    while !left.is_empty() {
        let is_ready = |at: &usize| nodes[*at].after.iter().all(|earlier| !left.contains(earlier));
        let ready: Vec<usize> = left.iter().copied().filter(is_ready).collect();
        let next = ready[random.below(ready.len())];
        left.retain(|at| *at != next);
        order.push(next);
    }
    order
}

/// Memory that is never given back, full of what is no number that could pass for a right one.
fn memory(len: usize) -> u64 {
    let mut words = vec![u128::MAX / 255 * 254; len.div_ceil(16) + 16].into_boxed_slice();
    let start = (words.as_mut_ptr().expose_provenance() as u64).next_multiple_of(256);
    MEMORY.lock().expect("nothing panics with it").insert(start, Stretch { bytes: len, _words: words });
    start
}

macro_rules! gives {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(unsafe extern "C" fn $name($($argument: $type),*) -> Status {
            // SAFETY: callers give what `cuda.h` asks for.
            #[allow(unused_unsafe, reason = "some put nothing anywhere")]
            unsafe {
                $body
            }
            0
        })*
    };
}

gives! {
    done() {}
    version(to: *mut c_int) { *to = 12_080 }
    count(to: *mut c_int) { *to = 1 }
    device(to: *mut raw::CUdevice, number: c_int) { *to = number }
    name(to: *mut c_char, _len: c_int, _device: raw::CUdevice) { *to = 0 }
    total(to: *mut usize, _device: raw::CUdevice) { *to = 1 << 40 }
    attribute(to: *mut c_int, which: c_uint, _device: raw::CUdevice) {
        *to = match which { 75 => 9, 76 => 0, 16 => 132, _ => 200 << 10 };
    }
    handle(to: *mut *mut c_void, _device: raw::CUdevice) { *to = std::ptr::without_provenance_mut(64) }
    host(to: *mut *mut c_void, len: usize, _flags: c_uint) { *to = memory(len) as *mut c_void }
    allocate(to: *mut raw::CUdeviceptr, len: usize) { *to = memory(len) }
    free(at: raw::CUdeviceptr) { MEMORY.lock().expect("nothing panics with it").remove(&at); }
    fill(at: raw::CUdeviceptr, byte: u8, len: usize, _stream: raw::CUstream) { (at as *mut u8).write_bytes(byte, len) }
    up(to: raw::CUdeviceptr, from: *const c_void, len: usize, _stream: raw::CUstream) { copied(to, from as u64, len) }
    down(to: *mut c_void, from: raw::CUdeviceptr, len: usize, _stream: raw::CUstream) { copied(to as u64, from, len) }
    copy(to: raw::CUdeviceptr, from: raw::CUdeviceptr, len: usize, _stream: raw::CUstream) { copied(to, from, len) }
    module(to: *mut *mut c_void, image: *const c_void) {
        let text = CStr::from_ptr(image.cast()).to_string_lossy();
        let known = KNOWN.lock().expect("nothing panics with it").get(&*text).cloned();
        *to = std::ptr::from_mut(Box::leak(Box::new(known))).cast();
    }
    function(to: *mut *mut c_void, module: *mut Option<Arc<Known>>, name: *const c_char) {
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        let function = Function { name, known: (*module).clone() };
        *to = std::ptr::from_mut(Box::leak(Box::new(function))).cast();
    }
    graph(to: *mut *mut c_void, _flags: c_uint) {
        *to = std::ptr::from_mut(Box::leak(Box::new(Vec::<Node>::new()))).cast();
    }
    graph_empty(to: *mut usize, graph: *mut Vec<Node>, after: *const usize, count: usize) {
        add(to, graph, after, count, What::Nothing);
    }
    graph_kernel(
        to: *mut usize, graph: *mut Vec<Node>, after: *const usize, count: usize,
        launch: *const raw::CUDA_KERNEL_NODE_PARAMS_v1
    ) {
        let (launch, Function { name, known }) = (&*launch, &*(*launch).func.cast::<Function>());
        let parameters = |count: usize| (0..count).map(|at| *(*launch.kernelParams.add(at)).cast::<u64>()).collect();
        let what = match (known, &name[..]) {
            (Some(known), _) => What::Kernel {
                known: Arc::clone(known),
                geometry: Geometry {
                    workgroups: [launch.gridDimX, launch.gridDimY, launch.gridDimZ],
                    workgroup_size: [launch.blockDimX, launch.blockDimY, launch.blockDimZ],
                },
                parameters: parameters(known.image.slots.len()),
            },
            (None, "carry") => What::Launch { name: name.clone(), parameters: parameters(16) },
            (None, other) => {
                let count = if other.starts_with("copy_") { 3 + 16 * 9 } else { 7 };
                What::Launch { name: name.clone(), parameters: parameters(count) }
            }
        };
        add(to, graph, after, count, what);
    }
    graph_copy(
        to: *mut usize, graph: *mut Vec<Node>, after: *const usize, count: usize, copy: *const raw::CUDA_MEMCPY3D,
        _context: raw::CUcontext
    ) {
        let copy = &*copy;
        let target = if copy.dstDevice > 0 { copy.dstDevice } else { copy.dstHost as u64 };
        let from = if copy.srcDevice > 0 { copy.srcDevice } else { copy.srcHost as u64 };
        add(to, graph, after, count, What::Copy { to: target, from, bytes: copy.WidthInBytes });
    }
    instantiate(to: *mut *mut c_void, graph: *mut c_void, _flags: c_ulonglong) { *to = graph }
    launch(graph: *mut Vec<Node>, _stream: raw::CUstream) {
        let number = LAUNCHES.fetch_add(1, SeqCst);
        any_order(&*graph, &mut Random(number as u64)).into_iter().for_each(|at| run(&(&(*graph))[at]));
        LAST.lock().expect("nothing panics with it").clone_from(&*graph);
    }
}

/// Whether edges between kernels that overlap are refused.
static REFUSES: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn graph_edges(
    graph: *mut Vec<Node>,
    from: *const usize,
    to: *const usize,
    like: *const [u8; 8],
    count: usize,
) -> Status {
    if REFUSES.load(SeqCst) {
        // Not supported.
        return 801;
    }
    for at in 0..count {
        // SAFETY: a graph made above, and lists as long as is said.
        let (graph, from, to, like) = unsafe { (&mut *graph, *from.add(at) - 1, *to.add(at) - 1, *like.add(at)) };
        // From a kernel's port that lets others in, as `cuda.h` numbers it, to one that waits by itself.
        assert_eq!(like, [1, 0, 1, 0, 0, 0, 0, 0]);
        for end in [from, to] {
            let is_kernel = matches!(graph[end].what, What::Launch { .. } | What::Kernel { .. });
            assert!(is_kernel, "node {end} is no kernel");
        }
        graph[to].after.push(from);
    }
    0
}

/// # Safety
/// A graph made above, and a list as long as is said. Handles of nodes are their numbers and one.
unsafe fn add(to: *mut usize, graph: *mut Vec<Node>, after: *const usize, count: usize, what: What) {
    // SAFETY: the caller's promise.
    unsafe {
        let after = (0..count).map(|at| *after.add(at) - 1).collect();
        (*graph).push(Node { what, after });
        *to = (*graph).len();
    }
}

fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let find = |symbol: &CStr| {
            Some(match symbol.to_str().expect("symbols are ASCII") {
                "cuDriverGetVersion" => version as *const c_void,
                "cuDeviceGetCount" => count as *const c_void,
                "cuDeviceGet" => device as *const c_void,
                "cuDeviceGetName" => name as *const c_void,
                "cuDeviceTotalMem_v2" => total as *const c_void,
                "cuDeviceGetAttribute" => attribute as *const c_void,
                "cuDevicePrimaryCtxRetain" | "cuStreamCreate" => handle as *const c_void,
                "cuMemHostAlloc" => host as *const c_void,
                "cuMemAlloc_v2" => allocate as *const c_void,
                "cuMemFree_v2" | "cuMemFreeHost" => free as *const c_void,
                "cuMemsetD8Async" => fill as *const c_void,
                "cuMemcpyHtoDAsync_v2" => up as *const c_void,
                "cuMemcpyDtoHAsync_v2" => down as *const c_void,
                "cuMemcpyAsync" => copy as *const c_void,
                "cuModuleLoadDataEx" => module as *const c_void,
                "cuModuleGetFunction" => function as *const c_void,
                "cuGraphCreate" => graph as *const c_void,
                "cuGraphAddEmptyNode" => graph_empty as *const c_void,
                "cuGraphAddKernelNode" => graph_kernel as *const c_void,
                "cuGraphAddMemcpyNode" => graph_copy as *const c_void,
                "cuGraphAddDependencies_v2" => graph_edges as *const c_void,
                "cuGraphInstantiateWithFlags" => instantiate as *const c_void,
                "cuGraphLaunch" => launch as *const c_void,
                _ => done as *const c_void,
            })
        };
        // SAFETY: what is called has its own function here, of the right type but for pointers to what the driver alone looks behind.
        unsafe { Driver::start(&find) }.expect("it starts")
    })
}

/// A device of this driver, and nobody else's launches meanwhile.
pub(crate) fn alone() -> (Arc<CudaDevice>, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let options = CudaOptions { kernels_on_disk: false, ..CudaOptions::default() };
    (Arc::new(CudaDevice::on(driver(), 0, options).expect("it opens")), alone)
}

/// `y = h`, `h' = x`, `width` floats each.
fn last(width: usize) -> (Plan, Signature) {
    let mut plan = Plan { name: "last".into(), ..Plan::default() };
    let (bytes, whole) = (width * 4, Region::contiguous(0, width * 4));
    let x = plan.storage(Storage::Input { port: 0, bytes });
    let y = plan.storage(Storage::Output { port: 0, bytes });
    let state = plan.storage(Storage::State { state: 0, bytes });
    plan.commands = vec![
        Command::Gather { state, row: whole, to: (y, whole) },
        Command::Scatter { from: (x, whole), state, row: whole },
    ];
    let port = |name: &str| Port { name: name.into(), dtype: DType::F32, shape: vec![width], scope: Scope::Seat };
    let signature = Signature {
        name: "last".into(),
        inputs: vec![port("x")],
        outputs: vec![port("y")],
        states: vec![StateSpec {
            input: "h".into(),
            output: "h_out".into(),
            dtype: DType::F32,
            lane_shape: vec![width],
            initial: Some((0..width).flat_map(|at| (at as f32).to_le_bytes()).collect()),
            kind: StateKind::Replaced,
        }],
    };
    (plan, signature)
}

/// Turns of every occupancy, over slots in turn, answer with what their rows held; small inputs and outputs are carried, large ones
/// copied, and both at once; each turn is one launch of a graph in which every node comes before the last.
#[test]
fn turns_of_every_occupancy_answer_with_their_rows() {
    const SEATS: u32 = 7;
    let capacity = Capacity { rows: 2 * SEATS + 1, max_seats: SEATS };
    let (device, _alone) = alone();
    // 4 B, 12 B and 16 KiB a seat: of the last, four seats are carried and more are not. The last once more with a driver that takes no
    // edges between kernels that overlap.
    for (width, most_carried, refuses) in [(1, 7, false), (3, 7, false), (4096, 4, false), (4096, 4, true)] {
        REFUSES.store(refuses, SeqCst);
        let (plan, signature) = last(width);
        let mut model = PlannedModel::new(Arc::<CudaDevice>::clone(&device), plan, signature).expect("it fits");
        model.prepare_slots(capacity, 2).expect("there is room");
        // What each row holds, by its first float; the initial row counts up from 0.
        let mut rows = vec![f32::NAN; 2 * SEATS as usize];
        rows.push(0.0);
        let (mut current, mut spare) = ([2 * SEATS; SEATS as usize], (0..2 * SEATS).collect::<Vec<_>>());
        for turn in 0..40u32 {
            let (slot, seats) = ((turn % 2) as usize, (turn * 5 % SEATS + 1) as usize);
            let input = |seat: usize, at: usize| (turn * 100) as f32 + (seat * 10) as f32 + at as f32;
            let places = model.slot_input_mut(slot, 0).chunks_exact_mut(width * 4);
            for (seat, place) in places.enumerate().take(seats) {
                place
                    .chunks_exact_mut(4)
                    .enumerate()
                    .for_each(|(at, word)| word.copy_from_slice(&input(seat, at).to_le_bytes()));
            }
            // Lanes take seats from another end each turn.
            let lane = |seat: usize| (seat + turn as usize) % SEATS as usize;
            let given: Vec<SeatRows> = (0..seats)
                .map(|seat| SeatRows { read: RowId(current[lane(seat)]), write: RowId(spare[seat]) })
                .collect();
            let before = LAUNCHES.load(SeqCst);
            model.start(slot, &given).expect("there is room").wait().expect("it ends");
            assert_eq!(LAUNCHES.load(SeqCst) - before, 1);
            model.finish(slot, seats, &mut Vec::new()).expect("none is refused");
            let answers = model.slot_output(slot, 0);
            for (seat, SeatRows { read, .. }) in given.iter().enumerate() {
                let answer: Vec<f32> = answers[seat * width * 4..][..width * 4]
                    .chunks_exact(4)
                    .map(|word| f32::from_le_bytes(word.try_into().expect("four bytes")))
                    .collect();
                let expected: Vec<f32> = (0..width).map(|at| rows[read.0 as usize] + at as f32).collect();
                assert_eq!(answer, expected, "width {width}, turn {turn}, seat {seat} of {seats}");
            }
            for (seat, SeatRows { read, write }) in given.iter().enumerate() {
                rows[write.0 as usize] = input(seat, 0);
                current[lane(seat)] = write.0;
                spare.retain(|row| row != &write.0);
                if read.0 < 2 * SEATS {
                    spare.push(read.0);
                }
            }
            let nodes = LAST.lock().expect("nothing panics with it").clone();
            let copies = nodes.iter().filter(|node| matches!(node.what, What::Copy { .. })).count();
            // The bucket's seats are what is moved: 1, 2, 3, 4, 6 and 7 of them.
            let bucket = if seats == 5 { 6 } else { seats };
            assert_eq!(copies, if bucket > most_carried { 2 } else { 0 }, "{seats} seats of {width}");
            // All lead to the last node, and none to two that are the same.
            let mut leads = vec![false; nodes.len()];
            leads[nodes.len() - 1] = true;
            for (at, node) in nodes.iter().enumerate().rev() {
                assert!(leads[at], "node {at} runs on behind the tick");
                node.after.iter().for_each(|&earlier| leads[earlier] = true);
            }
            assert!(nodes.len() <= if copies > 0 { 7 } else { 4 }, "{} nodes", nodes.len());
        }
    }
    device.health().expect("nothing was lost");
}

/// A GPU whose products of four subgroups have not the bits of those of one has the latter alone, once a plan multiplies.
#[test]
fn products_of_four_subgroups_are_compared_before_they_are_used() {
    for differs in [false, true] {
        let (device, _alone) = alone();
        DIFFERS.store(differs, SeqCst);
        let took = [false, true, true].map(|multiply| device.takes(multiply).expect("it tells").multiplies_in_groups());
        DIFFERS.store(false, SeqCst);
        assert_eq!(took, [true, !differs, !differs]);
    }
}

/// One model in both precisions on one device: its weights lie there as each of them multiplies, and what neither rounds lies there once.
#[test]
fn each_precision_has_weights_of_its_own() {
    let model =
        load_bytes(LstmStack::random(2, 64, 1).encode(), "model", &ImportOptions::default()).expect("it imports");
    let lowered = lanes_model::lower::lower(&model).expect("it lowers");
    let (device, _alone) = alone();
    let prepared = |precision| {
        let (plan, signature) = (lowered.plan.clone().with_precision(precision), lowered.signature.clone());
        let mut model = PlannedModel::new(Arc::<CudaDevice>::clone(&device), plan, signature).expect("it fits");
        model.prepare_slots(Capacity { rows: 15, max_seats: 7 }, 1).expect("there is room");
        model
    };
    let packed = |of: fn(&[f32], usize, usize) -> usize| -> u64 {
        let bytes = lowered.plan.commands.iter().map(|command| match command {
            Command::Contract(contraction) => of(&contraction.weights, contraction.k(), contraction.n),
            _ => 0,
        });
        bytes.sum::<usize>() as u64
    };
    let floats = packed(|weights, k, n| contract::packed_bytes(weights, k, n).len());
    let rounded = packed(|weights, k, n| matrices::packed_bytes(weights, k, n).len());
    assert!(floats > rounded && rounded * 2 >= floats, "{floats} {rounded}");
    let exact = prepared(Precision::F32);
    let others = exact.memory().weights - floats;
    assert!(others > 0, "there are biases");
    let narrow = prepared(Precision::Bf16);
    assert_eq!(narrow.memory().weights, rounded + others);
    assert_eq!(device.memory().used.weights, floats + rounded + others);
    let _again = prepared(Precision::F32);
    assert_eq!(device.memory().used.weights, floats + rounded + others);
    let mut other = narrow.unprepared();
    assert_eq!(other.memory().total(), 0);
    other.prepare_slots(Capacity { rows: 3, max_seats: 1 }, 1).expect("there is room");
    assert_eq!(other.memory().weights, narrow.memory().weights);
    assert_eq!(device.memory().used.weights, floats + rounded + others);
}
