//! Sliding windows compared with a simple model: the times of all passed requests, and a count of those within.

use std::time::Duration;

use towpath_domain::{Clock, Timestamp, WorkerId};
use towpath_queue::{CountingMode, Options, WindowDecision, WindowRequest, Windows};

use crate::processes::soon;

fn ask(slot: u16, name: &'static str, who: u8, count: u32, length: Duration) -> WindowRequest<'static> {
    WindowRequest {
        window: slot,
        name,
        identity: [who; 16],
        limit: count,
        length,
    }
}

/// Deterministic pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Requests in the window that ends at `now`.
fn within(passed: &[i64], now: i64, length: i64) -> Vec<i64> {
    passed
        .iter()
        .copied()
        .filter(|&moment| moment > now - length && moment <= now)
        .collect()
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap()
}

#[tokio::test]
async fn memory_agrees_with_the_model_at_random_times() {
    for seed in 0..40 {
        let mut dice = Random(seed);
        let clock = Clock::stopped(Timestamp::from_micros(1_000_000_000));
        let windows = Windows::local(clock.clone());
        let count = u32::try_from(1 + dice.below(20)).unwrap();
        let length = Duration::from_millis(1 + dice.below(2000));
        // Dense enough that the window is mostly full, with gaps that empty it.
        let step = micros(length) as u64 / u64::from(count) + 1;
        let mut passed = [Vec::new(), Vec::new()];
        for _ in 0..2000 {
            let gap = match dice.below(50) {
                0 => micros(length) as u64,
                1 => 0,
                _ => dice.below(step),
            };
            clock.advance(Duration::from_micros(gap));
            let now = clock.now().micros();
            let who = dice.below(2);
            let verdict = windows
                .take(&[ask(0, "model", u8::try_from(who).unwrap(), count, length)])
                .await;
            let passed = &mut passed[usize::try_from(who).unwrap()];
            let inside = within(passed, now, micros(length));
            if inside.len() < count as usize {
                assert_eq!(
                    verdict.refused,
                    None,
                    "seed {seed}: {} of {count} at {now}",
                    inside.len()
                );
                assert_eq!(verdict.counts, [u32::try_from(inside.len() + 1).unwrap()]);
                passed.push(now);
            } else {
                let wait = inside[inside.len() - count as usize] + micros(length) - now;
                let wait = Duration::from_micros(u64::try_from(wait).unwrap());
                assert_eq!(verdict.refused, Some((0, wait)), "seed {seed}: full at {now}");
                assert_eq!(verdict.counts, [count]);
            }
        }
    }
}

#[tokio::test]
async fn a_request_stands_in_all_its_windows_or_in_none() {
    let clock = Clock::stopped(Timestamp::from_micros(0));
    let windows = Windows::local(clock.clone());
    let wide = ask(0, "wide", 1, 5, Duration::from_secs(60));
    let narrow = ask(1, "narrow", 1, 1, Duration::from_secs(10));
    assert_eq!(windows.take(&[wide.clone(), narrow.clone()]).await.refused, None);
    for _ in 0..10 {
        let verdict = windows.take(&[wide.clone(), narrow.clone()]).await;
        assert_eq!(
            verdict,
            WindowDecision {
                counts: vec![1, 1],
                refused: Some((1, Duration::from_secs(10)))
            }
        );
    }
    // Refused requests took no slot in the other window.
    for left in 0..4 {
        assert_eq!(windows.take(std::slice::from_ref(&wide)).await.refused, None, "{left}");
    }
    let verdict = windows.take(std::slice::from_ref(&wide)).await;
    assert_eq!(verdict.refused, Some((0, Duration::from_secs(60))));
}

#[tokio::test]
async fn of_many_threads_as_many_pass_as_may() {
    let windows = std::sync::Arc::new(Windows::local(Clock::stopped(Timestamp::from_micros(0))));
    let mut tasks = Vec::new();
    for _ in 0..16 {
        let windows = windows.clone();
        tasks.push(tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut passed = 0;
                for _ in 0..1000 {
                    let asked = [
                        ask(0, "one", 1, 777, Duration::from_secs(1)),
                        ask(1, "two", 2, 800, Duration::from_secs(1)),
                    ];
                    passed += u32::from(windows.take(&asked).await.refused.is_none());
                }
                passed
            })
        }));
    }
    let mut passed = 0;
    for task in tasks {
        passed += task.await.unwrap();
    }
    assert_eq!(passed, 777);
}

/// Two processes on the Redis that `TOWPATH_TEST_REDIS` names, and their prefix.
async fn shared() -> Option<(Windows, Windows, String, String)> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the server to test against is handed over in the environment"
    )]
    let Ok(uri) = std::env::var("TOWPATH_TEST_REDIS") else {
        eprintln!("skipped: TOWPATH_TEST_REDIS is not set");
        return None;
    };
    let prefix = format!("towpath-test:{}:", WorkerId::new());
    let options = Options {
        prefix: prefix.clone(),
        ..Options::default()
    };
    let here = Windows::redis(&uri, options.clone()).await.unwrap();
    let there = Windows::redis(&uri, options).await.unwrap();
    for windows in [&here, &there] {
        until_shared(windows).await;
    }
    Some((here, there, uri, prefix))
}

