//! The command line as a type. Names and spellings are a contract with scripts: add, never rename.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// The most lanes, seats and calls queued that a runnable takes.
pub const LANES_MAX: u32 = 1 << 24;

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
    Inspect(InspectArgs),
    /// Serve N concurrent streams through one resident state
    Run(RunArgs),
    /// The same inputs on two backends; exit 1 past tolerance
    Check(CheckArgs),
    /// Latency and throughput per stream count, closed loop and paced
    Bench(BenchArgs),
    /// Loom kernels: check, fmt, compile, test, bench
    #[command(disable_help_flag = true)]
    Loom {
        /// Passed to the subcommand.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
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
pub struct InspectArgs {
    /// What to load, and how
    #[command(flatten)]
    pub model: ModelArgs,
    /// cpu, cuda[:N], vulkan[:N] or wgpu[:N]: whose memory is told
    #[arg(long, value_name = "B", default_value = "cpu")]
    pub backend: String,
    /// Lanes to compute the memory for
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(1, LANES_MAX))]
    pub lanes: u32,
    /// Seats of one turn at most, to compute the memory for; as many as lanes if not given
    #[arg(long, value_name = "N", value_parser = whole(1, u32::MAX))]
    pub max_seats: Option<u32>,
    /// CPU threads a backend may use; all if not given
    #[arg(long, value_name = "N", value_parser = whole(1, 1024u32))]
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
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(1, u32::MAX))]
    pub streams: u32,
    /// Calls per stream; what the input holds if not given
    #[arg(long, value_name = "T", value_parser = whole(1, u32::MAX))]
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
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(1, u32::MAX))]
    pub streams: u32,
    /// Calls per stream; what the input holds if not given
    #[arg(long, value_name = "T", value_parser = whole(1, u32::MAX))]
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
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,8,64", value_parser = whole(1, u32::MAX))]
    pub streams: Vec<u32>,
    /// Calls per stream and row; enough for about two seconds if not given
    #[arg(long, value_name = "T", value_parser = whole(1, u32::MAX))]
    pub turns: Option<u32>,
    /// Time between a stream's calls in the paced rows; the input's own if it has one
    #[arg(long, value_name = "MS", value_parser = positive)]
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
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = whole(0, u64::MAX))]
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
    #[arg(long, value_name = "B", default_value = "cpu")]
    pub backend: String,
    /// Lanes of the state; as many as streams if not given
    #[arg(long, value_name = "N", value_parser = whole(1, LANES_MAX))]
    pub lanes: Option<u32>,
    /// Seats of one turn at most; as many as lanes if not given
    #[arg(long, value_name = "N", value_parser = whole(1, u32::MAX))]
    pub max_seats: Option<u32>,
    /// How long the oldest seat waits for company, in microseconds
    #[arg(long, value_name = "U", default_value_t = 0, value_parser = whole(0u64, 60_000_000))]
    pub linger_us: u64,
    /// CPU threads a backend may use; all if not given
    #[arg(long, value_name = "N", value_parser = whole(1, 1024u32))]
    pub threads: Option<u32>,
    /// Before each call after its first a stream, with this probability, sits out up to 8 turns or leaves, joins again and replays
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = probability)]
    pub churn: f64,
}

/// `--precision`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// IEEE binary32 throughout
    F32,
    /// 10-bit mantissa products
    Tf32,
    /// bfloat16 products
    Bf16,
    /// binary16 products
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
fn whole<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone
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

fn positive(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|&v: &f64| v > 0.0 && v.is_finite())
        .ok_or_else(|| "a positive number is accepted".to_owned())
}
