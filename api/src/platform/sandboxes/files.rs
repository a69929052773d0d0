//! Upload and download of files in sandboxes.

mod range;

use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    LAST_MODIFIED,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use multer::{Constraints, Field, Multipart, SizeLimit};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::io::StreamReader;
use towpath_domain::sandbox::{TokenKind, check_text};
use towpath_domain::{BoxId, Rejection, Timestamp};
use towpath_sandbox::{ByteRange, Download, Error, FileStat};
use towpath_store::sandboxes::tokens::{self, BoxToken};
use towpath_store::{self as store};

use super::readiness::{BoxUse, RunningBox, ensure_running, get_box};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::{ApiError, LocSegment};
use crate::extract::{Json, Path, Query};
use range::{RequestedRange, is_unchanged, requested_range};

/// Maximum size of a file.
const MAX_FILE_BYTES: u64 = 64 << 30;
/// A client that sends nothing for longer is disconnected.
const UPLOAD_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FilePath {
    /// Relative paths start in the home directory of the sandbox's user.
    #[serde(default)]
    path: String,
}

impl FilePath {
    fn check(self) -> Result<String, ApiError> {
        let refused = |text: &str| {
            let loc = vec![LocSegment::from("query"), LocSegment::from("path")];
            Err(ApiError::invalid_at(loc, "value_error", text))
        };
        if self.path.is_empty() {
            return refused("field required");
        }
        if check_text("path", &self.path, 4096).is_err() {
            return refused("expected at most 4096 characters and no NUL");
        }
        Ok(self.path)
    }
}

/// An uploaded file.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxUpload)]
pub struct UploadResult {
    path: String,
    size_bytes: u64,
}

/// Upload a file and create missing folders. Readers see the old or the new file, never a part.
#[utoipa::path(post, path = "/v2/sandboxes/dp/{box_id}/upload", tag = "sandbox-dataplane",
    params(("box_id" = Uuid, Path, description = "The sandbox"), FilePath),
    request_body(content = String, content_type = "multipart/form-data", description = "One part, `file`"),
    responses((status = 200, description = "The file is written", body = UploadResult),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 408, description = "The body arrived too slowly"),
              (status = 413, description = "The file is too large"),
              (status = 415, description = "The body is not a form"),
              (status = 501, description = "Sandboxes are not enabled in this process"),
              (status = 502, description = "The sandbox returned an invalid response"), ApiError))]
pub async fn upload(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Query(path): Query<FilePath>,
    request: Request,
) -> Result<Json<UploadResult>, ApiError> {
    get_box(&app, tenant.id, id).await?;
    let path = path.check()?;
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let boundary = multer::parse_boundary(kind.unwrap_or_default()).map_err(|_| {
        let text = "send the file as the part 'file' of a multipart/form-data body";
        ApiError::unsupported_media_type(text)
    })?;
    let limits = SizeLimit::new().whole_stream(MAX_FILE_BYTES);
    let limits = Constraints::new().allowed_fields(vec!["file"]).size_limit(limits);
    let body = with_idle_timeout(request.into_body().into_data_stream());
    let mut form = Multipart::with_constraints(body, boundary, limits);
    let field = form.next_field().await.map_err(|error| upload_error(&error))?;
    let field = field.ok_or_else(|| Rejection::invalid("file", "field required"))?;
    let awake = ensure_running(&app, tenant.id, id).await?;
    let stat = write_file(&awake, id, &path, field).await?;
    Ok(Json(UploadResult {
        path: stat.path,
        size_bytes: stat.size_bytes,
    }))
}

async fn write_file(awake: &RunningBox, id: BoxId, path: &str, field: Field<'_>) -> Result<FileStat, ApiError> {
    // The form reader only reports a text, so the original error is kept here.
    let broken = Mutex::new(None);
    let chunks = stream::unfold(field, |mut field| {
        let broken = &broken;
        async move {
            match field.chunk().await {
                Ok(Some(chunk)) => Some((Ok::<Bytes, io::Error>(chunk), field)),
                Ok(None) => None,
                Err(error) => {
                    let text = error.to_string();
                    *broken.lock() = Some(upload_error(&error));
                    Some((Err(io::Error::other(text)), field))
                }
            }
        }
    });
    let mut reader = pin!(StreamReader::new(chunks));
    let written = awake.agent.upload(path, &mut reader).await;
    if let Some(error) = broken.lock().take() {
        return Err(error);
    }
    written.map_err(|error| match error {
        Error::Invalid(text) | Error::NotFound(text) => {
            ApiError::with_name(StatusCode::BAD_REQUEST, "WriteError", text)
        }
        Error::IsDirectory(_) => ApiError::with_name(StatusCode::BAD_REQUEST, "WriteError", error.to_string()),
        error => awake.agent_error(id, &error),
    })
}

