//! Backup and restore of deployment volumes: files are copied even while an agent server writes, and restored into new
//! volumes.
//!
//! Next to a running agent server, this program copies in a container with the same volume on the same kernel, so that
//! both see the locks of SQLite. Its image is the operator's base image if the engine has it, else the agent server's
//! own: no foreign program gets access to the volume. A volume without a running container is read directly.

use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::models::{ContainerCreateBody, ContainerSummary, HostConfig, VolumeCreateRequest};
use bollard::query_parameters::{
    BuildImageOptionsBuilder, DownloadFromContainerOptionsBuilder, InspectContainerOptions,
    ListContainersOptionsBuilder, ListImagesOptionsBuilder, LogsOptionsBuilder, RemoveImageOptions,
    RemoveVolumeOptionsBuilder, StartContainerOptions, UploadToContainerOptionsBuilder,
};
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::OnceCell;
use tokio_util::io::ReaderStream;
use towpath_domain::DeploymentId;
use uuid::Uuid;

use super::container::{mount, wait_ended};
use super::failure::{engine_failed, is_gone};
use super::image::append;
use super::labels::{DEPLOYMENT_LABEL, LIFE_LABEL, ROOT_LABEL};
use super::volume::{self, HelperContainer, PLACE};
use super::{connect, dockerfile, pack};
use crate::error::{Error, Result};
use crate::git::blocking;
use crate::tree;

/// Which restore filled a volume.
const RESTORE_LABEL: &str = "dev.towpath.restore";
/// What a call may take: the files of a volume are sent in one.
const CALL_LIMIT_SECONDS: u64 = 6 * 3600;
/// An engine that takes longer to say that it is there is not.
const PING_LIMIT: Duration = Duration::from_secs(30);
/// What a copy inside a container may take.
const COPY_LIMIT: Duration = Duration::from_secs(6 * 3600);
/// Where this program and what it copies are in a container.
const FOLDER: &str = "towpath-copy";
const PROGRAM: &str = "towpath-copy/towpath";
const OUT: &str = "towpath-copy/out";
/// Runtimes whose containers share the machine's kernel, so that they see each other's locks.
const SHARED_KERNEL: [&str; 6] = ["", "runc", "io.containerd.runc.v2", "crun", "youki", "nvidia"];
/// As much is told of what a program said.
const TOLD: usize = 2000;

/// Numbers of a user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// User id.
    pub uid: u64,
    /// Group id.
    pub gid: u64,
}

/// What a volume was, beside its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMetadata {
    /// As the engine shows them.
    pub labels: BTreeMap<String, String>,
    /// Whose its folder was.
    pub folder: Ids,
    /// Mode of its folder.
    pub mode: u32,
    /// Whose its database was.
    pub files: Ids,
}

/// As agent servers of images that are built here need it.
impl Default for VolumeMetadata {
    fn default() -> Self {
        let ids = Ids { uid: 10001, gid: 10001 };
        Self {
            labels: BTreeMap::new(),
            folder: ids,
            mode: 0o700,
            files: ids,
        }
    }
}

#[derive(Clone, Debug)]
pub struct RestoreRef {
    /// The same for attempts of the same backup in the same place.
    pub name: String,
    /// Whether this is a repeated attempt: volumes that it created are created again.
    pub is_repeated: bool,
}

/// The volumes of an engine.
#[derive(Debug)]
pub struct Volumes {
    engine: bollard::Docker,
    base_image: String,
    program: PathBuf,
    root: PathBuf,
    /// Like a platform's: leftovers of a killed process are removed at the platform's next start.
    life: String,
    /// An image with nothing in it, for containers that never run.
    empty: OnceCell<String>,
}

