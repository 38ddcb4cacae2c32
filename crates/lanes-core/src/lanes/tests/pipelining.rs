//! Several turns in flight: who sits where, what a failure takes along, and what wakes the worker.

use super::super::error::{BuildError, Closed, StreamError};
use super::super::knobs::Asked;
use super::super::queue::Sleeper;
use super::super::stream::{Call, CallMany, Spawn, Stream};
use super::super::sync::lock;
use super::super::turn::Step;
use super::super::worker::Owner;
use super::super::{LanesBuilder, Value};
use super::double::*;
use super::slotted::{AtBadRows, Bench, Slotted};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn by_hand(slots: usize, lanes: u32, max_seats: u32) -> (ByHand, Bench) {
    slotted(Asked { lanes: Some(lanes), max_seats: Some(max_seats), slots: Some(slots), ..Asked::default() }, false)
}

fn slotted(asked: Asked, shared_input: bool) -> (ByHand, Bench) {
    let bench = Bench::default();
    // With one slot the engine waits for the turn it starts, and there is nobody else to run it.
    bench.state().runs_at_once = asked.slots == Some(1);
    (ByHand::over(Slotted::new(&bench, shared_input), Control::default(), asked), bench)
}

/// Steps and runs what is in flight, until there is nothing left.
fn drain(hand: &ByHand, bench: &Bench) {
    loop {
        match hand.step() {
            Step::Ran => {}
            Step::Lingering(due) => assert_eq!(hand.step_at(due), Step::Ran),
            Step::Idle | Step::Occupied if bench.run_one() => {}
            Step::Occupied | Step::Claimed => panic!("it waits for the end of a turn, and none is in flight"),
            Step::Idle | Step::Stopped => return,
        }
    }
}

/// Steps until it has to wait.
fn settle(hand: &ByHand) -> Step {
    loop {
        match hand.step() {
            Step::Ran => {}
            other => return other,
        }
    }
}

enum Sent {
    One(u64, Option<Call>),
    /// Unanswered and given up if neither is there.
    Many {
        xs: Vec<u64>,
        call: Option<CallMany>,
        answer: Option<Result<Vec<u64>, StreamError>>,
    },
}

/// What a stream may be like: one possibility, unless a call was given up whose turn may have failed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Possible {
    state: u64,
    epoch: u64,
    commits: u64,
}

impl Possible {
    fn commit(self, x: u64, epoch: u64) -> Self {
        let is_reset = epoch > self.epoch;
        let (from, commits) = if is_reset { (INITIAL, 0) } else { (self.state, self.commits) };
        Self { state: next(from, x), epoch: epoch.max(self.epoch), commits: commits + 1 }
    }
}

struct Client {
    stream: Stream,
    epoch: u64,
    /// With the epoch each was sent at.
    sent: Vec<(u64, Sent)>,
}

impl Client {
    fn spawn(hand: &ByHand, bench: &Bench) -> Self {
        let mut spawn = Spawn::new(&hand.shared);
        loop {
            if let std::task::Poll::Ready(stream) = poll(&mut spawn) {
                return Self { stream: stream.unwrap(), epoch: 0, sent: Vec::new() };
            }
            if hand.step() != Step::Ran {
                assert!(bench.run_one(), "a spawn waits for nothing else");
            }
        }
    }

    /// Whether a call of many steps is under way: others of its stream would come between its steps.
    fn is_busy(&mut self) -> bool {
        let Some((_, Sent::Many { call, answer, .. })) = self.sent.last_mut() else { return false };
        let Some(pending) = call else { return false };
        let std::task::Poll::Ready(outputs) = poll(pending) else { return true };
        *answer = Some(outputs.map(|outputs| outputs.into_iter().map(|one| y(Ok(one)).unwrap()).collect()));
        *call = None;
        false
    }

