//! Revisions of the protocol, and what each wants of a request.
//!
//! Up to 2025-11-25 a client begins with `initialize` and names the revision in a header from then on. Since 2026-07-28 there
//! is no handshake: every request carries in `params._meta` what a handshake would have agreed on, and its headers repeat
//! what proxies route by, so both have to say the same.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::rpc::{Call, Code, RpcError};

/// The header that names the revision.
const VERSION: &str = "mcp-protocol-version";
const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";

/// Members of `_meta` that stand in for a handshake. Who the client is may be left out.
const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// The revisions that are spoken, the newest last.
const REVISIONS: [(&str, Lifecycle); 5] = [
    ("2024-11-05", Lifecycle::Handshake),
    ("2025-03-26", Lifecycle::Handshake),
    ("2025-06-18", Lifecycle::Handshake),
    (NEWEST_WITH_HANDSHAKE, Lifecycle::Handshake),
    ("2026-07-28", Lifecycle::Stateless),
];
const NEWEST_WITH_HANDSHAKE: &str = "2025-11-25";

/// How a revision has a client begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifecycle {
    /// With `initialize`.
    Handshake,
    /// With any request.
    Stateless,
}

impl Lifecycle {
    /// What the headers name. A revision that is not known here is a later one; [`check`] refuses it.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut named = headers.get_all(VERSION).iter();
        match (named.next(), named.next()) {
            // Clients name none before they have agreed on one, and the oldest never do.
            (None, _) => Self::Handshake,
            (Some(version), None) => find(version.to_str().unwrap_or_default()).unwrap_or(Self::Stateless),
            (Some(_), Some(_)) => Self::Stateless,
        }
    }
}

fn find(version: &str) -> Option<Lifecycle> {
    let found = REVISIONS.iter().find(|(known, _)| *known == version);
    found.map(|(_, lifecycle)| *lifecycle)
}

/// The revision that a handshake agrees on: the one that the client offers, else the newest that has a handshake.
pub(super) fn agreed(offered: Option<&str>) -> &str {
    offered
        .filter(|version| find(version) == Some(Lifecycle::Handshake))
        .unwrap_or(NEWEST_WITH_HANDSHAKE)
}

/// All revisions, the newest first.
pub(super) fn revisions() -> Vec<&'static str> {
    REVISIONS.iter().rev().map(|(version, _)| *version).collect()
}

/// Refuses a revision that is not spoken.
pub(super) fn check_version(headers: &HeaderMap) -> Result<(), RpcError> {
    let version = only(headers, VERSION)?.unwrap_or_default();
    match find(version) {
        Some(Lifecycle::Stateless) => Ok(()),
        _ => Err(unsupported(version)),
    }
}

fn unsupported(version: &str) -> RpcError {
    let text = format!("Unsupported protocol version: {version:.50}");
    RpcError::new(Code::UnsupportedVersion, text).with_data(json!({"supported": revisions(), "requested": version}))
}

/// Refuses a request without a handshake that does not say what it has to, or whose headers say something else than its body.
pub(super) fn check(headers: &HeaderMap, call: &Call) -> Result<(), RpcError> {
    let version = only(headers, VERSION)?;
    let (method, name) = (only(headers, METHOD)?, only(headers, NAME)?);
    let meta = call.params.get("_meta").and_then(Value::as_object);
    let missing = [META_VERSION, META_CAPABILITIES]
        .into_iter()
        .find(|key| !meta.is_some_and(|meta| meta.contains_key(*key)));
    let (Some(meta), None) = (meta, missing) else {
        // Who asks for a revision that nobody knows here may not know what this one asks for either.
        check_version(headers)?;
        let missing = missing.unwrap_or(META_VERSION);
        let text = format!("params._meta: expected an object with {missing}");
        return Err(RpcError::new(Code::InvalidParams, text));
    };
    let mismatch = |header: &str, place: &str| {
        let text = format!("{header}: the header does not say what {place} says");
        Err(RpcError::new(Code::HeaderMismatch, text))
    };
    if version.map(Value::from).as_ref() != meta.get(META_VERSION) {
        return mismatch(VERSION, &format!("params._meta[{META_VERSION:?}]"));
    }
    if method != Some(call.method.as_str()) {
        return mismatch(METHOD, "method");
    }
    if call.method == "tools/call"
        && let Some(called) = call.params.get("name")
        && name.and_then(decoded).map(Value::from).as_ref() != Some(called)
    {
        return mismatch(NAME, "params.name");
    }
    check_version(headers)
}

