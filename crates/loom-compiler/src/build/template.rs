//! Template families: which provider an apply stands for, and calls by name.
//!
//! A provider is chosen when the whole program is there and config is bound: of those with exactly these types, for this
//! target, whose every condition and requirement is proven, the one of highest priority. Its body is built in place.
//!
//! - Unproven is not false, but it is not chosen either. Where none is, the error says what is missing of each.
//! - A kernel that names no target takes providers without one first; those for some machine only if there is none, and only
//!   if their subgroups are as wide as the kernel's.
//! - In [`Mode::Verify`] nothing is chosen: types are looked at, and the results are unknown.

use crate::diag::{Built, Refusal, refuse};
use crate::ir::Span;
use crate::lex::Kind;
use crate::module::Module;
use crate::reader::Reader;
use crate::syntax;

use super::config::Predicate;
use super::names::Binding;
use super::passed::{Passed, fit};
use super::{Builder, MAX_CALL_DEPTH, MAX_OPS, Mode};

/// What stands before the symbol of a function or template, as far as it decides something.
#[derive(Default)]
pub(super) struct Head<'m> {
    target: Option<&'m str>,
    /// `requires [..]`: the widths of subgroups, or the text of what is not known here.
    requires: Vec<Result<i64, String>>,
    priority: i64,
}

/// Whether a provider may be chosen.
enum Verdict {
    /// With this priority, and whether it is for a target of its own.
    Proven { priority: i64, targeted: bool },
    /// Why not.
    Unproven(String),
}

