//! The driver's library: found at run time, and the only raw calls of this crate.
//!
//! ```text
//! libcuda.so.1 ──symbols, one by one──> Interface ──cuInit, version──> Driver ──device──> Context ──> memory, modules, graphs
//! ```
//!
//! - No library, a missing symbol, an old driver and no device are errors with words; nothing here panics.
//! - Types are those of `cudarc`, at one version of the interface. Its functions are not called: they panic where a symbol is
//!   missing, and return an enum that a newer driver's numbers do not fit. Statuses are numbers here.
//! - Every call makes the context current on its thread first: callers come from any thread.
//! - Dropping a handle calls nothing. What it held goes to the context's `reaper`, and so does the context itself.
//! - The end of a graph is seen in memory: its last node writes a number where the host looks. The driver is asked only by who has
//!   waited long, or the loss of the device would never be seen.
//! - Device memory is cut from pieces (`arena`), so that neither getting nor dropping a little calls the driver.
//! - A status that the context does not survive loses the device: one cause, kept, and every later call fails with it.

mod arena;
#[cfg(feature = "instruments")]
mod instruments;
mod reaper;

use arena::Arena;
use cudarc::driver::sys as raw;
use lanes_core::device::DeviceError;
use reaper::{Handles, Remains};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The oldest driver that is used, as the CUDA version it was made for: 12.0, which is R525.
pub(crate) const DRIVER_LEAST: u32 = 12_000;

/// What a call of the driver says: 0 is success.
pub(crate) type Status = c_uint;

const OUT_OF_MEMORY: Status = 2;
const NO_DEVICE: Status = 100;
/// A symbol that is not there.
const NOT_FOUND: Status = 500;
/// A queue that is not yet empty.
const NOT_READY: Status = 600;
/// What is wrong with a text given to the driver's compiler: invalid PTX, unsupported version, no image for this GPU, no
/// compiler, symbol not found.
const BUILD: [Status; 7] = [200, 209, 218, 221, 222, 301, 500];
/// After these the context does nothing any more: not initialised, driver gone, ECC and NVLink errors, a bad address,
/// a kernel that ran too long, a context destroyed, an assertion, a broken stack, instruction, alignment, address space or
/// counter, a failed launch, and one that the driver does not know itself.
const FATAL: [Status; 18] = [3, 4, 46, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 721, 999];

macro_rules! interface {
    ($($(#[$which:meta])* $field:ident: $symbol:literal($($argument:ty),*);)*) => {
        /// The functions that are used.
        struct Interface {
            $($(#[$which])* $field: unsafe extern "C" fn($($argument),*) -> Status,)*
            /// `cuGraphAddDependencies_v2`, which drivers have from CUDA 12.3 on.
            graph_edges: Option<GraphEdges>,
        }

        impl Interface {
            /// Looks all of them up, or names the first that is not there but has to be.
            ///
            /// # Safety
            /// What `find` gives for a name is the driver's function of that name.
            unsafe fn find(find: &dyn Fn(&CStr) -> Option<*const c_void>) -> Result<Self, &'static str> {
                Ok(Self {
                    $($(#[$which])* $field: {
                        let name = CString::new($symbol).map_err(|_| $symbol)?;
                        let address = find(&name).filter(|address| !address.is_null()).ok_or($symbol)?;
                        // SAFETY: the caller's promise, and the argument types are those of `cuda.h`.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($argument),*) -> Status>(address) }
                    },)*
                    graph_edges: find(c"cuGraphAddDependencies_v2").filter(|address| !address.is_null()).map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*const c_void, GraphEdges>(address) }
                    }),
                })
            }
        }
    };
}

/// Adds edges to a graph: from nodes, to nodes, what each is like, and how many.
type GraphEdges = unsafe extern "C" fn(
    raw::CUgraph,
    *const raw::CUgraphNode,
    *const raw::CUgraphNode,
    *const [u8; 8],
    usize,
) -> Status;

/// An edge between kernels of which the second waits for the first by itself, as `CUgraphEdgeData` has it: it begins once the first
/// lets it (port 1 of a kernel), and is programmatic (type 1).
const EARLY_EDGE: [u8; 8] = [1, 0, 1, 0, 0, 0, 0, 0];

