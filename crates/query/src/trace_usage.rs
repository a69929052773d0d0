//! Tokens and costs of whole traces.
//!
//! Model calls (`run_type` `llm` or `embedding`) count if any of a trace reports usage, since the runs above often repeat
//! it. Else all runs of the trace count.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
};
use arrow::datatypes::{Decimal128Type, Int64Type, TimestampNanosecondType};
use towpath_domain::{ProjectId, Timestamp};
use towpath_traces::prices::PRICED_TYPES;
use uuid::Uuid;

use crate::extent::Extent;
use crate::predicate::Predicate;
use crate::snapshot::Snapshot;
use crate::{Error, Result};

/// Maximum number of traces with model calls in a total. Each takes the space of an id.
const MOST_TRACES: usize = 1_000_000;
/// Maximum number of other traces with usage in a total.
const MOST_OTHER_TRACES: usize = 250_000;

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

/// Usage of many runs. What the runs above model calls repeat does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTotal {
    pub runs: u64,
    /// `None` if none is known.
    pub tokens: Option<i64>,
    /// In units of 10⁻¹⁰; `None` if none is known.
    pub cost: Option<i128>,
}

impl UsageTotal {
    /// Adds total tokens and total cost, not the number of runs.
    fn add_usage(&mut self, tokens: Option<i64>, cost: Option<i128>) {
        self.tokens = tokens.map_or(self.tokens, |more| {
            Some(self.tokens.unwrap_or_default().saturating_add(more))
        });
        self.cost = cost.map_or(self.cost, |more| {
            Some(self.cost.unwrap_or_default().saturating_add(more))
        });
    }
}

/// Adds up the traces of a project with the memory of a few words for each.
#[derive(Default)]
struct TraceTotals {
    total: UsageTotal,
    /// Traces with a model call that reports usage.
    with_models: HashSet<Uuid>,
    /// Total tokens and cost of the other traces.
    others: HashMap<Uuid, (Option<i64>, Option<i128>)>,
}

impl TraceTotals {
    /// Adds a run. One without a trace counts for itself.
    fn add(&mut self, trace: Option<Uuid>, own: &UsageSums) -> Result<()> {
        self.total.runs += 1;
        let usage = own.total();
        let (tokens, cost) = (usage.tokens[0], usage.costs[0]);
        let Some(trace) = trace else {
            self.total.add_usage(tokens, cost);
            return Ok(());
        };
        if own.models.is_known() {
            self.total.add_usage(tokens, cost);
            self.with_models.insert(trace);
            self.others.remove(&trace);
        } else if own.others.is_known() && !self.with_models.contains(&trace) {
            let mut sum = UsageTotal::default();
            let known = self.others.entry(trace).or_default();
            sum.add_usage(known.0, known.1);
            sum.add_usage(tokens, cost);
            *known = (sum.tokens, sum.cost);
        }
        for (traces, limit) in [
            (self.with_models.len(), MOST_TRACES),
            (self.others.len(), MOST_OTHER_TRACES),
        ] {
            if traces > limit {
                return Err(Error::TooManyTraces { limit });
            }
        }
        Ok(())
    }

    fn add_rows(&mut self, rows: &RecordBatch) -> Result<()> {
        let usage = UsageColumns::of(rows)?;
        let traces = column(rows, "trace_id")?.as_string::<i32>();
        for row in 0..rows.num_rows() {
            let trace = traces.is_valid(row).then(|| traces.value(row));
            let mut own = UsageSums::default();
            usage.add_row(row, &mut own);
            self.add(trace.and_then(|trace| trace.parse::<Uuid>().ok()), &own)?;
        }
        Ok(())
    }

    fn total(self) -> UsageTotal {
        let mut total = self.total;
        for (tokens, cost) in self.others.into_values() {
            total.add_usage(tokens, cost);
        }
        total
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

    /// The usage of matching runs of a project as a whole; only in some row groups if they are known to be sufficient.
    /// For whole traces it is the sum of [`Self::trace_usage`].
    ///
    /// # Errors
    /// [`Error::TooManyTraces`]; the catalog or a segment cannot be read.
    pub async fn usage_total(
        &self,
        project: ProjectId,
        range: Range<Timestamp>,
        within: Option<&Extent>,
        predicate: &Predicate,
    ) -> Result<UsageTotal> {
        let mut totals = TraceTotals::default();
        for (project, parts) in self.scope(&[project], &range, within).await? {
            let mut matches = self.matches(project, &parts, range.clone(), predicate, &COLUMNS);
            while let Some(batch) = matches.next().await? {
                totals.add_rows(&batch.rows)?;
            }
        }
        Ok(totals.total())
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

    #[test]
    fn a_total_is_the_sum_of_its_traces_in_any_order_of_their_runs() {
        let none = TraceUsage::default();
        let model = |tokens| UsageSums {
            models: usage(Some(tokens), None),
            others: none,
        };
        let other = |tokens| UsageSums {
            models: none,
            others: usage(Some(tokens), None),
        };
        let [first, second, third] = [1, 2, 3].map(Uuid::from_u128);
        let mut runs = vec![
            (Some(first), other(7)),
            (Some(first), model(3)),
            (Some(first), model(4)),
            // No model call of this trace reports usage.
            (Some(second), other(10)),
            (Some(second), other(10)),
            (Some(second), UsageSums::default()),
            (Some(third), UsageSums::default()),
            (None, other(100)),
        ];
        for _ in 0..runs.len() {
            runs.rotate_left(1);
            let mut totals = TraceTotals::default();
            for (trace, own) in &runs {
                totals.add(*trace, own).unwrap();
            }
            let expected = UsageTotal {
                runs: 8,
                tokens: Some(127),
                cost: None,
            };
            assert_eq!(totals.total(), expected);
        }
        assert_eq!(TraceTotals::default().total(), UsageTotal::default());
    }
}
