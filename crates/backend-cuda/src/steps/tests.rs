//! Steps keep what commands promise, and there are few of them.

use super::*;
use lanes_core::plan::{Precision, Region, Touch};
use lanes_model::onnx::build::{LstmStack, ModelBuilder};
use lanes_model::{ImportOptions, Tensor, load_bytes, lower::Lowered};
use lanes_tests::random;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Nodes that stand before those of commands, in these tests: what goes up, and the input of each port.
const FIRST: usize = 4;

/// The nodes that come before each, whatever comes between. [`FIRST`] stand before them.
fn before(steps: &Steps) -> Vec<BTreeSet<usize>> {
    let mut all = vec![BTreeSet::new(); FIRST];
    for (_, after) in steps {
        let mut mine = BTreeSet::new();
        for &earlier in after {
            mine.insert(earlier);
            mine.extend(&all[earlier]);
        }
        all.push(mine);
    }
    all
}

/// Nodes of each command: none for zeros that are kept.
fn nodes_of(plan: &Checked<'_>, parts: &[Part], steps: &Steps) -> Vec<Option<usize>> {
    let mut found = vec![None; plan.plan().commands.len()];
    let mut put = |at: usize, node: usize| assert_eq!(found[at].replace(node), None, "command {at} is done twice");
    for (node, (step, _)) in steps.iter().enumerate() {
        let node = FIRST + node;
        match step {
            Step::Moves(all) => all.iter().for_each(|&at| put(at, node)),
            Step::Pack(_) => {}
            Step::Command(at) => put(*at, node),
            Step::Cell(epilogue) => {
                let epilogue = &plan.plan().epilogues[*epilogue];
                put(epilogue.contraction, node);
                put(epilogue.dispatch, node);
                let is_stored = |at: &usize| parts[*at] == Part::Written(epilogue.dispatch);
                (0..parts.len()).filter(is_stored).for_each(|at| put(at, node));
            }
        }
    }
    for (at, part) in parts.iter().enumerate() {
        assert_eq!(found[at].is_none(), matches!(part, Part::Kept | Part::Read), "command {at}");
    }
    found
}

