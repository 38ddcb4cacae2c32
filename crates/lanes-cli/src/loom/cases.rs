//! `lanes loom test | bench`: the cases that Loom files carry, run and timed on a device.
//!
//! - Each FILE is a root; the other files named with it are libraries that it takes what it declares from.
//! - Public cases run, or the one that is named. Every sample is reported, whatever became of those before.
//! - A file that cannot be read, parsed or linked is wrong input: exit 2. A case that does not verify is an error: exit 1.
//! - A benchmark is timed once its case has passed. What is timed is a policy of this command, not of the text.

use super::{Wrong, bound, distinct, ended, name_of, pair, read, say_unbound};
use crate::error::{CliError, CliResult};
use crate::npy;
use crate::{args, load, say};
use clap::Args;
use lanes::DType;
use lanes::checks::DeviceTarget;
use lanes::device::Device;
use lanes::loom::check::{
    Array, Case, Files, Interpreted, Limits, Literal, Parameter, Sample, Status, Verdict, run as run_sample,
};
use lanes::loom::types::ScalarType;
use lanes::loom::{Module, interp};
use lanes::session::Distribution;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps of a launch unless told otherwise: a loop without end takes some ten seconds, and what takes as long is no test.
const STEPS_MAX: u64 = 1 << 30;
/// Rounds before anything is noted.
const WARM_UP: usize = 3;
/// Once so much time went into one measurement, it ends with the rounds that it has.
const TIME_MAX: Duration = Duration::from_secs(10);
/// But not with fewer than these.
const ROUNDS_MIN: usize = 3;

#[derive(Debug, Args)]
pub struct TestArgs {
    #[command(flatten)]
    on: OnArgs,
    /// This case alone, public or not
    #[arg(long, value_name = "@SYM")]
    case: Option<String>,
    /// This sample of each case alone, from 0
    #[arg(long, allow_negative_numbers = true, value_name = "K", value_parser = args::whole(0, u64::MAX))]
    sample: Option<u64>,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    on: OnArgs,
    /// This benchmark alone
    #[arg(long, value_name = "@SYM")]
    benchmark: Option<String>,
    /// Rounds that are timed
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 20, value_parser = args::whole(1, u32::MAX))]
    samples: u32,
}

/// What both take.
#[derive(Debug, Args)]
#[expect(rustdoc::broken_intra_doc_links, reason = "brackets are the contract's notation, shown by --help")]
struct OnArgs {
    /// Loom files; - is standard input. Each is linked with what it uses of the others
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// cpu, cuda[:N], vulkan[:N] or wgpu[:N]
    #[arg(long, value_name = "B", default_value = "cpu", value_parser = args::backend)]
    backend: String,
    /// CPU threads a backend may use; all if not given
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = args::whole(1, 1024u32))]
    threads: Option<u32>,
    /// Bind a config key
    #[arg(long, value_name = "K=V", allow_hyphen_values = true, value_parser = pair)]
    config: Vec<(String, String)>,
    /// Turns of loops that a launch may take on the CPU, and ops that a function of the host may run
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = STEPS_MAX, value_parser = args::whole(1, u64::MAX))]
    steps_max: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The files that were named, each as far as it could be read.
struct Opened {
    device: Arc<dyn Device>,
    config: BTreeMap<String, String>,
    steps_max: u64,
    files: Vec<(PathBuf, String, Result<Module, Wrong>)>,
}

impl OnArgs {
    fn open(&self) -> CliResult<Opened> {
        let config = bound(&self.config)?;
        let device = load::device_of_steps(&self.backend, self.threads, Some(self.steps_max))?;
        let paths = distinct(&self.files);
        let texts: Vec<(String, Result<String, Wrong>)> =
            paths.iter().map(|path| (name_of(path), read(path))).collect();
        let parse = |(name, text): &(String, Result<String, Wrong>)| Module::parse(name, text.as_ref().ok()?).ok();
        let modules: Vec<Option<Module>> = texts.iter().map(parse).collect();
        let mut files = Vec::new();
        for (at, (path, (name, text))) in paths.into_iter().zip(texts).enumerate() {
            let others = modules.iter().enumerate().filter(|(other, _)| *other != at);
            let libraries: Vec<&Module> = others.filter_map(|(_, module)| module.as_ref()).collect();
            let module = text.and_then(|text| Module::with_cases(&name, &text, &libraries).map_err(Wrong::Text));
            files.push((path.clone(), name, module));
        }
        let read: Vec<&Module> = files.iter().filter_map(|(.., module)| module.as_ref().ok()).collect();
        if read.len() == files.len() {
            say_unbound(&config, &read);
        }
        Ok(Opened { device, config, steps_max: self.steps_max, files })
    }
}

