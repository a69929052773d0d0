//! Links by which somebody without a key gives feedback: made and listed here, used in [`super::given`].

use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use towpath_domain::feedback::{FeedbackCategory, FeedbackConfig, FeedbackKind, MOST_KEYS, Span, check_key, expires};
use towpath_domain::{Rejection, Timestamp, TraceRunId};
use towpath_store::feedback_tokens::{self, FeedbackToken};
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{
    JSON_BODY_BYTES, Json, OneOrMany, Pairs, optional_object, optional_objects, parse_value, unsaid_json, whole,
};
use crate::platform::exports::MAX_OFFSET;

/// A link to be made.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = NewFeedbackToken)]
pub struct NewToken {
    /// The trace run to be judged. It need not be there yet.
    run_id: Uuid,
    /// Under which name.
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00]*$")]
    feedback_key: String,
    /// How long it lasts; 3 hours where neither this nor `expires_at` is said.
    #[serde(default, deserialize_with = "optional_object")]
    expires_in: Option<ExpiresIn>,
    /// When it ends, in place of `expires_in`: in the future, at most 3650 days from now.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// How the scores are meant; one that does not fit is refused.
    #[serde(default, deserialize_with = "optional_object")]
    feedback_config: Option<ScoreConfig>,
    /// The id of the feedback that is given: what is given later replaces it. Without one, each use gives another
    /// feedback.
    #[serde(default)]
    id: Option<Uuid>,
}

/// How long a link lasts: at most 3650 days, to which more is cut.
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

/// How the scores of a key are meant.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = FeedbackConfig)]
struct ScoreConfig {
    #[serde(rename = "type")]
    #[schema(value_type = ScoreKind)]
    kind: FeedbackKind,
    /// The least score of continuous ones. The two bounds may come in either order.
    #[serde(default)]
    min: Option<f64>,
    /// The highest.
    #[serde(default)]
    max: Option<f64>,
    /// The scores there are, of categorical ones.
    #[serde(default, deserialize_with = "optional_objects")]
    categories: Option<Vec<ScoreCategory>>,
}

/// Sorts of scores.
#[derive(Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = FeedbackType)]
#[expect(dead_code, reason = "described only")]
enum ScoreKind {
    Continuous,
    Categorical,
    Freeform,
}

/// One of some scores.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = FeedbackCategory)]
struct ScoreCategory {
    value: f64,
    /// What people call it.
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

/// A link.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = FeedbackToken)]
pub struct Token {
    /// The token itself, the last part of the address.
    id: Uuid,
    /// GET or POST this to give feedback; needs no key.
    url: String,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
    feedback_key: String,
}

impl Token {
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

/// Make links by which somebody without a key gives feedback on a trace run, each under one name: one, or a list of at
/// most 100. In a list all are made or none.
#[utoipa::path(post, path = "/feedback/tokens", tag = "feedback", request_body = OneOrMany<NewToken>,
    responses((status = 200, description = "The link, or a list of them in the order asked for", body = OneOrMany<Token>),
              (status = 413, description = "Too large"), ApiError))]
pub async fn create_token(
    State(app): State<App>,
    tenant: Tenant,
    request: Request,
) -> Result<Json<OneOrMany<Token>>, ApiError> {
    let body = unsaid_json(request, JSON_BODY_BYTES).await?;
    let (wanted, alone) = match parse_value(&body)? {
        OneOrMany::One(one) => (vec![one], true),
        OneOrMany::Many(many) => (many, false),
    };
    if wanted.len() > MOST_KEYS {
        return Err(ApiError::bad_request(format!("at most {MOST_KEYS} links at once")));
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
    let mut links: Vec<Token> = made
        .map(|(token, new)| Token::new(&app, token, new.key, new.expires_at))
        .collect();
    Ok(Json(match links.pop() {
        Some(link) if alone => OneOrMany::One(link),
        last => {
            links.extend(last);
            OneOrMany::Many(links)
        }
    }))
}

fn admit(new: NewToken, now: Timestamp) -> Result<feedback_tokens::NewToken, Rejection> {
    check_key("feedback_key", &new.feedback_key)?;
    let span = new.expires_in.map(|span| Span {
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

/// Links to a trace run that have not ended, in the order in which they were made.
#[utoipa::path(get, path = "/feedback/tokens", tag = "feedback",
    params(("run_id" = Uuid, Query, description = "The trace run"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "At most so many; 100 is the default"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Skip so many")),
    responses((status = 200, description = "Links", body = Vec<Token>), ApiError))]
pub async fn list_tokens(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<Vec<Token>>, ApiError> {
    sent.only(&["run_id", "limit", "offset"])?;
    let limit = sent.number("limit", 1..=100)?.unwrap_or(100);
    let offset = sent.number("offset", 0..=MAX_OFFSET)?.unwrap_or(0);
    let run = sent
        .read::<Uuid>("run_id", "a UUID")?
        .pop()
        .ok_or_else(|| ApiError::invalid_at(vec!["query".into(), "run_id".into()], "missing", "field required"))?;
    let now = app.clock.now();
    let found = app
        .store
        .read(async |tx| feedback_tokens::of_run(tx, tenant.id, TraceRunId(run), now, limit, offset).await)
        .await?;
    let links: Result<Vec<Token>, ApiError> = found.into_iter().map(|row| Token::of(&app, row)).collect();
    links.map(Json)
}
