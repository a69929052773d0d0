//! Writing one file on the heavy runtime while the job reports how far it is.

use std::time::Duration;

use object_store::path::Path;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use towpath_domain::export::Compression;
use towpath_durable::{Ctx, Failure};
use towpath_outbound::{Begun, Destination, classify};
use towpath_store::exports::runs;
use towpath_traces::columnar;
use towpath_traces::parquet_file::{self, Feed, Progress, SealedFile, write_file};

use super::{Cursor, ExportPart, Plan, note_uploads};
use crate::World;

/// What came of writing a file.
pub(super) enum Made {
    /// It is at the destination, and not visible yet.
    Sealed(SealedFile),
    /// Nothing: no rows are left.
    Nothing,
    /// Nothing: the row with which it was to end is not there any more.
    Diverged,
}

/// How often progress is saved.
const REPORT: Duration = Duration::from_secs(2);
/// How often it is looked whether an upload was begun: until that is saved a crash leaves it behind for good.
const LOOK: Duration = Duration::from_millis(200);

impl ExportPart {
    /// Writes the next rows of `feed`, up to where a file ends. Nothing is visible yet.
    #[expect(
        clippy::too_many_arguments,
        reason = "a walk that is told once, cut in two for its length"
    )]
    pub(super) async fn write_file(
        &self,
        ctx: &mut Ctx,
        world: &World,
        plan: &Plan,
        destination: &Destination,
        mut feed: Feed,
        path: Path,
        done: &Cursor,
    ) -> Result<(Feed, Made), Failure> {
        let (tell, told) = watch::channel(Progress { rows: 0, bytes: 0 });
        let (objects, options, end) = (destination.objects().clone(), plan.options.clone(), done.end());
        let work = world.heavy.run(async move {
            let mut progress = |now| {
                tell.send_replace(now);
            };
            let sealed = write_file(&mut feed, objects, path, &options, end, &mut progress).await;
            (feed, sealed)
        });
        tokio::pin!(work);
        let cancelled = ctx.cancelled();
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut saved = Saved {
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
                        Ok(Some(sealed)) => Made::Sealed(sealed),
                        Ok(None) => Made::Nothing,
                        Err(columnar::Error::Diverged(why)) => {
                            tracing::info!(why, "an interrupted file has other rows by now");
                            Made::Diverged
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
        saved: &mut Saved,
    ) -> Result<(), Failure> {
        let begun = destination.begun();
        if begun == saved.begun && saved.at.elapsed() < REPORT {
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
        *saved = Saved {
            at: Instant::now(),
            begun,
        };
        Ok(())
    }
}

struct Saved {
    at: Instant,
    begun: Vec<Begun>,
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The compression as the writer of files calls it.
pub(crate) const fn compression(compression: Compression) -> parquet_file::Compression {
    match compression {
        Compression::None => parquet_file::Compression::None,
        Compression::Gzip => parquet_file::Compression::Gzip,
        Compression::Snappy => parquet_file::Compression::Snappy,
        Compression::Zstandard => parquet_file::Compression::Zstandard,
    }
}

/// What an error of writing means to an export. What the destination refused stays refused; what lies with us may
/// pass, and the run's errors tell.
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
