//! The command line as a type. Names and spellings are a contract with scripts: add, never rename.

use crate::source::FRAME_MS_MAX;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// The most lanes, seats and calls queued that a runnable takes.
pub const LANES_MAX: u32 = 1 << 24;

/// The shortest time between a stream's paced calls: what a clock can still tell apart.
const FRAME_MS_MIN: f64 = 0.001;

/// What goes with the options, after them.
const SPECS: &str = "\
Inputs (--input [NAME=]SPEC; NAME may be left out when one input streams):
  FILE.npy   little-endian, axes [stream, turn, …], or [turn, …] for every stream alike; … is one
             value of the input, with its lane axis or without it
  FILE.wav[,frame=F][,hop=H]
             mono, 16-bit integers or 32-bit floats, at the file's own rate: nothing is resampled;
             turn t feeds the F samples that end at sample (t + 1) · H; F is the model's own
             length and H is F if not given
  FOLDER[,frame=F][,hop=H]
             its .wav files by name, all at one rate; stream i takes file i modulo their number
  normal, uniform, zeros, or a number
             made-up values; [,frame=F] says a length that the model leaves open
A run has as many turns as the longest clip's ceil(samples / H). Zeros are fed before a clip's
start and after its end: what a shorter clip gives past its own ceil(samples / H) turns answers
zeros. Where a path holds commas, options begin after the longest part that names a file or folder.

States are found by name (state and stateN, h and hn, x and next_x, past… and present…, and the
like) or declared with --state.

Environment: LANES_MAX_LANES, LANES_MAX_SEATS, LANES_LINGER_US, LANES_QUEUE, LANES_SLOTS and
LANES_CHECKPOINTS are defaults for run, check and bench; options win over them, and a value out of
range is refused. LANES_CACHE_DIR names the folder where cuda keeps compiled kernels, instead of
lanes among the user's caches; set to nothing, none are kept.";

/// Many stateful streams through one resident model.
#[derive(Debug, Parser)]
#[command(name = "lanes", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Every device of every backend compiled in, and why a backend has none
    Devices(DevicesArgs),
    /// What a model asks for: inputs, outputs, states, lane axis, lane independence, ops
    #[command(after_help = SPECS)]
    Inspect(InspectArgs),
    /// Serve N concurrent streams through one resident state
    #[command(after_help = SPECS)]
    Run(RunArgs),
    /// The same inputs on two backends; exit 1 past tolerance
    #[command(after_help = SPECS)]
    Check(CheckArgs),
    /// Latency and throughput per stream count, closed loop and paced
    #[command(after_help = SPECS)]
    Bench(BenchArgs),
    /// Loom kernels: check, fmt, compile, test, bench
    #[command(disable_help_flag = true)]
    Loom {
        /// Passed to the subcommand.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<std::ffi::OsString>,
    },
}

/// `lanes devices`
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `lanes inspect`
#[derive(Debug, Args)]
#[expect(rustdoc::broken_intra_doc_links, reason = "brackets are the contract's notation, shown by --help")]
pub struct InspectArgs {
    /// What to load, and how
    #[command(flatten)]
    pub model: ModelArgs,
    /// cpu, cuda[:N], vulkan[:N] or wgpu[:N]: whose memory is told
    #[arg(long, value_name = "B", default_value = "cpu", value_parser = backend)]
    pub backend: String,
    /// Lanes to compute the memory for
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 1, value_parser = whole(1, LANES_MAX))]
    pub lanes: u32,
    /// Seats of one turn at most, to compute the memory for; as many as lanes if not given
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = whole(1, LANES_MAX))]
    pub max_seats: Option<u32>,
    /// CPU threads a backend may use; all if not given
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = whole(1, 1024u32))]
    pub threads: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `lanes run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// What to load, and how
    #[command(flatten)]
    pub model: ModelArgs,
    /// How to serve it
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Concurrent streams
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 1, value_parser = whole(1, u32::MAX))]
    pub streams: u32,
    /// Calls per stream; what the input holds if not given
    #[arg(long, allow_negative_numbers = true, value_name = "T", value_parser = whole(1, u32::MAX))]
    pub turns: Option<u32>,
    /// One NAME.npy per output goes here, axes [stream, turn, …]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `lanes check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// What to load, and how
    #[command(flatten)]
    pub model: ModelArgs,
    /// How to serve it
    #[command(flatten)]
    pub serve: ServeArgs,
    /// What to check against
    #[arg(long, value_name = "B", default_value = "oracle")]
    pub against: Against,
    /// Concurrent streams
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 1, value_parser = whole(1, u32::MAX))]
    pub streams: u32,
    /// Calls per stream; what the input holds if not given
    #[arg(long, allow_negative_numbers = true, value_name = "T", value_parser = whole(1, u32::MAX))]
    pub turns: Option<u32>,
    /// One NAME.npy per output of the backend goes here, axes [stream, turn, …]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `lanes bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to load, and how
    #[command(flatten)]
    pub model: ModelArgs,
    /// How to serve it
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Stream counts to time
    #[arg(long, allow_negative_numbers = true, value_name = "N,…", value_delimiter = ',', default_value = "1,8,64", value_parser = whole(1, u32::MAX))]
    pub streams: Vec<u32>,
    /// Calls per stream and row; enough for about two seconds if not given
    #[arg(long, allow_negative_numbers = true, value_name = "T", value_parser = whole(1, u32::MAX))]
    pub turns: Option<u32>,
    /// Time between a stream's calls in the paced rows; the input's own if it has one
    #[arg(long, allow_negative_numbers = true, value_name = "MS", value_parser = frame_ms)]
    pub frame_ms: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// How a model is loaded.
