//! How far a call has come, for clients that ask: one notification for each step of the graph.

use serde_json::{Value, json};
use towpath_domain::agent::{Frame, Object, StreamMode};

/// Tells how far a run has come.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    /// The client's name for the call.
    token: Value,
    sent: u64,
}

impl Progress {
    /// For a client that names a token; a string or a number.
    pub(super) fn from_params(params: &Object) -> Option<Self> {
        let token = params.get("_meta")?.get("progressToken")?;
        let is_token = matches!(token, Value::String(_) | Value::Number(_));
        is_token.then(|| Self {
            token: token.clone(),
            sent: 0,
        })
    }

    /// The notification about an event that a run streamed, where it is worth one.
    pub(super) fn notification(&mut self, text: &str) -> Option<Value> {
        let frame = Frame::decode(text)?;
        let data = || serde_json::from_str::<Value>(frame.data).ok();
        let message = match StreamMode::of_event(frame.event)? {
            StreamMode::Updates => finished_nodes(&data()?)?,
            StreamMode::Custom => custom_message(&data()?)?,
            _ => return None,
        };
        // It rises with every notification, also when a run begins again. How much there is to do no graph knows.
        self.sent += 1;
        Some(json!({
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": self.token, "progress": self.sent, "message": message},
        }))
    }
}

/// The nodes that ended with a step.
fn finished_nodes(update: &Value) -> Option<String> {
    let names = update.as_object()?.keys().map(String::as_str);
    // What begins so is no node, such as `__interrupt__`.
    let names: Vec<&str> = names.filter(|name| !name.starts_with("__")).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// What the code of a graph tells on its way: a text, or an object's `message`.
fn custom_message(data: &Value) -> Option<String> {
    let text = data.as_str().or_else(|| data.get("message")?.as_str());
    text.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use towpath_domain::RunId;
    use towpath_domain::agent::EventId;

    use super::*;

    fn frame(event: &str, data: &Value) -> String {
        Frame {
            run: Some(RunId::new()),
            attempt: 1,
            number: 1,
            id: EventId { ms: 1, seq: 0 },
            event,
            data: &data.to_string(),
        }
        .encode()
    }

    #[test]
    fn each_step_is_told_under_the_clients_token() {
        let params = |token: Value| {
            let Value::Object(params) = json!({"_meta": {"progressToken": token}}) else {
                unreachable!()
            };
            params
        };
        assert!(Progress::from_params(&Object::new()).is_none());
        assert!(Progress::from_params(&params(json!(null))).is_none());
        let mut progress = Progress::from_params(&params(json!("t"))).unwrap();
        assert_eq!(progress.notification(&frame("values", &json!({}))), None);
        for (number, event, data, message) in [
            (1, "updates", json!({"one": {"a": 1}}), "one"),
            (2, "custom", json!("half of it"), "half of it"),
            (3, "custom", json!({"message": "nearly", "percent": 90}), "nearly"),
        ] {
            let told = progress.notification(&frame(event, &data)).unwrap();
            assert_eq!(
                told["params"],
                json!({"progressToken": "t", "progress": number, "message": message})
            );
        }
        for (event, data) in [
            ("custom", json!({"percent": 95})),
            ("updates", json!({"__interrupt__": []})),
        ] {
            assert_eq!(progress.notification(&frame(event, &data)), None, "{event}");
        }
    }
}
