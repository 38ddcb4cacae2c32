//! What each stream is fed at each turn: a function of input, stream and turn, whatever the schedule.

use crate::error::{CliError, CliResult};
use crate::random::Random;
use crate::say::count;
use crate::spec::{Made, Spec};
use crate::{npy, wav};
use lanes::DType;
use std::sync::Arc;

/// The longest time between turns: an hour.
pub const FRAME_MS_MAX: f64 = 3_600_000.0;

/// One input's values for all streams and turns.
pub struct Source {
    /// For errors.
    pub name: String,
    /// The element type of the input.
    pub dtype: DType,
    /// One seat's value, without the lane axis.
    pub shape: Vec<usize>,
    feed: Feed,
    shared: bool,
}

#[derive(Clone)]
enum Feed {
    Array { bytes: Arc<[u8]>, per_stream: bool, streams: usize, turns: usize },
    Audio { files: Arc<[Vec<f32>]>, hop: usize, rate_hz: u32 },
    Made { values: Made, seed: u64, tag: u64 },
}

/// One axis of an input as the model declares it: its length, or open.
pub type Axis = Option<usize>;

/// An input of the model, before its open axes are bound.
pub struct Declared<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its element type.
    pub dtype: DType,
    /// Its axes without the lane axis.
    pub shape: &'a [Axis],
    /// All its axes: an array may hold a seat's value so, where what looks like the lane axis is another.
    pub full: &'a [Axis],
}

impl Source {
    /// Reads what `spec` names for `input`.
    pub fn open(input: &Declared<'_>, spec: &Spec, seed: u64) -> CliResult<Self> {
        let name = input.name;
        let source =
            |shape: Vec<usize>, feed| Self { name: name.to_owned(), dtype: input.dtype, shape, feed, shared: false };
        match spec {
            Spec::Npy(path) => {
                let array = npy::read(path)?;
                if array.dtype != input.dtype {
                    let text = format!("holds {}, and input `{name}` takes {}", array.dtype, input.dtype);
                    return Err(CliError::file(path, text));
                }
                let full = array.shape.len() == input.full.len() + 2;
                let axes = if full { input.full } else { input.shape };
                let rank = axes.len();
                let per_stream = array.shape.len() == rank + 2;
                if !per_stream && array.shape.len() != rank + 1 {
                    let text = format!(
                        "has shape {:?}; input `{name}` takes {} or {}",
                        array.shape,
                        shown_after(&["stream", "turn"], input.shape),
                        shown_after(&["turn"], input.shape),
                    );
                    return Err(CliError::file(path, text));
                }
                let shape = array.shape[array.shape.len() - rank..].to_vec();
                if shape.iter().zip(axes).any(|(&found, declared)| declared.is_some_and(|d| d != found)) {
                    let text = format!("feeds {shape:?} a turn, and input `{name}` takes {}", shown(axes));
                    return Err(CliError::file(path, text));
                }
                let (streams, turns) = if per_stream { (array.shape[0], array.shape[1]) } else { (1, array.shape[0]) };
                if streams == 0 {
                    return Err(CliError::file(path, "has no streams: its first axis is 0"));
                }
                if turns == 0 {
                    return Err(CliError::file(
                        path,
                        format!("has no turns: its axis {} is 0", usize::from(per_stream)),
                    ));
                }
                Ok(source(shape, Feed::Array { bytes: array.bytes.into(), per_stream, streams, turns }))
            }
            Spec::Wav { path, frame, hop } => {
                if input.dtype != DType::F32 {
                    return Err(CliError::usage(format!(
                        "input `{name}` takes {}, and a wav feeds float32",
                        input.dtype
                    )));
                }
                let shape = bind(input, *frame, "a wav")?;
                let frame: usize = shape.iter().product();
                if frame == 0 || shape.iter().filter(|&&d| d != 1).count() > 1 {
                    let text =
                        format!("input `{name}` has shape {shape:?} a turn, and a wav feeds one axis of samples");
                    return Err(CliError::usage(text));
                }
                let (mut files, mut rate_hz) = (Vec::new(), None);
                for file in wav::files(path)? {
                    let audio = wav::read(&file)?;
                    let first = *rate_hz.get_or_insert(audio.rate_hz);
                    if first != audio.rate_hz {
                        let text = format!("is at {} Hz, and the files before it are at {first} Hz", audio.rate_hz);
                        return Err(CliError::file(&file, text));
                    }
                    files.push(audio.samples);
                }
                let (rate_hz, hop) = (rate_hz.unwrap_or_default(), hop.unwrap_or(frame));
                let hop_max = u64::from(rate_hz) * FRAME_MS_MAX as u64 / 1000;
                if hop as u64 > hop_max {
                    let text = format!(
                        "input `{name}`: {hop} samples a turn at {rate_hz} Hz are more than an hour; hop=H to {hop_max} is taken"
                    );
                    return Err(CliError::usage(text));
                }
                Ok(source(shape, Feed::Audio { files: files.into(), hop, rate_hz }))
            }
            Spec::Made { values, frame } => {
                let floats = matches!(input.dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
                let fits = match *values {
                    Made::Number(value) => element(value, input.dtype).is_some(),
                    Made::Normal | Made::Uniform => floats,
                };
                if !fits {
                    let found = match values {
                        Made::Number(value) => value.to_string(),
                        Made::Normal | Made::Uniform => "a generated fraction".to_owned(),
                    };
                    let text = format!("input `{name}` takes {}, which {found} does not fit", input.dtype);
                    return Err(CliError::usage(text));
                }
                let tag = name
                    .bytes()
                    .fold(0xCBF2_9CE4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01B3));
                Ok(source(bind(input, *frame, "generated values")?, Feed::Made { values: *values, seed, tag }))
            }
        }
    }

