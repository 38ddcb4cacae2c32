//! A device that is watched, made of the CPU: turns go on after they were begun, in order, on a thread that stands for a GPU's
//! stream. It runs the shared suite, so what a GPU needs of `flight` is tested without one.

use crate::device::{CpuDevice, CpuOptions, made};
use crate::memory::Bytes;
use crate::plan::CpuPlan;
use crate::pool::Pool;
use crate::slot::{self, SlotMemory};
use lanes_core::device::flight::{Backend, Bindings, Engine, Host, Idle, Made, Stretch, Turn};
use lanes_core::device::{Device, DeviceError, Placement, PrepareOptions};
use lanes_core::plan::Checked;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

type Ended = Result<(), DeviceError>;

/// Work of the stream, and who waits for it.
type Work = (Box<dyn FnOnce() -> Ended + Send>, Sender<Ended>);

struct WatchedDevice {
    host: Host<Stream>,
    /// Prepares plans.
    cpu: CpuDevice,
    options: CpuOptions,
}

struct Stream {
    pool: Arc<Pool>,
    /// Ends the thread when it is dropped.
    work: Mutex<Sender<Work>>,
    /// How many turns the host has begun and not ended, and the most so far.
    begun: AtomicUsize,
    most: AtomicUsize,
}

/// What the thread reaches: alive and left alone until the turn has ended, which is when the host lets go of it.
struct Reached<T>(*const T);

// SAFETY: the types are `Sync`, and the host waits for the end before anybody else gets at them.
unsafe impl<T: Sync> Send for Reached<T> {}

impl<T> Reached<T> {
    /// # Safety
    /// Before the turn has ended.
    unsafe fn get(&self) -> &T {
        // SAFETY: the caller's promise.
        unsafe { &*self.0 }
    }
}

impl Stream {
    fn new() -> Self {
        let (work, arrives) = channel::<Work>();
        std::thread::spawn(move || {
            for (count, (work, done)) in arrives.into_iter().enumerate() {
                // Now and then the host is far ahead, now and then it waits.
                match count % 7 {
                    0 => std::thread::sleep(std::time::Duration::from_micros(300)),
                    1 | 4 => std::thread::yield_now(),
                    _ => {}
                }
                // Who asked for it may be gone.
                let _ = done.send(work());
            }
        });
        let pool = Arc::new(Pool::new(1).expect("no thread is asked for"));
        Self { pool, work: Mutex::new(work), begun: AtomicUsize::new(0), most: AtomicUsize::new(0) }
    }

    fn send(&self, work: impl FnOnce() -> Ended + Send + 'static) -> Receiver<Ended> {
        let (done, ended) = channel();
        self.work.lock().unwrap().send((Box::new(work), done)).expect("the stream lives");
        ended
    }
}

impl Engine for Stream {
    const NAME: &'static str = "watched";
    const WATCHED: bool = true;
    type Memory = Bytes;
    type Plan = CpuPlan;
    type Staging = SlotMemory;
    type Mark = Receiver<Ended>;

    fn bytes(memory: &Bytes) -> usize {
        memory.len()
    }

