//! Items are embedded by a job and found by their meaning, on both databases.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value, json};
use towpath_domain::ThreadId;
use towpath_domain::agent::RunStatus;
use towpath_domain::agent::namespace::Namespace;
use towpath_runtime::{Embedder, EmbeddingEndpoint};
use towpath_store::item_vectors::{EmbeddedItem, PendingItem};
use towpath_store::{item_vectors, items};
use towpath_testing::Database;
use towpath_workflows::embed_items::POOL;
use towpath_workflows::item_index::{IndexSettings, ItemSearch, RankedItems, SearchError};
use towpath_workflows::run_agent::Target;

use crate::fixture::migrate;
use crate::server::Server;

macro_rules! on_both {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            use super::{Database, Server, clock, migrate};

            #[tokio::test]
            async fn sqlite() {
                super::$name(Server::with(Database::sqlite(migrate).await, clock(), super::GRAPHS).await).await;
            }

            #[tokio::test]
            async fn postgres() {
                if let Some(database) = Database::postgres(migrate).await {
                    super::$name(Server::with(database, clock(), super::GRAPHS).await).await;
                }
            }
        }
    )*};
}

on_both!(
    items_are_found_by_their_meaning,
    pages_and_filters_rank_alike,
    a_changed_setting_embeds_again,
    an_embedder_that_is_away_delays_and_loses_nothing,
    one_item_that_is_refused_stops_no_other,
    graphs_search_by_meaning,
);

/// Items, dimensions and queries of the figures.
const FIGURES: (u64, usize, u64) = (100_000, 384, 200);

#[tokio::test]
#[ignore = "takes minutes; for figures, with --release and --nocapture"]
async fn figures_on_sqlite() {
    figures(Server::with(Database::sqlite(migrate).await, clock(), GRAPHS).await).await;
}

#[tokio::test]
#[ignore = "takes minutes; for figures, with --release and --nocapture"]
async fn figures_on_postgres() {
    if let Some(database) = Database::postgres(migrate).await {
        figures(Server::with(database, clock(), GRAPHS).await).await;
    }
}

const GRAPHS: &str = r#"{"graphs": {
    "searches": {"native": {"kind": "script", "channels": {"log": "append", "found": "last-value"}, "steps": [
        {"item": {"put": {"namespace": ["pets"], "key": "new", "value": {"text": "a fish"}}}},
        {"item": {"put": {"namespace": ["pets"], "key": "hidden", "value": {"text": "a dog"}, "index": []}}},
        {"item": {"search": {"namespace": ["pets"], "query": "dog", "limit": 2}}, "into": "found"}]}}
}}"#;

fn clock() -> towpath_domain::Clock {
    towpath_domain::Clock::stopped(towpath_domain::Clock::system().now())
}

/// Numbers that look random and are the same each time: items in 1000 groups, as texts about the same things are.
fn noise(seed: u64, dims: usize) -> Vec<f32> {
    let numbers = |seed: u64| -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
        };
        // Sums of several are nearly normal.
        (0..dims).map(|_| (0..6).map(|_| next()).sum::<f32>()).collect()
    };
    let group = numbers(seed % 1000 + 7_000_000);
    let own = numbers(seed + 1);
    group.iter().zip(own).map(|(group, own)| group + own).collect()
}

static ANIMALS: [&str; 4] = ["cat", "dog", "fish", "bird"];

/// Embeds a text by the animals in it: cats, dogs, fishes. A number is embedded as [`noise`].
struct Endpoint {
    base_url: String,
    state: Arc<EndpointState>,
}

#[derive(Default)]
struct EndpointState {
    is_away: AtomicBool,
    texts: Mutex<Vec<String>>,
}

