//! Threads as they go over the wire.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_domain::ThreadId;
use towpath_domain::agent::{ThreadStatus, TtlStrategy};
use towpath_store::threads::{self as rows, ThreadRow};

use crate::agent::answer::{Time, raw};
use crate::agent::errors::AgentError;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Thread {
    #[schema(value_type = Uuid)]
    thread_id: ThreadId,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
    #[schema(value_type = String, format = DateTime)]
    state_updated_at: Time,
    #[schema(value_type = Object)]
    metadata: Box<RawValue>,
    /// idle, busy, interrupted or error.
    #[schema(value_type = String)]
    status: ThreadStatus,
    #[schema(value_type = Object)]
    config: Box<RawValue>,
    /// Null before the first run.
    #[schema(value_type = Option<Object>)]
    values: Option<Box<RawValue>>,
    /// Of the last run, if it failed.
    #[schema(value_type = Option<Object>)]
    error: Option<Box<RawValue>>,
    /// Task id to its waiting interrupts.
    #[schema(value_type = Object)]
    interrupts: Box<RawValue>,
    /// How long it lives, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ttl: Option<ThreadTtl>,
}

/// How long a thread lives.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct ThreadTtl {
    #[schema(value_type = String)]
    strategy: TtlStrategy,
    ttl_minutes: f64,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
}

/// Fields of a thread that can be selected.
pub(crate) const FIELDS: [&str; 10] = [
    "thread_id",
    "created_at",
    "updated_at",
    "state_updated_at",
    "metadata",
    "config",
    "status",
    "values",
    "interrupts",
    "error",
];

impl Thread {
    pub(super) fn of(row: rows::Thread) -> Result<Self, AgentError> {
        Self::found(&ThreadRow {
            id: row.id,
            status: row.status,
            metadata: row.metadata,
            config: row.config,
            current_values: row.current_values,
            interrupts: row.interrupts,
            error: row.error,
            created_at: row.created_at,
            updated_at: row.updated_at,
            state_updated_at: row.state_updated_at,
        })
    }

    pub(super) fn found(row: &ThreadRow) -> Result<Self, AgentError> {
        Ok(Self {
            thread_id: row.id,
            created_at: Time(row.created_at),
            updated_at: Time(row.updated_at),
            state_updated_at: Time(row.state_updated_at),
            metadata: raw(&row.metadata)?,
            status: row.status,
            config: raw(&row.config)?,
            values: row.current_values.as_deref().map(raw).transpose()?,
            error: row.error.as_deref().map(raw).transpose()?,
            interrupts: raw(&row.interrupts)?,
            ttl: None,
        })
    }
}

/// How long a thread lives, if it was told.
pub(super) fn ttl(row: &rows::Thread) -> Option<ThreadTtl> {
    Some(ThreadTtl {
        strategy: row.ttl_strategy?,
        ttl_minutes: row.ttl_minutes?,
        expires_at: row.expires_at.map(Time),
    })
}

/// Paths into threads, by alias.
#[derive(Debug, Default)]
pub(super) struct Extract(Vec<(String, Vec<Step>)>);

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(i64),
}

/// Paths one request may ask for.
const MOST: usize = 50;

impl Extract {
    /// Reads the paths.
    pub fn of(asked: Option<Map<String, Value>>) -> Result<Self, AgentError> {
        let asked = asked.unwrap_or_default();
        if asked.len() > MOST {
            return Err(AgentError::invalid(format!("extract: expected at most {MOST} paths")));
        }
        let mut paths = Vec::with_capacity(asked.len());
        for (alias, path) in asked {
            let steps = path.as_str().and_then(steps);
            let steps = steps.ok_or_else(|| {
                AgentError::invalid(format!(
                    "extract.{alias}: expected a path such as values.messages[-1].content, beginning with values, \
                     metadata, config or interrupts"
                ))
            })?;
            paths.push((alias, steps));
        }
        Ok(Self(paths))
    }

    /// Whether nothing is asked for.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn steps(path: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let (key, mut indexes) = match part.find('[') {
            Some(at) => part.split_at(at),
            None => (part, ""),
        };
        if !key.is_empty() {
            steps.push(Step::Key(key.to_owned()));
        } else if indexes.is_empty() {
            return None;
        }
        while let Some(rest) = indexes.strip_prefix('[') {
            let (index, rest) = rest.split_once(']')?;
            steps.push(Step::Index(index.parse().ok()?));
            indexes = rest;
        }
        if !indexes.is_empty() {
            return None;
        }
    }
    match steps.first()? {
        Step::Key(root) if ["values", "metadata", "config", "interrupts"].contains(&root.as_str()) => Some(steps),
        _ => None,
    }
}

/// What the paths lead to; null where there is nothing.
pub(super) fn extracted(row: &ThreadRow, paths: &Extract) -> Result<Value, AgentError> {
    let parse = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| AgentError::internal(&error));
    let mut root = Map::new();
    for (name, text) in [
        ("values", row.current_values.as_deref()),
        ("metadata", Some(row.metadata.as_str())),
        ("config", Some(row.config.as_str())),
        ("interrupts", Some(row.interrupts.as_str())),
    ] {
        root.insert(name.to_owned(), text.map(parse).transpose()?.unwrap_or_default());
    }
    let root = Value::Object(root);
    let found = paths.0.iter().map(|(alias, steps)| {
        let value = steps.iter().try_fold(&root, |value, step| match step {
            Step::Key(key) => value.get(key),
            Step::Index(index) => {
                let list = value.as_array()?;
                let length = i64::try_from(list.len()).ok()?;
                let at = if *index < 0 { length + index } else { *index };
                list.get(usize::try_from(at).ok()?)
            }
        });
        (alias.clone(), value.cloned().unwrap_or_default())
    });
    Ok(Value::Object(found.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_and_others_refused() {
        assert_eq!(
            steps("values.messages[-1].content"),
            Some(vec![
                Step::Key("values".into()),
                Step::Key("messages".into()),
                Step::Index(-1),
                Step::Key("content".into()),
            ])
        );
        for bad in [
            "",
            "secrets.a",
            "values..a",
            "values.a[",
            "values.a[x]",
            "values.a[0]b",
            "[0]",
        ] {
            assert_eq!(steps(bad), None, "{bad}");
        }
    }
}
