//! Lists of tasks.

use axum::response::Response;
use serde_json::{Value, json};
use towpath_domain::agent::Object;
use towpath_domain::agent::a2a::{Dialect, Refusal, TaskState};
use towpath_domain::{RunId, ThreadId, Timestamp};
use towpath_store::a2a_tasks::{self, Detail, Filter, MOST_COUNTED, TaskRow};
use towpath_store::assistants::Assistant;

use super::failure::Failure;
use super::params;
use super::rpc::Call;
use super::tasks::messages;
use crate::agent::app::AgentApp;
use crate::agent::auth;
use crate::agent::errors::AgentError;

/// The most tasks of a page, and how many unless said.
const MOST: usize = 100;
const USUAL: usize = 50;
/// The most tasks of a page that shows artifacts or messages: each has what it brought read, or the state of its thread.
const MOST_WITH_CONTENT: usize = 20;

/// The parameters of a call.
struct ListRequest {
    filter: Filter,
    limit: usize,
    behind: Option<Place>,
    history: usize,
    artifacts: bool,
}

/// A place in the order of tasks, behind which a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    at: Timestamp,
    id: RunId,
    /// How many tasks the first page counted.
    total: i64,
}

/// Tasks of an assistant, those that changed last first.
pub(super) async fn list(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let mut request = ListRequest::read(&call.params)?;
    let searched = auth::allow(app, ("threads", "search"), None, Object::new()).await;
    let (narrowed, _) = searched.map_err(Failure::Http)?;
    request.filter.metadata = narrowed
        .get("metadata")
        .filter(|metadata| metadata.is_object())
        .cloned();
    let detail = Detail {
        artifact: request.artifacts,
        values: request.history > 0,
    };
    let fetch = i64::try_from(request.limit + 1).unwrap_or(i64::MAX);
    let (mut found, total) = app
        .store
        .read(async |tx| {
            let (tenant, id, filter) = (app.tenant, assistant.id, &request.filter);
            let behind = request.behind.map(|place| (place.at, place.id));
            let found = a2a_tasks::list(tx, tenant, id, filter, behind, fetch, detail).await?;
            let total = match request.behind {
                Some(place) => place.total,
                None => a2a_tasks::count(tx, tenant, id, filter).await?,
            };
            Ok((found, total))
        })
        .await?;
    let more = found.len() > request.limit;
    found.truncate(request.limit);
    let next = found.last().filter(|_| more).map(|last| Place {
        at: last.updated_at,
        id: last.id,
        total,
    });
    let tasks = found.iter().map(|row| request.shown(row, call.dialect));
    let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
    Ok(call.answer(json!({
        "tasks": tasks, "totalSize": total, "pageSize": request.limit,
        "nextPageToken": next.map(Place::write).unwrap_or_default(),
    })))
}

impl ListRequest {
    fn shown(&self, row: &TaskRow, dialect: Dialect) -> Result<Value, AgentError> {
        // A page does not fail for one of its tasks.
        let task = row.task().unwrap_or_else(|error| {
            tracing::warn!(%error, "a task is listed without what it brought");
            row.bare()
        });
        let mut shown = match self.artifacts {
            true => task.write(dialect, None),
            false => task.bare(dialect),
        };
        if let Some(history) = messages(row, dialect, Some(self.history))? {
            shown["history"] = Value::Array(history);
        }
        Ok(shown)
    }

    fn read(params: &Object) -> Result<Self, Refusal> {
        let size = params::count(params, "pageSize")?.unwrap_or(USUAL);
        if !(1..=MOST).contains(&size) {
            return Err(Refusal::params(format!("pageSize: expected 1 to {MOST}")));
        }
        let history = params::count(params, "historyLength")?.unwrap_or(0);
        let artifacts = params::flag(params, "includeArtifacts")?.unwrap_or_default();
        let thread = params::text(params, "contextId")?;
        let state = match params::text(params, "status")?.as_deref() {
            None | Some("TASK_STATE_UNSPECIFIED") => None,
            Some(text) => {
                let state = TaskState::parse(text);
                Some(state.ok_or_else(|| Refusal::params("status: expected the state of a task"))?)
            }
        };
        let since = params::text(params, "statusTimestampAfter")?.map(|text| {
            let time = Timestamp::parse(&text);
            time.map_err(|_| Refusal::params("statusTimestampAfter: expected a time such as 2026-03-01T12:00:00Z"))
        });
        let behind = params::text(params, "pageToken")?.map(|text| {
            let place = Place::read(&text);
            place.ok_or_else(|| Refusal::params("pageToken: expected the nextPageToken of the page before"))
        });
        Ok(Self {
            filter: Filter {
                // A context that cannot be one has no tasks.
                thread: thread.map(|text| text.parse().unwrap_or(ThreadId(uuid::Uuid::nil()))),
                state,
                since: since.transpose()?,
                metadata: None,
            },
            limit: match artifacts || history > 0 {
                true => size.min(MOST_WITH_CONTENT),
                false => size,
            },
            behind: behind.transpose()?,
            history,
            artifacts,
        })
    }
}

impl Place {
    fn write(self) -> String {
        format!("{}.{}.{}", self.at.micros(), self.id, self.total)
    }

    fn read(text: &str) -> Option<Self> {
        let mut fields = text.split('.');
        let place = Self {
            at: Timestamp::from_micros(fields.next()?.parse().ok()?),
            id: fields.next()?.parse().ok()?,
            total: fields
                .next()?
                .parse::<i64>()
                .ok()
                .filter(|total| (0..=MOST_COUNTED).contains(total))?,
        };
        fields.next().is_none().then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(params: Value) -> Result<ListRequest, Refusal> {
        let Value::Object(params) = params else { unreachable!() };
        ListRequest::read(&params)
    }

    #[test]
    fn a_page_token_names_a_place() {
        let place = Place {
            at: Timestamp::from_micros(17),
            id: RunId::new(),
            total: 3,
        };
        assert_eq!(Place::read(&place.write()), Some(place));
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
            assert_eq!(Place::read(text), None, "{text}");
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
        assert_eq!((usual.limit, usual.history, usual.artifacts), (50, 0, false));
        let shown = request(json!({"historyLength": 5, "pageSize": 100})).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(shown.limit, MOST_WITH_CONTENT);
    }
}
