//! `/v2/images/{deployment}`: a registry of images, as far as `docker push` and `docker pull` need one.
//!
//! It speaks the OCI Distribution Specification 1.1 and takes Docker's older manifests too. The images of a deployment
//! are a repository of their own, and a token of [`towpath_store::image_tokens`], sent as the password, opens it:
//! `push-token` hands one out to push, and whoever builds a revision makes one to pull. All of it lies in the object
//! store, nothing in the database:
//!
//! ```text
//! images/<workspace>/<deployment>/blobs/<sha256>
//!                                 manifests/<sha256>
//!                                 tags/<tag>                                  the digest it stands for
//!                                 uploads/<upload>/<offset>-<bytes>-<sha256>  pieces of a blob on its way
//! ```

mod blobs;
mod manifests;
mod sweep;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{AUTHORIZATION, HeaderName, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use object_store::path::Path as Key;
use serde_json::json;
use towpath_domain::deployment::DeploymentStatus;
use towpath_domain::{DeploymentId, TenantId};
use towpath_store::image_tokens::{ImageToken, Right};
use towpath_store::{self as store, deployments};

use crate::app::App;
use crate::concurrency::{ConcurrencyLimit, Owner};
use crate::errors::{ApiError, chain};
use crate::request_permits::RequestPermits;
use crate::routes::RouteTable;
use crate::{ingress, layers};

/// Who asks for no user name in particular gets this one; any will do.
pub(crate) const USERNAME: &str = "towpath";
/// Requests on their way at once, beside those of the platform: a layer may take minutes.
const REQUESTS: usize = 64;
/// The names of repositories begin with it.
const REPOSITORIES: &str = "images";

const API_VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const UPLOAD: HeaderName = HeaderName::from_static("docker-upload-uuid");

/// The routes. They stand beside the limit on requests of the platform, and take tokens instead of keys.
pub(crate) fn routes(app: &App) -> Router {
    let places = Arc::new(ConcurrencyLimit::new(REQUESTS));
    route_table()
        .router()
        .layer(map_response(async |mut response: Response| {
            let version = HeaderValue::from_static("registry/2.0");
            response.headers_mut().insert(API_VERSION, version);
            response
        }))
        .layer(from_fn_with_state(app.clone(), charge_workspace))
        .layer(from_fn_with_state(places, layers::limit_places))
        .with_state(app.clone())
}

pub(crate) fn route_table() -> RouteTable<App> {
    RouteTable::new()
        .get("/v2", base)
        .get("/v2/", base)
        .post("/v2/images/{deployment}/blobs/uploads/", blobs::begin)
        .get("/v2/images/{deployment}/blobs/uploads/{upload}", blobs::progress)
        .patch("/v2/images/{deployment}/blobs/uploads/{upload}", blobs::append)
        .put("/v2/images/{deployment}/blobs/uploads/{upload}", blobs::finish)
        .delete("/v2/images/{deployment}/blobs/uploads/{upload}", blobs::cancel)
        .get("/v2/images/{deployment}/blobs/{digest}", blobs::read)
        .get("/v2/images/{deployment}/manifests/{reference}", manifests::read)
        .put("/v2/images/{deployment}/manifests/{reference}", manifests::write)
        .get("/v2/images/{deployment}/tags/list", manifests::tags)
}

/// The repository of a deployment's images as clients write it, where `public_url` leads to.
///
/// # Errors
/// `public_url` has a path, under which no client finds a registry.
pub(crate) fn repository(app: &App, deployment: DeploymentId) -> Result<(String, String), ApiError> {
    let url = &app.settings.public_url;
    let host = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
    if host.contains('/') {
        let text = "images cannot be pushed to this server: its public_url has a path, and registries have none; deploy \
                    the sources with `langgraph deploy --remote`, or an image of your own registry with source \
                    external_docker";
        return Err(ApiError::bad_request(text));
    }
    Ok((host.to_owned(), format!("{host}/{REPOSITORIES}/{deployment}")))
}

/// Counts a request as one of the workspace whose token it carries. Without a good one a route refuses it at once. Nothing
/// is taken in where there is hardly any room.
async fn charge_workspace(State(app): State<App>, request: Request, next: Next) -> Response {
    let sends = matches!(*request.method(), Method::POST | Method::PATCH | Method::PUT);
    if sends && app.disk.is_low() {
        return ingress::insufficient_storage().into_response();
    }
    if let Ok(token) = token(&app, request.headers()) {
        let held = RequestPermits::of(request.extensions());
        if let Err(full) = held.charge(Owner::Workspace(token.tenant)) {
            return full.refusal().into_response();
        }
    }
    next.run(request).await
}

/// Whether somebody may come in at all: what `docker login` asks.
async fn base(State(app): State<App>, request: Request) -> Result<Response, RegistryError> {
    token(&app, request.headers())?;
    Ok(Json(json!({})).into_response())
}

/// The images of one deployment, to somebody who may.
struct Images {
    tenant: TenantId,
    deployment: DeploymentId,
}

impl Images {
    /// Opens them for whoever sent the request.
    async fn open(app: &App, headers: &HeaderMap, deployment: &str, right: Right) -> Result<Self, RegistryError> {
        let token = token(app, headers)?;
        if deployment != token.deployment.to_string() || !token.right.includes(right) {
            return Err(RegistryError::new(
                StatusCode::FORBIDDEN,
                "DENIED",
                "the token does not allow this access to these images",
            ));
        }
        let found = app
            .store
            .read(async |tx| deployments::get(tx, token.tenant, token.deployment).await);
        let is_there = match found.await {
            Ok(row) => row.status != DeploymentStatus::AwaitingDelete,
            Err(store::Error::NotFound) => false,
            Err(error) => return Err(ApiError::from(error).into()),
        };
        if !is_there {
            let text = "the deployment was deleted";
            return Err(RegistryError::new(StatusCode::NOT_FOUND, "NAME_UNKNOWN", text));
        }
        Ok(Self {
            tenant: token.tenant,
            deployment: token.deployment,
        })
    }

