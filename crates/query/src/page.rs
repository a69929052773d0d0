//! Pages of trace runs in order of their starts, in either direction.
//!
//! A page is found in two steps. First, only the columns of the filter are scanned, window by window from the requested
//! end, with growing windows; of matching rows only the positions are kept, at most one page. Then the matching rows
//! are read completely. So memory is bounded by the page, and a page of the newest runs only reads the newest row
//! groups.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use chrono::NaiveDate;
use towpath_domain::{ProjectId, Timestamp, TraceRunId};
use towpath_traces::row::{Key, Row, RowsBuilder};
use towpath_traces::scan::{Request, Scan, ScanBatch};
use towpath_traces::schema::segment_schema;

use crate::extent::Extent;
use crate::predicate::{Predicate, selection};
use crate::row_fetcher::RowFetcher;
use crate::snapshot::{Part, Snapshot, day};
use crate::{Result, feedback};

/// Rows of the first window; a filter drops some of them.
const FIRST_WINDOW: u64 = 4096;
/// Growth factor of the windows.
const GROWTH: u64 = 4;
/// Size of rows at which a page ends before it is full.
const PAGE_BYTES: usize = 64 << 20;

/// Sort direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Newest start first.
    #[default]
    Newest,
    /// Oldest start first.
    Oldest,
}

/// Position of a trace run in the order of all projects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// Start, then id.
    pub key: Key,
    pub project: ProjectId,
}

/// The format of cursors.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}_{}_{}",
            self.key.sort_time.micros(),
            self.key.id.0.simple(),
            self.project.0.simple()
        )
    }
}

/// Not a valid cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid cursor: it does not come from this server")]
pub struct NoPosition;

impl FromStr for Position {
    type Err = NoPosition;

    fn from_str(text: &str) -> Result<Self, NoPosition> {
        let mut parts = text.splitn(3, '_');
        let mut part = || parts.next().ok_or(NoPosition);
        let micros = part()?.parse().map_err(|_| NoPosition)?;
        let id = part()?.parse().map_err(|_| NoPosition)?;
        let project = part()?.parse().map_err(|_| NoPosition)?;
        Ok(Self {
            key: Key {
                sort_time: Timestamp::from_micros(micros),
                id: TraceRunId(id),
            },
            project: ProjectId(project),
        })
    }
}

#[derive(Clone, Debug)]
pub struct RunQuery {
    pub projects: Vec<ProjectId>,
    /// Range of starts; the end is exclusive.
    pub range: Range<Timestamp>,
    /// Only these row groups, if they are known to be sufficient.
    pub extent: Option<Extent>,
    pub predicate: Predicate,
    pub direction: Direction,
    /// Continue after this position.
    pub after: Option<Position>,
    pub limit: usize,
}

/// A page of trace runs.
#[derive(Debug)]
pub struct Page {
    /// In the requested order.
    pub rows: Vec<(ProjectId, Row)>,
    /// Where the next page continues, if there may be one.
    pub next: Option<Position>,
}

impl Snapshot {
    /// Reads one page of a query.
    pub async fn page(&self, question: &RunQuery) -> Result<Page> {
        let mut range = question.remaining();
        if let Some(extent) = &question.extent {
            range = extent.clip_range(&range);
        }
        let within = question.extent.as_ref();
        let parts = self.scope(&question.projects, &range, within).await?;
        let found = self.find(question, &parts, range).await?;
        let full = found.len() >= question.limit;
        let mut rows = Vec::new();
        let mut bytes = 0;
        let mut picker = RowFetcher::new(self, &parts, all_columns());
        // Rows differ in size by orders of magnitude, so the page is read in pieces and ends early if they are large.
        for piece in found.chunks(32) {
            if bytes > PAGE_BYTES {
                break;
            }
            let read = picker.rows(piece).await?;
            bytes += read.iter().map(|(_, row)| row.weight()).sum::<usize>();
            rows.extend(read);
        }
        let cut = rows.len() < found.len();
        let last = rows.last().and_then(|(project, row)| {
            Some(Position {
                key: row.key()?,
                project: *project,
            })
        });
        Ok(Page {
            next: last.filter(|_| full || cut),
            rows,
        })
    }

    /// Reads complete trace runs at known positions.
    pub async fn rows(&self, positions: &[Position]) -> Result<Vec<(ProjectId, Row)>> {
        self.rows_of(positions, all_columns()).await
    }

