//! Feedback submitted through a link without a key. The link fixes the trace run and the feedback key; everything else
//! is handled as for feedback with a key.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::routing::options;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tower_http::cors::{Any, CorsLayer};
use towpath_domain::Rejection;
use towpath_domain::feedback::FeedbackConfig;
use towpath_domain::json::{check, replace_lone_surrogates};
use towpath_store as store;
use towpath_store::feedback_tokens::{self, FeedbackToken};
use towpath_traces::accept::{self, Route};
use towpath_traces::body::Limits;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use crate::app::App;
use crate::errors::{ApiError, LocSegment};
use crate::extract::{Json, Pairs, Path, parse_json, unsaid_json};
use crate::platform::ingest::{Ingested, append};
use crate::routes::{Routes, routes};

/// Maximum size of one submission.
const MOST_BYTES: usize = 64 * 1024;
/// How long a browser may cache the preflight response.
const MAX_AGE: Duration = Duration::from_secs(600);

pub(crate) fn routes() -> Routes<App> {
    Routes::default().routes(routes!(by_address, by_body))
}

/// Pages of every origin may call: a link grants access to nothing else.
pub(crate) fn allow_all_origins(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    let pages = CorsLayer::new()
        .allow_origin(Any)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([CONTENT_TYPE])
        .max_age(MAX_AGE);
    // The layer answers preflight requests, but only on routes that accept OPTIONS.
    let asked = options(async || StatusCode::NO_CONTENT);
    router.route("/feedback/tokens/{token}", asked).layer(pages)
}

/// Submitted feedback.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = GivenFeedback)]
pub struct FeedbackSubmission {
    /// A number, or true (1) or false (0).
    #[serde(default)]
    #[schema(value_type = Option<Score>)]
    score: Option<Value>,
    /// Any value except a list.
    #[serde(default)]
    #[schema(value_type = Option<Judgement>)]
    value: Option<Value>,
    #[serde(default)]
    comment: Option<String>,
    /// The correct answer: an object or a text.
    #[serde(default)]
    #[schema(value_type = Option<Correction>)]
    correction: Option<Value>,
    /// Stored in `feedback_source`.
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only part of the API description")]
enum Score {
    Number(f64),
    Flag(bool),
}

#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only part of the API description")]
enum Judgement {
    Number(f64),
    Flag(bool),
    Text(String),
    Object(Map<String, Value>),
}

#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only part of the API description")]
enum Correction {
    Object(Map<String, Value>),
    Text(String),
}

impl FeedbackSubmission {
    /// Checks the values, and the score against the link's configuration.
    fn admit(&self, config: Option<&FeedbackConfig>) -> Result<(), Rejection> {
        let expect = |field: &str, value: &Option<Value>, fits: fn(&Value) -> bool, expected: &str| match value {
            Some(value) if !fits(value) => Err(Rejection::invalid(field, format!("expected {expected}"))),
            _ => Ok(()),
        };
        let score = "a number, true or false";
        expect(
            "score",
            &self.score,
            |score| score.is_number() || score.is_boolean(),
            score,
        )?;
        let value = "a number, a text, true, false or an object";
        expect("value", &self.value, |value| !value.is_array(), value)?;
        let correction = "an object or a text";
        expect(
            "correction",
            &self.correction,
            |given| given.is_object() || given.is_string(),
            correction,
        )?;
        let score = self.score.as_ref().and_then(|score| match score {
            Value::Bool(yes) => Some(f64::from(u8::from(*yes))),
            number => number.as_f64(),
        });
        match (config, score) {
            (Some(config), Some(score)) => config.admit(score),
            _ => Ok(()),
        }
    }
}

/// Submit feedback through a link with a GET request, for example a click in a mail. Without parameters, the feedback
/// consists of its key alone.
#[utoipa::path(get, path = "/feedback/tokens/{token}", tag = "feedback", security(()),
    params(("token" = Uuid, Path, description = "Token from the link"),
           ("score" = Option<f64>, Query, description = "A number, or true or false"),
           ("value" = Option<String>, Query, description = "A text"),
           ("comment" = Option<String>, Query, description = "A text"),
           ("correction" = Option<String>, Query, description = "The correct answer: an object as JSON, or a text")),
    responses((status = 200, description = "Stored durably", body = Ingested),
              (status = 404, description = "No such link"),
              (status = 410, description = "The link has expired"),
              (status = 413, description = "Too large"), ApiError))]
