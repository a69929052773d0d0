//! Custom routes of the graphs' author: requests without a built-in route go to the process that serves them. Also disables
//! groups of built-in routes.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::header::{CONNECTION, HOST, HeaderName, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};
use http_body::Body as _;
use http_body_util::Limited;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use towpath_runtime::Graphs;

use super::app::{AgentApp, Settings};
use super::errors::AgentError;
use super::event_streaming::{FOREIGN_SOCKET, is_allowed_origin};
use crate::browser::may_act;
use crate::gateway_signature::UnkeyedCaller;

/// Passes all requests to the custom routes, if there are any.
pub(super) fn router(app: AgentApp) -> Router {
    let router = Router::new().fallback(forward);
    let router = if app.settings.custom_routes_auth {
        router.layer(from_fn_with_state(app.clone(), super::auth::require_custom_routes_auth))
    } else {
        router.layer(from_fn(require_caller))
    };
    router.with_state(app)
}

/// Rejects unauthenticated callers: custom routes without custom auth need a key.
async fn require_caller(request: Request, next: Next) -> Response {
    if request.extensions().get::<UnkeyedCaller>().is_some() {
        let text = "an API key is required: send it in the X-API-Key header";
        return AgentError::new(StatusCode::UNAUTHORIZED, text).into_response();
    }
    next.run(request).await
}

/// Rejects routes of disabled groups. The author may serve such paths, for example an MCP server.
pub(super) async fn require_enabled_group(State(app): State<AgentApp>, request: Request, next: Next) -> Response {
    let is_off = route_groups(request.method(), request.uri().path())
        .iter()
        .any(|group| app.settings.is_off(group));
    if !is_off {
        return next.run(request).await;
    }
    if !has_custom_routes(&app.graphs.current()) {
        return AgentError::not_found().into_response();
    }
    let Ok(response) = router(app).oneshot(request).await;
    response
}

/// Whether there are custom routes.
fn has_custom_routes(graphs: &Graphs) -> bool {
    graphs.host_pool().is_some_and(|pool| pool.ready().http)
}

/// Groups of a route. Disabling any of them disables the route.
fn route_groups(method: &Method, path: &str) -> &'static [&'static str] {
    const EVENT_STREAMING: &[&str] = &["event_streaming", "threads", "runs"];
    let mut parts = path.trim_start_matches('/').split('/');
    let parts = [(); 4].map(|()| parts.next().unwrap_or_default());
    match parts {
        ["threads", _, "runs", _] | ["runs", ..] => &["runs"],
        // They start runs and show events of runs.
        ["threads", _, "commands", _] | ["threads", _, "stream", "events"] => EVENT_STREAMING,
        ["threads", _, "stream", ""] if method == Method::POST => EVENT_STREAMING,
        ["threads", ..] => &["threads"],
        ["assistants" | "agents", ..] => &["assistants"],
        ["store", ..] => &["store"],
        ["a2a", ..] | [".well-known", "agent-card.json" | "agent.json", "", _] => &["a2a"],
        ["mcp", ..] => &["mcp"],
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
    let Some(pool) = graphs.host_pool().filter(|pool| pool.ready().http) else {
        return AgentError::not_found().into_response();
    };
    // The child lease keeps the process alive until the head of the response is read.
    let seat = match pool.lease_for_question().await {
        Ok(seat) => seat,
        Err(error) => {
            tracing::error!(%error, "cannot reach the custom routes");
            return unreachable();
        }
    };
    let Some(socket) = seat.child().http_socket.clone() else {
        return AgentError::not_found().into_response();
    };
    if is_websocket(request.headers()) && !may_open_socket(&app.settings, request.headers()) {
        return AgentError::new(StatusCode::FORBIDDEN, FOREIGN_SOCKET).into_response();
    }
    match exchange(&socket, request, app.draining.clone()).await {
        Ok(response) => response,
        Err(error) => {
            tracing::error!(%error, "cannot reach the custom routes");
            unreachable()
        }
    }
}

/// Whether a page may open a socket of the author. Custom auth asks for credentials only if it applies to these routes.
fn may_open_socket(settings: &Settings, headers: &HeaderMap) -> bool {
    is_allowed_origin(settings, headers)
        && (settings.custom_routes_auth
            || !settings.this_machine_only
            || may_act(&Method::POST, headers, |origin| settings.cors.allows_origin(origin)))
}

fn unreachable() -> Response {
    AgentError::new(
        StatusCode::BAD_GATEWAY,
        "The custom routes of this server are unavailable",
    )
    .into_response()
}

/// Hop-by-hop headers (RFC 9110, 7.6.1).
const OF_CONNECTION: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Whether a request opens a WebSocket.
fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|protocol| protocol.trim().eq_ignore_ascii_case("websocket"))
}