interface! {
    init: "cuInit"(c_uint);
    driver_version: "cuDriverGetVersion"(*mut c_int);
    error_name: "cuGetErrorName"(Status, *mut *const c_char);
    error_text: "cuGetErrorString"(Status, *mut *const c_char);
    device_count: "cuDeviceGetCount"(*mut c_int);
    device: "cuDeviceGet"(*mut raw::CUdevice, c_int);
    device_name: "cuDeviceGetName"(*mut c_char, c_int, raw::CUdevice);
    device_memory: "cuDeviceTotalMem_v2"(*mut usize, raw::CUdevice);
    device_attribute: "cuDeviceGetAttribute"(*mut c_int, c_uint, raw::CUdevice);
    context_retain: "cuDevicePrimaryCtxRetain"(*mut raw::CUcontext, raw::CUdevice);
    context_release: "cuDevicePrimaryCtxRelease_v2"(raw::CUdevice);
    context_set: "cuCtxSetCurrent"(raw::CUcontext);
    stream_create: "cuStreamCreate"(*mut raw::CUstream, c_uint);
    stream_destroy: "cuStreamDestroy_v2"(raw::CUstream);
    stream_wait: "cuStreamSynchronize"(raw::CUstream);
    stream_query: "cuStreamQuery"(raw::CUstream);
    event_create: "cuEventCreate"(*mut raw::CUevent, c_uint);
    event_destroy: "cuEventDestroy_v2"(raw::CUevent);
    event_record: "cuEventRecord"(raw::CUevent, raw::CUstream);
    event_wait: "cuEventSynchronize"(raw::CUevent);
    event_elapsed: "cuEventElapsedTime"(*mut f32, raw::CUevent, raw::CUevent);
    memory_allocate: "cuMemAlloc_v2"(*mut raw::CUdeviceptr, usize);
    memory_free: "cuMemFree_v2"(raw::CUdeviceptr);
    #[cfg(feature = "instruments")]
    memory_info: "cuMemGetInfo_v2"(*mut usize, *mut usize);
    host_allocate: "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    host_free: "cuMemFreeHost"(*mut c_void);
    copy: "cuMemcpyAsync"(raw::CUdeviceptr, raw::CUdeviceptr, usize, raw::CUstream);
    copy_up: "cuMemcpyHtoDAsync_v2"(raw::CUdeviceptr, *const c_void, usize, raw::CUstream);
    copy_down: "cuMemcpyDtoHAsync_v2"(*mut c_void, raw::CUdeviceptr, usize, raw::CUstream);
    fill: "cuMemsetD8Async"(raw::CUdeviceptr, u8, usize, raw::CUstream);
    link_create: "cuLinkCreate_v2"(c_uint, *mut c_uint, *mut *mut c_void, *mut raw::CUlinkState);
    link_add: "cuLinkAddData_v2"(
        raw::CUlinkState, c_uint, *mut c_void, usize, *const c_char, c_uint, *mut c_uint, *mut *mut c_void
    );
    link_end: "cuLinkComplete"(raw::CUlinkState, *mut *mut c_void, *mut usize);
    link_destroy: "cuLinkDestroy"(raw::CUlinkState);
    module_load: "cuModuleLoadDataEx"(*mut raw::CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    module_unload: "cuModuleUnload"(raw::CUmodule);
    module_function: "cuModuleGetFunction"(*mut raw::CUfunction, raw::CUmodule, *const c_char);
    function_set: "cuFuncSetAttribute"(raw::CUfunction, c_uint, c_int);
    graph_create: "cuGraphCreate"(*mut raw::CUgraph, c_uint);
    graph_destroy: "cuGraphDestroy"(raw::CUgraph);
    graph_empty: "cuGraphAddEmptyNode"(*mut raw::CUgraphNode, raw::CUgraph, *const raw::CUgraphNode, usize);
    graph_kernel: "cuGraphAddKernelNode"(
        *mut raw::CUgraphNode, raw::CUgraph, *const raw::CUgraphNode, usize, *const raw::CUDA_KERNEL_NODE_PARAMS_v1
    );
    graph_copy: "cuGraphAddMemcpyNode"(
        *mut raw::CUgraphNode, raw::CUgraph, *const raw::CUgraphNode, usize, *const raw::CUDA_MEMCPY3D, raw::CUcontext
    );
    graph_instantiate: "cuGraphInstantiateWithFlags"(*mut raw::CUgraphExec, raw::CUgraph, c_ulonglong);
    graph_launch: "cuGraphLaunch"(raw::CUgraphExec, raw::CUstream);
    graph_exec_destroy: "cuGraphExecDestroy"(raw::CUgraphExec);
}

/// The driver, initialised.
pub(crate) struct Driver {
    call: Interface,
    /// The CUDA version it was made for: 12080 is 12.8.
    pub version: u32,
}

/// A call that failed, in the driver's words.
struct Failure {
    call: &'static str,
    status: Status,
    said: String,
}

impl Failure {
    fn words(&self) -> String {
        format!("{} says {}", self.call, self.said)
    }
}

/// What the driver says of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceFacts {
    pub name: String,
    pub memory_bytes: u64,
    /// Ten times the compute capability.
    pub architecture: u32,
    pub multiprocessors: usize,
    /// The most workgroup memory of a launch.
    pub shared_bytes_max: u64,
}

/// The driver of this machine, or in words why there is none.
pub(crate) fn driver() -> Result<&'static Driver, DeviceError> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    DRIVER.get_or_init(probe).as_ref().map_err(|why| DeviceError::Unsupported { what: why.clone() })
}

fn probe() -> Result<Driver, String> {
    let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
    // SAFETY: the system's loader finds it where only the driver's installation puts it; what it runs on loading is the
    // driver's.
    let library = unsafe { libloading::Library::new(name) };
    let library = library.map_err(|error| {
        // The loader's own words, which the error keeps as its cause.
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        format!("no NVIDIA driver: {name} does not load ({why})")
    })?;
    // Never unloaded: the driver keeps threads and exit handlers of its own.
    let library: &'static libloading::Library = Box::leak(Box::new(library));
    let find = |symbol: &CStr| {
        // SAFETY: only the address is taken, of a library that is never unloaded.
        let found = unsafe {
            let found = library.get::<*const c_void>(symbol.to_bytes_with_nul());
            found.ok().and_then(|symbol| symbol.try_as_raw_ptr())
        };
        found.map(|address| address.cast_const())
    };
    // SAFETY: the library is the driver's, so its symbols are what `cuda.h` declares.
    unsafe { Driver::start(&find) }
}

impl Driver {
    /// # Safety
    /// As [`Interface::find`].
    pub(crate) unsafe fn start(find: &dyn Fn(&CStr) -> Option<*const c_void>) -> Result<Self, String> {
        // SAFETY: the caller's promise.
        let call = unsafe { Interface::find(find) }.map_err(|symbol| {
            format!("the NVIDIA driver lacks {symbol}: one for CUDA {} or newer is needed", version(DRIVER_LEAST))
        })?;
        let mut driver = Self { call, version: 0 };
        let mut found = 0;
        // SAFETY: a place for one number.
        let status = unsafe { (driver.call.driver_version)(&mut found) };
        driver.check("cuDriverGetVersion", status).map_err(|failure| failure.words())?;
        driver.version = u32::try_from(found).unwrap_or(0);
        if driver.version < DRIVER_LEAST {
            let (found, least) = (version(driver.version), version(DRIVER_LEAST));
            return Err(format!("the NVIDIA driver is for CUDA {found}, and {least} or newer is needed"));
        }
        // SAFETY: no flags are defined.
        driver.check("cuInit", unsafe { (driver.call.init)(0) }).map_err(|failure| match failure.status {
            NO_DEVICE => no_gpu(&failure.words()),
            _ => format!("the NVIDIA driver does not start: {}", failure.words()),
        })?;
        Ok(driver)
    }

