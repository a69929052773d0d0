//! A surface in-process on a database of its own, with one workspace and one key.

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use towpath_api::{App, Health, Limits, Ops, Parts, QueryExecutor, Settings, platform_router};
use towpath_domain::{Clock, DiskStatus, OrganizationId, Scope, Secret, TenantId, Timestamp};
use towpath_outbound::{Guard, Policy};
use towpath_queue::Queue;
use towpath_store::access::{self, KeyLimits, NewKey};
use towpath_store::sandboxes::nodes::{self, NodeRegistration};
use towpath_store::sealing::{Keys, Sealer};
use towpath_store::{Options, Store};
use towpath_testing::Database;
use towpath_traces::objects::Objects;
use towpath_traces::wal::{self, Wal};
use towpath_workflows::cpu_pool::CpuPool;
use towpath_workflows::sandbox_host::fake_driver::FakeDriver;
use towpath_workflows::sandbox_host::{self, SandboxHost};
use towpath_workflows::sandbox_nodes::NodeClient;

/// The key of every world.
pub const KEY: &str = "a key of the operator's own choice, long enough";

/// Runs each test on both databases.
macro_rules! on_both_databases {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::world::World::new().await).await;
            })*
        }

        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                if let Some(world) = $crate::world::World::postgres().await {
                    super::$name(world).await;
                }
            })*
        }
    };
}
pub(crate) use on_both_databases;

pub struct World {
    pub store: Store,
    pub clock: Clock,
    pub tenant: TenantId,
    pub wal: Wal,
    pub disk: DiskStatus,
    pub folder: tempfile::TempDir,
    pub router: Router,
    pub app: App,
    /// Dropped last: what others hold open goes with it.
    pub database: Database,
}

pub async fn migrate(uri: &str) {
    let store = Store::open(uri, Options::default()).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
}

impl World {
    pub async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    pub async fn with(settings: Settings) -> Self {
        Self::on(Database::sqlite(migrate).await, settings, |_| Limits::off()).await
    }

    /// With limits on how often one caller may ask, by the world's clock.
    pub async fn limited(limits: impl FnOnce(Clock) -> Limits) -> Self {
        Self::on(Database::sqlite(migrate).await, Settings::default(), limits).await
    }

    /// In the server that `TOWPATH_TEST_POSTGRES` names.
    pub async fn postgres() -> Option<Self> {
        Some(
            Self::on(Database::postgres(migrate).await?, Settings::default(), |_| {
                Limits::off()
            })
            .await,
        )
    }

    async fn on(database: Database, settings: Settings, limits: impl FnOnce(Clock) -> Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::stopped(Timestamp::parse("2026-03-01T12:00:00Z").unwrap());
        let store = Store::open(
            &database.uri,
            Options {
                clock: clock.clone(),
                ..Options::default()
            },
        )
        .await
        .unwrap();
        // Who ends a job must know how its kind ends.
        towpath_workflows::registry().attach(&store);
        let tenant = TenantId::new();
        store
            .write(async |tx| access::ensure_first(tx, &Secret::new(KEY), tenant).await)
            .await
            .unwrap();
        let ops = Ops::new(Health::new(CancellationToken::new()), recorder().handle());
        let parts = parts(&store, &clock, folder.path(), ops, settings, limits(clock.clone()));
        let (wal, disk) = (parts.wal.clone(), parts.disk.clone());
        if let Some(host) = &parts.sandbox_host {
            register_node(&store, host).await;
        }
        let app = App::new(parts);
        Self {
            store,
            clock,
            tenant,
            wal,
            disk,
            folder,
            router: platform_router(app.clone()),
            app,
            database,
        }
    }

    /// Another process on the same database, as a router.
    pub fn beside(&self) -> Router {
        let ops = Ops::new(Health::new(CancellationToken::new()), recorder().handle());
        platform_router(App::new(parts(
            &self.store,
            &self.clock,
            self.folder.path(),
            ops,
            Settings::default(),
            Limits::off(),
        )))
    }

    /// The organisation of the first workspace.
    pub async fn organization(&self) -> OrganizationId {
        let workspace = self
            .store
            .read(async |tx| access::workspace(tx, self.tenant).await)
            .await
            .unwrap();
        workspace.unwrap().organization_id
    }

    /// One more workspace of the same organisation, so that the key opens two.
    pub async fn second_workspace(&self) -> TenantId {
        let organization = self.organization().await;
        let made = self
            .store
            .write(async |tx| access::create_workspace(tx, organization, "second").await)
            .await;
        // The surface may believe what it knows about the key for a while.
        self.clock.advance(std::time::Duration::from_secs(60));
        made.unwrap().id
    }

