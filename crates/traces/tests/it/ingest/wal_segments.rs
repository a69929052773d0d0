//! WAL segments of several workspaces in one object: no one meets what is another's, or waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::path::Path;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use towpath_domain::json::Object;
use towpath_domain::{ProjectId, Shard, TenantId, TraceRunId, WalSegmentId};
use towpath_store::projects::{self, ProjectChange};
use towpath_store::{Error, feedback, on, wal_segments};
use towpath_traces::accept::{AcceptedRequest, Route};
use towpath_traces::body::Encoding;
use towpath_traces::flush;
use towpath_traces::sample::{Cell, SampleOperations};
use towpath_traces::wal::{AppendError, Frame, OnRegistered, Options, Wal, frame};
use uuid::Uuid;

use super::world::{World, column, on_both_databases, sample, sent_by};

on_both_databases!(
    what_comes_together_lies_in_one_object,
    an_unknown_project_refuses_its_request_alone,
    a_workspace_that_cannot_be_written_keeps_no_other_out,
    each_workspace_has_its_rows,
    damage_stays_with_its_workspace,
    an_object_that_was_cut_off_is_noticed,
    a_renamed_project_keeps_what_was_sent_before,
    what_was_sent_to_a_deleted_project_does_not_appear_in_another,
    feedback_changed_before_its_fold_stays_changed,
);

/// A log that writes nothing more until it is let go. What is sent to it meanwhile shares a flush, since one is under
/// way.
struct BlockedWal {
    wal: Wal,
    gate: Arc<Semaphore>,
    first: JoinHandle<Result<(), AppendError>>,
}

