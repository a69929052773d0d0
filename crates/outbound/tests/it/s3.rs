//! A stand-in for S3: one bucket in memory that can be told to fail. It checks key ids and buckets, not signatures.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::sync::Notify;
use towpath_domain::Secret;
use towpath_domain::export::{Credentials, DestinationConfig};

pub const BUCKET: &str = "traces";
pub const KEY_ID: &str = "AKIATOWPATH";

/// A stand-in that runs until it is dropped.
#[derive(Clone)]
pub struct S3(Arc<S3State>);

struct S3State {
    address: SocketAddr,
    state: Mutex<Contents>,
    hung: Notify,
    thaw: Arc<Notify>,
    server: tokio::task::AbortHandle,
}

#[derive(Default)]
struct Contents {
    objects: BTreeMap<String, Bytes>,
    uploads: HashMap<String, (String, BTreeMap<usize, Bytes>)>,
    begun: usize,
    calls: Vec<String>,
    faults: Vec<Fault>,
    /// So many objects still to come lose their last byte.
    shortened: usize,
    /// Numbers that look random, where three calls of ten are answered with an error.
    storm: Option<u64>,
    /// The call that is left without an answer.
    hang: Option<HangPoint>,
}

/// Which call is left without an answer.
struct HangPoint {
    /// Calls to let through before.
    after: usize,
    /// Of those whose `METHOD key?query` contains this.
    call: &'static str,
    /// Whether it is done all the same.
    done: bool,
}

/// What becomes of a call.
enum Answer {
    Now(Response),
    /// Left without an answer; this one, if it was done, until it is let continue.
    Hangs(Option<Response>),
}

/// What goes wrong: the next `times` calls whose `METHOD key?query` contains `call`.
#[derive(Clone)]
pub struct Fault {
    pub call: &'static str,
    pub status: u16,
    pub code: &'static str,
    pub times: usize,
    /// Do what was asked, and answer the error all the same: an answer that was lost.
    pub done: bool,
}

impl Fault {
    pub fn new(call: &'static str, status: u16, code: &'static str, times: usize) -> Self {
        Self {
            call,
            status,
            code,
            times,
            done: false,
        }
    }
}

impl Drop for S3State {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl S3 {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (handle, told) = tokio::sync::oneshot::channel::<Self>();
        let server = tokio::spawn(async move {
            let Ok(s3) = told.await else { return };
            // Not to hold itself alive.
            let weak = Arc::downgrade(&s3.0);
            drop(s3);
            let app = Router::new()
                .route("/{bucket}", any(call_bucket))
                .route("/{bucket}/{*key}", any(call));
            axum::serve(listener, app.with_state(weak)).await.unwrap();
        });
        let s3 = Self(Arc::new(S3State {
            address,
            state: Mutex::default(),
            hung: Notify::new(),
            thaw: Arc::default(),
            server: server.abort_handle(),
        }));
        let _ = handle.send(s3.clone());
        s3
    }

    pub fn config(&self, prefix: &str) -> DestinationConfig {
        DestinationConfig {
            bucket_name: Some(BUCKET.to_owned()),
            prefix: prefix.to_owned(),
            endpoint_url: Some(format!("http://{}", self.0.address)),
            ..DestinationConfig::default()
        }
    }

    pub fn credentials() -> Credentials {
        Credentials {
            access_key_id: Secret::new(KEY_ID),
            secret_access_key: Secret::new("hush"),
            session_token: None,
        }
    }

    pub fn keys(&self) -> Vec<String> {
        self.0.state.lock().unwrap().objects.keys().cloned().collect()
    }

    pub fn object(&self, key: &str) -> Option<Bytes> {
        self.0.state.lock().unwrap().objects.get(key).cloned()
    }

    pub fn open_uploads(&self) -> usize {
        self.0.state.lock().unwrap().uploads.len()
    }

    /// `METHOD key?query` of every call.
    pub fn calls(&self) -> Vec<String> {
        self.0.state.lock().unwrap().calls.clone()
    }

