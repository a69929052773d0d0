//! Rate limits that several processes share: exact while Redis is there, and no reason for an outage while it is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use towpath_queue::{CountingMode, Options, WindowDecision, WindowRequest, Windows};
use towpath_tests::{Api, Layout, RedisServer, World, until};

/// How long a test waits for what has to happen. Not a bar: those are printed.
const LIMIT: Duration = Duration::from_secs(180);
const PROCESSES: usize = 4;
const CALLS: usize = 10_000;
const CALLERS: usize = 64;

async fn windows(server: &RedisServer) -> Windows {
    let windows = Windows::redis(&format!("redis://{}", server.address()), Options::default())
        .await
        .unwrap();
    until_counted(&windows, CountingMode::Shared).await;
    windows
}

async fn until_counted(windows: &Windows, counted: CountingMode) {
    until(&format!("limits counted {counted:?}"), LIMIT, async || {
        (windows.counting_mode() == counted).then_some(())
    })
    .await;
}

fn ask(slot: u16, name: &'static str, count: u32, length: Duration) -> WindowRequest<'static> {
    WindowRequest {
        window: slot,
        name,
        identity: [1; 16],
        limit: count,
        length,
    }
}

/// What is in a window's log, in microseconds.
async fn moments(server: &RedisServer, name: &str) -> Vec<i64> {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let key = format!("towpath:limit:{name}:{}", "01".repeat(16));
    let text = format!("LRANGE {key} 0 -1\r\nQUIT\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.lines().filter_map(|line| line.parse().ok()).collect()
}

/// No span of this length has more than `count` of them.
fn assert_exact(moments: &[i64], count: usize, length: Duration) {
    for some in moments.windows(count + 1) {
        let span = some[count] - some[0];
        assert!(
            span >= i64::try_from(length.as_micros()).unwrap(),
            "{} passed within {span} µs",
            count + 1
        );
    }
}

/// Calls of many callers over all processes at once: what each was told, and how long it took.
async fn storm(processes: &[Arc<Windows>], asked: &[WindowRequest<'static>; 2]) -> Vec<(WindowDecision, Duration)> {
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let (windows, asked) = (Arc::clone(&processes[caller % PROCESSES]), asked.clone());
        callers.push(tokio::spawn(async move {
            let mut told = Vec::new();
            for call in 0..CALLS.div_ceil(CALLERS) {
                let begun = Instant::now();
                let verdict = windows.take(&asked).await;
                told.push((verdict, begun.elapsed()));
                // Each at a pace of its own.
                tokio::time::sleep(Duration::from_micros((caller * 37 + call * 11) as u64 % 3000)).await;
            }
            told
        }));
    }
    let mut told = Vec::new();
    for caller in callers {
        told.extend(caller.await.unwrap());
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_thousand_calls_over_four_processes_no_window_has_one_too_many() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = RedisServer::start(folder.path()).await else {
        eprintln!("skipped: redis-server is not installed");
        return;
    };
    let (count, length) = (50, Duration::from_millis(100));
    let asked = [
        ask(0, "exact", count, length),
        // Never full: it writes down who passed.
        ask(1, "audit", 1_000_000, Duration::from_secs(3600)),
    ];
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(Arc::new(windows(&server).await));
    }
    let mut told;
    let mut passed;
    let mut attempts = 0;
    loop {
        told = storm(&processes, &asked).await;
        passed = told.iter().filter(|(verdict, _)| verdict.refused.is_none()).count();
        let moments = moments(&server, "audit").await;
        assert_exact(&moments, count as usize, length);
        if moments.len() == passed {
            break;
        }
        // On a machine that is too busy an answer comes late, and a process counts by itself for a moment.
        attempts += 1;
        assert!(
            attempts < 5,
            "{passed} were told to pass, and {} did in Redis",
            moments.len()
        );
        for windows in &processes {
            until_counted(windows, CountingMode::Shared).await;
        }
        server.flush().await;
    }
    for (verdict, _) in &told {
        if verdict.refused.is_some() {
            assert_eq!(verdict.counts[0], count, "refused while there was room");
        }
    }
    assert!(passed < told.len(), "the window was full now and then");
    let mut costs: Vec<Duration> = told.iter().map(|(_, cost)| *cost).collect();
    costs.sort();
    let at = |part: usize| costs[costs.len() * part / 1000];
    println!(
        "{} calls, {passed} passed; a call over Redis: p50 {:?}, p99 {:?}",
        told.len(),
        at(500),
        at(990)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_flushed_frozen_or_gone_refuses_nobody_and_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut server) = RedisServer::start(folder.path()).await else {
        eprintln!("skipped: redis-server is not installed");
        return;
    };
    let windows = Arc::new(windows(&server).await);
    let wide = ask(0, "wide", 1_000_000, Duration::from_secs(60));
    // A caller asks all the time.
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = Vec::new();
    for _ in 0..8 {
        let (windows, wide, stop) = (Arc::clone(&windows), wide.clone(), Arc::clone(&stop));
        load.push(tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                assert_eq!(windows.take(std::slice::from_ref(&wide)).await.refused, None);
                longest = longest.max(begun.elapsed());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            longest
        }));
    }
    let narrow = |name, slot| ask(slot, name, 3, Duration::from_secs(60));
    let three = async |asked: WindowRequest<'static>| {
        for time in 0..3 {
            let verdict = windows.take(std::slice::from_ref(&asked)).await;
            assert_eq!(verdict.refused, None, "{}, the {time}th", asked.name);
        }
        // On a machine that is too busy an answer comes late, and some are counted here and some there.
        let mut more = 0;
        while windows.take(std::slice::from_ref(&asked)).await.refused.is_none() {
            more += 1;
            assert!(more <= 3, "{} has no limit", asked.name);
        }
    };
    three(narrow("before", 1)).await;

    // Its data and the script are lost: what passed before is forgotten, and nothing else happens.
    server.flush().await;
    assert_eq!(server.command("SCRIPT FLUSH").await.unwrap(), "+OK");
    three(narrow("before", 1)).await;
    until_counted(&windows, CountingMode::Shared).await;

    // Connections stay open and nothing answers.
    server.freeze();
    until_counted(&windows, CountingMode::Degraded).await;
    // The same limit, in this process alone.
    three(narrow("frozen", 2)).await;
    server.thaw();
    until_counted(&windows, CountingMode::Shared).await;
    three(narrow("thawed", 3)).await;

    server.stop().await;
    until_counted(&windows, CountingMode::Degraded).await;
    three(narrow("gone", 4)).await;
    assert!(server.restart().await);
    until_counted(&windows, CountingMode::Shared).await;
    three(narrow("back", 5)).await;
    assert!((1..=3).contains(&moments(&server, "back").await.len()));
    stop.store(true, Ordering::Relaxed);
    for task in load {
        println!("the longest call took {:?}", task.await.unwrap());
    }
}

