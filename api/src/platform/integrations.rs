//! Ways into git repositories: a token to read them with, and a webhook that tells of pushes.

use std::time::Duration;

use axum::extract::{Request, State};
use bytes::Bytes;
use hmac::{Hmac, Mac as _};
use http::header::{ACCEPT, AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;
use towpath_domain::deployment::Push;
use towpath_domain::{IntegrationId, Rejection, RevisionId, Secret, Timestamp};
use towpath_outbound::{Call, CallError};
use towpath_store::integrations::{self, NewIntegration};
use towpath_store::{self as store, access};
use towpath_workflows::deployments as work;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, expect_json, read_body};

/// Where GitHub's API is.
const GITHUB: &str = "https://api.github.com";
/// The largest message of a webhook, in bytes.
const MESSAGE_BYTES: usize = 5 << 20;
/// How long the host of repositories may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// The largest page of repositories, in bytes.
const PAGE_BYTES: usize = 8 << 20;
/// Pages of a hundred repositories.
const PAGES: usize = 10;

/// An integration.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Integration {
    #[schema(value_type = Uuid)]
    id: IntegrationId,
    /// The same, where clients look for it.
    installation_id: String,
    name: String,
    /// Where pushes are to be told.
    webhook_url: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

impl Integration {
    fn of(app: &App, row: integrations::Integration) -> Self {
        Self {
            installation_id: row.id.to_string(),
            webhook_url: format!("{}/v1/integrations/github/{}/webhook", app.settings.public_url, row.id),
            id: row.id,
            name: row.name,
            created_at: row.created_at,
        }
    }
}

/// An integration that was just made.
#[derive(Serialize, utoipa::ToSchema)]
pub struct MadeIntegration {
    #[serde(flatten)]
    integration: Integration,
    /// Signs the webhook's messages. Shown this once, and only where it was made here.
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook_secret: Option<String>,
}

/// An integration to be made.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewIntegration)]
pub struct New {
    /// For people.
    #[schema(min_length = 1, max_length = 255)]
    name: String,
    /// A token that may read the repositories. Kept sealed and never shown. Public ones need none.
    #[serde(default)]
    #[schema(value_type = Option<String>, write_only, min_length = 1, max_length = 4096, pattern = "^[!-~]+$")]
    token: Option<Secret>,
    /// What the webhook's messages are signed with, at least 16 characters; made here unless given.
    #[serde(default)]
    #[schema(value_type = Option<String>, write_only, min_length = 16, max_length = 4096, pattern = "^[ -~]+$")]
    webhook_secret: Option<Secret>,
    /// Of a host of your own that speaks as GitHub does.
    #[serde(default)]
    #[schema(max_length = 2048, pattern = r"^https?://[^@?#\\ \u0000-\u001f\u007f-\u009f]+$")]
    api_url: Option<String>,
}

impl New {
    fn admit(&self) -> Result<(), Rejection> {
        let plain = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && text.len() <= 4_096;
        if self.name.trim().is_empty() || self.name.chars().count() > 255 || self.name.chars().any(char::is_control) {
            let text = "expected 1 to 255 characters, no control characters";
            return Err(Rejection::invalid("name", text));
        }
        if let Some(token) = &self.token {
            let token = token.reveal();
            if token.is_empty() || !plain(token) || token.contains(' ') {
                let text = "expected 1 to 4096 printable ASCII characters without blanks";
                return Err(Rejection::invalid("token", text));
            }
        }
        if let Some(secret) = &self.webhook_secret
            && (secret.reveal().len() < 16 || !plain(secret.reveal()))
        {
            let text = "expected 16 to 4096 printable ASCII characters";
            return Err(Rejection::invalid("webhook_secret", text));
        }
        if let Some(url) = &self.api_url {
            let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
            let fits = host.is_some_and(|host| !host.is_empty() && !host.starts_with('/'))
                && !url.contains(['@', '?', '#', '\\', ' '])
                && url.len() <= 2_048
                && !url.chars().any(char::is_control);
            if !fits {
                let text = "expected an http or https address without user name, query or fragment";
                return Err(Rejection::invalid("api_url", text));
            }
        }
        Ok(())
    }
}

/// Integrations, newest first.
#[utoipa::path(get, path = "/v1/integrations/github/install", tag = "integrations",
    responses((status = 200, description = "Integrations", body = Vec<Integration>), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant) -> Result<Json<Vec<Integration>>, ApiError> {
    let rows = app
        .store
        .read(async |tx| integrations::list(tx, tenant.id).await)
        .await?;
    Ok(Json(rows.into_iter().map(|row| Integration::of(&app, row)).collect()))
}

