//! Cases run on the interpreter: generators and expectations against closed forms and published constants.

use loom_compiler::Module;
use loom_compiler::check::{Entropy, Interpreted, Limits, Literal, NoFiles, Status, Uniform, Verdict, run};
use loom_compiler::interp;
use std::collections::BTreeMap;

/// Every sample of case `name` of `text`.
fn samples(text: &str, name: &str) -> Vec<Verdict> {
    let config = BTreeMap::new();
    let module = Module::with_cases("check.loom", text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
    let case = module.case(name, &config).unwrap_or_else(|errors| panic!("{errors}"));
    let limits = interp::Limits { steps: 1 << 24, ..interp::Limits::default() };
    let mut target = Interpreted::new(&module, &config, limits);
    let mut host = Interpreted::new(&module, &config, limits);
    (0..case.samples())
        .map(|ordinal| {
            let sample = case.sample(ordinal).expect("it is one of them");
            run(&case, &sample, &mut target, &mut host, &mut NoFiles, Limits::default())
        })
        .collect()
}

const SAXPY: &str = r#"
kernel.def export("saxpy") @saxpy(%n: index) {
  %one = index.constant 1 : index
  %wg = index.constant 128 : index
  %less = index.constant 127 : index
  %padded = index.add %n, %less : index
  %groups = index.div %padded, %wg : index
  kernel.launch.config workgroups(%groups, %one, %one) workgroup_size(%wg, %one, %one) : index
} launch(%n: index, %a: f32, %x: buffer, %y: buffer) {
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

/// `saxpy` over generated tensors, `want` as the expectation.
fn saxpy(want: &str) -> String {
    format!(
        r#"{SAXPY}
check.case public @c {{
  %n = check.param.choice values([1, 127, 128, 129]) name("n") : index
  %a = check.literal value(2.0) : f32
  %x = check.generate.iota offset(0.0) step(1.0) : tensor<[%n]xf32>
  %y = check.generate.fill value(1.0) : tensor<[%n]xf32>
  %want = check.generate.iota {want} : tensor<[%n]xf32>
  kernel.launch @saxpy[%n](%n, %a, %x, %y) : [index](index, f32, tensor<[%n]xf32>, tensor<[%n]xf32>)
  check.expect.close actual(%y) expected(%want) atol(0.0) rtol(1e-6) nan(different) : tensor<[%n]xf32>
  check.return
}}
"#
    )
}

#[test]
fn a_kernel_is_launched_once_for_each_choice() {
    let verdicts = samples(&saxpy("offset(1.0) step(2.0)"), "c");
    assert_eq!(verdicts.len(), 4);
    assert!(verdicts.iter().all(|verdict| verdict.status == Status::Passed), "{verdicts:?}");
}

#[test]
fn the_first_difference_is_said_with_both_values() {
    let verdicts = samples(&saxpy("offset(1.0) step(3.0)"), "@c");
    assert_eq!(verdicts[0].status, Status::Passed);
    assert_eq!(verdicts[1].status, Status::Failed);
    let message = verdicts[1].message.as_deref().unwrap();
    assert!(message.contains("`%y`[1] is 3, expected 4 (126 of 127 elements differ)"), "{message}");
}

/// A case over `body`, with a kernel that does nothing to one buffer.
fn case_of(body: &str) -> String {
    format!(
        "kernel.def @nothing() {{\n  %one = index.constant 1 : index\n  kernel.launch.config workgroups(%one, %one, %one) \
         workgroup_size(%one, %one, %one) : index\n}} launch(%n: index, %x: buffer) {{\n  kernel.return\n}}\n\
         config.decl @width : %w: index where [range(%w, 1, 8)]\n\
         func.def @f(%x: i32) -> (i32) {{\n  func.return %x : i32\n}}\n\
         check.case public @c {{\n{body}\n  check.return\n}}\n"
    )
}

/// The verdict on the only sample of a case over `body`.
fn verdict(body: &str) -> Verdict {
    let mut verdicts = samples(&case_of(body), "c");
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0)
}

/// Reference implementation's published vector.
#[test]
fn entropy_is_that_of_the_published_vector() {
    let root = Entropy::root(0x4c6f_6f6d);
    assert_eq!((root.low, root.high), (0xaa54_09db_0d12_4e7d, 0x5a04_1562_36e3_cc7b));
    let fork = root.fork("input");
    assert_eq!((fork.read(0), fork.read(1)), (0x1a9d_7a7c_b2d8_3838, 0x9d67_9215_b4c8_54e2));
}

/// splitmix64 of seed 0 begins 0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4 (the generator's published outputs); from there, one
/// step of xoroshiro128** written out.
#[test]
fn uniform_starts_from_two_words_of_splitmix() {
    let (s0, s1) = (0xe220_a839_7b1d_cdaf_u64, 0x6e78_9e6a_a1b9_65f4_u64);
    let mut generator = Uniform::new(0);
    assert_eq!(generator.bits(), s0.wrapping_mul(5).rotate_left(7).wrapping_mul(9));
    let t = s0 ^ s1;
    let next = s0.rotate_left(24) ^ t ^ (t << 16);
    assert_eq!(generator.bits(), next.wrapping_mul(5).rotate_left(7).wrapping_mul(9));
}

#[test]
fn uniform_takes_both_ends_of_integers_and_only_the_lower_of_floats() {
    let mut generator = Uniform::new(3);
    let digits: Vec<i64> = (0..2000).map(|_| generator.integer(-2, 2)).collect();
    assert_eq!((digits.iter().min(), digits.iter().max()), (Some(&-2), Some(&2)));
    // A range of one value uses an output too.
    let mut generator = Uniform::new(3);
    assert_eq!(generator.integer(9, 9), 9);
    let second = generator.bits();
    let mut again = Uniform::new(3);
    again.bits();
    assert_eq!(again.bits(), second);
    // The full range is the output itself.
    assert_eq!(Uniform::new(3).integer(i64::MIN, i64::MAX) as u64, Uniform::new(3).bits());
    let mut generator = Uniform::new(4);
    let units: Vec<f64> = (0..2000).map(|_| generator.float(2.0, 3.0)).collect();
    assert!(units.iter().all(|unit| (2.0..3.0).contains(unit)));
    assert!(units.iter().any(|unit| *unit > 2.9) && units.iter().any(|unit| *unit < 2.1));
}

#[test]
fn the_first_parameter_varies_fastest() {
    let text = case_of(
        "  %a = check.param.range linear bounds(1 to 7) step(3) : index\n  \
           %b = check.param.range po2 bounds(3 to 17) name(\"beta\") : i32\n  \
           %c = check.param.seed base(0x10) count(2) name(\"seed\") : i64\n  \
           %d = check.param.range linear bounds(0.5 to 1.6) step(0.5) : f32",
    );
    let module = Module::with_cases("c", &text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
    let case = module.case("c", &BTreeMap::new()).unwrap_or_else(|errors| panic!("{errors}"));
    let names: Vec<&str> = case.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names, ["a", "beta", "seed", "d"]);
    // 1, 4, 7 by 4, 8, 16 by two seeds by 0.5, 1, 1.5.
    assert_eq!(case.samples(), 54);
    let (int, float) = (Literal::Int, Literal::Float);
    let values = |ordinal| case.sample(ordinal).map(|sample| sample.values);
    assert_eq!(values(0), Some(vec![int(1), int(4), int(16), float(0.5)]));
    assert_eq!(values(5), Some(vec![int(7), int(8), int(16), float(0.5)]));
    assert_eq!(values(53), Some(vec![int(7), int(16), int(17), float(1.5)]));
    assert_eq!(values(54), None);
    let bound = case.bound(&[("beta".into(), int(8)), ("d".into(), float(1.0))]).unwrap();
    assert_eq!(bound.iter().map(|sample| sample.ordinal).collect::<Vec<_>>(), [21, 22, 23, 30, 31, 32]);
    assert!(case.bound(&[("b".into(), int(8))]).unwrap_err().contains("it has: a, beta, seed, d"));
    assert!(case.bound(&[("beta".into(), int(5))]).unwrap_err().contains("does not take the value 5"));
    assert!(case.bound(&[("beta".into(), int(i64::MAX))]).unwrap_err().contains("the value 9223372036854775807"));
    // A number is the parameter's if it is so in the parameter's type: in f64, 3 · 0.1 is not 0.3.
    for (ty, found) in [("f32", Some(3)), ("bf16", Some(3)), ("f64", None)] {
        let text = format!(
            "check.case @c {{\n  %a = check.param.range linear bounds(0.0 to 1.0) step(0.1) : {ty}\n  check.return\n}}\n"
        );
        let case = Module::parse("t", &text).unwrap().case("c", &BTreeMap::new()).unwrap();
        let bound = case.bound(&[("a".into(), float(0.3))]);
        assert_eq!(bound.as_ref().ok().map(|samples| samples[0].ordinal), found, "{ty}: {bound:?}");
    }
    let none = Module::parse("t", "check.case @c {\n  check.return\n}\n").unwrap().case("c", &BTreeMap::new()).unwrap();
    assert!(none.bound(&[("a".into(), int(1))]).unwrap_err().ends_with("it has none"));
}

/// What the bytes of a tensor stand for may be said in its type; how they lie is fixed.
#[test]
fn tensors_may_say_what_their_bytes_stand_for() {
    let text = |ty: &str| {
        format!(
            "#block = #ggml.q4_0\n{SAXPY}check.case @c {{\n  %n = check.literal value(1) : index\n  %a = check.literal value(2.0) : f32\n  \
             %b = check.generate.fill value(0) : {ty}\n  %x = check.tensor.view %b offset(0) : {ty} -> tensor<1xf32>\n  \
             kernel.launch @saxpy[%n](%n, %a, %x, %b) : [index](index, f32, tensor<1xf32>, {ty})\n  \
             check.expect.equal actual(%b) expected(%b) : {ty}\n  check.return\n}}\n"
        )
    };
    for ty in ["tensor<18xi8, #ggml.q4_0>", "tensor<18xi8, #block>", "tensor<2x2xi32, #dense>"] {
        let verdicts = samples(&text(ty), "c");
        assert_eq!(verdicts[0].status, Status::Passed, "{ty}: {:?}", verdicts[0].message);
    }
    for (ty, says) in [
        ("tensor<18xi8, #strange>", "expected a layout: `#dense`"),
        ("tensor<18xi8, %n>", "is not a layout"),
        ("tensor<18xi8, 4>", "expected a layout"),
    ] {
        let module = Module::with_cases("t", &text(ty), &[]).unwrap();
        let refused = module.case("c", &BTreeMap::new()).unwrap_err().to_string();
        assert!(refused.contains(says), "{ty}: {refused}");
    }
}

/// Each expectation, holding and not: what is said of the first element that is wrong.
#[test]
fn expectations_fail_in_words() {
    let fill = |name: &str, value: &str, ty: &str| format!("  %{name} = check.generate.fill value({value}) : {ty}\n");
    let pair = |a: &str, b: &str, ty: &str| fill("a", a, ty) + &fill("b", b, ty);
    let (four, ints) = ("tensor<2x2xf32>", "tensor<3xi16>");
    let expect = |relation: &str, rest: &str, ty: &str| {
        format!("  check.expect.{relation} actual(%a) expected(%b){rest} : {ty}")
    };
    let close =
        |atol: &str, rtol: &str, nan: &str| expect("close", &format!(" atol({atol}) rtol({rtol}) nan({nan})"), four);
    for (body, says) in [
        (
            pair("1.0", "1.5", four) + &expect("equal", "", four),
            "`%a`[0, 0] is 1, expected 1.5 (4 of 4 elements differ)",
        ),
        (pair("nan", "nan", four) + &expect("equal", "", four), "is NaN, expected NaN"),
        (pair("0.0", "-0.0", four) + &expect("bitwise", "", four), "is 0 (0x00000000), expected -0 (0x80000000)"),
        (pair("-5", "7", ints) + &expect("equal", "", ints), "`%a`[0] is -5, expected 7 (3 of 3 elements differ)"),
        (pair("1.0", "1.11", four) + &close("0.1", "0.0", "same"), "is 1, expected 1.11"),
        (pair("1.0", "1.11", four) + &close("0.0", "0.099", "same"), "is 1, expected 1.11"),
        (pair("nan", "nan", four) + &close("1.0", "1.0", "different"), "is NaN, expected NaN"),
        (pair("nan", "1.0", four) + &close("1.0", "1.0", "same"), "is NaN, expected 1"),
        (pair("inf", "-inf", four) + &close("1.0", "1.0", "same"), "is inf, expected -inf"),
        (pair("1.0", "inf", four) + &close("1.0", "1.0", "same"), "is 1, expected inf"),
        (
            fill("a", "1", "tensor<2x3xi8>") + "  check.expect.shape value(%a) shape([2, 4]) : tensor<2x3xi8>",
            "the shape is [2, 3], expected [2, 4]",
        ),
        (
            "  %a = check.literal value(3) : i32\n  %b = func.call @f(%a) : (i32) -> (i32)\n  \
             %d = scalar.addi %b, %b : i32\n  check.expect.equal actual(%d) expected(%a) : i32"
                .into(),
            "the value is 6, expected 3",
        ),
    ] {
        let found = verdict(&body);
        let message = found.message.unwrap_or_default();
        assert!(found.status == Status::Failed && message.contains(says), "{body}\n{:?} {message}", found.status);
    }
    for body in [
        pair("1.0", "1.11", four) + &close("0.0", "0.1", "same"),
        pair("-1.0", "-1.11", four) + &close("0.12", "0.0", "different"),
        pair("nan", "nan", four) + &close("0.0", "0.0", "same"),
        pair("-inf", "-inf", four) + &close("0.0", "0.0", "different"),
        pair("0.0", "-0.0", four) + &expect("equal", "", four),
    ] {
        assert_eq!(verdict(&body).status, Status::Passed, "{body}");
    }
}

/// What nobody here has is neither passed nor failed, and a device that is not the one asked for skips the case.
#[test]
fn what_nobody_has_is_unsupported_or_skipped() {
    let a = "  %a = check.generate.fill value(1) : tensor<2xi32>\n";
    for (body, status, says) in [
        (
            format!("{a}  check.expect<topk.equal> actual(%a) expected(%a) {{k = 3}} : tensor<2xi32>"),
            Status::Unsupported,
            "comparator `topk.equal` is not registered",
        ),
        (
            "  check.expect.event<device> {type = \"ubsan_report\", ubsan = {check = \"assertion\"}}".into(),
            Status::Unsupported,
            "event `device` is not observed",
        ),
        (
            "  check.expect.event<elsewhere> {kind = 3}".into(),
            Status::Unsupported,
            "events of `elsewhere` are not registered",
        ),
        (
            "  check.requires<target.feature> {name = \"wmma\"}".into(),
            Status::Skipped,
            "provider_not_registered: target.feature",
        ),
        (
            "  check.skip_if<hal.device.i64> {equals = 3} reason(\"none\")".into(),
            Status::Skipped,
            "provider_not_registered: hal.device.i64",
        ),
        // A failure beside it is one.
        (
            format!(
                "{a}  %b = check.generate.fill value(2) : tensor<2xi32>\n  check.expect<x.y> actual(%a) expected(%b) : \
                 tensor<2xi32>\n  check.expect.equal actual(%a) expected(%b) : tensor<2xi32>"
            ),
            Status::Failed,
            "expected 2",
        ),
    ] {
        let found = verdict(&body);
        let message = found.message.unwrap_or_default();
        assert!(found.status == status && message.contains(says), "{body}\n{:?} {message}", found.status);
    }
}

/// A launch that is fine has reported nothing: that can be expected, and what every device here would report cannot.
#[test]
fn events_that_were_not_seen() {
    let none = verdict("  check.expect.event<device> {type = \"asan_report\", severity = \"error\", count = 0}");
    assert_eq!((none.status, none.expectations), (Status::Passed, 1));
    for count in ["", ", count = 2"] {
        let found = verdict(&format!("  check.expect.event<device> {{type = \"asan_report\"{count}}}"));
        let message = found.message.unwrap_or_default();
        assert!(found.status == Status::Failed && message.contains("no event `asan_report`"), "{message}");
    }
    // Nobody looks for races.
    assert_eq!(verdict("  check.expect.event<device> {type = \"tsan_report\"}").status, Status::Unsupported);
    assert_eq!(verdict("  check.expect.event<device> {type = \"tsan_report\", count = 0}").status, Status::Passed);
    assert_eq!(verdict("  check.expect.event<device> {}").status, Status::Unsupported);
}

/// Where a case waits for an event, a launch that stops may be what it waits for; without one it is an error.
#[test]
fn a_launch_that_stops_before_an_event_is_neither_right_nor_wrong() {
    let text = |event: &str| {
        format!(
            "kernel.def @stops() {{\n  kernel.launch.config workgroups(1, 1, 1) workgroup_size(1, 1, 1) : index\n}} \
             launch(%x: buffer) {{\n  %no = scalar.constant false : i1\n  kernel.assert %no \"meant\" : i1\n  kernel.return\n}}\n\
             check.case public @c {{\n  %a = check.generate.fill value(1) : tensor<2xi32>\n  \
             kernel.launch @stops(%a) : (tensor<2xi32>)\n{event}  check.return\n}}\n"
        )
    };
    let stopped = samples(&text("  check.expect.event<device> {type = \"ubsan_report\"}\n"), "c");
    let message = stopped[0].message.clone().unwrap_or_default();
    assert!(stopped[0].status == Status::Unsupported && message.contains("meant"), "{stopped:?}");
    assert_eq!(samples(&text(""), "c")[0].status, Status::Error);
    // Nor is one right that expects none.
    let none = text("  check.expect.event<device> {type = \"ubsan_report\", count = 0}\n");
    assert_eq!(samples(&none, "c")[0].status, Status::Error);
}

/// Sizes are the text's: none makes the runner allocate or run without bound.
#[test]
fn what_is_too_much_is_an_error() {
    let big = "tensor<1048576x1048576x1048576xi64>";
    for (body, says) in [
        (format!("  %a = check.generate.fill value(1) : {big}"), "brings the sample's tensors past"),
        ("  %a = check.generate.fill value(1) : tensor<9223372036854775807x4xi8>".to_owned(), "past"),
        (
            "  %a = check.generate.iota offset(100) step(1) : tensor<29xi8>".into(),
            "element 28 is 128, which i8 does not have",
        ),
        (
            "  %a = check.generate.fill value(1) : tensor<4xi32>\n  \
             %b = check.tensor.view %a offset(9) : tensor<4xi32> -> tensor<2xi32>"
                .into(),
            "a view of shape [2] from byte 9 on ends past the 16 bytes of its tensor",
        ),
        ("  %a = check.file.read.npy path(\"a.npy\") : tensor<4xi32>".into(), "files are not read here"),
    ] {
        let found = verdict(&body);
        let message = found.message.unwrap_or_default();
        assert!(found.status == Status::Error && message.contains(says), "{body}\n{:?} {message}", found.status);
    }
    let text = "check.scenario public @c {\n  check.trial[9223372036854775807](%t: index) {\n  }\n  check.return\n}\n";
    let found = samples(text, "c").remove(0);
    assert!(found.status == Status::Error && found.message.unwrap().contains("more than 1048576 steps"));
}

#[test]
fn every_refusal_says_what_is_legal() {
    let a = "  %a = check.generate.fill value(1) : tensor<2xi32>\n  %n = check.literal value(2) : index\n";
    for (body, says) in [
        ("  %x = check.param.range linear bounds(5 to 3) : index".to_owned(), "5 to 3 is empty"),
        ("  %x = check.param.range linear bounds(1 to 3) step(0) : index".into(), "a step is above zero"),
        ("  %x = check.param.range linear bounds(0.0 to 1.0) : f32".into(), "needs a `step(..)`"),
        ("  %x = check.param.range po2 bounds(5 to 7) : index".into(), "no power of two lies in 5 to 7"),
        ("  %x = check.param.range po2 bounds(1.0 to 8.0) : f32".into(), "of an integer type"),
        ("  %x = check.param.range po2 bounds(1 to 8) step(2) : index".into(), "have no `step`"),
        ("  %x = check.param.range odd bounds(1 to 8) : index".into(), "expected linear or po2, found `odd`"),
        ("  %x = check.param.choice values([1.0]) : f32".into(), "an integer type other than i1, found f32"),
        ("  %x = check.param.choice values([300]) : i8".into(), "300 is out of range for i8"),
        ("  %x = check.param.seed base(1) count(0) : i64".into(), "at least 1, found 0"),
        (
            "  check.expect.event<device> {kind = \"assert\"}".into(),
            "`kind` is nothing of an event; legal: count, type,",
        ),
        (
            "  check.expect.event<device> {type = \"assert\"}".into(),
            "`type` of an event; legal: asan_report, ubsan_report,",
        ),
        ("  check.expect.event<device> {severity = 3}".into(), "`severity` of an event; legal: trace, info,"),
        ("  check.expect.event<device> {count = -1}".into(), "`count` is an integer that is not negative"),
        ("  check.expect.event<device> {driver = 3}".into(), "`driver` is a text"),
        ("  check.expect.event<device> {queue = \"a\"}".into(), "`queue` is an integer"),
        ("  check.expect.event<device> {asan = 3}".into(), "`asan` is `{key = value, ..}`"),
        (
            "  %x = check.param.seed base(1) count(2) name(\"s\") : i64\n  \
             %y = check.param.seed base(1) count(2) name(\"s\") : i64"
                .into(),
            "two parameters are called `s`",
        ),
        ("  %x = check.param.range linear bounds(1 to 70000) : index".into(), "more than 65536 samples"),
        ("  %x = check.literal value(0) : f32".into(), "written as a float"),
        ("  %x = check.generate.fill value(1.0) : tensor<2xi32>".into(), "written as an integer"),
        ("  %x = check.generate.fill value(1) : f32".into(), "expected a tensor type"),
        ("  %x = check.generate.fill value(true) : tensor<2xi1>".into(), "tensor of i1"),
        ("  %x = check.generate.iota offset(0) step(1) period(0) : tensor<2xi32>".into(), "a period is at least 1"),
        ("  %x = check.generate.random.uniform seed(1) range(2 to 1) : tensor<2xi32>".into(), "lower end to its upper"),
        ("  %x = check.generate.random.uniform seed(1) range(0.0 to 1.0) : tensor<2xf8E4M3>".into(), "no generator"),
        (format!("{a}  kernel.launch @none(%n, %a) : (index, tensor<2xi32>)"), "`@none` is not defined"),
        (format!("{a}  kernel.launch @f(%n, %a) : (index, tensor<2xi32>)"), "`@f` is a `func.def`"),
        (format!("{a}  kernel.launch @nothing(%n) : (index)"), "1 launch arguments are given, the kernel has 2"),
        (
            format!("{a}  kernel.launch @nothing(%a, %n) : (tensor<2xi32>, index)"),
            "is a tensor, the kernel takes index",
        ),
        (format!("{a}  kernel.launch @nothing(%n, %n) : (index, index)"), "is index, the kernel takes buffer"),
        (format!("{a}  kernel.launch @nothing[%n](%n, %a) : [index](index, tensor<2xi32>)"), "the kernel has 0"),
        (format!("{a}  kernel.launch @nothing(%n, %a) : (index, tensor<3xi32>)"), "the type written is tensor<3xi32>"),
        (
            format!("{a}  check.expect.close actual(%a) expected(%a) atol(0.0) rtol(0.0) nan(same) : tensor<2xi32>"),
            "takes floats",
        ),
        (format!("{a}  check.expect.equal actual(%a) expected(%n) : tensor<2xi32>"), "the value's is index"),
        (format!("{a}  %s = scalar.addi %a, %a : i32"), "`%a` is a tensor; expected a scalar"),
        (format!("{a}  %v = vector.constant 0.0 : vector<4xf32>"), "`vector.constant` is no op of a check"),
        (format!("{a}  %v = buffer.view %a[%n] : buffer -> view<2xi32>"), "`buffer.view` is no op of a check"),
        ("  check.frobnicate".into(), "`check.frobnicate` is no op of a check"),
        ("  check.trial[2](%t: index) {\n  }".into(), "`check.trial` stands in a scenario only"),
        (format!("{a}  %r = func.call @nothing(%n, %a) : (index, tensor<2xi32>) -> (i32)"), "has no results"),
        ("  kernel.launch.serial {\n    %x = check.literal value(1) : index\n  }".into(), "legal: kernel.launch"),
        ("  check.return".into(), "nothing may follow `check.return`"),
        ("  %w = config.get @width : index".into(), "config `width` has no value"),
    ] {
        let text = case_of(&body);
        let module = Module::with_cases("c", &text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
        let errors = module.case("c", &BTreeMap::new()).err().unwrap_or_else(|| panic!("{body} was not refused"));
        assert!(errors.to_string().contains(says), "{body}\n{errors}");
    }
    // A case is verified with its module, with config values unknown.
    let (_, checked) = Module::check("c", &case_of("  %w = config.get @width : index"));
    checked.unwrap_or_else(|errors| panic!("{errors}"));
    let (_, checked) = Module::check("c", &case_of("  check.frobnicate"));
    assert!(checked.unwrap_err().to_string().contains("check.frobnicate"));
    // A benchmark is of a case.
    for (text, says) in [
        ("check.benchmark<@none>", "`@none` is not defined"),
        ("check.benchmark<@nothing> @b", "a benchmark is of a `check.case`"),
        ("check.benchmark<@c> @b {n = true}", "bound to a number"),
    ] {
        let text = format!("{}{text}\n", case_of(""));
        let (_, checked) = Module::check("c", &text);
        let errors = checked.expect_err("it is refused").to_string();
        assert!(errors.contains(says), "{text}\n{errors}");
    }
}

/// Config values of the caller are extents of a case like any literal.
#[test]
fn config_reaches_cases() {
    let text = case_of(
        "  %w = config.get @width : index\n  %a = check.generate.fill value(1) : tensor<[%w]xi32>\n  \
         check.expect.shape value(%a) shape([6]) : tensor<[%w]xi32>",
    );
    let config = BTreeMap::from([("width".to_owned(), "6".to_owned())]);
    let module = Module::with_cases("c", &text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
    let case = module.case("c", &config).unwrap_or_else(|errors| panic!("{errors}"));
    let limits = interp::Limits::default();
    let mut target = Interpreted::new(&module, &config, limits);
    let mut host = Interpreted::new(&module, &config, limits);
    let sample = case.sample(0).unwrap();
    let found = run(&case, &sample, &mut target, &mut host, &mut NoFiles, Limits::default());
    assert_eq!((found.status, found.expectations), (Status::Passed, 1), "{found:?}");
}

#[test]
fn one_list_of_arguments_launches_by_its_scalars() {
    const TEXT: &str = include_str!("../../tests/loom/spellings.loom");
    let verdicts = samples(TEXT, "spell_one_list_runs_on_its_scalars");
    assert!(
        verdicts.iter().all(|verdict| (verdict.status, verdict.expectations) == (Status::Passed, 4)),
        "{verdicts:?}"
    );
    assert_eq!(verdicts.len(), 1);
}

/// What is chosen at run time: every case on the interpreter, and every kernel is one for the tile executor.
#[test]
fn places_that_are_chosen_at_run_time() {
    let texts = [
        include_str!("../../tests/loom/places.loom"),
        include_str!("../../tests/loom/blocks.loom"),
        include_str!("../../tests/loom/strides.loom"),
        include_str!("../../tests/loom/copies.loom"),
    ];
    let config = BTreeMap::new();
    for text in texts {
        let module = Module::with_cases("places.loom", text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
        for name in module.kernels() {
            let kernel = module.specialise(&name, &config).unwrap_or_else(|errors| panic!("{errors}"));
            loom_compiler::tile::compile(&kernel).unwrap_or_else(|error| panic!("{error}"));
        }
        for case in module.cases() {
            let case = module.case(&case.name, &config).unwrap_or_else(|errors| panic!("{errors}"));
            for ordinal in 0..case.samples() {
                let mut target = Interpreted::new(&module, &config, interp::Limits::default());
                let mut host = Interpreted::new(&module, &config, interp::Limits::default());
                let sample = case.sample(ordinal).unwrap();
                let found = run(&case, &sample, &mut target, &mut host, &mut NoFiles, Limits::default());
                assert_eq!(found.status, Status::Passed, "{found:?}");
            }
        }
    }
}

/// Texts with cases, words of them dropped, doubled and swapped: each ends in a verdict or in diagnostics.
#[test]
fn altered_cases_end_in_an_answer() {
    const TEXT: &str = include_str!("../../tests/loom/check.loom");
    let words: Vec<&str> = TEXT.split_inclusive(char::is_whitespace).collect();
    let config = BTreeMap::new();
    let mut random = Uniform::new(17);
    let mut below = |limit: usize| random.integer(0, limit as i64 - 1) as usize;
    for _ in 0..150 {
        let mut altered = words.clone();
        for _ in 0..=below(4) {
            let (at, other) = (below(altered.len()), below(altered.len()));
            match below(3) {
                0 => drop(altered.remove(at)),
                1 => altered.insert(at, altered[other]),
                _ => altered.swap(at, other),
            }
        }
        let Ok(module) = Module::with_cases("altered.loom", &altered.concat(), &[]) else { continue };
        let small = interp::Limits { steps: 20_000, bytes: 1 << 24 };
        let mut target = Interpreted::new(&module, &config, small);
        let mut host = Interpreted::new(&module, &config, small);
        let limits = Limits { tensor_bytes: 1 << 16, steps: 1 << 10, ops: 1 << 10, products: 1 << 16 };
        for case in module.cases() {
            let Ok(case) = module.case(&case.name, &config) else { continue };
            for sample in [0, case.samples() - 1].into_iter().filter_map(|ordinal| case.sample(ordinal)) {
                run(&case, &sample, &mut target, &mut host, &mut NoFiles, limits);
            }
        }
    }
}
