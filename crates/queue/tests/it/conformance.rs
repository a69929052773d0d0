//! The common behaviour of both kinds of queue. Each test runs within one process and over Redis.

use std::sync::Arc;

use futures::FutureExt;
use towpath_domain::{JobId, ThreadId};
use towpath_queue::{Event, Signal, Wake, Wakes};

use crate::processes::{Processes, soon};

/// One test for both kinds of queue.
macro_rules! conforms {
    ($($(#[$doc:meta])* async fn $name:ident($queue:ident: Processes) $body:block)*) => {$(
        mod $name {
            use super::*;

            $(#[$doc])*
            async fn check($queue: Processes) $body

            #[tokio::test]
            async fn local() {
                check(Processes::local()).await;
            }

            #[tokio::test]
            async fn redis() {
                if let Some(processes) = Processes::redis().await {
                    check(processes).await;
                }
            }
        }
    )*};
}

fn pool(name: &str) -> Wake {
    Wake::Pool(Arc::from(name))
}

/// A listener on the other side after its first wake, which then receives wakes of this side.
///
/// Over Redis the reader of the other side must first know a new pool; it then wakes it once for possible earlier
/// entries.
async fn listening(processes: &Processes, pools: &[&str]) -> Wakes {
    let mut wakes = processes.there.listen(pools);
    assert_eq!(soon("the first look", wakes.next()).await, Wake::All);
    for name in processes.first_read(pools) {
        assert_eq!(soon("the reader", wakes.next()).await, pool(name));
    }
    assert_eq!(wakes.next().now_or_never(), None);
    wakes
}

conforms! {
    /// Earlier jobs sent no wake to this listener, so it checks once.
    async fn a_new_listener_looks_at_everything(processes: Processes) {
        processes.here.wake("runs");
        let mut wakes = processes.there.listen(["runs", "builds"]);
        assert_eq!(soon("the first look", wakes.next()).await, Wake::All);
    }

    async fn a_wake_reaches_every_listener_of_its_pool(processes: Processes) {
        let mut one = listening(&processes, &["runs"]).await;
        let mut two = listening(&processes, &["builds", "runs"]).await;
        let mut here = processes.here.listen(["runs"]);
        assert_eq!(here.next().await, Wake::All);
        // The reader woke the new pools once because it did not know them before.
        assert_eq!(one.next().now_or_never(), None);

        processes.here.wake("runs");
        assert_eq!(soon("one", one.next()).await, pool("runs"));
        assert_eq!(soon("two", two.next()).await, pool("runs"));
        assert_eq!(soon("here", here.next()).await, pool("runs"));
    }

    async fn a_wake_reaches_no_other_pool(processes: Processes) {
        let mut runs = listening(&processes, &["runs"]).await;
        let mut builds = listening(&processes, &["builds"]).await;
        processes.here.wake("exports");
        processes.here.wake("builds");
        assert_eq!(soon("builds", builds.next()).await, pool("builds"));
        processes.here.wake("runs");
        assert_eq!(soon("runs", runs.next()).await, pool("runs"));
    }

    /// A worker without a permit waits for no wake, however long. Then it finds one.
    async fn a_slow_listener_finds_one_wake_per_pool(processes: Processes) {
        let mut slow = listening(&processes, &["builds", "runs"]).await;
        let mut last = listening(&processes, &["~last"]).await;
        for _ in 0..5_000 {
            processes.here.wake("runs");
            processes.here.wake("builds");
        }
        processes.here.wake("~last");
        soon("the last wake", last.next()).await;
        let mut found = vec![slow.next().await, slow.next().await];
        found.sort_by_key(|wake| format!("{wake:?}"));
        assert_eq!(found, [pool("builds"), pool("runs")]);
        assert_eq!(slow.next().now_or_never(), None);
    }

    async fn a_busy_pool_does_not_hide_another(processes: Processes) {
        let mut wakes = listening(&processes, &["builds", "runs"]).await;
        processes.there.wake("builds");
        processes.there.wake("runs");
        assert_eq!(wakes.next().await, pool("builds"));
        processes.there.wake("builds");
        assert_eq!(wakes.next().await, pool("runs"));
        assert_eq!(wakes.next().await, pool("builds"));
    }

    async fn a_wait_that_is_dropped_loses_nothing(processes: Processes) {
        let mut wakes = listening(&processes, &["runs"]).await;
        assert_eq!(wakes.next().now_or_never(), None);
        processes.here.wake("runs");
        assert_eq!(soon("the wake", wakes.next()).await, pool("runs"));
    }

    async fn others_go_on_when_a_listener_leaves(processes: Processes) {
        let gone = listening(&processes, &["runs"]).await;
        let mut stays = listening(&processes, &["runs"]).await;
        drop(gone);
        processes.here.wake("runs");
        assert_eq!(soon("the wake", stays.next()).await, pool("runs"));
    }

    /// Threads that renew leases and commit writes have no runtime.
    async fn a_wake_needs_no_runtime(processes: Processes) {
        let mut wakes = listening(&processes, &["runs"]).await;
        let here = processes.here.clone();
        std::thread::spawn(move || here.wake("runs")).join().unwrap();
        assert_eq!(soon("the wake", wakes.next()).await, pool("runs"));
    }

    async fn cancels_reach_every_receiver_in_order(processes: Processes) {
        let mut here = processes.here.cancels();
        let mut there = processes.there.cancels();
        let jobs: Vec<JobId> = std::iter::repeat_with(JobId::new).take(600).collect();
        processes.here.cancel(&jobs);
        processes.here.cancel(&[]);
        for job in jobs {
            assert_eq!(soon("here", here.next()).await, Signal::Job(job));
            assert_eq!(soon("there", there.next()).await, Signal::Job(job));
        }
    }

    async fn a_receiver_that_fell_behind_is_told_to_look(processes: Processes) {
        let mut slow = processes.there.cancels();
        let mut last = listening(&processes, &["~last"]).await;
        let jobs: Vec<JobId> = std::iter::repeat_with(JobId::new).take(4_000).collect();
        processes.here.cancel(&jobs);
        processes.here.wake("~last");
        soon("the last wake", last.next()).await;
        assert_eq!(soon("the marker", slow.next()).await, Signal::Lagged);
        // It continues with the retained signals.
        assert_eq!(soon("a signal", slow.next()).await, Signal::Job(jobs[4_000 - 1024]));
    }
}

conforms! {
    /// Nothing that is published after the subscription is missed, and the order is kept.
    async fn events_of_a_thread_arrive_in_order(processes: Processes) {
        let (thread, other) = (ThreadId::new(), ThreadId::new());
        let mut events = processes.there.subscribe(thread).await;
        // Without a session there is a first check.
        while events.try_next().is_some() {}
        processes.here.publish(other, "not this");
        for number in 0..100 {
            processes.here.publish(thread, format!("frame {number}"));
        }
        for number in 0..100 {
            let event = soon("a frame", events.next()).await;
            assert_eq!(event, Event::Frame(format!("frame {number}").into()));
        }
    }

    /// A second reader of a thread, and one after the last one left, get later events.
    async fn readers_come_and_go(processes: Processes) {
        let thread = ThreadId::new();
        for round in 0..3 {
            let mut one = processes.there.subscribe(thread).await;
            let mut two = processes.there.subscribe(thread).await;
            processes.here.publish(thread, format!("round {round}"));
            for events in [&mut one, &mut two] {
                let event = soon("a frame", events.next()).await;
                assert_eq!(event, Event::Frame(format!("round {round}").into()));
            }
        }
    }
}
