//! What the scheduler's gauges and the operators' pages look up, on both databases.

use std::time::Duration;

use towpath_domain::export::{Compression, ExportSpec, FormatVersion, Partition};
use towpath_domain::{
    DestinationId, ExportId, ExportRunId, JobId, ProjectId, ScheduleId, SegmentId, TenantId, Timestamp, WalSegmentId,
    WorkerId,
};
use towpath_store::exports::{self, NewExport, overview, runs};
use towpath_store::schedules::Schedule;
use towpath_store::segments::{self, Part};
use towpath_store::wal_segments::{self, NewWalSegment};
use towpath_store::workers::Worker;
use towpath_store::{gauges, lanes, pools, projects, schedules, workers};

use crate::database::Database;

async fn numbers_are_those_of_the_rows(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let now = store.clock().now();
    let tenant = TenantId::new();
    let empty = store.read(async |tx| gauges::schedules(tx).await).await.unwrap();
    assert_eq!((empty.active, empty.paused, empty.next_at), (0, 0, None));
    let late = now.minus(Duration::from_secs(90));
    let seen = store.write(async |tx| {
        for (next_at, paused) in [(now, false), (late, false), (now.minus(Duration::from_secs(900)), true)] {
            let schedule = Schedule {
                id: ScheduleId::new(),
                tenant_id: tenant,
                kind: "spawn".to_owned(),
                pool: "spawns".to_owned(),
                input: "{}".to_owned(),
                next_at,
                paused,
                spawn_job: None,
                created_at: now,
                ended_at: None,
            };
            schedules::insert(tx, &schedule).await?;
        }
        for (key, held) in [("open", 0), ("full", 1)] {
            let mut lane = lanes::lock(tx, key, 1).await?;
            lane.held = held;
            lanes::save(tx, &lane).await?;
        }
        let unit = NewWalSegment {
            id: WalSegmentId::new(),
            tenant,
            byte_offset: 8,
            bytes: 10,
            decoded_bytes: 10,
            operations: 3,
        };
        wal_segments::register(tx, "wal/a.unit", &[unit], &[]).await?;
        pools::pause(tx, "flushes").await?;
        pools::resume(tx, "exports").await?;
        let worker = Worker {
            id: WorkerId::new(),
            host: "host".to_owned(),
            pid: 1,
            pools: r#"{"flushes":4}"#.to_owned(),
            version: "0".to_owned(),
            draining: false,
            started_at: now,
            seen_at: now,
            finished: r#"{"flushes":1}"#.to_owned(),
            drain_at: None,
        };
        workers::heartbeat(tx, &worker).await?;
        let again = Worker {
            finished: r#"{"flushes":7}"#.to_owned(),
            ..worker
        };
        workers::heartbeat(tx, &again).await?;
        Ok((
            gauges::schedules(tx).await?,
            gauges::lanes(tx).await?,
            gauges::open_wal_segments(tx).await?,
            gauges::pools(tx).await?,
            workers::alive(tx, Duration::from_secs(60)).await?,
        ))
    });
    let (schedules, lanes, open, paused, alive) = seen.await.unwrap();
    assert_eq!((schedules.active, schedules.paused), (2, 1));
    assert_eq!(schedules.next_at, Some(late));
    assert_eq!((lanes.open, lanes.full_lanes), (2, 1));
    assert_eq!(open.units, 1);
    assert!(open.oldest_at.is_some_and(|at| at >= now));
    let paused: Vec<_> = paused.into_iter().map(|pool| (pool.name, pool.paused)).collect();
    assert_eq!(paused, [("exports".to_owned(), false), ("flushes".to_owned(), true)]);
    assert_eq!(alive.len(), 1);
    assert_eq!(alive[0].finished, r#"{"flushes":7}"#, "the row tells the latest count");
    let silent_for = async |window| store.write(async |tx| workers::prune(tx, window).await).await.unwrap();
    assert_eq!(silent_for(Duration::from_secs(60)).await, 0);
    assert_eq!(silent_for(Duration::ZERO).await, 1);
    assert!(store.read(async |tx| workers::list(tx).await).await.unwrap().is_empty());
    store.close().await;
}

async fn exports_of_all_workspaces_are_listed(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let now = store.clock().now();
    let day = Duration::from_secs(86_400);
    let mut made = Vec::new();
    for name in ["first", "second"] {
        let (tenant, id) = (TenantId::new(), ExportId::new());
        let recorded = store.write(async |tx| {
            let project = projects::ensure(tx, tenant, name).await?;
            let content = ExportSpec {
                destination: DestinationId::new(),
                project: if name == "first" { project } else { ProjectId::new() },
                format_version: FormatVersion::V1,
                compression: Compression::Zstandard,
                fields: None,
                filter: None,
            };
            let new = NewExport {
                id,
                content: &content,
                start_time: now.minus(day),
                end_time: now,
                source: None,
                job: JobId::new(),
            };
            exports::insert(tx, tenant, new).await?;
            let partition = Partition {
                start: now.minus(day),
                end: now,
            };
            let run = ExportRunId::new();
            let new = runs::NewRun {
                id: run,
                partition,
                prefix: "prefix".to_owned(),
                job: JobId::new(),
            };
            runs::insert_all(tx, tenant, id, &[new]).await?;
            runs::running(tx, tenant, run, 0).await?;
            let progress = runs::Progress {
                rows: 5_000_000_000,
                bytes: 7,
                files: 1,
            };
            runs::progress(tx, tenant, run, progress).await
        });
        recorded.await.unwrap();
        made.push((tenant, id));
    }
    let list = async |before, limit| {
        store
            .read(async |tx| overview::list(tx, before, limit).await)
            .await
            .unwrap()
    };
    let all = list(None, 10).await;
    let ids: Vec<_> = all.iter().map(|export| (export.tenant_id, export.id)).collect();
    assert_eq!(ids, [made[1], made[0]], "the latest first, of whatever workspace");
    assert_eq!(all[1].project.as_deref(), Some("first"));
    assert_eq!(all[0].project, None, "a project that is gone");
    assert_eq!(all[0].destination, None);
    assert_eq!((all[0].runs, all[0].runs_over), (1, 0));
    assert_eq!((all[0].rows_written, all[0].bytes_written), (5_000_000_000, 7));
    assert_eq!(list(None, 1).await.len(), 1);
    let older = list(Some(made[1].1), 10).await;
    assert_eq!(older.iter().map(|export| export.id).collect::<Vec<_>>(), [made[0].1]);
    let owner = store
        .read(async |tx| overview::owner(tx, made[0].1).await)
        .await
        .unwrap();
    assert_eq!(owner, Some(made[0].0));
    store.close().await;
}

async fn projects_say_what_lies_in_them(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let hour = |hours: i64| Timestamp::from_micros(hours * 3_600_000_000);
    let made = store.write(async |tx| {
        let (tenant, segment) = (TenantId::new(), SegmentId::new());
        let quiet = projects::ensure(tx, TenantId::new(), "Quiet 100%").await?;
        let busy = projects::ensure(tx, tenant, "busy").await?;
        segments::intend(tx, tenant, segment, "segments/a", None).await?;
        let part = |row_group: i64, from: i64| Part {
            segment_id: segment,
            tenant_id: tenant,
            project_id: busy,
            day: hour(from).day(),
            row_group,
            rows: 7,
            min_sort_time: hour(from),
            max_sort_time: hour(from + 1),
            min_seq: 0,
            max_seq: 1,
        };
        // Later than the other project began.
        segments::publish(tx, tenant, segment, 14, 1, &[part(0, 900_000), part(1, 900_024)]).await?;
        Ok((tenant, quiet, busy))
    });
    let (tenant, quiet, busy) = made.await.unwrap();
    let list = async |part: &str, limit, offset| {
        let read = store.read(async |tx| projects::overview::list(tx, part, limit, offset).await);
        read.await.unwrap()
    };
    let all = list("", 10, 0).await;
    assert_eq!(all.iter().map(|project| project.id).collect::<Vec<_>>(), [busy, quiet]);
    assert_eq!((all[0].rows, all[0].days), (14, 2));
    assert_eq!(
        (all[0].first_run, all[0].last_run),
        (Some(hour(900_000)), Some(hour(900_025)))
    );
    assert_eq!((all[1].rows, all[1].last_run), (0, None));
    assert_eq!(list("", 1, 1).await[0].id, quiet);
    // Signs that mean something to the database mean themselves.
    assert_eq!(list("quiet 100%", 10, 0).await.len(), 1);
    assert_eq!(list("b_sy", 10, 0).await.len(), 0);
    let any = async |id: ProjectId, workspace: Option<TenantId>| {
        let read = store.read(async |tx| projects::overview::any(tx, id, workspace).await);
        let found = read.await.unwrap().into_iter();
        found.map(|project| project.tenant_id).collect::<Vec<_>>()
    };
    assert_eq!(any(busy, None).await, [tenant]);
    assert!(any(ProjectId::new(), None).await.is_empty());
    // Another workspace may have a project of that id.
    let other = TenantId::new();
    let same = projects::NewProject {
        id: Some(busy),
        name: "busy".to_owned(),
        ..projects::NewProject::default()
    };
    let made = store.write(async |tx| projects::create(tx, other, &same).await).await;
    assert_eq!(made.unwrap().tenant_id, other);
    assert_eq!(any(busy, None).await.len(), 2);
    assert_eq!(any(busy, Some(tenant)).await, [tenant]);
    assert_eq!(any(busy, Some(other)).await, [other]);
    assert!(any(quiet, Some(other)).await.is_empty());
    let listed = list("BUSY", 10, 0).await.into_iter();
    let listed: Vec<_> = listed.map(|project| (project.tenant_id, project.rows)).collect();
    assert_eq!(listed, [(tenant, 14), (other, 0)]);
    store.close().await;
}

#[tokio::test]
async fn overviews_on_sqlite() {
    numbers_are_those_of_the_rows(Database::sqlite().await).await;
    exports_of_all_workspaces_are_listed(Database::sqlite().await).await;
    projects_say_what_lies_in_them(Database::sqlite().await).await;
}

#[tokio::test]
async fn overviews_on_postgres() {
    let (one, two, three) = tokio::join!(Database::postgres(), Database::postgres(), Database::postgres());
    if let (Some(one), Some(two), Some(three)) = (one, two, three) {
        numbers_are_those_of_the_rows(one).await;
        exports_of_all_workspaces_are_listed(two).await;
        projects_say_what_lies_in_them(three).await;
    }
}
