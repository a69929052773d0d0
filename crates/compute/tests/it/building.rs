use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use towpath_compute::artifact::{self, Artifact, BuiltArtifact, Origin, Plan, Stage};
use towpath_compute::build::{Settings, build};
use towpath_compute::tree::Limits;
use towpath_compute::{Isolation, Log, Result};
use towpath_domain::Secret;
use towpath_domain::git::CommitSha;

use crate::fixture::{TestRoot, lines, path, write};

const GRAPHS: &str = r#"{"graphs": {"agent": {"native": "echo"}}}"#;

fn plan(config: &str, install: Option<&str>, command: Option<&str>) -> Plan {
    Plan {
        origin: Origin::Git {
            url: "https://example.org/x".into(),
            name: "main".into(),
            sha: CommitSha::parse(&"a".repeat(40)).unwrap(),
        },
        config: config.into(),
        install: install.map(str::to_owned),
        build: command.map(str::to_owned),
    }
}

fn fetched(home: &TestRoot, plan: &Plan, files: &[(&str, &str)]) -> Artifact {
    let artifact = Artifact::of(&home.root, &plan.key()).unwrap();
    artifact.begin().unwrap();
    for (path, text) in files {
        write(&artifact.source().join(path), text);
    }
    artifact.fetched().unwrap();
    artifact
}

async fn built(home: &TestRoot, artifact: &Artifact, plan: &Plan, log: &Log) -> Result<BuiltArtifact> {
    built_within(home, Limits::default(), artifact, plan, log).await
}

async fn built_within(
    home: &TestRoot,
    tree: Limits,
    artifact: &Artifact,
    plan: &Plan,
    log: &Log,
) -> Result<BuiltArtifact> {
    let settings = Settings {
        path: path(),
        limit: Duration::from_secs(30),
        tree,
        variables: BTreeMap::from([("HTTPS_PROXY".to_owned(), Secret::new("http://proxy"))]),
        launcher: PathBuf::new(),
        isolation: Isolation::default(),
    };
    build(&settings, &home.root, artifact, plan, log, &CancellationToken::new()).await
}

#[tokio::test]
async fn commands_run_where_they_belong() {
    let home = TestRoot::new();
    let plan = plan(
        "app/langgraph.json",
        Some("touch installed"),
        Some("cp -v ../installed ./copied"),
    );
    let artifact = fetched(&home, &plan, &[("app/langgraph.json", GRAPHS)]);
    assert_eq!(artifact.stage(), Stage::Fetched);
    let (log, kept) = lines();
    built(&home, &artifact, &plan, &log).await.unwrap();
    assert_eq!(artifact.stage(), Stage::Built);
    // At the top of the tree, and in the folder of the configuration.
    assert!(artifact.source().join("app/copied").is_file());
    let kept = kept.lock().unwrap();
    assert_eq!(kept[0], "$ touch installed");
    assert!(kept.iter().any(|line| line.contains("copied")), "{kept:?}");
}

#[tokio::test]
async fn what_a_build_does_not_do_is_said() {
    let home = TestRoot::new();
    let plan = plan("langgraph.json", None, None);
    let config = r#"{"graphs": {"agent": {"native": "echo"}}, "dockerfile_lines": ["RUN x"], "base_image": null,
                     "pip_installer": "pip"}"#;
    let artifact = fetched(&home, &plan, &[("langgraph.json", config)]);
    let (log, kept) = lines();
    built(&home, &artifact, &plan, &log).await.unwrap();
    let said = "graph configuration: ignored in this build: pip_installer, dockerfile_lines";
    let kept = kept.lock().unwrap();
    assert!(kept.iter().any(|line| line == said), "{kept:?}");
}

#[tokio::test]
async fn a_build_that_fails_says_why_and_is_none() {
    let home = TestRoot::new();
    for (files, install, told) in [
        (
            vec![("langgraph.json", GRAPHS)],
            Some("ls no-such-file"),
            "install_command `ls no-such-file` exited with code",
        ),
        (
            vec![("langgraph.json", GRAPHS)],
            Some("no-such-program"),
            "this machine has no program",
        ),
        (
            vec![("langgraph.json", GRAPHS)],
            Some("touch a; id"),
            "install_command must be one command of plain words",
        ),
        (
            vec![("langgraph.json", GRAPHS)],
            Some("ln -s /etc/passwd leak"),
            "the link leak leads out of the source",
        ),
        (
            vec![("other.json", GRAPHS)],
            None,
            "graph_config_path: the source has no file langgraph.json",
        ),
        (
            vec![("langgraph.json", "{")],
            None,
            "graph_config_path: langgraph.json is not JSON",
        ),
        (
            vec![("langgraph.json", "{\"graphs\": {}}")],
            None,
            "graph_config_path: langgraph.json declares no graphs",
        ),
        (
            vec![("langgraph.json/x", "")],
            None,
            "graph_config_path: langgraph.json is not a file",
        ),
    ] {
        let plan = plan("langgraph.json", install, None);
        let artifact = fetched(&home, &plan, &files);
        let log = Log::none();
        let failed = built(&home, &artifact, &plan, &log).await.unwrap_err();
        assert!(failed.to_string().starts_with(told), "{failed}");
        assert!(!failed.is_transient(), "{failed}");
        assert_ne!(artifact.stage(), Stage::Built, "{told}");
    }
}

