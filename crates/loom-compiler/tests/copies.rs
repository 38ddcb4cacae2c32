//! Asynchronous copies as PTX: which are, which waits they get, and where they are made at once. That they compute the same is for the
//! cases of the corpus.

mod common;

use common::{kernel, single};
use loom_compiler::ptx::{self, Options, Sm};

const GROUP: &str = "kernel.async.group";

fn on(architecture: u32) -> Options {
    Options { target: Sm::new(architecture), ..Options::default() }
}

#[track_caller]
fn text(body: &str, options: &Options) -> String {
    let head = "%size = index.constant 4096 : offset\n%s = buffer.alloca<workgroup> align(16) %size : buffer\n\
                %i0 = index.constant 0 : index\n%i1 = index.constant 1 : index\n%i2 = index.constant 2 : index\n\
                %from = buffer.view %memory[%base] : buffer -> view<1024xi32>\n%to = buffer.view %s[%base] : buffer -> view<1024xi32>\n\
                %k = view.load %from[0] : view<1024xi32> -> i32\n%z = scalar.constant 0 : i32\n%p = scalar.cmpi sgt, %k, %z : i32\n\
                %n = index.cast %k : i32 to index\n";
    let source = single("%memory: buffer", &format!("{head}{body}"));
    ptx::emit(&kernel(&source, "k", &[]), &source, options).unwrap_or_else(|why| panic!("{why}")).text
}

/// `%name = kernel.async.group`, of no token.
fn group(name: &str) -> String {
    format!("%{name} = kernel.async.group -> {GROUP}\n")
}

fn wait(name: &str, newer: u32) -> String {
    format!("kernel.async.wait %{name} {{newer_groups = {newer}}} : {GROUP}\n")
}

/// What the waits of a text leave going on, in order.
fn waits(body: &str) -> Vec<u32> {
    let text = text(body, &on(80));
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("cp.async.wait_group ")?.strip_suffix(';')?.parse().ok())
        .collect()
}

#[test]
fn a_wait_leaves_no_more_going_on_than_were_made_behind_its_group() {
    let three = group("a") + &group("b") + &group("c");
    let straight = three.clone() + &wait("a", 9) + &wait("a", 1) + &wait("b", 1) + &wait("c", 1) + &wait("b", 0);
    assert_eq!(waits(&straight), [2, 1, 1, 0, 0]);
    // Of two ways the one with fewer groups counts.
    let branch = |otherwise: &str| {
        format!("{}scf.if %p {{\n{}{}}} else {{\n{otherwise}}}\n{}", group("a"), group("b"), group("c"), wait("a", 9))
    };
    assert_eq!(waits(&branch(&group("d"))), [1]);
    assert_eq!(waits(&branch("")), [0]);
    let given = format!(
        "{three}%g = scf.if %p -> ({GROUP}) {{\nscf.yield %a : {GROUP}\n}} else {{\nscf.yield %b : {GROUP}\n}}\n{}\
         %h = scf.select %p, %a, %b : {GROUP}\n{}",
        wait("g", 9),
        wait("h", 9)
    );
    assert_eq!(waits(&given), [1, 1]);
}

/// A loop that carries `(names, values)`, whose turn is `turn` and yields `yields`.
fn ring(carried: &[(&str, &str)], turn: &str, yields: &str) -> String {
    let pairs: Vec<String> = carried.iter().map(|(name, from)| format!("%{name} = %{from}")).collect();
    let types = vec![GROUP; carried.len()].join(", ");
    let results: Vec<String> = carried.iter().map(|(name, _)| format!("%{name}_end")).collect();
    format!(
        "{} = scf.for %i = [%i0 to %n step %i1]({} : {types}) -> ({types}) {{\n{turn}scf.yield {yields} : {types}\n}}\n",
        results.join(", "),
        pairs.join(", ")
    )
}

