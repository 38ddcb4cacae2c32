//! Loom kernels over strided views: the grid that walks them, and the bodies that need more than one expression.
//!
//! ```text
//! dims of all views ── merge with the seats ──> x (items), y, z (workgroups) ──> one index per view ──> body
//! ```
//!
//! Every kernel takes the number of seats, as workload and as its first argument, and one buffer per storage; strides,
//! offsets and extents are in its text, so that a compiler sees what is contiguous.

use super::expr::{Expr, Writer, float_literal, memory_type};
use super::view::{Loop, View, joins, loops};
use crate::graph::{Binary, Reduction};
use lanes_core::DType;
use std::fmt::Write;

/// Items of a workgroup, at most: as many elements as a tile of the CPU backend has.
const WORKGROUP_ITEMS: usize = 256;
/// An innermost run shorter than this is not worth an axis of items when another axis is longer.
const SHORT_RUN: usize = 16;

/// A view that a kernel touches: which buffer argument, what lies there, and how far apart seats are.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Index among the kernel's buffers.
    pub buffer: usize,
    /// Element type.
    pub dtype: DType,
    /// Where, within a seat.
    pub view: View,
    /// Elements between seats; 0 when all share it.
    pub seat_stride: usize,
    /// One past the last element of a seat that the kernel may touch, loops included.
    pub reach: usize,
}

/// One axis of the grid.
#[derive(Clone, Debug)]
struct Axis {
    /// Iterations, or iterations per seat when the seats are merged in.
    extent: usize,
    seats: bool,
    strides: Vec<isize>,
}

/// The axes that walk all operands, which have one shape, for all seats; outermost first.
fn axes(operands: &[Operand]) -> Vec<Axis> {
    let views: Vec<&View> = operands.iter().map(|operand| &operand.view).collect();
    let inner = loops(&views);
    let seat = Loop { extent: 1, strides: operands.iter().map(|operand| operand.seat_stride as isize).collect() };
    let mut axes: Vec<Axis> = Vec::with_capacity(inner.len() + 1);
    match inner.first() {
        Some(first) if joins(&seat, first) => {}
        _ => axes.push(Axis { extent: 1, seats: true, strides: seat.strides }),
    }
    let merged = axes.is_empty();
    axes.extend(inner.into_iter().enumerate().map(|(n, step)| Axis {
        extent: step.extent,
        seats: merged && n == 0,
        strides: step.strides,
    }));
    axes
}

/// What a body sees: the operation writer, and for every operand its buffer view, the view's type and an index.
pub struct Body<'a> {
    /// Writes operations.
    pub writer: &'a mut Writer,
    views: &'a [(String, String)],
    indices: Vec<String>,
    operands: &'a [Operand],
}

impl Body<'_> {
    /// The element of operand `n` at this item.
    pub fn load(&mut self, n: usize) -> String {
        let index = self.indices[n].clone();
        self.load_at(n, &index)
    }

    /// The element of operand `n` at an index of the body's own.
    pub fn load_at(&mut self, n: usize, index: &str) -> String {
        let (view, ty) = &self.views[n];
        self.writer.load(view, index, ty, self.operands[n].dtype)
    }

    /// Stores to operand `n` at this item.
    pub fn store(&mut self, n: usize, value: &str) {
        let index = self.indices[n].clone();
        self.store_at(n, &index, value);
    }

    /// Stores to operand `n` at an index of the body's own.
    pub fn store_at(&mut self, n: usize, index: &str, value: &str) {
        let (view, ty) = &self.views[n];
        self.writer.store(value, view, index, ty, self.operands[n].dtype);
    }

    /// Operand `n`'s index at this item.
    pub fn index(&self, n: usize) -> String {
        self.indices[n].clone()
    }

    /// `base + counter·stride`.
    pub fn moved(&mut self, base: &str, counter: &str, stride: isize) -> String {
        let stride = self.writer.value(&format!("index.constant {stride} : index"));
        self.writer.value(&format!("index.madd {counter}, {stride}, {base} : index"))
    }
}

