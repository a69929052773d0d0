//! A store and a folder of objects for one test.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Decimal128Type, Int64Type, TimestampNanosecondType};
use bytes::Bytes;
use chrono::NaiveDate;
use object_store::path::Path;
use towpath_domain::trace::ProjectRef;
use towpath_domain::{JobId, ProjectId, Shard, TenantId, Timestamp, TraceRunId, WalSegmentId};
use towpath_store::wal_segments::{Bounds, NewWalSegment, WalSegmentName};
use towpath_store::{Store, projects, quarantine, segments, wal_segments};
use towpath_testing::Database;
use towpath_traces::accept::{self, AcceptedRequest, Refusal, Request, Route};
use towpath_traces::body::Limits;
use towpath_traces::flush::{self, FlushResult, Options};
use towpath_traces::objects::Objects;
use towpath_traces::sample::{Body, Cell, Plan, Sample};
use towpath_traces::scan::{self, Scan};
use towpath_traces::schema::Selection;
use towpath_traces::wal::{self, OnRegistered, Wal, frame};

/// Runs each test on both databases.
macro_rules! on_both_databases {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::ingest::world::World::new().await).await;
            })*
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                if let Some(world) = $crate::ingest::world::World::postgres().await {
                    super::$name(world).await;
                }
            })*
        }
    };
}
pub(crate) use on_both_databases;

pub struct World {
    pub store: Store,
    pub objects: Objects,
    pub tenant: TenantId,
    pub folder: tempfile::TempDir,
    /// Dropped last: the database goes with it.
    _database: Database,
}

/// As much as there is.
pub const ALL: Bounds = Bounds {
    bytes: i64::MAX,
    decoded_bytes: i64::MAX,
};

pub const DAY: NaiveDate = NaiveDate::from_ymd_opt(2026, 3, 1).unwrap();

async fn migrate(uri: &str) {
    let store = Store::open(uri, towpath_store::Options::default()).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
}

/// As if another workspace had sent it.
pub fn sent_by(tenant: TenantId, mut accepted: AcceptedRequest) -> AcceptedRequest {
    accepted.frame.head.tenant = tenant;
    accepted
}

impl World {
    pub async fn new() -> Self {
        Self::on(Database::sqlite(migrate).await).await
    }

    /// On a database of its own in the server that `TOWPATH_TEST_POSTGRES` names.
    pub async fn postgres() -> Option<Self> {
        Some(Self::on(Database::postgres(migrate).await?).await)
    }

    /// On a database without tables.
    pub async fn empty(database: Database) -> Self {
        Self::on(database).await
    }

