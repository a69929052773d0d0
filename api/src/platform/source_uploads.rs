//! Source archives and push tokens for `langgraph deploy`.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Request, State};
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt as _;
use object_store::path::Path as Key;
use serde::{Deserialize, Serialize};
use towpath_domain::deployment::{DeploymentStatus, LARGEST_ARCHIVE, Source};
use towpath_domain::{DeploymentId, Rejection, UploadId};
use towpath_store::access::KeyHash;
use towpath_store::image_tokens::{ImageToken, Right};
use towpath_store::source_uploads::{self, SourceUpload};
use towpath_store::{self as store, access, deployments};
use towpath_traces::upload::Upload;

use super::deployments::missing;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, Query};
use crate::registry;

/// A client that sends nothing for longer is disconnected.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Magic number of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Capabilities of the client.
#[derive(Default, Deserialize, utoipa::ToSchema)]
#[schema(as = UploadWish)]
pub struct CreateUploadUrl {
    /// Whether it supports `upload_headers`.
    #[serde(default, rename = "supports_upload_headers")]
    #[schema(rename = "supports_upload_headers")]
    _supports_upload_headers: Option<bool>,
}

/// Address for an archive.
#[derive(Serialize, utoipa::ToSchema)]
pub struct UploadUrl {
    /// PUT a gzipped tar of at most 200 MiB here within an hour. Needs no key.
    upload_url: String,
    /// Value for `source_tarball_path`.
    object_path: String,
    /// Headers to send with the archive.
    upload_headers: BTreeMap<&'static str, &'static str>,
}

/// Create an upload address for a source archive.
#[utoipa::path(post, path = "/v2/deployments/{deployment_id}/upload-url", tag = "sources",
    params(("deployment_id" = Uuid, Path, description = "The deployment")), request_body = CreateUploadUrl,
    responses((status = 200, description = "The upload address", body = UploadUrl),
              (status = 404, description = "No such deployment in this workspace"), ApiError))]
pub async fn upload_url(
    State(app): State<App>,
    tenant: Tenant,
    Path(deployment): Path<DeploymentId>,
    Json(_wish): Json<CreateUploadUrl>,
) -> Result<Json<UploadUrl>, ApiError> {
    let id = UploadId::new();
    let token = access::new_secret();
    let path = format!("sources/{}/{deployment}/{id}.tar.gz", tenant.id);
    let hash = KeyHash::of(token.as_bytes()).bytes();
    let made = app.store.write(async |tx| {
        let row = deployments::get(tx, tenant.id, deployment).await?;
        if !row.source.is_internal() {
            let text = "upload URLs are only available for 'internal_source' and 'internal_docker' source deployments";
            return Err(Rejection::rule("source", text).into());
        }
        if row.status == DeploymentStatus::AwaitingDelete {
            return Err(Rejection::rule("deployment_id", "the deployment is being deleted").into());
        }
        source_uploads::insert(tx, tenant.id, id, deployment, &hash, &path).await
    });
    made.await.map_err(missing(deployment))?;
    Ok(Json(UploadUrl {
        upload_url: format!("{}/v2/uploads/{id}?token={}", app.settings.public_url, token),
        object_path: path,
        upload_headers: BTreeMap::from([("Content-Type", "application/gzip")]),
    }))
}

/// Upload token.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SendArchive {
    /// Token from the upload address.
    #[serde(default)]
    token: String,
}

/// Upload a source archive to its upload address.
#[utoipa::path(put, path = "/v2/uploads/{upload_id}", tag = "sources", security(()),
    params(("upload_id" = Uuid, Path, description = "The upload"), SendArchive),
    request_body(content = Vec<u8>, content_type = "application/gzip"),
    responses((status = 200, description = "Uploaded"),
              (status = 400, description = "The body is not a gzip file"),
              (status = 403, description = "The token is invalid or expired"),
              (status = 408, description = "The body arrived too slowly"),
              (status = 409, description = "The archive was already uploaded"),
              (status = 413, description = "The archive is larger than 200 MiB"), ApiError))]
