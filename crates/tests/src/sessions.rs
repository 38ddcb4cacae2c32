//! Sessions: resident regions, kernels, recorded plans, readback, and every refusal by its message.

use crate::Open;
use crate::faulty::{FaultyDevice, Injected};
use lanes_core::compile::{KernelCache, KernelCompiler, KernelSource, LoomCompiler, Target};
use lanes_core::device::{Completion, Device, DeviceError};
use lanes_core::inference::{Devices, ModelContext};
use lanes_core::plan::Activation;
use lanes_core::session::{Commands, Distribution, Index, Interface, Kernel, Product, Region, Session, Trace, Window};
use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Elements of most regions here.
pub const N: usize = 100;

/// Kernel `name` over `n` f32: `y[i] = <op>(a[i], b[i])`, an item an element.
pub fn elementwise(name: &str, op: &str) -> KernelSource {
    let text = format!(
        r#"
kernel.def export("{name}") @{name}(%n: index) {{
  %one = index.constant 1 : index
  %size = index.constant 64 : index
  %less = index.constant 63 : index
  %padded = index.add %n, %less : index
  %groups = index.div %padded, %size : index
  kernel.launch.config workgroups(%groups, %one, %one) workgroup_size(%size, %one, %one) : index
}} launch(%n: index, %a: buffer, %b: buffer, %y: buffer) {{
  %zero = index.constant 0 : offset
  %av = buffer.view %a[%zero] : buffer -> view<[%n]xf32>
  %bv = buffer.view %b[%zero] : buffer -> view<[%n]xf32>
  %yv = buffer.view %y[%zero] : buffer -> view<[%n]xf32>
  %item = kernel.workitem.dispatch.id<x> : index
  %live = index.cmp ult, %item, %n : index
  scf.if %live {{
    %l = view.load %av[%item] : view<[%n]xf32> -> f32
    %r = view.load %bv[%item] : view<[%n]xf32> -> f32
    %v = {op} %l, %r : f32
    view.store %v, %yv[%item] : f32, view<[%n]xf32>
  }}
  kernel.return
}}
"#
    );
    KernelSource::new(format!("{name}.loom"), text, name)
}

/// A session on a fresh device.
pub fn session(open: Open<'_>) -> Session {
    Session::builder("test").device(open(None)).open().expect("the device opens")
}

/// `mul` and `add` for `session`.
pub fn kernels(session: &Session) -> (Kernel, Kernel) {
    let sources = [elementwise("mul", "scalar.mulf"), elementwise("add", "scalar.addf")];
    let kernels = session.compile(&sources).expect("they build");
    (kernels[0].clone(), kernels[1].clone())
}

/// `count` numbers that products and sums of a few are exact for, from a seed.
pub fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 37 + seed * 101) % 64) as f32 - 20.0).collect()
}

/// Their bytes.
pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// What a region holds, as f32.
pub fn floats(session: &Session, region: &Region) -> Vec<f32> {
    let mut into = vec![0; region.bytes()];
    session.download(region, &mut into).expect("it is downloaded");
    into.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

/// What `result` is refused with.
pub fn said<T, E: Display>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => "it was not refused".to_string(),
        Err(error) => error.to_string(),
    }
}

/// Two kernels, recorded once and replayed on what is uploaded: `z = x * w + x`, over a scratch region.
pub fn two_kernels(open: Open<'_>) {
    let session = session(open);
    let (mul, add) = kernels(&session);
    let (x, z) = (session.allocate("x", N * 4).unwrap(), session.allocate("z", N * 4).unwrap());
    let w = numbers(N, 1);
    let weights = session.weights("w", bytes(&w)).unwrap();
    session
        .record("step", |commands| {
            let y = commands.scratch("y", N * 4)?;
            commands.dispatch(&mul, &[N], &[N], &[x.read(), weights.read(), y.write()])?;
            commands.dispatch(&add, &[N], &[N], &[y.read(), x.read(), z.write()])
        })
        .unwrap();
    let mut back = session.reserve(&[&z, &x]).unwrap();
    for turn in 0..3 {
        let value = numbers(N, 2 + turn);
        session.upload(&x, &bytes(&value)).unwrap();
        session.replay("step").unwrap().wait().unwrap();
        let expected: Vec<f32> = value.iter().zip(&w).map(|(x, w)| x * w + x).collect();
        assert_eq!(floats(&session, &z), expected, "turn {turn}");
        session.readback(&mut back).unwrap();
        assert_eq!((back.bytes(0), back.bytes(1)), (&bytes(&expected)[..], &bytes(&value)[..]), "turn {turn}");
    }
    session.synchronize().unwrap();
    // Recorded anew under its key, the plan is another; a recording that is refused leaves it.
    let double = |commands: &mut Commands<'_>| {
        commands.dispatch(&add, &[N], &[Index::Is(N as u64)], &[x.read(), weights.read(), z.write()])
    };
    session.record("step", double).unwrap();
    assert!(said(session.record("step", |commands| commands.fill(&weights, 0))).contains("never written"));
    session.replay("step").unwrap().wait().unwrap();
    let expected: Vec<f32> = numbers(N, 4).iter().zip(&w).map(|(x, w)| x + w).collect();
    assert_eq!(floats(&session, &z), expected);
    assert!(session.forget("step") && !session.forget("step"));
    assert_eq!(said(session.replay("step")), "invalid: nothing is recorded as step in session test");
}

