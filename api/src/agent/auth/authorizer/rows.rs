//! Checks whether the caller may see the rows of a request.

use std::collections::{BTreeMap, HashSet};

use axum::extract::FromRequestParts as _;
use http::StatusCode;
use http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use towpath_domain::agent::Object;
use towpath_domain::agent::visibility::{MetadataFilter, matches, metadata_filter};
use towpath_domain::{AssistantId, ThreadId};
use towpath_runtime::hosted::AuthDenied;
use towpath_store::{self as store, assistants, crons, runs, threads};
use towpath_workflows::run_agent;

use super::{Authorizer, TargetRow, defect};
use crate::agent::assistants::DeleteAssistant;
use crate::agent::auth::caller::comes_with_graph;
use crate::agent::auth::refusal::{Refusal, denied, refuse};
use crate::agent::errors::AgentError;
use crate::agent::extract::{Query, read_value};

impl Authorizer<'_> {
    /// Checks the rows of a request against the filter.
    pub(super) async fn check(&self, row: TargetRow, made: &Object, visible: &Object) -> Result<(), Refusal> {
        let (resource, action) = (self.about.resource, self.about.action);
        let tenant = self.app.tenant;
        match (row, resource, action) {
            (TargetRow::Thread(id), ..) => self.thread(id, visible).await,
            (TargetRow::Run(id), ..) => {
                let row = self.app.store.read(async |tx| {
                    let run = runs::get(tx, tenant, id).await?;
                    threads::get(tx, tenant, run.thread_id).await
                });
                let seen = seen(row.await.map(|row| row.metadata), visible)?;
                found(seen, AgentError::not_found)
            }
            (TargetRow::Assistant(id), ..) => {
                let seen = self.sees_assistant(id, visible).await?;
                found(seen, AgentError::not_found)
            }
            (TargetRow::Cron(id), ..) => {
                let row = self.app.store.read(async |tx| crons::get(tx, tenant, id).await).await;
                let seen = seen(row.map(|row| row.metadata), visible)?;
                found(seen, AgentError::not_found)
            }
            // It exists and belongs to another caller.
            (TargetRow::None, "threads", "create") => match field::<ThreadId>(made, "thread_id")? {
                Some(id) => found(self.sees_thread(id, visible).await?, || {
                    AgentError::conflict(format!("Thread with ID {id} already exists"))
                }),
                None => Ok(()),
            },
            (TargetRow::None, "assistants", "create") => match field::<AssistantId>(made, "assistant_id")? {
                Some(id) => found(self.sees_assistant(id, visible).await?, || {
                    AgentError::conflict(format!("Assistant {id} already exists"))
                }),
                None => Ok(()),
            },
            (TargetRow::None, "threads", "delete") => {
                for id in field::<Vec<ThreadId>>(made, "thread_ids")?.unwrap_or_default() {
                    self.thread(id, visible).await?;
                }
                Ok(())
            }
            (TargetRow::None, "threads", "update") => match field::<ThreadId>(made, "thread_id")? {
                Some(id) => self.thread(id, visible).await,
                None => Err(refuse(AgentError::new(
                    StatusCode::FORBIDDEN,
                    "Listing runs of all threads requires access to all threads: set thread_id",
                ))),
            },
            // New rows are created, searches are filtered, and items have no metadata.
            (TargetRow::None, "threads", "create_run") | (TargetRow::None, "crons", "create") => Ok(()),
            (TargetRow::None, _, "search") | (TargetRow::None, "store", _) => Ok(()),
            (TargetRow::None, ..) => Err(defect(
                resource,
                action,
                "returned a filter for an operation without rows",
            )),
        }
    }

    async fn thread(&self, id: ThreadId, visible: &Object) -> Result<(), Refusal> {
        found(self.sees_thread(id, visible).await?, || AgentError::no_thread(id))
    }

    /// Whether the caller may see a thread. A missing thread may be created.
    async fn sees_thread(&self, id: ThreadId, visible: &Object) -> Result<bool, Refusal> {
        let tenant = self.app.tenant;
        let row = self.app.store.read(async |tx| threads::get(tx, tenant, id).await).await;
        seen(row.map(|row| row.metadata), visible)
    }

    async fn sees_assistant(&self, id: AssistantId, visible: &Object) -> Result<bool, Refusal> {
        let tenant = self.app.tenant;
        let row = self.app.store.read(async |tx| assistants::get(tx, tenant, id).await);
        let row = row.await.map(|row| row.metadata);
        // Everybody may read the default assistants; creating one that exists only reads it.
        let reads = matches!(self.about.action, "read" | "create");
        if reads && row.as_ref().is_ok_and(|metadata| comes_with_graph(metadata)) {
            return Ok(true);
        }
        seen(row, visible)
    }

    /// Of the threads to delete with their assistant, those that the caller may delete.
    pub(super) async fn deletable(
        &self,
        parts: &mut Parts,
        params: &[(String, String)],
    ) -> Result<Option<HashSet<ThreadId>>, Refusal> {
        let read = Query::<DeleteAssistant>::from_request_parts(parts, &()).await;
        let Query(how) = read.map_err(refuse)?;
        if !how.threads() || !self.has_handler("threads", "delete") {
            return Ok(None);
        }
        let mut deletable = HashSet::new();
        let TargetRow::Assistant(assistant) = self.path_target(params).map_err(refuse)?.row else {
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
                Err(AuthDenied::Refused { .. }) => continue,
                Err(failed) => return Err(denied(failed)),
            };
            if self.sees_thread(thread, &allowed.filter).await? {
                deletable.insert(thread);
            }
        }
        Ok(Some(deletable))
    }
}

