//! Prices of models, from which the costs of trace runs follow.

use std::collections::BTreeMap;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use towpath_domain::{ModelPriceId, Rejection, TenantId, Timestamp};
use towpath_store as store;
use towpath_store::model_prices::{self, NewModelPrice};
use towpath_traces::prices::{self, ModelPrice, TokenPrice, default_match_path};
use towpath_workflows::reprice_days;
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path};

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ModelPrice)]
pub struct ModelPriceView {
    id: Uuid,
    /// Null for a price that applies to every workspace; it cannot be changed or deleted.
    #[schema(value_type = Option<Uuid>)]
    tenant_id: Option<TenantId>,
    name: String,
    /// Null for any provider.
    provider: Option<String>,
    match_path: Vec<String>,
    match_pattern: String,
    /// Applies to runs that start at or after this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    start_time: Option<Timestamp>,
    /// Dollars per token.
    #[schema(value_type = String)]
    prompt_cost: TokenPrice,
    /// Dollars per token.
    #[schema(value_type = String)]
    completion_cost: TokenPrice,
    /// Dollars per token of special kinds.
    #[schema(value_type = BTreeMap<String, String>)]
    prompt_cost_details: BTreeMap<String, TokenPrice>,
    /// Dollars per token of special kinds.
    #[schema(value_type = BTreeMap<String, String>)]
    completion_cost_details: BTreeMap<String, TokenPrice>,
}

impl ModelPriceView {
    fn own(row: &model_prices::ModelPrice) -> Result<Self, ApiError> {
        Ok(Self::new(row.id.0, Some(row.tenant_id), prices::price(row)?))
    }

    /// A price of the server. Its id follows from its content.
    fn common(price: &ModelPrice) -> Result<Self, ApiError> {
        let content = serde_json::to_vec(price).map_err(|error| ApiError::internal(&error))?;
        Ok(Self::new(Uuid::new_v5(&Uuid::nil(), &content), None, price.clone()))
    }

    fn new(id: Uuid, tenant_id: Option<TenantId>, price: ModelPrice) -> Self {
        Self {
            id,
            tenant_id,
            name: price.name,
            provider: price.provider,
            match_path: price.match_path,
            match_pattern: price.match_pattern,
            start_time: price.start_time,
            prompt_cost: price.prompt_cost,
            completion_cost: price.completion_cost,
            prompt_cost_details: price.prompt_cost_details,
            completion_cost_details: price.completion_cost_details,
        }
    }
}

/// A price to create, or to replace one by.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewModelPrice)]
pub struct SetModelPrice {
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000]*$")]
    name: String,
    /// Name of the provider as in `ls_provider`; null for any.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000]*$")]
    provider: Option<String>,
    /// Parameters of the call that name the model.
    #[schema(min_items = 1, max_items = 16)]
    match_path: Option<Vec<String>>,
    /// Regular expression for the name of the model, without look-around.
    #[schema(min_length = 1, max_length = 1024, pattern = r"^[^\u0000]*$")]
    match_pattern: String,
    /// Applies to runs that start at or after this time; null for all.
    #[schema(value_type = Option<String>, format = DateTime)]
    start_time: Option<Timestamp>,
    /// Dollars per token, from 0 to less than 1000, as a number or as a decimal number in a string.
    #[schema(value_type = String)]
    prompt_cost: Box<RawValue>,
    /// Dollars per token, from 0 to less than 1000, as a number or as a decimal number in a string.
    #[schema(value_type = String)]
    completion_cost: Box<RawValue>,
    /// Dollars per token of special kinds of `input_token_details`, at most 32.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    prompt_cost_details: Option<BTreeMap<String, Box<RawValue>>>,
    /// Dollars per token of special kinds of `output_token_details`, at most 32.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    completion_cost_details: Option<BTreeMap<String, Box<RawValue>>>,
}

impl SetModelPrice {
    fn admit(self) -> Result<NewModelPrice, ApiError> {
        let price = ModelPrice {
            name: self.name,
            provider: self.provider,
            match_pattern: self.match_pattern,
            match_path: self.match_path.unwrap_or_else(default_match_path),
            start_time: self.start_time,
            prompt_cost: token_price("prompt_cost", &self.prompt_cost)?,
            completion_cost: token_price("completion_cost", &self.completion_cost)?,
            prompt_cost_details: token_prices("prompt_cost_details", self.prompt_cost_details)?,
            completion_cost_details: token_prices("completion_cost_details", self.completion_cost_details)?,
        };
        price.check()?;
        let json = |details: &BTreeMap<String, TokenPrice>| {
            serde_json::to_string(details).map_err(|error| ApiError::internal(&error))
        };
        let has_own_path = price.match_path != prices::MATCH_PATH;
        let path = has_own_path.then(|| serde_json::to_string(&price.match_path));
        Ok(NewModelPrice {
            prompt_cost: price.prompt_cost.to_string(),
            completion_cost: price.completion_cost.to_string(),
            prompt_cost_details: json(&price.prompt_cost_details)?,
            completion_cost_details: json(&price.completion_cost_details)?,
            match_path: path.transpose().map_err(|error| ApiError::internal(&error))?,
            name: price.name,
            provider: price.provider,
            match_pattern: price.match_pattern,
            start_time: price.start_time,
        })
    }
}

