//! Destinations of bulk exports.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use towpath_domain::export::{
    AddressingStyle, Credentials, DestinationConfig, DestinationKind, DestinationRequest, S3Options,
};
use towpath_domain::{DestinationId, Rejection, Secret, TenantId, Timestamp};
use towpath_outbound::{DestinationFailure, Reason};
use towpath_store::destinations::{self, NewDestination};
use towpath_workflows::delete_destination;
use towpath_workflows::services::prefix;
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, Query, object, optional_object};
use crate::idempotency::{self, IdempotencyKey, IdempotentJson};
use crate::platform::names;
use crate::platform::paging;

/// A destination of bulk exports.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Destination {
    #[schema(value_type = Uuid)]
    id: DestinationId,
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    #[schema(value_type = names::DestinationType)]
    destination_type: DestinationKind,
    display_name: String,
    #[schema(value_type = NewDestinationConfig)]
    config: DestinationConfig,
    /// Names of the stored credentials. Their values are never returned.
    credentials_keys: Vec<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl TryFrom<destinations::Destination> for Destination {
    type Error = ApiError;

    fn try_from(row: destinations::Destination) -> Result<Self, ApiError> {
        Ok(Self {
            id: row.id,
            tenant_id: row.tenant_id,
            destination_type: row.destination_type,
            config: row.config()?,
            credentials_keys: row.credentials_keys()?,
            display_name: row.display_name,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewDestination)]
pub struct CreateDestination {
    /// `s3` for S3-compatible stores, `file` for a folder below the one that the operator configured.
    #[schema(value_type = names::DestinationType)]
    destination_type: DestinationKind,
    /// Letters, digits, `-`, `_`, space and `'`; not only spaces.
    #[schema(max_length = 255, pattern = r"^[\p{L}\p{N} _'-]*[\p{L}\p{N}_'-][\p{L}\p{N} _'-]*$")]
    display_name: String,
    #[serde(deserialize_with = "object")]
    config: NewDestinationConfig,
    /// By default the server's own credentials, if the operator allows that.
    #[serde(default, deserialize_with = "optional_object")]
    credentials: Option<NewCredentials>,
}

/// The configuration of a destination.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DestinationConfig)]
pub struct NewDestinationConfig {
    /// Required for an `s3` destination.
    #[schema(
        min_length = 3,
        max_length = 63,
        pattern = r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*\.?[A-Za-z0-9]$"
    )]
    bucket_name: Option<String>,
    /// Prefix of all written objects. Relative, at most 2048 bytes, 255 per segment. A segment must not be empty, `.`
    /// or `..`, nor contain a backslash or control characters.
    #[serde(default)]
    #[schema(
        pattern = r"^(([^./\\\u0000-\u001f\u007f-\u009f][^/\\\u0000-\u001f\u007f-\u009f]*|\.[^./\\\u0000-\u001f\u007f-\u009f][^/\\\u0000-\u001f\u007f-\u009f]*|\.\.[^/\\\u0000-\u001f\u007f-\u009f]+)(/([^./\\\u0000-\u001f\u007f-\u009f][^/\\\u0000-\u001f\u007f-\u009f]*|\.[^./\\\u0000-\u001f\u007f-\u009f][^/\\\u0000-\u001f\u007f-\u009f]*|\.\.[^/\\\u0000-\u001f\u007f-\u009f]+))*/?)?$"
    )]
    prefix: String,
    /// Default `us-east-1`.
    #[schema(max_length = 64, pattern = "^[A-Za-z0-9_-]+$")]
    region: Option<String>,
    /// Address of an S3-compatible store: http or https without user name, query or fragment.
    #[schema(max_length = 2048, pattern = r"^https?://[^@?#\\ \u0000-\u001f\u007f-\u009f]+$")]
    endpoint_url: Option<String>,
    /// Prepend the bucket name to keys.
    #[serde(default)]
    include_bucket_in_prefix: Option<bool>,
    #[serde(default, deserialize_with = "optional_object")]
    config_kwargs_s3: Option<S3Kwargs>,
    /// Refused: not available in this build.
    #[schema(value_type = Option<Object>)]
    s3_additional_kwargs: Option<Map<String, Value>>,
    /// Refused: not available in this build.
    aws_role_arn: Option<String>,
}

/// Advanced S3 settings.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = S3Kwargs)]
pub struct S3Kwargs {
    #[serde(default)]
    #[schema(value_type = Option<names::Addressing>)]
    addressing_style: Option<AddressingStyle>,
    /// Whether the signature covers the body; by default only for http endpoints.
    payload_signing_enabled: Option<bool>,
    /// Refused when true: not available in this build.
    use_accelerate_endpoint: Option<bool>,
    /// `regional`; `legacy` is refused: not available in this build.
    us_east_1_regional_endpoint: Option<String>,
}

