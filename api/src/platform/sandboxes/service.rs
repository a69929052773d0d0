//! `/v2/sandboxes/services/{box}/{port}`: HTTP to a port of a box, for callers with a token.
//!
//! Programs send the token as a header. A browser brings it once, to `_svc/auth`, and keeps it in a cookie of that path.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, COOKIE, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::Limited;
use towpath_domain::BoxId;
use towpath_domain::sandbox::TokenKind;
use towpath_sandbox::Error;
use towpath_store::sandboxes::tokens::{self, BoxToken};
use towpath_store::{self as store};

use super::wake::awake;
use crate::app::App;
use crate::client::Client;
use crate::errors::ApiError;
use crate::gate::Gate;
use crate::gateway::{headers, upstream};
use crate::layers;
use crate::routes::Listed;

/// Where all of them begin.
const PREFIX: &str = "/v2/sandboxes/services/";
/// The header of programs.
const TOKEN: &str = "x-langsmith-sandbox-service-token";
/// The cookie of browsers.
const COOKIE_NAME: &str = "towpath_service";
/// Requests on their way at once.
const REQUESTS: usize = 1024;
/// The largest body that passes. It is held nowhere, but it must have an end.
const LARGEST_BODY: usize = 1 << 30;

/// The routes. They stand beside the limit on requests of the platform: a service may think for minutes.
pub(crate) fn routes(app: &App) -> Router {
    let places = std::sync::Arc::new(Gate::new(REQUESTS));
    listed()
        .router()
        .layer(from_fn_with_state(places, layers::limit_places))
        .with_state(app.clone())
}

pub(crate) fn listed() -> Listed<App> {
    Listed::new()
        .any("/v2/sandboxes/services/{box_id}/{port}", forward)
        .any("/v2/sandboxes/services/{box_id}/{port}/", forward)
        .any("/v2/sandboxes/services/{box_id}/{port}/{*path}", forward)
}

/// A request's way: a port of a box, and what is behind it.
struct Way<'a> {
    prefix: &'a str,
    id: BoxId,
    port: u16,
    rest: &'a str,
}

impl<'a> Way<'a> {
    fn of(uri: &'a Uri) -> Option<Self> {
        let path = uri.path();
        let (id, behind) = path.strip_prefix(PREFIX)?.split_once('/')?;
        let end = behind.find('/').unwrap_or(behind.len());
        let rest = &behind[end..];
        Some(Self {
            prefix: &path[..path.len() - rest.len()],
            id: id.parse().ok()?,
            port: behind[..end].parse().ok().filter(|port| *port > 0)?,
            rest: if rest.is_empty() { "/" } else { rest },
        })
    }
}

async fn forward(State(app): State<App>, request: Request) -> Response {
    match answer(&app, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn answer(app: &App, request: Request) -> Result<Response, ApiError> {
    if request.body().size_hint().lower() > LARGEST_BODY as u64 {
        return Err(ApiError::too_large(LARGEST_BODY));
    }
    let mut request = request.map(|body| Body::new(Limited::new(body, LARGEST_BODY)));
    let uri = request.uri().clone();
    let way = Way::of(&uri).ok_or_else(|| ApiError::not_found("service"))?;
    let client = Client::of(request.extensions());
    if way.rest == "/_svc/auth" {
        return enter(app, &way, &uri, client).await;
    }
    let token = shown(request.headers()).ok_or_else(closed)?;
    let opened = opened(app, &way, &token).await?;
    headers::prepare(request.headers_mut(), way.prefix, client);
    request.headers_mut().remove(TOKEN);
    let path = match uri.query() {
        None => way.rest.to_owned(),
        Some(query) => format!("{}?{query}", way.rest),
    };
    *request.uri_mut() = path
        .parse()
        .map_err(|_| ApiError::bad_request("the path cannot be read"))?;
    let awake = awake(app, opened.tenant_id, opened.box_id).await?;
    let connection = match awake.agent.dial(way.port).await {
        Ok(connection) => connection,
        Err(Error::Refused(port)) => {
            let text = format!("nothing listens on port {port} of the sandbox");
            return Err(ApiError::named(StatusCode::BAD_GATEWAY, "ConnectionError", text));
        }
        Err(error) => return Err(awake.failed(way.id, &error)),
    };
    let host = format!("localhost:{}", way.port);
    let broken = |error: &dyn std::error::Error| {
        tracing::debug!(error = %crate::errors::chain(error), "a service of a sandbox ended the connection");
        let text = "the service ended the connection before its answer";
        ApiError::named(StatusCode::BAD_GATEWAY, "ConnectionError", text)
    };
    let connection = upstream::over(connection, &host)
        .await
        .map_err(|error| broken(&error))?;
    let response = connection.send(request).await.map_err(|error| broken(&error))?;
    // The box is in use as long as the answer is read.
    let in_use = awake.in_use;
    Ok(response.map(|body| {
        let body = futures::StreamExt::map(body.into_data_stream(), move |piece| {
            let _ = &in_use;
            piece
        });
        Body::from_stream(body)
    }))
}

fn closed() -> ApiError {
    let text = "the service needs a token of this port: POST /v2/sandboxes/boxes/{name}/service-url makes one";
    ApiError::unauthorized(text)
}

/// The token that a request shows.
fn shown(headers: &HeaderMap) -> Option<String> {
    if let Some(token) = headers.get(TOKEN) {
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

/// What a token opens, which has to be this port of this box.
async fn opened(app: &App, way: &Way<'_>, token: &str) -> Result<BoxToken, ApiError> {
    let found = app.store.read(async |tx| tokens::find(tx, token).await).await;
    let opened = match found {
        Err(store::Error::NotFound) => return Err(closed()),
        found => found?,
    };
    let is_this =
        opened.kind == TokenKind::Service && opened.box_id == way.id && opened.port == Some(i64::from(way.port));
    if is_this { Ok(opened) } else { Err(closed()) }
}

/// Gives a browser its cookie, and sends it to the page it came for.
async fn enter(app: &App, way: &Way<'_>, uri: &Uri, client: Client) -> Result<Response, ApiError> {
    let pairs: Vec<(String, String)> = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        .into_owned()
        .collect();
    let of = |name: &str| {
        pairs
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    };
    let token = of("token").ok_or_else(closed)?;
    let opened = opened(app, way, token).await?;
    // Only a path of this service: nobody is sent elsewhere from here.
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
