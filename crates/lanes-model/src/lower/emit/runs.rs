//! Views of elements as runs of bytes.
//!
//! - What is said to be touched is never less than what is; it is more only where exactness would take too many regions.

use crate::lower::kernels;
use crate::lower::view::{Loop, View, loops};
use lanes_core::plan::Region;
use std::sync::Arc;

/// Regions of one kernel argument, at most; beyond it they are declared as one.
const REGIONS_MOST: usize = 64;

/// What each of `views` places moves by, for every iteration of the loops.
pub(super) fn every(steps: &[Loop], views: usize) -> Vec<Vec<isize>> {
    let mut moved = vec![vec![0; views]];
    for step in steps {
        moved = moved
            .iter()
            .flat_map(|base| {
                (0..step.extent as isize)
                    .map(move |i| base.iter().zip(&step.strides).map(|(&b, &s)| b + i * s).collect())
            })
            .collect();
    }
    moved
}

/// The runs of bytes that two views of one shape share, pair by pair: the first view's, then the second's. `None` when
/// one of them repeats elements or runs backwards.
pub(super) fn runs(a: &View, b: &View, size: usize) -> Option<Vec<(Region, Region)>> {
    let mut steps = loops(&[a, b]);
    if steps.iter().any(|step| step.strides.iter().any(|&stride| stride <= 0)) {
        return None;
    }
    let row = match steps.last() {
        Some(step) if step.strides == [1, 1] => steps.pop().map_or(1, |step| step.extent),
        _ => 1,
    };
    let across = steps.pop();
    let stride = |n: usize| across.as_ref().map_or(row, |step| step.strides[n].unsigned_abs());
    let rows = across.as_ref().map_or(1, |step| step.extent);
    if rows > 1 && (stride(0) < row || stride(1) < row) {
        return None;
    }
    let region = |view: &View, n: usize, moved: isize| Region {
        offset: view.offset.wrapping_add_signed(moved) * size,
        row_bytes: row * size,
        stride: stride(n) * size,
        rows,
    };
    Some(every(&steps, 2).into_iter().map(|moved| (region(a, 0, moved[0]), region(b, 1, moved[1]))).collect())
}

/// All the bytes of a view, as regions: exactly where that takes few, else as one that covers them.
pub(super) fn regions(view: &View, size: usize) -> Vec<Region> {
    // A repeated or backward axis touches the same bytes as one forward step of each.
    let mut forward = view.clone();
    for axis in 0..forward.shape.len() {
        if forward.strides[axis] == 0 {
            forward.shape[axis] = 1;
        } else if forward.strides[axis] < 0 {
            forward.offset =
                forward.offset.wrapping_add_signed((forward.shape[axis] as isize - 1) * forward.strides[axis]);
            forward.strides[axis] = -forward.strides[axis];
        }
    }
    match runs(&forward, &forward, size) {
        Some(runs) if runs.len() <= REGIONS_MOST => runs.into_iter().map(|(region, _)| region).collect(),
        _ => {
            let end = kernels::reach(&forward);
            vec![Region::contiguous(forward.offset * size, (end - forward.offset) * size)]
        }
    }
}

/// One row's bytes, given row-major, in the order of `row`, which is contiguous.
pub(super) fn reordered(initial: &[u8], row: &View, size: usize) -> Arc<[u8]> {
    let mut bytes = vec![0; initial.len()];
    let mut index = vec![0; row.shape.len()];
    for element in initial.chunks_exact(size) {
        let at: usize = index.iter().zip(&row.strides).map(|(&i, &s): (&usize, &isize)| i * s.unsigned_abs()).sum();
        bytes[at * size..][..size].copy_from_slice(element);
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            if index[axis] < row.shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    bytes.into()
}
