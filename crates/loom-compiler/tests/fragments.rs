//! Fragments: what is refused, word by word, and which kernels show how their fragments are laid out.

mod common;

use common::{kernel, specialise};
use loom_compiler::layout_opaque;

/// A kernel of one subgroup over `%b`, a view of halves, and `%d`, one of floats.
fn text(head: &str, ops: &str) -> String {
    format!(
        "amdgpu.target<gfx11-generic> @wide {{subgroup_size = 64}}\nkernel.def {head} @k() {{\n  \
         kernel.launch.config workgroups(1, 1, 1) workgroup_size(64, 1, 1) : index\n}} launch(%in: buffer, %out: buffer, %x: f32) {{\n  \
         %base = index.constant 0 : offset\n  %s = index.constant 16 : index\n  %t = index.constant 32 : index\n  \
         %b = buffer.view %in[%base] : buffer -> view<32x32xf16>\n  %d = buffer.view %out[%base] : buffer -> view<32x32xf32>\n  \
         %w = buffer.view %in[%base] : buffer -> view<32x32xi8>\n  %flat = buffer.view %in[%base] : buffer -> view<64xf16>\n  \
         %lane = kernel.subgroup.lane.id : index\n{ops}\n  kernel.return\n}}\n"
    )
}

const PARTS: &str = "\
%l = vector.fragment.load<lhs> %b[0, 0] shape [%s, %s] : view<32x32xf16> -> vector<16xf16>
%r = vector.fragment.load<rhs> %b[0, 0] shape [%s, %s] : view<32x32xf16> -> vector<16xf16>
%z = vector.constant 0.0 : vector<8xf32>
%i = vector.fragment<init> %z shape [%s, %s] : vector<8xf32>
";

#[track_caller]
fn refused(ops: &str, says: &str) {
    refused_in("", ops, says);
}

#[track_caller]
fn refused_in(head: &str, ops: &str, says: &str) {
    let source = text(head, ops);
    let diagnostics = specialise(&source, "k", &[]).map(drop).expect_err(ops);
    assert_eq!(diagnostics.items.len(), 1, "{diagnostics}");
    let item = &diagnostics.items[0];
    assert!(item.message.contains(says), "{diagnostics}\nshould say: {says}");
    assert!(item.line > 10, "{diagnostics}");
}

#[test]
fn shapes_fit_roles() {
    let load = |role: &str, shape: &str, ty: &str| {
        format!("%f = vector.fragment.load<{role}> %b[0, 0] shape {shape} : view<32x32xf16> -> {ty}")
    };
    refused(&load("lhs", "[%s]", "vector<16xf16>"), "a tile has rows and columns, found 1 sizes");
    refused(
        &load("lhs", "[%t, %s]", "vector<16xf16>"),
        "the tile of a lhs is [16, k] with k a multiple of 16 up to 128, found [32, 16]",
    );
    refused(&load("lhs", "[%s, 8]", "vector<8xf16>"), "found [16, 8]");
    refused(&load("rhs", "[%s, %t]", "vector<16xf16>"), "the tile of a rhs is [k, 16]");
    refused(&load("rhs", "[-16, %s]", "vector<16xf16>"), "found [-16, 16]");
    refused(&load("init", "[%s, %t]", "vector<8xf32>"), "the tile of a init is [16, 16], found [16, 32]");
    refused(&load("lhs", "[%lane, %s]", "vector<16xf16>"), "the shape of a tile must be constant once config is bound");
    refused(&load("top", "[%s, %s]", "vector<16xf16>"), "expected one of lhs, rhs, init, result, found `top`");
}

