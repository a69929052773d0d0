//! Deployments and their revisions, with live logs.

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Redirect;
use serde::Deserialize;
use towpath_domain::deployment::{DeploymentStatus, Level, LogKind};
use towpath_domain::{DeploymentId, RevisionId, Timestamp};
use towpath_store::deployments::overview::{self, Overview};
use towpath_store::placements::{self, PlacementState};
use towpath_store::revision_logs::{self, Filter, LogLine};
use towpath_store::revisions::{self, Revision};
use towpath_store::{deployments, projects, workers};
use towpath_workflows::{deployment_host, deployments as work};

use super::formatting;
use super::page::{PageError, PageRequest, PageResult, back};
use crate::app::App;
use crate::errors::ApiError;

const PATH: &str = "/ui/deployments";
const LIMIT: i64 = 50;
/// Log lines on a page.
const LINES: i64 = 300;

/// Position of the page.
#[derive(Deserialize)]
pub(super) struct PageQuery {
    before: Option<DeploymentId>,
}

#[derive(Template)]
#[template(path = "ui/deployments.html")]
struct List {
    rows: Vec<Row>,
    next: Option<String>,
}

struct Row {
    id: String,
    name: String,
    status: &'static str,
    tone: &'static str,
    source: &'static str,
    latest: Option<RevisionRef>,
    active: Option<i64>,
    /// Set if the deployment is not serving.
    placed: Option<PlacementStatus>,
    changed: String,
    age: String,
}

/// State of the agent server.
struct PlacementStatus {
    state: &'static str,
    tone: &'static str,
    why: String,
}

impl PlacementStatus {
    fn of(state: PlacementState, why: Option<String>) -> Self {
        let state = state.as_str();
        Self {
            state,
            tone: formatting::tone(state),
            why: why.unwrap_or_default(),
        }
    }
}

/// A reference to a revision.
struct RevisionRef {
    id: String,
    seq: i64,
    status: &'static str,
    tone: &'static str,
}

pub(super) async fn list(State(app): State<App>, asked: PageRequest, Query(page): Query<PageQuery>) -> PageResult {
    let found = app
        .store
        .read(async |tx| overview::list(tx, page.before, LIMIT).await)
        .await?;
    let now = app.clock.now();
    let next = found
        .last()
        .filter(|_| found.len() as i64 == LIMIT)
        .map(|last| last.id.to_string());
    let rows = found.into_iter().map(|deployment| row(deployment, now)).collect();
    Ok(asked.page("Deployments", PATH, &List { rows, next }))
}

fn row(deployment: Overview, now: Timestamp) -> Row {
    let status = deployment.status.as_str();
    let latest = deployment
        .latest_revision_id
        .zip(deployment.latest_seq)
        .zip(deployment.latest_status);
    Row {
        id: deployment.id.to_string(),
        name: deployment.name,
        status,
        tone: formatting::tone(status),
        source: deployment.source.as_str(),
        latest: latest.map(|((id, seq), status)| RevisionRef {
            id: id.to_string(),
            seq,
            status: status.as_str(),
            tone: formatting::tone(status.as_str()),
        }),
        active: deployment.active_seq,
        placed: deployment
            .placement
            .filter(|state| *state != PlacementState::Serving)
            .map(|state| PlacementStatus::of(state, deployment.placement_error)),
        changed: formatting::moment(deployment.updated_at),
        age: formatting::relative(deployment.created_at, now),
    }
}

