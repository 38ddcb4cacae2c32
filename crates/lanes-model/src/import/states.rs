//! Which output feeds which input on the next turn.
//!
//! - Pairs match by name: `state`/`stateN`, `h`/`hn`/`h_out`, `x`/`next_x`, `past…`/`present…`, `c_in`/`c_out`, …
//!   Never by position. What was declared comes first; the rest is found.
//! - Two outputs for one input, or two inputs for one output, is an error that lists them; so is an input that calls
//!   itself a state and has no output, unless the caller gave it a shape, as for an input that streams.
//! - Not here: whether a pair's shapes agree, which is known only after import.

use super::declared::{Declared, Dim};
use super::options::{ImportOptions, StatePair};
use crate::error::ModelError;
use std::collections::BTreeSet;

/// A pair, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) input: String,
    pub(super) output: String,
    /// The lane axis that was declared.
    pub(super) axis: Option<usize>,
}

/// What an input may be called beyond its output's stem, by how sure it is that it means a state.
const INPUT_MARKS: [(&[&str], &[&str]); 2] = [
    (
        &["past_", "past.", "prev_", "previous_", "old_", "last_", "init_", "initial_"],
        &["_prev", "_previous", "_past", "_old", "_init", "_0", "0"],
    ),
    (&["in_", "input_", "i_"], &["_in", "_input", "in", "_i"]),
];
const OUTPUT_MARKS: [(&[&str], &[&str]); 2] = [
    (
        &["present_", "present.", "next_", "new_", "updated_", "final_"],
        &["_next", "_new", "_present", "_updated", "_final", "_n", "n", "_1", "1", "next", "new"],
    ),
    (&["out_", "output_", "o_"], &["_out", "_output", "out", "_o"]),
];

/// Words of a name that say that it is a state.
const STATE_WORDS: [&str; 12] =
    ["state", "states", "hidden", "cell", "cache", "past", "prev", "memory", "mem", "context", "buffer", "recurrent"];
/// Names that stand for what streams through, so that `x_in` and `x_out` are no pair.
const STREAM_WORDS: [&str; 20] = [
    "audio", "input", "frame", "frames", "wav", "wave", "waveform", "signal", "speech", "sample", "samples", "feat",
    "feats", "feature", "features", "mix", "noisy", "spec", "mel", "data",
];

/// What is left of `name` (lower case) without one of `marks`, each with whether the mark is sure; itself first.
fn stems(name: &str, marks: &[(&[&str], &[&str]); 2]) -> Vec<(String, bool)> {
    let name = name.to_ascii_lowercase();
    let mut found = vec![(name.clone(), false)];
    for (sure, (prefixes, suffixes)) in [(true, &marks[0]), (false, &marks[1])] {
        let rests = prefixes.iter().filter_map(|mark| name.strip_prefix(mark));
        let rests = rests.chain(suffixes.iter().filter_map(|mark| name.strip_suffix(mark)));
        found.extend(rests.filter(|rest| !rest.is_empty()).map(|rest| (rest.to_owned(), sure)));
    }
    // `past_key_values.0.key` becomes `present.0.key`.
    if let Some(rest) = name.strip_prefix("past_key_values.") {
        found.push((rest.into(), true));
    }
    found
}

fn words(name: &str) -> Vec<String> {
    let lower = name.to_ascii_lowercase();
    lower.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty()).map(String::from).collect()
}

fn calls_itself_a_state(name: &str) -> bool {
    words(name).iter().any(|word| STATE_WORDS.contains(&word.as_str()))
}

/// Whether `output` is what `input` is called on the next turn.
fn names_match(input: &str, output: &str) -> bool {
    // `past…` becomes `present…`, wherever it stands in the name.
    let lower = input.to_ascii_lowercase();
    if lower.contains("past") && lower.replacen("past", "present", 1) == output.to_ascii_lowercase() {
        return true;
    }
    let (inputs, outputs) = (stems(input, &INPUT_MARKS), stems(output, &OUTPUT_MARKS));
    inputs.iter().any(|(stem, input_sure)| {
        outputs.iter().any(|(other, output_sure)| {
            let streams = words(stem).iter().all(|word| STREAM_WORDS.contains(&word.as_str()));
            stem == other && (*input_sure || *output_sure || !streams)
        })
    })
}

/// Whether the declarations allow the pair: one type, one rank, no two numbers that differ.
fn may_pair(input: &Declared, output: &Declared) -> bool {
    let dims = match (&input.dims, &output.dims) {
        (Some(a), Some(b)) => {
            a.len() == b.len()
                && a.iter().zip(b).all(|pair| match pair {
                    (Dim::Known(a), Dim::Known(b)) => a == b,
                    _ => true,
                })
        }
        _ => true,
    };
    dims && (output.dtype.is_none() || input.dtype == output.dtype)
}