    /// Whether a kernel of a graph may begin before those that it comes after have ended.
    pub fn overlaps(&self) -> bool {
        self.call.graph_edges.is_some()
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), Failure> {
        if status == 0 { Ok(()) } else { Err(Failure { call, status, said: self.say(status) }) }
    }

    /// A status in the driver's words.
    fn say(&self, status: Status) -> String {
        let ask = |function: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut text = ptr::null();
            // SAFETY: a place for one pointer, set to a text that is never freed, or to null.
            let known = unsafe { function(status, &mut text) } == 0 && !text.is_null();
            // SAFETY: it was set, and ends in a zero.
            known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (ask(self.call.error_name), ask(self.call.error_text)) {
            (Some(name), Some(text)) => format!("{name} ({text})"),
            _ => format!("error {status}"),
        }
    }

    /// How many devices there are: at least one.
    pub fn devices(&self) -> Result<usize, DeviceError> {
        let mut count = 0;
        // SAFETY: a place for one number.
        let status = unsafe { (self.call.device_count)(&mut count) };
        self.check("cuDeviceGetCount", status).map_err(|failure| match failure.status {
            NO_DEVICE => unsupported(no_gpu(&failure.words())),
            _ => unsupported(format!("the NVIDIA driver counts no GPUs: {}", failure.words())),
        })?;
        let count = usize::try_from(count).ok().filter(|&count| count > 0);
        count.ok_or_else(|| unsupported(no_gpu("cuDeviceGetCount says 0")))
    }

    fn device(&self, ordinal: usize) -> Result<raw::CUdevice, DeviceError> {
        let count = self.devices()?;
        let Some(number) = c_int::try_from(ordinal).ok().filter(|_| ordinal < count) else {
            return Err(DeviceError::Invalid { what: format!("CUDA device {ordinal}: there are {count}") });
        };
        let mut device = 0;
        // SAFETY: a place for one number.
        let status = unsafe { (self.call.device)(&mut device, number) };
        self.check("cuDeviceGet", status).map_err(|failure| silent(ordinal, &failure))?;
        Ok(device)
    }

    /// What device `ordinal` is.
    pub fn facts(&self, ordinal: usize) -> Result<DeviceFacts, DeviceError> {
        let device = self.device(ordinal)?;
        let told = |call, status| self.check(call, status).map_err(|failure| silent(ordinal, &failure));
        let attribute = |which: c_uint| {
            let mut value = 0;
            // SAFETY: a place for one number.
            told("cuDeviceGetAttribute", unsafe { (self.call.device_attribute)(&mut value, which, device) })?;
            Ok::<_, DeviceError>(u32::try_from(value).unwrap_or(0))
        };
        let (mut name, mut memory) = ([0u8; 256], 0);
        // SAFETY: room for 255 bytes and a zero.
        told("cuDeviceGetName", unsafe { (self.call.device_name)(name.as_mut_ptr().cast(), 255, device) })?;
        // SAFETY: a place for one number.
        told("cuDeviceTotalMem", unsafe { (self.call.device_memory)(&mut memory, device) })?;
        let name = CStr::from_bytes_until_nul(&name).map(|name| name.to_string_lossy().into_owned());
        Ok(DeviceFacts {
            name: name.unwrap_or_default(),
            memory_bytes: memory as u64,
            // Compute capability, major and minor; multiprocessors; opt-in workgroup memory.
            architecture: attribute(75)? * 10 + attribute(76)?,
            multiprocessors: attribute(16)? as usize,
            shared_bytes_max: attribute(97)?.into(),
        })
    }
}

/// `12080` as `12.8`.
pub(crate) fn version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

fn no_gpu(words: &str) -> String {
    format!("the NVIDIA driver finds no GPU ({words})")
}

/// A device that does not say what it is.
fn silent(ordinal: usize, failure: &Failure) -> DeviceError {
    unsupported(format!("CUDA device {ordinal} does not say what it is: {}", failure.words()))
}

fn unsupported(what: String) -> DeviceError {
    DeviceError::Unsupported { what }
}

/// What is said where nobody is let into the driver any more.
fn exiting() -> DeviceError {
    DeviceError::Lost("the process exits".into())
}

/// The devices whose context this process has lost, with the cause: the driver gives the same broken context out again.
fn lost_devices() -> MutexGuard<'static, BTreeMap<usize, Arc<str>>> {
    static LOST: Mutex<BTreeMap<usize, Arc<str>>> = Mutex::new(BTreeMap::new());
    LOST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cause that lost a context, once it is lost.
type Lost = Arc<OnceLock<Arc<str>>>;

/// One device's context: all that is made on it holds it.
pub(crate) struct Context {
    handles: Handles,
    ordinal: usize,
    lost: Lost,
    /// Graphs launched whose end nobody has seen yet.
    flying: Arc<AtomicUsize>,
    /// Memory of the device, in pieces of [`Self::piece_bytes`] or, where more is asked for at once, of their own.
    arena: Mutex<Arena>,
    piece_bytes: u64,
    /// Where dropped handles leave what they held. It ends with the context, and so does its thread.
    reaper: Sender<Remains>,
    /// What the next launch is to fail with, where it is to.
    #[cfg(feature = "instruments")]
    refusing: AtomicU32,
}

/// How long whoever waits for a graph looks without pause: a thread that sleeps wakes 50 to 80 µs late, which is to be a small
/// part of what it has waited.
const SPIN: Duration = Duration::from_millis(1);
/// How long it asks to pause after that.
const PAUSE: Duration = Duration::from_micros(20);

/// The most that is asked of the driver before it is needed, in bytes.
const PIECE: u64 = 32 << 20;
/// The least: the driver's own pages.
const PIECE_LEAST: u64 = 2 << 20;

/// Launches before the first that is timed.
const WARM_UP: usize = 5;