/// Handles are checked, bound to their session and their memory, and say what is wrong by name.
pub fn regions(open: Open<'_>) {
    let (session, other) = (session(open), Session::builder("other").device(open(None)).open().unwrap());
    let (_, add) = kernels(&session);
    let x = session.allocate("x", 64).unwrap();
    assert_eq!((x.label(), x.bytes(), x.rows()), ("x", 64, 1));
    session.upload(&x, &(0..64).collect::<Vec<u8>>()).unwrap();
    // A slice of a slice, and columns of rows: bytes by their numbers.
    let bytes_of = |region: &Region| {
        let mut into = vec![0; region.bytes()];
        session.download(region, &mut into).unwrap();
        into
    };
    assert_eq!(bytes_of(&x.slice(16..48).unwrap().slice(4..8).unwrap()), [20, 21, 22, 23]);
    let columns = x.as_rows(16).unwrap().columns(3..5).unwrap();
    assert_eq!((columns.rows(), columns.row_bytes(), columns.is_contiguous()), (4, 2, false));
    assert_eq!(bytes_of(&columns), [3, 4, 19, 20, 35, 36, 51, 52]);
    session.upload(&columns, &[0; 8]).unwrap();
    let expected = (0..64u8).map(|at| if at % 16 == 3 || at % 16 == 4 { 0 } else { at }).collect::<Vec<_>>();
    assert_eq!(bytes_of(&x), expected);
    assert!(columns.overlaps(&x.slice(4..5).unwrap()) && !columns.overlaps(&x.slice(5..19).unwrap()));
    let slice = "a slice lies inside and is not empty";
    assert_eq!(said(x.slice(60..65)), format!("invalid: bytes 60..65 of region x, which has 64: {slice}"));
    assert_eq!(said(x.slice(3..3)), format!("invalid: bytes 3..3 of region x, which has 64: {slice}"));
    assert_eq!(said(x.as_rows(24)), "invalid: region x of 64 bytes is not whole rows of 24");
    assert!(said(columns.slice(0..2)).contains("is 4 rows of 2 bytes that lie 16 apart"));
    assert!(said(columns.columns(1..3)).contains("columns 1..3 of region x, whose rows have 2 bytes"));
    assert_eq!(said(session.upload(&x, &[0; 3])), "invalid: 3 bytes uploaded to region x, which has 64");
    assert_eq!(said(session.download(&x, &mut [0; 3])), "invalid: 3 bytes downloaded from region x, which has 64");
    assert_eq!(said(session.allocate("none", 0)), "invalid: region none of 0 bytes: memory has at least one");
    // Shared memory is written where it lies; device memory is not.
    let shared = session.allocate_shared("shared", 8).unwrap();
    session.map(&shared.slice(2..4).unwrap(), &mut |bytes| bytes.fill(7)).unwrap();
    assert_eq!(bytes_of(&shared), [0, 0, 7, 7, 0, 0, 0, 0]);
    let unseen = "invalid: region x is mapped, and is not shared: allocate_shared gives such";
    assert_eq!(said(session.map(&x, &mut |_| {})), unseen);
    let columns = shared.as_rows(4).unwrap().columns(0..2).unwrap();
    let strided = "invalid: region shared is mapped, and is 2 rows of 2 bytes that lie 4 apart";
    assert_eq!(said(session.map(&columns, &mut |_| {})), strided);
    // What a kernel sees is aligned; weights are never written.
    let at_4 = x.slice(4..64).unwrap();
    let launch = |a: &Region, y: &Region, n: usize| {
        session.record("launch", |commands| commands.dispatch(&add, &[n], &[n], &[a.read(), a.read(), y.write()]))
    };
    assert_eq!(
        said(launch(&at_4, &shared, 1)),
        "invalid: region x from byte 4 on: what a kernel sees starts on multiples of 16"
    );
    let weights = session.weights("w", vec![1; 16]).unwrap();
    assert_eq!(said(launch(&x, &weights, 4)), "invalid: region w is weights, which are never written");
    let unheld = "invalid: region w is no memory of the device";
    assert_eq!(said(session.upload(&weights, &[0; 16])), unheld);
    assert_eq!(said(session.download(&weights, &mut [0; 16])), unheld);
    assert_eq!(said(session.map(&weights, &mut |_| {})), unheld);
    // Foreign, freed, reset, dropped.
    let foreign = other.allocate("far", 64).unwrap();
    // Wherever a region is taken, one that is not the session's is refused; so is a recording's scratch.
    let not_ours = |region: &Region, of: &str| {
        let expected = format!("invalid: region {} is of {of}, not of session test", region.label());
        assert_eq!(said(session.upload(region, &[0; 64])), expected);
        assert_eq!(said(session.download(region, &mut [0; 64])), expected);
        assert_eq!(said(session.map(region, &mut |_| {})), expected);
        assert_eq!(said(session.reserve(&[&x, region])), expected);
        assert_eq!(said(session.free(region)), expected);
        assert_eq!(said(launch(region, &x, 4)), expected);
        assert_eq!(said(launch(&x, region, 4)), expected);
    };
    not_ours(&foreign, "session other");
    let mut kept = None;
    let scratch = |commands: &mut Commands<'_>| {
        kept = Some(commands.scratch("tmp", 64)?);
        commands.fill(&x, 0)
    };
    session.record("keeps", scratch).unwrap();
    let kept = kept.unwrap();
    not_ours(&kept, "plan keeps");
    let halved = |commands: &mut Commands<'_>| {
        let tmp = commands.scratch("tmp", 128)?;
        commands.dispatch(&add, &[4usize], &[4usize], &[x.read(), x.read(), tmp.slice(0..64)?.write()])
    };
    assert!(said(session.record("no", halved)).contains("part of region tmp: a kernel sees scratch"));
    let mut back = session.reserve(&[&x]).unwrap();
    assert_eq!(said(other.readback(&mut back)), "invalid: region x is of session test, not of session other");
    session.free(&x).unwrap();
    let freed = "invalid: region x is stale: its memory was freed";
    assert_eq!(said(session.upload(&x, &[0; 64])), freed);
    assert_eq!(said(session.replay("keeps")), freed);
    assert_eq!(said(session.readback(&mut back)), freed);
    assert_eq!(said(session.free(&at_4)), freed);
    session.reset();
    assert_eq!(said(session.replay("keeps")), "invalid: nothing is recorded as keeps in session test");
    assert_eq!(said(session.download(&shared, &mut [0; 8])), "invalid: region shared is stale: its memory was freed");
    drop((back, session));
    assert!(said(other.upload(&shared, &[0; 8])).contains("is of session test, not of session other"));
    let device = Arc::clone(other.device());
    let held = device.memory().used.total();
    drop(other);
    assert_eq!((held, device.memory().used.total()), (64, 0), "a session that is dropped holds nothing");
}

