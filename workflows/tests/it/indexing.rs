//! The run index: who records its job, leftovers of killed attempts, and lookups meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::TryStreamExt;
use object_store::path::Path;
use towpath_domain::{SegmentId, TraceRunId};
use towpath_store::segments;
use towpath_traces::flush::{self, RunLocation};
use towpath_traces::sample::SampleOperations;
use towpath_traces::segment::Segment;
use towpath_workflows::{delete_project, index_runs};

use crate::fixture::{Database, WorkflowFixture, on_both_databases};

const UNINDEXED: &str = "SELECT count(*) FROM segment WHERE state = 'live' AND NOT indexed";
const FILES: &str = "SELECT count(*) FROM run_index WHERE state = 'live'";
const ALL: &str = "SELECT count(*) FROM run_index";
const WRITING: &str = "SELECT count(*) FROM run_index WHERE state = 'writing'";
const ENTRIES: &str = "SELECT CAST(SUM(entries) AS bigint) FROM run_index WHERE state = 'live'";
const ROWS_OF_FIRST_DAY: &str = "SELECT CAST(SUM(rows) AS bigint) FROM segment_part WHERE day = '2026-03-01'";
const SCATTERED_ROWS: &str = "SELECT CAST(SUM(rows) AS bigint) FROM segment WHERE state = 'live' AND NOT compacted";
const JOBS: &str = "SELECT count(*) FROM job WHERE kind = 'index_runs'";
/// Longer than a sweep waits for lookups and writers.
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

impl WorkflowFixture {
    /// Flushes these trace runs into a separate segment.
    async fn fold(&self, range: std::ops::Range<u64>) {
        self.send(range, SampleOperations::Both).await;
        self.wait(Duration::from_secs(3)).await;
        self.drive().await;
    }

    /// Locations of the rows of live segments.
    async fn places(&self) -> BTreeMap<TraceRunId, RunLocation> {
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
                    let place = RunLocation {
                        sort_time: key.sort_time,
                        project,
                    };
                    assert!(places.insert(key.id, place).is_none_or(|other| other == place));
                }
            }
        }
        places
    }

    async fn located(&self, ids: &[TraceRunId]) -> BTreeMap<TraceRunId, RunLocation> {
        let found = flush::locate(self.store(), &self.world.objects, self.tenant, ids).await;
        let found = found.unwrap();
        let located: BTreeMap<_, _> = found.iter().copied().collect();
        assert_eq!(located.len(), found.len(), "one place for each");
        located
    }

    /// Every trace run is found at its location.
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
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.world.sizes.index_segments = 3;
    fixture.fold(0..10).await;
    fixture.fold(10..20).await;
    assert_eq!((fixture.count(UNINDEXED).await, fixture.count(JOBS).await), (2, 0));
    fixture.assert_located().await;
    // The flush that completes the batch records the job.
    fixture.fold(20..30).await;
    assert_eq!((fixture.count(UNINDEXED).await, fixture.count(JOBS).await), (0, 1));
    assert_eq!((fixture.count(FILES).await, fixture.count(ENTRIES).await), (1, 30));
    fixture.assert_located().await;
    // Patches find indexed trace runs: no id gets a second location.
    fixture.send(0..30, SampleOperations::Patches).await;
    fixture.wait(Duration::from_secs(3)).await;
    fixture.drive().await;
    assert_eq!(fixture.places().await.len(), 30);
    fixture.assert_located().await;
    fixture.assert_tidy().await;
}

async fn a_segment_waits_an_hour_for_others(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.fold(0..10).await;
    fixture.sweep().await;
    assert_eq!((fixture.count(UNINDEXED).await, fixture.count(JOBS).await), (1, 0));
    fixture.wait(index_runs::PATIENCE).await;
    fixture.sweep().await;
    assert_eq!((fixture.count(UNINDEXED).await, fixture.count(JOBS).await), (0, 1));
    fixture.assert_located().await;
    fixture.wait(index_runs::PATIENCE).await;
    fixture.sweep().await;
    assert_eq!(fixture.count(JOBS).await, 1, "nothing more to do");
}

