//! Several files as one module: what one of them, the root, reaches in the others.
//!
//! - Symbols are one flat namespace. A name that the using file defines itself is that; one that it only declares, or only
//!   names, is the one definition among the other files, and two are an error that names both places.
//! - The providers of a template family are those of all files.
//! - The sources lie one behind the other and tokens and ops count on, so that whatever reads a module reads a linked one.
//!   Of the other files only what is reached is there; the root's ops come first.
//! - A declaration must say what the definition says: the same kind, and the same types.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use crate::diag::{Diagnostics, FileStart};
use crate::ir::Span;
use crate::lex::{Kind, Token};
use crate::module::Module;
use crate::reader::Reader;
use crate::syntax::{Block, Op, Region, Tokens};

/// The longest source that linking makes, in bytes.
const MAX_LINKED_BYTES: usize = 256 << 20;

/// Ops that provide a template family, named in `<..>`.
const PROVIDERS: [&str; 5] =
    ["func.template", "func.ukernel", "func.provider.decl", "template.def", "template.ukernel"];

impl Module {
    /// This module with what it reaches in `libraries`: definitions of what it declares or names without defining it,
    /// providers of the template families it applies, and so on from there. What no library defines stays declared.
    ///
    /// # Errors
    /// Two definitions of one symbol, a declaration that differs from the definition, sources of more than 256 MiB.
    pub fn link(&self, libraries: &[&Self]) -> Result<Self, Diagnostics> {
        let (module, diagnostics) = self.linked(libraries);
        diagnostics.finish(module)
    }

    /// [`Self::link`], with what was linked although something is wrong.
    pub(crate) fn linked(&self, libraries: &[&Self]) -> (Self, Diagnostics) {
        let modules: Vec<&Self> = std::iter::once(self).chain(libraries.iter().copied()).collect();
        let mut search =
            Search { modules: &modules, reached: HashSet::new(), queue: VecDeque::new(), twice: Vec::new() };
        (0..self.ops.len()).for_each(|op| search.reach(0, op));
        while let Some((module, op)) = search.queue.pop_front() {
            search.follow(module, op);
        }
        let Search { reached, twice, .. } = search;
        let mut linked = Self {
            name: self.name.clone(),
            source: self.source.clone(),
            tokens: self.tokens.clone(),
            ops: self.ops.iter().map(|op| shifted(op, 0)).collect(),
            files: self.files.clone(),
            roots: self.roots,
            ..Self::default()
        };
        let mut diagnostics = Diagnostics::of_files(&self.name, &self.files);
        // Where each module's bytes begin, for the errors found on the way.
        let mut starts = vec![Some(0u32)];
        for (at, module) in modules.iter().enumerate().skip(1) {
            let mut ops: BTreeSet<usize> = reached.iter().filter(|(from, _)| *from == at).map(|(_, op)| *op).collect();
            if ops.is_empty() {
                starts.push(None);
                continue;
            }
            // A file's aliases are its own.
            let aliases = module.ops.iter().enumerate().filter(|(_, op)| module.op_name(op).starts_with('#'));
            ops.extend(aliases.map(|(at, _)| at));
            if linked.source.len() + module.source.len() + 1 > MAX_LINKED_BYTES {
                let message = format!("with `{}` the sources have more than {MAX_LINKED_BYTES} bytes", module.name);
                diagnostics.push(&linked.source, Span::default(), message);
                return (linked, diagnostics);
            }
            linked.source.push('\n');
            let (bytes, tokens) = (linked.source.len() as u32, linked.tokens.len() as u32);
            starts.push(Some(bytes));
            linked.source.push_str(&module.source);
            linked.files.push(FileStart { name: module.name.clone(), start: bytes });
            let behind = |file: &FileStart| FileStart { name: file.name.clone(), start: file.start + bytes };
            linked.files.extend(module.files.iter().map(behind));
            let moved = |token: &Token| Token { span: moved(token.span, bytes), ..*token };
            linked.tokens.extend(module.tokens.iter().map(moved));
            linked.ops.extend(ops.into_iter().map(|op| shifted(&module.ops[op], tokens)));
        }
        diagnostics = Diagnostics::of_files(&self.name, &linked.files);
        for (symbol, places) in twice {
            let mut spans = places.iter().filter_map(|(module, op)| {
                let (_, span) = modules[*module].symbol_of(&modules[*module].ops[*op])?;
                Some(moved(span, starts[*module]?))
            });
            if let (Some(first), Some(second)) = (spans.next(), spans.next()) {
                let other = diagnostics.place(&linked.source, first);
                let message = format!("`@{symbol}` is defined twice: here, and at {other}");
                diagnostics.push(&linked.source, second, message);
            }
        }
        if diagnostics.items.is_empty() {
            linked.collect_symbols(&mut diagnostics);
        }
        (linked, diagnostics)
    }

