//! Requests for runs, and what is stored of them.

mod checks;

use std::time::Duration;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::merge::{Object, drop_reserved_configurable};
use super::state::MultitaskStrategy;
use super::stream::StreamMode;
use crate::Rejection;

use checks::{check_checkpoint, check_command, check_feedback_keys, check_webhook};

const LONGEST_DELAY: f64 = 10.0 * 365.0 * 86_400.0;

/// A request for a run, not validated yet. Unknown fields are ignored, because clients may be newer than the server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunRequest {
    /// An assistant's id, or the name of a graph.
    pub assistant_id: String,
    /// Any JSON; null continues from the thread's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// `{update, resume, goto}`; takes precedence over `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Object>,
    /// Merged over the metadata of assistant and thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// `{tags, recursion_limit, configurable, metadata}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Object>,
    /// Static context of the graph; excludes `config.configurable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Object>,
    /// Checkpoint to start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Object>,
    /// Older form of `checkpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_id: Option<String>,
    /// Called when the run is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// Nodes to stop before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_before: Option<Nodes>,
    /// Nodes to stop after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_after: Option<Nodes>,
    /// Defaults to `values`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_mode: Option<OneOrMany>,
    /// Whether events of subgraphs are streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_subgraphs: Option<bool>,
    /// Whether events are stored, so that a reader can resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_resumable: Option<bool>,
    /// Keys under which readers may give feedback on the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback_keys: Option<Vec<String>>,
    /// What happens to unfinished runs of the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multitask_strategy: Option<MultitaskStrategy>,
    /// What happens when the thread does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_not_exists: Option<IfNotExists>,
    /// Delay before it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_seconds: Option<f64>,
    /// What becomes of the thread made for a stateless run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_completion: Option<OnCompletion>,
    /// What happens when the client that streams or waits disconnects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<OnDisconnect>,
    /// When checkpoints are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// Older form of `durability`: false means `exit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_during: Option<bool>,
    /// Where traces of the run go.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "from_object")]
    pub langsmith_tracer: Option<TracerChoice>,
    /// Whether a resume that matches no waiting interrupt fails instead of being ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict_resume: Option<bool>,
}

/// Serde would also accept a list of values for a struct.
fn from_object<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    let object = Option::<Object>::deserialize(from)?;
    let read = object.map(|object| serde_json::from_value(Value::Object(object)));
    read.transpose().map_err(D::Error::custom)
}

/// Where traces of a run go, instead of the server's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracerChoice {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_name: Option<String>,
    /// The example of a dataset that the run belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example_id: Option<String>,
}

/// `"*"`, or names of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Nodes {
    /// `"*"` means every node; other text is the name of one node.
    One(String),
    Some(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// What happens if the thread of a run does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IfNotExists {
    Create,
    #[default]
    Reject,
}

/// What happens to the thread of a stateless run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnCompletion {
    #[default]
    Delete,
    Keep,
}

/// What happens to a run whose reader disconnects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDisconnect {
    Cancel,
    #[default]
    Continue,
}

/// When checkpoints are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Before the next step begins.
    Sync,
    /// While the next step runs.
    #[default]
    Async,
    /// When the run ends.
    Exit,
}

/// The stored arguments of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kwargs {
    pub input: Option<Value>,
    pub command: Option<Object>,
    /// The merged configuration.
    pub config: Object,
    pub context: Option<Object>,
    pub stream_mode: Vec<StreamMode>,
    pub interrupt_before: Option<Nodes>,
    pub interrupt_after: Option<Nodes>,
    pub webhook: Option<String>,
    pub feedback_keys: Option<Vec<String>>,
    /// The thread is deleted with the run.
    #[serde(default)]
    pub temporary: bool,
    #[serde(default)]
    pub subgraphs: bool,
    /// Events are stored.
    #[serde(default)]
    pub resumable: bool,
    /// The value of the request.
    pub checkpoint_during: Option<bool>,
    #[serde(default)]
    pub durability: Durability,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub langsmith_tracer: Option<TracerChoice>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict_resume: bool,
}

