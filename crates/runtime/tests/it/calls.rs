//! Graphs that call other servers: models, tools, services.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use towpath_runtime::Nodes;
use towpath_runtime::StreamMode::{Custom, Events, Messages, MessagesTuple, Updates};

use crate::arrange::{arrange, arrange_calling, names, of};

type Answer = Box<dyn Fn(usize, &Value) -> Response + Send + Sync>;

/// A server that answers everything with one function and remembers what it was asked.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<(String, HeaderMap, Value)>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start(answer: impl Fn(usize, &Value) -> Response + Send + Sync + 'static) -> Self {
        let asked: Arc<Mutex<Vec<(String, HeaderMap, Value)>>> = Arc::default();
        let (answer, seen): (Arc<Answer>, _) = (Arc::new(Box::new(answer)), asked.clone());
        let router = Router::new().fallback(move |uri: Uri, headers: HeaderMap, body: Bytes| {
            let (answer, seen) = (answer.clone(), seen.clone());
            async move {
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let number = {
                    let mut seen = seen.lock().unwrap();
                    seen.push((uri.to_string(), headers, body.clone()));
                    seen.len()
                };
                answer(number, &body)
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            asked,
            serving,
        }
    }

    fn asked(&self) -> Vec<(String, HeaderMap, Value)> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A streamed body, cut into pieces that do not respect its lines.
fn stream(kind: &'static str, text: &str) -> Response {
    let pieces: Vec<Result<Bytes, Infallible>> = text
        .as_bytes()
        .chunks(23)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    let body = Body::from_stream(futures::stream::iter(pieces));
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

fn sse(events: &[Value]) -> Response {
    let mut text: String = events.iter().map(|event| format!("data: {event}\r\n\r\n")).collect();
    text.push_str(": a comment\ndata: [DONE]\n\n");
    stream("text/event-stream", &text)
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "what `json!` gives reads better without a reference"
)]
fn delta(delta: Value, finish: Option<&str>) -> Value {
    json!({"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

fn words() -> Response {
    sse(&[
        delta(json!({"role": "assistant", "content": ""}), None),
        delta(json!({"content": "Hel"}), None),
        delta(json!({"content": "lo"}), None),
        delta(json!({}), Some("stop")),
        json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}),
    ])
}

fn llm(address: &str) -> Value {
    json!({
        "kind": "llm", "base_url": format!("{address}/v1"), "model": "m", "api_key_env": "TEST_KEY",
        "system": "You are brief.", "temperature": 0.5, "extra": {"seed": 1}, "max_retries": 1,
    })
}

#[tokio::test]
async fn a_model_streams_its_tokens() {
    let server = Server::start(|_, _| words()).await;
    let thread = arrange_calling(llm(&server.address));
    let told = thread
        .stream(
            thread.execution(Some(json!({"messages": "hi"}))),
            &[MessagesTuple, Updates],
        )
        .await;
    let chunks = of(&told, "messages");
    let texts: Vec<&Value> = chunks.iter().map(|chunk| &chunk[0]["content"]).collect();
    assert_eq!(texts, [&json!("Hel"), &json!("lo"), &json!(""), &json!(""), &json!("")]);
    assert_eq!(
        chunks[2][0]["response_metadata"],
        json!({"finish_reason": "stop", "model_name": "m-1"})
    );
    let usage = json!({"input_tokens": 3, "output_tokens": 2, "total_tokens": 5});
    assert_eq!(chunks[3][0]["usage_metadata"], usage);
    assert_eq!(chunks[4][0]["chunk_position"], json!("last"));
    let metadata = &chunks[0][1];
    assert_eq!(metadata["ls_model_name"], json!("m"));
    assert_eq!(metadata["ls_temperature"], json!(0.5));
    assert_eq!(metadata["langgraph_node"], json!("model"));
    let message = &of(&told, "updates")[0]["model"]["messages"][0];
    assert_eq!(message["content"], json!("Hello"));
    assert_eq!(message["usage_metadata"], usage);
    assert_eq!(message["id"], chunks[0][0]["id"]);

    let (path, headers, body) = server.asked().remove(0);
    assert_eq!(path, "/v1/chat/completions");
    assert_eq!(headers["authorization"], "Bearer sesame");
    assert_eq!(
        body,
        json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true}, "temperature": 0.5, "seed": 1,
            "messages": [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "hi"}],
        })
    );
}

