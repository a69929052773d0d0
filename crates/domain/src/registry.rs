//! Credentials for image registries, in the format of Docker's `config.json`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Secret;

/// The registry of images without an explicit registry.
pub const DOCKER_HUB: &str = "docker.io";
/// The names of Docker Hub in files of `docker login`.
const HUB_NAMES: [&str; 4] = [
    "index.docker.io/v1",
    "index.docker.io",
    "registry-1.docker.io",
    DOCKER_HUB,
];
const MOST: usize = 100;

/// Credentials for a registry or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryLogin {
    /// `host[:port]`, followed by a path if they are only for repositories below it.
    pub registry: String,
    pub username: String,
    /// A password or token.
    pub password: Secret,
}

/// The credentials in a `config.json`, sorted by registry.
///
/// # Errors
/// The file is invalid or has no usable credentials (credential helpers are not supported). The text follows the
/// field's name and contains no secret.
pub fn parse_docker_config(text: &str) -> Result<Vec<RegistryLogin>, String> {
    let config: DockerConfig = serde_json::from_str(text).map_err(|_| {
        "must be the content of a Docker config.json: {\"auths\": {\"registry.example\": {\"auth\": \"…\"}}}".to_owned()
    })?;
    if config.auths.len() > MOST {
        return Err(format!("must have at most {MOST} registries"));
    }
    let mut logins = Vec::new();
    for (name, entry) in config.auths {
        let registry = parse_registry_name(&name)?;
        let (username, password) = entry
            .login()
            .map_err(|why| format!("must have valid credentials for {registry}: {why}"))?;
        logins.push(RegistryLogin {
            registry,
            username,
            password: Secret::new(password),
        });
    }
    if logins.is_empty() {
        return Err(
            "must name at least one registry under auths; credential stores and helpers are not supported".into(),
        );
    }
    logins.sort_by(|one, other| one.registry.cmp(&other.registry));
    Ok(logins)
}

#[must_use]
pub fn docker_config(logins: &[RegistryLogin]) -> String {
    let auths: BTreeMap<&str, Value> = logins
        .iter()
        .map(|login| {
            let auth = BASE64.encode(format!("{}:{}", login.username, login.password.reveal()));
            (login.registry.as_str(), json!({ "auth": auth }))
        })
        .collect();
    json!({ "auths": auths }).to_string()
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl Entry {
    fn login(self) -> Result<(String, String), &'static str> {
        let login = match self {
            Self {
                username: Some(username),
                password: Some(password),
                ..
            } => (username, password),
            Self { auth: Some(auth), .. } => {
                let bytes = BASE64.decode(auth.trim()).map_err(|_| "auth is not base64")?;
                let text = String::from_utf8(bytes).map_err(|_| "auth is not UTF-8")?;
                let (username, password) = text.split_once(':').ok_or("auth is not user:password")?;
                (username.to_owned(), password.trim_end_matches('\0').to_owned())
            }
            _ => return Err("it has neither auth nor username and password"),
        };
        match (login.0.is_empty(), login.1.is_empty()) {
            (false, false) => Ok(login),
            _ => Err("user name or password is empty"),
        }
    }
}

/// The canonical name of a registry: without scheme, and with one name for Docker Hub.
pub fn parse_registry_name(text: &str) -> Result<String, String> {
    let bare = text.trim().trim_start_matches("https://").trim_start_matches("http://");
    let bare = bare.trim_end_matches('/').to_ascii_lowercase();
    if HUB_NAMES.contains(&bare.as_str()) {
        return Ok(DOCKER_HUB.to_owned());
    }
    // Some Docker files append the version of the protocol.
    let bare = bare.trim_end_matches("/v1").trim_end_matches("/v2").to_owned();
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:[]".contains(&byte);
    let begins = bare
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'[');
    if !begins || bare.len() > 255 || !bare.bytes().all(allowed) {
        return Err("must be the address of a registry, such as registry.example or registry.example:5000/team".into());
    }
    Ok(bare)
}

