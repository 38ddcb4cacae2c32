//! The knobs of a runnable: what the builder was told, else an environment variable, else a default.

use super::error::BuildError;
use super::model::Capacity;
use super::rows::Rows;
use std::time::Duration;

/// Lanes when nothing says otherwise.
const LANES: u32 = 64;
/// The most lanes or seats: rows have to fit their index, with room.
const LANES_MAX: u32 = 1 << 24;
/// The longest linger: past a minute it is a mistake.
const LINGER_US_MAX: u64 = 60_000_000;
/// The longest queue.
const QUEUE_MAX: usize = 1 << 24;
/// The most slots: each takes rows for a whole turn. With the most lanes and seats, rows still fit their index.
const SLOTS_MAX: u64 = 64;

/// What the builder was told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub lanes: Option<u32>,
    pub max_seats: Option<u32>,
    pub linger: Option<Duration>,
    pub queue: Option<usize>,
    pub slots: Option<usize>,
    pub checkpoints: Option<u32>,
}

/// What holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Knobs {
    pub lanes: u32,
    /// At most `lanes`: a lane has one seat per turn.
    pub max_seats: u32,
    pub linger: Duration,
    pub queue: usize,
    /// Turns in flight at most.
    pub slots: usize,
    pub checkpoints: u32,
}

impl Knobs {
    /// The room that the model prepares.
    pub fn capacity(&self) -> Capacity {
        Rows::capacity(self.lanes, self.max_seats, self.slots, self.checkpoints)
    }

    /// `environment` looks a variable up.
    pub fn resolve(asked: Asked, environment: impl Fn(&str) -> Option<String>) -> Result<Self, BuildError> {
        let pick = |asked: Option<u64>,
                    knob: &'static str,
                    variable: &'static str,
                    expected: &'static str,
                    max: u64,
                    min: u64| {
            let (knob, found, value) = match (asked, environment(variable)) {
                (Some(value), _) => (knob, value.to_string(), Some(value)),
                (None, Some(text)) => (variable, format!("{text:?}"), text.trim().parse::<u64>().ok()),
                (None, None) => return Ok(None),
            };
            match value {
                Some(value) if (min..=max).contains(&value) => Ok(Some(value)),
                _ => Err(BuildError::Knob { knob, found, expected }),
            }
        };
        let count = "a whole number from 1 to 16777216";
        let (most, linger_max) = (u64::from(LANES_MAX), LINGER_US_MAX);
        let lanes = pick(asked.lanes.map(u64::from), "lanes", "LANES_MAX_LANES", count, most, 1)?;
        let lanes = lanes.map_or(LANES, |lanes| lanes as u32);
        let max_seats = pick(asked.max_seats.map(u64::from), "max_seats", "LANES_MAX_SEATS", count, most, 1)?;
        let max_seats = max_seats.map_or(lanes, |seats| seats as u32).min(lanes);
        let linger = asked.linger.map(|linger| u64::try_from(linger.as_micros()).unwrap_or(u64::MAX));
        let linger = pick(linger, "linger", "LANES_LINGER_US", "microseconds from 0 to 60000000", linger_max, 0)?;
        // The builder's own value is kept whole: it may be finer than a microsecond.
        let linger = asked.linger.unwrap_or(Duration::from_micros(linger.unwrap_or(0)));
        let queue = pick(asked.queue.map(|queue| queue as u64), "queue", "LANES_QUEUE", count, QUEUE_MAX as u64, 1)?;
        let queue = queue.map_or((4 * lanes as usize).min(QUEUE_MAX), |queue| queue as usize);
        let slots = asked.slots.map(|slots| slots as u64);
        let slots = pick(slots, "slots", "LANES_SLOTS", "a whole number from 1 to 64", SLOTS_MAX, 1)?;
        let slots = slots.map_or(1, |slots| slots as usize);
        let (none_or_more, asked) = ("a whole number from 0 to 16777216", asked.checkpoints.map(u64::from));
        let checkpoints = pick(asked, "checkpoints", "LANES_CHECKPOINTS", none_or_more, most, 0)?;
        // None unless asked for: each takes a row of every state, and most streams never go back.
        let checkpoints = checkpoints.map_or(0, |checkpoints| checkpoints as u32);
        Ok(Self { lanes, max_seats, linger, queue, slots, checkpoints })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(asked: Asked, variables: &[(&str, &str)]) -> Result<Knobs, String> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        Knobs::resolve(asked, find).map_err(|error| error.to_string())
    }

    #[test]
    fn the_builder_wins_over_the_environment_and_the_environment_over_the_default() {
        let default = from(Asked::default(), &[]).unwrap();
        let (linger, queue, slots, checkpoints) = (Duration::ZERO, 256, 1, 0);
        assert_eq!(default, Knobs { lanes: 64, max_seats: 64, linger, queue, slots, checkpoints });
        let variables = [
            ("LANES_MAX_LANES", "8"),
            ("LANES_MAX_SEATS", "3"),
            ("LANES_LINGER_US", "250"),
            ("LANES_QUEUE", "5"),
            ("LANES_SLOTS", "2"),
            ("LANES_CHECKPOINTS", "6"),
        ];
        let set = from(Asked::default(), &variables).unwrap();
        let (linger, queue, slots, checkpoints) = (Duration::from_micros(250), 5, 2, 6);
        assert_eq!(set, Knobs { lanes: 8, max_seats: 3, linger, queue, slots, checkpoints });
        let (linger, queue, slots, checkpoints) = (Duration::from_nanos(1), 9, 3, 0);
        let asked = Asked {
            lanes: Some(2),
            max_seats: Some(1),
            linger: Some(linger),
            queue: Some(queue),
            slots: Some(slots),
            checkpoints: Some(checkpoints),
        };
        let both = from(asked, &variables).unwrap();
        assert_eq!(both, Knobs { lanes: 2, max_seats: 1, linger, queue, slots, checkpoints });
    }

    #[test]
    fn a_turn_has_no_more_seats_than_lanes() {
        let asked = Asked { lanes: Some(4), max_seats: Some(256), ..Asked::default() };
        assert_eq!(from(asked, &[]).unwrap().max_seats, 4);
    }

    #[test]
    fn refuses_what_is_out_of_range_by_name() {
        let count = "a whole number from 1 to 16777216";
        for text in ["0", "-1", "x", "", "16777217", "1.5"] {
            let expected = format!("LANES_MAX_SEATS: found {text:?}, expected {count}");
            assert_eq!(from(Asked::default(), &[("LANES_MAX_SEATS", text)]), Err(expected));
        }
        let asked = Asked { lanes: Some(0), ..Asked::default() };
        assert_eq!(from(asked, &[]), Err(format!("lanes: found 0, expected {count}")));
        let asked = Asked { linger: Some(Duration::MAX), ..Asked::default() };
        assert!(from(asked, &[]).unwrap_err().ends_with("expected microseconds from 0 to 60000000"));
        let few = "expected a whole number from 1 to 64";
        let asked = Asked { slots: Some(0), ..Asked::default() };
        assert_eq!(from(asked, &[]), Err(format!("slots: found 0, {few}")));
        assert_eq!(from(Asked::default(), &[("LANES_SLOTS", "65")]), Err(format!("LANES_SLOTS: found \"65\", {few}")));
        let many = from(Asked::default(), &[("LANES_CHECKPOINTS", "16777217")]);
        let expected = "LANES_CHECKPOINTS: found \"16777217\", expected a whole number from 0 to 16777216";
        assert_eq!(many, Err(expected.into()));
    }
}