#[tokio::test]
async fn a_models_message_grows_and_its_events_come() {
    let server = Server::start(|_, _| words()).await;
    let thread = arrange_calling(llm(&server.address));
    let told = thread
        .stream(thread.execution(Some(json!({"messages": "hi"}))), &[Messages])
        .await;
    let partial = of(&told, "messages/partial");
    assert_eq!(names(&told)[0], "messages/metadata");
    assert_eq!(partial[1][0]["content"], json!("Hello"));
    assert_eq!(partial.last().unwrap()[0]["usage_metadata"]["total_tokens"], json!(5));
    let told = thread
        .stream(thread.execution(Some(json!({"messages": "hi"}))), &[Events])
        .await;
    let events: Vec<&str> = told.iter().map(|(_, event)| event["event"].as_str().unwrap()).collect();
    assert_eq!(events[2], "on_chat_model_start");
    assert_eq!(events[events.len() - 4], "on_chat_model_end");
    assert_eq!(told[events.len() - 4].1["data"]["output"]["content"], json!("Hello"));
}

#[tokio::test]
async fn a_model_that_does_not_stream_answers_too() {
    let server = Server::start(|_, body| {
        assert_eq!(body.get("stream"), None);
        let message = json!({"role": "assistant", "content": "whole"});
        let choice = json!({"message": message, "finish_reason": "stop"});
        axum::Json(json!({"choices": [choice], "model": "m-1", "usage": {"prompt_tokens": 1, "completion_tokens": 1}}))
            .into_response()
    })
    .await;
    let mut native = llm(&server.address);
    native["stream"] = json!(false);
    let thread = arrange_calling(native);
    let told = thread
        .stream(thread.execution(Some(json!({"messages": "hi"}))), &[MessagesTuple])
        .await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].1[0]["content"], json!("whole"));
    assert_eq!(told[0].1[0]["type"], json!("ai"));
}

#[tokio::test]
async fn a_models_refusals_are_told_and_overloads_are_tried_again() {
    let server = Server::start(|number, _| match number {
        1 => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "0")], "slow down").into_response(),
        2 => words(),
        _ => {
            let error = json!({"error": {"message": "no such model", "type": "x"}});
            (StatusCode::NOT_FOUND, axum::Json(error)).into_response()
        }
    })
    .await;
    let thread = arrange_calling(llm(&server.address));
    let execution = thread.execution(Some(json!({"messages": "hi"})));
    assert_eq!(
        thread.run(&execution).await.values["messages"][1]["content"],
        json!("Hello")
    );
    let error = thread
        .try_run(&thread.execution(Some(json!({"messages": "hi"}))))
        .await
        .unwrap_err();
    assert_eq!(
        (error.class.as_str(), error.message.as_str()),
        ("NotFoundError", "Error code: 404 - no such model")
    );

    let thread = arrange(llm(&server.address));
    let error = thread
        .try_run(&thread.execution(Some(json!({"messages": "hi"}))))
        .await
        .unwrap_err();
    assert_eq!((error.class.as_str(), error.retry), ("RuntimeError", false));
    let mut native = llm(&server.address);
    native["api_key_env"] = json!("OTHER");
    let thread = arrange_calling(native);
    let error = thread
        .try_run(&thread.execution(Some(json!({"messages": "hi"}))))
        .await
        .unwrap_err();
    assert_eq!(error.message, "the secret OTHER is not set");
}

