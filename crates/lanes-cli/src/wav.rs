//! Reading wav files: mono, 16-bit integers or 32-bit floats, at the file's own rate.

use crate::error::{CliError, CliResult};
use hound::{SampleFormat, WavReader};
use std::path::{Path, PathBuf};

/// The highest sample rate: several times that of any converter.
const RATE_HZ_MAX: u32 = 10_000_000;

/// One file's samples in [-1, 1] (integers divided by 32768).
#[derive(Debug)]
pub struct Audio {
    pub samples: Vec<f32>,
    pub rate_hz: u32,
}

/// Reads one file.
pub fn read(path: &Path) -> CliResult<Audio> {
    let bad = |why: hound::Error| CliError::file(path, format!("not a readable wav file: {why}"));
    // Looked at before it is opened: opening a pipe waits for whoever writes to it.
    let seen = std::fs::metadata(path).map_err(|why| CliError::file(path, why))?;
    if !seen.is_file() {
        return Err(CliError::file(path, "not a regular file"));
    }
    let mut reader = WavReader::open(path).map_err(bad)?;
    let spec = reader.spec();
    if spec.channels != 1 {
        return Err(CliError::file(path, format!("has {} channels; mono is taken", spec.channels)));
    }
    if !(1..=RATE_HZ_MAX).contains(&spec.sample_rate) {
        let text = format!("has a sample rate of {} Hz; 1 to {RATE_HZ_MAX} Hz is taken", spec.sample_rate);
        return Err(CliError::file(path, text));
    }
    let samples = match (spec.sample_format, spec.bits_per_sample) {
        (SampleFormat::Int, 16) => {
            reader.samples::<i16>().map(|s| s.map(|s| f32::from(s) / 32768.0)).collect::<Result<Vec<_>, _>>()
        }
        (SampleFormat::Float, 32) => reader.samples::<f32>().collect(),
        (format, bits) => {
            let kind = if format == SampleFormat::Int { "integers" } else { "floats" };
            return Err(CliError::file(
                path,
                format!("has {bits}-bit {kind}; 16-bit integers and 32-bit floats are taken"),
            ));
        }
    };
    let samples = samples.map_err(bad)?;
    // In a folder it would be a stream of silence that nobody asked for.
    if samples.is_empty() {
        return Err(CliError::file(path, "holds no samples; at least one is needed"));
    }
    Ok(Audio { samples, rate_hz: spec.sample_rate })
}

/// The wav files that a path names: itself, or a folder's, by name.
pub fn files(path: &Path) -> CliResult<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).map_err(|why| CliError::file(path, why))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.map_err(|why| CliError::file(path, why))?.path();
        if file.extension().is_some_and(|e| e.eq_ignore_ascii_case("wav")) {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(CliError::file(path, "a folder without .wav files"));
    }
    files.sort();
    Ok(files)
}

/// Turn `turn` of a stream: the `frame.len()` samples that end at sample `(turn + 1) * hop`, zeros outside the file.
pub fn frame(samples: &[f32], turn: usize, hop: usize, frame: &mut [f32]) {
    let end = (turn + 1).saturating_mul(hop);
    let missing = frame.len().saturating_sub(end);
    frame.fill(0.0);
    let start = (end - (frame.len() - missing)).min(samples.len());
    let stop = end.min(samples.len());
    frame[missing..][..stop - start].copy_from_slice(&samples[start..stop]);
}

/// Turns that cover all of `samples`.
pub fn turns(samples: usize, hop: usize) -> usize {
    samples.div_ceil(hop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hound::{WavSpec, WavWriter};

    /// The contract, sample by sample.
    #[test]
    fn frames_end_at_the_hop_and_are_zero_outside() {
        for samples in [0usize, 1, 5, 12, 13] {
            let file: Vec<f32> = (0..samples).map(|i| i as f32 + 1.0).collect();
            for (length, hop) in [(4, 4), (6, 4), (3, 5), (9, 2)] {
                for turn in 0..8 {
                    let mut found = vec![9.0; length];
                    frame(&file, turn, hop, &mut found);
                    let end = ((turn + 1) * hop) as isize;
                    let expected: Vec<f32> = (end - length as isize..end)
                        .map(|at| usize::try_from(at).ok().and_then(|at| file.get(at)).copied().unwrap_or(0.0))
                        .collect();
                    assert_eq!(found, expected, "{samples} samples, frame {length}, hop {hop}, turn {turn}");
                }
            }
        }
        assert_eq!([turns(0, 4), turns(1, 4), turns(4, 4), turns(5, 4)], [0, 1, 1, 2]);
    }

    #[test]
    fn integers_and_floats_are_read_and_others_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.WAV");
        let spec = |channels, bits_per_sample, sample_format| WavSpec {
            channels,
            sample_rate: 8000,
            bits_per_sample,
            sample_format,
        };
        let mut writer = WavWriter::create(&path, spec(1, 16, SampleFormat::Int)).unwrap();
        [-32768i16, 0, 16384].iter().for_each(|&s| writer.write_sample(s).unwrap());
        writer.finalize().unwrap();
        let audio = read(&path).unwrap();
        assert_eq!((audio.samples, audio.rate_hz), (vec![-1.0, 0.0, 0.5], 8000));
        assert_eq!(files(folder.path()).unwrap(), std::slice::from_ref(&path));

        let mut writer = WavWriter::create(&path, spec(1, 32, SampleFormat::Float)).unwrap();
        [0.25f32, -3.0].iter().for_each(|&s| writer.write_sample(s).unwrap());
        writer.finalize().unwrap();
        assert_eq!(read(&path).unwrap().samples, [0.25, -3.0]);

        let mut writer = WavWriter::create(&path, spec(2, 16, SampleFormat::Int)).unwrap();
        [1i16, 2].iter().for_each(|&s| writer.write_sample(s).unwrap());
        writer.finalize().unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("2 channels"));

        let mut writer = WavWriter::create(&path, spec(1, 24, SampleFormat::Int)).unwrap();
        writer.write_sample(1i32).unwrap();
        writer.finalize().unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("24-bit integers"));
    }

    #[test]
    fn a_cut_or_altered_file_is_an_error_or_shorter_audio() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wav");
        let spec = WavSpec { channels: 1, sample_rate: 8000, bits_per_sample: 16, sample_format: SampleFormat::Int };
        let mut writer = WavWriter::create(&path, spec).unwrap();
        (0..10i16).for_each(|s| writer.write_sample(s).unwrap());
        writer.finalize().unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(read(&path).map_or(true, |audio| (1..10).contains(&audio.samples.len())), "cut at {cut}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7F, 0xFF] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                std::fs::write(&path, &bytes).unwrap();
                let _ = read(&path);
            }
        }
    }
}
