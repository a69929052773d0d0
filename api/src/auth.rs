//! Who calls: `X-API-Key` and `X-Tenant-Id` become a [`Tenant`], or an [`Operator`]. A session's token may stand in
//! for the key.
//!
//! [`key_layers`](crate::key_layers) lie over all routes that need a key; the extractors hand on what those found.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use towpath_domain::{Clock, KeyId, OrganizationId, Scopes, TenantId, Timestamp};
use towpath_store::Store;
use towpath_store::access::{self, KeyHash, Principal};
use towpath_store::ended_sessions;
use towpath_store::sealing::Sealer;
use uuid::Uuid;

use crate::client::Client;
use crate::errors::{ApiError, LocSegment};
use crate::failed_keys::FailedKeys;
use crate::metric;

const KEY: &str = "x-api-key";
const TENANT: &str = "x-tenant-id";

/// How long an answer about a key is believed: also how long a revoked key may still open doors on another process.
const CACHE_TTL: Duration = Duration::from_secs(5);
/// Keys remembered at most.
const MAX_CACHED_KEYS: usize = 10_000;

/// The caller of a request, authenticated, in one workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The workspace this request is about.
    pub id: TenantId,
    /// The organisation that owns it.
    pub organization: OrganizationId,
    /// The key that opened it.
    pub key: KeyId,
}

impl<S: Send + Sync> FromRequestParts<S> for Tenant {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        parts.extensions.get().copied().ok_or_else(|| {
            // A route outside `require`: closed, not open.
            tracing::error!(
                http.path = parts.uri.path(),
                "a route asks for a tenant but no layer authenticates it"
            );
            ApiError::unauthorized("this route cannot be opened")
        })
    }
}

/// What the key behind a request may do.
#[derive(Clone, Debug)]
pub struct GrantedScopes(pub(crate) Scopes);

impl<S: Send + Sync> FromRequestParts<S> for GrantedScopes {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        parts.extensions.get().cloned().ok_or_else(|| {
            // A route outside `require`: closed, not open.
            tracing::error!(
                http.path = parts.uri.path(),
                "a route asks for scopes but no layer authenticates a key"
            );
            ApiError::unauthorized("this route cannot be opened")
        })
    }
}

/// Who calls a route of operators, authenticated.
#[derive(Clone, Debug)]
pub(crate) struct Operator(pub(crate) Principal);

impl<S: Send + Sync> FromRequestParts<S> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        parts.extensions.get().cloned().ok_or_else(|| {
            // A route outside `require_operator`: closed, not open.
            tracing::error!(
                http.path = parts.uri.path(),
                "a route asks for an operator but no layer authenticates one"
            );
            ApiError::unauthorized("this route cannot be opened")
        })
    }
}

/// What keys and sessions of callers are read with.
#[derive(Clone, Copy)]
pub(crate) struct Authenticator<'a> {
    pub(crate) keys: &'a KeyCache,
    pub(crate) store: &'a Store,
    pub(crate) sealer: &'a Sealer,
    pub(crate) clock: &'a Clock,
}

/// Whether a session stands in for a key.
pub(crate) fn is_in_session(headers: &HeaderMap) -> bool {
    !headers.contains_key(KEY) && headers.contains_key(AUTHORIZATION)
}

/// The workspace that a request names, which its key has to open.
pub(crate) fn named_workspace(headers: &HeaderMap, principal: &Principal) -> Result<Option<TenantId>, ApiError> {
    let Some(text) = only(headers, TENANT)? else {
        return Ok(None);
    };
    let id = text
        .to_str()
        .ok()
        .and_then(|text| text.trim().parse::<Uuid>().ok())
        .map(TenantId)
        .ok_or_else(|| {
            ApiError::invalid_at(
                vec!["header".into(), LocSegment::from(TENANT)],
                "uuid_parsing",
                "expected a UUID",
            )
        })?;
    if !principal.workspaces.contains(&id) {
        // The same words whether the workspace exists or not.
        return Err(ApiError::forbidden("the API key has no access to this workspace"));
    }
    Ok(Some(id))
}

/// Whether a request shows a key at all.
pub(crate) fn has_key_header(headers: &HeaderMap) -> bool {
    headers.contains_key(KEY)
}

/// What the key of a request opens.
pub(crate) async fn key_holder(
    keys: &KeyCache,
    store: &Store,
    clock: &Clock,
    client: Client,
    headers: &HeaderMap,
) -> Result<Principal, ApiError> {
    let found = find_key_holder(keys, store, clock, headers).await?;
    let is_damaged = || {
        let key = headers.get(KEY);
        key.is_some_and(|key| access::is_damaged(key.as_bytes()))
    };
    found.ok_or_else(|| match keys.count_failure(client) {
        None if is_damaged() => ApiError::unauthorized("the API key is not valid: a part of it is missing or wrong"),
        None => ApiError::unauthorized("the API key is not valid"),
        Some(wait) => ApiError::too_many(
            "the API key is not valid, and there were too many invalid keys from this address",
            wait,
        ),
    })
}

