//! Contractions, as Loom: one work-item for each element of the result, its sum one ascending chain.
//!
//! - The chain is the plan's: of fused multiply-adds from zero over k, then the bias, then the activation. It is the same
//!   for any number of seats.
//! - Not here: a fast form. This one reads every operand from memory for every product.

use lanes_core::plan::{Activation, Contraction};
use std::fmt::Write;

/// Work-items of a workgroup.
const GROUP: usize = 128;

/// The text of `contraction`, its kernel called `contract`. Launch arguments: the seats; a buffer for each term, whole
/// storages with `seat_elements[term]` elements a seat (0 where one value serves all); weights; bias, if there is one; the
/// result's storage, of `out_seat_elements` a seat (0 likewise). Workload: the seats. `None` for an
/// activation that this has no form for.
pub(crate) fn text(contraction: &Contraction, seat_elements: &[usize], out_seat_elements: usize) -> Option<String> {
    let Contraction { terms, bias, activation, positions, n, out_offset, out_position_stride, .. } = contraction;
    let (each, less) = (positions * n, GROUP - 1);
    let mut text = format!(
        "kernel.def export(\"contract\") @contract(%seats: index) {{
  %one = index.constant 1 : index
  %size = index.constant {GROUP} : index
  %each = index.constant {each} : index
  %total = index.mul %seats, %each : index
  %less = index.constant {less} : index
  %padded = index.add %total, %less : index
  %groups = index.div %padded, %size : index
  kernel.launch.config workgroups(%groups, %one, %one) workgroup_size(%size, %one, %one) : index
}} launch(%seats: index"
    );
    for at in 0..terms.len() {
        put(&mut text, format_args!(", %left{at}: buffer"));
    }
    let bias_argument = if bias.is_some() { ", %bias: buffer" } else { "" };
    put(&mut text, format_args!(", %weights: buffer{bias_argument}, %out: buffer) {{\n"));
    let k = contraction.k();
    put(
        &mut text,
        format_args!(
            "  %zero = index.constant 0 : offset
  %first = index.constant 0 : index
  %one = index.constant 1 : index
  %columns = index.constant {n} : index
  %positions = index.constant {positions} : index
  %each = index.constant {each} : index
  %total = index.mul %seats, %each : index
  %wv = buffer.view %weights[%zero] : buffer -> view<{k}x{n}xf32>
  %item = kernel.workitem.dispatch.id<x> : index
  %live = index.cmp ult, %item, %total : index
  scf.if %live {{
    %column = index.rem %item, %columns : index
    %place = index.div %item, %columns : index
    %position = index.rem %place, %positions : index
    %seat = index.div %place, %positions : index
    %sum0 = scalar.constant 0.0 : f32
"
        ),
    );
    let mut done = 0;
    for (at, term) in terms.iter().enumerate() {
        let next = at + 1;
        let elements = seat_elements[at];
        // Where one value serves all, the seat counts for nothing.
        let last = term.offset
            + positions.saturating_sub(1) * step(*positions, term.position_stride)
            + term.taps.saturating_sub(1) * step(term.taps, term.tap_stride)
            + term.tap_len;
        let shared = elements == 0;
        let length = if shared { last } else { elements };
        put(
            &mut text,
            format_args!(
                "    %elements{at} = index.constant {elements} : index
    %length{at}c = index.constant {length} : index
    %length{at} = index.mul %{count}, %length{at}c : index
    %view{at} = buffer.view %left{at}[%zero] : buffer -> view<[%length{at}]xf32>
    %offset{at} = index.constant {offset} : index
    %positionstride{at} = index.constant {position_stride} : index
    %tapstride{at} = index.constant {tap_stride} : index
    %taps{at} = index.constant {taps} : index
    %taplen{at} = index.constant {tap_len} : index
    %done{at} = index.constant {done} : index
    %ofseat{at} = index.mul %seat, %elements{at} : index
    %ofposition{at} = index.mul %position, %positionstride{at} : index
    %base{at}a = index.add %ofseat{at}, %offset{at} : index
    %base{at} = index.add %base{at}a, %ofposition{at} : index
    %sum{next} = scf.for %tap = [%first to %taps{at} step %one](%acc = %sum{at} : f32) -> (f32) {{
      %oftap = index.mul %tap, %tapstride{at} : index
      %start = index.add %base{at}, %oftap : index
      %skipped = index.mul %tap, %taplen{at} : index
      %kstart = index.add %skipped, %done{at} : index
      %inner = scf.for %c = [%first to %taplen{at} step %one](%acc2 = %acc : f32) -> (f32) {{
        %from = index.add %start, %c : index
        %k = index.add %kstart, %c : index
        %x = view.load %view{at}[%from] : view<[%length{at}]xf32> -> f32
        %w = view.load %wv[%k, %column] : view<{k}x{n}xf32> -> f32
        %fused = scalar.fmaf %x, %w, %acc2 : f32
        scf.yield %fused : f32
      }}
      scf.yield %inner : f32
    }}
",
                count = if shared { "one" } else { "seats" },
                offset = term.offset,
                position_stride = step(*positions, term.position_stride),
                tap_stride = step(term.taps, term.tap_stride),
                taps = term.taps,
                tap_len = term.tap_len,
            ),
        );
        done += term.k();
    }
    let sum = format!("%sum{}", terms.len());
    if bias.is_some() {
        put(
            &mut text,
            format_args!(
                "    %bv = buffer.view %bias[%zero] : buffer -> view<{n}xf32>
    %b = view.load %bv[%column] : view<{n}xf32> -> f32
    %biased = scalar.addf {sum}, %b : f32\n"
            ),
        );
    }
    let result = if bias.is_some() { "%biased" } else { &sum };
    let (steps, result) = activated(*activation, result)?;
    text.push_str(&steps);
    let shared = out_seat_elements == 0;
    let length = if shared {
        out_offset + positions.saturating_sub(1) * step(*positions, *out_position_stride) + n
    } else {
        out_seat_elements
    };
    let count = if shared { "one" } else { "seats" };
    let out_stride = step(*positions, *out_position_stride);
    put(
        &mut text,
        format_args!(
            "    %outelements = index.constant {out_seat_elements} : index
    %outlengthc = index.constant {length} : index
    %outlength = index.mul %{count}, %outlengthc : index
    %yv = buffer.view %out[%zero] : buffer -> view<[%outlength]xf32>
    %outoffset = index.constant {out_offset} : index
    %outstride = index.constant {out_stride} : index
    %outseat = index.mul %seat, %outelements : index
    %outposition = index.mul %position, %outstride : index
    %at1 = index.add %outseat, %outoffset : index
    %at2 = index.add %at1, %outposition : index
    %at = index.add %at2, %column : index
    view.store {result}, %yv[%at] : f32, view<[%outlength]xf32>
  }}
  kernel.return
}}
"
        ),
    );
    Some(text)
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(what);
}

