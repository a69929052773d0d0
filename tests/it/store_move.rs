//! `towpath migrate-store`: an installation of `towpath dev` becomes a cluster on PostgreSQL. The command dies at each of
//! its named points; afterwards every read is answered as before, and jobs that were open are performed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::{Value, json};
use towpath_tests::{Api, Database, Exit, Process, Program, World, free_address, generate, run_to_end, until};

use crate::{load, tree};

/// In the order in which a move comes to them.
const POINTS: [&str; 9] = [
    "move.recorded",
    "move.migrated",
    "move.prepared",
    "move.marked",
    "move.copying",
    "move.copied",
    "move.verified",
    "move.finishing",
    "move.finished",
];
const ABORTED: Exit = Exit::Signal(Signal::SIGABRT as i32);
/// Later than the kill of the first server, sooner than a test waits.
const RUN_AFTER_SECONDS: u64 = 60;

#[test]
fn every_point_of_a_move_is_drilled() {
    let mut found = BTreeSet::new();
    for file in tree::files()
        .iter()
        .filter(|file| file.starts_with("crates/store/src/move_store") && file.ends_with(".rs"))
    {
        let source = tree::read(file);
        let points = source.split("failpoint::hit(\"").skip(1);
        found.extend(points.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    }
    assert_eq!(found, BTreeSet::from(POINTS.map(str::to_owned)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installation_moves_to_postgres() {
    let Some(databases) = Databases::new().await else {
        return;
    };
    let mut world = World::embedded().await;
    let agents = world.api.at(agent_address(&world));
    let kept = generate(31, 30, 2);
    let first = Installation::create(&world.api, &agents, &kept).await;
    let before = first.answers(&world.api, &agents).await;

    let dev = world.process("dev").program().clone();
    let refused = run_to_end(&databases.command(&world, &dev, None)).await;
    assert_eq!(refused.0, Exit::Code(1), "{}", refused.1);
    assert!(refused.1.contains("another towpath process"), "{}", refused.1);
    // Not in the log yet when the server dies, if it is quick enough.
    load::send(&world.api, &generate(32, 5, 2).bodies).await;
    let pending = first.run(&agents).await;
    assert_eq!(pending["status"], "pending", "{pending}");
    world.process("dev").kill().await;

    // First in the platform's database, then in that of its agent server.
    for file in ["towpath.db", "agent.db"] {
        for point in POINTS {
            let (exit, said) = run_to_end(&databases.command(&world, &dev, Some(point))).await;
            assert_eq!(exit, ABORTED, "{file}, {point}: {said}");
        }
    }
    let (exit, said) = run_to_end(&databases.command(&world, &dev, None)).await;
    assert_eq!(exit, Exit::Code(0), "{said}");
    for line in ["had moved towpath.db", "had moved agent.db", "TOWPATH_TENANT_ID="] {
        assert!(said.contains(line), "{line} is not in: {said}");
    }
    let (exit, said) = run_to_end(&Program {
        name: "dev-again".to_owned(),
        address: None,
        ..dev.clone()
    })
    .await;
    assert_eq!(exit, Exit::Code(1), "{said}");
    assert!(said.contains("were moved to"), "{said}");

    let mut cluster = Cluster::start(&world, &dev, &databases).await;
    let (platform, agents) = (world.api.at(cluster.platform), world.api.at(cluster.agents));
    assert_eq!(first.answers(&platform, &agents).await, before);
    // A run that was not due before is performed.
    until("the run to be performed", load::PATIENCE, async || {
        (first.run(&agents).await["status"] == "success").then_some(())
    })
    .await;
    // What the log of the first server holds is exported by the second.
    let export = load::export(&platform, &first.destination, &first.project, &kept).await;
    let record = platform.export_ended(&export, load::PATIENCE).await;
    assert_eq!(record["status"], "COMPLETED", "{record}");
    let same = load::compare(
        &world.exports().join("moved"),
        &export,
        &world.tenant.to_string(),
        &first.project,
        &kept,
    );
    assert_eq!(same.unwrap_or_else(|wrong| panic!("{wrong}")), kept.rows.len());
    cluster.stop().await;
}

/// Two targets, dropped at the end.
struct Databases {
    platform: Database,
    agents: Database,
}

impl Databases {
    /// `None` without a server.
    async fn new() -> Option<Self> {
        Some(Self {
            platform: Database::empty_postgres().await?,
            agents: Database::empty_postgres().await?,
        })
    }

    fn command(&self, world: &World, dev: &Program, failpoint: Option<&str>) -> Program {
        let mut env = dev.env.clone();
        env.extend(failpoint.map(|point| ("TOWPATH_FAILPOINT".to_owned(), point.to_owned())));
        let data = world.data().display().to_string();
        let args = [
            "migrate-store",
            "--from",
            &data,
            "--to",
            &self.platform.uri,
            "--agent-to",
            &self.agents.uri,
        ];
        Program {
            name: "migrate-store".to_owned(),
            args: args.map(str::to_owned).to_vec(),
            env,
            address: None,
            folder: dev.folder.clone(),
        }
    }
}

fn agent_address(world: &World) -> SocketAddr {
    let args = &world.processes[0].program().args;
    let place = args.iter().position(|argument| argument == "--agent-listen");
    let address = place.and_then(|place| args.get(place + 1));
    address
        .and_then(|text| text.parse().ok())
        .expect("dev has an agent server")
}

/// What the first server was given.
struct Installation {
    project: String,
    destination: String,
    export: String,
    dataset: String,
    thread: String,
    cron: String,
    /// A run that is due later, with its thread.
    later: (String, String),
}

impl Installation {
    async fn create(api: &Api, agents: &Api, kept: &towpath_tests::GeneratedProject) -> Self {
        load::send(api, &kept.bodies).await;
        let project = load::project(api, &kept.project).await;
        let destination = api.file_destination("moved").await;
        let export = load::export(api, &destination, &project, kept).await;
        assert_eq!(api.export_ended(&export, load::PATIENCE).await["status"], "COMPLETED");
        let dataset = created(api, "/datasets", &json!({ "name": "questions", "data_type": "kv" })).await;
        let dataset = id(&dataset, "id");
        let example = json!({ "dataset_id": dataset, "inputs": { "q": "é" }, "outputs": { "a": 1.5 } });
        created(api, "/examples", &example).await;

        let thread = id(
            &created(agents, "/threads", &json!({ "metadata": { "user": "ada" } })).await,
            "thread_id",
        );
        let input = json!({ "messages": [{ "role": "user", "content": "hello" }] });
        let run = json!({ "assistant_id": "agent", "input": input });
        created(agents, &format!("/threads/{thread}/runs/wait"), &run).await;
        let item = json!({ "namespace": ["users", "ada"], "key": "likes", "value": { "tea": true } });
        let put = agents.request(Method::PUT, "/store/items", Some(&item)).await;
        assert!(put.expect("the server is there").status.is_success());
        let cron = json!({ "assistant_id": "agent", "input": input, "schedule": "0 0 1 1 *" });
        let cron = id(
            &created(agents, &format!("/threads/{thread}/runs/crons"), &cron).await,
            "cron_id",
        );
        let other = id(&created(agents, "/threads", &json!({})).await, "thread_id");
        let later = json!({ "assistant_id": "agent", "input": input, "after_seconds": RUN_AFTER_SECONDS });
        let later = id(
            &created(agents, &format!("/threads/{other}/runs"), &later).await,
            "run_id",
        );
        Self {
            project,
            destination,
            export,
            dataset,
            thread,
            cron,
            later: (other, later),
        }
    }

    async fn run(&self, agents: &Api) -> Value {
        let (thread, run) = &self.later;
        agents.get(&format!("/threads/{thread}/runs/{run}")).await.expect(200)
    }

    /// What reads are answered that nothing changes meanwhile.
    async fn answers(&self, api: &Api, agents: &Api) -> Vec<(String, Value)> {
        let mut answers = Vec::new();
        for path in [
            format!("/api/v1/bulk-exports/{}", self.export),
            format!("/api/v1/bulk-exports/{}/runs", self.export),
            "/api/v1/bulk-exports/destinations".to_owned(),
            format!("/datasets/{}", self.dataset),
            format!("/examples?dataset={}", self.dataset),
        ] {
            let answer = api.get(&path).await.expect(200);
            answers.push((path, answer));
        }
        let query = json!({ "session": [self.project], "limit": 100 });
        answers.push(("runs".to_owned(), api.post("/runs/query", &query).await.expect(200)));
        for path in [
            format!("/threads/{}", self.thread),
            format!("/threads/{}/state", self.thread),
            format!("/threads/{}/history", self.thread),
            format!("/threads/{}/runs", self.thread),
            format!("/runs/crons/{}", self.cron),
            "/store/items?namespace=users.ada&key=likes".to_owned(),
        ] {
            let answer = agents.get(&path).await.expect(200);
            answers.push((path, answer));
        }
        let assistants = agents.post("/assistants/search", &json!({})).await.expect(200);
        answers.push(("assistants".to_owned(), assistants));
        answers
    }
}

async fn created(api: &Api, path: &str, body: &Value) -> Value {
    let reply = api.post(path, body).await;
    assert!(reply.status.is_success(), "{path}: {} {}", reply.status, reply.body);
    reply.body
}

fn id(body: &Value, field: &str) -> String {
    let id = body[field].as_str();
    id.unwrap_or_else(|| panic!("{body} has no {field}")).to_owned()
}

/// The platform's roles in processes of their own, and an agent server.
struct Cluster {
    processes: Vec<Process>,
    platform: SocketAddr,
    agents: SocketAddr,
}

impl Cluster {
    async fn start(world: &World, dev: &Program, databases: &Databases) -> Self {
        let objects = format!("file://{}/objects", world.data().display());
        let program = |name: &str, args: &[&str], env: &[(&str, String)]| {
            let address = free_address();
            let mut args: Vec<String> = args.iter().map(|argument| (*argument).to_owned()).collect();
            args.extend(["--listen".to_owned(), address.to_string()]);
            let more = env.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            let program = Program {
                name: name.to_owned(),
                args,
                env: dev.env.iter().cloned().chain(more).collect(),
                address: Some(address),
                folder: dev.folder.clone(),
            };
            (program, address)
        };
        let platform_env = [
            ("DATABASE_URI", databases.platform.uri.clone()),
            ("TOWPATH_OBJECTS", objects),
        ];
        let agent_data = dev.folder.join("agent-data").display().to_string();
        let agent_env = [("DATABASE_URI", databases.agents.uri.clone())];
        let (api, platform) = program("api", &["serve", "--role", "api"], &platform_env);
        let (worker, _) = program("worker", &["serve", "--role", "worker"], &platform_env);
        let (scheduler, _) = program("scheduler", &["serve", "--role", "scheduler"], &platform_env);
        let (agent, agents) = program("agent", &["agent", "--data-dir", &agent_data], &agent_env);
        let mut processes: Vec<Process> = [api, worker, scheduler, agent].iter().map(Process::spawn).collect();
        for process in &mut processes {
            process.ready().await;
        }
        Self {
            processes,
            platform,
            agents,
        }
    }

    async fn stop(&mut self) {
        for process in &mut self.processes {
            let exit = process.terminate(Duration::from_secs(90)).await;
            let name = process.program().name.clone();
            assert_eq!(exit, Exit::Code(0), "{name} did not drain:\n{}", process.log_text());
        }
    }
}
