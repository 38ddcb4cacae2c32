//! A stream's state as bytes: what `Stream::snapshot` gives and `Runnable::restore` takes, in any process.
//!
//! ```text
//! magic 8 | version u32 | bytes of all u64 | identity 32 | name | position u64 | states u32 | state ... | SHA-256 32
//! state: name | dtype | rank u32 | extent u64 ... | row     name, dtype: bytes u32, UTF-8     row: bytes u64, the bytes
//! ```
//!
//! - Integers are little-endian. The checksum is over all before it.
//! - Nothing is believed before the checksum holds, and nothing is allocated that the length found does not pay for.
//! - The identity says which model: equal ones have the same states, and compute the same from them.
//! - Not here: reading and writing rows (`operation`), what a model's identity is made of (`plan::identity`).

use super::model::Identity;
use crate::device::DeviceError;
use crate::{Signature, StateSpec};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// How every snapshot begins.
const MAGIC: [u8; 8] = *b"lanes\0s\n";
/// How one of several stages begins. Its contents: stages u32, then for each its length u64 and its snapshot.
const MAGIC_OF_STAGES: [u8; 8] = *b"lanes\0g\n";
/// The format written, and the only one read.
const VERSION: u32 = 1;
/// The longest snapshot that is written or read.
pub const SNAPSHOT_BYTES_MAX: u64 = 1 << 30;
/// Magic, version, length.
const HEAD_BYTES: usize = 8 + 4 + 8;
const SUM_BYTES: usize = 32;

/// Why a stream has no snapshot, or a snapshot is not restored. No lane has changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It begins with something else, or is shorter than any snapshot.
    #[error("not a snapshot: {found} bytes, which do not begin as one does")]
    NotOne {
        /// Bytes given.
        found: usize,
    },
    /// It has another format. Restore it with the build that wrote it, or a later one.
    #[error("the snapshot has format {found}, and this build reads format {known}")]
    Version {
        /// Its format.
        found: u32,
        /// The format that is read.
        known: u32,
    },
    /// It is longer than a snapshot may be.
    #[error("the snapshot has {found} bytes, and at most {limit} are accepted")]
    TooLarge {
        /// Its length.
        found: u64,
        /// The most accepted.
        limit: u64,
    },
    /// It has another length than it had when it was written.
    #[error("the snapshot was cut or extended: {found} bytes, and {expected} were written")]
    Length {
        /// Bytes given.
        found: u64,
        /// Bytes that its head says.
        expected: u64,
    },
    /// Some byte is not as it was when it was written.
    #[error("the snapshot was altered: its checksum does not match")]
    Altered,
    /// It was taken of another model, or of another build of one.
    #[error("the snapshot is of model {found} ({found_identity}), and this is model {expected} ({expected_identity})")]
    Foreign {
        /// The name of its model.
        found: String,
        /// The first 8 digits of that model's identity.
        found_identity: String,
        /// The name of this model.
        expected: String,
        /// The first 8 digits of its identity.
        expected_identity: String,
    },
    /// It says that it is of this model and contradicts what the model declares: it was not written by `snapshot`.
    #[error("the snapshot is malformed: {what}")]
    Malformed {
        /// What was found, where, and what was expected.
        what: String,
    },
    /// The model's identity or rows could not be read or written.
    #[error("the model gives no access to its rows")]
    Device(#[source] Arc<DeviceError>),
}

impl From<DeviceError> for SnapshotError {
    fn from(error: DeviceError) -> Self {
        Self::Device(Arc::new(error))
    }
}

fn malformed(what: String) -> SnapshotError {
    SnapshotError::Malformed { what }
}