    /// Bytes of one seat's value.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Feeds every stream what stream 0 is fed: one value serves a whole turn.
    pub fn share(&mut self) {
        self.shared = true;
    }

    /// Turns that the source holds for a run of `streams`; `None` when it never ends.
    pub fn turns(&self, streams: usize) -> Option<usize> {
        match &self.feed {
            Feed::Array { turns, .. } => Some(*turns),
            Feed::Audio { files, hop, .. } => {
                files.iter().take(streams).map(|samples| wav::turns(samples.len(), *hop)).max()
            }
            Feed::Made { .. } => None,
        }
    }

    /// Refuses a run that asks for more than the source holds. A wav is followed by silence.
    pub fn holds(&self, streams: usize, turns: usize) -> CliResult {
        if let Feed::Array { per_stream, streams: have, turns: held, .. } = self.feed {
            if turns > held {
                return Err(CliError::usage(format!(
                    "input `{}` holds {}, and --turns asks for {turns}",
                    self.name,
                    count(held, "turn")
                )));
            }
            if per_stream && streams > have {
                return Err(CliError::usage(format!(
                    "input `{}` holds {}, and --streams asks for {streams}",
                    self.name,
                    count(have, "stream")
                )));
            }
        }
        Ok(())
    }

    /// The time between turns in milliseconds, for audio.
    pub fn frame_ms(&self) -> Option<f64> {
        match self.feed {
            Feed::Audio { hop, rate_hz, .. } => Some(1000.0 * hop as f64 / f64::from(rate_hz)),
            Feed::Array { .. } | Feed::Made { .. } => None,
        }
    }

    /// The same source with some turns of generated values made beforehand and repeated, for a clock that is not to
    /// time the generator.
    pub fn rendered(&self, streams: usize) -> Self {
        const TURNS: usize = 16;
        const BYTES_MOST: usize = 64 << 20;
        let (size, shared) = (self.bytes(), self.shared);
        let per_turn = size.max(1).saturating_mul(streams);
        let feed = match &self.feed {
            Feed::Made { .. } if per_turn <= BYTES_MOST => {
                let turns = (BYTES_MOST / per_turn).clamp(1, TURNS);
                let mut bytes = vec![0; size * streams * turns];
                for stream in 0..streams {
                    for turn in 0..turns {
                        self.fill(stream, turn, &mut bytes[(stream * turns + turn) * size..][..size]);
                    }
                }
                Feed::Array { bytes: bytes.into(), per_stream: true, streams, turns }
            }
            other => other.clone(),
        };
        Self { name: self.name.clone(), dtype: self.dtype, shape: self.shape.clone(), feed, shared }
    }

    /// Writes the value of `stream` at `turn`; `out` has `bytes()`.
    pub fn fill(&self, stream: usize, turn: usize, out: &mut [u8]) {
        let stream = if self.shared { 0 } else { stream };
        match &self.feed {
            Feed::Array { bytes, per_stream, turns, .. } => {
                // A run asks for no turn past the last (`holds`); a rendered source starts over.
                let turn = turn % turns;
                let at = if *per_stream { stream * turns + turn } else { turn };
                out.copy_from_slice(&bytes[at * out.len()..][..out.len()]);
            }
            Feed::Audio { files, hop, .. } => {
                let samples = &files[stream % files.len()];
                let mut frame = vec![0.0; out.len() / 4];
                wav::frame(samples, turn, *hop, &mut frame);
                out.copy_from_slice(bytemuck::cast_slice(&frame));
            }
            Feed::Made { values, seed, tag } => {
                let mut random = Random::of(&[*seed, *tag, stream as u64, turn as u64]);
                let mut pair = (0.0, 0.0);
                for (i, out) in out.chunks_exact_mut(self.dtype.size()).enumerate() {
                    let value = match *values {
                        Made::Number(value) => value,
                        Made::Uniform => random.unit(),
                        Made::Normal if i % 2 == 0 => {
                            pair = random.normal_pair();
                            pair.0
                        }
                        Made::Normal => pair.1,
                    };
                    // `open` has checked that every value fits.
                    if let Some(bytes) = element(value, self.dtype) {
                        out.copy_from_slice(&bytes[..out.len()]);
                    }
                }
            }
        }
    }
}

