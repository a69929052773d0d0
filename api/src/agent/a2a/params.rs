//! Reading parameters. Fields that are empty count as absent: protobuf writes them so.

use serde_json::Value;
use towpath_domain::agent::Object;
use towpath_domain::agent::a2a::{Refusal, TaskId};

pub(super) fn text(of: &Object, key: &str) -> Result<Option<String>, Refusal> {
    match of.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(Refusal::params(format!("{key}: expected a string"))),
    }
}

pub(super) fn flag(of: &Object, key: &str) -> Result<Option<bool>, Refusal> {
    match of.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(Refusal::params(format!("{key}: expected true or false"))),
    }
}

/// A whole number from 0.
pub(super) fn count(of: &Object, key: &str) -> Result<Option<usize>, Refusal> {
    let Some(value) = of.get(key).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let whole = value.as_u64().and_then(|count| usize::try_from(count).ok());
    whole
        .map(Some)
        .ok_or_else(|| Refusal::params(format!("{key}: expected an integer of 0 or more")))
}

pub(super) fn object<'a>(of: &'a Object, key: &str) -> Result<Option<&'a Object>, Refusal> {
    match of.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => Err(Refusal::params(format!("{key}: expected an object"))),
    }
}

/// The id of a task. A text that is none names a task that is not there.
pub(super) fn task(of: &Object, key: &str) -> Result<TaskId, Refusal> {
    let text = text(of, key)?.ok_or_else(|| Refusal::params(format!("{key}: field required")))?;
    TaskId::parse(&text).ok_or_else(|| Refusal::no_task(text.chars().take(100).collect::<String>()))
}
