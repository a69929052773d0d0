//! Labels of everything that the platform creates at an engine.

/// Whose it is: the root folder.
pub(super) const ROOT_LABEL: &str = "dev.towpath.root";
/// Which life of the process made it.
pub(super) const LIFE_LABEL: &str = "dev.towpath.life";
pub(super) const DEPLOYMENT_LABEL: &str = "dev.towpath.deployment";
pub(super) const REVISION_LABEL: &str = "dev.towpath.revision";
/// The id of the database in a volume.
pub(super) const DATABASE_LABEL: &str = "dev.towpath.database";