    async fn on(database: Database) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&database.uri, towpath_store::Options::default())
            .await
            .unwrap();
        let objects = Objects::folder(&folder.path().join("objects")).unwrap();
        Self {
            store,
            objects,
            tenant: TenantId::new(),
            folder,
            _database: database,
        }
    }

    pub fn wal(&self) -> Wal {
        let nothing: OnRegistered = Arc::new(|_tx, _| Box::pin(async { Ok(()) }));
        Wal::new(
            self.store.clone(),
            self.objects.clone(),
            wal::Options::for_store(&self.objects),
            nothing,
        )
    }

    pub fn accept(&self, body: &Body) -> AcceptedRequest {
        self.accept_on(
            Route::Multipart,
            &body.content_type,
            body.content_encoding,
            body.bytes.clone(),
        )
    }

    pub fn accept_json(&self, route: Route, json: &str) -> AcceptedRequest {
        self.accept_on(route, "application/json", None, Bytes::from(json.to_owned()))
    }

    pub fn accept_json_at(&self, route: Route, json: &str, received_at: Timestamp) -> AcceptedRequest {
        let request = Request {
            tenant: self.tenant,
            route,
            content_type: "application/json",
            content_encoding: None,
            body: Bytes::from(json.to_owned()),
            received_at,
        };
        accept::accept(request, &Limits::default()).unwrap()
    }

    fn accept_on(
        &self,
        route: Route,
        content_type: &str,
        content_encoding: Option<&str>,
        body: Bytes,
    ) -> AcceptedRequest {
        self.try_accept(route, content_type, content_encoding, body).unwrap()
    }

    pub fn try_accept(
        &self,
        route: Route,
        content_type: &str,
        content_encoding: Option<&str>,
        body: Bytes,
    ) -> Result<AcceptedRequest, Refusal> {
        let request = Request {
            tenant: self.tenant,
            route,
            content_type,
            content_encoding,
            body,
            received_at: Timestamp::parse("2026-03-01T12:00:00Z").unwrap(),
        };
        accept::accept(request, &Limits::default())
    }

    /// Writes one WAL segment, as the log does it.
    pub async fn unit(&self, accepted: &[AcceptedRequest]) -> WalSegmentId {
        let id = WalSegmentId::new();
        let path = wal::object_path(id);
        let pieces = frame::write(accepted.iter().map(|accepted| &accepted.frame));
        let bytes: u64 = frame::frame_lengths(&pieces).sum();
        self.objects.put(&path, pieces).await.unwrap();
        let tenant = self.tenant;
        let named: BTreeSet<&str> = accepted
            .iter()
            .flat_map(|accepted| &accepted.projects)
            .filter_map(|project| match project {
                ProjectRef::Name(name) => Some(name.as_str()),
                ProjectRef::Id(_) => None,
            })
            .collect();
        let named: Vec<_> = named.into_iter().map(|name| (tenant, name)).collect();
        let unit = NewWalSegment {
            id,
            tenant,
            byte_offset: frame::FIRST as i64,
            bytes: bytes as i64,
            decoded_bytes: accepted.iter().map(|accepted| accepted.decoded_bytes as i64).sum(),
            operations: 1,
        };
        self.store
            .write(async |tx| {
                let projects = projects::ensure_all(tx, &named).await?;
                let names = named
                    .iter()
                    .zip(projects)
                    .map(|((_, name), project_id)| WalSegmentName {
                        unit_id: id,
                        name: (*name).to_owned(),
                        project_id,
                    });
                wal_segments::register(tx, path.as_ref(), &[unit], &names.collect::<Vec<_>>()).await
            })
            .await
            .unwrap();
        id
    }

    /// Writes one object with a WAL segment of each of these workspaces, as the log does it. They name their projects
    /// by ids.
    pub async fn shared_unit(&self, sent: &[(TenantId, Vec<AcceptedRequest>)]) -> (Path, Vec<WalSegmentId>) {
        let path = wal::object_path(WalSegmentId::new());
        let pieces = frame::write(sent.iter().flat_map(|(_, own)| own).map(|accepted| &accepted.frame));
        let mut lengths = frame::frame_lengths(&pieces);
        let mut byte_offset = frame::FIRST;
        let mut new = Vec::new();
        for (tenant, own) in sent {
            let bytes: u64 = lengths.by_ref().take(own.len()).sum();
            new.push(NewWalSegment {
                id: WalSegmentId::new(),
                tenant: *tenant,
                byte_offset: byte_offset as i64,
                bytes: bytes as i64,
                decoded_bytes: own.iter().map(|accepted| accepted.decoded_bytes as i64).sum(),
                operations: 1,
            });
            byte_offset += bytes;
        }
        drop(lengths);
        self.objects.put(&path, pieces).await.unwrap();
        let registered = self
            .store
            .write(async |tx| wal_segments::register(tx, path.as_ref(), &new, &[]).await);
        registered.await.unwrap();
        (path, new.iter().map(|unit| unit.id).collect())
    }

    /// A project of another workspace.
    pub async fn project_of(&self, tenant: TenantId, name: &str) -> ProjectId {
        let made = self.store.write(async |tx| projects::ensure(tx, tenant, name).await);
        made.await.unwrap()
    }

    /// Flushes all open WAL segments and records it.
    pub async fn fold(&self) -> FlushResult {
        self.fold_with(&Options::default()).await
    }

    pub async fn fold_with(&self, options: &Options) -> FlushResult {
        let job = JobId::new();
        let taken = self.store.write(async |tx| {
            let mut taken = Vec::new();
            for shard in Shard::all() {
                taken.extend(wal_segments::take(tx, job, shard, ALL, &[]).await?);
            }
            Ok(taken)
        });
        let taken = taken.await.unwrap();
        let folded = flush::flush(&self.store, &self.objects, &taken, options, async |tenant, id, path| {
            self.store
                .write(async |tx| segments::intend(tx, tenant, id, path.as_ref(), Some(job)).await)
                .await
        })
        .await
        .unwrap();
        self.store
            .write(async |tx| flush::record(tx, job, &folded).await)
            .await
            .unwrap();
        folded
    }

    pub async fn project(&self, name: &str) -> ProjectId {
        self.project_if_there(name).await.unwrap()
    }

    pub async fn project_if_there(&self, name: &str) -> Option<ProjectId> {
        self.store
            .read(async |tx| projects::by_name(tx, self.tenant, name).await)
            .await
            .unwrap()
            .map(|project| project.id)
    }

    /// Every row of a project, all 29 columns, in order.
    pub async fn rows(&self, project: ProjectId) -> Vec<Vec<Cell>> {
        self.rows_of(self.tenant, project).await
    }

    /// Those of another workspace.
    pub async fn rows_of(&self, tenant: TenantId, project: ProjectId) -> Vec<Vec<Cell>> {
        let (first, last) = (
            NaiveDate::from_ymd_opt(1970, 1, 1).unwrap(),
            NaiveDate::from_ymd_opt(2100, 1, 1).unwrap(),
        );
        let parts = self
            .store
            .read(async |tx| segments::live_parts(tx, tenant, project, first, last).await)
            .await
            .unwrap();
        let request = scan::Request {
            tenant,
            project,
            parts: parts.iter().map(flush::part_ref).collect(),
            range: Timestamp::start_of(first)..Timestamp::start_of(last),
            after: None,
            selection: Selection::all(),
            prices: Arc::default(),
        };
        let mut scan = Scan::new(self.objects.store().clone(), request);
        let mut rows = Vec::new();
        while let Some(batch) = scan.next().await.unwrap() {
            rows.extend((0..batch.rows.num_rows()).map(|at| cells(&batch.rows, at)));
        }
        rows
    }

    pub async fn row(&self, project: ProjectId, id: TraceRunId) -> Option<Vec<Cell>> {
        let mut rows = self.rows(project).await;
        rows.retain(|row| row[0] == Cell::Text(id.to_string()));
        assert!(rows.len() < 2, "a trace run twice");
        rows.pop()
    }

    pub async fn quarantined(&self) -> Vec<quarantine::Entry> {
        self.store
            .read(async |tx| quarantine::list(tx, None, 100, 0).await)
            .await
            .unwrap()
    }

    pub async fn open_units(&self) -> usize {
        self.store
            .read(async |tx| wal_segments::open(tx, i64::MAX).await)
            .await
            .unwrap()
            .len()
    }
}

