//! Handles, futures and the worker, with a real worker thread.

use super::super::error::{BuildError, Closed, InputError, StreamError};
use super::super::{Capacity, LanedModel, LanesBuilder, Refusal, SeatRows, Value};
use super::double::*;
use crate::device::DeviceError;
use crate::{DType, Signature};
use lanes_tests::tasks::Woken;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

#[test]
fn lanes_are_leased_lowest_first_and_clones_share_one() {
    let runnable = builder().0.lanes(3).build().unwrap();
    let mut streams: Vec<_> = (0..3).map(|_| runnable.spawn_blocking().unwrap()).collect();
    assert_eq!(streams.iter().map(|stream| stream.lane().index()).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(matches!(runnable.spawn_blocking(), Err(StreamError::Full { asked: 1, free: 0, lanes: 3 })));
    let clone = streams[1].clone();
    assert_eq!(y(clone.call_blocking(&x(&1))).unwrap(), next(INITIAL, 1));
    assert_eq!(y(streams[1].call_blocking(&x(&2))).unwrap(), alone(&[1, 2])[1]);
    assert_eq!((clone.position(), streams[1].position()), (2, 2));
    drop(streams.remove(1));
    assert!(runnable.spawn_blocking().is_err(), "a clone holds the lane still");
    assert_eq!(runnable.stats().lanes_taken, 3);
    drop(clone);
    assert_eq!(runnable.stats().lanes_taken, 2);
    let fresh = wait(runnable.spawn()).unwrap();
    assert_eq!(fresh.lane().index(), 1);
    assert_eq!(fresh.position(), 0);
    assert_eq!(y(wait(fresh.call(&x(&5)))).unwrap(), next(INITIAL, 5), "nothing of its predecessor is left");
}

#[test]
fn a_future_dropped_before_its_seat_leaves_the_queue() {
    let (builder, control) = builder();
    let runnable = builder.lanes(2).max_seats(1).build().unwrap();
    let (first, second) = (runnable.spawn_blocking().unwrap(), runnable.spawn_blocking().unwrap());
    control.hold();
    let seated = first.call(&x(&1));
    control.wait_for_turns(1);
    let dropped = second.call(&x(&2));
    let kept = second.call(&x(&3));
    assert_eq!(runnable.stats().queue_depth, 2);
    drop(dropped);
    assert_eq!(runnable.stats().queue_depth, 1);
    control.let_go();
    assert_eq!(y(wait(seated)).unwrap(), next(INITIAL, 1));
    assert_eq!(y(wait(kept)).unwrap(), next(INITIAL, 3));
    assert_eq!(control.seen().turns, [[1], [3]]);
}

#[test]
fn a_future_dropped_after_its_seat_commits() {
    let (builder, control) = builder();
    let runnable = builder.lanes(2).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    control.hold();
    let seated = stream.call(&x(&1));
    control.wait_for_turns(1);
    drop(seated);
    assert_eq!(stream.position(), 0);
    control.let_go();
    assert_eq!(y(wait(stream.call(&x(&2)))).unwrap(), alone(&[1, 2])[1]);
    assert_eq!(stream.position(), 2);
}

#[test]
fn a_stream_dropped_while_it_runs_frees_its_lane_and_no_other() {
    let (builder, control) = builder();
    let runnable = builder.lanes(2).build().unwrap();
    let (first, second) = (runnable.spawn_blocking().unwrap(), runnable.spawn_blocking().unwrap());
    wait(second.call(&x(&1))).unwrap();
    control.hold();
    let seated = first.call(&x(&1));
    control.wait_for_turns(2);
    // Neither drop waits for the turn.
    drop(first);
    drop(seated);
    assert_eq!(runnable.stats().lanes_taken, 1);
    let spawn = runnable.spawn();
    control.let_go();
    let fresh = wait(spawn).unwrap();
    assert_eq!(fresh.lane().index(), 0);
    assert_eq!(y(wait(fresh.call(&x(&9)))).unwrap(), next(INITIAL, 9));
    assert_eq!(y(wait(second.call(&x(&2)))).unwrap(), alone(&[1, 2])[1]);
}

#[test]
fn an_awaited_call_is_served_after_its_stream_is_dropped() {
    let (builder, control) = builder();
    let runnable = builder.lanes(1).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    control.hold();
    let (seated, queued) = (stream.call(&x(&1)), stream.call(&x(&2)));
    drop(stream);
    control.let_go();
    assert_eq!(y(wait(seated)).unwrap(), next(INITIAL, 1));
    let outputs = wait(queued);
    // The answer, unlike the call, holds no lane.
    assert!(runnable.spawn_blocking().is_ok());
    assert_eq!(y(outputs).unwrap(), alone(&[1, 2])[1]);
}

#[test]
fn a_full_queue_is_busy_or_waits_in_order() {
    let (builder, control) = builder();
    let runnable = builder.lanes(6).max_seats(1).queue(2).build().unwrap();
    let streams: Vec<_> = (0..6).map(|_| runnable.spawn_blocking().unwrap()).collect();
    control.hold();
    let mut calls = vec![streams[0].call(&x(&0))];
    control.wait_for_turns(1);
    calls.extend((1..5).map(|at| streams[at as usize].call(&x(&at))));
    let stats = runnable.stats();
    assert_eq!((stats.queue_depth, stats.queue_waiting), (2, 2), "the bound holds");
    assert!(matches!(streams[5].try_call(&x(&9)), Err(StreamError::Busy { depth: 2 })));
    let spawn = runnable.spawn();
    assert_eq!(runnable.stats().queue_waiting, 3, "a spawn goes through the same queue");
    drop(spawn);
    // One that gives up waiting is forgotten.
    drop(calls.remove(3));
    assert_eq!(runnable.stats().queue_waiting, 1);
    control.let_go();
    calls.into_iter().for_each(|call| drop(wait(call).unwrap()));
    assert_eq!(control.seen().turns, [[0], [1], [2], [4]]);
    assert_eq!(y(wait(streams[5].try_call(&x(&9)).unwrap())).unwrap(), next(INITIAL, 9), "Busy queued nothing");
}

#[test]
fn a_caller_alone_takes_the_baton_and_a_future_never_does() {
    let (builder, control) = builder();
    let runnable = builder.lanes(2).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    let mut buffer = [0; 8];
    let xs = [1u64, 2, 3, 4, 5];
    assert_eq!(y(stream.call_blocking(&x(&1))).unwrap(), alone(&xs)[0]);
    stream.call_into_blocking(&x(&2), &mut [&mut buffer]).unwrap();
    assert_eq!(u64::from_le_bytes(buffer), alone(&xs)[1]);
    let steps: Vec<_> = xs[2..].iter().map(x).collect();
    let many = stream.call_many_blocking(&steps).unwrap();
    assert_eq!(many.into_iter().map(|one| y(Ok(one)).unwrap()).collect::<Vec<_>>(), alone(&xs)[2..]);
    assert!(matches!(stream.call_blocking(&x(&REFUSE)), Err(StreamError::Refused { .. })));
    assert!(matches!(stream.call_blocking(&x(&FAIL)), Err(StreamError::Failed(_))));
    let stats = runnable.stats();
    assert_eq!((stats.turns, stats.seats, stats.handoffs), (7, 7, 0), "no thread but this one");
    wait(stream.call(&x(&6))).unwrap();
    assert_eq!(runnable.stats().handoffs, 1, "a polled future is served by the worker");
    // Another lease, even an idle one, and the caller is not alone.
    let other = runnable.spawn_blocking().unwrap();
    assert_eq!(y(stream.call_blocking(&x(&7))).unwrap(), alone(&[1, 2, 3, 4, 5, 6, 7])[6]);
    assert_eq!(runnable.stats().handoffs, 2);
    drop(other);
    stream.call_blocking(&x(&8)).unwrap();
    assert_eq!(runnable.stats().handoffs, 2);
    // Something of its own in flight, and it is not alone either: the calls stay in order.
    control.hold();
    let seated = stream.call(&x(&1));
    control.wait_for_turns(11);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| stream.call_blocking(&x(&2)).map(drop));
        while runnable.stats().queue_depth == 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
        control.let_go();
        second.join().unwrap().unwrap();
    });
    wait(seated).unwrap();
    assert_eq!(control.seen().turns[10..], [[1], [2]]);
    assert_eq!(runnable.stats().handoffs, 4);
}

