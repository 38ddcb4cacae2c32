//! A module as canonical text.
//!
//! - Layout alone is canonical: every token stays as it was spelled, so the text reads back as the same module. Only
//!   shapes lose the space inside them, because they are read as text (`2 x f32` is `2xf32`).
//! - The result is a function of the tokens and the comments: one op a line, two spaces a region, one blank line around
//!   top-level ops of several lines and none elsewhere. Lines are not wrapped. Formatting it again changes nothing.
//! - A comment on a line of its own stays before what follows it, one behind a line stays there, and one inside a line goes
//!   above that line.
//! - Linear in the text, and recursive only as deep as the syntax is.

use crate::lex::{Kind, Token};
use crate::module::Module;
use crate::syntax::{Op, Region};

/// The words before `<` that are types with a shape, which is text and not tokens.
const SHAPED: [&str; 4] = ["vector", "view", "tensor", "tile"];

/// That a token starts a line.
#[derive(Clone, Copy)]
struct Start {
    depth: u8,
    /// The depth of comments above the line: those above a `}` belong to the region that it closes.
    comments: u8,
    /// Whether a blank line comes before.
    blank: bool,
}

/// A line until it is known to be whole.
#[derive(Default)]
struct Line<'m> {
    above: Vec<&'m str>,
    text: String,
    behind: Option<&'m str>,
}

impl Module {
    /// The canonical text of this module: the same tokens and comments, laid out in the one way there is.
    ///
    /// The text may be longer than [`MAX_SOURCE_BYTES`](crate::MAX_SOURCE_BYTES) where the source nests deeply on few lines.
    pub fn format(&self) -> String {
        let mut starts = vec![None; self.tokens.len() + 1];
        let mut after_tall = false;
        for (at, op) in self.ops.iter().enumerate() {
            let tall = self.mark_op(op, 0, &mut starts);
            starts[first(op)] = Some(Start { depth: 0, comments: 0, blank: at > 0 && (tall || after_tall) });
            after_tall = tall;
        }
        // What may follow the last op is comments.
        starts[self.tokens.len()] = Some(Start { depth: 0, comments: 0, blank: after_tall });
        self.print(&starts)
    }

    /// Marks what starts a line inside an op that stands at `depth`; whether anything does.
    fn mark_op(&self, op: &Op, depth: u8, starts: &mut [Option<Start>]) -> bool {
        let mut regions = op.regions.iter().peekable();
        // Braces of the op's own grammar that may hold regions, such as those around the cases of a switch: the token
        // that opens each, and whether a region was found in it.
        let mut braces: Vec<(usize, bool)> = Vec::new();
        let mut tall = false;
        let mut at = op.rest.start as usize;
        while at < op.rest.end as usize {
            if let Some(region) = regions.next_if(|region| region.open as usize == at) {
                // Only braces around a region indent it, so those that are open now are known to.
                let inside = depth + braces.len() as u8;
                let broken = self.mark_region(region, inside, starts);
                tall |= broken;
                at = region.close as usize + 1;
                if let Some((_, holds)) = braces.last_mut() {
                    *holds = true;
                    starts[at] = Some(Start { depth: inside, comments: inside, blank: false });
                }
                continue;
            }
            match self.tokens[at].kind {
                Kind::Opaque => tall |= self.text(at as u32).contains('\n'),
                Kind::BraceOpen => braces.push((at, false)),
                Kind::BraceClose => {
                    if let Some((open, true)) = braces.pop() {
                        let inside = depth + braces.len() as u8;
                        let start = Start { depth: inside + 1, comments: inside + 1, blank: false };
                        starts[open + 1] = Some(start);
                        starts[at] = Some(Start { depth: inside, ..start });
                        tall = true;
                        if let Some((_, holds)) = braces.last_mut() {
                            *holds = true;
                        }
                    }
                }
                _ => {}
            }
            at += 1;
        }
        tall
    }

    /// Marks a region of an op at `depth`; whether it is laid out on several lines.
    fn mark_region(&self, region: &Region, depth: u8, starts: &mut [Option<Start>]) -> bool {
        let close = region.close as usize;
        if close == region.open as usize + 1 && self.comments(close).next().is_none() {
            return false;
        }
        for block in &region.blocks {
            if let Some(label) = block.label {
                starts[label as usize] = Some(Start { depth, comments: depth, blank: false });
            }
            for op in &block.ops {
                starts[first(op)] = Some(Start { depth: depth + 1, comments: depth + 1, blank: false });
                self.mark_op(op, depth + 1, starts);
            }
        }
        starts[close] = Some(Start { depth, comments: depth + 1, blank: false });
        true
    }

