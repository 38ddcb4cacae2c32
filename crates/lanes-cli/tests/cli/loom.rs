//! `lanes loom`, as a script sees it.

use crate::common::{Ran, command, lanes, place};
use serde_json::json;
use std::path::Path;

const GEMV: &str = include_str!("../../../tests/kernels/gemv.loom");

/// Two errors, in two definitions, and a kernel between them that is right.
const WRONG: &str = "func.def @f(%a: f32) {\n  %b = scalar.negf %c : f32\n  func.return\n}\nkernel.def @k() {\n  \
    kernel.launch.config workgroups(1, 1, 1) workgroup_size(1, 1, 1) : index\n} launch() {\n  kernel.return\n}\n\
    func.def @g(%a: f32) { func.return ) }\n";

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn check_reports_every_file_and_every_error() {
    let here = place();
    write(here.path(), "a.loom", GEMV);
    write(here.path(), "b.loom", WRONG);
    let found = lanes(here.path(), "loom check {}/a.loom --json").json();
    let a = here.path().join("a.loom");
    assert_eq!(found, json!({"files": [{"file": a.to_str(), "kernels": 1, "status": "ok", "errors": []}]}));
    let ran = lanes(here.path(), "loom check --json {}/b.loom {}/a.loom {}/none.loom {}");
    assert_eq!(ran.status, Some(2), "{ran:?}");
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let files = found["files"].as_array().unwrap();
    let status: Vec<_> = files.iter().map(|file| file["status"].as_str().unwrap()).collect();
    assert_eq!(status, ["error", "ok", "error", "error"]);
    assert_eq!(files[0]["kernels"], 1);
    let errors = files[0]["errors"].as_array().unwrap();
    let places: Vec<_> = errors.iter().map(|error| (error["line"].as_u64(), error["column"].as_u64())).collect();
    assert_eq!(places, [(Some(2), Some(20)), (Some(10), Some(36))]);
    assert_eq!(files[2]["errors"][0]["line"], 0);
    // For people: a line a file, and the line with a caret under what is meant.
    let ran = lanes(here.path(), "loom check {}/b.loom {}/a.loom");
    assert_eq!(ran.status, Some(2), "{ran:?}");
    assert_eq!(ran.out.lines().count(), 2, "{ran:?}");
    assert!(ran.err.contains("b.loom:2:20: `%c` is not defined"), "{ran:?}");
    assert!(ran.err.contains("\n    %b = scalar.negf %c : f32\n                     ^^\n"), "{ran:?}");
    assert!(ran.err.ends_with("lanes: loom check: errors in 1 of 2 files\n"), "{ran:?}");
}

#[test]
fn fmt_rewrites_what_differs_and_nothing_else() {
    let here = place();
    let canonical = "kernel.decl @k(%n: index) launch(%a: buffer)\n";
    write(here.path(), "a.loom", canonical);
    write(here.path(), "b.loom", "kernel.decl@k(%n:index)\r\n\tlaunch( %a : buffer )");
    write(here.path(), "c.loom", WRONG);
    let before = std::fs::metadata(here.path().join("a.loom")).unwrap().modified().unwrap();
    let ran = lanes(here.path(), "loom fmt --check {}/a.loom {}/b.loom");
    let b = format!("{}\n", here.path().join("b.loom").display());
    assert_eq!((ran.status, &ran.out), (Some(1), &b), "{ran:?}");
    assert!(read(here.path(), "b.loom").contains('\r'));
    // A file that is wrong is left as it is, and hinders no other.
    let ran = lanes(here.path(), "loom fmt {}/c.loom {}/a.loom {}/b.loom");
    assert_eq!((ran.status, &ran.out), (Some(2), &b), "{ran:?}");
    assert_eq!(read(here.path(), "b.loom"), canonical);
    assert_eq!(read(here.path(), "c.loom"), WRONG);
    assert_eq!(std::fs::metadata(here.path().join("a.loom")).unwrap().modified().unwrap(), before);
    let ran = lanes(here.path(), "loom fmt --check {}/a.loom {}/b.loom");
    assert_eq!((ran.status, ran.out.as_str()), (Some(0), ""), "{ran:?}");
    let names = std::fs::read_dir(here.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("partial")));
}

#[test]
fn fmt_reads_standard_input() {
    let here = place();
    write(here.path(), "b.loom", " config.def@a=1:i32");
    let input = || std::fs::File::open(here.path().join("b.loom")).unwrap();
    let ran = Ran::from(command(["loom", "fmt", "-"]).stdin(input()).output().unwrap());
    assert_eq!((ran.status, ran.out.as_str()), (Some(0), "config.def @a = 1 : i32\n"), "{ran:?}");
    let ran = Ran::from(command(["loom", "fmt", "--check", "-"]).stdin(input()).output().unwrap());
    assert_eq!((ran.status, ran.out.as_str()), (Some(1), "<stdin>\n"), "{ran:?}");
}

