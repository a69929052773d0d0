//! Limits on how often one caller may ask.
//!
//! Two kinds. The hosted platform's rules ([`Table`]) guard this surface and count a request before it is routed: by API
//! key, by user and address, or by address. Limits of one's own count the requests of each key, workspace and
//! deployment in a minute. Both are off unless a setting says otherwise. A refused caller is told when to come back.
//! Limits of workspaces and deployments are looked at last: the others have counted what those refuse.
//!
//! Health, metrics and pages of the dashboard are never refused; the rules leave agent servers behind the gateway alone.

mod identity;
mod recent_callers;
mod table;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use towpath_domain::{Clock, DeploymentId, TenantId, Timestamp};
use towpath_queue::{CountingMode, WindowRequest, Windows};
use towpath_store::access::KeyHash;

use self::identity::LimitIdentity;
use self::recent_callers::{CountedRequest, RecentCallers};
use self::table::{IdentityKind, RequestFacts};
use crate::auth::{self, Authenticator};
use crate::client::{Client, network};
use crate::errors::ApiError;
use crate::{metric, session};

pub use table::{Error, Table};

const KEY: &str = "x-api-key";
const USER: &str = "x-user-id";
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The window of one's own limits.
const MINUTE: Duration = Duration::from_secs(60);

/// Limits of one's own, in requests a minute; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerMinuteLimits {
    /// Of each API key.
    pub key: u32,
    /// Of each workspace.
    pub workspace: u32,
    /// Of each deployment, through the gateway.
    pub deployment: u32,
}

/// The limits of a surface; clones share them.
#[derive(Clone, Default)]
pub struct Limits(Option<Arc<LimitsState>>);

struct LimitsState {
    table: Option<Table>,
    /// The rules of the table, in its order, then one's own limits.
    limits: Vec<LimitCounter>,
    key: Option<u16>,
    workspace: Option<u16>,
    deployment: Option<u16>,
    windows: Windows,
    clock: Clock,
    recent_callers: RecentCallers,
}

struct LimitCounter {
    name: String,
    category: String,
    identity: &'static str,
    count: u32,
    length: Duration,
    passed: AtomicU64,
    refused: AtomicU64,
}

