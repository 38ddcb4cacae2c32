//! Several files as one, templates, facts, globals and command programs.

mod common;

use common::{Bound, config, kernel, run, single, specialise};
use loom_compiler::ir::{Kernel, ValueId};
use loom_compiler::{Diagnostics, Module};

fn parse(name: &str, text: &str) -> Module {
    Module::parse(name, text).unwrap_or_else(|why| panic!("{why}"))
}

fn linked(root: &str, libraries: &[&str]) -> Result<Module, Diagnostics> {
    let libraries: Vec<Module> =
        libraries.iter().enumerate().map(|(at, text)| parse(&format!("library{at}.loom"), text)).collect();
    parse("root.loom", root).link(&libraries.iter().collect::<Vec<_>>())
}

/// The first message of a refusal, with its place.
fn why<T>(result: Result<T, Diagnostics>) -> String {
    let Err(diagnostics) = result else {
        panic!("this is accepted");
    };
    let item = &diagnostics.items[0];
    format!("{}:{}: {}", item.file, item.line, item.message)
}

#[track_caller]
fn says<T>(result: Result<T, Diagnostics>, parts: &[&str]) {
    let message = why(result);
    for part in parts {
        assert!(message.contains(part), "{message}\nshould say: {part}");
    }
}

/// What the kernel of one work-item stores as an i32 to its only buffer.
fn stored(kernel: &Kernel) -> i32 {
    let mut bound = [Bound::zeros(4)];
    run(kernel, &[], &mut bound).expect("a run");
    bound[0].to_i32s()[0]
}

/// A kernel that stores `%r`, an index that `body` computes.
fn storing(body: &str) -> String {
    single(
        "%out: buffer",
        &format!(
            "{body}\n%r32 = index.cast %r : index to i32\n%v = buffer.view %out[%base] : buffer -> view<1xi32>\n\
             view.store %r32, %v[0] : i32, view<1xi32>"
        ),
    )
}

fn build(module: &Module) -> Result<Kernel, Diagnostics> {
    module.specialise("k", &config(&[]))
}

const CALLS: &str = "%r = func.call @f(%one) : (index) -> (index)";

fn calls_f() -> String {
    format!("func.decl @f(%a: index) -> (index)\n{}", storing(&format!("%one = index.constant 5 : index\n{CALLS}")))
}

const F: &str =
    "func.def @f(%x: index) -> (index) {\n%y = func.call @g(%x) : (index) -> (index)\nfunc.return %y : index\n}\n";
const G: &str = "func.def @g(%x: index) -> (index) {\n%y = index.add %x, %x : index\nfunc.return %y : index\n}\n";

#[test]
fn a_text_takes_from_libraries_what_it_declares_and_so_on() {
    // @f names @g without declaring it. The third library has another @g, but nobody asks for what else it has; the kernels
    // of libraries are not the text's.
    let module =
        linked(&calls_f(), &[&format!("{F}{}", storing("%r = index.constant 9 : index").replace("@k", "@other")), G])
            .unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(module.kernels(), ["k"]);
    assert_eq!(stored(&build(&module).unwrap()), 10);
    assert!(module.verify().is_ok());
    assert!(!module.format().is_empty());
    // Declared in several files, defined in one.
    let declares = format!("func.decl @g(%b: index) -> index\n{F}");
    assert_eq!(stored(&build(&linked(&calls_f(), &[&declares, G]).unwrap()).unwrap()), 10);
}

#[test]
fn what_nobody_defines_verifies_by_its_declaration_and_does_not_compile() {
    let module = parse("root.loom", &calls_f());
    assert!(module.verify().is_ok());
    says(build(&module), &["root.loom", "`@f` is only declared"]);
    says(build(&linked(&calls_f(), &[F]).unwrap()), &["library0.loom:2", "`@g` is not defined"]);
    let wrong = calls_f().replace("@f(%one) : (index) -> (index)", "@f(%one) : (index) -> (i32)");
    says(parse("root.loom", &wrong).verify(), &["`@f` is declared otherwise", "results have other types"]);
}

#[test]
fn two_definitions_are_an_error_that_names_both() {
    says(linked(&calls_f(), &[F, F, G]), &["library1.loom:1", "`@f` is defined twice", "library0.loom:1:"]);
    // One that comes in beside what was asked for.
    let both = format!("{F}{G}");
    let asks_both =
        storing(&format!("%one = index.constant 5 : index\n{CALLS}\n%s = func.call @g(%one) : (index) -> (index)"));
    says(linked(&asks_both, &[&both, G]), &["`@g` is defined twice"]);
    says(Module::parse("a.loom", &format!("{G}{G}")), &["a.loom:5", "`@g` is defined twice", "a.loom:1:1"]);
}

#[test]
fn a_declaration_says_what_the_definition_says() {
    let decl = |signature: &str| format!("func.decl @f{signature}\n{F}{G}");
    for fine in ["(%a: index) -> (index)", "(%other: index) -> index", "(%x: index) -> (index) where [lt(%x, 4)]"] {
        assert!(Module::parse("a.loom", &decl(fine)).is_ok(), "{fine}");
    }
    for wrong in ["(%a: i32) -> (index)", "(%a: index)", "(%a: index, %b: index) -> (index)", "(%a: index) -> (i32)"] {
        says(Module::parse("a.loom", &decl(wrong)), &["a.loom:1", "`@f` is declared as", "but at a.loom:2:1 it is"]);
    }
    let kernels =
        |launch: &str| format!("kernel.decl @k() launch({launch})\n{}", storing("%r = index.constant 1 : index"));
    assert!(Module::parse("a.loom", &kernels("%out: buffer")).is_ok());
    says(Module::parse("a.loom", &kernels("%out: i32")), &["`@k` is declared as"]);
    says(Module::parse("a.loom", &format!("config.decl @f : index\n{F}{G}")), &["`config.decl @f` does not promise"]);
    // Over files as well, and each file's own declaration.
    says(
        linked(
            &calls_f().replace("-> (index)\n", "-> (i32)\n").replacen("(index) -> (index)", "(index) -> (i32)", 1),
            &[F, G],
        ),
        &["is declared as"],
    );
}

