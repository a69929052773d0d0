//! What children say, among the lines of the server's own log.

use super::message::Log;

/// Longer lines are cut.
const LONGEST: usize = 16 << 10;

/// Writes a line with the run it belongs to.
pub fn forward_log(line: &Log) {
    let logger = line.logger.as_deref().unwrap_or_default();
    let (run, thread, graph) = (line.run.as_deref(), line.thread.as_deref(), line.graph.as_deref());
    let message = cut(&line.message);
    match line.level.as_str() {
        "debug" => tracing::debug!(run.id = run, thread.id = thread, graph.id = graph, logger, "{message}"),
        "warning" | "warn" => tracing::warn!(run.id = run, thread.id = thread, graph.id = graph, logger, "{message}"),
        "error" | "critical" => {
            tracing::error!(run.id = run, thread.id = thread, graph.id = graph, logger, "{message}");
        }
        _ => tracing::info!(run.id = run, thread.id = thread, graph.id = graph, logger, "{message}"),
    }
}

/// The beginning of a text that is too long.
pub fn cut(text: &str) -> &str {
    if text.len() <= LONGEST {
        return text;
    }
    let end = (0..=LONGEST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    &text[..end]
}
