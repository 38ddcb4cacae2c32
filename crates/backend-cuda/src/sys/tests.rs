//! What is said where the driver is not as it should be, with one made of functions here.

use super::*;

unsafe extern "C" fn succeeds() -> Status {
    0
}

unsafe extern "C" fn version_11_4(to: *mut c_int) -> Status {
    // SAFETY: a place for one number.
    unsafe { *to = 11_040 };
    0
}

unsafe extern "C" fn version_12_8(to: *mut c_int) -> Status {
    // SAFETY: a place for one number.
    unsafe { *to = 12_080 };
    0
}

unsafe extern "C" fn no_device(_: c_uint) -> Status {
    100
}

unsafe extern "C" fn mismatch(_: c_uint) -> Status {
    803
}

unsafe extern "C" fn unknown_number(_: c_uint) -> Status {
    12_345
}

unsafe extern "C" fn name(status: Status, to: *mut *const c_char) -> Status {
    let name = match status {
        100 => c"CUDA_ERROR_NO_DEVICE",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        _ => return 1,
    };
    // SAFETY: a place for one pointer.
    unsafe { *to = name.as_ptr() };
    0
}

fn said(replaced: &[(&str, *const c_void)], missing: &str) -> String {
    let find = |symbol: &CStr| {
        let symbol = symbol.to_str().expect("symbols are ASCII");
        let known = replaced.iter().find(|(name, _)| *name == symbol).map(|(_, address)| *address);
        (symbol != missing).then(|| known.unwrap_or(succeeds as *const c_void))
    };
    // SAFETY: of the functions found, `start` calls those replaced, whose types are right, and `cuInit`.
    unsafe { Driver::start(&find) }.map(|driver| driver.version.to_string()).unwrap_or_else(|why| why)
}

#[test]
fn a_driver_that_is_not_as_it_should_be_is_named() {
    let good = [
        ("cuDriverGetVersion", version_12_8 as *const c_void),
        ("cuGetErrorName", name as *const c_void),
        ("cuGetErrorString", name as *const c_void),
    ];
    let with = |symbol, function: *const c_void| {
        let mut all = vec![(symbol, function)];
        all.extend(good);
        said(&all, "")
    };
    assert_eq!(said(&good, ""), "12080");
    assert_eq!(
        said(&good, "cuGraphAddKernelNode"),
        "the NVIDIA driver lacks cuGraphAddKernelNode: one for CUDA 12.0 or newer is needed"
    );
    assert_eq!(
        with("cuDriverGetVersion", version_11_4 as *const c_void),
        "the NVIDIA driver is for CUDA 11.4, and 12.0 or newer is needed"
    );
    assert_eq!(
        with("cuInit", no_device as *const c_void),
        "the NVIDIA driver finds no GPU (cuInit says CUDA_ERROR_NO_DEVICE (CUDA_ERROR_NO_DEVICE))"
    );
    assert_eq!(
        with("cuInit", mismatch as *const c_void),
        "the NVIDIA driver does not start: cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"
    );
    // A number that no version of the interface has is said as it is.
    assert_eq!(
        with("cuInit", unknown_number as *const c_void),
        "the NVIDIA driver does not start: cuInit says error 12345"
    );
}

