//! Mutated Loom texts through everything that reads or runs them, for panics, hangs, growth and wrong results.
//!
//! `fuzz SECONDS SEED [FOLDER]`
//!
//! - The texts are those of `crates/tests/loom`, `crates/tests/kernels` and of FOLDER. The same seed over the same texts
//!   makes the same cases.
//! - A finding is printed with its seed and its text, cut down to the lines without which it does not happen; one for each
//!   place that panics.
//! - What stops the process (a hang, an overflowing stack) leaves its text in `lanes-fuzz-SEED.loom` of the temporary folder.
//! - Results are compared where there is one answer: one work-item, and nothing in the text that promises.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use backend_cpu::tile::{TileScratch, run_slices};
use loom_compiler::check::{self, Files, Interpreted, NoFiles};
use loom_compiler::interp::{self, Argument, Limits};
use loom_compiler::ir::{Kernel, ParameterKind};
use loom_compiler::launch::Geometry;
use loom_compiler::{CpuImage, Module, tile};

/// What one case may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the process may hold.
const RESIDENT_BYTES: u64 = 3 << 30;
/// Steps of an interpreted launch, and turns of loops of a compiled one.
const STEPS: u64 = 100_000;
/// What any kernel may be bound to.
const VALUES: [&str; 8] = ["1", "2", "4", "16", "64", "true", "1.5", "0"];
/// What a number becomes.
const NUMBERS: [&str; 22] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "31",
    "32",
    "33",
    "64",
    "255",
    "4096",
    "65536",
    "2147483647",
    "-2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1e400",
    "nan",
    "0.0",
];
/// What a type becomes.
const TYPES: [&str; 13] =
    ["i1", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "f8E4M3FN", "index", "offset", "buffer"];

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        // splitmix64: every state, zero too, gives a good number.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// The case that runs: since when, its seed and text.
static RUNNING: Mutex<Option<(Instant, u64, String)>> = Mutex::new(None);
/// Where the last panic was, and what it said.
static PANIC: Mutex<(String, String)> = Mutex::new((String::new(), String::new()));

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let (Ok(seconds), Ok(seed)) = (number(0, 10), number(1, 1)) else {
        eprintln!("usage: fuzz SECONDS SEED [FOLDER]");
        std::process::exit(2);
    };
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let mut folders = vec![tests.join("loom"), tests.join("kernels")];
    folders.extend(arguments.get(2).map(PathBuf::from));
    let mut texts = Vec::new();
    folders.iter().for_each(|folder| collect(folder, &mut texts));
    let blocks: Vec<Vec<String>> = texts.iter().map(|text| blocks(text)).collect();
    println!("fuzz: {} texts, {seconds} s from seed {seed}", texts.len());

    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        if let Ok(mut last) = PANIC.lock() {
            *last = (place, info.to_string());
        }
    }));
    let kept = std::env::temp_dir().join(format!("lanes-fuzz-{seed}.loom"));
    std::thread::spawn(watch);

    let (start, mut seen, mut count) = (Instant::now(), BTreeSet::new(), Count::default());
    for case in seed << 32.. {
        if start.elapsed() > Duration::from_secs(seconds) {
            break;
        }
        let text = mutated(&mut Dice(case), &blocks);
        if let Err(why) = fs::write(&kept, &text) {
            eprintln!("fuzz: {}: {why}", kept.display());
        }
        if let Some(finding) = attempt(case, &text, &mut count)
            && seen.insert(finding.kind.clone())
        {
            let text = smaller(case, text, &finding.kind, &mut Count::default());
            println!("=== {} (seed {case})\n{}\n--- text\n{text}\n===", finding.kind, finding.what);
        }
        count.cases += 1;
    }
    println!("fuzz: {count:?}, {} kinds of findings: {seen:?}", seen.len());
    let _ = fs::remove_file(&kept);
    std::process::exit(i32::from(!seen.is_empty()));
}

/// How far cases came.
#[derive(Debug, Default)]
struct Count {
    cases: u64,
    parsed: u64,
    sound: u64,
    specialised: u64,
    compiled: u64,
    ran: u64,
    compared: u64,
    checks: u64,
}

/// Something that must not be.
struct Finding {
    /// One for each cause, as well as can be told.
    kind: String,
    what: String,
}

/// Ends the process when a case takes too long or too much.
fn watch() {
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let resident = fs::read_to_string("/proc/self/statm").ok();
        let resident = resident.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 4096;
        let Ok(running) = RUNNING.lock() else { continue };
        let Some((since, seed, text)) = &*running else { continue };
        let what = if since.elapsed() > PATIENCE {
            format!("still running after {PATIENCE:?}")
        } else if resident > RESIDENT_BYTES {
            format!("holds {resident} bytes")
        } else {
            continue;
        };
        println!("=== {what} (seed {seed})\n--- text\n{text}\n===");
        std::process::exit(3);
    }
}