#[test]
fn compile_tells_layout_and_geometry() {
    let here = place();
    write(here.path(), "a.loom", GEMV);
    let line = "loom compile {}/a.loom --kernel gemv --target cpu --json --launch 7 --report -o {}/a.image";
    let found = lanes(here.path(), line).json();
    assert_eq!(found["workgroups"], json!([7, 1, 1]));
    assert_eq!(found["workgroup_size"], json!([4, 1, 1]));
    assert_eq!(
        found["workload"],
        json!([{"name": "rows", "kind": "scalar", "type": "index", "offset": 0, "bytes": 8}])
    );
    assert_eq!(found["arguments"][1]["offset"], 8);
    assert_eq!(found["arguments"][4], json!({"name": "y", "kind": "buffer", "binding": 2}));
    assert!(found["report"]["instructions"].as_u64().unwrap() > 10);
    let bytes = std::fs::read(here.path().join("a.image")).unwrap();
    assert_eq!(found["image_bytes"], bytes.len());
    assert_eq!(::lanes::loom::CpuImage::decode(&bytes).unwrap().name, "gemv");
    let ran = lanes(here.path(), "loom compile {}/a.loom --kernel @gemv --target cpu");
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(ran.out.contains("y  buffer, binding 2") && ran.out.contains("4 x 1 x 1"), "{ran:?}");
}

/// What happened while writing is a run that failed, and a text is never half there.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_run_that_failed() {
    let here = place();
    write(here.path(), "a.loom", "kernel.decl@k(%n:index)launch(%a:buffer)");
    write(here.path(), "b.loom", GEMV);
    let a = here.path().join("a.loom");
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = command(["loom", "fmt", "-"]).stdin(std::fs::File::open(&a).unwrap()).stdout(full()).output().unwrap();
    assert_eq!(ran.status.code(), Some(1), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(String::from_utf8_lossy(&ran.stderr).starts_with("lanes: writing to stdout"));
    let line = "loom compile {}/b.loom --kernel gemv --target cpu -o /dev/full";
    lanes(here.path(), line).refused(1, &["-o /dev/full", "No space left"]);
}

/// A pipe is written to and a link followed: neither is replaced by a file of its name.
#[cfg(unix)]
#[test]
fn compile_writes_where_a_name_leads() {
    use std::os::unix::fs::FileTypeExt;
    let here = place();
    write(here.path(), "a.loom", GEMV);
    let compile = "loom compile {}/a.loom --kernel gemv --target cpu -o ";
    let ran = lanes(here.path(), &format!("{compile}{{}}/plain"));
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let plain = std::fs::read(here.path().join("plain")).unwrap();

    write(here.path(), "behind", "");
    let link = here.path().join("link");
    std::os::unix::fs::symlink("behind", &link).unwrap();
    let ran = lanes(here.path(), &format!("{compile}{{}}/link"));
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(std::fs::read(here.path().join("behind")).unwrap(), plain);

    let pipe = here.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    let ran = lanes(here.path(), &format!("{compile}{{}}/pipe"));
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(pipe.symlink_metadata().unwrap().file_type().is_fifo());
    assert_eq!(reader.join().unwrap(), plain);
}

#[test]
fn compile_prints_ptx() {
    let here = place();
    write(here.path(), "a.loom", GEMV);
    let ran = lanes(here.path(), "loom compile {}/a.loom --kernel gemv --target ptx:sm_80");
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(ran.out.starts_with("// gemv") && ran.out.ends_with("}\n"), "{ran:?}");
    assert!(ran.out.contains(".visible .entry loom_gemv(") && ran.out.contains(".reqntid 4, 1, 1"), "{ran:?}");
    let file = lanes(here.path(), "loom compile {}/a.loom --kernel gemv --target ptx:sm_80 -o {}/a.ptx --launch 3");
    assert!(file.out.contains("for ptx:sm_80") && file.out.contains("3 x 1 x 1"), "{file:?}");
    assert_eq!(std::fs::read_to_string(here.path().join("a.ptx")).unwrap(), ran.out);
    let found = lanes(here.path(), "loom compile {}/a.loom --kernel gemv --target ptx --json --report").json();
    assert_eq!(found["target"], "ptx");
    assert_eq!(found["arguments"][4], json!({"name": "y", "kind": "buffer", "binding": 2}));
    assert_eq!(found["report"]["least_target"], "sm_75");
    assert_eq!(found["text"].as_str().unwrap(), ran.out);
}

