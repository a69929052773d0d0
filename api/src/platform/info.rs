//! `/info`: what this server can do, as the tracing clients ask it once.

use axum::extract::State;
use serde::Serialize;

use crate::app::App;
use crate::extract::Json;

/// The newest interface of the tracing clients that this server speaks: below it they warn.
const COMPATIBLE_WITH: &str = "0.16.14";

/// What the clients take for granted where nothing is said.
const BATCH_BYTES: usize = 20 * 1024 * 1024;

/// What this server can do.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Info {
    /// The version of the interface, as the tracing clients count.
    version: &'static str,
    /// What this is.
    product: &'static str,
    /// Its own version.
    product_version: &'static str,
    batch_ingest_config: BatchIngest,
    instance_flags: Flags,
}

/// How the clients shall send.
#[derive(Serialize, utoipa::ToSchema)]
struct BatchIngest {
    use_multipart_endpoint: bool,
    /// Most operations in one body.
    size_limit: u32,
    /// Most bytes in one body.
    size_limit_bytes: usize,
    scale_up_nthreads_limit: u32,
    scale_up_qsize_trigger: u32,
    scale_down_nempty_trigger: u32,
}

/// What the clients may use.
#[derive(Serialize, utoipa::ToSchema)]
struct Flags {
    zstd_compression_enabled: bool,
    gzip_body_enabled: bool,
    /// Examples come with their files.
    dataset_examples_multipart_enabled: bool,
}

/// Versions and abilities of this server. Needs no key.
#[utoipa::path(get, path = "/info", tag = "server", security(()),
    responses((status = 200, description = "Versions and abilities", body = Info)))]
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
