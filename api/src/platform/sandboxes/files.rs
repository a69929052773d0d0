//! Files of boxes, in and out.

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
use serde::{Deserialize, Serialize};
use tokio_util::io::StreamReader;
use towpath_domain::sandbox::{TokenKind, check_text};
use towpath_domain::{BoxId, Rejection, Timestamp};
use towpath_sandbox::{ByteRange, Download, Error, FileStat};
use towpath_store::sandboxes::tokens::{self, BoxToken};
use towpath_store::{self as store};
use towpath_workflows::boxes::InUse;

use super::wake::{Awake, awake, known};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::{ApiError, Place};
use crate::extract::{Json, Path, Query};
use range::{Asked, asked, is_unchanged};

/// The largest file that is taken: a body must have an end.
const LARGEST: u64 = 64 << 30;
/// A sender that is silent for longer has gone away.
const SILENCE: Duration = Duration::from_secs(60);

/// Which file.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FilePath {
    /// Relative paths begin in the home of the sandbox's user.
    #[serde(default)]
    path: String,
}

impl FilePath {
    fn check(self) -> Result<String, ApiError> {
        let refused = |text: &str| {
            let loc = vec![Place::from("query"), Place::from("path")];
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

/// A file that was written.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxUpload)]
pub struct Uploaded {
    path: String,
    size_bytes: u64,
}

/// Write a file, with the folders above it. Readers see the old file or the new one.
#[utoipa::path(post, path = "/v2/sandboxes/dp/{box_id}/upload", tag = "sandbox-dataplane",
    params(("box_id" = Uuid, Path, description = "The sandbox"), FilePath),
    request_body(content = String, content_type = "multipart/form-data", description = "One part, `file`"),
    responses((status = 200, description = "It is there", body = Uploaded),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 408, description = "It came too slowly"),
              (status = 413, description = "It is too large"),
              (status = 415, description = "The body is no form"),
              (status = 501, description = "This process has no sandboxes"),
              (status = 502, description = "The sandbox does not answer as it should"), ApiError))]
pub async fn upload(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Query(path): Query<FilePath>,
    request: Request,
) -> Result<Json<Uploaded>, ApiError> {
    known(&app, tenant.id, id).await?;
    let path = path.check()?;
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let boundary = multer::parse_boundary(kind.unwrap_or_default()).map_err(|_| {
        let text = "send the file as the part 'file' of a multipart/form-data body";
        ApiError::unsupported_media_type(text)
    })?;
    let limits = SizeLimit::new().whole_stream(LARGEST);
    let limits = Constraints::new().allowed_fields(vec!["file"]).size_limit(limits);
    let body = arriving(request.into_body().into_data_stream());
    let mut form = Multipart::with_constraints(body, boundary, limits);
    let field = form.next_field().await.map_err(|error| unread(&error))?;
    let field = field.ok_or_else(|| Rejection::invalid("file", "field required"))?;
    let awake = awake(&app, tenant.id, id).await?;
    let stat = write(&awake, id, &path, field).await?;
    Ok(Json(Uploaded {
        path: stat.path,
        size_bytes: stat.size_bytes,
    }))
}

async fn write(awake: &Awake, id: BoxId, path: &str, field: Field<'_>) -> Result<FileStat, ApiError> {
    // The reader hands on a text alone, so what broke is kept here.
    let broken = std::sync::Mutex::new(None);
    let chunks = stream::unfold(field, |mut field| {
        let broken = &broken;
        async move {
            match field.chunk().await {
                Ok(Some(chunk)) => Some((Ok::<Bytes, io::Error>(chunk), field)),
                Ok(None) => None,
                Err(error) => {
                    let text = error.to_string();
                    if let Ok(mut broken) = broken.lock() {
                        *broken = Some(unread(&error));
                    }
                    Some((Err(io::Error::other(text)), field))
                }
            }
        }
    });
    let mut reader = pin!(StreamReader::new(chunks));
    let written = awake.agent.upload(path, &mut reader).await;
    if let Some(error) = broken.lock().ok().and_then(|mut broken| broken.take()) {
        return Err(error);
    }
    written.map_err(|error| match error {
        Error::Invalid(text) | Error::NotFound(text) => ApiError::named(StatusCode::BAD_REQUEST, "WriteError", text),
        Error::IsDirectory(_) => ApiError::named(StatusCode::BAD_REQUEST, "WriteError", error.to_string()),
        error => awake.failed(id, &error),
    })
}

/// A body whose pieces have to come in time.
fn arriving(body: BodyDataStream) -> impl futures::Stream<Item = Result<Bytes, io::Error>> + Send + 'static {
    stream::unfold(body, |mut body| async move {
        let next = tokio::time::timeout(SILENCE, futures::StreamExt::next(&mut body)).await;
        let piece = match next {
            Ok(None) => return None,
            Ok(Some(piece)) => piece.map_err(io::Error::other),
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        };
        Some((piece, body))
    })
}

fn unread(error: &multer::Error) -> ApiError {
    match error {
        multer::Error::StreamSizeExceeded { .. } | multer::Error::FieldSizeExceeded { .. } => {
            ApiError::too_large(usize::try_from(LARGEST).unwrap_or(usize::MAX))
        }
        multer::Error::UnknownField { .. } => Rejection::invalid("file", "expected one part, named file").into(),
        multer::Error::StreamReadFailed(source)
            if source
                .downcast_ref::<io::Error>()
                .is_some_and(|source| source.kind() == io::ErrorKind::TimedOut) =>
        {
            ApiError::too_slow()
        }
        _ => ApiError::bad_request("the form cannot be read, or broke off before its end"),
    }
}

