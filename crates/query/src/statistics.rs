//! Statistics of many trace runs, in one pass with little memory.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Decimal128Type, Int64Type, TimestampNanosecondType};
use towpath_domain::{ProjectId, Timestamp};
use towpath_traces::row::{Key, Row, RowsBuilder};
use uuid::Uuid;

use crate::extent::Extent;
use crate::predicate::Predicate;
use crate::snapshot::Snapshot;
use crate::{Error, Result};

/// Maximum number of traces that a filter on them may match.
const MOST_TRACES: usize = 1_000_000;
/// Maximum number of distinct run types.
const MOST_TYPES: usize = 256;

#[derive(Clone, Debug, Default)]
pub struct Statistics {
    pub runs: u64,
    /// Runs with an error.
    pub errors: u64,
    /// Runs that streamed, so that their first token is known.
    pub streamed: u64,
    /// Seconds from start to end.
    pub latency: Quantiles,
    /// Seconds from start to the first token.
    pub first_token: Quantiles,
    /// Tokens per run with tokens.
    pub tokens: Quantiles,
    /// Sums of total, prompt and completion tokens.
    pub token_sums: [i64; 3],
    /// Sums of total, prompt and completion cost, in units of 10⁻¹⁰; `None` if none is known.
    pub cost_sums: [Option<i128>; 3],
    pub last_start: Option<Timestamp>,
    pub run_types: BTreeMap<String, u64>,
}

/// Quantiles with a relative error of one percent, from counts in buckets.
#[derive(Clone, Debug, Default)]
pub struct Quantiles {
    counts: BTreeMap<i32, u64>,
    zeros: u64,
    all: u64,
}

/// Growth factor of the buckets.
const STEP: f64 = 1.02;

impl Quantiles {
    /// Counts a value; negative values count as zero.
    pub fn add(&mut self, value: f64) {
        self.all += 1;
        if value <= 1e-9 {
            self.zeros += 1;
        } else {
            let bucket = (value.ln() / STEP.ln()).ceil() as i32;
            *self.counts.entry(bucket).or_default() += 1;
        }
    }

    /// The value that a share `q` of all values does not exceed.
    #[must_use]
    pub fn at(&self, q: f64) -> Option<f64> {
        let rank = ((self.all as f64 * q).ceil() as u64).clamp(1, self.all.max(1));
        if self.all == 0 {
            return None;
        }
        let mut below = self.zeros;
        if rank <= below {
            return Some(0.0);
        }
        for (bucket, count) in &self.counts {
            below += count;
            if rank <= below {
                // The middle of the bucket.
                return Some(STEP.powi(*bucket) * 2.0 / (1.0 + STEP));
            }
        }
        None
    }
}

/// Columns that [`Statistics`] needs.
const COLUMNS: [&str; 11] = [
    "run_type",
    "start_time",
    "end_time",
    "status",
    "total_tokens",
    "prompt_tokens",
    "completion_tokens",
    "total_cost",
    "prompt_cost",
    "completion_cost",
    "first_token_time",
];

impl Statistics {
    /// Counts rows of a snapshot.
    pub fn of(snapshot: &Snapshot, rows: &[(ProjectId, Row)]) -> Result<Self> {
        let mut counted = Self::default();
        for (project, row) in rows {
            let Some(key) = row.key() else { continue };
            let mut columns = RowsBuilder::new(snapshot.tenant(), *project).with_pricer(snapshot.pricer());
            columns.push(row)?;
            counted.add(&columns.finish()?, &[key])?;
        }
        Ok(counted)
    }

