//! What an operator does to a cluster, with the commands of the documents: read why a job waits, pause and resume,
//! scale up and down while work continues, lose a worker, drain one, try a dead letter again, make and revoke a key.

use std::time::Duration;

use serde_json::Value;
use towpath_tests::{Exit, Layout, Process, Program, World, free_address, generate, run_to_end, until};

use crate::{final_state, load};

/// Exports at the same time, each of three days.
const EXPORTS: usize = 6;
const DAYS: i64 = 3;
const PATIENCE: Duration = Duration::from_secs(180);

#[tokio::test]
async fn an_operator_runs_a_cluster() {
    // One slot for each pool of a worker, so that every worker is needed.
    let plan = World::plan(Layout::Cluster { workers: 2 })
        .env("TOWPATH_ENGINE_LEASE_SECONDS", "5")
        .env("TOWPATH_WORKERS_SLOTS", "1");
    let Some(world) = plan.start().await else { return };
    let mut operator = Operator { world, extra: None };
    operator.reads_why_jobs_wait().await;
    operator.scales_up_and_loses_a_worker().await;
    operator.drains_a_worker().await;
    operator.stop().await;
}

#[tokio::test]
async fn an_operator_tries_a_dead_letter_again() {
    // The job costs its workers five leases.
    let plan = World::plan(Layout::Cluster { workers: 1 }).env("TOWPATH_ENGINE_LEASE_SECONDS", "2");
    let Some(world) = plan.start().await else { return };
    let mut operator = Operator { world, extra: None };
    operator.tries_a_dead_letter_again().await;
    operator.makes_and_revokes_a_key().await;
    operator.is_told_what_went_wrong().await;
    operator.stop().await;
}

struct Operator {
    world: World,
    /// The worker that was added.
    extra: Option<Process>,
}

impl Operator {
    /// Nothing is left behind, and the processes that are left drain and end well.
    async fn stop(self) {
        final_state::settles(&self.world).await;
        let Self { mut world, extra } = self;
        world.processes.retain(|process| process.pid().is_some());
        world.processes.extend(extra);
        world.stop().await;
    }

    /// A command as an operator gives it: its exit code and all it printed.
    async fn command(&self, arguments: &[&str]) -> (Exit, String) {
        let server = &self.world.processes[0];
        let mut program = Program {
            name: format!("command-{}", arguments[0]),
            args: arguments.iter().map(ToString::to_string).collect(),
            address: None,
            ..server.program().clone()
        };
        program
            .env
            .push(("TOWPATH_SERVER".into(), self.world.api.base().to_owned()));
        run_to_end(&program).await
    }

    /// What it prints for people.
    #[track_caller]
    fn says(&self, arguments: &[&str]) -> impl Future<Output = String> {
        let given = format!("towpath {}", arguments.join(" "));
        async move {
            let (exit, text) = self.command(arguments).await;
            assert_eq!(exit, Exit::Code(0), "{given}:\n{text}");
            text
        }
    }

    /// What it prints for programs.
    async fn json(&self, arguments: &[&str]) -> Value {
        let text = self.says(&[arguments, &["--output", "json"]].concat()).await;
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{arguments:?} printed no JSON:\n{text}"))
    }

    /// The ids of jobs that fit.
    async fn jobs(&self, which: &[&str]) -> Vec<String> {
        let jobs = self.json(&[&["jobs", "ls"], which].concat()).await;
        let jobs = jobs.as_array().expect("a list");
        jobs.iter().map(|job| word(job, "id")).collect()
    }

    async fn scaling(&self, pool: &str) -> Value {
        self.world
            .api
            .get(&format!("/internal/scaling/{pool}"))
            .await
            .expect(200)
    }

    /// The worker of a process.
    async fn worker(&self, pid: u32) -> Value {
        let workers = self.json(&["workers"]).await;
        let workers = workers.as_array().expect("a list");
        let found = workers.iter().find(|worker| worker["pid"] == pid);
        found.cloned().unwrap_or(Value::Null)
    }

    async fn worker_is(&self, pid: u32, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        until(&format!("the worker {pid} to be {what}"), PATIENCE, async || {
            Some(self.worker(pid).await).filter(&fits)
        })
        .await
    }

