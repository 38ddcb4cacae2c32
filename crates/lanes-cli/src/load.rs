//! From the command line to a model that is served, and the sources that feed it.

use crate::args::{LANES_MAX, ModelArgs, Precision, ServeArgs};
use crate::error::{CliError, CliResult};
use crate::npy;
use crate::say;
use crate::serve::chain;
use crate::source::{Declared, Source};
use crate::spec::{Made, Spec, named};
use lanes::device::{Device, DeviceError};
use lanes::lanes::{BuildError, LanedModel, LanesBuilder, Runnable};
use lanes::onnx::{Dim, Given, ImportOptions, Inspection, Model, PortInspection, Role, StatePair, Tensor};
use lanes::plan::Precision as Rounding;
use lanes::planned::PlannedModel;
use lanes::{BackendError, OpenOptions, PlanError, Scope};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A model and what feeds it.
pub struct Loaded {
    /// As imported.
    pub model: Model,
    /// One per input of the signature, in its order.
    pub sources: Vec<Source>,
}

/// The options of import that do not depend on what the inputs are fed.
pub fn import_options(args: &ModelArgs) -> CliResult<ImportOptions> {
    if let Some(axis) = &args.pulse {
        let text = format!("--pulse {axis}: cutting a model of whole sequences into steps is not written yet");
        return Err(CliError::usage(text));
    }
    let mut options = ImportOptions { shared: args.shared.clone(), ..ImportOptions::default() };
    for fix in &args.fix {
        let (name, value) = split(fix, "--fix", "NAME=VALUE")?;
        let refused = |found: &str| {
            CliError::usage(format!(
                "--fix {name}: found {found}; a number, zeros, true, false or FILE.npy is accepted"
            ))
        };
        let spec = Spec::parse(value).map_err(|_| refused(&format!("`{value}`")))?;
        let given = given(&spec)?.ok_or_else(|| refused(&format!("`{value}`, which is no constant")))?;
        options.fix.insert(name.to_owned(), given);
    }
    for init in &args.init {
        let (name, spec) = init_spec(init)?;
        // Whether there is such a state, the import says; what is generated takes the place of the zeros in `generate_inits`.
        let given = given(&spec)?.unwrap_or(Given::Number(0.0));
        if options.init.insert(name.to_owned(), given).is_some() {
            return Err(CliError::usage(format!(
                "--init {init}: state `{name}` is initialised twice; once is accepted"
            )));
        }
    }
    for state in &args.state {
        let (input, rest) = split(state, "--state", "IN=OUT[@AXIS]")?;
        let (output, axis) = match rest.rsplit_once('@') {
            Some((output, axis)) => match axis.parse() {
                Ok(axis) => (output, Some(axis)),
                Err(_) => {
                    return Err(CliError::usage(format!("--state {state}: `{axis}` is no axis; a number from 0 is")));
                }
            },
            None => (rest, None),
        };
        options.states.push(StatePair { input: input.to_owned(), output: output.to_owned(), axis });
    }
    Ok(options)
}

/// Drops what `--fix` binds and the model does not have, with a warning: one command line serves several exports of a
/// model, of which some have had the input folded away already. A misspelt name leaves its input unfed, which is an error.
pub fn ignore_absent_fixes(args: &ModelArgs, options: &mut ImportOptions) -> CliResult {
    if options.fix.is_empty() {
        return Ok(());
    }
    let plain = ImportOptions::default();
    let seen = lanes::onnx::inspect(&args.path, &plain).map_err(|why| model_error(&args.path, &why))?;
    options.fix.retain(|name, _| {
        let known = seen.inputs.iter().any(|input| input.name == *name);
        if !known {
            let names: Vec<_> = seen.inputs.iter().map(|input| format!("`{}`", input.name)).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            say::aside(&format!("--fix {name} is ignored: the model has no such input; it has {names}"));
        }
        known
    });
    Ok(())
}

fn split<'a>(text: &'a str, option: &str, form: &str) -> CliResult<(&'a str, &'a str)> {
    text.split_once('=').ok_or_else(|| CliError::usage(format!("{option} {text}: found no `=`; {form} is accepted")))
}

/// What `spec` gives whatever the shape: a number, or an array.
fn given(spec: &Spec) -> CliResult<Option<Given>> {
    match spec {
        Spec::Made { values: Made::Number(number), frame: None } => Ok(Some(Given::Number(*number))),
        Spec::Npy(path) => {
            let array = npy::read(path)?;
            let shape = array.shape.clone();
            let tensor = Tensor::new(array.dtype, array.shape, array.bytes.into());
            tensor.map(|tensor| Some(Given::Tensor(tensor))).ok_or_else(|| {
                CliError::file(path, format!("holds values that are no {} of shape {shape:?}", array.dtype))
            })
        }
        Spec::Made { .. } | Spec::Wav { .. } => Ok(None),
    }
}