#[test]
fn a_caller_alone_waits_for_no_turn_of_a_stream_that_is_gone() {
    let (builder, control) = builder();
    let runnable = builder.lanes(2).build().unwrap();
    let (gone, stream) = (runnable.spawn_blocking().unwrap(), runnable.spawn_blocking().unwrap());
    control.hold();
    let seated = gone.call(&x(&1));
    control.wait_for_turns(1);
    drop((gone, seated));
    assert_eq!(runnable.stats().lanes_taken, 1);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| y(stream.call_blocking(&x(&2))));
        // It is the only lease, but a turn is in flight: the call queues, and is seated with whoever comes.
        while runnable.stats().queue_depth == 0 && !call.is_finished() {
            std::thread::sleep(Duration::from_micros(20));
        }
        control.let_go();
        assert_eq!(call.join().unwrap().unwrap(), next(INITIAL, 2));
    });
    assert_eq!((control.seen().turns.clone(), runnable.stats().handoffs), (vec![vec![1], vec![2]], 2));
}

#[test]
fn a_worker_woken_for_nothing_takes_no_call_along() {
    let (builder, _) = builder();
    let runnable = builder.lanes(2).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    for call in 0..200u64 {
        // The worker is somewhere between waking and going to sleep again.
        drop(runnable.spawn());
        assert_eq!(runnable.stats().lanes_taken, 1);
        stream.call_blocking(&x(&call)).unwrap();
        assert_eq!(runnable.stats().handoffs, 0, "at call {call}");
    }
}

