//! One case per refusal of collectives, atomics, exits, assertions and asynchronous copies: what the message says and what
//! the caret points at.

mod common;

use common::{single, specialise};
use loom_compiler::Diagnostics;

/// The text that the first diagnostic points at.
fn pointed(source: &str, diagnostics: &Diagnostics) -> String {
    let item = &diagnostics.items[0];
    let line = source.lines().nth(item.line - 1).unwrap_or("");
    line.chars().skip(item.column - 1).take(item.width).collect()
}

/// A kernel with a view of i32, one of f32, some constants, and these ops, which are refused.
#[track_caller]
fn ops(ops: &str, at: &str, message: &str) {
    wide("", "", ops, at, message);
}

#[track_caller]
fn wide(records: &str, head: &str, ops: &str, at: &str, message: &str) {
    let body = format!(
        "%v = buffer.view %b[%base] : buffer -> view<8xi32>\n%w = buffer.view %b[%base] : buffer -> view<8xf32>\n\
         %h = buffer.view %b[%base] : buffer -> view<16xi8>\n%f = scalar.constant 1.0 : f32\n%i = scalar.constant 1 : i32\n\
         %x = index.constant 1 : index\n%n = view.load %v[0] : view<8xi32> -> i32\n%t = scalar.cmpi eq, %n, %i : i32\n\
         %o = vector.constant 0 : vector<4xindex>\n%p = vector.splat %n : vector<4xi32>\n{ops}"
    );
    let source = format!("{records}\n{}", single("%b: buffer", &body).replace("@k(", &format!("{head} @k(")));
    let diagnostics = specialise(&source, "k", &[]).expect_err(&source);
    assert_eq!(diagnostics.items.len(), 1, "{diagnostics}");
    assert!(diagnostics.items[0].message.contains(message), "{diagnostics}\nshould say: {message}");
    // A long line is cut.
    let pointed = pointed(&source, &diagnostics);
    assert!(pointed == at || pointed.len() > 64 && at.starts_with(&pointed), "{diagnostics}: {pointed}");
}

const ORDER: &str = "{ordering = relaxed, scope = device}";

#[test]
fn subgroups() {
    ops("%r = kernel.subgroup.broadcast %f from %x : f32, index", "%x", "expected a value of type i32, found index");
    ops(
        "%l = scalar.constant 32 : i32\n%r = kernel.subgroup.broadcast %f from %l : f32, i32",
        "%l",
        "lane 32 of a subgroup of 32 work-items",
    );
    ops("%r = kernel.subgroup.broadcast.first %v : view<8xi32>", "%v", "takes a scalar or a vector of rank 1");
    ops("%r = kernel.subgroup.vote.any %i : i32", "%i", "expected a value of type i1, found i32");
    ops("%r = kernel.subgroup.vote.ballot %t : i1 -> i16", "i16", "a mask of 32 lanes is an i64 or i32, found i16");
    ops("%r = kernel.subgroup.active.mask : index", "index", "a mask of 32 lanes is an i64 or i32");
    wide(
        "amdgpu.target<gfx9> @t {subgroup_size = 64}",
        "target(@t)",
        "%r = kernel.subgroup.vote.ballot %t : i1 -> i32",
        "i32",
        "a mask of 64 lanes is an i64, found i32",
    );
    ops("%r = kernel.subgroup.match.any %p : vector<4xi32> -> i64", "%p", "takes a scalar, found vector<4xi32>");
    ops("%r, %s = kernel.subgroup.match.all %n : i32 -> i64, i32", "i32", "gives an i1, found i32");
    ops("%r = kernel.subgroup.scan<addf> %f {direction = forward} : f32", "%f", "needs a mode");
    ops(
        "%r = kernel.subgroup.scan<addf> %f {mode = upward, direction = forward} : f32",
        "mode",
        "mode = inclusive or exclusive, direction = forward or reverse, cluster_size, cluster_stride",
    );
    ops(
        "%r = kernel.workgroup.scan<addf> %f {mode = inclusive, direction = forward, cluster_size = 8} : f32",
        "cluster_size",
        "legal here: mode = inclusive or exclusive, direction = forward or reverse, each once",
    );
    ops(
        "%r = kernel.subgroup.scan<addi> %f {mode = inclusive, direction = forward} : f32",
        "%f",
        "f32 is not combined",
    );
    ops(
        "%r = kernel.subgroup.scan<addf> %f {mode = inclusive, direction = forward, cluster_size = 16, cluster_stride = 4} : f32",
        "%f",
        "16 lanes at a distance of 4 do not fit a subgroup of 32",
    );
    ops("%r = kernel.subgroup.reduce<addf> %f {cluster_size = 64} : f32", "cluster_size", "powers of two up to 32");
    ops("%r = kernel.workgroup.vote.count %t : i1 -> f32", "f32", "a count of votes is an i32 or i64, found f32");
    ops("%r = kernel.workgroup.vote.all %f : f32", "%f", "expected a value of type i1");
}

