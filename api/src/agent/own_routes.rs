//! Routes of the graphs' author: what no route of ours takes goes to the process that serves them. And which of ours are
//! offered at all.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::header::{CONNECTION, HOST, HeaderName, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, Version};
use http_body::Body as _;
use http_body_util::Limited;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tower::ServiceExt as _;

use super::app::AgentApp;
use super::errors::AgentError;
use crate::gateway::signature::Unkeyed;

/// Everything goes to the author's routes, where there are any.
pub(super) fn router(app: AgentApp) -> Router {
    let router = Router::new().fallback(forward);
    let router = if app.settings.own_routes_auth {
        router.layer(from_fn_with_state(app.clone(), super::auth::require_of_own))
    } else {
        router.layer(from_fn(keyed))
    };
    router.with_state(app)
}

/// Refuses callers whom nobody judges: routes that the author's auth leaves alone are for those who have a key.
async fn keyed(request: Request, next: Next) -> Response {
    if request.extensions().get::<Unkeyed>().is_some() {
        let text = "an API key is required: send it in the X-API-Key header";
        return AgentError::new(StatusCode::UNAUTHORIZED, text).into_response();
    }
    next.run(request).await
}

/// Refuses routes of groups that the config file turns off. Those of the Agent2Agent protocol go to the author, who may serve
/// it at the same paths.
pub(super) async fn offered(State(app): State<AgentApp>, request: Request, next: Next) -> Response {
    let groups = groups(request.uri().path());
    let is_off = groups
        .iter()
        .any(|&group| app.settings.disabled.iter().any(|off| off == group));
    if !is_off {
        return next.run(request).await;
    }
    if !groups.contains(&"a2a") {
        return AgentError::not_found().into_response();
    }
    let Ok(response) = router(app).oneshot(request).await;
    response
}

/// The groups of a route. Each of them turns it off.
fn groups(path: &str) -> &'static [&'static str] {
    let mut parts = path.trim_start_matches('/').split('/');
    let parts = [(); 4].map(|()| parts.next().unwrap_or_default());
    match parts {
        ["threads", _, "runs", _] | ["runs", ..] => &["runs"],
        // They start runs and show what runs do.
        ["threads", _, "commands", _] | ["threads", _, "stream", "events"] => &["event_streaming", "threads", "runs"],
        ["threads", ..] => &["threads"],
        ["assistants", ..] => &["assistants"],
        ["store", ..] => &["store"],
        ["a2a", ..] | [".well-known", "agent-card.json" | "agent.json", "", _] => &["a2a"],
        _ => &[],
    }
}

async fn forward(State(app): State<AgentApp>, request: Request) -> Response {
    let limit = app.settings.body_bytes;
    if request.body().size_hint().lower() > limit as u64 {
        let text = format!("Request body is larger than {limit} bytes");
        return AgentError::new(StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
    }
    let request = request.map(|body| Body::new(Limited::new(body, limit)));
    let graphs = app.graphs.current();
    let Some(pool) = graphs.hosts().filter(|pool| pool.ready().http) else {
        return AgentError::not_found().into_response();
    };
    // Holding the child keeps it from being ended in the middle of an answer's head.
    let seat = match pool.anyone().await {
        Ok(seat) => seat,
        Err(error) => {
            tracing::error!(%error, "the author's routes cannot be reached");
            return unreachable();
        }
    };
    let Some(socket) = seat.child().http_socket.clone() else {
        return AgentError::not_found().into_response();
    };
    match exchange(&socket, request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::error!(%error, "the author's routes cannot be reached");
            unreachable()
        }
    }
}

fn unreachable() -> Response {
    AgentError::new(
        StatusCode::BAD_GATEWAY,
        "The routes of this server's graphs cannot be reached",
    )
    .into_response()
}

/// Headers that are about one connection only (RFC 9110, 7.6.1).
const OF_CONNECTION: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

async fn exchange(
    socket: &std::path::Path,
    request: Request,
) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the author's routes ended");
        }
    });
    let (mut parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    parts.uri = target.parse::<Uri>()?;
    parts.version = Version::HTTP_11;
    strip(&mut parts.headers);
    parts
        .headers
        .entry(HOST)
        .or_insert(HeaderValue::from_static("localhost"));
    let response = sender.send_request(Request::from_parts(parts, body)).await?;
    let (mut parts, body) = response.into_parts();
    strip(&mut parts.headers);
    Ok(Response::from_parts(parts, Body::new(body)))
}

fn strip(headers: &mut HeaderMap) {
    for name in &OF_CONNECTION {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_belong_to_groups() {
        let protocol: &[&str] = &["event_streaming", "threads", "runs"];
        let cases: [(&str, &[&str]); 13] = [
            ("/threads", &["threads"]),
            ("/threads/1/state", &["threads"]),
            ("/threads/1/stream", &["threads"]),
            ("/threads/1/stream/events", protocol),
            ("/threads/1/commands", protocol),
            ("/threads/1/runs/stream", &["runs"]),
            ("/runs/crons", &["runs"]),
            ("/store/items", &["store"]),
            ("/assistants/search", &["assistants"]),
            ("/a2a/1", &["a2a"]),
            ("/.well-known/agent-card.json", &["a2a"]),
            ("/.well-known/other", &[]),
            ("/ok", &[]),
        ];
        for (path, expected) in cases {
            assert_eq!(groups(path), expected, "{path}");
        }
    }
}
