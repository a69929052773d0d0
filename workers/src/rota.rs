//! Where the claims of a pool go on: whose turn it is, and behind which jobs to look.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use towpath_domain::TenantId;
use towpath_durable::Claimed;
use towpath_store::Dialect;
use towpath_store::jobs::Mark;

/// After a look from the front, claims go without one for so many times as long as it took,
const PARTS: u32 = 10;

/// but no longer than this.
const LONGEST: Duration = Duration::from_millis(500);

/// Remembers how far the claims of a pool came.
///
/// On PostgreSQL looking from the front means walking past all that was claimed lately, see [`Mark`]. So while there is a
/// backlog, claims go on behind the jobs claimed last of the tenants that have one, and look from the front now and then: for
/// other tenants, for jobs of a higher priority, for older ones that were given back or got a place. With a slot free, those
/// wait ten times as long as the last look took, at most [`LONGEST`], and for the turn under way then. A claim behind marks that
/// brings less than it might is followed by a look.
///
/// Marks need a claim that shows that it saw every tenant: one that brought two jobs of somebody. So claims of a single slot look
/// each time, and where more than half as many tenants as slots of a claim have something ready, and those that write ends of
/// jobs in lanes.
///
/// Two claims may be under way at once. Each passes over what the other has, and the next one begins behind the one that came
/// further, unless a look was over meanwhile: then where that one says.
pub(crate) struct Rota {
    /// What the database leaves behind in its index is walked past.
    keeps_marks: bool,
    /// The tenant served last.
    after: TenantId,
    /// The next to be served comes first.
    marks: Vec<Mark>,
    /// When to look from the front again.
    look_at: Instant,
    /// Goes up with each look, and with each failure. What a claim that began before that brings says nothing about where the
    /// next one is to begin.
    generation: u64,
}

/// Where one claim begins.
pub(crate) struct Outset {
    /// The tenant served last.
    pub(crate) after: TenantId,
    /// Behind what to look; from the front if there is nothing.
    pub(crate) marks: Vec<Mark>,
    generation: u64,
}

impl Rota {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self {
            keeps_marks: dialect == Dialect::Postgres,
            after: TenantId::nil(),
            marks: Vec::new(),
            look_at: Instant::now(),
            generation: 0,
        }
    }

    /// Where the next claim begins: from the front if it is time to, or if it has a reason to.
    pub(crate) fn next(&mut self, look: bool) -> Outset {
        let now = Instant::now();
        let look = look || now >= self.look_at;
        if look {
            // A claim beside this one need not look too.
            self.look_at = now + LONGEST;
        }
        Outset {
            after: self.after,
            marks: if look { Vec::new() } else { self.marks.clone() },
            generation: self.generation,
        }
    }

    /// A claim failed: what it was to bring is where the marks may be past.
    pub(crate) fn failed(&mut self) {
        self.look_at = Instant::now();
        self.generation += 1;
    }

    /// A claim of `wanted` jobs that began there brought these after so long. Answers whether there may be more that it did
    /// not see.
    pub(crate) fn claimed(&mut self, outset: &Outset, claimed: &[Claimed], wanted: usize, took: Duration) -> bool {
        let after = outset.after;
        self.after = (claimed.iter().map(|job| job.tenant_id))
            .max_by_key(|&tenant| (tenant <= after, tenant))
            .unwrap_or(after);
        // Each tenant's jobs come in their order: where it stands, and how many it had.
        let mut brought: BTreeMap<TenantId, (Mark, usize)> = BTreeMap::new();
        for job in claimed {
            let (mark, count) = brought.entry(job.tenant_id).or_insert((Mark::from(job), 0));
            (*mark, *count) = (Mark::from(job), *count + 1);
        }
        let stale = outset.generation != self.generation;
        if outset.marks.is_empty() {
            if stale {
                return false;
            }
            self.generation += 1;
            self.look_at = Instant::now() + (took * PARTS).min(LONGEST);
            // Two jobs of one tenant were in its share, so that each tenant had one.
            let every_tenant = claimed.len() > brought.len();
            self.marks.clear();
            if self.keeps_marks && every_tenant {
                // Who brought less has no more that could be seen.
                let share = wanted / brought.len();
                let marks = brought.into_values().filter(|(_, count)| *count >= share);
                self.marks.extend(marks.map(|(mark, _)| mark));
            }
            self.in_turn();
            return false;
        }
        let share = (wanted / outset.marks.len()).max(1);
        let short = claimed.len() < wanted.min(share * outset.marks.len());
        if stale {
            return short;
        }
        if short {
            self.marks.clear();
            return true;
        }
        for mark in &mut self.marks {
            if let Some((now, _)) = brought.get(&mark.tenant_id)
                && (now.run_at, now.id) > (mark.run_at, mark.id)
            {
                *mark = *now;
            }
        }
        self.in_turn();
        false
    }

    /// Those after the tenant served last, then from the beginning.
    fn in_turn(&mut self) {
        self.marks
            .sort_unstable_by_key(|mark| (mark.tenant_id <= self.after, mark.tenant_id));
    }
}

