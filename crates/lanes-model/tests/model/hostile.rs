//! Files that are damaged, hostile or beyond what is supported: an error that says so, never a panic.

use bytes::Bytes;
use lanes_core::DType::{F32, I64};
use lanes_model::onnx::build::{ModelBuilder, Value, proto};
use lanes_model::onnx::proto::{ModelProto, StringStringEntryProto};
use lanes_model::{ImportOptions, Model, ModelError, Tensor, inspect_bytes, load, load_bytes};
use proptest::prelude::*;
use prost::Message;

fn import(bytes: impl Into<Bytes>) -> Result<Model, ModelError> {
    load_bytes(bytes, "test", &ImportOptions::default())
}

#[track_caller]
fn error(model: ModelBuilder) -> String {
    match import(model.encode()) {
        Ok(_) => panic!("was imported"),
        Err(error) => error.to_string(),
    }
}

/// A little of everything: a branch, a recurrence, shapes that are computed, a state.
fn rich() -> ModelBuilder {
    let weights = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        Tensor::from_vec(shape.to_vec(), (0..count).map(|at| (at % 7) as f32 / 8.0).collect())
    };
    let ints = |values: &[i64]| Tensor::from_vec(vec![values.len()], values.to_vec());
    let then = ModelBuilder::new(13).node("Relu", &["rows"], &["then_y"], &[]).output("then_y", F32, &["?", "?"]);
    let other = ModelBuilder::new(13).node("Neg", &["rows"], &["else_y"], &[]).output("else_y", F32, &["?", "?"]);
    ModelBuilder::new(13)
        .input("x", F32, &["batch", "8"])
        .input("h", F32, &["1", "batch", "2"])
        .tensor("axis", &ints(&[0]))
        .tensor("w", &weights(&[1, 6, 4]))
        .tensor("r", &weights(&[1, 6, 2]))
        .tensor("k", &weights(&[4, 1, 5]))
        .tensor("one", &Tensor::scalar(1i64))
        .tensor("s", &ints(&[0, -1]))
        .node("Unsqueeze", &["x", "one_axis"], &["channel"], &[])
        .tensor("one_axis", &ints(&[1]))
        .node("Conv", &["channel", "k"], &["frames"], &[("pads", [2, 2].into()), ("strides", [2].into())])
        .node("Transpose", &["frames"], &["steps"], &[("perm", [2, 0, 1].into())])
        .node("GRU", &["steps", "w", "r", "", "", "h"], &["", "hn"], &[("linear_before_reset", 1.into())])
        .node("Squeeze", &["hn", "axis"], &["rows"], &[])
        .node("Shape", &["rows"], &["shape"], &[])
        .node("Gather", &["shape", "one"], &["width"], &[])
        .node("Greater", &["width", "one"], &["wide"], &[])
        .node(
            "If",
            &["wide"],
            &["z"],
            &[("then_branch", Value::Graph(then.graph())), ("else_branch", Value::Graph(other.graph()))],
        )
        .node("Reshape", &["z", "s"], &["y"], &[])
        .output("y", F32, &["batch", "2"])
        .output("hn", F32, &["1", "batch", "2"])
}

#[test]
fn every_truncation_is_an_error_or_a_model() {
    let whole = Bytes::from(rich().encode());
    assert!(import(whole.clone()).is_ok());
    // Protobuf fields may end anywhere between two of them; what is left has no graph, or misses a value.
    let failed = (0..whole.len()).filter(|&end| import(whole.slice(..end)).is_err()).count();
    assert!(failed > whole.len() * 9 / 10, "{failed} of {}", whole.len());
    for end in (0..whole.len()).step_by(7) {
        let _ = inspect_bytes(whole.slice(..end), "test", &ImportOptions::default());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Bytes replaced anywhere: whatever comes of it, it is no panic, and what imports also runs or says why not.
    #[test]
    fn mutations_do_not_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = rich().encode();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = inspect_bytes(bytes.clone(), "test", &ImportOptions::default());
        if let Ok(model) = import(bytes) {
            let graph = std::sync::Arc::new(model.graph);
            let size: usize = graph.values.iter().map(lanes_model::ValueInfo::bytes).sum();
            if size < 1 << 20 {
                let inputs: Vec<Tensor> =
                    graph.inputs.iter().map(|&id| Tensor::zeros(graph.value(id).dtype, graph.value(id).shape.clone())).collect();
                let _ = lanes_model::oracle::Evaluator::new(graph).run(&inputs);
            }
        }
    }

    /// Numbers replaced where a file has numbers: extents, axes, pads, steps.
    #[test]
    fn hostile_numbers_do_not_panic(at in any::<prop::sample::Index>(), value in prop::sample::select(vec![
        0, -1, 1, 7, i64::MAX, i64::MIN, 1 << 40, -(1 << 40), i64::from(i32::MAX),
    ])) {
        let mut model = rich().model();
        let graph = model.graph.as_mut().unwrap();
        let dims = graph.input.iter_mut().flat_map(|input| {
            input.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().shape.as_mut().unwrap().dim.iter_mut()
        });
        let dims = dims.filter_map(|dim| dim.dim_value.as_mut());
        let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
        let attributes = attributes.flat_map(|attribute| attribute.ints.iter_mut().chain(std::iter::once(&mut attribute.i)));
        let initializers = graph.initializer.iter_mut().flat_map(|tensor| &mut tensor.dims);
        let mut numbers: Vec<&mut i64> = dims.chain(attributes).chain(initializers).collect();
        let count = numbers.len();
        *numbers[at.index(count)] = value;
        let _ = import(model.encode_to_vec());
    }
}

