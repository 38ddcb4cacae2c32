//! One `.loom` text, or several linked to one: its ops and symbols.
//!
//! `text --parse--> Module --verify--> ()`, `Module --specialise(kernel, config)--> Kernel`
//!
//! - `parse` checks what holds of any text: tokens, nesting, symbols. `specialise` verifies every op it reaches and
//!   refuses what this version does not compile only there, so a file may hold more than one target can run. `verify`
//!   looks at every kernel and function, with config values unknown.
//! - Not here: the grammar and meaning of ops (`build`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::build::{Builder, Mode};
use crate::check::{Benchmark, Case, CaseName};
use crate::diag::{Diagnostics, FileStart};
use crate::ir::{Kernel, SourceDigest, Span};
use crate::lex::{self, Kind, Token};
use crate::passes;
use crate::reader::Reader;
use crate::spelling;
use crate::syntax::{self, Op};
use sha2::{Digest, Sha256};

/// The longest text that is read.
pub const MAX_SOURCE_BYTES: usize = 16 << 20;

/// A parsed text with unique symbols.
#[derive(Debug, Default)]
pub struct Module {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) tokens: Vec<Token>,
    pub(crate) ops: Vec<Op>,
    /// Definitions and declarations by symbol, without `@`: indices into `ops`. A definition hides its declaration.
    pub(crate) symbols: HashMap<String, usize>,
    /// Declarations by symbol, whether there is a definition or not.
    pub(crate) declarations: HashMap<String, Vec<usize>>,
    /// Ops that give a body to a template family, by `@family` or by the text of the key, in the order of the text.
    pub(crate) providers: HashMap<String, Vec<usize>>,
    /// The files behind the first, if several were linked.
    pub(crate) files: Vec<FileStart>,
    /// How many of the ops, the first ones, are those of the text itself; what follows was linked to it.
    pub(crate) roots: usize,
}

/// Families of ops that stand in bodies only.
const BODY: [&str; 7] = ["index", "scalar", "vector", "view", "buffer", "encoding", "scf"];

/// Families of ops that only one machine has.
const BEYOND: [&str; 9] = ["low", "amdgpu", "aie2p", "x86", "pipeline", "channel", "hal", "vm", "wasm"];

/// Types that no value of a kernel has: those of checks, and those of machines without work-items.
const TYPES_BEYOND: [&str; 8] = ["tensor", "tile", "pool", "reg", "channel", "read", "write", "group"];

/// Ops that move bytes on the host; one that ends in a dot stands for all of its names.
const ON_HOST: [&str; 5] = ["buffer.copy", "buffer.fill", "buffer.compare", "buffer.load.", "buffer.store."];

/// Families that a fragment of a body may have.
const FRAGMENT: [&str; 11] =
    ["index", "scalar", "vector", "view", "buffer", "encoding", "scf", "kernel", "config", "func", "template"];

/// Top-level ops by their first part, for the message that refuses any other.
const FAMILIES: [&str; 21] = [
    "kernel", "func", "template", "config", "check", "command", "global", "target", "amdgpu", "spirv", "aie2p",
    "module", "metadata", "pass", "pool", "low", "pipeline", "channel", "x86", "vm", "wasm",
];

