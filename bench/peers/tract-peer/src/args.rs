//! The command line, parsed once into what the two benchmarks need.
//!
//! - An option is `--name value`; each is accepted once, and only by the command that reads it.
//! - Every number is bounded here, so that no benchmark can be asked for more memory or time than it could use.
//! - Not here: whether the model file exists or fits its preset; `step` finds that out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::null_lanes::NullLanes;
use crate::preset::Preset;
use crate::step::{PlanKind, Step};

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    /// The laned runnable on the null model.
    NullLanes(NullLanes),
    /// Batched turns of an ONNX model.
    Step(Step),
    /// The usage text.
    Help,
}

/// What is wrong with the command line.
#[derive(Debug, PartialEq)]
pub enum UsageError {
    /// No command, or none of ours.
    Command { found: String },
    /// An argument that is not unicode; model paths have to be, as reports quote them.
    NotUnicode { found: OsString },
    /// An option that the command does not read.
    Option { found: String, accepted: String },
    /// An option without a value after it.
    NoValue { option: String },
    /// An option given a second time.
    Twice { option: String },
    /// An option that has no default was left out.
    Missing {
        option: &'static str,
        accepted: String,
    },
    /// A value that does not parse or is out of bounds.
    Value {
        option: &'static str,
        found: String,
        accepted: String,
    },
    /// Too few or too many arguments beside the options.
    Positionals {
        command: &'static str,
        found: usize,
        accepted: usize,
    },
    /// More calls than their latencies are kept for.
    Calls { streams: usize, turns: usize },
}

impl Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UsageError::Command { found } => {
                write!(f, "command `{found}` is none of null-lanes, step, help")
            }
            UsageError::NotUnicode { found } => write!(f, "argument {found:?} is not unicode"),
            UsageError::Option { found, accepted } => {
                write!(f, "option `{found}` is none of {accepted}")
            }
            UsageError::NoValue { option } => write!(f, "option `{option}` has no value after it"),
            UsageError::Twice { option } => write!(f, "option `{option}` was given twice"),
            UsageError::Missing { option, accepted } => {
                write!(f, "option `{option}` is missing; it takes {accepted}")
            }
            UsageError::Value {
                option,
                found,
                accepted,
            } => {
                write!(f, "option `{option}` takes {accepted}, not `{found}`")
            }
            UsageError::Positionals {
                command,
                found,
                accepted,
            } => {
                write!(
                    f,
                    "found {found} arguments beside the options, {command} takes {accepted}"
                )
            }
            UsageError::Calls { streams, turns } => {
                write!(
                    f,
                    "{streams} streams of {turns} turns are more than {CALLS_MAX} calls in all"
                )
            }
        }
    }
}

impl std::error::Error for UsageError {}

/// Calls of one null-lanes run: each leaves a latency of 8 bytes.
const CALLS_MAX: usize = 50_000_000;

impl Command {
    /// Parses the words after the program's name.
    pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
        let words = words
            .into_iter()
            .map(|word| {
                word.into_string()
                    .map_err(|found| UsageError::NotUnicode { found })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let Some((command, words)) = words.split_first() else {
            return Err(UsageError::Command {
                found: String::new(),
            });
        };
        match command.as_str() {
            "null-lanes" => null_lanes(words).map(Command::NullLanes),
            "step" => step(words).map(Command::Step),
            "help" | "--help" | "-h" => Ok(Command::Help),
            other => Err(UsageError::Command {
                found: other.to_owned(),
            }),
        }
    }
}

fn null_lanes(words: &[String]) -> Result<NullLanes, UsageError> {
    let words = Words::split(words, &["--streams", "--turns", "--width", "--linger-us"])?;
    words.positionals("null-lanes", 0)?;
    let streams: usize = words.number("--streams", 1..=65_536, None)?;
    let turns = words.number("--turns", 1..=CALLS_MAX, None)?;
    if streams.saturating_mul(turns) > CALLS_MAX {
        return Err(UsageError::Calls { streams, turns });
    }
    Ok(NullLanes {
        streams,
        turns,
        width: words.number("--width", 1..=1 << 20, Some(64))?,
        linger_us: words.number("--linger-us", 0..=1_000_000, Some(0))?,
    })
}

fn step(words: &[String]) -> Result<Step, UsageError> {
    let words = Words::split(words, &["--preset", "--batch", "--seconds", "--plan"])?;
    words.positionals("step", 1)?;
    Ok(Step {
        model: PathBuf::from(&words.positionals[0]),
        preset: words.choice(
            "--preset",
            &Preset::ALL.map(|preset| (preset.name, preset)),
            None,
        )?,
        batch: words.number("--batch", 1..=65_536, None)?,
        measure_for: Duration::from_secs_f64(words.number("--seconds", 0.001..=600.0, None)?),
        plan: words.choice(
            "--plan",
            &PlanKind::ALL.map(|plan| (plan.name(), plan)),
            Some("fixed"),
        )?,
    })
}

/// A command's words, options apart from the rest.
struct Words {
    positionals: Vec<String>,
    options: BTreeMap<String, String>,
}

impl Words {
    fn split(words: &[String], accepted: &[&str]) -> Result<Words, UsageError> {
        let (mut positionals, mut options) = (Vec::new(), BTreeMap::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if !word.starts_with("--") {
                positionals.push(word.clone());
                continue;
            }
            if !accepted.contains(&word.as_str()) {
                return Err(UsageError::Option {
                    found: word.clone(),
                    accepted: accepted.join(", "),
                });
            }
            let value = words.next().ok_or_else(|| UsageError::NoValue {
                option: word.clone(),
            })?;
            if options.insert(word.clone(), value.clone()).is_some() {
                return Err(UsageError::Twice {
                    option: word.clone(),
                });
            }
        }
        Ok(Words {
            positionals,
            options,
        })
    }

