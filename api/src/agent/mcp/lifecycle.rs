//! Revisions of the protocol, and what each wants of a request.
//!
//! Up to 2025-11-25 a client begins with `initialize` and names the revision in a header from then on. Since 2026-07-28 there
//! is no handshake: every request carries in `params._meta` what a handshake would have agreed on, and its headers repeat
//! what proxies route by, so both have to say the same.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::rpc::{Call, ErrorCode, RpcError};

/// The header that names the revision.
const VERSION_HEADER: &str = "mcp-protocol-version";
const METHOD_HEADER: &str = "mcp-method";
const NAME_HEADER: &str = "mcp-name";

/// Members of `_meta` that stand in for a handshake. Who the client is may be left out.
const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// The revisions that are spoken, the newest last.
const REVISIONS: [(&str, Lifecycle); 5] = [
    ("2024-11-05", Lifecycle::Handshake),
    (REVISION_WITH_BATCHES, Lifecycle::Handshake),
    ("2025-06-18", Lifecycle::Handshake),
    (NEWEST_WITH_HANDSHAKE, Lifecycle::Handshake),
    ("2026-07-28", Lifecycle::Stateless),
];
const NEWEST_WITH_HANDSHAKE: &str = "2025-11-25";
/// The only revision with batches. It has no header for the revision, so a request without one is of this revision.
const REVISION_WITH_BATCHES: &str = "2025-03-26";

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
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        let mut named = headers.get_all(VERSION_HEADER).iter();
        match (named.next(), named.next()) {
            // Clients name none before they have agreed on one, and the oldest never do.
            (None, _) => Self::Handshake,
            (Some(version), None) => lifecycle_of(version.to_str().unwrap_or_default()).unwrap_or(Self::Stateless),
            (Some(_), Some(_)) => Self::Stateless,
        }
    }

    /// What a request names. One whose body names a revision without a handshake is of that, whatever its headers leave out;
    /// [`check`] compares the two.
    pub(super) fn of_request(headers: &HeaderMap, call: &Call) -> Self {
        let told = Self::from_headers(headers);
        let meta = call.params.get("_meta").and_then(|meta| meta.get(META_VERSION));
        match meta {
            Some(version) if told == Self::Handshake && call.method != "initialize" => {
                let known = version.as_str().and_then(lifecycle_of);
                known.unwrap_or(Self::Stateless)
            }
            _ => told,
        }
    }
}

fn lifecycle_of(version: &str) -> Option<Lifecycle> {
    let found = REVISIONS.iter().find(|(known, _)| *known == version);
    found.map(|(_, lifecycle)| *lifecycle)
}

/// The revision that a handshake agrees on: the one that the client offers, else the newest that has a handshake.
pub(super) fn negotiate_version(offered: Option<&str>) -> &str {
    offered
        .filter(|version| lifecycle_of(version) == Some(Lifecycle::Handshake))
        .unwrap_or(NEWEST_WITH_HANDSHAKE)
}

/// All revisions, the newest first.
pub(super) fn revisions() -> Vec<&'static str> {
    REVISIONS.iter().rev().map(|(version, _)| *version).collect()
}

/// Refuses a revision that is not spoken.
pub(super) fn check_version(headers: &HeaderMap) -> Result<(), RpcError> {
    let version = single_header(headers, VERSION_HEADER)?.unwrap_or_default();
    match lifecycle_of(version) {
        Some(Lifecycle::Stateless) => Ok(()),
        _ => Err(unsupported_version(version)),
    }
}

/// Refuses a batch in a revision that has none.
pub(super) fn check_batch(headers: &HeaderMap) -> Result<(), RpcError> {
    match single_header(headers, VERSION_HEADER)? {
        None | Some(REVISION_WITH_BATCHES) => Ok(()),
        Some(version) if lifecycle_of(version).is_none() => Err(unsupported_version(version)),
        Some(version) => {
            let text = format!("Expected one JSON-RPC message as an object: revision {version} has no batches");
            Err(RpcError::new(ErrorCode::InvalidRequest, text))
        }
    }
}

