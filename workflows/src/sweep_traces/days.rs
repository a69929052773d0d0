//! Has days compacted that are worth it: those of few rows together, each other one by a job of its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use towpath_domain::{ProjectId, TenantId, Timestamp, failpoint};
use towpath_durable::{Ctx, Failure, Lane, Start, Verdict};
use towpath_store::segments::replace::{self, Candidate, Scattered, Worth};
use towpath_store::{self as store, Tx, jobs, lanes};

use super::chore::Chore;
use crate::World;
use crate::compact_day::{CompactDay, lane};
use crate::compact_days::{CompactDays, batches, is_small};

/// Row groups looked at in one statement for days worth compacting…
const PARTS: i64 = 20_000;
/// … and how long one sweep goes on with it.
const LOOKING_TAKES: Duration = Duration::from_secs(10);
/// So many scattered rows of a closed day, or segments of it, are worth a compaction…
const CLOSED_ROWS: i64 = 20_000;
const CLOSED_SEGMENTS: i64 = 4;
/// … and so many segments of a day that is still open.
const OPEN_SEGMENTS: i64 = 8;

/// A compaction that is due.
enum Due {
    Day(CompactDay),
    Days(CompactDays),
}

/// Starts a compaction of the days most worth it, unless one waits already. Answers where the next sweep goes on looking, and whether
/// days are left that were found.
pub(super) async fn compact(
    ctx: &mut Ctx,
    world: &World,
    now: Timestamp,
    from: Option<Candidate>,
) -> Result<(Option<Candidate>, bool), Failure> {
    let worth = Worth {
        open_from: now.day(),
        closed_rows: CLOSED_ROWS,
        closed_segments: CLOSED_SEGMENTS,
        open_segments: OPEN_SEGMENTS,
    };
    let until = Instant::now() + LOOKING_TAKES;
    let (mut found, mut from) = (Vec::new(), from);
    loop {
        let behind = from;
        let seen = world
            .store
            .read(async |tx| replace::candidates(tx, worth, behind, PARTS).await)
            .await
            .retry()?;
        found.extend(seen.worth_it);
        from = seen.last;
        if from.is_none() || Instant::now() >= until {
            break;
        }
    }
    let due = due(found, now);
    let chore = Chore::begin("days to compact");
    let mut left = due.len();
    let mut ours = HashSet::new();
    for (lane, compaction) in due {
        if chore.is_spent() {
            break;
        }
        // What this sweep has put into a lane is of other days.
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

impl Due {
    async fn start(&self, tx: &mut Tx<'_>, lane: Lane) -> store::Result<()> {
        match self {
            Self::Day(day) => towpath_durable::start(tx, day, Start::new(day.tenant).lane(lane)).await,
            Self::Days(days) => towpath_durable::start(tx, days, Start::new(days.tenant).lane(lane)).await,
        }
        .map(drop)
    }
}

/// The compactions of days that were found, each with its lane: days in many segments first.
fn due(mut found: Vec<Scattered>, now: Timestamp) -> Vec<(Lane, Due)> {
    found.sort_by_key(|day| Reverse(day.segments));
    let (small, large): (Vec<_>, Vec<_>) = found.into_iter().partition(|day| is_small(day, now.day()));
    let one = |of: Candidate| {
        let compact = CompactDay::new(of.tenant_id, of.project_id, of.day);
        (compact.lane(), Due::Day(compact))
    };
    let mut due: Vec<_> = large.into_iter().map(|day| one(day.of)).collect();
    let mut lanes: BTreeMap<(Lane, TenantId, ProjectId), Vec<Scattered>> = BTreeMap::new();
    for day in small {
        let Candidate {
            tenant_id,
            project_id,
            day: date,
        } = day.of;
        let lane = lane(tenant_id, project_id, date);
        lanes.entry((lane, tenant_id, project_id)).or_default().push(day);
    }
    for ((lane, tenant, project), days) in lanes {
        for days in batches(days) {
            let only = days.first().copied().filter(|_| days.len() == 1);
            due.push(match only {
                Some(day) => one(Candidate {
                    tenant_id: tenant,
                    project_id: project,
                    day,
                }),
                None => (lane.clone(), Due::Days(CompactDays::new(tenant, project, days))),
            });
        }
    }
    due
}
