//! Public Loom kernels that nobody wrote for us: fetched, checked, compiled for the CPU, their cases run, and a report.
//!
//! - The files come from two packages by version and hash, and stay under `target/`. None is committed.
//! - A file is linked with the others of its package. A config key that nothing binds gets a value that its declaration
//!   allows, and the report says which.
//! - What does not work is listed in `corpus-exceptions.txt` with its reason, or the chore fails. An exception that works is
//!   reported, so that the list shrinks.
//! - A case without an expectation is only for timing: its kernels are compiled, and it is run with `--all`.

use crate::fetch;
use crate::shell::{Chore, ChoreError, at, cargo, finish, none_chosen, root};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What is known not to work: a line each, `FILE SYMBOL: reason`, `*` for every symbol and for the file itself.
const EXCEPTIONS: &str = include_str!("../corpus-exceptions.txt");

/// Config keys of one kernel that are bound by trying.
const TRIES: usize = 64;

/// `cargo xtask corpus`
#[derive(clap::Args)]
pub struct Options {
    /// Only files whose path contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Take the files from these folders, a package each, instead of fetching them
    #[arg(long)]
    folder: Vec<PathBuf>,
    /// Run cases without expectations, too
    #[arg(long)]
    all: bool,
    /// Seconds that one case may take
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// The binary, instead of building it
    #[arg(long)]
    lanes: Option<PathBuf>,
}

/// One thing that was tried.
struct Row {
    file: String,
    /// A kernel or case; empty for the file.
    symbol: String,
    what: &'static str,
    /// Why not.
    wrong: Option<String>,
    note: String,
}

/// Runs it.
pub fn run(options: &Options) -> Chore {
    let packages = if options.folder.is_empty() { fetch::kernels()? } else { options.folder.clone() };
    let lanes = match &options.lanes {
        Some(path) => path.clone(),
        None => {
            finish(cargo().args(["build", "--release", "--package", "lanes-cli"]))?;
            root().join("target/release/lanes")
        }
    };
    let tool = Tool { lanes, limit: Duration::from_secs(options.seconds) };
    let (mut rows, mut names) = (Vec::new(), Vec::new());
    for package in &packages {
        let mut files = Vec::new();
        collect(package, &mut files)?;
        files.sort();
        // Each file alone first: fmt reads a whole text and looks up nothing. Those that are texts are libraries.
        let mut parsed = Vec::new();
        for path in &files {
            let output = tool.run(["fmt", "--check"], &[path])?;
            parsed.push(
                output.filter(|output| output.status.code() == Some(2)).map(|output| first_error(&output.stderr)),
            );
        }
        let texts = files.iter().zip(&parsed).filter(|(_, wrong)| wrong.is_none());
        let texts: Vec<&Path> = texts.map(|(path, _)| path.as_path()).collect();
        for (path, wrong) in files.iter().zip(&parsed) {
            let name = path.strip_prefix(package).unwrap_or(path).to_string_lossy().into_owned();
            if !path.to_string_lossy().contains(&options.only) {
                names.push(name);
                continue;
            }
            let before = rows.len();
            let (file, symbol, note) = (name.clone(), String::new(), String::new());
            rows.push(Row { file, symbol, what: "parse", wrong: wrong.clone(), note });
            if wrong.is_none() {
                one(&tool, path, &name, &texts, options.all, &mut rows)?;
            }
            rows[before..].iter().for_each(Row::say);
            let wrong = rows[before..].iter().filter(|row| row.wrong.is_some()).count();
            println!("corpus: {name}: {} tried, {wrong} wrong", rows.len() - before);
        }
    }
    if rows.is_empty() {
        return Err(none_chosen("no Loom file", &options.only, &names));
    }
    report(&rows)
}

/// The binary, and how long it may take.
struct Tool {
    lanes: PathBuf,
    limit: Duration,
}

