//! `towpath bench deploy`: time from `POST /v2/deployments` to a `DEPLOYED` revision, step by step, for a small Python
//! project in a local git repository on the process backend.
//!
//! The first deployment creates the environment of its packages. The following ones are measured: each has its own
//! commit, and only the environment exists already.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use super::python::project;
use super::report::Report;
use super::server::{self, Child};
use crate::arguments::BenchDeploy;

/// It limits the precision of the results.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The first revision fetches packages.
const TIMEOUT: Duration = Duration::from_secs(900);
/// Steps whose duration is in the logs, in order.
const STEPS: [&str; 5] = ["resolve", "fetch", "build", "check", "switch"];

pub async fn run(options: &BenchDeploy) -> anyhow::Result<()> {
    let repository = Repository::new().await?;
    let mut report = Report::default();
    if let (Some(server), Some(key)) = (&options.server, &options.api_key) {
        let platform = Platform::new(server.trim_end_matches('/').to_owned(), key)?;
        measure(options, &platform, &repository, &mut report).await?;
        return report.print(options.output);
    }
    let own = crate::config::read_environment();
    let own = own.iter().filter(|(name, _)| !name.starts_with("TOWPATH_"));
    let mut environment: Vec<(&str, String)> = own.map(|(name, value)| (name.as_str(), value.clone())).collect();
    environment.push(("TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS", "file".to_owned()));
    let child = Child::dev_with(None, &environment)
        .await
        .context("starting a server of its own")?;
    let measured = async {
        let platform = Platform::new(child.base(), &child.key().await?)?;
        measure(options, &platform, &repository, &mut report).await?;
        if let Some(mb) = child.memory_mb() {
            report.note("memory of the server, after", mb, "MB");
        }
        anyhow::Ok(())
    };
    let measured = measured.await;
    child.stop().await?;
    measured?;
    report.print(options.output)
}

async fn measure(
    options: &BenchDeploy,
    platform: &Platform,
    repository: &Repository,
    report: &mut Report,
) -> anyhow::Result<()> {
    let first = platform.deploy(repository, 0).await?;
    note(
        report,
        "first deployment, its packages fetched",
        std::slice::from_ref(&first.times),
    );
    let (mut new, mut next) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        let one = platform.deploy(repository, round).await?;
        new.push(one.times);
        next.push(platform.change(repository, &one.id, round).await?);
        platform.delete(&one.id).await?;
    }
    note(report, "new deployment", &new);
    note(report, "next revision of one that serves", &next);
    platform.delete(&first.id).await
}

/// Reports the medians of several rounds, and the slowest.
fn note(report: &mut Report, what: &str, rounds: &[RevisionTimes]) {
    let median = |of: &dyn Fn(&RevisionTimes) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    report.note(what, median(&|took| took.total), "s");
    if rounds.len() > 1 {
        let slowest = rounds.iter().map(|took| took.total).fold(0.0, f64::max);
        report.note(format!("{what}, slowest of {}", rounds.len()), slowest, "s");
    }
    for (n, step) in STEPS.iter().enumerate() {
        report.note(format!("{what}: {step}"), median(&|took| took.steps[n]), "s");
    }
    let rest = |took: &RevisionTimes| took.total - took.steps.iter().sum::<f64>();
    report.note(format!("{what}: recording, and between the steps"), median(&rest), "s");
}

/// Duration of one revision, in seconds.
struct RevisionTimes {
    total: f64,
    /// In the order of [`STEPS`], to a hundredth.
    steps: [f64; STEPS.len()],
}

struct DeployedRevision {
    id: String,
    times: RevisionTimes,
}

struct Platform {
    http: reqwest::Client,
    base: String,
}

