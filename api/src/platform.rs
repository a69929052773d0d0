//! The platform API: trace ingest and queries, evaluations, exports, deployments and sandboxes.

pub mod annotation_queues;
pub mod attachments;
pub mod datasets;
pub mod deployments;
pub mod destinations;
pub mod exports;
pub mod feedback;
pub mod feedback_configs;
pub mod image_pull_secrets;
pub mod info;
pub mod ingest;
pub mod integrations;
pub mod listeners;
pub mod model_prices;
pub mod names;
pub mod otel;
pub mod prompts;
pub mod revision_logs;
pub mod revisions;
pub mod runs;
pub mod sandboxes;
pub mod sessions;
pub mod settings;
pub mod sign_in;
pub mod source_uploads;
pub mod usage;
