//! Attachments of trace runs, read through links that need no key.
//!
//! Clients fetch the link without a key, so it contains the sealed id of the file and expires.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde::{Deserialize, Serialize};
use towpath_domain::{ExampleFileId, TenantId, Timestamp, TraceRunId};
use towpath_store::datasets::files;
use towpath_store::feedback::{self, Attachment};
use towpath_store::sealing::SealContext;
use uuid::Uuid;

use crate::app::App;
use crate::errors::ApiError;
use crate::extract::Path;

/// How long a link is valid.
const LINK_TTL: Duration = Duration::from_secs(3600);

/// Content of a link before it is sealed.
#[derive(Serialize, Deserialize)]
struct Link {
    tenant: TenantId,
    run: TraceRunId,
    name: String,
    until: i64,
}

const fn place() -> SealContext<'static> {
    SealContext {
        tenant: TenantId::nil(),
        table: "attachment",
        column: "link",
        row: Uuid::nil(),
    }
}

/// Path under which an attachment can be read for an hour.
pub fn link(app: &App, attachment: &Attachment) -> String {
    let link = Link {
        tenant: attachment.tenant_id,
        run: attachment.run_id,
        name: attachment.name.clone(),
        until: app.clock.now().plus(LINK_TTL).micros(),
    };
    let plain = serde_json::to_vec(&link).expect("ids and a text are JSON");
    let sealed = app.sealer.seal(place(), &plain);
    format!("/attachments/{}", URL_SAFE_NO_PAD.encode(sealed))
}

/// Content of a link to a file of an example, before it is sealed.
#[derive(Serialize, Deserialize)]
struct ExampleLink {
    tenant: TenantId,
    file: ExampleFileId,
    until: i64,
}

const fn example_seal_context() -> SealContext<'static> {
    SealContext {
        tenant: TenantId::nil(),
        table: "example_file",
        column: "link",
        row: Uuid::nil(),
    }
}

/// Path under which a file of an example can be read for an hour.
pub fn example_link(app: &App, tenant: TenantId, file: ExampleFileId) -> String {
    let link = ExampleLink {
        tenant,
        file,
        until: app.clock.now().plus(LINK_TTL).micros(),
    };
    let plain = serde_json::to_vec(&link).expect("ids are JSON");
    let sealed = app.sealer.seal(example_seal_context(), &plain);
    format!("/attachments/{}", URL_SAFE_NO_PAD.encode(sealed))
}

/// Type and bytes of the file of an example, if `sealed` is a link to one.
async fn read_example_file(app: &App, sealed: &[u8]) -> Result<Option<(String, Bytes)>, ApiError> {
    let opened = app.sealer.open(example_seal_context(), sealed).ok();
    let link: Option<ExampleLink> = opened.and_then(|plain| serde_json::from_slice(&plain).ok());
    let Some(link) = link.filter(|link| app.clock.now() < Timestamp::from_micros(link.until)) else {
        return Ok(None);
    };
    let read = app.store.read(async |tx| files::get(tx, link.tenant, link.file).await);
    match read.await {
        Ok(file) => Ok(Some((file.mime_type, file.data.into()))),
        Err(towpath_store::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Type and bytes of the attachment of a trace run, if `sealed` is a link to one.
async fn read_run_attachment(app: &App, sealed: &[u8]) -> Result<Option<(String, Bytes)>, ApiError> {
    let opened = app.sealer.open(place(), sealed).ok();
    let link: Option<Link> = opened.and_then(|plain| serde_json::from_slice(&plain).ok());
    let Some(link) = link.filter(|link| app.clock.now() < Timestamp::from_micros(link.until)) else {
        return Ok(None);
    };
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(link.tenant).await?;
        let stored = snapshot
            .store()
            .read(async |tx| feedback::attachments_of(tx, link.tenant, &[link.run]).await)
            .await?;
        let all = stored.iter().chain(snapshot.open_attachments());
        let named = all.filter(|found| found.run_id == link.run && found.name == link.name);
        let Some(found) = named.max_by_key(|found| found.seq) else {
            return Ok(None);
        };
        Ok(Some((found.content_type.clone(), snapshot.attachment(found).await?)))
    });
    read.await
}

/// Get an attachment by the link that a trace run shows under `s3_urls`, or an example under `attachment_urls`. Needs
/// no key; the link expires after an hour.
#[utoipa::path(get, path = "/attachments/{link}", tag = "attachments", security(()),
    params(("link" = String, Path, description = "Token from the link")),
    responses((status = 200, description = "The file", content_type = "application/octet-stream"),
              (status = 404, description = "The link is invalid or expired, or the file was deleted"),
              (status = 503, description = "A dependency is unavailable")))]
pub async fn get(State(app): State<App>, Path(sealed): Path<String>) -> Result<Response, ApiError> {
    let missing = || ApiError::not_found("attachment");
    let sealed = URL_SAFE_NO_PAD.decode(&sealed).map_err(|_| missing())?;
    let found = match read_example_file(&app, &sealed).await? {
        Some(found) => Some(found),
        None => read_run_attachment(&app, &sealed).await?,
    };
    let (content_type, bytes) = found.ok_or_else(missing)?;
    let content_type = http::HeaderValue::from_str(&content_type)
        .unwrap_or(http::HeaderValue::from_static("application/octet-stream"));
    let mut response = bytes.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    // The uploader chose the content type: the file must not run as a page of this origin.
    headers.insert(CONTENT_DISPOSITION, http::HeaderValue::from_static("attachment"));
    headers.insert(CONTENT_SECURITY_POLICY, http::HeaderValue::from_static("sandbox"));
    headers.insert(CACHE_CONTROL, http::HeaderValue::from_static("private, no-store"));
    Ok(response)
}
