//! Sessions: resident regions, kernels, recorded plans, readback, and every refusal by its message.

use crate::Open;
use lanes_core::compile::KernelSource;
use lanes_core::device::DeviceError;
use lanes_core::session::{Commands, Index, Kernel, Region, Session};

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
pub fn said<T>(result: Result<T, DeviceError>) -> String {
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
