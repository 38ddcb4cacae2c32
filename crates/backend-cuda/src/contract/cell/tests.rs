//! Kernels of both against one after the other, on the interpreter, bit by bit.

use super::*;
use crate::contract::{SUMS, Tile, packed_bytes, text};
use crate::image;
use lanes_core::DType;
use lanes_core::plan::{Argument, Command, Plan, Scalar, Storage, StorageId};
use lanes_model::onnx::build::{ModelBuilder, Value};
use lanes_model::{ImportOptions, Tensor, load_bytes};
use loom_compiler::interp::{self, Limits};
use loom_compiler::ir::Kernel;

const SEATS: usize = 3;

struct Floats(u32);

impl Floats {
    fn some(&mut self, count: usize) -> Vec<f32> {
        let mut float = || {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.0 >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..count).map(|_| float()).collect()
    }

    fn tensor(&mut self, shape: &[usize]) -> Tensor {
        Tensor::from_vec(shape.to_vec(), self.some(shape.iter().product()))
    }
}

/// A recurrent cell that is given its states.
fn recurrent(op: &str, [input, hidden]: [usize; 2], peepholes: bool, more: &[(&str, Value)]) -> Plan {
    let gates = if op == "LSTM" { 4 } else { 3 };
    let (x, h, floats) = (input.to_string(), hidden.to_string(), &mut Floats(3));
    let mut model = ModelBuilder::new(14)
        .input("x", DType::F32, &["1", "batch", &x])
        .input("h", DType::F32, &["1", "batch", &h])
        .tensor("w", &floats.tensor(&[1, gates * hidden, input]))
        .tensor("r", &floats.tensor(&[1, gates * hidden, hidden]))
        .tensor("b", &floats.tensor(&[1, 2 * gates * hidden]))
        .tensor("p", &floats.tensor(&[1, 3 * hidden]));
    let (mut operands, mut results) = (vec!["x", "w", "r", "b", "", "h"], vec!["y", "next_h"]);
    if op == "LSTM" {
        model = model.input("c", DType::F32, &["1", "batch", &h]);
        operands.extend(["c", if peepholes { "p" } else { "" }]);
        results.push("next_c");
    }
    let mut model = model
        .node(op, &operands, &results, &[more, &[("hidden_size", (hidden as i64).into())]].concat())
        .output("y", DType::F32, &["?"; 4])
        .output("next_h", DType::F32, &["1", "batch", &h]);
    if op == "LSTM" {
        model = model.output("next_c", DType::F32, &["1", "batch", &h]);
    }
    plan(model)
}

fn plan(model: ModelBuilder) -> Plan {
    let model = load_bytes(model.encode(), "model", &ImportOptions::default()).expect("it imports");
    let lowered = lanes_model::lower::lower(&model).expect("it lowers");
    lowered.plan.check(&lowered.signature).expect("it is sound");
    lowered.plan
}

/// Half of the maps of a convolution times the other half: units of two columns at several positions.
fn spectrum() -> Plan {
    let floats = &mut Floats(9);
    plan(
        ModelBuilder::new(18)
            .input("x", DType::F32, &["batch", "1", "40"])
            .tensor("w", &floats.tensor(&[34, 1, 8]))
            .tensor("halves", &Tensor::from_vec(vec![2], vec![17i64, 17]))
            .node("Conv", &["x", "w"], &["both"], &[("strides", [4i64].into())])
            .node("Split", &["both", "halves"], &["a", "b"], &[("axis", 1i64.into())])
            .node("Mul", &["a", "a"], &["aa"], &[])
            .node("Mul", &["b", "b"], &["bb"], &[])
            .node("Add", &["aa", "bb"], &["power"], &[])
            .node("Sqrt", &["power"], &["y"], &[])
            .output("y", DType::F32, &["batch", "17", "9"]),
    )
}

/// A kernel over whole storages; a storage that is there twice is one binding.
fn launch(kernel: &Kernel, storages: &[Option<usize>], memory: &mut [Vec<u8>]) {
    let geometry = kernel.launch.geometry(&[SEATS as u64]).expect("a geometry");
    let mut first = vec![None; memory.len()];
    let lengths: Vec<usize> = memory.iter().map(Vec::len).collect();
    let mut left: Vec<Option<&mut Vec<u8>>> = memory.iter_mut().map(Some).collect();
    let argument = |(number, at): (usize, &Option<usize>)| {
        let Some(at) = *at else { return interp::Argument::Scalar(SEATS as u64) };
        let argument = *first[at].get_or_insert(number);
        match left[at].take() {
            Some(bytes) => interp::Argument::Buffer(bytes),
            None => interp::Argument::Part { argument, start: 0, bytes: lengths[at] },
        }
    };
    let mut arguments: Vec<interp::Argument<'_>> = storages.iter().enumerate().map(argument).collect();
    interp::run(kernel, geometry, &mut arguments, Limits::default()).unwrap_or_else(|fault| panic!("{fault}"));
}