impl Context {
    /// Of device `ordinal`, to hold at most `budget` bytes.
    pub fn open(driver: &'static Driver, ordinal: usize, budget: Option<u64>) -> Result<Arc<Self>, DeviceError> {
        if let Some(cause) = lost_devices().get(&ordinal) {
            let what = format!("{cause}; CUDA in this process cannot be trusted any more: start another process");
            return Err(DeviceError::Lost(what.into()));
        }
        let Some(_inside) = reaper::inside() else { return Err(exiting()) };
        let (device, none) = (driver.device(ordinal)?, ptr::null_mut());
        let mut handles = Handles { driver, device, context: ptr::null_mut(), stream: none, side: none };
        let opened = |call, status| match driver.check(call, status) {
            Ok(()) => Ok(()),
            Err(failure) if failure.status == OUT_OF_MEMORY => {
                Err(DeviceError::OutOfMemory { what: format!("the context of CUDA device {ordinal}"), asked: 0 })
            }
            Err(failure) => Err(DeviceError::Fault { at: format!("CUDA device {ordinal}"), what: failure.words() }),
        };
        let open = |handles: &mut Handles| {
            // SAFETY: a place for one handle. If it stays null, closing calls nothing.
            opened("cuDevicePrimaryCtxRetain", unsafe { (driver.call.context_retain)(&mut handles.context, device) })?;
            // SAFETY: the context was just given out.
            opened("cuCtxSetCurrent", unsafe { (driver.call.context_set)(handles.context) })?;
            for stream in [&mut handles.stream, &mut handles.side] {
                // SAFETY: a place for one handle; 1 is a stream that does not wait for the default one.
                opened("cuStreamCreate", unsafe { (driver.call.stream_create)(stream, 1) })?;
            }
            Ok(())
        };
        let (lost, flying) = (Lost::default(), Arc::<AtomicUsize>::default());
        let reaper = open(&mut handles).and_then(|()| {
            let started = reaper::start(handles, Arc::clone(&lost), Arc::clone(&flying));
            let failed = |error| DeviceError::Fault { at: format!("a thread for CUDA device {ordinal}"), what: error };
            started.map_err(|error| failed(error.to_string()))
        });
        // SAFETY: nobody else has the handles.
        let reaper = reaper.inspect_err(|_| unsafe { handles.close() })?;
        Ok(Arc::new(Self {
            handles,
            ordinal,
            lost,
            flying,
            arena: Mutex::default(),
            piece_bytes: budget.map_or(PIECE, |budget| (budget / 16).clamp(PIECE_LEAST, PIECE)),
            reaper,
            #[cfg(feature = "instruments")]
            refusing: AtomicU32::new(0),
        }))
    }

    /// The cause that lost it, if it is lost.
    pub fn health(&self) -> Result<(), DeviceError> {
        self.lost.get().map_or(Ok(()), |cause| Err(DeviceError::Lost(Arc::clone(cause))))
    }

    /// Runs `call` with the context current. `what` and `asked` are for running out of memory.
    fn call(
        &self,
        name: &'static str,
        what: &str,
        asked: u64,
        call: impl FnOnce(&Interface) -> Status,
    ) -> Result<(), DeviceError> {
        self.health()?;
        let Some(_inside) = reaper::inside() else { return Err(exiting()) };
        let Handles { driver, context, .. } = self.handles;
        // SAFETY: the context lives as long as `self`.
        let current = driver.check("cuCtxSetCurrent", unsafe { (driver.call.context_set)(context) });
        let ended = current.and_then(|()| driver.check(name, call(&driver.call)));
        ended.map_err(|failure| self.error(&failure, what, asked))
    }

    fn error(&self, failure: &Failure, what: &str, asked: u64) -> DeviceError {
        let said = failure.words();
        match failure.status {
            OUT_OF_MEMORY => DeviceError::OutOfMemory { what: what.to_owned(), asked },
            status if FATAL.contains(&status) => {
                let cause = Arc::clone(self.lost.get_or_init(|| said.into()));
                lost_devices().entry(self.ordinal).or_insert_with(|| Arc::clone(&cause));
                DeviceError::Lost(cause)
            }
            status if BUILD.contains(&status) => DeviceError::Build { kernel: what.to_owned(), log: said },
            _ => DeviceError::Fault { at: what.to_owned(), what: said },
        }
    }

    /// Leaves what a dropped handle held to the reaper.
    fn leave(&self, remains: Remains) {
        // It listens as long as this sender lives, or the process exits.
        let _ = self.reaper.send(remains);
    }

    /// Waits until what dropped handles have left is given back.
    fn settle(&self) {
        let (tell, told) = mpsc::sync_channel(1);
        self.leave(Remains::Now(tell));
        let _ = told.recv();
    }

    /// `len` zeroed bytes for `what`: of the device, or of the host, where both reach them by one address.
    pub fn allocate(self: &Arc<Self>, what: &str, len: usize, host: bool) -> Result<Memory, DeviceError> {
        // The driver refuses 0.
        let room = len.max(1);
        let mut memory = Memory { context: Arc::clone(self), address: 0, len, host };
        // Memory that was dropped may not be free yet.
        memory.address = match self.room(what, room, host) {
            Err(DeviceError::OutOfMemory { .. }) => {
                self.settle();
                self.room(what, room, host)?
            }
            got => got?,
        };
        let address = memory.address;
        if host {
            // SAFETY: just allocated, with at least as many bytes.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(address as usize).write_bytes(0, room) };
        } else {
            let side = self.handles.side;
            // SAFETY: just allocated, with as many bytes.
            self.call("cuMemsetD8Async", what, 0, |call| unsafe { (call.fill)(address, 0, room, side) })?;
            self.wait(side, what)?;
        }
        Ok(memory)
    }