/// A kernel that runs `body` once for every index of `operands`' common shape and every seat.
pub fn grid_kernel(name: &str, buffers: usize, operands: &[Operand], body: impl FnOnce(&mut Body<'_>)) -> String {
    let axes = axes(operands);
    let weight = |axis: &Axis| if axis.seats { axis.extent * 2 * SHORT_RUN } else { axis.extent };
    let last = axes.len() - 1;
    let x = if weight(&axes[last]) >= SHORT_RUN {
        last
    } else {
        (0..axes.len()).rev().max_by_key(|&n| weight(&axes[n])).unwrap_or(last)
    };
    let y = (0..axes.len()).filter(|&n| n != x).max_by_key(|&n| (axes[n].seats, axes[n].extent));
    let rest: Vec<usize> = (0..axes.len()).filter(|&n| n != x && Some(n) != y).collect();
    let items = if axes[x].seats { WORKGROUP_ITEMS } else { axes[x].extent.next_multiple_of(8).min(WORKGROUP_ITEMS) };

    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let _ = writeln!(text, "kernel.def export(\"{name}\") @{name}(%seats: index) {{");
    let mut launch = Writer::new(2);
    let one = launch.value("index.constant 1 : index");
    let size = launch.value(&format!("index.constant {items} : index"));
    let count = |writer: &mut Writer, axis: &Axis| {
        let extent = writer.value(&format!("index.constant {} : index", axis.extent));
        if axis.seats { writer.value(&format!("index.mul %seats, {extent} : index")) } else { extent }
    };
    let total = count(&mut launch, &axes[x]);
    let less = launch.value(&format!("index.constant {} : index", items - 1));
    let padded = launch.value(&format!("index.add {total}, {less} : index"));
    let groups_x = launch.value(&format!("index.div {padded}, {size} : index"));
    let groups_y = y.map_or(one.clone(), |y| count(&mut launch, &axes[y]));
    let groups_z =
        launch.value(&format!("index.constant {} : index", rest.iter().map(|&n| axes[n].extent).product::<usize>()));
    launch.line(&format!(
        "kernel.launch.config workgroups({groups_x}, {groups_y}, {groups_z}) workgroup_size({size}, {one}, {one}) : index"
    ));
    text.push_str(&launch.finish());
    let parameters: Vec<String> = (0..buffers).map(|n| format!(", %b{n}: buffer")).collect();
    let _ = writeln!(text, "}} launch(%seats: index{}) {{", parameters.concat());

    let mut writer = Writer::new(2);
    let zero = writer.value("index.constant 0 : offset");
    let mut opened: Vec<(usize, DType, usize, (String, String))> = Vec::new();
    let views: Vec<(String, String)> = operands
        .iter()
        .map(|operand| {
            let known = opened.iter().find(|(buffer, dtype, stride, _)| {
                (*buffer, *dtype, *stride) == (operand.buffer, operand.dtype, operand.seat_stride)
            });
            if let Some((_, _, _, view)) = known {
                return view.clone();
            }
            let memory = memory_type(operand.dtype);
            let extent = if operand.seat_stride == 0 {
                // Whoever shares the view is within its extent: a compiler may take it at its word.
                let same = |other: &&Operand| {
                    (other.buffer, other.dtype, other.seat_stride) == (operand.buffer, operand.dtype, 0)
                };
                let reach = operands.iter().filter(same).map(|other| other.reach).max().unwrap_or(operand.reach);
                writer.value(&format!("index.constant {reach} : index"))
            } else {
                let stride = writer.value(&format!("index.constant {} : index", operand.seat_stride));
                writer.value(&format!("index.mul %seats, {stride} : index"))
            };
            let ty = format!("view<[{extent}]x{memory}>");
            let name = writer.value(&format!("buffer.view %b{}[{zero}] : buffer -> {ty}", operand.buffer));
            opened.push((operand.buffer, operand.dtype, operand.seat_stride, (name.clone(), ty.clone())));
            (name, ty)
        })
        .collect();
    let item = writer.value("kernel.workitem.dispatch.id<x> : index");
    let limit = count(&mut writer, &axes[x]);
    let y_at = y.map(|y| (y, writer.value("kernel.workgroup.id<y> : index")));
    let mut outer: Vec<(usize, String)> = y_at.into_iter().collect();
    match rest[..] {
        [] => {}
        [only] => outer.push((only, writer.value("kernel.workgroup.id<z> : index"))),
        _ => {
            let mut left = writer.value("kernel.workgroup.id<z> : index");
            for &n in rest.iter().rev() {
                let extent = writer.value(&format!("index.constant {} : index", axes[n].extent));
                outer.push((n, writer.value(&format!("index.rem {left}, {extent} : index"))));
                left = writer.value(&format!("index.div {left}, {extent} : index"));
            }
        }
    }
    let live = writer.value(&format!("index.cmp ult, {item}, {limit} : index"));
    writer.line(&format!("scf.if {live} {{"));
    writer.indent(2);
    let indices = operands
        .iter()
        .enumerate()
        .map(|(n, operand)| {
            let mut base: Option<String> = None;
            let mut add = |writer: &mut Writer, at: &str, stride: isize| {
                if stride == 0 {
                    return;
                }
                base = Some(match (base.take(), stride) {
                    (None, 1) => at.to_owned(),
                    (None, _) => {
                        let stride = writer.value(&format!("index.constant {stride} : index"));
                        writer.value(&format!("index.mul {at}, {stride} : index"))
                    }
                    (Some(base), 1) => writer.value(&format!("index.add {base}, {at} : index")),
                    (Some(base), _) => {
                        let stride = writer.value(&format!("index.constant {stride} : index"));
                        writer.value(&format!("index.madd {at}, {stride}, {base} : index"))
                    }
                });
            };
            for (axis, at) in &outer {
                add(&mut writer, at, axes[*axis].strides[n]);
            }
            // The uniform part first, so that what varies by item is one addition.
            if operand.view.offset > 0 {
                let offset = writer.value(&format!("index.constant {} : index", operand.view.offset));
                add(&mut writer, &offset, 1);
            }
            add(&mut writer, &item, axes[x].strides[n]);
            base.unwrap_or_else(|| writer.value("index.constant 0 : index"))
        })
        .collect();
    body(&mut Body { writer: &mut writer, views: &views, indices, operands });
    writer.indent(-2);
    writer.line("}");
    writer.line("kernel.return");
    text.push_str(&writer.finish());
    text.push_str("}\n");
    text
}

/// One past the last element that a view reaches.
pub fn reach(view: &View) -> usize {
    let forward: isize = view.shape.iter().zip(&view.strides).map(|(&d, &s)| (d as isize - 1).max(0) * s.max(0)).sum();
    view.offset.wrapping_add_signed(forward) + 1
}

/// An elementwise operation; results first, then operands.
pub fn map_kernel(name: &str, buffers: usize, expr: &Expr, operands: &[Operand]) -> String {
    let results = expr.results.len();
    grid_kernel(name, buffers, operands, |body| {
        let inputs: Vec<String> = (0..expr.inputs).map(|n| body.load(results + n)).collect();
        let made = body.writer.expr(expr, &inputs);
        for (n, value) in made.iter().enumerate() {
            body.store(n, value);
        }
    })
}

/// A loop over `0..extent` that carries values; `step` gets the counter and the carried values.
fn counted(
    body: &mut Body<'_>,
    extent: usize,
    carried: &[(&str, String)],
    step: impl FnOnce(&mut Body<'_>, &str, &[String]) -> Vec<String>,
) -> Vec<String> {
    let low = body.writer.value("index.constant 0 : index");
    let high = body.writer.value(&format!("index.constant {extent} : index"));
    let by = body.writer.value("index.constant 1 : index");
    // A counter and carried values are named after the low bound, which is unique in the kernel.
    let stem = low.trim_start_matches('%').to_owned();
    let names: Vec<String> = (0..carried.len()).map(|n| format!("%c{stem}_{n}")).collect();
    let results: Vec<String> = (0..carried.len()).map(|n| format!("%r{stem}_{n}")).collect();
    let types: Vec<&str> = carried.iter().map(|(ty, _)| *ty).collect();
    let start: Vec<String> =
        names.iter().zip(carried).map(|(name, (ty, from))| format!("{name} = {from} : {ty}")).collect();
    let counter = format!("%i{stem}");
    if carried.is_empty() {
        body.writer.line(&format!("scf.for {counter} = [{low} to {high} step {by}] {{"));
    } else {
        body.writer.line(&format!(
            "{} = scf.for {counter} = [{low} to {high} step {by}]({}) -> ({}) {{",
            results.join(", "),
            start.join(", "),
            types.join(", ")
        ));
    }
    body.writer.indent(2);
    let next = step(body, &counter, &names);
    if carried.is_empty() {
        body.writer.line("scf.yield");
    } else {
        body.writer.line(&format!("scf.yield {} : {}", next.join(", "), types.join(", ")));
    }
    body.writer.indent(-2);
    body.writer.line("}");
    results
}

/// The register type that an element is computed in.
fn wide(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 => "f32",
        DType::Bool => "i1",
        other => memory_type(other),
    }
}

fn combined(body: &mut Body<'_>, op: Binary, dtype: DType, a: &str, b: &str) -> String {
    // Narrow floats are combined in f32 and rounded at the end, by the store.
    let dtype = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let mut expr = Expr::of(&[dtype, dtype]);
    let result = expr.binary(op, 0, 1);
    body.writer.expr(&expr.result(result), &[a.to_owned(), b.to_owned()]).remove(0)
}

/// A reduction over `extent` elements `stride` apart, one item per result. Operands: result, then the first element.
pub fn reduce_kernel(
    name: &str,
    buffers: usize,
    kind: Reduction,
    (extent, stride): (usize, isize),
    operands: &[Operand],
) -> String {
    let dtype = operands[1].dtype;
    grid_kernel(name, buffers, operands, |body| {
        let op = match kind {
            Reduction::Mean | Reduction::Sum => Binary::Add,
            Reduction::Max => Binary::Max,
            Reduction::Min => Binary::Min,
        };
        let first = body.load(1);
        let base = body.index(1);
        let mut result = counted(body, extent - 1, &[(wide(dtype), first)], |body, counter, carried| {
            let one = body.writer.value("index.constant 1 : index");
            let at = body.writer.value(&format!("index.add {counter}, {one} : index"));
            let index = body.moved(&base, &at, stride);
            let next = body.load_at(1, &index);
            vec![combined(body, op, dtype, &carried[0], &next)]
        })
        .remove(0);
        if kind == Reduction::Mean {
            let count = number(body, extent as f64, dtype);
            result = combined(body, Binary::Div, dtype, &result, &count);
        }
        body.store(0, &result);
    })
}

fn number(body: &mut Body<'_>, value: f64, dtype: DType) -> String {
    let literal = match dtype {
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => float_literal(value),
        _ => (value as i64).to_string(),
    };
    body.writer.value(&format!("scalar.constant {literal} : {}", wide(dtype)))
}

/// Softmax over `extent` elements, one item per row. Operands: the first element of the result, then of the operand,
/// which are `strides` apart.
pub fn softmax_kernel(name: &str, buffers: usize, extent: usize, strides: [isize; 2], operands: &[Operand]) -> String {
    let dtype = operands[1].dtype;
    let ty = wide(dtype);
    grid_kernel(name, buffers, operands, |body| {
        let (to, from) = (body.index(0), body.index(1));
        let lowest = number(body, f64::NEG_INFINITY, dtype);
        let peak = counted(body, extent, &[(ty, lowest)], |body, counter, carried| {
            let index = body.moved(&from, counter, strides[1]);
            let next = body.load_at(1, &index);
            vec![body.writer.value(&format!("scalar.maximumf {}, {next} : {ty}", carried[0]))]
        })
        .remove(0);
        let nothing = number(body, 0.0, dtype);
        let power = |body: &mut Body<'_>, counter: &str| {
            let index = body.moved(&from, counter, strides[1]);
            let value = body.load_at(1, &index);
            let centred = body.writer.value(&format!("scalar.subf {value}, {peak} : {ty}"));
            body.writer.value(&format!("scalar.expf {centred} : {ty}"))
        };
        let total = counted(body, extent, &[(ty, nothing)], |body, counter, carried| {
            let power = power(body, counter);
            vec![body.writer.value(&format!("scalar.addf {}, {power} : {ty}", carried[0]))]
        })
        .remove(0);
        counted(body, extent, &[], |body, counter, _| {
            let power = power(body, counter);
            let part = body.writer.value(&format!("scalar.divf {power}, {total} : {ty}"));
            let index = body.moved(&to, counter, strides[0]);
            body.store_at(0, &index, &part);
            Vec::new()
        });
    })
}

