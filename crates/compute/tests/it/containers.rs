//! What the platform asks of a Docker engine, and how it takes what goes wrong there: over a stand-in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use towpath_compute::artifact::{Artifact, Origin, Plan};
use towpath_compute::docker::{Containers, Network, PulledImage, Settings};
use towpath_compute::tree::Limits;
use towpath_compute::{Backend, Error, Isolation, Launch, Log, build};
use towpath_domain::git::CommitSha;
use towpath_domain::{DeploymentId, RevisionId};

use crate::engine::{Answer, Engine, RecordedRequest, agent};
use crate::fixture::{TestRoot, path, write};

const URI: &str = "agent:1";

fn settings(home: &TestRoot, host: &str, network: Network) -> Settings {
    let program = home.folder.path().join("program");
    write(&program, "#!/bin/sh\n");
    Settings {
        host: host.to_owned(),
        network,
        base_image: "base:1".to_owned(),
        program,
        logins: None,
        variables: BTreeMap::new(),
        fixed: Vec::new(),
        health: Duration::from_secs(20),
        grace: Duration::from_secs(1),
        build: Duration::from_secs(20),
        build_memory_bytes: 512 << 20,
        build_cpus: 2,
        runtime: Some("runsc".to_owned()),
        user: "10001:10001".to_owned(),
        guard: home.settings.guard.clone(),
        registries: Vec::new(),
    }
}

/// A backend whose engine answers so, and as a healthy one where that says nothing.
fn backend(
    home: &TestRoot,
    port: u16,
    answer: impl Fn(&RecordedRequest, usize) -> Option<Answer> + Send + Sync + 'static,
) -> (Engine, Backend) {
    let engine = Engine::start(home.folder.path().join("docker.sock"), move |asked, before| {
        answer(asked, before).unwrap_or_else(|| usual(asked, port))
    });
    let host = format!("unix://{}", engine.socket.display());
    let containers = Containers::new(settings(home, &host, Network::Bridge), home.root.clone()).unwrap();
    (engine, Backend::Docker(Box::new(containers)))
}

fn usual(asked: &RecordedRequest, port: u16) -> Answer {
    let what = asked.what.as_str();
    let absent = || Answer::Json(404, json!({"message": "no such thing"}));
    if what.starts_with("GET /images/") {
        return Answer::Json(
            200,
            json!({"Id": "sha256:11", "RepoDigests": ["agent@sha256:22"], "Config": {}}),
        );
    }
    if what.starts_with("GET /networks/") {
        return absent();
    }
    if what.starts_with("POST /networks/create") {
        return Answer::Json(201, json!({"Id": "n", "Warning": ""}));
    }
    if what.starts_with("POST /containers/create") {
        return Answer::Json(201, json!({"Id": "c", "Warnings": []}));
    }
    if what.starts_with("POST /containers/c/wait") {
        return Answer::Never;
    }
    if what.starts_with("GET /containers/c/json") {
        let ports = json!({"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": port.to_string()}]});
        return Answer::Json(
            200,
            json!({"Id": "c", "State": {"Running": true}, "NetworkSettings": {"Ports": ports}}),
        );
    }
    if what.starts_with("GET /containers/c/logs") || what.starts_with("POST /build") {
        return Answer::Json(200, Value::Null);
    }
    if what.starts_with("POST /images/create") {
        return Answer::Json(200, Value::Null);
    }
    if what.starts_with("POST /images/") {
        return Answer::Json(201, Value::Null);
    }
    if what.starts_with("DELETE /images/") {
        return Answer::Json(200, json!([]));
    }
    Answer::Json(204, Value::Null)
}

fn pulled() -> PulledImage {
    PulledImage {
        name: URI.to_owned(),
        id: "sha256:11".to_owned(),
        is_ours: false,
        reference: None,
    }
}

fn launch(key: &str) -> Launch {
    Launch {
        deployment: DeploymentId::new(),
        revision: RevisionId::new(),
        artifact: key.to_owned(),
        variables: Vec::new(),
        cpus: None,
        memory_mb: None,
    }
}

