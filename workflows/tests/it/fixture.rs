//! A workspace with trace runs, whose jobs a test performs one by one.

mod performing;

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use axum::body::Bytes;
use tempfile::TempDir;
use towpath_domain::export::{self, AdmittedExport, DestinationConfig, DestinationKind, ExportEnd, ExportRequest};
use towpath_domain::{Clock, DestinationId, DiskStatuses, ExportId, JobId, ProjectId, Shard, TenantId, Timestamp};
use towpath_durable::{Engine, Registry};
use towpath_outbound::{Guard, Policy, Settings};
use towpath_store::destinations::{self, NewDestination};
use towpath_store::exports::runs::ExportRun;
use towpath_store::exports::{self, Export, runs};
use towpath_store::sealing::{Keys, Sealer};
use towpath_store::{Dialect, Options, Store, jobs, on, projects, quarantine};
use towpath_traces::accept::{self, AcceptedRequest, Request, Route};
use towpath_traces::body::{Encoding, Limits};
use towpath_traces::objects::Objects;
use towpath_traces::sample::{Plan, Sample, SampleOperations};
use towpath_traces::wal::{self, Wal};
use towpath_workflows::cpu_pool::CpuPool;
use towpath_workflows::services::{Retention, Sizes};
use towpath_workflows::{Services, flush_wal, registry, run_export, spawn_export};
use uuid::Uuid;

use crate::s3::S3;

pub const PROJECT: &str = "canal";
/// Rows of a file: the smallest possible number, so that small exports have several files.
pub const FILE_ROWS: u64 = 1024;
/// Trace runs per day: one full file and a rest.
pub const DAY_ROWS: u64 = 1280;

/// Runs each test on both databases.
macro_rules! on_both_databases {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name($crate::fixture::Database::Sqlite).await;
            })*
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                if let Some(server) = $crate::fixture::Database::postgres() {
                    super::$name(server).await;
                }
            })*
        }
    };
}
pub(crate) use on_both_databases;

/// The database of a fixture.
#[derive(Clone, Copy, Debug)]
pub enum Database {
    /// A SQLite file.
    Sqlite,
    /// A database on the test server, whose clock is that of the fixture.
    Postgres,
}

impl Database {
    /// On the server that `TOWPATH_TEST_POSTGRES` names.
    pub fn postgres() -> Option<Self> {
        towpath_testing::names_postgres().then_some(Self::Postgres)
    }

    /// Step between the moments to test: each takes longer on a database server.
    pub fn stride(&self) -> usize {
        match self {
            Self::Sqlite => 1,
            Self::Postgres => 2,
        }
    }
}

pub struct WorkflowFixture {
    pub world: Services,
    pub clock: Clock,
    pub s3: S3,
    pub tenant: TenantId,
    pub destination: DestinationId,
    pub sample: Sample,
    pub folder: TempDir,
    engine: Engine,
    registry: Registry<Services>,
    wal: Wal,
    /// Dropped last, with the database.
    _tables: towpath_testing::Database,
}

/// A running job.
pub type Work<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Ends the process of a suspended job: unlike a dropped one, it does nothing more.
pub fn kill(work: Work<'_>) {
    std::mem::forget(work);
}

pub async fn migrate(uri: &str) {
    let store = Store::open(uri, Options::default()).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
}

impl WorkflowFixture {
    /// A workspace with a destination, and trace runs for this many days from 2026-03-01 on.
    pub async fn new(days: u32) -> Self {
        Self::new_on(&Database::Sqlite, days).await
    }

    pub async fn new_on(database: &Database, days: u32) -> Self {
        let home = Self::empty_on(database, days).await;
        home.send(0..DAY_ROWS * u64::from(days), SampleOperations::Both).await;
        home
    }

    pub async fn empty(days: u32) -> Self {
        Self::empty_on(&Database::Sqlite, days).await
    }

    pub async fn empty_on(database: &Database, days: u32) -> Self {
        let Database::Postgres = database else {
            return Self::over(towpath_testing::Database::sqlite(migrate).await, days).await;
        };
        let copy = towpath_testing::Database::postgres(migrate).await;
        let home = Self::over(copy.expect("the server is named"), days).await;
        // The clock there stands still, too.
        home.execute("CREATE TABLE clock (at timestamptz NOT NULL)").await;
        home.execute("INSERT INTO clock VALUES ('epoch')").await;
        home.execute(
            "CREATE OR REPLACE FUNCTION towpath_now(known timestamptz DEFAULT NULL) RETURNS timestamptz
             LANGUAGE sql STABLE AS $$ SELECT coalesce(known, (SELECT at FROM clock)) $$",
        )
        .await;
        home.wait(Duration::ZERO).await;
        home
    }

