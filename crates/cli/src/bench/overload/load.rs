//! Requests at scheduled times, and their results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use crate::arguments::BenchOverload;

/// A client gives up after this time.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent requests of this generator. Requests beyond it count as not sent; unless that count is zero, the
/// generator was the bottleneck.
const MAX_IN_FLIGHT: usize = 8192;
/// Pause of a closed-loop sender after a refusal; shorter than requested, so that the server stays full.
const AFTER_REFUSAL: Duration = Duration::from_millis(50);

/// One server, one key, and one body in which only the ids change.
pub(super) struct Load {
    http: reqwest::Client,
    url: String,
    metrics: String,
    body: Vec<u8>,
    /// Positions of each trace run's ids in the body.
    ids: Vec<[usize; 2]>,
    permits: Arc<Semaphore>,
}

/// Results of one phase.
#[derive(Default)]
pub(super) struct LoadResult {
    took: Duration,
    offered: u64,
    unsent: u64,
    lost: u64,
    /// Number of refusals by Retry-After in seconds; 0 is none.
    refusals: BTreeMap<u64, u64>,
    others: BTreeMap<u16, u64>,
    /// Latencies of accepted requests.
    latencies: Vec<Duration>,
}

#[derive(Clone, Copy)]
enum RequestOutcome {
    Accepted(Duration),
    Refused(u64),
    Other(u16),
    Lost,
}

impl Load {
    pub(super) fn new(base: &str, key: &str, options: &BenchOverload) -> anyhow::Result<Self> {
        let mut headers = HeaderMap::new();
        let mut key = HeaderValue::from_str(key).context("the API key")?;
        key.set_sensitive(true);
        headers.insert("x-api-key", key);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .no_proxy()
            .pool_max_idle_per_host(1024)
            .timeout(TIMEOUT)
            .build()?;
        let (body, ids) = rendered(options);
        Ok(Self {
            http,
            url: format!("{base}/runs/batch"),
            metrics: format!("{base}/metrics"),
            body,
            ids,
            permits: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
        })
    }

    /// Sends `rate` requests per second for the time of `span`, at scheduled times.
    pub(super) async fn offer(&self, rate: f64, span: Duration) -> LoadResult {
        let began = Instant::now();
        let mut requests = JoinSet::new();
        let mut seen = LoadResult::default();
        let wanted = (rate * span.as_secs_f64()) as u64;
        while seen.offered < wanted {
            // Timers have a resolution of a millisecond; all due requests are sent at once.
            tokio::time::sleep(Duration::from_millis(1)).await;
            let due = ((began.elapsed().as_secs_f64() * rate) as u64).min(wanted);
            while seen.offered < due {
                let appointed = began + Duration::from_secs_f64(seen.offered as f64 / rate);
                seen.offered += 1;
                match Arc::clone(&self.permits).try_acquire_owned() {
                    Ok(place) => {
                        let request = self.request();
                        requests.spawn(async move {
                            let fate = send_at(request, appointed).await;
                            drop(place);
                            fate
                        });
                    }
                    Err(_) => seen.unsent += 1,
                }
            }
            while let Some(Ok(fate)) = requests.try_join_next() {
                seen.count(fate);
            }
        }
        seen.took = began.elapsed();
        while let Some(Ok(fate)) = requests.join_next().await {
            seen.count(fate);
        }
        seen
    }

    /// Closed-loop load of `senders`, with a short pause after each refusal.
    pub(super) async fn saturate(&self, senders: usize, span: Duration) -> LoadResult {
        self.send(senders, span, false).await
    }

    /// Like [`Load::saturate`], until the first refusal.
    pub(super) async fn fill(&self, senders: usize, longest: Duration) -> LoadResult {
        self.send(senders, longest, true).await
    }

    /// Requests whose trace runs are flushed, since the start of the server.
    pub(super) async fn flushed_requests(&self) -> anyhow::Result<f64> {
        let runs = self.metric("towpath_flushed_operations_total").await?;
        Ok(runs / self.ids.len() as f64)
    }

    /// Waits until almost everything is flushed, and returns the time it took.
    pub(super) async fn wait_until_flushed(&self, longest: Duration) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let before = self.flushed_requests().await?;
            // Longer than the flush delay.
            tokio::time::sleep(Duration::from_secs(4)).await;
            if self.flushed_requests().await? <= before {
                return Ok(began.elapsed());
            }
            anyhow::ensure!(
                began.elapsed() < longest,
                "the server has not flushed everything it accepted"
            );
        }
    }

    async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let text = self.http.get(&self.metrics).send().await?.text().await?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        Ok(line
            .and_then(|rest| rest.rsplit(' ').next()?.parse().ok())
            .unwrap_or_default())
    }

    async fn send(&self, senders: usize, span: Duration, until_refused: bool) -> LoadResult {
        let began = Instant::now();
        let seen = Arc::new(Mutex::new(LoadResult::default()));
        let sending = (0..senders).map(|_| {
            let seen = Arc::clone(&seen);
            async move {
                while began.elapsed() < span {
                    let fate = send_at(self.request(), Instant::now()).await;
                    let refused = {
                        let mut seen = seen.lock();
                        seen.offered += 1;
                        seen.count(fate);
                        seen.refused() > 0
                    };
                    if refused && until_refused {
                        return;
                    }
                    if matches!(fate, RequestOutcome::Refused(_)) {
                        tokio::time::sleep(AFTER_REFUSAL).await;
                    }
                }
            }
        });
        futures::future::join_all(sending).await;
        let mut seen = std::mem::take(&mut *seen.lock());
        seen.took = began.elapsed();
        seen
    }

    /// A request with new trace runs.
    fn request(&self) -> reqwest::RequestBuilder {
        let mut body = self.body.clone();
        for places in &self.ids {
            let id = Uuid::now_v7();
            for &place in places {
                id.hyphenated()
                    .encode_lower(&mut body[place..place + Hyphenated::LENGTH]);
            }
        }
        self.http.post(&self.url).body(Bytes::from(body))
    }
}

