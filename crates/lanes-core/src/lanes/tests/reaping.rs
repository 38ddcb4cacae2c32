//! One thread that drives many streams.

use super::super::error::{Closed, InputError, StreamError};
use super::double::*;
use lanes_tests::tasks::Woken;
use proptest::prelude::*;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Every call is reaped once, with its tag and its own answer, and those of a stream in order.
    #[test]
    fn every_call_is_reaped_once_in_its_streams_order(
        max_seats in 1u32..6,
        calls in prop::collection::vec((0usize..6, any::<bool>(), 0u8..20), 1..80),
    ) {
        let runnable = builder().0.lanes(6).max_seats(max_seats).queue(100).build().unwrap();
        let streams: Vec<_> = (0..6).map(|_| runnable.spawn_blocking().unwrap()).collect();
        let mut reaper = runnable.reaper();
        let mut states = [INITIAL; 6];
        let mut expected = vec![Vec::new(); 6];
        let mut reaped = vec![Vec::new(); 6];
        let keep = |reaped: &mut Vec<Vec<_>>, one: super::super::Reaped| {
            let lane = (one.tag % 8) as usize;
            reaped[lane].push((one.tag, y(one.result).ok()));
        };
        for (at, (lane, reaps, salt)) in calls.iter().enumerate() {
            let input = if *salt == 0 { REFUSE } else { at as u64 };
            let tag = (at * 8 + lane) as u64;
            reaper.submit(&streams[*lane], tag, &x(&input)).unwrap();
            if input != REFUSE {
                states[*lane] = next(states[*lane], input);
            }
            expected[*lane].push((tag, (input != REFUSE).then_some(states[*lane])));
            if *reaps && let Some(one) = reaper.try_next() {
                keep(&mut reaped, one);
            }
        }
        prop_assert_eq!(reaper.in_flight() + reaped.iter().map(Vec::len).sum::<usize>(), calls.len());
        while let Some(one) = reaper.next_blocking() {
            keep(&mut reaped, one);
        }
        prop_assert_eq!(reaped, expected);
        prop_assert_eq!(reaper.in_flight(), 0);
        prop_assert!(reaper.try_next().is_none());
        let positions: u64 = streams.iter().map(|stream| stream.position()).sum();
        prop_assert_eq!(positions, calls.iter().filter(|(_, _, salt)| *salt != 0).count() as u64);
    }
}

#[test]
fn what_is_submitted_together_shares_a_turn() {
    let (builder, control) = builder();
    let runnable = builder.lanes(3).build().unwrap();
    let streams: Vec<_> = (0..3).map(|_| runnable.spawn_blocking().unwrap()).collect();
    let mut reaper = runnable.reaper();
    for turn in 1..=3u64 {
        for (tag, stream) in streams.iter().enumerate() {
            reaper.submit(stream, tag as u64, &x(&turn)).unwrap();
        }
        for tag in 0..3 {
            assert_eq!(reaper.next_blocking().unwrap().tag, tag);
        }
    }
    assert!(reaper.next_blocking().is_none(), "nothing is in flight");
    assert_eq!(control.seen().turns, [[1; 3], [2; 3], [3; 3]]);
}

#[test]
fn a_turn_wakes_a_reaper_once() {
    let hand = ByHand::new(super::super::knobs::Asked { lanes: Some(4), ..Default::default() }, false);
    let streams: Vec<_> = (0..4).map(|_| hand.spawn().unwrap()).collect();
    let mut reaper = super::super::Reaper::new(&hand.shared);
    for (tag, stream) in streams.iter().enumerate() {
        reaper.submit(stream, tag as u64, &x(&1)).unwrap();
    }
    let counts = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&counts));
    let mut cx = Context::from_waker(&waker);
    assert!(reaper.poll_next(&mut cx).is_pending());
    hand.step();
    assert_eq!(counts.count(), 1);
    for tag in 0..4 {
        assert_eq!(now(std::pin::pin!(reaper.next_async())).unwrap().tag, tag);
    }
    assert!(now(std::pin::pin!(reaper.next_async())).is_none());
}