    async fn execute(&self, text: &'static str) {
        let done = self
            .store()
            .write(async |tx| Ok(on!(tx, |conn| sqlx::query(text).execute(conn).await.map(drop))?));
        done.await.unwrap();
    }

    /// Moves the clock.
    pub async fn wait(&self, time: Duration) {
        self.clock.advance(time);
        if self.store().dialect() == Dialect::Postgres {
            let now = self.clock.now();
            let told = self.store().write(async |tx| {
                Ok(on!(tx, |conn| sqlx::query("UPDATE clock SET at = $1")
                    .bind(now)
                    .execute(conn)
                    .await
                    .map(drop))?)
            });
            told.await.unwrap();
        }
    }

    async fn over(tables: towpath_testing::Database, days: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::stopped(time("2026-03-10T12:00:00Z"));
        let options = Options {
            clock: clock.clone(),
            ..Options::default()
        };
        let store = Store::open(&tables.uri, options).await.unwrap();
        let mut registry = registry();
        registry.attach(&store);
        let objects = Objects::memory();
        let wal = Wal::new(
            store.clone(),
            objects.clone(),
            wal::Options::for_store(&objects),
            flush_wal::on_registered(flush_wal::DEFAULT_DELAY),
        );
        let world = Services {
            store: store.clone(),
            objects,
            sealer: Sealer::new(Keys::parse(&"01".repeat(32)).unwrap()),
            destinations: Settings {
                guard: Guard::new(Policy::development()),
                file_root: Some(folder.path().join("exports")),
                environment_credentials: None,
            },
            cpu_pool: CpuPool::with_threads(1).unwrap(),
            deployment_host: None,
            sandbox_host: None,
            disks: DiskStatuses::default(),
            sizes: Sizes {
                file_rows: FILE_ROWS,
                part_bytes: 12 << 10,
                ..Sizes::default()
            },
            exports: export::Limits::default(),
            retention: Retention::default(),
        };
        let s3 = S3::start().await;
        let tenant = TenantId::new();
        let plan = Plan {
            seed: 7,
            project: PROJECT.to_owned(),
            first_day: time("2026-03-01").day(),
            days,
        };
        let mut home = Self {
            engine: Engine::new(store, towpath_durable::Settings::default()),
            sample: Sample::new(plan),
            destination: DestinationId::nil(),
            world,
            clock,
            s3,
            tenant,
            folder,
            registry,
            wal,
            _tables: tables,
        };
        home.destination = home.add_destination(DestinationKind::S3, &home.s3.config("p/q")).await;
        home
    }

    pub fn store(&self) -> &Store {
        &self.world.store
    }

    /// Ends the ingest of this fixture. Until then, it reads its backlog every second.
    pub async fn close_ingest(&self) {
        self.wal.close().await;
    }

    pub async fn add_destination(&self, kind: DestinationKind, config: &DestinationConfig) -> DestinationId {
        let id = DestinationId::new();
        let credentials = (kind == DestinationKind::S3).then(|| {
            let given = S3::credentials();
            (
                destinations::seal(&self.world.sealer, self.tenant, id, &given),
                given.keys(),
            )
        });
        let new = NewDestination {
            id,
            kind,
            display_name: "d",
            config,
            credentials,
        };
        self.store()
            .write(async |tx| destinations::insert(tx, self.tenant, new).await)
            .await
            .unwrap();
        id
    }

    /// Sends trace runs like the official client, and waits for the acknowledgement.
    pub async fn send(&self, range: Range<u64>, which: SampleOperations) {
        let mut from = range.start;
        while from < range.end {
            let to = (from + 640).min(range.end);
            self.wal.append(self.accept(from..to, which)).await.unwrap();
            from = to;
        }
    }

    /// One request of the official client, not written yet.
    pub fn accept(&self, range: Range<u64>, which: SampleOperations) -> AcceptedRequest {
        let body = self.sample.body(range, which, Encoding::Zstd);
        let request = Request {
            tenant: self.tenant,
            route: Route::Multipart,
            content_type: &body.content_type,
            content_encoding: body.content_encoding,
            body: body.bytes,
            received_at: self.clock.now(),
        };
        accept::accept(request, &Limits::default()).unwrap()
    }