    /// Follows the answers with a stream alone. `failed`: inputs of turns that held an order to fail; `started`: of all.
    fn check(mut self, failed: &BTreeSet<u64>, started: &BTreeSet<u64>) -> Result<(), TestCaseError> {
        prop_assert!(!self.is_busy(), "a call without an answer");
        let mut possible = vec![Possible { state: INITIAL, epoch: 0, commits: 0 }];
        for (epoch, sent) in self.sent {
            match sent {
                Sent::One(x, Some(call)) => match y(now(call)) {
                    Ok(answer) => {
                        possible = possible.into_iter().map(|one| one.commit(x, epoch)).collect();
                        possible.retain(|one| one.state == answer);
                    }
                    Err(StreamError::Failed(_)) => {
                        prop_assert!(x >= ORDERS || failed.contains(&x), "{} failed beside no order to", x);
                    }
                    Err(StreamError::Refused { .. }) => prop_assert_eq!(x, REFUSE),
                    Err(StreamError::Disagrees { .. }) => {
                        prop_assert!(x >= ORDERS || !started.contains(&x), "{} was seated, and disagrees", x);
                    }
                    Err(error) => return Err(TestCaseError::fail(format!("{x}: {error:?}"))),
                },
                // Given up when it was seated, or refused a seat: an order commits nothing.
                Sent::One(x, None) if x >= ORDERS || !started.contains(&x) => {}
                Sent::One(x, None) => {
                    let committed: Vec<_> = possible.iter().map(|one| one.commit(x, epoch)).collect();
                    if !failed.contains(&x) {
                        possible.clear();
                    }
                    possible.extend(committed);
                }
                Sent::Many { xs, answer, .. } => {
                    let mut prefixes = vec![possible];
                    for x in &xs {
                        let last = prefixes.last().unwrap();
                        prefixes.push(last.iter().map(|one| one.commit(*x, epoch)).collect());
                    }
                    possible = match answer {
                        Some(Ok(answers)) => {
                            prop_assert_eq!(answers.len(), xs.len());
                            for (prefix, answer) in prefixes[1..].iter().zip(&answers) {
                                prop_assert!(prefix.iter().any(|one| one.state == *answer));
                            }
                            let mut all = prefixes.pop().unwrap();
                            all.retain(|one| Some(&one.state) == answers.last());
                            all
                        }
                        // It ended early. Where, the next answer says.
                        Some(Err(error)) => {
                            let is_failed = matches!(error, StreamError::Failed(_));
                            let is_disagreement = matches!(error, StreamError::Disagrees { .. });
                            prop_assert!(is_disagreement || is_failed && xs.iter().any(|x| failed.contains(x)));
                            prefixes.truncate(xs.len());
                            prefixes.concat()
                        }
                        None => prefixes.concat(),
                    };
                }
            }
            prop_assert!(!possible.is_empty(), "an answer that no stream alone would give");
        }
        let position = self.stream.position();
        let is_position = |one: &Possible| position == if one.epoch == self.epoch { one.commits } else { 0 };
        prop_assert!(possible.iter().any(is_position), "position {} of {:?}", position, possible);
        Ok(())
    }
}

const LANES: u32 = 5;

#[derive(Clone, Copy, Debug)]
struct Pipeline {
    slots: usize,
    max_seats: u32,
    bound: usize,
    shared_input: bool,
    at_bad_rows: AtBadRows,
}

fn pipeline() -> impl Strategy<Value = Pipeline> {
    let at_bad_rows = prop::sample::select(vec![AtBadRows::GoesOn, AtBadRows::Refuses, AtBadRows::Fails]);
    (1usize..4, 1u32..5, 1usize..20, any::<bool>(), at_bad_rows).prop_map(
        |(slots, max_seats, bound, shared_input, at_bad_rows)| Pipeline {
            slots,
            max_seats,
            bound,
            shared_input,
            at_bad_rows,
        },
    )
}