#[test]
fn a_fault_in_a_library_is_in_its_file() {
    let broken = "// A line.\nfunc.def @f(%x: index) -> (index) {\n%y = index.add %x, %nope : index\nfunc.return %y : index\n}\n";
    says(build(&linked(&calls_f(), &[broken]).unwrap()), &["library0.loom:3", "`%nope` is not defined"]);
    let library = parse("library0.loom", broken);
    let (kernels, checked) = Module::check_linked("root.loom", &calls_f(), &[&library]);
    assert_eq!(kernels, ["k"]);
    says(checked, &["library0.loom:3"]);
    // A fault of the root does not move.
    let (_, checked) = Module::check_linked("root.loom", &format!("{}\nfunc.def @h() {{ }}", calls_f()), &[&library]);
    let files: Vec<String> = checked.unwrap_err().items.iter().map(|item| item.file.clone()).collect();
    assert_eq!(files, ["root.loom", "library0.loom"]);
}

#[test]
fn kernels_for_several_targets_share_an_export_name() {
    let targets =
        "amdgpu.target<gfx1100> @w32 {subgroup_size = 32}\namdgpu.target<gfx1100> @w64 {subgroup_size = 64}\n";
    let body = storing("%r = index.constant 1 : index");
    let of = |target: &str, symbol: &str| {
        body.replace("kernel.def @k", &format!("kernel.def target(@{target}) export(\"e.x\") @{symbol}"))
    };
    let text = format!("{targets}{}{}", of("w32", "a"), of("w64", "b"));
    let module = parse("a.loom", &text);
    assert_eq!(module.kernels(), ["a", "b"]);
    says(module.specialise("e.x", &config(&[])), &["several kernels are exported as `e.x`: @a, @b"]);
    assert_eq!(module.specialise("@b", &config(&[])).unwrap().subgroup_size, 64);
}

// Templates.

/// Three providers of one contract, in the older spelling.
const OLD: &str = "func.template<a.size> priority(10) @one(%n: index) -> (index) where [eq(%n, 1)] {\n\
    %r = index.constant 100 : index\nfunc.return %r : index\n}\n\
    func.template<a.size> priority(5) @few(%n: index) -> (index) where [range(%n, 0, 7), multiple_of(%n, 2)] {\n\
    %r = index.constant 200 : index\nfunc.return %r : index\n}\n\
    func.template<a.size> @any(%n: index) -> (index) {\n%r = index.constant 300 : index\nfunc.return %r : index\n}\n";

fn applied(providers: &str, body: &str) -> Result<Kernel, Diagnostics> {
    let apply = "%r = func.apply<a.size>(%n) : (index) -> (index)";
    let body = if body.contains("APPLY") { body.replace("APPLY", apply) } else { format!("{body}\n{apply}") };
    specialise(&format!("{providers}{}", storing(&body)), "k", &[])
}

#[test]
fn the_provider_of_highest_priority_whose_conditions_are_proven_is_taken() {
    let choose = |body: &str| stored(&applied(OLD, body).unwrap_or_else(|why| panic!("{why}")));
    assert_eq!(choose("%n = index.constant 1 : index"), 100);
    assert_eq!(choose("%n = index.constant 4 : index"), 200);
    assert_eq!(choose("%n = index.constant 5 : index"), 300);
    assert_eq!(choose("%n = index.constant 8 : index"), 300);
    // Through arithmetic, an assumption, a loop and a branch. One work-item: its id is 0, its load is unknown.
    let load = "%bytes = buffer.view %out[%base] : buffer -> view<1xi32>\n%l = view.load %bytes[0] : view<1xi32> -> i32\n\
                %i = index.cast %l : i32 to index";
    assert_eq!(choose(&format!("{load}\n%n = index.assume %i [range(%i, -3, 9)] : index")), 300);
    assert_eq!(choose(&format!("{load}\n%n = index.assume %i [range(%i, 0, 7), mul(%i, 4)] : index")), 200);
    assert_eq!(
        choose(&format!(
            "{load}\n%two = index.constant 2 : index\n%four = index.constant 4 : index\n%j = index.andi %i, %four : index\n%n = index.add %j, %two : index"
        )),
        200
    );
    assert_eq!(
        choose(&format!(
            "{load}\n%c1 = index.constant 1 : index\n%c3 = index.constant 3 : index\n%lo = index.max %i, %c1 : index\n%hi = index.min %lo, %c1 : index\n%n = index.rem %hi, %c3 : index"
        )),
        100
    );
    let branch = |compare: &str| {
        format!(
            "{load}\n%zero = index.constant 0 : index\n%n = index.add %i, %zero : index\n%c = {compare}\n\
             %r = scf.if %c -> (index) {{\nAPPLY_\nscf.yield %s : index\n}} else {{\nscf.yield %zero : index\n}}"
        )
        .replace("APPLY_", "%s = func.apply<a.size>(%n) : (index) -> (index)")
    };
    let inside = |compare: &str| {
        let source = format!("{OLD}{}", storing(&branch(compare)));
        stored(&kernel(&source, "k", &[]))
    };
    // The buffer holds 0, so only comparisons that are true of it show the choice.
    assert_eq!(inside("index.cmp eq, %n, %zero : index"), 200);
    assert_eq!(inside("index.cmp sle, %n, %zero : index"), 300);
}

