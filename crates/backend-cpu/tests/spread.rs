//! Launches on several threads: the bits, the faults and the budget of one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_cpu::isa::Isa;
use backend_cpu::tile::{Arg, Fault, Team, TileScratch, run_slices};
use backend_cpu::{CpuDevice, CpuOptions};
use lanes_core::compile::KernelSource;
use lanes_core::device::{Device, DeviceError};
use lanes_core::session::Session;
use loom_compiler::Module;
use loom_compiler::launch::Geometry;
use loom_compiler::tile::{CpuImage, Shape, compile};

const THREADS: [usize; 4] = [1, 2, 3, 5];

fn image(text: &str) -> (CpuImage, Geometry) {
    let module = Module::parse("test", text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let kernel = module.specialise("k", &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let image = compile(&kernel).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let geometry = image.launch.geometry(&[]).unwrap();
    (image, geometry)
}

/// A kernel of these workgroups over `%out`, seen as 32-bit integers, and `%more`; `%base`, `%zero` and `%unit` are there.
fn text(groups: [u32; 3], size: [u32; 3], body: &str) -> String {
    let ([gx, gy, gz], [sx, sy, sz]) = (groups, size);
    let all = [groups, size].concat().iter().product::<u32>();
    format!(
        "kernel.def export(\"k\") @k() {{
  kernel.launch.config workgroups({gx}, {gy}, {gz}) workgroup_size({sx}, {sy}, {sz}) : index
}} launch(%turns: index, %n: index, %m: index, %out: buffer, %more: buffer) {{
  %base = index.constant 0 : offset
  %zero = index.constant 0 : index
  %unit = index.constant 1 : index
  %factor = scalar.constant 1664525 : i32
  %one = scalar.constant 1 : i32
  %v = buffer.view %out[%base] : buffer -> view<{all}xi32>
  %w = buffer.view %more[%base] : buffer -> view<{all}xi32>
{body}
  kernel.return
}}
"
    )
}

/// Makes `%sum` of `%x`, an i32, by `turns` turns of `sum * factor + x`.
fn turning(turns: &str) -> String {
    format!(
        "  %sum = scf.for %k = [%zero to {turns} step %unit](%acc = %x : i32) -> (i32) {{
    %scaled = scalar.muli %acc, %factor : i32
    %next = scalar.addi %scaled, %x : i32
    scf.yield %next : i32
  }}
"
    )
}

fn turned(x: i32, turns: u64) -> i32 {
    (0..turns).fold(x, |sum, _| sum.wrapping_mul(1664525).wrapping_add(x))
}

fn team(threads: usize) -> Team {
    let mut team = Team::new(threads, Isa::best()).unwrap();
    team.set_worth(0);
    team
}

type Ran = Result<Vec<Vec<u8>>, Fault>;

/// What `team` makes of the buffers.
fn spread(team: &mut Team, (image, geometry): &(CpuImage, Geometry), scalars: [u64; 3], buffers: &[Vec<u8>]) -> Ran {
    let mut buffers = buffers.to_vec();
    let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
    team.run_slices(&team.kernel(image), geometry, &mut slices, &scalars)?;
    Ok(buffers)
}

/// What [`run_slices`] makes of them, on this thread.
fn alone((image, geometry): &(CpuImage, Geometry), scalars: [u64; 3], buffers: &[Vec<u8>], limit: u64) -> Ran {
    let mut buffers = buffers.to_vec();
    let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
    let mut scratch = TileScratch::default();
    scratch.set_step_limit(limit);
    run_slices(image, geometry, &mut slices, &scalars, &mut scratch)?;
    Ok(buffers)
}

