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

/// A driver of functions here: what a test has it say, and what it was asked.
mod pretended {
    use super::*;
    use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
    use std::thread;

    /// How often the queue says that it is not empty, what it says then, and what the tick is by then.
    static QUERIES_LEFT: AtomicU32 = AtomicU32::new(0);
    static REACHED: AtomicU32 = AtomicU32::new(0);
    static TICK: AtomicU32 = AtomicU32::new(0);
    static TICK_THEN: AtomicU32 = AtomicU32::new(0);
    static LAUNCHES: AtomicUsize = AtomicUsize::new(0);
    static LAUNCHED: AtomicU32 = AtomicU32::new(0);
    /// Where the next memory is.
    static NEXT: AtomicU64 = AtomicU64::new(1 << 30);
    /// How often there is no memory.
    static SHORT: AtomicU32 = AtomicU32::new(0);
    /// What was given back, and by which thread.
    static BACK: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());

    fn back(what: &'static str) -> Status {
        BACK.lock().unwrap().push((what, thread::current().name().unwrap_or_default().to_owned()));
        0
    }

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
        release(_device: raw::CUdevice) { back("context") }
        stream(to: *mut raw::CUstream, _flags: c_uint) { *to = some(); 0 }
        stream_gone(_stream: raw::CUstream) { back("queue") }
        stream_wait(_stream: raw::CUstream) { 0 }
        stream_query(_stream: raw::CUstream) {
            if QUERIES_LEFT.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                return NOT_READY;
            }
            TICK.store(TICK_THEN.load(SeqCst), SeqCst);
            REACHED.load(SeqCst)
        }
        memory(to: *mut raw::CUdeviceptr, _len: usize) {
            if SHORT.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                return OUT_OF_MEMORY;
            }
            *to = NEXT.fetch_add(1 << 30, SeqCst);
            0
        }
        memory_gone(_address: raw::CUdeviceptr) { back("memory") }
        event(to: *mut raw::CUevent, _flags: c_uint) { *to = some(); 0 }
        event_gone(_event: raw::CUevent) { back("event") }
        fill(_address: raw::CUdeviceptr, _byte: u8, _len: usize, _stream: raw::CUstream) { 0 }
        graph(to: *mut raw::CUgraph, _flags: c_uint) { *to = some(); 0 }
        graph_gone(_graph: raw::CUgraph) { back("template") }
        exec(to: *mut raw::CUgraphExec, _graph: raw::CUgraph, _flags: c_ulonglong) { *to = some(); 0 }
        exec_gone(_exec: raw::CUgraphExec) { back("graph") }
        launch(_exec: raw::CUgraphExec, _stream: raw::CUstream) { LAUNCHES.fetch_add(1, SeqCst); LAUNCHED.load(SeqCst) }
    }

    fn driver() -> &'static Driver {
        let known: [(&str, *const c_void); 23] = [
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
            ("cuStreamQuery", stream_query as *const c_void),
            ("cuMemAlloc_v2", memory as *const c_void),
            ("cuEventCreate", event as *const c_void),
            ("cuEventDestroy_v2", event_gone as *const c_void),
            ("cuMemFree_v2", memory_gone as *const c_void),
            ("cuMemsetD8Async", fill as *const c_void),
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

    /// Bytes that have a piece of their own.
    const LARGE: usize = 16 << 20;

    /// One after the other: what the driver says is one for all.
    static ONE: Mutex<()> = Mutex::new(());

    /// A turn is one call; its end is seen in memory, and the driver is asked by who has waited long. A status that a context does
    /// not survive loses the device for whoever asks.
    #[test]
    fn ends_are_seen_in_memory() {
        let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let context = Context::open(driver(), 7, None).expect("it opens");
        // SAFETY: no node, so nothing is touched.
        let graph = unsafe { context.graph("a graph", &[]) }.expect("it is made");
        // SAFETY: as above.
        let launch = || unsafe { context.launch("a turn", &graph) };
        let finish = |number| context.finish("a turn", &TICK, number).map_err(|error| error.to_string());
        let flying = || context.flying.load(SeqCst);
        QUERIES_LEFT.store(1000, SeqCst);
        for number in 1..=3 {
            launch().unwrap();
            assert_eq!(flying(), 1);
            TICK.store(number, SeqCst);
            assert_eq!(finish(number), Ok(()));
            assert_eq!((LAUNCHES.load(SeqCst), flying()), (number as usize, 0));
        }
        assert_eq!(QUERIES_LEFT.load(SeqCst), 1000, "nobody asked");

        launch().unwrap();
        QUERIES_LEFT.store(5, SeqCst);
        TICK_THEN.store(4, SeqCst);
        assert_eq!(finish(4), Ok(()));
        assert_eq!(QUERIES_LEFT.load(SeqCst), 0, "asked until it was there");

        launch().unwrap();
        assert_eq!(finish(5), Err("fault in a turn: its graph ended without saying so".into()));

        LAUNCHED.store(101, SeqCst);
        assert_eq!(launch().unwrap_err().to_string(), "fault in a turn: cuGraphLaunch says error 101");
        assert_eq!(flying(), 0, "what was not launched is not waited for");
        LAUNCHED.store(0, SeqCst);

        launch().unwrap();
        launch().unwrap();
        REACHED.store(700, SeqCst);
        let said = "device lost: cuStreamQuery says error 700";
        assert_eq!([finish(6), finish(7)], [Err(said.into()), Err(said.into())]);
        REACHED.store(0, SeqCst);
        assert_eq!(launch().unwrap_err().to_string(), said);
        assert_eq!(context.health().unwrap_err().to_string(), said);
        let again = Context::open(driver(), 7, None).err().unwrap().to_string();
        assert!(again.starts_with(said) && again.contains("cannot be trusted any more"), "{again}");
    }

    /// Nothing is given back by who drops it, and all of it is: the context last, after its queues. Who is short of memory waits for
    /// what was dropped before.
    #[test]
    fn what_is_dropped_is_given_back_by_the_reaper() {
        let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let until = |what: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !what() {
                assert!(began.elapsed() < Duration::from_secs(10), "{:?}", BACK.lock());
                thread::sleep(Duration::from_millis(1));
            }
        };
        let gone = |what| BACK.lock().unwrap().iter().filter(|(gone, _)| *gone == what).count();
        // The other test's context goes when it goes.
        until(&|| LAUNCHES.load(SeqCst) == 0 || gone("context") == 1);
        BACK.lock().unwrap().clear();

        let context = Context::open(driver(), 3, None).expect("it opens");
        let [first, second, third] = [(); 3].map(|()| context.allocate("memory", LARGE, false).expect("there is some"));
        // Two that are small share a piece, which goes with the last of them.
        let small = [(); 2].map(|()| context.allocate("memory", 100, false).expect("there is some"));
        let [one, other] = small.each_ref().map(|small| small.base().address);
        assert_eq!((other - one, one % 256), (256, 0));
        let [one, other] = small;
        drop(one);
        drop(first);
        until(&|| gone("memory") == 1);
        drop(other);
        until(&|| gone("memory") == 2);

        // Turns in flight hold it up, but not for ever; nor where memory is short.
        context.flying.store(1, SeqCst);
        let began = Instant::now();
        drop(second);
        until(&|| gone("memory") == 3);
        assert!(began.elapsed() >= Duration::from_millis(20), "{:?}", began.elapsed());
        drop(third);
        SHORT.store(1, SeqCst);
        let fourth = context.allocate("memory", LARGE, false).expect("it was there at the second look");
        assert_eq!(gone("memory"), 4);
        SHORT.store(2, SeqCst);
        let error = context.allocate("rows", LARGE, false).err().unwrap();
        let expected = DeviceError::OutOfMemory { what: "rows".into(), asked: LARGE as u64 };
        assert_eq!(error.to_string(), expected.to_string());
        // A piece that is not to be had whole is asked for as long as is needed.
        SHORT.store(1, SeqCst);
        let fifth = context.allocate("memory", 100, false).expect("there is a little");
        context.flying.store(0, SeqCst);

        // SAFETY: no node, so nothing is touched.
        let graph = unsafe { context.graph("a graph", &[]) }.expect("it is made");
        // SAFETY: as above.
        unsafe { context.timed("a graph", &graph, 1) }.expect("it is timed");
        drop(context);
        drop((fourth, fifth));
        drop(graph);
        until(&|| gone("context") == 1);
        let back = BACK.lock().unwrap();
        let order: Vec<&str> = back.iter().map(|(what, _)| *what).collect();
        assert_eq!(
            order,
            [
                &["memory"; 4][..],
                &["template", "event", "event", "memory", "memory", "graph", "queue", "queue", "context"]
            ]
            .concat()
        );
        assert!(back.iter().all(|(_, by)| by == "lanes-cuda-reaper"), "{back:?}");
    }
}
