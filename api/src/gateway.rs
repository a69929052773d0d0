//! `/d/{deployment}`: the agent servers of deployments, behind the platform's address and keys.
//!
//! ```text
//! client ── /d/name/threads, X-Api-Key ─► who calls? whose is it? where is it? ── /threads ─► agent server on loopback
//! ```
//! The key stays here: the agent server gets the prefix it is reached under (`X-Forwarded-Prefix`), no key, and a
//! [signature](gateway_signature) that says where the request came through. Bodies pass as they come, both ways. Where a
//! deployment is, is read with every request, so that a switch counts at once; while there is none, a request waits for a
//! moment before it is refused. A request that may have reached an agent server is repeated only if doing it twice is the
//! same.

pub(crate) mod headers;
pub(crate) mod upstream;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, Uri};
use http_body::Body as _;
use http_body_util::Limited;
use tokio::time::Instant;
use towpath_domain::{DeploymentId, Scope, TenantId};
use towpath_store::access::Principal;
use towpath_store::deployments::{self, GatewayDeployment};
use towpath_store::placements::{self, Placement, PlacementState};
use towpath_workflows::deployment_host::gateway_key;

use crate::app::{App, GatewayAccess};
use crate::client::Client;
use crate::concurrency::{ConcurrencyLimit, Owner};
use crate::errors::ApiError;
use crate::gateway_signature::{self, Assertion, OPEN_PATHS};
use crate::request_permits::{PermitRefusal, RequestPermits};
use crate::routes::RouteTable;
use crate::{auth, layers, metric, paths, scopes};

/// After this a client may ask again for a deployment that never served.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// How long a waiting request waits before it looks again, at first and at last: many may wait.
const FIRST_POLL: Duration = Duration::from_millis(10);
const LAST_POLL: Duration = Duration::from_millis(100);
/// Requests on their way at once, beside those of the platform. A stream counts until its head is there, and a connection
/// that changed its protocol to its end.
const REQUESTS: usize = 1024;
/// The largest body that passes. It is held nowhere, but it must have an end.
const MAX_BODY_BYTES: usize = 1 << 30;

/// The routes. They stand beside the limit on requests of the platform: an agent may think for minutes.
pub(crate) fn routes(app: &App) -> Router {
    let places = std::sync::Arc::new(ConcurrencyLimit::new(REQUESTS));
    route_table()
        .router()
        .layer(from_fn_with_state(places, layers::limit_places))
        .with_state(app.clone())
}

pub(crate) fn route_table() -> RouteTable<App> {
    RouteTable::new()
        .any("/d/{deployment}", forward)
        .any("/d/{deployment}/", forward)
        .any("/d/{deployment}/{*path}", forward)
}

/// A request's way: `/d/<deployment>` as it was sent, and what is behind it.
struct DeploymentRoute<'a> {
    prefix: &'a str,
    deployment: &'a str,
    path: &'a str,
}

impl<'a> DeploymentRoute<'a> {
    fn of(uri: &'a Uri) -> Option<Self> {
        let path = uri.path();
        let behind = path.strip_prefix("/d/")?;
        let end = behind.find('/').unwrap_or(behind.len());
        let rest = &behind[end..];
        Some(Self {
            prefix: &path[..path.len() - rest.len()],
            deployment: &behind[..end],
            path: if rest.is_empty() { "/" } else { rest },
        })
    }

    /// Whether everybody may ask this.
    fn is_open(&self, request: &Request) -> bool {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        // A browser asks first whether it may send a key at all.
        let asks = *request.method() == Method::OPTIONS
            && request
                .headers()
                .contains_key(http::header::ACCESS_CONTROL_REQUEST_METHOD);
        asks || (reads && OPEN_PATHS.contains(&self.path))
    }
}