#[test]
fn wrong_usage_is_refused_in_words() {
    let here = place();
    write(here.path(), "a.loom", GEMV);
    std::fs::write(here.path().join("latin.loom"), b"//\n// \xe9\n").unwrap();
    let compile = "loom compile {}/a.loom --kernel gemv";
    for (line, says) in [
        ("loom".to_owned(), &["check, fmt, compile, test, bench"][..]),
        ("loom frobnicate".into(), &["frobnicate", "check, fmt, compile, test, bench"]),
        ("loom check".into(), &["lanes loom check", "FILE"]),
        ("loom check --nope {}/a.loom".into(), &["--nope", "--json"]),
        ("loom test".into(), &["lanes loom test", "FILE"]),
        ("loom bench".into(), &["lanes loom bench", "FILE"]),
        (format!("{compile} --target ptx:sm_70"), &["ptx:sm_70", "sm_75, or a later"]),
        (format!("{compile} --target ptx:sm_90z"), &["ptx:sm_90z", "sm_NNa"]),
        (format!("{compile} --target spirv"), &["spirv", "not written yet"]),
        (format!("{compile} --target wgsl"), &["wgsl", "not written yet"]),
        (format!("{compile} --target metal"), &["metal", "cpu, ptx"]),
        (format!("{compile} --target cpu --config k"), &["K=V"]),
        (format!("{compile} --target cpu --config k=1 --config @k=2"), &["`k`", "twice"]),
        (format!("{compile} --target cpu --launch 1,2"), &["1,2", "2 workload arguments; `gemv` has 1: rows"]),
        (format!("{compile} --target cpu --launch x"), &["`x` for rows", "integer of type index"]),
        (format!("{compile} --target cpu --launch -1"), &["-1", "workgroups"]),
        (format!("{compile} --target cpu -o {{}}/none/a.image"), &["-o", "none"]),
        (format!("{compile} --target cpu -o {{}}/a.loom"), &["-o", "it is the text", "another file"]),
        ("loom compile {}/latin.loom --kernel k --target cpu".into(), &["latin.loom:2:4: byte 6, 0xe9, is not UTF-8"]),
        ("loom compile {} --kernel k --target cpu".into(), &["a folder"]),
    ] {
        lanes(here.path(), &line).refused(2, says);
    }
    let ran = lanes(here.path(), "loom compile {}/a.loom --kernel nope --target cpu");
    assert_eq!(ran.status, Some(2), "{ran:?}");
    assert!(ran.err.contains("no kernel `nope`") && ran.err.contains("it has: gemv"), "{ran:?}");
    assert_eq!(read(here.path(), "a.loom"), GEMV);
    let found =
        command(["loom", "check", "--json", here.path().join("latin.loom").to_str().unwrap()]).output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    let error = &found["files"][0]["errors"][0];
    assert_eq!((&error["line"], &error["column"]), (&json!(2), &json!(4)), "{error}");
    // Nothing is no argument.
    write(here.path(), "k.loom", &WRONG[WRONG.find("kernel.def").unwrap()..WRONG.find("func.def @g").unwrap()]);
    let compile = |launch: &str| {
        let file = here.path().join("k.loom");
        let words = ["loom", "compile", file.to_str().unwrap(), "--kernel", "k", "--target", "cpu", "--launch", launch];
        Ran::from(command(words).output().unwrap())
    };
    assert_eq!(compile("").status, Some(0));
    compile("3").refused(2, &["1 workload argument; `k` has none"]);
    let ran = lanes(here.path(), "loom --help");
    assert!(ran.status == Some(0) && ran.out.contains("compile"), "{ran:?}");
}

#[test]
fn files_named_together_are_linked() {
    let here = place();
    let root = "func.decl @twice(%n: index) -> (index)\nkernel.def export(\"e\") @k(%n: index) {\n  \
        %g = func.call @twice(%n) : (index) -> (index)\n  \
        kernel.launch.config workgroups(%g, 1, 1) workgroup_size(1, 1, 1) : index\n} launch() {\n  kernel.return\n}\n";
    let library =
        "func.def @twice(%n: index) -> (index) {\n  %r = index.add %n, %n : index\n  func.return %r : index\n}\n";
    write(here.path(), "a.loom", root);
    write(here.path(), "b.loom", library);
    write(here.path(), "c.loom", &library.replace("%n, %n", "%n, %m"));
    assert_eq!(lanes(here.path(), "loom check {}/a.loom {}/b.loom").status, Some(0));
    for files in ["{}/a.loom {}/b.loom", "{}/b.loom {}/a.loom"] {
        let found =
            lanes(here.path(), &format!("loom compile {files} --kernel e --target cpu --json --launch 7")).json();
        assert_eq!(found["workgroups"], json!([14, 1, 1]));
    }
    // A fault in a library is in its file, whoever reaches it.
    let ran = lanes(here.path(), "loom check --json {}/a.loom {}/c.loom");
    assert_eq!(ran.status, Some(2), "{ran:?}");
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let c = here.path().join("c.loom");
    assert_eq!(found["files"][0]["errors"][0]["file"].as_str(), c.to_str());
    assert_eq!(found["files"][1]["errors"][0]["line"], 2);
    let ran = lanes(here.path(), "loom compile {}/a.loom --kernel e --target cpu");
    assert!(ran.status == Some(2) && ran.err.contains("`@twice` is only declared"), "{ran:?}");
    let ran = lanes(here.path(), "loom compile {}/a.loom {}/b.loom {}/c.loom --kernel e --target cpu");
    assert!(ran.status == Some(2) && ran.err.contains("`@twice` is defined twice"), "{ran:?}");
}