pub fn sample(seed: u64) -> Sample {
    Sample::new(Plan {
        seed,
        project: "canal".into(),
        first_day: DAY,
        days: 3,
    })
}

fn cells(rows: &RecordBatch, at: usize) -> Vec<Cell> {
    rows.columns().iter().map(|column| cell(column, at)).collect()
}

fn cell(column: &dyn Array, at: usize) -> Cell {
    use arrow::datatypes::DataType;
    if column.is_null(at) {
        return Cell::Null;
    }
    match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().value(at).into(),
        DataType::Boolean => Cell::Bool(column.as_boolean().value(at)),
        DataType::Int64 => Cell::Int(column.as_primitive::<Int64Type>().value(at)),
        DataType::Decimal128(20, 10) => Cell::Decimal(column.as_primitive::<Decimal128Type>().value(at)),
        DataType::Timestamp(_, _) => {
            let nanos = column.as_primitive::<TimestampNanosecondType>().value(at);
            assert_eq!(nanos % 1000, 0);
            Cell::Time(Timestamp::from_micros(nanos / 1000))
        }
        DataType::List(_) => {
            let list = column.as_list::<i32>().value(at);
            Cell::List(
                list.as_string::<i32>()
                    .iter()
                    .map(|text| text.unwrap().to_owned())
                    .collect(),
            )
        }
        other => panic!("a column of type {other}"),
    }
}

/// Position of a column.
pub fn column(name: &str) -> usize {
    towpath_traces::schema::EXPORT_FIELDS
        .iter()
        .position(|field| *field == name)
        .unwrap()
}
