//! Kernels on the tile executor against hand-written Rust that the compiler vectorises for the same machine, one thread:
//! `cargo run --release -p backend-cpu --example tile_bench [rounds [part of a name]]`.
//!
//! For each kernel and size, rounds of hand and tile in turn; the ratio of a round is that of its two fastest times. Prints
//! the median ratio, the least and the most, and the bar.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use backend_cpu::tile::{Arg, TileScratch, run};
use loom_compiler::tile::{CpuImage, compile};
use loom_compiler::{Module, math};

fn image(text: &str, config: &[(&str, usize)]) -> CpuImage {
    let module = Module::parse("bench", text).unwrap_or_else(|e| panic!("{e}"));
    let name = module.kernels().remove(0);
    let config: BTreeMap<_, _> = config.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect();
    let kernel = module.specialise(&name, &config).unwrap_or_else(|e| panic!("{e}"));
    compile(&kernel).unwrap_or_else(|e| panic!("{e}"))
}

/// Nanoseconds of the fastest of several runs of `f`, for about a millisecond: as much of one as other users of the machine's
/// core leave alone.
fn best(f: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    f();
    let once = start.elapsed().as_secs_f64();
    let repeats = ((50e-6 / once.max(1e-9)) as usize).clamp(1, 1000);
    let mut fastest = f64::MAX;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < 1e-3 {
        let start = Instant::now();
        for _ in 0..repeats {
            f();
        }
        fastest = fastest.min(start.elapsed().as_secs_f64() / repeats as f64);
    }
    fastest * 1e9
}

/// The instructions the hand-written loops are compiled for: the best that the executor would choose.
fn avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// `$name`: the body, compiled for AVX-512, for AVX2, or for the build's target.
macro_rules! hand {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $body:block) => {
        $(#[$doc])*
        fn $name($($arg: $ty),*) {
            #[inline(always)]
            fn body($($arg: $ty),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn wide($($arg: $ty),*) {
                    body($($arg),*);
                }
                #[target_feature(enable = "avx2,fma")]
                fn narrow($($arg: $ty),*) {
                    body($($arg),*);
                }
                if avx512() {
                    // SAFETY: the features were detected.
                    return unsafe { wide($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the features were detected.
                    return unsafe { narrow($($arg),*) };
                }
            }
            body($($arg),*);
        }
    };
}

hand! {
    fn saxpy(a: f32, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = a.mul_add(*x, *y);
        }
    }
}

hand! {
    fn gate(g: &[f32], x: &[f32], h: &[f32], out: &mut [f32]) {
        for (((out, g), x), h) in out.iter_mut().zip(g).zip(x).zip(h) {
            let z = math::logistic(*g);
            let c = math::tanh(*x);
            *out = z.mul_add(c - h, *h);
        }
    }
}

hand! {
    fn softmax(x: &[f32], out: &mut [f32], columns: usize) {
        for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
            let mut peaks = [f32::NEG_INFINITY; 32];
            for c in x.chunks_exact(32) {
                for i in 0..32 {
                    peaks[i] = if c[i] > peaks[i] { c[i] } else { peaks[i] };
                }
            }
            let peak = peaks.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
            let mut sums = [0.0f32; 32];
            for (c, o) in x.chunks_exact(32).zip(out.chunks_exact_mut(32)) {
                for i in 0..32 {
                    o[i] = math::exp(c[i] - peak);
                    sums[i] += o[i];
                }
            }
            let scale = 1.0 / sums.iter().sum::<f32>();
            for out in out.iter_mut() {
                *out *= scale;
            }
        }
    }
}

hand! {
    fn layernorm(x: &[f32], out: &mut [f32], columns: usize) {
        for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
            let mut sums = [0.0f32; 32];
            for c in x.chunks_exact(32) {
                for i in 0..32 {
                    sums[i] += c[i];
                }
            }
            let mean = sums.iter().sum::<f32>() / columns as f32;
            let mut squares = [0.0f32; 32];
            for c in x.chunks_exact(32) {
                for i in 0..32 {
                    squares[i] = (c[i] - mean).mul_add(c[i] - mean, squares[i]);
                }
            }
            let scale = 1.0 / (squares.iter().sum::<f32>() / columns as f32 + 1e-5).sqrt();
            for (out, x) in out.iter_mut().zip(x) {
                *out = (x - mean) * scale;
            }
        }
    }
}

