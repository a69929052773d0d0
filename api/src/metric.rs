//! What the surfaces count. Routes are templates and statuses are classes: labels are bounded, whatever is sent.

towpath_domain::metric_table! {
    fn describe_table;

    counter REQUESTS = "towpath_http_requests_total", "HTTP requests answered, by route template and class of status";
    histogram REQUEST_SECONDS = "towpath_http_request_seconds",
        "From the first byte of the body a handler may read to the head of the answer";
    gauge IN_FLIGHT = "towpath_http_requests_in_flight", "HTTP requests being worked on";
    counter PANICS = "towpath_http_panics_total", "Handlers that panicked", from_start;
    counter SHED = "towpath_shed_total",
        "Requests refused at once, by reason: too many in progress (requests), too many of one workspace (share), too \
         little memory (ingest_memory, bodies), too much unflushed trace data (backlog), a nearly full disk (disk), \
         too many connections of one address (connections), or too many invalid keys of one address (failed_keys)";
    gauge INGEST_MEMORY = "towpath_ingest_memory_bytes", "Memory held by ingest bodies in progress";
    counter INGEST_REFUSED = "towpath_ingest_refused_total", "Ingest requests refused for lack of memory", from_start;
    counter INGEST_ITEMS = "towpath_ingest_items_total",
        "Items accepted by trace ingest: operation (a post or patch of a run), feedback, attachment";
    counter INGEST_BYTES = "towpath_ingest_bytes_total",
        "Bytes of accepted ingest bodies as sent, compressed or not", from_start;
    counter INGEST_DECODED = "towpath_ingest_decoded_bytes_total", "Bytes of accepted ingest bodies once unpacked";
    gauge DEPENDENCY_UP = "towpath_dependency_up",
        "1 while the dependency answers this process, else 0: database, objects, disk, redis";
    histogram GATEWAY_HELD = "towpath_gateway_held_seconds",
        "What a request to a deployment waited for its agent server to be found and connected";
    counter LIMITED = "towpath_limited_total",
        "Requests refused with 429 because their caller exceeded a rate limit, by limit";
    counter SIGN_INS = "towpath_sign_ins_total", "Requested sessions, by outcome: granted, refused";
    gauge EVENT_STREAMS = "towpath_agent_event_streams",
        "Open streams of the thread-centric streaming protocol, by transport (sse, websocket)";
    counter BOX_COMMANDS = "towpath_sandbox_commands_total",
        "Commands that were started or attached to in sandboxes, by transport (websocket, events, http)";
    histogram BOX_HELD = "towpath_sandbox_held_seconds",
        "What a request to a sandbox waited until that ran and its agent was found";
}

pub fn describe() {
    describe_table();
    for transport in ["websocket", "events", "http"] {
        metrics::counter!(BOX_COMMANDS, "transport" => transport).absolute(0);
    }
    for reason in [
        "requests",
        "share",
        "ingest_memory",
        "bodies",
        "backlog",
        "connections",
        "failed_keys",
        "disk",
    ] {
        metrics::counter!(SHED, "reason" => reason).absolute(0);
    }
}
