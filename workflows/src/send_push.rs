//! Sends a push notification about an Agent2Agent task. Retried until the address accepts it, like [`send_webhook`].
//!
//! The job names the row of the address and the state of the task. Both are read at the time of the call: credentials
//! and results are not stored in jobs, and a removed address or an outdated state is not called.
//! `x-a2a-notification-token` is the token of the address.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use towpath_domain::agent::a2a::{Outcome as TaskOutcome, Task, TaskState, task_event};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{RunId, TenantId};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome, Start, Workflow};
use towpath_store::a2a_push_configs::{self, PushConfig};
use towpath_store::a2a_tasks::{self, TaskDetail};
use towpath_store::{self as store, Tx};
use uuid::Uuid;

use crate::agent_services::AgentServices;
use crate::send_webhook::{self, WebhookRules};

const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-a2a-notification-token");

#[derive(Debug, Serialize, Deserialize)]
pub struct SendPush {
    pub tenant: TenantId,
    pub config: Uuid,
    pub task: RunId,
    /// The run that caused the state.
    pub run: RunId,
    pub state: TaskState,
}

pub async fn start(tx: &mut Tx<'_>, call: &SendPush) -> store::Result<()> {
    towpath_durable::start(tx, call, Start::new(call.tenant))
        .await
        .map(drop)
}

impl Workflow for SendPush {
    const KIND: &'static str = "send_push";
    const POOL: &'static str = send_webhook::POOL;
    const RETRY: RetryPolicy = send_webhook::RETRY;
    type World = AgentServices;

    async fn run(&self, ctx: &mut Ctx, world: &AgentServices) -> Outcome {
        let read = world.store.read(async |tx| {
            let config = a2a_push_configs::get(tx, self.tenant, self.config).await?;
            let task = a2a_tasks::find(tx, self.tenant, self.task, TaskDetail::ARTIFACT).await?;
            Ok((config, task))
        });
        let (config, row) = match read.await {
            // Removed, or deleted with its thread.
            Err(store::Error::NotFound) => return ctx.complete(),
            read => read.retry()?,
        };
        if (row.run_id, row.state) != (self.run, self.state) {
            return ctx.complete();
        }
        let authored = world.settings.author_settings.current();
        if authored.webhooks.off {
            tracing::debug!("webhooks are disabled; none is sent");
            return ctx.complete();
        }
        if let Some(refused) = authored.webhooks.check_address(&config.url) {
            return Err(Failure::fatal(refused));
        }
        let mut task = row.task().fatal()?;
        apply_rules(&mut task, &authored.webhooks);
        let body = task_event(config.dialect, task.to_json(config.dialect, None)).to_string();
        send_webhook::post_webhook(ctx, world, &config.url, body, auth_headers(&config)).await
    }

    /// No business rows depend on it.
    async fn end(_: &mut Tx<'_>, _: &Self, _: EndReason) -> store::Result<()> {
        Ok(())
    }
}

/// Applies the webhook rules to a push notification: an answer and a question are parts of the thread's state, which
/// webhooks have as `values`; a failure is `error`. Id and state of the task are always sent.
fn apply_rules(task: &mut Task, rules: &WebhookRules) {
    let Some(allowed) = &rules.fields else { return };
    let field = match &task.outcome {
        Some(TaskOutcome::Answer(_) | TaskOutcome::Message(_) | TaskOutcome::Question(_)) => "values",
        Some(TaskOutcome::Failure(_)) => "error",
        None => return,
    };
    if !allowed.iter().any(|name| name == field) {
        task.outcome = None;
    }
}

/// The credentials for the receiver.
fn auth_headers(config: &PushConfig) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut tell = |name: HeaderName, text: &str| {
        if let Ok(mut value) = HeaderValue::from_str(text) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    };
    if let Some(token) = config.token() {
        tell(TOKEN_HEADER, token.reveal());
    }
    if let (Some(scheme), Some(credentials)) = (&config.scheme, config.credentials()) {
        tell(AUTHORIZATION, &format!("{scheme} {}", credentials.reveal()));
    }
    headers
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use towpath_domain::agent::a2a::{Dialect, TaskId};
    use towpath_domain::{ThreadId, Timestamp};

    use super::*;

    #[test]
    fn what_webhooks_may_not_say_is_not_sent() {
        let rules = |fields: Option<&[&str]>| WebhookRules {
            fields: fields.map(|fields| fields.iter().map(|field| (*field).to_owned()).collect()),
            ..WebhookRules::default()
        };
        let answer = || TaskOutcome::from_values(&json!({"log": ["secret"]}));
        let question = || TaskOutcome::from_interrupts(&json!({"task": [{"id": "i", "value": "secret"}]}));
        let failure = || TaskOutcome::from_error(&json!({"error": "ValueError", "message": "secret"}));
        for (outcome, state, fields, is_sent) in [
            (answer(), TaskState::Completed, None, true),
            (answer(), TaskState::Completed, Some(&["values"][..]), true),
            (answer(), TaskState::Completed, Some(&["run_id", "error"][..]), false),
            (question(), TaskState::InputRequired, Some(&["status"][..]), false),
            (failure(), TaskState::Failed, Some(&["error"][..]), true),
            (failure(), TaskState::Failed, Some(&["values"][..]), false),
        ] {
            let id = TaskId {
                thread: ThreadId::new(),
                run: RunId::new(),
            };
            let mut task = Task {
                id,
                context: None,
                run: id.run,
                state,
                updated_at: Timestamp::from_micros(0),
                outcome: Some(outcome),
            };
            apply_rules(&mut task, &rules(fields));
            let sent = task.to_json(Dialect::V10, None);
            assert_eq!(sent.to_string().contains("secret"), is_sent, "{state:?} {fields:?}");
            assert_eq!(sent["id"], id.to_string());
        }
    }
}
