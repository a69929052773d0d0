//! Compaction: merges the row groups of one project and day into few sorted ones.
//!
//! Rows are merged like in a scan and written with all internal columns, so that later operations can still merge with
//! them. They are streamed: in memory are the buffers of the scan and one unfinished row group.

use std::ops::Range;
use std::sync::Arc;

use chrono::NaiveDate;
use object_store::path::Path;
use towpath_domain::{ProjectId, SegmentId, TenantId, Timestamp};

use crate::columnar::{Error, Result};
use crate::encoder::Encoder;
use crate::flush::{FlushError, NewSegment};
use crate::metric;
use crate::objects::Objects;
use crate::parquet_file::weights;
use crate::prices::{PriceTable, Pricer};
use crate::row;
use crate::scan::{PartRef, Request, Scan, ScanBatch};
use crate::schema::{Selection, segment_schema};
use crate::segment::{self, GROUP_ROWS, Part, Written, properties, starts_derived};
use crate::upload::Upload;

/// Approximate size limit of a row group, in bytes of values. Larger than for a flush, so that row groups have enough
/// rows.
const GROUP_BYTES: usize = 128 << 20;
/// Row groups per segment. A larger day becomes several consecutive segments.
pub(crate) const SEGMENT_GROUPS: usize = 1024;

/// What is compacted.
#[derive(Clone, Debug)]
pub struct Day {
    pub tenant: TenantId,
    pub project: ProjectId,
    /// The UTC day.
    pub day: NaiveDate,
}

impl Day {
    fn range(&self) -> Range<Timestamp> {
        let start = Timestamp::start_of(self.day);
        start..start.next_midnight()
    }
}

/// The prices of a compaction.
#[derive(Clone, Debug, Default)]
pub struct Pricing {
    pub prices: Arc<PriceTable>,
    pub scope: PricingScope,
}

/// The rows whose costs a compaction computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PricingScope {
    /// Those that it merges; the others were written by the same prices.
    #[default]
    Merged,
    /// All: some were written by earlier prices.
    All,
}

/// Merges row groups of one project and day into new segments. `intend` is called before each segment is written and
/// must have committed [`segments::intend`](towpath_store::segments::intend) when it returns.
///
/// Decoding and encoding is CPU-bound: run it on the CPU pool.
pub async fn compact<E>(
    objects: &Objects,
    day: &Day,
    parts: Vec<PartRef>,
    pricing: &Pricing,
    intend: impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
) -> Result<Vec<NewSegment>, FlushError<E>> {
    compact_days(objects, vec![(day.clone(), parts)], pricing, intend).await
}

/// As [`compact`], for several days of one workspace: they share segments, in which each day has its own row groups.
pub async fn compact_days<E>(
    objects: &Objects,
    days: Vec<(Day, Vec<PartRef>)>,
    pricing: &Pricing,
    mut intend: impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
) -> Result<Vec<NewSegment>, FlushError<E>> {
    let mut segments = Vec::new();
    let mut pricer = Pricer::new(Arc::clone(&pricing.prices));
    let mut writer: Option<(SegmentId, Writer)> = None;
    for (day, parts) in days {
        let request = Request {
            tenant: day.tenant,
            project: day.project,
            parts,
            range: day.range(),
            after: None,
            selection: Selection::stored(),
            prices: Arc::clone(&pricing.prices),
        };
        let mut scan = Scan::new(objects.blocking_store(), request);
        while let Some(mut batch) = scan.next().await? {
            if pricing.scope == PricingScope::All {
                batch.rows = row::repriced(&batch.rows, &mut pricer)?;
                metrics::counter!(metric::REPRICED_ROWS).increment(batch.rows.num_rows() as u64);
            }
            while !batch.keys.is_empty() {
                let open = match &mut writer {
                    Some((_, open)) => open,
                    None => {
                        let id = SegmentId::new();
                        let path = segment::path(day.tenant, id);
                        intend(day.tenant, id, &path).await.map_err(FlushError::Intend)?;
                        let upload = Upload::new(objects.store().clone(), path);
                        &mut writer
                            .insert((id, Writer::new(day.tenant, pricing.prices.version(), upload)?))
                            .1
                    }
                };
                let used = open.take(&day, &batch).await?;
                open.starts_are_derived &= scan.starts_are_derived();
                batch = batch.after(used);
                if open.parts.len() >= SEGMENT_GROUPS
                    && let Some((id, full)) = writer.take()
                {
                    segments.push(finish(objects, id, full).await?);
                }
            }
        }
        // A row group is of one day.
        if let Some((_, open)) = &mut writer {
            open.close_group().await?;
        }
        if let Some((id, full)) = writer.take_if(|(_, open)| open.parts.len() >= SEGMENT_GROUPS) {
            segments.push(finish(objects, id, full).await?);
        }
    }
    if let Some((id, rest)) = writer {
        segments.push(finish(objects, id, rest).await?);
    }
    Ok(segments)
}

