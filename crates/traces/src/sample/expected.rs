//! The expected export of a run of [`Sample`]. Independent of the code that derives columns, so that one checks the
//! other.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use towpath_domain::{ProjectId, TenantId, Timestamp};

use super::{BEGUN, Run, Sample};

/// Of the recorded model call.
pub(super) const COMPLETION_TOKENS: i64 = 57;
/// Costs of the recorded model call, as multiples of 10⁻¹⁰: 0.00206, 0.000855 and 0.002915.
const COSTS: [i128; 3] = [29_150_000, 20_600_000, 8_550_000];

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Null,
    /// Text, or JSON as text.
    Text(String),
    /// A truth.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A multiple of 10⁻¹⁰.
    Decimal(i128),
    /// A point in time.
    Time(Timestamp),
    /// Texts.
    List(Vec<String>),
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Timestamp> for Cell {
    fn from(time: Timestamp) -> Self {
        Self::Time(time)
    }
}

impl From<i64> for Cell {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

/// The 29 columns of one run in the contract's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The trace run.
    pub id: uuid::Uuid,
    /// Where it sorts, and so on which day it is.
    pub start: Timestamp,
    /// Name and value of each column.
    pub columns: Vec<(&'static str, Cell)>,
}

impl Sample {
    /// The expected row of run `index`, once its post and its patch are flushed.
    #[must_use]
    pub fn expected(&self, index: u64, tenant: TenantId, project: ProjectId) -> Expected {
        self.run(index).expected(tenant, project)
    }

    /// How many of the first `runs` runs are on `day`.
    #[must_use]
    pub fn count_on(&self, runs: u64, day: chrono::NaiveDate) -> u64 {
        (0..runs).filter(|index| self.start(*index).day() == day).count() as u64
    }
}

/// Merges objects of several operations in order: for each key the last value as sent.
fn merged(objects: &[&str]) -> String {
    let mut keys: BTreeMap<String, Box<RawValue>> = BTreeMap::new();
    for object in objects {
        let more: BTreeMap<String, Box<RawValue>> = serde_json::from_str(object).expect("metadata is an object");
        keys.extend(more);
    }
    serde_json::to_string(&keys).expect("JSON texts are JSON")
}

impl Run {
    fn expected(&self, tenant: TenantId, project: ProjectId) -> Expected {
        let fields = &self.template.fields;
        let ancestors = &self.links[..self.links.len() - 1];
        let total = self.prompt_tokens.map(|tokens| tokens + COMPLETION_TOKENS);
        let completion = self.prompt_tokens.map(|_| COMPLETION_TOKENS);
        let cost = |at: usize| self.prompt_tokens.map_or(Cell::Null, |_| Cell::Decimal(COSTS[at]));
        let [metadata, runtime] = if self.patched {
            [merged(&[BEGUN, &self.patched_metadata()]), merged(&[&self.runtime])]
        } else {
            [self.metadata.clone(), self.runtime.clone()]
        };
        let extra = format!(r#"{{"metadata":{metadata},"runtime":{runtime}}}"#);
        let columns = vec![
            ("id", self.id.to_string().into()),
            ("tenant_id", tenant.to_string().into()),
            ("session_id", project.to_string().into()),
            ("trace_id", self.links[0].id.to_string().into()),
            ("parent_run_id", self.parent().map(|id| id.to_string()).into()),
            (
                "parent_run_ids",
                Cell::List(ancestors.iter().map(|link| link.id.to_string()).collect()),
            ),
            ("reference_example_id", Cell::Null),
            ("name", fields.name.clone().into()),
            ("run_type", fields.run_type.clone().into()),
            ("start_time", self.start.into()),
            ("end_time", self.end.into()),
            (
                "status",
                if fields.error.is_some() { "error" } else { "success" }.into(),
            ),
            ("is_root", Cell::Bool(ancestors.is_empty())),
            ("dotted_order", self.dotted_order().into()),
            ("trace_tier", "longlived".into()),
            ("inputs", self.inputs.clone().into()),
            (
                "outputs",
                Some(self.outputs.clone()).filter(|outputs| outputs != "null").into(),
            ),
            ("error", fields.error.clone().into()),
            ("extra", extra.into()),
            ("events", self.events.clone().into()),
            ("tags", Cell::List(fields.tags.clone().unwrap_or_default())),
            ("feedback_stats", Cell::Null),
            ("total_tokens", total.into()),
            ("prompt_tokens", self.prompt_tokens.into()),
            ("completion_tokens", completion.into()),
            ("total_cost", cost(0)),
            ("prompt_cost", cost(1)),
            ("completion_cost", cost(2)),
            ("first_token_time", self.first_token.into()),
        ];
        Expected {
            id: self.id,
            start: self.start,
            columns,
        }
    }
}