/// The first 8 hexadecimal digits.
fn short(identity: &[u8]) -> String {
    identity.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// The snapshot of a stream of the model with `signature` and `identity`; `read` gives the bytes of one state.
pub(super) fn encode(
    signature: &Signature,
    identity: &Identity,
    position: u64,
    mut read: impl FnMut(usize, &mut [u8]) -> Result<(), DeviceError>,
) -> Result<Vec<u8>, SnapshotError> {
    let name_bytes = |name: &str| 4 + name.len();
    let state_bytes = |spec: &StateSpec| {
        let named = name_bytes(&spec.input) + name_bytes(spec.dtype.name());
        named + 4 + 8 * spec.lane_shape.len() + 8 + spec.bytes()
    };
    let states: usize = signature.states.iter().map(state_bytes).sum();
    let mut out = begun(&MAGIC, identity.len() + name_bytes(&signature.name) + 8 + 4 + states)?;
    out.extend(identity);
    put_name(&mut out, &signature.name);
    out.extend(position.to_le_bytes());
    out.extend((signature.states.len() as u32).to_le_bytes());
    for (state, spec) in signature.states.iter().enumerate() {
        put_name(&mut out, &spec.input);
        put_name(&mut out, spec.dtype.name());
        out.extend((spec.lane_shape.len() as u32).to_le_bytes());
        spec.lane_shape.iter().for_each(|extent| out.extend((*extent as u64).to_le_bytes()));
        out.extend((spec.bytes() as u64).to_le_bytes());
        let start = out.len();
        out.resize(start + spec.bytes(), 0);
        read(state, &mut out[start..])?;
    }
    Ok(sealed(out))
}

/// The head of a snapshot with `contents` bytes of contents, which are to be appended.
fn begun(magic: &[u8; 8], contents: usize) -> Result<Vec<u8>, SnapshotError> {
    let bytes = HEAD_BYTES + contents + SUM_BYTES;
    if bytes as u64 > SNAPSHOT_BYTES_MAX {
        return Err(SnapshotError::TooLarge { found: bytes as u64, limit: SNAPSHOT_BYTES_MAX });
    }
    let mut out = Vec::with_capacity(bytes);
    out.extend(magic);
    out.extend(VERSION.to_le_bytes());
    out.extend((bytes as u64).to_le_bytes());
    Ok(out)
}

/// Appends the checksum.
fn sealed(mut out: Vec<u8>) -> Vec<u8> {
    let sum = Sha256::digest(&out);
    out.extend(sum);
    debug_assert_eq!(out.len(), out.capacity());
    out
}

/// The snapshots of a stream's stages, in their order, as one.
pub(super) fn pack(stages: &[Vec<u8>]) -> Result<Vec<u8>, SnapshotError> {
    let bytes: usize = stages.iter().map(|stage| 8 + stage.len()).sum();
    let mut out = begun(&MAGIC_OF_STAGES, 4 + bytes)?;
    out.extend((stages.len() as u32).to_le_bytes());
    for stage in stages {
        out.extend((stage.len() as u64).to_le_bytes());
        out.extend(stage);
    }
    Ok(sealed(out))
}

/// The snapshots of `stages` stages that `pack` made one of.
pub(super) fn unpack(bytes: &[u8], stages: usize) -> Result<Vec<&[u8]>, SnapshotError> {
    let mut reader = Reader(unsealed(&MAGIC_OF_STAGES, bytes)?);
    let found = reader.u32("number of stages")?;
    if found as usize != stages {
        return Err(malformed(format!("{found} stages, and the model has {stages}")));
    }
    let parts = (0..stages).map(|stage| {
        let bytes = reader.u64("length of a stage")?;
        // What does not fit `usize` is more than is left.
        reader.take(usize::try_from(bytes).unwrap_or(usize::MAX), &format!("stage {stage}"))
    });
    let parts = parts.collect::<Result<_, _>>()?;
    if !reader.0.is_empty() {
        return Err(malformed(format!("{} bytes after the last stage", reader.0.len())));
    }
    Ok(parts)
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    out.extend((name.len() as u32).to_le_bytes());
    out.extend(name.as_bytes());
}

/// The contents of a snapshot whose length and checksum hold: everything between its head and its sum.
#[derive(Debug)]
pub(super) struct Sealed(Box<[u8]>);

/// The contents of what `sealed` made with `magic`.
fn unsealed<'a>(magic: &[u8; 8], bytes: &'a [u8]) -> Result<&'a [u8], SnapshotError> {
    let found = bytes.len();
    let Some(rest) = bytes.strip_prefix(magic).filter(|_| found >= HEAD_BYTES + SUM_BYTES) else {
        return Err(SnapshotError::NotOne { found });
    };
    let mut head = Reader(rest);
    let version = head.u32("version")?;
    if version != VERSION {
        return Err(SnapshotError::Version { found: version, known: VERSION });
    }
    let (found, expected) = (found as u64, head.u64("length")?);
    if found.max(expected) > SNAPSHOT_BYTES_MAX {
        return Err(SnapshotError::TooLarge { found: found.max(expected), limit: SNAPSHOT_BYTES_MAX });
    }
    if found != expected {
        return Err(SnapshotError::Length { found, expected });
    }
    let (contents, sum) = bytes.split_at(bytes.len() - SUM_BYTES);
    if Sha256::digest(contents).as_slice() != sum {
        return Err(SnapshotError::Altered);
    }
    Ok(&contents[HEAD_BYTES..])
}

