//! Sandboxes with a driver that runs nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use towpath_domain::sandbox::{
    Attachment, BoxConfig, BoxStatus, Lifetime, ProxyConfig, SnapshotStatus, StoredProxy, TemplateResources,
};
use towpath_domain::{BoxId, BoxRegistryId, Secret, SnapshotId, TenantId, VolumeId};
use towpath_sandbox::{Error, RootFileSystem};
use towpath_store::sandboxes::boxes::{self, BoxUpdate, NewBox, SandboxBox};
use towpath_store::sandboxes::network::{self, BoxTraffic};
use towpath_store::sandboxes::nodes::{self, NodeRegistration};
use towpath_store::sandboxes::registries::{self, Credentials, RegistryFields};
use towpath_store::sandboxes::snapshots::{self, NewSnapshot, Snapshot};
use towpath_store::sandboxes::volumes::{self, NewVolume};
use towpath_store::sandboxes::{pools, templates};
use towpath_workflows::reconcile_boxes::BoxReconciler;
use towpath_workflows::sandbox_host::fake_driver::FakeDriver;
use towpath_workflows::sandbox_host::{SandboxHost, SandboxHostSettings};
use towpath_workflows::{
    build_snapshot, capture_snapshot, delete_box, delete_snapshot, delete_volume, fill_pool, start_box, stop_box,
};
use uuid::Uuid;

use crate::fixture::{Database, WorkflowFixture, on_both_databases};

on_both_databases!(
    a_box_starts_stops_and_starts_anew,
    a_start_that_fails_says_why,
    a_start_is_repeated_where_that_may_help,
    limits_that_the_machine_cannot_enforce_are_refused,
    what_is_about_an_old_life_changes_nothing,
    a_removal_wins_over_a_start,
    boxes_stop_when_idle_and_go_when_stopped_for_long,
    a_box_in_use_does_not_stop,
    a_use_counts_before_it_is_written,
    what_the_machine_lost_is_stopped_and_what_it_has_more_is_ended,
    a_snapshot_is_a_layer_over_those_of_its_box,
    a_tag_moves_to_the_newest_snapshot_that_is_ready,
    volumes_are_made_by_the_box_that_has_them,
    a_pool_is_filled_and_claimed_boxes_are_replaced,
    a_box_starts_with_the_variables_of_its_network,
    traffic_is_added_up_until_the_box_goes,
    an_image_is_pulled_with_the_login_of_its_workspace,
    images_that_no_row_names_are_removed,
);

const TIMES: Lifetime = Lifetime {
    idle_ttl_seconds: 600,
    ttl_seconds: 0,
    delete_after_stop_seconds: 3600,
};

/// Longer than a test advances the clock.
const LEASE: Duration = Duration::from_secs(24 * 60 * 60);

fn registration(host: &SandboxHost) -> NodeRegistration {
    NodeRegistration {
        id: host.host_id(),
        name: "here".to_owned(),
        address: None,
        process_id: Uuid::now_v7(),
        max_boxes: 0,
    }
}

struct SandboxFixture {
    workflows: WorkflowFixture,
    fake: Arc<FakeDriver>,
    host: Arc<SandboxHost>,
}

impl SandboxFixture {
    async fn new(database: Database) -> Self {
        Self::with(database, SandboxHostSettings::default()).await
    }

    async fn with(database: Database, settings: SandboxHostSettings) -> Self {
        let mut home = WorkflowFixture::empty_on(&database, 1).await;
        let fake = Arc::new(FakeDriver::default());
        let folder: &Path = home.folder.path();
        let stop = CancellationToken::new();
        let boxes = SandboxHost::open(
            Arc::clone(&fake) as Arc<dyn towpath_sandbox::Driver>,
            &folder.join("sandboxes"),
            settings,
            home.clock.clone(),
            stop,
        );
        let boxes = Arc::new(boxes.unwrap());
        home.world.sandbox_host = Some(Arc::clone(&boxes));
        let node = registration(&boxes);
        let registered = home.store().write(async |tx| nodes::register(tx, &node, LEASE).await);
        assert!(registered.await.unwrap());
        Self {
            workflows: home,
            fake,
            host: boxes,
        }
    }

    fn reconciler(&self) -> BoxReconciler {
        let sealer = self.workflows.world.sealer.clone();
        let (store, host) = (self.workflows.store().clone(), Arc::clone(&self.host));
        BoxReconciler::new(store, sealer, host, registration(&self.host), LEASE)
    }

