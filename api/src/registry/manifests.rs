//! Manifests: what an image consists of, under its digest, and under tags.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, StatusCode};
use object_store::ObjectStoreExt as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use towpath_store::image_tokens::Right;

use super::{DIGEST, Digest, Images, REPOSITORIES, RegistryError, sweep};
use crate::app::App;
use crate::extract::read_body;

/// The largest manifest, in bytes, as the specification wants at least.
const MAX_MANIFEST_BYTES: usize = 4 << 20;
/// Manifests of one image, and lists of manifests.
const IMAGES: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
const LISTS: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];

/// What a manifest is named by.
enum Reference {
    Digest(Digest),
    Tag(String),
}

impl Reference {
    fn parse(text: &str) -> Result<Self, RegistryError> {
        if text.contains(':') {
            return Digest::parse(text).map(Self::Digest);
        }
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let fits = (1..=128).contains(&text.len())
            && text.bytes().next().is_some_and(letter)
            && text.bytes().all(|byte| letter(byte) || byte == b'.' || byte == b'-');
        if !fits {
            let message = "expected a tag of 1 to 128 letters, digits, underscores, dots and hyphens";
            return Err(RegistryError::bad("TAG_INVALID", message));
        }
        Ok(Self::Tag(text.to_owned()))
    }
}

/// A manifest as far as it has to be understood here.
pub(super) struct Manifest {
    kind: String,
    /// Blobs it consists of.
    pub(super) blobs: Vec<Digest>,
    /// Manifests it lists.
    pub(super) manifests: Vec<Digest>,
}

impl Manifest {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, RegistryError> {
        let invalid = |text: &str| RegistryError::bad("MANIFEST_INVALID", text);
        let value: Value = serde_json::from_slice(bytes).map_err(|_| invalid("the manifest is not JSON"))?;
        let is_list = value["manifests"].is_array();
        let kind = match value["mediaType"].as_str() {
            Some(kind) => kind,
            None if is_list => LISTS[0],
            None => IMAGES[0],
        };
        let known = if is_list { LISTS } else { IMAGES };
        if value["schemaVersion"] != 2 || !known.contains(&kind) {
            return Err(invalid(
                "expected an image manifest or index of OCI, or one of Docker's schema 2",
            ));
        }
        let digest = |of: &Value| Digest::parse(of["digest"].as_str().unwrap_or_default());
        // What lies elsewhere says where.
        let local = |layer: &&Value| layer["urls"].as_array().is_none_or(Vec::is_empty);
        let of = |name: &str| value[name].as_array().map(Vec::as_slice).unwrap_or_default();
        let (blobs, manifests) = if is_list {
            (
                Vec::new(),
                of("manifests").iter().map(digest).collect::<Result<_, _>>()?,
            )
        } else {
            let layers = of("layers").iter().filter(local);
            let all = std::iter::once(&value["config"]).chain(layers).map(digest);
            (all.collect::<Result<_, _>>()?, Vec::new())
        };
        Ok(Self {
            kind: kind.to_owned(),
            blobs,
            manifests,
        })
    }
}

