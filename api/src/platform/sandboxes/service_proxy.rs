//! `/v2/sandboxes/services/{box}/{port}`: HTTP to a port of a sandbox, for callers with a token.
//!
//! Programs send the token in a header. A browser sends it once, to `_svc/auth`, and keeps it in a cookie of that path.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, COOKIE, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::Limited;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use towpath_domain::BoxId;
use towpath_domain::sandbox::TokenKind;
use towpath_sandbox::{Error, PortConnection};
use towpath_store::sandboxes::tokens::{self, BoxToken};
use towpath_store::{self as store};

use super::readiness::{BoxUse, ensure_running};
use crate::app::App;
use crate::client::Client;
use crate::concurrency::ConcurrencyLimit;
use crate::errors::ApiError;
use crate::gateway::{headers, upstream};
use crate::layers;
use crate::routes::RouteTable;

/// Common path prefix.
const PREFIX: &str = "/v2/sandboxes/services/";
/// Token header for programs.
const TOKEN_HEADER: &str = "x-langsmith-sandbox-service-token";
/// Token cookie for browsers.
const COOKIE_NAME: &str = "towpath_service";
/// Maximum number of concurrent requests.
const MAX_REQUESTS: usize = 1024;
/// Maximum size of a body, which is streamed.
const MAX_BODY_BYTES: usize = 1 << 30;

/// Routes outside of the platform's concurrency limit: a service may take minutes to respond.
pub(crate) fn routes(app: &App) -> Router {
    let places = std::sync::Arc::new(ConcurrencyLimit::new(MAX_REQUESTS));
    listed()
        .router()
        .layer(from_fn_with_state(places, layers::limit_places))
        .with_state(app.clone())
}

pub(crate) fn listed() -> RouteTable<App> {
    RouteTable::new()
        .any("/v2/sandboxes/services/{box_id}/{port}", forward)
        .any("/v2/sandboxes/services/{box_id}/{port}/", forward)
        .any("/v2/sandboxes/services/{box_id}/{port}/{*path}", forward)
}

/// A port of a sandbox and the path of a request.
struct ServiceTarget<'a> {
    prefix: &'a str,
    id: BoxId,
    port: u16,
    path: &'a str,
}

impl<'a> ServiceTarget<'a> {
    fn parse(uri: &'a Uri) -> Option<Self> {
        let path = uri.path();
        let (id, behind) = path.strip_prefix(PREFIX)?.split_once('/')?;
        let end = behind.find('/').unwrap_or(behind.len());
        let rest = &behind[end..];
        Some(Self {
            prefix: &path[..path.len() - rest.len()],
            id: id.parse().ok()?,
            port: behind[..end].parse().ok().filter(|port| *port > 0)?,
            path: if rest.is_empty() { "/" } else { rest },
        })
    }
}

