//! Trace ingest, as the official tracing clients send it.
//!
//! A 202 means that the body is durable on disk or in the object store and registered in the database. Sending a body
//! twice is harmless, since the flush identifies each trace run by its id; there is no 409.

use std::time::Duration;

use axum::extract::{Request, State};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, StatusCode};
use serde::Serialize;
use towpath_domain::TraceRunId;
use towpath_traces::accept::{self, AcceptedRequest, Refusal, RefusalKind, Route};
use towpath_traces::body::Limits;
use towpath_traces::wal::AppendError;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path};
use crate::metric;

/// Plain bodies up to this size are checked on the current thread: moving them costs more than the check.
const SMALL_BYTES: usize = 16 * 1024;

/// Result of an ingest request.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Ingested {
    /// A message for people; official clients read only the status.
    pub(super) message: &'static str,
}

pub type Answer = Result<(StatusCode, Json<Ingested>), ApiError>;

/// Send operations on trace runs, attachments and feedback as a multipart body.
///
/// Parts are named `post.<run id>`, `patch.<run id>`, either with `.inputs`, `.outputs`, `.events`, `.extra`, `.error` or
/// `.serialized` behind it, `attachment.<run id>.<name>`, and `feedback.<feedback id>`.
#[utoipa::path(post, path = "/runs/multipart", tag = "traces",
    request_body(content = String, content_type = "multipart/form-data", description = "May be compressed with gzip or zstd"),
    responses((status = 202, description = "Stored durably", body = Ingested),
              (status = 404, description = "A project referenced by id does not exist in this workspace"),
              (status = 413, description = "The body or a field of the trace run is too large"),
              ApiError))]
pub async fn multipart(State(app): State<App>, tenant: Tenant, request: Request) -> Answer {
    accept_body(&app, tenant, Route::Multipart, "Runs batch ingested", request).await
}

/// Send operations on trace runs: `{"post": [run, …], "patch": [run, …]}`.
#[utoipa::path(post, path = "/runs/batch", tag = "traces",
    request_body(content = ref("#/components/schemas/TraceRunBatch"), content_type = "application/json",
        description = "May be compressed with gzip or zstd"),
    responses((status = 202, description = "Stored durably", body = Ingested),
              (status = 404, description = "A project referenced by id does not exist in this workspace"),
              (status = 413, description = "The body or a field of the trace run is too large"), ApiError))]
pub async fn batch(State(app): State<App>, tenant: Tenant, request: Request) -> Answer {
    accept_body(&app, tenant, Route::Batch, "Runs batch ingested", request).await
}

/// Create a trace run.
#[utoipa::path(post, path = "/runs", tag = "traces",
    request_body(content = ref("#/components/schemas/TraceRun"), content_type = "application/json"),
    responses((status = 202, description = "Stored durably", body = Ingested),
              (status = 404, description = "A project referenced by id does not exist in this workspace"),
              (status = 413, description = "The body or a field of the trace run is too large"), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, request: Request) -> Answer {
    accept_body(&app, tenant, Route::Run, "Run ingested", request).await
}

/// Change a trace run. It need not exist yet.
#[utoipa::path(patch, path = "/runs/{run_id}", tag = "traces",
    request_body(content = ref("#/components/schemas/TraceRunChange"), content_type = "application/json"),
    params(("run_id" = Uuid, Path, description = "The trace run")),
    responses((status = 202, description = "Stored durably", body = Ingested),
              (status = 404, description = "A project referenced by id does not exist in this workspace"),
              (status = 413, description = "The body or a field of the trace run is too large"), ApiError))]
pub async fn update(State(app): State<App>, tenant: Tenant, Path(id): Path<TraceRunId>, request: Request) -> Answer {
    accept_body(&app, tenant, Route::Patch(id), "Run update ingested", request).await
}

/// Reads and checks a body, makes it durable and answers.
pub(super) async fn accept_body(
    app: &App,
    tenant: Tenant,
    route: Route,
    message: &'static str,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let content_type = text(&head.headers, &CONTENT_TYPE)?;
    let encoding = text(&head.headers, &CONTENT_ENCODING)?;
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    // `_place` holds the body's memory until the body is written.
    let (body, _place) = app
        .ingest_limiter
        .read(body, app.settings.ingest_body_bytes, tenant.id)
        .await?;

    let received_at = app.clock.now();
    let sent_bytes = body.len() as u64;
    let small = body.len() <= SMALL_BYTES && encoding.is_none();
    let check = move || {
        let content_type = content_type.as_deref().unwrap_or(match route {
            Route::Multipart => "",
            // The JSON routes have always accepted a missing content type.
            _ => "application/json",
        });
        let content_encoding = encoding.as_deref();
        let request = accept::Request {
            tenant: tenant.id,
            route,
            content_type,
            content_encoding,
            body,
            received_at,
        };
        accept::accept(request, &Limits::default())
    };
    let accepted = if small {
        check()
    } else {
        app.ingest_limiter.check(check).await?
    }?;
    append(app, accepted, sent_bytes).await?;
    Ok((StatusCode::ACCEPTED, Json(Ingested { message })))
}

/// Makes accepted data durable and counts it.
pub(super) async fn append(app: &App, accepted: AcceptedRequest, sent_bytes: u64) -> Result<(), ApiError> {
    let AcceptedRequest {
        operations,
        feedback,
        attachments,
        decoded_bytes,
        ..
    } = accepted;
    app.wal.append(accepted).await?;

    for (kind, count) in [
        ("operation", operations),
        ("feedback", feedback),
        ("attachment", attachments),
    ] {
        metrics::counter!(metric::INGEST_ITEMS, "kind" => kind).increment(count as u64);
    }
    metrics::counter!(metric::INGEST_BYTES).increment(sent_bytes);
    metrics::counter!(metric::INGEST_DECODED).increment(decoded_bytes as u64);
    tracing::debug!(
        ingest.operations = operations,
        ingest.feedback = feedback,
        ingest.attachments = attachments,
        ingest.decoded_bytes = decoded_bytes,
        "accepted trace data"
    );
    Ok(())
}

/// The text of a header. A repeated header is rejected as ambiguous.
pub(super) fn text(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    if second.is_some() {
        return Err(ApiError::bad_request(format!(
            "the header {name} was sent more than once"
        )));
    }
    let unreadable = |_| ApiError::bad_request(format!("the header {name} cannot be read"));
    first
        .map(|value| value.to_str().map(str::to_owned).map_err(unreadable))
        .transpose()
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.kind() {
            RefusalKind::Unsupported => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            RefusalKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            RefusalKind::Malformed | RefusalKind::Rule => StatusCode::BAD_REQUEST,
            RefusalKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, refusal.to_string())
    }
}

/// The log has the cause; clients get a time to retry. Official clients retry a few times after `Retry-After`, and give
/// up after three seconds without it.
impl From<AppendError> for ApiError {
    fn from(error: AppendError) -> Self {
        let text = error.to_string();
        match error {
            AppendError::Overloaded { retry_after } => Self::too_many(text, retry_after),
            AppendError::Full => Self::unavailable(text, Duration::from_secs(30)),
            AppendError::NoProject(_) => Self::new(StatusCode::NOT_FOUND, text),
            AppendError::Unavailable(_) | AppendError::Closed => Self::unavailable(text, Duration::from_secs(2)),
        }
    }
}
