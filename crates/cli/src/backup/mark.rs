//! The file that lies in a data folder from the beginning of a restore to its end. While it is there the installation is
//! not whole, so nothing starts in the folder; the same backup may be restored once more.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use towpath_domain::Timestamp;

use crate::exit::Usage;

const MARK: &str = "restoring.json";

/// Which restore it is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// When the backup was made.
    pub backup: Timestamp,
    /// The database that it goes into, without user and password.
    pub database: String,
}

/// Whether this restore was begun before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    First,
    Repeated,
}

impl Mark {
    /// # Errors
    /// When another restore was begun in the folder.
    pub(super) fn attempt(&self, data: &Path) -> anyhow::Result<Attempt> {
        let file = place(data);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(why) if why.kind() == ErrorKind::NotFound => return Ok(Attempt::First),
            Err(why) => return Err(why).with_context(|| format!("file {}", file.display())),
        };
        let found: Self = serde_json::from_str(&text).with_context(|| format!("file {}", file.display()))?;
        if found != *self {
            bail!(Usage(format!(
                "the restore of the backup of {} into {} has not ended in {}; repeat that one, or restore into an empty \
                 folder and an empty database",
                found.backup,
                found.database,
                data.display()
            )));
        }
        Ok(Attempt::Repeated)
    }

    /// Puts it there.
    pub(super) fn set(&self, data: &Path) -> anyhow::Result<()> {
        let (file, draft) = (place(data), data.join("restoring.new"));
        let write = || {
            let mut written = File::create(&draft)?;
            written.write_all(&serde_json::to_vec(self)?)?;
            written.sync_all()?;
            std::fs::rename(&draft, &file)?;
            File::open(data)?.sync_all()
        };
        write().with_context(|| format!("file {}", file.display()))
    }
}

/// Takes it away: the installation is whole.
pub(super) fn clear(data: &Path) -> anyhow::Result<()> {
    super::files::remove(&place(data))?;
    File::open(data)?.sync_all()?;
    Ok(())
}

/// # Errors
/// When a restore into the folder has not ended.
pub fn expect_whole(data: &Path) -> anyhow::Result<()> {
    if place(data).exists() {
        bail!(
            "a restore into {} has not ended, so its data is not whole; repeat the restore",
            data.display()
        );
    }
    Ok(())
}

fn place(data: &Path) -> PathBuf {
    data.join(MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_starts_before_a_restore_has_ended_and_only_the_same_one_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let mark = |backup: &str| Mark {
            backup: Timestamp::parse(backup).unwrap(),
            database: "towpath".to_owned(),
        };
        let (one, two) = (mark("2026-03-01T12:00:00Z"), mark("2026-03-02T12:00:00Z"));
        assert_eq!(one.attempt(data).unwrap(), Attempt::First);
        expect_whole(data).unwrap();
        one.set(data).unwrap();
        assert_eq!(one.attempt(data).unwrap(), Attempt::Repeated);
        assert!(two.attempt(data).unwrap_err().is::<Usage>());
        assert!(expect_whole(data).is_err());
        clear(data).unwrap();
        expect_whole(data).unwrap();
        assert_eq!(two.attempt(data).unwrap(), Attempt::First);
    }
}
