//! Limits on how often one caller may ask.

use axum::extract::State;
use serde::Serialize;
use towpath_domain::Timestamp;

use crate::app::App;
use crate::errors::ApiError;
use crate::extract::Json;
use crate::limits::View;

/// All limits, and who is near one or was refused.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RateLimits {
    /// Which rules are followed: `us`, `eu`, or a file; null where there are none.
    table: Option<String>,
    /// Where requests are counted: `here` (in this process, which is the only one), `shared` (in Redis, for all
    /// processes), `apart` (in each process by itself, because Redis does not answer), or `off`.
    #[schema(value_type = String)]
    counted: &'static str,
    /// In the order in which they are looked at.
    items: Vec<RateLimit>,
    /// As the process saw them that answers.
    callers: Vec<LimitedCaller>,
}

/// A limit.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RateLimit {
    name: String,
    category: String,
    /// What requests have in common that are counted together.
    #[schema(value_type = String)]
    identity: &'static str,
    /// So many requests may stand in its window.
    #[schema(minimum = 1)]
    count: u32,
    /// The length of its window.
    #[schema(minimum = 1)]
    interval_seconds: u64,
    /// Requests it let pass since this process began.
    #[schema(minimum = 0)]
    passed: u64,
    /// Requests it refused since this process began.
    #[schema(minimum = 0)]
    refused: u64,
}

/// Somebody who used half of what a limit allows, or was refused within the last hour.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct LimitedCaller {
    limit: String,
    /// An address, a user, a workspace, a deployment, or the beginning of a key's digest.
    who: String,
    /// Requests in the window when the last one was counted; null once that window is over.
    #[schema(minimum = 0)]
    count: Option<u32>,
    /// How many may.
    #[schema(minimum = 1)]
    of: u32,
    /// When the last request was counted.
    #[schema(value_type = String, format = DateTime)]
    seen_at: Timestamp,
    /// Requests refused since it is listed.
    #[schema(minimum = 0)]
    refused: u64,
    /// When the last one was.
    #[schema(value_type = Option<String>, format = DateTime)]
    refused_at: Option<Timestamp>,
}

/// Limits on how often one caller may ask, and who is near one or was refused.
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

    fn of(view: View) -> Self {
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
            who: caller.who,
            count: caller.count,
            of: caller.of,
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