async fn embeddings(State(state): State<Arc<EndpointState>>, body: Bytes) -> (StatusCode, String) {
    if state.is_away.load(Ordering::SeqCst) {
        return (StatusCode::SERVICE_UNAVAILABLE, "away".to_owned());
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    let texts: Vec<String> = serde_json::from_value(body["input"].clone()).unwrap();
    if texts.iter().any(|text| text.contains("poison")) {
        return (StatusCode::BAD_REQUEST, "no poison".to_owned());
    }
    let dims: usize = body["model"].as_str().unwrap().parse().unwrap();
    let embed = |text: &String| -> Vec<f64> {
        if let Ok(seed) = text.parse::<u64>() {
            return noise(seed, dims).into_iter().map(f64::from).collect();
        }
        let count = |animal: &&str| text.matches(*animal).count() as f64 + 0.01;
        ANIMALS.iter().cycle().take(dims).map(count).collect()
    };
    let data: Vec<Value> = texts
        .iter()
        .enumerate()
        .rev()
        .map(|(index, text)| json!({"index": index, "embedding": embed(text)}))
        .collect();
    state.texts.lock().unwrap().extend(texts);
    (StatusCode::OK, json!({"data": data}).to_string())
}

impl Endpoint {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        let state = Arc::<EndpointState>::default();
        let router = Router::new()
            .route("/v1/embeddings", post(embeddings))
            .with_state(state.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { base_url, state }
    }

    /// The model is named like its dimensions.
    fn settings(&self, dims: usize, fields: &[&str]) -> IndexSettings {
        IndexSettings {
            dims,
            embed: format!("openai:{dims}"),
            fields: fields.iter().map(|&field| field.to_owned()).collect(),
            embedder: Embedder::Endpoint(EmbeddingEndpoint {
                base_url: self.base_url.clone(),
                model: dims.to_string(),
                key: None,
            }),
        }
    }

    /// What was embedded since the last call, sorted.
    fn texts(&self) -> Vec<String> {
        let mut texts = std::mem::take(&mut *self.state.texts.lock().unwrap());
        texts.sort();
        texts
    }
}

fn space(dotted: &str) -> Namespace {
    let labels = dotted.split('.').filter(|label| !label.is_empty());
    Namespace::part("namespace", labels.map(str::to_owned).collect()).unwrap()
}

impl Server {
    async fn index(&self, settings: Option<IndexSettings>) {
        self.world.items.configure(settings);
        self.world.items.ensure(self.tenant).await.unwrap();
    }

    async fn put_item(&self, namespace: &str, key: &str, value: &Value, index: Option<&[String]>) {
        let (namespace, value) = (space(namespace), value.to_string());
        self.store()
            .write(async |tx| {
                items::put(tx, self.tenant, &namespace, key, &value, None, index).await?;
                self.world.items.written(tx, self.tenant, &namespace, key, index).await
            })
            .await
            .unwrap();
    }

    /// Performs the job that embeds, if there is one.
    async fn embed(&self) {
        while self.waiting_jobs().await > 0 {
            self.perform_of(POOL).await;
        }
    }

    /// Makes jobs that back off due.
    async fn wake(&self) {
        self.store().clock().advance(Duration::from_secs(60));
        self.hurry().await;
    }

    async fn waiting_jobs(&self) -> i64 {
        self.count("SELECT count(*) FROM job WHERE kind = 'embed_items' AND state = 'ready'")
            .await
    }

    async fn ranked(&self, prefix: &str, query: &str, filter: &Value, limit: usize, offset: usize) -> RankedItems {
        let filter: Map<String, Value> = serde_json::from_value(filter.clone()).unwrap();
        let search = ItemSearch {
            prefix: &space(prefix),
            filter: &filter,
            query,
            limit,
            offset,
        };
        self.world.items.search(self.tenant, search).await.unwrap()
    }

    async fn keys(&self, prefix: &str, query: &str) -> Vec<String> {
        let found = self.ranked(prefix, query, &json!({}), 10, 0).await;
        found.items.into_iter().map(|item| item.key).collect()
    }
}

async fn items_are_found_by_their_meaning(server: Server) {
    let endpoint = Endpoint::start().await;
    let none = Map::new();
    let search = ItemSearch {
        prefix: &space("pets"),
        filter: &none,
        query: "cat",
        limit: 1,
        offset: 0,
    };
    let refused = server.world.items.search(server.tenant, search).await.unwrap_err();
    assert!(matches!(refused, SearchError::NoIndex) && refused.to_string().contains("store.index"));
    // Written before there is a setting.
    server.put_item("pets.ann", "old", &json!({"text": "cat"}), None).await;
    server.index(Some(endpoint.settings(3, &["text", "more[*]"]))).await;
    server
        .put_item(
            "pets.bob",
            "dogs",
            &json!({"text": "dog", "more": ["dog", "cat"]}),
            None,
        )
        .await;
    server.put_item("petshop", "other", &json!({"text": "cat"}), None).await;
    server
        .put_item("pets", "unseen", &json!({"text": "cat"}), Some(&[]))
        .await;
    server
        .put_item(
            "pets",
            "own",
            &json!({"text": "cat", "title": "fish"}),
            Some(&["title".to_owned()]),
        )
        .await;
    server.put_item("pets", "empty", &json!({"n": 1}), None).await;
    assert!(server.ranked("pets", "cat", &json!({}), 10, 0).await.is_incomplete);
    assert_eq!(server.waiting_jobs().await, 1, "one job for all of them");
    server.embed().await;
    endpoint.texts();
    let found = server.ranked("pets", "cat", &json!({}), 10, 0).await;
    assert!(!found.is_incomplete);
    let keys: Vec<&str> = found.items.iter().map(|item| item.key.as_str()).collect();
    assert_eq!(keys, ["old", "dogs", "own"], "the best text of an item counts");
    assert!(
        found.scores[0] > 0.999 && found.scores[1] > 0.999 && found.scores[2] < 0.1,
        "{:?}",
        found.scores
    );
    assert_eq!(endpoint.texts(), ["cat"]);
    assert_eq!(server.keys("pets.bob", "fish").await, ["dogs"]);
    assert_eq!(server.keys("", "cat").await.len(), 4);
    // Written again, deleted, expired.
    server.put_item("pets.ann", "old", &json!({"text": "fish"}), None).await;
    assert_eq!(
        server.keys("pets", "cat").await.len(),
        3,
        "the old vector is there until the new one is"
    );
    server.embed().await;
    assert_eq!(server.keys("pets", "fish").await[2], "dogs");
    let pets = space("pets.bob");
    server
        .store()
        .write(async |tx| items::delete(tx, server.tenant, &pets, "dogs").await)
        .await
        .unwrap();
    assert_eq!(server.keys("pets.bob", "dog").await, Vec::<String>::new());
    server.put_item("pets.bob", "dogs", &json!({"text": "dog"}), None).await;
    server.embed().await;
    assert_eq!(server.keys("pets", "dog").await[0], "dogs");
}

async fn pages_and_filters_rank_alike(server: Server) {
    let endpoint = Endpoint::start().await;
    server.index(Some(endpoint.settings(2, &["$"]))).await;
    for nth in 0..300 {
        // The more dogs, the less alike.
        let text = format!("{}{}", "cat".repeat(50), "dog".repeat(nth));
        let value = json!({"text": text, "nth": nth, "odd": nth % 2 == 1, "last": nth == 299});
        server.put_item("pets", &format!("{nth:03}"), &value, None).await;
    }
    server.embed().await;
    let mut keys = Vec::new();
    for offset in (0..300).step_by(70) {
        let page = server.ranked("pets", "cat", &json!({}), 70, offset).await;
        assert!(page.scores.is_sorted_by(|a, b| a >= b));
        keys.extend(page.items.into_iter().map(|item| item.key));
    }
    let expected: Vec<String> = (0..300).map(|nth| format!("{nth:03}")).collect();
    assert_eq!(keys, expected);
    assert!(server.ranked("pets", "cat", &json!({}), 10, 300).await.items.is_empty());
    let odd = server.ranked("pets", "cat", &json!({"odd": true}), 3, 1).await;
    let odd: Vec<String> = odd.items.into_iter().map(|item| item.key).collect();
    assert_eq!(odd, ["003", "005", "007"]);
    let last = server.ranked("pets", "cat", &json!({"last": true}), 3, 0).await;
    assert_eq!(last.items.len(), 1, "the least alike of all");
}

async fn a_changed_setting_embeds_again(server: Server) {
    let endpoint = Endpoint::start().await;
    server.index(Some(endpoint.settings(2, &["a"]))).await;
    server
        .put_item("pets", "one", &json!({"a": "cat", "b": "dog"}), None)
        .await;
    server
        .put_item("pets", "two", &json!({"a": "dog", "b": "cat"}), None)
        .await;
    server.embed().await;
    assert_eq!(endpoint.texts(), ["cat", "dog"]);
    server.index(Some(endpoint.settings(2, &["a"]))).await;
    assert_eq!(server.waiting_jobs().await, 0, "nothing has changed");
    // Other fields: the old vectors serve until the new ones are there.
    server.index(Some(endpoint.settings(2, &["b"]))).await;
    let found = server.ranked("pets", "cat", &json!({}), 10, 0).await;
    assert!(found.is_incomplete && found.items[0].key == "one");
    server.embed().await;
    assert_eq!(server.keys("pets", "cat").await[0], "two");
    // Other dimensions: they do not. A worker with the old graph file leaves the job alone.
    server.index(Some(endpoint.settings(3, &["b"]))).await;
    assert_eq!(server.keys("pets", "cat").await, Vec::<String>::new());
    server.world.items.configure(Some(endpoint.settings(2, &["b"])));
    server.perform_of(POOL).await;
    assert_eq!(server.waiting_jobs().await, 0);
    server.world.items.configure(Some(endpoint.settings(3, &["b"])));
    server.wake().await;
    server.embed().await;
    let found = server.ranked("pets", "cat", &json!({}), 10, 0).await;
    assert!(!found.is_incomplete && found.items[0].key == "two");
    // No setting any more.
    server.index(None).await;
    server.embed().await;
    for table in ["item_vector", "item_embedding", "item_index"] {
        assert_eq!(
            server.count(&format!("SELECT count(*) FROM {table}")).await,
            0,
            "{table}"
        );
    }
}

async fn an_embedder_that_is_away_delays_and_loses_nothing(server: Server) {
    let endpoint = Endpoint::start().await;
    server.index(Some(endpoint.settings(2, &["$"]))).await;
    endpoint.state.is_away.store(true, Ordering::SeqCst);
    server.put_item("pets", "one", &json!({"a": "cat"}), None).await;
    server.perform_of(POOL).await;
    assert_eq!(server.waiting_jobs().await, 0, "it backs off");
    endpoint.state.is_away.store(false, Ordering::SeqCst);
    server.wake().await;
    server.embed().await;
    assert_eq!(server.keys("pets", "cat").await, ["one"]);
    // A search cannot wait.
    endpoint.state.is_away.store(true, Ordering::SeqCst);
    let none = Map::new();
    let search = ItemSearch {
        prefix: &space("pets"),
        filter: &none,
        query: "cat",
        limit: 1,
        offset: 0,
    };
    let refused = server.world.items.search(server.tenant, search).await.unwrap_err();
    assert!(matches!(refused, SearchError::Embed(_)), "{refused}");
}

async fn one_item_that_is_refused_stops_no_other(server: Server) {
    let endpoint = Endpoint::start().await;
    server.index(Some(endpoint.settings(2, &["$"]))).await;
    for (key, text) in [("one", "cat"), ("bad", "poison"), ("two", "dog")] {
        server.put_item("pets", key, &json!({"text": text}), None).await;
    }
    server.embed().await;
    assert_eq!(server.keys("pets", "cat").await, ["one", "two"]);
    let due = async || {
        let due = server
            .store()
            .read(async |tx| item_vectors::has_due(tx, server.tenant).await)
            .await;
        due.unwrap()
    };
    assert!(!due().await, "it is tried again later");
    server.store().clock().advance(Duration::from_secs(120));
    assert!(due().await);
    server.world.items.resume(server.tenant).await.unwrap();
    server.world.items.resume(server.tenant).await.unwrap();
    assert_eq!(server.waiting_jobs().await, 1);
    server.embed().await;
    assert!(!due().await);
    server.put_item("pets", "bad", &json!({"text": "cat"}), None).await;
    server.embed().await;
    assert_eq!(server.keys("pets", "cat").await.len(), 3);
}

async fn graphs_search_by_meaning(server: Server) {
    let endpoint = Endpoint::start().await;
    let thread = ThreadId::new();
    let (run, _events) = server.start(Target::Existing(thread), "searches", json!({})).await;
    server.perform().await;
    assert_eq!(
        server.run(run.id).await.unwrap().status,
        RunStatus::Error,
        "there is no index"
    );
    server.index(Some(endpoint.settings(3, &["text"]))).await;
    server.put_item("pets", "old", &json!({"text": "a dog"}), None).await;
    server.embed().await;
    let (run, _events) = server.start(Target::Existing(thread), "searches", json!({})).await;
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Success);
    assert_eq!(server.waiting_jobs().await, 1, "the graph wrote an item");
    server.embed().await;
    let thread = server.thread(thread).await;
    let values: Value = serde_json::from_str(&thread.current_values.unwrap()).unwrap();
    let found = values["found"].as_array().unwrap();
    let keys: Vec<&Value> = found.iter().map(|item| &item["key"]).collect();
    assert_eq!(json!(keys), json!(["old", "new"]));
    assert!(found[0]["score"].as_f64().unwrap() > 0.9);
}

