//! Lists of tasks.

use axum::response::Response;
use serde_json::{Value, json};
use towpath_domain::agent::Object;
use towpath_domain::agent::a2a::{A2aError, Dialect, TaskState};
use towpath_domain::{RunId, ThreadId, Timestamp};
use towpath_store::a2a_tasks::{self, MAX_COUNTED, TaskDetail, TaskFilter, TaskRow};
use towpath_store::assistants::Assistant;

use super::failure::Failure;
use super::params;
use super::rpc::Call;
use super::send::context_thread;
use super::tasks::messages;
use crate::agent::app::AgentApp;
use crate::agent::auth;
use crate::agent::errors::AgentError;

/// Maximum and default number of tasks on a page.
const MAX_PAGE_SIZE: usize = 100;
const DEFAULT_PAGE_SIZE: usize = 50;
/// Maximum number of tasks on a page with artifacts or messages, which need the state of each thread.
const MAX_PAGE_SIZE_WITH_CONTENT: usize = 20;

/// The parameters of a call.
struct ListTasks {
    filter: TaskFilter,
    limit: usize,
    after: Option<PageToken>,
    history_length: usize,
    include_artifacts: bool,
}

/// Position in the order of tasks after which a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageToken {
    at: Timestamp,
    id: RunId,
    /// Number of tasks when the first page was read.
    total: i64,
}

/// Tasks of an assistant, latest change first.
pub(super) async fn list(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let mut request = ListTasks::parse(&call.params, |name| context_thread(app, name))?;
    let searched = auth::authorize_operation(app, ("threads", "search"), None, Object::new()).await;
    let (narrowed, _) = searched.map_err(Failure::Http)?;
    request.filter.metadata = narrowed
        .get("metadata")
        .filter(|metadata| metadata.is_object())
        .cloned();
    let detail = TaskDetail {
        artifact: request.include_artifacts,
        values: request.history_length > 0,
    };
    let fetch = i64::try_from(request.limit + 1).unwrap_or(i64::MAX);
    let (mut found, total) = app
        .store
        .read(async |tx| {
            let (tenant, id, filter) = (app.tenant, assistant.id, &request.filter);
            let behind = request.after.map(|place| (place.at, place.id));
            let found = a2a_tasks::list(tx, tenant, id, filter, behind, fetch, detail).await?;
            let total = match request.after {
                Some(place) => place.total,
                None => a2a_tasks::count(tx, tenant, id, filter).await?,
            };
            Ok((found, total))
        })
        .await?;
    let more = found.len() > request.limit;
    found.truncate(request.limit);
    let next = found.last().filter(|_| more).map(|last| PageToken {
        at: last.updated_at,
        id: last.id,
        total,
    });
    let tasks = found.iter().map(|row| request.task_json(row, call.dialect));
    let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
    Ok(call.success_response(json!({
        "tasks": tasks, "totalSize": total, "pageSize": request.limit,
        "nextPageToken": next.map(PageToken::encode).unwrap_or_default(),
    })))
}

impl ListTasks {
    fn task_json(&self, row: &TaskRow, dialect: Dialect) -> Result<Value, AgentError> {
        // One unreadable task does not fail the page.
        let task = row.task().unwrap_or_else(|error| {
            tracing::warn!(%error, "listing a task without its artifacts");
            row.without_outcome()
        });
        let mut shown = match self.include_artifacts {
            true => task.to_json(dialect, None),
            false => task.to_bare_json(dialect),
        };
        if let Some(history) = messages(row, dialect, Some(self.history_length))? {
            shown["history"] = Value::Array(history);
        }
        Ok(shown)
    }

