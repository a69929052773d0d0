//! The server under test: asks it, sends to it, and writes down what is wrong.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use reqwest::Method;
use tokio::time::{Instant, sleep};
use towpath_tests::{Answer, Api};
use uuid::Uuid;

use super::Features;
use super::json::{Json, quoted};
use super::operation::{Handle, Run, Tenant, object, shortened};
use super::step::{Step, Work};
use super::wire::{Expect, RawRequest, Request, Route};

/// How long a server may ask to come back later.
const PATIENCE: Duration = Duration::from_secs(180);
/// What is wrong is told so often.
const MOST_FINDINGS: usize = 12;

/// Something that is wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    pub step: usize,
    /// The run it is about.
    pub run: Option<Run>,
    pub what: String,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Counts {
    pub requests: AtomicUsize,
    pub items: AtomicUsize,
    pub refused: AtomicUsize,
    /// Answers that said to come back later.
    pub later: AtomicUsize,
    pub rows_read: AtomicUsize,
    pub rows_exported: AtomicUsize,
}

/// The server under test.
pub struct Server {
    pub features: Features,
    pub tenants: Vec<Uuid>,
    /// By workspace, then by process.
    pub apis: Vec<Vec<Api>>,
    /// By workspace: where exports go.
    pub destinations: Vec<String>,
    pub exports: PathBuf,
    pub counts: Counts,
    projects: Mutex<HashMap<Handle, Uuid>>,
    findings: Mutex<Vec<Finding>>,
}

impl Server {
    pub fn new(
        features: Features,
        tenants: Vec<Uuid>,
        apis: Vec<Vec<Api>>,
        destinations: Vec<String>,
        exports: PathBuf,
    ) -> Self {
        Self {
            features,
            tenants,
            apis,
            destinations,
            exports,
            counts: Counts::default(),
            projects: Mutex::default(),
            findings: Mutex::default(),
        }
    }

    pub fn api(&self, tenant: Tenant, step: usize) -> &Api {
        let apis = &self.apis[tenant];
        &apis[step % apis.len()]
    }

    /// Writes down that something is wrong.
    pub fn wrong(&self, step: usize, run: Option<Run>, what: String) {
        let mut findings = self.findings.lock().expect("nobody panicked");
        if findings.len() < MOST_FINDINGS {
            findings.push(Finding { step, run, what });
        }
    }

    pub fn findings(&self) -> Vec<Finding> {
        self.findings.lock().expect("nobody panicked").clone()
    }

    pub fn is_wrong(&self) -> bool {
        !self.findings.lock().expect("nobody panicked").is_empty()
    }

    /// The id of a project; the nil id where no one knows it.
    pub fn project(&self, handle: Handle) -> Uuid {
        let known = self.projects.lock().expect("nobody panicked");
        known.get(&handle).copied().unwrap_or_default()
    }

    fn learn(&self, handle: Handle, id: Uuid) {
        self.projects.lock().expect("nobody panicked").insert(handle, id);
    }

