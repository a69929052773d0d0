//! How long it takes to learn that trace runs are nowhere, and where they are, by the size of their workspace.
//!
//! `cargo run --release -p towpath-traces --example locate [-- MILLIONS…]` (1 and 10 unless said). A hundred million
//! take 2.5 GB of disk below the folder for temporary files.
#![expect(clippy::print_stdout, reason = "its purpose")]

use std::convert::Infallible;
use std::time::{Duration, Instant};

use towpath_domain::{ProjectId, RunIndexId, SegmentId, TenantId, Timestamp, TraceRunId};
use towpath_store::{Options, Store, run_index as catalog, segments};
use towpath_traces::flush::{NewSegment, RunLocation, catalog_parts};
use towpath_traces::objects::Objects;
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::row::Row;
use towpath_traces::run_index::{self, Entry, Writer};
use towpath_traces::segment;
use uuid::Uuid;

/// Ids of one lookup, as many as a fold asks for at once.
const BATCH: usize = 4096;
const BATCHES: usize = 50;
/// Index files of each size that is not the largest: as many as there are on average.
const OF_EACH_SIZE: u64 = 4;
const SMALLEST: u64 = 20_000;
const FACTOR: u64 = 8;
/// Segments that are not indexed yet, and their rows.
const SEGMENTS: u64 = 15;
const SEGMENT_ROWS: u64 = 20_000;

#[tokio::main]
async fn main() {
    let mut asked: Vec<u64> = std::env::args()
        .skip(1)
        .map(|text| text.parse().expect("millions of trace runs"))
        .collect();
    if asked.is_empty() {
        asked = vec![1, 10];
    }
    println!("{BATCH} ids a lookup, {SEGMENTS} segments of {SEGMENT_ROWS} rows that are not indexed");
    println!("millions  files  disk MB  memory MB  first ms  new µs/id  slowest µs/id  known ms");
    for millions in asked {
        Workspace::of(millions).await.measure(millions).await;
    }
}

struct Workspace {
    store: Store,
    objects: Objects,
    tenant: TenantId,
    random: Random,
    /// Some of the trace runs there are.
    known: Vec<TraceRunId>,
    files: usize,
    bytes: u64,
    _folder: tempfile::TempDir,
}

impl Workspace {
    async fn of(millions: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let uri = format!("sqlite://{}", folder.path().join("a.db").display());
        let store = Store::open(&uri, Options::default()).await.expect("a database");
        store.migrate().await.expect("a database");
        let mut workspace = Self {
            store,
            objects: Objects::folder(&folder.path().join("objects")).expect("a folder"),
            tenant: TenantId::new(),
            random: Random(millions),
            known: Vec::new(),
            files: 0,
            bytes: 0,
            _folder: folder,
        };
        let mut left = millions * 1_000_000;
        let mut size = SMALLEST;
        while left > 2 * size * OF_EACH_SIZE {
            for _ in 0..OF_EACH_SIZE {
                workspace.file(size).await;
                left -= size;
            }
            size *= FACTOR;
        }
        workspace.file(left).await;
        for _ in 0..SEGMENTS {
            workspace.segment().await;
        }
        workspace
    }

    fn place(&mut self) -> RunLocation {
        let year = Duration::from_secs(365 * 86_400);
        let start = self.random.below(u64::try_from(year.as_micros()).expect("it fits"));
        RunLocation {
            sort_time: Timestamp::from_micros(1_772_323_200_000_000).plus(Duration::from_micros(start)),
            project: ProjectId(Uuid::from_u128(u128::from(self.random.below(20)))),
        }
    }