async fn until_shared(windows: &Windows) {
    let up = async {
        while windows.counting_mode() != CountingMode::Shared {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("limits to be shared", up).await;
}

/// Times of all passed requests, as recorded by a second window that is never full: a request is in both or in none.
async fn moments(uri: &str, key: &str) -> Vec<i64> {
    let client = redis::Client::open(uri).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut command = redis::cmd("LRANGE");
    command.arg(key).arg(0).arg(-1);
    command.query_async(&mut connection).await.unwrap()
}

/// Repeats a check if some requests were counted locally, because the machine was too busy for Redis to answer in time.
async fn shared_all_the_time(check: impl AsyncFn() -> Option<Outcome>) {
    for _ in 0..5 {
        if check().await != Some(Outcome::CountedApart) {
            return;
        }
    }
    panic!("Redis was too slow each time");
}

/// Result of a check; `None` without Redis.
#[derive(PartialEq, Eq)]
enum Outcome {
    Checked,
    CountedApart,
}

fn any_apart(here: &Windows, there: &Windows) -> bool {
    here.degraded_requests() + there.degraded_requests() > 0
}

#[tokio::test]
async fn redis_agrees_with_the_model_for_two_processes_at_random_times() {
    shared_all_the_time(agrees_with_the_model).await;
}

async fn agrees_with_the_model() -> Option<Outcome> {
    let (here, there, uri, prefix) = shared().await?;
    let (count, length) = (7, Duration::from_millis(100));
    let asked = [
        ask(0, "model", 1, count, length),
        ask(1, "audit", 1, 1_000_000, Duration::from_secs(3600)),
    ];
    let mut dice = Random(1);
    let mut verdicts = Vec::new();
    for _ in 0..600 {
        // Concurrent requests are decided in some order; the results are compared as a set.
        let (one, two) = tokio::join!(here.take(&asked), there.take(&asked));
        verdicts.extend([one, two]);
        if dice.below(40) == 0 {
            tokio::time::sleep(length).await;
        } else {
            tokio::time::sleep(Duration::from_micros(dice.below(9000))).await;
        }
    }
    if any_apart(&here, &there) {
        return Some(Outcome::CountedApart);
    }
    let key = format!("{prefix}limit:audit:{}", "01".repeat(16));
    let passed = moments(&uri, &key).await;
    let told: Vec<&WindowDecision> = verdicts.iter().filter(|verdict| verdict.refused.is_none()).collect();
    assert_eq!(passed.len(), told.len(), "who was told to pass stands in the log");
    assert!(told.len() < verdicts.len(), "the window was full now and then");
    for pair in passed.windows(count as usize + 1) {
        let span = pair[count as usize] - pair[0];
        assert!(span >= micros(length), "{} passed within {span} µs", count + 1);
    }
    // Each result matches the model.
    for (index, &moment) in passed.iter().enumerate() {
        let inside = within(&passed[..=index], moment, micros(length)).len();
        let said = told.iter().find(|verdict| verdict.counts[1] as usize == index + 1);
        assert_eq!(
            said.expect("each has its number").counts[0] as usize,
            inside,
            "the {index}th"
        );
    }
    // No request was refused below the limit.
    for verdict in verdicts.iter().filter(|verdict| verdict.refused.is_some()) {
        assert_eq!(verdict.counts[0], count);
        let (window, wait) = verdict.refused.unwrap();
        assert_eq!(window, 0);
        assert!(wait <= length, "{wait:?}");
    }
    Some(Outcome::Checked)
}

#[tokio::test]
async fn who_waits_as_long_as_told_passes_in_redis() {
    shared_all_the_time(passes_when_told).await;
}

async fn passes_when_told() -> Option<Outcome> {
    let (here, there, ..) = shared().await?;
    let asked = [ask(0, "wait", 1, 3, Duration::from_millis(200))];
    for _ in 0..5 {
        // Until the other process sees that the window is full.
        let wait = loop {
            if here.take(&asked).await.refused.is_some() {
                continue;
            }
            if let Some((_, wait)) = there.take(&asked).await.refused {
                break wait;
            }
        };
        tokio::time::sleep(wait + Duration::from_millis(1)).await;
        let verdict = there.take(&asked).await;
        if any_apart(&here, &there) {
            return Some(Outcome::CountedApart);
        }
        assert_eq!(verdict.refused, None);
    }
    Some(Outcome::Checked)
}

#[tokio::test]
async fn without_redis_each_process_counts_by_itself() {
    // This loopback port has no listener.
    let windows = Windows::redis("redis://127.0.0.1:1", Options::default()).await.unwrap();
    assert_eq!(windows.counting_mode(), CountingMode::Degraded);
    let asked = [ask(0, "alone", 1, 2, Duration::from_secs(3600))];
    assert_eq!(windows.take(&asked).await.refused, None);
    assert_eq!(windows.take(&asked).await.refused, None);
    assert!(windows.take(&asked).await.refused.is_some());
}
