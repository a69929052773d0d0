//! The HTTP client of the commands: one server, one key.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use serde_json::Value;
use towpath_domain::Secret;
use url::{Host, Url};

use super::arguments::ServerOptions;
use super::key_file;
use crate::exit::{Unreachable, Usage};

/// Talks to one server.
pub struct Client {
    http: reqwest::Client,
    base: Url,
    /// Where a key was looked for, when none is sent: agent servers on this machine ask for none.
    keyless: Option<PathBuf>,
}

impl Client {
    /// For the server and the key that the options name.
    ///
    /// # Errors
    /// Wrong usage: an address that is none, no key.
    pub fn new(options: &ServerOptions) -> anyhow::Result<Self> {
        let base: Url = options
            .server
            .parse()
            .ok()
            .filter(|url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| Usage("--server: expected an address such as http://127.0.0.1:8400".to_owned()))?;
        let here = is_here(&base);
        let file = key_file(options.data_dir.as_ref());
        let key = match (&options.api_key, here) {
            (Some(key), _) => Some(key.clone()),
            (None, true) => std::fs::read_to_string(&file).ok().map(Secret::new),
            (None, false) => return Err(Usage("an API key is needed: set TOWPATH_API_KEY".to_owned()).into()),
        };
        let mut headers = HeaderMap::new();
        if let Some(key) = &key {
            let mut key = HeaderValue::from_str(key.reveal().trim())
                .map_err(|_| Usage("the API key has characters that no key has".to_owned()))?;
            key.set_sensitive(true);
            headers.insert("x-api-key", key);
        }
        if let Some(tenant) = options.tenant {
            headers.insert("x-tenant-id", HeaderValue::from_str(&tenant.to_string())?);
        }
        let mut http = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(5))
            .timeout(Duration::from_secs(120))
            // A key must not follow to wherever an answer points.
            .redirect(reqwest::redirect::Policy::none());
        if here {
            // On this machine, whatever proxy the environment names.
            http = http.no_proxy();
        }
        Ok(Self {
            http: http.build().context("the HTTP client")?,
            base,
            keyless: key.is_none().then_some(file),
        })
    }

    /// GET.
    ///
    /// # Errors
    /// What the server refuses, in its words; [`Unreachable`].
    pub async fn get(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Value> {
        self.call(Method::GET, path, query, None).await
    }

    /// GET of what is not JSON.
    ///
    /// # Errors
    /// What the server refuses, in its words; [`Unreachable`].
    pub async fn download(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Bytes> {
        let (_, bytes) = self.ask(Method::GET, path, query, None).await?;
        Ok(bytes)
    }

    /// POST, with a body where there is one.
    ///
    /// # Errors
    /// What the server refuses, in its words; [`Unreachable`].
    pub async fn post(&self, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        self.call(Method::POST, path, &[], body).await
    }

    /// PATCH.
    ///
    /// # Errors
    /// What the server refuses, in its words; [`Unreachable`].
    pub async fn patch(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::PATCH, path, &[], Some(body)).await
    }

    /// DELETE.
    ///
    /// # Errors
    /// What the server refuses, in its words; [`Unreachable`].
    pub async fn delete(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Value> {
        self.call(Method::DELETE, path, query, None).await
    }

    /// The items of a list that is read on by its cursor, at most `limit`.
    ///
    /// # Errors
    /// What the server refuses, in its words; [`Unreachable`].
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

    /// The answer to what the server did not refuse.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url.set_query(None);
        let mut request = self.http.request(method, url).query(query);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        if status.is_success() {
            return Ok((status, bytes));
        }
        let said = refusal(&String::from_utf8_lossy(&bytes))
            .unwrap_or_else(|| status.canonical_reason().unwrap_or("no reason given").to_owned());
        match (status, &self.keyless) {
            (StatusCode::UNAUTHORIZED, Some(file)) => Err(Usage(format!(
                "an API key is needed: set TOWPATH_API_KEY, or run this where towpath dev keeps its data (there is no {})",
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
            "it does not answer in time"
        } else if error.is_connect() {
            "no connection; is it running?"
        } else {
            "the connection broke"
        };
        let server = self.base.as_str().trim_end_matches('/');
        Unreachable(format!("cannot reach {server}: {why}")).into()
    }
}

/// A path segment of text that people gave.
pub fn segment(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes())
        .collect::<String>()
        .replace('+', "%20")
}

fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// What a refusal says: `detail` as a text or as a list of what is wrong, or `details` of the tracing routes.
fn refusal(text: &str) -> Option<String> {
    let body: Value = serde_json::from_str(text).ok()?;
    if let Some(text) = body["detail"].as_str().or(body["details"].as_str()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_read_in_every_shape() {
        assert_eq!(refusal(r#"{"detail":"job not found"}"#).unwrap(), "job not found");
        let list = r#"{"detail":[{"loc":["query","limit"],"msg":"expected 1 to 1000","type":"value_error"}]}"#;
        assert_eq!(refusal(list).unwrap(), "limit: expected 1 to 1000");
        assert_eq!(refusal(r#"{"error":"x","details":"too much"}"#).unwrap(), "too much");
        assert_eq!(refusal("<html>"), None);
    }

    #[test]
    fn names_stay_in_their_segment() {
        assert_eq!(segment("a b/../c?d"), "a%20b%2F..%2Fc%3Fd");
    }

    #[test]
    fn a_kept_key_goes_to_this_machine_only() {
        for here in ["http://127.0.0.1:8400", "http://localhost", "http://[::1]:1"] {
            assert!(is_here(&here.parse().unwrap()), "{here}");
        }
        for there in ["http://10.0.0.1", "https://localhost.example", "http://0.0.0.0"] {
            assert!(!is_here(&there.parse().unwrap()), "{there}");
        }
    }
}
