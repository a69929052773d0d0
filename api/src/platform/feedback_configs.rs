//! Configurations that describe how the scores of a feedback key are interpreted, for people and pages. Feedback that
//! does not match is accepted.

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use towpath_domain::feedback::{FeedbackConfig, check_key};
use towpath_domain::{FeedbackConfigId, Rejection, TenantId, Timestamp};
use towpath_store as store;
use towpath_store::feedback_configs;
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs};
use crate::platform::datasets::model::check_depth;
use crate::platform::paging;

/// Maximum size of one configuration.
const MAX_BYTES: usize = 64 * 1024;

/// The configuration of a feedback key.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = KeyConfig)]
pub struct FeedbackConfigView {
    #[schema(value_type = Uuid)]
    id: FeedbackConfigId,
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    feedback_key: String,
    #[schema(value_type = Object)]
    feedback_config: Box<RawValue>,
    is_lower_score_better: bool,
    is_enforced: bool,
    is_first: bool,
    #[schema(value_type = String, format = DateTime)]
    modified_at: Timestamp,
}

impl TryFrom<feedback_configs::FeedbackConfig> for FeedbackConfigView {
    type Error = ApiError;

    fn try_from(row: feedback_configs::FeedbackConfig) -> Result<Self, ApiError> {
        let unreadable = |_| store::Error::corrupt("feedback_config", "config", row.id);
        Ok(Self {
            feedback_config: RawValue::from_string(row.config).map_err(unreadable)?,
            id: row.id,
            tenant_id: row.tenant_id,
            feedback_key: row.feedback_key,
            is_lower_score_better: row.is_lower_score_better,
            is_enforced: false,
            is_first: true,
            modified_at: row.modified_at,
        })
    }
}

/// A configuration to create.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewKeyConfig)]
pub struct CreateFeedbackConfig {
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00]*$")]
    feedback_key: String,
    /// `type` (`continuous`, `categorical` or `freeform`), `min`, `max`, `categories`, `allows_multiple_categories`.
    #[schema(value_type = Object)]
    feedback_config: Value,
    is_lower_score_better: Option<bool>,
    /// Refused: not available in this build.
    #[serde(default)]
    is_enforced: bool,
}

/// Checks a configuration; unknown fields are kept.
fn check_config(config: &Value) -> Result<Box<RawValue>, ApiError> {
    let wrong = |_| {
        Rejection::invalid(
            "feedback_config",
            "expected an object with a type and, for categories, values and labels",
        )
    };
    let known: FeedbackConfig = serde_json::from_value(config.clone()).map_err(wrong)?;
    known.check()?;
    let raw = to_raw_value(config).map_err(|error| ApiError::internal(&error))?;
    check_depth("feedback_config", &raw)?;
    if raw.get().len() > MAX_BYTES {
        let text = format!("expected at most {MAX_BYTES} bytes");
        return Err(Rejection::invalid("feedback_config", text).into());
    }
    Ok(raw)
}

/// Create the configuration of a key. An identical existing configuration is returned.
#[utoipa::path(post, path = "/feedback-configs", operation_id = "create_config", tag = "feedback", request_body = CreateFeedbackConfig,
    responses((status = 200, description = "Created, or it existed already", body = FeedbackConfigView), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Json(new): Json<CreateFeedbackConfig>,
) -> Result<Json<FeedbackConfigView>, ApiError> {
    check_key("feedback_key", &new.feedback_key)?;
    if new.is_enforced {
        return Err(Rejection::unsupported("is_enforced", "an enforced feedback config").into());
    }
    let config = check_config(&new.feedback_config)?;
    let made = app.store.write(async |tx| {
        let direction = new.is_lower_score_better;
        feedback_configs::create(tx, tenant.id, &new.feedback_key, &config, direction).await
    });
    Ok(Json(made.await?.try_into()?))
}