fn check_pipeline(pipeline: Pipeline, steps: &[(u8, usize, u64)]) -> Result<(), TestCaseError> {
    let Pipeline { slots, max_seats, bound, shared_input, at_bad_rows } = pipeline;
    let asked = Asked {
        lanes: Some(LANES),
        max_seats: Some(max_seats),
        queue: Some(bound),
        slots: Some(slots),
        ..Asked::default()
    };
    let (hand, bench) = slotted(asked, shared_input);
    bench.state().at_bad_rows = at_bad_rows;
    let mut clients: Vec<_> = (0..LANES).map(|_| Client::spawn(&hand, &bench)).collect();
    let rates = [8i32, 16];
    for (at, &(kind, lane, salt)) in steps.iter().enumerate() {
        let client = &mut clients[lane];
        let fresh = at as u64 * 4;
        let rate = &rates[usize::from(salt % 5 == 0)];
        match kind {
            0..5 if !client.is_busy() => {
                let input = match salt {
                    0 => REFUSE,
                    1 => FAIL,
                    2 => BALK,
                    _ => fresh,
                };
                let values = [x(&input)[0], Value::new(&[], std::slice::from_ref(rate))];
                let call = client.stream.call(&values[..1 + usize::from(shared_input)]);
                client.sent.push((client.epoch, Sent::One(input, Some(call))));
            }
            5 => {
                let queued = || {
                    let stats = hand.shared.stats();
                    stats.queue_depth + stats.queue_waiting
                };
                let before = queued();
                let index = salt as usize % client.sent.len().max(1);
                match client.sent.get_mut(index).map(|(_, sent)| sent) {
                    Some(Sent::One(_, call @ Some(_))) => {
                        *call = None;
                        if queued() < before {
                            client.sent.remove(index);
                        }
                    }
                    Some(Sent::Many { call, .. }) => *call = None,
                    _ => {}
                }
            }
            6 => {
                client.stream.reset();
                client.epoch += 1;
            }
            7 if !client.is_busy() => {
                let xs = vec![fresh, fresh + 1, fresh + 2];
                let values: Vec<_> =
                    xs.iter().map(|x| [self::x(x)[0], Value::new(&[], std::slice::from_ref(rate))]).collect();
                let steps: Vec<_> = values.iter().map(|values| &values[..1 + usize::from(shared_input)]).collect();
                let call = client.stream.call_many(&steps);
                client.sent.push((client.epoch, Sent::Many { xs, call: Some(call), answer: None }));
            }
            8 if salt % 3 == 0 => {
                // Its seats stay where they are, and its lane goes to another stream.
                drop(clients.remove(lane));
                clients.insert(lane, Client::spawn(&hand, &bench));
            }
            8..12 => drop(hand.step()),
            _ => drop(bench.run_one()),
        }
    }
    drain(&hand, &bench);
    let turns = bench.turns();
    let has_order = |turn: &&Vec<u64>| turn.contains(&FAIL) || turn.contains(&BALK);
    let failed = turns.iter().filter(has_order).flatten().copied().collect();
    let started = turns.iter().flatten().copied().collect();
    for client in clients {
        client.check(&failed, &started)?;
    }
    let stats = hand.shared.stats();
    prop_assert_eq!(stats.seats as usize, turns.iter().map(Vec::len).sum::<usize>());
    prop_assert!(slots > 1 || stats.void_seats == 0);
    prop_assert!(turns.iter().all(|turn| turn.len() <= max_seats as usize));
    prop_assert_eq!((stats.queue_depth, stats.queue_waiting, stats.lanes_taken), (0, 0, 0));
    let _fresh: Vec<_> = (0..LANES).map(|_| Client::spawn(&hand, &bench)).collect();
    prop_assert_eq!(hand.rows_held(), 0);
    Ok(())
}

proptest! {
    /// Answers, positions and rows against each stream alone, whatever is in flight when calls come, are given up, fail,
    /// are refused or disagree, when streams are reset, and when they are dropped and others take their lanes.
    #[test]
    fn answers_are_those_of_a_stream_alone(
        pipeline in pipeline(),
        steps in prop::collection::vec((0u8..15, 0usize..LANES as usize, 0u64..40), 0..150),
    ) {
        check_pipeline(pipeline, &steps)?;
    }
}

/// `call`s of one stream and another, seated two turns one after the other.
#[test]
fn a_lane_sits_in_two_turns_at_once_and_both_answers_are_right() {
    let (hand, bench) = by_hand(2, 2, 2);
    let stream = hand.spawn().unwrap();
    let (mut first, mut second) = (stream.call(&x(&1)), stream.call(&x(&2)));
    assert_eq!(settle(&hand), Step::Occupied);
    assert_eq!((bench.turns(), bench.in_flight()), (vec![vec![1], vec![2]], 2), "the second was stacked meanwhile");
    let mut third = stream.call(&x(&3));
    assert_eq!(hand.step(), Step::Occupied, "two slots, two turns");
    assert!(poll(&mut first).is_pending());
    assert_eq!(stream.position(), 0, "a lane moves when its turn has ended");
    bench.run_one();
    assert_eq!(hand.step(), Step::Ran);
    assert_eq!((y(now(first)).unwrap(), stream.position()), (alone(&[1])[0], 1), "answered before its slot is used");
    assert_eq!(bench.turns().len(), 2);
    assert!(poll(&mut second).is_pending());
    assert_eq!(settle(&hand), Step::Occupied);
    assert_eq!(bench.turns().len(), 3);
    bench.run_one();
    bench.run_one();
    assert_eq!(settle(&hand), Step::Idle);
    assert_eq!([y(now(second)).unwrap(), y(now(&mut third)).unwrap()], alone(&[1, 2, 3])[1..]);
    assert_eq!((stream.position(), hand.rows_held(), hand.shared.stats().void_seats), (3, 1, 0));
}

