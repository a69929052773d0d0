//! The claim cursor of a pool: which tenant comes next, and from which position.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use towpath_domain::TenantId;
use towpath_durable::ClaimedJob;
use towpath_store::Dialect;
use towpath_store::jobs::ClaimPosition;

/// After a full scan, claims go without one for this many times its duration,
const SCAN_INTERVAL_FACTOR: u32 = 10;

/// but no longer than this.
const MAX_SCAN_INTERVAL: Duration = Duration::from_millis(500);

/// Remembers how far the claims of a pool have come.
///
/// On PostgreSQL, a full scan walks past the index entries of recently claimed jobs, see [`ClaimPosition`]. So during a
/// backlog, claims continue behind the last claimed job of each tenant. A full scan now and then finds other tenants,
/// jobs of a higher priority, and older jobs that were returned or got a slot. With a free slot, these wait ten times
/// the duration of the last full scan, at most [`MAX_SCAN_INTERVAL`], plus the batch in progress. A claim from
/// positions that returns fewer jobs than it could is followed by a full scan.
///
/// Positions require a claim that has seen every tenant: one that returned two jobs of a tenant. So there is a full
/// scan for every claim of a single slot, for claims where more than half as many tenants as slots have ready jobs, and
/// for batches that write completions of jobs in lanes.
///
/// Two claims may be in progress at once. Each skips the jobs of the other, and the next one starts behind the further
/// one, unless a full scan ended meanwhile and set the position.
pub(crate) struct ClaimCursor {
    /// Positions help only if the index keeps entries of claimed jobs, as on PostgreSQL.
    uses_positions: bool,
    /// The tenant served last.
    last_tenant: TenantId,
    /// In the order of serving.
    positions: Vec<ClaimPosition>,
    /// Time of the next full scan.
    full_scan_at: Instant,
    /// Rises with each full scan and each failure. The result of a claim that began earlier no longer sets positions.
    generation: u64,
}

/// Start of one claim.
pub(crate) struct CursorSnapshot {
    pub(crate) last_tenant: TenantId,
    /// Positions to continue from; empty for a full scan.
    pub(crate) positions: Vec<ClaimPosition>,
    generation: u64,
}

impl ClaimCursor {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self {
            uses_positions: dialect == Dialect::Postgres,
            last_tenant: TenantId::nil(),
            positions: Vec::new(),
            full_scan_at: Instant::now(),
            generation: 0,
        }
    }

    /// The start of the next claim; a full scan if it is due or requested.
    pub(crate) fn begin_claim(&mut self, look: bool) -> CursorSnapshot {
        let now = Instant::now();
        let look = look || now >= self.full_scan_at;
        if look {
            // A concurrent claim need not scan too.
            self.full_scan_at = now + MAX_SCAN_INTERVAL;
        }
        CursorSnapshot {
            last_tenant: self.last_tenant,
            positions: if look { Vec::new() } else { self.positions.clone() },
            generation: self.generation,
        }
    }

    /// After a failed claim, the positions may be behind jobs that were not claimed.
    pub(crate) fn record_failure(&mut self) {
        self.full_scan_at = Instant::now();
        self.generation += 1;
    }

    /// Records the result of a claim of `wanted` jobs and its duration. Returns whether there may be more jobs.
    pub(crate) fn record_claim(
        &mut self,
        outset: &CursorSnapshot,
        claimed: &[ClaimedJob],
        wanted: usize,
        took: Duration,
    ) -> bool {
        let after = outset.last_tenant;
        self.last_tenant = (claimed.iter().map(|job| job.tenant_id))
            .max_by_key(|&tenant| (tenant <= after, tenant))
            .unwrap_or(after);
        // Jobs of each tenant come in order: its last position, and their number.
        let mut brought: BTreeMap<TenantId, (ClaimPosition, usize)> = BTreeMap::new();
        for job in claimed {
            let (mark, count) = brought.entry(job.tenant_id).or_insert((ClaimPosition::from(job), 0));
            (*mark, *count) = (ClaimPosition::from(job), *count + 1);
        }
        let stale = outset.generation != self.generation;
        if outset.positions.is_empty() {
            if stale {
                return false;
            }
            self.generation += 1;
            self.full_scan_at = Instant::now() + (took * SCAN_INTERVAL_FACTOR).min(MAX_SCAN_INTERVAL);
            // Two jobs of one tenant mean that every tenant got its share of one.
            let every_tenant = claimed.len() > brought.len();
            self.positions.clear();
            if self.uses_positions && every_tenant {
                // A tenant with fewer jobs has no more visible ones.
                let share = wanted / brought.len();
                let marks = brought.into_values().filter(|(_, count)| *count >= share);
                self.positions.extend(marks.map(|(mark, _)| mark));
            }
            self.sort_by_turn();
            return false;
        }
        let share = (wanted / outset.positions.len()).max(1);
        let short = claimed.len() < wanted.min(share * outset.positions.len());
        if stale {
            return short;
        }
        if short {
            self.positions.clear();
            return true;
        }
        for mark in &mut self.positions {
            if let Some((now, _)) = brought.get(&mark.tenant_id)
                && (now.run_at, now.id) > (mark.run_at, mark.id)
            {
                *mark = *now;
            }
        }
        self.sort_by_turn();
        false
    }

    /// Tenants after the last served one, then from the beginning.
    fn sort_by_turn(&mut self) {
        self.positions
            .sort_unstable_by_key(|mark| (mark.tenant_id <= self.last_tenant, mark.tenant_id));
    }
}

