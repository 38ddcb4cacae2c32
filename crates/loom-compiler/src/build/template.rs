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
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::module::Module;
use crate::reader::Reader;
use crate::syntax;
use crate::types::Type;

use super::config::Predicate;
use super::names::{Binding, Layout};
use super::types::same;
use super::{Builder, MAX_CALL_DEPTH, Mode};

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
                let (arguments, types) = self.call_operands(reader)?;
                self.call(callee, span, &arguments, &types, &["template.def", "func.template"])
            }
            _ => self.unknown(reader, "template.apply, template.call, template.return"),
        }
    }

    /// `(%a, ..) [pure] : (T, ..) [-> (T, ..)]` and the end of the op.
    pub(super) fn call_operands(&mut self, reader: &mut Reader<'m>) -> Built<(Vec<ValueId>, Vec<Type>)> {
        reader.expect(Kind::ParenOpen)?;
        let mut arguments = Vec::new();
        if !reader.accept(Kind::ParenClose) {
            arguments = self.operands(reader)?;
            reader.expect(Kind::ParenClose)?;
        }
        self.modifiers(reader, &["pure"]);
        reader.expect(Kind::Colon)?;
        reader.expect(Kind::ParenOpen)?;
        self.all_typed(reader, arguments.iter().map(|(argument, _)| *argument))?;
        reader.expect(Kind::ParenClose)?;
        let types = self.result_types(reader)?;
        reader.end()?;
        Ok((arguments.into_iter().map(|(value, _)| value).collect(), types))
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
        let (arguments, types) = self.call_operands(reader)?;
        self.select(reader.text(family), family.span, &arguments, &types)
    }

    fn select(&mut self, family: &'m str, span: Span, arguments: &[ValueId], types: &[Type]) -> Built<Vec<Binding>> {
        let module: &'m Module = self.module;
        if let Some(symbol) = family.strip_prefix('@') {
            let Some(op) = module.symbols.get(symbol).map(|at| &module.ops[*at]) else {
                return refuse(span, format!("`{family}` is not defined; a family is declared by `template.decl`"));
            };
            let kind = module.op_name(op);
            if kind != "template.decl" {
                return refuse(span, format!("`{family}` is a `{kind}`; a family is declared by `template.decl`"));
            }
            if let (_, Some(why), _) = self.match_signature(op, arguments, types)? {
                return refuse(span, format!("`{family}` is declared otherwise: {why}"));
            }
        }
        let providers: &'m [usize] = module.providers.get(family).map_or(&[], Vec::as_slice);
        let providers = providers.iter().map(|at| &module.ops[*at]);
        let name = |op: &'m syntax::Op| module.symbol_of(op).map_or("", |(symbol, _)| symbol);
        if self.mode == Mode::Verify {
            return self.unknown_results(types);
        }
        let mut missing = Vec::new();
        let mut proven = Vec::new();
        for op in providers {
            match self.verdict(op, arguments, types)? {
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
        self.inline(op, name(op), span, arguments, types)
    }

    /// Whether a provider may be chosen for these arguments.
    fn verdict(&mut self, op: &'m syntax::Op, arguments: &[ValueId], types: &[Type]) -> Built<Verdict> {
        let unproven = |why: String| Ok(Verdict::Unproven(why));
        let kind = self.module.op_name(op);
        if !matches!(kind, "template.def" | "func.template") {
            return unproven(format!("a `{kind}` has no body that is compiled here"));
        }
        let (head, mismatch, conditions) = self.match_signature(op, arguments, types)?;
        if let Some(why) = mismatch {
            return unproven(why);
        }
        if let Some(target) = head.target
            && let Some(why) = self.incompatible(target)
        {
            return unproven(why);
        }
        for required in &head.requires {
            match required {
                Ok(size) if *size == i64::from(self.subgroup_size) => {}
                Ok(size) => {
                    let ours = self.subgroup_size;
                    return unproven(format!("it requires subgroups of {size} work-items, these have {ours}"));
                }
                Err(text) => return unproven(format!("its requirement `{text}` is not known here")),
            }
        }
        match conditions.into_iter().find(|(_, proven)| *proven != Some(true)) {
            Some((predicate, Some(_))) => unproven(format!("`{}` does not hold", predicate.text)),
            Some((predicate, None)) => unproven(format!("`{}` is not proven", predicate.text)),
            None => Ok(Verdict::Proven { priority: head.priority, targeted: head.target.is_some() }),
        }
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
        arguments: &[ValueId],
        types: &[Type],
    ) -> Built<(Head<'m>, Option<String>, Vec<(Predicate<'m>, Option<bool>)>)> {
        let span = self.span;
        self.isolated(|builder| {
            let mut reader = builder.reader(op);
            let head = builder.head(&mut reader)?;
            let signature = builder.signature(&mut reader)?;
            if arguments.len() != signature.parameters.len() {
                let why = format!("it takes {} arguments, {} are given", signature.parameters.len(), arguments.len());
                return Ok((head, Some(why), Vec::new()));
            }
            for ((name, at), value) in signature.parameters.iter().zip(arguments) {
                builder.define(name, *at, Binding::Value(*value));
            }
            for ((at, (name, _)), value) in signature.types_at.iter().zip(&signature.parameters).zip(arguments) {
                let mut typed = reader.clone();
                typed.at = *at;
                let written = builder.plain_type(&mut typed)?;
                if !same(builder.ty(*value), &written) {
                    let why = format!("its `%{name}` is {written}, the argument is {}", builder.ty(*value));
                    return Ok((head, Some(why), Vec::new()));
                }
            }
            let declared = builder.result_types(&mut reader)?;
            if declared.len() != types.len() || !declared.iter().zip(types).all(|(a, b)| same(a, b)) {
                return Ok((head, Some("its results have other types".to_owned()), Vec::new()));
            }
            let mut conditions = Vec::new();
            if reader.accept_word("where") {
                for predicate in builder.predicates(&mut reader)? {
                    let proven = builder.proven(&predicate);
                    conditions.push((predicate, proven));
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

    /// Values of these types of which nothing is known.
    pub(super) fn unknown_results(&mut self, types: &[Type]) -> Built<Vec<Binding>> {
        let mut results = Vec::new();
        for ty in types {
            let ty = match ty {
                Type::View(view) => Type::View(self.place(view.clone(), Layout::Dense)?),
                other => other.clone(),
            };
            results.push(Binding::Value(self.new_value(ty)));
        }
        Ok(results)
    }

    /// Calls by name: builds the body of `callee` here. `legal` are the kinds of definitions that may be meant.
    pub(super) fn call(
        &mut self,
        callee: &'m str,
        span: Span,
        arguments: &[ValueId],
        types: &[Type],
        legal: &[&str],
    ) -> Built<Vec<Binding>> {
        let module: &'m Module = self.module;
        let Some(op) = module.symbols.get(callee).map(|at| &module.ops[*at]) else {
            return refuse(span, format!("`@{callee}` is not defined in this text, nor in what is linked to it"));
        };
        let kind = module.op_name(op);
        if kind == "func.decl" && legal.contains(&"func.def") {
            if let (_, Some(why), _) = self.match_signature(op, arguments, types)? {
                return refuse(span, format!("`@{callee}` is declared otherwise: {why}"));
            }
            if self.mode == Mode::Verify {
                return self.unknown_results(types);
            }
            return refuse(span, format!("`@{callee}` is only declared; no text that is linked defines it"));
        }
        if kind.starts_with("low.") {
            return refuse(span, format!("`@{callee}` is a `{kind}`: target assembly is not compiled here"));
        }
        if !legal.contains(&kind) {
            return refuse(span, format!("`@{callee}` is a `{kind}`; a call needs a `{}`", legal[0]));
        }
        self.inline(op, callee, span, arguments, types)
    }

    /// Builds the body of `op`, whose symbol is `name`, here.
    fn inline(
        &mut self,
        op: &'m syntax::Op,
        name: &'m str,
        span: Span,
        arguments: &[ValueId],
        types: &[Type],
    ) -> Built<Vec<Binding>> {
        if self.calls.contains(&name) {
            return refuse(span, format!("`@{name}` calls itself; recursion is not legal in a kernel"));
        }
        if self.calls.len() == MAX_CALL_DEPTH {
            return refuse(span, format!("calls are nested deeper than {MAX_CALL_DEPTH}"));
        }
        self.calls.push(name);
        let outer = (std::mem::take(&mut self.names), self.span);
        let built = self.function_body(op, span, Some((arguments, types)));
        (self.names, self.span) = outer;
        self.calls.pop();
        Ok(built?.into_iter().map(Binding::Value).collect())
    }

    /// The preconditions of what is called, read from `reader`: known not to hold, they are an error at `span`; else they are
    /// believed.
    pub(super) fn preconditions(&mut self, reader: &mut Reader<'m>, span: Span) -> Built<()> {
        if !reader.accept_word("where") {
            return Ok(());
        }
        let predicates = self.predicates(reader)?;
        if let Some(broken) = predicates.iter().find(|predicate| self.proven(predicate) == Some(false)) {
            return Err(Refusal::At(span, format!("this call breaks the condition `{}`", broken.text)));
        }
        self.promise(&predicates);
        Ok(())
    }
}
