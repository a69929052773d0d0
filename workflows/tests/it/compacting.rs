//! Compaction, deletion and removal of objects: visible rows stay the same.

use std::time::Duration;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use futures::TryStreamExt;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use towpath_domain::export::ExportStatus;
use towpath_domain::{ExportId, ProjectId, TraceRunId};
use towpath_durable::Start;
use towpath_store::feedback::{self, Attachment, Feedback};
use towpath_store::segments::{self, LocatedPart};
use towpath_traces::flush;
use towpath_traces::sample::SampleOperations;
use towpath_workflows::compact_day::CompactDay;
use towpath_workflows::{delete_project, sweep_traces};

use crate::fixture::{DAY_ROWS, Database, WorkflowFixture, on_both_databases, time};

const LIVE: &str = "SELECT count(*) FROM segment WHERE state = 'live'";
const COMPACTED: &str = "SELECT count(*) FROM segment WHERE state = 'live' AND compacted";
const WRITING: &str = "SELECT (SELECT count(*) FROM segment WHERE state = 'writing')
                            + (SELECT count(*) FROM run_index WHERE state = 'writing')";
const PARTS: &str = "SELECT count(*) FROM segment_part";
const ALL: &str = "SELECT count(*) FROM segment";
/// Longer than a sweep waits for queries.
const LATER: Duration = Duration::from_secs(2 * 60 * 60);

on_both_databases! {
    a_compacted_day_is_exported_as_it_was,
    who_has_begun_to_read_goes_on_with_what_was_there,
    a_query_without_a_pin_has_time_to_end,
    killed_anywhere_it_changes_nothing_or_all,
    what_an_attempt_began_goes_though_another_job_was_faster,
    what_is_folded_meanwhile_is_not_lost,
    a_deleted_project_is_gone_at_once_and_its_bytes_later,
    days_past_their_time_go,
    a_day_in_many_segments_comes_together_by_itself,
    exports_compactions_and_sweeps_go_on_side_by_side,
}

impl WorkflowFixture {
    /// Trace runs of these days in several segments, with posts and patches in different ones.
    async fn scattered_on(on: &Database, days: u32) -> Self {
        let mut fixture = Self::empty_on(on, days).await;
        fixture.world.sizes.splice_rows = 1;
        let all = DAY_ROWS * u64::from(days);
        for (range, which) in [
            (0..all / 2, SampleOperations::Posts),
            (all / 4..all, SampleOperations::Both),
            (0..all / 2, SampleOperations::Patches),
        ] {
            fixture.send(range, which).await;
            fixture.wait(Duration::from_secs(3)).await;
            fixture.drive().await;
        }
        assert_eq!(fixture.count(LIVE).await, 3);
        fixture
    }

    pub(crate) async fn compact(&self, day: &str) {
        let compact = CompactDay::whole(self.tenant, self.project().await, time(day).day());
        let how = Start::new(self.tenant).lane(compact.lane());
        self.store()
            .write(async |tx| towpath_durable::start(tx, &compact, how).await.map(drop))
            .await
            .unwrap();
    }

    async fn live(&self, day: &str) -> Vec<LocatedPart> {
        let (project, day) = (self.project().await, time(day).day());
        self.store()
            .read(async |tx| segments::live_parts(tx, self.tenant, project, day, day).await)
            .await
            .unwrap()
    }

    /// The rows of an export, in order.
    pub fn rows(&self, export: ExportId) -> RecordBatch {
        let mut batches = Vec::new();
        for file in self.files(export).values() {
            let reader = ParquetRecordBatchReaderBuilder::try_new(file.clone()).unwrap().build();
            batches.extend(reader.unwrap().map(Result::unwrap));
        }
        concat_batches(&batches[0].schema(), &batches).unwrap()
    }

    /// Feedback on a trace run, and an attachment of it.
    pub(crate) async fn beside(&self, run: TraceRunId) {
        let path = flush::attachment_path(self.tenant, run, "photo", 1);
        self.world.objects.put(&path, vec!["bytes".into()]).await.unwrap();
        let now = self.clock.now();
        let given = Feedback {
            tenant_id: self.tenant,
            id: uuid::Uuid::now_v7(),
            run_id: Some(run),
            key: "good".to_owned(),
            body: "{}".to_owned(),
            seq: 1,
            created_at: now,
            modified_at: None,
            deleted: false,
        };
        let file = Attachment {
            tenant_id: self.tenant,
            run_id: run,
            name: "photo".to_owned(),
            content_type: "image/png".to_owned(),
            path: path.into(),
            bytes: 5,
            seq: 1,
            created_at: now,
        };
        let kept = self.store().write(async |tx| {
            feedback::put(tx, &given).await?;
            feedback::attach(tx, &file).await
        });
        kept.await.unwrap();
    }

