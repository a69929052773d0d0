//! Calls the address a run named, once the run is over. Tried again until the address takes it.
//!
//! The body is the run as the API shows it, with `status`, `run_started_at`, `run_ended_at`, `webhook_sent_at`, `values`
//! and `error`. With a secret configured, `x-towpath-signature: sha256=<hex>` is the HMAC-SHA256 of the body under it.
//! `x-towpath-delivery` is the same for every attempt of one call, so that a receiver can drop repetitions.

mod rules;

use std::time::Duration;

use hmac::{Hmac, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::Sha256;
use towpath_domain::agent::RunStatus;
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{TenantId, Timestamp};
use towpath_durable::{Ctx, Failure, Outcome, Start, Workflow};
use towpath_outbound::{Call, CallError};
use towpath_store::runs::Run;
use towpath_store::{self as store, Tx};

use crate::agent::AgentWorld;
use crate::run_agent::rfc3339;

pub use rules::Rules;

/// How long one call may take.
const LIMIT: Duration = Duration::from_secs(15);

/// Calls one address.
#[derive(Debug, Serialize, Deserialize)]
pub struct SendWebhook {
    /// The address.
    pub url: String,
    /// What it is told.
    pub body: Value,
}

/// Records a call.
///
/// # Errors
/// As every statement.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, url: &str, body: Value) -> store::Result<()> {
    let call = SendWebhook {
        url: url.to_owned(),
        body,
    };
    towpath_durable::start(tx, &call, Start::new(tenant)).await.map(drop)
}

/// What is told about a run that ended at `now`.
#[must_use]
pub fn body(run: &Run, status: RunStatus, now: Timestamp, values: Option<&Value>, error: Option<&Value>) -> Value {
    let stored = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let mut body = json!({
        "run_id": run.id,
        "thread_id": run.thread_id,
        "assistant_id": run.assistant_id,
        "metadata": stored(&run.metadata),
        "status": status,
        "kwargs": stored(&run.kwargs),
        "multitask_strategy": run.multitask_strategy,
        "created_at": rfc3339(run.created_at),
        "updated_at": rfc3339(now),
        "run_started_at": run.started_at.map(rfc3339),
        "run_ended_at": rfc3339(now),
        "values": values,
    });
    if let Some(error) = error {
        body["error"] = error.clone();
    }
    body
}

impl Workflow for SendWebhook {
    const KIND: &'static str = "send_webhook";
    const POOL: &'static str = "webhooks";
    // Some 24 hours in all.
    const RETRY: RetryPolicy = RetryPolicy::doubling(32, Duration::from_secs(2), Duration::from_secs(3600));
    type World = AgentWorld;

    async fn run(&self, ctx: &mut Ctx, world: &AgentWorld) -> Outcome {
        let mut body = self.body.clone();
        body["webhook_sent_at"] = json!(rfc3339(world.store.clock().now()));
        let authored = world.settings.authored.current();
        let rules = &authored.webhooks;
        if rules.off {
            tracing::debug!("webhooks are turned off: none is sent");
            return ctx.done();
        }
        if let Some(refused) = rules.refuse(&self.url) {
            return Err(Failure::fatal(refused));
        }
        rules.narrow(&mut body);
        let body = body.to_string();
        let mut headers = HeaderMap::new();
        for (name, value) in &rules.headers {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.reveal().parse::<HeaderValue>()) {
                headers.insert(name, value);
            }
        }
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.insert("user-agent", HeaderValue::from_static("towpath-webhook"));
        let delivery = ctx.idempotency_token("webhook");
        if let Ok(delivery) = HeaderValue::from_str(&delivery) {
            headers.insert("x-towpath-delivery", delivery);
        }
        if let Some(secret) = &world.settings.webhook_secret {
            let signature = format!("sha256={}", signature(secret.reveal().as_bytes(), body.as_bytes()));
            if let Ok(signature) = HeaderValue::from_str(&signature) {
                headers.insert("x-towpath-signature", signature);
            }
        }
        let call = Call {
            method: Method::POST,
            url: self.url.clone(),
            headers,
            body: body.into(),
            limit: LIMIT,
        };
        match world.guard.call(call).await {
            Ok(reply) if reply.status().is_success() => ctx.done(),
            Ok(reply) => {
                let status = reply.status();
                let text = format!("the webhook was answered with {status}");
                // It will not like the same body better later, unless it was too busy or not up.
                if status.is_server_error() || matches!(status.as_u16(), 404 | 408 | 425 | 429) {
                    Err(Failure::retry(text))
                } else {
                    Err(Failure::fatal(text))
                }
            }
            Err(CallError::Refused(refused)) => Err(Failure::fatal(refused.to_string())),
            Err(error) => Err(Failure::retry(error.to_string())),
        }
    }

    /// Nothing depends on it.
    async fn end(_: &mut Tx<'_>, _: &Self, _: Ended) -> store::Result<()> {
        Ok(())
    }
}

fn signature(secret: &[u8], body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length will do");
    mac.update(body);
    hex::encode(mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_signature_is_that_of_the_standard() {
        // RFC 4231, test case 2.
        assert_eq!(
            super::signature(b"Jefe", b"what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }
}