impl Tool {
    /// Runs it; `None` if it took too long and was stopped.
    fn run<'a>(&self, words: impl IntoIterator<Item = &'a str>, files: &[&Path]) -> Chore<Option<Output>> {
        let mut command = Command::new(&self.lanes);
        command
            .args(["loom"])
            .args(words)
            .args(files)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let started = |why| ChoreError::Start { program: self.lanes.display().to_string(), why };
        let mut child = command.spawn().map_err(started)?;
        // Both pipes are drained while it runs: it never waits for us.
        let (out, err) = (drain(child.stdout.take()), drain(child.stderr.take()));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(at(&self.lanes))? {
                break Some(status);
            }
            if start.elapsed() > self.limit {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let (stdout, stderr) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
        Ok(status.map(|status| Output { status, stdout, stderr }))
    }
}

fn drain(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error is what there is.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Chore {
    for entry in std::fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|ending| ending == "loom") {
            files.push(path);
        }
    }
    Ok(())
}

/// Compiles the kernels of one file and runs its cases.
fn one(tool: &Tool, path: &Path, name: &str, texts: &[&Path], every: bool, rows: &mut Vec<Row>) -> Chore {
    let text = std::fs::read_to_string(path).map_err(at(path))?;
    let row = |symbol: &str, what, wrong: Option<String>, note: String| Row {
        file: name.to_owned(),
        symbol: symbol.to_owned(),
        what,
        wrong,
        note,
    };
    // The root comes first: a kernel or case is looked for in it.
    let others = texts.iter().copied().filter(|other| *other != path);
    let files: Vec<&Path> = std::iter::once(path).chain(others).collect();
    let mut domains = BTreeMap::new();
    for other in &files {
        let text = std::fs::read_to_string(other).map_err(at(other))?;
        domains.extend(declared(&text));
    }
    for kernel in defined(&text, "kernel.def") {
        let (wrong, bound) = bind(&domains, |config| {
            let mut words = vec!["compile", "--kernel", &kernel, "--target", "cpu"];
            words.extend(config.iter().flat_map(|pair| ["--config", pair.as_str()]));
            let Some(output) = tool.run(words, &files)? else {
                return Ok(Some("compiling it takes too long".to_owned()));
            };
            Ok((!output.status.success()).then(|| first_error(&output.stderr)))
        })?;
        rows.push(row(&kernel, "compile", wrong, bound));
    }
    for keyword in ["check.case", "check.scenario"] {
        for case in defined(&text, keyword) {
            let body = body_of(&text, keyword, &case);
            let expects = body.contains("check.expect") || body.contains("check.compare");
            if !expects && !every {
                rows.push(row(&case, "time only", None, String::new()));
                continue;
            }
            let (wrong, bound) = bind(&domains, |config| {
                let mut words = vec!["test", "--json", "--case", &case];
                words.extend(config.iter().flat_map(|pair| ["--config", pair.as_str()]));
                let Some(output) = tool.run(words, &files)? else {
                    return Ok(Some("running it takes too long".to_owned()));
                };
                Ok(verdict(&output))
            })?;
            rows.push(row(&case, "case", wrong, bound));
        }
    }
    Ok(())
}

/// What was wrong with a run of cases.
fn verdict(output: &Output) -> Option<String> {
    let Ok(found) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else {
        return Some(first_error(&output.stderr));
    };
    let cases = found["files"].as_array().into_iter().flatten().filter_map(|file| file["cases"].as_array()).flatten();
    let mut count = 0;
    for case in cases {
        count += 1;
        if case["status"] != "pass" {
            let message = case["message"].as_str().unwrap_or_default();
            let status = case["status"].as_str().unwrap_or_default();
            return Some(format!(
                "sample {}: {status}: {}",
                case["sample"],
                message.lines().next().unwrap_or_default()
            ));
        }
    }
    (count == 0).then(|| first_error(&output.stderr))
}

fn first_error(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no word about it").to_owned()
}

