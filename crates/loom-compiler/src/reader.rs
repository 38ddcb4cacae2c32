//! A cursor over the tokens of one op: what each op's grammar is made of.
//!
//! Every refusal says what was found and what is legal there. Types and operands, which need the names in scope, are read
//! by `build` on top of this.

use crate::diag::{Built, Refusal, refuse};
use crate::ir::Span;
use crate::lex::{Kind, Token};
use crate::syntax::{Op, Region};

/// The most entries of an attribute dictionary.
const MAX_ATTRIBUTES: usize = 16;

/// A literal where any is legal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Attribute<'m> {
    Int(i64),
    Float(f64),
    Text(String),
    Word(&'m str),
    /// A value, symbol, hash name or nested group: only the ops that know such a key read it.
    Other,
}

/// `key = value` of a dictionary.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'m> {
    pub(crate) key: &'m str,
    pub(crate) span: Span,
    pub(crate) value: Attribute<'m>,
    pub(crate) value_span: Span,
}

/// The cursor.
#[derive(Clone)]
pub(crate) struct Reader<'m> {
    pub(crate) source: &'m str,
    pub(crate) tokens: &'m [Token],
    pub(crate) op: &'m Op,
    pub(crate) at: usize,
}

impl<'m> Reader<'m> {
    /// At the first token behind the op's name.
    pub(crate) fn new(source: &'m str, tokens: &'m [Token], op: &'m Op) -> Self {
        Self { source, tokens, op, at: op.rest.start as usize }
    }

