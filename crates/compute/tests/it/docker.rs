//! Containers of a real engine: `TOWPATH_TEST_DOCKER`, else the one at the usual socket. Without one these tests say
//! so and pass. Nothing is pulled: the base image is made of this machine's busybox.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::{
    CreateImageOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder, ListImagesOptionsBuilder,
};
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;
use towpath_compute::artifact::{Artifact, Origin, Plan};
use towpath_compute::docker::{Containers, Network, Settings};
use towpath_compute::tree::Limits;
use towpath_compute::{Backend, Error, Isolation, Launch, Log, RunningAgent, build};
use towpath_domain::git::CommitSha;
use towpath_domain::{DeploymentId, RevisionId, Secret};

use crate::fixture::{TestRoot, lines, path, write};

const SOCKET: &str = "unix:///var/run/docker.sock";
const BASE: &str = "towpath-test-base:latest";
/// Stands in for `towpath`: answers `/ok`, says what it was given, stops when asked to.
const PROGRAM: &str = r#"#!/bin/sh
case " $* " in *" --prepare "*) echo "preparing in $(pwd)"; exit 0;; esac
echo "serving $SECRET with $*"
mkdir -p /tmp/www && echo fine >/tmp/www/ok
trap 'exit 0' TERM
case " $* " in *" --standby "*)
    trap 'go=1' USR1
    echo "towpath: standing by"
    while [ -z "$go" ]; do sleep 0.05; done;;
esac
httpd -f -p "$TOWPATH_LISTEN" -h /tmp/www &
case " $* " in *" --tell-listening "*) echo "towpath: listening";; esac
wait
"#;

/// A root, and an engine that answers.
struct DockerFixture {
    home: TestRoot,
    engine: Docker,
    host: String,
}

impl DockerFixture {
    /// Nothing where no engine answers.
    async fn find() -> Option<Self> {
        #[expect(clippy::disallowed_methods, reason = "where the engine for tests is")]
        let host = std::env::var("TOWPATH_TEST_DOCKER").unwrap_or_else(|_| SOCKET.to_owned());
        let skip = |why: &str| {
            eprintln!("SKIPPED: {why}; set TOWPATH_TEST_DOCKER to the address of a Docker engine");
            None::<Self>
        };
        let Some(socket) = host.strip_prefix("unix://").filter(|path| Path::new(path).exists()) else {
            return skip(&format!("there is no Docker engine at {host}"));
        };
        let Ok(engine) = Docker::connect_with_unix(socket, 60, bollard::API_DEFAULT_VERSION) else {
            return skip(&format!("{host} is no address"));
        };
        if engine.ping().await.is_err() {
            return skip(&format!("no Docker engine answers at {host}"));
        }
        let Some(busybox) = static_busybox() else {
            return skip("this machine has no static busybox for a base image (Debian: busybox-static)");
        };
        let dock = Self {
            home: TestRoot::new(),
            engine,
            host,
        };
        dock.import(&busybox).await;
        Some(dock)
    }

    /// A base image with a shell.
    async fn import(&self, busybox: &Path) {
        let rootfs = self.home.folder.path().join("rootfs");
        let bin = rootfs.join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(rootfs.join("tmp")).unwrap();
        std::fs::copy(busybox, bin.join("busybox")).unwrap();
        for tool in ["sh", "httpd", "sleep", "mkdir", "echo", "cat", "true", "false"] {
            std::os::unix::fs::symlink("busybox", bin.join(tool)).unwrap();
        }
        let mut tar = tar::Builder::new(Vec::new());
        tar.follow_symlinks(false);
        tar.append_dir_all(".", &rootfs).unwrap();
        let body = bollard::body_full(tar.into_inner().unwrap().into());
        let (repo, tag) = BASE.split_once(':').unwrap();
        let options = CreateImageOptionsBuilder::new()
            .from_src("-")
            .repo(repo)
            .tag(tag)
            .build();
        let mut said = Box::pin(self.engine.create_image(Some(options), Some(body), None));
        while let Some(piece) = said.next().await {
            piece.unwrap();
        }
    }