    async fn create_box(&self, name: &str) -> BoxId {
        self.create_box_with(name, &BoxConfig::default(), None, &[]).await
    }

    async fn create_box_with(
        &self,
        name: &str,
        config: &BoxConfig,
        snapshot: Option<SnapshotId>,
        attachments: &[Attachment],
    ) -> BoxId {
        let (tenant, id) = (self.workflows.tenant, BoxId::new());
        let made = self.workflows.store().write(async |tx| {
            let node = Some(self.host.host_id());
            start_box::start(tx, tenant, id, 1, node).await?;
            let new = NewBox {
                id,
                name,
                config,
                template_name: "",
                template: None,
                snapshot,
                pool: None,
                node,
                lifetime: TIMES,
                attachments,
                request: b"",
                created_by: "test",
            };
            boxes::insert(tx, tenant, &new).await
        });
        made.await.unwrap();
        id
    }

    async fn row(&self, id: BoxId) -> SandboxBox {
        let tenant = self.workflows.tenant;
        let found = self.workflows.store().read(async |tx| boxes::get(tx, tenant, id).await);
        found.await.unwrap()
    }

    async fn is_deleted(&self, id: BoxId) -> bool {
        let found = self
            .workflows
            .store()
            .read(async |tx| boxes::find_location(tx, id).await);
        found.await.unwrap().is_none()
    }

    async fn stop(&self, id: BoxId, generation: i64) {
        let tenant = self.workflows.tenant;
        let asked = self.workflows.store();
        asked
            .write(async |tx| stop_box::start(tx, tenant, id, generation).await)
            .await
            .unwrap();
        self.workflows.drive().await;
    }

    async fn restart(&self, id: BoxId) -> Option<SandboxBox> {
        let tenant = self.workflows.tenant;
        let asked = self.workflows.store();
        asked
            .write(async |tx| start_box::restart(tx, tenant, id).await)
            .await
            .unwrap()
    }

    async fn delete(&self, id: BoxId) {
        let tenant = self.workflows.tenant;
        let asked = self.workflows.store();
        asked
            .write(async |tx| delete_box::delete(tx, tenant, id).await)
            .await
            .unwrap();
    }

    async fn capture(&self, id: BoxId, parent: Option<SnapshotId>) -> SnapshotId {
        let (tenant, snapshot) = (self.workflows.tenant, SnapshotId::new());
        let recorded = self.workflows.store().write(async |tx| {
            capture_snapshot::start(tx, tenant, id, snapshot, None).await?;
            let new = NewSnapshot {
                id: snapshot,
                name: "kept",
                docker_image: None,
                fs_capacity_bytes: 1 << 30,
                source: Some(id),
                parent,
                node: Some(self.host.host_id()),
                run_config: None,
                labels: &BTreeMap::new(),
                description: None,
                included: &[],
                request: b"",
                created_by: "test",
            };
            snapshots::insert(tx, tenant, new).await
        });
        recorded.await.unwrap();
        self.workflows.drive().await;
        snapshot
    }

    /// Records the build of a snapshot with the tag `v1`; without an image it fails.
    async fn record_build(&self, id: SnapshotId, image: Option<&str>) {
        self.record_build_with(id, image, None).await;
    }

    async fn record_build_with(&self, id: SnapshotId, image: Option<&str>, registry: Option<BoxRegistryId>) {
        let tenant = self.workflows.tenant;
        let recorded = self.workflows.store().write(async |tx| {
            build_snapshot::start(tx, tenant, id, Some("v1"), registry).await?;
            let new = NewSnapshot {
                id,
                name: "base",
                docker_image: image,
                fs_capacity_bytes: 1 << 30,
                source: None,
                parent: None,
                node: None,
                run_config: None,
                labels: &BTreeMap::new(),
                description: None,
                included: &[],
                request: b"",
                created_by: "test",
            };
            snapshots::insert(tx, tenant, new).await
        });
        recorded.await.unwrap();
    }

    async fn create_registry(&self, tenant: TenantId, name: &str, url: &str, auth_type: &str) -> BoxRegistryId {
        let sealer = &self.workflows.world.sealer;
        let credentials = Credentials {
            username: Some(name.to_owned()),
            password: Some(Secret::new("hunter2")),
            aws_role_arn: None,
        };
        let fields = RegistryFields {
            name,
            url,
            auth_type,
            credentials: &credentials,
        };
        let store = self.workflows.store();
        let made = store.write(async |tx| registries::insert(tx, tenant, sealer, fields).await);
        made.await.unwrap().id
    }