#[tokio::test]
async fn a_container_has_a_network_of_its_own_and_no_rights() {
    let (home, never, ready) = (TestRoot::new(), CancellationToken::new(), CancellationToken::new());
    ready.cancel();
    let (engine, backend) = backend(&home, agent(ready).await, |_, _| None);
    let key = backend.record_image(&home.root, URI, &pulled()).await.unwrap();
    let launch = launch(&key);
    backend.check(&launch, &Log::none(), &never).await.unwrap();
    let made = engine.asked("POST /containers/create");
    let body: Value = serde_json::from_slice(&made[0].body).unwrap();
    let host = &body["HostConfig"];
    assert_eq!(host["CapDrop"], json!(["ALL"]));
    assert_eq!(host["CapAdd"], Value::Null);
    assert_eq!(host["SecurityOpt"], json!(["no-new-privileges"]));
    assert_eq!(host["Init"], json!(true));
    assert_eq!(host["Runtime"], json!("runsc"));
    assert_eq!(host["NetworkMode"], json!(format!("towpath-{}", launch.deployment)));
    assert_eq!(body["User"], json!("10001:10001"));
    assert_eq!(engine.asked("POST /networks/create").len(), 1);
}

/// An engine takes a second network of the same name, and refuses containers that name either.
#[tokio::test]
async fn starts_at_once_make_one_network() {
    let (home, never, ready) = (TestRoot::new(), CancellationToken::new(), CancellationToken::new());
    ready.cancel();
    let made = AtomicBool::new(false);
    let (engine, backend) = backend(&home, agent(ready).await, move |asked, _| {
        if asked.what.starts_with("POST /networks/create") {
            made.store(true, Ordering::SeqCst);
        }
        let is_there = asked.what.starts_with("GET /networks/") && made.load(Ordering::SeqCst);
        is_there.then(|| Answer::Json(200, json!({"Id": "n"})))
    });
    let key = backend.record_image(&home.root, URI, &pulled()).await.unwrap();
    let (launch, log) = (launch(&key), Log::none());
    let checks = (0..8).map(|_| backend.check(&launch, &log, &never));
    for checked in futures::future::join_all(checks).await {
        checked.unwrap();
    }
    assert_eq!(engine.asked("POST /networks/create").len(), 1);
}

/// A volume as the engine sends it.
fn volume_of(uid: u64, files: &[&str]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut head = tar::Header::new_gnu();
    head.set_entry_type(tar::EntryType::Directory);
    head.set_size(0);
    head.set_mode(0o755);
    head.set_uid(uid);
    head.set_gid(uid);
    tar.append_data(&mut head, "volume/", std::io::empty()).unwrap();
    for file in files {
        let mut head = tar::Header::new_gnu();
        head.set_size(0);
        head.set_mode(0o600);
        head.set_uid(uid);
        head.set_gid(uid);
        tar.append_data(&mut head, format!("volume/{file}"), std::io::empty())
            .unwrap();
    }
    tar.into_inner().unwrap()
}

