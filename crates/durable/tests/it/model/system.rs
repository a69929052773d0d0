//! The real system: a store, claims with controlled handlers, and the comparison with the model.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use sqlx::FromRow;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use towpath_domain::{Clock, JobId, TenantId, Timestamp, WorkerId};
use towpath_durable::{Engine, JobFence, Lane, Registry, Settings, Signal, Start};
use towpath_store::jobs::{self, Job};
use towpath_store::{Dialect, Options, Store, Tx, attempts, lanes, leases, on, pools};

use super::puppet::{Action, OutcomeReceiver, POOL, PlaceKeepingJob, ScriptedJob, Strings, TICK, lane_key};
use super::reference::{GRACE, LEASE, Model, ModelStep};
use crate::support::{Database, PATIENCE, broken_invariants};

/// A database that serves one case after another.
pub struct CaseDatabase {
    runtime: Runtime,
    _database: Database,
    store: Store,
    clock: Clock,
    engine: Engine,
    registry: Arc<Registry<Strings>>,
    tenants: [TenantId; 3],
}

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

impl CaseDatabase {
    fn new(open: impl Future<Output = Option<Database>>) -> Option<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let database = runtime.block_on(open)?;
        let clock = Clock::stopped(START);
        let options = Options {
            clock: clock.clone(),
            ..Options::default()
        };
        let mut registry = Registry::default().with::<ScriptedJob>().with::<PlaceKeepingJob>();
        let (store, engine) = runtime.block_on(async {
            let store = Store::open(&database.uri, options).await.unwrap();
            store.migrate().await.unwrap();
            registry.attach(&store);
            let bytes = if store.dialect() == Dialect::Postgres {
                // Time stands still there too.
                run(&store, "CREATE TABLE clock (at timestamptz NOT NULL)").await;
                run(
                    &store,
                    "CREATE OR REPLACE FUNCTION towpath_now(known timestamptz DEFAULT NULL) RETURNS timestamptz
                     LANGUAGE sql STABLE AS $$ SELECT coalesce(known, (SELECT at FROM clock)) $$",
                )
                .await;
                "CREATE TABLE effect (job uuid NOT NULL, what TEXT NOT NULL, fence BIGINT NOT NULL)"
            } else {
                "CREATE TABLE effect (job BLOB NOT NULL, what TEXT NOT NULL, fence BIGINT NOT NULL)"
            };
            run(&store, bytes).await;
            let settings = Settings {
                lease: TICK * LEASE,
                cancel_grace: TICK,
            };
            let engine = Engine::new(store.clone(), settings);
            (store, engine)
        });
        let mut tenants = [TenantId::new(), TenantId::new(), TenantId::new()];
        tenants.sort_unstable();
        Some(Self {
            runtime,
            _database: database,
            store,
            clock,
            engine,
            registry: Arc::new(registry),
            tenants,
        })
    }

    async fn empty(&self) {
        for table in ["job", "lane", "step", "attempt", "pool", "effect", "lease"] {
            // Names of our own tables.
            let text = sqlx::AssertSqlSafe(format!("DELETE FROM {table}"));
            self.store
                .write(async |tx| Ok(on!(tx, |conn| sqlx::query(text).execute(conn).await.map(drop))?))
                .await
                .unwrap();
        }
        self.clock.advance(Duration::ZERO);
        self.tell_time().await;
    }

    async fn tell_time(&self) {
        if self.store.dialect() == Dialect::Postgres {
            run(&self.store, "DELETE FROM clock").await;
            let now = self.clock.now();
            self.store
                .write(async |tx| {
                    Ok(on!(tx, |conn| sqlx::query("INSERT INTO clock (at) VALUES ($1)")
                        .bind(now)
                        .execute(conn)
                        .await
                        .map(drop))?)
                })
                .await
                .unwrap();
        }
    }
}

async fn run(store: &Store, text: &'static str) {
    store
        .write(async |tx| Ok(on!(tx, |conn| sqlx::query(text).execute(conn).await.map(drop))?))
        .await
        .unwrap();
}

/// The database of a machine.
pub trait DatabaseKind: 'static {
    fn home() -> Option<&'static CaseDatabase>;
}

pub struct SqliteKind;
pub struct PostgresKind;

impl DatabaseKind for SqliteKind {
    fn home() -> Option<&'static CaseDatabase> {
        static HOME: OnceLock<Option<CaseDatabase>> = OnceLock::new();
        HOME.get_or_init(|| CaseDatabase::new(async { Some(Database::sqlite().await) }))
            .as_ref()
    }
}

impl DatabaseKind for PostgresKind {
    fn home() -> Option<&'static CaseDatabase> {
        static HOME: OnceLock<Option<CaseDatabase>> = OnceLock::new();
        HOME.get_or_init(|| CaseDatabase::new(Database::postgres())).as_ref()
    }
}