fn words(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Runs it with every number of threads until others have helped, and returns what all have made of zeros: the same.
#[track_caller]
fn equal(kernel: &(CpuImage, Geometry), scalars: [u64; 3], bytes: usize) -> Vec<i32> {
    let zeros = [vec![0; bytes], vec![0; bytes]];
    let expected = alone(kernel, scalars, &zeros, u64::MAX).unwrap();
    for threads in THREADS {
        let mut team = team(threads);
        for round in 0.. {
            assert!(
                spread(&mut team, kernel, scalars, &zeros).unwrap() == expected,
                "{threads} threads, round {round}"
            );
            if threads == 1 && round == 3 || threads > 1 && team.helped() > 3 {
                break;
            }
            assert!(round < 1000, "nobody ever helps");
        }
        assert!(threads > 1 || team.helped() == 0);
    }
    words(&expected[0])
}

#[test]
fn a_line_with_and_without_a_clip() {
    for (clip, items) in [(false, 40_000), (true, 39_123)] {
        let id = "  %i = kernel.workitem.dispatch.id<x> : index\n  %x = index.cast %i : index to i32\n";
        let work = format!("{}  view.store %sum, %v[%i] : i32, view<40000xi32>\n", turning("%turns"));
        let body = if clip {
            format!("{id}  %live = index.cmp ult, %i, %n : index\n  scf.if %live {{\n{work}  }}\n")
        } else {
            format!("{id}{work}")
        };
        let kernel = image(&text([400, 1, 1], [100, 1, 1], &body));
        assert!(matches!(kernel.0.program().shape, Shape::Line { .. }), "{:?}", kernel.0.program().shape);
        assert_eq!(kernel.0.program().clip.is_some(), clip);
        let found = equal(&kernel, [300, items, 0], 160_000);
        for (i, &found) in found.iter().enumerate() {
            assert_eq!(found, if i < items as usize { turned(i as i32, 300) } else { 0 }, "item {i}");
        }
    }
}

#[test]
fn rows_of_which_a_tile_holds_several_and_planes_of_them() {
    let body = format!(
        "  %c = kernel.workitem.dispatch.id<x> : index
  %r = kernel.workgroup.id<y> : index
  %z = kernel.workgroup.id<z> : index
  %columns = index.constant 90 : index
  %rows = index.constant 100 : index
  %live = index.cmp ult, %c, %columns : index
  scf.if %live {{
  %line = index.madd %z, %rows, %r : index
  %i = index.madd %line, %columns, %c : index
  %x = index.cast %i : index to i32
{}  view.store %sum, %v[%i] : i32, view<96000xi32>
  }}
",
        turning("%turns")
    );
    let kernel = image(&text([3, 100, 10], [32, 1, 1], &body));
    assert_eq!(kernel.0.program().shape, Shape::Rows);
    let found = equal(&kernel, [100, 0, 0], 4 * 96_000);
    for (i, &found) in found.iter().enumerate() {
        assert_eq!(found, if i < 90_000 { turned(i as i32, 100) } else { 0 }, "item {i}");
    }
}

/// Rows of the line's own, shorter and longer than a tile, the last of them not whole.
#[test]
fn a_line_that_is_divided() {
    for columns in [700u64, 5000] {
        let body = format!(
            "  %i = kernel.workitem.dispatch.id<x> : index
  %row = index.div %i, %m : index
  %column = index.rem %i, %m : index
  %live = index.cmp ult, %i, %n : index
  scf.if %live {{
  %thousand = index.constant 100000 : index
  %number = index.madd %row, %thousand, %column : index
  %x = index.cast %number : index to i32
{}  view.store %sum, %v[%i] : i32, view<40000xi32>
  }}
",
            turning("%turns")
        );
        let kernel = image(&text([400, 1, 1], [100, 1, 1], &body));
        let Shape::Line { divisor } = kernel.0.program().shape else { panic!("{:?}", kernel.0.program().shape) };
        assert!(divisor.is_some());
        let found = equal(&kernel, [200, 39_123, columns], 160_000);
        for (i, &found) in found.iter().enumerate() {
            let x = i as u64 / columns * 100_000 + i as u64 % columns;
            assert_eq!(found, if i < 39_123 { turned(x as i32, 200) } else { 0 }, "item {i} of rows of {columns}");
        }
    }
}

#[test]
fn groups_of_which_a_tile_holds_several_or_one() {
    for (groups, size) in [([1001, 3, 1], 24), ([40, 3, 2], 1000)] {
        let body = format!(
            "  %l = kernel.workitem.id<x> : index
  %gx = kernel.workgroup.id<x> : index
  %gy = kernel.workgroup.id<y> : index
  %gz = kernel.workgroup.id<z> : index
  %nx = kernel.workgroup.count<x> : index
  %ny = kernel.workgroup.count<y> : index
  %plane = index.madd %gz, %ny, %gy : index
  %g = index.madd %plane, %nx, %gx : index
  %size = index.constant {size} : index
  %i = index.madd %g, %size, %l : index
  %x = index.cast %i : index to i32
{}  %all = kernel.workgroup.reduce<addi> %sum : i32
  view.store %all, %v[%i] : i32, view<{}xi32>
",
            turning("%turns"),
            groups.iter().product::<u32>() * size
        );
        let kernel = image(&text(groups, [size, 1, 1], &body));
        assert_eq!(kernel.0.program().shape, Shape::Groups);
        let items = (groups.iter().product::<u32>() * size) as usize;
        let found = equal(&kernel, [50, 0, 0], 4 * items);
        for (group, found) in found.chunks(size as usize).enumerate() {
            let first = group as i32 * size as i32;
            let sum = (first..first + size as i32).fold(0, |sum: i32, x| sum.wrapping_add(turned(x, 50)));
            assert!(found.iter().all(|&found| found == sum), "workgroup {group}: {found:?}, expected {sum}");
        }
    }
}

/// Three dimensions both ways, workgroup memory that is zero at the start of each, and a barrier.
#[test]
fn a_group_a_tile() {
    let (groups, size) = ([7, 5, 9], [8, 4, 3]);
    let body = format!(
        "  %x0 = kernel.workitem.dispatch.id<x> : index
  %y0 = kernel.workitem.dispatch.id<y> : index
  %z0 = kernel.workitem.dispatch.id<z> : index
  %nx = index.constant 56 : index
  %ny = index.constant 20 : index
  %row = index.madd %z0, %ny, %y0 : index
  %i = index.madd %row, %nx, %x0 : index
  %x = index.cast %i : index to i32
{}  %bytes = index.constant 384 : offset
  %scratch = buffer.alloca %bytes {{base_alignment = 16, memory_space = workgroup}} : buffer
  %s = buffer.view %scratch[%base] : buffer -> view<96xi32>
  %lx = kernel.workitem.id<x> : index
  %ly = kernel.workitem.id<y> : index
  %lz = kernel.workitem.id<z> : index
  %sx = index.constant 8 : index
  %sy = index.constant 4 : index
  %local = index.madd %lz, %sy, %ly : index
  %flat = index.madd %local, %sx, %lx : index
  %held = view.load %s[%flat] : view<96xi32> -> i32
  kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)
  %mixed = scalar.addi %sum, %held : i32
  view.store %mixed, %s[%flat] : i32, view<96xi32>
  kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)
  %last = index.constant 95 : index
  %other = index.sub %last, %flat : index
  %r = view.load %s[%other] : view<96xi32> -> i32
  view.store %r, %v[%i] : i32, view<30240xi32>
",
        turning("%turns")
    );
    let kernel = image(&text(groups, size, &body));
    assert_eq!(kernel.0.program().shape, Shape::Group);
    let found = equal(&kernel, [500, 0, 0], 4 * 30_240);
    for (i, &found) in found.iter().enumerate() {
        let [x, y, z] = [i % 56, i / 56 % 20, i / 1120];
        // The item opposite in its workgroup.
        let [x, y, z] = [x / 8 * 8 + 7 - x % 8, y / 4 * 4 + 3 - y % 4, z / 3 * 3 + 2 - z % 3];
        assert_eq!(found, turned(((z * 20 + y) * 56 + x) as i32, 500), "item {i}");
    }
}

