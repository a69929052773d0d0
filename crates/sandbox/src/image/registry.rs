//! Reads one repository of a registry over the distribution API.
//!
//! Credentials go to the registry and to the token service that it names. They do not follow a redirect to another
//! host, which is where registries keep layers.

use std::fmt::{self, Write as _};
use std::io;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HeaderValue, LOCATION, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;

use super::digest::{Digest, Hasher};
use super::manifest::{ACCEPTED_TYPES, Blob};
use super::reference::{ImageReference, ImageVersion};
use crate::error::{Error, Result};

/// Manifests and configurations.
const MAX_DOCUMENT_BYTES: u64 = 4 << 20;
const MAX_TOKEN_BYTES: u64 = 256 << 10;
const MAX_REDIRECTS: usize = 5;

/// Sends requests to registries, and decides which addresses may be called.
#[async_trait]
pub trait RegistryTransport: fmt::Debug + Send + Sync {
    /// Sends a GET request. Does not follow redirects.
    async fn get(&self, url: &str, headers: HeaderMap) -> std::result::Result<RegistryReply, TransportError>;
}

/// An answer whose body is still to be read.
pub struct RegistryReply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Box<dyn RegistryBody>,
}

impl fmt::Debug for RegistryReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryReply")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// The body of an answer.
#[async_trait]
pub trait RegistryBody: Send {
    /// The next piece; `None` at the end.
    async fn chunk(&mut self) -> std::result::Result<Option<Bytes>, TransportError>;
}

/// Why there is no answer. The texts are for the owner of a box.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The address may not be called.
    #[error("{0}")]
    Refused(String),
    /// The call may succeed later.
    #[error("{0}")]
    Failed(String),
}

/// Credentials for a registry.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    pub username: String,
    /// A password or token.
    pub password: String,
}

impl fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryLogin")
            .field("username", &self.username)
            .field("password", &"***")
            .finish()
    }
}

impl RegistryLogin {
    fn header(&self) -> Result<HeaderValue> {
        let pair = BASE64.encode(format!("{}:{}", self.username, self.password));
        secret_header(&format!("Basic {pair}"))
    }
}

/// A repository with the credentials of one caller.
pub(super) struct Repository<'a> {
    transport: &'a dyn RegistryTransport,
    image: &'a ImageReference,
    login: Option<&'a RegistryLogin>,
    authorization: Option<HeaderValue>,
}

impl<'a> Repository<'a> {
    pub(super) const fn new(
        transport: &'a dyn RegistryTransport,
        image: &'a ImageReference,
        login: Option<&'a RegistryLogin>,
    ) -> Self {
        Self {
            transport,
            image,
            login,
            authorization: None,
        }
    }

    /// A manifest and its digest.
    pub(super) async fn manifest(&mut self, version: &ImageVersion) -> Result<(Vec<u8>, Digest)> {
        let name = match version {
            ImageVersion::Tag(tag) => tag.clone(),
            ImageVersion::Digest(digest) => digest.to_string(),
        };
        let url = format!(
            "{}/v2/{}/manifests/{name}",
            self.image.base_url(),
            self.image.repository()
        );
        let reply = self.get(&url).await?;
        let text = self.read(reply, MAX_DOCUMENT_BYTES).await?;
        let found = Digest::of(&text);
        match version {
            ImageVersion::Digest(digest) if *digest != found => Err(self.altered()),
            _ => Ok((text, found)),
        }
    }

    /// A small blob.
    pub(super) async fn document(&mut self, blob: &Blob) -> Result<Vec<u8>> {
        let reply = self.get(&self.blob_url(blob)).await?;
        let text = self.read(reply, MAX_DOCUMENT_BYTES.min(blob.size)).await?;
        if Digest::of(&text) == blob.digest {
            Ok(text)
        } else {
            Err(self.altered())
        }
    }

    /// Writes a blob to a file. Fails if its size or its digest differs.
    pub(super) async fn download(&mut self, blob: &Blob, file: &mut tokio::fs::File) -> Result<()> {
        use tokio::io::AsyncWriteExt as _;

        let what = "storing a layer of the image";
        let mut reply = self.get(&self.blob_url(blob)).await?;
        let (mut hasher, mut size) = (Hasher::new(), 0_u64);
        while let Some(chunk) = reply.body.chunk().await.map_err(|error| self.error(error))? {
            size += chunk.len() as u64;
            if size > blob.size {
                return Err(self.altered());
            }
            hasher.update(&chunk);
            file.write_all(&chunk).await.map_err(Error::io(what))?;
        }
        file.flush().await.map_err(Error::io(what))?;
        if size == blob.size && hasher.finish() == blob.digest {
            Ok(())
        } else {
            Err(self.altered())
        }
    }

