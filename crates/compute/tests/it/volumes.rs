//! How the files of volumes come out of an engine and go into one: over a stand-in.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tar::{EntryType, Header};
use towpath_compute::Error;
use towpath_compute::docker::{Ids, RestoreRef, VolumeMetadata, Volumes};
use towpath_domain::DeploymentId;

use crate::engine::{Answer, Engine, RecordedRequest};
use crate::fixture::write;

const OWNER: Ids = Ids { uid: 10001, gid: 10002 };

/// A folder as the engine sends it, with one database.
fn archive(top: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |path: String, kind: EntryType, mode: u32, bytes: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        header.set_mode(mode);
        header.set_mtime(0);
        header.set_uid(OWNER.uid);
        header.set_gid(OWNER.gid);
        tar.append_data(&mut header, path, bytes).unwrap();
    };
    add(format!("{top}/"), EntryType::Directory, 0o700, b"");
    add(format!("{top}/agent.db"), EntryType::Regular, 0o644, b"database");
    tar.into_inner().unwrap()
}

fn volume(labels: &Value) -> Answer {
    let volume = json!({
        "Name": "v", "Driver": "local", "Mountpoint": "/v", "Scope": "local", "Labels": labels, "Options": {},
    });
    Answer::Json(200, volume)
}

fn usual(asked: &RecordedRequest, labels: &Value) -> Answer {
    let what = asked.what.as_str();
    if what.starts_with("GET /_ping") {
        return Answer::Json(200, json!("OK"));
    }
    if what.starts_with("GET /volumes/") || what.starts_with("POST /volumes/create") {
        return volume(labels);
    }
    if what.starts_with("GET /containers/json") || what.starts_with("GET /images/json") {
        return Answer::Json(200, json!([]));
    }
    if what.starts_with("POST /containers/create") {
        return Answer::Json(201, json!({"Id": "c", "Warnings": []}));
    }
    if what.contains("/archive?path=%2Fvolume") {
        return Answer::Bytes(archive("volume"));
    }
    if what.contains("/archive?path=%2Ftowpath-copy%2Fout") {
        return Answer::Bytes(archive("out"));
    }
    if what.starts_with("POST /build") || what.starts_with("PUT /") || what.contains("/logs") {
        return Answer::Json(200, Value::Null);
    }
    if what.contains("/wait") {
        return Answer::Json(200, json!({"StatusCode": 0}));
    }
    if what.contains("/json") {
        return Answer::Json(
            200,
            json!({"State": {"Running": false, "ExitCode": 0}, "HostConfig": {"Runtime": "runc"}}),
        );
    }
    Answer::Json(204, Value::Null)
}

fn start(
    folder: &Path,
    labels: Value,
    answer: impl Fn(&RecordedRequest) -> Option<Answer> + Send + Sync + 'static,
) -> Engine {
    Engine::start(folder.join("docker.sock"), move |asked, _| {
        answer(asked).unwrap_or_else(|| usual(asked, &labels))
    })
}

async fn open(folder: &Path, engine: &Engine) -> Volumes {
    let program = folder.join("program");
    write(&program, "a program");
    let host = format!("unix://{}", engine.socket.display());
    Volumes::open(&host, "base:{python_version}", program, folder.to_owned())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_volume_that_nothing_uses_is_read_as_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("into");
    std::fs::create_dir(&into).unwrap();
    let labels = json!({"dev.towpath.root": "/there", "owner": "somebody", "dev.towpath.restore": "an earlier one"});
    let engine = start(folder.path(), labels, |_| None);
    let volumes = open(folder.path(), &engine).await;
    let placed = volumes.fetch(DeploymentId::new(), &into).await.unwrap().unwrap();
    let kept: Vec<_> = placed
        .labels
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(kept, [("dev.towpath.root", "/there"), ("owner", "somebody")]);
    assert_eq!((placed.folder, placed.files, placed.mode), (OWNER, OWNER, 0o700));
    assert_eq!(std::fs::read_to_string(into.join("agent.db")).unwrap(), "database");
    let started = engine.asked("POST /containers/towpath-");
    assert!(started.is_empty(), "nothing runs: {started:?}");
    let made = engine.asked("POST /containers/create").len();
    assert_eq!(engine.asked("DELETE /containers/").len(), made, "each is removed");
    volumes.close().await;
    assert_eq!(engine.asked("DELETE /images/towpath-backup").len(), 1);
}