#[test]
fn a_panic_under_the_baton_closes_too() {
    let (builder, control) = builder();
    let runnable = builder.lanes(2).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    let errors = [
        stream.call_blocking(&x(&PANIC)).unwrap_err(),
        stream.call_blocking(&x(&1)).unwrap_err(),
        wait(stream.call(&x(&1))).unwrap_err(),
        stream.try_call(&x(&1)).err().unwrap(),
        runnable.spawn_blocking().unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(&error, StreamError::Closed(cause) if matches!(&**cause, Closed::Panicked(_))), "{error:?}");
    }
    drop(runnable);
    assert!(control.seen().is_gone);
}

#[test]
fn dropping_the_runnable_tells_what_is_queued_and_joins_the_worker() {
    let (builder, control) = builder();
    let runnable = builder.lanes(2).max_seats(1).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    control.hold();
    let (seated, queued) = (stream.call(&x(&1)), stream.call(&x(&2)));
    control.wait_for_turns(1);
    let clone = runnable.clone();
    drop(runnable);
    assert!(!control.seen().is_gone);
    std::thread::scope(|scope| {
        let dropper = scope.spawn(|| drop(clone));
        // It is told before the turn in flight is over.
        let error = wait(queued).unwrap_err();
        assert!(matches!(&error, StreamError::Closed(cause) if matches!(&**cause, Closed::Dropped)), "{error:?}");
        control.let_go();
        dropper.join().unwrap();
    });
    assert!(control.seen().is_gone, "joined, and the model dropped");
    assert_eq!(y(wait(seated)).unwrap(), next(INITIAL, 1), "a seated call commits");
    assert_eq!(stream.position(), 1);
    assert!(matches!(stream.call_blocking(&x(&1)), Err(StreamError::Closed(_))));
}