/// One module with its targets.
struct Bench<'m> {
    module: &'m Module,
    config: &'m BTreeMap<String, String>,
    target: DeviceTarget<'m>,
    host: Interpreted<'m>,
    files: NpyFiles,
}

impl<'m> Bench<'m> {
    fn new(opened: &'m Opened, path: &Path, module: &'m Module) -> CliResult<Self> {
        let config = &opened.config;
        let target = DeviceTarget::new(Arc::clone(&opened.device), module, config)
            .map_err(|why| CliError::failed(format!("--backend: {why}")))?;
        let limits = interp::Limits { steps: opened.steps_max, ..interp::Limits::default() };
        let host = Interpreted::new(module, config, limits);
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        Ok(Self { module, config, target, host, files: NpyFiles { folder } })
    }

    fn run(&mut self, case: &Case, sample: &Sample) -> Verdict {
        let mut limits = Limits::default();
        // The host's copy, the device's, the interpreter's and what is compared are there at once.
        if let Some(available) = crate::machine::available_bytes() {
            limits.tensor_bytes = limits.tensor_bytes.min(available / 4);
        }
        run_sample(case, sample, &mut self.target, &mut self.host, &mut self.files, limits)
    }
}

/// How many samples ended how.
#[derive(Default)]
struct Counts {
    pass: u64,
    fail: u64,
    unsupported: u64,
    error: u64,
}

impl Counts {
    /// Counts one; its word in the contract, where a sample that asks for another device is unsupported on this one.
    fn word(&mut self, status: Status) -> &'static str {
        let (count, word) = match status {
            Status::Passed => (&mut self.pass, "pass"),
            Status::Failed => (&mut self.fail, "fail"),
            Status::Skipped | Status::Unsupported => (&mut self.unsupported, "unsupported"),
            Status::Error => (&mut self.error, "error"),
        };
        *count += 1;
        word
    }

    fn line(&self) -> String {
        let Self { pass, fail, unsupported, error } = self;
        format!("{pass} passed, {fail} failed, {unsupported} unsupported, {error} in error")
    }

    /// How the command ends.
    fn end(&self, command: &str) -> CliResult {
        match self.fail + self.error {
            0 => Ok(()),
            _ => Err(CliError::failed(format!("loom {command}: {}", self.line()))),
        }
    }
}

fn said(verdict: &Verdict) -> Option<String> {
    let message = verdict.message.as_ref()?;
    Some(match verdict.status {
        Status::Skipped => format!("skipped: {message}"),
        Status::Error if message.contains("`steps_max`") => format!("{message}; --steps-max N allows more"),
        _ => message.clone(),
    })
}

fn literal(value: Literal) -> Value {
    match value {
        Literal::Int(value) => value.into(),
        Literal::Float(value) => value.into(),
    }
}

fn object(parameters: &[Parameter], sample: &Sample) -> Map<String, Value> {
    let values = sample.values.iter().map(|value| literal(*value));
    parameters.iter().map(|parameter| parameter.name.clone()).zip(values).collect()
}

fn shown(parameters: &Map<String, Value>) -> String {
    let pairs: Vec<String> = parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if pairs.is_empty() { String::new() } else { format!(" ({})", pairs.join(", ")) }
}

/// A line, and the lines of what is said about it behind it.
fn line_of(head: &str, message: Option<&str>) -> Vec<String> {
    let mut said = message.unwrap_or_default().lines();
    let first = said.next().map_or_else(|| head.to_owned(), |first| format!("{head}: {first}"));
    std::iter::once(first).chain(said.map(|line| format!("    {line}"))).collect()
}