    /// Leaves the call after the next `after` without an answer, once it is `done` or before.
    pub fn hang(&self, after: usize, done: bool) {
        let call = "";
        self.0.state.lock().unwrap().hang = Some(HangPoint { after, call, done });
    }

    /// Leaves the next call without an answer whose `METHOD key?query` contains `call`, once it is `done` or before.
    pub fn hang_at(&self, call: &'static str, done: bool) {
        let after = 0;
        self.0.state.lock().unwrap().hang = Some(HangPoint { after, call, done });
    }

    /// Lets calls continue that were left without an answer: what is not done is done now.
    pub fn thaw(&self) {
        self.0.thaw.notify_waiters();
    }

    /// Takes back a hang that was not reached; whether there was one.
    pub fn unhang(&self) -> bool {
        self.0.state.lock().unwrap().hang.take().is_some()
    }

    /// Comes back when a call is being left without an answer.
    pub async fn hung(&self) {
        self.0.hung.notified().await;
    }

    /// The next `times` objects arrive without their last byte, which is answered as success.
    pub fn shorten(&self, times: usize) {
        self.0.state.lock().unwrap().shortened = times;
    }

    /// From now on three calls of ten are answered with 500 or 503, every other of these after it was done; or no
    /// longer.
    pub fn storm(&self, seed: Option<u64>) {
        self.0.state.lock().unwrap().storm = seed;
    }

    pub fn fail(&self, fault: Fault) {
        self.0.state.lock().unwrap().faults.push(fault);
    }
}

type Shared = State<std::sync::Weak<S3State>>;
type Ask = Query<BTreeMap<String, String>>;

async fn call_bucket(
    state: Shared,
    method: Method,
    Path(bucket): Path<String>,
    ask: Ask,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    call(state, method, Path((bucket, String::new())), ask, headers, body).await
}

async fn call(
    State(inner): Shared,
    method: Method,
    Path((bucket, key)): Path<(String, String)>,
    Query(query): Ask,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(inner) = inner.upgrade() else {
        return error(503, "ServiceUnavailable");
    };
    let asked = answer(
        &mut inner.state.lock().unwrap(),
        &method,
        &bucket,
        &key,
        &query,
        &headers,
        &body,
    );
    let done = match asked {
        Answer::Now(answer) => return answer,
        Answer::Hangs(done) => done,
    };
    let thaw = Arc::clone(&inner.thaw);
    let thawed = thaw.notified();
    tokio::pin!(thawed);
    // Before anyone can know of it.
    thawed.as_mut().enable();
    inner.hung.notify_one();
    let weak = Arc::downgrade(&inner);
    drop(inner);
    thawed.await;
    match (done, weak.upgrade()) {
        (Some(answer), _) => answer,
        (None, Some(inner)) => perform(&mut inner.state.lock().unwrap(), &method, &key, &query, &body),
        (None, None) => error(503, "ServiceUnavailable"),
    }
}

fn answer(
    state: &mut Contents,
    method: &Method,
    bucket: &str,
    key: &str,
    query: &BTreeMap<String, String>,
    headers: &HeaderMap,
    body: &Bytes,
) -> Answer {
    let asked: Vec<_> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let told = format!("{method} {key}?{}", asked.join("&"));
    state.calls.push(told.clone());
    let authorization = headers
        .get("authorization")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if !authorization.contains(&format!("Credential={KEY_ID}/")) {
        return Answer::Now(error(403, "InvalidAccessKeyId"));
    }
    if bucket != BUCKET {
        return Answer::Now(error(404, "NoSuchBucket"));
    }
    if let Some(hang) = state.hang.as_mut().filter(|hang| told.contains(hang.call)) {
        if hang.after == 0 {
            let done = hang.done;
            state.hang = None;
            return Answer::Hangs(done.then(|| perform(state, method, key, query, body)));
        }
        hang.after -= 1;
    }
    let fault = state
        .faults
        .iter_mut()
        .find(|fault| fault.times > 0 && told.contains(fault.call));
    let fault = fault.map(|fault| {
        fault.times -= 1;
        fault.clone()
    });
    let fault = fault.or_else(|| gust(state.storm.as_mut()?));
    Answer::Now(match fault {
        Some(fault) if !fault.done => error(fault.status, fault.code),
        Some(fault) => {
            unanswered(state, method, key, query, body);
            error(fault.status, fault.code)
        }
        None => perform(state, method, key, query, body),
    })
}

