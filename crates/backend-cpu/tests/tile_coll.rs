//! Collectives, atomics, exits, assertions and copies: on the tile executor and the interpreter, against values worked out by
//! hand.

use std::collections::BTreeMap;

use backend_cpu::isa::Isa;
use backend_cpu::tile::{Arg, Fault, Memory, TileScratch, run, run_slices};
use loom_compiler::interp::{self, Argument, Limits};
use loom_compiler::ir::Kernel;
use loom_compiler::tile::{CpuImage, Inst, compile};
use loom_compiler::{Module, launch::Geometry};

fn kernel(text: &str) -> Kernel {
    let module = Module::parse("test", text).unwrap_or_else(|e| panic!("{e}"));
    module.specialise("k", &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"))
}

fn built(text: &str) -> (Kernel, CpuImage, Geometry) {
    let kernel = kernel(text);
    let compiled = compile(&kernel).unwrap_or_else(|e| panic!("{e}"));
    let image = CpuImage::decode(&compiled.encode().unwrap()).unwrap();
    assert_eq!(image, compiled);
    let geometry = image.launch.geometry(&[]).unwrap();
    (kernel, image, geometry)
}

/// What both make of the buffers: the same.
#[track_caller]
fn both(text: &str, buffers: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (kernel, image, geometry) = built(text);
    let mut expected = buffers.to_vec();
    let mut arguments: Vec<Argument<'_>> = expected.iter_mut().map(|bytes| Argument::Buffer(bytes)).collect();
    interp::run(&kernel, geometry, &mut arguments, Limits::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        let mut found = buffers.to_vec();
        let mut slices: Vec<&mut [u8]> = found.iter_mut().map(Vec::as_mut_slice).collect();
        run_slices(&image, &geometry, &mut slices, &[], &mut TileScratch::new(isa)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(found, expected, "{text}");
    }
    expected
}

/// The fault of the tile executor, and the interpreter's.
#[track_caller]
fn faults(text: &str, buffers: &[Vec<u8>]) -> (Fault, interp::Fault) {
    let (kernel, image, geometry) = built(text);
    let mut copies = buffers.to_vec();
    let mut arguments: Vec<Argument<'_>> = copies.iter_mut().map(|bytes| Argument::Buffer(bytes)).collect();
    let oracle = interp::run(&kernel, geometry, &mut arguments, Limits { steps: 100_000, ..Limits::default() });
    let mut copies = buffers.to_vec();
    let mut slices: Vec<&mut [u8]> = copies.iter_mut().map(Vec::as_mut_slice).collect();
    let mut scratch = TileScratch::default();
    scratch.set_step_limit(10_000);
    let found = run_slices(&image, &geometry, &mut slices, &[], &mut scratch);
    (found.expect_err(text), oracle.expect_err(text))
}

/// A kernel of `groups` workgroups of `items`, whose item `%g` of all has `%x`, its number as an i32.
fn text(groups: usize, items: usize, ops: &str) -> String {
    headed("", "", groups, items, ops)
}

fn headed(records: &str, head: &str, groups: usize, items: usize, ops: &str) -> String {
    let all = groups * items;
    format!(
        "{records}\nkernel.def {head} @k() {{\n  kernel.launch.config workgroups({groups}, 1, 1) workgroup_size({items}, 1, 1) : index\n}} \
         launch(%b: buffer) {{\n  %base = index.constant 0 : offset\n  %v = buffer.view %b[%base] : buffer -> view<{all}xi32>\n  \
         %g = kernel.workitem.dispatch.id<x> : index\n  %l = kernel.workitem.id<x> : index\n  %x = index.cast %g : index to i32\n{ops}\n  \
         kernel.return\n}}\n"
    )
}

/// Runs `ops`, which compute `%r`, an i32, and gives it for every item.
#[track_caller]
fn each(groups: usize, items: usize, ops: &str) -> Vec<i32> {
    let all = groups * items;
    let store = format!("{ops}\nview.store %r, %v[%g] : i32, view<{all}xi32>");
    words(&both(&text(groups, items, &store), &[vec![0; 4 * all]])[0])
}

fn words(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn bytes(words: &[i32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// What each lane gets, and whether it is valid.
type Shuffled = fn(i32) -> (i32, i32);

#[test]
fn scans_go_either_way_with_or_without_the_own_value() {
    let scan = |what: &str, attributes: &str, items: usize| {
        each(1, items, &format!("%r = kernel.{what} %x {{{attributes}}} : i32"))
    };
    let sum = |from: i32, to: i32| (from..to).sum::<i32>();
    let subgroup = |i: i32| i / 32 * 32;
    let cases: [(&str, Shuffled); 4] = [
        ("mode = inclusive, direction = forward", |i| (i / 32 * 32, i + 1)),
        ("mode = exclusive, direction = forward", |i| (i / 32 * 32, i)),
        ("mode = inclusive, direction = reverse", |i| (i, (i / 32 * 32 + 32).min(70))),
        ("mode = exclusive, direction = reverse", |i| (i + 1, (i / 32 * 32 + 32).min(70))),
    ];
    for (attributes, range) in cases {
        let expected: Vec<i32> = (0..70).map(|i| sum(range(i).0, range(i).1)).collect();
        assert_eq!(scan("subgroup.scan<addi>", attributes, 70), expected, "{attributes}");
        let whole = |i: i32| {
            let (from, to) = range(i);
            if from == subgroup(i) { (0, to) } else { (from, 70) }
        };
        // At a subgroup's first item both ends are its own.
        if attributes.contains("forward") {
            let expected: Vec<i32> = (0..70).map(|i| sum(0, range(i).1)).collect();
            assert_eq!(scan("workgroup.scan<addi>", attributes, 70), expected, "{attributes}");
        } else {
            let expected: Vec<i32> = (0..70).map(|i| sum(whole(i).0.max(range(i).0), 70)).collect();
            assert_eq!(scan("workgroup.scan<addi>", attributes, 70), expected, "{attributes}");
        }
    }
    let clusters =
        scan("subgroup.scan<addi>", "mode = inclusive, direction = forward, cluster_size = 4, cluster_stride = 2", 8);
    assert_eq!(clusters, [0, 1, 2, 4, 6, 9, 12, 16]);
    // The identity of each kind is what the first item of an exclusive scan gets.
    for (kind, identity) in [
        ("addi", 0),
        ("muli", 1),
        ("minsi", i32::MAX),
        ("maxsi", i32::MIN),
        ("minui", -1),
        ("maxui", 0),
        ("andi", -1),
        ("ori", 0),
        ("xori", 0),
    ] {
        let found = scan(&format!("subgroup.scan<{kind}>"), "mode = exclusive, direction = forward", 3);
        assert_eq!(found[0], identity, "{kind}");
        assert_eq!(found[1], 0, "{kind}: the value of item 0");
    }
    for (kind, identity) in [
        ("addf", 0.0f32),
        ("mulf", 1.0),
        ("minimumf", f32::INFINITY),
        ("minnumf", f32::INFINITY),
        ("maxnumf", f32::NEG_INFINITY),
    ] {
        let ops = format!(
            "%f = scalar.sitofp %x : i32 to f32\n%s = kernel.workgroup.scan<{kind}> %f {{mode = exclusive, direction = reverse}} : f32\n\
             %r = scalar.bitcast %s : f32 to i32"
        );
        let found = each(1, 3, &ops);
        assert_eq!(found[2], identity.to_bits() as i32, "{kind}");
        assert_eq!(found[1], 2f32.to_bits() as i32, "{kind}: the value of the last item");
    }
    // Vectors scan lane element by lane element.
    let found = each(
        1,
        4,
        "%n = scalar.negi %x : i32\n%w = vector.from_elements %x, %n : vector<2xi32>\n\
         %s = kernel.subgroup.scan<addi> %w {mode = inclusive, direction = forward} : vector<2xi32>\n\
         %r = vector.extract %s[1] : vector<2xi32> -> i32",
    );
    assert_eq!(found, [0, -1, -3, -6]);
}

#[test]
fn votes_and_masks_are_of_those_who_are_there() {
    let even = "%one = scalar.constant 1 : i32\n%zero = scalar.constant 0 : i32\n%bit = scalar.andi %x, %one : i32\n\
                %even = scalar.cmpi eq, %bit, %zero : i32\n";
    let ballot = each(1, 40, &format!("{even}%r = kernel.subgroup.vote.ballot %even : i1 -> i32"));
    assert_eq!((ballot[0], ballot[31], ballot[32]), (0x5555_5555, 0x5555_5555, 0x55));
    let active = each(1, 40, "%r = kernel.subgroup.active.mask : i32");
    assert_eq!((active[0], active[39]), (-1, 0xff));
    // Inside a branch only its own lanes are.
    let inside = each(
        1,
        40,
        &format!(
            "{even}%r = scf.if %even -> (i32) {{\n%m = kernel.subgroup.active.mask : i32\nscf.yield %m : i32\n}} else {{\n\
             %three = scalar.constant 3 : i32\n%p = scalar.cmpi eq, %x, %three : i32\n%any = kernel.subgroup.vote.any %p : i1\n\
             %all = kernel.subgroup.vote.all %p : i1\n%a = scalar.extui %any : i1 to i32\n%b2 = scalar.extui %all : i1 to i32\n\
             %two = scalar.constant 2 : i32\n%m = scalar.fmai %a, %two, %b2 : i32\nscf.yield %m : i32\n}}"
        ),
    );
    assert_eq!(inside[..4], [0x5555_5555, 2, 0x5555_5555, 2]);
    assert_eq!(inside[32..34], [0x55, 0]);
    // In the turns of a loop those who are still in it, though they came to the op before others left.
    let turns = each(
        1,
        4,
        "%zero = index.constant 0 : index\n%one = index.constant 1 : index\n%none = scalar.constant 0 : i32\n%ten = scalar.constant 10 : i32\n\
         %high = index.add %l, %one : index\n%r = scf.for %k = [%zero to %high step %one](%acc = %none : i32) -> (i32) {\n\
         %m = kernel.subgroup.active.mask : i32\n%w = scalar.muli %acc, %ten : i32\n%n = scalar.addi %w, %m : i32\n\
         scf.yield %n : i32\n}",
    );
    assert_eq!(turns, [15, 15 * 10 + 14, 1640 + 12, (1640 + 12) * 10 + 8]);
    let wide = headed(
        "amdgpu.target<gfx9> @t {subgroup_size = 64}",
        "target(@t)",
        1,
        64,
        &format!(
            "{even}%m = kernel.subgroup.vote.ballot %even : i1 -> i64\n%high = scalar.constant 32 : i64\n%u = scalar.shrui %m, %high : i64\n\
             %r = scalar.trunci %u : i64 to i32\nview.store %r, %v[%g] : i32, view<64xi32>"
        ),
    );
    assert_eq!(words(&both(&wide, &[vec![0; 256]])[0]), vec![0x5555_5555; 64]);
}

#[test]
fn matches_and_broadcasts() {
    let third = "%three = scalar.constant 3 : i32\n%m3 = scalar.remui %x, %three : i32\n";
    let any = each(1, 6, &format!("{third}%r = kernel.subgroup.match.any %m3 : i32 -> i32"));
    assert_eq!(any, [0b001001, 0b010010, 0b100100, 0b001001, 0b010010, 0b100100]);
    let all = |value: &str| {
        each(
            1,
            6,
            &format!(
                "{third}%k = scalar.constant 7 : i32\n%m, %same = kernel.subgroup.match.all {value} : i32 -> i32, i1\n\
                 %s = scalar.extui %same : i1 to i32\n%c = scalar.constant 100 : i32\n%r = scalar.fmai %s, %c, %m : i32"
            ),
        )
    };
    assert_eq!((all("%m3"), all("%k")), (vec![0; 6], vec![163; 6]));
    // Zeros of either sign are different bits, a NaN is the same as itself.
    let floats = each(
        1,
        3,
        "%two = scalar.constant 2 : i32\n%z = scalar.constant 0.0 : f32\n%nz = scalar.constant -0.0 : f32\n%q = scalar.constant nan : f32\n\
         %p = scalar.cmpi ult, %x, %two : i32\n%one = scalar.constant 1 : i32\n%p1 = scalar.cmpi ult, %x, %one : i32\n\
         %s = scf.select %p1, %z, %nz : f32\n%f = scf.select %p, %s, %q : f32\n%r = kernel.subgroup.match.any %f : f32 -> i32",
    );
    assert_eq!(floats, [1, 2, 4]);
    let broadcast = |lane: &str| {
        each(
            1,
            40,
            &format!(
                "%c = scalar.constant 5 : i32\n%d = scalar.addi %x, %c : i32\n%r = kernel.subgroup.broadcast %d from {lane} : i32, i32"
            ),
        )
    };
    let five = broadcast("%c");
    assert_eq!((five[0], five[31], five[32], five[39]), (10, 10, 42, 42));
    // Of a lane that is not there: unspecified, the own value here.
    assert_eq!(
        each(1, 2, "%c = scalar.constant 9 : i32\n%r = kernel.subgroup.broadcast %x from %c : i32, i32"),
        [0, 1]
    );
    let first = each(
        1,
        40,
        "%c = scalar.constant 3 : i32\n%p = scalar.cmpi uge, %x, %c : i32\n%r = scf.if %p -> (i32) {\n\
         %f = kernel.subgroup.broadcast.first %x : i32\nscf.yield %f : i32\n} else {\nscf.yield %c : i32\n}",
    );
    assert_eq!((first[2], first[3], first[31], first[32]), (3, 3, 3, 32));
}

#[test]
fn workgroups_vote() {
    let found = each(
        2,
        70,
        "%k = scalar.constant 75 : i32\n%p = scalar.cmpi ult, %x, %k : i32\n%n = kernel.workgroup.vote.count %p : i1 -> i32\n\
         %any = kernel.workgroup.vote.any %p : i1\n%all = kernel.workgroup.vote.all %p : i1\n%a = scalar.extui %any : i1 to i32\n\
         %b2 = scalar.extui %all : i1 to i32\n%h = scalar.constant 100 : i32\n%t = scalar.constant 1000 : i32\n%s = scalar.fmai %a, %h, %n : i32\n\
         %r = scalar.fmai %b2, %t, %s : i32",
    );
    assert_eq!((found[0], found[69], found[70], found[139]), (1170, 1170, 105, 105));
}

const ORDER: &str = "{ordering = relaxed, scope = device}";

#[test]
fn every_kind_of_atomic_of_every_width() {
    let (wrap, order) = (
        |ty: &str, ops: &str| {
            format!(
                "kernel.def @k() {{\n  kernel.launch.config workgroups(1, 1, 1) workgroup_size(1, 1, 1) : index\n}} launch(%b: buffer, %c: buffer, %o: buffer) {{\n  \
             %base = index.constant 0 : offset\n  %v = buffer.view %b[%base] : buffer -> view<1x{ty}>\n  %w = buffer.view %c[%base] : buffer -> view<1x{ty}>\n  \
             %u = buffer.view %o[%base] : buffer -> view<1x{ty}>\n  %x = view.load %w[0] : view<1x{ty}> -> {ty}\n{ops}\n  kernel.return\n}}\n"
            )
        },
        ORDER,
    );
    // (type, kind, what the cell holds, the value, what it holds then)
    let cases: &[(&str, &str, u64, u64, u64)] = &[
        ("i8", "addi", 0xf0, 0x20, 0x10),
        ("i8", "subi", 0x10, 0x20, 0xf0),
        ("i8", "minsi", 0x80, 0x01, 0x80),
        ("i8", "minui", 0x80, 0x01, 0x01),
        ("i16", "maxsi", 0x8000, 0x0001, 0x0001),
        ("i16", "maxui", 0x8000, 0x0001, 0x8000),
        ("i16", "xori", 0xff00, 0x0ff0, 0xf0f0),
        ("i32", "addi", 0xffff_ffff, 2, 1),
        ("i32", "andi", 0xff00_ff00, 0x0ff0_0ff0, 0x0f00_0f00),
        ("i32", "ori", 0xff00_0000, 0x0000_0ff0, 0xff00_0ff0),
        ("i32", "xchgi", 5, 7, 7),
        ("i64", "addi", u64::MAX, 3, 2),
        ("i64", "subi", 0, 1, u64::MAX),
        ("i64", "maxsi", 1 << 63, 5, 5),
        ("f16", "addf", 0x3c00, 0x4000, 0x4200),
        ("bf16", "addf", 0x3f80, 0x4000, 0x4040),
        ("f32", "addf", 0x3f80_0000, 0x0000_0001, 0x3f80_0000),
        // A subnormal sum is kept.
        ("f32", "addf", 0x0000_0001, 0x0000_0001, 0x0000_0002),
        ("f32", "minimumf", 0x3f80_0000, 0x7fc0_0000, 0x7fc0_0000),
        ("f32", "minnumf", 0x3f80_0000, 0x7fc0_0000, 0x3f80_0000),
        ("f32", "minnumf", 0x0000_0000, 0x8000_0000, 0x8000_0000),
        ("f32", "maximumf", 0x8000_0000, 0x0000_0000, 0x0000_0000),
        ("f32", "maxnumf", 0xff80_0000, 0xc000_0000, 0xc000_0000),
        ("f32", "xchgf", 0x3f80_0000, 0x7fc0_1234, 0x7fc0_1234),
        ("f64", "addf", 0x3ff0_0000_0000_0000, 0x4000_0000_0000_0000, 0x4008_0000_0000_0000),
    ];
    for &(ty, kind, cell, value, then) in cases {
        let size = match ty {
            "i8" => 1,
            "i16" | "f16" | "bf16" => 2,
            "i32" | "f32" => 4,
            _ => 8,
        };
        let held = |bits: u64| bits.to_le_bytes()[..size].to_vec();
        let reduce = wrap(ty, &format!("view.atomic.reduce<{kind}> %x, %v[0] {order} : {ty}, view<1x{ty}>"));
        let found = both(&reduce, &[held(cell), held(value), held(0)]);
        assert_eq!(found[0], held(then), "{ty} {kind} {cell:#x} {value:#x}");
        let rmw = wrap(
            ty,
            &format!(
                "%old = view.atomic.rmw<{kind}, volatile> %x, %v[0] {order} : {ty}, view<1x{ty}> -> {ty}\nview.store %old, %u[0] : {ty}, view<1x{ty}>"
            ),
        );
        let found = both(&rmw, &[held(cell), held(value), held(0)]);
        assert_eq!((&found[0], &found[2]), (&held(then), &held(cell)), "{ty} {kind} {cell:#x} {value:#x}");
    }
    // An exchange compares bits: a NaN is found, zero is not minus zero.
    let exchange = wrap(
        "f32",
        "%e = scalar.constant 0x1 : i32\n%n = scalar.constant 2.0 : f32\n%old = view.atomic.cmpxchg<volatile> %x, %n, %v[0] {success_ordering = seq_cst, failure_ordering = acquire, scope = system, cache_scope = device} : f32, view<1xf32> -> f32\nview.store %old, %u[0] : f32, view<1xf32>",
    );
    let float = |bits: u32| bits.to_le_bytes().to_vec();
    for (cell, expected, then) in [
        (0x7fc0_1234, 0x7fc0_1234, 0x4000_0000),
        (0x8000_0000, 0, 0x8000_0000),
        (0x8000_0000, 0x8000_0000, 0x4000_0000),
    ] {
        let found = both(&exchange, &[float(cell), float(expected), float(0)]);
        assert_eq!((&found[0], &found[2]), (&float(then), &float(cell)), "{cell:#x} {expected:#x}");
    }
    // Loads and stores, and a fence.
    let copied = wrap(
        "i16",
        "%l = view.atomic.load<volatile> %v[0] {ordering = acquire, scope = system, cache_temporal = regular} : view<1xi16> -> i16\nbuffer.fence scope(system) ordering(seq_cst)\nview.atomic.store %l, %u[0] {ordering = release, scope = workgroup} : i16, view<1xi16>",
    );
    assert_eq!(both(&copied, &[vec![7, 8], vec![0; 2], vec![0; 2]])[2], [7, 8]);
}

#[test]
fn atomics_of_many_items_and_lanes() {
    // A histogram over several workgroups: 600 items, modulo 7.
    let histogram = text(
        3,
        200,
        &format!(
            "%seven = index.constant 7 : index\n%i = index.rem %g, %seven : index\n%one = scalar.constant 1 : i32\n\
             view.atomic.reduce<addi> %one, %v[%i] {ORDER} : i32, view<600xi32>"
        ),
    );
    let found = words(&both(&histogram, &[vec![0; 2400]])[0]);
    assert_eq!(found[..8], [86, 86, 86, 86, 86, 85, 85, 0]);
    // Items go in order within an instruction: each gets what those before it left.
    let tickets = each(
        1,
        40,
        "%one = scalar.constant 1 : i32\n%bytes = index.constant 4 : offset\n%s = buffer.alloca<workgroup> align(4) %bytes : buffer\n\
        %c = buffer.view %s[%base] : buffer -> view<1xi32>\n%z = scalar.constant 0 : i32\nview.store %z, %c[0] : i32, view<1xi32>\n\
        kernel.barrier<workgroup> {ordering = acq_rel, scope = workgroup}\n\
        %r = view.atomic.rmw<addi> %one, %c[0] {ordering = acq_rel, scope = workgroup} : i32, view<1xi32> -> i32",
    );
    assert_eq!(tickets, (0..40).collect::<Vec<_>>());
    // Private memory is each item's own.
    let own = each(
        1,
        40,
        "%one = scalar.constant 1 : i32\n%bytes = index.constant 4 : offset\n%s = buffer.alloca<private> align(4) %bytes : buffer\n\
        %c = buffer.view %s[%base] : buffer -> view<1xi32>\nview.store %x, %c[0] : i32, view<1xi32>\n\
        %o = view.atomic.rmw<addi> %one, %c[0] {ordering = relaxed, scope = thread} : i32, view<1xi32> -> i32\n\
        %r = view.load %c[0] : view<1xi32> -> i32",
    );
    assert_eq!(own, (1..41).collect::<Vec<_>>());
    // Lanes of a vector, with the same place twice, masked, and offsets below the origin.
    let lanes = |ops: &str| {
        words(
            &both(
                &text(
                    1,
                    4,
                    &format!(
                        "%z = index.constant 0 : index\n%first = index.cmp eq, %g, %z : index\nscf.if %first {{\n{ops}\n}}"
                    ),
                ),
                &[bytes(&[10, 20, 30, 40])],
            )[0],
        )
    };
    let values = "%a = scalar.constant 1 : i32\n%c = scalar.constant 2 : i32\n%d = scalar.constant 4 : i32\n%w = vector.from_elements %a, %c, %d : vector<3xi32>\n\
                  %i0 = scalar.constant -1 : i16\n%i1 = scalar.constant 1 : i16\n%at = vector.from_elements %i0, %i1, %i0 : vector<3xi16>\n";
    assert_eq!(
        lanes(&format!(
            "{values}vector.atomic.reduce<addi> %w, %v[2][%at] {ORDER} : vector<3xi32>, view<4xi32>, vector<3xi16>"
        )),
        [10, 25, 30, 42]
    );
    let mask = "%t = scalar.constant true : i1\n%f = scalar.constant false : i1\n%m = vector.from_elements %t, %f, %t : vector<3xi1>\n";
    assert_eq!(
        lanes(&format!(
            "{values}{mask}vector.atomic.reduce.mask<addi> %w, %v[2][%at], %m {ORDER} : vector<3xi32>, view<4xi32>, vector<3xi16>, vector<3xi1>"
        )),
        [10, 25, 30, 40]
    );
    // What was there, and for a lane that is off, what is passed.
    let old = lanes(&format!(
        "{values}{mask}%p = vector.splat %d : vector<3xi32>\n%o = vector.atomic.rmw.mask<xchgi> %w, %v[2][%at], %m, %p {ORDER} : vector<3xi32>, view<4xi32>, vector<3xi16>, vector<3xi1>, vector<3xi32>\n\
        vector.store %o, %v[0] : vector<3xi32>, view<4xi32>"
    ));
    assert_eq!(old, [20, 4, 1, 40]);
    let exchanged = lanes(&format!(
        "{values}%e = scalar.constant 20 : i32\n%ev = vector.splat %e : vector<3xi32>\n\
        %o = vector.atomic.cmpxchg %ev, %w, %v[2][%at] {{success_ordering = relaxed, failure_ordering = relaxed, scope = device}} : vector<3xi32>, view<4xi32>, vector<3xi16> -> vector<3xi32>\n\
        %l = vector.extract %o[2] : vector<3xi32> -> i32\nview.store %l, %v[0] : i32, view<4xi32>"
    ));
    assert_eq!(exchanged, [1, 1, 30, 40]);
}

#[test]
fn threads_share_cells() {
    let (_, image, geometry) = built(&text(
        16,
        256,
        &format!(
            "%i = index.constant 0 : index\n%one = scalar.constant 1 : i32\nview.atomic.reduce<addi> %one, %v[%i] {ORDER} : i32, view<4096xi32>\n\
                  %f = buffer.view %b[%base] : buffer -> view<4096xf32>\n%k = index.constant 1 : index\n%h = scalar.constant 1.0 : f32\n\
                  view.atomic.reduce<addf> %h, %f[%k] {ORDER} : f32, view<4096xf32>"
        ),
    ));
    let mut memory = vec![0u64; 2048];
    let arg = Arg::Buffer { ptr: memory.as_mut_ptr().cast(), len: 8 * memory.len() };
    struct Shared(Arg);
    // SAFETY: the kernel accesses the memory atomically only.
    unsafe impl Sync for Shared {}
    let shared = Shared(arg);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let shared = &shared;
                // SAFETY: the memory outlives the scope, and all accesses to it are atomic.
                unsafe { run(&image, &geometry, &[shared.0], &mut TileScratch::default()) }.unwrap();
            });
        }
    });
    assert_eq!(memory[0] as u32, 4 * 4096);
    assert_eq!(f32::from_bits((memory[0] >> 32) as u32), 4.0 * 4096.0);
}

