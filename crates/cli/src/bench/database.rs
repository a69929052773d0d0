//! The database of a benchmark, made for it and removed afterwards.

use anyhow::Context as _;
use tempfile::TempDir;
use towpath_store::baseline;

/// A database that nobody else uses.
pub struct Database {
    /// Where it is.
    pub uri: String,
    /// Of a database on PostgreSQL: the server's address, and its name.
    server: Option<(String, String)>,
    _folder: TempDir,
}

impl Database {
    /// On the server, else a file.
    ///
    /// # Errors
    /// The server does not make it, or the folder cannot be made.
    pub async fn make(server: Option<&str>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a temporary folder")?;
        let Some(server) = server else {
            return Ok(Self {
                uri: format!("sqlite://{}", folder.path().join("bench.db").display()),
                server: None,
                _folder: folder,
            });
        };
        let name = format!("towpath_bench_{}", std::process::id());
        let uri = baseline::make_database(server, &name)
            .await
            .context("making a database for the benchmark")?;
        Ok(Self {
            uri,
            server: Some((server.to_owned(), name)),
            _folder: folder,
        })
    }

    /// # Errors
    /// The server does not remove it.
    pub async fn remove(self) -> anyhow::Result<()> {
        if let Some((server, name)) = &self.server {
            baseline::drop_database(server, name)
                .await
                .context("dropping the benchmark's database")?;
        }
        Ok(())
    }
}
