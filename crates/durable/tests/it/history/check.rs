//! Checks the invariants of a history, by their numbers.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::FromRow;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, Timestamp, WorkerId};
use towpath_store::jobs::Job;
use towpath_store::{Store, attempts, on};

use super::walk::{DELAY, Event, EventKind, RandomWalkJob};

/// What was requested of a job.
#[derive(Clone, Debug, Default)]
pub struct JobRequest {
    pub thread: bool,
    pub endless: bool,
    pub deadline: Option<Timestamp>,
}

/// The results of one run.
pub struct History {
    pub asked: Vec<(JobId, JobRequest)>,
    /// Cancelled jobs, and how many effects each had committed by then.
    pub cancelled: HashMap<JobId, i64>,
    pub events: Vec<Event>,
    pub killed: HashSet<WorkerId>,
    pub left: HashSet<WorkerId>,
    /// Leases that killed workers held.
    pub held: i64,
    /// Leases ended by the test.
    pub forced: i64,
    /// How often the rows were checked during the run.
    pub looks: usize,
}

#[derive(FromRow)]
struct Effect {
    job: String,
    name: String,
    fence: i64,
}

#[derive(FromRow)]
struct Step {
    job_id: JobId,
    name: String,
    fence: i64,
}

struct Rows {
    jobs: Vec<Job>,
    effects: Vec<Effect>,
    steps: Vec<Step>,
    verdicts: Vec<(String, String)>,
    attempts: HashMap<JobId, Vec<attempts::Attempt>>,
}

impl Rows {
    async fn read(store: &Store) -> Self {
        store
            .read(async |tx| {
                let jobs: Vec<Job> = on!(tx, |conn| sqlx::query_as("SELECT * FROM job ORDER BY id")
                    .fetch_all(conn)
                    .await)?;
                let mut lost = HashMap::new();
                for job in &jobs {
                    lost.insert(job.id, attempts::list(tx, job.id).await?);
                }
                Ok(Self {
                    jobs,
                    attempts: lost,
                    effects: on!(tx, |conn| sqlx::query_as("SELECT job, name, fence FROM effect")
                        .fetch_all(conn)
                        .await)?,
                    steps: on!(tx, |conn| sqlx::query_as("SELECT job_id, name, fence FROM step")
                        .fetch_all(conn)
                        .await)?,
                    verdicts: on!(tx, |conn| sqlx::query_as("SELECT job, what FROM verdict")
                        .fetch_all(conn)
                        .await)?,
                })
            })
            .await
            .unwrap()
    }
}

impl History {
    pub async fn check(&self, store: &Store) {
        let rows = Rows::read(store).await;
        one_end_each(&rows);
        let effects = one_fence_per_effect(&rows);
        let starts = fences_rise(&self.events, &rows);
        let bodies = no_finished_step_again(&self.events, &rows);
        let threads = threads_in_order(&self.asked, &rows);
        let (failures, most) = attempts_apart(&self.events, &rows);
        let stops = self.nothing_after_a_cancel(&rows);
        let late = self.deadlines(&rows);
        let (lost, lost_by_living) = self.losses(&rows);
        println!(
            "{:?}: {} jobs, {starts} attempts, {} killed, {} left, {} leases held by the killed, {} ended by hand, {lost} lost leases \
             ({lost_by_living} of living workers); {effects} effects, {} steps, {bodies} bodies; {threads} pairs in \
             threads; {failures} failures, at most {most} of one job; {stops} cancels; latest deadline {late:?} late; \
             {} looks at the rows",
            store.dialect(),
            rows.jobs.len(),
            self.killed.len(),
            self.left.len(),
            self.held,
            self.forced,
            rows.steps.len(),
            self.looks,
        );
    }

