//! The HTTP client of the commands: one server, one key.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use reqwest::header::{
    CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use reqwest::{Body, ClientBuilder, Method, RequestBuilder, Response, StatusCode, Upgraded};
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use towpath_domain::Secret;
use url::{Host, Url};

use crate::arguments::remote::ServerOptions;
use crate::exit::{Unreachable, Usage};

/// Long enough for a large file over a slow connection.
const STREAM_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

pub struct Client {
    http: reqwest::Client,
    /// Headers of every request.
    headers: HeaderMap,
    /// Whether the server is on this machine.
    is_local_server: bool,
    base: Url,
    /// Where a key was searched, if none is sent: agent servers on this machine need none.
    missing_key_file: Option<PathBuf>,
}

impl Client {
    pub fn new(options: &ServerOptions) -> anyhow::Result<Self> {
        let base: Url = options
            .server
            .parse()
            .ok()
            .filter(|url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| Usage("--server: expected an address such as http://127.0.0.1:8400".to_owned()))?;
        let here = is_local_server(&base);
        let file = key_file(options.data_dir.as_ref());
        let key = match (&options.api_key, here) {
            (Some(key), _) => Some(key.clone()),
            (None, true) => std::fs::read_to_string(&file).ok().map(Secret::new),
            (None, false) => return Err(Usage("an API key is required: set TOWPATH_API_KEY".to_owned()).into()),
        };
        let mut headers = HeaderMap::new();
        if let Some(key) = &key {
            let mut key = HeaderValue::from_str(key.reveal().trim())
                .map_err(|_| Usage("the API key contains invalid characters".to_owned()))?;
            key.set_sensitive(true);
            headers.insert("x-api-key", key);
        }
        if let Some(tenant) = options.tenant {
            headers.insert("x-tenant-id", HeaderValue::from_str(&tenant.to_string())?);
        }
        Ok(Self {
            http: builder(headers.clone(), here).build().context("the HTTP client")?,
            headers,
            is_local_server: here,
            base,
            missing_key_file: key.is_none().then_some(file),
        })
    }

    pub async fn get(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Value> {
        self.call(Method::GET, path, query, None).await
    }

    /// GET of data that is not JSON.
    pub async fn download(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Bytes> {
        let (_, bytes) = self.ask(Method::GET, path, query, None).await?;
        Ok(bytes)
    }

    /// GET whose response is streamed, without a time limit.
    pub async fn stream(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Response> {
        self.send_checked(self.http.get(self.url(path)).query(query).timeout(STREAM_TIMEOUT))
            .await
    }

    /// POST of a streamed body, without a time limit.
    pub async fn upload(
        &self,
        path: &str,
        query: &[(&str, String)],
        content_type: &str,
        body: Body,
    ) -> anyhow::Result<Value> {
        let request = self.http.post(self.url(path)).query(query).timeout(STREAM_TIMEOUT);
        let answer = self
            .send_checked(request.header(CONTENT_TYPE, content_type).body(body))
            .await?;
        answer.json().await.map_err(|error| self.unreachable(&error))
    }

    /// Opens a WebSocket.
    pub async fn socket(&self, path: &str) -> anyhow::Result<WebSocketStream<Upgraded>> {
        // HTTP/2 has no upgrades.
        let http = builder(self.headers.clone(), self.is_local_server).http1_only().build();
        let http = http.context("the HTTP client")?;
        let key = generate_key();
        let request = http
            .get(self.url(path))
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key);
        let answer = self.send_checked(request).await?;
        let accepted = answer.headers().get(SEC_WEBSOCKET_ACCEPT);
        if accepted.is_none_or(|accepted| accepted.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes()) {
            bail!(
                "{} does not open a WebSocket; does a proxy in between block it?",
                self.base
            );
        }
        let upgraded = answer.upgrade().await.map_err(|error| self.unreachable(&error))?;
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await)
    }

    pub async fn post(&self, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        self.call(Method::POST, path, &[], body).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::PATCH, path, &[], Some(body)).await
    }