hand! {
    fn gemv(w: &[u16], x: &[u16], out: &mut [f32]) {
        for (w, out) in w.chunks_exact(x.len()).zip(out) {
            let mut sums = [0.0f32; 32];
            for (w, x) in w.chunks_exact(32).zip(x.chunks_exact(32)) {
                for i in 0..32 {
                    let (w, x) = (f32::from_bits(u32::from(w[i]) << 16), f32::from_bits(u32::from(x[i]) << 16));
                    sums[i] = w.mul_add(x, sums[i]);
                }
            }
            *out = sums.iter().sum();
        }
    }
}

/// A kernel with `%n` workload items in workgroups of `wg` along x.
fn text(wg: usize, config: &str, arguments: &str, body: &str) -> String {
    format!(
        "{config}
kernel.def export(\"k\") @k(%n: index) {{
  %one = index.constant 1 : index
  %wg = index.constant {wg} : index
  %less = index.constant {} : index
  %padded = index.add %n, %less : index
  %groups = index.div %padded, %wg : index
  kernel.launch.config workgroups(%groups, %one, %one) workgroup_size(%wg, %one, %one) : index
}} launch({arguments}) {{
  %base = index.constant 0 : offset
  %zero = index.constant 0 : index
  %one = index.constant 1 : index
{body}
  kernel.return
}}
",
        wg - 1
    )
}

const SAXPY: &str = "
  %xv = buffer.view %x[%base] : buffer -> view<[%n]xf32>
  %yv = buffer.view %y[%base] : buffer -> view<[%n]xf32>
  %i = kernel.workitem.dispatch.id<x> : index
  %live = index.cmp ult, %i, %n : index
  scf.if %live {
    %xi = view.load %xv[%i] : view<[%n]xf32> -> f32
    %yi = view.load %yv[%i] : view<[%n]xf32> -> f32
    %r = scalar.fmaf %a, %xi, %yi : f32
    view.store %r, %yv[%i] : f32, view<[%n]xf32>
  }";

const GATE: &str = "
  %gv = buffer.view %g[%base] : buffer -> view<[%n]xf32>
  %xv = buffer.view %x[%base] : buffer -> view<[%n]xf32>
  %hv = buffer.view %h[%base] : buffer -> view<[%n]xf32>
  %ov = buffer.view %o[%base] : buffer -> view<[%n]xf32>
  %i = kernel.workitem.dispatch.id<x> : index
  %live = index.cmp ult, %i, %n : index
  scf.if %live {
    %gi = view.load %gv[%i] : view<[%n]xf32> -> f32
    %xi = view.load %xv[%i] : view<[%n]xf32> -> f32
    %hi = view.load %hv[%i] : view<[%n]xf32> -> f32
    %z = scalar.logisticf %gi : f32
    %c = scalar.tanhf %xi : f32
    %d = scalar.subf %c, %hi : f32
    %r = scalar.fmaf %z, %d, %hi : f32
    view.store %r, %ov[%i] : f32, view<[%n]xf32>
  }";

const SOFTMAX: &str = "
  %xv = buffer.view %x[%base] : buffer -> view<[%n]xf32>
  %ov = buffer.view %o[%base] : buffer -> view<[%n]xf32>
  %i = kernel.workitem.dispatch.id<x> : index
  %v = view.load %xv[%i] : view<[%n]xf32> -> f32
  %peak = kernel.workgroup.reduce<maxnumf> %v : f32
  %c = scalar.subf %v, %peak : f32
  %e = scalar.expf %c : f32
  %sum = kernel.workgroup.reduce<addf> %e : f32
  %unit = scalar.constant 1.0 : f32
  %scale = scalar.divf %unit, %sum : f32
  %r = scalar.mulf %e, %scale : f32
  view.store %r, %ov[%i] : f32, view<[%n]xf32>";

