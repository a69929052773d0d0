//! A platform with SQLite, over HTTP and WebSockets, as clients use it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures::stream;
use http::{HeaderName, Method};
use reqwest::Body;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::{Durations, Report, stream as output};
use crate::arguments::BenchSandbox;
use crate::bench::server::Child;

/// A pool has at most 100 boxes.
const MAX_POOL: u64 = 100;
const CHUNK: usize = 256 << 10;
const TIMEOUT: Duration = Duration::from_secs(3600);

pub(super) async fn measure(options: &BenchSandbox, child: &Child, report: &mut Report) -> anyhow::Result<()> {
    let platform = Platform::new(child.base(), &child.key().await?)?;
    platform.starts(options, report).await?;
    let sandbox = platform
        .create(&json!({"name": "bench", "idle_ttl_seconds": 0}))
        .await?;
    platform.commands(options, &sandbox, report).await?;
    platform.wakes(options, &sandbox, report).await?;
    platform.files(options, &sandbox, report).await?;
    output::measure(options, &platform, &sandbox, report).await?;
    platform.remove("bench").await?;
    platform.pool(options, report).await?;
    if let Some(mb) = child.memory_mb() {
        report.note("server: memory, after", mb, "MB");
    }
    Ok(())
}

pub(super) struct Platform {
    http: reqwest::Client,
    pub(super) base: String,
    pub(super) key: HeaderValue,
}

impl Platform {
    fn new(base: String, key: &str) -> anyhow::Result<Self> {
        let mut key = HeaderValue::from_str(key).context("the API key")?;
        key.set_sensitive(true);
        let headers = HeaderMap::from_iter([(HeaderName::from_static("x-api-key"), key.clone())]);
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .no_proxy()
            .timeout(TIMEOUT)
            .build()?;
        Ok(Self { http, base, key })
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        ensure!(status.is_success(), "{path}: {status}: {text}");
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// The data plane of a new box.
    async fn create(&self, body: &Value) -> anyhow::Result<String> {
        let made = self.ask(Method::POST, "/v2/sandboxes/boxes", Some(body)).await?;
        let id = made["id"].as_str().context("a sandbox has an id")?;
        ensure!(made["status"] == "ready", "the sandbox is {}", made["status"]);
        Ok(format!("/v2/sandboxes/dp/{id}"))
    }

    async fn remove(&self, name: &str) -> anyhow::Result<()> {
        let path = format!("/v2/sandboxes/boxes/{name}");
        self.ask(Method::DELETE, &path, None).await.map(drop)
    }

    async fn starts(&self, options: &BenchSandbox, report: &mut Report) -> anyhow::Result<()> {
        let mut created = Durations::default();
        for round in 0..options.rounds {
            let name = format!("start-{round}");
            let begin = async {
                let sandbox = self.create(&json!({"name": name})).await?;
                output::run(self, &sandbox, "true").await
            };
            created.time(begin).await?;
            self.remove(&name).await?;
        }
        created.note(report, "server: create and first command");
        Ok(())
    }

    async fn commands(&self, options: &BenchSandbox, sandbox: &str, report: &mut Report) -> anyhow::Result<()> {
        let mut warm = Durations::default();
        for _ in 0..options.rounds {
            warm.time(output::run(self, sandbox, "true")).await?;
        }
        warm.note(report, "server: command over a new WebSocket");
        Ok(())
    }

    async fn wakes(&self, options: &BenchSandbox, sandbox: &str, report: &mut Report) -> anyhow::Result<()> {
        let mut woken = Durations::default();
        for _ in 0..options.rounds {
            self.ask(Method::POST, "/v2/sandboxes/boxes/bench/stop", Some(&json!({})))
                .await?;
            woken.time(output::run(self, sandbox, "true")).await?;
        }
        woken.note(report, "server: wake by a command");
        Ok(())
    }

    async fn files(&self, options: &BenchSandbox, sandbox: &str, report: &mut Report) -> anyhow::Result<()> {
        let bytes = options.file_mb << 20;
        let megabytes = bytes as f64 / 1e6;
        let begun = Instant::now();
        let boundary = "towpath-bench";
        let upload = self
            .http
            .post(format!("{}{sandbox}/upload?path=bench.bin", self.base))
            .header(CONTENT_TYPE, format!("multipart/form-data; boundary={boundary}"))
            .body(form(boundary, bytes))
            .send()
            .await?;
        let status = upload.status();
        let text = upload.text().await?;
        ensure!(status.is_success(), "upload: {status}: {text}");
        let rate = megabytes / begun.elapsed().as_secs_f64();
        report.note(format!("server: upload of {} MiB", options.file_mb), rate, "MB/s");
        let begun = Instant::now();
        let mut download = self
            .http
            .get(format!("{}{sandbox}/download?path=bench.bin", self.base))
            .send()
            .await?
            .error_for_status()?;
        let mut received = 0;
        while let Some(chunk) = download.chunk().await? {
            received += chunk.len() as u64;
        }
        ensure!(received == bytes, "{received} of {bytes} bytes were downloaded");
        let rate = megabytes / begun.elapsed().as_secs_f64();
        report.note(format!("server: download of {} MiB", options.file_mb), rate, "MB/s");
        output::run(self, sandbox, "rm bench.bin").await
    }

    /// Boxes of a pool are claimed while it is filled again.
    async fn pool(&self, options: &BenchSandbox, report: &mut Report) -> anyhow::Result<()> {
        let count = options.rounds.min(MAX_POOL);
        let template = json!({"name": "bench", "image": "host"});
        self.ask(Method::POST, "/v2/sandboxes/templates", Some(&template))
            .await?;
        let pool = json!({"name": "bench", "template_name": "bench", "replicas": count, "timeout": 600});
        self.ask(Method::POST, "/v2/sandboxes/pools", Some(&pool)).await?;
        let mut claimed = Durations::default();
        for round in 0..count {
            let begin = async {
                let body = json!({"name": format!("claim-{round}"), "template_name": "bench"});
                let sandbox = self.create(&body).await?;
                output::run(self, &sandbox, "true").await
            };
            claimed.time(begin).await?;
        }
        claimed.note(report, &format!("server: first command in a box of a pool of {count}"));
        self.ask(Method::DELETE, "/v2/sandboxes/pools/bench", None).await?;
        for round in 0..count {
            self.remove(&format!("claim-{round}")).await?;
        }
        Ok(())
    }
}

/// A multipart body with a file of zeros.
fn form(boundary: &str, bytes: u64) -> Body {
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"bench.bin\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let tail = format!("\r\n--{boundary}--\r\n");
    let zeros = Bytes::from(vec![0; CHUNK]);
    let whole = usize::try_from(bytes / CHUNK as u64).unwrap_or(usize::MAX);
    let rest = usize::try_from(bytes % CHUNK as u64).unwrap_or_default();
    let parts = std::iter::once(Bytes::from(head))
        .chain(std::iter::repeat_n(zeros.clone(), whole))
        .chain((rest > 0).then(|| zeros.slice(..rest)))
        .chain([Bytes::from(tail)])
        .map(Ok::<_, std::io::Error>);
    Body::wrap_stream(stream::iter(parts))
}
