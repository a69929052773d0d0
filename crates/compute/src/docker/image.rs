//! Images: built from a tree, or pulled; kept under a name of the platform as long as their artifact exists.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use bollard::auth::DockerCredentials;
use bollard::models::ImageSummary;
use bollard::query_parameters::{
    BuildImageOptionsBuilder, CreateImageOptionsBuilder, ListImagesOptionsBuilder, RemoveImageOptions,
    TagImageOptionsBuilder,
};
use futures::StreamExt as _;
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;
use towpath_domain::registry::{self, RegistryLogin};

use super::failure::{engine_failed, is_gone, is_refusal, is_transient};
use super::labels::ROOT_LABEL;
use super::{Containers, dockerfile, reference};
use crate::artifact::{Artifact, BuiltArtifact, Plan};
use crate::build::{Project, without_effect};
use crate::error::{Error, Result};
use crate::git::blocking;
use crate::log::{Log, Splitter};

/// Microseconds of one turn of the CPU limit.
const CPU_PERIOD: i32 = 100_000;

/// An image of a registry, at the engine.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct PulledImage {
    /// What it was pulled as.
    pub name: String,
    /// The engine's name for its contents.
    pub id: String,
    /// Whether it was not there before.
    pub is_ours: bool,
    /// The reference that pulls the same image again: repository and registry digest.
    #[serde(default)]
    pub reference: Option<String>,
}

impl Containers {
    /// Whether what was built is still at the engine.
    pub(crate) async fn has(&self, built: &BuiltArtifact) -> Result<bool> {
        let Some(image) = &built.image else { return Ok(false) };
        Ok(self.find(image).await?.is_some())
    }

    /// The engine's name for what an image holds now.
    pub(super) async fn find(&self, image: &str) -> Result<Option<String>> {
        match self.engine.inspect_image(image).await {
            Ok(found) => Ok(found.id),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(engine_failed("finding an image")(error)),
        }
    }

    /// Builds the image of a tree that was fetched.
    pub(crate) async fn build(
        &self,
        artifact: &Artifact,
        key: &str,
        plan: &Plan,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<BuiltArtifact> {
        let Project {
            path,
            top,
            config,
            install,
            ..
        } = Project::read(artifact, plan)?;
        without_effect(&config, &[], log);
        let program = self.program().await?;
        let arguments = self.machine();
        let text = dockerfile::write(
            &config,
            &dockerfile::Parts {
                config: &path,
                install: install.as_deref(),
                build: plan.build.as_deref(),
                base: &self.settings.base_image,
                program: &program,
                arguments: arguments.iter().map(|(name, _)| name.as_str()).collect(),
            },
        )?;
        for line in text.lines() {
            log.info(line);
        }
        let work = self.root.temporary()?;
        let context = work.path().join("context");
        let to = context.clone();
        blocking(move || {
            let packed = File::create(&to).and_then(|file| {
                let mut tar = tar::Builder::new(io::BufWriter::new(file));
                tar.follow_symlinks(false);
                append(&mut tar, "Dockerfile", text.as_bytes())?;
                tar.append_dir_all("source", &top)?;
                tar.into_inner()?.flush()
            });
            packed.map_err(Error::io("packing the source for the engine"))
        })
        .await?;
        let name = format!("{}:{key}", self.repository());
        let id = self.build_context(&context, &name, &arguments, log, cancel).await?;
        let built = BuiltArtifact {
            plan: plan.clone(),
            variables: Vec::new(),
            image: Some(id),
        };
        artifact.record(&built)?;
        Ok(built)
    }

    /// Builds the packed context with the engine; its output goes to the log. Returns the image.
    pub(super) async fn build_context(
        &self,
        context: &Path,
        name: &str,
        arguments: &[(String, String)],
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<String> {
        let labels = HashMap::from([(ROOT_LABEL, self.root.mark())]);
        let arguments: HashMap<String, String> = arguments.iter().cloned().collect();
        let mut options = BuildImageOptionsBuilder::new()
            .dockerfile("Dockerfile")
            .t(name)
            .rm(true)
            .forcerm(true)
            .memory(self.settings.build_memory_bytes)
            .cpuperiod(CPU_PERIOD)
            .cpuquota(CPU_PERIOD.saturating_mul(self.settings.build_cpus))
            .buildargs(&arguments)
            .labels(&labels);
        if self.settings.network == super::Network::Host {
            options = options.networkmode("host");
        }
        let file = tokio::fs::File::open(context).await;
        let file = file.map_err(Error::io("reading what was packed for the engine"))?;
        let body = bollard::body_try_stream(ReaderStream::with_capacity(file, 1 << 16));
        let building = async {
            // Dropping it closes the connection, and the engine aborts the build.
            let mut said = Box::pin(self.engine.build_image(options.build(), None, Some(body)));
            let mut lines = Splitter::new(log);
            while let Some(piece) = said.next().await {
                let piece = piece.map_err(engine_failed("building the image"))?;
                if let Some(text) = piece.stream {
                    lines.take(text.as_bytes(), |_| {});
                }
                if let Some(error) = piece.error_detail.and_then(|detail| detail.message) {
                    let text = format!("building the image: {error}");
                    return Err(if is_transient(&error) {
                        Error::Transient(text)
                    } else {
                        Error::Refused(text)
                    });
                }
            }
            lines.finish(|_| {});
            Ok(())
        };
        let limit = self.settings.build;
        tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Error::Cancelled),
            () = tokio::time::sleep(limit) => {
                return Err(Error::TimedOut(format!("building the image took longer than {} s", limit.as_secs())));
            }
            built = building => built?,
        }
        let id = self.find(name).await?;
        id.ok_or_else(|| Error::Transient("the image that was built no longer exists".to_owned()))
    }

