//! Tokens and costs of whole traces.
//!
//! Model calls (`run_type` `llm` or `embedding`) count if any of a trace reports usage, since the runs above often repeat
//! it. Else all runs of the trace count.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
};
use arrow::datatypes::{Decimal128Type, Int64Type, TimestampNanosecondType};
use towpath_domain::{ProjectId, Timestamp};
use towpath_traces::prices::PRICED_TYPES;
use uuid::Uuid;

use crate::Result;
use crate::predicate::Predicate;
use crate::snapshot::Snapshot;

/// Columns that [`UsageColumns`] needs.
pub(crate) const COLUMNS: [&str; 9] = [
    "trace_id",
    "run_type",
    "total_tokens",
    "prompt_tokens",
    "completion_tokens",
    "total_cost",
    "prompt_cost",
    "completion_cost",
    "first_token_time",
];

/// Usage of the runs of a trace, or of several traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceUsage {
    /// Sums of total, prompt and completion tokens; `None` if none is known.
    pub tokens: [Option<i64>; 3],
    /// Sums of total, prompt and completion cost, in units of 10⁻¹⁰; `None` if none is known.
    pub costs: [Option<i128>; 3],
    /// When the first token of a model came.
    pub first_token: Option<Timestamp>,
}

impl TraceUsage {
    /// Adds the usage of another trace.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.tokens.iter_mut().zip(other.tokens) {
            *sum = more.map_or(*sum, |more| Some(sum.unwrap_or_default().saturating_add(more)));
        }
        for (sum, more) in self.costs.iter_mut().zip(other.costs) {
            *sum = more.map_or(*sum, |more| Some(sum.unwrap_or_default().saturating_add(more)));
        }
        self.first_token = self.first_token.into_iter().chain(other.first_token).min();
    }

    fn is_known(&self) -> bool {
        self.tokens.iter().any(Option::is_some) || self.costs.iter().any(Option::is_some)
    }
}

/// Usage of the model calls among some runs, and of the other runs.
#[derive(Clone, Copy, Default)]
pub(crate) struct UsageSums {
    models: TraceUsage,
    others: TraceUsage,
}

impl UsageSums {
    #[cfg(test)]
    pub(crate) fn of_model(models: TraceUsage) -> Self {
        Self {
            models,
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.models.add(&other.models);
        self.others.add(&other.others);
    }

    pub(crate) fn total(self) -> TraceUsage {
        let first_token = self.models.first_token.into_iter().chain(self.others.first_token).min();
        let counted = if self.models.is_known() {
            self.models
        } else {
            self.others
        };
        TraceUsage { first_token, ..counted }
    }
}

/// The columns of a batch that usage is read from.
pub(crate) struct UsageColumns<'a> {
    types: &'a StringArray,
    /// Total, prompt and completion tokens.
    tokens: [&'a Int64Array; 3],
    /// Total, prompt and completion cost.
    costs: [&'a Decimal128Array; 3],
    first_tokens: &'a TimestampNanosecondArray,
}

fn column<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    let missing = || towpath_traces::columnar::Error::Columns(format!("column {name} is missing"));
    Ok(rows.column_by_name(name).ok_or_else(missing)?)
}

impl<'a> UsageColumns<'a> {
    pub(crate) fn of(rows: &'a RecordBatch) -> Result<Self> {
        let tokens = |name: &str| column(rows, name).map(AsArray::as_primitive::<Int64Type>);
        let costs = |name: &str| column(rows, name).map(AsArray::as_primitive::<Decimal128Type>);
        Ok(Self {
            types: column(rows, "run_type")?.as_string::<i32>(),
            tokens: [
                tokens("total_tokens")?,
                tokens("prompt_tokens")?,
                tokens("completion_tokens")?,
            ],
            costs: [costs("total_cost")?, costs("prompt_cost")?, costs("completion_cost")?],
            first_tokens: column(rows, "first_token_time")?.as_primitive::<TimestampNanosecondType>(),
        })
    }

    /// Adds the usage of a row.
    pub(crate) fn add_row(&self, row: usize, sums: &mut UsageSums) {
        let first_token = self.first_tokens.is_valid(row).then(|| self.first_tokens.value(row));
        let own = TraceUsage {
            tokens: self
                .tokens
                .map(|column| column.is_valid(row).then(|| column.value(row))),
            costs: self.costs.map(|column| column.is_valid(row).then(|| column.value(row))),
            first_token: first_token.map(|nanoseconds| Timestamp::from_micros(nanoseconds / 1000)),
        };
        if self.types.is_valid(row) && PRICED_TYPES.contains(&self.types.value(row)) {
            sums.models.add(&own);
        } else {
            sums.others.add(&own);
        }
    }
}

fn add_rows(sums: &mut HashMap<Uuid, UsageSums>, rows: &RecordBatch) -> Result<()> {
    let usage = UsageColumns::of(rows)?;
    let traces = column(rows, "trace_id")?.as_string::<i32>();
    for row in 0..rows.num_rows() {
        if traces.is_null(row) {
            continue;
        }
        let Ok(trace) = traces.value(row).parse::<Uuid>() else {
            continue;
        };
        usage.add_row(row, sums.entry(trace).or_default());
    }
    Ok(())
}

impl Snapshot {
    /// The usage of each of `traces`, from their runs that start in `range`.
    pub async fn trace_usage(
        &self,
        project: ProjectId,
        traces: &BTreeSet<Uuid>,
        range: &Range<Timestamp>,
    ) -> Result<HashMap<Uuid, TraceUsage>> {
        if traces.is_empty() {
            return Ok(HashMap::new());
        }
        let projects = [project];
        let extent = self.extent(traces, Some(&projects), range).await?;
        let range = extent.clip_range(range);
        let predicate = Predicate::new(None, &[Arc::new(traces.iter().copied().collect())])?;
        let mut sums: HashMap<Uuid, UsageSums> = HashMap::new();
        for (project, parts) in self.scope(&projects, &range, Some(&extent)).await? {
            let mut matches = self.matches(project, &parts, range.clone(), &predicate, &COLUMNS);
            while let Some(batch) = matches.next().await? {
                add_rows(&mut sums, &batch.rows)?;
            }
        }
        Ok(sums.into_iter().map(|(trace, sums)| (trace, sums.total())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(tokens: Option<i64>, first_token: Option<i64>) -> TraceUsage {
        TraceUsage {
            tokens: [tokens, None, tokens],
            costs: [None, Some(5), None],
            first_token: first_token.map(Timestamp::from_micros),
        }
    }

    #[test]
    fn what_is_unknown_adds_nothing() {
        let mut sum = TraceUsage::default();
        assert!(!sum.is_known());
        sum.add(&usage(Some(3), Some(20)));
        sum.add(&usage(None, None));
        sum.add(&usage(Some(4), Some(10)));
        assert_eq!(sum.tokens, [Some(7), None, Some(7)]);
        assert_eq!(sum.costs, [None, Some(15), None]);
        assert_eq!(sum.first_token, Some(Timestamp::from_micros(10)));
    }

    #[test]
    fn runs_above_a_model_call_do_not_count_again() {
        let models = usage(Some(3), None);
        let others = usage(Some(8), Some(10));
        let total = UsageSums { models, others }.total();
        assert_eq!(total, usage(Some(3), Some(10)));
        let none = TraceUsage::default();
        assert_eq!(UsageSums { models: none, others }.total(), others);
    }
}
