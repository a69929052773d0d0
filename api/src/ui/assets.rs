//! Static files of the dashboard, compiled into the binary.

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};

/// Part of asset addresses, so that browsers do not use cached assets of another version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The logo, inlined into pages.
pub(crate) const MARK: &str = concat!(
    "<svg viewBox=\"0 0 32 32\" aria-hidden=\"true\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2.4\" ",
    "stroke-linecap=\"round\" stroke-linejoin=\"round\"><path d=\"M7 17h18l-3-5H10zM14 12V6.500h4V12\"/>",
    "<path d=\"M3 22.500c3.200 0 3.200-2 6.500-2s3.200 2 6.500 2 3.200-2 6.500-2 3.200 2 6.500 2\"/>",
    "<path d=\"M3 27.500c3.200 0 3.200-2 6.500-2s3.200 2 6.500 2 3.200-2 6.500-2 3.200 2 6.500 2\"/></svg>",
);

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// A file by its name.
pub(super) async fn get(Path(name): Path<String>) -> Response {
    let (kind, text): (_, &'static [u8]) = match name.as_str() {
        "towpath.css" => ("text/css; charset=utf-8", include_bytes!("../../assets/towpath.css")),
        "towpath.js" => (JAVASCRIPT, include_bytes!("../../assets/towpath.js")),
        "htmx.js" => (JAVASCRIPT, include_bytes!("../../assets/vendor/htmx-2.0.11.min.js")),
        "idiomorph.js" => (JAVASCRIPT, include_bytes!("../../assets/vendor/idiomorph-0.7.4.min.js")),
        "icon.svg" => ("image/svg+xml", include_bytes!("../../assets/icon.svg")),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let headers = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "public, max-age=86400"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text).into_response()
}
