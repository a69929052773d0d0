//! One fault under load, and its row of the table.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use towpath_tests::{Api, Body, GeneratedProject, Plan, Process, Random, World, generate, until};

use super::cpu_lock::CpuLock;
use crate::load;

/// Senders at a time.
const SENDERS: usize = 4;
/// Told to wait longer, a sender of a test still comes back after this.
const IMPATIENCE: Duration = Duration::from_millis(300);
/// A fault begins after so many bodies: in the middle of the load, and before the export is over.
const UNDER_WAY: usize = 2 * SENDERS;
/// An answer that took longer is none.
const LIMIT: Duration = Duration::from_secs(60);
/// How long everything may take to come right after a fault. Not a bar: the figures are printed.
const PATIENCE: Duration = Duration::from_secs(180);

/// What a fault is and what must be seen of it.
pub struct Fault {
    pub name: String,
    /// The dependency that `/readyz?verbose` has to call unavailable meanwhile; empty where it is only slow.
    pub unavailable: &'static str,
    /// What ingest does meanwhile.
    pub ingest: Ingest,
    /// How long it lasts.
    pub lasts: Duration,
}

/// What ingest does under a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ingest {
    /// It continues, and keeps the processors busy.
    Works,
    /// It waits for what is unavailable, or refuses at once.
    Waits,
    /// As [`Ingest::Waits`], and it has to have refused.
    Refuses,
}

/// Starts a world while no other fault has the processors. `None`, said in one line, where a server is not given.
pub async fn start(plan: Plan) -> Option<World> {
    let _turn = CpuLock::take().await;
    plan.start().await
}

/// Where exports go, and how they are read back.
pub struct ExportTarget {
    pub destination: String,
    pub prefix: &'static str,
}

/// Makes one fault under load and prints its row. `begin` makes it, `end` undoes it and gives how often it was hit.
#[expect(clippy::print_stdout, reason = "a row of the table")]
pub async fn round(
    world: &World,
    place: &ExportTarget,
    dice: &mut Random,
    fault: &Fault,
    begin: impl AsyncFnOnce(&World),
    end: impl AsyncFnOnce(&World) -> usize,
) {
    let name = &fault.name;
    let (before, during) = (generate(dice.next_u64(), 24, 2), generate(dice.next_u64(), 48, 2));
    load::send(&world.api, &before.bodies).await;
    let project = load::project(&world.api, &before.project).await;
    let turn = match fault.ingest {
        Ingest::Works => Some(CpuLock::take().await),
        Ingest::Waits | Ingest::Refuses => None,
    };
    // At work while the fault is there.
    let early = load::export(&world.api, &place.destination, &project, &before).await;

    let senders = Senders::new(&during.bodies);
    let healed = AtomicBool::new(false);
    let told = UnavailableReports::default();
    let (hits, back) = {
        let sending = senders.send(&world.api, &healed);
        let watching = watch(&world.processes, &healed, &told);
        let making = async {
            senders.under_way().await;
            begin(world).await;
            sleep(fault.lasts).await;
            let hits = end(world).await;
            let over = Instant::now();
            healed.store(true, Ordering::SeqCst);
            join_all(world.processes.iter().map(ready)).await;
            (hits, over.elapsed())
        };
        let ((), (), made) = tokio::join!(sending, watching, making);
        made
    };
    drop(turn);
    assert!(hits > 0, "{name}: nothing was hit");
    let counts = senders.counts();
    assert_eq!(counts.wrong, Vec::<String>::new(), "{name}: answers that are none");
    assert_eq!(
        counts.lost, 0,
        "{name}: requests without an answer, beside {} refused",
        counts.refused
    );
    assert!(
        fault.ingest != Ingest::Refuses || counts.refused > 0,
        "{name}: nothing was refused"
    );
    let seen = told.into_inner();
    if !fault.unavailable.is_empty() {
        let said = seen
            .iter()
            .any(|text| text.starts_with(&format!("{}: ", fault.unavailable)));
        assert!(said, "{name}: /readyz?verbose never said so: {seen:?}");
    }

    let project = load::project(&world.api, &during.project).await;
    let late = load::export(&world.api, &place.destination, &project, &during).await;
    let (mut rows, mut again) = (0, 0);
    for (export, generated) in [(&early, &before), (&late, &during)] {
        let record = world.api.export_ended(export, load::PATIENCE).await;
        assert_eq!(record["status"], "COMPLETED", "{name}: {record}");
        rows += compared(world, place, export, generated).await;
        again += tried_again(&world.api, export).await;
    }
    println!(
        "| {name} | {hits} | {} | {} | {} | {:.1} s | {} | {:.1} s | {rows} | {again} |",
        counts.accepted,
        counts.refused,
        counts.lost,
        counts.slowest.as_secs_f64(),
        seen.into_iter().collect::<Vec<_>>().join("; "),
        back.as_secs_f64()
    );
}

