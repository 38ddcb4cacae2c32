//! Which bytes of one buffer wait for a write, and which ones a failed write left undefined.
//!
//! ```text
//! submit W (writes r) ─> wrote(r, W)          W pending:   readers of r come after W
//!                                             W succeeded: r is clean, whatever was before
//!                                             W failed:    readers of r are `Upstream`, until r is written anew
//!                                             W never ran: r is as it was before W
//! ```
//!
//! - Exact to the byte, strided regions too. A later write hides what it covers and no byte more; what it hides comes
//!   back if it turns out never to have run ([`DeviceError::Cancelled`], [`DeviceError::Upstream`]).
//! - Any other failure (a [`DeviceError::Fault`], a loss) poisons all that the submission was to write.
//! - A failure to build, prepare, allocate or validate gives no completion, so nothing of it gets here.
//! - Nothing is allocated once the lists have grown to the number of writes in flight.
//! - Not here: the order of writes among themselves and after reads. A device keeps that by itself.

use super::{Completion, DeviceError};
use crate::plan::Region;

/// The writes of one buffer that have not ended, or not well. Offsets of regions count from the buffer's start; regions
/// lie inside the buffer.
///
/// Whoever submits asks [`reading`](Self::reading) for every region that the submission reads (or reads and writes),
/// passes what it says as `after`, and tells [`wrote`](Self::wrote) of every region written once the device has accepted
/// the submission.
#[derive(Debug, Default)]
pub struct Ledger {
    /// In the order submitted; a write that was partly replaced may have several.
    entries: Vec<Entry>,
    /// What a reader still asks about, and the next state of it.
    left: Vec<Region>,
    next: Vec<Region>,
}

#[derive(Debug)]
struct Entry {
    region: Region,
    completion: Completion,
    /// It is known to have failed, or nothing was there before it: it hides what was before unless it runs well.
    poison: bool,
}

impl Ledger {
    /// Of a buffer that nothing was submitted for.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds to `after` what a reader of `region` must come after: the pending writes that it would see, and failed ones,
    /// which make it [`DeviceError::Upstream`]. Adds nothing where every byte was written well or never.
    pub fn reading(&mut self, region: Region, after: &mut Vec<Completion>) {
        self.settle();
        let Self { entries, left, next } = self;
        left.clear();
        left.push(region);
        for entry in entries.iter().rev() {
            if !left.iter().any(|part| part.overlaps(&entry.region)) {
                continue;
            }
            if !after.iter().any(|known| known.is(&entry.completion)) {
                after.push(entry.completion.clone());
            }
            next.clear();
            left.iter().for_each(|part| minus(*part, entry.region, next));
            std::mem::swap(left, next);
        }
    }

    /// Notes that a submission which the device has accepted writes all of `region`, after every write noted before.
    pub fn wrote(&mut self, region: Region, completion: &Completion) {
        if region.bytes() > 0 {
            self.entries.push(Entry { region, completion: completion.clone(), poison: false });
        }
        self.settle();
    }

    /// The same of a submission that makes all of `region`, where nothing before it is worth reading: if it never ran,
    /// readers are [`DeviceError::Upstream`] too.
    pub fn made(&mut self, region: Region, completion: &Completion) {
        self.settle();
        if region.bytes() > 0 && !matches!(completion.result(), Some(Ok(_))) {
            self.entries.push(Entry { region, completion: completion.clone(), poison: true });
        } else if region.bytes() > 0 {
            self.hide(region, self.entries.len());
        }
    }

    /// Whether a reader of any byte would have nothing to come after.
    pub fn is_clean(&mut self) -> bool {
        self.settle();
        self.entries.is_empty()
    }

