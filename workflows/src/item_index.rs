//! Search of the store by meaning: the setting, the vectors of a query, and the ranking.
//!
//! Vectors are in the database. The index of the extension pgvector finds candidates where it is installed. Elsewhere
//! [`matrix`] does, which holds the vectors of a workspace in memory, with less precision. The database gives the vectors
//! of candidates, checks the filter, and so decides the order. Where the vectors are too many for memory, or the filter
//! leaves too few candidates, all vectors are read.

pub(crate) mod matrix;

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use serde_json::{Map, Value, json};
use towpath_domain::TenantId;
use towpath_domain::agent::namespace::Namespace;
use towpath_outbound::Guard;
use towpath_runtime::{EmbedError, Embedder, GraphSet};
use towpath_store::item_vectors::pgvector::{self, Missing};
use towpath_store::item_vectors::{self, ItemIndex as IndexRow};
use towpath_store::items::{self, Item};
use towpath_store::{self as store, Dialect, Store, Tx};

use self::matrix::{Candidate, Matrix, cosine, floats};
use crate::embed_items::job;
use crate::reloadable::Reloadable;

/// The maximum number of dimensions.
pub const MAX_DIMS: usize = 8192;
/// Memory of the vectors of a workspace. More are read from the database by each search.
const MAX_BYTES: usize = 512 << 20;
/// Vectors that are read by one statement: statements have a time limit.
const LOADED_AT_ONCE: i64 = 20_000;
/// How long a workspace is not read again that was too large.
const TOO_LARGE_FOR: Duration = Duration::from_secs(600);
/// The minimum number of candidates.
const MIN_CANDIDATES: usize = 64;
/// Candidates that are looked up before all vectors are read.
const MAX_CANDIDATES: usize = 8192;
/// Texts of one call of the embedder.
const TEXTS_PER_CALL: usize = 256;

/// `store.index` of the graph file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexSettings {
    pub dims: usize,
    /// `store.index.embed`, as the file has it.
    pub embed: String,
    /// Paths to what is embedded of an item.
    pub fields: Vec<String>,
    pub embedder: Embedder,
}

impl IndexSettings {
    /// Vectors are comparable if this is equal.
    #[must_use]
    pub fn embedder_key(&self) -> String {
        json!({"embed": self.embed, "dims": self.dims}).to_string()
    }

    /// The fields as JSON.
    #[must_use]
    pub fn fields_key(&self) -> String {
        json!(self.fields).to_string()
    }

    /// Whether items are embedded by this setting.
    #[must_use]
    pub fn is(&self, row: &IndexRow) -> bool {
        self.embedder_key() == row.embedder && self.fields_key() == row.fields
    }
}

/// The index of a server's items; clones share it.
#[derive(Clone)]
pub struct ItemIndex(Arc<IndexState>);

struct IndexState {
    store: Store,
    graphs: GraphSet,
    guard: Guard,
    settings: Reloadable<Option<IndexSettings>>,
    /// Held while vectors are read into memory.
    loaded: tokio::sync::Mutex<Option<Loaded>>,
}

/// Vectors in memory.
#[derive(Clone)]
struct Loaded {
    tenant: TenantId,
    space: i64,
    /// `None`: there were too many.
    matrix: Option<SharedMatrix>,
    at: Instant,
}

type SharedMatrix = Arc<RwLock<Matrix>>;

/// A search by meaning.
#[derive(Clone, Copy, Debug)]
pub struct ItemSearch<'a> {
    pub prefix: &'a Namespace,
    pub filter: &'a Map<String, Value>,
    pub query: &'a str,
    pub limit: usize,
    pub offset: usize,
}

