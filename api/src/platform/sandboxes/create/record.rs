//! Records a new sandbox, or claims one from a pool.

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use towpath_domain::sandbox::{
    Attachment, BoxConfig, SnapshotReference, SnapshotStatus, VolumeStatus, check_attachments,
};
use towpath_domain::{BoxId, PoolId, Rejection, SnapshotId, TemplateId};
use towpath_store::sandboxes::boxes::{self, BoxUpdate, NewBox, SandboxBox};
use towpath_store::sandboxes::{self, network, pools, snapshots, templates, volumes};
use towpath_store::{self as store, Tx};
use towpath_workflows::start_box;
use uuid::Uuid;

use super::super::model::quota_exceeded;
use super::super::templates::held_template;
use super::{SandboxPlan, SandboxSource, placement};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;

/// A repeated request within this time gets the sandbox of the first.
const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(120);

/// A request combined with its template or snapshot.
struct ResolvedSandbox {
    name: String,
    template: Option<TemplateId>,
    snapshot: Option<SnapshotId>,
    config: BoxConfig,
    attachments: Vec<Attachment>,
    /// Whether a sandbox of a pool can be used.
    may_be_pooled: bool,
    /// The node that has the files of the snapshot.
    node: Option<Uuid>,
}

pub(super) type RecordedSandbox = (SandboxBox, Option<PoolId>);