/// The input's shape with its one open axis bound to `frame`, or checked against it.
fn bind(input: &Declared<'_>, frame: Option<usize>, what: &str) -> CliResult<Vec<usize>> {
    let shape = bound_shape(input, frame, what)?;
    match shape.iter().try_fold(input.dtype.size(), |all, &d| all.checked_mul(d)) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(shape),
        _ => Err(CliError::usage(format!(
            "input `{}`: a value of shape {shape:?} is larger than any memory",
            input.name
        ))),
    }
}

fn bound_shape(input: &Declared<'_>, frame: Option<usize>, what: &str) -> CliResult<Vec<usize>> {
    let open = input.shape.iter().filter(|axis| axis.is_none()).count();
    let name = input.name;
    match (open, frame) {
        (0, Some(frame)) => {
            let shape: Vec<usize> = input.shape.iter().flatten().copied().collect();
            if shape.iter().try_fold(1usize, |all, &d| all.checked_mul(d)) != Some(frame) {
                let text = format!("input `{name}` takes {shape:?} a turn, and frame={frame} does not fit it");
                return Err(CliError::usage(text));
            }
            Ok(shape)
        }
        (0, None) => Ok(input.shape.iter().flatten().copied().collect()),
        (1, Some(frame)) => Ok(input.shape.iter().map(|axis| axis.unwrap_or(frame)).collect()),
        (1, None) => Err(CliError::usage(format!(
            "input `{name}` has shape {} a turn; {what} must say the open axis, with frame=F",
            shown(input.shape)
        ))),
        _ => Err(CliError::usage(format!(
            "input `{name}` has shape {} a turn, with {open} open axes; feed it an .npy, which has a length for each",
            shown(input.shape)
        ))),
    }
}

fn shown(shape: &[Axis]) -> String {
    shown_after(&[], shape)
}

/// `shape` with axes of these names before it.
fn shown_after(names: &[&str], shape: &[Axis]) -> String {
    let axes = shape.iter().map(|axis| axis.map_or("?".to_owned(), |d| d.to_string()));
    format!("[{}]", names.iter().map(|&name| name.to_owned()).chain(axes).collect::<Vec<_>>().join(", "))
}

