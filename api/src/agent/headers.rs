//! Headers that the graphs' author lists: which names match, and the log of them.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderName};
use serde_json::{Value, json};
use towpath_domain::agent::Object;

use super::app::Settings;

/// Headers with credentials, which are not logged whatever the author lists.
const CREDENTIALS: [HeaderName; 6] = [
    AUTHORIZATION,
    COOKIE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-service-key"),
    HeaderName::from_static("x-auth-key"),
];

/// Characters of a logged value.
const MAX_VALUE: usize = 500;

/// Whether a name fits one of the patterns, in which `*` stands for any part.
pub(super) fn matches_any(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| matches_pattern(pattern, name))
}

fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => {
            let Some(tail) = name.strip_prefix(start) else {
                return false;
            };
            rest.is_empty()
                || tail.char_indices().any(|(at, _)| matches_pattern(rest, &tail[at..]))
                || matches_pattern(rest, "")
        }
    }
}

/// Logs the listed headers of each request, if any are listed.
pub(super) fn logged(router: Router, settings: &Settings) -> Router {
    if settings.logged_headers.is_empty() {
        return router;
    }
    let patterns = Arc::new(LogPatterns {
        includes: settings.logged_headers.clone(),
        excludes: settings.unlogged_headers.clone(),
    });
    router.layer(from_fn_with_state(patterns, log))
}

struct LogPatterns {
    includes: Vec<String>,
    excludes: Vec<String>,
}

impl LogPatterns {
    fn select(&self, headers: &HeaderMap) -> Object {
        let mut selected = Object::new();
        for name in headers.keys().filter(|name| !CREDENTIALS.contains(name)) {
            if matches_any(&self.includes, name.as_str()) && !matches_any(&self.excludes, name.as_str()) {
                let values = headers.get_all(name).iter();
                let texts: Vec<_> = values.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
                let text: String = texts.join(", ").chars().take(MAX_VALUE).collect();
                selected.insert(name.as_str().to_owned(), json!(text));
            }
        }
        selected
    }
}

async fn log(State(patterns): State<Arc<LogPatterns>>, request: Request, next: Next) -> Response {
    let headers = patterns.select(request.headers());
    if !headers.is_empty() {
        tracing::info!(http.headers = %Value::Object(headers), "received a request");
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_headers::headers;

    #[test]
    fn patterns_name_headers() {
        for (pattern, name, expected) in [
            ("accept", "accept", true),
            ("accept", "accept-language", false),
            ("my-*", "my-header", true),
            ("*-id", "session-id", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abcd", false),
            ("*", "anything", true),
        ] {
            assert_eq!(matches_pattern(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn credentials_are_not_logged_with_all_headers() {
        let sent = headers(&[
            ("x-user", "ada"),
            ("accept", "a"),
            ("x-noise", "n"),
            ("x-api-key", "secret"),
            ("authorization", "Bearer secret"),
            ("cookie", "secret"),
        ]);
        let patterns = |includes: &[&str], excludes: &[&str]| LogPatterns {
            includes: includes.iter().map(|&name| name.to_owned()).collect(),
            excludes: excludes.iter().map(|&name| name.to_owned()).collect(),
        };
        let selected = patterns(&["*"], &["x-no*"]).select(&sent);
        assert_eq!(Value::Object(selected), json!({"x-user": "ada", "accept": "a"}));
        let named = patterns(&["authorization", "x-user"], &[]).select(&sent);
        assert_eq!(Value::Object(named), json!({"x-user": "ada"}));
    }

    #[test]
    fn long_values_are_cut() {
        let long = "x".repeat(2 * MAX_VALUE);
        let patterns = LogPatterns {
            includes: vec!["x-*".to_owned()],
            excludes: Vec::new(),
        };
        let selected = patterns.select(&headers(&[("x-long", &long)]));
        assert_eq!(selected["x-long"].as_str().map(str::len), Some(MAX_VALUE));
    }
}
