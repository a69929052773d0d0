//! A temporary database for a benchmark.

use anyhow::Context as _;
use tempfile::TempDir;
use towpath_store::baseline;

pub struct Database {
    pub uri: String,
    /// Address of the PostgreSQL server and name of the database.
    server: Option<(String, String)>,
    _folder: TempDir,
}

impl Database {
    /// Creates it on the server, else as a file.
    pub async fn make(server: Option<&str>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("creating a temporary folder")?;
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
            .context("creating a database for the benchmark")?;
        Ok(Self {
            uri,
            server: Some((server.to_owned(), name)),
            _folder: folder,
        })
    }

    pub async fn remove(self) -> anyhow::Result<()> {
        if let Some((server, name)) = &self.server {
            baseline::drop_database(server, name)
                .await
                .context("dropping the benchmark's database")?;
        }
        Ok(())
    }
}
