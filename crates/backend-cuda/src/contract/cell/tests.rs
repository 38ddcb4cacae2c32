//! Kernels of both against one after the other, on the interpreter, bit by bit.

use super::*;
use crate::contract::{self, SUMS, Tile};
use crate::image;
use crate::queue::{block_bytes, write_block};
use crate::writer::{Hand, Seating};
use lanes_core::DType;
use lanes_core::lanes::{RowId, SeatRows};
use lanes_core::plan::{Argument, Command, Plan, Precision, Scalar, Storage, StorageId};
use lanes_model::onnx::build::{ModelBuilder, Value};
use lanes_model::{ImportOptions, Tensor, load_bytes};
use loom_compiler::interp::{self, Limits};
use loom_compiler::ir::Kernel;

const SEATS: usize = 3;

/// Rows of a state.
const ROWS: usize = 8;

/// Rows that seats read and write, where they lie in states; the last seat only fills the bucket.
const OCCUPIED: [SeatRows; SEATS - 1] =
    [SeatRows { read: RowId(6), write: RowId(2) }, SeatRows { read: RowId(0), write: RowId(7) }];

/// The row that a seat reads: that of the first one stands in.
fn row_read(seat: usize) -> usize {
    OCCUPIED.get(seat).unwrap_or(&OCCUPIED[0]).read.0 as usize
}

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

