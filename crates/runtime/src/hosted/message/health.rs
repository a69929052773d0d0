//! Health, logs, end.

use serde::{Deserialize, Serialize};

/// Asks whether the process lives.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ping {
    /// Comes back.
    pub t: u64,
}

/// The process lives.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Pong {
    /// Of the ping.
    pub t: u64,
    /// How long the event loop has not answered.
    #[serde(default)]
    pub loop_lag_ms: u64,
    /// Memory of the process.
    #[serde(default)]
    pub rss_bytes: u64,
    /// Threads that are still at work for requests that are over.
    #[serde(default)]
    pub stray_threads: u64,
}

/// A line of the child's log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Log {
    /// `debug`, `info`, `warning`, `error`.
    #[serde(default)]
    pub level: String,
    /// Who says it.
    pub logger: Option<String>,
    #[serde(default)]
    pub message: String,
    /// In the name of which run.
    pub run: Option<String>,
    pub thread: Option<String>,
    pub graph: Option<String>,
}

/// End.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Shutdown {
    /// How long runs may continue.
    pub grace_ms: u64,
}