impl LimitCounter {
    fn own(name: &str, identity: &'static str, count: u32) -> Self {
        Self {
            name: name.to_owned(),
            category: "Own limit".to_owned(),
            identity,
            count,
            length: MINUTE,
            passed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

/// A request that came too soon.
#[derive(Debug)]
pub(crate) struct Refusal {
    name: String,
    count: u32,
    length: Duration,
    wait: Duration,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = ApiError::too_many("Rate limit exceeded", self.wait).into_response();
        // Rounded up: who comes back when told must not be early.
        let seconds = self.wait.as_secs() + u64::from(self.wait.subsec_nanos() > 0);
        let (name, count, length) = (self.name, self.count, self.length.as_secs());
        for (header, value) in [
            (RATE_LIMIT, format!("\"{name}\";r=0;t={}", seconds.max(1))),
            (RATE_LIMIT_POLICY, format!("\"{name}\";q={count};w={length}")),
        ] {
            if let Ok(value) = HeaderValue::from_str(&value) {
                response.headers_mut().insert(header, value);
            }
        }
        response
    }
}

impl Limits {
    /// No limits.
    #[must_use]
    pub fn off() -> Self {
        Self::default()
    }

    /// These rules, where there are some, and limits of one's own.
    #[must_use]
    pub fn new(table: Option<Table>, own: PerMinuteLimits, windows: Windows, clock: Clock) -> Self {
        let rules = table.as_ref().map(|table| table.rules.iter()).into_iter().flatten();
        let mut slots: Vec<LimitCounter> = rules
            .map(|rule| LimitCounter {
                name: rule.id.clone(),
                category: rule.category.clone(),
                identity: match rule.identity {
                    IdentityKind::Key => "x-api-key",
                    IdentityKind::User => "x-user-id and address",
                    IdentityKind::Address => "address",
                },
                count: rule.count,
                length: rule.length,
                passed: AtomicU64::new(0),
                refused: AtomicU64::new(0),
            })
            .collect();
        let mut add = |name: &str, identity, count: u32| {
            let slot = u16::try_from(slots.len()).ok().filter(|_| count > 0)?;
            slots.push(LimitCounter::own(name, identity, count));
            Some(slot)
        };
        let key = add("own-key", "x-api-key", own.key);
        let workspace = add("own-workspace", "workspace", own.workspace);
        let deployment = add("own-deployment", "deployment", own.deployment);
        if slots.is_empty() {
            return Self::off();
        }
        Self(Some(Arc::new(LimitsState {
            table,
            limits: slots,
            key,
            workspace,
            deployment,
            windows,
            clock,
            recent_callers: RecentCallers::default(),
        })))
    }

    /// Whether there are any.
    pub(crate) const fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// Counts a request before it is routed.
    pub(crate) async fn count_request(&self, authenticator: Authenticator<'_>, parts: &Parts) -> Result<(), Refusal> {
        let Some(inner) = &self.0 else { return Ok(()) };
        let path = parts.uri.path();
        if is_exempt(path) {
            return Ok(());
        }
        let key = parts.headers.get(KEY).filter(|key| !key.is_empty());
        let key = match key {
            // Anybody can invent keys: those that open nothing are counted together, by their sender's address.
            Some(key) if is_known(authenticator, &parts.headers).await => {
                Some(LimitIdentity::Key(KeyHash::of(key.as_bytes())))
            }
            Some(_) => Some(LimitIdentity::Address(address(parts))),
            None => None,
        };
        let mut asked = Vec::new();
        if !path.starts_with("/d/") {
            asked.extend(inner.rule_of(authenticator, parts, key.as_ref()).await);
        }
        if let (Some(slot), Some(key)) = (inner.key, key) {
            asked.push((slot, key));
        }
        inner.take(&asked).await
    }

    /// Counts a request of a workspace, once its caller is known.
    pub(crate) async fn count_workspace_request(&self, workspace: TenantId) -> Result<(), Refusal> {
        match &self.0 {
            Some(inner) => {
                inner
                    .take_one(inner.workspace, LimitIdentity::Workspace(workspace))
                    .await
            }
            None => Ok(()),
        }
    }

    /// Counts a request to a deployment.
    pub(crate) async fn count_deployment_request(&self, deployment: DeploymentId) -> Result<(), Refusal> {
        match &self.0 {
            Some(inner) => {
                inner
                    .take_one(inner.deployment, LimitIdentity::Deployment(deployment))
                    .await
            }
            None => Ok(()),
        }
    }

    /// What people see of them. `None` where there are none.
    pub(crate) fn view(&self) -> Option<LimitsView> {
        let inner = self.0.as_ref()?;
        let now = inner.clock.now();
        let limits = inner.limits.iter().map(|slot| LimitView {
            name: slot.name.clone(),
            category: slot.category.clone(),
            identity: slot.identity,
            count: slot.count,
            length: slot.length,
            passed: slot.passed.load(Ordering::Relaxed),
            refused: slot.refused.load(Ordering::Relaxed),
        });
        let callers = inner.recent_callers.callers(now).into_iter().map(|caller| {
            let slot = &inner.limits[usize::from(caller.limit)];
            CallerView {
                limit: slot.name.clone(),
                allowed: slot.count,
                count: caller.is_near(now).then_some(caller.count),
                at: caller.at,
                refused: caller.refused,
                refused_at: caller.refused_at,
                identity: caller.identity,
            }
        });
        Some(LimitsView {
            table: inner.table.as_ref().map(|table| table.name.clone()),
            counted: match inner.windows.counting_mode() {
                CountingMode::Local => "here",
                CountingMode::Shared => "shared",
                CountingMode::Degraded => "apart",
            },
            limits: limits.collect(),
            callers: callers.collect(),
        })
    }
}

/// All limits, for people.
pub(crate) struct LimitsView {
    /// Which rules; `None` for one's own limits alone.
    pub(crate) table: Option<String>,
    /// Where requests are counted: `here`, `shared` or `apart`.
    pub(crate) counted: &'static str,
    pub(crate) limits: Vec<LimitView>,
    pub(crate) callers: Vec<CallerView>,
}

/// A limit, for people.
pub(crate) struct LimitView {
    pub(crate) name: String,
    pub(crate) category: String,
    pub(crate) identity: &'static str,
    pub(crate) count: u32,
    pub(crate) length: Duration,
    pub(crate) passed: u64,
    pub(crate) refused: u64,
}

/// Somebody near a limit or refused, for people.
pub(crate) struct CallerView {
    pub(crate) limit: String,
    pub(crate) allowed: u32,
    pub(crate) identity: String,
    /// Requests in the window, as far as that is not over.
    pub(crate) count: Option<u32>,
    pub(crate) at: Timestamp,
    pub(crate) refused: u64,
    pub(crate) refused_at: Option<Timestamp>,
}

impl LimitsState {
    /// The rule that counts a request, and whose it is.
    async fn rule_of(
        &self,
        authenticator: Authenticator<'_>,
        parts: &Parts,
        key: Option<&LimitIdentity>,
    ) -> Option<(u16, LimitIdentity)> {
        let table = self.table.as_ref()?;
        let user = parts.headers.get(USER).filter(|user| !user.is_empty());
        let mut sight = RequestFacts {
            method: &parts.method,
            path: parts.uri.path(),
            key: key.is_some(),
            user: user.is_some(),
        };
        let mut found = table.find(&sight)?;
        // Anybody can write a user's id: it counts once the caller is known, which is asked only where it decides.
        if table.rules[found].identity == IdentityKind::User && !is_known(authenticator, &parts.headers).await {
            sight.user = false;
            found = table.find(&sight)?;
        }
        let address = address(parts);
        let who = match table.rules[found].identity {
            IdentityKind::Key => key?.clone(),
            IdentityKind::User => LimitIdentity::User {
                id: user?.as_bytes().to_vec(),
                address,
            },
            IdentityKind::Address => LimitIdentity::Address(address),
        };
        Some((u16::try_from(found).ok()?, who))
    }

    async fn take_one(&self, slot: Option<u16>, who: LimitIdentity) -> Result<(), Refusal> {
        match slot {
            Some(slot) => self.take(&[(slot, who)]).await,
            None => Ok(()),
        }
    }

    async fn take(&self, asked: &[(u16, LimitIdentity)]) -> Result<(), Refusal> {
        if asked.is_empty() {
            return Ok(());
        }
        let windows: Vec<WindowRequest<'_>> = asked
            .iter()
            .map(|(slot, who)| {
                let limit = &self.limits[usize::from(*slot)];
                WindowRequest {
                    window: *slot,
                    name: &limit.name,
                    identity: who.digest(),
                    limit: limit.count,
                    length: limit.length,
                }
            })
            .collect();
        let verdict = self.windows.take(&windows).await;
        let now = self.clock.now();
        for (index, ((slot, who), count)) in asked.iter().zip(&verdict.counts).enumerate() {
            let limit = &self.limits[usize::from(*slot)];
            let refused = verdict.refused.is_some_and(|(window, _)| window == index);
            if refused {
                limit.refused.fetch_add(1, Ordering::Relaxed);
            } else if verdict.refused.is_none() {
                limit.passed.fetch_add(1, Ordering::Relaxed);
            }
            let noted = CountedRequest {
                limit: *slot,
                identity: who,
                count: *count,
                allowed: limit.count,
                length: limit.length,
                refused,
            };
            self.recent_callers.record(&noted, now);
        }
        let Some((index, wait)) = verdict.refused else {
            return Ok(());
        };
        let limit = &self.limits[usize::from(asked[index].0)];
        metrics::counter!(metric::LIMITED, "limit" => limit.name.clone()).increment(1);
        Err(Refusal {
            name: limit.name.clone(),
            count: limit.count,
            length: limit.length,
            wait,
        })
    }
}

fn address(parts: &Parts) -> Option<IpAddr> {
    Client::of(&parts.extensions).address.map(network)
}

/// Whether nobody is refused there: who looks after the platform must not be kept out by those who use it.
fn is_exempt(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/ok" | "/metrics" | "/" | "/ui") || path.starts_with("/ui/")
}

/// Whether a request has a key or a session that opens something.
async fn is_known(authenticator: Authenticator<'_>, headers: &HeaderMap) -> bool {
    if headers.contains_key(KEY) {
        let Authenticator { keys, store, clock, .. } = authenticator;
        let found = auth::find_key_holder(keys, store, clock, headers).await;
        return matches!(found, Ok(Some(_)));
    }
    if !headers.contains_key(AUTHORIZATION) {
        return false;
    }
    match auth::session_token(headers) {
        Ok(token) => matches!(session::holder(authenticator, token).await, Ok(Some(_))),
        Err(_) => false,
    }
}
