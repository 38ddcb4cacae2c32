//! One case per refusal of packed, gathered and encoded vectors and of storages as such.

mod common;

use common::{single, specialise};
use loom_compiler::Module;

const NAMES: &str = "%x = index.constant 1 : index\n%i = scalar.constant 1 : i32\n%f = scalar.constant 1.0 : f32\n\
                     %v8 = vector.constant 1 : vector<8xi8>\n%v2 = vector.constant 1 : vector<2xi32>\n%w2 = vector.constant 1.0 : vector<2xf32>\n\
                     %m2 = vector.constant true : vector<2xi1>\n%o2 = vector.constant 0 : vector<2xindex>\n\
                     %q = buffer.view %b[%base] : buffer -> view<4x8xf32>\n%q1 = buffer.view %b[%base] : buffer -> view<8xf32>\n\
                     %q0 = buffer.view %b[%base] : buffer -> view<f32>\n";

/// The only refusal says `message` and points at `at`.
#[track_caller]
fn ops(ops: &str, at: &str, message: &str) {
    let source = single("%b: buffer", &format!("{NAMES}{ops}"));
    let diagnostics = specialise(&source, "k", &[]).expect_err(ops);
    assert_eq!(diagnostics.items.len(), 1, "{diagnostics}");
    let item = &diagnostics.items[0];
    assert!(item.message.contains(message), "{diagnostics}\nshould say: {message}");
    let line = source.lines().nth(item.line - 1).unwrap_or("");
    let pointed: String = line.chars().skip(item.column - 1).take(item.width).collect();
    assert_eq!(pointed, at, "{diagnostics}");
}

#[test]
fn packed_dots() {
    let dot = |op: &str, types: &str| format!("%r = vector.{op} %v8, %v8, %v2 : {types}");
    let types = "vector<8xi8>, vector<8xi8>, vector<2xi32>";
    ops(&dot("dot4i<s8s4>", types), "s8s4", "one of s8s8, u8s8, s8u8, u8u8");
    ops(&dot("dot4i", types), "%v8", "expected `<`");
    ops(
        "%r = vector.dot4i<s8s8> %v8, %v8, %w2 : vector<8xi8>, vector<8xi8>, vector<2xf32>",
        "%v8",
        "a quarter as many i32",
    );
    ops(
        "%c = vector.constant 1 : vector<3xi32>\n%r = vector.dot4i<s8s8> %v8, %v8, %c : vector<8xi8>, vector<8xi8>, vector<3xi32>",
        "%v8",
        "a quarter as many i32",
    );
    ops(&dot("dot2f", types), "%v8", "f16 or bf16");
    ops(&dot("dot8i4<s4s4>", types), "%v8", "three equal vectors of i32");
    ops("%r = vector.dot4f8<fp8> %v2, %v2, %w2 : vector<2xi32>, vector<2xf32>", "fp8", "one of fp8fp8");
    ops("%r = vector.dot4f8<fp8bf8> %v2, %v2, %v2 : vector<2xi32>", "%v2", "as many f32");
    ops("%r = vector.dot4i<s8s8> %v8, %v8, %i : vector<8xi8>, vector<8xi8>, i32", "%v8", "takes vectors, found i32");
}