    /// Sends a JSON body, and waits for the acknowledgement.
    pub async fn append(&self, route: Route, body: &str) {
        let request = Request {
            tenant: self.tenant,
            route,
            content_type: "application/json",
            content_encoding: None,
            body: Bytes::copy_from_slice(body.as_bytes()),
            received_at: self.clock.now(),
        };
        let accepted = accept::accept(request, &Limits::default()).unwrap();
        self.append_accepted(accepted).await;
    }

    pub async fn append_accepted(&self, accepted: AcceptedRequest) {
        self.wal.append(accepted).await.unwrap();
    }

    pub const fn wal(&self) -> &Wal {
        &self.wal
    }

    /// The log of another process.
    pub fn another_wal(&self) -> Wal {
        let objects = &self.world.objects;
        Wal::new(
            self.store().clone(),
            objects.clone(),
            wal::Options::for_store(objects),
            flush_wal::on_registered(flush_wal::DEFAULT_DELAY),
        )
    }

    /// Open flushes of a workspace's shard, after due ones became ready.
    pub async fn lane_jobs(&self, tenant: TenantId) -> Vec<JobId> {
        while towpath_durable::ready_due(self.store()).await.unwrap() > 0 {}
        let key = flush_wal::lane(Shard::of(tenant)).key().to_owned();
        let jobs = self
            .store()
            .read(async |tx| jobs::in_lane(tx, &key, 10).await)
            .await
            .unwrap();
        jobs.into_iter().map(|job| job.id).collect()
    }

