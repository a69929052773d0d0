//! Scheduled exports: every interval once, whatever dies, and however long nothing ran.

use std::time::Duration;

use towpath_domain::ExportId;
use towpath_domain::export::ExportStatus;
use towpath_store::exports::listing::{self, Filter, Listed};
use towpath_store::exports::runs;
use towpath_workflows::spawn_export;

use crate::home::{Database, Home, on_both_databases};

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

impl Home {
    /// What a schedule has spawned, the first interval first.
    pub async fn spawned(&self, schedule: ExportId) -> Vec<Listed> {
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

    async fn show(&self, id: ExportId) -> Listed {
        self.store()
            .read(async |tx| listing::get(tx, self.tenant, id).await)
            .await
            .unwrap()
    }
}

async fn each_interval_is_exported_ten_minutes_after_its_end(on: Database) {
    let home = Home::new_on(&on, 1).await;
    home.drive().await;
    // The clock stands at noon of the tenth.
    let schedule = home.schedule("2026-03-10T09:00:00Z", 4).await;
    let shown = home.show(schedule).await;
    assert_eq!(
        (shown.status, shown.end_time, shown.interval_hours),
        (ExportStatus::Running, None, Some(4))
    );
    home.drive().await;
    assert!(home.spawned(schedule).await.is_empty(), "it ends at 13:00");
    home.wait(HOUR + 9 * MINUTE).await;
    home.drive().await;
    assert!(home.spawned(schedule).await.is_empty(), "not before 13:10");
    home.wait(MINUTE).await;
    home.drive().await;
    assert_eq!(home.starts(schedule).await, ["10 09"]);
    home.wait(4 * HOUR).await;
    home.drive().await;
    assert_eq!(home.starts(schedule).await, ["10 09", "10 13"]);
    for export in home.spawned(schedule).await {
        assert_eq!(export.status, ExportStatus::Completed);
        assert_eq!(export.source_bulk_export_id, Some(schedule));
        assert_eq!(export.end_time.unwrap().since(export.start_time), 4 * HOUR);
        assert!(home.manifest(export.id).is_some());
    }
    assert_eq!(home.show(schedule).await.status, ExportStatus::Running);
}

async fn what_was_missed_is_made_up_for_and_every_row_is_exported_once(on: Database) {
    let home = Home::new_on(&on, 2).await;
    let schedule = home.schedule("2026-03-01T00:00:00Z", 36).await;
    // Nothing ran for nine days; the last interval of 36 hours that is over ended at the midnight before this noon.
    home.drive().await;
    let starts = ["01 00", "02 12", "04 00", "05 12", "07 00", "08 12"];
    assert_eq!(home.starts(schedule).await, starts);
    let rows = home
        .store()
        .read(async |tx| runs::list_spawned(tx, home.tenant, schedule, 1000, 0).await)
        .await
        .unwrap();
    assert_eq!(rows.len(), 6 * 2, "36 hours lie on two days");
    assert_eq!(
        rows.iter().map(|run| run.rows_written).sum::<i64>(),
        2 * crate::home::DAY_ROWS as i64
    );
}

async fn killed_anywhere_it_spawns_each_interval_once(on: Database) {
    let home = Home::new_on(&on, 1).await;
    home.drive().await;
    let mut seen = 0;
    for polls in (1..400).step_by(on.stride()) {
        let schedule = home.schedule("2026-03-09T00:00:00Z", 12).await;
        let mut whole = true;
        let mut spawns = 0;
        while let Some(job) = home.claim().await {
            spawns += usize::from(job.kind == "spawn_export");
            if job.kind == "spawn_export" {
                whole &= !home.perform_for(job, polls).await;
                home.boot().await;
            } else {
                home.perform(job).await;
            }
            // Those of earlier rounds are over, and keep what they lost.
            let lost = "SELECT count(*) FROM job WHERE lost_leases > 3 AND finished_at IS NULL";
            if home.count(lost).await > 0 {
                // It never gets through with so little time.
                break;
            }
        }
        assert!(
            spawns > 0,
            "nobody could claim the spawn, after {polls} looks: {}",
            home.jobs().await
        );
        home.drive().await;
        assert_eq!(home.starts(schedule).await, ["09 00", "09 12"], "after {polls} looks");
        home.store()
            .write(async |tx| spawn_export::cancel(tx, home.tenant, schedule, None).await)
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
    let home = Home::new_on(&on, 1).await;
    home.drive().await;
    let schedule = home.schedule("2026-03-10T09:00:00Z", 2).await;
    // The job of the chain is lost with everything that is known of it.
    let gone = home
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
    home.drive().await;
    assert!(home.spawned(schedule).await.is_empty());
    for recorded in [1, 0] {
        assert_eq!(towpath_durable::respawn(home.store(), MINUTE).await.unwrap(), recorded);
    }
    // A second job of the same chain, as an old process could have recorded it.
    let twice = home
        .store()
        .write(async |tx| {
            let chain = towpath_store::schedules::list(tx, None, 10).await?.remove(0);
            let how = towpath_durable::Start::new(home.tenant);
            towpath_durable::start_raw(tx, &chain.kind, &chain.pool, &chain.input, how).await
        })
        .await;
    twice.unwrap();
    home.drive().await;
    assert_eq!(home.starts(schedule).await, ["10 09"]);
}

async fn cancelling_a_schedule_leaves_what_it_spawned(on: Database) {
    let home = Home::new_on(&on, 1).await;
    home.drive().await;
    let schedule = home.schedule("2026-03-01T00:00:00Z", 168).await;
    let spawn = home.until("spawn_export").await;
    home.perform(spawn).await;
    let cancel = async || {
        home.store()
            .write(async |tx| spawn_export::cancel(tx, home.tenant, schedule, None).await)
            .await
            .unwrap()
    };
    assert!(cancel().await);
    assert!(cancel().await, "again changes nothing");
    let shown = home.show(schedule).await;
    assert_eq!(shown.status, ExportStatus::Cancelled);
    assert!(shown.finished_at.is_some());
    home.wait(400 * HOUR).await;
    home.drain().await;
    let spawned = home.spawned(schedule).await;
    assert_eq!(spawned.len(), 1);
    assert_eq!(spawned[0].status, ExportStatus::Completed);
    // One of another workspace is not there.
    let foreign = home
        .store()
        .write(async |tx| spawn_export::cancel(tx, towpath_domain::TenantId::new(), schedule, None).await);
    assert!(!foreign.await.unwrap());
    home.assert_tidy().await;
}

async fn a_cancel_comes_between_a_spawn_and_its_commit(on: Database) {
    let home = Home::new_on(&on, 1).await;
    home.drive().await;
    for polls in (1..60).step_by(on.stride()) {
        let schedule = home.schedule("2026-03-09T00:00:00Z", 24).await;
        let spawn = home.until("spawn_export").await;
        let _ = home.perform_for(spawn, polls).await;
        home.store()
            .write(async |tx| spawn_export::cancel(tx, home.tenant, schedule, None).await)
            .await
            .unwrap();
        home.boot().await;
        home.drain().await;
        let spawned = home.spawned(schedule).await.len();
        assert!(spawned <= 1, "after {polls} looks");
        assert_eq!(home.show(schedule).await.status, ExportStatus::Cancelled);
    }
    assert_eq!(
        home.count("SELECT count(*) FROM schedule WHERE ended_at IS NULL").await,
        0
    );
}

async fn of_a_destination_that_is_gone_the_exports_fail_and_the_schedule_goes_on(on: Database) {
    let home = Home::new_on(&on, 1).await;
    home.drive().await;
    let schedule = home.schedule("2026-03-09T00:00:00Z", 12).await;
    let gone = home.store().write(async |tx| {
        Ok(towpath_store::on!(tx, |conn| sqlx::query("DELETE FROM destination")
            .execute(conn)
            .await
            .map(drop))?)
    });
    gone.await.unwrap();
    home.drive().await;
    let spawned = home.spawned(schedule).await;
    assert_eq!(spawned.len(), 2);
    for export in spawned {
        assert_eq!(export.status, ExportStatus::Failed);
        assert!(export.error.unwrap().contains("the destination was deleted"));
    }
    assert_eq!(home.show(schedule).await.status, ExportStatus::Running);
}