#[test]
fn a_dominating_comparison_of_two_values_proves_their_order() {
    let providers = "func.template<a.pair> priority(1) @less(%a: index, %b: index) -> (index) where [lt(%a, %b)] {\n\
        %r = index.constant 1 : index\nfunc.return %r : index\n}\n\
        func.template<a.pair> @any(%a: index, %b: index) -> (index) {\n%r = index.constant 2 : index\nfunc.return %r : index\n}\n";
    let body = |condition: &str| {
        single(
            "%a: index, %b: index, %out: buffer",
            &format!(
                "%p = index.cmp slt, %a, %b : index\n%q = index.cmp sge, %a, %b : index\n%true = scalar.constant true : i1\n\
                 %both = scalar.andi %p, %true : i1\n%not = scalar.xori %q, %true : i1\n\
                 %r = scf.if {condition} -> (index) {{\n%s = func.apply<a.pair>(%a, %b) : (index, index) -> (index)\nscf.yield %s : index\n\
                 }} else {{\n%t = func.apply<a.pair>(%b, %a) : (index, index) -> (index)\nscf.yield %t : index\n}}\n\
                 %r32 = index.cast %r : index to i32\n%v = buffer.view %out[%base] : buffer -> view<1xi32>\nview.store %r32, %v[0] : i32, view<1xi32>"
            ),
        )
    };
    let run_with = |condition: &str, a: u64, b: u64| {
        let kernel = kernel(&format!("{providers}{}", body(condition)), "k", &[]);
        let mut bound = [Bound::Slot(a), Bound::Slot(b), Bound::zeros(4)];
        run(&kernel, &[], &mut bound).unwrap();
        bound[2].to_i32s()[0]
    };
    for condition in ["%p", "%both", "%not"] {
        assert_eq!(run_with(condition, 1, 2), 1, "{condition}");
        // b <= a does not say b < a.
        assert_eq!(run_with(condition, 2, 1), 2, "{condition}");
    }
    assert_eq!(run_with("%q", 2, 1), 2);
    assert_eq!(run_with("%q", 1, 2), 2, "a < b proves nothing of b < a");
}

#[test]
fn without_one_provider_the_error_says_what_is_missing_of_each() {
    let without_any = OLD.split("func.template<a.size> @any").next().unwrap();
    says(
        applied(without_any, "%n = index.constant 3 : index"),
        &["no provider of `a.size`", "`@one`: `eq(%n, 1)` does not hold", "`@few`: `multiple_of(%n, 2)` does not hold"],
    );
    let id = "%bytes = buffer.view %out[%base] : buffer -> view<1xi32>\n%l = view.load %bytes[0] : view<1xi32> -> i32\n%n = index.cast %l : i32 to index";
    says(applied(without_any, id), &["`@one`: `eq(%n, 1)` is not proven", "`@few`: `range(%n, 0, 7)` is not proven"]);
    says(applied("", "%n = index.constant 3 : index"), &["`a.size` has no provider"]);
    let twice = OLD.replace("priority(10)", "priority(5)").replace("eq(%n, 1)", "lt(%n, 9)");
    says(
        applied(&twice, "%n = index.constant 4 : index"),
        &["`@one` and `@few` both provide `a.size` here with priority 5"],
    );
    let other = OLD
        .replace("(%n: index) -> (index)", "(%n: i32) -> (index)")
        .replace("[range(%n, 0, 7), multiple_of(%n, 2)]", "[]");
    says(applied(&other, "%n = index.constant 4 : index"), &["`@any`: its `%n` is i32, the argument is index"]);
    let more = OLD.replace("(%n: index)", "(%n: index, %m: index)");
    says(applied(&more, "%n = index.constant 4 : index"), &["`@any`: it takes 2 arguments, 1 are given"]);
    let calls_itself = "func.template<a.size> @any(%n: index) -> (index) {\n%r = func.apply<a.size>(%n) : (index) -> (index)\nfunc.return %r : index\n}\n";
    says(applied(calls_itself, "%n = index.constant 4 : index"), &["`@any` calls itself"]);
    says(
        applied("func.ukernel<a.size> @u(%n: index) -> (index)\n", "%n = index.constant 4 : index"),
        &["`@u`: a `func.ukernel` has no body"],
    );
}

#[test]
fn families_are_declared_and_their_providers_come_from_libraries() {
    let root = format!(
        "template.decl pure @size(%n: index) -> (index)\nconfig.decl @c : index\n{}",
        storing("%n = config.get @c : index\n%r = template.apply<@size>(%n) : (index) -> (index)")
    );
    let one = "template.def<@size> device priority(3) @one(%n: index) -> (index) where [eq(%n, 1)] {\n%r = index.constant 100 : index\ntemplate.return %r : index\n}\n";
    let rest = "template.decl @size(%n: index) -> (index)\ntemplate.def<@size> @rest(%n: index) -> (index) {\n%r = template.call @one(%n) : (index) -> (index)\n%s = index.add %r, %n : index\ntemplate.return %s : index\n}\n";
    assert!(parse("root.loom", &root).verify().is_ok(), "without a provider, by its declaration");
    let module = linked(&root, &[one, rest]).unwrap();
    assert!(module.verify().is_ok());
    let value = |bound: &str| module.specialise("k", &config(&[("c", bound)])).map(|kernel| stored(&kernel));
    assert_eq!(value("1").unwrap(), 100);
    // A call by name takes the body, and breaks its condition.
    says(value("2"), &["library1.loom:3", "breaks the condition `eq(%n, 1)`"]);
    says(module.specialise("k", &config(&[])), &["config `c` has no value"]);
    let alone = root.replace("template.decl pure @size(%n: index)", "template.decl pure @size(%n: i32)");
    says(parse("root.loom", &alone).verify(), &["`@size` is declared otherwise"]);
    says(parse("root.loom", &root.replace("apply<@size>", "apply<@c>")).verify(), &["`@c` is a `config.decl`"]);
    says(parse("root.loom", &root.replace("apply<@size>", "apply<@none>")).verify(), &["`@none` is not defined"]);
    // A template ends in its own return.
    says(
        parse("a.loom", &one.replace("template.return", "func.return")).verify(),
        &["this region ends in `template.return`"],
    );
}

