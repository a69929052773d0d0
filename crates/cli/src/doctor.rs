//! `towpath doctor`: checks everything this installation needs and reports problems. It only creates, and removes
//! again, a trial file in the folder of objects, a sandbox in a trial folder of the data folder and, as root, another
//! trial folder there.

mod deployment_keeper;
mod drained_workers;
mod findings;
mod item_index;
mod limits;
mod sandbox_nodes;
mod sandboxes;
mod secrets;
mod tls;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use comfy_table::{Table, presets};
use serde_json::Value;
use towpath_domain::Clock;
use towpath_queue::{Queue, State};
use towpath_store::{Dialect, Options, Store, deployments, jobs, migrations, quarantine};
use towpath_traces::objects::Objects;

use self::findings::{Findings, Verdict};
use crate::arguments::remote::ServerOptions;
use crate::arguments::{Doctor, Output};
use crate::config::{Config, DeploymentBackend, Mode, Problems, Settings};
use crate::data_dir;
use crate::remote::{Client, print};
use crate::wiring;

/// A dependency that takes longer counts as unavailable.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The command that lists the quarantine.
const QUARANTINE: &str = "towpath traces quarantine ls";
/// Maximum number of deployments that a finding lists.
const MAX_LISTED: i64 = 20;
/// Larger clock differences are reported. Leases and due times use the clock of the database only.
const SKEW: Duration = Duration::from_secs(2);

/// Exit code 1 if a check failed, or 2 if the settings are invalid.
pub async fn run(command: Doctor) -> anyhow::Result<()> {
    let mode = Mode::from(command.command_of);
    let mut findings = Findings::default();
    let config = match Config::load(&command.common.inputs(mode, Vec::new())) {
        Ok(config) => config,
        Err(Problems(problems)) => {
            for problem in &problems {
                findings.add("settings", Verdict::Failed, problem);
            }
            print(&findings, command.output)?;
            return Err(Problems(vec!["the settings cannot be used".to_owned()]).into());
        }
    };
    match &config.warnings[..] {
        [] => findings.add(
            "settings",
            Verdict::Ok,
            "valid; towpath config show prints each with its origin",
        ),
        warnings => warnings
            .iter()
            .for_each(|text| findings.add("settings", Verdict::Warning, text)),
    }
    let settings = &config.settings;
    let server = server(settings, &mut findings).await;
    if let Some(url) = &command.server {
        match readiness(http(false), url).await {
            Some(answer) => findings.server(url, &answer),
            None => findings.add("server", Verdict::Failed, format!("no towpath server answers at {url}")),
        }
    }
    tls::check(settings, &mut findings);
    let holder = folder(settings, &mut findings);
    keys(settings, &mut findings);
    limits::check(settings, &mut findings);
    database(settings, holder, &mut findings).await;
    match (holder, server) {
        (true, true) => quarantine_of_server(settings, &mut findings).await,
        (true, false) => {
            let text = format!("the process above uses its database; see {QUARANTINE} --server URL");
            findings.add("quarantine", Verdict::Skipped, text);
        }
        (false, _) => {}
    }
    redis(settings, &mut findings).await;
    objects(&config, server, &mut findings).await;
    git(settings, &mut findings).await;
    isolation(&config, &mut findings);
    sandboxes::check(settings, &mut findings).await;
    print(&findings, command.output)?;
    let failed = findings
        .0
        .iter()
        .filter(|finding| finding.verdict == Verdict::Failed)
        .count();
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}

fn print(findings: &Findings, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        println!("{}", serde_json::to_string_pretty(&findings.0)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for finding in &findings.0 {
        let verdict = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failed => "FAILED",
            Verdict::Skipped => "skipped",
        };
        table.add_row([verdict, finding.check, &finding.text]);
    }
    println!("{table}");
    Ok(())
}

/// Whether a towpath server answers at the configured address, and its state.
async fn server(settings: &Settings, findings: &mut Findings) -> bool {
    let address = settings.listen;
    if TcpListener::bind(address).is_ok() {
        findings.add("port", Verdict::Ok, format!("{address} is free; no server runs there"));
        return false;
    }
    // The certificate may be for another address; nothing secret is sent.
    let url = format!("{}://{address}", settings.scheme());
    let Some(answer) = readiness(http(true), &url).await else {
        let text = format!("{address} is in use or not available, and no towpath server answers there");
        findings.add("port", Verdict::Failed, text);
        return false;
    };
    findings.server(&address.to_string(), &answer);
    true
}

