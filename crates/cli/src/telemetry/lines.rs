//! Log lines as JSON: one flat object for each line, with the fields of all enclosing spans, so that each line of a job
//! has `job.id`, `job.kind`, `job.attempt` and `trace_id`. The innermost of several equal fields wins.

use std::fmt::Debug;
use std::io::Write as _;

use serde_json::{Map, Value};
use towpath_domain::Clock;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::{LookupSpan, Scope};

use super::fields::HIDDEN;

pub struct Lines<W> {
    clock: Clock,
    writer: W,
}

impl<W: Fn(&[u8])> Lines<W> {
    /// Lines with the time of `clock`. `writer` gets complete lines.
    pub const fn new(clock: Clock, writer: W) -> Self {
        Self { clock, writer }
    }
}

/// Writes to standard error. A closed reader must not end the process.
pub fn to_stderr(line: &[u8]) {
    let _ = std::io::stderr().lock().write_all(line);
}

struct Fields(Map<String, Value>);

impl<S, W> Layer<S> for Lines<W>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: Fn(&[u8]) + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        let mut fields = Map::new();
        attributes.record(&mut FieldVisitor(&mut fields));
        span.extensions_mut().insert(Fields(fields));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        if let Some(Fields(fields)) = span.extensions_mut().get_mut() {
            values.record(&mut FieldVisitor(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let mut line = Map::new();
        line.insert("timestamp".to_owned(), self.clock.now().to_string().into());
        line.insert("level".to_owned(), event.metadata().level().as_str().into());
        line.insert("target".to_owned(), event.metadata().target().into());
        for span in ctx.event_scope(event).into_iter().flat_map(Scope::from_root) {
            if let Some(Fields(fields)) = span.extensions().get() {
                line.extend(fields.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
        }
        event.record(&mut FieldVisitor(&mut line));
        let mut text = Value::Object(line).to_string();
        text.push('\n');
        (self.writer)(text.as_bytes());
    }
}

struct FieldVisitor<'m>(&'m mut Map<String, Value>);

impl FieldVisitor<'_> {
    fn put(&mut self, field: &Field, value: Value) {
        if !HIDDEN.contains(&field.name()) {
            self.0.insert(field.name().to_owned(), value);
        }
    }
}

impl Visit for FieldVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        // Includes the source errors, because the outer text alone seldom explains the cause.
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        self.put(field, text.into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn every_line_of_a_job_says_which() {
        let written = Arc::new(Mutex::new(Vec::<Value>::new()));
        let into = written.clone();
        let lines = Lines::new(Clock::system(), move |line: &[u8]| {
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            into.lock().unwrap().push(serde_json::from_slice(line).unwrap());
        });
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let job = tracing::error_span!("job", job.id = "j1", job.attempt = 2, trace_id = "t", span_id = "s");
            let _in_job = job.enter();
            let step = tracing::info_span!("step", step.name = "a\nb", late = tracing::field::Empty);
            let _in_step = step.enter();
            step.record("late", 7);
            let cause = std::io::Error::other("the disk");
            tracing::warn!(error = &cause as &dyn std::error::Error, ok = false, "it \"failed\"");
        });
        let mut lines = written.lock().unwrap();
        let line = lines.remove(0);
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
        for (name, value) in [
            ("level", Value::from("WARN")),
            ("message", "it \"failed\"".into()),
            ("job.id", "j1".into()),
            ("job.attempt", 2.into()),
            ("trace_id", "t".into()),
            ("step.name", "a\nb".into()),
            ("late", 7.into()),
            ("error", "the disk".into()),
            ("ok", false.into()),
        ] {
            assert_eq!(line[name], value, "{name} of {line}");
        }
        assert!(line.get("span_id").is_none(), "{line}");
    }
}
