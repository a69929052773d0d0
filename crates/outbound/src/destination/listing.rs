//! Which uploads in parts are open at a bucket, by its own word: the only way to find one whose id no one was told,
//! because the answer that had it was lost.
//!
//! The store's client has no such call, so the request is made and signed here.
//!
//! ```text
//! GET /<bucket>?prefix=<prefix>&uploads=
//! <ListMultipartUploadsResult>… <Upload><Key>…</Key><UploadId>…</UploadId>…</Upload>…</ListMultipartUploadsResult>
//! ```

use std::error::Error as StdError;
use std::fmt::{self, Write as _};
use std::time::Duration;

use futures::TryStreamExt as _;
use http::{Request, StatusCode};
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{HttpClient, HttpRequestBody};
use url::Url;

use super::bucket::RETRIES;
use super::open_uploads::OpenUpload;

/// The first pause before a retry; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// No valid answer is larger: a thousand entries of at most three kilobytes.
const ANSWER_BYTES: usize = 4 << 20;

/// Where and as whom a bucket is asked.
pub(super) struct Listing {
    pub(super) client: HttpClient,
    /// Of the bucket, in the addressing style of its destination.
    pub(super) url: Url,
    pub(super) region: String,
    pub(super) credential: AwsCredential,
}

impl Listing {
    /// Open uploads of keys that begin with `prefix`, at most a thousand. Retried like other calls to a bucket.
    pub(super) async fn open_uploads(&self, prefix: &str) -> Result<Vec<OpenUpload>, ListingError> {
        let mut pause = FIRST_PAUSE;
        for _ in 0..RETRIES {
            match self.open_uploads_once(prefix).await {
                Err(ListingError::Transient(_)) => tokio::time::sleep(pause).await,
                done => return done,
            }
            pause *= 2;
        }
        self.open_uploads_once(prefix).await
    }

    async fn open_uploads_once(&self, prefix: &str) -> Result<Vec<OpenUpload>, ListingError> {
        let mut url = self.url.clone();
        url.set_query(Some(&format!("prefix={}&uploads=", encoded(prefix))));
        let request = Request::get(url.as_str()).body(HttpRequestBody::empty());
        let mut request = request.map_err(ListingError::for_good)?;
        AwsAuthorizer::new(&self.credential, "s3", &self.region).authorize(&mut request, None);
        let answer = self.client.execute(request).await.map_err(ListingError::again)?;
        let status = answer.status();
        // A store without such a list says so for good.
        let trouble = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
        if trouble || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(ListingError::again(format!("status {status}")));
        }
        if !status.is_success() {
            return Err(ListingError::for_good(format!("status {status}")));
        }
        let mut text = Vec::new();
        let mut pieces = answer.into_body().bytes_stream();
        while let Some(piece) = pieces.try_next().await.map_err(ListingError::again)? {
            if text.len() + piece.len() > ANSWER_BYTES {
                return Err(ListingError::for_good("the answer is too long"));
            }
            text.extend_from_slice(&piece);
        }
        // The answer is filtered: an upload of another prefix must not be aborted.
        let found = uploads(&String::from_utf8(text).map_err(ListingError::for_good)?);
        Ok(found
            .into_iter()
            .filter(|upload| upload.path.starts_with(prefix))
            .collect())
    }
}

/// Why there is no list.
#[derive(Debug)]
pub(super) enum ListingError {
    /// Trouble that may pass.
    Transient(Cause),
    Permanent(Cause),
}

type Cause = Box<dyn StdError + Send + Sync>;

impl ListingError {
    fn again(cause: impl Into<Cause>) -> Self {
        Self::Transient(cause.into())
    }

    fn for_good(cause: impl Into<Cause>) -> Self {
        Self::Permanent(cause.into())
    }
}

impl fmt::Display for ListingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Transient(cause) | Self::Permanent(cause)) = self;
        cause.fmt(f)
    }
}

fn uploads(text: &str) -> Vec<OpenUpload> {
    let upload = |piece: &str| {
        Some(OpenUpload {
            path: element(piece, "Key")?,
            id: element(piece, "UploadId")?,
        })
    };
    text.split("<Upload>").skip(1).filter_map(upload).collect()
}

fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (content, _) = rest.split_once('<')?;
    let plain = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ];
    Some(
        plain
            .iter()
            .fold(content.to_owned(), |text, (escaped, is)| text.replace(escaped, is)),
    )
}

/// Percent-encoding for signatures: everything but letters, digits and `-._~`.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut all, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            all.push(char::from(byte));
        } else {
            let _ = write!(all, "%{byte:02X}");
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let text = "<?xml version=\"1.0\"?><ListMultipartUploadsResult><Bucket>b</Bucket>\
            <Upload><Key>p/a&amp;b=1/x</Key><UploadId>one</UploadId><Owner><ID>7</ID></Owner></Upload>\
            <Upload><UploadId>two</UploadId><Key>p/y</Key></Upload><Upload><Key>broken</Key></Upload>\
            </ListMultipartUploadsResult>";
        let begun = |path: &str, id: &str| OpenUpload {
            path: path.to_owned(),
            id: id.to_owned(),
        };
        assert_eq!(uploads(text), [begun("p/a&b=1/x", "one"), begun("p/y", "two")]);
        assert_eq!(uploads("<html>"), []);
    }

    #[test]
    fn a_prefix_is_escaped() {
        assert_eq!(encoded("p/day=01 ü"), "p%2Fday%3D01%20%C3%BC");
    }
}
