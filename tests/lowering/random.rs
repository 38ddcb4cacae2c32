//! Graphs that nobody would write: whatever is put together is what the oracle says.

use crate::harness::{Random, case, ints, model};
use lanes::DType::F32;
use lanes::onnx::Tensor;
use lanes::onnx::onnx::build::{ModelBuilder, Value};
use proptest::prelude::*;

/// A graph that grows by choices; each choice is a number modulo its options, so that fewer and lesser ones are simpler.
struct Growing<'a> {
    model: ModelBuilder,
    choices: std::slice::Iter<'a, u16>,
    random: Random,
    /// Names and one seat's shapes.
    values: Vec<(String, Vec<usize>)>,
    constants: usize,
}

impl Growing<'_> {
    fn choose(&mut self, options: usize) -> usize {
        usize::from(*self.choices.next().unwrap_or(&0)) % options
    }

    fn pick(&mut self) -> (String, Vec<usize>) {
        // The youngest first, so that chains are long.
        let back = self.choose(self.values.len());
        self.values[self.values.len() - 1 - back].clone()
    }

    fn constant(&mut self, tensor: &Tensor) -> String {
        let name = format!("k{}", self.constants);
        self.constants += 1;
        self.model = self.model.clone().tensor(&name, tensor);
        name
    }

    fn known(&mut self, shape: &[usize]) -> String {
        let tensor = self.random.tensor(shape);
        self.constant(&tensor)
    }

    fn node(&mut self, op: &str, operands: &[&str], attributes: &[(&str, Value)], shape: Vec<usize>) {
        // No bigger than what a few turns of a few hundred graphs have time for.
        if shape.iter().product::<usize>() > 600 {
            return;
        }
        let name = format!("v{}", self.values.len());
        self.model = self.model.clone().node(op, operands, &[&name], attributes);
        self.values.push((name, shape));
    }

    fn grow(&mut self) {
        let (x, shape) = self.pick();
        let rank = shape.len();
        let axis = if rank == 0 { 0 } else { self.choose(rank) };
        // Axis 0 of the model is the lanes.
        let at = Value::from(axis as i64 + 1);
        match self.choose(15) {
            0 => {
                let op = ["Sigmoid", "Tanh", "Relu", "Neg", "Abs"][self.choose(5)];
                self.node(op, &[&x], &[], shape);
            }
            1 => {
                let (y, other) = self.pick();
                let op = ["Add", "Sub", "Mul", "Max"][self.choose(4)];
                if other == shape {
                    // Products of products would leave f32.
                    let op = if op == "Mul" { "Min" } else { op };
                    self.node(op, &[&x, &y], &[], shape);
                } else {
                    let mut own = shape.clone();
                    own.iter_mut().for_each(|extent| {
                        if self.choose(2) == 1 {
                            *extent = 1
                        }
                    });
                    let known = self.known(&own);
                    self.node(op, &[&x, &known], &[], shape);
                }
            }
            2 if rank > 1 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                perm.rotate_left(1 + axis % (rank - 1));
                if self.choose(2) == 1 {
                    perm.swap(0, rank - 1);
                }
                let lanes: Vec<i64> = std::iter::once(0).chain(perm.iter().map(|&axis| axis as i64 + 1)).collect();
                let turned = perm.iter().map(|&axis| shape[axis]).collect();
                self.node("Transpose", &[&x], &[("perm", Value::Ints(lanes))], turned);
            }
            3 => {
                let total: usize = shape.iter().product();
                let divisors: Vec<usize> = (1..=total).filter(|d| total % d == 0).collect();
                let outer = divisors[self.choose(divisors.len())];
                let new = match self.choose(3) {
                    0 => vec![total],
                    1 => vec![outer, total / outer],
                    _ => vec![outer, 1, total / outer],
                };
                let target = ints(&std::iter::once(0).chain(new.iter().map(|&d| d as i64)).collect::<Vec<_>>());
                let target = self.constant(&target);
                self.node("Reshape", &[&x, &target], &[], new);
            }
            4 if rank > 0 => {
                let extent = shape[axis] as i64;
                let start = self.choose(shape[axis]) as i64;
                let step = [1, 2, -1, -2][self.choose(4)];
                let end = if step > 0 { extent } else { i64::MIN };
                let bounds = [start, end, axis as i64 + 1, step].map(|bound| self.constant(&ints(&[bound])));
                let count = if step > 0 { (extent - start + step - 1) / step } else { start / -step + 1 };
                let mut part = shape;
                part[axis] = count as usize;
                self.node("Slice", &[&x, &bounds[0], &bounds[1], &bounds[2], &bounds[3]], &[], part);
            }
            5 if rank > 0 => {
                let (y, other) = self.pick();
                let mut all = shape.clone();
                let same = other.len() == rank && (0..rank).all(|a| a == axis || other[a] == shape[a]);
                all[axis] += if same { other[axis] } else { shape[axis] };
                self.node("Concat", &[&x, if same { &y } else { &x }], &[("axis", at)], all);
            }
            6 if rank > 0 => {
                let mode = ["constant", "edge", "reflect"][self.choose(3)];
                let most = if mode == "reflect" { shape[axis] - 1 } else { 2 };
                let (low, high) = (self.choose(most + 1), self.choose(most + 1));
                let mut pads = vec![0; 2 * (rank + 1)];
                (pads[axis + 1], pads[rank + 2 + axis]) = (low as i64, high as i64);
                let pads = self.constant(&ints(&pads));
                let mut wide = shape;
                wide[axis] += low + high;
                self.node("Pad", &[&x, &pads], &[("mode", mode.into())], wide);
            }
            7 => {
                let mut wide = shape;
                wide.iter_mut().for_each(|extent| {
                    if *extent == 1 {
                        *extent = 1 + self.choose(3)
                    }
                });
                wide.insert(0, 1 + self.choose(2));
                let target: Vec<i64> = std::iter::once(1).chain(wide.iter().map(|&d| d as i64)).collect();
                let (target, axes) = (self.constant(&ints(&target)), self.constant(&ints(&[1])));
                let name = format!("u{}", self.constants);
                self.model = self.model.clone().node("Unsqueeze", &[&x, &axes], &[&name], &[]);
                self.node("Expand", &[&name, &target], &[], wide);
            }
            8 if rank > 0 => {
                let n = 1 + self.choose(9);
                let k = shape[rank - 1];
                let known = self.known(&[k, n]);
                let mut out = shape;
                out[rank - 1] = n;
                self.node("MatMul", &[&x, &known], &[], out);
            }
            9 if rank == 2 || rank == 3 => {
                let kernel: Vec<usize> = shape[1..].iter().map(|&d| 1 + self.choose(d.min(3))).collect();
                let group = if self.choose(3) == 0 { shape[0] } else { 1 };
                let maps = group * (1 + self.choose(3));
                let (stride, low) = (1 + self.choose(2), self.choose(2));
                let w: Vec<usize> = [maps, shape[0] / group].into_iter().chain(kernel.clone()).collect();
                let known = self.known(&w);
                let mut pads = vec![0; 2 * kernel.len()];
                pads[0] = low as i64;
                let out: Vec<usize> = std::iter::once(maps)
                    .chain(
                        shape[1..]
                            .iter()
                            .zip(&kernel)
                            .enumerate()
                            .map(|(n, (&extent, &k))| (extent + if n == 0 { low } else { 0 } - k) / stride + 1),
                    )
                    .collect();
                let attributes = [
                    ("group", Value::from(group as i64)),
                    ("pads", Value::Ints(pads)),
                    ("strides", Value::Ints(vec![stride as i64; kernel.len()])),
                ];
                self.node("Conv", &[&x, &known], &attributes, out);
            }
            10 if rank > 0 => {
                let op = ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"][self.choose(4)];
                let keep = self.choose(2);
                let axes = self.constant(&ints(&[axis as i64 + 1]));
                let mut left = shape;
                if keep == 1 {
                    left[axis] = 1;
                } else {
                    left.remove(axis);
                }
                self.node(op, &[&x, &axes], &[("keepdims", (keep as i64).into())], left);
            }
            11 if rank > 0 => self.node("Softmax", &[&x], &[("axis", at)], shape),
            12 if rank > 0 => {
                let by = self.constant(&Tensor::scalar(axis as i64 + 1));
                let reverse = self.choose(2) as i64;
                self.node("CumSum", &[&x, &by], &[("reverse", reverse.into())], shape);
            }
            13 if rank > 1 => {
                // What it is times what it was, turned.
                let mut perm: Vec<i64> = (0..=rank as i64).collect();
                perm.swap(rank - 1, rank);
                let turned: Vec<usize> = perm[1..].iter().map(|&axis| shape[axis as usize - 1]).collect();
                self.node("Tanh", &[&x], &[], shape.clone());
                let bounded = self.values[self.values.len() - 1].0.clone();
                if self.values[self.values.len() - 1].1 != shape {
                    return;
                }
                self.node("Transpose", &[&bounded], &[("perm", Value::Ints(perm))], turned);
                let other = self.values[self.values.len() - 1].0.clone();
                let mut out = shape.clone();
                out[rank - 1] = shape[rank - 2];
                self.node("MatMul", &[&bounded, &other], &[], out);
            }
            14 if rank > 0 => {
                let count = 1 + self.choose(4);
                let at_most = shape[axis];
                let indices: Vec<i64> = (0..count).map(|_| self.choose(at_most) as i64).collect();
                let indices = self.constant(&ints(&indices));
                let mut out = shape;
                out[axis] = count;
                self.node("Gather", &[&x, &indices], &[("axis", at)], out);
            }
            _ => self.node("Tanh", &[&x], &[], shape),
        }
    }
}

