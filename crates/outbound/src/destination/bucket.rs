//! A bucket of a store that speaks S3.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsCredential};
use object_store::client::HttpConnector as _;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, RetryConfig, UploadPart,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use towpath_domain::export::{AddressingStyle, Credentials, DestinationConfig};

use super::failure::{DestinationFailure, Reason, classify};
use super::listing::Listing;
use super::open_uploads::{OpenUpload, OpenUploads};
use crate::Guard;
use crate::guard::GuardedConnector;

/// Retries of short failures; the engine retries longer ones.
pub(super) const RETRIES: usize = 3;

#[derive(Clone)]
pub(super) struct Bucket {
    store: Arc<AmazonS3>,
    listing: Arc<Listing>,
    name: String,
    uploads: OpenUploads,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The store's own text holds what it was configured with.
        write!(f, "Bucket({})", self.name)
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.name)
    }
}

impl Bucket {
    pub(super) fn open(
        config: &DestinationConfig,
        credentials: &Credentials,
        guard: Guard,
        uploads: OpenUploads,
    ) -> Result<Self, DestinationFailure> {
        let bucket = config.bucket_name.as_deref().unwrap_or_default();
        let options = config.config_kwargs_s3.clone().unwrap_or_default();
        let virtual_hosted = match options.addressing_style {
            AddressingStyle::Virtual => true,
            AddressingStyle::Path => false,
            // A bucket with a dot has no certificate as a host name.
            AddressingStyle::Auto => config.endpoint_url.is_none() && !bucket.contains('.'),
        };
        let region = config.region.as_deref().unwrap_or("us-east-1");
        let endpoint = config.endpoint_url.as_deref();
        let endpoint = endpoint.map(|endpoint| endpoint_for(endpoint, bucket, virtual_hosted));
        let endpoint = endpoint.transpose()?;
        let connector = GuardedConnector::new(guard);
        let client = connector.connect(&ClientOptions::default());
        let listing = Listing {
            client: client.map_err(|error| classify(&error, bucket))?,
            url: bucket_url(endpoint.as_deref(), bucket, region, virtual_hosted)?,
            region: region.to_owned(),
            credential: AwsCredential {
                key_id: credentials.access_key_id.reveal().to_owned(),
                secret_key: credentials.secret_access_key.reveal().to_owned(),
                token: credentials
                    .session_token
                    .as_ref()
                    .map(|token| token.reveal().to_owned()),
            },
        };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(region)
            .with_access_key_id(credentials.access_key_id.reveal())
            .with_secret_access_key(credentials.secret_access_key.reveal())
            .with_virtual_hosted_style_request(virtual_hosted)
            .with_unsigned_payload(!signs_bodies(options.payload_signing_enabled, endpoint.as_deref()))
            // Whether http is allowed is the guard's to say.
            .with_allow_http(true)
            .with_http_connector(connector)
            .with_retry(RetryConfig {
                backoff: BackoffConfig {
                    init_backoff: Duration::from_millis(100),
                    max_backoff: Duration::from_secs(2),
                    base: 2.0,
                },
                max_retries: RETRIES,
                retry_timeout: Duration::from_secs(60),
            });
        if let Some(token) = &credentials.session_token {
            builder = builder.with_token(token.reveal());
        }
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let store = builder.build().map_err(|error| classify(&error, bucket))?;
        Ok(Self {
            store: Arc::new(store),
            listing: Arc::new(listing),
            name: bucket.to_owned(),
            uploads,
        })
    }