/// A validated request that can be recorded once its assistant and thread are found.
#[derive(Clone, Debug)]
pub struct AdmittedRun {
    /// Stored arguments; `config` is not merged yet.
    pub kwargs: Kwargs,
    pub metadata: Object,
    pub strategy: MultitaskStrategy,
    pub create_thread: bool,
    pub after: Duration,
    /// Whether the run is cancelled when its reader disconnects.
    pub cancel_on_disconnect: bool,
}

impl RunRequest {
    /// Validates the request; `stateless` means without a thread.
    ///
    /// # Errors
    /// The first violated rule, naming the field.
    pub fn admit(self, stateless: bool) -> Result<AdmittedRun, Rejection> {
        let mut config = self.config.unwrap_or_default();
        check_config(&mut config)?;
        if let Some(command) = &self.command {
            check_command(command, stateless)?;
        }
        let stream_mode = modes(self.stream_mode)?;
        let after = delay(self.after_seconds)?;
        if let Some(webhook) = &self.webhook {
            check_webhook(webhook)?;
        }
        check_feedback_keys(self.feedback_keys.as_deref().unwrap_or_default())?;
        let mut configurable = match config.remove("configurable") {
            Some(Value::Object(configurable)) => configurable,
            _ => Object::new(),
        };
        drop_reserved_configurable(&mut configurable);
        let mut context = self.context;
        if let Some(context) = &mut context {
            drop_reserved_configurable(context);
        }
        let context = match context {
            Some(context) if !context.is_empty() && !configurable.is_empty() => {
                let _ = context;
                return Err(Rejection::rule(
                    "context",
                    "Cannot specify both configurable and context. Prefer setting context alone.",
                ));
            }
            // Graphs read either of the two, so both are set.
            Some(context) if !context.is_empty() => {
                configurable = context.clone();
                Some(context)
            }
            given => given.or_else(|| (!configurable.is_empty()).then(|| configurable.clone())),
        };
        if let Some(checkpoint) = self.checkpoint {
            check_checkpoint(&checkpoint)?;
            let place = checkpoint
                .into_iter()
                .filter(|(key, value)| key != "thread_id" && !value.is_null());
            configurable.extend(place);
            drop_reserved_configurable(&mut configurable);
        }
        if let Some(id) = self.checkpoint_id {
            if id.parse::<uuid::Uuid>().is_err() {
                return Err(Rejection::invalid(
                    "checkpoint_id",
                    "Invalid checkpoint ID: must be a UUID",
                ));
            }
            configurable.insert("checkpoint_id".to_owned(), json!(id));
        }
        config.insert("configurable".to_owned(), Value::Object(configurable));
        let durability = self.durability.unwrap_or(match self.checkpoint_during {
            Some(false) => Durability::Exit,
            _ => Durability::Async,
        });
        Ok(AdmittedRun {
            kwargs: Kwargs {
                input: self.input,
                command: self.command,
                config,
                context,
                stream_mode,
                interrupt_before: self.interrupt_before,
                interrupt_after: self.interrupt_after,
                webhook: self.webhook,
                feedback_keys: self.feedback_keys,
                temporary: stateless && self.on_completion.unwrap_or_default() == OnCompletion::Delete,
                subgraphs: self.stream_subgraphs.unwrap_or_default(),
                resumable: self.stream_resumable.unwrap_or_default(),
                checkpoint_during: self.checkpoint_during,
                durability,
                langsmith_tracer: self.langsmith_tracer,
                strict_resume: self.strict_resume.unwrap_or_default(),
            },
            metadata: self.metadata.unwrap_or_default(),
            strategy: self.multitask_strategy.unwrap_or_default(),
            create_thread: stateless || self.if_not_exists == Some(IfNotExists::Create),
            after,
            cancel_on_disconnect: self.on_disconnect == Some(OnDisconnect::Cancel),
        })
    }
}