const LAYERNORM: &str = "
  %xv = buffer.view %x[%base] : buffer -> view<[%n]xf32>
  %ov = buffer.view %o[%base] : buffer -> view<[%n]xf32>
  %i = kernel.workitem.dispatch.id<x> : index
  %v = view.load %xv[%i] : view<[%n]xf32> -> f32
  %sum = kernel.workgroup.reduce<addf> %v : f32
  %share = scalar.constant 0.00390625 : f32
  %mean = scalar.mulf %sum, %share : f32
  %c = scalar.subf %v, %mean : f32
  %s = scalar.mulf %c, %c : f32
  %squares = kernel.workgroup.reduce<addf> %s : f32
  %eps = scalar.constant 0.00001 : f32
  %var = scalar.fmaf %squares, %share, %eps : f32
  %scale = scalar.rsqrtf %var : f32
  %r = scalar.mulf %c, %scale : f32
  view.store %r, %ov[%i] : f32, view<[%n]xf32>";

const GEMV: &str = "
  %k = config.get @columns : index
  %rows = kernel.workgroup.count<x> : index
  %step = index.constant 256 : index
  %wv = buffer.view %w[%base] : buffer -> view<[%rows]x[%k]xbf16>
  %xv = buffer.view %x[%base] : buffer -> view<[%k]xbf16>
  %ov = buffer.view %o[%base] : buffer -> view<[%rows]xf32>
  %row = kernel.workgroup.id<x> : index
  %tid = kernel.workitem.id<x> : index
  %nothing = scalar.constant 0.0 : f32
  %part = scf.for %at = [%zero to %k step %step](%acc = %nothing : f32) -> (f32) {
    %c = index.add %at, %tid : index
    %wn = view.load %wv[%row, %c] : view<[%rows]x[%k]xbf16> -> bf16
    %xn = view.load %xv[%c] : view<[%k]xbf16> -> bf16
    %wf = scalar.extf %wn : bf16 to f32
    %xf = scalar.extf %xn : bf16 to f32
    %next = scalar.fmaf %wf, %xf, %acc : f32
    scf.yield %next : f32
  }
  %sum = kernel.workgroup.reduce<addf> %part : f32
  %leader = index.cmp eq, %tid, %zero : index
  scf.if %leader {
    view.store %sum, %ov[%row] : f32, view<[%rows]xf32>
  }";

/// A row per subgroup: every lane takes each 32nd column, and the row's peak is found by a butterfly.
const BUTTERFLY: &str = "
  %columns = config.get @columns : index
  %rows = kernel.workgroup.count<x> : index
  %xv = buffer.view %x[%base] : buffer -> view<[%rows]x[%columns]xf32>
  %ov = buffer.view %o[%base] : buffer -> view<[%rows]x[%columns]xf32>
  %row = kernel.workgroup.id<x> : index
  %lane = kernel.subgroup.lane.id : index
  %lanes = index.constant 32 : index
  %width = scalar.constant 32 : i32
  %d1 = scalar.constant 1 : i32
  %d2 = scalar.constant 2 : i32
  %d4 = scalar.constant 4 : i32
  %d8 = scalar.constant 8 : i32
  %d16 = scalar.constant 16 : i32
  %lowest = scalar.constant -inf : f32
  %nothing = scalar.constant 0.0 : f32
  %m0 = scf.for %c = [%lane to %columns step %lanes](%best = %lowest : f32) -> (f32) {
    %v = view.load %xv[%row, %c] : view<[%rows]x[%columns]xf32> -> f32
    %next = scalar.maxnumf %best, %v : f32
    scf.yield %next : f32
  }
  %p16, %ok16 = kernel.subgroup.shuffle<xor> %m0, %d16, %width : f32, i32, i32
  %m1 = scalar.maxnumf %m0, %p16 : f32
  %p8, %ok8 = kernel.subgroup.shuffle<xor> %m1, %d8, %width : f32, i32, i32
  %m2 = scalar.maxnumf %m1, %p8 : f32
  %p4, %ok4 = kernel.subgroup.shuffle<xor> %m2, %d4, %width : f32, i32, i32
  %m3 = scalar.maxnumf %m2, %p4 : f32
  %p2, %ok2 = kernel.subgroup.shuffle<xor> %m3, %d2, %width : f32, i32, i32
  %m4 = scalar.maxnumf %m3, %p2 : f32
  %p1, %ok1 = kernel.subgroup.shuffle<xor> %m4, %d1, %width : f32, i32, i32
  %peak = scalar.maxnumf %m4, %p1 : f32
  %partial = scf.for %c = [%lane to %columns step %lanes](%acc = %nothing : f32) -> (f32) {
    %v = view.load %xv[%row, %c] : view<[%rows]x[%columns]xf32> -> f32
    %centred = scalar.subf %v, %peak : f32
    %e = scalar.expf<afn> %centred : f32
    %next = scalar.addf %acc, %e : f32
    scf.yield %next : f32
  }
  %total = kernel.subgroup.reduce<addf> %partial : f32
  scf.for %c = [%lane to %columns step %lanes] {
    %v = view.load %xv[%row, %c] : view<[%rows]x[%columns]xf32> -> f32
    %centred = scalar.subf %v, %peak : f32
    %e = scalar.expf<afn> %centred : f32
    %p = scalar.divf<arcp> %e, %total : f32
    view.store %p, %ov[%row, %c] : f32, view<[%rows]x[%columns]xf32>
  }";

