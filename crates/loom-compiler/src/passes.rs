//! What happens to a built kernel before it is compiled for a device, in order.
//!
//! Building itself binds config, chooses branches, inlines, folds, reuses equal ops and unrolls short loops. Each pass keeps
//! the meaning of the kernel bit for bit, but for what a flag of an op allows.

use crate::hoist::hoist;
use crate::ir::{Body, Kernel};
use crate::ops::{OpKind, Space};
use crate::simplify::remove_dead;

/// What changes a body.
type Pass = fn(&mut Body);

/// The passes, by the names that a dump shows.
const PASSES: [(&str, Pass); 2] = [("remove-dead", remove_dead), ("hoist", hoist)];

/// Runs all passes. `watch` sees the kernel as it was built, and after each pass.
pub(crate) fn run(kernel: &mut Kernel, watch: &mut dyn FnMut(&str, &Kernel)) {
    watch("build", kernel);
    for (name, pass) in PASSES {
        pass(&mut kernel.body);
        kernel.workgroup_bytes = workgroup_bytes(&kernel.body);
        watch(name, kernel);
    }
}

/// Bytes of workgroup memory that the remaining ops ask for.
fn workgroup_bytes(body: &Body) -> u64 {
    let allocations = body.ops().filter_map(|op| match op.kind {
        OpKind::Alloca { space: Space::Workgroup, align, bytes } => Some((align, bytes)),
        _ => None,
    });
    allocations.fold(0u64, |total, (align, bytes)| total.next_multiple_of(align).saturating_add(bytes))
}
