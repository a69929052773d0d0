//! Layers and configurations: sent in pieces, named after what they hold.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LOCATION, RANGE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use object_store::{ObjectMeta, ObjectStoreExt as _};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use towpath_domain::UploadId;
use towpath_store::image_tokens::Right;
use towpath_traces::upload::Upload;

use super::{DIGEST, Digest, Images, RegistryError, UPLOAD, sweep};
use crate::app::App;
use crate::errors::ApiError;

/// A sender that is silent for longer has gone away.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest layer, in bytes: what S3 copies in one request, which is how a blob gets its name.
const MAX_BLOB_BYTES: u64 = 5 << 30;

/// A piece of a blob on its way, as its name says.
struct UploadPiece {
    meta: ObjectMeta,
    offset: u64,
    bytes: u64,
    sha256: String,
}

impl UploadPiece {
    fn of(meta: ObjectMeta) -> Option<Self> {
        let (offset, bytes, sha256) = {
            let mut parts = meta.location.filename()?.splitn(3, '-');
            let mut next = || parts.next();
            (next()?.parse().ok()?, next()?.parse().ok()?, next()?.to_owned())
        };
        Some(Self {
            meta,
            offset,
            bytes,
            sha256,
        })
    }
}

/// What there is of an upload, in order, without gaps.
async fn pieces(app: &App, images: &Images, upload: UploadId) -> Result<Vec<UploadPiece>, RegistryError> {
    let folder = images.key(&format!("uploads/{upload}"));
    let mut listed = app.objects.store().list(Some(&folder));
    let mut pieces = Vec::new();
    while let Some(found) = listed.next().await {
        pieces.extend(UploadPiece::of(
            found.map_err(|error| RegistryError::storage_failure(&error))?,
        ));
    }
    if pieces.is_empty() {
        let text = "there is no such upload, or it was abandoned";
        return Err(RegistryError::new(StatusCode::NOT_FOUND, "BLOB_UPLOAD_UNKNOWN", text));
    }
    pieces.sort_by_key(|piece| piece.offset);
    Ok(pieces)
}

fn end(pieces: &[UploadPiece]) -> u64 {
    pieces.last().map_or(0, |piece| piece.offset + piece.bytes)
}

/// How an upload stands: where it goes on, and how much there is.
fn upload_status(images: &Images, upload: UploadId, bytes: u64, status: StatusCode) -> Response {
    let range = format!("0-{}", bytes.saturating_sub(1));
    let mut response = status.into_response();
    let headers = response.headers_mut();
    headers.insert(LOCATION, images.location(&format!("blobs/uploads/{upload}")));
    headers.insert(RANGE, text(&range));
    headers.insert(UPLOAD, text(&upload.to_string()));
    response
}