    /// Sends feedback with the key `good`.
    pub async fn give(&self, id: Uuid, run: Uuid, score: &str) {
        let body = format!(r#"{{"id":"{id}","run_id":"{run}","key":"good","score":{score}}}"#);
        self.submit(Route::Feedback, "application/json", body).await;
    }

    /// Sends a JSON body unchanged.
    pub async fn send_json(&self, route: Route, body: String) {
        self.submit(route, "application/json", body).await;
    }

    /// Sends a body, and waits for the acknowledgement.
    pub async fn submit(&self, route: Route, content_type: &str, body: impl Into<Bytes>) {
        let request = Request {
            tenant: self.tenant,
            route,
            content_type,
            content_encoding: None,
            body: body.into(),
            received_at: self.clock.now(),
        };
        let accepted = accept::accept(request, &Limits::default()).unwrap();
        self.wal.append(accepted).await.unwrap();
    }

    pub async fn project(&self) -> ProjectId {
        let found = self
            .store()
            .read(async |tx| projects::by_name(tx, self.tenant, PROJECT).await)
            .await
            .unwrap();
        found.expect("the sample was sent").id
    }

    /// Starts an export of whole days from 2026-03-01 on.
    pub async fn export(&self, days: u32) -> ExportId {
        let start = time("2026-03-01");
        let end = start.plus(Duration::from_secs(86_400 * u64::from(days)));
        self.export_as(|asked| (asked.start_time, asked.end_time) = (start, Some(end)))
            .await
    }

    pub async fn export_as(&self, change: impl FnOnce(&mut ExportRequest)) -> ExportId {
        let asked = self.admitted(change).await;
        let ExportEnd::At(end) = asked.end else {
            panic!("an export of one range")
        };
        let limits = self.world.exports;
        self.store()
            .write(async |tx| run_export::start(tx, self.tenant, &limits, &asked.spec, asked.start_time..end).await)
            .await
            .unwrap()
            .id
    }

    /// Starts a schedule from this time on.
    pub async fn schedule(&self, from: &str, hours: i64) -> ExportId {
        let asked = self
            .admitted(|asked| {
                (asked.start_time, asked.end_time) = (time(from), None);
                asked.interval_hours = Some(hours);
            })
            .await;
        let ExportEnd::Every { hours } = asked.end else {
            panic!("a schedule")
        };
        self.store()
            .write(async |tx| spawn_export::create(tx, self.tenant, &asked.spec, asked.start_time, hours).await)
            .await
            .unwrap()
    }

    async fn admitted(&self, change: impl FnOnce(&mut ExportRequest)) -> AdmittedExport {
        let mut asked = ExportRequest {
            destination: self.destination,
            project: self.project().await,
            start_time: time("2026-03-01"),
            end_time: Some(time("2026-03-02")),
            filter: None,
            format: None,
            format_version: None,
            compression: None,
            interval_hours: None,
            export_fields: None,
        };
        change(&mut asked);
        asked.admit().unwrap()
    }

    pub async fn cancel(&self, export: ExportId) -> towpath_store::Result<Export> {
        self.store()
            .write(async |tx| run_export::cancel(tx, self.tenant, export).await)
            .await
    }

    pub async fn read(&self, export: ExportId) -> Export {
        self.store()
            .read(async |tx| exports::get(tx, self.tenant, export).await)
            .await
            .unwrap()
    }

    /// The runs of an export, the first day first.
    pub async fn runs(&self, export: ExportId) -> Vec<ExportRun> {
        let mut rows = self
            .store()
            .read(async |tx| runs::list(tx, self.tenant, export).await)
            .await
            .unwrap();
        rows.reverse();
        rows
    }

    /// Waits until some session waits for a lock. PostgreSQL only.
    pub async fn until_somebody_waits_for_a_lock(&self) {
        let patience = std::time::Instant::now();
        while self
            .count(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
            )
            .await
            == 0
        {
            assert!(patience.elapsed() < Duration::from_secs(10), "nothing waits for a lock");
        }
    }

    pub async fn count(&self, text: &'static str) -> i64 {
        self.store()
            .read(async |tx| Ok(on!(tx, |conn| sqlx::query_scalar(text).fetch_one(conn).await)?))
            .await
            .unwrap()
    }

    /// The quarantine entries.
    pub async fn in_quarantine(&self) -> Vec<quarantine::Entry> {
        self.store()
            .read(async |tx| quarantine::list(tx, None, 100, 0).await)
            .await
            .unwrap()
    }

    /// All open jobs, for messages of failed assertions.
    pub async fn jobs(&self) -> String {
        let rows: Vec<(String, String, Timestamp, i64, i64)> = self
            .store()
            .read(async |tx| {
                Ok(on!(tx, |conn| sqlx::query_as(
                    "SELECT kind, state, run_at, attempt, lost_leases FROM job WHERE finished_at IS NULL ORDER BY id"
                )
                .fetch_all(conn)
                .await)?)
            })
            .await
            .unwrap();
        format!("{rows:?}")
    }

    /// What a process does after its predecessor was killed.
    pub async fn boot(&self) {
        let patience = std::time::Instant::now();
        loop {
            towpath_durable::release_earlier_boots(self.store()).await.unwrap();
            // On PostgreSQL a locked row is skipped. The session of dropped work may still be executing its last
            // statement.
            if self.count("SELECT count(*) FROM job WHERE state = 'running'").await == 0 {
                return;
            }
            assert!(
                patience.elapsed() < Duration::from_secs(60),
                "a job of a worker without a lease is still running: {}",
                self.jobs().await
            );
        }
    }

    /// The finished files of an export in the bucket, by day and number.
    pub fn files(&self, export: ExportId) -> BTreeMap<String, Bytes> {
        let keys = self
            .s3
            .keys()
            .into_iter()
            .filter(|key| key.contains(&export.to_string()) && key.ends_with(".parquet"));
        keys.map(|key| {
            let (folder, name) = key.rsplit_once('/').unwrap();
            let (_, partition) = folder.split_once("/year=").unwrap();
            let (_, number) = name.rsplit_once('-').unwrap();
            (format!("year={partition}/{number}"), self.s3.object(&key).unwrap())
        })
        .collect()
    }

    pub fn manifest(&self, export: ExportId) -> Option<serde_json::Value> {
        let text = self.s3.object(&format!("p/q/export_id={export}/_manifest.json"))?;
        Some(serde_json::from_slice(&text).unwrap())
    }

    /// Checks that nothing is held and nothing is left over.
    pub async fn assert_tidy(&self) {
        for (what, text) in [
            ("open jobs", "SELECT count(*) FROM job WHERE finished_at IS NULL"),
            ("pins", "SELECT count(*) FROM segment_pin"),
            ("uploads on record", "SELECT count(*) FROM export_upload"),
            (
                "runs at work",
                "SELECT count(*) FROM export_run WHERE finished_at IS NULL",
            ),
            (
                "exports at work",
                "SELECT count(*) FROM export WHERE finished_at IS NULL",
            ),
        ] {
            assert_eq!(self.count(text).await, 0, "{what}");
        }
        // A dropped upload aborts itself in a separate task.
        let patience = std::time::Instant::now();
        while self.s3.open_uploads() > 0 {
            assert!(
                patience.elapsed() < Duration::from_secs(180),
                "an upload in parts is left"
            );
            tokio::task::yield_now().await;
        }
    }
}

pub fn time(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}
