//! Files that may lie at a destination although no record lists them.
//!
//! A file becomes visible before it is recorded. In between, its attempt may have been replaced and the file given up, or
//! the run may have ended. Then nobody records the file any more, however late it becomes visible:
//!
//! ```text
//! attempt 1   pending: a ─────── (frozen) ───────────────────► a becomes visible ─► looks: given up ─► removes a
//! attempt 2        cannot make a again: gives it up ─► pending: b ─► b visible ─► b recorded
//! ```
//! An attempt that dies before it looks leaves its file to the clean-up behind the run, see [`crate::clean_export`].

use object_store::path::Path;
use towpath_domain::{ExportId, ExportRunId, TenantId};
use towpath_outbound::Destination;
use towpath_store::exports::{files, runs};
use towpath_store::{self as store, Tx, jobs};

use super::ExportPart;
use super::cursor::Cursor;
use crate::World;

/// Keys of files of this run that nobody will record. Each may be visible, and must not be.
///
/// # Errors
/// Those of the database.
pub(crate) async fn keys(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    export: ExportId,
    run: ExportRunId,
) -> store::Result<Vec<String>> {
    // The state first: of a run that is over nothing changes any more.
    let row = runs::get(tx, tenant, export, run).await?;
    let job = jobs::get(tx, row.job_id).await?;
    let Some(text) = job.and_then(|job| job.cursor) else {
        return Ok(Vec::new());
    };
    let cursor: Cursor = serde_json::from_str(&text).map_err(|_| store::Error::corrupt("job", "cursor", row.job_id))?;
    let mut keys = cursor.given_up;
    if row.status.is_final() {
        keys.extend(cursor.pending.map(|pending| pending.file_path));
    }
    let recorded = files::of_run(tx, run).await?;
    keys.retain(|key| recorded.iter().all(|file| file.path != *key));
    Ok(keys)
}

impl ExportPart {
    /// Removes the file that this attempt has just made visible if nobody will record it. Called where recording it failed;
    /// what goes wrong here is made up for by the clean-up.
    pub(super) async fn remove_if_left_over(&self, world: &World, destination: &Destination, path: &Path) {
        let &Self { tenant, export, run } = self;
        let keys = world.store.read(async |tx| keys(tx, tenant, export, run).await).await;
        if !keys.is_ok_and(|keys| keys.iter().any(|key| key == path.as_ref())) {
            return;
        }
        match destination.remove(path).await {
            Ok(()) => tracing::info!(object.path = %path, "removed a file of an attempt that was replaced"),
            Err(failure) => {
                tracing::info!(%failure, "a file of an attempt that was replaced cannot be removed now; the clean-up behind the run removes it");
            }
        }
    }
}