    fn print(&self, starts: &[Option<Start>]) -> String {
        let mut out = String::with_capacity(self.source.len() + self.source.len() / 8);
        let mut line = Line::default();
        let mut start = Start { depth: 0, comments: 0, blank: false };
        let mut open: Vec<Kind> = Vec::new();
        let mut first = 0;
        let mut at = 0;
        while let Some(&token) = self.tokens.get(at) {
            if let Some(next) = starts[at] {
                self.turn(&mut out, &mut line, start, at);
                (start, first) = (next, at);
                open.clear();
            } else {
                line.above.extend(self.comments(at).map(|comment| comment.text));
                if at > first && self.space(first, at, &open) {
                    line.text.push(' ');
                }
            }
            line.text.push_str(self.text(at as u32));
            match token.kind {
                Kind::ParenOpen | Kind::BracketOpen | Kind::BraceOpen | Kind::Less => open.push(token.kind),
                Kind::ParenClose | Kind::BracketClose | Kind::BraceClose | Kind::Greater => drop(open.pop()),
                _ => {}
            }
            at += 1;
            let Some((shape, end)) = self.shape(at) else {
                continue;
            };
            open.push(Kind::Less);
            line.text.push('<');
            line.text.push_str(&shape);
            while self.tokens.get(at).is_some_and(|token| (token.span.start as usize) < end) {
                line.above.extend(self.comments(at).map(|comment| comment.text));
                at += 1;
            }
        }
        self.turn(&mut out, &mut line, start, at);
        // Comments behind the last op.
        if let (Some(last), false) = (starts[at], line.above.is_empty()) {
            line.write(&mut out, last);
        }
        out
    }

    /// Ends `line`, whose start is `start`, before token `next`, and gives that token's comments to the line they belong to.
    fn turn<'m>(&'m self, out: &mut String, line: &mut Line<'m>, start: Start, next: usize) {
        let mut above = Vec::new();
        for comment in self.comments(next) {
            if comment.alone { above.push(comment.text) } else { line.behind = Some(comment.text) }
        }
        if !line.text.is_empty() {
            line.write(out, start);
        }
        *line = Line { above, text: std::mem::take(&mut line.text), behind: None };
        line.text.clear();
    }

    /// Whether a space stands before token `at`, on a line that starts at token `first` and with these brackets open.
    fn space(&self, first: usize, at: usize, open: &[Kind]) -> bool {
        let kind = |at: usize| self.tokens.get(at).map(|token| token.kind);
        let (before, here) = (self.tokens[at - 1].kind, self.tokens[at].kind);
        let earlier = if at >= first + 2 { kind(at - 2) } else { None };
        let inside = open.last();
        // What is filled in may be part of a word.
        if before == Kind::Hole || here == Kind::Hole {
            return self.tokens[at - 1].span.end != self.tokens[at].span.start;
        }
        match (before, here) {
            (_, Kind::Comma | Kind::ParenClose | Kind::BracketClose | Kind::BraceClose | Kind::Greater)
            | (Kind::ParenOpen | Kind::BracketOpen | Kind::BraceOpen | Kind::Less, _)
            | (Kind::Pipe, _)
            | (_, Kind::Pipe) => false,
            // A name would take the dash of an arrow behind it.
            (Kind::Arrow, _) | (_, Kind::Arrow) => true,
            (Kind::Equal, _) | (_, Kind::Equal) => inside != Some(&Kind::Less),
            // `loc("file":3:4)`.
            (Kind::Colon, Kind::Int) => false,
            (_, Kind::Colon) if kind(at + 1) == Some(Kind::Int) => false,
            // What declares a name stands close to it: `(%a: f32, %b: f32)`, `^label(%a: f32):`, `@key : %v: index`.
            (Kind::Label, Kind::Colon) => false,
            (Kind::ParenClose, Kind::Colon) => !(kind(first) == Some(Kind::Label) && open.is_empty()),
            (Kind::Value, Kind::Colon) => match earlier {
                Some(Kind::ParenOpen | Kind::Colon) => false,
                Some(Kind::Comma) => inside != Some(&Kind::ParenOpen),
                _ => true,
            },
            (Kind::Word | Kind::OpName | Kind::Hash | Kind::Symbol, Kind::Less) => false,
            (
                Kind::Word
                | Kind::OpName
                | Kind::Hash
                | Kind::Symbol
                | Kind::Label
                | Kind::BracketClose
                | Kind::Greater,
                Kind::ParenOpen,
            ) => false,
            // Indices are close to what they index, predicates are not: `%v[%i]`, `%n [lt(%n, 4)]`.
            (Kind::Value | Kind::Symbol, Kind::BracketOpen) => {
                kind(at + 1) == Some(Kind::Word) && kind(at + 2) == Some(Kind::ParenOpen)
            }
            _ => true,
        }
    }

    /// If a shape opens at token `at`: it without the space in it, and the byte where it ends.
    fn shape(&self, at: usize) -> Option<(String, usize)> {
        let (word, open) = (self.tokens.get(at.checked_sub(1)?)?, self.tokens.get(at)?);
        if word.kind != Kind::Word || open.kind != Kind::Less || !SHAPED.contains(&self.text(at as u32 - 1)) {
            return None;
        }
        squeezed_shape(&self.source, open.span.end as usize)
    }

    /// The comments between token `at` and the one before it; at the number of tokens, those behind the last.
    fn comments(&self, at: usize) -> Comments<'_> {
        let from = at.checked_sub(1).map_or(0, |before| self.tokens[before].span.end as usize);
        let to = self.tokens.get(at).map_or(self.source.len(), |token: &Token| token.span.start as usize);
        Comments { rest: &self.source[from..to], alone: from == 0 }
    }
}