#[test]
fn targets_and_requirements_decide() {
    let records = "amdgpu.target<gfx11-generic> @narrow {subgroup_size = 32}\namdgpu.target<gfx1201> @wide {subgroup_size = 64}\namdgpu.target<gfx1100> @mine\n";
    let provider = |head: &str, name: &str, value: u32| {
        format!(
            "func.template<a.size> {head} @{name}(%n: index) -> (index) {{\n%r = index.constant {value} : index\nfunc.return %r : index\n}}\n"
        )
    };
    let all = |kernel_target: &str, providers: &[String]| {
        let kernel = storing("%n = index.constant 1 : index\n%r = func.apply<a.size>(%n) : (index) -> (index)");
        let kernel = kernel.replace("kernel.def", &format!("kernel.def {kernel_target}"));
        specialise(&format!("{records}{}{kernel}", providers.concat()), "k", &[])
    };
    let both = [provider("target(@narrow)", "a", 1), provider("target(@wide)", "b", 2)];
    assert_eq!(stored(&all("target(@mine)", &both).unwrap()), 1, "gfx11-generic covers gfx1100");
    assert_eq!(stored(&all("target(@wide)", &both).unwrap()), 2);
    assert_eq!(stored(&all("", &both).unwrap()), 1, "as wide as the kernel's");
    // What is for every machine comes first where the kernel names none.
    let portable = [both[0].clone(), provider("", "c", 3)];
    assert_eq!(stored(&all("", &portable).unwrap()), 3);
    says(all("target(@mine)", &portable), &["`@a` and `@c` both provide"]);
    says(all("target(@mine)", &both[1..]), &["`@b`: `@wide` has subgroups of 64 work-items, the kernel 32"]);
    let required = [provider("requires [#target.subgroup.size<64>]", "d", 4)];
    assert_eq!(stored(&all("target(@wide)", &required).unwrap()), 4);
    says(all("", &required), &["`@d`: it requires subgroups of 64 work-items, these have 32"]);
    says(
        all("", &[provider("requires [#target.magic<1>]", "e", 5)]),
        &["`@e`: its requirement `#target.magic<1>` is not known"],
    );
}

#[test]
fn conditions_of_a_call_are_believed_or_refused() {
    let callee = "func.def @f(%n: index) -> (index) where [range(%n, 0, 7)] {\n%r = func.apply<a.size>(%n) : (index) -> (index)\nfunc.return %r : index\n}\n";
    let text = |n: &str| {
        let call = format!(
            "%bytes = buffer.view %out[%base] : buffer -> view<1xi32>\n%l = view.load %bytes[0] : view<1xi32> -> i32\n{n}\n%r = func.call @f(%n) : (index) -> (index)"
        );
        format!("{}{callee}{}", OLD.replace(", multiple_of(%n, 2)", ""), storing(&call))
    };
    assert_eq!(stored(&kernel(&text("%n = index.cast %l : i32 to index"), "k", &[])), 200);
    says(specialise(&text("%n = index.constant 8 : index"), "k", &[]), &["breaks the condition `range(%n, 0, 7)`"]);
}

// Facts.

#[test]
fn a_built_kernel_says_what_is_known() {
    let text = "kernel.def @k() {\n%one = index.constant 1 : index\n%four = index.constant 4 : index\n%wg = index.constant 64 : index\n\
        kernel.launch.config workgroups(%four, %one, %one) workgroup_size(%wg, %one, %one) : index\n\
        } launch(%n: index, %out: buffer) where [range(%n, 16, 4096), multiple_of(%n, 16)] {\n\
        %base = index.constant 0 : offset\n%c0 = index.constant 0 : index\n%c8 = index.constant 8 : index\n\
        %v = buffer.view %out[%base] : buffer -> view<[%n]xi32>\n%g = kernel.workitem.dispatch.id<x> : index\n\
        scf.for %i = [%c0 to %n step %c8] {\n%j = index.add %i, %g : index\n%x = index.cast %j : index to i32\n\
        %k = index.rem %j, %n : index\nview.store %x, %v[%k] : i32, view<[%n]xi32>\n}\nkernel.return\n}\n";
    let kernel = kernel(text, "k", &[]);
    let n = kernel.facts(kernel.body.blocks[0].arguments[0]);
    assert_eq!((n.low, n.high, n.multiple_of), (16, 4096, 16));
    let of = |name: &str| {
        let op = kernel.body.ops().find(|op| format!("{:?}", op.kind).starts_with(name)).expect(name);
        op.result().unwrap_or_else(|| kernel.body.block(op.blocks[0]).arguments[0])
    };
    let facts = |value: ValueId| kernel.facts(value);
    let id = facts(of("Id"));
    assert_eq!((id.low, id.high), (0, 255));
    let i = facts(of("For"));
    assert_eq!((i.low, i.high, i.multiple_of), (0, 4095, 8));
    let j = facts(of("Binary(AddI)"));
    assert_eq!((j.low, j.high, j.multiple_of), (0, 4350, 1));
    let k = facts(of("Binary(RemUI)"));
    assert_eq!((k.low, k.high), (0, 4095));
    assert!(k.fits(32) && !k.fits(12) && k.fits(13));
    // Of a buffer nothing is known.
    assert_eq!(facts(kernel.body.blocks[0].arguments[1]).low, i64::MIN);
}

