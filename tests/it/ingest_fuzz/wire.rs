//! Requests as bytes: by every route, in every encoding; and those that no HTTP client makes.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use towpath_tests::Api;
use uuid::Uuid;

use super::operation::{Acceptance, Attachment, Feedback, Field, Handle, Operation, Tenant, Verb};
use super::spans::{self, Span};

/// By which way something comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Run,
    Patch,
    Batch,
    Multipart,
    OtlpJson,
    OtlpProtobuf,
    Feedback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

/// How a multipart body says where its parts end, and in which order they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each operation's parts follow its head; lengths stand in a header of their own.
    Together,
    /// All heads come first; lengths stand in the content type.
    Scattered,
    /// No part says its length.
    Boundaries,
}

/// What is to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    Accepted,
    /// With one of these statuses.
    Refused(&'static [u16]),
    /// One of these statuses, or accepted.
    Either(&'static [u16]),
}

/// A request of ingest.
#[derive(Clone, Debug)]
pub struct Request {
    pub tenant: Tenant,
    pub route: Route,
    /// Whether it goes below `/api/v1`.
    pub below_api: bool,
    pub encoding: Encoding,
    pub layout: Layout,
    pub operations: Vec<Arc<Operation>>,
    pub feedback: Vec<Feedback>,
    pub files: Vec<Attachment>,
    pub spans: Vec<Span>,
    /// The header `Langsmith-Project`.
    pub project_header: Option<String>,
    /// Instead of what the rest says.
    pub body: Option<Bytes>,
    pub expect: Expect,
    pub acceptance: Arc<Acceptance>,
    /// The projects that it makes, with their names.
    pub makes: Vec<(Handle, String)>,
    /// Spans that are left out while the others are taken.
    pub rejected: usize,
}

const BOUNDARY: &str = "fuzz-boundary-1f0c";

impl Request {
    pub fn new(tenant: Tenant, route: Route) -> Self {
        Self {
            tenant,
            route,
            below_api: false,
            encoding: Encoding::Identity,
            layout: Layout::Together,
            operations: Vec::new(),
            feedback: Vec::new(),
            files: Vec::new(),
            spans: Vec::new(),
            project_header: None,
            body: None,
            expect: Expect::Accepted,
            acceptance: Arc::default(),
            makes: Vec::new(),
            rejected: 0,
        }
    }

    pub fn method(&self) -> Method {
        if self.route == Route::Patch {
            Method::PATCH
        } else {
            Method::POST
        }
    }

    pub fn path(&self) -> String {
        let path = match self.route {
            Route::Run => "/runs".to_owned(),
            Route::Patch => {
                let patched = self
                    .operations
                    .first()
                    .map(|operation| operation.id)
                    .unwrap_or_default();
                format!("/runs/{patched}")
            }
            Route::Batch => "/runs/batch".to_owned(),
            Route::Multipart => "/runs/multipart".to_owned(),
            Route::OtlpJson | Route::OtlpProtobuf => "/otel/v1/traces".to_owned(),
            Route::Feedback => "/feedback".to_owned(),
        };
        if self.below_api { format!("/api/v1{path}") } else { path }
    }

    /// How many operations, pieces of feedback and files it holds.
    pub fn items(&self) -> usize {
        self.operations.len() + self.feedback.len() + self.files.len()
    }

    pub fn headers(&self) -> Vec<(String, String)> {
        let content_type = match self.route {
            Route::Multipart => format!("multipart/form-data; boundary={BOUNDARY}"),
            Route::OtlpProtobuf => "application/x-protobuf".to_owned(),
            _ => "application/json".to_owned(),
        };
        let mut headers = vec![("Content-Type".to_owned(), content_type)];
        match self.encoding {
            Encoding::Identity => {}
            Encoding::Gzip => headers.push(("Content-Encoding".to_owned(), "gzip".to_owned())),
            Encoding::Zstd => headers.push(("Content-Encoding".to_owned(), "zstd".to_owned())),
        }
        if let Some(name) = &self.project_header {
            headers.push(("Langsmith-Project".to_owned(), name.clone()));
        }
        headers
    }

    /// The body as it is sent. `project` tells the ids of projects.
    pub fn body(&self, project: impl Fn(Handle) -> Uuid + Copy) -> Bytes {
        let plain = match &self.body {
            Some(body) => body.to_vec(),
            None => self.plain(project),
        };
        encoded(self.encoding, plain).into()
    }

    fn plain(&self, project: impl Fn(Handle) -> Uuid + Copy) -> Vec<u8> {
        let first = || self.operations.first().expect("an operation");
        match self.route {
            Route::Run | Route::Patch => first().head(project, false).into_bytes(),
            Route::Batch => {
                let list = |verb: Verb| {
                    let heads = self.operations.iter().filter(|operation| operation.verb == verb);
                    heads
                        .map(|operation| operation.head(project, false))
                        .collect::<Vec<_>>()
                };
                let (posts, patches) = (list(Verb::Post), list(Verb::Patch));
                format!("{{\"patch\":[{}],\"post\":[{}]}}", patches.join(","), posts.join(",")).into_bytes()
            }
            Route::Multipart => self.multipart(project),
            Route::OtlpJson => spans::json_request(&self.spans),
            Route::OtlpProtobuf => spans::protobuf_request(&self.spans),
            Route::Feedback => self.feedback.first().expect("feedback").body(true).into_bytes(),
        }
    }

    fn multipart(&self, project: impl Fn(Handle) -> Uuid + Copy) -> Vec<u8> {
        let (mut heads, mut parts) = (Vec::new(), Vec::new());
        for operation in &self.operations {
            let name = format!("{}.{}", operation.verb.as_str(), operation.id);
            let head = operation.head(project, true);
            let head = part(self.layout, &name, "application/json", head.as_bytes());
            if self.layout == Layout::Scattered {
                heads.push(head);
            } else {
                parts.push(head);
            }
            for (field, raw) in &operation.fields {
                if Field::may_be_a_part(*field) {
                    let name = format!("{name}.{}", field.name());
                    parts.push(part(self.layout, &name, "application/json", raw.as_bytes()));
                }
            }
        }
        for feedback in &self.feedback {
            let name = format!("feedback.{}", feedback.id);
            parts.push(part(
                self.layout,
                &name,
                "application/json",
                feedback.body(false).as_bytes(),
            ));
        }
        for file in &self.files {
            let name = format!("attachment.{}.{}", file.run, file.name);
            parts.push(part(self.layout, &name, &file.content_type, &file.data));
        }
        heads.extend(parts);
        heads.push(format!("--{BOUNDARY}--\r\n").into_bytes());
        heads.concat()
    }
}

fn part(layout: Layout, name: &str, content_type: &str, data: &[u8]) -> Vec<u8> {
    let length = data.len();
    let more = match layout {
        Layout::Together => format!("\r\nContent-Length: {length}"),
        Layout::Scattered => format!("; length={length}"),
        Layout::Boundaries => String::new(),
    };
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Type: {content_type}{more}\r\n\r\n"
    );
    [head.as_bytes(), data, b"\r\n"].concat()
}

