//! Reading and writing `.npy`, with what a hostile or truncated header claims checked against the file.

use crate::error::{CliError, CliResult};
use lanes::DType;
use npyz::{DType as NpyType, NpyHeader, Order, TypeChar};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

/// An array as it lies in the file, in C order and little-endian.
#[derive(Debug, PartialEq)]
pub struct Array {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

fn dtype_of(descriptor: &NpyType) -> Option<DType> {
    let NpyType::Plain(plain) = descriptor else { return None };
    if plain.endianness() == npyz::Endianness::Big {
        return None;
    }
    Some(match (plain.type_char(), plain.size_field()) {
        (TypeChar::Float, 2) => DType::F16,
        (TypeChar::Float, 4) => DType::F32,
        (TypeChar::Float, 8) => DType::F64,
        (TypeChar::Int, 1) => DType::I8,
        (TypeChar::Int, 2) => DType::I16,
        (TypeChar::Int, 4) => DType::I32,
        (TypeChar::Int, 8) => DType::I64,
        (TypeChar::Uint, 1) => DType::U8,
        (TypeChar::Uint, 2) => DType::U16,
        (TypeChar::Uint, 4) => DType::U32,
        (TypeChar::Uint, 8) => DType::U64,
        (TypeChar::Bool, 1) => DType::Bool,
        _ => return None,
    })
}

fn descriptor_of(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::Bool => "|b1",
        // NumPy has no bfloat16: its bits are stored as int16, as elsewhere in the field.
        DType::BF16 => "<i2",
        _ => return None,
    })
}

/// Bytes that the preamble says the header has: checked first, since the header is allocated whole.
fn header_fits(preamble: &[u8], file: u64) -> bool {
    match preamble {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, low, high, ..] => {
            10 + u64::from(u16::from_le_bytes([*low, *high])) <= file
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b, c, d] => {
            12 + u64::from(u32::from_le_bytes([*a, *b, *c, *d])) <= file
        }
        _ => false,
    }
}

/// Reads a whole array.
pub fn read(path: &Path) -> CliResult<Array> {
    let read = |why: std::io::Error| CliError::file(path, why);
    // Looked at before it is opened: opening a pipe waits for whoever writes to it.
    let seen = std::fs::metadata(path).map_err(read)?;
    if !seen.is_file() {
        return Err(CliError::file(path, "not a regular file"));
    }
    let length = seen.len();
    let file = File::open(path).map_err(read)?;
    let mut reader = BufReader::new(file);
    let mut preamble = [0; 12];
    if reader.read_exact(&mut preamble).is_err() || !header_fits(&preamble, length) {
        return Err(CliError::file(path, "not a .npy file, or cut off within its header"));
    }
    reader.rewind().map_err(read)?;
    let header =
        NpyHeader::from_reader(&mut reader).map_err(|why| CliError::file(path, format!("not a .npy header: {why}")))?;
    let dtype = dtype_of(&header.dtype()).ok_or_else(|| {
        let found = header.dtype().descr();
        CliError::file(path, format!("element type {found} is not taken; little-endian floats, integers and bool are"))
    })?;
    // A header can claim any size: nothing is allocated before the file is known to hold it.
    let shape: Option<Vec<usize>> = header.shape().iter().map(|&d| usize::try_from(d).ok()).collect();
    let size = shape.as_ref().and_then(|shape| shape.iter().try_fold(dtype.size(), |all, &d| all.checked_mul(d)));
    let (Some(shape), Some(size)) = (shape, size.filter(|&size| size as u64 <= length)) else {
        let text = format!("claims shape {:?} of {dtype}, and is only {length} bytes long", header.shape());
        return Err(CliError::file(path, text));
    };
    let mut bytes = Vec::with_capacity(size);
    reader.take(size as u64).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() != size {
        let text = format!("shape {shape:?} of {dtype} takes {size} bytes, and {} follow the header", bytes.len());
        return Err(CliError::file(path, text));
    }
    if header.order() == Order::Fortran {
        bytes = in_c_order(&bytes, &shape, dtype.size());
    }
    Ok(Array { dtype, shape, bytes })
}

