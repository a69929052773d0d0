//! The right to keep deployments, which one process of an installation has at a time.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use towpath_store::keepers::{self, Claim, Keeper};
use towpath_store::{self as store, Dialect, Store};

/// Renewed at least so often: a database that is away for a while costs nothing.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// After a renewal that failed.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// What giving it back may take: whoever waits for it has it when its time is over.
const LET_GO: Duration = Duration::from_secs(5);

/// The lease of this process.
#[derive(Clone)]
pub struct Lease {
    store: Store,
    claim: Claim,
    time: Duration,
}

/// A lease that ended before the process did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Another process has it.
    #[error("another process keeps deployments by now")]
    Taken,
    /// It may be another's soon.
    #[error(
        "the database did not answer for so long that another process may begin to keep deployments \
         (deployments.keeper_lease_seconds)"
    )]
    Silent,
}

/// When a lease was taken, by this process's own clock.
#[derive(Clone, Copy, Debug)]
pub struct Taken(Instant);

/// Who has the lease in place of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder(Keeper);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.0.pid, self.0.host)
    }
}

impl Lease {
    /// Not taken yet.
    #[must_use]
    pub const fn new(store: Store, claim: Claim, time: Duration) -> Self {
        Self { store, claim, time }
    }

    /// Takes it. `Err` inside says who has it.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn take(&self) -> store::Result<Result<Taken, Holder>> {
        loop {
            // Before the database gives it: it ends here before it ends there.
            let asked = Instant::now();
            let answer = self.store.write(async |tx| {
                if keepers::take(tx, &self.claim, self.time).await? {
                    return Ok(Ok(()));
                }
                Ok(Err(keepers::current(tx).await?))
            });
            match answer.await? {
                Ok(()) => return Ok(Ok(Taken(asked))),
                Err(Some(keeper)) => return Ok(Err(Holder(keeper))),
                // Given back between the two questions.
                Err(None) => {}
            }
        }
    }

    /// How often whoever waits for it asks.
    #[must_use]
    pub fn pause(&self) -> Duration {
        (self.time / 3).min(RENEW_EVERY)
    }

    /// Renews it until it is lost. A database that does not answer costs it while a quarter of its time is left, so that
    /// what runs is stopped before another process begins.
    pub async fn hold(&self, taken: Taken) -> Lost {
        if self.store.dialect() == Dialect::Sqlite {
            // Nobody else can have it.
            return std::future::pending().await;
        }
        let mut renewed = taken.0;
        let mut pause = self.pause();
        loop {
            let end = renewed + self.time / 4 * 3;
            tokio::time::sleep_until((Instant::now() + pause).min(end)).await;
            let asked = Instant::now();
            let answer = self
                .store
                .write(async |tx| keepers::renew(tx, self.claim.life, self.time).await);
            match timeout_at(end, answer).await {
                Ok(Ok(true)) => {
                    renewed = asked;
                    pause = self.pause();
                }
                Ok(Ok(false)) => return Lost::Taken,
                Ok(Err(error)) if Instant::now() < end => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the lease for keeping deployments is not renewed; it is tried again"
                    );
                    pause = TRY_AGAIN;
                }
                Ok(Err(_)) | Err(_) => return Lost::Silent,
            }
        }
    }

    /// Gives it back: nothing of a deployment runs here any more.
    pub async fn give_back(&self) {
        let ended = self.store.write(async |tx| keepers::end(tx, self.claim.life).await);
        if !matches!(timeout(LET_GO, ended).await, Ok(Ok(()))) {
            tracing::warn!("the lease for keeping deployments is not given back; it ends by itself");
        }
    }
}