/// Running sums over `extent` elements, one item per row. Operands as for softmax.
pub fn cumsum_kernel(
    name: &str,
    buffers: usize,
    extent: usize,
    strides: [isize; 2],
    exclusive: bool,
    operands: &[Operand],
) -> String {
    let dtype = operands[1].dtype;
    grid_kernel(name, buffers, operands, |body| {
        let (to, from) = (body.index(0), body.index(1));
        let nothing = number(body, 0.0, dtype);
        counted(body, extent, &[(wide(dtype), nothing)], |body, counter, carried| {
            let index = body.moved(&from, counter, strides[1]);
            let next = body.load_at(1, &index);
            let sum = combined(body, Binary::Add, dtype, &carried[0], &next);
            let index = body.moved(&to, counter, strides[0]);
            body.store_at(0, &index, if exclusive { &carried[0] } else { &sum });
            vec![sum]
        });
    })
}

/// A product of two computed operands, one item per element of the result: an ascending chain of fused multiply-adds.
/// Operands: result, then the first elements of the left row and the right column, `strides` apart along K.
pub fn matmul_kernel(name: &str, buffers: usize, k: usize, strides: [isize; 2], operands: &[Operand]) -> String {
    let ty = wide(operands[0].dtype);
    let dtype = operands[0].dtype;
    grid_kernel(name, buffers, operands, |body| {
        let (left, right) = (body.index(1), body.index(2));
        let nothing = number(body, 0.0, dtype);
        let sum = counted(body, k, &[(ty, nothing)], |body, counter, carried| {
            let index = body.moved(&left, counter, strides[0]);
            let a = body.load_at(1, &index);
            let index = body.moved(&right, counter, strides[1]);
            let b = body.load_at(2, &index);
            vec![body.writer.value(&format!("scalar.fmaf {a}, {b}, {} : {ty}", carried[0]))]
        })
        .remove(0);
        body.store(0, &sum);
    })
}

