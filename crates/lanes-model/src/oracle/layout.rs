//! Operations that move elements without looking at them. They work on bytes, whatever the type.

use super::EvalError;
use crate::graph::{PadMode, SliceAxis};
use crate::tensor::Tensor;

/// Elements between neighbours along each axis of a dense tensor.
pub(super) fn strides_of(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1];
    }
    strides
}

/// For every element of `shape`, row-major, `start` plus the sum of its position times `strides`.
pub(super) fn offsets(shape: &[usize], start: usize, strides: &[usize]) -> Vec<usize> {
    walk(shape, |position| start + position.iter().zip(strides).map(|(at, stride)| at * stride).sum::<usize>())
}

/// `at(position)` for every position of `shape`, row-major.
fn walk<T>(shape: &[usize], mut at: impl FnMut(&[usize]) -> T) -> Vec<T> {
    let count = shape.iter().product();
    let mut position = vec![0; shape.len()];
    let mut out = Vec::with_capacity(count);
    for _ in 0..count {
        out.push(at(&position));
        for axis in (0..shape.len()).rev() {
            position[axis] += 1;
            if position[axis] < shape[axis] {
                break;
            }
            position[axis] = 0;
        }
    }
    out
}

/// The elements of `source` at `offsets`, in `shape`.
fn pick(source: &Tensor, offsets: impl IntoIterator<Item = usize>, shape: &[usize]) -> Tensor {
    let size = source.dtype().size();
    let bytes = source.bytes();
    let mut data = Vec::with_capacity(shape.iter().product::<usize>() * size);
    for offset in offsets {
        data.extend_from_slice(&bytes[offset * size..][..size]);
    }
    Tensor::new(source.dtype(), shape.to_vec(), data.into()).expect("one element was picked for each of the shape")
}

pub(super) fn transpose(x: &Tensor, perm: &[usize]) -> Tensor {
    let strides = strides_of(x.shape());
    let shape: Vec<usize> = perm.iter().map(|&axis| x.shape()[axis]).collect();
    let strides: Vec<usize> = perm.iter().map(|&axis| strides[axis]).collect();
    pick(x, offsets(&shape, 0, &strides), &shape)
}

pub(super) fn expand(x: &Tensor, shape: &[usize]) -> Tensor {
    let own = strides_of(x.shape());
    let skipped = shape.len() - own.len();
    let strides: Vec<usize> = (0..shape.len())
        .map(|axis| match axis.checked_sub(skipped) {
            Some(from) if x.shape()[from] != 1 => own[from],
            _ => 0,
        })
        .collect();
    pick(x, offsets(shape, 0, &strides), shape)
}

pub(super) fn choose(condition: &Tensor, a: &Tensor, b: &Tensor, shape: &[usize]) -> Tensor {
    let (condition, a, b) = (expand(condition, shape), expand(a, shape), expand(b, shape));
    let size = a.dtype().size();
    let mut data = Vec::with_capacity(a.bytes().len());
    for (at, &truth) in condition.bools().iter().enumerate() {
        let source = if truth != 0 { &a } else { &b };
        data.extend_from_slice(&source.bytes()[at * size..][..size]);
    }
    Tensor::new(a.dtype(), shape.to_vec(), data.into()).expect("one element was chosen for each of the shape")
}

pub(super) fn concat(parts: &[&Tensor], axis: usize, shape: &[usize]) -> Tensor {
    let outer: usize = shape[..axis].iter().product();
    let mut data = Vec::new();
    for row in 0..outer {
        for part in parts {
            let run = part.bytes().len() / outer;
            data.extend_from_slice(&part.bytes()[row * run..][..run]);
        }
    }
    Tensor::new(parts[0].dtype(), shape.to_vec(), data.into()).expect("import has added the extents up")
}

pub(super) fn slice(x: &Tensor, axes: &[SliceAxis], shape: &[usize]) -> Tensor {
    let strides = strides_of(x.shape());
    let picked = walk(shape, |position| {
        let mut offset = 0;
        for (axis, (&at, &stride)) in position.iter().zip(&strides).enumerate() {
            let from = match axes.iter().find(|cut| cut.axis == axis) {
                Some(cut) => cut.start.wrapping_add_signed(cut.step * at as isize),
                None => at,
            };
            offset += from * stride;
        }
        offset
    });
    pick(x, picked, shape)
}

pub(super) fn gather(x: &Tensor, indices: &Tensor, axis: usize, shape: &[usize]) -> Result<Tensor, EvalError> {
    let extent = x.shape()[axis];
    let indices = indices.to_i64s().unwrap_or_default();
    let indices = indices
        .into_iter()
        .map(|index| {
            let from = if index < 0 { index + extent as i64 } else { index };
            usize::try_from(from).ok().filter(|&from| from < extent).ok_or(EvalError::Index { index, extent })
        })
        .collect::<Result<Vec<usize>, _>>()?;
    let outer: usize = x.shape()[..axis].iter().product();
    let run = x.shape()[axis + 1..].iter().product::<usize>() * x.dtype().size();
    let mut data = Vec::with_capacity(outer * indices.len() * run);
    for row in 0..outer {
        for &index in &indices {
            data.extend_from_slice(&x.bytes()[(row * extent + index) * run..][..run]);
        }
    }
    Ok(Tensor::new(x.dtype(), shape.to_vec(), data.into()).expect("import has inferred the shape"))
}

pub(super) fn pad(x: &Tensor, value: Option<&Tensor>, before: &[usize], mode: PadMode, shape: &[usize]) -> Tensor {
    let strides = strides_of(x.shape());
    let size = x.dtype().size();
    let fill = value.map_or_else(|| vec![0; size], |value| value.bytes().to_vec());
    // Where an element comes from along one axis; `None`: from the border.
    let source = |at: usize, before: usize, extent: usize| -> Option<usize> {
        let (last, place) = (extent as isize - 1, at as isize - before as isize);
        let inside = (0..=last).contains(&place).then_some(place);
        let from = match mode {
            PadMode::Constant => inside,
            PadMode::Edge => Some(place.clamp(0, last)),
            PadMode::Reflect if last == 0 => Some(0),
            PadMode::Reflect => {
                // The mirror image repeats every 2·last elements.
                let folded = place.rem_euclid(2 * last);
                Some(if folded > last { 2 * last - folded } else { folded })
            }
        };
        from.map(|from| from as usize)
    };
    let picked = walk(shape, |position| {
        let mut offset = 0;
        for (axis, &at) in position.iter().enumerate() {
            offset += source(at, before[axis], x.shape()[axis])? * strides[axis];
        }
        Some(offset)
    });
    let mut data = Vec::with_capacity(picked.len() * size);
    for offset in picked {
        data.extend_from_slice(offset.map_or(&fill[..], |offset| &x.bytes()[offset * size..][..size]));
    }
    Tensor::new(x.dtype(), shape.to_vec(), data.into()).expect("one element was found for each of the shape")
}
