//! Feedback links, which need no key. They are created and listed here and used in [`super::submission`].

use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use towpath_domain::feedback::{
    FeedbackCategory, FeedbackConfig, FeedbackKind, Lifetime, MOST_KEYS, check_key, expires,
};
use towpath_domain::{Rejection, Timestamp, TraceRunId};
use towpath_store::feedback_tokens::{self, FeedbackToken};
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{
    JSON_BODY_BYTES, Json, OneOrMany, Pairs, optional_object, optional_objects, parse_value, unsaid_json, whole,
};
use crate::platform::paging;

/// A link to create.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = NewFeedbackToken)]
pub struct CreateFeedbackToken {
    /// The trace run. It need not exist yet.
    run_id: Uuid,
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00]*$")]
    feedback_key: String,
    /// Lifetime; 3 hours if neither this nor `expires_at` is set.
    #[serde(default, deserialize_with = "optional_object")]
    expires_in: Option<ExpiresIn>,
    /// Expiry time, instead of `expires_in`: in the future, at most 3650 days from now.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// How scores are interpreted; a score that does not match is rejected.
    #[serde(default, deserialize_with = "optional_object")]
    feedback_config: Option<ScoreConfig>,
    /// Id of the feedback: a later submission replaces the earlier one. Without it, each submission creates feedback.
    #[serde(default)]
    id: Option<Uuid>,
}

/// Lifetime of a link, capped at 3650 days.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct ExpiresIn {
    #[serde(default, deserialize_with = "whole")]
    #[schema(default = 0)]
    days: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(default = 0)]
    hours: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(default = 0)]
    minutes: Option<i64>,
}

/// How the scores of a key are interpreted.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = FeedbackConfig)]
struct ScoreConfig {
    #[serde(rename = "type")]
    #[schema(value_type = ScoreKind)]
    kind: FeedbackKind,
    /// Minimum of continuous scores. The two bounds may be sent in either order.
    #[serde(default)]
    min: Option<f64>,
    /// Maximum of continuous scores.
    #[serde(default)]
    max: Option<f64>,
    /// Categories of categorical scores.
    #[serde(default, deserialize_with = "optional_objects")]
    categories: Option<Vec<ScoreCategory>>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = FeedbackType)]
#[expect(dead_code, reason = "only part of the API description")]
enum ScoreKind {
    Continuous,
    Categorical,
    Freeform,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = FeedbackCategory)]
struct ScoreCategory {
    value: f64,
    /// Display name.
    #[serde(default)]
    label: Option<String>,
}

impl From<ScoreConfig> for FeedbackConfig {
    fn from(said: ScoreConfig) -> Self {
        let category = |said: ScoreCategory| FeedbackCategory {
            value: said.value,
            label: said.label,
        };
        Self {
            kind: said.kind,
            min: said.min,
            max: said.max,
            categories: said
                .categories
                .map(|categories| categories.into_iter().map(category).collect()),
        }
    }
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = FeedbackToken)]
pub struct FeedbackLink {
    /// The token: the last segment of the address.
    id: Uuid,
    /// Send GET or POST to this address to submit feedback; needs no key.
    url: String,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
    feedback_key: String,
}

impl FeedbackLink {
    fn new(app: &App, token: Uuid, key: String, expires_at: Timestamp) -> Self {
        Self {
            id: token,
            url: format!("{}/api/v1/feedback/tokens/{token}", app.settings.public_url),
            expires_at,
            feedback_key: key,
        }
    }

    fn of(app: &App, row: FeedbackToken) -> Result<Self, ApiError> {
        let token = row.token(&app.sealer).map_err(|error| ApiError::internal(&error))?;
        Ok(Self::new(app, token, row.key, row.expires_at))
    }
}