#[test]
fn what_is_known_folds_comparisons_and_branches() {
    let text = |guard: &str| {
        single(
            "%n: index, %out: buffer",
            &format!(
                "%c9 = index.constant 9 : index\n%zero = scalar.constant 0 : i32\n%v = buffer.view %out[%base] : buffer -> view<1xi32>\n\
                 %m = index.assume %n [range(%n, 0, 8)] : index\n%p = {guard}\nscf.if %p {{\nview.store %zero, %v[0] : i32, view<1xi32>\n}}"
            ),
        )
    };
    let branches = |guard: &str| {
        let kernel = kernel(&text(guard), "k", &[]);
        let has = |name: &str| kernel.body.ops().any(|op| format!("{:?}", op.kind).starts_with(name));
        (has("If"), has("Store"))
    };
    assert_eq!(branches("index.cmp ult, %m, %c9 : index"), (false, true), "always");
    assert_eq!(branches("index.cmp sge, %m, %c9 : index"), (false, false), "never");
    assert_eq!(branches("index.cmp eq, %m, %c9 : index"), (false, false), "never");
    assert_eq!(branches("index.cmp slt, %c9, %m : index"), (false, false), "never");
    let unknown = text("index.cmp slt, %c8, %m : index").replace("%c9 = index.constant 9", "%c8 = index.constant 7");
    let unknown = kernel(&unknown, "k", &[]);
    assert!(unknown.body.ops().any(|op| format!("{:?}", op.kind).starts_with("If")));
    // An assumption inside a branch says nothing outside of it.
    let scoped = single(
        "%n: index, %q: i1, %out: buffer",
        "%c9 = index.constant 9 : index\n%zero = scalar.constant 0 : i32\n%v = buffer.view %out[%base] : buffer -> view<1xi32>\n\
         scf.if %q {\n%m = index.assume %n [range(%n, 0, 8)] : index\n%x = index.cast %m : index to i32\nview.store %x, %v[0] : i32, view<1xi32>\n}\n\
         %p = index.cmp ult, %n, %c9 : index\nscf.if %p {\nview.store %zero, %v[0] : i32, view<1xi32>\n}",
    );
    let ifs = kernel(&scoped, "k", &[]).body.ops().filter(|op| format!("{:?}", op.kind).starts_with("If")).count();
    assert_eq!(ifs, 2);
}

/// Small programs over a loaded and an assumed number, folded by facts, against the same without any.
#[test]
fn facts_change_no_result() {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) % below
    };
    let ops = ["add", "sub", "mul", "div", "rem", "min", "max", "andi", "ori", "xori", "shli", "shrui"];
    let compares = ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"];
    for round in 0..120 {
        let (low, span) = (next(40) as i64 - 20, next(30) as i64);
        let divides = [1, 2, 4][next(3) as usize];
        let chosen = (low..=low + span).filter(|n| n % divides == 0).collect::<Vec<_>>();
        if chosen.is_empty() {
            continue;
        }
        let mut body = String::new();
        let mut names = vec!["%m".to_owned(), "%c2".to_owned(), "%c3".to_owned(), "%c16".to_owned(), "%cm1".to_owned()];
        for at in 0..6 {
            let pick =
                |next: &mut dyn FnMut(u64) -> u64, names: &[String]| names[next(names.len() as u64) as usize].clone();
            let (a, b) = (pick(&mut next, &names), pick(&mut next, &names));
            let op = ops[next(ops.len() as u64) as usize];
            body += &format!("%x{at} = index.{op} {a}, {b} : index\n");
            let compare = compares[next(compares.len() as u64) as usize];
            let (c, d) = (pick(&mut next, &names), pick(&mut next, &names));
            body += &format!(
                "%p{at} = index.cmp {compare}, {c}, {d} : index\n%y{at} = scf.if %p{at} -> (index) {{\n\
                 %i{at} = index.add {c}, %x{at} : index\n%q{at} = index.cmp slt, {d}, {c} : index\n\
                 %s{at} = scf.select %q{at}, %i{at}, {d} : index\nscf.yield %s{at} : index\n}} else {{\n\
                 %q{at} = index.cmp {compare}, {c}, {d} : index\n%s{at} = scf.select %q{at}, %c2, {c} : index\nscf.yield %s{at} : index\n}}\n"
            );
            names.push(format!("%x{at}"));
            names.push(format!("%y{at}"));
        }
        let high = low + span;
        let text = |assume: &str| {
            storing(&format!(
                "%bytes = buffer.view %out[%base] : buffer -> view<1xi32>\n%l = view.load %bytes[0] : view<1xi32> -> i32\n\
                 %n = index.cast %l : i32 to index\n%c2 = index.constant 2 : index\n%c3 = index.constant 3 : index\n\
                 %c16 = index.constant 16 : index\n%cm1 = index.constant -1 : index\n{assume}\n{body}\n%r = index.xori %x5, %y5 : index"
            ))
        };
        let known = kernel(
            &text(&format!("%m = index.assume %n [range(%n, {low}, {high}), multiple_of(%n, {divides})] : index")),
            "k",
            &[],
        );
        let unknown = kernel(&text("%zero = index.constant 0 : index\n%m = index.add %n, %zero : index"), "k", &[]);
        for n in chosen {
            let of = |kernel: &Kernel| {
                let mut bound = [Bound::i32s(&[n as i32])];
                run(kernel, &[], &mut bound).expect("a run");
                bound[0].to_i32s()[0]
            };
            assert_eq!(of(&known), of(&unknown), "round {round}, {n}: {}", text(""));
        }
    }
}

