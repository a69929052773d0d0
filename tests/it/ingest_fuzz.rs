//! Generated load on everything that takes traces in, while it is read and exported: what was accepted is in its row,
//! and nothing else is.
//!
//! A generator makes steps from a seed: operations by every route and in every encoding, patches before their posts,
//! posts that are repeated, runs that change their project and their start, projects that are renamed and deleted
//! between acceptance and flush, odd values in every field, damaged bodies. They are sent side by side, except that
//! what is said of one id is said in order, so the order of acceptance is known for each id. An oracle, which shares no
//! code with the product, says what each row must be. Reads, pages and exports in between and at the end compare with
//! it.
//!
//! No answer may be 5xx but a read's 503 that says when to come back, no job may die, no connection may hang, nothing
//! may be in quarantine.
//!
//! `TOWPATH_TEST_INGEST_OPERATIONS` is the number of operations on each database (default 3,000; `long` is a million),
//! `TOWPATH_TEST_INGEST_SEED` the seed, which every failure names, `TOWPATH_TEST_INGEST_WITHOUT` a list of [`Features`]
//! to leave out.

mod check;
mod compare;
mod derived;
mod executor;
mod generate;
mod json;
mod operation;
mod oracle;
mod round;
mod server;
mod spans;
mod step;
mod values;
mod wire;

use std::time::Duration;

use towpath_tests::{Api, Layout, Plan, Process, World, environment, free_address};
use uuid::Uuid;

use round::Rounds;
use server::Server;

const SEED: u64 = 20_260_301;
const SHORT: usize = 3_000;
const LONG: usize = 1_000_000;

/// What is generated and looked at. Each can be left out, to find out which one makes a seed fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Projects are renamed and deleted, and named by ids that are not theirs to name; bodies name very many.
    pub names_at_registration: bool,
    /// `metadata` and `runtime` merge key by key.
    pub nested_metadata: bool,
    /// `metadata` and `runtime` that are no objects.
    pub odd_metadata: bool,
    /// A run shows its place as its start.
    pub start_is_place: bool,
    /// A field has at most 64 MiB.
    pub field_limit: bool,
    /// Content types of files that no header can hold.
    pub content_types: bool,
    /// A span that cannot be taken refuses only itself.
    pub otlp_partial: bool,
    /// Numbers and halves of surrogate pairs that not every reader of JSON can hold, where the server reads itself.
    pub odd_json: bool,
    /// Clients name statuses as they like, and three are shown.
    pub statuses: bool,
    /// Manifests say how many operations are missing.
    pub missing_operations: bool,
}

impl Features {
    pub const ALL: Self = Self {
        names_at_registration: true,
        nested_metadata: true,
        odd_metadata: true,
        start_is_place: true,
        field_limit: true,
        content_types: true,
        otlp_partial: true,
        odd_json: true,
        statuses: true,
        missing_operations: true,
    };

    /// All but those that the environment names.
    fn chosen() -> Self {
        let mut features = Self::ALL;
        let without = environment("TOWPATH_TEST_INGEST_WITHOUT").unwrap_or_default();
        for name in without.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let feature = match name {
                "names_at_registration" => &mut features.names_at_registration,
                "nested_metadata" => &mut features.nested_metadata,
                "odd_metadata" => &mut features.odd_metadata,
                "start_is_place" => &mut features.start_is_place,
                "field_limit" => &mut features.field_limit,
                "content_types" => &mut features.content_types,
                "otlp_partial" => &mut features.otlp_partial,
                "odd_json" => &mut features.odd_json,
                "statuses" => &mut features.statuses,
                "missing_operations" => &mut features.missing_operations,
                other => panic!("TOWPATH_TEST_INGEST_WITHOUT: there is no feature {other}"),
            };
            *feature = false;
        }
        features
    }
}

#[tokio::test]
async fn embedded_keeps_every_operation() {
    fuzz(Layout::Embedded).await;
}

#[tokio::test]
async fn a_cluster_keeps_every_operation() {
    fuzz(Layout::Cluster { workers: 2 }).await;
}

/// How many operations, and which ones.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    operations: usize,
    seed: u64,
    features: Features,
}