#[derive(Template)]
#[template(path = "ui/deployment.html")]
struct Detail {
    id: String,
    name: String,
    status: &'static str,
    tone: &'static str,
    going: bool,
    source: &'static str,
    what: Vec<(&'static str, String)>,
    address: String,
    project: String,
    secrets: String,
    placed: Option<PlacementStatus>,
    restarts: i64,
    created: String,
    tenant: String,
    revisions: Vec<RevisionRow>,
    logs: Vec<LogEntry>,
}

/// A revision in the list of its deployment.
struct RevisionRow {
    id: String,
    seq: i64,
    status: &'static str,
    tone: &'static str,
    active: bool,
    made_from: String,
    created: String,
    age: String,
    took: String,
    error: Option<String>,
}

/// A line of a log.
struct LogEntry {
    id: String,
    at: String,
    level: &'static str,
    loud: bool,
    text: String,
}

fn log_entry(line: LogLine) -> LogEntry {
    LogEntry {
        id: line.id.to_string(),
        at: formatting::moment(line.at),
        level: line.level.as_str(),
        loud: line.level >= Level::Warning,
        text: line.message,
    }
}

fn latest_lines(revision: Option<RevisionId>, kind: LogKind) -> Filter {
    Filter {
        revision,
        kind: Some(kind),
        newest_first: true,
        ..Filter::default()
    }
}

pub(super) async fn detail(State(app): State<App>, asked: PageRequest, Path(id): Path<String>) -> PageResult {
    let missing = || PageError::from(ApiError::not_found("deployment"));
    let id: DeploymentId = id.parse().map_err(|_| missing())?;
    let found = app.store.read(async |tx| {
        let Some(tenant) = overview::owner(tx, id).await? else {
            return Ok(None);
        };
        let deployment = deployments::get(tx, tenant, id).await?;
        let revisions = revisions::list(tx, tenant, id, None, LIMIT, 0).await?;
        // The project may have been deleted.
        let project = projects::get(tx, tenant, deployment.project_id).await.ok();
        let logs = revision_logs::list(tx, tenant, id, &latest_lines(None, LogKind::Deploy), LINES).await?;
        let placement = placements::get(tx, tenant, id).await?;
        Ok(Some((deployment, revisions, project, logs, placement)))
    });
    let (deployment, revisions, project, logs, placement) = found.await?.ok_or_else(missing)?;
    let now = app.clock.now();
    let config = deployment.config()?;
    let status = deployment.status.as_str();
    let what = [
        ("Repository", config.repo_url.clone()),
        (
            "Built on push",
            config.build_on_push.map(|on| if on { "yes" } else { "no" }.to_owned()),
        ),
        ("Install command", config.install_command.clone()),
        ("Build command", config.build_command.clone()),
    ];
    let names = match revisions.first() {
        Some(latest) => latest.secret_names()?,
        None => Vec::new(),
    };
    let active = deployment.active_revision_id;
    let lines: Result<Vec<_>, _> = revisions.iter().map(|revision| line(revision, active, now)).collect();
    let detail = Detail {
        id: deployment.id.to_string(),
        status,
        tone: formatting::tone(status),
        going: deployment.status == DeploymentStatus::AwaitingDelete,
        source: deployment.source.as_str(),
        what: what
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect(),
        address: config
            .custom_url
            .unwrap_or_else(|| app.settings.deployment_url(deployment.id)),
        project: project.map_or_else(|| "deleted project".to_owned(), |project| project.name),
        secrets: if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        },
        restarts: placement.as_ref().map_or(0, |placement| placement.restarts),
        placed: placement.map(|placement| PlacementStatus::of(placement.state, placement.error)),
        created: formatting::moment(deployment.created_at),
        tenant: deployment.tenant_id.to_string(),
        revisions: lines?,
        logs: logs.into_iter().rev().map(log_entry).collect(),
        name: deployment.name,
    };
    Ok(asked.page("Deployment", PATH, &detail))
}

fn line(revision: &Revision, active: Option<RevisionId>, now: Timestamp) -> Result<RevisionRow, towpath_store::Error> {
    let status = revision.status.as_str();
    Ok(RevisionRow {
        id: revision.id.to_string(),
        seq: revision.seq,
        status,
        tone: formatting::tone(status),
        active: active == Some(revision.id),
        made_from: made_from(revision)?,
        created: formatting::moment(revision.created_at),
        age: formatting::relative(revision.created_at, now),
        took: formatting::span(revision.finished_at.unwrap_or(now).since(revision.created_at)),
        error: revision.error.clone(),
    })
}

fn made_from(revision: &Revision) -> Result<String, towpath_store::Error> {
    let config = revision.config()?;
    let commit = config
        .repo_commit_sha
        .as_deref()
        .map(|sha| sha.chars().take(12).collect::<String>());
    Ok(
        match (config.repo_ref, commit, config.image_uri, config.source_tarball_path) {
            (Some(name), Some(commit), ..) => format!("{name} at {commit}"),
            (Some(name), None, ..) => name,
            (_, _, Some(image), _) => image,
            (_, _, _, Some(path)) => path.rsplit('/').next().unwrap_or_default().to_owned(),
            _ => "nothing yet".to_owned(),
        },
    )
}

