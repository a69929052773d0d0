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
        "Requests refused at once, because too many were under way (requests) or too many of one workspace (share), memory was short (ingest_memory, bodies), trace data waited to be folded (backlog), the disk was nearly full (disk), or one address had too many connections (connections) or sent too many keys that open nothing (failed_keys)"
    );
    metrics::describe_histogram!(
        GATEWAY_HELD,
        Unit::Seconds,
        "What a request to a deployment waited for its agent server to be found and connected"
    );
    metrics::describe_gauge!(INGEST_MEMORY, Unit::Bytes, "Memory held by ingest bodies under way");
    metrics::describe_counter!(
        INGEST_REFUSED,
        Unit::Count,
        "Ingest requests refused because memory was short"
    );
    metrics::describe_counter!(
        INGEST_ITEMS,
        Unit::Count,
        "Items accepted by trace ingest: operation (a post or patch of a run), feedback, attachment"
    );
    metrics::describe_counter!(
        INGEST_BYTES,
        Unit::Bytes,
        "Bytes of accepted ingest bodies as they were sent, compressed or not"
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
        "Requests refused with 429 because their caller asked more often than a limit allows, by limit"
    );
    metrics::describe_counter!(
        SIGN_INS,
        Unit::Count,
        "Sessions asked for, by outcome: granted, refused"
    );
    // Counters that are there from the first scrape let an alert tell zero from unknown.
    metrics::counter!(PANICS).absolute(0);
    metrics::counter!(INGEST_REFUSED).absolute(0);
    metrics::counter!(INGEST_BYTES).absolute(0);
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