fn collect(folder: &Path, texts: &mut Vec<String>) {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, texts);
        } else if path.extension().is_some_and(|ending| ending == "loom") {
            texts.extend(fs::read_to_string(&path).ok());
        }
    }
}

/// The ops at the top of a text, and what stands between them.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for line in text.split_inclusive('\n') {
        let last = blocks.len() - 1;
        blocks[last].push_str(line);
        if line.trim_end() == "}" || line.starts_with("config.") {
            blocks.push(String::new());
        }
    }
    blocks
}

/// A few ops of one text, perhaps some of another, with a few changes.
fn mutated(dice: &mut Dice, files: &[Vec<String>]) -> String {
    let file = dice.pick(files);
    let mut text = String::new();
    let (whole, at) = (dice.below(8) == 0, dice.below(file.len()));
    for (place, block) in file.iter().enumerate() {
        // What is short is a declaration that others need.
        let near = place >= at && place < at + 4;
        if whole || near || !block.contains("kernel.def") && !block.contains("check.") {
            text.push_str(block);
        }
    }
    if dice.below(10) == 0 {
        let other = dice.pick(files);
        let block = dice.pick(other).clone();
        text.push_str(&block);
    }
    let mut tokens = tokens(&text);
    let most = *dice.pick(&[2, 3, 6]);
    for _ in 0..dice.below(most) {
        change(dice, &mut tokens, files);
    }
    tokens.concat()
}

/// Words, numbers, white space and signs, one after the other.
fn tokens(text: &str) -> Vec<String> {
    let kind = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '.' | '%' | '@' | '#' | '-' => 1,
        c if c.is_whitespace() => 2,
        _ => 0,
    };
    let mut tokens: Vec<String> = Vec::new();
    let mut last = 0;
    for c in text.chars() {
        match tokens.last_mut() {
            Some(token) if kind(c) == last && last != 0 => token.push(c),
            _ => tokens.push(c.to_string()),
        }
        last = kind(c);
    }
    tokens
}

fn change(dice: &mut Dice, tokens: &mut Vec<String>, files: &[Vec<String>]) {
    let place = |dice: &mut Dice, tokens: &[String], test: &dyn Fn(&str) -> bool| {
        let places: Vec<usize> = (0..tokens.len()).filter(|at| test(&tokens[*at])).collect();
        (!places.is_empty()).then(|| *dice.pick(&places))
    };
    let is_number = |token: &str| {
        let token = token.strip_prefix('-').unwrap_or(token);
        token.starts_with(|c: char| c.is_ascii_digit())
    };
    let is_name = |token: &str| token.starts_with('%') && token.len() > 1;
    let is_type = |token: &str| TYPES.contains(&token);
    let is_op = |token: &str| token.contains('.') && token.starts_with(|c: char| c.is_ascii_lowercase());
    let is_word = |token: &str| !token.trim().is_empty();
    match dice.below(14) {
        0..=2 => {
            if let Some(at) = place(dice, tokens, &is_number) {
                tokens[at] = (*dice.pick(&NUMBERS)).to_owned();
            }
        }
        // The numbers of shapes: `4x8xf32`.
        3 => {
            let shaped = |token: &str| token.contains('x') && token.starts_with(|c: char| c.is_ascii_digit());
            if let Some(at) = place(dice, tokens, &shaped) {
                let mut parts: Vec<String> = tokens[at].split('x').map(str::to_owned).collect();
                let part = dice.below(parts.len());
                parts[part] = (*dice.pick(if part + 1 == parts.len() { &TYPES[..] } else { &NUMBERS[..] })).to_owned();
                tokens[at] = parts.join("x");
            }
        }
        4 | 5 => {
            if let (Some(from), Some(to)) = (place(dice, tokens, &is_name), place(dice, tokens, &is_name)) {
                tokens[to] = tokens[from].clone();
            }
        }
        6 => {
            if let Some(at) = place(dice, tokens, &is_type) {
                let was = tokens[at].clone();
                let becomes = *dice.pick(&TYPES);
                // Here, or everywhere: then much of it still fits.
                let everywhere = dice.below(2) == 0;
                for token in if everywhere { &mut tokens[..] } else { &mut tokens[at..=at] } {
                    if *token == was {
                        *token = becomes.to_owned();
                    } else if let Some(shape) = token.strip_suffix(&format!("x{was}")) {
                        *token = format!("{shape}x{becomes}");
                    }
                }
            }
        }
        7 | 8 => {
            let other = dice.pick(files);
            let block: &String = dice.pick(other);
            let others = crate::tokens(block);
            let Some(at) = place(dice, tokens, &is_op) else { return };
            // Of the same family it may still fit.
            let family = tokens[at].split('.').next().unwrap_or_default().to_owned();
            let near = |token: &str| is_op(token) && token.split('.').next() == Some(family.as_str());
            let from = place(dice, &others, &near).or_else(|| place(dice, &others, &is_op));
            tokens[at] = from.map_or_else(String::new, |from| others[from].clone());
        }
        9 => {
            if let Some(at) = place(dice, tokens, &is_word) {
                tokens.remove(at);
            }
        }
        10 => {
            if let Some(at) = place(dice, tokens, &is_word) {
                tokens.insert(at, tokens[at].clone());
            }
        }
        11 => {
            if let (Some(a), Some(b)) = (place(dice, tokens, &is_word), place(dice, tokens, &is_word)) {
                tokens.swap(a, b);
            }
        }
        12 => {
            if let (Some(a), Some(b)) = (place(dice, tokens, &is_word), place(dice, tokens, &is_word)) {
                tokens[a] = tokens[b].clone();
            }
        }
        _ => {
            // A line again, or many of one opening sign.
            let breaks: Vec<usize> = (0..tokens.len()).filter(|at| tokens[*at].contains('\n')).collect();
            if dice.below(4) == 0 {
                let sign = *dice.pick(&["(", "[", "{", "<", "vector<", "scf.if %c {"]);
                let at = dice.below(tokens.len());
                tokens.insert(at, sign.repeat(1 << dice.below(15)));
            } else if breaks.len() > 2 {
                let from = dice.below(breaks.len() - 1);
                let line: Vec<String> = tokens[breaks[from]..breaks[from + 1]].to_vec();
                let to = *dice.pick(&breaks);
                tokens.splice(to..to, line);
            }
        }
    }
}

