//! Rules for the configuration of export destinations.

use serde::{Deserialize, Serialize};

use crate::{Rejection, Secret};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum DestinationKind {
    /// A bucket of any store that speaks the S3 API.
    S3,
    /// A folder below the one the operator configured.
    File,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressingStyle {
    /// In the path where an endpoint is given, in the host name otherwise.
    #[default]
    Auto,
    /// In the host name.
    Virtual,
    Path,
}

/// S3 settings, named as in the official clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3Options {
    #[serde(default)]
    pub addressing_style: AddressingStyle,
    /// Whether the signature covers the body. Default: only for http endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_signing_enabled: Option<bool>,
}

/// The configuration of a destination without secrets. Stored as JSON and shown in answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationConfig {
    /// Absent for a `file` destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket_name: Option<String>,
    /// Prefix of all keys.
    #[serde(default)]
    pub prefix: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Endpoint of an S3-compatible store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_url: Option<String>,
    /// Whether keys begin with the bucket's name.
    #[serde(default)]
    pub include_bucket_in_prefix: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_kwargs_s3: Option<S3Options>,
}

/// Credentials of a destination. Sealed before they are stored; never part of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    pub access_key_id: Secret,
    pub secret_access_key: Secret,
    /// For temporary credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_token: Option<Secret>,
}

impl Credentials {
    /// Names of the keys that are set.
    #[must_use]
    pub fn keys(&self) -> Vec<&'static str> {
        let mut keys = vec!["access_key_id", "secret_access_key"];
        keys.extend(self.session_token.as_ref().map(|_| "session_token"));
        keys
    }

    pub fn admit(&self) -> Result<(), Rejection> {
        let token = self.session_token.as_ref();
        for (name, secret, longest) in [
            ("access_key_id", Some(&self.access_key_id), 255),
            ("secret_access_key", Some(&self.secret_access_key), 2048),
            ("session_token", token, 2048),
        ] {
            let Some(secret) = secret else { continue };
            // They become header values.
            let text = secret.reveal().as_bytes();
            if text.is_empty() || text.len() > longest || !text.iter().all(|byte| matches!(byte, 0x20..=0x7e)) {
                return Err(Rejection::invalid(
                    format!("credentials.{name}"),
                    format!("{name} must have 1 to {longest} printable ASCII characters"),
                ));
            }
        }
        Ok(())
    }
}

/// A request for a destination, not validated yet.
#[derive(Clone, Debug)]
pub struct DestinationRequest {
    pub kind: DestinationKind,
    pub display_name: String,
    pub config: DestinationConfig,
    /// Absent means the credentials of the environment.
    pub credentials: Option<Credentials>,
}

impl DestinationRequest {
    /// Validates everything that needs no external call.
    pub fn admit(&self) -> Result<(), Rejection> {
        check_display_name(&self.display_name)?;
        check_prefix(&self.config.prefix)?;
        match self.kind {
            DestinationKind::S3 => {
                let Some(bucket) = self.config.bucket_name.as_deref() else {
                    let text = "bucket_name is required for an s3 destination";
                    return Err(Rejection::rule("config.bucket_name", text));
                };
                check_bucket(bucket)?;
                if let Some(endpoint) = &self.config.endpoint_url {
                    check_endpoint(endpoint)?;
                }
                check_region(self.config.region.as_deref())?;
                self.credentials.as_ref().map_or(Ok(()), Credentials::admit)
            }
            DestinationKind::File => {
                for (field, set) in [
                    ("config.bucket_name", self.config.bucket_name.is_some()),
                    ("config.endpoint_url", self.config.endpoint_url.is_some()),
                    ("config.region", self.config.region.is_some()),
                    ("config.config_kwargs_s3", self.config.config_kwargs_s3.is_some()),
                    ("credentials", self.credentials.is_some()),
                ] {
                    if set {
                        return Err(Rejection::rule(
                            field,
                            format!("{field} is not allowed for a file destination"),
                        ));
                    }
                }
                Ok(())
            }
        }
    }
}

/// Validates a prefix: relative, without `..`, and unambiguous for file systems and buckets.
pub fn check_prefix(prefix: &str) -> Result<(), Rejection> {
    let refuse = |why: &str| Err(Rejection::invalid("config.prefix", format!("prefix {why}")));
    if prefix.len() > 2048 {
        return refuse("must have at most 2048 characters");
    }
    if prefix.starts_with('/') {
        return refuse("must be relative");
    }
    if prefix.contains('\\') || prefix.chars().any(char::is_control) {
        return refuse("must not contain a backslash or a control character");
    }
    let segments = prefix.strip_suffix('/').unwrap_or(prefix);
    if segments.is_empty() {
        return Ok(());
    }
    for segment in segments.split('/') {
        match segment {
            "" => return refuse("must not contain an empty segment"),
            "." | ".." => return refuse("must not contain the segment . or .."),
            long if long.len() > 255 => return refuse("must not contain a segment of more than 255 characters"),
            _ => {}
        }
    }
    Ok(())
}

