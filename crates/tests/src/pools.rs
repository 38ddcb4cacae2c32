//! Prepared models: how slots are built, given, used and lost, and every refusal by its message.

use crate::Open;
use crate::apart::Apart;
use crate::faulty::{FaultyDevice, Injected};
use crate::sessions::{bytes, elementwise, numbers, said};
use crate::tasks::{Woken, block_on, poll_once};
use lanes_core::DType;
use lanes_core::device::{Completion, Device, DeviceError, Placement, Purpose};
use lanes_core::inference::{
    Acquired, Descriptor, Inference, ModelContext, PreparedModel, SlotBuilder, Tensor, prepare,
};
use lanes_core::session::{Interface, Region, Session};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Elements of the models' inputs and outputs.
pub const N: usize = 8;
const F32: DType = DType::F32;
/// Longer than anything here takes.
pub const LONG: Duration = Duration::from_secs(60);

/// `y = x * w + b`, `w` being [`weights`]: two kernels over a scratch region, weights that all slots share.
pub fn model(context: &ModelContext, capacity: usize) -> PreparedModel {
    let mut shared = None;
    prepare(context, "affine", capacity, |slot| affine(slot, &mut shared)).expect("it is prepared")
}

/// What [`model`] multiplies with.
pub fn weights() -> Vec<f32> {
    numbers(N, 7)
}

/// What [`model`] gives.
pub fn expected(x: &[f32], b: &[f32]) -> Vec<f32> {
    x.iter().zip(weights()).zip(b).map(|((x, w), b)| x * w + b).collect()
}

fn affine(slot: &mut SlotBuilder<'_>, shared: &mut Option<Region>) -> Result<(), DeviceError> {
    let sources = [elementwise("mul", "scalar.mulf"), elementwise("add", "scalar.addf")];
    let kernels = slot.session().compile(&sources)?;
    let w = match shared {
        Some(w) => w.clone(),
        None => shared.insert(slot.session().weights_f32("w", weights())?).clone(),
    };
    let (x, b) = (slot.input("x", F32, &[N])?, slot.input("b", F32, &[N])?);
    let y = slot.output("y", F32, &[N])?;
    slot.record(|commands| {
        let hidden = commands.scratch("hidden", N * 4)?;
        commands.dispatch(&kernels[0], &[N], &[N], &[x.read(), w.read(), hidden.write()])?;
        commands.dispatch(&kernels[1], &[N], &[N], &[hidden.read(), b.read(), y.write()])
    })
}

/// Inputs of round `at`, and the output.
pub fn round(at: usize) -> ([Vec<f32>; 2], Vec<f32>) {
    let (x, b) = (numbers(N, at), numbers(N, at + 1));
    let y = expected(&x, &b);
    ([x, b], y)
}

fn host(slot: Acquired, [x, b]: &[Vec<f32>; 2]) -> Result<Inference, DeviceError> {
    slot.submit_host(&[&bytes(x), &bytes(b)])
}

fn faulty(open: Open<'_>) -> (Arc<FaultyDevice>, ModelContext) {
    let device = Arc::new(FaultyDevice::new(open(None)));
    let context = ModelContext::new(Arc::<FaultyDevice>::clone(&device));
    (device, context)
}

/// Waits for what another thread is about to do.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "{what} never came true");
        std::thread::yield_now();
    }
}