/// Softmax with a whole row per work-item: what the executor is not made for.
const ITEMS: &str = "
  %columns = config.get @columns : index
  %xv = buffer.view %x[%base] : buffer -> view<[%n]x[%columns]xf32>
  %ov = buffer.view %o[%base] : buffer -> view<[%n]x[%columns]xf32>
  %row = kernel.workitem.dispatch.id<x> : index
  %live = index.cmp ult, %row, %n : index
  scf.if %live {
    %lowest = scalar.constant -inf : f32
    %nothing = scalar.constant 0.0 : f32
    %peak = scf.for %c = [%zero to %columns step %one](%best = %lowest : f32) -> (f32) {
      %v = view.load %xv[%row, %c] : view<[%n]x[%columns]xf32> -> f32
      %next = scalar.maxnumf %best, %v : f32
      scf.yield %next : f32
    }
    %sum = scf.for %c = [%zero to %columns step %one](%acc = %nothing : f32) -> (f32) {
      %v = view.load %xv[%row, %c] : view<[%n]x[%columns]xf32> -> f32
      %d = scalar.subf %v, %peak : f32
      %e = scalar.expf %d : f32
      view.store %e, %ov[%row, %c] : f32, view<[%n]x[%columns]xf32>
      %next = scalar.addf %acc, %e : f32
      scf.yield %next : f32
    }
    %unit = scalar.constant 1.0 : f32
    %scale = scalar.divf %unit, %sum : f32
    scf.for %c = [%zero to %columns step %one] {
      %e = view.load %ov[%row, %c] : view<[%n]x[%columns]xf32> -> f32
      %r = scalar.mulf %e, %scale : f32
      view.store %r, %ov[%row, %c] : f32, view<[%n]x[%columns]xf32>
    }
  }";

fn slot(a: f32) -> Arg {
    Arg::Scalar(u64::from(a.to_bits()))
}

fn buffer<T>(of: &mut [T]) -> Arg {
    Arg::Buffer { ptr: of.as_mut_ptr().cast(), len: size_of_val(of) }
}

