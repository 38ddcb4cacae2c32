//! Kernels from text through the tile executor, against plain Rust.

use std::collections::BTreeMap;

use backend_cpu::isa::Isa;
use backend_cpu::tile::{Fault, TileScratch, run_slices};
use loom_compiler::tile::{CpuImage, compile};
use loom_compiler::{Module, math};

fn image(text: &str, kernel: &str) -> CpuImage {
    let module = Module::parse("test", text).unwrap_or_else(|e| panic!("{e}"));
    let kernel = module.specialise(kernel, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
    compile(&kernel).unwrap_or_else(|e| panic!("{e}"))
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Runs on every set of instructions that the machine has; all must agree with the first, which is returned.
fn run(image: &CpuImage, workload: &[u64], buffers: &[Vec<u8>], scalars: &[u64]) -> Result<Vec<Vec<u8>>, Fault> {
    let geometry = image.launch.geometry(workload).unwrap();
    let mut results = Vec::new();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        let mut copies = buffers.to_vec();
        let mut slices: Vec<&mut [u8]> = copies.iter_mut().map(Vec::as_mut_slice).collect();
        let result = run_slices(image, &geometry, &mut slices, scalars, &mut TileScratch::new(isa));
        results.push(result.map(|()| copies));
    }
    for other in &results[1..] {
        assert_eq!(*other, results[0], "the sets of instructions part");
    }
    results.swap_remove(0)
}

fn ramp(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2654435761) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

const SAXPY: &str = r#"
kernel.def export("saxpy") @saxpy(%n: index) {
  %one = index.constant 1 : index
  %wg = index.constant 128 : index
  %wg_minus_one = index.constant 127 : index
  %padded = index.add %n, %wg_minus_one : index
  %groups = index.div %padded, %wg : index
  kernel.launch.config workgroups(%groups, %one, %one) workgroup_size(%wg, %one, %one) : index
} launch(%n: index, %a: f32, %x: buffer, %y: buffer) {
  %zero = index.constant 0 : offset
  %limit = index.assume %n [range(%n, 1, 1073741824)] : index
  %xr, %yr = buffer.assume.noalias %x, %y : buffer, buffer
  %xv = buffer.view %xr[%zero] : buffer -> view<[%limit]xf32>
  %yv = buffer.view %yr[%zero] : buffer -> view<[%limit]xf32>
  %gid = kernel.workitem.dispatch.id<x> : index
  %live = index.cmp ult, %gid, %limit : index
  scf.if %live {
    %i = index.assume %gid [ge(%gid, 0), lt(%gid, %limit)] : index
    %xi = view.load %xv[%i] : view<[%limit]xf32> -> f32
    %yi = view.load %yv[%i] : view<[%limit]xf32> -> f32
    %r = scalar.fmaf %a, %xi, %yi : f32
    view.store %r, %yv[%i] : f32, view<[%limit]xf32>
  }
  kernel.return
}
"#;

#[test]
fn saxpy_of_any_length() {
    let image = image(SAXPY, "saxpy");
    for n in [1usize, 2, 15, 16, 17, 127, 128, 129, 255, 256, 257, 1000, 4096] {
        let (x, y) = (ramp(n, 1), ramp(n, 2));
        let out = run(&image, &[n as u64], &[bytes(&x), bytes(&y)], &[n as u64, u64::from(0.3f32.to_bits())]).unwrap();
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 0.3f32.mul_add(*x, *y)).collect();
        assert_eq!(floats(&out[1]), expected, "n = {n}");
        assert_eq!(floats(&out[0]), x, "an input changed");
    }
}

#[test]
fn an_access_past_the_end_is_a_fault_that_names_it() {
    let image = image(SAXPY, "saxpy");
    // One element too few, in the second tile.
    let out = run(&image, &[300], &[bytes(&ramp(299, 1)), bytes(&ramp(300, 2))], &[300, 0]);
    match out {
        Err(fault @ Fault::OutOfBounds { .. }) => {
            let (said, what) = (fault.to_string(), "of buffer argument 0, which has 1196 bytes");
            assert!(said.starts_with("kernel `saxpy`: view.load at byte ") && said.ends_with(what), "{said}");
            assert!(said.contains("..1200 of"), "{said}");
        }
        other => panic!("{other:?}"),
    }
}

