//! A trace run in the format of the tracing clients.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use towpath_domain::json::Value as Read;
use towpath_domain::trace::{self, DottedOrderPart, format_part};
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
use towpath_query::feedback::stats;
use towpath_query::{Snapshot, TraceUsage};
use towpath_store::feedback::{self, Attachment, Feedback};
use towpath_traces::derive::{COST_SCALE, derive, derive_priced};
use towpath_traces::prices::Pricer;
use towpath_traces::row::Row;
use uuid::Uuid;

use crate::app::App;
use crate::errors::ApiError;
use crate::platform::attachments;

/// The trace of a root run.
pub(crate) fn trace_of(row: &Row) -> Uuid {
    derive(row).trace_id.unwrap_or(row.id().0)
}

/// Version of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `/runs/…`
    V1,
    /// `/api/v2/runs/…`: other names here and there.
    V2,
}

/// Fields in the order of the response.
pub struct TraceRunView(Vec<(&'static str, Box<RawValue>)>);

impl TraceRunView {
    /// The view with one field more.
    pub fn with(mut self, name: &'static str, value: &Value) -> Result<Self, ApiError> {
        let value = to_raw_value(value).map_err(|error| ApiError::internal(&error))?;
        self.0.push((name, value));
        Ok(self)
    }

    /// Replaces the tokens, the costs and the time of the first token, where they are selected.
    pub fn replace_usage(&mut self, usage: &TraceUsage, dialect: Dialect) -> Result<(), ApiError> {
        let [total_tokens, prompt_tokens, completion_tokens] = usage.tokens;
        let [total_cost, prompt_cost, completion_cost] = usage.costs;
        for (name, shown) in &mut self.0 {
            let value = match *name {
                "total_tokens" => json!(total_tokens),
                "prompt_tokens" => json!(prompt_tokens),
                "completion_tokens" => json!(completion_tokens),
                "total_cost" => cost(total_cost, dialect),
                "prompt_cost" => cost(prompt_cost, dialect),
                "completion_cost" => cost(completion_cost, dialect),
                "first_token_time" => json!(usage.first_token),
                _ => continue,
            };
            *shown = to_raw_value(&value).map_err(|error| ApiError::internal(&error))?;
        }
        Ok(())
    }
}

impl Serialize for TraceRunView {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Every field that a client can select.
pub const FIELDS: [&str; 39] = [
    "id",
    "name",
    "run_type",
    "start_time",
    "end_time",
    "status",
    "error",
    "inputs",
    "outputs",
    "extra",
    "metadata",
    "events",
    "serialized",
    "tags",
    "session_id",
    "tenant_id",
    "trace_id",
    "dotted_order",
    "parent_run_id",
    "parent_run_ids",
    "is_root",
    "reference_example_id",
    "feedback_stats",
    "total_tokens",
    "prompt_tokens",
    "completion_tokens",
    "total_cost",
    "prompt_cost",
    "completion_cost",
    "prompt_token_details",
    "completion_token_details",
    "prompt_cost_details",
    "completion_cost_details",
    "first_token_time",
    "latency_seconds",
    "thread_id",
    "trace_tier",
    "app_path",
    "s3_urls",
];

/// Fields that the usage of a subtree replaces.
pub const USAGE_FIELDS: [&str; 7] = [
    "total_tokens",
    "prompt_tokens",
    "completion_tokens",
    "total_cost",
    "prompt_cost",
    "completion_cost",
    "first_token_time",
];

/// Fields of v2 alone.
pub const V2_FIELDS: [&str; 6] = [
    "manifest",
    "inputs_preview",
    "outputs_preview",
    "error_preview",
    "attachments",
    "is_in_dataset",
];

/// Characters of a preview.
const PREVIEW_LENGTH: usize = 200;

/// The beginning of a text.
pub fn preview(text: Option<&str>) -> Value {
    let Some(text) = text else { return Value::Null };
    let end = text
        .char_indices()
        .nth(PREVIEW_LENGTH)
        .map_or(text.len(), |(end, _)| end);
    json!(text[..end])
}

/// Data added to the rows of a page.
#[derive(Default)]
pub struct PageEnrichment {
    /// Ancestors of runs whose client did not send `dotted_order`.
    ancestry: HashMap<TraceRunId, Vec<DottedOrderPart>>,
    feedback: HashMap<TraceRunId, Vec<Feedback>>,
    attachments: HashMap<TraceRunId, Vec<Attachment>>,
}

impl PageEnrichment {
    /// Reads the data that the selected fields of `rows` need.
    pub async fn read(snapshot: &Snapshot, rows: &[(ProjectId, Row)], fields: &[&str]) -> Result<Self, ApiError> {
        let runs: Vec<TraceRunId> = rows.iter().map(|(_, row)| row.id()).collect();
        let runs = runs.as_slice();
        let mut beside = Self::default();
        if fields.contains(&"dotted_order") || fields.contains(&"parent_run_ids") {
            beside.ancestry = snapshot.ancestry(rows).await?;
        }
        if fields.contains(&"feedback_stats") {
            for row in snapshot.feedback(runs).await? {
                if let Some(run) = row.run_id {
                    beside.feedback.entry(run).or_default().push(row);
                }
            }
        }
        if fields.contains(&"s3_urls") || fields.contains(&"attachments") {
            let tenant = snapshot.tenant();
            let stored = snapshot
                .store()
                .read(async |tx| feedback::attachments_of(tx, tenant, runs).await)
                .await?;
            let open = snapshot.open_attachments().iter();
            let open = open.filter(|attachment| runs.contains(&attachment.run_id)).cloned();
            for attachment in stored.into_iter().chain(open) {
                let known = beside.attachments.entry(attachment.run_id).or_default();
                known.retain(|other| other.name != attachment.name || other.seq > attachment.seq);
                if known.iter().all(|other| other.name != attachment.name) {
                    known.push(attachment);
                }
            }
        }
        Ok(beside)
    }
}

/// Shows a row.
pub fn show(
    app: &App,
    tenant: TenantId,
    project: ProjectId,
    row: &Row,
    beside: &PageEnrichment,
    pricer: &mut Pricer,
    (fields, dialect): (&[&'static str], Dialect),
) -> Result<TraceRunView, ApiError> {
    let said = row.fields();
    let derived = derive_priced(row, pricer);
    let way = beside.ancestry.get(&row.id()).map(Vec::as_slice);
    let usage = &derived.usage;
    let raw = |text: Option<&str>| text.and_then(|text| RawValue::from_string(text.to_owned()).ok());
    let object = |text: Option<&str>, name: &str| match text.map(str::trim_start) {
        Some(text) if text.starts_with('{') => raw(Some(text)),
        // Clients accept objects only.
        Some(text) if !text.starts_with("null") => raw(Some(&format!("{{\"{name}\":{text}}}"))),
        _ => None,
    };
    let mut shown = Vec::with_capacity(fields.len());
    for name in fields.iter().copied() {
        let value: Option<Box<RawValue>> = match name {
            "inputs" => object(said.inputs.as_deref(), "input").or_else(|| raw(Some("{}"))),
            "outputs" => object(said.outputs.as_deref(), "output"),
            "metadata" => metadata(row).and_then(|text| raw(Some(&text))),
            "extra" => row.extra().and_then(|keys| raw(Some(&compose(&keys)))),
            "events" => raw(said.events.as_deref().filter(|text| text.trim_start().starts_with('['))),
            "serialized" | "manifest" => raw(said
                .serialized
                .as_deref()
                .filter(|text| text.trim_start().starts_with('{'))),
            _ => None,
        };
        let value = match value {
            Some(value) => value,
            None => {
                let value = match name {
                    "id" => json!(row.id()),
                    "name" => json!(said.name.as_deref().unwrap_or_default()),
                    "run_type" => json!(run_type(said.run_type.as_deref(), dialect)),
                    "start_time" => json!(derived.start_time),
                    "end_time" => json!(said.end_time),
                    "status" => match dialect {
                        Dialect::V1 => json!(derived.status),
                        Dialect::V2 => json!(derived.status.to_uppercase()),
                    },
                    "error" => json!(said.error),
                    "tags" => json!(said.tags),
                    "session_id" => json!(project),
                    "tenant_id" => json!(tenant),
                    "trace_id" => json!(derived.trace_id.unwrap_or(row.id().0)),
                    "dotted_order" => json!(dotted_order(row, way)),
                    "parent_run_id" => json!(derived.parent_run_id),
                    "parent_run_ids" => match way.and_then(<[DottedOrderPart]>::split_last) {
                        Some((_, above)) => above.iter().map(|link| json!(link.id)).collect(),
                        None => json!(derived.parent_run_ids.as_deref().unwrap_or_default()),
                    },
                    "is_root" => json!(derived.is_root),
                    "reference_example_id" => json!(said.reference_example_id),
                    "feedback_stats" => json!(stats(beside.feedback.get(&row.id()).into_iter().flatten())),
                    "total_tokens" => json!(usage.total_tokens),
                    "prompt_tokens" => json!(usage.prompt_tokens),
                    "completion_tokens" => json!(usage.completion_tokens),
                    "total_cost" => cost(usage.total_cost, dialect),
                    "prompt_cost" => cost(usage.prompt_cost, dialect),
                    "completion_cost" => cost(usage.completion_cost, dialect),
                    "prompt_token_details" => details(&usage.prompt_token_details, |tokens| json!(tokens)),
                    "completion_token_details" => details(&usage.completion_token_details, |tokens| json!(tokens)),
                    "prompt_cost_details" => details(&usage.prompt_cost_details, |units| cost(Some(*units), dialect)),
                    "completion_cost_details" => {
                        details(&usage.completion_cost_details, |units| cost(Some(*units), dialect))
                    }
                    "first_token_time" => json!(derived.first_token_time),
                    "latency_seconds" => {
                        let ends = said.end_time.zip(derived.start_time);
                        json!(ends.map(|(end, start)| (end.micros() - start.micros()) as f64 / 1e6))
                    }
                    "thread_id" => json!(thread_id(row)),
                    "trace_tier" => json!(towpath_traces::schema::TRACE_TIER),
                    "inputs_preview" => preview(said.inputs.as_deref()),
                    "outputs_preview" => preview(said.outputs.as_deref()),
                    "error_preview" => preview(said.error.as_deref()),
                    "is_in_dataset" => json!(said.reference_example_id.is_some()),
                    "attachments" => attachment_urls(app, beside.attachments.get(&row.id()).map(Vec::as_slice)),
                    "s3_urls" => attachment_links(app, beside.attachments.get(&row.id()).map(Vec::as_slice)),
                    _ => Value::Null,
                };
                to_raw_value(&value).map_err(|error| ApiError::internal(&error))?
            }
        };
        let name = if dialect == Dialect::V2 && name == "session_id" {
            "project_id"
        } else {
            name
        };
        shown.push((name, value));
    }
    Ok(TraceRunView(shown))
}

fn run_type(name: Option<&str>, dialect: Dialect) -> String {
    let name = name.unwrap_or("chain");
    match dialect {
        Dialect::V1 => name.to_owned(),
        Dialect::V2 => name.to_uppercase(),
    }
}

/// `dotted_order` as sent, else from the ancestors found, else of the run alone.
fn dotted_order(row: &Row, way: Option<&[DottedOrderPart]>) -> String {
    if let Some(told) = &row.fields().dotted_order {
        return told.clone();
    }
    let own = [DottedOrderPart {
        start: row.key().map_or(Timestamp::from_micros(0), |key| key.sort_time),
        id: row.id().0,
    }];
    let links = way.unwrap_or(&own).iter().map(format_part);
    links.collect::<Vec<_>>().join(".")
}

fn compose(keys: &[(String, String)]) -> String {
    let pairs = keys.iter().map(|(key, value)| format!("{}:{value}", json!(key)));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
}

/// Metadata as sent.
fn metadata(row: &Row) -> Option<Cow<'_, str>> {
    row.extra_value("metadata")
}

fn thread_id(row: &Row) -> Option<String> {
    let metadata = metadata(row)?;
    let metadata = Read::parse(&metadata).ok()?;
    trace::thread_id(&metadata).map(Cow::into_owned)
}

/// Numbers by kind of tokens; null for none.
fn details<T>(by_kind: &BTreeMap<String, T>, shown: impl Fn(&T) -> Value) -> Value {
    if by_kind.is_empty() {
        return Value::Null;
    }
    let shown = by_kind.iter().map(|(kind, value)| (kind.clone(), shown(value)));
    Value::Object(shown.collect())
}

/// Cost in dollars from units of 10⁻¹⁰: as text in v1, which keeps all digits, as a number in v2.
pub fn cost(units: Option<i128>, dialect: Dialect) -> Value {
    let Some(units) = units else { return Value::Null };
    let scale = 10_i128.pow(u32::from(COST_SCALE.unsigned_abs()));
    let digits = usize::from(COST_SCALE.unsigned_abs());
    let sign = if units < 0 { "-" } else { "" };
    let (whole, rest) = (
        units.unsigned_abs() / scale.unsigned_abs(),
        units.unsigned_abs() % scale.unsigned_abs(),
    );
    let text = format!("{sign}{whole}.{rest:0digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match dialect {
        Dialect::V1 => json!(text),
        Dialect::V2 => json!(text.parse::<f64>().ok()),
    }
}

fn attachment_urls(app: &App, attachments: Option<&[Attachment]>) -> Value {
    let attachments = attachments.unwrap_or_default().iter();
    let urls = attachments.map(|attachment| (attachment.name.clone(), json!(attachments::link(app, attachment))));
    Value::Object(urls.collect())
}

fn attachment_links(app: &App, attachments: Option<&[Attachment]>) -> Value {
    let Some(attachments) = attachments.filter(|attachments| !attachments.is_empty()) else {
        return Value::Null;
    };
    let links = attachments.iter().map(|attachment| {
        let link = json!({
            "presigned_url": attachments::link(app, attachment),
            "s3_url": attachment.path,
            "mime_type": attachment.content_type,
        });
        (format!("attachment.{}", attachment.name), link)
    });
    Value::Object(links.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_keep_their_digits() {
        for (units, text) in [
            (0, "0"),
            (1, "0.0000000001"),
            (-12_500_000_000, "-1.25"),
            (30_000_000_000, "3"),
        ] {
            assert_eq!(cost(Some(units), Dialect::V1), json!(text));
        }
        assert_eq!(cost(Some(12_500_000_000), Dialect::V2), json!(1.25));
        assert_eq!(cost(None, Dialect::V1), Value::Null);
    }
}