/// Two turns in flight: `first` of `a`, then 2 of `a` and 3 of `b`. Gives what `a` and `b` are told.
fn second_of_two(first: u64, at_bad_rows: AtBadRows) -> [Result<u64, StreamError>; 3] {
    let (hand, bench) = by_hand(3, 2, 2);
    bench.state().at_bad_rows = at_bad_rows;
    let fails = at_bad_rows == AtBadRows::Fails;
    let (a, b) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    let before = a.call(&x(&1));
    drain(&hand, &bench);
    assert_eq!(y(now(before)).unwrap(), alone(&[1])[0]);
    let first_call = a.call(&x(&first));
    hand.step();
    let (mut second, mut third) = (a.call(&x(&2)), b.call(&x(&3)));
    hand.step();
    assert_eq!(bench.turns()[1..], [vec![first], vec![2, 3]]);
    bench.run_one();
    assert_eq!(hand.step(), Step::Ran);
    // There is a slot, and a call; but one of an earlier call of the stream is still in flight for nothing.
    let mut fourth = a.call(&x(&4));
    assert_eq!(hand.step(), Step::Occupied);
    bench.run_one();
    assert_eq!(hand.step(), Step::Ran);
    assert!(poll(&mut second).is_pending(), "what it read was not the stream's state");
    assert_eq!(poll(&mut third).is_ready(), !fails, "the other seat of its turn stands, unless the turn failed");
    assert_eq!(a.position(), 1);
    let (mut third_again, answered) = (None, !fails);
    if !answered {
        third_again = Some(third);
    } else {
        drop(third);
    }
    assert_eq!(hand.step(), Step::Ran);
    let again = if answered { vec![2] } else { vec![2, 3] };
    assert_eq!(bench.turns().pop(), Some(again), "the call that lost its seat comes before the queue");
    drain(&hand, &bench);
    assert_eq!(y(now(&mut fourth)).unwrap(), alone(&[1, 2, 4])[2]);
    let stats = hand.shared.stats();
    assert_eq!((stats.void_seats, hand.rows_held()), (if answered { 1 } else { 2 }, 2));
    assert_eq!((a.position(), b.position()), (3, 1));
    [y(now(first_call)), y(now(second)), third_again.map_or(Ok(next(INITIAL, 3)), |third| y(now(third)))]
}

#[test]
fn a_failed_turn_forms_later_ones_of_its_lanes_again() {
    let [first, second, third] = second_of_two(FAIL, AtBadRows::GoesOn);
    assert!(matches!(first, Err(StreamError::Failed(_))), "{first:?}");
    assert_eq!([second.unwrap(), third.unwrap()], [alone(&[1, 2])[1], next(INITIAL, 3)]);
}

#[test]
fn a_turn_that_does_not_start_fails_in_its_order() {
    let (hand, bench) = by_hand(3, 2, 1);
    let (a, b) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    let mut calls = [(&b, 1), (&a, BALK), (&a, 2)].map(|(stream, input)| stream.call(&x(&input)));
    assert_eq!(settle(&hand), Step::Occupied);
    assert_eq!((bench.turns().len(), bench.in_flight()), (3, 2));
    assert!(calls.iter_mut().all(|call| poll(call).is_pending()), "it comes after the turn before");
    drain(&hand, &bench);
    let [first, failed, second] = calls.map(|call| y(now(call)));
    assert!(matches!(failed, Err(StreamError::Failed(_))), "{failed:?}");
    assert_eq!([first.unwrap(), second.unwrap()], [next(INITIAL, 1), next(INITIAL, 2)]);
    assert_eq!((bench.turns().pop(), hand.shared.stats().void_seats), (Some(vec![2]), 1));
}

#[test]
fn a_refused_seat_forms_later_ones_of_its_lane_again() {
    let [first, second, third] = second_of_two(REFUSE, AtBadRows::GoesOn);
    assert!(matches!(first, Err(StreamError::Refused { .. })), "{first:?}");
    assert_eq!([second.unwrap(), third.unwrap()], [alone(&[1, 2])[1], next(INITIAL, 3)]);
}

#[test]
fn a_void_seat_is_not_refused() {
    for order in [FAIL, REFUSE] {
        let [first, second, third] = second_of_two(order, AtBadRows::Refuses);
        assert!(first.is_err());
        assert_eq!([second.unwrap(), third.unwrap()], [alone(&[1, 2])[1], next(INITIAL, 3)]);
    }
}

