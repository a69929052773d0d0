//! Requests as the auth of the graphs' author judges them: who calls, whether they may, which rows they may see.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Map, Value, json};
use towpath_domain::{AssistantId, CronId, RunId, ThreadId, Timestamp};
use towpath_runtime::hosted::{self, Caller, Denied, Pool};
use towpath_store::{assistants, crons, runs, threads};

use super::caller::CALLER;
use super::filter::{self, Contained};
use super::route::{self, About, Row};
use crate::agent::app::{AgentApp, AuthCache};
use crate::agent::errors::AgentError;

/// Answers about callers that may be used again, where the config file says so.
#[derive(Debug, Default)]
pub(in crate::agent) struct Remembered(Mutex<HashMap<Vec<String>, Until>>);

/// An answer, and until when it counts.
type Until = (Timestamp, Arc<Caller>);

impl Remembered {
    fn find(&self, key: &[String], now: Timestamp) -> Option<Arc<Caller>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, caller) = known.get(key)?;
        (now < *until).then(|| caller.clone())
    }

    fn keep(&self, key: Vec<String>, caller: Arc<Caller>, cache: &AuthCache, now: Timestamp) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= cache.most {
            known.retain(|_, (until, _)| now < *until);
        }
        if known.len() < cache.most {
            known.insert(key, (now.plus(cache.ttl), caller));
        }
    }
}

/// Lets a request pass, or answers in its place.
pub(super) async fn guard(app: AgentApp, request: Request, next: Next) -> Response {
    match judge(&app, request).await {
        Ok((caller, request)) => CALLER.scope(caller, next.run(request)).await,
        Err(refusal) => *refusal,
    }
}

/// Boxed: a response is large, and seldom.
type Refusal = Box<Response>;

fn refuse(error: AgentError) -> Refusal {
    Box::new(error.into_response())
}

fn denied(error: Denied) -> Refusal {
    match error {
        Denied::Refused {
            status,
            message,
            headers,
        } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN);
            let mut response = AgentError::new(status, message).into_response();
            for (name, value) in headers {
                if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                    response.headers_mut().insert(name, value);
                }
            }
            Box::new(response)
        }
        Denied::Failed(why) => {
            tracing::error!(error = why, "the graphs' auth failed");
            refuse(AgentError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "Internal Server Error",
            ))
        }
    }
}

async fn judge(app: &AgentApp, request: Request) -> Result<(Arc<Caller>, Request), Refusal> {
    let graphs = app.graphs.current();
    let Some((pool, auth)) = graphs.hosts().and_then(|pool| Some((pool, pool.ready().auth.clone()?))) else {
        // Without the code that decides nobody gets in.
        return Err(refuse(AgentError::unavailable(
            "The auth of this server is not loaded",
            std::time::Duration::from_secs(2),
        )));
    };
    let caller = authenticate(app, pool, head(&request)).await?;
    let Some(about) = route::about(request.method(), request.uri().path()) else {
        return Ok((caller, request));
    };
    if !judged(&auth.handlers, &about) {
        return Ok((caller, request));
    }
    let request = Judged {
        app,
        pool,
        caller: &caller,
        about,
    }
    .request(request)
    .await?;
    Ok((caller, request))
}

/// Whether the author has a handler for it.
fn judged(handlers: &[String], about: &About) -> bool {
    handlers.iter().any(|handler| {
        let Some((resource, action)) = handler.split_once('.') else {
            return true;
        };
        (resource == "*" || resource == about.resource) && (action == "*" || action == about.action)
    })
}

/// What the author's handler may ask of a request.
fn head(request: &Request) -> hosted::Request {
    let headers = request.headers().iter();
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let headers = headers.filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?)));
    hosted::Request {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        headers: headers.collect(),
        path_params: BTreeMap::new(),
    }
}

async fn authenticate(app: &AgentApp, pool: &Pool, asked: hosted::Request) -> Result<Arc<Caller>, Refusal> {
    let header = |name: &String| {
        let found = asked.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let cache = app.settings.auth_cache.as_ref();
    let key: Option<Vec<String>> = cache.map(|cache| cache.headers.iter().map(header).collect());
    let now = app.clock.now();
    if let Some(caller) = key.as_ref().and_then(|key| app.remembered.find(key, now)) {
        return Ok(caller);
    }
    let caller = Arc::new(pool.authenticate(asked).await.map_err(denied)?);
    if let (Some(key), Some(cache)) = (key, cache) {
        app.remembered.keep(key, caller.clone(), cache, now);
    }
    Ok(caller)
}

/// A request whose caller is known.
struct Judged<'a> {
    app: &'a AgentApp,
    pool: &'a Pool,
    caller: &'a Caller,
    about: About,
}

