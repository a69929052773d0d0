//! Readers that resume before events which are no longer stored.

use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use towpath_api::serve;
use towpath_domain::agent::RunStatus;
use towpath_domain::{RunId, ThreadId};
use towpath_store::run_events;

use super::super::{Agent, PATIENCE, frame, on_both_databases};
use super::{ReceivedEvent, ended, open, whole};

on_both_databases!(
    a_reader_that_resumes_before_removed_events_is_told,
    a_socket_that_resumes_before_removed_events_is_refused,
);

const CHANNELS: [&str; 2] = ["values", "lifecycle"];

/// 2025-06-01 in Unix milliseconds. Numbers of events follow the ids of their frames since 2025.
const JUNE_MS: i64 = 1_748_736_000_000;

/// Logs the events of a whole run, which begins so many milliseconds after [`JUNE_MS`].
async fn log_run(agent: &Agent, thread: ThreadId, at: i64) -> RunId {
    let run = agent.record(thread, &json!({"stream_resumable": true})).await;
    let frames = [1, 2].map(|number| {
        let ms = JUNE_MS + at + number;
        frame(run, number, ms, "values", &json!({ "at": at + number }))
    });
    agent.log(thread, &frames).await;
    let end = ended(run, JUNE_MS + at + 3, 2, RunStatus::Success);
    agent.log(thread, &[end]).await;
    run
}

/// Removes the events of a run, as the sweep does once they have expired.
async fn remove(agent: &Agent, thread: ThreadId, run: RunId) {
    let removed = agent.store.write(async |tx| {
        let past = tx.now().minus(Duration::from_secs(1));
        run_events::expire(tx, agent.tenant, thread, run, past).await?;
        run_events::prune(tx, 100).await
    });
    assert_eq!(removed.await.unwrap(), 2);
}

/// A thread with two runs, and the events of both. Those of the first run are no longer stored; `agent.router` still has
/// them in memory.
async fn thread_with_removed_run(
    agent: &Agent,
) -> (ThreadId, Vec<ReceivedEvent>, Vec<ReceivedEvent>, super::OpenResponse) {
    let thread = agent.thread().await;
    let run = log_run(agent, thread, 10).await;
    let mut live = open(&agent.router, thread, &CHANNELS, None).await;
    let removed = whole(&mut live).await;
    assert_eq!(removed.len(), 4, "{removed:?}");
    remove(agent, thread, run).await;
    log_run(agent, thread, 20).await;
    let stored = whole(&mut live).await;
    (thread, removed, stored, live)
}

fn check_gap(gap: &Value, since: i64, removed: &[ReceivedEvent]) {
    assert_eq!(
        (&gap["type"], &gap["error"]),
        (&json!("error"), &json!("resume_gap")),
        "{gap}"
    );
    assert_eq!(gap["since"], since);
    let available = gap["min_available_seq"].as_i64().unwrap();
    assert_eq!(available, removed.last().unwrap().seq + 1, "{gap}");
}

async fn a_reader_that_resumes_before_removed_events_is_told(agent: Agent) {
    let (thread, removed, stored, _live) = thread_with_removed_run(&agent).await;
    for event in &removed[..3] {
        let mut stream = open(&agent.beside(), thread, &CHANNELS, Some(event.seq)).await;
        let (name, gap) = stream.next().await.expect("an error");
        assert_eq!((name.as_str(), &gap["id"]), ("error", &Value::Null));
        check_gap(&gap, event.seq, &removed);
        assert_eq!(
            whole(&mut stream).await,
            stored,
            "the stream continues with what is stored"
        );
    }
    // These miss nothing, or ask for what is stored.
    for since in [None, Some(0), Some(removed[3].seq)] {
        let mut stream = open(&agent.beside(), thread, &CHANNELS, since).await;
        assert_eq!(whole(&mut stream).await, stored, "since {since:?}");
    }
    // This process still has the events.
    let mut here = open(&agent.router, thread, &CHANNELS, Some(removed[0].seq)).await;
    assert_eq!(whole(&mut here).await, removed[1..]);
}

type Socket = WebSocketStream<TcpStream>;

/// The next message, which is no ping.
async fn receive(socket: &mut Socket) -> Value {
    loop {
        let next = tokio::time::timeout(PATIENCE, socket.next()).await;
        let next = next.unwrap_or_else(|_| panic!("waited {PATIENCE:?} in vain for a message"));
        if let Message::Text(text) = next.expect("the socket is open").unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

async fn subscribe(socket: &mut Socket, id: i64, method: &str, since: i64) -> Value {
    let params = json!({"channels": CHANNELS, "since": since});
    let command = json!({"id": id, "method": method, "params": params});
    socket.send(Message::text(command.to_string())).await.unwrap();
    receive(socket).await
}

async fn a_socket_that_resumes_before_removed_events_is_refused(agent: Agent) {
    let (thread, removed, stored, _live) = thread_with_removed_run(&agent).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let server = tokio::spawn(serve(listener, agent.beside(), shutdown.clone(), PATIENCE));
    let url = format!("ws://{address}/threads/{thread}/stream/events");
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
    for (id, method) in [(1, "subscription.reconnect"), (2, "subscription.subscribe")] {
        let refused = subscribe(&mut socket, id, method, removed[0].seq).await;
        assert_eq!(refused["id"], id);
        assert!(refused["meta"]["applied_through_seq"].is_i64(), "{refused}");
        check_gap(&refused, removed[0].seq, &removed);
    }
    // Nothing was opened: the next subscription begins where it says.
    let opened = subscribe(&mut socket, 3, "subscription.reconnect", removed[3].seq).await;
    assert_eq!(
        (&opened["type"], &opened["id"]),
        (&json!("success"), &json!(3)),
        "{opened}"
    );
    for event in &stored {
        let received = receive(&mut socket).await;
        assert_eq!(
            (received["seq"].as_i64(), &received["event_id"]),
            (Some(event.seq), &json!(event.id))
        );
    }
    drop(socket);
    shutdown.cancel();
    server.await.unwrap().unwrap();
}
