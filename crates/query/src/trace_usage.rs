//! Tokens and costs of whole traces.
//!
//! Model calls (`run_type` `llm` or `embedding`) count if any of a trace reports usage, since the runs above often repeat
//! it. Else all runs of the trace count.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Decimal128Type, Int64Type, TimestampNanosecondType};
use towpath_domain::{ProjectId, Timestamp};
use towpath_traces::prices::PRICED_TYPES;
use uuid::Uuid;

use crate::Result;
use crate::predicate::Predicate;
use crate::snapshot::Snapshot;

/// Columns that [`TraceUsage`] needs.
const COLUMNS: [&str; 9] = [
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

/// Usage of the model calls of a trace, and of its other runs.
#[derive(Clone, Copy, Default)]
struct Sums {
    models: TraceUsage,
    others: TraceUsage,
}

impl Sums {
    fn total(self) -> TraceUsage {
        let first_token = self.models.first_token.into_iter().chain(self.others.first_token).min();
        let counted = if self.models.is_known() {
            self.models
        } else {
            self.others
        };
        TraceUsage { first_token, ..counted }
    }
}

fn add_rows(sums: &mut HashMap<Uuid, Sums>, rows: &RecordBatch) -> Result<()> {
    let column = |name: &str| {
        rows.column_by_name(name)
            .ok_or_else(|| towpath_traces::columnar::Error::Columns(format!("column {name} is missing")))
    };
    let traces = column("trace_id")?.as_string::<i32>();
    let types = column("run_type")?.as_string::<i32>();
    let tokens = |name: &str| column(name).map(AsArray::as_primitive::<Int64Type>);
    let costs = |name: &str| column(name).map(AsArray::as_primitive::<Decimal128Type>);
    let tokens = [
        tokens("total_tokens")?,
        tokens("prompt_tokens")?,
        tokens("completion_tokens")?,
    ];
    let costs = [costs("total_cost")?, costs("prompt_cost")?, costs("completion_cost")?];
    let firsts = column("first_token_time")?.as_primitive::<TimestampNanosecondType>();
    for row in 0..rows.num_rows() {
        if traces.is_null(row) {
            continue;
        }
        let Ok(trace) = traces.value(row).parse::<Uuid>() else {
            continue;
        };
        let own = TraceUsage {
            tokens: tokens.map(|column| column.is_valid(row).then(|| column.value(row))),
            costs: costs.map(|column| column.is_valid(row).then(|| column.value(row))),
            first_token: firsts
                .is_valid(row)
                .then(|| Timestamp::from_micros(firsts.value(row) / 1000)),
        };
        let sums = sums.entry(trace).or_default();
        if types.is_valid(row) && PRICED_TYPES.contains(&types.value(row)) {
            sums.models.add(&own);
        } else {
            sums.others.add(&own);
        }
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
        let mut sums: HashMap<Uuid, Sums> = HashMap::new();
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
        let total = Sums { models, others }.total();
        assert_eq!(total, usage(Some(3), Some(10)));
        let none = TraceUsage::default();
        assert_eq!(Sums { models: none, others }.total(), others);
    }
}
