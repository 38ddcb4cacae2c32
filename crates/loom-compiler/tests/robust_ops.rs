//! Kernels of the corpus of ops, broken on purpose: whatever becomes of a text, it comes back, and does not panic.

use std::collections::BTreeMap;

use loom_compiler::interp::{self, Argument, Limits};
use loom_compiler::{Module, tile};

const TEXTS: [&str; 3] = [
    include_str!("../../tests/loom/packed.loom"),
    include_str!("../../tests/loom/gather.loom"),
    include_str!("../../tests/loom/encodings.loom"),
];

/// A deterministic source of choices.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) as usize % n
    }
}

/// Where the words of a text are: names, numbers and types.
fn words(text: &str) -> Vec<(usize, usize)> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, byte) in text.bytes().enumerate().chain([(text.len(), b' ')]) {
        let inside = byte.is_ascii_alphanumeric() || b"_.%@#-".contains(&byte);
        match start {
            None if inside => start = Some(at),
            Some(from) if !inside => {
                words.push((from, at));
                start = None;
            }
            _ => {}
        }
    }
    words
}

/// Whether it specialised.
fn exercise(source: &str) -> bool {
    let _ = Module::check("fuzz.loom", source);
    let Ok(module) = Module::parse("fuzz.loom", source) else { return false };
    let mut built = false;
    for name in module.kernels() {
        let Ok(kernel) = module.specialise(&name, &BTreeMap::new()) else { continue };
        built = true;
        let _ = tile::compile(&kernel);
        let Ok(mut geometry) = kernel.launch.geometry(&vec![1; kernel.launch.workload.len()]) else { continue };
        geometry.workgroups = geometry.workgroups.map(|count| count.min(2));
        let mut buffers = vec![vec![0x5au8; 300]; kernel.parameters.len()];
        let mut arguments: Vec<_> = buffers.iter_mut().map(|bytes| Argument::Buffer(bytes)).collect();
        let _ = interp::run(&kernel, geometry, &mut arguments, Limits { steps: 20_000, bytes: 1 << 24 });
    }
    built
}

#[test]
fn broken_ops_come_back() {
    let count = std::env::var("LOOM_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(1500);
    let kernels: Vec<&str> = TEXTS
        .iter()
        .flat_map(|text| text.split("kernel.def ").skip(1))
        .map(|rest| rest.split("check.case").next().unwrap_or(rest))
        .collect();
    let numbers = ["0", "1", "-1", "7", "8", "63", "64", "255", "4096", "9223372036854775807", "-9223372036854775808"];
    let mut dice = Dice(0x1234_5678_9abc_def1);
    let (mut built, mut refused) = (0, 0);
    for _ in 0..count {
        let mut text = format!("kernel.def {}", kernels[dice.below(kernels.len())]);
        for _ in 0..1 + dice.below(3) {
            let words_here = words(&text);
            let (from, to) = words_here[dice.below(words_here.len())];
            let other = kernels[dice.below(kernels.len())];
            let others = words(other);
            let (start, end) = others[dice.below(others.len())];
            let with = match dice.below(4) {
                0 => numbers[dice.below(numbers.len())],
                1 => "",
                2 => {
                    let (start, end) = words_here[dice.below(words_here.len())];
                    &text[start..end]
                }
                _ => &other[start..end],
            }
            .to_owned();
            text.replace_range(from..to, &with);
        }
        if exercise(&text) { built += 1 } else { refused += 1 }
    }
    // Else this would be a test of nothing.
    assert!(built > count / 50 && refused > count / 50, "{built} built, {refused} refused");
}