// Globals.

#[test]
fn constants_fold_and_bytes_are_read() {
    let globals = "global.constant @scale : index = 40\nglobal.rodata.def @table = bytes(\"0a000000fFffffff\")\n";
    let body = "%s = global.load @scale : index\n%t = global.load @table : buffer\n\
                %tv = buffer.view %t[%base] : buffer -> view<2xi32>\n%a = view.load %tv[0] : view<2xi32> -> i32\n\
                %b = view.load %tv[1] : view<2xi32> -> i32\n%c = scalar.addi %a, %b : i32\n%d = index.cast %c : i32 to index\n\
                %r = index.add %s, %d : index";
    let text = format!("{globals}{}", storing(body));
    assert_eq!(stored(&kernel(&text, "k", &[])), 49);
    assert!(parse("a.loom", &text).verify().is_ok());
    let wrong = |from: &str, to: &str, message: &str| says(specialise(&text.replace(from, to), "k", &[]), &[message]);
    wrong("\"0a000000fFffffff\"", "\"0a0\"", "bytes are an even number of hex digits");
    wrong("\"0a000000fFffffff\"", "\"0g\"", "bytes are an even number of hex digits");
    wrong("@scale : index = 40", "@scale : index = 4.0", "is written as an integer");
    wrong("@scale : index\n", "@scale : i32\n", "`@scale` is of type index, found i32");
    wrong("@table : buffer", "@table : index", "`@table` is a buffer, found index");
    wrong("global.load @scale", "global.load @nope", "`@nope` is not defined");
    wrong("global.constant @scale", "global.variable @scale", "`@scale` is a variable");
    // A function that no kernel reaches may be the host's, and is refused where one does.
    let host = "global.variable @count : index = 0\nfunc.def @next() -> (index) {\n%c = global.load @count : index\n\
                func.return %c : index\n}\n";
    assert!(parse("a.loom", &format!("{host}{text}")).verify().is_ok());
    let reaches = text.replace("%s = global.load @scale : index", "%s = func.call @next() : () -> (index)");
    says(parse("a.loom", &format!("{host}{reaches}")).verify(), &["`@count` is a variable"]);
    let stores = format!(
        "{globals}{}",
        storing(&format!(
            "{body}\n%sub = view.subview %tv[1] : view<2xi32> -> view<1xi32>\nview.store %a, %sub[0] : i32, view<1xi32>"
        ))
    );
    says(specialise(&stores, "k", &[]), &["stores to read-only data"]);
}

// Command programs.

const PROGRAM: &str = "kernel.decl @k(%w: index) launch(%n: index, %x: buffer)\n\
    command.program.decl @step(%i: index) launch(%b: buffer) where [range(%i, 0, 7)]\n\
    command.program.def public @p(%layer: index) launch(%pack: buffer, %out: buffer) where [range(%layer, 0, 3)] {\n\
    %c4 = index.constant 4 : index\n%bytes = index.constant 64 : offset\n\
    %w = command.parameter %pack, \"layer.{}.weight\"[%layer] : view<16xf32>\n\
    %tmp = buffer.alloca<global> align(256) %bytes : buffer\n\
    kernel.launch @k[%c4](%layer, %w) : [index](index, view<16xf32>)\n\
    command.concurrent {\nkernel.launch @k[%c4](%c4, %tmp) : [index](index, buffer)\n\
    command.serial {\ncommand.program.launch @step[%layer](%out) : [index](buffer)\ncommand.yield\n}\n}\n\
    command.return\n}\n";

#[test]
fn command_programs_are_verified() {
    assert!(parse("a.loom", PROGRAM).verify().is_ok(), "{}", why(parse("a.loom", PROGRAM).verify()));
    let wrong = |from: &str, to: &str, message: &str| {
        assert!(PROGRAM.contains(from), "{from}");
        says(parse("a.loom", &PROGRAM.replacen(from, to, 1)).verify(), &[message]);
    };
    wrong(
        "@k[%c4](%layer, %w) : [index](index, view<16xf32>)",
        "@k(%layer, %w) : (index, view<16xf32>)",
        "`@k` has 1 workload arguments, 0 are given",
    );
    wrong(
        "@k[%c4](%layer, %w) : [index](index, view<16xf32>)",
        "@k[%c4](%w, %w) : [index](view<16xf32>, view<16xf32>)",
        "launch argument 0 of `@k` is index",
    );
    wrong(
        "kernel.launch @k[",
        "kernel.launch @step[",
        "`@step` is a `command.program.decl`; `kernel.launch` takes a `kernel.def`",
    );
    wrong("kernel.launch @k[", "kernel.launch @gone[", "`@gone` is not defined");
    wrong("layer.{}.weight", "layer.weight", "the name has 0 places `{}`, 1 indices are given");
    wrong("%w = command.parameter %pack", "%w = command.parameter %c4", "expected a buffer, found index");
    wrong(": view<16xf32>\n", ": buffer\n", "gives a view, found buffer");
    wrong("alloca<global>", "alloca<workgroup>", "a command program allocates global memory");
    wrong("align(256)", "align(3)", "an alignment is a positive power of two");
    wrong("command.return\n", "", "must end in `command.return`");
    wrong("%c4 = index.constant 4 : index", "%c4 = kernel.workitem.id<x> : index", "runs on the host");
    wrong("(%layer: index) launch", "(%layer: f32) launch", "is specialised by is an integer");
    wrong("%out: buffer)", "%out: i32)", "is launched over buffers");
    says(
        Module::parse("a.loom", &format!("command.program.decl @p(%l: index) launch(%a: buffer)\n{PROGRAM}")),
        &["`@p` is declared as"],
    );
}