impl Platform {
    fn new(base: String, key: &str) -> anyhow::Result<Self> {
        let mut key = HeaderValue::from_str(key).context("the API key")?;
        key.set_sensitive(true);
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(http::HeaderName::from_static("x-api-key"), key), (CONTENT_TYPE, json)]);
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .no_proxy()
            .timeout(Duration::from_secs(60));
        Ok(Self {
            http: http.build()?,
            base,
        })
    }

    async fn ask(&self, method: http::Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        ensure!(status.is_success(), "{path}: {status}: {text}");
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Deploys a new commit.
    async fn deploy(&self, repository: &Repository, round: u64) -> anyhow::Result<DeployedRevision> {
        repository.commit(&format!("deployment {round}")).await?;
        let body = json!({
            "name": format!("bench-{round}"), "source": "github", "secrets": [],
            "source_config": {"repo_url": format!("file://{}", repository.0.path().display())},
            "source_revision_config": {"repo_ref": "main", "graph_config_path": project::CONFIG},
        });
        let began = Instant::now();
        let made = self.ask(http::Method::POST, "/v2/deployments", Some(body)).await?;
        let id = made["id"].as_str().context("the deployment has an id")?.to_owned();
        let took = self.wait_for_revision(&id, &made, began).await?;
        Ok(DeployedRevision { id, times: took })
    }

    /// Creates the next revision, with a new commit.
    async fn change(&self, repository: &Repository, id: &str, round: u64) -> anyhow::Result<RevisionTimes> {
        repository.commit(&format!("revision {round}")).await?;
        let body = json!({"source_revision_config": {"repo_ref": "main"}});
        let began = Instant::now();
        let path = format!("/v2/deployments/{id}");
        let made = self.ask(http::Method::PATCH, &path, Some(body)).await?;
        self.wait_for_revision(id, &made, began).await
    }

    /// Waits for the latest revision of a deployment.
    async fn wait_for_revision(&self, id: &str, made: &Value, began: Instant) -> anyhow::Result<RevisionTimes> {
        let revision = made["latest_revision_id"].as_str().context("there is a revision")?;
        let path = format!("/v2/deployments/{id}/revisions/{revision}");
        loop {
            let now = self.ask(http::Method::GET, &path, None).await?;
            match now["status"].as_str().unwrap_or_default() {
                "DEPLOYED" => break,
                status if status.ends_with("FAILED") || status == "SKIPPED" || status == "INTERRUPTED" => {
                    bail!(
                        "a revision ended {status}: {}",
                        now["error"].as_str().unwrap_or_default()
                    )
                }
                _ => {}
            }
            ensure!(
                began.elapsed() < TIMEOUT,
                "a revision is not deployed after {} s",
                TIMEOUT.as_secs()
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let whole = began.elapsed().as_secs_f64();
        let mut steps = [0.0; STEPS.len()];
        for kind in ["build_logs", "deploy_logs"] {
            let path = format!("/v1/projects/{id}/revisions/{revision}/{kind}");
            let body = json!({"limit": 1000, "order": "asc"});
            let logs = self.ask(http::Method::POST, &path, Some(body)).await?;
            for line in logs["logs"].as_array().into_iter().flatten() {
                let Some((name, seconds)) = line["message"].as_str().and_then(timed) else {
                    continue;
                };
                if let Some(n) = STEPS.iter().position(|step| *step == name) {
                    steps[n] += seconds;
                }
            }
        }
        Ok(RevisionTimes { total: whole, steps })
    }

    async fn delete(&self, id: &str) -> anyhow::Result<()> {
        let path = format!("/v2/deployments/{id}");
        self.ask(http::Method::DELETE, &path, None).await?;
        let began = Instant::now();
        loop {
            let answer = self.http.get(format!("{}{path}", self.base)).send().await?;
            if answer.status() == http::StatusCode::NOT_FOUND {
                return Ok(());
            }
            ensure!(
                began.elapsed() < TIMEOUT,
                "a deployment is not deleted after {} s",
                TIMEOUT.as_secs()
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Parses `fetch: 0.04 s`.
fn timed(line: &str) -> Option<(&str, f64)> {
    let (name, rest) = line.split_once(": ")?;
    Some((name, rest.strip_suffix(" s")?.parse().ok()?))
}

struct Repository(TempDir);

impl Repository {
    async fn new() -> anyhow::Result<Self> {
        let repository = Self(server::folder()?);
        project::write(repository.0.path())?;
        repository.git(&["init", "--quiet", "--initial-branch=main"]).await?;
        Ok(repository)
    }

    /// Changes the project and commits it.
    async fn commit(&self, what: &str) -> anyhow::Result<()> {
        let file = self.0.path().join("NOTES");
        tokio::fs::write(&file, what).await?;
        self.git(&["add", "--all"]).await?;
        self.git(&["commit", "--quiet", "--message", what]).await
    }

    async fn git(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let who = [
            "-c",
            "user.name=bench",
            "-c",
            "user.email=bench@localhost",
            "-c",
            "commit.gpgSign=false",
        ];
        let mut git = Command::new("git");
        let done = git
            .args(who)
            .args(arguments)
            .current_dir::<&Path>(self.0.path())
            .output()
            .await;
        let done = done.context("starting git")?;
        ensure!(
            done.status.success(),
            "git {arguments:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_tells_a_time() {
        assert_eq!(timed("fetch: 0.04 s"), Some(("fetch", 0.04)));
        for other in ["fetching file:///x", "check: soon", "a: b: 1 s"] {
            assert_eq!(timed(other), None);
        }
    }
}