    /// A key below them; `rest` is made of letters, digits, `-`, `_`, `.` and slashes.
    fn key(&self, rest: &str) -> Key {
        Key::from(format!(
            "{}/{rest}",
            towpath_workflows::images::folder(self.tenant, self.deployment)
        ))
    }

    fn location(&self, rest: &str) -> HeaderValue {
        let place = format!("/v2/{REPOSITORIES}/{}/{rest}", self.deployment);
        HeaderValue::from_str(&place).unwrap_or_else(|_| HeaderValue::from_static("/v2/"))
    }
}

/// The token, which stands where a password does (RFC 7617).
fn token(app: &App, headers: &HeaderMap) -> Result<ImageToken, RegistryError> {
    let sent = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let password = sent.and_then(|text| {
        let (scheme, rest) = text.split_once(' ')?;
        let is_basic = scheme.eq_ignore_ascii_case("basic");
        let text = String::from_utf8(BASE64.decode(rest.trim()).ok()?).ok()?;
        let (_, password) = text.split_once(':')?;
        is_basic.then(|| password.to_owned())
    });
    password
        .and_then(|password| ImageToken::read(&password, &app.sealer, app.clock.now()))
        .ok_or_else(|| {
            let text = "send a token of POST /v2/deployments/{id}/push-token as the password; it expires after an hour";
            RegistryError::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", text)
        })
}

/// SHA-256 of a content, as it is written in addresses: `sha256:` and 64 digits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Digest(String);

impl Digest {
    fn parse(text: &str) -> Result<Self, RegistryError> {
        let hex = text.strip_prefix("sha256:").unwrap_or_default();
        let fits = hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !fits {
            return Err(RegistryError::bad(
                "DIGEST_INVALID",
                "expected sha256: and 64 lower-case hexadecimal digits",
            ));
        }
        Ok(Self(hex.to_owned()))
    }

    fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.to_string()).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

/// A refusal in the shape of the specification: `{"errors": [{code, message}]}`.
struct RegistryError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl RegistryError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }

    fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// The object store does not do its part.
    fn storage_failure(error: &dyn std::error::Error) -> Self {
        tracing::warn!(error = %chain(error), "cannot store or read a part of an image");
        ApiError::unavailable("the object store is unavailable", Duration::from_secs(5)).into()
    }
}

impl From<ApiError> for RegistryError {
    fn from(error: ApiError) -> Self {
        let code = match error.status() {
            StatusCode::SERVICE_UNAVAILABLE => "UNAVAILABLE",
            StatusCode::PAYLOAD_TOO_LARGE => "SIZE_INVALID",
            _ => "UNKNOWN",
        };
        Self::new(error.status(), code, error.plain())
    }
}

impl IntoResponse for RegistryError {
    fn into_response(self) -> Response {
        let body = json!({"errors": [{"code": self.code, "message": self.message, "detail": null}]});
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Basic realm=\"images\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    }
}