    /// I11: a cancelled job commits nothing afterwards, and its handler has ended.
    fn nothing_after_a_cancel(&self, rows: &Rows) -> usize {
        for (job, before) in &self.cancelled {
            let row = rows.jobs.iter().find(|row| row.id == *job).unwrap();
            let effects = rows
                .effects
                .iter()
                .filter(|effect| effect.job == job.to_string())
                .count();
            if row.state == JobState::Cancelled {
                assert_eq!(
                    i64::try_from(effects).unwrap(),
                    *before,
                    "an effect after the cancel: {row:?}"
                );
            }
            for child in rows.jobs.iter().filter(|child| child.parent_id == Some(*job)) {
                assert!(child.state.is_final());
            }
        }
        for (job, ask) in &self.asked {
            let row = rows.jobs.iter().find(|row| row.id == *job).unwrap();
            if ask.endless && ask.deadline.is_none() {
                // Or its leases were lost too often.
                assert!(row.state == JobState::Cancelled || row.dead, "{row:?}");
            }
            let here = self
                .events
                .iter()
                .filter(|event| event.job == *job && event.what == EventKind::Starts)
                .count();
            let gone = self
                .events
                .iter()
                .filter(|event| event.job == *job && event.what == EventKind::Gone)
                .count();
            assert_eq!(here, gone, "a handler of {job} is still there");
        }
        self.cancelled.len()
    }

    /// I12: no job outlives its deadline. Returns the latest end.
    fn deadlines(&self, rows: &Rows) -> Duration {
        let mut latest = Duration::ZERO;
        for (job, ask) in &self.asked {
            let Some(deadline) = ask.deadline else { continue };
            let row = rows.jobs.iter().find(|row| row.id == *job).unwrap();
            assert!(
                matches!(row.state, JobState::TimedOut | JobState::Cancelled) || row.dead,
                "{row:?}"
            );
            latest = latest.max(row.finished_at.unwrap().since(deadline));
        }
        latest
    }

    /// I14 and I16: only killed workers lose leases, no more than they held; drained ones lose none.
    fn losses(&self, rows: &Rows) -> (usize, usize) {
        let lost = rows
            .attempts
            .values()
            .flatten()
            .filter(|attempt| attempt.outcome == "lost");
        let (mut of_killed, mut of_living) = (0, 0);
        for attempt in lost {
            let worker = attempt.worker_id.unwrap();
            if self.killed.contains(&worker) {
                of_killed += 1;
            } else {
                // Ended by the test, or a machine too busy to renew in time: counted separately.
                of_living += 1;
            }
        }
        let ended = self.held + self.forced;
        assert!(of_killed <= ended, "{of_killed} leases lost of {ended} that were ended");
        (usize::try_from(of_killed).unwrap() + of_living, of_living)
    }
}

/// I1: every job ended once, and its business row agrees.
fn one_end_each(rows: &Rows) {
    let mut verdicts: HashMap<&str, Vec<&str>> = HashMap::new();
    for (job, what) in &rows.verdicts {
        verdicts.entry(job).or_default().push(what);
    }
    for job in &rows.jobs {
        assert!(job.state.is_final() && job.finished_at.is_some(), "{job:?}");
        let input: serde_json::Value = serde_json::from_str(&job.input).unwrap();
        let walk: RandomWalkJob = serde_json::from_value(input).unwrap();
        assert_eq!(
            verdicts[walk.seed.to_string().as_str()],
            [job.state.as_str()],
            "{job:?}"
        );
    }
    assert_eq!(rows.verdicts.len(), rows.jobs.len());
}

/// I2 and I3: each effect was accepted once, under one fence, and later effects under no lower one.
fn one_fence_per_effect(rows: &Rows) -> usize {
    let mut fences: HashMap<(&str, &str), i64> = HashMap::new();
    for effect in &rows.effects {
        let before = fences.insert((&effect.job, &effect.name), effect.fence);
        assert!(before.is_none(), "{} of {} was accepted twice", effect.name, effect.job);
    }
    for ((job, name), fence) in &fences {
        let nth: u32 = name.rsplit(' ').next().unwrap().parse().unwrap();
        if let Some(next) = fences.get(&(*job, format!("effect {}", nth + 1).as_str())) {
            assert!(next >= fence, "{job} went back to an older fence");
        }
    }
    rows.effects.len()
}

