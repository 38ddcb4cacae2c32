//! Many threads at once, joining, leaving, giving up and failing: every stream's answers are those of its own calls.

use super::super::error::StreamError;
use super::super::{LanesBuilder, Runnable, Stream};
use super::double::*;
use super::slotted::{AtBadRows, Bench, Slotted};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A small generator, so that a failing run can be repeated by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}

/// One client: a stream at a time, its state followed by hand.
fn client(runnable: &Runnable, seed: u64, calls: u64, served: &AtomicU64) {
    let mut random = Random(seed * 2 + 1);
    let mut left = calls;
    while left > 0 {
        let stream = match runnable.spawn_blocking() {
            Ok(stream) => stream,
            Err(StreamError::Full { .. }) => {
                std::thread::sleep(Duration::from_micros(20));
                continue;
            }
            Err(error) => panic!("{error:?}"),
        };
        let (mut state, mut position) = (INITIAL, 0);
        for _ in 0..random.below(30) + 1 {
            left = left.saturating_sub(1);
            one_call(&stream, &mut random, &mut state, &mut position);
            assert_eq!(stream.position(), position, "seed {seed}");
        }
        served.fetch_add(position, Ordering::Relaxed);
    }
}

fn one_call(stream: &Stream, random: &mut Random, state: &mut u64, position: &mut u64) {
    let input = random.below(1 << 40);
    let mut advance = |result: u64, input: u64| {
        *state = next(*state, input);
        *position += 1;
        assert_eq!(result, *state);
    };
    match random.below(20) {
        0 => {
            stream.reset();
            (*state, *position) = (INITIAL, 0);
        }
        1 => {
            // Given up at once: it was seated or it was not, and the next answer says which.
            drop(stream.call(&x(&input)));
            let probe = y(wait(stream.call(&x(&1)))).unwrap();
            if probe == next(next(*state, input), 1) {
                *state = next(*state, input);
                *position += 1;
            }
            *state = next(*state, 1);
            *position += 1;
            assert_eq!(probe, *state);
        }
        2 => assert!(matches!(wait(stream.call(&x(&REFUSE))), Err(StreamError::Refused { .. }))),
        3 => {
            let inputs = [input, input + 1, input + 2];
            let steps: Vec<_> = inputs.iter().map(x).collect();
            let outputs = stream.call_many_blocking(&steps).unwrap();
            outputs.into_iter().zip(inputs).for_each(|(one, input)| advance(y(Ok(one)).unwrap(), input));
        }
        4 => {
            // Two at once through clones: in the order made.
            let (first, second) = (stream.call(&x(&input)), stream.clone().call(&x(&(input + 1))));
            let second = y(wait(second)).unwrap();
            advance(y(wait(first)).unwrap(), input);
            advance(second, input + 1);
        }
        5 => {
            // One that may be seated on the row that the refused one was to write.
            let (refused, call) = (stream.call(&x(&REFUSE)), stream.call(&x(&input)));
            assert!(matches!(wait(refused), Err(StreamError::Refused { .. })));
            advance(y(wait(call)).unwrap(), input);
        }
        6..12 => {
            let mut buffer = [0; 8];
            stream.call_into_blocking(&x(&input), &mut [&mut buffer]).unwrap();
            advance(u64::from_le_bytes(buffer), input);
        }
        _ => advance(y(stream.call_blocking(&x(&input))).unwrap(), input),
    }
}

fn churn(lanes: u32, max_seats: u32, queue: usize, linger: Duration, threads: u64) {
    let (builder, control) = builder();
    let runnable = builder.lanes(lanes).max_seats(max_seats).queue(queue).linger(linger).build().unwrap();
    churn_over(&runnable, threads);
    check_turns(&runnable, &control.seen().turns);
}

