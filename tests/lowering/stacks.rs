//! The stacks that `cargo xtask stack` writes.

use lanes::lanes::{LanesBuilder, Value};
use lanes::onnx::onnx::build::LstmStack;
use lanes::onnx::{ImportOptions, load_bytes};
use lanes::{OpenOptions, open, planned};

/// `row · matrix` in f64, the matrix `[row, n]`.
fn times(row: &[f64], matrix: &[f32], n: usize) -> Vec<f64> {
    (0..n).map(|at| row.iter().enumerate().map(|(k, x)| x * f64::from(matrix[k * n + at])).sum()).collect()
}

/// One step of one stream, as the documentation of [`LstmStack`] says it: y, with the states brought forward.
fn step(stack: &LstmStack, x: &[f64], states: &mut [[Vec<f64>; 2]]) -> Vec<f64> {
    let (width, sigmoid) = (stack.width, |x: f64| 1.0 / (1.0 + (-x).exp()));
    let product = times(x, &stack.first.0, width);
    let mut row: Vec<f64> = product.iter().zip(&stack.first.1).map(|(x, b)| (x + f64::from(*b)).max(0.0)).collect();
    for ([w, r, b], [h, c]) in stack.cells.iter().zip(states) {
        let gate = |gate: usize, unit: usize| {
            let at = gate * width + unit;
            let dot = |of: &[f64], matrix: &[f32]| -> f64 {
                of.iter().zip(&matrix[at * width..][..width]).map(|(x, w)| x * f64::from(*w)).sum()
            };
            dot(&row, w) + dot(h, r) + f64::from(b[at]) + f64::from(b[4 * width + at])
        };
        let next: Vec<(f64, f64)> = (0..width)
            .map(|unit| {
                let [i, o, f] = [0, 1, 2].map(|at| sigmoid(gate(at, unit)));
                let c = f * c[unit] + i * gate(3, unit).tanh();
                (o * c.tanh(), c)
            })
            .collect();
        (*h, *c) = next.into_iter().unzip();
        row.clone_from(h);
    }
    let product = times(&row, &stack.last.0, LstmStack::OUTPUTS);
    product.iter().zip(&stack.last.1).map(|(x, b)| x + f64::from(*b)).collect()
}

#[test]
fn a_stack_is_what_its_documentation_says() {
    const LAYERS: usize = 2;
    let stack = LstmStack::random(LAYERS, 24, 5);
    assert_eq!(stack.encode(), LstmStack::random(LAYERS, 24, 5).encode());
    assert_ne!(stack.encode(), LstmStack::random(LAYERS, 24, 6).encode());
    let model = load_bytes(stack.encode(), "stack", &ImportOptions::default()).unwrap();
    assert_eq!(model.signature.states.len(), 2 * LAYERS, "states are declared by their names");
    let device = open("cpu", &OpenOptions::default()).unwrap();
    let runnable = LanesBuilder::new(planned(device, &model).unwrap()).lanes(4).build().unwrap();
    let streams: Vec<_> = (0..2).map(|_| runnable.spawn_blocking().unwrap()).collect();
    for (of, stream) in streams.iter().enumerate() {
        let mut states = vec![[vec![0.0; 24], vec![0.0; 24]]; LAYERS];
        for turn in 0..5 {
            let x: Vec<f32> = (0..80).map(|at| ((at + turn * 7 + of * 31) as f32 * 0.7).sin()).collect();
            let expected = step(&stack, &x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), &mut states);
            let outputs = stream.call_blocking(&[Value::new(&[80], &x)]).unwrap();
            let found = outputs.get::<f32>(0).unwrap();
            assert_eq!(found.len(), expected.len());
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                // Some hundred f32 terms below 1 a sum, five turns of it.
                assert!((f64::from(*found) - expected).abs() < 2e-6, "turn {turn}, {at}: {found}, expected {expected}");
            }
        }
    }
}