/// What must hold of any plan's steps.
fn check(plan: &Checked<'_>, max_seats: usize) {
    let parts = parts(plan, max_seats);
    let layout = layout(plan, &parts, max_seats).unwrap();
    let hazards = Hazards::with_layout(plan, &layout);
    let commands = &plan.plan().commands;
    let reports: Vec<bool> = commands.iter().map(|command| matches!(command, Command::Dispatch { .. })).collect();
    let (up, inputs): (usize, Vec<Option<usize>>) = (0, (1..FIRST).map(Some).collect());
    let rows = Rows::of(plan, &parts);
    let states = States::of(plan, &parts, &rows);
    let turn = Commands { plan, hazards: &hazards, parts: &parts, rows: &rows, reports: &reports, states: &states };
    let (steps, told) = turn.steps(FIRST, Some(up), &inputs);
    let behind = turn.behind_rows();
    let (before, nodes) = (before(&steps), nodes_of(plan, &parts, &steps));
    let Rows { owner_of: packs, handed, .. } = &rows;
    assert_eq!(told, nodes);
    // Who finds its rows before it waits comes after a node that has waited for them.
    for at in (0..commands.len()).filter(|&at| behind[at]) {
        let mut between = steps[nodes[at].expect("it has a node") - FIRST].1.iter();
        assert!(
            between.any(|&earlier| before[earlier].contains(&up)),
            "command {at} may begin before its rows are there"
        );
    }
    // By command: all that come before it, by way of what is left out too.
    let mut all_before: Vec<BTreeSet<usize>> = Vec::new();
    for at in 0..commands.len() {
        let direct = hazards.before(at).iter().map(|&earlier| earlier as usize);
        let by_way = direct.clone().flat_map(|earlier| all_before[earlier].iter().copied());
        all_before.push(direct.clone().chain(by_way).collect());
        for &earlier in &all_before[at] {
            let (Some(first), Some(then)) = (nodes[earlier], nodes[at]) else { continue };
            let is_one = |&(a, b): &(usize, usize)| match (parts[a], parts[b]) {
                (Part::Early(late), _) if late == b => true,
                (Part::Early(late), Part::Written(cell)) => late == cell,
                (Part::Cell(_), Part::Written(cell)) => cell == a,
                _ => false,
            };
            let both = is_one(&(earlier, at));
            assert!(before[then].contains(&first) || (both && first == then), "command {earlier} comes before {at}");
        }
        // What it reads of the host is there.
        let Some(node) = nodes[at] else { continue };
        for touch in commands[at].touches() {
            let needed = match touch.place {
                Place::Storage(id) => match plan.plan().storages[id.0 as usize] {
                    Storage::Input { port, .. } | Storage::SharedInput { port, .. } => inputs[port],
                    _ => None,
                },
                Place::RowRead(_) | Place::RowWritten(_) => Some(up),
            };
            assert!(needed.is_none_or(|needed| before[node].contains(&needed)), "command {at} comes after {needed:?}");
        }
        assert!(!reports[at] || before[node].contains(&up), "command {at} finds its record cleared");
        assert!(!states.by_row[at] || before[node].contains(&up), "command {at} finds its rows");
        // Rows are packed, or handed on, when all that they are of is written, and before they are read.
        if let Some(owner) = packs[at] {
            let packer = steps.iter().position(|(step, _)| match step {
                Step::Pack(launch) => rows.launches[*launch].contains(&owner),
                _ => false,
            });
            let packer = packer.map(|step| FIRST + step);
            assert!(packer.is_none_or(|packer| before[node].contains(&packer)), "command {at} comes after its rows");
            let (Command::Contract(mine), Command::Contract(first)) = (&commands[at], &commands[owner]) else {
                panic!()
            };
            assert_eq!((&mine.terms, mine.positions), (&first.terms, first.positions));
            for (term, read) in mine.terms.iter().enumerate() {
                let from = handed.iter().find(|handed| (handed.owner, handed.term) == (owner, term));
                if let Some(handed) = from {
                    assert!(
                        before[node].contains(&nodes[handed.maker].unwrap()),
                        "command {at} comes after {handed:?}"
                    );
                    continue;
                }
                let packer = packer.expect("somebody packs");
                // Whether or not the contraction itself waits for it by way of another.
                for earlier in 0..owner {
                    let touches = commands[earlier].touches();
                    let place = Place::Storage(read.storage);
                    let mine = commands[owner].touches();
                    let reads = |region: &Region| {
                        mine.iter().any(|touch| touch.place == place && touch.region.overlaps(region))
                    };
                    let writes = |touch: &Touch| touch.access.writes() && touch.place == place && reads(&touch.region);
                    let Some(writer) = nodes[earlier].filter(|_| touches.iter().any(writes)) else { continue };
                    assert!(before[packer].contains(&writer), "command {earlier} comes before the rows of {at}");
                }
            }
        }
    }
    // A cell writes nowhere that other workgroups of it still read.
    for (at, part) in parts.iter().enumerate() {
        let Part::Cell(epilogue) = part else { continue };
        let read = commands[plan.plan().epilogues[*epilogue].contraction].touches();
        for read in read.iter().filter(|touch| touch.access.reads()) {
            for written in commands[at].touches().iter().filter(|touch| touch.access.writes()) {
                let (Place::Storage(from), Place::Storage(to)) = (read.place, written.place) else { continue };
                let meets = if from == to { read.region.overlaps(&written.region) } else { layout.share(from, to) };
                assert!(!meets, "command {at} writes {to:?} where its contraction reads {from:?}");
            }
        }
    }
    // Zeros stay: nobody writes them, and nobody else lies there.
    for (at, command) in commands.iter().enumerate() {
        let Command::Fill { to: (id, region), pattern } = command else { continue };
        if parts[at] != Part::Kept {
            continue;
        }
        assert_eq!(*pattern, 0);
        let others = (0..plan.plan().storages.len() as u32).map(StorageId);
        assert!(others.filter(|other| other != id).all(|other| !layout.share(*id, other)));
        for (other, command) in commands.iter().enumerate().filter(|(other, _)| *other != at) {
            for touch in command.touches().iter().filter(|touch| touch.place == Place::Storage(*id)) {
                let meets = touch.access.writes() && touch.region.overlaps(region);
                assert!(!meets, "command {other} writes the zeros of {at}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn steps_keep_every_order_that_commands_need(seed in any::<u64>(), max_seats in 1usize..70) {
        let (plan, signature) = random::plan(seed);
        check(&plan.clone().check(&signature).unwrap(), max_seats);
        check(&plan.with_precision(Precision::Bf16).check(&signature).unwrap(), max_seats);
    }
}

/// Two contractions that read what a third makes, beside an input: rows that are handed on, shared, and packed behind others.
#[test]
fn what_contractions_make_is_handed_to_all_that_read_it() {
    let (mut handed, mut shared) = (0, 0);
    for seed in 0..60 {
        for is_copied in [false, true] {
            let (plan, signature) = lanes_tests::rounded::chained(seed, is_copied);
            let plan = plan.check(&signature).unwrap();
            check(&plan, 33);
            let rows = Rows::of(&plan, &parts(&plan, 33));
            assert!(!is_copied || rows.handed.is_empty(), "a copy makes them");
            handed += rows.handed.len();
            shared +=
                rows.owner_of.iter().enumerate().filter(|(at, owner)| owner.is_some_and(|owner| owner != *at)).count();
        }
    }
    assert!(handed > 20, "{handed} of 60");
    assert_eq!(shared, 120, "the second reader reads what the first one does");
}

fn lowered(model: Vec<u8>) -> Lowered {
    let model = load_bytes(model, "model", &ImportOptions::default()).expect("it imports");
    lanes_model::lower::lower(&model).expect("it lowers")
}

#[test]
fn a_stack_of_cells_is_a_node_for_each() {
    let Lowered { plan, signature, .. } = lowered(LstmStack::random(3, 8, 1).encode());
    let plan = plan.check(&signature).unwrap();
    check(&plan, 64);
    let lines = outline(&plan, 64).unwrap();
    let cell = |line: &&String| line.contains("LSTM_next_hidden") && line.contains(" with ");
    assert_eq!(lines.iter().filter(cell).count(), 3, "{lines:#?}");
    // Linear, cells, linear: cells read and write states where they lie.
    assert_eq!(lines.len(), 1 + 3 + 1, "{lines:#?}");
    // The first cell comes after the first linear node, which needs no rows; those behind it find theirs there.
    let parts = parts(&plan, 64);
    let layout = layout(&plan, &parts, 64).unwrap();
    // Nor is there a copy of states.
    let copies = plan.plan().commands.iter().filter_map(|command| match command {
        Command::Gather { to: (to, _), .. } => Some(layout.start(*to)),
        _ => None,
    });
    assert_eq!(copies.collect::<Vec<_>>(), [None; 6]);
    let hazards = Hazards::with_layout(&plan, &layout);
    let rows = Rows::of(&plan, &parts);
    let states = States::of(&plan, &parts, &rows);
    let reports = vec![false; parts.len()];
    let turn =
        Commands { plan: &plan, hazards: &hazards, parts: &parts, rows: &rows, reports: &reports, states: &states };
    let cells = turn.behind_rows().into_iter().zip(&parts).filter(|(_, part)| matches!(part, Part::Cell(_)));
    assert_eq!(cells.map(|(behind, _)| behind).collect::<Vec<_>>(), [false, true, true]);
}

#[test]
fn rounded_rows_are_a_node_before_all_cells() {
    let Lowered { plan, signature, .. } = lowered(LstmStack::random(3, 8, 1).encode());
    let cells = |precision| {
        let plan = plan.clone().with_precision(precision);
        let plan = plan.check(&signature).unwrap();
        check(&plan, 64);
        let is_cell = |part: &&Part| matches!(part, Part::Cell(_) | Part::Early(_));
        let nodes = outline(&plan, 64).unwrap().len();
        (plan.plan().epilogues.len(), parts(&plan, 64).iter().filter(is_cell).count(), nodes)
    };
    let ((epilogues, fused, nodes), rounded) = (cells(Precision::F32), cells(Precision::Bf16));
    assert_eq!((epilogues, fused), (3, 6));
    // Inputs are packed, and the states of all cells, by one launch; what a layer gives the next one it hands on.
    assert_eq!(rounded, (3, 6, nodes + 1));
}

#[test]
fn zeros_around_what_a_convolution_reads_are_no_nodes() {
    let kernel = Tensor::from_vec(vec![4, 4, 3], (0..48).map(|at| at as f32).collect());
    let model = ModelBuilder::new(18)
        .input("x", lanes_core::DType::F32, &["batch", "4", "10"])
        .tensor("w", &kernel)
        .node("Conv", &["x", "w"], &["a"], &[("pads", [1i64, 1].into())])
        .node("Relu", &["a"], &["b"], &[])
        .node("Conv", &["b", "w"], &["y"], &[("pads", [1i64, 1].into())])
        .output("y", lanes_core::DType::F32, &["batch", "4", "10"]);
    let Lowered { plan, signature, .. } = lowered(model.encode());
    let checked = plan.check(&signature).unwrap();
    check(&checked, 9);
    let fills = |parts: &[Part]| parts.iter().filter(|part| **part == Part::Kept).count();
    assert_eq!(fills(&parts(&checked, 9)), 4);
    assert_eq!(fills(&parts(&checked, usize::MAX >> 8)), 0, "they would take too much");
    // A border of something else is filled each time.
    let mut other = plan.clone();
    for command in &mut other.commands {
        if let Command::Fill { pattern, .. } = command {
            *pattern = 1;
        }
    }
    assert_eq!(fills(&parts(&other.check(&signature).unwrap(), 9)), 0);
    // So is one that somebody writes.
    let mut other = plan;
    let again = other.commands.iter().find(|command| matches!(command, Command::Fill { .. })).cloned();
    other.commands.extend(again);
    assert_eq!(fills(&parts(&other.check(&signature).unwrap(), 9)), 3);
}
