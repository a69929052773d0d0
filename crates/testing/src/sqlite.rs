//! Database files.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder, and the address of a file in it that does not exist yet.
pub(crate) fn place() -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("temporary files can be made");
    let uri = address(&folder.path().join("towpath.db"));
    (folder, uri)
}

/// Copies the template of `schema` to `uri`. The first test of a schema creates the template next to the test binaries.
pub(crate) async fn copy(schema: &str, uri: &str, migrate: impl AsyncFnOnce(&str)) {
    let folder = binaries();
    let template = folder.join(format!("towpath-template-{schema}.db"));
    if !template.is_file() {
        // Written to a temporary file and renamed: another process sees the whole file or nothing.
        let made = tempfile::tempdir_in(&folder).expect("the folder of the test binaries can be written");
        let file = made.path().join("towpath.db");
        migrate(&address(&file)).await;
        let log = made.path().join("towpath.db-wal");
        let left = std::fs::metadata(&log).map_or(0, |log| log.len());
        assert_eq!(left, 0, "{} was not closed: its log holds the schema", file.display());
        std::fs::rename(&file, &template).expect("both lie in one folder");
    }
    let target = uri.trim_start_matches("sqlite://");
    let copied = std::fs::copy(&template, target);
    copied.unwrap_or_else(|error| panic!("{} to {target}: {error}", template.display()));
}

fn address(file: &Path) -> String {
    format!("sqlite://{}", file.display())
}

/// Where cargo put the running test: gone with `cargo clean`.
fn binaries() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    test.parent().expect("a program lies in a folder").to_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_template_is_made_once() {
        let schema = uuid::Uuid::now_v7().simple().to_string();
        let made = Cell::new(0);
        let migrate = async |uri: &str| {
            made.set(made.get() + 1);
            std::fs::write(uri.trim_start_matches("sqlite://"), "tables").unwrap();
        };
        for _ in 0..2 {
            let (folder, uri) = place();
            copy(&schema, &uri, migrate).await;
            let copied = std::fs::read_to_string(folder.path().join("towpath.db")).unwrap();
            assert_eq!(copied, "tables");
        }
        assert_eq!(made.get(), 1);
        std::fs::remove_file(binaries().join(format!("towpath-template-{schema}.db"))).unwrap();
    }
}