struct One(Arc<dyn Device>);

impl Devices for One {
    fn open(&self, backend: &str, index: usize, _: Option<u64>) -> Result<Arc<dyn Device>, DeviceError> {
        match index {
            0 => Ok(Arc::clone(&self.0)),
            _ => Err(DeviceError::Invalid { what: format!("{backend} has no device {index}") }),
        }
    }
}

/// Compiles as usual, and counts.
struct Counting(AtomicUsize);

impl KernelCompiler for Counting {
    fn version(&self) -> &str {
        "counting"
    }

    fn compile(&self, source: &KernelSource, target: &Target) -> Result<Arc<loom_compiler::CpuImage>, DeviceError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        LoomCompiler.compile(source, target)
    }
}

/// A session is opened on a device, by index, for a target, with a compiler, and inside a context with its budget.
pub fn opening(open: Open<'_>) {
    let device = open(None);
    let target = device.capabilities().target.clone();
    let builder = || Session::builder("s");
    assert_eq!(said(builder().open()), "invalid: session s was given no device");
    let devices = Arc::new(One(Arc::clone(&device)));
    let by_index = |index| builder().index(Arc::<One>::clone(&devices), "test", index).open();
    assert!(Arc::ptr_eq(by_index(0).unwrap().device(), &device));
    assert_eq!(said(by_index(3)), "invalid: test has no device 3");
    builder().device(Arc::clone(&device)).target(target.clone()).open().unwrap();
    assert_eq!(
        said(builder().device(Arc::clone(&device)).target("gpu:none").open()),
        format!("unsupported: session s on a device of target {target}, and gpu:none was expected")
    );
    let (counting, cache) = (Arc::new(Counting(AtomicUsize::new(0))), Arc::new(KernelCache::in_memory()));
    let compiling = builder().device(device).compiler(Arc::<Counting>::clone(&counting), cache).open().unwrap();
    let (mul, add) = (elementwise("mul", "scalar.mulf"), elementwise("add", "scalar.addf"));
    let kernels = compiling.compile(&[add.clone(), mul.clone(), add.clone(), mul.clone()]).unwrap();
    let names: Vec<_> = kernels.iter().map(Kernel::name).collect();
    assert_eq!(names, ["add", "mul", "add", "mul"], "in the order asked for");
    assert!(Arc::ptr_eq(kernels[0].image(), kernels[2].image()), "equal kernels share an image");
    compiling.compile(std::slice::from_ref(&mul)).unwrap();
    assert_eq!(counting.0.load(Ordering::Relaxed), 2, "each is compiled once");
    let broken = KernelSource::new("broken.loom", "kernel.def @broken(", "broken");
    let error = said(compiling.compile(&[mul.clone(), broken.clone()]));
    assert!(error.starts_with("kernel broken did not build: "), "{error}");

    // Two sessions of one context: one device, opened at first need, one budget, kernels compiled once.
    let opened = Arc::new(AtomicUsize::new(0));
    let (count, device) = (Arc::clone(&opened), open(Some(1000)));
    let context = ModelContext::lazy(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::clone(&device))
    });
    assert!(!context.is_open());
    let (one, two) = (builder().context(context.clone()).open().unwrap(), builder().context(context).open().unwrap());
    assert_eq!(opened.load(Ordering::Relaxed), 1);
    assert!(one.context().is(two.context()));
    let first = one.compile(std::slice::from_ref(&mul)).unwrap();
    assert!(Arc::ptr_eq(first[0].image(), two.compile(&[mul]).unwrap()[0].image()));
    let _held = one.allocate("most", 900).unwrap();
    assert_eq!(said(two.allocate("more", 200)), "over budget: more needs 200 bytes, 900 of 1000 are in use");
}

/// Each kernel waits until another is being built, too: one after the other, this would never end.
struct Meeting(Barrier);

impl KernelCompiler for Meeting {
    fn version(&self) -> &str {
        "meeting"
    }

    fn compile(&self, source: &KernelSource, target: &Target) -> Result<Arc<loom_compiler::CpuImage>, DeviceError> {
        self.0.wait();
        LoomCompiler.compile(source, target)
    }
}

/// Kernels of a batch are built side by side. What one cache left on disk the next one does not build again, and it
/// computes the same; a file that was altered is built anew.
pub fn building(open: Open<'_>) {
    static FOLDERS: AtomicUsize = AtomicUsize::new(0);
    let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("lanes-kernels-{}-{number}", std::process::id()));
    let sources = [elementwise("mul", "scalar.mulf"), elementwise("add", "scalar.addf")];
    let mut compiled = Vec::new();
    for damaged in [false, false, true] {
        if damaged {
            for file in std::fs::read_dir(&folder).unwrap() {
                std::fs::write(file.unwrap().path(), "something else").unwrap();
            }
        }
        let cache = Arc::new(KernelCache::on_disk(&folder));
        let compiler = Arc::new(Meeting(Barrier::new(2)));
        let builder = Session::builder("test").device(open(None)).compiler(compiler, Arc::clone(&cache));
        let session = builder.open().unwrap();
        let kernels = session.compile(&sources).unwrap();
        compiled.push(cache.stats().compiled);
        let [x, y] = ["x", "y"].map(|label| session.allocate(label, N * 4).unwrap());
        session.upload(&x, &bytes(&numbers(N, 1))).unwrap();
        session.record("square", |c| c.dispatch(&kernels[0], &[N], &[N], &[x.read(), x.read(), y.write()])).unwrap();
        session.replay("square").unwrap().wait().unwrap();
        assert_eq!(floats(&session, &y), numbers(N, 1).iter().map(|x| x * x).collect::<Vec<_>>());
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(compiled, [2, 0, 2]);
}

