//! Models of several stages against the plainest: a number a stage.

use super::super::error::{Closed, StreamError};
use super::super::{LanesBuilder, Staged, StagedCheckpoint, StagedStream};
use super::double::*;
use proptest::prelude::*;

const LANES: u32 = 4;

/// An encoder and a decoder, told apart by their identities.
fn staged() -> (Staged, [Control; 2]) {
    let controls = [Control::default(), Control::default()];
    let stage = |at: usize| {
        controls[at].seen().identity = Some(at as u8 + 1);
        LanesBuilder::new(Double::new(&controls[at], false)).checkpoints(2)
    };
    let staged = Staged::build(LANES, vec![("encoder", stage(0)), ("decoder", stage(1))]).unwrap();
    (staged, controls)
}

/// State and position of each stage.
type Plain = [(u64, u64); 2];

const FRESH: Plain = [(INITIAL, 0); 2];

fn name(stage: usize) -> &'static str {
    ["encoder", "decoder"][stage]
}

fn check_position(stream: &StagedStream, plain: &Plain) {
    for (stage, (_, position)) in plain.iter().enumerate() {
        assert_eq!(stream.stage(name(stage)).unwrap().position(), *position);
    }
    assert_eq!(stream.position(), plain[0].1 + plain[1].1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    /// Calls of either stage, forks, checkpoints, rollbacks, resets, snapshots and restores in any mix. Calls are made
    /// before what follows them is asked for, and awaited after it.
    #[test]
    fn every_stage_goes_its_own_way_and_all_are_forked_and_moved_as_one(
        steps in prop::collection::vec((0u8..12, any::<usize>(), 0u64..1 << 20), 0..60),
    ) {
        let (staged, _) = staged();
        let mut streams = vec![(staged.spawn_blocking().unwrap(), FRESH)];
        let mut kept = Vec::<(StagedCheckpoint, Plain)>::new();
        let mut snapshots = Vec::<(Vec<u8>, Plain)>::new();
        for (kind, at, salt) in steps {
            if streams.is_empty() || kind == 11 {
                match staged.spawn_blocking() {
                    Ok(stream) => streams.push((stream, FRESH)),
                    Err(error) => prop_assert_eq!(error.to_string(), "1 lane was asked for, and 0 of 4 are free"),
                }
                prop_assert!(streams.len() <= LANES as usize);
                continue;
            }
            let count = streams.len();
            let (stream, plain) = &mut streams[at % count];
            // A call that is on its way when the operation is asked for.
            let stage = salt as usize % 2;
            let call = stream.stage(name(stage)).unwrap().call(&x(&salt));
            plain[stage] = (next(plain[stage].0, salt), plain[stage].1 + 1);
            let expected = plain[stage].0;
            match kind {
                5 => {
                    let fork = stream.fork_many(salt as u32 % 3);
                    let plain = *plain;
                    match wait(fork) {
                        Ok(forks) => {
                            prop_assert_eq!(forks.len(), salt as usize % 3);
                            streams.extend(forks.into_iter().map(|fork| (fork, plain)));
                        }
                        Err(StreamError::Full { free, .. }) => prop_assert_eq!(free as usize, LANES as usize - count),
                        Err(error) => panic!("{error:?}"),
                    }
                }
                6 => match stream.checkpoint_blocking() {
                    Ok(checkpoint) => kept.push((checkpoint, *plain)),
                    Err(error) => prop_assert!(kept.len() == 2, "{}", error),
                },
                7 if !kept.is_empty() => {
                    let (checkpoint, then) = &kept[salt as usize % kept.len()];
                    stream.rollback_blocking(checkpoint).unwrap();
                    *plain = *then;
                }
                8 => {
                    stream.reset();
                    *plain = FRESH;
                }
                9 => snapshots.push((stream.snapshot_blocking().unwrap(), *plain)),
                10 if !snapshots.is_empty() => {
                    let (bytes, then) = &snapshots[salt as usize % snapshots.len()];
                    match staged.restore_blocking(bytes) {
                        Ok(stream) => streams.push((stream, *then)),
                        Err(error) => prop_assert!(count == LANES as usize, "{}", error),
                    }
                }
                _ => {}
            }
            prop_assert_eq!(y(wait(call)).unwrap(), expected);
            streams.iter().for_each(|(stream, plain)| check_position(stream, plain));
            match kind {
                3 => drop(streams.swap_remove(at % count)),
                4 => kept.truncate(salt as usize % 2),
                _ => {}
            }
        }
        for (stream, plain) in &streams {
            for (stage, (state, _)) in plain.iter().enumerate() {
                let answer = stream.stage(name(stage)).unwrap().call_blocking(&x(&3));
                prop_assert_eq!(y(answer).unwrap(), next(*state, 3));
            }
        }
    }
}

#[test]
fn a_stream_holds_one_place_in_all_stages_or_none() {
    let (staged, _) = staged();
    assert_eq!(staged.names().collect::<Vec<_>>(), ["encoder", "decoder"]);
    assert!(staged.stage("other").is_none());
    let taken = || ["encoder", "decoder"].map(|name| staged.stage(name).unwrap().stats().lanes_taken);
    let stream = staged.spawn_blocking().unwrap();
    assert!(stream.stage("other").is_none());
    let forks = stream.fork_many_blocking(2).unwrap();
    assert_eq!(taken(), [3, 3]);
    let error = stream.fork_many_blocking(2).unwrap_err();
    assert_eq!(error.to_string(), "2 lanes were asked for, and 1 of 4 are free");
    assert_eq!(taken(), [3, 3]);
    let clone = stream.clone();
    drop((stream, forks));
    assert_eq!(taken(), [1, 1]);
    drop(clone);
    assert_eq!(taken(), [0, 0]);
    // Many at once take no lane from each other but whole places.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let stream = staged.spawn_blocking().expect("two threads, and a fork each");
                    stream.stage("decoder").unwrap().call_blocking(&x(&1)).unwrap();
                    drop(stream.fork_blocking().expect("two threads, and a fork each"));
                }
            });
        }
    });
    assert_eq!(taken(), [0, 0]);
}

