//! Key-encryption keys: given as text, or kept in a file.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::{KEY, KEY_ID};

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text is not a key.
    #[error("an encryption key is 32 bytes as 64 hex digits or as base64; several are separated by commas")]
    Malformed,
    /// The file can be read by others.
    #[error("the key file {} can be read by other users; remove their permissions (chmod 600)", .0.display())]
    Exposed(PathBuf),
    /// The file could not be read or made.
    #[error("the key file {}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// One or more 256-bit keys. The first seals, every one opens.
#[derive(Clone)]
pub struct Keys(Arc<Vec<Key>>);

#[derive(Zeroize, ZeroizeOnDrop)]
struct Key {
    id: [u8; KEY_ID],
    bytes: [u8; KEY],
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({} ***)", self.0.len())
    }
}

impl Keys {
    /// Parses keys from a setting: hex or base64, separated by commas, newest first.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let keys: Result<Vec<_>, _> = text.split(',').map(|part| parse_one(part.trim())).collect();
        Ok(Self(Arc::new(keys?)))
    }

    /// Reads the key file, if there is one.
    pub fn open(path: &Path) -> Result<Option<Self>, KeyError> {
        match File::open(path) {
            Ok(file) => read(file, path).map(Some),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(KeyError::File {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Reads the key file, or creates one that only this user can read. Concurrent processes end with the same key.
    pub fn open_or_create(path: &Path) -> Result<Self, KeyError> {
        if let Some(keys) = Self::open(path)? {
            return Ok(keys);
        }
        let failed = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        create(path).map_err(failed)?;
        read(File::open(path).map_err(failed)?, path)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = ([u8; KEY_ID], &[u8; KEY])> {
        self.0.iter().map(|key| (key.id, &key.bytes))
    }

    pub(super) fn current(&self) -> ([u8; KEY_ID], &[u8; KEY]) {
        let key = &self.0[0];
        (key.id, &key.bytes)
    }

    pub(super) fn find(&self, id: &[u8]) -> Option<&[u8; KEY]> {
        self.0.iter().find(|key| key.id == id).map(|key| &key.bytes)
    }
}

fn parse_one(text: &str) -> Result<Key, KeyError> {
    let mut bytes = [0; KEY];
    if text.len() == 2 * KEY && hex::decode_to_slice(text, &mut bytes).is_ok() {
        return Ok(key(bytes));
    }
    [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD]
        .iter()
        .filter_map(|base64| base64.decode(text).ok().map(Zeroizing::new))
        .find_map(|decoded| decoded.as_slice().try_into().ok())
        .map(key)
        .ok_or(KeyError::Malformed)
}

fn key(bytes: [u8; KEY]) -> Key {
    let hash = Sha256::new()
        .chain_update(b"towpath key id\0")
        .chain_update(bytes)
        .finalize();
    let mut id = [0; KEY_ID];
    id.copy_from_slice(&hash[..KEY_ID]);
    Key { id, bytes }
}

fn read(mut file: File, path: &Path) -> Result<Keys, KeyError> {
    let failed = |source| KeyError::File {
        path: path.to_owned(),
        source,
    };
    if file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0 {
        return Err(KeyError::Exposed(path.to_owned()));
    }
    let mut text = Zeroizing::new(String::new());
    file.read_to_string(&mut text).map_err(failed)?;
    Keys::parse(text.trim())
}

/// The key is written to a temporary file and linked, which fails if another process was first: a reader never sees
/// half a key, and no key is overwritten.
fn create(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut bytes = Zeroizing::new([0_u8; KEY]);
    OsRng.try_fill_bytes(&mut bytes[..]).map_err(io::Error::other)?;

    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = (|| {
        // Left by a process of the same number that died here.
        let _ = std::fs::remove_file(&beside);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)?;
        file.write_all(Zeroizing::new(hex::encode(&bytes[..])).as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        match std::fs::hard_link(&beside, path) {
            Err(first) if first.kind() != io::ErrorKind::AlreadyExists => Err(first),
            _ => File::open(folder)?.sync_all(),
        }
    })();
    let _ = std::fs::remove_file(&beside);
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_and_base64_are_the_same_key() {
        let hex = Keys::parse(&"ab".repeat(KEY)).unwrap();
        let base64 = Keys::parse(&STANDARD.encode([0xab; KEY])).unwrap();
        let url = Keys::parse(&URL_SAFE_NO_PAD.encode([0xab; KEY])).unwrap();
        assert_eq!(hex.current(), base64.current());
        assert_eq!(hex.current(), url.current());
        for bad in [
            "",
            "abcd",
            &"zz".repeat(KEY),
            &"ab".repeat(KEY - 1),
            &format!("{},", "ab".repeat(KEY)),
        ] {
            assert!(matches!(Keys::parse(bad), Err(KeyError::Malformed)), "{bad}");
        }
    }

    #[test]
    fn a_key_file_is_made_once_for_its_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data/encryption.key");
        assert!(Keys::open(&path).unwrap().is_none() && !path.exists());
        let made = Keys::open_or_create(&path).unwrap();
        assert_eq!(Keys::open(&path).unwrap().unwrap().current(), made.current());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert_eq!(Keys::open_or_create(&path).unwrap().current(), made.current());

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Keys::open_or_create(&path), Err(KeyError::Exposed(_))));
    }
}