#[tokio::test]
async fn a_program_copies_beside_an_agent_server_in_an_image_that_can_run_it() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("into");
    std::fs::create_dir(&into).unwrap();
    let starts = AtomicUsize::new(0);
    let engine = start(folder.path(), json!({}), move |asked| {
        let what = asked.what.as_str();
        if what.starts_with("GET /containers/json") {
            return Some(Answer::Json(200, json!([{"Id": "agent", "ImageID": "sha256:own"}])));
        }
        if what.starts_with("GET /images/json") {
            let image = json!({
                "Id": "sha256:base", "ParentId": "", "RepoTags": [], "RepoDigests": [], "Created": 0, "Size": 0,
                "SharedSize": 0, "Labels": {}, "Containers": 0,
            });
            return Some(Answer::Json(200, json!([image])));
        }
        if what.contains("/start") && starts.fetch_add(1, Ordering::Relaxed) == 0 {
            return Some(Answer::Json(400, json!({"message": "no such file or directory"})));
        }
        None
    });
    let volumes = open(folder.path(), &engine).await;
    let placed = volumes.fetch(DeploymentId::new(), &into).await.unwrap().unwrap();
    assert_eq!(placed.files, OWNER);
    assert_eq!(std::fs::read_to_string(into.join("agent.db")).unwrap(), "database");
    let made: Vec<Value> = engine
        .asked("POST /containers/create")
        .iter()
        .map(|asked| serde_json::from_slice(&asked.body).unwrap())
        .filter(|body: &Value| body["Cmd"] != Value::Null)
        .collect();
    let images: Vec<_> = made.iter().map(|body| body["Image"].as_str().unwrap()).collect();
    assert_eq!(images, ["sha256:base", "sha256:own"]);
    let host = &made[1]["HostConfig"];
    assert_eq!(host["NetworkMode"], json!("none"));
    assert_eq!(host["CapDrop"], json!(["ALL"]));
    assert_eq!(host["CapAdd"], json!(["CHOWN", "DAC_OVERRIDE"]));
    assert_eq!(host["Runtime"], json!("runc"));
    let sent = engine.asked("PUT /containers/towpath-");
    let mut tar = tar::Archive::new(sent[1].body.as_slice());
    let names: Vec<_> = tar
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    assert_eq!(names, ["towpath-copy", "towpath-copy/out", "towpath-copy/towpath"]);
}

#[tokio::test]
async fn nothing_reads_beside_a_kernel_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start(folder.path(), json!({}), |asked| {
        if asked.what.starts_with("GET /containers/json") {
            return Some(Answer::Json(200, json!([{"Id": "agent", "ImageID": "sha256:own"}])));
        }
        let is_agent = asked.what.starts_with("GET /containers/agent/json");
        is_agent.then(|| Answer::Json(200, json!({"HostConfig": {"Runtime": "runsc"}})))
    });
    let volumes = open(folder.path(), &engine).await;
    let refused = volumes.fetch(DeploymentId::new(), folder.path()).await;
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("runsc") && error.contains("stop the platform"),
        "{error}"
    );
    assert!(engine.asked("POST /containers/towpath-").is_empty());
}

#[tokio::test]
async fn a_volume_is_made_again_with_its_labels() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from");
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("agent.db"), "database").unwrap();
    std::fs::write(from.join("platform.key"), "key").unwrap();
    let engine = start(folder.path(), json!({}), |asked| {
        let is_absent = asked.what.starts_with("GET /volumes/") || asked.what.starts_with("DELETE /volumes/");
        is_absent.then(|| Answer::Json(404, json!({"message": "no such volume"})))
    });
    let volumes = open(folder.path(), &engine).await;
    let placed = VolumeMetadata {
        labels: [("owner".to_owned(), "somebody".to_owned())].into(),
        files: OWNER,
        ..VolumeMetadata::default()
    };
    let restoring = RestoreRef {
        name: "one".to_owned(),
        is_repeated: false,
    };
    let deployment = DeploymentId::new();
    volumes
        .put(deployment, from, &["platform.key"], placed, &restoring)
        .await
        .unwrap();
    let made: Value = serde_json::from_slice(&engine.asked("POST /volumes/create")[0].body).unwrap();
    assert_eq!(made["Name"], json!(format!("towpath-{deployment}")));
    let root = folder.path().canonicalize().unwrap();
    let labels = json!({
        "owner": "somebody",
        "dev.towpath.root": root.to_str(),
        "dev.towpath.deployment": deployment.to_string(),
        "dev.towpath.restore": "one",
    });
    assert_eq!(made["Labels"], labels);
    let sent = engine.asked("PUT /containers/towpath-");
    let mut tar = tar::Archive::new(sent[0].body.as_slice());
    let found: Vec<_> = tar
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (
                entry.path().unwrap().display().to_string(),
                entry.header().gid().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        found,
        [("volume".to_owned(), 10001), ("volume/agent.db".to_owned(), OWNER.gid)]
    );
}

#[tokio::test]
async fn files_that_are_there_stay_unless_the_same_restore_put_them_there() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start(folder.path(), json!({"dev.towpath.restore": "one"}), |_| None);
    let volumes = open(folder.path(), &engine).await;
    let deployment = DeploymentId::new();
    for (name, is_repeated, is_free) in [("one", true, true), ("one", false, false), ("two", true, false)] {
        let restoring = RestoreRef {
            name: name.to_owned(),
            is_repeated,
        };
        match volumes.expect_free(deployment, &restoring).await {
            Ok(()) => assert!(is_free, "{restoring:?}"),
            Err(Error::Refused(why)) => {
                assert!(!is_free && why.contains(&format!("towpath-{deployment}")), "{why}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(engine.asked("DELETE /volumes/").is_empty());
}

#[tokio::test]
async fn an_engine_that_is_away_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let host = format!("unix://{}", folder.path().join("docker.sock").display());
    let opened = Volumes::open(&host, "base:1", folder.path().join("program"), folder.path().to_owned()).await;
    let error = opened.unwrap_err().to_string();
    assert!(error.contains(&host), "{error}");
}
