use super::cache::Key;
use super::*;
use loom_compiler::types::ScalarType;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

/// `name` adds `amount` to an element.
fn adds(name: &str, amount: u32) -> KernelSource {
    let text = format!(
        "kernel.def @{name}(%n: index) {{
           %one = index.constant 1 : index
           kernel.launch.config workgroups(%n, %one, %one) workgroup_size(%one, %one, %one) : index
         }} launch(%n: index, %x: buffer, %scale: f32, %k: i32, %narrow: f16, %y: buffer, %at: offset) {{
           %view = buffer.view %x[%at] : buffer -> view<[%n]xi32>
           %item = kernel.workgroup.id<x> : index
           %value = view.load %view[%item] : view<[%n]xi32> -> i32
           %more = scalar.constant {amount} : i32
           %sum = scalar.addi %value, %more : i32
           view.store %sum, %view[%item] : i32, view<[%n]xi32>
           kernel.return
         }}"
    );
    KernelSource::new(format!("{name}.loom"), text, name)
}

fn wrong(name: &str) -> KernelSource {
    KernelSource::new(format!("{name}.loom"), format!("kernel.def @{name}() {{ nonsense"), name)
}

/// Counts what it compiles; calls `before` on each.
struct Counting<F>(AtomicUsize, F);

impl<F: Fn(&KernelSource) + Send + Sync> KernelCompiler for Counting<F> {
    fn version(&self) -> &str {
        "counting 1"
    }

    fn compile(&self, source: &KernelSource, target: &Target) -> Result<Arc<CpuImage>, DeviceError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        (self.1)(source);
        LoomCompiler.compile(source, target)
    }
}

fn counting() -> Counting<fn(&KernelSource)> {
    Counting(AtomicUsize::new(0), |_| {})
}

fn batch(cache: &KernelCache, sources: &[KernelSource]) -> Vec<Arc<CpuImage>> {
    compile_batch(&LoomCompiler, &Target::cpu(), cache, sources).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn images_come_in_the_order_asked_and_equal_kernels_are_one() {
    let (cache, compiler) = (KernelCache::in_memory(), counting());
    // 7 kernels, each several times; every other one from a file of another name.
    let sources: Vec<_> = (0..40)
        .map(|at| {
            let source = adds(&format!("k{}", at * 5 % 7), 1);
            KernelSource { name: format!("{}.loom", at % 2), ..source }
        })
        .collect();
    for round in 1..=2 {
        let images = compile_batch(&compiler, &Target::cpu(), &cache, &sources).unwrap();
        for (at, image) in images.iter().enumerate() {
            assert_eq!(image.name, format!("k{}", at * 5 % 7));
            assert!(Arc::ptr_eq(image, &images[at % 7]), "one image for both");
        }
        assert_eq!(compiler.0.load(Ordering::Relaxed), 7);
        let stats = cache.stats();
        assert_eq!((stats.compiled, stats.misses, stats.memory_hits), (7, 7, 40 * round - 7));
    }
    assert_eq!(compile_batch(&compiler, &Target::cpu(), &cache, &[]).unwrap(), []);
}

#[test]
fn two_kernels_are_compiled_at_the_same_time() {
    // Each waits until the other is being compiled, too: one after the other, this would never end.
    let meet = Barrier::new(2);
    let compiler = Counting(AtomicUsize::new(0), |_: &KernelSource| {
        meet.wait();
    });
    let images = compile_batch(&compiler, &Target::cpu(), &KernelCache::in_memory(), &[adds("a", 1), adds("b", 1)]);
    assert_eq!(images.unwrap().len(), 2);
}

#[test]
fn batches_on_many_threads_compile_each_kernel_once() {
    let (cache, start) = (KernelCache::in_memory(), Barrier::new(8));
    let compiler = Counting(AtomicUsize::new(0), |_: &KernelSource| std::thread::sleep(Duration::from_millis(5)));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (cache, start, compiler) = (&cache, &start, &compiler);
            scope.spawn(move || {
                // Each in another order.
                let names: Vec<_> = (0..6).map(|at| format!("k{}", (at + thread) % 6)).collect();
                let sources: Vec<_> = names.iter().map(|name| adds(name, 3)).collect();
                start.wait();
                let images = compile_batch(compiler, &Target::cpu(), cache, &sources).unwrap();
                assert_eq!(images.iter().map(|image| image.name.clone()).collect::<Vec<_>>(), names);
            });
        }
    });
    assert_eq!(compiler.0.load(Ordering::Relaxed), 6);
    assert_eq!(cache.stats().memory_hits, 8 * 6 - 6);
}