/// Whether a row passes. A missing row passes.
fn seen(metadata: store::Result<String>, visible: &Object) -> Result<bool, Refusal> {
    match metadata {
        Ok(metadata) => {
            let metadata = serde_json::from_str::<Object>(&metadata);
            Ok(metadata.is_ok_and(|metadata| matches(visible, &metadata)))
        }
        Err(store::Error::NotFound) => Ok(true),
        Err(error) => Err(refuse(error.into())),
    }
}

fn found(seen: bool, missing: impl FnOnce() -> AgentError) -> Result<(), Refusal> {
    if seen { Ok(()) } else { Err(refuse(missing())) }
}

/// Reads a field like the route's handler does.
pub(super) fn field<T: DeserializeOwned>(made: &Object, name: &str) -> Result<Option<T>, Refusal> {
    let Some(value) = made.get(name) else {
        return Ok(None);
    };
    let alone = Value::Object(Object::from_iter([(name.to_owned(), value.clone())]));
    let mut read: BTreeMap<String, Option<T>> = read_value(alone).map_err(refuse)?;
    Ok(read.remove(name).flatten())
}

/// Restricts a search to visible rows.
pub(super) fn narrow(search: &mut Object, visible: &Object) -> Result<(), Refusal> {
    let asked = search.get("metadata").and_then(Value::as_object);
    let asked = asked.cloned().unwrap_or_default();
    match metadata_filter(visible, asked) {
        MetadataFilter::Contains(metadata) => {
            search.insert("metadata".to_owned(), Value::Object(metadata));
        }
        MetadataFilter::MatchesNothing => {
            // No row has this metadata.
            search.insert("metadata".to_owned(), json!({"__nothing__": uuid::Uuid::nil()}));
        }
        MetadataFilter::Unsearchable(what) => {
            tracing::error!("the filter of the graphs' auth contains {what}, which this server cannot search by");
            return Err(refuse(AgentError::new(
                StatusCode::NOT_IMPLEMENTED,
                format!("The auth filter contains {what}, which this server cannot search by"),
            )));
        }
    }
    Ok(())
}
