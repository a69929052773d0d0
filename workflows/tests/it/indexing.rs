//! The index of trace runs: who records its job, what a killed one leaves, and that every trace run is found meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::TryStreamExt;
use object_store::path::Path;
use towpath_domain::{SegmentId, TraceRunId};
use towpath_store::segments;
use towpath_traces::fold::{self, Place};
use towpath_traces::sample::Which;
use towpath_traces::segment::Segment;
use towpath_workflows::{delete_project, index_runs};

use crate::home::{Database, Home, on_both_databases};

const UNINDEXED: &str = "SELECT count(*) FROM segment WHERE state = 'live' AND NOT indexed";
const FILES: &str = "SELECT count(*) FROM run_index WHERE state = 'live'";
const ALL: &str = "SELECT count(*) FROM run_index";
const WRITING: &str = "SELECT count(*) FROM run_index WHERE state = 'writing'";
const ENTRIES: &str = "SELECT CAST(SUM(entries) AS bigint) FROM run_index WHERE state = 'live'";
const ROWS_OF_FIRST_DAY: &str = "SELECT CAST(SUM(rows) AS bigint) FROM segment_part WHERE day = '2026-03-01'";
const SCATTERED_ROWS: &str = "SELECT CAST(SUM(rows) AS bigint) FROM segment WHERE state = 'live' AND NOT compacted";
const JOBS: &str = "SELECT count(*) FROM job WHERE kind = 'index_runs'";
/// Longer than a sweep waits for lookups, and for writers.
const LATER: Duration = Duration::from_secs(2 * 60 * 60);

on_both_databases! {
    segments_are_indexed_when_there_are_enough,
    a_segment_waits_an_hour_for_others,
    files_of_one_size_become_one,
    a_compaction_brings_what_it_takes_into_the_index,
    files_that_compactions_brought_in_become_one,
    killed_anywhere_it_leaves_nothing_and_is_done_again,
    a_job_that_ends_badly_gives_up_what_it_began,
    what_a_deleted_project_had_goes,
    what_lay_beside_trace_runs_of_old_days_goes_though_the_index_names_them,
}

impl Home {
    /// Folds these trace runs into a segment of their own.
    async fn fold(&self, range: std::ops::Range<u64>) {
        self.send(range, Which::Both).await;
        self.wait(Duration::from_secs(3)).await;
        self.drive().await;
    }

    /// Where the rows of live segments lie.
    async fn places(&self) -> BTreeMap<TraceRunId, Place> {
        let project = self.project().await;
        let paths: Vec<(SegmentId, String)> = self
            .store()
            .read(async |tx| {
                Ok(towpath_store::on!(tx, |conn| sqlx::query_as(
                    "SELECT id, path FROM segment WHERE state = 'live'"
                )
                .fetch_all(conn)
                .await)?)
            })
            .await
            .unwrap();
        let mut places = BTreeMap::new();
        for (id, path) in paths {
            let parts = self
                .store()
                .read(async |tx| segments::parts(tx, self.tenant, id).await)
                .await;
            let store = self.world.objects.store().clone();
            let segment = Segment::open(store, Path::from(path)).await.unwrap();
            for part in parts.unwrap() {
                for key in segment.keys(usize::try_from(part.row_group).unwrap()).await.unwrap() {
                    let place = Place {
                        sort_time: key.sort_time,
                        project,
                    };
                    assert!(places.insert(key.id, place).is_none_or(|other| other == place));
                }
            }
        }
        places
    }

    async fn located(&self, ids: &[TraceRunId]) -> BTreeMap<TraceRunId, Place> {
        let found = fold::locate(self.store(), &self.world.objects, self.tenant, ids).await;
        let found = found.unwrap();
        let located: BTreeMap<_, _> = found.iter().copied().collect();
        assert_eq!(located.len(), found.len(), "one place for each");
        located
    }

    /// Every trace run is found where its row lies.
    async fn assert_located(&self) {
        let places = self.places().await;
        assert!(!places.is_empty());
        let mut ids: Vec<TraceRunId> = places.keys().copied().collect();
        ids.push(TraceRunId::new());
        assert!(self.located(&ids).await == places);
    }

    async fn index_objects(&self) -> usize {
        let listed = self.world.objects.store().list(Some(&"index".into()));
        listed.try_collect::<Vec<_>>().await.unwrap().len()
    }

    async fn start_index(&self) {
        let index = index_runs::IndexRuns::new(self.tenant);
        let how = towpath_durable::Start::new(self.tenant).lane(index_runs::lane(self.tenant));
        let started = self
            .store()
            .write(async |tx| towpath_durable::start(tx, &index, how).await.map(drop));
        started.await.unwrap();
    }
}

