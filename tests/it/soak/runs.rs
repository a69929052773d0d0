//! Runs of agents: stateless ones and those of threads, waited for, left alone, streamed and cancelled.
//!
//! A run whose answer was lost may be there or not, so only runs that were acknowledged are looked for.

use reqwest::Method;
use reqwest::header::CONTENT_LOCATION;
use serde_json::{Value, json};
use towpath_tests::Random;
use uuid::Uuid;

use super::client::{ClientResponse, Request};
use super::day::{AcknowledgedWork, Day, uuid};

/// Runs of one conversation.
const TURNS: usize = 3;

/// Runs of a thread, each by its id with what it has to say.
pub struct Conversation {
    thread: Uuid,
    runs: Vec<(String, String)>,
}

/// A stateless run that is waited for. Its state is gone with it, so the answer is all there is of it.
pub async fn wait(day: &Day<'_>, dice: &mut Random) {
    let text = said_by("wait", dice);
    let request = Request::post("/runs/wait", &echo(&text));
    let Some(said) = accepted(day, &request).await else {
        return;
    };
    if speaks(&said.body, &text) {
        return;
    }
    // A caller that waits is told of the end by a hint. Where that is lost, the end is seen when nothing of the run is
    // left; an answer that says so is as good as an empty one. No other error is.
    let error = &said.body["__error__"];
    let is_told = error["error"] == "StreamCut";
    if day.disturbance.keeps_answers() || !(error.is_null() || is_told) {
        day.wrong(&format!("{request} was answered without its state: {said}"));
    }
    day.acknowledged.borrow_mut().without_state += 1;
}

/// A stateless run that no one waits for.
pub async fn background(day: &Day<'_>, dice: &mut Random) {
    let text = said_by("background", dice);
    let request = Request::post("/runs", &echo(&text));
    if let Some(run) = accepted(day, &request).await.and_then(|said| id(&said, "run_id")) {
        day.acknowledged.borrow_mut().stateless_runs.push(run);
    }
}

/// A stateless run whose thread stays.
pub async fn kept(day: &Day<'_>, dice: &mut Random) {
    let text = said_by("kept", dice);
    let mut body = echo(&text);
    body["on_completion"] = json!("keep");
    let Some(said) = accepted(day, &Request::post("/runs", &body)).await else {
        return;
    };
    let thread = id(&said, "thread_id").and_then(|thread| thread.parse().ok());
    if let (Some(thread), Some(run)) = (thread, id(&said, "run_id")) {
        let runs = vec![(run, text)];
        day.acknowledged
            .borrow_mut()
            .conversations
            .push(Conversation { thread, runs });
    }
}

/// A thread with runs that go one after another.
pub async fn conversation(day: &Day<'_>, dice: &mut Random) {
    let Some(thread) = make_thread(day, dice).await else {
        return;
    };
    let mut runs = Vec::new();
    for _ in 0..TURNS {
        let text = said_by("turn", dice);
        let request = Request::post(format!("/threads/{thread}/runs"), &echo(&text));
        if let Some(run) = accepted(day, &request).await.and_then(|said| id(&said, "run_id")) {
            runs.push((run, text));
        }
    }
    day.acknowledged
        .borrow_mut()
        .conversations
        .push(Conversation { thread, runs });
}

/// A run on a thread of its own, read to the end of its stream.
pub async fn stream(day: &Day<'_>, dice: &mut Random) {
    let Some(thread) = make_thread(day, dice).await else {
        return;
    };
    let text = said_by("stream", dice);
    let mut body = echo(&text);
    body["stream_resumable"] = json!(dice.one_in(2));
    let request = Request::post(format!("/threads/{thread}/runs/stream"), &body);
    let Some(said) = accepted(day, &request).await else {
        return;
    };
    let whole = said.text.contains(&text);
    if said.text.contains("event: error") || (day.disturbance.keeps_answers() && !whole) {
        day.wrong(&format!("{request} streamed {said}"));
    }
    let location = said.headers.get(CONTENT_LOCATION);
    let run = location.and_then(|location| location.to_str().ok()?.rsplit('/').next());
    if let Some(run) = run {
        let runs = vec![(run.to_owned(), text)];
        day.acknowledged
            .borrow_mut()
            .conversations
            .push(Conversation { thread, runs });
    }
}

