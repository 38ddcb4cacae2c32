//! Reductions and what is made of them: normalisations, softmax, running sums.

use super::layout::{offsets, strides_of};
use super::numbers::{Numbers, floats};
use crate::graph::Reduction;
use crate::tensor::Tensor;

/// Offsets of the elements of `x` that one result takes in, relative to the first, and the offsets of the firsts.
fn groups(shape: &[usize], axes: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let strides = strides_of(shape);
    let part = |wanted: bool| {
        let chosen: Vec<usize> = (0..shape.len()).filter(|axis| axes.contains(axis) == wanted).collect();
        let extents: Vec<usize> = chosen.iter().map(|&axis| shape[axis]).collect();
        let steps: Vec<usize> = chosen.iter().map(|&axis| strides[axis]).collect();
        offsets(&extents, 0, &steps)
    };
    (part(true), part(false))
}

pub(super) fn reduce(x: &Tensor, kind: Reduction, axes: &[usize], shape: &[usize]) -> Tensor {
    let (members, firsts) = groups(x.shape(), axes);
    match Numbers::read(x) {
        Numbers::Float(values) => {
            let results = firsts.iter().map(|first| {
                let group = members.iter().map(|member| values[first + member]);
                let extreme = |keep: fn(f64, f64) -> bool, empty: f64| {
                    group.clone().fold(empty, |best, x| if x.is_nan() || keep(x, best) { x } else { best })
                };
                match kind {
                    Reduction::Sum => group.sum(),
                    Reduction::Mean => group.sum::<f64>() / members.len() as f64,
                    // A NaN is kept: no comparison with it holds.
                    Reduction::Max => extreme(|x, best| x > best, f64::NEG_INFINITY),
                    Reduction::Min => extreme(|x, best| x < best, f64::INFINITY),
                }
            });
            Numbers::Float(results.collect()).write(x.dtype(), shape)
        }
        Numbers::Int(values) => {
            let results = firsts.iter().map(|first| {
                let group = members.iter().map(|member| values[first + member]);
                match kind {
                    Reduction::Sum => group.sum(),
                    // Of no elements there is no mean; 0 rather than a fault.
                    Reduction::Mean => group.sum::<i128>().checked_div(members.len() as i128).unwrap_or(0),
                    Reduction::Max => group.max().unwrap_or(0),
                    Reduction::Min => group.min().unwrap_or(0),
                }
            });
            Numbers::Int(results.collect()).write(x.dtype(), shape)
        }
    }
}

pub(super) fn softmax(x: &Tensor, axis: usize) -> Tensor {
    let (members, firsts) = groups(x.shape(), &[axis]);
    let mut values = floats(x);
    for first in firsts {
        let largest = members.iter().map(|member| values[first + member]).fold(f64::NEG_INFINITY, f64::max);
        let mut sum = 0.0;
        for member in &members {
            let value = (values[first + member] - largest).exp();
            values[first + member] = value;
            sum += value;
        }
        members.iter().for_each(|member| values[first + member] /= sum);
    }
    Numbers::Float(values).write(x.dtype(), x.shape())
}

pub(super) fn cumsum(x: &Tensor, axis: usize, exclusive: bool, reverse: bool) -> Tensor {
    let (members, firsts) = groups(x.shape(), &[axis]);
    let order: Vec<usize> = if reverse { members.into_iter().rev().collect() } else { members };
    macro_rules! run {
        ($values:ident, $zero:expr, $kind:path) => {{
            for first in firsts {
                let mut sum = $zero;
                for member in &order {
                    let value = $values[first + member];
                    $values[first + member] = if exclusive { sum } else { sum + value };
                    sum += value;
                }
            }
            $kind($values).write(x.dtype(), x.shape())
        }};
    }
    match Numbers::read(x) {
        Numbers::Float(mut values) => run!(values, 0.0, Numbers::Float),
        Numbers::Int(mut values) => run!(values, 0, Numbers::Int),
    }
}

pub(super) fn layer_norm(x: &Tensor, scale: &Tensor, bias: Option<&Tensor>, axis: usize, epsilon: f32) -> Tensor {
    let inner = &x.shape()[axis..];
    let wide = |tensor: &Tensor| floats(&super::layout::expand(tensor, inner));
    let (scale, bias) = (wide(scale), bias.map(wide));
    let mut values = floats(x);
    for group in values.chunks_mut(scale.len().max(1)) {
        let count = group.len() as f64;
        let mean = group.iter().sum::<f64>() / count;
        let variance = group.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
        let deviation = (variance + f64::from(epsilon)).sqrt();
        for (at, x) in group.iter_mut().enumerate() {
            *x = (*x - mean) / deviation * scale[at] + bias.as_ref().map_or(0.0, |bias| bias[at]);
        }
    }
    Numbers::Float(values).write(x.dtype(), x.shape())
}

pub(super) fn batch_norm([x, scale, bias, mean, variance]: [&Tensor; 5], epsilon: f32) -> Tensor {
    let (scale, bias, mean, variance) = (floats(scale), floats(bias), floats(mean), floats(variance));
    let run: usize = x.shape().iter().skip(2).product();
    let mut values = floats(x);
    for (at, x) in values.iter_mut().enumerate() {
        let channel = at / run % scale.len();
        let deviation = (variance[channel] + f64::from(epsilon)).sqrt();
        *x = (*x - mean[channel]) / deviation * scale[channel] + bias[channel];
    }
    Numbers::Float(values).write(x.dtype(), x.shape())
}