impl Line<'_> {
    fn write(&self, out: &mut String, start: Start) {
        if start.blank {
            out.push('\n');
        }
        for comment in &self.above {
            indent(out, start.comments);
            out.push_str(comment);
            out.push('\n');
        }
        if self.text.is_empty() {
            return;
        }
        indent(out, start.depth);
        out.push_str(&self.text);
        if let Some(comment) = self.behind {
            out.push(' ');
            out.push_str(comment);
        }
        out.push('\n');
    }
}

/// A comment from its `//`, without space at its end.
struct Comment<'m> {
    text: &'m str,
    /// Whether no token stands before it on its line.
    alone: bool,
}

/// The comments of what lies between two tokens.
struct Comments<'m> {
    rest: &'m str,
    alone: bool,
}

impl<'m> Iterator for Comments<'m> {
    type Item = Comment<'m>;

    fn next(&mut self) -> Option<Comment<'m>> {
        let start = self.rest.find("//")?;
        let alone = self.alone || self.rest[..start].contains('\n');
        let end = self.rest[start..].find('\n').map_or(self.rest.len(), |length| start + length);
        let text = self.rest[start..end].trim_end();
        self.rest = &self.rest[end..];
        Some(Comment { text, alone })
    }
}

/// The token that an op starts with.
fn first(op: &Op) -> usize {
    op.results.first().copied().unwrap_or(op.name) as usize
}

fn indent(out: &mut String, depth: u8) {
    out.extend(std::iter::repeat_n("  ", usize::from(depth)));
}

/// The shape at byte `at` without the space in it, up to its `,` or `>`, and where it ends; nothing if it is no shape.
fn squeezed_shape(source: &str, mut at: usize) -> Option<(String, usize)> {
    let bytes = source.as_bytes();
    let run = |from: usize, is: fn(&u8) -> bool| {
        let length = bytes[from..].iter().take_while(|byte| is(byte)).count();
        &source[from..from + length]
    };
    let mut shape = String::new();
    loop {
        at = skip_space(source, at);
        match bytes.get(at)? {
            b'0'..=b'9' => {
                let extent = run(at, u8::is_ascii_digit);
                shape.push_str(extent);
                at += extent.len();
            }
            b'[' => {
                at = skip_space(source, at + 1);
                let name = run(at, |byte| byte.is_ascii_alphanumeric() || b"%_$-".contains(byte));
                at = skip_space(source, at + name.len());
                if bytes.get(at) != Some(&b']') || name.len() < 2 || name.rfind('%') != Some(0) {
                    return None;
                }
                shape.extend(["[", name, "]"]);
                at += 1;
            }
            _ => break,
        }
        at = skip_space(source, at);
        if bytes.get(at) != Some(&b'x') {
            return None;
        }
        shape.push('x');
        at += 1;
    }
    let element = run(at, u8::is_ascii_alphanumeric);
    at = skip_space(source, at + element.len());
    if element.is_empty() || !matches!(bytes.get(at), Some(b',' | b'>')) {
        return None;
    }
    shape.push_str(element);
    Some((shape, at))
}

/// The first byte from `at` that belongs to no space and no comment.
fn skip_space(source: &str, mut at: usize) -> usize {
    loop {
        let rest = &source[at..];
        let text = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        at += rest.len() - text.len();
        if !text.starts_with("//") {
            return at;
        }
        at += text.find('\n').unwrap_or(text.len());
    }
}