/// Runs a case, and says what is wrong.
fn attempt(seed: u64, text: &str, count: &mut Count) -> Option<Finding> {
    if let Ok(mut running) = RUNNING.lock() {
        *running = Some((Instant::now(), seed, text.to_owned()));
    }
    let result = panic::catch_unwind(AssertUnwindSafe(|| exercise(&mut Dice(!seed), text, count)));
    if let Ok(mut running) = RUNNING.lock() {
        *running = None;
    }
    match result {
        Ok(finding) => finding,
        Err(_) => {
            let (place, what) = PANIC.lock().map(|last| last.clone()).unwrap_or_default();
            Some(Finding { kind: format!("panic at {place}"), what })
        }
    }
}

/// The text without the lines that the finding does not need.
fn smaller(seed: u64, text: String, kind: &str, count: &mut Count) -> String {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let until = Instant::now() + Duration::from_secs(10);
    let mut step = lines.len() / 2;
    while step > 0 {
        let mut at = 0;
        while at < lines.len() && Instant::now() < until {
            let mut fewer = lines.clone();
            fewer.drain(at..(at + step).min(lines.len()));
            if attempt(seed, &fewer.concat(), count).is_some_and(|finding| finding.kind == kind) {
                lines = fewer;
            } else {
                at += step;
            }
        }
        step /= 2;
    }
    lines.concat()
}

fn exercise(dice: &mut Dice, text: &str, count: &mut Count) -> Option<Finding> {
    let found = |kind: &str, what: String| Some(Finding { kind: kind.to_owned(), what });
    let checked = Module::check("fuzz.loom", text).1;
    let module = match Module::parse("fuzz.loom", text) {
        Ok(module) => module,
        Err(_) if checked.is_err() => return None,
        Err(why) => return found("checks what does not parse", why.to_string()),
    };
    count.parsed += 1;
    count.sound += u64::from(checked.is_ok());
    let laid = module.format();
    match Module::parse("laid.loom", &laid) {
        Err(why) => return found("formatted text does not parse", format!("{why}\n{laid}")),
        Ok(again) if again.format() != laid => return found("format is no fixed point", laid),
        Ok(again) if again.verify().is_ok() != checked.is_ok() => return found("format changes the verdict", laid),
        Ok(_) => {}
    }
    let config = config(dice, text);
    for name in module.kernels() {
        if let Ok(kernel) = module.specialise(&name, &config) {
            count.specialised += 1;
            let finding = run(dice, text, &kernel, count);
            if finding.is_some() {
                return finding;
            }
        }
    }
    let _ = module.benchmarks();
    let limits = check::Limits { tensor_bytes: 1 << 20, steps: 200, ops: 10_000, products: 1 << 20 };
    let launch = Limits { steps: STEPS, bytes: 1 << 26 };
    for name in module.cases() {
        let Ok(case) = module.case(&name.name, &config) else { continue };
        let ordinal = dice.next() % case.samples().max(1);
        let Some(sample) = case.sample(ordinal) else { continue };
        count.checks += 1;
        let mut target = Interpreted::new(&module, &config, launch);
        let mut host = Interpreted::new(&module, &config, launch);
        let files: &mut dyn Files = &mut NoFiles;
        let _ = check::run(&case, &sample, &mut target, &mut host, files, limits);
    }
    None
}

