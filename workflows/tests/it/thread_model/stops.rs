//! Ends of the model's runs and threads that are not by themselves.

use std::time::{Duration, Instant};

use towpath_domain::RunId;
use towpath_domain::agent::{CancelAction, RunStatus, ThreadStatus};
use towpath_domain::job::JobState;
use towpath_durable::Signal;
use towpath_store::query::Query;
use towpath_store::{self as store, jobs, runs};
use towpath_workflows::run_agent::{self, Deletion};

use super::{CRASHES, PATIENCE, RunningJob, World};

impl World {
    /// Cancels these open runs of a thread.
    pub(super) async fn stopped(&mut self, at: usize, ids: &[RunId], action: CancelAction) {
        for &id in ids {
            let run = self.threads[at].run(id);
            run.cancel = Some(action);
            let job = run.job;
            if !self.is_held(job) {
                self.over_without_worker(at, id).await;
            }
        }
    }

    /// A cancelled run ended without a worker.
    async fn over_without_worker(&mut self, at: usize, id: RunId) {
        if self.threads[at].temporary {
            self.threads.remove(at);
            return;
        }
        let run = self.threads[at].run(id);
        if run.cancel == Some(CancelAction::Rollback) {
            self.threads[at].forget(id);
            return;
        }
        run.over = Some(RunStatus::Interrupted);
        let (kind, has_begun) = (run.kind, run.claims > 0);
        if has_begun {
            let log = self.threads[at].log_after(kind);
            self.absorb(at, Some(id), log).await;
            self.threads[at].rest.push(ThreadStatus::Idle);
        }
    }

    /// A worker stopped a cancelled run.
    async fn over_at_work(&mut self, at: usize, id: RunId) {
        let run = self.threads[at].run(id);
        if run.cancel == Some(CancelAction::Rollback) {
            self.threads[at].forget(id);
            return;
        }
        run.over = Some(RunStatus::Interrupted);
        let (kind, is_first) = (run.kind, run.claims == 1);
        let log = self.threads[at].log_after(kind);
        self.absorb(at, Some(id), log.clone()).await;
        let thread = &mut self.threads[at];
        if is_first {
            thread.rest = vec![ThreadStatus::Interrupted];
            thread.shown = vec![log];
        } else {
            // Another attempt may be stopped before it reaches its graph.
            thread.rest.extend([ThreadStatus::Interrupted, ThreadStatus::Idle]);
            thread.shown.push(log);
        }
    }

    /// A worker that matches.
    fn some_held(&mut self, wanted: impl Fn(&Self, &RunningJob) -> bool) -> Option<RunningJob> {
        let world = &*self;
        let fit: Vec<usize> = (0..world.running_jobs.len())
            .filter(|&at| wanted(world, &world.running_jobs[at]))
            .collect();
        if fit.is_empty() {
            return None;
        }
        let at = *self.dice.pick(&fit);
        Some(self.running_jobs.remove(at))
    }

    /// How the run of a worker was asked to stop; `None` if it was not. A run with a deleted thread is rolled back.
    fn cancel_of(&self, held: &RunningJob) -> Option<CancelAction> {
        match self.find(held.job) {
            Some((at, id)) => self.threads[at].open().find(|run| run.id == id)?.cancel,
            None => Some(CancelAction::Rollback),
        }
    }

    /// A worker is signalled that its run was cancelled.
    pub(super) async fn deliver(&mut self) {
        let told = self.some_held(|world, held| world.cancel_of(held).is_some());
        let Some(held) = told else { return };
        self.last_step = format!("the worker of job {} heard of its cancel", held.job);
        held.tell.send_replace(Signal::Cancel);
        self.ended(held.task).await;
        if let Some((at, id)) = self.find(held.job) {
            self.over_at_work(at, id).await;
        }
    }