    fn settings(&self, network: Network) -> Settings {
        let program = self.home.folder.path().join("program");
        write(&program, PROGRAM);
        Settings {
            host: self.host.clone(),
            network,
            base_image: BASE.to_owned(),
            program,
            logins: None,
            variables: BTreeMap::new(),
            fixed: vec![("TOWPATH_AGENT_AUTH".to_owned(), "none".to_owned())],
            health: Duration::from_secs(20),
            grace: Duration::from_secs(3),
            build: Duration::from_secs(60),
            build_memory_bytes: 512 << 20,
            build_cpus: 1,
            runtime: None,
            user: "10001:10001".to_owned(),
            guard: self.home.settings.guard.clone(),
            registries: Vec::new(),
        }
    }

    fn backend(&self, network: Network) -> Backend {
        let containers = Containers::new(self.settings(network), self.home.root.clone()).unwrap();
        Backend::Docker(Box::new(containers))
    }

    /// A tree as if it had been fetched.
    fn fetched(&self, config: &str, commit: char) -> Plan {
        let plan = Plan {
            origin: Origin::Git {
                url: "https://git.example/agent".into(),
                name: "main".into(),
                sha: CommitSha::parse(&commit.to_string().repeat(40)).unwrap(),
            },
            config: "apps/one/langgraph.json".into(),
            install: None,
            build: None,
        };
        let artifact = Artifact::of(&self.home.root, &plan.key()).unwrap();
        artifact.begin().unwrap();
        write(&artifact.source().join(&plan.config), config);
        artifact.fetched().unwrap();
        plan
    }

    async fn build(&self, backend: &Backend, plan: &Plan, log: &Log, cancel: &CancellationToken) -> Result<(), Error> {
        let settings = build::Settings {
            path: path(),
            limit: Duration::from_secs(60),
            tree: Limits::default(),
            variables: BTreeMap::new(),
            launcher: "/nonexistent/towpath".into(),
            isolation: Isolation::default(),
        };
        let built = backend.build(&settings, &self.home.root, plan, log, cancel).await;
        built.map(drop)
    }

