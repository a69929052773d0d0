//! Sending generated trace runs and exporting them, whatever happens to the server meanwhile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use towpath_tests::{Api, Body, GeneratedProject, differences, parquet_files, read_rows, until};

/// How long one thing may take while processes are being killed.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Sends every body until it is acknowledged, a few at a time. A body whose answer was lost is sent again, as an SDK
/// would: it may be there twice and must count once.
pub async fn send(api: &Api, bodies: &[Body]) {
    let sending = futures::stream::iter(bodies).map(async |body| {
        let headers: Vec<(&str, &str)> = body
            .headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        until("a body to be accepted", PATIENCE, async || {
            let reply = api.send("/runs/multipart", &headers, body.bytes.clone()).await.ok()?;
            let again = reply.status.is_server_error() || reply.status == 429;
            assert!(again || reply.status == 202, "{} {}", reply.status, reply.body);
            (!again).then_some(())
        })
        .await;
    });
    sending.buffer_unordered(4).collect::<()>().await;
}

/// The project's id.
pub async fn project(api: &Api, name: &str) -> String {
    let found = ask(api, Method::GET, &format!("/sessions?name={name}"), None).await;
    found[0]["id"]
        .as_str()
        .unwrap_or_else(|| panic!("project {name} is not there: {found}"))
        .to_owned()
}

/// Starts an export of everything generated; its id. A request whose answer was lost is sent again under the same key.
pub async fn export(api: &Api, destination: &str, project: &str, generated: &GeneratedProject) -> String {
    let body = json!({
        "bulk_export_destination_id": destination, "session_id": project,
        "start_time": generated.start, "end_time": generated.end,
    });
    let body = bytes::Bytes::from(body.to_string());
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let key = format!("{project}/{}", ASKED.fetch_add(1, Ordering::Relaxed));
    let headers = [("content-type", "application/json"), ("idempotency-key", &*key)];
    let made = until("an export to be recorded", PATIENCE, async || {
        let reply = api.send("/api/v1/bulk-exports", &headers, body.clone()).await.ok()?;
        (!reply.status.is_server_error()).then(|| reply.expect(200))
    })
    .await;
    made["id"].as_str().expect("an export has an id").to_owned()
}

/// One request, repeated while the server is unavailable.
pub async fn ask(api: &Api, method: Method, path: &str, body: Option<Value>) -> Value {
    until(&format!("an answer to {method} {path}"), PATIENCE, async || {
        let reply = api.request(method.clone(), path, body.as_ref()).await.ok()?;
        if reply.status.is_server_error() {
            return None;
        }
        assert_eq!(reply.status, 200, "{method} {path}: {}", reply.body);
        Some(reply.body)
    })
    .await
}

/// Compares a completed export with what was generated: the files that its manifest lists, no others beside them, every
/// row once, every value of all 29 columns.
pub fn compare(
    folder: &Path,
    export: &str,
    tenant: &str,
    project: &str,
    generated: &GeneratedProject,
) -> Result<usize, String> {
    compare_all(folder, &[export], tenant, project, generated)
}

/// As [`compare`], of exports that have to hold everything between them.
pub fn compare_all(
    folder: &Path,
    exports: &[&str],
    tenant: &str,
    project: &str,
    generated: &GeneratedProject,
) -> Result<usize, String> {
    let mut files = Vec::new();
    for export in exports {
        files.extend(complete(&folder.join(format!("export_id={export}")))?);
    }
    let rows = read_rows(&files);
    let given = [("tenant_id", tenant), ("session_id", project)];
    let wanted: BTreeMap<_, _> = generated
        .rows
        .iter()
        .map(|(id, row)| {
            let mut row = row.clone();
            row.extend(given.map(|(name, value)| (name.to_owned(), json!(value))));
            (id.clone(), row)
        })
        .collect();
    let wrong = differences(&rows, &wanted);
    if wrong.is_empty() {
        Ok(rows.len())
    } else {
        Err(wrong.join("\n"))
    }
}

/// The files below an export's folder, which are those that its manifest lists.
pub fn complete(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let manifest = std::fs::read(folder.join("_manifest.json")).map_err(|error| format!("no manifest: {error}"))?;
    let manifest: Value = serde_json::from_slice(&manifest).map_err(|error| format!("the manifest: {error}"))?;
    let files = parquet_files(folder);
    let mut listed: Vec<&str> = manifest["partitions"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|partition| partition["files"].as_array().into_iter().flatten())
        .filter_map(|file| file["path"].as_str())
        .collect();
    listed.sort_unstable();
    let same = files.len() == listed.len() && files.iter().zip(&listed).all(|(file, path)| file.ends_with(path));
    if same {
        Ok(files)
    } else {
        Err(format!("the manifest lists {listed:?}, there are {files:?}"))
    }
}