/// Create links for submitting feedback on a trace run without a key: one link, or a list of at most 100. A list is
/// created as a whole or not at all.
#[utoipa::path(post, path = "/feedback/tokens", tag = "feedback", request_body = OneOrMany<CreateFeedbackToken>,
    responses((status = 200, description = "The link, or a list in the order of the request", body = OneOrMany<FeedbackLink>),
              (status = 413, description = "Too large"), ApiError))]
pub async fn create_token(
    State(app): State<App>,
    tenant: Tenant,
    request: Request,
) -> Result<Json<OneOrMany<FeedbackLink>>, ApiError> {
    let body = unsaid_json(request, JSON_BODY_BYTES).await?;
    let (wanted, alone) = match parse_value(&body)? {
        OneOrMany::One(one) => (vec![one], true),
        OneOrMany::Many(many) => (many, false),
    };
    if wanted.len() > MOST_KEYS {
        return Err(ApiError::bad_request(format!("expected at most {MOST_KEYS} links")));
    }
    let now = app.clock.now();
    let mut admitted = Vec::with_capacity(wanted.len());
    for (at, new) in wanted.into_iter().enumerate() {
        admitted.push(admit(new, now).map_err(|rejection| match alone {
            true => rejection,
            false => Rejection {
                field: format!("{at}.{}", rejection.field),
                ..rejection
            },
        })?);
    }
    let made = app.store.write(async |tx| {
        let mut made = Vec::with_capacity(admitted.len());
        for new in &admitted {
            made.push(feedback_tokens::insert(tx, tenant.id, &app.sealer, new).await?);
        }
        Ok(made)
    });
    let made = made.await?.into_iter().zip(admitted);
    let mut links: Vec<FeedbackLink> = made
        .map(|(token, new)| FeedbackLink::new(&app, token, new.key, new.expires_at))
        .collect();
    Ok(Json(match links.pop() {
        Some(link) if alone => OneOrMany::One(link),
        last => {
            links.extend(last);
            OneOrMany::Many(links)
        }
    }))
}

fn admit(new: CreateFeedbackToken, now: Timestamp) -> Result<feedback_tokens::NewToken, Rejection> {
    check_key("feedback_key", &new.feedback_key)?;
    let span = new.expires_in.map(|span| Lifetime {
        days: span.days.unwrap_or_default(),
        hours: span.hours.unwrap_or_default(),
        minutes: span.minutes.unwrap_or_default(),
    });
    let expires_at = expires(now, new.expires_at, span)?;
    let config = new.feedback_config.map(FeedbackConfig::from);
    config.as_ref().map_or(Ok(()), FeedbackConfig::check)?;
    Ok(feedback_tokens::NewToken {
        run: TraceRunId(new.run_id),
        key: new.feedback_key,
        feedback: new.id,
        config: config.map(|config| serde_json::to_string(&config).expect("numbers and texts are JSON")),
        expires_at,
    })
}

/// List the unexpired links of a trace run in order of creation.
#[utoipa::path(get, path = "/feedback/tokens", tag = "feedback",
    params(("run_id" = Uuid, Query, description = "The trace run"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Links", body = Vec<FeedbackLink>), ApiError))]
pub async fn list_tokens(
    State(app): State<App>,
    tenant: Tenant,
    sent: Pairs,
) -> Result<Json<Vec<FeedbackLink>>, ApiError> {
    sent.only(&["run_id", "limit", "offset"])?;
    let (limit, offset) = paging::of(&sent)?;
    let run = sent
        .read::<Uuid>("run_id", "a UUID")?
        .pop()
        .ok_or_else(|| ApiError::invalid_at(vec!["query".into(), "run_id".into()], "missing", "field required"))?;
    let now = app.clock.now();
    let found = app
        .store
        .read(async |tx| feedback_tokens::of_run(tx, tenant.id, TraceRunId(run), now, limit, offset).await)
        .await?;
    let links: Result<Vec<FeedbackLink>, ApiError> = found.into_iter().map(|row| FeedbackLink::of(&app, row)).collect();
    links.map(Json)
}
