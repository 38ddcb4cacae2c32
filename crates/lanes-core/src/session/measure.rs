//! How long plans and their commands take.
//!
//! - Direct means: every command is a plan of its own, prepared beforehand, submitted one after the other. Scratch is
//!   then memory of its own, held while it is measured.
//! - What is measured runs: regions change as by replays.
//! - Times are the host's, from before a submission to after its end.
//! - Not here: timelines (`trace`).

use super::Session;
use super::definition::Moving;
use super::record::{Commands, Recording};
use super::region::{Kind, Region, invalid};
use super::replay::Ready;
use crate::device::{Completion, DeviceError, Placement};
use crate::plan::{Argument, Command, Place, StorageId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rounds before anything is noted: lists have grown, memory is paged in, clocks are up.
const WARM_UP: usize = 3;

/// Durations, and what lies where among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Ascending.
    sorted: Vec<Duration>,
}

impl FromIterator<Duration> for Distribution {
    fn from_iter<I: IntoIterator<Item = Duration>>(samples: I) -> Self {
        let mut sorted: Vec<_> = samples.into_iter().collect();
        sorted.sort_unstable();
        Self { sorted }
    }
}

impl Distribution {
    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The samples, ascending.
    pub fn samples(&self) -> &[Duration] {
        &self.sorted
    }

    /// The nearest-rank quantile: the least sample that at least `q` of all samples do not exceed. `q` is taken into
    /// 0..=1, where 0 is the least sample and 1 the greatest; `None` without samples or for a NaN.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        if q.is_nan() {
            return None;
        }
        let count = self.sorted.len();
        // The product may be a hair above a whole number that it should be: `rank` need not be the least by one then.
        let mut rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as usize).clamp(1, count.max(1));
        while rank > 1 && (rank - 1) as f64 / count as f64 >= q {
            rank -= 1;
        }
        self.sorted.get(rank - 1).copied()
    }

    /// The sum over the count.
    pub fn mean(&self) -> Option<Duration> {
        let count = u32::try_from(self.sorted.len()).ok().filter(|&count| count > 0)?;
        Some(self.sorted.iter().sum::<Duration>() / count)
    }
}

/// A plan replayed against its commands issued one by one, taken in turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Benchmark {
    /// One submission of the plan, to its end.
    pub replayed: Distribution,
    /// A submission for each command, to the end of the last.
    pub direct: Distribution,
}

/// How long each command takes alone, in program order, by label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The label, and a sample per round.
    pub commands: Vec<(String, Distribution)>,
}

/// The commands of a recording, each a plan of its own.
pub(super) struct Apart(pub Vec<(Arc<str>, Ready)>);

impl Session {
    /// Measures the plan recorded under `key` against the same commands issued directly: `samples` of each in turns,
    /// after a few of both to warm up.
    ///
    /// # Errors
    /// No samples, nothing recorded, and whatever fails when it runs.
    pub fn benchmark(&self, key: &str, samples: usize) -> Result<Benchmark, DeviceError> {
        let (mut apart, samples) = (self.apart(key)?, some(samples)?);
        let mut pending = Vec::with_capacity(apart.0.len());
        let (mut replayed, mut direct) = (Vec::with_capacity(samples), Vec::with_capacity(samples));
        for round in 0..samples + WARM_UP {
            let start = Instant::now();
            self.note(self.replay(key)?.wait())?;
            let between = Instant::now();
            self.issue(&mut apart, &mut pending)?;
            let end = Instant::now();
            if round >= WARM_UP {
                replayed.push(between - start);
                direct.push(end - between);
            }
        }
        Ok(Benchmark { replayed: replayed.into_iter().collect(), direct: direct.into_iter().collect() })
    }

    /// Measures each command of the plan recorded under `key` alone: as a plan of its own, submitted and waited for.
    /// What commands cost together may be less: a device overlaps independent ones.
    ///
    /// # Errors
    /// As [`benchmark`](Self::benchmark).
    pub fn profile(&self, key: &str, samples: usize) -> Result<Profile, DeviceError> {
        let (mut apart, samples) = (self.apart(key)?, some(samples)?);
        let mut times = vec![Vec::with_capacity(samples); apart.0.len()];
        for round in 0..samples + WARM_UP {
            for ((_, ready), times) in apart.0.iter_mut().zip(&mut times) {
                let start = Instant::now();
                let done = self.submit(ready)?.wait();
                let took = start.elapsed();
                self.note(done)?;
                if round >= WARM_UP {
                    times.push(took);
                }
            }
        }
        let named =
            apart.0.iter().zip(times).map(|((label, _), times)| (label.to_string(), times.into_iter().collect()));
        Ok(Profile { commands: named.collect() })
    }

