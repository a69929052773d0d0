//! API keys: those of all organisations for operators, those of an organisation or a workspace for who administers it.
//! The first one of an installation is made beside the API, in the database (`towpath keys create`, or
//! `TOWPATH_API_KEY` at the first start); the others can be made here.

mod authority;

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
use crate::errors::{ApiError, Error, LocSegment};
use crate::extract::{Json, Path, Query, whole};
use crate::internal::{cursor_of, limit, read_cursor};

pub(crate) use authority::KeyAuthority;

/// Maximum length of a name.
const NAME_CHARS: usize = 255;
/// Maximum lifetime of a key in days.
pub(crate) const LONGEST_LIFE_DAYS: i64 = 3650;
/// Maximum number of scopes of a key.
const MOST_SCOPES: usize = 100;
/// How long the previous secret works after a rotation, in hours: default and maximum.
pub(crate) const OVERLAP_HOURS: (i64, i64) = (24, 720);

/// An API key, without its secret.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Key {
    #[schema(value_type = Uuid)]
    id: KeyId,
    /// Display name.
    name: String,
    /// Beginning of the secret, to recognize the key.
    prefix: String,
    #[schema(value_type = Uuid)]
    organization_id: OrganizationId,
    /// The workspace of the key; null for all workspaces of its organisation.
    #[schema(value_type = Option<Uuid>)]
    tenant_id: Option<TenantId>,
    /// Whether it has access to operator routes and the dashboard.
    operator: bool,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it was revoked.
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<Timestamp>,
    #[schema(value_type = Vec<String>)]
    scopes: Scopes,
    /// Expiry time.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// Time of the last use, accurate to about a minute.
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

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Keys {
    items: Vec<Key>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// A new key.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct KeyWithSecret {
    #[serde(flatten)]
    about: Key,
    /// The secret: send it as `X-API-Key`. Returned only here; only its hash is stored.
    key: String,
    /// Workspaces of the key.
    #[schema(value_type = Vec<Uuid>)]
    workspaces: Vec<TenantId>,
}

impl KeyWithSecret {
    pub(crate) fn of(key: ApiKey, secret: &Secret, workspaces: Vec<TenantId>) -> Self {
        Self {
            about: key.into(),
            key: secret.reveal().to_owned(),
            workspaces,
        }
    }
}

/// A key to create.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyRequest {
    /// Display name.
    #[schema(
        max_length = 255,
        pattern = r"^[\p{L}\p{N} _.'-]*[\p{L}\p{N}_.'-][\p{L}\p{N} _.'-]*$"
    )]
    pub(crate) name: String,
    /// Workspace of the key; by default all workspaces of the caller's organisation.
    #[schema(value_type = Option<Uuid>)]
    pub(crate) tenant_id: Option<TenantId>,
    /// Give it access to operator routes and the dashboard, for all workspaces.
    #[serde(default)]
    pub(crate) operator: bool,
    /// Scopes; by default full access to its workspaces, or everything with `operator`. Workspace administrators cannot
    /// grant scopes of organisations, and only operators can grant operator scopes.
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 100)]
    pub(crate) scopes: Option<Vec<Scope>>,
    /// Days until it expires, 1 to 3650; by default never.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 3650)]
    pub(crate) expires_in_days: Option<i64>,
}

impl KeyRequest {
    fn limits(&self, now: Timestamp) -> Result<KeyLimits, ApiError> {
        let scopes = match self.scopes.as_deref() {
            None => None,
            Some([]) => return Err(wrong("scopes", "expected at least one scope".to_owned())),
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

/// Options of a rotation.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyRotation {
    /// Hours for which the previous secret keeps working, 0 to 720; default 24.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 720)]
    overlap_hours: Option<i64>,
}

fn wrong(field: &'static str, text: String) -> ApiError {
    ApiError::invalid_at(vec![LocSegment::from("body"), field.into()], "value_error", text)
}

/// Checks the name of a key.
pub(crate) fn name(text: &str) -> Result<&str, ApiError> {
    let name = text.trim();
    if name.is_empty() || name.chars().count() > NAME_CHARS || name.chars().any(char::is_control) {
        let text = format!("expected 1 to {NAME_CHARS} characters, no control characters");
        return Err(wrong("name", text));
    }
    Ok(name)
}

/// Checks the range of a number.
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

/// The job that re-encrypts secrets.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct ResealJob {
    #[schema(value_type = Uuid)]
    job_id: JobId,
}

/// Page of the list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListKeys {
    /// Maximum number of results, 1 to 1000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// The `next_cursor` of the previous response.
    #[param(pattern = "^[0-9]{1,16}_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
    cursor: Option<String>,
}

/// A key with its secret and workspaces.
pub(crate) type IssuedKey = (ApiKey, Secret, Vec<TenantId>);

