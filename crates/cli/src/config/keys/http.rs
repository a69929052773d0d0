//! What an HTTP server takes, and whom it counts.

use crate::config::key::{Fallback, Key};
use crate::config::kind::Kind;

pub const KEYS: &[Key] = &[
    Key {
        name: "http.requests",
        environment: &[],
        default: Fallback::Text("256"),
        kind: Kind::Count { least: 1, most: 65_536 },
        about: "requests served at the same time; more are answered 503",
    },
    Key {
        name: "http.connections_per_address",
        environment: &[],
        default: Fallback::Text("1024"),
        kind: Kind::Count { least: 1, most: 65_536 },
        about: "connections from one address of another machine; more are closed at once. Raise it behind a proxy",
    },
    Key {
        name: "http.failed_keys_per_minute",
        environment: &[],
        default: Fallback::Text("60"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "invalid keys that one address may send in a minute; more are answered 429. Valid keys never are. 0 is no limit",
    },
    Key {
        name: "http.trusted_proxies",
        environment: &[],
        default: Fallback::Text(""),
        kind: Kind::Networks,
        about: "addresses and networks (10.0.0.0/8) of proxies whose X-Forwarded-For, X-Forwarded-Proto and Forwarded are trusted, separated by commas; where the two kinds of headers differ, neither counts",
    },
    Key {
        name: "tls.cert",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::Path,
        about: "certificate in PEM, with its chain; `listen` then speaks TLS, and so does dev's `agent_listen`. Read again when it changes and at SIGHUP",
    },
    Key {
        name: "tls.key",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::Path,
        about: "private key of tls.cert, in PEM without a passphrase",
    },
    Key {
        name: "tls.plain_listen",
        environment: &[],
        default: Fallback::Text("127.0.0.1:8403"),
        kind: Kind::Address,
        about: "loopback address at which a platform API with TLS answers without TLS; agent servers on this machine send their traces there",
    },
    Key {
        name: "limits.rules",
        environment: &["TOWPATH_LIMITS"],
        default: Fallback::Text("off"),
        kind: Kind::Path,
        about: "how often one caller may send requests: off, the rules of the hosted platform in the us or the eu, or a file with rules: docs/limits.md",
    },
    Key {
        name: "limits.requests_per_key",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "requests of one API key in a minute, also to deployments; 0 is no limit",
    },
    Key {
        name: "limits.requests_per_workspace",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "requests about one workspace in a minute, with any key; 0 is no limit",
    },
    Key {
        name: "limits.requests_per_deployment",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "requests to one deployment through the gateway in a minute; 0 is no limit",
    },
    Key {
        name: "metrics.key",
        environment: &["TOWPATH_METRICS_KEY"],
        default: Fallback::Absent,
        kind: Kind::ApiKey,
        about: "bearer token required for metrics and for the names of dependencies in /readyz; at least 32 characters; absent: both are public",
    },
];
