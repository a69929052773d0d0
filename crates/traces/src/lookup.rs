//! Lookup of trace runs by id or trace id.
//!
//! For each segment the footer is checked first, which has the smallest and largest id of each row group, then the
//! bloom filters of the remaining row groups, all in one request. Only row groups that neither excludes are read.
//! Segments of earlier builds have no filter on trace ids; their row groups are read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectStore;
use object_store::path::Path;
use parking_lot::Mutex;
use towpath_domain::{ProjectId, TraceRunId};
use uuid::Uuid;

use crate::columnar::Result;
use crate::row::Key;
use crate::scan::PartRef;
use crate::schema::position;
use crate::segment::{Filters, Footer, Segment};
pub use crate::segment::{Hit, Lineage};

/// Segments that are asked at the same time.
const AT_ONCE: usize = 16;
/// Bytes of footers and filters that are kept.
const KEPT: usize = 64 << 20;
/// Runs of a project that are remembered individually. Beyond that, only the first and last key are.
const MOST_KEYS: usize = 1 << 16;

/// What is looked for.
#[derive(Clone, Debug, Default)]
pub struct SegmentQuery {
    /// Any run of these traces.
    pub traces: BTreeSet<Uuid>,
    pub ids: BTreeSet<TraceRunId>,
    /// Whether hits say where their runs stand in the tree.
    pub lineage: bool,
}

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowGroupLocation {
    /// Key of a segment.
    pub path: Path,
    /// Row groups of it, in order; `None` for all.
    pub row_groups: Option<Vec<usize>>,
}

/// Asks segments.
pub struct Lookup {
    store: Arc<dyn ObjectStore>,
    footers: FooterCache,
}

/// A cache of footers and bloom filters of segments, which never change. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct FooterCache(Arc<Mutex<FooterCacheState>>);

#[derive(Debug, Default)]
struct FooterCacheState {
    entries: HashMap<Path, (CachedFooter, u64)>,
    bytes: usize,
    /// How often it was asked.
    uses: u64,
}

/// What is stored of a segment.
#[derive(Clone, Debug)]
struct CachedFooter {
    footer: Footer,
    ids: Filters,
    traces: Filters,
}

impl CachedFooter {
    fn bytes(&self) -> usize {
        self.footer.bytes() + self.ids.bytes() + self.traces.bytes()
    }
}

impl FooterCache {
    fn find(&self, path: &Path) -> Option<CachedFooter> {
        let mut kept = self.0.lock();
        kept.uses += 1;
        let asked = kept.uses;
        let (known, last) = kept.entries.get_mut(path)?;
        *last = asked;
        Some(known.clone())
    }

    fn insert(&self, path: &Path, known: CachedFooter) {
        let mut kept = self.0.lock();
        kept.uses += 1;
        let asked = kept.uses;
        kept.bytes += known.bytes();
        if let Some((before, _)) = kept.entries.insert(path.clone(), (known, asked)) {
            kept.bytes -= before.bytes();
        }
        while kept.bytes > KEPT {
            let oldest = kept.entries.iter().min_by_key(|(_, (_, last))| *last);
            let Some(oldest) = oldest.map(|(path, _)| path.clone()) else {
                break;
            };
            if let Some((known, _)) = kept.entries.remove(&oldest) {
                kept.bytes -= known.bytes();
            }
        }
    }

    /// Opens a segment.
    pub async fn open(&self, store: Arc<dyn ObjectStore>, path: &Path) -> Result<Segment> {
        if let Some(known) = self.find(path) {
            return Ok(Segment::with_footer(store, path.clone(), &known.footer));
        }
        let segment = Segment::open(store, path.clone()).await?;
        self.insert(
            path,
            CachedFooter {
                footer: segment.footer(),
                ids: Filters::default(),
                traces: Filters::default(),
            },
        );
        Ok(segment)
    }
}

impl Lookup {
    /// Over the segments of this store.
    #[must_use]
    pub const fn new(store: Arc<dyn ObjectStore>, footers: FooterCache) -> Self {
        Self { store, footers }
    }

    /// The wanted rows, as far as each row group knows them. A run may be found in several row groups.
    pub async fn search(&self, locations: Vec<RowGroupLocation>, wanted: &SegmentQuery) -> Result<Vec<Hit>> {
        let mut hits = Vec::new();
        let mut answers = stream::iter(self.questions(locations, wanted)).buffer_unordered(AT_ONCE);
        while let Some((_, found)) = answers.try_next().await? {
            hits.extend(found);
        }
        Ok(hits)
    }