    /// The address of `room` bytes, which hold anything.
    fn room(&self, what: &str, room: usize, host: bool) -> Result<raw::CUdeviceptr, DeviceError> {
        if host {
            let mut address = ptr::null_mut();
            // SAFETY: a place for one pointer; 1 | 2: pinned for all contexts, and mapped.
            let got = |call: &Interface| unsafe { (call.host_allocate)(&mut address, room, 1 | 2) };
            self.call("cuMemHostAlloc", what, room as u64, got)?;
            return Ok(address.expose_provenance() as raw::CUdeviceptr);
        }
        let short = || DeviceError::OutOfMemory { what: what.to_owned(), asked: room as u64 };
        let len = arena::rounded(room as u64).ok_or_else(short)?;
        if let Some(address) = self.arena().take(len) {
            return Ok(address);
        }
        let piece = |bytes: u64| {
            let mut base = 0;
            let whole = usize::try_from(bytes).map_err(|_| short())?;
            // SAFETY: a place for one address.
            let got = |call: &Interface| unsafe { (call.memory_allocate)(&mut base, whole) };
            self.call("cuMemAlloc", what, room as u64, got).map(|()| (base, bytes))
        };
        // What is large has a piece of its own, which goes back when it does; so has what finds no room for a larger piece. The
        // driver is called without the lock, since whoever drops memory takes it.
        let (base, bytes) = if len > self.piece_bytes / 4 {
            piece(len)?
        } else {
            match piece(self.piece_bytes) {
                Err(DeviceError::OutOfMemory { .. }) => piece(len)?,
                got => got?,
            }
        };
        self.arena().add(base, bytes, len);
        Ok(base)
    }

