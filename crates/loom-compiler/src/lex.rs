//! Text to tokens.
//!
//! - Outside strings and comments only ASCII is legal; whitespace only separates.
//! - A name ends before `->`, so `%a->` is `%a` then `->`.
//! - `0x` without a hex digit behind it is the integer 0 and a word, since it may stand in a shape (`0xindex`); a shape
//!   is read again from the text by `reader`, with its own rules.
//! - Target assembly and other sections whose ops are not ours (`asm { .. }`, the braces of `low.*`, `pipeline.*`, `pass.*` at
//!   the top level) are one opaque token each: it is kept as it is, and nothing in it has to be a token of the language.
//! - `@UPPER_CASE@` is a hole of a text template: a token, so that the rest can be read, but legal nowhere.
//! - Not here: values of literals, which depend on where they stand.

use crate::diag::Diagnostics;
use crate::ir::Span;

/// What a token is. Its text is the source at its span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier without a dot.
    Word,
    /// An identifier with a dot.
    OpName,
    /// `%name`.
    Value,
    /// `@name`.
    Symbol,
    /// `#name`.
    Hash,
    /// `^name`.
    Label,
    /// A decimal or hexadecimal integer.
    Int,
    /// A decimal float, `-inf` or `-nan`.
    Float,
    /// A quoted string.
    Str,
    ParenOpen,
    ParenClose,
    BraceOpen,
    BraceClose,
    BracketOpen,
    BracketClose,
    Less,
    Greater,
    Equal,
    Colon,
    Comma,
    Pipe,
    Arrow,
    /// `{ .. }` whose content is not read.
    Opaque,
    /// `@NAME@`: what a text template leaves to be filled in.
    Hole,
}

impl Kind {
    /// For messages: what is expected, in the language's own signs.
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::Word => "a word",
            Self::OpName => "an op name",
            Self::Value => "a value `%name`",
            Self::Symbol => "a symbol `@name`",
            Self::Hash => "a `#name`",
            Self::Label => "a label `^name`",
            Self::Int => "an integer",
            Self::Float => "a float",
            Self::Str => "a string",
            Self::ParenOpen => "`(`",
            Self::ParenClose => "`)`",
            Self::BraceOpen => "`{`",
            Self::BraceClose => "`}`",
            Self::BracketOpen => "`[`",
            Self::BracketClose => "`]`",
            Self::Less => "`<`",
            Self::Greater => "`>`",
            Self::Equal => "`=`",
            Self::Colon => "`:`",
            Self::Comma => "`,`",
            Self::Pipe => "`|`",
            Self::Arrow => "`->`",
            Self::Opaque => "opaque text in braces",
            Self::Hole => "a hole `@NAME@`",
        }
    }
}

/// One token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) span: Span,
}

const fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte == b'$'
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte == b'-'
}

/// The end of a run of name bytes (and dots, if `dots`) from `at`, stopping before `->`.
fn name_end(bytes: &[u8], mut at: usize, dots: bool) -> usize {
    while let Some(&byte) = bytes.get(at) {
        let inside = is_name_byte(byte) || (dots && byte == b'.');
        if !inside || (byte == b'-' && bytes.get(at + 1) == Some(&b'>')) {
            break;
        }
        at += 1;
    }
    at
}

fn digits_end(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at
}

/// A number whose digits begin at `at`: its kind and end.
fn number(bytes: &[u8], at: usize) -> (Kind, usize) {
    if bytes[at] == b'0' && bytes.get(at + 1) == Some(&b'x') && bytes.get(at + 2).is_some_and(u8::is_ascii_hexdigit) {
        let mut end = at + 2;
        while bytes.get(end).is_some_and(u8::is_ascii_hexdigit) {
            end += 1;
        }
        return (Kind::Int, end);
    }
    let mut end = digits_end(bytes, at);
    let mut kind = Kind::Int;
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        kind = Kind::Float;
        end = digits_end(bytes, end + 1);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        if bytes.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
            kind = Kind::Float;
            end = digits_end(bytes, end + 1 + sign);
        }
    }
    (kind, end)
}

/// The end of the string whose opening quote is at `at`, or where it goes wrong and why.
fn string(bytes: &[u8], at: usize) -> Result<usize, (usize, &'static str)> {
    let mut end = at + 1;
    loop {
        match bytes.get(end) {
            None => return Err((end, "the text ends inside a string; a string ends in `\"`")),
            Some(b'"') => return Ok(end + 1),
            Some(b'\\') => match bytes.get(end + 1) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => end += 2,
                Some(b'u') if bytes.len() >= end + 6 && bytes[end + 2..end + 6].iter().all(u8::is_ascii_hexdigit) => {
                    end += 6
                }
                _ => {
                    return Err((
                        end,
                        "not an escape; legal: \\\" \\\\ \\/ \\b \\f \\n \\r \\t and \\u with four hex digits",
                    ));
                }
            },
            Some(byte) if *byte < 0x20 => {
                return Err((end, "a control character inside a string; write it as an escape"));
            }
            Some(_) => end += 1,
        }
    }
}

/// Families whose top-level ops hold text that is not ours.
const OPAQUE: [&str; 7] = ["low", "pipeline", "channel", "pass", "pool", "module", "metadata"];

/// Families whose top-level ops are read.
const READ: [&str; 8] = ["kernel", "func", "template", "config", "check", "command", "global", "target"];