    /// One more key, named `test`.
    pub async fn key(&self, workspace: Option<TenantId>) -> Secret {
        let organization = self.organization().await;
        let new = NewKey {
            organization,
            workspace,
            name: "test",
            operator: false,
        };
        self.store
            .write(async |tx| access::create_key(tx, new).await)
            .await
            .unwrap()
            .1
    }

    /// One more key of all workspaces, with these scopes alone.
    pub async fn limited_key(&self, scopes: &[Scope]) -> Secret {
        self.key_with(self.organization().await, None, scopes).await
    }

    /// A key of this organisation, with these scopes alone.
    pub async fn key_with(
        &self,
        organization: OrganizationId,
        workspace: Option<TenantId>,
        scopes: &[Scope],
    ) -> Secret {
        let new = NewKey {
            organization,
            workspace,
            name: "limited",
            operator: false,
        };
        let limits = KeyLimits {
            scopes: Some(scopes.iter().copied().collect()),
            expires_at: None,
        };
        let made = self
            .store
            .write(async |tx| access::create_limited_key(tx, new.clone(), limits.clone()).await);
        made.await.unwrap().1
    }

    pub async fn call(&self, call: Call) -> Answer {
        self::call(&self.router, call).await
    }

    /// Without a key.
    pub async fn open(&self, method: Method, path: &str) -> Answer {
        self.call(Call::new(method, path)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Call::new(Method::GET, path).in_workspace(self.tenant)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call(Call::new(Method::POST, path).in_workspace(self.tenant).json(body))
            .await
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl Call {
    pub fn new(method: Method, path: &str) -> Self {
        Self {
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Whether it has that header.
    pub fn names(&self, header: &str) -> bool {
        self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(header))
    }

    pub fn in_workspace(self, tenant: TenantId) -> Self {
        self.header("x-api-key", KEY).header("x-tenant-id", &tenant.to_string())
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub fn json(self, body: &Value) -> Self {
        self.header("content-type", "application/json").body(body.to_string())
    }
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// The body, if the status is this one.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json()
    }
}

pub async fn call(router: &Router, call: Call) -> Answer {
    let mut request = Request::builder().method(call.method).uri(call.path);
    for (name, value) in call.headers {
        request = request.header(name, value);
    }
    let request = request.body(Body::from(call.body)).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        status: head.status,
        headers: head.headers,
        text: String::from_utf8(body.to_vec()).unwrap(),
    }
}

pub fn recorder() -> PrometheusRecorder {
    PrometheusBuilder::new().build_recorder()
}

/// Sandboxes are placed on this machine.
async fn register_node(store: &Store, host: &SandboxHost) {
    let node = NodeRegistration {
        id: host.host_id(),
        name: "here".to_owned(),
        address: None,
        process_id: uuid::Uuid::now_v7(),
        max_boxes: 0,
    };
    let lease = std::time::Duration::from_secs(24 * 60 * 60);
    let registered = store.write(async |tx| nodes::register(tx, &node, lease).await);
    assert!(registered.await.unwrap());
}

/// A machine of boxes that runs nothing.
fn machine(clock: &Clock, folder: &Path) -> Arc<SandboxHost> {
    let folder = folder.join(format!("sandboxes-{}", towpath_domain::BoxId::new()));
    let fake = Arc::new(FakeDriver::default());
    let boxes = SandboxHost::open(
        fake,
        &folder,
        sandbox_host::SandboxHostSettings::default(),
        clock.clone(),
        CancellationToken::new(),
    );
    Arc::new(boxes.unwrap())
}

fn parts(store: &Store, clock: &Clock, folder: &Path, ops: Ops, settings: Settings, limits: Limits) -> Parts {
    let objects = Objects::folder(&folder.join("objects")).unwrap();
    let options = wal::Options::for_store(&objects);
    // Nobody folds here: what was accepted stays in its units, where tests look for it.
    let reader = towpath_query::Reader::new(store.clone(), objects.clone());
    let wal = Wal::new(
        store.clone(),
        objects.clone(),
        options,
        Arc::new(|_, _| Box::pin(async { Ok(()) })),
    );
    let sealer = Sealer::new(Keys::parse(&"01".repeat(32)).unwrap());
    Parts {
        store: store.clone(),
        agents: None,
        queue: Queue::local(),
        wal,
        queries: QueryExecutor::new(reader, CpuPool::with_threads(1).unwrap()),
        objects,
        sealer: sealer.clone(),
        destinations: towpath_outbound::Settings {
            guard: Guard::new(Policy {
                loopback: true,
                ..Policy::default()
            }),
            file_root: Some(folder.join("exports")),
            environment_credentials: None,
        },
        disk: DiskStatus::default(),
        clock: clock.clone(),
        ops,
        sandbox_host: Some(machine(clock, folder)),
        sandbox_nodes: NodeClient::new(store.clone(), &sealer),
        draining: CancellationToken::new(),
        limits,
        settings,
    }
}
