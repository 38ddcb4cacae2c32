//! Forks, checkpoints, rollbacks, snapshots: in order with the calls, against the plainest model of a stream, which is
//! a number that every call changes.

use super::super::error::{Closed, StreamError};
use super::super::knobs::Asked;
use super::super::snapshot::SnapshotError;
use super::super::stream::{Call, CallMany, Operation, Spawn, Stream};
use super::super::sync::lock;
use super::super::turn::Step;
use super::super::{Checkpoint, LaneId};
use super::double::*;
use super::slotted::{Bench, Slotted};
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};
use std::task::Poll;
use std::time::Duration;

const LANES: u32 = 6;

/// What a stream asked for and was not told yet.
enum Asking {
    Call(u64, Call),
    Many(Vec<u64>, CallMany),
    Reset,
    Fork(u32, Operation<Vec<Stream>>),
    Checkpoint(Operation<Checkpoint>),
    Rollback(usize, Operation<()>),
    Snapshot(Operation<Vec<u8>>),
}

/// What a stream is, in the plainest words.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Plain {
    state: u64,
    position: u64,
    /// Which commit made the state that its lane points at; 0 is the initial state. A reset moves no lane.
    row: usize,
    is_reset: bool,
}

impl Plain {
    fn reset(&mut self) {
        (self.state, self.position, self.is_reset) = (INITIAL, 0, true);
    }

    fn call(&mut self, input: u64, commits: &mut usize) -> u64 {
        *commits += 1;
        let (state, position) = (next(self.state, input), self.position + 1);
        *self = Self { state, position, row: *commits, is_reset: false };
        self.state
    }

    /// What a fork or a checkpoint of it points at.
    fn shared(self) -> Self {
        Self { row: if self.is_reset { 0 } else { self.row }, is_reset: false, ..self }
    }
}

struct Client {
    stream: Stream,
    plain: Plain,
    asking: VecDeque<Asking>,
}

impl Client {
    fn new(stream: Stream, plain: Plain) -> Self {
        Self { stream, plain, asking: VecDeque::new() }
    }

    /// Whether a call made now could come between two steps of a call of many.
    fn would_interleave(&self) -> bool {
        let last = self.asking.iter().rev().find(|asking| !matches!(asking, Asking::Call(..) | Asking::Reset));
        matches!(last, Some(Asking::Many(..)))
    }
}

struct World {
    hand: ByHand,
    bench: Bench,
    slots: usize,
    clients: Vec<Client>,
    kept: Vec<(Checkpoint, Plain)>,
    snapshots: Vec<(Vec<u8>, Plain)>,
    commits: usize,
    /// Grows with each call of many.
    many: u64,
    checkpoints: usize,
}

impl World {
    fn new(slots: usize, max_seats: u32, queue: usize, checkpoints: u32) -> Self {
        let bench = Bench::default();
        // With one slot the engine waits for the turn it starts.
        bench.state().runs_at_once = slots == 1;
        let asked = Asked {
            lanes: Some(LANES),
            max_seats: Some(max_seats),
            linger: None,
            queue: Some(queue),
            slots: Some(slots),
            checkpoints: Some(checkpoints),
        };
        let hand = ByHand::over(Slotted::new(&bench, false), Control::default(), asked);
        let (clients, kept, snapshots) = (vec![], vec![], vec![]);
        Self { hand, bench, slots, clients, kept, snapshots, commits: 0, many: 0, checkpoints: checkpoints as usize }
    }

    /// One step, or the end of a turn where there is none to take; whether there was either.
    fn go_on(&mut self) -> bool {
        let went = self.hand.step() == Step::Ran || self.bench.run_one();
        self.hear();
        went
    }

    fn fresh() -> Plain {
        Plain { state: INITIAL, position: 0, row: 0, is_reset: false }
    }

