//! Starts the run of a cron at its time, and records the next firing. It is a chain: each firing records the next job
//! in the transaction that starts the run, so every firing happens once even if workers fail.
//!
//! Missed firings are replaced by one run. A run that cannot start (its thread is busy and its strategy is to reject)
//! is skipped; the chain continues.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use towpath_domain::agent::cron::{Schedule, zone};
use towpath_domain::agent::{AdmittedRun, RunRequest};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{CronId, Rejection, RunId, ScheduleId, TenantId, ThreadId, Timestamp};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome, Settlement, Workflow};
use towpath_runtime::hosted::Caller;
use towpath_store::crons::{self, Cron};
use towpath_store::{self as store, Tx, assistants, jobs, schedules};

use crate::agent_services::AgentServices;
use crate::job_chain;
use crate::run_agent::{self, NewRun, Target};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FireCron {
    pub tenant: TenantId,
    pub cron: CronId,
    /// The chain of this firing. A changed cron has a new one.
    pub schedule: ScheduleId,
}

/// Records a cron and its first firing.
///
/// `Rejected` if its schedule is invalid.
pub async fn create(tx: &mut Tx<'_>, mut cron: Cron) -> store::Result<Cron> {
    crons::insert(tx, &cron).await?;
    arm(tx, &mut cron).await?;
    crons::set_next(tx, cron.tenant_id, cron.id, cron.next_run_date, cron.schedule_id).await?;
    Ok(cron)
}

/// Finds a cron and ends its chain, so that it can be changed or deleted. The row is locked until the end of the
/// transaction.
pub async fn disarm(tx: &mut Tx<'_>, tenant: TenantId, id: CronId) -> store::Result<Cron> {
    // Jobs are locked before business rows everywhere. A firing between the two reads has recorded a job of the ended
    // chain, which does nothing when it is due.
    let before = crons::get(tx, tenant, id).await?;
    if let Some(chain) = before.schedule_id
        && let Some(schedule) = schedules::get(tx, chain).await?
    {
        if let Some(job) = schedule.spawn_job {
            towpath_durable::cancel(tx, job).await?;
        }
        schedules::end(tx, chain).await?;
    }
    let mut cron = crons::lock(tx, tenant, id).await?;
    cron.schedule_id = None;
    Ok(cron)
}

/// Starts a chain for a cron that has none; sets `next_run_date` and `schedule_id`, which the caller writes.
///
/// `Rejected` if its schedule is invalid.
pub async fn arm(tx: &mut Tx<'_>, cron: &mut Cron) -> store::Result<()> {
    let now = jobs::db_now(tx).await?;
    cron.next_run_date = next(cron, now)?;
    let (Some(at), true) = (cron.next_run_date, cron.enabled) else {
        return Ok(());
    };
    let fire = FireCron {
        tenant: cron.tenant_id,
        cron: cron.id,
        schedule: ScheduleId::new(),
    };
    job_chain::begin(tx, fire.schedule, fire.tenant, &fire, at).await?;
    cron.schedule_id = Some(fire.schedule);
    Ok(())
}

/// The first firing after `after`, up to the end of the cron.
fn next(cron: &Cron, after: Timestamp) -> Result<Option<Timestamp>, Rejection> {
    let schedule: Schedule = cron.schedule.parse()?;
    let next = schedule.next_after(after, zone(cron.timezone.as_deref())?);
    Ok(next.filter(|next| cron.end_time.is_none_or(|end| *next <= end)))
}

/// Validates the request of a cron like that of a run.
pub fn request(payload: &Map<String, Value>, thread: Option<ThreadId>) -> Result<AdmittedRun, Rejection> {
    let mut payload = payload.clone();
    // This server's own marker must not count as a caller's setting, which cannot be combined with a context.
    let configurable = payload
        .get_mut("config")
        .and_then(|config| config.get_mut("configurable"))
        .and_then(Value::as_object_mut);
    let mark = configurable.and_then(|configurable| configurable.remove("cron_id"));
    if let Some(completion) = payload.remove("on_run_completed") {
        payload.insert("on_completion".to_owned(), completion);
    }
    let request: RunRequest = serde_json::from_value(Value::Object(payload))
        .map_err(|error| Rejection::invalid("", format!("the run's request cannot be read: {error}")))?;
    let mut admitted = request.admit(thread.is_none())?;
    if let (Some(mark), Some(Value::Object(configurable))) = (mark, admitted.kwargs.config.get_mut("configurable")) {
        configurable.insert("cron_id".to_owned(), mark);
    }
    Ok(admitted)
}