/// 100 workgroups, a tile each. Groups below `%n` take `%turns` turns, the others one; group `%m` and those after it fault
/// as `fault` says.
fn faulty(fault: &str) -> (CpuImage, Geometry) {
    let body = format!(
        "  %column = kernel.workitem.id<x> : index
  %row = kernel.workitem.id<y> : index
  %width = index.constant 32 : index
  %l = index.madd %row, %width, %column : index
  %g = kernel.workgroup.id<x> : index
  %early = index.cmp ult, %g, %n : index
  %mine = scf.select %early, %turns, %unit : index
  %size = index.constant 1024 : index
  %i = index.madd %g, %size, %l : index
  %x = index.cast %i : index to i32
{}  %fine = index.cmp ult, %g, %m : index
{fault}
  %all = kernel.workgroup.reduce<addi> %sum : i32
  view.store %all, %v[%i] : i32, view<102400xi32>
",
        turning("%mine")
    );
    let kernel = image(&text([100, 1, 1], [32, 32, 1], &body));
    assert_eq!(kernel.0.program().shape, Shape::Group);
    kernel
}

const ASSERT: &str = "  kernel.assert %fine \"early\" : i1\n";
/// A store past the end of `%more`.
const OUTSIDE: &str = "  %far = index.constant 500000 : index
  %near = index.rem %i, %size : index
  %away = scf.select %fine, %near, %far : index
  %big = buffer.view %more[%base] : buffer -> view<1000000xi32>
  view.store %x, %big[%away] : i32, view<1000000xi32>\n";

