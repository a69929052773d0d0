//! Precedence, provenance, unknown names and redaction.

use std::path::PathBuf;

use super::keys;
use super::*;

fn flag(key: &'static str, value: &str) -> Flag {
    Flag {
        key,
        name: "--test",
        value: value.to_owned(),
    }
}

fn inputs() -> Inputs {
    Inputs::isolated(Mode::Dev, Vec::new())
}

fn set(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// The file exists as long as its folder.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("towpath.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn origin(config: &Config, key: &str) -> Origin {
    config
        .resolved
        .iter()
        .find(|value| value.key.name == key)
        .unwrap()
        .origin
        .clone()
}

fn problems(inputs: &Inputs) -> Vec<String> {
    Config::load(inputs).unwrap_err().0
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let (_folder, path) = file("listen = \"127.0.0.1:3\"\n");
    let mut inputs = inputs();
    assert_eq!(Config::load(&inputs).unwrap().settings.listen.port(), 8400);
    inputs.file = Some(path.clone());
    let config = Config::load(&inputs).unwrap();
    assert_eq!(config.settings.listen.port(), 3);
    assert_eq!(origin(&config, "listen"), Origin::File { path, line: 1 });
    inputs.environment = set(&[("TOWPATH_LISTEN", "127.0.0.1:2")]);
    let config = Config::load(&inputs).unwrap();
    assert_eq!(config.settings.listen.port(), 2);
    assert_eq!(origin(&config, "listen"), Origin::Environment("TOWPATH_LISTEN".into()));
    inputs.flags = vec![flag("listen", "127.0.0.1:1")];
    let config = Config::load(&inputs).unwrap();
    assert_eq!(config.settings.listen.port(), 1);
    assert_eq!(origin(&config, "listen"), Origin::Flag("--test"));
}

#[test]
fn variables_of_the_official_server_are_an_address_unless_another_is_set() {
    let (_folder, path) = file("listen = \"127.0.0.1:3\"\n");
    let mut inputs = Inputs::isolated(Mode::Agent, Vec::new());
    let listen = |inputs: &Inputs| Config::load(inputs).unwrap().settings.listen.to_string();
    assert_eq!(listen(&inputs), "127.0.0.1:8123");
    for (pairs, expected) in [
        (&[("PORT", "8000")][..], "127.0.0.1:8000"),
        (
            &[("LANGGRAPH_SERVER_HOST", "0.0.0.0"), ("PORT", "8000")],
            "0.0.0.0:8000",
        ),
        (&[("LANGGRAPH_SERVER_HOST", "::1")], "[::1]:8123"),
        (&[("PORT", "8000"), ("TOWPATH_LISTEN", "127.0.0.1:2")], "127.0.0.1:2"),
    ] {
        inputs.environment = set(pairs);
        assert_eq!(listen(&inputs), expected, "{pairs:?}");
    }
    inputs.environment = set(&[("LANGGRAPH_SERVER_HOST", "everywhere"), ("PORT", "8000")]);
    let config = Config::load(&inputs).unwrap();
    assert_eq!(config.settings.listen.to_string(), "127.0.0.1:8000");
    assert_eq!(origin(&config, "listen"), Origin::Environment("PORT".into()));
    let warned = |text: &String| text.contains("LANGGRAPH_SERVER_HOST") && text.contains("everywhere");
    assert!(config.warnings.iter().any(warned), "{:?}", config.warnings);
    inputs.file = Some(path);
    assert_eq!(listen(&inputs), "127.0.0.1:3");
    // For `towpath dev` they are those of other programs.
    inputs = Inputs::isolated(Mode::Dev, Vec::new());
    inputs.environment = set(&[("PORT", "8000")]);
    assert_eq!(listen(&inputs), "127.0.0.1:8400");
}

#[test]
fn what_lies_below_the_data_folder_follows_it() {
    let mut inputs = inputs();
    inputs.flags = vec![flag("data_dir", "/srv/towpath")];
    let settings = Config::load(&inputs).unwrap().settings;
    assert_eq!(settings.database_uri.reveal(), "sqlite:///srv/towpath/towpath.db");
    assert_eq!(settings.objects, "file:///srv/towpath/objects");
    assert_eq!(settings.file_root, PathBuf::from("/srv/towpath/exports"));
}