/// Binds the keys that `attempt` says have no value, one after the other, to values that their declarations allow: what is
/// still wrong, and what was bound.
fn bind(
    domains: &BTreeMap<String, Domain>,
    mut attempt: impl FnMut(&[String]) -> Chore<Option<String>>,
) -> Chore<(Option<String>, String)> {
    let mut bound: Vec<String> = Vec::new();
    for _ in 0..TRIES {
        let Some(wrong) = attempt(&bound)? else {
            return Ok((None, bound.join(" ")));
        };
        let key = wrong
            .split("config `")
            .nth(1)
            .and_then(|rest| rest.split('`').next())
            .filter(|_| wrong.contains("has no value"));
        let Some(domain) = key.and_then(|key| domains.get(key)) else {
            return Ok((Some(wrong), bound.join(" ")));
        };
        let pair = format!("{}={}", key.unwrap_or_default(), domain.value());
        if bound.contains(&pair) {
            return Ok((Some(wrong), bound.join(" ")));
        }
        bound.push(pair);
    }
    Ok((Some(format!("more than {TRIES} config keys")), bound.join(" ")))
}

/// What a declaration says of a config value.
#[derive(Debug, Default)]
struct Domain {
    ty: String,
    least: Option<i64>,
    most: Option<i64>,
    multiple: i64,
}

impl Domain {
    /// A value that it allows: a small power of two if there is one, so that tiles and groups come out whole.
    fn value(&self) -> String {
        match self.ty.as_str() {
            "i1" => return "true".to_owned(),
            "f16" | "bf16" | "f32" | "f64" => return "1.0".to_owned(),
            _ => {}
        }
        let (least, most) = (self.least.unwrap_or(1), self.most.unwrap_or(i64::MAX));
        let allowed = |value: &i64| *value >= least && *value <= most && *value % self.multiple.max(1) == 0;
        let powers = [256i64, 128, 64, 512, 1024, 32, 2048, 4096, 16, 8, 4, 2, 1];
        let multiple = self.multiple.max(1);
        let rounded = least.div_euclid(multiple) * multiple + if least % multiple == 0 { 0 } else { multiple };
        powers.into_iter().find(allowed).unwrap_or(rounded).to_string()
    }
}

/// The config keys that a text declares without a value.
fn declared(text: &str) -> BTreeMap<String, Domain> {
    let mut domains = BTreeMap::new();
    let text = without_comments(text);
    for rest in text.split("config.decl").skip(1) {
        let Some(rest) = rest.trim_start().strip_prefix('@') else { continue };
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "._$-".contains(c))).unwrap_or(rest.len());
        let (key, rest) = rest.split_at(end);
        // Up to the predicates' end, or to the next op.
        let clause = rest.split(']').next().unwrap_or_default();
        let (head, predicates) = clause.split_once("where").unwrap_or((rest.lines().next().unwrap_or_default(), ""));
        let ty = head.rsplit(':').next().unwrap_or_default().trim().to_owned();
        let mut domain = Domain { ty, ..Domain::default() };
        for predicate in predicates.split(')') {
            let Some((word, arguments)) = predicate.split_once('(') else { continue };
            let word = word.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).trim();
            let numbers: Vec<i64> = arguments.split(',').filter_map(|number| number.trim().parse().ok()).collect();
            match (word, &numbers[..]) {
                ("range", [least, most]) => (domain.least, domain.most) = (Some(*least), Some(*most)),
                ("ge" | "min", [least]) => domain.least = Some(*least),
                ("gt", [below]) => domain.least = Some(below + 1),
                ("le" | "max", [most]) => domain.most = Some(*most),
                ("lt", [above]) => domain.most = Some(above - 1),
                ("eq", [only]) => (domain.least, domain.most) = (Some(*only), Some(*only)),
                ("mul" | "multiple_of", [multiple]) => domain.multiple = *multiple,
                _ => {}
            }
        }
        domains.insert(key.to_owned(), domain);
    }
    domains
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The symbols that `keyword` defines in a text.
fn defined(text: &str, keyword: &str) -> Vec<String> {
    let text = without_comments(text);
    let mut symbols = Vec::new();
    for (at, _) in text.match_indices(keyword) {
        let whole = !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || "._".contains(c));
        let rest = &text[at + keyword.len()..];
        if !whole || !rest.starts_with(char::is_whitespace) {
            continue;
        }
        // The first symbol outside of brackets.
        let mut depth = 0;
        for (at, c) in rest.char_indices() {
            match c {
                '(' | '<' => depth += 1,
                ')' | '>' => depth -= 1,
                '@' if depth == 0 => {
                    let name = &rest[at + 1..];
                    let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || "._$-".contains(c)));
                    symbols.push(name[..end.unwrap_or(name.len())].to_owned());
                    break;
                }
                '{' => break,
                _ => {}
            }
        }
    }
    symbols
}

