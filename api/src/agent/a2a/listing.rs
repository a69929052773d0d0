//! Lists of tasks.

use axum::response::Response;
use serde_json::{Value, json};
use towpath_domain::agent::Object;
use towpath_domain::agent::a2a::{Refusal, TaskState};
use towpath_domain::{RunId, ThreadId, Timestamp};
use towpath_store::a2a_tasks::{self, Filter, Values};
use towpath_store::assistants::Assistant;

use super::failure::Failure;
use super::params;
use super::rpc::Call;
use super::tasks::messages;
use crate::agent::app::AgentApp;
use crate::agent::auth;

/// The most tasks of a page, and how many unless said.
const MOST: usize = 100;
const USUAL: usize = 50;
/// The most tasks of a page that shows messages: each has the state of its thread read.
const MOST_WITH_HISTORY: usize = 20;

/// What is asked for.
struct Asked {
    filter: Filter,
    limit: usize,
    behind: Option<(Timestamp, RunId)>,
    history: usize,
    artifacts: bool,
}

/// Tasks of an assistant, those that changed last first.
pub(super) async fn list(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let mut asked = Asked::read(&call.params)?;
    let searched = auth::allow(app, ("threads", "search"), None, Object::new()).await;
    let (narrowed, _) = searched.map_err(Failure::Http)?;
    asked.filter.metadata = narrowed
        .get("metadata")
        .filter(|metadata| metadata.is_object())
        .cloned();
    let values = match asked.history {
        0 => Values::Left,
        _ => Values::Read,
    };
    let fetch = i64::try_from(asked.limit + 1).unwrap_or(i64::MAX);
    let (mut found, total) = app
        .store
        .read(async |tx| {
            let (tenant, id, filter) = (app.tenant, assistant.id, &asked.filter);
            let found = a2a_tasks::list(tx, tenant, id, filter, asked.behind, fetch, values).await?;
            Ok((found, a2a_tasks::count(tx, tenant, id, filter).await?))
        })
        .await?;
    let more = found.len() > asked.limit;
    found.truncate(asked.limit);
    let next = found
        .last()
        .filter(|_| more)
        .map(|last| token(last.updated_at, last.id));
    let mut tasks = Vec::with_capacity(found.len());
    for standing in &found {
        let task = standing.task()?;
        let history = messages(standing, call.dialect, Some(asked.history))?;
        let mut shown = match asked.artifacts {
            true => task.write(call.dialect, None),
            false => task.bare(call.dialect),
        };
        if let Some(history) = history {
            shown["history"] = Value::Array(history);
        }
        tasks.push(shown);
    }
    Ok(call.answer(json!({
        "tasks": tasks, "totalSize": total, "pageSize": asked.limit, "nextPageToken": next.unwrap_or_default(),
    })))
}

impl Asked {
    fn read(params: &Object) -> Result<Self, Refusal> {
        let size = params::count(params, "pageSize")?.unwrap_or(USUAL);
        if !(1..=MOST).contains(&size) {
            return Err(Refusal::params(format!("pageSize: expected 1 to {MOST}")));
        }
        let history = params::count(params, "historyLength")?.unwrap_or(0);
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
            let text = read_token(&text);
            text.ok_or_else(|| Refusal::params("pageToken: expected the nextPageToken of the page before"))
        });
        Ok(Self {
            filter: Filter {
                // A context that cannot be one has no tasks.
                thread: thread.map(|text| text.parse().unwrap_or(ThreadId(uuid::Uuid::nil()))),
                state,
                since: since.transpose()?,
                metadata: None,
            },
            limit: match history {
                0 => size,
                _ => size.min(MOST_WITH_HISTORY),
            },
            behind: behind.transpose()?,
            history,
            artifacts: params::flag(params, "includeArtifacts")?.unwrap_or_default(),
        })
    }
}

fn token(at: Timestamp, id: RunId) -> String {
    format!("{}.{id}", at.micros())
}

fn read_token(text: &str) -> Option<(Timestamp, RunId)> {
    let (at, id) = text.split_once('.')?;
    Some((Timestamp::from_micros(at.parse().ok()?), id.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(params: Value) -> Result<Asked, Refusal> {
        let Value::Object(params) = params else { unreachable!() };
        Asked::read(&params)
    }

    #[test]
    fn a_page_token_names_a_place() {
        let place = (Timestamp::from_micros(17), RunId::new());
        assert_eq!(read_token(&token(place.0, place.1)), Some(place));
        for text in ["", "5", "x.y", "5.y"] {
            assert_eq!(read_token(text), None, "{text}");
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
            let refusal = asked(params).err().unwrap_or_else(|| panic!("{field} was taken"));
            assert!(refusal.message.starts_with(field), "{}", refusal.message);
        }
        let usual = asked(json!({"status": "", "pageToken": ""})).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!((usual.limit, usual.history, usual.artifacts), (50, 0, false));
        let shown = asked(json!({"historyLength": 5, "pageSize": 100})).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(shown.limit, MOST_WITH_HISTORY);
    }
}
