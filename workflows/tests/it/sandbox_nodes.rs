//! Several nodes of sandboxes on one database. Nodes are told apart by the pools of their jobs, which SQLite does not
//! have: it has one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use towpath_domain::sandbox::{BoxConfig, BoxStatus, Lifetime};
use towpath_domain::{BoxId, SnapshotId, TenantId};
use towpath_sandbox::Error;
use towpath_store::Store;
use towpath_store::sandboxes::boxes::{self, NewBox, SandboxBox};
use towpath_store::sandboxes::nodes::{self, NodeRegistration, NodeReport, NodeState};
use towpath_store::sandboxes::snapshots::{self, NewSnapshot};
use towpath_store::sealing::{Keys, Sealer};
use towpath_workflows::reconcile_boxes::BoxReconciler;
use towpath_workflows::sandbox_host::fake_driver::FakeDriver;
use towpath_workflows::sandbox_host::{self, SandboxHost, SandboxHostSettings};
use towpath_workflows::sandbox_nodes::listener::NodeListener;
use towpath_workflows::sandbox_nodes::{ConnectionPurpose, NodeClient, eligible, lost, pool_of_node};
use towpath_workflows::{build_snapshot, delete_box, start_box, stop_box};
use uuid::Uuid;

use crate::fixture::{Database, WorkflowFixture};

const LEASE: Duration = Duration::from_secs(120);
const IMAGE: &str = "registry.example/tools:v1";
const TIMES: Lifetime = Lifetime {
    idle_ttl_seconds: 0,
    ttl_seconds: 0,
    delete_after_stop_seconds: 0,
};

struct TestNode {
    host: Arc<SandboxHost>,
    driver: Arc<FakeDriver>,
    registration: NodeRegistration,
}

impl TestNode {
    async fn register(&self, store: &Store) {
        let registered = store.write(async |tx| nodes::register(tx, &self.registration, LEASE).await);
        assert!(registered.await.unwrap());
    }

    async fn renew(&self, store: &Store) -> bool {
        let report = NodeReport::default();
        let renewed = store.write(async |tx| nodes::renew(tx, &self.registration, &report, LEASE).await);
        renewed.await.unwrap()
    }

    fn id(&self) -> Uuid {
        self.registration.id
    }
}

struct NodesFixture {
    workflows: WorkflowFixture,
    a: TestNode,
    b: TestNode,
}

impl NodesFixture {
    async fn new() -> Option<Self> {
        let workflows = WorkflowFixture::empty_on(&Database::postgres()?, 1).await;
        let open = |name: &str| {
            let driver = Arc::new(FakeDriver::default());
            let host = SandboxHost::open(
                Arc::clone(&driver) as Arc<dyn towpath_sandbox::Driver>,
                &workflows.folder.path().join(name),
                SandboxHostSettings::default(),
                workflows.clock.clone(),
                CancellationToken::new(),
            );
            let host = Arc::new(host.unwrap());
            let registration = NodeRegistration {
                id: host.host_id(),
                name: name.to_owned(),
                address: None,
                process_id: Uuid::now_v7(),
                max_boxes: 0,
            };
            TestNode {
                host,
                driver,
                registration,
            }
        };
        let (a, b) = (open("a"), open("b"));
        for node in [&a, &b] {
            node.register(workflows.store()).await;
        }
        Some(Self { workflows, a, b })
    }

    fn store(&self) -> &Store {
        self.workflows.store()
    }

    fn tenant(&self) -> TenantId {
        self.workflows.tenant
    }

    /// Performs the jobs that the process of a node claims. Returns how many.
    async fn drive(&mut self, host: &Arc<SandboxHost>) -> usize {
        self.workflows.world.sandbox_host = Some(Arc::clone(host));
        let own = pool_of_node(host.host_id());
        let mut performed = 0;
        loop {
            while towpath_durable::ready_due(self.store()).await.unwrap() > 0 {}
            let claimed = match self.workflows.claim_from(&own).await {
                Some(job) => Some(job),
                None => self.workflows.claim_from(sandbox_host::POOL).await,
            };
            let Some(job) = claimed else { return performed };
            self.workflows.perform(job).await;
            performed += 1;
        }
    }

    async fn create_box(&self, node: Uuid, config: &BoxConfig) -> BoxId {
        self.create_box_with(node, config, None).await
    }

    async fn create_box_with(&self, node: Uuid, config: &BoxConfig, snapshot: Option<SnapshotId>) -> BoxId {
        let (tenant, id) = (self.tenant(), BoxId::new());
        let made = self.store().write(async |tx| {
            start_box::start(tx, tenant, id, 1, Some(node)).await?;
            let new = NewBox {
                id,
                name: &id.to_string(),
                config,
                template_name: "",
                template: None,
                snapshot,
                pool: None,
                node: Some(node),
                lifetime: TIMES,
                attachments: &[],
                request: b"",
                created_by: "test",
            };
            boxes::insert(tx, tenant, &new).await
        });
        made.await.unwrap();
        id
    }