/// Rounds of both in turn, and a line of the table.
fn report(
    name: &str,
    bar: Option<f64>,
    rounds: usize,
    hand: &mut dyn FnMut(),
    image: &CpuImage,
    n: usize,
    args: &[Arg],
) {
    if std::env::args().nth(2).is_some_and(|only| !name.contains(&only)) {
        return;
    }
    let geometry = image.launch.geometry(&[n as u64]).unwrap_or_else(|e| panic!("{e}"));
    let mut scratch = TileScratch::default();
    let mut tile = || {
        // SAFETY: the buffers behind `args` live in `main`, and nobody else touches them while this runs.
        unsafe { run(image, &geometry, black_box(args), &mut scratch) }.unwrap_or_else(|e| panic!("{e}"));
    };
    let mut times: Vec<(f64, f64)> = (0..rounds).map(|_| (best(hand), best(&mut tile))).collect();
    let ratio = |(hand, tile): &(f64, f64)| tile / hand;
    times.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let (hand, tile) = times[rounds / 2];
    let verdict = match bar {
        Some(bar) if tile / hand <= bar => format!("≤ {bar}: holds"),
        Some(bar) => format!("≤ {bar}: MISSED"),
        None => "reported".to_owned(),
    };
    let (least, most) = (ratio(&times[0]), ratio(&times[rounds - 1]));
    println!(
        "{name:32} hand {hand:9.0} ns, tile {tile:9.0} ns: {:5.2} ({least:.2} to {most:.2}) {verdict}",
        tile / hand
    );
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(51usize).max(1);
    for n in [4096usize, 1 << 20] {
        let size = if n == 4096 { "4 Ki" } else { "1 Mi" };
        let numbers =
            |salt: usize| -> Vec<f32> { (0..n).map(|i| ((i * 7919 + salt) % 1000) as f32 * 0.004 - 2.0).collect() };
        let (x, mut y, h, mut out) = (numbers(0), numbers(1), numbers(2), vec![0.0f32; n]);
        let (mut xs, mut ys, mut hs, mut outs) = (x.clone(), y.clone(), h.clone(), out.clone());
        let a = 1e-6;

        let kernel = image(&text(256, "", "%n: index, %a: f32, %x: buffer, %y: buffer", SAXPY), &[]);
        let args = [Arg::Scalar(n as u64), slot(a), buffer(&mut xs), buffer(&mut ys)];
        let bar = if n == 4096 { 2.0 } else { 1.6 };
        let mut hand = || saxpy(black_box(a), &x, black_box(&mut y));
        report(&format!("saxpy {size}"), Some(bar), rounds, &mut hand, &kernel, n, &args);

        let kernel = image(&text(256, "", "%n: index, %g: buffer, %x: buffer, %h: buffer, %o: buffer", GATE), &[]);
        let args = [Arg::Scalar(n as u64), buffer(&mut ys), buffer(&mut xs), buffer(&mut hs), buffer(&mut outs)];
        let mut hand = || gate(&y, &x, &h, black_box(&mut out));
        report(&format!("gate {size}"), Some(1.6), rounds, &mut hand, &kernel, n, &args);

        let kernel = image(&text(256, "", "%n: index, %x: buffer, %o: buffer", SOFTMAX), &[]);
        let args = [Arg::Scalar(n as u64), buffer(&mut xs), buffer(&mut outs)];
        let mut hand = || softmax(&x, black_box(&mut out), 256);
        report(&format!("softmax, rows of 256, {size}"), Some(1.6), rounds, &mut hand, &kernel, n, &args);

        let kernel = image(&text(256, "", "%n: index, %x: buffer, %o: buffer", LAYERNORM), &[]);
        let mut hand = || layernorm(&x, black_box(&mut out), 256);
        report(&format!("layer norm, rows of 256, {size}"), Some(1.6), rounds, &mut hand, &kernel, n, &args);

        let columns = if n == 4096 { 512 } else { 2048 };
        let narrow = |of: &[f32]| of.iter().map(|x| (x.to_bits() >> 16) as u16).collect::<Vec<u16>>();
        let (w, v) = (narrow(&x), narrow(&h[..columns]));
        let rows = n / columns;
        let kernel = image(
            &text(256, "config.decl @columns : index", "%w: buffer, %x: buffer, %o: buffer", GEMV),
            &[("columns", columns)],
        );
        let (mut ws, mut vs) = (w.clone(), v.clone());
        let args = [buffer(&mut ws), buffer(&mut vs), buffer(&mut outs)];
        let mut hand = || gemv(&w, &v, black_box(&mut out[..rows]));
        report(
            &format!("bf16 gemv, {columns} columns, {size}"),
            Some(1.6),
            rounds,
            &mut hand,
            &kernel,
            rows * 256,
            &args,
        );

        let columns = if n == 4096 { 128 } else { 1024 };
        let rows = n / columns;
        let kernel = image(
            &text(32, "config.decl @columns : index", "%x: buffer, %o: buffer", BUTTERFLY),
            &[("columns", columns)],
        );
        let args = [buffer(&mut xs), buffer(&mut outs)];
        let mut hand = || softmax(&x, black_box(&mut out), columns);
        report(&format!("softmax, butterflies, {size}"), Some(2.5), rounds, &mut hand, &kernel, rows * 32, &args);

        let kernel = image(
            &text(256, "config.decl @columns : index", "%n: index, %x: buffer, %o: buffer", ITEMS),
            &[("columns", columns)],
        );
        let args = [Arg::Scalar(rows as u64), buffer(&mut xs), buffer(&mut outs)];
        report(&format!("softmax, a row per item, {size}"), None, rounds, &mut hand, &kernel, rows, &args);
    }
}