#[test]
fn atomics() {
    let refused = |ops_: &str, at: &str, message: &str| ops(ops_, at, message);
    refused(
        &format!("view.atomic.reduce<addf> %n, %v[0] {ORDER} : i32, view<8xi32>"),
        "%v",
        "takes f16, bf16, f32 or f64, the view's elements are i32",
    );
    refused(&format!("view.atomic.reduce<addi> %f, %w[0] {ORDER} : f32, view<8xf32>"), "%w", "takes integers");
    refused(&format!("%r = view.atomic.rmw<xchgf> %n, %v[0] {ORDER} : i32, view<8xi32> -> i32"), "%v", "takes floats");
    refused(
        &format!("view.atomic.reduce<nand> %n, %v[0] {ORDER} : i32, view<8xi32>"),
        "nand",
        "expected one of xchgi, xchgf, addi",
    );
    refused(
        &format!("view.atomic.reduce<addi, loud> %n, %v[0] {ORDER} : i32, view<8xi32>"),
        "loud",
        "expected `volatile` or",
    );
    refused(
        &format!("view.atomic.reduce<addi> %f, %v[0] {ORDER} : f32, view<8xi32>"),
        "%f",
        "expected a value of type i32, found f32",
    );
    refused(&format!("view.atomic.reduce<addi> %n, %v[8] {ORDER} : i32, view<8xi32>"), "8", "outside the extent");
    refused(
        &format!("view.atomic.reduce<addi> %n, %v[0, 0] {ORDER} : i32, view<8xi32>"),
        "%v",
        "2 indices for a view of rank 1",
    );
    refused(
        "view.atomic.reduce<addi> %n, %v[0] {scope = device} : i32, view<8xi32>",
        "view.atomic.reduce",
        "needs `ordering`",
    );
    refused(
        "view.atomic.reduce<addi> %n, %v[0] {ordering = relaxed} : i32, view<8xi32>",
        "view.atomic.reduce",
        "needs `scope`",
    );
    refused(
        "view.atomic.reduce<addi> %n, %v[0] {ordering = eventually, scope = device} : i32, view<8xi32>",
        "eventually",
        "`ordering` is relaxed, acquire, release, acq_rel or seq_cst",
    );
    refused(
        "view.atomic.reduce<addi> %n, %v[0] {ordering = relaxed, scope = world} : i32, view<8xi32>",
        "world",
        "`scope` is thread, subgroup, workgroup, device or system",
    );
    refused(
        "view.atomic.reduce<addi> %n, %v[0] {ordering = relaxed, scope = device, weak = true} : i32, view<8xi32>",
        "weak",
        "legal here: ordering, scope, cache_scope, cache_temporal",
    );
    refused(
        "%r = view.atomic.load %v[0] {ordering = release, scope = device} : view<8xi32> -> i32",
        "release",
        "an atomic load is relaxed, acquire or seq_cst",
    );
    refused(
        "%r = view.atomic.load %v[0] {ordering = acquire, scope = device} : view<8xi32> -> f32",
        "f32",
        "gives i32, found f32",
    );
    refused(
        "view.atomic.store %n, %v[0] {ordering = acquire, scope = device} : i32, view<8xi32>",
        "acquire",
        "an atomic store is relaxed, release or seq_cst",
    );
    refused(
        "%r = view.atomic.cmpxchg %n, %i, %v[0] {success_ordering = acq_rel, failure_ordering = release, scope = device} : i32, view<8xi32> -> i32",
        "release",
        "an exchange that fails stores nothing to release",
    );
    refused(
        "%r = view.atomic.cmpxchg %n, %i, %v[0] {success_ordering = acq_rel, scope = device} : i32, view<8xi32> -> i32",
        "view.atomic.cmpxchg",
        "needs `failure_ordering`",
    );
    refused(
        "%r = view.atomic.cmpxchg %n, %f, %v[0] {success_ordering = acq_rel, failure_ordering = relaxed, scope = device} : i32, view<8xi32> -> i32",
        "%f",
        "expected a value of type i32",
    );
    refused(
        &format!("vector.atomic.reduce<addi> %p, %v[0][%n] {ORDER} : vector<4xi32>, view<8xi32>, i32"),
        "%n",
        "a vector of offsets with the shape of vector<4xi32>, found i32",
    );
    refused(
        &format!(
            "%q = vector.constant 0 : vector<2xindex>\nvector.atomic.reduce<addi> %p, %v[0][%q] {ORDER} : vector<4xi32>, view<8xi32>, vector<2xindex>"
        ),
        "%q",
        "with the shape of vector<4xi32>, found vector<2xindex>",
    );
    refused(
        &format!(
            "%q = vector.constant 0.0 : vector<4xf32>\nvector.atomic.reduce<addi> %p, %v[0][%q] {ORDER} : vector<4xi32>, view<8xi32>, vector<4xf32>"
        ),
        "%q",
        "offsets are index or integers",
    );
    refused(
        &format!(
            "vector.atomic.reduce.mask<addi> %p, %v[0][%o], %p {ORDER} : vector<4xi32>, view<8xi32>, vector<4xindex>, vector<4xi32>"
        ),
        "%p",
        "expected a value of type vector<4xi1>, found vector<4xi32>",
    );
    refused(
        &format!(
            "%z = buffer.view %b[%base] : buffer -> view<i32>\nvector.atomic.reduce<addi> %p, %z[][%o] {ORDER} : vector<4xi32>, view<i32>, vector<4xindex>"
        ),
        "%o",
        "a view of rank 0 has no axis for offsets",
    );
    refused("buffer.fence scope(device) ordering(relaxed)", "relaxed", "a relaxed fence orders nothing");
    refused(
        "buffer.fence scope(all) ordering(acquire)",
        "all",
        "expected thread, subgroup, workgroup, device or system",
    );
}

