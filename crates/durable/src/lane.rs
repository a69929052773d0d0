//! Lanes as workflows name them.

/// A limit on how many jobs of one key are at work at once. Jobs enter in the order they were recorded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    pub(crate) key: String,
    pub(crate) places: i64,
}

impl Lane {
    /// A lane of `places`, at least one. A lane that exists takes over the number given last.
    pub fn new(key: impl Into<String>, places: u32) -> Self {
        Self {
            key: key.into(),
            places: i64::from(places.max(1)),
        }
    }

    /// What the lane is about, such as `thread:…`.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}