pub async fn send(
    State(app): State<App>,
    Path(id): Path<UploadId>,
    Query(SendArchive { token }): Query<SendArchive>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let closed = || ApiError::forbidden("this upload address is invalid or expired");
    let found = app.store.read(async |tx| source_uploads::get_by_id(tx, id).await).await;
    let upload = match found {
        Err(store::Error::NotFound) => return Err(closed()),
        found => found?,
    };
    // Comparing hashes of random tokens leaks nothing useful through timing.
    let is_token = KeyHash::of(token.as_bytes()).bytes()[..] == upload.token[..];
    if !is_token || app.clock.now() > upload.expires_at {
        return Err(closed());
    }
    if upload.uploaded_at.is_some() {
        return Err(ApiError::conflict(
            "the archive was already uploaded; request a new upload_url",
        ));
    }
    let announced = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > LARGEST_ARCHIVE) {
        return Err(too_large());
    }
    let bytes = receive(&app, &upload, request).await?;
    let arrived = app
        .store
        .write(async |tx| source_uploads::mark_uploaded(tx, upload.tenant_id, id, bytes).await);
    if !arrived.await? {
        return Err(ApiError::conflict(
            "the archive was already uploaded; request a new upload_url",
        ));
    }
    Ok(StatusCode::OK)
}

fn too_large() -> ApiError {
    ApiError::too_large(usize::try_from(LARGEST_ARCHIVE).unwrap_or(usize::MAX))
}

/// Streams the body to the object store. An incomplete upload leaves nothing behind.
async fn receive(app: &App, upload: &SourceUpload, request: Request) -> Result<i64, ApiError> {
    let key = Key::from(upload.path.as_str());
    let mut object = Upload::new(app.objects.store().clone(), key.clone());
    let mut head = Vec::with_capacity(GZIP.len());
    let mut body = request.into_body();
    loop {
        let frame = tokio::time::timeout(IDLE_TIMEOUT, body.frame())
            .await
            .map_err(|_| ApiError::too_slow())?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| ApiError::bad_request("the body ended before it was complete"))?;
        let Ok(piece) = frame.into_data() else { continue };
        let wanted = GZIP.len() - head.len();
        head.extend(piece.iter().take(wanted));
        if !GZIP.starts_with(&head) {
            return Err(ApiError::bad_request("the archive is not a gzip file"));
        }
        if object.bytes() + piece.len() as u64 > LARGEST_ARCHIVE {
            return Err(too_large());
        }
        object.write(&piece).await.map_err(|error| unstored(&error))?;
    }
    if head != GZIP {
        return Err(ApiError::bad_request("the archive is not a gzip file"));
    }
    let bytes = object.complete().await.map_err(|error| unstored(&error))?;
    app.objects.sync(&key).await.map_err(|error| unstored(&error))?;
    Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
}

fn unstored(error: &dyn std::error::Error) -> ApiError {
    tracing::warn!(error = %crate::errors::chain(error), "cannot store a source archive");
    ApiError::unavailable("the object store is unavailable", Duration::from_secs(5))
}

/// Credentials for pushing images of one deployment.
#[derive(Serialize, utoipa::ToSchema)]
pub struct PushToken {
    /// Password, valid for an hour.
    token: String,
    /// User name; any name is accepted.
    username: &'static str,
    /// Address of the registry.
    registry_url: String,
    /// Repository to push to, with any tag.
    repository_url: String,
}

/// Create a token for pushing an image. To deploy the image, set `image_uri` with PATCH.
#[utoipa::path(post, path = "/v2/deployments/{deployment_id}/push-token", tag = "sources",
    params(("deployment_id" = Uuid, Path, description = "The deployment")),
    responses((status = 200, description = "Push credentials for an hour", body = PushToken),
              (status = 404, description = "No such deployment in this workspace"), ApiError))]
pub async fn push_token(
    State(app): State<App>,
    tenant: Tenant,
    Path(deployment): Path<DeploymentId>,
) -> Result<Json<PushToken>, ApiError> {
    let row = app
        .store
        .read(async |tx| deployments::get(tx, tenant.id, deployment).await)
        .await
        .map_err(missing(deployment))?;
    if row.source != Source::InternalDocker {
        // Clients look for these words.
        let text = "push tokens are only available for 'internal_docker' source deployments";
        return Err(ApiError::bad_request(text));
    }
    if row.status == DeploymentStatus::AwaitingDelete {
        return Err(Rejection::rule("deployment_id", "the deployment is being deleted").into());
    }
    let (registry_url, repository_url) = registry::repository(&app, deployment)?;
    let token = ImageToken {
        tenant: tenant.id,
        deployment,
        right: Right::Push,
    };
    let token = token.sign(&app.sealer, app.clock.now(), source_uploads::PATIENCE);
    Ok(Json(PushToken {
        token: token.reveal().to_owned(),
        username: registry::USERNAME,
        registry_url,
        repository_url,
    }))
}