/// Every way in and every way out gives the same, in one memory and in two.
pub fn inferences(open: Open<'_>) {
    for unified in [true, false] {
        let device = Arc::new(Apart::new(open(None), unified));
        let context = ModelContext::new(Arc::<Apart>::clone(&device));
        let pool = model(&context, 2);
        let names = |ports: &[lanes_core::inference::SlotPort]| -> Vec<String> {
            ports.iter().map(|port| format!("{} {}", port.name, port.desc)).collect()
        };
        assert_eq!(names(pool.inputs()), ["x float32 [8]", "b float32 [8]"]);
        assert_eq!(names(pool.outputs()), ["y float32 [8]"]);
        let upload = |values: &[f32]| Tensor::upload(&context, &[N], values).unwrap();
        for at in 0..12 {
            let ([x, b], y) = round(at);
            let slot = pool.try_acquire().unwrap();
            let inference = match at % 4 {
                0 => slot.submit_host(&[&bytes(&x), &bytes(&b)]),
                1 => slot.submit(&[&upload(&x), &upload(&b)]),
                2 => slot.submit_with(|port, into| into.copy_from_slice(&bytes([&x, &b][port]))),
                _ => {
                    // Every second element of a tensor twice as long.
                    let twice: Vec<f32> = x.iter().flat_map(|x| [*x, 99.0]).collect();
                    let twice = Tensor::upload(&context, &[N, 2], &twice).unwrap();
                    let x = twice.slice(1, 0..1).unwrap().transpose(&[1, 0]).unwrap().slice(0, 0..1).unwrap();
                    assert!(said(slot.submit(&[&x, &upload(&b)])).contains("is float32 [8]; float32 [1, 8] was given"));
                    let columns = Tensor::allocate(&context, "columns", twice.descriptor().clone(), Placement::Device);
                    let columns = columns.unwrap();
                    columns.copy_from(&twice).unwrap();
                    let x = columns.slice(1, 0..1).unwrap();
                    let packed = Tensor::concat(&context, &[&x]).unwrap().reshape(&[N]).unwrap();
                    pool.try_acquire().unwrap().submit(&[&packed, &upload(&b)])
                }
            };
            let mut outputs = match at % 3 {
                0 => block_on(inference.unwrap()),
                1 => inference.unwrap().wait(),
                _ => inference.unwrap().wait_timeout(LONG).expect("it ends"),
            }
            .unwrap();
            let mut into = [0; N * 4];
            outputs.read_into(&mut [&mut into]).unwrap();
            assert_eq!(into, bytes(&y)[..], "unified: {unified}, round {at}");
            assert_eq!(outputs.bytes(0), None, "the slot holds an earlier one, if any");
            outputs.fetch().unwrap();
            assert_eq!((outputs.bytes(0), outputs.get::<f32>(0)), (Some(&into[..]), Some(&y[..])));
            assert_eq!((outputs.get::<i32>(0), outputs.bytes(1)), (None, None));
            assert_eq!(block_on(outputs.tensor(0).unwrap().download::<f32>()).unwrap(), y);
            assert_eq!(said(outputs.tensor(1)), "invalid: output 1 of model affine, which has 1");
            assert_eq!(said(outputs.read_into(&mut [])), "invalid: model affine has 1 outputs (y); 0 were given");
            assert_eq!(
                said(outputs.read_into(&mut [&mut [0; 4]])),
                "invalid: output y of model affine is float32 [8] of 32 bytes; 4 were given"
            );
        }
        until("the pool is idle", || pool.is_idle());
        // From one to the next without the host: nothing is waited for in between.
        let ([x, b], y) = round(20);
        let first = pool.try_acquire().unwrap().submit(&[&upload(&x), &upload(&b)]).unwrap();
        let hidden = first.tensor(0).unwrap();
        drop(first);
        let second = pool.try_acquire().unwrap().submit(&[&hidden, &upload(&b)]).unwrap();
        drop(hidden);
        assert_eq!(second.wait().unwrap().tensor(0).unwrap().download::<f32>().wait().unwrap(), expected(&y, &b));
        let placed = device.placed();
        let of = |what: &str| -> Vec<Placement> {
            placed.iter().filter(|(label, _)| label == what).map(|(_, placement)| *placement).collect()
        };
        let (input, output) = (of("input b of slot 1 of affine"), of("output y of slot 1 of affine"));
        if unified {
            assert_eq!((input, output), (vec![Placement::Shared], vec![Placement::Shared]));
        } else {
            assert_eq!(input, [Placement::Upload, Placement::Device]);
            assert_eq!(output, [Placement::Readback, Placement::Device]);
        }
    }
}

