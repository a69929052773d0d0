//! Calls an address that wants to know where a task of the Agent2Agent protocol stands. Tried again until the address takes it, as
//! [`send_webhook`].
//!
//! The job names the row of the address and the state that the task came to. Both are read when the call is made: what convinces the
//! receiver and what the task brought stand in no job, an address that was taken back is not called, and neither is one whose task has
//! gone on. `x-a2a-notification-token` is the token that came with the address.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use towpath_domain::agent::a2a::{Outcome as TaskOutcome, Task, TaskState, task_event};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{RunId, TenantId};
use towpath_durable::{Ctx, Failure, Outcome, Start, Verdict, Workflow};
use towpath_store::a2a_push_configs::{self, PushConfig};
use towpath_store::a2a_tasks::{self, Detail};
use towpath_store::{self as store, Tx};
use uuid::Uuid;

use crate::agent::AgentWorld;
use crate::send_webhook::{self, Rules};

const TOKEN: HeaderName = HeaderName::from_static("x-a2a-notification-token");

/// Calls one address of a task.
#[derive(Debug, Serialize, Deserialize)]
pub struct SendPush {
    /// Whose task it is.
    pub tenant: TenantId,
    /// The row of the address.
    pub config: Uuid,
    /// The run that began the task.
    pub task: RunId,
    /// The run that brought it to its state.
    pub run: RunId,
    /// The state to tell of.
    pub state: TaskState,
}

/// Records a call.
///
/// # Errors
/// As every statement.
pub async fn start(tx: &mut Tx<'_>, call: &SendPush) -> store::Result<()> {
    towpath_durable::start(tx, call, Start::new(call.tenant))
        .await
        .map(drop)
}

impl Workflow for SendPush {
    const KIND: &'static str = "send_push";
    const POOL: &'static str = send_webhook::POOL;
    const RETRY: RetryPolicy = send_webhook::RETRY;
    type World = AgentWorld;

    async fn run(&self, ctx: &mut Ctx, world: &AgentWorld) -> Outcome {
        let read = world.store.read(async |tx| {
            let config = a2a_push_configs::get(tx, self.tenant, self.config).await?;
            let task = a2a_tasks::find(tx, self.tenant, self.task, Detail::ARTIFACT).await?;
            Ok((config, task))
        });
        let (config, row) = match read.await {
            // Taken back, or gone with its thread.
            Err(store::Error::NotFound) => return ctx.done(),
            read => read.retry()?,
        };
        if (row.run_id, row.state) != (self.run, self.state) {
            return ctx.done();
        }
        let authored = world.settings.authored.current();
        if authored.webhooks.off {
            tracing::debug!("webhooks are turned off: none is sent");
            return ctx.done();
        }
        if let Some(refused) = authored.webhooks.refuse(&config.url) {
            return Err(Failure::fatal(refused));
        }
        let mut task = row.task().fatal()?;
        narrow(&mut task, &authored.webhooks);
        let body = task_event(config.dialect, task.write(config.dialect, None)).to_string();
        send_webhook::post(ctx, world, &config.url, body, headers(&config)).await
    }

    /// Nothing depends on it.
    async fn end(_: &mut Tx<'_>, _: &Self, _: Ended) -> store::Result<()> {
        Ok(())
    }
}

/// What a webhook may not say, a push notification does not say either: an answer and a question are parts of the state of the
/// thread, which webhooks have as `values`; a failure they have as `error`. Id and state of the task are always sent.
fn narrow(task: &mut Task, rules: &Rules) {
    let Some(allowed) = &rules.fields else { return };
    let field = match &task.outcome {
        Some(TaskOutcome::Answer(_) | TaskOutcome::Question(_)) => "values",
        Some(TaskOutcome::Failure(_)) => "error",
        None => return,
    };
    if !allowed.iter().any(|name| name == field) {
        task.outcome = None;
    }
}

/// What convinces the receiver.
fn headers(config: &PushConfig) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut tell = |name: HeaderName, text: &str| {
        if let Ok(mut value) = HeaderValue::from_str(text) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    };
    if let Some(token) = config.token() {
        tell(TOKEN, token.reveal());
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
        let rules = |fields: Option<&[&str]>| Rules {
            fields: fields.map(|fields| fields.iter().map(|field| (*field).to_owned()).collect()),
            ..Rules::default()
        };
        let answer = || TaskOutcome::answer(&json!({"log": ["secret"]}));
        let question = || TaskOutcome::question(&json!({"task": [{"id": "i", "value": "secret"}]}));
        let failure = || TaskOutcome::failure(&json!({"error": "ValueError", "message": "secret"}));
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
                run: id.run,
                state,
                at: Timestamp::from_micros(0),
                outcome: Some(outcome),
            };
            narrow(&mut task, &rules(fields));
            let sent = task.write(Dialect::V10, None);
            assert_eq!(sent.to_string().contains("secret"), is_sent, "{state:?} {fields:?}");
            assert_eq!(sent["id"], id.to_string());
        }
    }
}
