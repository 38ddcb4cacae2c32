//! Launch geometry, evaluated on the host.

mod common;

use common::{kernel, specialise};
use loom_compiler::launch::{Geometry, LaunchError};

fn launch(parameters: &str, ops: &str, x: &str) -> String {
    format!(
        "config.def @items = 32 : index\nfunc.def pure @round_up(%n: index, %to: index) -> (index) {{\n\
         %one = index.constant 1 : index\n%less = index.sub %to, %one : index\n%sum = index.add %n, %less : index\n\
         %r = index.div %sum, %to : index\nfunc.return %r : index\n}}\n\
         kernel.def @k({parameters}) {{\n{ops}\nkernel.launch.config workgroups({x}, 2, 1) workgroup_size(4, 2, 1) : index\n\
         }} launch() {{\nkernel.return\n}}\n"
    )
}

fn count(source: &str, workload: &[u64]) -> Result<u32, LaunchError> {
    kernel(source, "k", &[]).launch.geometry(workload).map(|geometry| geometry.workgroups[0])
}

#[test]
fn rounds_up_through_a_function_and_config() {
    let source = launch(
        "%n: index",
        "%items = config.get @items : index\n%g = func.call pure @round_up(%n, %items) : (index, index) -> (index)",
        "%g",
    );
    let program = kernel(&source, "k", &[]).launch;
    assert_eq!(program.geometry(&[65]), Ok(Geometry { workgroups: [3, 2, 1], workgroup_size: [4, 2, 1] }));
    assert_eq!(count(&source, &[0]), Ok(0));
    assert_eq!(count(&source, &[64]), Ok(2));
    let bound = kernel(&source, "k", &[("@items", "10")]).launch;
    assert_eq!(bound.geometry(&[65]).unwrap().workgroups, [7, 2, 1]);
}

#[test]
fn index_is_64_bits_and_counts_32() {
    let source = launch("%n: index", "%big = index.constant 4294967296 : index\n%g = index.div %n, %big : index", "%g");
    assert_eq!(count(&source, &[7 << 32]), Ok(7));
    assert_eq!(count(&source, &[u64::from(u32::MAX) << 32]), Ok(u32::MAX));
    let plain = launch("%n: index", "", "%n");
    assert_eq!(count(&plain, &[1 << 32]), Err(LaunchError::Count { axis: 0, found: 1 << 32 }));
    assert_eq!(count(&plain, &[u64::MAX]), Err(LaunchError::Count { axis: 0, found: -1 }));
}

#[test]
fn slots_hold_bits_in_their_low_end() {
    let source = launch("%n: i8", "%g = index.cast %n : i8 to index", "%g");
    assert_eq!(count(&source, &[0xffff_ff07]), Ok(7));
    let floats = launch("%x: f32", "%i = scalar.fptosi %x : f32 to i32\n%g = index.cast %i : i32 to index", "%g");
    assert_eq!(count(&floats, &[u64::from(6.75f32.to_bits()) | 1 << 40]), Ok(6));
    let offsets = launch("%o: offset", "%g = index.cast %o : offset to index", "%g");
    assert_eq!(count(&offsets, &[5]), Ok(5));
    assert_eq!(count(&offsets, &[1 << 63]), Err(LaunchError::Offset { argument: 0, found: 1 << 63 }));
    assert_eq!(count(&offsets, &[]), Err(LaunchError::Arguments { expected: 1, found: 0 }));
    assert_eq!(count(&offsets, &[1, 2]), Err(LaunchError::Arguments { expected: 1, found: 2 }));
}

#[test]
fn structured_control_flow() {
    let cond = launch(
        "%n: index",
        "%c = index.constant 10 : index\n%small = index.cmp slt, %n, %c : index\n%g = scf.if %small -> (index) {\nscf.yield %n : index\n} else {\n%h = index.div %n, %c : index\nscf.yield %h : index\n}",
        "%g",
    );
    assert_eq!((count(&cond, &[9]), count(&cond, &[95])), (Ok(9), Ok(9)));
    // Triangular numbers, with both carried values used.
    let loops = launch(
        "%n: index",
        "%z = index.constant 0 : index\n%o = index.constant 1 : index\n%g, %last = scf.for %i = [%z to %n step %o](%s = %z, %p = %o : index, index) -> (index, index) {\n%t = index.add %s, %i : index\nscf.yield %t, %s : index, index\n}\n%u = index.sub %g, %last : index",
        "%u",
    );
    assert_eq!(count(&loops, &[5]), Ok(4));
    let halving = launch(
        "%n: index",
        "%z = index.constant 0 : index\n%o = index.constant 1 : index\n%two = index.constant 2 : index\n\
         %m, %g = scf.while(%a = %n, %k = %z : index, index) -> (index, index) {\n%go = index.cmp sgt, %a, %o : index\nscf.condition %go, %a, %k : i1, index, index\n} do(%b: index, %l: index) {\n%h = index.div %b, %two : index\n%l2 = index.add %l, %o : index\nscf.yield %h, %l2 : index, index\n}",
        "%g",
    );
    assert_eq!((count(&halving, &[1]), count(&halving, &[1000])), (Ok(0), Ok(9)));
    let table = launch(
        "%n: index",
        "%a = index.constant 40 : index\n%b = index.constant 50 : index\n%c = index.constant 60 : index\n\
         %g = scf.lookup %n { 0 = (%a), 7 = (%b) } default(%c) : index, index\n\
         %h = scf.switch %n -> (index) { case 1 { scf.yield %a : index } default { scf.yield %g : index } }",
        "%h",
    );
    assert_eq!([0, 1, 7, 8].map(|n| count(&table, &[n])), [Ok(40), Ok(40), Ok(50), Ok(60)]);
}

#[test]
fn a_program_that_does_not_end_is_an_error() {
    let source =
        launch("%n: index", "%t = scalar.constant true : i1\nscf.while {\nscf.condition %t : i1\n} do {\n}", "%n");
    assert_eq!(count(&source, &[1]), Err(LaunchError::Steps));
}

#[test]
fn the_workgroup_size_must_be_known() {
    let source = launch("%n: index", "", "1").replace("workgroup_size(4", "workgroup_size(%n");
    assert!(specialise(&source, "k", &[]).is_err());
}