#[test]
fn every_kernel_that_does_not_build_is_reported_and_the_others_are_kept() {
    let cache = KernelCache::in_memory();
    let sources = [adds("a", 1), wrong("b"), adds("c", 1), wrong("d"), wrong("b")];
    let errors = compile_batch(&LoomCompiler, &Target::cpu(), &cache, &sources).unwrap_err();
    assert_eq!(errors.failed.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1, 3, 4]);
    let text = errors.to_string();
    assert!(text.starts_with("3 of 5 kernels did not build\n[1] kernel b did not build: b.loom:1:"), "{text}");
    assert!(text.contains("[3] kernel d did not build: d.loom:1:"), "{text}");
    match errors.into_device_error() {
        DeviceError::Build { kernel, log } => assert_eq!((kernel.as_str(), log), ("b, d, b", text)),
        other => panic!("{other}"),
    }
    let one = compile_batch(&LoomCompiler, &Target::cpu(), &cache, &sources[1..3]).unwrap_err();
    assert!(matches!(one.into_device_error(), DeviceError::Build { kernel, .. } if kernel == "b"));
    // The failures are tried again, the others are there.
    assert_eq!((cache.stats().compiled, cache.stats().misses), (2, 2 + 2 + 1));

    let elsewhere = Target { name: "sm_90".into(), driver: "1".into() };
    let errors = compile_batch(&LoomCompiler, &elsewhere, &cache, &sources[..1]).unwrap_err();
    assert!(matches!(errors.failed[..], [(0, DeviceError::Unsupported { .. })]), "{errors}");
}

#[test]
fn a_compiler_that_panics_fails_its_kernel_alone() {
    let compiler = Counting(AtomicUsize::new(0), |source: &KernelSource| {
        assert_ne!(source.symbol, "b", "not this one");
    });
    let cache = KernelCache::in_memory();
    let errors = compile_batch(&compiler, &Target::cpu(), &cache, &[adds("a", 1), adds("b", 1)]).unwrap_err();
    assert!(errors.to_string().contains("[1] kernel b did not build: the compiler panicked"), "{errors}");
    assert_eq!(batch(&cache, &[adds("b", 1)]).len(), 1);
}

/// Does not even say which compiler it is.
struct Nameless;

impl KernelCompiler for Nameless {
    fn version(&self) -> &str {
        panic!("no version")
    }

    fn compile(&self, _: &KernelSource, _: &Target) -> Result<Arc<CpuImage>, DeviceError> {
        panic!("nor does it compile")
    }
}

#[test]
fn a_compiler_that_panics_over_its_version_is_an_error() {
    let cache = KernelCache::in_memory();
    let errors = compile_batch(&Nameless, &Target::cpu(), &cache, &[adds("a", 1)]).unwrap_err();
    assert_eq!(errors.into_device_error().to_string(), "kernel a did not build: the compiler panicked: no version");
    assert_eq!(batch(&cache, &[adds("a", 1)]).len(), 1, "the cache is as good as before");
}

