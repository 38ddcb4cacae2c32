//! What must hold of formatting, whatever the text.

use loom_compiler::Module;

use super::config;

/// What is left of a text without space outside strings, and its comments, sorted: a reading of section 1 that shares
/// nothing with the lexer.
fn squeeze(source: &str) -> (String, Vec<String>) {
    let (mut rest, mut comments) = (String::new(), Vec::new());
    let mut chars = source.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            ' ' | '\t' | '\r' | '\n' => {}
            '/' if chars.peek() == Some(&'/') => {
                let text: String =
                    std::iter::once('/').chain(chars.by_ref().take_while(|char| *char != '\n')).collect();
                comments.push(text.trim_end().to_owned());
            }
            '"' => {
                rest.push('"');
                while let Some(char) = chars.next() {
                    rest.push(char);
                    match char {
                        '\\' => rest.extend(chars.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            _ => rest.push(char),
        }
    }
    comments.sort_unstable();
    (rest, comments)
}

/// What a module means as far as can be seen: its kernels, built, or all that is wrong with them, without places.
pub fn meaning(source: &str) -> Vec<String> {
    let module = Module::parse("f.loom", source).unwrap_or_else(|why| panic!("{why}\n{source}"));
    let said = |why: loom_compiler::Diagnostics| {
        let messages = why.items.iter().map(|item| squeeze(&item.message).0);
        messages.collect::<Vec<_>>().join("\n")
    };
    let mut meaning = vec![module.verify().map_or_else(said, |()| String::new())];
    for name in module.kernels() {
        let built = module.specialise(&name, &config(&[("rows.width", "5")]));
        meaning.push(built.map_or_else(said, |kernel| kernel.to_string()));
    }
    meaning
}

/// The canonical text, of which everything that must hold is checked; nothing where the text is no module.
#[track_caller]
pub fn formatted(source: &str) -> Option<String> {
    let text = Module::parse("f.loom", source).ok()?.format();
    assert_eq!(squeeze(source), squeeze(&text), "{source}\n---\n{text}");
    assert_eq!(meaning(source), meaning(&text), "{source}\n---\n{text}");
    let again = Module::parse("f.loom", &text).unwrap().format();
    assert_eq!(text, again, "{source}");
    Some(text)
}
