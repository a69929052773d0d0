//! Scheduled exports: every interval once, after any failure and any outage.

use std::time::Duration;

use towpath_domain::ExportId;
use towpath_domain::export::ExportStatus;
use towpath_store::exports::listing::{self, ExportSummary, Filter};
use towpath_store::exports::runs;
use towpath_workflows::spawn_export;

use crate::fixture::{Database, WorkflowFixture, on_both_databases};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

on_both_databases! {
    each_interval_is_exported_ten_minutes_after_its_end,
    what_was_missed_is_made_up_for_and_every_row_is_exported_once,
    killed_anywhere_it_spawns_each_interval_once,
    a_spawn_that_is_gone_is_recorded_again_and_one_too_many_does_nothing,
    cancelling_a_schedule_leaves_what_it_spawned,
    a_cancel_comes_between_a_spawn_and_its_commit,
    of_a_destination_that_is_gone_the_exports_fail_and_the_schedule_goes_on,
}

impl WorkflowFixture {
    /// Exports that a schedule has spawned, the first interval first.
    pub async fn spawned(&self, schedule: ExportId) -> Vec<ExportSummary> {
        let filter = Filter {
            source: Some(schedule),
            ..Filter::default()
        };
        let mut found = self
            .store()
            .read(async |tx| listing::list(tx, self.tenant, &filter, 1000, 0).await)
            .await
            .unwrap();
        found.sort_by_key(|export| export.start_time);
        found
    }

    async fn starts(&self, schedule: ExportId) -> Vec<String> {
        let spawned = self.spawned(schedule).await;
        spawned
            .iter()
            .map(|export| export.start_time.to_utc().format("%d %H").to_string())
            .collect()
    }

    async fn show(&self, id: ExportId) -> ExportSummary {
        self.store()
            .read(async |tx| listing::get(tx, self.tenant, id).await)
            .await
            .unwrap()
    }
}

async fn each_interval_is_exported_ten_minutes_after_its_end(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drive().await;
    // The clock is at noon of the tenth.
    let schedule = fixture.schedule("2026-03-10T09:00:00Z", 4).await;
    let shown = fixture.show(schedule).await;
    assert_eq!(
        (shown.status, shown.end_time, shown.interval_hours),
        (ExportStatus::Running, None, Some(4))
    );
    fixture.drive().await;
    assert!(fixture.spawned(schedule).await.is_empty(), "it ends at 13:00");
    fixture.wait(HOUR + 9 * MINUTE).await;
    fixture.drive().await;
    assert!(fixture.spawned(schedule).await.is_empty(), "not before 13:10");
    fixture.wait(MINUTE).await;
    fixture.drive().await;
    assert_eq!(fixture.starts(schedule).await, ["10 09"]);
    fixture.wait(4 * HOUR).await;
    fixture.drive().await;
    assert_eq!(fixture.starts(schedule).await, ["10 09", "10 13"]);
    for export in fixture.spawned(schedule).await {
        assert_eq!(export.status, ExportStatus::Completed);
        assert_eq!(export.source_bulk_export_id, Some(schedule));
        assert_eq!(export.end_time.unwrap().since(export.start_time), 4 * HOUR);
        assert!(fixture.manifest(export.id).is_some());
    }
    assert_eq!(fixture.show(schedule).await.status, ExportStatus::Running);
}

async fn what_was_missed_is_made_up_for_and_every_row_is_exported_once(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 2).await;
    let schedule = fixture.schedule("2026-03-01T00:00:00Z", 36).await;
    // Nothing ran for nine days; the last complete interval of 36 hours ended at the previous midnight.
    fixture.drive().await;
    let starts = ["01 00", "02 12", "04 00", "05 12", "07 00", "08 12"];
    assert_eq!(fixture.starts(schedule).await, starts);
    let rows = fixture
        .store()
        .read(async |tx| runs::list_spawned(tx, fixture.tenant, schedule, 1000, 0).await)
        .await
        .unwrap();
    assert_eq!(rows.len(), 6 * 2, "36 hours lie on two days");
    assert_eq!(
        rows.iter().map(|run| run.rows_written).sum::<i64>(),
        2 * crate::fixture::DAY_ROWS as i64
    );
}

async fn killed_anywhere_it_spawns_each_interval_once(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drive().await;
    let mut seen = 0;
    for polls in (1..400).step_by(on.stride()) {
        let schedule = fixture.schedule("2026-03-09T00:00:00Z", 12).await;
        let mut whole = true;
        let mut spawns = 0;
        while let Some(job) = fixture.claim().await {
            spawns += usize::from(job.kind == "spawn_export");
            if job.kind == "spawn_export" {
                whole &= !fixture.perform_for(job, polls).await;
                fixture.boot().await;
            } else {
                fixture.perform(job).await;
            }
            // Those of earlier rounds have ended, and keep their state.
            let lost = "SELECT count(*) FROM job WHERE lost_leases > 3 AND finished_at IS NULL";
            if fixture.count(lost).await > 0 {
                // The time limit is too short to finish.
                break;
            }
        }
        assert!(
            spawns > 0,
            "nobody could claim the spawn, after {polls} looks: {}",
            fixture.jobs().await
        );
        fixture.drive().await;
        assert_eq!(
            fixture.starts(schedule).await,
            ["09 00", "09 12"],
            "after {polls} looks"
        );
        fixture
            .store()
            .write(async |tx| spawn_export::cancel(tx, fixture.tenant, schedule, None).await)
            .await
            .unwrap();
        if whole {
            seen = polls;
            break;
        }
    }
    assert!(seen > 2, "it was killed at several moments: {seen}");
}