#[test]
fn those_who_leave_are_not_waited_for() {
    // Items from 10 on leave; they store what they leave with first. The rest meets at a barrier and votes.
    let leave = |done: &str| {
        each(
            1,
            40,
            &format!(
                "%ten = index.constant 10 : index\n%done = index.cmp uge, %l, %ten : index\nkernel.exit %done : i1{done}\n\
                 kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)\n%s = kernel.workgroup.reduce<addi> %x : i32\n\
                 %m = kernel.subgroup.active.mask : i32\n%r = scalar.addi %s, %m : i32"
            ),
        )
    };
    let mut expected = vec![0; 40];
    expected[..10].fill(45 + 0x3ff);
    assert_eq!(leave(""), expected);
    assert_eq!(leave(" {\nkernel.return\n}"), expected);
    expected[10..].copy_from_slice(&(10..40).collect::<Vec<_>>());
    assert_eq!(leave(" {\nview.store %x, %v[%g] : i32, view<40xi32>\nkernel.return\n}"), expected);
    // All, or nobody; and in two steps.
    let two = each(
        2,
        40,
        "%t = scalar.constant true : i1\n%k = index.constant 1 : index\n%w = kernel.workgroup.id<x> : index\n%last = index.cmp eq, %w, %k : index\n\
         kernel.exit %last : i1\n%five = index.constant 5 : index\n%low = index.cmp ult, %l, %five : index\nkernel.exit %low : i1 {\n\
         view.store %x, %v[%g] : i32, view<80xi32>\n}\n%r = kernel.workgroup.vote.count %t : i1 -> i32",
    );
    let mut expected = vec![0; 80];
    expected[..5].copy_from_slice(&[0, 1, 2, 3, 4]);
    expected[5..40].fill(35);
    assert_eq!(two, expected);
}