impl Sealed {
    pub fn check(bytes: &[u8]) -> Result<Self, SnapshotError> {
        unsealed(&MAGIC, bytes).map(|contents| Self(contents.into()))
    }

    /// What it holds for the model with `signature` and `identity`.
    pub fn open(&self, signature: &Signature, identity: &Identity) -> Result<Opened<'_>, SnapshotError> {
        let mut reader = Reader(&self.0);
        let found_identity = reader.take(identity.len(), "identity")?;
        let name = reader.name("model")?;
        if found_identity != identity {
            return Err(SnapshotError::Foreign {
                found: clipped(name),
                found_identity: short(found_identity),
                expected: signature.name.clone(),
                expected_identity: short(identity),
            });
        }
        let position = reader.u64("position")?;
        let states = reader.u32("number of states")?;
        if states as usize != signature.states.len() {
            return Err(malformed(format!("{states} states, and the model has {}", signature.states.len())));
        }
        let rows = signature.states.iter().map(|spec| reader.row(spec)).collect::<Result<_, _>>()?;
        if !reader.0.is_empty() {
            return Err(malformed(format!("{} bytes after the last state", reader.0.len())));
        }
        Ok(Opened { position, rows })
    }
}

/// A snapshot that fits its model.
#[derive(Debug)]
pub(super) struct Opened<'a> {
    position: u64,
    rows: Vec<&'a [u8]>,
}

impl<'a> Opened<'a> {
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Each state's number and bytes.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &'a [u8])> {
        self.rows.iter().copied().enumerate()
    }
}

