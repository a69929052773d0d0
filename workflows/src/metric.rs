//! Metrics of workflows.

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

pub(crate) const ITEMS_EMBEDDED: &str = "towpath_items_embedded_total";
pub(crate) const ITEMS_REFUSED: &str = "towpath_items_refused_total";

pub(crate) const DEPLOYMENT_STEP_SECONDS: &str = "towpath_deployment_step_seconds";

pub(crate) const BOXES: &str = "towpath_sandboxes";
pub(crate) const BOX_CONNECTIONS: &str = "towpath_sandbox_connections";
pub(crate) const BOX_START_SECONDS: &str = "towpath_sandbox_start_seconds";
pub(crate) const BOX_STARTS_FAILED: &str = "towpath_sandbox_starts_failed_total";
pub(crate) const BOXES_LOST: &str = "towpath_sandboxes_lost_total";
pub(crate) const NODES: &str = "towpath_sandbox_nodes";
pub(crate) const NODE_CALLS_FAILED: &str = "towpath_sandbox_node_calls_failed_total";
pub(crate) const NODE_PEERS_REFUSED: &str = "towpath_sandbox_node_peers_refused_total";
pub(crate) const NETWORK_BYTES: &str = "towpath_sandbox_network_bytes_total";
pub(crate) const NETWORK_CONNECTIONS: &str = "towpath_sandbox_network_connections_total";
pub(crate) const NETWORK_REFUSED: &str = "towpath_sandbox_network_refused_total";

pub fn describe() {
    metrics::describe_counter!(EXPORT_ROWS, Unit::Count, "Rows in finished files of exports");
    metrics::describe_counter!(EXPORT_BYTES, Unit::Bytes, "Bytes of finished files of exports");
    metrics::describe_counter!(EXPORT_FILES, Unit::Count, "Finished files of exports");
    metrics::describe_counter!(
        PATCHES_DROPPED,
        Unit::Count,
        "Patches dropped because their trace run never arrived"
    );
    metrics::describe_counter!(
        PATCHES_EVICTED,
        Unit::Count,
        "Patches dropped because too many waited for their trace runs"
    );
    metrics::describe_counter!(
        ATTACHMENTS_ORPHANED,
        Unit::Count,
        "Attachments dropped because their trace run never arrived"
    );
    metrics::describe_counter!(
        ATTACHMENTS_REMOVED,
        Unit::Count,
        "Objects of attachments removed because a later file replaced them or their trace run was deleted"
    );
    metrics::describe_counter!(
        SEGMENTS_REMOVED,
        Unit::Count,
        "Segments removed because their rows were moved or deleted"
    );
    metrics::describe_counter!(
        REMOVALS_FAILED,
        Unit::Count,
        "Failed attempts to remove a segment; each is retried later"
    );
    metrics::describe_counter!(
        QUARANTINE_DROPPED,
        Unit::Count,
        "Entries dropped from quarantine because their workspace exceeded its quota"
    );
    metrics::describe_counter!(
        ITEMS_EMBEDDED,
        Unit::Count,
        "Items of the store whose vectors were written"
    );
    metrics::describe_counter!(
        ITEMS_REFUSED,
        Unit::Count,
        "Attempts to embed an item that failed because the embedder refused it"
    );
    metrics::describe_histogram!(
        DEPLOYMENT_STEP_SECONDS,
        Unit::Seconds,
        "Duration of successful steps of revisions"
    );
    metrics::describe_gauge!(
        BOXES,
        Unit::Count,
        "Sandboxes by node and status, from the process that runs them"
    );
    metrics::describe_gauge!(
        BOX_CONNECTIONS,
        Unit::Count,
        "Open connections to sandboxes: commands, files, tunnels, services"
    );
    metrics::describe_histogram!(
        BOX_START_SECONDS,
        Unit::Seconds,
        "Time to start a sandbox, until its agent answers"
    );
    metrics::describe_counter!(
        BOX_STARTS_FAILED,
        Unit::Count,
        "Failed attempts to start a sandbox; some are retried"
    );
    metrics::describe_counter!(
        BOXES_LOST,
        Unit::Count,
        "Sandboxes that stopped unexpectedly: their processes were killed, the machine was restarted, or its node was lost"
    );
    metrics::describe_gauge!(
        NODES,
        Unit::Count,
        "Nodes of sandboxes by state (active, draining, lost), from a scheduler"
    );
    metrics::describe_counter!(
        NODE_CALLS_FAILED,
        Unit::Count,
        "Connections to nodes of sandboxes that failed, by node"
    );
    metrics::describe_counter!(
        NODE_PEERS_REFUSED,
        Unit::Count,
        "Connections to this node by peers that do not belong to the installation"
    );
    metrics::describe_counter!(
        NETWORK_BYTES,
        Unit::Bytes,
        "Bytes that sandboxes sent to their proxies and received from them"
    );
    metrics::describe_counter!(
        NETWORK_CONNECTIONS,
        Unit::Count,
        "Connections of sandboxes to their proxies"
    );
    metrics::describe_counter!(
        NETWORK_REFUSED,
        Unit::Count,
        "Requests and connections of sandboxes that their proxies did not forward"
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
        ITEMS_EMBEDDED,
        ITEMS_REFUSED,
        BOX_STARTS_FAILED,
        BOXES_LOST,
        NETWORK_CONNECTIONS,
        NETWORK_REFUSED,
    ] {
        metrics::counter!(name).absolute(0);
    }
    for direction in ["sent", "received"] {
        metrics::counter!(NETWORK_BYTES, "direction" => direction).absolute(0);
    }
}
