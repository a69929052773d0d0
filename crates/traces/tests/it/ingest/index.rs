//! The index of trace runs: whatever was published, indexed, merged, compacted and deleted, every id is found where its
//! row is; what is not there costs nothing the second time.

mod library;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use chrono::NaiveDate;
use object_store::path::Path;
use towpath_domain::{ProjectId, RunIndexId, SegmentId, TenantId, Timestamp, TraceRunId};
use towpath_store::projects::{self, NewProject};
use towpath_store::run_index::{self as catalog, IndexFile};
use towpath_store::segments::replace::{self, Replacement};
use towpath_store::{Tx, segments};
use towpath_traces::columnar::Error;
use towpath_traces::compact::{self, Day, Pricing};
use towpath_traces::flush::{NewSegment, RunLocation, catalog_parts, part_ref};
use towpath_traces::objects::Objects;
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::row::Row;
use towpath_traces::run_index::{self, Entry, GROUP_ENTRIES, LocateError, NewIndexFile, SegmentToIndex, Writer};
use towpath_traces::segment;

use library::{Library, bring_in};

use super::world::{DAY, World, on_both_databases};
use crate::columns::generate::Random;
use crate::counting::CountingStore;

on_both_databases!(
    ids_are_found_whatever_was_done,
    unknown_ids_read_no_page,
    a_thousand_segments_are_read_once,
    few_ids_are_shown_to_the_filters_of_large_segments_first,
    the_cache_keeps_its_bound,
    what_was_removed_meanwhile_is_looked_for_again,
    entries_of_deleted_projects_and_old_days_are_dropped_by_merges,
    of_several_places_the_smallest_is_kept,
    what_comes_of_indexed_segments_is_indexed,
    a_workspace_without_segments_has_no_index,
    workspaces_are_due_by_number_and_by_age,
    another_workspace_has_its_own,
);
async fn ids_are_found_whatever_was_done(world: World) {
    let mut library = Library::new(world, 1).await;
    library.check("nothing").await;
    for step in 0..80 {
        let what = library.random.below(16);
        let done = match what {
            0..6 => {
                let count = 1 + library.random.below(300);
                let mut rows = library.rows(count);
                // An earlier build put one into another project, too.
                if let Some(known) = library.places.keys().next().copied().filter(|_| what == 0) {
                    rows[0].id = known;
                }
                library.publish(&rows).await;
                format!("publishing {count}")
            }
            6..9 => {
                let mut waiting = library.unindexed().await;
                library.random.shuffle(&mut waiting);
                waiting.truncate(1 + library.random.below(5));
                library.index(&waiting).await;
                format!("indexing {}", waiting.len())
            }
            9..12 => {
                let mut files = library.live().await;
                library.random.shuffle(&mut files);
                files.truncate(1 + library.random.below(6));
                library.merge(&files, None).await;
                format!("merging {}", files.len())
            }
            12..15 => {
                let project = library.projects[library.random.below(library.projects.len())];
                let day = DAY + chrono::Days::new(library.random.below(5) as u64);
                library.compact(project, day).await;
                format!("compacting {day}")
            }
            _ if step % 3 == 0 => {
                let project = library.projects[library.random.below(library.projects.len())];
                library.delete(project).await;
                library.project(&format!("another one of step {step}")).await;
                "deleting a project".to_owned()
            }
            _ => continue,
        };
        library.check(&format!("step {step}, {done}")).await;
    }
    assert!(library.places.len() > 1000, "{}", library.places.len());
    assert!(!library.live().await.is_empty());
    // All of it in one file, and nothing beside it.
    let waiting = library.unindexed().await;
    library.index(&waiting).await;
    let files = library.live().await;
    library.merge(&files, None).await;
    assert_eq!((library.live().await.len(), library.unindexed().await.len()), (1, 0));
    library.check("the end").await;
}

async fn unknown_ids_read_no_page(world: World) {
    let mut library = Library::new(world, 2).await;
    let known = library.rows(50_000);
    library.file(known.clone()).await;
    let mut rest = library.rows(20);
    let place = rest[0].location;
    for row in &mut rest {
        row.location = place;
    }
    library.publish(&rest).await;
    library.reads.reads();

    let unknown = library.ids(10_000);
    assert!(library.locate(&unknown).await.is_empty());
    let first = library.reads.reads();
    // The footer and the filter of the one, and the other, which is so small that it comes whole.
    assert!((1..=4).contains(&first), "{first} reads");
    assert!(library.locate(&unknown).await.is_empty());
    assert_eq!(library.reads.reads(), 0);
    let others = library.ids(1000);
    assert!(library.locate(&others).await.is_empty());
    assert_eq!(library.reads.reads(), 0, "other ids need nothing else");

    // What is there costs a page of each column.
    let one = known[4711];
    assert_eq!(library.locate(&[one.id]).await[&one.id], BTreeSet::from([one.location]));
    let hit = library.reads.reads();
    assert!((1..=3).contains(&hit), "{hit} reads");
    assert_eq!(
        library.locate(&[rest[7].id]).await[&rest[7].id],
        BTreeSet::from([rest[7].location])
    );
    assert_eq!(library.reads.reads(), 0, "rows outside of the index stay in memory");
    library.check("everything").await;
}

