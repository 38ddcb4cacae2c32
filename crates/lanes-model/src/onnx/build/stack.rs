//! Stacks of LSTM cells with random weights: what recurrent models cost, without one of anybody's.
//!
//! - The same seed gives the same bytes everywhere.
//! - Not here: anything trained.

use super::ModelBuilder;
use crate::tensor::Tensor;
use lanes_core::DType;

/// `x [80] ─> linear, relu ─> LSTM cells of one width, each fed by the one before ─> linear ─> y [256]`, one step a call. Matrices are
/// row-major as ONNX has them; a cell's gates stand in its order i, o, f, c. State `hidden_n` is fed by `next_hidden_n`, and `cell_n` by
/// `next_cell_n`.
#[derive(Clone, Debug)]
pub struct LstmStack {
    /// Width of the cells.
    pub width: usize,
    /// `[80, width]`, and a bias of `width`.
    pub first: (Vec<f32>, Vec<f32>),
    /// W and R of `[4·width, width]`, and both biases one after the other, `[8·width]`.
    pub cells: Vec<[Vec<f32>; 3]>,
    /// `[width, 256]`, and a bias of 256.
    pub last: (Vec<f32>, Vec<f32>),
}

impl LstmStack {
    /// Elements of x.
    pub const INPUTS: usize = 80;
    /// Elements of y.
    pub const OUTPUTS: usize = 256;

    /// The most bytes of weights: what a protocol buffer holds, 2 GiB, less room for all else.
    const BYTES_MAX: usize = (2 << 30) - (1 << 20);

    /// Bytes of the weights of `layers` cells of `width`; `None` of what no file is: without a cell or a width, or too large for one.
    pub fn weight_bytes(layers: usize, width: usize) -> Option<usize> {
        let cell = width.checked_mul(width)?.checked_add(width)?.checked_mul(8)?;
        let ends = width.checked_mul(Self::INPUTS + 1 + Self::OUTPUTS)?.checked_add(Self::OUTPUTS)?;
        let bytes = cell.checked_mul(layers)?.checked_add(ends)?.checked_mul(4)?;
        Some(bytes).filter(|&bytes| layers > 0 && width > 0 && bytes <= Self::BYTES_MAX)
    }

    /// One of a size that [`weight_bytes`](Self::weight_bytes) tells, with weights uniform in ±1/√K, K being how many operands meet (as
    /// the usual initialisations have it).
    pub fn random(layers: usize, width: usize, seed: u64) -> Self {
        let mut state = seed;
        let mut floats = |count: usize, k: usize| -> Vec<f32> {
            let bound = 1.0 / (k as f64).sqrt();
            let mut float = || {
                // splitmix64 (Steele, Lea, Flood 2014).
                state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mut z = state;
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                let unit = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
                ((unit * 2.0 - 1.0) * bound) as f32
            };
            (0..count).map(|_| float()).collect()
        };
        let first = (floats(Self::INPUTS * width, Self::INPUTS), floats(width, Self::INPUTS));
        let cells = (0..layers).map(|_| [4 * width * width, 4 * width * width, 8 * width].map(|n| floats(n, width)));
        let cells = cells.collect();
        Self { width, first, cells, last: (floats(width * Self::OUTPUTS, width), floats(Self::OUTPUTS, width)) }
    }

    /// The bytes of the file, in operator set 18.
    pub fn encode(&self) -> Vec<u8> {
        let width = self.width;
        let matrix = |shape: &[usize], values: &[f32]| Tensor::from_vec(shape.to_vec(), values.to_vec());
        let dims = ["1", "batch", &width.to_string()];
        let mut model = ModelBuilder::new(18)
            .input("x", DType::F32, &["batch", "80"])
            .tensor("axis", &Tensor::from_vec(vec![1], vec![0i64]))
            .tensor("w_in", &matrix(&[Self::INPUTS, width], &self.first.0))
            .tensor("b_in", &matrix(&[width], &self.first.1))
            .tensor("w_out", &matrix(&[width, Self::OUTPUTS], &self.last.0))
            .tensor("b_out", &matrix(&[Self::OUTPUTS], &self.last.1))
            .node("MatMul", &["x", "w_in"], &["product_in"], &[])
            .node("Add", &["product_in", "b_in"], &["sum_in"], &[])
            .node("Relu", &["sum_in"], &["relu_in"], &[])
            .node("Unsqueeze", &["relu_in", "axis"], &["step"], &[]);
        let mut fed = "step".to_owned();
        for (n, [w, r, b]) in self.cells.iter().enumerate() {
            let name = |what: &str| format!("{what}_{n}");
            let [w_name, r_name, b_name] = ["w", "r", "b"].map(name);
            let [h, c, next_h, next_c] = ["hidden", "cell", "next_hidden", "next_cell"].map(name);
            model = model
                .input(&h, DType::F32, &dims)
                .input(&c, DType::F32, &dims)
                .tensor(&w_name, &matrix(&[1, 4 * width, width], w))
                .tensor(&r_name, &matrix(&[1, 4 * width, width], r))
                .tensor(&b_name, &matrix(&[1, 8 * width], b))
                .node(
                    "LSTM",
                    &[&fed, &w_name, &r_name, &b_name, "", &h, &c],
                    &["", &next_h, &next_c],
                    &[("hidden_size", (width as i64).into())],
                )
                .output(&next_h, DType::F32, &dims)
                .output(&next_c, DType::F32, &dims);
            fed = next_h;
        }
        model
            .node("Squeeze", &[&fed, "axis"], &["rows"], &[])
            .node("MatMul", &["rows", "w_out"], &["product_out"], &[])
            .node("Add", &["product_out", "b_out"], &["y"], &[])
            .output("y", DType::F32, &["batch", "256"])
            .encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arrays' own lengths, and the neighbours that no file holds.
    #[test]
    fn weights_are_counted_before_they_are_made() {
        let LstmStack { first, cells, last, .. } = LstmStack::random(2, 5, 0);
        let arrays = [&first.0, &first.1, &last.0, &last.1].into_iter().chain(cells.iter().flatten());
        assert_eq!(LstmStack::weight_bytes(2, 5), Some(arrays.map(|array| array.len() * 4).sum()));
        assert_eq!(LstmStack::weight_bytes(5, 1024), Some(169_317_376));
        for (layers, width) in
            [(0, 5), (2, 0), (usize::MAX, 5), (1, usize::MAX), (1, 1 << 31), (1, 1 << 13), (64, 1024)]
        {
            assert_eq!(LstmStack::weight_bytes(layers, width), None, "{layers} cells of width {width}");
        }
        assert!(LstmStack::weight_bytes(63, 1024).is_some());
    }
}