impl BlockedWal {
    /// Registrations of the shard of `refused` fail.
    async fn new(world: &World, refused: Option<TenantId>) -> Self {
        let (entered, mut inside) = mpsc::unbounded_channel();
        let gate = Arc::new(Semaphore::new(0));
        let held = gate.clone();
        let on_registered: OnRegistered = Arc::new(move |_tx, shards| {
            let (held, entered) = (held.clone(), entered.clone());
            let refuse = refused.is_some_and(|tenant| shards.contains(&Shard::of(tenant)));
            Box::pin(async move {
                // No one listens after the first.
                let _ = entered.send(());
                held.acquire().await.unwrap().forget();
                if refuse { Err(Error::NotFound) } else { Ok(()) }
            })
        });
        let options = Options::for_store(&world.objects);
        let wal = Wal::new(world.store.clone(), world.objects.clone(), options, on_registered);
        let first = world.accept_json(Route::Run, &run("first", r#""session_name":"canal""#));
        let first = tokio::spawn({
            let wal = wal.clone();
            async move { wal.append(first).await }
        });
        inside.recv().await.unwrap();
        Self { wal, gate, first }
    }

    /// Sends these at once, and returns what became of each.
    async fn send(self, all: Vec<AcceptedRequest>) -> Vec<Result<(), AppendError>> {
        let mut sending = Vec::new();
        for accepted in all {
            let mut append = Box::pin({
                let wal = self.wal.clone();
                async move { wal.append(accepted).await }
            });
            // Polled once it is in the queue, behind those before it.
            assert!(futures::poll!(&mut append).is_pending());
            sending.push(append);
        }
        self.gate.add_permits(100);
        self.first.await.unwrap().unwrap();
        futures::future::join_all(sending).await
    }
}

fn run(name: &str, project: &str) -> String {
    let id = TraceRunId::new();
    format!(r#"{{"id":"{id}","name":"{name}","start_time":"2026-03-01T10:00:00Z",{project}}}"#)
}

/// A workspace of another shard.
fn neighbour(tenant: TenantId) -> TenantId {
    let mut bytes = *tenant.0.as_bytes();
    bytes[15] ^= 1;
    TenantId(Uuid::from_bytes(bytes))
}

async fn frames(world: &World, unit: &wal_segments::WalSegment) -> Vec<Frame> {
    let (from, length) = (unit.byte_offset as u64, unit.bytes as u64);
    let path = Path::from(unit.path.as_str());
    let bytes = world.objects.get_range(&path, from..from + length).await.unwrap();
    frame::read_range(bytes, from, length)
        .collect::<Result<_, _>>()
        .unwrap()
}

async fn open_of(world: &World, tenant: TenantId) -> Vec<wal_segments::WalSegment> {
    world
        .store
        .read(async |tx| wal_segments::open_of(tx, tenant).await)
        .await
        .unwrap()
}

async fn unfolded(world: &World, open: &[wal_segments::WalSegment]) -> flush::UnflushedData {
    let read = flush::read_unflushed(&world.store, &world.objects, open, 1 << 20).await;
    read.unwrap().unwrap()
}

async fn what_comes_together_lies_in_one_object(world: World) {
    let other = neighbour(world.tenant);
    let held = BlockedWal::new(&world, None).await;
    let named = |name: &str, project: &str| {
        world.accept_json(Route::Run, &run(name, &format!(r#""session_name":"{project}""#)))
    };
    let (one, two, three) = (named("one", "canal"), named("two", "harbour"), named("three", "canal"));
    let two = sent_by(other, two);
    for answer in held.send(vec![one.clone(), two.clone(), three.clone()]).await {
        answer.unwrap();
    }
    let (own, others) = (open_of(&world, world.tenant).await, open_of(&world, other).await);
    assert_eq!((own.len(), others.len()), (2, 1));
    assert_eq!(own[1].path, others[0].path);
    assert_eq!(
        frames(&world, &own[1]).await,
        [one.frame, three.frame],
        "in the order they came"
    );
    assert_eq!(frames(&world, &others[0]).await, [two.frame]);
    let object = world.objects.get(&Path::from(own[1].path.as_str())).await.unwrap();
    assert_eq!(
        own[1].bytes + others[0].bytes + frame::FIRST as i64,
        object.len() as i64
    );
    let names = world
        .store
        .read(async |tx| wal_segments::names(tx, &[own[1].id, others[0].id]).await)
        .await
        .unwrap();
    let names: BTreeMap<String, WalSegmentId> = names.into_iter().map(|name| (name.name, name.unit_id)).collect();
    let expected = [("canal".to_owned(), own[1].id), ("harbour".to_owned(), others[0].id)];
    assert!(names.into_iter().eq(expected));
}

async fn an_unknown_project_refuses_its_request_alone(world: World) {
    let other = neighbour(world.tenant);
    let (own, gone, unknown) = (
        world.project_of(world.tenant, "own").await,
        world.project_of(world.tenant, "gone").await,
        ProjectId::new(),
    );
    world
        .store
        .write(async |tx| projects::delete(tx, world.tenant, gone).await)
        .await
        .unwrap();
    let held = BlockedWal::new(&world, None).await;
    let to = |project: ProjectId| world.accept_json(Route::Run, &run("to", &format!(r#""session_id":"{project}""#)));
    let by_name = world.accept_json(Route::Run, &run("by name", r#""session_name":"own""#));
    let sent = vec![
        to(unknown),
        to(own),
        sent_by(other, to(own)),
        to(gone),
        sent_by(other, by_name),
    ];
    let answers = held.send(sent.clone()).await;
    let refused: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
            Ok(()) => None,
            Err(AppendError::NoProject(project)) => Some(*project),
            Err(other) => panic!("{other}"),
        })
        .collect();
    assert_eq!(refused, [Some(unknown), None, Some(own), Some(gone), None]);
    assert_eq!(
        answers[0].as_ref().unwrap_err().to_string(),
        format!("project {unknown} is not in this workspace")
    );
    let (own, others) = (open_of(&world, world.tenant).await, open_of(&world, other).await);
    assert_eq!((own.len(), others.len()), (2, 1));
    assert_eq!(frames(&world, &own[1]).await, [sent[1].frame.clone()]);
    assert_eq!(frames(&world, &others[0]).await, [sent[4].frame.clone()]);
    assert_eq!(own[1].path, others[0].path, "the others still share a flush");
}

/// A project is deleted between the look at it and the registration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_project_that_goes_meanwhile_refuses_its_request() {
    let Some(world) = World::postgres().await else { return };
    let (tenant, going) = (world.tenant, world.project_of(world.tenant, "going").await);
    let (made, ready) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    // A caller makes the other project that the request names, and takes a while.
    let other = tokio::spawn({
        let store = world.store.clone();
        async move {
            let made = store.write(async |tx| {
                projects::ensure(tx, tenant, "other").await?;
                made.send(()).unwrap();
                released.await.unwrap();
                Ok(())
            });
            made.await
        }
    });
    ready.await.unwrap();
    let (one, two) = (TraceRunId::new(), TraceRunId::new());
    let body =
        format!(r#"{{"post":[{{"id":"{one}","session_name":"other"}},{{"id":"{two}","session_id":"{going}"}}]}}"#);
    let sending = tokio::spawn({
        let (wal, accepted) = (world.wal(), world.accept_json(Route::Batch, &body));
        async move { wal.append(accepted).await }
    });
    let waits = async || {
        let text =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        let seen = world
            .store
            .read(async |tx| Ok(on!(tx, |conn| sqlx::query_scalar(text).fetch_one(conn).await)?));
        let seen: i64 = seen.await.unwrap();
        seen > 0
    };
    let patience = std::time::Instant::now();
    while !waits().await {
        assert!(patience.elapsed().as_secs() < 10, "nothing waits for the other project");
    }
    world
        .store
        .write(async |tx| projects::delete(tx, tenant, going).await)
        .await
        .unwrap();
    release.send(()).unwrap();
    other.await.unwrap().unwrap();
    let refused = sending.await.unwrap();
    assert!(matches!(refused, Err(AppendError::NoProject(project)) if project == going));
    assert_eq!(world.open_units().await, 0);
    let folder = world.folder.path().join("objects/wal");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "its object is gone, too");
}

async fn a_workspace_that_cannot_be_written_keeps_no_other_out(world: World) {
    let other = neighbour(world.tenant);
    let held = BlockedWal::new(&world, Some(other)).await;
    let good = world.accept_json(Route::Run, &run("good", r#""session_name":"canal""#));
    let bad = sent_by(other, good.clone());
    let answers = held.send(vec![bad.clone(), good.clone(), bad]).await;
    assert!(matches!(answers[0], Err(AppendError::Unavailable(_))));
    assert!(answers[1].is_ok());
    assert!(matches!(answers[2], Err(AppendError::Unavailable(_))));
    let own = open_of(&world, world.tenant).await;
    assert_eq!(frames(&world, &own[1]).await, [good.frame]);
    assert_eq!(world.open_units().await, 2);
    let folder = world.folder.path().join("objects/wal");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 2, "nothing else is left");
}

/// Bodies of two workspaces about the same trace runs in projects of their own.
async fn twins(world: &World) -> [(TenantId, ProjectId, Vec<AcceptedRequest>); 2] {
    let other = neighbour(world.tenant);
    let id = TraceRunId::new();
    let mut twins = Vec::new();
    for (tenant, name) in [(world.tenant, "mine"), (other, "theirs")] {
        let project = world.project_of(tenant, "canal").await;
        let post =
            format!(r#"{{"id":"{id}","name":"{name}","start_time":"2026-03-01T10:00:00Z","session_id":"{project}"}}"#);
        let patch = r#"{"end_time":"2026-03-01T10:00:01Z"}"#;
        let bodies = [
            world.accept_json(Route::Run, &post),
            world.accept_json(Route::Patch(id), patch),
        ];
        let bodies = bodies.map(|body| sent_by(tenant, body));
        twins.push((tenant, project, bodies.to_vec()));
    }
    twins.try_into().unwrap_or_else(|_| panic!("two"))
}

fn sent(twins: &[(TenantId, ProjectId, Vec<AcceptedRequest>)]) -> Vec<(TenantId, Vec<AcceptedRequest>)> {
    twins
        .iter()
        .map(|(tenant, _, bodies)| (*tenant, bodies.clone()))
        .collect()
}

async fn each_workspace_has_its_rows(world: World) {
    let twins = twins(&world).await;
    world.shared_unit(&sent(&twins)).await;
    for (tenant, ..) in &twins {
        let open = open_of(&world, *tenant).await;
        let read = unfolded(&world, &open).await;
        assert_eq!(read.parts.iter().map(|(.., rows)| rows).sum::<u64>(), 1);
    }
    let folded = world.fold().await;
    assert_eq!((folded.operations, folded.wal_segments.len()), (4, 2));
    for ((tenant, project, _), name) in twins.iter().zip(["mine", "theirs"]) {
        let rows = world.rows_of(*tenant, *project).await;
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0][column("name")], name.into());
        assert_eq!(rows[0][column("status")], "success".into());
    }
}

async fn damage_stays_with_its_workspace(world: World) {
    let twins = twins(&world).await;
    let (path, _) = world.shared_unit(&sent(&twins)).await;
    let file = world.folder.path().join("objects").join(path.as_ref());
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(6).position(|window| window == b"theirs").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let folded = world.fold().await;
    assert_eq!((folded.quarantined.len(), folded.wal_segments.len()), (1, 2));
    let (tenant, project, _) = &twins[0];
    assert_eq!(world.rows_of(*tenant, *project).await.len(), 1);
    let entry = world.quarantined().await.remove(0);
    assert_eq!(entry.tenant_id, twins[1].0);
    let kept = Path::from(entry.path.as_str());
    let kept: Vec<_> = frame::read(world.objects.get(&kept).await.unwrap()).collect();
    assert_eq!(kept.len(), 1, "the damaged frame alone");
    assert!(kept[0].is_err());
}

async fn an_object_that_was_cut_off_is_noticed(world: World) {
    let twins = twins(&world).await;
    let (path, _) = world.shared_unit(&sent(&twins)).await;
    let others = open_of(&world, twins[1].0).await.remove(0);
    let file = std::fs::File::options()
        .write(true)
        .open(world.folder.path().join("objects").join(path.as_ref()))
        .unwrap();
    // Between two WAL segments: nothing is left of the second.
    file.set_len(others.byte_offset as u64).unwrap();
    let folded = world.fold().await;
    assert_eq!((folded.operations, folded.quarantined.len()), (2, 1));
}

async fn rename(world: &World, project: ProjectId, name: &str) {
    let change = ProjectChange {
        name: Some(name.to_owned()),
        ..ProjectChange::default()
    };
    let renamed = world
        .store
        .write(async |tx| projects::update(tx, world.tenant, project, &change).await);
    renamed.await.unwrap();
}

async fn a_renamed_project_keeps_what_was_sent_before(world: World) {
    let sample = sample(31);
    let wal = world.wal();
    wal.append(world.accept(&sample.body(0..10, SampleOperations::Posts, Encoding::Zstd)))
        .await
        .unwrap();
    let project = world.project("canal").await;
    rename(&world, project, "waterway").await;
    // The name is free for another one.
    wal.append(world.accept(&sample.body(10..15, SampleOperations::Both, Encoding::Zstd)))
        .await
        .unwrap();
    let other = world.project("canal").await;
    // What changes those is sent under the new name, or under none.
    wal.append(world.accept(&sample.body(0..10, SampleOperations::Patches, Encoding::Zstd)))
        .await
        .unwrap();
    let folded = world.fold().await;
    assert!(folded.pending_operations.is_empty());
    assert_eq!(
        (world.rows(project).await.len(), world.rows(other).await.len()),
        (10, 5)
    );
    let done = |row: &Vec<Cell>| row[column("status")] != "pending".into();
    assert!(world.rows(project).await.iter().all(done));
}

async fn what_was_sent_to_a_deleted_project_does_not_appear_in_another(world: World) {
    let sample = sample(32);
    let wal = world.wal();
    wal.append(world.accept(&sample.body(0..10, SampleOperations::Both, Encoding::Zstd)))
        .await
        .unwrap();
    let gone = world.project("canal").await;
    world
        .store
        .write(async |tx| projects::delete(tx, world.tenant, gone).await)
        .await
        .unwrap();
    wal.append(world.accept(&sample.body(10..15, SampleOperations::Both, Encoding::Zstd)))
        .await
        .unwrap();
    let new = world.project("canal").await;
    assert_ne!(gone, new);
    let open = open_of(&world, world.tenant).await;
    let read = unfolded(&world, &open).await;
    assert!(read.parts.iter().all(|(project, ..)| *project == new));
    let folded = world.fold().await;
    assert_eq!(folded.dropped, sample.operations(0..10, SampleOperations::Both));
    assert!(folded.pending_operations.is_empty());
    assert_eq!((world.rows(gone).await.len(), world.rows(new).await.len()), (0, 5));
}

async fn feedback_changed_before_its_fold_stays_changed(world: World) {
    let (wal, id) = (world.wal(), Uuid::now_v7());
    let give = async |score: u32| {
        let body = format!(r#"{{"id":"{id}","key":"good","score":{score}}}"#);
        wal.append(world.accept_json(Route::Feedback, &body)).await.unwrap();
    };
    let stored = async || {
        let found = world.store.read(async |tx| feedback::find(tx, world.tenant, id).await);
        found.await.unwrap().unwrap().body
    };
    give(1).await;
    let open = open_of(&world, world.tenant).await;
    let read = unfolded(&world, &open).await;
    let (row, changed) = (&read.feedback[0], Object::parse(r#"{"score":2}"#).unwrap());
    world
        .store
        .write(async |tx| feedback::update_body(tx, world.tenant, id, Some(row), &changed).await)
        .await
        .unwrap();
    world.fold().await;
    assert!(stored().await.contains(":2}"));
    // Given again, it counts: it came later.
    give(3).await;
    world.fold().await;
    assert!(stored().await.contains(":3}"));
}
