//! Compares the rows of threads with the model, and checks the tables for orphans.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use towpath_domain::ThreadId;
use towpath_domain::agent::{CancelAction, ThreadStatus};
use towpath_runtime::{HistoryQuery, Host as _};
use towpath_store::Dialect;
use towpath_store::query::Query;
use towpath_workflows::thread_state::StateHost;

use super::World;
use super::reference::Log;

/// Tables that name a thread in a text column.
const OF_THREADS: [&str; 4] = ["checkpoints", "checkpoint_blobs", "checkpoint_writes", "replaced_write"];

/// The log in a state.
fn log_of(values: &Value) -> Log {
    let entries = values["log"].as_array().cloned().unwrap_or_default();
    entries
        .iter()
        .map(|entry| entry.as_str().expect("a text").to_owned())
        .collect()
}

impl World {
    /// Compares a thread, its runs and its checkpoints with the model.
    pub(super) async fn check(&mut self, at: usize) {
        let did = self.last_step.clone();
        let thread = self.threads[at].clone();
        let id = thread.id;
        let row = self.server.thread(id).await;
        assert_eq!(row.temporary, thread.temporary, "{did}: thread {id}");
        for run in &thread.runs {
            let Some(found) = self.server.run(run.id).await else {
                panic!("{did}: run {} of thread {id} is gone", run.id);
            };
            match run.over {
                Some(status) => assert_eq!(found.status, status, "{did}: run {}", run.id),
                None => assert!(!found.status.is_final(), "{did}: run {} ended: {found:?}", run.id),
            }
        }
        if thread.temporary {
            assert_eq!(row.status, ThreadStatus::Busy, "{did}: thread {id}");
            return;
        }
        let values = row.current_values.as_deref().unwrap_or("{}");
        let shown = log_of(&serde_json::from_str(values).expect("values are JSON"));
        assert!(
            thread.shown.contains(&shown),
            "{did}: thread {id} shows {shown:?}, and not one of {:?}",
            thread.shown
        );
        self.threads[at].shown = vec![shown];
        if thread.is_open() {
            assert_eq!(row.status, ThreadStatus::Busy, "{did}: thread {id}");
        } else {
            assert!(
                thread.rest.contains(&row.status),
                "{did}: thread {id} is {:?}, and not one of {:?}",
                row.status,
                thread.rest
            );
            self.threads[at].rest = vec![row.status];
        }
        self.check_checkpoints(at).await;
    }

    async fn check_checkpoints(&self, at: usize) {
        let (did, thread) = (&self.last_step, &self.threads[at]);
        let (id, known) = (thread.id, thread.ids());
        let found: BTreeSet<String> = self.server.checkpoints(id).await.into_iter().collect();
        assert!(
            known.is_subset(&found),
            "{did}: thread {id} lost checkpoints: {known:?} was expected, and {found:?} is there"
        );
        if thread.begun().is_none() {
            assert_eq!(found, known, "{did}: checkpoints of thread {id}");
        }
        let host = StateHost::new(self.server.store(), id);
        let listed = host.list("", &HistoryQuery::default()).await;
        let listed = listed.unwrap_or_else(|error| panic!("{did}: the history of thread {id}: {error}"));
        assert_eq!(listed.len(), found.len(), "{did}: the history of thread {id}");
        if let Some(latest) = listed.first() {
            let values = latest.checkpoint.channel_values.get("log");
            let log = values.map(|log| serde_json::json!({"log": log.value()}));
            let log = log_of(&log.unwrap_or_default());
            assert_eq!(log, thread.latest_log(), "{did}: the latest state of thread {id}");
        }
    }

    async fn rows<T>(&self, text: &str) -> Vec<T>
    where
        T: for<'r> sqlx::FromRow<'r, sqlx::sqlite::SqliteRow>
            + for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow>
            + Send
            + Unpin,
    {
        let read = self
            .server
            .store()
            .read(async |tx| Query::new(tx, text).fetch_all(tx).await);
        read.await.unwrap()
    }