/// Each slot is built once, in order, and checked against the others.
pub fn builders(open: Open<'_>) {
    let context = ModelContext::new(open(None));
    let mut built = Vec::new();
    let mut shared = None;
    let pool = prepare(&context, "m", 3, |slot| {
        built.push(slot.index());
        affine(slot, &mut shared)
    })
    .unwrap();
    assert_eq!((built, pool.capacity(), pool.name()), (vec![0, 1, 2], 3, "m"));
    assert!(pool.is_idle() && pool.context().is(&context) && pool.failed().is_empty());
    drop(pool);

    let session_of = |slot: &SlotBuilder<'_>, label: &str| slot.session().allocate(label, N * 4);
    type Build<'a> = &'a mut dyn FnMut(&mut SlotBuilder<'_>) -> Result<(), DeviceError>;
    let refused = |build: Build<'_>| said(prepare(&context, "m", 3, build));
    assert_eq!(said(prepare(&context, "m", 0, |_| Ok(()))), "invalid: model m of 0 slots: it takes at least one");
    assert_eq!(refused(&mut |_| Ok(())), "invalid: model m: slot 0 records nothing");
    let plain = |slot: &mut SlotBuilder<'_>, shape: &[usize], dtype: DType, more: Option<&str>| {
        let (x, y) = (slot.input("x", dtype, shape)?, slot.output("y", dtype, shape)?);
        more.map(|name| slot.input(name, F32, &[1])).transpose()?;
        slot.record(|commands| commands.copy(&x, &y))
    };
    assert_eq!(
        refused(&mut |slot| plain(slot, &[[4, 4, 8][slot.index()]], F32, None)),
        "invalid: model m: input x is float32 [8] in slot 2, and float32 [4] in slot 0"
    );
    assert_eq!(
        refused(&mut |slot| plain(slot, &[4], [F32, DType::I32, F32][slot.index()], None)),
        "invalid: model m: input x is int32 [4] in slot 1, and float32 [4] in slot 0"
    );
    assert_eq!(
        refused(&mut |slot| plain(slot, &[4], F32, (slot.index() == 1).then_some("z"))),
        "invalid: model m: inputs of slot 1 are x, z, and x in slot 0"
    );
    assert_eq!(
        refused(&mut |slot| {
            let x = slot.input("x", F32, &[N])?;
            let y = slot.output("y", F32, &[N * (1 + slot.index())])?;
            slot.record(|commands| (0..=slot_times(&y, &x)).try_for_each(|at| commands.copy(&x, &part(&y, &x, at)?)))
        }),
        "invalid: model m: output y is float32 [16] in slot 1, and float32 [8] in slot 0"
    );
    assert_eq!(
        refused(&mut |slot| {
            let (x, other) = (slot.input("x", F32, &[N])?, session_of(slot, "other")?);
            slot.output("y", F32, &[N])?;
            slot.record(|commands| commands.copy(&x, &other))
        }),
        "invalid: model m: slot 0 never writes its output y"
    );
    assert_eq!(
        refused(&mut |slot| plain(slot, &[N], F32, Some("y"))),
        "invalid: model m: slot 0 has an input or output y already"
    );
    assert_eq!(
        refused(&mut |slot| plain(slot, &[N, 0], F32, None)),
        "invalid: model m: input x of slot 0 is float32 [8, 0], without elements"
    );
    assert_eq!(
        refused(&mut |slot| {
            plain(slot, &[N], F32, None)?;
            slot.record(|_| Ok(()))
        }),
        "invalid: model m: slot 0 records twice"
    );
    // What no slot writes is shared; what one writes is not, whoever reads it.
    let table = |writes: &'static [usize], asks: &'static [usize]| {
        let mut table = None;
        move |slot: &mut SlotBuilder<'_>| {
            let known = match &table {
                None => table.insert(slot.session().allocate("table", N * 4)?).clone(),
                Some(known) => Region::clone(known),
            };
            let (x, y) = (slot.input("x", F32, &[N])?, slot.output("y", F32, &[N])?);
            let index = slot.index();
            slot.record(|commands| {
                if writes.contains(&index) {
                    commands.copy(&x, &known)?;
                }
                commands.copy(if asks.contains(&index) { &known } else { &x }, &y)
            })
        }
    };
    prepare(&context, "m", 3, table(&[], &[0, 1, 2])).unwrap();
    prepare(&context, "m", 3, table(&[1], &[1])).unwrap();
    for (writes, asks, with, writer) in
        [(&[0][..], &[1][..], (0, 1), 0), (&[2], &[1], (1, 2), 2), (&[1, 2], &[], (1, 2), 1)]
    {
        assert_eq!(
            refused(&mut table(writes, asks)),
            format!("invalid: model m: slots {} and {} share region table, which slot {writer} writes", with.0, with.1)
        );
    }
    // An input is written by whoever submits.
    let mut stolen = None;
    assert_eq!(
        refused(&mut |slot| {
            let (x, y) = (slot.input("x", F32, &[N])?, slot.output("y", F32, &[N])?);
            let first = stolen.get_or_insert(x).clone();
            slot.record(|commands| commands.copy(&first, &y))
        }),
        "invalid: model m: slots 0 and 1 share region input x of slot 0 of m, which slot 0 writes"
    );
}