/// The handler of a claim.
struct Handler {
    job: JobFence,
    worker: WorkerId,
    told: mpsc::UnboundedSender<OutcomeReceiver>,
    signal: watch::Sender<Signal>,
    task: Option<JoinHandle<()>>,
}

pub struct System {
    home: Option<&'static CaseDatabase>,
    strings: Arc<Strings>,
    /// The model counts ticks from here.
    began: Timestamp,
    jobs: Vec<JobId>,
    workers: Vec<WorkerId>,
    handlers: Vec<Handler>,
}

pub struct Machine<D>(PhantomData<D>);

impl<D: DatabaseKind> StateMachineTest for Machine<D> {
    type SystemUnderTest = System;
    type Reference = Model;

    fn init_test(_: &Model) -> System {
        let home = D::home();
        if let Some(home) = home {
            home.runtime.block_on(home.empty());
        }
        System {
            home,
            strings: Arc::default(),
            began: home.map_or(START, |home| home.clock.now()),
            jobs: Vec::new(),
            workers: Vec::new(),
            handlers: Vec::new(),
        }
    }

    fn apply(mut system: System, model: &Model, transition: ModelStep) -> System {
        if let Some(home) = system.home {
            home.runtime.block_on(async {
                system.take(home, model, transition).await;
                system.compare(home, model).await;
            });
        }
        system
    }

    fn teardown(system: System, _: <Self::Reference as ReferenceStateMachine>::State) {
        for handler in system.handlers {
            if let Some(task) = handler.task {
                task.abort();
            }
        }
    }
}

impl System {
    async fn take(&mut self, home: &'static CaseDatabase, model: &Model, transition: ModelStep) {
        let store = &home.store;
        match transition {
            ModelStep::Start {
                tenant,
                priority,
                kept,
                lane,
                delay,
                deadline,
            } => {
                let mut how = Start::new(home.tenants[tenant]).priority(priority);
                if let Some((lane, places)) = lane {
                    how = how.lane(Lane::new(lane_key(lane), places));
                }
                if delay > 0 {
                    how = how.after(TICK * delay);
                }
                if let Some(after) = deadline {
                    how = how.deadline(home.clock.now().plus(TICK * after));
                }
                store
                    .write(async |tx| {
                        if kept {
                            towpath_durable::start(tx, &PlaceKeepingJob, how).await
                        } else {
                            towpath_durable::start(tx, &ScriptedJob, how).await
                        }
                    })
                    .await
                    .unwrap();
            }
            ModelStep::Claim(n) => self.claim(home, model, Some(n)).await,
            ModelStep::ClaimAlone => self.claim(home, model, None).await,
            ModelStep::Act(nth, act) => self.act(home, nth, act).await,
            ModelStep::Cancel(job) => {
                let job = self.jobs[job];
                store
                    .write(async |tx| towpath_durable::cancel(tx, job).await)
                    .await
                    .unwrap();
            }
            ModelStep::Advance(ticks) => {
                home.clock.advance(TICK * ticks);
                home.tell_time().await;
            }
            ModelStep::Rescue => {
                towpath_durable::rescue(store).await.unwrap();
                // The real pauses are random; in the model they last until the next tick.
                let now = home.clock.now();
                store
                    .write(async |tx| {
                        Ok(on!(tx, |conn| sqlx::query(
                            "UPDATE job SET run_at = $2 WHERE state = 'scheduled' AND run_at > $1 AND run_at < $2"
                        )
                        .bind(now)
                        .bind(now.plus(TICK))
                        .execute(conn)
                        .await
                        .map(drop))?)
                    })
                    .await
                    .unwrap();
            }
            ModelStep::Due => drop(towpath_durable::ready_due(store).await.unwrap()),
            ModelStep::Overdue => drop(towpath_durable::end_overdue(store, TICK * GRACE).await.unwrap()),
            ModelStep::Pause(true) => store.write(async |tx| pools::pause(tx, POOL).await).await.unwrap(),
            ModelStep::Pause(false) => store.write(async |tx| pools::resume(tx, POOL).await).await.unwrap(),
            ModelStep::Prune => drop(store.write(async |tx| lanes::prune(tx, 100).await).await.unwrap()),
        }
    }

