//! Small days are compacted together, with the same rules as a single day.

use std::fmt::Write;
use std::time::Duration;

use chrono::{Days, NaiveDate};
use towpath_domain::{ExportId, JobId, SegmentId, TraceRunId};
use towpath_durable::Start;
use towpath_store::segments;
use towpath_traces::accept::Route;
use towpath_workflows::compact_day::CompactDay;
use towpath_workflows::compact_days::CompactDays;
use uuid::Uuid;

use crate::fixture::{Database, PROJECT, WorkflowFixture, on_both_databases, time};

const LIVE: &str = "SELECT count(*) FROM segment WHERE state = 'live'";
const COMPACTED: &str = "SELECT count(*) FROM segment WHERE state = 'live' AND compacted";
const WRITING_FILES: &str = "SELECT (SELECT count(*) FROM segment WHERE state = 'writing')
                            + (SELECT count(*) FROM run_index WHERE state = 'writing')";
const PARTS: &str = "SELECT count(*) FROM segment_part";
const PAST_PARTS: &str = "SELECT count(*) FROM segment_part_past";
const ALL_SEGMENTS: &str = "SELECT count(*) FROM segment";
const UNINDEXED: &str = "SELECT count(*) FROM segment WHERE state = 'live' AND NOT indexed";
const MULTI_DAY_JOBS: &str = "SELECT count(*) FROM job WHERE kind = 'compact_days'";
const SINGLE_DAY_JOBS: &str = "SELECT count(*) FROM job WHERE kind = 'compact_day'";
const OPEN_JOBS: &str = "SELECT count(*) FROM job WHERE finished_at IS NULL AND kind <> 'sweep_traces'";
const FIRST: &str = "2026-01-20";
/// Number of segments that makes a closed day worth compacting.
const SEGMENTS_PER_DAY: u64 = 4;
/// Distance of days in one lane.
const LANE_STRIDE: u64 = 16;
/// Longer than a sweep waits for queries.
const AFTER_GRACE_PERIOD: Duration = Duration::from_secs(2 * 60 * 60);

on_both_databases! {
    days_of_few_rows_share_a_job_and_a_segment,
    one_day_alone_is_not_compacted_meanwhile,
    killed_anywhere_days_change_not_at_all_or_together,
    what_an_attempt_at_days_began_goes,
    a_shared_segment_goes_with_the_days_past_their_time,
}

fn days(count: u64, apart: u64) -> Vec<NaiveDate> {
    let first = time(FIRST).day();
    (0..count).map(|at| first + Days::new(at * apart)).collect()
}

/// The trace run of the day with this index.
fn run(round: u64, at: usize) -> Uuid {
    let number = u128::from(round) * 10_000 + u128::try_from(at).unwrap();
    Uuid::from_u128(0x0194_fdc2_0000_7000_8000_0000_0000_0000 + number)
}

impl WorkflowFixture {
    /// Sends a trace run for each of the days, and flushes them into a segment.
    async fn write_segments(&self, days: &[NaiveDate], round: u64) {
        let mut posts = String::new();
        for (at, day) in days.iter().enumerate() {
            let id = run(round, at);
            let comma = if at == 0 { "" } else { "," };
            write!(
                posts,
                r#"{comma}{{"id":"{id}","trace_id":"{id}","name":"a","run_type":"chain","session_name":"{PROJECT}",
                    "dotted_order":"{}T1000000000{round:02}Z{id}","start_time":"{day}T10:00:00.0000{round:02}Z"}}"#,
                day.to_string().replace('-', ""),
            )
            .unwrap();
        }
        self.send_json(Route::Batch, format!(r#"{{"post":[{posts}],"patch":[]}}"#))
            .await;
        self.wait(Duration::from_secs(3)).await;
        self.drive().await;
    }

    async fn with_scattered_days(on: &Database, days: &[NaiveDate]) -> Self {
        let fixture = Self::empty_on(on, 1).await;
        for round in 0..SEGMENTS_PER_DAY {
            fixture.write_segments(days, round).await;
        }
        assert_eq!(fixture.count(LIVE).await, 4);
        assert_eq!(fixture.count(PARTS).await, 4 * i64::try_from(days.len()).unwrap());
        fixture
    }

    /// Records a compaction of these days.
    async fn compact_days(&self, days: &[NaiveDate]) {
        let compact = CompactDays {
            tenant: self.tenant,
            project: self.project().await,
            days: days.to_vec(),
            mark: JobId::new(),
        };
        let lane = CompactDay::new(compact.tenant, compact.project, days[0]).lane();
        self.store()
            .write(async |tx| {
                let how = Start::new(compact.tenant).lane(lane);
                towpath_durable::start(tx, &compact, how).await.map(drop)
            })
            .await
            .unwrap();
    }

    async fn live_segments(&self) -> Vec<SegmentId> {
        let live = self
            .store()
            .read(async |tx| segments::live(tx, self.tenant).await)
            .await;
        live.unwrap().into_iter().map(|segment| segment.id).collect()
    }

    /// An export of all rows.
    async fn full_export(&self) -> ExportId {
        let export = self
            .export_as(|asked| (asked.start_time, asked.end_time) = (time(FIRST), Some(time("2026-03-10"))))
            .await;
        // Some sweep is always due.
        while self.count(OPEN_JOBS).await > 0 {
            self.drive().await;
            self.wait(Duration::from_secs(31)).await;
        }
        export
    }
}