#[test]
fn barriers() {
    let legal = "legal barriers: workgroup memory with scope workgroup or subgroup";
    ops("kernel.barrier<workgroup> scope(workgroup) ordering(acquire)", "scope", legal);
    ops("kernel.barrier<workgroup> scope(device) ordering(acq_rel)", "scope", legal);
    ops("kernel.barrier<global> scope(subgroup) ordering(acq_rel)", "scope", legal);
    ops("kernel.barrier<global> {ordering = relaxed, scope = workgroup}", "{", legal);
    ops("kernel.barrier<private> scope(workgroup) ordering(acq_rel)", "private", "expected `workgroup` or `global`");
}

#[test]
fn exits_and_assertions() {
    ops("kernel.exit %n : i32", "%n", "expected a value of type i1, found i32");
    let top = "stands at the top level of a kernel's body only";
    ops("scf.if %t {\nkernel.exit %t : i1\n}", "kernel.exit", top);
    ops("kernel.exit %t : i1 {\nkernel.exit %t : i1\nkernel.return\n}", "kernel.exit", top);
    wide(
        "func.def @leave(%c: i1) {\nkernel.exit %c : i1\nfunc.return\n}",
        "",
        "func.call @leave(%t) : (i1)",
        "kernel.exit",
        top,
    );
    ops("kernel.exit %t : i1 {\nscf.yield\n}", "scf.yield", "this region ends in `kernel.return`, found `scf.yield`");
    ops("kernel.assert %n : i32", "%n", "expected a value of type i1");
    ops("kernel.assert %t ok : i1", "ok", "expected `:`");
    let long = "x".repeat(1025);
    ops(&format!("kernel.assert %t \"{long}\" : i1"), &format!("\"{long}\""), "at most 1024 bytes, found 1025");
}

