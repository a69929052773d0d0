//! Channels: where values stand between supersteps, and what a write does to them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::messages;
use crate::{GraphError, Shared};

/// What a channel does with writes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sort {
    /// Keeps the last value; one write per superstep.
    Last,
    /// Keeps a list; a list is appended, anything else is one more entry.
    Append,
    /// Keeps messages.
    Messages,
    /// Keeps the run's input for one superstep; one write.
    Input,
    /// Triggers a node for one superstep; any number of writes.
    Trigger,
    /// Collects packets for one superstep.
    Packets,
    /// Triggers when every one of these nodes has written.
    Join(BTreeSet<String>),
}

/// A channel and what it holds.
#[derive(Clone, Debug)]
pub(super) struct Channel {
    pub(super) sort: Sort,
    value: Option<Shared>,
}

impl Channel {
    /// With what a checkpoint has for it.
    pub(super) fn new(sort: &Sort, saved: Option<&Shared>) -> Self {
        let value = match (sort, saved) {
            (Sort::Append | Sort::Messages, None) => Some(Shared::from(json!([]))),
            (_, saved) => saved.cloned(),
        };
        Self {
            sort: sort.clone(),
            value,
        }
    }

    /// The value, when there is one to read.
    pub(super) fn get(&self) -> Option<&Shared> {
        match &self.sort {
            Sort::Packets | Sort::Join(_) if !self.is_available() => None,
            _ => self.value.as_ref(),
        }
    }

    pub(super) fn is_available(&self) -> bool {
        match &self.sort {
            Sort::Packets => self.list().is_some_and(|packets| !packets.is_empty()),
            Sort::Join(names) => self.list().is_some_and(|seen| seen.len() == names.len()),
            _ => self.value.is_some(),
        }
    }

    /// What a checkpoint keeps.
    pub(super) fn checkpoint(&self) -> Option<Shared> {
        match &self.sort {
            Sort::Packets | Sort::Join(_) => Some(self.value.clone().unwrap_or_else(|| json!([]).into())),
            _ => self.value.clone(),
        }
    }

    /// A triggered node has read it. Says whether that changed it.
    pub(super) fn consume(&mut self) -> bool {
        let full = matches!(self.sort, Sort::Join(_)) && self.is_available();
        if full {
            self.value = None;
        }
        full
    }

    /// Applies the writes of a superstep, or the fact that there are none. Says whether that changed it.
    pub(super) fn update(&mut self, name: &str, writes: Vec<Shared>) -> Result<bool, GraphError> {
        match &self.sort {
            Sort::Last | Sort::Input => self.replace(name, writes),
            Sort::Trigger => {
                let changed = !writes.is_empty() || self.value.is_some();
                self.value = writes.into_iter().next_back();
                Ok(changed)
            }
            Sort::Packets => {
                let changed = !writes.is_empty() || self.is_available();
                let packets: Vec<Value> = writes.into_iter().map(Shared::into_value).collect();
                self.value = Some(Value::Array(packets).into());
                Ok(changed)
            }
            Sort::Join(names) => {
                let mut seen = self.list().cloned().unwrap_or_default();
                let before = seen.len();
                for write in writes {
                    let known = write.as_str().is_some_and(|name| names.contains(name));
                    if !known {
                        return Err(invalid(format!(
                            "At key '{name}': Value {} not in {names:?}",
                            write.json()
                        )));
                    }
                    if !seen.contains(&write) {
                        seen.push(write.into_value());
                    }
                }
                let changed = seen.len() != before;
                if changed {
                    seen.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
                    self.value = Some(Value::Array(seen).into());
                }
                Ok(changed)
            }
            Sort::Append | Sort::Messages => self.reduce(name, writes),
        }
    }

    fn replace(&mut self, name: &str, mut writes: Vec<Shared>) -> Result<bool, GraphError> {
        let ephemeral = self.sort == Sort::Input;
        match writes.len() {
            0 if ephemeral => Ok(self.value.take().is_some()),
            0 => Ok(false),
            1 => {
                let value = writes.pop();
                self.value = value.map(|value| match overwritten(&value) {
                    Some(inner) if !ephemeral => inner.clone().into(),
                    _ => value,
                });
                Ok(true)
            }
            _ => Err(invalid(format!(
                "At key '{name}': Can receive only one value per step. Use an Annotated key to handle multiple \
                 values.\nFor troubleshooting, visit: \
                 https://docs.langchain.com/oss/python/langgraph/errors/INVALID_CONCURRENT_GRAPH_UPDATE"
            ))),
        }
    }

    fn reduce(&mut self, name: &str, writes: Vec<Shared>) -> Result<bool, GraphError> {
        if writes.is_empty() {
            return Ok(false);
        }
        if writes.iter().filter(|write| overwritten(write).is_some()).count() > 1 {
            return Err(invalid(format!(
                "At key '{name}': Can receive only one Overwrite value per super-step."
            )));
        }
        if let Some(value) = writes.iter().find_map(|write| overwritten(write)) {
            let value = match &self.sort {
                Sort::Messages => Value::Array(messages::coerce_all(value.clone())?),
                _ => value.clone(),
            };
            self.value = Some(value.into());
            return Ok(true);
        }
        let held = self.value.take().map(Shared::into_value);
        let mut list = match held {
            Some(Value::Array(list)) => list,
            Some(Value::Null) | None => Vec::new(),
            Some(other) => vec![other],
        };
        for write in writes {
            list = join(&self.sort, list, write.into_value())?;
        }
        self.value = Some(Value::Array(list).into());
        Ok(true)
    }

    fn list(&self) -> Option<&Vec<Value>> {
        self.value.as_deref().and_then(Value::as_array)
    }
}

impl Sort {
    /// A write as it is kept: messages get their form and their ids before anybody sees them, so that the saved write,
    /// the streams and the channel agree.
    pub(super) fn normalized(&self, value: Value) -> Result<Value, GraphError> {
        match self {
            Self::Messages if overwritten(&value).is_none() && !value.is_null() => {
                messages::coerce_all(value).map(Value::Array)
            }
            // One entry is a list of one, in what is told as well.
            Self::Append if overwritten(&value).is_none() && !value.is_null() && !value.is_array() => {
                Ok(Value::Array(vec![value]))
            }
            _ => Ok(value),
        }
    }

    /// What a channel would hold after a write: for conditions and steps that read what their own node wrote.
    pub(super) fn preview(&self, held: Option<&Value>, write: &Value) -> Result<Value, GraphError> {
        if let Some(value) = overwritten(write) {
            return Ok(value.clone());
        }
        match self {
            Self::Append | Self::Messages => {
                let list = held.and_then(Value::as_array).cloned().unwrap_or_default();
                join(self, list, write.clone()).map(Value::Array)
            }
            _ => Ok(write.clone()),
        }
    }
}

fn join(sort: &Sort, mut list: Vec<Value>, write: Value) -> Result<Vec<Value>, GraphError> {
    match (sort, write) {
        (_, Value::Null) => Ok(list),
        (Sort::Messages, write) => messages::merge(list, messages::coerce_all(write)?),
        (_, Value::Array(mut more)) => {
            list.append(&mut more);
            Ok(list)
        }
        (_, one) => {
            list.push(one);
            Ok(list)
        }
    }
}

/// What `{"__overwrite__": value}` puts in place of what is reduced.
fn overwritten(write: &Value) -> Option<&Value> {
    match write {
        Value::Object(fields) if fields.len() == 1 => fields.get("__overwrite__"),
        _ => None,
    }
}

pub(super) fn invalid(message: String) -> GraphError {
    GraphError::new("InvalidUpdateError", message)
}
