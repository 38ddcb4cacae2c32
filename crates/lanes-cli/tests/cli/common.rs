//! Running the binary, and the models and arrays that it is given.

use lanes::DType::F32;
use lanes::onnx::Tensor;
use lanes::onnx::onnx::build::ModelBuilder;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub const VAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/vad/vad.onnx");
pub const SPEECH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/vad/speech");

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Asserts success, and stdout as the one JSON object that it must be.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.status, Some(0), "{self:?}");
        assert!(self.out.starts_with('{') && self.out.ends_with("}\n"), "{self:?}");
        serde_json::from_str(&self.out).unwrap()
    }

    /// Asserts a refusal: nothing on stdout, one paragraph on stderr that says `says`, no panic.
    #[track_caller]
    pub fn refused(&self, status: i32, says: &[&str]) {
        assert_eq!((self.status, self.out.as_str()), (Some(status), ""), "{self:?}");
        assert!(self.err.starts_with("lanes: ") && self.err.lines().count() == 1, "{self:?}");
        assert!(!self.err.contains("--help"), "{self:?}");
        assert!(!self.err.contains("panicked"), "{self:?}");
        for text in says {
            assert!(self.err.contains(text), "no `{text}` in {self:?}");
        }
    }
}

/// The binary, to be run with `arguments`.
pub fn command<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanes"));
    command.args(arguments).env_remove("RUST_BACKTRACE");
    for name in ["MAX_LANES", "MAX_SEATS", "LINGER_US", "QUEUE", "SLOTS", "CHECKPOINTS"] {
        command.env_remove(format!("LANES_{name}"));
    }
    command
}

/// Runs the binary with the words of `line`, in which `{}` stands for `place`.
pub fn lanes(place: &Path, line: &str) -> Ran {
    let place = place.to_str().unwrap();
    let words = line.split_whitespace().map(|word| word.replace("{}", place));
    command(words).output().unwrap().into()
}

/// A folder for one test, with the models in it.
pub fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = |name: &str, model: ModelBuilder| std::fs::write(folder.path().join(name), model.encode()).unwrap();
    let two = Tensor::scalar(2f32);
    let rows = |width| ModelBuilder::new(17).input("x", F32, &["batch", width]);
    // y = 2 x
    let null = rows("time").tensor("two", &two).node("Mul", &["x", "two"], &["y"], &[]);
    model("null.onnx", null.output("y", F32, &["batch", "time"]));
    // sum(t) = sum(t - 1) + x(t); y = 2 sum
    let adder = |state, next| {
        rows("3")
            .input(state, F32, &["batch", "3"])
            .tensor("two", &two)
            .node("Add", &["x", state], &[next], &[])
            .node("Mul", &[next, "two"], &["y"], &[])
            .output("y", F32, &["batch", "3"])
            .output(next, F32, &["batch", "3"])
    };
    model("adder.onnx", adder("state", "state_out"));
    model("unnamed.onnx", adder("total", "more"));
    // Either output may be what h is on the next turn; y is named after nothing.
    let either = rows("3").input("h", F32, &["batch", "3"]).node("Mul", &["x", "h"], &["y"], &[]);
    let either = either.node("Add", &["x", "h"], &["hn"], &[]).node("Sub", &["x", "h"], &["next_h"], &[]);
    let either = ["y", "hn", "next_h"].iter().fold(either, |model, name| model.output(name, F32, &["batch", "3"]));
    model("either.onnx", either);
    // y = x W, with numbers that 8 bits are too few for.
    let numbers = (0..48 * 20).flat_map(|at| ((at * 37 % 101) as f32 / 101.0 - 0.5).to_le_bytes()).collect::<Vec<u8>>();
    let weights = Tensor::new(F32, vec![48, 20], numbers.into()).unwrap();
    let product = rows("48").tensor("w", &weights).node("MatMul", &["x", "w"], &["y"], &[]);
    model("product.onnx", product.output("y", F32, &["batch", "20"]));
    // y = x + z · scale, where scale has no lane axis.
    let three = rows("2").input("z", F32, &["batch", "2"]).input("scale", F32, &["1"]);
    let three = three.node("Mul", &["z", "scale"], &["zs"], &[]).node("Add", &["x", "zs"], &["y"], &[]);
    model("three.onnx", three.output("y", F32, &["batch", "2"]));
    let mixing = rows("4").node("Softmax", &["x"], &["y"], &[("axis", 0.into())]);
    model("mixing.onnx", mixing.output("y", F32, &["batch", "4"]));
    let per_lane = rows("4").node("ReduceMax", &["x"], &["m"], &[("keepdims", 0.into())]);
    model("per_lane.onnx", per_lane.node("Sub", &["x", "m"], &["y"], &[]).output("y", F32, &["batch", "4"]));
    // Outputs whose names no file, or one file, could have.
    let names = rows("1").node("Mul", &["x", "two"], &["a/b"], &[]).node("Add", &["x", "x"], &["a_b"], &[]);
    let names = names.tensor("two", &two).node("Sub", &["x", "x"], &[".."], &[]).node("Neg", &["x"], &["y:0"], &[]);
    let names = ["a/b", "a_b", "..", "y:0"].iter().fold(names, |model, name| model.output(name, F32, &["batch", "1"]));
    model("names.onnx", names);
    let unknown = rows("4").node("NoSuchOp", &["x"], &["y"], &[]);
    model("unknown.onnx", unknown.output("y", F32, &["batch", "4"]));
    let foreign = ModelBuilder::new(99).input("x", F32, &["batch", "4"]).node("Neg", &["x"], &["y"], &[]);
    model("foreign.onnx", foreign.output("y", F32, &["batch", "4"]));
    folder
}

/// Writes an array of f32.
pub fn write_npy(path: PathBuf, shape: &[u64], values: impl IntoIterator<Item = f32>) {
    let extents: String = shape.iter().map(|extent| format!("{extent},")).collect();
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({extents})}}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.bytes());
    bytes.extend(values.into_iter().flat_map(f32::to_le_bytes));
    std::fs::write(path, bytes).unwrap();
}

/// An array of f32, with its shape.
pub fn read_npy(path: PathBuf) -> (Vec<u64>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..start]).unwrap();
    assert!(header.contains("'<f4'") && header.contains("False"), "{header}");
    let shape = header.split_once('(').unwrap().1.split_once(')').unwrap().0;
    let extents = shape.split(',').filter(|extent| !extent.trim().is_empty()).map(|e| e.trim().parse().unwrap());
    let floats = bytes[start..].chunks_exact(4).map(|e| f32::from_le_bytes(e.try_into().unwrap()));
    (extents.collect(), floats.collect())
}

/// Writes a mono file of 16-bit samples.
pub fn write_wav(path: PathBuf, rate_hz: u32, samples: impl IntoIterator<Item = i16>) {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: rate_hz,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(path, spec).unwrap();
    samples.into_iter().for_each(|sample| writer.write_sample(sample).unwrap());
    writer.finalize().unwrap();
}
