//! Filters and lists of ids of any size, on both databases.

use serde_json::{Map, Value, json};
use towpath_domain::agent::namespace::Namespace;
use towpath_domain::{Rejection, TenantId, ThreadId};
use towpath_store::checkpoints::{self, ThreadNamespace};
use towpath_store::threads::{self, Filter};
use towpath_store::{Error, Result, assistants, items};

use super::{migrated, thread};
use crate::database::Database;

on_both!(
    large_filters_are_refused_and_others_mean_what_they_say,
    filters_are_combined,
    any_number_of_ids_may_be_asked_for
);

fn keys(count: usize) -> Value {
    (0..count)
        .map(|nth| (format!("key {nth}"), json!(nth)))
        .collect::<Map<_, _>>()
        .into()
}

fn rejected<T: std::fmt::Debug>(found: Result<T>) -> Rejection {
    match found {
        Err(Error::Rejected(rejection)) => rejection,
        other => panic!("{other:?}"),
    }
}

/// `{"a": {"a": …}}`, or `{"a": [[…]]}`.
fn nested(levels: usize, lists: bool) -> Value {
    let inner = (1..levels).fold(
        json!(1),
        |inner, _| if lists { json!([inner]) } else { json!({"a": inner}) },
    );
    json!({"a": inner})
}

async fn filters_are_combined(database: Database) {
    let store = &database.store;
    let tenant = TenantId::new();
    for metadata in [
        json!({"owner": "ann", "kind": "x"}),
        json!({"owner": "bob", "kind": "x", "teams": ["a", "b"]}),
        json!({"owner": "bob", "kind": "y", "teams": ["b"]}),
        json!({"$or": "a text"}),
    ] {
        thread(store, tenant, &metadata).await;
    }
    let count = async |metadata: Value| {
        let filter = Filter {
            metadata: Some(metadata),
            ..Filter::default()
        };
        store.read(async |tx| threads::count(tx, tenant, &filter).await).await
    };
    let either = json!({"$or": [{"owner": "ann"}, {"teams": ["b"], "kind": "x"}]});
    for (metadata, expected) in [
        (either.clone(), 2),
        (json!({"$and": [{"owner": "bob"}, either]}), 1),
        (json!({"kind": "x", "$or": [{"teams": ["a"]}, {"teams": ["b"]}]}), 1),
        (
            json!({"$or": [{"$and": [{"owner": "bob"}, {"kind": "y"}]}, {"owner": "ann"}]}),
            2,
        ),
        (json!({"$or": [{}]}), 4),
        (json!({"$or": []}), 0),
        (json!({"$and": []}), 4),
        // Without a list it is a member like others.
        (json!({"$or": "a text"}), 1),
    ] {
        assert_eq!(count(metadata.clone()).await.unwrap(), expected, "{metadata}");
    }
    let deep = (0..5).fold(json!({}), |inner, _| json!({ "$or": [inner] }));
    let many: Vec<Value> = (0..101).map(|nth| json!({ "n": nth })).collect();
    let large: Vec<Value> = (0..11).map(|_| keys(100)).collect();
    for (metadata, message) in [
        (json!({"$or": [1]}), "$or: expected a list of objects"),
        (deep, "$or: expected at most"),
        (json!({ "$and": many }), "$and: expected at most"),
        (json!({ "$or": large }), "expected a filter of at most"),
        (json!({"$or": [{"a": "\0"}]}), "expected keys and texts without NUL"),
    ] {
        let refused = rejected(count(metadata.clone()).await);
        assert_eq!(refused.field, "metadata");
        assert!(refused.message.starts_with(message), "{metadata}: {}", refused.message);
    }
}

