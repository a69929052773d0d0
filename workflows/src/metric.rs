//! What workflows count.

use metrics::Unit;

pub(crate) const EXPORT_ROWS: &str = "towpath_export_rows_total";
pub(crate) const EXPORT_BYTES: &str = "towpath_export_bytes_total";
pub(crate) const EXPORT_FILES: &str = "towpath_export_files_total";

pub(crate) const PATCHES_DROPPED: &str = "towpath_pending_patches_dropped_total";
pub(crate) const PATCHES_EVICTED: &str = "towpath_pending_patches_evicted_total";
pub(crate) const ATTACHMENTS_ORPHANED: &str = "towpath_attachments_orphaned_total";
pub(crate) const ATTACHMENTS_REMOVED: &str = "towpath_attachments_removed_total";
pub(crate) const SEGMENTS_REMOVED: &str = "towpath_segments_removed_total";
pub(crate) const REMOVALS_FAILED: &str = "towpath_segment_removals_failed_total";
pub(crate) const QUARANTINE_DROPPED: &str = "towpath_quarantine_dropped_total";

pub(crate) const DEPLOYMENT_STEP_SECONDS: &str = "towpath_deployment_step_seconds";

/// Says what the metrics of this room mean.
pub fn describe() {
    metrics::describe_counter!(EXPORT_ROWS, Unit::Count, "Rows in finished files of exports");
    metrics::describe_counter!(EXPORT_BYTES, Unit::Bytes, "Bytes of finished files of exports");
    metrics::describe_counter!(EXPORT_FILES, Unit::Count, "Finished files of exports");
    metrics::describe_counter!(
        PATCHES_DROPPED,
        Unit::Count,
        "Patches given up because their trace run never came"
    );
    metrics::describe_counter!(
        PATCHES_EVICTED,
        Unit::Count,
        "Patches given up because too many waited for their trace runs"
    );
    metrics::describe_counter!(
        ATTACHMENTS_ORPHANED,
        Unit::Count,
        "Attachments given up because their trace run never came"
    );
    metrics::describe_counter!(
        ATTACHMENTS_REMOVED,
        Unit::Count,
        "Objects of attachments removed because a later file took their place or their trace run is gone"
    );
    metrics::describe_counter!(
        SEGMENTS_REMOVED,
        Unit::Count,
        "Segments removed because their rows lie elsewhere or were deleted"
    );
    metrics::describe_counter!(
        REMOVALS_FAILED,
        Unit::Count,
        "Attempts to remove a segment that failed; each is repeated later"
    );
    metrics::describe_counter!(
        QUARANTINE_DROPPED,
        Unit::Count,
        "Entries dropped from quarantine because their workspace had more than its quota"
    );
    metrics::describe_histogram!(
        DEPLOYMENT_STEP_SECONDS,
        Unit::Seconds,
        "Time of the steps of revisions that went well"
    );
    for name in [
        EXPORT_ROWS,
        EXPORT_BYTES,
        EXPORT_FILES,
        PATCHES_DROPPED,
        PATCHES_EVICTED,
        ATTACHMENTS_ORPHANED,
        ATTACHMENTS_REMOVED,
        SEGMENTS_REMOVED,
        REMOVALS_FAILED,
        QUARANTINE_DROPPED,
    ] {
        metrics::counter!(name).absolute(0);
    }
}