async fn a_thousand_segments_are_read_once(world: World) {
    const SEGMENTS: usize = 1000;
    let mut library = Library::new(world, 3).await;
    let mut new = Vec::new();
    for _ in 0..SEGMENTS {
        let mut rows = library.rows(3);
        let place = rows[0].location;
        for row in &mut rows {
            row.location = place;
        }
        new.push(library.segment(&rows).await);
        library.note(&rows);
    }
    library
        .write(async |tx| {
            for segment in &new {
                bring_in(tx, segment).await?;
            }
            Ok(())
        })
        .await;
    let mut waiting = library.unindexed().await;
    assert_eq!(waiting.len(), SEGMENTS);
    let rest = waiting.split_off(SEGMENTS / 2);
    library.index(&waiting).await;
    let sources = library.live().await.len() + rest.len();
    assert_eq!(sources, 1 + SEGMENTS / 2);
    library.reads.reads();

    let unknown = library.ids(10_000);
    assert!(library.locate(&unknown).await.is_empty());
    let first = library.reads.reads();
    assert!(first <= sources + 1, "{first} reads of {sources} objects");
    assert!(library.locate(&unknown).await.is_empty());
    assert_eq!(library.reads.reads(), 0);
    library.check("all that").await;
}

async fn few_ids_are_shown_to_the_filters_of_large_segments_first(world: World) {
    let mut library = Library::new(world, 4).await;
    let project = library.projects[0];
    let mut rows = library.rows(9000);
    for row in &mut rows {
        row.location = RunLocation {
            sort_time: Timestamp::start_of(DAY).plus(Duration::from_micros(
                row.location.sort_time.micros() as u64 % 1_000_000,
            )),
            project,
        };
    }
    library.publish(&rows).await;
    library.reads.reads();
    let unknown = library.ids(1);
    assert!(library.locate(&unknown).await.is_empty());
    assert_eq!(library.reads.reads(), 2, "the footer and a filter");
    let unknown = library.ids(1);
    assert!(library.locate(&unknown).await.is_empty());
    assert_eq!(library.reads.reads(), 0);
    library.check("many ids").await;
    let read = library.reads.reads();
    assert!((1..=2).contains(&read), "{read} reads of two columns");
    library.check("the same again").await;
    assert_eq!(library.reads.reads(), 0);
}

async fn the_cache_keeps_its_bound(world: World) {
    const BOUND: usize = 128 << 10;
    let mut library = Library::new(world, 5).await;
    library.objects = Objects::from_store(library.reads.clone()).with_index_cache(BOUND);
    for _ in 0..6 {
        let entries = library.rows(8000);
        library.file(entries).await;
        let rows = library.rows(500);
        library.publish(&rows).await;
    }
    let mut ids: Vec<TraceRunId> = library.places.keys().copied().collect();
    library.random.shuffle(&mut ids);
    for ids in ids.chunks(5000) {
        let found = library.locate(ids).await;
        assert!(ids.iter().all(|id| found.get(id) == library.places.get(id)));
        let kept = library.objects.index_cache_bytes();
        assert!(kept <= BOUND && kept > 0, "{kept}");
    }
    library.check("so little room").await;
}

async fn what_was_removed_meanwhile_is_looked_for_again(world: World) {
    let mut library = Library::new(world, 6).await;
    let entries = library.rows(5000);
    let file = library.file(entries).await;
    let rows = library.rows(100);
    library.publish(&rows).await;
    let segment = Path::from(library.unindexed().await[0].path.as_str());
    for path in [&file.path, &segment] {
        library.objects = Objects::from_store(library.reads.clone());
        library.reads.hide(path, 1);
        library.check("an object was away for a moment").await;
        // What is never there again is not an id that no one knows.
        library.objects = Objects::from_store(library.reads.clone());
        library.reads.hide(path, usize::MAX);
        let failed = library.try_locate(&[rows[0].id]).await;
        assert!(
            matches!(&failed, Err(LocateError::Columnar(error)) if error.is_not_found()),
            "{failed:?}"
        );
        library.reads.hide(path, 0);
    }
    // A page may be away, too.
    library.check("footers and filters are at hand").await;
    library.reads.hide(&file.path, 1);
    library.check("a page was away for a moment").await;
}