/// As [`key_holder`], and a key that opens nothing counts as no guess.
pub(crate) async fn find_key_holder(
    keys: &KeyCache,
    store: &Store,
    clock: &Clock,
    headers: &HeaderMap,
) -> Result<Option<Principal>, ApiError> {
    // Two values would be read differently by a proxy and by us; which one is meant nobody can know.
    let Some(key) = only(headers, KEY)? else {
        return Err(ApiError::unauthorized(
            "an API key is required: send it in the X-API-Key header",
        ));
    };
    Ok(keys.principal(store, clock, KeyHash::of(key.as_bytes())).await?)
}

/// The token of a request's session.
pub(crate) fn session_token(headers: &HeaderMap) -> Result<&str, ApiError> {
    let token = only(headers, AUTHORIZATION.as_str())?
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    token.ok_or_else(|| {
        ApiError::unauthorized(
            "expected `Authorization: Bearer` with the token of a session, or an API key in the X-API-Key header",
        )
    })
}

fn only<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h HeaderValue>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => Err(ApiError::bad_request(format!(
            "the header {name} was sent more than once"
        ))),
    }
}

/// Remembers for a few seconds what valid keys open, so that a request costs no query. Unknown keys are not
/// remembered: a new one works at once. Also collects when keys were used, for [`Keys::record_uses`].
pub struct KeyCache {
    principals: Mutex<HashMap<KeyHash, (Timestamp, Principal)>>,
    last_used: Mutex<BTreeMap<KeyId, Timestamp>>,
    failed_keys: FailedKeys,
}

impl KeyCache {
    /// Nothing is known yet. An address may send so many keys in a minute that open nothing; 0 is no limit.
    #[must_use]
    pub fn new(failed_per_minute: u32) -> Self {
        Self {
            principals: Mutex::default(),
            last_used: Mutex::default(),
            failed_keys: FailedKeys::new(failed_per_minute),
        }
    }

    /// Counts a key of this client that opens nothing. How long until its address may send another, where those were
    /// too many.
    pub(crate) fn count_failure(&self, client: Client) -> Option<Duration> {
        let wait = self.failed_keys.fail(client).err();
        if wait.is_some() {
            metrics::counter!(metric::SHED, "reason" => "failed_keys").increment(1);
        }
        wait
    }

    async fn principal(
        &self,
        store: &Store,
        clock: &Clock,
        hash: KeyHash,
    ) -> Result<Option<Principal>, towpath_store::Error> {
        self.cached(clock, hash, async || {
            store.read(async |tx| access::authenticate(tx, &hash).await).await
        })
        .await
    }

    /// Writes when keys were used last, in one transaction. What cannot be written now is kept for the next time.
    pub async fn record_uses(&self, store: &Store) -> Result<(), towpath_store::Error> {
        let uses = std::mem::take(&mut *self.last_used.lock());
        if uses.is_empty() {
            return Ok(());
        }
        let written = store.write(async |tx| access::record_uses(tx, &uses).await).await;
        if written.is_err() {
            let mut used = self.last_used.lock();
            for (key, used_at) in uses {
                used.entry(key).or_insert(used_at);
            }
        }
        written
    }

    /// What the key behind a session's token opens now: nothing once the session was ended.
    pub(crate) async fn holder(
        &self,
        store: &Store,
        clock: &Clock,
        token: &str,
        key: KeyId,
    ) -> Result<Option<Principal>, towpath_store::Error> {
        // The texts of tokens and of keys differ in their first letters, so they can share one memory.
        let hash = KeyHash::of(token.as_bytes());
        self.cached(clock, hash, async || {
            store
                .read(async |tx| {
                    if ended_sessions::contains(tx, &hash).await? {
                        return Ok(None);
                    }
                    access::principal(tx, key).await
                })
                .await
        })
        .await
    }

    async fn cached(
        &self,
        clock: &Clock,
        hash: KeyHash,
        ask: impl AsyncFnOnce() -> Result<Option<Principal>, towpath_store::Error>,
    ) -> Result<Option<Principal>, towpath_store::Error> {
        let found = self.cached_or_load(clock, hash, ask).await?;
        if let Some(principal) = &found {
            self.last_used.lock().insert(principal.key, clock.now());
        }
        Ok(found)
    }

    async fn cached_or_load(
        &self,
        clock: &Clock,
        hash: KeyHash,
        ask: impl AsyncFnOnce() -> Result<Option<Principal>, towpath_store::Error>,
    ) -> Result<Option<Principal>, towpath_store::Error> {
        let now = clock.now();
        if let Some((asked_at, principal)) = self.principals.lock().get(&hash)
            && now.since(*asked_at) < CACHE_TTL
            // A clock that was set back must not make an answer live longer.
            && *asked_at <= now
            && principal.expires_at.is_none_or(|expires_at| now < expires_at)
        {
            return Ok(Some(principal.clone()));
        }
        let found = ask().await?;
        let mut known = self.principals.lock();
        match &found {
            Some(principal) => {
                if known.len() >= MAX_CACHED_KEYS {
                    known.clear();
                }
                known.insert(hash, (now, principal.clone()));
            }
            None => {
                known.remove(&hash);
            }
        }
        Ok(found)
    }

    /// Forgets what a session's token opens, after it was ended in this process.
    pub(crate) fn forget_session(&self, token: &str) {
        self.principals.lock().remove(&KeyHash::of(token.as_bytes()));
    }

    /// Forgets everything, after a key was revoked or a workspace made in this process.
    pub fn clear(&self) {
        self.principals.lock().clear();
    }
}