#[test]
fn assertions_name_their_text_and_the_item() {
    let source = text(
        3,
        100,
        "%k = index.constant 230 : index\n%ok = index.cmp ult, %g, %k : index\nkernel.assert %ok \"in the \\\"first\\\" part\" : i1\nview.store %x, %v[%g] : i32, view<300xi32>",
    );
    let at = source.find("kernel.assert").unwrap() as u32;
    let line = source[..at as usize].matches('\n').count() as u32 + 1;
    let (found, oracle) = faults(&source, &[vec![0; 1200]]);
    assert_eq!(
        found,
        Fault::Assert { kernel: "k".into(), text: "in the \"first\" part".into(), at, line, item: [230, 0, 0] }
    );
    assert!(found.to_string().ends_with("fails for work-item (230, 0, 0) of the dispatch"), "{found}");
    assert!(
        matches!(&oracle, interp::Fault::Assert { text, item: [230, 0, 0], at: span } if text == "in the \"first\" part" && span.start == at),
        "{oracle}"
    );
    // Planes, rows of workgroups, and a workgroup at a time.
    for (ids, meets) in [("%y", ""), ("%ly", "kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)\n")] {
        let source = format!(
            "kernel.def @k() {{\nkernel.launch.config workgroups(2, 3, 2) workgroup_size(4, 2, 3) : index\n}} launch() {{\n\
             %x = kernel.workitem.dispatch.id<x> : index\n%y = kernel.workitem.dispatch.id<y> : index\n%z = kernel.workitem.dispatch.id<z> : index\n\
             %ly = kernel.workitem.id<y> : index\n%used = index.add %y, {ids} : index\n%a = index.constant 5 : index\n%b2 = index.constant 3 : index\n%c = index.constant 4 : index\n{meets}\
             %p = index.cmp ne, %x, %a : index\n%q = index.cmp ne, %y, %b2 : index\n%s = index.cmp ne, %z, %c : index\n\
             %t = scalar.ori %p, %q : i1\n%ok = scalar.ori %t, %s : i1\nkernel.assert %ok : i1\nkernel.return\n}}\n"
        );
        let (found, oracle) = faults(&source, &[]);
        assert!(matches!(&found, Fault::Assert { item: [5, 3, 4], text, .. } if text.is_empty()), "{found}");
        assert!(matches!(oracle, interp::Fault::Assert { item: [5, 3, 4], .. }), "{oracle}");
    }
    let rows = "kernel.def @k() {\nkernel.launch.config workgroups(10, 3, 2) workgroup_size(1, 1, 1) : index\n} launch(%b: buffer) {\n%base = index.constant 0 : offset\n\
                %v = buffer.view %b[%base] : buffer -> view<6x10xi8>\n%x = kernel.workitem.dispatch.id<x> : index\n%y = kernel.workitem.dispatch.id<y> : index\n\
                %z = kernel.workitem.dispatch.id<z> : index\n%one = index.constant 1 : index\n%ten = index.constant 10 : index\n%in = index.cmp ult, %x, %ten : index\n\
                scf.if %in {\n%p = index.cmp ne, %x, %ten : index\n%q = index.cmp ne, %y, %one : index\n%n = scalar.constant 1 : i8\nview.store %n, %v[%y, %x] : i8, view<6x10xi8>\n\
                %r = index.cmp ne, %z, %one : index\n%seven = index.constant 7 : index\n%s = index.cmp ne, %x, %seven : index\n%t = scalar.ori %q, %r : i1\n%ok = scalar.ori %t, %s : i1\n\
                kernel.assert %ok : i1\n}\nkernel.return\n}\n";
    let (found, oracle) = faults(rows, &[vec![0; 60]]);
    assert!(matches!(found, Fault::Assert { item: [7, 1, 1], .. }), "{found}");
    assert!(matches!(oracle, interp::Fault::Assert { item: [7, 1, 1], .. }), "{oracle}");
}

