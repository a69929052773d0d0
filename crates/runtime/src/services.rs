//! What graphs need of the process they run in.

use std::fmt;
use std::sync::Arc;

use towpath_domain::Clock;
use towpath_outbound::Guard;

/// Looks a secret up by name.
type Secrets = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Process-wide services of graphs, besides the [`crate::Host`] of a run.
#[derive(Clone, Default)]
pub struct GraphServices {
    /// Time of checkpoints and events.
    pub clock: Clock,
    guard: Option<Guard>,
    secrets: Option<Secrets>,
}

impl GraphServices {
    /// With the machine's clock, without HTTP calls and secrets.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            guard: None,
            secrets: None,
        }
    }

    /// Lets graphs call the addresses that `guard` allows.
    #[must_use]
    pub fn with_guard(mut self, guard: Guard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Resolves the secrets named in `api_key_env` and `${NAME}` of headers.
    #[must_use]
    pub fn with_secrets(mut self, secrets: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        self.secrets = Some(Arc::new(secrets));
        self
    }

    pub(crate) fn guard(&self) -> Option<&Guard> {
        self.guard.as_ref()
    }

    pub(crate) fn secret(&self, name: &str) -> Option<String> {
        self.secrets.as_ref().and_then(|secrets| secrets(name))
    }
}

impl fmt::Debug for GraphServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outside")
            .field("clock", &self.clock)
            .field("guard", &self.guard)
            .field("secrets", &self.secrets.as_ref().map(|_| "***"))
            .finish()
    }
}
