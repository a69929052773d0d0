//! What an agent server is told of a request, and what not.

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_SECURITY_POLICY, COOKIE, EXPECT, HOST, HeaderName, UPGRADE};
use http::{HeaderMap, HeaderValue};

use crate::client::Client;
use crate::session;

/// Of one connection only (RFC 9110, section 7.6.1), beside those `Connection` names.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
];

/// The caller's way in, which ends here; and what only a proxy may say.
const CALLER_HEADERS: [&str; 10] = [
    "x-api-key",
    "x-towpath-gateway",
    "x-towpath-gateway-unkeyed",
    "x-tenant-id",
    "x-user-id",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-prefix",
    "x-forwarded-proto",
];

/// What an answer says of its whole origin, and not of itself: the origin is the platform's. A deployment must not empty
/// a browser's storage, have reports of others' requests sent to itself, or say how the address is reached from now on.
const ORIGIN_WIDE: [&str; 10] = [
    "set-cookie",
    "set-cookie2",
    "clear-site-data",
    "nel",
    "report-to",
    "reporting-endpoints",
    "alt-svc",
    "strict-transport-security",
    "public-key-pins",
    "service-worker-allowed",
];

/// Whether the request asks for another protocol, such as WebSocket.
pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE)
}

/// Makes the caller's headers those of the agent server's.
pub(crate) fn filter_request(headers: &mut HeaderMap, prefix: &str, client: Client) {
    let upgrade = headers.get(UPGRADE).cloned();
    let host = headers.get(HOST).cloned();
    strip_hop_by_hop(headers);
    for name in CALLER_HEADERS {
        headers.remove(name);
    }
    headers.remove(EXPECT);
    // Cookies of this address are the dashboard's, and so is this kind of token.
    headers.remove(COOKIE);
    let ours = |value: &HeaderValue| value.to_str().is_ok_and(session::is_token_of);
    if headers.get(AUTHORIZATION).is_some_and(ours) {
        headers.remove(AUTHORIZATION);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(UPGRADE, upgrade);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let mut tell = |name: &'static str, value: Option<HeaderValue>| {
        if let Some(value) = value {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    tell("x-forwarded-prefix", HeaderValue::from_str(prefix).ok());
    tell(
        "x-forwarded-for",
        client
            .address
            .and_then(|address| HeaderValue::from_str(&address.to_string()).ok()),
    );
    let scheme = if client.secure { "https" } else { "http" };
    tell("x-forwarded-proto", Some(HeaderValue::from_static(scheme)));
    tell("x-forwarded-host", host);
}

/// Makes an agent server's headers those of an answer of this address. Its pages are others' and must not act as the
/// dashboard, which has the same address: they say nothing of that address as a whole, and a browser gives them an origin of
/// their own.
pub(super) fn filter_response(headers: &mut HeaderMap) {
    strip_origin_wide(headers);
    let sandbox = HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups");
    headers.append(CONTENT_SECURITY_POLICY, sandbox);
}

/// Takes away what is said of the whole origin.
pub(super) fn strip_origin_wide(headers: &mut HeaderMap) {
    for name in ORIGIN_WIDE {
        headers.remove(name);
    }
}

/// Takes away what is of one connection only.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(UPGRADE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_hops_end_here() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-api-key", "secret"),
            ("x-tenant-id", "t"),
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-prefix", "/evil"),
            ("x-forwarded-proto", "gopher"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("host", "platform.example"),
            ("cookie", "session=dashboard"),
            ("authorization", "Bearer of the agent's own"),
            ("content-type", "application/json"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let client = Client {
            address: Some("9.9.9.9".parse().unwrap()),
            secure: true,
            is_proxied: false,
        };
        filter_request(&mut headers, "/d/one", client);
        for gone in [
            "x-api-key",
            "x-tenant-id",
            "connection",
            "x-hop",
            "transfer-encoding",
            "cookie",
        ] {
            assert!(!headers.contains_key(gone), "{gone}");
        }
        assert_eq!(headers["x-forwarded-prefix"], "/d/one");
        assert_eq!(headers["x-forwarded-for"], "9.9.9.9");
        assert_eq!(headers["x-forwarded-host"], "platform.example");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["authorization"], "Bearer of the agent's own");

        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("bearer tps_abc"));
        filter_request(&mut headers, "/d/one", Client::default());
        assert!(
            !headers.contains_key(AUTHORIZATION),
            "the dashboard's token left the platform"
        );
    }

    #[test]
    fn pages_of_others_do_not_act_as_the_dashboard() {
        let mut headers = HeaderMap::new();
        for name in ORIGIN_WIDE {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("theirs"));
        }
        headers.insert("x-own", HeaderValue::from_static("theirs"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src *"));
        filter_response(&mut headers);
        for name in ORIGIN_WIDE {
            assert!(!headers.contains_key(name), "{name}");
        }
        assert!(headers.contains_key("x-own"));
        let policies: Vec<_> = headers.get_all(CONTENT_SECURITY_POLICY).iter().collect();
        assert!(
            policies.iter().any(|policy| policy.as_bytes().starts_with(b"sandbox")),
            "{policies:?}"
        );
    }

    #[test]
    fn an_upgrade_is_handed_on() {
        let mut headers = HeaderMap::new();
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        filter_request(&mut headers, "/d/one", Client::default());
        assert_eq!(headers[CONNECTION], "upgrade");
        assert_eq!(headers[UPGRADE], "websocket");
    }
}
