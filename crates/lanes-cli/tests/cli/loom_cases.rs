//! `lanes loom test | bench`, as a script sees them.

use crate::common::{lanes, place, read_npy, write_npy};
use serde_json::{Value, json};
use std::path::Path;

const KERNELS: &str = "kernel.def @double(%n: index) {
  %one = index.constant 1 : index
  kernel.launch.config workgroups(%n, %one, %one) workgroup_size(%one, %one, %one) : index
} launch(%n: index, %x: buffer) {
  %zero = index.constant 0 : offset
  %view = buffer.view %x[%zero] : buffer -> view<[%n]xf32>
  %at = kernel.workgroup.id<x> : index
  %value = view.load %view[%at] : view<[%n]xf32> -> f32
  %sum = scalar.addf %value, %value : f32
  view.store %sum, %view[%at] : f32, view<[%n]xf32>
  kernel.return
}
";

/// Doubles 0, 1, 2 .., and expects that of all but the last of these counts.
const CASES: &str = "check.case public @doubles {
  %n = check.param.choice values([1, 2, 4]) name(\"n\") : index
  %x = check.generate.iota offset(0.0) step(1.0) : tensor<[%n]xf32>
  %expected = check.generate.iota offset(0.0) step(2.0) period(3) : tensor<[%n]xf32>
  kernel.launch @double[%n](%n, %x) : [index](index, tensor<[%n]xf32>)
  check.expect.equal actual(%x) expected(%expected) : tensor<[%n]xf32>
  check.return
}
check.case @hidden {
  check.expect.event<device> {}
  check.return
}
check.benchmark<@doubles> @small {n = 2}
check.benchmark<@doubles> @wrong {n = 4}
check.benchmark<@doubles> @none {n = 3}
";

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

#[test]
fn test_reports_every_sample() {
    let here = place();
    write(here.path(), "a.loom", &format!("{KERNELS}{CASES}"));
    let file = here.path().join("a.loom");
    let ran = lanes(here.path(), "loom test {}/a.loom --json");
    assert_eq!(ran.status, Some(1), "{ran:?}");
    let row = |sample: u64, n: u64, status: &str, message: Value| json!({"case": "doubles", "sample": sample, "parameters": {"n": n}, "status": status, "message": message});
    let line = 1 + format!("{KERNELS}{CASES}").lines().position(|line| line.contains("expect.equal")).unwrap();
    let message = format!("line {line}: `%x`[3] is 6, expected 0 (1 of 4 elements differ)");
    let cases =
        [row(0, 1, "pass", Value::Null), row(1, 2, "pass", Value::Null), row(2, 4, "fail", message.clone().into())];
    let files = json!([{"file": file.to_str(), "cases": cases}]);
    let expected = json!({"files": files, "pass": 2, "fail": 1, "unsupported": 0, "error": 0});
    assert_eq!(parsed(&ran.out), expected);
    let ran = lanes(here.path(), "loom test {}/a.loom");
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(ran.out.contains(&format!("@doubles  sample 2 (n=4)  fail: {message}")), "{ran:?}");
    assert!(ran.out.contains("@doubles  2 samples passed"), "{ran:?}");
    assert!(ran.out.ends_with("2 passed, 1 failed, 0 unsupported, 0 in error\n"), "{ran:?}");
    assert!(!ran.out.contains("hidden"), "{ran:?}");
}

