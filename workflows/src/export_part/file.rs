//! Writes one file in the CPU pool, while the job saves its progress.

use std::time::Duration;

use object_store::path::Path;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use towpath_domain::export::Compression;
use towpath_durable::{Ctx, Failure};
use towpath_outbound::{Destination, OpenUpload, classify};
use towpath_store::exports::runs;
use towpath_traces::columnar;
use towpath_traces::parquet_file::{self, Progress, RowSource, SealedFile, write_file};

use super::{Cursor, ExportPart, Plan, note_uploads};
use crate::Services;

/// Result of writing a file.
pub(super) enum FileResult {
    /// The file is at the destination, not visible yet.
    Sealed(SealedFile),
    /// No rows are left.
    Empty,
    /// The row at which it must end no longer exists.
    Diverged,
}

const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of checks for begun uploads: until an upload is recorded, a crash leaks it.
const UPLOAD_POLL_INTERVAL: Duration = Duration::from_millis(200);

impl ExportPart {
    /// Writes the next rows up to the end of a file. Nothing is visible yet.
    #[expect(clippy::too_many_arguments, reason = "one sequence, split for its length")]
    pub(super) async fn write_file(
        &self,
        ctx: &mut Ctx,
        world: &Services,
        plan: &Plan,
        destination: &Destination,
        mut feed: RowSource,
        path: Path,
        done: &Cursor,
    ) -> Result<(RowSource, FileResult), Failure> {
        let (tell, told) = watch::channel(Progress { rows: 0, bytes: 0 });
        let (objects, options, end) = (destination.objects().clone(), plan.options.clone(), done.end());
        let work = world.cpu_pool.run(async move {
            let mut progress = |now| {
                tell.send_replace(now);
            };
            let sealed = write_file(&mut feed, objects, path, &options, end, &mut progress).await;
            (feed, sealed)
        });
        tokio::pin!(work);
        let cancelled = ctx.cancelled();
        let mut looks = tokio::time::interval(UPLOAD_POLL_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut saved = ReportedProgress {
            at: Instant::now(),
            begun: Vec::new(),
        };
        loop {
            tokio::select! {
                biased;
                () = cancelled.cancelled() => return Err(Failure::Cancelled),
                ended = &mut work => {
                    let (feed, sealed) = ended?;
                    let made = match sealed {
                        Ok(Some(sealed)) => FileResult::Sealed(sealed),
                        Ok(None) => FileResult::Empty,
                        Err(columnar::Error::Diverged(why)) => {
                            tracing::info!(why, "an interrupted file no longer has the same rows");
                            FileResult::Diverged
                        }
                        Err(error) => return Err(failed(&error)),
                    };
                    return Ok((feed, made));
                }
                _ = looks.tick() => {
                    let now = *told.borrow();
                    self.report(ctx, destination, done, now, &mut saved).await?;
                }
            }
        }
    }

    async fn report(
        &self,
        ctx: &mut Ctx,
        destination: &Destination,
        done: &Cursor,
        now: Progress,
        saved: &mut ReportedProgress,
    ) -> Result<(), Failure> {
        let begun = destination.open_uploads();
        if begun == saved.begun && saved.at.elapsed() < REPORT_INTERVAL {
            return Ok(());
        }
        let &Self { tenant, run, .. } = self;
        let progress = runs::Progress {
            rows: count(done.rows + now.rows),
            bytes: count(done.bytes + now.bytes),
            files: i64::from(done.files),
        };
        ctx.commit(async |tx| {
            note_uploads(tx, run, &begun).await?;
            runs::progress(tx, tenant, run, progress).await
        })
        .await?;
        *saved = ReportedProgress {
            at: Instant::now(),
            begun,
        };
        Ok(())
    }
}

struct ReportedProgress {
    at: Instant,
    begun: Vec<OpenUpload>,
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) const fn compression(compression: Compression) -> parquet_file::Compression {
    match compression {
        Compression::None => parquet_file::Compression::None,
        Compression::Gzip => parquet_file::Compression::Gzip,
        Compression::Snappy => parquet_file::Compression::Snappy,
        Compression::Zstandard => parquet_file::Compression::Zstandard,
    }
}

/// Maps an error of writing. A refusal of the destination is permanent; an error of this process may be temporary and
/// is recorded in the run.
pub(crate) fn failed(error: &columnar::Error) -> Failure {
    match error {
        columnar::Error::Write { path, source } => {
            let failure = classify(source, path.as_ref());
            if failure.is_transient() {
                Failure::retry(failure.to_string())
            } else {
                Failure::fatal(failure.to_string())
            }
        }
        other => Failure::retry(sources(other)),
    }
}

/// The error with its sources, as one text.
fn sources(error: &columnar::Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