    /// Submits all, then waits for all.
    fn issue(&self, apart: &mut Apart, pending: &mut Vec<Completion>) -> Result<(), DeviceError> {
        pending.clear();
        for (_, ready) in &mut apart.0 {
            pending.push(self.submit(ready)?);
        }
        pending.drain(..).try_for_each(|completion| self.note(completion.wait().map(drop)))
    }

    /// Each command of what is recorded under `key`, prepared alone.
    pub(super) fn apart(&self, key: &str) -> Result<Apart, DeviceError> {
        self.usable()?;
        let recording = self.recording(key)?;
        let regions = recording.stores.iter().map(|store| match store.kind {
            Kind::Scratch => self.region(&store.label, store.bytes, Placement::Device),
            Kind::Memory { .. } | Kind::Weights(_) | Kind::Named => Ok(Region::whole(Arc::clone(store))),
        });
        let regions = regions.collect::<Result<Vec<_>, _>>()?;
        let commands = &recording.plan.commands;
        let apart = (0..commands.len()).map(|at| {
            let label = Arc::from(commands[at].label());
            let alone = self.alone(&recording, at, &regions)?;
            Ok((label, self.note(Ready::new(&**self.device(), Arc::new(alone), false))?))
        });
        Ok(Apart(apart.collect::<Result<_, DeviceError>>()?))
    }

    /// Command `at` of `recording`, over `regions` by storage.
    fn alone(&self, recording: &Recording, at: usize, regions: &[Region]) -> Result<Recording, DeviceError> {
        let (plan, command) = (&recording.plan, &recording.plan.commands[at]);
        let mut alone = Commands::new(command.label(), Some(self.life()), None);
        let mut places = BTreeMap::new();
        for id in named(command) {
            places.insert(id, alone.storage(&regions[id.0 as usize])?);
        }
        let mut moving = Moving {
            // No storage changes its size, so what a kernel sees of one stays what it was.
            bytes: &|id| regions[id.0 as usize].bytes(),
            to_bytes: &|to| {
                let from = places.iter().find(|(_, place)| **place == to).map_or(to, |(from, _)| *from);
                regions[from.0 as usize].bytes()
            },
            storage: &mut |id| (places[&id], 0),
            kernel: &mut |id| alone.kernel(&plan.kernels[id.0 as usize]),
        };
        let command = moving.command(command);
        alone.push(command);
        Ok(alone.finish())
    }
}

/// The storages that a command of a session names.
fn named(command: &Command) -> BTreeSet<StorageId> {
    let bound = match command {
        Command::Dispatch { arguments, .. } => arguments.as_slice(),
        _ => &[],
    };
    let bound = bound.iter().filter_map(|argument| match argument {
        Argument::Buffer { storage, .. } => Some(*storage),
        Argument::Scalar(_) => None,
    });
    let touched = command.touches().into_iter().filter_map(|touch| match touch.place {
        Place::Storage(id) => Some(id),
        Place::RowRead(_) | Place::RowWritten(_) => None,
    });
    bound.chain(touched).collect()
}

fn some(samples: usize) -> Result<usize, DeviceError> {
    if samples == 0 { Err(invalid("0 samples: a measurement takes at least one".into())) } else { Ok(samples) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against the definition: the least sample that at least `q` of all samples do not exceed.
        #[test]
        fn a_quantile_is_of_the_nearest_rank(
            samples in prop::collection::vec(0u64..50, 0..40), parts in 0u32..=20, of in 1u32..=20,
        ) {
            let q = f64::from(parts.min(of)) / f64::from(of);
            let durations: Vec<_> = samples.iter().map(|&nanos| Duration::from_nanos(nanos)).collect();
            let enough = |candidate: &Duration| {
                let below = durations.iter().filter(|sample| *sample <= candidate).count();
                // `below / count >= parts / of`, in whole numbers.
                below as u64 * u64::from(of) >= u64::from(parts.min(of)) * durations.len() as u64
            };
            let expected = durations.iter().copied().filter(|sample| enough(sample)).min();
            let distribution: Distribution = durations.iter().copied().collect();
            prop_assert_eq!(distribution.quantile(q), expected);
            prop_assert_eq!(distribution.quantile(1.0), durations.iter().copied().max());
            prop_assert_eq!(distribution.quantile(0.0), durations.iter().copied().min());
            prop_assert_eq!(distribution.quantile(f64::NAN), None);
        }
    }

    #[test]
    fn the_mean_is_the_sum_over_the_count() {
        let distribution: Distribution = [1u64, 2, 6].into_iter().map(Duration::from_micros).collect();
        assert_eq!(distribution.mean(), Some(Duration::from_micros(3)));
        assert_eq!((Distribution::default().mean(), Distribution::default().is_empty()), (None, true));
    }
}