/// Make an integration. Enter its `webhook_url` and secret at the repository's host to have pushes build revisions.
#[utoipa::path(post, path = "/v1/integrations/github", tag = "integrations", request_body = New,
    responses((status = 201, description = "Made", body = MadeIntegration), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Json(new): Json<New>,
) -> Result<(StatusCode, Json<MadeIntegration>), ApiError> {
    new.admit()?;
    let is_given = new.webhook_secret.is_some();
    let secret = new.webhook_secret.unwrap_or_else(|| Secret::new(access::new_secret()));
    let row = NewIntegration {
        id: IntegrationId::new(),
        name: &new.name,
        api_url: new.api_url.as_deref().unwrap_or(GITHUB).trim_end_matches('/'),
        token: new.token.as_ref(),
        webhook_secret: &secret,
    };
    let row = app
        .store
        .write(async |tx| integrations::insert(tx, tenant.id, &app.sealer, &row).await)
        .await?;
    let answer = MadeIntegration {
        integration: Integration::of(&app, row),
        webhook_secret: (!is_given).then(|| secret.reveal().to_owned()),
    };
    Ok((StatusCode::CREATED, Json(answer)))
}

/// Delete an integration. Deployments that name it can read public repositories only from then on.
#[utoipa::path(delete, path = "/v1/integrations/github/{integration_id}", tag = "integrations",
    params(("integration_id" = Uuid, Path, description = "The integration")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such integration in this workspace"), ApiError))]
pub async fn delete(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<IntegrationId>,
) -> Result<StatusCode, ApiError> {
    app.store
        .write(async |tx| integrations::delete(tx, tenant.id, id).await)
        .await
        .map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

fn missing(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("integration"),
        error => error.into(),
    }
}

/// A repository.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Repository {
    #[schema(value_type = Uuid)]
    host_integration_id: IntegrationId,
    /// As the host counts.
    id: String,
    name: String,
    owner: String,
    url: String,
    default_branch: String,
}

/// Repositories that an integration may read, at most a thousand.
#[utoipa::path(get, path = "/v1/integrations/github/{integration_id}/repos", tag = "integrations",
    params(("integration_id" = Uuid, Path, description = "The integration")),
    responses((status = 200, description = "Repositories", body = Vec<Repository>),
              (status = 404, description = "No such integration in this workspace"),
              (status = 409, description = "The integration has no token, or the host refuses it, or its address is not allowed"),
              (status = 502, description = "The host of the repositories does not answer as it should"), ApiError))]
pub async fn repos(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<IntegrationId>,
) -> Result<Json<Vec<Repository>>, ApiError> {
    let row = app
        .store
        .read(async |tx| integrations::get(tx, tenant.id, id).await)
        .await
        .map_err(missing)?;
    let token = row.token(&app.sealer).map_err(|error| ApiError::internal(&error))?;
    let Some(token) = token else {
        return Err(ApiError::conflict(
            "the integration has no token, and so no repositories of its own",
        ));
    };
    if is_plain(&row.api_url) {
        let text = "the integration's token is not sent over plain http; make an integration whose api_url is https";
        return Err(ApiError::conflict(text));
    }
    // An address that does not answer holds its request for a while; it must not take the places of others.
    let outside = app.outside.enter();
    let _place = outside.map_err(|wait| ApiError::too_many("too many addresses are asked at once", wait))?;
    let mut found = Vec::new();
    for page in 1..=PAGES {
        let url = format!("{}/user/repos?per_page=100&page={page}", row.api_url);
        let list = ask(&app, url, &token).await?;
        let last = list.len() < 100;
        found.extend(list.iter().filter_map(|repository| described(id, repository)));
        if last {
            break;
        }
    }
    Ok(Json(found))
}

/// Whether what is sent there could be read on its way: it leaves this machine, and nothing protects it.
fn is_plain(api_url: &str) -> bool {
    let Ok(url) = url::Url::parse(api_url) else { return true };
    let stays = match url.host() {
        Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() != "https" && !stays
}

fn described(integration: IntegrationId, repository: &Value) -> Option<Repository> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(Repository {
        host_integration_id: integration,
        id: repository["id"].as_i64()?.to_string(),
        name: text(&repository["name"])?,
        owner: text(&repository["owner"]["login"])?,
        url: text(&repository["html_url"])?,
        default_branch: text(&repository["default_branch"]).unwrap_or_else(|| "main".to_owned()),
    })
}