#[derive(Debug, Args)]
#[expect(rustdoc::broken_intra_doc_links, reason = "brackets are the contract's notation, shown by --help")]
pub struct ModelArgs {
    /// An ONNX file
    #[arg(value_name = "MODEL")]
    pub path: PathBuf,
    /// What feeds an input: FILE.npy, FILE.wav[,frame=F][,hop=H], a folder of wavs, normal, uniform, zeros or a number
    #[arg(long, value_name = "NAME=SPEC", allow_hyphen_values = true)]
    pub input: Vec<String>,
    /// Bind an input to a constant at import; a name that the model lacks is ignored with a warning
    #[arg(long, value_name = "NAME=VALUE", allow_hyphen_values = true)]
    pub fix: Vec<String>,
    /// Declare a state pair and its lane axis
    #[arg(long, value_name = "IN=OUT[@AXIS]")]
    pub state: Vec<String>,
    /// Initial value of a state, one lane's worth; zeros if not given
    #[arg(long, value_name = "IN=SPEC", allow_hyphen_values = true)]
    pub init: Vec<String>,
    /// Cut a model of whole sequences to one step along this axis
    #[arg(long, value_name = "AXIS")]
    pub pulse: Option<String>,
    /// This input has no lane axis: one value serves a whole turn
    #[arg(long, value_name = "NAME")]
    pub shared: Vec<String>,
    /// For generated inputs and for join and leave times
    #[arg(long, allow_negative_numbers = true, value_name = "S", default_value_t = 0, value_parser = whole(0, u64::MAX))]
    pub seed: u64,
    /// What contractions may round to
    #[arg(long, value_name = "P", default_value = "f32")]
    pub precision: Precision,
}

/// How a model is served.
#[derive(Debug, Args)]
#[expect(rustdoc::broken_intra_doc_links, reason = "brackets are the contract's notation, shown by --help")]
pub struct ServeArgs {
    /// cpu, cuda[:N], vulkan[:N] or wgpu[:N]
    #[arg(long, value_name = "B", default_value = "cpu", value_parser = backend)]
    pub backend: String,
    /// Lanes of the state; LANES_MAX_LANES, else as many as streams, if not given
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = whole(1, LANES_MAX))]
    pub lanes: Option<u32>,
    /// Seats of one turn at most; LANES_MAX_SEATS, else as many as lanes, if not given
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = whole(1, LANES_MAX))]
    pub max_seats: Option<u32>,
    /// How long the oldest seat waits for company, in microseconds; LANES_LINGER_US, else 0, if not given
    #[arg(long, allow_negative_numbers = true, value_name = "U", value_parser = whole(0u64, 60_000_000))]
    pub linger_us: Option<u64>,
    /// CPU threads a backend may use; all if not given
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = whole(1, 1024u32))]
    pub threads: Option<u32>,
    /// Before each call after its first a stream, with this probability, sits out up to 8 turns or leaves, joins again and replays
    #[arg(long, allow_negative_numbers = true, value_name = "P", default_value_t = 0.0, value_parser = probability)]
    pub churn: f64,
}

/// `--precision`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// IEEE binary32 throughout
    F32,
    /// 10-bit mantissa products; no backend takes them yet
    Tf32,
    /// bfloat16 products; cpu takes them, and cuda from sm_80 on
    Bf16,
    /// binary16 products; no backend takes them yet
    F16,
}

/// `--against`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// The CPU backend
    Cpu,
    /// The plain evaluator, node by node
    Oracle,
}

/// A parser of whole numbers from `least` to `most`.
pub fn whole<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: Copy + PartialOrd + std::fmt::Display + std::str::FromStr,
{
    move |text| {
        let value = text.parse().ok().filter(|value| (least..=most).contains(value));
        value.ok_or_else(|| format!("a whole number from {least} to {most} is accepted"))
    }
}

fn probability(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|p| (0.0..=1.0).contains(p)).ok_or_else(|| "a number from 0 to 1 is accepted".to_owned())
}

fn frame_ms(text: &str) -> Result<f64, String> {
    let taken = |ms: &f64| (FRAME_MS_MIN..=FRAME_MS_MAX).contains(ms);
    text.parse()
        .ok()
        .filter(taken)
        .ok_or_else(|| format!("a number of milliseconds from {FRAME_MS_MIN} to {FRAME_MS_MAX} is accepted"))
}

/// A backend's name, as far as a name can be told without opening it.
pub fn backend(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("cpu, cuda[:N], vulkan[:N] or wgpu[:N] is accepted".to_owned())
    } else {
        Ok(text.to_owned())
    }
}