#[test]
fn test_runs_what_is_asked_for() {
    let here = place();
    write(here.path(), "a.loom", &format!("{KERNELS}{CASES}"));
    let found = lanes(here.path(), "loom test {}/a.loom --json --case @doubles --sample 1").json();
    assert_eq!((&found["pass"], &found["fail"]), (&json!(1), &json!(0)));
    assert_eq!(found["files"][0]["cases"][0]["sample"], 1);
    // What nobody here has is no failure.
    let found = lanes(here.path(), "loom test {}/a.loom --json --case hidden").json();
    assert_eq!(found["unsupported"], 1);
    let message = found["files"][0]["cases"][0]["message"].as_str().unwrap();
    assert!(message.contains("event `device` is not observed"), "{message}");
    for (rest, says) in [
        ("--case @nope", &["--case @nope", "no file has such a case", "@doubles, @hidden"][..]),
        ("--sample 3", &["--sample 3", "no case has so many samples"]),
        ("--sample x", &["--sample", "a whole number from 0"]),
        ("--sample -1", &["--sample", "a whole number from 0"]),
        ("--threads 0", &["--threads", "a whole number from 1 to 1024"]),
        ("--steps-max -1", &["--steps-max", "a whole number from 1"]),
        ("--backend vulkan", &["--backend vulkan", "not written yet"]),
        ("--backend tpu", &["tpu", "cpu, cuda"]),
        ("--config n", &["K=V"]),
        ("--config n=1 --config @n=2", &["`n`", "twice"]),
    ] {
        lanes(here.path(), &format!("loom test {{}}/a.loom {rest}")).refused(2, says);
    }
}

/// Files named together are libraries of each other; a file that is wrong is wrong input, and a case that does not verify is
/// an error.
#[test]
fn test_links_files_and_reports_wrong_ones() {
    let here = place();
    write(here.path(), "kernels.loom", KERNELS);
    write(here.path(), "cases.loom", CASES);
    let ran = lanes(here.path(), "loom test {}/cases.loom {}/kernels.loom --json --case doubles --sample 0");
    let found = ran.json();
    assert_eq!((&found["pass"], found["files"].as_array().unwrap().len()), (&json!(1), 2));
    write(here.path(), "bad.loom", "check.case public @bad {\n  check.frobnicate\n  check.return\n}\n");
    let ran = lanes(here.path(), "loom test {}/bad.loom --json");
    assert_eq!(ran.status, Some(1), "{ran:?}");
    let found = parsed(&ran.out);
    assert_eq!((&found["error"], &found["files"][0]["cases"][0]["status"]), (&json!(1), &json!("error")));
    let message = found["files"][0]["cases"][0]["message"].as_str().unwrap();
    assert!(message.contains("bad.loom:2:3") && message.contains("check.frobnicate"), "{message}");
    write(here.path(), "broken.loom", "check.case public @c {\n");
    let ran = lanes(here.path(), "loom test {}/broken.loom {}/kernels.loom --json");
    assert_eq!(ran.status, Some(2), "{ran:?}");
    let found = parsed(&ran.out);
    assert_eq!(found["files"][0]["cases"], json!([]));
    assert_eq!(found["files"][0]["errors"][0]["line"], 1);
    assert!(ran.err.contains("errors in 1 of 2 files"), "{ran:?}");
}

/// A loop without end is ended by a limit that is said, with the option that raises it; what stays below it runs.
#[test]
fn loops_without_end_are_ended() {
    let here = place();
    let counts = |turns: &str| {
        format!(
            "kernel.def @waits() {{\n  kernel.launch.config workgroups(1, 1, 1) workgroup_size(1, 1, 1) : index\n}} \
             launch(%x: buffer) {{\n  %base = index.constant 0 : offset\n  %v = buffer.view %x[%base] : buffer -> view<1xi32>\n  \
             %low = index.constant 0 : index\n  %high = index.constant {turns} : index\n  %one = index.constant 1 : index\n  \
             scf.for %i = [%low to %high step %one] {{\n    %n = index.cast %i : index to i32\n    \
             view.store<volatile> %n, %v[0] : i32, view<1xi32>\n  }}\n  kernel.return\n}}\n\
             check.case public @waiting {{\n  %x = check.generate.fill value(0) : tensor<1xi32>\n  \
             kernel.launch @waits(%x) : (tensor<1xi32>)\n  check.return\n}}\n"
        )
    };
    write(here.path(), "long.loom", &counts("1000000000000"));
    write(here.path(), "short.loom", &counts("900"));
    let ran = lanes(here.path(), "loom test {}/long.loom --steps-max 1000");
    assert_eq!(ran.status, Some(1), "{ran:?}");
    for said in ["scf.for", "line 9", "1000 turns of loops", "--steps-max N allows more"] {
        assert!(ran.out.contains(said), "{ran:?}");
    }
    assert_eq!(lanes(here.path(), "loom test {}/short.loom --steps-max 1000").status, Some(0));
    assert_eq!(lanes(here.path(), "loom test {}/short.loom --steps-max 0").status, Some(2));
}