    /// Where the runs of some traces are, by project.
    pub async fn traces(
        &self,
        locations: Vec<RowGroupLocation>,
        traces: &BTreeSet<Uuid>,
    ) -> Result<BTreeMap<ProjectId, Runs>> {
        let wanted = SegmentQuery {
            traces: traces.clone(),
            ..SegmentQuery::default()
        };
        let mut projects: BTreeMap<ProjectId, Runs> = BTreeMap::new();
        let mut answers = stream::iter(self.questions(locations, &wanted)).buffer_unordered(AT_ONCE);
        while let Some((path, hits)) = answers.try_next().await? {
            for hit in hits {
                projects.entry(hit.project).or_default().add(&path, &hit);
            }
        }
        Ok(projects)
    }

    /// One for each segment.
    fn questions(
        &self,
        locations: Vec<RowGroupLocation>,
        wanted: &SegmentQuery,
    ) -> Vec<impl Future<Output = Result<(Path, Vec<Hit>)>> + Send + use<>> {
        let wanted = Arc::new(QueryValues::of(wanted));
        let questions = locations.into_iter().map(|place| {
            query_segment(
                Arc::clone(&self.store),
                self.footers.clone(),
                place,
                Arc::clone(&wanted),
            )
        });
        questions.collect()
    }

    /// Those of `parts`, row groups of one project, that must be read for complete `runs`: those in which they were
    /// found, and those that may contain later operations that do not name the trace.
    pub async fn parts(&self, parts: Vec<PartRef>, runs: &Runs) -> Result<Vec<PartRef>> {
        let mut kept = Vec::new();
        let mut unsure: BTreeMap<Path, Vec<(PartRef, Range<usize>)>> = BTreeMap::new();
        let keys: Option<Arc<[Key]>> = runs.keys.as_ref().map(|keys| keys.iter().copied().collect());
        for part in parts {
            if runs.held.contains(&(part.path.clone(), part.row_group)) {
                kept.push(part);
            } else if let Some(keys) = &keys {
                let from = keys.partition_point(|key| key.sort_time < part.min_sort_time);
                let to = keys.partition_point(|key| key.sort_time <= part.max_sort_time);
                if from < to {
                    unsure.entry(part.path.clone()).or_default().push((part, from..to));
                }
            } else if runs.overlap(&part) {
                kept.push(part);
            }
        }
        let keys = keys.unwrap_or_default();
        let questions = unsure.into_iter().map(|(path, parts)| {
            let (store, keys) = (Arc::clone(&self.store), Arc::clone(&keys));
            query_ids(store, self.footers.clone(), path, parts, keys)
        });
        let questions: Vec<_> = questions.collect();
        let mut answers = stream::iter(questions).buffer_unordered(AT_ONCE);
        while let Some(held) = answers.try_next().await? {
            kept.extend(held);
        }
        Ok(kept)
    }
}

/// Runs of some traces in one project.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// Row groups in which they were found.
    held: HashSet<(Path, usize)>,
    /// `None` when they are too many.
    keys: Option<BTreeSet<Key>>,
    bounds: Option<(Key, Key)>,
}

impl Runs {
    fn add(&mut self, path: &Path, hit: &Hit) {
        self.held.insert((path.clone(), hit.row_group));
        match &mut self.bounds {
            Some((first, last)) => {
                *first = hit.key.min(*first);
                *last = hit.key.max(*last);
            }
            bounds @ None => {
                *bounds = Some((hit.key, hit.key));
                self.keys = Some(BTreeSet::new());
            }
        }
        if let Some(keys) = &mut self.keys {
            keys.insert(hit.key);
            if keys.len() > MOST_KEYS {
                self.keys = None;
            }
        }
    }

    /// The first and the last of them.
    #[must_use]
    pub const fn bounds(&self) -> Option<(Key, Key)> {
        self.bounds
    }

    fn overlap(&self, part: &PartRef) -> bool {
        self.bounds
            .is_some_and(|(first, last)| first.sort_time <= part.max_sort_time && last.sort_time >= part.min_sort_time)
    }
}

/// What is looked for, as the columns have it.
struct QueryValues {
    traces: Vec<String>,
    ids: Vec<String>,
    lineage: bool,
}