impl Volumes {
    /// The volumes of the platform with the root folder `root`. `base_image` is the base of built images, and `program`
    /// this program.
    pub async fn open(host: &str, base_image: &str, program: PathBuf, root: PathBuf) -> Result<Self> {
        let engine = connect(host, CALL_LIMIT_SECONDS)?;
        let why = match tokio::time::timeout(PING_LIMIT, engine.ping()).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("not within {} s", PING_LIMIT.as_secs())),
        };
        if let Some(why) = why {
            return Err(Error::Refused(format!(
                "the Docker engine at {host} does not answer: {why}"
            )));
        }
        Ok(Self {
            engine,
            base_image: base_image.to_owned(),
            program,
            root,
            life: Uuid::now_v7().to_string(),
            empty: OnceCell::new(),
        })
    }

    /// Removes what was made at the engine.
    pub async fn close(&self) {
        if let Some(image) = self.empty.get() {
            let removed = self.engine.remove_image(image, None::<RemoveImageOptions>, None).await;
            if let Err(error) = removed {
                tracing::debug!(%error, %image, "an empty image could not be removed from the engine");
            }
        }
    }

    /// Whether a deployment has a volume.
    pub async fn has(&self, deployment: DeploymentId) -> Result<bool> {
        Ok(self.labels(deployment).await?.is_some())
    }

    /// Copies the files of a deployment's volume into an empty folder, each database as of one moment. `None` if there
    /// is no volume.
    pub async fn fetch(&self, deployment: DeploymentId, into: &Path) -> Result<Option<VolumeMetadata>> {
        let Some(labels) = self.labels(deployment).await? else {
            return Ok(None);
        };
        let name = super::volume(deployment);
        let folder = self.inspect(&name).await?;
        let mut users = self.users(&name).await?;
        let mut files = None;
        if users.is_empty() {
            let (helper, to) = (self.helper(&name).await?, into.to_owned());
            files = helper
                .run(move |engine, id| async move { download(&engine, &id, PLACE, to).await })
                .await?;
            users = self.users(&name).await?;
            if !users.is_empty() {
                // An agent server may have written meanwhile.
                clear(into).await?;
            }
        }
        if !users.is_empty() {
            files = self.fetch_in_use(&name, &users, into).await?;
        }
        let now = self.labels(deployment).await?;
        if now.as_ref() != Some(&labels) {
            // It was deleted meanwhile; a container created with it would bring it back empty.
            if now.is_some_and(|now| now.is_empty()) && self.inspect(&name).await?.is_empty {
                let options = RemoveVolumeOptionsBuilder::new().build();
                let _ = self.engine.remove_volume(&name, Some(options)).await;
            }
            return Ok(None);
        }
        let own = Ids {
            uid: folder.uid,
            gid: folder.gid,
        };
        let mut labels: BTreeMap<String, String> = labels.into_iter().collect();
        labels.remove(RESTORE_LABEL);
        Ok(Some(VolumeMetadata {
            labels,
            folder: own,
            mode: folder.mode & 0o7777,
            files: files.unwrap_or(own),
        }))
    }

    /// Whether files may be put into the volume of a deployment.
    pub async fn expect_free(&self, deployment: DeploymentId, restoring: &RestoreRef) -> Result<()> {
        let Some(labels) = self.labels(deployment).await? else {
            return Ok(());
        };
        if restoring.is_repeated && labels.get(RESTORE_LABEL) == Some(&restoring.name) {
            return Ok(());
        }
        let name = super::volume(deployment);
        if self.inspect(&name).await?.is_empty {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "the Docker engine already has a volume {name} with files in it; if it is no longer needed, remove it with \
             `docker volume rm {name}`"
        )))
    }

    /// Creates a deployment's volume from the files of a folder, except top-level ones named in `leave`. The folder of
    /// deployments must exist.
    pub async fn put(
        &self,
        deployment: DeploymentId,
        from: PathBuf,
        leave: &'static [&'static str],
        placed: VolumeMetadata,
        restoring: &RestoreRef,
    ) -> Result<()> {
        self.expect_free(deployment, restoring).await?;
        let name = super::volume(deployment);
        let options = RemoveVolumeOptionsBuilder::new().build();
        match self.engine.remove_volume(&name, Some(options)).await {
            Err(error) if !is_gone(&error) => return Err(engine_failed("removing an empty volume")(error)),
            _ => {}
        }
        let mut labels: HashMap<String, String> = placed.labels.clone().into_iter().collect();
        labels.extend([
            (ROOT_LABEL.to_owned(), self.mark()),
            (DEPLOYMENT_LABEL.to_owned(), deployment.to_string()),
            (RESTORE_LABEL.to_owned(), restoring.name.clone()),
        ]);
        let request = VolumeCreateRequest {
            name: Some(name.clone()),
            labels: Some(labels),
            ..VolumeCreateRequest::default()
        };
        let made = self.engine.create_volume(request).await;
        made.map_err(engine_failed("creating the volume of a database"))?;
        let root = self.root.clone();
        let archive = blocking(move || {
            let packed = tempfile::tempfile_in(root).and_then(|file| {
                pack::pack(&from, leave, &placed, file.try_clone()?)?;
                std::io::Seek::rewind(&mut &file)?;
                Ok(file)
            });
            packed.map_err(Error::io("packing the files of a deployment"))
        })
        .await?;
        let helper = self.helper(&name).await?;
        helper
            .run(move |engine, id| async move {
                let file = tokio::fs::File::from_std(archive);
                let body = bollard::body_try_stream(ReaderStream::with_capacity(file, 1 << 16));
                let options = UploadToContainerOptionsBuilder::new().path("/").build();
                let sent = engine.upload_to_container(&id, Some(options), body).await;
                sent.map_err(engine_failed("filling the volume of a database"))
            })
            .await
    }

    async fn labels(&self, deployment: DeploymentId) -> Result<Option<HashMap<String, String>>> {
        match self.engine.inspect_volume(&super::volume(deployment)).await {
            Ok(found) => Ok(Some(found.labels)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(engine_failed("finding the volume of a database")(error)),
        }
    }

    async fn inspect(&self, name: &str) -> Result<volume::VolumeOwnership> {
        let helper = self.helper(name).await?;
        helper
            .run(|engine, id| async move { volume::inspect_volume(&engine, &id).await })
            .await
    }

    /// The containers that run with a volume.
    async fn users(&self, name: &str) -> Result<Vec<ContainerSummary>> {
        let running = ["running", "paused", "restarting"].map(str::to_owned);
        let filters = HashMap::from([("volume", vec![name.to_owned()]), ("status", running.to_vec())]);
        let options = ListContainersOptionsBuilder::new().filters(&filters).build();
        let found = self.engine.list_containers(Some(options)).await;
        found.map_err(engine_failed("listing containers"))
    }

    /// Has this program copy what agent servers use.
    async fn fetch_in_use(&self, name: &str, users: &[ContainerSummary], into: &Path) -> Result<Option<Ids>> {
        let mut runtime = String::new();
        for user in users {
            let id = user.id.as_deref().unwrap_or_default();
            let found = self.engine.inspect_container(id, None::<InspectContainerOptions>).await;
            let found = found.map_err(engine_failed("inspecting the container of a database"))?;
            runtime = found.host_config.and_then(|host| host.runtime).unwrap_or_default();
            if !SHARED_KERNEL.contains(&runtime.as_str()) {
                return Err(Error::Refused(format!(
                    "the volume {name} is used by a container of the runtime {runtime}, beside which nothing else can read \
                     a database safely; stop the platform, make the backup, and start the platform again"
                )));
            }
        }
        let mut images = self.base_images().await?;
        images.extend(users.iter().filter_map(|user| user.image_id.clone()));
        let mut why = "the engine has no image".to_owned();
        for image in images {
            let helper = self.copier(image, name, &runtime);
            let (program, to) = (self.program.clone(), into.to_owned());
            let copied = helper
                .run(move |engine, id| async move {
                    if let Err(error) = copy_inside(&engine, &id, &program).await {
                        return Ok(Err(error));
                    }
                    download(&engine, &id, &format!("/{OUT}"), to).await.map(Ok)
                })
                .await?;
            match copied {
                Ok(files) => return Ok(files),
                Err(error) => why = error.user_message(),
            }
        }
        Err(Error::Refused(format!(
            "the volume {name} cannot be copied while its agent server runs: {why}. An image that can run towpath is \
             needed for that: pull the one that deployments.docker_base_image names; or stop the platform, make the \
             backup, and start the platform again"
        )))
    }

    /// The operator's base images that the engine has.
    async fn base_images(&self) -> Result<Vec<String>> {
        let pattern = self.base_image.replace(dockerfile::VERSION, "*");
        let filters = HashMap::from([("reference", vec![pattern])]);
        let options = ListImagesOptionsBuilder::new().filters(&filters).build();
        let found = self.engine.list_images(Some(options)).await;
        let found = found.map_err(engine_failed("listing images"))?;
        Ok(found.into_iter().map(|image| image.id).collect())
    }

    /// A container that is never started, with the volume.
    async fn helper(&self, name: &str) -> Result<HelperContainer> {
        let image = self.empty.get_or_try_init(|| self.make_empty()).await?;
        let (engine, labels) = (self.engine.clone(), self.own_labels());
        Ok(HelperContainer::new(engine, image.clone(), name.to_owned(), labels))
    }

    /// A container that copies. It runs as root, with only the capabilities needed for a volume of any user.
    fn copier(&self, image: String, name: &str, runtime: &str) -> HelperContainer {
        let body = ContainerCreateBody {
            image: Some(image),
            user: Some("0:0".to_owned()),
            entrypoint: Some(vec![format!("/{PROGRAM}")]),
            cmd: Some(vec!["copy-data".to_owned(), PLACE.to_owned(), format!("/{OUT}")]),
            working_dir: Some("/".to_owned()),
            labels: Some(self.own_labels()),
            host_config: Some(HostConfig {
                mounts: Some(vec![mount(name.to_owned(), PLACE)]),
                network_mode: Some("none".to_owned()),
                cap_drop: Some(vec!["ALL".to_owned()]),
                // Files that SQLite makes beside a database go to its owner.
                cap_add: Some(["CHOWN", "DAC_OVERRIDE"].map(str::to_owned).to_vec()),
                security_opt: Some(vec!["no-new-privileges".to_owned()]),
                pids_limit: Some(256),
                runtime: (!runtime.is_empty()).then(|| runtime.to_owned()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        HelperContainer::of(self.engine.clone(), body)
    }

    async fn make_empty(&self) -> Result<String> {
        const DOCKERFILE: &[u8] = b"FROM scratch\nCOPY Dockerfile /\n";
        let mut tar = tar::Builder::new(Vec::new());
        let packed = append(&mut tar, "Dockerfile", DOCKERFILE).and_then(|()| tar.into_inner());
        let packed = packed.map_err(Error::io("packing an empty image"))?;
        let name = format!("towpath-backup:{}", self.life);
        let labels = HashMap::from([(ROOT_LABEL, self.mark())]);
        let options = BuildImageOptionsBuilder::new()
            .dockerfile("Dockerfile")
            .t(&name)
            .rm(true)
            .forcerm(true)
            .labels(&labels)
            .build();
        let body = bollard::body_full(packed.into());
        let mut said = Box::pin(self.engine.build_image(options, None, Some(body)));
        while let Some(piece) = said.next().await {
            let piece = piece.map_err(engine_failed("creating an empty image"))?;
            if let Some(error) = piece.error_detail.and_then(|detail| detail.message) {
                return Err(Error::Refused(format!("creating an empty image: {error}")));
            }
        }
        Ok(name)
    }

    fn own_labels(&self) -> HashMap<String, String> {
        HashMap::from([
            (ROOT_LABEL.to_owned(), self.mark()),
            (LIFE_LABEL.to_owned(), self.life.clone()),
        ])
    }

    /// As the platform's own, which is there once the folder is.
    fn mark(&self) -> String {
        let whole = self.root.canonicalize().or_else(|_| std::path::absolute(&self.root));
        whole.as_ref().unwrap_or(&self.root).display().to_string()
    }
}

/// Copies this program into a container and runs it to copy the volume.
async fn copy_inside(engine: &bollard::Docker, id: &str, program: &Path) -> Result<()> {
    let failed = || Error::io("reading this program");
    let file = tokio::fs::File::open(program).await.map_err(failed())?;
    let bytes = file.metadata().await.map_err(failed())?.len();
    let around = pack::around(Path::new(PROGRAM), &[FOLDER, OUT], bytes);
    let (head, tail) = around.map_err(Error::io("packing this program"))?;
    let whole = Cursor::new(head).chain(file).chain(Cursor::new(tail));
    let body = bollard::body_try_stream(ReaderStream::with_capacity(whole, 1 << 16));
    let options = UploadToContainerOptionsBuilder::new().path("/").build();
    let sent = engine.upload_to_container(id, Some(options), body).await;
    sent.map_err(engine_failed("sending this program"))?;
    let started = engine.start_container(id, None::<StartContainerOptions>).await;
    started.map_err(engine_failed("starting a container"))?;
    let ending = tokio::time::timeout(COPY_LIMIT, wait_ended(engine, id)).await;
    let how = ending.map_err(|_| Error::TimedOut("copying a volume took too long".to_owned()))?;
    let found = engine.inspect_container(id, None::<InspectContainerOptions>).await;
    let state = found.map_err(engine_failed("inspecting a container"))?.state;
    if state.and_then(|state| state.exit_code) == Some(0) {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "what copies {how}: {}",
        last_lines(engine, id).await
    )))
}

async fn last_lines(engine: &bollard::Docker, id: &str) -> String {
    let options = LogsOptionsBuilder::new().stdout(true).stderr(true).tail("5").build();
    let mut output = Box::pin(engine.logs(id, Some(options)));
    let mut text = String::new();
    while text.len() < TOLD
        && let Some(Ok(piece)) = output.next().await
    {
        text.push_str(&String::from_utf8_lossy(piece.as_ref()));
    }
    text.trim().to_owned()
}

/// Downloads a folder of a container. Returns the owner of the database in it.
async fn download(engine: &bollard::Docker, id: &str, path: &str, into: PathBuf) -> Result<Option<Ids>> {
    let failed = || Error::io("keeping the files of a volume");
    let draft = tempfile::tempfile_in(&into).map_err(failed())?;
    let mut draft = tokio::fs::File::from_std(draft);
    let options = DownloadFromContainerOptionsBuilder::new().path(path).build();
    let mut output = Box::pin(engine.download_from_container(id, Some(options)));
    while let Some(piece) = output.next().await {
        let piece = piece.map_err(engine_failed("reading the volume of a database"))?;
        draft.write_all(&piece).await.map_err(failed())?;
    }
    draft.flush().await.map_err(failed())?;
    let draft = draft.into_std().await;
    blocking(move || pack::unpack(draft, &into)).await
}

/// Empties a folder.
async fn clear(folder: &Path) -> Result<()> {
    let folder = folder.to_owned();
    blocking(move || {
        tree::remove(&folder)
            .and_then(|()| std::fs::create_dir(&folder))
            .map_err(Error::io("emptying a folder"))
    })
    .await
}