/// Credentials. Stored encrypted and never returned.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DestinationCredentials)]
pub struct NewCredentials {
    #[schema(value_type = String, write_only, min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    access_key_id: Secret,
    #[schema(value_type = String, write_only, min_length = 1, max_length = 2048, pattern = "^[ -~]+$")]
    secret_access_key: Secret,
    /// Only for temporary credentials.
    #[schema(value_type = Option<String>, write_only, min_length = 1, max_length = 2048, pattern = "^[ -~]+$")]
    session_token: Option<Secret>,
}

/// Changes of a destination. Running exports keep the credentials that they started with.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DestinationChange)]
pub struct UpdateDestination {
    /// As for creation.
    #[schema(max_length = 255, pattern = r"^[\p{L}\p{N} _'-]*[\p{L}\p{N}_'-][\p{L}\p{N} _'-]*$")]
    display_name: Option<String>,
    #[serde(default, deserialize_with = "optional_object")]
    credentials: Option<NewCredentials>,
}

impl From<NewCredentials> for Credentials {
    fn from(sent: NewCredentials) -> Self {
        Self {
            access_key_id: sent.access_key_id,
            secret_access_key: sent.secret_access_key,
            session_token: sent.session_token,
        }
    }
}

impl NewDestinationConfig {
    /// Rejects unsupported settings instead of ignoring them.
    fn admit(self) -> Result<DestinationConfig, Rejection> {
        let unsupported = |field: &str| Err(Rejection::unsupported(format!("config.{field}"), field));
        if self.s3_additional_kwargs.is_some_and(|kwargs| !kwargs.is_empty()) {
            return unsupported("s3_additional_kwargs");
        }
        if self.aws_role_arn.is_some() {
            return unsupported("aws_role_arn");
        }
        let kwargs = match self.config_kwargs_s3 {
            Some(S3Kwargs {
                use_accelerate_endpoint: Some(true),
                ..
            }) => {
                return unsupported("config_kwargs_s3.use_accelerate_endpoint");
            }
            Some(S3Kwargs {
                us_east_1_regional_endpoint: Some(kind),
                ..
            }) if kind != "regional" => {
                return unsupported("config_kwargs_s3.us_east_1_regional_endpoint");
            }
            Some(kwargs) => Some(S3Options {
                addressing_style: kwargs.addressing_style.unwrap_or_default(),
                payload_signing_enabled: kwargs.payload_signing_enabled,
            }),
            None => None,
        };
        Ok(DestinationConfig {
            bucket_name: self.bucket_name,
            prefix: self.prefix,
            region: self.region,
            endpoint_url: self.endpoint_url,
            include_bucket_in_prefix: self.include_bucket_in_prefix.unwrap_or_default(),
            config_kwargs_s3: kwargs,
        })
    }
}

/// Create a destination. A small test file is written to it first, and deleted again if permitted. A repeated request
/// with the same `Idempotency-Key` returns the first response.
#[utoipa::path(post, path = "/api/v1/bulk-exports/destinations", tag = "bulk-export-destinations", request_body = CreateDestination,
    params(IdempotencyKey),
    responses((status = 200, description = "Created", body = Destination),
              (status = 400, description = "The destination is not writable; nothing was stored"),
              (status = 409, description = "The `Idempotency-Key` was used for another request"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    sent: IdempotentJson<CreateDestination>,
) -> Result<Response, ApiError> {
    let IdempotentJson { body: new, key } = sent;
    // Before the test file is written.
    if let Some(answer) = idempotency::recorded_answer(&app.store, tenant.id, key.as_ref()).await? {
        return Ok(answer);
    }
    let request = DestinationRequest {
        kind: new.destination_type,
        display_name: new.display_name,
        config: new.config.admit()?,
        credentials: new.credentials.map(Credentials::from),
    };
    request.admit()?;
    test(&app, request.kind, &request.config, request.credentials.as_ref()).await?;
    let id = DestinationId::new();
    let sealed = request
        .credentials
        .as_ref()
        .map(|given| seal(&app, tenant.id, id, given));
    let row = NewDestination {
        id,
        kind: request.kind,
        display_name: &request.display_name,
        config: &request.config,
        credentials: sealed,
    };
    idempotency::run_once(&app.store, tenant.id, key.as_ref(), Destination::try_from, async |tx| {
        destinations::insert(tx, tenant.id, row).await
    })
    .await
}

/// A page of the list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListDestinations {
    /// Maximum number of results, 1 to 1000; default 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// Number of results to skip.
    #[param(minimum = 0, maximum = 1_000_000_000)]
    offset: Option<i64>,
}