#[test]
fn a_key_is_all_that_an_image_depends_on_and_no_more() {
    let (source, target) = (adds("a", 1).with("ab", "c"), Target::cpu());
    let key = Key::of(&source, &target, "1");
    assert_eq!(key, Key::of(&KernelSource { name: "other".into(), ..source.clone() }, &target, "1"));
    let others = [
        Key::of(&adds("a", 2).with("ab", "c"), &target, "1"),
        Key::of(&KernelSource { symbol: "b".into(), ..source.clone() }, &target, "1"),
        Key::of(&adds("a", 1), &target, "1"),
        Key::of(&adds("a", 1).with("a", "bc"), &target, "1"),
        Key::of(&adds("a", 1).with("ab", "c").with("d", ""), &target, "1"),
        Key::of(&source, &Target { name: "cpu2".into(), ..target.clone() }, "1"),
        Key::of(&source, &Target { driver: "2".into(), ..target.clone() }, "1"),
        Key::of(&source, &target, "2"),
    ];
    for (at, other) in others.iter().enumerate() {
        assert_ne!(*other, key, "{at}");
    }
}

#[test]
fn memory_keeps_so_many_images_and_those_used_last() {
    let cache = KernelCache::new(CacheOptions { images_max: 2, ..CacheOptions::default() });
    let compiled = |names: &[&str]| {
        let before = cache.stats().compiled;
        for name in names {
            batch(&cache, &[adds(name, 1)]);
        }
        cache.stats().compiled - before
    };
    assert_eq!(compiled(&["a", "b", "a"]), 2);
    // `b` goes, `a` was used since.
    assert_eq!(compiled(&["c", "a"]), 1);
    assert_eq!(compiled(&["b"]), 1);
    cache.clear();
    assert_eq!(compiled(&["a"]), 1);
}

fn images_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).map(|entries| entries.map(|entry| entry.unwrap().path()).collect());
    let mut files: Vec<PathBuf> = entries.unwrap_or_default();
    files.sort();
    files
}

#[test]
fn a_second_cache_over_the_same_folder_reads_what_the_first_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("not/there/yet");
    let sources: Vec<_> = (0..5).map(|at| adds(&format!("k{at}"), at)).collect();
    let first = KernelCache::on_disk(&folder);
    let images = batch(&first, &sources);
    assert_eq!((first.stats().compiled, first.stats().disk_hits, first.stats().write_failures), (5, 0, 0));
    assert_eq!(images_in(&folder).len(), 5);
    let second = KernelCache::on_disk(&folder);
    assert_eq!(batch(&second, &sources), images);
    let stats = second.stats();
    assert_eq!((stats.compiled, stats.disk_hits, stats.misses, stats.damaged), (0, 5, 0, 0));
    // Another compiler's images are not its own.
    let compiler = counting();
    compile_batch(&compiler, &Target::cpu(), &second, &sources).unwrap();
    assert_eq!(compiler.0.load(Ordering::Relaxed), 5);
}

/// A file like those that are written, around any payload.
fn framed(format: u32, key: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = [b"LANESIMG", &format.to_le_bytes()[..], key, &(payload.len() as u64).to_le_bytes()].concat();
    let checksum = Sha256::digest([&bytes, payload].concat());
    bytes.extend(checksum);
    bytes.extend(payload);
    bytes
}

