//! Loom texts to a folder that a driver program without Rust can run: every kernel as PTX, and every launch of every public
//! `check.case` with the bytes it starts from and the bytes that the interpreter leaves.
//!
//! ```text
//! cargo run -p loom-compiler --example ptx_cases -- OUT [--target sm_90] [--version 9.0] [--checked] [--no-cases] [--config K=V].. FILE..
//! ```
//!
//! `OUT/NAME.ptx`, one for each kernel, `OUT/data.bin`, and `OUT/manifest.txt`, lines of words separated by spaces:
//!
//! ```text
//! kernel PTX ENTRY FILE KERNEL                  a text, whether launched or not; names hold no spaces
//! unsupported FILE KERNEL WORDS..               one that is refused, and why
//! launch PTX ENTRY FILE CASE SAMPLE ORDINAL     begins a launch; those of one sample follow each other but are each whole
//! grid X Y Z                                    workgroups; a zero is no work
//! block X Y Z                                   work-items
//! shared BYTES                                  dynamic workgroup memory
//! storage N OFFSET BYTES                        allocate, on a multiple of 256, and fill from data.bin
//! param buffer N BYTE                           8 bytes: the address of storage N, and so many bytes on
//! param scalar BYTES HEX                        4 or 8 bytes
//! param length NUMBER                           8 bytes
//! param faults                                  8 bytes: the address of 40 cleared bytes, which must still be clear behind the launch
//! expect N OFFSET BYTES TYPE TOLERANCE          storage N then holds these bytes of data.bin
//! end
//! ```
//!
//! `param` lines are the parameters of the `.entry` in order. TYPE is what most views of the storage see (`f32`, `i8`, ..): where
//! it is a float, two NaN are equal, and `|a - e| <= TOLERANCE * max(1, |e|)` is. A tolerance of 0 asks for the bits.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use loom_compiler::check::{Actual, Interpreted, Limits, NoFiles, Stop, Target, run};
use loom_compiler::ir::{Body, Kernel, ValueId};
use loom_compiler::ops::{Binary, Family, OpKind, Unary};
use loom_compiler::ptx::{self, Options, Passed, Sm};
use loom_compiler::types::{ScalarType, Type};
use loom_compiler::{Module, interp};

/// An image, what it is of, and the file's name.
type Written = (ptx::Image, Kernel, String);

type Done<T = ()> = Result<T, Box<dyn Error>>;

struct Arguments {
    out: PathBuf,
    options: Options,
    config: BTreeMap<String, String>,
    cases: bool,
    files: Vec<PathBuf>,
}

fn arguments() -> Done<Arguments> {
    let mut words = std::env::args().skip(1);
    let out = words.next().ok_or("a folder to write to comes first")?.into();
    let mut found =
        Arguments { out, options: Options::default(), config: BTreeMap::new(), cases: true, files: Vec::new() };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} is followed by a value"));
        match word.as_str() {
            "--target" => found.options.target = Sm::parse(&value()?)?,
            "--version" => {
                let text = value()?;
                let (major, minor) = text.split_once('.').ok_or("--version MAJOR.MINOR is accepted")?;
                found.options.version = (major.parse()?, minor.parse()?);
            }
            "--no-cases" => found.cases = false,
            "--checked" => found.options.checked = true,
            "--config" => {
                let pair = value()?;
                let (key, value) = pair.split_once('=').ok_or("--config K=V is accepted")?;
                found.config.insert(key.to_owned(), value.to_owned());
            }
            _ => found.files.push(word.into()),
        }
    }
    Ok(found)
}

