//! `towpath demo`: sends trace runs and exports them, as a client would.
//!
//! All requests use HTTP. The reported figures are read back from the files.

mod client;
mod export;
mod files;
mod ingest;
mod progress;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::arguments::{Demo, flag};
use crate::config::{Config, Inputs, Mode};
use crate::first_key::{self, FirstKey};
use crate::signals::Signals;
use crate::storage::Storage;
use crate::telemetry;
use crate::wiring::{Roles, Server};

use client::Client;
pub use progress::grouped;

pub async fn run(command: Demo) -> anyhow::Result<()> {
    let folder = Folder::make(command.data_dir.as_deref())?;
    let flags = [
        flag("data_dir", "--data-dir", Some(folder.path().display())),
        flag("listen", "demo", Some("127.0.0.1:0")),
        flag("log.filter", "--log", Some(&command.log)),
    ];
    let config = Config::load(&Inputs::isolated(Mode::Dev, flags.into_iter().flatten().collect()))?;
    let _spans = telemetry::start_logging(&config)?;
    let metrics = telemetry::start_metrics()?;
    let storage = Storage::open(&config.settings).await?;
    let first = first_key::of_dev(&storage.store, &config.settings, storage.data.as_ref()).await?;
    let mut signals = Signals::listen()?;
    let server = Server::start(&config, Roles::ALL, storage, metrics).await?;
    println!(
        "a server listens on http://{}, its data is in {}",
        server.address(),
        folder.path().display()
    );

    let told = tokio::select! {
        told = tell(&command, &server, &first, &config.settings.file_root) => told,
        _ = signals.next() => Err(anyhow::anyhow!("stopped before the end")),
    };
    server.drain().await?;
    told?;
    folder.keep_or_report();
    Ok(())
}

async fn tell(command: &Demo, server: &Server, first: &FirstKey, file_root: &Path) -> anyhow::Result<()> {
    let client = Client::new(server.address(), &first.key, first.tenant)?;
    let sent = ingest::send(&client, command.runs, command.connections)
        .await
        .context("sending trace runs")?;
    let export = export::make(&client, &sent).await.context("exporting")?;

    let folder = export.folder(file_root);
    let contents = tokio::task::spawn_blocking(move || files::read(&folder)).await??;
    println!("\nread back from the files:");
    for (path, rows, bytes) in &contents.files {
        let name = path.strip_prefix(file_root).unwrap_or(path);
        println!(
            "  {:>9} rows  {:>11} bytes  {}",
            grouped(*rows),
            grouped(*bytes),
            name.display()
        );
    }
    println!(
        "  {:>9} rows in {} files, {} different ids",
        grouped(contents.rows),
        contents.files.len(),
        grouped(contents.ids)
    );
    if (contents.rows, contents.ids) != (command.runs, command.runs) {
        bail!(
            "sent {} trace runs, but the files hold {} rows with {} ids",
            command.runs,
            contents.rows,
            contents.ids
        );
    }
    println!("  as many as were sent, each once\n");
    println!("{}", curl_commands(command.data_dir.as_deref(), &export, &sent));
    Ok(())
}

/// The same steps with `curl`: on the data of this demo if it is kept, else on traces in a new folder.
fn curl_commands(kept: Option<&Path>, export: &export::Export, sent: &ingest::SentRuns) -> String {
    let ingest::SentRuns { from, until, .. } = sent;
    let folder = kept.unwrap_or(Path::new(".towpath")).display();
    let session = if kept.is_some() { &export.session } else { "…" };
    let traced = if kept.is_some() { "" } else { ", trace into it" };
    format!(
        r#"To do it by hand, start `towpath dev --data-dir {folder}`{traced}, and put each id where the dots are:
  url=http://127.0.0.1:8400
  key=(-H "X-API-Key: $(cat '{folder}/api.key')" -H 'Content-Type: application/json')
  curl -s "${{key[@]}}" "$url/api/v1/sessions"
  curl -s "${{key[@]}}" "$url/api/v1/bulk-exports/destinations" -d '{{"destination_type": "file", "display_name": "files", "config": {{"prefix": "mine"}}}}'
  curl -s "${{key[@]}}" "$url/api/v1/bulk-exports" -d '{{"bulk_export_destination_id": "…", "session_id": "{session}", "start_time": "{from}", "end_time": "{until}"}}'
  curl -s "${{key[@]}}" "$url/api/v1/bulk-exports/…/runs"
  find '{folder}/exports/mine'"#
    )
}

enum Folder {
    /// Removed at the end.
    Temporary(tempfile::TempDir),
    Provided(PathBuf),
}

impl Folder {
    fn make(given: Option<&Path>) -> anyhow::Result<Self> {
        match given {
            Some(path) => Ok(Self::Provided(std::path::absolute(path)?)),
            None => {
                let folder = tempfile::Builder::new().prefix("towpath-demo.").tempdir();
                Ok(Self::Temporary(folder.context("creating a temporary folder")?))
            }
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Temporary(folder) => folder.path(),
            Self::Provided(path) => path,
        }
    }

    fn keep_or_report(self) {
        match self {
            Self::Temporary(_) => println!("\nThe temporary folder is removed; use --data-dir DIR to keep one."),
            Self::Provided(path) => println!("\nEverything is kept in {}.", path.display()),
        }
    }
}