    /// This number, or one that is claimed alone.
    async fn claim(&mut self, home: &'static CaseDatabase, model: &Model, n: Option<usize>) {
        let worker = WorkerId::new();
        self.workers.push(worker);
        let claimed = home
            .store
            .write(async |tx| {
                lease(tx, worker).await?;
                match n {
                    Some(n) => jobs::claim(tx, &jobs::ClaimRequest::new(POOL, worker, i64::try_from(n).unwrap())).await,
                    None => jobs::claim_suspects(tx, &jobs::ClaimRequest::new(POOL, worker, 1)).await,
                }
            })
            .await
            .unwrap();
        for job in claimed {
            let held = JobFence {
                id: job.id,
                fence: job.fence,
            };
            let (told, hears) = mpsc::unbounded_channel();
            let (signal, signals) = watch::channel(Signal::Run);
            self.strings.waiting.lock().unwrap().insert((job.id, job.fence), hears);
            let strings = self.strings.clone();
            let task = tokio::spawn(async move {
                towpath_durable::perform(&home.engine, &home.registry, &*strings, job, signals).await;
            });
            self.handlers.push(Handler {
                job: held,
                worker,
                told,
                signal,
                task: Some(task),
            });
        }
        assert_eq!(
            self.handlers.len(),
            model.claims.len(),
            "claimed other jobs than the model"
        );
        for (handler, claim) in self.handlers.iter_mut().zip(&model.claims) {
            assert_eq!(
                handler.job,
                JobFence {
                    id: self.jobs[claim.job],
                    fence: claim.fence
                }
            );
            // Its time was over when it was claimed.
            if let Some(task) = handler.task.take_if(|_| !claim.there) {
                gone(task).await;
            }
        }
    }

    async fn act(&mut self, home: &CaseDatabase, nth: usize, act: Action) {
        let handler = &mut self.handlers[nth];
        match act {
            Action::Renew => {
                let worker = handler.worker;
                let renewed = home.store.write(async |tx| {
                    if leases::renew(tx, worker, TICK * LEASE).await? {
                        lease(tx, worker).await?;
                    }
                    Ok(())
                });
                renewed.await.unwrap();
            }
            Action::Vanish => {
                let task = handler.task.take().unwrap();
                task.abort();
                assert!(task.await.unwrap_err().is_cancelled());
            }
            Action::HandBack => {
                handler.signal.send_replace(Signal::HandBack);
                gone(handler.task.take().unwrap()).await;
            }
            act => {
                let (done, answer) = oneshot::channel();
                handler.told.send((act, done)).unwrap();
                if answer.await.is_err() {
                    // The handler returned; the result is written when its task ends.
                    gone(handler.task.take().unwrap()).await;
                }
            }
        }
    }

    /// All relevant columns, lanes, steps, effects and attempts.
    async fn compare(&mut self, home: &CaseDatabase, model: &Model) {
        let rows = Rows::read(&home.store).await;
        self.jobs = rows.jobs.iter().map(|job| job.id).collect();
        assert_eq!(rows.jobs.len(), model.jobs.len());
        let tick = |time: Timestamp| u32::try_from(time.since(self.began).as_secs() / TICK.as_secs()).unwrap();
        let nth = |id: JobId| self.jobs.iter().position(|job| *job == id);
        let of_worker = |id: WorkerId| self.workers.iter().position(|worker| *worker == id);
        let leases: BTreeMap<Option<usize>, u32> = rows
            .leases
            .iter()
            .map(|(worker, until)| (of_worker(*worker), tick(*until)))
            .collect();
        let meant = model.leases.iter().enumerate();
        let meant = meant.filter_map(|(worker, until)| until.map(|until| (Some(worker), until)));
        assert_eq!(leases, meant.collect::<BTreeMap<_, _>>());
        for (at, (row, job)) in rows.jobs.iter().zip(&model.jobs).enumerate() {
            let is = (
                row.state,
                row.attempt,
                row.failures,
                row.lost_leases,
                row.fence,
                row.dead,
                row.cancel_at.is_some(),
            );
            let meant = (
                job.state,
                job.attempt,
                job.failures,
                job.lost,
                job.fence,
                job.dead,
                job.marked,
            );
            assert_eq!(is, meant, "job {at}: {row:?}");
            let is = (
                row.lane.clone(),
                row.lane_seq,
                row.lane_held,
                row.parent_id.and_then(nth),
                row.worker_id.and_then(of_worker),
            );
            let meant = (job.lane.map(lane_key), job.seq, job.held, job.parent, job.worker);
            assert_eq!(is, meant, "job {at}: {row:?}");
            assert_eq!(tick(row.run_at), job.run_at, "job {at}: {row:?}");
            assert_eq!(row.cursor.clone(), job.cursor.map(|to| to.to_string()), "job {at}");
            if !job.state.is_final() {
                assert_eq!(
                    (row.open_children, row.bad_children),
                    (job.open, job.bad),
                    "job {at}: {row:?}"
                );
            }
            assert_eq!(
                rows.steps.get(&row.id).cloned().unwrap_or_default(),
                job.steps,
                "job {at}"
            );
            let bodies = self.strings.bodies.lock().unwrap();
            let bodies: BTreeMap<u32, u32> = bodies
                .iter()
                .filter(|((id, _), _)| *id == row.id)
                .map(|((_, step), times)| (*step, *times))
                .collect();
            assert_eq!(bodies, job.bodies, "job {at}");
            let notes: Vec<(i64, &str)> = job.notes.iter().map(|(fence, what)| (*fence, *what)).collect();
            assert_eq!(rows.attempts[at], notes, "job {at}");
        }
        let lanes: BTreeMap<String, super::reference::Lane> = model
            .lanes
            .iter()
            .map(|(lane, row)| (lane_key(*lane), row.clone()))
            .collect();
        assert_eq!(rows.lanes, lanes);
        let effects: BTreeMap<(Option<usize>, String, i64), u32> = rows
            .effects
            .iter()
            .map(|((job, what, fence), times)| ((nth(*job), what.clone(), *fence), *times))
            .collect();
        assert_eq!(effects, model.effects);
        let broken = broken_invariants(&home.store).await;
        assert!(broken.is_empty(), "{broken:?}");
    }
}

