//! HTTP in, HTTP out.
//!
//! Promises: a 2xx for created work means it is committed; every refusal says what to do, in the shape the caller's
//! client reads; no caller sees another workspace's data or an inside of ours. Leaves to others: SQL, retries, and
//! waiting for work. A handler unpacks, decides, writes and answers.

pub mod agent;
pub mod app;
pub mod auth;
mod body;
mod browser;
pub mod client;
pub mod errors;
pub mod extract;
pub mod layers;
pub mod limits;
pub mod metric;
pub mod ops;
pub mod platform;
pub mod serve;

mod concurrency;
mod docs;
mod failed_keys;
mod gateway;
mod gateway_signature;
mod idempotency;
mod ingress;
mod internal;
mod key_layers;
mod paths;
mod platform_routes;
mod registry;
mod request_permits;
mod routes;
mod scopes;
mod session;
#[cfg(test)]
mod test_headers;
mod ui;

pub use app::{App, GatewayAccess, Parts, QueryExecutor, Settings};
pub use client::Proxies;
pub use errors::ApiError;
pub use limits::Limits;
pub use ops::{Health, Ops, health_router};
pub use platform_routes::{UndescribedRoutes, platform_router};
#[doc(hidden)]
pub use routes::Route;
pub use scopes::{UndeclaredRoute, required_scopes};
pub use serve::serve;