#[test]
fn waiting_for_an_item_of_the_same_workgroup_ends() {
    // Item 0 spins on a flag that item 1 sets after it.
    let source = text(
        1,
        2,
        "%bytes = index.constant 4 : offset\n%s = buffer.alloca<workgroup> align(4) %bytes : buffer\n%c = buffer.view %s[%base] : buffer -> view<1xi32>\n\
         %none = scalar.constant 0 : i32\n%one = scalar.constant 1 : i32\n%z = index.constant 0 : index\nview.store %none, %c[0] : i32, view<1xi32>\n\
         kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)\n%first = index.cmp eq, %l, %z : index\nscf.if %first {\nscf.while {\n\
         %f = view.atomic.load %c[0] {ordering = acquire, scope = workgroup} : view<1xi32> -> i32\n%go = scalar.cmpi eq, %f, %none : i32\n\
         scf.condition %go : i1\n} do {\n}\n} else {\nview.atomic.store %one, %c[0] {ordering = release, scope = workgroup} : i32, view<1xi32>\n}",
    );
    let (found, oracle) = faults(&source, &[vec![0; 8]]);
    assert!(matches!(&found, Fault::Steps { op, limit: 10_000, .. } if op == "scf.while"), "{found}");
    assert_eq!(oracle, interp::Fault::Steps { limit: 100_000 });
}