/// A body, and the positions of its ids. It is rendered once, because rendering is not measured.
fn rendered(options: &BenchOverload) -> (Vec<u8>, Vec<[usize; 2]>) {
    let filling = "x".repeat(options.body_bytes as usize);
    let nil = Uuid::nil();
    let mut body = String::from(r#"{"post":["#);
    let mut ids = Vec::new();
    for nth in 0..options.runs {
        body.push_str(if nth == 0 { r#"{"id":""# } else { r#",{"id":""# });
        let id = body.len();
        body.push_str(&nil.to_string());
        body.push_str(r#"","trace_id":""#);
        ids.push([id, body.len()]);
        let rest = format!(
            r#"{nil}","name":"bench","run_type":"chain","session_name":"bench overload","start_time":"2026-01-01T00:00:00Z","inputs":{{"text":"{filling}"}}}}"#
        );
        body.push_str(&rest);
    }
    body.push_str("]}");
    (body.into_bytes(), ids)
}

async fn send_at(request: reqwest::RequestBuilder, appointed: Instant) -> RequestOutcome {
    let Ok(answer) = request.send().await else {
        return RequestOutcome::Lost;
    };
    let status = answer.status();
    let wait = answer
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    // Read to its end, so that the connection can be reused.
    if answer.bytes().await.is_err() {
        return RequestOutcome::Lost;
    }
    match status.as_u16() {
        202 => RequestOutcome::Accepted(appointed.elapsed()),
        429 | 503 => RequestOutcome::Refused(wait.unwrap_or(0)),
        other => RequestOutcome::Other(other),
    }
}

impl LoadResult {
    fn count(&mut self, fate: RequestOutcome) {
        match fate {
            RequestOutcome::Accepted(latency) => self.latencies.push(latency),
            RequestOutcome::Refused(wait) => *self.refusals.entry(wait).or_default() += 1,
            RequestOutcome::Other(status) => *self.others.entry(status).or_default() += 1,
            RequestOutcome::Lost => self.lost += 1,
        }
    }

    pub(super) const fn duration(&self) -> Duration {
        self.took
    }

    pub(super) fn accepted(&self) -> usize {
        self.latencies.len()
    }

    /// Accepted requests per second of the phase.
    pub(super) fn goodput(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }

    pub(super) fn offered_rate(&self) -> f64 {
        self.offered as f64 / self.took.as_secs_f64()
    }

    pub(super) fn refused(&self) -> u64 {
        self.refusals.values().sum()
    }

    /// Refusals without Retry-After.
    pub(super) fn without_retry_after(&self) -> u64 {
        self.refusals.get(&0).copied().unwrap_or(0)
    }

    pub(super) fn longest_wait(&self) -> u64 {
        self.refusals.keys().next_back().copied().unwrap_or(0)
    }

    pub(super) fn others(&self) -> u64 {
        self.others.values().sum()
    }

    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) const fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Quantile of the latencies of accepted requests, in milliseconds; 0 if there are none.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(at).map_or(0.0, |latency| latency.as_secs_f64() * 1000.0)
    }

    /// Summary of all requests that were not accepted.
    pub(super) fn rejections(&self) -> String {
        format!(
            "refused {}, other statuses {:?}, no answer {}",
            self.refused(),
            self.others,
            self.lost
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates_are_told_apart() {
        let mut seen = LoadResult {
            took: Duration::from_secs(2),
            ..LoadResult::default()
        };
        for millis in 1..=100 {
            seen.count(RequestOutcome::Accepted(Duration::from_millis(millis)));
        }
        for wait in [0, 3, 3] {
            seen.count(RequestOutcome::Refused(wait));
        }
        seen.count(RequestOutcome::Other(500));
        seen.count(RequestOutcome::Lost);
        assert!((seen.goodput() - 50.0).abs() < 0.001);
        assert_eq!(
            (seen.refused(), seen.without_retry_after(), seen.longest_wait()),
            (3, 1, 3)
        );
        assert_eq!((seen.others(), seen.lost()), (1, 1));
        assert!((seen.quantile(0.99) - 100.0).abs() < 0.001, "{}", seen.quantile(0.99));
    }
}