#[test]
fn what_is_not_of_these_stages_is_refused() {
    let (staged, controls) = staged();
    let (other, _) = self::staged();
    let (stream, foreign) = (staged.spawn_blocking().unwrap(), other.spawn_blocking().unwrap());
    let checkpoint = foreign.checkpoint_blocking().unwrap();
    let expected = "the checkpoint belongs to another runnable than the stream on lane0";
    assert_eq!(stream.rollback_blocking(&checkpoint).unwrap_err().to_string(), expected);
    let bytes = stream.snapshot_blocking().unwrap();
    assert_eq!(other.restore_blocking(&bytes).unwrap().position(), 0, "the same stages elsewhere");
    let single = stream.stage("encoder").unwrap().snapshot_blocking().unwrap();
    let error = staged.restore_blocking(&single).unwrap_err().to_string();
    assert!(error.starts_with("not a snapshot: "), "{error}");
    // The second stage is another model: the first is not left behind with a lane.
    controls[1].seen().identity = Some(9);
    let error = staged.restore_blocking(&bytes).unwrap_err().to_string();
    assert_eq!(error, "the snapshot is of model double (02020202), and this is model double (09090909)");
    assert_eq!(["encoder", "decoder"].map(|name| staged.stage(name).unwrap().stats().lanes_taken), [1, 1]);
    drop(staged);
    assert!(controls.iter().all(|control| control.seen().is_gone), "a stream keeps no stage running");
    let error = stream.fork_blocking().unwrap_err();
    assert!(matches!(&error, StreamError::Closed(cause) if matches!(**cause, Closed::Dropped)), "{error:?}");
}

#[test]
fn stages_have_names_of_their_own() {
    let said = |names: &[&'static str]| {
        let builder = || LanesBuilder::new(Double::new(&Control::default(), false));
        let stages = names.iter().map(|name| (*name, builder())).collect();
        Staged::build(2, stages).err().map(|error| error.to_string())
    };
    let expected = "expected one or more of different names";
    assert_eq!(said(&[]), Some(format!("stages: found none, {expected}")));
    assert_eq!(said(&["a", "b", "a"]), Some(format!("stages: found two called a, {expected}")));
    assert_eq!(said(&["a", "b"]), None);
}