fn http(any_certificate: bool) -> Option<reqwest::Client> {
    let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT);
    client.danger_accept_invalid_certs(any_certificate).build().ok()
}

/// The readiness report of the server at `url`; `None` if no towpath server answers there.
async fn readiness(http: Option<reqwest::Client>, url: &str) -> Option<Value> {
    let asked = http?
        .get(format!("{}/readyz?verbose", url.trim_end_matches('/')))
        .send()
        .await;
    let answer: Value = asked.ok()?.json().await.ok()?;
    answer["status"].is_string().then_some(answer)
}

/// Whether another process holds the data folder.
fn folder(settings: &Settings, findings: &mut Findings) -> bool {
    let path = &settings.data_dir;
    let shown = path.display();
    let about = match std::fs::metadata(path) {
        Ok(about) => about,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            findings.add(
                "folder",
                Verdict::Ok,
                format!("{shown} does not exist yet; the first start creates it"),
            );
            return false;
        }
        Err(why) => {
            findings.add("folder", Verdict::Failed, format!("{shown}: {why}"));
            return false;
        }
    };
    if about.permissions().mode() & 0o077 != 0 {
        let text = format!("{shown} is readable by other users; run chmod 700 to keep traces and keys private");
        findings.add("folder", Verdict::Warning, text);
    }
    if tempfile::tempfile_in(path).is_err() {
        findings.add(
            "folder",
            Verdict::Failed,
            format!("{shown} is not writable: permission denied or no space left"),
        );
    }
    let held = data_dir::is_used(path);
    let by = if held {
        let holder = std::fs::read_to_string(path.join("lock")).unwrap_or_default();
        format!("; used by process {}", holder.trim())
    } else {
        String::new()
    };
    findings.add("folder", Verdict::Ok, format!("{shown}{by}"));
    held
}

/// Permissions of files that hold secrets.
fn keys(settings: &Settings, findings: &mut Findings) {
    for name in ["encryption.key", "api.key"] {
        let file = settings.data_dir.join(name);
        let Ok(about) = std::fs::metadata(&file) else { continue };
        if about.permissions().mode() & 0o077 == 0 {
            findings.add(
                "keys",
                Verdict::Ok,
                format!("only the owner can read {}", file.display()),
            );
        } else {
            let text = format!("{} is readable by other users; run chmod 600 on it", file.display());
            findings.add("keys", Verdict::Failed, text);
        }
    }
    let is_cluster = !settings.database_uri.reveal().starts_with("sqlite:");
    if is_cluster && settings.encryption_key.is_none() {
        let text = "encryption_key is not set: each machine would seal with its own key file";
        findings.add("keys", Verdict::Warning, text);
    }
}

async fn database(settings: &Settings, held: bool, findings: &mut Findings) {
    let uri = settings.database_uri.reveal();
    if let Some(path) = uri.strip_prefix("sqlite://") {
        let path = std::path::Path::new(path.split('?').next().unwrap_or_default());
        if held {
            findings.add(
                "database",
                Verdict::Skipped,
                "SQLite, in use by the process above; see the server's report",
            );
            return;
        }
        if !path.exists() {
            findings.add("database", Verdict::Ok, "SQLite; the first start creates it");
            return;
        }
    }
    let begun = Instant::now();
    let options = Options {
        connections: 1,
        acquire_timeout: TIMEOUT,
        ..Options::default()
    };
    let store = match Store::open(uri, options).await {
        Ok(store) => store,
        Err(error) => return findings.add("database", Verdict::Failed, error.to_string()),
    };
    // Skipped if the database is unavailable; the error could contain its address.
    let schema = match migrations::schema(&store).await {
        Ok(schema) => schema,
        Err(error) => {
            return findings.add("database", Verdict::Failed, format!("the query failed: {error}"));
        }
    };
    let name = match store.dialect() {
        Dialect::Sqlite => "SQLite",
        Dialect::Postgres => "PostgreSQL",
    };
    let text = format!("{name} answers after {} ms", begun.elapsed().as_millis());
    findings.add("database", Verdict::Ok, text);
    match (schema.check(), schema.pending.len()) {
        (Err(refused), _) => findings.add("migrations", Verdict::Failed, refused.to_string()),
        (Ok(()), 0) => {
            let text = format!("all applied: version {}", migrations::newest(store.dialect()));
            findings.add("migrations", Verdict::Ok, text);
        }
        (Ok(()), pending) => {
            let text = format!("{pending} not applied; the next start or towpath migrate applies them");
            findings.add("migrations", Verdict::Warning, text);
        }
    }
    if schema.check().is_ok() && schema.pending.is_empty() {
        if store.dialect() == Dialect::Postgres {
            skew(&store, findings).await;
            deployment_keeper::check(&store, findings).await;
            drained_workers::check(&store, findings).await;
            sandbox_nodes::check(&store, findings).await;
        }
        match store.read(async |tx| quarantine::usage(tx).await).await {
            Ok(usage) => report_quarantine(
                usage.len(),
                usage.iter().map(|usage| usage.entries).sum(),
                usage.iter().map(|usage| usage.items).sum(),
                findings,
            ),
            Err(error) => findings.add("quarantine", Verdict::Failed, error.to_string()),
        }
        item_index::check(&store, findings).await;
        trust(settings, &store, findings).await;
        secrets::check(settings, &store, findings).await;
    }
    store.close().await;
}