#[test]
fn the_last_runnable_may_be_dropped_by_the_worker_itself() {
    let (builder, control) = builder();
    let runnable = builder.lanes(1).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    struct Owns(Mutex<Option<super::super::Runnable>>);
    impl Wake for Owns {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }
    control.hold();
    let mut call = stream.call(&x(&1));
    control.wait_for_turns(1);
    let waker = Waker::from(Arc::new(Owns(Mutex::new(Some(runnable)))));
    assert!(std::pin::pin!(&mut call).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    control.let_go();
    // The worker ends, although nobody else is there to join it.
    while !control.seen().is_gone {
        std::thread::sleep(Duration::from_micros(20));
    }
    now(call).unwrap();
}

#[test]
fn a_replaced_waker_is_dropped_under_no_lock() {
    struct Owns {
        _runnable: super::super::Runnable,
    }
    impl Wake for Owns {
        fn wake(self: Arc<Self>) {}
    }
    let (builder, control) = builder();
    let runnable = builder.lanes(1).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    control.hold();
    let mut call = stream.call(&x(&1));
    control.wait_for_turns(1);
    let waker = Waker::from(Arc::new(Owns { _runnable: runnable }));
    assert!(std::pin::pin!(&mut call).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            control.let_go();
        });
        // Drops the runnable with the waker, and so joins the worker, which needs the call's lock to answer.
        assert!(poll(&mut call).is_pending());
    });
    assert!(control.seen().is_gone);
    assert_eq!(y(now(call)).unwrap(), next(INITIAL, 1));
}

#[test]
fn a_waker_that_panics_hurts_nobody() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("the host's own fault");
        }
    }
    let (builder, control) = builder();
    let runnable = builder.lanes(2).build().unwrap();
    let (first, second) = (runnable.spawn_blocking().unwrap(), runnable.spawn_blocking().unwrap());
    control.hold();
    let mut call = first.call(&x(&1));
    control.wait_for_turns(1);
    let waker = Waker::from(Arc::new(Panics));
    assert!(matches!(std::pin::pin!(&mut call).poll(&mut Context::from_waker(&waker)), Poll::Pending));
    control.let_go();
    assert_eq!(y(wait(call)).unwrap(), next(INITIAL, 1));
    assert_eq!(y(second.call_blocking(&x(&2))).unwrap(), next(INITIAL, 2));
}

#[test]
fn wrong_inputs_are_refused_before_the_queue_by_name() {
    let (builder, _) = builder();
    let runnable = builder.lanes(1).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    let check = |inputs: &[Value<'_>], expected: &str| {
        let error = wait(stream.call(inputs)).unwrap_err();
        assert!(matches!(error, StreamError::Invalid(_)), "{error:?}");
        assert_eq!(error.to_string(), expected);
        assert_eq!(stream.call_blocking(inputs).unwrap_err().to_string(), expected);
        assert_eq!(stream.try_call(inputs).err().unwrap().to_string(), expected);
        assert_eq!(wait(stream.call_many(&[&x(&1)[..], inputs])).unwrap_err().to_string(), expected);
        assert_eq!(wait(stream.call_into(inputs, &mut [&mut [0; 8]])).unwrap_err().to_string(), expected);
    };
    let one = x(&1)[0];
    check(&[], "0 inputs were given, and the model has 1: x");
    check(&[one, one], "2 inputs were given, and the model has 1: x");
    check(&[Value::new(&[1], &[1i64])], "input x: found int64, expected uint64");
    check(&[Value::new(&[1, 1], &[1u64])], "input x: found rank 2 (shape [1, 1]), expected rank 1 (shape [1])");
    check(&[Value::new(&[2], &[1u64, 2])], "input x: found shape [2], expected [1]");
    check(&[Value::new(&[1], &[] as &[u64])], "x: found 0 bytes, expected 8");
    check(&[Value { dtype: DType::U64, shape: &[1], bytes: &[0; 9] }], "x: found 9 bytes, expected 8");
    let into = |outputs: &mut [&mut [u8]]| stream.call_into_blocking(&x(&1), outputs).unwrap_err().to_string();
    assert_eq!(into(&mut []), "0 outputs were given, and the model has 1: y");
    assert_eq!(into(&mut [&mut [0; 7]]), "y: found 7 bytes, expected 8");
    assert_eq!(runnable.stats().turns, 0, "nothing was queued");
    assert_eq!(stream.position(), 0);
    let rank = InputError::Rank { name: "x".into(), found: vec![], expected: vec![1] };
    assert!(
        matches!(wait(stream.call(&[Value::new(&[], &[1u64])])), Err(StreamError::Invalid(error)) if error == rank)
    );
}