#[test]
fn a_turn_that_fails_for_a_void_seat_costs_nobody_an_answer() {
    for order in [FAIL, REFUSE] {
        let [first, second, third] = second_of_two(order, AtBadRows::Fails);
        assert!(first.is_err());
        assert_eq!([second.unwrap(), third.unwrap()], [alone(&[1, 2])[1], next(INITIAL, 3)]);
    }
}

#[test]
fn a_reset_seat_stands_when_the_turn_before_it_fails() {
    let (hand, bench) = by_hand(3, 1, 1);
    let stream = hand.spawn().unwrap();
    let failed = stream.call(&x(&FAIL));
    stream.reset();
    let (reset, after) = (stream.call(&x(&5)), stream.call(&x(&6)));
    settle(&hand);
    assert_eq!(bench.in_flight(), 3);
    drain(&hand, &bench);
    assert!(matches!(y(now(failed)), Err(StreamError::Failed(_))));
    assert_eq!([y(now(reset)).unwrap(), y(now(after)).unwrap()], alone(&[5, 6])[..]);
    assert_eq!((bench.turns().len(), hand.shared.stats().void_seats, stream.position()), (3, 0, 2));
}

/// The call before the reset is to be seated again, so the one after it must not come first.
#[test]
fn a_streams_calls_stay_in_order_when_one_loses_its_seat() {
    let (hand, bench) = by_hand(3, 1, 1);
    let stream = hand.spawn().unwrap();
    let (failed, before) = (stream.call(&x(&FAIL)), stream.call(&x(&4)));
    stream.reset();
    let after = stream.call(&x(&5));
    settle(&hand);
    assert_eq!(bench.in_flight(), 3);
    drain(&hand, &bench);
    assert!(y(now(failed)).is_err());
    assert_eq!((y(now(before)).unwrap(), y(now(after)).unwrap()), (next(INITIAL, 4), next(INITIAL, 5)));
    assert_eq!(bench.turns(), [[FAIL], [4], [5], [4], [5]]);
    let last = stream.call(&x(&6));
    drain(&hand, &bench);
    assert_eq!((y(now(last)).unwrap(), stream.position()), (alone(&[5, 6])[1], 2));
}

#[test]
fn a_call_whose_seat_was_void_commits_though_its_future_is_dropped() {
    let (hand, bench) = by_hand(2, 1, 1);
    let stream = hand.spawn().unwrap();
    let (failed, second) = (stream.call(&x(&FAIL)), stream.call(&x(&2)));
    settle(&hand);
    bench.run_one();
    bench.run_one();
    // Both have ended, and the second is not seated again yet.
    assert_eq!((hand.step(), hand.step()), (Step::Ran, Step::Ran));
    assert_eq!(bench.turns().len(), 2);
    drop((failed, second));
    drain(&hand, &bench);
    assert_eq!((bench.turns().pop(), stream.position()), (Some(vec![2]), 1));
}

#[test]
fn a_lane_released_in_flight_keeps_its_rows_until_its_turns_have_ended() {
    let (hand, bench) = by_hand(2, 1, 1);
    let stream = hand.spawn().unwrap();
    let first = stream.call(&x(&1));
    drain(&hand, &bench);
    now(first).unwrap();
    assert_eq!(hand.rows_held(), 1);
    let seated = stream.call(&x(&2));
    settle(&hand);
    drop((stream, seated));
    let successor = hand.spawn().unwrap();
    assert_eq!(successor.lane().index(), 0);
    assert_eq!(hand.rows_held(), 2, "the row read and the row written");
    // It is seated at once, and reads no row of its predecessor; nor is it moved by what that one's turn comes to.
    let call = successor.call(&x(&9));
    settle(&hand);
    assert_eq!((bench.in_flight(), hand.rows_held()), (2, 3));
    bench.run_one();
    hand.step();
    assert_eq!((hand.rows_held(), successor.position()), (1, 0));
    let again = successor.call(&x(&10));
    drain(&hand, &bench);
    assert_eq!([y(now(call)).unwrap(), y(now(again)).unwrap()], alone(&[9, 10])[..]);
    assert_eq!(hand.rows_held(), 1);
}

