//! Where a value lies within one seat of a storage, and what reshaping it costs: nothing, when strides can say it.

use crate::graph::SliceAxis;

/// Element `index` of a value lies at `offset + Σ index[a]·strides[a]` of its storage, counted in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Extents, outermost first as the model says them, whatever the physical order.
    pub shape: Vec<usize>,
    /// Elements between neighbours along each axis; 0 repeats, below zero runs backwards.
    pub strides: Vec<isize>,
    /// Where element 0 lies.
    pub offset: usize,
}

impl View {
    /// Contiguous, last axis innermost.
    pub fn row_major(shape: &[usize]) -> Self {
        Self::ordered(shape, &(0..shape.len()).collect::<Vec<_>>())
    }

    /// Contiguous, with the axes in the physical order `order`, outermost first.
    pub fn ordered(shape: &[usize], order: &[usize]) -> Self {
        let mut strides = vec![0; shape.len()];
        let mut stride = 1;
        for &axis in order.iter().rev() {
            strides[axis] = stride as isize;
            stride *= shape[axis];
        }
        Self { shape: shape.to_vec(), strides, offset: 0 }
    }

    /// How many elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Axis `i` of the result is axis `perm[i]` of this.
    pub fn transpose(&self, perm: &[usize]) -> Self {
        Self {
            shape: perm.iter().map(|&axis| self.shape[axis]).collect(),
            strides: perm.iter().map(|&axis| self.strides[axis]).collect(),
            offset: self.offset,
        }
    }

    /// The view whose `transpose(perm)` is this.
    pub fn untranspose(&self, perm: &[usize]) -> Self {
        let mut source = self.clone();
        for (i, &axis) in perm.iter().enumerate() {
            source.shape[axis] = self.shape[i];
            source.strides[axis] = self.strides[i];
        }
        source
    }

    /// Part of this.
    pub fn slice(&self, axes: &[SliceAxis]) -> Self {
        let mut part = self.clone();
        for slice in axes {
            let stride = self.strides[slice.axis];
            part.offset = part.offset.wrapping_add_signed(slice.start as isize * stride);
            part.strides[slice.axis] = stride * slice.step;
            part.shape[slice.axis] = slice.len;
        }
        part
    }

    /// The elements `start..start + len` of one axis.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Self {
        self.slice(&[SliceAxis { axis, start, step: 1, len }])
    }

    /// Repeated to `shape`, axes aligned at the last, as NumPy broadcasts.
    pub fn broadcast(&self, shape: &[usize]) -> Self {
        let new = shape.len() - self.shape.len();
        let strides = (0..shape.len())
            .map(|axis| match axis.checked_sub(new) {
                Some(own) if self.shape[own] == shape[axis] => self.strides[own],
                _ => 0,
            })
            .collect();
        Self { shape: shape.to_vec(), strides, offset: self.offset }
    }

    /// The same elements in row-major order under another shape, when strides can say it.
    pub fn reshape(&self, shape: &[usize]) -> Option<Self> {
        if self.elements() == 0 {
            return Some(Self { shape: shape.to_vec(), strides: vec![0; shape.len()], offset: self.offset });
        }
        // Axes of extent 1 carry no information; runs of axes that are one even run in memory become one.
        let mut runs: Vec<(usize, isize)> = Vec::new();
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).filter(|&(&extent, _)| extent != 1) {
            match runs.last_mut() {
                Some((outer, last)) if *last == stride * extent as isize => (*outer, *last) = (*outer * extent, stride),
                _ => runs.push((extent, stride)),
            }
        }
        let mut strides = vec![0; shape.len()];
        let mut axis = shape.len();
        for &(extent, stride) in runs.iter().rev() {
            let mut covered = 1;
            while covered < extent {
                axis = axis.checked_sub(1)?;
                strides[axis] = stride * covered as isize;
                covered *= shape[axis];
            }
            if covered != extent {
                return None;
            }
        }
        shape[..axis].iter().all(|&extent| extent == 1).then(|| Self {
            shape: shape.to_vec(),
            strides,
            offset: self.offset,
        })
    }

    /// Axes from the widest stride to the narrowest: the physical order. Axes of extent 1 come first.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        order.sort_by_key(|&axis| (self.shape[axis] != 1, std::cmp::Reverse(self.strides[axis].unsigned_abs())));
        order
    }
}

