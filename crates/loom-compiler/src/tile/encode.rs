//! Images as bytes, for caches.
//!
//! `CpuImage ──encode──> bytes ──decode: bounded, then validated──> an equal CpuImage`
//!
//! - The bytes are [postcard](https://postcard.jamesmunns.com/wire-format) of the image's fields. They hold no version:
//!   only a compiler whose [`crate::VERSION`] is that of the writer may read them, which a cache sees to by its key.
//! - Any bytes may be decoded: what comes out was validated, or is refused.
//! - Not here: files, checksums, and when two images are the same (`lanes-core`).

use super::{CpuImage, validate};

/// The longest image that is written or read. A decoded image takes at most some hundred times its bytes of memory.
pub const MAX_IMAGE_BYTES: usize = 16 << 20;

/// Why bytes are no image of this compiler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// More bytes than any image has.
    #[error("an image of {found} bytes, at most {MAX_IMAGE_BYTES} are accepted")]
    TooLong {
        /// How many there are.
        found: usize,
    },
    /// Not what [`CpuImage::encode`] writes.
    #[error("not an encoded image: {what}")]
    Malformed {
        /// What ends too early, or is no value of its type.
        what: String,
    },
    /// Read well, but an executor could not run it safely.
    #[error("an inconsistent image: {at}: {what}")]
    Inconsistent {
        /// Which part of it.
        at: String,
        /// What was found, and what is accepted.
        what: String,
    },
}

impl CpuImage {
    /// The image as bytes that [`Self::decode`] of the same compiler reads.
    ///
    /// # Errors
    /// [`ImageError::TooLong`], above [`MAX_IMAGE_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, ImageError> {
        let bytes = postcard::to_allocvec(self).map_err(|error| ImageError::Malformed { what: error.to_string() })?;
        if bytes.len() > MAX_IMAGE_BYTES {
            return Err(ImageError::TooLong { found: bytes.len() });
        }
        Ok(bytes)
    }

    /// The image that [`Self::encode`] made these bytes of. Any bytes may be given: an image that comes out can be run
    /// like one that was just compiled, as safely, if not with a meaning that anybody wrote down.
    ///
    /// # Errors
    /// Bytes that are too many, no image, more than one image, or an image that does not validate.
    pub fn decode(bytes: &[u8]) -> Result<Self, ImageError> {
        if bytes.len() > MAX_IMAGE_BYTES {
            return Err(ImageError::TooLong { found: bytes.len() });
        }
        let (image, rest) = postcard::take_from_bytes::<Self>(bytes)
            .map_err(|error| ImageError::Malformed { what: error.to_string() })?;
        if !rest.is_empty() {
            return Err(ImageError::Malformed { what: format!("{} bytes after its end", rest.len()) });
        }
        validate::image(&image)?;
        Ok(image)
    }
}