/// Memory that a kernel reads and writes is one operand; it comes after who wrote it, and fails with it. A benchmark runs
/// the plan and its commands in equal number, some rounds more than it has samples.
pub fn updates(open: Open<'_>) {
    let session = session(open);
    let source = elementwise("grow", "scalar.addf");
    let text = source.text.replace("%a: buffer, %b: buffer", "%a: buffer").replace("buffer.view %b", "buffer.view %y");
    let grow = session.compile(&[KernelSource::new("grow.loom", text, "grow")]).unwrap().remove(0);
    let [x, y] = ["x", "y"].map(|label| session.allocate(label, N * 4).unwrap());
    session.upload(&x, &bytes(&[1.0; N])).unwrap();
    session.record("grow", |c| c.dispatch(&grow, &[N], &[N], &[x.read(), y.read_write()])).unwrap();
    (0..3).for_each(|_| drop(session.replay("grow").unwrap().wait().unwrap()));
    assert_eq!(floats(&session, &y), [3.0; N]);
    session.benchmark("grow", 4).unwrap();
    let found = floats(&session, &y);
    let rounds = found[0] - 3.0;
    assert!(rounds > 8.0 && rounds % 2.0 == 0.0, "{rounds} rounds, of which 8 were noted");
    assert_eq!(found, [found[0]; N]);
    session.record("over", |c| c.dispatch(&grow, &[N * 3], &[N * 3], &[x.read(), y.read_write()])).unwrap();
    let fault = session.replay("over").unwrap().wait().unwrap_err();
    assert!(matches!(&fault, DeviceError::Fault { at, .. } if at == "grow"), "{fault}");
    assert_eq!(said(session.replay("grow").unwrap().wait()), format!("an earlier submission failed: {fault}"));
}

/// `kernel.assert` is a fault that says its text and the work-item, and poisons what the launch wrote, nothing else.
pub fn asserts(open: Open<'_>) {
    let session = session(open);
    let text = "kernel.def export(\"checked\") @checked() {
  %one = index.constant 1 : index
  %items = index.constant 16 : index
  kernel.launch.config workgroups(%one, %one, %one) workgroup_size(%items, %one, %one) : index
} launch(%x: buffer, %y: buffer) {
  %base = index.constant 0 : offset
  %zero = scalar.constant 0.0 : f32
  %xv = buffer.view %x[%base] : buffer -> view<16xf32>
  %yv = buffer.view %y[%base] : buffer -> view<16xf32>
  %i = kernel.workitem.id<x> : index
  %v = view.load %xv[%i] : view<16xf32> -> f32
  %ok = scalar.cmpf oge, %v, %zero : f32
  kernel.assert %ok \"roots are of what is not negative\" : i1
  %r = scalar.sqrtf %v : f32
  view.store %r, %yv[%i] : f32, view<16xf32>
  kernel.return
}
";
    let checked = session.compile(&[KernelSource::new("checked.loom", text, "checked")]).unwrap().remove(0);
    let [x, y] = ["x", "y"].map(|label| session.allocate(label, 64).unwrap());
    session.record("roots", |c| c.dispatch(&checked, (), (), &[x.read(), y.write()])).unwrap();
    let squares: Vec<f32> = (0..16).map(|i| (i * i) as f32).collect();
    let replay = |given: &[f32]| {
        session.upload(&x, &bytes(given)).unwrap();
        session.replay("roots").unwrap().wait()
    };
    replay(&squares).unwrap();
    assert_eq!(floats(&session, &y), (0..16).map(|i| i as f32).collect::<Vec<_>>());
    let mut wrong = squares.clone();
    wrong[11] = -1.0;
    let fault = replay(&wrong).unwrap_err();
    assert!(matches!(&fault, DeviceError::Fault { at, .. } if at == "checked"), "{fault}");
    let said = fault.to_string();
    assert!(said.contains("roots are of what is not negative") && said.contains("11"), "{said}");
    replay(&squares).unwrap();
    assert_eq!(floats(&session, &y)[11], 11.0);
}