/// Division by a launch argument, two outputs of the same rows.
const CELL: &str = include_str!("../../tests/kernels/cell.loom");

#[test]
fn an_lstm_cell_of_any_width() {
    let image = image(CELL, "cell");
    for (batch, hidden) in [(1usize, 1usize), (3, 64), (5, 100), (2, 256), (3, 300), (9, 7)] {
        let n = batch * hidden;
        let (gates, old) = (ramp(4 * n, 3).iter().map(|x| x * 4.0).collect::<Vec<_>>(), ramp(n, 4));
        let buffers = [bytes(&gates), bytes(&old), vec![0; 4 * n], vec![0; 4 * n]];
        let out = run(&image, &[n as u64], &buffers, &[n as u64, hidden as u64, batch as u64]).unwrap();
        let (mut c, mut h) = (vec![0.0; n], vec![0.0; n]);
        for b in 0..batch {
            for u in 0..hidden {
                let gate = |k: usize| gates[(b * 4 + k) * hidden + u];
                let keep = math::logistic(gate(1)) * old[b * hidden + u];
                let new = math::logistic(gate(0)).mul_add(math::tanh(gate(2)), keep);
                c[b * hidden + u] = new;
                h[b * hidden + u] = math::logistic(gate(3)) * math::tanh(new);
            }
        }
        assert_eq!(floats(&out[2]), c, "{batch} x {hidden}");
        assert_eq!(floats(&out[3]), h, "{batch} x {hidden}");
    }
}

const ENDLESS: &str = r#"
kernel.def export("endless") @endless() {
  %one = index.constant 1 : index
  kernel.launch.config workgroups(%one, %one, %one) workgroup_size(%one, %one, %one) : index
} launch(%turns: index, %out: buffer) {
  %base = index.constant 0 : offset
  %zero = index.constant 0 : index
  %unit = index.constant 1 : index
  %view = buffer.view %out[%base] : buffer -> view<1xf32>
  %nothing = scalar.constant 0.0 : f32
  %more = scalar.constant 1.0 : f32
  %sum = scf.for %k = [%zero to %turns step %unit](%acc = %nothing : f32) -> (f32) {
    %next = scalar.addf %acc, %more : f32
    scf.yield %next : f32
  }
  view.store %sum, %view[0] : f32, view<1xf32>
  kernel.return
}
"#;

