//! What specialising does to loops: the kernel before and after, and that nothing but the allowed changes.

mod common;

use common::{Bound, config, kernel, run, specialise};
use loom_compiler::Module;
use loom_compiler::ir::{Body, Kernel};
use loom_compiler::ops::{Binary, OpKind};

/// A kernel of one work-item over `%x` and `%y`, both of 16 f32, and two scalars.
fn looped(before: &str, hint: &str, body: &str) -> String {
    format!(
        "kernel.def export(\"k\") @k() {{
  %one = index.constant 1 : index
  kernel.launch.config workgroups(%one, %one, %one) workgroup_size(%one, %one, %one) : index
}} launch(%x: buffer, %y: buffer, %a: f32, %b: f32, %n: index) {{
  %zero = index.constant 0 : offset
  %c0 = index.constant 0 : index
  %c1 = index.constant 1 : index
  %c4 = index.constant 4 : index
  %c16 = index.constant 16 : index
  %xv = buffer.view %x[%zero] : buffer -> view<16xf32>
  %yv = buffer.view %y[%zero] : buffer -> view<16xf32>
  {before}
  scf.for %i = [%c0 to {bound} step %c1] {hint} {{
    {body}
  }}
  kernel.return
}}",
        bound = if hint.contains("16") {
            "%c16"
        } else if hint.contains('4') {
            "%c4"
        } else {
            "%n"
        },
        hint = hint.trim_end_matches(char::is_numeric),
    )
}

const SCALED: &str = "%s = scalar.mulf %a, %b : f32
    %v = view.load %xv[%i] : view<16xf32> -> f32
    %r = scalar.addf %v, %s : f32
    view.store %r, %yv[%i] : f32, view<16xf32>";

fn answers(kernel: &Kernel) -> Vec<f32> {
    let x: Vec<f32> = (0..16).map(|i| i as f32 + 0.5).collect();
    let mut bound = [
        Bound::f32s(&x),
        Bound::zeros(64),
        Bound::Slot(u64::from(3.0f32.to_bits())),
        Bound::Slot(u64::from(7.0f32.to_bits())),
        Bound::Slot(16),
    ];
    run(kernel, &[], &mut bound).unwrap();
    bound[1].to_f32s()
}

/// How many ops inside of loops satisfy `test`, and how many outside.
fn count(kernel: &Kernel, test: impl Fn(&OpKind) -> bool) -> (usize, usize) {
    fn walk(body: &Body, block: loom_compiler::ir::BlockId, looped: bool, visit: &mut dyn FnMut(&OpKind, bool)) {
        for op in &body.block(block).ops {
            visit(&op.kind, looped);
            for inner in &op.blocks {
                walk(body, *inner, looped || matches!(op.kind, OpKind::For | OpKind::While), visit);
            }
        }
    }
    let mut found = (0, 0);
    walk(&kernel.body, Body::ENTRY, false, &mut |kind, looped| {
        if test(kind) {
            if looped { found.0 += 1 } else { found.1 += 1 }
        }
    });
    found
}

/// A product of arguments is computed once; what reads memory or the counter stays.
#[test]
fn what_a_loop_does_not_change_is_computed_before_it() {
    let text = looped("", "", SCALED);
    let mut built = None;
    let module = Module::parse("test.loom", &text).unwrap();
    let mut passes = Vec::new();
    let kernel = module
        .specialise_watched("k", &config(&[]), &mut |pass, kernel| {
            passes.push((pass.to_owned(), kernel.to_string()));
            built.get_or_insert_with(|| kernel.clone());
        })
        .unwrap();
    let is_product = |kind: &OpKind| *kind == OpKind::Binary(Binary::MulF);
    assert_eq!(count(&built.unwrap(), is_product), (1, 0));
    assert_eq!(count(&kernel, is_product), (0, 1));
    assert_eq!(count(&kernel, |kind| *kind == OpKind::Load), (1, 0));
    assert_eq!(count(&kernel, |kind| *kind == OpKind::Binary(Binary::AddF)), (1, 0));
    let expected: Vec<f32> = (0..16).map(|i| i as f32 + 0.5 + 21.0).collect();
    assert_eq!(answers(&kernel), expected);
    assert_eq!(passes.iter().map(|(pass, _)| pass.as_str()).collect::<Vec<_>>(), ["build", "remove-dead", "hoist"]);
    assert_ne!(passes[1].1, passes[2].1, "the dump shows what a pass did");
}

/// Only with `arcp` does a division by what the loop does not change become a product.
#[test]
fn a_division_by_a_constant_of_the_loop_is_one_reciprocal_if_allowed() {
    let body = |flags: &str| {
        format!(
            "%v = view.load %xv[%i] : view<16xf32> -> f32
    %r = scalar.divf{flags} %v, %a : f32
    view.store %r, %yv[%i] : f32, view<16xf32>"
        )
    };
    let strict = kernel(&looped("", "", &body("")), "k", &[]);
    let divides = |kind: &OpKind| *kind == OpKind::Binary(Binary::DivF);
    assert_eq!(count(&strict, divides), (1, 0));
    assert_eq!(answers(&strict), (0..16).map(|i| (i as f32 + 0.5) / 3.0).collect::<Vec<_>>());
    let loose = kernel(&looped("", "", &body("<arcp>")), "k", &[]);
    assert_eq!(count(&loose, divides), (0, 1));
    assert_eq!(answers(&loose), (0..16).map(|i| (i as f32 + 0.5) * (1.0 / 3.0)).collect::<Vec<_>>());
}

