//! Vectors, memory, control flow and collectives: results worked out by hand.

mod common;

use common::{Bound, kernel, run, single};
use loom_compiler::interp::{self, Argument, Fault, Limits};

/// Runs one work-item over a buffer of i32.
#[track_caller]
fn on(words: &[i32], ops: &str) -> Vec<i32> {
    let count = words.len();
    let body = format!("%v = buffer.view %b[%base] : buffer -> view<{count}xi32>\n{ops}");
    let kernel = kernel(&single("%b: buffer", &body), "k", &[]);
    let mut bound = [Bound::i32s(words)];
    run(&kernel, &[], &mut bound).unwrap();
    bound[0].to_i32s()
}

/// Loads `view<4xi32>` as `%x`, runs `ops`, and stores `%r`, a vector of that many lanes.
#[track_caller]
fn vector(words: &[i32], ops: &str, lanes: usize) -> Vec<i32> {
    let count = words.len();
    let text = format!(
        "%x = vector.load %v[0] : view<{count}xi32> -> vector<{count}xi32>\n{ops}\n\
         %o = buffer.view %b[%base] : buffer -> view<{lanes}xi32>\n\
         vector.store %r, %o[0] : vector<{lanes}xi32>, view<{lanes}xi32>"
    );
    let mut found = on(words, &text);
    found.truncate(lanes);
    found
}

#[test]
fn lanes_move() {
    let x = [1, 2, 3, 4, 5, 6, 7, 8];
    let case = |ops: &str, expected: &[i32]| assert_eq!(vector(&x, ops, expected.len()), expected, "{ops}");
    case("%r = vector.slice %x[2] : vector<8xi32> -> vector<3xi32>", &[3, 4, 5]);
    case("%r = vector.shuffle<[7, 6, 5, 4, 3, 2, 1, 0]> %x : vector<8xi32>", &[8, 7, 6, 5, 4, 3, 2, 1]);
    let halves = "%a = vector.slice %x[0] : vector<8xi32> -> vector<4xi32>\n%b2 = vector.slice %x[4] : vector<8xi32> -> vector<4xi32>\n";
    case(
        &format!("{halves}%r = vector.concat<0> %b2, %a : vector<4xi32>, vector<4xi32> -> vector<8xi32>"),
        &[5, 6, 7, 8, 1, 2, 3, 4],
    );
    case(
        &format!("{halves}%r = vector.interleave<0> %a, %b2 : vector<4xi32>, vector<4xi32> -> vector<8xi32>"),
        &[1, 5, 2, 6, 3, 7, 4, 8],
    );
    case("%even, %r = vector.deinterleave<0> %x : vector<8xi32> -> vector<4xi32>, vector<4xi32>", &[2, 4, 6, 8]);
    // Rank 2 by way of a bitcast-free insert: rows of a 2 x 4 block.
    let block = "%z = vector.constant 0 : vector<2x4xi32>\n%p = vector.slice %x[0] : vector<8xi32> -> vector<4xi32>\n\
                 %q = vector.slice %x[4] : vector<8xi32> -> vector<4xi32>\n%i0 = vector.insert %p into %z[0] : vector<4xi32>, vector<2x4xi32>\n\
                 %m = vector.insert %q into %i0[1] : vector<4xi32>, vector<2x4xi32>\n";
    case(
        &format!(
            "{block}%t = vector.transpose<[1, 0]> %m : vector<2x4xi32> -> vector<4x2xi32>\n%r = vector.extract %t[2] : vector<4x2xi32> -> vector<2xi32>"
        ),
        &[3, 7],
    );
    case(
        &format!(
            "{block}%c = vector.concat<1> %m, %m : vector<2x4xi32>, vector<2x4xi32> -> vector<2x8xi32>\n%r = vector.extract %c[1] : vector<2x8xi32> -> vector<8xi32>"
        ),
        &[5, 6, 7, 8, 5, 6, 7, 8],
    );
    case(
        &format!(
            "{block}%s = vector.slice %m[0, 1] : vector<2x4xi32> -> vector<2x2xi32>\n%r = vector.extract %s[1] : vector<2x2xi32> -> vector<2xi32>"
        ),
        &[6, 7],
    );
    case(
        &format!(
            "{block}%w = vector.broadcast %p : vector<4xi32> -> vector<3x4xi32>\n%r = vector.extract %w[2] : vector<3x4xi32> -> vector<4xi32>"
        ),
        &[1, 2, 3, 4],
    );
    case(
        &format!("{block}%e = vector.extract %m[1, 2] : vector<2x4xi32> -> i32\n%r = vector.splat %e : vector<2xi32>"),
        &[7, 7],
    );
}