#[test]
fn bits() {
    let field = |field: &str| format!("%r = vector.bitfield.extractu %v8 {field} : vector<8xi8> -> vector<8xi32>");
    ops(&field("{offset = 5, width = 4}"), "{", "not inside 8 bits");
    ops(&field("{offset = -1, width = 4}"), "{", "not inside 8 bits");
    ops(&field("{offset = 0, width = 0}"), "{", "not inside 8 bits");
    ops(&field("{offset = 0}"), "{", "needs `{offset = .., width = ..}`");
    ops(&field("{first = 0}"), "first", "legal here: `offset` and `width`");
    ops(
        "%r = vector.bitfield.extractu %w2 {offset = 0, width = 1} : vector<2xf32> -> vector<2xi32>",
        "vector",
        "takes i8, i16, i32 or i64",
    );
    ops(
        "%r = vector.bitfield.extractu %v2 {offset = 0, width = 9} : vector<2xi32> -> vector<2xi8>",
        "vector",
        "9 bits do not fit i8",
    );
    ops(
        "%r = vector.bitfield.extractu %v2 {offset = 0, width = 1} : vector<2xi32> -> vector<3xi32>",
        "vector",
        "keeps the shape",
    );
    ops(
        "%r = vector.bitfield.insert %v2 into %v8 {offset = 0, width = 1} : vector<2xi32>, vector<8xi8>",
        "vector",
        "two values of one shape",
    );
    ops("%r = scalar.bitfield.insert %i into %i {offset = 30, width = 3} : i32, i32", "{", "not inside 32 bits");
    ops(
        "%r = vector.bitunpacku<4> %v8 : vector<8xi8> -> vector<15xi8>",
        "vector",
        "15 fields of 4 bits are not the bits of vector<8xi8>",
    );
    ops("%r = vector.bitunpacks<9> %v8 : vector<8xi8> -> vector<8xi8>", "9", "a field has 1 to 8 bits");
    ops("%r = vector.bitunpacks<0> %v8 : vector<8xi8> -> vector<8xi8>", "0", "a field has 1 to 8 bits");
    ops("%r = vector.bitpack<4> %v8 : vector<8xi8> -> vector<8xi8>", "vector", "are not the bits of");
    ops("%r = vector.bitcast %v8 : vector<8xi8> to vector<3xi16>", "vector", "keeps the total bits");
}

#[test]
fn tables_and_axes() {
    ops(
        "%r = vector.table.lookup %w2[%w2] : vector<2xf32>, vector<2xf32> -> vector<2xf32>",
        "%w2",
        "indices are integers",
    );
    ops(
        "%r = vector.table.lookup %w2[%v2] : vector<2xf32>, vector<2xi32> -> vector<2xi32>",
        "vector",
        "the result is vector<2xf32>",
    );
    ops(
        "%r = vector.table.quantize %w2, %w2 {nan = lowest} : vector<2xf32>, vector<2xf32> -> vector<2xi8>",
        "nan",
        "nan = zero|max",
    );
    ops("%r = vector.table.quantize %v2, %w2 : vector<2xi32>, vector<2xf32> -> vector<2xi8>", "%v2", "a float vector");
    ops(
        "%r = vector.table.quantize %w2, %w2 : vector<2xf32>, vector<2xf32> -> vector<3xi8>",
        "vector",
        "has the shape of",
    );
    ops("%r = vector.reduce.axes<addf> %w2, %f axes [1] : vector<2xf32>, f32", "1", "axes of a vector of rank 1");
    ops("%r = vector.reduce.axes<addf> %w2, %f axes [0, 0] : vector<2xf32>, f32", "0", "each once");
    ops("%r = vector.reduce.axes<addf> %w2, %w2 axes [0] : vector<2xf32>, vector<2xf32>", "[", "these axes leave f32");
    ops("%r = vector.reduce.axes<addi> %w2, %f axes [0] : vector<2xf32>, f32", "%w2", "is not combined this way");
    ops(
        "%e = vector.empty : vector<0xf32>\n%r = vector.extract %e[%x] : vector<0xf32> -> f32",
        "%x",
        "an extent of 0 has no lanes",
    );
}