fn slot_times(y: &Region, x: &Region) -> usize {
    y.bytes() / x.bytes() - 1
}

fn part(y: &Region, x: &Region, at: usize) -> Result<Region, DeviceError> {
    y.slice(at * x.bytes()..(at + 1) * x.bytes())
}

/// What does not fit is refused by name before anything is queued, and the slot is back at once.
pub fn refusals(open: Open<'_>) {
    let (device, context) = faulty(open);
    let pool = model(&context, 1);
    let x = Tensor::upload(&context, &[N], &numbers(N, 1)).unwrap();
    let short = Tensor::upload(&context, &[N - 1], &numbers(N - 1, 1)).unwrap();
    let ints = Tensor::upload(&context, &[N], &[1i32; N]).unwrap();
    let foreign = ModelContext::new(open(None));
    let theirs = Tensor::upload(&foreign, &[N], &numbers(N, 1)).unwrap();
    // Were anything queued, it would be in flight until released.
    device.hold();
    let tensors = |tensors: &[&Tensor], what: &str| {
        let found = said(pool.try_acquire().unwrap().submit(tensors));
        assert_eq!(found, format!("invalid: {what}"));
        assert!(pool.is_idle());
    };
    tensors(&[&x], "model affine has 2 inputs (x, b); 1 were given");
    tensors(&[&x, &short], "input b of model affine is float32 [8]; float32 [7] was given");
    tensors(&[&ints, &x], "input x of model affine is float32 [8]; int32 [8] was given");
    tensors(&[&x, &theirs], &format!("tensor float32 [8] is of {foreign}, and model affine of {context}"));
    let host = |inputs: &[&[u8]], what: &str| {
        let found = said(pool.try_acquire().unwrap().submit_host(inputs));
        assert_eq!(found, format!("invalid: {what}"));
        assert!(pool.is_idle());
    };
    host(&[&[0; 32], &[0; 32], &[0; 32]], "model affine has 2 inputs (x, b); 3 were given");
    host(&[&[0; 32], &[0; 28]], "input b of model affine is float32 [8] of 32 bytes; 28 were given");
    device.release();
    let ([x, b], y) = round(1);
    let outputs = self::host(pool.try_acquire().unwrap(), &[x, b]).unwrap().wait().unwrap();
    assert_eq!(outputs.tensor(0).unwrap().download::<f32>().wait().unwrap(), y);
}

/// First come, first served: over callers that block and that await, past those that have gone.
pub fn line(open: Open<'_>) {
    let pool = model(&ModelContext::new(open(None)), 2);
    let (first, second) = (pool.try_acquire().unwrap(), pool.acquire_blocking().unwrap());
    assert!(first.slot() != second.slot() && !pool.is_idle());
    assert_eq!(said(pool.try_acquire()), "busy: 2 in flight");
    let woken: Vec<Arc<Woken>> = (0..5).map(|_| Arc::default()).collect();
    let mut futures: Vec<_> = (0..5).map(|_| Box::pin(pool.acquire())).collect();
    // One that blocks comes third.
    std::thread::scope(|scope| {
        let mut poll = |at: usize| poll_once(&mut futures[at], &woken[at]);
        assert!(poll(0).is_pending() && poll(1).is_pending());
        let blocked = scope.spawn(|| pool.acquire_blocking().map(|slot| (slot.place(), slot)));
        until("it waits", || pool.waiting() == 3);
        for at in 2..5 {
            assert!(poll(at).is_pending());
        }
        assert_eq!(pool.waiting(), 6);
        // The first goes away unserved; polled again, the others keep their places.
        drop(futures.remove(0));
        assert!(poll_once(&mut futures[2], &woken[3]).is_pending());
        assert_eq!(pool.waiting(), 5);
        drop(first);
        assert_eq!(woken.iter().map(|woken| woken.count()).collect::<Vec<_>>(), [0, 1, 0, 0, 0], "only the next one");
        // It is theirs from now on, though they have not looked.
        assert_eq!(said(pool.try_acquire()), "busy: 2 in flight");
        assert!(!blocked.is_finished());
        let Poll::Ready(Ok(third)) = poll_once(&mut futures[0], &woken[1]) else { panic!("it was given a slot") };
        drop(second);
        let (place, fourth) = blocked.join().unwrap().unwrap();
        assert!(third.place() < place && third.place().given + 1 == place.given, "{:?} {place:?}", third.place());
        // Granted and dropped unseen, a slot goes to the next.
        drop(third);
        assert_eq!(woken[2].count(), 1);
        drop(futures.remove(1));
        assert_eq!(woken[3].count(), 1);
        assert!(poll_once(&mut futures[2], &woken[4]).is_pending());
        let Poll::Ready(Ok(fifth)) = poll_once(&mut futures[1], &woken[3]) else { panic!("it was given a slot") };
        assert!(place < fifth.place());
        drop((fourth, fifth));
        assert_eq!(woken[4].count(), 1);
    });
    assert!(!pool.is_idle());
    drop(futures);
    assert!(pool.is_idle() && pool.waiting() == 0);
    drop(pool.try_acquire().unwrap());
}

