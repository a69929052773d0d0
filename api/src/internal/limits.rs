//! Limits on how often one caller may ask.

use axum::extract::State;
use serde::Serialize;
use towpath_domain::Timestamp;

use crate::app::App;
use crate::errors::ApiError;
use crate::extract::Json;
use crate::limits::LimitsView;

/// Rate limits, and callers near a limit or rejected.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RateLimits {
    /// Active rules: `us`, `eu`, or a file; null if none.
    table: Option<String>,
    /// Where requests are counted: `here` (the only process), `shared` (in Redis, across processes), `apart` (per
    /// process, because Redis is unavailable), or `off`.
    #[schema(value_type = String)]
    counted: &'static str,
    /// In the order of evaluation.
    items: Vec<RateLimit>,
    /// As seen by the responding process.
    callers: Vec<LimitedCaller>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RateLimit {
    name: String,
    category: String,
    /// Identity whose requests are counted together.
    #[schema(value_type = String)]
    identity: &'static str,
    /// Maximum number of requests in the window.
    #[schema(minimum = 1)]
    count: u32,
    /// Length of the window.
    #[schema(minimum = 1)]
    interval_seconds: u64,
    /// Requests allowed since the process started.
    #[schema(minimum = 0)]
    passed: u64,
    /// Requests rejected since the process started.
    #[schema(minimum = 0)]
    refused: u64,
}

/// A caller that used half of a limit or was rejected within the last hour.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct LimitedCaller {
    limit: String,
    /// An address, a user, a workspace, a deployment, or the beginning of a key's hash.
    who: String,
    /// Requests in the window at the last one; null after the window.
    #[schema(minimum = 0)]
    count: Option<u32>,
    /// Maximum number of requests in the window.
    #[schema(minimum = 1)]
    of: u32,
    /// Time of the last request.
    #[schema(value_type = String, format = DateTime)]
    seen_at: Timestamp,
    /// Rejected requests since it was listed.
    #[schema(minimum = 0)]
    refused: u64,
    /// Time of the last rejection.
    #[schema(value_type = Option<String>, format = DateTime)]
    refused_at: Option<Timestamp>,
}

/// List rate limits, and callers near a limit or rejected.
#[utoipa::path(get, path = "/internal/limits", tag = "limits", security(("api_key" = []), ("bearer" = [])),
    responses((status = 200, description = "The limits", body = RateLimits), ApiError))]
pub(crate) async fn list(State(app): State<App>) -> Json<RateLimits> {
    Json(app.limits.view().map_or_else(RateLimits::off, RateLimits::of))
}

impl RateLimits {
    fn off() -> Self {
        Self {
            table: None,
            counted: "off",
            items: Vec::new(),
            callers: Vec::new(),
        }
    }

    fn of(view: LimitsView) -> Self {
        let items = view.limits.into_iter().map(|limit| RateLimit {
            name: limit.name,
            category: limit.category,
            identity: limit.identity,
            count: limit.count,
            interval_seconds: limit.length.as_secs(),
            passed: limit.passed,
            refused: limit.refused,
        });
        let callers = view.callers.into_iter().map(|caller| LimitedCaller {
            limit: caller.limit,
            who: caller.identity,
            count: caller.count,
            of: caller.allowed,
            seen_at: caller.at,
            refused: caller.refused,
            refused_at: caller.refused_at,
        });
        Self {
            table: view.table,
            counted: view.counted,
            items: items.collect(),
            callers: callers.collect(),
        }
    }
}