/// What stands behind a symbol, up to the next definition at the start of a line.
fn body_of<'t>(text: &'t str, keyword: &str, symbol: &str) -> &'t str {
    let opening = format!("@{symbol} {{");
    let starts = text.match_indices(&opening).map(|(at, _)| at);
    let start =
        starts.filter(|at| text[..*at].trim_end().rsplit('\n').next().is_some_and(|line| line.contains(keyword)));
    let rest = start.last().map_or("", |at| &text[at..]);
    rest.split("\n}").next().unwrap_or(rest)
}

/// What is known not to work: file, symbol and reason.
fn exceptions() -> Vec<(&'static str, &'static str, &'static str)> {
    let lines = EXCEPTIONS.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let exception = |line: &'static str| {
        let (place, reason) = line.split_once(": ")?;
        let (file, symbol) = place.split_once(' ')?;
        Some((file, symbol, reason))
    };
    lines.filter_map(exception).collect()
}

impl Row {
    /// Why it is known not to work, if it is.
    fn expected(&self) -> Option<&'static str> {
        let matches = |(file, symbol, _): &(&str, &str, &str)| {
            self.file.ends_with(*file) && (*symbol == "*" || *symbol == self.symbol)
        };
        exceptions().into_iter().find(matches).map(|(.., reason)| reason)
    }

    /// Says what is not as it should be, or what was bound.
    fn say(&self) {
        let symbol = if self.symbol.is_empty() { "(the file)" } else { &self.symbol };
        let place = format!("{} {symbol}", self.file);
        match (&self.wrong, self.expected()) {
            (None, None) => {}
            (None, Some(reason)) => println!("corpus: {place}: {} works; it is an exception: {reason}", self.what),
            (Some(wrong), Some(reason)) => println!("corpus: {place}: {} expected: {reason} ({wrong})", self.what),
            (Some(wrong), None) => println!("corpus: {place}: {} WRONG: {wrong}", self.what),
        }
        if !self.note.is_empty() {
            println!("corpus: {place}: with {}", self.note);
        }
    }
}

/// Prints how much of what is good; an error if something is wrong that is no exception.
fn report(rows: &[Row]) -> Chore {
    let mut surprises = 0;
    for what in ["parse", "compile", "case", "time only"] {
        let of: Vec<&Row> = rows.iter().filter(|row| row.what == what).collect();
        let good = of.iter().filter(|row| row.wrong.is_none()).count();
        let known = of.iter().filter(|row| row.wrong.is_some() && row.expected().is_some()).count();
        let wrong = of.len() - good - known;
        surprises += wrong;
        println!("corpus: {what}: {good} of {} good, {known} exceptions, {wrong} wrong", of.len());
    }
    if surprises > 0 {
        return Err(ChoreError::Words(format!("{surprises} things of the public corpus went wrong")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_found_behind_their_modifiers() {
        let text = "// kernel.def @no {\nkernel.def target(@t) export(\"e\") @a.b(%n: index) {\n}\nkernel.definition @x\n\
                    check.case public @c {\n  check.expect.equal\n}\ncheck.case @d {\n}\n";
        assert_eq!(defined(text, "kernel.def"), ["a.b"]);
        assert_eq!(defined(text, "check.case"), ["c", "d"]);
        assert!(body_of(text, "check.case", "c").contains("check.expect"));
        assert!(!body_of(text, "check.case", "d").contains("check.expect"));
    }

    #[test]
    fn values_are_inside_what_is_declared() {
        let text = "config.decl @a : %v: index where [range(%v, 1, 100), mul(%v, 24)]\nconfig.decl @b : i1\n\
                    config.decl @c : %v: index where [eq(%v, 5120)]\nconfig.decl @d : f32\nconfig.decl @e : index\n";
        let found = declared(text);
        let value = |key: &str| found[key].value();
        assert_eq!(["a", "b", "c", "d", "e"].map(value), ["24", "true", "5120", "1.0", "256"]);
    }
}