#[test]
fn payloads_fit_roles() {
    let label = |role: &str, value: &str, ty: &str| {
        format!("%v = vector.constant {value} : {ty}\n%f = vector.fragment<{role}> %v shape [%s, %s] : {ty}")
    };
    refused(
        &label("lhs", "0.0", "vector<2xf16>"),
        "the payload of a lhs is 16 elements of the tile: 16 f16, bf16, fp8 or i8",
    );
    refused(&label("rhs", "0.0", "vector<16xf32>"), "found vector<16xf32>");
    refused(
        &label("init", "0.0", "vector<4xf32>"),
        "in a subgroup of 32 the payload of a init is 8 f32 or i32, or 8 or 16 f16 or bf16",
    );
    refused(&label("result", "0.0", "vector<2x4xf32>"), "a payload is a vector of rank 1");
    refused(&label("result", "0", "vector<8xi64>"), "found vector<8xi64>");
    refused_in(
        "target(@wide)",
        &label("init", "0.0", "vector<8xf32>"),
        "in a subgroup of 64 the payload of a init is 4 f32 or i32, or 4 or 8",
    );
    let schema = "%e = encoding.define #encoding.operand<element_format=i4> : encoding<schema>\n";
    let using = |ty: &str, e: &str| {
        format!(
            "%v = vector.constant 0 : {ty}\n%f = vector.fragment<lhs> %v shape [%s, %s] using {{schema = %{e} : encoding<schema>}} : {ty}"
        )
    };
    refused(
        &format!("{schema}{}", using("vector<4xi32>", "e")),
        "the payload of a lhs is 16 elements of I4 of the tile",
    );
    refused(&using("vector<4xi32>", "s"), "`%s` is not a schema");
    let odd = "%e = encoding.define #encoding.operand<element_format=q7> : encoding<schema>\n";
    refused(&format!("{odd}{}", using("vector<4xi32>", "e")), "`q7` has no public layout of a fragment");
}

/// An operand of f32 is loaded as it is, and multiplied once it is rounded.
#[test]
fn operands_are_rounded_before_they_are_multiplied() {
    let load = |role: &str, ty: &str| {
        format!("%f = vector.fragment.load<{role}> %d[0, 0] shape [%s, %s] : view<32x32xf32> -> {ty}\n")
    };
    refused(&load("lhs", "vector<12xf32>"), "the payload of a lhs is 16 elements of the tile");
    refused(&load("rhs", "vector<4x4xf32>"), "a payload is a vector of rank 1");
    let product = "%m = vector.mma %l, %f, %i : vector<16xf16>, vector<16xf32>, vector<8xf32>";
    refused(&format!("{PARTS}{}{product}", load("rhs", "vector<16xf32>")), "the payload of a rhs is 16 elements");
    let rounded = |role: &str, to: &str| {
        format!(
            "{PARTS}{}%h = vector.fptrunc %f : vector<16xf32> to vector<16x{to}>\n\
             %m = vector.mma %l, %h, %i : vector<16xf16>, vector<16x{to}>, vector<8xf32>\n\
             vector.fragment.store<result> %m, %d[0, 0] shape [%s, %s] : vector<8xf32>, view<32x32xf32>",
            load(role, "vector<16xf32>")
        )
    };
    assert!(layout_opaque(&kernel(&text("", &rounded("rhs", "f16")), "k", &[])).is_ok());
    refused(&rounded("lhs", "f16"), "a fragment of role lhs used as rhs");
    refused(&rounded("rhs", "bf16"), "F16 by BF16 into f32");
}

#[test]
fn tiles_fit_views() {
    refused(
        "%f = vector.fragment.load<lhs> %flat[0] shape [%s, %s] : view<64xf16> -> vector<16xf16>",
        "a tile lies in a view of rank 2 or more, found rank 1",
    );
    refused(
        "%f = vector.fragment.load<lhs> %b[0] shape [%s, %s] : view<32x32xf16> -> vector<16xf16>",
        "1 indices for a view of rank 2",
    );
    refused(
        "%f = vector.fragment.load<lhs> %b[0, 0] shape [%s, 48] : view<32x32xf16> -> vector<48xf16>",
        "a tile of 48 along an extent of 32",
    );
    refused(
        "%f = vector.fragment.load<lhs> %w[0, 0] shape [%s, %s] : view<32x32xi8> -> vector<16xf16>",
        "elements of i8 do not become a payload of vector<16xf16>",
    );
    refused(
        "%f = vector.fragment.load<lhs> %b[0, 0] shape [%s, %s] : view<32x32xf16> -> vector<4xi32>",
        "i8 and fp8 into words",
    );
    refused(
        "%z = vector.constant 0 : vector<8xi32>\nvector.fragment.store<result> %z, %d[0, 0] shape [%s, %s] : vector<8xi32>, view<32x32xf32>",
        "a payload of vector<8xi32> does not become elements of f32",
    );
}

