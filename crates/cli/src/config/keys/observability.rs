//! Outbound calls, logs and telemetry.

use crate::config::key::{Fallback, Key};
use crate::config::kind::Kind;

pub const KEYS: &[Key] = &[
    Key {
        name: "outbound.allow",
        environment: &[],
        default: Fallback::Text(""),
        kind: Kind::Allowed,
        about: "private addresses that may be called: host, host:port, address, 10.0.0.0/8, or :port",
    },
    Key {
        name: "log.filter",
        environment: &["TOWPATH_LOG", "RUST_LOG"],
        default: Fallback::Text("info,apalis_core=warn,sqlx=warn"),
        kind: Kind::LogFilter,
        about: "log level, as in info or info,towpath_durable=debug",
    },
    Key {
        name: "log.format",
        environment: &[],
        default: Fallback::Text("auto"),
        kind: Kind::Choice(&["auto", "text", "json"]),
        about: "text for people, json for programs; auto chooses text on a terminal",
    },
    Key {
        name: "telemetry.otlp_endpoint",
        environment: &["TOWPATH_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"],
        default: Fallback::Absent,
        kind: Kind::Uri(&["http", "https"]),
        about: "OpenTelemetry collector for the spans of requests and jobs, as http://host:4318; absent: none",
    },
];