    pub(crate) async fn sweep(&self) {
        sweep_traces::ensure(self.store()).await.unwrap();
        self.wait(Duration::from_secs(61)).await;
        self.drive().await;
    }

    pub(crate) async fn objects(&self) -> usize {
        let folder = object_store::path::Path::from("segments");
        let listed: Vec<_> = self
            .world
            .objects
            .store()
            .list(Some(&folder))
            .try_collect()
            .await
            .unwrap();
        listed.len()
    }
}

async fn a_compacted_day_is_exported_as_it_was(on: Database) {
    let fixture = WorkflowFixture::scattered_on(&on, 2).await;
    let before = fixture.export(2).await;
    fixture.drain().await;
    fixture.compact("2026-03-01").await;
    fixture.drain().await;
    let parts = fixture.live("2026-03-01").await;
    assert_eq!(parts.len(), 1);
    assert!(parts[0].compacted);
    assert_eq!(parts[0].part.rows, DAY_ROWS as i64);
    // The other day is in the same segments, which stay for it.
    assert_eq!(fixture.live("2026-03-02").await.len(), 3);
    assert_eq!(fixture.count(LIVE).await, 4);
    let between = fixture.export(2).await;
    fixture.drain().await;
    fixture.compact("2026-03-02").await;
    fixture.drain().await;
    assert_eq!((fixture.count(LIVE).await, fixture.count(COMPACTED).await), (2, 2));
    let after = fixture.export(2).await;
    let rich = fixture
        .export_as(|asked| {
            asked.end_time = Some(time("2026-03-03"));
            asked.format_version = Some("v2_beta".to_owned());
        })
        .await;
    fixture.drain().await;
    assert_eq!(fixture.rows(before).num_rows() as u64, 2 * DAY_ROWS);
    assert!(fixture.rows(between) == fixture.rows(before));
    assert!(fixture.rows(after) == fixture.rows(before));
    let ids = |export| fixture.rows(export).column(0).as_string::<i32>().clone();
    assert_eq!(ids(rich), ids(before));
    // A repetition changes nothing.
    fixture.compact("2026-03-01").await;
    fixture.drain().await;
    assert_eq!(fixture.count(ALL).await, 5);
    fixture.assert_tidy().await;
}

async fn who_has_begun_to_read_goes_on_with_what_was_there(on: Database) {
    let fixture = WorkflowFixture::scattered_on(&on, 1).await;
    let whole = fixture.export(1).await;
    fixture.drain().await;
    let export = fixture.export(1).await;
    let part = fixture.until("export_part").await;
    fixture.compact("2026-03-01").await;
    fixture.drive().await;
    assert_eq!(fixture.count(LIVE).await, 1);
    fixture.sweep().await;
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert_eq!(fixture.objects().await, 4, "what is pinned stays");
    fixture.perform(part).await;
    fixture.drive().await;
    assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
    assert!(
        fixture.files(export) == fixture.files(whole),
        "the same bytes as before"
    );
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert_eq!(fixture.objects().await, 1);
    assert_eq!(fixture.count(ALL).await, 1);
    assert_eq!(fixture.count("SELECT count(*) FROM segment_part_past").await, 0);
}

async fn a_query_without_a_pin_has_time_to_end(on: Database) {
    let fixture = WorkflowFixture::scattered_on(&on, 1).await;
    fixture.compact("2026-03-01").await;
    fixture.drain().await;
    fixture.sweep().await;
    assert_eq!(fixture.objects().await, 4);
    fixture.wait(fixture.world.retention.replaced_segments).await;
    fixture.sweep().await;
    assert_eq!(fixture.objects().await, 1);
}

