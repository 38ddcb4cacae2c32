//! Launches on one thread and on more: `cargo run --release -p backend-cpu --example spread_bench [threads [rounds]]`.
//!
//! For each kernel and size, rounds of one thread and all in turn, as replays of a session on a device; the ratio of a round is
//! that of its two fastest times. Prints the median ratio, the least and the most.

use std::sync::Arc;
use std::time::Instant;

use backend_cpu::{CpuDevice, CpuOptions};
use lanes_core::compile::KernelSource;
use lanes_core::session::Session;

/// A kernel of `n` items, a workgroup 256 of them, from `%x` to `%out`.
fn text(n: usize, body: &str) -> String {
    let groups = n / 256;
    format!(
        "kernel.def export(\"k\") @k() {{
  kernel.launch.config workgroups({groups}, 1, 1) workgroup_size(256, 1, 1) : index
}} launch(%x: buffer, %out: buffer) {{
  %base = index.constant 0 : offset
  %xv = buffer.view %x[%base] : buffer -> view<{n}xf32>
  %ov = buffer.view %out[%base] : buffer -> view<{n}xf32>
  %i = kernel.workitem.dispatch.id<x> : index
  %v = view.load %xv[%i] : view<{n}xf32> -> f32
{body}
  view.store %r, %ov[%i] : f32, view<{n}xf32>
  kernel.return
}}
"
    )
}

const SCALE: &str = "  %two = scalar.constant 2.0 : f32
  %r = scalar.mulf %v, %two : f32";

const SOFTMAX: &str = "  %peak = kernel.workgroup.reduce<maxnumf> %v : f32
  %c = scalar.subf %v, %peak : f32
  %e = scalar.expf %c : f32
  %sum = kernel.workgroup.reduce<addf> %e : f32
  %unit = scalar.constant 1.0 : f32
  %scale = scalar.divf %unit, %sum : f32
  %r = scalar.mulf %e, %scale : f32";

/// 200 steps of the logistic map.
const HEAVY: &str = "  %zero = index.constant 0 : index
  %one = index.constant 1 : index
  %turns = index.constant 200 : index
  %grow = scalar.constant 3.7 : f32
  %unit = scalar.constant 1.0 : f32
  %r = scf.for %k = [%zero to %turns step %one](%a = %v : f32) -> (f32) {
    %left = scalar.subf %unit, %a : f32
    %most = scalar.mulf %grow, %a : f32
    %next = scalar.mulf %most, %left : f32
    scf.yield %next : f32
  }";

/// Nanoseconds of the fastest of several replays, for about twenty milliseconds.
fn best(session: &Session) -> f64 {
    let mut fastest = f64::MAX;
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 20e-3 {
        let start = Instant::now();
        session.replay("k").and_then(|replay| replay.wait()).unwrap_or_else(|e| panic!("{e}"));
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    fastest * 1e9
}

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse::<usize>().ok());
    let threads = args.next().unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let rounds = args.next().unwrap_or(5).max(1);
    let sizes = [4usize << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
    for (name, body, sizes) in
        [("scale", SCALE, &sizes[..]), ("softmax", SOFTMAX, &sizes), ("heavy", HEAVY, &sizes[..3])]
    {
        for &n in sizes {
            let open = |threads: usize| {
                let device = CpuDevice::open(CpuOptions { threads: Some(threads), ..CpuOptions::default() });
                let device = Arc::new(device.unwrap_or_else(|e| panic!("{e}")));
                let session = Session::builder("bench").device(Arc::<CpuDevice>::clone(&device)).open();
                let session = session.unwrap_or_else(|e| panic!("{e}"));
                let kernels = session.compile(&[KernelSource::new("k.loom", text(n, body), "k")]);
                let kernel = kernels.unwrap_or_else(|e| panic!("{e}")).remove(0);
                let [x, out] =
                    ["x", "out"].map(|label| session.allocate(label, n * 4).unwrap_or_else(|e| panic!("{e}")));
                let value: Vec<u8> = (0..n).flat_map(|i| ((i % 1000) as f32 * 1e-3).to_le_bytes()).collect();
                let recorded = session
                    .upload(&x, &value)
                    .and_then(|()| session.record("k", |c| c.dispatch(&kernel, (), (), &[x.read(), out.write()])));
                recorded.unwrap_or_else(|e| panic!("{e}"));
                (device, session)
            };
            let (one, all) = (open(1), open(threads));
            let mut times: Vec<(f64, f64)> = (0..rounds).map(|_| (best(&one.1), best(&all.1))).collect();
            let ratio = |(one, all): &(f64, f64)| one / all;
            times.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
            let (median, least, most) = (times[rounds / 2], ratio(&times[0]), ratio(&times[rounds - 1]));
            println!(
                "{name:8} {n:8} items: one thread {:8.1} us, {threads} threads {:8.1} us: {:.2} times as fast ({least:.2} to {most:.2}), {} hand-offs",
                median.0 / 1e3,
                median.1 / 1e3,
                ratio(&median),
                all.0.hand_offs(),
            );
        }
    }
}
