//! Trace runs and exports of the platform while processes stand still.

use std::cell::{Cell, RefCell};

use futures::future::join_all;
use towpath_tests::{Api, GeneratedProject, Random, World, generate};

use super::Freezes;
use super::barrier::Barrier;
use crate::{final_state, load};

const TREES: usize = 16;
const DAYS: i64 = 2;
const PREFIX: &str = "freezes";
/// A job that commits for itself, and the process that performs it.
const COMMITTING: &str = "SELECT w.pid FROM job j JOIN worker w ON w.id = j.worker_id
    WHERE j.state = 'running' AND j.kind IN ('flush_wal', 'export_part') LIMIT 1 FOR UPDATE OF j SKIP LOCKED";

/// Lets processes stand still one after another, and compares what was exported with what was sent.
pub async fn drill(world: &World, freezes: &mut Freezes<'_>) {
    let load = Load {
        world,
        destination: world.api.file_destination(PREFIX).await,
        dice: RefCell::new(Random::new(31)),
        exported: RefCell::default(),
        over: Cell::new(false),
    };
    let freezing = async {
        freezes.worker(COMMITTING).await;
        load.ingest(freezes).await;
        freezes.scheduler().await;
        freezes.slow_line().await;
        load.over.set(true);
    };
    tokio::join!(load.run(), freezing);
    final_state::settles(world).await;
    load.compare();
}

/// What was sent to a project, and the export of it.
struct ProjectExport {
    export: String,
    project: String,
    generated: GeneratedProject,
}

struct Load<'w> {
    world: &'w World,
    destination: String,
    dice: RefCell<Random>,
    exported: RefCell<Vec<ProjectExport>>,
    over: Cell<bool>,
}

impl Load<'_> {
    /// Sends and exports projects through each process, one after another, until it is over.
    async fn run(&self) {
        let clients = self.world.apis.iter().map(async |api| {
            while !self.over.get() {
                let generated = self.generated();
                load::send(api, &generated.bodies).await;
                self.export(api, generated).await;
            }
        });
        join_all(clients).await;
    }

    /// Sends the first body of a project through a process that is stopped in the middle of it. The rest of the project
    /// comes through another process meanwhile.
    async fn ingest(&self, freezes: &mut Freezes<'_>) {
        let [quiet, stopped] = &self.world.apis[..] else {
            panic!("two processes serve the API")
        };
        let generated = self.generated();
        let (first, rest) = generated.bodies.split_at(1);
        let mut barrier = Barrier::new(self.world).await;
        barrier.close_at_project(self.world.tenant, &generated.project).await;
        freezes
            .api(barrier, load::send(stopped, first), load::send(quiet, rest))
            .await;
        self.export(quiet, generated).await;
    }

    fn generated(&self) -> GeneratedProject {
        generate(self.dice.borrow_mut().next_u64(), TREES, DAYS)
    }

    async fn export(&self, api: &Api, generated: GeneratedProject) {
        let project = load::project(api, &generated.project).await;
        let export = load::export(api, &self.destination, &project, &generated).await;
        let record = api.export_ended(&export, load::PATIENCE).await;
        assert_eq!(record["status"], "COMPLETED", "{record}");
        self.exported.borrow_mut().push(ProjectExport {
            export,
            project,
            generated,
        });
    }

    /// Every trace run is in the export of its project once, with every value.
    fn compare(&self) {
        let exported = self.exported.borrow();
        assert!(exported.len() > 2, "only {} projects were exported", exported.len());
        let folder = self.world.exports().join(PREFIX);
        let tenant = self.world.tenant.to_string();
        for ProjectExport {
            export,
            project,
            generated,
        } in exported.iter()
        {
            if let Err(wrong) = load::compare(&folder, export, &tenant, project, generated) {
                panic!("export {export}:\n{wrong}");
            }
        }
    }
}
