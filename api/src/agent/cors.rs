//! Which web pages may call.

use http::header::{HeaderName, ORIGIN};
use http::{HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Headers that a page may read beside the usual ones; the clients follow them.
const EXPOSED: [HeaderName; 5] = [
    HeaderName::from_static("content-location"),
    HeaderName::from_static("location"),
    HeaderName::from_static("x-pagination-total"),
    HeaderName::from_static("x-pagination-next"),
    HeaderName::from_static("x-request-id"),
];

/// Answers preflights and marks every answer with `vary: Origin`. Without named origins any page may call, from the
/// public network into a private one too (a hosted studio talks to a server on this machine). Nothing here is opened
/// by a cookie, so an answer tells a page no more than its own request could learn.
pub(super) fn layer(origins: &[String]) -> CorsLayer {
    let origin = if origins.is_empty() {
        AllowOrigin::mirror_request()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
            Method::HEAD,
            Method::OPTIONS,
        ])
        .allow_headers(AllowHeaders::mirror_request())
        .allow_credentials(true)
        .allow_private_network(true)
        .expose_headers(EXPOSED)
        .max_age(std::time::Duration::from_secs(600))
        .vary([ORIGIN])
}