#[test]
fn names_of_artifacts_say_what_they_are() {
    let one = plan("langgraph.json", None, None);
    let mut same = one.clone();
    if let Origin::Git { name, .. } = &mut same.origin {
        *name = "refs/tags/v1".into();
    }
    // Found by another name, it is the same commit.
    assert_eq!(one.key(), same.key());
    let others = [
        plan("other.json", None, None),
        plan("langgraph.json", Some(""), None),
        plan("langgraph.json", Some("a"), None),
        plan("langgraph.json", None, Some("a")),
    ];
    let keys: std::collections::HashSet<String> = others.iter().chain([&one]).map(Plan::key).collect();
    assert_eq!(keys.len(), 5);
}

#[tokio::test]
async fn what_nothing_needs_goes() {
    let home = TestRoot::new();
    let (keep, go) = (plan("langgraph.json", None, None), plan("x/langgraph.json", None, None));
    let kept = fetched(&home, &keep, &[("langgraph.json", GRAPHS)]);
    let gone = fetched(&home, &go, &[("x/langgraph.json", GRAPHS)]);
    // Used just now: a caller may be about to start it.
    assert_eq!(artifact::idle(&home.root, &[keep.key()], 1).unwrap(), [""; 0]);
    assert_eq!(artifact::idle(&home.root, &[keep.key()], 0).unwrap(), [go.key()]);
    gone.remove().unwrap();
    assert_eq!((kept.stage(), gone.stage()), (Stage::Fetched, Stage::Absent));
    // Removed again, it is gone all the same.
    gone.remove().unwrap();
}

/// A removal that breaks off at any moment leaves nothing that counts.
#[tokio::test]
async fn an_artifact_goes_in_one_step() {
    let home = TestRoot::new();
    let plan = plan("langgraph.json", None, None);
    let artifact = fetched(&home, &plan, &[("langgraph.json", GRAPHS)]);
    built(&home, &artifact, &plan, &Log::none()).await.unwrap();
    let removal = artifact.begin_removal().unwrap().expect("it is there");
    assert_eq!(artifact.stage(), Stage::Absent);
    assert!(!artifact.source().exists(), "its files are still in their place");
    removal.finish().unwrap();
    assert!(artifact.begin_removal().unwrap().is_none());
}

#[tokio::test]
async fn a_tree_that_a_failed_build_changed_is_fetched_again() {
    let home = TestRoot::new();
    let plan = plan("langgraph.json", Some("mkdir dist"), Some("ls no-such-file"));
    let artifact = fetched(&home, &plan, &[("langgraph.json", GRAPHS)]);
    built(&home, &artifact, &plan, &Log::none()).await.unwrap_err();
    assert!(!artifact.is_fetched(), "its leftovers count as what was fetched");
    assert_eq!(artifact.stage(), Stage::Absent);
}

#[tokio::test]
async fn what_programs_keep_in_home_is_bounded_and_goes() {
    let home = TestRoot::new();
    let small = Limits {
        bytes: 1 << 20,
        ..Limits::default()
    };
    let plan = plan("langgraph.json", Some("sh fill.sh"), None);
    let fill = async |script: &str| {
        let artifact = fetched(&home, &plan, &[("langgraph.json", GRAPHS), ("fill.sh", script)]);
        let built = built_within(&home, small, &artifact, &plan, &Log::none()).await;
        assert_eq!(home.scratch(), 0, "caches stay: {script}");
        let beside = std::fs::read_dir(artifact.source().parent().unwrap()).unwrap();
        assert!(beside.count() <= 2, "caches stay with the artifact: {script}");
        built
    };
    fill("mkdir -p $HOME/cache/x && chmod 500 $HOME/cache").await.unwrap();
    let large = fill("head -c 4000000 /dev/zero > $HOME/large; sleep 600").await;
    assert_eq!(large.unwrap_err().to_string(), "it is larger than 1 MB");
}

/// Trouble of the machine, not of who deploys: it is retried.
#[tokio::test]
async fn a_build_leaves_room_on_the_disk() {
    let home = TestRoot::new();
    let full = Limits {
        free: u64::MAX,
        ..Limits::default()
    };
    let plan = plan("langgraph.json", Some("touch made"), None);
    let artifact = fetched(&home, &plan, &[("langgraph.json", GRAPHS)]);
    let refused = built_within(&home, full, &artifact, &plan, &Log::none()).await;
    let refused = refused.unwrap_err();
    assert!(refused.is_transient(), "{refused}");
    assert!(refused.to_string().contains("MB left"), "{refused}");
    assert!(artifact.is_fetched(), "nothing has changed it");
}
