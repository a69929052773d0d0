//! Operations on deployments: rows and jobs in the caller's transaction.
//!
//! One revision of a deployment is in progress at a time, because their jobs share a lane with one slot. A newer one
//! waits as `QUEUED`, and other waiting ones become `SKIPPED`. Functions that record a revision first lock the lane,
//! then the deployment's row.

use towpath_domain::deployment::{
    BUILT_IN_LISTENER, CurrentDeployment, DeploymentChange, DeploymentRequest, DeploymentStatus, EnvSecret, PushEvent,
    RevisionPolicy, RevisionRequest, RevisionStatus, Source, SourceConfig, merge_secrets,
};
use towpath_domain::git::{RepoUrl, TokenHost};
use towpath_domain::{DeploymentId, IntegrationId, Patch, Rejection, RevisionId, Scope, TenantId};
use towpath_store::deployments::{self, Deployment, NewDeployment};
use towpath_store::revisions::{self, NewRevision, Revision};
use towpath_store::sealing::Sealer;
use towpath_store::{self as store, Tx, integrations, listeners, projects, source_uploads};

use crate::{build_revision, delete_deployment};

/// Refuses a workspace if another one has deployments, because their processes may reach each other.
pub async fn check_workspace(tx: &mut Tx<'_>, tenant: TenantId) -> store::Result<()> {
    if deployments::others_have(tx, tenant).await? {
        return Err(Rejection::rule(
            "deployments.trust",
            "deployments run as processes of one machine, and another workspace has deployments: the operator can \
             allow this with the setting deployments.trust = all, or run containers with deployments.backend = \
             docker",
        )
        .into());
    }
    Ok(())
}

/// Records a deployment with its tracing project and its first revision. `request` was validated, and `first` is its
/// response.
pub async fn create(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    sealer: &Sealer,
    request: &DeploymentRequest,
    first: &RevisionRequest,
) -> store::Result<(Deployment, Revision)> {
    check_references(tx, tenant, &request.config).await?;
    let id = DeploymentId::new();
    check_archive(tx, tenant, id, first).await?;
    let revision = RevisionId::new();
    let job = if first.is_empty() {
        None
    } else {
        Some(build_revision::start(tx, tenant, id, revision).await?)
    };
    let project = projects::ensure(tx, tenant, &request.name).await?;
    let new = NewDeployment {
        id,
        name: &request.name,
        source: request.source,
        config: &request.config,
        project,
    };
    deployments::insert(tx, tenant, &new)
        .await
        .map_err(|error| match error {
            store::Error::Conflict { .. } => Rejection::rule(
                "name",
                format!("name: this workspace already has a deployment named {}", request.name),
            )
            .into(),
            other => other,
        })?;
    let secrets = merge_secrets(request.secrets.clone(), &[])?;
    let wanted = RevisionDraft {
        id: revision,
        request: first,
        source_config: &request.config,
        secrets: &secrets,
        redeploy_of: None,
        job,
    };
    let revision = record(tx, tenant, sealer, id, &wanted).await?;
    Ok((deployments::get(tx, tenant, id).await?, revision))
}