async fn segments_are_indexed_when_there_are_enough(on: Database) {
    let mut home = Home::empty_on(&on, 1).await;
    home.world.sizes.index_segments = 3;
    home.fold(0..10).await;
    home.fold(10..20).await;
    assert_eq!((home.count(UNINDEXED).await, home.count(JOBS).await), (2, 0));
    home.assert_located().await;
    // The fold that makes them enough records the job.
    home.fold(20..30).await;
    assert_eq!((home.count(UNINDEXED).await, home.count(JOBS).await), (0, 1));
    assert_eq!((home.count(FILES).await, home.count(ENTRIES).await), (1, 30));
    home.assert_located().await;
    // Patches of trace runs that the index names find them: no id gets a second place.
    home.send(0..30, Which::Patches).await;
    home.wait(Duration::from_secs(3)).await;
    home.drive().await;
    assert_eq!(home.places().await.len(), 30);
    home.assert_located().await;
    home.assert_tidy().await;
}

async fn a_segment_waits_an_hour_for_others(on: Database) {
    let home = Home::empty_on(&on, 1).await;
    home.fold(0..10).await;
    home.sweep().await;
    assert_eq!((home.count(UNINDEXED).await, home.count(JOBS).await), (1, 0));
    home.wait(index_runs::PATIENCE).await;
    home.sweep().await;
    assert_eq!((home.count(UNINDEXED).await, home.count(JOBS).await), (0, 1));
    home.assert_located().await;
    home.wait(index_runs::PATIENCE).await;
    home.sweep().await;
    assert_eq!(home.count(JOBS).await, 1, "nothing more to do");
}

async fn files_of_one_size_become_one(on: Database) {
    let mut home = Home::empty_on(&on, 1).await;
    home.world.sizes.index_segments = 1;
    for nth in 0..7 {
        home.fold(nth * 10..(nth + 1) * 10).await;
    }
    assert_eq!((home.count(FILES).await, home.count(ENTRIES).await), (7, 70));
    home.assert_located().await;
    // Said again, a row has its entry in another file, too.
    home.fold(65..80).await;
    assert_eq!((home.count(FILES).await, home.count(ENTRIES).await), (1, 80));
    home.assert_located().await;
    // Lookups that began before have time to end.
    home.sweep().await;
    assert_eq!(home.index_objects().await, 9);
    home.wait(home.world.keeping.replaced).await;
    home.sweep().await;
    assert_eq!((home.index_objects().await, home.count(ALL).await), (1, 1));
    home.assert_located().await;
}

async fn a_compaction_brings_what_it_takes_into_the_index(on: Database) {
    let mut home = Home::empty_on(&on, 2).await;
    // The first day and half of the second.
    home.fold(0..1920).await;
    home.fold(1900..2000).await;
    assert_eq!((home.count(UNINDEXED).await, home.count(FILES).await), (2, 0));
    home.compact("2026-03-01").await;
    home.drain().await;
    // What was taken of a segment is in the index, and the rest of it waits.
    let entries = home.count(ENTRIES).await;
    assert_eq!((home.count(UNINDEXED).await, home.count(FILES).await), (2, 1));
    assert_eq!(entries, home.count(ROWS_OF_FIRST_DAY).await);
    home.assert_located().await;
    home.compact("2026-03-02").await;
    home.drain().await;
    assert_eq!((home.count(UNINDEXED).await, home.count(ENTRIES).await), (0, 2000));
    home.assert_located().await;
    // Of what is indexed nothing is indexed again.
    home.world.sizes.index_segments = 1;
    home.send(0..10, Which::Patches).await;
    home.wait(Duration::from_secs(3)).await;
    home.drive().await;
    let patched = home.count(SCATTERED_ROWS).await;
    assert!(patched > 0);
    assert_eq!(home.count(ENTRIES).await, 2000 + patched);
    home.compact("2026-03-01").await;
    home.drain().await;
    assert_eq!(
        (home.count(UNINDEXED).await, home.count(ENTRIES).await),
        (0, 2000 + patched)
    );
    home.assert_located().await;
}

async fn files_that_compactions_brought_in_become_one(on: Database) {
    let home = Home::empty_on(&on, 1).await;
    for nth in 0..8 {
        home.fold(nth * 10..(nth + 1) * 10).await;
        home.compact("2026-03-01").await;
        home.drain().await;
    }
    assert_eq!((home.count(FILES).await, home.count(ENTRIES).await), (1, 80));
    assert_eq!((home.count(UNINDEXED).await, home.count(JOBS).await), (0, 1));
    home.assert_located().await;
}