async fn killed_anywhere_it_changes_nothing_or_all(on: Database) {
    let fixture = WorkflowFixture::scattered_on(&on, 1).await;
    let whole = fixture.export(1).await;
    fixture.drain().await;
    let expected = fixture.rows(whole);
    let mut killed = 0;
    for polls in 1..2000 {
        // New data each time, so that there is something to do.
        fixture.send(polls..polls + 2, SampleOperations::Both).await;
        fixture.wait(Duration::from_secs(3)).await;
        fixture.drive().await;
        fixture.compact("2026-03-01").await;
        let compaction = fixture.until("compact_day").await;
        let dropped = fixture.perform_for(compaction, usize::try_from(polls).unwrap()).await;
        let export = fixture.export(1).await;
        fixture.boot().await;
        fixture.drain().await;
        assert!(fixture.rows(export) == expected, "killed after {polls} looks");
        assert_eq!(fixture.count(LIVE).await, 1, "killed after {polls} looks");
        assert_eq!(fixture.count(WRITING).await, 0);
        fixture.assert_tidy().await;
        if !dropped {
            break;
        }
        killed += 1;
    }
    assert!(killed > 5, "{killed}");
    // Leftovers of killed attempts are removed.
    fixture.wait(LATER).await;
    fixture.sweep().await;
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert_eq!((fixture.objects().await, fixture.count(ALL).await), (1, 1));
}

async fn what_an_attempt_began_goes_though_another_job_was_faster(on: Database) {
    let fixture = WorkflowFixture::scattered_on(&on, 1).await;
    fixture.compact("2026-03-01").await;
    fixture.drain().await;
    fixture.compact("2026-03-01").await;
    let idle = fixture.until("compact_day").await;
    fixture.intend(&idle).await;
    fixture.perform(idle).await;
    assert_eq!((fixture.count(LIVE).await, fixture.count(WRITING).await), (1, 0));
}

async fn what_is_folded_meanwhile_is_not_lost(on: Database) {
    let mut tries = 0..20;
    let fixture = loop {
        let fixture = folded_while_compacted(&on).await;
        match fixture.count(LIVE).await {
            2 => break fixture,
            // The flush ended so early that the compaction included its rows.
            1 => assert!(tries.next().is_some(), "the fold was always over first"),
            live => panic!("{live} live segments"),
        }
    };
    let scanned = fixture.export(1).await;
    fixture.drain().await;
    fixture.compact("2026-03-01").await;
    fixture.drain().await;
    let copied = fixture.export(1).await;
    fixture.drain().await;
    assert!(fixture.rows(copied) == fixture.rows(scanned));
    // As if all had arrived at once.
    let other = WorkflowFixture::new_on(&on, 1).await;
    let export = other.export(1).await;
    other.drain().await;
    let (one, two) = (fixture.rows(copied), other.rows(export));
    assert_eq!(one.column_by_name("outputs"), two.column_by_name("outputs"));
    assert_eq!(one.column_by_name("status"), two.column_by_name("status"));
    assert_eq!(one.num_rows() as u64, DAY_ROWS);
}

/// Patches of a day are flushed while its posts are compacted.
async fn folded_while_compacted(on: &Database) -> WorkflowFixture {
    let fixture = WorkflowFixture::empty_on(on, 1).await;
    fixture.send(0..DAY_ROWS, SampleOperations::Posts).await;
    fixture.wait(Duration::from_secs(3)).await;
    fixture.drive().await;
    fixture.compact("2026-03-01").await;
    let compaction = fixture.until("compact_day").await;
    fixture.send(0..DAY_ROWS, SampleOperations::Patches).await;
    fixture.wait(Duration::from_secs(3)).await;
    let fold = fixture.until("flush_wal").await;
    tokio::join!(fixture.perform(compaction), fixture.perform(fold));
    fixture.drive().await;
    fixture
}

async fn a_deleted_project_is_gone_at_once_and_its_bytes_later(on: Database) {
    let fixture = WorkflowFixture::scattered_on(&on, 1).await;
    let project = fixture.project().await;
    let export = fixture.export(1).await;
    let part = fixture.until("export_part").await;
    // A compaction is running too.
    fixture.compact("2026-03-01").await;
    let compaction = fixture.until("compact_day").await;
    fixture.schedule("2026-03-10T09:00:00Z", 2).await;
    // One project that is deleted, and one that stays.
    let mine = TraceRunId(fixture.sample.expected(3, fixture.tenant, project).id);
    for run in [mine, TraceRunId::new()] {
        fixture.beside(run).await;
    }
    let delete = async |project: ProjectId| {
        fixture
            .store()
            .write(async |tx| delete_project::delete(tx, fixture.tenant, project).await)
            .await
    };
    delete(project).await.unwrap();
    assert!(matches!(delete(project).await, Err(towpath_store::Error::NotFound)));
    assert_eq!(fixture.count(PARTS).await, 0);
    fixture.perform(compaction).await;
    fixture.perform(part).await;
    fixture.drain().await;
    assert_eq!(
        fixture.read(export).await.status,
        ExportStatus::Completed,
        "it had begun"
    );
    assert_eq!(fixture.rows(export).num_rows() as u64, DAY_ROWS);
    assert_eq!(fixture.count(PARTS).await, 0, "the compaction brought nothing back");
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM scheduled_export WHERE status = 'RUNNING'")
            .await,
        0
    );
    fixture.wait(LATER).await;
    fixture.sweep().await;
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert_eq!((fixture.objects().await, fixture.count(ALL).await), (0, 0));
    assert_eq!(fixture.count("SELECT count(*) FROM feedback").await, 1);
    assert_eq!(fixture.count("SELECT count(*) FROM attachment").await, 1);
    let files = fixture.world.objects.store().list(Some(&"attachments".into()));
    let files: Vec<_> = files.try_collect().await.unwrap();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(!files[0].location.as_ref().contains(&mine.to_string()));
}