    async fn row(&self, id: BoxId) -> SandboxBox {
        let tenant = self.tenant();
        let found = self.store().read(async |tx| boxes::get(tx, tenant, id).await);
        found.await.unwrap()
    }

    async fn eligible(&self) -> Vec<Uuid> {
        let found = self.store().read(async |tx| eligible(tx, None).await);
        found.await.unwrap()
    }

    /// Node `a` does not report until it is lost.
    async fn lose_a(&self) {
        self.workflows.wait(LEASE + Duration::from_secs(1)).await;
        assert!(self.b.renew(self.store()).await);
        assert_eq!(lost::stop_lost(self.store()).await.unwrap(), 1);
    }

    fn reconciler(&self, node: &TestNode) -> BoxReconciler {
        let sealer = self.workflows.world.sealer.clone();
        let (store, host) = (self.store().clone(), Arc::clone(&node.host));
        BoxReconciler::new(store, sealer, host, node.registration.clone(), LEASE)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_sandbox_run_on_its_node() {
    let Some(mut fixture) = NodesFixture::new().await else {
        return;
    };
    let (a, b) = (Arc::clone(&fixture.a.host), Arc::clone(&fixture.b.host));
    let id = fixture.create_box(fixture.a.id(), &BoxConfig::default()).await;
    assert_eq!(fixture.drive(&b).await, 0);
    assert_eq!(fixture.row(id).await.status, BoxStatus::Provisioning);
    assert_eq!(fixture.drive(&a).await, 1);
    assert_eq!(fixture.row(id).await.status, BoxStatus::Ready);
    assert_eq!(fixture.a.driver.running_generation(id.0), Some(1));
    assert!(!fixture.b.driver.has_box(id.0));

    let (tenant, store) = (fixture.tenant(), fixture.store().clone());
    let stopped = store.write(async |tx| stop_box::start(tx, tenant, id, 1).await);
    stopped.await.unwrap();
    assert_eq!((fixture.drive(&b).await, fixture.drive(&a).await), (0, 1));
    let restarted = store.write(async |tx| start_box::restart(tx, tenant, id).await);
    assert_eq!(restarted.await.unwrap().unwrap().host_id, Some(fixture.a.id()));
    assert_eq!((fixture.drive(&b).await, fixture.drive(&a).await), (0, 1));
    assert_eq!(fixture.a.driver.running_generation(id.0), Some(2));

    // Each node compares only its own sandboxes with their rows.
    let mut reconciler = fixture.reconciler(&fixture.b);
    reconciler.reconcile().await.unwrap();
    assert_eq!(fixture.row(id).await.status, BoxStatus::Ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_of_a_lost_node_are_stopped_and_end_when_it_returns() {
    let Some(mut fixture) = NodesFixture::new().await else {
        return;
    };
    let (a, b) = (Arc::clone(&fixture.a.host), Arc::clone(&fixture.b.host));
    let kept = fixture.create_box(fixture.b.id(), &BoxConfig::default()).await;
    let running = fixture.create_box(fixture.a.id(), &BoxConfig::default()).await;
    assert_eq!((fixture.drive(&a).await, fixture.drive(&b).await), (1, 1));
    let starting = fixture.create_box(fixture.a.id(), &BoxConfig::default()).await;
    assert_eq!(lost::stop_lost(fixture.store()).await.unwrap(), 0);
    fixture.lose_a().await;
    assert_eq!(fixture.row(kept).await.status, BoxStatus::Ready);
    for id in [running, starting] {
        let row = fixture.row(id).await;
        assert_eq!(row.status, BoxStatus::Stopped);
        let why = row.status_message.unwrap();
        assert!(why.contains("its node a was lost"), "{why}");
    }
    assert_eq!(fixture.eligible().await, [fixture.b.id()]);
    assert_eq!(
        lost::stop_lost(fixture.store()).await.unwrap(),
        0,
        "it is known as lost"
    );

    // The life that its machine still runs is over.
    assert_eq!(fixture.a.driver.running_generation(running.0), Some(1));
    assert!(fixture.a.renew(fixture.store()).await);
    let mut reconciler = fixture.reconciler(&fixture.a);
    reconciler.reconcile().await.unwrap();
    assert_eq!(fixture.a.driver.running_generation(running.0), None);
    assert!(fixture.a.driver.has_box(running.0), "its files are kept");
    // The late job of a life that is over starts nothing.
    fixture.drive(&a).await;
    assert_eq!(fixture.a.driver.running_generation(starting.0), None);
    let tenant = fixture.tenant();
    let restarted = fixture
        .store()
        .write(async |tx| start_box::restart(tx, tenant, running).await);
    assert_eq!(restarted.await.unwrap().unwrap().generation, 2);
    fixture.drive(&a).await;
    assert_eq!(fixture.a.driver.running_generation(running.0), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_without_files_leaves_a_lost_node() {
    let Some(mut fixture) = NodesFixture::new().await else {
        return;
    };
    let (a, b) = (Arc::clone(&fixture.a.host), Arc::clone(&fixture.b.host));
    let temporary = BoxConfig {
        is_temporary: true,
        image: Some(IMAGE.to_owned()),
        ..BoxConfig::default()
    };
    let id = fixture.create_box(fixture.a.id(), &temporary).await;
    fixture.drive(&a).await;
    fixture.lose_a().await;
    assert!(!fixture.b.driver.has_image(IMAGE));
    let tenant = fixture.tenant();
    let restarted = fixture
        .store()
        .write(async |tx| start_box::restart(tx, tenant, id).await);
    assert_eq!(restarted.await.unwrap().unwrap().host_id, Some(fixture.b.id()));
    fixture.drive(&b).await;
    assert_eq!(fixture.b.driver.running_generation(id.0), Some(2));
    assert_eq!(fixture.row(id).await.host_id, Some(fixture.b.id()));
    assert!(fixture.b.driver.has_image(IMAGE), "the other node pulls its image");

    assert!(fixture.a.renew(fixture.store()).await);
    let mut reconciler = fixture.reconciler(&fixture.a);
    reconciler.reconcile().await.unwrap();
    assert_eq!(fixture.a.driver.running_generation(id.0), None);
    reconciler.reconcile().await.unwrap();
    assert!(!fixture.a.driver.has_box(id.0));
    assert_eq!(fixture.row(id).await.status, BoxStatus::Ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_an_image_starts_on_every_node() {
    let Some(mut fixture) = NodesFixture::new().await else {
        return;
    };
    let (a, b) = (Arc::clone(&fixture.a.host), Arc::clone(&fixture.b.host));
    let (tenant, store, snapshot) = (fixture.tenant(), fixture.store().clone(), SnapshotId::new());
    let recorded = store.write(async |tx| {
        build_snapshot::start(tx, tenant, snapshot, None, None).await?;
        let new = NewSnapshot {
            id: snapshot,
            name: "tools",
            docker_image: Some(IMAGE),
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
    assert_eq!(fixture.drive(&a).await, 1);
    let id = fixture
        .create_box_with(fixture.b.id(), &BoxConfig::default(), Some(snapshot))
        .await;
    assert!(!fixture.b.driver.has_image(IMAGE));
    assert_eq!(fixture.drive(&b).await, 1);
    assert_eq!(fixture.row(id).await.status, BoxStatus::Ready);
    assert!(fixture.b.driver.has_image(IMAGE));

    // What is here is not pulled again.
    let other = fixture
        .create_box_with(fixture.b.id(), &BoxConfig::default(), Some(snapshot))
        .await;
    assert_eq!(fixture.drive(&b).await, 1);
    assert_eq!(fixture.row(other).await.status, BoxStatus::Ready);
    assert_eq!(fixture.b.driver.image_requests().len(), 1);

    // A snapshot without a node may start anywhere; an image that only sandboxes of another node have is not kept.
    let elsewhere = BoxConfig {
        image: Some("registry.example/other:v1".to_owned()),
        ..BoxConfig::default()
    };
    fixture.create_box(fixture.b.id(), &elsewhere).await;
    fixture.drive(&b).await;
    for (node, has_other) in [(&fixture.a, false), (&fixture.b, true)] {
        fixture.reconciler(node).remove_unused_images().await.unwrap();
        assert!(node.driver.has_image(IMAGE));
        assert_eq!(node.driver.has_image("registry.example/other:v1"), has_other);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_drain_or_are_full_take_no_new_sandboxes() {
    let Some(mut fixture) = NodesFixture::new().await else {
        return;
    };
    let (a_id, b_id) = (fixture.a.id(), fixture.b.id());
    let a = Arc::clone(&fixture.a.host);
    fixture.create_box(a_id, &BoxConfig::default()).await;
    fixture.drive(&a).await;
    assert_eq!(
        fixture.eligible().await,
        [b_id, a_id],
        "the one with fewer sandboxes is preferred"
    );

    let store = fixture.store().clone();
    assert!(store.write(async |tx| nodes::drain(tx, b_id).await).await.unwrap());
    assert_eq!(fixture.eligible().await, [a_id]);
    fixture.b.register(&store).await;
    assert_eq!(fixture.eligible().await, [a_id], "a restart does not end it");
    assert!(store.write(async |tx| nodes::resume(tx, b_id).await).await.unwrap());

    fixture.a.registration.max_boxes = 1;
    fixture.a.register(&store).await;
    assert_eq!(fixture.eligible().await, [b_id]);

    // A process that shuts down is the last choice.
    fixture.a.registration.max_boxes = 0;
    fixture.a.register(&store).await;
    let process = fixture.b.registration.process_id;
    store.write(async |tx| nodes::leave(tx, process).await).await.unwrap();
    assert_eq!(fixture.eligible().await, [a_id, b_id]);

    // Another process of the node replaces the first.
    let first = fixture.a.registration.process_id;
    fixture.a.registration.process_id = Uuid::now_v7();
    fixture.a.register(&store).await;
    assert!(fixture.a.renew(&store).await);
    fixture.a.registration.process_id = first;
    assert!(!fixture.a.renew(&store).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_of_a_removed_node_can_be_deleted() {
    let Some(mut fixture) = NodesFixture::new().await else {
        return;
    };
    let (a, b) = (Arc::clone(&fixture.a.host), Arc::clone(&fixture.b.host));
    let id = fixture.create_box(fixture.a.id(), &BoxConfig::default()).await;
    fixture.drive(&a).await;
    assert!(
        !lost::remove(fixture.store(), fixture.a.id()).await.unwrap(),
        "it is not lost"
    );
    fixture.lose_a().await;
    let tenant = fixture.tenant();
    let deleted = fixture
        .store()
        .write(async |tx| delete_box::delete(tx, tenant, id).await);
    deleted.await.unwrap();
    assert_eq!(fixture.drive(&b).await, 0, "its node may return");
    assert!(lost::remove(fixture.store(), fixture.a.id()).await.unwrap());
    assert_eq!(fixture.drive(&b).await, 1);
    let found = fixture.store().read(async |tx| boxes::find_location(tx, id).await);
    assert_eq!(found.await.unwrap(), None);
    let listed = fixture.store().read(async |tx| nodes::list(tx).await).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|node| (node.id, node.state())).collect();
    assert_eq!(listed, [(fixture.b.id(), NodeState::Active)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_answers_for_one_life_of_its_sandboxes_and_to_its_installation_alone() {
    let Some(mut fixture) = NodesFixture::new().await else {
        return;
    };
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    fixture.a.registration.address = Some(socket.local_addr().unwrap().to_string());
    fixture.a.register(fixture.store()).await;
    let (store, sealer) = (fixture.store().clone(), fixture.workflows.world.sealer.clone());
    let stop = CancellationToken::new();
    let host = Arc::clone(&fixture.a.host);
    let listener = NodeListener::new(socket, store.clone(), sealer.clone(), Arc::clone(&host));
    let listening = tokio::spawn(listener.run(stop.clone()));

    let id = fixture.create_box(fixture.a.id(), &BoxConfig::default()).await;
    fixture.drive(&host).await;
    let row = fixture.row(id).await;
    let client = NodeClient::new(store.clone(), &sealer);
    let found = client.agent(&row, ConnectionPurpose::View).await.unwrap();
    assert!(found.is_some());
    client.apply_network(&row).await.unwrap();

    for other in [
        SandboxBox {
            generation: 2,
            ..row.clone()
        },
        SandboxBox {
            tenant_id: TenantId::new(),
            ..row.clone()
        },
        SandboxBox {
            id: BoxId::new(),
            ..row.clone()
        },
    ] {
        let found = client.agent(&other, ConnectionPurpose::View).await.unwrap();
        assert!(found.is_none());
    }
    let stranger = NodeClient::new(store.clone(), &Sealer::new(Keys::parse(&"02".repeat(32)).unwrap()));
    let refused = stranger.agent(&row, ConnectionPurpose::View).await.unwrap_err();
    assert!(matches!(refused, Error::Unreachable(_)), "{refused:?}");

    fixture.a.driver.end_processes(id.0);
    host.remove_handle(id);
    assert!(client.agent(&row, ConnectionPurpose::View).await.unwrap().is_none());
    stop.cancel();
    listening.await.unwrap();
    let gone = client.agent(&row, ConnectionPurpose::View).await.unwrap_err();
    assert!(matches!(gone, Error::Unreachable(_)), "{gone:?}");
    fixture.lose_a().await;
    let lost = client.agent(&row, ConnectionPurpose::View).await.unwrap_err();
    assert!(lost.to_string().contains("has not reported since"), "{lost}");
}