#[cfg(test)]
mod tests {
    use towpath_domain::{JobId, Timestamp};

    use super::*;

    fn job(tenant: TenantId, priority: i64, run_at: i64) -> ClaimedJob {
        ClaimedJob {
            id: JobId::new(),
            tenant_id: tenant,
            kind: String::new(),
            pool: String::new(),
            priority,
            run_at: Timestamp::from_micros(run_at),
            deadline_at: None,
            input: String::new(),
            cursor: None,
            lane: None,
            parent_id: None,
            open_children: 0,
            attempt: 1,
            failures: 0,
            fence: 1,
            cancel_at: None,
            traceparent: None,
            created_at: Timestamp::from_micros(0),
            bad_children: 0,
            claimed_at: Timestamp::from_micros(0),
        }
    }

    fn tenants<const N: usize>() -> [TenantId; N] {
        let mut tenants = [(); N].map(|()| TenantId::new());
        tenants.sort_unstable();
        tenants
    }

    /// Long enough that the positions stay valid during a test.
    const SLOW: Duration = MAX_SCAN_INTERVAL;

    fn places(marks: &[ClaimPosition]) -> Vec<(TenantId, i64, i64)> {
        (marks
            .iter()
            .map(|mark| (mark.tenant_id, mark.priority, mark.run_at.micros())))
        .collect()
    }

    /// One claim without a concurrent one.
    fn claim(cursor: &mut ClaimCursor, claimed: &[ClaimedJob], wanted: usize) -> bool {
        let outset = cursor.begin_claim(false);
        cursor.record_claim(&outset, claimed, wanted, SLOW)
    }

    #[test]
    fn a_full_claim_leaves_a_mark_where_each_tenant_stands() {
        let [a, b] = tenants();
        let mut cursor = ClaimCursor::new(Dialect::Postgres);
        let claimed = [job(a, 5, 1), job(b, 3, 1), job(a, 3, 7), job(b, 3, 2)];
        assert!(!claim(&mut cursor, &claimed, 4));
        let outset = cursor.begin_claim(false);
        assert_eq!(outset.last_tenant, b);
        assert_eq!(places(&outset.positions), [(a, 3, 7), (b, 3, 2)]);
        // One slot: the first tenant gets it, and the other keeps its position.
        assert!(!claim(&mut cursor, &[job(a, 3, 9)], 1));
        assert_eq!(places(&cursor.positions), [(b, 3, 2), (a, 3, 9)]);
        assert_eq!(places(&cursor.begin_claim(true).positions), []);
    }

    #[test]
    fn who_brought_less_than_its_share_has_no_more() {
        let [a, b, c] = tenants();
        let mut cursor = ClaimCursor::new(Dialect::Postgres);
        let claimed = [
            job(a, 0, 1),
            job(b, 0, 1),
            job(b, 0, 2),
            job(b, 0, 3),
            job(c, 0, 1),
            job(c, 0, 2),
        ];
        assert!(!claim(&mut cursor, &claimed, 8));
        assert_eq!(places(&cursor.positions), [(b, 0, 3), (c, 0, 2)]);
    }

    #[test]
    fn a_claim_that_brings_less_than_it_might_is_followed_by_a_look() {
        let [a, b] = tenants();
        let mut cursor = ClaimCursor::new(Dialect::Postgres);
        let full = [job(a, 0, 1), job(a, 0, 2), job(b, 0, 1), job(b, 0, 2)];
        for short in [&[][..], &[job(a, 0, 3)]] {
            claim(&mut cursor, &full, 4);
            assert_eq!(places(&cursor.positions), [(a, 0, 2), (b, 0, 2)]);
            assert!(claim(&mut cursor, short, 3), "nobody may rest now");
            assert_eq!(places(&cursor.positions), []);
        }
        assert!(!claim(&mut cursor, &[], 3), "nothing was seen from the front");
        // Three slots for two tenants are one each.
        let mut cursor = ClaimCursor::new(Dialect::Postgres);
        claim(&mut cursor, &full, 4);
        assert!(!claim(&mut cursor, &[job(a, 0, 3), job(b, 0, 3)], 3));
        assert_eq!(places(&cursor.positions), [(a, 0, 3), (b, 0, 3)]);
    }