    /// Exports that are recorded now, with the bodies they are of.
    async fn record(&self, seed: u64) -> (Vec<String>, towpath_tests::GeneratedProject, String) {
        let api = &self.world.api;
        let generated = generate(seed, 40, DAYS);
        load::send(api, &generated.bodies).await;
        let project = load::project(api, &generated.project).await;
        let destination = api.file_destination("operated").await;
        let mut exports = Vec::new();
        for _ in 0..EXPORTS {
            exports.push(load::export(api, &destination, &project, &generated).await);
        }
        (exports, generated, project)
    }

    async fn complete(&self, exports: &[String], generated: &towpath_tests::GeneratedProject, project: &str) {
        let folder = self.world.exports().join("operated");
        for export in exports {
            let record = self.world.api.export_ended(export, PATIENCE * 2).await;
            assert_eq!(record["status"], "COMPLETED", "{record}");
            let tenant = self.world.tenant.to_string();
            let same = load::compare(&folder, export, &tenant, project, generated);
            same.unwrap_or_else(|wrong| panic!("export {export}:\n{wrong}"));
        }
    }

    async fn reads_why_jobs_wait(&mut self) {
        let well = self.says(&["doctor", "--for", "api"]).await;
        assert!(well.contains("is ready") && !well.contains("FAILED"), "{well}");
        assert!(well.contains("no worker builds and runs deployments"), "{well}");
        let paused = self.says(&["queues", "pause", "export_parts"]).await;
        assert!(paused.contains("paused"), "{paused}");
        let (exports, generated, project) = self.record(11).await;
        let parts = until("all days to be planned", PATIENCE, async || {
            let parts = self.jobs(&["--kind", "export_part", "--state", "ready"]).await;
            (parts.len() == EXPORTS * DAYS as usize).then_some(parts)
        })
        .await;
        let why = self.says(&["jobs", "explain", &parts[0]]).await;
        assert_eq!(why, "the pool export_parts is paused\n");
        let parent = &self.jobs(&["--kind", "run_export"]).await[0];
        let why = self.says(&["jobs", "explain", parent]).await;
        assert_eq!(why, "it waits for 3 child jobs\n");
        let shown = self.says(&["jobs", "show", parent]).await;
        assert!(
            shown.contains("jobs it started") && shown.contains(&parts[0][..8]),
            "{shown}"
        );
        let queues = self.says(&["queues"]).await;
        assert!(queues.contains(" export_parts  paused  18 "), "{queues}");
        // More workers would not help a pool that is paused.
        assert_eq!(self.scaling("export_parts").await["depth"], 0);

        let resumed = self.says(&["queues", "resume", "export_parts"]).await;
        assert!(resumed.contains("active"), "{resumed}");
        self.complete(&exports, &generated, &project).await;
    }

    async fn scales_up_and_loses_a_worker(&mut self) {
        self.says(&["queues", "pause", "export_parts"]).await;
        let (exports, generated, project) = self.record(12).await;
        assert_eq!(self.scaling("export_parts").await["slots"], 2);
        let mut program = self.world.process("worker-0").program().clone();
        let address = free_address();
        program.name = "worker-2".into();
        *program.args.last_mut().expect("it has an address") = address.to_string();
        program.address = Some(address);
        let added = Process::start(&program).await;
        let pid = added.pid().expect("it runs");
        self.extra = Some(added);
        until("the third worker to count", PATIENCE, async || {
            (self.scaling("export_parts").await["slots"] == 3).then_some(())
        })
        .await;
        self.says(&["queues", "resume", "export_parts"]).await;
        let busy = |worker: &Value| worker["running"]["export_parts"] == 1;
        self.worker_is(pid, "at work", busy).await;

        let victim = self.world.process("worker-0").pid().expect("it runs");
        self.worker_is(victim, "at work", busy).await;
        self.world.process("worker-0").kill().await;
        // The others do its jobs as well.
        self.complete(&exports, &generated, &project).await;
        self.worker_is(victim, "silent", |worker| worker["status"] == "silent")
            .await;
        assert_eq!(self.scaling("export_parts").await["slots"], 2);
    }