/// The state and the SPEC of one `--init`.
fn init_spec(init: &str) -> CliResult<(&str, Spec)> {
    let (name, text) = split(init, "--init", "IN=SPEC")?;
    let refused = |found: &str| {
        let accepted = "FILE.npy of one lane's value, a number, zeros, normal or uniform is accepted";
        CliError::usage(format!("--init: state `{name}`: found {found}; {accepted}"))
    };
    match Spec::parse(text) {
        Ok(Spec::Wav { .. }) => Err(refused(&format!("`{text}`, and audio is no state"))),
        Ok(spec) => Ok((name, spec)),
        Err(_) => Err(refused(&format!("`{text}`"))),
    }
}

/// Fills in what `--init` generates, now that `options` say enough for the states' shapes: one lane's value, the same
/// for every lane.
pub fn generate_inits(args: &ModelArgs, options: &mut ImportOptions) -> CliResult {
    let inits = args.init.iter().map(|init| init_spec(init)).collect::<CliResult<Vec<_>>>()?;
    let generated = |spec: &Spec| matches!(spec, Spec::Made { values, frame } if !matches!((values, frame), (Made::Number(_), None)));
    if !inits.iter().any(|(_, spec)| generated(spec)) {
        return Ok(());
    }
    let seen = lanes::onnx::inspect(&args.path, options).map_err(|why| model_error(&args.path, &why))?;
    for (name, spec) in inits.iter().filter(|(_, spec)| generated(spec)) {
        // A model whose states are not known is refused for that by its import.
        let Some(state) = seen.states.iter().find(|state| state.input == *name) else { continue };
        let shape: Vec<_> = state.lane_shape.iter().map(extent).collect();
        let declared = Declared { name, dtype: state.dtype, shape: &shape, full: &shape };
        let source = Source::open(&declared, spec, args.seed)
            .map_err(|why| CliError::usage(format!("--init: state `{name}`: {why}")))?;
        let mut bytes = vec![0; source.bytes()];
        source.fill(0, 0, &mut bytes);
        if let Some(tensor) = Tensor::new(state.dtype, source.shape, bytes.into()) {
            options.init.insert((*name).to_owned(), Given::Tensor(tensor));
        }
    }
    Ok(())
}

fn extent(dim: &Dim) -> Option<usize> {
    if let Dim::Known(extent) = dim { Some(*extent) } else { None }
}

/// An import error, with the file's name.
pub fn model_error(path: &Path, why: &lanes::onnx::ModelError) -> CliError {
    let text = chain(why);
    if text.contains(&*path.to_string_lossy()) { CliError::usage(text) } else { CliError::file(path, text) }
}

/// Loads the model, its inputs bound to what feeds them.
pub fn load(args: &ModelArgs) -> CliResult<Loaded> {
    let (options, mut sources) = bound_options(args)?;
    let model = lanes::onnx::load(&args.path, &options).map_err(|why| model_error(&args.path, &why))?;
    let mut ordered = Vec::with_capacity(sources.len());
    for port in &model.signature.inputs {
        let Some(mut source) = sources.remove(&port.name) else {
            return Err(CliError::file(&args.path, format!("input `{}` is fed by nothing", port.name)));
        };
        if source.dtype != port.dtype || source.bytes() != port.bytes() {
            let text = format!(
                "input `{}` takes {} {:?} a turn, and is fed {:?}",
                port.name, port.dtype, port.shape, source.shape
            );
            return Err(CliError::file(&args.path, text));
        }
        source.shape.clone_from(&port.shape);
        if port.scope == Scope::Turn {
            source.share();
        }
        ordered.push(source);
    }
    Ok(Loaded { model, sources: ordered })
}