#[test]
fn products_fit_their_operands() {
    let mma = |a: &str, b: &str, c: &str, types: &str| format!("{PARTS}%p = vector.mma %{a}, %{b}, %{c} : {types}");
    let halves = "vector<16xf16>, vector<16xf16>, vector<8xf32>";
    refused(&mma("r", "r", "i", halves), "a fragment of role rhs used as lhs");
    refused(&mma("l", "l", "i", halves), "a fragment of role lhs used as rhs");
    refused(
        &mma("l", "r", "l", "vector<16xf16>, vector<16xf16>, vector<16xf16>"),
        "a fragment of role lhs used as init",
    );
    refused(&mma("l", "r", "i", "vector<16xf16>, vector<16xf16>, vector<4xf32>"), "the type written is vector<4xf32>");
    refused(&mma("l", "r", "x", "vector<16xf16>, vector<16xf16>, f32"), "expected a vector, found f32");
    let with = |ops: &str| format!("{PARTS}{ops}");
    refused(
        &with(
            "%g = vector.extf %l : vector<16xf16> to vector<16xf32>\n%h = vector.fptrunc %g : vector<16xf32> to vector<16xbf16>\n%p = vector.mma %h, %r, %i : vector<16xbf16>, vector<16xf16>, vector<8xf32>",
        ),
        "BF16 by F16 into f32; legal: f16 into f32 or f16, bf16 into f32 or bf16",
    );
    refused(
        &with(
            "%g = vector.fragment.load<lhs> %b[0, 0] shape [%s, %t] : view<32x32xf16> -> vector<32xf16>\n%p = vector.mma %g, %r, %i : vector<32xf16>, vector<16xf16>, vector<8xf32>",
        ),
        "the lhs has 32 columns, the rhs 16 rows",
    );
    refused(
        &with(
            "%c = vector.constant 0 : vector<8xi32>\n%p = vector.mma %l, %r, %c : vector<16xf16>, vector<16xf16>, vector<8xi32>",
        ),
        "F16 by F16 into i32",
    );
    refused(
        &with("%q = vector.fragment.repack<rhs> %l shape [%s, %s] : vector<16xf16> -> vector<16xf16>"),
        "a fragment of role lhs used as result",
    );
    refused(
        &with("%q = vector.fragment.repack<rhs> %i shape [%t, %s] : vector<8xf32> -> vector<32xf16>"),
        "an accumulator is a tile of [16, 16], found [32, 16]",
    );
    refused(
        &with("vector.fragment.store<result> %l, %d[0, 0] shape [%s, %s] : vector<16xf16>, view<32x32xf32>"),
        "a fragment of role lhs used as result",
    );
    // Through a loop, too.
    refused(
        &with(
            "%u = scf.for %q = [%s to %t step %s](%a = %r : vector<16xf16>) -> (vector<16xf16>) {\n%p = vector.mma %a, %r, %i : vector<16xf16>, vector<16xf16>, vector<8xf32>\nscf.yield %a : vector<16xf16>\n}",
        ),
        "a fragment of role rhs used as lhs",
    );
}

#[test]
fn formats_of_one_operand_agree() {
    let ops = "%v = vector.constant 0 : vector<4xi32>\n\
               %e = encoding.define #encoding.operand<element_format=i8> : encoding<schema>\n\
               %g = encoding.define #encoding.operand<element_format=u8> : encoding<schema>\n\
               %a = vector.fragment<lhs> %v shape [%s, %s] using {schema = %e : encoding<schema>} : vector<4xi32>\n\
               %c = vector.fragment<lhs> %v shape [%s, %s] using {schema = %g : encoding<schema>} : vector<4xi32>\n\
               %q = index.cmp ult, %lane, %s : index\n\
               %m = scf.select %q, %a, %c : vector<4xi32>\n\
               %n = vector.fragment<rhs> %v shape [%s, %s] : vector<4xi32>\n\
               %z = vector.constant 0 : vector<8xi32>\n\
               %p = vector.mma %m, %n, %z : vector<4xi32>, vector<4xi32>, vector<8xi32>";
    refused(ops, "an operand that may hold");
}

