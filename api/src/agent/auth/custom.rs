//! Custom auth of the graphs' author: who calls, whether they may, which rows they may see.

use std::sync::Arc;

use axum::extract::{FromRequestParts as _, MatchedPath, RawPathParams, Request};
use axum::middleware::Next;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use towpath_domain::agent::Object;
use towpath_domain::{AssistantId, ThreadId};
use towpath_runtime::Graphs;
use towpath_runtime::hosted::{self, AuthHandlers, Caller, Pool};

use super::authorizer::Authorizer;
use super::caller::{GRANT, Grant, authenticated_caller};
use super::caller_cache;
use super::refusal::{Refusal, denied, refuse};
use super::route::{self, RequestInput, ResourceAction};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// Path parameters, decoded like in the handler.
type Params = Vec<(String, String)>;

/// Authorizes a request, or responds with the rejection.
pub(super) async fn guard(app: AgentApp, request: Request, next: Next) -> Response {
    match judge(&app, request).await {
        Ok((grant, request)) => GRANT.scope(grant, next.run(request)).await,
        Err(refusal) => *refusal,
    }
}

/// Authenticates a request for a custom route. Authorization is up to the route.
pub(super) async fn authenticate_custom_route(app: AgentApp, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let graphs = app.graphs.current();
    let caller = match auth_handlers(&graphs) {
        Ok((pool, _)) => authenticate(&app, pool, head(&parts, &[])).await,
        Err(refusal) => Err(refusal),
    };
    match caller {
        Ok(caller) => {
            let grant = Grant {
                caller,
                visible: Object::new(),
                deletable: None,
            };
            GRANT.scope(grant, next.run(Request::from_parts(parts, body))).await
        }
        Err(refusal) => *refusal,
    }
}

/// The auth handlers. Without them every request is rejected.
fn auth_handlers(graphs: &Graphs) -> Result<(&Pool, &AuthHandlers), Refusal> {
    let pool = graphs.host_pool();
    let found = pool.and_then(|pool| Some((&**pool, pool.ready().auth.as_ref()?)));
    found.ok_or_else(|| {
        refuse(AgentError::unavailable(
            "The auth of this server is not loaded",
            std::time::Duration::from_secs(2),
        ))
    })
}

async fn judge(app: &AgentApp, request: Request) -> Result<(Grant, Request), Refusal> {
    let graphs = app.graphs.current();
    let (pool, auth) = auth_handlers(&graphs)?;
    let (mut parts, body) = request.into_parts();
    let params = params(&mut parts).await?;
    let caller = authenticate(app, pool, head(&parts, &params)).await?;
    let about = about(app, &parts)?;
    let judge = Authorizer::new(app, pool, auth, &caller, about);
    let request = Request::from_parts(parts, body);
    let (request, visible, deletable) = judge.authorize(request, &params).await?;
    let grant = Grant {
        caller,
        visible,
        deletable,
    };
    Ok((grant, request))
}

/// Authorizes an operation named in the body of a request. Returns its value as changed by the handlers and the filter for
/// rows. Without handlers the value is unchanged.
pub(in crate::agent) async fn authorize_operation(
    app: &AgentApp,
    (resource, action): (&'static str, &'static str),
    thread: Option<ThreadId>,
    value: Object,
) -> Result<(Object, Object), Refusal> {
    let Some(caller) = authenticated_caller() else {
        return Ok((value, Object::new()));
    };
    let graphs = app.graphs.current();
    let (pool, handlers) = auth_handlers(&graphs)?;
    let about = ResourceAction {
        resource,
        action,
        input: RequestInput::Object,
    };
    let judge = Authorizer::new(app, pool, handlers, &caller, about);
    judge.authorize_operation(thread, value).await
}

/// Authorizes reading an assistant that a request names in its body.
pub(in crate::agent) async fn authorize_assistant_read(app: &AgentApp, assistant: AssistantId) -> Result<(), Refusal> {
    let Some(caller) = authenticated_caller() else {
        return Ok(());
    };
    let graphs = app.graphs.current();
    let (pool, handlers) = auth_handlers(&graphs)?;
    let about = ResourceAction {
        resource: "assistants",
        action: "read",
        input: RequestInput::Nothing,
    };
    Authorizer::new(app, pool, handlers, &caller, about)
        .authorize_assistant(assistant)
        .await
}

/// The operation of the route. A route without an entry is a defect and is rejected.
fn about(app: &AgentApp, parts: &Parts) -> Result<ResourceAction, Refusal> {
    let matched = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let prefix = app.settings.mount_prefix.trim_end_matches('/');
    let template = matched.strip_prefix(prefix);
    let about = template.and_then(|template| route::resource_action(&parts.method, template));
    about.ok_or_else(|| {
        tracing::error!(
            http.route = matched,
            "the route has no auth entry, so the graphs' auth cannot authorize it"
        );
        refuse(AgentError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal Server Error",
        ))
    })
}

/// Path parameters as the handlers read them.
async fn params(parts: &mut Parts) -> Result<Params, Refusal> {
    let all = RawPathParams::from_request_parts(parts, &()).await;
    let all = all.map_err(|_| refuse(AgentError::not_found()))?;
    Ok(all
        .iter()
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .collect())
}

/// The parts of a request that auth handlers can read.
fn head(parts: &Parts, params: &[(String, String)]) -> hosted::Request {
    let headers = parts.headers.iter();
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let headers = headers.filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?)));
    hosted::Request {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: headers.collect(),
        path_params: params.iter().cloned().collect(),
    }
}

async fn authenticate(app: &AgentApp, pool: &Pool, asked: hosted::Request) -> Result<Arc<Caller>, Refusal> {
    let cache = app.settings.auth_cache.as_ref();
    let key = cache.map(|cache| caller_cache::key(cache, &asked));
    let now = app.clock.now();
    if let Some(caller) = key.as_ref().and_then(|key| app.caller_cache.find(key, now)) {
        return Ok(caller);
    }
    let caller = Arc::new(pool.authenticate(asked).await.map_err(denied)?);
    if let (Some(key), Some(cache)) = (key, cache) {
        app.caller_cache.insert(key, caller.clone(), cache, now);
    }
    Ok(caller)
}