#[test]
fn outputs_are_read_as_their_own_type_only() {
    let (builder, _) = builder();
    let runnable = builder.lanes(1).build().unwrap();
    let outputs = runnable.spawn_blocking().unwrap().call_blocking(&x(&1)).unwrap();
    let expected = next(INITIAL, 1);
    assert_eq!(outputs.get::<u64>(0), Some(&[expected][..]));
    assert_eq!(outputs.bytes(0), Some(&expected.to_le_bytes()[..]));
    assert_eq!((outputs.get::<i64>(0), outputs.get::<u64>(1), outputs.bytes(1)), (None, None, None));
    assert_eq!((outputs.len(), outputs.ports()[0].name.as_str()), (1, "y"));
}

/// Where a [`Broken`] model breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Breaks {
    Never,
    SlotsMax,
    Prepare,
    Signature,
    InputMut,
    DeviceBytes,
    /// In all of them, and again when it is dropped.
    Drop,
    /// After so many turns it offers fewer bytes for its input than a seat takes.
    InputsAfter(usize),
    /// The same for its output.
    OutputsAfter(usize),
}

/// A model that does not prepare, offers too little staging, or panics.
struct Broken {
    model: Double,
    breaks: Breaks,
    prepare: Option<DeviceError>,
    turns: usize,
}

impl Broken {
    fn new(breaks: Breaks) -> Self {
        Self { model: Double::new(&Control::default(), false), breaks, prepare: None, turns: 0 }
    }

    fn at(&self, at: Breaks) {
        let breaks = self.breaks == at || self.breaks == Breaks::Drop && at == Breaks::Prepare;
        assert!(!breaks, "broken at {at:?}");
    }
}

impl LanedModel for Broken {
    fn signature(&self) -> &Signature {
        self.at(Breaks::Signature);
        self.model.signature()
    }
    fn slots_max(&self) -> usize {
        self.at(Breaks::SlotsMax);
        1
    }
    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError> {
        self.at(Breaks::Prepare);
        self.prepare.take().map_or(Ok(()), Err)?;
        self.model.prepare(capacity)
    }
    fn input_mut(&mut self, port: usize) -> &mut [u8] {
        self.at(Breaks::InputMut);
        let is_short = self.breaks == Breaks::InputsAfter(self.turns);
        let staging = self.model.input_mut(port);
        let bytes = if is_short { 7 } else { staging.len() };
        &mut staging[..bytes]
    }
    fn run(&mut self, seats: &[SeatRows], refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        self.turns += 1;
        self.model.run(seats, refused)
    }
    fn output(&self, port: usize) -> &[u8] {
        let staging = self.model.output(port);
        if self.breaks == Breaks::OutputsAfter(self.turns) { &staging[..7] } else { staging }
    }
    fn device_bytes(&self) -> u64 {
        self.at(Breaks::DeviceBytes);
        self.model.device_bytes()
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if self.breaks == Breaks::Drop {
            panic!("broken when dropped");
        }
    }
}

#[test]
fn a_model_that_does_not_prepare_is_not_built() {
    let memory = DeviceError::OutOfMemory { what: "rows".into(), asked: 9 };
    let mut model = Broken::new(Breaks::Never);
    model.prepare = Some(memory);
    let error = LanesBuilder::new(model).lanes(3).max_seats(2).build().unwrap_err();
    assert!(matches!(error, BuildError::Prepare { lanes: 3, max_seats: 2, source: DeviceError::OutOfMemory { .. } }));
    let error = LanesBuilder::new(Broken::new(Breaks::InputsAfter(0))).lanes(3).max_seats(2).build().unwrap_err();
    assert_eq!(error.to_string(), "model double: input x has 7 bytes of staging, and 16 are needed");
}

#[test]
fn a_model_that_panics_while_it_is_prepared_is_an_error() {
    use Breaks::{DeviceBytes, Drop, InputMut, Prepare, Signature, SlotsMax};
    for breaks in [SlotsMax, Prepare, Signature, InputMut, DeviceBytes, Drop] {
        let error = LanesBuilder::new(Broken::new(breaks)).lanes(1).build().unwrap_err();
        assert!(matches!(error, BuildError::Panicked(_)), "{breaks:?}: {error}");
        // What it says when it is dropped comes after what it said first.
        let at = if breaks == Drop { Prepare } else { breaks };
        assert_eq!(error.to_string(), format!("the model panicked: broken at {at:?}"));
    }
    LanesBuilder::new(Broken::new(Breaks::Never)).lanes(1).build().unwrap();
}

