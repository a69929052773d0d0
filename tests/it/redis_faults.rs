//! What the queue does while Redis, or the way to it, is ill. Hints may be lost; the queue may not hang, storm or are.

use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;
use towpath_domain::JobId;
use towpath_queue::{Cancels, Options, Queue, Signal, State, Wake, Wakes};
use towpath_tests::fault_proxy::{Direction, FaultProxy, Mode};
use towpath_tests::{RedisServer, until};

/// How long a test waits for what has to happen. Not a bar: those are printed.
const LIMIT: Duration = Duration::from_secs(180);

/// A Redis, a process with a good line to it that records work, and one behind the proxy that performs it.
struct RedisFixture {
    server: RedisServer,
    proxy: FaultProxy,
    recorder_queue: Queue,
    worker_queue: Queue,
    wakes: Wakes,
    cancels: Cancels,
    _folder: TempDir,
}

impl RedisFixture {
    /// Everything is up, and the listener there hears of this side.
    async fn start() -> Option<Self> {
        let mut rig = Self::in_mode(Mode::Pass).await?;
        rig.back().await;
        Some(rig)
    }

    /// With the proxy in this mode from the beginning.
    async fn in_mode(mode: Mode) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let Some(server) = RedisServer::start(folder.path()).await else {
            eprintln!("skipped: redis-server is not installed");
            return None;
        };
        let proxy = FaultProxy::start(server.address()).await;
        proxy.set(mode);
        let here = queue(server.address()).await;
        let there = queue(proxy.addr()).await;
        let (wakes, cancels) = (there.listen(["runs"]), there.cancels());
        Some(Self {
            server,
            proxy,
            recorder_queue: here,
            worker_queue: there,
            wakes,
            cancels,
            _folder: folder,
        })
    }

    /// Waits until the side behind the proxy says that it is cut off. Gives the time it took.
    async fn cut_off(&self) -> Duration {
        let start = Instant::now();
        until("the loss to be noticed", LIMIT, async || {
            self.worker_queue.health().degraded().then_some(())
        })
        .await;
        start.elapsed()
    }

    /// Waits until both sides are up and a wake crosses. Gives the time it took.
    async fn back(&mut self) -> Duration {
        let start = Instant::now();
        let (here, there) = (self.recorder_queue.clone(), self.worker_queue.clone());
        until("redis to be back", LIMIT, async || {
            (here.health().state == State::Up && there.health().state == State::Up).then_some(())
        })
        .await;
        let took = start.elapsed();
        self.crosses().await;
        took
    }

    /// A wake from here is heard there. Repeated, because one may be lost while a connection changes.
    async fn crosses(&mut self) {
        let (here, wakes) = (self.recorder_queue.clone(), &mut self.wakes);
        until("a wake to cross", LIMIT, async || {
            here.wake("runs");
            let heard = tokio::time::timeout(Duration::from_millis(200), async {
                while wakes.next().await == Wake::All {}
            });
            heard.await.ok()
        })
        .await;
    }

    /// The first wake since the last one taken that asks to look at everything.
    async fn told_to_look(&mut self) {
        let told = async { while self.wakes.next().await != Wake::All {} };
        tokio::time::timeout(LIMIT, told)
            .await
            .expect("the listener is told to look");
    }

    /// The listener there hears of its own process, whatever Redis does.
    async fn works_within_the_process(&mut self) {
        while tokio::time::timeout(Duration::ZERO, self.wakes.next()).await.is_ok() {}
        self.worker_queue.wake("runs");
        assert_eq!(self.wakes.next().await, Wake::Pool("runs".into()));
    }
}

async fn queue(redis: SocketAddr) -> Queue {
    Queue::redis(&format!("redis://{redis}"), Options::default())
        .await
        .unwrap()
}