/// A run that would take long, cancelled.
pub async fn cancel(day: &Day<'_>, dice: &mut Random) {
    let Some((thread, run)) = slow_run(day, dice).await else {
        return;
    };
    let wait = dice.below(2);
    let path = format!("/threads/{thread}/runs/{run}/cancel?wait={wait}&action=interrupt");
    // 404: it was cancelled by a request whose answer was lost.
    let request = Request::raw(Method::POST, path, "");
    if day.agents.insist(&request, &[200, 202, 404]).await.is_some() {
        day.acknowledged.borrow_mut().cancelled.push((thread, run));
    }
}

/// A thread that is deleted while a run of it is at work.
pub async fn delete_thread(day: &Day<'_>, dice: &mut Random) {
    let Some((thread, _)) = slow_run(day, dice).await else {
        return;
    };
    let request = Request::delete(format!("/threads/{thread}"));
    if day.agents.insist(&request, &[204, 404]).await.is_some() {
        day.acknowledged.borrow_mut().deleted_threads.push(thread);
    }
}

/// Every run that was acknowledged has ended as it had to, and said what it had to.
pub async fn check(day: &Day<'_>, told: &AcknowledgedWork) {
    for Conversation { thread, runs } in &told.conversations {
        let state = day.agents.read(format!("/threads/{thread}")).await;
        for (run, text) in runs {
            ends(day, *thread, run, "success").await;
            if !speaks(&state.body["values"], text) {
                day.wrong(&format!("run {run} did not say {text:?} on its thread: {state}"));
            }
        }
    }
    for (thread, run) in &told.cancelled {
        ends(day, *thread, run, "interrupted").await;
    }
    for run in &told.stateless_runs {
        let said = day.agents.read(format!("/runs/{run}")).await;
        // It goes with its thread when it ends.
        if said.status != 404 {
            day.wrong(&format!("the stateless run {run} is not over: {said}"));
        }
    }
    for thread in &told.deleted_threads {
        let said = day.agents.read(format!("/threads/{thread}")).await;
        if said.status != 404 {
            day.wrong(&format!("thread {thread} was deleted: {said}"));
        }
    }
}

async fn ends(day: &Day<'_>, thread: Uuid, run: &str, status: &str) {
    let said = day.agents.read(format!("/threads/{thread}/runs/{run}")).await;
    if said.body["status"] != status {
        day.wrong(&format!("run {run} ended otherwise than with {status}: {said}"));
    }
}

/// A thread with an id of the client's own, so that it is there once however often it is asked for.
async fn make_thread(day: &Day<'_>, dice: &mut Random) -> Option<Uuid> {
    let thread = uuid(dice);
    let body = json!({ "thread_id": thread, "if_exists": "do_nothing", "metadata": { "round": day.number } });
    day.agents.insist(&Request::post("/threads", &body), &[200]).await?;
    Some(thread)
}

/// A run that takes longer than it is left alone.
async fn slow_run(day: &Day<'_>, dice: &mut Random) -> Option<(Uuid, String)> {
    let thread = make_thread(day, dice).await?;
    let body = json!({ "assistant_id": "slow", "input": { "log": [] } });
    let request = Request::post(format!("/threads/{thread}/runs"), &body);
    let said = accepted(day, &request).await?;
    Some((thread, id(&said, "run_id")?))
}

/// The answer of a run that was acknowledged; `None` where it was not, which is wrong where the server had no reason
/// for it.
async fn accepted(day: &Day<'_>, request: &Request) -> Option<ClientResponse> {
    let said = day.agents.once(request).await?;
    match said.status {
        200 => return Some(said),
        429 | 503 => {}
        _ => day.wrong(&format!("{request}: {said}")),
    }
    None
}

fn said_by(who: &str, dice: &mut Random) -> String {
    format!("{who} {:016x}", dice.next_u64())
}

fn echo(text: &str) -> Value {
    json!({ "assistant_id": "agent", "input": { "messages": [{ "role": "user", "content": text }] } })
}

fn id(said: &ClientResponse, field: &str) -> Option<String> {
    said.body[field].as_str().map(str::to_owned)
}

/// Whether the echo of `text` is among the messages of a state.
fn speaks(state: &Value, text: &str) -> bool {
    let messages = state["messages"].as_array();
    messages.is_some_and(|all| all.iter().any(|one| one["type"] == "ai" && one["content"] == text))
}
