//! Sealing of secrets before they are stored.
//!
//! Envelope encryption: each record is encrypted under a random data key of its own, and that key is wrapped by the
//! installation's key-encryption key. Both carry the place of the record (tenant, table, column, row) as associated
//! data, so a sealed text copied to another row or another tenant does not open there.
//!
//! ```text
//! version 1 | key id 4 | nonce 24 | wrapped data key 32 + 16 | nonce 24 | ciphertext n + 16
//! ```
//! The key id is the beginning of a hash of the key, so that several keys can be given: the first seals, all of them
//! open. That is how a key is rotated.

mod keys;

use chacha20poly1305::aead::{Aead, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::Sha256;
use towpath_domain::TenantId;
use uuid::Uuid;
use zeroize::Zeroizing;

pub use keys::{KeyError, Keys};

const VERSION: u8 = 1;
const KEY_ID: usize = 4;
const NONCE: usize = 24;
const TAG: usize = 16;
const KEY: usize = 32;
const HEADER: usize = 1 + KEY_ID;
const SHORTEST: usize = HEADER + NONCE + KEY + TAG + NONCE + TAG;

/// The location of a sealed text, outside of which it cannot be opened.
#[derive(Clone, Copy, Debug)]
pub struct SealContext<'a> {
    pub tenant: TenantId,
    pub table: &'a str,
    pub column: &'a str,
    /// Primary key of the row.
    pub row: Uuid,
}

/// Why a sealed text could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is too short, or of a version this build does not know.
    #[error("not a sealed record")]
    Malformed,
    /// It was sealed under a key that this process was not given.
    #[error("sealed under an unknown key; add that key to the decryption keys")]
    UnknownKey,
    /// It was changed, or it was moved from another place.
    #[error("the sealed record was changed or belongs elsewhere")]
    Refused,
}

/// Seals and opens texts.
#[derive(Clone, Debug)]
pub struct Sealer {
    keys: Keys,
}

impl Sealer {
    /// Seals under the first of `keys`, opens under any.
    #[must_use]
    pub const fn new(keys: Keys) -> Self {
        Self { keys }
    }

    /// Seals `text` for `place`.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "the two expectations cannot fail")]
    pub fn seal(&self, place: SealContext<'_>, text: &[u8]) -> Vec<u8> {
        let (key_id, wrapping) = self.keys.current();
        let mut data_key = Zeroizing::new([0_u8; KEY]);
        let (mut outer, mut inner) = ([0_u8; NONCE], [0_u8; NONCE]);
        for bytes in [&mut data_key[..], &mut outer, &mut inner] {
            // A system without randomness must not continue with a guessable key.
            OsRng.try_fill_bytes(bytes).expect("the system gives randomness");
        }

        let mut record = Vec::with_capacity(SHORTEST + text.len());
        record.push(VERSION);
        record.extend_from_slice(&key_id);
        let associated = associated(&record, place);
        let encrypt = |key: &[u8; KEY], nonce: &[u8; NONCE], text: &[u8]| {
            XChaCha20Poly1305::new(key.into())
                .encrypt(
                    XNonce::from_slice(nonce),
                    Payload {
                        msg: text,
                        aad: &associated,
                    },
                )
                .expect("a text in memory is shorter than the cipher's limit")
        };
        let wrapped = encrypt(wrapping, &outer, &data_key[..]);
        let sealed = encrypt(&data_key, &inner, text);
        record.extend_from_slice(&outer);
        record.extend_from_slice(&wrapped);
        record.extend_from_slice(&inner);
        record.extend_from_slice(&sealed);
        record
    }

    /// A key for one purpose, the same in every process of the installation. It reveals nothing about the key it is
    /// derived from, nor about other purposes.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> [u8; KEY] {
        let (_, key) = self.keys.current();
        derived(key, purpose)
    }

    /// The keys for one purpose derived from every given key, that of [`Sealer::derive`] first: signatures from before
    /// a rotation stay valid.
    #[must_use]
    pub fn derive_all(&self, purpose: &str) -> Vec<[u8; KEY]> {
        self.keys.all().map(|(_, key)| derived(key, purpose)).collect()
    }

    /// The ids of the given keys in hexadecimal, the sealing one first. They reveal nothing about the keys.
    #[must_use]
    pub fn key_ids(&self) -> Vec<String> {
        self.keys.all().map(|(id, _)| hex::encode(id)).collect()
    }

    /// Opens what was sealed for `place`.
    pub fn open(&self, place: SealContext<'_>, record: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        if record.len() < SHORTEST || record[0] != VERSION {
            return Err(OpenError::Malformed);
        }
        let (header, rest) = record.split_at(HEADER);
        let (outer, rest) = rest.split_at(NONCE);
        let (wrapped, rest) = rest.split_at(KEY + TAG);
        let (inner, sealed) = rest.split_at(NONCE);

        let wrapping = self.keys.find(&header[1..]).ok_or(OpenError::UnknownKey)?;
        let associated = associated(header, place);
        let decrypt = |key: &[u8], nonce: &[u8], text: &[u8]| {
            XChaCha20Poly1305::new_from_slice(key)
                .map_err(|_| OpenError::Malformed)?
                .decrypt(
                    XNonce::from_slice(nonce),
                    Payload {
                        msg: text,
                        aad: &associated,
                    },
                )
                .map(Zeroizing::new)
                .map_err(|_| OpenError::Refused)
        };
        let data_key = decrypt(wrapping, outer, wrapped)?;
        decrypt(&data_key, inner, sealed)
    }
}

