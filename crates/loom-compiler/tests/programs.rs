//! Whole kernels with results worked out by hand or by a plain loop.

mod common;

use common::{Bound, kernel, run};

const AXPBY: &str = r#"
// y = a*x + b*y over n elements, two per work-item, the tail guarded.
kernel.def export("axpby") @axpby_pairs(%count: index) {
  %one = index.constant 1 : index
  %items = index.constant 4 : index
  %per_group = index.constant 8 : index
  %round = index.constant 7 : index
  %padded = index.add %count, %round : index
  %groups = index.div %padded, %per_group : index
  kernel.launch.config workgroups(%groups, %one, %one) workgroup_size(%items, %one, %one) : index
} launch(%n: index, %a: f32, %b: f32, %x: buffer, %y: buffer) {
  %start = index.constant 0 : offset
  %len = index.assume %n [range(%n, 1, 1048576)] : index
  %xs, %ys = buffer.assume.noalias %x, %y : buffer, buffer
  %xv = buffer.view %xs[%start] : buffer -> view<[%len]xf32>
  %yv = buffer.view %ys[%start] : buffer -> view<[%len]xf32, #dense>
  %id = kernel.workitem.dispatch.id<x> : index
  %two = index.constant 2 : index
  %first = index.mul %id, %two : index
  %lo = index.constant 0 : index
  %step = index.constant 1 : index
  scf.for %k = [%lo to %two step %step] {
    %at = index.add %first, %k : index
    %inside = index.cmp ult, %at, %len : index
    scf.if %inside {
      %xe = view.load %xv[%at] : view<[%len]xf32> -> f32
      %ye = view.load %yv[%at] : view<[%len]xf32> -> f32
      %scaled = scalar.mulf %ye, %b : f32
      %sum = scalar.fmaf %a, %xe, %scaled : f32
      view.store %sum, %yv[%at] : f32, view<[%len]xf32>
    }
  }
  kernel.return
}
"#;

#[test]
fn axpby_guards_its_tail() {
    let kernel = kernel(AXPBY, "axpby", &[]);
    assert_eq!(kernel.name, "axpby");
    assert_eq!(kernel.workgroup_size, [4, 1, 1]);
    let x: Vec<f32> = (0..13).map(|at| at as f32).collect();
    let y: Vec<f32> = (0..13).map(|at| 100.0 - at as f32).collect();
    let mut bound = [
        Bound::Slot(13),
        Bound::Slot(u64::from(0.5f32.to_bits())),
        Bound::Slot(u64::from((-2.0f32).to_bits())),
        Bound::f32s(&x),
        Bound::f32s(&y),
    ];
    run(&kernel, &[13], &mut bound).unwrap();
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 0.5 * x - 2.0 * y).collect();
    assert_eq!(bound[4].to_f32s(), expected);
    assert_eq!(bound[3].to_f32s(), x);
}

