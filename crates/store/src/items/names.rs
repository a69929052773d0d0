//! Index form of namespaces and keys: cut and hashed if they are too long.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};

/// The maximum number of bytes of a namespace that is not cut.
const NAMESPACE: usize = 1500;
/// The maximum number of bytes of a key that is not cut.
const KEY: usize = 1000;
/// Bytes that remain of a cut namespace, or up to three fewer at a character boundary.
const LEFT: usize = 1400;
/// A prefix of fewer bytes is whole in every namespace that is cut, with the dot behind it.
pub const UNCUT: usize = LEFT - 4;

/// How an item is found.
pub struct IndexedName<'a> {
    /// In the column `namespace`.
    pub namespace: Cow<'a, str>,
    /// In the column `key`.
    pub key: Cow<'a, str>,
    /// Whether either was cut, so that both stand beside.
    pub cut: bool,
}

impl<'a> IndexedName<'a> {
    /// Of an item in the namespace of these labels, joined by dots.
    pub fn of(dotted: &'a str, key: &'a str) -> Self {
        if dotted.len() <= NAMESPACE && key.len() <= KEY {
            return Self {
                namespace: dotted.into(),
                key: key.into(),
                cut: false,
            };
        }
        // Neither holds a NUL, so no other two come to the same text.
        let hash = Sha256::new()
            .chain_update(dotted)
            .chain_update([0])
            .chain_update(key)
            .finalize();
        Self {
            namespace: format!("{}..{}", begin(dotted, LEFT), hex::encode(hash)).into(),
            key: begin(key, KEY).into(),
            cut: true,
        }
    }
}

/// At most so many bytes of a text, in whole characters.
fn begin(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_long_is_cut() {
        let (namespace, key) = ("n".repeat(NAMESPACE), "k".repeat(KEY));
        let names = IndexedName::of(&namespace, &key);
        assert!(!names.cut && names.namespace == namespace && names.key == key);
        let longer = format!("{key}ü");
        let cut = IndexedName::of("users", &longer);
        assert!(cut.cut && cut.namespace.starts_with("users..") && cut.key == key);
        assert_ne!(cut.namespace, IndexedName::of("users", &format!("{key}ö")).namespace);
        let wide = "ü".repeat(NAMESPACE);
        let cut = IndexedName::of(&wide, "k");
        assert_eq!(cut.namespace.len(), LEFT + 2 + 64);
        assert!(cut.namespace.len() + KEY < 2600);
    }
}
