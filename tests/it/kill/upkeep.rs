//! The drill of what continues beside ingest and exports: processes die at every named point of compaction, of the
//! index of trace runs, of the sweep of old segments and of a schedule's spawns, in one walk. Afterwards every trace
//! run is in every export once, with every value, and no object is there that no row names.
//!
//! Time is not waited for: a sweep that is due in a minute, and a segment that must be for a while, are made older.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use reqwest::Method;
use serde_json::{Value, json};
use towpath_tests::{Api, GeneratedProject, Layout, Random, World, generate_from, until};

use super::{LEASE_SECONDS, death, restart};
use crate::tables::Tables;
use crate::{final_state, load};

const DAYS: i64 = 3;
const TREES: usize = 24;
/// As many segments as make a closed day worth compacting.
const PIECES: usize = 4;
/// Fewer: a compaction brings what it writes into the index by itself, and no one would come to the points of the
/// index.
const FEW: usize = 2;
const COMPACTION: [&str; 3] = ["compact.intended", "compact.written", "compact.replaced"];
const INDEX: [&str; 3] = ["index.intended", "index.written", "index.published"];
const SWEEP: [&str; 5] = [
    "sweep.retired",
    "sweep.compaction_started",
    "sweep.collected",
    "sweep.object_removed",
    "sweep.row_removed",
];
const SPAWN: [&str; 3] = ["spawn.before_record", "spawn.half_recorded", "spawn.recorded"];
/// Longer than a day, shorter than the days there are: the last interval of them ends with them.
const INTERVAL_HOURS: i64 = 36;

const SCATTERED: &str = "SELECT count(*) FROM segment WHERE state = 'live' AND NOT compacted";
const REPLACED: &str = "SELECT count(*) FROM segment WHERE state <> 'live' AND rows > 0";
const WASTE: &str = "SELECT (SELECT count(*) FROM segment WHERE state <> 'live')
                          + (SELECT count(*) FROM run_index WHERE state <> 'live')";
const UNINDEXED: &str = "SELECT count(*) FROM segment WHERE state = 'live' AND NOT indexed";
/// The next sweep, by its job.
const SWEEP_DUE: &str = "kind = 'sweep_traces' AND state = 'scheduled'";
/// Jobs that are open or ended badly, for the text of a failure.
const JOBS: &str =
    "SELECT kind || ' ' || state || ', attempt ' || attempt || ', ' || failures || ' failures, ' || lost_leases
                        || ' lost leases: ' || coalesce(error, '')
                    FROM job WHERE finished_at IS NULL OR state <> 'succeeded'";
/// The same of segments.
const SEGMENTS: &str =
    "SELECT state || ', compacted ' || compacted || ', indexed ' || indexed || ', rows ' || rows FROM segment";
const OBJECTS: &str = "SELECT path FROM segment UNION ALL SELECT path FROM run_index";

#[tokio::test]
async fn embedded_survives_kills_of_compaction_sweeps_and_spawns() {
    println!("{}", drill(Layout::Embedded).await.unwrap_or_default());
}

#[tokio::test]
async fn a_cluster_survives_kills_of_compaction_sweeps_and_spawns() {
    println!("{}", drill(Layout::Cluster { workers: 2 }).await.unwrap_or_default());
}

/// What happened, to be printed; `None` without servers.
async fn drill(layout: Layout) -> Option<String> {
    let plan = World::plan(layout)
        .env("TOWPATH_ENGINE_LEASE_SECONDS", LEASE_SECONDS.to_string())
        // Only exports fold. On a slow machine, folds in between made so many segments that they were indexed before a
        // process was there to die of it.
        .env("TOWPATH_INGEST_FLUSH_DELAY_MS", "60000");
    let world = plan.start().await?;
    let destination = world.api.file_destination("upkeep").await;
    let tables = Tables::of(&world).await;
    let today = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("it is after 1970")
        .as_secs()
        / 86_400;
    let mut drill = Drill {
        first_day: i64::try_from(today).expect("days fit") - DAYS - 2,
        world,
        tables,
        destination,
        dice: Random::new(3),
        deaths: Vec::new(),
    };
    drill.walk().await;
    final_state::settles(&drill.world).await;
    drill.world.stop().await;
    Some(format!(
        "kill drill of upkeep, {layout:?}: died at {}",
        drill.deaths.join(", ")
    ))
}

