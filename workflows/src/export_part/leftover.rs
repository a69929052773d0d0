//! Files that may exist at a destination without a record.
//!
//! A file becomes visible before it is recorded. In between, its attempt may be replaced and the file abandoned, or the
//! run may end. Then the file is never recorded, however late it becomes visible:
//!
//! ```text
//! attempt 1   pending: a ─────── (frozen) ───────────────────► a becomes visible ─► checks: abandoned ─► removes a
//! attempt 2        cannot recreate a: abandons it ─► pending: b ─► b visible ─► b recorded
//! ```
//! An attempt that dies before its check leaves the file to the cleanup of the run, see [`crate::clean_export`].

use object_store::path::Path;
use towpath_domain::{ExportId, ExportRunId, TenantId};
use towpath_outbound::Destination;
use towpath_store::exports::{files, runs};
use towpath_store::{self as store, Tx, jobs};

use super::ExportPart;
use super::cursor::Cursor;
use crate::Services;

/// Keys of files of this run that will never be recorded. They may be visible and must be removed.
pub(crate) async fn keys(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    export: ExportId,
    run: ExportRunId,
) -> store::Result<Vec<String>> {
    // The state first: an ended run no longer changes.
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
    /// Removes the file that this attempt has just made visible, if it will not be recorded. Called after recording it
    /// failed; the cleanup handles errors here.
    pub(super) async fn remove_if_left_over(&self, world: &Services, destination: &Destination, path: &Path) {
        let &Self { tenant, export, run } = self;
        let keys = world.store.read(async |tx| keys(tx, tenant, export, run).await).await;
        if !keys.is_ok_and(|keys| keys.iter().any(|key| key == path.as_ref())) {
            return;
        }
        match destination.remove(path).await {
            Ok(()) => tracing::info!(object.path = %path, "removed a file of a replaced attempt"),
            Err(failure) => {
                tracing::info!(%failure, "a file of a replaced attempt cannot be removed now; the cleanup of the run \
                                          removes it");
            }
        }
    }
}