#[test]
fn loops_that_items_leave_at_different_times() {
    // Collatz steps of each item, counted by a loop that all run together.
    let found = each(
        1,
        40,
        "%one = scalar.constant 1 : i32\n%two = scalar.constant 2 : i32\n%three = scalar.constant 3 : i32\n%z = scalar.constant 0 : i32\n\
         %start = scalar.addi %x, %one : i32\n%last, %r = scf.while(%n = %start, %k = %z : i32, i32) -> (i32, i32) {\n\
         %go = scalar.cmpi ne, %n, %one : i32\nscf.condition %go, %n, %k : i1, i32, i32\n} do(%m: i32, %j: i32) {\n\
         %bit = scalar.andi %m, %one : i32\n%odd = scalar.cmpi eq, %bit, %one : i32\n%up = scalar.fmai %m, %three, %one : i32\n\
         %down = scalar.divui %m, %two : i32\n%next = scf.select %odd, %up, %down : i32\n%more = scalar.addi %j, %one : i32\n\
         scf.yield %next, %more : i32, i32\n}",
    );
    let collatz = |mut n: u64| {
        let mut steps = 0;
        while n != 1 {
            n = if n % 2 == 1 { 3 * n + 1 } else { n / 2 };
            steps += 1;
        }
        steps
    };
    assert_eq!(found, (1..41).map(collatz).collect::<Vec<i32>>());
}