fn churn_over(runnable: &Runnable, threads: u64) {
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..threads {
            let served = &served;
            scope.spawn(move || client(runnable, seed, 400, served));
        }
    });
    let stats = runnable.stats();
    assert!(stats.seats >= served.load(Ordering::Relaxed) + stats.refused_seats + stats.void_seats);
    assert_eq!((stats.lanes_taken, stats.queue_depth, stats.queue_waiting), (0, 0, 0));
    assert_eq!(stats.failed_seats, 0);
    // All lanes are back.
    let streams: Vec<_> = (0..runnable.lanes()).map(|_| runnable.spawn_blocking().unwrap()).collect();
    assert_eq!(streams.last().unwrap().lane().index(), streams.len() - 1);
}

fn check_turns(runnable: &Runnable, turns: &[Vec<u64>]) {
    assert_eq!(runnable.stats().seats, turns.iter().map(|turn| turn.len() as u64).sum());
    assert!(turns.iter().all(|turn| turn.len() <= runnable.max_seats() as usize));
}

/// Turns of several slots end late and early, some read rows that came to nothing, and clients come and go.
#[test]
fn with_turns_in_flight() {
    let cases = [(1, AtBadRows::GoesOn), (2, AtBadRows::GoesOn), (2, AtBadRows::Fails), (3, AtBadRows::Refuses)];
    for (slots, at_bad_rows) in cases {
        let bench = Bench::default();
        bench.state().at_bad_rows = at_bad_rows;
        let device = bench.run_on_a_thread(|turn| match turn % 8 {
            0..5 => {}
            5..7 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(turn % 64)),
        });
        let builder = LanesBuilder::new(Slotted::new(&bench, false)).slots(slots);
        let runnable = builder.lanes(6).max_seats(3).queue(12).build().unwrap();
        churn_over(&runnable, 8);
        check_turns(&runnable, &bench.turns());
        assert!((slots > 1) == (runnable.stats().void_seats > 0), "two calls at once, and some refused before");
        drop(runnable);
        device.join().unwrap();
    }
}

#[test]
fn more_clients_than_lanes() {
    churn(5, 3, 20, Duration::ZERO, 8);
}

#[test]
fn a_queue_shorter_than_a_turn() {
    churn(8, 8, 2, Duration::ZERO, 8);
}

#[test]
fn with_linger() {
    churn(6, 6, 64, Duration::from_micros(200), 6);
}

#[test]
fn one_or_two_who_share_the_baton() {
    churn(2, 2, 8, Duration::ZERO, 2);
}

/// Failing turns hit whoever shares them, and cost nobody a state.
#[test]
fn failing_turns_cost_nobody_a_state() {
    let runnable = builder().0.lanes(6).max_seats(4).build().unwrap();
    std::thread::scope(|scope| {
        for seed in 0..6u64 {
            let runnable = &runnable;
            scope.spawn(move || {
                let mut random = Random(seed * 2 + 1);
                let stream = runnable.spawn_blocking().unwrap();
                let mut state = INITIAL;
                for at in 0..400 {
                    let input = if random.below(40) == 0 { FAIL } else { at };
                    match y(stream.call_blocking(&x(&input))) {
                        Ok(result) => {
                            state = next(state, input);
                            assert_eq!(result, state);
                        }
                        Err(StreamError::Failed(_)) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            });
        }
    });
    let stats = runnable.stats();
    assert!(stats.failed_seats > 0);
    assert_eq!(stats.seats, 2400);
}

/// The worker dies under load: everybody is told, nobody hangs.
#[test]
fn a_death_under_load_leaves_nobody_waiting() {
    let (builder, control) = builder();
    let runnable = builder.lanes(8).max_seats(3).queue(4).build().unwrap();
    let streams: Vec<_> = (0..8).map(|_| runnable.spawn_blocking().unwrap()).collect();
    std::thread::scope(|scope| {
        for (seed, stream) in streams.into_iter().enumerate() {
            scope.spawn(move || {
                let mut at = 0;
                let error = loop {
                    at += 1;
                    let input = if seed == 3 && at == 50 { PANIC } else { at };
                    if let Err(error) = stream.call_blocking(&x(&input)) {
                        break error;
                    }
                };
                assert!(matches!(error, StreamError::Closed(_)), "{error:?}");
            });
        }
    });
    drop(runnable);
    assert!(control.seen().is_gone);
}
