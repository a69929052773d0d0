//! Searches of the store by meaning, without and with an index.

use http::Method;
use serde_json::json;
use towpath_runtime::Embedder;
use towpath_store::item_vectors;
use towpath_workflows::embed_items;
use towpath_workflows::item_index::IndexSettings;

use super::{Agent, on_both_databases};
use crate::world::{Answer, Call, call};

on_both_databases!(
    a_query_needs_an_index,
    what_is_embedded_is_named_by_paths,
    a_search_says_that_the_index_is_incomplete,
);

const SEARCH: &str = "/store/items/search";

async fn put(agent: &Agent, key: &str, index: &serde_json::Value) -> Answer {
    let item = json!({"namespace": ["pets"], "key": key, "value": {"text": "a cat"}, "index": index});
    call(&agent.router, Call::new(Method::PUT, "/store/items").json(&item)).await
}

fn code() -> IndexSettings {
    IndexSettings {
        dims: 3,
        embed: "./embed.py:embed".to_owned(),
        fields: vec!["$".to_owned()],
        embedder: Embedder::Code,
    }
}

async fn a_query_needs_an_index(agent: Agent) {
    let refused = agent
        .post(SEARCH, &json!({"namespace_prefix": [], "query": "cats"}))
        .await;
    let detail = refused.expect(422)["detail"].clone();
    let detail = detail.as_str().unwrap();
    assert!(
        detail.starts_with("query: ") && detail.contains("store.index"),
        "{detail}"
    );
    // Nothing is to be ranked here.
    for query in [json!(""), json!(null)] {
        let body = json!({"namespace_prefix": ["pets"], "query": query});
        assert_eq!(agent.post(SEARCH, &body).await.expect(200), json!({"items": []}));
    }
}

async fn what_is_embedded_is_named_by_paths(agent: Agent) {
    for index in [json!(null), json!(false), json!(["text", "notes[*].text"])] {
        assert_eq!(put(&agent, "a", &index).await.status, 204, "{index}");
    }
    for index in [json!(["text", ""]), json!(vec!["a"; 101])] {
        let refused = put(&agent, "b", &index).await.expect(422);
        assert!(refused["detail"].as_str().unwrap().starts_with("index: "), "{refused}");
    }
    assert_eq!(put(&agent, "b", &json!(7)).await.status, 422);
    // Without an index nothing is queued.
    let pending = agent
        .store
        .read(async |tx| item_vectors::has_pending(tx, agent.tenant).await);
    assert!(!pending.await.unwrap());
}

async fn a_search_says_that_the_index_is_incomplete(agent: Agent) {
    agent.world.items.configure(Some(code()));
    let query = json!({"namespace_prefix": ["pets"], "query": "cats"});
    let early = agent.post(SEARCH, &query).await;
    assert_eq!(early.expect(200), json!({"items": []}));
    assert_eq!(early.headers["x-towpath-index"], "incomplete");
    agent.world.items.ensure(agent.tenant).await.unwrap();
    assert_eq!(put(&agent, "a", &json!(null)).await.status, 204);
    assert_eq!(put(&agent, "b", &json!(false)).await.status, 204);
    let pending = agent
        .store
        .read(async |tx| item_vectors::pending(tx, agent.tenant, 10, 1 << 20).await);
    let keys: Vec<String> = pending.await.unwrap().into_iter().map(|item| item.key).collect();
    assert_eq!(keys, ["a"]);
    // Nobody has loaded the author's function: the search and the job wait for it.
    let away = agent.post(SEARCH, &query).await;
    assert_eq!(away.status, 503);
    assert!(away.headers.contains_key("retry-after"));
    agent.perform(embed_items::POOL).await;
    let plain = agent.post(SEARCH, &json!({"namespace_prefix": ["pets"]})).await;
    assert_eq!(plain.expect(200)["items"][0]["score"], json!(null));
    assert!(!plain.headers.contains_key("x-towpath-index"));
}
