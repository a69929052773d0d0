//! Traces with runs in many segments.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use towpath_domain::filter::Filter;
use towpath_domain::trace::DottedOrderPart;
use towpath_domain::{ProjectId, SegmentId, TenantId, Timestamp, TraceRunId};
use towpath_query::{Direction, Page, Position, Predicate, Reader, RunQuery, Snapshot};
use towpath_store::{Options, Store, segments};
use towpath_testing::Database;
use towpath_testing::objects::{RecordingStore, Request};
use towpath_traces::flush::{self, NewSegment};
use towpath_traces::objects::Objects;
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::row::{Key, Row};
use towpath_traces::segment;
use uuid::Uuid;

const START: i64 = 1_772_366_400_000_000;
const ALL: std::ops::Range<Timestamp> = Timestamp::from_micros(i64::MIN)..Timestamp::from_micros(i64::MAX);

struct World {
    store: Store,
    objects: Objects,
    watched: Arc<RecordingStore>,
    tenant: TenantId,
    project: ProjectId,
    seq: std::cell::Cell<i64>,
    _database: Database,
}

async fn migrate(uri: &str) {
    let store = Store::open(uri, Options::default()).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
}

fn id(number: u64) -> Uuid {
    // Distributed over the whole range, like random ids.
    Uuid::from_u128(u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(number))
}

/// A span: it knows its trace and its parent.
fn span(number: u64, parent: Option<u64>, trace: Option<u64>, verb: Verb, fields: Fields) -> Operation {
    let start = START + i64::try_from(number).unwrap() * 1_000_000;
    Operation {
        verb,
        id: TraceRunId(id(number)),
        project: None,
        fields: Fields {
            start_time: (verb == Verb::Post).then(|| Timestamp::from_micros(start)),
            parent_run_id: parent.map(id),
            trace_id: trace.map(id),
            ..fields
        },
    }
}

fn post(number: u64, parent: Option<u64>, trace: Option<u64>) -> Operation {
    span(number, parent, trace, Verb::Post, Fields::default())
}

fn place(number: u64) -> Timestamp {
    Timestamp::from_micros(START + i64::try_from(number).unwrap() * 1_000_000)
}

impl World {
    async fn new() -> Self {
        let database = Database::sqlite(migrate).await;
        let store = Store::open(&database.uri, Options::default()).await.unwrap();
        let watched = RecordingStore::new(Arc::new(InMemory::new()));
        let below: Arc<dyn ObjectStore> = Arc::clone(&watched) as _;
        Self {
            store,
            objects: Objects::from_store(below),
            watched,
            tenant: TenantId::new(),
            project: ProjectId::new(),
            seq: std::cell::Cell::new(0),
            _database: database,
        }
    }

    /// A segment with these operations.
    async fn segment(&self, operations: impl IntoIterator<Item = (ProjectId, u64, Operation)>) {
        let rows: Vec<(ProjectId, Row)> = operations
            .into_iter()
            .map(|(project, number, operation)| {
                self.seq.set(self.seq.get() + 1);
                let mut row = Row::from_operation(operation, self.seq.get());
                row.location(place(number));
                (project, row)
            })
            .collect();
        let (tenant, id) = (self.tenant, SegmentId::new());
        let path = segment::path(tenant, id);
        let intended = self
            .store
            .write(async |tx| segments::intend(tx, tenant, id, path.as_ref(), None).await);
        intended.await.unwrap();
        let written = segment::write(Arc::clone(self.objects.store()), path, tenant, rows).await;
        let new = NewSegment {
            tenant,
            id,
            written: written.unwrap().unwrap(),
        };
        let parts = flush::catalog_parts(&new);
        let (rows, bytes) = (new.written.rows as i64, new.written.bytes as i64);
        let published = self
            .store
            .write(async |tx| segments::publish(tx, tenant, id, rows, bytes, &parts).await);
        published.await.unwrap();
    }

    async fn one(&self, number: u64, operation: Operation) {
        self.segment([(self.project, number, operation)]).await;
    }

    /// Segments of other traces at the same time.
    async fn others(&self, segments: u64) {
        self.others_from(0, segments).await;
    }

