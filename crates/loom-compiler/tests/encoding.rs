//! Images as bytes: what is written is read, and nothing else is.

mod common;

use common::config;
use common::programs::ALL;
use loom_compiler::{CpuImage, ImageError, MAX_IMAGE_BYTES, Module, compile_cpu, tile};
use proptest::prelude::*;
use std::sync::LazyLock;

/// The image of every kernel of the corpus, and of some that use what it does not.
fn images() -> Vec<CpuImage> {
    let mut images = Vec::new();
    let bound = config(&[("rows.width", "45")]);
    for (text, name) in ALL {
        let module = Module::parse(name, text).unwrap();
        for kernel in module.kernels() {
            images.push(tile::compile(&module.specialise(&kernel, &bound).unwrap()).unwrap());
        }
    }
    // Launch programs with control flow, which the corpus has none of.
    let flows = [
        // Nobody reads the vector, which is no launch program's business.
        "%many = vector.constant 3 : vector<8xi32>\n%g = index.add %n, %one : index",
        "%g = scf.if %small -> (index) {\nscf.yield %n : index\n} else {\nscf.yield %ten : index\n}",
        "%g, %last = scf.for %i = [%z to %n step %one](%s = %z, %p = %one : index, index) -> (index, index) {
           %t = index.add %s, %i : index\nscf.yield %t, %s : index, index\n}",
        "%m, %g = scf.while(%a = %n, %k = %z : index, index) -> (index, index) {
           %go = index.cmp sgt, %a, %one : index\nscf.condition %go, %a, %k : i1, index, index
         } do(%b: index, %l: index) {
           %h = index.div %b, %ten : index\n%l2 = index.add %l, %one : index\nscf.yield %h, %l2 : index, index\n}",
    ];
    for flow in flows {
        let text = format!(
            "kernel.def @k(%n: index) {{
               %z = index.constant 0 : index
               %one = index.constant 1 : index
               %ten = index.constant 10 : index
               %small = index.cmp slt, %n, %ten : index
               {flow}
               kernel.launch.config workgroups(%g, 2, 1) workgroup_size(4, 2, 1) : index
             }} launch() {{ kernel.return }}"
        );
        let image = compile_cpu("launch", &text, "k", &config(&[])).unwrap_or_else(|error| panic!("{error}"));
        assert_ne!(image.launch.geometry(&[9]).unwrap(), image.launch.geometry(&[200]).unwrap(), "{flow}");
        images.push(image);
    }
    images
}

#[test]
fn what_is_encoded_decodes_to_the_same() {
    let images = images();
    for image in images {
        let bytes = image.encode().unwrap();
        let again = CpuImage::decode(&bytes).unwrap_or_else(|error| panic!("{}: {error}", image.name));
        assert_eq!(again, image);
        assert_eq!(again.encode().unwrap(), bytes);
        let workload: Vec<u64> = (0..image.launch.workload.len() as u64).map(|at| 3 + at).collect();
        assert_eq!(again.launch.geometry(&workload), image.launch.geometry(&workload));
    }
}

#[test]
fn bytes_of_another_length_are_refused() {
    let bytes = images()[0].encode().unwrap();
    for length in 0..bytes.len() {
        assert!(CpuImage::decode(&bytes[..length]).is_err(), "{length} bytes");
    }
    let more = CpuImage::decode(&[&bytes[..], &[0]].concat()).unwrap_err();
    assert_eq!(more.to_string(), "not an encoded image: 1 bytes after its end");
    let long = CpuImage::decode(&vec![0; MAX_IMAGE_BYTES + 1]).unwrap_err();
    assert_eq!(long, ImageError::TooLong { found: MAX_IMAGE_BYTES + 1 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// No bytes lead to a panic, neither when they are read nor when the launch program that came out is evaluated.
    #[test]
    fn altered_bytes_are_refused_or_can_be_launched(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        workload in prop::collection::vec(prop_oneof![0u64..100, any::<u64>()], 4),
    ) {
        static IMAGES: LazyLock<Vec<CpuImage>> = LazyLock::new(images);
        let mut bytes = which.get(&IMAGES).encode().unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(image) = CpuImage::decode(&bytes) {
            let _ = image.launch.geometry(&workload[..image.launch.workload.len().min(4)]);
            prop_assert_eq!(CpuImage::decode(&image.encode().unwrap()).unwrap(), image);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_an_image(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = CpuImage::decode(&bytes);
    }
}