#[test]
fn broken_graphs_name_what_is_broken() {
    let base = || ModelBuilder::new(13).input("x", F32, &["batch", "4"]).output("y", F32, &["batch", "4"]);
    let cycle = error(base().node("Add", &["x", "b"], &["a"], &[]).node("Neg", &["a"], &["b"], &[]).node(
        "Neg",
        &["b"],
        &["y"],
        &[],
    ));
    assert!(cycle.contains("cycle") && cycle.contains("Add_a"), "{cycle}");
    let twice = error(base().node("Neg", &["x"], &["y"], &[]).node("Abs", &["x"], &["y"], &[]));
    assert!(twice.contains("\"y\"") && twice.contains("twice"), "{twice}");
    let dangling = error(base().node("Add", &["x", "nowhere"], &["y"], &[]));
    assert!(dangling.contains("Add_y") && dangling.contains("\"nowhere\""), "{dangling}");
    let unmade = error(base());
    assert!(unmade.contains("\"y\""), "{unmade}");
    let shapes = error(base().tensor("c", &Tensor::zeros(F32, vec![3])).node("Add", &["x", "c"], &["y"], &[]));
    assert!(shapes.contains("Add_y") && shapes.contains("[3]"), "{shapes}");
    // Not in order, and no cycle: the order is found.
    assert!(import(base().node("Neg", &["a"], &["y"], &[]).node("Abs", &["x"], &["a"], &[]).encode()).is_ok());
}

#[test]
fn what_is_not_supported_is_named_with_what_is() {
    let base = |opset| ModelBuilder::new(opset).input("x", F32, &["batch", "4"]).output("y", F32, &["?", "?"]);
    let operator = error(base(13).node("NonZero", &["x"], &["y"], &[]));
    assert!(
        operator.contains("NonZero_y") && operator.contains("(NonZero)") && operator.contains("MatMul"),
        "{operator}"
    );
    let attribute = error(base(13).node("Neg", &["x"], &["y"], &[("speed", 1.into())]));
    assert!(attribute.contains("Neg_y") && attribute.contains("speed"), "{attribute}");
    let mode = error(base(19).tensor("p", &Tensor::from_vec(vec![4], vec![0i64, 1, 0, 1])).node(
        "Pad",
        &["x", "p"],
        &["y"],
        &[("mode", "wrap".into())],
    ));
    assert!(mode.contains("wrap") && mode.contains("reflect"), "{mode}");
    let dtype = error(ModelBuilder::new(13).input("n", I64, &["batch"]).node("Exp", &["n"], &["y"], &[]).output(
        "y",
        I64,
        &["?"],
    ));
    assert!(dtype.contains("Exp_y") && dtype.contains("int64") && dtype.contains("floating-point"), "{dtype}");
    for opset in [6, 28] {
        let version = error(base(opset).node("Neg", &["x"], &["y"], &[]));
        assert!(version.contains(&opset.to_string()) && version.contains("7 to 27"), "{version}");
    }
    // `inspect` lists them all, and still says what it can.
    let two = base(13).node("Einsum", &["x"], &["a"], &[]).node("Celu", &["a"], &["b"], &[]).node(
        "Unique",
        &["x"],
        &["y"],
        &[],
    );
    let found = inspect_bytes(two.encode(), "test", &ImportOptions::default()).unwrap();
    let nodes: Vec<_> = found.unsupported.iter().map(|one| one.op.as_str()).collect();
    assert_eq!(nodes, ["Einsum", "Unique"]);
    assert!(!found.lane_independent);
}