#[derive(Template)]
#[template(path = "ui/revision.html")]
struct RevisionDetail {
    deployment: String,
    name: String,
    id: String,
    seq: i64,
    status: &'static str,
    tone: &'static str,
    active: bool,
    open: bool,
    waits: bool,
    again: bool,
    made_from: String,
    redeploy_of: Option<String>,
    error: Option<String>,
    job: Option<String>,
    created: String,
    took: String,
    build: Vec<LogEntry>,
    deploy: Vec<LogEntry>,
}

pub(super) async fn revision(State(app): State<App>, asked: PageRequest, Path(id): Path<String>) -> PageResult {
    let missing = || PageError::from(ApiError::not_found("revision"));
    let id: RevisionId = id.parse().map_err(|_| missing())?;
    let found = app.store.read(async |tx| {
        let Some((tenant, deployment)) = overview::owner_of_revision(tx, id).await? else {
            return Ok(None);
        };
        let of = deployments::get(tx, tenant, deployment).await?;
        let build = latest_lines(Some(id), LogKind::Build);
        let deploy = latest_lines(Some(id), LogKind::Deploy);
        Ok(Some((
            of,
            revisions::get(tx, tenant, id).await?,
            revision_logs::list(tx, tenant, deployment, &build, LINES).await?,
            revision_logs::list(tx, tenant, deployment, &deploy, LINES).await?,
            workers::alive(tx, workers::HEARTBEAT_WINDOW).await?,
        )))
    });
    let (deployment, revision, build, deploy, alive) = found.await?.ok_or_else(missing)?;
    let is_served = alive
        .iter()
        .any(|worker| worker.slots().contains_key(deployment_host::POOL));
    let now = app.clock.now();
    let status = revision.status.as_str();
    let going = deployment.status == DeploymentStatus::AwaitingDelete;
    let one = RevisionDetail {
        deployment: deployment.id.to_string(),
        name: deployment.name,
        id: revision.id.to_string(),
        seq: revision.seq,
        status,
        tone: formatting::tone(status),
        active: deployment.active_revision_id == Some(revision.id),
        open: !revision.status.is_final(),
        waits: revision.status.has_not_begun() && revision.job_id.is_some() && !is_served,
        again: revision.status.has_artifact() && !going,
        made_from: made_from(&revision)?,
        redeploy_of: revision.redeploy_of.map(|id| id.to_string()),
        error: revision.error.clone(),
        job: revision.job_id.map(|id| id.to_string()),
        created: formatting::moment(revision.created_at),
        took: formatting::span(revision.finished_at.unwrap_or(now).since(revision.created_at)),
        build: build.into_iter().rev().map(log_entry).collect(),
        deploy: deploy.into_iter().rev().map(log_entry).collect(),
    };
    Ok(asked.page("Revision", PATH, &one))
}

/// Redirects from the address that clients expect.
pub(super) async fn from_client(Path((_, id)): Path<(String, DeploymentId)>) -> Redirect {
    Redirect::to(&format!("{PATH}/{id}"))
}

/// Interrupts or redeploys a revision.
pub(super) async fn act(State(app): State<App>, Path((id, action)): Path<(String, String)>) -> PageResult {
    let missing = || PageError::from(ApiError::not_found("revision"));
    let id: RevisionId = id.parse().map_err(|_| missing())?;
    let owner = app.store.read(async |tx| overview::owner_of_revision(tx, id).await);
    let (tenant, deployment) = owner.await?.ok_or_else(missing)?;
    let made = match action.as_str() {
        "interrupt" => {
            let stop = app
                .store
                .write(async |tx| work::interrupt(tx, tenant, deployment, id).await);
            stop.await?.id
        }
        "redeploy" => {
            let again = app
                .store
                .write(async |tx| work::redeploy(tx, tenant, &app.sealer, deployment, id).await);
            again.await?.1.id
        }
        _ => return Err(ApiError::not_found("action").into()),
    };
    Ok(back(&format!("/ui/revisions/{made}")))
}

pub(super) async fn delete(State(app): State<App>, Path(id): Path<String>) -> PageResult {
    let missing = || PageError::from(ApiError::not_found("deployment"));
    let id: DeploymentId = id.parse().map_err(|_| missing())?;
    let owner = app.store.read(async |tx| overview::owner(tx, id).await);
    let tenant = owner.await?.ok_or_else(missing)?;
    app.store
        .write(async |tx| work::delete(tx, tenant, id, false).await)
        .await?;
    Ok(back(PATH))
}
