//! Schedules: what spawns work again and again.

use axum::extract::State;
use serde::Deserialize;
use towpath_domain::ScheduleId;
use towpath_store::{Store, schedules};

use crate::errors::{ApiError, Error};
use crate::extract::{Json, Path, Query};
use crate::internal::job_stores::JobStores;
use crate::internal::model::{Schedule, Schedules};
use crate::internal::{actions, limit};

/// Page of the list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListSchedules {
    /// Maximum number of results, 1 to 1000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// The `next_cursor` of the previous response.
    #[param(value_type = Option<Uuid>)]
    cursor: Option<ScheduleId>,
}

/// List active and paused schedules of all workspaces, latest first.
#[utoipa::path(get, path = "/internal/schedules", tag = "schedules", security(("api_key" = []), ("bearer" = [])), params(ListSchedules),
    responses((status = 200, description = "Schedules", body = Schedules), ApiError))]
pub(crate) async fn list(
    State(JobStores { store, .. }): State<JobStores>,
    Query(which): Query<ListSchedules>,
) -> Result<Json<Schedules>, ApiError> {
    let limit = limit(which.limit)?;
    let mut found = store
        .read(async |tx| schedules::list(tx, which.cursor, limit + 1).await)
        .await?;
    let shown = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = found.len() > shown;
    found.truncate(shown);
    Ok(Json(Schedules {
        next_cursor: found.last().filter(|_| more).map(|last| last.id.to_string()),
        items: found.into_iter().map(Schedule::from).collect(),
    }))
}

/// Pause a schedule.
#[utoipa::path(post, path = "/internal/schedules/{schedule_id}/pause", tag = "schedules", security(("api_key" = []), ("bearer" = [])),
    params(("schedule_id" = Uuid, Path, description = "The schedule")),
    responses((status = 200, description = "The schedule, paused", body = Schedule),
              (status = 404, description = "No such schedule, or it has ended", body = Error), ApiError))]
pub(crate) async fn pause(
    State(JobStores { store, .. }): State<JobStores>,
    Path(id): Path<ScheduleId>,
) -> Result<Json<Schedule>, ApiError> {
    actions::pause_schedule(&store, id).await?;
    read(&store, id).await
}

/// Resume a schedule at its next time.
#[utoipa::path(post, path = "/internal/schedules/{schedule_id}/resume", tag = "schedules", security(("api_key" = []), ("bearer" = [])),
    params(("schedule_id" = Uuid, Path, description = "The schedule")),
    responses((status = 200, description = "The schedule, active", body = Schedule),
              (status = 404, description = "No such schedule, or it has ended", body = Error), ApiError))]
pub(crate) async fn resume(
    State(JobStores { store, .. }): State<JobStores>,
    Path(id): Path<ScheduleId>,
) -> Result<Json<Schedule>, ApiError> {
    actions::resume_schedule(&store, id).await?;
    read(&store, id).await
}

async fn read(store: &Store, id: ScheduleId) -> Result<Json<Schedule>, ApiError> {
    let found = store.read(async |tx| schedules::get(tx, id).await).await?;
    found
        .map(|schedule| Json(schedule.into()))
        .ok_or_else(|| ApiError::not_found("schedule"))
}