/// The graph that `choices` grow.
fn grown(choices: &[u16]) -> ModelBuilder {
    let shapes: [&[usize]; 4] = [&[2, 3], &[6], &[4, 5], &[2, 3, 4]];
    let first = choices.first().map_or(0, |&choice| usize::from(choice));
    let (x, state) = (shapes[first % 4], shapes[first / 4 % 4]);
    let dims: Vec<String> = std::iter::once("batch".to_owned()).chain(state.iter().map(ToString::to_string)).collect();
    let dims: Vec<&str> = dims.iter().map(String::as_str).collect();
    let mut growing = Growing {
        model: model(18, &[(F32, x)], &[]).input("state", F32, &dims),
        choices: choices.get(1..).unwrap_or_default().iter(),
        random: Random(first as u64),
        values: vec![("x0".into(), x.to_vec()), ("state".into(), state.to_vec())],
        constants: 0,
    };
    while growing.choices.len() > 0 {
        growing.grow();
    }
    // The next state is the youngest value that fits, bounded; the youngest of all is an output, bounded too.
    let fits = growing.values.iter().rev().find(|(_, shape)| shape == state).expect("the state fits itself");
    let last = &growing.values[growing.values.len() - 1].0;
    growing
        .model
        .clone()
        .node("Tanh", &[&fits.0], &["next_state"], &[])
        .node("Identity", &[last], &["y"], &[])
        .output("next_state", F32, &dims)
        .output("y", F32, &["?", "?"])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_graph_is_what_the_oracle_says(choices in prop::collection::vec(any::<u16>(), 1..40)) {
        case(grown(&choices)).sums().check();
    }
}
