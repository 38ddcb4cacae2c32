//! The model of our own over its speech: every stream gives what is committed beside it.

use lanes::lanes::{LanesBuilder, Stream, Value};
use lanes::onnx::ImportOptions;
use std::path::Path;

const FRAME: usize = 512;

/// The f32 of a `.npy` file that is little-endian and row-major.
fn npy(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("the file is there");
    assert_eq!(bytes[..8], *b"\x93NUMPY\x01\x00", "{}", path.display());
    let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let text = String::from_utf8_lossy(&bytes[10..header]);
    assert!(text.contains("'descr': '<f4', 'fortran_order': False"), "{}: {text}", path.display());
    bytes[header..].chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
}

/// 16-bit samples as they are fed to the model, in whole frames.
fn wav(path: &Path) -> Vec<f32> {
    let mut reader = hound::WavReader::open(path).expect("the file is wav");
    assert_eq!((reader.spec().sample_rate, reader.spec().channels), (16_000, 1), "{}", path.display());
    reader.samples::<i16>().map(|sample| f32::from(sample.expect("a sample")) / 32768.0).collect()
}

#[test]
fn every_stream_gives_what_is_committed() {
    let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/vad");
    let model = lanes::onnx::load(at.join("vad.onnx"), &ImportOptions::default()).expect("the model imports");
    let device = lanes::open("cpu", &lanes::OpenOptions::default()).expect("cpu opens");
    let planned = lanes::planned(device, &model).expect("the model lowers");
    let runnable = LanesBuilder::new(planned).lanes(16).build().expect("the model is served");
    let mut names: Vec<String> = std::fs::read_dir(at.join("expected"))
        .expect("expected is there")
        .map(|entry| entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names.len(), 8);
    std::thread::scope(|scope| {
        for name in &names {
            let (at, stream): (_, Stream) = (&at, runnable.spawn_blocking().expect("a lane is free"));
            scope.spawn(move || {
                let samples = wav(&at.join("speech").join(format!("{name}.wav")));
                let expected = npy(&at.join("expected").join(format!("{name}.npy")));
                assert_eq!(samples.len() / FRAME, expected.len(), "{name}");
                for (turn, (frame, e)) in samples.chunks_exact(FRAME).zip(expected).enumerate() {
                    let outputs = stream.call_blocking(&[Value::new(&[FRAME], frame)]).expect("the turn runs");
                    let a = outputs.get::<f32>(0).expect("a probability")[0];
                    assert!((a - e).abs() <= 1e-5 * e.abs().max(1.0), "{name} turn {turn} is {a}, not {e}");
                }
            });
        }
    });
}