/// The distance of one of `count` to the next: nothing where there is no next, whatever the plan says.
fn step(count: usize, stride: usize) -> usize {
    if count > 1 { stride } else { 0 }
}

/// What applies `activation` to `%x`, and what the result is called.
fn activated(activation: Activation, x: &str) -> Option<(String, String)> {
    let logistic = |of: &str| {
        format!(
            "    %unit = scalar.constant 1.0 : f32\n    %minus = scalar.negf {x} : f32\n    %e = scalar.expf %minus : f32\n    \
             %d = scalar.addf %unit, %e : f32\n    %y = scalar.divf {of}, %d : f32\n"
        )
    };
    let steps = match activation {
        Activation::None => return Some((String::new(), x.to_owned())),
        Activation::Relu => {
            format!("    %low = scalar.cmpf ole, {x}, %sum0 : f32\n    %y = scf.select %low, %sum0, {x} : f32\n")
        }
        Activation::Sigmoid => logistic("%unit"),
        Activation::Tanh => format!("    %y = scalar.tanhf {x} : f32\n"),
        Activation::Silu => logistic(x),
        // The enum may grow.
        _ => return None,
    };
    Some((steps, "%y".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{self, Takes};
    use lanes_core::plan::{StorageId, Term};
    use loom_compiler::ptx::Sm;

    /// Every activation, with and without a bias, shared and per-seat operands: the text compiles, for the oldest GPU too.
    #[test]
    fn texts_of_contractions_compile() {
        let term = |storage, tap_len| Term {
            storage: StorageId(storage),
            offset: 2,
            position_stride: 3,
            taps: 2,
            tap_stride: 5,
            tap_len,
        };
        for activation in [Activation::None, Activation::Relu, Activation::Sigmoid, Activation::Tanh, Activation::Silu]
        {
            for bias in [false, true] {
                let contraction = Contraction {
                    label: "node".into(),
                    terms: vec![term(0, 4), term(1, 3)],
                    weights: vec![0.0; 14 * 6].into(),
                    bias: bias.then(|| vec![0.0; 6].into()),
                    activation,
                    positions: 3,
                    n: 6,
                    out: StorageId(2),
                    out_offset: 1,
                    out_position_stride: 7,
                };
                for target in [Sm::LEAST, Sm::new(90)] {
                    let takes = Takes { target, version: (8, 0), shared_bytes_max: 48 << 10 };
                    let text = text(&contraction, &[40, 0], 30).expect("the activation is known");
                    let origin = image::text("contract.loom", text, "contract");
                    let image =
                        image::of_text(&origin, "node", false, &takes).unwrap_or_else(|error| panic!("{error}"));
                    let geometry = image.launch.geometry(&[9]).expect("a geometry");
                    assert_eq!(geometry.workgroups, [(9 * 3 * 6usize).div_ceil(GROUP) as u32, 1, 1]);
                    assert_eq!(image.parameters.len(), 5 + usize::from(bias));
                }
            }
        }
    }
}
