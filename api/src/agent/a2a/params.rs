//! Reads parameters. Empty fields count as absent, since protobuf writes them so. A field may have its name of the
//! protocol buffer, too.

use serde_json::Value;
use towpath_domain::agent::Object;
use towpath_domain::agent::a2a::{A2aError, TaskId, field};

pub(super) fn text_param(of: &Object, key: &str) -> Result<Option<String>, A2aError> {
    match field(of, key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(A2aError::invalid_params(format!("{key}: expected a string"))),
    }
}

pub(super) fn bool_param(of: &Object, key: &str) -> Result<Option<bool>, A2aError> {
    match field(of, key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(A2aError::invalid_params(format!("{key}: expected true or false"))),
    }
}

/// A whole number from 0.
pub(super) fn count_param(of: &Object, key: &str) -> Result<Option<usize>, A2aError> {
    let Some(value) = field(of, key).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let whole = value.as_u64().and_then(|count| usize::try_from(count).ok());
    whole
        .map(Some)
        .ok_or_else(|| A2aError::invalid_params(format!("{key}: expected an integer of 0 or more")))
}

pub(super) fn object_param<'a>(of: &'a Object, key: &str) -> Result<Option<&'a Object>, A2aError> {
    match field(of, key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => Err(A2aError::invalid_params(format!("{key}: expected an object"))),
    }
}

/// The id of a task. An invalid id names a task that does not exist.
pub(super) fn task_param(of: &Object, key: &str) -> Result<TaskId, A2aError> {
    let text = text_param(of, key)?.ok_or_else(|| A2aError::invalid_params(format!("{key}: field required")))?;
    TaskId::parse(&text).ok_or_else(|| A2aError::task_not_found(text.chars().take(100).collect::<String>()))
}
