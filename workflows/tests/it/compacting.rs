//! Compaction, deletes and the removal of what nobody reads: rows stay the same for whoever may see them.

use std::time::Duration;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use futures::TryStreamExt;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use towpath_domain::export::ExportStatus;
use towpath_domain::{ExportId, ProjectId, TraceRunId};
use towpath_durable::Start;
use towpath_store::feedback::{self, Attachment, Feedback};
use towpath_store::segments::{self, PlacedPart};
use towpath_traces::fold;
use towpath_traces::sample::Which;
use towpath_workflows::compact_day::CompactDay;
use towpath_workflows::{delete_project, sweep_traces};

use crate::home::{DAY_ROWS, Database, Home, on_both_databases, time};

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

impl Home {
    /// Trace runs of these days in several segments: posts and patches apart, all over the days.
    async fn scattered_on(on: &Database, days: u32) -> Self {
        let mut home = Self::empty_on(on, days).await;
        home.world.sizes.splice_rows = 1;
        let all = DAY_ROWS * u64::from(days);
        for (range, which) in [
            (0..all / 2, Which::Posts),
            (all / 4..all, Which::Both),
            (0..all / 2, Which::Patches),
        ] {
            home.send(range, which).await;
            home.wait(Duration::from_secs(3)).await;
            home.drive().await;
        }
        assert_eq!(home.count(LIVE).await, 3);
        home
    }

    pub(crate) async fn compact(&self, day: &str) {
        let compact = CompactDay::whole(self.tenant, self.project().await, time(day).day());
        let how = Start::new(self.tenant).lane(compact.lane());
        self.store()
            .write(async |tx| towpath_durable::start(tx, &compact, how).await.map(drop))
            .await
            .unwrap();
    }

    async fn live(&self, day: &str) -> Vec<PlacedPart> {
        let (project, day) = (self.project().await, time(day).day());
        self.store()
            .read(async |tx| segments::live_parts(tx, self.tenant, project, day, day).await)
            .await
            .unwrap()
    }

    /// The rows of an export in order.
    pub fn rows(&self, export: ExportId) -> RecordBatch {
        let mut batches = Vec::new();
        for file in self.files(export).values() {
            let reader = ParquetRecordBatchReaderBuilder::try_new(file.clone()).unwrap().build();
            batches.extend(reader.unwrap().map(Result::unwrap));
        }
        concat_batches(&batches[0].schema(), &batches).unwrap()
    }

