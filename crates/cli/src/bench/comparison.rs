//! Comparison with another program: a Python script that reads its task and writes its results as JSON.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Runs a script in its own process.
pub(super) async fn run_script<T: DeserializeOwned>(python: &Path, script: &str, asked: &Value) -> anyhow::Result<T> {
    let mut child = Command::new(python)
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", python.display()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(asked.to_string().as_bytes()).await?;
    }
    let output = child.wait_with_output().await?;
    ensure!(output.status.success(), "DuckDB ended with {}", output.status);
    serde_json::from_slice(&output.stdout).context("reading the output of DuckDB")
}