/// List configurations, sorted by key.
#[utoipa::path(get, path = "/feedback-configs", operation_id = "list_config", tag = "feedback",
    params(("key" = Option<Vec<String>>, Query, description = "Feedback keys"),
           ("name_contains" = Option<String>, Query, description = "Text in the key, in any case"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Configurations", body = Vec<FeedbackConfigView>), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    sent: Pairs,
) -> Result<Json<Vec<FeedbackConfigView>>, ApiError> {
    sent.only(&[
        "key",
        "name_contains",
        "limit",
        "offset",
        "include_all_configs",
        "is_enforced",
    ])?;
    if sent.flag("is_enforced")? == Some(true) {
        return Ok(Json(Vec::new()));
    }
    let keys: Vec<String> = sent.all("key").map(str::to_owned).collect();
    if keys.len() > 100 {
        return Err(ApiError::bad_request("key: expected at most 100"));
    }
    let part = sent.all("name_contains").last();
    let (limit, offset) = paging::of(&sent)?;
    let read = app
        .store
        .read(async |tx| feedback_configs::list(tx, tenant.id, &keys, part, limit, offset).await);
    let shown = read.await?.into_iter().map(FeedbackConfigView::try_from);
    Ok(Json(shown.collect::<Result<_, _>>()?))
}

/// Changes of the configuration of a key; null and omitted fields stay unchanged.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = KeyConfigChange)]
pub struct UpdateFeedbackConfig {
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00]*$")]
    feedback_key: String,
    #[schema(value_type = Option<Object>)]
    feedback_config: Option<Value>,
    is_lower_score_better: Option<bool>,
    #[schema(value_type = Option<Vec<Object>>)]
    add_categories: Option<Vec<Value>>,
    /// Values of categories to remove.
    remove_categories: Option<Vec<f64>>,
}

/// Applies changes of categories to a configuration.
fn with_categories(config: &str, add: &[Value], remove: &[f64]) -> Result<Value, ApiError> {
    let mut config: Value = serde_json::from_str(config).map_err(|error| ApiError::internal(&error))?;
    if config["type"] != "categorical" {
        return Err(Rejection::invalid("feedback_key", "only categorical feedback has categories").into());
    }
    let mut categories = config["categories"].as_array().cloned().unwrap_or_default();
    categories.retain(|category| category["value"].as_f64().is_none_or(|value| !remove.contains(&value)));
    for new in add {
        let taken = |category: &Value| {
            category["value"].as_f64() == new["value"].as_f64()
                || (!new["label"].is_null() && category["label"] == new["label"])
        };
        if categories.iter().any(taken) {
            return Err(Rejection::invalid("add_categories", "the value or the label already exists").into());
        }
        categories.push(new.clone());
    }
    if categories.len() < 2 {
        return Err(Rejection::invalid("remove_categories", "at least two categories must remain").into());
    }
    config["categories"] = json!(categories);
    Ok(config)
}

/// Change the configuration of a key.
#[utoipa::path(patch, path = "/feedback-configs", operation_id = "update_config", tag = "feedback", request_body = UpdateFeedbackConfig,
    responses((status = 200, description = "Updated", body = FeedbackConfigView),
              (status = 404, description = "The key has no configuration"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Json(change): Json<UpdateFeedbackConfig>,
) -> Result<Json<FeedbackConfigView>, ApiError> {
    check_key("feedback_key", &change.feedback_key)?;
    let (add, remove) = (change.add_categories.as_deref(), change.remove_categories.as_deref());
    let mut config = change.feedback_config;
    if add.is_some() || remove.is_some() {
        if config.is_some() {
            let text = "send either feedback_config, or add_categories and remove_categories";
            return Err(Rejection::rule("feedback_config", text).into());
        }
        let read = app
            .store
            .read(async |tx| feedback_configs::find(tx, tenant.id, &change.feedback_key).await);
        let stored = read.await?.ok_or_else(|| ApiError::not_found("feedback config"))?;
        config = Some(with_categories(
            &stored.config,
            add.unwrap_or_default(),
            remove.unwrap_or_default(),
        )?);
    }
    let config = config.as_ref().map(check_config).transpose()?;
    let changed = app.store.write(async |tx| {
        let direction = change.is_lower_score_better;
        feedback_configs::update(tx, tenant.id, &change.feedback_key, config.as_deref(), direction).await
    });
    Ok(Json(changed.await.map_err(config_not_found)?.try_into()?))
}

/// Delete a configuration. Feedback with its key remains.
#[utoipa::path(delete, path = "/feedback-configs", operation_id = "delete_config", tag = "feedback",
    params(("feedback_key" = Option<String>, Query, description = "The feedback key; send either this or `id`"),
           ("id" = Option<Uuid>, Query, description = "The configuration")),
    responses((status = 204, description = "Gone"),
              (status = 404, description = "No such configuration in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<StatusCode, ApiError> {
    sent.only(&["feedback_key", "id"])?;
    let key = sent.all("feedback_key").last();
    let id = sent.read::<Uuid>("id", "a UUID")?.pop().map(FeedbackConfigId);
    if key.is_some() == id.is_some() {
        return Err(ApiError::bad_request("expected exactly one of feedback_key and id"));
    }
    if let Some(key) = key {
        check_key("feedback_key", key)?;
    }
    let gone = app
        .store
        .write(async |tx| feedback_configs::delete(tx, tenant.id, key, id).await);
    gone.await.map_err(config_not_found)?;
    Ok(StatusCode::NO_CONTENT)
}

fn config_not_found(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("feedback config"),
        error => error.into(),
    }
}