async fn finish<E>(objects: &Objects, id: SegmentId, mut writer: Writer) -> Result<NewSegment, FlushError<E>> {
    // Rows are copied as stored, so properties of all sources hold for the result.
    if writer.starts_are_derived {
        writer.encoder.note(starts_derived());
    }
    let tenant = writer.tenant;
    let written = writer.finish().await?;
    objects.sync(&written.path).await?;
    metrics::counter!(metric::COMPACTED_SEGMENTS).increment(1);
    metrics::counter!(metric::COMPACTED_ROWS).increment(written.rows);
    metrics::counter!(metric::COMPACTED_BYTES).increment(written.bytes);
    Ok(NewSegment { tenant, id, written })
}

/// A segment in progress.
struct Writer {
    tenant: TenantId,
    price_version: i64,
    encoder: Encoder,
    upload: Upload,
    parts: Vec<Part>,
    open: Option<Part>,
    open_bytes: usize,
    /// Whether that is true of all that was read for it.
    starts_are_derived: bool,
}

impl Writer {
    fn new(tenant: TenantId, price_version: i64, upload: Upload) -> Result<Self> {
        Ok(Self {
            tenant,
            price_version,
            encoder: Encoder::new(segment_schema(), properties())?,
            upload,
            parts: Vec::new(),
            open: None,
            open_bytes: 0,
            starts_are_derived: true,
        })
    }

    /// Adds rows up to the end of the current row group, and returns how many.
    async fn take(&mut self, day: &Day, batch: &ScanBatch) -> Result<usize> {
        let rows = self.fitting(batch);
        let (Some(first), Some(last)) = (batch.keys.first(), batch.keys.get(rows - 1)) else {
            return Ok(0);
        };
        if first.sort_time.day() != day.day || last.sort_time.day() != day.day {
            return Err(Error::Columns(format!(
                "trace run {} belongs to another day than its row group",
                first.id
            )));
        }
        let taken = batch.rows.slice(0, rows);
        let (low, high) = row::seqs(&taken)?;
        self.encoder.write(&taken)?;
        let open = self.open.get_or_insert(Part {
            row_group: self.parts.len(),
            project: day.project,
            day: day.day,
            rows: 0,
            min_sort_time: first.sort_time,
            max_sort_time: last.sort_time,
            min_seq: low,
            max_seq: high,
        });
        open.rows += rows as u64;
        open.max_sort_time = last.sort_time;
        open.min_seq = open.min_seq.min(low);
        open.max_seq = open.max_seq.max(high);
        if self.encoder.open_rows() >= GROUP_ROWS || self.open_bytes >= GROUP_BYTES {
            self.close_group().await?;
        }
        // Encoding does not yield; this lets a cancelled caller stop.
        tokio::task::yield_now().await;
        Ok(rows)
    }

    /// How many of these rows fit into the current row group: at least one.
    fn fitting(&mut self, batch: &ScanBatch) -> usize {
        let room = GROUP_ROWS - self.encoder.open_rows();
        let mut rows = 0;
        for weight in weights(&batch.rows).into_iter().take(room) {
            rows += 1;
            self.open_bytes += weight;
            if self.open_bytes >= GROUP_BYTES {
                break;
            }
        }
        rows
    }

    async fn close_group(&mut self) -> Result<()> {
        self.encoder.flush(&mut self.upload).await?;
        self.parts.extend(self.open.take());
        self.open_bytes = 0;
        Ok(())
    }

    async fn finish(mut self) -> Result<Written> {
        self.close_group().await?;
        self.encoder.finish(&mut self.upload).await?;
        let path = self.upload.path().clone();
        let bytes = self.upload.complete().await?;
        Ok(Written {
            path,
            bytes,
            rows: self.parts.iter().map(|part| part.rows).sum(),
            parts: self.parts,
            price_version: self.price_version,
        })
    }
}