async fn entries_of_deleted_projects_and_old_days_are_dropped_by_merges(world: World) {
    let mut library = Library::new(world, 7).await;
    for _ in 0..4 {
        let rows = library.rows(200);
        library.publish(&rows).await;
        let waiting = library.unindexed().await;
        library.index(&waiting).await;
    }
    let all = library.places.clone();
    let gone = library.projects[1];
    library.delete(gone).await;
    library.check("the project was deleted").await;
    // One of its trace runs is sent again, into another project.
    let again = all
        .iter()
        .find(|(_, places)| places.iter().any(|place| place.project == gone))
        .map(|(id, _)| *id)
        .unwrap();
    let mut place = library.place();
    place.sort_time = Timestamp::start_of(DAY + chrono::Days::new(4));
    library
        .publish(&[Entry {
            id: again,
            location: place,
        }])
        .await;
    let waiting = library.unindexed().await;
    library.index(&waiting).await;
    library.check("it was sent again").await;

    let keep_from = DAY + chrono::Days::new(2);
    let files = library.live().await;
    library.merge(&files, Some(keep_from)).await;
    for places in library.places.values_mut() {
        places.retain(|place| place.sort_time.day() >= keep_from);
    }
    library.check("merging").await;
    let merged = library.live().await;
    let left = library.places.values().filter(|places| !places.is_empty()).count();
    assert_eq!(merged.len(), 1);
    assert_eq!(merged[0].entries as usize, left);
    assert!(left < all.len() * 3 / 4, "{left} of {}", all.len());

    // When all of it is gone, so is the file.
    library.merge(&merged, Some(DAY + chrono::Days::new(100))).await;
    assert!(library.live().await.is_empty());
}

async fn of_several_places_the_smallest_is_kept(world: World) {
    let mut library = Library::new(world, 8).await;
    let id = library.id();
    let at = |hours: u64| Timestamp::start_of(DAY).plus(Duration::from_secs(3600 * hours));
    let (low, high) = {
        let mut projects = [library.projects[0], library.projects[1]];
        projects.sort_unstable();
        projects.into()
    };
    let place = |hours, project| RunLocation {
        sort_time: at(hours),
        project,
    };
    let smallest = place(1, low);
    let others = [place(1, high), place(2, low), smallest];
    for place in others {
        library.publish(&[Entry { id, location: place }]).await;
        let waiting = library.unindexed().await;
        library.index(&waiting).await;
    }
    assert_eq!(library.locate(&[id]).await[&id], BTreeSet::from(others), "all are told");
    let files = library.live().await;
    library.merge(&files, None).await;
    assert_eq!(library.locate(&[id]).await[&id], BTreeSet::from([smallest]));
}

async fn what_comes_of_indexed_segments_is_indexed(world: World) {
    let mut library = Library::new(world, 9).await;
    let project = library.projects[0];
    let publish = async |library: &mut Library| {
        let mut rows = library.rows(10);
        for row in &mut rows {
            row.location.project = project;
            row.location.sort_time = Timestamp::start_of(DAY);
        }
        library.publish(&rows).await;
    };
    publish(&mut library).await;
    publish(&mut library).await;
    let waiting = library.unindexed().await;
    library.index(&waiting).await;
    library.compact(project, DAY).await;
    assert!(
        library.unindexed().await.is_empty(),
        "the index says where its rows lie"
    );
    library.check("compacting what is indexed").await;
    publish(&mut library).await;
    library.compact(project, DAY).await;
    assert_eq!(
        library.unindexed().await.len(),
        1,
        "some of its rows are in no index file"
    );
    library.check("compacting what is indexed and what is not").await;
    // A segment that was replaced while it was indexed is marked in vain.
    let waiting = library.unindexed().await;
    publish(&mut library).await;
    library.compact(project, DAY).await;
    library.index(&waiting).await;
    assert_eq!(library.unindexed().await.len(), 1);
    library.check("indexing what was replaced").await;
}

async fn a_workspace_without_segments_has_no_index(world: World) {
    let mut library = Library::new(world, 10).await;
    let rows = library.rows(100);
    library.publish(&rows).await;
    let waiting = library.unindexed().await;
    library.index(&waiting).await;
    for project in library.projects.clone() {
        assert_eq!(library.live().await.len(), 1);
        library.delete(project).await;
    }
    assert!(library.live().await.is_empty());
    library.check("everything was deleted").await;
    let later = library.world.store.clock().now().plus(Duration::from_secs(60));
    assert_eq!(library.write(async |tx| catalog::collect(tx, later, 10).await).await, 1);
    let going = library
        .read(async |tx| catalog::deleting(tx, later, catalog::FIRST, 10).await)
        .await;
    assert_eq!(going.len(), 1);
    let tenant = library.tenant();
    library
        .write(async |tx| catalog::forget(tx, tenant, going[0].id).await)
        .await;
    assert!(
        library
            .read(async |tx| catalog::deleting(tx, later, catalog::FIRST, 10).await)
            .await
            .is_empty()
    );
}

