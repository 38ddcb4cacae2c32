//! Tokens to ops, blocks and regions, for the whole language: which op owns which tokens, whatever the op.
//!
//! `%r = opname <everything up to the next op> { ops } ..`
//!
//! - An op ends where the next begins: at an op name that cannot be a type, at `%names = opname`, at a label that opens a
//!   block, at `}`.
//! - A `{` opens a region iff an op, a result list or a label follows; an empty `{}` may be read as either a region or a
//!   dictionary; anything else in braces belongs to the op's own grammar.
//! - Nesting is bounded by [`MAX_DEPTH`]; memory is linear in the text.
//! - A refusal ends the op it is in: reading goes on with the next op of the region, at the top level with the next definition.
//! - Not here: the grammar of any one op (`build`).

use crate::diag::Diagnostics;
use crate::ir::Span;
use crate::lex::{Kind, Token};

/// The deepest nesting of regions, and of brackets inside one op.
pub(crate) const MAX_DEPTH: usize = 64;

/// A half-open range of token indices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// One op: its results, its name, and the rest of its tokens, among them those of its regions.
#[derive(Debug)]
pub(crate) struct Op {
    /// The `%names` before `=`, without the commas.
    pub(crate) results: Vec<u32>,
    /// The op name; for a top-level alias, its `#name`.
    pub(crate) name: u32,
    /// What follows the name.
    pub(crate) rest: Tokens,
    /// In order of appearance.
    pub(crate) regions: Vec<Region>,
}

/// A brace-enclosed list of blocks.
#[derive(Debug)]
pub(crate) struct Region {
    /// The token `{`.
    pub(crate) open: u32,
    /// The token `}`.
    pub(crate) close: u32,
    pub(crate) blocks: Vec<Block>,
}

/// Ops behind an optional label.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// The token `^label`. Arguments, if any, follow it up to the `:`.
    pub(crate) label: Option<u32>,
    pub(crate) ops: Vec<Op>,
}

/// Ops that stand at the top level only: where reading goes on after a refusal, and what a misspelt one may have been meant to be.
pub(crate) const DEFINITIONS: [&str; 16] = [
    "kernel.def",
    "kernel.decl",
    "func.def",
    "func.decl",
    "func.template",
    "template.def",
    "template.decl",
    "config.def",
    "config.decl",
    "check.case",
    "check.scenario",
    "check.benchmark",
    "command.program.def",
    "command.program.decl",
    "global.rodata.def",
    "low.func.def",
];

/// Reads all tokens as a list of top-level ops. What is refused at the top level is left out, up to the next definition.
pub(crate) fn parse(source: &str, tokens: &[Token], diagnostics: &mut Diagnostics) -> Vec<Op> {
    let mut parser = Parser { source, tokens, at: 0, diagnostics };
    let mut ops = Vec::new();
    while parser.at < tokens.len() && !parser.diagnostics.is_full() {
        let start = parser.at;
        match parser.op(0) {
            Some(op) => ops.push(op),
            None => parser.resynchronise(start),
        }
    }
    ops
}

struct Parser<'a> {
    source: &'a str,
    tokens: &'a [Token],
    at: usize,
    diagnostics: &'a mut Diagnostics,
}

