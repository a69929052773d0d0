//! The file beside a SQLite database whose rows are moved to PostgreSQL, or were.
//!
//! While it exists, no server starts on the database: jobs and crons would be performed twice, and rows that change
//! between two attempts would be missing in the target.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    /// The move, as in the target.
    pub(super) id: Uuid,
    /// The target, without user and password.
    pub(super) target: String,
}

impl Marker {
    pub(super) fn read(database: &Path) -> Result<Option<Self>> {
        let file = marker_file(database);
        let refused = |why: String| Error::Open(format!("cannot read {}: {why}", file.display()));
        match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|why| refused(why.to_string())),
            Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
            Err(why) => Err(refused(why.to_string())),
        }
    }

    /// Written to a temporary file and renamed, so that a crash leaves the complete file or none.
    pub(super) fn write(&self, database: &Path) -> Result<()> {
        let file = marker_file(database);
        let draft = database.with_extension("moved-new");
        let write = || {
            let mut written = File::create(&draft)?;
            written.write_all(&serde_json::to_vec(self)?)?;
            written.sync_all()?;
            std::fs::rename(&draft, &file)?;
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(|why: std::io::Error| Error::Open(format!("cannot write {}: {why}", file.display())))
    }
}

pub(super) fn marker_file(database: &Path) -> PathBuf {
    database.with_extension("moved")
}

/// Refuses a database whose rows are in PostgreSQL.
pub(crate) fn check_not_moved(database: &Path) -> Result<()> {
    match Marker::read(database)? {
        None => Ok(()),
        Some(marker) => Err(Error::Open(format!(
            "the rows of {} were moved to {}: set DATABASE_URI to that database; to use the file again instead, remove \
             {} and do not use the other database any more",
            database.display(),
            marker.target,
            marker_file(database).display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_not_used_while_its_marker_exists() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("towpath.db");
        assert_eq!(Marker::read(&database).unwrap(), None);
        check_not_moved(&database).unwrap();
        let marker = Marker {
            id: Uuid::now_v7(),
            target: "the database towpath on here".to_owned(),
        };
        marker.write(&database).unwrap();
        let why = check_not_moved(&database).unwrap_err().to_string();
        let found = Marker::read(&database);
        std::fs::write(marker_file(&database), "{").unwrap();
        let torn = check_not_moved(&database);
        assert_eq!(found.unwrap(), Some(marker));
        assert!(
            why.contains("the database towpath on here") && why.contains(".moved"),
            "{why}"
        );
        assert!(torn.unwrap_err().to_string().contains("cannot read"));
    }
}
