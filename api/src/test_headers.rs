//! For unit tests: header maps written as pairs.

use http::{HeaderMap, HeaderName, HeaderValue};

/// A name that is given twice has both values.
pub(crate) fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}