/// The id of the key under which a record was sealed, in hexadecimal. `None` for anything else.
#[must_use]
pub fn key_id(record: &[u8]) -> Option<String> {
    let is_whole = record.len() >= SHORTEST && record[0] == VERSION;
    is_whole.then(|| hex::encode(&record[1..HEADER]))
}

fn derived(key: &[u8; KEY], purpose: &str) -> [u8; KEY] {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(key).expect("a key of any length will do");
    mac.update(purpose.as_bytes());
    mac.finalize().into_bytes().into()
}

/// Lengths stand before the names, so that no two places give the same bytes.
fn associated(header: &[u8], place: SealContext<'_>) -> Vec<u8> {
    let mut bytes = header.to_vec();
    bytes.extend_from_slice(place.tenant.0.as_bytes());
    for name in [place.table, place.column] {
        bytes.extend_from_slice(&(name.len() as u64).to_be_bytes());
        bytes.extend_from_slice(name.as_bytes());
    }
    bytes.extend_from_slice(place.row.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> SealContext<'static> {
        SealContext {
            tenant: TenantId::nil(),
            table: "destination",
            column: "credentials",
            row: Uuid::from_u128(7),
        }
    }

    fn sealer(fill: u8) -> Sealer {
        Sealer::new(Keys::parse(&format!("{fill:02x}").repeat(KEY)).unwrap())
    }

    #[test]
    fn what_is_sealed_opens_again_and_never_looks_the_same() {
        let sealer = sealer(1);
        let (one, two) = (sealer.seal(place(), b"hush"), sealer.seal(place(), b"hush"));
        assert_ne!(one, two);
        assert_eq!(sealer.open(place(), &one).unwrap().as_slice(), b"hush");
        assert_eq!(
            sealer.open(place(), &sealer.seal(place(), b"")).unwrap().as_slice(),
            b""
        );
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let sealer = sealer(1);
        let record = sealer.seal(place(), b"hush");
        for at in 0..record.len() {
            let mut changed = record.clone();
            changed[at] ^= 0x10;
            assert!(sealer.open(place(), &changed).is_err(), "byte {at}");
        }
        for length in 0..record.len() {
            assert!(sealer.open(place(), &record[..length]).is_err(), "length {length}");
        }
    }

    #[test]
    fn it_opens_only_in_its_place() {
        let sealer = sealer(1);
        let record = sealer.seal(place(), b"hush");
        for moved in [
            SealContext {
                tenant: TenantId(Uuid::from_u128(1)),
                ..place()
            },
            SealContext {
                table: "deployment",
                ..place()
            },
            SealContext {
                column: "secrets",
                ..place()
            },
            SealContext {
                row: Uuid::from_u128(8),
                ..place()
            },
            // The same letters, cut elsewhere.
            SealContext {
                table: "destinationc",
                column: "redentials",
                ..place()
            },
        ] {
            assert_eq!(sealer.open(moved, &record), Err(OpenError::Refused));
        }
    }

    #[test]
    fn a_new_key_seals_and_the_old_one_still_opens() {
        let old = sealer(1).seal(place(), b"hush");
        assert_eq!(sealer(2).open(place(), &old), Err(OpenError::UnknownKey));
        let both = Keys::parse(&format!("{},{}", "02".repeat(KEY), "01".repeat(KEY))).unwrap();
        let rotated = Sealer::new(both);
        assert_eq!(rotated.open(place(), &old).unwrap().as_slice(), b"hush");
        let new = rotated.seal(place(), b"hush");
        assert_eq!(sealer(2).open(place(), &new).unwrap().as_slice(), b"hush");
        assert_eq!(rotated.key_ids(), [sealer(2).key_ids(), sealer(1).key_ids()].concat());
        assert_eq!(key_id(&new), sealer(2).key_ids().first().cloned());
        assert_eq!(key_id(b"short"), None);
        let derived = |fill| sealer(fill).derive("a purpose");
        assert_eq!(rotated.derive_all("a purpose"), [derived(2), derived(1)]);
        assert_eq!(rotated.derive("a purpose"), derived(2));
    }
}