#[test]
fn roles_have_ports_of_their_own() {
    let port = |mode| {
        Config::load(&Inputs::isolated(mode, Vec::new()))
            .unwrap()
            .settings
            .listen
            .port()
    };
    assert_eq!(
        [port(Mode::Api), port(Mode::Worker), port(Mode::Scheduler)],
        [8400, 8401, 8402]
    );
}

#[test]
fn roles_have_connections_of_their_own() {
    let connections = |mode, pairs: &[(&str, &str)]| {
        let mut inputs = Inputs::isolated(mode, Vec::new());
        inputs.environment = set(pairs);
        let config = Config::load(&inputs).unwrap();
        let shown = config
            .resolved
            .iter()
            .find(|value| value.key.name == "database_connections");
        let shown = shown.and_then(ResolvedSetting::redacted).unwrap();
        assert_eq!(shown, config.settings.database_connections.to_string());
        config.settings.database_connections
    };
    assert_eq!(
        [Mode::Dev, Mode::Agent, Mode::Api, Mode::Worker, Mode::Scheduler].map(|mode| connections(mode, &[])),
        [16, 16, 16, 6, 6]
    );
    let many = [("N_JOBS_PER_WORKER", "20")];
    assert_eq!(connections(Mode::Worker, &many), 8);
    assert_eq!(connections(Mode::Scheduler, &many), 6, "it performs no jobs");
    let given = [("N_JOBS_PER_WORKER", "20"), ("TOWPATH_DATABASE_CONNECTIONS", "5")];
    assert_eq!(connections(Mode::Worker, &given), 5);
    assert_eq!(connections(Mode::Api, &given), 5);
}

#[test]
fn only_dev_lends_its_own_credentials() {
    let lends = |mode| {
        Config::load(&Inputs::isolated(mode, Vec::new()))
            .unwrap()
            .settings
            .environment_credentials
    };
    assert_eq!(
        [lends(Mode::Dev), lends(Mode::Api), lends(Mode::Worker)],
        [true, false, false]
    );
}

#[test]
fn aliases_give_way_to_the_name_before_them() {
    let mut inputs = inputs();
    inputs.environment = set(&[("POSTGRES_URI", "postgres://b/b"), ("DATABASE_URI", "postgres://a/a")]);
    let config = Config::load(&inputs).unwrap();
    assert_eq!(config.settings.database_uri.reveal(), "postgres://a/a");
    inputs.environment = set(&[("POSTGRES_URI", "postgres://b/b"), ("DATABASE_URI", "")]);
    let config = Config::load(&inputs).unwrap();
    assert_eq!(
        config.settings.database_uri.reveal(),
        "postgres://b/b",
        "an empty variable is not set"
    );
}

#[test]
fn the_derived_name_wins_over_names_that_other_programs_use() {
    let mut inputs = inputs();
    inputs.environment = set(&[
        ("DATABASE_URI", "postgres://other/other"),
        ("TOWPATH_DATABASE_URI", "postgres://own/own"),
    ]);
    let config = Config::load(&inputs).unwrap();
    assert_eq!(config.settings.database_uri.reveal(), "postgres://own/own");
    assert_eq!(
        origin(&config, "database_uri"),
        Origin::Environment("TOWPATH_DATABASE_URI".into())
    );
    for key in keys::all() {
        let names: Vec<String> = key.environment_names().collect();
        assert_eq!(names.first(), Some(&key.derived_environment_name()), "{}", key.name);
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{}: {names:?}", key.name);
    }
}

#[test]
fn every_key_has_a_name_in_the_environment() {
    let mut inputs = inputs();
    inputs.environment = set(&[("TOWPATH_ENGINE_LEASE_SECONDS", "3"), ("N_JOBS_PER_WORKER", "7")]);
    let config = Config::load(&inputs).unwrap();
    assert_eq!(config.settings.lease.as_secs(), 3);
    assert_eq!(config.settings.slots, Some(7));
    assert_eq!(config.warnings, Vec::<String>::new());
}

