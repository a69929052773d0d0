//! Answers about callers that may be used again, where the config file says so.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use towpath_domain::Timestamp;
use towpath_runtime::hosted::{Caller, Request};

use crate::agent::app::AuthCache;

/// All values of the headers that tell callers apart.
pub(super) type Key = Vec<Vec<String>>;

/// Answers by those headers.
#[derive(Debug, Default)]
pub(in crate::agent) struct Remembered(Mutex<HashMap<Key, Until>>);

/// An answer, and until when it counts.
type Until = (Timestamp, Arc<Caller>);

impl Remembered {
    pub(super) fn find(&self, key: &[Vec<String>], now: Timestamp) -> Option<Arc<Caller>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, caller) = known.get(key)?;
        (now < *until).then(|| caller.clone())
    }

    pub(super) fn keep(&self, key: Key, caller: Arc<Caller>, cache: &AuthCache, now: Timestamp) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= cache.most {
            known.retain(|_, (until, _)| now < *until);
        }
        if known.len() < cache.most {
            known.insert(key, (now.plus(cache.ttl), caller));
        }
    }
}

/// The headers of a request that tell its caller apart. One that is sent twice is not one that is sent once, and one that
/// is empty is not one that is absent.
pub(super) fn key(cache: &AuthCache, request: &Request) -> Key {
    let values = |name: &String| {
        let sent = request.headers.iter().filter(|(known, _)| known == name);
        sent.map(|(_, value)| value.clone()).collect()
    };
    cache.headers.iter().map(values).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn headers_that_differ_are_callers_that_differ() {
        let cache = AuthCache {
            headers: vec!["authorization".to_owned()],
            ttl: Duration::from_secs(1),
            most: 10,
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