/// Read a file, or a part of it.
#[utoipa::path(get, path = "/v2/sandboxes/dp/{box_id}/download", tag = "sandbox-dataplane",
    params(("box_id" = Uuid, Path, description = "The sandbox"), FilePath),
    responses((status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream"),
              (status = 206, description = "The part that `Range` names", body = Vec<u8>,
               content_type = "application/octet-stream"),
              (status = 304, description = "It is the one that `If-None-Match` names"),
              (status = 404, description = "No such sandbox in this workspace, or no such file in it"),
              (status = 416, description = "The range begins behind its end"),
              (status = 501, description = "This process has no sandboxes"),
              (status = 502, description = "The sandbox does not answer as it should"), ApiError))]
pub async fn download(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Query(path): Query<FilePath>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    known(&app, tenant.id, id).await?;
    let path = path.check()?;
    let awake = awake(&app, tenant.id, id).await?;
    answer(awake, id, &path, &method, &headers).await
}

/// Read the file that a link was made for. Needs no key.
#[utoipa::path(get, path = "/v2/sandboxes/downloads/{token}", tag = "sandbox-links", security(()),
    params(("token" = String, Path, description = "As handed out")),
    responses((status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream"),
              (status = 206, description = "The part that `Range` names", body = Vec<u8>,
               content_type = "application/octet-stream"),
              (status = 304, description = "It is the one that `If-None-Match` names"),
              (status = 404, description = "The link opens nothing, or the file is gone"),
              (status = 416, description = "The range begins behind its end"),
              (status = 501, description = "This process has no sandboxes"),
              (status = 502, description = "The sandbox does not answer as it should"), ApiError))]
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
    let awake = awake(&app, opened.tenant_id, opened.box_id).await?;
    let mut response = answer(awake, opened.box_id, path, &method, &headers).await?;
    dress(response.headers_mut(), &opened, path);
    Ok(response)
}

/// What a link says of its file. A page of a box has no origin: it must not act as the platform, whose address it has.
fn dress(headers: &mut HeaderMap, opened: &BoxToken, path: &str) {
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

async fn answer(
    awake: Awake,
    id: BoxId,
    path: &str,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let stat = awake.agent.stat(path).await;
    let stat = stat.map_err(|error| read_error(&awake, id, error))?;
    if stat.is_dir {
        let text = format!("{} is a directory", stat.path);
        return Err(ApiError::named(StatusCode::BAD_REQUEST, "ReadError", text));
    }
    if is_unchanged(headers, &tag(&stat)) {
        return Ok(described(StatusCode::NOT_MODIFIED, &stat, None, Body::empty()));
    }
    let range = match asked(headers, &tag(&stat)) {
        Asked::Whole => None,
        Asked::Part(range) => Some(range),
    };
    if *method == Method::HEAD {
        return Ok(described(
            StatusCode::OK,
            &stat,
            Some((0, stat.size_bytes)),
            Body::empty(),
        ));
    }
    match awake.agent.download(path, range).await {
        Ok(download) => Ok(sent(awake.in_use, download, range)),
        Err(Error::Range { size }) => {
            let text = format!("the range begins behind the end of the file, at {size} bytes");
            let refusal = ApiError::named(StatusCode::RANGE_NOT_SATISFIABLE, "ReadError", text);
            let mut response = refusal.into_response();
            response
                .headers_mut()
                .insert(CONTENT_RANGE, value(format!("bytes */{size}")));
            Ok(response)
        }
        Err(error) => Err(read_error(&awake, id, error)),
    }
}

fn read_error(awake: &Awake, id: BoxId, error: Error) -> ApiError {
    match error {
        Error::IsDirectory(_) | Error::Invalid(_) => {
            ApiError::named(StatusCode::BAD_REQUEST, "ReadError", error.to_string())
        }
        error => awake.failed(id, &error),
    }
}

fn sent(in_use: InUse, download: Download, range: Option<ByteRange>) -> Response {
    let status = if range.is_some() {
        StatusCode::PARTIAL_CONTENT
    } else {
        StatusCode::OK
    };
    let (stat, part) = (download.stat.clone(), (download.start, download.end));
    // The box is in use as long as the file is sent.
    let chunks = stream::unfold((download, in_use), |(mut download, in_use)| async move {
        let chunk = match download.chunk().await {
            Ok(None) => return None,
            Ok(Some(chunk)) => Ok(chunk),
            Err(error) => Err(io::Error::other(error.to_string())),
        };
        Some((chunk, (download, in_use)))
    });
    described(status, &stat, Some(part), Body::from_stream(chunks))
}

fn described(status: StatusCode, stat: &FileStat, part: Option<(u64, u64)>, body: Body) -> Response {
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    let mut tell = |name: HeaderName, text: String| headers.insert(name, value(text));
    tell(ETAG, tag(stat));
    tell(LAST_MODIFIED, modified(stat));
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

/// What a box says is data: it may hold what a header does not take.
fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn tag(stat: &FileStat) -> String {
    let plain = stat
        .tag
        .chars()
        .filter(|letter| letter.is_ascii_graphic() && *letter != '"');
    format!("\"{}\"", plain.collect::<String>())
}

fn modified(stat: &FileStat) -> String {
    let time = Timestamp::from_micros(stat.modified_ns / 1000).to_utc();
    time.format("%a, %d %b %Y %H:%M:%S GMT").to_string()
}