#[test]
fn asynchronous_copies() {
    let copy = "%c = kernel.async.copy %v to %w {direction = global_to_workgroup} : view<8xi32> to view<8xf32> -> kernel.async.token\n";
    ops(
        "%c = kernel.async.copy %v to %h : view<8xi32> to view<16xi8> -> kernel.async.token",
        "%h",
        "one constant size, found 32 and 16 bytes",
    );
    ops(
        "%d = buffer.view %b[%base] : buffer -> view<[%m]xi32>\n%c = kernel.async.copy %v to %d : view<8xi32> to view<[%m]xi32> -> kernel.async.token",
        "%m",
        "not defined here",
    );
    ops(
        "%m = index.cast %n : i32 to index\n%d = buffer.view %b[%base] : buffer -> view<[%m]xi32>\n%c = kernel.async.copy %v to %d : view<8xi32> to view<[%m]xi32> -> kernel.async.token",
        "%d",
        "found 32 and an unknown number of bytes",
    );
    ops(
        "%c = kernel.async.copy %v to %w {direction = sideways} : view<8xi32> to view<8xf32> -> kernel.async.token",
        "direction",
        "direction, such as global_to_workgroup",
    );
    ops(
        &format!("{copy}kernel.async.wait %c {{newer_groups = 0}} : kernel.async.group"),
        "%c",
        "is no kernel.async.group",
    );
    ops(
        &format!("{copy}%g = kernel.async.group %n : kernel.async.token -> kernel.async.group"),
        "%n",
        "is no kernel.async.token",
    );
    ops(
        &format!("{copy}%g = kernel.async.group %c : kernel.async.group -> kernel.async.group"),
        "kernel.async.group",
        "expected the type `kernel.async.token`",
    );
    ops(
        &format!(
            "{copy}%g = kernel.async.group %c : kernel.async.token -> kernel.async.group\nkernel.async.wait %g {{newer_groups = -1}} : kernel.async.group"
        ),
        "newer_groups",
        "how many later groups may go on",
    );
    // It is a value, which no other op takes.
    let found = "the type written is index, the value's is kernel.async.token";
    ops(&format!("{copy}%y = index.add %x, %c : index"), "index", found);
    let group = format!("{copy}%g = kernel.async.group %c : kernel.async.token -> kernel.async.group\n");
    ops(&format!("{group}%y = vector.splat %g : vector<4xi32>"), "%g", "expected");
    ops(
        &format!("{group}%y = scalar.bitcast %g : kernel.async.group to i32"),
        "kernel.async.group",
        "converts scalars",
    );
    ops(
        &format!("{group}%y = kernel.subgroup.broadcast.first %g : kernel.async.group"),
        "%g",
        "takes a scalar or a vector",
    );
    let found = "the value's is kernel.async.group";
    ops(&format!("{group}%y = scf.select %t, %c, %g : kernel.async.token"), "scf.select", found);
}

#[test]
fn what_only_some_hardware_has() {
    let hardware = "is for one kind of hardware only";
    ops(
        "%c = kernel.async.gather %v to %w : view<8xi32> to view<8xf32> -> kernel.async.token",
        "kernel.async.gather",
        hardware,
    );
    ops(
        "%c = kernel.async.cluster.gather %v to %w using %i : view<8xi32> to view<8xf32>, i32 -> kernel.async.token",
        "kernel.async.cluster.gather",
        hardware,
    );
    ops(
        "%c = kernel.async.tensor.load.to.lds %v to %w using %i : view<8xi32> to view<8xf32>, i32 -> kernel.async.token",
        "kernel.async.tensor.load.to.lds",
        "tensor memory",
    );
    ops(
        "%d = kernel.tensor.lds.descriptor dgroups(%p) : vector<4xi32> -> kernel.tensor.lds.descriptor",
        "kernel.tensor.lds.descriptor",
        "tensor memory",
    );
    ops("amdgpu.waitcnt %x : index", "amdgpu.waitcnt", "ops of one machine (target assembly)");
    ops("low.invoke @asm(%x) : (index)", "low.invoke", "ops of one machine (target assembly)");
}

#[test]
fn clusters() {
    let source = |clusters: &str| {
        format!(
            "kernel.def @k(%n: index) {{\n  kernel.launch.config workgroups(4, 1, 1) workgroup_size(1, 1, 1) cluster_size({clusters}) : index\n\
             }} launch() {{\n  kernel.return\n}}\n"
        )
    };
    for clusters in ["0, 1, 1", "%n, 1, 1", "2000, 1, 1"] {
        let diagnostics = specialise(&source(clusters), "k", &[]).unwrap_err();
        assert!(diagnostics.to_string().contains("a cluster size is a constant from 1 to 1024"), "{diagnostics}");
    }
    specialise(&source("2, 1, 1"), "k", &[]).unwrap();
}
