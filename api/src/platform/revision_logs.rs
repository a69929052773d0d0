//! What builds and deployments say. A deployment is called a project here, as version 1 did.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use towpath_domain::deployment::{Level, LogKind};
use towpath_domain::{DeploymentId, LogLineId, Rejection, RevisionId, Timestamp};
use towpath_store::revision_logs::{self, Filter, LogLine};
use towpath_store::{self as store, deployments, revisions};

use super::deployments::missing;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path};
use crate::platform::names;

/// Lines one answer may have.
const MOST: i64 = 1_000;

/// Which lines.
#[derive(Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LogQuery)]
pub struct Wanted {
    /// At most this many; 100 unless said.
    #[serde(default, deserialize_with = "crate::extract::whole")]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `desc`, the newest first, unless said.
    #[serde(default)]
    #[schema(value_type = Option<names::Order>)]
    order: Option<Order>,
    /// The `next_offset` of an earlier answer: what comes after that.
    #[serde(default)]
    offset: Option<String>,
    /// At least this loud; `CRITICAL` is taken for `ERROR`.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^(?i:debug|info|warning|error|critical)$")]
    level: Option<String>,
    /// With this in the message, in any case.
    #[serde(default)]
    query: Option<String>,
    /// Said at or after.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    start_time: Option<Moment>,
    /// Said before.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Option<Moment>,
}

/// A time as text, or in milliseconds since 1970, which is how lines carry theirs.
#[derive(Deserialize)]
#[serde(untagged)]
enum Moment {
    Text(String),
    Millis(i64),
}

impl Moment {
    fn admit(self, field: &str) -> Result<Timestamp, Rejection> {
        let wrong = || Rejection::invalid(field, "expected a date-time such as 2026-03-08T00:00:00Z");
        let millis = match self {
            Self::Millis(millis) => millis,
            Self::Text(text) => match text.parse() {
                Ok(millis) => millis,
                Err(_) => return Timestamp::parse(&text).map_err(|_| wrong()),
            },
        };
        let in_range = (0..=253_402_300_799_999).contains(&millis);
        if in_range {
            Ok(Timestamp::from_micros(millis * 1_000))
        } else {
            Err(wrong())
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    Asc,
    Desc,
}

/// Lines, and where to go on.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Logs {
    logs: Vec<Line>,
    /// The place behind the last of these lines; null where there are none. Also lines that come later are behind it.
    next_offset: Option<String>,
}

/// A line.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = LogLine)]
pub struct Line {
    #[serde(default)]
    #[schema(value_type = Uuid)]
    id: LogLineId,
    /// Milliseconds since 1970.
    #[serde(default)]
    timestamp: i64,
    #[serde(default)]
    #[schema(value_type = names::LogLevel)]
    level: Level,
    #[serde(default)]
    message: String,
}

impl Wanted {
    fn admit(self, revision: Option<RevisionId>, kind: LogKind) -> Result<(Filter, i64), Rejection> {
        let limit = self.limit.unwrap_or(100);
        if !(1..=MOST).contains(&limit) {
            let text = format!("expected a number between 1 and {MOST}");
            return Err(Rejection::invalid("limit", text));
        }
        let level = self.level.map(|name| {
            if name.eq_ignore_ascii_case("CRITICAL") {
                return Ok(Level::Error);
            }
            let wrong = || Rejection::invalid("level", "expected DEBUG, INFO, WARNING, ERROR or CRITICAL");
            Level::parse(&name).ok_or_else(wrong)
        });
        let past = self.offset.filter(|offset| !offset.is_empty()).map(|offset| {
            let wrong = || Rejection::invalid("offset", "expected the next_offset of an earlier answer");
            offset.parse().map_err(|_| wrong())
        });
        let filter = Filter {
            revision,
            kind: Some(kind),
            level: level.transpose()?,
            query: self.query.filter(|text| !text.is_empty()),
            start: self.start_time.map(|time| time.admit("start_time")).transpose()?,
            end: self.end_time.map(|time| time.admit("end_time")).transpose()?,
            past: past.transpose()?,
            newest_first: self.order != Some(Order::Asc),
        };
        Ok((filter, limit))
    }
}

async fn read(
    app: &App,
    tenant: Tenant,
    deployment: DeploymentId,
    revision: Option<RevisionId>,
    kind: LogKind,
    wanted: Wanted,
) -> Result<Json<Logs>, ApiError> {
    let (filter, limit) = wanted.admit(revision, kind)?;
    let read = app.store.read(async |tx| {
        deployments::get(tx, tenant.id, deployment).await?;
        if let Some(revision) = revision {
            revisions::of(tx, tenant.id, deployment, revision)
                .await
                .map_err(|error| match error {
                    store::Error::NotFound => Rejection::not_found("revision").into(),
                    other => other,
                })?;
        }
        revision_logs::list(tx, tenant.id, deployment, &filter, limit).await
    });
    let lines = read.await.map_err(missing(deployment))?;
    let line = |line: LogLine| Line {
        id: line.id,
        timestamp: line.at.micros() / 1_000,
        level: line.level,
        message: line.message,
    };
    Ok(Json(Logs {
        next_offset: lines.last().map(|line| line.id.to_string()),
        logs: lines.into_iter().map(line).collect(),
    }))
}

/// What the build of a revision says.
#[utoipa::path(post, path = "/v1/projects/{project_id}/revisions/{revision_id}/build_logs", tag = "logs",
    params(("project_id" = Uuid, Path, description = "The deployment"),
           ("revision_id" = Uuid, Path, description = "The revision")),
    request_body = Wanted,
    responses((status = 200, description = "Lines", body = Logs),
              (status = 404, description = "No such deployment or revision in this workspace"), ApiError))]
pub async fn of_build(
    State(app): State<App>,
    tenant: Tenant,
    Path((deployment, revision)): Path<(DeploymentId, RevisionId)>,
    Json(wanted): Json<Wanted>,
) -> Result<Json<Logs>, ApiError> {
    read(&app, tenant, deployment, Some(revision), LogKind::Build, wanted).await
}

/// What a revision says when it is deployed and while it serves.
#[utoipa::path(post, path = "/v1/projects/{project_id}/revisions/{revision_id}/deploy_logs", tag = "logs",
    params(("project_id" = Uuid, Path, description = "The deployment"),
           ("revision_id" = Uuid, Path, description = "The revision")),
    request_body = Wanted,
    responses((status = 200, description = "Lines", body = Logs),
              (status = 404, description = "No such deployment or revision in this workspace"), ApiError))]
pub async fn of_revision(
    State(app): State<App>,
    tenant: Tenant,
    Path((deployment, revision)): Path<(DeploymentId, RevisionId)>,
    Json(wanted): Json<Wanted>,
) -> Result<Json<Logs>, ApiError> {
    read(&app, tenant, deployment, Some(revision), LogKind::Deploy, wanted).await
}

/// What a deployment says, whichever of its revisions serves.
#[utoipa::path(post, path = "/v1/projects/{project_id}/deploy_logs", tag = "logs",
    params(("project_id" = Uuid, Path, description = "The deployment")), request_body = Wanted,
    responses((status = 200, description = "Lines", body = Logs),
              (status = 404, description = "No such deployment in this workspace"), ApiError))]
pub async fn of_deployment(
    State(app): State<App>,
    tenant: Tenant,
    Path(deployment): Path<DeploymentId>,
    Json(wanted): Json<Wanted>,
) -> Result<Json<Logs>, ApiError> {
    read(&app, tenant, deployment, None, LogKind::Deploy, wanted).await
}
