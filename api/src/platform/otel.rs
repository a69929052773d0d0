//! Spans of OpenTelemetry, taken as trace runs.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderName, StatusCode};
use towpath_traces::accept::Refusal;
use towpath_traces::body::{self, Encoding, Limits};
use towpath_traces::otlp::{self, Format, OtlpError};

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::platform::ingest::{keep, text};

const PROJECT: HeaderName = HeaderName::from_static("langsmith-project");

/// Spans as an exporter sends them (OTLP over HTTP, protobuf or JSON, plain, gzip or zstd). Each becomes a trace run of
/// the project that it names (`langsmith.trace.session_name`), else of the one in the header `Langsmith-Project`, else of
/// `default`. A span that cannot be taken is left out, and the others are taken.
#[utoipa::path(post, path = "/otel/v1/traces", tag = "otel",
    request_body(content = String, content_type = "application/x-protobuf", description = "An ExportTraceServiceRequest"),
    params(("Langsmith-Project" = Option<String>, Header, description = "Project of spans that name none")),
    responses((status = 200, description = "On disk; the body is an ExportTraceServiceResponse, with `partial_success` where spans were left out"),
              (status = 404, description = "A project that is named by its id is not in this workspace"),
              (status = 413, description = "Too large, as sent or unpacked"),
              (status = 415, description = "Neither protobuf nor JSON"), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, request: Request) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let content_type = text(&head.headers, &CONTENT_TYPE)?.unwrap_or_default();
    let encoding = text(&head.headers, &CONTENT_ENCODING)?;
    let project = text(&head.headers, &PROJECT)?.filter(|name| !name.is_empty());
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    let format = match kind.to_ascii_lowercase().as_str() {
        "application/x-protobuf" | "application/protobuf" => Format::Protobuf,
        "application/json" => Format::Json,
        _ => {
            let text = "send the spans as Content-Type: application/x-protobuf or application/json";
            return Err(ApiError::unsupported_media_type(text));
        }
    };
    app.stored.check(&app.store, &app.clock, tenant.id).await?;
    let (body, _place) = app.intake.read(body, app.settings.ingest_body_bytes, tenant.id).await?;
    let received_at = app.clock.now();
    let sent_bytes = body.len() as u64;
    let check = move || -> Result<_, OtlpError> {
        let limits = Limits::default();
        let encoding = Encoding::parse(encoding.as_deref()).map_err(Refusal::from)?;
        let plain = body::decode(encoding, &body, &limits).map_err(Refusal::from)?;
        let request = otlp::Request {
            tenant: tenant.id,
            format,
            body: &plain,
            project: project.as_deref(),
            received_at,
        };
        otlp::accept(&request, &limits)
    };
    let (accepted, rejected) = app.intake.check(check).await??;
    if accepted.operations > 0 {
        keep(&app, accepted, sent_bytes).await?;
    }
    if rejected.count() > 0 {
        tracing::debug!(ingest.rejected = rejected.count(), "left spans out");
    }
    let body = otlp::response(format, &rejected);
    Ok((StatusCode::OK, [(CONTENT_TYPE, kind.to_owned())], body).into_response())
}

impl From<OtlpError> for ApiError {
    fn from(error: OtlpError) -> Self {
        match error {
            OtlpError::Refused(refusal) => refusal.into(),
            OtlpError::Protobuf(_) | OtlpError::Json(_) => Self::bad_request(error.to_string()),
        }
    }
}