struct Drill {
    world: World,
    tables: Tables,
    destination: String,
    dice: Random,
    first_day: i64,
    deaths: Vec<&'static str>,
}

/// A project with everything that was sent to it.
struct SentProject {
    project: String,
    generated: GeneratedProject,
}

impl Drill {
    async fn walk(&mut self) {
        let compacted = self.scatter(PIECES).await;
        self.through(&COMPACTION, async |tables, _| {
            tables.age("job", "run_at", SWEEP_DUE).await;
            (tables.count(SCATTERED).await == 0).then_some(())
        })
        .await;
        self.check(&compacted).await;

        let indexed = self.scatter(FEW).await;
        self.through(&INDEX, async |tables, _| {
            tables.age("job", "run_at", SWEEP_DUE).await;
            // They have waited long enough for others.
            tables
                .age("segment", "changed_at", "state = 'live' AND NOT indexed")
                .await;
            (tables.count(UNINDEXED).await == 0).then_some(())
        })
        .await;
        self.check(&indexed).await;

        let swept = self.scatter(PIECES).await;
        self.through(&SWEEP, async |tables, _| {
            tables.age("job", "run_at", SWEEP_DUE).await;
            // What was never brought in keeps its age: the caller that began to write it may have lost its lease and
            // not know.
            tables
                .age("segment", "changed_at", "state <> 'live' AND rows > 0")
                .await;
            // Those of the index stay: they are too few.
            let done = tables.count(SCATTERED).await == FEW as i64 && tables.count(REPLACED).await == 0;
            done.then_some(())
        })
        .await;
        self.nothing_lies_around().await;
        self.check(&compacted).await;
        self.check(&indexed).await;
        self.check(&swept).await;

        let schedule = json!({
            "bulk_export_destination_id": self.destination, "session_id": compacted.project,
            "start_time": compacted.generated.start, "interval_hours": INTERVAL_HOURS,
        });
        let mut made = None;
        let spawned = self
            .through(&SPAWN, async |_, api| {
                // Only now, so that no spawn comes before a caller is there to die of it.
                if made.is_none() {
                    made = asked(api, &schedule).await;
                }
                let path = format!("/api/v1/bulk-exports?source_bulk_export_id={}", made.as_deref()?);
                let reply = api.request(Method::GET, &path, None).await.ok()?;
                let spawned = reply.body.as_array()?.clone();
                let done = spawned.iter().all(|export| export["status"] == "COMPLETED");
                // Two intervals of what was sent, and one that ended after it.
                (done && spawned.len() >= 3).then_some(spawned)
            })
            .await;
        let starts: BTreeSet<&str> = spawned
            .iter()
            .filter_map(|export| export["start_time"].as_str())
            .collect();
        assert_eq!(
            starts.len(),
            spawned.len(),
            "an interval was spawned twice: {spawned:?}"
        );
        let ids: Vec<&str> = spawned.iter().filter_map(|export| export["id"].as_str()).collect();
        self.compare(&compacted, &ids);
        let cancelled = json!({ "status": "Cancelled" });
        let path = format!("/api/v1/bulk-exports/{}", made.expect("a schedule"));
        load::ask(&self.world.api, Method::PATCH, &path, Some(cancelled)).await;
    }

    /// Waits until what killed writers began is gone too, and every object is one that a row names.
    async fn nothing_lies_around(&mut self) {
        // Now no writer is left that could be at it still.
        restart(&mut self.world, None).await;
        until("every segment to be live", load::PATIENCE, async || {
            self.tables.age("job", "run_at", SWEEP_DUE).await;
            for table in ["segment", "run_index"] {
                self.tables
                    .age(table, "changed_at", "state IN ('superseded', 'deleting')")
                    .await;
            }
            (self.tables.count(WASTE).await == 0).then_some(())
        })
        .await;
        let named: BTreeSet<String> = self.tables.texts(OBJECTS).await.into_iter().collect();
        let all = self.world.data().join("objects");
        let found: BTreeSet<String> = ["segments", "index"]
            .into_iter()
            .flat_map(|folder| objects(&all, folder))
            .collect();
        assert_eq!(found, named);
    }