#[test]
fn a_restore_waits_for_the_turns_in_flight() {
    for closes in [false, true] {
        let (hand, bench) = by_hand(2, 2, 1);
        let (gone, stream) = (hand.spawn().unwrap(), hand.spawn().unwrap());
        let (before, first) = (gone.call(&x(&5)), stream.call(&x(&1)));
        drain(&hand, &bench);
        (now(before).unwrap(), now(first).unwrap());
        let snapshot = stream.snapshot();
        drain(&hand, &bench);
        let snapshot = now(snapshot).unwrap();
        let (seated, second) = (gone.call(&x(&6)), stream.call(&x(&2)));
        assert_eq!((settle(&hand), hand.rows_held()), (Step::Occupied, 4), "all rows are in use");
        drop((gone, seated));
        let mut restore = Spawn::restore(&hand.shared, &snapshot);
        let third = stream.call(&x(&3));
        bench.run_one();
        assert_eq!((settle(&hand), bench.turns().len()), (Step::Occupied, 4), "no turn keeps it waiting longer");
        assert!(poll(&mut restore).is_pending());
        if closes {
            let told = lock(&hand.shared.queue).close(Arc::new(Closed::Dropped));
            assert_eq!(hand.step(), Step::Ran);
            assert!(matches!(now(restore), Err(StreamError::Closed(cause)) if matches!(*cause, Closed::Dropped)));
            drop((told, third));
            drain(&hand, &bench);
            assert_eq!(y(now(second)).unwrap(), alone(&[1, 2])[1]);
            continue;
        }
        drain(&hand, &bench);
        let restored = now(restore).unwrap();
        assert_eq!((restored.lane().index(), restored.position()), (0, 1));
        let calls = [restored.call(&x(&9)), second, third];
        drain(&hand, &bench);
        assert_eq!(
            calls.map(|call| y(now(call)).unwrap())[..],
            [alone(&[1, 9])[1], alone(&[1, 2])[1], alone(&[1, 2, 3])[2]]
        );
        drop((restored, stream));
        drop((Client::spawn(&hand, &bench), Client::spawn(&hand, &bench)));
        assert_eq!(hand.rows_held(), 0);
    }
}