/// The end of the braces that open at `at`, if they are closed. Strings and comments may hold braces.
fn braces_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0usize;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => match string(bytes, at) {
                Ok(end) => at = end - 1,
                Err((end, _)) => at = end.max(at + 1) - 1,
            },
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len() - at, |line| line);
            }
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Whether the last token is the word `asm`.
fn follows_asm(source: &str, tokens: &[Token]) -> bool {
    tokens.last().is_some_and(|token| &source[token.span.start as usize..token.span.end as usize] == "asm")
}

/// The end of the word that begins with the hole `@NAME@` at `at`, if there is one.
fn hole_end(bytes: &[u8], at: usize) -> Option<usize> {
    let is_hole = |byte: &&u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || **byte == b'_';
    let length = bytes[at + 1..].iter().take_while(is_hole).count();
    let end = at + 1 + length;
    // What stands behind it without a space belongs to the same word: `@EXTENT@xf32`, `@WIDTH@.0`.
    (length > 0 && bytes.get(end) == Some(&b'@')).then(|| name_end(bytes, end + 1, true))
}

/// The tokens of `source`; what is no token is reported and left out.
pub(crate) fn lex(source: &str, diagnostics: &mut Diagnostics) -> Vec<Token> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::with_capacity(bytes.len() / 4);
    // A byte order mark before the text says what it is written in, and nothing else.
    let mut at = if source.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    // Whether the top-level op that is being read is one whose braces are opaque, and how many braces are open.
    let (mut opaque, mut depth) = (false, 0usize);
    // Once a brace was found to be open at the end, the text is refused anyhow, and looking again would take its time.
    let mut closed = true;
    while let Some(&byte) = bytes.get(at) {
        if diagnostics.is_full() {
            break;
        }
        let next = bytes.get(at + 1).copied();
        let (kind, end) = match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {
                at += 1;
                continue;
            }
            b'/' if next == Some(b'/') => {
                at = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |line| at + line);
                continue;
            }
            b'(' => (Kind::ParenOpen, at + 1),
            b')' => (Kind::ParenClose, at + 1),
            b'{' => {
                let skipped = closed && (opaque && depth == 0 || follows_asm(source, &tokens));
                match skipped.then(|| braces_end(bytes, at)) {
                    Some(Some(end)) => (Kind::Opaque, end),
                    none => {
                        closed &= none.is_none();
                        depth += 1;
                        (Kind::BraceOpen, at + 1)
                    }
                }
            }
            b'}' => {
                depth = depth.saturating_sub(1);
                (Kind::BraceClose, at + 1)
            }
            b'[' => (Kind::BracketOpen, at + 1),
            b']' => (Kind::BracketClose, at + 1),
            b'<' => (Kind::Less, at + 1),
            b'>' => (Kind::Greater, at + 1),
            b'=' => (Kind::Equal, at + 1),
            b':' => (Kind::Colon, at + 1),
            b',' => (Kind::Comma, at + 1),
            b'|' => (Kind::Pipe, at + 1),
            b'-' if next == Some(b'>') => (Kind::Arrow, at + 2),
            b'-' if next.is_some_and(|byte| byte.is_ascii_digit()) => number(bytes, at + 1),
            b'-' if matches!(&bytes[at + 1..name_end(bytes, at + 1, true)], b"inf" | b"nan") => (Kind::Float, at + 4),
            b'0'..=b'9' => number(bytes, at),
            b'%' if next.is_some_and(is_name_byte) => (Kind::Value, name_end(bytes, at + 1, false)),
            b'@' if hole_end(bytes, at).is_some() => (Kind::Hole, hole_end(bytes, at).unwrap_or(at + 1)),
            b'@' if next.is_some_and(|byte| is_name_byte(byte) || byte == b'.') => {
                (Kind::Symbol, name_end(bytes, at + 1, true))
            }
            b'#' if next.is_some_and(is_word_start) => (Kind::Hash, name_end(bytes, at + 1, true)),
            b'^' if next.is_some_and(is_name_byte) => (Kind::Label, name_end(bytes, at + 1, false)),
            b'"' => match string(bytes, at) {
                Ok(end) => (Kind::Str, end),
                Err((end, message)) => {
                    diagnostics.push(source, Span { start: end as u32, end: end as u32 }, message);
                    at = bytes[end..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |line| end + line);
                    continue;
                }
            },
            _ if is_word_start(byte) => {
                let end = name_end(bytes, at, true);
                let kind = if bytes[at..end].contains(&b'.') { Kind::OpName } else { Kind::Word };
                if depth == 0 && kind == Kind::OpName {
                    let family = source[at..end].split('.').next().unwrap_or_default();
                    opaque = OPAQUE.contains(&family) || (opaque && !READ.contains(&family));
                }
                (kind, end)
            }
            _ => {
                let char = source[at..].chars().next().map_or(1, char::len_utf8);
                let message = match byte {
                    b'%' | b'^' => "a name must follow: letters, digits, `_`, `$`, `-`",
                    b'@' => "a name must follow: letters, digits, `_`, `$`, `.`, `-`",
                    b'#' => "a name must follow that starts with a letter, `_` or `$`",
                    b'.' => "not a number; a float has digits on both sides of its point",
                    b'-' => "a number, `inf`, `nan` or `>` must follow `-`",
                    0x80.. => "only ASCII is legal outside strings and comments",
                    _ => "this character starts no token; punctuation is ( ) { } [ ] < > = : , | ->",
                };
                diagnostics.push(source, Span { start: at as u32, end: (at + char) as u32 }, message);
                at += char;
                continue;
            }
        };
        // Two identifiers are never adjacent, so a word or value right behind a name's end means a stray byte, caught above.
        if end == at {
            at += 1;
            continue;
        }
        tokens.push(Token { kind, span: Span { start: at as u32, end: end as u32 } });
        at = end;
    }
    tokens
}