#[test]
fn gathers() {
    ops(
        "%r = vector.gather %q1[0][%w2] : view<8xf32>, vector<2xf32> -> vector<2xf32>",
        "%w2",
        "offsets are a vector of index",
    );
    ops(
        "%r = vector.gather %q1[0][%o2] : view<8xf32>, vector<2xindex> -> vector<3xf32>",
        "%o2",
        "the offsets are vector<3xindex>",
    );
    ops(
        "%r = vector.gather %q1[0][%o2] : view<8xf32>, vector<2xindex> -> vector<2xi32>",
        "vector",
        "elements of the view are f32",
    );
    ops(
        "%r = vector.gather %q[0][%o2] : view<4x8xf32>, vector<2xindex> -> vector<2xf32>",
        "%q",
        "1 indices for a view of rank 2",
    );
    ops("%r = vector.gather %q0[][%o2] : view<f32>, vector<2xindex> -> vector<2xf32>", "vector", "no axis to go along");
    ops(
        "vector.scatter.mask %w2, %q1[0][%o2], %o2 : vector<2xf32>, view<8xf32>, vector<2xindex>, vector<2xindex>",
        "%o2",
        "the mask is vector<2xi1>",
    );
    ops("vector.scatter %f, %q1[0][%o2] : f32, view<8xf32>, vector<2xindex>", "%f", "expected a vector type");
    ops(
        "%c = vector.constant 1.0 : vector<1x2xf32>\n%m = vector.constant true : vector<1x2xi1>\n%r = vector.load.expand %q1[0], %m, %c : view<8xf32>, vector<1x2xi1>, vector<1x2xf32>",
        "%m",
        "takes vectors of rank 1",
    );
    ops(
        "%r = vector.gather %q1[0][%o2] {cached = yes} : view<8xf32>, vector<2xindex> -> vector<2xf32>",
        "cached",
        "`cache_scope` and `cache_temporal`",
    );
}

#[test]
fn storages() {
    for op in [
        "copy %b[%base], %b[%base], %base",
        "fill %i, %b[%base], %base : i32",
        "compare %b[%base], %b[%base], %base",
        "load.i8.u %b[%base]",
    ] {
        let name = format!("buffer.{}", op.split(' ').next().unwrap());
        ops(&format!("buffer.{op}"), &name, "moves bytes on the host");
    }
    ops("%n = buffer.length %x", "%x", "expected a buffer, found index");
    ops("%n = buffer.length %b : index", "index", "gives an offset");
    ops("%t, %p = buffer.pack [align(24) %base] : offset", "24", "a positive power of two");
    ops("%t, %p = buffer.pack [align(16) %x] : offset", "%x", "expected a value of type offset");
    ops("%t = buffer.pack [align(16) %base] : offset", "buffer.pack", "has 2 results; 1 names");
    ops("buffer.fence scope(galaxy) ordering(acquire)", "galaxy", "expected thread, subgroup");
    ops("buffer.fence scope(device) ordering(relaxed)", "relaxed", "a relaxed fence orders nothing; legal: acquire");
    ops("buffer.assume.memory_space<registers> %b : buffer", "registers", "a memory space");
}