impl<'m> Builder<'m> {
    /// `template.*` inside a body.
    pub(super) fn template_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        match op {
            "apply" => self.apply(reader),
            "call" => {
                self.modifiers(reader, &["pure", "hot", "cold", "inline", "noinline"]);
                let (callee, span) = reader.symbol()?;
                let (arguments, results) = self.call_operands(reader)?;
                self.call(callee, span, &arguments, &results, &["template.def", "func.template"])
            }
            _ => self.unknown(reader, "template.apply, template.call, template.return"),
        }
    }

    /// `template.apply<@family>(..)`, `func.apply<key>(..)`.
    pub(super) fn apply(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        reader.expect(Kind::Less)?;
        let symbol = reader.name() == "template.apply";
        let family = match reader.token() {
            Some(token) if symbol && token.kind == Kind::Symbol => token,
            Some(token) if !symbol && matches!(token.kind, Kind::Word | Kind::OpName) => token,
            _ => return reader.expected(if symbol { "a family `@name`" } else { "a key such as `a.contract`" }),
        };
        reader.at += 1;
        reader.expect(Kind::Greater)?;
        self.modifiers(reader, &["pure"]);
        let (arguments, results) = self.call_operands(reader)?;
        self.select(reader.text(family), family.span, &arguments, &results)
    }

    fn select(
        &mut self,
        family: &'m str,
        span: Span,
        arguments: &[Binding],
        results: &[Passed<'m>],
    ) -> Built<Vec<Binding>> {
        let module: &'m Module = self.module;
        if let Some(symbol) = family.strip_prefix('@') {
            let Some(op) = module.symbols.get(symbol).map(|at| &module.ops[*at]) else {
                return refuse(span, format!("`{family}` is not defined; a family is declared by `template.decl`"));
            };
            let kind = module.op_name(op);
            if kind != "template.decl" {
                return refuse(span, format!("`{family}` is a `{kind}`; a family is declared by `template.decl`"));
            }
            let (head, mismatch, conditions) = self.match_signature(op, arguments, results)?;
            if let Some(why) = mismatch {
                return refuse(span, format!("`{family}` is declared otherwise: {why}"));
            }
            if let Some(why) = self.unmet(&head).filter(|_| self.mode == Mode::Specialise) {
                return refuse(span, format!("`{family}` cannot be applied here: {why}"));
            }
            self.demanded(&conditions, span)?;
        }
        let providers: &'m [usize] = module.providers.get(family).map_or(&[], Vec::as_slice);
        let providers = providers.iter().map(|at| &module.ops[*at]);
        let name = |op: &'m syntax::Op| module.symbol_of(op).map_or("", |(symbol, _)| symbol);
        if self.mode == Mode::Verify {
            return self.unknown_results(results);
        }
        let mut missing = Vec::new();
        let mut proven = Vec::new();
        for op in providers {
            match self.verdict(op, arguments, results)? {
                Verdict::Proven { priority, targeted } => proven.push((targeted, priority, op)),
                Verdict::Unproven(why) => missing.push(format!("`@{}`: {why}", name(op))),
            }
        }
        if self.target.is_none() && proven.iter().any(|(targeted, ..)| !targeted) {
            proven.retain(|(targeted, ..)| !targeted);
        }
        let best = proven.iter().map(|(_, priority, _)| *priority).max();
        let mut chosen = proven.into_iter().filter(|(_, priority, _)| Some(*priority) == best).map(|(.., op)| op);
        let Some(op) = chosen.next() else {
            let message = if missing.is_empty() {
                format!("`{family}` has no provider in this text or in what is linked to it")
            } else {
                format!("no provider of `{family}` can be chosen here: {}", missing.join("; "))
            };
            return refuse(span, message);
        };
        if let Some(other) = chosen.next() {
            let message = format!(
                "`@{}` and `@{}` both provide `{family}` here with priority {}; one must be higher",
                name(op),
                name(other),
                best.unwrap_or_default()
            );
            return refuse(span, message);
        }
        self.inline(op, name(op), span, arguments, results)
    }

    /// Whether a provider may be chosen for these arguments.
    fn verdict(&mut self, op: &'m syntax::Op, arguments: &[Binding], results: &[Passed<'m>]) -> Built<Verdict> {
        let unproven = |why: String| Ok(Verdict::Unproven(why));
        // Looking at a provider is work like building an op.
        self.built += 1;
        if self.built > MAX_OPS {
            return refuse(self.span, format!("more than {MAX_OPS} ops and providers are looked at for this kernel"));
        }
        let kind = self.module.op_name(op);
        if !matches!(kind, "template.def" | "func.template") {
            return unproven(format!("a `{kind}` has no body that is compiled here"));
        }
        let (head, mismatch, conditions) = self.match_signature(op, arguments, results)?;
        if let Some(why) = mismatch {
            return unproven(why);
        }
        if let Some(target) = head.target
            && let Some(why) = self.incompatible(target)
        {
            return unproven(why);
        }
        if let Some(why) = self.unmet(&head) {
            return unproven(why);
        }
        match conditions.into_iter().find(|(_, proven)| *proven != Some(true)) {
            Some((predicate, Some(_))) => unproven(format!("`{}` does not hold", predicate.text)),
            Some((predicate, None)) => unproven(format!("`{}` is not proven", predicate.text)),
            None => Ok(Verdict::Proven { priority: head.priority, targeted: head.target.is_some() }),
        }
    }

    /// Which requirement does not hold for the kernel being built.
    fn unmet(&self, head: &Head<'m>) -> Option<String> {
        let ours = self.subgroup_size;
        head.requires.iter().find_map(|required| match required {
            Ok(size) if *size == i64::from(ours) => None,
            Ok(size) => Some(format!("it requires subgroups of {size} work-items, these have {ours}")),
            Err(text) => Some(format!("its requirement `{text}` is not known here")),
        })
    }

    /// Why code for `target` is not taken for the kernel being built.
    fn incompatible(&self, target: &str) -> Option<String> {
        if self.target == Some(target) {
            return None;
        }
        let module = self.module;
        let record = |symbol: &str| module.symbols.get(symbol).map(|at| &module.ops[*at]);
        let Some(op) = record(target) else {
            return Some(format!("its target `@{target}` is not defined"));
        };
        if module.op_name(op).starts_with("aie2p") {
            return Some(format!("its target `@{target}` is an NPU"));
        }
        if let Some(size) = module.record_subgroups(op)
            && size != i64::from(self.subgroup_size)
        {
            let ours = self.subgroup_size;
            return Some(format!("`@{target}` has subgroups of {size} work-items, the kernel {ours}"));
        }
        let ours = self.target.and_then(record)?;
        // `gfx11-generic` runs on every machine whose name begins with `gfx11`.
        let covers = |a: &str, b: &str| a == b || a.strip_suffix("-generic").is_some_and(|stem| b.starts_with(stem));
        let (theirs, mine) = (module.selector(op), module.selector(ours));
        let fits = module.op_name(op) == module.op_name(ours) && (covers(theirs, mine) || covers(mine, theirs));
        (!fits).then(|| format!("it is for `@{target}`, not for the kernel's target"))
    }

    /// The head of a function or template, what is wrong with its types for these arguments, and its conditions with
    /// whether they hold of them.
    #[expect(clippy::type_complexity, reason = "three answers of one reading, taken apart at once")]
    fn match_signature(
        &mut self,
        op: &'m syntax::Op,
        arguments: &[Binding],
        results: &[Passed<'m>],
    ) -> Built<(Head<'m>, Option<String>, Vec<(Predicate<'m>, Option<bool>)>)> {
        let span = self.span;
        self.isolated(|builder| {
            let mut reader = builder.reader(op);
            let head = builder.head(&mut reader)?;
            let signature = builder.signature(&mut reader)?;
            if let Some(why) = builder.parameters_taken(&reader, &signature, arguments)? {
                return Ok((head, Some(why), Vec::new()));
            }
            let declared = builder.passed_types(&mut reader)?;
            if !fit(&declared, results) {
                return Ok((head, Some("its results have other types".to_owned()), Vec::new()));
            }
            let mut conditions = Vec::new();
            if reader.accept_word("where") {
                let predicates = builder.predicates(&mut reader)?;
                conditions.extend(predicates.iter().map(|predicate| (predicate.clone(), builder.proven(predicate))));
                // What is only declared makes no choice: its conditions are those of every call.
                if reader.name().ends_with(".decl") && conditions.iter().all(|(_, proven)| *proven != Some(false)) {
                    builder.promise(&predicates);
                }
            }
            builder.span = span;
            Ok((head, None, conditions))
        })
    }

    /// Everything before a function's symbol, and the symbol.
    pub(super) fn head(&mut self, reader: &mut Reader<'m>) -> Built<Head<'m>> {
        let mut head = Head { target: self.module.target_of(reader.op), ..Head::default() };
        while reader.peek().is_some_and(|kind| kind != Kind::Symbol) {
            if reader.accept_word("requires") {
                reader.expect(Kind::BracketOpen)?;
                while !reader.accept(Kind::BracketClose) {
                    let start = reader.here();
                    let known = reader.expect(Kind::Hash).map(|token| reader.text(token) == "#target.subgroup.size")?;
                    let mut number = None;
                    if reader.accept(Kind::Less) {
                        while !reader.accept(Kind::Greater) {
                            match reader.attribute()? {
                                (crate::reader::Attribute::Int(int), _) => number = Some(int),
                                _ => number = None,
                            }
                            reader.accept(Kind::Comma);
                        }
                    }
                    let end = reader.tokens[reader.at - 1].span.end;
                    let text = reader.source.get(start.start as usize..end as usize).unwrap_or_default();
                    head.requires.push(number.filter(|_| known).ok_or_else(|| text.to_owned()));
                    reader.accept(Kind::Comma);
                }
            } else if reader.accept_word("priority") {
                reader.expect(Kind::ParenOpen)?;
                head.priority = reader.int()?.0;
                reader.expect(Kind::ParenClose)?;
            } else {
                reader.skip_group()?;
            }
        }
        reader.symbol()?;
        Ok(head)
    }

    /// Calls by name: builds the body of `callee` here. `legal` are the kinds of definitions that may be meant.
    pub(super) fn call(
        &mut self,
        callee: &'m str,
        span: Span,
        arguments: &[Binding],
        results: &[Passed<'m>],
        legal: &[&str],
    ) -> Built<Vec<Binding>> {
        let module: &'m Module = self.module;
        let Some(op) = module.symbols.get(callee).map(|at| &module.ops[*at]) else {
            return refuse(span, format!("`@{callee}` is not defined in this text, nor in what is linked to it"));
        };
        let kind = module.op_name(op);
        if kind == "func.decl" && legal.contains(&"func.def") {
            let (_, mismatch, conditions) = self.match_signature(op, arguments, results)?;
            if let Some(why) = mismatch {
                return refuse(span, format!("`@{callee}` is declared otherwise: {why}"));
            }
            self.demanded(&conditions, span)?;
            if self.mode == Mode::Verify {
                return self.unknown_results(results);
            }
            return refuse(span, format!("`@{callee}` is only declared; no text that is linked defines it"));
        }
        if kind.starts_with("low.") {
            return refuse(span, format!("`@{callee}` is a `{kind}`: target assembly is not compiled here"));
        }
        if !legal.contains(&kind) {
            return refuse(span, format!("`@{callee}` is a `{kind}`; a call needs a `{}`", legal[0]));
        }
        self.inline(op, callee, span, arguments, results)
    }

    /// Builds the body of `op`, whose symbol is `name`, here.
    fn inline(
        &mut self,
        op: &'m syntax::Op,
        name: &'m str,
        span: Span,
        arguments: &[Binding],
        results: &[Passed<'m>],
    ) -> Built<Vec<Binding>> {
        if self.calls.contains(&name) {
            return refuse(span, format!("`@{name}` calls itself; recursion is not legal in a kernel"));
        }
        if self.calls.len() == MAX_CALL_DEPTH {
            return refuse(span, format!("calls are nested deeper than {MAX_CALL_DEPTH}"));
        }
        self.calls.push(name);
        let outer = (std::mem::take(&mut self.names), self.span);
        let built = self.function_body(op, span, Some((arguments, results)));
        (self.names, self.span) = outer;
        self.calls.pop();
        built
    }

    /// Whether what is built here may stand in a branch that never runs: in [`Mode::Verify`] these are built too.
    fn may_be_dead(&self) -> bool {
        self.mode == Mode::Verify && self.open.len() > 1
    }

    /// Conditions of a declaration: known not to hold, they are an error at `span`.
    fn demanded(&self, conditions: &[(Predicate<'m>, Option<bool>)], span: Span) -> Built<()> {
        match conditions.iter().find(|(_, proven)| *proven == Some(false) && !self.may_be_dead()) {
            Some((broken, _)) => refuse(span, format!("this call breaks the condition `{}`", broken.text)),
            None => Ok(()),
        }
    }

    /// The preconditions of what is called, read from `reader`: known not to hold, they are an error at `span`; else they are
    /// believed.
    pub(super) fn preconditions(&mut self, reader: &mut Reader<'m>, span: Span) -> Built<()> {
        if !reader.accept_word("where") {
            return Ok(());
        }
        let predicates = self.predicates(reader)?;
        let broken = |predicate: &&Predicate<'m>| self.proven(predicate) == Some(false) && !self.may_be_dead();
        if let Some(broken) = predicates.iter().find(broken) {
            return Err(Refusal::At(span, format!("this call breaks the condition `{}`", broken.text)));
        }
        self.promise(&predicates);
        Ok(())
    }
}