    /// Feedback on a trace run, and a file that came with it.
    pub(crate) async fn beside(&self, run: TraceRunId) {
        let path = fold::attachment_path(self.tenant, run, "photo", 1);
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
    let home = Home::scattered_on(&on, 2).await;
    let before = home.export(2).await;
    home.drain().await;
    home.compact("2026-03-01").await;
    home.drain().await;
    let parts = home.live("2026-03-01").await;
    assert_eq!(parts.len(), 1);
    assert!(parts[0].compacted);
    assert_eq!(parts[0].part.rows, DAY_ROWS as i64);
    // The other day lies in the same segments, which stay for it.
    assert_eq!(home.live("2026-03-02").await.len(), 3);
    assert_eq!(home.count(LIVE).await, 4);
    let between = home.export(2).await;
    home.drain().await;
    home.compact("2026-03-02").await;
    home.drain().await;
    assert_eq!((home.count(LIVE).await, home.count(COMPACTED).await), (2, 2));
    let after = home.export(2).await;
    let rich = home
        .export_as(|asked| {
            asked.end_time = Some(time("2026-03-03"));
            asked.format_version = Some("v2_beta".to_owned());
        })
        .await;
    home.drain().await;
    assert_eq!(home.rows(before).num_rows() as u64, 2 * DAY_ROWS);
    assert!(home.rows(between) == home.rows(before));
    assert!(home.rows(after) == home.rows(before));
    let ids = |export| home.rows(export).column(0).as_string::<i32>().clone();
    assert_eq!(ids(rich), ids(before));
    // Once more changes nothing.
    home.compact("2026-03-01").await;
    home.drain().await;
    assert_eq!(home.count(ALL).await, 5);
    home.assert_tidy().await;
}

async fn who_has_begun_to_read_goes_on_with_what_was_there(on: Database) {
    let home = Home::scattered_on(&on, 1).await;
    let whole = home.export(1).await;
    home.drain().await;
    let export = home.export(1).await;
    let part = home.until("export_part").await;
    home.compact("2026-03-01").await;
    home.drive().await;
    assert_eq!(home.count(LIVE).await, 1);
    home.sweep().await;
    home.wait(LATER).await;
    home.sweep().await;
    assert_eq!(home.objects().await, 4, "what is pinned stays");
    home.perform(part).await;
    home.drive().await;
    assert_eq!(home.read(export).await.status, ExportStatus::Completed);
    assert!(home.files(export) == home.files(whole), "the same bytes as before");
    home.wait(LATER).await;
    home.sweep().await;
    assert_eq!(home.objects().await, 1);
    assert_eq!(home.count(ALL).await, 1);
    assert_eq!(home.count("SELECT count(*) FROM segment_part_past").await, 0);
}

async fn a_query_without_a_pin_has_time_to_end(on: Database) {
    let home = Home::scattered_on(&on, 1).await;
    home.compact("2026-03-01").await;
    home.drain().await;
    home.sweep().await;
    assert_eq!(home.objects().await, 4);
    home.wait(home.world.keeping.replaced).await;
    home.sweep().await;
    assert_eq!(home.objects().await, 1);
}

async fn killed_anywhere_it_changes_nothing_or_all(on: Database) {
    let home = Home::scattered_on(&on, 1).await;
    let whole = home.export(1).await;
    home.drain().await;
    let expected = home.rows(whole);
    let mut killed = 0;
    for polls in 1..2000 {
        // Something new each time, so that there is something to do.
        home.send(polls..polls + 2, Which::Both).await;
        home.wait(Duration::from_secs(3)).await;
        home.drive().await;
        home.compact("2026-03-01").await;
        let compaction = home.until("compact_day").await;
        let dropped = home.perform_for(compaction, usize::try_from(polls).unwrap()).await;
        let export = home.export(1).await;
        home.boot().await;
        home.drain().await;
        assert!(home.rows(export) == expected, "killed after {polls} looks");
        assert_eq!(home.count(LIVE).await, 1, "killed after {polls} looks");
        assert_eq!(home.count(WRITING).await, 0);
        home.assert_tidy().await;
        if !dropped {
            break;
        }
        killed += 1;
    }
    assert!(killed > 5, "{killed}");
    // What the killed ones left is removed.
    home.wait(LATER).await;
    home.sweep().await;
    home.wait(LATER).await;
    home.sweep().await;
    assert_eq!((home.objects().await, home.count(ALL).await), (1, 1));
}

async fn what_an_attempt_began_goes_though_another_job_was_faster(on: Database) {
    let home = Home::scattered_on(&on, 1).await;
    home.compact("2026-03-01").await;
    home.drain().await;
    home.compact("2026-03-01").await;
    let idle = home.until("compact_day").await;
    home.intend(&idle).await;
    home.perform(idle).await;
    assert_eq!((home.count(LIVE).await, home.count(WRITING).await), (1, 0));
}

async fn what_is_folded_meanwhile_is_not_lost(on: Database) {
    let mut tries = 0..20;
    let home = loop {
        let home = folded_while_compacted(&on).await;
        match home.count(LIVE).await {
            2 => break home,
            // The fold was over so early that the compaction took what it folded.
            1 => assert!(tries.next().is_some(), "the fold was always over first"),
            live => panic!("{live} live segments"),
        }
    };
    let scanned = home.export(1).await;
    home.drain().await;
    home.compact("2026-03-01").await;
    home.drain().await;
    let copied = home.export(1).await;
    home.drain().await;
    assert!(home.rows(copied) == home.rows(scanned));
    // As if all had come at once.
    let other = Home::new_on(&on, 1).await;
    let export = other.export(1).await;
    other.drain().await;
    let (one, two) = (home.rows(copied), other.rows(export));
    assert_eq!(one.column_by_name("outputs"), two.column_by_name("outputs"));
    assert_eq!(one.column_by_name("status"), two.column_by_name("status"));
    assert_eq!(one.num_rows() as u64, DAY_ROWS);
}

/// A day whose patches are folded while its posts are compacted.
async fn folded_while_compacted(on: &Database) -> Home {
    let home = Home::empty_on(on, 1).await;
    home.send(0..DAY_ROWS, Which::Posts).await;
    home.wait(Duration::from_secs(3)).await;
    home.drive().await;
    home.compact("2026-03-01").await;
    let compaction = home.until("compact_day").await;
    home.send(0..DAY_ROWS, Which::Patches).await;
    home.wait(Duration::from_secs(3)).await;
    let fold = home.until("fold_units").await;
    tokio::join!(home.perform(compaction), home.perform(fold));
    home.drive().await;
    home
}

async fn a_deleted_project_is_gone_at_once_and_its_bytes_later(on: Database) {
    let home = Home::scattered_on(&on, 1).await;
    let project = home.project().await;
    let export = home.export(1).await;
    let part = home.until("export_part").await;
    // A compaction is at work, too.
    home.compact("2026-03-01").await;
    let compaction = home.until("compact_day").await;
    home.schedule("2026-03-10T09:00:00Z", 2).await;
    // One that goes, and one of a project that stays.
    let mine = TraceRunId(home.sample.expected(3, home.tenant, project).id);
    for run in [mine, TraceRunId::new()] {
        home.beside(run).await;
    }
    let delete = async |project: ProjectId| {
        home.store()
            .write(async |tx| delete_project::delete(tx, home.tenant, project).await)
            .await
    };
    delete(project).await.unwrap();
    assert!(matches!(delete(project).await, Err(towpath_store::Error::NotFound)));
    assert_eq!(home.count(PARTS).await, 0);
    home.perform(compaction).await;
    home.perform(part).await;
    home.drain().await;
    assert_eq!(home.read(export).await.status, ExportStatus::Completed, "it had begun");
    assert_eq!(home.rows(export).num_rows() as u64, DAY_ROWS);
    assert_eq!(home.count(PARTS).await, 0, "the compaction brought nothing back");
    assert_eq!(
        home.count("SELECT count(*) FROM scheduled_export WHERE status = 'RUNNING'")
            .await,
        0
    );
    home.wait(LATER).await;
    home.sweep().await;
    home.wait(LATER).await;
    home.sweep().await;
    assert_eq!((home.objects().await, home.count(ALL).await), (0, 0));
    assert_eq!(home.count("SELECT count(*) FROM feedback").await, 1);
    assert_eq!(home.count("SELECT count(*) FROM attachment").await, 1);
    let files = home.world.objects.store().list(Some(&"attachments".into()));
    let files: Vec<_> = files.try_collect().await.unwrap();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(!files[0].location.as_ref().contains(&mine.to_string()));
}

async fn days_past_their_time_go(on: Database) {
    let mut home = Home::scattered_on(&on, 3).await;
    home.sweep().await;
    assert_eq!(home.count(PARTS).await, 9, "kept for ever unless said");
    // It is the tenth: eight days reach back to the second.
    home.world.keeping.days = Some(8);
    home.sweep().await;
    assert_eq!(home.live("2026-03-01").await.len(), 0);
    // What would keep the bytes of the first day was written anew without it.
    assert_eq!(home.live("2026-03-02").await.len(), 1);
    assert_eq!(home.count(COMPACTED).await, 2);
    home.wait(LATER).await;
    home.sweep().await;
    assert_eq!(home.objects().await, 2);
}

async fn a_day_in_many_segments_comes_together_by_itself(on: Database) {
    let home = Home::empty_on(&on, 1).await;
    for from in 0..6 {
        home.send(from * 20..(from + 1) * 20, Which::Both).await;
        home.wait(Duration::from_secs(3)).await;
        home.drive().await;
    }
    assert_eq!(home.count(LIVE).await, 6);
    home.sweep().await;
    assert_eq!((home.count(LIVE).await, home.count(COMPACTED).await), (1, 1));
    // Nothing more to do.
    home.sweep().await;
    assert_eq!(
        home.count("SELECT count(*) FROM job WHERE kind = 'compact_day'").await,
        1
    );
}

/// Whoever reads has pinned what it reads: neither a compaction nor the sweep right behind it takes that away.
async fn exports_compactions_and_sweeps_go_on_side_by_side(on: Database) {
    let mut home = Home::scattered_on(&on, 2).await;
    let whole = home.export(2).await;
    home.drain().await;
    let expected = home.rows(whole);
    // What was replaced goes at once when nobody has pinned it.
    home.world.keeping.replaced = Duration::ZERO;
    sweep_traces::ensure(home.store()).await.unwrap();
    let mut removed = 0;
    for round in 0..4 {
        // Said again, which changes nothing but where it lies.
        for again in 0..3 {
            let from = (round * 3 + again) * 100;
            home.send(from..from + 100, Which::Both).await;
            home.wait(Duration::from_secs(3)).await;
            home.drive().await;
        }
        let exports = [home.export(2).await, home.export(1).await, home.export(2).await];
        for day in ["2026-03-01", "2026-03-02"] {
            home.compact(day).await;
        }
        let before = home.count(ALL).await;
        let time = async {
            for _ in 0..20 {
                home.wait(Duration::from_secs(61)).await;
                home.drive().await;
            }
        };
        tokio::join!(home.drive(), home.drive(), home.drive(), time);
        home.drive().await;
        for (export, days) in exports.into_iter().zip([2, 1, 2]) {
            assert_eq!(home.read(export).await.status, ExportStatus::Completed, "round {round}");
            let rows = usize::try_from(days * DAY_ROWS).unwrap();
            assert!(
                home.rows(export) == expected.slice(0, rows),
                "round {round}, {days} days"
            );
        }
        removed += before - home.count(ALL).await;
    }
    assert!(removed > 4, "old segments went meanwhile: {removed}");
    for _ in 0..2 {
        home.wait(LATER).await;
        home.drive().await;
    }
    assert_eq!(i64::try_from(home.objects().await).unwrap(), home.count(ALL).await);
    assert_eq!(home.count(ALL).await, home.count(LIVE).await);
    assert_eq!(home.count("SELECT count(*) FROM segment_pin").await, 0);
}
