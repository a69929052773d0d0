//! Volumes of deployments: their ownership, and how files are copied into one without running an image's program.

use std::collections::HashMap;

use std::time::Duration;

use bollard::models::{ContainerCreateBody, HostConfig, Volume};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use futures::StreamExt as _;
use uuid::Uuid;

use super::container::{mount, remove};
use super::failure::engine_failed;
use super::labels::DATABASE_LABEL;
use crate::error::{Error, Result};

/// Time limit for removing a helper, for an unresponsive engine.
const REMOVAL: Duration = Duration::from_secs(30);
/// Where a helper has the volume.
pub(super) const PLACE: &str = "/volume";
/// Bytes read of a volume: the headers of its folder and first entries.
const HEAD: usize = 4096;

/// A container that is created but never started, to read and write a volume through the engine.
#[derive(Debug)]
pub(super) struct HelperContainer {
    engine: bollard::Docker,
    body: ContainerCreateBody,
}

impl HelperContainer {
    pub(super) fn new(engine: bollard::Docker, image: String, volume: String, labels: HashMap<String, String>) -> Self {
        let body = ContainerCreateBody {
            image: Some(image),
            // The engine asks for one although it does not run.
            entrypoint: Some(vec!["/never".to_owned()]),
            labels: Some(labels),
            host_config: Some(HostConfig {
                mounts: Some(vec![mount(volume, PLACE)]),
                network_mode: Some("none".to_owned()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        Self::of(engine, body)
    }

    /// One that may be started.
    pub(super) const fn of(engine: bollard::Docker, body: ContainerCreateBody) -> Self {
        Self { engine, body }
    }

    /// Creates it, lets `work` use it, and removes it, even if the caller is gone.
    pub(super) async fn run<T, F>(self, work: impl FnOnce(bollard::Docker, String) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let whole = tokio::spawn(async move {
            let Self { engine, body } = self;
            let name = format!("towpath-{}", Uuid::now_v7());
            let options = CreateContainerOptionsBuilder::new().name(&name).build();
            let done = match engine.create_container(Some(options), body).await {
                Ok(_) => work(engine.clone(), name.clone()).await,
                Err(error) => Err(engine_failed("creating a container")(error)),
            };
            // If the engine is unavailable, the leftover is removed at the platform's next start.
            let _ = tokio::time::timeout(REMOVAL, remove(&engine, &name)).await;
            done
        });
        whole.await.unwrap_or(Err(Error::Cancelled))
    }
}

/// Who the programs of an image run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum User {
    /// The machine's own numbers.
    Ids { uid: u64, gid: u64 },
    /// A name that only the image knows.
    Named,
}

impl User {
    /// As an image or a setting says it; nothing is root.
    pub(super) fn parse(text: &str) -> Self {
        let (uid, gid) = text.split_once(':').unwrap_or((text, "0"));
        match (uid.parse(), gid.parse()) {
            _ if text.is_empty() || text == "root" => Self::Ids { uid: 0, gid: 0 },
            (Ok(uid), Ok(gid)) => Self::Ids { uid, gid },
            _ => Self::Named,
        }
    }

    pub(super) const fn is_root(&self) -> bool {
        matches!(self, Self::Ids { uid: 0, .. })
    }
}

/// Whose a volume is after it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The one that uses it.
    User,
    /// Owned by root, with files in it: filled by an earlier version of the platform.
    Root,
    /// Another's.
    Other,
}

/// The id of the database in a volume. Volumes from before ids are identified by their creation time.
pub(super) fn database(mut volume: Volume) -> Option<String> {
    let made = volume.created_at.map(|at| format!("made {at}"));
    volume.labels.remove(DATABASE_LABEL).or(made)
}

/// Has a volume belong to the user, where nothing is in it yet.
pub(super) async fn own(helper: HelperContainer, user: User) -> Result<Owner> {
    helper
        .run(move |engine, id| async move {
            let found = inspect_volume(&engine, &id).await?;
            let is_users = match &user {
                User::Ids { uid, .. } => found.uid == *uid,
                User::Named => found.mode & 0o002 != 0,
            };
            if is_users {
                return Ok(Owner::User);
            }
            if !found.is_empty {
                return Ok(if found.uid == 0 { Owner::Root } else { Owner::Other });
            }
            let mut folder = tar::Header::new_gnu();
            folder.set_entry_type(tar::EntryType::Directory);
            folder.set_size(0);
            folder.set_mtime(0);
            match user {
                User::Ids { uid, gid } => {
                    folder.set_uid(uid);
                    folder.set_gid(gid);
                    folder.set_mode(0o700);
                }
                User::Named => folder.set_mode(0o777),
            }
            let mut tar = tar::Builder::new(Vec::new());
            let packed = tar
                .append_data(&mut folder, format!("{}/", &PLACE[1..]), std::io::empty())
                .and_then(|()| tar.into_inner());
            let packed = packed.map_err(Error::io("packing a folder"))?;
            let options = UploadToContainerOptionsBuilder::new().path("/").build();
            let body = bollard::body_full(packed.into());
            let sent = engine.upload_to_container(&id, Some(options), body).await;
            sent.map_err(engine_failed("changing the owner of the database's volume"))?;
            Ok(Owner::User)
        })
        .await
}

pub(super) struct VolumeOwnership {
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) mode: u32,
    pub(super) is_empty: bool,
}

pub(super) async fn inspect_volume(engine: &bollard::Docker, id: &str) -> Result<VolumeOwnership> {
    let options = DownloadFromContainerOptionsBuilder::new().path(PLACE).build();
    let mut output = Box::pin(engine.download_from_container(id, Some(options)));
    let mut head = Vec::new();
    // Dropped, it closes the connection: databases are not read.
    while head.len() < HEAD
        && let Some(piece) = output.next().await
    {
        head.extend_from_slice(&piece.map_err(engine_failed("inspecting the database's volume"))?);
    }
    drop(output);
    let unreadable = || Error::io("reading the database's volume");
    let mut archive = tar::Archive::new(head.as_slice());
    let mut entries = archive.entries().map_err(unreadable())?;
    let folder = entries.next().transpose().map_err(unreadable())?;
    let folder = folder.ok_or_else(|| Error::Refused("the engine does not report the owner of a volume".to_owned()))?;
    let header = folder.header();
    let (uid, gid, mode) = (header.uid(), header.gid(), header.mode());
    drop(folder);
    Ok(VolumeOwnership {
        uid: uid.map_err(unreadable())?,
        gid: gid.map_err(unreadable())?,
        mode: mode.map_err(unreadable())?,
        // One that is cut off is one too.
        is_empty: entries.next().is_none(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_numbers_or_names() {
        assert_eq!(User::parse("10001:10002"), User::Ids { uid: 10001, gid: 10002 });
        assert_eq!(User::parse("1000"), User::Ids { uid: 1000, gid: 0 });
        assert_eq!(User::parse("node"), User::Named);
        for root in ["", "root", "0", "0:0"] {
            assert!(User::parse(root).is_root(), "{root}");
        }
    }
}