/// Numbers of a launch: their kinds, where they count, and what does not fit.
pub fn launches(open: Open<'_>) {
    let session = session(open);
    let (mul, add) = kernels(&session);
    let [x, y] = ["x", "y"].map(|label| session.allocate(label, N * 4).unwrap());
    let value = numbers(N, 5);
    let uses = [x.read(), x.read(), y.write()];
    // The workload decides how many workgroups of 64 run, the scalar how many items are live.
    for (workload, live, reached) in [(1usize, N, 64), (N, 10, 10), (N, N, N), (0, N, 0)] {
        for kind in 0..3 {
            session.upload(&x, &bytes(&value)).unwrap();
            session.upload(&y, &[0; N * 4]).unwrap();
            let record = |commands: &mut Commands<'_>| match kind {
                0 => commands.dispatch(&add, &[workload], &[live], &uses),
                1 => {
                    let (workload, live) = ((workload as u64).to_le_bytes(), (live as u64).to_le_bytes());
                    commands.dispatch(&add, &workload, &live, &uses)
                }
                _ => commands.dispatch(&add, &[workload as u64], &[live as u64], &uses),
            };
            session.record("add", record).unwrap();
            session.replay("add").unwrap().wait().unwrap();
            let expected = (0..N).map(|at| if at < reached { value[at] * 2.0 } else { 0.0 }).collect::<Vec<_>>();
            assert_eq!(floats(&session, &y), expected, "workload {workload}, {live} live, kind {kind}");
        }
    }
    // In a session there is one seat.
    session.record("seat", |c| c.dispatch(&add, &[Index::Is(64)], &[Index::Seats], &uses)).unwrap();
    session.upload(&y, &[0; N * 4]).unwrap();
    session.replay("seat").unwrap().wait().unwrap();
    assert_eq!(floats(&session, &y)[..2], [value[0] * 2.0, 0.0]);

    let refused = |record: &dyn Fn(&mut Commands<'_>) -> Result<(), DeviceError>| said(session.record("no", record));
    assert_eq!(
        refused(&|c| c.dispatch(&mul, &[N], &[N, N], &uses)),
        "invalid: kernel mul: 2 launch scalars given, it has 1: n: index"
    );
    assert_eq!(
        refused(&|c| c.dispatch(&mul, (), &[N], &uses)),
        "invalid: kernel mul: 0 workload scalars given, it has 1: n: index"
    );
    assert_eq!(
        refused(&|c| c.dispatch(&mul, &[N], &[1u8, 2, 3], &uses)),
        "invalid: kernel mul: 3 bytes of packed launch scalars given, it has 8: n: index"
    );
    assert_eq!(
        refused(&|c| c.dispatch(&mul, &[N], &[N], &uses[..2])),
        "invalid: kernel mul: 2 regions given, it has 3 buffers: a, b, y"
    );
    assert_eq!(
        refused(&|c| c.dispatch(&mul, &[N], &[N], &[x.read(), x.read(), y.read()])),
        "invalid: plan no: command 0 (mul): kernel mul: it stores to argument y, which is only read"
    );
    assert_eq!(
        refused(&|c| c.label("layer 3").dispatch(&mul, &[N], &[N], &[x.read(), y.read(), y.write()])),
        "invalid: plan no: command 0 (layer 3) writes bytes of storage 1 that another of its operands touches"
    );
    let unwritten = |c: &mut Commands<'_>| {
        let tmp = c.scratch("tmp", N * 4)?;
        c.copy(&tmp, &y)
    };
    assert_eq!(
        refused(&unwritten),
        "invalid: plan no: command 0 (copy) reads byte 0 of storage 0 before anything writes it"
    );
    assert_eq!(
        refused(&|c| c.copy(&x.slice(0..8)?, &y)),
        format!("invalid: 8 bytes of region x are copied to {} of region y", N * 4)
    );
}

/// Random fills and copies over slices and columns of a few regions, against the same on host memory.
pub fn moves(open: Open<'_>) {
    const BYTES: usize = 192;
    let session = session(open);
    let memory: Vec<Region> = (0..3).map(|at| session.allocate(&format!("m{at}"), BYTES).unwrap()).collect();
    let mut random = crate::random::Random(11);
    let mut pick = |below: usize| random.below(below);
    for round in 0..40 {
        let mut host = vec![vec![0u8; BYTES]; 3];
        for (at, host) in host.iter_mut().enumerate() {
            host.iter_mut().for_each(|byte| *byte = pick(256) as u8);
            session.upload(&memory[at], host).unwrap();
        }
        // Rows of 24, 32 or 48 bytes, and 4 or 8 columns of them.
        let mut strided = |memory: &Region| {
            let row = [24, 32, 48][pick(3)];
            let (start, width) = (pick(row / 4 - 1) * 4, (pick(2) + 1) * 4);
            let rows = memory.as_rows(row).unwrap().columns(start..start + width).unwrap();
            let places = (0..BYTES / row).flat_map(|r| (start..start + width).map(move |at| r * row + at));
            (rows, places.collect::<Vec<usize>>())
        };
        let mut plan = Vec::new();
        for step in 0..12usize {
            let (to, from) = (step % 3, (step + 1 + round % 2) % 3);
            let (target, places) = strided(&memory[to]);
            let (source, sources) = strided(&memory[from]);
            if (source.rows(), source.row_bytes()) == (target.rows(), target.row_bytes()) {
                let values: Vec<u8> = sources.iter().map(|&at| host[from][at]).collect();
                places.iter().zip(values).for_each(|(&at, value)| host[to][at] = value);
                plan.push((Some(source), target, 0));
            } else {
                let pattern = ((step * 77 + round) as u32).wrapping_mul(0x0102_0305);
                places.iter().enumerate().for_each(|(n, &at)| host[to][at] = pattern.to_le_bytes()[n % 4]);
                plan.push((None, target, pattern));
            }
        }
        let record = |commands: &mut Commands<'_>| {
            plan.iter().try_for_each(|(source, target, pattern)| match source {
                Some(source) => commands.copy(source, target),
                None => commands.fill(target, *pattern),
            })
        };
        session.record("moves", record).unwrap();
        session.replay("moves").unwrap().wait().unwrap();
        for (memory, host) in memory.iter().zip(&host) {
            let mut found = vec![0; BYTES];
            session.download(memory, &mut found).unwrap();
            assert_eq!(&found, host, "round {round}, {}", memory.label());
        }
    }
}

