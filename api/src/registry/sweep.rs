//! What nobody needs any more goes when something new comes: uploads that were given up, images that no tag and no
//! recent revision names, blobs of no image. What is younger than a day stays: it may belong to a push under way.

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt as _;
use object_store::ObjectMeta;
use towpath_domain::Timestamp;
use towpath_store::revisions;

use super::manifests::Manifest;
use super::{Images, RegistryError};
use crate::app::App;
use crate::errors::ApiError;

/// Longer than any push takes.
const MIN_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Revisions that keep their images, the newest first: as many as can be listed at once.
const REVISIONS: i64 = 100;

/// Removes pieces of uploads that were given up.
pub(super) async fn uploads(app: &App, images: &Images) -> Result<(), RegistryError> {
    for object in old_objects(app, images, "uploads").await? {
        remove(app, &object).await?;
    }
    Ok(())
}

/// Removes images that nothing names, and what only they consist of.
pub(super) async fn images(app: &App, images: &Images) -> Result<(), RegistryError> {
    let old_manifests = old_objects(app, images, "manifests").await?;
    let old_blobs = old_objects(app, images, "blobs").await?;
    if old_manifests.is_empty() && old_blobs.is_empty() {
        return Ok(());
    }
    let mut named = referenced_digests(app, images).await?;
    let unnamed: HashSet<&str> = old_manifests.iter().filter_map(name).collect();
    // What is young is kept whether it is named or not, with all it consists of.
    let known = manifests(app, images).await?;
    let young = known
        .iter()
        .map(|(name, _)| name)
        .filter(|name| !unnamed.contains(name.as_str()));
    named.extend(young.cloned());
    let mut blobs = HashSet::new();
    let mut next: Vec<String> = named.iter().cloned().collect();
    while let Some(digest) = next.pop() {
        let bytes = match app.objects.get(&images.key(&format!("manifests/{digest}"))).await {
            Ok(bytes) => bytes,
            // A revision may name one that was pushed elsewhere.
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(RegistryError::storage_failure(&error)),
        };
        let manifest = Manifest::parse(&bytes)?;
        blobs.extend(manifest.blobs.into_iter().map(|digest| digest.0));
        let listed = manifest.manifests.into_iter().map(|digest| digest.0);
        next.extend(listed.filter(|digest| named.insert(digest.clone())).collect::<Vec<_>>());
    }
    let needed = |object: &ObjectMeta, by: &HashSet<String>| name(object).is_none_or(|name| by.contains(name));
    let manifests = old_manifests.iter().filter(|object| !needed(object, &named));
    let blobs = old_blobs.iter().filter(|object| !needed(object, &blobs));
    for object in manifests.chain(blobs) {
        // An image that came meanwhile, or came again, may consist of what nothing named before.
        if !self::manifests(app, images).await?.is_subset(&known) {
            return Ok(());
        }
        remove(app, object).await?;
    }
    Ok(())
}

/// Digests of the images that are here, and when each was stored.
async fn manifests(app: &App, images: &Images) -> Result<HashSet<(String, i64)>, RegistryError> {
    let found = all(app, images, "manifests").await?;
    let named = found
        .iter()
        .filter_map(|object| Some((name(object)?.to_owned(), object.last_modified.timestamp_micros())));
    Ok(named.collect())
}

/// Digests that tags or recent revisions name.
async fn referenced_digests(app: &App, images: &Images) -> Result<HashSet<String>, RegistryError> {
    let recent = app
        .store
        .read(async |tx| revisions::list(tx, images.tenant, images.deployment, None, REVISIONS, 0).await);
    let mut named = HashSet::new();
    for revision in recent.await.map_err(ApiError::from)? {
        let config = revision.config().map_err(ApiError::from)?;
        let digest = config.image_uri.as_deref().and_then(|uri| uri.split_once("@sha256:"));
        named.extend(digest.map(|(_, digest)| digest.to_owned()));
    }
    for tag in all(app, images, "tags").await? {
        let digest = app.objects.get(&tag.location).await;
        let digest = digest.map_err(|error| RegistryError::storage_failure(&error))?;
        let digest = String::from_utf8_lossy(&digest);
        named.extend(digest.strip_prefix("sha256:").map(str::to_owned));
    }
    Ok(named)
}

fn name(object: &ObjectMeta) -> Option<&str> {
    object.location.filename()
}

async fn all(app: &App, images: &Images, folder: &str) -> Result<Vec<ObjectMeta>, RegistryError> {
    let folder = images.key(folder);
    let mut listed = app.objects.store().list(Some(&folder));
    let mut found = Vec::new();
    while let Some(object) = listed.next().await {
        found.push(object.map_err(|error| RegistryError::storage_failure(&error))?);
    }
    Ok(found)
}

async fn old_objects(app: &App, images: &Images, folder: &str) -> Result<Vec<ObjectMeta>, RegistryError> {
    let before = app.clock.now().minus(MIN_AGE);
    let mut found = all(app, images, folder).await?;
    found.retain(|object| Timestamp::from_micros(object.last_modified.timestamp_micros()) < before);
    Ok(found)
}

async fn remove(app: &App, object: &ObjectMeta) -> Result<(), RegistryError> {
    let gone = app.objects.delete(&object.location).await;
    gone.map_err(|error| RegistryError::storage_failure(&error))
}