const SOFTMAX: &str = r#"
// One subgroup per row: peak by a butterfly, sum by a subgroup reduction.
config.decl @rows.width : %v: index where [range(%v, 1, 4096)]
func.def pure inline @larger(%a: f32, %d: i32) -> (f32) {
  %w = scalar.constant 32 : i32
  %other, %valid = kernel.subgroup.shuffle<xor> %a, %d, %w : f32, i32, i32
  %m = scalar.maxnumf %a, %other : f32
  func.return %m : f32
}
kernel.def @softmax_rows(%rows: index) {
  %one = index.constant 1 : index
  %lanes = target.subgroup.size : index
  kernel.launch.config workgroups(%rows, %one, %one) workgroup_size(%lanes, %one, %one) : index
} launch(%rows: index, %src: buffer, %dst: buffer) {
  %zero = index.constant 0 : offset
  %w = config.get @rows.width : index
  %in = buffer.view %src[%zero] : buffer -> view<[%rows]x[%w]xf32>
  %out = buffer.view %dst[%zero] : buffer -> view<[%rows]x[%w]xf32>
  %r = kernel.workgroup.id<x> : index
  %lane = kernel.subgroup.lane.id : index
  %stride = kernel.subgroup.size : index
  %d1 = scalar.constant 1 : i32
  %d2 = scalar.constant 2 : i32
  %d4 = scalar.constant 4 : i32
  %d8 = scalar.constant 8 : i32
  %d16 = scalar.constant 0x10 : i32
  %lowest = scalar.constant -inf : f32
  %none = scalar.constant 0.0 : f32
  %m0 = scf.for %c = [%lane to %w step %stride](%best = %lowest : f32) -> (f32) {
    %v = view.load %in[%r, %c] : view<[%rows]x[%w]xf32> -> f32
    %n = scalar.maxnumf %best, %v : f32
    scf.yield %n : f32
  }
  %m1 = func.call pure @larger(%m0, %d16) : (f32, i32) -> (f32)
  %m2 = func.call pure @larger(%m1, %d8) : (f32, i32) -> (f32)
  %m3 = func.call pure @larger(%m2, %d4) : (f32, i32) -> (f32)
  %m4 = func.call pure @larger(%m3, %d2) : (f32, i32) -> (f32)
  %peak = func.call pure @larger(%m4, %d1) : (f32, i32) -> (f32)
  %part = scf.for %c = [%lane to %w step %stride](%acc = %none : f32) -> (f32) {
    %v = view.load %in[%r, %c] : view<[%rows]x[%w]xf32> -> f32
    %centred = scalar.subf %v, %peak : f32
    %e = scalar.expf<afn> %centred : f32
    %n = scalar.addf %acc, %e : f32
    scf.yield %n : f32
  }
  %total = kernel.subgroup.reduce<addf> %part : f32
  scf.for %c = [%lane to %w step %stride] {
    %v = view.load %in[%r, %c] : view<[%rows]x[%w]xf32> -> f32
    %centred = scalar.subf %v, %peak : f32
    %e = scalar.expf<afn> %centred : f32
    %p = scalar.divf<arcp|nnan> %e, %total : f32
    view.store %p, %out[%r, %c] : f32, view<[%rows]x[%w]xf32>
  }
  kernel.return
}
"#;

#[test]
fn softmax_of_rows() {
    for width in [1usize, 31, 32, 45, 70] {
        let kernel = kernel(SOFTMAX, "@softmax_rows", &[("rows.width", &width.to_string())]);
        let rows = 3;
        let values: Vec<f32> = (0..rows * width).map(|at| ((at * 37 % 101) as f32 - 50.0) * 0.25).collect();
        let mut bound = [Bound::Slot(rows as u64), Bound::f32s(&values), Bound::zeros(4 * values.len())];
        run(&kernel, &[rows as u64], &mut bound).unwrap();
        let found = bound[2].to_f32s();
        for (row, found) in values.chunks(width).zip(found.chunks(width)) {
            let peak = row.iter().fold(f64::NEG_INFINITY, |peak, value| peak.max(f64::from(*value)));
            let total: f64 = row.iter().map(|value| (f64::from(*value) - peak).exp()).sum();
            for (value, found) in row.iter().zip(found) {
                let expected = (f64::from(*value) - peak).exp() / total;
                // Up to 70 additions and two roundings of 2^-24, on numbers of at most 1.
                assert!((f64::from(*found) - expected).abs() <= 5e-6 * expected, "{found} {expected}");
            }
        }
    }
}

