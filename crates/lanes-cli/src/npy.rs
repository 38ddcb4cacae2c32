//! Reading and writing `.npy`, with what a hostile or truncated header claims checked against the file.
//!
//! Written here because the crate that reads the format multiplies extents unchecked, and builds a grammar compiler first.

use crate::error::{CliError, CliResult};
use lanes::DType;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a file of the format begins with.
const MAGIC: [u8; 6] = *b"\x93NUMPY";

/// An array as it lies in the file, in C order and little-endian.
#[derive(Debug, PartialEq)]
pub struct Array {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

fn dtype_of(descriptor: &str) -> Option<DType> {
    Some(match descriptor.strip_prefix(['<', '|', '='])? {
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "b1" => DType::Bool,
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

/// What a header says (NumPy enhancement proposal 1): a Python dictionary of `descr`, `fortran_order` and `shape`.
#[derive(Debug, PartialEq)]
struct Header<'a> {
    descriptor: &'a str,
    fortran: bool,
    /// `None` for an extent beyond this machine.
    shape: Vec<Option<usize>>,
}

/// Takes what `token` says off the front of `text`, blanks before it included.
fn eat<'a>(text: &mut &'a str, token: impl FnOnce(&'a str) -> usize) -> Option<&'a str> {
    let rest = text.trim_start();
    let (taken, left) = rest.split_at_checked(token(rest))?;
    *text = left;
    (!taken.is_empty()).then_some(taken)
}

fn eat_char(text: &mut &str, wanted: char) -> Option<()> {
    eat(text, |rest| if rest.starts_with(wanted) { wanted.len_utf8() } else { 0 }).map(|_| ())
}

fn eat_string<'a>(text: &mut &'a str) -> Option<&'a str> {
    let quote = text.trim_start().chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let whole = eat(text, |rest| rest[1..].find(quote).map_or(0, |end| end + 2))?;
    Some(&whole[1..whole.len() - 1])
}

fn parse_header(mut text: &str) -> Option<Header<'_>> {
    let (mut descriptor, mut fortran, mut shape) = (None, None, None);
    let text = &mut text;
    eat_char(text, '{')?;
    while eat_char(text, '}').is_none() {
        let key = eat_string(text)?;
        eat_char(text, ':')?;
        match key {
            "descr" => descriptor = Some(eat_string(text)?),
            "fortran_order" => {
                let word = eat(text, |rest| rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len()))?;
                fortran = Some(match word {
                    "True" => true,
                    "False" => false,
                    _ => return None,
                });
            }
            "shape" => {
                let mut extents = Vec::new();
                eat_char(text, '(')?;
                while eat_char(text, ')').is_none() {
                    let digits = eat(text, |rest| rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()))?;
                    extents.push(digits.parse().ok());
                    if eat_char(text, ',').is_none() && !text.trim_start().starts_with(')') {
                        return None;
                    }
                }
                shape = Some(extents);
            }
            _ => return None,
        }
        if eat_char(text, ',').is_none() && !text.trim_start().starts_with('}') {
            return None;
        }
    }
    text.trim().is_empty().then_some(())?;
    Some(Header { descriptor: descriptor?, fortran: fortran?, shape: shape? })
}

/// Where the header's text lies, from the first 12 bytes: it is read whole, so its length is checked first.
fn header_range(preamble: &[u8; 12], file: u64) -> Option<std::ops::Range<u64>> {
    let range = match *preamble {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, low, high, ..] => {
            10..10 + u64::from(u16::from_le_bytes([low, high]))
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b, c, d] => {
            12..12 + u64::from(u32::from_le_bytes([a, b, c, d]))
        }
        _ => return None,
    };
    // NumPy itself refuses headers beyond 10,000 bytes; plain arrays have about a hundred.
    (range.end <= file && range.end - range.start <= 65_536).then_some(range)
}