fn unsupported_version(version: &str) -> RpcError {
    let text = format!("Unsupported protocol version: {version:.50}");
    RpcError::new(ErrorCode::UnsupportedVersion, text)
        .with_data(json!({"supported": revisions(), "requested": version}))
}

/// Refuses a request without a handshake that does not say what it has to, or whose headers say something else than its body.
pub(super) fn check(headers: &HeaderMap, call: &Call) -> Result<(), RpcError> {
    let version = single_header(headers, VERSION_HEADER)?;
    let (method, name) = (
        single_header(headers, METHOD_HEADER)?,
        single_header(headers, NAME_HEADER)?,
    );
    let meta = call.params.get("_meta").and_then(Value::as_object);
    let missing = [META_VERSION, META_CAPABILITIES]
        .into_iter()
        .find(|key| !meta.is_some_and(|meta| meta.contains_key(*key)));
    let (Some(meta), None) = (meta, missing) else {
        // Who asks for a revision that nobody knows here may not know what this one asks for either.
        check_version(headers)?;
        let missing = missing.unwrap_or(META_VERSION);
        let text = format!("params._meta: expected an object with {missing}");
        return Err(RpcError::new(ErrorCode::InvalidParams, text));
    };
    let mismatch = |header: &str, place: &str| {
        let text = format!("{header}: the header does not say what {place} says");
        Err(RpcError::new(ErrorCode::HeaderMismatch, text))
    };
    if version.map(Value::from).as_ref() != meta.get(META_VERSION) {
        return mismatch(VERSION_HEADER, &format!("params._meta[{META_VERSION:?}]"));
    }
    if method != Some(call.method.as_str()) {
        return mismatch(METHOD_HEADER, "method");
    }
    if call.method == "tools/call"
        && let Some(called) = call.params.get("name")
        && name.and_then(decode_header).map(Value::from).as_ref() != Some(called)
    {
        return mismatch(NAME_HEADER, "params.name");
    }
    check_version(headers)
}

/// A header's value. Of two, one reader takes the first and another the last.
fn single_header<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, RpcError> {
    let refuse = |what: &str| RpcError::new(ErrorCode::HeaderMismatch, format!("{name}: {what}"));
    let mut values = headers.get_all(name).iter();
    let value: Option<&HeaderValue> = values.next();
    if values.next().is_some() {
        return Err(refuse("the header is there more than once"));
    }
    let text = value.map(HeaderValue::to_str).transpose();
    text.map_err(|_| refuse("the header holds characters that headers may not hold"))
}

