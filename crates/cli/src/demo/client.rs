//! A small HTTP client, as any REST client would be.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::Value;
use towpath_domain::{Secret, TenantId};
use towpath_traces::sample::Body;

/// Attempts to send one body before the demo gives up.
const TRIES: u32 = 20;

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    pub fn new(address: SocketAddr, key: &Secret, tenant: TenantId) -> anyhow::Result<Self> {
        let mut headers = HeaderMap::new();
        let mut key = HeaderValue::from_str(key.reveal()).context("the API key")?;
        key.set_sensitive(true);
        headers.insert("x-api-key", key);
        headers.insert("x-tenant-id", HeaderValue::from_str(&tenant.to_string())?);
        let http = reqwest::Client::builder()
            .default_headers(headers)
            // The server is on this machine and uses plain HTTP: no proxy applies, and loading the machine's
            // certificates would only cost time.
            .no_proxy()
            .tls_built_in_root_certs(false)
            .timeout(Duration::from_secs(60))
            .build()?;
        Ok(Self {
            http,
            base: format!("http://{address}"),
        })
    }

    /// GET. Fails unless the response is JSON with a 2xx status.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        json(self.http.get(self.url(path)), path).await
    }

    /// POST of JSON. Fails unless the response is JSON with a 2xx status.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        json(self.http.post(self.url(path)).json(body), path).await
    }

    /// POST of a trace body. Retries after the time that an overloaded server names.
    pub async fn ingest(&self, path: &str, body: Body) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            let mut request = self.http.post(self.url(path)).header(CONTENT_TYPE, &body.content_type);
            if let Some(encoding) = body.content_encoding {
                request = request.header(CONTENT_ENCODING, encoding);
            }
            let request = request.body(body.bytes.clone());
            let answer = request.send().await.with_context(|| format!("POST {path}"))?;
            match answer.status() {
                status if status.is_success() => return Ok(()),
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                    tokio::time::sleep(retry_after(&answer)).await;
                }
                status => bail!(
                    "POST {path} answered {status}: {}",
                    answer.text().await.unwrap_or_default()
                ),
            }
        }
        bail!("POST {path}: the server was still too busy after {TRIES} attempts")
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

async fn json(request: RequestBuilder, path: &str) -> anyhow::Result<Value> {
    let answer = request.send().await.with_context(|| path.to_owned())?;
    let status = answer.status();
    let text = answer.text().await.with_context(|| path.to_owned())?;
    if !status.is_success() {
        bail!("{path} answered {status}: {text}");
    }
    serde_json::from_str(&text).with_context(|| format!("{path} did not answer with JSON: {text}"))
}

fn retry_after(answer: &Response) -> Duration {
    let seconds = answer
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1).min(10))
}