pub(super) async fn record(
    tx: &mut Tx<'_>,
    tenant: Tenant,
    plan: &SandboxPlan,
    name: &str,
    by: &str,
    digest: &[u8; 32],
    app: &App,
) -> store::Result<Result<RecordedSandbox, ApiError>> {
    sandboxes::lock_quota(tx, tenant.id).await?;
    if plan.name.is_some() {
        let since = tx.now().minus(DEDUPLICATION_WINDOW);
        if let Some(row) = boxes::find_duplicate(tx, tenant.id, name, digest, by, since).await? {
            return Ok(Ok((row, None)));
        }
    }
    let made = match resolve(tx, tenant, plan).await? {
        Ok(made) => made,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let most = app.settings.sandbox_quota.boxes;
    // Before claiming from a pool, which starts another sandbox as replacement.
    if most > 0 && boxes::count(tx, tenant.id).await? >= most {
        let text = format!("this workspace has reached its limit of {most} sandboxes; delete some first");
        return Ok(Err(quota_exceeded(text)));
    }
    let change = BoxUpdate {
        name,
        config: &made.config,
        lifetime: plan.times,
        updated_by: by,
    };
    if let (true, Some(template)) = (made.may_be_pooled, made.template) {
        let pool = find_pool(tx, tenant, template).await?;
        let claimed = boxes::claim_pooled(tx, tenant.id, template, change, digest).await?;
        if let Some(row) = claimed {
            return Ok(Ok((row, pool)));
        }
    }
    let id = BoxId::new();
    let attachments = find_volumes(tx, tenant, plan, made.attachments).await?;
    let node = match placement::place(tx, tenant.id, made.node, &attachments, made.config.mem_bytes).await? {
        Ok(node) => node,
        Err(refusal) => return Ok(Err(refusal)),
    };
    // The lane is locked before any row.
    start_box::start(tx, tenant.id, id, 1, Some(node)).await?;
    attach_volumes(tx, tenant, node, &attachments).await?;
    if let Some(snapshot) = made.snapshot {
        // The snapshot may be deleted at the same time.
        let row = snapshots::lock(tx, tenant.id, snapshot).await?;
        if row.status != SnapshotStatus::Ready {
            return Err(Rejection::rule("snapshot", "the snapshot is being deleted").into());
        }
    }
    let new = NewBox {
        id,
        name,
        config: &made.config,
        template_name: &made.name,
        template: made.template,
        snapshot: made.snapshot,
        pool: None,
        node: Some(node),
        lifetime: plan.times,
        attachments: &attachments,
        request: digest,
        created_by: by,
    };
    let row = boxes::insert(tx, tenant.id, &new).await?;
    if !plan.network.is_empty() {
        network::save(tx, tenant.id, &app.sealer, id, &plan.network, &plan.network_secrets).await?;
    }
    Ok(Ok((row, None)))
}

/// The pool of this template, if any.
async fn find_pool(tx: &mut Tx<'_>, tenant: Tenant, template: TemplateId) -> store::Result<Option<PoolId>> {
    let pools = pools::list(tx, tenant.id, 1000, 0).await?;
    Ok(pools
        .into_iter()
        .find(|pool| pool.template_id == template)
        .map(|pool| pool.id))
}

async fn resolve(
    tx: &mut Tx<'_>,
    tenant: Tenant,
    plan: &SandboxPlan,
) -> store::Result<Result<ResolvedSandbox, ApiError>> {
    match &plan.source {
        SandboxSource::HostImage => Ok(Ok(ResolvedSandbox {
            name: String::new(),
            template: None,
            snapshot: None,
            config: plan.config.clone(),
            attachments: Vec::new(),
            may_be_pooled: false,
            node: None,
        })),
        SandboxSource::Template(name) => from_template(tx, tenant, plan, name).await,
        SandboxSource::Snapshot(reference) => from_snapshot(tx, tenant, plan, reference).await,
    }
}

async fn from_template(
    tx: &mut Tx<'_>,
    tenant: Tenant,
    plan: &SandboxPlan,
    name: &str,
) -> store::Result<Result<ResolvedSandbox, ApiError>> {
    let template = match held_template(tx, tenant, name).await? {
        Ok(template) => template,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let usual = template.resources()?.to_box_config(&template.image)?;
    let own = &plan.config;
    let config = BoxConfig {
        image: usual.image,
        vcpus: own.vcpus,
        cpu_millicores: own
            .cpu_millicores
            .or(usual.cpu_millicores.filter(|_| own.vcpus.is_none())),
        mem_bytes: own.mem_bytes.or(usual.mem_bytes),
        fs_capacity_bytes: own.fs_capacity_bytes.or(usual.fs_capacity_bytes),
        ..own.clone()
    };
    let mounts = templates::volumes_of(tx, &[template.id]).await?;
    let attachments: Vec<Attachment> = mounts
        .into_iter()
        .map(|mount| Attachment {
            volume: mount.volume_id,
            mount_path: mount.mount_path,
            read_only: false,
        })
        .collect();
    let is_plain = BoxConfig {
        labels: BTreeMap::new(),
        ..own.clone()
    } == BoxConfig::default();
    Ok(Ok(ResolvedSandbox {
        name: template.name,
        template: Some(template.id),
        snapshot: None,
        may_be_pooled: is_plain && plan.volumes.is_empty() && attachments.is_empty() && plan.network.is_empty(),
        config,
        attachments,
        node: None,
    }))
}

async fn from_snapshot(
    tx: &mut Tx<'_>,
    tenant: Tenant,
    plan: &SandboxPlan,
    reference: &SnapshotReference,
) -> store::Result<Result<ResolvedSandbox, ApiError>> {
    let snapshot = match snapshots::find(tx, tenant.id, reference).await {
        Err(store::Error::NotFound) => {
            let text = "the snapshot does not exist in this workspace";
            return Ok(Err(ApiError::with_name(
                StatusCode::BAD_REQUEST,
                "SnapshotNotFound",
                text,
            )));
        }
        found => found?,
    };
    if snapshot.status != SnapshotStatus::Ready {
        let text = format!("snapshot '{}' is {}", snapshot.name, snapshot.status.as_str());
        return Ok(Err(ApiError::with_name(
            StatusCode::BAD_REQUEST,
            "SnapshotNotReady",
            text,
        )));
    }
    let mut labels = snapshot.labels()?;
    labels.extend(plan.config.labels.clone());
    let config = BoxConfig {
        run_config: plan.config.run_config.clone().or(snapshot.run_config()?),
        labels,
        ..plan.config.clone()
    };
    Ok(Ok(ResolvedSandbox {
        name: snapshot.name,
        template: None,
        snapshot: Some(snapshot.id),
        config,
        attachments: Vec::new(),
        may_be_pooled: false,
        node: snapshot.host_id,
    }))
}

/// The volumes of a new sandbox.
async fn find_volumes(
    tx: &mut Tx<'_>,
    tenant: Tenant,
    plan: &SandboxPlan,
    of_template: Vec<Attachment>,
) -> store::Result<Vec<Attachment>> {
    let mut attachments = of_template;
    for volume in &plan.volumes {
        let found = match volumes::find(tx, tenant.id, &volume.volume).await {
            Err(store::Error::NotFound) => {
                let shown: String = volume.volume.chars().take(64).collect();
                return Err(Rejection::rule("volumes", format!("volume '{shown}' not found")).into());
            }
            found => found?,
        };
        attachments.push(Attachment {
            volume: found.id,
            mount_path: volume.mount_path.clone(),
            read_only: volume.read_only == Some(true),
        });
    }
    check_attachments("volumes", attachments.iter().map(|volume| volume.mount_path.as_str()))?;
    let mut distinct: Vec<_> = attachments.iter().map(|volume| volume.volume).collect();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < attachments.len() {
        return Err(Rejection::rule("volumes", "a volume can be mounted only once per sandbox").into());
    }
    Ok(attachments)
}

/// Attaches volumes to a new sandbox on this node: one sandbox may write to a volume, or several may read it.
async fn attach_volumes(tx: &mut Tx<'_>, tenant: Tenant, node: Uuid, attachments: &[Attachment]) -> store::Result<()> {
    // The same order everywhere, so that requests do not deadlock.
    let mut order: Vec<_> = attachments.iter().map(|volume| volume.volume).collect();
    order.sort_unstable();
    for id in &order {
        let volume = volumes::lock(tx, tenant.id, &id.to_string()).await?;
        if volume.host_id.is_some_and(|known| known != node) {
            let text = format!(
                "volume '{}' was just mounted on another node; send the request again",
                volume.name
            );
            return Err(Rejection::conflict("volumes", text).into());
        }
        volumes::set_node(tx, tenant.id, *id, node).await?;
        if volume.status != VolumeStatus::Ready {
            let text = format!("volume '{}' is {}", volume.name, volume.status.as_str());
            return Err(Rejection::rule("volumes", text).into());
        }
    }
    let holders = volumes::users(tx, &order).await?;
    for attachment in attachments {
        let others = holders.iter().filter(|holder| holder.kind == "box");
        let mut others = others.filter(|holder| holder.volume_id == attachment.volume);
        if let Some(holder) = others.find(|holder| !(holder.read_only && attachment.read_only)) {
            let text = format!(
                "a volume is mounted in sandbox '{}'; one sandbox may write to a volume, or several may read it",
                holder.name
            );
            return Err(Rejection::conflict("volumes", text).into());
        }
    }
    for attachment in attachments.iter().filter(|attachment| !attachment.read_only) {
        // Files must not change during the copy.
        if volumes::is_being_copied(tx, tenant.id, attachment.volume).await? {
            let text = "a volume is being copied and can only be mounted read-only meanwhile";
            return Err(Rejection::conflict("volumes", text).into());
        }
    }
    Ok(())
}