    async fn snapshot(&self, id: SnapshotId) -> Snapshot {
        let tenant = self.workflows.tenant;
        let found = self
            .workflows
            .store()
            .read(async |tx| snapshots::get(tx, tenant, id).await);
        found.await.unwrap()
    }

    /// The snapshot that has the tag `v1` of `base`.
    async fn tagged(&self) -> Option<SnapshotId> {
        let tenant = self.workflows.tenant;
        let store = self.workflows.store();
        let found = store.read(async |tx| snapshots::tags(tx, tenant, "base").await);
        found.await.unwrap().pop().map(|tag| tag.snapshot_id)
    }
}

async fn a_box_starts_stops_and_starts_anew(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let id = machine.create_box("a").await;
    machine.workflows.drive().await;
    let row = machine.row(id).await;
    assert_eq!((row.status, row.generation), (BoxStatus::Ready, 1));
    assert_eq!(row.host_id, Some(machine.host.host_id()));
    assert_eq!(machine.fake.running_generation(id.0), Some(1));
    let root: RootFileSystem = serde_json::from_str(&row.root.unwrap()).unwrap();
    assert_eq!(root.base, "host");

    machine.stop(id, 1).await;
    let row = machine.row(id).await;
    assert_eq!(row.status, BoxStatus::Stopped);
    assert!(row.stopped_at.is_some());
    assert_eq!(machine.fake.running_generation(id.0), None);

    let begun = machine.restart(id).await.unwrap();
    assert_eq!((begun.status, begun.generation), (BoxStatus::Provisioning, 2));
    assert!(machine.restart(id).await.is_none(), "it is being started already");
    let (tenant, late) = (machine.workflows.tenant, machine.workflows.store());
    let late = late.write(async |tx| boxes::begin_start(tx, tenant, id, 1, None).await);
    assert!(late.await.unwrap().is_none(), "the life after the first has begun");
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Ready);
    assert_eq!(machine.fake.running_generation(id.0), Some(2));

    machine.delete(id).await;
    machine.workflows.drive().await;
    assert!(machine.is_deleted(id).await);
    assert_eq!(machine.fake.running_generation(id.0), None);
}

async fn a_start_that_fails_says_why(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let config = BoxConfig {
        image: Some("missing".to_owned()),
        ..BoxConfig::default()
    };
    let id = machine.create_box_with("a", &config, None, &[]).await;
    machine.workflows.drive().await;
    let row = machine.row(id).await;
    assert_eq!(row.status, BoxStatus::Failed);
    assert_eq!(row.status_message.as_deref(), Some("there is no image missing"));
    // It may be retried.
    assert_eq!(machine.restart(id).await.unwrap().generation, 2);
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Failed);
}

async fn a_start_is_repeated_where_that_may_help(database: Database) {
    let machine = SandboxFixture::new(database).await;
    machine.fake.fail_next_start(Error::TimedOut("starting the sandbox"));
    let id = machine.create_box("a").await;
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Provisioning);
    machine.workflows.wait(Duration::from_secs(5)).await;
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Ready);
}

async fn limits_that_the_machine_cannot_enforce_are_refused(database: Database) {
    let machine = SandboxFixture::new(database).await;
    machine.fake.disable_limits();
    let limited = BoxConfig {
        mem_bytes: Some(64 << 20),
        ..BoxConfig::default()
    };
    let refused = machine.create_box_with("a", &limited, None, &[]).await;
    let plain = machine.create_box("b").await;
    machine.workflows.drive().await;
    let row = machine.row(refused).await;
    assert_eq!(row.status, BoxStatus::Failed);
    let why = row.status_message.unwrap();
    assert!(
        why.contains("memory") && why.contains("sandboxes.unenforced_limits"),
        "{why}"
    );
    assert_eq!(machine.row(plain).await.status, BoxStatus::Ready);

    let allowed = SandboxHostSettings {
        allow_unenforced: true,
        ..SandboxHostSettings::default()
    };
    let capabilities = machine.host.capabilities().await.unwrap();
    assert!(machine.host.limits(&limited, capabilities).is_err());
    let other = SandboxFixture::with(Database::Sqlite, allowed).await;
    let (limits, unenforced) = other.host.limits(&limited, capabilities).unwrap();
    assert_eq!((limits.memory_bytes, unenforced), (None, vec!["memory"]));
}

