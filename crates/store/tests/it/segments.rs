//! A pin and a compaction of the same segments at the same time, on PostgreSQL only: SQLite has one writer. And the
//! walk through days that are worth compacting.

use std::time::Duration;

use chrono::NaiveDate;
use towpath_domain::{ProjectId, SegmentId, TenantId};
use towpath_store::segments::replace::{self, CompactionCandidate, CompactionThresholds, Replacement};
use towpath_store::segments::{self, LocatedPart, Part, waste};
use towpath_store::{Result, Store, Tx};
use uuid::Uuid;

use crate::database::{Database, run, waiting};

/// A project with one day, which is in two live segments.
#[derive(Clone)]
struct Catalog {
    store: Store,
    tenant: TenantId,
    project: ProjectId,
    day: NaiveDate,
}

impl Catalog {
    async fn new(store: Store) -> Self {
        store.migrate().await.unwrap();
        let catalog = Self {
            day: store.clock().now().day(),
            store,
            tenant: TenantId::new(),
            project: ProjectId::new(),
        };
        for _ in 0..2 {
            catalog.add().await;
        }
        catalog
    }

    /// Adds a live segment of one row group.
    async fn add(&self) {
        let new = self.intend().await;
        let published = self
            .store
            .write(async |tx| segments::publish(tx, self.tenant, new.id, new.rows, new.bytes, &new.parts).await);
        published.await.unwrap();
    }

    /// A segment of one row group, whose object is written and which no one sees yet.
    async fn intend(&self) -> Replacement {
        let (id, now) = (SegmentId::new(), self.store.clock().now());
        self.store
            .write(async |tx| segments::intend(tx, self.tenant, id, &format!("segments/{id}"), None).await)
            .await
            .unwrap();
        let part = Part {
            segment_id: id,
            tenant_id: self.tenant,
            project_id: self.project,
            day: self.day,
            row_group: 0,
            rows: 1,
            min_sort_time: now,
            max_sort_time: now,
            min_seq: 1,
            max_seq: 1,
        };
        Replacement {
            id,
            rows: 1,
            bytes: 1,
            parts: vec![part],
            price_version: 0,
        }
    }

    async fn live(&self) -> Vec<LocatedPart> {
        self.store
            .read(async |tx| segments::live_parts(tx, self.tenant, self.project, self.day, self.day).await)
            .await
            .unwrap()
    }

    async fn pin(self, holder: Uuid) -> Vec<LocatedPart> {
        self.store
            .write(async |tx| segments::pin(tx, self.tenant, self.project, self.day, self.day, holder).await)
            .await
            .unwrap()
    }

    async fn replace(&self, tx: &mut Tx<'_>, old: &[LocatedPart], new: &Replacement) -> Result<()> {
        replace::replace(tx, self.tenant, old, std::slice::from_ref(new), true).await
    }

    /// Takes everything that was replaced until now and that no one has pinned. How many segments those were.
    async fn collect(&self) -> usize {
        let later = self.store.clock().now().plus(Duration::from_secs(1));
        let collected = self.store.write(async |tx| waste::collect(tx, later, 10).await);
        collected.await.unwrap().len()
    }
}

fn ids(parts: &[LocatedPart]) -> Vec<SegmentId> {
    parts.iter().map(|placed| placed.part.segment_id).collect()
}

