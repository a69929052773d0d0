//! Measures the latency from [`Queue::wake`] to the listener, for single wakes on an idle queue.
//!
//! `cargo run --release -p towpath-queue --example wake_latency [-- redis://127.0.0.1:6379]`
#![expect(clippy::print_stdout, reason = "its purpose")]

use std::time::{Duration, Instant};

use towpath_domain::WorkerId;
use towpath_queue::{Options, Queue};

const WAKES: usize = 2_000;

#[tokio::main]
async fn main() {
    let local = Queue::local();
    measure("in one process", &local, &local).await;
    if let Some(uri) = std::env::args().nth(1) {
        let options = Options {
            prefix: format!("towpath-latency:{}:", WorkerId::new()),
            ..Options::default()
        };
        let here = Queue::redis(&uri, options.clone()).await.expect("a redis uri");
        let there = Queue::redis(&uri, options).await.expect("a redis uri");
        measure("over redis", &here, &there).await;
    }
}

async fn measure(what: &str, from: &Queue, to: &Queue) {
    let mut wakes = to.listen(["latency"]);
    wakes.next().await;
    let (heard, mut hears) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            wakes.next().await;
            if heard.send(Instant::now()).is_err() {
                break;
            }
        }
    });
    // The reader of the other side must know the new pool.
    tokio::time::sleep(Duration::from_secs(1)).await;
    while hears.try_recv().is_ok() {}
    let mut times = Vec::with_capacity(WAKES);
    for _ in 0..WAKES {
        let start = Instant::now();
        from.wake("latency");
        times.push(hears.recv().await.expect("the listener lives") - start);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{what}: p50 {:?}, p99 {:?}, max {:?} of {WAKES}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