    /// An index file of random ids, which are made in their order.
    async fn file(&mut self, entries: u64) {
        let id = RunIndexId::new();
        let (tenant, path) = (self.tenant, run_index::path(self.tenant, id));
        let intended = self
            .store
            .write(async |tx| catalog::intend(tx, tenant, id, path.as_ref(), None).await);
        intended.await.expect("an intent");
        let mut writer = Writer::new(&self.objects, tenant, id, entries).expect("a file");
        let step = u64::MAX / entries;
        let mut batch = Vec::with_capacity(1 << 16);
        for number in 0..entries {
            let high = number * step + self.random.below(step);
            let id = (u128::from(high) << 64) | u128::from(self.random.next());
            let entry = Entry {
                id: TraceRunId(Uuid::from_u128(id)),
                location: self.place(),
            };
            if number.is_multiple_of(10_007) {
                self.known.push(entry.id);
            }
            batch.push(entry);
            if batch.len() == 1 << 16 {
                writer.write(&batch).await.expect("room");
                batch.clear();
            }
        }
        writer.write(&batch).await.expect("room");
        let new = writer.finish::<Infallible>(&self.objects).await.expect("room");
        self.files += 1;
        self.bytes += new.bytes;
        let new = new.catalog();
        let published = self
            .store
            .write(async |tx| catalog::publish(tx, tenant, &[new], &[]).await);
        published.await.expect("a file");
    }

    async fn segment(&mut self) {
        let (tenant, id) = (self.tenant, SegmentId::new());
        let place = self.place();
        let day = Timestamp::start_of(place.sort_time.day());
        let rows: Vec<(ProjectId, Row)> = (0..SEGMENT_ROWS)
            .map(|_| {
                let start = day.plus(Duration::from_micros(self.random.below(86_400_000_000)));
                let operation = Operation {
                    verb: Verb::Post,
                    id: TraceRunId(self.random.id()),
                    project: None,
                    fields: Fields {
                        start_time: Some(start),
                        ..Fields::default()
                    },
                };
                (place.project, Row::from_operation(operation, 1))
            })
            .collect();
        let path = segment::path(tenant, id);
        let written = segment::write(self.objects.store().clone(), path, tenant, rows).await;
        let written = written.expect("room").expect("rows");
        let new = NewSegment { tenant, id, written };
        let published = self.store.write(async |tx| {
            let int = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            let (rows, bytes) = (int(new.written.rows), int(new.written.bytes));
            segments::intend(tx, tenant, id, new.written.path.as_ref(), None).await?;
            segments::publish(tx, tenant, id, rows, bytes, &catalog_parts(&new)).await
        });
        published.await.expect("a segment");
    }

    async fn lookup(&self, ids: &[TraceRunId]) -> (Duration, usize) {
        let began = Instant::now();
        let found = run_index::locate(&self.store, &self.objects, self.tenant, ids).await;
        (began.elapsed(), found.expect("places").len())
    }

    async fn measure(mut self, millions: u64) {
        let (first, _) = self.new_ids().await;
        let mut times = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            let (time, found) = self.new_ids().await;
            assert_eq!(found, 0, "these are new");
            times.push(time);
        }
        let memory = self.objects.index_cache_bytes();
        let apart = (self.known.len() / BATCH).max(1);
        let ids: Vec<TraceRunId> = self.known.iter().copied().step_by(apart).take(BATCH).collect();
        let (known, found) = self.lookup(&ids).await;
        assert_eq!(found, ids.len(), "these are there");
        let each = |time: Duration| time.as_secs_f64() * 1e6 / BATCH as f64;
        let mean = each(times.iter().sum::<Duration>() / u32::try_from(BATCHES).expect("it fits"));
        let slowest = each(times.into_iter().max().unwrap_or_default());
        println!(
            "{millions:8}  {:5}  {:7}  {:9}  {:8.1}  {mean:9.2}  {slowest:13.2}  {:.1} for {}",
            self.files,
            self.bytes >> 20,
            memory >> 20,
            first.as_secs_f64() * 1e3,
            known.as_secs_f64() * 1e3,
            ids.len(),
        );
    }

    async fn new_ids(&mut self) -> (Duration, usize) {
        let ids: Vec<TraceRunId> = (0..BATCH).map(|_| TraceRunId(self.random.id())).collect();
        self.lookup(&ids).await
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn id(&mut self) -> Uuid {
        Uuid::from_u128((u128::from(self.next()) << 64) | u128::from(self.next()))
    }
}
