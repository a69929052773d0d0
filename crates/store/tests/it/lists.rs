//! Lists of jobs: what fits, in order, however it is found.

use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId};
use towpath_store::jobs::{self, Filter, Job, JobSummary, JobTransition, NewJob, Position};
use towpath_store::{Store, on};
use uuid::Uuid;

use crate::database::{Database, rows_read, run};
use crate::jobs::on_both;

on_both!(a_list_has_what_fits_whatever_it_is_found_by);

const TENANTS: [TenantId; 2] = [TenantId::nil(), TenantId(Uuid::from_u128(7))];

/// Records the nth job. Every other one has a lane, every fifth is a part of the first.
async fn record(store: &Store, nth: usize, first: Option<JobId>) -> JobId {
    let id = JobId::new();
    let recorded = store.write(async |tx| {
        let job = NewJob {
            id,
            tenant_id: TENANTS[nth % 2],
            kind: ["one", "two", "three"][nth % 3],
            pool: ["large", "small"][usize::from(nth.is_multiple_of(7))],
            priority: 0,
            state: JobState::Ready,
            run_at: tx.now(),
            deadline_at: None,
            input: "{}".to_owned(),
            lane: nth.is_multiple_of(2).then(|| format!("lane {}", nth % 4)),
            lane_seq: None,
            lane_held: false,
            keep_place: false,
            parent_id: first.filter(|_| nth.is_multiple_of(5)),
            traceparent: None,
        };
        jobs::insert(tx, &job).await
    });
    recorded.await.unwrap();
    id
}

async fn end(store: &Store, id: JobId, state: JobState) {
    let ended = store.write(async |tx| {
        let job: Job = jobs::lock(tx, &[id]).await?.remove(0);
        jobs::apply(tx, &job, &JobTransition::of(&job, state)).await
    });
    ended.await.unwrap();
}

/// Reads a list page by page.
async fn read(store: &Store, filter: &Filter, page: i64) -> Vec<JobId> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let listed: Vec<JobSummary> = store
            .read(async |tx| jobs::list(tx, filter, before, page).await)
            .await
            .unwrap();
        let is_last = (listed.len() as i64) < page;
        found.extend(listed.iter().map(|job| job.id));
        if is_last {
            return found;
        }
        before = found.last().copied();
    }
}

fn fits(filter: &Filter, job: &JobSummary) -> bool {
    filter.pool.as_ref().is_none_or(|pool| *pool == job.pool)
        && filter.kind.as_ref().is_none_or(|kind| *kind == job.kind)
        && filter.state.is_none_or(|state| state == job.state)
        && filter.tenant.is_none_or(|tenant| tenant == job.tenant_id)
        && filter.lane.as_ref().is_none_or(|lane| job.lane.as_ref() == Some(lane))
        && filter.parent.is_none_or(|parent| job.parent_id == Some(parent))
        && filter.worker.is_none_or(|worker| job.worker_id == Some(worker))
}