    /// Looks at what has ended by now: a write that ran hides earlier ones, and is forgotten itself if it ran well.
    fn settle(&mut self) {
        let mut at = 0;
        while let Some(entry) = self.entries.get_mut(at) {
            match entry.completion.result() {
                Some(Err(_)) if entry.poison => at += 1,
                None => at += 1,
                Some(Err(DeviceError::Cancelled | DeviceError::Upstream(_))) => drop(self.entries.remove(at)),
                Some(Ok(_)) => {
                    let region = self.entries.remove(at).region;
                    at = self.hide(region, at);
                }
                Some(Err(cause)) => {
                    // The device may use the pending completion again for another submission.
                    entry.completion = Completion::ready(Err(cause));
                    entry.poison = true;
                    let region = entry.region;
                    at = self.hide(region, at) + 1;
                }
            }
        }
    }

    /// Takes `region` from the entries before `end`. Gives where these end now.
    fn hide(&mut self, region: Region, mut end: usize) -> usize {
        for at in (0..end).rev() {
            if !self.entries[at].region.overlaps(&region) {
                continue;
            }
            let Entry { region: whole, completion, poison } = self.entries.remove(at);
            end -= 1;
            self.left.clear();
            minus(whole, region, &mut self.left);
            for &part in &self.left {
                self.entries.insert(at, Entry { region: part, completion: completion.clone(), poison });
                end += 1;
            }
        }
        end
    }
}

/// Adds the bytes of `a` that are not in `b` to `rest`, as regions that share none.
pub(crate) fn minus(a: Region, b: Region, rest: &mut Vec<Region>) {
    let (a, b) = (a.joined(), b.joined());
    if !a.overlaps(&b) {
        rest.push(a);
    } else if b.rows == 1 {
        minus_run(a, b.offset, b.end(), rest);
    } else if a.rows == 1 {
        run_minus(a, b, rest);
    } else if a.stride == b.stride {
        columns_minus(a, b, rest);
    } else {
        (0..a.rows).for_each(|row| minus(rows(a, row, row + 1), b, rest));
    }
}

/// Rows `from..to` of `region`.
fn rows(region: Region, from: usize, to: usize) -> Region {
    Region { offset: region.offset + from * region.stride, rows: to - from, ..region }
}

/// Columns `from..to` of each row of `region`.
fn columns(region: Region, from: usize, to: usize) -> Region {
    Region { offset: region.offset + from, row_bytes: to - from, ..region }
}

fn push(part: Region, rest: &mut Vec<Region>) {
    if part.bytes() > 0 {
        rest.push(part);
    }
}

/// `a` without bytes `start..end`, which meet it: the rows before and after, and what is left of the first and last row
/// between them.
fn minus_run(a: Region, start: usize, end: usize, rest: &mut Vec<Region>) {
    // Rows that end at or before `start`, and rows that start before `end`.
    let before = if start < a.offset + a.row_bytes { 0 } else { (start - a.offset - a.row_bytes) / a.stride + 1 };
    let until = (end - a.offset).div_ceil(a.stride).min(a.rows);
    push(rows(a, 0, before), rest);
    push(rows(a, until, a.rows), rest);
    let (first, last) = (rows(a, before, before + 1), rows(a, until - 1, until));
    push(columns(first, 0, start.saturating_sub(first.offset)), rest);
    push(columns(last, (end - last.offset).min(a.row_bytes), a.row_bytes), rest);
}

/// One run without the rows of `b` that meet it: what is before the first, between them, and after the last.
fn run_minus(a: Region, b: Region, rest: &mut Vec<Region>) {
    let (start, end) = (a.offset, a.end());
    let first = if start < b.offset + b.row_bytes { 0 } else { (start - b.offset - b.row_bytes) / b.stride + 1 };
    let until = (end - b.offset).div_ceil(b.stride).min(b.rows);
    let (from, to) = (b.offset + first * b.stride, b.offset + (until - 1) * b.stride + b.row_bytes);
    push(Region::contiguous(start, from.saturating_sub(start)), rest);
    push(columns(rows(b, first, until - 1), b.row_bytes, b.stride), rest);
    push(Region::contiguous(to, end.saturating_sub(to)), rest);
}

