//! Days of few rows are compacted together, with what holds of the compaction of one day.

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

use crate::home::{Database, Home, PROJECT, on_both_databases, time};

const LIVE: &str = "SELECT count(*) FROM segment WHERE state = 'live'";
const COMPACTED: &str = "SELECT count(*) FROM segment WHERE state = 'live' AND compacted";
const WRITING: &str = "SELECT (SELECT count(*) FROM segment WHERE state = 'writing')
                            + (SELECT count(*) FROM run_index WHERE state = 'writing')";
const PARTS: &str = "SELECT count(*) FROM segment_part";
const PAST: &str = "SELECT count(*) FROM segment_part_past";
const ALL: &str = "SELECT count(*) FROM segment";
const UNINDEXED: &str = "SELECT count(*) FROM segment WHERE state = 'live' AND NOT indexed";
const TOGETHER: &str = "SELECT count(*) FROM job WHERE kind = 'compact_days'";
const ALONE: &str = "SELECT count(*) FROM job WHERE kind = 'compact_day'";
const FIRST: &str = "2026-01-20";
/// So many segments make a closed day worth compacting.
const ROUNDS: u64 = 4;
/// Days of one lane lie so far apart.
const APART: u64 = 16;
/// Longer than a sweep waits for queries.
const LATER: Duration = Duration::from_secs(2 * 60 * 60);

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

/// The trace run of the day at this place.
fn run(round: u64, at: usize) -> Uuid {
    let number = u128::from(round) * 10_000 + u128::try_from(at).unwrap();
    Uuid::from_u128(0x0194_fdc2_0000_7000_8000_0000_0000_0000 + number)
}

impl Home {
    /// Sends a trace run for each of the days, and has them folded into a segment.
    async fn scatter(&self, days: &[NaiveDate], round: u64) {
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

    async fn all_scattered_on(on: &Database, days: &[NaiveDate]) -> Self {
        let home = Self::empty_on(on, 1).await;
        for round in 0..ROUNDS {
            home.scatter(days, round).await;
        }
        assert_eq!(home.count(LIVE).await, 4);
        assert_eq!(home.count(PARTS).await, 4 * i64::try_from(days.len()).unwrap());
        home
    }

    /// Records a compaction of these days together.
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

    /// An export of everything.
    async fn whole_export(&self) -> ExportId {
        let export = self
            .export_as(|asked| (asked.start_time, asked.end_time) = (time(FIRST), Some(time("2026-03-10"))))
            .await;
        self.drain().await;
        export
    }
}

async fn days_of_few_rows_share_a_job_and_a_segment(on: Database) {
    let days = days(40, 1);
    let home = Home::all_scattered_on(&on, &days).await;
    let before = home.whole_export().await;
    assert_eq!(home.rows(before).num_rows(), 160);
    home.sweep().await;
    assert_eq!((home.count(TOGETHER).await, home.count(ALONE).await), (16, 0));
    assert_eq!((home.count(LIVE).await, home.count(COMPACTED).await), (16, 16));
    assert_eq!(home.count(PARTS).await, 40, "a row group for each day");
    assert_eq!(home.count(UNINDEXED).await, 0);
    let after = home.whole_export().await;
    assert!(home.rows(after) == home.rows(before));
    // Nothing more to do.
    home.sweep().await;
    assert_eq!((home.count(TOGETHER).await, home.count(ALONE).await), (16, 0));
    home.wait(LATER).await;
    home.sweep().await;
    assert_eq!((home.objects().await, home.count(PAST).await), (16, 0));
}

async fn one_day_alone_is_not_compacted_meanwhile(on: Database) {
    let days = days(3, APART);
    let home = Home::all_scattered_on(&on, &days).await;
    home.compact_days(&days).await;
    let together = home.until("compact_days").await;
    home.compact(&days[1].to_string()).await;
    assert!(home.claim_from("compactions").await.is_none(), "they share a lane");
    home.perform(together).await;
    assert_eq!(home.count(LIVE).await, 1);
    let alone = home.until("compact_day").await;
    home.perform(alone).await;
    assert_eq!(
        (home.count(LIVE).await, home.count(ALL).await),
        (1, 5),
        "nothing was left to do"
    );
}

async fn killed_anywhere_days_change_not_at_all_or_together(on: Database) {
    let days = days(3, APART);
    let home = Home::all_scattered_on(&on, &days).await;
    let expected = home.whole_export().await;
    let expected = home.rows(expected);
    let mut killed = 0;
    for polls in 1..2000 {
        // The same again: something to merge each time, and no other rows.
        home.scatter(&days, 0).await;
        home.compact_days(&days).await;
        let compaction = home.until("compact_days").await;
        let dropped = home.perform_for(compaction, polls).await;
        let parts = home.count(PARTS).await;
        assert!(parts == 3 || parts >= 6, "{parts} row groups after {polls} looks");
        home.boot().await;
        home.drain().await;
        assert_eq!(
            (home.count(LIVE).await, home.count(PARTS).await),
            (1, 3),
            "killed after {polls} looks"
        );
        assert_eq!(home.count(WRITING).await, 0);
        if !dropped || polls % 16 == 0 {
            let export = home.whole_export().await;
            assert!(home.rows(export) == expected, "killed after {polls} looks");
            home.assert_tidy().await;
        }
        if !dropped {
            break;
        }
        killed += 1;
    }
    assert!(killed > 5, "{killed}");
}

async fn what_an_attempt_at_days_began_goes(on: Database) {
    let days = days(2, APART);
    let home = Home::all_scattered_on(&on, &days).await;
    home.compact_days(&days).await;
    home.drive().await;
    home.compact_days(&days).await;
    let idle = home.until("compact_days").await;
    home.intend(&idle).await;
    home.perform(idle).await;
    assert_eq!((home.count(LIVE).await, home.count(WRITING).await), (1, 0));
}

async fn a_shared_segment_goes_with_the_days_past_their_time(on: Database) {
    let days = days(3, APART);
    let mut home = Home::all_scattered_on(&on, &days).await;
    home.beside(TraceRunId(run(0, 0))).await;
    home.sweep().await;
    assert_eq!((home.count(LIVE).await, home.count(COMPACTED).await), (1, 1));
    home.wait(LATER).await;
    home.sweep().await;
    assert_eq!((home.objects().await, home.count(PAST).await), (1, 0));
    let shared = home.live_segments().await;
    // It is the tenth of March: forty days reach back behind the first of the days.
    home.world.keeping.days = Some(40);
    home.sweep().await;
    assert_eq!((home.count(LIVE).await, home.count(PARTS).await), (1, 2));
    for _ in 0..2 {
        home.wait(LATER).await;
        home.sweep().await;
    }
    assert_eq!((home.objects().await, home.count(PAST).await), (1, 0));
    assert_ne!(
        home.live_segments().await,
        shared,
        "the days that stay were written anew"
    );
    assert_eq!(home.count("SELECT count(*) FROM attachment").await, 0);
}