// What is not ours.

#[test]
fn assembly_and_holes_are_read_and_refused_where_they_are_reached() {
    let assembly = "low.func.def target<amd.x.core>(@t) abi(object) @asm() -> (reg<amdgpu.sgpr>) asm {\n  mov.short 0 // } \"\n^poll:\n  %x = lda [sp, #4] + 1; {vm = 0}\n}\n\
        pass.pipeline @opt { canonicalise! }\npipeline.def @p() { channel.put %x -> resource<a> }\n";
    let fine = storing("%r = index.constant 3 : index");
    let module = parse("a.loom", &format!("{assembly}{fine}"));
    assert!(module.verify().is_ok());
    assert_eq!(stored(&build(&module).unwrap()), 3);
    let formatted = module.format();
    assert_eq!(parse("b.loom", &formatted).format(), formatted);
    assert!(formatted.contains("%x = lda [sp, #4] + 1; {vm = 0}"));
    let reaches = storing("%x = low.invoke @asm() : () -> (i32)\n%r = index.constant 3 : index");
    says(build(&parse("a.loom", &format!("{assembly}{reaches}"))), &["`low.invoke`", "not compiled here"]);
    let calls = storing("%x = func.call @asm() : () -> (i32)\n%r = index.constant 3 : index");
    says(build(&parse("a.loom", &format!("{assembly}{calls}"))), &["`@asm` is a `low.func.def`", "not compiled here"]);
    says(Module::parse("a.loom", "low.func.def @a() asm { {\n"), &["`{` is never closed"]);

    let holes = storing("%c = index.constant @SIZE@ : index\n@MORE@\n%r = index.constant 3 : index");
    let module = parse("a.loom", &holes);
    says(module.verify(), &["`@SIZE@`, a hole of a text template"]);
    says(build(&module), &["`@SIZE@`"]);
    assert!(module.format().contains("\n  @MORE@\n"));
    let fragment = parse("a.loom", "%a = index.constant 1 : index\n%b = index.add %a, %a : index\n");
    says(fragment.verify(), &["this text is a fragment"]);
}

#[test]
fn predicates_of_config_hold_for_every_type() {
    let text = |ty: &str, predicate: &str| {
        format!(
            "config.decl @c : %v: {ty} where [{predicate}]\n{}",
            storing(&format!("%c = config.get @c : {ty}\n%r = index.constant 3 : index"))
        )
    };
    for (ty, predicate, good, bad) in [
        ("index", "range(%v, 1, 8)", "8", "9"),
        ("index", "multiple_of(%v, 16)", "-32", "8"),
        ("offset", "pow2(%v)", "64", "0"),
        ("i8", "min(%v, -3)", "-3", "-4"),
        ("i1", "eq(%v, 1)", "TRUE", "false"),
        ("f32", "finite(%v)", "1.5", "inf"),
        ("f64", "not_nan(%v)", "inf", "nan"),
        ("f16", "range(%v, 0, 2)", "1.5", "2.5"),
        ("bf16", "lt(%v, 1)", "0.5", "1"),
    ] {
        let source = text(ty, predicate);
        assert!(specialise(&source, "k", &[("c", good)]).is_ok(), "{ty} {good}");
        says(specialise(&source, "k", &[("@c", bad)]), &["config `c` = ", "breaks its predicate", predicate]);
    }
    // The predicates of a declaration hold for a definition elsewhere, too.
    let defined = format!("config.def @c = 12 : index\n{}", text("index", "range(%v, 1, 8)"));
    says(specialise(&defined, "k", &[]), &["config `c` = 12 breaks its predicate `range(%v, 1, 8)`"]);
    assert!(specialise(&defined, "k", &[("c", "5")]).is_ok());
}

#[test]
fn what_is_declared_is_verified_although_nobody_uses_it() {
    let wrong = |text: &str, message: &str| says(parse("a.loom", text).verify(), &[message]);
    wrong("config.decl @c : buffer\n", "a config value is a scalar here, found buffer");
    wrong("config.decl @c : %v: index where [range(%v, 1)]\n", "`range` takes 3 arguments, found 2");
    wrong("config.decl @c : %v: index where [lt(%w, 1)]\n", "`%w` is not the declared value of `@c`");
    wrong("config.def @c = 1.0 : index\n", "is written as an integer");
    wrong("global.constant @c : f32 = 1\n", "is written as a float");
    wrong("global.rodata.def @c = bytes(\"123\")\n", "bytes are an even number of hex digits");
    assert!(parse("a.loom", "config.decl @c : encoding<schema>\nglobal.variable @v : index = 0\n").verify().is_ok());
}

