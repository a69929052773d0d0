//! The build: resolve, fetch, build.

use object_store::path::Path as ObjectPath;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use towpath_compute::artifact::{Artifact, Origin, Plan};
use towpath_compute::git::{Repository, Token};
use towpath_compute::{Log, backend, tarball, tree};
use towpath_domain::deployment::{LogKind, RevisionStatus, Source};
use towpath_domain::failpoint;
use towpath_domain::git::{CommitSha, RepoRef, RepoUrl, TokenHost};
use towpath_domain::registry::RegistryLogin;
use towpath_durable::{Ctx, Failure, IntoFailure};
use towpath_store::{artifacts, image_pull_secrets, integrations, revisions};

use super::BuildAttempt;
use crate::deployment_host::ArtifactGuard;
use crate::images;

/// An artifact that is deployed again.
struct ReusedArtifact<'a> {
    key: String,
    guard: ArtifactGuard<'a>,
    /// Held until its revision is recorded: the clean-up of deleted deployments checks the records again under this
    /// lock.
    _lock: OwnedMutexGuard<()>,
}

impl BuildAttempt<'_> {
    /// Returns the key of the revision's artifact, after building it if necessary, and a guard that keeps it in use.
    pub(super) async fn artifact(&self, ctx: &mut Ctx) -> Result<(String, ArtifactGuard<'_>), Failure> {
        if let Some(kept) = self.reusable_artifact().await? {
            self.log.info("deploying the existing build again");
            self.record(ctx, &kept.key).await?;
            self.advance(ctx, RevisionStatus::AwaitingDeploy).await?;
            self.advance(ctx, RevisionStatus::Deploying).await?;
            return Ok((kept.key, kept.guard));
        }
        self.advance(ctx, RevisionStatus::AwaitingBuild).await?;
        self.advance(ctx, RevisionStatus::Building).await?;
        let plan = self.plan(ctx).await?;
        let key = plan.key();
        let artifact = Artifact::of(&self.hosting.root, &key).fatal()?;
        let using = self.hosting.use_artifact(&key);
        let _alone = self.hosting.lock_artifact(&key).await;
        // The files on disk are the record, written last: a journal would not know what was removed since.
        if self.has_artifact(&artifact).await? {
            self.log.info("already built");
        } else {
            // A tree in which build programs have run is not the fetched source.
            if artifact.is_fetched() {
                self.log.info("the source is already fetched");
            } else {
                let begun = Instant::now();
                self.fetch(ctx, &plan, &artifact).await?;
                self.record_step_duration("fetch", begun, self.log);
                // A later process life skips this step, so its lines must be stored now.
                self.lines.flush().await;
                failpoint::hit("deploy.fetched");
            }
            let cancel = ctx.cancelled();
            let (backend, settings) = (&self.hosting.backend, &self.hosting.build);
            let begun = Instant::now();
            backend
                .build(settings, &self.hosting.root, &plan, self.log, &cancel)
                .await
                .map_err(|error| self.failure_of(&error, self.log))?;
            self.record_step_duration("build", begun, self.log);
            self.lines.flush().await;
        }
        self.record(ctx, &key).await?;
        Ok((key, using))
    }

    /// Creates the environment of the artifact's code, as the last part of the build. An existing build may need
    /// another environment for this deployment and its variables.
    pub(super) async fn packages(&self, ctx: &Ctx, artifact: &str) -> Result<(), Failure> {
        let hosting = self.hosting;
        let (launch, lines) = hosting
            .launch(
                &self.world.store,
                &self.world.sealer,
                self.deployment,
                self.revision,
                artifact,
                LogKind::Build,
            )
            .await?;
        let (log, begun) = (lines.log(), Instant::now());
        let prepared = hosting.prepare(&launch, log, &ctx.cancelled()).await;
        let prepared = prepared.map_err(|error| self.failure_of(&error, log));
        if matches!(prepared, Ok(true)) {
            self.record_step_duration("packages", begun, log);
        }
        lines.flush().await;
        prepared.map(drop)
    }

    /// Returns the key of the artifact for a prebuilt image, and a guard that keeps it in use.
    pub(super) async fn image(&self, ctx: &mut Ctx) -> Result<(String, ArtifactGuard<'_>), Failure> {
        if let Some(kept) = self.reusable_artifact().await? {
            self.log.info("deploying the existing image again");
            let reference = self.pinned_image().await?;
            self.record_image(ctx, &kept.key, reference.as_deref()).await?;
            return Ok((kept.key, kept.guard));
        }
        self.advance(ctx, RevisionStatus::AwaitingDeploy).await?;
        self.advance(ctx, RevisionStatus::Deploying).await?;
        let uri = self.revision.config().fatal()?.image_uri;
        let uri = uri.ok_or_else(|| Failure::fatal("image_uri is missing"))?;
        let cancel = ctx.cancelled();
        let deploy = self.deploy_log();
        let log = deploy.log();
        log.info(format!("pulling {uri}"));
        let backend = &self.hosting.backend;
        let begun = Instant::now();
        let logins = self.logins(&uri, log).await?;
        let wanted = self.image_to_pull(&uri).await?;
        let pulled = backend.pull(&wanted, &logins, log, &cancel).await;
        let reference = pulled.as_ref().ok().and_then(|pulled| pulled.reference.clone());
        let made = match pulled {
            Ok(pulled) => {
                let key = backend::image_key(&uri, &pulled);
                // Until its revision names it, only this guard protects it.
                let using = self.hosting.use_artifact(&key);
                let _alone = self.hosting.lock_artifact(&key).await;
                match backend.record_image(&self.hosting.root, &uri, &pulled).await {
                    Ok(key) => {
                        self.record_image(ctx, &key, reference.as_deref()).await?;
                        Ok((key, using))
                    }
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        match &made {
            Ok(_) => self.record_step_duration("pull", begun, log),
            Err(error) => log.error(error.user_message()),
        }
        deploy.flush().await;
        made.map_err(|error| self.failure_of(&error, log))
    }

    /// The image to pull: that of the redeployed revision, else what `image_uri` is now.
    async fn image_to_pull(&self, uri: &str) -> Result<String, Failure> {
        if let Some(pinned) = self.pinned_image().await? {
            return Ok(pinned);
        }
        let tenant = self.deployment.tenant_id;
        if let Some(earlier) = self.revision.redeploy_of {
            let store = &self.world.store;
            let built = store.read(async |tx| artifacts::for_revision(tx, tenant, earlier).await);
            if built.await.retry()?.is_some() {
                return Err(Failure::fatal(
                    "the image of this revision no longer exists and its digest is unknown; deploy \
                     its image_uri as a new revision",
                ));
            }
        }
        Ok(uri.to_owned())
    }

    /// The digest reference of the image of this or the redeployed revision, because its tag may have moved.
    async fn pinned_image(&self) -> Result<Option<String>, Failure> {
        let tenant = self.deployment.tenant_id;
        let revisions = [Some(self.revision.id), self.revision.redeploy_of];
        for revision in revisions.into_iter().flatten() {
            let store = &self.world.store;
            let found = store.read(async |tx| artifacts::image_of(tx, tenant, revision).await);
            if let Some(image) = found.await.retry()? {
                return Ok(Some(image));
            }
        }
        Ok(None)
    }

    /// Registry logins for an image: a token for the platform's own registry, else those that the resource
    /// specification names.
    async fn logins(&self, uri: &str, log: &Log) -> Result<Vec<RegistryLogin>, Failure> {
        let (tenant, world) = (self.deployment.tenant_id, self.world);
        let clock = world.store.clock();
        if let Some(own) = images::own_login(uri, tenant, self.deployment.id, &world.sealer, clock) {
            return Ok(vec![own]);
        }
        let sizes = self.revision.source_config().fatal()?.resource_spec.unwrap_or_default();
        let names: Vec<String> = sizes
            .image_pull_secrets
            .unwrap_or_default()
            .into_iter()
            .map(|one| one.name)
            .collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let stored = world.store.read(async |tx| image_pull_secrets::list(tx, tenant).await);
        let stored = stored.await.retry()?;
        let mut logins = Vec::new();
        for name in names {
            match stored.iter().find(|secret| secret.name == name) {
                Some(secret) => logins.extend(secret.logins(&world.sealer).retry()?),
                None => log.warn(format!(
                    "image_pull_secrets: this workspace has no secret {name}; create it with PUT \
                     /v2/image-pull-secrets/{name}"
                )),
            }
        }
        Ok(logins)
    }

    async fn has_artifact(&self, artifact: &Artifact) -> Result<bool, Failure> {
        let has = self.hosting.backend.has(artifact).await;
        has.map_err(|error| self.failure_of(&error, self.log))
    }

    /// The artifact to deploy again, if requested and still present.
    async fn reusable_artifact(&self) -> Result<Option<ReusedArtifact<'_>>, Failure> {
        let tenant = self.deployment.tenant_id;
        // An attempt that was interrupted after the build has recorded it too.
        let wanted = [Some(self.revision.id), self.revision.redeploy_of];
        for revision in wanted.into_iter().flatten() {
            let found = self
                .world
                .store
                .read(async |tx| artifacts::for_revision(tx, tenant, revision).await);
            let Some(key) = found.await.retry()? else { continue };
            let artifact = Artifact::of(&self.hosting.root, &key).fatal()?;
            let using = self.hosting.use_artifact(&key);
            let alone = self.hosting.lock_artifact(&key).await;
            if self.has_artifact(&artifact).await? {
                // It may be older than the kept ones, and nothing names it until this revision does.
                artifact.touch();
                return Ok(Some(ReusedArtifact {
                    key,
                    guard: using,
                    _lock: alone,
                }));
            }
        }
        Ok(None)
    }

    async fn record(&self, ctx: &mut Ctx, key: &str) -> Result<(), Failure> {
        let (tenant, deployment, revision) = (self.deployment.tenant_id, self.deployment.id, self.revision.id);
        ctx.commit(async |tx| artifacts::record(tx, tenant, deployment, revision, key).await)
            .await
    }

    async fn record_image(&self, ctx: &mut Ctx, key: &str, reference: Option<&str>) -> Result<(), Failure> {
        let (tenant, deployment, revision) = (self.deployment.tenant_id, self.deployment.id, self.revision.id);
        ctx.commit(async |tx| {
            artifacts::record(tx, tenant, deployment, revision, key).await?;
            match reference {
                Some(reference) => artifacts::pin_image(tx, tenant, revision, reference).await,
                None => Ok(()),
            }
        })
        .await
    }

    /// Determines what to build. A branch or tag is resolved once.
    async fn plan(&self, ctx: &mut Ctx) -> Result<Plan, Failure> {
        let source = self.revision.source_config().fatal()?;
        let config = self.revision.config().fatal()?;
        let missing = |field: &str| Failure::fatal(format!("{field} is missing"));
        let origin = match self.revision.source {
            Source::InternalSource => Origin::Archive {
                path: config
                    .source_tarball_path
                    .ok_or_else(|| missing("source_tarball_path"))?,
            },
            _ => {
                let url = source.repo_url.ok_or_else(|| missing("repo_url"))?;
                let name = config.repo_ref.ok_or_else(|| missing("repo_ref"))?;
                // A redeployment uses the same commit, wherever its branch is now.
                let again = config.repo_commit_sha.filter(|_| self.revision.redeploy_of.is_some());
                let sha = match again {
                    Some(sha) => CommitSha::parse(&sha).map_err(Failure::fatal)?,
                    None => self.resolve(ctx, &url, &name).await?,
                };
                Origin::Git { url, name, sha }
            }
        };
        Ok(Plan {
            origin,
            config: config.graph_config_path.ok_or_else(|| missing("graph_config_path"))?,
            install: source.install_command,
            build: source.build_command,
        })
    }

    async fn resolve(&self, ctx: &mut Ctx, url: &str, name: &str) -> Result<CommitSha, Failure> {
        let cancel = ctx.cancelled();
        let (tenant, revision) = (self.deployment.tenant_id, self.revision.id);
        let begun = Instant::now();
        let sha = ctx
            .step("resolve", async || {
                let (url, name) = parsed(url, name)?;
                let token = self.token(&url).await?;
                let repository = Repository::new(&self.hosting.git, &self.hosting.root, &url, token.as_ref());
                let repository = repository.map_err(|error| self.failure_of(&error, self.log))?;
                let sha = repository.resolve(&name, &cancel).await;
                sha.map_err(|error| self.failure_of(&error, self.log))
            })
            .await?;
        ctx.commit(async |tx| revisions::resolved(tx, tenant, revision, sha.as_str()).await)
            .await?;
        self.log.info(format!("resolved {name} to commit {sha}"));
        self.record_step_duration("resolve", begun, self.log);
        self.lines.flush().await;
        failpoint::hit("deploy.resolved");
        Ok(sha)
    }

    async fn fetch(&self, ctx: &Ctx, plan: &Plan, artifact: &Artifact) -> Result<(), Failure> {
        let cancel = ctx.cancelled();
        let failed = |error| self.failure_of(&error, self.log);
        tree::has_room(self.hosting.root.path(), self.hosting.git.tree.free).map_err(failed)?;
        artifact.begin().map_err(failed)?;
        match &plan.origin {
            Origin::Git { url, name, sha } => {
                self.log.info(format!("fetching {url}"));
                let (url, name) = parsed(url, name)?;
                let token = self.token(&url).await?;
                let repository = Repository::new(&self.hosting.git, &self.hosting.root, &url, token.as_ref());
                let repository = repository.map_err(failed)?;
                let to = artifact.source();
                let fetched = repository.fetch(&name, sha, &to, self.log, &cancel).await;
                fetched.map_err(failed)?;
            }
            Origin::Archive { path } => {
                self.log.info("unpacking the source archive");
                self.unpack(path, artifact).await?;
            }
            Origin::Image { .. } => return Err(Failure::fatal("an image has no source to fetch")),
        }
        artifact.fetched().map_err(failed)
    }

    async fn unpack(&self, path: &str, artifact: &Artifact) -> Result<(), Failure> {
        let work = self.hosting.root.temporary().retry()?;
        let file = work.path().join("archive");
        let path = ObjectPath::parse(path).fatal()?;
        let bytes = match self.world.objects.get(&path).await {
            // Unused for a day, or removed; a retry would not find it either.
            Err(error) if error.is_not_found() => {
                return Err(Failure::fatal(
                    "source_tarball_path: the archive no longer exists; upload it again and create a new revision",
                ));
            }
            bytes => bytes.retry()?,
        };
        let write = async {
            let mut to = tokio::fs::File::create(&file).await?;
            to.write_all(&bytes).await?;
            to.flush().await
        };
        write.await.retry()?;
        drop(bytes);
        let (limits, log, to) = (self.hosting.git.tree, self.log.clone(), artifact.source());
        let unpacked = tokio::task::spawn_blocking(move || {
            let unpacked = tarball::unpack(&file, work.path(), &to, limits, &log);
            drop(work);
            unpacked
        });
        match unpacked.await {
            Ok(unpacked) => unpacked.map_err(|error| self.failure_of(&error, self.log)),
            Err(_) => Err(Failure::retry("unpacking the source archive was interrupted")),
        }
    }

    /// The integration's token, if it has one for the host of the repository.
    async fn token(&self, url: &RepoUrl) -> Result<Option<Token>, Failure> {
        let tenant = self.deployment.tenant_id;
        let Some(id) = self.revision.source_config().fatal()?.integration_id else {
            return Ok(None);
        };
        let found = self
            .world
            .store
            .read(async |tx| integrations::get(tx, tenant, id).await);
        match found.await {
            Err(towpath_store::Error::NotFound) => Err(Failure::fatal("integration_id: the integration was deleted")),
            integration => {
                let integration = integration.retry()?;
                let Some(secret) = integration.token(&self.world.sealer).retry()? else {
                    return Ok(None);
                };
                let host = TokenHost::of_api(&integration.api_url)
                    .map_err(|why| Failure::fatal(format!("the integration's api_url {why}")))?;
                if !host.matches(url) {
                    self.log.warn(format!(
                        "the integration's token is for {host} and is not sent to {url}: create an integration whose \
                         api_url has that host",
                        url = url.as_str()
                    ));
                    return Ok(None);
                }
                Ok(Some(Token { secret, host }))
            }
        }
    }
}

/// The values were validated when the request was accepted, and are validated again here.
fn parsed(url: &str, name: &str) -> Result<(RepoUrl, RepoRef), Failure> {
    let url = RepoUrl::parse(url).map_err(|why| Failure::fatal(format!("repo_url {why}")))?;
    let name = RepoRef::parse(name).map_err(|why| Failure::fatal(format!("repo_ref {why}")))?;
    Ok((url, name))
}