impl Judged<'_> {
    /// The request as the handlers leave it.
    async fn request(&self, request: Request) -> Result<Request, Refusal> {
        let (mut parts, body) = request.into_parts();
        let limit = self.app.settings.body_bytes;
        let Ok(body) = Limited::new(body, limit).collect().await else {
            return Err(refuse(AgentError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("Request body is larger than {limit} bytes"),
            )));
        };
        let body = body.to_bytes();
        if (self.about.resource, self.about.action) == ("store", "get") {
            parts.uri = self.item(&parts.uri).await?;
            return Ok(Request::from_parts(parts, Body::from(body)));
        }
        // What is no JSON is refused by its handler, which says where; here it is judged as if it were empty.
        let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
        let judged = match &sent {
            Value::Array(many) => {
                let mut judged = Vec::with_capacity(many.len());
                for one in many {
                    judged.push(self.body(one.as_object().cloned().unwrap_or_default()).await?);
                }
                Value::Array(judged)
            }
            one => self.body(one.as_object().cloned().unwrap_or_default()).await?,
        };
        let unchanged = judged == sent
            || (body.is_empty() && judged == json!({}))
            || !(sent.is_object() || sent.is_array() || body.is_empty());
        if unchanged {
            return Ok(Request::from_parts(parts, Body::from(body)));
        }
        parts.headers.remove(http::header::CONTENT_LENGTH);
        Ok(Request::from_parts(parts, Body::from(judged.to_string())))
    }

    /// Judges one body; answers what the handlers made of it.
    async fn body(&self, sent: Map<String, Value>) -> Result<Value, Refusal> {
        let About {
            resource, action, row, ..
        } = &self.about;
        let mut value = sent.clone();
        let (name, id) = match row {
            Row::Thread(id) => ("thread_id", Some(id)),
            Row::Run(id) => ("run_id", Some(id)),
            Row::Assistant(id) => ("assistant_id", Some(id)),
            Row::Cron(id) => ("cron_id", Some(id)),
            Row::None => ("", None),
        };
        if let Some(id) = id {
            value.insert(name.to_owned(), json!(id));
        }
        let asked = Value::Object(value.clone());
        let allowed = self.pool.authorize(resource, action, &asked, self.caller).await;
        let allowed = allowed.map_err(denied)?;
        if !allowed.filter.is_empty() {
            self.check(&value, &allowed.filter).await?;
        }
        let mut made = match allowed.value {
            Some(Value::Object(made)) => made,
            _ => value,
        };
        // It stands in the path.
        match sent.get(name) {
            Some(own) if id.is_some() => {
                made.insert(name.to_owned(), own.clone());
            }
            _ if id.is_some() => {
                made.remove(name);
            }
            _ => {}
        }
        if *action == "search" && !allowed.filter.is_empty() {
            narrow(&mut made, &allowed.filter)?;
        }
        Ok(Value::Object(made))
    }

    /// Looks at the rows a request is about.
    async fn check(&self, value: &Map<String, Value>, filter: &Map<String, Value>) -> Result<(), Refusal> {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        match (&self.about.row, self.about.resource, self.about.action) {
            (Row::Thread(id), _, _) => self.thread(id, filter).await,
            (Row::Run(id), _, _) => self.run(id, filter).await,
            (Row::Assistant(id), _, _) => self.assistant(id, filter).await,
            (Row::Cron(id), _, _) => self.cron(id, filter).await,
            // A thread that is there already and is somebody else's.
            (Row::None, "threads", "create") => match text("thread_id") {
                Some(id) => self
                    .thread(id, filter)
                    .await
                    .map_err(|_| refuse(AgentError::conflict(format!("Thread with ID {id} already exists")))),
                None => Ok(()),
            },
            (Row::None, "threads", "delete") => {
                let ids = value.get("thread_ids").and_then(Value::as_array);
                for id in ids.into_iter().flatten().filter_map(Value::as_str) {
                    self.thread(id, filter).await?;
                }
                Ok(())
            }
            (Row::None, "threads", "update") => match text("thread_id") {
                Some(id) => self.thread(id, filter).await,
                None => Err(refuse(AgentError::new(
                    StatusCode::FORBIDDEN,
                    "Runs of all threads are for callers that may see all threads: name a thread_id",
                ))),
            },
            _ => Ok(()),
        }
    }

    async fn thread(&self, id: &str, filter: &Map<String, Value>) -> Result<(), Refusal> {
        // What is no id is refused by the route, and a thread that is not there may be made by it.
        let Ok(thread) = id.parse::<ThreadId>() else {
            return Ok(());
        };
        let tenant = self.app.tenant;
        let row = self
            .app
            .store
            .read(async |tx| threads::get(tx, tenant, thread).await)
            .await;
        match row {
            Ok(row) => pass(&row.metadata, filter, || AgentError::no_thread(id)),
            Err(towpath_store::Error::NotFound) => Ok(()),
            Err(error) => Err(refuse(error.into())),
        }
    }

    async fn run(&self, id: &str, filter: &Map<String, Value>) -> Result<(), Refusal> {
        let Ok(run) = id.parse::<RunId>() else { return Ok(()) };
        let tenant = self.app.tenant;
        let row = self.app.store.read(async |tx| {
            let run = runs::get(tx, tenant, run).await?;
            threads::get(tx, tenant, run.thread_id).await
        });
        match row.await {
            Ok(row) => pass(&row.metadata, filter, AgentError::not_found),
            Err(towpath_store::Error::NotFound) => Ok(()),
            Err(error) => Err(refuse(error.into())),
        }
    }

    async fn assistant(&self, id: &str, filter: &Map<String, Value>) -> Result<(), Refusal> {
        let id = id.parse().unwrap_or_else(|_| AssistantId::of_graph(id));
        let tenant = self.app.tenant;
        let row = self
            .app
            .store
            .read(async |tx| assistants::get(tx, tenant, id).await)
            .await;
        match row {
            // Those that come with the graphs are everybody's to read.
            Ok(row) if self.about.action == "read" && of_system(&row.metadata) => Ok(()),
            Ok(row) => pass(&row.metadata, filter, AgentError::not_found),
            Err(towpath_store::Error::NotFound) => Ok(()),
            Err(error) => Err(refuse(error.into())),
        }
    }

    async fn cron(&self, id: &str, filter: &Map<String, Value>) -> Result<(), Refusal> {
        let Ok(cron) = id.parse::<CronId>() else { return Ok(()) };
        let tenant = self.app.tenant;
        let row = self.app.store.read(async |tx| crons::get(tx, tenant, cron).await).await;
        match row {
            Ok(row) => pass(&row.metadata, filter, AgentError::not_found),
            Err(towpath_store::Error::NotFound) => Ok(()),
            Err(error) => Err(refuse(error.into())),
        }
    }

    /// The query of an item, as the handlers leave it.
    async fn item(&self, uri: &Uri) -> Result<Uri, Refusal> {
        let query = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        let mut fields: Vec<(String, String)> = query.into_owned().collect();
        let found = |name: &str| {
            fields
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.clone())
        };
        let namespace = found("namespace").unwrap_or_default();
        let labels: Vec<&str> = namespace.split('.').filter(|label| !label.is_empty()).collect();
        let value = json!({"namespace": labels, "key": found("key")});
        let allowed = self
            .pool
            .authorize("store", "get", &value, self.caller)
            .await
            .map_err(denied)?;
        let made = allowed.value.unwrap_or(value);
        let labels: Vec<&str> = made["namespace"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        fields.retain(|(key, _)| key != "namespace" && key != "key");
        fields.push(("namespace".to_owned(), labels.join(".")));
        if let Some(key) = made["key"].as_str() {
            fields.push(("key".to_owned(), key.to_owned()));
        }
        let query = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        format!("{}?{query}", uri.path())
            .parse()
            .map_err(|error| refuse(AgentError::internal(&error)))
    }
}

