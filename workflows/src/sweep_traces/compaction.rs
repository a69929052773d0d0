//! Starts compactions of days: small ones together, each other one in its own job.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use towpath_domain::{ProjectId, TenantId, Timestamp, failpoint};
use towpath_durable::{Ctx, Failure, IntoFailure, Lane, Start};
use towpath_store::segments::replace::{self, CompactionCandidate, CompactionThresholds, ScatteredDay};
use towpath_store::{self as store, Tx, jobs, lanes};

use super::sweep_task::SweepTask;
use crate::Services;
use crate::compact_day::{CompactDay, lane};
use crate::compact_days::{CompactDays, is_small, split_into_batches};

/// Row groups per statement in the search for days to compact,
const SCAN_PARTS: i64 = 20_000;
/// and the time budget of that search in one sweep.
const SCAN_BUDGET: Duration = Duration::from_secs(10);
/// Number of scattered rows or segments of a closed day that justifies a compaction,
const CLOSED_ROWS: i64 = 20_000;
const CLOSED_SEGMENTS: i64 = 4;
/// and of segments of an open day.
const OPEN_SEGMENTS: i64 = 8;

enum DueCompaction {
    Day(CompactDay),
    Days(CompactDays),
}

/// Starts the most worthwhile compactions, unless one is waiting. Returns where the next sweep continues the search,
/// and whether found days are left.
pub(super) async fn start_compactions(
    ctx: &mut Ctx,
    world: &Services,
    now: Timestamp,
    from: Option<CompactionCandidate>,
) -> Result<(Option<CompactionCandidate>, bool), Failure> {
    let worth = CompactionThresholds {
        open_from: now.day(),
        closed_rows: CLOSED_ROWS,
        closed_segments: CLOSED_SEGMENTS,
        open_segments: OPEN_SEGMENTS,
    };
    let until = Instant::now() + SCAN_BUDGET;
    let (mut found, mut from) = (Vec::new(), from);
    loop {
        let behind = from;
        let seen = world
            .store
            .read(async |tx| replace::candidates(tx, worth, behind, SCAN_PARTS).await)
            .await
            .retry()?;
        found.extend(seen.candidates);
        from = seen.last;
        if from.is_none() || Instant::now() >= until {
            break;
        }
    }
    let due = due_compactions(found, now);
    let chore = SweepTask::begin("days to compact");
    let mut left = due.len();
    let mut ours = HashSet::new();
    for (lane, compaction) in due {
        if chore.is_spent() {
            break;
        }
        // Jobs that this sweep put into a lane are for other days.
        let is_ours = ours.contains(lane.key());
        let started = ctx
            .commit_in(std::slice::from_ref(&lane), async |tx| {
                lanes::lock(tx, lane.key(), 1).await?;
                if !is_ours && jobs::lane_has_queued(tx, lane.key()).await? {
                    return Ok(false);
                }
                compaction.start(tx, lane.clone()).await?;
                Ok(true)
            })
            .await?;
        if started {
            ours.insert(lane.key().to_owned());
        }
        failpoint::hit("sweep.compaction_started");
        left -= 1;
    }
    Ok((from, chore.end(left)))
}

impl DueCompaction {
    async fn start(&self, tx: &mut Tx<'_>, lane: Lane) -> store::Result<()> {
        match self {
            Self::Day(day) => towpath_durable::start(tx, day, Start::new(day.tenant).lane(lane)).await,
            Self::Days(days) => towpath_durable::start(tx, days, Start::new(days.tenant).lane(lane)).await,
        }
        .map(drop)
    }
}

/// The compactions of found days, each with its lane: days in many segments first.
fn due_compactions(mut found: Vec<ScatteredDay>, now: Timestamp) -> Vec<(Lane, DueCompaction)> {
    found.sort_by_key(|day| Reverse(day.segments));
    let (small, large): (Vec<_>, Vec<_>) = found.into_iter().partition(|day| is_small(day, now.day()));
    let one = |of: CompactionCandidate| {
        let compact = CompactDay::new(of.tenant_id, of.project_id, of.day);
        (compact.lane(), DueCompaction::Day(compact))
    };
    let mut due: Vec<_> = large.into_iter().map(|day| one(day.candidate)).collect();
    let mut lanes: BTreeMap<(Lane, TenantId, ProjectId), Vec<ScatteredDay>> = BTreeMap::new();
    for day in small {
        let CompactionCandidate {
            tenant_id,
            project_id,
            day: date,
        } = day.candidate;
        let lane = lane(tenant_id, project_id, date);
        lanes.entry((lane, tenant_id, project_id)).or_default().push(day);
    }
    for ((lane, tenant, project), days) in lanes {
        for days in split_into_batches(days) {
            let only = days.first().copied().filter(|_| days.len() == 1);
            due.push(match only {
                Some(day) => one(CompactionCandidate {
                    tenant_id: tenant,
                    project_id: project,
                    day,
                }),
                None => (
                    lane.clone(),
                    DueCompaction::Days(CompactDays::new(tenant, project, days)),
                ),
            });
        }
    }
    due
}