/// The credentials with the longest matching prefix of the image's name.
#[must_use]
pub fn login_for<'a>(logins: &'a [RegistryLogin], image: &str) -> Option<&'a RegistryLogin> {
    let matching = logins.iter().filter(|login| covers(&login.registry, image));
    matching.max_by_key(|login| login.registry.len())
}

/// Whether an image belongs to a registry or a part of one, given by its canonical name.
#[must_use]
pub fn covers(registry: &str, image: &str) -> bool {
    let name = repository_name(image);
    let rest = name.strip_prefix(registry);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether an image names its registry. Others may exist on this machine only.
#[must_use]
pub fn names_registry(image: &str) -> bool {
    image.split_once('/').is_some_and(|(first, _)| is_host(first))
}

/// Docker's rule to tell a registry from a Docker Hub user.
fn is_host(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

fn repository_name(image: &str) -> String {
    let image = image.split('@').next().unwrap_or(image);
    let end = match (image.rfind(':'), image.rfind('/')) {
        (Some(colon), slash) if slash.is_none_or(|slash| slash < colon) => colon,
        _ => image.len(),
    };
    let image = &image[..end];
    match image.split_once('/') {
        Some((first, rest)) if is_host(first) => {
            let host = parse_registry_name(first).unwrap_or_else(|_| first.to_owned());
            format!("{host}/{rest}")
        }
        _ => format!("{DOCKER_HUB}/{image}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(registry: &str) -> RegistryLogin {
        RegistryLogin {
            registry: registry.to_owned(),
            username: "me".to_owned(),
            password: Secret::new("pa:ss"),
        }
    }

    #[test]
    fn a_config_of_docker_is_read_and_written() {
        let text = json!({
            "auths": {
                "https://index.docker.io/v1/": {"auth": BASE64.encode("me:pa:ss")},
                "Registry.example:5000": {"username": "me", "password": "pa:ss"},
            },
            "credsStore": "desktop",
        });
        let logins = parse_docker_config(&text.to_string()).unwrap();
        assert_eq!(logins, [login("docker.io"), login("registry.example:5000")]);
        assert_eq!(parse_docker_config(&docker_config(&logins)).unwrap(), logins);
        assert!(!format!("{logins:?}").contains("pa:ss"));
    }

    #[test]
    fn what_says_nothing_is_refused() {
        for (text, why) in [
            ("", "config.json"),
            ("7", "config.json"),
            (r#"{"credsStore": "desktop"}"#, "at least one registry"),
            (r#"{"auths": {"registry.example": {}}}"#, "neither auth nor"),
            (r#"{"auths": {"registry.example": {"auth": "%"}}}"#, "base64"),
            (r#"{"auths": {"registry.example": {"auth": "bWU="}}}"#, "user:password"),
            (r#"{"auths": {"registry.example": {"auth": "bWU6"}}}"#, "empty"),
            (r#"{"auths": {"a b": {"auth": "bWU6cA=="}}}"#, "address of a registry"),
        ] {
            let refused = parse_docker_config(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn the_login_for_the_longest_part_of_the_name_fits() {
        let logins = [
            "docker.io",
            "registry.example",
            "registry.example/team",
            "localhost:5000",
        ]
        .map(login);
        for (image, registry) in [
            ("agent", Some("docker.io")),
            ("me/agent:1", Some("docker.io")),
            ("docker.io/me/agent", Some("docker.io")),
            ("index.docker.io/me/agent", Some("docker.io")),
            ("registry.example/agent@sha256:00", Some("registry.example")),
            ("registry.example/team/agent:1", Some("registry.example/team")),
            ("registry.example/teams/agent", Some("registry.example")),
            ("localhost:5000/agent", Some("localhost:5000")),
            ("localhost:5001/agent", None),
            ("registry.example.org/agent", None),
        ] {
            let found = login_for(&logins, image).map(|login| login.registry.as_str());
            assert_eq!(found, registry, "{image}");
            assert_eq!(
                names_registry(image),
                image.starts_with(['d', 'i', 'r', 'l']),
                "{image}"
            );
        }
    }
}