/// A body whose chunks must arrive in time.
fn with_idle_timeout(body: BodyDataStream) -> impl futures::Stream<Item = Result<Bytes, io::Error>> + Send + 'static {
    stream::unfold(body, |mut body| async move {
        let next = tokio::time::timeout(UPLOAD_IDLE_TIMEOUT, futures::StreamExt::next(&mut body)).await;
        let piece = match next {
            Ok(None) => return None,
            Ok(Some(piece)) => piece.map_err(io::Error::other),
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        };
        Some((piece, body))
    })
}

fn upload_error(error: &multer::Error) -> ApiError {
    match error {
        multer::Error::StreamSizeExceeded { .. } | multer::Error::FieldSizeExceeded { .. } => {
            ApiError::too_large(usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX))
        }
        multer::Error::UnknownField { .. } => Rejection::invalid("file", "expected one part, named file").into(),
        multer::Error::StreamReadFailed(source)
            if source
                .downcast_ref::<io::Error>()
                .is_some_and(|source| source.kind() == io::ErrorKind::TimedOut) =>
        {
            ApiError::too_slow()
        }
        _ => ApiError::bad_request("the form is invalid or incomplete"),
    }
}

/// Download a file, or a range of it.
#[utoipa::path(get, path = "/v2/sandboxes/dp/{box_id}/download", tag = "sandbox-dataplane",
    params(("box_id" = Uuid, Path, description = "The sandbox"), FilePath),
    responses((status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream"),
              (status = 206, description = "The requested range", body = Vec<u8>,
               content_type = "application/octet-stream"),
              (status = 304, description = "The file matches `If-None-Match`"),
              (status = 404, description = "No such sandbox in this workspace, or no such file in it"),
              (status = 416, description = "The range starts after the end of the file"),
              (status = 501, description = "Sandboxes are not enabled in this process"),
              (status = 502, description = "The sandbox returned an invalid response"), ApiError))]
pub async fn download(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Query(path): Query<FilePath>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    get_box(&app, tenant.id, id).await?;
    let path = path.check()?;
    let awake = ensure_running(&app, tenant.id, id).await?;
    download_response(awake, id, &path, &method, &headers).await
}

/// Download the file of a link. Needs no key.
#[utoipa::path(get, path = "/v2/sandboxes/downloads/{token}", tag = "sandbox-links", security(()),
    params(("token" = String, Path, description = "Token from the link")),
    responses((status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream"),
              (status = 206, description = "The requested range", body = Vec<u8>,
               content_type = "application/octet-stream"),
              (status = 304, description = "The file matches `If-None-Match`"),
              (status = 404, description = "The link is invalid, or the file was deleted"),
              (status = 416, description = "The range starts after the end of the file"),
              (status = 501, description = "Sandboxes are not enabled in this process"),
              (status = 502, description = "The sandbox returned an invalid response"), ApiError))]
pub async fn download_linked(
    State(app): State<App>,
    Path(token): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let found = app.store.read(async |tx| tokens::find(tx, &token).await).await;
    let opened = match found {
        Err(store::Error::NotFound) => return Err(ApiError::not_found("link")),
        found => found?,
    };
    let (TokenKind::Download, Some(path)) = (opened.kind, &opened.path) else {
        return Err(ApiError::not_found("link"));
    };
    let awake = ensure_running(&app, opened.tenant_id, opened.box_id).await?;
    let mut response = download_response(awake, opened.box_id, path, &method, &headers).await?;
    set_link_headers(response.headers_mut(), &opened, path);
    Ok(response)
}

/// Headers for a file of a link. It is served from the platform's origin, so it must not run as a page of it.
fn set_link_headers(headers: &mut HeaderMap, opened: &BoxToken, path: &str) {
    let kind = opened
        .content_type
        .as_deref()
        .and_then(|kind| HeaderValue::from_str(kind).ok());
    if let Some(kind) = kind {
        headers.insert(CONTENT_TYPE, kind);
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_plain = |letter: char| letter == ' ' || (letter.is_ascii_graphic() && !"\"\\".contains(letter));
    let name: String = name
        .chars()
        .map(|letter| if is_plain(letter) { letter } else { '_' })
        .collect();
    let how = opened.content_disposition.as_deref().unwrap_or("attachment");
    if let Ok(disposition) = HeaderValue::from_str(&format!("{how}; filename=\"{name}\"")) {
        headers.insert(CONTENT_DISPOSITION, disposition);
    }
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; img-src data:; style-src 'unsafe-inline'; sandbox"),
    );
}

