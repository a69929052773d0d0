//! How an agent server knows that a request came through the gateway, which has asked for a key.
//!
//! ```text
//! X-Towpath-Gateway: <seconds since 1970>.<hex of HMAC-SHA256(key, "<seconds>\n<method>\n<path and query>")>
//! ```
//! The key is the deployment's own. What is said for one request opens no other, and opens nothing a little later.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hmac::{Hmac, Mac as _};
use http::header::HeaderName;
use http::{HeaderValue, Method, StatusCode, Uri};
use sha2::Sha256;
use towpath_domain::{Clock, Secret};

use super::OPEN;
use crate::agent::AgentError;

const HEADER: HeaderName = HeaderName::from_static("x-towpath-gateway");
/// How far clocks may be apart, and how long a request may be on its way.
const PATIENCE_SECONDS: i64 = 60;

/// Says that the gateway sends this request.
pub(super) fn sign(request: &mut Request, key: &[u8], clock: &Clock) {
    let seconds = clock.now().micros() / 1_000_000;
    let mac = hex::encode(
        mac(key, seconds, request.method(), request.uri())
            .finalize()
            .into_bytes(),
    );
    if let Ok(value) = HeaderValue::from_str(&format!("{seconds}.{mac}")) {
        request.headers_mut().insert(HEADER, value);
    }
}

/// What an agent server checks with: keys with commas between them, each of which lets in.
#[derive(Clone)]
pub(crate) struct Gate {
    keys: Secret,
    clock: Clock,
}

impl Gate {
    pub(crate) const fn new(keys: Secret, clock: Clock) -> Self {
        Self { keys, clock }
    }

    fn lets_in(&self, request: &Request) -> bool {
        let said = request.headers().get(HEADER).and_then(|value| value.to_str().ok());
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
            let mac = mac(&key, seconds, request.method(), request.uri());
            mac.verify_slice(&sent).is_ok()
        });
        is_ours && (now - seconds).abs() <= PATIENCE_SECONDS
    }
}

/// The layer of an agent server that answers only the gateway.
pub(crate) async fn require(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let is_open = request.method() == Method::GET && OPEN.contains(&request.uri().path());
    if !is_open && !gate.lets_in(&request) {
        let text = "this agent server answers only the platform's gateway";
        return AgentError::new(StatusCode::UNAUTHORIZED, text).into_response();
    }
    request.headers_mut().remove(HEADER);
    next.run(request).await
}

fn mac(key: &[u8], seconds: i64, method: &Method, uri: &Uri) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "a key of any length will do")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length will do");
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    mac.update(format!("{seconds}\n{method}\n{path}").as_bytes());
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
        let gate = Gate::new(Secret::new(hex::encode(key)), clock.clone());
        let request = |method: &str, uri: &str| Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
        assert!(!gate.lets_in(&request("GET", "/threads")));
        let mut signed = request("POST", "/threads?x=1");
        sign(&mut signed, &key, &clock);
        assert!(gate.lets_in(&signed));
        let several = format!("{},{}", hex::encode([8_u8; 32]), hex::encode(key));
        let rotated = Gate::new(Secret::new(several), clock.clone());
        assert!(rotated.lets_in(&signed), "each of several keys lets in");
        let said = signed.headers()[HEADER].clone();
        let with = |mut request: Request, said: &HeaderValue| {
            request.headers_mut().insert(HEADER, said.clone());
            request
        };
        assert!(
            !gate.lets_in(&with(request("GET", "/threads?x=1"), &said)),
            "another method"
        );
        assert!(
            !gate.lets_in(&with(request("POST", "/threads?x=2"), &said)),
            "another query"
        );
        let mut other = request("POST", "/threads?x=1");
        sign(&mut other, &[8; 32], &clock);
        assert!(!gate.lets_in(&other), "another deployment's key");
        for rubbish in ["", ".", "x.y", "1.", "99999999999999999999.00"] {
            assert!(!gate.lets_in(&with(
                request("POST", "/threads?x=1"),
                &HeaderValue::from_str(rubbish).unwrap()
            )));
        }
        clock.advance(Duration::from_secs(61));
        assert!(!gate.lets_in(&signed), "later");
    }
}
