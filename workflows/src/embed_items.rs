//! Embeds items of the store. A put queues its item and names the job, unless one is named already; a change of
//! `store.index` queues all items. What is embedded is saved by batches, so a killed job continues where it was.

pub(crate) mod job;

use std::time::Duration;

use serde_json::Value;
use towpath_domain::TenantId;
use towpath_domain::agent::text_path;
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome, Workflow};
use towpath_runtime::EmbedError;
use towpath_store::item_vectors::pgvector::{self, Missing};
use towpath_store::item_vectors::{self, EmbeddedItem, PendingItem};
use towpath_store::{self as store, Dialect, Tx};

pub use self::job::{EmbedItems, start};

use crate::agent_services::AgentServices;
use crate::item_index::{IndexSettings, matrix};
use crate::metric;

/// The pool of these jobs.
pub const POOL: &str = "embeddings";

/// Items of a batch, and about so many bytes of their values.
const BATCH: (i64, usize) = (64, 512 << 10);
/// Items that are queued at a time after a change of the setting.
const WALK: i64 = 1000;
/// Vectors that are copied at a time to the index of pgvector.
const COPY: i64 = 200;
/// Rows that are removed at a time once the setting is gone.
const CLEAR: i64 = 1000;
/// A worker with another setting leaves the job alone this long: a server with the new graph file is starting.
const OTHER_SETTING: Duration = Duration::from_secs(5);
/// Pauses of an item that the embedder refuses: doubled from the first to the second value.
const REFUSED: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(86_400));

impl Workflow for EmbedItems {
    const KIND: &'static str = "embed_items";
    const POOL: &'static str = POOL;
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(1), Duration::from_secs(60));
    type World = AgentServices;

    async fn run(&self, ctx: &mut Ctx, world: &AgentServices) -> Outcome {
        let &Self { tenant, mark } = self;
        let mut batch = ctx.cursor::<u64>()?.unwrap_or_default();
        let mut may_copy = world.store.dialect() == Dialect::Postgres;
        loop {
            let row = world
                .store
                .read(async |tx| item_vectors::get(tx, tenant).await)
                .await
                .retry()?;
            let Some(row) = row.filter(|row| row.job_id == Some(mark)) else {
                return ctx.complete();
            };
            batch += 1;
            if row.embedder.is_empty() {
                ctx.checkpoint(&batch, async |tx| {
                    item_vectors::clear(tx, tenant, CLEAR).await.map(drop)
                })
                .await?;
                continue;
            }
            let settings = world.items.settings();
            let Some(settings) = (*settings).as_ref().filter(|settings| settings.is(&row)) else {
                return Err(Failure::Snooze(OTHER_SETTING));
            };
            if row.walking {
                ctx.checkpoint(&batch, async |tx| item_vectors::walk(tx, tenant, WALK).await)
                    .await?;
            }
            let items = world
                .store
                .read(async |tx| item_vectors::pending(tx, tenant, BATCH.0, BATCH.1).await)
                .await
                .retry()?;
            let is_idle = items.is_empty() && !row.walking;
            if !items.is_empty() {
                embed(ctx, world, settings, (tenant, row.space, batch), items).await?;
            }
            let copied = if may_copy {
                copy(ctx, world, (tenant, row.space), settings.dims).await?
            } else {
                CopyProgress::Nothing
            };
            may_copy &= copied != CopyProgress::Unavailable;
            if is_idle
                && copied != CopyProgress::Copied
                && ctx
                    .commit(async |tx| item_vectors::release_job(tx, tenant, mark).await)
                    .await?
            {
                return ctx.complete();
            }
        }
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, _: EndReason) -> store::Result<()> {
        item_vectors::clear_job(tx, input.tenant, input.mark).await
    }
}

/// What was copied to the index of pgvector.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyProgress {
    Copied,
    /// It has all.
    Nothing,
    /// There is none, or it failed: searches do without it.
    Unavailable,
}

/// Copies vectors that are missing in the index of pgvector.
async fn copy(
    ctx: &mut Ctx,
    world: &AgentServices,
    (tenant, space): (TenantId, i64),
    dims: usize,
) -> Result<CopyProgress, Failure> {
    let missing = world
        .store
        .read(async |tx| pgvector::missing(tx, tenant, space, dims, COPY).await)
        .await;
    let vectors = match missing {
        Ok(Missing::Vectors(vectors)) => vectors,
        Ok(Missing::Nothing) => return Ok(CopyProgress::Nothing),
        Ok(Missing::Unavailable) => return Ok(CopyProgress::Unavailable),
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the index of pgvector cannot be read"
            );
            return Ok(CopyProgress::Unavailable);
        }
    };
    let added = ctx
        .commit(async |tx| pgvector::add(tx, tenant, space, dims, &vectors).await)
        .await;
    match added {
        Ok(()) => Ok(CopyProgress::Copied),
        Err(error @ (Failure::Retry(_) | Failure::Fatal(_))) => {
            tracing::warn!(%error, "vectors cannot be copied to the index of pgvector");
            Ok(CopyProgress::Unavailable)
        }
        Err(error) => Err(error),
    }
}