async fn workspaces_are_due_by_number_and_by_age(world: World) {
    let mut library = Library::new(world, 11).await;
    let tenant = library.tenant();
    for _ in 0..3 {
        let rows = library.rows(1);
        library.publish(&rows).await;
    }
    let (long_ago, later) = {
        let now = library.world.store.clock().now();
        let hour = Duration::from_secs(3600);
        (now.minus(hour), now.plus(hour))
    };
    let due = async |least, before| library.read(async |tx| catalog::due(tx, least, before, 10).await).await;
    assert_eq!(due(3, long_ago).await, [tenant]);
    assert!(due(4, long_ago).await.is_empty());
    assert_eq!(due(4, later).await, [tenant], "they have waited long enough");
    let among = async |tenants: &[TenantId], least| {
        library
            .read(async |tx| catalog::due_among(tx, tenants, least).await)
            .await
    };
    assert_eq!(among(&[TenantId::new(), tenant], 3).await, [tenant]);
    assert!(among(&[tenant], 4).await.is_empty());
    assert!(among(&[TenantId::new()], 1).await.is_empty());
    library.index(&library.unindexed().await).await;
    assert!(due(1, later).await.is_empty());
}

async fn another_workspace_has_its_own(world: World) {
    let mut library = Library::new(world, 12).await;
    let rows = library.rows(10);
    library.publish(&rows).await;
    let waiting = library.unindexed().await;
    library.index(&waiting[..1]).await;
    let more = library.rows(10);
    library.publish(&more).await;
    let ids = [rows[0].id, more[0].id];
    assert_eq!(library.locate(&ids).await.len(), 2);
    let stranger = run_index::locate(&library.world.store, &library.objects, TenantId::new(), &ids).await;
    assert!(stranger.unwrap().is_empty());
}

/// More than a row group holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_several_row_groups_is_read_by_pages() {
    let mut library = Library::new(World::new().await, 13).await;
    let location = library.place();
    let count = GROUP_ENTRIES + 5000;
    let entries: Vec<Entry> = (0..count)
        .map(|_| Entry {
            id: library.id(),
            location,
        })
        .collect();
    let file = library.file(entries).await;
    assert_eq!(file.entries as usize, count);
    let all: Vec<TraceRunId> = library.places.keys().copied().collect();
    assert_eq!((all[0], all[count - 1]), (file.first_run, file.last_run));
    library.reads.reads();
    let ids = [
        all[0],
        all[4095],
        all[4096],
        all[GROUP_ENTRIES - 1],
        all[GROUP_ENTRIES],
        all[count - 1],
    ];
    assert_eq!(library.locate(&ids).await.len(), ids.len());
    let reads = library.reads.reads();
    assert!(reads <= 16, "{reads} reads");
    let some: Vec<TraceRunId> = all.iter().copied().step_by(101).collect();
    assert_eq!(library.locate(&some).await.len(), some.len());
    let unknown = library.ids(10_000);
    library.reads.reads();
    assert!(library.locate(&unknown).await.is_empty());
    let reads = library.reads.reads();
    assert!(reads <= 4, "{reads} reads for what filters let through");
    // A merge reads it in pieces, and writes the same again.
    let files = library.live().await;
    library.merge(&files, None).await;
    assert_eq!(library.live().await[0].entries as usize, count);
    assert_eq!(library.locate(&some).await.len(), some.len());
}

/// What is not an index file is said to be corrupt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_is_no_index_file() {
    let mut library = Library::new(World::new().await, 14).await;
    let rows = library.rows(10);
    let segment = library.segment(&rows).await;
    let (tenant, id) = (library.tenant(), RunIndexId::new());
    let written = towpath_store::run_index::IndexFileRecord {
        id,
        entries: 10,
        bytes: 1,
        first_run: TraceRunId::nil(),
        last_run: rows.iter().map(|row| row.id).max().unwrap(),
    };
    library
        .write(async |tx| {
            catalog::intend(tx, tenant, id, segment.written.path.as_ref(), None).await?;
            catalog::publish(tx, tenant, &[written], &[]).await
        })
        .await;
    let failed = library.try_locate(&[rows[0].id]).await;
    assert!(
        matches!(&failed, Err(LocateError::Columnar(Error::Corrupt { .. }))),
        "{failed:?}"
    );
}