async fn forward(State(app): State<App>, request: Request) -> Response {
    match proxy(&app, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn proxy(app: &App, request: Request) -> Result<Response, ApiError> {
    if request.body().size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(ApiError::too_large(MAX_BODY_BYTES));
    }
    let mut request = request.map(|body| Body::new(Limited::new(body, MAX_BODY_BYTES)));
    let uri = request.uri().clone();
    let way = ServiceTarget::parse(&uri).ok_or_else(|| ApiError::not_found("service"))?;
    let client = Client::of(request.extensions());
    if way.path == "/_svc/auth" {
        return set_cookie_and_redirect(app, &way, &uri, client).await;
    }
    let token = request_token(request.headers()).ok_or_else(connection_closed)?;
    let opened = check_token(app, &way, &token).await?;
    headers::filter_request(request.headers_mut(), way.prefix, client);
    request.headers_mut().remove(TOKEN_HEADER);
    let path = match uri.query() {
        None => way.path.to_owned(),
        Some(query) => format!("{}?{query}", way.path),
    };
    *request.uri_mut() = path
        .parse()
        .map_err(|_| ApiError::bad_request("the path cannot be read"))?;
    let awake = ensure_running(app, opened.tenant_id, opened.box_id).await?;
    let connection = match awake.agent.connect_port(way.port).await {
        Ok(connection) => connection,
        Err(Error::Refused(port)) => {
            let text = format!("nothing listens on port {port} of the sandbox");
            return Err(ApiError::with_name(StatusCode::BAD_GATEWAY, "ConnectionError", text));
        }
        Err(error) => return Err(awake.agent_error(way.id, &error)),
    };
    // Keeps the sandbox from stopping as idle until the response is read or the upgraded connection ends.
    let connection = TrackedConnection {
        connection,
        _in_use: awake.in_use,
    };
    let host = format!("localhost:{}", way.port);
    let broken = |error: &dyn std::error::Error| {
        tracing::debug!(error = %crate::errors::chain(error), "a service of a sandbox ended the connection");
        let text = "the service closed the connection before it responded";
        ApiError::with_name(StatusCode::BAD_GATEWAY, "ConnectionError", text)
    };
    let connection = upstream::connect_over(connection, &host)
        .await
        .map_err(|error| broken(&error))?;
    connection.send(request).await.map_err(|error| broken(&error))
}

/// A connection to a port that keeps its sandbox from stopping as idle.
struct TrackedConnection {
    connection: PortConnection,
    _in_use: BoxUse,
}

impl AsyncRead for TrackedConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TrackedConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

fn connection_closed() -> ApiError {
    let text =
        "the service requires a token for this port: create one with POST /v2/sandboxes/boxes/{name}/service-url";
    ApiError::unauthorized(text)
}

/// The token of a request.
fn request_token(headers: &HeaderMap) -> Option<String> {
    if let Some(token) = headers.get(TOKEN_HEADER) {
        return token.to_str().ok().map(str::to_owned);
    }
    let cookies = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|cookies| cookies.to_str().ok());
    let mut cookies = cookies.flat_map(|cookies| cookies.split(';'));
    cookies.find_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == COOKIE_NAME).then(|| value.to_owned())
    })
}

/// Checks that a token is for this port of this sandbox.
async fn check_token(app: &App, way: &ServiceTarget<'_>, token: &str) -> Result<BoxToken, ApiError> {
    let found = app.store.read(async |tx| tokens::find(tx, token).await).await;
    let opened = match found {
        Err(store::Error::NotFound) => return Err(connection_closed()),
        found => found?,
    };
    let is_this =
        opened.kind == TokenKind::Service && opened.box_id == way.id && opened.port == Some(i64::from(way.port));
    if is_this { Ok(opened) } else { Err(connection_closed()) }
}

/// Sets the cookie and redirects to the requested page.
async fn set_cookie_and_redirect(
    app: &App,
    way: &ServiceTarget<'_>,
    uri: &Uri,
    client: Client,
) -> Result<Response, ApiError> {
    let pairs: Vec<(String, String)> = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        .into_owned()
        .collect();
    let of = |name: &str| {
        pairs
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    };
    let token = of("token").ok_or_else(connection_closed)?;
    let opened = check_token(app, way, token).await?;
    // Only paths of this service: no open redirect.
    let page = of("redirect").filter(|page| page.starts_with('/') && !page.starts_with("//") && !page.contains('\\'));
    let seconds = opened
        .expires_at
        .map_or(3600, |end| end.since(app.clock.now()).as_secs());
    let secure = if client.secure { "; Secure" } else { "" };
    let cookie = format!(
        "{COOKIE_NAME}={token}; Path={}/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}",
        way.prefix
    );
    let place = format!("{}{}", way.prefix, page.unwrap_or("/"));
    let unreadable = |_| ApiError::bad_request("the address cannot be read");
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.insert(LOCATION, HeaderValue::try_from(place).map_err(unreadable)?);
    headers.insert(SET_COOKIE, HeaderValue::try_from(cookie).map_err(unreadable)?);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
