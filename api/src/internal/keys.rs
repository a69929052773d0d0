//! API keys: those of all organisations for operators, those of an organisation or a workspace for who administers it.
//! The first one of an installation is made beside the API, in the database (`towpath keys create`, or
//! `TOWPATH_API_KEY` at the first start); the others can be made here.

mod reach;

use std::time::Duration;

use axum::extract::State;
use http::StatusCode;
use http::header::{CACHE_CONTROL, HeaderName};
use serde::{Deserialize, Serialize};
use towpath_domain::{JobId, KeyId, OrganizationId, Scope, Scopes, Secret, TenantId, Timestamp};
use towpath_store::access::{self, ApiKey, KeyLimits, NewKey, Principal};
use towpath_store::{self as store};
use towpath_workflows::reseal_secrets;

use crate::app::App;
use crate::auth::Operator;
use crate::errors::{ApiError, Error, Place};
use crate::extract::{Json, Path, Query, whole};
use crate::internal::{cursor_of, limit, read_cursor};

pub(crate) use reach::{Reach, administers};

/// The most characters of a name.
const NAME_CHARS: usize = 255;
/// The longest life of a key that ends by itself, in days.
pub(crate) const LONGEST_LIFE_DAYS: i64 = 3650;
/// Scopes of one key.
const MOST_SCOPES: usize = 100;
/// How long the old secret of a rotated key goes on working, in hours: unless said, and at most.
pub(crate) const OVERLAP_HOURS: (i64, i64) = (24, 720);

/// An API key, without its secret.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Key {
    #[schema(value_type = Uuid)]
    id: KeyId,
    /// What people call it.
    name: String,
    /// How its secret begins, to tell keys apart.
    prefix: String,
    #[schema(value_type = Uuid)]
    organization_id: OrganizationId,
    /// The one workspace it opens; null opens all of its organisation.
    #[schema(value_type = Option<Uuid>)]
    tenant_id: Option<TenantId>,
    /// Whether it opens the operators' routes and the dashboard.
    operator: bool,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Since when it opens nothing.
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<Timestamp>,
    /// What it may do.
    #[schema(value_type = Vec<String>)]
    scopes: Scopes,
    /// When it ends by itself.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// When it was used last, about a minute late.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Timestamp>,
}

impl From<ApiKey> for Key {
    fn from(key: ApiKey) -> Self {
        Self {
            scopes: key.allowed(),
            expires_at: key.expires_at,
            last_used_at: key.last_used_at,
            id: key.id,
            name: key.name,
            prefix: key.prefix,
            organization_id: key.organization_id,
            tenant_id: key.workspace_id,
            operator: key.operator,
            created_at: key.created_at,
            revoked_at: key.revoked_at,
        }
    }
}

/// Keys.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Keys {
    items: Vec<Key>,
    /// Where the list goes on; null at its end.
    next_cursor: Option<String>,
}

/// A key that was made now.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct MadeKey {
    #[serde(flatten)]
    about: Key,
    /// The secret: send it as `X-API-Key`. It is told this once; only its hash is kept.
    key: String,
    /// The workspaces it opens.
    #[schema(value_type = Vec<Uuid>)]
    workspaces: Vec<TenantId>,
}

impl MadeKey {
    pub(crate) fn of(key: ApiKey, secret: &Secret, workspaces: Vec<TenantId>) -> Self {
        Self {
            about: key.into(),
            key: secret.reveal().to_owned(),
            workspaces,
        }
    }
}

/// A key to be made.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyRequest {
    /// What people call it.
    #[schema(
        max_length = 255,
        pattern = r"^[\p{L}\p{N} _.'-]*[\p{L}\p{N}_.'-][\p{L}\p{N} _.'-]*$"
    )]
    pub(crate) name: String,
    /// The one workspace it shall open; all of the caller's organisation unless given.
    #[schema(value_type = Option<Uuid>)]
    pub(crate) tenant_id: Option<TenantId>,
    /// Let it also open the operators' routes and the dashboard, for all workspaces.
    #[serde(default)]
    pub(crate) operator: bool,
    /// What it may do; without it everything in its workspaces, and with `operator` everything. Who administers a workspace
    /// gives no scope of organisations, and none but operators gives one of operators.
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 100)]
    pub(crate) scopes: Option<Vec<Scope>>,
    /// After so many days it ends by itself, 1 to 3650; never unless given.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 3650)]
    pub(crate) expires_in_days: Option<i64>,
}

impl KeyRequest {
    fn limits(&self, now: Timestamp) -> Result<KeyLimits, ApiError> {
        let scopes = match self.scopes.as_deref() {
            None => None,
            Some([]) => return Err(wrong("scopes", "expected one scope at least".to_owned())),
            Some(scopes) if scopes.len() > MOST_SCOPES => {
                return Err(wrong("scopes", format!("expected at most {MOST_SCOPES} scopes")));
            }
            Some(scopes) => {
                let operator = self.operator.then_some(Scope::Operator);
                Some(scopes.iter().copied().chain(operator).collect())
            }
        };
        let days = within("expires_in_days", self.expires_in_days, (1, LONGEST_LIFE_DAYS))?;
        Ok(KeyLimits {
            scopes,
            expires_at: days.map(|days| now.plus(Duration::from_secs(days * 24 * 3600))),
        })
    }
}

