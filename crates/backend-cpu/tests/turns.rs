//! Loops whose turns the tile executor takes together, against plain Rust loops: every way in, and every way back to turn after
//! turn.

use std::collections::BTreeMap;

use backend_cpu::isa::Isa;
use backend_cpu::tile::{Arg, Fault, TileScratch, run, run_slices};
use loom_compiler::Module;
use loom_compiler::tile::{CpuImage, Inst, compile};

/// Work-items of a workgroup, each of which has a row.
const WIDTH: usize = 64;

/// A kernel of `rows` workgroups over buffers `%x`, `%y` and `%o`; a row of `%x` and `%y` is `%k` elements.
fn image(rows: usize, body: &str) -> CpuImage {
    let text = format!(
        "kernel.def export(\"k\") @k() {{
  %one = index.constant 1 : index
  %rows = index.constant {rows} : index
  %wg = index.constant {WIDTH} : index
  kernel.launch.config workgroups(%rows, %one, %one) workgroup_size(%wg, %one, %one) : index
}} launch(%k: index, %high: index, %x: buffer, %y: buffer, %o: buffer) {{
  %base = index.constant 0 : offset
  %zero = index.constant 0 : index
  %one = index.constant 1 : index
  %rows = index.constant {rows} : index
  %wg = index.constant {WIDTH} : index
  %none = scalar.constant 0.0 : f32
  %unit = scalar.constant 1.0 : f32
  %xv = buffer.view %x[%base] : buffer -> view<[%rows]x[%k]xf32>
  %yv = buffer.view %y[%base] : buffer -> view<[%rows]x[%k]xf32>
  %xn = buffer.view %x[%base] : buffer -> view<[%rows]x[%k]xbf16>
  %yn = buffer.view %y[%base] : buffer -> view<[%k]xbf16>
  %ov = buffer.view %o[%base] : buffer -> view<[%rows]x64xf32>
  %oi = buffer.view %o[%base] : buffer -> view<[%rows]x64xi32>
  %row = kernel.workgroup.id<x> : index
  %tid = kernel.workitem.id<x> : index
{body}
  kernel.return
}}
"
    );
    let module = Module::parse("turns", &text).unwrap_or_else(|e| panic!("{e}"));
    let kernel = module.specialise("k", &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
    let image = compile(&kernel).unwrap_or_else(|e| panic!("{e}"));
    let insts = || image.program().blocks.iter().flatten();
    let (loops, together) = (
        insts().filter(|inst| matches!(inst, Inst::For { .. } | Inst::Loop { .. })).count(),
        insts().filter(|inst| matches!(inst, Inst::Turns(_))).count(),
    );
    // Else the tests below are of something else.
    assert_eq!(loops, together, "{body}");
    image
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Numbers whose sums round.
fn numbers(n: usize, salt: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + salt * 104_729) % 2003) as f32 * 0.37 - 300.0).collect()
}

/// Runs on every set of instructions, with the same outcome: the buffers, and how it ended.
fn execute(
    image: &CpuImage,
    k: usize,
    high: usize,
    buffers: [&[f32]; 3],
    limit: u64,
) -> (Vec<Vec<f32>>, Result<(), Fault>) {
    let geometry = image.launch.geometry(&[]).unwrap();
    let mut outcomes = Vec::new();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        let mut copies = buffers.map(bytes);
        let mut slices: Vec<&mut [u8]> = copies.iter_mut().map(Vec::as_mut_slice).collect();
        let mut scratch = TileScratch::new(isa);
        scratch.set_step_limit(limit);
        let ended = run_slices(image, &geometry, &mut slices, &[k as u64, high as u64], &mut scratch);
        outcomes.push((copies, ended));
    }
    for other in &outcomes[1..] {
        assert!(*other == outcomes[0], "the sets of instructions part");
    }
    let (buffers, ended) = outcomes.swap_remove(0);
    (buffers.iter().map(|buffer| floats(buffer)).collect(), ended)
}

const LONG: u64 = 1 << 20;