const MATMUL: &str = r#"
// Tiles of 8 x 8 through workgroup memory; out-of-range elements are zero.
kernel.def export("mm") @tiled(%m: index, %n: index) {
  %one = index.constant 1 : index
  %t = index.constant 8 : index
  %r = index.constant 7 : index
  %mp = index.add %m, %r : index
  %np = index.add %n, %r : index
  %gy = index.div %mp, %t : index
  %gx = index.div %np, %t : index
  kernel.launch.config workgroups(%gx, %gy, %one) workgroup_size(%t, %t, %one) : index
} launch(%m: index, %n: index, %k: index, %a: buffer, %b: buffer, %c: buffer) {
  %base = index.constant 0 : offset
  %bytes = index.constant 256 : offset
  %t = index.constant 8 : index
  %zero = index.constant 0 : index
  %step = index.constant 1 : index
  %nothing = scalar.constant 0.0 : f32
  %av = buffer.view %a[%base] : buffer -> view<[%m]x[%k]xf32>
  %bv = buffer.view %b[%base] : buffer -> view<[%k]x[%n]xf32>
  %cv = buffer.view %c[%base] : buffer -> view<[%m]x[%n]xf32>
  %as = buffer.alloca<workgroup> align(16) %bytes : buffer
  %bs = buffer.alloca %bytes {base_alignment = 16, memory_space = workgroup} : buffer
  %at = buffer.view %as[%base] : buffer -> view<8x8xf32>
  %bt = buffer.view %bs[%base] : buffer -> view<8x8xf32>
  %tx = kernel.workitem.id<x> : index
  %ty = kernel.workitem.id<y> : index
  %bx = kernel.workgroup.id<x> : index
  %by = kernel.workgroup.id<y> : index
  %col = index.madd %bx, %t, %tx : index
  %row = index.madd %by, %t, %ty : index
  %row_ok = index.cmp ult, %row, %m : index
  %col_ok = index.cmp ult, %col, %n : index
  %sum = scf.for %k0 = [%zero to %k step %t](%acc = %nothing : f32) -> (f32) {
    %ka = index.add %k0, %tx : index
    %kb = index.add %k0, %ty : index
    %ka_ok = index.cmp ult, %ka, %k : index
    %kb_ok = index.cmp ult, %kb, %k : index
    %a_ok = scalar.andi %row_ok, %ka_ok : i1
    %b_ok = scalar.andi %col_ok, %kb_ok : i1
    %ae = scf.if %a_ok -> (f32) {
      %v = view.load %av[%row, %ka] : view<[%m]x[%k]xf32> -> f32
      scf.yield %v : f32
    } else {
      scf.yield %nothing : f32
    }
    %be = scf.if %b_ok -> (f32) {
      %v = view.load %bv[%kb, %col] : view<[%k]x[%n]xf32> -> f32
      scf.yield %v : f32
    } else {
      scf.yield %nothing : f32
    }
    view.store %ae, %at[%ty, %tx] : f32, view<8x8xf32>
    view.store %be, %bt[%ty, %tx] : f32, view<8x8xf32>
    kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)
    %part = scf.for %j = [%zero to %t step %step](%p = %acc : f32) -> (f32) unroll {
      %x = view.load %at[%ty, %j] : view<8x8xf32> -> f32
      %y = view.load %bt[%j, %tx] : view<8x8xf32> -> f32
      %q = scalar.fmaf %x, %y, %p : f32
      scf.yield %q : f32
    }
    kernel.barrier<workgroup> {ordering = acq_rel, scope = workgroup}
    scf.yield %part : f32
  }
  %ok = scalar.andi %row_ok, %col_ok : i1
  scf.if %ok {
    view.store %sum, %cv[%row, %col] : f32, view<[%m]x[%n]xf32>
  }
  kernel.return
}
"#;

#[test]
fn tiled_matmul_is_an_ascending_chain_of_fmas() {
    let kernel = kernel(MATMUL, "mm", &[]);
    assert_eq!(kernel.workgroup_bytes, 512);
    let (m, n, k) = (11usize, 9usize, 13usize);
    let a: Vec<f32> = (0..m * k).map(|at| ((at * 29 % 17) as f32 - 8.0) / 3.0).collect();
    let b: Vec<f32> = (0..k * n).map(|at| ((at * 31 % 19) as f32 - 9.0) / 7.0).collect();
    let mut bound = [
        Bound::Slot(m as u64),
        Bound::Slot(n as u64),
        Bound::Slot(k as u64),
        Bound::f32s(&a),
        Bound::f32s(&b),
        Bound::zeros(4 * m * n),
    ];
    run(&kernel, &[m as u64, n as u64], &mut bound).unwrap();
    let mut expected = Vec::new();
    for row in 0..m {
        for col in 0..n {
            // The zeros that pad the last tile change no sum.
            expected.push((0..k).fold(0.0f32, |sum, at| a[row * k + at].mul_add(b[at * n + col], sum)));
        }
    }
    assert_eq!(bound[5].to_f32s(), expected);
}

