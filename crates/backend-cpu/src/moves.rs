//! Copies and fills of equally long runs: the small lengths unrolled, since a call costs more than four bytes do.

/// Runs to move for one seat: `rows` runs of `row_bytes`, at their own distances on either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Runs {
    pub row_bytes: usize,
    pub rows: usize,
    pub from_stride: usize,
    pub to_stride: usize,
}

impl Runs {
    /// The same bytes in as few runs as can be.
    pub fn joined(self) -> Self {
        if self.rows > 1 && self.from_stride == self.row_bytes && self.to_stride == self.row_bytes {
            let row_bytes = self.row_bytes * self.rows;
            Self { row_bytes, rows: 1, from_stride: row_bytes, to_stride: row_bytes }
        } else {
            self
        }
    }

    /// Copies the runs at `from` to those at `to`.
    ///
    /// # Safety
    /// All runs at `from` may be read and all at `to` written, and none of the former overlaps one of the latter.
    pub unsafe fn copy(&self, from: *const u8, to: *mut u8) {
        // SAFETY: the caller's promise, passed on; `fixed` is given the length of the runs.
        unsafe {
            match self.row_bytes {
                _ if self.rows == 1 => to.copy_from_nonoverlapping(from, self.row_bytes),
                1 => self.fixed::<1>(from, to),
                2 => self.fixed::<2>(from, to),
                4 => self.fixed::<4>(from, to),
                8 => self.fixed::<8>(from, to),
                16 => self.fixed::<16>(from, to),
                32 => self.fixed::<32>(from, to),
                bytes => {
                    for row in 0..self.rows {
                        let (from, to) = (from.add(row * self.from_stride), to.add(row * self.to_stride));
                        to.copy_from_nonoverlapping(from, bytes);
                    }
                }
            }
        }
    }

    /// `copy` with the length known, so that a run is a load and a store.
    ///
    /// # Safety
    /// As `copy`; `row_bytes` is `N`.
    #[inline]
    unsafe fn fixed<const N: usize>(&self, from: *const u8, to: *mut u8) {
        for row in 0..self.rows {
            // SAFETY: the caller's promise covers every run; arrays of bytes need no alignment.
            unsafe {
                let run = from.add(row * self.from_stride).cast::<[u8; N]>().read();
                to.add(row * self.to_stride).cast::<[u8; N]>().write(run);
            }
        }
    }
}

/// Repeats a pattern over `rows` runs of `row_bytes`, `stride` apart.
///
/// # Safety
/// All runs at `to` may be written; `row_bytes` is a multiple of 4.
pub(crate) unsafe fn fill(to: *mut u8, row_bytes: usize, stride: usize, rows: usize, pattern: [u8; 4]) {
    for row in 0..rows {
        for at in 0..row_bytes / 4 {
            // SAFETY: the caller's promise covers every run; arrays of bytes need no alignment.
            unsafe { to.add(row * stride + at * 4).cast::<[u8; 4]>().write(pattern) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_land_where_they_should_and_nothing_else_changes(
            row_bytes in prop_oneof![1usize..40, Just(64usize)],
            rows in 1usize..9,
            (from_gap, to_gap) in (0usize..5, 0usize..5),
            pattern in any::<[u8; 4]>(),
        ) {
            let runs = Runs { row_bytes, rows, from_stride: row_bytes + from_gap, to_stride: row_bytes + to_gap };
            let from: Vec<u8> = (0..rows * runs.from_stride).map(|at| at as u8 ^ 0x5a).collect();
            let mut to = vec![7u8; rows * runs.to_stride];
            let mut expected = to.clone();
            for row in 0..rows {
                for at in 0..row_bytes {
                    expected[row * runs.to_stride + at] = from[row * runs.from_stride + at];
                }
            }
            // SAFETY: both vectors hold all runs.
            unsafe { runs.joined().copy(from.as_ptr(), to.as_mut_ptr()) };
            prop_assert_eq!(&to, &expected);

            let (words, stride) = (row_bytes / 4 * 4, runs.to_stride);
            for row in 0..rows {
                for at in 0..words {
                    expected[row * stride + at] = pattern[at % 4];
                }
            }
            // SAFETY: as above.
            unsafe { fill(to.as_mut_ptr(), words, stride, rows, pattern) };
            prop_assert_eq!(&to, &expected);
        }
    }
}