const FOLDS: &str = "
  %sum, %peak, %count = scf.for %c = [%tid to %high step %wg](%a = %none : f32, %b = %none : f32, %n = %none : f32) -> (f32, f32, f32) {
    %v = view.load %xv[%row, %c] : view<[%rows]x[%k]xf32> -> f32
    %w = view.load %yv[%row, %c] : view<[%rows]x[%k]xf32> -> f32
    %a2 = scalar.fmaf %v, %w, %a : f32
    %b2 = scalar.maxnumf %w, %b : f32
    %n2 = scalar.addf %n, %unit : f32
    scf.yield %a2, %b2, %n2 : f32, f32, f32
  }
  %s0 = scalar.subf %sum, %peak : f32
  %s1 = scalar.fmaf %count, %unit, %s0 : f32
  view.store %s1, %ov[%row, %tid] : f32, view<[%rows]x64xf32>";

#[test]
fn folds_of_rows_of_any_length() {
    for rows in [1, 2, 9, 40] {
        let image = image(rows, FOLDS);
        for (k, high) in [(64, 64), (640, 640), (700, 650), (129, 65), (100, 3), (64, 0), (3000, 3000)] {
            let (x, y) = (numbers(rows * k, 1), numbers(rows * k, 2));
            let mut expected = vec![0.0f32; rows * WIDTH];
            for row in 0..rows {
                for item in 0..WIDTH {
                    let (mut sum, mut peak, mut count) = (0.0f32, 0.0f32, 0.0f32);
                    for c in (item..high).step_by(WIDTH) {
                        sum = x[row * k + c].mul_add(y[row * k + c], sum);
                        peak = peak.max(y[row * k + c]);
                        count += 1.0;
                    }
                    expected[row * WIDTH + item] = sum - peak + count;
                }
            }
            let (out, ended) = execute(&image, k, high, [&x, &y, &vec![0.0; rows * WIDTH]], LONG);
            ended.unwrap();
            assert_eq!(out[2], expected, "{rows} rows, {high} of {k} columns");
        }
    }
}

#[test]
fn narrow_factors_and_a_leader_of_each_row() {
    for (rows, leader) in [(1, 0), (7, 0), (33, 5), (33, 64)] {
        let image = image(
            rows,
            &format!(
                "
  %part = scf.for %at = [%zero to %high step %wg](%acc = %none : f32) -> (f32) {{
    %c = index.add %at, %tid : index
    %wn = view.load %xn[%row, %c] : view<[%rows]x[%k]xbf16> -> bf16
    %vn = view.load %yn[%c] : view<[%k]xbf16> -> bf16
    %wf = scalar.extf %wn : bf16 to f32
    %vf = scalar.extf %vn : bf16 to f32
    %next = scalar.fmaf %wf, %vf, %acc : f32
    scf.yield %next : f32
  }}
  %peak = kernel.workgroup.reduce<maxnumf> %part : f32
  %which = index.constant {leader} : index
  %leads = index.cmp eq, %tid, %which : index
  scf.if %leads {{
    view.store %peak, %ov[%row, %tid] : f32, view<[%rows]x64xf32>
  }}"
            ),
        );
        for k in [64usize, 320, 1024] {
            // Two narrow numbers in each word.
            let (x, y) = (numbers(rows * k / 2, 3), numbers(k / 2, 4));
            let narrow = |of: &[f32], at: usize| {
                let word = of[at / 2].to_bits();
                f32::from_bits(if at.is_multiple_of(2) { word << 16 } else { word & 0xffff_0000 })
            };
            let mut expected = vec![-1.0f32; rows * WIDTH];
            for row in 0..rows {
                let mut peak = f32::NAN;
                for item in 0..WIDTH {
                    let chain = |sum: f32, c: usize| narrow(&x, row * k + c).mul_add(narrow(&y, c), sum);
                    peak = peak.max((item..k).step_by(WIDTH).fold(0.0, chain));
                }
                if leader < WIDTH {
                    expected[row * WIDTH + leader] = peak;
                }
            }
            let (out, ended) = execute(&image, k, k, [&x, &y, &vec![-1.0; rows * WIDTH]], LONG);
            ended.unwrap();
            assert_eq!(out[2], expected, "{rows} rows of {k}, leader {leader}");
        }
    }
}

