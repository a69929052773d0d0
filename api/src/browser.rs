//! Origin checks for requests from browsers.
//!
//! Web pages can send requests to a server on this machine even if it is not reachable from outside: they can post
//! forms, or use DNS rebinding to make a name of their own resolve to 127.0.0.1. `Host` reveals the latter, `Origin`
//! the former.

use std::net::IpAddr;

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Method, Uri};

/// Hosted studio that people connect to a server on their own machine.
const STUDIO: &str = "smith.langchain.com";

/// Whether a request comes from a page of this server. Browsers report it; older ones send the origin of the page.
pub(crate) fn is_same_origin(headers: &HeaderMap) -> bool {
    if let Some(site) = text(headers, "sec-fetch-site") {
        return site == "same-origin";
    }
    let origin = text(headers, ORIGIN.as_str()).and_then(|origin| origin.parse::<Uri>().ok());
    match (origin.as_ref().and_then(Uri::authority), text(headers, HOST.as_str())) {
        (Some(origin), Some(host)) => origin.as_str().eq_ignore_ascii_case(host),
        _ => false,
    }
}

/// Whether the request's host names this machine or `public`, the configured public address. A request without a host
/// does not come from a browser.
pub(crate) fn has_own_host(headers: &HeaderMap, uri: &Uri, public: Option<&str>) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let told = hosts.next().map(|host| host.to_str().unwrap_or_default());
    if hosts.next().is_some() {
        return false;
    }
    let named = match told.or(uri.authority().map(http::uri::Authority::as_str)) {
        None => return true,
        Some(named) => named.parse::<http::uri::Authority>(),
    };
    let known = public.and_then(|public| public.parse::<Uri>().ok());
    named.is_ok_and(|named| {
        let host = named.host();
        is_local(host) || known.is_some_and(|known| known.host().is_some_and(|known| known.eq_ignore_ascii_case(host)))
    })
}

/// Whether a page may change something on a server of this machine: pages of this machine, and origins that `allowed`
/// accepts. If no origins are configured (`None`), the hosted studio may too.
pub(crate) fn may_act(method: &Method, headers: &HeaderMap, allowed: impl Fn(&str) -> Option<bool>) -> bool {
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return true;
    }
    let Some(origin) = headers.get(ORIGIN) else {
        // Programs send no origin; browsers send it with every request that is not only a read.
        return true;
    };
    let origin = origin.to_str().unwrap_or_default();
    let allowed = allowed(origin);
    if allowed == Some(true) {
        return true;
    }
    let Some(from) = origin.parse::<Uri>().ok().filter(|from| from.scheme().is_some()) else {
        return false;
    };
    let host = from.host().unwrap_or_default();
    let of_studio = from.scheme_str() == Some("https")
        && (host == STUDIO || host.strip_suffix(STUDIO).is_some_and(|sub| sub.ends_with('.')));
    is_local(host) || (of_studio && allowed.is_none())
}

/// Names that always resolve to this machine.
fn is_local(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<IpAddr>() {
        return address.is_loopback();
    }
    let host = host.to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost") || host == "host.docker.internal"
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_headers::headers;

    #[test]
    fn only_posts_of_our_own_pages_are_taken() {
        for ours in [
            &[("sec-fetch-site", "same-origin")][..],
            &[("origin", "http://127.0.0.1:8400"), ("host", "127.0.0.1:8400")],
            &[("origin", "https://towpath.example"), ("host", "towpath.example")],
        ] {
            assert!(is_same_origin(&headers(ours)), "{ours:?}");
        }
        for foreign in [
            &[][..],
            &[("host", "127.0.0.1:8400")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none")],
            // `Sec-Fetch-Site` takes precedence over headers that a proxy may repeat.
            &[("sec-fetch-site", "cross-site"), ("origin", "http://a"), ("host", "a")],
            &[("origin", "http://evil.example"), ("host", "127.0.0.1:8400")],
            &[("origin", "null"), ("host", "127.0.0.1:8400")],
        ] {
            assert!(!is_same_origin(&headers(foreign)), "{foreign:?}");
        }
    }

    #[test]
    fn names_of_this_machine_and_the_public_one() {
        let called = |host: &'static str| {
            let uri = Uri::from_static("/ui/queues");
            has_own_host(&headers(&[("host", host)]), &uri, Some("https://towpath.example/x"))
        };
        for own in [
            "127.0.0.1:8400",
            "127.0.0.1",
            "localhost:8400",
            "LOCALHOST",
            "dash.localhost",
            "[::1]:8400",
            "host.docker.internal:8400",
            "towpath.example",
            "Towpath.Example:443",
        ] {
            assert!(called(own), "{own}");
        }
        for other in [
            "evil.example",
            "evil.example:8400",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "xlocalhost",
            "10.0.0.1:8400",
            "a.towpath.example",
            "",
            "a b",
        ] {
            assert!(!called(other), "{other}");
        }
        let twice = headers(&[("host", "localhost"), ("host", "evil.example")]);
        assert!(!has_own_host(&twice, &Uri::from_static("/"), None));
        assert!(has_own_host(&headers(&[]), &Uri::from_static("/"), None));
    }

    #[test]
    fn pages_of_elsewhere_have_nothing_done() {
        let act = |origin: &'static str, named: Option<&str>| {
            let said = |origin: &str| named.map(|named| named == origin);
            may_act(&Method::POST, &headers(&[("origin", origin)]), said)
        };
        for ours in [
            "http://localhost:3000",
            "http://127.0.0.1:8123",
            "http://[::1]:5173",
            "https://smith.langchain.com",
            "https://eu.smith.langchain.com",
        ] {
            assert!(act(ours, None), "{ours}");
        }
        for foreign in [
            "https://evil.example",
            "null",
            "",
            "http://smith.langchain.com",
            "https://evilsmith.langchain.com",
            "https://smith.langchain.com.evil.example",
            "http://192.168.1.2:3000",
        ] {
            assert!(!act(foreign, None), "{foreign}");
        }
        let named = Some("https://chat.example");
        assert!(act("https://chat.example", named) && act("http://localhost:3000", named));
        assert!(
            !act("https://smith.langchain.com", named),
            "configured origins replace the default"
        );
        assert!(may_act(&Method::POST, &headers(&[]), |_| None), "no browser");
        let foreign = headers(&[("origin", "https://evil.example")]);
        assert!(may_act(&Method::GET, &foreign, |_| None));
    }
}