/// A kept output keeps its slot, in every form; what still flies keeps it too.
pub fn leases(open: Open<'_>) {
    let (device, context) = faulty(open);
    let pool = model(&context, 1);
    let (inputs, y) = round(3);
    let run = || host(pool.try_acquire().unwrap(), &inputs).unwrap();
    let taken = || assert_eq!(said(pool.try_acquire()), "busy: 1 in flight");
    let outputs = run().wait().unwrap();
    taken();
    let tensor = outputs.tensor(0).unwrap();
    drop(outputs);
    taken();
    let view = tensor.reshape(&[2, N / 2]).unwrap().slice(0, 1..2).unwrap();
    drop(tensor);
    taken();
    let download = view.download::<f32>();
    drop(view);
    until("it is given back", || pool.is_idle());
    // A download is a copy: it keeps nothing.
    host(pool.try_acquire().unwrap(), &round(4).0).unwrap().wait().unwrap();
    assert_eq!(download.wait().unwrap(), y[N / 2..]);
    // Empty of elements, it keeps nothing either.
    let outputs = run().wait().unwrap();
    let empty = outputs.tensor(0).unwrap().slice(0, 3..3).unwrap();
    drop(outputs);
    until("it is given back", || pool.is_idle());
    drop(empty);

    device.hold();
    let inference = run();
    assert!(!inference.is_done());
    drop(inference);
    taken();
    let woken = Arc::new(Woken::default());
    let mut next = Box::pin(pool.acquire());
    assert!(poll_once(&mut next, &woken).is_pending());
    device.release();
    until("it is given on", || woken.count() == 1);
    let Poll::Ready(Ok(slot)) = poll_once(&mut next, &woken) else { panic!("it was given the slot") };
    let outputs = host(slot, &inputs).unwrap().wait().unwrap();
    // Slots outlive their pool.
    drop((next, pool, context));
    assert_eq!(outputs.tensor(0).unwrap().download::<f32>().wait().unwrap(), y);
}