#[test]
fn maps_in_place_with_what_a_row_shares() {
    let body = "
  %t = index.cast %tid : index to i32
  %f = scalar.sitofp %t : i32 to f32
  %sum = scf.for %c = [%tid to %high step %wg](%acc = %none : f32) -> (f32) {
    %v = view.load %xv[%row, %c] : view<[%rows]x[%k]xf32> -> f32
    %w = scalar.mulf %v, %f : f32
    %n = index.cast %c : index to i32
    %g = scalar.sitofp %n : i32 to f32
    %z = scalar.addf %w, %g : f32
    view.store %z, %xv[%row, %c] : f32, view<[%rows]x[%k]xf32>
    %next = scalar.addf %acc, %z : f32
    scf.yield %next : f32
  }
  view.store %sum, %ov[%row, %tid] : f32, view<[%rows]x64xf32>";
    for rows in [1, 3, 8] {
        let image = image(rows, body);
        for (k, high) in [(64, 64), (512, 512), (1000, 999), (2048, 2000)] {
            let x = numbers(rows * k, 5);
            let (mut mapped, mut sums) = (x.clone(), vec![0.0f32; rows * WIDTH]);
            for row in 0..rows {
                for c in 0..high {
                    let z = x[row * k + c] * (c % WIDTH) as f32 + c as f32;
                    mapped[row * k + c] = z;
                    sums[row * WIDTH + c % WIDTH] += z;
                }
            }
            let (out, ended) = execute(&image, k, high, [&x, &[], &vec![0.0; rows * WIDTH]], LONG);
            ended.unwrap();
            assert_eq!(out[0], mapped, "{rows} rows, {high} of {k} columns");
            assert_eq!(out[2], sums, "{rows} rows, {high} of {k} columns");
        }
    }
}

#[test]
fn what_a_turn_stores_and_the_next_one_reads() {
    let body = "
  %last = index.sub %high, %wg : index
  scf.for %c = [%tid to %last step %wg] {
    %v = view.load %xv[%row, %c] : view<[%rows]x[%k]xf32> -> f32
    %w = scalar.addf %v, %unit : f32
    %next = index.add %c, %wg : index
    view.store %w, %xv[%row, %next] : f32, view<[%rows]x[%k]xf32>
  }";
    for rows in [1, 5] {
        let (image, k) = (image(rows, body), 640);
        let x = numbers(rows * k, 6);
        let mut expected = x.clone();
        for row in expected.chunks_exact_mut(k) {
            for c in 0..k - WIDTH {
                row[c + WIDTH] = row[c] + 1.0;
            }
        }
        let (out, ended) = execute(&image, k, k, [&x, &[], &[]], LONG);
        ended.unwrap();
        assert_eq!(out[0], expected, "{rows} rows");
    }
}

const COPY: &str = "
  scf.for %c = [%tid to %high step %wg] {
    %v = view.load %xv[%row, %c] : view<[%rows]x[%k]xf32> -> f32
    %w = scalar.addf %v, %unit : f32
    view.store %w, %yv[%row, %c] : f32, view<[%rows]x[%k]xf32>
  }";

#[test]
fn arguments_that_overlap() {
    let (image, k) = (image(1, COPY), 512usize);
    let geometry = image.launch.geometry(&[]).unwrap();
    for apart in [0, 1, 2, 8, 9] {
        let apart = apart * WIDTH;
        let mut memory = numbers(k + apart, 7);
        let mut expected = memory.clone();
        // Items are apart from each other: each goes from its element to its next.
        for c in 0..k {
            expected[c + apart] = expected[c] + 1.0;
        }
        let (at, len) = (memory.as_mut_ptr(), 4 * k);
        let buffer = |at: *mut f32| Arg::Buffer { ptr: at.cast(), len };
        let args =
            [Arg::Scalar(k as u64), Arg::Scalar(k as u64), buffer(at), buffer(at.wrapping_add(apart)), buffer(at)];
        // SAFETY: the memory is ours for all of them.
        unsafe { run(&image, &geometry, &args, &mut TileScratch::default()) }.unwrap();
        assert_eq!(memory, expected, "{apart} elements apart");
    }
}