    /// Counts trace runs from columns.
    pub fn add(&mut self, rows: &RecordBatch, keys: &[Key]) -> Result<()> {
        let column = |name: &str| {
            rows.column_by_name(name)
                .ok_or_else(|| towpath_traces::columnar::Error::Columns(format!("column {name} is missing")))
        };
        let times = |name: &str| column(name).map(AsArray::as_primitive::<TimestampNanosecondType>);
        let (starts, ends, firsts) = (times("start_time")?, times("end_time")?, times("first_token_time")?);
        let (types, statuses) = (
            column("run_type")?.as_string::<i32>(),
            column("status")?.as_string::<i32>(),
        );
        self.runs += rows.num_rows() as u64;
        for row in 0..rows.num_rows() {
            let seconds = |until: i64| (until / 1000 - starts.value(row) / 1000) as f64 / 1e6;
            if starts.is_valid(row) && ends.is_valid(row) {
                self.latency.add(seconds(ends.value(row)));
            }
            if starts.is_valid(row) && firsts.is_valid(row) {
                self.first_token.add(seconds(firsts.value(row)));
                self.streamed += 1;
            }
            self.errors += u64::from(statuses.is_valid(row) && statuses.value(row) == "error");
            if types.is_valid(row) {
                // Any text may be a type, so their number is limited.
                let room = self.run_types.len() < MOST_TYPES;
                match self.run_types.get_mut(types.value(row)) {
                    Some(count) => *count += 1,
                    None if room => {
                        self.run_types.insert(types.value(row).to_owned(), 1);
                    }
                    None => {}
                }
            }
        }
        for (sum, name) in self
            .token_sums
            .iter_mut()
            .zip(["total_tokens", "prompt_tokens", "completion_tokens"])
        {
            let tokens = column(name)?.as_primitive::<Int64Type>();
            for value in tokens.iter().flatten() {
                *sum = sum.saturating_add(value);
                if name == "total_tokens" {
                    self.tokens.add(value as f64);
                }
            }
        }
        for (sum, name) in self
            .cost_sums
            .iter_mut()
            .zip(["total_cost", "prompt_cost", "completion_cost"])
        {
            for value in column(name)?.as_primitive::<Decimal128Type>().iter().flatten() {
                *sum = Some(sum.unwrap_or_default().saturating_add(value));
            }
        }
        self.last_start = self.last_start.max(keys.iter().map(|key| key.sort_time).max());
        Ok(())
    }
}

impl Snapshot {
    /// Statistics of matching runs in `projects`; only in some row groups if they are known to be sufficient.
    pub async fn statistics(
        &self,
        projects: &[ProjectId],
        range: Range<Timestamp>,
        within: Option<&Extent>,
        predicate: &Predicate,
    ) -> Result<Statistics> {
        let mut counted = Statistics::default();
        for (project, parts) in self.scope(projects, &range, within).await? {
            let mut matches = self.matches(project, &parts, range.clone(), predicate, &COLUMNS);
            while let Some(batch) = matches.next().await? {
                counted.add(&batch.rows, &batch.keys)?;
            }
        }
        Ok(counted)
    }

    /// Traces with a matching run; only in some row groups if they are known to be sufficient.
    ///
    /// # Errors
    /// [`Error::TooManyTraces`]; the catalog or a segment cannot be read.
    pub async fn traces(
        &self,
        projects: &[ProjectId],
        range: Range<Timestamp>,
        within: Option<&Extent>,
        predicate: &Predicate,
    ) -> Result<Arc<HashSet<Uuid>>> {
        let mut traces = HashSet::new();
        for (project, parts) in self.scope(projects, &range, within).await? {
            let mut matches = self.matches(project, &parts, range.clone(), predicate, &["trace_id"]);
            while let Some(batch) = matches.next().await? {
                let ids = batch.rows.column_by_name("trace_id").map(AsArray::as_string::<i32>);
                traces.extend(
                    ids.into_iter()
                        .flatten()
                        .flatten()
                        .filter_map(|id| id.parse::<Uuid>().ok()),
                );
                if traces.len() > MOST_TRACES {
                    return Err(Error::TooManyTraces { limit: MOST_TRACES });
                }
            }
        }
        Ok(Arc::new(traces))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close() {
        let mut latency = Quantiles::default();
        assert_eq!(latency.at(0.5), None);
        (1..=1000).for_each(|value| latency.add(f64::from(value)));
        for (q, expected) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = latency.at(q).unwrap();
            assert!((found / expected - 1.0).abs() < 0.011, "{q}: {found}");
        }
        let mut zero = Quantiles::default();
        zero.add(0.0);
        assert_eq!(zero.at(0.5), Some(0.0));
    }
}
