//! Names of files in a backup that several parts of it know.

use super::keys::{PLATFORM, SEALED};

/// The database of an agent server.
pub(super) const AGENT: &str = "agent.db";
/// Describes the volume that a deployment's folder in a backup was copied from.
pub(super) const RECORD: &str = "placed.json";
/// Files that are in the data folder even if the database is in a volume.
pub(super) const OWN: [&str; 2] = [PLATFORM, SEALED];
