//! One turn of a pool: what ended is written and the next jobs are claimed, in one transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;
use towpath_domain::WorkerId;
use towpath_durable::{Endings, Engine, Joining};
use towpath_store::jobs::{self, Turned};
use towpath_store::{self as store, Tx};

use crate::Finished;
use crate::held::Claiming;
use crate::rota::{Outset, Rota};

/// What a turn is to do: write the jobs that finished, claim as many for their slots and the free ones, and record.
#[derive(Default)]
pub(crate) struct Hand {
    pub(crate) finished: Vec<Finished>,
    pub(crate) permits: Vec<OwnedSemaphorePermit>,
    pub(crate) joining: Vec<Joining>,
}

impl Hand {
    /// The slots to claim for.
    pub(crate) fn slots(&self) -> usize {
        self.finished.len() + self.permits.len()
    }
}

/// A turn that is over.
pub(crate) struct Over {
    pub(crate) hand: Hand,
    pub(crate) by: (WorkerId, Claiming),
    /// The most that it was to claim.
    pub(crate) wanted: usize,
    pub(crate) outset: Outset,
    pub(crate) took: Duration,
    pub(crate) turned: store::Result<Turned>,
}

/// Begins a turn for this worker and pool that leaves `spare` slots free. The claim counts as under way until what the turn answers is dropped.
pub(crate) fn begin(
    engine: &Engine,
    pool: &str,
    by: (WorkerId, Claiming),
    hand: Hand,
    spare: usize,
    rota: &mut Rota,
) -> impl Future<Output = Over> + Send + use<> {
    let (engine, pool) = (engine.clone(), pool.to_owned());
    let endings = Endings::of(hand.finished.iter().map(|finished| finished.bare.ending()));
    // Who gets the place of one that ended may be older than what was claimed last.
    let outset = rota.next(!endings.lanes.is_empty());
    async move {
        let started = Instant::now();
        let wanted = hand.slots().saturating_sub(spare);
        let claimer = jobs::Claimer {
            after: outset.after,
            marks: &outset.marks,
            ..jobs::Claimer::new(&pool, by.0, i64::try_from(wanted).unwrap_or(i64::MAX))
        };
        let turned = write_and_claim(engine.store(), &claimer, &endings, &hand.joining).await;
        let took = started.elapsed();
        Over {
            hand,
            by,
            wanted,
            outset,
            took,
            turned,
        }
    }
}

async fn write_and_claim(
    store: &store::Store,
    claimer: &jobs::Claimer<'_>,
    endings: &Endings,
    joining: &[Joining],
) -> store::Result<Turned> {
    let Endings { held, lanes, .. } = endings;
    let all = async |tx: &mut Tx<'_>| {
        // First, so that they are claimed with the others.
        towpath_durable::write_along(tx, joining.iter().map(|one| Arc::clone(&one.along)).collect()).await?;
        if held.is_empty() {
            let claimed = match claimer.n {
                0 => Vec::new(),
                _ => jobs::claim(tx, claimer).await?,
            };
            return Ok(Turned {
                missed: Vec::new(),
                claimed,
            });
        }
        let turned = jobs::turn(tx, held, lanes, claimer).await?;
        endings.write_along(tx, |job| !turned.missed.contains(&job)).await?;
        Ok(turned)
    };
    if endings.are_one_statement() && joining.is_empty() {
        store.write_one(all).await
    } else {
        store.write(all).await
    }
}
