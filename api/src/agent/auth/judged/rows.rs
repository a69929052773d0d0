//! The rows that a request is about, and whether its caller sees them.

use std::collections::{BTreeMap, HashSet};

use axum::extract::FromRequestParts as _;
use http::StatusCode;
use http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use towpath_domain::agent::Object;
use towpath_domain::agent::visibility::{Contained, contained, passes};
use towpath_domain::{AssistantId, ThreadId};
use towpath_runtime::hosted::Denied;
use towpath_store::{self as store, assistants, crons, runs, threads};
use towpath_workflows::run_agent;

use super::{Judge, Row, defect};
use crate::agent::assistants::Deletion;
use crate::agent::auth::caller::comes_with_graph;
use crate::agent::auth::custom::{Refusal, denied, refuse};
use crate::agent::errors::AgentError;
use crate::agent::extract::{Query, read_value};

impl Judge<'_> {
    /// Looks at the rows that a request is about, which is judged with a filter.
    pub(super) async fn check(&self, row: Row, made: &Object, visible: &Object) -> Result<(), Refusal> {
        let (resource, action) = (self.about.resource, self.about.action);
        let tenant = self.app.tenant;
        match (row, resource, action) {
            (Row::Thread(id), ..) => self.thread(id, visible).await,
            (Row::Run(id), ..) => {
                let row = self.app.store.read(async |tx| {
                    let run = runs::get(tx, tenant, id).await?;
                    threads::get(tx, tenant, run.thread_id).await
                });
                let seen = seen(row.await.map(|row| row.metadata), visible)?;
                found(seen, AgentError::not_found)
            }
            (Row::Assistant(id), ..) => {
                let seen = self.sees_assistant(id, visible).await?;
                found(seen, AgentError::not_found)
            }
            (Row::Cron(id), ..) => {
                let row = self.app.store.read(async |tx| crons::get(tx, tenant, id).await).await;
                let seen = seen(row.map(|row| row.metadata), visible)?;
                found(seen, AgentError::not_found)
            }
            // One that is there already and is somebody else's.
            (Row::None, "threads", "create") => match field::<ThreadId>(made, "thread_id")? {
                Some(id) => found(self.sees_thread(id, visible).await?, || {
                    AgentError::conflict(format!("Thread with ID {id} already exists"))
                }),
                None => Ok(()),
            },
            (Row::None, "assistants", "create") => match field::<AssistantId>(made, "assistant_id")? {
                Some(id) => found(self.sees_assistant(id, visible).await?, || {
                    AgentError::conflict(format!("Assistant {id} already exists"))
                }),
                None => Ok(()),
            },
            (Row::None, "threads", "delete") => {
                for id in field::<Vec<ThreadId>>(made, "thread_ids")?.unwrap_or_default() {
                    self.thread(id, visible).await?;
                }
                Ok(())
            }
            (Row::None, "threads", "update") => match field::<ThreadId>(made, "thread_id")? {
                Some(id) => self.thread(id, visible).await,
                None => Err(refuse(AgentError::new(
                    StatusCode::FORBIDDEN,
                    "Runs of all threads are for callers that may see all threads: name a thread_id",
                ))),
            },
            // They are made, searches are narrowed, and items have no metadata.
            (Row::None, "threads", "create_run") | (Row::None, "crons", "create") => Ok(()),
            (Row::None, _, "search") | (Row::None, "store", _) => Ok(()),
            (Row::None, ..) => Err(defect(resource, action, "gave a filter that nothing is judged by")),
        }
    }

    async fn thread(&self, id: ThreadId, visible: &Object) -> Result<(), Refusal> {
        found(self.sees_thread(id, visible).await?, || AgentError::no_thread(id))
    }

    /// Whether the caller sees a thread. One that is not there may be made.
    async fn sees_thread(&self, id: ThreadId, visible: &Object) -> Result<bool, Refusal> {
        let tenant = self.app.tenant;
        let row = self.app.store.read(async |tx| threads::get(tx, tenant, id).await).await;
        seen(row.map(|row| row.metadata), visible)
    }

    async fn sees_assistant(&self, id: AssistantId, visible: &Object) -> Result<bool, Refusal> {
        let tenant = self.app.tenant;
        let row = self.app.store.read(async |tx| assistants::get(tx, tenant, id).await);
        let row = row.await.map(|row| row.metadata);
        // Those that come with the graphs are everybody's to read; whoever would make one that is there reads it at most.
        let reads = matches!(self.about.action, "read" | "create");
        if reads && row.as_ref().is_ok_and(|metadata| comes_with_graph(metadata)) {
            return Ok(true);
        }
        seen(row, visible)
    }

    /// The threads that are to go with their assistant, as far as the caller may delete them.
    pub(super) async fn deletable(
        &self,
        parts: &mut Parts,
        params: &[(String, String)],
    ) -> Result<Option<HashSet<ThreadId>>, Refusal> {
        let read = Query::<Deletion>::from_request_parts(parts, &()).await;
        let Query(how) = read.map_err(refuse)?;
        if !how.threads() || !self.judges("threads", "delete") {
            return Ok(None);
        }
        let mut deletable = HashSet::new();
        let Row::Assistant(assistant) = self.named(params).map_err(refuse)?.row else {
            return Ok(Some(deletable));
        };
        let tenant = self.app.tenant;
        let threads = self
            .app
            .store
            .read(async |tx| run_agent::threads_of(tx, tenant, assistant).await)
            .await;
        for thread in threads.map_err(|error| refuse(error.into()))? {
            let asked = json!({ "thread_id": thread });
            let allowed = match self.pool.authorize("threads", "delete", &asked, self.caller).await {
                Ok(allowed) => allowed,
                Err(Denied::Refused { .. }) => continue,
                Err(failed) => return Err(denied(failed)),
            };
            if self.sees_thread(thread, &allowed.filter).await? {
                deletable.insert(thread);
            }
        }
        Ok(Some(deletable))
    }
}

/// Whether a row passes. One that is not there hides nothing.
fn seen(metadata: store::Result<String>, visible: &Object) -> Result<bool, Refusal> {
    match metadata {
        Ok(metadata) => {
            let metadata = serde_json::from_str::<Object>(&metadata);
            Ok(metadata.is_ok_and(|metadata| passes(visible, &metadata)))
        }
        Err(store::Error::NotFound) => Ok(true),
        Err(error) => Err(refuse(error.into())),
    }
}

fn found(seen: bool, missing: impl FnOnce() -> AgentError) -> Result<(), Refusal> {
    if seen { Ok(()) } else { Err(refuse(missing())) }
}

/// Reads one field of a value as the route's handler reads it.
pub(super) fn field<T: DeserializeOwned>(made: &Object, name: &str) -> Result<Option<T>, Refusal> {
    let Some(value) = made.get(name) else {
        return Ok(None);
    };
    let alone = Value::Object(Object::from_iter([(name.to_owned(), value.clone())]));
    let mut read: BTreeMap<String, Option<T>> = read_value(alone).map_err(refuse)?;
    Ok(read.remove(name).flatten())
}

/// Lets a search find only what passes.
pub(super) fn narrow(search: &mut Object, visible: &Object) -> Result<(), Refusal> {
    let asked = search.get("metadata").and_then(Value::as_object);
    let asked = asked.cloned().unwrap_or_default();
    match contained(visible, asked) {
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