/// Reads the text of a number, which keeps every digit.
fn token_price(field: &str, raw: &RawValue) -> Result<TokenPrice, ApiError> {
    let price = TokenPrice::parse(raw.get());
    Ok(price.ok_or_else(|| {
        let text = "expected a decimal number of dollars per token from 0 to less than 1000, with at most 18 digits \
                    after the point";
        Rejection::invalid(field, text)
    })?)
}

fn token_prices(
    field: &str,
    sent: Option<BTreeMap<String, Box<RawValue>>>,
) -> Result<BTreeMap<String, TokenPrice>, ApiError> {
    let sent = sent.unwrap_or_default().into_iter();
    sent.map(|(kind, raw)| Ok((kind, token_price(field, &raw)?))).collect()
}

/// Create a price. Costs of trace runs are computed again in the background.
#[utoipa::path(post, path = "/model-price-map", operation_id = "create_price", tag = "model-prices", request_body = SetModelPrice,
    responses((status = 200, description = "Created", body = ModelPriceView), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Json(new): Json<SetModelPrice>,
) -> Result<Json<ModelPriceView>, ApiError> {
    let new = new.admit()?;
    let made = app.store.write(async |tx| {
        reprice_days::ensure(tx, tenant.id).await?;
        model_prices::create(tx, tenant.id, &new).await
    });
    ModelPriceView::own(&made.await?).map(Json)
}

/// List the prices of the workspace, newest first, then those of the server.
#[utoipa::path(get, path = "/model-price-map", operation_id = "list_prices", tag = "model-prices",
    responses((status = 200, description = "Prices", body = Vec<ModelPriceView>), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant) -> Result<Json<Vec<ModelPriceView>>, ApiError> {
    let rows = app
        .store
        .read(async |tx| model_prices::list(tx, tenant.id).await)
        .await?;
    let own = rows.iter().map(ModelPriceView::own);
    let common = app.objects.prices().common().map(ModelPriceView::common);
    Ok(Json(own.chain(common).collect::<Result<_, _>>()?))
}

/// Replace a price. Costs of trace runs are computed again in the background.
#[utoipa::path(put, path = "/model-price-map/{model_price_id}", operation_id = "update_price", tag = "model-prices",
    request_body = SetModelPrice, params(("model_price_id" = Uuid, Path, description = "The price")),
    responses((status = 200, description = "Replaced", body = ModelPriceView),
              (status = 404, description = "No such price in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ModelPriceId>,
    Json(new): Json<SetModelPrice>,
) -> Result<Json<ModelPriceView>, ApiError> {
    let new = new.admit()?;
    let changed = app.store.write(async |tx| {
        reprice_days::ensure(tx, tenant.id).await?;
        model_prices::update(tx, tenant.id, id, &new).await
    });
    ModelPriceView::own(&changed.await.map_err(price_not_found)?).map(Json)
}

/// Delete a price. Costs of trace runs are computed again in the background.
#[utoipa::path(delete, path = "/model-price-map/{model_price_id}", operation_id = "delete_price", tag = "model-prices",
    params(("model_price_id" = Uuid, Path, description = "The price")),
    responses((status = 204, description = "Gone"),
              (status = 404, description = "No such price in this workspace"), ApiError))]
pub async fn delete(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ModelPriceId>,
) -> Result<StatusCode, ApiError> {
    let gone = app.store.write(async |tx| {
        reprice_days::ensure(tx, tenant.id).await?;
        model_prices::delete(tx, tenant.id, id).await
    });
    gone.await.map_err(price_not_found)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Compute the costs of all trace runs of the workspace again, in the background: after an upgrade with other bundled
/// prices, or a change of the server's file.
#[utoipa::path(post, path = "/model-price-map/reprice", operation_id = "reprice_runs", tag = "model-prices",
    responses((status = 202, description = "Recorded"), ApiError))]
pub async fn reprice(State(app): State<App>, tenant: Tenant) -> Result<StatusCode, ApiError> {
    let recorded = app.store.write(async |tx| {
        reprice_days::ensure(tx, tenant.id).await?;
        model_prices::bump(tx, tenant.id).await
    });
    recorded.await?;
    Ok(StatusCode::ACCEPTED)
}

fn price_not_found(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("model price"),
        error => error.into(),
    }
}