    /// Open uploads as listed by the bucket. Listing needs an optional permission, so an empty result proves nothing.
    pub(super) async fn open_uploads(&self, prefix: &str) -> Vec<OpenUpload> {
        match self.listing.open_uploads(prefix).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(error = %error, "open uploads cannot be listed");
                Vec::new()
            }
        }
    }

    async fn begin(self, path: Path) -> Result<BucketUpload> {
        let id = self.store.create_multipart(&path).await?;
        let upload = OpenUpload {
            path: path.to_string(),
            id,
        };
        self.uploads.add(upload.clone());
        Ok(BucketUpload {
            bucket: self,
            path,
            upload,
            begun: 0,
            done: Arc::default(),
        })
    }

    pub(super) async fn abort(&self, upload: &OpenUpload) -> Result<()> {
        self.uploads.remove(upload);
        match self
            .store
            .abort_multipart(&Path::parse(&upload.path)?, &upload.id)
            .await
        {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            other => other,
        }
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.store.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, path: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let (answer, answered) = oneshot::channel();
        let (bucket, path) = (self.clone(), path.clone());
        // A separate task: the id is needed to abort the upload even if the caller is gone.
        tokio::spawn(async move {
            let begun = bucket.begin(path).await;
            let _ = answer.send(begun.map(|parts| UnclaimedUpload(Some(parts), Handle::current())));
        });
        let begun = answered.await.map_err(|source| object_store::Error::Generic {
            store: "S3",
            source: source.into(),
        })?;
        let parts = begun?.claim().expect("it is claimed once");
        Ok(Box::new(parts))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.store.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

/// A multipart upload without an owner yet. Dropped, it is aborted.
#[derive(Debug)]
struct UnclaimedUpload(Option<BucketUpload>, Handle);

impl UnclaimedUpload {
    fn claim(mut self) -> Option<BucketUpload> {
        self.0.take()
    }
}

impl Drop for UnclaimedUpload {
    fn drop(&mut self) {
        let Some(mut parts) = self.0.take() else { return };
        self.1.spawn(async move {
            if let Err(error) = parts.abort().await {
                tracing::info!(
                    error = &error as &dyn std::error::Error,
                    "a multipart upload cannot be aborted"
                );
            }
        });
    }
}

/// A multipart upload whose id is registered in [`OpenUploads`] while it is open.
#[derive(Debug)]
struct BucketUpload {
    bucket: Bucket,
    path: Path,
    upload: OpenUpload,
    begun: usize,
    done: Arc<Mutex<Vec<(usize, PartId)>>>,
}

#[async_trait]
impl MultipartUpload for BucketUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (bucket, path, id) = (self.bucket.clone(), self.path.clone(), self.upload.id.clone());
        let (index, done) = (self.begun, Arc::clone(&self.done));
        self.begun += 1;
        Box::pin(async move {
            let part = bucket.store.put_part(&path, &id, index, data).await?;
            done.lock().push((index, part));
            Ok(())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let mut parts = std::mem::take(&mut *self.done.lock());
        parts.sort_by_key(|(index, _)| *index);
        if parts.len() != self.begun {
            let source = "a part of the upload is missing".into();
            return Err(object_store::Error::Generic { store: "S3", source });
        }
        let parts = parts.into_iter().map(|(_, part)| part).collect();
        let result = self
            .bucket
            .store
            .complete_multipart(&self.path, &self.upload.id, parts)
            .await?;
        self.bucket.uploads.remove(&self.upload);
        Ok(result)
    }

    async fn abort(&mut self) -> Result<()> {
        self.bucket.abort(&self.upload).await
    }
}

/// Where the bucket itself is asked.
fn bucket_url(
    endpoint: Option<&str>,
    bucket: &str,
    region: &str,
    virtual_hosted: bool,
) -> Result<url::Url, DestinationFailure> {
    let text = match (endpoint, virtual_hosted) {
        // Its host carries the bucket already.
        (Some(endpoint), true) => endpoint.to_owned(),
        (Some(endpoint), false) => format!("{endpoint}/{bucket}"),
        (None, true) => format!("https://{bucket}.s3.{region}.amazonaws.com"),
        (None, false) => format!("https://s3.{region}.amazonaws.com/{bucket}"),
    };
    url::Url::parse(&text)
        .map_err(|_| DestinationFailure::new(Reason::InvalidEndpoint, "endpoint_url is not a valid address"))
}

/// Whether signatures cover bodies: by default only without TLS, as in the official AWS clients. Hashing every byte is
/// a large part of an upload's cost on both sides.
fn signs_bodies(asked: Option<bool>, endpoint: Option<&str>) -> bool {
    asked.unwrap_or_else(|| endpoint.is_some_and(|endpoint| !endpoint.starts_with("https://")))
}

/// With the bucket in the host name, the endpoint must include it.
fn endpoint_for(endpoint: &str, bucket: &str, virtual_hosted: bool) -> Result<String, DestinationFailure> {
    let malformed = |_| DestinationFailure::new(Reason::InvalidEndpoint, "endpoint_url is not a valid address");
    let mut url = url::Url::parse(endpoint).map_err(malformed)?;
    if virtual_hosted {
        let host = match url.host() {
            Some(url::Host::Domain(host)) => format!("{bucket}.{host}"),
            _ => {
                let why = "an endpoint_url with an IP address requires addressing_style path";
                return Err(DestinationFailure::new(Reason::InvalidEndpoint, why));
            }
        };
        url.set_host(Some(&host)).map_err(malformed)?;
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_signed_where_nothing_else_protects_them() {
        let (aws, tls, plain) = (None, Some("https://s3.example"), Some("http://127.0.0.1:9000"));
        let asked_nothing = [aws, tls, plain].map(|endpoint| signs_bodies(None, endpoint));
        assert_eq!(asked_nothing, [false, false, true]);
        for asked in [false, true] {
            assert!(
                [aws, tls, plain]
                    .iter()
                    .all(|endpoint| signs_bodies(Some(asked), *endpoint) == asked)
            );
        }
    }

    #[test]
    fn the_bucket_is_asked_where_its_objects_are() {
        let url = |endpoint: Option<&str>, hosted| {
            bucket_url(endpoint, "traces", "eu-north-1", hosted)
                .unwrap()
                .to_string()
        };
        assert_eq!(
            url(Some("http://127.0.0.1:9000"), false),
            "http://127.0.0.1:9000/traces"
        );
        assert_eq!(
            url(Some("https://traces.s3.example"), true),
            "https://traces.s3.example/"
        );
        assert_eq!(url(None, true), "https://traces.s3.eu-north-1.amazonaws.com/");
        assert_eq!(url(None, false), "https://s3.eu-north-1.amazonaws.com/traces");
    }

    #[test]
    fn the_bucket_goes_into_the_host_or_the_path() {
        let endpoint = |url, hosted| endpoint_for(url, "traces", hosted).map_err(|failure| failure.reason());
        assert_eq!(
            endpoint("https://s3.example:9000/", false).unwrap(),
            "https://s3.example:9000"
        );
        assert_eq!(
            endpoint("https://s3.example:9000", true).unwrap(),
            "https://traces.s3.example:9000"
        );
        assert_eq!(endpoint("http://127.0.0.1:9000", true), Err(Reason::InvalidEndpoint));
        assert_eq!(endpoint("http://", false), Err(Reason::InvalidEndpoint));
    }
}