    /// Containers of this root, running or not: what they are labelled with.
    async fn containers(&self) -> Vec<HashMap<String, String>> {
        let label = format!("dev.towpath.root={}", self.home.root.mark());
        let filter = HashMap::from([("label", vec![label])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filter).build();
        let found = self.engine.list_containers(Some(options)).await.unwrap();
        found.into_iter().map(|one| one.labels.unwrap_or_default()).collect()
    }

    async fn container_of(&self, deployment: DeploymentId) -> bollard::models::ContainerInspectResponse {
        let filter = HashMap::from([("label", vec![format!("dev.towpath.deployment={deployment}")])]);
        let options = ListContainersOptionsBuilder::new().filters(&filter).build();
        let found = self.engine.list_containers(Some(options)).await.unwrap();
        let id = found[0].id.clone().unwrap();
        let inspected = self
            .engine
            .inspect_container(&id, None::<InspectContainerOptions>)
            .await;
        inspected.unwrap()
    }

    /// Names of images that are an artifact's.
    async fn images(&self, key: &str) -> usize {
        let options = ListImagesOptionsBuilder::new().build();
        let found = self.engine.list_images(Some(options)).await.unwrap();
        let names = found.into_iter().flat_map(|image| image.repo_tags);
        names.filter(|name| name.ends_with(&format!(":{key}"))).count()
    }
}

fn static_busybox() -> Option<PathBuf> {
    // Debian's `busybox` proper needs libc.
    let usual = PathBuf::from("/bin/busybox");
    let done = std::process::Command::new("ldd").arg(&usual).output().ok()?;
    (usual.is_file() && !done.status.success()).then_some(usual)
}

/// Stands by and takes over.
async fn replace(backend: &Backend, launch: &Launch, log: &Log) -> RunningAgent {
    let never = CancellationToken::new();
    let standby = backend.stand_by(launch, log, &never).await.unwrap();
    backend.replace(launch, standby, log, &never).await.unwrap()
}

fn launch(plan: &str, deployment: DeploymentId) -> Launch {
    Launch {
        deployment,
        revision: RevisionId::new(),
        artifact: plan.to_owned(),
        variables: vec![("SECRET".to_owned(), Secret::new("hunter2hunter2"))],
        cpus: Some(64.0),
        memory_mb: Some(64),
    }
}

async fn get_ok(address: &str) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let Ok(mut stream) = tokio::net::TcpStream::connect(address).await else {
        return false;
    };
    stream.write_all(b"GET /ok HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.contains(" 200 ")
}

#[tokio::test]
async fn a_tree_becomes_an_image_that_serves_and_goes() {
    let Some(dock) = DockerFixture::find().await else {
        return;
    };
    let (backend, never) = (dock.backend(Network::Bridge), CancellationToken::new());
    let (log, said) = lines();
    let config = r#"{"graphs": {"a": "./a.py:a"}, "dockerfile_lines": ["RUN echo a line of the author"]}"#;
    let plan = dock.fetched(config, 'a');
    let key = plan.key();
    let artifact = Artifact::of(&dock.home.root, &key).unwrap();
    assert!(!backend.has(&artifact).await.unwrap());
    dock.build(&backend, &plan, &log, &never).await.unwrap();
    assert!(backend.has(&artifact).await.unwrap());
    let told = said.lock().unwrap().join("\n");
    for line in ["a line of the author", "preparing in /deps/source/apps/one"] {
        assert!(told.contains(line), "{line} is not in\n{told}");
    }

    let deployment = DeploymentId::new();
    backend.check(&launch(&key, deployment), &log, &never).await.unwrap();
    assert!(dock.containers().await.is_empty(), "the check left something");
    let first = replace(&backend, &launch(&key, deployment), &log).await;
    assert!(get_ok(&first.address).await);
    let found = dock.container_of(deployment).await;
    let host = found.host_config.unwrap();
    assert_eq!(host.memory, Some(64 << 20));
    assert!(host.nano_cpus.unwrap() > 0, "more CPUs than there are were not cut");
    let labels = found.config.unwrap().labels.unwrap();
    assert_eq!(labels["dev.towpath.revision"], first.revision.to_string());

    // What is in the volume outlives the container.
    let second = replace(&backend, &launch(&key, deployment), &log).await;
    assert_ne!(first.revision, second.revision);
    assert!(get_ok(&second.address).await && !get_ok(&first.address).await);
    assert_eq!(dock.containers().await.len(), 1);
    assert!(
        dock.engine
            .inspect_volume(&format!("towpath-{deployment}"))
            .await
            .is_ok()
    );

    backend.remove(deployment).await.unwrap();
    assert!(dock.containers().await.is_empty());
    assert!(
        dock.engine
            .inspect_volume(&format!("towpath-{deployment}"))
            .await
            .is_err()
    );
    assert_eq!(dock.images(&key).await, 1);
    artifact.remove().unwrap();
    backend.sweep().await.unwrap();
    assert_eq!(dock.images(&key).await, 0);
}

#[tokio::test]
async fn a_build_that_fails_or_is_interrupted_leaves_nothing() {
    let Some(dock) = DockerFixture::find().await else {
        return;
    };
    let backend = dock.backend(Network::Bridge);
    let (log, said) = lines();
    let broken = dock.fetched(
        r#"{"graphs": {"a": "x"}, "dockerfile_lines": ["RUN echo why && false"]}"#,
        'b',
    );
    let failed = dock.build(&backend, &broken, &log, &CancellationToken::new()).await;
    let Err(Error::Refused(text)) = failed else {
        panic!("{failed:?}")
    };
    assert!(text.contains("returned a non-zero code: 1"), "{text}");
    assert!(log.tail().iter().any(|line| line == "why"), "{:?}", log.tail());

    let endless = dock.fetched(
        r#"{"graphs": {"a": "x"}, "dockerfile_lines": ["RUN echo begun && sleep 600"]}"#,
        'c',
    );
    let cancel = CancellationToken::new();
    let begun = async {
        while !said.lock().unwrap().iter().any(|line| line == "begun") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        cancel.cancel();
    };
    let (interrupted, ()) = tokio::join!(dock.build(&backend, &endless, &log, &cancel), begun);
    assert!(matches!(interrupted, Err(Error::Cancelled)), "{interrupted:?}");
    for plan in [broken, endless] {
        assert_eq!(dock.images(&plan.key()).await, 0);
    }
}

#[tokio::test]
async fn what_an_earlier_life_left_is_removed_and_nothing_else() {
    let Some(dock) = DockerFixture::find().await else {
        return;
    };
    let Some(other) = DockerFixture::find().await else {
        return;
    };
    let never = CancellationToken::new();
    let mut kept = Vec::new();
    for dock in [&dock, &other] {
        let backend = dock.backend(Network::Host);
        let plan = dock.fetched(r#"{"graphs": {"a": "x"}}"#, 'd');
        dock.build(&backend, &plan, &Log::none(), &never).await.unwrap();
        let deployment = DeploymentId::new();
        let launch = launch(&plan.key(), deployment);
        let state = replace(&backend, &launch, &Log::none()).await;
        assert!(get_ok(&state.address).await);
        kept.push((backend, deployment, plan.key()));
    }
    // Its own are no orphans.
    kept[0].0.end_leftovers().await.unwrap();
    assert_eq!(dock.containers().await.len(), 1);
    // As a process that was killed leaves them.
    let next = dock.backend(Network::Host);
    next.end_leftovers().await.unwrap();
    assert!(dock.containers().await.is_empty());
    assert_eq!(other.containers().await.len(), 1);
    // A caller that held it hears of it.
    tokio::time::timeout(Duration::from_secs(10), kept[0].0.ended())
        .await
        .unwrap();
    assert_eq!(kept[0].0.state(kept[0].1), None);
    for (dock, (backend, deployment, key)) in [&dock, &other].into_iter().zip(&kept) {
        backend.remove(*deployment).await.unwrap();
        Artifact::of(&dock.home.root, key).unwrap().remove().unwrap();
        backend.sweep().await.unwrap();
        assert!(dock.containers().await.is_empty());
    }
}

#[tokio::test]
async fn an_image_is_started_as_its_author_made_it() {
    let Some(dock) = DockerFixture::find().await else {
        return;
    };
    let (backend, never) = (dock.backend(Network::Bridge), CancellationToken::new());
    let (log, said) = lines();
    let gone = backend.pull("towpath-test-no-such-image:1", &[], &log, &never).await;
    assert!(matches!(gone, Err(Error::Refused(_) | Error::Transient(_))), "{gone:?}");
    // No registry has it: the one that is here serves.
    let pulled = backend.pull(BASE, &[], &log, &never).await.unwrap();
    assert!(!pulled.is_ours);
    let told = said.lock().unwrap().join("\n");
    assert!(told.contains("using the local image"), "{told}");
    let key = backend.record_image(&dock.home.root, BASE, &pulled).await.unwrap();
    let artifact = Artifact::of(&dock.home.root, &key).unwrap();
    assert!(backend.has(&artifact).await.unwrap());
    // It has nothing to run, and the reason says so.
    let failed = backend.check(&launch(&key, DeploymentId::new()), &log, &never).await;
    let Err(Error::Refused(text)) = failed else {
        panic!("{failed:?}")
    };
    assert!(text.contains("No command specified"), "{text}");
    assert!(dock.containers().await.is_empty());
    artifact.remove().unwrap();
    backend.sweep().await.unwrap();
    assert_eq!(dock.images(&key).await, 0);
    assert!(
        dock.engine.inspect_image(BASE).await.is_ok(),
        "somebody else's image is gone"
    );
}