    /// A project whose days are in several segments each.
    async fn scatter(&mut self, pieces: usize) -> SentProject {
        restart(&mut self.world, None).await;
        // Not before a process is there to die of it.
        self.tables.postpone("job", "run_at", SWEEP_DUE).await;
        let generated = generate_from(self.first_day, self.dice.next_u64(), TREES, DAYS);
        let mut project = None;
        for bodies in generated.bodies.chunks(generated.bodies.len().div_ceil(pieces)) {
            load::send(&self.world.api, bodies).await;
            let id = load::project(&self.world.api, &generated.project).await;
            // An export has folded what was sent before it.
            self.export(&id, &generated).await;
            project = Some(id);
        }
        SentProject {
            project: project.expect("something was sent"),
            generated,
        }
    }

    /// Lets a process die at each of `points`, one after another, and continues until `over` answers after the last.
    async fn through<T>(
        &mut self,
        points: &[&'static str],
        mut over: impl AsyncFnMut(&mut Tables, &Api) -> Option<T>,
    ) -> T {
        let mut left = points.iter().copied();
        let mut armed = left.next();
        restart(&mut self.world, armed.map(str::to_owned)).await;
        let what = format!("the end of {points:?}");
        let deadline = Instant::now() + load::PATIENCE;
        until(&what, load::PATIENCE * 2, async || {
            if Instant::now() > deadline {
                let jobs = self.tables.texts(JOBS).await.join("\n");
                let segments = self.tables.texts(SEGMENTS).await.join("\n");
                panic!("waited in vain: {what}, armed {armed:?}\n{jobs}\n{segments}");
            }
            let died = self
                .world
                .processes
                .iter_mut()
                .filter_map(|process| death(process, armed.is_some()));
            if died.sum::<u32>() > 0 {
                self.deaths.extend(armed);
                armed = left.next();
                // One sweep meets all its points, and each death takes the other worker along: it is forgiven there.
                restart(&mut self.world, armed.map(str::to_owned)).await;
            }
            let answer = over(&mut self.tables, &self.world.api).await;
            answer.filter(|_| armed.is_none())
        })
        .await
    }

    async fn export(&self, project: &str, generated: &GeneratedProject) -> String {
        let export = load::export(&self.world.api, &self.destination, project, generated).await;
        let record: Value = self.world.api.export_ended(&export, load::PATIENCE).await;
        assert_eq!(record["status"], "COMPLETED", "{record}");
        export
    }

    async fn check(&self, sent: &SentProject) {
        let export = self.export(&sent.project, &sent.generated).await;
        self.compare(sent, &[&export]);
    }

    fn compare(&self, sent: &SentProject, exports: &[&str]) {
        let folder = self.world.exports().join("upkeep");
        let tenant = self.world.tenant.to_string();
        let compared = load::compare_all(&folder, exports, &tenant, &sent.project, &sent.generated);
        if let Err(wrong) = compared {
            panic!("after deaths at {:?}, exports {exports:?}:\n{wrong}", self.deaths);
        }
    }
}

/// Asks for a schedule; `None` while the answer is lost. Under one key it is made once.
async fn asked(api: &Api, schedule: &Value) -> Option<String> {
    let headers = [("content-type", "application/json"), ("idempotency-key", "upkeep")];
    let reply = api
        .send("/api/v1/bulk-exports", &headers, schedule.to_string().into())
        .await
        .ok()?;
    let made = (!reply.status.is_server_error()).then(|| reply.expect(200))?;
    made["id"].as_str().map(str::to_owned)
}

/// Every file below a folder of objects, named as rows name it.
fn objects(all: &Path, folder: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![all.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.expect("a readable folder").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let below = path.strip_prefix(all).expect("a file below the folder");
                found.insert(below.display().to_string());
            }
        }
    }
    found
}