/// Prints recall and time of searches.
async fn figures(server: Server) {
    let (items, dims, queries) = FIGURES;
    let endpoint = Endpoint::start().await;
    server.index(Some(endpoint.settings(dims, &["text"]))).await;
    let namespace = space("figures");
    let vectors: Vec<Vec<f32>> = (0..items).map(|seed| noise(seed, dims)).collect();
    let keys: Vec<String> = (0..items).map(|seed| format!("{seed:06}")).collect();
    for (keys, vectors) in keys.chunks(500).zip(vectors.chunks(500)) {
        let embedded: Vec<EmbeddedItem> = keys
            .iter()
            .zip(vectors)
            .map(|(key, vector)| EmbeddedItem {
                item: PendingItem {
                    namespace: "figures".to_owned(),
                    key: key.clone(),
                    value: "{}".to_owned(),
                    index_paths: None,
                    attempts: 0,
                },
                vectors: vec![vector.iter().flat_map(|number| number.to_le_bytes()).collect()],
            })
            .collect();
        server
            .store()
            .write(async |tx| {
                for key in keys {
                    items::put(tx, server.tenant, &namespace, key, "{}", None, None).await?;
                    item_vectors::enqueue(tx, server.tenant, &namespace, key).await?;
                }
                item_vectors::save(tx, server.tenant, 1, &embedded).await
            })
            .await
            .unwrap();
    }
    let began = Instant::now();
    server.ranked("figures", "0", &json!({}), 10, 0).await;
    eprintln!("first search, which reads all vectors: {:?}", began.elapsed());
    let (mut times, mut hits) = (Vec::new(), 0);
    for query in 0..queries {
        let seed = 10_000_000 + query * 37;
        let began = Instant::now();
        let found = server.ranked("figures", &seed.to_string(), &json!({}), 10, 0).await;
        times.push(began.elapsed());
        let query = noise(seed, dims);
        let likeness = |vector: &Vec<f32>| {
            let sum: f64 = vector.iter().zip(&query).map(|(a, b)| f64::from(a * b)).sum();
            sum / vector.iter().map(|a| f64::from(a * a)).sum::<f64>().sqrt()
        };
        let mut exact: Vec<(f64, &String)> = vectors.iter().map(likeness).zip(&keys).collect();
        exact.sort_by(|a, b| b.0.total_cmp(&a.0));
        hits += found
            .items
            .iter()
            .filter(|item| exact[..10].iter().any(|(_, key)| **key == item.key))
            .count();
    }
    times.sort();
    let recall = hits as f64 / (10 * times.len()) as f64;
    eprintln!(
        "recall@10 {recall:.3}; p50 {:?}; p99 {:?}",
        times[times.len() / 2],
        times[times.len() * 99 / 100]
    );
    assert!(recall >= 0.95, "{recall}");
}