    /// Segments of other traces, each of three seconds from second `first` on.
    async fn others_from(&self, first: u64, segments: u64) {
        for number in 0..segments {
            let other = 1_000_000 + number;
            let posts = (first..first + 3).map(|run| (self.project, run, post(other * 10 + run, None, Some(other))));
            let posts = posts.map(|(project, run, mut post)| {
                post.fields.start_time = Some(place(run));
                (project, run, post)
            });
            self.segment(posts).await;
        }
    }

    async fn snapshot(&self) -> Snapshot {
        let reader = Reader::new(self.store.clone(), self.objects.clone());
        reader.snapshot(self.tenant).await.unwrap()
    }

    async fn row(&self, snapshot: &Snapshot, number: u64) -> (ProjectId, Row) {
        let position = Position {
            key: Key {
                sort_time: place(number),
                id: TraceRunId(id(number)),
            },
            project: self.project,
        };
        snapshot.rows(&[position]).await.unwrap().remove(0)
    }

    /// How often each segment was opened since the last call.
    fn opened(&self) -> HashMap<object_store::path::Path, usize> {
        let mut opened = HashMap::new();
        for request in self.watched.requests() {
            if let Request::End(path) = request {
                *opened.entry(path).or_default() += 1;
            }
        }
        opened
    }
}

async fn trace(snapshot: &Snapshot, trace: u64, projects: Option<&[ProjectId]>, filter: &str) -> Page {
    let filter = Filter::parse(&format!("and(eq(trace_id, \"{}\"), {filter})", id(trace))).unwrap();
    let extent = snapshot
        .extent(&filter.traces().unwrap(), projects, &ALL)
        .await
        .unwrap();
    let question = RunQuery {
        projects: extent.projects(),
        range: extent.clip_range(&ALL),
        extent: Some(extent),
        predicate: Predicate::new(Some(&filter), &[]).unwrap(),
        direction: Direction::Oldest,
        after: None,
        limit: 1000,
    };
    snapshot.page(&question).await.unwrap()
}

fn ids(page: &Page) -> BTreeSet<Uuid> {
    page.rows.iter().map(|(_, row)| row.id().0).collect()
}

#[tokio::test]
async fn the_runs_of_a_trace_are_found_in_all_segments_and_projects() {
    let world = World::new().await;
    world.others(30).await;
    // The root has another id than the trace and arrives last; one run is a month away, one in another project.
    let elsewhere = ProjectId::new();
    world.one(2, post(2, Some(1), Some(77))).await;
    world.one(2_600_000, post(2_600_000, Some(2), Some(77))).await;
    world.segment([(elsewhere, 3, post(3, Some(1), Some(77)))]).await;
    // A patch without its trace and parent.
    let patch = Fields {
        error: Some("late".to_owned()),
        ..Fields::default()
    };
    world.one(2, span(2, None, None, Verb::Patch, patch)).await;
    let snapshot = world.snapshot().await;
    let numbers = |numbers: &[u64]| -> BTreeSet<Uuid> { numbers.iter().map(|number| id(*number)).collect() };
    let everything = "or(eq(error, null), neq(error, null))";
    let page = trace(&snapshot, 77, None, everything).await;
    assert_eq!(ids(&page), numbers(&[2, 3, 2_600_000]));
    world.one(1, post(1, None, Some(77))).await;
    let snapshot = world.snapshot().await;
    world.opened();
    let page = trace(&snapshot, 77, None, everything).await;
    assert_eq!(ids(&page), numbers(&[1, 2, 3, 2_600_000]));
    assert_eq!(page.rows[1].1.fields().error.as_deref(), Some("late"));
    let opened = world.opened();
    assert_eq!(opened.len(), 35);
    assert_eq!(opened.values().filter(|times| **times == 1).count(), 30, "{opened:?}");
    // A patch counts, wherever it is stored.
    assert_eq!(
        ids(&trace(&snapshot, 77, None, "neq(error, null)").await),
        numbers(&[2])
    );
    let page = trace(&snapshot, 77, None, "eq(error, null)").await;
    assert_eq!(ids(&page), numbers(&[1, 3, 2_600_000]));
    let named = [world.project];
    assert_eq!(
        ids(&trace(&snapshot, 77, Some(&named), everything).await),
        numbers(&[1, 2, 2_600_000])
    );
    assert!(trace(&snapshot, 78, None, everything).await.rows.is_empty());
    // Counted in the same row groups.
    let traces = BTreeSet::from([id(77)]);
    let extent = snapshot.extent(&traces, None, &ALL).await.unwrap();
    let filter = Filter::parse(&format!("eq(trace_id, \"{}\")", id(77))).unwrap();
    let predicate = Predicate::new(Some(&filter), &[]).unwrap();
    let counted = snapshot
        .statistics(&extent.projects(), ALL, Some(&extent), &predicate)
        .await
        .unwrap();
    assert_eq!((counted.runs, counted.errors), (4, 1));
}

