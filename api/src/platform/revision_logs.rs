//! Logs of builds and deployments. Version 1 of the API calls a deployment a project.

use axum::extract::State;
use serde::de::IgnoredAny;
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

/// Maximum number of lines in one response.
const MAX_LINES: i64 = 1_000;

/// Filters of log lines.
#[derive(Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LogQuery)]
pub struct LogQuery {
    /// Maximum number of lines; default 100.
    #[serde(default, deserialize_with = "crate::extract::whole")]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `desc` for newest first, which is the default, or `asc`.
    #[serde(default)]
    #[schema(value_type = Option<names::Order>)]
    order: Option<Order>,
    /// `next_offset` of an earlier response: continue after it.
    #[serde(default)]
    offset: Option<String>,
    /// Minimum level; `CRITICAL` counts as `ERROR`.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^(?i:debug|info|warning|error|critical)$")]
    level: Option<String>,
    /// Text in the message, in any case.
    #[serde(default)]
    query: Option<String>,
    /// Lines at or after this time.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    start_time: Option<Moment>,
    /// Lines before this time.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Option<Moment>,
}

/// A time as text, or in milliseconds since 1970 like in log lines.
#[derive(Deserialize)]
#[serde(untagged)]
enum Moment {
    Text(String),
    Millis(#[serde(deserialize_with = "crate::extract::whole_number")] i64),
    Other(IgnoredAny),
}

impl Moment {
    fn admit(self, field: &str) -> Result<Timestamp, Rejection> {
        let wrong = || {
            Rejection::invalid(
                field,
                "expected a date-time such as 2026-03-08T00:00:00Z, or milliseconds since 1970",
            )
        };
        let millis = match self {
            Self::Millis(millis) => millis,
            Self::Other(_) => return Err(wrong()),
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

/// Log lines.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Logs {
    logs: Vec<LogLineView>,
    /// Position after the last line, for the next request; null without lines. Later lines follow it.
    next_offset: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = LogLine)]
pub struct LogLineView {
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

impl LogQuery {
    fn admit(self, revision: Option<RevisionId>, kind: LogKind) -> Result<(Filter, i64), Rejection> {
        let limit = self.limit.unwrap_or(100);
        if !(1..=MAX_LINES).contains(&limit) {
            let text = format!("expected a number between 1 and {MAX_LINES}");
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
            let wrong = || Rejection::invalid("offset", "expected the next_offset of an earlier response");
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
    wanted: LogQuery,
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
    let line = |line: LogLine| LogLineView {
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

/// Get the build log of a revision.
#[utoipa::path(post, path = "/v1/projects/{project_id}/revisions/{revision_id}/build_logs", tag = "logs",
    params(("project_id" = Uuid, Path, description = "The deployment"),
           ("revision_id" = Uuid, Path, description = "The revision")),
    request_body = LogQuery,
    responses((status = 200, description = "Lines", body = Logs),
              (status = 404, description = "No such deployment or revision in this workspace"), ApiError))]
pub async fn of_build(
    State(app): State<App>,
    tenant: Tenant,
    Path((deployment, revision)): Path<(DeploymentId, RevisionId)>,
    Json(wanted): Json<LogQuery>,
) -> Result<Json<Logs>, ApiError> {
    read(&app, tenant, deployment, Some(revision), LogKind::Build, wanted).await
}

/// Get the deploy log of a revision.
#[utoipa::path(post, path = "/v1/projects/{project_id}/revisions/{revision_id}/deploy_logs", tag = "logs",
    params(("project_id" = Uuid, Path, description = "The deployment"),
           ("revision_id" = Uuid, Path, description = "The revision")),
    request_body = LogQuery,
    responses((status = 200, description = "Lines", body = Logs),
              (status = 404, description = "No such deployment or revision in this workspace"), ApiError))]
pub async fn of_revision(
    State(app): State<App>,
    tenant: Tenant,
    Path((deployment, revision)): Path<(DeploymentId, RevisionId)>,
    Json(wanted): Json<LogQuery>,
) -> Result<Json<Logs>, ApiError> {
    read(&app, tenant, deployment, Some(revision), LogKind::Deploy, wanted).await
}

/// Get the log of a deployment, of all its revisions.
#[utoipa::path(post, path = "/v1/projects/{project_id}/deploy_logs", tag = "logs",
    params(("project_id" = Uuid, Path, description = "The deployment")), request_body = LogQuery,
    responses((status = 200, description = "Lines", body = Logs),
              (status = 404, description = "No such deployment in this workspace"), ApiError))]
pub async fn of_deployment(
    State(app): State<App>,
    tenant: Tenant,
    Path(deployment): Path<DeploymentId>,
    Json(wanted): Json<LogQuery>,
) -> Result<Json<Logs>, ApiError> {
    read(&app, tenant, deployment, None, LogKind::Deploy, wanted).await
}