#[test]
fn a_damaged_file_is_a_miss_and_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let source = [adds("a", 1)];
    let image = batch(&KernelCache::on_disk(folder.path()), &source);
    let path = images_in(folder.path()).remove(0);
    let good = fs::read(&path).unwrap();
    let (key, payload) = (&good[12..44], &good[84..]);
    assert_eq!(framed(1, key, payload), good);
    batch(&KernelCache::on_disk(folder.path()), &[adds("b", 1)]);
    let other = images_in(folder.path()).into_iter().find(|other| *other != path).unwrap();

    let mut damaged: Vec<Vec<u8>> = (0..good.len()).step_by(7).map(|length| good[..length].to_vec()).collect();
    damaged.extend((0..good.len()).step_by(5).map(|at| {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        bytes
    }));
    damaged.extend([good[..good.len() - 1].to_vec(), [&good[..], &[0]].concat(), b"LANESIMG".repeat(5000)]);
    // The file of another kernel, another format, another key, and payloads that are none, all with a right checksum.
    damaged.push(fs::read(other).unwrap());
    damaged.push(framed(2, key, payload));
    damaged.push(framed(1, &[7; 32], payload));
    for payload in [&payload[..payload.len() - 1], &[payload, &[0]].concat(), &[0xff; 64], &[]] {
        damaged.push(framed(1, key, payload));
    }
    for (at, bytes) in damaged.iter().enumerate() {
        fs::write(&path, bytes).unwrap();
        let cache = KernelCache::on_disk(folder.path());
        assert_eq!(batch(&cache, &source), image, "case {at}");
        let stats = cache.stats();
        assert_eq!((stats.compiled, stats.damaged, stats.misses, stats.write_failures), (1, 1, 1, 0), "case {at}");
        assert!(stats.note.is_some_and(|note| note.contains(".image: ")), "case {at}");
        assert_eq!(fs::read(&path).unwrap(), good, "case {at}");
    }
}

#[test]
fn a_folder_that_takes_no_files_fails_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = [adds("a", 1)];
    // A file where the folder should be.
    let file = folder.path().join("file");
    fs::write(&file, "text").unwrap();
    for place in [file.clone(), file.join("below")] {
        let cache = KernelCache::on_disk(place);
        batch(&cache, &source);
        let stats = cache.stats();
        assert_eq!((stats.compiled, stats.write_failures), (1, 1));
        assert!(stats.note.is_some_and(|note| note.contains("file")));
    }
    // A folder where the file should be.
    let images = folder.path().join("images");
    batch(&KernelCache::on_disk(&images), &source);
    let path = images_in(&images).remove(0);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let cache = KernelCache::on_disk(&images);
    batch(&cache, &source);
    let stats = cache.stats();
    assert_eq!((stats.compiled, stats.damaged, stats.write_failures), (1, 1, 1));
    assert_eq!(images_in(&images), [path], "no part of a file is left");
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_file_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let source = [adds("a", 1)];
    batch(&KernelCache::on_disk(folder.path()), &source);
    let path = images_in(folder.path()).remove(0);
    fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let cache = KernelCache::on_disk(folder.path());
    batch(&cache, &source);
    assert_eq!((cache.stats().damaged, cache.stats().write_failures), (1, 0));
    assert!(fs::metadata(&path).unwrap().is_file());
}

#[test]
fn writers_of_one_folder_never_show_part_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let sources: Vec<_> = (0..4).map(|at| adds(&format!("k{at}"), at)).collect();
    let images = batch(&KernelCache::in_memory(), &sources);
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (sources, images, done) = (&sources, &images, &done);
            let folder = folder.path();
            scope.spawn(move || {
                for _ in 0..25 {
                    // Each writes over what the others wrote: removing makes them miss.
                    let whole = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "image");
                    images_in(folder).into_iter().find(whole).map(fs::remove_file);
                    let cache = KernelCache::on_disk(folder);
                    assert_eq!(batch(&cache, sources), *images);
                    assert_eq!((cache.stats().damaged, cache.stats().write_failures), (0, 0), "{:?}", cache.stats());
                }
                done.fetch_add(1, Ordering::Release);
            });
        }
    });
    assert_eq!(done.load(Ordering::Acquire), 4);
    let left = images_in(folder.path());
    assert!(left.iter().all(|path| path.extension().is_some_and(|ending| ending == "image")), "{left:?}");
}