fn check_display_name(name: &str) -> Result<(), Rejection> {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ' | '\'');
    if name.trim().is_empty() || name.chars().count() > 255 || !name.chars().all(fits) {
        return Err(Rejection::invalid(
            "display_name",
            "display_name must have 1 to 255 characters: letters, digits, -, _, space and '",
        ));
    }
    Ok(())
}

fn check_bucket(bucket: &str) -> Result<(), Rejection> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let edges = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    // A bucket may become part of a host name, so consecutive dots are not allowed.
    let valid = (3..=63).contains(&bucket.len())
        && bucket.chars().all(fits)
        && edges(bucket.chars().next())
        && edges(bucket.chars().next_back())
        && !bucket.contains("..");
    if !valid {
        return Err(Rejection::invalid(
            "config.bucket_name",
            "bucket_name must have 3 to 63 characters: letters, digits, -, _ and .",
        ));
    }
    Ok(())
}

fn check_endpoint(endpoint: &str) -> Result<(), Rejection> {
    let host = endpoint
        .strip_prefix("https://")
        .or_else(|| endpoint.strip_prefix("http://"));
    let valid = host.is_some_and(|host| !host.is_empty() && !host.contains(['@', '?', '#', '\\', ' ']))
        && endpoint.chars().count() <= 2048
        && !endpoint.chars().any(char::is_control);
    if !valid {
        return Err(Rejection::invalid(
            "config.endpoint_url",
            "endpoint_url must be an http or https address without user name, query or fragment",
        ));
    }
    Ok(())
}

fn check_region(region: Option<&str>) -> Result<(), Rejection> {
    // It becomes part of a host name and of the signature.
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match region {
        Some(region) if region.is_empty() || region.len() > 64 || !region.chars().all(fits) => Err(Rejection::invalid(
            "config.region",
            "region must have 1 to 64 characters: letters, digits, - and _",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3() -> DestinationRequest {
        DestinationRequest {
            kind: DestinationKind::S3,
            display_name: "my bucket".to_owned(),
            config: DestinationConfig {
                bucket_name: Some("traces".to_owned()),
                prefix: "exports/a".to_owned(),
                ..DestinationConfig::default()
            },
            credentials: None,
        }
    }

    #[test]
    fn prefixes_stay_below_their_root() {
        for good in ["", "a", "a/b/c", "a/b/", "a b", "ü", "...", "a..b"] {
            assert_eq!(check_prefix(good), Ok(()), "{good}");
        }
        for bad in [
            "/",
            "/a",
            "..",
            "a/../b",
            "a/..",
            "./a",
            "a//b",
            "a\\b",
            "a\0b",
            "a\nb",
            "a//",
            &"x".repeat(2049),
        ] {
            assert_eq!(check_prefix(bad).unwrap_err().field, "config.prefix", "{bad}");
        }
    }

    #[test]
    fn buckets_regions_endpoints_and_names_are_checked() {
        assert_eq!(s3().admit(), Ok(()));
        let field = |change: fn(&mut DestinationRequest)| {
            let mut request = s3();
            change(&mut request);
            request.admit().unwrap_err().field
        };
        assert_eq!(field(|r| r.display_name = " ".to_owned()), "display_name");
        assert_eq!(field(|r| r.display_name = "a/b".to_owned()), "display_name");
        assert_eq!(field(|r| r.config.bucket_name = None), "config.bucket_name");
        assert_eq!(
            field(|r| r.config.bucket_name = Some("a/b".to_owned())),
            "config.bucket_name"
        );
        assert_eq!(
            field(|r| r.config.bucket_name = Some("a..b".to_owned())),
            "config.bucket_name"
        );
        assert_eq!(
            field(|r| r.config.region = Some("eu.evil.example".to_owned())),
            "config.region"
        );
        assert_eq!(
            field(|r| r.config.endpoint_url = Some("ftp://x".to_owned())),
            "config.endpoint_url"
        );
        assert_eq!(
            field(|r| r.config.endpoint_url = Some("http://u@x".to_owned())),
            "config.endpoint_url"
        );
    }

    #[test]
    fn a_file_destination_takes_a_prefix_only() {
        let mut request = s3();
        request.kind = DestinationKind::File;
        assert_eq!(request.admit().unwrap_err().field, "config.bucket_name");
        request.config.bucket_name = None;
        assert_eq!(request.admit(), Ok(()));
    }

    #[test]
    fn credentials_show_the_names_of_their_keys_and_nothing_else() {
        let credentials = Credentials {
            access_key_id: Secret::new("AKIA"),
            secret_access_key: Secret::new("hush"),
            session_token: None,
        };
        assert_eq!(credentials.keys(), ["access_key_id", "secret_access_key"]);
        assert!(!format!("{credentials:?}").contains("hush"));
        let empty = Credentials {
            secret_access_key: Secret::new(""),
            ..credentials
        };
        assert_eq!(empty.admit().unwrap_err().field, "credentials.secret_access_key");
    }
}
