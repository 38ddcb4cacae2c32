//! Beam search over a small token decoder, by fork: each beam is a stream, a beam with several children forks, and a
//! beam without any gives its lane back. No state is copied, and a search of `WIDTH` beams needs `WIDTH` lanes.
//!
//! ```text
//! cargo run --release --example beam_search
//! ```

use lanes::lanes::{LanesBuilder, Runnable, Stream, StreamError, Value};
use lanes::onnx::Tensor;
use lanes::onnx::build::ModelBuilder;
use std::error::Error;

/// Beams kept after each step.
pub const WIDTH: usize = 4;
/// Tokens of a found sequence.
pub const LENGTH: usize = 8;
/// Tokens there are; each sequence starts after token 0, which is not counted as its own.
pub const TOKENS: usize = 12;
const HIDDEN: usize = 16;

/// A sequence and the sum of its tokens' log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The tokens, first to last.
    pub tokens: Vec<i64>,
    /// The sum, natural logarithms.
    pub score: f32,
}

struct Beam {
    stream: Stream,
    found: Found,
}

/// Searches, and prints the beams.
pub fn main() -> Result<(), Box<dyn Error>> {
    let runnable = serve(WIDTH as u32)?;
    for Found { tokens, score } in search(&runnable)? {
        println!("{score:8.3}  {tokens:?}");
    }
    Ok(())
}

/// `state' = tanh(embed(token) + state · U)`, and from it the log-probability of every next token; random weights.
pub fn serve(lanes: u32) -> Result<Runnable, Box<dyn Error>> {
    let mut seed = 1u64;
    let mut weights = |rows: usize, columns: usize| {
        let elements: Vec<f32> = (0..rows * columns)
            .map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (seed >> 40) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect();
        Tensor::from_vec(vec![rows, columns], elements)
    };
    let bytes = ModelBuilder::new(18)
        .input("token", lanes::DType::I64, &["batch"])
        .input("state", lanes::DType::F32, &["batch", "16"])
        .tensor("embedding", &weights(TOKENS, HIDDEN))
        .tensor("recurrent", &weights(HIDDEN, HIDDEN))
        .tensor("head", &weights(HIDDEN, TOKENS))
        .node("Gather", &["embedding", "token"], &["embedded"], &[("axis", 0.into())])
        .node("MatMul", &["state", "recurrent"], &["carried"], &[])
        .node("Add", &["embedded", "carried"], &["sum"], &[])
        .node("Tanh", &["sum"], &["stateN"], &[])
        .node("MatMul", &["stateN", "head"], &["logits"], &[])
        .node("LogSoftmax", &["logits"], &["scores"], &[("axis", (-1).into())])
        .output("scores", lanes::DType::F32, &["batch", "12"])
        .output("stateN", lanes::DType::F32, &["batch", "16"])
        .encode();
    let model = lanes::onnx::load_bytes(bytes, "decoder", &Default::default())?;
    let device = lanes::open("cpu", &Default::default())?;
    Ok(LanesBuilder::new(lanes::planned(device, &model)?).lanes(lanes).build()?)
}

/// The `WIDTH` best sequences that a beam of that width finds, best first.
pub fn search(runnable: &Runnable) -> Result<Vec<Found>, StreamError> {
    let nothing = Found { tokens: Vec::new(), score: 0.0 };
    let mut beams = vec![Beam { stream: runnable.spawn_blocking()?, found: nothing }];
    for _ in 0..LENGTH {
        // All beams share one turn.
        let mut reaper = runnable.reaper();
        for (at, beam) in beams.iter().enumerate() {
            let last = beam.found.tokens.last().copied().unwrap_or(0);
            reaper.submit(&beam.stream, at as u64, &[Value::new(&[], &[last])])?;
        }
        let mut scores = vec![Vec::new(); beams.len()];
        while let Some(reaped) = reaper.next_blocking() {
            scores[reaped.tag as usize] = reaped.result?.get::<f32>(0).unwrap_or_default().to_vec();
        }
        let founds: Vec<Found> = beams.iter().map(|beam| beam.found.clone()).collect();
        let mut children: Vec<Vec<Found>> = vec![Vec::new(); beams.len()];
        for (parent, found) in best_children(&founds, &scores) {
            children[parent].push(found);
        }
        // Those without children go first: their lanes are what the others fork into.
        let families: Vec<_> = beams.into_iter().zip(children).filter(|(_, children)| !children.is_empty()).collect();
        let mut next = Vec::new();
        for (beam, children) in families {
            let mut streams = beam.stream.fork_many_blocking(children.len() as u32 - 1)?;
            streams.push(beam.stream);
            next.extend(streams.into_iter().zip(children).map(|(stream, found)| Beam { stream, found }));
        }
        beams = next;
    }
    let mut found: Vec<Found> = beams.into_iter().map(|beam| beam.found).collect();
    found.sort_by(better);
    Ok(found)
}

/// The best continuations of `founds` by one token, each with its parent's index. `scores` has a row for each of them.
pub fn best_children(founds: &[Found], scores: &[Vec<f32>]) -> Vec<(usize, Found)> {
    let mut all = Vec::new();
    for (parent, (found, scores)) in founds.iter().zip(scores).enumerate() {
        for (token, score) in scores.iter().enumerate() {
            let mut child = found.clone();
            child.tokens.push(token as i64);
            child.score += score;
            all.push((parent, child));
        }
    }
    all.sort_by(|(_, one), (_, other)| better(one, other));
    all.truncate(WIDTH);
    all
}

/// Higher scores first; equal ones by their tokens, so that the order never depends on who was asked first.
pub fn better(one: &Found, other: &Found) -> std::cmp::Ordering {
    other.score.total_cmp(&one.score).then_with(|| one.tokens.cmp(&other.tokens))
}