/// List destinations, newest first.
#[utoipa::path(get, path = "/api/v1/bulk-exports/destinations", tag = "bulk-export-destinations",
    params(ListDestinations),
    responses((status = 200, description = "Destinations", body = Vec<Destination>), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Query(wanted): Query<ListDestinations>,
) -> Result<Json<Vec<Destination>>, ApiError> {
    let (limit, offset) = paging::check(wanted.limit, wanted.offset, 1000, 1000)?;
    let rows = app
        .store
        .read(async |tx| destinations::list(tx, tenant.id, limit, offset).await)
        .await?;
    Ok(Json(
        rows.into_iter().map(Destination::try_from).collect::<Result<_, _>>()?,
    ))
}

/// Get one destination.
#[utoipa::path(get, path = "/api/v1/bulk-exports/destinations/{destination_id}", tag = "bulk-export-destinations",
    params(("destination_id" = Uuid, Path, description = "The destination")),
    responses((status = 200, description = "The destination", body = Destination),
              (status = 404, description = "No such destination in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DestinationId>,
) -> Result<Json<Destination>, ApiError> {
    Ok(Json(read(&app, tenant, id).await?.try_into()?))
}

/// Rename a destination or replace its credentials, which are tested as for creation.
#[utoipa::path(patch, path = "/api/v1/bulk-exports/destinations/{destination_id}", tag = "bulk-export-destinations",
    params(("destination_id" = Uuid, Path, description = "The destination")), request_body = UpdateDestination,
    responses((status = 200, description = "Updated", body = Destination),
              (status = 400, description = "The destination is not writable; nothing was changed"),
              (status = 404, description = "No such destination in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DestinationId>,
    Json(change): Json<UpdateDestination>,
) -> Result<Json<Destination>, ApiError> {
    let row = read(&app, tenant, id).await?;
    let (kind, config) = (row.destination_type, row.config()?);
    let request = DestinationRequest {
        kind,
        display_name: change.display_name.unwrap_or(row.display_name),
        config,
        credentials: change.credentials.map(Credentials::from),
    };
    request.admit()?;
    if request.credentials.is_some() {
        test(&app, kind, &request.config, request.credentials.as_ref()).await?;
    }
    let sealed = request
        .credentials
        .as_ref()
        .map(|given| seal(&app, tenant.id, id, given));
    let name = Some(request.display_name.as_str());
    let changed = app
        .store
        .write(async |tx| destinations::update(tx, tenant.id, id, name, sealed).await)
        .await;
    Ok(Json(changed.map_err(missing)?.try_into()?))
}

/// Delete a destination and its credentials. Its unfinished exports fail and its schedules stop; both show the reason.
/// Finished exports and their files remain.
#[utoipa::path(delete, path = "/api/v1/bulk-exports/destinations/{destination_id}", tag = "bulk-export-destinations",
    params(("destination_id" = Uuid, Path, description = "The destination")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such destination in this workspace"), ApiError))]
pub async fn delete(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DestinationId>,
) -> Result<StatusCode, ApiError> {
    let deleted = app
        .store
        .write(async |tx| delete_destination::delete(tx, tenant.id, id).await);
    deleted.await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn read(app: &App, tenant: Tenant, id: DestinationId) -> Result<destinations::Destination, ApiError> {
    app.store
        .read(async |tx| destinations::get(tx, tenant.id, id).await)
        .await
        .map_err(missing)
}

fn missing(error: towpath_store::Error) -> ApiError {
    match error {
        towpath_store::Error::NotFound => ApiError::not_found("destination"),
        error => error.into(),
    }
}

fn seal(app: &App, tenant: TenantId, id: DestinationId, given: &Credentials) -> (Vec<u8>, Vec<&'static str>) {
    (destinations::seal(&app.sealer, tenant, id, given), given.keys())
}

/// Writes a test file to the destination.
async fn test(
    app: &App,
    kind: DestinationKind,
    config: &DestinationConfig,
    credentials: Option<&Credentials>,
) -> Result<(), ApiError> {
    if kind == DestinationKind::File && app.destinations.file_root.is_none() {
        return Err(
            Rejection::unsupported("destination_type", "a file destination (exports.file_root is not set)").into(),
        );
    }
    // An address that does not answer holds its request for a while; it must not occupy the slots of other requests.
    let outside = app.destination_checks.try_acquire();
    let _place = outside.map_err(|wait| ApiError::too_many("too many destinations are being tested at once", wait))?;
    let file = prefix(config)?.test_file(&Uuid::now_v7().to_string());
    let open = towpath_outbound::Destination::open(&app.destinations, kind, config, credentials);
    open.map_err(|failure| refused(&failure))?
        .test(&file)
        .await
        .map_err(|failure| refused(&failure))
}

fn refused(failure: &DestinationFailure) -> ApiError {
    match failure.reason() {
        Reason::Prefix => Rejection::invalid("config.prefix", failure.to_string()).into(),
        _ => ApiError::bad_request(failure.to_string()),
    }
}