    fn arena(&self) -> MutexGuard<'_, Arena> {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, stream: raw::CUstream, what: &str) -> Result<(), DeviceError> {
        // SAFETY: a stream of this context.
        self.call("cuStreamSynchronize", what, 0, |call| unsafe { (call.stream_wait)(stream) })
    }

    /// Copies `bytes` to device memory, from byte `offset` of it on.
    pub fn upload(&self, to: &Memory, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let address = to.at(offset, bytes.len());
        if bytes.is_empty() {
            return self.health();
        }
        // SAFETY: `at` keeps it in bounds; the source outlives the wait.
        let copied = |call: &Interface| unsafe {
            (call.copy_up)(address, bytes.as_ptr().cast(), bytes.len(), self.handles.side)
        };
        self.call("cuMemcpyHtoDAsync", "an upload", 0, copied)?;
        self.wait(self.handles.side, "an upload")
    }

    /// Copies out of device memory, from byte `offset` of it on.
    pub fn download(&self, from: &Memory, offset: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        let address = from.at(offset, into.len());
        if into.is_empty() {
            return self.health();
        }
        let (to, len) = (into.as_mut_ptr(), into.len());
        // SAFETY: `at` keeps it in bounds; the target is borrowed until the wait is over.
        let copied = |call: &Interface| unsafe { (call.copy_down)(to.cast(), address, len, self.handles.side) };
        self.call("cuMemcpyDtoHAsync", "a download", 0, copied)?;
        self.wait(self.handles.side, "a download")
    }

    /// Copies `len` bytes between two memories, and waits.
    ///
    /// # Safety
    /// Nobody else touches the bytes meanwhile, and the two stretches lie apart.
    pub unsafe fn copy(&self, to: (&Memory, usize), from: (&Memory, usize), len: usize) -> Result<(), DeviceError> {
        let (to, from) = (to.0.at(to.1, len), from.0.at(from.1, len));
        if len == 0 {
            return self.health();
        }
        // SAFETY: in bounds, and the caller keeps others away.
        self.call("cuMemcpyAsync", "a copy", 0, |call| unsafe { (call.copy)(to, from, len, self.handles.stream) })?;
        self.wait(self.handles.stream, "a copy")
    }

    /// Repeats `byte` over `len` bytes, and waits.
    ///
    /// # Safety
    /// Nobody else touches the bytes meanwhile.
    pub unsafe fn fill(&self, to: (&Memory, usize), byte: u8, len: usize) -> Result<(), DeviceError> {
        let to = to.0.at(to.1, len);
        if len == 0 {
            return self.health();
        }
        // SAFETY: in bounds, and the caller keeps others away.
        self.call("cuMemsetD8Async", "a fill", 0, |call| unsafe { (call.fill)(to, byte, len, self.handles.stream) })?;
        self.wait(self.handles.stream, "a fill")
    }

    /// Runs `load` with two options that have it write its errors to a log, which an error that tells of a bad text then holds.
    fn logged(
        &self,
        name: &'static str,
        kernel: &str,
        load: impl FnOnce(&Interface, c_uint, *mut c_uint, *mut *mut c_void) -> Status,
    ) -> Result<(), DeviceError> {
        let mut log = vec![0u8; 16 << 10];
        // The error log, and its size: the latter a number in the place of a pointer.
        let (mut options, size) = ([5, 6], ptr::without_provenance_mut::<c_void>(log.len()));
        let mut values = [log.as_mut_ptr().cast::<c_void>(), size];
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        match self.call(name, kernel, 0, |call| load(call, 2, options, values)) {
            Err(DeviceError::Build { kernel, log: said }) => {
                let log = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().into_owned());
                let log = format!("{said}\n{}", log.unwrap_or_default()).trim_end().to_owned();
                Err(DeviceError::Build { kernel, log })
            }
            other => other,
        }
    }

    /// Loads a module, `kernel` in errors: of a text that ends in a zero, which the driver compiles, or of what [`Self::binary`]
    /// gave.
    fn load(self: &Arc<Self>, kernel: &str, image: &[u8]) -> Result<Module, DeviceError> {
        let mut module = ptr::null_mut();
        self.logged("cuModuleLoadDataEx", kernel, |call, count, options, values| {
            // SAFETY: a place for one handle, an image as the driver wants it, and as many options as is said.
            unsafe { (call.module_load)(&mut module, image.as_ptr().cast(), count, options, values) }
        })?;
        Ok(Module { context: Arc::clone(self), module })
    }

    /// Has the driver compile a module out of `text`, `kernel` in errors, which hold its log.
    pub fn module(self: &Arc<Self>, kernel: &str, text: &str) -> Result<Module, DeviceError> {
        self.load(kernel, ended(kernel, text)?.as_bytes_with_nul())
    }

    /// The module of a binary that [`Self::binary`] gave, here or elsewhere, for a GPU like this one.
    ///
    /// # Safety
    /// It is whole: the driver may read past the end of one that was cut off.
    pub unsafe fn module_of(self: &Arc<Self>, kernel: &str, binary: &[u8]) -> Result<Module, DeviceError> {
        self.load(kernel, binary)
    }

    /// Has the driver compile `text` to a binary for this GPU.
    pub fn binary(&self, kernel: &str, text: &str) -> Result<Vec<u8>, DeviceError> {
        let text = ended(kernel, text)?;
        let bytes = text.as_bytes_with_nul();
        let mut binary = Vec::new();
        // One call of ours for all of the driver's, since the linker holds on to the log until it is destroyed.
        self.logged("cuLinkComplete", kernel, |call, count, options, values| {
            let (mut state, none, nothing) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
            let (mut made, mut len) = (ptr::null_mut::<c_void>(), 0usize);
            // SAFETY: a place for one handle, and as many options as is said.
            let mut status = unsafe { (call.link_create)(count, options, values, &mut state) };
            if status != 0 {
                return status;
            }
            // SAFETY: the linker was just made; 1 is a text, which it reads, and it takes no name and no options for it. What it
            // makes has as many bytes as it says, which are its own until it is destroyed, once.
            unsafe {
                let text = bytes.as_ptr().cast_mut().cast();
                status = (call.link_add)(state, 1, text, bytes.len(), c"".as_ptr(), 0, none, nothing);
                if status == 0 {
                    status = (call.link_end)(state, &mut made, &mut len);
                }
                if status == 0 && !made.is_null() {
                    binary.extend_from_slice(std::slice::from_raw_parts(made.cast::<u8>(), len));
                }
                (call.link_destroy)(state);
            }
            status
        })?;
        Ok(binary)
    }

    /// Makes a graph of `nodes`, each after those whose numbers stand beside it, which are smaller than its own.
    ///
    /// # Safety
    /// While the graph runs, every address that a node names is of memory that lives, is touched by nobody else, and is long
    /// enough for what the node does there.
    pub unsafe fn graph(self: &Arc<Self>, what: &str, nodes: &[(Node<'_>, Vec<usize>)]) -> Result<Graph, DeviceError> {
        // What waits for kernels by itself may begin before they have ended.
        let is_early =
            |node: &Node<'_>, earlier: usize| node.waits() && matches!(nodes[earlier].0, Node::Launch { .. });
        let overlaps = nodes.iter().any(|(node, after)| after.iter().any(|&earlier| is_early(node, earlier)));
        // SAFETY: the caller's promise.
        match unsafe { self.graph_with(what, nodes, &is_early) } {
            // A driver that has the call may still not take such edges, of this GPU or as it is shared: kernels then begin in turn, and
            // find that nobody is left to wait for.
            Err(error) if overlaps && self.health().is_ok() => {
                // SAFETY: as above.
                unsafe { self.graph_with(what, nodes, &|_, _| false) }.map_err(|_| error)
            }
            made => made,
        }
    }

    /// # Safety
    /// As [`Self::graph`].
    unsafe fn graph_with(
        self: &Arc<Self>,
        what: &str,
        nodes: &[(Node<'_>, Vec<usize>)],
        is_early: &dyn Fn(&Node<'_>, usize) -> bool,
    ) -> Result<Graph, DeviceError> {
        let mut graph = ptr::null_mut();
        // SAFETY: a place for one handle.
        self.call("cuGraphCreate", what, 0, |call| unsafe { (call.graph_create)(&mut graph, 0) })?;
        let template = Template { context: self, graph };
        let mut made = Vec::<raw::CUgraphNode>::with_capacity(nodes.len());
        for (node, after) in nodes {
            let (early, after): (Vec<_>, Vec<_>) = after.iter().partition(|&&earlier| is_early(node, earlier));
            let [early, after] = [early, after].map(|nodes| nodes.into_iter().map(|&at| made[at]).collect::<Vec<_>>());
            // SAFETY: the caller's promise.
            let node = unsafe { self.node(what, graph, node, &after) }?;
            made.push(node);
            if !early.is_empty() {
                let (to, like) = (vec![node; early.len()], vec![EARLY_EDGE; early.len()]);
                self.call("cuGraphAddDependencies", what, 0, |call| match call.graph_edges {
                    // SAFETY: nodes of the graph, in lists of one length.
                    Some(add) => unsafe { add(graph, early.as_ptr(), to.as_ptr(), like.as_ptr(), early.len()) },
                    None => NOT_FOUND,
                })?;
            }
        }
        let mut exec = ptr::null_mut();
        // SAFETY: the graph was just made; a place for one handle.
        let instantiated = |call: &Interface| unsafe { (call.graph_instantiate)(&mut exec, graph, 0) };
        self.call("cuGraphInstantiate", what, 0, instantiated)?;
        drop(template);
        Ok(Graph { context: Arc::clone(self), exec })
    }

    /// # Safety
    /// As [`Self::graph`]; `after` are nodes of `graph`.
    unsafe fn node(
        &self,
        what: &str,
        graph: raw::CUgraph,
        node: &Node<'_>,
        after: &[raw::CUgraphNode],
    ) -> Result<raw::CUgraphNode, DeviceError> {
        let (mut made, before, count) = (ptr::null_mut(), after.as_ptr(), after.len());
        let to = &mut made;
        // SAFETY: a place for one handle, the list with its length, and structures as `cuda.h` has them, which the driver
        // copies; kernel parameters too, of which there are as many as the kernel has.
        unsafe {
            match node {
                Node::Nothing => {
                    self.call("cuGraphAddEmptyNode", what, 0, |call| (call.graph_empty)(to, graph, before, count))
                }
                Node::Copy { to: target, from, bytes } => {
                    let copy = line_copy(*target, *from, *bytes);
                    self.call("cuGraphAddMemcpyNode", what, 0, |call| {
                        (call.graph_copy)(to, graph, before, count, &raw const copy, self.handles.context)
                    })
                }
                Node::Launch { function, grid, block, shared_bytes, parameters } => {
                    let mut parameters = parameters.clone();
                    let mut addresses: Vec<*mut c_void> =
                        parameters.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
                    let launch = raw::CUDA_KERNEL_NODE_PARAMS_v1 {
                        func: function.function,
                        gridDimX: grid[0],
                        gridDimY: grid[1],
                        gridDimZ: grid[2],
                        blockDimX: block[0],
                        blockDimY: block[1],
                        blockDimZ: block[2],
                        sharedMemBytes: *shared_bytes,
                        kernelParams: addresses.as_mut_ptr(),
                        extra: ptr::null_mut(),
                    };
                    self.call("cuGraphAddKernelNode", what, 0, |call| {
                        (call.graph_kernel)(to, graph, before, count, &raw const launch)
                    })
                }
            }?;
        }
        Ok(made)
    }

    /// Launches a graph.
    ///
    /// # Safety
    /// As [`Self::graph`], until [`Self::finish`] returns for it.
    pub unsafe fn launch(&self, what: &str, graph: &Graph) -> Result<(), DeviceError> {
        let stream = self.handles.stream;
        self.call("cuGraphLaunch", what, 0, |call| {
            #[cfg(feature = "instruments")]
            if let status @ 1.. = self.refusing.swap(0, Ordering::Relaxed) {
                return status;
            }
            // SAFETY: the graph is of this context, and the caller keeps its memory to it.
            unsafe { (call.graph_launch)(graph.exec, stream) }
        })?;
        self.flying.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Has the next launch fail with `status`, without being made.
    #[cfg(feature = "instruments")]
    pub fn refuse_launch(&self, status: u32) {
        self.refusing.store(status, Ordering::Relaxed);
    }

    /// How long `graph` takes by the device's clock, `times` times over: from an event right before its launch to one right
    /// after, as other programs are timed.
    ///
    /// # Safety
    /// As [`Self::graph`], until it returns.
    pub unsafe fn timed(&self, what: &str, graph: &Graph, times: usize) -> Result<Vec<Duration>, DeviceError> {
        let mut ends = Timers { context: self, events: [ptr::null_mut(); 2] };
        for event in &mut ends.events {
            // SAFETY: a place for one handle; 0 is an event that keeps its time.
            self.call("cuEventCreate", what, 0, |call| unsafe { (call.event_create)(event, 0) })?;
        }
        let [from, to] = ends.events;
        let mut taken = Vec::with_capacity(times);
        for at in 0..times.saturating_add(WARM_UP) {
            let mut milliseconds = 0f32;
            // SAFETY: events, stream and graph are of this context, and the caller keeps the graph's memory to it.
            unsafe {
                self.call("cuEventRecord", what, 0, |call| (call.event_record)(from, self.handles.stream))?;
                self.call("cuGraphLaunch", what, 0, |call| (call.graph_launch)(graph.exec, self.handles.stream))?;
                self.call("cuEventRecord", what, 0, |call| (call.event_record)(to, self.handles.stream))
                    .or_else(|error| self.wait(self.handles.stream, what).and(Err(error)))?;
                self.call("cuEventSynchronize", what, 0, |call| (call.event_wait)(to))?;
                self.call("cuEventElapsedTime", what, 0, |call| (call.event_elapsed)(&mut milliseconds, from, to))?;
            }
            if at >= WARM_UP {
                taken.push(Duration::try_from_secs_f32(milliseconds / 1e3).unwrap_or_default());
            }
        }
        Ok(taken)
    }

    /// Waits until the last node of a launched graph has written `number` to `tick`.
    pub fn finish(&self, what: &str, tick: &AtomicU32, number: u32) -> Result<(), DeviceError> {
        let ended = self.ticked(what, tick, number);
        self.flying.fetch_sub(1, Ordering::Relaxed);
        ended
    }

    fn ticked(&self, what: &str, tick: &AtomicU32, number: u32) -> Result<(), DeviceError> {
        let began = Instant::now();
        // Acquire: what the graph wrote to the host's memory before is seen.
        let is_there = || tick.load(Ordering::Acquire) == number;
        while !is_there() {
            if began.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            let (mut is_over, stream) = (true, self.handles.stream);
            // SAFETY: a stream of this context.
            self.call("cuStreamQuery", what, 0, |call| match unsafe { (call.stream_query)(stream) } {
                NOT_READY => {
                    is_over = false;
                    0
                }
                status => status,
            })?;
            if is_over && !is_there() {
                return Err(DeviceError::Fault {
                    at: what.to_owned(),
                    what: "its graph ended without saying so".into(),
                });
            }
            if !is_over {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }
}

/// A text as the driver wants it: with a zero at its end, and none before.
fn ended(kernel: &str, text: &str) -> Result<CString, DeviceError> {
    CString::new(text).map_err(|_| DeviceError::Build { kernel: kernel.to_owned(), log: "a zero in the text".into() })
}

/// A copy of one line, as the driver wants it.
fn line_copy(to: Address, from: Address, bytes: usize) -> raw::CUDA_MEMCPY3D {
    let kind =
        |host| if host { raw::CUmemorytype::CU_MEMORYTYPE_HOST } else { raw::CUmemorytype::CU_MEMORYTYPE_DEVICE };
    let host = |at: Address| if at.host { at.address as usize } else { 0 };
    raw::CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: kind(from.host),
        srcHost: ptr::with_exposed_provenance(host(from)),
        srcDevice: if from.host { 0 } else { from.address },
        srcArray: ptr::null_mut(),
        reserved0: ptr::null_mut(),
        srcPitch: bytes,
        srcHeight: 1,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: kind(to.host),
        dstHost: ptr::with_exposed_provenance_mut(host(to)),
        dstDevice: if to.host { 0 } else { to.address },
        dstArray: ptr::null_mut(),
        reserved1: ptr::null_mut(),
        dstPitch: bytes,
        dstHeight: 1,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
    }
}

/// Events that keep their time.
struct Timers<'a> {
    context: &'a Context,
    events: [raw::CUevent; 2],
}

impl Drop for Timers<'_> {
    fn drop(&mut self) {
        let made = self.events.into_iter().filter(|event| !event.is_null());
        made.for_each(|event| self.context.leave(Remains::Event(event)));
    }
}

/// A graph that is being put together.
struct Template<'a> {
    context: &'a Context,
    graph: raw::CUgraph,
}

impl Drop for Template<'_> {
    fn drop(&mut self) {
        // What was instantiated from it stays.
        self.context.leave(Remains::Template(self.graph));
    }
}

/// A stretch of memory, of the device or of the host, that the device reaches by address.
pub struct Memory {
    context: Arc<Context>,
    address: raw::CUdeviceptr,
    len: usize,
    host: bool,
}

/// A byte that a graph's nodes reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub address: u64,
    pub host: bool,
}

impl Address {
    /// `bytes` further on.
    pub fn plus(self, bytes: usize) -> Self {
        Self { address: self.address + bytes as u64, ..self }
    }
}

impl Memory {
    /// How many bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether it is the host's.
    pub(crate) fn is_host(&self) -> bool {
        self.host
    }

    /// Its first byte.
    pub(crate) fn base(&self) -> Address {
        Address { address: self.address, host: self.host }
    }

    /// Where `offset .. offset + len` starts, which lies inside.
    fn at(&self, offset: usize, len: usize) -> raw::CUdeviceptr {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "{offset} + {len} of {} bytes", self.len);
        self.address + offset as u64
    }

    /// The word at byte `offset` of the host's memory, which the device writes and the host only looks at.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(self.host && offset.is_multiple_of(4), "the host looks at aligned words of its own memory");
        let address = self.at(offset, 4) as usize;
        // SAFETY: an aligned word inside memory that lives as long as `self`, zeroed when it was allocated; whoever else of the
        // host looks at it does so atomically.
        unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(address)) }
    }

    /// `len` bytes of the host's memory, from byte `offset` on.
    ///
    /// # Safety
    /// Neither the device nor another thread touches them while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "memory that is shared by agreement, as the device reaches it too")]
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(self.host, "the host sees no device memory");
        let address = self.at(offset, len) as usize;
        // SAFETY: host memory that lives as long as `self`, zeroed when it was allocated; `at` keeps the slice inside, and the
        // caller keeps others away.
        unsafe { std::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 {
            if self.host {
                return self.context.leave(Remains::Host(ptr::with_exposed_provenance_mut(self.address as usize)));
            }
            // As long as when it was taken. What runs holds the handles of all that it touches, so nobody uses it any more.
            let len = arena::rounded(self.len as u64).unwrap_or(arena::ALIGN);
            let empty = self.context.arena().give(self.address, len);
            empty.into_iter().for_each(|base| self.context.leave(Remains::Device(base)));
        }
    }
}