#[test]
fn a_loop_past_its_budget_is_a_fault_and_one_within_it_is_not() {
    let image = image(ENDLESS, "endless");
    let geometry = image.launch.geometry(&[]).unwrap();
    let mut scratch = TileScratch::default();
    scratch.set_step_limit(1000);
    let mut out = [0u8; 4];
    run_slices(&image, &geometry, &mut [&mut out], &[1000], &mut scratch).unwrap();
    assert_eq!(f32::from_le_bytes(out), 1000.0);
    match run_slices(&image, &geometry, &mut [&mut out], &[1001], &mut scratch) {
        Err(Fault::Steps { op, limit, .. }) => assert_eq!((&*op, limit), ("scf.for", 1000)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn launches_without_end_are_refused_or_stopped() {
    let image = image(ENDLESS, "endless");
    let mut geometry = image.launch.geometry(&[]).unwrap();
    let (mut scratch, mut out) = (TileScratch::default(), [0u8; 4]);
    scratch.set_step_limit(1000);
    for (workgroups, said) in [
        ([1 << 21; 3], "and a launch has at most 68719476736 work-items in all"),
        ([u32::MAX; 3], "and a launch has at most 68719476736 work-items in all"),
        ([1, 1001, 1], "still running after 1000 tiles of work-items"),
    ] {
        geometry.workgroups = workgroups;
        let error = run_slices(&image, &geometry, &mut [&mut out], &[0], &mut scratch).unwrap_err().to_string();
        assert!(error.ends_with(said), "{error}");
    }
    for workgroups in [[1, 1000, 1], [u32::MAX, u32::MAX, 0]] {
        geometry.workgroups = workgroups;
        run_slices(&image, &geometry, &mut [&mut out], &[0], &mut scratch).unwrap();
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let image = image(SAXPY, "saxpy");
    let geometry = image.launch.geometry(&[1]).unwrap();
    let mut scratch = TileScratch::default();
    let mut one = [0u8; 4];
    let missing = run_slices(&image, &geometry, &mut [&mut one], &[1, 0], &mut scratch);
    assert!(matches!(missing, Err(Fault::Launch { .. })), "{missing:?}");
    let mut other = geometry;
    other.workgroup_size = [64, 1, 1];
    let mut two = [0u8; 4];
    let sized = run_slices(&image, &other, &mut [&mut one, &mut two], &[1, 0], &mut scratch);
    assert!(matches!(sized, Err(Fault::Launch { .. })), "{sized:?}");
}

/// Each item halves until its value is small, and counts the odd ones: a branch in a loop, both with a mask, on scratch
/// that no deeper nesting has used before.
#[test]
fn a_branch_in_a_loop_that_items_leave_one_by_one() {
    let image = image(
        r#"
kernel.def export("odd") @odd() {
  kernel.launch.config workgroups(1, 1, 1) workgroup_size(64, 1, 1) : index
} launch(%x: buffer, %y: buffer) {
  %zero = index.constant 0 : offset
  %xv = buffer.view %x[%zero] : buffer -> view<64xi32>
  %yv = buffer.view %y[%zero] : buffer -> view<64xi32>
  %item = kernel.workitem.dispatch.id<x> : index
  %start = view.load %xv[%item] : view<64xi32> -> i32
  %none = scalar.constant 0 : i32
  %one = scalar.constant 1 : i32
  %two = scalar.constant 2 : i32
  %left, %count = scf.while(%a = %start, %k = %none : i32, i32) -> (i32, i32) {
    %go = scalar.cmpi sgt, %a, %none : i32
    scf.condition %go, %a, %k : i1, i32, i32
  } do(%b: i32, %l: i32) {
    %bit = scalar.andi %b, %one : i32
    %odd = scalar.cmpi eq, %bit, %one : i32
    %next = scf.if %odd -> (i32) {
      %load = view.load %xv[%item] : view<64xi32> -> i32
      %zeroed = scalar.subi %load, %load : i32
      %more = scalar.addi %l, %one : i32
      %sum = scalar.addi %more, %zeroed : i32
      scf.yield %sum : i32
    } else {
      scf.yield %l : i32
    }
    %half = scalar.divui %b, %two : i32
    scf.yield %half, %next : i32, i32
  }
  view.store %count, %yv[%item] : i32, view<64xi32>
  kernel.return
}
"#,
        "odd",
    );
    let values: Vec<i32> = (0..64).map(|at| at * at * 37 % 1000).collect();
    let x = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let found = run(&image, &[], &[x, vec![0; 256]], &[]).unwrap();
    let expected: Vec<u8> = values.iter().flat_map(|value| value.count_ones().to_le_bytes()).collect();
    assert_eq!(found[1], expected);
}

#[test]
fn read_only_bytes_travel_in_the_image() {
    let text = "global.rodata.def @table = bytes(\"0000803f000000400000404000008040\")\n\
        kernel.def @k(%n: index) {\n  %one = index.constant 1 : index\n  %wg = index.constant 8 : index\n  \
        kernel.launch.config workgroups(%n, %one, %one) workgroup_size(%wg, %one, %one) : index\n\
        } launch(%out: buffer) {\n  %base = index.constant 0 : offset\n  %four = index.constant 4 : index\n  \
        %t = global.load @table : buffer\n  %tv = buffer.view %t[%base] : buffer -> view<4xf32>\n  \
        %v = buffer.view %out[%base] : buffer -> view<16xf32>\n  %i = kernel.workitem.dispatch.id<x> : index\n  \
        %j = index.rem %i, %four : index\n  %x = view.load %tv[%j] : view<4xf32> -> f32\n  \
        %y = view.load %tv[3] : view<4xf32> -> f32\n  %z = scalar.mulf %x, %y : f32\n  \
        view.store %z, %v[%i] : f32, view<16xf32>\n  kernel.return\n}\n";
    let image = CpuImage::decode(&image(text, "k").encode().unwrap()).unwrap();
    let ran = run(&image, &[2], &[vec![0; 64]], &[]).unwrap();
    assert_eq!(floats(&ran[0]), [4.0, 8.0, 12.0, 16.0].repeat(4));
}
