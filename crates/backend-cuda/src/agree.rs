//! Whether products of four subgroups at once (`wgmma`) have the bits of those of one (`mma.sync`) on the GPU in hand.
//!
//! ```text
//! rows, weights ─┬─> contract, for the GPU as it is ────────> sums ──┐
//!                └─> contract, without what is its alone ──> sums ──┴─> the same bits?
//! ```
//!
//! - The number of rows chooses between both, and a seat must not see how many sit beside it. No document promises that they agree, so a
//!   GPU is asked before the first plan that may have the former; one where they differ has the latter alone.
//! - The texts are those of contractions, with operands of every size that sums can have: near each other, far apart, cancelling, too
//!   small for products to be normal and so large that sums overflow.
//! - Not here: that both are sums in the order that is told, which the suite compares with the interpreter's.

use crate::image::{self, Kernel, Modules, Takes};
use crate::matrices::{self, Tile};
use crate::sys::{Context, Memory, Node};
use crate::writer::Seating;
use lanes_core::device::DeviceError;
use lanes_core::plan::{Activation, Contraction, Precision, StorageId, Term};
use loom_compiler::ptx::{Passed, Sm};
use std::sync::Arc;

/// Rows, columns and terms: a tile of the smallest kind of each, and four runs of a stage and more.
const ROWS: usize = 32;
const COLUMNS: usize = 64;
const TERMS: usize = 512;

/// What this is called where something goes wrong.
const WHAT: &str = "comparing products of four subgroups with those of one";

/// Takes 200 KB of the device for as long as it runs.
///
/// # Errors
/// As allocating, compiling and launching.
pub(crate) fn agree(context: &Arc<Context>, modules: &Modules, takes: &Takes) -> Result<bool, DeviceError> {
    let Some(tile) = Tile::grouped() else { return Ok(false) };
    let contraction = Contraction {
        label: "products".into(),
        terms: vec![Term {
            storage: StorageId(0),
            offset: 0,
            position_stride: 0,
            taps: 1,
            tap_stride: 0,
            tap_len: TERMS,
        }],
        weights: [].into(),
        precision: Precision::Bf16,
        bias: None,
        activation: Activation::None,
        positions: 1,
        n: COLUMNS,
        out: StorageId(1),
        out_offset: 0,
        out_position_stride: 0,
    };
    let allocate = |what: &str, bytes: usize| context.allocate(&format!("{what} for {WHAT}"), bytes, false);
    let (rows, weights) = (allocate("rows", ROWS * TERMS * 2)?, allocate("weights", COLUMNS * TERMS * 2)?);
    context.upload(&rows, 0, &operands(ROWS, 1))?;
    context.upload(&weights, 0, &operands(COLUMNS, 2))?;
    let bytes = ROWS * COLUMNS * 4;
    let sums = [allocate("sums", bytes)?, allocate("sums", bytes)?];
    let plain = Takes { target: Sm { specific: false, ..takes.target }, ..*takes };
    let compiled = |takes: &Takes| {
        let seating = Seating { max_seats: ROWS, rows: 1, states: &[], is_there: false };
        let text = matrices::text(&contraction, COLUMNS, tile, seating, None, &[]).unwrap_or_default();
        let origin = image::text("contract.loom", text, "contract");
        Kernel::load(context, modules, image::of_text(&origin, WHAT, false, 0, takes)?)
    };
    let kernels = [compiled(takes)?, compiled(&plain)?];
    let launch = |kernel: &'_ Kernel, out: &Memory| {
        let invalid = |error: String| DeviceError::Invalid { what: format!("{WHAT}: {error}") };
        let geometry = kernel.image.launch.geometry(&[ROWS as u64]).map_err(|error| invalid(error.to_string()))?;
        let buffers = [&rows, &weights, out];
        let parameter = |slot: &loom_compiler::ptx::Slot| match slot.passed {
            Passed::Scalar { .. } => Ok(ROWS as u64),
            Passed::Buffer { argument } => {
                let buffer = argument.checked_sub(1).and_then(|at| buffers.get(at));
                buffer.map(|buffer| buffer.base().address).ok_or_else(|| invalid(format!("argument {argument}")))
            }
            Passed::Length { .. } | Passed::Faults => Err(invalid("a kernel that is checked".into())),
        };
        let parameters = kernel.image.slots.iter().map(parameter).collect::<Result<Vec<u64>, DeviceError>>()?;
        Ok((geometry, parameters))
    };
    let launches = [launch(&kernels[0], &sums[0])?, launch(&kernels[1], &sums[1])?];
    let nodes = kernels.iter().zip(launches).map(|(kernel, (geometry, parameters))| {
        let node = Node::Launch {
            function: &kernel.function,
            grid: geometry.workgroups,
            block: geometry.workgroup_size,
            shared_bytes: kernel.shared_bytes,
            parameters,
        };
        (node, Vec::new())
    });
    let mut found = [vec![0; bytes], vec![0; bytes]];
    let seen = allocate("results", bytes)?;
    // SAFETY: the kernels read and write these memories alone, in bounds for so many rows, columns and terms; they are kept, and nobody
    // else has them. The first copy comes after the launch and waits for it.
    unsafe {
        let graph = context.graph(WHAT, &nodes.collect::<Vec<_>>())?;
        context.launch(WHAT, &graph)?;
        for (sums, found) in sums.iter().zip(&mut found) {
            context.copy((&seen, 0), (sums, 0), bytes)?;
            context.download(&seen, 0, found)?;
        }
    }
    // Sums that nobody wrote are all zero.
    Ok(found[0] == found[1] && found[0].iter().any(|byte| *byte != 0))
}

/// `lines` of [`TERMS`] numbers of 16 bits: of a line the signs and mantissas are random, and the exponents by turns near each other, far
/// apart, small, large, and in pairs that cancel.
fn operands(lines: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let mut next = |below: u32| {
        // Numerical Recipes, 7.1: a linear congruential generator; the upper bits are the better ones.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % below
    };
    let mut bytes = Vec::with_capacity(lines * TERMS * 2);
    for line in 0..lines {
        let mut before = 0;
        for term in 0..TERMS {
            let exponent = match line % 5 {
                0 | 4 => 124 + next(6),
                1 => 100 + next(56),
                2 => 40 + next(30),
                _ => 170 + next(20),
            };
            let mut number = next(2) << 15 | exponent << 7 | next(128);
            if line % 5 == 4 && term % 2 == 1 {
                // Almost the one before, with the other sign.
                number = before ^ 1 << 15 ^ next(4);
            }
            before = number;
            bytes.extend_from_slice(&(number as u16).to_le_bytes());
        }
    }
    bytes
}