/// Every row of the export once, with every value.
pub async fn compared(world: &World, place: &ExportTarget, export: &str, generated: &GeneratedProject) -> usize {
    let project = load::project(&world.api, &generated.project).await;
    let folder = match &world.bucket {
        None => world.exports().join(place.prefix),
        Some(bucket) => {
            let below = world.folder().join("downloaded");
            let prefix = format!("{}/export_id={export}", place.prefix);
            bucket.download(&prefix, &below).await;
            assert_eq!(
                bucket.open_uploads(&prefix).await,
                0,
                "an upload in parts was left behind"
            );
            below.join(place.prefix)
        }
    };
    match load::compare(&folder, export, &world.tenant.to_string(), &project, generated) {
        Ok(rows) => rows,
        Err(wrong) => panic!("export {export}:\n{wrong}"),
    }
}

/// Attempts of its runs that failed.
async fn tried_again(api: &Api, export: &str) -> usize {
    let path = format!("/api/v1/bulk-exports/{export}/runs");
    let runs = load::ask(api, Method::GET, &path, None).await;
    let runs = runs.as_array().expect("a list of runs");
    runs.iter()
        .filter_map(|run| run["errors"].as_object())
        .map(serde_json::Map::len)
        .sum()
}

/// Bodies that are sent again and again, so that there is load for as long as the fault lasts: folding knows each
/// trace run by its id.
struct Senders<'g> {
    bodies: &'g [Body],
    acknowledged: Vec<AtomicBool>,
    next: AtomicUsize,
    accepted: AtomicUsize,
    refused: AtomicUsize,
    lost: AtomicUsize,
    slowest_micros: AtomicUsize,
    wrong: std::sync::Mutex<Vec<String>>,
}

struct Counts {
    accepted: usize,
    refused: usize,
    lost: usize,
    slowest: Duration,
    wrong: Vec<String>,
}

impl<'g> Senders<'g> {
    fn new(bodies: &'g [Body]) -> Self {
        Self {
            bodies,
            acknowledged: bodies.iter().map(|_| AtomicBool::new(false)).collect(),
            next: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            slowest_micros: AtomicUsize::new(0),
            wrong: std::sync::Mutex::default(),
        }
    }

    /// Returns when the fault is over and every body was acknowledged, by now or before.
    async fn send(&self, api: &Api, healed: &AtomicBool) {
        let all = join_all((0..SENDERS).map(async |_| {
            let mut last = false;
            while !last {
                let index = self.next.fetch_add(1, Ordering::SeqCst) % self.bodies.len();
                // Once more after the fault is over, so that a caller sees that it is.
                last = healed.load(Ordering::SeqCst) && self.acknowledged.iter().all(|one| one.load(Ordering::SeqCst));
                while !self.once(api, index).await {
                    sleep(IMPATIENCE).await;
                }
            }
        }));
        let in_time = timeout(PATIENCE * 2, all).await;
        let wrong = self.wrong.lock().expect("nobody panicked");
        assert!(in_time.is_ok(), "some bodies were never accepted: {wrong:?}");
    }

    /// Returns when the load is under way.
    async fn under_way(&self) {
        let what = format!("{UNDER_WAY} bodies to be accepted");
        until(&what, PATIENCE, async || {
            (self.accepted.load(Ordering::SeqCst) >= UNDER_WAY).then_some(())
        })
        .await;
    }

