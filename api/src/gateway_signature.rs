//! How an agent server knows that a request came through the gateway, which has asked for a key.
//!
//! ```text
//! X-Towpath-Gateway: <seconds since 1970>.<hex of HMAC-SHA256(key, "<seconds>\n<method>\n<path and query>")>
//! ```
//! The key is the deployment's own. What is said for one request opens no other, and opens nothing a little later.
//!
//! For a caller without a key the gateway says so, where a deployment may judge its callers itself:
//!
//! ```text
//! X-Towpath-Gateway-Unkeyed: <seconds>.<hex of HMAC-SHA256(key, "unkeyed\n<seconds>\n<method>\n<path and query>")>
//! ```
//! An agent server whose graphs have no auth of their own takes none of these requests, and neither does one that does not
//! know the header.

use axum::extract::Request;
use hmac::{Hmac, Mac as _};
use http::header::HeaderName;
use http::{HeaderValue, Method, Uri};
use sha2::Sha256;
use towpath_domain::{Clock, Secret};

use crate::paths;

/// What an agent server answers to everybody.
pub(crate) const OPEN_PATHS: [&str; 4] = ["/ok", "/info", "/docs", "/openapi.json"];

const HEADER: HeaderName = HeaderName::from_static("x-towpath-gateway");
const UNKEYED: HeaderName = HeaderName::from_static("x-towpath-gateway-unkeyed");
/// How far clocks may be apart, and how long a request may be on its way.
const CLOCK_TOLERANCE_SECONDS: i64 = 60;

/// What an agent server offers beside its open pages without asking who calls: for who has a key of the platform.
const SYSTEM_ROUTES: [&str; 4] = ["/", "/livez", "/readyz", "/metrics"];

/// What the gateway says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assertion {
    /// Its caller may call, or everybody may.
    Keyed,
    /// Its caller showed no key, and is the deployment's to judge.
    Unkeyed,
}

impl Assertion {
    const fn header(self) -> HeaderName {
        match self {
            Self::Keyed => HEADER,
            Self::Unkeyed => UNKEYED,
        }
    }
}

/// A request that its own auth has to judge: its caller showed no key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnkeyedCaller;

/// Says that the gateway sends this request.
pub(crate) fn sign(request: &mut Request, key: &[u8], clock: &Clock, said: Assertion) {
    let seconds = clock.now().micros() / 1_000_000;
    let mac = hex::encode(
        mac(key, said, seconds, request.method(), request.uri())
            .finalize()
            .into_bytes(),
    );
    if let Ok(value) = HeaderValue::from_str(&format!("{seconds}.{mac}")) {
        request.headers_mut().insert(said.header(), value);
    }
}

/// What an agent server checks with: keys separated by commas, each of which lets in.
#[derive(Clone)]
pub(crate) struct SignatureVerifier {
    keys: Secret,
    clock: Clock,
    /// Where the graphs' own auth judges callers: what stands before the paths of the agent server.
    own_auth_prefix: Option<String>,
}

impl SignatureVerifier {
    pub(crate) const fn new(keys: Secret, clock: Clock) -> Self {
        Self {
            keys,
            clock,
            own_auth_prefix: None,
        }
    }

    /// For an agent server whose graphs' own auth judges every caller.
    pub(crate) fn with_own_auth(self, mount_prefix: &str) -> Self {
        Self {
            own_auth_prefix: Some(mount_prefix.trim_end_matches('/').to_owned()),
            ..self
        }
    }

    /// Whether the gateway sent a request, or everybody may send it. Takes the gateway's word off it and leaves
    /// [`UnkeyedCaller`] there if it applies.
    pub(crate) fn admit(&self, request: &mut Request) -> bool {
        let is_open = request.method() == Method::GET && OPEN_PATHS.contains(&request.uri().path());
        let is_signed = self.is_signed(request);
        let is_unkeyed = !is_signed && self.leaves_to_own_auth(request);
        if is_unkeyed {
            request.extensions_mut().insert(UnkeyedCaller);
        }
        request.headers_mut().remove(HEADER);
        request.headers_mut().remove(UNKEYED);
        is_open || is_unkeyed || is_signed
    }

    fn is_signed(&self, request: &Request) -> bool {
        self.verify(request, Assertion::Keyed)
    }

    /// Whether the gateway leaves this caller to an auth that there is.
    fn leaves_to_own_auth(&self, request: &Request) -> bool {
        let Some(prefix) = &self.own_auth_prefix else {
            return false;
        };
        let path = request.uri().path();
        let within = path.strip_prefix(prefix.as_str()).unwrap_or(path);
        let is_of_system = [path, within]
            .iter()
            .any(|path| path.is_empty() || SYSTEM_ROUTES.contains(path) || paths::is_operators(path));
        !is_of_system && self.verify(request, Assertion::Unkeyed)
    }

