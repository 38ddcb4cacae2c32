//! One `.loom` text: its ops and symbols.
//!
//! `text --parse--> Module --verify--> ()`, `Module --specialise(kernel, config)--> Kernel`
//!
//! - `parse` checks what holds of any text: tokens, nesting, symbols. `specialise` verifies every op it reaches and
//!   refuses what this version does not compile only there, so a file may hold more than one target can run. `verify`
//!   looks at every kernel and function, with config values unknown.
//! - Not here: the grammar and meaning of ops (`build`).

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::build::{Builder, Mode};
use crate::check::{Benchmark, Case, CaseName};
use crate::diag::Diagnostics;
use crate::ir::{Kernel, Span};
use crate::lex::{self, Kind, Token};
use crate::reader::Reader;
use crate::syntax::{self, Op};

/// The longest text that is read.
pub const MAX_SOURCE_BYTES: usize = 16 << 20;

/// A parsed text with unique symbols.
#[derive(Debug)]
pub struct Module {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) tokens: Vec<Token>,
    pub(crate) ops: Vec<Op>,
    /// Definitions and declarations by symbol, without `@`: indices into `ops`. A definition hides its declaration.
    pub(crate) symbols: HashMap<String, usize>,
}

/// Top-level ops by their first part, for the message that refuses any other.
const FAMILIES: [&str; 21] = [
    "kernel", "func", "template", "config", "check", "command", "global", "target", "amdgpu", "spirv", "aie2p",
    "module", "metadata", "pass", "pool", "low", "pipeline", "channel", "x86", "vm", "wasm",
];

impl Module {
    /// Reads `source`, called `name` in messages.
    ///
    /// # Errors
    /// Every lexical and structural fault, duplicate symbols, and top-level ops of no known family.
    pub fn parse(name: &str, source: &str) -> Result<Self, Diagnostics> {
        let (module, diagnostics) = Self::read(name, source);
        diagnostics.finish(module)
    }

    /// Everything that is wrong with a text, in one go: as [`Self::parse`], then as [`Self::verify`] for the definitions in
    /// which reading found no fault and that use none of the others. With it, the names of the kernels that were found.
    pub fn check(name: &str, source: &str) -> (Vec<String>, Result<(), Diagnostics>) {
        let (module, mut diagnostics) = Self::read(name, source);
        let sound = module.sound(&diagnostics);
        let config = BTreeMap::new();
        let mut builder = Builder::new(&module, &config, Mode::Verify);
        std::mem::swap(&mut builder.diagnostics, &mut diagnostics);
        builder.verify_all(&sound);
        let mut diagnostics = builder.diagnostics;
        diagnostics.items.sort_by_key(|item| item.at);
        (module.kernels(), diagnostics.finish(()))
    }

    /// What can be read of a text, and what is wrong with the rest.
    fn read(name: &str, source: &str) -> (Self, Diagnostics) {
        let mut diagnostics = Diagnostics::new(name);
        let nothing = || Self {
            name: name.to_owned(),
            source: String::new(),
            tokens: Vec::new(),
            ops: Vec::new(),
            symbols: HashMap::new(),
        };
        if source.len() > MAX_SOURCE_BYTES {
            let message = format!("the text has {} bytes; at most {MAX_SOURCE_BYTES} are read", source.len());
            diagnostics.push("", Span::default(), message);
            return (nothing(), diagnostics);
        }
        let tokens = lex::lex(source, &mut diagnostics);
        let ops = syntax::parse(source, &tokens, &mut diagnostics);
        let mut module = Self { source: source.to_owned(), tokens, ops, ..nothing() };
        module.collect_symbols(&mut diagnostics);
        (module, diagnostics)
    }

