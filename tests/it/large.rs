//! The largest that clients send: a trace of 25,000 runs, and a body of 20 MB.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use towpath_tests::{World, until};
use uuid::Uuid;

const RUNS: u32 = 25_000;
const RUNS_PER_BODY: usize = 2_500;
const LARGE: usize = 20 << 20;
/// Debug builds on a busy machine are slow; what grows with the square of the runs takes longer than this.
const BOUND: Duration = Duration::from_secs(90);
const BOUNDARY: &str = "large-boundary";

fn id(number: u32) -> Uuid {
    Uuid::from_u128(0x0194_fdc2_0000_7000_8000_0000_0000_0000 + u128::from(number))
}

/// The root, and what is called below it: every hundredth by the root, the others by the one before.
fn run(number: u32) -> Value {
    let link = |number: u32| format!("20260301T10{:02}{:02}000000Z{}", number / 1000, number % 60, id(number));
    let middle = number - number % 100;
    let mut order = link(0);
    let mut run = json!({
        "id": id(number), "trace_id": id(0), "session_name": "large", "name": format!("run {number}"),
        "run_type": "chain", "start_time": format!("2026-03-01T10:{:02}:{:02}Z", number / 1000, number % 60),
        "inputs": {"n": number},
    });
    for below in BTreeSet::from([middle, number]).into_iter().filter(|below| *below > 0) {
        order = format!("{order}.{}", link(below));
    }
    if number > 0 {
        run["parent_run_id"] = json!(if number == middle { id(0) } else { id(middle) });
    }
    run["dotted_order"] = json!(order);
    run
}

#[tokio::test]
async fn a_trace_of_25000_runs_is_read_page_by_page_and_counted() {
    let world = World::embedded().await;
    let began = Instant::now();
    let all: Vec<u32> = (0..RUNS).collect();
    for numbers in all.chunks(RUNS_PER_BODY) {
        let post: Vec<Value> = numbers.iter().copied().map(run).collect();
        world
            .api
            .post("/runs/batch", &json!({ "post": post }))
            .await
            .expect(202);
    }
    let mut seen = BTreeSet::new();
    let mut cursor = Value::Null;
    loop {
        let asked = json!({
            "trace_id": id(0), "page_size": 1000, "cursor": cursor, "selects": ["ID", "PARENT_RUN_IDS", "INPUTS"],
        });
        // So much is left to the fold; a reader that would have to fold it itself is told 503.
        let page = until("a page", BOUND, async || {
            let reply = world.api.post("/api/v2/runs/query", &asked).await;
            (reply.status != 503).then(|| reply.expect(200))
        })
        .await;
        for run in page["items"].as_array().expect("a page") {
            let number = u32::try_from(run["inputs"]["n"].as_u64().expect("its number")).expect("a small one");
            assert_eq!(run["id"], json!(id(number)));
            let ancestors = [0, number - number % 100];
            let above: BTreeSet<Uuid> = ancestors.into_iter().filter(|above| *above != number).map(id).collect();
            assert_eq!(run["parent_run_ids"], json!(above), "run {number}");
            assert!(seen.insert(number), "run {number} came twice");
        }
        cursor = page["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(seen.len(), RUNS as usize);
    let stats = world
        .api
        .post("/runs/stats", &json!({ "trace": id(0) }))
        .await
        .expect(200);
    assert_eq!(stats["run_count"], RUNS);
    assert!(began.elapsed() < BOUND, "it took {:?}", began.elapsed());
    world.stop().await;
}

#[tokio::test]
async fn a_body_of_20_mb_is_taken_read_back_and_exported() {
    let world = World::embedded().await;
    let began = Instant::now();
    let own = id(1);
    let head = json!({
        "id": own, "trace_id": own, "dotted_order": format!("20260301T100000000000Z{own}"), "session_name": "large",
        "name": "large", "run_type": "llm", "start_time": "2026-03-01T10:00:00Z", "end_time": "2026-03-01T10:00:01Z",
    });
    // Nothing that repeats itself early, so that it stays large however it is packed.
    let words = (0_u32..).map(|n| format!("{:08x}", n.wrapping_mul(2_654_435_761)));
    let text: String = words.take(LARGE / 8 - 1024).collect();
    let inputs = json!({ "text": text }).to_string();
    let part = |name: String, data: &str| {
        let length = data.len();
        format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{data}\r\n"
        )
    };
    let body = part(format!("post.{own}"), &head.to_string()) + &part(format!("post.{own}.inputs"), &inputs);
    let body = format!("{body}--{BOUNDARY}--\r\n");
    assert!(body.len() > 19 << 20);
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let sent = world
        .api
        .send("/runs/multipart", &[("content-type", &kind)], body.into())
        .await;
    sent.expect("an answer").expect(202);
    // So much of it waits for the fold rather than being folded by the reader.
    let read = until("the run to be read", BOUND, async || {
        let reply = world.api.get(&format!("/runs/{own}")).await;
        (reply.status != 503).then(|| reply.expect(200))
    })
    .await;
    assert!(read["inputs"]["text"] == json!(text), "every byte of it");

    let destination = world.api.file_destination("large").await;
    let asked = json!({
        "bulk_export_destination_id": destination, "session_id": read["session_id"],
        "start_time": "2026-03-01T00:00:00Z", "end_time": "2026-03-02T00:00:00Z",
    });
    let export = world.api.post("/api/v1/bulk-exports", &asked).await.expect(200);
    let export = export["id"].as_str().expect("an id").to_owned();
    assert_eq!(world.api.export_ended(&export, BOUND).await["status"], "COMPLETED");
    let rows = towpath_tests::read_rows(&towpath_tests::parquet_files(&world.exports().join("large")));
    assert_eq!(rows.len(), 1);
    assert!(rows[0]["inputs"] == json!({ "text": text }));
    assert!(began.elapsed() < BOUND, "it took {:?}", began.elapsed());
    world.stop().await;
}