#[test]
fn assumptions_flags_and_factors_fit_what_they_stand_at() {
    let wrong = |body: &str, message: &str| {
        let text = single("%n: index, %i: i32, %f: f32, %o: offset", body);
        says(parse("a.loom", &text).verify(), &[message]);
    };
    wrong("%x = index.assume %i [lt(%i, 3)] : i32", "`index.assume` takes index or offset, found i32");
    wrong("%x = scalar.assume %n [lt(%n, 3)] : index", "`scalar.assume` takes an integer or float, found index");
    wrong("%x = scalar.addf<nsw> %f, %f : f32", "`scalar.addf` takes the flags reassoc");
    wrong("%x = scalar.addi<nnan> %i, %i : i32", "`scalar.addi` takes the flags nsw or nuw");
    wrong(
        "%z = index.constant 0 : index\nscf.for %q = [%n to %n step %n] unroll(%z) {\n}",
        "unrolled by 1 or more, found 0",
    );
    let fine = "%x = index.assume %o [multiple_of(%o, 16)] : offset\n%y = scalar.assume %f [finite(%f), range(%f, 0, 1)] : f32\n\
                %z = scalar.addi<nsw|nuw> %i, %i : i32";
    assert!(parse("a.loom", &single("%i: i32, %f: f32, %o: offset", fine)).verify().is_ok());
    let unrolled = single("%n: index", "scf.for %q = [%n to %n step %n] unroll(%n) {\n}");
    assert!(parse("a.loom", &unrolled).verify().is_ok());
    says(specialise(&unrolled, "k", &[]), &["must be constant once config is bound"]);
}

#[test]
fn functions_of_the_host_are_refused_where_they_are_reached() {
    let host = "func.def @moves(%a: buffer, %n: offset) {\n%z = index.constant 0 : offset\nbuffer.copy %a[%z], %a[%z], %n\nfunc.return\n}\n\
        func.def public @calls(%a: buffer, %n: offset) {\nfunc.call @moves(%a, %n) : (buffer, offset)\nfunc.return\n}\n\
        template.decl @tick() -> (i32)\ntemplate.def<@tick> @clock() -> (i32) {\n%t = low.invoke @asm() : () -> (i32)\ntemplate.return %t : i32\n}\n";
    assert!(parse("a.loom", host).verify().is_ok());
    let calls = single("%a: buffer", "func.call @calls(%a, %base) : (buffer, offset)");
    says(parse("a.loom", &format!("{host}{calls}")).verify(), &["a.loom:3", "`buffer.copy`"]);
    let ticks = single("%a: buffer", "%t = template.apply<@tick>() : () -> (i32)");
    assert!(parse("a.loom", &format!("{host}{ticks}")).verify().is_ok(), "another provider may be linked");
    says(specialise(&format!("{host}{ticks}"), "k", &[]), &["`low.invoke`"]);
    // A fault of another kind in them is not looked for, but what is no op of anything is.
    says(parse("a.loom", &host.replace("buffer.copy %a[%z], %a[%z], %n", "buffer.cpy %a")).verify(), &["`buffer.cpy`"]);
}

/// A text may keep programs of the host beside its kernels: what no kernel can take makes no text wrong.
#[test]
fn functions_of_the_host_are_left_alone() {
    let host = "func.def public @step(%x: hal.buffer, %n: i32) {\nfunc.return\n}\n\
                func.def @more(%n: i32) {\nvm.call %n : i32\nfunc.return\n}\n";
    assert!(parse("host.loom", host).verify().is_ok());
    let called = format!(
        "{host}{}",
        storing("%n = scalar.constant 1 : i32\nfunc.call @more(%n) : (i32)\n%r = index.constant 1 : index")
    );
    says(parse("host.loom", &called).specialise("k", &config(&[])), &["`vm.call` is no op of a kernel"]);
}

#[test]
fn a_text_may_begin_with_a_byte_order_mark() {
    let text = format!("\u{feff}{}", storing("%r = index.constant 7 : index"));
    let kernel = build(&parse("a.loom", &text)).expect("the mark is no part of the text");
    assert_eq!(stored(&kernel), 7);
    says(Module::parse("a.loom", "func.decl @f()\n\u{feff}"), &["a.loom:2", "only ASCII"]);
}

#[test]
fn records_of_machines_unknown_here_are_records() {
    let text = format!("metal.target<apple9> @m {{subgroup_size = 32}}\n{}", storing("%r = index.constant 7 : index"));
    let text = text.replace("kernel.def", "kernel.def target(@m)");
    assert_eq!(stored(&build(&parse("a.loom", &text)).expect("32 wide")), 7);
    says(Module::parse("a.loom", "metal.shader @m\n"), &["`metal.shader` is no top-level op"]);
}

/// Whoever mends a text sees what is wrong with the geometry and with the body in one run.
#[test]
fn a_wrong_geometry_does_not_hide_a_wrong_body() {
    let text = "kernel.def @k() {\n%n = index.constant 4096 : index\n\
                kernel.launch.config workgroups(1, 1, 1) workgroup_size(%n, 1, 1) : index\n\
                } launch(%b: buffer) {\n%x = scalar.constant 1 : f32\nkernel.return\n}\n";
    let diagnostics = parse("a.loom", text).verify().expect_err("both are wrong").to_string();
    for part in ["a.loom:3:1: a workgroup size is 1 to 1024, found 4096", "a.loom:5:22: a constant of type f32"] {
        assert!(diagnostics.contains(part), "{diagnostics}\nshould say: {part}");
    }
}

#[test]
fn shapes_that_do_not_fit_are_named_with_what_would() {
    let text = single(
        "%f: f32",
        "%v = vector.splat %f : vector<4xf32>\n%w = vector.concat<0> %v, %v : vector<4xf32>, vector<4xf32> -> vector<7xf32>",
    );
    let parts = ["`vector.concat`: vector<4xf32>, vector<4xf32> to vector<7xf32> do not fit", "add up to the result's"];
    says(parse("a.loom", &text).verify(), &parts);
    let text = single("", "kernel.barrier<global> scope(subgroup) ordering(acq_rel)");
    says(parse("a.loom", &text).verify(), &["found global memory with scope subgroup and ordering acq_rel"]);
}