#[test]
fn a_folder_stays_within_its_size_and_keeps_what_was_used_last() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c", "d"];
    let sources = names.map(|name| adds(name, 1));
    let mut paths = Vec::new();
    for (at, source) in sources.iter().enumerate() {
        batch(&KernelCache::on_disk(folder.path()), std::slice::from_ref(source));
        let new = images_in(folder.path()).into_iter().find(|path| !paths.contains(path)).unwrap();
        let used = SystemTime::now() - Duration::from_secs(100 - at as u64);
        File::options().append(true).open(&new).unwrap().set_modified(used).unwrap();
        paths.push(new);
    }
    // What others keep there, and what they may still be writing, stays; what they left behind does not.
    let hex = "0".repeat(64);
    let parts = [format!(".{hex}.1.1.part"), format!(".{hex}.1.2.part"), "notes.image".into(), "own.part".into()];
    let parts = parts.map(|name| folder.path().join(name));
    for (at, part) in parts.iter().enumerate() {
        fs::write(part, "x").unwrap();
        let used = SystemTime::now() - Duration::from_secs(if at == 1 { 0 } else { 7200 });
        File::options().append(true).open(part).unwrap().set_modified(used).unwrap();
    }
    let size = fs::metadata(&paths[0]).unwrap().len();
    let options = CacheOptions {
        folder: Some(folder.path().into()),
        folder_bytes_max: 3 * size + size / 2,
        ..CacheOptions::default()
    };
    let cache = KernelCache::new(options.clone());
    // `a`, the oldest, is used; a new one is written; `b` and `c` are now the oldest.
    batch(&cache, &sources[..1]);
    batch(&cache, &[adds("e", 1)]);
    assert_eq!((cache.stats().disk_hits, cache.stats().pruned, cache.stats().note), (1, 2, None));
    let there = [&paths[0], &paths[1], &paths[2], &paths[3]].map(|path| path.exists());
    assert_eq!(there, [true, false, false, true]);
    assert_eq!(parts.map(|part| part.exists()), [false, true, true, true]);
    // What is larger than the folder may be is not written at all; the rest is over its bound now, too.
    let cache = KernelCache::new(CacheOptions { folder_bytes_max: size - 1, ..options });
    batch(&cache, &[adds("f", 1)]);
    assert_eq!((cache.stats().compiled, cache.stats().write_failures, cache.stats().pruned), (1, 0, 3));
}

/// Run by the test below in a process of its own.
#[test]
#[ignore = "its folder comes from the environment"]
fn child() {
    let cache = KernelCache::from_env();
    batch(&cache, &[adds("a", 1)]);
    println!("compiled {} read {}", cache.stats().compiled, cache.stats().disk_hits);
}

