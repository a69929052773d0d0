//! Calls the address of a run after its end. Retried until the address accepts it.
//!
//! The body is the run as the API shows it, with `status`, `run_started_at`, `run_ended_at`, `webhook_sent_at`, `values`
//! and `error`. With a secret configured, `x-towpath-signature: sha256=<hex>` is the HMAC-SHA256 of the body under it.
//! `x-towpath-delivery` is the same for every attempt of one call, so that a receiver can drop repetitions.

pub(crate) mod rules;

use std::collections::BTreeMap;
use std::time::Duration;

use hmac::{Hmac, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use sha2::Sha256;
use towpath_domain::agent::{MultitaskStrategy, RunStatus};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{AssistantId, RunId, TenantId, ThreadId, Timestamp};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome, Start, Workflow};
use towpath_outbound::{Call, CallError};
use towpath_store::runs::Run;
use towpath_store::{self as store, Tx};

use crate::agent_services::AgentServices;
use crate::text_time::rfc3339;

pub use rules::WebhookRules;

pub(crate) const POOL: &str = "webhooks";
/// About 24 hours in all.
pub(crate) const RETRY: RetryPolicy = RetryPolicy::doubling(32, Duration::from_secs(2), Duration::from_secs(3600));
/// Time limit of one call.
const LIMIT: Duration = Duration::from_secs(15);

#[derive(Debug, Serialize, Deserialize)]
pub struct SendWebhook {
    pub url: String,
    /// A JSON object, kept as text: a run's input and state may already have the maximum depth of JSON, and are nested
    /// deeper here.
    pub body: Box<RawValue>,
}

pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, url: &str, body: Box<RawValue>) -> store::Result<()> {
    let call = SendWebhook {
        url: url.to_owned(),
        body,
    };
    towpath_durable::start(tx, &call, Start::new(tenant)).await.map(drop)
}

/// A run in the format of the body.
#[derive(Serialize)]
struct RunPayload<'a> {
    run_id: RunId,
    thread_id: ThreadId,
    assistant_id: AssistantId,
    metadata: Option<&'a RawValue>,
    status: RunStatus,
    kwargs: Option<&'a RawValue>,
    multitask_strategy: MultitaskStrategy,
    created_at: String,
    updated_at: String,
    run_started_at: Option<String>,
    run_ended_at: String,
    values: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Value>,
}

/// The body for a run that ended at `now`.
#[must_use]
pub fn body(
    run: &Run,
    status: RunStatus,
    now: Timestamp,
    values: Option<&RawValue>,
    error: Option<&Value>,
) -> Box<RawValue> {
    let told = RunPayload {
        run_id: run.id,
        thread_id: run.thread_id,
        assistant_id: run.assistant_id,
        metadata: serde_json::from_str(&run.metadata).ok(),
        status,
        kwargs: serde_json::from_str(&run.kwargs).ok(),
        multitask_strategy: run.multitask_strategy,
        created_at: rfc3339(run.created_at),
        updated_at: rfc3339(now),
        run_started_at: run.started_at.map(rfc3339),
        run_ended_at: rfc3339(now),
        values,
        error,
    };
    to_raw_value(&told).expect("an object whose keys are texts is JSON")
}

/// The fields of a body, each as its text.
fn fields(body: &RawValue) -> Result<BTreeMap<String, Box<RawValue>>, Failure> {
    serde_json::from_str(body.get()).map_err(|error| Failure::fatal(format!("the body is not a JSON object: {error}")))
}

impl Workflow for SendWebhook {
    const KIND: &'static str = "send_webhook";
    const POOL: &'static str = POOL;
    const RETRY: RetryPolicy = RETRY;
    type World = AgentServices;

    async fn run(&self, ctx: &mut Ctx, world: &AgentServices) -> Outcome {
        let mut body = fields(&self.body)?;
        let sent_at = to_raw_value(&rfc3339(world.store.clock().now())).fatal()?;
        body.insert("webhook_sent_at".to_owned(), sent_at);
        let authored = world.settings.author_settings.current();
        let rules = &authored.webhooks;
        if rules.off {
            tracing::debug!("webhooks are disabled; none is sent");
            return ctx.complete();
        }
        if let Some(refused) = rules.check_address(&self.url) {
            return Err(Failure::fatal(refused));
        }
        rules.keep_allowed_fields(&mut body);
        let body = serde_json::to_string(&body).fatal()?;
        post_webhook(ctx, world, &self.url, body, HeaderMap::new()).await
    }

    /// No business rows depend on it.
    async fn end(_: &mut Tx<'_>, _: &Self, _: EndReason) -> store::Result<()> {
        Ok(())
    }
}

/// Posts a body to an address: with the author's headers for every call, a signature, and the headers in `own`.
pub(crate) async fn post_webhook(
    ctx: &mut Ctx,
    world: &AgentServices,
    url: &str,
    body: String,
    own: HeaderMap,
) -> Outcome {
    let authored = world.settings.author_settings.current();
    let mut headers = HeaderMap::new();
    for (name, value) in &authored.webhooks.headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.reveal().parse::<HeaderValue>()) {
            headers.insert(name, value);
        }
    }
    headers.extend(own);
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
        url: url.to_owned(),
        headers,
        body: body.into(),
        limit: LIMIT,
    };
    let guard = if authored.webhooks.no_loopback {
        world.guard.without_loopback()
    } else {
        world.guard.clone()
    };
    match guard.call(call).await {
        Ok(reply) if reply.status().is_success() => ctx.complete(),
        Ok(reply) => {
            let status = reply.status();
            let text = format!("the webhook was answered with {status}");
            // A retry does not help, unless the receiver was overloaded or not ready.
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
