//! Looks at the rows of runs, one for all who read the same run.
//!
//! Each reader looks once a second whether its run is over. A thousand readers of twenty runs that each looked by themselves
//! kept every connection busy, and nobody could come back meanwhile: a look is shared by those who ask at about the same time.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use towpath_domain::agent::RunStatus;
use towpath_domain::{RunId, TenantId};
use towpath_store::{self as store, Store, runs};

/// The runs that somebody in this process reads.
#[derive(Default)]
pub(crate) struct RunStatusCache(Mutex<HashMap<RunId, Weak<SharedRunStatus>>>);

impl RunStatusCache {
    /// Where readers of a run look. Kept as long as one of them has it.
    pub(super) fn status_of(&self, run: RunId) -> Arc<SharedRunStatus> {
        let mut looks = self.0.lock();
        if let Some(look) = looks.get(&run).and_then(Weak::upgrade) {
            return look;
        }
        // Before it grows: nobody needs those that nobody reads any more.
        if looks.len() == looks.capacity() {
            looks.retain(|_, look| look.strong_count() > 0);
        }
        let look = Arc::new(SharedRunStatus::default());
        looks.insert(run, Arc::downgrade(&look));
        look
    }
}

/// What was seen last of one run, and when that look began.
#[derive(Default)]
pub(crate) struct SharedRunStatus(tokio::sync::Mutex<Option<(Instant, RunState)>>);

/// What the row of a run says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunState {
    /// It goes on.
    Open,
    /// It is over; without a status when its row is gone.
    Finished(Option<RunStatus>),
    /// The database was away.
    Unknown,
}

impl SharedRunStatus {
    /// What a look saw that began then or later: of those who wait here together, the first one looks for all.
    pub(super) async fn read_since(
        &self,
        store: &Store,
        (tenant, run): (TenantId, RunId),
        then: Instant,
    ) -> store::Result<RunState> {
        let mut last = self.0.lock().await;
        if let Some((began, standing)) = *last
            && began >= then
        {
            return Ok(standing);
        }
        let began = Instant::now();
        let standing = match store.read(async |tx| runs::get(tx, tenant, run).await).await {
            Ok(row) if row.status.is_final() => RunState::Finished(Some(row.status)),
            Ok(_) => RunState::Open,
            Err(store::Error::NotFound) => RunState::Finished(None),
            // Told to the others too: each of them would wait as long for a connection.
            Err(error) if error.is_transient() => RunState::Unknown,
            Err(error) => return Err(error),
        };
        *last = Some((began, standing));
        Ok(standing)
    }
}