/// I4: each claim of a job has a higher fence than the previous one.
fn fences_rise(events: &[Event], rows: &Rows) -> usize {
    let mut last: HashMap<JobId, i64> = HashMap::new();
    let mut starts = 0;
    for event in events.iter().filter(|event| event.what == EventKind::Starts) {
        starts += 1;
        let before = last.insert(event.job, event.fence);
        assert!(
            before.is_none_or(|before| before < event.fence),
            "{event:?} after {before:?}"
        );
    }
    for job in &rows.jobs {
        assert!(last.get(&job.id).is_none_or(|fence| *fence <= job.fence));
    }
    starts
}

/// I5: once a step is recorded, no later attempt performs it.
fn no_finished_step_again(events: &[Event], rows: &Rows) -> usize {
    let recorded: HashMap<(JobId, &str), i64> = rows
        .steps
        .iter()
        .map(|step| ((step.job_id, step.name.as_str()), step.fence))
        .collect();
    let mut bodies = 0;
    for event in events {
        if let EventKind::Body(name) = &event.what {
            bodies += 1;
            let fence = recorded.get(&(event.job, name.as_str()));
            assert!(
                fence.is_none_or(|fence| event.fence <= *fence),
                "{event:?} was recorded at {fence:?}"
            );
        }
    }
    bodies
}

/// I6: jobs of a thread start in the order of their numbers, each after the end of the previous one.
fn threads_in_order(asked: &[(JobId, JobRequest)], rows: &Rows) -> usize {
    let threads: HashSet<JobId> = asked
        .iter()
        .filter(|(_, ask)| ask.thread)
        .map(|(job, _)| *job)
        .collect();
    let mut lanes: HashMap<&str, Vec<&Job>> = HashMap::new();
    for job in rows.jobs.iter().filter(|job| threads.contains(&job.id)) {
        lanes.entry(job.lane.as_deref().unwrap()).or_default().push(job);
    }
    let mut pairs = 0;
    for jobs in lanes.values_mut() {
        // Ids are assigned in the order of recording.
        jobs.sort_by_key(|job| job.id);
        for pair in jobs.windows(2) {
            // An empty lane may have been pruned, and starts again.
            let pruned = pair[1].lane_seq == Some(1) && pair[0].finished_at.is_some();
            assert!(
                pair[0].lane_seq < pair[1].lane_seq || pruned,
                "{:?} was recorded before {:?}",
                pair[0],
                pair[1]
            );
        }
        let ran: Vec<_> = jobs.iter().filter(|job| job.started_at.is_some()).collect();
        for pair in ran.windows(2) {
            pairs += 1;
            assert!(
                pair[1].started_at >= pair[0].finished_at,
                "{:?} overtook {:?}",
                pair[1],
                pair[0]
            );
        }
    }
    pairs
}

/// I10: at most 21 attempts, each a delay after the previous failure. Returns failures, and the most of one job.
fn attempts_apart(events: &[Event], rows: &Rows) -> (usize, usize) {
    let (mut failures, mut most) = (0, 0);
    for (job, ended) in &rows.attempts {
        let failed: Vec<_> = ended.iter().filter(|attempt| attempt.outcome == "failed").collect();
        assert!(failed.len() <= 21);
        failures += failed.len();
        most = most.max(failed.len());
        for attempt in failed {
            let next = events
                .iter()
                .find(|event| event.job == *job && event.what == EventKind::Starts && event.fence > attempt.fence);
            assert!(
                next.is_none_or(|next| next.at.since(attempt.at) >= DELAY),
                "{job} came back too early"
            );
        }
    }
    (failures, most)
}
