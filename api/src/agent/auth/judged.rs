//! A request whose caller is known, before the handlers of the graphs' author.
//!
//! What they judge is what the route's handler will read: ids of the path in the one way they are written here, and a body
//! that was read as its handler reads it and is written anew. So nothing passes that was not judged.

mod rows;

use std::collections::HashSet;

use axum::body::Body;
use axum::extract::{FromRequest as _, FromRequestParts as _, Request};
use http::Uri;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use serde_json::{Value, json};
use towpath_domain::agent::Object;
use towpath_domain::{AssistantId, CronId, RunId, ThreadId};
use towpath_runtime::hosted::{AuthHandlers, Caller, Denied, Pool};

use self::rows::{field, narrow};
use super::custom::{Refusal, denied, refuse};
use super::route::{About, Input};
use crate::agent::a2a::card;
use crate::agent::app::AgentApp;
use crate::agent::assistants;
use crate::agent::errors::AgentError;
use crate::agent::extract::{Body as ObjectBody, ListBody, PathValue as _, Query};
use crate::agent::items::Which;
use crate::agent::protocol;
use crate::agent::runs::batch;

/// What a request is judged by.
pub(super) struct Judge<'a> {
    app: &'a AgentApp,
    pool: &'a Pool,
    handlers: &'a AuthHandlers,
    caller: &'a Caller,
    about: About,
}

/// The request as it goes on, what rows must pass, and the threads that may be deleted with their assistant.
pub(super) type Judged = (Request, Object, Option<HashSet<ThreadId>>);

/// A row whose metadata decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    /// None, or those that the body names.
    None,
    Thread(ThreadId),
    /// The thread of a run.
    Run(RunId),
    Assistant(AssistantId),
    Cron(CronId),
}

/// What the path names.
struct Named {
    row: Row,
    /// Ids by the names that the author's handlers know them under.
    ids: Vec<(&'static str, String)>,
}

impl<'a> Judge<'a> {
    pub(super) const fn new(
        app: &'a AgentApp,
        pool: &'a Pool,
        handlers: &'a AuthHandlers,
        caller: &'a Caller,
        about: About,
    ) -> Self {
        Self {
            app,
            pool,
            handlers,
            caller,
            about,
        }
    }

    /// Whether the author has a handler for it.
    fn judges(&self, resource: &str, action: &str) -> bool {
        self.handlers.handlers.iter().any(|handler| {
            let Some((of, does)) = handler.split_once('.') else {
                return true;
            };
            (of == "*" || of == resource) && (does == "*" || does == action)
        })
    }

    /// The request as the author's handlers leave it.
    pub(super) async fn request(&self, request: Request, params: &[(String, String)]) -> Result<Judged, Refusal> {
        let About { resource, action, .. } = self.about;
        let (mut parts, body) = request.into_parts();
        let (body, visible) = if self.judges(resource, action) || self.about.input == Input::Command {
            let named = self.named(params).map_err(refuse)?;
            parts.headers.remove(CONTENT_LENGTH);
            self.passed(&named, &mut parts, body).await?
        } else {
            (body, Object::new())
        };
        let deletable = match (resource, action) {
            ("assistants", "delete") => self.deletable(&mut parts, params).await?,
            _ => None,
        };
        Ok((Request::from_parts(parts, body), visible, deletable))
    }