    /// Spawns or restores, which is served as soon as there is room in the queue.
    fn spawn(&mut self, mut spawn: Spawn, mut plain: Plain) {
        let answer = loop {
            assert!(self.go_on(), "a spawn waits for ever");
            if let Poll::Ready(answer) = poll(&mut spawn) {
                break answer;
            }
        };
        match answer {
            Ok(stream) => {
                if plain.row > 0 {
                    // A restored state has a row of its own.
                    self.commits += 1;
                    plain.row = self.commits;
                }
                self.clients.push(Client::new(stream, plain));
            }
            // A lane whose last holder has a seat in flight is none to restore to.
            Err(StreamError::Full { asked: 1, free: 0, .. }) => {
                assert!(self.clients.len() == LANES as usize || plain.row > 0 && self.slots > 1);
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn ask(&mut self, kind: u8, at: usize, salt: u64) {
        if self.clients.is_empty() {
            return;
        }
        let at = at % self.clients.len();
        let client = &mut self.clients[at];
        let stream = &client.stream;
        let asking = match kind {
            0..4 if !client.would_interleave() => {
                let input = match salt % 16 {
                    0 => REFUSE,
                    1 => FAIL,
                    _ => salt,
                };
                Asking::Call(input, stream.call(&x(&input)))
            }
            4 if !client.would_interleave() => {
                // No other call brings these.
                self.many += 4;
                let inputs: Vec<u64> = (0..1 + salt % 3).map(|step| (1 << 32) + self.many + step).collect();
                let steps: Vec<_> = inputs.iter().map(x).collect();
                let many = stream.call_many(&steps);
                Asking::Many(inputs, many)
            }
            5 => {
                stream.reset();
                Asking::Reset
            }
            6 | 7 => Asking::Fork(salt as u32 % 3, stream.fork_many(salt as u32 % 3)),
            8 => Asking::Checkpoint(stream.checkpoint()),
            9 if !self.kept.is_empty() => {
                let which = salt as usize % self.kept.len();
                Asking::Rollback(which, stream.rollback(&self.kept[which].0))
            }
            10 => Asking::Snapshot(stream.snapshot()),
            11 => {
                // Whatever is not answered is in the queue, so giving it up undoes it; but for a call that is in flight,
                // and a call of many, which only what is asked for between keeps from the calls after it.
                let which = salt as usize % client.asking.len().max(1);
                let has_many = client.asking.iter().any(|asking| matches!(asking, Asking::Many(..)));
                let may_fly = self.slots > 1 && matches!(client.asking.get(which), Some(Asking::Call(..)));
                if !has_many && !may_fly && !matches!(client.asking.get(which), None | Some(Asking::Reset)) {
                    client.asking.remove(which);
                }
                return;
            }
            12 if client.asking.is_empty() => {
                self.clients.swap_remove(at);
                return;
            }
            13 if !self.kept.is_empty() => {
                let which = salt as usize % self.kept.len();
                let is_meant = |asking: &Asking| matches!(asking, Asking::Rollback(..));
                if !self.clients.iter().any(|client| client.asking.iter().any(is_meant)) {
                    self.kept.swap_remove(which);
                }
                return;
            }
            14 if !self.snapshots.is_empty() => {
                let (bytes, plain) = &self.snapshots[salt as usize % self.snapshots.len()];
                let (spawn, plain) = (Spawn::restore(&self.hand.shared, bytes), Plain { row: usize::MAX, ..*plain });
                return self.spawn(spawn, plain);
            }
            15 => {
                let spawn = Spawn::new(&self.hand.shared);
                return self.spawn(spawn, Self::fresh());
            }
            _ => return,
        };
        client.asking.push_back(asking);
    }

    /// Takes every answer there is, in the order asked, and compares it with the plain stream's.
    fn hear(&mut self) {
        let turns = self.bench.turns();
        let failed = turns.iter().any(|turn| turn.contains(&FAIL));
        let (mut forked, mut refused) = (Vec::new(), false);
        for client in &mut self.clients {
            while let Some(asking) = client.asking.front_mut() {
                let (plain, commits) = (&mut client.plain, &mut self.commits);
                match asking {
                    Asking::Call(input, call) => {
                        let Poll::Ready(answer) = poll(call) else { break };
                        match y(answer) {
                            Ok(found) => assert_eq!(found, plain.call(*input, commits)),
                            Err(StreamError::Refused { .. }) => assert_eq!(*input, REFUSE),
                            Err(StreamError::Failed(_)) => assert!(failed),
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    Asking::Many(inputs, many) => {
                        let Poll::Ready(answer) = poll(many) else { break };
                        match answer {
                            Ok(outputs) => {
                                assert_eq!(outputs.len(), inputs.len());
                                for (output, input) in outputs.into_iter().zip(inputs) {
                                    assert_eq!(y(Ok(output)).unwrap(), plain.call(*input, commits));
                                }
                            }
                            Err(StreamError::Failed(_)) => {
                                assert!(failed);
                                // A step is queued once the one before it is kept, so it is the last begun that failed.
                                let has_begun = |input: &u64| turns.iter().any(|turn| turn.contains(input));
                                let begun = inputs.iter().filter(|input| has_begun(input)).count();
                                for input in inputs.iter().copied().take(begun - 1) {
                                    plain.call(input, commits);
                                }
                            }
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    Asking::Reset => plain.reset(),
                    Asking::Fork(count, fork) => {
                        let Poll::Ready(answer) = poll(fork) else { break };
                        match answer {
                            Ok(streams) => {
                                assert_eq!(streams.len(), *count as usize);
                                forked.extend(streams.into_iter().map(|stream| Client::new(stream, plain.shared())));
                            }
                            Err(StreamError::Full { asked, free, .. }) => {
                                assert!(asked == *count && free < asked, "{asked} {free} {count}");
                            }
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    Asking::Checkpoint(checkpoint) => {
                        let Poll::Ready(answer) = poll(checkpoint) else { break };
                        match answer {
                            Ok(checkpoint) => {
                                assert_eq!(checkpoint.position(), plain.position);
                                self.kept.push((checkpoint, plain.shared()));
                                assert!(self.kept.len() <= self.checkpoints);
                            }
                            Err(StreamError::NoCheckpoint { .. }) => refused = true,
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    Asking::Rollback(which, rollback) => {
                        let Poll::Ready(answer) = poll(rollback) else { break };
                        answer.unwrap();
                        *plain = self.kept[*which].1;
                    }
                    Asking::Snapshot(snapshot) => {
                        let Poll::Ready(answer) = poll(snapshot) else { break };
                        self.snapshots.push((answer.unwrap(), plain.shared()));
                    }
                }
                client.asking.pop_front();
            }
        }
        assert!(!refused || self.kept.len() == self.checkpoints, "a checkpoint was refused while there was room");
        self.clients.extend(forked);
        for client in self.clients.iter().filter(|client| client.asking.is_empty()) {
            assert_eq!(client.stream.position(), client.plain.position);
        }
        let lanes: BTreeSet<LaneId> = self.clients.iter().map(|client| client.stream.lane()).collect();
        assert_eq!(lanes.len(), self.clients.len(), "two streams hold one lane");
    }

    /// Rows held are those that a lane or a checkpoint points at, each counted once.
    fn count_rows(&self) {
        lock(&self.hand.shared.engine).collect_all(&self.hand.shared);
        let lanes = self.clients.iter().map(|client| client.plain.row);
        let rows: BTreeSet<usize> = lanes.chain(self.kept.iter().map(|(_, plain)| plain.row)).collect();
        assert_eq!(self.hand.rows_held(), rows.iter().filter(|row| **row > 0).count());
    }

    fn is_quiet(&self) -> bool {
        self.clients.iter().all(|client| client.asking.is_empty())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    /// Any mix of calls, calls of many, resets, forks, checkpoints, rollbacks, snapshots and restores, some given up,
    /// some failing their turn, in any queue and any number of slots: every stream's answers and position are those of its own history, and no
    /// row is lost or held twice.
    #[test]
    fn streams_are_their_own_histories(
        slots in 1usize..4,
        max_seats in 1u32..5,
        queue in 1usize..12,
        checkpoints in 0u32..4,
        steps in prop::collection::vec((0u8..22, any::<usize>(), 0u64..1 << 20), 0..160),
    ) {
        let mut world = World::new(slots, max_seats, queue, checkpoints);
        let first = Spawn::new(&world.hand.shared);
        world.spawn(first, World::fresh());
        for (kind, at, salt) in steps {
            if kind < 16 {
                world.ask(kind, at, salt);
                continue;
            }
            if kind < 20 {
                world.hand.step();
            } else {
                world.bench.run_one();
            }
            world.hear();
            // Of a call of many that has begun, the plain stream knows nothing yet.
            if salt % 4 == 0 && world.is_quiet() {
                world.count_rows();
            }
        }
        world.hear();
        for _ in 0..1000 {
            if world.is_quiet() { break }
            prop_assert!(world.go_on(), "something waits for ever");
        }
        prop_assert!(world.is_quiet());
        world.count_rows();
        world.clients.clear();
        world.kept.clear();
        world.count_rows();
        prop_assert_eq!(world.hand.rows_held(), 0);
    }
}

fn by_hand(lanes: u32, checkpoints: u32) -> ByHand {
    ByHand::new(Asked { lanes: Some(lanes), checkpoints: Some(checkpoints), ..Asked::default() }, false)
}

#[test]
fn a_fork_goes_on_from_what_was_asked_before_it() {
    let hand = by_hand(4, 0);
    let stream = hand.spawn().unwrap();
    let (first, fork, second) = (stream.call(&x(&1)), stream.fork(), stream.call(&x(&2)));
    assert_eq!(hand.step(), Step::Ran);
    let mut fork = fork;
    assert!(poll(&mut fork).is_pending(), "the call before it is served first");
    assert_eq!(hand.turns(), [[1]]);
    assert_eq!(hand.step(), Step::Ran);
    let fork = now(fork).unwrap();
    assert_eq!((fork.lane().index(), fork.position()), (1, 1), "the lowest free lane, the position of the first call");
    assert_eq!(y(now(first)).unwrap(), alone(&[1])[0]);
    assert_eq!(y(now(second)).unwrap(), alone(&[1, 2])[1]);
    assert_eq!(hand.rows_held(), 2);
    let other = fork.call(&x(&3));
    hand.step();
    assert_eq!(y(now(other)).unwrap(), alone(&[1, 3])[1]);
    assert_eq!((stream.position(), fork.position()), (2, 2));
    // A reset made before the fork holds, one made after it does not.
    stream.reset();
    let (again, last) = (stream.fork(), fork.fork());
    fork.reset();
    hand.step();
    let (again, last) = (now(again).unwrap(), now(last).unwrap());
    assert_eq!((again.position(), last.position(), fork.position()), (0, 2, 0));
    let calls = [&again, &last, &fork].map(|stream| stream.call(&x(&4)));
    hand.step();
    let answers = calls.map(|call| y(now(call)).unwrap());
    assert_eq!(answers, [alone(&[4])[0], alone(&[1, 3, 4])[2], alone(&[4])[0]]);
}

/// A lane in flight is neither forked nor moved before its turn has ended, nor is it seated past the operation.
#[test]
fn an_operation_waits_until_its_lane_has_landed() {
    let bench = Bench::default();
    let asked = Asked { lanes: Some(4), slots: Some(2), checkpoints: Some(1), ..Asked::default() };
    let hand = ByHand::over(Slotted::new(&bench, false), Control::default(), asked);
    let (stream, other) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    let first = stream.call(&x(&1));
    assert_eq!(hand.step(), Step::Ran);
    let (mut fork, second) = (stream.fork(), stream.call(&x(&2)));
    assert_eq!(hand.step(), Step::Occupied, "there is a slot, and nobody to seat");
    assert!(poll(&mut fork).is_pending());
    // Others are served meanwhile.
    let (beside, call) = (other.fork(), other.call(&x(&5)));
    assert_eq!(hand.step(), Step::Ran);
    let _beside = now(beside).unwrap();
    assert_eq!(bench.turns(), [[1], [5]]);
    bench.run_one();
    assert_eq!(hand.step(), Step::Ran);
    assert_eq!(y(now(first)).unwrap(), alone(&[1])[0]);
    assert_eq!(hand.step(), Step::Ran);
    let fork = now(fork).unwrap();
    assert_eq!((fork.position(), bench.turns().len()), (1, 3), "the second call is seated now");
    bench.run_one();
    bench.run_one();
    while hand.step() == Step::Ran {}
    assert_eq!(y(now(second)).unwrap(), alone(&[1, 2])[1]);
    assert_eq!(y(now(call)).unwrap(), alone(&[5])[0]);
}

/// The row that a lane's last holder reads in flight is one of the lane's: until its turn has ended there is no other.
#[test]
fn a_stream_is_restored_to_a_lane_whose_last_turn_has_ended() {
    let bench = Bench::default();
    let asked = Asked { lanes: Some(1), slots: Some(2), ..Asked::default() };
    let hand = ByHand::over(Slotted::new(&bench, false), Control::default(), asked);
    let stream = hand.spawn().unwrap();
    let first = stream.call(&x(&1));
    hand.step();
    bench.run_one();
    hand.step();
    now(first).unwrap();
    let snapshot = stream.snapshot();
    hand.step();
    let bytes = now(snapshot).unwrap();
    let given_up = stream.call(&x(&2));
    hand.step();
    drop((given_up, stream));
    let restore = Spawn::restore(&hand.shared, &bytes);
    hand.step();
    assert_eq!(now(restore).unwrap_err().to_string(), "1 lane was asked for, and 0 of 1 are free");
    bench.run_one();
    hand.step();
    let restore = Spawn::restore(&hand.shared, &bytes);
    hand.step();
    let stream = now(restore).unwrap();
    let calls = [3, 4].map(|input| stream.call(&x(&input)));
    while hand.step() == Step::Ran || bench.run_one() {}
    assert_eq!(calls.map(|call| y(now(call)).unwrap()), alone(&[1, 3, 4])[1..]);
}

#[test]
fn an_operation_waits_for_all_steps_of_a_call_of_many() {
    for queue in [1, 2, 8] {
        let hand = ByHand::new(Asked { lanes: Some(2), queue: Some(queue), ..Asked::default() }, false);
        let stream = hand.spawn().unwrap();
        let inputs = [1, 2, 3];
        let many = stream.call_many(&inputs.each_ref().map(x));
        let (fork, after) = (stream.fork(), stream.call(&x(&4)));
        for _ in 0..8 {
            hand.step();
        }
        assert_eq!(now(many).unwrap().len(), 3);
        assert_eq!(now(fork).unwrap().position(), 3, "queue of {queue}");
        assert_eq!(y(now(after)).unwrap(), alone(&[1, 2, 3, 4])[3], "queue of {queue}");
    }
}

#[test]
fn forks_are_all_or_none() {
    let hand = by_hand(4, 0);
    let stream = hand.spawn().unwrap();
    let other = hand.spawn().unwrap();
    let fork = stream.fork_many(3);
    hand.step();
    let error = now(fork).unwrap_err();
    assert!(matches!(error, StreamError::Full { asked: 3, free: 2, lanes: 4 }), "{error:?}");
    assert_eq!(error.to_string(), "3 lanes were asked for, and 2 of 4 are free");
    assert_eq!(hand.shared.stats().lanes_taken, 2);
    // A lane that is given back counts at once.
    drop(other);
    let (none, fork) = (stream.fork_many(0), stream.fork_many(3));
    hand.step();
    assert_eq!(now(none).unwrap().len(), 0);
    let lanes: Vec<_> = now(fork).unwrap().iter().map(|stream| stream.lane().index()).collect();
    assert_eq!(lanes, [1, 2, 3]);
    let full = (0..2).map(|_| stream.fork()).map(|fork| (hand.step(), now(fork))).map(|(_, fork)| fork);
    let full: Vec<_> = full.collect();
    assert!(full.iter().all(Result::is_ok), "the lanes of forks that nobody took are free: {full:?}");
}

#[test]
fn a_checkpoint_outlives_its_stream_and_frees_its_place_when_dropped() {
    let hand = by_hand(2, 1);
    let stream = hand.spawn().unwrap();
    let (first, checkpoint, full) = (stream.call(&x(&1)), stream.checkpoint(), stream.checkpoint());
    hand.step();
    hand.step();
    let checkpoint = now(checkpoint).unwrap();
    assert_eq!(
        now(full).unwrap_err().to_string(),
        "all 1 checkpoints are held; the builder's `checkpoints` or LANES_CHECKPOINTS makes room"
    );
    drop((first, stream));
    let other = hand.spawn().unwrap();
    assert_eq!(other.lane().index(), 0);
    let (before, back, after) = (other.call(&x(&5)), other.rollback(&checkpoint), other.call(&x(&2)));
    hand.step();
    hand.step();
    now(back).unwrap();
    assert_eq!(y(now(before)).unwrap(), alone(&[5])[0]);
    assert_eq!(y(now(after)).unwrap(), alone(&[1, 2])[1]);
    assert_eq!((other.position(), checkpoint.position()), (2, 1));
    // A rollback undoes a reset made before it; the checkpoint, a clone of it now, can be gone back to again.
    let clone = checkpoint.clone();
    drop(checkpoint);
    other.reset();
    let back = other.rollback(&clone);
    assert_eq!(other.position(), 0);
    hand.step();
    now(back).unwrap();
    assert_eq!(other.position(), 1);
    other.reset();
    assert_eq!(other.position(), 0);
    drop(clone);
    let again = other.checkpoint();
    hand.step();
    assert_eq!(now(again).unwrap().position(), 0, "its place was free");
    let none = by_hand(1, 0);
    let stream = none.spawn().unwrap();
    let checkpoint = stream.checkpoint();
    none.step();
    assert!(matches!(now(checkpoint), Err(StreamError::NoCheckpoint { checkpoints: 0 })));
}

#[test]
fn a_checkpoint_of_another_runnable_is_refused() {
    let (hand, other) = (by_hand(2, 1), by_hand(2, 1));
    let (stream, foreign) = (hand.spawn().unwrap(), other.spawn().unwrap());
    let checkpoint = foreign.checkpoint();
    other.step();
    let checkpoint = now(checkpoint).unwrap();
    let expected = "the checkpoint belongs to another runnable than the stream on lane0";
    assert_eq!(now(stream.rollback(&checkpoint)).unwrap_err().to_string(), expected);
    assert_eq!(stream.rollback_blocking(&checkpoint).unwrap_err().to_string(), expected);
    assert_eq!(hand.shared.stats().queue_depth, 0);
}

#[test]
fn an_operation_given_up_is_undone_and_its_lanes_are_free() {
    let hand = by_hand(3, 1);
    let stream = hand.spawn().unwrap();
    let (call, fork) = (stream.call(&x(&1)), stream.fork_many(2));
    assert_eq!(hand.shared.stats().queue_depth, 2);
    drop(fork);
    assert_eq!(hand.shared.stats().queue_depth, 1);
    hand.step();
    now(call).unwrap();
    // Served, and dropped before anybody took what came of it.
    let (fork, checkpoint) = (stream.fork_many(2), stream.checkpoint());
    hand.step();
    assert_eq!(hand.shared.stats().lanes_taken, 3);
    drop((fork, checkpoint));
    assert_eq!(hand.shared.stats().lanes_taken, 1);
    let (fork, checkpoint) = (stream.fork_many(2), stream.checkpoint());
    hand.step();
    assert_eq!((now(fork).unwrap().len(), now(checkpoint).unwrap().position()), (2, 1));
    assert_eq!(hand.step(), Step::Idle);
}

#[test]
fn an_operation_on_a_lane_that_was_passed_on_is_stale() {
    let hand = by_hand(1, 1);
    hand.control.seen().identity = Some(1);
    let stream = hand.spawn().unwrap();
    let (fork, checkpoint, snapshot) = (stream.fork(), stream.checkpoint(), stream.snapshot());
    lock(&hand.shared.engine).pass_on(stream.handle.cell.lease);
    hand.step();
    for said in [now(fork).unwrap_err(), now(checkpoint).unwrap_err(), now(snapshot).unwrap_err()] {
        assert_eq!(said.to_string(), "stale: lane0 belongs to another stream now");
    }
    assert_eq!(hand.rows_held(), 0);
}

#[test]
fn an_operation_lingers_for_nobody() {
    let linger = Some(Duration::from_secs(50));
    let hand = ByHand::new(Asked { lanes: Some(4), linger, ..Asked::default() }, false);
    let (stream, other) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    let call = stream.call(&x(&1));
    assert!(matches!(hand.step(), Step::Lingering(_)));
    // It waits for no call of its own stream, and the call of the other one goes on waiting for company.
    let fork = other.fork();
    assert!(matches!(hand.step(), Step::Lingering(_)));
    let _fork = now(fork).unwrap();
    // This one waits for the call, so the turn waits no longer.
    let fork = stream.fork();
    assert_eq!(hand.step(), Step::Ran);
    assert_eq!(y(now(call)).unwrap(), alone(&[1])[0]);
    hand.step();
    assert_eq!(now(fork).unwrap().position(), 1);
    // The worker is woken for it as well.
    let runnable = builder().0.lanes(4).linger(Duration::from_secs(50)).build().unwrap();
    let (stream, _other) = (runnable.spawn_blocking().unwrap(), runnable.spawn_blocking().unwrap());
    let call = stream.call(&x(&1));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(stream.fork_blocking().unwrap().position(), 1);
    assert_eq!(y(now(call)).unwrap(), alone(&[1])[0]);
}

#[test]
fn a_call_answered_without_a_seat_lets_nothing_overtake_its_streams_operation() {
    let hand = ByHand::new(Asked { lanes: Some(3), ..Asked::default() }, true);
    let (one, two) = (hand.spawn().unwrap(), hand.spawn().unwrap());
    // The second call disagrees on the shared input, so its stream has no seat when its fork comes up.
    let (agreed, disagrees) = (one.call(&x_at(&1, &8000)), two.call(&x_at(&1, &16000)));
    let (fork, later) = (two.fork(), two.call(&x_at(&2, &8000)));
    for _ in 0..3 {
        hand.step();
    }
    assert!(matches!(now(disagrees), Err(StreamError::Disagrees { .. })));
    now(agreed).unwrap();
    assert_eq!(y(now(later)).unwrap(), alone(&[2])[0]);
    assert_eq!(now(fork).unwrap().position(), 0);
}

#[test]
fn a_closed_runnable_tells_every_operation() {
    let (builder, control) = builder();
    let runnable = builder.lanes(3).checkpoints(1).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    let kept = stream.checkpoint_blocking().unwrap();
    control.hold();
    let _call = stream.call(&x(&1));
    control.wait_for_turns(1);
    let (fork, back) = (stream.fork(), stream.rollback(&kept));
    std::thread::scope(|scope| {
        scope.spawn(move || drop(runnable));
        assert!(matches!(wait(fork), Err(StreamError::Closed(cause)) if matches!(*cause, Closed::Dropped)));
        control.let_go();
    });
    assert!(matches!(wait(back), Err(StreamError::Closed(_))));
    let error = stream.checkpoint_blocking().unwrap_err();
    assert_eq!(error.to_string(), "closed");
    assert!(matches!(wait(stream.snapshot()), Err(StreamError::Closed(_))));
}

#[test]
fn a_model_that_panics_over_its_rows_closes_and_one_that_fails_does_not() {
    let (builder, control) = builder();
    control.seen().identity = Some(1);
    let runnable = builder.lanes(3).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    let good = stream.snapshot_blocking().unwrap();
    control.seen().rows = RowAccess::Fails;
    let refused = [stream.snapshot_blocking().map(drop), runnable.restore_blocking(&good).map(drop)];
    for (error, at) in refused.into_iter().zip(["read", "write"]) {
        let Err(StreamError::Snapshot(SnapshotError::Device(error))) = error else { panic!("{error:?}") };
        assert_eq!(error.to_string(), format!("fault in {at}: told to fail"));
    }
    assert_eq!(runnable.stats().lanes_taken, 1, "a restore that fails keeps no lane");
    control.seen().identity = None;
    let Err(StreamError::Snapshot(error)) = stream.snapshot_blocking() else { panic!("it has no identity") };
    assert_eq!(error.to_string(), "the model gives no access to its rows");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "unsupported: double has no identity today");
    control.seen().identity = Some(1);
    stream.call_blocking(&x(&1)).unwrap();
    control.seen().rows = RowAccess::Panics;
    let (error, other) = (runnable.restore_blocking(&good).unwrap_err(), stream.snapshot_blocking().unwrap_err());
    for error in [error, other] {
        let StreamError::Closed(cause) = error else { panic!("{error:?}") };
        assert_eq!(cause.to_string(), "the model panicked: told to panic in a write");
    }
    let (builder, control) = super::double::builder();
    control.seen().identity = Some(1);
    let runnable = builder.lanes(2).build().unwrap();
    let (stream, _other) = (runnable.spawn_blocking().unwrap(), runnable.spawn_blocking().unwrap());
    control.seen().rows = RowAccess::Loses;
    let error = stream.snapshot_blocking().unwrap_err();
    assert!(matches!(&error, StreamError::Closed(cause) if matches!(**cause, Closed::Lost(_))), "{error:?}");
    assert!(matches!(runnable.spawn_blocking(), Err(StreamError::Closed(_))));
}

/// A restore takes as long as the device does. Whoever polls it meanwhile is not held up, and whoever gives it up leaves
/// the lane free, and alone whoever is.
#[test]
fn a_restore_that_takes_long_holds_up_nobody_who_polls() {
    let (builder, control) = builder();
    control.seen().identity = Some(1);
    let runnable = builder.lanes(2).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    stream.call_blocking(&x(&1)).unwrap();
    let bytes = stream.snapshot_blocking().unwrap();
    for given_up in [false, true] {
        control.hold();
        control.seen().rows = RowAccess::Waits;
        let before = control.seen().accesses;
        let mut restore = runnable.restore(&bytes);
        control.wait_for_accesses(before + 1);
        assert!(poll(&mut restore).is_pending());
        assert!(control.seen().is_held, "it is still being restored");
        if given_up {
            drop(restore);
            assert_eq!(runnable.stats().lanes_taken, 1);
            control.let_go();
            let (fresh, handoffs) = (runnable.spawn_blocking().unwrap(), runnable.stats().handoffs);
            assert_eq!((fresh.lane().index(), fresh.position()), (1, 0), "the lane was not kept");
            assert_eq!(y(fresh.call_blocking(&x(&3))).unwrap(), next(INITIAL, 3));
            drop(fresh);
            assert_eq!(y(stream.call_blocking(&x(&2))).unwrap(), alone(&[1, 2])[1]);
            assert_eq!(runnable.stats().handoffs, handoffs + 1, "alone again, it needs no worker");
        } else {
            control.let_go();
            let restored = wait(restore).unwrap();
            assert_eq!((restored.lane().index(), restored.position()), (1, 1));
            assert_eq!(y(restored.call_blocking(&x(&2))).unwrap(), alone(&[1, 2])[1]);
        }
    }
}

#[test]
fn a_caller_alone_operates_on_its_own_thread() {
    let (builder, control) = builder();
    control.seen().identity = Some(1);
    let runnable = builder.lanes(9).checkpoints(1).build().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    stream.call_blocking(&x(&1)).unwrap();
    let checkpoint = stream.checkpoint_blocking().unwrap();
    stream.call_blocking(&x(&2)).unwrap();
    let bytes = stream.snapshot_blocking().unwrap();
    stream.rollback_blocking(&checkpoint).unwrap();
    assert_eq!(y(stream.call_blocking(&x(&3))).unwrap(), alone(&[1, 3])[1]);
    let forks = stream.fork_many_blocking(7).unwrap();
    assert_eq!(runnable.stats().handoffs, 0);
    let restored = runnable.restore_blocking(&bytes).unwrap();
    assert_eq!((restored.position(), restored.lane().index()), (2, 8));
    let full = runnable.restore_blocking(&bytes).unwrap_err();
    assert_eq!(full.to_string(), "1 lane was asked for, and 0 of 9 are free");
    for (at, fork) in forks.iter().enumerate() {
        assert_eq!(y(fork.call_blocking(&x(&(at as u64)))).unwrap(), alone(&[1, 3, at as u64])[2]);
    }
    assert_eq!(y(restored.call_blocking(&x(&4))).unwrap(), alone(&[1, 2, 4])[2]);
}

/// Many threads that fork, go on and go back at once.
#[test]
fn threads_that_fork() {
    let runnable = builder().0.lanes(24).max_seats(5).queue(16).checkpoints(8).build().unwrap();
    std::thread::scope(|scope| {
        for seed in 0..6u64 {
            let runnable = &runnable;
            scope.spawn(move || {
                let stream = runnable.spawn_blocking().unwrap();
                let mut history = Vec::new();
                for at in 0..150 {
                    let input = seed * 1000 + at;
                    let kept = if at % 3 == 0 { stream.checkpoint_blocking().ok() } else { None };
                    let call = stream.call(&x(&input));
                    history.push(input);
                    // Asked for before the call is answered, and after it all the same.
                    let fork = wait(stream.fork());
                    assert_eq!(y(wait(call)).unwrap(), *alone(&history).last().unwrap());
                    if let Ok(fork) = fork {
                        let (mut own, fork) = (history.clone(), fork.clone());
                        own.push(7);
                        assert_eq!(y(fork.call_blocking(&x(&7))).unwrap(), *alone(&own).last().unwrap());
                        assert_eq!(fork.position(), own.len() as u64);
                    }
                    if let Some(kept) = kept {
                        stream.rollback_blocking(&kept).unwrap();
                        history.pop();
                    }
                    assert_eq!(stream.position(), history.len() as u64);
                }
            });
        }
    });
    assert_eq!(runnable.stats().lanes_taken, 0);
}