/// One loop over several views at once: its extent, and each view's stride.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Iterations.
    pub extent: usize,
    /// Elements each view moves per iteration.
    pub strides: Vec<isize>,
}

/// The fewest loops that walk `views`, all of one shape, together; outermost first, in the order of the first view's
/// memory. Empty for a single element.
pub fn loops(views: &[&View]) -> Vec<Loop> {
    let mut merged: Vec<Loop> = Vec::new();
    for axis in views[0].order() {
        let extent = views[0].shape[axis];
        if extent == 1 {
            continue;
        }
        let inner = Loop { extent, strides: views.iter().map(|view| view.strides[axis]).collect() };
        match merged.last_mut() {
            Some(outer) if joins(outer, &inner) => *outer = Loop { extent: outer.extent * extent, ..inner },
            _ => merged.push(inner),
        }
    }
    merged
}

/// Whether stepping `outer` once is stepping `inner` to its end, for every view.
pub fn joins(outer: &Loop, inner: &Loop) -> bool {
    outer.strides.iter().zip(&inner.strides).all(|(&outer, &stride)| outer == stride * inner.extent as isize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every element's place, in row-major order of the view.
    fn places(view: &View) -> Vec<isize> {
        let mut at = vec![view.offset as isize];
        for (&extent, &stride) in view.shape.iter().zip(&view.strides) {
            at = at.iter().flat_map(|&base| (0..extent as isize).map(move |i| base + i * stride)).collect();
        }
        at
    }

    fn shapes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
        prop::collection::vec(1usize..5, 0..4).prop_flat_map(|shape| {
            let order = Just((0..shape.len()).collect::<Vec<_>>()).prop_shuffle();
            (Just(shape), order)
        })
    }

    proptest! {
        /// A reshape that strides can say keeps every element's place; one that is refused could not.
        #[test]
        fn reshape_keeps_places((shape, order) in shapes(), pieces in prop::collection::vec(1usize..5, 0..4)) {
            let view = View::ordered(&shape, &order);
            let total: usize = shape.iter().product();
            let mut target = pieces;
            let known: usize = target.iter().product();
            if !total.is_multiple_of(known) { return Ok(()); }
            target.push(total / known);
            match view.reshape(&target) {
                Some(found) => prop_assert_eq!(places(&found), places(&view)),
                None => {
                    // Strides that fit every axis's first step would have to place the rest too.
                    let at = places(&view);
                    let mut stride = total;
                    let mut strides = Vec::new();
                    for &extent in &target {
                        stride /= extent;
                        strides.push(if extent > 1 { at[stride] - at[0] } else { 0 });
                    }
                    let forced = View { shape: target, strides, offset: view.offset };
                    prop_assert_ne!(places(&forced), at);
                }
            }
        }

        #[test]
        fn transpose_is_undone((shape, order) in shapes(), seed in any::<u64>()) {
            let view = View::ordered(&shape, &order);
            let mut perm: Vec<usize> = (0..shape.len()).collect();
            if !perm.is_empty() { let n = perm.len(); perm.rotate_left(seed as usize % n); }
            prop_assert_eq!(view.transpose(&perm).untranspose(&perm), view);
        }

        /// The loops visit the same pairs of places as walking the two views index by index.
        #[test]
        fn loops_visit_every_pair((shape, order) in shapes(), other in any::<u64>()) {
            let mut turned = order.clone();
            if !turned.is_empty() { let n = turned.len(); turned.rotate_left(other as usize % n); }
            let (a, b) = (View::ordered(&shape, &order), View::ordered(&shape, &turned));
            let mut found = vec![(0isize, 0isize)];
            for step in loops(&[&a, &b]) {
                found = found.iter().flat_map(|&(x, y)| (0..step.extent as isize).map({
                    let strides = step.strides.clone();
                    move |i| (x + i * strides[0], y + i * strides[1])
                })).collect();
            }
            let mut expected: Vec<_> = places(&a).into_iter().zip(places(&b)).collect();
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn slices_run_backwards_and_broadcasts_repeat() {
        let view = View::row_major(&[2, 5]).slice(&[SliceAxis { axis: 1, start: 3, step: -2, len: 2 }]);
        assert_eq!(places(&view), [3, 1, 8, 6]);
        assert_eq!(places(&View::row_major(&[3]).broadcast(&[2, 3])), [0, 1, 2, 0, 1, 2]);
    }
}
