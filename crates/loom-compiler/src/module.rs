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
        let mut diagnostics = Diagnostics::new(name);
        if source.len() > MAX_SOURCE_BYTES {
            let message = format!("the text has {} bytes; at most {MAX_SOURCE_BYTES} are read", source.len());
            diagnostics.push("", Span::default(), message);
            return Err(diagnostics);
        }
        let tokens = lex::lex(source, &mut diagnostics);
        let ops = syntax::parse(source, &tokens, &mut diagnostics);
        let mut module =
            Self { name: name.to_owned(), source: source.to_owned(), tokens, ops, symbols: HashMap::new() };
        module.collect_symbols(&mut diagnostics);
        diagnostics.finish(module)
    }

    /// Verifies every kernel and function, whatever reaches it, with config values unknown.
    ///
    /// # Errors
    /// Every refusal, among them those of ops that this version does not compile.
    pub fn verify(&self) -> Result<(), Diagnostics> {
        let config = BTreeMap::new();
        let mut builder = Builder::new(self, &config, Mode::Verify);
        builder.verify_all();
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