async fn download_response(
    awake: RunningBox,
    id: BoxId,
    path: &str,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let stat = awake.agent.stat(path).await;
    let stat = stat.map_err(|error| read_error(&awake, id, error))?;
    if stat.is_dir {
        let text = format!("{} is a directory", stat.path);
        return Err(ApiError::with_name(StatusCode::BAD_REQUEST, "ReadError", text));
    }
    if is_unchanged(headers, &entity_tag(&stat)) {
        return Ok(file_response(StatusCode::NOT_MODIFIED, &stat, None, Body::empty()));
    }
    let range = match requested_range(headers, &entity_tag(&stat)) {
        RequestedRange::Whole => None,
        RequestedRange::Part(range) => Some(range),
    };
    if *method == Method::HEAD {
        return Ok(file_response(
            StatusCode::OK,
            &stat,
            Some((0, stat.size_bytes)),
            Body::empty(),
        ));
    }
    match awake.agent.download(path, range).await {
        Ok(download) => Ok(stream_file(awake.in_use, download, range)),
        Err(Error::Range { size }) => {
            let text = format!("the range begins after the end of the file ({size} bytes)");
            let refusal = ApiError::with_name(StatusCode::RANGE_NOT_SATISFIABLE, "ReadError", text);
            let mut response = refusal.into_response();
            response
                .headers_mut()
                .insert(CONTENT_RANGE, header_value(format!("bytes */{size}")));
            Ok(response)
        }
        Err(error) => Err(read_error(&awake, id, error)),
    }
}

fn read_error(awake: &RunningBox, id: BoxId, error: Error) -> ApiError {
    match error {
        Error::IsDirectory(_) | Error::Invalid(_) => {
            ApiError::with_name(StatusCode::BAD_REQUEST, "ReadError", error.to_string())
        }
        error => awake.agent_error(id, &error),
    }
}

fn stream_file(in_use: BoxUse, download: Download, range: Option<ByteRange>) -> Response {
    let status = if range.is_some() {
        StatusCode::PARTIAL_CONTENT
    } else {
        StatusCode::OK
    };
    let (stat, part) = (download.stat.clone(), (download.start, download.end));
    // Keeps the sandbox from stopping as idle during the transfer.
    let chunks = stream::unfold((download, in_use), |(mut download, in_use)| async move {
        let chunk = match download.chunk().await {
            Ok(None) => return None,
            Ok(Some(chunk)) => Ok(chunk),
            Err(error) => Err(io::Error::other(error.to_string())),
        };
        Some((chunk, (download, in_use)))
    });
    file_response(status, &stat, Some(part), Body::from_stream(chunks))
}

fn file_response(status: StatusCode, stat: &FileStat, part: Option<(u64, u64)>, body: Body) -> Response {
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    let mut tell = |name: HeaderName, text: String| headers.insert(name, header_value(text));
    tell(ETAG, entity_tag(stat));
    tell(LAST_MODIFIED, last_modified(stat));
    tell(ACCEPT_RANGES, "bytes".to_owned());
    if let Some((start, end)) = part {
        tell(CONTENT_TYPE, "application/octet-stream".to_owned());
        tell(CONTENT_LENGTH, (end - start).to_string());
        if status == StatusCode::PARTIAL_CONTENT {
            let last = end.saturating_sub(1);
            tell(CONTENT_RANGE, format!("bytes {start}-{last}/{}", stat.size_bytes));
        }
    }
    response
}

/// Data from a sandbox may contain characters that are invalid in a header.
fn header_value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn entity_tag(stat: &FileStat) -> String {
    let plain = stat
        .tag
        .chars()
        .filter(|letter| letter.is_ascii_graphic() && *letter != '"');
    format!("\"{}\"", plain.collect::<String>())
}

fn last_modified(stat: &FileStat) -> String {
    let time = Timestamp::from_micros(stat.modified_ns / 1000).to_utc();
    time.format("%a, %d %b %Y %H:%M:%S GMT").to_string()
}
