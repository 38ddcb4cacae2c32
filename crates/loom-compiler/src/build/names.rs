//! What each `%name` stands for, region by region.
//!
//! - A name is unique in its region, and visible in regions nested in that. A nested region may use the name anew.
//! - A function's body sees only its own names: its caller's are put away meanwhile.

use std::collections::HashMap;
use std::rc::Rc;

use super::encoding::Encoding;
use crate::check::{EntropyId, TensorId};
use crate::ir::ValueId;
use crate::types::Dim;

/// How a view finds its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Row-major over the view's own extents.
    Dense,
    /// One element stride per dimension.
    Strided(Vec<Dim>),
}

/// What only a check has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Tensor(TensorId),
    Entropy(EntropyId),
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub(crate) enum Binding {
    Value(ValueId),
    Layout(Layout),
    Encoding(Rc<Encoding>),
    Host(Host),
    /// Its definition was refused, and that was reported.
    Reported,
}

/// The names in scope.
#[derive(Default)]
pub(crate) struct Names<'m> {
    bindings: HashMap<&'m str, (Binding, usize)>,
    /// What each definition hid, so that leaving a region brings it back.
    log: Vec<(&'m str, Option<(Binding, usize)>)>,
    region: usize,
}

/// Where a region began.
pub(crate) struct Mark(usize);

impl<'m> Names<'m> {
    pub(crate) fn get(&self, name: &str) -> Option<&Binding> {
        self.bindings.get(name).map(|(binding, _)| binding)
    }

    /// `false` if the region has the name already; the first definition stays.
    pub(crate) fn define(&mut self, name: &'m str, binding: Binding) -> bool {
        if self.bindings.get(name).is_some_and(|(_, region)| *region == self.region) {
            return false;
        }
        let hidden = self.bindings.insert(name, (binding, self.region));
        self.log.push((name, hidden));
        true
    }

    /// How many regions are open.
    pub(crate) fn depth(&self) -> usize {
        self.region
    }

    pub(crate) fn enter(&mut self) -> Mark {
        self.region += 1;
        Mark(self.log.len())
    }

    pub(crate) fn leave(&mut self, mark: Mark) {
        self.region -= 1;
        for (name, hidden) in self.log.drain(mark.0..).rev() {
            match hidden {
                Some(hidden) => self.bindings.insert(name, hidden),
                None => self.bindings.remove(name),
            };
        }
    }
}