/// Polled, awaited, waited for with a limit, cancelled.
pub fn waits(open: Open<'_>) {
    let (device, context) = faulty(open);
    let pool = model(&context, 2);
    let (inputs, y) = round(5);
    device.hold();
    let mut polled = host(pool.try_acquire().unwrap(), &inputs).unwrap();
    let woken = Arc::new(Woken::default());
    assert!(poll_once(&mut polled, &woken).is_pending() && !polled.is_done());
    assert!(polled.wait_timeout(Duration::from_millis(5)).is_none());
    let mut other = host(pool.try_acquire().unwrap(), &inputs).unwrap();
    let made = other.tensor(0).unwrap();
    other.cancel();
    let mut waiting = Box::pin(pool.acquire());
    assert!(poll_once(&mut waiting, &woken).is_pending());
    device.release();
    until("it is woken", || woken.count() > 0);
    let outputs = block_on(&mut polled).unwrap();
    assert_eq!(said(block_on(&mut polled)), "invalid: this inference has been awaited");
    assert_eq!(outputs.tensor(0).unwrap().download::<f32>().wait().unwrap(), y);
    assert_eq!(said(other.wait()), "cancelled");
    // Who goes on with what was never made is told so, and may go on with something else.
    assert_eq!(said(made.download::<f32>().wait()), "an earlier submission failed: cancelled");
    drop((made, outputs));
    let slot = block_on(waiting).unwrap();
    assert!(pool.failed().is_empty());
    // Cancelled when it is over, it is as if nobody had asked.
    let mut done = host(slot, &inputs).unwrap();
    until("it is done", || done.is_done());
    done.cancel();
    done.wait().unwrap();
    until("the pool is idle", || pool.is_idle());
    // What waits for something that never comes can be cancelled too, and its slot is back.
    let buffer = device.allocate("never", Purpose::State, Placement::Device, N as u64 * 4).unwrap();
    let (never, completer) = Completion::pending();
    let desc = Descriptor::new(F32, &[N]).unwrap();
    let never = Tensor::wrap(&context, &buffer, 0, desc, Some(&never)).unwrap();
    let mut stuck = pool.try_acquire().unwrap().submit(&[&never, &never]).unwrap();
    assert!(!stuck.is_done());
    stuck.cancel();
    assert_eq!(said(stuck.wait()), "cancelled");
    until("the pool is idle", || pool.is_idle());
    drop(completer);
}

/// A slot whose plan failed is out of service, its peers are not; inputs that failed harm none.
pub fn failures(open: Open<'_>) {
    let (device, context) = faulty(open);
    let pool = model(&context, 2);
    let (inputs, y) = round(6);
    let run = |slot: Acquired| host(slot, &inputs).and_then(Inference::wait);
    let buffer = device.allocate("failed", Purpose::State, Placement::Device, N as u64 * 4).unwrap();
    for (cause, said_then) in [
        (DeviceError::Fault { at: "maker".into(), what: "on purpose".into() }, "fault in maker: on purpose"),
        (DeviceError::Cancelled, "cancelled"),
    ] {
        let desc = Descriptor::new(F32, &[N]).unwrap();
        let failed = Completion::ready(Err(cause));
        let failed = Tensor::wrap(&context, &buffer, 0, desc, Some(&failed)).unwrap();
        let inference = pool.try_acquire().unwrap().submit(&[&failed, &failed]).unwrap();
        let output = inference.tensor(0).unwrap();
        let expected = format!("an earlier submission failed: {said_then}");
        assert_eq!(said(inference.wait()), expected);
        assert_eq!(said(output.wait()), expected);
        drop(output);
        assert!(pool.failed().is_empty());
        until("the pool is idle", || pool.is_idle());
    }
    for (at, how) in [Injected::Unrun, Injected::Ran].into_iter().enumerate() {
        device.script([Some(how)]);
        let slot = pool.acquire_blocking().unwrap();
        let index = slot.slot();
        let inference = host(slot, &inputs).unwrap();
        let output = inference.tensor(0).unwrap();
        let found = said(inference.wait());
        assert!(found.starts_with("fault in faulty device: injected"), "{found}");
        // Its cause is known though somebody keeps its output.
        until("it is out of service", || pool.failed().len() == at + 1);
        let (slot, cause) = pool.failed().into_iter().find(|(slot, _)| *slot == index).expect("it is this one");
        assert_eq!((slot, cause.to_string()), (index, found.clone()));
        assert_eq!(said(output.download::<f32>().wait()), format!("an earlier submission failed: {found}"));
        if at == 0 {
            drop(output);
            until("it is idle without the one that failed", || pool.is_idle());
            for _ in 0..3 {
                let slot = pool.acquire_blocking().unwrap();
                assert_ne!(slot.slot(), index);
                let outputs = run(slot).unwrap();
                assert_eq!(said(pool.try_acquire()), "busy: 1 in flight");
                assert_eq!(outputs.tensor(0).unwrap().download::<f32>().wait().unwrap(), y);
            }
        }
    }
    // None is left: the first cause is told, at once.
    let cause = pool.failed()[0].1.to_string();
    assert_eq!(said(pool.try_acquire()), cause);
    assert_eq!(said(pool.acquire_blocking()), cause);
    assert!(pool.is_idle());
    // Whoever waited for the last one is told too.
    let pool = model(&context, 1);
    device.hold();
    device.script([Some(Injected::Ran)]);
    let last = host(pool.try_acquire().unwrap(), &inputs).unwrap();
    std::thread::scope(|scope| {
        let waits: Vec<_> = (0..3).map(|_| scope.spawn(|| said(pool.acquire_blocking()))).collect();
        until("they wait", || pool.waiting() == 3);
        device.release();
        let cause = said(last.wait());
        assert!(waits.into_iter().all(|wait| wait.join().unwrap() == cause));
    });
}