/// `lanes loom test`.
pub fn test(args: &TestArgs) -> CliResult {
    let opened = args.on.open()?;
    let wanted = args.case.as_deref().map(|case| case.strip_prefix('@').unwrap_or(case));
    let (mut rows, mut lines, mut counts) = (Vec::new(), Vec::new(), Counts::default());
    let (mut wrong, mut met) = (0, false);
    for (path, name, module) in &opened.files {
        let module = match module {
            Ok(module) => module,
            Err(why) => {
                wrong += 1;
                why.say();
                rows.push(json!({"file": name, "cases": [], "errors": why.json()}));
                continue;
            }
        };
        let mut bench = Bench::new(&opened, path, module)?;
        let mut cases = Vec::new();
        let chosen = |name: &str, public: bool| wanted.map_or(public, |wanted| wanted == name);
        for found in module.cases().into_iter().filter(|case| chosen(&case.name, case.public)) {
            let case = match module.case(&found.name, &opened.config) {
                Ok(case) => case,
                Err(errors) => {
                    met = true;
                    let status = counts.word(Status::Error);
                    let message = errors.to_string();
                    lines.extend(line_of(&format!("{name}  @{}  {status}", found.name), Some(&message)));
                    cases.push(json!({
                        "case": found.name, "sample": 0, "parameters": {}, "status": status, "message": message,
                    }));
                    continue;
                }
            };
            let mut passed = 0;
            let ordinals = args.sample.map_or(0..case.samples(), |sample| sample..sample.saturating_add(1));
            for sample in ordinals.filter_map(|ordinal| case.sample(ordinal)) {
                met = true;
                let verdict = bench.run(&case, &sample);
                let parameters = object(&case.parameters, &sample);
                let (status, message) = (counts.word(verdict.status), said(&verdict));
                if verdict.status == Status::Passed {
                    passed += 1;
                } else {
                    let head =
                        format!("{name}  @{}  sample {}{}  {status}", found.name, sample.ordinal, shown(&parameters));
                    lines.extend(line_of(&head, message.as_deref()));
                }
                cases.push(json!({
                    "case": found.name, "sample": sample.ordinal, "parameters": parameters, "status": status,
                    "message": message,
                }));
            }
            if passed > 0 {
                lines.push(format!("{name}  @{}  {} passed", found.name, say::count(passed, "sample")));
            }
        }
        rows.push(json!({"file": name, "cases": cases}));
    }
    if let (Some(case), 0, false) = (&args.case, wrong, met) {
        let sample = args.sample.map(|sample| format!(" with a sample {sample}")).unwrap_or_default();
        return Err(CliError::usage(format!("--case {case}: no file has such a case{sample}{}", known(&opened))));
    }
    if let (None, None, 0, false) = (&args.case, args.sample, wrong, met) {
        say::aside(&format!("loom test: no file has a `check.case public`{}", known(&opened)));
    }
    if let (Some(sample), 0, false) = (args.sample, wrong, met) {
        return Err(CliError::usage(format!("--sample {sample}: no case has so many samples; they count from 0")));
    }
    if args.on.json {
        let Counts { pass, fail, unsupported, error } = counts;
        say::json(&json!({
            "files": rows, "pass": pass, "fail": fail, "unsupported": unsupported, "error": error,
        }))?;
    } else {
        lines.push(counts.line());
        say::lines(&lines)?;
    }
    ended("test", wrong, opened.files.len())?;
    counts.end("test")
}

/// The cases there are, for an error.
fn known(opened: &Opened) -> String {
    let modules = opened.files.iter().filter_map(|(.., module)| module.as_ref().ok());
    let names: Vec<String> = modules.flat_map(Module::cases).map(|case| format!("@{}", case.name)).collect();
    if names.is_empty() { String::new() } else { format!("; there are {}", names.join(", ")) }
}