async fn large_filters_are_refused_and_others_mean_what_they_say(database: Database) {
    let store = &database.store;
    let tenant = TenantId::new();
    let many = keys(1000);
    let list = json!({"list": (0..999).collect::<Vec<_>>()});
    let (deep, lists) = (nested(60, false), nested(7, true));
    for value in [&many, &list, &deep, &lists] {
        thread(store, tenant, value).await;
        let filter = Filter {
            metadata: Some(value.clone()),
            ..Filter::default()
        };
        let found = store.read(async |tx| threads::count(tx, tenant, &filter).await).await;
        assert_eq!(found.unwrap(), 1, "one thread has this");
    }
    let too_large = "expected a filter of at most";
    let with_nul = "expected keys and texts without NUL";
    let refusals = [
        (keys(1001), too_large),
        (keys(40_000), too_large),
        (nested(100, false), too_large),
        (nested(30, true), too_large),
        (json!({"a": "\0"}), with_nul),
        (json!({"a": [{"b\0": 1}]}), with_nul),
    ];
    for (large, message) in refusals {
        for field in ["metadata", "values"] {
            let filter = Some(large.clone());
            let filter = match field {
                "metadata" => Filter {
                    metadata: filter,
                    ..Filter::default()
                },
                _ => Filter {
                    values: filter,
                    ..Filter::default()
                },
            };
            let found = store.read(async |tx| threads::count(tx, tenant, &filter).await).await;
            let refused = rejected(found);
            assert_eq!(refused.field, field);
            assert!(refused.message.starts_with(message), "{}", refused.message);
        }
        let which = assistants::Filter {
            metadata: large.as_object().unwrap().clone(),
            ..assistants::Filter::default()
        };
        let found = store.read(async |tx| assistants::count(tx, tenant, &which).await).await;
        assert_eq!(rejected(found).field, "metadata");
        let place = ThreadNamespace {
            thread: ThreadId::new(),
            ns: "",
        };
        let found = store
            .read(async |tx| checkpoints::list(tx, place, None, Some(&large), 1).await)
            .await;
        assert_eq!(rejected(found).field, "metadata");
    }

    let space = Namespace::new("namespace", vec!["users".to_owned()]).unwrap();
    let value = many.to_string();
    store
        .write(async |tx| items::put(tx, tenant, &space, "many", &value, None, None).await)
        .await
        .unwrap();
    let search = async |filter: &Value| {
        let filter = filter.as_object().unwrap();
        store
            .read(async |tx| items::search(tx, tenant, &space, filter, 10, 0).await)
            .await
    };
    assert_eq!(search(&many).await.unwrap().len(), 1);
    let other = json!({"key 0": 0, "key 999": {"$lt": 999}});
    assert_eq!(search(&other).await.unwrap().len(), 0);
    for large in [keys(1001), keys(40_000), nested(11, false)] {
        assert_eq!(rejected(search(&large).await).field, "filter");
    }
    let value = json!({"in": {"qu\"o\\te": {"a,b": {"{c}": 1, "": 2}}}});
    let text = value.to_string();
    store
        .write(async |tx| items::put(tx, tenant, &space, "odd", &text, None, None).await)
        .await
        .unwrap();
    assert_eq!(search(&value).await.unwrap().len(), 1, "keys need no quoting");
}

async fn any_number_of_ids_may_be_asked_for(database: Database) {
    // More than either database takes parameters.
    const MANY: usize = 70_000;
    let store = &database.store;
    let tenant = TenantId::new();
    let there = thread(store, tenant, &json!({})).await;
    let ids = (0..MANY).map(|_| ThreadId::new()).chain([there]).collect();
    let filter = Filter {
        ids: Some(ids),
        ..Filter::default()
    };
    let found = store.read(async |tx| threads::count(tx, tenant, &filter).await).await;
    assert_eq!(found.unwrap(), 1);
    let names: Vec<String> = (0..MANY).map(|nth| nth.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let place = ThreadNamespace { thread: there, ns: "" };
    let found = store
        .read(async |tx| checkpoints::writes(tx, place, &names).await)
        .await;
    assert_eq!(found.unwrap().len(), 0);
}