/// The case that stalls the hosted product for two minutes: a blocking read whose answer never comes.
#[tokio::test]
async fn a_half_open_connection_is_left_and_replaced() {
    for way in [Direction::Both, Direction::ToUpstream, Direction::ToClient] {
        let Some(mut rig) = RedisFixture::start().await else {
            return;
        };
        let connects = rig.proxy.accepted();
        rig.proxy.set(Mode::HalfOpen(way));
        let noticed = rig.cut_off().await;
        rig.works_within_the_process().await;
        assert!(
            rig.worker_queue.health().dropped >= 1,
            "what it could not send is counted"
        );
        // Attempts meet a peer that accepts and says nothing; they continue, each with its own end.
        until("another attempt", LIMIT, async || {
            (rig.proxy.accepted() >= connects + 2).then_some(())
        })
        .await;
        rig.proxy.set(Mode::Pass);
        rig.told_to_look().await;
        let back = rig.back().await;
        assert!(rig.worker_queue.health().reconnects >= 1);
        println!("half-open {way:?}: noticed after {noticed:?}, up {back:?} after the listeners were told");
    }
}

#[tokio::test]
async fn a_stopped_redis_is_noticed_and_found_again() {
    let Some(mut rig) = RedisFixture::start().await else {
        return;
    };
    rig.server.freeze();
    let noticed = rig.cut_off().await;
    rig.server.thaw();
    rig.told_to_look().await;
    rig.back().await;
    println!("SIGSTOP: noticed after {noticed:?}");
}

#[tokio::test]
async fn a_killed_redis_is_found_again_empty() {
    let Some(mut rig) = RedisFixture::start().await else {
        return;
    };
    for _ in 0..3 {
        rig.server.stop().await;
        let noticed = rig.cut_off().await;
        rig.works_within_the_process().await;
        assert!(rig.server.restart().await);
        rig.told_to_look().await;
        let back = rig.back().await;
        println!("kill: noticed after {noticed:?}, back {back:?} after the listeners were told");
    }
}

/// Signals that were sent meanwhile are gone, so receivers are told to look at their rows.
#[tokio::test]
async fn receivers_of_signals_are_told_to_look_after_a_loss() {
    let Some(mut rig) = RedisFixture::start().await else {
        return;
    };
    while tokio::time::timeout(Duration::ZERO, rig.cancels.next()).await.is_ok() {}
    rig.proxy.set(Mode::ResetAll);
    rig.cut_off().await;
    rig.recorder_queue.cancel(&[JobId::new()]);
    rig.proxy.set(Mode::Pass);
    let told = tokio::time::timeout(LIMIT, rig.cancels.next())
        .await
        .expect("the receiver is told");
    assert_eq!(told, Signal::Lagged);
    rig.back().await;
    let job = JobId::new();
    rig.recorder_queue.cancel(&[job]);
    let told = tokio::time::timeout(LIMIT, rig.cancels.next())
        .await
        .expect("the signal crosses");
    assert_eq!(told, Signal::Job(job));
}

#[tokio::test]
async fn a_flush_loses_no_connection() {
    let Some(mut rig) = RedisFixture::start().await else {
        return;
    };
    for _ in 0..20 {
        rig.server.flush().await;
        rig.crosses().await;
    }
    let health = rig.worker_queue.health();
    assert_eq!((health.state, health.reconnects), (State::Up, 0));
}

#[tokio::test]
async fn a_slow_line_is_no_loss() {
    let Some(mut rig) = RedisFixture::start().await else {
        return;
    };
    for mode in [
        Mode::Delay(Duration::from_millis(150)),
        Mode::Throttle(4_000),
        Mode::Slice(31),
        // Every reply in several pieces; a whole second of them would be a loss.
        Mode::Slice(3),
    ] {
        rig.proxy.set(mode);
        let times = if mode == Mode::Slice(3) { 1 } else { 5 };
        for _ in 0..times {
            rig.crosses().await;
        }
        let health = rig.worker_queue.health();
        assert_eq!((health.state, health.reconnects), (State::Up, 0), "{mode:?}");
    }
}