/// Staging had room when the model was built. A turn that finds less fails in words, and the lanes are as they were.
#[test]
fn a_model_whose_staging_shrinks_fails_the_turn() {
    for (breaks, what, failed) in [
        (Breaks::InputsAfter(2), "input x has 7 bytes, and 8 are needed", 2),
        (Breaks::OutputsAfter(3), "output y has 7 bytes, and 8 are needed", 1),
    ] {
        let runnable = LanesBuilder::new(Broken::new(breaks)).lanes(1).build().unwrap();
        let stream = runnable.spawn_blocking().unwrap();
        for (at, expected) in alone(&[1, 2]).into_iter().enumerate() {
            assert_eq!(y(stream.call_blocking(&x(&(at as u64 + 1)))).unwrap(), expected);
        }
        // On the caller's thread and on the worker's; a model that runs no turn stays short.
        for at in 0..failed {
            let call = if at == 0 { stream.call_blocking(&x(&3)) } else { wait(stream.call(&x(&3))) };
            let Err(StreamError::Failed(error)) = call else { panic!("{breaks:?}: {call:?}") };
            assert_eq!(error.to_string(), format!("fault in model double: {what}"));
        }
        assert_eq!(stream.position(), 2);
        if failed == 1 {
            assert_eq!(y(stream.call_blocking(&x(&4))).unwrap(), alone(&[1, 2, 4])[2], "no step was lost or added");
        }
    }
}

/// Adds up what it is told, by metric and label.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<BTreeMap<String, f64>>>);

struct Metric(Recorder, String);

impl Metric {
    fn add(&self, value: f64) {
        *self.0.0.lock().unwrap().entry(self.1.clone()).or_default() += value;
    }
}

impl metrics::CounterFn for Metric {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }
    fn absolute(&self, _: u64) {}
}

impl metrics::GaugeFn for Metric {
    fn increment(&self, value: f64) {
        self.add(value);
    }
    fn decrement(&self, value: f64) {
        self.add(-value);
    }
    fn set(&self, value: f64) {
        self.0.0.lock().unwrap().insert(self.1.clone(), value);
    }
}

impl metrics::HistogramFn for Metric {
    fn record(&self, value: f64) {
        self.add(value);
        *self.0.0.lock().unwrap().entry(format!("{} count", self.1)).or_default() += 1.0;
    }
}

impl Recorder {
    fn metric(&self, key: &metrics::Key) -> Arc<Metric> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Metric(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }
}

impl metrics::Recorder for Recorder {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        metrics::Counter::from_arc(self.metric(key))
    }
    fn register_gauge(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        metrics::Gauge::from_arc(self.metric(key))
    }
    fn register_histogram(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
        metrics::Histogram::from_arc(self.metric(key))
    }
}

