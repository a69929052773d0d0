//! What a run that is repeated, or that nothing will end, is known by.

use towpath_domain::agent::{MultitaskStrategy, RunStatus};
use towpath_domain::job::JobState;
use towpath_domain::{AssistantId, JobId, RunId, TenantId, ThreadId};
use towpath_store::checkpoints::{self, Batch, Checkpoint, Write};
use towpath_store::jobs::{self, NewJob};
use towpath_store::runs::{self, NewRun};
use towpath_store::threads;

use super::{migrated, new};
use crate::database::{Database, run};

on_both!(
    a_command_is_saved_once_its_writes_are_on_a_checkpoint,
    runs_that_outlived_their_jobs_are_found,
);

const NULL_TASK: &str = "00000000-0000-0000-0000-000000000000";

fn write(task: &str, idx: i32) -> (String, Write) {
    let row = Write {
        checkpoint_id: "1f0-0001".to_owned(),
        task_id: task.to_owned(),
        task_path: String::new(),
        idx,
        channel: "log".to_owned(),
        r#type: Some("json".to_owned()),
        blob: b"1".to_vec(),
    };
    (String::new(), row)
}

async fn a_command_is_saved_once_its_writes_are_on_a_checkpoint(database: Database) {
    let store = &database.store;
    let thread = ThreadId::new();
    let save = async |run: RunId, writes: Vec<(String, Write)>| {
        let batch = Batch {
            run: Some(run),
            writes,
            ..Batch::default()
        };
        store
            .write(async |tx| checkpoints::save(tx, thread, &batch).await)
            .await
            .unwrap();
    };
    let saved = async |run: RunId| {
        store
            .read(async |tx| checkpoints::has_saved_command(tx, thread, run).await)
            .await
            .unwrap()
    };
    let (first, second, third) = (RunId::new(), RunId::new(), RunId::new());
    save(first, vec![write(NULL_TASK, 0)]).await;
    assert!(!saved(first).await, "the checkpoint is not there");
    let batch = Batch {
        checkpoints: vec![Checkpoint {
            checkpoint_ns: String::new(),
            checkpoint_id: "1f0-0001".to_owned(),
            parent_checkpoint_id: None,
            checkpoint: "{}".to_owned(),
            metadata: "{}".to_owned(),
        }],
        ..Batch::default()
    };
    store
        .write(async |tx| checkpoints::save(tx, thread, &batch).await)
        .await
        .unwrap();
    assert!(saved(first).await);
    // Another run saves what is there once more, with an answer and the writes of a task.
    save(
        second,
        vec![write(NULL_TASK, 0), write(NULL_TASK, -4), write("task", 0)],
    )
    .await;
    assert!(!saved(second).await, "nothing of it is its command's");
    save(third, vec![write(NULL_TASK, 0), write(NULL_TASK, 1)]).await;
    assert!(saved(third).await && saved(first).await);
}

async fn runs_that_outlived_their_jobs_are_found(database: Database) {
    let store = &database.store;
    let (tenant, thread) = (TenantId::new(), ThreadId::new());
    store
        .write(async |tx| threads::insert(tx, tenant, &new(thread, "{}")).await)
        .await
        .unwrap();
    let start = async |with_job: bool| {
        let (id, job) = (RunId::new(), JobId::new());
        store
            .write(async |tx| {
                let now = tx.now();
                let row = NewJob {
                    id: job,
                    tenant_id: tenant,
                    kind: "run_agent",
                    pool: "agent",
                    priority: 0,
                    state: JobState::Ready,
                    run_at: now,
                    deadline_at: None,
                    input: "{}".to_owned(),
                    lane: None,
                    lane_seq: None,
                    lane_held: false,
                    keep_place: true,
                    parent_id: None,
                    traceparent: None,
                };
                if with_job {
                    jobs::insert(tx, &row).await?;
                }
                let row = NewRun {
                    id,
                    thread,
                    assistant: AssistantId::of_graph("agent"),
                    job,
                    cron: None,
                    metadata: "{}",
                    kwargs: "{}",
                    strategy: MultitaskStrategy::Enqueue,
                    created_at: now,
                };
                runs::insert(tx, tenant, &row).await
            })
            .await
            .unwrap();
        id
    };
    let found = async |tenant: TenantId| {
        let found = store
            .read(async |tx| runs::orphaned(tx, tenant, 10).await)
            .await
            .unwrap();
        found.into_iter().map(|run| run.id).collect::<Vec<RunId>>()
    };
    let with_job = start(true).await;
    assert_eq!(found(tenant).await, []);
    let forgotten = start(false).await;
    assert_eq!(found(tenant).await, [forgotten]);
    store
        .write(async |tx| run(tx, "UPDATE job SET state = 'succeeded', finished_at = created_at").await)
        .await
        .unwrap();
    assert_eq!(found(tenant).await, [with_job, forgotten]);
    assert_eq!(found(TenantId::new()).await, [], "of this workspace only");
    for id in [with_job, forgotten] {
        store
            .write(async |tx| runs::finish(tx, tenant, id, RunStatus::Error).await)
            .await
            .unwrap();
    }
    assert_eq!(found(tenant).await, []);
}
