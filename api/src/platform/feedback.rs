//! Judgements on trace runs. They take the way of the traces themselves: durable first, a row when folded.

use axum::extract::{Request, State};
use towpath_traces::accept::Route;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::platform::ingest::{Answer, Ingested, take};

/// Feedback on a trace run: `id` and `key` at least, `run_id`, `score`, `value`, `comment` and what else there is.
#[utoipa::path(post, path = "/feedback", tag = "feedback",
    request_body(content = ref("#/components/schemas/NewFeedback"), content_type = "application/json"),
    responses((status = 202, description = "On disk", body = Ingested), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, request: Request) -> Answer {
    take(&app, tenant, Route::Feedback, "Feedback ingested", request).await
}
