//! Functions that checks call, each in a kernel of its own, so that whatever runs kernels runs functions.
//!
//! - Such a kernel has one item. It takes the function's arguments, a buffer for each view, then a buffer for each result.
//! - Its text stands behind the module's, so that places in the module's text stay what they are.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::diag::Diagnostics;
use crate::lex::Kind;
use crate::module::Module;

/// The kernel that calls function `function`.
pub(super) fn calling(function: &str) -> String {
    format!("{function}.called.by.check")
}

impl Module {
    /// A kernel for every function that a check of the text calls. One whose signature is none has no kernel: its own
    /// verification says so.
    fn callers(&self) -> String {
        let mut called = BTreeSet::new();
        for op in &self.ops {
            if !matches!(self.op_name(op), "check.case" | "check.scenario") {
                continue;
            }
            for at in op.rest.start..op.rest.end {
                if self.tokens[at as usize].kind == Kind::Symbol
                    && let Some(defined) = self.symbols.get(&self.text(at)[1..])
                    && self.op_name(&self.ops[*defined]) == "func.def"
                {
                    called.insert(*defined);
                }
            }
        }
        called.into_iter().filter_map(|at| self.caller(at)).collect()
    }

    /// The text of the kernel that calls the function that op `at` defines. `None` where its signature is none.
    fn caller(&self, at: usize) -> Option<String> {
        let op = &self.ops[at];
        let end = op.regions.first().map_or(op.rest.end, |region| region.open);
        let kind = |at: u32| (at < end).then(|| self.tokens[at as usize].kind);
        let mut depth = 0usize;
        let symbol = (op.rest.start..end).find(|at| {
            match kind(*at) {
                Some(Kind::ParenOpen) => depth += 1,
                Some(Kind::ParenClose) => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && kind(*at) == Some(Kind::Symbol)
        })?;
        let function = &self.text(symbol)[1..];
        let (parameters, behind) = self.listed(symbol + 1, end)?;
        let results = if kind(behind) == Some(Kind::Arrow) { self.listed(behind + 1, end)?.0 } else { Vec::new() };
        let (mut launch, mut views, mut values, mut types) = (Vec::new(), String::new(), Vec::new(), Vec::new());
        for parameter in &parameters {
            let (name, ty) = parameter.split_once(':')?;
            let (name, ty) = (name.trim(), ty.trim());
            if ty.starts_with("view") {
                launch.push(format!("{name}-bytes: buffer"));
                let _ = writeln!(views, "  {name} = buffer.view {name}-bytes[%check-zero] : buffer -> {ty}");
            } else {
                launch.push(format!("{name}: {ty}"));
            }
            values.push(name);
            types.push(ty);
        }
        let (mut names, mut stores) = (Vec::new(), String::new());
        for (at, ty) in results.iter().enumerate() {
            launch.push(format!("%check-out{at}: buffer"));
            names.push(format!("%check-result{at}"));
            let (stored, value) = if ty == "i1" {
                let _ = writeln!(stores, "  %check-wide{at} = scalar.extui %check-result{at} : i1 to i8");
                ("i8", format!("%check-wide{at}"))
            } else {
                (ty.as_str(), format!("%check-result{at}"))
            };
            let _ = writeln!(
                stores,
                "  %check-view{at} = buffer.view %check-out{at}[%check-zero] : buffer -> view<1x{stored}>\n  \
                 view.store {value}, %check-view{at}[0] : {stored}, view<1x{stored}>"
            );
        }
        let (named, given) = if results.is_empty() {
            (String::new(), String::new())
        } else {
            (format!("{} = ", names.join(", ")), format!(" -> ({})", results.join(", ")))
        };
        Some(format!(
            "kernel.def @{kernel}() {{\n  %one = index.constant 1 : index\n  \
             kernel.launch.config workgroups(%one, %one, %one) workgroup_size(%one, %one, %one) : index\n\
             }} launch({launch}) {{\n  %check-zero = index.constant 0 : offset\n{views}  \
             {named}func.call @{function}({values}) : ({types}){given}\n{stores}  kernel.return\n}}\n",
            kernel = calling(function),
            launch = launch.join(", "),
            values = values.join(", "),
            types = types.join(", "),
        ))
    }

    /// The texts between `(`, commas and `)` from token `at` on, and the token behind. One type alone needs no brackets.
    fn listed(&self, at: u32, end: u32) -> Option<(Vec<String>, u32)> {
        let text = |from: u32, to: u32| {
            let (from, to) = (self.tokens[from as usize].span.start, self.tokens[to as usize].span.end);
            self.source[from as usize..to as usize].to_owned()
        };
        if at >= end || self.tokens[at as usize].kind != Kind::ParenOpen {
            return (at < end).then(|| (vec![text(at, at)], at + 1));
        }
        let (mut items, mut depth, mut from) = (Vec::new(), 0usize, at + 1);
        for token in at..end {
            match self.tokens[token as usize].kind {
                Kind::ParenOpen | Kind::Less | Kind::BracketOpen => depth += 1,
                Kind::Greater | Kind::BracketClose => depth = depth.saturating_sub(1),
                Kind::Comma if depth == 1 => {
                    items.push(text(from, token - 1));
                    from = token + 1;
                }
                Kind::ParenClose => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        if from < token {
                            items.push(text(from, token - 1));
                        }
                        return Some((items, token + 1));
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// A text whose cases are to be run, linked with what it reaches in `libraries`, and with a kernel more for every
    /// function that a case of it calls: what targets are made of.
    ///
    /// # Errors
    /// As [`Module::parse`] and [`Module::link`].
    pub fn with_cases(name: &str, source: &str, libraries: &[&Self]) -> Result<Self, Diagnostics> {
        let linked = Self::parse(name, source)?.link(libraries)?;
        let callers = linked.callers();
        if callers.is_empty() {
            return Ok(linked);
        }
        Self::parse(name, &format!("{source}\n{callers}"))?.link(libraries)
    }
}
