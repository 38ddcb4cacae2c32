//! Whether a kernel lets anybody see how its fragments are laid out.
//!
//! A kernel is *layout-opaque* when any other distribution of its tiles over the lanes of a subgroup would compute the same: every
//! operand of a product comes from `vector.fragment.load` (or from a repack), every sum starts from one number or a loaded tile, and
//! what comes out is changed element by element only, with numbers that all lanes share or with fragments of the same layout, and
//! stored with `vector.fragment.store`. Then an emitter may give fragments payloads of its own. In any other kernel the payloads of
//! [`crate::fragment`] are part of what it computes.
//!
//! ```text
//! unset < one number for all < a tile < anything else      joined over loops, branches and selects until nothing changes
//! ```

use crate::flow;
use crate::fragment::{Fragment, Role};
use crate::ir::{Kernel, Op, Span, ValueId};
use crate::ops::{Branch, Family, OpKind};
use crate::tile::varying_in_subgroup;
use crate::types::Type;

/// The op that makes a layout visible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{op}` at byte {} of the source depends on how a fragment is laid out: {what}", at.start)]
pub struct Visible {
    /// Its spelling, or that of the nearest op of the language if it was built of several.
    pub op: &'static str,
    /// What about it.
    pub what: &'static str,
    /// Where it was written.
    pub at: Span,
}

/// What is known of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Unset,
    /// One number, in every slot of every lane of a subgroup.
    Number,
    /// A tile.
    Tile(Fragment),
    /// Anything else.
    Other,
}

impl Class {
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unset, class) | (class, Self::Unset) => class,
            (Self::Number, Self::Number) => Self::Number,
            (Self::Tile(tile), Self::Number) | (Self::Number, Self::Tile(tile)) => Self::Tile(tile),
            (Self::Tile(a), Self::Tile(b)) if same_layout(a, b) => Self::Tile(a),
            _ => Self::Other,
        }
    }

    fn is_tile(self) -> bool {
        matches!(self, Self::Tile(_))
    }
}

/// Whether equal places hold equal elements. A sum is laid out alike before and behind a product; how far its slots are apart
/// follows from its type.
fn same_layout(a: Fragment, b: Fragment) -> bool {
    let role = |fragment: Fragment| if fragment.role == Role::Result { Role::Init } else { fragment.role };
    (role(a), a.rows, a.columns, a.lanes, a.split) == (role(b), b.rows, b.columns, b.lanes, b.split)
}

/// Whether `kernel` is layout-opaque; kernels without fragments are.
///
/// # Errors
/// The first op, in the order of the body, that makes a layout visible.
pub fn layout_opaque(kernel: &Kernel) -> Result<(), Visible> {
    let fragments = |op: &Op| {
        matches!(
            op.kind,
            OpKind::FragmentLabel(..)
                | OpKind::FragmentLoad(_)
                | OpKind::FragmentStore(_)
                | OpKind::FragmentRepack { .. }
                | OpKind::Mma(_)
        )
    };
    if !kernel.body.ops().any(fragments) {
        return Ok(());
    }
    let mut analysis = Analysis {
        kernel,
        varies: varying_in_subgroup(&kernel.body),
        classes: vec![Class::Unset; kernel.body.values.len()],
    };
    analysis.settle();
    let found = kernel.body.ops().filter_map(|op| analysis.visible(op).map(|(op_name, what)| (op.span, op_name, what)));
    match found.min_by_key(|(span, ..)| span.start) {
        Some((at, op, what)) => Err(Visible { op, what, at }),
        None => Ok(()),
    }
}

struct Analysis<'a> {
    kernel: &'a Kernel,
    /// By value: whether it may differ between the lanes of a subgroup.
    varies: Vec<bool>,
    classes: Vec<Class>,
}

