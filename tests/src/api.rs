//! The platform's HTTP API as a client sees it.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::until;

/// An HTTP client for servers on loopback. Making one is cheap: it reads no certificates of the machine, which takes
/// longer than most requests of a test.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn http() -> reqwest::Client {
    static HTTP: OnceLock<()> = OnceLock::new();
    HTTP.get_or_init(|| {
        // reqwest is built without a provider of its own; a second call finds the first one's.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    // A client per caller: connections belong to the runtime of the test that opened them.
    reqwest::Client::builder()
        .no_proxy()
        .tls_built_in_root_certs(false)
        // The server closes a connection that is idle for 30 s. On a busy machine a client hears of it late, and a POST
        // sent into it gets no answer.
        .pool_idle_timeout(Duration::from_secs(15))
        .build()
        .expect("a client without special wishes")
}

/// A workspace's access to one platform.
#[derive(Clone, Debug)]
pub struct Api {
    http: reqwest::Client,
    base: String,
    key: String,
    tenant: String,
}

/// An answer with its body as it came.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// An answer, body read.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: StatusCode,
    /// The body, `Null` when it is empty or no JSON.
    pub body: Value,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
}

impl Reply {
    /// The body, if the status is `status`.
    ///
    /// # Panics
    /// If it is another one.
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }
}

impl Api {
    /// Access to the platform at `address`.
    #[must_use]
    pub fn new(address: SocketAddr, key: &str, tenant: &str) -> Self {
        Self {
            http: http(),
            base: format!("http://{address}"),
            key: key.to_owned(),
            tenant: tenant.to_owned(),
        }
    }

    /// The same access to another workspace of the key's organisation.
    #[must_use]
    pub fn of_tenant(&self, tenant: &str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            ..self.clone()
        }
    }

    /// The same access to another process of the platform.
    #[must_use]
    pub fn at(&self, address: SocketAddr) -> Self {
        Self {
            base: format!("http://{address}"),
            ..self.clone()
        }
    }

    /// The headers that say who asks, for requests that no HTTP client makes.
    #[must_use]
    pub fn credentials(&self) -> [(&'static str, &str); 2] {
        [("X-API-Key", &self.key), ("X-Tenant-Id", &self.tenant)]
    }

    /// Where the platform is: `http://…`.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// One request; an error is one of the connection, not of the answer.
    pub async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> reqwest::Result<Reply> {
        let mut request = self.authorised(method, path).timeout(Duration::from_secs(60));
        if let Some(body) = body {
            request = request.json(body);
        }
        reply(request.send().await?).await
    }

    /// GET.
    ///
    /// # Panics
    /// If the server is not there.
    pub async fn get(&self, path: &str) -> Reply {
        self.request(Method::GET, path, None)
            .await
            .unwrap_or_else(|error| panic!("GET {path}: {error:?}"))
    }

    /// The body of a GET as text.
    ///
    /// # Panics
    /// If the server is not there, or does not answer 200.
    pub async fn text(&self, path: &str) -> String {
        let answer = self.authorised(Method::GET, path).send().await;
        let answer = answer.and_then(reqwest::Response::error_for_status);
        let text = answer.unwrap_or_else(|error| panic!("GET {path}: {error:?}")).text();
        text.await.unwrap_or_else(|error| panic!("GET {path}: {error:?}"))
    }

    /// POST of JSON.
    ///
    /// # Panics
    /// If the server is not there.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.request(Method::POST, path, Some(body))
            .await
            .unwrap_or_else(|error| panic!("POST {path}: {error:?}"))
    }

    /// PATCH of JSON.
    ///
    /// # Panics
    /// If the server is not there.
    pub async fn patch(&self, path: &str, body: &Value) -> Reply {
        self.request(Method::PATCH, path, Some(body))
            .await
            .unwrap_or_else(|error| panic!("PATCH {path}: {error:?}"))
    }

    /// POST of bytes as they are, for ingest bodies. `headers` are sent beside the key's.
    pub async fn send(&self, path: &str, headers: &[(&str, &str)], body: Bytes) -> reqwest::Result<Reply> {
        let mut request = self
            .authorised(Method::POST, path)
            .timeout(Duration::from_secs(60))
            .body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        reply(request.send().await?).await
    }

    /// A request whose answer need not be JSON that [`Value`] can hold.
    pub async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> reqwest::Result<Answer> {
        let mut request = self
            .authorised(method, path)
            .timeout(Duration::from_secs(120))
            .body(body);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let response = request.send().await?;
        Ok(Answer {
            status: response.status(),
            headers: response.headers().clone(),
            body: response.bytes().await?,
        })
    }

    /// Creates a `file` destination below the configured folder and gives its id.
    ///
    /// # Panics
    /// If the platform refuses.
    pub async fn file_destination(&self, prefix: &str) -> String {
        let body = serde_json::json!({
            "destination_type": "file", "display_name": "test", "config": { "prefix": prefix },
        });
        let answer = self.post("/api/v1/bulk-exports/destinations", &body).await.expect(200);
        answer["id"].as_str().expect("a destination has an id").to_owned()
    }

    /// Waits until an export is over and gives its record; survives restarts of the server meanwhile.
    ///
    /// # Panics
    /// If it is not over within `limit`.
    pub async fn export_ended(&self, export: &str, limit: Duration) -> Value {
        let path = format!("/api/v1/bulk-exports/{export}");
        until(&format!("export {export} to end"), limit, async || {
            let reply = self.request(Method::GET, &path, None).await.ok()?;
            let over = ["COMPLETED", "FAILED", "CANCELLED", "TIMEDOUT"].contains(&reply.body["status"].as_str()?);
            over.then_some(reply.body)
        })
        .await
    }

    fn authorised(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.base))
            .header("X-API-Key", &self.key)
            .header("X-Tenant-Id", &self.tenant)
    }
}

async fn reply(response: reqwest::Response) -> reqwest::Result<Reply> {
    let status = response.status();
    let retry_after = response.headers().get("retry-after");
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
    let bytes = response.bytes().await?;
    Ok(Reply {
        status,
        body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        retry_after,
    })
}
