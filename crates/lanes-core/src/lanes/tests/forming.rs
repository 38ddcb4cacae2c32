//! Which calls share a turn, and what a turn does to the lanes. Driven by hand: no thread, no clock.

use super::super::error::{Closed, StreamError};
use super::super::knobs::Asked;
use super::super::stream::{Call, Spawn, Stream};
use super::super::sync::lock;
use super::super::turn::Step;
use super::double::*;
use crate::device::DeviceError;
use proptest::prelude::*;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

fn by_hand(lanes: u32, max_seats: u32) -> ByHand {
    ByHand::new(Asked { lanes: Some(lanes), max_seats: Some(max_seats), ..Asked::default() }, false)
}

fn lingering(lanes: u32, max_seats: u32) -> ByHand {
    // Time is what the test says it is: no test takes this long.
    let linger = Some(Duration::from_secs(50));
    ByHand::new(Asked { lanes: Some(lanes), max_seats: Some(max_seats), linger, ..Asked::default() }, false)
}

/// What a turn seats, in the plainest words: from the head, one a lane, at most `max_seats`.
fn plain_turn(queue: &mut Vec<(usize, u64)>, max_seats: usize) -> Vec<(usize, u64)> {
    let mut seats = Vec::<(usize, u64)>::new();
    let mut at = 0;
    while at < queue.len() && seats.len() < max_seats {
        if seats.iter().any(|(lane, _)| *lane == queue[at].0) {
            at += 1;
        } else {
            seats.push(queue.remove(at));
        }
    }
    seats
}

proptest! {
    /// Turns, answers, positions and rows against the plain queue and each stream's own sequential run. Calls are
    /// dropped at random before they are seated; some refuse, some fail their turn.
    #[test]
    fn turns_are_those_of_the_plain_queue(
        max_seats in 1u32..5,
        bound in 1usize..20,
        steps in prop::collection::vec((0usize..8, 0usize..5, 0u64..40), 0..120),
    ) {
        let asked = Asked { lanes: Some(5), max_seats: Some(max_seats), queue: Some(bound), ..Asked::default() };
        let hand = ByHand::new(asked, false);
        let streams: Vec<Stream> = (0..5).map(|_| hand.spawn().unwrap()).collect();
        let mut states = [INITIAL; 5];
        let mut commits = [0u64; 5];
        let mut queue = Vec::<(usize, u64)>::new();
        let mut waiting = Vec::<(usize, u64)>::new();
        let mut calls = Vec::<(usize, u64, Call)>::new();
        let mut turns = 0;
        for (at, (kind, lane, salt)) in steps.into_iter().enumerate() {
            match kind {
                0..4 => {
                    let input = match salt { 0 => REFUSE, 1 => FAIL, _ => at as u64 };
                    calls.push((lane, input, streams[lane].call(&x(&input))));
                    if queue.len() < bound && waiting.is_empty() { queue.push((lane, input)) } else { waiting.push((lane, input)) }
                }
                4 if !calls.is_empty() => {
                    let index = salt as usize % calls.len();
                    let (lane, input) = (calls[index].0, calls[index].1);
                    if input >= ORDERS {
                        // Orders are given more than once: which of them is dropped would be a guess.
                        continue;
                    }
                    drop(calls.remove(index));
                    queue.retain(|other| *other != (lane, input));
                    waiting.retain(|other| *other != (lane, input));
                    while queue.len() < bound && !waiting.is_empty() { queue.push(waiting.remove(0)) }
                }
                _ => {
                    let seats = plain_turn(&mut queue, max_seats as usize);
                    while queue.len() < bound && !waiting.is_empty() { queue.push(waiting.remove(0)) }
                    prop_assert_eq!(hand.step() == Step::Ran, !seats.is_empty());
                    if seats.is_empty() { continue }
                    turns += 1;
                    let inputs: Vec<u64> = seats.iter().map(|(_, input)| *input).collect();
                    prop_assert_eq!(hand.turns().pop(), Some(inputs.clone()));
                    let fails = inputs.contains(&FAIL);
                    for (lane, input) in seats {
                        let at = calls.iter().position(|(l, i, _)| (*l, *i) == (lane, input)).unwrap();
                        let result = y(now(calls.remove(at).2));
                        match (fails, input) {
                            (true, _) => {
                                let is_failed = matches!(result, Err(StreamError::Failed(_)));
                                prop_assert!(is_failed);
                            }
                            (false, REFUSE) => {
                                let is_refused = matches!(result, Err(StreamError::Refused { .. }));
                                prop_assert!(is_refused);
                            }
                            (false, _) => {
                                states[lane] = next(states[lane], input);
                                commits[lane] += 1;
                                prop_assert_eq!(result.unwrap(), states[lane]);
                            }
                        }
                    }
                }
            }
            let stats = hand.shared.stats();
            prop_assert_eq!((stats.queue_depth, stats.queue_waiting), (queue.len(), waiting.len()));
            prop_assert_eq!(stats.turns, turns);
            prop_assert_eq!(hand.rows_held(), commits.iter().filter(|commits| **commits > 0).count());
            for (stream, commits) in streams.iter().zip(commits) {
                prop_assert_eq!(stream.position(), commits);
            }
        }
    }
}