#[test]
fn copies_are_made_at_once() {
    let head = "%bytes = index.constant 64 : offset\n%s = buffer.alloca<workgroup> align(16) %bytes : buffer\n%l4 = index.constant 4 : index\n\
                %src = view.subview %v[%z4] : view<16xi32> -> view<4xi32>\n";
    let copy = |op: &str, mask: &str, types: &str| {
        let ops = format!(
            "%four = index.constant 4 : index\n%z4 = index.mul %g, %four : index\n{head}%whole = buffer.view %s[%base] : buffer -> view<64xi8>\n\
             %sixteen = index.constant 16 : index\n%at = index.mul %l, %sixteen : index\n%dst = view.subview %whole[%at] : view<64xi8> -> view<16xi8>\n\
             %c9 = scalar.constant 9 : i8\n%fill = vector.splat %c9 : vector<16xi8>\nvector.store %fill, %dst[0] : vector<16xi8>, view<16xi8>\n\
             %two = index.constant 2 : index\n%p = index.cmp ult, %l, %two : index\n\
             %c = {op} %src to %dst{mask} {{cache_scope = cu, cache_temporal = regular, direction = global_to_workgroup}} : view<4xi32> to view<16xi8>{types} -> kernel.async.token\n\
             %e = kernel.async.group -> kernel.async.group\n%grp = kernel.async.group %c : kernel.async.token -> kernel.async.group\n\
             kernel.async.wait %grp {{newer_groups = 0}} : kernel.async.group\nkernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)\n\
             %three = index.constant 3 : index\n%other = index.sub %three, %l : index\n%rd = buffer.view %s[%base] : buffer -> view<4x4xi32>\n\
             %w = vector.load %rd[%other, 0] : view<4x4xi32> -> vector<4xi32>\nvector.store %w, %v[%z4] : vector<4xi32>, view<16xi32>"
        );
        let source = text(1, 4, &ops).replace("view<4xi32>\n  %g =", "view<16xi32>\n  %g =");
        words(&both(&source, &[bytes(&(0..16).collect::<Vec<_>>())])[0])
    };
    assert_eq!(copy("kernel.async.copy", "", ""), [12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3]);
    let nines = 0x0909_0909;
    assert_eq!(
        copy("kernel.async.copy.mask", ", %p", ", i1"),
        [nines, nines, nines, nines, nines, nines, nines, nines, 4, 5, 6, 7, 0, 1, 2, 3]
    );
}