/// Deployments whose processes run next to those of another workspace.
async fn trust(settings: &Settings, store: &Store, findings: &mut Findings) {
    let processes = matches!(
        settings.deployments.backend,
        DeploymentBackend::Auto | DeploymentBackend::Process
    );
    if !processes {
        return;
    }
    let found = store
        .read(async |tx| deployments::of_later_workspaces(tx, MAX_LISTED).await)
        .await;
    let found = match found {
        Ok(found) => found,
        Err(error) => return findings.add("trust", Verdict::Failed, error.to_string()),
    };
    if found.is_empty() {
        return findings.add("trust", Verdict::Ok, "all deployments belong to one workspace");
    }
    let names: Vec<String> = found.iter().map(|(id, name)| format!("{name} ({id})")).collect();
    let rule = if settings.deployments.one_workspace {
        "new ones are refused while deployments.trust is one"
    } else {
        "deployments.trust = all allows it"
    };
    let text = format!(
        "deployments of several workspaces run as processes of one machine, separated as reported below under \
         isolation; {rule}. Not of the first workspace: {}",
        names.join(", ")
    );
    findings.add("trust", Verdict::Warning, text);
}

/// The quarantine of the server that uses the data folder.
async fn quarantine_of_server(settings: &Settings, findings: &mut Findings) {
    let options = ServerOptions {
        server: settings.local_url(),
        api_key: settings.api_key.clone(),
        tenant: None,
        data_dir: Some(settings.data_dir.clone()),
        output: Output::Json,
    };
    let asked = match Client::new(&options) {
        Ok(client) => tokio::time::timeout(TIMEOUT, client.get("/internal/quarantine/usage", &[]))
            .await
            .unwrap_or_else(|_| Err(anyhow!("no answer in time"))),
        Err(error) => Err(error),
    };
    match asked {
        Ok(answer) => {
            let usage = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            let sum = |of: &str| usage.iter().filter_map(|usage| usage[of].as_i64()).sum();
            report_quarantine(usage.len(), sum("entries"), sum("items"), findings);
        }
        Err(error) => {
            let text = format!(
                "the server at {} could not be queried: {error:#}; try {QUARANTINE}",
                settings.listen
            );
            findings.add("quarantine", Verdict::Skipped, text);
        }
    }
}

fn report_quarantine(workspaces: usize, entries: i64, operations: i64, findings: &mut Findings) {
    if entries == 0 {
        let text = "empty: all accepted data was flushed";
        return findings.add("quarantine", Verdict::Ok, text);
    }
    let text = format!(
        "{} with {} of {} could not be flushed and are missing from queries and exports; see {QUARANTINE}",
        print::counted(entries.unsigned_abs(), "entry", "entries"),
        print::counted(operations.unsigned_abs(), "operation", "operations"),
        print::counted(workspaces as u64, "workspace", "workspaces"),
    );
    findings.add("quarantine", Verdict::Warning, text);
}

async fn skew(store: &Store, findings: &mut Findings) {
    let clock = Clock::system();
    let before = clock.now();
    let there = match store.read(async |tx| jobs::db_now(tx).await).await {
        Ok(there) => there,
        Err(error) => return findings.add("clock", Verdict::Failed, error.to_string()),
    };
    let after = clock.now();
    // The answer was created at some moment between the two.
    let apart = there.since(after).max(before.since(there));
    if apart > SKEW {
        let text = format!(
            "the clocks of this machine and the database differ by {:.1} s; leases use the database's, but times in \
             logs will not match",
            apart.as_secs_f64()
        );
        findings.add("clock", Verdict::Warning, text);
    } else {
        findings.add("clock", Verdict::Ok, "this machine and the database agree");
    }
}