    /// Which ops can be verified though reading found faults: those without one that use, however far, only such.
    fn sound(&self, diagnostics: &Diagnostics) -> Vec<bool> {
        let mut sound = vec![true; self.ops.len()];
        if diagnostics.items.is_empty() {
            return sound;
        }
        let start = |op: &Op| self.tokens[op.results.first().map_or(op.name, |first| *first) as usize].span.start;
        let end = |op: &Op| self.tokens[op.rest.end as usize - 1].span.end;
        let mut unsound = Vec::new();
        for item in &diagnostics.items {
            let at = self.ops.partition_point(|op| end(op) < item.at);
            // A fault between ops is in one that was left out.
            unsound.extend(self.ops.get(at).filter(|op| start(op) <= item.at).map(|_| at));
        }
        let mut users: HashMap<usize, Vec<usize>> = HashMap::new();
        for (at, op) in self.ops.iter().enumerate() {
            let symbols = (op.rest.start..op.rest.end).filter(|at| self.tokens[*at as usize].kind == Kind::Symbol);
            for symbol in symbols {
                match self.symbols.get(&self.text(symbol)[1..]) {
                    Some(used) => users.entry(*used).or_default().push(at),
                    // What defines it may be what could not be read.
                    None => unsound.push(at),
                }
            }
        }
        while let Some(at) = unsound.pop() {
            if std::mem::replace(&mut sound[at], false) {
                unsound.extend(users.remove(&at).unwrap_or_default());
            }
        }
        sound
    }

    /// Verifies every kernel and function, whatever reaches it, with config values unknown.
    ///
    /// # Errors
    /// Every refusal, among them those of ops that this version does not compile.
    pub fn verify(&self) -> Result<(), Diagnostics> {
        let config = BTreeMap::new();
        let mut builder = Builder::new(self, &config, Mode::Verify);
        builder.verify_all(&vec![true; self.ops.len()]);
        builder.diagnostics.finish(())
    }

    /// The kernel with this symbol (with or without `@`) or export name: config bound, calls inlined, folded.
    ///
    /// `config` maps keys (symbols with or without `@`) to the text of their values; keys that nobody uses are ignored.
    ///
    /// # Errors
    /// An unknown kernel, an unbound or violated config value, and everything that does not verify in what is reached.
    pub fn specialise(&self, kernel: &str, config: &BTreeMap<String, String>) -> Result<Kernel, Diagnostics> {
        let mut builder = Builder::new(self, config, Mode::Specialise);
        let built = self.kernel(kernel).and_then(|op| builder.kernel(op));
        match built {
            Some(kernel) if builder.diagnostics.items.is_empty() => Ok(kernel),
            _ => {
                if builder.diagnostics.items.is_empty() {
                    let legal = self.kernels().join(", ");
                    let message = format!("no kernel `{kernel}` in this text; it has: {legal}");
                    builder.diagnostics.push(&self.source, Span::default(), message);
                }
                Err(builder.diagnostics)
            }
        }
    }

    /// The cases and scenarios, in the order of the text.
    pub fn cases(&self) -> Vec<CaseName> {
        let case = |op: &Op| {
            let scenario = match self.op_name(op) {
                "check.case" => false,
                "check.scenario" => true,
                _ => return None,
            };
            let name = self.symbol_of(op)?.0.to_owned();
            let public = op.rest.start < op.rest.end && self.text(op.rest.start) == "public";
            Some(CaseName { name, public, scenario })
        };
        self.ops.iter().filter_map(case).collect()
    }

    /// The case or scenario with this symbol, with or without `@`; `config` as in [`Self::specialise`].
    ///
    /// # Errors
    /// An unknown case, and everything in it that does not verify.
    pub fn case(&self, name: &str, config: &BTreeMap<String, String>) -> Result<Case, Diagnostics> {
        let mut builder = Builder::new(self, config, Mode::Specialise);
        let symbol = self.symbols.get(name.strip_prefix('@').unwrap_or(name));
        let op = symbol.map(|at| &self.ops[*at]);
        let case = op.filter(|op| matches!(self.op_name(op), "check.case" | "check.scenario"));
        match case.and_then(|op| builder.check_case(op)) {
            Some(case) if builder.diagnostics.items.is_empty() => Ok(case),
            _ => {
                if builder.diagnostics.items.is_empty() {
                    let legal: Vec<String> = self.cases().into_iter().map(|case| case.name).collect();
                    let message = format!("no case `{name}` in this text; it has: {}", legal.join(", "));
                    builder.diagnostics.push(&self.source, Span::default(), message);
                }
                Err(builder.diagnostics)
            }
        }
    }