#[test]
fn encodings() {
    let define =
        "%s = encoding.define #encoding.operand<element_format=bfp16ebs8, payload_elements=64> : encoding<schema>\n";
    ops(
        &format!("{define}%r = vector.decode %v8 using %s : vector<8xi8>, encoding<schema> -> vector<8xf32>"),
        "%s",
        "element format `bfp16ebs8` is that of one device and has no public definition",
    );
    let coded =
        |record: &str, rest: &str| format!("%s = encoding.define {record} : encoding<schema>\n%r = vector.{rest}");
    let decode = "decode %v8 using %s : vector<8xi8>, encoding<schema> -> vector<16xf32>";
    ops(&coded("#nowhere.known<a=1>", decode), "%s", "`#nowhere.known` has no public definition");
    ops(&coded("#encoding.operand<payload_elements=1>", decode), "%s", "has no public definition");
    ops(&coded("#encoding.operand<element_format=i8>", decode), "vector", "16 elements of 8 bits are not the 64 bits");
    ops(
        &coded("#encoding.operand<element_format=i4, payload_packing=target_fragment>", decode),
        "%s",
        "depends on a device's registers",
    );
    ops(&coded("#ggml.q4_0", decode), "%s", "a block has 18 bytes, or 16 of codes");
    ops(
        &coded("#ggml.q8_0", "encode %w2 using %s : vector<2xf32>, encoding<schema> -> vector<8xi8>"),
        "%s",
        "only decoding is defined",
    );
    ops(
        &coded(
            "#encoding.operand<element_format=f8e4m3, rounding=flush_subnormal>",
            "encode %w2 using %s : vector<2xf32>, encoding<schema> -> vector<2xi8>",
        ),
        "%s",
        "`rounding = flush_subnormal` has no public definition",
    );
    ops(
        &coded(
            "#encoding.operand<element_format=f4e2m1>",
            "encode %w2 using %s : vector<2xf32>, encoding<schema> -> vector<1xi8>",
        ),
        "%s",
        "floats below 8 bits",
    );
    ops(
        &coded(
            "#encoding.operand<element_format=i4>",
            "decode %v8 using %s {speed = %f : f32} : vector<8xi8>, encoding<schema> -> vector<16xf32>",
        ),
        "speed",
        "`scale`, `min` and `zero_point`",
    );
    ops(
        &coded(
            "#encoding.operand<element_format=i4>",
            "decode %v8 using %s {scale = %w2 : vector<2xf32>, scale = %f : f32} : vector<8xi8>, encoding<schema> -> vector<16xf32>",
        ),
        "scale",
        "each once",
    );
    ops("%s = encoding.define #a<k=1, k=2> : encoding<schema>", "k", "given twice");
    ops("%s = encoding.define #a : encoding<shape>", "shape", "one of layout, schema, storage, transform");
    ops("%s = encoding.define #a : encoding<schema>\n%r = index.add %x, %s : index", "%s", "is a layout or encoding");
    ops("%r = vector.decode %v8 using %x : vector<8xi8>, encoding<schema> -> vector<8xf32>", "%x", "is no encoding");
    ops(
        "%r = vector.transform %w2, %x : vector<2xf32>, encoding<transform> -> vector<2xf32>",
        "vector.transform",
        "no public definition",
    );
    ops("%r = encoding.isa %x, \"ggml\" : i1", "%x", "is no encoding");
}

/// An alias stands for its record; one of itself is refused, not followed for ever.
#[test]
fn aliases() {
    let kernel = |record: &str| {
        single(
            "%b: buffer",
            &format!(
                "{NAMES}%s = encoding.define {record} : encoding<schema>\n%e = vector.decode %v8 using %s : vector<8xi8>, encoding<schema> -> vector<8xf32>\nvector.store %e, %q1[0] : vector<8xf32>, view<8xf32>"
            ),
        )
    };
    let source = format!("#packed = #encoding.operand<element_format=i8>\n#again = #packed\n{}", kernel("#again"));
    specialise(&source, "k", &[]).unwrap_or_else(|e| panic!("{e}"));
    let source = format!("#a = #b\n#b = #a\n{}", kernel("#a"));
    let diagnostics = specialise(&source, "k", &[]).unwrap_err();
    assert!(diagnostics.to_string().contains("an alias of an alias"), "{diagnostics}");
}

/// A file's aliases are its own, and come with what is linked of it.
#[test]
fn aliases_of_files() {
    let decode = "%r = vector.decode %v using #p : vector<1xi8>, encoding<schema> -> vector<1xf32>\n";
    let library = format!(
        "#p = #encoding.operand<element_format=u8>\nfunc.def public @f(%v: vector<1xi8>) -> (vector<1xf32>) {{\n{decode}func.return %r : vector<1xf32>\n}}\n"
    );
    let body = format!(
        "%v = vector.constant -1 : vector<1xi8>\n{decode}%other = func.call @f(%v) : (vector<1xi8>) -> (vector<1xf32>)\n\
         %sum = vector.addf %r, %other : vector<1xf32>\n%o = buffer.view %b[%base] : buffer -> view<1xf32>\nvector.store %sum, %o[0] : vector<1xf32>, view<1xf32>"
    );
    let root = format!(
        "#p = #encoding.operand<element_format=i8>\nfunc.decl @f(%v: vector<1xi8>) -> (vector<1xf32>)\n{}",
        single("%b: buffer", &body)
    );
    let (root, library) = (Module::parse("root", &root).unwrap(), Module::parse("library", &library).unwrap());
    let linked = root.link(&[&library]).unwrap_or_else(|e| panic!("{e}"));
    let kernel = linked.specialise("k", &Default::default()).unwrap_or_else(|e| panic!("{e}"));
    let mut bound = [common::Bound::f32s(&[0.0])];
    common::run(&kernel, &[], &mut bound).unwrap();
    assert_eq!(bound[0].to_f32s(), [254.0]);
}

