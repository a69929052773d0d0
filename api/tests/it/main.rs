//! The platform surface and the agent surface, called in-process.

mod accepted_json;
mod agent;
mod auth;
mod contract;
mod dashboard;
mod datasets;
mod deployments;
mod documents;
#[path = "../../../tests/src/environment.rs"]
mod environment;
mod exports;
mod failed_keys;
mod feedback_links;
mod gateway;
mod gateway_access;
mod guide;
mod idempotency;
mod key_admins;
mod keys;
mod limits;
mod load_shedding;
mod operating;
mod operations;
mod own_auth;
mod pages;
mod quarantine;
#[path = "../../../tests/src/random.rs"]
mod random;
mod reading;
mod registry;
mod sandboxes;
mod scopes;
mod serving;
mod sessions;
mod spans;
mod tls;
mod traces;
mod world;
