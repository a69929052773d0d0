//! A `tracing` layer that passes finished spans to a collector.
//!
//! Spans of requests and of job attempts carry their place in the trace as fields (`trace_id`, `span_id`,
//! `parent_span_id`), because job rows store it. Inner spans get a place here. Spans outside of both belong to no trace
//! and are dropped.

use std::fmt::Debug;
use std::time::SystemTime;

use opentelemetry::trace::{
    Event as SpanEvent, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tokio::sync::mpsc;
use towpath_domain::Traceparent;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::fields::HIDDEN;

/// Maximum number of events of one span: a job may log without end.
const EVENTS: usize = 64;

/// Passes finished spans to the exporter.
pub struct Spans {
    finished: mpsc::Sender<SpanData>,
    scope: InstrumentationScope,
}

impl Spans {
    /// Sends spans to `finished`; if that is full, they are dropped and counted.
    pub fn new(finished: mpsc::Sender<SpanData>) -> Self {
        let scope = InstrumentationScope::builder("towpath")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        Self { finished, scope }
    }
}

struct OpenSpan {
    trace: TraceId,
    span: SpanId,
    parent: SpanId,
    /// Whether the parent is in another process or process life.
    remote: bool,
    kind: SpanKind,
    began: SystemTime,
    attributes: Vec<KeyValue>,
    events: SpanEvents,
    status: Status,
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        let mut told = SpanFields::default();
        attributes.record(&mut told);
        let place = match (told.trace, told.span) {
            (Some(trace), Some(own)) if told.sampled => Some((trace, own, SpanId::INVALID, true)),
            (Some(_), _) => None,
            _ => span.parent().and_then(|parent| {
                let extensions = parent.extensions();
                let parent = extensions.get::<OpenSpan>()?;
                let own = SpanId::from_bytes(Traceparent::new().span_bytes());
                Some((parent.trace, own, parent.span, false))
            }),
        };
        let Some((trace, own, parent, remote)) = place else {
            return;
        };
        span.extensions_mut().insert(OpenSpan {
            trace,
            span: own,
            parent,
            remote,
            kind: told.kind.unwrap_or(SpanKind::Internal),
            began: SystemTime::now(),
            attributes: told.attributes,
            events: SpanEvents::default(),
            status: Status::Unset,
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let Some(open) = extensions.get_mut::<OpenSpan>() else {
            return;
        };
        let mut told = SpanFields::default();
        values.record(&mut told);
        if let Some(parent) = told.parent {
            open.parent = parent;
        }
        if told.status.is_some_and(|status| status >= 500) {
            open.status = Status::error("");
        }
        open.attributes.append(&mut told.attributes);
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let Some(span) = ctx.event_span(event) else { return };
        let mut extensions = span.extensions_mut();
        let Some(open) = extensions.get_mut::<OpenSpan>() else {
            return;
        };
        let mut told = SpanFields::default();
        event.record(&mut told);
        let level = *event.metadata().level();
        if level == Level::ERROR {
            open.status = Status::error(told.message.clone());
        }
        if open.events.events.len() >= EVENTS {
            open.events.dropped_count += 1;
            return;
        }
        told.attributes.push(KeyValue::new("level", level.as_str()));
        let event = SpanEvent::new(told.message, SystemTime::now(), told.attributes, 0);
        open.events.events.push(event);
    }

    fn on_close(&self, id: Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<OpenSpan>() else {
            return;
        };
        let data = SpanData {
            span_context: SpanContext::new(open.trace, open.span, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: open.parent,
            parent_span_is_remote: open.remote && open.parent != SpanId::INVALID,
            span_kind: open.kind,
            name: span.name().into(),
            start_time: open.began,
            end_time: SystemTime::now(),
            attributes: open.attributes,
            dropped_attributes_count: 0,
            events: open.events,
            links: SpanLinks::default(),
            status: open.status,
            instrumentation_scope: self.scope.clone(),
        };
        if self.finished.try_send(data).is_err() {
            super::export::dropped("full", 1);
        }
    }
}

struct SpanFields {
    trace: Option<TraceId>,
    span: Option<SpanId>,
    parent: Option<SpanId>,
    sampled: bool,
    kind: Option<SpanKind>,
    status: Option<i64>,
    message: String,
    attributes: Vec<KeyValue>,
}

impl Default for SpanFields {
    fn default() -> Self {
        Self {
            trace: None,
            span: None,
            parent: None,
            sampled: true,
            kind: None,
            status: None,
            message: String::new(),
            attributes: Vec::new(),
        }
    }
}

impl SpanFields {
    fn text(&mut self, field: &Field, text: String) {
        match field.name() {
            "trace_id" => self.trace = TraceId::from_hex(&text).ok(),
            "span_id" => self.span = SpanId::from_hex(&text).ok(),
            "parent_span_id" => self.parent = SpanId::from_hex(&text).ok(),
            "message" => self.message = text,
            "otel.kind" => {
                self.kind = Some(match text.as_str() {
                    "server" => SpanKind::Server,
                    "consumer" => SpanKind::Consumer,
                    "client" => SpanKind::Client,
                    "producer" => SpanKind::Producer,
                    _ => SpanKind::Internal,
                });
            }
            _ => self.attribute(field, text),
        }
    }

    fn attribute(&mut self, field: &Field, value: impl Into<Value>) {
        if !HIDDEN.contains(&field.name()) {
            self.attributes.push(KeyValue::new(field.name(), value));
        }
    }
}

impl Visit for SpanFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.text(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value.to_owned());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        if field.name() == "http.status" {
            self.status = Some(value);
        }
        self.attribute(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record_i64(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "trace_sampled" {
            self.sampled = value;
        }
        self.attribute(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.attribute(field, value);
    }
}