/// The pairs of a model with `inputs` (without fixed ones) and `outputs`.
pub(super) fn pair(
    inputs: &[Declared],
    outputs: &[Declared],
    options: &ImportOptions,
) -> Result<Vec<Pair>, ModelError> {
    let list = |declared: &[Declared]| {
        let items = declared.iter().map(|one| format!("{} {}", one.name, one.shape())).collect::<Vec<_>>();
        if items.is_empty() { "none".into() } else { items.join(", ") }
    };
    let mut pairs: Vec<Pair> = Vec::new();
    for StatePair { input, output, axis } in &options.states {
        if !inputs.iter().any(|declared| declared.name == *input) {
            return Err(ModelError::option(format!(
                "--state {input}={output}: the model has no input {input:?}; it has {}",
                list(inputs)
            )));
        }
        if !outputs.iter().any(|declared| declared.name == *output) {
            return Err(ModelError::option(format!(
                "--state {input}={output}: the model has no output {output:?}; it has {}",
                list(outputs)
            )));
        }
        if let Some(other) = pairs.iter().find(|pair| pair.input == *input || pair.output == *output) {
            let other = format!("{}={}", other.input, other.output);
            return Err(ModelError::option(format!("--state {input}={output} and --state {other} share a name")));
        }
        pairs.push(Pair { input: input.clone(), output: output.clone(), axis: *axis });
    }
    let declared = pairs.clone();
    let taken = |name: &str| declared.iter().any(|pair| pair.input == name || pair.output == name);
    let streams = |name: &str| options.shapes.contains_key(name) || options.shared.iter().any(|shared| shared == name);
    for input in inputs.iter().filter(|input| !taken(&input.name) && !streams(&input.name)) {
        let named: Vec<&Declared> =
            outputs.iter().filter(|output| !taken(&output.name) && names_match(&input.name, &output.name)).collect();
        let fitting: Vec<&Declared> = named.iter().copied().filter(|output| may_pair(input, output)).collect();
        let pair = match (&fitting[..], &named[..]) {
            ([output], _) => Some(output),
            // The name says so and the shape does not: let import say what differs.
            ([], [output]) if calls_itself_a_state(&input.name) => Some(output),
            ([], _) if calls_itself_a_state(&input.name) => {
                let fitting: Vec<Declared> = outputs.iter().filter(|output| may_pair(input, output)).cloned().collect();
                return Err(ModelError::States {
                    what: format!(
                        "input {} {} looks like a state, and no output is named after it; outputs of its shape and type: {}; \
                         declare it with --state {}=OUTPUT, or feed it with --input",
                        input.name,
                        input.shape(),
                        list(&fitting),
                        input.name
                    ),
                });
            }
            ([], _) => None,
            (several, _) => {
                let several: Vec<Declared> = several.iter().map(|&output| output.clone()).collect();
                return Err(ModelError::States {
                    what: format!(
                        "input {} may be fed by any of {}; declare one with --state {}=OUTPUT",
                        input.name,
                        list(&several),
                        input.name
                    ),
                });
            }
        };
        if let Some(output) = pair {
            pairs.push(Pair { input: input.name.clone(), output: output.name.clone(), axis: None });
        }
    }
    let mut fed = BTreeSet::new();
    for pair in &pairs {
        if !fed.insert(&pair.output) {
            let rivals: Vec<&str> =
                pairs.iter().filter(|other| other.output == pair.output).map(|other| other.input.as_str()).collect();
            return Err(ModelError::States {
                what: format!(
                    "output {} may feed any of inputs {}; declare one with --state INPUT={}",
                    pair.output,
                    rivals.join(", "),
                    pair.output
                ),
            });
        }
    }
    // In the order of the model's inputs.
    pairs.sort_by_key(|pair| inputs.iter().position(|input| input.name == pair.input));
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_field_match() {
        for (input, output) in [
            ("state", "stateN"),
            ("h", "hn"),
            ("h", "h_out"),
            ("h0", "hn"),
            ("h_0", "h_n"),
            ("x", "next_x"),
            ("past_key_values.0.key", "present.0.key"),
            ("past_key_0", "present_key_0"),
            ("past", "present"),
            ("layer0_past", "layer0_present"),
            ("cache_0", "next_cache_0"),
            ("cached_len_0", "new_cached_len_0"),
            ("conv_cache", "conv_cache_out"),
            ("in_state", "out_state"),
            ("h_in", "h_out"),
            ("prev_hidden", "hidden"),
            ("recurrent", "next_recurrent"),
            ("states", "new_states"),
        ] {
            assert!(names_match(input, output), "{input} {output}");
        }
        for (input, output) in
            [("input", "output"), ("audio_in", "audio_out"), ("h", "cn"), ("cache_0", "next_cache_1"), ("x", "y")]
        {
            assert!(!names_match(input, output), "{input} {output}");
        }
    }
}