async fn a_list_has_what_fits_whatever_it_is_found_by(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let mut recorded: Vec<JobId> = Vec::new();
    for nth in 0..60 {
        let first = recorded.first().copied();
        recorded.push(record(&store, nth, first).await);
    }
    let end_some = async |from: usize, to: usize| {
        for (nth, id) in recorded.iter().enumerate().take(to).skip(from) {
            match nth % 4 {
                0 => end(&store, *id, JobState::Failed).await,
                1 => {}
                _ => end(&store, *id, JobState::Succeeded).await,
            }
        }
    };
    // Some have left, some are over and there, some are open.
    end_some(0, 30).await;
    let before = store.clock().now().plus(std::time::Duration::from_secs(1));
    let archived = store.write(async |tx| jobs::archive(tx, before, Position::START, 100).await);
    assert!(archived.await.unwrap().moved > 10);
    end_some(30, 50).await;
    let worker = towpath_domain::WorkerId::new();
    let claimed = store.write(async |tx| jobs::claim(tx, &jobs::ClaimRequest::new("large", worker, 4)).await);
    assert_eq!(claimed.await.unwrap().len(), 4);

    let whole = Filter::default();
    let all = store.read(async |tx| jobs::list(tx, &whole, None, 100).await).await;
    let all: Vec<JobSummary> = all.unwrap();
    assert_eq!(all.len(), 60);
    let text = |text: &str| Some(text.to_owned());
    let (mut filters, mut found) = (Vec::new(), 0);
    for state in [
        None,
        Some(JobState::Failed),
        Some(JobState::Succeeded),
        Some(JobState::Ready),
    ] {
        for (pool, kind) in [
            (None, None),
            (text("small"), None),
            (None, text("two")),
            (text("large"), text("two")),
        ] {
            for (lane, parent) in [
                (None, None),
                (text("lane 2"), None),
                (None, Some(recorded[0])),
                (text("lane 0"), Some(recorded[0])),
            ] {
                for tenant in [None, Some(TENANTS[1])] {
                    filters.push(Filter {
                        pool: pool.clone(),
                        kind: kind.clone(),
                        state,
                        tenant,
                        lane: lane.clone(),
                        parent,
                        worker: None,
                    });
                }
            }
        }
    }
    filters.push(Filter {
        worker: Some(worker),
        ..Filter::default()
    });
    for filter in filters {
        let expected: Vec<JobId> = all.iter().filter(|job| fits(&filter, job)).map(|job| job.id).collect();
        assert_eq!(read(&store, &filter, 7).await, expected, "{filter:?}");
        assert_eq!(read(&store, &filter, 100).await, expected, "{filter:?}");
        found += expected.len();
    }
    assert!(found > 300, "{found}");
}

/// What is rare is found by itself, not by a walk through all there ever was.
#[tokio::test]
async fn a_list_of_what_is_rare_reads_little_of_the_history() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = database.store;
    store.migrate().await.unwrap();
    let rare = TENANTS[1];
    let filled = store.write(async |tx| {
        let now = tx.now();
        // One of a thousand is rare in each respect.
        let text = "INSERT INTO job_history (id, tenant_id, kind, pool, priority, state, run_at, input, lane, keep_place,
                                             parent_id, open_children, bad_children, attempt, failures, lost_leases, fence,
                                             created_at, finished_at, over_at)
                    SELECT gen_random_uuid(), CASE WHEN n % 1000 = 1 THEN $1 ELSE $2 END,
                           CASE WHEN n % 1000 = 1 THEN 'rare' ELSE 'common' END,
                           CASE WHEN n % 1000 = 1 THEN 'rare' ELSE 'common' END, 0,
                           CASE WHEN n % 1000 = 2 THEN 'failed' ELSE 'succeeded' END, $3, '',
                           CASE WHEN n % 1000 = 1 THEN 'rare' ELSE 'common' END, false,
                           CASE WHEN n % 1000 = 1 THEN $1 ELSE $2 END, 0, 0, 1, 0, 0, 2, $3, $3, $3
                    FROM generate_series(1, 4000) n";
        on!(tx, |conn| sqlx::query(text)
            .bind(rare)
            .bind(TENANTS[0])
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?;
        run(tx, "ANALYZE job_history").await
    });
    filled.await.unwrap();
    let text = || Some("rare".to_owned());
    let whole = Filter::default;
    let parent = Some(JobId(rare.0));
    let filters = [
        Filter {
            kind: text(),
            ..whole()
        },
        Filter {
            pool: text(),
            ..whole()
        },
        Filter {
            lane: text(),
            ..whole()
        },
        Filter {
            tenant: Some(rare),
            ..whole()
        },
        Filter { parent, ..whole() },
        Filter {
            parent,
            tenant: Some(rare),
            lane: text(),
            ..whole()
        },
        Filter {
            kind: text(),
            state: Some(JobState::Succeeded),
            ..whole()
        },
    ];
    for filter in filters {
        let (found, read) = store
            .write(async |tx| {
                let before = rows_read(tx, "job_history").await?;
                let found = jobs::list(tx, &filter, None, 50).await?;
                Ok((found.len(), rows_read(tx, "job_history").await? - before))
            })
            .await
            .unwrap();
        assert_eq!(found, 4, "{filter:?}");
        assert!(read < 100, "{filter:?} read {read} rows");
    }
}