/// `lanes loom bench`.
pub fn bench(args: &BenchArgs) -> CliResult {
    let opened = args.on.open()?;
    let wanted = args.benchmark.as_deref().map(|name| name.strip_prefix('@').unwrap_or(name));
    let (mut rows, mut lines, mut counts) = (Vec::new(), Vec::new(), Counts::default());
    let (mut wrong, mut met, mut names) = (0, false, Vec::new());
    for (path, name, module) in &opened.files {
        let found = match module.as_ref().map(Module::benchmarks) {
            Ok(Ok(found)) => found,
            Ok(Err(errors)) => {
                wrong += 1;
                let why = Wrong::Text(errors);
                why.say();
                rows.push(json!({"file": name, "benchmarks": [], "errors": why.json()}));
                continue;
            }
            Err(why) => {
                wrong += 1;
                why.say();
                rows.push(json!({"file": name, "benchmarks": [], "errors": why.json()}));
                continue;
            }
        };
        let Ok(module) = module else { continue };
        let mut bench = Bench::new(&opened, path, module)?;
        let mut timed = Vec::new();
        for benchmark in found {
            names.push(format!("@{}", benchmark.name));
            if wanted.is_some_and(|wanted| wanted != benchmark.name) {
                continue;
            }
            met = true;
            let head = format!("{name}  @{}", benchmark.name);
            let case = bench.module.case(&benchmark.case, bench.config).map_err(|errors| errors.to_string());
            let samples = case.and_then(|case| case.bound(&benchmark.bound).map(|samples| (case, samples)));
            let (case, samples) = match samples {
                Ok(samples) => samples,
                Err(why) => {
                    let status = counts.word(Status::Error);
                    lines.extend(line_of(&format!("{head}  {status}"), Some(&why)));
                    timed.push(json!({
                        "benchmark": benchmark.name, "case": benchmark.case, "sample": 0, "parameters": {},
                        "status": status, "message": why, "launches": 0, "dispatch_us": null, "end_to_end_us": null,
                    }));
                    continue;
                }
            };
            for sample in samples {
                let parameters = object(&case.parameters, &sample);
                let head = format!("{head}{}", shown(&parameters));
                let (verdict, times) = measured(&mut bench, &case, &sample, args.samples as usize);
                let (status, message) = (counts.word(verdict.status), said(&verdict));
                let launches = times.as_ref().map_or(0, |times| times.launches);
                match &times {
                    Some(times) => {
                        if let Some(dispatch) = &times.dispatch {
                            lines.push(format!("{head}  dispatch    {}", spread(dispatch)));
                        }
                        lines.push(format!("{head}  end to end  {}", spread(&times.whole)));
                    }
                    None => lines.extend(line_of(&format!("{head}  {status}"), message.as_deref())),
                }
                timed.push(json!({
                    "benchmark": benchmark.name, "case": benchmark.case, "sample": sample.ordinal,
                    "parameters": parameters, "status": status, "message": message, "launches": launches,
                    "dispatch_us": times.as_ref().and_then(|times| times.dispatch.as_ref()).map(quantiles),
                    "end_to_end_us": times.as_ref().map(|times| quantiles(&times.whole)),
                }));
            }
        }
        rows.push(json!({"file": name, "benchmarks": timed}));
    }
    if let (Some(name), 0, false) = (&args.benchmark, wrong, met) {
        let known = if names.is_empty() { String::new() } else { format!("; there are {}", names.join(", ")) };
        return Err(CliError::usage(format!("--benchmark {name}: no file has such a benchmark{known}")));
    }
    if args.benchmark.is_none() && wrong == 0 && names.is_empty() {
        say::aside("loom bench: no file has a `check.benchmark`");
    }
    let capabilities = opened.device.capabilities();
    if args.on.json {
        say::json(&json!({"backend": capabilities.backend, "device": capabilities.name, "files": rows}))?;
    } else {
        lines.insert(0, format!("on {} ({})", capabilities.backend, capabilities.name));
        say::lines(&lines)?;
    }
    ended("bench", wrong, opened.files.len())?;
    counts.end("bench")
}

/// What was timed of one sample.
struct Times {
    launches: usize,
    /// All launches as one submission, where there is one.
    dispatch: Option<Distribution>,
    /// The whole case: tensors made, launched, compared.
    whole: Distribution,
}

