//! Links to ports and files of sandboxes for callers without a key.

use std::time::Duration;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_domain::sandbox::{TokenKind, check_text};
use towpath_domain::{Rejection, Timestamp};
use towpath_store::sandboxes::boxes;
use towpath_store::sandboxes::tokens::{self, NewToken};

use super::model::missing;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::{ApiError, LocSegment};
use crate::extract::{Json, Pairs, Path, whole, whole_number};

/// Default lifetime of a link to a port.
const DEFAULT_LINK_SECONDS: i64 = 600;
/// Maximum lifetime.
const MAX_LINK_SECONDS: i64 = 86_400;

/// A link to a port to create.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewServiceUrl)]
pub struct CreateServiceUrl {
    #[serde(deserialize_with = "whole_number")]
    #[schema(minimum = 1, maximum = 65535)]
    port: i64,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 86400, default = 600)]
    expires_in_seconds: Option<i64>,
    /// Refused: not available in this build.
    #[serde(default)]
    access: Option<String>,
    /// Refused: not available in this build.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    embed_origins: Option<Vec<Value>>,
}

/// A link to a port.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ServiceUrl {
    /// For a browser, which gets the token from this link and stores it in a cookie.
    browser_url: String,
    /// For programs, which send the token as `X-Langsmith-Sandbox-Service-Token`.
    service_url: String,
    token: String,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

/// Create a link to a port of a sandbox.
#[utoipa::path(post, path = "/v2/sandboxes/boxes/{name}/service-url", tag = "sandbox-links", request_body = CreateServiceUrl,
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "The link", body = ServiceUrl),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 501, description = "Login and embedding are not supported"), ApiError))]
pub async fn create_service(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    Json(new): Json<CreateServiceUrl>,
) -> Result<Json<ServiceUrl>, ApiError> {
    let port = u16::try_from(new.port).ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| Rejection::invalid("port", "expected 1 to 65535"))?;
    let seconds = new.expires_in_seconds.unwrap_or(DEFAULT_LINK_SECONDS);
    if !(1..=MAX_LINK_SECONDS).contains(&seconds) {
        let text = format!("expected 1 to {MAX_LINK_SECONDS} seconds");
        return Err(Rejection::invalid("expires_in_seconds", text).into());
    }
    let found = app.store.read(async |tx| boxes::find(tx, tenant.id, &name).await).await;
    let row = found.map_err(missing("Sandbox", &name))?;
    for (field, is_sent) in [
        ("access", new.access.is_some_and(|access| access != "off")),
        (
            "embed_origins",
            new.embed_origins.is_some_and(|origins| !origins.is_empty()),
        ),
    ] {
        if is_sent {
            let text = format!("{field} of a service URL is not available in this build; omit it to get a token");
            return Err(ApiError::with_name(StatusCode::NOT_IMPLEMENTED, "Unsupported", text));
        }
    }
    let expires_at = app.clock.now().plus(Duration::from_secs(seconds.unsigned_abs()));
    let new = NewToken {
        box_id: row.id,
        kind: TokenKind::Service,
        port: Some(port),
        path: None,
        content_type: None,
        content_disposition: None,
        expires_at: Some(expires_at),
    };
    let token = app
        .store
        .write(async |tx| tokens::insert(tx, tenant.id, new).await)
        .await?;
    let service_url = format!("{}/v2/sandboxes/services/{}/{port}", app.settings.public_url, row.id);
    Ok(Json(ServiceUrl {
        browser_url: format!("{service_url}/_svc/auth?token={token}"),
        service_url,
        token,
        expires_at,
    }))
}

/// A valid link to a port.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ServiceLink {
    port: i64,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
}

/// Links to ports.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ServiceLinkList {
    service_urls: Vec<ServiceLink>,
}

/// List the valid links to ports of a sandbox, without their tokens.
#[utoipa::path(get, path = "/v2/sandboxes/boxes/{name}/service-urls", tag = "sandbox-links",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "Links", body = ServiceLinkList),
              (status = 404, description = "No such sandbox in this workspace"), ApiError))]
pub async fn list_services(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
) -> Result<Json<ServiceLinkList>, ApiError> {
    let found = app.store.read(async |tx| {
        let row = boxes::find(tx, tenant.id, &name).await?;
        tokens::service_tokens(tx, tenant.id, row.id).await
    });
    let rows = found.await.map_err(missing("Sandbox", &name))?;
    let links = rows.into_iter().map(|row| ServiceLink {
        port: row.port.unwrap_or_default(),
        created_at: row.created_at,
        expires_at: row.expires_at,
    });
    Ok(Json(ServiceLinkList {
        service_urls: links.collect(),
    }))
}

