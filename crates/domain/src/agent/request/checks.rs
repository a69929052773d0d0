//! Checks of parts of a request.

use serde_json::Value;

use super::Object;
use crate::Rejection;
use crate::feedback::{MOST_KEYS, check_key};

const LONGEST_WEBHOOK: usize = 4096;

pub(super) fn check_command(command: &Object, stateless: bool) -> Result<(), Rejection> {
    let given = |key: &str| command.get(key).filter(|value| !value.is_null());
    if stateless && given("resume").is_some() {
        return Err(Rejection::rule(
            "command.resume",
            "a stateless run has nothing to resume",
        ));
    }
    let pair = |value: &Value| matches!(value.as_array().map(Vec::as_slice), Some([Value::String(_), _]));
    match given("update") {
        None | Some(Value::Object(_)) => {}
        Some(Value::Array(pairs)) if pairs.iter().all(pair) => {}
        Some(_) => {
            return Err(Rejection::invalid(
                "command.update",
                "expected an object or a list of [key, value] pairs",
            ));
        }
    }
    let place = |value: &Value| match value {
        Value::String(_) => true,
        Value::Object(send) => send.get("node").is_some_and(Value::is_string),
        _ => false,
    };
    match given("goto") {
        None => Ok(()),
        Some(Value::Array(places)) if places.iter().all(place) => Ok(()),
        Some(one) if place(one) => Ok(()),
        Some(_) => Err(Rejection::invalid(
            "command.goto",
            "expected a node's name, {node, input}, or a list of them",
        )),
    }
}

pub(super) fn check_checkpoint(checkpoint: &Object) -> Result<(), Rejection> {
    for key in ["thread_id", "checkpoint_ns", "checkpoint_id"] {
        let value = checkpoint.get(key);
        if value.is_some_and(|value| !value.is_null() && !value.is_string()) {
            return Err(Rejection::invalid(format!("checkpoint.{key}"), "expected a string"));
        }
    }
    if checkpoint
        .get("checkpoint_map")
        .is_some_and(|map| !map.is_null() && !map.is_object())
    {
        return Err(Rejection::invalid("checkpoint.checkpoint_map", "expected an object"));
    }
    Ok(())
}

pub(super) fn check_feedback_keys(keys: &[String]) -> Result<(), Rejection> {
    if keys.len() > MOST_KEYS {
        return Err(Rejection::invalid(
            "feedback_keys",
            format!("expected at most {MOST_KEYS} keys"),
        ));
    }
    keys.iter().try_for_each(|key| check_key("feedback_keys", key))
}

/// Checks an address without resolving it; that happens when it is called.
pub(super) fn check_webhook(address: &str) -> Result<(), Rejection> {
    let refused = |why: &str| Err(Rejection::invalid("webhook", why));
    if address.len() > LONGEST_WEBHOOK {
        return refused("expected an address of at most 4096 characters");
    }
    let host = address
        .strip_prefix("https://")
        .or_else(|| address.strip_prefix("http://"))
        .map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    match host {
        None => refused("expected an absolute http or https address"),
        Some("") => refused("expected an address with a host"),
        Some(_) if address.chars().any(|c| c.is_control() || c.is_whitespace()) => {
            refused("expected an address without spaces")
        }
        Some(_) => Ok(()),
    }
}