/// A name for a message: of a forged one only the start.
fn clipped(name: &str) -> String {
    const MOST: usize = 64;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize, what: &str) -> Result<&'a [u8], SnapshotError> {
        let Some((taken, rest)) = self.0.split_at_checked(bytes) else {
            return Err(malformed(format!("{what}: {bytes} bytes, and {} are left", self.0.len())));
        };
        self.0 = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self, what: &str) -> Result<[u8; N], SnapshotError> {
        let mut number = [0; N];
        number.copy_from_slice(self.take(N, what)?);
        Ok(number)
    }

    fn u32(&mut self, what: &str) -> Result<u32, SnapshotError> {
        self.number(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, SnapshotError> {
        self.number(what).map(u64::from_le_bytes)
    }

    fn name(&mut self, what: &str) -> Result<&'a str, SnapshotError> {
        let bytes = self.u32(what)? as usize;
        std::str::from_utf8(self.take(bytes, what)?).map_err(|_| malformed(format!("{what}: its name is not UTF-8")))
    }

    /// The bytes of a state, which must be as `spec` declares it.
    fn row(&mut self, spec: &StateSpec) -> Result<&'a [u8], SnapshotError> {
        let (name, dtype) = (self.name("state")?, self.name("dtype")?);
        let what = &spec.input;
        let rank = self.u32(what)?;
        if rank as usize != spec.lane_shape.len() {
            // Before any extent is read: a forged one costs no more than a look.
            let expected = spec.lane_shape.len();
            return Err(malformed(format!(
                "state {}: rank {rank}, and {what} of the model has {expected}",
                clipped(name)
            )));
        }
        let shape = (0..rank).map(|_| self.u64(what)).collect::<Result<Vec<_>, _>>()?;
        let bytes = self.u64(what)?;
        let is_same = name == spec.input
            && dtype == spec.dtype.name()
            && shape.iter().copied().eq(spec.lane_shape.iter().map(|extent| *extent as u64))
            && bytes == spec.bytes() as u64;
        if !is_same {
            let found = format!("state {}: {} {shape:?} of {bytes} bytes", clipped(name), clipped(dtype));
            let expected = format!("{what}: {} {:?} of {} bytes", spec.dtype, spec.lane_shape, spec.bytes());
            return Err(malformed(format!("{found}, and the model has {expected}")));
        }
        self.take(spec.bytes(), what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, StateKind};
    use proptest::prelude::*;

    const MINE: Identity = [7; 32];

    fn signature() -> Signature {
        let state = |input: &str, dtype, lane_shape: &[usize]| StateSpec {
            input: input.into(),
            output: format!("{input}_out"),
            dtype,
            lane_shape: lane_shape.into(),
            initial: None,
            kind: StateKind::Replaced,
        };
        let states = vec![state("h", DType::F32, &[2, 3]), state("n", DType::I64, &[]), state("none", DType::U8, &[0])];
        Signature { name: "model".into(), states, ..Signature::default() }
    }

    /// State `s` is filled with `s + 1`.
    fn snapshot(signature: &Signature, identity: &Identity, position: u64) -> Vec<u8> {
        let fill = |state: usize, into: &mut [u8]| {
            into.fill(state as u8 + 1);
            Ok(())
        };
        encode(signature, identity, position, fill).unwrap()
    }

    /// What is restored, or why not.
    fn restore(bytes: &[u8]) -> Result<(u64, Vec<Vec<u8>>), String> {
        let restore = || {
            let sealed = Sealed::check(bytes)?;
            let opened = sealed.open(&signature(), &MINE)?;
            Ok((opened.position(), opened.rows().map(|(_, row)| row.to_vec()).collect()))
        };
        restore().map_err(|error: SnapshotError| error.to_string())
    }

    /// With the length and the sum that the contents call for: what a forger can do.
    fn forge(mut contents: Vec<u8>) -> Vec<u8> {
        let bytes = (contents.len() + SUM_BYTES) as u64;
        contents[12..20].copy_from_slice(&bytes.to_le_bytes());
        let sum = Sha256::digest(&contents);
        contents.extend(sum);
        contents
    }

    /// A good one, without its sum.
    fn contents() -> Vec<u8> {
        let mut bytes = snapshot(&signature(), &MINE, 9);
        bytes.truncate(bytes.len() - SUM_BYTES);
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = snapshot(&signature(), &MINE, u64::MAX);
        assert_eq!(restore(&bytes), Ok((u64::MAX, vec![vec![1; 24], vec![2; 8], vec![]])));
        assert_eq!(restore(&forge(contents())).unwrap().0, 9);
        // The format, byte by byte up to the position.
        let mut expected = b"lanes\0s\n\x01\0\0\0".to_vec();
        expected.extend((bytes.len() as u64).to_le_bytes());
        expected.extend([7; 32]);
        expected.extend(b"\x05\0\0\0model\xff\xff\xff\xff\xff\xff\xff\xff\x03\0\0\0\x01\0\0\0h");
        assert_eq!(bytes[..expected.len()], expected);
    }

    #[test]
    fn what_is_no_snapshot_is_refused() {
        assert_eq!(restore(b"").unwrap_err(), "not a snapshot: 0 bytes, which do not begin as one does");
        let long = [1; 100];
        assert_eq!(restore(&long).unwrap_err(), "not a snapshot: 100 bytes, which do not begin as one does");
        let short = &snapshot(&signature(), &MINE, 1)[..HEAD_BYTES + SUM_BYTES - 1];
        assert_eq!(restore(short).unwrap_err(), "not a snapshot: 51 bytes, which do not begin as one does");
    }

    #[test]
    fn another_format_is_refused() {
        let mut bytes = snapshot(&signature(), &MINE, 1);
        for version in [0u32, 2, u32::MAX] {
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            let expected = format!("the snapshot has format {version}, and this build reads format 1");
            assert_eq!(restore(&bytes).unwrap_err(), expected);
        }
    }

    #[test]
    fn one_that_is_too_large_is_refused_before_it_is_read() {
        let limit = "at most 1073741824 are accepted";
        let mut bytes = snapshot(&signature(), &MINE, 1);
        bytes[12..20].copy_from_slice(&u64::MAX.to_le_bytes());
        let expected = format!("the snapshot has 18446744073709551615 bytes, and {limit}");
        assert_eq!(restore(&bytes).unwrap_err(), expected);
        // Pages that nobody touches cost nothing.
        let mut large = vec![0; SNAPSHOT_BYTES_MAX as usize + 1];
        large[..20].copy_from_slice(&snapshot(&signature(), &MINE, 1)[..20]);
        assert_eq!(restore(&large).unwrap_err(), format!("the snapshot has 1073741825 bytes, and {limit}"));
        let mut signature = signature();
        signature.states[0].lane_shape = vec![1 << 28];
        let error = encode(&signature, &MINE, 1, |_, _| unreachable!("nothing was allocated to read into"));
        assert_eq!(error.unwrap_err().to_string(), format!("the snapshot has 1073742036 bytes, and {limit}"));
    }

    #[test]
    fn one_that_was_cut_or_extended_is_refused() {
        let mut bytes = snapshot(&signature(), &MINE, 1);
        let whole = bytes.len();
        let said = |found: usize| format!("the snapshot was cut or extended: {found} bytes, and {whole} were written");
        assert_eq!(restore(&bytes[..whole - 1]).unwrap_err(), said(whole - 1));
        bytes.push(0);
        assert_eq!(restore(&bytes).unwrap_err(), said(whole + 1));
    }

    #[test]
    fn one_that_was_altered_is_refused() {
        let mut bytes = snapshot(&signature(), &MINE, 1);
        let in_a_row = bytes.len() - SUM_BYTES - 20;
        bytes[in_a_row] ^= 1;
        assert_eq!(restore(&bytes).unwrap_err(), "the snapshot was altered: its checksum does not match");
    }

    #[test]
    fn one_of_another_model_is_refused_by_name() {
        let mut other = signature();
        other.name = "another".into();
        other.states.clear();
        let error = restore(&snapshot(&other, &[0xab; 32], 1)).unwrap_err();
        assert_eq!(error, "the snapshot is of model another (abababab), and this is model model (07070707)");
    }

    #[test]
    fn a_forged_one_is_refused_for_what_it_contradicts() {
        let at = |needle: &[u8]| contents().windows(needle.len()).position(|found| found == needle).unwrap();
        let forged = |at: usize, bytes: &[u8]| {
            let mut contents = contents();
            contents[at..at + bytes.len()].copy_from_slice(bytes);
            restore(&forge(contents)).unwrap_err()
        };
        let (name, states) = (at(b"model"), at(b"model") + 5 + 8);
        let shape = at(b"float32") + 7;
        let said = |what: &str| format!("the snapshot is malformed: {what}");
        assert_eq!(forged(name, &[0xff]), said("model: its name is not UTF-8"));
        let left = contents().len() - name;
        let expected = said(&format!("model: 4294967295 bytes, and {left} are left"));
        assert_eq!(forged(name - 4, &u32::MAX.to_le_bytes()), expected);
        assert_eq!(forged(states, &9u32.to_le_bytes()), said("9 states, and the model has 3"));
        let mine = "and the model has h: float32 [2, 3] of 24 bytes";
        let expected = said(&format!("state h: float64 [2, 3] of 24 bytes, {mine}"));
        assert_eq!(forged(shape - 2, b"64"), expected);
        let expected = said(&format!("state h: float32 [3, 3] of 24 bytes, {mine}"));
        assert_eq!(forged(shape + 4, &3u64.to_le_bytes()), expected);
        let expected = said(&format!("state h: float32 [2, 3] of 25 bytes, {mine}"));
        assert_eq!(forged(shape + 20, &25u64.to_le_bytes()), expected);
        let expected = said("state h: rank 4294967295, and h of the model has 2");
        assert_eq!(forged(shape, &u32::MAX.to_le_bytes()), expected);
        let long = Signature { name: "é".repeat(1 << 20), ..signature() };
        let error = restore(&snapshot(&long, &[0; 32], 1)).unwrap_err();
        let start = "é".repeat(64);
        assert_eq!(error, format!("the snapshot is of model {start}… (00000000), and this is model model (07070707)"));
        let mut longer = contents();
        longer.push(0);
        assert_eq!(restore(&forge(longer)).unwrap_err(), said("1 bytes after the last state"));
        let mut shorter = contents();
        shorter.pop();
        assert!(restore(&forge(shorter)).unwrap_err().starts_with(&said("none: 8 bytes, and ")));
    }

    proptest! {
        /// Whatever is done to a good snapshot, or to one whose maker knows the format, ends in an error.
        #[test]
        fn a_changed_one_is_never_restored(
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in any::<Option<prop::sample::Index>>(),
            is_sealed in any::<bool>(),
        ) {
            let good = if is_sealed { contents() } else { snapshot(&signature(), &MINE, 9) };
            let mut bytes = good.clone();
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()).max(20));
            }
            prop_assume!(bytes != good);
            if is_sealed {
                // A forger may change a position or a row, and nothing else.
                let length = good.len();
                if let Ok((_, rows)) = restore(&forge(bytes.clone())) {
                    prop_assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [24, 8, 0]);
                    prop_assert_eq!(bytes.len(), length);
                }
            } else {
                prop_assert!(restore(&bytes).is_err());
            }
        }

        #[test]
        fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(restore(&bytes).is_err());
            let mut with_head = MAGIC.to_vec();
            with_head.extend(VERSION.to_le_bytes());
            with_head.extend([0; 8]);
            with_head.extend(bytes);
            prop_assert!(restore(&forge(with_head)).is_err());
        }
    }

    #[test]
    fn stages_are_packed_and_no_other_number_of_them_is_read() {
        let stages = [snapshot(&signature(), &MINE, 1), snapshot(&signature(), &[8; 32], 2)];
        let packed = pack(&stages).unwrap();
        assert_eq!(unpack(&packed, 2).unwrap(), stages);
        let said = |bytes: &[u8], stages| unpack(bytes, stages).unwrap_err().to_string();
        assert_eq!(said(&packed, 3), "the snapshot is malformed: 2 stages, and the model has 3");
        assert_eq!(
            said(&stages[0], 1),
            format!("not a snapshot: {} bytes, which do not begin as one does", stages[0].len())
        );
        for at in 0..packed.len() {
            assert!(unpack(&packed[..at], 2).is_err(), "cut to {at}");
            let mut flipped = packed.clone();
            flipped[at] ^= 1;
            assert!(unpack(&flipped, 2).is_err(), "byte {at}");
        }
        let mut long = packed[..packed.len() - SUM_BYTES].to_vec();
        long[24..32].fill(0xff);
        assert!(
            said(&forge(long), 2).starts_with("the snapshot is malformed: stage 0: 18446744073709551615 bytes, and ")
        );
        let mut more = packed[..packed.len() - SUM_BYTES].to_vec();
        more.push(0);
        assert_eq!(said(&forge(more), 2), "the snapshot is malformed: 1 bytes after the last stage");
    }

    #[test]
    fn every_byte_and_every_length_counts() {
        let good = snapshot(&signature(), &MINE, 1);
        for at in 0..good.len() {
            assert!(restore(&good[..at]).is_err(), "cut to {at}");
            for bit in 0..8 {
                let mut flipped = good.clone();
                flipped[at] ^= 1 << bit;
                assert!(restore(&flipped).is_err(), "bit {bit} of byte {at}");
            }
        }
    }
}