impl Settings {
    fn read() -> Self {
        let number = |name: &str| {
            environment(name).map(|text| {
                text.replace('_', "")
                    .parse()
                    .unwrap_or_else(|_| panic!("{name}: {text} is no number"))
            })
        };
        let operations = "TOWPATH_TEST_INGEST_OPERATIONS";
        let operations = match environment(operations).as_deref() {
            None => SHORT,
            Some("long") => LONG,
            Some(_) => number(operations).map_or(SHORT, |count| usize::try_from(count).expect("a number that fits")),
        };
        Self {
            operations,
            seed: number("TOWPATH_TEST_INGEST_SEED").unwrap_or(SEED),
            features: Features::chosen(),
        }
    }
}

#[expect(clippy::print_stdout, reason = "what was done is read")]
async fn fuzz(layout: Layout) {
    let settings = Settings::read();
    let fold_delay = ["0", "100", "700", "2000"];
    let at = usize::try_from(settings.seed % 4).expect("small");
    let plan = World::plan(layout).env("TOWPATH_INGEST_FLUSH_DELAY_MS", fold_delay[at]);
    let Some(site) = Site::start(plan, layout).await else {
        return;
    };
    let server = site.server(settings.features).await;
    let mut rounds = Rounds::new(&server, &site.world, settings);
    let done = rounds.run().await;
    let name = if layout == Layout::Embedded {
        "embedded"
    } else {
        "cluster"
    };
    match done {
        Ok(done) => println!("ingest, {name}: {done} (seed {})", settings.seed),
        Err(wrong) => panic!(
            "ingest, {name}: {wrong}\nrun it again: TOWPATH_TEST_INGEST_SEED={} TOWPATH_TEST_INGEST_OPERATIONS={} \
             scripts/test ingest",
            settings.seed, settings.operations
        ),
    }
    site.stop().await;
}

/// A world with two workspaces and, where it is a cluster, two processes that take traces in.
struct Site {
    world: World,
    /// Beside those of the world.
    second_api: Option<Process>,
    tenants: Vec<Uuid>,
}

impl Site {
    async fn start(plan: Plan, layout: Layout) -> Option<Self> {
        let mut world = plan.start().await?;
        let other = Uuid::now_v7();
        let first = if layout == Layout::Embedded { "dev" } else { "api" };
        let mut program = world.process(first).program().clone();
        // A start makes the workspace that it is told of, in the organisation of the key.
        let told = program.env.iter_mut().find(|(name, _)| name == "TOWPATH_TENANT_ID");
        told.expect("a world tells its workspace").1 = other.to_string();
        let second_api = if layout == Layout::Embedded {
            let process = world.process(first);
            let own = process.program().clone();
            process.terminate(Duration::from_secs(30)).await;
            *process = Process::start(&program).await;
            process.terminate(Duration::from_secs(30)).await;
            *process = Process::start(&own).await;
            None
        } else {
            let address = free_address();
            let listen = program.args.iter().position(|argument| argument == "--listen");
            program.args[listen.expect("every role listens") + 1] = address.to_string();
            program.address = Some(address);
            program.name = "second-api".to_owned();
            Some(Process::start(&program).await)
        };
        let tenants = vec![world.tenant, other];
        Some(Self {
            world,
            second_api,
            tenants,
        })
    }

    async fn server(&self, features: Features) -> Server {
        let processes: Vec<Api> = std::iter::once(self.world.api.clone())
            .chain(self.second_api.as_ref().map(|process| {
                let address = process.program().address.expect("it listens");
                self.world.api.at(address)
            }))
            .collect();
        let of = |tenant: &Uuid| {
            let apis = processes.iter().map(|api| api.of_tenant(&tenant.to_string()));
            apis.collect::<Vec<_>>()
        };
        let apis: Vec<Vec<Api>> = self.tenants.iter().map(of).collect();
        let mut destinations = Vec::new();
        for (tenant, apis) in apis.iter().enumerate() {
            destinations.push(apis[0].file_destination(&format!("fuzz-{tenant}")).await);
        }
        Server::new(features, self.tenants.clone(), apis, destinations, self.world.exports())
    }

    async fn stop(self) {
        if let Some(mut process) = self.second_api {
            process.terminate(Duration::from_secs(30)).await;
        }
        self.world.stop().await;
    }
}
