//! Authorization of a request by the handlers of the graphs' author.
//!
//! They see what the route's handler will read: path ids in canonical form, and a body that is parsed like in the handler
//! and written again. So no unchecked data passes.

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
use towpath_runtime::hosted::{AuthDenied, AuthHandlers, Caller, Pool};

use self::rows::{field, narrow};
use super::refusal::{Refusal, denied, refuse};
use super::route::{RequestInput, ResourceAction};
use crate::agent::a2a::card;
use crate::agent::agent_protocol::{self, JudgedRun};
use crate::agent::app::AgentApp;
use crate::agent::assistants;
use crate::agent::errors::AgentError;
use crate::agent::event_streaming::commands::starts_run;
use crate::agent::extract::{Body as ObjectBody, ListBody, PathValue as _, Query};
use crate::agent::items::GetItem;
use crate::agent::runs::batch;

pub(super) struct Authorizer<'a> {
    app: &'a AgentApp,
    pool: &'a Pool,
    handlers: &'a AuthHandlers,
    caller: &'a Caller,
    about: ResourceAction,
}

/// The request to pass on, the filter for rows, and the threads that may be deleted with their assistant.
pub(super) type AuthorizedRequest = (Request, Object, Option<HashSet<ThreadId>>);

/// The row whose metadata are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetRow {
    /// None, or rows named in the body.
    None,
    Thread(ThreadId),
    /// The thread of a run.
    Run(RunId),
    Assistant(AssistantId),
    Cron(CronId),
}

struct PathTarget {
    row: TargetRow,
    /// Ids by the names that auth handlers use.
    ids: Vec<(&'static str, String)>,
}

impl<'a> Authorizer<'a> {
    pub(super) const fn new(
        app: &'a AgentApp,
        pool: &'a Pool,
        handlers: &'a AuthHandlers,
        caller: &'a Caller,
        about: ResourceAction,
    ) -> Self {
        Self {
            app,
            pool,
            handlers,
            caller,
            about,
        }
    }

    /// Whether the author has a handler for the operation.
    fn has_handler(&self, resource: &str, action: &str) -> bool {
        self.handlers.handlers.iter().any(|handler| {
            let Some((of, does)) = handler.split_once('.') else {
                return true;
            };
            (of == "*" || of == resource) && (does == "*" || does == action)
        })
    }

    /// The request after the auth handlers.
    pub(super) async fn authorize(
        &self,
        request: Request,
        params: &[(String, String)],
    ) -> Result<AuthorizedRequest, Refusal> {
        let ResourceAction { resource, action, .. } = self.about;
        let (mut parts, body) = request.into_parts();
        let (body, visible) = if self.has_handler(resource, action) || self.about.input == RequestInput::Command {
            let named = self.path_target(params).map_err(refuse)?;
            parts.headers.remove(CONTENT_LENGTH);
            self.authorize_input(&named, &mut parts, body).await?
        } else {
            (body, Object::new())
        };
        let deletable = match (resource, action) {
            ("assistants", "delete") => self.deletable(&mut parts, params).await?,
            _ => None,
        };
        Ok((Request::from_parts(parts, body), visible, deletable))
    }

    /// Authorizes a request by its input. Returns the body to pass on and the filter for rows.
    async fn authorize_input(
        &self,
        named: &PathTarget,
        parts: &mut Parts,
        body: Body,
    ) -> Result<(Body, Object), Refusal> {
        let text = |object: Object| Body::from(Value::Object(object).to_string());
        match self.about.input {
            RequestInput::Nothing => {
                let (_, visible) = self.authorize_value(named, Object::new()).await?;
                Ok((Body::empty(), visible))
            }
            RequestInput::Rpc => {
                let (_, visible) = self.authorize_value(named, Object::new()).await?;
                Ok((body, visible))
            }
            RequestInput::Assistant => {
                let named = self.query_assistant(parts).await?;
                let (_, visible) = self.authorize_value(&named, Object::new()).await?;
                Ok((Body::empty(), visible))
            }
            RequestInput::Item => {
                let visible = self.authorize_item(named, parts).await?;
                Ok((Body::empty(), visible))
            }
            RequestInput::Object => {
                let sent = self.object(body).await?;
                let (made, visible) = self.authorize_value(named, sent).await?;
                Ok((text(made), visible))
            }
            RequestInput::Run => {
                // The handlers know one name of each field, and the thread as if it were in the path.
                let sent = self.object(body).await?;
                let (sent, protocol) = agent_protocol::rename_run(sent).map_err(refuse)?;
                let thread = protocol.and_then(|protocol| protocol.thread);
                let on_thread = thread.map(|id| PathTarget {
                    row: TargetRow::Thread(id),
                    ids: vec![("thread_id", id.to_string())],
                });
                let (made, visible) = self.authorize_value(on_thread.as_ref().unwrap_or(named), sent).await?;
                parts.extensions.insert(JudgedRun(protocol));
                Ok((text(made), visible))
            }
            RequestInput::RunSearch => {
                let sent = agent_protocol::rename_search(self.object(body).await?);
                let (made, visible) = self.authorize_value(named, sent).await?;
                Ok((text(made), visible))
            }
            RequestInput::Command => {
                let sent = self.object(body).await?;
                let (made, visible) = self.authorize_command(named, sent).await?;
                Ok((text(made), visible))
            }
            RequestInput::UnderNamespace(field) => {
                let sent = self.object(body).await?;
                let (made, visible) = self.authorize_under_namespace(named, field, sent).await?;
                Ok((text(made), visible))
            }
            RequestInput::Objects => {
                let made = self.objects(named, body).await?;
                // Each run has its own thread.
                Ok((Body::from(Value::Array(made).to_string()), Object::new()))
            }
        }
    }