#[test]
fn vectors_compute() {
    let x = [4, -3, 2, 9];
    let case = |ops: &str, expected: &[i32]| assert_eq!(vector(&x, ops, expected.len()), expected, "{ops}");
    case("%r = vector.addi %x, %x : vector<4xi32>", &[8, -6, 4, 18]);
    case(
        "%c = vector.constant 3 : vector<4xi32>\n%m = vector.cmpi slt, %x, %c : vector<4xi32> -> vector<4xi1>\n%r = vector.select %m, %c, %x : vector<4xi32>",
        &[4, 3, 3, 9],
    );
    case(
        "%b0 = scalar.constant 10 : i32\n%s0 = scalar.constant -4 : i32\n%r = vector.iota %b0 step %s0 : vector<4xi32>",
        &[10, 6, 2, -2],
    );
    case(
        "%i = scalar.constant 100 : i32\n%s = vector.reduce<addi> %x, %i : vector<4xi32>, i32\n%r = vector.splat %s : vector<1xi32>",
        &[112],
    );
    case(
        "%i = scalar.constant 100 : i32\n%s = vector.reduce<minsi> %x, %i : vector<4xi32>, i32\n%r = vector.splat %s : vector<1xi32>",
        &[-3],
    );
    case(
        "%a = vector.extract %x[1] : vector<4xi32> -> i32\n%c = vector.extract %x[3] : vector<4xi32> -> i32\n%r = vector.from_elements %a, %c, %a : vector<3xi32>",
        &[-3, 9, -3],
    );
    case(
        "%at = scalar.constant 2 : i32\n%i = index.cast %at : i32 to index\n%e = vector.extract %x[%i] : vector<4xi32> -> i32\n%r = vector.insert %e into %x[0] : i32, vector<4xi32>",
        &[2, -3, 2, 9],
    );
    // Lane 0 lies in the lowest bits.
    case(
        "%w = vector.bitcast %x : vector<4xi32> to vector<8xi16>\n%h = vector.slice %w[2] : vector<8xi16> -> vector<4xi16>\n%r = vector.extsi %h : vector<4xi16> to vector<4xi32>",
        &[-3, -1, 2, 0],
    );
    case(
        "%w = vector.bitcast %x : vector<4xi32> to vector<2xi64>\n%r = vector.trunci %w : vector<2xi64> to vector<2xi32>",
        &[4, 2],
    );
    case(
        "%f = vector.sitofp %x : vector<4xi32> to vector<4xf32>\n%a = scalar.constant 0.5 : f32\n%d = vector.dotf %f, %f, %a : vector<4xf32>, vector<4xf32>, f32\n%t = scalar.constant 2.0 : f32\n%e = scalar.mulf %d, %t : f32\n%i = scalar.fptosi %e : f32 to i32\n%r = vector.splat %i : vector<1xi32>",
        &[221],
    );
}

#[test]
fn sums_keep_their_order() {
    // Ascending from the initial value: 2^24 + 1 + 1 loses both ones, 1 + 1 + 2^24 would not.
    let body = "%v = buffer.view %b[%base] : buffer -> view<3xf32>\n%x = vector.load %v[0] : view<3xf32> -> vector<3xf32>\n\
                %z = scalar.constant 0.0 : f32\n%s = vector.reduce<addf> %x, %z : vector<3xf32>, f32\n\
                view.store %s, %v[0] : f32, view<3xf32>";
    let kernel = kernel(&single("%b: buffer", body), "k", &[]);
    let mut bound = [Bound::f32s(&[16_777_216.0, 1.0, 1.0])];
    run(&kernel, &[], &mut bound).unwrap();
    assert_eq!(bound[0].to_f32s()[0], 16_777_216.0);
}