/// Changes a deployment and creates a revision as `policy` says.
pub async fn change(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    sealer: &Sealer,
    id: DeploymentId,
    change: &DeploymentChange,
    policy: RevisionPolicy,
) -> store::Result<(Deployment, Revision)> {
    // Read before anything is locked: the lane must be locked first, and only the current state shows whether there
    // will be a job.
    let before = deployments::get(tx, tenant, id).await?;
    let latest = latest(tx, &before).await?;
    let (_, expected) = admit(change, &before, &latest, policy)?;
    let revision = RevisionId::new();
    let job = match &expected {
        Some(request) if !request.is_empty() => Some(build_revision::start(tx, tenant, id, revision).await?),
        _ => None,
    };
    let before = deployments::lock(tx, tenant, id).await?;
    let latest = self::latest(tx, &before).await?;
    let (config, request) = admit(change, &before, &latest, policy)?;
    if request.as_ref().map(RevisionRequest::is_empty) != expected.as_ref().map(RevisionRequest::is_empty) {
        return Err(store::Error::Stale);
    }
    if change.config.key_scopes != Patch::Absent {
        check_key_scopes(tx, tenant, &config).await?;
    }
    deployments::configure(tx, tenant, id, &config).await?;
    let Some(request) = request else {
        return Ok((deployments::get(tx, tenant, id).await?, latest));
    };
    check_archive(tx, tenant, id, &request).await?;
    let stored = open_secrets(&latest, sealer)?;
    let secrets = match &change.secrets {
        Some(sent) => merge_secrets(sent.clone(), &stored)?,
        None => stored,
    };
    let wanted = RevisionDraft {
        id: revision,
        request: &request,
        source_config: &config,
        secrets: &secrets,
        redeploy_of: None,
        job,
    };
    let revision = record(tx, tenant, sealer, id, &wanted).await?;
    Ok((deployments::get(tx, tenant, id).await?, revision))
}

/// Deploys the build of a revision again, with its secrets, independent of its branch.
pub async fn redeploy(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    sealer: &Sealer,
    id: DeploymentId,
    again: RevisionId,
) -> store::Result<(Deployment, Revision)> {
    deployments::get(tx, tenant, id).await?;
    let old = revisions::of(tx, tenant, id, again).await.map_err(no_revision)?;
    if !old.status.has_artifact() {
        let text = format!(
            "the revision is {} and has no build to deploy again",
            old.status.as_str()
        );
        return Err(Rejection::rule("revision_id", text).into());
    }
    let revision = RevisionId::new();
    let job = build_revision::start(tx, tenant, id, revision).await?;
    require_not_deleting(&deployments::lock(tx, tenant, id).await?)?;
    let wanted = RevisionDraft {
        id: revision,
        request: &RevisionRequest {
            source: old.source,
            config: old.config()?,
        },
        source_config: &old.source_config()?,
        secrets: &open_secrets(&old, sealer)?,
        redeploy_of: Some(old.redeploy_of.unwrap_or(old.id)),
        job: Some(job),
    };
    let revision = record(tx, tenant, sealer, id, &wanted).await?;
    Ok((deployments::get(tx, tenant, id).await?, revision))
}

/// Interrupts a revision. An interrupted one stays as it is.
pub async fn interrupt(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: DeploymentId,
    revision: RevisionId,
) -> store::Result<Revision> {
    let found = revisions::of(tx, tenant, id, revision).await.map_err(no_revision)?;
    if let Some(job) = found.job_id
        && !found.status.is_final()
    {
        // First, because it takes the locks. A running job is signalled and ends by itself; its row shows the new
        // status at once.
        build_revision::interrupt(tx, job).await?;
        revisions::advance(tx, tenant, revision, RevisionStatus::Interrupted).await?;
    }
    let found = revisions::get(tx, tenant, revision).await?;
    match found.status {
        RevisionStatus::Interrupted => Ok(found),
        other => {
            let text = format!("the revision is {} and cannot be interrupted", other.as_str());
            Err(Rejection::rule("revision_id", text).into())
        }
    }
}

/// Deletes a deployment. Repeating it has no effect.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: DeploymentId, with_project: bool) -> store::Result<()> {
    if deployments::get(tx, tenant, id).await?.status == DeploymentStatus::AwaitingDelete {
        return Ok(());
    }
    delete_deployment::start(tx, tenant, id).await?;
    for open in revisions::open(tx, tenant, id).await? {
        if let Some(job) = open.job_id {
            build_revision::interrupt(tx, job).await?;
        }
        revisions::advance(tx, tenant, open.id, RevisionStatus::Interrupted).await?;
    }
    deployments::deleting(tx, tenant, id, with_project).await.map(drop)
}