async fn days_past_their_time_go(on: Database) {
    let mut fixture = WorkflowFixture::scattered_on(&on, 3).await;
    fixture.sweep().await;
    assert_eq!(fixture.count(PARTS).await, 9, "kept for ever unless said");
    // It is the tenth: eight days reach back to the second.
    fixture.world.retention.days = Some(8);
    fixture.sweep().await;
    assert_eq!(fixture.live("2026-03-01").await.len(), 0);
    // A segment with the data of the first day is rewritten without it.
    assert_eq!(fixture.live("2026-03-02").await.len(), 1);
    assert_eq!(fixture.count(COMPACTED).await, 2);
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert_eq!(fixture.objects().await, 2);
}

async fn a_day_in_many_segments_comes_together_by_itself(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    for from in 0..6 {
        fixture.send(from * 20..(from + 1) * 20, SampleOperations::Both).await;
        fixture.wait(Duration::from_secs(3)).await;
        fixture.drive().await;
    }
    assert_eq!(fixture.count(LIVE).await, 6);
    fixture.sweep().await;
    assert_eq!((fixture.count(LIVE).await, fixture.count(COMPACTED).await), (1, 1));
    // Nothing is left to do.
    fixture.sweep().await;
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM job WHERE kind = 'compact_day'")
            .await,
        1
    );
}

/// A reader has pinned its data: neither a compaction nor the sweep after it removes it.
async fn exports_compactions_and_sweeps_go_on_side_by_side(on: Database) {
    let mut fixture = WorkflowFixture::scattered_on(&on, 2).await;
    let whole = fixture.export(2).await;
    fixture.drain().await;
    let expected = fixture.rows(whole);
    // Replaced segments are removed at once if nothing pins them.
    fixture.world.retention.replaced_segments = Duration::ZERO;
    sweep_traces::ensure(fixture.store()).await.unwrap();
    let mut removed = 0;
    for round in 0..4 {
        // Sent again, which only changes the location.
        for again in 0..3 {
            let from = (round * 3 + again) * 100;
            fixture.send(from..from + 100, SampleOperations::Both).await;
            fixture.wait(Duration::from_secs(3)).await;
            fixture.drive().await;
        }
        let exports = [
            fixture.export(2).await,
            fixture.export(1).await,
            fixture.export(2).await,
        ];
        for day in ["2026-03-01", "2026-03-02"] {
            fixture.compact(day).await;
        }
        let before = fixture.count(ALL).await;
        let time = async {
            for _ in 0..20 {
                fixture.wait(Duration::from_secs(61)).await;
                fixture.drive().await;
            }
        };
        tokio::join!(fixture.drive(), fixture.drive(), fixture.drive(), time);
        fixture.drive().await;
        for (export, days) in exports.into_iter().zip([2, 1, 2]) {
            assert_eq!(
                fixture.read(export).await.status,
                ExportStatus::Completed,
                "round {round}"
            );
            let rows = usize::try_from(days * DAY_ROWS).unwrap();
            assert!(
                fixture.rows(export) == expected.slice(0, rows),
                "round {round}, {days} days"
            );
        }
        removed += before - fixture.count(ALL).await;
    }
    assert!(removed > 4, "old segments went meanwhile: {removed}");
    for _ in 0..2 {
        fixture.wait(LATER).await;
        fixture.drive().await;
    }
    assert_eq!(
        i64::try_from(fixture.objects().await).unwrap(),
        fixture.count(ALL).await
    );
    assert_eq!(fixture.count(ALL).await, fixture.count(LIVE).await);
    assert_eq!(fixture.count("SELECT count(*) FROM segment_pin").await, 0);
}
