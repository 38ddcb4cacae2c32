//! Gives back what dropped handles leave, on a thread of its own.
//!
//! ```text
//! drop ──what is left──> channel ──> reaper: waits for a pause between turns, but not for long ──> driver
//! the context's last handle gone: the channel ends ──> the rest, the queues, the context itself
//! ```
//!
//! - Dropping a handle sends, and neither calls the driver nor waits. What is sent is used by nothing any more: whatever runs
//!   holds the handles of all that it touches.
//! - The driver holds up launches while it frees, so a pause is waited for; [`PATIENCE`] bounds what is held back meanwhile.
//! - The driver takes itself down in a handler of the process's exit, and a thread that is inside it then may crash. A handler of
//!   ours is registered after it, so it runs before: it waits until nobody of this crate is inside, and lets nobody in again.

use super::{Driver, Lost, raw};
use std::ffi::{c_int, c_void};
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Once, RwLock, RwLockReadGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// How long what was dropped waits for turns in flight to end.
const PATIENCE: Duration = Duration::from_millis(20);
/// How often it looks.
const LOOK: Duration = Duration::from_micros(200);
/// How long the process's exit waits for calls of the driver that are under way.
const EXIT: Duration = Duration::from_secs(2);

/// What a dropped handle leaves.
pub(super) enum Remains {
    Device(raw::CUdeviceptr),
    Host(*mut c_void),
    Module(raw::CUmodule),
    Graph(raw::CUgraphExec),
    /// What a graph was made of.
    Template(raw::CUgraph),
    Event(raw::CUevent),
    /// Nothing: somebody who is short of memory wants all before it freed now, and to be told.
    Now(SyncSender<()>),
}

// SAFETY: handles without thread affinity, as for `Handles`.
unsafe impl Send for Remains {}

/// The driver's handles of one open context.
#[derive(Clone, Copy)]
pub(super) struct Handles {
    pub driver: &'static Driver,
    pub device: raw::CUdevice,
    pub context: raw::CUcontext,
    /// Turns, copies and fills.
    pub stream: raw::CUstream,
    /// Transfers of host calls, which wait for no turn.
    pub side: raw::CUstream,
}

// SAFETY: the driver's handles may be used from any thread, and every call makes the context current first.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

impl Handles {
    /// Gives back the queues, as far as they were made, and the context.
    ///
    /// # Safety
    /// Nothing of the context is used any more, and this is called once.
    pub unsafe fn close(self) {
        if self.context.is_null() {
            return;
        }
        // SAFETY: the streams are of this context, idle, and nobody else's; the context was retained once.
        unsafe {
            let call = &self.driver.call;
            (call.context_set)(self.context);
            for stream in [self.stream, self.side].into_iter().filter(|stream| !stream.is_null()) {
                (call.stream_destroy)(stream);
            }
            (call.context_set)(ptr::null_mut());
            (call.context_release)(self.device);
        }
    }

    /// # Safety
    /// The handle was given out by the context, and nobody uses it.
    unsafe fn free(self, remains: Remains) {
        let call = &self.driver.call;
        // SAFETY: the caller's promise. What cannot be freed is gone with the context: errors are nobody's.
        unsafe {
            match remains {
                Remains::Device(address) => (call.memory_free)(address),
                Remains::Host(address) => (call.host_free)(address),
                Remains::Module(module) => (call.module_unload)(module),
                Remains::Graph(graph) => (call.graph_exec_destroy)(graph),
                Remains::Template(graph) => (call.graph_destroy)(graph),
                Remains::Event(event) => (call.event_destroy)(event),
                Remains::Now(told) => {
                    // Who asked may have given up.
                    let _ = told.send(());
                    0
                }
            };
        }
    }
}

/// Held while inside the driver.
static INSIDE: RwLock<()> = RwLock::new(());

/// Leave to call the driver; `None` once the process is about to exit.
pub(super) fn inside() -> Option<RwLockReadGuard<'static, ()>> {
    match INSIDE.try_read() {
        Ok(inside) => Some(inside),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Lets nobody in any more, once those inside are out. Does not wait for ever: a launch that hangs is not to keep the process.
extern "C" fn at_exit() {
    let began = Instant::now();
    loop {
        match INSIDE.try_write() {
            Ok(alone) => return mem::forget(alone),
            Err(TryLockError::Poisoned(poisoned)) => return mem::forget(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if began.elapsed() < EXIT => thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return,
        }
    }
}

unsafe extern "C" {
    /// `stdlib.h`: calls `handler` when the process exits, the last registered first.
    fn atexit(handler: extern "C" fn()) -> c_int;
}

/// Starts the reaper of a context. `flying` counts its turns in flight.
pub(super) fn start(handles: Handles, lost: Lost, flying: Arc<AtomicUsize>) -> io::Result<Sender<Remains>> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: a function that lives as long as the program. Where there is no room for it, exit is as it would be without.
        unsafe { atexit(at_exit) };
    });
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("lanes-cuda-reaper".into()).spawn(move || reap(handles, &receiver, &lost, &flying))?;
    Ok(sender)
}

fn reap(handles: Handles, receiver: &Receiver<Remains>, lost: &Lost, flying: &AtomicUsize) {
    let mut kept = Vec::new();
    while let Ok(first) = receiver.recv() {
        let began = Instant::now();
        kept.push(first);
        while began.elapsed() < PATIENCE
            && flying.load(Ordering::Relaxed) > 0
            && !kept.iter().any(|one| matches!(one, Remains::Now(_)))
        {
            thread::sleep(LOOK);
            kept.extend(receiver.try_iter());
        }
        kept.extend(receiver.try_iter());
        let Some(_inside) = inside() else { return };
        // SAFETY: the context is released by this thread alone, below.
        unsafe { (handles.driver.call.context_set)(handles.context) };
        for one in kept.drain(..) {
            // A lost context frees nothing any more.
            if lost.get().is_none() || matches!(one, Remains::Now(_)) {
                // SAFETY: it was its one owner's, who has been dropped.
                unsafe { handles.free(one) };
            }
        }
    }
    let Some(_inside) = inside() else { return };
    // SAFETY: whoever held the sender held the context: nobody does any more.
    unsafe { handles.close() };
}