#[tokio::test]
async fn addresses_are_guarded() {
    let mut native = llm("http://10.0.0.1");
    native["max_retries"] = json!(0);
    let thread = arrange_calling(native);
    let error = thread
        .try_run(&thread.execution(Some(json!({"messages": "hi"}))))
        .await
        .unwrap_err();
    assert_eq!(error.class, "PermissionError");
    assert!(error.message.contains("outbound.allow"), "{error}");
}

/// A model that asks for two tools at once, then answers.
fn agent(number: usize, body: &Value) -> Response {
    if body.get("messages").is_none() {
        return match body.get("city") {
            Some(city) => axum::Json(json!({"weather": format!("sun in {}", city.as_str().unwrap())})).into_response(),
            None => (StatusCode::BAD_GATEWAY, "down").into_response(),
        };
    }
    let call = |index: u64, id: &str, name: &str, arguments: &str| json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    if number == 1 {
        return sse(&[
            delta(json!({"tool_calls": [call(0, "c1", "weather", "{\"ci")]}), None),
            delta(
                json!({"tool_calls": [{"index": 0, "function": {"arguments": "ty\":\"Rome\"}"}}]}),
                None,
            ),
            delta(json!({"tool_calls": [call(1, "c2", "broken", "{}")]}), None),
            delta(json!({}), Some("tool_calls")),
        ]);
    }
    sse(&[
        delta(json!({"content": "It is sunny."}), None),
        delta(json!({}), Some("stop")),
    ])
}

fn react(address: &str) -> Value {
    let mut model = llm(address);
    model.as_object_mut().unwrap().remove("kind");
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!({
        "kind": "react", "model": model,
        "tools": [
            {"name": "weather", "description": "Weather of a city", "parameters": parameters,
             "url": format!("{address}/weather"), "headers": {"x-key": "${env:TEST_KEY}"}, "result": "/weather"},
            {"name": "broken", "method": "GET", "url": format!("{address}/broken")},
        ],
    })
}

#[tokio::test]
async fn an_agent_calls_its_tools_and_answers() {
    let server = Server::start(agent).await;
    let thread = arrange_calling(react(&server.address));
    let finish = thread
        .run(&thread.execution(Some(json!({"messages": "weather in Rome?"}))))
        .await;
    let messages = finish.values["messages"].as_array().unwrap();
    let told: Vec<Value> = messages
        .iter()
        .map(|message| json!([message["type"], message["content"], message["name"]]))
        .collect();
    assert_eq!(
        told,
        [
            json!(["human", "weather in Rome?", null]),
            json!(["ai", "", null]),
            json!(["tool", "sun in Rome", "weather"]),
            json!(["tool", "Error: HTTPError: 502 down", "broken"]),
            json!(["ai", "It is sunny.", null]),
        ]
    );
    assert_eq!(
        messages[1]["tool_calls"][0],
        json!({"name": "weather", "args": {"city": "Rome"}, "id": "c1", "type": "tool_call"})
    );
    assert_eq!(
        (&messages[2]["status"], &messages[3]["status"]),
        (&json!("success"), &json!("error"))
    );
    assert_eq!(messages[2]["tool_call_id"], json!("c1"));
    let asked = server.asked();
    assert_eq!(asked[0].2["tools"][0]["function"]["name"], json!("weather"));
    let tool = asked.iter().find(|(path, ..)| path == "/weather").unwrap();
    assert_eq!(tool.1["x-key"], "sesame");
    let last = &asked.last().unwrap().2["messages"];
    assert_eq!(
        last[2]["tool_calls"][0]["function"],
        json!({"name": "weather", "arguments": "{\"city\":\"Rome\"}"})
    );
    assert_eq!(
        last[3],
        json!({"role": "tool", "content": "sun in Rome", "name": "weather", "tool_call_id": "c1"})
    );
}

#[tokio::test]
async fn an_agent_can_stop_before_its_tools() {
    let server = Server::start(agent).await;
    let thread = arrange_calling(react(&server.address));
    let mut execution = thread.execution(Some(json!({"messages": "weather?"})));
    execution.interrupt_before = Nodes::Some(vec!["tools".to_owned()]);
    let finish = thread.run(&execution).await;
    assert_eq!(finish.next, ["tools", "tools"]);
    assert_eq!(server.asked().len(), 1);
    let finish = thread.run(&thread.execution(None)).await;
    assert_eq!(finish.values["messages"][4]["content"], json!("It is sunny."));
}