impl Analysis<'_> {
    fn class(&self, value: ValueId) -> Class {
        let vector = matches!(self.kernel.body.ty(value), Type::Vector(_));
        match self.classes[value.index()] {
            _ if self.kernel.body.constant(value).is_some() => Class::Number,
            // A scalar is one number if the lanes share it.
            _ if !vector && !self.varies[value.index()] => Class::Number,
            _ if !vector => Class::Other,
            class => class,
        }
    }

    /// Raises classes until nothing changes: each value's at most three times.
    fn settle(&mut self) {
        let body = &self.kernel.body;
        let copies = flow::copies(body);
        loop {
            let before = self.classes.clone();
            for op in body.ops() {
                if let Some(result) = op.result() {
                    let class = self.result(op);
                    self.raise(result, class);
                }
                // Lanes that part take different values.
                let parting = match op.kind.family() {
                    Family::Branch(Branch::If | Branch::Switch(_)) => self.varies[op.operands[0].index()],
                    Family::Counted => op.operands[..3].iter().any(|bound| self.varies[bound.index()]),
                    _ => false,
                };
                for &result in op.results.iter().filter(|_| parting) {
                    self.raise(result, Class::Other);
                }
            }
            for (value, sources) in copies.iter().enumerate() {
                for &source in sources {
                    let class = self.class(source);
                    self.raise(ValueId(value as u32), class);
                }
            }
            if self.classes == before {
                return;
            }
        }
    }

    fn raise(&mut self, value: ValueId, class: Class) {
        let known = &mut self.classes[value.index()];
        *known = known.join(class);
    }

    /// What the op's result is, by its operands. `Unset` for what `copies` tells.
    fn result(&self, op: &Op) -> Class {
        match (&op.kind, op.kind.family()) {
            (OpKind::FragmentLoad(fragment), _) => Class::Tile(*fragment),
            (OpKind::FragmentLabel(fragment, _), _) => Class::Tile(*fragment),
            (OpKind::Mma(product), _) => Class::Tile(product.sum),
            (OpKind::FragmentRepack { to, .. }, _) => Class::Tile(*to),
            (OpKind::Splat, _) => self.class(op.operands[0]),
            (OpKind::Select, _) if matches!(self.kernel.body.ty(op.operands[0]), Type::Scalar(_)) => {
                if self.varies[op.operands[0].index()] { Class::Other } else { Class::Unset }
            }
            (_, Family::Element(_)) => {
                op.operands.iter().fold(Class::Unset, |class, operand| class.join(self.class(*operand)))
            }
            (_, Family::Branch(_) | Family::Counted | Family::Unbounded) => Class::Unset,
            _ => Class::Other,
        }
    }

    /// Its spelling, and what about the op makes a layout visible.
    fn visible(&self, op: &Op) -> Option<(&'static str, &'static str)> {
        let class = |at: usize| self.class(op.operands[at]);
        let tile = |at: usize, wanted: Fragment| matches!(class(at), Class::Tile(found) if same_layout(found, wanted));
        let number = |at: usize| class(at) == Class::Number;
        match (&op.kind, op.kind.family()) {
            (OpKind::FragmentLabel(fragment, _), _) => (!number(0) && !tile(0, *fragment))
                .then_some(("vector.fragment", "it makes a fragment of a vector of the lane's own")),
            (OpKind::Mma(product), _) => {
                let parts = [product.lhs_fragment(), product.rhs_fragment(), product.sum];
                let own = (0..3).any(|at| !number(at) && !tile(at, parts[at]));
                own.then_some(("vector.mma", "an operand is no fragment, or one that lanes changed each for itself"))
            }
            (OpKind::FragmentRepack { from, .. }, _) => (!number(0) && !tile(0, *from)).then_some((
                "vector.fragment.repack",
                "its operand is no fragment, or one that lanes changed each for itself",
            )),
            (OpKind::FragmentStore(fragment), _) => (!number(0) && !tile(0, *fragment)).then_some((
                "vector.fragment.store",
                "its operand is no fragment, or one that lanes changed each for itself",
            )),
            (OpKind::FragmentLoad(_), _) => None,
            (OpKind::Select, _) if matches!(self.kernel.body.ty(op.operands[0]), Type::Scalar(_)) => {
                let own = self.varies[op.operands[0].index()] && (class(1).is_tile() || class(2).is_tile());
                own.then_some(("scf.select", "each lane selects for itself"))
            }
            (_, Family::Element(_)) => {
                let any = (0..op.operands.len()).any(|at| class(at).is_tile());
                let mixed = op.operands.iter().fold(Class::Unset, |mixed, operand| mixed.join(self.class(*operand)));
                (any && mixed == Class::Other)
                    .then_some(("an element-wise op", "it mixes a fragment with numbers of the lane's own"))
            }
            (_, Family::Branch(_) | Family::Counted | Family::Unbounded | Family::End(_)) => None,
            (kind, _) => {
                let any = op.operands.iter().any(|operand| self.class(*operand).is_tile());
                any.then_some((spelled(kind), "it takes single slots of a payload"))
            }
        }
    }
}

fn spelled(kind: &OpKind) -> &'static str {
    match kind {
        OpKind::Extract => "vector.extract",
        OpKind::Insert => "vector.insert",
        OpKind::Reduce(_) => "vector.reduce",
        OpKind::Lanes(_) => "a movement of lanes",
        OpKind::Store | OpKind::StoreMask => "vector.store",
        OpKind::SubgroupShuffle(_) => "kernel.subgroup.shuffle",
        OpKind::SubgroupReduce { .. } => "kernel.subgroup.reduce",
        OpKind::WorkgroupReduce(_) => "kernel.workgroup.reduce",
        _ => "an op on a payload",
    }
}
