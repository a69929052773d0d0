//! Fields of spans and events.

/// Fields that locate a span in its trace. Text lines only show the trace id; collectors get all of them.
pub const HIDDEN: [&str; 4] = ["span_id", "parent_span_id", "trace_sampled", "otel.kind"];