    async fn drains_a_worker(&mut self) {
        let (exports, generated, project) = self.record(13).await;
        let pid = self.world.process("worker-1").pid().expect("it runs");
        let id = word(&self.worker(pid).await, "id");
        let drained = self.says(&["workers", "drain", &id, "--wait"]).await;
        assert!(drained.contains("drained"), "{drained}");
        let exit = self.world.process("worker-1").terminate(PATIENCE).await;
        assert_eq!(exit, Exit::Code(0));
        assert_eq!(self.worker(pid).await, Value::Null, "it has said good-bye");
        self.complete(&exports, &generated, &project).await;
        let attempts = self
            .json(&["jobs", "ls", "--kind", "export_part", "--limit", "18"])
            .await;
        let lost = attempts.as_array().expect("a list").iter();
        assert_eq!(
            lost.filter(|job| job["lost_leases"] != 0).count(),
            0,
            "no job was interrupted"
        );
    }

    /// A job that kills its worker each time becomes a dead letter, with its errors.
    async fn tries_a_dead_letter_again(&mut self) {
        // The only worker there is.
        let healthy = self.world.process("worker-0").program().clone();
        self.world.process("worker-0").kill().await;
        let mut deadly = healthy.clone();
        deadly
            .env
            .push(("TOWPATH_FAILPOINT".into(), "fold.before_record:1".into()));
        let mut worker = Process::spawn(&deadly);
        let generated = generate(14, 40, DAYS);
        load::send(&self.world.api, &generated.bodies).await;
        let dead = until("a job to be given up", PATIENCE * 2, async || {
            if worker.ended().is_some() {
                worker = Process::spawn(&deadly);
            }
            let dead = self.json(&["dead"]).await;
            dead.as_array()?.first().cloned()
        })
        .await;
        assert_eq!(dead["kind"], "flush_wal");
        let id = word(&dead, "id");
        let shown = self.says(&["jobs", "show", &id]).await;
        assert!(
            shown.contains("attempts that did not succeed") && shown.contains("lost"),
            "{shown}"
        );
        worker.kill().await;
        self.extra = Some(Process::start(&healthy).await);
        let again = self.says(&["dead", "retry", &id]).await;
        assert_eq!(again, "retried: 1\n");
        until("the job to succeed", PATIENCE, async || {
            let job = self.json(&["jobs", "show", &id]).await;
            (job["state"] == "succeeded").then_some(())
        })
        .await;
        assert_eq!(self.says(&["dead"]).await, "there are no dead letters\n");
    }

    async fn makes_and_revokes_a_key(&self) {
        let made = self.json(&["keys", "create", "--name", "deputy", "--operator"]).await;
        let key = word(&made, "key");
        let by_deputy = ["queues", "--api-key", &key];
        self.says(&by_deputy).await;
        let listed = self.says(&["keys", "list"]).await;
        assert!(listed.contains("deputy") && !listed.contains(&key), "{listed}");
        self.says(&["keys", "revoke", &word(&made, "id")]).await;
        let (exit, refused) = self.command(&by_deputy).await;
        assert_eq!(exit, Exit::Code(1), "{refused}");
        assert!(refused.starts_with("error: the API key is not valid"), "{refused}");
    }

    /// Each kind of failure has its exit code and says what to do.
    async fn is_told_what_went_wrong(&self) {
        let nobody = "00000000-0000-4000-8000-000000000009";
        let nowhere = format!("http://{}", free_address());
        for (arguments, code, text) in [
            (&["jobs", "explain", nobody][..], 1, "error: job not found"),
            (&["queues", "pause", "no-such-pool"], 1, "error: pool not found"),
            (&["workers", "drain", nobody], 1, "error: worker not found"),
            (&["jobs", "explain", "42"], 2, "invalid value '42'"),
            (&["jobs", "retry"], 2, "required"),
            (&["queues", "--server", &nowhere], 3, "no connection; is it running?"),
            (&["queues", "--server", "nowhere"], 2, "expected an address"),
        ] {
            let (exit, said) = self.command(arguments).await;
            assert_eq!(exit, Exit::Code(code), "{arguments:?}:\n{said}");
            assert!(said.contains(text), "{arguments:?}:\n{said}");
        }
    }
}

fn word(value: &Value, name: &str) -> String {
    let found = value[name].as_str();
    found
        .unwrap_or_else(|| panic!("{name} is no text in {value}"))
        .to_owned()
}