/// That every number of threads tells the fault of one.
#[track_caller]
fn same_fault(kernel: &(CpuImage, Geometry), scalars: [u64; 3], limit: u64) -> Fault {
    let buffers = [vec![0; 409_600], vec![0; 4096]];
    let expected = alone(kernel, scalars, &buffers, limit).unwrap_err();
    for threads in THREADS {
        let mut team = team(threads);
        team.set_step_limit(limit);
        for round in 0.. {
            let found = spread(&mut team, kernel, scalars, &buffers).unwrap_err();
            assert_eq!(found, expected, "{threads} threads");
            if round >= 3 && (threads == 1 || team.helped() > 0) || round > 30 {
                break;
            }
        }
    }
    expected
}

#[test]
fn the_fault_is_that_of_the_lowest_workgroup() {
    for fault in [ASSERT, OUTSIDE] {
        let kernel = faulty(fault);
        for first in [0, 1, 42, 99] {
            // Those before it are slow, so others fault earlier in time.
            let found = same_fault(&kernel, [100, first + 1, first], u64::MAX);
            match found {
                Fault::Assert { item, .. } => assert_eq!(item, [first * 32, 0, 0]),
                Fault::OutOfBounds { index, .. } => assert_eq!(index, 2_000_000),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn of_two_faults_the_earlier_is_told() {
    // The assertion fails from `%m` on, the store from `%n` on: slow below `%n`.
    let second = OUTSIDE.replace("select %fine", "select %early");
    let kernel = faulty(&format!("{ASSERT}{second}"));
    for (assertion, store) in [(10, 60), (60, 10), (0, 1), (1, 0), (98, 99), (99, 98)] {
        match same_fault(&kernel, [100, store, assertion], u64::MAX) {
            Fault::Assert { item, .. } => assert!(assertion < store && item[0] == assertion * 32),
            Fault::OutOfBounds { .. } => assert!(store < assertion),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_fault_ends_what_others_are_at_above_it_and_nothing_below() {
    // Group 0 fails at once; all others would turn for hours.
    let body = "  %g = kernel.workgroup.id<x> : index
  %first = index.cmp eq, %g, %zero : index
  %mine = scf.select %first, %unit, %turns : index
  %x = index.cast %g : index to i32\n"
        .to_owned()
        + &turning("%mine")
        + "  %fine = index.cmp ne, %g, %zero : index\n"
        + ASSERT
        + "  %all = kernel.workgroup.reduce<addi> %sum : i32\n  view.store %all, %v[%g] : i32, view<102400xi32>\n";
    let kernel = image(&text([100, 1, 1], [32, 32, 1], &body));
    let begin = Instant::now();
    let fault = same_fault(&kernel, [1 << 40, 0, 0], u64::MAX);
    assert!(matches!(fault, Fault::Assert { item: [0, 0, 0], .. }), "{fault:?}");
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    // The other way round: the lowest never ends, and its budget is what is told, though others fail at once.
    let kernel = faulty(ASSERT);
    let fault = same_fault(&kernel, [1 << 40, 1, 1], 20_000);
    assert!(matches!(fault, Fault::Steps { limit: 20_000, .. }), "{fault:?}");
}

/// The budget is the launch's: of turns, by the sum over all workgroups, and of tiles.
#[test]
fn the_budget_is_shared() {
    // 50 groups of 300 turns, then 50 of one.
    let kernel = faulty("");
    let buffers = [vec![0; 409_600], vec![0; 4096]];
    let all = 50 * 300 + 50;
    let expected = alone(&kernel, [300, 50, 100], &buffers, all).unwrap();
    for threads in THREADS {
        let mut team = team(threads);
        team.set_step_limit(all);
        for _ in 0..10 {
            assert!(spread(&mut team, &kernel, [300, 50, 100], &buffers).unwrap() == expected);
        }
    }
    for limit in [all - 1, 15_001, 14_999, 300, 1] {
        let fault = same_fault(&kernel, [300, 50, 100], limit);
        assert!(matches!(fault, Fault::Steps { .. }), "{limit}: {fault:?}");
    }
    // A fault at group 60, after 15,011 turns: beyond the budget of those before it, the budget is told.
    let kernel = faulty(ASSERT);
    for (limit, asserted) in [(15_012, true), (15_011, true), (15_010, false), (14_000, false)] {
        let fault = same_fault(&kernel, [300, 50, 60], limit);
        assert_eq!(matches!(fault, Fault::Assert { .. }), asserted, "{limit}: {fault:?}");
    }
    let fault = same_fault(&kernel, [1, 0, 100], 99);
    assert!(matches!(&fault, Fault::Launch { what, .. } if what == "still running after 99 tiles of work-items"));
}

const ORDER: &str = "{ordering = relaxed, scope = device}";

/// A kernel of 50,000 items that does `op` after some turns; `%sum` and the item's number `%i`, `%x` are there.
fn accessing(op: &str) -> (CpuImage, Geometry) {
    let body = format!(
        "  %i = kernel.workitem.dispatch.id<x> : index\n  %x = index.cast %i : index to i32\n{}{op}\n",
        turning("%turns")
    );
    image(&text([500, 1, 1], [100, 1, 1], &body))
}

#[test]
fn atomics_that_commute_are_spread() {
    let numbers = || (0..50_000).map(|x| turned(x, 100));
    let cases: [(&str, i32); 6] = [
        ("addi", numbers().fold(0, i32::wrapping_add)),
        ("minsi", numbers().min().unwrap().min(0)),
        ("maxsi", numbers().max().unwrap().max(0)),
        ("maxui", numbers().map(|x| x as u32).max().unwrap() as i32),
        ("ori", -1),
        ("xori", numbers().fold(0, |a, b| a ^ b)),
    ];
    for (kind, expected) in cases {
        let op = format!("  view.atomic.reduce<{kind}> %sum, %v[%zero] {ORDER} : i32, view<50000xi32>");
        assert_eq!(equal(&accessing(&op), [100, 0, 0], 200_000)[0], expected, "{kind}");
    }
}

/// Whatever shows the order: tickets, the last one to write, sums that round, memory that is read beside.
#[test]
fn kernels_that_show_the_order_stay_on_one_thread() {
    let add = format!("  view.atomic.reduce<addi> %one, %v[%zero] {ORDER} : i32, view<50000xi32>\n");
    let cases = [
        format!(
            "  %t = view.atomic.rmw<addi> %one, %v[%zero] {ORDER} : i32, view<50000xi32>\n  view.store %t, %w[%i] : i32, view<50000xi32>"
        ),
        format!("  view.atomic.store %x, %v[%zero] {ORDER} : i32, view<50000xi32>"),
        format!(
            "  %fv = buffer.view %out[%base] : buffer -> view<50000xf32>\n  %f = scalar.sitofp %sum : i32 to f32\n  \
             view.atomic.reduce<addf> %f, %fv[%zero] {ORDER} : f32, view<50000xf32>"
        ),
        format!(
            "{add}  %seen = view.load %v[%zero] : view<50000xi32> -> i32\n  view.store %seen, %w[%i] : i32, view<50000xi32>"
        ),
        format!("{add}  view.atomic.reduce<xori> %sum, %v[%zero] {ORDER} : i32, view<50000xi32>"),
        format!("  view.store %x, %v[%zero] : i32, view<50000xi32>\n{add}"),
        // Waits until an item of another workgroup has written.
        "  %mine = index.add %i, %unit : index
  %three = index.constant 300 : index
  %behind = index.sub %i, %three : index
  %late = index.cmp uge, %i, %three : index
  %place = scf.select %late, %behind, %zero : index
  %done = scalar.constant 0 : i32
  view.store %one, %v[%i] : i32, view<50000xi32>
  scf.if %late {
    %seen = scf.while(%s = %done : i32) -> (i32) {
      %flag = view.load %v[%place] : view<50000xi32> -> i32
      %wait = scalar.cmpi eq, %flag, %done : i32
      scf.condition %wait, %flag : i1, i32
    } do(%f: i32) {
      scf.yield %f : i32
    }
  }"
        .to_owned(),
    ];
    for op in cases {
        let kernel = accessing(&op);
        let zeros = [vec![0; 200_000], vec![0; 200_000]];
        let expected = alone(&kernel, [100, 0, 0], &zeros, u64::MAX).unwrap();
        let mut team = team(5);
        for _ in 0..3 {
            assert!(spread(&mut team, &kernel, [100, 0, 0], &zeros).unwrap() == expected, "{op}");
        }
        assert_eq!(team.helped(), 0, "{op}");
    }
}

/// Atomics to one argument and loads from another commute, unless the two are the same memory.
#[test]
fn arguments_that_overlap_show_the_order() {
    let op = format!(
        "  view.atomic.reduce<addi> %one, %v[%i] {ORDER} : i32, view<50000xi32>\n  %seen = view.load %w[%i] : view<50000xi32> -> i32\n  \
         %both = scalar.addi %seen, %sum : i32\n  view.store %both, %w[%i] : i32, view<50000xi32>"
    );
    let kernel = accessing(&op);
    equal(&kernel, [100, 0, 0], 200_000);
    let (image, geometry) = &kernel;
    let mut memory = vec![0u8; 200_004];
    for (apart, helps) in [(4, false), (0, false), (100_000, false)] {
        let mut team = team(5);
        let base = memory.as_mut_ptr();
        let args = [
            Arg::Scalar(100),
            Arg::Scalar(0),
            Arg::Scalar(0),
            Arg::Buffer { ptr: base, len: 200_000 },
            Arg::Buffer { ptr: base.wrapping_add(apart), len: 200_004 - apart },
        ];
        for _ in 0..10 {
            // SAFETY: both lie in `memory`, which nobody else touches.
            let ran = unsafe { team.run(&team.kernel(image), geometry, &args) };
            assert_eq!(ran.is_ok(), apart <= 4, "{apart}: {ran:?}");
        }
        assert_eq!(team.helped() > 0, helps);
    }
}

/// A workgroup is 100 items, of 400: by lines that are as long as `Session` lends buffers.
fn source(name: &str, turns: u32) -> KernelSource {
    let text = text(
        [400, 1, 1],
        [100, 1, 1],
        &format!(
            "  %i = kernel.workitem.dispatch.id<x> : index
  %x = view.load %v[%i] : view<40000xi32> -> i32
  %often = index.constant {turns} : index
{}  view.store %sum, %w[%i] : i32, view<40000xi32>\n",
            turning("%often")
        ),
    )
    .replace("export(\"k\") @k", &format!("export(\"{name}\") @{name}"));
    KernelSource::new(format!("{name}.loom"), text, name)
}

fn device(threads: usize) -> Arc<CpuDevice> {
    Arc::new(CpuDevice::open(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap())
}

/// Plans of several commands, submitted by several threads to one device at once, inside `submit` and queued.
#[test]
fn launches_of_plans_that_run_beside_each_other() {
    const BYTES: usize = 160_000;
    for threads in [1, 2, 3] {
        let device = device(threads);
        std::thread::scope(|scope| {
            for caller in 0..4 {
                let device = &device;
                scope.spawn(move || {
                    let opened = Session::builder("test").device(Arc::<CpuDevice>::clone(device));
                    let session = opened.overlap(caller % 2 == 1).open().unwrap();
                    let kernels = session.compile(&[source("heavy", 300), source("light", 1)]).unwrap();
                    let [a, b, c] = ["a", "b", "c"].map(|label| session.allocate(label, BYTES).unwrap());
                    session
                        .record("all", |commands| {
                            let numbers = [0u64; 3];
                            let tmp = commands.scratch("tmp", BYTES)?;
                            commands.dispatch(&kernels[0], (), &numbers, &[a.read(), b.write()])?;
                            commands.dispatch(&kernels[1], (), &numbers, &[b.read(), tmp.write()])?;
                            commands.copy(&tmp, &a)?;
                            commands.dispatch(&kernels[0], (), &numbers, &[tmp.read(), c.write()])
                        })
                        .unwrap();
                    let given: Vec<i32> = (0..40_000).map(|at| at * 7 + caller).collect();
                    let mut expected = given.clone();
                    session.upload(&a, &given.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()).unwrap();
                    let mut found = vec![0; BYTES];
                    for round in 0..5 {
                        session.replay("all").unwrap().wait().unwrap();
                        session.download(&c, &mut found).unwrap();
                        expected.iter_mut().for_each(|x| *x = turned(turned(*x, 300), 1));
                        let last: Vec<i32> = expected.iter().map(|&x| turned(x, 300)).collect();
                        assert!(words(&found) == last, "{threads} threads, caller {caller}, round {round}");
                    }
                });
            }
        });
        assert_eq!(device.hand_offs() > 0, threads > 1);
    }
}

#[test]
fn a_fault_of_a_spread_launch_is_one_of_its_command_and_the_device_goes_on() {
    let device = device(3);
    let session = Session::builder("test").device(Arc::<CpuDevice>::clone(&device)).open().unwrap();
    let kernels = session.compile(&[source("heavy", 2000)]).unwrap();
    let [a, b, short] =
        [("a", 160_000), ("b", 160_000), ("short", 100_000)].map(|(label, len)| session.allocate(label, len).unwrap());
    for (key, into) in [("over", &short), ("fits", &b)] {
        session.record(key, |c| c.dispatch(&kernels[0], (), &[0u64; 3], &[a.read(), into.write()])).unwrap();
    }
    for _ in 0..3 {
        let fault = session.replay("over").unwrap().wait().unwrap_err();
        let said = fault.to_string();
        assert!(matches!(&fault, DeviceError::Fault { at, .. } if at == "heavy"), "{said}");
        assert!(said.contains("view.store") && said.contains("which has 100000 bytes"), "{said}");
        session.replay("fits").unwrap().wait().unwrap();
    }
    device.health().unwrap();
}
