//! Requests at appointed times, and what became of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use crate::arguments::BenchOverload;

/// A client that has waited for so long goes away.
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests of this generator under way at once. More is counted as not sent: the figure must be zero, or the
/// generator is what was measured.
const UNDER_WAY: usize = 8192;
/// Who waits for answers comes back after a refusal so late: sooner than asked for, or the server would not stay full.
const AFTER_REFUSAL: Duration = Duration::from_millis(50);

/// One server, one key, one body but for the ids in it.
pub(super) struct Load {
    http: reqwest::Client,
    url: String,
    metrics: String,
    body: Vec<u8>,
    /// Where in the body each trace run's ids stand.
    ids: Vec<[usize; 2]>,
    places: Arc<Semaphore>,
}

/// What became of the requests of one phase.
#[derive(Default)]
pub(super) struct Seen {
    took: Duration,
    offered: u64,
    unsent: u64,
    lost: u64,
    /// Retry-After in seconds to how often; 0 stands for none.
    refusals: BTreeMap<u64, u64>,
    others: BTreeMap<u16, u64>,
    /// Of accepted requests.
    latencies: Vec<Duration>,
}

#[derive(Clone, Copy)]
enum Fate {
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
            .timeout(PATIENCE)
            .build()?;
        let (body, ids) = rendered(options);
        Ok(Self {
            http,
            url: format!("{base}/runs/batch"),
            metrics: format!("{base}/metrics"),
            body,
            ids,
            places: Arc::new(Semaphore::new(UNDER_WAY)),
        })
    }

    /// `rate` requests per second for as long as `span`, each at its time.
    pub(super) async fn offer(&self, rate: f64, span: Duration) -> Seen {
        let began = Instant::now();
        let mut requests = JoinSet::new();
        let mut seen = Seen::default();
        let wanted = (rate * span.as_secs_f64()) as u64;
        while seen.offered < wanted {
            // A timer has whole milliseconds; whatever is due by now goes out at once.
            tokio::time::sleep(Duration::from_millis(1)).await;
            let due = ((began.elapsed().as_secs_f64() * rate) as u64).min(wanted);
            while seen.offered < due {
                let appointed = began + Duration::from_secs_f64(seen.offered as f64 / rate);
                seen.offered += 1;
                match Arc::clone(&self.places).try_acquire_owned() {
                    Ok(place) => {
                        let request = self.request();
                        requests.spawn(async move {
                            let fate = fate(request, appointed).await;
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

    /// As much as `senders` bring that each wait for their answer, and a moment after a refusal.
    pub(super) async fn saturate(&self, senders: usize, span: Duration) -> Seen {
        self.send(senders, span, false).await
    }

    /// As [`Load::saturate`], until the first refusal.
    pub(super) async fn fill(&self, senders: usize, longest: Duration) -> Seen {
        self.send(senders, longest, true).await
    }

    /// Requests whose trace runs are folded, counted from the server's start.
    pub(super) async fn folded(&self) -> anyhow::Result<f64> {
        let runs = self.metric("towpath_folded_operations_total").await?;
        Ok(runs / self.ids.len() as f64)
    }

    /// Waits until hardly anything waits to be folded; answers how long that took.
    pub(super) async fn rest(&self, longest: Duration) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let before = self.folded().await?;
            // Longer than a fold waits for company.
            tokio::time::sleep(Duration::from_secs(4)).await;
            if self.folded().await? <= before {
                return Ok(began.elapsed());
            }
            anyhow::ensure!(began.elapsed() < longest, "the server still folds what it accepted");
        }
    }

    async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let text = self.http.get(&self.metrics).send().await?.text().await?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        Ok(line
            .and_then(|rest| rest.rsplit(' ').next()?.parse().ok())
            .unwrap_or_default())
    }

    async fn send(&self, senders: usize, span: Duration, until_refused: bool) -> Seen {
        let began = Instant::now();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let sending = (0..senders).map(|_| {
            let seen = Arc::clone(&seen);
            async move {
                while began.elapsed() < span {
                    let fate = fate(self.request(), Instant::now()).await;
                    let refused = {
                        let mut seen = seen.lock().expect("no holder of it panics");
                        seen.offered += 1;
                        seen.count(fate);
                        seen.refused() > 0
                    };
                    if refused && until_refused {
                        return;
                    }
                    if matches!(fate, Fate::Refused(_)) {
                        tokio::time::sleep(AFTER_REFUSAL).await;
                    }
                }
            }
        });
        futures::future::join_all(sending).await;
        let mut seen = std::mem::take(&mut *seen.lock().expect("no holder of it panics"));
        seen.took = began.elapsed();
        seen
    }

    /// New trace runs.
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

/// A body, and where the ids of its trace runs stand. Rendered once: making text is not what is measured.
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

async fn fate(request: reqwest::RequestBuilder, appointed: Instant) -> Fate {
    let Ok(answer) = request.send().await else {
        return Fate::Lost;
    };
    let status = answer.status();
    let wait = answer
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    // Read to its end, so that the connection serves again.
    if answer.bytes().await.is_err() {
        return Fate::Lost;
    }
    match status.as_u16() {
        202 => Fate::Accepted(appointed.elapsed()),
        429 | 503 => Fate::Refused(wait.unwrap_or(0)),
        other => Fate::Other(other),
    }
}

impl Seen {
    fn count(&mut self, fate: Fate) {
        match fate {
            Fate::Accepted(latency) => self.latencies.push(latency),
            Fate::Refused(wait) => *self.refusals.entry(wait).or_default() += 1,
            Fate::Other(status) => *self.others.entry(status).or_default() += 1,
            Fate::Lost => self.lost += 1,
        }
    }

    pub(super) const fn took(&self) -> Duration {
        self.took
    }

    pub(super) fn accepted(&self) -> usize {
        self.latencies.len()
    }

    /// Accepted per second of the phase.
    pub(super) fn goodput(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }

    pub(super) fn offered_rate(&self) -> f64 {
        self.offered as f64 / self.took.as_secs_f64()
    }

    pub(super) fn refused(&self) -> u64 {
        self.refusals.values().sum()
    }

    /// Refused without being told when to come back.
    pub(super) fn untold(&self) -> u64 {
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

    /// Of the latencies of accepted requests, in milliseconds; 0 where there are none.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(at).map_or(0.0, |latency| latency.as_secs_f64() * 1000.0)
    }

    /// Everything that was not accepted.
    pub(super) fn told(&self) -> String {
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
        let mut seen = Seen {
            took: Duration::from_secs(2),
            ..Seen::default()
        };
        for millis in 1..=100 {
            seen.count(Fate::Accepted(Duration::from_millis(millis)));
        }
        for wait in [0, 3, 3] {
            seen.count(Fate::Refused(wait));
        }
        seen.count(Fate::Other(500));
        seen.count(Fate::Lost);
        assert!((seen.goodput() - 50.0).abs() < 0.001);
        assert_eq!((seen.refused(), seen.untold(), seen.longest_wait()), (3, 1, 3));
        assert_eq!((seen.others(), seen.lost()), (1, 1));
        assert!((seen.quantile(0.99) - 100.0).abs() < 0.001, "{}", seen.quantile(0.99));
    }
}