    /// Judges a request by what its handler reads. Answers the body that goes on, and what rows must pass.
    async fn passed(&self, named: &Named, parts: &mut Parts, body: Body) -> Result<(Body, Object), Refusal> {
        let text = |object: Object| Body::from(Value::Object(object).to_string());
        match self.about.input {
            Input::Nothing => {
                let (_, visible) = self.value(named, Object::new()).await?;
                Ok((Body::empty(), visible))
            }
            Input::Rpc => {
                let (_, visible) = self.value(named, Object::new()).await?;
                Ok((body, visible))
            }
            Input::Assistant => {
                let named = self.assistant(parts).await?;
                let (_, visible) = self.value(&named, Object::new()).await?;
                Ok((Body::empty(), visible))
            }
            Input::Item => {
                let visible = self.item(named, parts).await?;
                Ok((Body::empty(), visible))
            }
            Input::Object => {
                let sent = self.object(body).await?;
                let (made, visible) = self.value(named, sent).await?;
                Ok((text(made), visible))
            }
            Input::Command => {
                let sent = self.object(body).await?;
                let (made, visible) = self.command(named, sent).await?;
                Ok((text(made), visible))
            }
            Input::Below(field) => {
                let sent = self.object(body).await?;
                let (made, visible) = self.below(named, field, sent).await?;
                Ok((text(made), visible))
            }
            Input::Objects => {
                let made = self.objects(named, body).await?;
                // Each brings a thread of its own.
                Ok((Body::from(Value::Array(made).to_string()), Object::new()))
            }
        }
    }

    /// Reads what the path names, as the handlers do.
    fn named(&self, params: &[(String, String)]) -> Result<Named, AgentError> {
        let mut named = Named {
            row: Row::None,
            ids: Vec::new(),
        };
        for (name, text) in params {
            let (name, id, row) = match name.as_str() {
                "thread_id" => {
                    let id = ThreadId::read(text)?;
                    ("thread_id", id.to_string(), Row::Thread(id))
                }
                "run_id" => {
                    let id = RunId::read(text)?;
                    ("run_id", id.to_string(), Row::Run(id))
                }
                "assistant_id" => {
                    let id = assistants::named(self.app, text)?;
                    ("assistant_id", id.to_string(), Row::Assistant(id))
                }
                "cron_id" => {
                    let id = CronId::read(text)?;
                    ("cron_id", id.to_string(), Row::Cron(id))
                }
                // Part of what the others name.
                _ => continue,
            };
            // The first one says whose the others are.
            if named.ids.is_empty() {
                named.row = row;
            }
            named.ids.push((name, id));
        }
        Ok(named)
    }

    /// The assistant that a query names.
    async fn assistant(&self, parts: &mut Parts) -> Result<Named, Refusal> {
        let read = Query::<card::CardQuery>::from_request_parts(parts, &()).await;
        let Query(which) = read.map_err(refuse)?;
        let id = which.assistant(self.app).map_err(refuse)?;
        Ok(Named {
            row: Row::Assistant(id),
            ids: vec![("assistant_id", id.to_string())],
        })
    }

    /// Judges one operation that was read before.
    pub(super) async fn operation(&self, thread: Option<ThreadId>, value: Object) -> Result<(Object, Object), Refusal> {
        let About { resource, action, .. } = self.about;
        if !self.judges(resource, action) {
            return Ok((value, Object::new()));
        }
        let named = Named {
            row: thread.map_or(Row::None, Row::Thread),
            ids: thread.map(|id| ("thread_id", id.to_string())).into_iter().collect(),
        };
        self.value(&named, value).await
    }

    async fn object(&self, body: Body) -> Result<Object, Refusal> {
        let read = ObjectBody::<Object>::from_request(Request::new(body), self.app).await;
        let ObjectBody(object) = read.map_err(refuse)?;
        Ok(object)
    }

    async fn objects(&self, named: &Named, body: Body) -> Result<Vec<Value>, Refusal> {
        let read = ListBody::<Object>::from_request(Request::new(body), self.app).await;
        let ListBody(sent) = read.map_err(refuse)?;
        batch::check_count(sent.len()).map_err(refuse)?;
        let mut all = Vec::with_capacity(sent.len());
        for one in sent {
            let (made, _) = self.value(named, one).await?;
            all.push(Value::Object(made));
        }
        Ok(all)
    }