    /// The family that `op` provides a body for: `@family`, or the text of a key.
    pub(crate) fn provided(&self, op: &Op) -> Option<&str> {
        if !PROVIDERS.contains(&self.op_name(op)) {
            return None;
        }
        let kind = |at: u32| (at < op.rest.end).then(|| self.tokens[at as usize].kind);
        (kind(op.rest.start) == Some(Kind::Less) && kind(op.rest.start + 2) == Some(Kind::Greater))
            .then(|| self.text(op.rest.start + 1))
    }

    /// Every declaration says what its definition says, and what the other declarations of its symbol say.
    pub(crate) fn check_declarations(&self, diagnostics: &mut Diagnostics) {
        let mut symbols: Vec<(&String, &Vec<usize>)> = self.declarations.iter().collect();
        symbols.sort_by_key(|(_, declarations)| declarations[0]);
        for (symbol, declarations) in symbols {
            let Some(definition) = self.symbols.get(symbol).map(|at| &self.ops[*at]) else {
                continue;
            };
            for declaration in declarations.iter().map(|at| &self.ops[*at]) {
                if std::ptr::eq(declaration, definition) {
                    continue;
                }
                let (promised, found) = (self.op_name(declaration), self.op_name(definition));
                let Some((_, span)) = self.symbol_of(declaration) else {
                    continue;
                };
                let place = diagnostics.place(&self.source, self.tokens[definition.name as usize].span);
                let message = if !fits(promised, found) {
                    format!("`{promised} @{symbol}` does not promise the `{found}` at {place}")
                } else {
                    match (self.interface(declaration), self.interface(definition)) {
                        (Some(a), Some(b)) if a != b => {
                            format!("`@{symbol}` is declared as {a}, but at {place} it is {b}")
                        }
                        _ => continue,
                    }
                };
                diagnostics.push(&self.source, span, message);
            }
        }
    }

    /// The types of a signature, its names replaced by their order; nothing where the op has none that is read.
    fn interface(&self, op: &Op) -> Option<String> {
        let mut reader = Reader::new(&self.source, &self.tokens, op);
        let (_, symbol) = self.symbol_of(op)?;
        while reader.token()?.span != symbol {
            reader.at += 1;
        }
        reader.at += 1;
        let mut names: HashMap<String, usize> = HashMap::new();
        let mut text = String::new();
        if reader.name().starts_with("config.") {
            while reader.peek().is_some_and(|kind| kind != Kind::Colon) {
                reader.at += 1;
            }
            reader.at += 1;
            if reader.peek() == Some(Kind::Value) {
                reader.at += 2;
            }
            while let Some(token) = reader.token().filter(|token| reader.text(*token) != "where") {
                text.push_str(reader.text(token));
                reader.at += 1;
            }
            return Some(text);
        }
        let group = |reader: &mut Reader<'_>, text: &mut String, names: &mut HashMap<String, usize>| {
            let mut depth = 0usize;
            while let Some(token) = reader.token() {
                reader.at += 1;
                match token.kind {
                    Kind::ParenOpen | Kind::Less | Kind::BracketOpen => depth += 1,
                    Kind::ParenClose | Kind::Greater | Kind::BracketClose => depth = depth.saturating_sub(1),
                    _ => {}
                }
                let word = &self.source[token.span.start as usize..token.span.end as usize];
                let next = names.len();
                match token.kind {
                    Kind::Value => {
                        let at = *names.entry(word.to_owned()).or_insert(next);
                        text.push_str(&format!("%{at}"));
                    }
                    Kind::Comma => text.push_str(", "),
                    Kind::Colon => text.push_str(": "),
                    _ => text.push_str(word),
                }
                if depth == 0 {
                    return;
                }
            }
        };
        let first = text.len();
        if reader.peek() == Some(Kind::ParenOpen) {
            group(&mut reader, &mut text, &mut names);
        }
        let first = text[first..].to_owned();
        if reader.peek() == Some(Kind::BraceOpen) {
            reader.region().ok()?;
        }
        if reader.accept_word("launch") {
            text.push_str(" launch");
            names.clear();
            if reader.peek() == Some(Kind::ParenOpen) {
                group(&mut reader, &mut text, &mut names);
            } else {
                text.push_str(&first);
            }
        }
        if reader.accept(Kind::Arrow) {
            text.push_str(" -> ");
            let bare = reader.peek() != Some(Kind::ParenOpen);
            if bare {
                text.push('(');
            }
            group(&mut reader, &mut text, &mut names);
            // A type with `<..>` is a word and a group.
            if bare && reader.peek() == Some(Kind::Less) {
                group(&mut reader, &mut text, &mut names);
            }
            if bare {
                text.push(')');
            }
        }
        Some(text.replace("-> ()", "").trim_end().to_owned())
    }
}

