//! Crons that come and go: each lives over one night, in which it fires.

use serde_json::json;
use towpath_tests::{Random, rfc3339};

use super::client::{Client, Request};
use super::day::{AcknowledgedWork, Day};

/// Letters of a time without its fraction, which both sides write alike.
const SECONDS: usize = "2026-02-27T01:02:03".len();

pub async fn make(day: &Day<'_>, dice: &mut Random) {
    let minutes = 1 + dice.below(59);
    let body = json!({
        "assistant_id": "agent", "schedule": format!("*/{minutes} * * * *"), "metadata": { "round": day.number },
        "input": { "messages": [{ "role": "user", "content": "cron" }] },
    });
    let request = Request::post("/runs/crons", &body);
    let Some(said) = day.agents.once(&request).await else {
        return;
    };
    match (said.status, said.body["cron_id"].as_str()) {
        (200, Some(cron)) => day.acknowledged.borrow_mut().crons.push(cron.to_owned()),
        (429 | 503, _) => {}
        _ => day.wrong(&format!("{request}: {said}")),
    }
}

/// Every cron that was acknowledged has fired since `night`, in microseconds.
pub async fn check(day: &Day<'_>, told: &AcknowledgedWork, night: i64) {
    let night = rfc3339(night);
    for cron in &told.crons {
        let said = day.agents.read(format!("/runs/crons/{cron}")).await;
        let next = said.body["next_run_date"].as_str().unwrap_or_default();
        if next.get(..SECONDS) <= night.get(..SECONDS) {
            day.wrong(&format!("cron {cron} has not fired since {night}: {said}"));
        }
    }
}

/// Deletes all crons, also those whose answers were lost.
pub async fn delete_all(agents: &Client) {
    let search = Request::post("/runs/crons/search", &json!({ "limit": 1000 }));
    let Some(found) = agents.insist(&search, &[200]).await else {
        return;
    };
    for cron in found.body.as_array().into_iter().flatten() {
        let id = cron["cron_id"].as_str().unwrap_or_default();
        agents
            .insist(&Request::delete(format!("/runs/crons/{id}")), &[204, 404])
            .await;
    }
}