    /// The benchmarks, in the order of the text.
    ///
    /// # Errors
    /// What is wrong with any of them.
    pub fn benchmarks(&self) -> Result<Vec<Benchmark>, Diagnostics> {
        let config = BTreeMap::new();
        let mut builder = Builder::new(self, &config, Mode::Verify);
        let ops = self.ops.iter().filter(|op| self.op_name(op) == "check.benchmark");
        let found = ops.filter_map(|op| builder.benchmark(op)).collect();
        builder.diagnostics.finish(found)
    }

    /// The names by which `specialise` finds kernels: export names, or symbols where there is none.
    pub fn kernels(&self) -> Vec<String> {
        let kernels = self.ops.iter().filter(|op| self.op_name(op) == "kernel.def");
        kernels
            .filter_map(|op| self.export(op).or_else(|| self.symbol_of(op).map(|(name, _)| name.to_owned())))
            .collect()
    }

    fn kernel(&self, name: &str) -> Option<&Op> {
        let is_kernel = |op: &&Op| self.op_name(op) == "kernel.def";
        let by_export = || self.ops.iter().filter(is_kernel).find(|op| self.export(op).as_deref() == Some(name));
        let symbol = self.symbols.get(name.strip_prefix('@').unwrap_or(name));
        symbol.map(|at| &self.ops[*at]).filter(is_kernel).or_else(by_export)
    }

    pub(crate) fn op_name(&self, op: &Op) -> &str {
        self.text(op.name)
    }

    pub(crate) fn text(&self, token: u32) -> &str {
        let span = self.tokens[token as usize].span;
        &self.source[span.start as usize..span.end as usize]
    }

    /// The name in `export("..")` before the symbol.
    pub(crate) fn export(&self, op: &Op) -> Option<String> {
        let mut reader = Reader::new(&self.source, &self.tokens, op);
        while let Some(kind) = reader.peek() {
            if kind == Kind::Symbol || kind == Kind::BraceOpen {
                return None;
            }
            if reader.accept_word("export") && reader.accept(Kind::ParenOpen) {
                return reader.string().ok();
            }
            // `target(@t)` holds a symbol that is not the op's own.
            reader.attribute().ok()?;
        }
        None
    }

    /// The first symbol outside brackets: the one that a top-level op defines.
    fn symbol_of(&self, op: &Op) -> Option<(&str, Span)> {
        let mut depth = 0usize;
        for at in op.rest.start..op.rest.end {
            let token = self.tokens[at as usize];
            match token.kind {
                Kind::ParenOpen | Kind::Less | Kind::BracketOpen => depth += 1,
                Kind::ParenClose | Kind::Greater | Kind::BracketClose => depth = depth.saturating_sub(1),
                Kind::BraceOpen => return None,
                Kind::Symbol if depth == 0 => return Some((&self.text(at)[1..], token.span)),
                _ => {}
            }
        }
        None
    }

    fn collect_symbols(&mut self, diagnostics: &mut Diagnostics) {
        let mut symbols: HashMap<String, usize> = HashMap::with_capacity(self.ops.len());
        let mut exports = HashSet::new();
        for (at, op) in self.ops.iter().enumerate() {
            let name = self.op_name(op);
            let span = self.tokens[op.name as usize].span;
            if name.starts_with('#') {
                continue;
            }
            let family = name.split('.').next().unwrap_or(name);
            if !FAMILIES.contains(&family) {
                let message = format!("`{name}` is no top-level op; legal families: {}", FAMILIES.join(", "));
                diagnostics.push(&self.source, span, message);
                continue;
            }
            if name == "kernel.def"
                && let Some(export) = self.export(op)
                && !exports.insert(export.clone())
            {
                let message = format!("two kernels are exported as `{}`", export.escape_debug());
                diagnostics.push(&self.source, span, message);
            }
            let Some((symbol, symbol_span)) = self.symbol_of(op) else {
                continue;
            };
            let declares = |op: &Op| self.op_name(op).ends_with(".decl");
            match symbols.get(symbol) {
                Some(first) if declares(&self.ops[*first]) && !declares(op) => {
                    symbols.insert(symbol.to_owned(), at);
                }
                Some(first) if declares(op) && !declares(&self.ops[*first]) => {}
                Some(_) => diagnostics.push(&self.source, symbol_span, format!("`@{symbol}` is defined twice")),
                None => {
                    symbols.insert(symbol.to_owned(), at);
                }
            }
        }
        self.symbols = symbols;
    }
}