/// A server that hangs up on everyone is called less than ten times a second, however fast it answers.
#[tokio::test]
async fn there_is_no_reconnect_storm() {
    for mode in [Mode::Drop, Mode::ResetAll] {
        let Some(rig) = RedisFixture::start().await else { return };
        rig.proxy.set(mode);
        if mode == Mode::Drop {
            // Old connections pass in this mode, so they have to end otherwise.
            rig.server.command("CLIENT KILL TYPE normal").await.unwrap();
        }
        rig.cut_off().await;
        let (start, before) = (Instant::now(), rig.proxy.accepted());
        until("attempts", LIMIT, async || {
            (rig.proxy.accepted() >= before + 10).then_some(())
        })
        .await;
        let rate = (rig.proxy.accepted() - before) as f64 / start.elapsed().as_secs_f64();
        println!("{mode:?}: {rate:.1} connects/s");
        assert!(rate < 10.0, "{mode:?}: {rate} connects/s");
    }
}

#[tokio::test]
async fn a_redis_that_comes_late_is_found() {
    let Some(mut rig) = RedisFixture::in_mode(Mode::Drop).await else {
        return;
    };
    assert!(rig.worker_queue.health().degraded());
    // The look that every listener begins with.
    rig.told_to_look().await;
    rig.proxy.set(Mode::Pass);
    rig.told_to_look().await;
    rig.back().await;
    assert_eq!(rig.worker_queue.health().reconnects, 0, "it had never been connected");
}

/// After a failover the old master refuses writes: hints can't be sent, and readiness has to say so.
#[tokio::test]
async fn a_server_that_takes_no_writes_is_not_up() {
    let Some(mut rig) = RedisFixture::start().await else {
        return;
    };
    assert_eq!(rig.server.command("REPLICAOF 127.0.0.1 1").await.unwrap(), "+OK");
    until("the refusal to be told", LIMIT, async || {
        rig.worker_queue.wake("runs");
        matches!(rig.worker_queue.health().state, State::Down { error, .. } if error.contains("READONLY")).then_some(())
    })
    .await;
    assert_eq!(rig.server.command("REPLICAOF NO ONE").await.unwrap(), "+OK");
    rig.back().await;
}

#[tokio::test]
async fn a_wrong_password_is_told_without_the_password() {
    let Some(rig) = RedisFixture::start().await else { return };
    assert_eq!(rig.server.command("CONFIG SET requirepass right").await.unwrap(), "+OK");
    let uri = format!("redis://:hunter2@{}", rig.server.address());
    let refused = Queue::redis(&uri, Options::default()).await.unwrap();
    let error = until("the refusal to be told", LIMIT, async || match refused.health().state {
        State::Down { error, .. } if error != "not connected yet" => Some(error),
        State::Down { .. } => None,
        _ => panic!("it was let in"),
    })
    .await;
    assert!(error.contains("assword") || error.contains("WRONGPASS"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
    let uri = format!("redis://:right@{}", rig.server.address());
    let accepted = Queue::redis(&uri, Options::default()).await.unwrap();
    until("the right one to be let in", LIMIT, async || {
        (accepted.health().state == State::Up).then_some(())
    })
    .await;
}

/// The last clone hangs up: a process that drops its queue leaves nothing behind.
#[tokio::test]
async fn a_dropped_queue_hangs_up() {
    let Some(rig) = RedisFixture::start().await else { return };
    let RedisFixture {
        proxy,
        worker_queue,
        wakes,
        cancels,
        server,
        ..
    } = rig;
    drop(worker_queue);
    // One reads, one sends, one carries live events.
    assert_eq!(proxy.open(), 3, "listeners hold the queue");
    drop((wakes, cancels));
    until("all connections to end", LIMIT, async || {
        (proxy.open() == 0).then_some(())
    })
    .await;
    drop(server);
}
