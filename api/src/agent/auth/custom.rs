//! Requests as the auth of the graphs' author judges them: who calls, whether they may, which rows they may see.

use std::sync::Arc;

use axum::extract::{FromRequestParts as _, MatchedPath, RawPathParams, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use towpath_domain::agent::Object;
use towpath_domain::{AssistantId, ThreadId};
use towpath_runtime::Graphs;
use towpath_runtime::hosted::{self, AuthHandlers, Caller, Denied, Pool};

use super::caller::{GRANT, Grant, granted};
use super::judged::Judge;
use super::remembered;
use super::route::{self, About, Input};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// Parameters of a path, decoded as its handler decodes them.
type Params = Vec<(String, String)>;

/// Lets a request for a route of ours pass, or answers in its place.
pub(super) async fn guard(app: AgentApp, request: Request, next: Next) -> Response {
    match judge(&app, request).await {
        Ok((grant, request)) => GRANT.scope(grant, next.run(request)).await,
        Err(refusal) => *refusal,
    }
}

/// Lets a request for a route of the author's own pass when it says who calls. What it is about only the route knows.
pub(super) async fn recognize(app: AgentApp, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let graphs = app.graphs.current();
    let caller = match decider(&graphs) {
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

/// Boxed: a response is large, and seldom.
pub(in crate::agent) type Refusal = Box<Response>;

pub(super) fn refuse(error: AgentError) -> Refusal {
    Box::new(error.into_response())
}

pub(super) fn denied(error: Denied) -> Refusal {
    match error {
        Denied::Refused {
            status,
            message,
            headers,
        } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN);
            let mut response = AgentError::new(status, message).into_response();
            for (name, value) in headers {
                if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                    response.headers_mut().insert(name, value);
                }
            }
            Box::new(response)
        }
        Denied::Failed(why) => {
            tracing::error!(error = why, "the graphs' auth failed");
            refuse(AgentError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "Internal Server Error",
            ))
        }
    }
}

/// The code that decides. Without it nobody gets in.
fn decider(graphs: &Graphs) -> Result<(&Pool, &AuthHandlers), Refusal> {
    let pool = graphs.hosts();
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
    let (pool, auth) = decider(&graphs)?;
    let (mut parts, body) = request.into_parts();
    let params = params(&mut parts).await?;
    let caller = authenticate(app, pool, head(&parts, &params)).await?;
    let about = about(app, &parts)?;
    let judge = Judge::new(app, pool, auth, &caller, about);
    let request = Request::from_parts(parts, body);
    let (request, visible, deletable) = judge.request(request, &params).await?;
    let grant = Grant {
        caller,
        visible,
        deletable,
    };
    Ok((grant, request))
}

/// Judges an operation that a request names in its body: the line of its route cannot tell it. Answers its value as the author's
/// handlers leave it, and what rows must pass. Without such handlers everything passes as it is.
pub(in crate::agent) async fn allow(
    app: &AgentApp,
    (resource, action): (&'static str, &'static str),
    thread: Option<ThreadId>,
    value: Object,
) -> Result<(Object, Object), Refusal> {
    let Some(caller) = granted() else {
        return Ok((value, Object::new()));
    };
    let graphs = app.graphs.current();
    let (pool, handlers) = decider(&graphs)?;
    let about = About {
        resource,
        action,
        input: Input::Object,
    };
    let judge = Judge::new(app, pool, handlers, &caller, about);
    judge.operation(thread, value).await
}

/// Judges whether the caller may read an assistant that a request names in its body. As [`allow`].
pub(in crate::agent) async fn allow_reading(app: &AgentApp, assistant: AssistantId) -> Result<(), Refusal> {
    let Some(caller) = granted() else {
        return Ok(());
    };
    let graphs = app.graphs.current();
    let (pool, handlers) = decider(&graphs)?;
    let about = About {
        resource: "assistants",
        action: "read",
        input: Input::Nothing,
    };
    Judge::new(app, pool, handlers, &caller, about)
        .on_assistant(assistant)
        .await
}

/// What the request is about: its route's line. A route that has none is a defect of ours, and opens nothing.
fn about(app: &AgentApp, parts: &Parts) -> Result<About, Refusal> {
    let matched = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let prefix = app.settings.mount_prefix.trim_end_matches('/');
    let template = matched.strip_prefix(prefix);
    let about = template.and_then(|template| route::about(&parts.method, template));
    about.ok_or_else(|| {
        tracing::error!(
            http.route = matched,
            "nothing says what this route is about: the graphs' auth cannot judge it"
        );
        refuse(AgentError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal Server Error",
        ))
    })
}

/// The parameters of the path, as the handlers read them.
async fn params(parts: &mut Parts) -> Result<Params, Refusal> {
    let all = RawPathParams::from_request_parts(parts, &()).await;
    let all = all.map_err(|_| refuse(AgentError::not_found()))?;
    Ok(all
        .iter()
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .collect())
}

/// What the author's handler may ask of a request.
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
    let key = cache.map(|cache| remembered::key(cache, &asked));
    let now = app.clock.now();
    if let Some(caller) = key.as_ref().and_then(|key| app.remembered.find(key, now)) {
        return Ok(caller);
    }
    let caller = Arc::new(pool.authenticate(asked).await.map_err(denied)?);
    if let (Some(key), Some(cache)) = (key, cache) {
        app.remembered.keep(key, caller.clone(), cache, now);
    }
    Ok(caller)
}
