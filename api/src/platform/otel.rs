//! Ingest of OpenTelemetry: spans and log records as trace runs and feedback.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderName, StatusCode};
use towpath_traces::accept::Refusal;
use towpath_traces::body::{self, Encoding, Limits};
use towpath_traces::otlp::{self, Format, OtlpError, Signal};

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::platform::ingest::{append, text};

const PROJECT: HeaderName = HeaderName::from_static("langsmith-project");

/// Ingest spans (OTLP over HTTP, protobuf or JSON, plain, gzip or zstd). Each span becomes a trace run of the project
/// in `langsmith.trace.session_name`, else in the header `Langsmith-Project`, else of `default`. Invalid spans are left
/// out.
#[utoipa::path(post, path = "/otel/v1/traces", tag = "otel",
    request_body(content = String, content_type = "application/x-protobuf", description = "An ExportTraceServiceRequest"),
    params(("Langsmith-Project" = Option<String>, Header, description = "Project of spans without a project")),
    responses((status = 200, description = "Stored durably; the body is an ExportTraceServiceResponse, with `partial_success` where spans were left out"),
              (status = 404, description = "A project referenced by id does not exist in this workspace"),
              (status = 413, description = "The body is too large, compressed or decompressed"),
              (status = 415, description = "Neither protobuf nor JSON"), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, request: Request) -> Result<Response, ApiError> {
    ingest(&app, tenant, Signal::Traces, request).await
}

/// Ingest log records (OTLP over HTTP, protobuf or JSON, plain, gzip or zstd). Events with messages change the trace run
/// of their span, and results of evaluations become feedback on it. All other log records are left out.
#[utoipa::path(post, path = "/otel/v1/logs", tag = "otel",
    request_body(content = String, content_type = "application/x-protobuf", description = "An ExportLogsServiceRequest"),
    responses((status = 200, description = "Stored durably; the body is an ExportLogsServiceResponse, with `partial_success` where log records were left out"),
              (status = 413, description = "The body is too large, compressed or decompressed"),
              (status = 415, description = "Neither protobuf nor JSON"), ApiError))]
pub async fn create_from_logs(State(app): State<App>, tenant: Tenant, request: Request) -> Result<Response, ApiError> {
    ingest(&app, tenant, Signal::Logs, request).await
}

async fn ingest(app: &App, tenant: Tenant, signal: Signal, request: Request) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let content_type = text(&head.headers, &CONTENT_TYPE)?.unwrap_or_default();
    let encoding = text(&head.headers, &CONTENT_ENCODING)?;
    // A log record belongs to a run, which has a project.
    let project = match signal {
        Signal::Traces => text(&head.headers, &PROJECT)?.filter(|name| !name.is_empty()),
        Signal::Logs => None,
    };
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    let format = match kind.to_ascii_lowercase().as_str() {
        "application/x-protobuf" | "application/protobuf" => Format::Protobuf,
        "application/json" => Format::Json,
        _ => {
            let text = "send Content-Type: application/x-protobuf or application/json";
            return Err(ApiError::unsupported_media_type(text));
        }
    };
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    let (body, _place) = app
        .ingest_limiter
        .read(body, app.settings.ingest_body_bytes, tenant.id)
        .await?;
    let received_at = app.clock.now();
    let sent_bytes = body.len() as u64;
    let check = move || -> Result<_, OtlpError> {
        let limits = Limits::default();
        let encoding = Encoding::parse(encoding.as_deref()).map_err(Refusal::from)?;
        let plain = body::decode(encoding, &body, &limits).map_err(Refusal::from)?;
        let request = otlp::Request {
            tenant: tenant.id,
            signal,
            format,
            body: &plain,
            project: project.as_deref(),
            received_at,
        };
        otlp::accept(&request, &limits)
    };
    let (accepted, rejected) = app.ingest_limiter.check(check).await??;
    if accepted.operations + accepted.feedback > 0 {
        append(app, accepted, sent_bytes).await?;
    }
    if rejected.count() > 0 {
        tracing::debug!(ingest.rejected = rejected.count(), ingest.signal = ?signal, "left items of OpenTelemetry out");
    }
    let body = otlp::response(signal, format, &rejected);
    Ok((StatusCode::OK, [(CONTENT_TYPE, kind.to_owned())], body).into_response())
}

impl From<OtlpError> for ApiError {
    fn from(error: OtlpError) -> Self {
        match error {
            OtlpError::Refused(refusal) => refusal.into(),
            OtlpError::Protobuf { .. } | OtlpError::Json { .. } => Self::bad_request(error.to_string()),
        }
    }
}