impl Workflow for FireCron {
    const KIND: &'static str = "fire_cron";
    const POOL: &'static str = "crons";
    const RETRY: RetryPolicy = RetryPolicy::doubling(20, Duration::from_secs(1), Duration::from_secs(60));
    type World = AgentServices;

    async fn run(&self, ctx: &mut Ctx, world: &AgentServices) -> Outcome {
        let &Self { tenant, cron, schedule } = self;
        let read = async |tx: &mut Tx<'_>| {
            let chain = schedules::get(tx, schedule).await?;
            let cron = match crons::get(tx, tenant, cron).await {
                Err(store::Error::NotFound) => None,
                cron => Some(cron?),
            };
            Ok((chain, cron, jobs::db_now(tx).await?))
        };
        let (chain, cron, now) = world.store.read(read).await.retry()?;
        let Some(chain) = chain.filter(|chain| chain.ended_at.is_none() && chain.spawn_job == Some(ctx.job())) else {
            // Another job handles this firing.
            return ctx.complete();
        };
        let Some(cron) = cron.filter(|cron| cron.enabled && cron.schedule_id == Some(schedule)) else {
            // Its thread or its assistant was deleted, and the cron with it.
            return ctx.settle(async |tx| schedules::end(tx, schedule).await).await;
        };
        // This run replaces missed firings.
        let following = next(&cron, now.max(chain.next_at)).fatal()?;
        match self.fire(ctx, world, &cron, &chain, following).await {
            // Its request cannot be fulfilled now: this firing is skipped.
            Err(Failure::Fatal(why)) => {
                tracing::warn!(cron.id = %cron.id, error = %why, "a cron's run cannot start; the next firing is \
                                                                  scheduled");
                ctx.settle(async |tx| self.advance(tx, &chain, following).await).await
            }
            outcome => outcome,
        }
    }

    /// The scheduler finds a chain without a job and continues it.
    async fn end(_: &mut Tx<'_>, _: &Self, _: EndReason) -> store::Result<()> {
        Ok(())
    }
}

impl FireCron {
    /// Starts the run and advances the chain in one transaction.
    async fn fire(
        &self,
        ctx: &mut Ctx,
        world: &AgentServices,
        cron: &Cron,
        chain: &schedules::Schedule,
        following: Option<Timestamp>,
    ) -> Outcome {
        let corrupt = || store::Error::corrupt("cron", "payload", cron.id);
        let payload: Map<String, Value> = serde_json::from_str(&cron.payload).map_err(|_| corrupt()).fatal()?;
        let admitted = request(&payload, cron.thread_id).fatal()?;
        let thread = cron.thread_id.unwrap_or_else(ThreadId::new);
        let target = match cron.thread_id {
            Some(thread) => Target::Existing(thread),
            None => Target::New(thread),
        };
        // On behalf of its creator, as if the request came now.
        let caller: Option<Caller> = match cron.caller.as_deref() {
            Some(caller) => {
                let corrupt = |_| store::Error::corrupt("cron", "caller", cron.id);
                Some(serde_json::from_str(caller).map_err(corrupt).fatal()?)
            }
            None => None,
        };
        let headers = caller.map(|caller| caller.configurable()).unwrap_or_default();
        // The run's lane is locked before this job, as everywhere.
        ctx.settle_as(Settlement::starting_in(&[run_agent::lane(thread)]), async |tx| {
            let assistant = assistants::get(tx, self.tenant, cron.assistant_id).await?;
            let run = NewRun {
                id: RunId::new(),
                thread: target,
                assistant: &assistant,
                admitted,
                headers,
                user: cron.user_id.clone(),
                cron: Some((cron.id, chain.next_at)),
                events_kept: world.settings.event_retention,
                ttl: world.settings.author_settings.current().thread_ttl,
            };
            run_agent::start(tx, self.tenant, run).await?;
            self.advance(tx, chain, following).await
        })
        .await
    }

    async fn advance(
        &self,
        tx: &mut Tx<'_>,
        chain: &schedules::Schedule,
        following: Option<Timestamp>,
    ) -> store::Result<()> {
        let Some(following) = following else {
            schedules::end(tx, self.schedule).await?;
            return crons::set_next(tx, self.tenant, self.cron, None, None).await;
        };
        job_chain::advance(tx, chain, self, following).await?;
        crons::set_next(tx, self.tenant, self.cron, Some(following), Some(self.schedule)).await
    }
}