#[test]
fn linger_runs_from_the_oldest_seat_and_ends_when_the_turn_is_full() {
    let hand = lingering(8, 3);
    let streams: Vec<_> = (0..4).map(|_| hand.spawn().unwrap()).collect();
    let calls: Vec<_> = streams[..2].iter().map(|stream| stream.call(&x(&1))).collect();
    let Step::Lingering(due) = hand.step() else { panic!("nothing to wait for?") };
    let left = due.saturating_duration_since(Instant::now());
    assert!(left <= Duration::from_secs(50), "the oldest seat has waited already, {left:?} are left");
    // A later call, even of a seated stream, does not move the end.
    let again = streams[0].call(&x(&2));
    assert_eq!(hand.step_at(due - Duration::from_nanos(1)), Step::Lingering(due));
    assert!(hand.turns().is_empty());
    let third = streams[2].call(&x(&1));
    assert_eq!(hand.step_at(due - Duration::from_nanos(1)), Step::Ran, "three seats are a full turn");
    assert_eq!(hand.turns(), [[1, 1, 1]]);
    for call in calls.into_iter().chain([third]) {
        assert_eq!(y(now(call)).unwrap(), next(INITIAL, 1));
    }
    // The full turn left this one over: it has waited enough.
    assert_eq!(hand.step_at(due - Duration::from_nanos(1)), Step::Ran);
    assert_eq!(y(now(again)).unwrap(), alone(&[1, 2])[1]);
    // One that came after that turn lingers again, and no longer than it should.
    let last = streams[0].call(&x(&3));
    let Step::Lingering(due) = hand.step() else { panic!("not left over") };
    assert_eq!(hand.step_at(due), Step::Ran);
    assert_eq!(y(now(last)).unwrap(), alone(&[1, 2, 3])[2]);
}

#[test]
fn linger_ends_when_no_other_stream_could_come() {
    let hand = lingering(8, 8);
    let streams: Vec<_> = (0..2).map(|_| hand.spawn().unwrap()).collect();
    let _first = streams[0].call(&x(&1));
    assert!(matches!(hand.step(), Step::Lingering(_)));
    let _second = streams[1].call(&x(&1));
    assert_eq!(hand.step(), Step::Ran);
    assert_eq!(hand.turns(), [[1, 1]]);
}

#[test]
fn linger_delays_neither_spawns_nor_releases() {
    let hand = lingering(3, 3);
    let (first, second) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    let _call = first.call(&x(&1));
    let Step::Lingering(due) = hand.step() else { panic!("another stream could come") };
    let third = Spawn::new(&hand.shared);
    assert_eq!(hand.step(), Step::Ran);
    assert_eq!(now(third).unwrap().lane().index(), 2);
    drop(second);
    let fourth = Spawn::new(&hand.shared);
    assert_eq!(hand.step(), Step::Ran);
    let fourth = now(fourth).unwrap();
    assert_eq!(fourth.lane().index(), 1, "the lane given back is the lowest free one");
    // The lingering worker would have been woken for it, and for nothing less.
    lock(&hand.shared.queue).sleeper = super::super::queue::Sleeper::Lingering;
    let spawn = Spawn::new(&hand.shared);
    assert!(lock(&hand.shared.queue).sleeper == super::super::queue::Sleeper::Awake);
    drop(spawn);
    assert_eq!(hand.step(), Step::Lingering(due), "and the turn still forms");
    assert!(hand.turns().is_empty());
}

