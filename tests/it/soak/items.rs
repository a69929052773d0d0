//! Items of the long-term store.

use reqwest::Method;
use serde_json::{Value, json};
use towpath_tests::Random;

use super::client::Request;
use super::day::{AcknowledgedWork, Day};

/// Items that every round writes again and that have no end.
const LASTING: u64 = 8;

/// An item as its last acknowledged change left it.
pub struct Item {
    key: String,
    /// Absent: it was deleted.
    value: Option<Value>,
}

pub async fn write(day: &Day<'_>, dice: &mut Random) {
    let value = json!({ "round": day.number, "n": dice.below(1 << 40), "text": "ünï ✓" });
    let lasting = dice.one_in(3);
    let mut item = json!({ "namespace": ["soak"], "value": value });
    // One round's steps may write the same lasting item at the same time, so no one knows what it holds; others have
    // the key for themselves.
    let key = if lasting {
        item["ttl"] = Value::Null;
        format!("lasting {}", dice.below(LASTING))
    } else {
        format!("{:016x}", dice.next_u64())
    };
    item["key"] = json!(key);
    let put = Request::json(Method::PUT, "/store/items", &item);
    if day.agents.insist(&put, &[204]).await.is_none() || lasting {
        return;
    }
    let mut written = Item {
        key,
        value: Some(value),
    };
    if dice.one_in(3) {
        let body = json!({ "namespace": ["soak"], "key": written.key });
        let delete = Request::json(Method::DELETE, "/store/items", &body);
        if day.agents.insist(&delete, &[204]).await.is_none() {
            return;
        }
        written.value = None;
    }
    day.acknowledged.borrow_mut().items.push(written);
}

pub async fn check(day: &Day<'_>, told: &AcknowledgedWork) {
    for Item { key, value } in &told.items {
        let said = day.agents.read(format!("/store/items?namespace=soak&key={key}")).await;
        let found = said.body.get("value");
        if found != value.as_ref() {
            day.wrong(&format!("item {key} is {said}, in place of {value:?}"));
        }
    }
}