/// The options of import with every input that a call brings bound to the shape that feeds it, and what feeds it.
pub fn bound_options(args: &ModelArgs) -> CliResult<(ImportOptions, BTreeMap<String, Source>)> {
    let mut options = import_options(args)?;
    ignore_absent_fixes(args, &mut options)?;
    let seen: Inspection = lanes::onnx::inspect(&args.path, &options).map_err(|why| model_error(&args.path, &why))?;
    let fed: Vec<_> = seen.inputs.iter().filter(|input| matches!(input.role, Role::Stream | Role::Shared)).collect();
    let names: Vec<&str> = fed.iter().map(|input| input.name.as_str()).collect();
    let streams: Vec<&str> =
        fed.iter().filter(|input| input.role == Role::Stream).map(|input| input.name.as_str()).collect();
    // An input may only seem to want feeding: a state that was not paired is one that does.
    let because = |error: CliError| match &seen.why {
        Some(why) => CliError::usage(format!("{error}; the import says: {why}")),
        None => error,
    };
    let mut specs: BTreeMap<&str, Spec> = BTreeMap::new();
    for argument in &args.input {
        refuse_taken(argument, &seen)?;
        let (name, spec) = named(argument, &names, &streams).map_err(because)?;
        if specs.insert(name, Spec::parse(spec)?).is_some() {
            return Err(CliError::usage(format!("--input {argument}: input `{name}` is fed twice")));
        }
    }
    let mut sources: BTreeMap<String, Source> = BTreeMap::new();
    for input in fed {
        let Some(dtype) = input.dtype else {
            return Err(CliError::file(&args.path, format!("input `{}` has no element type", input.name)));
        };
        let Some(spec) = specs.get(input.name.as_str()) else {
            // An output of its type and shape may be what it is on the next turn, under a name that does not say so.
            let fits = |output: &&PortInspection| {
                let pairs = input.shape.iter().zip(&output.shape);
                output.role == Role::Stream
                    && output.dtype == Some(dtype)
                    && output.shape.len() == input.shape.len()
                    && pairs.filter(|(a, b)| a == b).count() + 1 >= input.shape.len()
                    && input
                        .shape
                        .iter()
                        .zip(&output.shape)
                        .all(|pair| !matches!(pair, (Dim::Known(a), Dim::Known(b)) if a != b))
            };
            // The import that cannot tell which output it is names those that it may be.
            let asked = seen.why.iter().any(|why| why.contains(&format!("--state {}=", input.name)));
            let state = seen.outputs.iter().find(|output| !asked && fits(output)).map_or_else(String::new, |output| {
                format!(", or --state {}={} if that output is its next value", input.name, output.name)
            });
            let text = format!(
                "input `{}` ({dtype} {}) is fed by nothing; give --input {}=SPEC, or --fix it to a constant{state}",
                input.name,
                shown(&input.shape),
                input.name
            );
            return Err(because(CliError::file(&args.path, text)));
        };
        let lane = if input.role == Role::Shared { None } else { Some(input.lane_axis.unwrap_or(0)) };
        let full: Vec<Option<usize>> = input.shape.iter().map(extent).collect();
        let shape: Vec<Option<usize>> =
            full.iter().enumerate().filter(|&(axis, _)| Some(axis) != lane).map(|(_, extent)| *extent).collect();
        let declared = Declared { name: &input.name, dtype, shape: &shape, full: &full };
        let source = Source::open(&declared, spec, args.seed)?;
        options.shapes.insert(input.name.clone(), source.shape.clone());
        sources.insert(input.name.clone(), source);
    }
    generate_inits(args, &mut options)?;
    Ok((options, sources))
}

/// Refuses to feed what a call does not bring.
fn refuse_taken(argument: &str, seen: &Inspection) -> CliResult {
    let names_it =
        |input: &&PortInspection| argument.strip_prefix(&*input.name).is_some_and(|rest| rest.starts_with('='));
    let Some(input) = seen.inputs.iter().filter(names_it).max_by_key(|input| input.name.len()) else { return Ok(()) };
    let why = match input.role {
        Role::Stream | Role::Shared => return Ok(()),
        Role::Fixed => "is fixed to a constant; an input is fed or fixed, not both",
        Role::State => "is a state; --init gives its first value",
    };
    Err(CliError::usage(format!("--input {argument}: input `{}` {why}", input.name)))
}

fn shown(dims: &[Dim]) -> String {
    format!("[{}]", dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(", "))
}

/// Opens the device that `--backend` names.
pub fn device(backend: &str, threads: Option<u32>) -> CliResult<Arc<dyn Device>> {
    device_of_steps(backend, threads, None)
}

/// The same, whose launches may take so many turns of loops.
pub fn device_of_steps(backend: &str, threads: Option<u32>, steps_max: Option<u64>) -> CliResult<Arc<dyn Device>> {
    let threads = threads.map(|threads| threads as usize);
    // The host's memory is no other device's.
    let on_host = backend.split(':').next() == Some("cpu");
    let budget = crate::machine::available_bytes().filter(|_| on_host);
    let options = OpenOptions { threads, budget, steps_max };
    lanes::open(backend, &options).map_err(|why| match why {
        // What is not there was asked for in vain; what is there and fails is a failure.
        BackendError::Device(DeviceError::Unsupported { what }) => {
            CliError::usage(format!("--backend {backend}: {what}"))
        }
        BackendError::Device(_) => CliError::failed(format!("--backend {backend}: {}", chain(&why))),
        _ => CliError::usage(format!("--backend {backend}: {why}")),
    })
}