/// What the storm does to a call.
fn gust(seed: &mut u64) -> Option<Fault> {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    let roll = *seed >> 33;
    let (status, code) = [(500, "InternalError"), (503, "SlowDown")][(roll / 10 % 2) as usize];
    (roll % 10 < 3).then(|| Fault {
        done: (roll / 20).is_multiple_of(2),
        ..Fault::new("", status, code, 1)
    })
}

/// Does what was asked, for no one to hear.
fn unanswered(state: &mut Contents, method: &Method, key: &str, query: &BTreeMap<String, String>, body: &Bytes) {
    drop(perform(state, method, key, query, body));
}

fn perform(
    state: &mut Contents,
    method: &Method,
    key: &str,
    query: &BTreeMap<String, String>,
    body: &Bytes,
) -> Response {
    let upload = query.get("uploadId");
    let tag = [("etag", "\"tag\"")];
    match (method.as_str(), upload) {
        ("PUT", None) => {
            state.objects.insert(key.to_owned(), body.clone());
            (StatusCode::OK, tag).into_response()
        }
        ("POST", None) if query.contains_key("uploads") => {
            state.begun += 1;
            let id = format!("upload-{}", state.begun);
            state.uploads.insert(id.clone(), (key.to_owned(), BTreeMap::new()));
            let text = format!(
                "<InitiateMultipartUploadResult><Bucket>{BUCKET}</Bucket><Key>{key}</Key><UploadId>{id}</UploadId>\
                 </InitiateMultipartUploadResult>"
            );
            text.into_response()
        }
        ("PUT", Some(id)) => match state.uploads.get_mut(id) {
            Some((_, parts)) => {
                parts.insert(query["partNumber"].parse().unwrap(), body.clone());
                (StatusCode::OK, tag).into_response()
            }
            None => error(404, "NoSuchUpload"),
        },
        ("POST", Some(id)) => match state.uploads.remove(id) {
            Some((key, parts)) => {
                let mut whole: Vec<u8> = parts.into_values().flatten().collect();
                if state.shortened > 0 {
                    state.shortened -= 1;
                    whole.pop();
                }
                state.objects.insert(key, whole.into());
                "<CompleteMultipartUploadResult><ETag>\"tag\"</ETag></CompleteMultipartUploadResult>".into_response()
            }
            None => error(404, "NoSuchUpload"),
        },
        ("DELETE", Some(id)) => match state.uploads.remove(id) {
            Some(_) => StatusCode::NO_CONTENT.into_response(),
            None => error(404, "NoSuchUpload"),
        },
        ("POST", None) if query.contains_key("delete") => {
            let text = String::from_utf8_lossy(body).into_owned();
            for piece in text.split("<Key>").skip(1) {
                state.objects.remove(piece.split('<').next().unwrap_or_default());
            }
            "<DeleteResult></DeleteResult>".into_response()
        }
        ("DELETE", None) => {
            state.objects.remove(key);
            StatusCode::NO_CONTENT.into_response()
        }
        ("GET", None) if query.contains_key("uploads") => {
            let open = state
                .uploads
                .iter()
                .filter(|(_, (key, _))| key.starts_with(&query["prefix"]));
            let open = open.map(|(id, (key, _))| format!("<Upload><Key>{key}</Key><UploadId>{id}</UploadId></Upload>"));
            format!(
                "<ListMultipartUploadsResult>{}</ListMultipartUploadsResult>",
                open.collect::<String>()
            )
            .into_response()
        }
        ("GET" | "HEAD", None) => state
            .objects
            .get(key)
            .cloned()
            .map_or_else(|| error(404, "NoSuchKey"), IntoResponse::into_response),
        _ => error(405, "MethodNotAllowed"),
    }
}

fn error(status: u16, code: &str) -> Response {
    let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message></Error>");
    (StatusCode::from_u16(status).unwrap(), text).into_response()
}
