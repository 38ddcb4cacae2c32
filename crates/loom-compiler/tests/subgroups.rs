//! Subgroups: how wide they are, and what their work-items tell each other; results worked out by hand.

mod common;

use common::{Bound, kernel, run, specialise};

/// A kernel of one workgroup of `items` along x, with `records` before it, that stores `%r`, an i32, per item.
fn text(records: &str, head: &str, items: usize, ops: &str) -> String {
    format!(
        "{records}\nkernel.def {head} @k() {{\n  %one = index.constant 1 : index\n  %items = index.constant {items} : index\n  \
         kernel.launch.config workgroups(%one, %one, %one) workgroup_size(%items, %one, %one) : index\n}} launch(%b: buffer) {{\n  \
         %base = index.constant 0 : offset\n  %v = buffer.view %b[%base] : buffer -> view<{items}xi32>\n  \
         %id = kernel.workitem.id<x> : index\n  %x = index.cast %id : index to i32\n{ops}\n  \
         view.store %r, %v[%id] : i32, view<{items}xi32>\n  kernel.return\n}}\n"
    )
}

#[track_caller]
fn results(source: &str, items: usize) -> Vec<i32> {
    let kernel = kernel(source, "k", &[]);
    let mut bound = [Bound::zeros(4 * items)];
    run(&kernel, &[], &mut bound).unwrap();
    bound[0].to_i32s()
}

const WIDE: &str = "amdgpu.target<gfx9.4-generic> @wide {subgroup_size = 64}";

#[test]
fn a_target_record_sets_the_width() {
    let ops = "%lane = kernel.subgroup.lane.id : index\n%sub = kernel.subgroup.id : index\n\
               %size = kernel.subgroup.size : index\n%same = target.subgroup.size : index\n%count = kernel.subgroup.count : index\n\
               %k = index.constant 1000 : index\n%a = index.madd %sub, %k, %lane : index\n%d = index.sub %size, %same : index\n\
               %m = index.constant 100000 : index\n%b0 = index.madd %count, %m, %a : index\n%c = index.add %b0, %d : index\n\
               %r = index.cast %c : index to i32";
    let narrow = results(&text("", "", 130, ops), 130);
    assert_eq!([narrow[0], narrow[31], narrow[32], narrow[129]], [500000, 500031, 501000, 504001]);
    let wide = results(&text(WIDE, "target(@wide)", 130, ops), 130);
    assert_eq!([wide[0], wide[31], wide[32], wide[64], wide[129]], [300000, 300031, 300032, 301000, 302001]);
    // Whatever else a record says, and if it says nothing.
    for record in [
        "spirv.target<vulkan1_3> @wide {abi = hal_kernel}",
        "target.generic<reference> @wide {contract_set_key = \"a.b\", index_bitwidth = 64, memory_space_global = 1}",
        "target.decl @wide",
        "amdgpu.target<gfx1100> @wide {}",
        "amdgpu.target<gfx11-generic> @wide {subgroup_size = 32, max_workgroup_size_x = 1024}",
    ] {
        assert_eq!(results(&text(record, "target(@wide)", 130, ops), 130), narrow, "{record}");
    }
}

#[test]
fn the_launch_region_knows_the_width() {
    let source = format!(
        "{WIDE}\nkernel.def target(@wide) @k() {{\n  %one = index.constant 1 : index\n  %size = target.subgroup.size : index\n  \
         kernel.launch.config workgroups(%one, %one, %one) workgroup_size(%size, %one, %one) : index\n}} launch() {{\n  kernel.return\n}}\n"
    );
    let kernel = kernel(&source, "k", &[]);
    assert_eq!((kernel.workgroup_size, kernel.subgroup_size), ([64, 1, 1], 64));
}

#[test]
fn wide_subgroups_shuffle_and_reduce_as_one() {
    let shuffle = |mode: &str, offset: i32, width: i32| {
        let ops = format!(
            "%o = scalar.constant {offset} : i32\n%w = scalar.constant {width} : i32\n\
             %s, %ok = kernel.subgroup.shuffle<{mode}> %x, %o, %w : i32, i32, i32\n%none = scalar.constant -1 : i32\n\
             %r = scf.select %ok, %s, %none : i32"
        );
        results(&text(WIDE, "target(@wide)", 64, &ops), 64)
    };
    assert_eq!(shuffle("xor", 32, 64), (0..64).map(|i| i ^ 32).collect::<Vec<_>>());
    assert_eq!(shuffle("xor", 32, 32), vec![-1; 64]);
    assert_eq!(shuffle("down", 40, 64), (0..64).map(|i| if i < 24 { i + 40 } else { -1 }).collect::<Vec<_>>());
    assert_eq!(shuffle("up", 3, 16), (0..64).map(|i| if i % 16 >= 3 { i - 3 } else { -1 }).collect::<Vec<_>>());
    assert_eq!(shuffle("index", 1, 2), (0..64).map(|i| i | 1).collect::<Vec<_>>());
    let sum = "%r = kernel.subgroup.reduce<addi> %x : i32";
    assert_eq!(results(&text(WIDE, "target(@wide)", 64, sum), 64), vec![2016; 64]);
    // A partial last subgroup leaves out the lanes that it lacks.
    let partial = results(&text(WIDE, "target(@wide)", 70, sum), 70);
    assert_eq!((partial[0], partial[64], partial[69]), (2016, 399, 399));
    let ends = "%r = kernel.subgroup.reduce<addi> %x {cluster_size = 2, cluster_stride = 32} : i32";
    assert_eq!(
        results(&text(WIDE, "target(@wide)", 64, ends), 64),
        (0..64).map(|i| i % 32 * 2 + 32).collect::<Vec<_>>()
    );
}

#[test]
fn functions_are_for_the_width_of_their_record() {
    let function = |record: &str| {
        format!(
            "{WIDE}\namdgpu.target<gfx1100> @narrow {{subgroup_size = 32}}\nfunc.def target(@{record}) @size() -> (i32) {{\n  \
             %s = kernel.subgroup.size : index\n  %i = index.cast %s : index to i32\n  func.return %i : i32\n}}"
        )
    };
    let call = "%r = func.call @size() : () -> (i32)";
    assert_eq!(results(&text(&function("wide"), "target(@wide)", 2, call), 2), [64, 64]);
    let refused = specialise(&text(&function("wide"), "target(@narrow)", 2, call), "k", &[]).unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("the function is for subgroups of 64 work-items, the kernel has those of 32"), "{said}");
}