/// A driver of functions here: what a test has it say, and what it was asked. One test at a time.
mod pretended {
    use super::*;
    use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};

    /// How often an event says that it is not reached, and what it says then.
    static QUERIES_LEFT: AtomicU32 = AtomicU32::new(0);
    static REACHED: AtomicU32 = AtomicU32::new(0);
    static RECORDED: AtomicU32 = AtomicU32::new(0);
    static EVENTS: AtomicUsize = AtomicUsize::new(0);
    static WAITS: AtomicUsize = AtomicUsize::new(0);
    static LAUNCHES: AtomicUsize = AtomicUsize::new(0);

    macro_rules! gives {
        ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
            $(unsafe extern "C" fn $name($($argument: $type),*) -> Status {
                // SAFETY: callers give places for what is put there.
                #[allow(unused_unsafe, reason = "some put nothing anywhere")]
                unsafe {
                    $body
                }
            })*
        };
    }

    /// A handle that nothing looks behind.
    fn some<T>() -> *mut T {
        ptr::without_provenance_mut(64)
    }

    gives! {
        init(_flags: c_uint) { 0 }
        count(to: *mut c_int) { *to = 8; 0 }
        device(to: *mut raw::CUdevice, number: c_int) { *to = number; 0 }
        retain(to: *mut raw::CUcontext, _device: raw::CUdevice) { *to = some(); 0 }
        set(_context: raw::CUcontext) { 0 }
        release(_device: raw::CUdevice) { 0 }
        stream(to: *mut raw::CUstream, _flags: c_uint) { *to = some(); 0 }
        stream_gone(_stream: raw::CUstream) { 0 }
        stream_wait(_stream: raw::CUstream) { WAITS.fetch_add(1, SeqCst); 0 }
        event(to: *mut raw::CUevent, flags: c_uint) {
            assert_eq!(flags, 2, "events keep no time");
            EVENTS.fetch_add(1, SeqCst);
            *to = some();
            0
        }
        event_gone(_event: raw::CUevent) { EVENTS.fetch_sub(1, SeqCst); 0 }
        record(_event: raw::CUevent, _stream: raw::CUstream) { RECORDED.load(SeqCst) }
        query(_event: raw::CUevent) {
            match QUERIES_LEFT.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
                Ok(_) => NOT_READY,
                Err(_) => REACHED.load(SeqCst),
            }
        }
        graph(to: *mut raw::CUgraph, _flags: c_uint) { *to = some(); 0 }
        graph_gone(_graph: raw::CUgraph) { 0 }
        exec(to: *mut raw::CUgraphExec, _graph: raw::CUgraph, _flags: c_ulonglong) { *to = some(); 0 }
        exec_gone(_exec: raw::CUgraphExec) { 0 }
        launch(_exec: raw::CUgraphExec, _stream: raw::CUstream) { LAUNCHES.fetch_add(1, SeqCst); 0 }
    }

    fn driver() -> &'static Driver {
        let known: [(&str, *const c_void); 21] = [
            ("cuDriverGetVersion", version_12_8 as *const c_void),
            ("cuGetErrorName", name as *const c_void),
            ("cuGetErrorString", name as *const c_void),
            ("cuInit", init as *const c_void),
            ("cuDeviceGetCount", count as *const c_void),
            ("cuDeviceGet", device as *const c_void),
            ("cuDevicePrimaryCtxRetain", retain as *const c_void),
            ("cuDevicePrimaryCtxRelease_v2", release as *const c_void),
            ("cuCtxSetCurrent", set as *const c_void),
            ("cuStreamCreate", stream as *const c_void),
            ("cuStreamDestroy_v2", stream_gone as *const c_void),
            ("cuStreamSynchronize", stream_wait as *const c_void),
            ("cuEventCreate", event as *const c_void),
            ("cuEventDestroy_v2", event_gone as *const c_void),
            ("cuEventRecord", record as *const c_void),
            ("cuEventQuery", query as *const c_void),
            ("cuGraphCreate", graph as *const c_void),
            ("cuGraphDestroy", graph_gone as *const c_void),
            ("cuGraphInstantiateWithFlags", exec as *const c_void),
            ("cuGraphExecDestroy", exec_gone as *const c_void),
            ("cuGraphLaunch", launch as *const c_void),
        ];
        let find = |symbol: &CStr| {
            let symbol = symbol.to_str().expect("symbols are ASCII");
            let known = known.iter().find(|(name, _)| *name == symbol).map(|(_, address)| *address);
            Some(known.unwrap_or(succeeds as *const c_void))
        };
        // SAFETY: what is called below has its own function here, of the right type.
        Box::leak(Box::new(unsafe { Driver::start(&find) }.expect("it starts")))
    }

    /// Marks are waited for by asking, events used again; where the end cannot be marked the stream is waited for; a status
    /// that a context does not survive loses the device for whoever asks.
    #[test]
    fn ends_are_asked_for_until_they_are_there() {
        let context = Context::open(driver(), 7).expect("it opens");
        // SAFETY: no node, so nothing is touched.
        let graph = unsafe { context.graph("a graph", &[]) }.expect("it is made");
        // SAFETY: as above.
        let launch = || unsafe { context.launch("a turn", &graph) };
        for round in 0..3 {
            let marks = [launch().unwrap(), launch().unwrap()];
            QUERIES_LEFT.store(1000, SeqCst);
            marks.into_iter().for_each(|mark| context.finish("a turn", mark).unwrap());
            assert_eq!(QUERIES_LEFT.load(SeqCst), 0, "asked until it was there");
            assert_eq!(
                (EVENTS.load(SeqCst), LAUNCHES.load(SeqCst)),
                (2, 2 * (round + 1)),
                "two in flight are two events"
            );
        }
        assert_eq!(WAITS.load(SeqCst), 0, "nobody is kept in the driver");

        RECORDED.store(101, SeqCst);
        assert_eq!(launch().err().unwrap().to_string(), "fault in a turn: cuEventRecord says error 101");
        assert_eq!(
            (WAITS.load(SeqCst), EVENTS.load(SeqCst)),
            (1, 2),
            "what was launched has ended, and its event is kept"
        );
        RECORDED.store(0, SeqCst);

        let (first, second) = (launch().unwrap(), launch().unwrap());
        REACHED.store(700, SeqCst);
        let said = "device lost: cuEventQuery says error 700";
        for mark in [first, second] {
            assert_eq!(context.finish("a turn", mark).unwrap_err().to_string(), said);
        }
        assert_eq!(launch().err().unwrap().to_string(), said);
        assert_eq!(context.health().unwrap_err().to_string(), said);
        let again = Context::open(driver(), 7).err().unwrap().to_string();
        assert!(again.starts_with(said) && again.contains("cannot be trusted any more"), "{again}");
    }
}