/// Handles a push: creates a revision of each deployment that follows the branch, unless one is queued, which will
/// build the pushed commit.
pub async fn deploy_push(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    sealer: &Sealer,
    integration: IntegrationId,
    push: &PushEvent,
) -> store::Result<Vec<Revision>> {
    let mut made = Vec::new();
    for deployment in deployments::of_repo(tx, tenant, &push.repo_keys).await? {
        let config = deployment.config()?;
        let follows =
            config.build_on_push == Some(true) && config.integration_id.is_none_or(|expected| expected == integration);
        if !follows {
            continue;
        }
        let latest = latest(tx, &deployment).await?;
        let made_from = latest.config()?;
        if made_from.repo_ref.as_deref() != Some(push.branch.as_str()) {
            continue;
        }
        let is_known = latest.status.has_not_begun()
            || (made_from.repo_commit_sha.as_deref() == Some(push.commit.as_str()) && !has_failed(latest.status));
        if is_known {
            continue;
        }
        let nothing = DeploymentChange::default();
        let changed = change(tx, tenant, sealer, deployment.id, &nothing, RevisionPolicy::Always).await?;
        made.push(changed.1);
    }
    Ok(made)
}

const fn has_failed(status: RevisionStatus) -> bool {
    status.is_final() && !matches!(status, RevisionStatus::Deployed)
}

/// A revision to be recorded.
struct RevisionDraft<'a> {
    id: RevisionId,
    request: &'a RevisionRequest,
    source_config: &'a SourceConfig,
    secrets: &'a [EnvSecret],
    redeploy_of: Option<RevisionId>,
    job: Option<towpath_domain::JobId>,
}

/// Records a revision as the newest. The caller has locked the lane and the deployment.
async fn record(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    sealer: &Sealer,
    deployment: DeploymentId,
    wanted: &RevisionDraft<'_>,
) -> store::Result<Revision> {
    let mut in_progress = false;
    for older in revisions::open(tx, tenant, deployment).await? {
        if !(older.status.is_waiting() && wanted.job.is_some()) {
            in_progress = true;
            continue;
        }
        let why = "a newer revision replaced it before it started";
        // Its row first, so that the end of its job finds it ended.
        revisions::finish(tx, tenant, older.id, RevisionStatus::Skipped, Some(why)).await?;
        if let Some(job) = older.job_id {
            build_revision::interrupt(tx, job).await?;
        }
    }
    let status = match wanted.job {
        None => RevisionStatus::Skipped,
        Some(_) if in_progress => RevisionStatus::Queued,
        Some(_) => RevisionStatus::Creating,
    };
    let new = NewRevision {
        id: wanted.id,
        deployment,
        source: wanted.request.source,
        status,
        config: &wanted.request.config,
        source_config: wanted.source_config,
        secrets: revisions::seal(sealer, tenant, wanted.id, wanted.secrets),
        secret_names: wanted.secrets.iter().map(|secret| secret.name.as_str()).collect(),
        redeploy_of: wanted.redeploy_of,
        job: wanted.job,
    };
    let revision = revisions::insert(tx, tenant, new).await?;
    deployments::latest(tx, tenant, deployment, revision.id).await?;
    Ok(revision)
}

fn admit(
    change: &DeploymentChange,
    deployment: &Deployment,
    latest: &Revision,
    policy: RevisionPolicy,
) -> store::Result<(SourceConfig, Option<RevisionRequest>)> {
    require_not_deleting(deployment)?;
    let standing = CurrentDeployment {
        name: &deployment.name,
        source: deployment.source,
        config: &deployment.config()?,
        latest_source: latest.source,
        latest: &latest.config()?,
    };
    Ok(change.admit(standing, policy)?)
}

fn require_not_deleting(deployment: &Deployment) -> store::Result<()> {
    if deployment.status == DeploymentStatus::AwaitingDelete {
        let text = "the deployment is being deleted and cannot be changed";
        return Err(Rejection::rule("deployment_id", text).into());
    }
    Ok(())
}

async fn latest(tx: &mut Tx<'_>, deployment: &Deployment) -> store::Result<Revision> {
    let missing = || store::Error::corrupt("deployment", "latest_revision_id", deployment.id);
    let id = deployment.latest_revision_id.ok_or_else(missing)?;
    revisions::get(tx, deployment.tenant_id, id).await
}