fn compiled(name: &str, text: String) -> Kernel {
    let module = image::text("contract.loom", text.clone(), name).module();
    let module = module.unwrap_or_else(|error| panic!("{error}\n{text}"));
    module.specialise(name, &Default::default()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Either kind of products.
#[derive(Clone, Copy, Debug)]
enum Tiled {
    Floats(Tile),
    Matrices(matrices::Tile),
}

/// Every epilogue of `plan` in both ways: how many there are.
fn check(plan: &Plan, tiles: &[Tiled]) -> usize {
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
        let (n, k) = (contraction.n, contraction.k());
        let [weights, bias, rows, handed, block] = [0, 1, 2, 3, 4].map(|at| memory.len() + at);
        // The last result goes on behind five elements of another's rows.
        let result = epilogue.results.len() - 1;
        let (units, row) = (epilogue.units, epilogue.units + 5);
        let hand = Hand { result, from: 0, count: units, start: 5, row };
        memory.push(Vec::new());
        memory.push(contraction.bias.iter().flat_map(|bias| bytemuck::cast_slice(bias).to_vec()).collect());
        memory.push(vec![0; SEATS * contraction.positions * matrices::row_bytes(contraction)]);
        memory.push(vec![0; SEATS * contraction.positions * row * 2]);
        memory.push(vec![0; block_bytes(SEATS)]);
        write_block(&mut memory[block], SEATS, SEATS, &OCCUPIED, 1);
        // The last seat has what the first one has, as where rows are looked up.
        for (storage, bytes) in plan.storages.iter().zip(&mut memory).filter(|(storage, _)| !storage.is_shared()) {
            bytes.copy_within(..storage.bytes(), (SEATS - 1) * storage.bytes());
        }
        let at = |id: StorageId| Some(id.0 as usize);
        let terms: Vec<usize> = contraction.terms.iter().map(|term| seat(term.storage)).collect();
        let out = seat(contraction.out);
        // What a contraction, and what goes on with it in the same kernel, make of memory.
        let run = |tile: Tiled,
                   cell: Option<Cell<'_>>,
                   hands: &[Hand],
                   states: (&[StorageId], bool),
                   memory: &mut Vec<Vec<u8>>| {
            let (states, is_there) = states;
            let seating = Seating { max_seats: SEATS, rows: ROWS, states, is_there };
            let order = match cell {
                Some(_) => side_by_side(&contraction.weights, n, epilogue.units),
                None => contraction.weights.to_vec(),
            };
            let of_terms = contraction.terms.iter().map(|term| at(term.storage));
            let (text, lefts) = match tile {
                Tiled::Floats(tile) => {
                    memory[weights] = contract::packed_bytes(&order, k, n).into_owned();
                    (contract::text(contraction, &terms, out, tile, seating, cell, hands), of_terms.collect())
                }
                Tiled::Matrices(tile) => {
                    memory[weights] = matrices::packed_bytes(&order, k, n);
                    let packed = matrices::Packed { contraction, seat_elements: &terms, handed: &[] };
                    let pack = compiled("pack", matrices::pack_text(&[packed], seating));
                    let given = std::iter::once(None).chain(of_terms).chain([Some(rows)]);
                    let given = given.chain(
                        (contraction.terms.iter().any(|term| states.contains(&term.storage))).then_some(Some(block)),
                    );
                    launch(&pack, &given.collect::<Vec<_>>(), memory);
                    (matrices::text(contraction, out, tile, seating, cell, hands), vec![Some(rows)])
                }
            };
            let bias = contraction.bias.as_ref().map(|_| Some(bias));
            let more = cell.iter().flat_map(|cell| places(cell.epilogue)).map(|elements| at(elements.storage));
            let given = std::iter::once(None).chain(lefts).chain([Some(weights)]).chain(bias);
            let given = given.chain([at(contraction.out)]).chain(more).chain(hands.iter().map(|_| Some(handed)));
            let given = given.chain((!states.is_empty()).then_some(Some(block))).collect::<Vec<_>>();
            launch(&compiled("contract", text.expect("a text")), &given, memory);
        };
        let mut expected = memory.clone();
        run(tiles[0], None, &[], (&[], false), &mut expected);
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
        let divides = |tile: &&Tiled| match tile {
            Tiled::Matrices(tile) => tile.divides(k),
            Tiled::Floats(_) => true,
        };
        for &tile in tiles.iter().filter(divides) {
            for keeps in [false, true] {
                let mut found = memory.clone();
                let hands: &[Hand] = if keeps { &[hand] } else { &[] };
                let cell = Cell { epilogue, seat_elements: &seat_elements, keeps };
                run(tile, Some(cell), hands, (&[], false), &mut found);
                let lies = &epilogue.results[result];
                let all = (0..SEATS).flat_map(|s| (0..contraction.positions).map(move |p| (s, p)));
                for (at, (seat_at, position)) in all.enumerate().filter(|_| keeps) {
                    for unit in 0..units {
                        let of = lies.offset + position * lies.position_stride + unit * lies.unit_stride;
                        let from = (seat_at * seat(lies.storage) + of) * 4;
                        let value: f32 = bytemuck::pod_read_unaligned(&found[lies.storage.0 as usize][from..from + 4]);
                        let to = (at * row + 5 + unit) * 2;
                        let bits = half::bf16::from_f32(value).to_bits().to_le_bytes();
                        assert_eq!(found[handed][to..to + 2], bits, "row {at}, unit {unit}, {tile:?}");
                    }
                }
                let out = contraction.out.0 as usize;
                for storage in 0..plan.storages.len() {
                    let expected = if storage == out && !keeps { &memory[out] } else { &expected[storage] };
                    assert!(found[storage] == *expected, "storage {storage}, {tile:?}, {epilogue:?}");
                }
                assert!(found[..weights] != memory[..weights], "something is written");
            }
            // What seats have of their own, and what is made, by rows of states.
            let is_own = |id: &StorageId| matches!(plan.storages[id.0 as usize], Storage::Input { .. });
            let read = contraction.terms.iter().map(|term| term.storage);
            let read = read.chain(places(epilogue).skip(epilogue.results.len()).map(|place| place.storage));
            let read: Vec<StorageId> = read.filter(is_own).collect();
            let written: Vec<StorageId> = epilogue.results.iter().map(|to| to.storage).collect();
            let states = [&read[..], &written].concat();
            let mut found = memory.clone();
            for id in &states {
                let (at, bytes) = (id.0 as usize, plan.storages[id.0 as usize].bytes());
                found[at] = bytemuck::cast_slice(&floats.some(ROWS * bytes / 4)).to_vec();
                for seat in (0..SEATS).filter(|_| read.contains(id)) {
                    found[at][row_read(seat) * bytes..][..bytes].copy_from_slice(&memory[at][seat * bytes..][..bytes]);
                }
            }
            let mut after = found.clone();
            for (seat, rows) in OCCUPIED.iter().enumerate() {
                for to in &epilogue.results {
                    let all = (0..contraction.positions).flat_map(|p| (0..units).map(move |u| (p, u)));
                    for (position, unit) in all {
                        let (id, bytes) = (to.storage.0 as usize, plan.storages[to.storage.0 as usize].bytes());
                        let own = (to.offset + position * to.position_stride + unit * to.unit_stride) * 4;
                        after[id][rows.write.0 as usize * bytes + own..][..4]
                            .copy_from_slice(&expected[id][seat * bytes + own..][..4]);
                    }
                }
            }
            for is_there in [false, true] {
                let mut found = found.clone();
                let cell = Cell { epilogue, seat_elements: &seat_elements, keeps: false };
                run(tile, Some(cell), &[], (&states, is_there), &mut found);
                assert!(found[..weights] == after[..weights], "rows of states, {is_there}, {tile:?}, {epilogue:?}");
            }
        }
    }
    plan.epilogues.len()
}

fn floats(tiles: &[[usize; 2]]) -> Vec<Tiled> {
    tiles.iter().map(|&[rows, columns]| Tiled::Floats(Tile { rows, columns })).collect()
}

const SMALL: [[usize; 2]; 3] = [[1, 1], [2, 1], [4, 1]];

#[test]
fn cells_have_the_bits_of_their_commands() {
    let small = floats(&SMALL);
    let lstm = |sizes, peepholes, more: &[(&str, Value)]| check(&recurrent("LSTM", sizes, peepholes, more), &small);
    assert!(SUMS.cut(7 + 12)[0] > 1, "sums are of several chunks");
    assert_eq!(lstm([7, 12], false, &[]), 1);
    assert_eq!(lstm([7, 12], true, &[("clip", 0.5.into())]), 1);
    assert_eq!(lstm([7, 12], false, &[("input_forget", 1i64.into())]), 1);
    // Columns past the end, and tiles of several columns for each work-item.
    let wide = recurrent("LSTM", [30, 40], true, &[]);
    assert_eq!(check(&wide, &floats(&[[2, 1], [8, 2], [8, 4], [16, 4]])), 1);
    for form in [0i64, 1] {
        let gru = recurrent("GRU", [9, 20], false, &[("linear_before_reset", form.into())]);
        assert_eq!(check(&gru, &small), if form == 0 { 2 } else { 1 });
    }
    assert_eq!(check(&spectrum(), &floats(&[[1, 1], [4, 1], [8, 1]])), 1);
}

#[test]
fn cells_of_rounded_operands_have_the_bits_of_their_commands() {
    let tiles = matrices::TILES.map(Tiled::Matrices);
    let rounded = |plan: Plan| plan.with_precision(Precision::Bf16);
    // Of one stage and of several, with columns past the end.
    for sizes in [[7, 12], [30, 40], [90, 60]] {
        assert_eq!(check(&rounded(recurrent("LSTM", sizes, true, &[])), &tiles), 1);
    }
    for form in [0i64, 1] {
        let gru = recurrent("GRU", [9, 20], false, &[("linear_before_reset", form.into())]);
        assert_eq!(check(&rounded(gru), &tiles[..6]), if form == 0 { 2 } else { 1 });
    }
    assert_eq!(check(&rounded(spectrum()), &tiles[..6]), 1);
}