/// Checks the known parts of a `config` and normalises whole numbers.
pub fn check_config(config: &mut Object) -> Result<(), Rejection> {
    if let Some(limit) = config.get_mut("recursion_limit") {
        write_whole(limit);
    }
    for (key, wanted, fits) in [
        (
            "configurable",
            "expected an object",
            Value::is_object as fn(&Value) -> bool,
        ),
        ("metadata", "expected an object", Value::is_object),
        ("recursion_limit", "expected an integer", Value::is_i64),
        ("tags", "expected a list of strings", |tags| {
            tags.as_array().is_some_and(|tags| tags.iter().all(Value::is_string))
        }),
    ] {
        if config.get(key).is_some_and(|value| !value.is_null() && !fits(value)) {
            return Err(Rejection::invalid(format!("config.{key}"), wanted));
        }
    }
    Ok(())
}

/// Rewrites numbers such as `25.0`, which JSON Schema also calls integers, as integers.
pub fn write_whole(number: &mut Value) {
    // Numbers beyond the range of integers would be read as its ends.
    let fits = |float: f64| float.fract() == 0.0 && float.abs() < -(i64::MIN as f64);
    let float = number.as_f64().filter(|float| number.is_f64() && fits(*float));
    if let Some(whole) = float.and_then(|float| format!("{float:.0}").parse::<i64>().ok()) {
        *number = json!(whole);
    }
}

/// Checks an address that will be called later, without resolving it; `field` is its name.
pub fn check_address(field: &str, address: &str) -> Result<(), Rejection> {
    check_webhook(address).map_err(|rejection| Rejection::invalid(field, rejection.message))
}