/// A body in an encoding.
pub fn encoded(encoding: Encoding, plain: Vec<u8>) -> Vec<u8> {
    match encoding {
        Encoding::Identity => plain,
        Encoding::Gzip => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(&plain).expect("memory takes any write");
            gzip.finish().expect("memory takes any write")
        }
        Encoding::Zstd => zstd::encode_all(plain.as_slice(), 1).expect("memory takes any write"),
    }
}

/// A request byte by byte.
#[derive(Clone, Debug)]
pub struct RawRequest {
    pub name: &'static str,
    pub method: &'static str,
    pub path: String,
    /// Beside those that say who asks.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub body: Vec<u8>,
    /// What it says of the length of its body; `None` says nothing.
    pub length: Option<usize>,
    /// Whether nothing may follow: the sender closes its side.
    pub closes: bool,
}

impl RawRequest {
    pub fn new(name: &'static str, method: &'static str, path: &str, body: &[u8]) -> Self {
        Self {
            name,
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: body.to_vec(),
            length: Some(body.len()),
            closes: false,
        }
    }

    pub fn header(mut self, name: &str, value: &[u8]) -> Self {
        self.headers.push((name.as_bytes().to_vec(), value.to_vec()));
        self
    }

    fn bytes(&self, api: &Api) -> Vec<u8> {
        let mut bytes = format!(
            "{} {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
            self.method, self.path
        );
        for (name, value) in api.credentials() {
            bytes.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(length) = self.length {
            bytes.push_str(&format!("Content-Length: {length}\r\n"));
        }
        let mut bytes = bytes.into_bytes();
        for (name, value) in &self.headers {
            bytes.extend([name.as_slice(), b": ", value, b"\r\n"].concat());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Sends it and gives the status of the answer; `None` where the server closed the connection without one.
    pub async fn send(&self, api: &Api) -> Result<Option<u16>, String> {
        const PATIENCE: Duration = Duration::from_secs(30);
        let address = api.base().trim_start_matches("http://").to_owned();
        let exchange = async {
            let mut stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
            let mut answer = Vec::new();
            // A server that refuses early may close before all is sent; what it answered counts.
            let _ = stream.write_all(&self.bytes(api)).await;
            if self.closes {
                let _ = stream.shutdown().await;
            }
            let _ = stream.read_to_end(&mut answer).await;
            Ok(status(&answer))
        };
        let answered = tokio::time::timeout(PATIENCE, exchange).await;
        answered.unwrap_or_else(|_| Err(format!("the connection hung for {PATIENCE:?}")))
    }
}

fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    std::str::from_utf8(line).ok()?.split(' ').nth(1)?.parse().ok()
}