/// Reads a whole array.
pub fn read(path: &Path) -> CliResult<Array> {
    let failed = |why: std::io::Error| CliError::file(path, why);
    // Looked at before it is opened: opening a pipe waits for whoever writes to it.
    let seen = std::fs::metadata(path).map_err(failed)?;
    if !seen.is_file() {
        return Err(CliError::file(path, "not a regular file"));
    }
    let length = seen.len();
    let mut file = File::open(path).map_err(failed)?;
    let mut preamble = [0; 12];
    let range = file.read_exact(&mut preamble).ok().and_then(|()| header_range(&preamble, length));
    let Some(range) = range else {
        return Err(CliError::file(path, "not a .npy file, or cut off within its header"));
    };
    file.seek(SeekFrom::Start(range.start)).map_err(failed)?;
    let mut text = Vec::new();
    (&file).take(range.end - range.start).read_to_end(&mut text).map_err(failed)?;
    let header = std::str::from_utf8(&text).ok().and_then(parse_header);
    let Some(header) = header else {
        return Err(CliError::file(
            path,
            "not a .npy header: a dictionary of descr, fortran_order and shape is expected",
        ));
    };
    let Some(dtype) = dtype_of(header.descriptor) else {
        let found = header.descriptor;
        let text = format!("element type {found} is not taken; little-endian floats, integers and bool are");
        return Err(CliError::file(path, text));
    };
    // A header can claim any size: nothing is allocated before the file is known to hold it.
    let shape: Option<Vec<usize>> = header.shape.iter().copied().collect();
    let size = shape.as_ref().and_then(|shape| shape.iter().try_fold(dtype.size(), |all, &d| all.checked_mul(d)));
    let (Some(shape), Some(size)) = (shape, size.filter(|&size| size as u64 <= length)) else {
        let text = format!("claims more elements of {dtype} than its {length} bytes can hold");
        return Err(CliError::file(path, text));
    };
    let mut bytes = Vec::with_capacity(size);
    // One more than there should be: what follows an array was not meant to be left out.
    (&file).take(size as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() != size {
        let found = if bytes.len() > size { length.saturating_sub(range.end) } else { bytes.len() as u64 };
        let text = format!("shape {shape:?} of {dtype} takes {size} bytes, and {found} follow the header");
        return Err(CliError::file(path, text));
    }
    if header.fortran {
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

/// Makes an empty file beside `path`, under a name that no other process and no other write has.
fn partial(path: &Path) -> std::io::Result<(PathBuf, File)> {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{}.partial", std::process::id(), WRITES.fetch_add(1, Ordering::Relaxed)));
    let partial = path.with_file_name(name);
    let file = File::options().write(true).create_new(true).open(&partial)?;
    Ok((partial, file))
}

/// Refuses what `write` could not put at `path`, before there is anything to write.
pub fn probe(path: &Path) -> CliResult {
    // A rename replaces whatever is there but a folder: a device or a pipe would be gone.
    if let Ok(seen) = path.symlink_metadata()
        && !seen.is_file()
        && !seen.is_symlink()
    {
        let kind = if seen.is_dir() { "folder" } else { "device or pipe" };
        return Err(CliError::file(path, format!("is a {kind}, and a file is to be written there")));
    }
    let made = partial(path).and_then(|(partial, _)| std::fs::remove_file(partial));
    made.map_err(|why| CliError::file(path, format!("cannot be written: {why}")))
}

/// Whether an array may take the place of what is at `path`: nothing, an empty file or another array.
pub fn replaceable(path: &Path) -> bool {
    match path.metadata() {
        Ok(seen) if seen.is_file() => {
            let mut head = Vec::new();
            let read = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head));
            read.is_ok() && (head.is_empty() || head == MAGIC)
        }
        Ok(_) => false,
        Err(_) => true,
    }
}

/// Writes an array whole, under another name first: a full disk leaves what was there before, and of several writers the
/// last to finish has its array there.
pub fn write(path: &Path, dtype: DType, shape: &[usize], bytes: &[u8]) -> CliResult {
    let failed = |why: std::io::Error| CliError::failed(format!("{}: {why}", path.display()));
    let descriptor = descriptor_of(dtype)
        .ok_or_else(|| CliError::failed(format!("{}: {dtype} has no .npy spelling", path.display())))?;
    let (partial, file) = partial(path).map_err(failed)?;
    let written = (|| {
        let mut file = BufWriter::new(file);
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
    let mut header = [&MAGIC[..], &[1, 0]].concat();
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
    fn headers_of_other_writers_are_read() {
        let header = |text| parse_header(text).map(|h| (h.descriptor.to_owned(), h.fortran, h.shape));
        let expected = Some(("<f4".to_owned(), false, vec![Some(3)]));
        assert_eq!(header("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }   \n"), expected);
        assert_eq!(header("{\"shape\":(3),\"fortran_order\":False,\"descr\":\"<f4\"}"), expected);
        let scalar = header("{'descr': '|b1', 'fortran_order': True, 'shape': ()}");
        assert_eq!(scalar, Some(("|b1".to_owned(), true, vec![])));
        let past = header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999, 2)}");
        assert_eq!(past, Some(("<f4".to_owned(), false, vec![None, Some(2)])));
        for bad in [
            "",
            "{",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'fortran_order': Maybe, 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
            "{'é",
        ] {
            assert_eq!(header(bad), None, "{bad}");
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
        let more = [header_of("<f4", &[4]), vec![0; 19]].concat();
        let big_endian = [header_of(">f4", &[1]), vec![0; 4]].concat();
        let mut endless = b"\x93NUMPY\x02\x00".to_vec();
        endless.extend([0xFF; 4]);
        for (bytes, says) in [
            (&huge[..], "claims more elements"),
            (&long, "claims more elements"),
            (&short, "takes 16 bytes, and 15 follow"),
            (&more, "takes 16 bytes, and 19 follow"),
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
