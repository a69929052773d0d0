//! What official servers and clients report of their use, as they go on doing where they are pointed here. It is answered,
//! so that they have nothing to try again or to warn of, and nothing of it is read or kept.

use http::StatusCode;

/// Take a report of use. Nothing of it is read or kept.
#[utoipa::path(post, path = "/v1/metadata/submit", tag = "server", security(()),
    responses((status = 204, description = "Nothing is kept")))]
pub async fn submit() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Take a sign of life. Nothing of it is read or kept.
#[utoipa::path(post, path = "/v1/beacon", tag = "server", security(()),
    responses((status = 204, description = "Nothing is kept")))]
pub async fn beacon() -> StatusCode {
    StatusCode::NO_CONTENT
}