#[cfg(test)]
mod tests {
    use towpath_domain::{JobId, Timestamp};

    use super::*;

    fn job(tenant: TenantId, priority: i64, run_at: i64) -> Claimed {
        Claimed {
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

    /// Takes long enough that the marks are not dropped while a test runs.
    const SLOW: Duration = LONGEST;

    fn places(marks: &[Mark]) -> Vec<(TenantId, i64, i64)> {
        (marks
            .iter()
            .map(|mark| (mark.tenant_id, mark.priority, mark.run_at.micros())))
        .collect()
    }

    /// One claim, with nothing beside it.
    fn claim(rota: &mut Rota, claimed: &[Claimed], wanted: usize) -> bool {
        let outset = rota.next(false);
        rota.claimed(&outset, claimed, wanted, SLOW)
    }

    #[test]
    fn a_full_claim_leaves_a_mark_where_each_tenant_stands() {
        let [a, b] = tenants();
        let mut rota = Rota::new(Dialect::Postgres);
        let claimed = [job(a, 5, 1), job(b, 3, 1), job(a, 3, 7), job(b, 3, 2)];
        assert!(!claim(&mut rota, &claimed, 4));
        let outset = rota.next(false);
        assert_eq!(outset.after, b);
        assert_eq!(places(&outset.marks), [(a, 3, 7), (b, 3, 2)]);
        // One slot: the first of them has it, and the other keeps its mark.
        assert!(!claim(&mut rota, &[job(a, 3, 9)], 1));
        assert_eq!(places(&rota.marks), [(b, 3, 2), (a, 3, 9)]);
        assert_eq!(places(&rota.next(true).marks), []);
    }

    #[test]
    fn who_brought_less_than_its_share_has_no_more() {
        let [a, b, c] = tenants();
        let mut rota = Rota::new(Dialect::Postgres);
        let claimed = [
            job(a, 0, 1),
            job(b, 0, 1),
            job(b, 0, 2),
            job(b, 0, 3),
            job(c, 0, 1),
            job(c, 0, 2),
        ];
        assert!(!claim(&mut rota, &claimed, 8));
        assert_eq!(places(&rota.marks), [(b, 0, 3), (c, 0, 2)]);
    }

    #[test]
    fn a_claim_that_brings_less_than_it_might_is_followed_by_a_look() {
        let [a, b] = tenants();
        let mut rota = Rota::new(Dialect::Postgres);
        let full = [job(a, 0, 1), job(a, 0, 2), job(b, 0, 1), job(b, 0, 2)];
        for short in [&[][..], &[job(a, 0, 3)]] {
            claim(&mut rota, &full, 4);
            assert_eq!(places(&rota.marks), [(a, 0, 2), (b, 0, 2)]);
            assert!(claim(&mut rota, short, 3), "nobody may rest now");
            assert_eq!(places(&rota.marks), []);
        }
        assert!(!claim(&mut rota, &[], 3), "nothing was seen from the front");
        // Three slots for two tenants are one each.
        let mut rota = Rota::new(Dialect::Postgres);
        claim(&mut rota, &full, 4);
        assert!(!claim(&mut rota, &[job(a, 0, 3), job(b, 0, 3)], 3));
        assert_eq!(places(&rota.marks), [(a, 0, 3), (b, 0, 3)]);
    }

    #[test]
    fn without_a_second_job_of_anybody_there_may_be_more_tenants() {
        let [a, b] = tenants();
        let mut rota = Rota::new(Dialect::Postgres);
        // The third slot may have been for a tenant whose job somebody else took.
        for wanted in [2, 3] {
            claim(&mut rota, &[job(a, 0, 1), job(b, 0, 1)], wanted);
            assert_eq!(places(&rota.marks), []);
            assert_eq!(rota.after, b);
        }
    }

    #[test]
    fn of_two_claims_at_once_one_looks_and_each_is_judged_by_where_it_began() {
        let [a] = tenants();
        let mut rota = Rota::new(Dialect::Postgres);
        claim(&mut rota, &[job(a, 0, 1), job(a, 0, 2)], 2);
        rota.look_at = Instant::now();
        let [look, behind] = [rota.next(false), rota.next(false)];
        assert_eq!([places(&look.marks), places(&behind.marks)], [vec![], vec![(a, 0, 2)]]);
        // One that looks knows of all there is, whatever the marks are by then.
        assert!(!rota.claimed(&behind, &[job(a, 0, 3), job(a, 0, 4)], 2, SLOW));
        assert!(
            !rota.claimed(&look, &[], 2, SLOW),
            "who looked from the front and found nothing may rest"
        );
        assert_eq!(places(&rota.marks), []);
        // What it found is not undone by one that began before that was known, however that one went.
        for (beside, more) in [(&[job(a, 0, 11), job(a, 0, 12)][..], false), (&[], true)] {
            rota.look_at = Instant::now();
            claim(&mut rota, &[job(a, 0, 1), job(a, 0, 10)], 2);
            let [look, behind] = [rota.next(true), rota.next(false)];
            rota.claimed(&look, &[job(a, 5, 1), job(a, 5, 2)], 2, SLOW);
            assert_eq!(rota.claimed(&behind, beside, 2, SLOW), more);
            assert_eq!(places(&rota.marks), [(a, 5, 2)]);
        }
    }

    #[test]
    fn of_two_claims_behind_marks_the_one_that_came_further_counts() {
        let [a] = tenants();
        let mut rota = Rota::new(Dialect::Postgres);
        claim(&mut rota, &[job(a, 0, 1), job(a, 0, 2)], 2);
        let [first, second] = [rota.next(false), rota.next(false)];
        rota.claimed(&second, &[job(a, 0, 5), job(a, 0, 6)], 2, SLOW);
        rota.claimed(&first, &[job(a, 0, 3), job(a, 0, 4)], 2, SLOW);
        assert_eq!(places(&rota.marks), [(a, 0, 6)]);
    }

    #[test]
    fn a_claim_that_failed_is_followed_by_a_look() {
        let [a] = tenants();
        for looks in [false, true] {
            let mut rota = Rota::new(Dialect::Postgres);
            claim(&mut rota, &[job(a, 0, 1), job(a, 0, 2)], 2);
            // Also if one beside it, which passed over what that one had, is over later.
            let beside = rota.next(looks);
            rota.failed();
            rota.claimed(&beside, &[job(a, 0, 5), job(a, 0, 6)], 2, SLOW);
            assert_eq!(places(&rota.next(false).marks), []);
        }
    }

    #[test]
    fn looks_take_a_part_of_the_time_and_none_is_put_off_for_long() {
        let [a] = tenants();
        let two = [job(a, 0, 1), job(a, 0, 2)];
        let mut rota = Rota::new(Dialect::Postgres);
        let look = rota.next(false);
        rota.claimed(&look, &two, 2, Duration::ZERO);
        assert_eq!(rota.marks.len(), 1);
        let look = rota.next(false);
        assert_eq!(look.marks, [], "ten times nothing is over");
        let before = Instant::now();
        rota.claimed(&look, &two, 2, Duration::from_secs(60));
        assert!(rota.look_at <= Instant::now() + LONGEST);
        let next = rota.look_at;
        assert!(next >= before + LONGEST);
        let behind = rota.next(false);
        assert_eq!(behind.marks.len(), 1);
        rota.claimed(&behind, &two, 2, Duration::from_secs(60));
        assert_eq!(rota.look_at, next, "only a look from the front counts as one");
    }

    #[test]
    fn sqlite_leaves_nothing_to_walk_past() {
        let [a] = tenants();
        let mut rota = Rota::new(Dialect::Sqlite);
        assert!(!claim(&mut rota, &[job(a, 0, 1), job(a, 0, 2)], 2));
        assert_eq!(rota.marks, []);
    }
}