    /// Judges one value; answers what the handlers made of it, and what rows must pass.
    async fn value(&self, named: &Named, mut value: Object) -> Result<(Object, Object), Refusal> {
        let About { resource, action, .. } = self.about;
        for (name, id) in &named.ids {
            value.insert((*name).to_owned(), json!(id));
        }
        let asked = Value::Object(value);
        let allowed = self.pool.authorize(resource, action, &asked, self.caller).await;
        let allowed = allowed.map_err(denied)?;
        let Value::Object(mut made) = allowed.value.unwrap_or(asked) else {
            return Err(defect(resource, action, "left a value that is no object"));
        };
        let visible = allowed.filter;
        if !visible.is_empty() {
            self.check(named.row, &made, &visible).await?;
        }
        // They stand in the path, which decides.
        for (name, _) in &named.ids {
            made.remove(*name);
        }
        if action == "search" && !visible.is_empty() {
            narrow(&mut made, &visible)?;
        }
        Ok((made, visible))
    }

    /// Judges a command of the streaming protocol: by its `params` where it starts a run, else as what reads the thread.
    async fn command(&self, named: &Named, mut sent: Object) -> Result<(Object, Object), Refusal> {
        let method = sent.get("method").and_then(Value::as_str).unwrap_or_default();
        let starts = protocol::starts_a_run(method);
        let action = if starts { self.about.action } else { "read" };
        let about = About {
            action,
            input: Input::Object,
            ..self.about
        };
        let judge = Judge { about, ..*self };
        if !judge.judges(about.resource, action) {
            return Ok((sent, Object::new()));
        }
        if !starts {
            let (_, visible) = judge.value(named, Object::new()).await?;
            return Ok((sent, visible));
        }
        let params = match sent.remove("params") {
            Some(Value::Object(params)) => params,
            // The route's handler refuses it.
            _ => Object::new(),
        };
        let (made, visible) = judge.value(named, params).await?;
        sent.insert("params".to_owned(), Value::Object(made));
        Ok((sent, visible))
    }

    /// As [`Judge::value`], where the handlers know `field` as `namespace`.
    async fn below(&self, named: &Named, field: &str, mut value: Object) -> Result<(Object, Object), Refusal> {
        let sent = value.remove(field);
        let namespace = sent.clone().filter(|namespace| !namespace.is_null());
        value.insert("namespace".to_owned(), namespace.unwrap_or_else(|| json!([])));
        let (mut made, visible) = self.value(named, value).await?;
        let namespace = made.remove("namespace").unwrap_or_else(|| json!([]));
        // What was not sent, and is wanted, is missed by the route's handler.
        if sent.is_some() || namespace != json!([]) {
            made.insert(field.to_owned(), namespace);
        }
        Ok((made, visible))
    }

    /// Judges the item that a query names, and names there what the handlers made of it.
    async fn item(&self, named: &Named, parts: &mut Parts) -> Result<Object, Refusal> {
        let read = Query::<Which>::from_request_parts(parts, &()).await;
        let Query(which) = read.map_err(refuse)?;
        let (namespace, key) = which.place().map_err(refuse)?;
        let value = Object::from_iter([
            ("namespace".to_owned(), json!(namespace.labels())),
            ("key".to_owned(), json!(key)),
        ]);
        let (made, visible) = self.value(named, value).await?;
        let namespace = field::<Vec<String>>(&made, "namespace")?.unwrap_or_default();
        let key = field::<String>(&made, "key")?.unwrap_or_default();
        let query = which.query_for(namespace, &key).map_err(refuse)?;
        let uri = format!("{}?{query}", parts.uri.path()).parse::<Uri>();
        parts.uri = uri.map_err(|error| refuse(AgentError::internal(&error)))?;
        Ok(visible)
    }
}

/// The author's handler did what it must not.
fn defect(resource: &str, action: &str, what: &str) -> Refusal {
    denied(Denied::Failed(format!("the handler for {resource}.{action} {what}")))
}