/// Products of rows, of two operands, with bias and activation, into columns; and a convolution read in place. Whole
/// numbers: every sum is exact.
pub fn products(open: Open<'_>) {
    let session = session(open);
    let (rows, k, n) = (5, 12, 20);
    let (a, w) = (numbers(rows * k, 1), numbers(k * n, 2));
    let (left, out) =
        (session.allocate("a", rows * k * 4).unwrap(), session.allocate("out", rows * n * 4 * 2).unwrap());
    let (weights, bias) =
        (session.weights_f32("w", w.clone()).unwrap(), session.weights("b", bytes(&numbers(n, 3))).unwrap());
    session.upload(&left, &bytes(&a)).unwrap();
    let left_rows = left.as_rows(k * 4).unwrap();
    // The first eight of K from one region, the rest from another, to the right half of rows twice as wide.
    let (first, rest) = (left_rows.columns(0..32).unwrap(), left_rows.columns(32..48).unwrap());
    let right = out.as_rows(n * 8).unwrap().columns(n * 4..n * 8).unwrap();
    let product = Product::new(&first, &weights, &right).then(&rest).bias(&bias).activation(Activation::Relu);
    session.record("product", |commands| commands.contract(&product)).unwrap();
    session.replay("product").unwrap().wait().unwrap();
    let at = |p: usize, c: usize| {
        let sum: f64 = (0..k).map(|i| f64::from(a[p * k + i]) * f64::from(w[i * n + c])).sum();
        (sum + f64::from(numbers(n, 3)[c])).max(0.0) as f32
    };
    let expected: Vec<f32> = (0..rows)
        .flat_map(|p| (0..2 * n).map(move |c| (p, c)))
        .map(|(p, c)| if c < n { 0.0 } else { at(p, c - n) })
        .collect();
    assert_eq!(floats(&session, &out), expected);
    // Windows of 3 runs of 4, a run further for each of 8 positions.
    let conv_out = session.allocate("conv", 8 * n * 4).unwrap();
    let window = Window { region: left.clone(), offset: 4, position_stride: 4, taps: 3, tap_stride: 4, tap_len: 4 };
    let conv_rows = conv_out.as_rows(n * 4).unwrap();
    session.record("conv", |c| c.contract(&Product::windows(window.clone(), &weights, &conv_rows))).unwrap();
    session.replay("conv").unwrap().wait().unwrap();
    let conv =
        |p: usize, c: usize| (0..k).map(|i| f64::from(a[4 + p * 4 + i]) * f64::from(w[i * n + c])).sum::<f64>() as f32;
    let expected: Vec<f32> = (0..8 * n).map(|at| conv(at / n, at % n)).collect();
    assert_eq!(floats(&session, &conv_out), expected);
    // One window of one run: the distances are gone nowhere.
    let (one, far) = (conv_out.slice(0..n * 4).unwrap(), usize::MAX);
    let alone = Window { region: left.clone(), offset: 4, position_stride: far, taps: 1, tap_stride: far, tap_len: k };
    session.record("clear", |commands| commands.fill(&conv_out, 0)).unwrap();
    session.replay("clear").unwrap().wait().unwrap();
    session.record("one", |c| c.contract(&Product::windows(alone, &weights, &one))).unwrap();
    session.replay("one").unwrap().wait().unwrap();
    assert_eq!(floats(&session, &one), expected[..n]);

    let refused = |product: Product| said(session.record("no", |commands| commands.contract(&product)));
    assert_eq!(
        refused(Product::new(&left_rows, &left, &right)),
        "invalid: region a is no weight storage: weights never change"
    );
    assert_eq!(
        refused(Product::new(&left_rows, &weights.slice(0..16).unwrap(), &right)),
        "invalid: part of region w: the weights of a product are all of a storage"
    );
    assert_eq!(refused(Product::new(&left, &weights, &right)), "invalid: 1 rows of region a give 5 rows of region out");
    let far = Window { offset: 60, ..window };
    assert!(refused(Product::windows(far, &weights, &conv_rows)).contains("end past region a of 240 bytes"));
    assert_eq!(
        refused(Product::new(&first, &weights, &right)),
        "invalid: plan no: command 0 (product with w): 240 weights for windows [(1, 8)] and 20 columns"
    );
}

/// A contained fault poisons what the plan writes, and nothing else; what reads it is told, what overwrites it whole
/// clears it.
pub fn poison(open: Open<'_>) {
    let session = session(open);
    let (mul, add) = kernels(&session);
    let [x, y, z] = ["x", "y", "z"].map(|label| session.allocate(label, N * 4).unwrap());
    let value = numbers(N, 1);
    for region in [&x, &y, &z] {
        session.upload(region, &bytes(&value)).unwrap();
    }
    // It is told that there are more elements than its regions have.
    let over = |c: &mut Commands<'_>| c.dispatch(&mul, &[N * 3], &[N * 3], &[x.read(), x.read(), y.write()]);
    session.record("over", over).unwrap();
    session.record("next", |c| c.dispatch(&add, &[N], &[N], &[y.read(), x.read(), z.write()])).unwrap();
    session.record("clear", |c| c.fill(&y, 0)).unwrap();
    session.record("half", |c| c.fill(&y.slice(0..N * 2)?, 0)).unwrap();
    let mut back = session.reserve(&[&y, &z]).unwrap();
    let fault = session.replay("over").unwrap().wait().unwrap_err();
    assert!(matches!(&fault, DeviceError::Fault { at, .. } if at == "mul"), "{fault}");
    let upstream = format!("an earlier submission failed: {fault}");
    let next = || session.replay("next").unwrap().wait().map(drop);
    assert_eq!(said(next()), upstream);
    assert_eq!(floats(&session, &z), value, "what was not run left everything");
    assert_eq!(said(session.download(&y, &mut [0; N * 4])), upstream);
    assert_eq!(said(session.readback(&mut back)), upstream);
    assert_eq!(floats(&session, &x), value);
    // Half of it is still as the fault left it.
    session.replay("half").unwrap().wait().unwrap();
    assert_eq!(said(next()), upstream);
    session.download(&y.slice(0..N * 2).unwrap(), &mut [0; N * 2]).unwrap();
    session.replay("clear").unwrap().wait().unwrap();
    next().unwrap();
    assert_eq!(floats(&session, &z), value);
    // The host overwrites it whole just as well.
    assert!(session.replay("over").unwrap().wait().is_err());
    session.upload(&y, &bytes(&value)).unwrap();
    next().unwrap();
    assert_eq!(floats(&session, &z), value.iter().map(|x| x + x).collect::<Vec<_>>());
    session.readback(&mut back).unwrap();
    session.synchronize().unwrap();
}

