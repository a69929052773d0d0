//! The platform surface and the agent surface, called in-process.

mod accepted_json;
mod agent;
mod auth;
mod contract;
mod dashboard;
mod datasets;
mod deployments;
#[path = "../../../tests/src/dice.rs"]
mod dice;
mod documents;
#[path = "../../../tests/src/environment.rs"]
mod environment;
mod exports;
mod feedback_links;
mod gateway;
mod gateway_access;
mod guessing;
mod idempotency;
mod key_admins;
mod keys;
mod limits;
mod operating;
mod operations;
mod own_auth;
mod quarantine;
mod reading;
mod registry;
mod sandboxes;
mod scopes;
mod serving;
mod sessions;
mod shedding;
mod spans;
mod tls;
mod traces;
mod world;
