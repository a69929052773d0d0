//! What is known of the platform's program at the engine.

/// What this life knows of its program.
#[derive(Debug, Default)]
pub(super) struct ProgramCache {
    /// The beginning of its digest.
    pub(super) digest: Option<String>,
    /// Whether the volume was filled.
    pub(super) filled: bool,
}
