//! Matrix products and convolutions: sums in f64 (or exact integers), rounded once.

use super::layout::{expand, transpose};
use super::numbers::{Numbers, floats};
use crate::graph::Window;
use crate::tensor::Tensor;

/// `out[m, n] = Σ_k a[m, k] · b[k, n]` for every matrix of a batch.
macro_rules! products {
    ($a:ident, $b:ident, $batch:expr, $m:expr, $k:expr, $n:expr, $zero:expr) => {{
        let mut out = vec![$zero; $batch * $m * $n];
        for batch in 0..$batch {
            for m in 0..$m {
                let row = &mut out[(batch * $m + m) * $n..][..$n];
                for k in 0..$k {
                    let a = $a[(batch * $m + m) * $k + k];
                    let b = &$b[(batch * $k + k) * $n..][..$n];
                    row.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
                }
            }
        }
        out
    }};
}

pub(super) fn matmul(a: &Tensor, b: &Tensor, shape: &[usize]) -> Tensor {
    // An operand of rank 1 is a row or a column.
    let a = if a.shape().len() == 1 { a.reshaped(vec![1, a.len()]) } else { a.clone() };
    let b = if b.shape().len() == 1 { b.reshaped(vec![b.len(), 1]) } else { b.clone() };
    let (outer_a, [m, k]) = (&a.shape()[..a.shape().len() - 2], last_two(a.shape()));
    let (outer_b, [_, n]) = (&b.shape()[..b.shape().len() - 2], last_two(b.shape()));
    let outer = broadcast(outer_a, outer_b);
    let wide = |tensor: &Tensor, matrix: [usize; 2]| expand(tensor, &[&outer[..], &matrix].concat());
    let (a, b) = (wide(&a, [m, k]), wide(&b, [k, n]));
    let batch: usize = outer.iter().product();
    let dtype = a.dtype();
    match (Numbers::read(&a), Numbers::read(&b)) {
        (Numbers::Int(a), Numbers::Int(b)) => Numbers::Int(products!(a, b, batch, m, k, n, 0i128)).write(dtype, shape),
        (Numbers::Float(a), Numbers::Float(b)) => {
            Numbers::Float(products!(a, b, batch, m, k, n, 0.0f64)).write(dtype, shape)
        }
        _ => unreachable!("import gives both operands one type"),
    }
}

fn last_two(shape: &[usize]) -> [usize; 2] {
    [shape[shape.len() - 2], shape[shape.len() - 1]]
}

/// The shape that two shapes broadcast to, which import has checked.
fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let extent = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    (0..rank).map(|axis| if extent(a, axis) == 1 { extent(b, axis) } else { extent(a, axis) }).collect()
}

pub(super) fn gemm(
    a: &Tensor,
    b: &Tensor,
    c: Option<&Tensor>,
    (alpha, beta): (f32, f32),
    (trans_a, trans_b): (bool, bool),
    shape: &[usize],
) -> Tensor {
    let plain = |tensor: &Tensor, trans: bool| {
        if trans { transpose(tensor, &[1, 0]) } else { tensor.clone() }
    };
    let (a, b) = (plain(a, trans_a), plain(b, trans_b));
    let ([m, k], [_, n]) = (last_two(a.shape()), last_two(b.shape()));
    let dtype = a.dtype();
    match (Numbers::read(&a), Numbers::read(&b)) {
        (Numbers::Float(a), Numbers::Float(b)) => {
            let mut sums = products!(a, b, 1, m, k, n, 0.0f64);
            sums.iter_mut().for_each(|sum| *sum *= f64::from(alpha));
            if let Some(c) = c {
                let c = floats(&expand(c, shape));
                sums.iter_mut().zip(c).for_each(|(sum, c)| *sum += f64::from(beta) * c);
            }
            Numbers::Float(sums).write(dtype, shape)
        }
        _ => unreachable!("import gives Gemm floating point only"),
    }
}

pub(super) fn conv(
    x: &Tensor,
    weights: &Tensor,
    bias: Option<&Tensor>,
    window: &Window,
    group: usize,
    shape: &[usize],
) -> Tensor {
    let rank = window.kernel.len();
    // One to three spatial axes, as three: the outer ones have extent 1.
    let three = |extents: &[usize], fill: usize| -> [usize; 3] {
        let mut wide = [fill; 3];
        wide[3 - rank..].copy_from_slice(extents);
        wide
    };
    let (kernel, strides) = (three(&window.kernel, 1), three(&window.strides, 1));
    let (dilations, pads) = (three(&window.dilations, 1), three(&window.pads_begin, 0));
    let (size, out_size) = (three(&x.shape()[2..], 1), three(&shape[2..], 1));
    let (batch, channels, filters) = (shape[0], x.shape()[1], shape[1]);
    let (group_channels, group_filters) = (channels / group, filters / group);
    let (volume, out_volume) = (size.iter().product::<usize>(), out_size.iter().product::<usize>());
    let taps: usize = kernel.iter().product();
    let (x_values, weights) = (floats(x), floats(weights));
    let mut out = vec![0.0; batch * filters * out_volume];
    // Where output position `o` reads along one axis for tap `t`; `None` in the border.
    let reads = |axis: usize, o: usize, t: usize| {
        (o * strides[axis] + t * dilations[axis]).checked_sub(pads[axis]).filter(|&at| at < size[axis])
    };
    // Each element of the result still sums over channels and taps in order; positions are innermost for speed only.
    for (plane_at, out) in out.chunks_mut(out_volume.max(1)).enumerate() {
        let (n, filter) = (plane_at / filters, plane_at % filters);
        let first_channel = filter / group_filters * group_channels;
        for (channel, tap) in (0..group_channels).flat_map(|channel| (0..taps).map(move |tap| (channel, tap))) {
            let plane = &x_values[(n * channels + first_channel + channel) * volume..][..volume];
            let weight = weights[(filter * group_channels + channel) * taps + tap];
            let t = [tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1], tap % kernel[2]];
            for (line, out) in out.chunks_mut(out_size[2].max(1)).enumerate() {
                let (o0, o1) = (line / out_size[1], line % out_size[1]);
                let (Some(i), Some(j)) = (reads(0, o0, t[0]), reads(1, o1, t[1])) else {
                    continue;
                };
                let row = &plane[(i * size[1] + j) * size[2]..][..size[2]];
                for (o2, sum) in out.iter_mut().enumerate() {
                    if let Some(k) = reads(2, o2, t[2]) {
                        *sum += row[k] * weight;
                    }
                }
            }
        }
    }
    if let Some(bias) = bias {
        let bias = floats(bias);
        for (plane_at, out) in out.chunks_mut(out_volume.max(1)).enumerate() {
            out.iter_mut().for_each(|sum| *sum += bias[plane_at % filters]);
        }
    }
    Numbers::Float(out).write(x.dtype(), shape)
}
