//! Queues of ready jobs: order, bounds, and what asks for a scan.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt;
use towpath_domain::job::ReadyJob;
use towpath_domain::{JobId, TenantId, Timestamp};
use towpath_queue::{DispatchMode, Options, Queue, Refill, TakenJobs, WINDOW, Wake, Wakes};

use crate::processes::{Processes, soon};

const POOL: &str = "runs";

fn job(tenant: TenantId, priority: i64, run_at: i64) -> ReadyJob {
    ReadyJob {
        pool: POOL.to_owned(),
        tenant,
        priority,
        run_at: Timestamp::from_micros(run_at),
        id: JobId::new(),
    }
}

fn ids(jobs: &[&ReadyJob]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

/// A listener in this process and one on the other side, both after their first wakes.
async fn listening(processes: &Processes) -> [Wakes; 2] {
    let mut there = processes.there.listen([POOL]);
    let mut here = processes.here.listen([POOL]);
    assert_eq!(soon("the first look", there.next()).await, Wake::All);
    assert_eq!(soon("the first look", here.next()).await, Wake::All);
    // The reader of each side wakes a pool that it does not know yet.
    assert_eq!(soon("the reader there", there.next()).await, Wake::Pool(POOL.into()));
    assert_eq!(soon("the reader here", here.next()).await, Wake::Pool(POOL.into()));
    [here, there]
}

/// Pushes jobs and returns when they can be taken.
async fn push(processes: &Processes, wakes: &mut [Wakes; 2], jobs: &[ReadyJob]) {
    processes.here.push(jobs);
    for wakes in wakes {
        assert_eq!(soon("the ids", wakes.next()).await, Wake::Queued(POOL.into()));
    }
}

async fn take(queue: &Queue, limit: usize) -> TakenJobs {
    queue.take(POOL, limit).await.expect("redis answers")
}

#[tokio::test]
async fn ids_are_taken_once_by_turn_priority_and_age() {
    let Some(processes) = Processes::directed().await else {
        return;
    };
    let mut wakes = listening(&processes).await;
    let mut tenants = [TenantId::new(), TenantId::new()];
    tenants.sort_unstable();
    let [a, b] = tenants;
    let (old, new, urgent, later) = (job(a, 0, 10), job(a, 0, 200), job(a, 5, 300), job(a, -1, 1));
    let other = job(b, 0, 400);
    let all = [&new, &later, &old, &urgent, &other].map(Clone::clone);
    push(&processes, &mut wakes, &all).await;
    // Twice: there is one of each.
    push(&processes, &mut wakes, &all).await;
    assert_eq!(
        take(&processes.there, 2).await.ids,
        ids(&[&urgent, &other]),
        "tenants take turns"
    );
    assert_eq!(take(&processes.here, 2).await.ids, ids(&[&old, &new]));
    assert_eq!(take(&processes.there, 9).await.ids, ids(&[&later]));
    assert_eq!(take(&processes.there, 9).await.ids, []);
}

#[tokio::test]
async fn a_tenant_that_was_served_comes_last() {
    let Some(processes) = Processes::directed().await else {
        return;
    };
    let mut wakes = listening(&processes).await;
    let tenants: Vec<TenantId> = (0..50).map(|_| TenantId::new()).collect();
    let jobs: Vec<ReadyJob> = (0..2)
        .flat_map(|round| tenants.iter().map(move |&tenant| job(tenant, 0, round)))
        .collect();
    push(&processes, &mut wakes, &jobs).await;
    let of: BTreeMap<JobId, TenantId> = jobs.iter().map(|job| (job.id, job.tenant)).collect();
    let mut first = BTreeSet::new();
    for _ in 0..5 {
        let taken = take(&processes.there, 10).await;
        first.extend(taken.ids.iter().map(|id| of[id]));
    }
    assert_eq!(first.len(), 50, "each tenant once before one comes again");
}

#[tokio::test]
async fn the_window_is_bounded_and_the_rest_is_asked_for() {
    let Some(processes) = Processes::directed().await else {
        return;
    };
    let mut wakes = listening(&processes).await;
    let (big, small) = (TenantId::new(), TenantId::new());
    let jobs: Vec<ReadyJob> = (0..WINDOW)
        .map(|nth| job(big, 0, i64::try_from(nth).unwrap()))
        .collect();
    push(&processes, &mut wakes, &jobs).await;
    // The check that is due anyway.
    assert_eq!(take(&processes.there, 1).await.refill, Some(Refill::Check));
    let more: Vec<ReadyJob> = (0..200).map(|_| job(big, 0, 1_000_000)).collect();
    push(&processes, &mut wakes, &more).await;
    let few = [job(small, 0, 2_000_000), job(small, 0, 2_000_001)];
    push(&processes, &mut wakes, &few).await;
    let (mut seen, mut asked) = (BTreeSet::new(), Vec::new());
    loop {
        let taken = take(&processes.there, 500).await;
        if taken.ids.is_empty() {
            break;
        }
        seen.extend(taken.ids);
        asked.extend(taken.refill.filter(|refill| *refill == Refill::Window));
    }
    assert_eq!(seen.len(), WINDOW);
    assert!(
        few.iter().all(|job| seen.contains(&job.id)),
        "another tenant displaces the largest"
    );
    assert_eq!(asked.first(), Some(&Refill::Window));

    // It found more than it could read, so the next one is asked again; with everything there, nobody is.
    processes.here.refill(POOL, jobs.clone(), Refill::Window);
    assert_eq!(soon("the ids", wakes[1].next()).await, Wake::Queued(POOL.into()));
    assert!(refills_until_empty(&processes.there).await > 0);
    processes.here.refill(POOL, jobs[..9].to_vec(), Refill::Window);
    assert_eq!(soon("the ids", wakes[1].next()).await, Wake::Queued(POOL.into()));
    assert_eq!(refills_until_empty(&processes.there).await, 0);
}

/// Takes all ids, and counts how often the whole window was asked for.
async fn refills_until_empty(queue: &Queue) -> usize {
    let mut asked = 0;
    loop {
        let taken = take(queue, 1000).await;
        asked += usize::from(taken.refill == Some(Refill::Window));
        if taken.ids.is_empty() {
            return asked;
        }
    }
}

#[tokio::test]
async fn a_flush_loses_ids_and_nothing_else() {
    let Some(processes) = Processes::directed().await else {
        return;
    };
    let mut wakes = listening(&processes).await;
    let tenant = TenantId::new();
    // Some keys of the pool, as an eviction does, then all.
    for keys in [&["turns"][..], &["sizes"], &["state"], &["turns", "sizes", "state"]] {
        push(&processes, &mut wakes, &[job(tenant, 0, 1)]).await;
        processes
            .delete(&keys.iter().map(|key| format!("ready:{POOL}:{key}")).collect::<Vec<_>>())
            .await;
        take(&processes.there, 5).await;
        let next = job(tenant, 0, 2);
        push(&processes, &mut wakes, std::slice::from_ref(&next)).await;
        let taken = take(&processes.there, 5).await;
        assert!(taken.ids.contains(&next.id), "{keys:?}: {taken:?}");
        assert_eq!(take(&processes.there, 5).await.ids, [], "{keys:?}");
    }
}

/// Processes may be of both forms during an upgrade.
#[tokio::test]
async fn a_push_without_directed_dispatch_is_a_wake() {
    let Some(processes) = Processes::redis().await else {
        return;
    };
    let mut wakes = processes.here.listen([POOL]);
    assert_eq!(wakes.next().await, Wake::All);
    assert_eq!(soon("the reader", wakes.next()).await, Wake::Pool(POOL.into()));
    processes.here.push(&[job(TenantId::new(), 0, 1)]);
    assert_eq!(wakes.next().now_or_never(), Some(Wake::Pool(POOL.into())));
    assert!(!processes.here.can_take());
    assert_eq!(processes.here.take(POOL, 1).await, None);
}

#[tokio::test]
async fn without_redis_a_push_is_a_wake_in_this_process() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let options = Options {
        dispatch: DispatchMode::Directed,
        ..Options::default()
    };
    let queue = Queue::redis(&format!("redis://{closed}"), options).await.unwrap();
    let mut wakes = queue.listen([POOL]);
    assert_eq!(wakes.next().now_or_never(), Some(Wake::All));
    queue.push(&[job(TenantId::new(), 0, 1)]);
    assert_eq!(wakes.next().now_or_never(), Some(Wake::Pool(POOL.into())));
    assert!(!queue.can_take());
    assert_eq!(queue.take(POOL, 1).await, None);
}