/// The definition that `name` is a misspelling of, by a letter or two, if it is none itself.
fn misspelt(name: &str) -> Option<&'static str> {
    if syntax::DEFINITIONS.contains(&name) || name.len() > spelling::LONGEST {
        return None;
    }
    syntax::DEFINITIONS.into_iter().find(|known| spelling::distance(name, known) <= 2)
}

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
        Self::check_linked(name, source, &[])
    }

    /// As [`Self::check`], of a text that is linked with what it reaches in `libraries`, as [`Self::link`] does. Faults of the
    /// libraries are found where the text reaches them.
    pub fn check_linked(name: &str, source: &str, libraries: &[&Self]) -> (Vec<String>, Result<(), Diagnostics>) {
        let (mut module, mut diagnostics) = Self::read(name, source);
        if !libraries.is_empty() {
            let (linked, faults) = module.linked(libraries);
            let read = diagnostics.items;
            let truncated = diagnostics.truncated;
            diagnostics = faults;
            diagnostics.items.splice(0..0, read);
            diagnostics.truncated |= truncated;
            module = linked;
        }
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
        let nothing = || Self { name: name.to_owned(), ..Self::default() };
        if source.len() > MAX_SOURCE_BYTES {
            let message = format!("the text has {} bytes; at most {MAX_SOURCE_BYTES} are read", source.len());
            diagnostics.push("", Span::default(), message);
            return (nothing(), diagnostics);
        }
        let tokens = lex::lex(source, &mut diagnostics);
        let ops = syntax::parse(source, &tokens, &mut diagnostics);
        let mut module = Self { source: source.to_owned(), tokens, roots: ops.len(), ops, ..nothing() };
        module.collect_symbols(&mut diagnostics);
        module.check_exports(&mut diagnostics);
        (module, diagnostics)
    }

    /// Which ops can be verified though reading found faults: those without one that use, however far, only such.
    fn sound(&self, diagnostics: &Diagnostics) -> Vec<bool> {
        // What was linked is verified where it is reached.
        let mut sound: Vec<bool> = (0..self.ops.len()).map(|at| at < self.roots).collect();
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
        let mut seen = vec![false; self.ops.len()];
        while let Some(at) = unsound.pop() {
            sound[at] = false;
            if !std::mem::replace(&mut seen[at], true) {
                unsound.extend(users.remove(&at).unwrap_or_default());
            }
        }
        sound
    }

    /// Verifies every kernel and function of the text, whatever reaches it, with config values unknown. Functions of the host,
    /// and those that use target assembly, are left to what reaches them.
    ///
    /// # Errors
    /// Every refusal, among them those of ops that this version does not compile.
    pub fn verify(&self) -> Result<(), Diagnostics> {
        let config = BTreeMap::new();
        let mut builder = Builder::new(self, &config, Mode::Verify);
        builder.verify_all(&(0..self.ops.len()).map(|at| at < self.roots).collect::<Vec<bool>>());
        builder.diagnostics.finish(())
    }

    /// The kernel with this symbol (with or without `@`) or export name: config bound, calls inlined, folded.
    ///
    /// `config` maps keys (symbols with or without `@`) to the text of their values; keys that nobody uses are ignored.
    ///
    /// # Errors
    /// An unknown kernel, an unbound or violated config value, and everything that does not verify in what is reached.
    pub fn specialise(&self, kernel: &str, config: &BTreeMap<String, String>) -> Result<Kernel, Diagnostics> {
        self.specialise_watched(kernel, config, &mut |_, _| {})
    }

    /// As [`Self::specialise`]; `watch` is shown the kernel as it was built and after each pass, with the pass's name.
    /// [`Kernel`] displays as text.
    ///
    /// # Errors
    /// As [`Self::specialise`].
    pub fn specialise_watched(
        &self,
        kernel: &str,
        config: &BTreeMap<String, String>,
        watch: &mut dyn FnMut(&str, &Kernel),
    ) -> Result<Kernel, Diagnostics> {
        let mut builder = Builder::new(self, config, Mode::Specialise);
        let found = self.kernel(kernel);
        let built = match found[..] {
            [op] => builder.kernel(op),
            _ => None,
        };
        match built {
            Some(mut kernel) if builder.diagnostics.items.is_empty() => {
                passes::run(&mut kernel, watch);
                Ok(kernel)
            }
            _ => {
                if builder.diagnostics.items.is_empty() {
                    let message = if found.is_empty() {
                        format!("no kernel `{kernel}` in this text; {}", it_has(&self.kernels()))
                    } else {
                        let symbols = found.iter().filter_map(|op| self.symbol_of(op));
                        let symbols: Vec<String> = symbols.map(|(symbol, _)| format!("@{symbol}")).collect();
                        format!("several kernels are exported as `{kernel}`: {}; choose by symbol", symbols.join(", "))
                    };
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
        self.ops[..self.roots].iter().filter_map(case).collect()
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
                    let message = format!("no case `{name}` in this text; {}", it_has(&legal));
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
        let ops = self.ops[..self.roots].iter().filter(|op| self.op_name(op) == "check.benchmark");
        let found = ops.filter_map(|op| builder.benchmark(op)).collect();
        builder.diagnostics.finish(found)
    }

    /// The keys that the text and what is linked to it declare: what [`Self::specialise`] and [`Self::case`] may bind.
    pub fn config_keys(&self) -> Vec<&str> {
        let is_key = |op: &&Op| matches!(self.op_name(op), "config.decl" | "config.def");
        let mut keys: Vec<&str> =
            self.ops.iter().filter(is_key).filter_map(|op| self.symbol_of(op)).map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// The names by which `specialise` finds the kernels of the text: export names, or symbols where there is none or where it
    /// is that of several.
    pub fn kernels(&self) -> Vec<String> {
        let is_kernel = |op: &&Op| self.op_name(op) == "kernel.def";
        let kernels: Vec<(&str, Option<String>)> = self.ops[..self.roots]
            .iter()
            .filter(is_kernel)
            .filter_map(|op| Some((self.symbol_of(op)?.0, self.export(op))))
            .collect();
        let mut exported: HashMap<&str, usize> = HashMap::new();
        for export in kernels.iter().filter_map(|(_, export)| export.as_deref()) {
            *exported.entry(export).or_default() += 1;
        }
        // A symbol is looked for before an export name.
        let is_symbol = |name: &str| self.symbols.get(name).is_some_and(|at| is_kernel(&&self.ops[*at]));
        let name = |(symbol, export): &(&str, Option<String>)| match export {
            Some(export) if export == symbol || (exported[export.as_str()] == 1 && !is_symbol(export)) => {
                export.clone()
            }
            _ => (*symbol).to_owned(),
        };
        kernels.iter().map(name).collect()
    }

    /// Whether [`Self::specialise`] finds a kernel by this symbol or export name.
    pub fn has_kernel(&self, name: &str) -> bool {
        !self.kernel(name).is_empty()
    }

    /// The kernels of this name: the one with the symbol, or those with the export name, of the text before linked ones.
    fn kernel(&self, name: &str) -> Vec<&Op> {
        let is_kernel = |op: &&Op| self.op_name(op) == "kernel.def";
        let exported = |ops| {
            let ops: std::slice::Iter<'_, Op> = <[Op]>::iter(ops);
            ops.filter(is_kernel).filter(|op| self.export(op).as_deref() == Some(name)).collect::<Vec<&Op>>()
        };
        let symbol = self.symbols.get(name.strip_prefix('@').unwrap_or(name));
        if let Some(op) = symbol.map(|at| &self.ops[*at]).filter(is_kernel) {
            return vec![op];
        }
        let (own, linked) = self.ops.split_at(self.roots);
        let own = exported(own);
        if own.is_empty() { exported(linked) } else { own }
    }

    /// Whether the text is ops of a body and nothing else: made to be pasted into one, and no module on its own.
    pub(crate) fn is_fragment(&self) -> bool {
        let family = |op: &Op| self.op_name(op).split('.').next().unwrap_or_default();
        let defines = |op: &Op| {
            let name = self.op_name(op);
            [".def", ".decl", ".target"].iter().any(|end| name.ends_with(end)) || !FRAGMENT.contains(&family(op))
        };
        !self.ops.is_empty() && self.ops.iter().any(|op| BODY.contains(&family(op))) && !self.ops.iter().any(defines)
    }

    /// Functions and templates that no kernel may reach: they, or what they call, use ops of the host or of one machine. They
    /// are refused where they are reached, and a text is not wrong for having them.
    pub(crate) fn beyond_kernels(&self) -> Vec<bool> {
        let is_function = |op: &Op| ["func.def", "func.template", "template.def"].contains(&self.op_name(op));
        let is_beyond = |name: &str| {
            let family = name.split('.').next().unwrap_or_default();
            BEYOND.contains(&family)
                || ON_HOST
                    .iter()
                    .any(|op| name.strip_prefix(op).is_some_and(|rest| rest.is_empty() || op.ends_with('.')))
        };
        let mut beyond = vec![false; self.ops.len()];
        let mut callers: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut found = Vec::new();
        for (at, op) in self.ops.iter().enumerate().filter(|(_, op)| is_function(op)) {
            for token in op.rest.start..op.rest.end {
                match self.tokens[token as usize].kind {
                    Kind::OpName if is_beyond(self.text(token)) => found.push(at),
                    // Types that only checks and other machines have values of.
                    Kind::Word
                        if TYPES_BEYOND.contains(&self.text(token))
                            && self.tokens.get(token as usize + 1).is_some_and(|next| next.kind == Kind::Less) =>
                    {
                        found.push(at);
                    }
                    Kind::Symbol => {
                        let Some(callee) = self.symbols.get(&self.text(token)[1..]) else { continue };
                        callers.entry(*callee).or_default().push(at);
                        // What outlives a launch is the host's; assembly has a symbol, too.
                        let kind = self.op_name(&self.ops[*callee]);
                        if kind == "global.variable" || kind.starts_with("low.") {
                            found.push(at);
                        }
                    }
                    _ => {}
                }
            }
        }
        while let Some(at) = found.pop() {
            if !std::mem::replace(&mut beyond[at], true) {
                found.extend(callers.remove(&at).unwrap_or_default());
            }
        }
        beyond
    }

    /// Whether the op only promises a definition.
    pub(crate) fn declares(&self, op: &Op) -> bool {
        self.op_name(op).ends_with(".decl")
    }

    /// Which file a byte of the source is in, counted from the first.
    pub(crate) fn file_of(&self, at: u32) -> usize {
        self.files.partition_point(|file| file.start <= at)
    }

    /// Which kernel `op` defines with `config`. Snapshots outlive builds by it: what goes in, and in which order, stays.
    pub(crate) fn digest(&self, op: &Op, config: &BTreeMap<String, String>) -> SourceDigest {
        let mut digest = Sha256::new();
        // Lengths first: no two lists of parts run together to the same bytes.
        let mut part = |text: &str| {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        };
        part(&self.source);
        part(self.symbol_of(op).map_or("", |(symbol, _)| symbol));
        // Sorted, each key once, the spelling without `@` before the other: as they are bound.
        let keys: BTreeSet<&str> = config.keys().map(|key| key.strip_prefix('@').unwrap_or(key)).collect();
        for key in keys.into_iter().filter(|key| self.declares_config(key)) {
            part(key);
            part(config.get(key).or_else(|| config.get(&format!("@{key}"))).map_or("", String::as_str));
        }
        SourceDigest(digest.finalize().into())
    }

    fn declares_config(&self, key: &str) -> bool {
        self.symbols.get(key).is_some_and(|at| self.op_name(&self.ops[*at]).starts_with("config."))
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
    pub(crate) fn symbol_of(&self, op: &Op) -> Option<(&str, Span)> {
        let mut depth = 0usize;
        for at in op.rest.start..op.rest.end {
            let token = self.tokens[at as usize];
            match token.kind {
                Kind::BraceOpen if depth == 0 => return None,
                Kind::ParenOpen | Kind::Less | Kind::BracketOpen | Kind::BraceOpen => depth += 1,
                Kind::ParenClose | Kind::Greater | Kind::BracketClose | Kind::BraceClose => {
                    depth = depth.saturating_sub(1);
                }
                Kind::Symbol if depth == 0 => return Some((&self.text(at)[1..], token.span)),
                _ => {}
            }
        }
        None
    }

    pub(crate) fn collect_symbols(&mut self, diagnostics: &mut Diagnostics) {
        let mut symbols: HashMap<String, usize> = HashMap::with_capacity(self.ops.len());
        let mut declarations: HashMap<String, Vec<usize>> = HashMap::new();
        let mut providers: HashMap<String, Vec<usize>> = HashMap::new();
        if self.is_fragment() {
            return;
        }
        for (at, op) in self.ops.iter().enumerate() {
            let name = self.op_name(op);
            let span = self.tokens[op.name as usize].span;
            if name.starts_with(['#', '@']) {
                continue;
            }
            let family = name.split('.').next().unwrap_or(name);
            if !FAMILIES.contains(&family) && !name.ends_with(".target") {
                let message = format!("`{name}` is no top-level op; legal families: {}", FAMILIES.join(", "));
                diagnostics.push(&self.source, span, message);
                continue;
            }
            if let Some(meant) = misspelt(name) {
                let message = format!("`{name}` is no top-level op, and would be passed over; `{meant}` is one");
                diagnostics.push(&self.source, span, message);
                continue;
            }
            if let Some(family) = self.provided(op) {
                providers.entry(family.to_owned()).or_default().push(at);
            }
            let Some((symbol, symbol_span)) = self.symbol_of(op) else {
                continue;
            };
            if self.declares(op) {
                declarations.entry(symbol.to_owned()).or_default().push(at);
            }
            let file = |at: usize| self.file_of(self.tokens[self.ops[at].name as usize].span.start);
            match symbols.get(symbol) {
                Some(first) if self.declares(&self.ops[*first]) && !self.declares(op) => {
                    symbols.insert(symbol.to_owned(), at);
                }
                Some(first) if self.declares(op) && !self.declares(&self.ops[*first]) => {}
                // Each file declares what it uses.
                Some(first) if self.declares(op) && file(*first) != file(at) => {}
                Some(_) if diagnostics.is_full() => {}
                Some(first) => {
                    let other = self.tokens[self.ops[*first].name as usize].span;
                    let other = diagnostics.place(&self.source, other);
                    let message = format!("`@{symbol}` is defined twice: here, and at {other}");
                    diagnostics.push(&self.source, symbol_span, message);
                }
                None => {
                    symbols.insert(symbol.to_owned(), at);
                }
            }
        }
        self.symbols = symbols;
        self.declarations = declarations;
        self.providers = providers;
        self.check_declarations(diagnostics);
    }

    /// Two kernels of one text may share an export name only if they are for different targets.
    fn check_exports(&self, diagnostics: &mut Diagnostics) {
        let mut exports = HashSet::new();
        for op in self.ops.iter().filter(|op| self.op_name(op) == "kernel.def") {
            if let Some(export) = self.export(op)
                && !exports.insert((export.clone(), self.target_of(op)))
            {
                let message = format!("two kernels are exported as `{}`", export.escape_debug());
                diagnostics.push(&self.source, self.tokens[op.name as usize].span, message);
            }
        }
    }

    /// The symbol in `target(@t)` before an op's own, without `@`.
    pub(crate) fn target_of(&self, op: &Op) -> Option<&str> {
        let mut at = op.rest.start;
        let kind = |at: u32| (at < op.rest.end).then(|| self.tokens[at as usize].kind);
        while let Some(found) = kind(at).filter(|kind| *kind != Kind::BraceOpen) {
            if found == Kind::Word && self.text(at) == "target" && kind(at + 2) == Some(Kind::Symbol) {
                return Some(&self.text(at + 2)[1..]);
            }
            at += 1;
        }
        None
    }

    /// The word in `<..>` of a target record.
    pub(crate) fn selector(&self, record: &Op) -> &str {
        let word = record.rest.start + 1;
        if word < record.rest.end { self.text(word) } else { "" }
    }

    /// What a target record says of subgroups, if it does.
    pub(crate) fn record_subgroups(&self, record: &Op) -> Option<i64> {
        let mut reader = Reader::new(&self.source, &self.tokens, record);
        while reader.peek()? != Kind::BraceOpen {
            reader.at += 1;
        }
        let entries = reader.dictionary().ok()?;
        entries.into_iter().find(|entry| entry.key == "subgroup_size").and_then(|entry| match entry.value {
            crate::reader::Attribute::Int(size) => Some(size),
            _ => None,
        })
    }
}

/// What could have been named instead.
pub(crate) fn it_has<S: AsRef<str>>(names: &[S]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    if names.is_empty() { "it has none".to_owned() } else { format!("it has: {}", names.join(", ")) }
}
