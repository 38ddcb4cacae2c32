//! The example of a beam search by fork finds what a search finds that replays every prefix from the start.

#[path = "../examples/beam_search.rs"]
mod beam_search;

use beam_search::{Found, LENGTH, WIDTH, best_children, better, search, serve};
use lanes::lanes::{Runnable, Value};

/// The scores of every token after `tokens`, by a stream of its own.
fn replay(runnable: &Runnable, tokens: &[i64]) -> Vec<f32> {
    let stream = runnable.spawn_blocking().expect("a lane is free");
    let mut scores = Vec::new();
    for token in [0].iter().chain(tokens) {
        let outputs = stream.call_blocking(&[Value::new(&[], &[*token])]).expect("the call is served");
        scores = outputs.get::<f32>(0).expect("scores").to_vec();
    }
    scores
}

#[test]
fn the_example_runs() {
    beam_search::main().expect("it searches");
}

#[test]
fn beams_that_fork_equal_beams_that_replay() {
    let runnable = serve(WIDTH as u32).expect("it is served");
    let found = search(&runnable).expect("it searches");
    assert_eq!(runnable.stats().lanes_taken, 0, "every beam has given its lane back");

    let replayer = serve(1).expect("it is served");
    let mut expected = vec![Found { tokens: Vec::new(), score: 0.0 }];
    for _ in 0..LENGTH {
        let scores: Vec<_> = expected.iter().map(|found| replay(&replayer, &found.tokens)).collect();
        expected = best_children(&expected, &scores).into_iter().map(|(_, child)| child).collect();
    }
    expected.sort_by(better);
    assert_eq!(found, expected);
    assert_eq!(found.len(), WIDTH);
    // Some beam had several children, and some none: it was not `WIDTH` separate walks.
    let beginnings: std::collections::BTreeSet<_> = found.iter().map(|found| &found.tokens[..3]).collect();
    assert!(beginnings.len() < WIDTH, "{found:?}");
}
