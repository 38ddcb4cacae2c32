//! What a stream does between its calls when `--churn` asks for a bad day: a function of seed and stream alone.

use crate::random::Random;

/// Turns that a stream sits out, at most.
const SITS_OUT_MOST: u64 = 8;
/// Times that a stream leaves and joins again, at most.
const REJOINS_MOST: u32 = 3;

/// What a stream does before a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Makes the call.
    Call,
    /// Keeps its lane and lets so many turns pass first.
    SitOut(u32),
    /// Drops its handle, spawns again and replays its rows from turn 0.
    Rejoin,
}

/// One stream's moves.
pub struct Churn {
    random: Random,
    probability: f64,
    rejoins: u32,
}

impl Churn {
    /// The moves of stream `stream`.
    pub fn new(seed: u64, stream: usize, probability: f64) -> Self {
        Self { random: Random::of(&[seed, 0x0063_6875_726E, stream as u64]), probability, rejoins: 0 }
    }

    /// What comes before the next call. Not asked before a stream's first.
    pub fn next_move(&mut self) -> Move {
        if self.random.unit() >= self.probability {
            return Move::Call;
        }
        if self.random.bits() & 1 == 1 && self.rejoins < REJOINS_MOST {
            self.rejoins += 1;
            return Move::Rejoin;
        }
        Move::SitOut(self.random.up_to(SITS_OUT_MOST) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_follow_the_probability_and_their_bounds() {
        let moves = |p| {
            let mut churn = Churn::new(5, 1, p);
            (0..2000).map(|_| churn.next_move()).collect::<Vec<_>>()
        };
        assert!(moves(0.0).iter().all(|m| *m == Move::Call));
        let always = moves(1.0);
        assert_eq!(always.iter().filter(|m| **m == Move::Rejoin).count(), 3);
        assert!(always.iter().all(|m| matches!(m, Move::Rejoin | Move::SitOut(1..=8))));
        let calls = moves(0.3).iter().filter(|m| **m == Move::Call).count();
        // 1400 expected; five standard deviations are 102.
        assert!((1298..1502).contains(&calls), "{calls}");
        assert_eq!(moves(0.3), moves(0.3));
    }
}
