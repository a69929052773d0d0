//! The platform's own program at the engine: an image for builds, and a volume from which agent servers start.
//!
//! A built image contains the program of its time, which would not know the schema of a newer database. So every agent
//! server starts with the current program.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::{
    ListVolumesOptionsBuilder, RemoveImageOptions, RemoveVolumeOptionsBuilder, UploadToContainerOptionsBuilder,
};
use sha2::{Digest as _, Sha256};
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;

use super::Containers;
use super::failure::{engine_failed, is_gone};
use super::image::append;
use super::labels::{LIFE_LABEL, ROOT_LABEL};
use super::program_cache::ProgramCache;
use super::volume::HelperContainer;
use crate::error::{Error, Result};
use crate::git::blocking;
use crate::log::Log;

/// Volumes of the program.
const PROGRAM_LABEL: &str = "dev.towpath.program";

impl Containers {
    /// The image that contains the program. Looked up each time: nothing runs from it, so cleaning up the engine may
    /// remove it.
    pub(super) async fn program(&self) -> Result<String> {
        let mut known = self.program.lock().await;
        self.program_image(&mut known).await
    }

    async fn program_image(&self, known: &mut ProgramCache) -> Result<String> {
        if let Some(digest) = &known.digest {
            let name = self.program_name(digest);
            if self.find(&name).await?.is_some() {
                return Ok(name);
            }
        }
        let work = self.root.temporary()?;
        let context = work.path().join("context");
        let digest = self.pack(&context).await?;
        let name = self.program_name(&digest);
        known.digest = Some(digest);
        if self.find(&name).await?.is_none() {
            let never = CancellationToken::new();
            self.build_context(&context, &name, &[], &Log::none(), &never).await?;
        }
        Ok(name)
    }

    /// The volume that contains the program. Filled once per process life, and again after a removal.
    pub(super) async fn program_volume(&self) -> Result<String> {
        let mut known = self.program.lock().await;
        let image = self.program_image(&mut known).await?;
        // The image's name with another sign: volumes have no tags.
        let name = image.replace(':', "-");
        if known.filled {
            match self.engine.inspect_volume(&name).await {
                Ok(_) => return Ok(name),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(engine_failed("finding the program's volume")(error)),
            }
        }
        known.filled = false;
        let request = VolumeCreateRequest {
            name: Some(name.clone()),
            labels: Some(HashMap::from([
                (ROOT_LABEL.to_owned(), self.root.mark()),
                (PROGRAM_LABEL.to_owned(), "1".to_owned()),
            ])),
            ..VolumeCreateRequest::default()
        };
        let made = self.engine.create_volume(request).await;
        made.map_err(engine_failed("creating the program's volume"))?;
        let work = self.root.temporary()?;
        let context = work.path().join("context");
        self.pack(&context).await?;
        let helper = self.helper(image, name.clone());
        helper
            .run(move |engine, id| async move {
                // Its folder goes with it.
                let _work = work;
                let file = tokio::fs::File::open(context).await;
                let file = file.map_err(Error::io("reading what was packed for the engine"))?;
                let body = bollard::body_try_stream(ReaderStream::with_capacity(file, 1 << 16));
                let options = UploadToContainerOptionsBuilder::new()
                    .path(super::volume::PLACE)
                    .build();
                let sent = engine.upload_to_container(&id, Some(options), body).await;
                sent.map_err(engine_failed("filling the program's volume"))
            })
            .await?;
        known.filled = true;
        Ok(name)
    }

    /// Removes images and volumes of other versions of the program, once this process life has created its own.
    pub(super) async fn sweep_programs(&self) -> Result<usize> {
        let Some(digest) = self.program.lock().await.digest.clone() else {
            return Ok(0);
        };
        let current = self.program_name(&digest);
        let mut removed = 0;
        for image in self.images(&format!("{}-program", self.repository())).await? {
            for name in image.repo_tags.iter().filter(|name| **name != current) {
                let old = self.engine.remove_image(name, None::<RemoveImageOptions>, None).await;
                removed += usize::from(old.is_ok());
            }
        }
        let labels = vec![format!("{ROOT_LABEL}={}", self.root.mark()), PROGRAM_LABEL.to_owned()];
        let filter = HashMap::from([("label", labels)]);
        let options = ListVolumesOptionsBuilder::new().filters(&filter).build();
        let found = self.engine.list_volumes(Some(options)).await;
        let found = found.map_err(engine_failed("listing volumes"))?;
        let kept = current.replace(':', "-");
        for volume in found.volumes.unwrap_or_default() {
            if volume.name != kept {
                // One that a container has stays.
                let options = RemoveVolumeOptionsBuilder::new().build();
                let old = self.engine.remove_volume(&volume.name, Some(options)).await;
                removed += usize::from(old.is_ok());
            }
        }
        Ok(removed)
    }

    pub(super) fn helper(&self, image: String, volume: String) -> HelperContainer {
        let labels = HashMap::from([
            (ROOT_LABEL.to_owned(), self.root.mark()),
            (LIFE_LABEL.to_owned(), self.process_life.clone()),
        ]);
        HelperContainer::new(self.engine.clone(), image, volume, labels)
    }

    /// Its tag says what is in it.
    fn program_name(&self, digest: &str) -> String {
        format!("{}-program:{digest}", self.repository())
    }

    async fn pack(&self, to: &Path) -> Result<String> {
        let (program, to) = (self.settings.program.clone(), to.to_owned());
        let packed = blocking(move || pack_program(&program, &to).map_err(Error::io("packing the program"))).await?;
        Ok(packed[..24].to_owned())
    }
}

/// Writes the build context of the program's image. Returns its digest.
fn pack_program(program: &Path, to: &Path) -> io::Result<String> {
    const DOCKERFILE: &[u8] = b"FROM scratch\nCOPY towpath settings.toml /\nCOPY empty /empty\n";
    let bytes = std::fs::read(program)?;
    let mut tar = tar::Builder::new(io::BufWriter::new(File::create(to)?));
    append(&mut tar, "Dockerfile", DOCKERFILE)?;
    append(&mut tar, "settings.toml", b"")?;
    append(&mut tar, "towpath", &bytes)?;
    let mut folder = tar::Header::new_gnu();
    folder.set_entry_type(tar::EntryType::Directory);
    folder.set_size(0);
    folder.set_mode(0o755);
    folder.set_mtime(0);
    tar.append_data(&mut folder, "empty/", io::empty())?;
    tar.into_inner()?.flush()?;
    let mut hash = Sha256::new();
    // What is beside it counts too.
    hash.update(DOCKERFILE);
    hash.update(&bytes);
    Ok(hex::encode(hash.finalize()))
}
