//! Segments of generated operations in a store in memory.

use std::sync::Arc;

use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use towpath_domain::{ProjectId, SegmentId, TenantId, Timestamp};
use towpath_traces::operation::Operation;
use towpath_traces::row::{Key, Row};
use towpath_traces::scan::{PartRef, Request, Scan, ScanBatch};
use towpath_traces::schema::Selection;
use towpath_traces::segment::{self, Written};
use uuid::Uuid;

use super::generate::Random;

pub const TENANT: TenantId = TenantId(Uuid::from_u128(0xaaaa));
pub const PROJECT: ProjectId = ProjectId(Uuid::from_u128(0xbbbb));
pub const OTHER: ProjectId = ProjectId(Uuid::from_u128(0xcccc));

pub fn time(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

pub struct World {
    pub store: Arc<dyn ObjectStore>,
    pub accepted: Vec<(i64, Operation)>,
    pub segments: Vec<Written>,
}

impl World {
    pub fn empty() -> Self {
        Self {
            store: Arc::new(InMemory::new()),
            accepted: Vec::new(),
            segments: Vec::new(),
        }
    }

    /// Numbers the operations in the order given, then spreads them over `flushes` segments: mostly near where they
    /// were accepted, some far away, so that the parts of one trace run meet in the scan.
    pub async fn of(operations: Vec<Operation>, folds: usize, seed: u64) -> Self {
        let mut world = Self::empty();
        let mut random = Random::new(seed);
        world.accepted = operations
            .into_iter()
            .enumerate()
            .map(|(at, operation)| (at as i64, operation))
            .collect();
        let mut spread: Vec<Vec<(i64, Operation)>> = vec![Vec::new(); folds];
        for (at, operation) in world.accepted.iter().enumerate() {
            let near = (at * folds / world.accepted.len() + random.below(2)).min(folds - 1);
            let fold = if random.one_in(10) { random.below(folds) } else { near };
            spread[fold].push(operation.clone());
        }
        for mut fold in spread {
            random.shuffle(&mut fold);
            world.write(PROJECT, fold).await;
        }
        world
    }

    /// Writes one segment, with a foreign project's rows among them.
    pub async fn write(&mut self, project: ProjectId, operations: Vec<(i64, Operation)>) {
        let sort_time = |id| {
            let own = |(_, known): &&(i64, Operation)| known.id == id && known.sort_time().is_some();
            self.accepted.iter().find(own).and_then(|(_, known)| known.sort_time())
        };
        let mut rows: Vec<(ProjectId, Row)> = Vec::new();
        for (number, (seq, operation)) in operations.into_iter().enumerate() {
            let mut row = Row::from_operation(operation, seq);
            if row.key().is_none() {
                row.location(sort_time(row.id()).unwrap());
            }
            if number.is_multiple_of(50) {
                rows.push((OTHER, row.clone()));
            }
            rows.push((project, row));
        }
        let path = segment::path(TENANT, SegmentId::new());
        self.segments
            .extend(segment::write(self.store.clone(), path, TENANT, rows).await.unwrap());
    }

    pub fn parts(&self, project: ProjectId) -> Vec<PartRef> {
        let all = self
            .segments
            .iter()
            .flat_map(|segment| segment.parts.iter().map(|part| (segment.path.clone(), part)));
        all.filter(|(_, part)| part.project == project)
            .map(|(path, part)| PartRef {
                path,
                row_group: part.row_group,
                min_sort_time: part.min_sort_time,
                max_sort_time: part.max_sort_time,
            })
            .collect()
    }

    pub fn request(&self) -> Request {
        Request {
            tenant: TENANT,
            project: PROJECT,
            parts: self.parts(PROJECT),
            range: time("2026-01-01")..time("2027-01-01"),
            after: None,
            selection: Selection::all(),
            prices: Arc::default(),
        }
    }

    pub fn scan(&self, request: Request) -> Scan {
        Scan::new(self.store.clone(), request)
    }

    pub async fn read(&self, request: Request) -> Vec<ScanBatch> {
        drain(self.scan(request)).await
    }

    pub async fn objects(&self) -> Vec<String> {
        let listed: Vec<_> = self
            .store
            .list(None)
            .map_ok(|object| object.location.to_string())
            .try_collect()
            .await
            .unwrap();
        let mut listed: Vec<String> = listed
            .into_iter()
            .filter(|path| !path.starts_with("segments/"))
            .collect();
        listed.sort();
        listed
    }

    pub async fn bytes(&self, path: &object_store::path::Path) -> bytes::Bytes {
        self.store.get(path).await.unwrap().bytes().await.unwrap()
    }
}

pub async fn drain(mut scan: Scan) -> Vec<ScanBatch> {
    let mut batches = Vec::new();
    while let Some(batch) = scan.next().await.unwrap() {
        assert_eq!(batch.keys.len(), batch.rows.num_rows());
        assert!(batch.keys.len() <= 4096);
        batches.push(batch);
    }
    batches
}

pub fn keys(batches: &[ScanBatch]) -> Vec<Key> {
    batches.iter().flat_map(|batch| batch.keys.iter().copied()).collect()
}
