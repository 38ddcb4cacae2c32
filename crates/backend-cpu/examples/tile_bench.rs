//! Tile programs against hand-written Rust, single thread: `cargo run --release -p backend-cpu --example tile_bench`.
//!
//! Prints nanoseconds per launch, the best of many.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use backend_cpu::tile::{Arg, TileScratch, run};
use loom_compiler::tile::{CpuImage, compile};
use loom_compiler::{Module, math};

fn image(text: &str) -> CpuImage {
    let module = Module::parse("bench", text).unwrap_or_else(|e| panic!("{e}"));
    let name = module.kernels().remove(0);
    let kernel = module.specialise(&name, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
    compile(&kernel).unwrap_or_else(|e| panic!("{e}"))
}

/// Nanoseconds of the fastest of many runs of `f`.
fn best(mut f: impl FnMut()) -> f64 {
    let mut fastest = f64::MAX;
    for _ in 0..200 {
        let start = Instant::now();
        for _ in 0..20 {
            f();
        }
        fastest = fastest.min(start.elapsed().as_secs_f64() / 20.0);
    }
    fastest * 1e9
}

fn tile(image: &CpuImage, workload: &[u64], buffers: &mut [&mut [f32]], scalars: &[u64]) -> f64 {
    let geometry = image.launch.geometry(workload).unwrap_or_else(|e| panic!("{e}"));
    let mut args: Vec<Arg> = scalars.iter().map(|&bits| Arg::Scalar(bits)).collect();
    args.extend(buffers.iter_mut().map(|b| Arg::Buffer { ptr: b.as_mut_ptr().cast(), len: std::mem::size_of_val(*b) }));
    let mut scratch = TileScratch::default();
    best(|| {
        // SAFETY: the buffers are borrowed mutably by `args`' maker and outlive this.
        unsafe { run(image, &geometry, black_box(&args), &mut scratch) }.unwrap_or_else(|e| panic!("{e}"));
    })
}

fn report(name: &str, hand: f64, tile: f64) {
    println!("{name:28} hand {hand:8.0} ns, tile {tile:8.0} ns: {:.2}x", tile / hand);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn saxpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = a.mul_add(*x, *y);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn gate(x: &[f32], y: &[f32], out: &mut [f32]) {
    for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
        *out = math::logistic(*x) * math::tanh(*y);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn layernorm(x: &[f32], out: &mut [f32], columns: usize) {
    for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
        let mut sums = [0.0f32; 16];
        for c in x.chunks_exact(16) {
            for i in 0..16 {
                sums[i] += c[i];
            }
        }
        let mean = sums.iter().sum::<f32>() / columns as f32;
        let mut squares = [0.0f32; 16];
        for c in x.chunks_exact(16) {
            for i in 0..16 {
                squares[i] = (c[i] - mean).mul_add(c[i] - mean, squares[i]);
            }
        }
        let scale = 1.0 / (squares.iter().sum::<f32>() / columns as f32 + 1e-5).sqrt();
        for (out, x) in out.iter_mut().zip(x) {
            *out = (x - mean) * scale;
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn softmax(x: &[f32], out: &mut [f32], columns: usize) {
    for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
        let mut peaks = [f32::NEG_INFINITY; 16];
        for c in x.chunks_exact(16) {
            for i in 0..16 {
                peaks[i] = if c[i] > peaks[i] { c[i] } else { peaks[i] };
            }
        }
        let peak = peaks.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        let mut sums = [0.0f32; 16];
        for (c, o) in x.chunks_exact(16).zip(out.chunks_exact_mut(16)) {
            for i in 0..16 {
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

const HEAD: &str = r#"
kernel.def export("k") @k(%n: index) {
  %one = index.constant 1 : index
  %wg = index.constant WG : index
  %less = index.constant WL : index
  %padded = index.add %n, %less : index
  %groups = index.div %padded, %wg : index
  %rows = index.constant ROWS : index
  kernel.launch.config workgroups(%groups, %rows, %one) workgroup_size(%wg, %one, %one) : index
"#;

fn head(wg: usize, rows: usize) -> String {
    HEAD.replace("WG", &wg.to_string()).replace("WL", &(wg - 1).to_string()).replace("ROWS", &rows.to_string())
}

#[cfg(target_arch = "x86_64")]
fn main() {
    assert!(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"), "made for AVX2");
    let mut y = vec![0.25f32; 65536];
    let mut x: Vec<f32> = (0..65536).map(|i| ((i * 7919) % 1000) as f32 * 0.004 - 2.0).collect();
    let mut out = vec![0.0f32; 65536];

    let text = head(256, 1)
        + r#"} launch(%n: index, %a: f32, %x: buffer, %y: buffer) {
  %zero = index.constant 0 : offset
  %xv = buffer.view %x[%zero] : buffer -> view<[%n]xf32>
  %yv = buffer.view %y[%zero] : buffer -> view<[%n]xf32>
  %i = kernel.workitem.dispatch.id<x> : index
  %live = index.cmp ult, %i, %n : index
  scf.if %live {
    %xi = view.load %xv[%i] : view<[%n]xf32> -> f32
    %yi = view.load %yv[%i] : view<[%n]xf32> -> f32
    %r = scalar.fmaf %a, %xi, %yi : f32
    view.store %r, %yv[%i] : f32, view<[%n]xf32>
  }
  kernel.return
}
"#;
    let saxpy_image = image(&text);
    for n in [64usize, 2048, 65536] {
        // SAFETY: the features were detected.
        let hand = best(|| unsafe { saxpy(black_box(1e-6), &x[..n], black_box(&mut y[..n])) });
        let scalars = [n as u64, u64::from(1e-6f32.to_bits())];
        report(&format!("saxpy {n}"), hand, tile(&saxpy_image, &[n as u64], &mut [&mut x[..n], &mut y[..n]], &scalars));
    }

    for (rows, inner) in [(1, 2048usize), (32, 64), (8, 256)] {
        let text = head(inner.min(256), rows)
            + &r#"} launch(%n: index, %x: buffer, %y: buffer, %o: buffer) {
  %zero = index.constant 0 : offset
  %width = index.constant INNER : index
  %xv = buffer.view %x[%zero] : buffer -> view<[%n]xf32>
  %yv = buffer.view %y[%zero] : buffer -> view<[%n]xf32>
  %ov = buffer.view %o[%zero] : buffer -> view<[%n]xf32>
  %i = kernel.workitem.dispatch.id<x> : index
  %row = kernel.workgroup.id<y> : index
  %live = index.cmp ult, %i, %width : index
  scf.if %live {
    %at = index.madd %row, %width, %i : index
    %xi = view.load %xv[%at] : view<[%n]xf32> -> f32
    %s = scalar.logisticf %xi : f32
    %yi = view.load %yv[%at] : view<[%n]xf32> -> f32
    %t = scalar.tanhf %yi : f32
    %r = scalar.mulf %s, %t : f32
    view.store %r, %ov[%at] : f32, view<[%n]xf32>
  }
  kernel.return
}
"#
            .replace("INNER", &inner.to_string());
        let n = rows * inner;
        // SAFETY: the features were detected.
        let hand = best(|| unsafe { gate(&x[..n], &y[..n], black_box(&mut out[..n])) });
        let (x, y, out) = (&mut x[..n], &mut y[..n], &mut out[..n]);
        let took = tile(&image(&text), &[inner as u64], &mut [x, y, out], &[n as u64]);
        report(&format!("gate {rows} x {inner}"), hand, took);
    }

    let (rows, columns) = (32usize, 64usize);
    let n = rows * columns;
    // SAFETY: the features were detected.
    let hand = best(|| unsafe { layernorm(&x[..n], black_box(&mut out[..n]), columns) });
    let groups = head(64, 1)
        + r#"} launch(%n: index, %x: buffer, %o: buffer) {
  %zero = index.constant 0 : offset
  %width = index.constant 64 : index
  %xv = buffer.view %x[%zero] : buffer -> view<[%n]xf32>
  %ov = buffer.view %o[%zero] : buffer -> view<[%n]xf32>
  %i = kernel.workitem.dispatch.id<x> : index
  %v = view.load %xv[%i] : view<[%n]xf32> -> f32
  %sum = kernel.workgroup.reduce<addf> %v : f32
  %count = scalar.constant 0.015625 : f32
  %mean = scalar.mulf %sum, %count : f32
  %c = scalar.subf %v, %mean : f32
  %s = scalar.mulf %c, %c : f32
  %squares = kernel.workgroup.reduce<addf> %s : f32
  %eps = scalar.constant 0.00001 : f32
  %var = scalar.fmaf %squares, %count, %eps : f32
  %scale = scalar.rsqrtf %var : f32
  %r = scalar.mulf %c, %scale : f32
  view.store %r, %ov[%i] : f32, view<[%n]xf32>
  kernel.return
}
"#;
    let took = tile(&image(&groups), &[n as u64], &mut [&mut x[..n], &mut out[..n]], &[n as u64]);
    report("layernorm 32 x 64, groups", hand, took);
    let items = head(32, 1)
        + r#"} launch(%n: index, %x: buffer, %o: buffer) {
  %base = index.constant 0 : offset
  %zero = index.constant 0 : index
  %unit = index.constant 1 : index
  %width = index.constant 64 : index
  %rows = index.constant 32 : index
  %all = index.constant 2048 : index
  %xv = buffer.view %x[%base] : buffer -> view<[%all]xf32>
  %ov = buffer.view %o[%base] : buffer -> view<[%all]xf32>
  %i = kernel.workitem.dispatch.id<x> : index
  %live = index.cmp ult, %i, %rows : index
  scf.if %live {
    %nothing = scalar.constant 0.0 : f32
    %start = index.mul %i, %width : index
    %sum = scf.for %k = [%zero to %width step %unit](%acc = %nothing : f32) -> (f32) {
      %at = index.add %start, %k : index
      %v = view.load %xv[%at] : view<[%all]xf32> -> f32
      %next = scalar.addf %acc, %v : f32
      scf.yield %next : f32
    }
    %count = scalar.constant 0.015625 : f32
    %mean = scalar.mulf %sum, %count : f32
    %squares = scf.for %k = [%zero to %width step %unit](%acc = %nothing : f32) -> (f32) {
      %at = index.add %start, %k : index
      %v = view.load %xv[%at] : view<[%all]xf32> -> f32
      %c = scalar.subf %v, %mean : f32
      %next = scalar.fmaf %c, %c, %acc : f32
      scf.yield %next : f32
    }
    %eps = scalar.constant 0.00001 : f32
    %var = scalar.fmaf %squares, %count, %eps : f32
    %scale = scalar.rsqrtf %var : f32
    scf.for %k = [%zero to %width step %unit] {
      %at = index.add %start, %k : index
      %v = view.load %xv[%at] : view<[%all]xf32> -> f32
      %c = scalar.subf %v, %mean : f32
      %r = scalar.mulf %c, %scale : f32
      view.store %r, %ov[%at] : f32, view<[%all]xf32>
    }
  }
  kernel.return
}
"#;
    let took = tile(&image(&items), &[32], &mut [&mut x[..n], &mut out[..n]], &[n as u64]);
    report("layernorm 32 x 64, items", hand, took);

    let (rows, columns) = (32usize, 128usize);
    let n = rows * columns;
    // SAFETY: the features were detected.
    let hand = best(|| unsafe { softmax(&x[..n], black_box(&mut out[..n]), columns) });
    let groups = head(128, 1)
        + r#"} launch(%n: index, %x: buffer, %o: buffer) {
  %zero = index.constant 0 : offset
  %xv = buffer.view %x[%zero] : buffer -> view<[%n]xf32>
  %ov = buffer.view %o[%zero] : buffer -> view<[%n]xf32>
  %i = kernel.workitem.dispatch.id<x> : index
  %v = view.load %xv[%i] : view<[%n]xf32> -> f32
  %peak = kernel.workgroup.reduce<maximumf> %v : f32
  %c = scalar.subf %v, %peak : f32
  %e = scalar.expf %c : f32
  %sum = kernel.workgroup.reduce<addf> %e : f32
  %r = scalar.divf %e, %sum : f32
  view.store %r, %ov[%i] : f32, view<[%n]xf32>
  kernel.return
}
"#;
    let took = tile(&image(&groups), &[n as u64], &mut [&mut x[..n], &mut out[..n]], &[n as u64]);
    report("softmax 32 x 128, groups", hand, took);
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("the hand-written loops are for x86-64");
}