/// `model` on `device`, its contractions in the precision that `args` ask for.
pub fn planned(device: &Arc<dyn Device>, model: &Model, args: &ModelArgs) -> CliResult<PlannedModel> {
    let precision = precision(device, args)?;
    lanes::planned_in(Arc::clone(device), model, precision).map_err(|why| match &why {
        PlanError::Device(error) if error.is_failure() => failed(args, chain(&why)),
        _ => CliError::file(&args.path, chain(&why)),
    })
}

/// That something failed for the model that `args` name, which it is not to blame for.
fn failed(args: &ModelArgs, why: String) -> CliError {
    CliError::failed(format!("{}: {why}", args.path.display()))
}

/// The precision that `args` ask for, if `device` has it.
fn precision(device: &Arc<dyn Device>, args: &ModelArgs) -> CliResult<Rounding> {
    let known = match args.precision {
        Precision::F32 => Some(Rounding::F32),
        Precision::Bf16 => Some(Rounding::Bf16),
        Precision::Tf32 | Precision::F16 => None,
    };
    let capabilities = device.capabilities();
    known.filter(|&precision| capabilities.has(precision)).ok_or_else(|| {
        let has = |precision: &Rounding| capabilities.has(*precision);
        let accepted: Vec<_> =
            [Rounding::F32, Rounding::Bf16].iter().filter(|&it| has(it)).map(|it| it.name()).collect();
        let (asked, backend) = (format!("{:?}", args.precision).to_lowercase(), capabilities.backend);
        let (name, accepted) = (&capabilities.name, accepted.join(" and "));
        CliError::usage(format!("--precision {asked}: the {backend} backend takes {accepted} on {name}"))
    })
}

/// Serves `model`, with room for `streams` streams.
pub fn serve(
    model: impl LanedModel + 'static,
    args: &ModelArgs,
    serve: &ServeArgs,
    streams: u32,
) -> CliResult<Runnable> {
    let lanes = serve.lanes.unwrap_or(streams);
    if serve.lanes.is_none() && lanes > LANES_MAX && std::env::var_os("LANES_MAX_LANES").is_none() {
        let text = format!(
            "--streams {streams}: a lane each is more than {LANES_MAX}, the most; --lanes N serves them in turn"
        );
        return Err(CliError::usage(text));
    }
    let one_slot = model.slots_max() == 1;
    let mut builder = LanesBuilder::new(model);
    // What is not set here, the environment or the builder's own default says.
    if serve.lanes.is_some() || std::env::var_os("LANES_MAX_LANES").is_none() {
        builder = builder.lanes(lanes);
    }
    if let Some(seats) = serve.max_seats {
        builder = builder.max_seats(seats);
    }
    if let Some(linger_us) = serve.linger_us {
        builder = builder.linger(Duration::from_micros(linger_us));
    }
    if one_slot {
        // The plain evaluator has no more, whatever the backend beside it is served with.
        builder = builder.slots(1);
    }
    builder.build().map_err(|why| match &why {
        BuildError::Prepare { source, .. } if source.is_failure() => failed(args, chain(&why)),
        BuildError::Panicked(_) | BuildError::Thread(_) => failed(args, chain(&why)),
        BuildError::Prepare { .. } => CliError::file(&args.path, chain(&why)),
        _ => CliError::usage(chain(&why)),
    })
}

/// How many calls a stream makes: what was asked, or what the inputs hold. An array ends, audio is followed by silence.
pub fn turns(sources: &[Source], streams: usize, asked: Option<u32>) -> CliResult<usize> {
    let held = |audio| {
        let sources = sources.iter().filter(move |source| source.frame_ms().is_some() == audio);
        sources.filter_map(|source| source.turns(streams))
    };
    let turns = match asked.map(|asked| asked as usize).or(held(false).min()).or(held(true).max()) {
        Some(turns) => turns,
        None => return Err(CliError::usage("the inputs are generated and never end; give --turns T")),
    };
    if turns == 0 {
        return Err(CliError::usage("the inputs hold no turns"));
    }
    sources.iter().try_for_each(|source| source.holds(streams, turns))?;
    Ok(turns)
}
