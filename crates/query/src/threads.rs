//! Threads: traces whose root runs name the same thread in their metadata.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use arrow::array::{Array, AsArray};
use arrow::datatypes::TimestampNanosecondType;
use towpath_domain::{ProjectId, Timestamp, TraceRunId};
use uuid::Uuid;

use crate::extent::Extent;
use crate::page::Position;
use crate::predicate::{Predicate, thread_of};
use crate::snapshot::Snapshot;
use crate::statistics::Quantiles;
use crate::{Error, Result};

/// Threads of one query, and traces of its threads.
const MOST_TRACES: usize = 100_000;

/// The traces of a thread.
#[derive(Clone, Debug)]
pub struct ThreadSummary {
    /// Number of traces.
    pub turns: u64,
    /// Traces whose root run failed.
    pub errors: u64,
    /// Seconds from start to end of root runs.
    pub latency: Quantiles,
    /// The root run that started first.
    pub first: Position,
    /// The root run that started last.
    pub last: Position,
    /// The failed root run that started last.
    pub last_error: Option<Position>,
    /// The latest end of a root run.
    pub last_end: Option<Timestamp>,
    pub traces: BTreeSet<Uuid>,
    pub roots: BTreeSet<TraceRunId>,
}

impl ThreadSummary {
    fn new(at: Position) -> Self {
        Self {
            turns: 0,
            errors: 0,
            latency: Quantiles::default(),
            first: at,
            last: at,
            last_error: None,
            last_end: None,
            traces: BTreeSet::new(),
            roots: BTreeSet::new(),
        }
    }

    fn add(&mut self, at: Position, trace: Option<Uuid>, end: Option<Timestamp>, is_error: bool) {
        self.turns += 1;
        self.first = self.first.min(at);
        self.last = self.last.max(at);
        self.last_end = self.last_end.max(end);
        if let Some(end) = end {
            let micros = end.micros().saturating_sub(at.key.sort_time.micros());
            self.latency.add(micros as f64 / 1e6);
        }
        if is_error {
            self.errors += 1;
            self.last_error = self.last_error.max(Some(at));
        }
        self.roots.insert(at.key.id);
        // A root run without a trace is its own.
        self.traces.insert(trace.unwrap_or(at.key.id.0));
    }
}

impl Snapshot {
    /// The newest matching run of each thread. `predicate` should admit root runs only.
    ///
    /// # Errors
    /// [`Error::TooManyTraces`]; the catalog or a segment cannot be read.
    pub async fn thread_activity(
        &self,
        projects: &[ProjectId],
        range: &Range<Timestamp>,
        within: Option<&Extent>,
        predicate: &Predicate,
    ) -> Result<HashMap<String, Position>> {
        let mut newest: HashMap<String, Position> = HashMap::new();
        for (project, parts) in self.scope(projects, range, within).await? {
            let mut matches = self.matches(project, &parts, range.clone(), predicate, &["extra"]);
            while let Some(batch) = matches.next().await? {
                let Some(extra) = batch.rows.column_by_name("extra").map(AsArray::as_string::<i32>) else {
                    continue;
                };
                for (extra, key) in extra.iter().zip(&batch.keys) {
                    let Some(thread) = extra.and_then(thread_of) else {
                        continue;
                    };
                    let at = Position { key: *key, project };
                    newest
                        .entry(thread)
                        .and_modify(|last| *last = at.max(*last))
                        .or_insert(at);
                }
                if newest.len() > MOST_TRACES {
                    return Err(Error::TooManyTraces { limit: MOST_TRACES });
                }
            }
        }
        Ok(newest)
    }

    /// The traces of each thread. `predicate` should admit root runs only.
    ///
    /// # Errors
    /// [`Error::TooManyTraces`]; the catalog or a segment cannot be read.
    pub async fn thread_summaries(
        &self,
        projects: &[ProjectId],
        range: &Range<Timestamp>,
        within: Option<&Extent>,
        predicate: &Predicate,
    ) -> Result<BTreeMap<String, ThreadSummary>> {
        const COLUMNS: [&str; 4] = ["extra", "trace_id", "end_time", "status"];
        let mut threads: BTreeMap<String, ThreadSummary> = BTreeMap::new();
        let mut turns = 0;
        for (project, parts) in self.scope(projects, range, within).await? {
            let mut matches = self.matches(project, &parts, range.clone(), predicate, &COLUMNS);
            while let Some(batch) = matches.next().await? {
                let column = |name: &str| {
                    let missing = || towpath_traces::columnar::Error::Columns(format!("column {name} is missing"));
                    batch.rows.column_by_name(name).ok_or_else(missing)
                };
                let extra = column("extra")?.as_string::<i32>();
                let traces = column("trace_id")?.as_string::<i32>();
                let statuses = column("status")?.as_string::<i32>();
                let ends = column("end_time")?.as_primitive::<TimestampNanosecondType>();
                for (row, key) in batch.keys.iter().enumerate() {
                    if extra.is_null(row) {
                        continue;
                    }
                    let Some(thread) = thread_of(extra.value(row)) else {
                        continue;
                    };
                    let at = Position { key: *key, project };
                    let trace = traces.is_valid(row).then(|| traces.value(row).parse::<Uuid>().ok());
                    let end = ends
                        .is_valid(row)
                        .then(|| Timestamp::from_micros(ends.value(row) / 1000));
                    let is_error = statuses.is_valid(row) && statuses.value(row) == "error";
                    let summary = threads.entry(thread).or_insert_with(|| ThreadSummary::new(at));
                    summary.add(at, trace.flatten(), end, is_error);
                    turns += 1;
                }
                if turns > MOST_TRACES {
                    return Err(Error::TooManyTraces { limit: MOST_TRACES });
                }
            }
        }
        Ok(threads)
    }
}

#[cfg(test)]
mod tests {
    use towpath_traces::row::Key;

    use super::*;

    fn at(seconds: i64) -> Position {
        Position {
            key: Key {
                sort_time: Timestamp::from_micros(seconds * 1_000_000),
                id: TraceRunId(Uuid::from_u128(seconds.unsigned_abs().into())),
            },
            project: ProjectId::nil(),
        }
    }

    #[test]
    fn a_summary_knows_its_ends_whatever_the_order() {
        let mut summary = ThreadSummary::new(at(2));
        let end = |seconds: i64| Some(Timestamp::from_micros(seconds * 1_000_000));
        summary.add(at(2), None, end(4), false);
        summary.add(at(3), Some(Uuid::from_u128(9)), None, true);
        summary.add(at(1), None, end(3), true);
        assert_eq!((summary.turns, summary.errors), (3, 2));
        assert_eq!((summary.first, summary.last), (at(1), at(3)));
        assert_eq!((summary.last_error, summary.last_end), (Some(at(3)), end(4)));
        let traces: Vec<u128> = summary.traces.iter().map(Uuid::as_u128).collect();
        assert_eq!(traces, [1, 2, 9]);
        let latency = summary.latency.at(0.5).unwrap();
        assert!((latency - 2.0).abs() < 0.03, "{latency}");
    }
}