#[test]
fn a_lingering_worker_is_woken_for_a_full_turn_only() {
    use super::super::queue::Sleeper;
    let hand = lingering(8, 2);
    let streams: Vec<_> = (0..3).map(|_| hand.spawn().unwrap()).collect();
    let _a = streams[0].call(&x(&1));
    lock(&hand.shared.queue).sleeper = Sleeper::Lingering;
    let _b = streams[0].call(&x(&2));
    assert!(lock(&hand.shared.queue).sleeper == Sleeper::Lingering, "the same lane fills no seat");
    let _c = streams[1].call(&x(&1));
    assert!(lock(&hand.shared.queue).sleeper == Sleeper::Awake);
}

#[test]
fn of_seats_that_disagree_only_the_later_fails() {
    let asked = Asked { lanes: Some(4), max_seats: Some(3), ..Asked::default() };
    let hand = ByHand::new(asked, true);
    let streams: Vec<_> = (0..4).map(|_| hand.spawn().unwrap()).collect();
    let call = |at: usize, rate: i32| streams[at].call(&x_at(&(at as u64), &rate));
    let calls = [call(0, 16), call(1, 8), call(2, 16), call(3, 16)];
    assert_eq!(hand.step(), Step::Ran);
    // Formed again without it: the seat it lost goes to the next in the queue.
    assert_eq!(hand.turns(), [[0, 2, 3]]);
    let [a, b, c, d] = calls.map(|call| y(now(call)));
    let refused = b.unwrap_err();
    assert!(
        matches!(&refused, StreamError::Disagrees { input, seat: 1, with_seat: 0 } if input == "rate"),
        "{refused}"
    );
    assert_eq!(refused.to_string(), "shared input rate: seat 1 disagrees with seat 0 of the same turn");
    assert_eq!([a, c, d].map(Result::unwrap), [0, 2, 3].map(|x| next(INITIAL, x)));
    assert_eq!(streams.iter().map(Stream::position).collect::<Vec<_>>(), [1, 0, 1, 1]);
    assert_eq!(hand.shared.stats().refused_seats, 1);
    // Alone it is served, with its own value.
    let alone = call(1, 8);
    assert_eq!(hand.step(), Step::Ran);
    assert_eq!(y(now(alone)).unwrap(), next(INITIAL, 1));
}