async fn a_spawn_that_is_gone_is_recorded_again_and_one_too_many_does_nothing(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drive().await;
    let schedule = fixture.schedule("2026-03-10T09:00:00Z", 2).await;
    // The job of the chain is lost with all its data.
    let gone = fixture
        .store()
        .write(async |tx| {
            Ok(towpath_store::on!(tx, |conn| sqlx::query(
                "DELETE FROM job WHERE kind = 'spawn_export'"
            )
            .execute(conn)
            .await
            .map(|done| done.rows_affected()))?)
        })
        .await
        .unwrap();
    assert_eq!(gone, 1);
    fixture.drive().await;
    assert!(fixture.spawned(schedule).await.is_empty());
    for recorded in [1, 0] {
        assert_eq!(
            towpath_durable::respawn(fixture.store(), MINUTE).await.unwrap(),
            recorded
        );
    }
    // A second job of the same chain, as an old process could have recorded it.
    let twice = fixture
        .store()
        .write(async |tx| {
            let chain = towpath_store::schedules::list(tx, None, 10).await?.remove(0);
            let how = towpath_durable::Start::new(fixture.tenant);
            towpath_durable::start_raw(tx, &chain.kind, &chain.pool, &chain.input, how).await
        })
        .await;
    twice.unwrap();
    fixture.drive().await;
    assert_eq!(fixture.starts(schedule).await, ["10 09"]);
}

async fn cancelling_a_schedule_leaves_what_it_spawned(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drive().await;
    let schedule = fixture.schedule("2026-03-01T00:00:00Z", 168).await;
    let spawn = fixture.until("spawn_export").await;
    fixture.perform(spawn).await;
    let cancel = async || {
        fixture
            .store()
            .write(async |tx| spawn_export::cancel(tx, fixture.tenant, schedule, None).await)
            .await
            .unwrap()
    };
    assert!(cancel().await);
    assert!(cancel().await, "again changes nothing");
    let shown = fixture.show(schedule).await;
    assert_eq!(shown.status, ExportStatus::Cancelled);
    assert!(shown.finished_at.is_some());
    fixture.wait(400 * HOUR).await;
    fixture.drain().await;
    let spawned = fixture.spawned(schedule).await;
    assert_eq!(spawned.len(), 1);
    assert_eq!(spawned[0].status, ExportStatus::Completed);
    // A schedule of another workspace is not found.
    let foreign = fixture
        .store()
        .write(async |tx| spawn_export::cancel(tx, towpath_domain::TenantId::new(), schedule, None).await);
    assert!(!foreign.await.unwrap());
    fixture.assert_tidy().await;
}

async fn a_cancel_comes_between_a_spawn_and_its_commit(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drive().await;
    for polls in (1..60).step_by(on.stride()) {
        let schedule = fixture.schedule("2026-03-09T00:00:00Z", 24).await;
        let spawn = fixture.until("spawn_export").await;
        let _ = fixture.perform_for(spawn, polls).await;
        fixture
            .store()
            .write(async |tx| spawn_export::cancel(tx, fixture.tenant, schedule, None).await)
            .await
            .unwrap();
        fixture.boot().await;
        fixture.drain().await;
        let spawned = fixture.spawned(schedule).await.len();
        assert!(spawned <= 1, "after {polls} looks");
        assert_eq!(fixture.show(schedule).await.status, ExportStatus::Cancelled);
    }
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM schedule WHERE ended_at IS NULL")
            .await,
        0
    );
}

async fn of_a_destination_that_is_gone_the_exports_fail_and_the_schedule_goes_on(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drive().await;
    let schedule = fixture.schedule("2026-03-09T00:00:00Z", 12).await;
    let gone = fixture.store().write(async |tx| {
        Ok(towpath_store::on!(tx, |conn| sqlx::query("DELETE FROM destination")
            .execute(conn)
            .await
            .map(drop))?)
    });
    gone.await.unwrap();
    fixture.drive().await;
    let spawned = fixture.spawned(schedule).await;
    assert_eq!(spawned.len(), 2);
    for export in spawned {
        assert_eq!(export.status, ExportStatus::Failed);
        assert!(export.error.unwrap().contains("the destination was deleted"));
    }
    assert_eq!(fixture.show(schedule).await.status, ExportStatus::Running);
}