async fn days_of_few_rows_share_a_job_and_a_segment(on: Database) {
    let days = days(40, 1);
    let fixture = WorkflowFixture::with_scattered_days(&on, &days).await;
    let before = fixture.full_export().await;
    assert_eq!(fixture.rows(before).num_rows(), 160);
    fixture.sweep().await;
    assert_eq!(
        (
            fixture.count(MULTI_DAY_JOBS).await,
            fixture.count(SINGLE_DAY_JOBS).await
        ),
        (16, 0)
    );
    assert_eq!((fixture.count(LIVE).await, fixture.count(COMPACTED).await), (16, 16));
    assert_eq!(fixture.count(PARTS).await, 40, "a row group for each day");
    assert_eq!(fixture.count(UNINDEXED).await, 0);
    let after = fixture.full_export().await;
    assert!(fixture.rows(after) == fixture.rows(before));
    // Nothing is left to do.
    fixture.sweep().await;
    assert_eq!(
        (
            fixture.count(MULTI_DAY_JOBS).await,
            fixture.count(SINGLE_DAY_JOBS).await
        ),
        (16, 0)
    );
    fixture.wait(AFTER_GRACE_PERIOD).await;
    fixture.sweep().await;
    assert_eq!((fixture.objects().await, fixture.count(PAST_PARTS).await), (16, 0));
}

async fn one_day_alone_is_not_compacted_meanwhile(on: Database) {
    let days = days(3, LANE_STRIDE);
    let fixture = WorkflowFixture::with_scattered_days(&on, &days).await;
    fixture.compact_days(&days).await;
    let together = fixture.until("compact_days").await;
    fixture.compact(&days[1].to_string()).await;
    assert!(fixture.claim_from("compactions").await.is_none(), "they share a lane");
    fixture.perform(together).await;
    assert_eq!(fixture.count(LIVE).await, 1);
    let alone = fixture.until("compact_day").await;
    fixture.perform(alone).await;
    assert_eq!(
        (fixture.count(LIVE).await, fixture.count(ALL_SEGMENTS).await),
        (1, 5),
        "nothing was left to do"
    );
}

async fn killed_anywhere_days_change_not_at_all_or_together(on: Database) {
    let days = days(3, LANE_STRIDE);
    let fixture = WorkflowFixture::with_scattered_days(&on, &days).await;
    let expected = fixture.full_export().await;
    let expected = fixture.rows(expected);
    let mut killed = 0;
    for polls in 1..2000 {
        // Repeated: each time there is something to merge, and the rows stay the same.
        fixture.write_segments(&days, 0).await;
        fixture.compact_days(&days).await;
        let compaction = fixture.until("compact_days").await;
        let dropped = fixture.perform_for(compaction, polls).await;
        let parts = fixture.count(PARTS).await;
        assert!(parts == 3 || parts >= 6, "{parts} row groups after {polls} looks");
        fixture.boot().await;
        fixture.drain().await;
        assert_eq!(
            (fixture.count(LIVE).await, fixture.count(PARTS).await),
            (1, 3),
            "killed after {polls} looks"
        );
        assert_eq!(fixture.count(WRITING_FILES).await, 0);
        if !dropped || polls % 16 == 0 {
            let export = fixture.full_export().await;
            assert!(fixture.rows(export) == expected, "killed after {polls} looks");
            fixture.assert_tidy().await;
        }
        if !dropped {
            break;
        }
        killed += 1;
    }
    assert!(killed > 5, "{killed}");
}

async fn what_an_attempt_at_days_began_goes(on: Database) {
    let days = days(2, LANE_STRIDE);
    let fixture = WorkflowFixture::with_scattered_days(&on, &days).await;
    fixture.compact_days(&days).await;
    fixture.drive().await;
    fixture.compact_days(&days).await;
    let idle = fixture.until("compact_days").await;
    fixture.intend(&idle).await;
    fixture.perform(idle).await;
    assert_eq!((fixture.count(LIVE).await, fixture.count(WRITING_FILES).await), (1, 0));
}

async fn a_shared_segment_goes_with_the_days_past_their_time(on: Database) {
    let days = days(3, LANE_STRIDE);
    let mut fixture = WorkflowFixture::with_scattered_days(&on, &days).await;
    fixture.beside(TraceRunId(run(0, 0))).await;
    fixture.sweep().await;
    assert_eq!((fixture.count(LIVE).await, fixture.count(COMPACTED).await), (1, 1));
    fixture.wait(AFTER_GRACE_PERIOD).await;
    fixture.sweep().await;
    assert_eq!((fixture.objects().await, fixture.count(PAST_PARTS).await), (1, 0));
    let shared = fixture.live_segments().await;
    // It is the tenth of March: forty days reach back before the first of the days.
    fixture.world.retention.days = Some(40);
    fixture.sweep().await;
    assert_eq!((fixture.count(LIVE).await, fixture.count(PARTS).await), (1, 2));
    for _ in 0..2 {
        fixture.wait(AFTER_GRACE_PERIOD).await;
        fixture.sweep().await;
    }
    assert_eq!((fixture.objects().await, fixture.count(PAST_PARTS).await), (1, 0));
    assert_ne!(
        fixture.live_segments().await,
        shared,
        "the days that stay were written anew"
    );
    assert_eq!(fixture.count("SELECT count(*) FROM attachment").await, 0);
}
