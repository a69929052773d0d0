//! One trace run is in one place, whatever its operations say of it and however they are cut into flushes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use towpath_domain::{Timestamp, TraceRunId};
use towpath_store::segments;
use towpath_traces::accept::Route;
use towpath_traces::flush::Options;
use towpath_traces::sample::Cell;
use uuid::Uuid;

use super::world::{World, column, on_both_databases};

on_both_databases!(
    a_patch_with_an_earlier_order_does_not_move_its_run,
    two_posts_of_one_id_into_two_projects,
    a_patch_that_names_another_project_and_an_earlier_time,
    a_patch_that_came_before_its_post_does_not_place_it,
    a_patch_of_a_folded_run_beside_others_of_its_day,
    a_post_sent_again_without_a_start_is_one_row,
    a_run_of_a_deleted_project_is_dropped_and_its_id_is_free,
    a_segment_has_a_bounded_number_of_row_groups,
);

const NOON: &str = "2026-03-01T12:00:00Z";

fn order(time: &str, id: TraceRunId) -> String {
    format!("{time}Z{id}")
}

fn post(id: TraceRunId, project: &str, rest: &str) -> String {
    format!(r#"{{"id":"{id}","name":"{id}","session_name":"{project}"{rest}}}"#)
}

impl World {
    async fn send(&self, requests: &[(Route, String)]) {
        let accepted: Vec<_> = requests
            .iter()
            .map(|(route, json)| self.accept_json(*route, json))
            .collect();
        self.unit(&accepted).await;
    }

    /// Every id with its start, in order.
    async fn starts(&self, project: &str) -> Vec<(String, Timestamp)> {
        let rows = self.rows(self.project(project).await).await;
        let start = |row: &Vec<Cell>| match (&row[0], &row[column("start_time")]) {
            (Cell::Text(id), Cell::Time(start)) => (id.clone(), *start),
            other => panic!("{other:?}"),
        };
        rows.iter().map(start).collect()
    }
}

fn time(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

/// Two runs of one project and day, and a patch that says its run began a year earlier.
async fn a_patch_with_an_earlier_order_does_not_move_its_run(world: World) {
    let (a, b) = (TraceRunId::new(), TraceRunId::new());
    let own = order("20260301T120000000000", b);
    let earlier = order("20250707T120000000000", b);
    world
        .send(&[
            (Route::Run, post(a, "p", &format!(r#","start_time":"{NOON}""#))),
            (
                Route::Run,
                post(
                    b,
                    "p",
                    &format!(r#","start_time":"{NOON}","trace_id":"{b}","dotted_order":"{own}""#),
                ),
            ),
            (
                Route::Patch(b),
                format!(r#"{{"trace_id":"{b}","dotted_order":"{earlier}","end_time":"2026-03-01T12:00:01Z"}}"#),
            ),
        ])
        .await;
    world.fold().await;
    let ids: Vec<_> = world.starts("p").await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, [a.to_string(), b.to_string()]);
    let row = world.row(world.project("p").await, b).await.unwrap();
    assert_eq!(row[column("status")], "success".into());
}

async fn two_posts_of_one_id_into_two_projects(world: World) {
    let (a, b) = (TraceRunId::new(), TraceRunId::new());
    world
        .send(&[
            (Route::Run, post(a, "p", &format!(r#","start_time":"{NOON}""#))),
            (Route::Run, post(b, "p", &format!(r#","start_time":"{NOON}""#))),
            (Route::Run, post(b, "q", r#","start_time":"2025-03-01T12:00:00Z""#)),
            (
                Route::Run,
                post(TraceRunId::new(), "q", r#","start_time":"2025-03-01T12:00:00Z""#),
            ),
        ])
        .await;
    world.fold().await;
    assert_eq!(world.starts("p").await.len(), 2);
    assert_eq!(world.starts("q").await.len(), 1);
}

async fn a_patch_that_names_another_project_and_an_earlier_time(world: World) {
    let (a, b) = (TraceRunId::new(), TraceRunId::new());
    let earlier = order("20250707T120000000000", b);
    for folds in [false, true] {
        world
            .send(&[
                (Route::Run, post(a, "p", &format!(r#","start_time":"{NOON}""#))),
                (Route::Run, post(b, "p", &format!(r#","start_time":"{NOON}""#))),
            ])
            .await;
        if folds {
            world.fold().await;
        }
        world
            .send(&[(
                Route::Patch(b),
                format!(r#"{{"session_name":"q","dotted_order":"{earlier}","outputs":{{"x":1}}}}"#),
            )])
            .await;
        world.fold().await;
        assert_eq!(world.starts("p").await.len(), 2);
        assert_eq!(world.starts("q").await, []);
        let row = world.row(world.project("p").await, b).await.unwrap();
        assert_eq!(row[column("outputs")], r#"{"x":1}"#.into());
    }
}

async fn a_patch_that_came_before_its_post_does_not_place_it(world: World) {
    let (a, b) = (TraceRunId::new(), TraceRunId::new());
    let earlier = order("20250707T120000000000", b);
    world
        .send(&[(
            Route::Patch(b),
            format!(r#"{{"dotted_order":"{earlier}","outputs":{{"x":1}}}}"#),
        )])
        .await;
    world.fold().await;
    world
        .send(&[
            (Route::Run, post(a, "p", &format!(r#","start_time":"{NOON}""#))),
            (Route::Run, post(b, "p", &format!(r#","start_time":"{NOON}""#))),
        ])
        .await;
    world.fold().await;
    assert_eq!(world.starts("p").await.len(), 2);
    let row = world.row(world.project("p").await, b).await.unwrap();
    assert_eq!(row[column("outputs")], r#"{"x":1}"#.into());
}

async fn a_patch_of_a_folded_run_beside_others_of_its_day(world: World) {
    let (a, b) = (TraceRunId::new(), TraceRunId::new());
    world
        .send(&[(Route::Run, post(b, "p", &format!(r#","start_time":"{NOON}""#)))])
        .await;
    world.fold().await;
    let earlier = order("20250707T120000000000", b);
    let later = order("20270707T120000000000", b);
    for sent in [earlier, later] {
        world
            .send(&[
                (Route::Run, post(a, "p", &format!(r#","start_time":"{NOON}""#))),
                (
                    Route::Patch(b),
                    format!(r#"{{"session_name":"p","dotted_order":"{sent}","end_time":"{NOON}"}}"#),
                ),
            ])
            .await;
        world.fold().await;
        assert_eq!(world.starts("p").await.len(), 2);
    }
}

/// A client whose answer was lost sends its post again, and each copy gets a start of its own when it comes in.
async fn a_post_sent_again_without_a_start_is_one_row(world: World) {
    let id = TraceRunId::new();
    for received_at in [NOON, "2026-03-01T12:00:00.000001Z", "2026-03-02T00:00:00Z"] {
        let accepted = world.accept_json_at(Route::Run, &post(id, "p", ""), time(received_at));
        world.unit(&[accepted]).await;
        world.fold().await;
    }
    assert_eq!(world.starts("p").await, [(id.to_string(), time(NOON))]);
}

async fn a_run_of_a_deleted_project_is_dropped_and_its_id_is_free(world: World) {
    let id = TraceRunId::new();
    let rest = format!(r#","start_time":"{NOON}""#);
    world.send(&[(Route::Run, post(id, "p", &rest))]).await;
    let project = world.project("p").await;
    world
        .store
        .write(async |tx| {
            towpath_store::projects::delete(tx, world.tenant, project)
                .await
                .map(drop)
        })
        .await
        .unwrap();
    let folded = world.fold().await;
    assert_eq!((folded.dropped, folded.pending_operations.len()), (1, 0));
    world.send(&[(Route::Run, post(id, "q", &rest))]).await;
    world.fold().await;
    assert_eq!(world.starts("q").await.len(), 1);
}

/// A row group for each day, and the format numbers the row groups of a segment in 16 bits.
async fn a_segment_has_a_bounded_number_of_row_groups(world: World) {
    const DAYS: i64 = 33;
    let first = time(NOON).micros();
    let posts: Vec<_> = (0..DAYS)
        .map(|day| {
            let start = Timestamp::from_micros(first - day * 86_400_000_000);
            format!(
                r#"{{"id":"{}","session_name":"p","start_time":"{start}"}}"#,
                TraceRunId::new()
            )
        })
        .collect();
    let body = format!(r#"{{"post":[{}]}}"#, posts.join(","));
    world.unit(&[world.accept_json(Route::Batch, &body)]).await;
    let options = Options {
        segment_groups: 8,
        ..Options::default()
    };
    let folded = world.fold_with(&options).await;
    let groups: Vec<_> = folded
        .segments
        .iter()
        .map(|segment| segment.written.parts.len())
        .collect();
    assert_eq!(groups, [8, 8, 8, 8, 1]);
    assert_eq!(world.starts("p").await.len(), 33);
}

/// What one operation of the property test says. Few values, so that operations agree and disagree often.
#[derive(Clone, Debug)]
struct StatedOperation {
    run: u8,
    post: bool,
    project: Option<u8>,
    start: Option<u8>,
    order: Option<u8>,
    /// A new WAL segment begins with it, and a flush comes before it.
    unit: bool,
    fold: bool,
}

/// A segment for each look-up.
const SMALL: Options = Options {
    segment_bytes: 1,
    segment_groups: 1024,
    decoded_bytes: usize::MAX,
    frame: None,
};
const PROJECTS: [&str; 2] = ["p", "q"];
/// Starts that differ by a microsecond, within a day, over midnight, and by a year.
const STARTS: [&str; 5] = [
    "2026-03-01T23:59:59.999999Z",
    "2026-03-02T00:00:00.000000Z",
    "2026-03-01T12:00:00.000000Z",
    "2025-03-01T12:00:00.000000Z",
    "2026-03-01T12:00:00.000001Z",
];

fn said() -> impl Strategy<Value = StatedOperation> {
    (
        0_u8..3,
        any::<bool>(),
        proptest::option::weighted(0.7, 0_u8..2),
        proptest::option::weighted(0.6, 0_u8..5),
        proptest::option::weighted(0.5, 0_u8..5),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(run, post, project, start, order, unit, fold)| StatedOperation {
            run,
            post,
            project,
            start,
            order,
            unit,
            fold,
        })
}

impl StatedOperation {
    fn id(&self) -> TraceRunId {
        TraceRunId(Uuid::from_u128(u128::from(self.run) + 1))
    }

    fn json(&self, nth: usize) -> String {
        let mut json = format!(r#"{{"id":"{}","extra":{{"said_{nth}":{nth}}}"#, self.id());
        if let Some(project) = self.project {
            json += &format!(r#","session_name":"{}""#, PROJECTS[usize::from(project)]);
        }
        if let Some(start) = self.start {
            json += &format!(r#","start_time":"{}""#, STARTS[usize::from(start)]);
        }
        if let Some(order) = self.order {
            let start: String = STARTS[usize::from(order)]
                .chars()
                .filter(char::is_ascii_alphanumeric)
                .collect();
            json += &format!(r#","dotted_order":"{start}{}""#, self.id());
        }
        json + "}"
    }

    /// The place that this operation states, by the rule as the documentation has it.
    fn place(&self) -> Option<(&'static str, Timestamp)> {
        let project = match (self.project, self.post) {
            (Some(project), _) => PROJECTS[usize::from(project)],
            (None, true) => "default",
            (None, false) => return None,
        };
        let start = match (self.order, self.start, self.post) {
            (Some(order), ..) => time(STARTS[usize::from(order)]),
            (None, Some(start), true) => time(STARTS[usize::from(start)]),
            (None, None, true) => time(NOON),
            (None, _, false) => return None,
        };
        Some((project, start))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Operations on three ids that agree on nothing, in any order, cut into WAL segments and flushes in any way: one
    /// row for each id that is placed, where its first word places it, and every operation that counts is in it.
    #[test]
    fn any_operations_in_any_cut_give_one_row(mut all in proptest::collection::vec(said(), 1..10), again in any::<prop::sample::Index>()) {
        all.push(again.get(&all).clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new().await;
            let mut places: BTreeMap<TraceRunId, (&str, Timestamp)> = BTreeMap::new();
            let mut counted: BTreeMap<TraceRunId, (Option<usize>, Vec<usize>)> = BTreeMap::new();
            let mut unit = Vec::new();
            for (nth, said) in all.iter().enumerate() {
                if let Some(place) = said.place() {
                    places.entry(said.id()).or_insert(place);
                }
                let (post, patches) = counted.entry(said.id()).or_default();
                match said.post {
                    true => _ = post.get_or_insert(nth),
                    false => patches.push(nth),
                }
                if said.unit && !unit.is_empty() {
                    world.unit(&std::mem::take(&mut unit)).await;
                }
                if said.fold {
                    world.fold_with(&SMALL).await;
                }
                let route = if said.post { Route::Run } else { Route::Patch(said.id()) };
                unit.push(world.accept_json(route, &said.json(nth)));
            }
            world.unit(&unit).await;
            world.fold().await;
            for project in PROJECTS.iter().copied().chain(["default"]) {
                let expected: Vec<_> = places
                    .iter()
                    .filter(|(_, place)| place.0 == project)
                    .map(|(id, _)| *id)
                    .collect();
                let found = world.project_if_there(project).await;
                let rows = match found {
                    Some(project) => world.rows(project).await,
                    None => Vec::new(),
                };
                let mut ids: Vec<_> = rows.iter().map(|row| row[0].clone()).collect();
                ids.sort_by_key(|id| format!("{id:?}"));
                assert_eq!(ids, expected.iter().map(|id| Cell::Text(id.to_string())).collect::<Vec<_>>(), "{project}");
                for row in rows {
                    let Cell::Text(id) = &row[0] else { panic!() };
                    let id: TraceRunId = id.parse().unwrap();
                    let (post, patches) = &counted[&id];
                    let Cell::Text(extra) = &row[column("extra")] else { panic!("{row:?}") };
                    let mut keys: Vec<_> = post.iter().chain(patches).map(|nth| format!(r#""said_{nth}":{nth}"#)).collect();
                    keys.sort();
                    assert_eq!(extra, &format!("{{{}}}", keys.join(",")));
                }
            }
            // Each row is in the part of its day.
            let live = world.store.read(async |tx| segments::live(tx, world.tenant).await).await.unwrap();
            for segment in live {
                let parts = world.store.read(async |tx| segments::parts(tx, world.tenant, segment.id).await).await.unwrap();
                for part in parts {
                    assert_eq!((part.min_sort_time.day(), part.max_sort_time.day()), (part.day, part.day));
                }
            }
        });
    }
}
