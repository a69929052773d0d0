//! Makes the rows: segments as folds leave them, one compacted segment per day, and rows that came late.

use std::path::Path as Folder;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use chrono::NaiveDate;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::{ProjectId, SegmentId, TenantId, Timestamp};
use towpath_traces::compact::{Day, compact};
use towpath_traces::objects::Objects;
use towpath_traces::row::Row;
use towpath_traces::scan::PartRef;
use towpath_traces::segment::{self, Written};
use uuid::Uuid;

use super::{Seen, used};
use crate::bench::runs::{Runs, TREE};

pub const TENANT: TenantId = TenantId(Uuid::from_u128(1));
pub const PROJECT: ProjectId = ProjectId(Uuid::from_u128(2));
/// Days, as a month has.
pub const DAYS: u64 = 31;
/// Rows of a segment as a fold leaves it.
const FOLD: u64 = 16_000;

/// The day of that number.
pub fn day(number: u64) -> NaiveDate {
    let first = NaiveDate::from_ymd_opt(2026, 3, 1).unwrap_or_default();
    first + chrono::Days::new(number)
}

/// A row group as the phases are told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Listed {
    path: String,
    row_group: usize,
    min: Timestamp,
    max: Timestamp,
}

/// The row groups of each day.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Layout {
    rows: u64,
    compacted: Vec<Vec<Listed>>,
    late: Vec<Vec<Listed>>,
}

impl Layout {
    /// Reads what [`run`] wrote.
    pub fn read(folder: &Folder) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(folder.join("layout.json")).context("what was prepared")?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The row groups of a day, those that came late too if they are asked for.
    pub fn parts(&self, day: u64, late: bool) -> Vec<PartRef> {
        let at = usize::try_from(day).unwrap_or_default();
        let of = |listed: &[Vec<Listed>]| listed.get(at).cloned().unwrap_or_default();
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

    /// Files that hold the compacted rows.
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

pub async fn run(folder: &Folder, rows: u64, late: f64) -> anyhow::Result<Seen> {
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
    let (peak_mb, cpu_seconds) = used()?;
    Ok(Seen {
        rows: layout.rows,
        bytes,
        seconds: began.elapsed().as_secs_f64(),
        cpu_seconds,
        peak_mb,
    })
}

struct Made {
    bytes: u64,
    compacted: Vec<Listed>,
    late: Vec<Listed>,
}

async fn make(objects: &Objects, number: u64, each: u64, late: f64) -> anyhow::Result<Made> {
    let date = day(number);
    let from = number * each;
    let traces = i64::try_from(each / TREE + 1)?;
    // All within the day, with some room at both ends.
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
        patches.push((PROJECT, Row::from_operation(runs.late(index - from), seq)));
    }
    let late = write(objects, patches).await?;
    let of = Day {
        tenant: TENANT,
        project: PROJECT,
        day: date,
    };
    let intend = async |_, _: SegmentId, _: &Path| Ok::<_, std::convert::Infallible>(());
    let parts = scattered.iter().flat_map(refs).collect();
    let made = compact(objects, &of, parts, intend)
        .await
        .map_err(|error| anyhow!("compacting {date}: {error}"))?;
    for segment in scattered {
        objects.delete(&segment.path).await?;
    }
    let list = |segments: &[Written]| -> Vec<Listed> {
        let listed = segments.iter().flat_map(refs).map(|part| Listed {
            path: part.path.to_string(),
            row_group: part.row_group,
            min: part.min_sort_time,
            max: part.max_sort_time,
        });
        listed.collect()
    };
    let written: Vec<Written> = made.into_iter().map(|made| made.written).collect();
    Ok(Made {
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