    /// Like [`Snapshot::rows`], for some columns by their positions in [`segment_schema`].
    pub(crate) async fn rows_of(&self, positions: &[Position], columns: Vec<usize>) -> Result<Vec<(ProjectId, Row)>> {
        let mut days: BTreeMap<(ProjectId, NaiveDate), (Timestamp, Timestamp)> = BTreeMap::new();
        for position in positions {
            let at = position.key.sort_time;
            let (first, last) = days.entry((position.project, day(at))).or_insert((at, at));
            (*first, *last) = (at.min(*first), at.max(*last));
        }
        let mut parts: HashMap<ProjectId, Vec<Part>> = HashMap::new();
        for ((project, _), (first, last)) in days {
            let until = Timestamp::from_micros(last.micros().saturating_add(1));
            let found = self.parts(project, first, until).await?;
            parts.entry(project).or_default().extend(found);
        }
        RowFetcher::new(self, &parts, columns).rows(positions).await
    }

    /// The rows that match a predicate.
    pub async fn retain(&self, rows: Vec<(ProjectId, Row)>, predicate: &Predicate) -> Result<Vec<(ProjectId, Row)>> {
        let runs: Vec<TraceRunId> = rows.iter().map(|(_, row)| row.id()).collect();
        let given = if predicate.needs_feedback() {
            feedback::lists(&self.feedback(&runs).await?)
        } else {
            HashMap::new()
        };
        let mut kept = Vec::new();
        for (project, row) in rows {
            let Some(key) = row.key() else { continue };
            let mut column = RowsBuilder::new(self.tenant(), project).with_pricer(self.pricer());
            column.push(&row)?;
            if predicate.evaluate(&column.finish()?, &[key], &given)?.value(0) {
                kept.push((project, row));
            }
        }
        Ok(kept)
    }

    /// Positions of matching rows in the requested order, at most one page.
    async fn find(
        &self,
        question: &RunQuery,
        parts: &HashMap<ProjectId, Vec<Part>>,
        mut range: Range<Timestamp>,
    ) -> Result<Vec<Position>> {
        let mut found: Vec<Position> = Vec::new();
        let mut wanted = FIRST_WINDOW.max(2 * question.limit as u64);
        while found.len() < question.limit && range.start < range.end {
            let window = window(parts, &range, wanted, question.direction);
            let mut here: VecDeque<Position> = VecDeque::new();
            let room = question.limit - found.len();
            for project in &question.projects {
                let own = parts.get(project).map(Vec::as_slice).unwrap_or_default();
                let mut matches = self.matches(*project, own, window.clone(), &question.predicate, &[]);
                let mut kept: VecDeque<Position> = VecDeque::new();
                'project: while let Some(batch) = matches.next().await? {
                    for key in batch.keys {
                        let position = Position { key, project: *project };
                        if !question.admits(position) {
                            continue;
                        }
                        match question.direction {
                            Direction::Newest if kept.len() == room => {
                                kept.pop_front();
                            }
                            Direction::Oldest if kept.len() == room => break 'project,
                            _ => {}
                        }
                        kept.push_back(position);
                    }
                }
                here.extend(kept);
            }
            let mut here: Vec<Position> = here.into();
            here.sort_unstable();
            if question.direction == Direction::Newest {
                here.reverse();
                range.end = window.start;
            } else {
                range.start = window.end;
            }
            here.truncate(room);
            found.extend(here);
            wanted = wanted.saturating_mul(GROWTH);
        }
        Ok(found)
    }

    /// Scans a project for matching rows, in order of their starts.
    pub(crate) fn matches<'a>(
        &'a self,
        project: ProjectId,
        parts: &[Part],
        range: Range<Timestamp>,
        predicate: &'a Predicate,
        also: &[&str],
    ) -> Matches<'a> {
        let request = Request {
            tenant: self.tenant(),
            project,
            parts: parts.iter().map(|part| part.at.clone()).collect(),
            range,
            after: None,
            selection: selection(Some(predicate), also),
            prices: Arc::clone(self.prices()),
        };
        Matches {
            snapshot: self,
            scan: Scan::new(self.objects(), request),
            predicate,
        }
    }
}

/// All stored columns.
fn all_columns() -> Vec<usize> {
    (0..segment_schema().fields().len()).collect()
}

/// Matching rows, batch by batch.
pub struct Matches<'a> {
    snapshot: &'a Snapshot,
    scan: Scan,
    predicate: &'a Predicate,
}

impl Matches<'_> {
    /// The next batch, which may be empty. `None` at the end.
    pub async fn next(&mut self) -> Result<Option<ScanBatch>> {
        let Some(batch) = self.scan.next().await? else {
            return Ok(None);
        };
        let given = if self.predicate.needs_feedback() {
            let runs: Vec<TraceRunId> = batch.keys.iter().map(|key| key.id).collect();
            feedback::lists(&self.snapshot.feedback(&runs).await?)
        } else {
            HashMap::new()
        };
        let held = self.predicate.evaluate(&batch.rows, &batch.keys, &given)?;
        if held.true_count() == held.len() {
            return Ok(Some(batch));
        }
        let keys = batch.keys.iter().zip(held.values().iter());
        Ok(Some(ScanBatch {
            keys: keys.filter(|(_, held)| *held).map(|(key, _)| *key).collect(),
            rows: arrow::compute::filter_record_batch(&batch.rows, &held)?,
        }))
    }
}

