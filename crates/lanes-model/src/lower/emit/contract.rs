//! Contractions: products over views, as few as strides allow.
//!
//! - A product reads rows whose strides and offset are not below zero; an operand that lies otherwise is copied once.
//! - A sum's order is that of its terms, and the matrix has its rows in that order.
//! - Matrices and biases of equal contents are one `Arc`, wherever they are used: a device packs and charges it once.

use super::runs::every;
use super::{Emitter, Home, PRODUCTS_MOST};
use crate::lower::LowerError;
use crate::lower::known::{Address, address};
use crate::lower::mid::{MidId, MidNode, MidOp};
use crate::lower::view::{View, loops};
use lanes_core::plan::{Command, Contraction, Precision, Term};
use std::sync::Arc;

/// What a matrix was made of, by addresses of weights that the nodes hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// Those one below the other.
    Stacked(Vec<Address>),
    /// Those of one group of a convolution.
    Conv {
        /// All its weights.
        weights: Address,
        /// Maps of a group, channels of a group, and taps along every axis: how the weights are read.
        shape: Vec<usize>,
        /// Which group.
        group: usize,
        /// Whether channels run inside taps.
        channels_inner: bool,
    },
}

impl Emitter {
    /// The matrix of `origin`, made when it is first asked for.
    fn matrix(&mut self, origin: Origin, make: impl FnOnce() -> Arc<[f32]>) -> Arc<[f32]> {
        if let Some(known) = self.matrices.get(&origin) {
            return Arc::clone(known);
        }
        let one = self.floats.one(&make());
        self.matrices.insert(origin, Arc::clone(&one));
        one
    }

    /// A place for `id` that a product can read: no stride or offset below zero.
    fn readable(&mut self, id: MidId) -> Result<Home, LowerError> {
        let home = self.home(id)?;
        if home.view.strides.iter().zip(&home.view.shape).all(|(&stride, &extent)| stride >= 0 || extent == 1) {
            return Ok(home);
        }
        self.in_order(id, &home)
    }

    fn in_order(&mut self, id: MidId, home: &Home) -> Result<Home, LowerError> {
        let order: Vec<usize> = (0..home.view.shape.len()).collect();
        let own = self.scratch(id, &order);
        self.copy(id, home, &own)?;
        Ok(own)
    }

    pub(super) fn linear(
        &mut self,
        node: &MidNode,
        weights: &[Arc<[f32]>],
        bias: Option<&Arc<[f32]>>,
        activation: lanes_core::plan::Activation,
        to: &Home,
    ) -> Result<(), LowerError> {
        let last = to.view.shape.len() - 1;
        let n = to.view.shape[last];
        let mut used = Vec::new();
        for (&input, matrix) in node.inputs.iter().zip(weights) {
            // A zero operand adds nothing: the first step of a recurrence without an initial state.
            let zero =
                self.mid.constants.get(&input).is_some_and(|tensor| tensor.bytes().iter().all(|&byte| byte == 0));
            if !(zero && matrix.iter().all(|w| w.is_finite()) && node.inputs.len() > 1) {
                used.push((self.readable(input)?, input, matrix));
            }
        }
        let lead = |view: &View| View {
            shape: view.shape[..last].to_vec(),
            strides: view.strides[..last].to_vec(),
            offset: view.offset,
        };
        let walked = |used: &[(Home, MidId, &Arc<[f32]>)]| {
            let leads: Vec<View> =
                std::iter::once(lead(&to.view)).chain(used.iter().map(|(home, _, _)| lead(&home.view))).collect();
            loops(&leads.iter().collect::<Vec<_>>())
        };
        let mut steps = walked(&used);
        if steps.iter().rev().skip(1).map(|step| step.extent).product::<usize>() > PRODUCTS_MOST {
            for (home, input, _) in &mut used {
                *home = self.in_order(*input, home)?;
            }
            steps = walked(&used);
        }
        let inner = steps.pop();
        let positions = inner.as_ref().map_or(1, |step| step.extent);
        let stride = |n: usize| inner.as_ref().map_or(0, |step| step.strides[n].unsigned_abs());
        let matrix = match used[..] {
            [(_, _, only)] => self.floats.one(only),
            _ => self.matrix(Origin::Stacked(used.iter().map(|(_, _, matrix)| address(matrix)).collect()), || {
                used.iter().flat_map(|(_, _, matrix)| matrix.iter().copied()).collect()
            }),
        };
        let bias = bias.map(|bias| self.floats.one(bias));
        for moved in every(&steps, used.len() + 1) {
            let terms = used
                .iter()
                .enumerate()
                .map(|(n, (home, _, _))| {
                    let (k, k_stride) = (home.view.shape[last], home.view.strides[last].unsigned_abs());
                    let (taps, tap_stride, tap_len) =
                        if k_stride == 1 || k == 1 { (1, 0, k) } else { (k, k_stride, 1) };
                    let offset = home.view.offset.wrapping_add_signed(moved[n + 1]);
                    Term { storage: home.storage, offset, position_stride: stride(n + 1), taps, tap_stride, tap_len }
                })
                .collect();
            self.plan.commands.push(Command::Contract(Contraction {
                label: node.label.clone(),
                terms,
                weights: matrix.clone(),
                precision: Precision::F32,
                bias: bias.clone(),
                activation,
                positions,
                n,
                out: to.storage,
                out_offset: to.view.offset.wrapping_add_signed(moved[0]),
                out_position_stride: stride(0),
            }));
        }
        Ok(())
    }