#[test]
fn a_ring_waits_for_the_oldest_of_its_groups() {
    for stages in 2..7u32 {
        let carried: Vec<(String, String)> = (1..stages).map(|at| (format!("c{at}"), format!("g{at}"))).collect();
        let names: Vec<(&str, &str)> = carried.iter().map(|(name, from)| (name.as_str(), from.as_str())).collect();
        let before: String = (1..stages).map(|at| group(&format!("g{at}"))).collect();
        let yields = (2..stages).map(|at| format!("%c{at}")).chain(["%new".to_owned()]).collect::<Vec<_>>().join(", ");
        let body = before + &ring(&names, &(wait("c1", stages - 2) + &group("new")), &yields) + &wait("c1_end", 99);
        assert_eq!(waits(&body), [stages - 2, stages - 2], "{stages}");
    }
    // One that forgets to make a group each turn waits for all from the turn on where that shows.
    let body = group("a") + &group("b") + &ring(&[("x", "a"), ("y", "b")], &wait("x", 1), "%y, %y");
    assert_eq!(waits(&body), [0]);
    // A loop inside of a turn may not run.
    let inner = format!("scf.for %j = [%i0 to %n step %i1] {{\n{}}}\n", group("some"));
    let body = group("a") + &ring(&[("x", "a")], &(group("new") + &inner + &wait("x", 9) + &wait("new", 9)), "%new");
    assert_eq!(waits(&body), [1, 0]);
    // Groups in the head of a `while` are made on the way out as well.
    let body = format!(
        "{}%r = scf.while(%x = %a : {GROUP}) -> ({GROUP}) {{\n{}{}scf.condition %p, %x : i1, {GROUP}\n}} do(%y: {GROUP}) {{\n{}scf.yield %y : {GROUP}\n}}\n{}",
        group("a"),
        wait("x", 9),
        group("head"),
        group("tail"),
        wait("r", 9)
    );
    assert_eq!(waits(&body), [0, 1]);
}

#[test]
fn groups_are_passed_to_functions() {
    let callee = format!(
        "func.def @waits(%g: {GROUP}) -> ({GROUP}) {{\n{}{}func.return %h : {GROUP}\n}}\n",
        wait("g", 4),
        group("h")
    );
    let body =
        format!("{}{}%r = func.call @waits(%a) : ({GROUP}) -> ({GROUP})\n{}", group("a"), group("b"), wait("r", 4));
    let source = callee + &single("%memory: buffer", &body);
    let found = ptx::emit(&kernel(&source, "k", &[]), &source, &on(80)).unwrap_or_else(|why| panic!("{why}")).text;
    assert!(found.contains("wait_group 1;") && found.contains("wait_group 0;"), "{found}");
}

/// Loops in loops in loops, each of which swaps its groups: the answer comes, and waits for all.
#[test]
fn deep_nests_are_followed_only_so_far() {
    let before: String = (0..8).map(|at| group(&format!("g{at}"))).collect();
    let carried: Vec<(String, String)> = (0..8).map(|at| (format!("c{at}"), format!("g{at}"))).collect();
    let mut names: Vec<(String, String)> = carried;
    let mut open = String::new();
    let mut close = String::new();
    for depth in 0..40 {
        let pairs: Vec<String> = names.iter().map(|(name, from)| format!("%{name} = %{from}")).collect();
        let results: Vec<String> = (0..8).map(|at| format!("%r{depth}_{at}")).collect();
        let types = [GROUP; 8].join(", ");
        open += &format!(
            "{} = scf.for %i{depth}x = [%i0 to %n step %i1]({} : {types}) -> ({types}) {{\n",
            results.join(", "),
            pairs.join(", ")
        );
        let turned: Vec<String> = (0..8).map(|at| format!("%{}", names[(at + 1) % 8].0)).collect();
        close = format!("scf.yield {} : {types}\n}}\n{close}", turned.join(", "));
        names = (0..8).map(|at| (format!("d{depth}_{at}"), names[at].0.clone())).collect();
    }
    let body = before + &open + &wait(&names[0].1, 3) + &close;
    assert_eq!(waits(&body), [0]);
}

/// A copy of the views made by `views` (`%x` to `%y`, of type `ty`).
fn copied(views: &str, ty: &str, masked: bool) -> String {
    let (op, mask, mask_ty) = if masked { (".mask", ", %p", ", i1") } else { ("", "", "") };
    format!(
        "{views}%t = kernel.async.copy{op} %x to %y{mask} {{direction = global_to_workgroup}} : {ty} to {ty}{mask_ty} -> kernel.async.token\n\
         %g = kernel.async.group %t : kernel.async.token -> {GROUP}\n{}",
        wait("g", 0)
    )
}