    fn blob_url(&self, blob: &Blob) -> String {
        format!(
            "{}/v2/{}/blobs/{}",
            self.image.base_url(),
            self.image.repository(),
            blob.digest
        )
    }

    /// An answer with content. Gets a token if the registry asks for one, also if the last one has expired.
    async fn get(&mut self, url: &str) -> Result<RegistryReply> {
        let mut reply = self.follow(url).await?;
        if reply.status == StatusCode::UNAUTHORIZED {
            self.authenticate(&reply.headers).await?;
            reply = self.follow(url).await?;
        }
        match reply.status {
            StatusCode::OK => Ok(reply),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.denied()),
            StatusCode::NOT_FOUND => Err(Error::NotFound(format!(
                "image {}: the registry does not have it, or hides it from this workspace's login",
                self.image
            ))),
            status => Err(self.failed(&format!("it answered with the status {}", status.as_u16()))),
        }
    }

    async fn follow(&self, url: &str) -> Result<RegistryReply> {
        let (origin, mut at) = (origin_of(url).to_owned(), url.to_owned());
        for _ in 0..=MAX_REDIRECTS {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(ACCEPTED_TYPES));
            if origin_of(&at) == origin
                && let Some(authorization) = &self.authorization
            {
                headers.insert(AUTHORIZATION, authorization.clone());
            }
            let reply = self.send(&at, headers).await?;
            if !reply.status.is_redirection() {
                return Ok(reply);
            }
            let to = reply.headers.get(LOCATION).and_then(|to| to.to_str().ok());
            let to = to.and_then(|to| join(&at, to));
            at = to.ok_or_else(|| self.failed("it redirects to something other than an address"))?;
        }
        Err(self.failed("it redirects too often"))
    }

    /// Answers the challenge of a registry.
    async fn authenticate(&mut self, headers: &HeaderMap) -> Result<()> {
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter();
        let challenges: Vec<&str> = challenges.filter_map(|value| value.to_str().ok()).collect();
        if let Some(bearer) = challenges
            .iter()
            .find_map(|challenge| strip_scheme(challenge, "bearer"))
        {
            let token = self.token(bearer).await?;
            self.authorization = Some(secret_header(&format!("Bearer {token}"))?);
            return Ok(());
        }
        let is_basic = challenges
            .iter()
            .any(|challenge| strip_scheme(challenge, "basic").is_some());
        match self.login.filter(|_| is_basic) {
            Some(login) => {
                self.authorization = Some(login.header()?);
                Ok(())
            }
            None => Err(self.denied()),
        }
    }

    async fn token(&self, challenge: &str) -> Result<String> {
        let realm = parameter(challenge, "realm").unwrap_or_default();
        let is_open = realm.starts_with("http://") && !self.image.base_url().starts_with("http://");
        if is_open || origin_of(realm).is_empty() {
            return Err(self.failed("it names no token service with an https address"));
        }
        let scope = format!("repository:{}:pull", self.image.repository());
        let mut url = format!("{realm}{}scope={}", separator(realm), encode(&scope));
        if let Some(service) = parameter(challenge, "service") {
            url = format!("{url}&service={}", encode(service));
        }
        let mut headers = HeaderMap::new();
        if let Some(login) = self.login {
            headers.insert(AUTHORIZATION, login.header()?);
        }
        let reply = self.send(&url, headers).await?;
        match reply.status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(self.denied()),
            status => {
                let text = format!("its token service answered with the status {}", status.as_u16());
                return Err(self.failed(&text));
            }
        }
        let text = self.read(reply, MAX_TOKEN_BYTES).await?;
        let answer: Option<TokenAnswer> = serde_json::from_slice(&text).ok();
        let token = answer.and_then(|answer| answer.token.or(answer.access_token));
        token.ok_or_else(|| self.failed("its token service answered without a token"))
    }

    async fn send(&self, url: &str, headers: HeaderMap) -> Result<RegistryReply> {
        let reply = self.transport.get(url, headers).await;
        reply.map_err(|error| self.error(error))
    }

    async fn read(&self, mut reply: RegistryReply, limit: u64) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        while let Some(chunk) = reply.body.chunk().await.map_err(|error| self.error(error))? {
            if (text.len() + chunk.len()) as u64 > limit {
                return Err(self.failed("its answer is too long"));
            }
            text.extend_from_slice(&chunk);
        }
        Ok(text)
    }

    fn error(&self, error: TransportError) -> Error {
        match error {
            TransportError::Refused(text) => {
                Error::Denied(format!("image {}: the registry cannot be called: {text}", self.image))
            }
            TransportError::Failed(text) => self.failed(&text),
        }
    }

    fn failed(&self, why: &str) -> Error {
        Error::Io {
            what: format!("image {}: the registry failed: {why}", self.image),
            source: io::Error::other(why.to_owned()),
        }
    }

    fn denied(&self) -> Error {
        let login = if self.login.is_some() {
            "the login that this workspace has for it"
        } else {
            "callers without a login; store one in /v2/sandboxes/registries"
        };
        Error::Denied(format!("image {}: the registry refuses {login}", self.image))
    }

    fn altered(&self) -> Error {
        self.failed("it sent content that differs from its digest")
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

fn secret_header(text: &str) -> Result<HeaderValue> {
    let value = HeaderValue::from_str(text);
    let mut value = value.map_err(|_| Error::Invalid("the login of the registry has control characters".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Scheme, host and port of a URL; empty for other texts.
fn origin_of(url: &str) -> &str {
    let Some((scheme, rest)) = url.split_once("://") else {
        return "";
    };
    if !matches!(scheme, "http" | "https") {
        return "";
    }
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.is_empty() {
        return "";
    }
    &url[..scheme.len() + 3 + host.len()]
}

/// The target of a redirect. One from https to http is none.
fn join(from: &str, to: &str) -> Option<String> {
    if to.starts_with('/') && !to.starts_with("//") {
        return Some(format!("{}{to}", origin_of(from)));
    }
    let is_downgrade = from.starts_with("https://") && !to.starts_with("https://");
    (!origin_of(to).is_empty() && !is_downgrade).then(|| to.to_owned())
}

fn strip_scheme<'t>(challenge: &'t str, scheme: &str) -> Option<&'t str> {
    let (found, rest) = challenge.split_once(' ').unwrap_or((challenge, ""));
    found.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// A quoted parameter of a challenge.
fn parameter<'t>(challenge: &'t str, name: &str) -> Option<&'t str> {
    let mut rest = challenge;
    loop {
        let (key, after) = rest.split_once("=\"")?;
        let (value, next) = after.split_once('"')?;
        if key.trim_start_matches([',', ' ']).eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = next;
    }
}

fn separator(url: &str) -> char {
    if url.contains('?') { '&' } else { '?' }
}

/// Percent-encoding of a value in a query.
fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a text cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let challenge = "Bearer realm=\"https://auth.example/token\",service=\"registry, one\", scope=\"a\"";
        let rest = strip_scheme(challenge, "bearer").unwrap();
        assert_eq!(parameter(rest, "realm"), Some("https://auth.example/token"));
        assert_eq!(parameter(rest, "service"), Some("registry, one"));
        assert_eq!(parameter(rest, "scope"), Some("a"));
        assert_eq!(parameter(rest, "error"), None);
        assert_eq!(strip_scheme("Basic", "basic"), Some(""));
        assert_eq!(encode("registry, one"), "registry%2C%20one");
    }

    #[test]
    fn redirects_never_leave_tls() {
        let from = "https://registry.example/v2/a/blobs/b";
        for (to, target) in [
            ("/other", Some("https://registry.example/other")),
            ("https://cdn.example/x?y", Some("https://cdn.example/x?y")),
            ("http://cdn.example/x", None),
            ("//cdn.example/x", None),
            ("file:///etc/passwd", None),
            ("", None),
        ] {
            assert_eq!(join(from, to).as_deref(), target, "{to}");
        }
        assert_eq!(origin_of("https://a.example:5000?x"), "https://a.example:5000");
        assert_eq!(origin_of("ftp://a.example/"), "");
    }

    #[test]
    fn a_login_is_not_shown() {
        let login = RegistryLogin {
            username: "me".to_owned(),
            password: "hunter2".to_owned(),
        };
        let header = login.header().unwrap();
        assert!(header.is_sensitive());
        assert!(!format!("{login:?} {header:?}").contains("hunter2"));
    }
}