/// How a key gets a new secret.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyRotation {
    /// So many hours the secret before goes on working, 0 to 720; 24 unless given.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 720)]
    overlap_hours: Option<i64>,
}

fn wrong(field: &'static str, text: String) -> ApiError {
    ApiError::invalid_at(vec![Place::from("body"), field.into()], "value_error", text)
}

/// A key's name, where people can read it.
pub(crate) fn name(text: &str) -> Result<&str, ApiError> {
    let name = text.trim();
    if name.is_empty() || name.chars().count() > NAME_CHARS || name.chars().any(char::is_control) {
        let text = format!("expected 1 to {NAME_CHARS} characters, no control characters");
        return Err(wrong("name", text));
    }
    Ok(name)
}

/// A number of a body, where it lies between these two.
pub(crate) fn within(
    field: &'static str,
    number: Option<i64>,
    (least, most): (i64, i64),
) -> Result<Option<u64>, ApiError> {
    let Some(number) = number else { return Ok(None) };
    match u64::try_from(number) {
        Ok(fits) if (least..=most).contains(&number) => Ok(Some(fits)),
        _ => Err(wrong(field, format!("expected {least} to {most}"))),
    }
}

/// A job that seals secrets anew.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Resealing {
    #[schema(value_type = Uuid)]
    job_id: JobId,
}

/// Which keys.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// At most so many, 1 to 1000; 100 unless said.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// The `next_cursor` of the answer before.
    #[param(pattern = "^[0-9]{1,16}_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
    cursor: Option<String>,
}

/// A key with its secret, and the workspaces it opens.
pub(crate) type WithSecret = (ApiKey, Secret, Vec<TenantId>);

/// Makes a key.
pub(crate) async fn make(app: &App, caller: &Principal, request: &KeyRequest) -> Result<WithSecret, ApiError> {
    let name = name(&request.name)?;
    let limits = request.limits(app.clock.now())?;
    let reach = Reach::of(caller, Scope::Operator)?;
    reach.check_scopes(request.scopes.as_deref().unwrap_or_default(), request.operator)?;
    let place = reach.place(caller, request.tenant_id)?;
    let made = app.store.write(async |tx| {
        let organization = match place {
            Some(tenant) => {
                let workspace = access::workspace(tx, tenant).await?.ok_or(store::Error::NotFound)?;
                if !reach.has(workspace.organization_id) {
                    return Err(store::Error::NotFound);
                }
                workspace.organization_id
            }
            None => caller.organization,
        };
        let new = NewKey {
            organization,
            workspace: place,
            name,
            operator: request.operator,
        };
        let (key, secret) = access::create_limited_key(tx, new, limits.clone()).await?;
        let opened = access::principal(tx, key.id).await?.ok_or(store::Error::NotFound)?;
        Ok((key, secret, opened.workspaces))
    });
    let made = match made.await {
        Err(store::Error::NotFound) => return Err(ApiError::not_found("workspace")),
        made => made?,
    };
    let key = &made.0;
    tracing::info!(key.id = %key.id, key.operator = key.operator, by.key = %caller.key, "a key was made");
    Ok(made)
}

/// Revokes a key, which is not the caller's.
pub(crate) async fn take(app: &App, caller: &Principal, id: KeyId) -> Result<ApiKey, ApiError> {
    let reach = Reach::of(caller, Scope::Operator)?;
    if id == caller.key {
        return Err(ApiError::conflict(
            "this is the key of this very request: revoke it with another key",
        ));
    }
    find(app, &reach, id).await?;
    let revoked = app.store.write(async |tx| {
        let key = access::key(tx, id).await?.ok_or(store::Error::NotFound)?;
        access::revoke_key(tx, key.organization_id, id).await
    });
    let key = revoked.await.map_err(missing)?;
    app.forget_keys();
    tracing::info!(key.id = %id, by.key = %caller.key, "a key was revoked");
    Ok(key)
}

/// Gives a key a new secret.
pub(crate) async fn renew(
    app: &App,
    caller: &Principal,
    id: KeyId,
    overlap_hours: Option<i64>,
) -> Result<WithSecret, ApiError> {
    let reach = Reach::of(caller, Scope::Operator)?;
    let hours = within("overlap_hours", overlap_hours, (0, OVERLAP_HOURS.1))?;
    let hours = hours.unwrap_or(OVERLAP_HOURS.0.unsigned_abs());
    let overlap = Duration::from_secs(hours * 3600);
    find(app, &reach, id).await?;
    let rotated = app.store.write(async |tx| {
        let (key, secret) = access::rotate_key(tx, id, overlap).await?;
        let opened = access::principal(tx, key.id).await?.ok_or(store::Error::NotFound)?;
        Ok((key, secret, opened.workspaces))
    });
    let rotated = rotated.await.map_err(missing)?;
    app.forget_keys();
    tracing::info!(key.id = %id, by.key = %caller.key, "a key was rotated");
    Ok(rotated)
}