    fn health(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn begin(&self, turn: &Turn<'_, Self>) -> Result<Option<Self::Mark>, DeviceError> {
        self.most.fetch_max(self.begun.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let (plan, staging, seats) = (Reached(turn.plan()), Reached(turn.staging()), turn.seats().to_vec());
        let pool = Arc::clone(&self.pool);
        Ok(Some(self.send(move || {
            // SAFETY: the turn has not ended.
            let (plan, staging) = unsafe { (plan.get(), staging.get()) };
            // SAFETY: what a `Turn` promises; the stream does what was begun in that order.
            unsafe { crate::queue::run(&pool, plan, staging, &seats) }
        })))
    }

    fn end(&self, _: &Turn<'_, Self>, mark: Self::Mark) -> Result<(), DeviceError> {
        let ended = mark.recv().expect("the stream lives");
        self.begun.fetch_sub(1, Ordering::SeqCst);
        ended
    }

    fn copy(&self, to: Stretch<'_, Self>, from: Stretch<'_, Self>) -> Result<(), DeviceError> {
        let (target, source, len) =
            (to.memory().at(to.start()) as usize, from.memory().at(from.start()) as usize, to.len());
        let copied = self.send(move || {
            let (target, source) = (target as *mut u8, source as *const u8);
            // SAFETY: stretches that are held until this is done, apart from one another.
            unsafe { target.copy_from_nonoverlapping(source, len) };
            Ok(())
        });
        copied.recv().expect("the stream lives")
    }

    fn fill(&self, to: Stretch<'_, Self>, byte: u8) -> Result<(), DeviceError> {
        let (target, len) = (to.memory().at(to.start()) as usize, to.len());
        let filled = self.send(move || {
            // SAFETY: a stretch that is held until this is done.
            unsafe { (target as *mut u8).write_bytes(byte, len) };
            Ok(())
        });
        filled.recv().expect("the stream lives")
    }

    fn write(&self, to: Stretch<'_, Self>, bytes: &[u8]) -> Result<(), DeviceError> {
        self.map(to).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, from: Stretch<'_, Self>, into: &mut [u8]) -> Result<(), DeviceError> {
        into.copy_from_slice(self.map(from));
        Ok(())
    }

    fn map<'a>(&self, stretch: Stretch<'a, Self>) -> &'a mut [u8] {
        // SAFETY: a stretch lies in its memory and is its holder's alone.
        unsafe { std::slice::from_raw_parts_mut(stretch.memory().at(stretch.start()), stretch.len()) }
    }

    fn input<'a>(slot: Idle<'a, Self>, port: usize) -> Option<&'a mut [u8]> {
        // SAFETY: the slot is idle, and nobody else looks at its inputs.
        unsafe { slot::input(slot.staging(), port) }
    }

    fn output<'a>(slot: Idle<'a, Self>, port: usize) -> Option<&'a [u8]> {
        // SAFETY: the slot is idle.
        unsafe { slot::output(slot.staging(), port) }
    }
}

impl Backend for WatchedDevice {
    type Engine = Stream;

    fn host(&self) -> &Host<Stream> {
        &self.host
    }

    fn zeroed(&self, what: &str, _: Placement, len: usize) -> Result<Bytes, DeviceError> {
        Bytes::zeroed(what, len)
    }

    fn ready(
        &self,
        plan: &Checked<'_>,
        options: &PrepareOptions<'_>,
        bound: &Bindings<Stream>,
    ) -> Result<Made<Stream>, DeviceError> {
        made(&self.cpu, plan, options, bound)
    }

    fn anew(&self) -> Result<Self, DeviceError> {
        Ok(open(self.options.budget))
    }
}

fn open(budget: Option<u64>) -> WatchedDevice {
    let options = CpuOptions { threads: Some(1), budget, ..CpuOptions::default() };
    let cpu = CpuDevice::open(options).expect("no thread is asked for");
    let host = Host::new(Stream::new(), cpu.capabilities().clone(), cpu.budget().clone());
    WatchedDevice { host, cpu, options }
}

lanes_tests::conformance!(suite, &|budget| std::sync::Arc::new(crate::watched::open(budget)));

/// Turns on one buffer are begun without waiting for each other, from the caller's thread or the device's.
#[test]
fn several_turns_are_under_way_at_once() {
    use lanes_core::device::Completion;
    use lanes_tests::flight::{buffer, exchanger, send};
    let device = open(None);
    let kept = buffer(&device, 64);
    let executable = exchanger(&device, &kept, 3, true);
    let mut slots: Vec<_> = (0..3).map(|_| device.lease(&executable).unwrap()).collect();
    let (held, gate) = channel::<()>();
    // The stream is at something else.
    let blocked = device.host.engine().send(move || gate.recv().map_or(Ok(()), Ok));
    let sent: Vec<Completion> =
        (1..).zip(&mut slots).map(|(byte, slot)| send(&device, &executable, slot, byte, &[]).unwrap()).collect();
    assert!(sent.iter().all(|sent| !sent.is_done()));
    assert_eq!(device.host.engine().most.load(Ordering::SeqCst), 3, "all were begun");
    drop(held);
    blocked.recv().unwrap().unwrap();
    for (at, sent) in sent.iter().enumerate() {
        sent.wait().unwrap();
        assert_eq!(slots[at].output(0).unwrap()[0], at as u8, "each sees what the one before left");
    }
}
