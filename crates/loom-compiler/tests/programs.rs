//! Whole kernels with results worked out by hand or by a plain loop.

mod common;

use common::programs::{ALL, AXPBY, CELL, GEMV, MATMUL, SOFTMAX};
use common::{Bound, kernel, run};

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

#[test]
fn every_program_verifies_without_config() {
    for (source, name) in ALL {
        let module = loom_compiler::Module::parse("all.loom", source).unwrap();
        module.verify().unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        assert_eq!(module.kernels(), [name]);
    }
}

#[test]
fn a_kernel_can_be_read() {
    let kernel = kernel(
        &common::single(
            "%b: buffer",
            "%v = buffer.view %b[%base] : buffer -> view<2xi32>\n%x = view.load %v[1] : view<2xi32> -> i32\n%y = scalar.addi %x, %x : i32\nview.store %y, %v[0] : i32, view<2xi32>",
        ),
        "k",
        &[],
    );
    let text = kernel.to_string();
    assert!(text.starts_with("kernel \"k\" workgroup_size(1, 1, 1) ^0(%0: buffer) {\n"), "{text}");
    assert!(text.contains(": i32 = Binary(AddI) %"), "{text}");
}