async fn files_of_one_size_become_one(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.world.sizes.index_segments = 1;
    for nth in 0..7 {
        fixture.fold(nth * 10..(nth + 1) * 10).await;
    }
    assert_eq!((fixture.count(FILES).await, fixture.count(ENTRIES).await), (7, 70));
    fixture.assert_located().await;
    // A repeated row has its entry in another file, too.
    fixture.fold(65..80).await;
    assert_eq!((fixture.count(FILES).await, fixture.count(ENTRIES).await), (1, 80));
    fixture.assert_located().await;
    // Lookups that began before have time to end.
    fixture.sweep().await;
    assert_eq!(fixture.index_objects().await, 9);
    fixture.wait(fixture.world.retention.replaced_segments).await;
    fixture.sweep().await;
    assert_eq!((fixture.index_objects().await, fixture.count(ALL).await), (1, 1));
    fixture.assert_located().await;
}

async fn a_compaction_brings_what_it_takes_into_the_index(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 2).await;
    // The first day and half of the second.
    fixture.fold(0..1920).await;
    fixture.fold(1900..2000).await;
    assert_eq!((fixture.count(UNINDEXED).await, fixture.count(FILES).await), (2, 0));
    fixture.compact("2026-03-01").await;
    fixture.drain().await;
    // Compacted rows of a segment are in the index, and the rest waits.
    let entries = fixture.count(ENTRIES).await;
    assert_eq!((fixture.count(UNINDEXED).await, fixture.count(FILES).await), (2, 1));
    assert_eq!(entries, fixture.count(ROWS_OF_FIRST_DAY).await);
    fixture.assert_located().await;
    fixture.compact("2026-03-02").await;
    fixture.drain().await;
    assert_eq!(
        (fixture.count(UNINDEXED).await, fixture.count(ENTRIES).await),
        (0, 2000)
    );
    fixture.assert_located().await;
    // Indexed rows are not indexed again.
    fixture.world.sizes.index_segments = 1;
    fixture.send(0..10, SampleOperations::Patches).await;
    fixture.wait(Duration::from_secs(3)).await;
    fixture.drive().await;
    let patched = fixture.count(SCATTERED_ROWS).await;
    assert!(patched > 0);
    assert_eq!(fixture.count(ENTRIES).await, 2000 + patched);
    fixture.compact("2026-03-01").await;
    fixture.drain().await;
    assert_eq!(
        (fixture.count(UNINDEXED).await, fixture.count(ENTRIES).await),
        (0, 2000 + patched)
    );
    fixture.assert_located().await;
}

async fn files_that_compactions_brought_in_become_one(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    for nth in 0..8 {
        fixture.fold(nth * 10..(nth + 1) * 10).await;
        fixture.compact("2026-03-01").await;
        fixture.drain().await;
    }
    assert_eq!((fixture.count(FILES).await, fixture.count(ENTRIES).await), (1, 80));
    assert_eq!((fixture.count(UNINDEXED).await, fixture.count(JOBS).await), (0, 1));
    fixture.assert_located().await;
}

