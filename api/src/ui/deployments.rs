//! Deployments and their revisions, with what they say as they say it.

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
use towpath_workflows::{deployments as work, hosting};

use super::{Asked, Shown, Trouble, back, show};
use crate::app::App;
use crate::errors::ApiError;

const HERE: &str = "/ui/deployments";
const LIMIT: i64 = 50;
/// Lines a page shows.
const LINES: i64 = 300;

/// Which page of the list.
#[derive(Deserialize)]
pub(super) struct Before {
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
    latest: Option<Mark>,
    active: Option<i64>,
    /// Where what is deployed does not serve.
    placed: Option<Placed>,
    changed: String,
    age: String,
}

/// How what is deployed is doing.
struct Placed {
    state: &'static str,
    tone: &'static str,
    why: String,
}

impl Placed {
    fn of(state: PlacementState, why: Option<String>) -> Self {
        let state = state.as_str();
        Self {
            state,
            tone: show::tone(state),
            why: why.unwrap_or_default(),
        }
    }
}

/// A revision in a line of another thing.
struct Mark {
    id: String,
    seq: i64,
    status: &'static str,
    tone: &'static str,
}

/// The list.
pub(super) async fn list(State(app): State<App>, asked: Asked, Query(page): Query<Before>) -> Shown {
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
    Ok(asked.page("Deployments", HERE, &List { rows, next }))
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
        tone: show::tone(status),
        source: deployment.source.as_str(),
        latest: latest.map(|((id, seq), status)| Mark {
            id: id.to_string(),
            seq,
            status: status.as_str(),
            tone: show::tone(status.as_str()),
        }),
        active: deployment.active_seq,
        placed: deployment
            .placement
            .filter(|state| *state != PlacementState::Serving)
            .map(|state| Placed::of(state, deployment.placement_error)),
        changed: show::moment(deployment.updated_at),
        age: show::relative(deployment.created_at, now),
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
    placed: Option<Placed>,
    restarts: i64,
    created: String,
    tenant: String,
    revisions: Vec<Line>,
    logs: Vec<Said>,
}

/// A revision in the list of its deployment.
struct Line {
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
struct Said {
    id: String,
    at: String,
    level: &'static str,
    loud: bool,
    text: String,
}

fn said(line: LogLine) -> Said {
    Said {
        id: line.id.to_string(),
        at: show::moment(line.at),
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

/// One deployment.
pub(super) async fn detail(State(app): State<App>, asked: Asked, Path(id): Path<String>) -> Shown {
    let missing = || Trouble::from(ApiError::not_found("deployment"));
    let id: DeploymentId = id.parse().map_err(|_| missing())?;
    let found = app.store.read(async |tx| {
        let Some(tenant) = overview::owner(tx, id).await? else {
            return Ok(None);
        };
        let deployment = deployments::get(tx, tenant, id).await?;
        let revisions = revisions::list(tx, tenant, id, None, LIMIT, 0).await?;
        // It may be gone.
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
        tone: show::tone(status),
        going: deployment.status == DeploymentStatus::AwaitingDelete,
        source: deployment.source.as_str(),
        what: what
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect(),
        address: config
            .custom_url
            .unwrap_or_else(|| app.settings.deployment_url(deployment.id)),
        project: project.map_or_else(|| "a project that is gone".to_owned(), |project| project.name),
        secrets: if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        },
        restarts: placement.as_ref().map_or(0, |placement| placement.restarts),
        placed: placement.map(|placement| Placed::of(placement.state, placement.error)),
        created: show::moment(deployment.created_at),
        tenant: deployment.tenant_id.to_string(),
        revisions: lines?,
        logs: logs.into_iter().rev().map(said).collect(),
        name: deployment.name,
    };
    Ok(asked.page("Deployment", HERE, &detail))
}

fn line(revision: &Revision, active: Option<RevisionId>, now: Timestamp) -> Result<Line, towpath_store::Error> {
    let status = revision.status.as_str();
    Ok(Line {
        id: revision.id.to_string(),
        seq: revision.seq,
        status,
        tone: show::tone(status),
        active: active == Some(revision.id),
        made_from: made_from(revision)?,
        created: show::moment(revision.created_at),
        age: show::relative(revision.created_at, now),
        took: show::span(revision.finished_at.unwrap_or(now).since(revision.created_at)),
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
struct One {
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
    build: Vec<Said>,
    deploy: Vec<Said>,
}

/// One revision.
pub(super) async fn revision(State(app): State<App>, asked: Asked, Path(id): Path<String>) -> Shown {
    let missing = || Trouble::from(ApiError::not_found("revision"));
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
            workers::alive(tx, workers::SEEN).await?,
        )))
    });
    let (deployment, revision, build, deploy, alive) = found.await?.ok_or_else(missing)?;
    let is_served = alive.iter().any(|worker| worker.slots().contains_key(hosting::POOL));
    let now = app.clock.now();
    let status = revision.status.as_str();
    let going = deployment.status == DeploymentStatus::AwaitingDelete;
    let one = One {
        deployment: deployment.id.to_string(),
        name: deployment.name,
        id: revision.id.to_string(),
        seq: revision.seq,
        status,
        tone: show::tone(status),
        active: deployment.active_revision_id == Some(revision.id),
        open: !revision.status.is_final(),
        waits: revision.status.has_not_begun() && revision.job_id.is_some() && !is_served,
        again: revision.status.has_artifact() && !going,
        made_from: made_from(&revision)?,
        redeploy_of: revision.redeploy_of.map(|id| id.to_string()),
        error: revision.error.clone(),
        job: revision.job_id.map(|id| id.to_string()),
        created: show::moment(revision.created_at),
        took: show::span(revision.finished_at.unwrap_or(now).since(revision.created_at)),
        build: build.into_iter().rev().map(said).collect(),
        deploy: deploy.into_iter().rev().map(said).collect(),
    };
    Ok(asked.page("Revision", HERE, &one))
}

/// Leads from where clients think the page is.
pub(super) async fn from_client(Path((_, id)): Path<(String, DeploymentId)>) -> Redirect {
    Redirect::to(&format!("{HERE}/{id}"))
}

/// Interrupts a revision, or deploys it again.
pub(super) async fn act(State(app): State<App>, Path((id, action)): Path<(String, String)>) -> Shown {
    let missing = || Trouble::from(ApiError::not_found("revision"));
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

/// Deletes a deployment.
pub(super) async fn delete(State(app): State<App>, Path(id): Path<String>) -> Shown {
    let missing = || Trouble::from(ApiError::not_found("deployment"));
    let id: DeploymentId = id.parse().map_err(|_| missing())?;
    let owner = app.store.read(async |tx| overview::owner(tx, id).await);
    let tenant = owner.await?.ok_or_else(missing)?;
    app.store
        .write(async |tx| work::delete(tx, tenant, id, false).await)
        .await?;
    Ok(back(HERE))
}
