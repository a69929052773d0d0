//! What the surfaces count. Routes are templates and statuses are classes: labels are bounded, whatever is sent.

use metrics::Unit;

pub(crate) const REQUESTS: &str = "towpath_http_requests_total";
pub(crate) const REQUEST_SECONDS: &str = "towpath_http_request_seconds";
pub(crate) const IN_FLIGHT: &str = "towpath_http_requests_in_flight";
pub(crate) const PANICS: &str = "towpath_http_panics_total";
pub(crate) const SHED: &str = "towpath_shed_total";
pub(crate) const INGEST_MEMORY: &str = "towpath_ingest_memory_bytes";
pub(crate) const INGEST_REFUSED: &str = "towpath_ingest_refused_total";
pub(crate) const INGEST_ITEMS: &str = "towpath_ingest_items_total";
pub(crate) const INGEST_BYTES: &str = "towpath_ingest_bytes_total";
pub(crate) const INGEST_DECODED: &str = "towpath_ingest_decoded_bytes_total";
pub(crate) const DEPENDENCY_UP: &str = "towpath_dependency_up";
pub(crate) const GATEWAY_HELD: &str = "towpath_gateway_held_seconds";
pub(crate) const LIMITED: &str = "towpath_limited_total";
pub(crate) const SIGN_INS: &str = "towpath_sign_ins_total";
pub(crate) const EVENT_STREAMS: &str = "towpath_agent_event_streams";
pub(crate) const BOX_COMMANDS: &str = "towpath_sandbox_commands_total";
pub(crate) const BOX_HELD: &str = "towpath_sandbox_held_seconds";

/// Says what the metrics of this room mean.
pub fn describe() {
    metrics::describe_counter!(
        REQUESTS,
        Unit::Count,
        "HTTP requests answered, by route template and class of status"
    );
    metrics::describe_histogram!(
        REQUEST_SECONDS,
        Unit::Seconds,
        "From the first byte of the body a handler may read to the head of the answer"
    );
    metrics::describe_gauge!(IN_FLIGHT, Unit::Count, "HTTP requests being worked on");
    metrics::describe_gauge!(
        EVENT_STREAMS,
        Unit::Count,
        "Open streams of the thread-centric streaming protocol, by transport (sse, websocket)"
    );
    metrics::describe_counter!(PANICS, Unit::Count, "Handlers that panicked");
    metrics::describe_counter!(
        SHED,
        Unit::Count,
        "Requests refused at once, by reason: too many in progress (requests), too many of one workspace (share), too little memory (ingest_memory, bodies), too much unflushed trace data (backlog), a nearly full disk (disk), too many connections of one address (connections), or too many invalid keys of one address (failed_keys)"
    );
    metrics::describe_histogram!(
        GATEWAY_HELD,
        Unit::Seconds,
        "What a request to a deployment waited for its agent server to be found and connected"
    );
    metrics::describe_counter!(
        BOX_COMMANDS,
        Unit::Count,
        "Commands that were started or attached to in sandboxes, by transport (websocket, events, http)"
    );
    metrics::describe_histogram!(
        BOX_HELD,
        Unit::Seconds,
        "What a request to a sandbox waited until that ran and its agent was found"
    );
    metrics::describe_gauge!(INGEST_MEMORY, Unit::Bytes, "Memory held by ingest bodies in progress");
    metrics::describe_counter!(
        INGEST_REFUSED,
        Unit::Count,
        "Ingest requests refused for lack of memory"
    );
    metrics::describe_counter!(
        INGEST_ITEMS,
        Unit::Count,
        "Items accepted by trace ingest: operation (a post or patch of a run), feedback, attachment"
    );
    metrics::describe_counter!(
        INGEST_BYTES,
        Unit::Bytes,
        "Bytes of accepted ingest bodies as sent, compressed or not"
    );
    metrics::describe_counter!(
        INGEST_DECODED,
        Unit::Bytes,
        "Bytes of accepted ingest bodies once unpacked"
    );
    metrics::describe_gauge!(
        DEPENDENCY_UP,
        Unit::Count,
        "1 while the dependency answers this process, else 0: database, objects, disk, redis"
    );
    metrics::describe_counter!(
        LIMITED,
        Unit::Count,
        "Requests refused with 429 because their caller exceeded a rate limit, by limit"
    );
    metrics::describe_counter!(
        SIGN_INS,
        Unit::Count,
        "Requested sessions, by outcome: granted, refused"
    );
    // Counters that are there from the first scrape let an alert tell zero from unknown.
    metrics::counter!(PANICS).absolute(0);
    metrics::counter!(INGEST_REFUSED).absolute(0);
    metrics::counter!(INGEST_BYTES).absolute(0);
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
