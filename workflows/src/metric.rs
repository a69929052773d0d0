//! Metrics of workflows.

towpath_domain::metric_table! {
    fn describe_table;

    counter EXPORT_ROWS = "towpath_export_rows_total", "Rows in finished files of exports", from_start;
    counter EXPORT_BYTES = "towpath_export_bytes_total", "Bytes of finished files of exports", from_start;
    counter EXPORT_FILES = "towpath_export_files_total", "Finished files of exports", from_start;
    counter PATCHES_DROPPED = "towpath_pending_patches_dropped_total",
        "Patches dropped because their trace run never arrived", from_start;
    counter PATCHES_EVICTED = "towpath_pending_patches_evicted_total",
        "Patches dropped because too many waited for their trace runs", from_start;
    counter ATTACHMENTS_ORPHANED = "towpath_attachments_orphaned_total",
        "Attachments dropped because their trace run never arrived", from_start;
    counter ATTACHMENTS_REMOVED = "towpath_attachments_removed_total",
        "Objects of attachments removed because a later file replaced them or their trace run was deleted", from_start;
    counter SEGMENTS_REMOVED = "towpath_segments_removed_total",
        "Segments removed because their rows were moved or deleted", from_start;
    counter REMOVALS_FAILED = "towpath_segment_removals_failed_total",
        "Failed attempts to remove a segment; each is retried later", from_start;
    counter QUARANTINE_DROPPED = "towpath_quarantine_dropped_total",
        "Entries dropped from quarantine because their workspace exceeded its quota", from_start;
    counter ITEMS_EMBEDDED = "towpath_items_embedded_total",
        "Items of the store whose vectors were written", from_start;
    counter ITEMS_REFUSED = "towpath_items_refused_total",
        "Attempts to embed an item that failed because the embedder refused it", from_start;
    histogram DEPLOYMENT_STEP_SECONDS = "towpath_deployment_step_seconds", "Duration of successful steps of revisions";
    gauge BOXES = "towpath_sandboxes", "Sandboxes by node and status, from the process that runs them";
    gauge BOX_CONNECTIONS = "towpath_sandbox_connections",
        "Open connections to sandboxes: commands, files, tunnels, services";
    histogram BOX_START_SECONDS = "towpath_sandbox_start_seconds", "Time to start a sandbox, until its agent answers";
    counter BOX_STARTS_FAILED = "towpath_sandbox_starts_failed_total",
        "Failed attempts to start a sandbox; some are retried", from_start;
    counter BOXES_LOST = "towpath_sandboxes_lost_total",
        "Sandboxes that stopped unexpectedly: their processes were killed, the machine was restarted, or its node was \
         lost", from_start;
    gauge NODES = "towpath_sandbox_nodes", "Nodes of sandboxes by state (active, draining, lost), from a scheduler";
    counter NODE_CALLS_FAILED = "towpath_sandbox_node_calls_failed_total",
        "Connections to nodes of sandboxes that failed, by node";
    counter NODE_PEERS_REFUSED = "towpath_sandbox_node_peers_refused_total",
        "Connections to this node by peers that do not belong to the installation";
    counter NETWORK_BYTES = "towpath_sandbox_network_bytes_total",
        "Bytes that sandboxes sent to their proxies and received from them";
    counter NETWORK_CONNECTIONS = "towpath_sandbox_network_connections_total",
        "Connections of sandboxes to their proxies", from_start;
    counter NETWORK_REFUSED = "towpath_sandbox_network_refused_total",
        "Requests and connections of sandboxes that their proxies did not forward", from_start;
}

pub fn describe() {
    describe_table();
    for direction in ["sent", "received"] {
        metrics::counter!(NETWORK_BYTES, "direction" => direction).absolute(0);
    }
}