/// What every call in `calls` was told.
fn cause(calls: Vec<Call>) -> Arc<Closed> {
    let causes: Vec<_> = calls
        .into_iter()
        .map(|call| match y(now(call)) {
            Err(StreamError::Closed(cause)) => cause,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(causes.iter().all(|cause| Arc::ptr_eq(cause, &causes[0])), "one failure, one cause");
    Arc::clone(&causes[0])
}

#[test]
fn a_lost_device_fails_all_that_is_pending_with_one_cause() {
    let (hand, bench) = by_hand(3, 3, 1);
    let streams: Vec<_> = (0..3).map(|_| hand.spawn().unwrap()).collect();
    // One has lost its seat, one is lost, one is in flight behind it, and one is queued.
    let failed = streams[0].call(&x(&FAIL));
    let mut calls = vec![streams[0].call(&x(&2)), streams[1].call(&x(&LOSE))];
    settle(&hand);
    bench.run_one();
    bench.run_one();
    assert_eq!((hand.step(), hand.step()), (Step::Ran, Step::Ran));
    assert!(y(now(failed)).is_err());
    calls.extend([streams[2].call(&x(&4)), streams[2].call(&x(&5)), streams[1].call(&x(&6))]);
    settle(&hand);
    assert_eq!(bench.in_flight(), 3);
    bench.run_one();
    assert_eq!(hand.step(), Step::Ran);
    let spawn = Spawn::new(&hand.shared);
    assert!(matches!(&*cause(calls), Closed::Lost(device) if device.to_string() == "device lost: unplugged"));
    assert!(now(spawn).is_err());
    assert_eq!(hand.step(), Step::Stopped);
    assert!(bench.state().is_gone);
    assert_eq!(hand.rows_held(), 0);
}

#[test]
fn a_panic_fails_what_is_in_flight_too() {
    let (hand, bench) = by_hand(2, 2, 1);
    let (first, second) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    let calls = vec![first.call(&x(&1)), second.call(&x(&PANIC)), first.call(&x(&3))];
    hand.step();
    assert_eq!(hand.step(), Step::Ran);
    assert!(matches!(&*cause(calls), Closed::Panicked(text) if text == "told to panic"));
    assert_eq!((hand.step(), hand.rows_held()), (Step::Stopped, 0));
    assert!(bench.state().is_gone);
}

#[test]
fn calls_of_many_steps_wait_for_the_step_before() {
    let (hand, bench) = by_hand(2, 2, 1);
    let (first, second) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    let xs = [1u64, 2, 3];
    let steps: Vec<_> = xs.iter().map(x).collect();
    let (many, other) = (first.call_many(&steps), second.call(&x(&9)));
    settle(&hand);
    assert_eq!(bench.in_flight(), 2);
    drain(&hand, &bench);
    assert_eq!(bench.turns(), [[1], [9], [2], [3]]);
    let outputs: Vec<_> = now(many).unwrap().into_iter().map(|one| y(Ok(one)).unwrap()).collect();
    assert_eq!((outputs, y(now(other)).unwrap()), (alone(&xs), next(INITIAL, 9)));
}

#[test]
fn a_caller_with_a_turn_in_flight_is_not_alone() {
    let (hand, bench) = by_hand(2, 2, 2);
    let (stream, gone) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    let seated = gone.call(&x(&1));
    settle(&hand);
    drop((gone, seated));
    let job = hand.shared.run_alone(stream.job(&x(&2)).unwrap()).err().expect("a turn of a stream that is gone");
    bench.run_one();
    assert_eq!(settle(&hand), Step::Idle);
    bench.state().runs_at_once = true;
    let mut job = hand.shared.run_alone(job).ok().expect("nobody else is there");
    assert!(std::mem::replace(&mut job.result, Ok(())).is_ok());
    assert_eq!((bench.turns(), stream.position()), (vec![vec![1], vec![2]], 1));
}

#[test]
fn linger_holds_a_turn_while_another_is_in_flight() {
    let linger = Some(Duration::from_secs(50));
    let asked = Asked { lanes: Some(4), max_seats: Some(2), slots: Some(2), linger, ..Asked::default() };
    let (hand, bench) = slotted(asked, false);
    let streams: Vec<_> = (0..3).map(|_| hand.spawn().unwrap()).collect();
    let calls: Vec<_> = streams.iter().map(|stream| stream.call(&x(&1))).collect();
    assert_eq!(hand.step(), Step::Ran);
    let last = streams[0].call(&x(&2));
    drop(last);
    // The full turn left it over: it has waited enough.
    assert_eq!(hand.step(), Step::Ran);
    assert_eq!(bench.turns(), [vec![1, 1], vec![1]]);
    drain(&hand, &bench);
    calls.into_iter().for_each(|call| drop(now(call).unwrap()));
    let (full, lone) = ([streams[0].call(&x(&2)), streams[1].call(&x(&2))], streams[2].call(&x(&2)));
    assert_eq!(hand.step(), Step::Ran);
    assert_eq!(hand.step(), Step::Ran, "left over again");
    drain(&hand, &bench);
    drop((full, lone));
    let first = [streams[0].call(&x(&3)), streams[1].call(&x(&3))];
    assert_eq!(hand.step(), Step::Ran);
    let late = streams[2].call(&x(&3));
    let Step::Lingering(due) = hand.step() else { panic!("another stream could come") };
    // A turn that ends meanwhile is handed out, and the linger goes on.
    bench.run_one();
    assert_eq!((hand.step(), hand.step()), (Step::Ran, Step::Lingering(due)));
    first.into_iter().for_each(|call| drop(now(call).unwrap()));
    assert_eq!(hand.step_at(due), Step::Ran);
    drain(&hand, &bench);
    assert_eq!(y(now(late)).unwrap(), alone(&[1, 2, 3])[2]);
}

#[test]
fn calls_that_lost_their_seat_disagree_with_nobody() {
    let asked = Asked { lanes: Some(2), max_seats: Some(2), slots: Some(3), ..Asked::default() };
    let (hand, bench) = slotted(asked, true);
    let (a, b) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    let call = |stream: &Stream, input: u64, rate: i32| {
        let call = stream.call(&x_at(&input, &rate));
        hand.step();
        call
    };
    let failed = [a.call(&x_at(&FAIL, &8)), call(&b, 1, 8)];
    // Each in a turn of its own, as they disagree.
    let calls = [call(&a, 2, 8), call(&b, 3, 16)];
    assert_eq!(bench.turns(), [vec![FAIL, 1], vec![2], vec![3]]);
    // It would agree with the first that is seated again, and comes after one that does not.
    let last = b.call(&x_at(&4, &8));
    for _ in 0..3 {
        bench.run_one();
        hand.step();
    }
    drain(&hand, &bench);
    assert_eq!(y(now(last)).unwrap(), alone(&[3, 4])[1]);
    assert!(failed.into_iter().all(|call| matches!(now(call), Err(StreamError::Failed(_)))));
    assert_eq!(calls.map(|call| y(now(call)).unwrap()), [next(INITIAL, 2), next(INITIAL, 3)]);
    assert_eq!(bench.turns()[3..], [vec![2], vec![3], vec![4]]);
}

/// A worker over a held bench, the streams of it, and what it shares.
fn worker(slots: usize, lanes: u32, max_seats: u32) -> (ByHand, Bench, Owner, Vec<Stream>) {
    let (hand, bench) = by_hand(slots, lanes, max_seats);
    bench.hold();
    bench.run_on_a_thread(|_| {});
    let owner = Owner::start(Arc::clone(&hand.shared)).unwrap();
    let streams = (0..lanes).map(|_| Spawn::new(&hand.shared).wait().unwrap()).collect();
    (hand, bench, owner, streams)
}

fn wait_until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not come");
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn the_worker_sleeps_until_a_call_or_an_end_comes() {
    let (hand, bench, _owner, mut streams) = worker(2, 3, 1);
    let sleeps = |sleeper: Sleeper| wait_until(|| lock(&hand.shared.queue).sleeper == sleeper);
    let first = streams[0].call(&x(&1));
    bench.wait_for_turns(1);
    sleeps(Sleeper::Idle);
    // A call wakes it while a turn is in flight,
    let second = streams[0].call(&x(&2));
    bench.wait_for_turns(2);
    sleeps(Sleeper::Occupied);
    // one more does not, as there is no slot for it,
    let third = streams[1].call(&x(&3));
    assert!(lock(&hand.shared.queue).sleeper == Sleeper::Occupied);
    // a spawn does,
    drop(streams.pop());
    let fresh = wait(Spawn::new(&hand.shared)).unwrap();
    assert_eq!((fresh.lane().index(), bench.turns().len()), (2, 2));
    sleeps(Sleeper::Occupied);
    // and so does an end.
    bench.let_go();
    assert_eq!([y(wait(first)).unwrap(), y(wait(second)).unwrap()], alone(&[1, 2])[..]);
    assert_eq!(y(wait(third)).unwrap(), next(INITIAL, 3));
}

#[test]
fn dropping_the_runnable_commits_what_is_in_flight() {
    let (_hand, bench, owner, streams) = worker(2, 2, 1);
    // One of them loses its seat on the way.
    let calls = [streams[0].call(&x(&FAIL)), streams[0].call(&x(&2))];
    bench.wait_for_turns(2);
    let queued = streams[1].call(&x(&3));
    std::thread::scope(|scope| {
        let dropper = scope.spawn(|| drop(owner));
        // It is told before the turns in flight are over.
        assert!(matches!(wait(queued), Err(StreamError::Closed(cause)) if matches!(*cause, Closed::Dropped)));
        bench.let_go();
        dropper.join().unwrap();
    });
    assert!(bench.state().is_gone, "joined, and the model dropped");
    let [failed, second] = calls.map(|call| y(now(call)));
    assert!(matches!(failed, Err(StreamError::Failed(_))), "{failed:?}");
    assert_eq!((second.unwrap(), streams[0].position()), (next(INITIAL, 2), 1), "a seated call commits");
}

#[test]
fn a_slow_reader_holds_no_turn() {
    let (_hand, bench, _owner, streams) = worker(2, 2, 1);
    bench.let_go();
    let unread: Vec<_> = (0..8).map(|at| streams[0].call(&x(&at))).collect();
    let kept = wait(streams[0].call(&x(&8))).unwrap();
    for at in 0..20 {
        wait(streams[1].call(&x(&at))).unwrap();
    }
    let read: Vec<_> = unread.into_iter().map(|call| y(now(call)).unwrap()).collect();
    assert_eq!(
        (read.as_slice(), y(Ok(kept)).unwrap()),
        (&alone(&[0, 1, 2, 3, 4, 5, 6, 7, 8])[..8], alone(&(0..9).collect::<Vec<_>>())[8])
    );
}

#[test]
fn more_slots_than_the_model_has_are_refused() {
    let error = LanesBuilder::new(Double::new(&Control::default(), false)).slots(2).build().unwrap_err();
    assert!(matches!(error, BuildError::Slots { found: 2, most: 1, .. }));
    assert_eq!(error.to_string(), "2 slots were asked for, and model double has at most 1");
    let error = LanesBuilder::new(Slotted::new(&Bench::default(), false)).slots(4).build().unwrap_err();
    assert_eq!(error.to_string(), "4 slots were asked for, and model double has at most 3");
    let bench = Bench::default();
    let runnable = LanesBuilder::new(Slotted::new(&bench, false)).slots(3).lanes(5).max_seats(2).build().unwrap();
    assert_eq!((runnable.slots(), bench.rows()), (3, 5 + 3 * 2 + 1));
}
