//! Known numbers, each kept once.
//!
//! ```text
//! weights of a node ──┐
//! the same elsewhere ─┼──> one `Arc`
//! equal contents ─────┘
//! ```
//!
//! - Backends pack and charge weights by the address of their `Arc`, so what is equal has one address.
//! - Equal means the same bits: a NaN equals itself, and 0 is not −0.
//! - Not here: in which order the numbers of a matrix stand (`emit`).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Where a slice lies, and how long it is.
pub type Address = (usize, usize);

/// Where `slice` lies.
pub fn address<T>(slice: &[T]) -> Address {
    (slice.as_ptr() as usize, slice.len())
}

/// A slice that was seen.
#[derive(Debug)]
struct Seen<T> {
    /// Itself, so that no other takes its address.
    _slice: Arc<[T]>,
    /// What stands for it.
    one: Arc<[T]>,
}

/// Slices of one type, each kept once.
#[derive(Debug)]
pub struct Known<T> {
    seen: HashMap<Address, Seen<T>>,
    /// By a hash of their bytes.
    kept: HashMap<u64, Vec<Arc<[T]>>>,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self { seen: HashMap::new(), kept: HashMap::new() }
    }
}

impl<T: bytemuck::Pod> Known<T> {
    /// The one that stands for `slice`. Reads the contents of each `Arc` once.
    pub fn one(&mut self, slice: &Arc<[T]>) -> Arc<[T]> {
        if let Some(seen) = self.seen.get(&address(slice)) {
            return Arc::clone(&seen.one);
        }
        let one = self.kept(slice, || Arc::clone(slice));
        self.seen.insert(address(slice), Seen { _slice: Arc::clone(slice), one: Arc::clone(&one) });
        one
    }

    /// The one that has the contents of `slice`.
    pub fn copy(&mut self, slice: &[T]) -> Arc<[T]> {
        self.kept(slice, || Arc::from(slice))
    }

    fn kept(&mut self, slice: &[T], make: impl FnOnce() -> Arc<[T]>) -> Arc<[T]> {
        let bytes: &[u8] = bytemuck::cast_slice(slice);
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let same = self.kept.entry(hasher.finish()).or_default();
        if let Some(one) = same.iter().find(|one| bytemuck::cast_slice::<T, u8>(one) == bytes) {
            return Arc::clone(one);
        }
        let one = make();
        same.push(Arc::clone(&one));
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_the_same_bits_has_one_address() {
        let mut known = Known::default();
        let matrix: Arc<[f32]> = [1.0, f32::NAN, 0.0].into();
        let one = known.one(&matrix);
        assert!(Arc::ptr_eq(&one, &matrix));
        assert!(Arc::ptr_eq(&known.one(&matrix), &one), "the same again");
        assert!(Arc::ptr_eq(&known.one(&[1.0, f32::NAN, 0.0].into()), &one), "a copy");
        assert!(Arc::ptr_eq(&known.copy(&[1.0, f32::NAN, 0.0]), &one), "a slice");
        for other in [&[1.0, f32::NAN, -0.0][..], &[1.0, f32::NAN], &[0.0, 1.0, f32::NAN], &[]] {
            assert!(!Arc::ptr_eq(&known.one(&other.into()), &one), "{other:?}");
        }
    }
}