#[test]
fn a_turn_out_of_bounds_is_the_fault_of_that_turn() {
    // The source ends in the sixth turn of the only row; what the five before it stored is there.
    let (image, k) = (image(1, COPY), 640usize);
    let (x, y) = (numbers(5 * WIDTH + 10, 8), vec![0.5f32; k]);
    let (out, ended) = execute(&image, k, k, [&x, &y, &[]], LONG);
    match ended {
        Err(Fault::OutOfBounds { op, index, bytes, buffer, limit, .. }) => {
            assert_eq!((&*op, index, bytes, limit), ("view.load", 5 * 256, 256, 4 * x.len()));
            assert_eq!(buffer, 0);
        }
        other => panic!("{other:?}"),
    }
    let stored = x[..5 * WIDTH].iter().map(|x| x + 1.0).chain(vec![0.5; k - 5 * WIDTH]);
    assert_eq!(out[1], stored.collect::<Vec<_>>());

    // A fold that ends in the middle of its fourth turn.
    let image = self::image(1, FOLDS);
    let (_, ended) = execute(&image, k, k, [&numbers(k, 1), &numbers(3 * WIDTH + 1, 2), &[0.0; WIDTH]], LONG);
    match ended {
        Err(Fault::OutOfBounds { op, index, bytes, limit, .. }) => {
            assert_eq!((&*op, index, bytes, limit), ("view.load", 3 * 256, 256, 4 * (3 * WIDTH + 1)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn turns_taken_together_count_as_many() {
    for body in [FOLDS, COPY] {
        let (image, k) = (image(1, body), 640usize);
        let (x, y) = (numbers(k, 1), numbers(k, 2));
        let out = vec![0.0; WIDTH];
        // Ten turns for each item.
        execute(&image, k, k, [&x, &y, &out], 10).1.unwrap();
        match execute(&image, k, k, [&x, &y, &out], 9).1 {
            Err(Fault::Steps { op, limit, .. }) => assert_eq!((&*op, limit), ("scf.for", 9)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn counters_to_the_end_of_the_numbers() {
    let body = "
  %t = index.cast %tid : index to i32
  %first = scalar.sitofp %t : i32 to f32
  %count = scf.for %c = [%k to %high step %wg](%n = %first : f32) -> (f32) {
    %n2 = scalar.addf %n, %unit : f32
    scf.yield %n2 : f32
  }
  view.store %count, %ov[%row, %tid] : f32, view<[%rows]x64xf32>";
    let image = image(2, body);
    let most = i64::MAX as usize;
    for (low, high, turns) in
        [(0, 640, 10.0), (0, 641, 11.0), (7, 7, 0.0), (9, 3, 0.0), (most - 65, most, 2.0), (most - 200, most - 1, 4.0)]
    {
        let (out, ended) = execute(&image, low, high, [&[], &[], &[5.0; 2 * WIDTH]], LONG);
        ended.unwrap();
        let expected: Vec<f32> = (0..2 * WIDTH).map(|i| (i % WIDTH) as f32 + turns).collect();
        assert_eq!(out[2], expected, "{low} to {high}");
    }
}

#[test]
fn several_accumulators_of_whole_numbers() {
    let body = "
  %nothing = scalar.constant 0 : i32
  %least = scalar.constant 1000 : i32
  %s, %m, %h = scf.for %c = [%zero to %high step %one](%a = %nothing : i32, %b = %least : i32, %d = %nothing : i32) -> (i32, i32, i32) {
    %p = index.madd %c, %wg, %tid : index
    %v = view.load %oi[%row, %p] : view<[%rows]x64xi32> -> i32
    %a2 = scalar.addi %a, %v : i32
    %b2 = scalar.minsi %v, %b : i32
    %d2 = scalar.xori %d, %v : i32
    scf.yield %a2, %b2, %d2 : i32, i32, i32
  }
  %r0 = scalar.muli %s, %m : i32
  %r1 = scalar.addi %r0, %h : i32
  view.store %r1, %oi[%zero, %tid] : i32, view<[%rows]x64xi32>";
    // One row of workgroups; the turns are rows of memory, as far apart as they like.
    let image = image(1, body);
    for turns in [0usize, 1, 2, 5] {
        let cells: Vec<i32> = (0..WIDTH * 5).map(|i| (i as i32).wrapping_mul(1_103_515_245) >> 16).collect();
        let mut expected = cells.clone();
        for item in 0..WIDTH {
            let column = || (0..turns).map(|turn| cells[turn * WIDTH + item]);
            let sum = column().fold(0i32, i32::wrapping_add);
            let least = column().fold(1000, i32::min);
            expected[item] = sum.wrapping_mul(least).wrapping_add(column().fold(0, |a, b| a ^ b));
        }
        let as_floats: Vec<f32> = cells.iter().map(|&cell| f32::from_bits(cell as u32)).collect();
        let (out, ended) = execute(&image, 0, turns, [&[], &[], &as_floats], LONG);
        ended.unwrap();
        let found: Vec<i32> = out[2].iter().map(|cell| cell.to_bits() as i32).collect();
        assert_eq!(found, expected, "{turns} turns");
    }
}

/// Maps, folds and stores of rows of any length, of few workgroups and many: turns are taken for as many workgroups at once as
/// leave them long rows.
#[test]
fn rows_that_are_longer_than_a_tile_and_shorter() {
    let body = "
  %own = view.load %xv[%row, %tid] : view<[%rows]x[%k]xf32> -> f32
  %peak = kernel.workgroup.reduce<maxnumf> %own : f32
  %half = scalar.constant 0.5 : f32
  %mid = scalar.mulf %peak, %half : f32
  %sum = scf.for %c = [%tid to %high step %wg](%acc = %unit : f32) -> (f32) {
    %v = view.load %xv[%row, %c] : view<[%rows]x[%k]xf32> -> f32
    %d = scalar.subf %v, %peak : f32
    %e = scalar.mulf %d, %own : f32
    %twice = scalar.mulf %mid, %half : f32
    %w = scalar.addf %e, %twice : f32
    view.store %w, %yv[%row, %c] : f32, view<[%rows]x[%k]xf32>
    %next = scalar.addf %acc, %w : f32
    scf.yield %next : f32
  }
  view.store %sum, %ov[%row, %tid] : f32, view<[%rows]x64xf32>";
    for rows in [1, 3, 8, 41] {
        let image = image(rows, body);
        // The last ones are more turns than a register holds, by one; the elements behind `high` keep rows apart.
        for (k, high) in
            [(64, 64), (128, 128), (192, 160), (640, 640), (704, 640), (2048, 2048), (2112, 2112), (4224, 4160)]
        {
            let x = numbers(rows * k, 3);
            let (mut y, mut sums) = (vec![0.0f32; rows * k], vec![1.0f32; rows * WIDTH]);
            for row in 0..rows {
                let x = &x[row * k..][..k];
                let peak = x[..WIDTH].iter().copied().fold(f32::NEG_INFINITY, f32::max);
                for c in 0..high {
                    let w = (x[c] - peak) * x[c % WIDTH] + peak * 0.5 * 0.5;
                    y[row * k + c] = w;
                    sums[row * WIDTH + c % WIDTH] += w;
                }
            }
            let (out, ended) = execute(&image, k, high, [&x, &vec![0.0; rows * k], &vec![0.0; rows * WIDTH]], LONG);
            ended.unwrap();
            assert_eq!((&out[1], &out[2]), (&y, &sums), "{rows} rows, {high} of {k} columns");
        }
    }
}