const STORE: &str = "\nvector.fragment.store<result> %p, %d[0, 0] shape [%s, %s] : vector<8xf32>, view<32x32xf32>";
const MMA: &str = "%p = vector.mma %l, %r, %i : vector<16xf16>, vector<16xf16>, vector<8xf32>";

#[track_caller]
fn opaque(ops: &str) {
    let kernel = kernel(&text("", &format!("{PARTS}{ops}")), "k", &[]);
    assert_eq!(layout_opaque(&kernel), Ok(()));
}

#[track_caller]
fn visible(ops: &str, op: &str) {
    let kernel = kernel(&text("", &format!("{PARTS}{ops}")), "k", &[]);
    let found = layout_opaque(&kernel).expect_err(ops);
    assert_eq!(found.op, op, "{found}");
}

#[test]
fn opaque_kernels() {
    opaque(&format!("{MMA}{STORE}"));
    // In a loop, from a plain splat, scaled by one number and converted.
    opaque(
        "%sum = scf.for %k = [%s to %t step %s](%a = %z : vector<8xf32>) -> (vector<8xf32>) {\n\
         %q = vector.mma %l, %r, %a : vector<16xf16>, vector<16xf16>, vector<8xf32>\nscf.yield %q : vector<8xf32>\n}\n\
         %y = vector.splat %x : vector<8xf32>\n%c = vector.mulf %sum, %y : vector<8xf32>\n\
         %e = vector.expf %c : vector<8xf32>\n%g = vector.addf %e, %sum : vector<8xf32>\n\
         %h = vector.fragment.repack<rhs> %g shape [%s, %s] : vector<8xf32> -> vector<16xf16>\n\
         %p = vector.mma %l, %h, %i : vector<16xf16>, vector<16xf16>, vector<8xf32>\n\
         %half = vector.fptrunc %p : vector<8xf32> to vector<8xf16>\n\
         vector.fragment.store<result> %half, %b[0, 0] shape [%s, %s] : vector<8xf16>, view<32x32xf16>",
    );
    // Chosen for a whole subgroup; a bias from memory.
    opaque(&format!(
        "%bias = vector.fragment.load<init> %d[0, 0] shape [%s, %s] : view<32x32xf32> -> vector<8xf32>\n\
         %sub = kernel.subgroup.id : index\n%first = index.cmp eq, %sub, %s : index\n\
         %c = scf.select %first, %bias, %i : vector<8xf32>\n\
         %p = vector.mma %l, %r, %c : vector<16xf16>, vector<16xf16>, vector<8xf32>{STORE}"
    ));
    let none = kernel(
        &text(
            "",
            "%y = view.load %d[%lane, 0] : view<32x32xf32> -> f32\nview.store %y, %d[0, %lane] : f32, view<32x32xf32>",
        ),
        "k",
        &[],
    );
    assert_eq!(layout_opaque(&none), Ok(()));
}