    /// The text of token `at`.
    pub(crate) fn text_at(&self, at: u32) -> &'m str {
        self.text(self.tokens[at as usize])
    }

    pub(crate) fn text(&self, token: Token) -> &'m str {
        &self.source[token.span.start as usize..token.span.end as usize]
    }

    /// The op's name.
    pub(crate) fn name(&self) -> &'m str {
        self.text_at(self.op.name)
    }

    /// Where the op's name is.
    pub(crate) fn span(&self) -> Span {
        self.tokens[self.op.name as usize].span
    }

    pub(crate) fn token(&self) -> Option<Token> {
        if self.at < self.op.rest.end as usize { Some(self.tokens[self.at]) } else { None }
    }

    pub(crate) fn peek(&self) -> Option<Kind> {
        self.token().map(|token| token.kind)
    }

    /// The kind of the token behind the next one.
    pub(crate) fn peek_second(&self) -> Option<Kind> {
        if self.at + 1 < self.op.rest.end as usize { Some(self.tokens[self.at + 1].kind) } else { None }
    }

    /// Where the cursor is: the next token, or the end of the op.
    pub(crate) fn here(&self) -> Span {
        match self.token() {
            Some(token) => token.span,
            None => {
                let end = self.tokens[self.at.max(1) - 1].span.end;
                Span { start: end, end }
            }
        }
    }

    fn found(&self) -> String {
        match self.token() {
            Some(token) if token.kind == Kind::Hole => {
                format!("`{}`, a hole of a text template; it must be filled in first", self.text(token))
            }
            Some(token) if token.kind == Kind::Opaque => "opaque text".to_owned(),
            Some(token) => format!("`{}`", self.text(token)),
            None => "the end of the op".to_owned(),
        }
    }

    /// A refusal at the cursor that says what was found.
    pub(crate) fn expected<T>(&self, legal: &str) -> Built<T> {
        refuse(self.here(), format!("`{}`: expected {legal}, found {}", self.name(), self.found()))
    }

    pub(crate) fn accept(&mut self, kind: Kind) -> bool {
        let is = self.peek() == Some(kind);
        self.at += usize::from(is);
        is
    }

    pub(crate) fn expect(&mut self, kind: Kind) -> Built<Token> {
        match self.token() {
            Some(token) if token.kind == kind => {
                self.at += 1;
                Ok(token)
            }
            _ => self.expected(kind.describe()),
        }
    }

    /// Whether the next token is this word; if so it is taken.
    pub(crate) fn accept_word(&mut self, word: &str) -> bool {
        let is = self.token().is_some_and(|token| token.kind == Kind::Word && self.text(token) == word);
        self.at += usize::from(is);
        is
    }

    pub(crate) fn expect_word(&mut self, word: &str) -> Built<()> {
        if self.accept_word(word) { Ok(()) } else { self.expected(&format!("`{word}`")) }
    }

    /// Any word, with where it is.
    pub(crate) fn word(&mut self, legal: &str) -> Built<(&'m str, Span)> {
        match self.token() {
            Some(token) if token.kind == Kind::Word => {
                self.at += 1;
                Ok((self.text(token), token.span))
            }
            _ => self.expected(legal),
        }
    }

    /// A `%name`, without the sign.
    pub(crate) fn value_name(&mut self) -> Built<(&'m str, Span)> {
        let token = self.expect(Kind::Value)?;
        Ok((&self.text(token)[1..], token.span))
    }

    /// An `@name`, without the sign.
    pub(crate) fn symbol(&mut self) -> Built<(&'m str, Span)> {
        let token = self.expect(Kind::Symbol)?;
        Ok((&self.text(token)[1..], token.span))
    }

    /// An integer that fits 64 bits, signed.
    pub(crate) fn int(&mut self) -> Built<(i64, Span)> {
        let token = self.expect(Kind::Int)?;
        match parse_int(self.text(token)) {
            Some(value) => Ok((value, token.span)),
            None => refuse(token.span, format!("`{}` does not fit a signed 64-bit integer", self.text(token))),
        }
    }

    /// A quoted string, unescaped.
    pub(crate) fn string(&mut self) -> Built<String> {
        let token = self.expect(Kind::Str)?;
        unescape(self.text(token)).ok_or_else(|| {
            Refusal::At(token.span, "a `\\u` escape in this string is half of a surrogate pair".to_owned())
        })
    }

    /// The region that opens here.
    pub(crate) fn region(&mut self) -> Built<&'m Region> {
        if self.peek() == Some(Kind::BraceOpen) {
            let regions = &self.op.regions;
            if let Ok(at) = regions.binary_search_by_key(&(self.at as u32), |region| region.open) {
                self.at = regions[at].close as usize + 1;
                return Ok(&regions[at]);
            }
        }
        self.expected("a region `{ .. }`")
    }

    /// Skips one token, or one bracketed group.
    pub(crate) fn skip_group(&mut self) -> Built<()> {
        let mut depth = 0usize;
        loop {
            let Some(token) = self.token() else {
                return self.expected("a closing bracket");
            };
            self.at += 1;
            match token.kind {
                Kind::ParenOpen | Kind::BracketOpen | Kind::BraceOpen | Kind::Less => depth += 1,
                Kind::ParenClose | Kind::BracketClose | Kind::BraceClose | Kind::Greater => {
                    depth = depth.saturating_sub(1);
                }
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// How many parts are left of the op, between commas outside brackets.
    pub(crate) fn parts_left(&self) -> usize {
        let mut ahead = self.clone();
        let mut parts = 1;
        while let Some(kind) = ahead.peek() {
            parts += usize::from(kind == Kind::Comma);
            if ahead.skip_group().is_err() {
                break;
            }
        }
        parts
    }

    /// One attribute value.
    pub(crate) fn attribute(&mut self) -> Built<(Attribute<'m>, Span)> {
        let Some(token) = self.token() else {
            return self.expected("an attribute value");
        };
        let text = self.text(token);
        let value = match token.kind {
            Kind::Int => {
                return self.int().map(|(value, span)| (Attribute::Int(value), span));
            }
            Kind::Float => Attribute::Float(parse_float(text)),
            Kind::Str => {
                return self.string().map(|text| (Attribute::Text(text), token.span));
            }
            Kind::Word if self.peek_second() != Some(Kind::ParenOpen) => Attribute::Word(text),
            Kind::OpName => Attribute::Word(text),
            Kind::Word | Kind::Hash => {
                self.at += 1;
                if matches!(self.peek(), Some(Kind::ParenOpen | Kind::Less)) {
                    self.skip_group()?;
                }
                return Ok((Attribute::Other, token.span));
            }
            Kind::Symbol | Kind::Value => Attribute::Other,
            Kind::BracketOpen | Kind::BraceOpen => {
                self.skip_group()?;
                return Ok((Attribute::Other, token.span));
            }
            _ => return self.expected("an attribute value"),
        };
        self.at += 1;
        Ok((value, token.span))
    }

    /// An optional `{key = value, ..}`; absent is empty.
    pub(crate) fn dictionary(&mut self) -> Built<Vec<Entry<'m>>> {
        let mut entries: Vec<Entry<'m>> = Vec::new();
        if !self.accept(Kind::BraceOpen) || self.accept(Kind::BraceClose) {
            return Ok(entries);
        }
        loop {
            let (key, span) = self.word("an attribute name")?;
            if entries.iter().any(|entry| entry.key == key) {
                return refuse(span, format!("`{}`: attribute `{key}` is given twice", self.name()));
            }
            if entries.len() == MAX_ATTRIBUTES {
                return refuse(span, format!("`{}`: more than {MAX_ATTRIBUTES} attributes", self.name()));
            }
            self.expect(Kind::Equal)?;
            let (value, value_span) = self.attribute()?;
            entries.push(Entry { key, span, value, value_span });
            if !self.accept(Kind::Comma) {
                self.expect(Kind::BraceClose)?;
                return Ok(entries);
            }
        }
    }

    /// One keyword in `<..>`, mapped by `find`. `legal` lists the keywords.
    pub(crate) fn keyword<T>(&mut self, legal: &str, find: impl Fn(&str) -> Option<T>) -> Built<T> {
        self.expect(Kind::Less)?;
        let keyword = self.choose(legal, find)?;
        self.expect(Kind::Greater)?;
        Ok(keyword)
    }

    /// One keyword, mapped by `find`.
    pub(crate) fn choose<T>(&mut self, legal: &str, find: impl Fn(&str) -> Option<T>) -> Built<T> {
        let (word, span) = self.word(legal)?;
        match find(word) {
            Some(found) => Ok(found),
            None => refuse(span, format!("`{}`: expected {legal}, found `{word}`", self.name())),
        }
    }

    /// The op must end here, but for a `loc(..)`.
    pub(crate) fn end(&mut self) -> Built<()> {
        if self.token().is_some_and(|token| token.kind == Kind::Word && self.text(token) == "loc")
            && self.peek_second() == Some(Kind::ParenOpen)
        {
            self.at += 1;
            self.skip_group()?;
        }
        if self.token().is_some() { self.expected("the end of the op") } else { Ok(()) }
    }
}

/// The value of an integer token, if it fits.
pub(crate) fn parse_int(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    // Rust would take a second sign.
    if !digits.starts_with(|char: char| char.is_ascii_digit()) {
        return None;
    }
    let magnitude = match digits.strip_prefix("0x") {
        Some(hex) => i128::from(u64::from_str_radix(hex, 16).ok()?),
        None => digits.parse::<i128>().ok()?,
    };
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// The value of a float token.
pub(crate) fn parse_float(text: &str) -> f64 {
    match text {
        "-inf" => f64::NEG_INFINITY,
        "-nan" => f64::NAN,
        // The lexer's floats are a subset of Rust's.
        _ => text.parse().unwrap_or(f64::NAN),
    }
}

/// The content of a string token whose escapes the lexer has checked.
fn unescape(quoted: &str) -> Option<String> {
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    let mut high: Option<u32> = None;
    while let Some(char) = chars.next() {
        let char = if char != '\\' {
            char
        } else {
            match chars.next()? {
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let unit = u32::from_str_radix(&digits, 16).ok()?;
                    match (high.take(), unit) {
                        (None, 0xd800..=0xdbff) => {
                            high = Some(unit);
                            continue;
                        }
                        (Some(first), 0xdc00..=0xdfff) => {
                            char::from_u32(0x10000 + ((first - 0xd800) << 10) + (unit - 0xdc00))?
                        }
                        (Some(_), _) => return None,
                        (None, _) => char::from_u32(unit)?,
                    }
                }
                other => other,
            }
        };
        if high.is_some() {
            return None;
        }
        text.push(char);
    }
    high.is_none().then_some(text)
}
