//! Marker file in a data folder during a restore. While it exists, the installation is incomplete: nothing starts in
//! the folder, and only the same restore may be repeated.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use towpath_domain::Timestamp;

use crate::exit::Usage;

const MARK: &str = "restoring.json";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RestoreMarker {
    /// Creation time of the backup.
    pub backup: Timestamp,
    /// Target database, without user and password.
    pub database: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestoreAttempt {
    First,
    Repeated,
}

impl RestoreMarker {
    /// Fails when another restore was begun in the folder.
    pub(super) fn attempt(&self, data: &Path) -> anyhow::Result<RestoreAttempt> {
        let file = place(data);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(why) if why.kind() == ErrorKind::NotFound => return Ok(RestoreAttempt::First),
            Err(why) => return Err(why).with_context(|| format!("file {}", file.display())),
        };
        let found: Self = serde_json::from_str(&text).with_context(|| format!("file {}", file.display()))?;
        if found != *self {
            bail!(Usage(format!(
                "the restore of the backup of {} into {} was interrupted in {}; repeat that restore, or restore into \
                 an empty folder and an empty database",
                found.backup,
                found.database,
                data.display()
            )));
        }
        Ok(RestoreAttempt::Repeated)
    }

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

pub(super) fn clear(data: &Path) -> anyhow::Result<()> {
    super::files::remove(&place(data))?;
    File::open(data)?.sync_all()?;
    Ok(())
}

/// Fails when a restore into the folder has not ended.
pub fn check_no_restore(data: &Path) -> anyhow::Result<()> {
    if place(data).exists() {
        bail!(
            "a restore into {} was interrupted, so its data is incomplete; repeat the restore",
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
        let mark = |backup: &str| RestoreMarker {
            backup: Timestamp::parse(backup).unwrap(),
            database: "towpath".to_owned(),
        };
        let (one, two) = (mark("2026-03-01T12:00:00Z"), mark("2026-03-02T12:00:00Z"));
        assert_eq!(one.attempt(data).unwrap(), RestoreAttempt::First);
        check_no_restore(data).unwrap();
        one.set(data).unwrap();
        assert_eq!(one.attempt(data).unwrap(), RestoreAttempt::Repeated);
        assert!(two.attempt(data).unwrap_err().is::<Usage>());
        assert!(check_no_restore(data).is_err());
        clear(data).unwrap();
        check_no_restore(data).unwrap();
        assert_eq!(two.attempt(data).unwrap(), RestoreAttempt::First);
    }
}