/// Items and how like the query they are, the most alike first.
#[derive(Clone, Debug, Default)]
pub struct RankedItems {
    pub items: Vec<Item>,
    /// Cosines, from -1 to 1.
    pub scores: Vec<f64>,
    /// Whether some items are not embedded yet.
    pub is_incomplete: bool,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error(
        "query: this server has no index of items; set `store.index` with `dims` and `embed` in the graph file, or search \
         by `filter` alone"
    )]
    NoIndex,
    #[error("query: {0}")]
    Embed(#[from] EmbedError),
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl ItemIndex {
    /// Without a setting.
    #[must_use]
    pub fn new(store: Store, graphs: GraphSet, guard: Guard) -> Self {
        Self(Arc::new(IndexState {
            store,
            graphs,
            guard,
            settings: Reloadable::new(None),
            loaded: tokio::sync::Mutex::new(None),
        }))
    }

    /// Replaces the setting. Call [`ItemIndex::ensure`] afterwards.
    pub fn configure(&self, settings: Option<IndexSettings>) {
        self.0.settings.replace(settings);
    }

    #[must_use]
    pub fn settings(&self) -> Arc<Option<IndexSettings>> {
        self.0.settings.current()
    }

    /// Records the setting in the database. If it differs from the one there, a job embeds the items again, or removes
    /// the vectors. Every process may call it at its start.
    pub async fn ensure(&self, tenant: TenantId) -> store::Result<()> {
        let settings = self.settings();
        self.0
            .store
            .write(async |tx| {
                let changed = match &*settings {
                    Some(index) => {
                        item_vectors::configure(tx, tenant, &index.embedder_key(), &index.fields_key()).await?
                    }
                    None => item_vectors::forget(tx, tenant).await?,
                };
                if changed {
                    job::start(tx, tenant).await?;
                }
                Ok(())
            })
            .await
    }

    /// Records a job if something is to be embedded and no job does it.
    pub async fn resume(&self, tenant: TenantId) -> store::Result<()> {
        let (row, has_due) = self
            .0
            .store
            .read(async |tx| {
                Ok((
                    item_vectors::get(tx, tenant).await?,
                    item_vectors::has_due(tx, tenant).await?,
                ))
            })
            .await?;
        let Some(row) = row.filter(|row| row.job_id.is_none()) else {
            return Ok(());
        };
        if has_due || row.walking || row.embedder.is_empty() || self.is_copy_behind(tenant, &row).await {
            self.0.store.write(async |tx| job::start(tx, tenant).await).await?;
        }
        Ok(())
    }

    /// Whether the index of pgvector lacks vectors: the extension may have been installed since they were written.
    async fn is_copy_behind(&self, tenant: TenantId, row: &IndexRow) -> bool {
        let settings = self.settings();
        let Some(settings) = (*settings).as_ref().filter(|settings| settings.is(row)) else {
            return false;
        };
        let missing = self
            .0
            .store
            .read(async |tx| pgvector::missing(tx, tenant, row.space, settings.dims, 1).await)
            .await;
        match missing {
            Ok(missing) => matches!(missing, Missing::Vectors(_)),
            // Searches do without it, and so do sweeps.
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the index of pgvector cannot be read"
                );
                false
            }
        }
    }

    /// Queues an item for the embedder, in the transaction that writes it. `index` are its own paths, if it has some.
    pub async fn written(
        &self,
        tx: &mut Tx<'_>,
        tenant: TenantId,
        namespace: &Namespace,
        key: &str,
        index: Option<&[String]>,
    ) -> store::Result<()> {
        if self.settings().is_none() {
            return Ok(());
        }
        if index.is_some_and(<[String]>::is_empty) {
            return item_vectors::remove(tx, tenant, namespace, key).await;
        }
        item_vectors::enqueue(tx, tenant, namespace, key).await?;
        job::start(tx, tenant).await
    }

    /// One vector for each text.
    pub async fn embed(&self, settings: &IndexSettings, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let mut vectors = Vec::with_capacity(texts.len());
        for some in texts.chunks(TEXTS_PER_CALL) {
            // A set that is replaced meanwhile lives until its answer.
            let graphs = self.0.graphs.current();
            let pool = graphs.host_pool().map(|pool| &**pool);
            let embedded = settings.embedder.embed(some, settings.dims, &self.0.guard, pool);
            vectors.extend(embedded.await?);
        }
        Ok(vectors)
    }

    /// Items that are like a query.
    pub async fn search(&self, tenant: TenantId, search: ItemSearch<'_>) -> Result<RankedItems, SearchError> {
        let settings = self.settings();
        let settings = (*settings).as_ref().ok_or(SearchError::NoIndex)?;
        let (row, is_pending) = self
            .0
            .store
            .read(async |tx| {
                Ok((
                    item_vectors::get(tx, tenant).await?,
                    item_vectors::has_pending(tx, tenant).await?,
                ))
            })
            .await?;
        let Some(row) = row.filter(|row| row.embedder == settings.embedder_key()) else {
            return Ok(RankedItems {
                is_incomplete: true,
                ..RankedItems::default()
            });
        };
        let texts = [search.query.to_owned()];
        let query = self.embed(settings, &texts).await?.pop().unwrap_or_default();
        let ranking = Ranking {
            store: &self.0.store,
            tenant,
            space: row.space,
            search,
            query: Arc::new(query),
        };
        let found = if let Some(names) = ranking.nearest_by_pgvector().await {
            ranking.by_names(&names).await?
        } else if let Some(matrix) = self.matrix(tenant, &row, settings.dims).await? {
            ranking.by_candidates(&matrix).await?
        } else {
            None
        };
        let mut found = match found {
            Some(found) => found,
            None => ranking.by_all().await?,
        };
        found.sort_by(|(a, one), (b, other)| {
            b.total_cmp(a)
                .then_with(|| other.updated_at.cmp(&one.updated_at))
                .then_with(|| (&one.namespace, &one.key).cmp(&(&other.namespace, &other.key)))
        });
        let page = found.into_iter().skip(search.offset).take(search.limit);
        let (scores, items) = page.unzip();
        Ok(RankedItems {
            items,
            scores,
            is_incomplete: row.walking || is_pending,
        })
    }

    /// The vectors in memory, with everything that was written; `None` if there are too many.
    async fn matrix(&self, tenant: TenantId, row: &IndexRow, dims: usize) -> store::Result<Option<SharedMatrix>> {
        let mut slot = self.0.loaded.lock().await;
        let known = slot
            .clone()
            .filter(|known| (known.tenant, known.space) == (tenant, row.space));
        let mut current = None;
        if let Some(Loaded { matrix, at, .. }) = known {
            match matrix {
                None if at.elapsed() < TOO_LARGE_FOR => return Ok(None),
                None => {}
                // Vectors of deleted items take memory too; without them there may be room.
                Some(matrix) => current = self.load(tenant, row, &matrix).await?.then_some(matrix),
            }
        }
        if current.is_none() {
            *slot = None;
            let matrix = Arc::new(RwLock::new(Matrix::new(dims)));
            current = self.load(tenant, row, &matrix).await?.then_some(matrix);
        }
        *slot = Some(Loaded {
            tenant,
            space: row.space,
            matrix: current.clone(),
            at: Instant::now(),
        });
        Ok(current)
    }

    /// Reads the vectors that are not in memory yet. Returns whether there is room for all.
    async fn load(&self, tenant: TenantId, row: &IndexRow, matrix: &SharedMatrix) -> store::Result<bool> {
        let is_behind = || {
            let matrix = matrix.read();
            matrix.seq() < row.last_seq && matrix.bytes() <= MAX_BYTES
        };
        while is_behind() {
            let reading = self.0.store.read(async |tx| {
                let (after, mut count) = (matrix.read().seq(), 0);
                item_vectors::each_after(tx, tenant, row.space, after, LOADED_AT_ONCE, |vector| {
                    matrix.write().add(vector);
                    count += 1;
                    ControlFlow::Continue(())
                })
                .await?;
                Ok(count)
            });
            if reading.await? < LOADED_AT_ONCE {
                // The vectors with the last numbers may be gone.
                matrix.write().caught_up(row.last_seq);
            }
        }
        Ok(matrix.read().bytes() <= MAX_BYTES)
    }
}