pub fn modes(asked: Option<OneOrMany>) -> Result<Vec<StreamMode>, Rejection> {
    let names = match asked {
        None => return Ok(vec![StreamMode::Values]),
        Some(OneOrMany::One(name)) => vec![name],
        Some(OneOrMany::Many(names)) => names,
    };
    let mut modes = Vec::with_capacity(names.len());
    for name in names {
        let mode = StreamMode::parse(&name).ok_or_else(|| {
            let known = StreamMode::ALL.map(StreamMode::as_str).join(", ");
            Rejection::invalid("stream_mode", format!("stream_mode: {name:?} is not one of {known}"))
        })?;
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    Ok(modes)
}

fn delay(seconds: Option<f64>) -> Result<Duration, Rejection> {
    match seconds {
        None => Ok(Duration::ZERO),
        Some(seconds) if (0.0..=LONGEST_DELAY).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        Some(_) => Err(Rejection::invalid(
            "after_seconds",
            "expected 0 or more seconds, at most ten years",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RejectionKind;

    fn request(body: Value) -> RunRequest {
        serde_json::from_value(body).unwrap()
    }

    fn admitted(body: Value) -> AdmittedRun {
        request(body).admit(false).unwrap()
    }

    #[test]
    fn defaults_are_those_of_the_protocol() {
        let run = admitted(json!({"assistant_id": "agent", "input": null, "strict_resume": true}));
        assert!(run.kwargs.strict_resume);
        assert_eq!(run.kwargs.stream_mode, [StreamMode::Values]);
        assert_eq!(run.kwargs.durability, Durability::Async);
        assert_eq!(run.strategy, MultitaskStrategy::Enqueue);
        assert!(!run.create_thread && !run.kwargs.temporary && run.after.is_zero());
        let stateless = request(json!({"assistant_id": "agent"})).admit(true).unwrap();
        assert!(stateless.kwargs.temporary && stateless.create_thread);
        let kept = json!({"assistant_id": "agent", "on_completion": "keep"});
        assert!(!request(kept).admit(true).unwrap().kwargs.temporary);
    }

    #[test]
    fn durability_wins_over_its_older_form() {
        let of = |body: Value| admitted(body).kwargs.durability;
        assert_eq!(
            of(json!({"assistant_id": "a", "checkpoint_during": false})),
            Durability::Exit
        );
        assert_eq!(
            of(json!({"assistant_id": "a", "checkpoint_during": false, "durability": "sync"})),
            Durability::Sync
        );
    }

    #[test]
    fn context_and_configurable_mirror_each_other_and_exclude_each_other() {
        let run = admitted(json!({"assistant_id": "a", "context": {"user": "u"}}));
        assert_eq!(run.kwargs.config["configurable"], json!({"user": "u"}));
        let run = admitted(json!({"assistant_id": "a", "config": {"configurable": {"user": "u"}}}));
        assert_eq!(Value::Object(run.kwargs.context.unwrap()), json!({"user": "u"}));
        let both = json!({"assistant_id": "a", "context": {"x": 1}, "config": {"configurable": {"user": "u"}}});
        assert_eq!(request(both).admit(false).unwrap_err().kind, RejectionKind::Rule);
    }

    #[test]
    fn keys_of_the_server_come_in_by_no_way() {
        let forged = || json!({"langgraph_auth_user_id": "alice", "langgraph_auth_user": {"identity": "alice"}});
        for way in ["context", "checkpoint"] {
            let run = admitted(json!({"assistant_id": "a", way: forged()}));
            assert_eq!(run.kwargs.config["configurable"], json!({}), "by the {way}");
            assert!(run.kwargs.context.unwrap_or_default().is_empty(), "by the {way}");
        }
        let run = admitted(json!({"assistant_id": "a", "config": {"configurable": forged()}}));
        assert_eq!(run.kwargs.config["configurable"], json!({}));
        assert_eq!(run.kwargs.context, None);
    }

    #[test]
    fn a_whole_limit_is_one_however_it_is_written() {
        for (sent, kept) in [
            (json!(25), json!(25)),
            (json!(25.0), json!(25)),
            (json!(null), json!(null)),
        ] {
            let run = admitted(json!({"assistant_id": "a", "config": {"recursion_limit": sent}}));
            assert_eq!(run.kwargs.config["recursion_limit"], kept);
        }
    }

    #[test]
    fn a_checkpoint_becomes_a_place_to_start_from() {
        let run = admitted(json!({
            "assistant_id": "a",
            "checkpoint": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "c", "checkpoint_map": null},
        }));
        assert_eq!(
            run.kwargs.config["configurable"],
            json!({"checkpoint_ns": "", "checkpoint_id": "c"})
        );
    }

    #[test]
    fn refusals_name_their_field() {
        let refused = |body: Value, stateless| {
            let mut body = body;
            body["assistant_id"] = json!("a");
            let rejection = request(body).admit(stateless).unwrap_err();
            (rejection.field, rejection.kind)
        };
        for (body, field) in [
            (json!({"stream_mode": "tools"}), "stream_mode"),
            (json!({"stream_mode": ["values", "lifecycle"]}), "stream_mode"),
            (json!({"after_seconds": -1}), "after_seconds"),
            (json!({"config": {"tags": "x"}}), "config.tags"),
            (json!({"config": {"recursion_limit": 1.5}}), "config.recursion_limit"),
            (json!({"command": {"goto": 5}}), "command.goto"),
            (
                json!({"config": {"recursion_limit": -9_223_372_036_854_775_809_i128 as f64}}),
                "config.recursion_limit",
            ),
            (json!({"command": {"update": [["a"]]}}), "command.update"),
            (json!({"checkpoint_id": "x"}), "checkpoint_id"),
            (json!({"webhook": "/relative"}), "webhook"),
            (json!({"webhook": "http://"}), "webhook"),
            (json!({"feedback_keys": ["good", ""]}), "feedback_keys"),
            (json!({"feedback_keys": vec!["good"; 101]}), "feedback_keys"),
        ] {
            assert_eq!(refused(body, false), (field.to_owned(), RejectionKind::Invalid));
        }
        assert_eq!(
            refused(json!({"command": {"resume": 1}}), true),
            ("command.resume".to_owned(), RejectionKind::Rule)
        );
    }
}