#[test]
fn clusters_are_numbered_by_their_size() {
    let source = |clusters: &str| {
        format!(
            "kernel.def @k() {{\n  kernel.launch.config workgroups(4, 6, 1) workgroup_size(1, 1, 1){clusters} : index\n}} launch(%b: buffer) {{\n  \
             %base = index.constant 0 : offset\n  %v = buffer.view %b[%base] : buffer -> view<6x4xi32>\n  %x = kernel.workgroup.id<x> : index\n  %y = kernel.workgroup.id<y> : index\n  \
             %id = kernel.cluster.id<y> : index\n  %size = kernel.cluster.size<y> : index\n  %count = kernel.cluster.count<y> : index\n  %w = kernel.cluster.workgroup.id<y> : index\n  \
             %flat = kernel.cluster.workgroup.flat_id : index\n  %ten = index.constant 10 : index\n  %a = index.madd %id, %ten, %size : index\n  %c = index.madd %a, %ten, %count : index\n  \
             %d = index.madd %c, %ten, %w : index\n  %e = index.madd %d, %ten, %flat : index\n  %r = index.cast %e : index to i32\n  view.store %r, %v[%y, %x] : i32, view<6x4xi32>\n  kernel.return\n}}\n"
        )
    };
    let plain = words(&both(&source(""), &[vec![0; 96]])[0]);
    // Without clusters: sizes of 1, ids of 0.
    assert_eq!(plain, [1600; 24]);
    let clustered = words(&both(&source(" cluster_size(2, 3, 1)"), &[vec![0; 96]])[0]);
    let number = |x: i32, y: i32| y / 3 * 10_000 + 3000 + 200 + y % 3 * 10 + (x % 2 + 2 * (y % 3));
    assert_eq!(clustered, (0..6).flat_map(|y| (0..4).map(move |x| number(x, y))).collect::<Vec<_>>());
}

/// Every kind of access says which it is, where in which memory, and how much there is.
#[test]
fn accesses_out_of_bounds_are_named() {
    let far = "%far = index.constant 20 : index\n%i = index.add %g, %far : index\n%one = scalar.constant 1 : i32\n%n = scalar.constant 0 : i32\n";
    let at_run = |ops: &str| text(1, 4, &format!("{far}{ops}"));
    let scratch = |space: &str, ops: &str| {
        at_run(&format!(
            "%bytes = index.constant 64 : offset\n%s = buffer.alloca<{space}> align(4) %bytes : buffer\n%c = buffer.view %s[%base] : buffer -> view<64xi32>\n\
         view.store %n, %c[0] : i32, view<64xi32>\n{ops}"
        ))
    };
    let out = "view.store %r, %v[%g] : i32, view<4xi32>";
    let long = "%w = buffer.view %b[%base] : buffer -> view<64xi32>\n";
    let cases: &[(String, &str, Memory, i64, usize)] = &[
        (
            at_run(&format!("{long}%r = view.load %w[%i] : view<64xi32> -> i32\n{out}")),
            "view.load",
            Memory::Argument,
            80,
            16,
        ),
        (at_run(&format!("{long}view.store %one, %w[%i] : i32, view<64xi32>")), "view.store", Memory::Argument, 80, 16),
        (
            at_run(&format!(
                "{long}%f = index.constant 50 : index\n%r = view.load %w[%f] : view<64xi32> -> i32\n{out}"
            )),
            "view.load",
            Memory::Argument,
            200,
            16,
        ),
        (
            at_run(&format!("{long}view.atomic.reduce<addi> %one, %w[%i] {ORDER} : i32, view<64xi32>")),
            "view.atomic.reduce",
            Memory::Argument,
            80,
            16,
        ),
        (
            at_run(&format!(
                "{long}%r = view.atomic.rmw<xchgi> %one, %w[%i] {ORDER} : i32, view<64xi32> -> i32\n{out}"
            )),
            "view.atomic.rmw",
            Memory::Argument,
            80,
            16,
        ),
        (
            at_run(&format!("{long}%r = view.atomic.load %w[%i] {ORDER} : view<64xi32> -> i32\n{out}")),
            "view.atomic.load",
            Memory::Argument,
            80,
            16,
        ),
        (
            scratch("workgroup", &format!("%r = view.load %c[%i] : view<64xi32> -> i32\n{out}")),
            "view.load",
            Memory::Workgroup,
            80,
            64,
        ),
        // By the name that was written, whatever it is built of.
        (
            at_run(&format!(
                "{long}%q = vector.load %w[%i] : view<64xi32> -> vector<2xi32>\n%r = vector.extract %q[0] : vector<2xi32> -> i32\n{out}"
            )),
            "vector.load",
            Memory::Argument,
            80,
            16,
        ),
        (
            at_run(&format!(
                "{long}%q = vector.splat %one : vector<2xi32>\nvector.store %q, %w[%i] : vector<2xi32>, view<64xi32>"
            )),
            "vector.store",
            Memory::Argument,
            80,
            16,
        ),
        (
            at_run(&format!(
                "{long}%q = vector.splat %one : vector<2xi32>\n%m = vector.constant true : vector<2xi1>\nvector.store.mask %q, %w[%i], %m : vector<2xi32>, view<64xi32>, vector<2xi1>"
            )),
            "vector.store.mask",
            Memory::Argument,
            80,
            16,
        ),
        (
            at_run(&format!(
                "{long}%q = vector.splat %one : vector<2xi32>\n%m = vector.constant true : vector<2xi1>\n%s = vector.load.mask %w[%i], %m, %q : view<64xi32>, vector<2xi1>, vector<2xi32>\n%r = vector.extract %s[1] : vector<2xi32> -> i32\n{out}"
            )),
            "vector.load.mask",
            Memory::Argument,
            80,
            16,
        ),
        (
            at_run(&format!(
                "{long}%d = index.constant 1 : index\n%o = vector.iota %i step %d : vector<2xindex>\n%q = vector.gather %w[0][%o] : view<64xi32>, vector<2xindex> -> vector<2xi32>\n%r = vector.extract %q[0] : vector<2xi32> -> i32\n{out}"
            )),
            "vector.gather",
            Memory::Argument,
            80,
            16,
        ),
        (
            at_run(&format!(
                "{long}%d = index.constant 1 : index\n%o = vector.iota %i step %d : vector<2xindex>\n%q = vector.splat %one : vector<2xi32>\nvector.scatter %q, %w[0][%o] : vector<2xi32>, view<64xi32>, vector<2xindex>"
            )),
            "vector.scatter",
            Memory::Argument,
            80,
            16,
        ),
        (
            scratch("private", &format!("%r = view.load %c[%i] : view<64xi32> -> i32\n{out}")),
            "view.load",
            Memory::Private,
            80,
            64,
        ),
        (scratch("private", "view.store %one, %c[%far] : i32, view<64xi32>"), "view.store", Memory::Private, 80, 64),
        (
            scratch("workgroup", &format!("%r = view.load %c[%far] : view<64xi32> -> i32\n{out}")),
            "view.load",
            Memory::Workgroup,
            80,
            64,
        ),
        (
            scratch("workgroup", &format!("view.atomic.store %one, %c[%i] {ORDER} : i32, view<64xi32>")),
            "view.atomic.store",
            Memory::Workgroup,
            80,
            64,
        ),
    ];
    for (source, op, memory, index, limit) in cases {
        let (found, oracle) = faults(source, &[vec![0; 16]]);
        let Fault::OutOfBounds { op: said, memory: which, index: byte, limit: has, at, .. } = &found else {
            panic!("{found}\n{source}");
        };
        assert_eq!((said.as_ref(), which, byte, has), (*op, memory, index, limit), "{source}");
        assert!(source[*at as usize..].starts_with(op), "{source}");
        assert!(found.to_string().contains(&format!("of {memory} ")), "{found}");
        assert!(matches!(oracle, interp::Fault::OutOfBounds { .. }), "{oracle}");
    }
    // A cell that does not start where one may.
    let crooked = at_run(&format!(
        "%two = index.constant 2 : offset\n%w = buffer.view %b[%two] : buffer -> view<2xi32>\nview.atomic.reduce<addi> %one, %w[0] {ORDER} : i32, view<2xi32>"
    ));
    let (found, oracle) = faults(&crooked, &[vec![0; 16]]);
    assert!(
        matches!(found, Fault::Misaligned { index: 2, bytes: 4, memory: Memory::Argument, buffer: 0, .. }),
        "{found}"
    );
    assert!(matches!(oracle, interp::Fault::Misaligned { index: 2, bytes: 4, .. }), "{oracle}");
}