async fn killed_anywhere_it_leaves_nothing_and_is_done_again(on: Database) {
    let mut home = Home::empty_on(&on, 1).await;
    home.world.sizes.index_segments = 1;
    for nth in 0..7 {
        home.fold(nth * 10..(nth + 1) * 10).await;
    }
    let (mut killed, mut polls) = (0, 1_u64);
    for _ in 0..2000 {
        // A segment to be indexed. Its file is the eighth of its size now and then, so merges are killed as well.
        home.world.sizes.index_segments = i64::MAX;
        home.fold(polls % 100 * 10..(polls % 100 + 1) * 10).await;
        home.world.sizes.index_segments = 1;
        home.start_index().await;
        let index = home.until("index_runs").await;
        let dropped = home.perform_for(index, usize::try_from(polls).unwrap()).await;
        home.assert_located().await;
        home.boot().await;
        home.drain().await;
        assert_eq!(home.count(UNINDEXED).await, 0, "killed after {polls} looks");
        assert_eq!(home.count(WRITING).await, 0, "killed after {polls} looks");
        assert!(home.count(FILES).await < 8, "killed after {polls} looks");
        home.assert_located().await;
        home.assert_tidy().await;
        // What is ready at once needs no look of its own: one that ended after a few looks says nothing about the next.
        if !dropped && killed > 5 {
            break;
        }
        polls = if dropped { polls + 1 } else { 1 };
        killed += usize::from(dropped);
    }
    assert!(killed > 5, "{killed}");
    // What the killed ones left is removed.
    home.wait(LATER).await;
    home.sweep().await;
    home.wait(LATER).await;
    home.sweep().await;
    assert_eq!(home.count(ALL).await, home.count(FILES).await);
    assert_eq!(
        i64::try_from(home.index_objects().await).unwrap(),
        home.count(FILES).await
    );
    home.assert_located().await;
}

async fn a_job_that_ends_badly_gives_up_what_it_began(on: Database) {
    let mut home = Home::empty_on(&on, 1).await;
    home.world.sizes.index_segments = i64::MAX;
    home.fold(0..10).await;
    home.world.sizes.index_segments = 1;
    home.start_index().await;
    let index = home.until("index_runs").await;
    let (id, input) = (index.id, index.input.clone());
    let mark = serde_json::from_str::<index_runs::IndexRuns>(&input).unwrap().mark;
    let begun = home.store().write(async |tx| {
        let file = towpath_domain::RunIndexId::new();
        towpath_store::run_index::intend(tx, home.tenant, file, "index/begun", Some(mark)).await?;
        towpath_durable::cancel(tx, id).await
    });
    begun.await.unwrap();
    home.perform(index).await;
    assert_eq!((home.count(WRITING).await, home.count(UNINDEXED).await), (0, 1));
    home.assert_located().await;
}

async fn what_a_deleted_project_had_goes(on: Database) {
    let mut home = Home::empty_on(&on, 1).await;
    home.world.sizes.index_segments = 1;
    home.fold(0..10).await;
    home.fold(10..20).await;
    let ids: Vec<TraceRunId> = home.places().await.into_keys().collect();
    assert_eq!((home.count(FILES).await, home.located(&ids).await.len()), (2, 20));
    let project = home.project().await;
    let deleted = home
        .store()
        .write(async |tx| delete_project::delete(tx, home.tenant, project).await);
    deleted.await.unwrap();
    assert!(home.located(&ids).await.is_empty());
    home.wait(LATER).await;
    home.sweep().await;
    home.wait(LATER).await;
    home.sweep().await;
    assert_eq!((home.index_objects().await, home.count(ALL).await), (0, 0));
}

async fn what_lay_beside_trace_runs_of_old_days_goes_though_the_index_names_them(on: Database) {
    let mut home = Home::empty_on(&on, 3).await;
    home.world.sizes.index_segments = 1;
    home.fold(0..3840).await;
    let project = home.project().await;
    let run = |index| TraceRunId(home.sample.expected(index, home.tenant, project).id);
    let places = home.places().await;
    let on_day = |day: &str| {
        let day = crate::home::time(day).day();
        let mut all = (0..3840).map(run);
        all.find(|id| places.get(id).is_some_and(|place| place.sort_time.day() == day))
            .unwrap()
    };
    let (old, young) = (on_day("2026-03-01"), on_day("2026-03-03"));
    home.beside(old).await;
    home.beside(young).await;
    // It is the tenth: eight days reach back to the second.
    home.world.keeping.days = Some(8);
    for _ in 0..3 {
        home.sweep().await;
        home.wait(LATER).await;
    }
    assert_eq!(
        home.count("SELECT count(*) FROM feedback").await,
        1,
        "the one on a run that is kept"
    );
    assert_eq!(home.count("SELECT count(*) FROM attachment").await, 1);
    assert_eq!(home.located(&[young]).await.len(), 1);
}