pub async fn by_address(
    State(app): State<App>,
    method: Method,
    Path(token): Path<Uuid>,
    sent: Pairs,
) -> Result<Json<Ingested>, ApiError> {
    let link = find(&app, token).await?;
    let said = |name: &'static str| sent.all(name).last().filter(|text| !text.is_empty());
    let score = said("score").map(|text| {
        // Python clients write `True`.
        let read = serde_json::from_str(&text.to_ascii_lowercase()).ok();
        read.filter(|score: &Value| score.is_number() || score.is_boolean())
            .ok_or_else(|| {
                let loc = vec![LocSegment::from("query"), LocSegment::from("score")];
                ApiError::invalid_at(loc, "value_error", "expected a number, true or false")
            })
    });
    let given = FeedbackSubmission {
        score: score.transpose()?,
        value: said("value").map(|text| json!(text)),
        comment: said("comment").map(str::to_owned),
        correction: said("correction").map(|text| match serde_json::from_str(text) {
            Ok(Value::Object(object)) => Value::Object(object),
            _ => json!(text),
        }),
        metadata: None,
    };
    if method == Method::HEAD {
        // A HEAD request only tests the link.
        return Ok(Json(Ingested {
            message: "The link works",
        }));
    }
    submit(&app, link, given).await
}

/// Submit feedback through a link.
#[utoipa::path(post, path = "/feedback/tokens/{token}", tag = "feedback", security(()),
    params(("token" = Uuid, Path, description = "Token from the link")),
    request_body = FeedbackSubmission,
    responses((status = 200, description = "Stored durably", body = Ingested),
              (status = 404, description = "No such link"),
              (status = 410, description = "The link has expired"),
              (status = 413, description = "Larger than 64 KiB"), ApiError))]
pub async fn by_body(
    State(app): State<App>,
    Path(token): Path<Uuid>,
    request: Request,
) -> Result<Json<Ingested>, ApiError> {
    let link = find(&app, token).await?;
    let body = unsaid_json(request, MOST_BYTES).await?;
    // A text cut inside an emoji contains half of a surrogate pair.
    let given = match check(&body) {
        Ok(text) => parse_json(replace_lone_surrogates(text).as_bytes()),
        Err(_) => parse_json(&body),
    };
    submit(&app, link, given?).await
}

/// The link, if it accepts feedback.
async fn find(app: &App, token: Uuid) -> Result<FeedbackToken, ApiError> {
    let found = app.store.read(async |tx| feedback_tokens::find(tx, token).await).await;
    let link = match found {
        Err(store::Error::NotFound) => return Err(ApiError::not_found("feedback link")),
        found => found?,
    };
    if app.clock.now() >= link.expires_at {
        let text = "this feedback link has expired; request a new one";
        return Err(ApiError::new(StatusCode::GONE, text));
    }
    Ok(link)
}

/// Stores the submission like any other feedback.
async fn submit(app: &App, link: FeedbackToken, given: FeedbackSubmission) -> Result<Json<Ingested>, ApiError> {
    let config: Option<FeedbackConfig> = link.config.as_deref().and_then(|text| serde_json::from_str(text).ok());
    given.admit(config.as_ref())?;
    let now = app.clock.now();
    let body = json!({
        "id": link.feedback_id.unwrap_or_else(Uuid::now_v7),
        "run_id": link.run_id,
        "key": link.key,
        "score": given.score,
        "value": given.value,
        "comment": given.comment,
        "correction": given.correction,
        "feedback_config": config,
        "feedback_source": {"type": "api", "metadata": given.metadata},
        "created_at": now,
    });
    let body = Bytes::from(body.to_string());
    let sent_bytes = body.len() as u64;
    let request = accept::Request {
        tenant: link.tenant_id,
        route: Route::Feedback,
        content_type: "application/json",
        content_encoding: None,
        body,
        received_at: now,
    };
    append(app, accept::accept(request, &Limits::default())?, sent_bytes).await?;
    Ok(Json(Ingested {
        message: "Feedback ingested",
    }))
}
