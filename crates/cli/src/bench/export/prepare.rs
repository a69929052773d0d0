//! Creates the rows: segments as flushes write them, one compacted segment for each day, and late rows.

use std::path::Path as Folder;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use chrono::NaiveDate;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::{ProjectId, SegmentId, TenantId, Timestamp};
use towpath_traces::compact::{Day, Pricing, compact};
use towpath_traces::objects::Objects;
use towpath_traces::row::Row;
use towpath_traces::scan::PartRef;
use towpath_traces::segment::{self, Written};
use uuid::Uuid;

use super::{PhaseResult, resource_usage};
use crate::bench::runs::{Runs, TREE};

pub const TENANT: TenantId = TenantId(Uuid::from_u128(1));
pub const PROJECT: ProjectId = ProjectId(Uuid::from_u128(2));
pub const DAYS: u64 = 31;
/// Rows of a segment as a flush writes it.
const FOLD: u64 = 16_000;

pub fn day(number: u64) -> NaiveDate {
    let first = NaiveDate::from_ymd_opt(2026, 3, 1).unwrap_or_default();
    first + chrono::Days::new(number)
}

/// A row group, as passed to the phases.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RowGroupEntry {
    path: String,
    row_group: usize,
    min: Timestamp,
    max: Timestamp,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Layout {
    rows: u64,
    compacted: Vec<Vec<RowGroupEntry>>,
    late: Vec<Vec<RowGroupEntry>>,
}

impl Layout {
    /// Reads the layout that [`run`] wrote.
    pub fn read(folder: &Folder) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(folder.join("layout.json")).context("reading the layout of the rows")?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The row groups of a day, with late ones on request.
    pub fn parts(&self, day: u64, late: bool) -> Vec<PartRef> {
        let at = usize::try_from(day).unwrap_or_default();
        let of = |listed: &[Vec<RowGroupEntry>]| listed.get(at).cloned().unwrap_or_default();
        let mut parts = of(&self.compacted);
        if late {
            parts.extend(of(&self.late));
        }
        parts
            .into_iter()
            .map(|listed| PartRef {
                path: Path::from(listed.path),
                row_group: listed.row_group,
                min_sort_time: listed.min,
                max_sort_time: listed.max,
            })
            .collect()
    }

    /// Files with the compacted rows.
    pub fn files(&self, folder: &Folder) -> Vec<String> {
        let mut files: Vec<String> = self
            .compacted
            .iter()
            .flatten()
            .map(|listed| folder.join("objects").join(&listed.path).display().to_string())
            .collect();
        files.dedup();
        files
    }
}

pub async fn run(folder: &Folder, rows: u64, late: f64) -> anyhow::Result<PhaseResult> {
    let objects = Objects::folder(&folder.join("objects"))?;
    let each = (rows / DAYS).max(TREE);
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let mut work = tokio::task::JoinSet::new();
    for thread in 0..threads {
        let objects = objects.clone();
        work.spawn(async move {
            let mut made = Vec::new();
            for number in (0..DAYS).filter(|number| number % threads == thread) {
                made.push((number, make(&objects, number, each, late).await?));
            }
            Ok::<_, anyhow::Error>(made)
        });
    }
    let mut days = Vec::new();
    while let Some(made) = work.join_next().await {
        days.extend(made??);
    }
    days.sort_by_key(|(number, _)| *number);
    let mut layout = Layout {
        rows: each * DAYS,
        ..Layout::default()
    };
    let mut bytes = 0;
    for (_, made) in days {
        bytes += made.bytes;
        layout.compacted.push(made.compacted);
        layout.late.push(made.late);
    }
    std::fs::write(folder.join("layout.json"), serde_json::to_vec(&layout)?)?;
    let (peak_mb, cpu_seconds) = resource_usage()?;
    Ok(PhaseResult {
        rows: layout.rows,
        bytes,
        seconds: began.elapsed().as_secs_f64(),
        cpu_seconds,
        peak_mb,
    })
}

struct DaySegments {
    bytes: u64,
    compacted: Vec<RowGroupEntry>,
    late: Vec<RowGroupEntry>,
}

async fn make(objects: &Objects, number: u64, each: u64, late: f64) -> anyhow::Result<DaySegments> {
    let date = day(number);
    let from = number * each;
    let traces = i64::try_from(each / TREE + 1)?;
    // All within the day, with a margin at both ends.
    let runs = Runs::new(
        Timestamp::from_micros(Timestamp::start_of(date).micros() + 1_000_000),
        86_000_000_000 / traces,
    );
    let operation = |index: u64| (index, index - from);
    let mut scattered = Vec::new();
    let mut begin = from;
    while begin < from + each {
        let end = (begin + FOLD).min(from + each);
        let rows = (begin..end).map(|index| {
            let (seq, local) = operation(index);
            (PROJECT, Row::from_operation(runs.post(local), seq.cast_signed()))
        });
        scattered.extend(write(objects, rows).await?);
        begin = end;
    }
    let wanted = (late * each as f64) as u64;
    let mut patches = Vec::new();
    for index in (from..from + each).filter(|index| (index * 7919) % each < wanted) {
        let seq = i64::try_from(index)? + 1_000_000_000;
        patches.push((PROJECT, Row::from_operation(runs.patch(index - from), seq)));
    }
    let late = write(objects, patches).await?;
    let of = Day {
        tenant: TENANT,
        project: PROJECT,
        day: date,
    };
    let intend = async |_, _: SegmentId, _: &Path| Ok::<_, std::convert::Infallible>(());
    let parts = scattered.iter().flat_map(refs).collect();
    let made = compact(objects, &of, parts, &Pricing::default(), intend)
        .await
        .map_err(|error| anyhow!("compacting {date}: {error}"))?;
    for segment in scattered {
        objects.delete(&segment.path).await?;
    }
    let list = |segments: &[Written]| -> Vec<RowGroupEntry> {
        let listed = segments.iter().flat_map(refs).map(|part| RowGroupEntry {
            path: part.path.to_string(),
            row_group: part.row_group,
            min: part.min_sort_time,
            max: part.max_sort_time,
        });
        listed.collect()
    };
    let written: Vec<Written> = made.into_iter().map(|made| made.written).collect();
    Ok(DaySegments {
        bytes: written.iter().map(|written| written.bytes).sum(),
        compacted: list(&written),
        late: list(&late),
    })
}

async fn write(objects: &Objects, rows: impl IntoIterator<Item = (ProjectId, Row)>) -> anyhow::Result<Vec<Written>> {
    let path = segment::path(TENANT, SegmentId::new());
    let written = segment::write(objects.store().clone(), path, TENANT, rows).await?;
    Ok(written.into_iter().collect())
}

fn refs(written: &Written) -> impl Iterator<Item = PartRef> + '_ {
    written.parts.iter().map(|part| PartRef {
        path: written.path.clone(),
        row_group: part.row_group,
        min_sort_time: part.min_sort_time,
        max_sort_time: part.max_sort_time,
    })
}
