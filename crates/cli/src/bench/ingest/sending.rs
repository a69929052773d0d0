//! Sends bodies until each is acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::Client;
use tokio::task::JoinSet;

/// Delay before a refused body is retried.
const AFTER_REFUSAL: Duration = Duration::from_millis(20);

/// Target of the bodies.
pub struct Target {
    pub http: Client,
    pub url: String,
    /// Bodies alternate between these workspaces. Empty if the key opens only one.
    pub workspaces: Vec<String>,
}

/// Sends all bodies with `senders` closed-loop senders. Returns the number of temporary refusals.
pub async fn send(target: Target, bodies: &Arc<Vec<Bytes>>, senders: u64) -> anyhow::Result<u64> {
    let target = Arc::new(target);
    let next = Arc::new(AtomicUsize::new(0));
    let mut sending = JoinSet::new();
    for _ in 0..senders {
        let (target, bodies, next) = (Arc::clone(&target), Arc::clone(bodies), Arc::clone(&next));
        sending.spawn(async move {
            let mut refused = 0;
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(body) = bodies.get(at) else { break };
                refused += target.acknowledged(at, body).await?;
            }
            anyhow::Ok(refused)
        });
    }
    let mut refused = 0;
    while let Some(done) = sending.join_next().await {
        refused += done??;
    }
    Ok(refused)
}

impl Target {
    /// Sends one body, and retries it after temporary refusals.
    async fn acknowledged(&self, at: usize, body: &Bytes) -> anyhow::Result<u64> {
        let mut refused = 0;
        loop {
            let mut request = self.http.post(&self.url).body(body.clone());
            if !self.workspaces.is_empty() {
                let workspace = &self.workspaces[at % self.workspaces.len()];
                request = request.header("x-tenant-id", workspace.as_str());
            }
            let answer = request.send().await?;
            match answer.status().as_u16() {
                202 => return Ok(refused),
                429 | 503 => refused += 1,
                status => anyhow::bail!("{status}: {}", answer.text().await?),
            }
            tokio::time::sleep(AFTER_REFUSAL).await;
        }
    }
}