#[tokio::test]
async fn a_volume_belongs_to_whom_its_container_runs_as() {
    // Nothing is in the first, the second is an earlier version's, the third is right already.
    for (uid, files, given, user) in [
        (0, &[][..], 1, "10001:10001"),
        (0, &["agent.db"][..], 0, "0:0"),
        (10001, &["agent.db"][..], 0, "10001:10001"),
    ] {
        let (home, never, ready) = (TestRoot::new(), CancellationToken::new(), CancellationToken::new());
        ready.cancel();
        let volume = volume_of(uid, files);
        let (engine, backend) = backend(&home, agent(ready).await, move |asked, _| {
            if asked.what.starts_with("POST /volumes/create") {
                let made = json!({"Name": "v", "Driver": "local", "Mountpoint": "/", "Labels": {}, "Options": {}, "Scope": "local", "CreatedAt": "2026-01-01T00:00:00Z"});
                return Some(Answer::Json(201, made));
            }
            let reads = asked.what.starts_with("GET /containers/towpath-") && asked.what.contains("/archive");
            reads.then(|| Answer::Bytes(volume.clone()))
        });
        let key = backend.record_image(&home.root, URI, &pulled()).await.unwrap();
        let launch = launch(&key);
        let standby = backend.stand_by(&launch, &Log::none(), &never).await.unwrap();
        let served = backend.replace(&launch, standby, &Log::none(), &never).await;
        assert!(served.is_ok(), "{uid} {files:?}: {served:?}");
        let gave = engine.asked("PUT /containers/towpath-");
        assert_eq!(gave.len(), given, "{uid} {files:?}");
        for one in gave {
            let mut archive = tar::Archive::new(one.body.as_slice());
            let folder = archive.entries().unwrap().next().unwrap().unwrap();
            assert_eq!(folder.header().uid().unwrap(), 10001);
        }
        let made = engine.asked("POST /containers/create");
        let body: Value = serde_json::from_slice(&made[1].body).unwrap();
        assert_eq!(body["User"], json!(user), "{uid} {files:?}");
        backend.stop_all().await;
    }
}

#[tokio::test]
async fn a_container_outlives_the_connection_to_its_engine() {
    let (home, never, ready) = (TestRoot::new(), CancellationToken::new(), CancellationToken::new());
    let again = ready.clone();
    let (engine, backend) = backend(&home, agent(ready).await, move |asked, before| {
        if asked.what.starts_with("POST /containers/c/wait") {
            if before == 0 {
                return Some(Answer::Nothing);
            }
            // It is healthy only after it was waited for again.
            again.cancel();
        }
        let removes = asked.what.starts_with("DELETE /containers/c");
        (removes && before == 0).then(|| Answer::Json(500, json!({"message": "the driver is busy"})))
    });
    let key = backend.record_image(&home.root, URI, &pulled()).await.unwrap();
    let checked = backend.check(&launch(&key), &Log::none(), &never).await;
    assert!(checked.is_ok(), "the container was given up: {checked:?}");
    let removed = engine.asked("DELETE /containers/c").len();
    assert_eq!(removed, 2, "its end was told before it was removed");
}

#[tokio::test]
async fn an_image_is_recorded_before_it_has_its_name() {
    let home = TestRoot::new();
    let (_engine, backend) = backend(&home, 1, |asked, _| {
        let tags = asked.what.starts_with("POST /images/sha256") && asked.what.contains("/tag");
        tags.then(|| Answer::Json(500, json!({"message": "busy"})))
    });
    let recorded = backend.record_image(&home.root, URI, &pulled()).await;
    assert!(matches!(recorded, Err(Error::Transient(_))), "{recorded:?}");
    let key = towpath_compute::backend::image_key(URI, &pulled());
    assert!(Artifact::of(&home.root, &key).unwrap().built().is_some());
}

#[tokio::test]
async fn registries_of_the_inner_network_and_images_of_others_are_not_pulled() {
    let (home, never) = (TestRoot::new(), CancellationToken::new());
    let (engine, backend) = backend(&home, 1, |_, _| None);
    for uri in [
        "169.254.169.254/a:1",
        "127.0.0.1:5000/a:1",
        "towpath-0123456789ab:00ff",
        "sha256:00ff",
    ] {
        let pulled = backend.pull(uri, &[], &Log::none(), &never).await;
        assert!(matches!(pulled, Err(Error::Refused(_))), "{uri}: {pulled:?}");
    }
    assert!(engine.asked("POST /images/create").is_empty());
    let pulled = backend.pull(URI, &[], &Log::none(), &never).await.unwrap();
    assert_eq!(pulled.reference.as_deref(), Some("agent@sha256:22"));
}

#[tokio::test]
async fn a_deployment_that_is_removed_leaves_no_folder_and_no_network() {
    let home = TestRoot::new();
    let (engine, backend) = backend(&home, 1, |_, _| None);
    let deployment = DeploymentId::new();
    let folder = home.root.agent(deployment);
    home.root.keep(&folder.join("platform.key"), b"key").unwrap();
    backend.remove(deployment).await.unwrap();
    assert!(!folder.exists(), "{} is still there", folder.display());
    assert_eq!(engine.asked(&format!("DELETE /networks/towpath-{deployment}")).len(), 1);
}

