//! The edges of section 1 and 2: how text is cut, and what may be spelled how.

mod common;

use common::{Bound, kernel, run, single};
use loom_compiler::Module;

/// Runs a body that stores one i32 per line of `results` and compares.
#[track_caller]
fn gives(ops: &str, names: &[&str], expected: &[i32]) {
    let count = names.len();
    let mut body = format!("%out = buffer.view %b[%base] : buffer -> view<{count}xi32>\n{ops}\n");
    for (at, name) in names.iter().enumerate() {
        body += &format!("view.store {name}, %out[{at}] : i32, view<{count}xi32>\n");
    }
    let kernel = kernel(&single("%b: buffer", &body), "k", &[]);
    let mut bound = [Bound::zeros(4 * count)];
    run(&kernel, &[], &mut bound).unwrap();
    assert_eq!(bound[0].to_i32s(), expected, "{ops}");
}

#[test]
fn tokens_need_no_space_where_they_stay_separable() {
    gives("%a=scalar.constant 7:i32 %c=scalar.addi %a,%a:i32// the end", &["%c"], &[14]);
    gives("%a\n=\nscalar.constant\n7\n:\ni32", &["%a"], &[7]);
    // A name ends before `->`, and holds dashes otherwise.
    gives(
        "%a-b = scalar.constant 3 : i32\n%v = vector.splat %a-b : vector<2xi32>\n%x = vector.extract %v[1]:vector<2xi32>->i32",
        &["%x", "%a-b"],
        &[3, 3],
    );
    gives("%0 = scalar.constant 0x10 : i32\n%$_9 = scalar.constant -0x10 : i32", &["%0", "%$_9"], &[16, -16]);
    gives(
        "%n = index.constant 2 : index\n%four = index.constant 4 : offset\n%o = index.scale %n, %four:index,offset->offset\n\
         %r = index.cast %o : offset to i32",
        &["%r"],
        &[8],
    );
}

#[test]
fn shapes_are_read_by_their_own_rules() {
    // In a shape `0x` is no hexadecimal prefix, spaces and comments may stand anywhere, and `x` separates.
    let module =
        Module::parse("s.loom", &single("%b: buffer", "%v = buffer.view %b[%base] : buffer -> view<0xf32>")).unwrap();
    module.specialise("k", &common::config(&[])).unwrap();
    let zero_indices = single("%b: buffer", "%v = buffer.view %b[%base] : buffer -> view<0xindex>");
    common::specialise(&zero_indices, "k", &[]).unwrap();
    gives(
        "%n = index.constant 2 : index\n%v = buffer.view %b[%base] : buffer -> view< [ %n ] x // rows\n 1x[%n]xi32 , #dense >\n\
         %s = scalar.constant 5 : i32\nview.store %s, %v[0, 0, 0] : i32, view<2x1x2xi32>\n\
         %r = view.load %v[0, 0, 0] : view<[%n]x1x[%n]xi32> -> i32",
        &["%r"],
        &[5],
    );
}

#[test]
fn floats_and_special_values() {
    let bits = |literal: &str, expected: u32| {
        let ops = format!("%f = scalar.constant {literal} : f32\n%r = scalar.bitcast %f : f32 to i32");
        gives(&ops, &["%r"], &[expected as i32]);
    };
    bits("1e-6", 1e-6f32.to_bits());
    bits("2.5E+3", 2500f32.to_bits());
    bits("-0.0", 0x8000_0000);
    bits("inf", 0x7f80_0000);
    bits("-inf", 0xff80_0000);
    bits("nan", f32::NAN.to_bits());
    bits("-nan", f32::NAN.to_bits());
    bits("4.0e+38", 0x7f80_0000);
    bits("1e-46", 0);
    gives("%t = scalar.constant true : i1\n%r = scalar.extui %t : i1 to i32", &["%r"], &[1]);
    gives("%t = scalar.constant 1 : i1\n%r = scalar.extsi %t : i1 to i32", &["%r"], &[-1]);
}

#[test]
fn annotations_and_empty_dictionaries_mean_nothing() {
    gives(
        "%a = scalar.constant 7 : i32 loc(\"file.py\":3:4)\n%o = buffer.view %b[%base] : buffer -> view<1xi32>\n\
         %r = view.load %o[0] {} : view<1xi32> -> i32\nscf.schedule.fence",
        &["%a"],
        &[7],
    );
    let source = format!(
        "#packed = #family<width=4>\namdgpu.target<gfx11-generic> @t {{subgroup_size = 32}}\ntarget.generic<reference> @u {{abi = \"x\\u0041\\n\"}}\n{}",
        single("", "").replace("@k(", "target(@t) export(\"a\\u00e9 b\") @k(")
    );
    let module = Module::parse("t.loom", &source).unwrap();
    assert_eq!(module.kernels(), ["a\u{e9} b"]);
    assert_eq!(module.specialise("a\u{e9} b", &common::config(&[])).unwrap().name, "a\u{e9} b");
    assert!(module.specialise("@k", &common::config(&[])).is_ok());
}

#[test]
fn both_binding_spellings_and_bare_result_types() {
    gives(
        "%z = scalar.constant 0 : i32\n%o = scalar.constant 1 : i32\n\
         %p, %q = scf.for %i = [0 to 3 step 1](%a = %z : i32, %c = %o : i32) -> (i32, i32) {\nscf.yield %c, %a : i32, i32\n}\n\
         %r, %s = scf.for %i = [0 to 4 step 1](%a = %z, %c = %o : i32, i32) -> (i32, i32) unroll(2) {\nscf.yield %c, %a : i32, i32\n}",
        &["%p", "%q", "%r", "%s"],
        &[1, 0, 0, 1],
    );
}

#[test]
fn one_list_stands_for_both_signatures_in_old_text() {
    let source = "kernel.def @k(%n: index) {\n kernel.launch.config workgroups(%n, 1, 1) workgroup_size(2, 1, 1) : index\n} launch {\n kernel.return\n}";
    let kernel = kernel(source, "k", &[]);
    assert_eq!(kernel.parameters.len(), 1);
    assert_eq!(kernel.launch.geometry(&[5]).unwrap().workgroups, [5, 1, 1]);
    // A buffer among them is the body's alone: the geometry takes one slot for each scalar.
    let source = source.replace("(%n: index)", "(%b: buffer, %s: f32, %n: index)");
    let kernel = common::kernel(&source, "k", &[]);
    assert_eq!(kernel.parameters.len(), 3);
    assert_eq!(kernel.launch.geometry(&[0, 5]).unwrap().workgroups, [5, 1, 1]);
}
