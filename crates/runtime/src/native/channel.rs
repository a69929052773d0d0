//! Channels: values between supersteps, and how writes update them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::messages;
use crate::{GraphError, Shared};

/// What a channel does with writes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ChannelKind {
    /// Keeps the last value; one write per superstep.
    Last,
    /// Keeps a list; a list is appended, any other value becomes one more entry.
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
    pub(super) sort: ChannelKind,
    value: Option<Shared>,
}

impl Channel {
    /// With what a checkpoint has for it.
    pub(super) fn new(sort: &ChannelKind, saved: Option<&Shared>) -> Self {
        let value = match (sort, saved) {
            (ChannelKind::Append | ChannelKind::Messages, None) => Some(Shared::from(json!([]))),
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
            ChannelKind::Packets | ChannelKind::Join(_) if !self.is_available() => None,
            _ => self.value.as_ref(),
        }
    }

    pub(super) fn is_available(&self) -> bool {
        match &self.sort {
            ChannelKind::Packets => self.list().is_some_and(|packets| !packets.is_empty()),
            ChannelKind::Join(names) => self.list().is_some_and(|seen| seen.len() == names.len()),
            _ => self.value.is_some(),
        }
    }

    /// What a checkpoint keeps.
    pub(super) fn checkpoint(&self) -> Option<Shared> {
        match &self.sort {
            ChannelKind::Packets | ChannelKind::Join(_) => Some(self.value.clone().unwrap_or_else(|| json!([]).into())),
            _ => self.value.clone(),
        }
    }

    /// A triggered node has read it. Returns whether that changed it.
    pub(super) fn consume(&mut self) -> bool {
        let full = matches!(self.sort, ChannelKind::Join(_)) && self.is_available();
        if full {
            self.value = None;
        }
        full
    }

    /// Applies the writes of a superstep, possibly none. Returns whether the channel changed.
    pub(super) fn update(&mut self, name: &str, writes: Vec<Shared>) -> Result<bool, GraphError> {
        match &self.sort {
            ChannelKind::Last | ChannelKind::Input => self.replace(name, writes),
            ChannelKind::Trigger => {
                let changed = !writes.is_empty() || self.value.is_some();
                self.value = writes.into_iter().next_back();
                Ok(changed)
            }
            ChannelKind::Packets => {
                let changed = !writes.is_empty() || self.is_available();
                let packets: Vec<Value> = writes.into_iter().map(Shared::into_value).collect();
                self.value = Some(Value::Array(packets).into());
                Ok(changed)
            }
            ChannelKind::Join(names) => {
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
            ChannelKind::Append | ChannelKind::Messages => self.reduce(name, writes),
        }
    }

    fn replace(&mut self, name: &str, mut writes: Vec<Shared>) -> Result<bool, GraphError> {
        let ephemeral = self.sort == ChannelKind::Input;
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
                ChannelKind::Messages => Value::Array(messages::coerce_all(value.clone())?),
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

impl ChannelKind {
    /// Normalises a write: messages get their form and ids before they are saved, streamed or applied, so that all
    /// three agree.
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

    /// The value of a channel after a write, for conditions and steps that read the writes of their own node.
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

fn join(sort: &ChannelKind, mut list: Vec<Value>, write: Value) -> Result<Vec<Value>, GraphError> {
    match (sort, write) {
        (_, Value::Null) => Ok(list),
        (ChannelKind::Messages, write) => messages::merge(list, messages::coerce_all(write)?),
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

/// The value of `{"__overwrite__": value}`, which replaces the reduced one.
fn overwritten(write: &Value) -> Option<&Value> {
    match write {
        Value::Object(fields) if fields.len() == 1 => fields.get("__overwrite__"),
        _ => None,
    }
}

pub(super) fn invalid(message: String) -> GraphError {
    GraphError::new("InvalidUpdateError", message)
}