#[test]
fn a_failed_turn_leaves_every_lane_as_it_was() {
    let hand = by_hand(3, 3);
    let streams: Vec<_> = (0..3).map(|_| hand.spawn().unwrap()).collect();
    let turn = |inputs: [u64; 3]| {
        let calls: Vec<_> = streams.iter().zip(&inputs).map(|(stream, input)| stream.call(&x(input))).collect();
        assert_eq!(hand.step(), Step::Ran);
        calls.into_iter().map(|call| y(now(call))).collect::<Vec<_>>()
    };
    turn([1, 2, 3]);
    let failed = turn([4, FAIL, 6]);
    let causes: Vec<_> = failed
        .into_iter()
        .map(|result| match result {
            Err(StreamError::Failed(cause)) => cause,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(causes.iter().all(|cause| Arc::ptr_eq(cause, &causes[0])), "one failure, one cause");
    assert!(matches!(&*causes[0], DeviceError::Fault { at, .. } if at == "double"));
    assert_eq!(streams.iter().map(Stream::position).collect::<Vec<_>>(), [1, 1, 1]);
    let after: Vec<_> = turn([7, 8, 9]).into_iter().map(Result::unwrap).collect();
    assert_eq!(after, [alone(&[1, 7])[1], alone(&[2, 8])[1], alone(&[3, 9])[1]]);
    let stats = hand.shared.stats();
    assert_eq!((stats.turns, stats.seats, stats.failed_seats, stats.padded_seats), (3, 9, 3, 2));
}

#[test]
fn a_refused_seat_fails_alone_and_keeps_its_row() {
    let hand = by_hand(3, 3);
    let streams: Vec<_> = (0..3).map(|_| hand.spawn().unwrap()).collect();
    let inputs = [[1, 2, 3], [4, REFUSE, 6], [7, 8, 9]];
    let mut results = Vec::new();
    for turn in &inputs {
        let calls: Vec<_> = streams.iter().zip(turn).map(|(stream, input)| stream.call(&x(input))).collect();
        hand.step();
        results.push(calls.into_iter().map(|call| y(now(call))).collect::<Vec<_>>());
    }
    let refused = results[1][1].as_ref().unwrap_err();
    assert!(matches!(refused, StreamError::Refused { reason } if reason == "told to refuse"), "{refused}");
    let last: Vec<_> = results[2].iter().map(|result| *result.as_ref().unwrap()).collect();
    assert_eq!(last, [alone(&[1, 4, 7])[2], alone(&[2, 8])[1], alone(&[3, 6, 9])[2]]);
    assert_eq!(hand.shared.stats().refused_seats, 1);
    assert_eq!(hand.rows_held(), 3);
}

#[test]
fn a_lane_passed_on_refuses_its_earlier_holder() {
    let hand = by_hand(1, 1);
    let stream = hand.spawn().unwrap();
    let first = stream.call(&x(&1));
    hand.step();
    assert_eq!(y(now(first)).unwrap(), next(INITIAL, 1));
    let lease = stream.handle.cell.lease;
    let successor = lock(&hand.shared.engine).pass_on(lease);
    let call = stream.call(&x(&2));
    hand.step();
    let stale = now(call).unwrap_err();
    assert!(matches!(stale, StreamError::Stale { lane } if lane == lease.lane), "{stale}");
    assert_eq!(hand.turns().len(), 1, "no turn ran for it");
    // Its late release does not free the successor's lane either.
    hand.shared.releases.leased(successor);
    drop(stream);
    assert!(matches!(hand.spawn(), Err(StreamError::Full { asked: 1, free: 0, lanes: 1 })));
    hand.shared.releases.release(successor);
    assert!(hand.spawn().is_ok());
}

#[test]
fn a_reset_holds_for_later_calls_only() {
    let hand = by_hand(2, 2);
    let stream = hand.spawn().unwrap();
    let call = |input: u64| stream.call(&x(&input));
    let run = |call: Call| {
        while hand.step() == Step::Ran {}
        y(now(call))
    };
    assert_eq!(run(call(1)).unwrap(), next(INITIAL, 1));
    let before = call(2);
    stream.reset();
    assert_eq!(stream.position(), 0);
    let dropped = call(3);
    let failed = call(FAIL);
    drop(dropped);
    assert_eq!(run(before).unwrap(), alone(&[1, 2])[1], "made before the reset");
    assert!(run(failed).is_err());
    assert_eq!(stream.position(), 0);
    // The dropped and the failed call took the reset to no grave.
    assert_eq!(run(call(4)).unwrap(), next(INITIAL, 4));
    assert_eq!(run(call(5)).unwrap(), alone(&[4, 5])[1]);
    assert_eq!(stream.position(), 2);
    assert_eq!(hand.rows_held(), 1);
}

#[test]
fn a_panic_is_contained_and_closes_with_its_cause() {
    let hand = by_hand(3, 2);
    let streams: Vec<_> = (0..3).map(|_| hand.spawn().unwrap()).collect();
    let inputs = [1, PANIC, 3];
    let calls: Vec<_> = streams.iter().zip(&inputs).map(|(stream, input)| stream.call(&x(input))).collect();
    assert_eq!(hand.step(), Step::Ran);
    let spawn = Spawn::new(&hand.shared);
    let results = calls.into_iter().map(|call| now(call).unwrap_err());
    // Seated or queued or later, a call or a spawn: all are told, and all the same.
    for error in results.chain([now(streams[0].call(&x(&1))).unwrap_err(), now(spawn).unwrap_err()]) {
        let StreamError::Closed(cause) = error else { panic!("{error:?}") };
        assert!(matches!(&*cause, Closed::Panicked(text) if text.starts_with("told to panic")), "{cause}");
    }
    assert_eq!(hand.step(), Step::Stopped);
    assert!(hand.control.seen().is_gone, "the model goes with the worker");
    assert_eq!(hand.rows_held(), 0);
}

#[test]
fn a_lost_device_closes_with_its_cause() {
    let hand = by_hand(3, 1);
    let (first, second) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    let calls = [first.call(&x(&LOSE)), second.call(&x(&2))];
    assert_eq!(hand.step(), Step::Ran);
    for error in calls.map(|call| now(call).unwrap_err()).into_iter().chain([now(first.call(&x(&3))).unwrap_err()]) {
        let StreamError::Closed(cause) = error else { panic!("{error:?}") };
        let Closed::Lost(device) = &*cause else { panic!("{cause:?}") };
        assert_eq!(device.to_string(), "device lost: unplugged");
    }
    assert_eq!(hand.step(), Step::Stopped);
}

#[test]
fn calls_of_many_steps_take_a_seat_a_turn_and_yield_to_others() {
    let hand = by_hand(2, 1);
    let (first, second) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    let xs = [1u64, 2, 3];
    let steps: Vec<_> = xs.iter().map(x).collect();
    let many = first.call_many(&steps);
    let other = second.call(&x(&9));
    for _ in 0..4 {
        assert_eq!(hand.step(), Step::Ran);
    }
    assert_eq!(hand.step(), Step::Idle);
    assert_eq!(hand.turns(), [[1], [9], [2], [3]]);
    let outputs: Vec<_> = now(many).unwrap().into_iter().map(|one| y(Ok(one)).unwrap()).collect();
    assert_eq!(outputs, alone(&xs));
    assert_eq!(y(now(other)).unwrap(), next(INITIAL, 9));
    assert_eq!(first.position(), 3);
    let mut none = first.call_many::<[super::super::Value<'_>; 1]>(&[]);
    let mut poll = || Pin::new(&mut none).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(poll(), Poll::Ready(Ok(outputs)) if outputs.is_empty()));
    // As every future here once it has answered.
    assert!(poll().is_pending());
    // A failing step ends it: what came before has committed, what comes after is not run.
    let xs = [4u64, REFUSE, 5];
    let steps: Vec<_> = xs.iter().map(x).collect();
    let many = first.call_many(&steps);
    while hand.step() == Step::Ran {}
    assert!(matches!(now(many), Err(StreamError::Refused { .. })));
    assert_eq!(first.position(), 4);
    // Dropped between two steps: it leaves the queue.
    let many = first.call_many(&steps[..1]);
    let three = [6u64, 7, 8];
    let steps: Vec<_> = three.iter().map(x).collect();
    drop(many);
    let many = first.call_many(&steps);
    assert_eq!(hand.step(), Step::Ran);
    drop(many);
    assert_eq!(hand.step(), Step::Idle);
    assert_eq!(first.position(), 5);
}

#[test]
fn a_late_release_does_not_hide_the_next_holders() {
    let hand = by_hand(1, 1);
    let stream = hand.spawn().unwrap();
    let successor = lock(&hand.shared.engine).pass_on(stream.handle.cell.lease);
    hand.shared.releases.leased(successor);
    hand.shared.releases.release(successor);
    drop(stream);
    assert!(hand.spawn().is_ok());
}

#[test]
fn a_caller_with_a_call_queued_is_not_alone() {
    let hand = by_hand(1, 1);
    let stream = hand.spawn().unwrap();
    let queued = stream.call(&x(&1));
    let job = hand.shared.run_alone(stream.job(&x(&2)).unwrap()).err().expect("it would overtake the queued call");
    assert_eq!(hand.step(), Step::Ran);
    assert_eq!(y(now(queued)).unwrap(), next(INITIAL, 1));
    assert!(hand.shared.run_alone(job).is_ok());
    assert_eq!(hand.turns(), [[1], [2]]);
}

#[test]
fn nothing_of_a_stream_is_left_behind() {
    let hand = by_hand(2, 2);
    let stream = hand.spawn().unwrap();
    let cell = Arc::downgrade(&stream.handle.cell);
    let (dropped, kept, unread) = (stream.call(&x(&1)), stream.call(&x(&2)), stream.call(&x(&3)));
    // Given up while seated: as by hand a turn cannot be held, the engine's lock stands in for it.
    let entry = lock(&hand.shared.queue).pop().unwrap();
    drop(dropped);
    lock(&hand.shared.queue).put_back(entry);
    while hand.step() == Step::Ran {}
    let outputs = now(kept).unwrap();
    drop((unread, stream));
    assert!(cell.upgrade().is_some(), "the outputs are in its memory");
    drop(outputs);
    assert!(cell.upgrade().is_none());
}

/// Makes a blocking call on a thread of its own, which finds the engine held. Returns once it has claimed the baton.
fn claim(hand: &ByHand, stream: &Stream, input: u64) -> JoinHandle<Result<u64, StreamError>> {
    let stream = stream.clone();
    let call = thread::spawn(move || y(stream.call_blocking(&x(&input))));
    let began = Instant::now();
    while !lock(&hand.shared.queue).claimed {
        assert!(began.elapsed() < Duration::from_secs(20), "it claims nothing");
        assert_eq!(hand.shared.stats().queue_depth, 0, "it was handed over");
        thread::sleep(Duration::from_micros(20));
    }
    call
}

/// The test holds the engine as a worker that is late in going to sleep would.
#[test]
fn a_caller_alone_gets_the_baton_once_a_settling_worker_lets_go() {
    let hand = by_hand(2, 2);
    let stream = hand.spawn().unwrap();
    let mut settling = lock(&hand.shared.engine);
    let first = claim(&hand, &stream, 1);
    // Who comes after the claim queues behind it, and waits for no lock.
    let second = stream.call(&x(&2));
    let spawn = Spawn::new(&hand.shared);
    assert_eq!(settling.step(&hand.shared, Instant::now()), Step::Claimed, "neither a turn nor a spawn comes before");
    drop(settling);
    assert_eq!(first.join().unwrap().unwrap(), alone(&[1, 2])[0]);
    assert_eq!(hand.shared.stats().handoffs, 0);
    assert_eq!([hand.step(), hand.step(), hand.step()], [Step::Ran, Step::Ran, Step::Idle]);
    assert_eq!(y(now(second)).unwrap(), alone(&[1, 2])[1]);
    assert_eq!(now(spawn).unwrap().lane().index(), 1);
    assert_eq!((hand.turns(), hand.shared.stats().handoffs), (vec![vec![1], vec![2]], 1));
}

#[test]
fn a_claim_is_served_before_the_end() {
    let hand = by_hand(1, 1);
    let stream = hand.spawn().unwrap();
    let mut settling = lock(&hand.shared.engine);
    let call = claim(&hand, &stream, 1);
    lock(&hand.shared.queue).close(Arc::new(Closed::Dropped));
    assert_eq!(settling.step(&hand.shared, Instant::now()), Step::Claimed, "the model is needed still");
    drop(settling);
    assert_eq!(call.join().unwrap().unwrap(), next(INITIAL, 1));
    assert_eq!(hand.step(), Step::Stopped);
    assert!(matches!(stream.call_blocking(&x(&2)), Err(StreamError::Closed(_))));
}

#[test]
fn a_spawn_dropped_on_its_way_to_a_lease_leases_nothing() {
    let hand = by_hand(1, 1);
    let spawn = Spawn::new(&hand.shared);
    // The worker has it, and has not served it yet.
    let slot = lock(&hand.shared.queue).pop_spawn().unwrap();
    drop(spawn);
    assert!(slot.deliver(|| panic!("leased for nobody")).is_none());
}
