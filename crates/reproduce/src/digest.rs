//! Short digests of texts.
//!
//! In: a text. Out: its digest. Must not: know what the text is of.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// Bytes of a digest: a chance of one in 2^48 that a change is not seen.
const BYTES: usize = 6;

/// The first digits of a text's SHA-256.
pub(crate) fn digest_of(text: impl AsRef<[u8]>) -> String {
    Sha256::digest(text.as_ref()).iter().take(BYTES).fold(String::new(), |mut digits, byte| {
        write!(digits, "{byte:02x}").expect("writing to a string does not fail");
        digits
    })
}