    fn verify(&self, request: &Request, what: Assertion) -> bool {
        let said = request
            .headers()
            .get(what.header())
            .and_then(|value| value.to_str().ok());
        let Some((seconds, sent)) = said.and_then(|said| said.split_once('.')) else {
            return false;
        };
        let (Ok(seconds), Ok(sent)) = (seconds.parse::<i64>(), hex::decode(sent)) else {
            return false;
        };
        let now = self.clock.now().micros() / 1_000_000;
        let mut keys = self
            .keys
            .reveal()
            .split(',')
            .filter_map(|key| hex::decode(key.trim()).ok());
        // In constant time.
        let is_ours = keys.any(|key| {
            let mac = mac(&key, what, seconds, request.method(), request.uri());
            mac.verify_slice(&sent).is_ok()
        });
        is_ours && (now - seconds).abs() <= CLOCK_TOLERANCE_SECONDS
    }
}

fn mac(key: &[u8], said: Assertion, seconds: i64, method: &Method, uri: &Uri) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "a key of any length will do")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length will do");
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let kind = match said {
        Assertion::Keyed => "",
        Assertion::Unkeyed => "unkeyed\n",
    };
    mac.update(format!("{kind}{seconds}\n{method}\n{path}").as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use towpath_domain::Timestamp;

    use super::*;

    #[test]
    fn only_what_the_gateway_says_lets_in_and_only_there_and_then() {
        let clock = Clock::stopped(Timestamp::parse("2026-03-01T12:00:00Z").unwrap());
        let key = [7_u8; 32];
        let gate = SignatureVerifier::new(Secret::new(hex::encode(key)), clock.clone());
        let request = |method: &str, uri: &str| Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
        assert!(!gate.is_signed(&request("GET", "/threads")));
        let mut signed = request("POST", "/threads?x=1");
        sign(&mut signed, &key, &clock, Assertion::Keyed);
        assert!(gate.is_signed(&signed));
        let several = format!("{},{}", hex::encode([8_u8; 32]), hex::encode(key));
        let rotated = SignatureVerifier::new(Secret::new(several), clock.clone());
        assert!(rotated.is_signed(&signed), "each of several keys lets in");
        let said = signed.headers()[HEADER].clone();
        let with = |mut request: Request, said: &HeaderValue| {
            request.headers_mut().insert(HEADER, said.clone());
            request
        };
        assert!(
            !gate.is_signed(&with(request("GET", "/threads?x=1"), &said)),
            "another method"
        );
        assert!(
            !gate.is_signed(&with(request("POST", "/threads?x=2"), &said)),
            "another query"
        );
        let mut other = request("POST", "/threads?x=1");
        sign(&mut other, &[8; 32], &clock, Assertion::Keyed);
        assert!(!gate.is_signed(&other), "another deployment's key");
        for rubbish in ["", ".", "x.y", "1.", "99999999999999999999.00"] {
            assert!(!gate.is_signed(&with(
                request("POST", "/threads?x=1"),
                &HeaderValue::from_str(rubbish).unwrap()
            )));
        }
        clock.advance(Duration::from_secs(61));
        assert!(!gate.is_signed(&signed), "later");
    }

    #[test]
    fn a_caller_without_a_key_is_let_in_only_where_graphs_judge() {
        let clock = Clock::stopped(Timestamp::parse("2026-03-01T12:00:00Z").unwrap());
        let key = [7_u8; 32];
        let plain = SignatureVerifier::new(Secret::new(hex::encode(key)), clock.clone());
        let judging = plain.clone().with_own_auth("/mine/");
        let unkeyed = |uri: &str| {
            let mut request = Request::builder().method("GET").uri(uri).body(Body::empty()).unwrap();
            sign(&mut request, &key, &clock, Assertion::Unkeyed);
            request
        };
        let asked = unkeyed("/mine/threads");
        assert!(judging.leaves_to_own_auth(&asked));
        assert!(
            !judging.is_signed(&asked) && !plain.is_signed(&asked),
            "it is no other request"
        );
        assert!(!plain.leaves_to_own_auth(&asked), "no auth judges here");
        for closed in [
            "/",
            "/metrics",
            "/mine",
            "/mine/",
            "/mine/metrics",
            "/internal/jobs",
            "/mine/internal/jobs",
        ] {
            assert!(!judging.leaves_to_own_auth(&unkeyed(closed)), "{closed}");
        }
        // What was said of a request whose caller has a key says nothing of one without, and the other way round.
        let mut swapped = unkeyed("/mine/threads");
        let said = swapped.headers_mut().remove(UNKEYED).unwrap();
        swapped.headers_mut().insert(HEADER, said);
        assert!(!judging.is_signed(&swapped));
    }
}