/// Whether a declaration of kind `promised` may stand for a definition of kind `found`.
fn fits(promised: &str, found: &str) -> bool {
    let family = promised.strip_suffix(".decl").unwrap_or(promised);
    match family {
        "target" => found.ends_with(".target") || found.starts_with("target."),
        "func" => found.starts_with("func.") || found == "low.func.def",
        "kernel" => found.starts_with("kernel.") || found == "low.kernel.def",
        _ => found.strip_prefix(family).is_some_and(|rest| rest.starts_with('.')),
    }
}

/// What is reached from the root.
struct Search<'a> {
    modules: &'a [&'a Module],
    /// Module and op.
    reached: HashSet<(usize, usize)>,
    queue: VecDeque<(usize, usize)>,
    /// Symbols with several definitions, and where these are.
    twice: Vec<(String, Vec<(usize, usize)>)>,
}

impl Search<'_> {
    fn reach(&mut self, module: usize, op: usize) {
        if self.reached.insert((module, op)) {
            self.queue.push_back((module, op));
        }
    }

    /// Reaches what the op's tokens name.
    fn follow(&mut self, module: usize, op: usize) {
        let from = self.modules[module];
        let op = &from.ops[op];
        let range = op.rest.start..op.rest.end;
        for at in range {
            let kind = from.tokens[at as usize].kind;
            let text = from.text(at);
            if kind == Kind::Symbol {
                self.reach_providers(text);
                self.reach_symbol(module, &text[1..]);
            } else if kind == Kind::OpName && text == "func.apply" && at + 2 < op.rest.end {
                self.reach_providers(from.text(at + 2));
            }
        }
    }

    fn reach_providers(&mut self, family: &str) {
        for module in 0..self.modules.len() {
            for op in self.modules[module].providers.get(family).into_iter().flatten() {
                self.reach(module, *op);
            }
        }
    }

    fn reach_symbol(&mut self, module: usize, symbol: &str) {
        let modules = self.modules;
        let of = |module: usize| modules[module].symbols.get(symbol).map(|op| (module, *op));
        let defines = |(module, op): &(usize, usize)| !modules[*module].declares(&modules[*module].ops[*op]);
        if let Some((module, op)) = of(module).filter(defines) {
            return self.reach(module, op);
        }
        let definitions: Vec<(usize, usize)> = (0..modules.len()).filter_map(of).filter(defines).collect();
        if definitions.len() > 1 && !self.twice.iter().any(|(known, _)| known == symbol) {
            self.twice.push((symbol.to_owned(), definitions.clone()));
        }
        if definitions.is_empty() {
            // Only declared: by whoever does so.
            let declarations: Vec<(usize, usize)> = match of(module) {
                Some(own) => vec![own],
                None => (0..modules.len()).filter_map(of).collect(),
            };
            declarations.into_iter().for_each(|(module, op)| self.reach(module, op));
        }
        definitions.into_iter().for_each(|(module, op)| self.reach(module, op));
        if let Some((module, op)) = of(module) {
            self.reach(module, op);
        }
    }
}

fn moved(span: Span, by: u32) -> Span {
    Span { start: span.start + by, end: span.end + by }
}

/// The op with its tokens counted on by `by`. Depth is bounded by the syntax.
fn shifted(op: &Op, by: u32) -> Op {
    let region = |region: &Region| Region {
        open: region.open + by,
        close: region.close + by,
        blocks: region
            .blocks
            .iter()
            .map(|block| Block {
                label: block.label.map(|label| label + by),
                ops: block.ops.iter().map(|op| shifted(op, by)).collect(),
            })
            .collect(),
    };
    Op {
        results: op.results.iter().map(|result| result + by).collect(),
        name: op.name + by,
        rest: Tokens { start: op.rest.start + by, end: op.rest.end + by },
        regions: op.regions.iter().map(region).collect(),
    }
}
