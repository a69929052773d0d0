//! Agent cards. One card has both versions of the protocol, unless the assistant's metadata name one.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, HOST};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};
use towpath_domain::AssistantId;
use towpath_domain::agent::a2a::Dialect;
use towpath_store::assistants::Assistant;

use super::context::RequestContext;
use super::options::{AgentOptions, version_name};
use crate::agent::answer::Json;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::extract::{Path, Query};
use crate::agent::{assistants, sse};
use crate::client::Client;
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(of_server))
        .routes(routes!(of_server_before))
        .routes(routes!(of_assistant))
        .routes(routes!(of_assistant_before))
}

/// The query of a request for a card.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CardQuery {
    /// The assistant, or the name of a graph. Optional if the server has one graph.
    assistant_id: Option<String>,
}

impl CardQuery {
    pub(crate) fn assistant(&self, app: &AgentApp) -> Result<AssistantId, AgentError> {
        if let Some(name) = self.assistant_id.as_deref().filter(|name| !name.is_empty()) {
            return assistants::resolve_assistant(app, name);
        }
        let graphs = app.graphs.current();
        let mut names = graphs.ids();
        match (names.next(), names.next()) {
            (Some(only), None) => Ok(AssistantId::of_graph(only)),
            _ => Err(AgentError::invalid(
                "assistant_id: field required, since this server has several graphs",
            )),
        }
    }
}