fn of_system(metadata: &str) -> bool {
    let metadata: Value = serde_json::from_str(metadata).unwrap_or_default();
    metadata.get("created_by").is_some_and(|by| by == "system")
}

fn pass(metadata: &str, filter: &Map<String, Value>, missing: impl FnOnce() -> AgentError) -> Result<(), Refusal> {
    let metadata: Map<String, Value> = serde_json::from_str(metadata).unwrap_or_default();
    if filter::passes(filter, &metadata) {
        Ok(())
    } else {
        Err(refuse(missing()))
    }
}

/// Lets a search find only what passes.
fn narrow(search: &mut Map<String, Value>, filter: &Map<String, Value>) -> Result<(), Refusal> {
    let asked = search
        .get("metadata")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    match filter::contained(filter, asked) {
        Contained::All(metadata) => {
            search.insert("metadata".to_owned(), Value::Object(metadata));
        }
        Contained::Nothing => {
            // No row's metadata hold a key of this name.
            search.insert("metadata".to_owned(), json!({"__nothing__": uuid::Uuid::nil()}));
        }
        Contained::Unsearchable(what) => {
            tracing::error!("the filter of the graphs' auth has {what}, which this server cannot search by");
            return Err(refuse(AgentError::new(
                StatusCode::NOT_IMPLEMENTED,
                format!("The auth filter has {what}, which this server cannot search by"),
            )));
        }
    }
    Ok(())
}