#[test]
fn tensors_that_do_not_hold_what_they_say_are_refused() {
    let with = |edit: fn(&mut ModelProto)| {
        let model = ModelBuilder::new(13)
            .input("x", F32, &["batch", "4"])
            .tensor("c", &Tensor::zeros(F32, vec![4]))
            .node("Add", &["x", "c"], &["y"], &[])
            .output("y", F32, &["batch", "4"]);
        let mut model = model.model();
        edit(&mut model);
        import(model.encode_to_vec()).unwrap_err().to_string()
    };
    let short = with(|model| model.graph.as_mut().unwrap().initializer[0].dims = vec![5]);
    assert!(short.contains("\"c\"") && short.contains("16") && short.contains("20"), "{short}");
    let huge = with(|model| model.graph.as_mut().unwrap().initializer[0].dims = vec![i64::MAX, i64::MAX, 4]);
    assert!(huge.contains("too large"), "{huge}");
    let negative = with(|model| model.graph.as_mut().unwrap().initializer[0].dims = vec![-4]);
    assert!(negative.contains("negative"), "{negative}");
    let strings = with(|model| model.graph.as_mut().unwrap().initializer[0].data_type = 8);
    assert!(strings.contains("strings") && strings.contains("float32"), "{strings}");
    // A value that nobody could hold, asked for by two small constants.
    let giant = ModelBuilder::new(13)
        .input("x", F32, &["batch", "1"])
        .tensor("s", &Tensor::from_vec(vec![2], vec![1i64, 1 << 39]))
        .node("Expand", &["x", "s"], &["y"], &[])
        .output("y", F32, &["?", "?"]);
    assert!(error(giant).contains("Expand_y"));
}

#[test]
fn external_data_stays_inside_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("model");
    std::fs::create_dir(&home).unwrap();
    let weights: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(home.join("weights.bin"), [&[0u8; 8][..], &weights].concat()).unwrap();
    std::fs::write(folder.path().join("secret.bin"), &weights).unwrap();
    let write = |entries: &[(&str, &str)]| {
        let model = ModelBuilder::new(13)
            .input("x", F32, &["batch", "4"])
            .node("Add", &["x", "c"], &["y"], &[])
            .output("y", F32, &["batch", "4"]);
        let mut model = model.model();
        let mut tensor = proto("c", &Tensor::zeros(F32, vec![4]));
        tensor.raw_data = Bytes::new();
        tensor.data_location = 1;
        let entry = |&(key, value): &(&str, &str)| StringStringEntryProto { key: key.into(), value: value.into() };
        tensor.external_data = entries.iter().map(entry).collect();
        model.graph.as_mut().unwrap().initializer.push(tensor);
        let path = home.join("model.onnx");
        std::fs::write(&path, model.encode_to_vec()).unwrap();
        load(&path, &ImportOptions::default())
    };
    let model = write(&[("location", "weights.bin"), ("offset", "8"), ("length", "16")]).unwrap();
    assert_eq!(crate::turn(&model, &[vec![vec![0.0; 4]]])[0][0], [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(model.signature.name, "model");

    let refused = |entries: &[(&str, &str)], says: &str| {
        let text = write(entries).unwrap_err().to_string();
        assert!(text.contains(says), "{entries:?}: {text}");
    };
    let outside = folder.path().join("secret.bin");
    refused(&[("location", "../secret.bin")], "inside the model's folder");
    refused(&[("location", outside.to_str().unwrap())], "inside the model's folder");
    refused(&[("location", "weights.bin"), ("offset", "16")], "24");
    refused(&[("location", "weights.bin"), ("offset", "18446744073709551615")], "at 18446744073709551615");
    refused(&[("location", "weights.bin"), ("length", "8")], "8 bytes");
    refused(&[("location", "weights.bin"), ("offset", "-8")], "\"-8\"");
    refused(&[("location", "missing.bin")], "missing.bin");
    refused(&[], "no location");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&outside, home.join("link.bin")).unwrap();
        refused(&[("location", "link.bin")], "inside the model's folder");
    }
    // A model from memory has no folder.
    let bytes = std::fs::read(home.join("model.onnx")).unwrap();
    assert!(import(bytes).unwrap_err().to_string().contains("memory"));
}