/// Some value for each key that the text declares.
fn config(dice: &mut Dice, text: &str) -> BTreeMap<String, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let keys = words.windows(2).filter(|pair| pair[0].starts_with("config.de") && pair[1].starts_with('@'));
    keys.map(|pair| (pair[1].to_owned(), (*dice.pick(&VALUES)).to_owned())).collect()
}

/// Compiles a kernel and runs it on the executor and on the interpreter.
fn run(dice: &mut Dice, text: &str, kernel: &Kernel, count: &mut Count) -> Option<Finding> {
    let Ok(image) = tile::compile(kernel) else { return None };
    count.compiled += 1;
    let decoded = image.encode().and_then(|bytes| CpuImage::decode(&bytes));
    let image = match decoded {
        Ok(decoded) => decoded,
        Err(tile_error) => {
            let kind = "a compiled image does not decode".to_owned();
            return Some(Finding { kind, what: format!("{}: {tile_error}", kernel.name) });
        }
    };
    let workload: Vec<u64> = kernel.launch.workload.iter().map(|_| *dice.pick(&[0, 1, 3, 8, 64])).collect();
    let geometry = kernel.launch.geometry(&workload).ok()?;
    let workgroups = geometry.workgroups.map(|groups| groups.min(2));
    let geometry = Geometry { workgroups, ..geometry };
    let mut buffers = Vec::new();
    let mut scalars = Vec::new();
    for parameter in &kernel.parameters {
        match parameter.kind {
            ParameterKind::Buffer => {
                let bytes = *dice.pick(&[0usize, 16, 256, 4096, 4096, 65536, 65536]);
                let small = dice.below(2) == 0;
                let byte = |at| if small && at % 4 != 0 { 0 } else { dice.next() as u8 };
                buffers.push((0..bytes).map(byte).collect::<Vec<u8>>());
            }
            ParameterKind::Scalar(_) => scalars.push(*dice.pick(&[0, 1, 2, 16, 64, u64::MAX, 0x3f80_0000])),
        }
    }
    let mut expected = buffers.clone();
    let mut scratch = TileScratch::default();
    scratch.set_step_limit(STEPS / 10);
    let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
    let ended = run_slices(&image, &geometry, &mut slices, &scalars, &mut scratch);
    count.ran += 1;
    let (mut rest, mut left) = (expected.iter_mut(), scalars.iter());
    let mut arguments = Vec::new();
    for parameter in &kernel.parameters {
        arguments.extend(match parameter.kind {
            ParameterKind::Buffer => rest.next().map(|bytes| Argument::Buffer(bytes)),
            ParameterKind::Scalar(_) => left.next().map(|bits| Argument::Scalar(*bits)),
        });
    }
    let meant = interp::run(kernel, geometry, &mut arguments, Limits { steps: STEPS, bytes: 1 << 26 });
    let alone = kernel.items() == 1 && workgroups.iter().all(|groups| *groups <= 1);
    let promises = ["assume", "where", "shuffle", "speculat"].iter().any(|word| text.contains(word));
    if ended.is_err() || meant.is_err() || !alone || promises {
        return None;
    }
    count.compared += 1;
    for (at, (found, expected)) in buffers.iter().zip(&expected).enumerate() {
        if let Some(byte) = differs(found, expected) {
            let cell = byte / 8 * 8..(byte / 8 * 8 + 8).min(found.len());
            let what = format!(
                "{}: buffer {at} byte {byte}: executor {:x?}, interpreter {:x?}",
                kernel.name,
                &found[cell.clone()],
                &expected[cell]
            );
            return Some(Finding { kind: format!("results of {} differ", kernel.name), what });
        }
    }
    None
}

/// The first byte that differs, where it is not in a NaN of some width in both.
fn differs(a: &[u8], b: &[u8]) -> Option<usize> {
    let nan = |bytes: &[u8], at: usize| {
        let cell = |width: usize| bytes.get(at / width * width..at / width * width + width);
        let half = cell(2).map_or(0, |cell| u16::from_le_bytes([cell[0], cell[1]]));
        let single = cell(4).map_or(0.0, |cell| f32::from_le_bytes([cell[0], cell[1], cell[2], cell[3]]));
        let double = cell(8).and_then(|cell| cell.try_into().ok()).map_or(0.0, f64::from_le_bytes);
        half & 0x7fff > 0x7c00 || single.is_nan() || double.is_nan() || bytes[at] & 0x7f >= 0x7c
    };
    (0..a.len()).find(|&at| a[at] != b[at] && !(nan(a, at) && nan(b, at)))
}