async fn gone(task: JoinHandle<()>) {
    tokio::time::timeout(PATIENCE, task)
        .await
        .expect("the attempt ends")
        .unwrap();
}

struct Rows {
    jobs: Vec<Job>,
    leases: Vec<(WorkerId, Timestamp)>,
    lanes: BTreeMap<String, super::reference::Lane>,
    steps: BTreeMap<JobId, BTreeMap<u32, i64>>,
    effects: BTreeMap<(JobId, String, i64), u32>,
    attempts: Vec<Vec<(i64, &'static str)>>,
}

/// Ends a lease when the model requires it. On SQLite no lease expires otherwise.
async fn lease(tx: &mut Tx<'_>, worker: WorkerId) -> towpath_store::Result<()> {
    leases::begin(tx, worker, TICK * LEASE).await?;
    if tx.dialect() == Dialect::Sqlite {
        let until = tx.now().plus(TICK * LEASE);
        on!(tx, |conn| sqlx::query(
            "UPDATE lease SET alive_until = $2 WHERE worker_id = $1"
        )
        .bind(worker)
        .bind(until)
        .execute(conn)
        .await
        .map(drop))?;
    }
    Ok(())
}

#[derive(FromRow)]
struct Step {
    job_id: JobId,
    name: String,
    fence: i64,
}

#[derive(FromRow)]
struct Effect {
    job: JobId,
    what: String,
    fence: i64,
}

impl Rows {
    async fn read(store: &Store) -> Self {
        store
            .read(async |tx| {
                let jobs: Vec<Job> = on!(tx, |conn| sqlx::query_as("SELECT * FROM job ORDER BY id")
                    .fetch_all(conn)
                    .await)?;
                let leases = on!(tx, |conn| sqlx::query_as("SELECT worker_id, alive_until FROM lease")
                    .fetch_all(conn)
                    .await)?;
                let lanes: Vec<lanes::Lane> =
                    on!(tx, |conn| sqlx::query_as("SELECT * FROM lane").fetch_all(conn).await)?;
                let recorded: Vec<Step> = on!(tx, |conn| sqlx::query_as("SELECT job_id, name, fence FROM step")
                    .fetch_all(conn)
                    .await)?;
                let written: Vec<Effect> = on!(tx, |conn| sqlx::query_as("SELECT job, what, fence FROM effect")
                    .fetch_all(conn)
                    .await)?;
                let mut ended = Vec::new();
                for job in &jobs {
                    let attempts = attempts::list(tx, job.id).await?;
                    ended.push(
                        attempts
                            .into_iter()
                            .map(|attempt| (attempt.fence, known(&attempt.outcome)))
                            .collect(),
                    );
                }
                let mut steps: BTreeMap<JobId, BTreeMap<u32, i64>> = BTreeMap::new();
                for step in recorded {
                    let name = step.name.trim_start_matches("step ").parse().unwrap();
                    steps.entry(step.job_id).or_default().insert(name, step.fence);
                }
                let mut effects = BTreeMap::new();
                for effect in written {
                    *effects.entry((effect.job, effect.what, effect.fence)).or_default() += 1;
                }
                Ok(Self {
                    jobs,
                    leases,
                    lanes: lanes
                        .into_iter()
                        .map(|lane| {
                            let row = super::reference::Lane {
                                places: lane.places,
                                held: lane.held,
                                next: lane.next_seq,
                            };
                            (lane.key, row)
                        })
                        .collect(),
                    steps,
                    effects,
                    attempts: ended,
                })
            })
            .await
            .unwrap()
    }
}

fn known(outcome: &str) -> &'static str {
    ["failed", "timed_out", "lost", "cancelled"]
        .into_iter()
        .find(|known| *known == outcome)
        .unwrap()
}