async fn killed_anywhere_it_leaves_nothing_and_is_done_again(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.world.sizes.index_segments = 1;
    for nth in 0..7 {
        fixture.fold(nth * 10..(nth + 1) * 10).await;
    }
    let (mut killed, mut polls) = (0, 1_u64);
    for _ in 0..2000 {
        // A segment to index. Sometimes its file is the eighth of its size, so merges are killed as well.
        fixture.world.sizes.index_segments = i64::MAX;
        fixture.fold(polls % 100 * 10..(polls % 100 + 1) * 10).await;
        fixture.world.sizes.index_segments = 1;
        fixture.start_index().await;
        let index = fixture.until("index_runs").await;
        let dropped = fixture.perform_for(index, usize::try_from(polls).unwrap()).await;
        fixture.assert_located().await;
        fixture.boot().await;
        fixture.drain().await;
        assert_eq!(fixture.count(UNINDEXED).await, 0, "killed after {polls} looks");
        assert_eq!(fixture.count(WRITING).await, 0, "killed after {polls} looks");
        assert!(fixture.count(FILES).await < 8, "killed after {polls} looks");
        fixture.assert_located().await;
        fixture.assert_tidy().await;
        // Immediately ready futures need no poll: one that ended after a few polls does not predict the next.
        if !dropped && killed > 5 {
            break;
        }
        polls = if dropped { polls + 1 } else { 1 };
        killed += usize::from(dropped);
    }
    assert!(killed > 5, "{killed}");
    // Leftovers of killed attempts are removed.
    fixture.wait(LATER).await;
    fixture.sweep().await;
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert_eq!(fixture.count(ALL).await, fixture.count(FILES).await);
    assert_eq!(
        i64::try_from(fixture.index_objects().await).unwrap(),
        fixture.count(FILES).await
    );
    fixture.assert_located().await;
}

async fn a_job_that_ends_badly_gives_up_what_it_began(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.world.sizes.index_segments = i64::MAX;
    fixture.fold(0..10).await;
    fixture.world.sizes.index_segments = 1;
    fixture.start_index().await;
    let index = fixture.until("index_runs").await;
    let (id, input) = (index.id, index.input.clone());
    let mark = serde_json::from_str::<index_runs::IndexRuns>(&input).unwrap().mark;
    let begun = fixture.store().write(async |tx| {
        let file = towpath_domain::RunIndexId::new();
        towpath_store::run_index::intend(tx, fixture.tenant, file, "index/begun", Some(mark)).await?;
        towpath_durable::cancel(tx, id).await
    });
    begun.await.unwrap();
    fixture.perform(index).await;
    assert_eq!((fixture.count(WRITING).await, fixture.count(UNINDEXED).await), (0, 1));
    fixture.assert_located().await;
}

async fn what_a_deleted_project_had_goes(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.world.sizes.index_segments = 1;
    fixture.fold(0..10).await;
    fixture.fold(10..20).await;
    let ids: Vec<TraceRunId> = fixture.places().await.into_keys().collect();
    assert_eq!((fixture.count(FILES).await, fixture.located(&ids).await.len()), (2, 20));
    let project = fixture.project().await;
    let deleted = fixture
        .store()
        .write(async |tx| delete_project::delete(tx, fixture.tenant, project).await);
    deleted.await.unwrap();
    assert!(fixture.located(&ids).await.is_empty());
    fixture.wait(LATER).await;
    fixture.sweep().await;
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert_eq!((fixture.index_objects().await, fixture.count(ALL).await), (0, 0));
}

async fn what_lay_beside_trace_runs_of_old_days_goes_though_the_index_names_them(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 3).await;
    fixture.world.sizes.index_segments = 1;
    fixture.fold(0..3840).await;
    let project = fixture.project().await;
    let run = |index| TraceRunId(fixture.sample.expected(index, fixture.tenant, project).id);
    let places = fixture.places().await;
    let on_day = |day: &str| {
        let day = crate::fixture::time(day).day();
        let mut all = (0..3840).map(run);
        all.find(|id| places.get(id).is_some_and(|place| place.sort_time.day() == day))
            .unwrap()
    };
    let (old, young) = (on_day("2026-03-01"), on_day("2026-03-03"));
    fixture.beside(old).await;
    fixture.beside(young).await;
    // It is the tenth: eight days reach back to the second.
    fixture.world.retention.days = Some(8);
    for _ in 0..3 {
        fixture.sweep().await;
        fixture.wait(LATER).await;
    }
    assert_eq!(
        fixture.count("SELECT count(*) FROM feedback").await,
        1,
        "the one on a run that is kept"
    );
    assert_eq!(fixture.count("SELECT count(*) FROM attachment").await, 1);
    assert_eq!(fixture.located(&[young]).await.len(), 1);
}