impl Parser<'_> {
    fn kind(&self, at: usize) -> Option<Kind> {
        self.tokens.get(at).map(|token| token.kind)
    }

    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &self.source[token.span.start as usize..token.span.end as usize])
    }

    fn refuse(&mut self, at: usize, message: impl Into<String>) {
        let end = self.source.len() as u32;
        let span = self.tokens.get(at).map_or(Span { start: end, end }, |token| token.span);
        self.diagnostics.push(self.source, span, message);
    }

    /// After a refusal of the top-level op at token `start`: skips to the next definition. Where the text ended inside the
    /// op, a brace is missing, and what was read as part of the op may be definitions: the first of them is next.
    /// Always forward, and at most once for each refusal, of which there are few.
    fn resynchronise(&mut self, start: usize) {
        let from = if self.at < self.tokens.len() { self.at.max(start + 1) } else { start + 1 };
        let is_definition = |at: &usize| self.kind(*at) == Some(Kind::OpName) && DEFINITIONS.contains(&self.text(*at));
        self.at = (from..self.tokens.len()).find(is_definition).unwrap_or(self.tokens.len());
    }

    /// Whether `%names = opname` starts here. A list is scanned only where one can start, so scanning stays linear.
    fn starts_results(&self, mut at: usize, list: bool) -> bool {
        while self.kind(at) == Some(Kind::Value) {
            match self.kind(at + 1) {
                Some(Kind::Equal) => return self.kind(at + 2) == Some(Kind::OpName),
                Some(Kind::Comma) if list => at += 2,
                _ => return false,
            }
        }
        false
    }

    fn starts_op(&self, at: usize) -> bool {
        match self.kind(at) {
            Some(Kind::OpName) => true,
            // A hole on its own stands for ops.
            Some(Kind::Hole) => self.is_op_hole(at),
            Some(Kind::Value) => self.starts_results(at, at == 0 || self.kind(at - 1) != Some(Kind::Comma)),
            Some(Kind::Hash) => self.kind(at + 1) == Some(Kind::Equal),
            _ => false,
        }
    }

    /// Whether the hole at `at` stands where an op does: at the start of a line.
    fn is_op_hole(&self, at: usize) -> bool {
        let Some(token) = self.tokens.get(at).filter(|token| token.kind == Kind::Hole) else {
            return false;
        };
        let line =
            self.source[..token.span.start as usize].bytes().rev().find(|byte| !matches!(byte, b' ' | b'\t' | b'\r'));
        matches!(line, None | Some(b'\n'))
    }

    /// A label that opens a block is followed by `:`, or by an argument list and `:`.
    fn starts_block(&self, at: usize) -> bool {
        if self.kind(at) != Some(Kind::Label) {
            return false;
        }
        match self.kind(at + 1) {
            Some(Kind::Colon) => true,
            // An operand label is never followed by `(%a : type) :`, but telling so needs a scan; what comes before it
            // decides instead: an operand follows its op name, a comma, or a condition.
            Some(Kind::ParenOpen) => at == 0 || !matches!(self.kind(at - 1), Some(Kind::Comma | Kind::OpName)),
            _ => false,
        }
    }

    fn op(&mut self, depth: usize) -> Option<Op> {
        if self.kind(self.at) == Some(Kind::Hash) && self.kind(self.at + 1) == Some(Kind::Equal) {
            let name = self.at as u32;
            self.at += 1;
            return self.rest(Vec::new(), name, depth);
        }
        if self.is_op_hole(self.at) {
            let name = self.at as u32;
            self.at += 1;
            return Some(Op {
                results: Vec::new(),
                name,
                rest: Tokens { start: name + 1, end: name + 1 },
                regions: Vec::new(),
            });
        }
        let mut results = Vec::new();
        while self.kind(self.at) == Some(Kind::Value) {
            results.push(self.at as u32);
            self.at += 1;
            match self.kind(self.at) {
                Some(Kind::Comma) => self.at += 1,
                Some(Kind::Equal) => {
                    self.at += 1;
                    break;
                }
                _ => {
                    self.refuse(self.at, "expected `,` or `=` after a result name");
                    return None;
                }
            }
        }
        if self.kind(self.at) != Some(Kind::OpName) {
            let found = self.found(self.at);
            self.refuse(self.at, format!("expected an op name such as `index.add`, found {found}"));
            return None;
        }
        let name = self.at as u32;
        self.at += 1;
        self.rest(results, name, depth)
    }

    fn found(&self, at: usize) -> String {
        if at < self.tokens.len() { format!("`{}`", self.text(at)) } else { "the end of the text".to_owned() }
    }

    /// Everything of an op behind its name.
    fn rest(&mut self, results: Vec<u32>, name: u32, depth: usize) -> Option<Op> {
        let start = self.at as u32;
        let mut regions = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        while let Some(kind) = self.kind(self.at) {
            let before = self.kind(self.at - 1);
            let continues = matches!(
                before,
                Some(
                    Kind::Colon
                        | Kind::Arrow
                        | Kind::Comma
                        | Kind::ParenOpen
                        | Kind::BracketOpen
                        | Kind::Less
                        | Kind::Equal
                        | Kind::Pipe
                )
            ) || (before == Some(Kind::Word) && self.text(self.at - 1) == "to");
            match kind {
                Kind::Value if self.starts_results(self.at, before != Some(Kind::Comma)) => {
                    if let Some(unclosed) = open.pop() {
                        let bracket = self.text(unclosed).to_owned();
                        self.refuse(unclosed, format!("`{bracket}` is not closed before the next op"));
                        return None;
                    }
                    break;
                }
                Kind::OpName | Kind::Hash | Kind::Hole if open.is_empty() && !continues && self.starts_op(self.at) => {
                    break;
                }
                Kind::Label if open.is_empty() && self.starts_block(self.at) => break,
                Kind::BraceClose if open.is_empty() => break,
                Kind::BraceOpen if self.opens_region() => {
                    if depth + open.len() >= MAX_DEPTH {
                        self.refuse(self.at, format!("nested deeper than {MAX_DEPTH}"));
                        self.at = self.tokens.len();
                        return None;
                    }
                    regions.push(self.region(depth + open.len() + 1)?);
                    continue;
                }
                Kind::ParenOpen | Kind::BracketOpen | Kind::BraceOpen | Kind::Less => {
                    if depth + open.len() >= MAX_DEPTH {
                        self.refuse(self.at, format!("nested deeper than {MAX_DEPTH}"));
                        self.at = self.tokens.len();
                        return None;
                    }
                    open.push(self.at);
                }
                Kind::ParenClose | Kind::BracketClose | Kind::BraceClose | Kind::Greater => {
                    let matching = match kind {
                        Kind::ParenClose => Kind::ParenOpen,
                        Kind::BracketClose => Kind::BracketOpen,
                        Kind::BraceClose => Kind::BraceOpen,
                        _ => Kind::Less,
                    };
                    match open.pop() {
                        Some(opener) if self.kind(opener) == Some(matching) => {}
                        Some(opener) => {
                            let bracket = self.text(opener).to_owned();
                            self.refuse(self.at, format!("this closes no bracket: `{bracket}` is still open"));
                            return None;
                        }
                        None => {
                            self.refuse(self.at, "this closes no bracket: none is open here");
                            return None;
                        }
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
        if let Some(unclosed) = open.pop() {
            self.refuse(unclosed, format!("`{}` is never closed", self.text(unclosed)));
            return None;
        }
        Some(Op { results, name, rest: Tokens { start, end: self.at as u32 }, regions })
    }

    /// Whether the `{` here opens a region.
    fn opens_region(&self) -> bool {
        matches!(self.kind(self.at + 1), Some(Kind::OpName | Kind::Label | Kind::BraceClose | Kind::Value))
            || self.is_op_hole(self.at + 1)
    }

    fn region(&mut self, depth: usize) -> Option<Region> {
        let open = self.at as u32;
        self.at += 1;
        let mut blocks = vec![Block::default()];
        loop {
            match self.kind(self.at) {
                None => {
                    self.refuse(open as usize, "`{` is never closed");
                    return None;
                }
                Some(Kind::BraceClose) => {
                    self.at += 1;
                    return Some(Region { open, close: self.at as u32 - 1, blocks });
                }
                Some(Kind::Label) => {
                    let label = Some(self.at as u32);
                    while !matches!(self.kind(self.at), None | Some(Kind::BraceClose)) {
                        self.at += 1;
                        // Argument types stand in parentheses, so the first `:` outside is the label's own.
                        if self.kind(self.at) == Some(Kind::ParenOpen) {
                            while !matches!(self.kind(self.at), None | Some(Kind::ParenClose | Kind::BraceClose)) {
                                self.at += 1;
                            }
                        }
                        if self.kind(self.at) == Some(Kind::Colon) {
                            self.at += 1;
                            break;
                        }
                    }
                    match blocks.last_mut() {
                        Some(first) if first.label.is_none() && first.ops.is_empty() => first.label = label,
                        _ => blocks.push(Block { label, ops: Vec::new() }),
                    }
                }
                Some(_) => match self.op(depth) {
                    Some(op) => {
                        if let Some(block) = blocks.last_mut() {
                            block.ops.push(op);
                        }
                    }
                    None => {
                        if self.at >= self.tokens.len() || self.diagnostics.is_full() {
                            return None;
                        }
                        // Inside a region a `}` is a place to go on from as well.
                        if self.kind(self.at) != Some(Kind::BraceClose) {
                            self.at += 1;
                        }
                        while self.at < self.tokens.len()
                            && !self.starts_op(self.at)
                            && self.kind(self.at) != Some(Kind::BraceClose)
                        {
                            self.at += 1;
                        }
                    }
                },
            }
        }
    }
}