#[test]
fn kernels_that_show_the_layout() {
    visible(
        &format!(
            "{MMA}\n%y = vector.extract %p[0] : vector<8xf32> -> f32\nview.store %y, %d[%lane, 0] : f32, view<32x32xf32>"
        ),
        "vector.extract",
    );
    visible(&format!("{MMA}\nvector.store %p, %d[%lane, 0] : vector<8xf32>, view<32x32xf32>"), "vector.store");
    visible(
        &format!(
            "%v = vector.load %b[%lane, 0] : view<32x32xf16> -> vector<16xf16>\n%f = vector.fragment<lhs> %v shape [%s, %s] : vector<16xf16>\n\
             %p = vector.mma %f, %r, %i : vector<16xf16>, vector<16xf16>, vector<8xf32>{STORE}"
        ),
        "vector.fragment",
    );
    visible(
        &format!(
            "%v = vector.load %b[%lane, 0] : view<32x32xf16> -> vector<16xf16>\n\
             %p = vector.mma %v, %r, %i : vector<16xf16>, vector<16xf16>, vector<8xf32>{STORE}"
        ),
        "vector.mma",
    );
    // A number of each lane's own.
    visible(
        &format!(
            "%y = view.load %d[%lane, 0] : view<32x32xf32> -> f32\n%own = vector.splat %y : vector<8xf32>\n\
             %q = vector.mma %l, %r, %i : vector<16xf16>, vector<16xf16>, vector<8xf32>\n%p = vector.mulf %q, %own : vector<8xf32>{STORE}"
        ),
        "an element-wise op",
    );
    visible(
        &format!(
            "%q = vector.mma %l, %r, %i : vector<16xf16>, vector<16xf16>, vector<8xf32>\n%low = index.cmp ult, %lane, %s : index\n\
             %p = scf.select %low, %q, %i : vector<8xf32>{STORE}"
        ),
        "scf.select",
    );
    visible(
        &format!(
            "{MMA}\n%one = scalar.constant 1 : i32\n%width = scalar.constant 32 : i32\n\
             %y, %ok = kernel.subgroup.shuffle<xor> %p, %one, %width : vector<8xf32>, i32, i32\n\
             vector.store %y, %d[%lane, 0] : vector<8xf32>, view<32x32xf32>"
        ),
        "kernel.subgroup.shuffle",
    );
    // The first in the text is named.
    let ops = format!("{PARTS}{MMA}\nvector.store %p, %d[%lane, 0] : vector<8xf32>, view<32x32xf32>");
    let source = text("", &ops);
    let found = layout_opaque(&kernel(&source, "k", &[])).unwrap_err();
    assert!(source[found.at.start as usize..].starts_with("vector.store"), "{found}");
}

/// A machine that holds no operand twice: half of it a lane. How it lies is not known, so nobody may see it.
#[test]
fn split_operands_are_not_seen() {
    let head = "target(@twelve)";
    let within = |ops: &str| format!("amdgpu.target<gfx1201> @twelve\n{}", text(head, ops));
    let parts = PARTS.replace("vector<16xf16>", "vector<8xf16>");
    let product = format!("{parts}%p = vector.mma %l, %r, %i : vector<8xf16>, vector<8xf16>, vector<8xf32>\n");
    let stored = "vector.fragment.store<result> %p, %d[0, 0] shape [%s, %s] : vector<8xf32>, view<32x32xf32>";
    let opaque = kernel(&within(&format!("{product}{stored}")), "k", &[]);
    assert!(layout_opaque(&opaque).is_ok());
    let seen = |ops: &str, says: &str| {
        let diagnostics = specialise(&within(ops), "k", &[]).map(drop).expect_err(ops);
        assert!(diagnostics.items[0].message.contains(says), "{diagnostics}");
        assert!(
            diagnostics.items[0].message.contains("how a gfx12 lays its fragments out is not known"),
            "{diagnostics}"
        );
    };
    let slot = "%e = vector.extract %p[0] : vector<8xf32> -> f32\nview.store %e, %d[0, %lane] : f32, view<32x32xf32>";
    seen(&format!("{product}{slot}"), "`vector.extract`: it takes single slots of a payload");
    let own = "%q = vector.load %flat[%lane] : view<64xf16> -> vector<8xf16>\n\
               %f = vector.fragment<lhs> %q shape [%s, %s] : vector<8xf16>\n";
    let mixed = product.replace("vector.mma %l,", "vector.mma %f,");
    seen(&format!("{own}{mixed}{stored}"), "`vector.fragment`: it makes a fragment of a vector of the lane's own");
    let whole = "%f = vector.fragment.load<lhs> %b[0, 0] shape [%s, %s] : view<32x32xf16> -> vector<16xf16>\n";
    let mixed = product.replace("%l, %r, %i : vector<8xf16>", "%f, %r, %i : vector<16xf16>");
    let diagnostics = specialise(&text("", &format!("{whole}{mixed}{stored}")), "k", &[]).map(drop).expect_err("mixed");
    let says = "one operand is held once by all lanes, the other by each 16 of them";
    assert!(diagnostics.to_string().contains(says), "{diagnostics}");
}
