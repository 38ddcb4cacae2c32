//! `lanes loom`: Loom files checked, formatted, compiled, tested and timed.
//!
//! - FILE is a file of UTF-8, or `-` for standard input. A folder is refused: a shell knows better which of its files are
//!   meant. `check` and `compile` link files that are named together: each is a root, the others are libraries that it takes
//!   what it declares from.
//! - All files are looked at, whatever is wrong with some. A file that cannot be read or has errors is wrong input: exit 2.
//! - What is wrong in a text goes to stderr with the line and a caret, and into the object that `--json` prints.
//! - `fmt` replaces a file by renaming, and leaves alone what is formatted already: who reads a file sees all of one text.

mod cases;

use crate::error::{CliError, CliResult};
use crate::{say, usage};
use clap::{Args, CommandFactory, Parser, Subcommand};
use lanes::compile::{ArgumentLayout, LaunchArgument, Passed};
use lanes::loom::launch::{Geometry, LaunchProgram};
use lanes::loom::ptx::{self, Sm};
use lanes::loom::tile::Buffer;
use lanes::loom::{CpuImage, Diagnostics, MAX_SOURCE_BYTES, Module, VERSION};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Loom kernels
#[derive(Debug, Parser)]
#[command(name = "lanes loom", max_term_width = 100)]
struct Loom {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Parse and verify
    Check(CheckArgs),
    /// Rewrite as canonical text
    Fmt(FmtArgs),
    /// One kernel to an image, with its argument layout and launch geometry
    Compile(CompileArgs),
    /// Run every public check.case, or one; exit 1 if a sample fails
    Test(cases::TestArgs),
    /// Time every check.benchmark after its case has passed
    Bench(cases::BenchArgs),
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Loom files; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct FmtArgs {
    /// Loom files; - is standard input, whose canonical text goes to standard output
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Change nothing, list the files that are not canonical, and exit 1 if there are any
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
#[expect(rustdoc::broken_intra_doc_links, reason = "brackets are the contract's notation, shown by --help")]
struct CompileArgs {
    /// Loom files; - is standard input. The first that has the kernel is linked with what it uses of the others
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The kernel, by its symbol or export name
    #[arg(long, value_name = "SYM")]
    kernel: String,
    /// cpu, or ptx[:sm_NN], whose text goes to standard output unless -o or --json is given; spirv and wgsl are not written yet
    #[arg(long, value_name = "T", value_parser = target)]
    target: String,
    /// Bind a config key
    #[arg(long, value_name = "K=V", allow_hyphen_values = true, value_parser = pair)]
    config: Vec<(String, String)>,
    /// The image goes here: PTX as text, one for the CPU for the compiler that wrote it to read
    #[arg(short = 'o', value_name = "F")]
    out: Option<PathBuf>,
    /// Workload arguments, to compute the launch geometry for
    #[arg(long, value_name = "ARG,…", allow_hyphen_values = true, value_delimiter = ',')]
    launch: Vec<String>,
    /// What the image is made of
    #[arg(long)]
    report: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `lanes loom` with the words behind it.
pub fn run(words: &[OsString]) -> CliResult {
    let loom = match Loom::try_parse_from(std::iter::once(&OsString::from("lanes loom")).chain(words)) {
        Ok(loom) => loom,
        Err(why) => return usage::answer(&why, &Loom::command(), words),
    };
    match &loom.command {
        Command::Check(args) => check(args),
        Command::Fmt(args) => fmt(args),
        Command::Compile(args) => compile(args),
        Command::Test(args) => cases::test(args),
        Command::Bench(args) => cases::bench(args),
    }
}

/// What is wrong with a file.
enum Wrong {
    /// It cannot be read, or is not where it can be written.
    File(String),
    /// It could not be written though nothing is wrong with its place: a disk is full.
    Written(String),
    /// It is no text, from here on.
    Bytes { name: String, line: usize, column: usize, message: String },
    /// Its text.
    Text(Diagnostics),
}

impl Wrong {
    /// Says it on stderr.
    fn say(&self) {
        match self {
            Self::File(why) | Self::Written(why) => say::aside(why),
            Self::Bytes { name, line, column, message } => say::aside(&format!("{name}:{line}:{column}: {message}")),
            // Line by line, since a line feed inside a line of the text would be spelt out.
            Self::Text(errors) => errors.to_string().lines().for_each(|line| {
                let _ = writeln!(io::stderr(), "{}", say::plain(line));
            }),
        }
    }

    /// As the contract has it; what concerns no line is on line 0.
    fn json(&self) -> Value {
        match self {
            Self::File(why) | Self::Written(why) => json!([{"line": 0, "column": 0, "message": why}]),
            Self::Bytes { line, column, message, .. } => json!([{"line": line, "column": column, "message": message}]),
            Self::Text(errors) => errors
                .items
                .iter()
                .map(|error| {
                    let mut row = json!({"line": error.line, "column": error.column, "message": error.message});
                    // What is reached in a library is wrong there.
                    if error.file != errors.name {
                        row["file"] = error.file.as_str().into();
                    }
                    row
                })
                .collect(),
        }
    }
}

fn name_of(path: &Path) -> String {
    if is_stdin(path) { "<stdin>".to_owned() } else { path.display().to_string() }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The files that were named, in order, each once: a text is no library of its own.
fn distinct(files: &[PathBuf]) -> Vec<&PathBuf> {
    let mut seen = BTreeSet::new();
    // What cannot be found is told by whoever reads it; `-` is no path.
    let found = |path: &PathBuf| fs::canonicalize(path).ok().filter(|_| !is_stdin(path));
    files.iter().filter(|path| seen.insert(found(path).unwrap_or_else(|| path.to_path_buf()))).collect()
}

/// The text of a file.
fn read(path: &Path) -> Result<String, Wrong> {
    let wrong = |why: &dyn std::fmt::Display| Wrong::File(format!("{}: {why}", name_of(path)));
    let mut bytes = Vec::new();
    let mut fill = |input: &mut dyn Read| input.take(MAX_SOURCE_BYTES as u64 + 1).read_to_end(&mut bytes);
    let done = if is_stdin(path) {
        fill(&mut io::stdin().lock())
    } else if path.is_dir() {
        return Err(wrong(&"a folder; Loom files are accepted, each by its name"));
    } else {
        File::open(path).and_then(|mut file| fill(&mut file))
    };
    done.map_err(|why| wrong(&why))?;
    if bytes.len() > MAX_SOURCE_BYTES {
        return Err(wrong(&format!("more than {MAX_SOURCE_BYTES} bytes; at most so many are accepted")));
    }
    String::from_utf8(bytes).map_err(|why| {
        let at = why.utf8_error().valid_up_to();
        let (before, byte) = (String::from_utf8_lossy(&why.as_bytes()[..at]), why.as_bytes()[at]);
        let line = before.rsplit('\n').next().unwrap_or_default();
        Wrong::Bytes {
            name: name_of(path),
            line: 1 + before.matches('\n').count(),
            column: 1 + line.chars().count(),
            message: format!("byte {at}, {byte:#04x}, is not UTF-8; a Loom text is UTF-8"),
        }
    })
}

/// A file that was not written: its place is wrong, or what happened there.
fn unwritten(why: &io::Error, said: String) -> CliError {
    use io::ErrorKind::*;
    match why.kind() {
        NotFound | PermissionDenied | IsADirectory | NotADirectory | InvalidInput | InvalidFilename
        | ReadOnlyFilesystem => CliError::usage(said),
        _ => CliError::failed(said),
    }
}

/// The error that ends a command in which `wrong` of `all` files were wrong.
fn ended(command: &str, wrong: usize, all: usize) -> CliResult {
    if wrong == 0 {
        return Ok(());
    }
    Err(CliError::usage(format!("loom {command}: errors in {wrong} of {}", say::count(all, "file"))))
}

fn check(args: &CheckArgs) -> CliResult {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    let mut wrong = 0;
    let files = distinct(&args.files);
    let texts: Vec<(String, Result<String, Wrong>)> = files.iter().map(|path| (name_of(path), read(path))).collect();
    let parse = |(name, text): &(String, Result<String, Wrong>)| Module::parse(name, text.as_ref().ok()?).ok();
    let modules: Vec<Option<Module>> = if texts.len() > 1 { texts.iter().map(parse).collect() } else { vec![None] };
    for (at, (name, text)) in texts.into_iter().enumerate() {
        let others = modules.iter().enumerate().filter(|(other, _)| *other != at);
        let libraries: Vec<&Module> = others.filter_map(|(_, module)| module.as_ref()).collect();
        let checked = text.map(|text| Module::check_linked(&name, &text, &libraries));
        let (kernels, why) = match checked {
            Ok((kernels, Ok(()))) => (kernels.len(), None),
            Ok((kernels, Err(errors))) => (kernels.len(), Some(Wrong::Text(errors))),
            Err(why) => (0, Some(why)),
        };
        let status = if why.is_some() { "error" } else { "ok" };
        lines.push(format!("{name}  {}  {status}", say::count(kernels, "kernel")));
        let errors = why.as_ref().map_or(json!([]), Wrong::json);
        rows.push(json!({"file": name, "kernels": kernels, "status": status, "errors": errors}));
        if let Some(why) = why {
            wrong += 1;
            why.say();
        }
    }
    if args.json {
        say::json(&json!({"files": rows}))?
    } else {
        say::lines(&lines)?
    }
    ended("check", wrong, files.len())
}

fn fmt(args: &FmtArgs) -> CliResult {
    let (mut wrong, mut unwritten, mut differ) = (0, 0, 0);
    let files = distinct(&args.files);
    for path in &files {
        match format_one(path, args.check) {
            Ok(None) => {}
            Ok(Some(line)) => {
                differ += 1;
                say::line(&line)?;
            }
            Err(why) => {
                *(if matches!(why, Wrong::Written(_)) { &mut unwritten } else { &mut wrong }) += 1;
                why.say();
            }
        }
    }
    ended("fmt", wrong, files.len())?;
    let all = say::count(files.len(), "file");
    if unwritten > 0 {
        return Err(CliError::failed(format!("loom fmt: {unwritten} of {all} not written")));
    }
    if args.check && differ > 0 {
        return Err(CliError::failed(format!("loom fmt --check: {differ} of {all} not formatted")));
    }
    Ok(())
}

/// Formats a file, or only looks; its name if its text is not canonical.
fn format_one(path: &Path, only_check: bool) -> Result<Option<String>, Wrong> {
    let name = name_of(path);
    let text = read(path)?;
    let formatted = Module::parse(&name, &text).map_err(Wrong::Text)?.format();
    if formatted.len() > MAX_SOURCE_BYTES {
        let length = formatted.len();
        let why = format!("{name}: its canonical text has {length} bytes; at most {MAX_SOURCE_BYTES} are read again");
        return Err(Wrong::File(why));
    }
    if is_stdin(path) && !only_check {
        let done = io::stdout().lock().write_all(formatted.as_bytes());
        return match done {
            Err(why) if why.kind() != io::ErrorKind::BrokenPipe => {
                Err(Wrong::Written(format!("writing to stdout: {why}")))
            }
            _ => Ok(None),
        };
    }
    if formatted == text {
        return Ok(None);
    }
    if !only_check {
        replace(path, &formatted).map_err(|why| match unwritten(&why, format!("{name}: {why}")) {
            CliError::Failed(said) => Wrong::Written(said),
            wrong => Wrong::File(wrong.to_string()),
        })?;
    }
    Ok(Some(name))
}

/// Replaces a file by another of the same name and permissions: whoever opens it sees the old text or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A link stays one: what it leads to is replaced.
    let path = fs::canonicalize(path)?;
    let permissions = fs::metadata(&path)?.permissions();
    if permissions.readonly() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is read-only"));
    }
    whole(&path, text.as_bytes(), Some(permissions))
}

/// Writes a file under another name first, so that what was there stays if it cannot be written whole. A link stays one, and
/// what is no file (a pipe, a device) is written to: another name would put a file in its place.
fn whole(path: &Path, bytes: &[u8], permissions: Option<fs::Permissions>) -> io::Result<()> {
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(path).is_ok_and(|seen| !seen.is_file() && !seen.is_dir()) {
        return OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    let mut partial = OsString::from(".");
    partial.push(path.file_name().unwrap_or_default());
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(partial);
    let mut file = OpenOptions::new().write(true).create_new(true).open(&partial)?;
    let written = (|| {
        file.write_all(bytes)?;
        if let Some(permissions) = permissions {
            file.set_permissions(permissions)?;
        }
        file.sync_all()?;
        fs::rename(&partial, path)
    })();
    written.inspect_err(|_| {
        // The error that matters is the first one; a partial file that cannot be removed changes nothing.
        let _ = fs::remove_file(&partial);
    })
}

/// What came of a kernel, whatever it was compiled for.
struct Compiled {
    name: String,
    layout: ArgumentLayout,
    launch: LaunchProgram,
    bytes: Vec<u8>,
    /// PTX, which people read too.
    text: Option<String>,
    report: Vec<(&'static str, Value)>,
}

impl Compiled {
    fn cpu(image: &CpuImage) -> CliResult<Self> {
        let bytes = image.encode().map_err(|why| CliError::failed(format!("kernel `{}`: {why}", image.name)))?;
        let (layout, launch) = (ArgumentLayout::of(image), image.launch.clone());
        Ok(Self { name: image.name.clone(), layout, launch, bytes, text: None, report: report(image) })
    }

    fn ptx(image: ptx::Image) -> Self {
        let layout = ArgumentLayout::new(&image.name, &image.parameters, &image.launch.workload);
        let (major, minor) = image.version;
        let report = vec![
            ("entry", image.entry.as_str().into()),
            ("least_target", image.target.to_string().into()),
            ("version", format!("{major}.{minor}").into()),
            ("parameter_bytes", image.slots.last().map_or(0, |slot| slot.offset + slot.bytes).into()),
            ("static_workgroup_bytes", image.static_shared_bytes.into()),
            ("dynamic_workgroup_bytes", image.dynamic_shared_bytes.into()),
            ("private_bytes_per_item", image.local_bytes.into()),
        ];
        let bytes = image.text.clone().into_bytes();
        Self { name: image.name, layout, launch: image.launch, bytes, text: Some(image.text), report }
    }
}

fn compile(args: &CompileArgs) -> CliResult {
    let options = match args.target.split_once(':').unwrap_or((&args.target, "")) {
        ("cpu", _) => None,
        ("ptx", "") => Some(ptx::Options::default()),
        ("ptx", name) => {
            let target = Sm::parse(name).map_err(|why| CliError::usage(format!("--target {}: {why}", args.target)))?;
            Some(ptx::Options { target, ..ptx::Options::default() })
        }
        (target, _) => {
            let why = format!("--target {target}: compiling for it is not written yet; cpu and ptx are");
            return Err(CliError::usage(why));
        }
    };
    let config = bound(&args.config)?;
    if let Some(out) = &args.out {
        let found = |path: &Path| fs::canonicalize(path).ok().filter(|_| !is_stdin(path));
        if let Some(file) = args.files.iter().find(|file| found(file).is_some_and(|file| found(out) == Some(file))) {
            let out = out.display();
            return Err(CliError::usage(format!(
                "-o {out}: it is the text {}; another file is accepted",
                file.display()
            )));
        }
    }
    let refused = |name: &str, why: Wrong| match why {
        Wrong::File(why) | Wrong::Written(why) => CliError::usage(why),
        Wrong::Bytes { name, line, column, message } => CliError::usage(format!("{name}:{line}:{column}: {message}")),
        Wrong::Text(_) => {
            why.say();
            CliError::usage(format!("loom compile: kernel `{}` of {name} does not compile", args.kernel))
        }
    };
    let mut modules = Vec::new();
    for path in distinct(&args.files) {
        let name = name_of(path);
        let parsed = read(path).and_then(|text| Module::parse(&name, &text).map_err(Wrong::Text));
        modules.push((parsed.map_err(|why| refused(&name, why))?, name));
    }
    let root = modules.iter().position(|(module, _)| module.has_kernel(&args.kernel)).unwrap_or(0);
    let (module, name) = modules.swap_remove(root);
    let libraries: Vec<&Module> = modules.iter().map(|(module, _)| module).collect();
    let errors = |errors: Diagnostics| refused(&name, Wrong::Text(errors));
    let linked = module.link(&libraries).map_err(errors)?;
    say_unbound(&config, &[&[&module], &libraries[..]].concat());
    let image = match &options {
        None => Compiled::cpu(&linked.compile_cpu(&args.kernel, &config).map_err(errors)?)?,
        Some(options) => Compiled::ptx(linked.compile_ptx(&args.kernel, &config, options).map_err(errors)?),
    };
    let geometry = geometry(&image.name, &image.launch, &args.launch)?;
    let (layout, bytes) = (&image.layout, &image.bytes);
    if let Some(path) = &args.out {
        whole(path, bytes, None).map_err(|why| unwritten(&why, format!("-o {}: {why}", path.display())))?;
    }
    if args.json {
        let mut object = json!({
            "file": name, "kernel": image.name, "target": args.target, "compiler": VERSION, "image_bytes": bytes.len(),
            "arguments": layout.launch().iter().map(object_of).collect::<Vec<_>>(),
            "workload": layout.workload().iter().map(object_of).collect::<Vec<_>>(),
            "scalar_bytes": layout.launch_bytes(), "bindings": layout.bindings(),
            "workgroup_size": image.launch.workgroup_size, "workgroups": geometry.map(|geometry| geometry.workgroups),
        });
        if args.report {
            object["report"] = image.report.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        }
        if let Some(text) = image.text.filter(|_| args.out.is_none()) {
            object["text"] = text.into();
        }
        return say::json(&object);
    }
    if let (Some(text), None) = (&image.text, &args.out) {
        return say::lines(&text.lines().map(str::to_owned).collect::<Vec<_>>());
    }
    let mut lines = vec![format!("kernel    {} of {name}, for {}, {} bytes", image.name, args.target, bytes.len())];
    lines.extend(layout.launch().iter().map(|argument| format!("argument  {}", line_of(argument))));
    lines.extend(layout.workload().iter().map(|argument| format!("workload  {}", line_of(argument))));
    let by = |extents: [u32; 3]| extents.map(|extent| extent.to_string()).join(" x ");
    lines.push(format!("items     {} a workgroup", by(image.launch.workgroup_size)));
    lines.push(match geometry {
        Some(geometry) => format!("launch    {} workgroups", by(geometry.workgroups)),
        None => "launch    depends on the workload; --launch computes it".to_owned(),
    });
    if args.report {
        lines.extend(image.report.iter().map(|(key, value)| format!("report    {key} {value}")));
    }
    say::lines(&lines)
}

/// The launch geometry for workload arguments as text; none if there should be some and none were given.
fn geometry(kernel: &str, launch: &LaunchProgram, given: &[String]) -> CliResult<Option<Geometry>> {
    let workload = &launch.workload;
    if given.is_empty() && !workload.is_empty() {
        return Ok(None);
    }
    // `--launch ""` is how a script says that there are none.
    let given = if workload.is_empty() && given.iter().all(String::is_empty) { &[] } else { given };
    let wrong = |why: String| CliError::usage(format!("--launch {}: {why}", given.join(",")));
    if given.len() != workload.len() {
        let names: Vec<&str> = workload.iter().map(|parameter| parameter.name.as_str()).collect();
        let found = say::count(given.len(), "workload argument");
        let accepted = match &names[..] {
            [] => "none".to_owned(),
            names => format!("{}: {}", names.len(), names.join(", ")),
        };
        return Err(wrong(format!("{found}; `{kernel}` has {accepted}")));
    }
    let slots: Result<Vec<u64>, String> = workload
        .iter()
        .zip(given)
        .map(|(parameter, text)| {
            parameter.kind.slot(text).map_err(|why| format!("`{text}` for {}: {why}", parameter.name))
        })
        .collect();
    let geometry = launch.geometry(&slots.map_err(wrong)?);
    geometry.map(Some).map_err(|why| wrong(why.to_string()))
}

fn object_of(argument: &LaunchArgument) -> Value {
    match argument.passed {
        Passed::Buffer { binding } => json!({"name": argument.name, "kind": "buffer", "binding": binding}),
        Passed::Scalar { ty, offset, bytes } => {
            json!({"name": argument.name, "kind": "scalar", "type": ty.to_string(), "offset": offset, "bytes": bytes})
        }
    }
}

fn line_of(argument: &LaunchArgument) -> String {
    match argument.passed {
        Passed::Buffer { binding } => format!("{}  buffer, binding {binding}", argument.name),
        Passed::Scalar { ty, offset, bytes } => format!("{}  {ty}, {bytes} bytes at {offset}", argument.name),
    }
}

/// What the image is made of.
fn report(image: &CpuImage) -> Vec<(&'static str, Value)> {
    let program = image.program();
    let scratch = |pick: fn(&Buffer) -> u64| program.buffers.iter().map(pick).sum::<u64>();
    let workgroup = |buffer: &Buffer| if let Buffer::Workgroup { bytes } = buffer { *bytes } else { 0 };
    let private = |buffer: &Buffer| if let Buffer::Private { bytes } = buffer { *bytes } else { 0 };
    vec![
        ("instructions", program.blocks.iter().map(Vec::len).sum::<usize>().into()),
        ("prologue_instructions", program.prologue.len().into()),
        ("blocks", program.blocks.len().into()),
        ("constants", program.constants.len().into()),
        ("slots", program.slots.into()),
        ("items_per_tile", program.items.into()),
        ("register_bytes", program.frame_bytes.into()),
        ("workgroup_bytes", scratch(workgroup).into()),
        ("private_bytes_per_item", scratch(private).into()),
    ]
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("K=V is accepted")?;
    let key = key.strip_prefix('@').unwrap_or(key);
    if key.is_empty() { Err("K=V with a key is accepted".to_owned()) } else { Ok((key.to_owned(), value.to_owned())) }
}

/// Values by key, each bound once.
fn bound(pairs: &[(String, String)]) -> CliResult<BTreeMap<String, String>> {
    let mut config = BTreeMap::new();
    for (key, value) in pairs {
        if config.insert(key.clone(), value.clone()).is_some() {
            return Err(CliError::usage(format!("--config {key}={value}: `{key}` is bound twice")));
        }
    }
    Ok(config)
}

/// Says which keys no text declares: one list of values may serve many files, and may hold a slip too.
fn say_unbound(config: &BTreeMap<String, String>, modules: &[&Module]) {
    let mut known: Vec<&str> = modules.iter().flat_map(|module| module.config_keys()).collect();
    known.sort_unstable();
    known.dedup();
    for (key, value) in config.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
        let there = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        say::aside(&format!(
            "--config {key}={value}: no file declares such a key, and nothing reads it; declared: {there}"
        ));
    }
}

fn target(text: &str) -> Result<String, String> {
    match text.split_once(':').unwrap_or((text, "sm_")) {
        ("cpu" | "spirv" | "wgsl", _) if !text.contains(':') => Ok(text.to_owned()),
        ("ptx", architecture) if architecture.starts_with("sm_") => Ok(text.to_owned()),
        _ => Err("cpu, ptx[:sm_NN], spirv or wgsl is accepted".to_owned()),
    }
}
