//! Cache of authenticated callers, if the config file enables it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use towpath_domain::Timestamp;
use towpath_runtime::hosted::{Caller, Request};

/// Caching of authenticated callers.
#[derive(Clone, Debug)]
pub struct AuthCache {
    /// Headers that identify a caller, in lower case.
    pub headers: Vec<String>,
    /// How long.
    pub ttl: Duration,
    /// Maximum number of cached callers.
    pub max_entries: usize,
}

/// Values of the headers that identify a caller.
pub(super) type CallerKey = Vec<Vec<String>>;

#[derive(Debug, Default)]
pub(in crate::agent) struct CallerCache(Mutex<HashMap<CallerKey, CacheEntry>>);

/// Expiry and caller.
type CacheEntry = (Timestamp, Arc<Caller>);

impl CallerCache {
    pub(super) fn find(&self, key: &[Vec<String>], now: Timestamp) -> Option<Arc<Caller>> {
        let known = self.0.lock();
        let (until, caller) = known.get(key)?;
        (now < *until).then(|| caller.clone())
    }

    pub(super) fn insert(&self, key: CallerKey, caller: Arc<Caller>, cache: &AuthCache, now: Timestamp) {
        let mut known = self.0.lock();
        if known.len() >= cache.max_entries {
            known.retain(|_, (until, _)| now < *until);
        }
        if known.len() < cache.max_entries {
            known.insert(key, (now.plus(cache.ttl), caller));
        }
    }
}

/// Cache key of a request. Repeated headers differ from single ones, and empty headers from absent ones.
pub(super) fn key(cache: &AuthCache, request: &Request) -> CallerKey {
    let values = |name: &String| {
        let sent = request.headers.iter().filter(|(known, _)| known == name);
        sent.map(|(_, value)| value.clone()).collect()
    };
    cache.headers.iter().map(values).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_differ_are_callers_that_differ() {
        let cache = AuthCache {
            headers: vec!["authorization".to_owned()],
            ttl: Duration::from_secs(1),
            max_entries: 10,
        };
        let of = |values: &[&str]| {
            let headers = values
                .iter()
                .map(|value| ("authorization".to_owned(), (*value).to_owned()));
            let request = Request {
                headers: headers.collect(),
                ..Request::default()
            };
            key(&cache, &request)
        };
        assert_eq!(of(&["Bearer ann"]), of(&["Bearer ann"]));
        assert_ne!(of(&["Bearer ann"]), of(&["Bearer ann", "Bearer bob"]));
        assert_ne!(of(&[]), of(&[""]));
    }
}