#[test]
fn metrics_are_bound_when_built_and_agree_with_the_stats() {
    let (builder, control) = builder();
    let recorder = Recorder::default();
    // The recorder is seen by this thread alone, and only while building: the worker uses what was bound.
    let runnable = metrics::with_local_recorder(&recorder, || builder.lanes(4).max_seats(3).build()).unwrap();
    let streams: Vec<_> = (0..3).map(|_| runnable.spawn_blocking().unwrap()).collect();
    control.hold();
    let first = streams[0].call(&x(&1));
    control.wait_for_turns(1);
    let calls: Vec<_> = streams.iter().zip(&[2, REFUSE, 4]).map(|(stream, input)| stream.call(&x(input))).collect();
    control.let_go();
    wait(first).unwrap();
    calls.into_iter().for_each(|call| drop(wait(call)));
    drop(wait(streams[0].call(&x(&FAIL))));
    let taken = || recorder.0.lock().unwrap()["lanes_taken{model=double}"];
    let fork = streams[1].fork_blocking().unwrap();
    assert_eq!(taken(), 4.0);
    // Nobody spawns after it.
    drop(fork);
    assert_eq!(taken(), 3.0);
    let stats = runnable.stats();
    drop(runnable);
    let seen = recorder.0.lock().unwrap();
    let of = |name: &str| seen[&format!("{name}{{model=double}}")];
    let count = |name: &str| seen[&format!("{name}{{model=double}} count")];
    assert_eq!((of("lanes_turns_total"), stats.turns), (3.0, 3));
    assert_eq!((of("lanes_seats_total"), stats.seats), (5.0, 5));
    assert_eq!((of("lanes_padded_seats_total"), stats.padded_seats), (1.0, 1), "three seats launch four");
    assert_eq!((of("lanes_refused_seats_total"), stats.refused_seats), (1.0, 1));
    assert_eq!((of("lanes_failed_seats_total"), stats.failed_seats), (1.0, 1));
    assert_eq!((of("lanes_taken"), stats.lanes_taken), (3.0, 3));
    assert_eq!((of("lanes_queue_depth"), stats.queue_depth), (0.0, 0));
    assert_eq!((of("lanes_seats_per_turn"), count("lanes_seats_per_turn")), (5.0, 3.0));
    assert_eq!((count("lanes_queue_wait_seconds"), count("lanes_turn_seconds")), (5.0, 3.0));
    assert!((of("lanes_turn_seconds") - stats.turn_time.as_secs_f64()).abs() < 1e-6);
    assert!((of("lanes_queue_wait_seconds") - stats.queue_wait.as_secs_f64()).abs() < 1e-6);
    assert!((stats.seats_per_turn() - 5.0 / 3.0).abs() < 1e-12);
}

#[test]
fn a_lingering_turn_waits_for_company() {
    let (builder, control) = builder();
    let runnable = builder.lanes(4).linger(Duration::from_secs(50)).build().unwrap();
    let streams: Vec<_> = (0..3).map(|_| runnable.spawn_blocking().unwrap()).collect();
    let first = streams[0].call(&x(&1));
    // A spawn is answered while the turn forms, and is one more stream that could come.
    let fourth = runnable.spawn_blocking().unwrap();
    let others: Vec<_> = streams[1..].iter().map(|stream| stream.call(&x(&1))).collect();
    assert!(control.seen().turns.is_empty());
    let last = fourth.call(&x(&1));
    // Had the full turn not ended the linger, this would take 50 seconds.
    for call in others.into_iter().chain([first, last]) {
        wait(call).unwrap();
    }
    assert_eq!(control.seen().turns, [[1; 4]]);
    let alone = LanesBuilder::new(Double::new(&control, false)).lanes(2).linger(Duration::from_millis(20));
    let alone = alone.build().unwrap();
    let (stream, _idle) = (alone.spawn_blocking().unwrap(), alone.spawn_blocking().unwrap());
    let began = std::time::Instant::now();
    stream.call_blocking(&x(&1)).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(20), "the idle stream could have come");
}

/// What the builder promises: the wait ends when no stream is left that could take a seat.
#[test]
fn a_lingering_turn_waits_for_nobody_who_has_gone() {
    let (builder, control) = builder();
    let runnable = builder.lanes(4).linger(Duration::from_secs(50)).build().unwrap();
    let (stream, idle) = (runnable.spawn_blocking().unwrap(), runnable.spawn_blocking().unwrap());
    let began = std::time::Instant::now();
    let call = stream.call(&x(&1));
    // Long enough for the worker to be asleep.
    std::thread::sleep(Duration::from_millis(100));
    assert!(control.seen().turns.is_empty());
    drop(idle);
    wait(call).unwrap();
    assert!(began.elapsed() < Duration::from_secs(25), "the linger was waited out");
}

#[test]
fn a_woken_future_is_woken_once_it_is_ready() {
    let (builder, control) = builder();
    let runnable = builder.lanes(1).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    control.hold();
    let mut call = stream.call(&x(&1));
    let counts = [Arc::new(Woken::default()), Arc::new(Woken::default())];
    for count in &counts {
        let waker = Waker::from(Arc::clone(count));
        assert!(std::pin::pin!(&mut call).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    control.let_go();
    while counts[1].count() == 0 {
        std::thread::sleep(Duration::from_micros(20));
    }
    assert_eq!(y(now(call)).unwrap(), next(INITIAL, 1));
    assert_eq!(counts.map(|count| count.count()), [0, 1], "the latest waker counts");
}
