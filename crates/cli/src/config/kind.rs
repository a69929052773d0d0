//! Validation of values, and how they may be shown.

use std::net::SocketAddr;

use towpath_api::Proxies;
use towpath_outbound::AllowEntry;
use towpath_store::sealing::Keys;
use tracing_subscriber::EnvFilter;
use url::Url;
use uuid::Uuid;

/// Kinds of values. Every value is text until [`super::Settings`] reads it, so that it is validated in one place
/// whatever its source.
#[derive(Debug)]
pub enum Kind {
    /// A file or folder.
    Path,
    /// A URI with one of these schemes; a password in it is never shown.
    Uri(&'static [&'static str]),
    /// `host:port` with a numeric host.
    Address,
    /// A whole number.
    Count {
        least: u64,
        most: u64,
    },
    /// `true` or `false`.
    Switch,
    /// One of these.
    Choice(&'static [&'static str]),
    /// Any of these, separated by commas.
    ChoiceList(&'static [&'static str]),
    /// Entries of `outbound.allow`, separated by commas.
    Allowed,
    /// Addresses and networks, separated by commas.
    Networks,
    /// `pool=count`, separated by commas.
    PoolSlots,
    /// A path prefix: empty, or `/` and more.
    Prefix,
    /// The name of an image or a network; `{…}` is a placeholder.
    Name,
    /// How names of keys in Redis begin: 1 to 100 visible ASCII characters.
    KeyPrefix,
    /// How names of metrics begin.
    MetricPrefix,
    /// Origins of web pages, separated by commas, or `*`.
    Origins,
    Uuid,
    /// At least 32 characters; never shown.
    ApiKey,
    /// 32 bytes as base64 or hex, several separated by commas; never shown.
    EncryptionKey,
    /// Directives of `tracing`.
    LogFilter,
}

impl Kind {
    /// The error in `text`, as the end of "expected …".
    pub fn validation_error(&self, text: &str) -> Option<String> {
        match self {
            Self::Path => text.is_empty().then(|| "a path".to_owned()),
            Self::Uri(schemes) => {
                let scheme = text.split_once("://").map(|(scheme, _)| scheme);
                let known = scheme.is_some_and(|scheme| schemes.contains(&scheme));
                (!known).then(|| format!("a URI that begins with {}", alternatives(schemes, "://")))
            }
            Self::Address => text
                .parse::<SocketAddr>()
                .is_err()
                .then(|| "an address such as 127.0.0.1:8400".to_owned()),
            Self::Count { least, most } => {
                let inside = text.parse::<u64>().is_ok_and(|count| (*least..=*most).contains(&count));
                (!inside).then(|| format!("a whole number from {least} to {most}"))
            }
            Self::Switch => text.parse::<bool>().is_err().then(|| "true or false".to_owned()),
            Self::Choice(choices) => (!choices.contains(&text)).then(|| alternatives(choices, "")),
            Self::ChoiceList(choices) => {
                let broken = items(text).any(|item| !choices.contains(&item));
                broken.then(|| format!("{}, separated by commas", alternatives(choices, "")))
            }
            Self::Allowed => {
                let broken = items(text).find(|item| item.parse::<AllowEntry>().is_err());
                broken
                    .map(|_| "hosts, addresses, networks (10.0.0.0/8) or ports (:9000), separated by commas".to_owned())
            }
            Self::Networks => {
                let broken = items(text).any(|item| Proxies::parse(item).is_none());
                broken.then(|| "addresses or networks (10.0.0.0/8), separated by commas".to_owned())
            }
            Self::PoolSlots => {
                let broken = items(text).any(|item| pool_slots(item).is_none());
                broken.then(|| "pool=count, separated by commas".to_owned())
            }
            Self::Prefix => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
                let fits =
                    text.is_empty() || (text.starts_with('/') && text.bytes().all(plain) && !text.contains("//"));
                (!fits).then(|| "a path such as /agents/one".to_owned())
            }
            Self::Name => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@{}".contains(&byte);
                let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
                (!begins || !text.bytes().all(plain)).then(|| "a name such as registry.example/base:1".to_owned())
            }
            Self::KeyPrefix => {
                let fits = (1..=100).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
                (!fits).then(|| "1 to 100 visible ASCII characters such as towpath or {app}:".to_owned())
            }
            Self::MetricPrefix => {
                let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                let fits = begins && text.len() <= 64 && text.bytes().all(plain);
                (!fits).then(|| "letters, digits and _, at most 64, such as lg_api_".to_owned())
            }
            Self::Origins => {
                let broken = items(text).any(|item| item != "*" && Url::parse(item).is_err());
                broken.then(|| "* or origins such as https://studio.example, separated by commas".to_owned())
            }
            Self::Uuid => text.parse::<Uuid>().is_err().then(|| "a UUID".to_owned()),
            Self::ApiKey => (text.chars().count() < 32).then(|| "at least 32 characters".to_owned()),
            Self::EncryptionKey => Keys::parse(text)
                .is_err()
                .then(|| "32 bytes as base64 or as 64 hex digits".to_owned()),
            Self::LogFilter => EnvFilter::try_new(text)
                .is_err()
                .then(|| "log directives such as info".to_owned()),
        }
    }

    /// `text` without its secret parts.
    pub fn redacted(&self, text: &str) -> String {
        match self {
            Self::ApiKey | Self::EncryptionKey => "***".to_owned(),
            Self::Uri(_) => without_password(text),
            _ => text.to_owned(),
        }
    }
}

/// The parts of a list, trimmed, without empty ones.
pub fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

pub fn pool_slots(item: &str) -> Option<(&str, usize)> {
    let (pool, count) = item.split_once('=')?;
    let count = count.trim().parse().ok().filter(|count| (1..=4096).contains(count))?;
    Some((pool.trim(), count)).filter(|(pool, _)| !pool.is_empty())
}

fn alternatives(choices: &[&str], ending: &str) -> String {
    let choices: Vec<_> = choices.iter().map(|choice| format!("{choice}{ending}")).collect();
    choices.join(" or ")
}

fn without_password(text: &str) -> String {
    // The password of an invalid URI cannot be located, so nothing of it is shown.
    let Ok(mut uri) = Url::parse(text) else {
        return if text.contains('@') {
            "***".to_owned()
        } else {
            text.to_owned()
        };
    };
    let secret_pair = |name: &str| name.contains("password") || name.contains("secret") || name.contains("token");
    if uri.password().is_none() && !uri.query_pairs().any(|(name, _)| secret_pair(&name)) {
        return text.to_owned();
    }
    if uri.password().is_some() && uri.set_password(Some("***")).is_err() {
        return "***".to_owned();
    }
    let pairs: Vec<(String, String)> = uri
        .query_pairs()
        .map(|(name, value)| {
            let value = if secret_pair(&name) { "***".into() } else { value };
            (name.into_owned(), value.into_owned())
        })
        .collect();
    if !pairs.is_empty() {
        uri.query_pairs_mut().clear().extend_pairs(pairs);
    }
    uri.to_string()
}