type Scored = Vec<(f64, Item)>;

/// One search.
struct Ranking<'a> {
    store: &'a Store,
    tenant: TenantId,
    space: i64,
    search: ItemSearch<'a>,
    query: Arc<Vec<f32>>,
}

impl Ranking<'_> {
    /// How many items are needed, those that are skipped included.
    const fn needed(&self) -> usize {
        self.search.offset.saturating_add(self.search.limit)
    }

    /// Names of near items, the nearest first; `None` without an index of pgvector that has all vectors.
    async fn nearest_by_pgvector(&self) -> Option<Vec<(String, String)>> {
        if self.store.dialect() != Dialect::Postgres {
            return None;
        }
        let read = self
            .store
            .read(async |tx| pgvector::nearest(tx, self.tenant, self.space, &self.query).await)
            .await;
        read.unwrap_or_else(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a search in pgvector failed; the index in memory is used"
            );
            None
        })
    }

    /// Looks up what is near; `None` if too few of it match, so that others must be looked at.
    async fn by_names(&self, names: &[(String, String)]) -> store::Result<Option<Scored>> {
        let is_all = names.len() < pgvector::MAX_NEAREST;
        if !is_all && self.needed().saturating_mul(2) > names.len() {
            return Ok(None);
        }
        let mut seen = HashSet::new();
        let names: Vec<(String, String)> = names.iter().filter(|name| seen.insert(*name)).cloned().collect();
        let found = self.look_up(&names, None).await?;
        Ok((is_all || found.len() >= self.needed()).then_some(found))
    }

    /// Looks candidates up, the likeliest first, until there are enough; `None` if that takes too many.
    async fn by_candidates(&self, matrix: &SharedMatrix) -> store::Result<Option<Scored>> {
        let mut candidates = self.scan(matrix).await;
        let (mut done, mut seen, mut found) = (0, HashSet::new(), Scored::new());
        let mut count = self.needed().saturating_mul(2).max(MIN_CANDIDATES);
        while done < candidates.len() && found.len() < self.needed() {
            let end = candidates.len().min(done.saturating_add(count));
            if end > MAX_CANDIDATES.max(self.needed().saturating_mul(2)) {
                return Ok(None);
            }
            matrix::select(&mut candidates[done..], end - done);
            let names: Vec<(String, String)> = {
                let matrix = matrix.read();
                let named = candidates[done..end].iter().filter_map(|&one| matrix.name(one));
                named.filter(|name| seen.insert(name.clone())).collect()
            };
            found.extend(self.look_up(&names, Some(matrix)).await?);
            done = end;
            count = count.saturating_mul(4);
        }
        Ok(Some(found))
    }

    /// On a thread of its own: it takes milliseconds.
    async fn scan(&self, matrix: &SharedMatrix) -> Vec<Candidate> {
        let (matrix, query, prefix) = (matrix.clone(), self.query.clone(), self.search.prefix.dotted());
        let scanned = tokio::task::spawn_blocking(move || matrix.read().scan(&prefix, &query));
        scanned.await.unwrap_or_default()
    }

    /// The named items that match, with their scores. Vectors that are gone leave the memory.
    async fn look_up(&self, names: &[(String, String)], matrix: Option<&SharedMatrix>) -> store::Result<Scored> {
        let ItemSearch { prefix, filter, .. } = self.search;
        let seq = matrix.map(|matrix| matrix.read().seq());
        let read = self.store.read(async |tx| {
            let items = items::search_among(tx, self.tenant, prefix, filter, names).await?;
            let vectors = item_vectors::of_items(tx, self.tenant, self.space, names).await?;
            Ok((items, vectors))
        });
        let (items, vectors) = read.await?;
        let mut scores: HashMap<(String, String), f64> = HashMap::new();
        for vector in vectors {
            let score = cosine(&floats(&vector.vector), &self.query);
            let best = scores.entry((vector.namespace, vector.key)).or_insert(score);
            *best = best.max(score);
        }
        if let Some(matrix) = matrix {
            let mut matrix = matrix.write();
            // What was added since may be newer than what was read here.
            if seq == Some(matrix.seq()) {
                let gone = names.iter().filter(|name| !scores.contains_key(*name));
                gone.for_each(|(namespace, key)| matrix.remove(namespace, key));
            }
        }
        let scored = |item: Item| scores.get(&item.indexed_name()).map(|&score| (score, item));
        Ok(items.into_iter().filter_map(scored).collect())
    }

    /// Reads the vectors of all items that match.
    async fn by_all(&self) -> store::Result<Scored> {
        let ItemSearch { prefix, filter, .. } = self.search;
        let needed = self.needed();
        let read = self.store.read(async |tx| {
            let mut best = Best::new(needed);
            items::each_vector(tx, self.tenant, prefix, filter, self.space, |vector| {
                best.add(
                    cosine(&floats(&vector.vector), &self.query),
                    (vector.namespace, vector.key),
                );
            })
            .await?;
            let scores = best.finish();
            let names: Vec<(String, String)> = scores.keys().cloned().collect();
            let items = items::search_among(tx, self.tenant, prefix, filter, &names).await?;
            Ok((items, scores))
        });
        let (items, scores) = read.await?;
        let scored = |item: Item| scores.get(&item.indexed_name()).map(|&score| (score, item));
        Ok(items.into_iter().filter_map(scored).collect())
    }
}