async fn forward(State(app): State<App>, request: Request) -> Response {
    match answer(&app, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn answer(app: &App, request: Request) -> Result<Response, ApiError> {
    if request.body().size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(ApiError::too_large(MAX_BODY_BYTES));
    }
    let mut request = request.map(|body| Body::new(Limited::new(body, MAX_BODY_BYTES)));
    let uri = request.uri().clone();
    let way = DeploymentRoute::of(&uri).ok_or_else(|| ApiError::not_found("deployment"))?;
    // A name means something only to a caller who is known. Preflight requests can carry no key.
    let is_named = way.deployment.parse::<DeploymentId>().is_err();
    let is_open = way.is_open(&request) && (!is_named || *request.method() == Method::OPTIONS);
    let client = Client::of(request.extensions());
    let is_unkeyed = !is_open && has_own_auth(app, &way, request.headers()).await?;
    let caller = if is_open || is_unkeyed {
        None
    } else {
        let principal = auth::key_holder(&app.key_cache, &app.store, &app.clock, client, request.headers()).await?;
        let workspace = if is_named {
            auth::named_workspace(request.headers(), &principal)?
        } else {
            None
        };
        // The agent server behind asks for no key: it stands on loopback.
        if paths::is_operators(way.path) {
            scopes::require(&principal.scopes, scopes::operator_scope(request.method()))?;
        }
        Some(Caller { principal, workspace })
    };
    headers::filter_request(request.headers_mut(), way.prefix, client);
    let path = match uri.query() {
        None => way.path.to_owned(),
        Some(query) => format!("{}?{query}", way.path),
    };
    *request.uri_mut() = path
        .parse()
        .map_err(|_| ApiError::bad_request("the path cannot be read"))?;

    let said = if is_unkeyed {
        Assertion::Unkeyed
    } else {
        Assertion::Keyed
    };
    let held = RequestPermits::of(request.extensions());
    let begun = Instant::now();
    let repeatable = repeatable(&request);
    let mut request = Some(request);
    let mut is_counted = false;
    let mut patience = RetryWait {
        deadline: begun + app.settings.gateway_wait,
        pause: FIRST_POLL,
    };
    loop {
        let (deployment, address) = find_address(app, way.deployment, caller.as_ref(), &held, &mut patience).await?;
        // What everybody may ask must not use up what callers with a key may.
        if !is_open
            && !std::mem::replace(&mut is_counted, true)
            && let Err(refusal) = app.limits.count_deployment_request(deployment).await
        {
            return Ok(refusal.into_response());
        }
        let connection = match upstream::connect(&address).await {
            Ok(connection) => connection,
            // Between two agent servers, or about to be started again. Nothing was sent yet.
            Err(error) => {
                tracing::debug!(%error, "cannot reach an agent server");
                patience.wait().await?;
                continue;
            }
        };
        let Some(mut next) = request.take() else {
            return Err(deployment_unavailable());
        };
        gateway_signature::sign(&mut next, &gateway_key(&app.sealer, deployment), &app.clock, said);
        let spare = repeatable.then(|| copy(&next));
        metrics::histogram!(metric::GATEWAY_HELD).record(begun.elapsed());
        match connection.send(next).await {
            Ok(response) => return Ok(response),
            Err(error) => {
                tracing::debug!(%error, "an agent server closed the connection before it responded");
                match spare {
                    Some(again) => {
                        request = Some(again);
                        patience.wait().await?;
                    }
                    None => {
                        return Err(ApiError::new(
                            http::StatusCode::BAD_GATEWAY,
                            "the deployment's agent server closed the connection before it responded",
                        ));
                    }
                }
            }
        }
    }
}

/// Whether the deployment judges the caller, who shows no key. Only by its id: a name means something only to a caller who
/// is known.
async fn has_own_auth(app: &App, way: &DeploymentRoute<'_>, headers: &HeaderMap) -> Result<bool, ApiError> {
    let Ok(id) = way.deployment.parse::<DeploymentId>() else {
        return Ok(false);
    };
    if !app.settings.gateway_own_auth || auth::has_key_header(headers) || paths::is_operators(way.path) {
        return Ok(false);
    }
    Ok(app
        .store
        .read(async |tx| deployments::has_own_auth(tx, id).await)
        .await?)
}

/// Who calls.
struct Caller {
    principal: Principal,
    /// The workspace that the request names, where it has a deployment's name.
    workspace: Option<TenantId>,
}

impl Caller {
    /// Where a name is looked for first.
    fn workspaces(&self) -> &[TenantId] {
        match &self.workspace {
            Some(workspace) => std::slice::from_ref(workspace),
            None => &self.principal.workspaces,
        }
    }

    /// Whether a deployment of the organisation is open to the caller's key at all.
    fn may_reach(&self, access: GatewayAccess, found: &GatewayDeployment) -> bool {
        let Principal {
            workspaces,
            scopes,
            is_bound,
            is_limited,
            ..
        } = &self.principal;
        let of_others = match access {
            GatewayAccess::Workspace => false,
            GatewayAccess::Organization => {
                !(*is_bound && *is_limited) || scopes.contains(Scope::AgentsInvokeOf(found.id))
            }
        };
        of_others || workspaces.contains(&found.tenant_id)
    }
}

/// How long a request still waits.
struct RetryWait {
    deadline: Instant,
    pause: Duration,
}

impl RetryWait {
    /// Waits a moment, or refuses when it has waited long enough.
    async fn wait(&mut self) -> Result<(), ApiError> {
        if Instant::now() >= self.deadline {
            return Err(deployment_unavailable());
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LAST_POLL);
        Ok(())
    }
}

/// Where the deployment is, once it is somewhere.
async fn find_address(
    app: &App,
    deployment: &str,
    caller: Option<&Caller>,
    held: &RequestPermits,
    patience: &mut RetryWait,
) -> Result<(DeploymentId, String), ApiError> {
    let organization = caller.map(|caller| caller.principal.organization);
    let workspaces = caller.map_or(&[][..], Caller::workspaces);
    loop {
        let found: Option<(GatewayDeployment, Option<Placement>)> = app
            .store
            .read(async |tx| {
                let found = match deployments::find(tx, deployment, organization, workspaces).await {
                    Err(towpath_store::Error::NotFound) => return Ok(None),
                    found => found?,
                };
                let placement = placements::get(tx, found.tenant_id, found.id).await?;
                Ok(Some((found, placement)))
            })
            .await?;
        let Some((found, placement)) = found else {
            return Err(ApiError::not_found("deployment"));
        };
        if let Some(caller) = caller {
            // As one that is not there.
            if !caller.may_reach(app.settings.gateway_access, &found) {
                return Err(ApiError::not_found("deployment"));
            }
            scopes::require(&caller.principal.scopes, Scope::AgentsInvokeOf(found.id))?;
        }
        // Before it may wait: however many wait for one that is down, others are served.
        for owner in [Owner::Workspace(found.tenant_id), Owner::Deployment(found.id)] {
            held.charge(owner).map_err(PermitRefusal::refusal)?;
        }
        let Some(placement) = placement else {
            let text = "the deployment has no serving revision yet";
            return Err(ApiError::unavailable(text, RETRY_AFTER));
        };
        match (placement.state, placement.address) {
            (_, Some(address)) => return Ok((found.id, address)),
            (PlacementState::Down, _) => {
                let principal = caller.map(|caller| &caller.principal);
                return Err(start_failure(&found, placement.error.as_deref(), principal));
            }
            _ => patience.wait().await?,
        }
    }
}

/// Why it does not start is told to those who may look at it by other ways, too.
fn start_failure(found: &GatewayDeployment, why: Option<&str>, caller: Option<&Principal>) -> ApiError {
    let may_know = caller.is_some_and(|caller| {
        caller.workspaces.contains(&found.tenant_id) && scopes::require(&caller.scopes, Scope::Deployments).is_ok()
    });
    match why.and_then(|why| why.lines().next()).filter(|_| may_know) {
        Some(why) => ApiError::unavailable(
            format!("the deployment's agent server does not start; retrying: {why}"),
            RETRY_AFTER,
        ),
        None => deployment_unavailable(),
    }
}

fn deployment_unavailable() -> ApiError {
    ApiError::unavailable("the deployment's agent server is starting", Duration::from_secs(2))
}

/// Whether doing it twice is the same, and its body is known to be empty.
fn repeatable(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
        && request.body().is_end_stream()
        && !headers::is_upgrade(request.headers())
}

fn copy(request: &Request) -> Request {
    let mut copy = Request::new(Body::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_keeps_what_was_sent() {
        for (uri, prefix, deployment, rest) in [
            ("/d/one", "/d/one", "one", "/"),
            ("/d/one/", "/d/one", "one", "/"),
            ("/d/one/threads/a%2Fb?x=1", "/d/one", "one", "/threads/a%2Fb"),
            ("/d/one//x", "/d/one", "one", "//x"),
        ] {
            let uri: Uri = uri.parse().unwrap();
            let way = DeploymentRoute::of(&uri).unwrap();
            assert_eq!((way.prefix, way.deployment, way.path), (prefix, deployment, rest));
        }
    }

    #[test]
    fn only_reading_what_is_open_needs_no_key() {
        let ask = |method: Method, path: &str| {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let uri = request.uri().clone();
            DeploymentRoute::of(&uri).unwrap().is_open(&request)
        };
        for path in OPEN_PATHS {
            assert!(ask(Method::GET, &format!("/d/x{path}")));
            assert!(!ask(Method::POST, &format!("/d/x{path}")));
        }
        for path in [
            "/d/x",
            "/d/x/",
            "/d/x/threads",
            "/d/x/ok/",
            "/d/x//ok",
            "/d/x/metrics",
            "/d/x/%6fk",
        ] {
            assert!(!ask(Method::GET, path), "{path}");
        }
        assert!(!ask(Method::OPTIONS, "/d/x/threads"));
    }
}