/// Integers divided towards zero. Operands: result, dividend, divisor, the seat's status word. A zero divisor writes
/// `code` to the status and divides by 1 instead.
pub fn divide_kernel(name: &str, buffers: usize, code: u32, operands: &[Operand]) -> String {
    let dtype = operands[0].dtype;
    let ty = memory_type(dtype);
    grid_kernel(name, buffers, operands, |body| {
        let (dividend, divisor) = (body.load(1), body.load(2));
        let zero = number(body, 0.0, dtype);
        let one = number(body, 1.0, dtype);
        let nothing = body.writer.value(&format!("scalar.cmpi eq, {divisor}, {zero} : {ty}"));
        let divisor = body.writer.value(&format!("scf.select {nothing}, {one}, {divisor} : {ty}"));
        refuse_if(body, &nothing, 3, code);
        let quotient = combined(body, Binary::Div, dtype, &dividend, &divisor);
        body.store(0, &quotient);
    })
}

/// Writes `code` to operand `status` where `condition` holds.
fn refuse_if(body: &mut Body<'_>, condition: &str, status: usize, code: u32) {
    body.writer.line(&format!("scf.if {condition} {{"));
    body.writer.indent(2);
    let code = body.writer.value(&format!("scalar.constant {code} : i32"));
    body.store(status, &code);
    body.writer.indent(-2);
    body.writer.line("}");
}