    /// Reads the path like the handlers do.
    fn path_target(&self, params: &[(String, String)]) -> Result<PathTarget, AgentError> {
        let mut named = PathTarget {
            row: TargetRow::None,
            ids: Vec::new(),
        };
        for (name, text) in params {
            let (name, id, row) = match name.as_str() {
                "thread_id" => {
                    let id = ThreadId::read(text)?;
                    ("thread_id", id.to_string(), TargetRow::Thread(id))
                }
                "run_id" => {
                    let id = RunId::read(text)?;
                    ("run_id", id.to_string(), TargetRow::Run(id))
                }
                "assistant_id" | "agent_id" => {
                    let id = assistants::resolve_assistant(self.app, text)?;
                    ("assistant_id", id.to_string(), TargetRow::Assistant(id))
                }
                "cron_id" => {
                    let id = CronId::read(text)?;
                    ("cron_id", id.to_string(), TargetRow::Cron(id))
                }
                // Part of other targets.
                _ => continue,
            };
            // The first id names the owner of the others.
            if named.ids.is_empty() {
                named.row = row;
            }
            named.ids.push((name, id));
        }
        Ok(named)
    }

    /// The assistant in the query.
    async fn query_assistant(&self, parts: &mut Parts) -> Result<PathTarget, Refusal> {
        let read = Query::<card::CardQuery>::from_request_parts(parts, &()).await;
        let Query(which) = read.map_err(refuse)?;
        let id = which.assistant(self.app).map_err(refuse)?;
        Ok(PathTarget {
            row: TargetRow::Assistant(id),
            ids: vec![("assistant_id", id.to_string())],
        })
    }

    /// Authorizes an operation that was parsed before.
    pub(super) async fn authorize_operation(
        &self,
        thread: Option<ThreadId>,
        value: Object,
    ) -> Result<(Object, Object), Refusal> {
        let ResourceAction { resource, action, .. } = self.about;
        if !self.has_handler(resource, action) {
            return Ok((value, Object::new()));
        }
        let named = PathTarget {
            row: thread.map_or(TargetRow::None, TargetRow::Thread),
            ids: thread.map(|id| ("thread_id", id.to_string())).into_iter().collect(),
        };
        self.authorize_value(&named, value).await
    }

    /// Authorizes an operation on an assistant without input.
    pub(super) async fn authorize_assistant(&self, id: AssistantId) -> Result<(), Refusal> {
        let ResourceAction { resource, action, .. } = self.about;
        if !self.has_handler(resource, action) {
            return Ok(());
        }
        let named = PathTarget {
            row: TargetRow::Assistant(id),
            ids: vec![("assistant_id", id.to_string())],
        };
        self.authorize_value(&named, Object::new()).await?;
        Ok(())
    }

    async fn object(&self, body: Body) -> Result<Object, Refusal> {
        let read = ObjectBody::<Object>::from_request(Request::new(body), self.app).await;
        let ObjectBody(object) = read.map_err(refuse)?;
        Ok(object)
    }