    /// One try; whether it was accepted.
    async fn once(&self, api: &Api, index: usize) -> bool {
        let body = &self.bodies[index];
        let headers: Vec<(&str, &str)> = body
            .headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let asked = Instant::now();
        let answer = timeout(LIMIT, api.send("/runs/multipart", &headers, body.bytes.clone())).await;
        let took = usize::try_from(asked.elapsed().as_micros()).expect("a minute");
        self.slowest_micros.fetch_max(took, Ordering::SeqCst);
        match answer {
            Ok(Ok(reply)) if reply.status == 202 => {
                self.accepted.fetch_add(1, Ordering::SeqCst);
                self.acknowledged[index].store(true, Ordering::SeqCst);
                return true;
            }
            Ok(Ok(reply)) if matches!(reply.status.as_u16(), 429 | 503 | 507) && reply.retry_after.is_some() => {
                self.refused.fetch_add(1, Ordering::SeqCst);
            }
            Ok(Ok(reply)) => self.note(format!(
                "{} {} retry after {:?}",
                reply.status, reply.body, reply.retry_after
            )),
            // A refusal that comes before the body was read ends its connection, and now and then overtakes itself:
            // the sender sees the end and not the answer. It sends again, as after a refusal.
            Ok(Err(error)) if format!("{error:?}").contains("IncompleteMessage") => {
                self.lost.fetch_add(1, Ordering::SeqCst);
            }
            Ok(Err(error)) => self.note(format!("{error:?}")),
            Err(_) => self.note(format!("no answer within {LIMIT:?}")),
        }
        false
    }

    fn note(&self, wrong: String) {
        self.wrong.lock().expect("nobody panicked").push(wrong);
    }

    fn counts(self) -> Counts {
        let micros = self.slowest_micros.into_inner();
        Counts {
            accepted: self.accepted.into_inner(),
            refused: self.refused.into_inner(),
            lost: self.lost.into_inner(),
            slowest: Duration::from_micros(micros as u64),
            wrong: self.wrong.into_inner().expect("nobody panicked"),
        }
    }
}

/// What the processes said of themselves: `database: no answer in time`.
#[derive(Default)]
struct UnavailableReports(std::sync::Mutex<BTreeSet<String>>);

impl UnavailableReports {
    fn into_inner(self) -> BTreeSet<String> {
        self.0.into_inner().expect("nobody panicked")
    }
}

/// Asks every process how it is until the fault is over. None may fail to answer.
async fn watch(processes: &[Process], healed: &AtomicBool, told: &UnavailableReports) {
    let http = towpath_tests::http();
    while !healed.load(Ordering::SeqCst) {
        let asked = processes.iter().map(|process| readiness(&http, process));
        for answer in join_all(asked).await {
            let answer = answer.expect("a process answers, whatever it stands on");
            for (name, state) in answer["dependencies"].as_object().into_iter().flatten() {
                if state["status"] != "ok" {
                    let error = state["error"].as_str().expect("a dependency that is away says why");
                    told.0
                        .lock()
                        .expect("nobody panicked")
                        .insert(format!("{name}: {error}"));
                }
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn readiness(http: &reqwest::Client, process: &Process) -> Option<Value> {
    let address = process.program().address.expect("every role of a world listens");
    // A connection of its own, as each probe of an orchestrator has.
    let asked = http
        .get(format!("http://{address}/readyz?verbose"))
        .header("connection", "close");
    let answer = asked.timeout(Duration::from_secs(10)).send().await.ok()?;
    answer.json().await.ok()
}

/// Waits until a process says that all is well with it.
async fn ready(process: &Process) {
    let name = &process.program().name;
    let http = towpath_tests::http();
    until(&format!("{name} to be well"), PATIENCE, async || {
        (readiness(&http, process).await?["status"] == "ready").then_some(())
    })
    .await;
}

/// Where a `file` destination of the world writes.
pub async fn folder(world: &World, prefix: &'static str) -> ExportTarget {
    ExportTarget {
        destination: world.api.file_destination(prefix).await,
        prefix,
    }
}
