//! Accepts usage reports of official servers and clients, so that they neither retry nor warn. Reports are not read or
//! stored.

use http::StatusCode;

/// Accept a usage report. It is not stored.
#[utoipa::path(post, path = "/v1/metadata/submit", tag = "server", security(()),
    responses((status = 204, description = "Accepted")))]
pub async fn submit() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Accept a heartbeat. It is not stored.
#[utoipa::path(post, path = "/v1/beacon", tag = "server", security(()),
    responses((status = 204, description = "Accepted")))]
pub async fn beacon() -> StatusCode {
    StatusCode::NO_CONTENT
}