/// A text out of a header: as it stands, or in Base64 between `=?base64?` and `?=`.
fn decode_header(value: &str) -> Option<String> {
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
    use crate::test_headers::headers;

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
            (&[(VERSION_HEADER, "2024-11-05")][..], Lifecycle::Handshake),
            (&[(VERSION_HEADER, "2025-11-25")][..], Lifecycle::Handshake),
            (&[(VERSION_HEADER, "2026-07-28")][..], Lifecycle::Stateless),
            (&[(VERSION_HEADER, "2030-01-01")][..], Lifecycle::Stateless),
            (
                &[(VERSION_HEADER, "2025-11-25"), (VERSION_HEADER, "2026-07-28")][..],
                Lifecycle::Stateless,
            ),
        ] {
            assert_eq!(Lifecycle::from_headers(&headers(version)), expected, "{version:?}");
        }
        assert_eq!(negotiate_version(Some("2025-03-26")), "2025-03-26");
        for other in [None, Some("2026-07-28"), Some("x")] {
            assert_eq!(negotiate_version(other), NEWEST_WITH_HANDSHAKE);
        }
    }

    #[test]
    fn a_body_without_a_handshake_needs_no_header_to_be_known() {
        let newest = "2026-07-28";
        for (header, method, meta_version, expected) in [
            (None, "tools/list", None, Lifecycle::Handshake),
            (None, "tools/list", Some(newest), Lifecycle::Stateless),
            (None, "tools/list", Some("2030-01-01"), Lifecycle::Stateless),
            (None, "tools/list", Some("2025-11-25"), Lifecycle::Handshake),
            (Some("2025-11-25"), "tools/list", Some(newest), Lifecycle::Stateless),
            (None, "initialize", Some(newest), Lifecycle::Handshake),
            (Some(newest), "initialize", Some(newest), Lifecycle::Stateless),
        ] {
            let named: Vec<_> = header.into_iter().map(|version| (VERSION_HEADER, version)).collect();
            let params = meta_version.map_or_else(|| json!({}), |version| json!({"_meta": meta(version)}));
            let call = call(method, params);
            let headers = headers(&named);
            assert_eq!(Lifecycle::of_request(&headers, &call), expected, "{header:?} {call:?}");
            if header != Some(newest) && expected == Lifecycle::Stateless {
                let refused = check(&headers, &call).expect_err("the header is missing or another one");
                assert_eq!(refused.code, ErrorCode::HeaderMismatch);
            }
        }
    }

    #[test]
    fn only_one_revision_has_batches() {
        for (version, expected) in [
            (None, None),
            (Some("2025-03-26"), None),
            (Some("2024-11-05"), Some(ErrorCode::InvalidRequest)),
            (Some("2025-06-18"), Some(ErrorCode::InvalidRequest)),
            (Some("2025-11-25"), Some(ErrorCode::InvalidRequest)),
            (Some("2026-07-28"), Some(ErrorCode::InvalidRequest)),
            (Some("2030-01-01"), Some(ErrorCode::UnsupportedVersion)),
        ] {
            let named: Vec<_> = version.into_iter().map(|version| (VERSION_HEADER, version)).collect();
            let refused = check_batch(&headers(&named)).err().map(|error| error.code);
            assert_eq!(refused, expected, "{version:?}");
        }
    }

    #[test]
    fn headers_and_body_say_the_same() {
        let newest = "2026-07-28";
        let list = call("tools/list", json!({"_meta": meta(newest)}));
        let named = call("tools/call", json!({"name": "größe", "_meta": meta(newest)}));
        let (version, method) = ((VERSION_HEADER, newest), (METHOD_HEADER, "tools/list"));
        let encoded = "=?base64?Z3LDtsOfZQ==?=";
        for (pairs, call, expected) in [
            (&[version, method][..], &list, None),
            (&[version][..], &list, Some(ErrorCode::HeaderMismatch)),
            (
                &[version, (METHOD_HEADER, "tools/call")][..],
                &list,
                Some(ErrorCode::HeaderMismatch),
            ),
            (&[version, method, method][..], &list, Some(ErrorCode::HeaderMismatch)),
            (
                &[(VERSION_HEADER, "2026-07-29"), method][..],
                &list,
                Some(ErrorCode::HeaderMismatch),
            ),
            (
                &[version, (METHOD_HEADER, "tools/call"), (NAME_HEADER, encoded)][..],
                &named,
                None,
            ),
            (
                &[version, (METHOD_HEADER, "tools/call"), (NAME_HEADER, "other")][..],
                &named,
                Some(ErrorCode::HeaderMismatch),
            ),
            (
                &[version, (METHOD_HEADER, "tools/call")][..],
                &named,
                Some(ErrorCode::HeaderMismatch),
            ),
            (
                &[version, method][..],
                &call("tools/list", json!({})),
                Some(ErrorCode::InvalidParams),
            ),
            (
                &[(VERSION_HEADER, "2030-01-01"), method][..],
                &call("tools/list", json!({})),
                Some(ErrorCode::UnsupportedVersion),
            ),
            (
                &[(VERSION_HEADER, "2030-01-01"), method][..],
                &call("tools/list", json!({"_meta": meta("2030-01-01")})),
                Some(ErrorCode::UnsupportedVersion),
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
