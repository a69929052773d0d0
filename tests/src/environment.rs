//! The one place where tests read the environment.

/// The value of `name`, unless it is unset or empty.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the servers to test against are handed over in the environment"
)]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
