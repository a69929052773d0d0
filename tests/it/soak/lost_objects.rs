//! An object of the write-ahead log that is lost before it is flushed. What was accepted with it is in the quarantine,
//! and nothing else stands still.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::{Value, json};
use towpath_tests::{Random, until};

use super::client::{PATIENCE, Request};
use super::day::Day;
use super::site::Site;
use super::traces::TraceRun;

/// The project of what is lost.
const PROJECT: &str = "soak-lost";

/// How a loss ends.
#[derive(Clone, Copy, Debug)]
enum LossOutcome {
    /// The object comes back, and an operator has it flushed.
    Retried,
    /// The object comes back, and the next sweep sees it.
    Found,
    /// An operator gives it up.
    Dropped,
}

/// Loses what a client has just sent. The load is over, so nothing else is in the object.
pub async fn lose(site: &mut Site, day: &Day<'_>, dice: &mut Random) {
    let end = *dice.pick(&[LossOutcome::Retried, LossOutcome::Found, LossOutcome::Dropped]);
    let wal = site.platform.data().join("objects/wal");
    operate(day, "/internal/queues/flushes/pause").await;
    let before = files(&wal);
    let lost: Vec<TraceRun> = (0..2).map(|_| TraceRun::new(dice, day.now, PROJECT)).collect();
    let posts: Vec<Value> = lost.iter().map(TraceRun::post).collect();
    send(day, &posts).await;
    let objects: Vec<String> = files(&wal).difference(&before).cloned().collect();
    assert!(!objects.is_empty(), "what is acknowledged lies in {}", wal.display());
    let aside = site.platform.folder().join("aside");
    std::fs::create_dir_all(&aside).expect("the folder is ours");
    for name in &objects {
        std::fs::rename(wal.join(name), aside.join(name)).expect("both lie in one folder");
    }
    operate(day, "/internal/queues/flushes/resume").await;

    let mut entries = Vec::new();
    for name in &objects {
        entries.push(quarantined(day, name).await);
    }
    for run in &lost {
        let said = day.platform.read(format!("/runs/{}", run.id)).await;
        if said.status != 404 {
            day.wrong(&format!("trace run {} is lost, and shown: {said}", run.id));
        }
    }
    let next = TraceRun::new(dice, day.now, PROJECT);
    send(day, &[next.post()]).await;
    site.rest().await;
    let mut kept = vec![next];

    match end {
        LossOutcome::Dropped => {
            for id in &entries {
                operate(day, &format!("/internal/quarantine/{id}/drop")).await;
            }
        }
        LossOutcome::Retried | LossOutcome::Found => {
            for name in &objects {
                std::fs::rename(aside.join(name), wal.join(name)).expect("both lie in one folder");
            }
            kept.extend(lost);
        }
    }
    if matches!(end, LossOutcome::Retried) {
        for id in &entries {
            operate(day, &format!("/internal/quarantine/{id}/retry")).await;
        }
        site.rest().await;
    }
    // Checked after the night, which has a sweep.
    day.acknowledged.borrow_mut().traces.append(&mut kept);
}

/// The quarantine's entry about an object.
async fn quarantined(day: &Day<'_>, name: &str) -> String {
    let path = format!("wal/{name}");
    until(&format!("{path} to be missed"), PATIENCE, async || {
        let said = day
            .platform
            .once(&Request::get("/internal/quarantine?limit=1000"))
            .await?;
        let items = said.body["items"].as_array()?;
        let entry = items.iter().find(|entry| entry["path"] == path)?;
        assert_eq!(entry["kind"], "missing", "{entry}");
        Some(entry["id"].as_str()?.to_owned())
    })
    .await
}

async fn send(day: &Day<'_>, posts: &[Value]) {
    let body = json!({ "post": posts, "patch": [] });
    day.platform.insist(&Request::post("/runs/batch", &body), &[202]).await;
}

async fn operate(day: &Day<'_>, path: &str) {
    day.platform.insist(&Request::raw(Method::POST, path, ""), &[200]).await;
}

/// Names of the files in a folder.
fn files(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    paths
        .filter(|path| path.is_file())
        .filter_map(|path: PathBuf| Some(path.file_name()?.to_str()?.to_owned()))
        .collect()
}