#[test]
fn masked_lanes_touch_nothing() {
    // Two of four lanes lie outside the view; only the others are stored.
    let ops = "%lo = index.constant 2 : index\n%hi = index.constant 4 : index\n%one = index.constant 1 : index\n\
               %m = vector.mask.range [%lo to %hi step %one] : index -> vector<4xi1>\n\
               %pass = vector.constant 7 : vector<4xi32>\n\
               %w = buffer.view %b[%base] : buffer -> view<4xi32>\n\
               %x = vector.load.mask %w[%lo], %m, %pass : view<4xi32>, vector<4xi1>, vector<4xi32>\n\
               %y = vector.addi %x, %x : vector<4xi32>\n\
               vector.store.mask %y, %w[%lo], %m : vector<4xi32>, view<4xi32>, vector<4xi1>\n\
               %o = buffer.view %b[16] : buffer -> view<4xi32>\nvector.store %x, %o[0] : vector<4xi32>, view<4xi32>";
    let ops = ops
        .replace("%one = index.constant 1 : index\n", "%step = index.constant 1 : index\n")
        .replace("step %one", "step %step");
    assert_eq!(on(&[1, 2, 3, 4, 0, 0, 0, 0], &ops), [1, 2, 6, 8, 3, 4, 7, 7]);
}

#[test]
fn views_window_the_same_bytes() {
    // A 2 x 3 window of a 4 x 6 matrix keeps the matrix' strides.
    let words: Vec<i32> = (0..24).collect();
    let ops = "%m = buffer.view %b[%base] : buffer -> view<4x6xi32>\n%i = index.constant 1 : index\n\
               %s = view.subview %m[%i, 2] : view<4x6xi32> -> view<2x3xi32>\n\
               %x = vector.load %s[0, 0] : view<2x3xi32> -> vector<2x3xi32>\n\
               %y = vector.muli %x, %x : vector<2x3xi32>\nvector.store %y, %s[0, 0] : vector<2x3xi32>, view<2x3xi32>";
    let mut expected = words.clone();
    for at in [8, 9, 10, 14, 15, 16] {
        expected[at] *= expected[at];
    }
    assert_eq!(on(&words, ops), expected);
    // Columns by a strided layout; a refined view; an offset view.
    let ops = "%l = encoding.layout.strided [1, 6] : encoding<layout>\n%t = buffer.view %b[%base] : buffer -> view<6x4xi32, %l>\n\
               %x = view.load %t[2, 3] : view<6x4xi32, %l> -> i32\n%w = view.refine %v : view<24xi32> -> view<4x6xi32>\n\
               view.store %x, %w[1, 1] : i32, view<4x6xi32>\n%o = buffer.view %b[8] : buffer -> view<22xi32>\n\
               view.store %x, %o[0] : i32, view<22xi32>";
    let mut expected = words.clone();
    expected[7] = 20;
    expected[2] = 20;
    assert_eq!(on(&words, ops), expected);
}

#[test]
fn control_flow() {
    // Collatz by while: steps from the first word to 1.
    let ops = "%n = view.load %v[0] : view<2xi32> -> i32\n%z = scalar.constant 0 : i32\n%o = scalar.constant 1 : i32\n\
               %two = scalar.constant 2 : i32\n%three = scalar.constant 3 : i32\n\
               %last, %steps = scf.while(%x = %n, %k = %z : i32, i32) -> (i32, i32) {\n\
               %go = scalar.cmpi ne, %x, %o : i32\nscf.condition %go, %x, %k : i1, i32, i32\n} do(%y: i32, %l: i32) {\n\
               %bit = scalar.andi %y, %o : i32\n%odd = scalar.cmpi eq, %bit, %o : i32\n\
               %next = scf.if %odd -> (i32) {\n%t = scalar.fmai %y, %three, %o : i32\nscf.yield %t : i32\n} else {\n\
               %h = scalar.divsi %y, %two : i32\nscf.yield %h : i32\n}\n%l2 = scalar.addi %l, %o : i32\n\
               scf.yield %next, %l2 : i32, i32\n}\nview.store %steps, %v[1] : i32, view<2xi32>";
    assert_eq!(on(&[27, 0], ops), [27, 111]);
    let ops = "%n = view.load %v[0] : view<2xi32> -> i32\n%i = index.cast %n : i32 to index\n\
               %a = scalar.constant 10 : i32\n%c = scalar.constant 20 : i32\n%d = scalar.constant 30 : i32\n\
               %s = scf.switch %i -> (i32) {\ncase -2 {\nscf.yield %a : i32\n}\ncase 5 {\nscf.yield %c : i32\n}\ndefault {\nscf.yield %d : i32\n}\n}\n\
               %p, %q = scf.lookup %i { -2 = (%a, %c), 5 = (%c, %d) } default(%d, %a) : index, i32, i32\n\
               %t = scalar.muli %s, %p : i32\n%u = scalar.addi %t, %q : i32\nview.store %u, %v[1] : i32, view<2xi32>";
    assert_eq!([-2, 5, 0].map(|n| on(&[n, 0], ops)[1]), [120, 430, 910]);
    // A loop over offsets, an empty loop, and one that carries a view.
    let ops = "%lo = index.constant 0 : offset\n%hi = index.constant 16 : offset\n%st = index.constant 4 : offset\n%z = scalar.constant 0 : i32\n\
               %sum = scf.for %o = [%lo to %hi step %st](%s = %z : i32) -> (i32) {\n\
               %w = buffer.view %b[%o] : buffer -> view<1xi32>\n%x = view.load %w[0] : view<1xi32> -> i32\n%t = scalar.addi %s, %x : i32\nscf.yield %t : i32\n}\n\
               view.store %sum, %v[0] : i32, view<4xi32>\n\
               %same = scf.for %k = [3 to 3 step 1](%s = %sum : i32) -> (i32) {\nscf.yield %z : i32\n}\nview.store %same, %v[1] : i32, view<4xi32>\n\
               %p = buffer.view %b[%base] : buffer -> view<1xi32>\n%q = buffer.view %b[12] : buffer -> view<1xi32>\n\
               %r, %r2 = scf.for %k = [0 to 3 step 1](%c = %p, %d = %q : view<1xi32>, view<1xi32>) -> (view<1xi32>, view<1xi32>) {\nscf.yield %d, %c : view<1xi32>, view<1xi32>\n}\n\
               view.store %z, %r[0] : i32, view<1xi32>";
    assert_eq!(on(&[1, 2, 3, 4], ops), [10, 10, 3, 0]);
}