/// A header's value. Of two, one reader takes the first and another the last.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, RpcError> {
    let refuse = |what: &str| RpcError::new(Code::HeaderMismatch, format!("{name}: {what}"));
    let mut values = headers.get_all(name).iter();
    let value: Option<&HeaderValue> = values.next();
    if values.next().is_some() {
        return Err(refuse("the header is there more than once"));
    }
    let text = value.map(HeaderValue::to_str).transpose();
    text.map_err(|_| refuse("the header holds characters that headers may not hold"))
}

/// A text out of a header: as it stands, or in Base64 between `=?base64?` and `?=`.
fn decoded(value: &str) -> Option<String> {
    let encoded = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    match encoded {
        None => Some(value.to_owned()),
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).ok()?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use towpath_domain::agent::Object;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, HeaderValue::from_str(value).unwrap())
        });
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value);
        }
        headers
    }

    fn call(method: &str, params: Value) -> Call {
        let Value::Object(params) = params else {
            panic!("params are an object");
        };
        Call {
            id: json!(1),
            method: method.to_owned(),
            params,
        }
    }

    fn meta(version: &str) -> Value {
        json!({META_VERSION: version, META_CAPABILITIES: {}})
    }

    #[test]
    fn the_header_decides_whether_there_is_a_handshake() {
        for (version, expected) in [
            (&[][..], Lifecycle::Handshake),
            (&[(VERSION, "2024-11-05")][..], Lifecycle::Handshake),
            (&[(VERSION, "2025-11-25")][..], Lifecycle::Handshake),
            (&[(VERSION, "2026-07-28")][..], Lifecycle::Stateless),
            (&[(VERSION, "2030-01-01")][..], Lifecycle::Stateless),
            (
                &[(VERSION, "2025-11-25"), (VERSION, "2026-07-28")][..],
                Lifecycle::Stateless,
            ),
        ] {
            assert_eq!(Lifecycle::of(&headers(version)), expected, "{version:?}");
        }
        assert_eq!(agreed(Some("2025-03-26")), "2025-03-26");
        for other in [None, Some("2026-07-28"), Some("x")] {
            assert_eq!(agreed(other), NEWEST_WITH_HANDSHAKE);
        }
    }

    #[test]
    fn headers_and_body_say_the_same() {
        let newest = "2026-07-28";
        let list = call("tools/list", json!({"_meta": meta(newest)}));
        let named = call("tools/call", json!({"name": "größe", "_meta": meta(newest)}));
        let (version, method) = ((VERSION, newest), (METHOD, "tools/list"));
        let encoded = "=?base64?Z3LDtsOfZQ==?=";
        for (pairs, call, expected) in [
            (&[version, method][..], &list, None),
            (&[version][..], &list, Some(Code::HeaderMismatch)),
            (
                &[version, (METHOD, "tools/call")][..],
                &list,
                Some(Code::HeaderMismatch),
            ),
            (&[version, method, method][..], &list, Some(Code::HeaderMismatch)),
            (
                &[(VERSION, "2026-07-29"), method][..],
                &list,
                Some(Code::HeaderMismatch),
            ),
            (&[version, (METHOD, "tools/call"), (NAME, encoded)][..], &named, None),
            (
                &[version, (METHOD, "tools/call"), (NAME, "other")][..],
                &named,
                Some(Code::HeaderMismatch),
            ),
            (
                &[version, (METHOD, "tools/call")][..],
                &named,
                Some(Code::HeaderMismatch),
            ),
            (
                &[version, method][..],
                &call("tools/list", json!({})),
                Some(Code::InvalidParams),
            ),
            (
                &[(VERSION, "2030-01-01"), method][..],
                &call("tools/list", json!({})),
                Some(Code::UnsupportedVersion),
            ),
            (
                &[(VERSION, "2030-01-01"), method][..],
                &call("tools/list", json!({"_meta": meta("2030-01-01")})),
                Some(Code::UnsupportedVersion),
            ),
        ] {
            let refused = check(&headers(pairs), call).err().map(|error| error.code);
            assert_eq!(refused, expected, "{pairs:?} {call:?}");
        }
        let silent = Call {
            params: Object::new(),
            ..list
        };
        assert!(check(&headers(&[version, method]), &silent).is_err());
    }
}