fn open_secrets(revision: &Revision, sealer: &Sealer) -> store::Result<Vec<EnvSecret>> {
    revision.secrets(sealer).map_err(|error| {
        tracing::error!(revision.id = %revision.id, %error, "the secrets of a revision cannot be opened");
        store::Error::corrupt("revision", "secrets", revision.id)
    })
}

fn no_revision(error: store::Error) -> store::Error {
    match error {
        store::Error::NotFound => Rejection::not_found("revision").into(),
        other => other,
    }
}

/// Checks that everything a configuration names exists.
async fn check_references(tx: &mut Tx<'_>, tenant: TenantId, config: &SourceConfig) -> store::Result<()> {
    if let Some(id) = config.integration_id {
        let field = "source_config.integration_id";
        let integration = missing(
            integrations::get(tx, tenant, id).await,
            field,
            "there is no such integration in this workspace; GET /v1/integrations/github/install lists them",
        )?;
        let url = config.repo_url.as_deref().and_then(|url| RepoUrl::parse(url).ok());
        let host = TokenHost::of_api(&integration.api_url).ok();
        // The token is not used for a repository at another host.
        if let (Some(_), Some(url), Some(host)) = (&integration.token, url, host)
            && !host.matches(&url)
        {
            let text = format!(
                "{field}: the integration's token is for {host} and is not sent to repo_url; name an integration \
                 whose api_url has the host of repo_url"
            );
            return Err(Rejection::rule(field, text).into());
        }
    }
    let listener = config.listener_id.filter(|id| *id != BUILT_IN_LISTENER);
    if let Some(id) = listener {
        let listener = missing(
            listeners::get(tx, tenant, id).await,
            "source_config.listener_id",
            "there is no such listener in this workspace; GET /v2/listeners lists them",
        )?;
        let what = format!("a listener of compute type {}", listener.compute_type);
        return Err(Rejection::unsupported("source_config.listener_id", what).into());
    }
    let namespace = config
        .listener_config
        .as_ref()
        .and_then(|config| config.k8s_namespace.as_ref());
    if namespace.is_some() {
        let field = "source_config.listener_config.k8s_namespace";
        let text = format!("{field} must be null: the listener's compute type is not k8s");
        return Err(Rejection::rule(field, text).into());
    }
    check_key_scopes(tx, tenant, config).await
}

/// Refuses scopes of deployments in other workspaces.
async fn check_key_scopes(tx: &mut Tx<'_>, tenant: TenantId, config: &SourceConfig) -> store::Result<()> {
    for scope in config.key_scopes.iter().flatten() {
        if let Scope::AgentsInvokeOf(id) = scope {
            missing(
                deployments::get(tx, tenant, *id).await,
                "source_config.key_scopes",
                "agents:invoke:<deployment id>: this workspace has no such deployment",
            )?;
        }
    }
    Ok(())
}

/// An archive must have been issued for this deployment, and must be uploaded.
async fn check_archive(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    deployment: DeploymentId,
    request: &RevisionRequest,
) -> store::Result<()> {
    let (Source::InternalSource, Some(path)) = (request.source, &request.config.source_tarball_path) else {
        return Ok(());
    };
    let field = "source_revision_config.source_tarball_path";
    let upload = missing(
        source_uploads::get_by_path(tx, tenant, deployment, path).await,
        field,
        "was not issued for this deployment; POST /v2/deployments/{id}/upload-url issues one",
    )?;
    if upload.uploaded_at.is_none() {
        let text = format!("{field}: nothing is uploaded there yet; PUT the archive to its upload_url first");
        return Err(Rejection::rule(field, text).into());
    }
    Ok(())
}

fn missing<T>(found: store::Result<T>, field: &str, why: &str) -> store::Result<T> {
    found.map_err(|error| match error {
        store::Error::NotFound => Rejection::rule(field, format!("{field}: {why}")).into(),
        other => other,
    })
}