#[test]
fn private_memory_is_the_items_own() {
    let source = "kernel.def @k() {\nkernel.launch.config workgroups(2, 1, 1) workgroup_size(4, 1, 1) : index\n} launch(%b: buffer) {\n\
        %base = index.constant 0 : offset\n%bytes = index.constant 8 : offset\n%id = kernel.workitem.dispatch.id<x> : index\n\
        %p = buffer.alloca<private> align(4) %bytes : buffer\n%w = buffer.view %p[%base] : buffer -> view<2xi32>\n\
        %i = index.cast %id : index to i32\nview.store %i, %w[0] : i32, view<2xi32>\n\
        kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)\n\
        %x = view.load %w[0] : view<2xi32> -> i32\n%v = buffer.view %b[%base] : buffer -> view<8xi32>\nview.store %x, %v[%id] : i32, view<8xi32>\nkernel.return\n}";
    let mut bound = [Bound::zeros(32)];
    run(&kernel(source, "k", &[]), &[], &mut bound).unwrap();
    assert_eq!(bound[0].to_i32s(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// A workgroup of `size` items: item i gets `%x = i + 1` and stores `%r`.
fn group(size: u32, ops: &str) -> Vec<i32> {
    let source = format!(
        "kernel.def @k() {{\nkernel.launch.config workgroups(1, 1, 1) workgroup_size({size}, 1, 1) : index\n}} launch(%b: buffer) {{\n\
         %base = index.constant 0 : offset\n%id = kernel.workitem.id<x> : index\n%i = index.cast %id : index to i32\n\
         %one = scalar.constant 1 : i32\n%w8 = scalar.constant 8 : i32\n%w32 = scalar.constant 32 : i32\n%x = scalar.addi %i, %one : i32\n{ops}\n\
         %v = buffer.view %b[%base] : buffer -> view<{size}xi32>\nview.store %r, %v[%id] : i32, view<{size}xi32>\nkernel.return\n}}"
    );
    let mut bound = [Bound::zeros(4 * size as usize)];
    run(&kernel(&source, "k", &[]), &[], &mut bound).unwrap();
    bound[0].to_i32s()
}

#[test]
fn shuffles() {
    // The other lane's value where valid, else −1.
    let shuffle = |mode: &str, offset: i32, width: &str, size: u32| {
        let ops = format!(
            "%d = scalar.constant {offset} : i32\n%no = scalar.constant -1 : i32\n\
             %s, %ok = kernel.subgroup.shuffle<{mode}> %x, %d, {width} : i32, i32, i32\n%r = scf.select %ok, %s, %no : i32"
        );
        group(size, &ops)
    };
    let expect = |size: i32, source: fn(i32) -> i32| (0..size).map(source).collect::<Vec<i32>>();
    assert_eq!(shuffle("xor", 5, "%w8", 32), expect(32, |lane| (lane ^ 5) + 1));
    assert_eq!(shuffle("up", 3, "%w8", 32), expect(32, |lane| if lane % 8 >= 3 { lane - 2 } else { -1 }));
    assert_eq!(shuffle("down", 3, "%w8", 32), expect(32, |lane| if lane % 8 < 5 { lane + 4 } else { -1 }));
    assert_eq!(shuffle("index", 6, "%w8", 32), expect(32, |lane| lane / 8 * 8 + 7));
    assert_eq!(shuffle("index", 8, "%w8", 32), expect(32, |_| -1));
    assert_eq!(shuffle("up", -1, "%w32", 32), expect(32, |_| -1));
    // Two subgroups, the second with eight lanes only.
    assert_eq!(shuffle("xor", 16, "%w32", 40), expect(40, |lane| if lane < 32 { (lane ^ 16) + 1 } else { -1 }));
}

#[test]
fn reductions() {
    assert_eq!(group(40, "%r = kernel.subgroup.reduce<addi> %x : i32"), [vec![528; 32], vec![292; 8]].concat());
    assert_eq!(group(40, "%r = kernel.workgroup.reduce<addi> %x : i32"), [820; 40]);
    assert_eq!(group(6, "%r = kernel.workgroup.reduce<maxsi> %x : i32"), [6; 6]);
    let clusters: Vec<i32> = (0..32).map(|lane| (lane / 4 * 4 + 1..=lane / 4 * 4 + 4).sum()).collect();
    assert_eq!(group(32, "%r = kernel.subgroup.reduce<addi> %x {cluster_size = 4} : i32"), clusters);
    let strided: Vec<i32> =
        (0..32).map(|lane: i32| (0..4).map(|k| lane / 16 * 16 + lane % 4 + 4 * k + 1).sum()).collect();
    assert_eq!(group(32, "%r = kernel.subgroup.reduce<addi> %x {cluster_size = 4, cluster_stride = 4} : i32"), strided);
    let pair = "%p = vector.from_elements %x, %one : vector<2xi32>\n%q = kernel.workgroup.reduce<addi> %p : vector<2xi32>\n\
                %a = vector.extract %q[0] : vector<2xi32> -> i32\n%c = vector.extract %q[1] : vector<2xi32> -> i32\n%r = scalar.subi %a, %c : i32";
    assert_eq!(group(4, pair), [6; 4]);
}

#[test]
fn ids_count_axes_in_order() {
    let source = "kernel.def @k() {\nkernel.launch.config workgroups(2, 1, 2) workgroup_size(4, 3, 4) : index\n} launch(%b: buffer) {\n\
        %base = index.constant 0 : offset\n%v = buffer.view %b[%base] : buffer -> view<4x3x48xi32>\n\
        %x = kernel.workitem.id<x> : index\n%y = kernel.workitem.id<y> : index\n%z = kernel.workitem.id<z> : index\n\
        %sx = kernel.workgroup.size<x> : index\n%sy = kernel.workgroup.size<y> : index\n%nx = kernel.workgroup.count<x> : index\n\
        %gx = kernel.workgroup.id<x> : index\n%gz = kernel.workgroup.id<z> : index\n%g = index.madd %gz, %nx, %gx : index\n\
        %yz = index.madd %z, %sy, %y : index\n%flat = index.madd %yz, %sx, %x : index\n\
        %s = kernel.subgroup.id : index\n%l = kernel.subgroup.lane.id : index\n%n = kernel.subgroup.count : index\n%w = kernel.subgroup.size : index\n\
        %f2 = index.madd %s, %w, %l : index\n%dz = kernel.workitem.dispatch.id<z> : index\n\
        %a = index.cast %f2 : index to i32\n%c = index.cast %dz : index to i32\n%d = index.cast %n : index to i32\n\
        view.store %a, %v[%g, 0, %flat] : i32, view<4x3x48xi32>\nview.store %c, %v[%g, 1, %flat] : i32, view<4x3x48xi32>\nview.store %d, %v[%g, 2, %flat] : i32, view<4x3x48xi32>\nkernel.return\n}";
    let mut bound = [Bound::zeros(4 * 4 * 3 * 48)];
    run(&kernel(source, "k", &[]), &[], &mut bound).unwrap();
    let found = bound[0].to_i32s();
    for group in 0..4 {
        for flat in 0..48 {
            let at = |row: usize| found[(group * 3 + row) * 48 + flat];
            assert_eq!([at(0), at(1), at(2)], [flat as i32, (group / 2 * 4 + flat / 12) as i32, 2], "{group} {flat}");
        }
    }
}

#[track_caller]
fn fault(source: &str, words: usize) -> Fault {
    let kernel = kernel(source, "k", &[]);
    let mut bytes = vec![0; 4 * words];
    let geometry = kernel.launch.geometry(&[]).unwrap();
    let limits = Limits { steps: 10_000, ..Limits::default() };
    interp::run(&kernel, geometry, &mut [Argument::Buffer(&mut bytes)], limits).expect_err("a fault")
}

#[test]
fn faults_name_the_access() {
    let body = |ops: &str| {
        single(
            "%b: buffer",
            &format!(
                "%v = buffer.view %b[%base] : buffer -> view<4x4xi32>\n%n = view.load %v[0, 0] : view<4x4xi32> -> i32\n%i = index.cast %n : i32 to index\n{ops}"
            ),
        )
    };
    let at = |source: &str, text: &str| source.find(text).unwrap() as u32;
    let far = body(
        "%k = index.constant 4 : index\n%j = index.add %i, %k : index\n%x = view.load %v[%i, %j] : view<4x4xi32> -> i32\nview.store %x, %v[0, 0] : i32, view<4x4xi32>",
    );
    match fault(&far, 16) {
        Fault::OutOfBounds { axis: 1, index: 4, limit: 4, at: span } => {
            assert_eq!(span.start, at(&far, "view.load %v[%i"))
        }
        other => panic!("{other}"),
    }
    // The view promises 64 bytes, the binding has 60.
    let short = body("view.store %n, %v[3, 3] : i32, view<4x4xi32>");
    assert!(matches!(fault(&short, 15), Fault::OutOfBounds { axis: 2, index: 63, limit: 60, .. }));
    let below = body(
        "%k = index.constant -1 : index\n%j = index.add %i, %k : index\nview.store %n, %v[%j, 0] : i32, view<4x4xi32>",
    );
    assert!(matches!(fault(&below, 16), Fault::OutOfBounds { axis: 0, index: -1, limit: 4, .. }));
    let wide = body(
        "%w = vector.load %v[0, %i] : view<4x4xi32> -> vector<4xi32>\n%k = index.constant 1 : index\n%j = index.add %i, %k : index\nvector.store %w, %v[0, %j] : vector<4xi32>, view<4x4xi32>",
    );
    assert!(matches!(fault(&wide, 16), Fault::OutOfBounds { axis: 1, index: 4, limit: 4, .. }));
    let endless = body("%t = scalar.constant true : i1\nscf.while {\nscf.condition %t : i1\n} do {\n}");
    assert_eq!(fault(&endless, 16), Fault::Steps { limit: 10_000 });
}

#[test]
fn a_barrier_that_not_all_reach_is_a_fault() {
    let source = "kernel.def @k() {\nkernel.launch.config workgroups(1, 1, 1) workgroup_size(4, 1, 1) : index\n} launch(%b: buffer) {\n\
        %i = kernel.workitem.id<x> : index\n%two = index.constant 2 : index\n%c = index.cmp ult, %i, %two : index\n\
        scf.if %c {\nkernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)\n}\nkernel.return\n}";
    let at = source.find("kernel.barrier").unwrap() as u32;
    assert!(matches!(fault(source, 1), Fault::Diverged { at: span } if span.start == at));
}

#[test]
fn arguments_are_checked() {
    let kernel = kernel(&single("%b: buffer, %n: i32", ""), "k", &[]);
    let geometry = kernel.launch.geometry(&[]).unwrap();
    let run = |arguments: &mut [Argument<'_>]| interp::run(&kernel, geometry, arguments, Limits::default());
    assert!(matches!(run(&mut [Argument::Scalar(1), Argument::Scalar(1)]), Err(Fault::Argument { argument: 0, .. })));
    assert!(matches!(
        run(&mut [Argument::Buffer(&mut []), Argument::Buffer(&mut [])]),
        Err(Fault::Argument { argument: 1, .. })
    ));
    assert!(matches!(run(&mut [Argument::Buffer(&mut [])]), Err(Fault::Argument { argument: 2, .. })));
    assert!(run(&mut [Argument::Buffer(&mut []), Argument::Scalar(1)]).is_ok());
}