/// Both have many rows, equally far apart: row `i` of `a` meets row `i + m` of `b` for one or two `m`. Cuts for one of
/// them; for the other the parts are looked at again.
fn columns_minus(a: Region, b: Region, rest: &mut Vec<Region>) {
    let stride = a.stride as i128;
    let apart = b.offset as i128 - a.offset as i128;
    let lowest = (-apart).div_euclid(stride) - 1;
    for m in lowest..=lowest + 3 {
        let start = apart + m * stride;
        let (cut, end) = (start.max(0), (start + b.row_bytes as i128).min(a.row_bytes as i128));
        let (from, to) = ((-m).max(0), (b.rows as i128 - m).min(a.rows as i128));
        if cut >= end || from >= to {
            continue;
        }
        // All four lie between 0 and a row's bytes or number.
        let (cut, end, from, to) = (cut as usize, end as usize, from as usize, to as usize);
        let met = rows(a, from, to);
        for part in [rows(a, 0, from), rows(a, to, a.rows), columns(met, 0, cut), columns(met, end, a.row_bytes)] {
            if part.bytes() > 0 {
                minus(part, b, rest);
            }
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Completer, Outcome};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    const BYTES: usize = 48;

    fn bytes(region: Region) -> BTreeSet<usize> {
        let runs = (0..region.rows).map(|row| region.offset + row * region.stride);
        runs.flat_map(|start| start..start + region.row_bytes).collect()
    }

    fn region() -> impl Strategy<Value = Region> {
        let any = (0usize..BYTES, 1usize..8, 0usize..6, 1usize..7);
        any.prop_map(|(offset, row_bytes, gap, rows)| Region { offset, row_bytes, stride: row_bytes + gap, rows })
            .prop_filter("inside", |region| region.end() <= BYTES)
    }

    fn fault() -> DeviceError {
        DeviceError::Fault { at: "w".into(), what: "on purpose".into() }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(Region),
        /// Ends the nth write of those pending, in one of five ways.
        End(usize, u8),
        Read(Region),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => region().prop_map(Step::Write),
            3 => (0usize..8, 0u8..5).prop_map(|(at, how)| Step::End(at, how)),
            2 => region().prop_map(Step::Read),
        ]
    }

    /// A write of the model: which bytes, and how it ended.
    struct Write {
        bytes: BTreeSet<usize>,
        completion: Completion,
        end: Option<u8>,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn what_is_left_are_the_other_bytes_each_once(a in region(), b in region()) {
            let mut rest = Vec::new();
            minus(a, b, &mut rest);
            let left: Vec<usize> = rest.iter().flat_map(|part| bytes(*part)).collect();
            let set: BTreeSet<usize> = left.iter().copied().collect();
            prop_assert_eq!(set.len(), left.len());
            prop_assert_eq!(set, &bytes(a) - &bytes(b));
        }

        /// Against a list of all writes ever, looked through byte by byte from the newest on.
        #[test]
        fn a_reader_comes_after_what_it_would_see(steps in prop::collection::vec(step(), 1..40)) {
            let (mut ledger, mut writes, mut completers) = (Ledger::new(), Vec::<Write>::new(), Vec::<(usize, Completer)>::new());
            for step in steps {
                match step {
                    Step::Write(region) => {
                        let (completion, completer) = Completion::pending();
                        ledger.wrote(region, &completion);
                        completers.push((writes.len(), completer));
                        writes.push(Write { bytes: bytes(region), completion, end: None });
                    }
                    Step::End(at, how) => {
                        if completers.is_empty() {
                            continue;
                        }
                        let (write, completer) = completers.remove(at % completers.len());
                        writes[write].end = Some(how);
                        completer.complete(match how {
                            0 => Ok(Outcome::default()),
                            1 => Err(fault()),
                            2 => Err(DeviceError::Lost("gone".into())),
                            3 => Err(DeviceError::Cancelled),
                            _ => Err(DeviceError::Upstream(Arc::new(fault()))),
                        });
                    }
                    Step::Read(region) => {
                        let mut after = Vec::new();
                        ledger.reading(region, &mut after);
                        let seen = |byte: usize| {
                            let ran = |write: &&Write| write.bytes.contains(&byte) && !matches!(write.end, Some(3 | 4));
                            writes.iter().rev().find(ran).filter(|write| write.end != Some(0))
                        };
                        let seen: Vec<&Write> = bytes(region).into_iter().filter_map(seen).collect();
                        for completion in after.iter().filter(|completion| completion.result().is_none()) {
                            prop_assert!(seen.iter().any(|write| write.completion.is(completion)));
                        }
                        for write in seen.iter().filter(|write| write.end.is_none()) {
                            prop_assert_eq!(after.iter().filter(|after| after.is(&write.completion)).count(), 1);
                        }
                        let errors: BTreeSet<String> =
                            after.iter().filter_map(|after| Some(after.result()?.unwrap_err().to_string())).collect();
                        let expected: BTreeSet<String> = seen
                            .iter()
                            .filter_map(|write| Some(write.completion.result()?.unwrap_err().to_string()))
                            .collect();
                        prop_assert_eq!(errors, expected);
                    }
                }
            }
        }
    }

    #[test]
    fn eight_columns_are_eight_entries_and_poison_goes_with_an_overwrite() {
        let column = |head: usize| Region { offset: head * 8, row_bytes: 8, stride: 64, rows: 100 };
        let mut ledger = Ledger::new();
        let failed = Completion::ready(Err(fault()));
        for head in 0..8 {
            ledger.wrote(column(head), &failed);
        }
        assert_eq!(ledger.entries.len(), 8);
        let after = |ledger: &mut Ledger, region| {
            let mut after = Vec::new();
            ledger.reading(region, &mut after);
            after.len()
        };
        let done = Completion::ready(Ok(Outcome::default()));
        for head in 0..8 {
            assert_eq!(after(&mut ledger, column(head)), 1);
            ledger.wrote(column(head), &done);
            assert_eq!(after(&mut ledger, column(head)), 0);
            assert_eq!(ledger.entries.len(), 7 - head, "the others are as they were");
        }
        assert!(ledger.is_clean());
        // Half of a column is not all of it.
        ledger.wrote(column(0), &failed);
        ledger.wrote(Region { row_bytes: 4, ..column(0) }, &done);
        assert_eq!(after(&mut ledger, Region { row_bytes: 4, ..column(0) }), 0);
        assert_eq!(after(&mut ledger, column(0)), 1);
    }

    #[test]
    fn what_was_never_made_is_not_read_until_it_is_written() {
        let (all, half) = (Region::contiguous(0, 64), Region::contiguous(32, 32));
        for ended in [DeviceError::Cancelled, DeviceError::Upstream(Arc::new(fault())), fault()] {
            let mut ledger = Ledger::new();
            let said = |ledger: &mut Ledger, region| {
                let mut after = Vec::new();
                ledger.reading(region, &mut after);
                after.iter().map(|earlier| earlier.wait().map_err(|error| error.to_string())).collect::<Vec<_>>()
            };
            let (completion, completer) = Completion::pending();
            ledger.made(all, &completion);
            let (expected, done) = (ended.to_string(), Completion::ready(Ok(Outcome::default())));
            completer.complete(Err(ended));
            assert_eq!(said(&mut ledger, all), [Err(expected.clone())]);
            ledger.wrote(half, &done);
            assert_eq!(said(&mut ledger, half), []);
            assert_eq!(said(&mut ledger, all), [Err(expected)]);
            ledger.made(all, &done);
            assert!(ledger.is_clean());
        }
    }

    #[test]
    fn what_never_ran_gives_back_what_it_hid() {
        let (all, mut ledger) = (Region::contiguous(0, 64), Ledger::new());
        ledger.wrote(all, &Completion::ready(Err(fault())));
        let (completion, completer) = Completion::pending();
        ledger.wrote(all, &completion);
        let mut after = Vec::new();
        ledger.reading(all, &mut after);
        assert!(after.len() == 1 && after[0].is(&completion), "only the newest is seen");
        completer.complete(Err(DeviceError::Cancelled));
        after.clear();
        ledger.reading(all, &mut after);
        let said = after[0].wait().unwrap_err().to_string();
        assert_eq!((after.len(), said.as_str()), (1, "fault in w: on purpose"));
    }
}