    fn positionals(&self, command: &'static str, accepted: usize) -> Result<(), UsageError> {
        let found = self.positionals.len();
        if found == accepted {
            Ok(())
        } else {
            Err(UsageError::Positionals {
                command,
                found,
                accepted,
            })
        }
    }

    /// The value of `option` if it lies in `bounds`, which a NaN never does.
    fn number<T: FromStr + PartialOrd + Display>(
        &self,
        option: &'static str,
        bounds: RangeInclusive<T>,
        default: Option<T>,
    ) -> Result<T, UsageError> {
        let accepted = format!("a number from {} to {}", bounds.start(), bounds.end());
        match (self.options.get(option), default) {
            (Some(found), _) => match found.parse() {
                Ok(value) if bounds.contains(&value) => Ok(value),
                _ => Err(UsageError::Value {
                    option,
                    found: found.clone(),
                    accepted,
                }),
            },
            (None, Some(default)) => Ok(default),
            (None, None) => Err(UsageError::Missing { option, accepted }),
        }
    }

    /// What stands beside the name that `option` gives, or beside `default`.
    fn choice<T: Copy>(
        &self,
        option: &'static str,
        choices: &[(&'static str, T)],
        default: Option<&str>,
    ) -> Result<T, UsageError> {
        let accepted = || {
            choices
                .iter()
                .map(|(name, _)| *name)
                .collect::<Vec<_>>()
                .join(" or ")
        };
        let Some(found) = self.options.get(option).map(String::as_str).or(default) else {
            return Err(UsageError::Missing {
                option,
                accepted: accepted(),
            });
        };
        let choice = choices.iter().find(|(name, _)| *name == found);
        choice
            .map(|(_, value)| *value)
            .ok_or_else(|| UsageError::Value {
                option,
                found: found.to_owned(),
                accepted: accepted(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, UsageError> {
        Command::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn null_lanes_has_defaults_for_width_and_linger() {
        let Ok(Command::NullLanes(bench)) = parse("null-lanes --turns 10 --streams 64") else {
            panic!("not parsed");
        };
        assert_eq!(
            (bench.streams, bench.turns, bench.width, bench.linger_us),
            (64, 10, 64, 0)
        );
    }

    #[test]
    fn step_takes_its_model_anywhere_among_the_options() {
        for line in [
            "step m.onnx --preset flashvad --batch 32 --seconds 1.5 --plan symbolic",
            "step --preset flashvad --batch 32 --seconds 1.5 m.onnx --plan symbolic",
        ] {
            let Ok(Command::Step(bench)) = parse(line) else {
                panic!("`{line}` not parsed")
            };
            assert_eq!(bench.model, PathBuf::from("m.onnx"));
            assert_eq!(
                (bench.preset.name, bench.batch, bench.plan),
                ("flashvad", 32, PlanKind::Symbolic)
            );
            assert_eq!(bench.measure_for, Duration::from_millis(1500));
        }
        let Ok(Command::Step(bench)) = parse("step m.onnx --preset silero --batch 1 --seconds 1")
        else {
            panic!("not parsed");
        };
        assert_eq!(bench.plan, PlanKind::Fixed);
    }

    #[test]
    fn a_wrong_line_is_refused_by_name() {
        for (line, named) in [
            ("", "command ``"),
            ("lanes", "`lanes`"),
            ("null-lanes --streams 1", "`--turns` is missing"),
            (
                "null-lanes --streams 0 --turns 1",
                "`--streams` takes a number from 1",
            ),
            ("null-lanes --streams x --turns 1", "not `x`"),
            ("null-lanes --streams 1 --turns", "`--turns` has no value"),
            (
                "null-lanes --streams 1 --streams 1 --turns 1",
                "`--streams` was given twice",
            ),
            (
                "null-lanes --streams 1 --turns 1 --batch 2",
                "`--batch` is none of",
            ),
            (
                "null-lanes --streams 1 --turns 1 m.onnx",
                "found 1 arguments",
            ),
            (
                "null-lanes --streams 50000 --turns 50000",
                "more than 50000000 calls",
            ),
            (
                "step --preset silero --batch 1 --seconds 1",
                "found 0 arguments",
            ),
            (
                "step m.onnx --batch 1 --seconds 1",
                "takes silero or flashvad",
            ),
            (
                "step m.onnx --preset other --batch 1 --seconds 1",
                "not `other`",
            ),
            (
                "step m.onnx --preset silero --batch 1 --seconds NaN",
                "not `NaN`",
            ),
            (
                "step m.onnx --preset silero --batch 1 --seconds 0",
                "from 0.001",
            ),
            (
                "step m.onnx --preset silero --batch 1 --seconds 1 --plan both",
                "fixed or symbolic",
            ),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(named), "`{line}`: {error}");
        }
    }
}
