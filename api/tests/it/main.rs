//! The platform surface and the agent surface, called in-process.

mod accepted_json;
mod agent;
mod auth;
mod contract;
mod dashboard;
mod deployments;
mod documents;
mod exports;
mod feedback_links;
mod gateway;
mod idempotency;
mod key_admins;
mod keys;
mod operating;
mod operations;
mod quarantine;
mod reading;
mod registry;
mod scopes;
mod serving;
mod sessions;
mod shedding;
mod spans;
mod traces;
mod world;