    pub async fn delete(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Value> {
        self.call(Method::DELETE, path, query, None).await
    }

    /// Reads a list page by page, up to `limit` items.
    pub async fn list(&self, path: &str, query: &[(&str, String)], limit: u64) -> anyhow::Result<Vec<Value>> {
        let mut items: Vec<Value> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let left = limit.saturating_sub(items.len() as u64);
            let mut query = query.to_vec();
            query.push(("limit", left.clamp(1, 1000).to_string()));
            query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let mut answer = self.get(path, &query).await?;
            if let Value::Array(page) = answer["items"].take() {
                items.extend(page);
            }
            cursor = answer["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() || items.len() as u64 >= limit {
                return Ok(items);
            }
        }
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let (status, bytes) = self.ask(method, path, query, body).await?;
        if status == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|_| {
            anyhow!(
                "{} answered something that is not JSON; is it a towpath server?",
                self.base
            )
        })
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let mut request = self.http.request(method, self.url(path)).query(query);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = self.send_checked(request).await?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        Ok((status, bytes))
    }

    fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url.set_query(None);
        url
    }

    /// Sends a request and checks its status.
    async fn send_checked(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(answer);
        }
        let bytes = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        let said = refusal(&String::from_utf8_lossy(&bytes))
            .unwrap_or_else(|| status.canonical_reason().unwrap_or("no reason given").to_owned());
        match (status, &self.missing_key_file) {
            (StatusCode::UNAUTHORIZED, Some(file)) => Err(Usage(format!(
                "an API key is required: set TOWPATH_API_KEY, or run this in the folder of towpath dev \
                 ({} does not exist)",
                file.display()
            ))
            .into()),
            _ => Err(Self::refused(status, &said)),
        }
    }

    fn refused(status: StatusCode, said: &str) -> anyhow::Error {
        match status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                Unreachable(format!("the server cannot work right now: {said}")).into()
            }
            StatusCode::UNAUTHORIZED => anyhow!(
                "{said} (the key is taken from --api-key, else TOWPATH_API_KEY, else the data folder of towpath dev)"
            ),
            _ => anyhow!("{said}"),
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> anyhow::Error {
        let why = if error.is_timeout() {
            "no answer in time"
        } else if error.is_connect() {
            "no connection; is it running?"
        } else {
            "the connection broke"
        };
        let server = self.base.as_str().trim_end_matches('/');
        Unreachable(format!("cannot reach {server}: {why}")).into()
    }
}

fn builder(headers: HeaderMap, here: bool) -> ClientBuilder {
    let http = reqwest::Client::builder()
        .default_headers(headers)
        .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(5))
        .timeout(Duration::from_secs(120))
        // A redirect must not carry the key to another server.
        .redirect(reqwest::redirect::Policy::none());
    // No proxy applies to a server on this machine.
    if here { http.no_proxy() } else { http }
}

/// Encodes user input as a path segment.
pub fn segment(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes())
        .collect::<String>()
        .replace('+', "%20")
}

fn is_local_server(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// The message of an error response: `detail` as text, as a list of problems or with a `message`, or `details` of the
/// tracing routes.
fn refusal(text: &str) -> Option<String> {
    let body: Value = serde_json::from_str(text).ok()?;
    let said = [&body["detail"], &body["detail"]["message"], &body["details"]];
    if let Some(text) = said.into_iter().find_map(Value::as_str) {
        return Some(text.to_owned());
    }
    let issues = body["detail"].as_array()?;
    let said = issues.iter().map(|issue| {
        let place = issue["loc"].as_array().into_iter().flatten().skip(1);
        let place: Vec<String> = place
            .map(|step| step.as_str().map_or_else(|| step.to_string(), str::to_owned))
            .collect();
        format!("{}: {}", place.join("."), issue["msg"].as_str().unwrap_or("wrong"))
    });
    Some(said.collect::<Vec<_>>().join("; "))
}

/// Default path of the first key of `towpath dev`.
fn key_file(data_dir: Option<&PathBuf>) -> PathBuf {
    data_dir.cloned().unwrap_or_else(|| ".towpath".into()).join("api.key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_read_in_every_shape() {
        assert_eq!(refusal(r#"{"detail":"job not found"}"#).unwrap(), "job not found");
        let list = r#"{"detail":[{"loc":["query","limit"],"msg":"expected 1 to 1000","type":"value_error"}]}"#;
        assert_eq!(refusal(list).unwrap(), "limit: expected 1 to 1000");
        assert_eq!(refusal(r#"{"error":"x","details":"too much"}"#).unwrap(), "too much");
        let nested = r#"{"detail":{"error":"NotFound","message":"Sandbox 'a' not found"}}"#;
        assert_eq!(refusal(nested).unwrap(), "Sandbox 'a' not found");
        assert_eq!(refusal("<html>"), None);
    }

    #[test]
    fn names_stay_in_their_segment() {
        assert_eq!(segment("a b/../c?d"), "a%20b%2F..%2Fc%3Fd");
    }

    #[test]
    fn a_kept_key_goes_to_this_machine_only() {
        for here in ["http://127.0.0.1:8400", "http://localhost", "http://[::1]:1"] {
            assert!(is_local_server(&here.parse().unwrap()), "{here}");
        }
        for there in ["http://10.0.0.1", "https://localhost.example", "http://0.0.0.0"] {
            assert!(!is_local_server(&there.parse().unwrap()), "{there}");
        }
    }
}