/// The same elements with the last axis contiguous instead of the first.
fn in_c_order(fortran: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(fortran.len());
    let mut at = vec![0; shape.len()];
    for _ in 0..fortran.len() / size {
        let element = at.iter().zip(shape).rev().fold(0, |index, (&i, &d)| index * d + i);
        out.extend_from_slice(&fortran[element * size..][..size]);
        for axis in (0..shape.len()).rev() {
            at[axis] += 1;
            if at[axis] < shape[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
    out
}

/// Writes an array whole, under another name first: a full disk leaves what was there before.
pub fn write(path: &Path, dtype: DType, shape: &[usize], bytes: &[u8]) -> CliResult {
    let failed = |why: std::io::Error| CliError::failed(format!("{}: {why}", path.display()));
    let descriptor = descriptor_of(dtype)
        .ok_or_else(|| CliError::failed(format!("{}: {dtype} has no .npy spelling", path.display())))?;
    let partial = path.with_extension("npy.partial");
    let written = (|| {
        let mut file = BufWriter::new(File::create(&partial)?);
        file.write_all(&header_of(descriptor, shape))?;
        file.write_all(bytes)?;
        file.into_inner()?.sync_all()?;
        std::fs::rename(&partial, path)
    })();
    written.map_err(|why| {
        // The error that matters is the first one; a partial file that cannot be removed changes nothing.
        let _ = std::fs::remove_file(&partial);
        failed(why)
    })
}

/// A version 1.0 header, padded so that the elements start at a multiple of 64 bytes (NumPy enhancement proposal 1).
fn header_of(descriptor: &str, shape: &[usize]) -> Vec<u8> {
    let mut axes: Vec<String> = shape.iter().map(usize::to_string).collect();
    if axes.len() == 1 {
        axes.push(String::new());
    }
    let mut text =
        format!("{{'descr': '{descriptor}', 'fortran_order': False, 'shape': ({}), }}", axes.join(", ").trim_end());
    let padding = 63 - (10 + text.len()) % 64;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend_from_slice(&(text.len() as u16).to_le_bytes());
    header.extend_from_slice(text.as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    #[test]
    fn what_is_written_reads_back() {
        let (_folder, path) = written(b"old");
        for shape in [vec![], vec![6], vec![2, 3], vec![0, 4], vec![1, 2, 3, 1]] {
            let n: usize = shape.iter().product();
            let bytes: Vec<u8> = (0..n as i32).flat_map(|v| v.to_le_bytes()).collect();
            write(&path, DType::I32, &shape, &bytes).unwrap();
            let back = read(&path).unwrap();
            assert_eq!(back, Array { dtype: DType::I32, shape, bytes });
            assert_eq!(std::fs::read(&path).unwrap().len() % 64, (n * 4) % 64);
        }
    }

    #[test]
    fn fortran_order_is_turned() {
        let mut bytes = header_of("<i2", &[2, 3]);
        let at = bytes.windows(5).position(|w| w == b"False").unwrap();
        bytes.splice(at..at + 5, *b"True ");
        // Column by column: element (r, c) is 10 r + c.
        bytes.extend([0i16, 10, 1, 11, 2, 12].iter().flat_map(|v| v.to_le_bytes()));
        let (_folder, path) = written(&bytes);
        let expected: Vec<u8> = [0i16, 1, 2, 10, 11, 12].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(read(&path).unwrap().bytes, expected);
    }

    #[test]
    fn hostile_headers_are_refused_before_anything_is_allocated() {
        let huge = header_of("<f4", &[usize::MAX / 2, 3]);
        let long = header_of("<f4", &[1 << 40]);
        let short = [header_of("<f4", &[4]), vec![0; 15]].concat();
        let big_endian = [header_of(">f4", &[1]), vec![0; 4]].concat();
        let mut endless = b"\x93NUMPY\x02\x00".to_vec();
        endless.extend([0xFF; 4]);
        for (bytes, says) in [
            (&huge[..], "claims shape"),
            (&long, "claims shape"),
            (&short, "takes 16 bytes, and 15 follow"),
            (&big_endian, "element type"),
            (&endless, "not a .npy file"),
            (b"", "not a .npy file"),
            (b"\x93NUMPY\x01\x00\x05\x00{'x'}", "not a .npy"),
        ] {
            let (_folder, path) = written(bytes);
            let error = read(&path).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.status(), 2);
        }
    }

    #[test]
    fn every_cut_and_every_altered_byte_ends_in_an_answer() {
        let whole = [header_of("<f4", &[2, 3]), vec![7; 24]].concat();
        for cut in 0..whole.len() {
            let (_folder, path) = written(&whole[..cut]);
            assert!(read(&path).is_err());
        }
        for at in 0..whole.len() - 24 {
            for value in [0, b'9', 0xFF] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let (_folder, path) = written(&bytes);
                let _ = read(&path);
            }
        }
    }
}