#[test]
fn the_environment_names_the_folder_and_another_process_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = |folder: &std::ffi::OsStr| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["compile::tests::child", "--exact", "--ignored", "--nocapture"]).env("LANES_CACHE_DIR", folder);
        String::from_utf8(child.output().unwrap().stdout).unwrap()
    };
    let path = folder.path().as_os_str();
    for (folder, expected) in
        [(std::ffi::OsStr::new(""), "compiled 1 read 0"), (path, "compiled 1 read 0"), (path, "compiled 0 read 1")]
    {
        let said = run(folder);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn arguments_are_laid_out_as_documented_and_numbers_are_checked() {
    let image = batch(&KernelCache::in_memory(), &[adds("a", 1)]).remove(0);
    let layout = ArgumentLayout::of(&image);
    let scalar = |ty, offset, bytes| Passed::Scalar { ty, offset, bytes };
    let buffer = |binding| Passed::Buffer { binding };
    let expected = [
        ("n", scalar(ScalarType::Index, 0, 8)),
        ("x", buffer(0)),
        ("scale", scalar(ScalarType::F32, 8, 4)),
        ("k", scalar(ScalarType::I32, 12, 4)),
        ("narrow", scalar(ScalarType::F16, 16, 4)),
        ("y", buffer(1)),
        ("at", scalar(ScalarType::Offset, 20, 8)),
    ];
    let found: Vec<_> = layout.launch().iter().map(|argument| (argument.name.as_str(), argument.passed)).collect();
    assert_eq!(found, expected);
    assert_eq!((layout.bindings(), layout.launch_bytes(), layout.workload_bytes()), (2, 28, 8));
    let pack = |n: i64, scale: f32, k: i32, narrow: u32, at: u64| {
        let (n, scale, k) = (n.to_le_bytes(), scale.to_le_bytes(), k.to_le_bytes());
        [&n[..], &scale[..], &k[..], &narrow.to_le_bytes()[..], &at.to_le_bytes()[..]].concat()
    };
    let slots = layout.launch_scalars(&pack(-5, 1.5, -7, 0x3c00, 64)[..]).unwrap();
    assert_eq!(slots, [-5i64 as u64, 0x3fc0_0000, 0xffff_fff9, 0x3c00, 64]);

    assert_eq!(layout.workload_scalars(&[9u64][..]).unwrap(), [9]);
    assert_eq!(layout.workload_scalars(&[9usize][..]).unwrap(), [9]);
    assert_eq!(layout.workload_scalars(&9u64.to_le_bytes()[..]).unwrap(), [9]);
    let refused = |found: Result<Vec<u64>, ArgumentError>, expected: &str| {
        assert_eq!(found.unwrap_err().to_string(), format!("kernel a: {expected}"));
    };
    refused(layout.workload_scalars(&[][..] as &[u64]), "0 workload scalars given, it has 1: n: index");
    refused(layout.workload_scalars(&[0u8; 4][..]), "4 bytes of packed workload scalars given, it has 8: n: index");
    refused(
        layout.workload_scalars(&[1u64 << 63][..]),
        "0x8000000000000000 given for workload argument n, which is index: 0 to 2^63 - 1 are accepted",
    );
    refused(
        layout.launch_scalars(&[1u64; 5][..]),
        "an index given for launch argument scale, which is f32: it takes packed scalars",
    );
    refused(
        layout.launch_scalars(&pack(1, 1.0, 1, 0x1_0000, 0)[..]),
        "0x10000 given for launch argument narrow, which is f16: its bits followed by zeros are accepted",
    );
    refused(
        layout.launch_scalars(&pack(1, 1.0, 1, 0, u64::MAX)[..]),
        "0xffffffffffffffff given for launch argument at, which is offset: 0 to 2^63 - 1 are accepted",
    );
}

#[test]
fn narrow_integers_fill_their_word_with_zeros_or_their_sign() {
    let text = "kernel.def @k() {
           %one = index.constant 1 : index
           kernel.launch.config workgroups(%one, %one, %one) workgroup_size(%one, %one, %one) : index
         } launch(%a: i8, %b: i16, %c: i1, %d: i64) { kernel.return }";
    let image = batch(&KernelCache::in_memory(), &[KernelSource::new("k.loom", text, "k")]).remove(0);
    let layout = ArgumentLayout::of(&image);
    let pack = |a: u32, b: u32, c: u32, d: i64| {
        let words = [a, b, c].map(u32::to_le_bytes).concat();
        layout.launch_scalars(&[words, d.to_le_bytes().to_vec()].concat()[..])
    };
    assert_eq!(pack(0xff, 0x8000, 1, -1).unwrap(), [0xff, 0x8000, 1, u64::MAX]);
    assert_eq!(pack(-1i32 as u32, -32768i32 as u32, 0, 5).unwrap(), [0xff, 0x8000, 0, 5]);
    for (a, b, c, name) in [(0x100, 0, 0, "a"), (0xffff_ff7f, 0, 0, "a"), (0, 0x1_0000, 0, "b"), (0, 0, 2, "c")] {
        let error = pack(a, b, c, 0).unwrap_err().to_string();
        assert!(error.contains(&format!("launch argument {name}, which is i")), "{error}");
    }
}