async fn redis(settings: &Settings, findings: &mut Findings) {
    let Some(uri) = &settings.redis_uri else {
        let cluster = !settings.database_uri.reveal().starts_with("sqlite:");
        let text = if cluster {
            "not set: workers poll for jobs every second"
        } else {
            "not set; one process does not need it"
        };
        return findings.add("redis", Verdict::Ok, text);
    };
    let queue = match Queue::redis(uri.reveal(), towpath_queue::Options::default()).await {
        Ok(queue) => queue,
        Err(error) => return findings.add("redis", Verdict::Failed, error.to_string()),
    };
    let begun = Instant::now();
    loop {
        match queue.health().state {
            State::Up | State::Local => {
                return findings.add(
                    "redis",
                    Verdict::Ok,
                    format!("answers after {} ms", begun.elapsed().as_millis()),
                );
            }
            State::Down { error, .. } if begun.elapsed() > TIMEOUT => {
                let text = format!("unavailable: {error}; workers poll instead, with a delay of up to a second");
                return findings.add("redis", Verdict::Warning, text);
            }
            State::Down { .. } => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// The isolation of processes of deployments.
fn isolation(config: &Config, findings: &mut Findings) {
    let settings = &config.settings;
    let processes = matches!(
        settings.deployments.backend,
        DeploymentBackend::Auto | DeploymentBackend::Process
    );
    if !processes {
        return;
    }
    if !settings.data_dir.is_dir() {
        let text = "the trial needs the data folder, which does not exist yet";
        return findings.add("isolation", Verdict::Skipped, text);
    }
    let isolation = match wiring::isolation(config, &settings.data_dir) {
        Ok(isolation) => isolation,
        Err(error) => return findings.add("isolation", Verdict::Failed, format!("{error:#}")),
    };
    match isolation.why() {
        None => findings.add(
            "isolation",
            Verdict::Ok,
            "each deployment has a user id and namespaces of its own",
        ),
        Some(why) if settings.deployments.min_isolation > isolation.level() => {
            let text = format!("deployments.min_isolation is namespace, which this machine cannot provide: {why}");
            findings.add("isolation", Verdict::Failed, text);
        }
        Some(why) => {
            let text = format!("processes of deployments run as the platform's user, with all its permissions: {why}");
            findings.add("isolation", Verdict::Warning, text);
        }
    }
}

/// The program that fetches the sources of deployments.
async fn git(settings: &Settings, findings: &mut Findings) {
    if settings.deployments.backend == DeploymentBackend::None {
        return;
    }
    let asked = tokio::process::Command::new("git")
        .arg("version")
        .kill_on_drop(true)
        .output();
    match tokio::time::timeout(TIMEOUT, asked).await {
        Ok(Ok(answer)) => {
            let said = String::from_utf8_lossy(&answer.stdout);
            match towpath_compute::git::check_version(&said) {
                Ok(()) => findings.add("git", Verdict::Ok, said.trim()),
                Err(why) => findings.add(
                    "git",
                    Verdict::Warning,
                    format!("{why}; deployments from repositories fail"),
                ),
            }
        }
        Ok(Err(why)) => {
            let text = format!("git cannot be run ({why}); deployments from repositories fail");
            findings.add("git", Verdict::Warning, text);
        }
        Err(_) => findings.add("git", Verdict::Warning, "git does not answer in time"),
    }
}

async fn objects(config: &Config, server: bool, findings: &mut Findings) {
    let url = &config.settings.objects;
    let folder = config.settings.objects_folder();
    if folder.is_some_and(|folder| !folder.exists()) && !server {
        return findings.add(
            "objects",
            Verdict::Ok,
            format!("{url} does not exist yet; the first start creates it"),
        );
    }
    let aws = config
        .aws
        .iter()
        .map(|(name, value)| (name.clone(), value.reveal().to_owned()))
        .collect();
    let objects = match Objects::open(url, &aws) {
        Ok(objects) => objects,
        Err(error) => return findings.add("objects", Verdict::Failed, error.to_string()),
    };
    match tokio::time::timeout(4 * TIMEOUT, objects.check()).await {
        Ok(Ok(())) => findings.add("objects", Verdict::Ok, format!("{url} is usable")),
        Ok(Err(why)) => findings.add("objects", Verdict::Failed, format!("{url}: {why}")),
        Err(_) => findings.add("objects", Verdict::Failed, format!("{url} does not answer in time")),
    }
}