#[test]
fn switches_of_tests_are_known() {
    let mut inputs = inputs();
    inputs.environment = set(&[
        ("TOWPATH_FAILPOINT", "step.before_record"),
        ("TOWPATH_CLOCK_OFFSET_FILE", "/tmp/offset"),
    ]);
    assert_eq!(Config::load(&inputs).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn unknown_keys_of_the_file_are_errors_that_say_what_was_meant() {
    let (_folder, path) = file("# first\nlissten = \"127.0.0.1:1\"\n[exports]\nfile_rot = \"x\"\n[nonsense]\na = 1\n");
    let mut inputs = inputs();
    inputs.file = Some(path.clone());
    let at = |line: usize, text: &str| format!("{}:{line}: {text}", path.display());
    let mut found = problems(&inputs);
    found.sort();
    let mut expected = [
        at(2, "unknown key lissten; did you mean listen?"),
        at(4, "unknown key exports.file_rot; did you mean exports.file_root?"),
        at(5, "unknown key nonsense"),
    ];
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn renamed_settings_are_refused_with_their_new_names() {
    let (_folder, path) = file("[ingest]\nfold_delay_ms = 1\n");
    let mut inputs = inputs();
    inputs.file = Some(path.clone());
    inputs.environment = set(&[
        ("TOWPATH_DISK_LEAST_FREE_MB", "1"),
        ("TOWPATH_SANDBOXES_MOST_PER_WORKSPACE", ""),
    ]);
    let expected = [
        "environment variable TOWPATH_DISK_LEAST_FREE_MB is now TOWPATH_DISK_MIN_FREE_MB: rename it".to_owned(),
        format!(
            "{}:2: ingest.fold_delay_ms is now ingest.flush_delay_ms: rename it",
            path.display()
        ),
    ];
    assert_eq!(problems(&inputs), expected);
    for (old, new) in keys::RENAMED {
        assert!(keys::all().all(|key| key.name != old), "{old} is a setting");
        assert!(keys::all().any(|key| key.name == new), "{new} is none");
    }
}

#[test]
fn a_file_that_is_no_toml_names_its_line() {
    let (_folder, path) = file("listen = \"127.0.0.1:1\"\nworkers = = 3\n");
    let mut inputs = inputs();
    inputs.file = Some(path.clone());
    let found = problems(&inputs);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with(&format!("{}:2: ", path.display())), "{}", found[0]);
}

#[test]
fn lists_and_numbers_of_the_file_are_read() {
    let (_folder, path) = file(
        "[workers]\nslots = 3\npool_slots = [\"exports=2\", \"flushes=1\"]\n[outbound]\nallow = [\"10.0.0.0/8\", \"minio:9000\"]\n",
    );
    let mut inputs = inputs();
    inputs.file = Some(path);
    let settings = Config::load(&inputs).unwrap().settings;
    let slots = ["exports", "flushes", "sweeps", "agent"].map(|pool| settings.slots_of(pool));
    assert_eq!(slots, [2, 1, 3, 3]);
    assert_eq!(settings.outbound_allow.len(), 2);
}

#[test]
fn runs_of_agents_get_more_slots_where_they_share_a_process() {
    let settings = Config::load(&inputs()).unwrap().settings;
    assert_eq!((settings.slots_of("agent"), settings.slots_of("exports")), (64, 10));
    let mut inputs = inputs();
    inputs.environment = set(&[("TOWPATH_AGENT_ISOLATION", "process")]);
    let settings = Config::load(&inputs).unwrap().settings;
    assert_eq!(settings.slots_of("agent"), 10);
}

#[test]
fn unknown_names_in_the_environment_are_warnings() {
    let mut inputs = inputs();
    inputs.environment = set(&[
        ("TOWPATH_LISTN", "x"),
        ("TOWPATH_SERVICE_HOST", "10.0.0.1"),
        ("TOWPATH_PORT_8400_TCP", "tcp://10.0.0.1:8400"),
        ("TOWPATH_TEST_POSTGRES", "postgres://…"),
        ("HOME", "/home/somebody"),
    ]);
    let config = Config::load(&inputs).unwrap();
    assert_eq!(
        config.warnings,
        ["environment variable TOWPATH_LISTN is not a setting; did you mean TOWPATH_LISTEN?"]
    );
}

#[test]
fn names_of_keys_in_redis_begin_with_any_visible_characters() {
    let mut inputs = inputs();
    for (set_to, expected) in [
        ("towpath", "towpath:"),
        ("{app}:", "{app}:"),
        ("_app", "_app:"),
        ("app/one", "app/one:"),
    ] {
        inputs.environment = set(&[("REDIS_KEY_PREFIX", set_to)]);
        assert_eq!(Config::load(&inputs).unwrap().settings.redis_prefix, expected);
    }
    for wrong in ["a b", "é", "x".repeat(101).as_str()] {
        inputs.environment = set(&[("REDIS_KEY_PREFIX", wrong)]);
        let found = problems(&inputs);
        assert!(
            found[0].starts_with("redis_prefix: expected 1 to 100 visible ASCII characters"),
            "{found:?}"
        );
    }
    inputs.environment = set(&[("METRIC_PREFIX", "my_api_")]);
    assert_eq!(Config::load(&inputs).unwrap().settings.agent.metric_prefix, "my_api_");
    inputs.environment = set(&[("METRIC_PREFIX", "my-api")]);
    assert!(problems(&inputs)[0].starts_with("agent.metric_prefix: expected letters"));
}

#[test]
fn fewer_connections_to_redis_than_a_process_opens_are_refused() {
    let mut inputs = inputs();
    let redis = ("REDIS_URI", "redis://127.0.0.1/");
    let directed = ("TOWPATH_QUEUE_DISPATCH", "directed");
    let limits = ("TOWPATH_LIMITS", "us");
    for (pairs, needed) in [
        (&[redis][..], 3),
        (&[redis, directed], 4),
        (&[redis, limits], 4),
        (&[redis, directed, limits], 5),
    ] {
        for most in [needed - 1, needed] {
            let most = most.to_string();
            inputs.environment = set(&[pairs, &[("REDIS_MAX_CONNECTIONS", most.as_str())]].concat());
            match Config::load(&inputs) {
                Ok(config) => assert_eq!(config.settings.redis_connections, Some(needed)),
                Err(Problems(found)) => assert!(
                    most != needed.to_string() && found[0].contains(&format!("at least {needed}")),
                    "{pairs:?} {most}: {found:?}"
                ),
            }
        }
    }
    inputs.environment = set(&[("REDIS_MAX_CONNECTIONS", "1")]);
    assert!(Config::load(&inputs).is_ok(), "without Redis there are none");
}

#[test]
fn every_wrong_value_is_named_with_its_origin() {
    let mut inputs = inputs();
    inputs.environment = set(&[
        ("TOWPATH_LISTEN", "8400"),
        ("N_JOBS_PER_WORKER", "0"),
        ("TOWPATH_API_KEY", "short"),
    ]);
    assert_eq!(
        problems(&inputs),
        [
            "listen: expected an address such as 127.0.0.1:8400, got \"8400\" (environment TOWPATH_LISTEN)",
            "api_key: expected at least 32 characters, got \"***\" (environment TOWPATH_API_KEY)",
            "workers.slots: expected a whole number from 1 to 4096, got \"0\" (environment N_JOBS_PER_WORKER)",
        ]
    );
}

#[test]
fn secrets_are_not_shown() {
    let key = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let mut inputs = inputs();
    inputs.environment = set(&[
        (
            "DATABASE_URI",
            "postgres://towpath:hunter2@db:5432/towpath?sslmode=require&sslpassword=hunter3",
        ),
        ("REDIS_URI", "redis://:hunter4@cache:6379/0"),
        ("TOWPATH_ENCRYPTION_KEY", key),
        ("TOWPATH_API_KEY", key),
    ]);
    let config = Config::load(&inputs).unwrap();
    let shown: Vec<String> = config.resolved.iter().filter_map(ResolvedSetting::redacted).collect();
    for secret in ["hunter2", "hunter3", "hunter4", key] {
        assert!(!shown.iter().any(|text| text.contains(secret)), "{shown:?}");
        assert!(
            !format!("{:?}", config.settings).contains(secret),
            "settings print a secret"
        );
    }
    assert!(
        shown
            .iter()
            .any(|text| text.starts_with("postgres://towpath:***@db:5432/towpath?sslmode=require"))
    );
    assert!(config.settings.encryption_key.is_some());
}

#[test]
fn the_reference_lists_every_key() {
    let reference = include_str!("../../../../docs/configuration.md");
    for key in keys::all() {
        assert!(
            reference.contains(&format!("| `{}` |", key.name)),
            "docs/configuration.md lacks {}",
            key.name
        );
        for name in key.environment {
            assert!(
                reference.contains(&format!("`{name}`")),
                "docs/configuration.md lacks {name}"
            );
        }
    }
    let rows = reference.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(
        rows,
        keys::all().count(),
        "docs/configuration.md has a row for something that is no setting"
    );
}