/// Embeds a batch and saves the vectors.
async fn embed(
    ctx: &mut Ctx,
    world: &AgentServices,
    settings: &IndexSettings,
    (tenant, space, batch): (TenantId, i64, u64),
    items: Vec<PendingItem>,
) -> Result<(), Failure> {
    let (embedded, refused) = vectors(world, settings, items).await?;
    let attempts = refused.iter().map(|item| item.attempts).max().unwrap_or_default();
    let pause = REFUSED.0 * 2_u32.saturating_pow(u32::try_from(attempts).unwrap_or(u32::MAX).min(16));
    let due = world.store.clock().now().plus(pause.min(REFUSED.1));
    ctx.checkpoint(&batch, async |tx| {
        item_vectors::save(tx, tenant, space, &embedded).await?;
        item_vectors::postpone(tx, tenant, &refused, due).await
    })
    .await?;
    metrics::counter!(metric::ITEMS_EMBEDDED).increment(embedded.len() as u64);
    metrics::counter!(metric::ITEMS_REFUSED).increment(refused.len() as u64);
    Ok(())
}

/// The items with their vectors, and those that the embedder refuses. If it refuses a batch, each item is tried alone:
/// one item must not keep the others waiting.
async fn vectors(
    world: &AgentServices,
    settings: &IndexSettings,
    items: Vec<PendingItem>,
) -> Result<(Vec<EmbeddedItem>, Vec<PendingItem>), Failure> {
    match embed_together(world, settings, &items).await {
        Ok(vectors) => Ok((with_vectors(items, vectors), Vec::new())),
        Err(error @ EmbedError::Unavailable(_)) => Err(Failure::retry(error.to_string())),
        Err(error) => {
            let (mut embedded, mut refused) = (Vec::new(), Vec::new());
            let is_alone = items.len() == 1;
            for item in items {
                if is_alone {
                    refused.push(item);
                    continue;
                }
                match embed_together(world, settings, std::slice::from_ref(&item)).await {
                    Ok(vectors) => embedded.extend(with_vectors(vec![item], vectors)),
                    Err(error @ EmbedError::Unavailable(_)) => return Err(Failure::retry(error.to_string())),
                    Err(EmbedError::Refused(_)) => refused.push(item),
                }
            }
            if embedded.is_empty() && !is_alone {
                return Err(Failure::retry(error.to_string()));
            }
            tracing::warn!(
                items = refused.len(),
                %error,
                "items cannot be embedded; they are tried again later, and a search with a query does not find them"
            );
            Ok((embedded, refused))
        }
    }
}

/// The vectors of each item.
async fn embed_together(
    world: &AgentServices,
    settings: &IndexSettings,
    items: &[PendingItem],
) -> Result<Vec<Vec<Vec<u8>>>, EmbedError> {
    let texts: Vec<Vec<String>> = items.iter().map(|item| texts(item, settings)).collect();
    let counts: Vec<usize> = texts.iter().map(Vec::len).collect();
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    let mut vectors = world.items.embed(settings, &texts).await?.into_iter();
    let of_item = |count: usize| -> Vec<Vec<u8>> {
        let some = vectors.by_ref().take(count);
        some.map(|vector| matrix::bytes(&vector)).collect()
    };
    Ok(counts.into_iter().map(of_item).collect())
}

fn texts(item: &PendingItem, settings: &IndexSettings) -> Vec<String> {
    let paths: Option<Vec<String>> = item
        .index_paths
        .as_deref()
        .and_then(|paths| serde_json::from_str(paths).ok());
    let value: Value = serde_json::from_str(&item.value).unwrap_or_default();
    text_path::texts(&value, paths.as_ref().unwrap_or(&settings.fields))
}

fn with_vectors(items: Vec<PendingItem>, vectors: Vec<Vec<Vec<u8>>>) -> Vec<EmbeddedItem> {
    let both = items.into_iter().zip(vectors);
    both.map(|(item, vectors)| EmbeddedItem { item, vectors }).collect()
}