const CELL: &str = r#"
// An LSTM cell's update; gates are [batch, 4, hidden] in the order i, f, g, o.
kernel.def export("cell") @cell_update(%count: index) {
  %one = index.constant 1 : index
  %size = index.constant 16 : index
  %round = index.constant 15 : index
  %padded = index.add %count, %round : index
  %groups = index.div %padded, %size : index
  kernel.launch.config workgroups(%groups, %one, %one) workgroup_size(%size, %one, %one) : index
} launch(%count: index, %hidden: index, %batch: index, %gates: buffer, %before: buffer, %after: buffer, %out: buffer) {
  %base = index.constant 0 : offset
  %g = buffer.view %gates[%base] : buffer -> view<[%batch]x4x[%hidden]xf32>
  %c0 = buffer.view %before[%base] : buffer -> view<[%batch]x[%hidden]xf32>
  %c1 = buffer.view %after[%base] : buffer -> view<[%batch]x[%hidden]xf32>
  %h1 = buffer.view %out[%base] : buffer -> view<[%batch]x[%hidden]xf32>
  %id = kernel.workitem.dispatch.id<x> : index
  %live = index.cmp ult, %id, %count : index
  scf.if %live {
    %b = index.div %id, %hidden : index
    %u = index.rem %id, %hidden : index
    %gi = view.load %g[%b, 0, %u] : view<[%batch]x4x[%hidden]xf32> -> f32
    %gf = view.load %g[%b, 1, %u] : view<[%batch]x4x[%hidden]xf32> -> f32
    %gg = view.load %g[%b, 2, %u] : view<[%batch]x4x[%hidden]xf32> -> f32
    %go = view.load %g[%b, 3, %u] : view<[%batch]x4x[%hidden]xf32> -> f32
    %old = view.load %c0[%b, %u] : view<[%batch]x[%hidden]xf32> -> f32
    %si = scalar.logisticf %gi : f32
    %sf = scalar.logisticf %gf : f32
    %so = scalar.logisticf %go : f32
    %tg = scalar.tanhf %gg : f32
    %keep = scalar.mulf %sf, %old : f32
    %new = scalar.fmaf %si, %tg, %keep : f32
    %tc = scalar.tanhf %new : f32
    %h = scalar.mulf %so, %tc : f32
    view.store %new, %c1[%b, %u] : f32, view<[%batch]x[%hidden]xf32>
    view.store %h, %h1[%b, %u] : f32, view<[%batch]x[%hidden]xf32>
  }
  kernel.return
}
"#;

#[test]
fn lstm_cell() {
    let kernel = kernel(CELL, "cell", &[]);
    let (batch, hidden) = (3usize, 7usize);
    let gates: Vec<f32> = (0..batch * 4 * hidden).map(|at| ((at * 13 % 41) as f32 - 20.0) / 5.0).collect();
    let before: Vec<f32> = (0..batch * hidden).map(|at| ((at * 7 % 11) as f32 - 5.0) / 4.0).collect();
    let count = (batch * hidden) as u64;
    let mut bound = [
        Bound::Slot(count),
        Bound::Slot(hidden as u64),
        Bound::Slot(batch as u64),
        Bound::f32s(&gates),
        Bound::f32s(&before),
        Bound::zeros(4 * batch * hidden),
        Bound::zeros(4 * batch * hidden),
    ];
    run(&kernel, &[count], &mut bound).unwrap();
    let (cells, outs) = (bound[5].to_f32s(), bound[6].to_f32s());
    let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    for b in 0..batch {
        for u in 0..hidden {
            let gate = |at: usize| f64::from(gates[(b * 4 + at) * hidden + u]);
            let old = f64::from(before[b * hidden + u]);
            let cell = logistic(gate(0)) * gate(2).tanh() + logistic(gate(1)) * old;
            let out = logistic(gate(3)) * cell.tanh();
            // A few roundings of 2^-24 each on numbers of magnitude below 3.
            assert!((f64::from(cells[b * hidden + u]) - cell).abs() < 1e-6);
            assert!((f64::from(outs[b * hidden + u]) - out).abs() < 1e-6);
        }
    }
}

