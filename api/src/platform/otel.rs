//! Spans of OpenTelemetry, taken as trace runs.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderName, StatusCode};
use towpath_traces::accept::{self, Route};
use towpath_traces::body::{self, Encoding, Limits};
use towpath_traces::otlp::{self, Format, OtlpError};

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::platform::ingest::{keep, text};

const PROJECT: HeaderName = HeaderName::from_static("langsmith-project");

/// Spans as an exporter sends them (OTLP over HTTP, protobuf or JSON, plain, gzip or zstd). Each becomes a trace run of
/// the project that it names (`langsmith.trace.session_name`), else of the one in the header `Langsmith-Project`, else of
/// `default`.
#[utoipa::path(post, path = "/otel/v1/traces", tag = "otel",
    request_body(content = String, content_type = "application/x-protobuf", description = "An ExportTraceServiceRequest"),
    params(("Langsmith-Project" = Option<String>, Header, description = "Project of spans that name none")),
    responses((status = 200, description = "On disk; the body is an empty ExportTraceServiceResponse"),
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
    let (body, _place) = app.intake.read(body, app.settings.ingest_body_bytes).await?;
    let received_at = app.clock.now();
    let sent_bytes = body.len() as u64;
    let check = move || -> Result<_, Refused> {
        let limits = Limits::default();
        let plain = body::decode(
            Encoding::parse(encoding.as_deref()).map_err(accept::Refusal::from)?,
            &body,
            &limits,
        );
        let plain = plain.map_err(accept::Refusal::from)?;
        let (batch, _) = otlp::to_batch(&plain, format, project.as_deref())?;
        let request = accept::Request {
            tenant: tenant.id,
            route: Route::Batch,
            content_type: "application/json",
            content_encoding: None,
            body: Bytes::from(batch),
            received_at,
        };
        Ok(accept::accept(request, &limits)?)
    };
    let accepted = app.intake.check(check).await?.map_err(Refused::into_api)?;
    if accepted.operations > 0 {
        keep(&app, accepted, sent_bytes).await?;
    }
    // An empty message in either form says that nothing was left out.
    let empty = if format == Format::Json { "{}" } else { "" };
    Ok((StatusCode::OK, [(CONTENT_TYPE, kind.to_owned())], empty).into_response())
}

/// Why spans are not taken.
enum Refused {
    Spans(OtlpError),
    Runs(accept::Refusal),
}

impl From<OtlpError> for Refused {
    fn from(error: OtlpError) -> Self {
        Self::Spans(error)
    }
}

impl From<accept::Refusal> for Refused {
    fn from(refusal: accept::Refusal) -> Self {
        Self::Runs(refusal)
    }
}

impl Refused {
    fn into_api(self) -> ApiError {
        match self {
            Self::Spans(error) => ApiError::bad_request(error.to_string()),
            Self::Runs(refusal) => refusal.into(),
        }
    }
}
