//! The streaming models that `step` knows how to feed: what each input is and which output it comes from next turn.
//!
//! - Tensors are found by name, so that exports which order them differently take one preset.
//! - An input that a preset has and a model lacks is left out, if it is a constant: some exports have `sr` folded in.
//! - Not here: the models' files; neither is ours to ship. README.md says where they come from.

/// One model family.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// As `--preset` spells it.
    pub name: &'static str,
    /// Audio that one turn advances one stream by, in milliseconds.
    pub frame_ms: f64,
    /// Every input that a model of this family may have.
    pub inputs: &'static [Input],
}

/// One input of a model.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// Its name in the ONNX file.
    pub name: &'static str,
    /// What it is fed.
    pub feed: Feed,
}

/// What an input is fed, and its shape; all but constants are f32.
#[derive(Clone, Copy, Debug)]
pub enum Feed {
    /// New data every turn.
    Frame(&'static [Dim]),
    /// Zeros at first, then what the output `from` gave the turn before.
    State {
        dims: &'static [Dim],
        from: &'static str,
    },
    /// One i64 scalar, known when the plan is made.
    Constant(i64),
}

/// One extent of a shape.
#[derive(Clone, Copy, Debug)]
pub enum Dim {
    /// The seats of a turn.
    Batch,
    /// The same in every turn.
    Of(usize),
}

use Dim::{Batch, Of};

impl Preset {
    /// All there are.
    pub const ALL: [Preset; 2] = [Preset::SILERO, Preset::FLASHVAD];

    /// Silero VAD v5 and v6 at 16 kHz: 32 ms frames of 512 samples behind 64 samples of context; h and c of an LSTM.
    pub const SILERO: Preset = Preset {
        name: "silero",
        frame_ms: 32.0,
        inputs: &[
            Input {
                name: "input",
                feed: Feed::Frame(&[Batch, Of(576)]),
            },
            Input {
                name: "sr",
                feed: Feed::Constant(16_000),
            },
            Input {
                name: "state",
                feed: Feed::State {
                    dims: &[Of(2), Batch, Of(128)],
                    from: "stateN",
                },
            },
        ],
    };

    /// FlashVAD's streaming export: 10 ms frames of 43 features; a GRU's h and four causal convolutions' windows.
    pub const FLASHVAD: Preset = Preset {
        name: "flashvad",
        frame_ms: 10.0,
        inputs: &[
            Input {
                name: "feature",
                feed: Feed::Frame(&[Batch, Of(1), Of(43)]),
            },
            Input {
                name: "recurrent",
                feed: Feed::State {
                    dims: &[Of(1), Batch, Of(64)],
                    from: "next_recurrent",
                },
            },
            Input {
                name: "cache_0",
                feed: Feed::State {
                    dims: &[Batch, Of(64), Of(2)],
                    from: "next_cache_0",
                },
            },
            Input {
                name: "cache_1",
                feed: Feed::State {
                    dims: &[Batch, Of(64), Of(4)],
                    from: "next_cache_1",
                },
            },
            Input {
                name: "cache_2",
                feed: Feed::State {
                    dims: &[Batch, Of(64), Of(8)],
                    from: "next_cache_2",
                },
            },
            Input {
                name: "cache_3",
                feed: Feed::State {
                    dims: &[Batch, Of(64), Of(16)],
                    from: "next_cache_3",
                },
            },
        ],
    };
}

/// `dims` with `batch` seats.
pub fn shape(dims: &[Dim], batch: usize) -> Vec<usize> {
    dims.iter()
        .map(|dim| match dim {
            Batch => batch,
            Of(extent) => *extent,
        })
        .collect()
}