fn sub(from: &str, to: &str, ty: &str) -> String {
    format!(
        "%x = view.subview %from[{from}] : view<1024xi32> -> {ty}\n%y = view.subview %to[{to}] : view<1024xi32> -> {ty}\n"
    )
}

#[test]
fn pieces_are_as_wide_as_both_sides_are_aligned() {
    let forms = |from: &str, to: &str, ty: &str| -> Vec<String> {
        let text = text(&copied(&sub(from, to, ty), ty, false), &on(90));
        let lines = text.lines().filter(|line| line.contains("shared.global"));
        lines
            .map(|line| {
                line.trim()
                    .split([' ', ','])
                    .enumerate()
                    .filter(|(at, _)| [0, 5].contains(at))
                    .map(|(_, word)| word)
                    .collect()
            })
            .collect()
    };
    let (cg16, ca8, ca4) =
        ("cp.async.cg.shared.global16;", "cp.async.ca.shared.global8;", "cp.async.ca.shared.global4;");
    assert_eq!(forms("4", "8", "view<4xi32>"), [cg16]);
    assert_eq!(forms("4", "8", "view<11xi32>"), [cg16, cg16, ca8, ca4]);
    assert_eq!(forms("2", "8", "view<4xi32>"), [ca8, ca8]);
    assert_eq!(forms("4", "7", "view<2xi32>"), [ca4, ca4]);
    // Where nothing is known of the index, elements lie on multiples of their size.
    assert_eq!(forms("%n", "8", "view<2xi32>"), [ca4, ca4]);
}

#[test]
fn a_mask_predicates_each_piece() {
    let found = text(&copied(&sub("0", "0", "view<8xi32>"), "view<8xi32>", true), &on(80));
    let pieces: Vec<&str> = found.lines().filter(|line| line.contains("cp.async.cg")).collect();
    assert_eq!(pieces.len(), 2, "{found}");
    assert!(pieces.iter().all(|line| line.trim().starts_with("@%p")), "{found}");
    assert!(!found.contains("bra"), "{found}");
}

#[test]
fn what_has_no_form_is_made_at_once() {
    // Back to global memory, and inside of workgroup memory.
    let back = "%x = view.subview %to[0] : view<1024xi32> -> view<4xi32>\n%y = view.subview %from[4] : view<1024xi32> -> view<4xi32>\n";
    let inside = "%x = view.subview %to[0] : view<1024xi32> -> view<4xi32>\n%y = view.subview %to[4] : view<1024xi32> -> view<4xi32>\n";
    // Elements of two bytes apart.
    let apart = "%far = encoding.layout.strided [2] : encoding<layout>\n%x = buffer.view %memory[%base] : buffer -> view<4xi16, %far>\n\
                 %y = buffer.view %s[%base] : buffer -> view<4xi16, %far>\n";
    for (views, ty) in [(back, "view<4xi32>"), (inside, "view<4xi32>"), (apart, "view<4xi16>")] {
        for masked in [false, true] {
            let found = text(&copied(views, ty, masked), &on(90));
            assert!(!found.contains("shared.global") && found.contains("// no form of cp.async"), "{found}");
            assert_eq!(found.contains("bra"), masked, "{found}");
            assert!(found.contains("commit_group"), "{found}");
        }
    }
}

#[test]
fn targets_without_them_and_checked_texts_copy_at_once() {
    let body = copied(&sub("0", "0", "view<4xi32>"), "view<4xi32>", false);
    let old = Options { version: (6, 5), ..on(90) };
    for options in [on(75), old, Options { checked: true, ..on(90) }] {
        let found = text(&body, &options);
        assert!(!found.contains("cp.async") && found.contains("ld.global.v4"), "{found}");
        assert!(found.contains("st.shared.v4"), "{found}");
    }
    let found = text(&body, &on(80));
    assert!(found.contains(".target sm_80") && found.contains(".version 7.0"), "{found}");
    assert!(!found.contains("ld.global.v4"), "{found}");
}