    #[test]
    fn without_a_second_job_of_anybody_there_may_be_more_tenants() {
        let [a, b] = tenants();
        let mut cursor = ClaimCursor::new(Dialect::Postgres);
        // The third slot may have been for a tenant whose job another worker took.
        for wanted in [2, 3] {
            claim(&mut cursor, &[job(a, 0, 1), job(b, 0, 1)], wanted);
            assert_eq!(places(&cursor.positions), []);
            assert_eq!(cursor.last_tenant, b);
        }
    }

    #[test]
    fn of_two_claims_at_once_one_looks_and_each_is_judged_by_where_it_began() {
        let [a] = tenants();
        let mut cursor = ClaimCursor::new(Dialect::Postgres);
        claim(&mut cursor, &[job(a, 0, 1), job(a, 0, 2)], 2);
        cursor.full_scan_at = Instant::now();
        let [look, behind] = [cursor.begin_claim(false), cursor.begin_claim(false)];
        assert_eq!(
            [places(&look.positions), places(&behind.positions)],
            [vec![], vec![(a, 0, 2)]]
        );
        // A full scan knows all jobs, whatever the positions are by then.
        assert!(!cursor.record_claim(&behind, &[job(a, 0, 3), job(a, 0, 4)], 2, SLOW));
        assert!(
            !cursor.record_claim(&look, &[], 2, SLOW),
            "who looked from the front and found nothing may rest"
        );
        assert_eq!(places(&cursor.positions), []);
        // An earlier claim does not undo the result of a full scan.
        for (concurrent, more) in [(&[job(a, 0, 11), job(a, 0, 12)][..], false), (&[], true)] {
            cursor.full_scan_at = Instant::now();
            claim(&mut cursor, &[job(a, 0, 1), job(a, 0, 10)], 2);
            let [look, behind] = [cursor.begin_claim(true), cursor.begin_claim(false)];
            cursor.record_claim(&look, &[job(a, 5, 1), job(a, 5, 2)], 2, SLOW);
            assert_eq!(cursor.record_claim(&behind, concurrent, 2, SLOW), more);
            assert_eq!(places(&cursor.positions), [(a, 5, 2)]);
        }
    }

    #[test]
    fn of_two_claims_behind_marks_the_one_that_came_further_counts() {
        let [a] = tenants();
        let mut cursor = ClaimCursor::new(Dialect::Postgres);
        claim(&mut cursor, &[job(a, 0, 1), job(a, 0, 2)], 2);
        let [first, second] = [cursor.begin_claim(false), cursor.begin_claim(false)];
        cursor.record_claim(&second, &[job(a, 0, 5), job(a, 0, 6)], 2, SLOW);
        cursor.record_claim(&first, &[job(a, 0, 3), job(a, 0, 4)], 2, SLOW);
        assert_eq!(places(&cursor.positions), [(a, 0, 6)]);
    }

    #[test]
    fn a_claim_that_failed_is_followed_by_a_look() {
        let [a] = tenants();
        for looks in [false, true] {
            let mut cursor = ClaimCursor::new(Dialect::Postgres);
            claim(&mut cursor, &[job(a, 0, 1), job(a, 0, 2)], 2);
            // Also if a concurrent claim, which skipped its jobs, ends later.
            let concurrent = cursor.begin_claim(looks);
            cursor.record_failure();
            cursor.record_claim(&concurrent, &[job(a, 0, 5), job(a, 0, 6)], 2, SLOW);
            assert_eq!(places(&cursor.begin_claim(false).positions), []);
        }
    }

    #[test]
    fn looks_take_a_part_of_the_time_and_none_is_put_off_for_long() {
        let [a] = tenants();
        let two = [job(a, 0, 1), job(a, 0, 2)];
        let mut cursor = ClaimCursor::new(Dialect::Postgres);
        let look = cursor.begin_claim(false);
        cursor.record_claim(&look, &two, 2, Duration::ZERO);
        assert_eq!(cursor.positions.len(), 1);
        let look = cursor.begin_claim(false);
        assert_eq!(look.positions, [], "ten times nothing is over");
        let before = Instant::now();
        cursor.record_claim(&look, &two, 2, Duration::from_secs(60));
        assert!(cursor.full_scan_at <= Instant::now() + MAX_SCAN_INTERVAL);
        let next = cursor.full_scan_at;
        assert!(next >= before + MAX_SCAN_INTERVAL);
        let behind = cursor.begin_claim(false);
        assert_eq!(behind.positions.len(), 1);
        cursor.record_claim(&behind, &two, 2, Duration::from_secs(60));
        assert_eq!(cursor.full_scan_at, next, "only a look from the front counts as one");
    }

    #[test]
    fn sqlite_leaves_nothing_to_walk_past() {
        let [a] = tenants();
        let mut cursor = ClaimCursor::new(Dialect::Sqlite);
        assert!(!claim(&mut cursor, &[job(a, 0, 1), job(a, 0, 2)], 2));
        assert_eq!(cursor.positions, []);
    }
}
