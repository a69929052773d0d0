//! A workspace with segments and index files, and where its trace runs are.

use super::*;

/// A workspace, and where its trace runs are.
pub(super) struct Library {
    pub(super) world: World,
    pub(super) objects: Objects,
    pub(super) reads: Arc<CountingStore>,
    pub(super) random: Random,
    pub(super) projects: Vec<ProjectId>,
    pub(super) places: BTreeMap<TraceRunId, BTreeSet<RunLocation>>,
    /// Ids that were given several places, as earlier builds did.
    pub(super) ambiguous: BTreeSet<TraceRunId>,
}

impl Library {
    pub(super) async fn new(world: World, seed: u64) -> Self {
        let reads = Arc::new(CountingStore::default());
        let mut library = Self {
            objects: Objects::from_store(reads.clone()),
            reads,
            random: Random::new(seed),
            projects: Vec::new(),
            places: BTreeMap::new(),
            ambiguous: BTreeSet::new(),
            world,
        };
        for number in 0..4 {
            library.project(&format!("project {number}")).await;
        }
        library
    }

    pub(super) fn tenant(&self) -> TenantId {
        self.world.tenant
    }

    pub(super) async fn read<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> towpath_store::Result<T>) -> T {
        self.world.store.read(f).await.unwrap()
    }

    pub(super) async fn write<T>(&self, f: impl AsyncFnOnce(&mut Tx<'_>) -> towpath_store::Result<T>) -> T {
        self.world.store.write(f).await.unwrap()
    }

    pub(super) async fn project(&mut self, name: &str) -> ProjectId {
        let new = NewProject {
            name: name.to_owned(),
            ..NewProject::default()
        };
        let tenant = self.tenant();
        let made = self.write(async |tx| projects::create(tx, tenant, &new).await).await.id;
        self.projects.push(made);
        made
    }

    pub(super) fn id(&mut self) -> TraceRunId {
        TraceRunId(self.random.id())
    }

    pub(super) fn ids(&mut self, count: usize) -> Vec<TraceRunId> {
        (0..count).map(|_| self.id()).collect()
    }

    /// Somewhere in these projects, on one of five days.
    pub(super) fn place(&mut self) -> RunLocation {
        let project = self.projects[self.random.below(self.projects.len())];
        let start = Timestamp::start_of(DAY).plus(Duration::from_secs(self.random.below(5 * 86_400) as u64));
        RunLocation {
            sort_time: start.plus(Duration::from_micros(self.random.below(1_000_000) as u64)),
            project,
        }
    }

    /// Some new trace runs.
    pub(super) fn rows(&mut self, count: usize) -> Vec<Entry> {
        (0..count)
            .map(|_| Entry {
                id: self.id(),
                location: self.place(),
            })
            .collect()
    }

    pub(super) fn note(&mut self, rows: &[Entry]) {
        for row in rows {
            let places = self.places.entry(row.id).or_default();
            places.insert(row.location);
            if places.len() > 1 {
                self.ambiguous.insert(row.id);
            }
        }
    }

    /// Writes a segment, which no one sees yet.
    pub(super) async fn segment(&self, rows: &[Entry]) -> NewSegment {
        let (tenant, id) = (self.tenant(), SegmentId::new());
        let rows = rows.iter().map(|entry| {
            let operation = Operation {
                verb: Verb::Post,
                id: entry.id,
                project: None,
                fields: Fields {
                    start_time: Some(entry.location.sort_time),
                    ..Fields::default()
                },
            };
            (entry.location.project, Row::from_operation(operation, 1))
        });
        let path = segment::path(tenant, id);
        let written = segment::write(self.objects.store().clone(), path, tenant, rows).await;
        let written = written.unwrap().unwrap();
        NewSegment { tenant, id, written }
    }

    /// Publishes these trace runs in one segment.
    pub(super) async fn publish(&mut self, rows: &[Entry]) {
        let new = self.segment(rows).await;
        self.write(async |tx| bring_in(tx, &new).await).await;
        self.note(rows);
    }

    pub(super) async fn unindexed(&self) -> Vec<segments::Segment> {
        let tenant = self.tenant();
        self.read(async |tx| catalog::unindexed(tx, tenant, 10_000).await).await
    }

    pub(super) async fn live(&self) -> Vec<IndexFile> {
        let tenant = self.tenant();
        self.read(async |tx| catalog::live(tx, tenant).await).await
    }

    pub(super) async fn intend(&self, id: RunIndexId, path: &Path) -> Result<(), Infallible> {
        let tenant = self.tenant();
        self.write(async |tx| catalog::intend(tx, tenant, id, path.as_ref(), None).await)
            .await;
        Ok(())
    }

    /// Brings these segments into the index.
    pub(super) async fn index(&self, waiting: &[segments::Segment]) {
        let tenant = self.tenant();
        let ids: Vec<SegmentId> = waiting.iter().map(|segment| segment.id).collect();
        let parts = self.read(async |tx| segments::parts_of(tx, tenant, &ids).await).await;
        let indexed: Vec<SegmentToIndex> = waiting
            .iter()
            .map(|segment| SegmentToIndex {
                path: Path::from(segment.path.as_str()),
                row_groups: parts
                    .iter()
                    .filter(|part| part.segment_id == segment.id)
                    .map(|part| (part.row_group as usize, part.project_id))
                    .collect(),
            })
            .collect();
        let new = run_index::build(&self.objects, tenant, &indexed, async |_, id, path: &Path| {
            self.intend(id, path).await
        })
        .await
        .unwrap();
        let new: Vec<_> = new.iter().map(NewIndexFile::catalog).collect();
        self.write(async |tx| catalog::publish(tx, tenant, &new, &ids).await)
            .await;
    }

    pub(super) async fn merge(&self, files: &[IndexFile], keep_from: Option<NaiveDate>) {
        let tenant = self.tenant();
        let old: Vec<RunIndexId> = files.iter().map(|file| file.id).collect();
        let paths: Vec<Path> = files.iter().map(|file| Path::from(file.path.as_str())).collect();
        let entries = files.iter().map(|file| file.entries as u64).sum();
        let (store, objects) = (&self.world.store, &self.objects);
        let new = run_index::merge(
            store,
            objects,
            tenant,
            &paths,
            entries,
            keep_from,
            async |_, id, path: &Path| self.intend(id, path).await,
        )
        .await
        .unwrap();
        let new: Vec<_> = new.iter().map(NewIndexFile::catalog).collect();
        self.write(async |tx| catalog::replace(tx, tenant, &old, &new).await)
            .await;
    }

    /// Brings one day of a project together.
    pub(super) async fn compact(&self, project: ProjectId, day: NaiveDate) {
        let tenant = self.tenant();
        let parts = self
            .read(async |tx| segments::live_parts(tx, tenant, project, day, day).await)
            .await;
        if parts.is_empty() {
            return;
        }
        let refs = parts.iter().map(part_ref).collect();
        let of = Day { tenant, project, day };
        let new = compact::compact(
            &self.objects,
            &of,
            refs,
            &Pricing::default(),
            async |tenant, id, path: &Path| {
                self.world
                    .store
                    .write(async |tx| segments::intend(tx, tenant, id, path.as_ref(), None).await)
                    .await
            },
        )
        .await
        .unwrap();
        let new: Vec<Replacement> = new
            .iter()
            .map(|segment| Replacement {
                id: segment.id,
                rows: segment.written.rows as i64,
                bytes: segment.written.bytes as i64,
                parts: catalog_parts(segment),
                price_version: segment.written.price_version,
            })
            .collect();
        self.write(async |tx| replace::replace(tx, tenant, &parts, &new, true).await)
            .await;
    }

    pub(super) async fn delete(&mut self, project: ProjectId) {
        let tenant = self.tenant();
        self.write(async |tx| {
            projects::delete(tx, tenant, project).await?;
            replace::retire_project(tx, tenant, project).await
        })
        .await;
        self.projects.retain(|known| *known != project);
        for places in self.places.values_mut() {
            places.retain(|place| place.project != project);
        }
    }

    /// Publishes an index file of these entries, which no segment has.
    pub(super) async fn file(&mut self, mut entries: Vec<Entry>) -> NewIndexFile {
        entries.sort_unstable();
        self.note(&entries);
        let (tenant, id) = (self.tenant(), RunIndexId::new());
        let mut writer = Writer::new(&self.objects, tenant, id, entries.len() as u64).unwrap();
        self.intend(id, &run_index::path(tenant, id)).await.unwrap();
        writer.write(&entries).await.unwrap();
        let new = writer.finish::<Infallible>(&self.objects).await.unwrap();
        let written = new.catalog();
        self.write(async |tx| catalog::publish(tx, tenant, &[written], &[]).await)
            .await;
        new
    }

    pub(super) async fn locate(&self, ids: &[TraceRunId]) -> BTreeMap<TraceRunId, BTreeSet<RunLocation>> {
        let found = self.try_locate(ids).await.unwrap();
        assert!(found.is_sorted(), "in the order of ids");
        let mut places: BTreeMap<TraceRunId, BTreeSet<RunLocation>> = BTreeMap::new();
        for (id, place) in found {
            assert!(places.entry(id).or_default().insert(place), "a place twice");
        }
        places
    }

    pub(super) async fn try_locate(&self, ids: &[TraceRunId]) -> Result<Vec<(TraceRunId, RunLocation)>, LocateError> {
        run_index::locate(&self.world.store, &self.objects, self.tenant(), ids).await
    }

    /// Looks for every trace run there is, and for some that there are not.
    pub(super) async fn check(&mut self, after: &str) {
        let unknown = self.ids(20);
        let mut ids: Vec<TraceRunId> = self.places.keys().copied().chain(unknown).collect();
        self.random.shuffle(&mut ids);
        let found = self.locate(&ids).await;
        let none = BTreeSet::new();
        for id in ids {
            let found = found.get(&id).unwrap_or(&none);
            let expected = self.places.get(&id).unwrap_or(&none);
            if self.ambiguous.contains(&id) {
                assert!(found.is_subset(expected), "{id} after {after}: {found:?}, {expected:?}");
            } else {
                assert_eq!(found, expected, "{id} after {after}");
            }
        }
    }
}

pub(super) async fn bring_in(tx: &mut Tx<'_>, new: &NewSegment) -> towpath_store::Result<()> {
    segments::intend(tx, new.tenant, new.id, new.written.path.as_ref(), None).await?;
    let (rows, bytes) = (new.written.rows as i64, new.written.bytes as i64);
    segments::publish(tx, new.tenant, new.id, rows, bytes, &catalog_parts(new)).await
}
