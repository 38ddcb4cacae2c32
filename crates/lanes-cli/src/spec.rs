//! `NAME=SPEC`: what feeds an input.

use crate::error::{CliError, CliResult};
use std::path::{Path, PathBuf};

/// What feeds one input, as the command line says it.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// An array with axes `[stream, turn, …]` or `[turn, …]`.
    Npy(PathBuf),
    /// A wav file or a folder of them, cut to frames.
    Wav {
        /// The file or folder.
        path: PathBuf,
        /// Samples a turn is fed; the model's own length if not given.
        frame: Option<usize>,
        /// Samples between turns; `frame` if not given.
        hop: Option<usize>,
    },
    /// Made-up values.
    Made {
        /// Which.
        values: Made,
        /// The length of the input's open axis, for models that leave one open.
        frame: Option<usize>,
    },
}

/// Values that need no file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Made {
    /// Standard normal.
    Normal,
    /// Uniform in [0, 1).
    Uniform,
    /// One number everywhere.
    Number(f64),
}

const ACCEPTED: &str = "FILE.npy, FILE.wav[,frame=F][,hop=H] or a folder of wavs, normal, uniform, zeros, or a number (these with [,frame=F])";

impl Spec {
    /// Reads one SPEC.
    pub fn parse(text: &str) -> CliResult<Self> {
        let (head, options) = head_and_options(text);
        let (mut frame, mut hop) = (None, None);
        for part in options.into_iter().flat_map(|options| options.split(',')) {
            let option = match part.split_once('=') {
                Some(("frame", _)) => &mut frame,
                Some(("hop", _)) => &mut hop,
                _ => {
                    return Err(CliError::usage(format!(
                        "input `{text}`: found `{part}`; after the source come frame=F and hop=H"
                    )));
                }
            };
            let value =
                part.split_once('=').and_then(|(_, value)| value.parse::<usize>().ok()).filter(|&value| value > 0);
            let Some(value) = value else {
                return Err(CliError::usage(format!(
                    "input `{text}`: `{part}` needs a positive whole number of samples"
                )));
            };
            if option.replace(value).is_some() {
                return Err(CliError::usage(format!("input `{text}`: `{part}` is given twice")));
            }
        }
        let path = PathBuf::from(head);
        let made = match head {
            "normal" => Some(Made::Normal),
            "uniform" => Some(Made::Uniform),
            "zeros" => Some(Made::Number(0.0)),
            "true" => Some(Made::Number(1.0)),
            "false" => Some(Made::Number(0.0)),
            number => number.parse().ok().map(Made::Number),
        };
        if let Some(values) = made {
            if hop.is_some() {
                return Err(CliError::usage(format!("input `{text}`: hop=H goes with a wav")));
            }
            return Ok(Self::Made { values, frame });
        }
        let ends_in = |extension: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension));
        if ends_in("npy") {
            if frame.or(hop).is_some() {
                return Err(CliError::usage(format!(
                    "input `{text}`: frame=F and hop=H go with a wav; an .npy brings its own shape"
                )));
            }
            return Ok(Self::Npy(path));
        }
        if ends_in("wav") || path.is_dir() {
            return Ok(Self::Wav { path, frame, hop });
        }
        Err(CliError::usage(format!("input `{text}`: no such folder, file kind or generator; accepted: {ACCEPTED}")))
    }
}

/// Where the source ends and its options begin: at the last comma before which a file or folder of that name is there,
/// or at none if all of it is one, so that a path may hold commas; else at the first.
fn head_and_options(text: &str) -> (&str, Option<&str>) {
    if Path::new(text).exists() {
        return (text, None);
    }
    let commas = text.match_indices(',').rev().map(|(at, _)| (&text[..at], &text[at + 1..]));
    let there = commas.clone().find(|(head, _)| Path::new(head).exists());
    there.or_else(|| text.split_once(',')).map_or((text, None), |(head, options)| (head, Some(options)))
}

