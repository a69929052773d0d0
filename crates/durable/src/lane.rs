//! Lanes as workflows name them.

/// A limit on concurrent jobs of one key. Jobs enter in the order they were recorded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    pub(crate) key: String,
    pub(crate) limit: i64,
}

impl Lane {
    /// A lane with `places` slots, at least one. An existing lane takes over the last given number.
    pub fn new(key: impl Into<String>, places: u32) -> Self {
        Self {
            key: key.into(),
            limit: i64::from(places.max(1)),
        }
    }

    /// What the lane limits, such as `thread:…`.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}