async fn ask(app: &App, url: String, token: &Secret) -> Result<Vec<Value>, ApiError> {
    let odd = |text: String| ApiError::new(StatusCode::BAD_GATEWAY, format!("the host of the repositories {text}"));
    let mut bearer = HeaderValue::from_str(&format!("Bearer {}", token.reveal()))
        .map_err(|_| ApiError::bad_request("the integration's token cannot be sent"))?;
    bearer.set_sensitive(true);
    let headers = HeaderMap::from_iter([
        (AUTHORIZATION, bearer),
        (ACCEPT, HeaderValue::from_static("application/vnd.github+json")),
        (USER_AGENT, HeaderValue::from_static("towpath")),
    ]);
    let call = Call {
        method: Method::GET,
        url,
        headers,
        body: Bytes::new(),
        limit: PATIENCE,
    };
    let reply = app.destinations.guard.call(call).await.map_err(|error| match error {
        CallError::Refused(refused) => Rejection::conflict("api_url", refused.to_string()).into(),
        error => odd(format!("does not answer: {error}")),
    })?;
    match reply.status() {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err(ApiError::conflict(
                "the host of the repositories refuses the integration's token",
            ));
        }
        status => return Err(odd(format!("answers {status}"))),
    }
    let body = reply
        .bytes(PAGE_BYTES)
        .await
        .map_err(|error| odd(format!("breaks off: {error}")))?;
    serde_json::from_slice(&body).map_err(|_| odd("answers something else than a list".to_owned()))
}

/// What a message made.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Told {
    /// New revisions.
    #[schema(value_type = Vec<Uuid>)]
    revisions: Vec<RevisionId>,
}

/// Tell of a push. A push to a branch that is there makes a revision of each deployment that follows it. Signed with the
/// integration's secret, as GitHub does; needs no key.
#[utoipa::path(post, path = "/v1/integrations/github/{integration_id}/webhook", tag = "integrations", security(()),
    params(("integration_id" = Uuid, Path, description = "The integration"),
           ("X-Hub-Signature-256" = String, Header, description = "`sha256=` and the HMAC of the body"),
           ("X-GitHub-Event" = String, Header, description = "`push`; others are taken and do nothing")),
    request_body(content = Object),
    responses((status = 200, description = "Heard", body = Told),
              (status = 401, description = "No such integration, or not signed with its secret"), ApiError))]
pub async fn webhook(
    State(app): State<App>,
    Path(id): Path<IntegrationId>,
    request: Request,
) -> Result<Json<Told>, ApiError> {
    expect_json(&request)?;
    let (head, body) = request.into_parts();
    let unsigned = || ApiError::unauthorized("X-Hub-Signature-256 does not fit the body and the integration's secret");
    let signature = head
        .headers
        .get("x-hub-signature-256")
        .and_then(|text| text.to_str().ok());
    let signature = signature.and_then(|text| hex::decode(text.strip_prefix("sha256=")?).ok());
    let signature = signature.ok_or_else(unsigned)?;
    let row = match app.store.read(async |tx| integrations::called(tx, id).await).await {
        // The same words whether it exists or not.
        Err(store::Error::NotFound) => return Err(unsigned()),
        row => row?,
    };
    let secret = row
        .webhook_secret(&app.sealer)
        .map_err(|error| ApiError::internal(&error))?;
    let body = read_body(body, MESSAGE_BYTES).await?;
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes()).map_err(|error| ApiError::internal(&error))?;
    mac.update(&body);
    mac.verify_slice(&signature).map_err(|_| unsigned())?;

    let nothing = Told { revisions: Vec::new() };
    if head.headers.get("x-github-event").is_none_or(|event| event != "push") {
        return Ok(Json(nothing));
    }
    let message: Value =
        serde_json::from_slice(&body).map_err(|_| ApiError::bad_request("the body is not valid JSON"))?;
    let Some(push) = Push::of_github(&message) else {
        return Ok(Json(nothing));
    };
    let made = app
        .store
        .write(async |tx| work::pushed(tx, row.tenant_id, &app.sealer, id, &push).await)
        .await?;
    Ok(Json(Told {
        revisions: made.into_iter().map(|revision| revision.id).collect(),
    }))
}