/// The best of many scores, with bounded memory.
struct Best {
    needed: usize,
    scores: Vec<(f64, (String, String))>,
}

impl Best {
    const fn new(needed: usize) -> Self {
        Self {
            needed,
            scores: Vec::new(),
        }
    }

    fn add(&mut self, score: f64, name: (String, String)) {
        self.scores.push((score, name));
        if self.scores.len() > self.needed.saturating_mul(2).saturating_add(1024) {
            self.cut();
        }
    }

    /// An item may have several vectors; the best counts.
    fn cut(&mut self) {
        self.scores.sort_unstable_by(|(a, _), (b, _)| b.total_cmp(a));
        let mut seen = HashSet::new();
        self.scores.retain(|(_, name)| seen.insert(name.clone()));
        self.scores.truncate(self.needed);
    }

    fn finish(mut self) -> HashMap<(String, String), f64> {
        self.cut();
        self.scores.into_iter().map(|(score, name)| (name, score)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_vector_of_each_of_the_best_items_is_kept() {
        let mut best = Best::new(2);
        for round in 0..2000 {
            let score = f64::from(round % 1000);
            best.add(score, ("n".to_owned(), (round % 100).to_string()));
        }
        let found = best.finish();
        assert_eq!(found.len(), 2);
        assert_eq!(found[&("n".to_owned(), "99".to_owned())], 999.0);
        assert_eq!(found[&("n".to_owned(), "98".to_owned())], 998.0);
    }
}