    /// A worker is lost, and its jobs are taken back.
    pub(super) async fn crash(&mut self) {
        let crashed = self.some_held(|world, held| {
            let Some((at, id)) = world.find(held.job) else {
                return true;
            };
            let run = world.threads[at].open().find(|run| run.id == id);
            run.is_some_and(|run| run.crashes < CRASHES)
        });
        let Some(held) = crashed else { return };
        self.last_step = format!("the worker of job {} vanished", held.job);
        let cancel = self.cancel_of(&held);
        held.task.abort();
        let gone = held.task.await;
        assert!(gone.is_err_and(|error| error.is_cancelled()), "{}", self.last_step);
        let deadline = Instant::now() + PATIENCE;
        // Rows that its connection still has locked are taken back a little later.
        loop {
            towpath_durable::take_back(self.server.store(), &[held.worker])
                .await
                .unwrap();
            let job = self.server.store().read(async |tx| jobs::get(tx, held.job).await).await;
            if job.unwrap().is_none_or(|job| job.state != JobState::Running) {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{}, and nobody takes it back",
                self.last_step
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.hurry().await;
        let Some((at, id)) = self.find(held.job) else { return };
        if cancel.is_some() {
            self.over_without_worker(at, id).await;
        } else {
            self.threads[at].run(id).crashes += 1;
        }
    }

    /// A worker stops in an orderly way.
    pub(super) async fn hand_back(&mut self) {
        let left = self.some_held(|world, held| world.cancel_of(held).is_none());
        let Some(held) = left else { return };
        self.last_step = format!("the worker of job {} handed it back", held.job);
        held.tell.send_replace(Signal::HandBack);
        self.ended(held.task).await;
        self.hurry().await;
    }

    /// Makes jobs that back off due at once.
    async fn hurry(&self) {
        let text = "UPDATE job SET run_at = created_at WHERE state = 'scheduled'";
        let hurried = self
            .server
            .store()
            .write(async |tx| Query::new(tx, text).execute(tx).await)
            .await;
        hurried.unwrap();
        towpath_durable::ready_due(self.server.store()).await.unwrap();
    }

    /// Cancels one run or all runs of a thread.
    pub(super) async fn cancel(&mut self) {
        let busy: Vec<usize> = (0..self.threads.len())
            .filter(|&at| self.threads[at].is_open())
            .collect();
        if busy.is_empty() {
            return;
        }
        let at = *self.dice.pick(&busy);
        let mut ids: Vec<RunId> = self.threads[at].open().map(|run| run.id).collect();
        if self.dice.one_in(2) {
            ids = vec![*self.dice.pick(&ids)];
        }
        let action = *self.dice.pick(&[CancelAction::Interrupt, CancelAction::Rollback]);
        self.cancel_runs(at, &ids, action).await;
    }

    pub(super) async fn cancel_runs(&mut self, at: usize, ids: &[RunId], action: CancelAction) {
        let thread = self.threads[at].id;
        self.last_step = format!("{} runs of thread {thread} were cancelled with {action:?}", ids.len());
        let (server, tenant) = (&self.server, self.server.tenant);
        let cancelled = server.store().write(async |tx| {
            let mut open = runs::open(tx, tenant, Some(thread), None).await?;
            open.retain(|run| ids.contains(&run.id));
            run_agent::cancel(tx, tenant, &open, action).await
        });
        cancelled
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", self.last_step));
        self.stopped(at, ids, action).await;
    }

    pub(super) async fn delete_run(&mut self) {
        let all: Vec<(usize, RunId)> = self
            .threads
            .iter()
            .enumerate()
            .flat_map(|(at, thread)| thread.runs.iter().map(move |run| (at, run.id)))
            .collect();
        if all.is_empty() {
            return;
        }
        let (at, id) = *self.dice.pick(&all);
        let thread = self.threads[at].id;
        self.last_step = format!("run {id} of thread {thread} was deleted");
        let (server, tenant) = (&self.server, self.server.tenant);
        let deleted = server
            .store()
            .write(async |tx| run_agent::delete_run(tx, tenant, thread, id).await)
            .await;
        let run = self.threads[at].run(id);
        let job = run.job;
        if run.over.is_none() {
            let expected = if self.is_held(job) {
                Deletion::Stopping
            } else {
                Deletion::Done
            };
            let deleted = deleted.unwrap_or_else(|error| panic!("{}: {error}", self.last_step));
            assert_eq!(deleted, expected, "{}", self.last_step);
            self.stopped(at, &[id], CancelAction::Rollback).await;
            return;
        }
        let begun = self.threads[at].begun().map(|run| run.job);
        match deleted {
            Ok(deleted) => {
                assert_eq!(deleted, Deletion::Done, "{}", self.last_step);
                let is_at_work = begun.is_some_and(|job| self.is_held(job));
                assert!(!is_at_work, "{}, under one at work", self.last_step);
                let thread = &mut self.threads[at];
                thread.layers.retain(|layer| layer.owner != Some(id));
                thread.forget(id);
            }
            Err(store::Error::Rejected(_)) => assert!(begun.is_some(), "{}: refused", self.last_step),
            Err(error) => panic!("{}: {error}", self.last_step),
        }
    }

    pub(super) async fn delete_thread(&mut self) {
        let Some(at) = self.some_thread() else { return };
        self.remove_thread(at).await;
    }

    pub(super) async fn remove_thread(&mut self, at: usize) {
        let id = self.threads[at].id;
        self.last_step = format!("thread {id} was deleted");
        let (server, tenant) = (&self.server, self.server.tenant);
        let deleted = server
            .store()
            .write(async |tx| run_agent::delete_thread(tx, tenant, id).await)
            .await;
        deleted.unwrap_or_else(|error| panic!("{}: {error}", self.last_step));
        self.threads.remove(at);
    }
}
