//! The keeper lease: one process of an installation at a time may run deployments.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use towpath_store::deployment_keepers::{self, Claim, Keeper};
use towpath_store::{self as store, Dialect, Store};

/// Maximum interval of renewals, so that a short outage of the database does no harm.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Delay after a failed renewal.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time limit of the release; waiting processes get the lease when it expires anyway.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct KeeperLease {
    store: Store,
    claim: Claim,
    time: Duration,
}

/// The lease ended before the process did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseLost {
    /// Another process has it.
    #[error("another process now runs deployments")]
    TakenOver,
    /// Another process may get it soon.
    #[error(
        "the database was unavailable for so long that another process may start to run deployments \
         (deployments.lease_seconds)"
    )]
    DatabaseSilent,
}

/// When a lease was acquired, by this process's own clock.
#[derive(Clone, Copy, Debug)]
pub struct LeaseStart(Instant);

/// The holder of the lease, if it is not this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHolder(Keeper);

impl fmt::Display for LeaseHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.0.pid, self.0.host)
    }
}

impl KeeperLease {
    /// A lease that is not acquired yet.
    #[must_use]
    pub const fn new(store: Store, claim: Claim, time: Duration) -> Self {
        Self { store, claim, time }
    }

    /// Acquires the lease, or returns its holder.
    pub async fn acquire(&self) -> store::Result<Result<LeaseStart, LeaseHolder>> {
        loop {
            // Before the request, so that the lease ends here before it ends in the database.
            let asked = Instant::now();
            let answer = self.store.write(async |tx| {
                if deployment_keepers::take(tx, &self.claim, self.time).await? {
                    return Ok(Ok(()));
                }
                Ok(Err(deployment_keepers::current(tx).await?))
            });
            match answer.await? {
                Ok(()) => return Ok(Ok(LeaseStart(asked))),
                Err(Some(keeper)) => return Ok(Err(LeaseHolder(keeper))),
                // Released between the two statements.
                Err(None) => {}
            }
        }
    }

    /// Poll interval of waiting processes.
    #[must_use]
    pub fn poll_interval(&self) -> Duration {
        (self.time / 3).min(RENEW_EVERY)
    }

    /// Renews the lease until it is lost. If the database is unavailable, it counts as lost while a quarter of its time
    /// is left, so that deployments are stopped before another process starts them.
    pub async fn renew_until_lost(&self, taken: LeaseStart) -> LeaseLost {
        if self.store.dialect() == Dialect::Sqlite {
            // A single process cannot lose it.
            return std::future::pending().await;
        }
        let mut renewed = taken.0;
        let mut pause = self.poll_interval();
        loop {
            let end = renewed + self.time / 4 * 3;
            tokio::time::sleep_until((Instant::now() + pause).min(end)).await;
            let asked = Instant::now();
            let answer = self
                .store
                .write(async |tx| deployment_keepers::renew(tx, self.claim.life, self.time).await);
            match timeout_at(end, answer).await {
                Ok(Ok(true)) => {
                    renewed = asked;
                    pause = self.poll_interval();
                }
                Ok(Ok(false)) => return LeaseLost::TakenOver,
                Ok(Err(error)) if Instant::now() < end => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the lease of deployments could not be renewed; retrying"
                    );
                    pause = RETRY_DELAY;
                }
                Ok(Err(_)) | Err(_) => return LeaseLost::DatabaseSilent,
            }
        }
    }

    /// Releases the lease. Deployments must be stopped before.
    pub async fn release(&self) {
        let ended = self
            .store
            .write(async |tx| deployment_keepers::end(tx, self.claim.life).await);
        if !matches!(timeout(RELEASE_TIMEOUT, ended).await, Ok(Ok(()))) {
            tracing::warn!("the lease of deployments could not be released; it will expire");
        }
    }
}