fn compiled(text: String) -> Kernel {
    let module = image::text("contract.loom", text.clone(), "contract").module().expect("it parses");
    module.specialise("contract", &Default::default()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Every epilogue of `plan` in both ways: how many there are.
fn check(plan: &Plan, tiles: &[[usize; 2]]) -> usize {
    let seat = |id: StorageId| {
        let storage = &plan.storages[id.0 as usize];
        if storage.is_shared() { 0 } else { storage.bytes() / 4 }
    };
    for epilogue in &plan.epilogues {
        let (Command::Contract(contraction), Command::Dispatch { kernel, arguments, .. }) =
            (&plan.commands[epilogue.contraction], &plan.commands[epilogue.dispatch])
        else {
            panic!("the plan was checked");
        };
        assert!(fits(contraction, epilogue), "{epilogue:?}");
        let mut floats = Floats(5);
        let mut memory: Vec<Vec<u8>> = plan
            .storages
            .iter()
            .map(|storage| match storage {
                Storage::Constant { bytes, .. } => bytes.to_vec(),
                storage => bytemuck::cast_slice(&floats.some(storage.bytes() * SEATS / 4)).to_vec(),
            })
            .collect();
        let n = contraction.n;
        let [plain, beside, bias] = [0, 1, 2].map(|at| memory.len() + at);
        memory.push(packed_bytes(&contraction.weights, contraction.k(), n).into_owned());
        let interleaved = side_by_side(&contraction.weights, n, epilogue.units);
        memory.push(packed_bytes(&interleaved, contraction.k(), n).into_owned());
        memory.push(contraction.bias.iter().flat_map(|bias| bytemuck::cast_slice(bias).to_vec()).collect());
        let at = |id: StorageId| Some(id.0 as usize);
        let given = |weights| {
            let terms = contraction.terms.iter().map(|term| at(term.storage));
            let bias = contraction.bias.as_ref().map(|_| Some(bias));
            std::iter::once(None).chain(terms).chain([Some(weights)]).chain(bias).chain([at(contraction.out)])
        };
        let terms: Vec<usize> = contraction.terms.iter().map(|term| seat(term.storage)).collect();
        let mut expected = memory.clone();
        let tile = Tile { rows: 1, columns: 1 };
        let alone = text(contraction, &terms, seat(contraction.out), tile, SEATS, None).expect("a text");
        launch(&compiled(alone), &given(plain).collect::<Vec<_>>(), &mut expected);
        let origin = plan.kernels[kernel.0 as usize].origin.as_ref().expect("it has a text");
        let after =
            origin.module().expect("it parses").specialise(&origin.kernel, &origin.config).expect("it verifies");
        let passed = arguments.iter().map(|argument| match argument {
            Argument::Scalar(Scalar::Seats) => None,
            Argument::Buffer { storage, .. } => at(*storage),
            Argument::Scalar(other) => panic!("{other:?}"),
        });
        launch(&after, &passed.collect::<Vec<_>>(), &mut expected);
        let seat_elements: Vec<usize> = places(epilogue).map(|elements| seat(elements.storage)).collect();
        for &[rows, columns] in tiles {
            for keeps in [false, true] {
                let cell = Cell { epilogue, seat_elements: &seat_elements, keeps };
                let tile = Tile { rows, columns };
                let both = text(contraction, &terms, seat(contraction.out), tile, SEATS, Some(cell)).expect("a text");
                let more = places(epilogue).map(|elements| at(elements.storage));
                let mut found = memory.clone();
                launch(&compiled(both), &given(beside).chain(more).collect::<Vec<_>>(), &mut found);
                let out = contraction.out.0 as usize;
                for (storage, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let expected = if storage == out && !keeps { &memory[out] } else { expected };
                    assert!(found == expected, "storage {storage}, {rows} rows, {columns} columns, {epilogue:?}");
                }
                assert!(found != memory, "something is written");
            }
        }
    }
    plan.epilogues.len()
}

const SMALL: [[usize; 2]; 3] = [[1, 1], [2, 1], [4, 1]];

#[test]
fn cells_have_the_bits_of_their_commands() {
    let lstm = |sizes, peepholes, more: &[(&str, Value)]| check(&recurrent("LSTM", sizes, peepholes, more), &SMALL);
    assert!(SUMS.cut(7 + 12)[0] > 1, "sums are of several chunks");
    assert_eq!(lstm([7, 12], false, &[]), 1);
    assert_eq!(lstm([7, 12], true, &[("clip", 0.5.into())]), 1);
    assert_eq!(lstm([7, 12], false, &[("input_forget", 1i64.into())]), 1);
    // Columns past the end, and tiles of several columns for each work-item.
    let wide = recurrent("LSTM", [30, 40], true, &[]);
    assert_eq!(check(&wide, &[[2, 1], [8, 2], [8, 4], [16, 4]]), 1);
    for form in [0i64, 1] {
        let gru = recurrent("GRU", [9, 20], false, &[("linear_before_reset", form.into())]);
        assert_eq!(check(&gru, &SMALL), if form == 0 { 2 } else { 1 });
    }
    assert_eq!(check(&spectrum(), &[[1, 1], [4, 1], [8, 1]]), 1);
}

/// They have a kernel of their own, which has no place for what goes on.
#[test]
fn rounded_operands_go_on_alone() {
    let fitting = |plan: &Plan| {
        let fits = |epilogue: &&Epilogue| match &plan.commands[epilogue.contraction] {
            Command::Contract(contraction) => fits(contraction, epilogue),
            other => panic!("{other:?}"),
        };
        (plan.epilogues.iter().filter(fits).count(), plan.epilogues.len())
    };
    for plan in [recurrent("LSTM", [7, 12], false, &[]), spectrum()] {
        assert_eq!(fitting(&plan), (1, 1));
        assert_eq!(fitting(&plan.with_precision(Precision::Bf16)), (0, 1));
    }
}