/// The instructions of `image` that are shuffles, and those that are reductions.
fn exchanges(image: &CpuImage) -> (usize, usize) {
    let insts = || image.program().blocks.iter().flatten();
    (
        insts().filter(|inst| matches!(inst, Inst::Shuffle { .. })).count(),
        insts().filter(|inst| matches!(inst, Inst::Reduce { .. })).count(),
    )
}

#[test]
fn butterflies_are_reductions_where_every_lane_takes_part() {
    // Of f32 whose sums round, so that another order shows; what goes in is used later too.
    let butterfly = |distances: &[u32], op: &str, other_first: bool| {
        let mut ops = String::from(
            "%f = scalar.sitofp %x : i32 to f32
  %third = scalar.constant 0.3333 : f32
  %s0 = scalar.mulf %f, %third : f32
  %width = scalar.constant 32 : i32\n",
        );
        for (at, distance) in distances.iter().enumerate() {
            let (own, next) = (format!("%s{at}"), at + 1);
            let pair = if other_first { format!("%p{at}, {own}") } else { format!("{own}, %p{at}") };
            ops += &format!(
                "  %d{at} = scalar.constant {distance} : i32
  %p{at}, %ok{at} = kernel.subgroup.shuffle<xor> {own}, %d{at}, %width : f32, i32, i32
  %s{next} = {op} {pair} : f32\n"
            );
        }
        let last = distances.len();
        ops + &format!("  %e = scalar.addf %s{last}, %s0 : f32\n  %r = scalar.bitcast %e : f32 to i32\n")
    };
    let store = "  view.store %r, %v[%g] : i32, view<ALLxi32>";
    let all = [16, 8, 4, 2, 1];
    let cases = [
        (3, 32, butterfly(&all, "scalar.addf", false), (0, 1)),
        (20, 32, butterfly(&all, "scalar.addf", true), (0, 1)),
        (5, 32, butterfly(&all, "scalar.maxnumf", false), (0, 1)),
        // In another order, of a part, of a workgroup of several subgroups or of less than one.
        (3, 32, butterfly(&[1, 2, 4, 8, 16], "scalar.addf", false), (5, 0)),
        (3, 32, butterfly(&[16, 8, 4, 2], "scalar.addf", false), (4, 0)),
        (3, 64, butterfly(&all, "scalar.addf", false), (5, 0)),
        (3, 16, butterfly(&[8, 4, 2, 1], "scalar.addf", false), (4, 0)),
        // Not all the same op, or with somebody who looks at what is between.
        (3, 32, butterfly(&all, "scalar.addf", false).replacen("%s3 = scalar.addf", "%s3 = scalar.maxnumf", 1), (5, 0)),
        (3, 32, butterfly(&all, "scalar.addf", false).replace("%s5, %s0", "%s5, %s3"), (5, 0)),
        (3, 32, butterfly(&all, "scalar.addf", false).replace("%s5, %s0", "%s5, %p2"), (5, 0)),
        (
            3,
            32,
            butterfly(&all, "scalar.addf", false)
                .replace("  %e =", "  %k = scf.select %ok3, %s0, %f : f32\n  %e =")
                .replace("%s5, %s0", "%s5, %k"),
            (5, 0),
        ),
    ];
    for (groups, items, ops, expected) in cases {
        let text = text(groups, items, &(ops + &store.replace("ALL", &(groups * items).to_string())));
        assert_eq!(exchanges(&built(&text).1), expected, "{text}");
        let found = both(&text, &[vec![0; 4 * groups * items]]);
        assert!(found[0].iter().any(|&byte| byte != 0));
    }
    // After some have left, those who stay read their own value where a lane is missing.
    let leave =
        "%ten = index.constant 10 : index\n  %gone = index.cmp ult, %l, %ten : index\n  kernel.exit %gone : i1\n";
    let ops = butterfly(&all, "scalar.addf", false) + &store.replace("ALL", "96");
    let text = text(3, 32, &(leave.to_owned() + &ops));
    assert_eq!(exchanges(&built(&text).1), (5, 0), "{text}");
    both(&text, &[vec![0; 4 * 96]]);
}