impl QueryValues {
    fn of(wanted: &SegmentQuery) -> Self {
        Self {
            traces: wanted.traces.iter().map(ToString::to_string).collect(),
            ids: wanted.ids.iter().map(ToString::to_string).collect(),
            lineage: wanted.lineage,
        }
    }
}

/// Opens a segment. Data fetched along with the footer stay available while it is open.
async fn open(store: Arc<dyn ObjectStore>, footers: &FooterCache, path: &Path) -> Result<(Segment, CachedFooter)> {
    if let Some(known) = footers.find(path) {
        return Ok((Segment::with_footer(store, path.clone(), &known.footer), known));
    }
    let segment = Segment::open_with_end(store, path.clone()).await?;
    let known = CachedFooter {
        footer: segment.footer(),
        ids: Filters::default(),
        traces: Filters::default(),
    };
    Ok((segment, known))
}

async fn query_segment(
    store: Arc<dyn ObjectStore>,
    footers: FooterCache,
    place: RowGroupLocation,
    wanted: Arc<QueryValues>,
) -> Result<(Path, Vec<Hit>)> {
    let (segment, mut known) = open(store, &footers, &place.path).await?;
    let row_groups = place.row_groups.unwrap_or_else(|| (0..segment.row_groups()).collect());
    let of_traces = likely(
        &segment,
        &mut known.traces,
        position::TRACE_ID,
        &row_groups,
        &wanted.traces,
    )
    .await?;
    let of_ids = likely(&segment, &mut known.ids, position::ID, &row_groups, &wanted.ids).await?;
    footers.insert(&place.path, known);
    let mut hits = Vec::new();
    for row_group in of_traces.union(&of_ids) {
        let found = segment.hits(*row_group, &wanted.traces, &wanted.ids, wanted.lineage);
        hits.extend(found.await?);
    }
    Ok((place.path, hits))
}

/// Those of `parts` that may contain one of the keys.
async fn query_ids(
    store: Arc<dyn ObjectStore>,
    footers: FooterCache,
    path: Path,
    parts: Vec<(PartRef, Range<usize>)>,
    keys: Arc<[Key]>,
) -> Result<Vec<PartRef>> {
    let (segment, mut known) = open(store, &footers, &path).await?;
    let row_groups: Vec<usize> = parts.iter().map(|(part, _)| part.row_group).collect();
    segment.read_filters(position::ID, &row_groups, &mut known.ids).await?;
    let mut held = Vec::new();
    for (part, range) in parts {
        let texts: Vec<String> = keys[range].iter().map(|key| key.id.to_string()).collect();
        if known.ids.may_have(part.row_group, &texts) {
            held.push(part);
        }
    }
    footers.insert(&path, known);
    Ok(held)
}

/// Those of `row_groups` that may contain one of `texts` in a column.
async fn likely(
    segment: &Segment,
    filters: &mut Filters,
    column: usize,
    row_groups: &[usize],
    texts: &[String],
) -> Result<BTreeSet<usize>> {
    let spans = row_groups.iter().copied();
    let spanned: Vec<usize> = spans.filter(|group| segment.spans(*group, column, texts)).collect();
    segment.read_filters(column, &spanned, filters).await?;
    let likely = spanned.into_iter().filter(|group| filters.may_have(*group, texts));
    Ok(likely.collect())
}

/// The row groups of one project that must be read for the complete runs of some traces.
pub async fn narrow_to_row_groups(
    store: Arc<dyn ObjectStore>,
    project: ProjectId,
    parts: Vec<PartRef>,
    traces: &BTreeSet<Uuid>,
) -> Result<Vec<PartRef>> {
    let lookup = Lookup::new(store, FooterCache::default());
    let mut found = lookup.traces(row_group_locations(&parts), traces).await?;
    match found.remove(&project) {
        Some(runs) => lookup.parts(parts, &runs).await,
        None => Ok(Vec::new()),
    }
}

/// The row groups of `parts`, by segment.
#[must_use]
pub fn row_group_locations(parts: &[PartRef]) -> Vec<RowGroupLocation> {
    let mut segments: BTreeMap<&Path, BTreeSet<usize>> = BTreeMap::new();
    for part in parts {
        segments.entry(&part.path).or_default().insert(part.row_group);
    }
    let locations = segments.into_iter().map(|(path, row_groups)| RowGroupLocation {
        path: path.clone(),
        row_groups: Some(row_groups.into_iter().collect()),
    });
    locations.collect()
}
