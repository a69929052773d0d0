//! `manifest.jsonl`: one line for each piece of a backup, with its length and digest.
//!
//! `backup.json`, which is written last, has the digest of this file. So a restore finds missing or changed pieces
//! before it starts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, ErrorKind, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::INFO_FILE;

const MANIFEST: &str = "manifest.jsonl";
/// Maximum number of pieces that an error lists.
const MAX_LISTED: usize = 20;
const PIECE: usize = 1 << 20;
/// File names are bytes, JSON is text.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

#[derive(Debug, Serialize, Deserialize)]
struct ManifestEntry {
    /// Relative to the backup's folder; control characters and non-ASCII bytes are written as `%XX`.
    path: String,
    /// Absent for a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Of the bytes, or of the target of a link.
    sha256: String,
}

/// Writes the manifest of a backup's folder and returns its digest.
pub(super) fn write(folder: &Path) -> anyhow::Result<String> {
    let file = folder.join(MANIFEST);
    super::files::remove(&file)?;
    let mut found = BTreeMap::new();
    walk(folder, Path::new(""), &mut found)?;
    let mut out = BufWriter::new(File::create_new(&file).with_context(|| format!("file {}", file.display()))?);
    for (path, is_link) in &found {
        let (bytes, sha256) = digest(&folder.join(path), *is_link)?;
        let piece = ManifestEntry {
            path: escaped(path),
            bytes,
            sha256,
        };
        serde_json::to_writer(&mut out, &piece)?;
        out.write_all(b"\n")?;
    }
    let file_of = out.into_inner().map_err(std::io::IntoInnerError::into_error);
    file_of
        .and_then(|written| written.sync_all())
        .with_context(|| format!("file {}", file.display()))?;
    Ok(digest(&file, false)?.1)
}

/// Compares a backup's folder with its manifest. The error lists missing and changed pieces.
pub(super) fn verify(folder: &Path, expected: &str) -> anyhow::Result<()> {
    let file = folder.join(MANIFEST);
    let is_same = match digest(&file, false) {
        Ok((_, found)) => found == expected,
        Err(_) if !file.exists() => bail!("the backup is incomplete: {MANIFEST} is missing"),
        Err(why) => return Err(why),
    };
    if !is_same {
        bail!("the backup is damaged: {MANIFEST} has changed since it was made");
    }
    let lines = BufReader::new(File::open(&file).with_context(|| format!("file {}", file.display()))?);
    let mut faults = Mismatches::default();
    for line in lines.lines() {
        let piece: ManifestEntry = serde_json::from_str(&line?).with_context(|| format!("file {}", file.display()))?;
        let path = folder.join(unescaped(&piece.path));
        match std::fs::symlink_metadata(&path) {
            Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                faults.add(&piece.path, "is missing");
            }
            Err(why) => return Err(why).with_context(|| format!("file {}", path.display())),
            Ok(found) => {
                let is_kind = found.is_symlink() == piece.bytes.is_none();
                let is_same = is_kind
                    && piece.bytes.is_none_or(|bytes| bytes == found.len())
                    && digest(&path, found.is_symlink())?.1 == piece.sha256;
                if !is_same {
                    faults.add(&piece.path, "has changed");
                }
            }
        }
    }
    faults.expect_none()
}

#[derive(Debug, Default)]
struct Mismatches {
    count: usize,
    text: String,
}

impl Mismatches {
    fn add(&mut self, path: &str, what: &str) {
        self.count += 1;
        if self.count <= MAX_LISTED {
            // Writing to a string cannot fail.
            let _ = write!(self.text, "\n{path} {what}");
        }
    }

    fn expect_none(self) -> anyhow::Result<()> {
        match self.count {
            0 => Ok(()),
            count if count <= MAX_LISTED => bail!("the backup is damaged:{}", self.text),
            count => bail!("the backup is damaged:{}\nand {} more", self.text, count - MAX_LISTED),
        }
    }
}

/// Files and links below a folder, and whether each is a link.
fn walk(folder: &Path, below: &Path, found: &mut BTreeMap<PathBuf, bool>) -> anyhow::Result<()> {
    let at = folder.join(below);
    for entry in std::fs::read_dir(&at).with_context(|| format!("folder {}", at.display()))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(folder, &path, found)?;
        } else if path != Path::new(INFO_FILE) && path != Path::new(MANIFEST) {
            found.insert(path, kind.is_symlink());
        }
    }
    Ok(())
}

/// Length of a file, and the digest of its bytes or of its link target.
fn digest(path: &Path, is_link: bool) -> anyhow::Result<(Option<u64>, String)> {
    let failed = || format!("file {}", path.display());
    if is_link {
        let leads = std::fs::read_link(path).with_context(failed)?;
        return Ok((None, hex::encode(Sha256::digest(leads.as_os_str().as_bytes()))));
    }
    let mut file = File::open(path).with_context(failed)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; PIECE];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut buffer).with_context(failed)?;
        if read == 0 {
            return Ok((Some(bytes), hex::encode(hash.finalize())));
        }
        hash.update(&buffer[..read]);
        bytes += read as u64;
    }
}

fn escaped(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), ESCAPED).to_string()
}

fn unescaped(path: &str) -> PathBuf {
    let bytes: Vec<u8> = percent_decode_str(path).collect();
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::fs::symlink;

    use super::*;

    fn refusal(folder: &Path, digest: &str) -> String {
        verify(folder, digest).unwrap_err().to_string()
    }

    #[test]
    fn what_is_missing_or_has_changed_is_named() {
        let whole = tempfile::tempdir().unwrap();
        let folder = whole.path();
        std::fs::create_dir(folder.join("objects")).unwrap();
        let odd = folder.join(OsStr::from_bytes(b"objects/100%\xff"));
        for file in [folder.join("towpath.db"), folder.join("objects/one"), odd.clone()] {
            std::fs::write(file, "content").unwrap();
        }
        symlink("one", folder.join("objects/link")).unwrap();
        let digest = write(folder).unwrap();
        // It is written after the manifest.
        std::fs::write(folder.join(INFO_FILE), "{}").unwrap();
        verify(folder, &digest).unwrap();
        assert_eq!(write(folder).unwrap(), digest, "the same for the same pieces");

        std::fs::write(folder.join("objects/one"), "CONTENT").unwrap();
        assert!(refusal(folder, &digest).contains("objects/one has changed"));
        std::fs::remove_file(folder.join("objects/one")).unwrap();
        std::fs::remove_file(folder.join("objects/link")).unwrap();
        std::fs::remove_file(&odd).unwrap();
        symlink("two", folder.join("objects/link")).unwrap();
        let refused = refusal(folder, &digest);
        for part in [
            "objects/one is missing",
            "objects/link has changed",
            "objects/100%25%FF is missing",
        ] {
            assert!(refused.contains(part), "{part} is not in: {refused}");
        }
        assert!(!refused.contains("towpath.db"), "{refused}");

        std::fs::write(folder.join(MANIFEST), "").unwrap();
        assert!(refusal(folder, &digest).contains("manifest.jsonl has changed"));
        std::fs::remove_file(folder.join(MANIFEST)).unwrap();
        assert!(refusal(folder, &digest).contains("manifest.jsonl is missing"));
    }
}