fn text(value: &str) -> HeaderValue {
    HeaderValue::from_str(value).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// `POST blobs/uploads/`: a place for a blob. One of another repository is not taken from there: the specification lets
/// a registry ask for it whole.
pub(super) async fn begin(
    State(app): State<App>,
    Path(deployment): Path<String>,
    request: Request,
) -> Result<Response, RegistryError> {
    let images = Images::open(&app, request.headers(), &deployment, Right::Push).await?;
    sweep::uploads(&app, &images).await?;
    let upload = UploadId::new();
    // So that it is known before its first byte comes.
    let (bytes, sha256) = store(&app, &images, upload, 0, Body::empty()).await?;
    debug_assert!(bytes == 0 && !sha256.is_empty());
    Ok(upload_status(&images, upload, 0, StatusCode::ACCEPTED))
}

/// `GET blobs/uploads/{upload}`: how far it is.
pub(super) async fn progress(
    State(app): State<App>,
    Path((deployment, upload)): Path<(String, UploadId)>,
    request: Request,
) -> Result<Response, RegistryError> {
    let images = Images::open(&app, request.headers(), &deployment, Right::Push).await?;
    let bytes = end(&pieces(&app, &images, upload).await?);
    Ok(upload_status(&images, upload, bytes, StatusCode::NO_CONTENT))
}

/// `PATCH blobs/uploads/{upload}`: more of it.
pub(super) async fn append(
    State(app): State<App>,
    Path((deployment, upload)): Path<(String, UploadId)>,
    request: Request,
) -> Result<Response, RegistryError> {
    let images = Images::open(&app, request.headers(), &deployment, Right::Push).await?;
    let begun = end(&pieces(&app, &images, upload).await?);
    if starts(request.headers()).is_some_and(|start| start != begun) {
        return Ok(upload_status(&images, upload, begun, StatusCode::RANGE_NOT_SATISFIABLE));
    }
    check_size(request.headers(), begun)?;
    let (bytes, _) = store(&app, &images, upload, begun, request.into_body()).await?;
    Ok(upload_status(&images, upload, begun + bytes, StatusCode::ACCEPTED))
}

/// Where a piece says that it begins: `Content-Range: <first>-<last>`.
fn starts(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    range
        .trim_start_matches("bytes ")
        .split_once('-')?
        .0
        .trim()
        .parse()
        .ok()
}

/// Refuses a piece that says that it makes a blob too large, before it is sent.
fn check_size(headers: &HeaderMap, begun: u64) -> Result<(), RegistryError> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| begun.saturating_add(bytes) > MAX_BLOB_BYTES) {
        return Err(too_large());
    }
    Ok(())
}

fn too_large() -> RegistryError {
    ApiError::too_large(usize::try_from(MAX_BLOB_BYTES).unwrap_or(usize::MAX)).into()
}

/// What an upload is to be.
#[derive(Deserialize)]
pub(super) struct FinishUpload {
    #[serde(default)]
    digest: String,
}

/// `PUT blobs/uploads/{upload}?digest=`: the rest of it, and what all of it is.
pub(super) async fn finish(
    State(app): State<App>,
    Path((deployment, upload)): Path<(String, UploadId)>,
    Query(FinishUpload { digest }): Query<FinishUpload>,
    request: Request,
) -> Result<Response, RegistryError> {
    let images = Images::open(&app, request.headers(), &deployment, Right::Push).await?;
    let digest = Digest::parse(&digest)?;
    let begun = end(&pieces(&app, &images, upload).await?);
    check_size(request.headers(), begun)?;
    store(&app, &images, upload, begun, request.into_body()).await?;
    let all = pieces(&app, &images, upload).await?;
    let filled: Vec<&UploadPiece> = all.iter().filter(|piece| piece.bytes > 0).collect();
    let to = images.key(&format!("blobs/{}", digest.0));
    let is_it = match filled[..] {
        // As every client sends it: what it is, was seen when it came.
        [one] if one.offset == 0 => {
            let is_it = one.sha256 == digest.0;
            if is_it {
                let renamed = app.objects.store().rename(&one.meta.location, &to).await;
                renamed.map_err(|error| RegistryError::storage_failure(&error))?;
            }
            is_it
        }
        _ => join(&app, &filled, &to, &digest).await?,
    };
    if is_it {
        app.objects
            .sync(&to)
            .await
            .map_err(|error| RegistryError::storage_failure(&error))?;
    }
    clear(&app, &images, upload).await?;
    if !is_it {
        return Err(RegistryError::bad(
            "DIGEST_INVALID",
            "the digest does not match the content",
        ));
    }
    let mut response = StatusCode::CREATED.into_response();
    let headers = response.headers_mut();
    headers.insert(LOCATION, images.location(&format!("blobs/{digest}")));
    headers.insert(DIGEST, digest.header());
    Ok(response)
}