/// A region that one thread writes in turns, well and by a plan that fails, is never given to another as the failed plan
/// left it.
pub fn poison_race(open: Open<'_>) {
    let session = Session::builder("test").device(open(None)).overlap(true).open().unwrap();
    let (mul, _) = kernels(&session);
    let [x, y] = ["x", "y"].map(|label| session.allocate(label, N * 4).unwrap());
    let (good, bad) = (bytes(&numbers(N, 1)), bytes(&numbers(N, 2)));
    session.upload(&x, &bad).unwrap();
    session.upload(&y, &good).unwrap();
    let over = |c: &mut Commands<'_>| {
        c.copy(&x, &y)?;
        c.dispatch(&mul, &[N * 3], &[N * 3], &[x.read(), x.read(), y.read_write()])
    };
    session.record("over", over).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2000 {
                assert!(session.replay("over").unwrap().wait().is_err());
                session.upload(&y, &good).unwrap();
            }
            over.store(true, std::sync::atomic::Ordering::Release);
        });
        let mut seen = vec![0; good.len()];
        while !over.load(std::sync::atomic::Ordering::Acquire) {
            if session.download(&y, &mut seen).is_ok() {
                assert!(seen == good, "bytes that a failed plan wrote");
            }
        }
    });
}

/// After the device was lost everything is refused with that one cause, whether it was lost between submissions or
/// while one was pending.
pub fn lost(open: Open<'_>) {
    for pending in [false, true] {
        let device = Arc::new(FaultyDevice::new(open(None)));
        let session = Session::builder("test").device(Arc::<FaultyDevice>::clone(&device)).open().unwrap();
        let x = session.allocate("x", 64).unwrap();
        session.record("clear", |commands| commands.fill(&x, 0)).unwrap();
        let mut back = session.reserve(&[&x]).unwrap();
        session.replay("clear").unwrap().wait().unwrap();
        let cause = "device lost: fell off the bus";
        if pending {
            device.hold();
            let completion = session.replay("clear").unwrap();
            device.lose("fell off the bus");
            assert_eq!(said(completion.wait()), cause);
            assert_eq!(said(session.synchronize()), cause);
        } else {
            device.lose("fell off the bus");
        }
        assert_eq!(said(session.replay("clear")), cause);
        assert_eq!(said(session.upload(&x, &[0; 64])), cause);
        assert_eq!(said(session.download(&x, &mut [0; 64])), cause);
        assert_eq!(said(session.readback(&mut back)), cause);
        assert_eq!(said(session.allocate("y", 64)), cause);
        assert_eq!(said(session.weights("w", vec![0; 4])), cause);
        assert_eq!(said(session.record("fill", |commands| commands.fill(&x, 0))), cause);
        assert_eq!(said(session.compile(&[])), cause);
        assert_eq!(said(session.synchronize()), cause);
        assert_eq!(said(session.benchmark("clear", 1)), cause);
        assert_eq!(said(session.instantiate("i", &session.freeze("clear", Interface::new()).unwrap())), cause);
    }
}

/// Replays that return before they are done run in order, each over what the one before left; past the slots they are
/// busy, and nothing is queued then.
pub fn in_flight(open: Open<'_>) {
    let device = Arc::new(FaultyDevice::new(open(None)));
    let session = Session::builder("test").device(Arc::<FaultyDevice>::clone(&device)).overlap(true).open().unwrap();
    let (_, add) = kernels(&session);
    let [x, y] = ["x", "y"].map(|label| session.allocate(label, 64).unwrap());
    session.upload(&x, &bytes(&[1.0; 16])).unwrap();
    session.record("double", |c| c.dispatch(&add, &[16usize], &[16usize], &[x.read(), x.read(), y.write()])).unwrap();
    session.record("back", |c| c.copy(&y, &x)).unwrap();
    device.hold();
    let mut rounds = 0;
    let busy = loop {
        let round = session.replay("double").and_then(|first| Ok((first, session.replay("back")?)));
        match round {
            Ok((first, second)) => assert!(!first.is_done() && !second.is_done()),
            Err(error) => break error,
        }
        rounds += 1;
        assert!(rounds < 100, "held replays are bounded");
    };
    assert!(matches!(busy, DeviceError::Busy { .. }), "{busy}");
    assert!(rounds >= 1);
    device.release();
    session.synchronize().unwrap();
    // Busy was the first of a round or the second: then x is not yet what y is.
    assert_eq!(floats(&session, &x)[0], (rounds as f32).exp2());
    session.synchronize().unwrap();
    // A replay that is waited for in vain tells how many run.
    device.hold();
    let busy = (0..100).find_map(|_| session.replay("back").err().map(|busy| busy.to_string()));
    assert_eq!(busy.as_deref(), Some(&*format!("busy: {} in flight", 4.min(device.capabilities().slots_max))));
    device.release();
    session.synchronize().unwrap();
    // A failure that is told late stops what comes after it, and is told by whoever waits.
    session.upload(&y, &[0; 64]).unwrap();
    device.hold();
    device.script([Some(Injected::Unrun)]);
    let (first, second) = (session.replay("double").unwrap(), session.replay("back").unwrap());
    device.release();
    let fault = "fault in faulty device: injected, and nothing ran";
    assert_eq!(said(first.wait()), fault);
    assert_eq!(said(second.wait()), format!("an earlier submission failed: {fault}"));
    assert_eq!(said(session.download(&y, &mut [0; 64])), format!("an earlier submission failed: {fault}"));
    assert_eq!(floats(&session, &x)[0], (rounds as f32).exp2());
}