    /// Pulls an image. If its registry does not answer, the local image is used; if it refuses, the pull fails.
    pub(crate) async fn pull(
        &self,
        uri: &str,
        logins: &[RegistryLogin],
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<PulledImage> {
        reference::check_local(uri).map_err(|why| Error::Refused(format!("image_uri {why}")))?;
        reference::check_registry(uri, &self.settings.registries, &self.settings.guard).await?;
        let whole = with_tag(uri);
        let login = self.login(logins, &whole)?;
        let before = self.find(&whole).await?;
        let pulling = async {
            let options = CreateImageOptionsBuilder::new().from_image(&whole).build();
            let mut said = Box::pin(self.engine.create_image(Some(options), None, login));
            let mut last = None;
            while let Some(piece) = said.next().await {
                let piece = piece.map_err(engine_failed("pulling the image"))?;
                if let Some(error) = piece.error_detail.and_then(|detail| detail.message) {
                    let text = format!("pulling the image: {error}");
                    return Err(if is_transient(&error) {
                        Error::Transient(text)
                    } else {
                        Error::Refused(text)
                    });
                }
                // Progress of each layer comes many times a second.
                let line = piece.status.map(|status| match piece.id {
                    Some(id) => format!("{id}: {status}"),
                    None => status,
                });
                if line.is_some() && line != last {
                    log.info(line.as_deref().unwrap_or_default());
                    last = line;
                }
            }
            Ok(())
        };
        let limit = self.settings.build;
        let pulled = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Error::Cancelled),
            () = tokio::time::sleep(limit) => {
                Err(Error::TimedOut(format!("pulling the image took longer than {} s", limit.as_secs())))
            }
            pulled = pulling => pulled,
        };
        match (pulled, before.clone()) {
            (Ok(()), _) => {
                let is_ours = before.is_none();
                let pulled = self.pulled(whole, is_ours).await?;
                pulled.ok_or_else(|| Error::Transient("the image that was pulled no longer exists".to_owned()))
            }
            (Err(error), Some(_)) if !(registry::names_registry(&whole) && is_refusal(&error.user_message())) => {
                log.warn(format!("{}; using the local image", error.user_message()));
                self.pulled(whole, false).await?.ok_or(error)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// What an image is at the engine now.
    async fn pulled(&self, name: String, is_ours: bool) -> Result<Option<PulledImage>> {
        let found = match self.engine.inspect_image(&name).await {
            Ok(found) => found,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(engine_failed("finding an image")(error)),
        };
        let reference = digest_of(&name, &found.repo_digests.unwrap_or_default());
        Ok(found.id.map(|id| PulledImage {
            name,
            id,
            is_ours,
            reference,
        }))
    }

    /// The credentials for an image: the deployment's own, else from the operator's file, which is read each time so
    /// that a password may change.
    fn login(&self, logins: &[RegistryLogin], image: &str) -> Result<Option<DockerCredentials>> {
        let of_operator;
        let found = match (registry::login_for(logins, image), &self.settings.logins) {
            (Some(login), _) => Some(login),
            (None, Some(file)) => {
                let text = std::fs::read_to_string(file).map_err(Error::io("reading deployments.docker_config"))?;
                of_operator = registry::parse_docker_config(&text)
                    .map_err(|why| Error::Refused(format!("deployments.docker_config {why}")))?;
                registry::login_for(&of_operator, image)
            }
            (None, None) => None,
        };
        Ok(found.map(|login| DockerCredentials {
            username: Some(login.username.clone()),
            password: Some(login.password.reveal().to_owned()),
            serveraddress: Some(login.registry.split('/').next().unwrap_or_default().to_owned()),
            ..DockerCredentials::default()
        }))
    }

    /// Tags a pulled image with a name of the platform, which is removed with its artifact.
    pub(crate) async fn keep(&self, key: &str, pulled: &PulledImage) -> Result<()> {
        let options = TagImageOptionsBuilder::new().repo(&self.repository()).tag(key).build();
        let kept = self.engine.tag_image(&pulled.id, Some(options)).await;
        kept.map_err(engine_failed("keeping the image"))?;
        if pulled.is_ours {
            // Only a name goes; what it named has the other one.
            let removed = self
                .engine
                .remove_image(&pulled.name, None::<RemoveImageOptions>, None)
                .await;
            if let Err(error) = removed {
                tracing::debug!(%error, "an image keeps the name it was pulled under");
            }
        }
        Ok(())
    }

    /// Removes images whose artifact is gone. An image in use is left for the sweep after its container's end.
    pub(crate) async fn sweep(&self) -> Result<usize> {
        let repository = self.repository();
        let mut removed = 0;
        for image in self.images(&repository).await? {
            for name in image.repo_tags {
                let Some(key) = name.strip_prefix(&repository).and_then(|rest| rest.strip_prefix(':')) else {
                    continue;
                };
                if Artifact::of(&self.root, key)?.built().is_some() {
                    continue;
                }
                match self.engine.remove_image(&name, None::<RemoveImageOptions>, None).await {
                    Ok(_) => removed += 1,
                    Err(error) => tracing::debug!(%error, "an image is left for the next sweep"),
                }
            }
        }
        removed += self.sweep_programs().await?;
        Ok(removed)
    }

    pub(super) async fn images(&self, repository: &str) -> Result<Vec<ImageSummary>> {
        let filter = HashMap::from([("reference", vec![repository.to_owned()])]);
        let options = ListImagesOptionsBuilder::new().filters(&filter).build();
        let found = self.engine.list_images(Some(options)).await;
        found.map_err(engine_failed("listing images"))
    }
}

pub(super) fn append(tar: &mut tar::Builder<impl io::Write>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o755);
    // The same every time, so that the engine knows it again.
    header.set_mtime(0);
    tar.append_data(&mut header, name, bytes)
}

/// The digest of the repository from which the image was pulled, among those the engine knows.
fn digest_of(name: &str, digests: &[String]) -> Option<String> {
    let repository = repository_of(name);
    let of_it = |digest: &&String| repository_of(digest) == repository;
    digests.iter().find(of_it).cloned()
}

/// Without tag and digest, and as the engine says it.
fn repository_of(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    let last = image.rfind('/').map_or(0, |slash| slash + 1);
    let end = image[last..].find(':').map_or(image.len(), |colon| last + colon);
    let bare = &image[..end];
    let bare = bare.strip_prefix("docker.io/").unwrap_or(bare);
    bare.strip_prefix("library/").unwrap_or(bare)
}

/// Without a tag the engine would pull all of them.
fn with_tag(uri: &str) -> String {
    let last = uri.rsplit('/').next().unwrap_or(uri);
    if last.contains(':') || last.contains('@') {
        uri.to_owned()
    } else {
        format!("{uri}:latest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_that_refuses_is_told_from_one_that_is_away() {
        for said in [
            "pulling the image: Head \"http://127.0.0.1:1/v2/a/manifests/1\": no basic auth credentials",
            "pulling the image: unauthorized: send a token",
            "pulling the image: pull access denied for a/b, repository does not exist or may require 'docker login'",
        ] {
            assert!(is_refusal(said), "{said}");
        }
        assert!(!is_refusal(
            "pulling the image: dial tcp 127.0.0.1:1: connect: connection refused"
        ));
        assert!(!is_refusal(
            "pulling the image: manifest for a/b:1 not found: manifest unknown"
        ));
    }

    #[test]
    fn an_image_is_pulled_again_by_its_digest() {
        let digests = ["other@sha256:11".to_owned(), "registry:5000/a/b@sha256:22".to_owned()];
        let found = |name| digest_of(name, &digests);
        assert_eq!(
            found("registry:5000/a/b:1").as_deref(),
            Some("registry:5000/a/b@sha256:22")
        );
        assert_eq!(
            found("docker.io/library/other:latest").as_deref(),
            Some("other@sha256:11")
        );
        assert_eq!(found("registry:5000/a/c:1"), None);
    }

    #[test]
    fn an_image_without_a_tag_is_its_latest() {
        for (uri, whole) in [
            ("agent", "agent:latest"),
            ("registry:5000/agent", "registry:5000/agent:latest"),
            ("registry:5000/agent:1", "registry:5000/agent:1"),
            ("agent@sha256:00", "agent@sha256:00"),
        ] {
            assert_eq!(with_tag(uri), whole);
        }
    }
}