#[tokio::test]
async fn processes_of_a_cluster_share_the_rules() {
    let plan = World::plan(Layout::Cluster { workers: 1 }).api_processes(2);
    let Some(world) = plan.env("TOWPATH_LIMITS", "eu").start().await else {
        return;
    };
    let programs = world.processes.iter().map(towpath_tests::Process::program);
    let apis: Vec<Api> = programs
        .filter(|program| program.name.starts_with("api"))
        .map(|program| world.api.at(program.address.expect("it listens")))
        .collect();
    assert_eq!(apis.len(), 2);
    let mut passed = 0;
    for turn in 0..40 {
        // 30 an hour, and no route: what is counted is decided before routing.
        let reply = apis[turn % 2].request(Method::POST, "/generate", None).await.unwrap();
        match reply.status.as_u16() {
            404 => passed += 1,
            429 => assert!((3500..=3600).contains(&reply.retry_after.unwrap()), "{reply:?}"),
            other => panic!("{other}: {reply:?}"),
        }
    }
    let mut apart = 0;
    for api in &apis {
        let metrics = api.text("/metrics").await;
        let counted = metrics
            .lines()
            .find_map(|line| line.strip_prefix("towpath_limits_counted_apart_total "));
        apart += counted.expect("it is there from the start").parse::<usize>().unwrap();
    }
    // Of those that Redis answered too late for, more pass than may.
    assert!(
        (30..=30 + apart).contains(&passed),
        "{passed} passed, {apart} of all counted apart"
    );
    let seen = apis[0].get("/internal/limits").await.expect(200);
    assert_eq!(seen["counted"], "shared");
    world.stop().await;
}