/// A short loop is its turns; a long one stays a loop unless it asks for `unroll` and its bounds are constant.
#[test]
fn short_loops_are_unrolled_and_unroll_is_heeded() {
    let loops = |kind: &OpKind| *kind == OpKind::For;
    let short = kernel(&looped("", "4", SCALED), "k", &[]);
    assert_eq!(count(&short, loops), (0, 0));
    let stores = count(&short, |kind| *kind == OpKind::Store);
    assert_eq!(stores, (0, 4));
    let expected = |count: usize| (0..16).map(|i| if i < count { i as f32 + 21.5 } else { 0.0 }).collect::<Vec<_>>();
    assert_eq!(answers(&short), expected(4));

    let long = format!("{SCALED}\n{}", "%t = scalar.addf %a, %b : f32\n".replace("%t", "%unused"));
    let kept = kernel(&looped("", "16", &long), "k", &[]);
    assert_eq!(count(&kept, loops), (0, 1));
    let asked = kernel(&looped("", "unroll 16", &long), "k", &[]);
    assert_eq!(count(&asked, loops), (0, 0));
    assert_eq!(answers(&kept), expected(16));
    assert_eq!(answers(&asked), expected(16));

    // A hint: public kernels ask it of loops from an item's id on.
    let unknown = kernel(&looped("", "unroll", SCALED), "k", &[]);
    assert_eq!(count(&unknown, loops), (0, 1));
}

/// Carried values and an offset counter go through the turns in order.
#[test]
fn an_unrolled_loop_carries_its_values() {
    let before = "%o0 = index.constant 0 : offset
  %o8 = index.constant 8 : offset
  %o4 = index.constant 4 : offset
  %sum = scf.for %at = [%o0 to %o8 step %o4](%acc = %a : f32) -> (f32) {
    %w = buffer.view %x[%at] : buffer -> view<1xf32>
    %v = view.load %w[0] : view<1xf32> -> f32
    %next = scalar.fmaf %acc, %b, %v : f32
    scf.yield %next : f32
  }";
    let body = "view.store %sum, %yv[%i] : f32, view<16xf32>";
    let kernel = kernel(&looped(before, "", body), "k", &[]);
    assert_eq!(count(&kernel, |kind| *kind == OpKind::For), (0, 1));
    assert_eq!(answers(&kernel)[0], (3.0f32 * 7.0 + 0.5) * 7.0 + 1.5);
}

/// Storage of a turn is not multiplied.
#[test]
fn a_loop_with_storage_of_its_own_is_not_unrolled() {
    let body = "%size = index.constant 4 : offset
    %b0 = buffer.alloca<private> align(4) %size : buffer
    %p = buffer.view %b0[%zero] : buffer -> view<1xf32>
    view.store %a, %p[0] : f32, view<1xf32>
    %v = view.load %p[0] : view<1xf32> -> f32
    view.store %v, %yv[%i] : f32, view<16xf32>";
    let kernel = kernel(&looped("", "4", body), "k", &[]);
    assert_eq!(count(&kernel, |kind| *kind == OpKind::For), (0, 1));
    assert_eq!(answers(&kernel)[..5], [3.0, 3.0, 3.0, 3.0, 0.0]);
}

/// An index that only an unrolled turn makes known may be out of range, where a condition of the run keeps it from being used.
#[test]
fn a_turn_that_is_never_reached_is_no_error() {
    let before = "%vec = vector.load %xv[%c0] : view<16xf32> -> vector<4xf32>
  %small = buffer.view %x[%zero] : buffer -> view<4xf32>
  %c8 = index.constant 8 : index
  %sum = scf.for %k = [%c0 to %c8 step %c1](%acc = %a : f32) -> (f32) unroll {
    %live = index.cmp slt, %k, %n : index
    %next = scf.if %live -> (f32) {
      %lane = vector.extract %vec[%k] : vector<4xf32> -> f32
      %again = view.load %small[%k] : view<4xf32> -> f32
      %both = scalar.addf %lane, %again : f32
      %r = scalar.addf %acc, %both : f32
      scf.yield %r : f32
    } else {
      scf.yield %acc : f32
    }
    scf.yield %next : f32
  }";
    let text = looped(before, "4", "view.store %sum, %yv[%i] : f32, view<16xf32>");
    let kernel = kernel(&text, "k", &[]);
    let x: Vec<f32> = (0..16).map(|i| i as f32 + 0.5).collect();
    let mut bound =
        [Bound::f32s(&x), Bound::zeros(64), Bound::Slot(u64::from(3.0f32.to_bits())), Bound::Slot(0), Bound::Slot(4)];
    run(&kernel, &[], &mut bound).unwrap();
    // Twice 0.5 + 1.5 + 2.5 + 3.5.
    assert_eq!(bound[1].to_f32s()[0], 3.0 + 16.0);
    loom_compiler::tile::compile(&kernel).unwrap();
    let written = "%far = vector.extract %vec[4] : vector<4xf32> -> f32\n  ";
    let refused = specialise(&text.replace("%small =", &format!("{written}%small =")), "k", &[]).unwrap_err();
    assert!(refused.to_string().contains("lane 4 is outside the extent 4"), "{refused}");
}