/// `PUT manifests/{reference}`: an image whose parts are here becomes one.
pub(super) async fn write(
    State(app): State<App>,
    Path((deployment, reference)): Path<(String, String)>,
    request: Request,
) -> Result<Response, RegistryError> {
    let images = Images::open(&app, request.headers(), &deployment, Right::Push).await?;
    let reference = Reference::parse(&reference)?;
    let (head, body) = request.into_parts();
    let body = read_body(body, MAX_MANIFEST_BYTES).await?;
    let manifest = Manifest::parse(&body)?;
    let sent = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if sent.is_some_and(|sent| sent.split(';').next().unwrap_or_default().trim() != manifest.kind) {
        let text = format!(
            "the Content-Type differs from the manifest's mediaType, {}",
            manifest.kind
        );
        return Err(RegistryError::bad("MANIFEST_INVALID", text));
    }
    let digest = Digest(hex::encode(Sha256::digest(&body)));
    if let Reference::Digest(said) = &reference
        && *said != digest
    {
        return Err(RegistryError::bad(
            "DIGEST_INVALID",
            "the digest does not match the content",
        ));
    }
    expect_parts(&app, &images, &manifest).await?;
    let put = async |rest: String, bytes| {
        let put = app.objects.put(&images.key(&rest), vec![bytes]).await;
        put.map_err(|error| RegistryError::storage_failure(&error))
    };
    put(format!("manifests/{}", digest.0), body).await?;
    // The sweep of another push may have removed what nothing named until now. It stops when it finds this manifest.
    expect_parts(&app, &images, &manifest).await?;
    if let Reference::Tag(tag) = &reference {
        put(format!("tags/{tag}"), digest.to_string().into()).await?;
        sweep::images(&app, &images).await?;
    }
    let mut response = StatusCode::CREATED.into_response();
    let headers = response.headers_mut();
    headers.insert(LOCATION, images.location(&format!("manifests/{digest}")));
    headers.insert(DIGEST, digest.header());
    Ok(response)
}

/// # Errors
/// One of an image's parts is not here.
async fn expect_parts(app: &App, images: &Images, manifest: &Manifest) -> Result<(), RegistryError> {
    let blobs = manifest.blobs.iter().map(|digest| ("blobs", digest));
    let manifests = manifest.manifests.iter().map(|digest| ("manifests", digest));
    for (folder, part) in blobs.chain(manifests) {
        let key = images.key(&format!("{folder}/{}", part.0));
        match app.objects.store().head(&key).await {
            Ok(_) => {}
            Err(object_store::Error::NotFound { .. }) => {
                let text = format!("{part} was not pushed");
                return Err(RegistryError::bad("MANIFEST_BLOB_UNKNOWN", text));
            }
            Err(error) => return Err(RegistryError::storage_failure(&error)),
        }
    }
    Ok(())
}

/// `GET manifests/{reference}`, also as HEAD.
pub(super) async fn read(
    State(app): State<App>,
    Path((deployment, reference)): Path<(String, String)>,
    request: Request,
) -> Result<Response, RegistryError> {
    let images = Images::open(&app, request.headers(), &deployment, Right::Pull).await?;
    let unknown = || RegistryError::new(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "there is no such image");
    let digest = match Reference::parse(&reference)? {
        Reference::Digest(digest) => digest,
        Reference::Tag(tag) => match app.objects.get(&images.key(&format!("tags/{tag}"))).await {
            Ok(digest) => Digest::parse(&String::from_utf8_lossy(&digest))?,
            Err(error) if error.is_not_found() => return Err(unknown()),
            Err(error) => return Err(RegistryError::storage_failure(&error)),
        },
    };
    let found = app.objects.get(&images.key(&format!("manifests/{}", digest.0))).await;
    let bytes = found.map_err(|error| {
        if error.is_not_found() {
            unknown()
        } else {
            RegistryError::storage_failure(&error)
        }
    })?;
    let kind = Manifest::parse(&bytes)?.kind;
    let length = bytes.len();
    // A HEAD loses its body on the way out.
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_str(&kind).unwrap_or(HeaderValue::from_static(IMAGES[0])),
    );
    headers.insert(DIGEST, digest.header());
    Ok(response)
}

/// `GET tags/list`: all of them, in order.
pub(super) async fn tags(
    State(app): State<App>,
    Path(deployment): Path<String>,
    request: Request,
) -> Result<Json<Value>, RegistryError> {
    let images = Images::open(&app, request.headers(), &deployment, Right::Pull).await?;
    let folder = images.key("tags");
    let mut listed = app.objects.store().list(Some(&folder));
    let mut tags = Vec::new();
    while let Some(found) = listed.next().await {
        let found = found.map_err(|error| RegistryError::storage_failure(&error))?;
        tags.extend(found.location.filename().map(str::to_owned));
    }
    tags.sort();
    Ok(Json(
        json!({"name": format!("{REPOSITORIES}/{deployment}"), "tags": tags}),
    ))
}