/// Splits the `NAME=SPEC` of `--input` for a model whose inputs are `names`. The name may be left out when one of them
/// streams.
pub fn named<'a>(argument: &'a str, names: &[&'a str], streams: &[&'a str]) -> CliResult<(&'a str, &'a str)> {
    let list = || names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    // The longest name first: a name may hold a `=` itself.
    let mut by_length = names.to_vec();
    by_length.sort_by_key(|name| std::cmp::Reverse(name.len()));
    for name in by_length {
        if let Some(spec) = argument.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
            return Ok((name, spec));
        }
    }
    if names.is_empty() {
        return Err(CliError::usage(format!("--input `{argument}`: the model has no inputs to feed")));
    }
    if let Some((name, _)) = argument.split_once('=')
        && !name.contains([',', '.', '/', '\\'])
    {
        return Err(CliError::usage(format!("--input `{argument}`: the model has no such input; it has {}", list())));
    }
    match streams {
        [only] => Ok((only, argument)),
        _ => Err(CliError::usage(format!(
            "--input `{argument}`: say which input, as NAME=SPEC; the model has {}",
            list()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_contract_is_read() {
        let wav = |frame, hop| Spec::Wav { path: "a.wav".into(), frame, hop };
        let made = |values| Spec::Made { values, frame: None };
        for (text, expected) in [
            ("a.wav", wav(None, None)),
            ("a.wav,frame=576,hop=512", wav(Some(576), Some(512))),
            ("a.wav,hop=512", wav(None, Some(512))),
            ("x/b.npy", Spec::Npy("x/b.npy".into())),
            ("normal", made(Made::Normal)),
            ("uniform", made(Made::Uniform)),
            ("zeros", made(Made::Number(0.0))),
            ("-2.5", made(Made::Number(-2.5))),
            ("normal,frame=3", Spec::Made { values: Made::Normal, frame: Some(3) }),
        ] {
            assert_eq!(Spec::parse(text).unwrap(), expected, "{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let text = format!("{},frame=8", path.display());
        assert_eq!(Spec::parse(&text).unwrap(), Spec::Wav { path, frame: Some(8), hop: None });
        // A comma is one of the path's where that is there.
        let path = folder.path().join("a,hop=3,b");
        let text = format!("{},frame=8,hop=2", path.display());
        assert!(Spec::parse(&text).is_err());
        std::fs::create_dir(&path).unwrap();
        assert_eq!(Spec::parse(&text).unwrap(), Spec::Wav { path: path.clone(), frame: Some(8), hop: Some(2) });
        let whole = Spec::parse(path.to_str().unwrap()).unwrap();
        assert_eq!(whole, Spec::Wav { path, frame: None, hop: None });
    }

    #[test]
    fn what_is_not_of_the_contract_is_refused_with_what_is() {
        for (text, says) in [
            ("", "accepted: FILE.npy"),
            ("missing.mp3", "accepted: FILE.npy"),
            ("a.wav,frame=0", "positive whole number"),
            ("a.wav,frame=-1", "positive whole number"),
            ("a.wav,step=1", "frame=F and hop=H"),
            ("a.wav,hop=1,hop=2", "given twice"),
            ("a.npy,hop=1", "brings its own shape"),
            ("normal,hop=1", "goes with a wav"),
        ] {
            let error = Spec::parse(text).unwrap_err();
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn names_are_found_and_may_be_left_out_for_a_lone_input() {
        let split = |argument, names: &[&'static str]| named(argument, names, names).map_err(|e| e.to_string());
        assert_eq!(split("x=normal", &["x", "y"]), Ok(("x", "normal")));
        assert_eq!(split("a.wav,frame=5", &["x"]), Ok(("x", "a.wav,frame=5")));
        assert_eq!(split("a=b=1", &["a", "a=b"]), Ok(("a=b", "1")));
        assert!(split("z=normal", &["x"]).unwrap_err().contains("it has `x`"));
        assert!(split("normal", &["x", "y"]).unwrap_err().contains("say which input"));
        assert!(split("normal", &[]).is_err());
        assert_eq!(named("normal", &["scale", "x"], &["x"]).unwrap(), ("x", "normal"));
        assert_eq!(named("scale=1", &["scale", "x"], &["x"]).unwrap(), ("scale", "1"));
    }
}