/// A text is no library of its own: named twice, in whatever way, it is looked at once.
#[test]
fn a_file_named_twice_is_one() {
    let here = place();
    write(here.path(), "a.loom", &format!("{KERNELS}{CASES}"));
    for command in ["test --sample 0", "check", "fmt --check", "compile --kernel double --target cpu"] {
        let once = lanes(here.path(), &format!("loom {command} {{}}/a.loom"));
        let twice = lanes(here.path(), &format!("loom {command} {{}}/a.loom {{}}/./a.loom"));
        assert_eq!((once.status, &once.out, &once.err), (twice.status, &twice.out, &twice.err), "{command}");
    }
}

#[test]
fn files_are_read_and_written_beside_the_text() {
    let here = place();
    let case = |path: &str, out: &str| {
        format!(
            "{KERNELS}check.case public @c {{\n  %n = check.literal value(3) : index\n  \
             %x = check.file.read.npy path(\"{path}\") : tensor<3xf32>\n  \
             kernel.launch @double[%n](%n, %x) : [index](index, tensor<3xf32>)\n  \
             check.file.write.npy value(%x) path(\"{out}\") : tensor<3xf32>\n  \
             check.expect.equal actual(%x) expected(%x) : tensor<3xf32>\n  check.return\n}}\n"
        )
    };
    write_npy(here.path().join("in.npy"), &[3], [1.0, -2.5, 4.0]);
    write(here.path(), "a.loom", &case("in.npy", "out.npy"));
    let ran = lanes(here.path(), "loom test {}/a.loom");
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert_eq!(read_npy(here.path().join("out.npy")), (vec![3], vec![2.0, -5.0, 8.0]));
    for (path, out, says) in [
        ("none.npy", "out.npy", "none.npy"),
        ("../in.npy", "out.npy", "below the text's folder"),
        ("/etc/passwd", "out.npy", "below the text's folder"),
        ("in.npy", "../out.npy", "below the text's folder"),
    ] {
        write(here.path(), "a.loom", &case(path, out));
        let ran = lanes(here.path(), "loom test {}/a.loom");
        assert!(ran.status == Some(1) && ran.out.contains(says), "{path} {out}: {ran:?}");
    }
    // An array takes the place of an array or of nothing, not of the text itself or of what else lies there.
    let text = case("in.npy", "a.loom");
    write(here.path(), "a.loom", &text);
    write(here.path(), "empty", "");
    std::fs::create_dir(here.path().join("folder")).unwrap();
    let ran = lanes(here.path(), "loom test {}/a.loom");
    assert!(ran.status == Some(1) && ran.out.contains("a.loom: it is there and no .npy file"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(here.path().join("a.loom")).unwrap(), text);
    for (out, status) in [("folder", 1), ("empty", 0), ("out.npy", 0)] {
        write(here.path(), "a.loom", &case("in.npy", out));
        assert_eq!(lanes(here.path(), "loom test {}/a.loom").status, Some(status), "{out}");
    }
    write_npy(here.path().join("in.npy"), &[2, 2], [1.0; 4]);
    write(here.path(), "a.loom", &case("in.npy", "out.npy"));
    let ran = lanes(here.path(), "loom test {}/a.loom");
    assert!(ran.out.contains("holds f32 of shape [2, 2], expected f32 of shape [3]"), "{ran:?}");
}

#[test]
fn bench_times_what_passed() {
    let here = place();
    write(here.path(), "a.loom", &format!("{KERNELS}{CASES}"));
    let ran = lanes(here.path(), "loom bench {}/a.loom --json --samples 5");
    assert_eq!(ran.status, Some(1), "{ran:?}");
    let found = parsed(&ran.out);
    assert_eq!(found["backend"], "cpu");
    let rows = found["files"][0]["benchmarks"].as_array().unwrap();
    let field = |at: usize, key: &str| rows[at][key].clone();
    let column = |key: &str| rows.iter().map(|row| row[key].clone()).collect::<Vec<_>>();
    assert_eq!(column("benchmark"), ["small", "wrong", "none"]);
    assert_eq!(column("status"), ["pass", "fail", "error"]);
    assert_eq!((field(0, "parameters"), field(0, "launches")), (json!({"n": 2}), json!(1)));
    for key in ["dispatch_us", "end_to_end_us"] {
        let times = field(0, key);
        let at = |q: &str| times[q].as_f64().unwrap();
        assert_eq!(times["rounds"], 5);
        assert!(at("min") > 0.0 && at("min") <= at("p50") && at("p50") <= at("max"), "{times}");
        // A wrong result is not timed.
        assert_eq!((field(1, key), field(2, key)), (Value::Null, Value::Null));
    }
    assert!(field(2, "message").as_str().unwrap().contains("does not take the value 3"));
    let ran = lanes(here.path(), "loom bench {}/a.loom --benchmark @small --samples 3");
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(ran.out.contains("@small (n=2)  dispatch ") && ran.out.contains("us median"), "{ran:?}");
    lanes(here.path(), "loom bench {}/a.loom --benchmark @nope").refused(2, &["@nope", "@small, @wrong, @none"]);
    lanes(here.path(), "loom bench {}/a.loom --samples 0").refused(2, &["--samples"]);
}

/// What runs nothing says so, and what binds nothing: a slip in a name is seen. Neither is an error, since one list of values may serve many
/// files, and a file may hold kernels alone.
#[test]
fn what_does_nothing_is_told() {
    let here = place();
    write(here.path(), "kernels.loom", KERNELS);
    write(here.path(), "hidden.loom", &format!("{KERNELS}{CASES}").replace("check.case public", "check.case"));
    write(here.path(), "keyed.loom", &format!("config.def @items = 64 : index\n{KERNELS}{CASES}"));
    let ran = lanes(here.path(), "loom test {}/kernels.loom");
    assert_eq!((ran.status, ran.err.trim()), (Some(0), "lanes: loom test: no file has a `check.case public`"));
    let ran = lanes(here.path(), "loom test {}/hidden.loom");
    assert!(ran.status == Some(0) && ran.err.contains("; there are @doubles, @hidden"), "{ran:?}");
    let ran = lanes(here.path(), "loom bench {}/kernels.loom");
    assert_eq!((ran.status, ran.err.trim()), (Some(0), "lanes: loom bench: no file has a `check.benchmark`"));
    let told = "--config item=32: no file declares such a key, and nothing reads it; declared: items";
    for (command, status) in [
        ("loom test {}/keyed.loom --config item=32", 1),
        ("loom test {}/keyed.loom {}/kernels.loom --config items=32 --config item=32", 1),
        ("loom compile {}/keyed.loom --kernel double --target cpu --config item=32", 0),
    ] {
        let ran = lanes(here.path(), command);
        assert!(ran.status == Some(status) && ran.err.contains(told), "{command}: {ran:?}");
    }
    let ran = lanes(here.path(), "loom test {}/keyed.loom --config items=32");
    assert!(!ran.err.contains("declare"), "{ran:?}");
}