#[tokio::test]
async fn the_programs_image_is_made_again_after_somebody_tidied_the_engine() {
    let (home, never) = (TestRoot::new(), CancellationToken::new());
    let is_there = Arc::new(AtomicBool::new(false));
    let program = Arc::clone(&is_there);
    let (engine, backend) = backend(&home, 1, move |asked, _| {
        if asked.what.starts_with("POST /build") && asked.what.contains("-program") {
            program.store(true, Ordering::SeqCst);
        }
        let looks = asked.what.starts_with("GET /images/") && asked.what.contains("-program");
        (looks && !program.load(Ordering::SeqCst)).then(|| Answer::Json(404, json!({"message": "none"})))
    });
    for commit in ["a", "b"] {
        let plan = Plan {
            origin: Origin::Git {
                url: "https://git.example/agent".into(),
                name: "main".into(),
                sha: CommitSha::parse(&commit.repeat(40)).unwrap(),
            },
            config: "langgraph.json".into(),
            install: None,
            build: None,
        };
        let artifact = Artifact::of(&home.root, &plan.key()).unwrap();
        artifact.begin().unwrap();
        write(&artifact.source().join("langgraph.json"), r#"{"graphs": {"a": "x"}}"#);
        artifact.fetched().unwrap();
        let of_process = build::Settings {
            path: path(),
            limit: Duration::from_secs(20),
            tree: Limits::default(),
            variables: BTreeMap::new(),
            launcher: "/nonexistent/towpath".into(),
            isolation: Isolation::default(),
        };
        let built = backend
            .build(&of_process, &home.root, &plan, &Log::none(), &never)
            .await;
        built.unwrap();
        is_there.store(false, Ordering::SeqCst);
    }
    let builds = engine.asked("POST /build");
    let programs = builds.iter().filter(|one| one.what.contains("-program"));
    assert_eq!(programs.count(), 2);
    for limit in ["memory=536870912", "cpuquota=200000"] {
        assert!(builds.iter().all(|one| one.what.contains(limit)), "{limit}: {builds:?}");
    }
}

#[tokio::test]
async fn settings_that_do_not_go_together_are_refused() {
    let home = TestRoot::new();
    let host = settings(&home, "tcp://10.0.0.1:2375", Network::Host);
    let refused = Containers::new(host, home.root.clone()).unwrap_err();
    assert!(refused.to_string().contains("deployments.docker_network"), "{refused}");
    let named = Settings {
        user: "node".to_owned(),
        ..settings(&home, "unix:///none", Network::Bridge)
    };
    let refused = Containers::new(named, home.root.clone()).unwrap_err();
    assert!(refused.to_string().contains("deployments.docker_user"), "{refused}");
}

#[tokio::test]
async fn a_volume_is_known_by_its_label_or_by_when_it_was_made() {
    for (status, labels, known) in [
        (200, json!({"dev.towpath.database": "7"}), Some("7")),
        (200, json!({}), Some("made 2026-01-01")),
        (404, json!({}), None),
    ] {
        let (home, deployment) = (TestRoot::new(), DeploymentId::new());
        let (engine, backend) = backend(&home, 1, move |asked, _| {
            let volume = json!({"Name": "v", "Driver": "local", "Mountpoint": "/", "Labels": labels, "Options": {}, "Scope": "local", "CreatedAt": "2026-01-01T00:00:00Z", "message": "no such volume"});
            asked
                .what
                .starts_with("GET /volumes/towpath-")
                .then_some(Answer::Json(status, volume))
        });
        let found = backend.database(deployment).await.unwrap();
        match known {
            Some(known) => assert!(found.is_some_and(|id| id.starts_with(known)), "{known}"),
            None => assert_eq!(found, None),
        }
        assert_eq!(engine.asked(&format!("GET /volumes/towpath-{deployment}")).len(), 1);
    }
}