    pub(super) fn conv(&mut self, node: &MidNode, to: &Home) -> Result<(), LowerError> {
        let MidOp::Conv { weights, kernel, strides, dilations, group, bias, activation } = &node.op else {
            return Ok(());
        };
        let from = self.readable(node.inputs[0])?;
        let (channels, maps) = (from.view.shape[1] / group, to.view.shape[1] / group);
        let spatial = kernel.len();
        let source = |axis: usize| from.view.strides[axis + 2].unsigned_abs();
        let channel_stride = from.view.strides[1].unsigned_abs();
        // The innermost spatial axis is the positions and the taps; the others are loops here.
        let inner = spatial - 1;
        let rows: Vec<usize> = kernel[..inner].to_vec();
        let outer: Vec<usize> = to.view.shape[2..2 + inner].to_vec();
        let taps = kernel[inner];
        let tap_stride = dilations[inner] * source(inner);
        // K runs over rows of taps, then whatever of taps and channels is contiguous innermost.
        let channels_inner = channel_stride == 1 || channels == 1;
        let per_map = channels * kernel.iter().product::<usize>();
        let index =
            |row: usize, tap: usize, channel: usize| (channel * rows.iter().product::<usize>() + row) * taps + tap;
        let row_count: usize = rows.iter().product();
        let mut order = Vec::with_capacity(per_map);
        for row in 0..row_count {
            if channels_inner {
                (0..taps).for_each(|tap| (0..channels).for_each(|channel| order.push(index(row, tap, channel))));
            } else {
                (0..channels).for_each(|channel| (0..taps).for_each(|tap| order.push(index(row, tap, channel))));
            }
        }
        let shape_of = |at: usize, extents: &[usize]| {
            let mut rest = at;
            let mut found = vec![0; extents.len()];
            for axis in (0..extents.len()).rev() {
                found[axis] = rest % extents[axis];
                rest /= extents[axis];
            }
            found
        };
        for g in 0..*group {
            let shape = [maps, channels].into_iter().chain(kernel.iter().copied()).collect();
            let origin = Origin::Conv { weights: address(weights), shape, group: g, channels_inner };
            let matrix = self.matrix(origin, || {
                let by_row = order.iter().flat_map(|&k| (0..maps).map(move |map| (k, map)));
                by_row.map(|(k, map)| weights[(g * maps + map) * per_map + k]).collect()
            });
            let bias = bias.as_ref().map(|bias| self.floats.copy(&bias[g * maps..][..maps]));
            for at in 0..outer.iter().product() {
                let at = shape_of(at, &outer);
                let base = from.view.offset
                    + g * channels * channel_stride
                    + (0..inner).map(|axis| at[axis] * strides[axis] * source(axis)).sum::<usize>();
                let mut terms = Vec::with_capacity(row_count);
                for row in 0..row_count {
                    let row = shape_of(row, &rows);
                    let offset =
                        base + (0..inner).map(|axis| row[axis] * dilations[axis] * source(axis)).sum::<usize>();
                    let position_stride = strides[inner] * source(inner);
                    let term = |taps, tap_stride, tap_len| Term {
                        storage: from.storage,
                        offset,
                        position_stride,
                        taps,
                        tap_stride,
                        tap_len,
                    };
                    if !channels_inner {
                        if tap_stride == 1 || taps == 1 {
                            terms.push(term(channels, channel_stride, taps));
                        } else {
                            terms.extend((0..channels).map(|channel| Term {
                                offset: offset + channel * channel_stride,
                                ..term(taps, tap_stride, 1)
                            }));
                        }
                    } else if tap_stride == channels || taps == 1 {
                        terms.push(term(1, 0, taps * channels));
                    } else {
                        terms.push(term(taps, tap_stride, channels));
                    }
                }
                let moved: usize = (0..inner).map(|axis| at[axis] * to.view.strides[axis + 2].unsigned_abs()).sum();
                self.plan.commands.push(Command::Contract(Contraction {
                    label: node.label.clone(),
                    terms,
                    weights: matrix.clone(),
                    precision: Precision::F32,
                    bias: bias.clone(),
                    activation: *activation,
                    positions: to.view.shape[2 + inner],
                    n: maps,
                    out: to.storage,
                    out_offset: to.view.offset + g * maps * to.view.strides[1].unsigned_abs() + moved,
                    out_position_stride: to.view.strides[2 + inner].unsigned_abs(),
                }));
            }
        }
        Ok(())
    }
}