#[tokio::test]
async fn a_service_is_a_graph() {
    let server =
        Server::start(|_, body| axum::Json(json!({"reply": {"echo": body}, "other": 1})).into_response()).await;
    let url = format!("{}/run/${{/id}}", server.address);
    let thread = arrange_calling(json!({
        "kind": "http", "url": url, "channels": {"id": "last-value", "reply": "last-value"},
    }));
    let finish = thread.run(&thread.execution(Some(json!({"id": "a b/c"})))).await;
    assert_eq!(
        finish.values,
        json!({"id": "a b/c", "reply": {"echo": {"id": "a b/c"}}})
    );
    assert_eq!(server.asked()[0].0, "/run/a+b%2Fc");

    let thread = arrange_calling(json!({
        "kind": "http", "url": server.address, "body": {"q": {"$": "/messages/-1/content"}},
        "message": "/reply/echo/q", "map": {"n": "/other"}, "channels": {"messages": "add-messages", "n": "last-value"},
        "api_key_env": "TEST_KEY",
    }));
    let finish = thread.run(&thread.execution(Some(json!({"messages": "hello"})))).await;
    assert_eq!(
        (&finish.values["messages"][1]["content"], &finish.values["n"]),
        (&json!("hello"), &json!(1))
    );
    assert_eq!(server.asked()[1].1["authorization"], "Bearer sesame");
}

#[tokio::test]
async fn a_service_may_stream_lines_or_events() {
    let server = Server::start(|_, body| {
        let events = [
            json!({"step": 1}),
            json!({"delta": "Hel"}),
            json!({"delta": "lo"}),
            json!({"total": 7}),
        ];
        match body["as"].as_str() {
            Some("sse") => sse(&events),
            _ => {
                let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
                stream("application/x-ndjson", &lines)
            }
        }
    })
    .await;
    for form in ["sse", "ndjson"] {
        let thread = arrange_calling(json!({
            "kind": "http", "url": server.address, "token": "/delta", "map": {"total": "/total"}, "events": "log",
            "channels": {
                "messages": "add-messages", "as": "last-value", "total": "last-value", "log": "last-value",
            },
        }));
        let run = thread.execution(Some(json!({"as": form, "messages": []})));
        let told = thread.stream(run, &[Custom, MessagesTuple]).await;
        let expected = ["custom", "messages", "messages", "custom", "messages"];
        assert_eq!(names(&told), expected, "{form}");
        assert_eq!(told[0].1, json!({"step": 1}));
        assert_eq!(told[2].1[0]["content"], json!("lo"));
        let values = thread.state().await.values;
        assert_eq!(values["messages"][0]["content"], json!("Hello"));
        assert_eq!(
            (&values["total"], values["log"].as_array().unwrap().len()),
            (&json!(7), 4)
        );
    }
}

#[tokio::test]
async fn a_service_that_fails_fails_the_run() {
    let server = Server::start(|_, _| {
        (
            StatusCode::IM_A_TEAPOT,
            axum::Json(json!({"detail": "short and stout"})),
        )
            .into_response()
    })
    .await;
    let thread = arrange_calling(json!({"kind": "http", "url": server.address}));
    let error = thread.try_run(&thread.execution(Some(json!({})))).await.unwrap_err();
    assert_eq!(
        (error.class.as_str(), error.message.as_str()),
        ("HTTPError", "418 short and stout")
    );
    let address = server.address.clone();
    drop(server);
    tokio::task::yield_now().await;
    let thread = arrange_calling(json!({"kind": "http", "url": address.replace("127.0.0.1", "127.0.0.2")}));
    let error = thread.try_run(&thread.execution(Some(json!({})))).await.unwrap_err();
    assert_eq!(error.class, "ConnectionError", "{error}");
}
