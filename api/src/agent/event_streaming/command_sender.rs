//! Sends commands from a socket to their route.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use axum::routing::post;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use towpath_domain::ThreadId;
use towpath_domain::agent::Object;

use super::commands;
use super::event::Failure;
use crate::agent::app::AgentApp;
use crate::agent::auth;
use crate::client::Client;

/// Sends commands with the credentials of the socket.
pub(super) struct CommandSender {
    commands: Router,
    /// Path and query.
    target: String,
    headers: HeaderMap,
    client: Client,
}

impl CommandSender {
    pub fn new(app: &AgentApp, parts: Parts, thread: ThreadId) -> Self {
        // The full path of the route, so that auth finds it.
        let prefix = app.settings.mount_prefix.trim_end_matches('/');
        let template = format!("{prefix}/threads/{{thread_id}}/commands");
        let commands = Router::new()
            .route(&template, post(commands::command))
            .route_layer(from_fn_with_state(app.clone(), auth::require))
            .with_state(app.clone());
        let path = format!("{prefix}/threads/{thread}/commands");
        Self {
            commands,
            target: command_target(&path, parts.uri.query()),
            client: Client::of(&parts.extensions),
            headers: command_headers(parts.headers),
        }
    }

    /// The answer to a command, as JSON.
    pub async fn send(&self, command: &Object, id: i64) -> Value {
        let mut request = Request::new(Body::from(serde_json::to_string(command).unwrap_or_default()));
        *request.method_mut() = Method::POST;
        if let Ok(target) = self.target.parse() {
            *request.uri_mut() = target;
        }
        *request.headers_mut() = self.headers.clone();
        request.extensions_mut().insert(self.client);
        let response = self
            .commands
            .clone()
            .oneshot(request)
            .await
            .unwrap_or_else(|never| match never {});
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let answer: Value = body
            .ok()
            .and_then(|body| serde_json::from_slice(&body).ok())
            .unwrap_or_default();
        if answer.get("type").is_some() {
            return answer;
        }
        let code = commands::error_code(status);
        let text = answer["detail"].as_str().unwrap_or("Internal Server Error");
        json!(Failure::new(Some(id), code, text))
    }
}

/// A path with the query of the handshake, which may contain credentials.
fn command_target(path: &str, query: Option<&str>) -> String {
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}

/// Headers of the handshake for a command. WebSocket protocols may contain credentials, since pages can set no other header.
fn command_headers(mut headers: HeaderMap) -> HeaderMap {
    let of_handshake: Vec<_> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("sec-websocket-") && **name != SEC_WEBSOCKET_PROTOCOL)
        .cloned()
        .collect();
    for name in of_handshake.iter().chain([&CONNECTION, &UPGRADE, &CONTENT_LENGTH]) {
        headers.remove(name);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_headers::headers;

    #[test]
    fn a_command_says_who_calls_as_the_handshake_did() {
        assert_eq!(
            command_target("/threads/1/commands", Some("token=a%20b")),
            "/threads/1/commands?token=a%20b"
        );
        assert_eq!(command_target("/threads/1/commands", None), "/threads/1/commands");
        let kept = command_headers(headers(&[
            ("authorization", "Bearer a"),
            ("sec-websocket-protocol", "bearer, a"),
            ("sec-websocket-key", "x"),
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
        ]));
        let expected = headers(&[
            ("authorization", "Bearer a"),
            ("sec-websocket-protocol", "bearer, a"),
            ("content-type", "application/json"),
        ]);
        assert_eq!(kept, expected);
    }
}