/// A compiled module.
pub(crate) struct Module {
    context: Arc<Context>,
    module: raw::CUmodule,
}

// SAFETY: as for `Handles`.
unsafe impl Send for Module {}
// SAFETY: as for `Handles`.
unsafe impl Sync for Module {}

impl Module {
    /// Its entry `name`, for launches that ask for `shared_bytes` of workgroup memory.
    pub fn function(self: &Arc<Self>, name: &str, shared_bytes: u32, waits: bool) -> Result<Function, DeviceError> {
        let build = |log: &str| DeviceError::Build { kernel: name.to_owned(), log: log.to_owned() };
        let symbol = CString::new(name).map_err(|_| build("a zero in its name"))?;
        let mut function = ptr::null_mut();
        // SAFETY: a place for one handle, and a name that ends in a zero.
        let found = |call: &Interface| unsafe { (call.module_function)(&mut function, self.module, symbol.as_ptr()) };
        self.context.call("cuModuleGetFunction", name, 0, found)?;
        if shared_bytes > 0 {
            let bytes = c_int::try_from(shared_bytes).map_err(|_| build("too much workgroup memory"))?;
            // SAFETY: a function of this context; attribute 8 is the most dynamic workgroup memory.
            let set = |call: &Interface| unsafe { (call.function_set)(function, 8, bytes) };
            self.context.call("cuFuncSetAttribute", name, 0, set)?;
        }
        Ok(Function { _module: Arc::clone(self), function, waits })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.context.leave(Remains::Module(self.module));
    }
}