/// A key that the caller may change. What decides that never changes.
async fn find(app: &App, reach: &Reach, id: KeyId) -> Result<(), ApiError> {
    let found = app.store.read(async |tx| access::key(tx, id).await).await?;
    reach.check(&found.ok_or_else(|| ApiError::not_found("key"))?)
}

fn missing(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("key"),
        error => error.into(),
    }
}

/// API keys without their secrets, the latest first, revoked ones too: of all organisations for an operator, else of the
/// organisation or the workspaces that the key of the request administers.
#[utoipa::path(get, path = "/internal/keys", tag = "keys", security(("api_key" = []), ("bearer" = [])), params(Which),
    responses((status = 200, description = "Keys", body = Keys), ApiError))]
pub(crate) async fn list(
    State(app): State<App>,
    Operator(caller): Operator,
    Query(which): Query<Which>,
) -> Result<Json<Keys>, ApiError> {
    let reach = Reach::of(&caller, Scope::OperatorRead)?;
    let limit = limit(which.limit)?;
    let after = which.cursor.as_deref().map(read_cursor).transpose()?;
    let mut found = app
        .store
        .read(async |tx| reach.list(tx, after, limit + 1).await)
        .await?;
    let shown = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = found.len() > shown;
    found.truncate(shown);
    let last = found.last().filter(|_| more);
    Ok(Json(Keys {
        next_cursor: last.map(|last| cursor_of(last.created_at, last.id)),
        items: found.into_iter().map(Key::from).collect(),
    }))
}

/// Make a key. Its secret is in the answer, and nowhere else from then on.
#[utoipa::path(post, path = "/internal/keys", tag = "keys", security(("api_key" = []), ("bearer" = [])),
    request_body = KeyRequest,
    responses((status = 201, description = "The key with its secret", body = MadeKey),
              (status = 404, description = "No such workspace", body = Error), ApiError))]
pub(crate) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    Json(request): Json<KeyRequest>,
) -> Result<(StatusCode, [(HeaderName, &'static str); 1], Json<MadeKey>), ApiError> {
    let (key, secret, workspaces) = make(&app, &caller, &request).await?;
    let made = MadeKey::of(key, &secret, workspaces);
    Ok((StatusCode::CREATED, [(CACHE_CONTROL, "no-store")], Json(made)))
}

/// Take a key's power away, for good, with the sessions that came from it. Other processes hear of it within five
/// seconds. Revoking it again changes nothing. A key does not revoke itself, so that an operator is left.
#[utoipa::path(post, path = "/internal/keys/{key_id}/revoke", tag = "keys", security(("api_key" = []), ("bearer" = [])),
    params(("key_id" = Uuid, Path, description = "The key")),
    responses((status = 200, description = "The key, revoked", body = Key),
              (status = 404, description = "No such key", body = Error),
              (status = 409, description = "It is the key of this request", body = Error), ApiError))]
pub(crate) async fn revoke(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<KeyId>,
) -> Result<Json<Key>, ApiError> {
    Ok(Json(take(&app, &caller, id).await?.into()))
}

/// Give a key a new secret, which is in the answer, and nowhere else from then on. The secret before opens the key for
/// the hours of overlap.
#[utoipa::path(post, path = "/internal/keys/{key_id}/rotate", tag = "keys", security(("api_key" = []), ("bearer" = [])),
    params(("key_id" = Uuid, Path, description = "The key")),
    request_body = KeyRotation,
    responses((status = 200, description = "The key with its new secret", body = MadeKey),
              (status = 400, description = "It was revoked, or has expired", body = Error),
              (status = 404, description = "No such key", body = Error), ApiError))]
pub(crate) async fn rotate(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<KeyId>,
    Json(rotation): Json<KeyRotation>,
) -> Result<([(HeaderName, &'static str); 1], Json<MadeKey>), ApiError> {
    let (key, secret, workspaces) = renew(&app, &caller, id, rotation.overlap_hours).await?;
    let made = MadeKey::of(key, &secret, workspaces);
    Ok(([(CACHE_CONTROL, "no-store")], Json(made)))
}

/// Seal every stored secret of all workspaces anew under the first encryption key. A job does it; when it has succeeded, the
/// encryption keys behind the first one are not needed any more.
#[utoipa::path(post, path = "/internal/keys/reseal", tag = "keys", security(("api_key" = []), ("bearer" = [])),
    responses((status = 202, description = "The job", body = Resealing), ApiError))]
pub(crate) async fn reseal(
    State(app): State<App>,
    Operator(caller): Operator,
) -> Result<(StatusCode, Json<Resealing>), ApiError> {
    let job_id = app.store.write(async |tx| reseal_secrets::start(tx).await).await?;
    tracing::info!(job.id = %job_id, operator.key = %caller.key, "an operator has secrets sealed anew");
    Ok((StatusCode::ACCEPTED, Json(Resealing { job_id })))
}