/// Revoke the links to one port of a sandbox, or to all ports.
#[utoipa::path(delete, path = "/v2/sandboxes/boxes/{name}/service-urls", tag = "sandbox-links",
    params(("name" = String, Path, description = "Name or id"),
           ("port" = Option<u16>, Query, description = "The port; by default all")),
    responses((status = 204, description = "Revoked"),
              (status = 404, description = "No such sandbox in this workspace"), ApiError))]
pub async fn revoke_services(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    pairs: Pairs,
) -> Result<StatusCode, ApiError> {
    let port = pairs.number("port", 1..=65_535)?;
    let port = port.map(|port| u16::try_from(port).unwrap_or_default());
    let revoked = app.store.write(async |tx| {
        let row = boxes::find(tx, tenant.id, &name).await?;
        tokens::revoke_services(tx, tenant.id, row.id, port).await
    });
    revoked.await.map_err(missing("Sandbox", &name))?;
    Ok(StatusCode::NO_CONTENT)
}

/// A link to a file to create.
#[derive(Deserialize, utoipa::ToSchema)]
pub struct NewDownloadUrl {
    /// Relative paths start in the home directory of the sandbox's user.
    #[schema(min_length = 1, max_length = 4096)]
    path: String,
    /// Lifetime; by default unlimited.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1)]
    expires_in_seconds: Option<i64>,
    #[serde(default)]
    #[schema(max_length = 255)]
    content_type: Option<String>,
    /// `attachment` or `inline`.
    #[serde(default)]
    content_disposition: Option<String>,
}

/// A link to a file.
#[derive(Serialize, utoipa::ToSchema)]
pub struct DownloadUrl {
    download_url: String,
    token: String,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
}

impl NewDownloadUrl {
    fn check(&self) -> Result<(), ApiError> {
        check_text("path", &self.path, 4096)?;
        if self.path.is_empty() {
            return Err(Rejection::invalid("path", "must not be empty").into());
        }
        if self
            .expires_in_seconds
            .is_some_and(|seconds| !(1..=315_360_000).contains(&seconds))
        {
            return Err(Rejection::invalid("expires_in_seconds", "expected 1 to 315360000 seconds").into());
        }
        let is_header = |text: &str| text.len() <= 255 && http::HeaderValue::from_str(text).is_ok();
        if self
            .content_type
            .as_deref()
            .is_some_and(|kind| !is_header(kind) || !kind.contains('/'))
        {
            return Err(Rejection::invalid("content_type", "expected a media type such as text/plain").into());
        }
        match self.content_disposition.as_deref() {
            None | Some("attachment" | "inline") => Ok(()),
            Some(_) => {
                let loc = vec![LocSegment::from("body"), LocSegment::from("content_disposition")];
                Err(ApiError::invalid_at(
                    loc,
                    "value_error",
                    "expected attachment or inline",
                ))
            }
        }
    }
}

/// Create a link to a file of a sandbox. The link gives access to that file only.
#[utoipa::path(post, path = "/v2/sandboxes/boxes/{name}/download-url", tag = "sandbox-links", request_body = NewDownloadUrl,
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "The link", body = DownloadUrl),
              (status = 404, description = "No such sandbox in this workspace"), ApiError))]
pub async fn create_download(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    Json(new): Json<NewDownloadUrl>,
) -> Result<Json<DownloadUrl>, ApiError> {
    new.check()?;
    let found = app.store.read(async |tx| boxes::find(tx, tenant.id, &name).await).await;
    let row = found.map_err(missing("Sandbox", &name))?;
    let span = new
        .expires_in_seconds
        .map(|seconds| Duration::from_secs(seconds.unsigned_abs()));
    let expires_at = span.map(|span| app.clock.now().plus(span));
    let made = NewToken {
        box_id: row.id,
        kind: TokenKind::Download,
        port: None,
        path: Some(&new.path),
        content_type: new.content_type.as_deref(),
        content_disposition: new.content_disposition.as_deref(),
        expires_at,
    };
    let token = app
        .store
        .write(async |tx| tokens::insert(tx, tenant.id, made).await)
        .await?;
    Ok(Json(DownloadUrl {
        download_url: format!("{}/v2/sandboxes/downloads/{token}", app.settings.public_url),
        token,
        expires_at,
    }))
}