impl RunQuery {
    fn admits(&self, position: Position) -> bool {
        self.after.is_none_or(|after| match self.direction {
            Direction::Newest => position < after,
            Direction::Oldest => position > after,
        })
    }

    /// The part of the range behind the cursor.
    fn remaining(&self) -> Range<Timestamp> {
        let mut range = self.range.clone();
        match (self.after, self.direction) {
            (Some(after), Direction::Newest) => {
                let until = Timestamp::from_micros(after.key.sort_time.micros().saturating_add(1));
                range.end = range.end.min(until);
            }
            (Some(after), Direction::Oldest) => range.start = range.start.max(after.key.sort_time),
            (None, _) => {}
        }
        range
    }
}

/// The part of `range` at the requested end with about `wanted` rows; all of it if there are fewer.
fn window(
    parts: &HashMap<ProjectId, Vec<Part>>,
    range: &Range<Timestamp>,
    wanted: u64,
    direction: Direction,
) -> Range<Timestamp> {
    let parts: Vec<&Part> = parts.values().flatten().collect();
    let rows = |from: i64, until: i64| -> f64 {
        parts
            .iter()
            .map(|part| part.rows as f64 * share(part, from, until))
            .sum()
    };
    let (start, end) = (range.start.micros(), range.end.micros());
    if rows(start, end) <= wanted as f64 {
        return range.clone();
    }
    // There are no rows outside of the first and the last one.
    let first = parts
        .iter()
        .map(|part| part.at.min_sort_time.micros())
        .min()
        .unwrap_or(start);
    let last = parts
        .iter()
        .map(|part| part.at.max_sort_time.micros())
        .max()
        .unwrap_or(end);
    let (mut low, mut high) = (start.max(first), end.min(last.saturating_add(1)));
    match direction {
        Direction::Newest => {
            // The latest start of a window with enough rows.
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if rows(middle, end) >= wanted as f64 {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            Timestamp::from_micros(low.min(end - 1))..range.end
        }
        Direction::Oldest => {
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if rows(start, middle) >= wanted as f64 {
                    high = middle;
                } else {
                    low = middle;
                }
            }
            range.start..Timestamp::from_micros(high.max(start + 1))
        }
    }
}

/// The part of a row group's time range between `from` and `until`.
fn share(part: &Part, from: i64, until: i64) -> f64 {
    let (first, last) = (part.at.min_sort_time.micros(), part.at.max_sort_time.micros());
    let all = (last - first) as f64 + 1.0;
    let within = until.min(last.saturating_add(1)).saturating_sub(from.max(first));
    (within as f64 / all).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;
    use towpath_traces::scan::PartRef;

    use super::*;

    fn part(first: i64, last: i64, rows: u64) -> Part {
        Part {
            at: PartRef {
                path: Path::from("x"),
                row_group: 0,
                min_sort_time: Timestamp::from_micros(first),
                max_sort_time: Timestamp::from_micros(last),
            },
            rows,
        }
    }

    #[test]
    fn a_window_holds_about_as_many_rows_as_wanted() {
        let at = Timestamp::from_micros;
        let parts = HashMap::from([(ProjectId::nil(), vec![part(0, 999, 1000), part(1000, 1999, 100)])]);
        let all = at(i64::MIN)..at(i64::MAX);
        let newest = window(&parts, &all, 150, Direction::Newest);
        assert!((940..=960).contains(&newest.start.micros()), "{newest:?}");
        assert_eq!(newest.end, all.end);
        let oldest = window(&parts, &all, 150, Direction::Oldest);
        assert!((140..=160).contains(&oldest.end.micros()), "{oldest:?}");
        assert_eq!(window(&parts, &all, 5000, Direction::Newest), all);
        // All rows have the same time; the window must still advance.
        let heap = HashMap::from([(ProjectId::nil(), vec![part(7, 7, 1000)])]);
        assert_eq!(window(&heap, &(at(0)..at(8)), 10, Direction::Newest), at(7)..at(8));
        assert_eq!(window(&heap, &(at(7)..at(9)), 10, Direction::Oldest), at(7)..at(8));
    }

    #[test]
    fn a_cursor_comes_back_as_it_was() {
        let position = Position {
            key: Key {
                sort_time: Timestamp::from_micros(-17),
                id: TraceRunId::new(),
            },
            project: ProjectId::new(),
        };
        assert_eq!(position.to_string().parse(), Ok(position));
        assert_eq!("x".parse::<Position>(), Err(NoPosition));
    }
}