async fn what_is_about_an_old_life_changes_nothing(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let id = machine.create_box("a").await;
    machine.workflows.drive().await;
    machine.stop(id, 1).await;
    machine.restart(id).await.unwrap();
    machine.workflows.drive().await;
    // It was meant for the first life.
    machine.stop(id, 1).await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Ready);
    assert_eq!(machine.fake.running_generation(id.0), Some(2));
    let tenant = machine.workflows.tenant;
    let late = machine.workflows.store();
    let changed = late.write(async |tx| boxes::mark_stopped(tx, tenant, id, 1, Some("late")).await);
    assert!(!changed.await.unwrap());
    assert_eq!(machine.row(id).await.status, BoxStatus::Ready);
}

async fn a_removal_wins_over_a_start(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let id = machine.create_box("a").await;
    let start = machine.workflows.until("start_box").await;
    machine.delete(id).await;
    // The name is free before the sandbox is deleted.
    let other = machine.create_box("a").await;
    machine.workflows.perform(start).await;
    machine.workflows.drive().await;
    assert!(machine.is_deleted(id).await);
    assert_eq!(machine.fake.running_generation(id.0), None);
    assert_eq!(machine.row(other).await.status, BoxStatus::Ready);
}

async fn boxes_stop_when_idle_and_go_when_stopped_for_long(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let id = machine.create_box("a").await;
    machine.workflows.drive().await;
    let keeper = machine.reconciler();
    machine.workflows.wait(Duration::from_secs(599)).await;
    keeper.stop_due().await.unwrap();
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Ready);
    machine.workflows.wait(Duration::from_secs(2)).await;
    keeper.stop_due().await.unwrap();
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Stopped);
    machine.workflows.wait(Duration::from_secs(3601)).await;
    keeper.stop_due().await.unwrap();
    machine.workflows.drive().await;
    assert!(machine.is_deleted(id).await);
}

async fn a_box_in_use_does_not_stop(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let id = machine.create_box("a").await;
    machine.workflows.drive().await;
    let keeper = machine.reconciler();
    let connection = machine.host.begin_use(id);
    machine.workflows.wait(Duration::from_secs(700)).await;
    keeper.stop_due().await.unwrap();
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Ready);
    drop(connection);
    machine.workflows.wait(Duration::from_secs(601)).await;
    keeper.stop_due().await.unwrap();
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Stopped);
}

async fn a_use_counts_before_it_is_written(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let id = machine.create_box("a").await;
    machine.workflows.drive().await;
    let keeper = machine.reconciler();
    machine.workflows.wait(Duration::from_secs(599)).await;
    drop(machine.host.begin_use(id));
    machine.workflows.wait(Duration::from_secs(2)).await;
    keeper.stop_due().await.unwrap();
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Ready);
    machine.workflows.wait(Duration::from_secs(600)).await;
    keeper.stop_due().await.unwrap();
    // The sandbox is used before the job runs.
    let connection = machine.host.begin_use(id);
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Ready);
    drop(connection);
    machine.workflows.wait(Duration::from_secs(601)).await;
    keeper.stop_due().await.unwrap();
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Stopped);
}

async fn what_the_machine_lost_is_stopped_and_what_it_has_more_is_ended(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let (kept, killed) = (machine.create_box("kept").await, machine.create_box("killed").await);
    machine.workflows.drive().await;
    let stranger = Uuid::now_v7();
    machine.fake.end_processes(killed.0);
    machine.fake.run_unknown(stranger, 3);
    let mut keeper = machine.reconciler();
    keeper.reconcile().await.unwrap();
    assert_eq!(machine.row(kept).await.status, BoxStatus::Ready);
    let row = machine.row(killed).await;
    assert_eq!(row.status, BoxStatus::Stopped);
    assert!(row.status_message.unwrap().contains("its processes ended"));
    assert_eq!(machine.fake.running_generation(stranger), None);
    // Until then, a late start of it is refused.
    assert!(machine.fake.has_box(stranger));
    keeper.reconcile().await.unwrap();
    assert!(!machine.fake.has_box(stranger));
    assert!(machine.fake.has_box(kept.0));
}