const GEMV: &str = r#"
// bf16 rows by a vector: eight lanes a load, the tail masked, summed over the workgroup.
kernel.def export("gemv") @gemv(%rows: index) {
  %one = index.constant 1 : index
  %items = index.constant 4 : index
  kernel.launch.config workgroups(%rows, %one, %one) workgroup_size(%items, %one, %one) : index
} launch(%rows: index, %k: index, %w: buffer, %x: buffer, %y: buffer) {
  %base = index.constant 0 : offset
  %eight = index.constant 8 : index
  %one = index.constant 1 : index
  %zero = index.constant 0 : index
  %stride = index.constant 32 : index
  %nothing = scalar.constant 0.0 : f32
  %pad = vector.constant 0.0 : vector<8xbf16>
  %wv = buffer.view %w[%base] : buffer -> view<[%rows]x[%k]xbf16>
  %xv = buffer.view %x[%base] : buffer -> view<[%k]xbf16>
  %yv = buffer.view %y[%base] : buffer -> view<[%rows]xf32>
  %row = kernel.workgroup.id<x> : index
  %tid = kernel.workitem.id<x> : index
  %first = index.mul %tid, %eight : index
  %part = scf.for %c = [%first to %k step %stride](%acc = %nothing : f32) -> (f32) {
    %m = vector.mask.range [%c to %k step %one] : index -> vector<8xi1>
    %wb = vector.load.mask %wv[%row, %c], %m, %pad : view<[%rows]x[%k]xbf16>, vector<8xi1>, vector<8xbf16>
    %xb = vector.load.mask %xv[%c], %m, %pad : view<[%k]xbf16>, vector<8xi1>, vector<8xbf16>
    %wf = vector.extf %wb : vector<8xbf16> to vector<8xf32>
    %xf = vector.extf %xb : vector<8xbf16> to vector<8xf32>
    %p = vector.mulf<reassoc|contract> %wf, %xf : vector<8xf32>
    %s = vector.reduce<addf, reassoc|contract> %p, %acc : vector<8xf32>, f32
    scf.yield %s : f32
  }
  %sum = kernel.workgroup.reduce<addf> %part : f32
  %leader = index.cmp eq, %tid, %zero : index
  scf.if %leader {
    view.store %sum, %yv[%row] : f32, view<[%rows]xf32>
  }
  kernel.return
}
"#;

#[test]
fn bf16_gemv_masks_its_tail() {
    let kernel = kernel(GEMV, "gemv", &[]);
    let (rows, k) = (3usize, 75usize);
    // Small integers: exact in bf16, and so is every sum.
    let w: Vec<i32> = (0..rows * k).map(|at| (at * 7 % 9) as i32 - 4).collect();
    let x: Vec<i32> = (0..k).map(|at| (at * 5 % 7) as i32 - 3).collect();
    let narrow = |values: &[i32]| {
        Bound::Bytes(
            values.iter().flat_map(|value| ((((*value as f32).to_bits()) >> 16) as u16).to_le_bytes()).collect(),
        )
    };
    let mut bound = [Bound::Slot(rows as u64), Bound::Slot(k as u64), narrow(&w), narrow(&x), Bound::zeros(4 * rows)];
    run(&kernel, &[rows as u64], &mut bound).unwrap();
    let dot = |row: &[i32]| row.iter().zip(&x).map(|(w, x)| w * x).sum::<i32>() as f32;
    assert_eq!(bound[4].to_f32s(), w.chunks(k).map(dot).collect::<Vec<_>>());
}