/// A lost device ends everything with one cause.
pub fn losses(open: Open<'_>) {
    let (device, context) = faulty(open);
    let (pool, idle) = (model(&context, 2), model(&context, 1));
    let inputs = round(8).0;
    device.hold();
    let flying: Vec<Inference> = (0..2).map(|_| host(pool.try_acquire().unwrap(), &inputs).unwrap()).collect();
    let output = flying[0].tensor(0).unwrap();
    let held = idle.try_acquire().unwrap();
    let woken = Arc::new(Woken::default());
    let mut waiting = Box::pin(pool.acquire());
    assert!(poll_once(&mut waiting, &woken).is_pending());
    device.lose("pulled out");
    let lost = "device lost: pulled out";
    assert!(flying.into_iter().all(|inference| said(inference.wait()) == lost));
    assert_eq!(said(block_on(waiting)), lost);
    assert_eq!(said(host(held, &inputs)), lost);
    for pool in [&pool, &idle] {
        assert_eq!((said(pool.try_acquire()), said(pool.acquire_blocking())), (lost.to_string(), lost.to_string()));
    }
    assert_eq!(said(output.download::<f32>().wait()), lost);
    assert_eq!(said(Tensor::upload(&context, &[1], &[0f32])), lost);
    drop(output);
    until("all is given back", || pool.is_idle() && idle.is_idle());
}

/// A definition makes the slots: its weights and kernels are shared, its states refused.
pub fn definitions(open: Open<'_>) {
    let context = ModelContext::new(open(None));
    let session = Session::builder("author").context(context.clone()).open().unwrap();
    let kernels = session.compile(&[elementwise("mul", "scalar.mulf")]).unwrap();
    let w = session.weights_f32("w", weights()).unwrap();
    let (x, y) = (session.allocate("x", N * 4).unwrap(), session.allocate("y", N * 4).unwrap());
    session
        .record("scale", |commands| commands.dispatch(&kernels[0], &[N], &[N], &[x.read(), w.read(), y.write()]))
        .unwrap();
    let interface = || Interface::new().output("y", F32, &[N], &y);
    let definition = session.freeze("scale", interface().input("x", F32, &[2, N / 2], &x)).unwrap();
    let stateful = session.freeze("scale", interface().state("h", F32, &[N], None, (&x, &x))).unwrap();
    drop(session);
    let pool = prepare(&context, "scale", 3, |slot| slot.definition(&definition)).unwrap();
    assert_eq!(pool.inputs()[0].desc.shape(), [2, N / 2]);
    let slots: Vec<Acquired> = (0..3).map(|_| pool.try_acquire().unwrap()).collect();
    for (at, slot) in slots.into_iter().enumerate() {
        let x = numbers(N, at);
        let outputs = slot.submit_host(&[&bytes(&x)]).unwrap().wait().unwrap();
        let y: Vec<f32> = x.iter().zip(weights()).map(|(x, w)| x * w).collect();
        assert_eq!(outputs.tensor(0).unwrap().download::<f32>().wait().unwrap(), y);
    }
    assert_eq!(
        said(prepare(&context, "scale", 1, |slot| slot.definition(&stateful))),
        "invalid: model scale: definition scale has state h, and slots keep nothing from one caller to the next"
    );
    // The future of a slot can be sent where tasks run.
    fn sent<T: Send + 'static>(_: &T) {}
    let future = pool.acquire();
    sent(&future);
    let mut future = pin!(future);
    let woken = std::task::Waker::from(Arc::new(Woken::default()));
    let slot = future.as_mut().poll(&mut std::task::Context::from_waker(&woken));
    assert!(matches!(slot, Poll::Ready(Ok(_))));
}