#[test]
fn a_dropped_reaper_takes_its_calls_along_but_not_those_seated() {
    let (builder, control) = builder();
    let runnable = builder.lanes(3).max_seats(1).build().unwrap();
    let (first, second) = (runnable.spawn_blocking().unwrap(), runnable.spawn_blocking().unwrap());
    let (mut reaper, mut other) = (runnable.reaper(), runnable.reaper());
    control.hold();
    reaper.submit(&first, 0, &x(&1)).unwrap();
    control.wait_for_turns(1);
    reaper.submit(&second, 0, &x(&2)).unwrap();
    other.submit(&second, 5, &x(&3)).unwrap();
    assert_eq!(runnable.stats().queue_depth, 2);
    drop(reaper);
    assert_eq!(runnable.stats().queue_depth, 1);
    control.let_go();
    let one = other.next_blocking().unwrap();
    assert_eq!((one.tag, y(one.result).unwrap()), (5, next(INITIAL, 3)));
    assert_eq!(first.position(), 1);
    assert_eq!(control.seen().turns, [[1], [3]]);
}

#[test]
fn a_submitted_call_holds_its_lane_until_it_is_reaped() {
    let (builder, _) = builder();
    let runnable = builder.lanes(1).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    let mut reaper = runnable.reaper();
    reaper.submit(&stream, 0, &x(&1)).unwrap();
    drop(stream);
    assert!(matches!(runnable.spawn_blocking(), Err(StreamError::Full { .. })));
    let reaped = reaper.next_blocking().unwrap();
    assert_eq!(y(reaped.result).unwrap(), next(INITIAL, 1));
    assert!(runnable.spawn_blocking().is_ok());
}

#[test]
fn refusals_of_a_submission_leave_nothing_behind() {
    let (builder, control) = builder();
    let runnable = builder.lanes(3).max_seats(3).queue(2).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    let mut reaper = runnable.reaper();
    let error = reaper.submit(&stream, 0, &[]).unwrap_err();
    assert!(matches!(error, StreamError::Invalid(InputError::Count { .. })));
    let foreign = self::builder().0.build().unwrap().spawn_blocking().unwrap();
    let error = reaper.submit(&foreign, 0, &x(&1)).unwrap_err();
    assert!(matches!(error, StreamError::Invalid(InputError::Foreign { .. })), "{error:?}");
    control.hold();
    reaper.submit(&stream, 1, &x(&1)).unwrap();
    reaper.flush();
    control.wait_for_turns(1);
    reaper.submit(&stream, 2, &x(&2)).unwrap();
    reaper.submit(&stream, 3, &x(&3)).unwrap();
    assert!(matches!(reaper.submit(&stream, 4, &x(&4)), Err(StreamError::Busy { depth: 2 })));
    control.let_go();
    let tags: Vec<_> = std::iter::from_fn(|| reaper.next_blocking()).map(|one| one.tag).collect();
    assert_eq!(tags, [1, 2, 3]);
}

#[test]
fn a_closed_runnable_answers_every_submission() {
    let (builder, _) = builder();
    let runnable = builder.lanes(4).build().unwrap();
    let streams: Vec<_> = (0..3).map(|_| runnable.spawn_blocking().unwrap()).collect();
    let mut reaper = runnable.reaper();
    reaper.submit(&streams[0], 0, &x(&PANIC)).unwrap();
    reaper.submit(&streams[1], 1, &x(&1)).unwrap();
    reaper.flush();
    let mut staged = runnable.reaper();
    let submitted = staged.submit(&streams[2], 2, &x(&1));
    let mut tags = Vec::new();
    for one in std::iter::from_fn(|| reaper.next_blocking().or_else(|| staged.next_blocking())) {
        let error = one.result.unwrap_err();
        assert!(matches!(&error, StreamError::Closed(cause) if matches!(&**cause, Closed::Panicked(_))), "{error:?}");
        tags.push(one.tag);
    }
    // The third came before the panic or after it; either way it is not lost.
    assert_eq!(tags, if submitted.is_ok() { vec![0, 1, 2] } else { vec![0, 1] });
    assert!(matches!(reaper.submit(&streams[0], 3, &x(&1)), Err(StreamError::Closed(_))));
}

#[test]
fn waiting_for_an_answer_ends_in_time() {
    let (builder, control) = builder();
    let runnable = builder.lanes(1).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    let mut reaper = runnable.reaper();
    assert!(reaper.next_before(Instant::now() + Duration::from_secs(50)).is_none(), "nothing is in flight");
    control.hold();
    reaper.submit(&stream, 3, &x(&1)).unwrap();
    let until = Instant::now() + Duration::from_millis(10);
    assert!(reaper.next_before(until).is_none());
    assert!(Instant::now() >= until);
    control.let_go();
    assert_eq!(reaper.next_before(Instant::now() + Duration::from_secs(50)).unwrap().tag, 3);
}
