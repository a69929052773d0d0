//! Copies objects between stores, folders and buckets alike.

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt as _};
use tokio::io::AsyncWriteExt as _;
use towpath_traces::objects::Objects;

const AT_ONCE: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObjectTotals {
    pub files: u64,
    pub bytes: u64,
}

/// Copies missing objects. Objects that disappear meanwhile were cleaned up.
pub(super) async fn copy_all(from: &Objects, to: &Objects) -> anyhow::Result<()> {
    let listed = from.store().list(None).map_err(anyhow::Error::from);
    listed
        .try_for_each_concurrent(AT_ONCE, async |object| {
            copy_one(from, to, &object.location).await.map(drop)
        })
        .await
}

/// Copies the missing objects of `named`, and returns how many were not found.
pub(super) async fn copy_named(from: &Objects, to: &Objects, named: &[String]) -> anyhow::Result<usize> {
    let found: Vec<bool> = futures::stream::iter(named)
        .map(async |path| copy_one(from, to, &Path::from(path.as_str())).await)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(found.into_iter().filter(|found| !found).count())
}

pub(super) async fn missing(objects: &Objects, named: &[String]) -> anyhow::Result<usize> {
    let there: Vec<bool> = futures::stream::iter(named)
        .map(async |path| {
            length(objects, &Path::from(path.as_str()))
                .await
                .map(|length| length.is_some())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(there.into_iter().filter(|there| !there).count())
}

pub(super) async fn count(objects: &Objects) -> anyhow::Result<ObjectTotals> {
    let mut copied = ObjectTotals::default();
    let mut listed = objects.store().list(None);
    while let Some(object) = listed.try_next().await? {
        copied.files += 1;
        copied.bytes += object.size;
    }
    Ok(copied)
}

async fn length(objects: &Objects, path: &Path) -> anyhow::Result<Option<u64>> {
    match objects.store().head(path).await {
        Ok(object) => Ok(Some(object.size)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Objects never change, so one of the same length is the same. False if the source does not exist.
async fn copy_one(from: &Objects, to: &Objects, path: &Path) -> anyhow::Result<bool> {
    let Some(wanted) = length(from, path).await? else {
        return Ok(length(to, path).await?.is_some());
    };
    if length(to, path).await? == Some(wanted) {
        return Ok(true);
    }
    let object = match from.store().get(path).await {
        Ok(object) => object,
        Err(Error::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let mut pieces = object.into_stream();
    let mut writer = BufWriter::new(to.store().clone(), path.clone());
    while let Some(piece) = pieces.try_next().await? {
        writer.put(piece).await?;
    }
    writer.shutdown().await?;
    to.sync(path).await?;
    Ok(true)
}