/// Two threads that replay one plan, and together keep no more in flight than there are slots, are never told that it is
/// busy: while the other submits, each waits its turn, and where submitting is all of the run that is most of the time.
pub fn crowded_replays(open: Open<'_>) {
    const ROUNDS: usize = 300;
    const BYTES: usize = 1 << 20;
    for overlap in [false, true] {
        let session = Session::builder("test").device(open(None)).overlap(overlap).open().unwrap();
        let slots = 4.min(session.device().capabilities().slots_max);
        let x = session.allocate("x", BYTES).unwrap();
        session.record("clear", |commands| commands.fill(&x, 0)).unwrap();
        let start = Barrier::new(2);
        let replays = || {
            let mut flying = VecDeque::<Completion>::new();
            start.wait();
            for round in 0..ROUNDS {
                if flying.len() == slots / 2
                    && let Some(oldest) = flying.pop_front()
                {
                    oldest.wait().unwrap();
                }
                if slots > 1 {
                    flying.push_back(session.replay("clear").unwrap_or_else(|error| panic!("round {round}: {error}")));
                }
            }
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(replays);
            replays();
            other.join().unwrap();
        });
        session.synchronize().unwrap();
    }
}

/// A reset forgets plans and memory, and not what still runs: it ends as it would have, and whoever synchronizes waits
/// for it and hears of it.
pub fn resets(open: Open<'_>) {
    let device = Arc::new(FaultyDevice::new(open(None)));
    let session = Session::builder("test").device(Arc::<FaultyDevice>::clone(&device)).overlap(true).open().unwrap();
    for how in [None, Some(Injected::Unrun)] {
        let x = session.allocate("x", 64).unwrap();
        session.record("clear", |commands| commands.fill(&x, 0)).unwrap();
        device.hold();
        device.script([how]);
        let running = session.replay("clear").unwrap();
        session.reset();
        assert!(!running.is_done(), "a reset does not wait");
        assert_eq!(said(session.replay("clear")), "invalid: nothing is recorded as clear in session test");
        std::thread::scope(|scope| {
            let synchronized = scope.spawn(|| session.synchronize());
            // Whoever forgot what runs is back by now.
            std::thread::sleep(Duration::from_millis(20));
            assert!(!synchronized.is_finished(), "it waits for what was submitted before the reset");
            device.release();
            let ended = running.wait().map(drop).map_err(|error| error.to_string());
            assert_eq!(synchronized.join().unwrap().map_err(|error| error.to_string()), ended);
            let fault = "fault in faulty device: injected, and nothing ran".to_string();
            assert_eq!(ended, how.map_or(Ok(()), |_| Err(fault)));
        });
        session.synchronize().unwrap();
        assert_eq!(said(session.upload(&x, &[0; 64])), "invalid: region x is stale: its memory was freed");
    }
}

/// A benchmark has its samples, a profile its commands, a trace its events; what they ran is what a replay gives.
pub fn measures(open: Open<'_>) {
    let session = session(open);
    let (mul, add) = kernels(&session);
    let (x, z) = (session.allocate("x", N * 4).unwrap(), session.allocate("z", N * 4).unwrap());
    let value = numbers(N, 1);
    let record = |commands: &mut Commands<'_>| {
        let y = commands.scratch("y", N * 4)?;
        commands.dispatch(&mul, &[N], &[N], &[x.read(), x.read(), y.write()])?;
        commands.label("the \"sum\"").dispatch(&add, &[N], &[N], &[y.read(), x.read(), z.write()])
    };
    session.record("step", record).unwrap();
    session.upload(&x, &bytes(&value)).unwrap();
    let expected: Vec<f32> = value.iter().map(|x| x * x + x).collect();
    let used = session.device().memory().used;
    let check = |what: &str| {
        assert_eq!(floats(&session, &z), expected, "{what}");
        session.upload(&z, &[0; N * 4]).unwrap();
        assert_eq!(session.device().memory().used, used, "{what} gives back what it took");
    };
    let benchmark = session.benchmark("step", 7).unwrap();
    assert_eq!((benchmark.replayed.len(), benchmark.direct.len()), (7, 7));
    assert!(benchmark.replayed.quantile(0.5) > Some(std::time::Duration::ZERO));
    check("a benchmark");
    let profile = session.profile("step", 5).unwrap();
    let commands: Vec<_> = profile.commands.iter().map(|(label, times)| (label.as_str(), times.len())).collect();
    assert_eq!(commands, [("mul", 5), ("the \"sum\"", 5)]);
    check("a profile");
    assert_eq!(said(session.profile("step", 0)), "invalid: 0 samples: a measurement takes at least one");
    assert_eq!(said(session.benchmark("none", 1)), "invalid: nothing is recorded as none in session test");

    // Nearest rank, by hand.
    let samples: Distribution = [50, 10, 40, 20, 30].map(Duration::from_millis).into_iter().collect();
    for (q, expected) in [(0.0, 10), (0.2, 10), (0.21, 20), (0.5, 30), (0.8, 40), (0.99, 50), (1.0, 50)] {
        assert_eq!(samples.quantile(q), Some(Duration::from_millis(expected)), "quantile {q}");
    }

    // 4 rounds of a turn and two commands in room for 9 events: the first round goes.
    let mut trace = Trace::new(9);
    session.trace("step", 4, &mut trace).unwrap();
    check("a trace");
    assert_eq!((trace.len(), trace.dropped()), (9, 3));
    let path = std::env::temp_dir().join(format!("lanes-trace-{}-{:p}.json", std::process::id(), &trace));
    std::fs::write(&path, "something older").unwrap();
    trace.save(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(text.matches("\"cat\":\"turn\"").count(), 3);
    assert_eq!(text.matches("\"name\":\"the \\\"sum\\\"\"").count(), 3);
    assert!(text.contains("\"clock\":\"host\",\"dropped_events\":\"3\""), "{text}");
    assert!(trace.save(&path.join("no folder")).is_err());
}
