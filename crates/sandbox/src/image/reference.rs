//! Names of images in registries.

use std::fmt;
use std::net::Ipv4Addr;

use super::digest::Digest;
use crate::error::{Error, Result};

/// The registry of a name without one.
const HUB: &str = "docker.io";
/// Other names of it, and the host that serves it.
const HUB_HOSTS: [&str; 2] = ["index.docker.io", "registry-1.docker.io"];
const DEFAULT_TAG: &str = "latest";
const MAX_LENGTH: usize = 512;
const MAX_TAG_LENGTH: usize = 128;

/// `registry/repository:tag` or `registry/repository@sha256:…`. As with Docker, a name without a registry is one of
/// Docker Hub, and a name without a tag has the tag `latest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageReference {
    registry: String,
    repository: String,
    version: ImageVersion,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageVersion {
    Tag(String),
    Digest(Digest),
}

impl ImageReference {
    /// # Errors
    /// [`Invalid`](Error::Invalid) if the text is no name of an image.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| Error::Invalid(format!("image {text:?} {why}"));
        if text.len() > MAX_LENGTH {
            return Err(Error::Invalid(format!(
                "image must have at most {MAX_LENGTH} characters"
            )));
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => {
                let digest = Digest::parse(digest);
                let digest = digest.ok_or_else(|| invalid("has something other than a SHA-256 digest after '@'"))?;
                (name, Some(digest))
            }
            None => (text, None),
        };
        let (registry, path) = match name.split_once('/') {
            Some((first, rest)) if is_registry(first) => (first, rest),
            _ => (HUB, name),
        };
        let (path, tag) = path
            .split_once(':')
            .map_or((path, None), |(path, tag)| (path, Some(tag)));
        if !tag.is_none_or(is_tag) {
            return Err(invalid("has an invalid tag"));
        }
        if !is_host(registry) || !path.split('/').all(is_component) {
            return Err(invalid("is not a name such as docker.io/library/debian:13"));
        }
        let registry = if HUB_HOSTS.contains(&registry) { HUB } else { registry };
        let repository = if registry == HUB && !path.contains('/') {
            format!("library/{path}")
        } else {
            path.to_owned()
        };
        let version = match digest {
            // A digest says more than the tag beside it.
            Some(digest) => ImageVersion::Digest(digest),
            None => ImageVersion::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
        };
        Ok(Self {
            registry: registry.to_owned(),
            repository,
            version,
        })
    }

    /// Host and port of the registry; `docker.io` for Docker Hub.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The path below the registry.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    pub(crate) const fn version(&self) -> &ImageVersion {
        &self.version
    }

    pub(crate) const fn is_exact(&self) -> bool {
        matches!(self.version, ImageVersion::Digest(_))
    }

    /// The same image by the digest of its manifest.
    pub(crate) fn with_digest(&self, digest: Digest) -> Self {
        Self {
            version: ImageVersion::Digest(digest),
            ..self.clone()
        }
    }

    /// Where the registry is. Only one on this machine is called without TLS.
    pub(crate) fn base_url(&self) -> String {
        let host = if self.registry == HUB {
            HUB_HOSTS[1]
        } else {
            &self.registry
        };
        let name = host.split(':').next().unwrap_or_default();
        let is_here = name == "localhost" || name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
        let scheme = if is_here { "http" } else { "https" };
        format!("{scheme}://{host}")
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        match &self.version {
            ImageVersion::Tag(tag) => write!(f, ":{tag}"),
            ImageVersion::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

/// Whether the part before the first slash names a registry.
fn is_registry(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':'])
}

fn is_host(text: &str) -> bool {
    let (name, port) = text
        .split_once(':')
        .map_or((text, None), |(name, port)| (name, Some(port)));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    !name.is_empty()
        && name.bytes().all(is_plain)
        && !name.starts_with(['-', '.'])
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// A part of a repository: lower-case letters and digits, separated by `.`, `-` and `_`.
fn is_component(part: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_known = |byte: u8| is_word(byte) || matches!(byte, b'.' | b'-' | b'_');
    let ends = [part.bytes().next(), part.bytes().last()];
    ends.iter().all(|end| end.is_some_and(is_word)) && part.bytes().all(is_known) && !part.contains("..")
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_known = |byte: u8| is_word(byte) || matches!(byte, b'.' | b'-');
    tag.len() <= MAX_TAG_LENGTH && tag.bytes().next().is_some_and(is_word) && tag.bytes().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_as_with_docker() {
        let digest = Digest::of(b"");
        let (exact, whole) = (
            format!("ghcr.io/org/app:v1@{digest}"),
            format!("ghcr.io/org/app@{digest}"),
        );
        for (text, whole) in [
            ("debian", "docker.io/library/debian:latest"),
            ("debian:13", "docker.io/library/debian:13"),
            ("org/app", "docker.io/org/app:latest"),
            ("index.docker.io/org/app:v1", "docker.io/org/app:v1"),
            ("localhost/app", "localhost/app:latest"),
            ("127.0.0.1:5000/a/b/c:v1", "127.0.0.1:5000/a/b/c:v1"),
            (exact.as_str(), whole.as_str()),
        ] {
            let reference = ImageReference::parse(text).unwrap();
            assert_eq!(reference.to_string(), whole);
            assert_eq!(ImageReference::parse(whole).unwrap(), reference);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = "a".repeat(513);
        for text in [
            "",
            "/",
            "a//b",
            "UPPER",
            "a b",
            "../a",
            "ghcr.io/../a",
            "ghcr.io/a/..",
            "ghcr.io/a..b",
            "a:",
            "a:b:c",
            "a:-tag",
            "a@sha256:00",
            "host:port/a",
            "host:0/a",
            "user@host.example/a",
            "host.example/a?b",
            "host.example/a#b",
            long.as_str(),
        ] {
            assert!(matches!(ImageReference::parse(text), Err(Error::Invalid(_))), "{text}");
        }
    }

    #[test]
    fn only_this_machine_is_called_without_tls() {
        for (text, url) in [
            ("debian", "https://registry-1.docker.io"),
            ("ghcr.io/org/app", "https://ghcr.io"),
            ("localhost:5000/app", "http://localhost:5000"),
            ("127.0.0.1:5000/app", "http://127.0.0.1:5000"),
            ("10.0.0.1:5000/app", "https://10.0.0.1:5000"),
            ("127.example/app", "https://127.example"),
        ] {
            assert_eq!(ImageReference::parse(text).unwrap().base_url(), url);
        }
    }
}