/// Creates a key.
pub(crate) async fn create_key(app: &App, caller: &Principal, request: &KeyRequest) -> Result<IssuedKey, ApiError> {
    let name = name(&request.name)?;
    let limits = request.limits(app.clock.now())?;
    let reach = KeyAuthority::of(caller, Scope::Operator)?;
    reach.check_scopes(request.scopes.as_deref().unwrap_or_default(), request.operator)?;
    let place = reach.workspace_of_new_key(caller, request.tenant_id)?;
    let made = app.store.write(async |tx| {
        let organization = match place {
            Some(tenant) => {
                let workspace = access::workspace(tx, tenant).await?.ok_or(store::Error::NotFound)?;
                if !reach.covers(workspace.organization_id) {
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
    tracing::info!(key.id = %key.id, key.operator = key.operator, by.key = %caller.key, "created a key");
    Ok(made)
}

/// Revokes a key other than the caller's.
pub(crate) async fn revoke_key(app: &App, caller: &Principal, id: KeyId) -> Result<ApiKey, ApiError> {
    let reach = KeyAuthority::of(caller, Scope::Operator)?;
    if id == caller.key {
        return Err(ApiError::conflict("a key cannot revoke itself: use another key"));
    }
    find(app, &reach, id).await?;
    let revoked = app.store.write(async |tx| {
        let key = access::key(tx, id).await?.ok_or(store::Error::NotFound)?;
        access::revoke_key(tx, key.organization_id, id).await
    });
    let key = revoked.await.map_err(missing)?;
    app.forget_keys();
    tracing::info!(key.id = %id, by.key = %caller.key, "revoked a key");
    Ok(key)
}

/// Rotates the secret of a key.
pub(crate) async fn rotate_key(
    app: &App,
    caller: &Principal,
    id: KeyId,
    overlap_hours: Option<i64>,
) -> Result<IssuedKey, ApiError> {
    let reach = KeyAuthority::of(caller, Scope::Operator)?;
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
    tracing::info!(key.id = %id, by.key = %caller.key, "rotated a key");
    Ok(rotated)
}

/// A key that the caller administers. Its workspace never changes.
async fn find(app: &App, reach: &KeyAuthority, id: KeyId) -> Result<(), ApiError> {
    let found = app.store.read(async |tx| access::key(tx, id).await).await?;
    reach.check(&found.ok_or_else(|| ApiError::not_found("key"))?)
}

fn missing(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("key"),
        error => error.into(),
    }
}

/// List API keys without their secrets, latest first, including revoked ones: all keys for an operator, else those of
/// the organisation or workspaces that the caller administers.
#[utoipa::path(get, path = "/internal/keys", tag = "keys", security(("api_key" = []), ("bearer" = [])), params(ListKeys),
    responses((status = 200, description = "Keys", body = Keys), ApiError))]
pub(crate) async fn list(
    State(app): State<App>,
    Operator(caller): Operator,
    Query(which): Query<ListKeys>,
) -> Result<Json<Keys>, ApiError> {
    let reach = KeyAuthority::of(&caller, Scope::OperatorRead)?;
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

/// Create a key. Its secret is returned only in this response.
#[utoipa::path(post, path = "/internal/keys", tag = "keys", security(("api_key" = []), ("bearer" = [])),
    request_body = KeyRequest,
    responses((status = 201, description = "The key with its secret", body = KeyWithSecret),
              (status = 404, description = "No such workspace", body = Error), ApiError))]
pub(crate) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    Json(request): Json<KeyRequest>,
) -> Result<(StatusCode, [(HeaderName, &'static str); 1], Json<KeyWithSecret>), ApiError> {
    let (key, secret, workspaces) = create_key(&app, &caller, &request).await?;
    let made = KeyWithSecret::of(key, &secret, workspaces);
    Ok((StatusCode::CREATED, [(CACHE_CONTROL, "no-store")], Json(made)))
}

/// Revoke a key permanently, with its sessions. Other processes learn of it within five seconds. Revoking it again has
/// no effect. A key cannot revoke itself, so that an operator key remains.
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
    Ok(Json(revoke_key(&app, &caller, id).await?.into()))
}

/// Rotate the secret of a key. The new secret is returned only in this response. The previous one works during the
/// overlap.
#[utoipa::path(post, path = "/internal/keys/{key_id}/rotate", tag = "keys", security(("api_key" = []), ("bearer" = [])),
    params(("key_id" = Uuid, Path, description = "The key")),
    request_body = KeyRotation,
    responses((status = 200, description = "The key with its new secret", body = KeyWithSecret),
              (status = 400, description = "The key is revoked or expired", body = Error),
              (status = 404, description = "No such key", body = Error), ApiError))]
pub(crate) async fn rotate(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<KeyId>,
    Json(rotation): Json<KeyRotation>,
) -> Result<([(HeaderName, &'static str); 1], Json<KeyWithSecret>), ApiError> {
    let (key, secret, workspaces) = rotate_key(&app, &caller, id, rotation.overlap_hours).await?;
    let made = KeyWithSecret::of(key, &secret, workspaces);
    Ok(([(CACHE_CONTROL, "no-store")], Json(made)))
}

/// Re-encrypt all stored secrets of all workspaces with the first encryption key, in a job. After it has succeeded, the
/// other encryption keys are no longer needed.
#[utoipa::path(post, path = "/internal/keys/reseal", tag = "keys", security(("api_key" = []), ("bearer" = [])),
    responses((status = 202, description = "The job", body = ResealJob), ApiError))]
pub(crate) async fn reseal(
    State(app): State<App>,
    Operator(caller): Operator,
) -> Result<(StatusCode, Json<ResealJob>), ApiError> {
    let job_id = app.store.write(async |tx| reseal_secrets::start(tx).await).await?;
    tracing::info!(job.id = %job_id, operator.key = %caller.key, "an operator started re-encryption of secrets");
    Ok((StatusCode::ACCEPTED, Json(ResealJob { job_id })))
}