/// Entries chosen by computed indices. Operands: result, the first entry, the index, the seat's status word. An index
/// below zero counts from the end; one out of bounds writes `code` to the status and reads entry 0 instead.
pub fn gather_kernel(
    name: &str,
    buffers: usize,
    (extent, stride): (usize, isize),
    code: u32,
    operands: &[Operand],
) -> String {
    let ty = memory_type(operands[2].dtype);
    grid_kernel(name, buffers, operands, |body| {
        let index = body.load(2);
        let place = body.writer.value(&format!("index.cast {index} : {ty} to index"));
        let zero = body.writer.value("index.constant 0 : index");
        let count = body.writer.value(&format!("index.constant {extent} : index"));
        let below = body.writer.value(&format!("index.cmp slt, {place}, {zero} : index"));
        let wrapped = body.writer.value(&format!("index.add {place}, {count} : index"));
        let place = body.writer.value(&format!("scf.select {below}, {wrapped}, {place} : index"));
        let inside = body.writer.value(&format!("index.cmp ult, {place}, {count} : index"));
        let place = body.writer.value(&format!("scf.select {inside}, {place}, {zero} : index"));
        let yes = body.writer.value("scalar.constant true : i1");
        let outside = body.writer.value(&format!("scalar.xori {inside}, {yes} : i1"));
        refuse_if(body, &outside, 3, code);
        let base = body.index(1);
        let at = body.moved(&base, &place, stride);
        let found = body.load_at(1, &at);
        body.store(0, &found);
    })
}