/// `value` as the little-endian bytes of one element, if the type can hold it.
pub fn element(value: f64, dtype: DType) -> Option<[u8; 8]> {
    let mut bytes = [0; 8];
    let whole = |low: f64, high: f64| (value.fract() == 0.0 && value >= low && value <= high).then_some(value);
    match dtype {
        DType::F16 => bytes[..2].copy_from_slice(&half::f16::from_f64(value).to_le_bytes()),
        DType::BF16 => bytes[..2].copy_from_slice(&half::bf16::from_f64(value).to_le_bytes()),
        DType::F32 => bytes[..4].copy_from_slice(&(value as f32).to_le_bytes()),
        DType::F64 => bytes.copy_from_slice(&value.to_le_bytes()),
        DType::I8 => bytes[..1].copy_from_slice(&(whole(-128.0, 127.0)? as i8).to_le_bytes()),
        DType::U8 => bytes[0] = whole(0.0, 255.0)? as u8,
        DType::Bool => bytes[0] = whole(0.0, 1.0)? as u8,
        DType::I16 => bytes[..2].copy_from_slice(&(whole(-32768.0, 32767.0)? as i16).to_le_bytes()),
        DType::U16 => bytes[..2].copy_from_slice(&(whole(0.0, 65535.0)? as u16).to_le_bytes()),
        DType::I32 => bytes[..4].copy_from_slice(&(whole(-2147483648.0, 2147483647.0)? as i32).to_le_bytes()),
        DType::U32 => bytes[..4].copy_from_slice(&(whole(0.0, 4294967295.0)? as u32).to_le_bytes()),
        // 2^53: beyond it a number on the command line is no longer exact.
        DType::I64 => bytes.copy_from_slice(&(whole(-9007199254740992.0, 9007199254740992.0)? as i64).to_le_bytes()),
        DType::U64 => bytes.copy_from_slice(&(whole(0.0, 9007199254740992.0)? as u64).to_le_bytes()),
        _ => return None,
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(shape: &[Axis]) -> Declared<'_> {
        Declared { name: "x", dtype: DType::F32, shape, full: shape }
    }

    fn floats(source: &Source, stream: usize, turn: usize) -> Vec<f32> {
        let mut bytes = vec![0; source.bytes()];
        source.fill(stream, turn, &mut bytes);
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    #[test]
    fn an_array_is_indexed_by_stream_and_turn_or_by_turn_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        let bytes: Vec<u8> = (0..24).flat_map(|v| (v as f32).to_le_bytes()).collect();
        npy::write(&path, DType::F32, &[2, 4, 3], &bytes).unwrap();
        let source = Source::open(&declared(&[None]), &Spec::Npy(path.clone()), 0).unwrap();
        assert_eq!((source.shape.clone(), source.turns(2)), (vec![3], Some(4)));
        assert_eq!(floats(&source, 1, 2), [18.0, 19.0, 20.0]);
        assert!(source.holds(3, 4).unwrap_err().to_string().contains("holds 2 streams"));
        assert!(source.holds(2, 5).unwrap_err().to_string().contains("holds 4 turns"));

        let source = Source::open(&declared(&[Some(4), Some(3)]), &Spec::Npy(path.clone()), 0).unwrap();
        assert_eq!((floats(&source, 7, 1)[0], source.turns(9)), (12.0, Some(2)));
        source.holds(9, 2).unwrap();
        for (shape, says) in [
            (&[Some(5)][..], "takes [5]"),
            (&[None, Some(2), None, None], "takes [stream, turn, ?, 2, ?, ?] or [turn, ?, 2, ?, ?]"),
        ] {
            let error = Source::open(&declared(shape), &Spec::Npy(path.clone()), 0).err().unwrap();
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn an_array_may_hold_all_axes_of_a_value() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        let bytes: Vec<u8> = (0..48).flat_map(|v| (v as f32).to_le_bytes()).collect();
        npy::write(&path, DType::F32, &[2, 4, 2, 3], &bytes).unwrap();
        let (shape, full) = ([Some(3)], [None, Some(3)]);
        let input = Declared { name: "x", dtype: DType::F32, shape: &shape, full: &full };
        let source = Source::open(&input, &Spec::Npy(path.clone()), 0).unwrap();
        assert_eq!((source.shape.clone(), source.turns(2)), (vec![2, 3], Some(4)));
        assert_eq!(floats(&source, 1, 1), [30.0, 31.0, 32.0, 33.0, 34.0, 35.0]);
        let full = [None, Some(4)];
        let input = Declared { full: &full, ..input };
        assert!(Source::open(&input, &Spec::Npy(path), 0).err().unwrap().to_string().contains("[2, 3]"));
    }

    #[test]
    fn made_values_depend_on_seed_stream_turn_and_nothing_else() {
        let normal = Spec::Made { values: Made::Normal, frame: Some(8) };
        let open = |seed| Source::open(&declared(&[Some(1), None]), &normal, seed).unwrap();
        let (source, other) = (open(1), open(2));
        assert_eq!(source.shape, [1, 8]);
        let first = floats(&source, 3, 4);
        floats(&source, 0, 0);
        assert_eq!(floats(&source, 3, 4), first);
        assert_ne!(floats(&source, 3, 5), first);
        assert_ne!(floats(&source, 4, 4), first);
        assert_ne!(floats(&other, 3, 4), first);
    }

    #[test]
    fn a_rendered_source_feeds_the_same_values_until_it_starts_over() {
        let spec = Spec::Made { values: Made::Normal, frame: Some(5) };
        let source = Source::open(&declared(&[None]), &spec, 3).unwrap();
        let rendered = source.rendered(2);
        for (stream, turn) in [(0, 0), (1, 0), (0, 15), (1, 15)] {
            assert_eq!(floats(&rendered, stream, turn), floats(&source, stream, turn));
        }
        assert_eq!(floats(&rendered, 1, 18), floats(&source, 1, 2));
    }

    #[test]
    fn open_axes_and_types_that_do_not_fit_are_refused() {
        let made = |values, frame| Spec::Made { values, frame };
        for (shape, spec, says) in [
            (&[None][..], made(Made::Normal, None), "frame=F"),
            (&[None, None], made(Made::Normal, Some(3)), ".npy"),
            (&[Some(4)], made(Made::Normal, Some(3)), "does not fit"),
        ] {
            let error = Source::open(&declared(shape), &spec, 0).err().unwrap();
            assert!(error.to_string().contains(says), "{error}");
        }
        let shape = [Some(1)];
        let bytes = Declared { name: "x", dtype: DType::U8, shape: &shape, full: &shape };
        assert!(Source::open(&bytes, &made(Made::Normal, None), 0).is_err());
        assert!(Source::open(&bytes, &made(Made::Number(256.0), None), 0).is_err());
        let source = Source::open(&bytes, &made(Made::Number(255.0), None), 0).unwrap();
        let mut value = [0];
        source.fill(0, 0, &mut value);
        assert_eq!(value, [255]);
    }
}
