//! Cases run on the interpreter: generators and expectations against closed forms and published constants.

use loom_compiler::Module;
use loom_compiler::check::{Interpreted, Limits, NoFiles, Status, Verdict, run};
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