    /// No row belongs to a missing thread, run or job.
    pub(super) async fn check_tables(&self) {
        let did = &self.last_step;
        let live: BTreeSet<String> = self.threads.iter().map(|thread| thread.id.to_string()).collect();
        for table in OF_THREADS {
            let text = format!("SELECT DISTINCT thread_id FROM {table}");
            for (thread,) in self.rows::<(String,)>(&text).await {
                assert!(
                    live.contains(&thread),
                    "{did}: {table} has rows of thread {thread}, which is gone"
                );
            }
        }
        let threads: BTreeSet<ThreadId> = self.threads.iter().map(|thread| thread.id).collect();
        let found = self.rows::<(ThreadId,)>("SELECT id FROM thread").await;
        assert_eq!(
            found.into_iter().map(|row| row.0).collect::<BTreeSet<_>>(),
            threads,
            "{did}"
        );
        let runs: usize = self.threads.iter().map(|thread| thread.runs.len()).sum();
        let found = self.server.count("SELECT count(*) FROM run").await;
        assert_eq!(usize::try_from(found), Ok(runs), "{did}: rows of runs");
        let open: usize = self.threads.iter().map(|thread| thread.open().count()).sum();
        // Workers that have not noticed yet that their thread is deleted.
        let doomed = self
            .running_jobs
            .iter()
            .filter(|held| self.find(held.job).is_none())
            .count();
        let found = self
            .server
            .count("SELECT count(*) FROM job WHERE kind = 'run_agent' AND finished_at IS NULL")
            .await;
        assert_eq!(
            usize::try_from(found),
            Ok(open + doomed),
            "{did}: jobs that are not over"
        );
    }

    /// Ends open runs, compares everything, then deletes it.
    pub(super) async fn rest(&mut self) {
        let most = 4 * (self.threads.iter().map(|thread| thread.runs.len()).sum::<usize>() + 1);
        for _ in 0..most {
            if self.running_jobs.is_empty() && !self.threads.iter().any(super::Thread::is_open) {
                break;
            }
            for at in 0..self.threads.len() {
                let held = |run: &&super::Run| self.is_held(run.job) && run.cancel.is_none();
                let held: Vec<_> = self.threads[at].open().filter(held).map(|run| run.id).collect();
                if !held.is_empty() {
                    self.cancel_runs(at, &held, CancelAction::Interrupt).await;
                }
            }
            while !self.running_jobs.is_empty() {
                self.deliver().await;
            }
            while self.claim().await {}
        }
        for at in 0..self.threads.len() {
            let open: Vec<_> = self.threads[at].open().collect();
            assert!(open.is_empty(), "nobody can claim {open:?}");
            self.check(at).await;
        }
        self.last_step = "at rest".to_owned();
        self.check_tables().await;
        self.check_references().await;
        while !self.threads.is_empty() {
            self.remove_thread(0).await;
        }
        self.check_tables().await;
        self.check_references().await;
        let held = self.server.count("SELECT count(*) FROM lane WHERE held <> 0").await;
        assert_eq!(held, 0, "places in lanes are held");
    }

    /// No write without its checkpoint, no value without a checkpoint that names it, no event without an expiry.
    async fn check_references(&self) {
        let did = &self.last_step;
        for table in ["checkpoint_writes", "replaced_write"] {
            let text = format!(
                "SELECT count(*) FROM {table} AS w WHERE NOT EXISTS (
                     SELECT 1 FROM checkpoints AS c WHERE c.thread_id = w.thread_id
                     AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id)"
            );
            assert_eq!(
                self.server.count(&text).await,
                0,
                "{did}: {table} without their checkpoint"
            );
        }
        let events = "SELECT count(*) FROM run_event WHERE expires_at IS NULL";
        assert_eq!(
            self.server.count(events).await,
            0,
            "{did}: events of runs that are over stay for ever"
        );
        let text = match self.server.store().dialect() {
            Dialect::Sqlite => "SELECT thread_id, checkpoint_ns, checkpoint FROM checkpoints",
            Dialect::Postgres => "SELECT thread_id, checkpoint_ns, CAST(checkpoint AS text) FROM checkpoints",
        };
        let mut named = BTreeSet::new();
        for (thread, ns, checkpoint) in self.rows::<(String, String, String)>(text).await {
            let checkpoint: Value = serde_json::from_str(&checkpoint).expect("a checkpoint is JSON");
            let versions: BTreeMap<String, Value> =
                serde_json::from_value(checkpoint["channel_versions"].clone()).expect("versions of channels");
            named.extend(versions.into_iter().map(|(channel, version)| {
                let version = version.as_str().map_or_else(|| version.to_string(), str::to_owned);
                (thread.clone(), ns.clone(), channel, version)
            }));
        }
        let text = "SELECT thread_id, checkpoint_ns, channel, version FROM checkpoint_blobs";
        for blob in self.rows::<(String, String, String, String)>(text).await {
            assert!(named.contains(&blob), "{did}: no checkpoint names {blob:?}");
        }
    }
}