    /// One request, repeated while the server says to come back later. `None` where that is already written down as
    /// wrong: no answer, or one that no server may give.
    pub async fn ask(
        &self,
        step: usize,
        api: &Api,
        method: Method,
        path: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> Option<Answer> {
        let deadline = Instant::now() + PATIENCE;
        // Reading may wait for a flush; taking something in has no reason to fail.
        let reads = method == Method::GET || path.starts_with("/runs/query") || path.starts_with("/runs/stats");
        loop {
            self.counts.requests.fetch_add(1, Ordering::Relaxed);
            let answer = match api.exchange(method.clone(), path, headers, body.clone()).await {
                Ok(answer) => answer,
                Err(error) => {
                    self.wrong(step, None, format!("{method} {path}: no answer: {error:?}"));
                    return None;
                }
            };
            let status = answer.status.as_u16();
            let retry_after = answer.headers.get("retry-after").and_then(|value| value.to_str().ok());
            let later = status == 429 || (reads && status == 503);
            if let (true, Some(retry_after), true) = (later, retry_after, Instant::now() < deadline) {
                self.counts.later.fetch_add(1, Ordering::Relaxed);
                // As long as the server asks for, and no longer than a second.
                let seconds = retry_after.parse().unwrap_or(1).min(1);
                sleep(Duration::from_secs(seconds)).await;
                continue;
            }
            if answer.status.is_server_error() {
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                self.wrong(step, None, format!("{method} {path}: {status} {}", shortened(&body)));
                return None;
            }
            return Some(answer);
        }
    }

    /// A request with a JSON body, or none; its status and what it says.
    pub async fn json(
        &self,
        step: usize,
        api: &Api,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Option<(u16, Json)> {
        let headers = [("Content-Type".to_owned(), "application/json".to_owned())];
        let headers = if body.is_some() { &headers[..] } else { &[] };
        let body = body.map(Bytes::from).unwrap_or_default();
        let answer = self.ask(step, api, method.clone(), path, headers, body).await?;
        let text = std::str::from_utf8(&answer.body).unwrap_or("\u{fffd}");
        if text.is_empty() {
            return Some((answer.status.as_u16(), Json::Null));
        }
        match Json::parse(text) {
            Ok(said) => Some((answer.status.as_u16(), said)),
            Err(error) => {
                self.wrong(step, None, format!("{method} {path}: the answer is no JSON: {error}"));
                None
            }
        }
    }

    /// Does a step.
    pub async fn perform(&self, step: Step) {
        let number = step.number;
        match step.work {
            Work::Send(request) => self.send(number, &request).await,
            Work::Raw {
                tenant,
                request,
                expect,
            } => self.send_raw(number, self.api(tenant, number), &request, &expect).await,
            Work::Make {
                tenant,
                project,
                name,
                id,
            } => {
                let body = object(&[(quoted("name"), quoted(&name)), (quoted("id"), quoted(&id.to_string()))]);
                self.change(number, tenant, Method::POST, "/sessions", Some(body), 200)
                    .await;
                self.learn(project, id);
            }
            Work::Rename {
                tenant,
                project,
                name,
                taken,
            } => {
                let path = format!("/sessions/{}", self.project(project));
                let body = object(&[(quoted("name"), quoted(&name))]);
                let status = if taken { 409 } else { 200 };
                self.change(number, tenant, Method::PATCH, &path, Some(body), status)
                    .await;
            }
            Work::Delete { tenant, project } => {
                let path = format!("/sessions/{}", self.project(project));
                self.change(number, tenant, Method::DELETE, &path, None, 204).await;
                self.change(number, tenant, Method::GET, &path, None, 404).await;
            }
            Work::Get { tenant, runs } => self.get(number, tenant, &runs).await,
            Work::Query { tenant, runs } => self.query(number, tenant, &runs).await,
            Work::Walk {
                tenant,
                project,
                newest,
                limit,
                runs,
            } => self.walk(number, tenant, project, (newest, limit), &runs).await,
            Work::Export { tenant, project, runs } => self.export(number, tenant, project, &runs).await,
            Work::ShowFeedback { tenant, given } => self.show_feedback(number, tenant, &given).await,
            Work::ChangeFeedback { tenant, id, change } => {
                let members: Vec<_> = change.into_iter().map(|(name, raw)| (quoted(name), raw)).collect();
                let path = format!("/feedback/{id}");
                self.change(number, tenant, Method::PATCH, &path, Some(object(&members)), 200)
                    .await;
            }
            Work::DeleteFeedback { tenant, id } => {
                let path = format!("/feedback/{id}");
                self.change(number, tenant, Method::DELETE, &path, None, 200).await;
                self.change(number, tenant, Method::GET, &path, None, 404).await;
            }
            Work::ShowFile { tenant, file } => self.show_file(number, tenant, &file).await,
        }
    }

    async fn change(&self, step: usize, tenant: Tenant, method: Method, path: &str, body: Option<String>, status: u16) {
        let api = self.api(tenant, step);
        if let Some((got, said)) = self.json(step, api, method.clone(), path, body).await
            && got != status
        {
            let said = shortened(&said.to_string());
            self.wrong(
                step,
                None,
                format!("{method} {path}: {got} in place of {status}: {said}"),
            );
        }
    }

    async fn send(&self, step: usize, request: &Request) {
        let api = self.api(request.tenant, step);
        let path = request.path();
        let body = request.body(|handle| self.project(handle));
        request.acceptance.sends();
        let answer = self
            .ask(step, api, request.method(), &path, &request.headers(), body)
            .await;
        let status = answer.as_ref().map(|answer| answer.status.as_u16());
        let spans = matches!(request.route, Route::OtlpJson | Route::OtlpProtobuf);
        let taken = status == Some(if spans { 200 } else { 202 });
        request.acceptance.is_answered(taken);
        let (Some(answer), Some(status)) = (answer, status) else {
            return;
        };
        let expected = match &request.expect {
            Expect::Accepted => taken,
            Expect::Refused(statuses) => statuses.contains(&status),
            Expect::Either(statuses) => taken || statuses.contains(&status),
        };
        if !expected {
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            let run = request
                .operations
                .first()
                .map(|operation| (request.tenant, operation.id));
            let what = format!(
                "{:?} {path}: {status} in place of {:?}: {}",
                request.route,
                request.expect,
                shortened(&said)
            );
            self.wrong(step, run, what);
        }
        if !taken {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.counts.items.fetch_add(request.items(), Ordering::Relaxed);
        if spans {
            let rejected = rejected_spans(request.route, &answer);
            if rejected != Ok(request.rejected) {
                self.wrong(
                    step,
                    None,
                    format!("rejected spans: {rejected:?} in place of {}", request.rejected),
                );
            }
        }
        if request.makes.len() > 10 {
            return self.look_up_all(step, request.tenant, &request.makes).await;
        }
        for (handle, name) in &request.makes {
            self.look_up(step, request.tenant, *handle, name).await;
        }
    }

    /// Learns the ids of many projects that a request has made.
    async fn look_up_all(&self, step: usize, tenant: Tenant, makes: &[(Handle, String)]) {
        const PAGE: usize = 100;
        let mut handles: HashMap<&str, Handle> = makes.iter().map(|(handle, name)| (name.as_str(), *handle)).collect();
        for page in 0.. {
            let path = format!("/sessions?limit={PAGE}&offset={}", page * PAGE);
            let Some((_, found)) = self.json(step, self.api(tenant, step), Method::GET, &path, None).await else {
                return;
            };
            let found = found.items().unwrap_or_default();
            for project in found {
                let handle = project.at("name").as_text().and_then(|name| handles.remove(name));
                let id = project.at("id").as_text().and_then(|id| id.parse().ok());
                if let (Some(handle), Some(id)) = (handle, id) {
                    self.learn(handle, id);
                }
            }
            if handles.is_empty() || found.len() < PAGE {
                break;
            }
        }
        if !handles.is_empty() {
            self.wrong(step, None, format!("{} projects were not made", handles.len()));
        }
    }

    /// Learns the id of a project that a request has made.
    async fn look_up(&self, step: usize, tenant: Tenant, handle: Handle, name: &str) {
        let path = format!("/sessions?name={}", escaped(name));
        let found = self.json(step, self.api(tenant, step), Method::GET, &path, None).await;
        let Some((_, found)) = found else { return };
        let id = match found.items() {
            Some([one]) => one.at("id").as_text().and_then(|id| id.parse().ok()),
            _ => None,
        };
        match id {
            Some(id) => self.learn(handle, id),
            None => self.wrong(step, None, format!("project {name:?} was not made: {found}")),
        }
    }

    async fn send_raw(&self, step: usize, api: &Api, request: &RawRequest, expect: &Expect) {
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        let name = request.name;
        match request.send(api).await {
            Err(error) => self.wrong(step, None, format!("{name}: {error}")),
            // Cut off: for what is no HTTP that is an answer.
            Ok(None) => {}
            Ok(Some(status)) => {
                let expected = match expect {
                    Expect::Accepted => (200..300).contains(&status),
                    Expect::Refused(statuses) => statuses.contains(&status),
                    Expect::Either(statuses) => (200..300).contains(&status) || statuses.contains(&status),
                };
                if !expected {
                    self.wrong(step, None, format!("{name}: {status} in place of {expect:?}"));
                }
                self.counts
                    .refused
                    .fetch_add(usize::from((400..500).contains(&status)), Ordering::Relaxed);
            }
        }
    }
}

/// How many spans an answer says were left out.
fn rejected_spans(route: Route, answer: &Answer) -> Result<usize, String> {
    if route == Route::OtlpProtobuf {
        let said = ExportTraceServiceResponse::decode(answer.body.clone()).map_err(|error| error.to_string())?;
        let rejected = said.partial_success.map_or(0, |partial| partial.rejected_spans);
        return usize::try_from(rejected).map_err(|error| error.to_string());
    }
    let text = std::str::from_utf8(&answer.body).map_err(|error| error.to_string())?;
    match Json::parse(text)?.at("partialSuccess").at("rejectedSpans") {
        Json::Null => Ok(0),
        Json::Number(count) | Json::Text(count) => count.parse().map_err(|_| format!("{count} spans")),
        other => Err(format!("{other} spans")),
    }
}

/// A text as a value in a query.
pub fn escaped(text: &str) -> String {
    let bytes = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    });
    bytes.collect()
}

#[cfg(test)]
impl Server {
    /// One that no one can reach.
    pub fn nowhere() -> Self {
        Self::new(Features::ALL, Vec::new(), Vec::new(), Vec::new(), PathBuf::new())
    }
}