async fn exchange(
    socket: &std::path::Path,
    mut request: Request,
    draining: CancellationToken,
) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to the custom routes ended");
        }
    });
    let client = is_websocket(request.headers()).then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    parts.uri = target.parse::<Uri>()?;
    parts.version = Version::HTTP_11;
    strip(&mut parts.headers);
    if client.is_some() {
        parts.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    parts
        .headers
        .entry(HOST)
        .or_insert(HeaderValue::from_static("localhost"));
    let mut response = sender.send_request(Request::from_parts(parts, body)).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = client
    {
        tokio::spawn(relay(client, hyper::upgrade::on(&mut response), draining));
        // Both sides need the headers that belong to the change of protocol.
        return Ok(response.map(Body::new));
    }
    let (mut parts, body) = response.into_parts();
    strip(&mut parts.headers);
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// Copies both ways until a side ends or this process drains: clients then connect to another process.
async fn relay(client: OnUpgrade, author: OnUpgrade, draining: CancellationToken) {
    let (client, author) = match tokio::try_join!(client, author) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "a WebSocket of the custom routes was not opened");
            return;
        }
    };
    let (mut client, mut author) = (TokioIo::new(client), TokioIo::new(author));
    tokio::select! {
        () = draining.cancelled() => {}
        copied = tokio::io::copy_bidirectional(&mut client, &mut author) => {
            if let Err(error) = copied {
                tracing::debug!(%error, "a WebSocket of the custom routes broke off");
            }
        }
    }
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
    fn a_websocket_is_told_by_its_upgrade() {
        use crate::test_headers::headers;

        assert!(is_websocket(&headers(&[("upgrade", "WebSocket")])));
        assert!(!is_websocket(&headers(&[("upgrade", "h2c")])));
        assert!(!is_websocket(&headers(&[("connection", "upgrade")])));
    }

    #[test]
    fn routes_belong_to_groups() {
        let protocol: &[&str] = &["event_streaming", "threads", "runs"];
        let cases: [(&str, &[&str]); 16] = [
            ("/threads", &["threads"]),
            ("/threads/1/state", &["threads"]),
            ("/threads/1/stream", &["threads"]),
            ("/threads/1/stream/events", protocol),
            ("/threads/1/commands", protocol),
            ("/threads/1/runs/stream", &["runs"]),
            ("/runs/crons", &["runs"]),
            ("/store/items", &["store"]),
            ("/assistants/search", &["assistants"]),
            ("/agents/search", &["assistants"]),
            ("/a2a/1", &["a2a"]),
            ("/.well-known/agent-card.json", &["a2a"]),
            ("/.well-known/other", &[]),
            ("/mcp", &["mcp"]),
            ("/mcps", &[]),
            ("/ok", &[]),
        ];
        for (path, expected) in cases {
            assert_eq!(route_groups(&Method::GET, path), expected, "{path}");
        }
        assert_eq!(route_groups(&Method::POST, "/threads/1/stream"), protocol);
    }
}