/// Runs a sample, and times it if nothing was wrong with it.
fn measured(bench: &mut Bench<'_>, case: &Case, sample: &Sample, rounds: usize) -> (Verdict, Option<Times>) {
    let mut verdict = bench.run(case, sample);
    if verdict.status != Status::Passed {
        return (verdict, None);
    }
    let launches = bench.target.launches();
    let dispatch = match launches {
        0 => None,
        _ => match bench.target.measure(rounds, WARM_UP, TIME_MAX) {
            Ok(times) => Some(times),
            Err(why) => {
                verdict = Verdict { status: Status::Error, message: Some(why.to_string()), ..verdict };
                return (verdict, None);
            }
        },
    };
    let (mut times, start) = (Vec::new(), Instant::now());
    while times.len() < rounds && (times.len() < ROUNDS_MIN || start.elapsed() < TIME_MAX) {
        let round = Instant::now();
        let again = bench.run(case, sample);
        times.push(round.elapsed());
        if again.status != Status::Passed {
            return (again, None);
        }
    }
    (verdict, Some(Times { launches, dispatch, whole: times.into_iter().collect() }))
}

fn microseconds(times: &Distribution, q: f64) -> f64 {
    let nanoseconds = times.quantile(q).unwrap_or_default().as_nanos();
    nanoseconds as f64 / 1e3
}

fn quantiles(times: &Distribution) -> Value {
    let at = |q| microseconds(times, q);
    json!({
        "rounds": times.len(), "min": at(0.0), "p10": at(0.1), "p50": at(0.5), "p90": at(0.9), "max": at(1.0),
    })
}

fn spread(times: &Distribution) -> String {
    let at = |q| microseconds(times, q);
    format!("{:.1} us median, {:.1} to {:.1} from p10 to p90, {} rounds", at(0.5), at(0.1), at(0.9), times.len())
}

/// NumPy files beside the text.
struct NpyFiles {
    folder: PathBuf,
}

impl NpyFiles {
    /// A text is not trusted: it names files below its own folder only.
    fn path(&self, path: &str) -> Result<PathBuf, String> {
        let below = Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !below || path.is_empty() {
            return Err(format!("path {path:?}: a relative path below the text's folder is accepted"));
        }
        Ok(self.folder.join(path))
    }
}

impl Files for NpyFiles {
    fn read(&mut self, path: &str, bytes_max: u64) -> Result<Array, String> {
        let path = self.path(path)?;
        let length = std::fs::metadata(&path).map_err(|why| format!("{}: {why}", path.display()))?.len();
        // A header has less than 64 KiB.
        if length > bytes_max.saturating_add(1 << 16) {
            return Err(format!("{}: {length} bytes, the tensor has {bytes_max}", path.display()));
        }
        let array = npy::read(&path).map_err(|why| why.to_string())?;
        let element = match array.dtype {
            DType::F16 => ScalarType::F16,
            DType::F32 => ScalarType::F32,
            DType::F64 => ScalarType::F64,
            DType::I8 | DType::U8 => ScalarType::I8,
            DType::I16 | DType::U16 => ScalarType::I16,
            DType::I32 | DType::U32 => ScalarType::I32,
            DType::I64 | DType::U64 => ScalarType::I64,
            other => return Err(format!("{}: elements of {other} are no tensor's", path.display())),
        };
        Ok(Array { element, shape: array.shape.iter().map(|extent| *extent as u64).collect(), bytes: array.bytes })
    }

    fn write(&mut self, path: &str, array: &Array) -> Result<(), String> {
        let path = self.path(path)?;
        // Nor does it replace what is of another kind: itself, a script.
        if !npy::replaceable(&path) {
            let path = path.display();
            return Err(format!("{path}: it is there and no .npy file; a new name is accepted, or that of an array"));
        }
        let dtype = match array.element {
            ScalarType::F16 => DType::F16,
            ScalarType::BF16 => DType::BF16,
            ScalarType::F32 => DType::F32,
            ScalarType::F64 => DType::F64,
            ScalarType::I8 | ScalarType::I1 | ScalarType::F8E4M3 | ScalarType::F8E5M2 => DType::I8,
            ScalarType::I16 => DType::I16,
            ScalarType::I32 => DType::I32,
            ScalarType::I64 | ScalarType::Index | ScalarType::Offset => DType::I64,
        };
        let shape: Vec<usize> = array.shape.iter().map(|extent| *extent as usize).collect();
        npy::write(&path, dtype, &shape, &array.bytes).map_err(|why| why.to_string())
    }
}