/// What a view carries: packed numbers lie densely, a storage has its layout.
#[test]
fn encodings_of_views() {
    let body = "%l = encoding.layout.strided [%x, 4] : encoding<layout>\n%s = encoding.define #ggml.q4_0 : encoding<schema>\n\
                %p = encoding.define #physical_storage {layout = %l : encoding<layout>, schema = %s : encoding<schema>} : encoding<storage>\n\
                %t = encoding.assume.spec %s, #ggml.q4_0 : encoding<schema>\n\
                %v = buffer.view %b[%base] : buffer -> view<2x2xi8, %p>\n%w = buffer.view %b[%base] : buffer -> view<18xi8, #ggml.q4_0>\n\
                %u = buffer.view %b[%base] : buffer -> view<18xi8, %t>\n\
                %e = view.load %v[1, 1] : view<2x2xi8, %p> -> i8\nview.store %e, %w[17] : i8, view<18xi8, #ggml.q4_0>\n\
                %is = encoding.isa %p, \"ggml\" : i1\n%not = encoding.isa %s, \"ggml.q4\" : i1\n%both = scalar.xori %is, %not : i1\n%k = scalar.extui %both : i1 to i8\n\
                view.store %k, %u[16] : i8, view<18xi8, %t>";
    let kernel = common::kernel(&single("%b: buffer", &format!("{NAMES}{body}")), "k", &[]);
    let mut bound = [common::Bound::Bytes((0..64).collect())];
    common::run(&kernel, &[], &mut bound).unwrap();
    assert_eq!(bound[0].bytes()[16..19], [1, 5, 18]);
}

/// Promises about storages, in both spellings, leave the storage as it is.
#[test]
fn promises_about_storages() {
    let body = "%n0, %n1 = buffer.assume.noalias %b, %c : buffer, buffer\n%a0 = buffer.assume.alignment %n0 {minimum_alignment = 16} : buffer\n\
                %a1, %a2 = buffer.assume.alignment %a0, %n1 {minimum_alignment = 4} : buffer, buffer\n\
                %m0 = buffer.assume.memory_space<global> %a1 : buffer\n%m1 = buffer.assume.memory_space %m0 {memory_space = global} : buffer\n\
                %s0 = buffer.assume.same_root %m1, %b : buffer\n%v = buffer.view %s0[%base] : buffer -> view<1xi32>\n\
                %w = buffer.view %a2[%base] : buffer -> view<1xi32>\n%e = view.load %v[0] : view<1xi32> -> i32\nview.store %e, %w[0] : i32, view<1xi32>";
    let kernel = common::kernel(&single("%b: buffer, %c: buffer", body), "k", &[]);
    let mut bound = [common::Bound::i32s(&[7]), common::Bound::i32s(&[0])];
    common::run(&kernel, &[], &mut bound).unwrap();
    assert_eq!(bound[1].to_i32s(), [7]);
}

/// What one op of the text becomes is bounded as its own kind.
#[test]
fn compositions_are_bounded() {
    let mut body =
        String::from("%t = vector.constant 1.0 : vector<4096xf32>\n%n = vector.iota %x step %x : vector<64xindex>\n");
    for at in 0..40 {
        body +=
            &format!("%r{at} = vector.table.lookup %t[%n] : vector<4096xf32>, vector<64xindex> -> vector<64xf32>\n");
    }
    let source = single("%b: buffer", &format!("{NAMES}{body}"));
    let diagnostics = Module::parse("t", &source).unwrap().specialise("k", &Default::default()).unwrap_err();
    assert!(diagnostics.to_string().contains("has more than"), "{diagnostics}");
}
