//! CORS.

use std::time::Duration;

use http::header::{ACCEPT, ACCEPT_LANGUAGE, CONTENT_LANGUAGE, CONTENT_TYPE, HeaderName, ORIGIN};
use http::{HeaderValue, Method};
use regex::Regex;
use serde::Deserialize;
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer, ExposeHeaders};

/// Exposed headers, which the clients use.
const EXPOSED: [HeaderName; 6] = [
    HeaderName::from_static("content-location"),
    HeaderName::from_static("location"),
    HeaderName::from_static("x-pagination-total"),
    HeaderName::from_static("x-pagination-next"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("mcp-session-id"),
];
const METHODS: [Method; 7] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::HEAD,
    Method::OPTIONS,
];
/// Headers that are always allowed.
const SAFE: [HeaderName; 4] = [ACCEPT, ACCEPT_LANGUAGE, CONTENT_LANGUAGE, CONTENT_TYPE];
/// How long a browser may cache a preflight response.
const MAX_AGE: Duration = Duration::from_secs(600);

/// CORS settings of the graph file (`http.cors`). `*` matches everything.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CorsFile {
    /// Allowed origins.
    pub allow_origins: Option<Vec<String>>,
    /// Pattern of further allowed origins; must match the whole origin.
    pub allow_origin_regex: Option<String>,
    /// Allowed methods; by default all.
    pub allow_methods: Option<Vec<String>>,
    /// Allowed headers; by default all.
    pub allow_headers: Option<Vec<String>>,
    /// Whether browsers may send credentials; by default yes.
    pub allow_credentials: Option<bool>,
    /// Further exposed headers.
    pub expose_headers: Option<Vec<String>>,
    /// Seconds a browser may cache a preflight response; by default 600.
    pub max_age: Option<u64>,
}

/// CORS settings. By default everything is allowed.
#[derive(Clone, Debug)]
pub struct Cors {
    origins: Origins,
    methods: Vec<Method>,
    /// `None` for all.
    headers: Option<Vec<HeaderName>>,
    credentials: bool,
    exposed: Vec<HeaderName>,
    max_age: Duration,
}

#[derive(Clone, Debug)]
enum Origins {
    /// Not configured: all origins may call. Dangerous requests are checked elsewhere.
    Unspecified,
    Any,
    Named(Vec<String>, Option<Regex>),
}

impl Default for Cors {
    fn default() -> Self {
        Self {
            origins: Origins::Unspecified,
            methods: METHODS.to_vec(),
            headers: None,
            credentials: true,
            exposed: EXPOSED.to_vec(),
            max_age: MAX_AGE,
        }
    }
}

impl Cors {
    /// Reads the settings of a file.
    pub fn read(file: &CorsFile) -> Result<Self, String> {
        let any = |texts: &[String]| texts.iter().any(|text| text == "*");
        let pattern = file.allow_origin_regex.as_deref().map(|pattern| {
            // The pattern must match the whole origin: otherwise `https://mine.example.evil.example` could pass.
            Regex::new(&format!("^(?:{pattern})$")).map_err(|error| format!("http.cors.allow_origin_regex: {error}"))
        });
        let origins = match (&file.allow_origins, pattern.transpose()?) {
            (None, None) => Origins::Unspecified,
            (Some(origins), _) if any(origins) => Origins::Any,
            (origins, pattern) => Origins::Named(origins.clone().unwrap_or_default(), pattern),
        };
        let methods = match &file.allow_methods {
            Some(methods) if !any(methods) => {
                let read = |text: &String| text.to_ascii_uppercase().parse();
                let read = methods.iter().map(read).collect::<Result<_, _>>();
                read.map_err(|_| "http.cors.allow_methods: expected names of methods".to_owned())?
            }
            _ => METHODS.to_vec(),
        };
        let headers = match &file.allow_headers {
            Some(names) if !any(names) => Some([&SAFE[..], &named("allow_headers", names)?].concat()),
            _ => None,
        };
        let exposed = match &file.expose_headers {
            Some(names) if !any(names) => [&EXPOSED[..], &named("expose_headers", names)?].concat(),
            _ => EXPOSED.to_vec(),
        };
        Ok(Self {
            origins,
            methods,
            headers,
            credentials: file.allow_credentials.unwrap_or(true),
            exposed,
            max_age: file.max_age.map_or(MAX_AGE, Duration::from_secs),
        })
    }

    /// Allows only these origins, whatever was configured before.
    #[must_use]
    pub fn with_origins(mut self, origins: Vec<String>) -> Self {
        self.origins = if origins.iter().any(|origin| origin == "*") {
            Origins::Any
        } else {
            Origins::Named(origins, None)
        };
        self
    }

    /// Whether an origin is allowed by name or pattern; `None` if none are configured.
    pub(super) fn allows_origin(&self, origin: &str) -> Option<bool> {
        match &self.origins {
            Origins::Unspecified => None,
            Origins::Any => Some(true),
            Origins::Named(origins, pattern) => Some(
                origins.iter().any(|named| named.eq_ignore_ascii_case(origin))
                    || pattern.as_ref().is_some_and(|pattern| pattern.is_match(origin)),
            ),
        }
    }
}

fn named(key: &str, names: &[String]) -> Result<Vec<HeaderName>, String> {
    let read = names.iter().map(|name| name.parse()).collect::<Result<_, _>>();
    read.map_err(|_| format!("http.cors.{key}: expected names of headers"))
}

impl Origins {
    fn layer(&self) -> AllowOrigin {
        let Self::Named(origins, pattern) = self.clone() else {
            return AllowOrigin::mirror_request();
        };
        AllowOrigin::predicate(move |origin: &HeaderValue, _| {
            let fits = |origin: &str| {
                origins.iter().any(|named| named == origin)
                    || pattern.as_ref().is_some_and(|pattern| pattern.is_match(origin))
            };
            origin.to_str().is_ok_and(fits)
        })
    }
}

/// Answers preflight requests and adds `vary: Origin` to every response. If no origins are configured, any page may call,
/// also from the public network into a private one. Cookies give no access here, so a page learns nothing that a program
/// could not.
pub(super) fn layer(cors: &Cors) -> CorsLayer {
    let headers = cors.headers.clone();
    CorsLayer::new()
        .allow_origin(cors.origins.layer())
        .allow_methods(AllowMethods::list(cors.methods.clone()))
        .allow_headers(headers.map_or_else(AllowHeaders::mirror_request, AllowHeaders::list))
        .allow_credentials(cors.credentials)
        .allow_private_network(true)
        .expose_headers(ExposeHeaders::list(cors.exposed.clone()))
        .max_age(cors.max_age)
        .vary([ORIGIN])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Cors, String> {
        Cors::read(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn a_key_that_cannot_be_used_is_named() {
        for (json, key) in [
            (r#"{"allow_origin_regex": "("}"#, "allow_origin_regex"),
            (r#"{"allow_methods": ["G T"]}"#, "allow_methods"),
            (r#"{"allow_headers": ["a b"]}"#, "allow_headers"),
            (r#"{"expose_headers": [""]}"#, "expose_headers"),
        ] {
            assert!(read(json).unwrap_err().contains(key), "{json}");
        }
    }

    #[test]
    fn nothing_said_is_everything_allowed() {
        let cors = read(r#"{"allow_origins": ["https://a.example", "*"], "allow_methods": ["*"]}"#).unwrap();
        assert!(matches!(cors.origins, Origins::Any) && cors.headers.is_none() && cors.credentials);
        assert_eq!(cors.methods.len(), METHODS.len());
    }
}
