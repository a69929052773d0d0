//! `/info`: capabilities of this server, which tracing clients read once.

use axum::extract::State;
use serde::Serialize;

use crate::app::App;
use crate::extract::Json;

/// The newest interface version of the tracing clients that this server supports: they warn about an older one.
const COMPATIBLE_WITH: &str = "0.16.14";

/// The clients' own default.
const BATCH_BYTES: usize = 20 * 1024 * 1024;

/// Capabilities of this server.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Info {
    /// Interface version, as the tracing clients count.
    version: &'static str,
    /// Product name.
    product: &'static str,
    product_version: &'static str,
    batch_ingest_config: BatchIngest,
    instance_flags: Flags,
}

/// Limits of batches.
#[derive(Serialize, utoipa::ToSchema)]
struct BatchIngest {
    use_multipart_endpoint: bool,
    /// Maximum number of operations in one body.
    size_limit: u32,
    /// Maximum number of bytes in one body.
    size_limit_bytes: usize,
    scale_up_nthreads_limit: u32,
    scale_up_qsize_trigger: u32,
    scale_down_nempty_trigger: u32,
}

/// Feature flags for clients.
#[derive(Serialize, utoipa::ToSchema)]
struct Flags {
    zstd_compression_enabled: bool,
    gzip_body_enabled: bool,
    /// Examples can be sent with files.
    dataset_examples_multipart_enabled: bool,
}

/// Get version and capabilities of this server. Needs no key.
#[utoipa::path(get, path = "/info", tag = "server", security(()),
    responses((status = 200, description = "Version and capabilities", body = Info)))]
pub async fn get(State(app): State<App>) -> Json<Info> {
    Json(Info {
        version: COMPATIBLE_WITH,
        product: "towpath",
        product_version: env!("CARGO_PKG_VERSION"),
        batch_ingest_config: BatchIngest {
            use_multipart_endpoint: true,
            size_limit: 100,
            size_limit_bytes: app.settings.ingest_body_bytes.min(BATCH_BYTES),
            scale_up_nthreads_limit: 16,
            scale_up_qsize_trigger: 1000,
            scale_down_nempty_trigger: 4,
        },
        instance_flags: Flags {
            zstd_compression_enabled: true,
            gzip_body_enabled: true,
            dataset_examples_multipart_enabled: true,
        },
    })
}