/// `DELETE blobs/uploads/{upload}`: it does not come.
pub(super) async fn cancel(
    State(app): State<App>,
    Path((deployment, upload)): Path<(String, UploadId)>,
    request: Request,
) -> Result<StatusCode, RegistryError> {
    let images = Images::open(&app, request.headers(), &deployment, Right::Push).await?;
    pieces(&app, &images, upload).await?;
    clear(&app, &images, upload).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn clear(app: &App, images: &Images, upload: UploadId) -> Result<(), RegistryError> {
    let folder = images.key(&format!("uploads/{upload}"));
    let gone = app.objects.delete_below(&folder).await;
    gone.map(drop).map_err(|error| RegistryError::storage_failure(&error))
}

/// Puts pieces together. False when they make something else than was said; then nothing is kept.
async fn join(
    app: &App,
    pieces: &[&UploadPiece],
    to: &object_store::path::Path,
    digest: &Digest,
) -> Result<bool, RegistryError> {
    let mut object = Upload::new(app.objects.store().clone(), to.clone());
    let mut hash = Sha256::new();
    for piece in pieces {
        if piece.offset != object.bytes() {
            let text = "chunks of this upload arrived concurrently or twice";
            return Err(RegistryError::bad("BLOB_UPLOAD_INVALID", text));
        }
        let found = app.objects.store().get(&piece.meta.location).await;
        let mut bytes = found
            .map_err(|error| RegistryError::storage_failure(&error))?
            .into_stream();
        while let Some(part) = bytes.next().await {
            let part = part.map_err(|error| RegistryError::storage_failure(&error))?;
            hash.update(&part);
            object
                .write(&part)
                .await
                .map_err(|error| RegistryError::storage_failure(&error))?;
        }
    }
    // Dropped, it leaves nothing.
    if hex::encode(hash.finalize()) != digest.0 {
        return Ok(false);
    }
    object
        .complete()
        .await
        .map_err(|error| RegistryError::storage_failure(&error))?;
    Ok(true)
}

/// Stores a body as the piece that begins at `offset`. Answers its size and what it is.
async fn store(
    app: &App,
    images: &Images,
    upload: UploadId,
    offset: u64,
    mut body: Body,
) -> Result<(u64, String), RegistryError> {
    // Its name is known when it is there: until then it has one of its own.
    let coming = images.key(&format!("uploads/{upload}/coming-{}", UploadId::new()));
    let mut object = Upload::new(app.objects.store().clone(), coming.clone());
    let mut hash = Sha256::new();
    loop {
        let frame = tokio::time::timeout(IDLE_TIMEOUT, body.frame())
            .await
            .map_err(|_| ApiError::too_slow())?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| ApiError::bad_request("the body ended before it was complete"))?;
        let Ok(part) = frame.into_data() else { continue };
        if offset + object.bytes() + part.len() as u64 > MAX_BLOB_BYTES {
            return Err(too_large());
        }
        hash.update(&part);
        object
            .write(&part)
            .await
            .map_err(|error| RegistryError::storage_failure(&error))?;
    }
    let bytes = object
        .complete()
        .await
        .map_err(|error| RegistryError::storage_failure(&error))?;
    let sha256 = hex::encode(hash.finalize());
    let name = images.key(&format!("uploads/{upload}/{offset}-{bytes}-{sha256}"));
    let named = app.objects.store().rename(&coming, &name).await;
    named.map_err(|error| RegistryError::storage_failure(&error))?;
    Ok((bytes, sha256))
}

/// `GET blobs/{digest}`, also as HEAD.
pub(super) async fn read(
    State(app): State<App>,
    Path((deployment, digest)): Path<(String, String)>,
    request: Request,
) -> Result<Response, RegistryError> {
    let images = Images::open(&app, request.headers(), &deployment, Right::Pull).await?;
    let digest = Digest::parse(&digest)?;
    let key = images.key(&format!("blobs/{}", digest.0));
    let unknown = |error| match error {
        object_store::Error::NotFound { .. } => {
            RegistryError::new(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", "there is no such blob")
        }
        error => RegistryError::storage_failure(&error),
    };
    let (bytes, body) = if request.method() == Method::HEAD {
        let meta = app.objects.store().head(&key).await.map_err(unknown)?;
        (meta.size, Body::empty())
    } else {
        let found = app.objects.store().get(&key).await.map_err(unknown)?;
        (found.meta.size, Body::from_stream(found.into_stream()))
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(DIGEST, digest.header());
    Ok(response)
}