/// A kernel of a module.
#[derive(Clone)]
pub(crate) struct Function {
    _module: Arc<Module>,
    function: raw::CUfunction,
    /// Whether it waits for the kernels before it by itself.
    waits: bool,
}

// SAFETY: as for `Handles`.
unsafe impl Send for Function {}
// SAFETY: as for `Handles`.
unsafe impl Sync for Function {}

/// What a graph does at one place.
pub(crate) enum Node<'a> {
    /// Nothing: it stands for a command without work.
    Nothing,
    /// A copy.
    Copy { to: Address, from: Address, bytes: usize },
    /// A launch. A parameter is the low bytes of its number, as many as the kernel declares.
    Launch { function: &'a Function, grid: [u32; 3], block: [u32; 3], shared_bytes: u32, parameters: Vec<u64> },
}

impl Node<'_> {
    /// Whether it waits for the kernels before it by itself.
    fn waits(&self) -> bool {
        matches!(self, Self::Launch { function, .. } if function.waits)
    }
}

/// A graph that can be launched. What it launches and touches is kept by whoever holds it.
pub(crate) struct Graph {
    context: Arc<Context>,
    exec: raw::CUgraphExec,
}

// SAFETY: as for `Handles`; a launch is made by whoever has the slot.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        self.context.leave(Remains::Graph(self.exec));
    }
}

#[cfg(test)]
mod tests;