    async fn objects(&self, named: &PathTarget, body: Body) -> Result<Vec<Value>, Refusal> {
        let read = ListBody::<Object>::from_request(Request::new(body), self.app).await;
        let ListBody(sent) = read.map_err(refuse)?;
        batch::check_count(sent.len()).map_err(refuse)?;
        let mut all = Vec::with_capacity(sent.len());
        for one in sent {
            let (made, _) = self.authorize_value(named, one).await?;
            all.push(Value::Object(made));
        }
        Ok(all)
    }

    /// Authorizes one value; returns it as changed by the handlers, and the filter for rows.
    async fn authorize_value(&self, named: &PathTarget, mut value: Object) -> Result<(Object, Object), Refusal> {
        let ResourceAction { resource, action, .. } = self.about;
        for (name, id) in &named.ids {
            value.insert((*name).to_owned(), json!(id));
        }
        let asked = Value::Object(value);
        let allowed = self.pool.authorize(resource, action, &asked, self.caller).await;
        let allowed = allowed.map_err(denied)?;
        let Value::Object(mut made) = allowed.value.unwrap_or(asked) else {
            return Err(defect(
                resource,
                action,
                "changed the value to something other than an object",
            ));
        };
        let visible = allowed.filter;
        if !visible.is_empty() {
            self.check(named.row, &made, &visible).await?;
        }
        // Ids in the path take precedence.
        for (name, _) in &named.ids {
            made.remove(*name);
        }
        if action == "search" && !visible.is_empty() {
            narrow(&mut made, &visible)?;
        }
        Ok((made, visible))
    }

    /// Authorizes a command of the streaming protocol: by its `params` if it starts a run, else as reading the thread.
    async fn authorize_command(&self, named: &PathTarget, mut sent: Object) -> Result<(Object, Object), Refusal> {
        let method = sent.get("method").and_then(Value::as_str).unwrap_or_default();
        let starts = starts_run(method);
        let action = if starts { self.about.action } else { "read" };
        let about = ResourceAction {
            action,
            input: RequestInput::Object,
            ..self.about
        };
        let judge = Authorizer { about, ..*self };
        if !judge.has_handler(about.resource, action) {
            return Ok((sent, Object::new()));
        }
        if !starts {
            let (_, visible) = judge.authorize_value(named, Object::new()).await?;
            return Ok((sent, visible));
        }
        let params = match sent.remove("params") {
            Some(Value::Object(params)) => params,
            // The route's handler rejects it.
            _ => Object::new(),
        };
        let (made, visible) = judge.authorize_value(named, params).await?;
        sent.insert("params".to_owned(), Value::Object(made));
        Ok((sent, visible))
    }

    /// As [`Self::authorize_value`], with `field` renamed to `namespace` for the handlers.
    async fn authorize_under_namespace(
        &self,
        named: &PathTarget,
        field: &str,
        mut value: Object,
    ) -> Result<(Object, Object), Refusal> {
        let sent = value.remove(field);
        let namespace = sent.clone().filter(|namespace| !namespace.is_null());
        value.insert("namespace".to_owned(), namespace.unwrap_or_else(|| json!([])));
        let (mut made, visible) = self.authorize_value(named, value).await?;
        let namespace = made.remove("namespace").unwrap_or_else(|| json!([]));
        // A missing required field is reported by the route's handler.
        if sent.is_some() || namespace != json!([]) {
            made.insert(field.to_owned(), namespace);
        }
        Ok((made, visible))
    }

    /// Authorizes the item in a query, and writes the result back into the query.
    async fn authorize_item(&self, named: &PathTarget, parts: &mut Parts) -> Result<Object, Refusal> {
        let read = Query::<GetItem>::from_request_parts(parts, &()).await;
        let Query(which) = read.map_err(refuse)?;
        let (namespace, key) = which.location().map_err(refuse)?;
        let value = Object::from_iter([
            ("namespace".to_owned(), json!(namespace.labels())),
            ("key".to_owned(), json!(key)),
        ]);
        let (made, visible) = self.authorize_value(named, value).await?;
        let namespace = field::<Vec<String>>(&made, "namespace")?.unwrap_or_default();
        let key = field::<String>(&made, "key")?.unwrap_or_default();
        let query = which.query_for(namespace, &key).map_err(refuse)?;
        let uri = format!("{}?{query}", parts.uri.path()).parse::<Uri>();
        parts.uri = uri.map_err(|error| refuse(AgentError::internal(&error)))?;
        Ok(visible)
    }
}

/// An auth handler returned something invalid.
fn defect(resource: &str, action: &str, what: &str) -> Refusal {
    denied(AuthDenied::Failed(format!(
        "the handler for {resource}.{action} {what}"
    )))
}