async fn a_snapshot_is_a_layer_over_those_of_its_box(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let tenant = machine.workflows.tenant;
    let id = machine.create_box("a").await;
    machine.workflows.drive().await;
    let first = machine.capture(id, None).await;
    let read = async |id| {
        let found = machine
            .workflows
            .store()
            .read(async |tx| snapshots::get(tx, tenant, id).await);
        found.await
    };
    let row = read(first).await.unwrap();
    assert_eq!((row.status, row.fs_used_bytes), (SnapshotStatus::Ready, Some(4096)));

    let fork = machine
        .create_box_with("b", &BoxConfig::default(), Some(first), &[])
        .await;
    machine.workflows.drive().await;
    assert_eq!(machine.row(fork).await.status, BoxStatus::Ready);
    let second = machine.capture(fork, Some(first)).await;
    let root: RootFileSystem = serde_json::from_str(&read(second).await.unwrap().root.unwrap()).unwrap();
    assert_eq!(root.layers, [second.0, first.0]);
    let users = machine
        .workflows
        .store()
        .read(async |tx| snapshots::users(tx, tenant, first).await);
    let users = users.await.unwrap();
    assert_eq!(
        users,
        [
            ("snapshot".to_owned(), "kept".to_owned()),
            ("box".to_owned(), "b".to_owned())
        ]
    );

    let store = machine.workflows.store();
    let removed = store.write(async |tx| {
        delete_snapshot::start(tx, tenant, second).await?;
        snapshots::mark_deleting(tx, tenant, second).await
    });
    removed.await.unwrap();
    machine.workflows.drive().await;
    assert!(read(second).await.is_err());
    assert!(!machine.fake.has_layer(second.0));
    assert!(machine.fake.has_layer(first.0));
}

async fn a_tag_moves_to_the_newest_snapshot_that_is_ready(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let first = SnapshotId::new();
    machine.record_build(first, Some("host")).await;
    assert_eq!(machine.tagged().await, None, "it is not ready");
    machine.workflows.drive().await;
    assert_eq!(machine.tagged().await, Some(first));

    machine.record_build(SnapshotId::new(), None).await;
    machine.workflows.drive().await;
    assert_eq!(machine.tagged().await, Some(first), "a failed one takes no tag");

    let (older, newer) = (SnapshotId::new(), SnapshotId::new());
    machine.record_build(newer, Some("host")).await;
    assert_eq!(machine.tagged().await, Some(first));
    machine.workflows.drive().await;
    machine.record_build(older, Some("host")).await;
    machine.workflows.drive().await;
    assert_eq!(machine.tagged().await, Some(newer), "whichever is ready last");
}

async fn volumes_are_made_by_the_box_that_has_them(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let (tenant, volume) = (machine.workflows.tenant, VolumeId::new());
    let store = machine.workflows.store();
    let new = NewVolume {
        id: volume,
        name: "data",
        size_bytes: 1 << 30,
        storage_class: "standard",
        description: None,
        labels: &BTreeMap::new(),
        source: None,
        node: None,
    };
    let made = store.write(async |tx| volumes::insert(tx, tenant, new).await);
    made.await.unwrap();
    let attachment = Attachment {
        volume,
        mount_path: "/data".to_owned(),
        read_only: false,
    };
    let id = machine
        .create_box_with("a", &BoxConfig::default(), None, &[attachment])
        .await;
    machine.workflows.drive().await;
    assert_eq!(machine.row(id).await.status, BoxStatus::Ready);
    assert_eq!(machine.fake.volume(volume.0), Some(1 << 30));
    let spec = machine.fake.started_specs().pop().unwrap();
    assert_eq!(spec.mounts[0].path, "/data");
    let holders = store
        .read(async |tx| volumes::users(tx, &[volume]).await)
        .await
        .unwrap();
    assert_eq!((holders[0].kind.as_str(), holders[0].name.as_str()), ("box", "a"));

    machine.delete(id).await;
    machine.workflows.drive().await;
    assert!(machine.fake.volume(volume.0).is_some(), "a volume outlives its box");
    let removed = store.write(async |tx| {
        delete_volume::start(tx, tenant, volume).await?;
        let deleting = towpath_domain::sandbox::VolumeStatus::Deleting;
        volumes::set_status(tx, tenant, volume, deleting, None).await
    });
    removed.await.unwrap();
    machine.workflows.drive().await;
    assert_eq!(machine.fake.volume(volume.0), None);
    let found = store.read(async |tx| volumes::get(tx, tenant, volume).await).await;
    assert!(found.is_err());
}

