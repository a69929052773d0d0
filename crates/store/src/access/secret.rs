//! The secrets of keys.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRngCore as _;
use sha2::{Digest as _, Sha256};

/// The prefix of secrets, by which secret scanners recognise them: `towpath_` and 72 hexadecimal digits, the last 8 of
/// which are a checksum.
pub const KEY_PREFIX: &str = "towpath_";
/// Digits of randomness, and of the checksum behind them.
const RANDOM_DIGITS: usize = 64;
const CHECK_DIGITS: usize = 8;

/// A random secret of a key, as [`create_key`] hands them out.
#[must_use]
pub fn new_key_secret() -> String {
    let digits = hex::encode(random());
    let check = checksum(&digits);
    format!("{KEY_PREFIX}{digits}{check}")
}

/// Whether a text has the prefix of a secret but a wrong length or checksum: it was truncated or mistyped, unless an
/// operator chose it.
#[must_use]
pub fn is_damaged(secret: &[u8]) -> bool {
    let Some(digits) = secret.strip_prefix(KEY_PREFIX.as_bytes()) else {
        return false;
    };
    let Some((digits, check)) = digits.split_at_checked(RANDOM_DIGITS) else {
        return true;
    };
    std::str::from_utf8(digits).map_or(true, |digits| checksum(digits).as_bytes() != check)
}

fn checksum(digits: &str) -> String {
    let mut check = hex::encode(Sha256::digest(digits.as_bytes()));
    check.truncate(CHECK_DIGITS);
    check
}

/// A random text that cannot be guessed, for what is not a key.
#[must_use]
pub fn new_secret() -> String {
    format!("tp_{}", URL_SAFE_NO_PAD.encode(random()))
}

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .expect("the system's random source is there on every supported system");
    bytes
}

/// Enough to tell keys apart, far too little to guess the rest. An operator's own secret may be less random, so less of
/// it is shown.
pub(super) fn prefix(secret: &str) -> String {
    let shown = match secret {
        _ if secret.starts_with(KEY_PREFIX) => KEY_PREFIX.len() + 6,
        _ if secret.starts_with("tp_") => 9,
        _ => 4,
    };
    secret.chars().take(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_and_differ() {
        let (one, two) = (new_secret(), new_secret());
        assert_ne!(one, two);
        assert!(one.starts_with("tp_") && one.len() == 46, "{one}");
        assert_eq!(prefix(&one).len(), 9);
        let key = new_key_secret();
        assert!(key.starts_with("towpath_") && key.len() == 80, "{key}");
        assert_eq!(prefix(&key).len(), 14);
        assert_eq!(prefix("an operator's own key of some length"), "an o");
    }

    #[test]
    fn a_damaged_secret_is_known_by_its_checksum() {
        let key = new_key_secret();
        assert!(!is_damaged(key.as_bytes()));
        assert!(is_damaged(&key.as_bytes()[..79]));
        assert!(is_damaged(format!("{key}0").as_bytes()));
        let other = if key.as_bytes()[8] == b'0' { "1" } else { "0" };
        assert!(is_damaged(format!("{}{other}{}", &key[..8], &key[9..]).as_bytes()));
        // What operators choose themselves, and keys of the time before, have no checksum.
        assert!(!is_damaged(new_secret().as_bytes()));
        assert!(!is_damaged(b"an operator's own key of some length"));
    }
}