/// Get the card of an assistant.
#[utoipa::path(get, path = "/.well-known/agent-card.json", tag = "a2a", params(CardQuery),
    responses((status = 200, description = "The card", body = Object),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn of_server(context: RequestContext, Query(query): Query<CardQuery>) -> Result<Response, AgentError> {
    respond(&context, query.assistant(&context.app)?).await
}

/// Get the card of an assistant, at the path that clients before version 0.3 use.
#[utoipa::path(get, path = "/.well-known/agent.json", tag = "a2a", params(CardQuery),
    responses((status = 200, description = "The card", body = Object),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn of_server_before(
    context: RequestContext,
    Query(query): Query<CardQuery>,
) -> Result<Response, AgentError> {
    respond(&context, query.assistant(&context.app)?).await
}

/// Get the card of this assistant.
#[utoipa::path(get, path = "/a2a/{assistant_id}/.well-known/agent-card.json", tag = "a2a",
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph")),
    responses((status = 200, description = "The card", body = Object),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn of_assistant(context: RequestContext, Path(name): Path<String>) -> Result<Response, AgentError> {
    respond(&context, assistants::resolve_assistant(&context.app, &name)?).await
}

/// Get the card of this assistant, at the path that clients before version 0.3 use.
#[utoipa::path(get, path = "/a2a/{assistant_id}/.well-known/agent.json", tag = "a2a",
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph")),
    responses((status = 200, description = "The card", body = Object),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn of_assistant_before(
    context: RequestContext,
    Path(name): Path<String>,
) -> Result<Response, AgentError> {
    respond(&context, assistants::resolve_assistant(&context.app, &name)?).await
}

async fn respond(context: &RequestContext, id: AssistantId) -> Result<Response, AgentError> {
    let assistant: Arc<Assistant> = context.app.assistants.get(id).await?;
    let card = agent_card(context, &assistant);
    let mut response = Json(card).into_response();
    let fresh = HeaderValue::from_static("no-cache");
    response.headers_mut().insert(CACHE_CONTROL, fresh);
    Ok(response)
}

/// A card. Each version ignores the fields of the other.
pub(super) fn agent_card(context: &RequestContext, assistant: &Assistant) -> Value {
    let app = &context.app;
    let url = format!("{}/a2a/{}", base_url(context), assistant.id);
    let options = AgentOptions::of(assistant);
    let has_older = options.versions.contains(&Dialect::V03);
    let (input, output) = (options.input_modes(), &options.output_modes);
    let name = &assistant.name;
    let described = assistant.description.clone().filter(|text| !text.is_empty());
    let description = described.unwrap_or_else(|| format!("{name} assistant"));
    let interfaces = options
        .versions
        .iter()
        .map(|version| json!({"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version_name(*version)}));
    let mut card = json!({
        "name": name,
        "description": description,
        "version": env!("CARGO_PKG_VERSION"),
        "supportedInterfaces": interfaces.collect::<Vec<_>>(),
        "capabilities": {
            "streaming": true,
            "pushNotifications": !app.settings.webhooks.off,
            "extendedAgentCard": true,
            "extensions": [],
        },
        "defaultInputModes": input,
        "defaultOutputModes": output,
        "skills": [{
            "id": format!("{}-main", assistant.id),
            "name": format!("{name} Capabilities"),
            "description": description,
            "tags": ["assistant", assistant.graph_id],
            "examples": [],
            "inputModes": input,
            "outputModes": output,
        }],
    });
    if has_older {
        card["url"] = json!(url);
        card["preferredTransport"] = json!("JSONRPC");
        card["protocolVersion"] = json!("0.3.0");
        card["supportsAuthenticatedExtendedCard"] = json!(true);
        card["capabilities"]["stateTransitionHistory"] = json!(false);
    }
    let gateway = app.settings.gateway_key.is_some() && !app.settings.custom_auth;
    if app.keys.is_some() || gateway {
        let mut scheme = json!({"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}});
        if has_older {
            scheme["type"] = json!("apiKey");
            scheme["in"] = json!("header");
            scheme["name"] = json!("X-API-Key");
            card["security"] = json!([{"apiKey": []}]);
        }
        card["securitySchemes"] = json!({ "apiKey": scheme });
        card["securityRequirements"] = json!([{"schemes": {"apiKey": {"list": []}}}]);
    }
    card
}

/// Address of this server as seen by the caller.
fn base_url(context: &RequestContext) -> String {
    let RequestContext { app, client, headers } = context;
    // The gateway sets these headers itself and signs the request.
    let trusted = client.is_proxied || app.settings.gateway_key.is_some();
    format!(
        "{}{}",
        request_origin(headers, *client, trusted),
        sse::prefix(app, headers)
    )
}

/// Scheme and host of a request. Forwarded headers can be forged and are only used if `trusted`.
fn request_origin(headers: &HeaderMap, client: Client, trusted: bool) -> String {
    // The first entry of a list is the client's.
    let first = |name: &str| {
        let text = headers.get(name)?.to_str().ok()?;
        text.split(',').next().map(str::trim)
    };
    let host_of = |name: &str| first(name).filter(|host| host.parse::<Authority>().is_ok() && !host.contains('@'));
    let host = host_of("x-forwarded-host").filter(|_| trusted);
    let host = host.or_else(|| host_of(HOST.as_str())).unwrap_or("localhost");
    let https = first("x-forwarded-proto")
        .filter(|_| trusted)
        .map_or(client.secure, |scheme| scheme.eq_ignore_ascii_case("https"));
    format!("{}://{host}", if https { "https" } else { "http" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_names_the_host_that_its_caller_asked() {
        let client = Client::default();
        for (trusted, told, expected) in [
            (false, &[("host", "one.example:81")][..], "http://one.example:81"),
            (
                false,
                &[
                    ("host", "one.example"),
                    ("x-forwarded-host", "evil.example"),
                    ("x-forwarded-proto", "https"),
                ][..],
                "http://one.example",
            ),
            (
                true,
                &[
                    ("host", "one.example"),
                    ("x-forwarded-host", "two.example"),
                    ("x-forwarded-proto", "https"),
                ][..],
                "https://two.example",
            ),
            (
                true,
                &[
                    ("x-forwarded-host", "two.example, inner:8080"),
                    ("x-forwarded-proto", "HTTPS, http"),
                ][..],
                "https://two.example",
            ),
            (
                true,
                &[("host", "one.example"), ("x-forwarded-host", "user@two.example")][..],
                "http://one.example",
            ),
            (
                true,
                &[("host", "one.example"), ("x-forwarded-host", "")][..],
                "http://one.example",
            ),
            (true, &[][..], "http://localhost"),
        ] {
            let mut headers = HeaderMap::new();
            for &(name, value) in told {
                headers.insert(name, value.parse().unwrap());
            }
            assert_eq!(
                request_origin(&headers, client, trusted),
                expected,
                "{trusted} {told:?}"
            );
        }
        let secure = Client { secure: true, ..client };
        assert_eq!(request_origin(&HeaderMap::new(), secure, false), "https://localhost");
    }
}