async fn a_pool_is_filled_and_claimed_boxes_are_replaced(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let (tenant, store) = (machine.workflows.tenant, machine.workflows.store());
    let made = store.write(async |tx| {
        let resources = TemplateResources::default();
        let template = templates::insert(tx, tenant, "python", "host", &resources).await?;
        Ok((pools::insert(tx, tenant, "ahead", template.id, 2).await?, template))
    });
    let (pool, template) = made.await.unwrap();
    let fill = async || {
        let asked = store.write(async |tx| fill_pool::start(tx, tenant, pool.id).await);
        asked.await.unwrap();
        machine.workflows.drive().await;
        let members = store.read(async |tx| boxes::pool_members(tx, tenant, pool.id).await);
        members.await.unwrap()
    };
    let members = fill().await;
    assert_eq!(members.len(), 2);
    assert!(members.iter().all(|member| member.status == BoxStatus::Ready));

    let config = BoxConfig::default();
    let claim = async |name: &str| {
        let change = BoxUpdate {
            name,
            config: &config,
            lifetime: TIMES,
            updated_by: "test",
        };
        let claimed = store.write(async |tx| boxes::claim_pooled(tx, tenant, template.id, change, b"").await);
        claimed.await.unwrap()
    };
    let claimed = claim("mine").await.unwrap();
    assert_eq!(claimed.id, members[0].id, "the oldest one");
    assert_eq!((claimed.name.as_str(), claimed.pool_id), ("mine", None));
    assert!(claimed.due_at.is_some(), "its times hold from now on");
    assert_eq!(claim("another").await.unwrap().id, members[1].id);
    assert!(claim("a third").await.is_none());
    let uneven = store
        .read(async |tx| pools::with_wrong_size(tx, 10).await)
        .await
        .unwrap();
    assert_eq!(uneven.len(), 1);

    assert_eq!(fill().await.len(), 2);
    let fewer = store.write(async |tx| pools::update(tx, tenant, pool.id, "ahead", 1).await);
    fewer.await.unwrap();
    assert_eq!(fill().await.len(), 1);
    assert_eq!(machine.row(claimed.id).await.status, BoxStatus::Ready);
}

