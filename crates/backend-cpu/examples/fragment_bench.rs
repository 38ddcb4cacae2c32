//! A product of 256 x 256 x 256 halves through fragments, against the same through `vector.dotf`: one thread, the best of many.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use backend_cpu::isa::Isa;
use backend_cpu::tile::{TileScratch, run_slices};
use loom_compiler::{CpuImage, Module, tile};

const N: usize = 256;

/// Each subgroup a tile of 16 by 16, straight from memory.
const FRAGMENTS: &str = "
kernel.def @fragments() {
  kernel.launch.config workgroups(2, 16, 1) workgroup_size(256, 1, 1) : index
} launch(%a: buffer, %b: buffer, %c: buffer) {
  %base = index.constant 0 : offset
  %s = index.constant 16 : index
  %wide = index.constant 128 : index
  %zero = index.constant 0 : index
  %n = index.constant 256 : index
  %av = buffer.view %a[%base] : buffer -> view<256x256xf16>
  %bv = buffer.view %b[%base] : buffer -> view<256x256xf16>
  %cv = buffer.view %c[%base] : buffer -> view<256x256xf32>
  %gx = kernel.workgroup.id<x> : index
  %gy = kernel.workgroup.id<y> : index
  %sub = kernel.subgroup.id : index
  %row = index.mul %gy, %s : index
  %left = index.mul %gx, %wide : index
  %column = index.madd %sub, %s, %left : index
  %none = vector.constant 0.0 : vector<8xf32>
  %init = vector.fragment<init> %none shape [%s, %s] : vector<8xf32>
  %sum = scf.for %k = [%zero to %n step %s](%acc = %init : vector<8xf32>) -> (vector<8xf32>) {
    %lhs = vector.fragment.load<lhs> %av[%row, %k] shape [%s, %s] : view<256x256xf16> -> vector<16xf16>
    %rhs = vector.fragment.load<rhs> %bv[%k, %column] shape [%s, %s] : view<256x256xf16> -> vector<16xf16>
    %next = vector.mma %lhs, %rhs, %acc : vector<16xf16>, vector<16xf16>, vector<8xf32>
    scf.yield %next : vector<8xf32>
  }
  vector.fragment.store<result> %sum, %cv[%row, %column] shape [%s, %s] : vector<8xf32>, view<256x256xf32>
  kernel.return
}
";

/// Each item an element; rows of A are one for a workgroup, columns of B side by side over the items.
const DOTS: &str = "
kernel.def @dots() {
  kernel.launch.config workgroups(1, 256, 1) workgroup_size(256, 1, 1) : index
} launch(%a: buffer, %b: buffer, %c: buffer) {
  %base = index.constant 0 : offset
  %s = index.constant 16 : index
  %zero = index.constant 0 : index
  %n = index.constant 256 : index
  %none = scalar.constant 0.0 : f32
  %av = buffer.view %a[%base] : buffer -> view<256x256xf16>
  %bv = buffer.view %b[%base] : buffer -> view<256x256xf16>
  %cv = buffer.view %c[%base] : buffer -> view<256x256xf32>
  %row = kernel.workgroup.id<y> : index
  %column = kernel.workitem.id<x> : index
  %sum = scf.for %k = [%zero to %n step %s](%acc = %none : f32) -> (f32) {
    %x = vector.load %av[%row, %k] : view<256x256xf16> -> vector<16xf16>
    %tall = vector.load %bv[%k, %column] : view<256x256xf16> -> vector<16x1xf16>
    %flat = vector.transpose<[1, 0]> %tall : vector<16x1xf16> -> vector<1x16xf16>
    %y = vector.extract %flat[0] : vector<1x16xf16> -> vector<16xf16>
    %xf = vector.extf %x : vector<16xf16> to vector<16xf32>
    %yf = vector.extf %y : vector<16xf16> to vector<16xf32>
    %next = vector.dotf %xf, %yf, %acc : vector<16xf32>, vector<16xf32>, f32
    scf.yield %next : f32
  }
  view.store %sum, %cv[%row, %column] : f32, view<256x256xf32>
  kernel.return
}
";

fn image(text: &str, kernel: &str) -> CpuImage {
    let kernel = Module::parse(kernel, text).and_then(|module| module.specialise(kernel, &BTreeMap::new()));
    tile::compile(&kernel.unwrap_or_else(|why| panic!("{why}"))).unwrap_or_else(|why| panic!("{why}"))
}

fn main() {
    // Small halves: 1 + i/1024, by bits.
    let halves = |step: usize| -> Vec<u8> {
        (0..N * N).flat_map(|at| (0x3c00 + (at * step % 512) as u16).to_le_bytes()).collect()
    };
    let (mut a, mut b) = (halves(7), halves(11));
    let images = [image(FRAGMENTS, "fragments"), image(DOTS, "dots")];
    let mut outs = [vec![0u8; 4 * N * N], vec![0u8; 4 * N * N]];
    let mut best = [Duration::MAX; 2];
    let mut scratch = TileScratch::new(Isa::best());
    for _ in 0..60 {
        for (which, image) in images.iter().enumerate() {
            let geometry = image.launch.geometry(&[]).expect("there is no workload");
            let start = Instant::now();
            let out = &mut outs[which];
            run_slices(image, &geometry, &mut [&mut a, &mut b, out], &[], &mut scratch).expect("it is in bounds");
            best[which] = best[which].min(start.elapsed());
        }
    }
    assert!(outs[0] == outs[1], "both are ascending chains of fused multiply-adds");
    for (name, time) in ["fragments", "dotf"].into_iter().zip(best) {
        let rate = 2.0 * (N * N * N) as f64 / time.as_secs_f64() / 1e9;
        println!("{name}: {:.2} ms, {rate:.1} GFLOP/s", time.as_secs_f64() * 1e3);
    }
}