/// The run numbers of the links of a path.
fn numbers(links: &[DottedOrderPart]) -> Vec<u64> {
    links.iter().map(|link| link.id.as_u128() as u64).collect()
}

#[tokio::test]
async fn the_way_to_a_deep_run_opens_each_segment_once() {
    for of in [Some(77), None] {
        let world = World::new().await;
        world.others(20).await;
        for number in 1..=50 {
            let parent = (number > 1).then(|| number - 1);
            world.one(number, post(number, parent, of)).await;
            if number % 5 == 0 {
                world.others(1).await;
            }
        }
        let snapshot = world.snapshot().await;
        let leaf = world.row(&world.snapshot().await, 50).await;
        world.opened();
        let ways = snapshot.ancestry(&[leaf]).await.unwrap();
        assert_eq!(numbers(&ways[&TraceRunId(id(50))]), (1..=50).collect::<Vec<u64>>());
        let opened = world.opened();
        assert!(opened.values().all(|times| *times == 1), "{of:?}: {opened:?}");
    }
}

#[tokio::test]
async fn a_way_that_is_not_complete_is_looked_for_once() {
    let world = World::new().await;
    world.others(40).await;
    // The parent of the seventh run is missing.
    for number in 7..=10 {
        let parent = Some(number - 1);
        world.one(number, post(number, parent, Some(77))).await;
    }
    let snapshot = world.snapshot().await;
    let leaf = world.row(&world.snapshot().await, 10).await;
    world.opened();
    assert!(snapshot.ancestry(&[leaf]).await.unwrap().is_empty());
    let opened = world.opened();
    assert!(opened.values().all(|times| *times == 1), "{opened:?}");
    assert_eq!(opened.len(), 44);
}

#[tokio::test]
async fn a_way_whose_newest_runs_are_known_looks_no_further() {
    let world = World::new().await;
    // At another time: all segments of a run's time are merged.
    world.others_from(100, 60).await;
    for number in 1..=3 {
        let parent = (number > 1).then(|| number - 1);
        world.one(number, post(number, parent, Some(77))).await;
    }
    let snapshot = world.snapshot().await;
    let leaf = world.row(&world.snapshot().await, 3).await;
    world.opened();
    let ways = snapshot.ancestry(&[leaf]).await.unwrap();
    assert_eq!(numbers(&ways[&TraceRunId(id(3))]), [1, 2, 3]);
    assert!(world.opened().len() <= 16);
}

/// The row group that is read first knows less than another one.
#[tokio::test]
async fn a_way_follows_what_is_known_of_all_parts_of_a_run() {
    let world = World::new().await;
    world.one(1, post(1, None, Some(77))).await;
    world.one(2, post(2, None, None)).await;
    world.others(20).await;
    world.one(3, post(3, Some(2), Some(77))).await;
    // Reported later: its parent is the first run. Reported last: nothing about the parent.
    world
        .one(2, span(2, Some(1), Some(77), Verb::Patch, Fields::default()))
        .await;
    let patch = Fields {
        name: Some("late".to_owned()),
        ..Fields::default()
    };
    world.one(2, span(2, None, None, Verb::Patch, patch)).await;
    let snapshot = world.snapshot().await;
    let leaf = world.row(&snapshot, 3).await;
    let ways = snapshot.ancestry(&[leaf]).await.unwrap();
    assert_eq!(numbers(&ways[&TraceRunId(id(3))]), [1, 2, 3]);
}