async fn a_box_starts_with_the_variables_of_its_network(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let config = BoxConfig {
        env_vars: BTreeMap::from([("OWN".to_owned(), "box".to_owned())]),
        ..BoxConfig::default()
    };
    let id = machine.create_box_with("a", &config, None, &[]).await;
    let sent = serde_json::json!({"rules": [{
        "name": "api", "match_hosts": ["api.example.com"], "env_vars": {"OWN": "rule", "KEY": "placeholder"},
        "headers": [{"name": "Authorization", "type": "opaque", "value": "hunter2"}],
    }]});
    let (config, secrets) = ProxyConfig::parse(&sent, &StoredProxy::default()).unwrap();
    let (tenant, sealer) = (machine.workflows.tenant, machine.workflows.world.sealer.clone());
    let saved = machine
        .workflows
        .store()
        .write(async |tx| network::save(tx, tenant, &sealer, id, &config, &secrets).await);
    let saved = saved.await.unwrap();
    assert_eq!(
        (saved.config().unwrap(), saved.secrets(&sealer).unwrap()),
        (config, secrets)
    );
    machine.workflows.drive().await;
    let spec = machine.fake.started_specs().pop().unwrap();
    assert!(spec.has_proxy);
    let expected = [("KEY", "placeholder"), ("OWN", "box")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(spec.env, BTreeMap::from(expected));
    assert!(!serde_json::to_string(&spec).unwrap().contains("hunter2"));
}

async fn traffic_is_added_up_until_the_box_goes(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let (a, b) = (machine.create_box("a").await, machine.create_box("b").await);
    machine.workflows.drive().await;
    let (tenant, store) = (machine.workflows.tenant, machine.workflows.store());
    let traffic = |id: BoxId| BoxTraffic {
        id,
        sent_bytes: 10,
        received_bytes: 100,
    };
    for ids in [vec![a, b], vec![a, BoxId::new()]] {
        let counted: Vec<BoxTraffic> = ids.into_iter().map(traffic).collect();
        let added = store.write(async |tx| network::add_traffic(tx, &counted).await);
        added.await.unwrap();
    }
    let usage = async || {
        let found = store.read(async |tx| network::usage(tx, tenant).await);
        found.await.unwrap()
    };
    assert_eq!(usage().await, (30, 300));
    let found = store.read(async |tx| network::of_boxes(tx, &[a]).await);
    let found = found.await.unwrap().pop().unwrap();
    assert_eq!((found.sent_bytes, found.received_bytes, found.version), (20, 200, 0));
    assert!(found.config().unwrap().is_empty());
    machine.delete(a).await;
    assert_eq!(usage().await, (10, 100));
    machine.workflows.drive().await;
    assert!(machine.is_deleted(a).await);
}

async fn an_image_is_pulled_with_the_login_of_its_workspace(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let tenant = machine.workflows.tenant;
    for (name, url, auth_type) in [
        ("all", "https://registry.example/", "DOCKER_CONFIG"),
        ("team", "registry.example/team", "DOCKER_CONFIG"),
        ("near", "registry.example/tea", "DOCKER_CONFIG"),
        ("role", "registry.example/team/app", "AWS_ROLE"),
        ("hub", "https://index.docker.io/v1/", "DOCKER_CONFIG"),
    ] {
        machine.create_registry(tenant, name, url, auth_type).await;
    }
    let other = TenantId::new();
    machine
        .create_registry(other, "other", "registry.example/team/app", "DOCKER_CONFIG")
        .await;
    for (image, user) in [
        ("registry.example/team/app:v1", Some("team")),
        ("registry.example/x", Some("all")),
        ("alpine:3", Some("hub")),
        ("other.example/x", None),
    ] {
        let config = BoxConfig {
            image: Some(image.to_owned()),
            ..BoxConfig::default()
        };
        let id = machine
            .create_box_with(&image.replace(['/', ':', '.'], "-"), &config, None, &[])
            .await;
        machine.workflows.drive().await;
        assert_eq!(machine.row(id).await.status, BoxStatus::Ready, "{image}");
        let asked = machine.fake.image_requests().pop().unwrap();
        let login = asked.login.map(|login| (login.username, login.password));
        let expected = user.map(|user| (user.to_owned(), "hunter2".to_owned()));
        assert_eq!((asked.name.as_str(), login), (image, expected));
    }

    // A snapshot may name its registry.
    let named = machine
        .create_registry(tenant, "named", "registry.example", "DOCKER_CONFIG")
        .await;
    let id = SnapshotId::new();
    machine
        .record_build_with(id, Some("registry.example/team/app"), Some(named))
        .await;
    machine.workflows.drive().await;
    assert_eq!(machine.snapshot(id).await.status, SnapshotStatus::Ready);
    let asked = machine.fake.image_requests().pop().unwrap();
    assert_eq!(asked.login.unwrap().username, "named");
    let role = machine
        .create_registry(tenant, "role-2", "registry.example", "AWS_ROLE")
        .await;
    for (registry, image, why) in [
        (named, "other.example/x", "is of another one"),
        (role, "registry.example/x", "has the type AWS_ROLE"),
    ] {
        let id = SnapshotId::new();
        machine.record_build_with(id, Some(image), Some(registry)).await;
        machine.workflows.drive().await;
        let failed = machine.snapshot(id).await;
        let message = failed.status_message.unwrap_or_default();
        assert_eq!(failed.status, SnapshotStatus::Failed);
        assert!(message.contains(why) && !message.contains("hunter2"), "{message}");
    }
}

async fn images_that_no_row_names_are_removed(database: Database) {
    let machine = SandboxFixture::new(database).await;
    let config = |image: &str| BoxConfig {
        image: Some(image.to_owned()),
        ..BoxConfig::default()
    };
    let kept = machine.create_box_with("a", &config("one.example/x"), None, &[]).await;
    let doomed = machine.create_box_with("b", &config("two.example/x"), None, &[]).await;
    let snapshot = SnapshotId::new();
    machine.record_build(snapshot, Some("three.example/x")).await;
    machine.workflows.drive().await;
    let has = |names: [&str; 3]| names.map(|name| machine.fake.has_image(name));
    let names = ["one.example/x", "two.example/x", "three.example/x"];
    let keeper = machine.reconciler();
    keeper.remove_unused_images().await.unwrap();
    assert_eq!(has(names), [true; 3]);
    machine.delete(doomed).await;
    machine.workflows.drive().await;
    keeper.remove_unused_images().await.unwrap();
    assert_eq!(has(names), [true, false, true]);
    assert_eq!(machine.row(kept).await.status, BoxStatus::Ready);
}