/// The pin has read what is live and has not written a row. A compaction and a sweep that come now must wait: they
/// would remove what the pin is about to promise.
#[tokio::test]
async fn a_compaction_waits_for_a_pin_that_is_being_written() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let catalog = Catalog::new(database.store.clone()).await;
    let (old, new) = (catalog.live().await, catalog.intend().await);
    let holder = Uuid::now_v7();
    let store = &catalog.store;
    let (pinning, compacting) = store
        .write(async |tx| {
            // Pins can be read and not written, which stops the pin between the two.
            run(tx, "LOCK TABLE segment_pin IN SHARE MODE").await?;
            let pinning = tokio::spawn(catalog.clone().pin(holder));
            waiting(store, 1, || pinning.is_finished()).await;
            let compacting = tokio::spawn({
                let (catalog, old) = (catalog.clone(), old.clone());
                async move {
                    let replaced = catalog.store.write(async |tx| catalog.replace(tx, &old, &new).await);
                    replaced.await.unwrap();
                    catalog.collect().await
                }
            });
            waiting(store, 2, || compacting.is_finished()).await;
            Ok((pinning, compacting))
        })
        .await
        .unwrap();
    let pinned = pinning.await.unwrap();
    assert_eq!(compacting.await.unwrap(), 0, "segments were removed under a pin");
    assert_eq!(pinned, old, "the pin came first and keeps what it saw");
    assert_eq!(ids(&catalog.live().await).len(), 1, "the compaction came second");
    store.write(async |tx| segments::unpin(tx, holder).await).await.unwrap();
    assert_eq!(catalog.collect().await, 2, "what nobody reads any more goes");
}

/// The compaction has replaced the segments and has not committed. A pin that comes now must wait, and then take the
/// replacement: the next sweep removes what was replaced.
#[tokio::test]
async fn a_pin_waits_for_a_compaction_and_takes_the_replacement() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let catalog = Catalog::new(database.store.clone()).await;
    let (old, new) = (catalog.live().await, catalog.intend().await);
    let store = &catalog.store;
    let pinning = store
        .write(async |tx| {
            catalog.replace(tx, &old, &new).await?;
            let pinning = tokio::spawn(catalog.clone().pin(Uuid::now_v7()));
            waiting(store, 1, || pinning.is_finished()).await;
            Ok(pinning)
        })
        .await
        .unwrap();
    assert_eq!(ids(&pinning.await.unwrap()), [new.id]);
    assert_eq!(catalog.collect().await, 2, "what was replaced is pinned by nobody");
}

/// Steps may end in the middle of a day, and of none is it said twice or never whether it is worth it.
async fn the_walk_through_days_meets_each_of_them(database: Database) {
    let mut catalog = Catalog::new(database.store.clone()).await;
    let today = catalog.day;
    let yesterday = today.pred_opt().unwrap();
    for (day, segments) in [(yesterday, 5), (yesterday.pred_opt().unwrap(), 1)] {
        catalog.day = day;
        for _ in 0..segments {
            catalog.add().await;
        }
    }
    let worth = CompactionThresholds {
        open_from: today,
        closed_rows: 100,
        closed_segments: 4,
        open_segments: 2,
    };
    let step = async |behind, limit| {
        let seen = catalog
            .store
            .read(async |tx| replace::candidates(tx, worth, behind, limit).await)
            .await;
        seen.unwrap()
    };
    let of = |day| CompactionCandidate {
        tenant_id: catalog.tenant,
        project_id: catalog.project,
        day,
    };
    let whole = step(None, 100).await;
    let found: Vec<_> = whole
        .candidates
        .iter()
        .map(|day| (day.segments, day.candidate))
        .collect();
    assert_eq!(found, [(5, of(yesterday)), (2, of(today))]);
    assert_eq!(whole.last, None);
    let (mut behind, mut met) = (None, Vec::new());
    loop {
        let seen = step(behind, 3).await;
        met.extend(seen.candidates.into_iter().map(|day| day.candidate));
        behind = seen.last;
        if behind.is_none() {
            break;
        }
    }
    assert_eq!(met, [of(yesterday), of(today)]);
}

#[tokio::test]
async fn the_walk_through_days_on_sqlite() {
    the_walk_through_days_meets_each_of_them(Database::sqlite().await).await;
}

#[tokio::test]
async fn the_walk_through_days_on_postgres() {
    if let Some(database) = Database::postgres().await {
        the_walk_through_days_meets_each_of_them(database).await;
    }
}