    fn parse(params: &Object, thread_of: impl FnOnce(&str) -> ThreadId) -> Result<Self, A2aError> {
        let size = params::count_param(params, "pageSize")?.unwrap_or(DEFAULT_PAGE_SIZE);
        if !(1..=MAX_PAGE_SIZE).contains(&size) {
            return Err(A2aError::invalid_params(format!(
                "pageSize: expected 1 to {MAX_PAGE_SIZE}"
            )));
        }
        let history = params::count_param(params, "historyLength")?.unwrap_or(0);
        let artifacts = params::bool_param(params, "includeArtifacts")?.unwrap_or_default();
        let context = params::text_param(params, "contextId")?;
        let state = match params::text_param(params, "status")?.as_deref() {
            None | Some("TASK_STATE_UNSPECIFIED") => None,
            Some(text) => {
                let state = TaskState::parse(text);
                Some(state.ok_or_else(|| A2aError::invalid_params("status: expected the state of a task"))?)
            }
        };
        let since = params::text_param(params, "statusTimestampAfter")?.map(|text| {
            let time = Timestamp::parse(&text);
            time.map_err(|_| {
                A2aError::invalid_params("statusTimestampAfter: expected a time such as 2026-03-01T12:00:00Z")
            })
        });
        let behind = params::text_param(params, "pageToken")?.map(|text| {
            let place = PageToken::decode(&text);
            place.ok_or_else(|| A2aError::invalid_params("pageToken: expected the nextPageToken of the page before"))
        });
        Ok(Self {
            filter: TaskFilter {
                thread: context.map(|name| thread_of(&name)),
                state,
                since: since.transpose()?,
                metadata: None,
            },
            limit: match artifacts || history > 0 {
                true => size.min(MAX_PAGE_SIZE_WITH_CONTENT),
                false => size,
            },
            after: behind.transpose()?,
            history_length: history,
            include_artifacts: artifacts,
        })
    }
}

impl PageToken {
    fn encode(self) -> String {
        format!("{}.{}.{}", self.at.micros(), self.id, self.total)
    }

    fn decode(text: &str) -> Option<Self> {
        let mut fields = text.split('.');
        let place = Self {
            at: Timestamp::from_micros(fields.next()?.parse().ok()?),
            id: fields.next()?.parse().ok()?,
            total: fields
                .next()?
                .parse::<i64>()
                .ok()
                .filter(|total| (0..=MAX_COUNTED).contains(total))?,
        };
        fields.next().is_none().then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(params: Value) -> Result<ListTasks, A2aError> {
        let Value::Object(params) = params else { unreachable!() };
        ListTasks::parse(&params, |_| ThreadId::new())
    }

    #[test]
    fn a_page_token_names_a_place() {
        let place = PageToken {
            at: Timestamp::from_micros(17),
            id: RunId::new(),
            total: 3,
        };
        assert_eq!(PageToken::decode(&place.encode()), Some(place));
        let id = place.id;
        for text in [
            "",
            "5",
            "x.y",
            "5.y",
            &format!("5.{id}"),
            &format!("5.{id}.-1"),
            &format!("5.{id}.1.1"),
        ] {
            assert_eq!(PageToken::decode(text), None, "{text}");
        }
    }

    #[test]
    fn refusals_name_the_field() {
        for (params, field) in [
            (json!({"pageSize": 0}), "pageSize"),
            (json!({"pageSize": 101}), "pageSize"),
            (json!({"historyLength": -1}), "historyLength"),
            (json!({"status": "asleep"}), "status"),
            (json!({"statusTimestampAfter": "yesterday"}), "statusTimestampAfter"),
            (json!({"pageToken": "x"}), "pageToken"),
            (json!({"contextId": 5}), "contextId"),
        ] {
            let refusal = request(params).err().unwrap_or_else(|| panic!("{field} was taken"));
            assert!(refusal.message.starts_with(field), "{}", refusal.message);
        }
        let usual = request(json!({"status": "", "pageToken": ""})).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(
            (usual.limit, usual.history_length, usual.include_artifacts),
            (50, 0, false)
        );
        let shown = request(json!({"historyLength": 5, "pageSize": 100})).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(shown.limit, MAX_PAGE_SIZE_WITH_CONTENT);
    }
}