fn main() -> Done {
    let Arguments { out, options, config, cases, files } = arguments()?;
    std::fs::create_dir_all(&out)?;
    let mut folder = Folder { out, options, manifest: String::new(), data: Vec::new(), written: BTreeMap::new() };
    for file in &files {
        let text = std::fs::read_to_string(file).map_err(|why| format!("{}: {why}", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let module = Module::with_cases(&name, &text, &[])?;
        for kernel in module.kernels() {
            folder.kernel(&name, &module, &config, &kernel)?;
        }
        for case in module.cases().into_iter().filter(|case| case.public && cases) {
            let case = module.case(&case.name, &config)?;
            for sample in (0..case.samples()).filter_map(|ordinal| case.sample(ordinal)) {
                let mut host = Interpreted::new(&module, &config, interp::Limits::default());
                let oracle = Interpreted::new(&module, &config, interp::Limits::default());
                let place = format!("{} {}", case.name, sample.ordinal);
                let mut recorder = Recorder {
                    oracle,
                    folder: &mut folder,
                    module: &module,
                    config: &config,
                    file: &name,
                    place,
                    ordinal: 0,
                    lengths: BTreeMap::new(),
                };
                let verdict = run(&case, &sample, &mut recorder, &mut host, &mut NoFiles, Limits::default());
                if let Some(why) = verdict.message {
                    eprintln!("{name}: @{} sample {}: {:?}: {why}", case.name, sample.ordinal, verdict.status);
                }
            }
        }
    }
    std::fs::write(folder.out.join("manifest.txt"), &folder.manifest)?;
    std::fs::write(folder.out.join("data.bin"), &folder.data)?;
    Ok(())
}

struct Folder {
    out: PathBuf,
    options: Options,
    manifest: String,
    data: Vec<u8>,
    /// By file and kernel: its image and file, or nothing where it is refused.
    written: BTreeMap<(String, String), Option<Written>>,
}

impl Folder {
    /// The image of a kernel, written once.
    fn kernel(
        &mut self,
        file: &str,
        module: &Module,
        config: &BTreeMap<String, String>,
        name: &str,
    ) -> Done<Option<&Written>> {
        let key = (file.to_owned(), name.to_owned());
        if !self.written.contains_key(&key) {
            let made = match module.specialise(name, config) {
                Err(why) => Err(why.to_string()),
                Ok(kernel) => match module.ptx_of(&kernel, &self.options) {
                    Err(why) => Err(why.what),
                    Ok(image) => Ok((image, kernel)),
                },
            };
            let made = match made {
                Err(why) => {
                    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
                    writeln!(self.manifest, "unsupported {file} {name} {why}")?;
                    None
                }
                Ok((image, kernel)) => {
                    let path = format!("{file}__{}.ptx", image.entry);
                    std::fs::write(self.out.join(&path), &image.text)?;
                    writeln!(self.manifest, "kernel {path} {} {file} {name}", image.entry)?;
                    Some((image, kernel, path))
                }
            };
            self.written.insert(key.clone(), made);
        }
        Ok(self.written[&key].as_ref())
    }

    fn keep(&mut self, bytes: &[u8]) -> usize {
        self.data.extend_from_slice(bytes);
        self.data.len() - bytes.len()
    }
}

/// The interpreter, with every launch written down.
struct Recorder<'a, 'm> {
    oracle: Interpreted<'m>,
    folder: &'a mut Folder,
    module: &'m Module,
    config: &'m BTreeMap<String, String>,
    file: &'a str,
    place: String,
    ordinal: u32,
    lengths: BTreeMap<usize, usize>,
}

impl Recorder<'_, '_> {
    fn bytes(&mut self, storage: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; self.lengths.get(&storage).copied().unwrap_or(0)];
        self.oracle.read(storage, &mut bytes)?;
        Ok(bytes)
    }

    fn write_down(
        &mut self,
        name: &str,
        workload: &[u64],
        actuals: &[Actual],
        before: &BTreeMap<usize, Vec<u8>>,
    ) -> Done {
        let after: Result<Vec<(usize, Vec<u8>)>, Stop> =
            before.keys().map(|storage| Ok((*storage, self.bytes(*storage)?))).collect();
        let after = after.map_err(|_| "a storage that cannot be read")?;
        let Some((image, kernel, path)) = self.folder.kernel(self.file, self.module, self.config, name)? else {
            return Ok(());
        };
        let (image, path) = (image.clone(), path.clone());
        let (types, tolerance) = (seen_types(kernel), tolerance(kernel));
        let geometry = image.launch.geometry(workload)?;
        let mut lines = String::new();
        writeln!(lines, "launch {path} {} {} {} {}", image.entry, self.file, self.place, self.ordinal)?;
        let three = |numbers: [u32; 3]| numbers.map(|number| number.to_string()).join(" ");
        writeln!(lines, "grid {}\nblock {}", three(geometry.workgroups), three(geometry.workgroup_size))?;
        writeln!(lines, "shared {}", image.dynamic_shared_bytes)?;
        for (storage, bytes) in before {
            let at = self.folder.keep(bytes);
            writeln!(lines, "storage {storage} {at} {}", bytes.len())?;
        }
        let mut seen: BTreeMap<usize, ScalarType> = BTreeMap::new();
        for slot in &image.slots {
            match slot.passed {
                Passed::Buffer { argument } | Passed::Length { argument } => {
                    let Actual::Tensor { storage, bytes, .. } = &actuals[argument] else {
                        return Err("a scalar given for a buffer".into());
                    };
                    if let Passed::Length { .. } = slot.passed {
                        writeln!(lines, "param length {}", bytes.end - bytes.start)?;
                        continue;
                    }
                    if let Some(ty) = types.get(&argument) {
                        seen.entry(*storage).or_insert(*ty);
                    }
                    writeln!(lines, "param buffer {storage} {}", bytes.start)?;
                }
                Passed::Scalar { argument, ty } => {
                    let Actual::Scalar(bits) = actuals[argument] else {
                        return Err("a buffer given for a scalar".into());
                    };
                    let bits = if ty.is_integer() { loom_compiler::eval::signed(ty, bits) as u64 } else { bits };
                    let bits = if slot.bytes == 4 { bits & 0xffff_ffff } else { bits };
                    writeln!(lines, "param scalar {} {bits:#x}", slot.bytes)?;
                }
                Passed::Faults => writeln!(lines, "param faults")?,
            }
        }
        for (storage, bytes) in after {
            let at = self.folder.keep(&bytes);
            let ty = seen.get(&storage).copied().unwrap_or(ScalarType::I8);
            let tolerance = if ty.is_float() { tolerance } else { 0.0 };
            writeln!(lines, "expect {storage} {at} {} {ty} {tolerance}", bytes.len())?;
        }
        writeln!(lines, "end")?;
        self.folder.manifest.push_str(&lines);
        Ok(())
    }
}

impl Target for Recorder<'_, '_> {
    fn write(&mut self, storage: usize, bytes: &[u8]) -> Result<(), Stop> {
        self.lengths.insert(storage, bytes.len());
        self.oracle.write(storage, bytes)
    }

    fn read(&mut self, storage: usize, into: &mut [u8]) -> Result<(), Stop> {
        self.oracle.read(storage, into)
    }

    fn launch(&mut self, kernel: &str, workload: &[u64], arguments: &mut [Actual]) -> Result<(), Stop> {
        let storages: BTreeSet<usize> = arguments
            .iter()
            .filter_map(|actual| match actual {
                Actual::Tensor { storage, .. } => Some(*storage),
                Actual::Scalar(_) => None,
            })
            .collect();
        let mut before = BTreeMap::new();
        for storage in storages {
            before.insert(storage, self.bytes(storage)?);
        }
        self.oracle.launch(kernel, workload, arguments)?;
        self.write_down(kernel, workload, arguments, &before).map_err(|why| Stop::Error(why.to_string()))?;
        self.ordinal += 1;
        Ok(())
    }

    fn clear(&mut self) {
        self.oracle.clear();
        self.lengths.clear();
    }
}

/// For each argument that is a buffer, the elements that its first view has.
fn seen_types(kernel: &Kernel) -> BTreeMap<usize, ScalarType> {
    let body = &kernel.body;
    let arguments = &body.block(Body::ENTRY).arguments;
    let mut types = BTreeMap::new();
    for op in body.ops().filter(|op| op.kind == OpKind::BufferView) {
        let argument = arguments.iter().position(|argument| *argument == op.operands[0]);
        if let (Some(argument), Type::View(view)) = (argument, body.ty(op.results[0] as ValueId)) {
            types.entry(argument).or_insert(view.element);
        }
    }
    types
}

/// What may differ from the interpreter: functions that it takes from the standard library, sums in the order of arrival, and products
/// on tensor cores.
fn tolerance(kernel: &Kernel) -> f64 {
    let inexact = |op: &OpKind| match op {
        OpKind::Unary(op) => matches!(
            op,
            Unary::SinF
                | Unary::CosF
                | Unary::TanF
                | Unary::AsinF
                | Unary::AcosF
                | Unary::AtanF
                | Unary::ExpF
                | Unary::ApproximateExpF
                | Unary::SinTurnsF
                | Unary::CosTurnsF
        ),
        OpKind::Binary(op) => *op == Binary::Atan2F,
        OpKind::Mma(product) => !product.lhs.is_integer(),
        kind => matches!(kind.family(), Family::Atomic),
    };
    if kernel.body.ops().any(|op| inexact(&op.kind)) { 1e-6 } else { 0.0 }
}
