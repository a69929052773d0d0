//! Where the claims of a pool go on: whose turn it is, and behind which jobs to look.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use towpath_domain::TenantId;
use towpath_durable::Claimed;
use towpath_store::Dialect;
use towpath_store::jobs::Mark;

/// Looking from the front takes at most one in so many parts of a claimer's time.
const PARTS: u32 = 10;

/// The longest a claimer goes without looking from the front.
const LONGEST: Duration = Duration::from_millis(500);

/// Remembers how far the claims of a pool came.
///
/// On PostgreSQL looking from the front means walking past all that was claimed lately, see [`Mark`]. So while there is a
/// backlog, claims go on behind the jobs claimed last, and look from the front now and then: for tenants that had nothing,
/// for jobs of a higher priority, for older ones that were given back or waited for a place. Those wait ten times as long as
/// the last look took, at most [`LONGEST`]. A claim that brings less than it might is always followed by a look.
pub(crate) struct Rota {
    /// What the database leaves behind in its index is walked past.
    keeps_marks: bool,
    /// The tenant served last.
    after: TenantId,
    /// One for each tenant that has something ready. The next to be served comes first.
    marks: Vec<Mark>,
    /// When to look from the front again.
    look_at: Instant,
}

impl Rota {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self {
            keeps_marks: dialect == Dialect::Postgres,
            after: TenantId::nil(),
            marks: Vec::new(),
            look_at: Instant::now(),
        }
    }

    /// The tenant served last.
    pub(crate) fn after(&self) -> TenantId {
        self.after
    }

    /// Behind what the next claim looks; from the front if there is nothing.
    pub(crate) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Forgets the marks if it is time to look from the front, or if the next claim has a reason to.
    pub(crate) fn advance(&mut self, look: bool) {
        if look || Instant::now() >= self.look_at {
            self.marks.clear();
        }
    }

    /// A claim of `wanted` jobs brought these after so long. Answers whether there may be more that it did not see.
    pub(crate) fn claimed(&mut self, claimed: &[Claimed], wanted: usize, took: Duration) -> bool {
        let looked = self.marks.is_empty();
        let mut last: BTreeMap<TenantId, Mark> = self.marks.iter().map(|mark| (mark.tenant_id, *mark)).collect();
        // Each tenant's jobs come in their order.
        last.extend(claimed.iter().map(|job| (job.tenant_id, Mark::from(job))));
        // The order of turns: those after the one served last, then from the beginning.
        let after = self.after;
        self.after = (claimed
            .iter()
            .map(|job| job.tenant_id)
            .max_by_key(|&tenant| (tenant <= after, tenant)))
        .unwrap_or(after);
        // A slot for each tenant says nothing of how many more there are.
        let every_tenant = !looked || last.len() < wanted;
        let share = (wanted / last.len().max(1)).max(1);
        let full = !last.is_empty() && claimed.len() >= wanted.min(share * last.len());
        self.marks.clear();
        if self.keeps_marks && full && every_tenant {
            self.marks.extend(last.into_values());
            self.marks
                .sort_unstable_by_key(|mark| (mark.tenant_id <= self.after, mark.tenant_id));
        }
        if looked {
            self.look_at = Instant::now() + (took * PARTS).min(LONGEST);
        }
        !looked && !full
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
        }
    }

    fn tenants<const N: usize>() -> [TenantId; N] {
        let mut tenants = [(); N].map(|()| TenantId::new());
        tenants.sort_unstable();
        tenants
    }

    /// Takes long enough that the marks are not dropped while a test runs.
    const SLOW: Duration = LONGEST;

    fn places(rota: &Rota) -> Vec<(TenantId, i64, i64)> {
        (rota
            .marks()
            .iter()
            .map(|mark| (mark.tenant_id, mark.priority, mark.run_at.micros())))
        .collect()
    }

    #[test]
    fn a_full_claim_leaves_a_mark_where_each_tenant_stands() {
        let [a, b] = tenants();
        let mut rota = Rota::new(Dialect::Postgres);
        let claimed = [job(a, 5, 1), job(b, 3, 1), job(a, 3, 7), job(b, 3, 2)];
        assert!(!rota.claimed(&claimed, 4, SLOW));
        rota.advance(false);
        assert_eq!(rota.after(), b);
        assert_eq!(places(&rota), [(a, 3, 7), (b, 3, 2)]);
        // One slot: the first of them has it, and the other keeps its mark.
        assert!(!rota.claimed(&[job(a, 3, 9)], 1, SLOW));
        assert_eq!(places(&rota), [(b, 3, 2), (a, 3, 9)]);
        rota.advance(true);
        assert_eq!(places(&rota), []);
    }

    #[test]
    fn a_claim_that_brings_less_than_it_might_is_followed_by_a_look() {
        let [a, b] = tenants();
        let mut rota = Rota::new(Dialect::Postgres);
        // Three of four: a has no more, or b has none.
        assert!(!rota.claimed(&[job(a, 0, 1), job(b, 0, 1), job(b, 0, 2)], 4, SLOW));
        assert_eq!(places(&rota), []);
        // Three slots for two tenants are one each.
        assert!(!rota.claimed(&[job(a, 0, 1), job(b, 0, 1)], 3, SLOW));
        assert_eq!(places(&rota), [(a, 0, 1), (b, 0, 1)]);
        for short in [&[][..], &[job(a, 0, 2)]] {
            rota.claimed(&[job(a, 0, 1), job(b, 0, 1)], 3, SLOW);
            assert!(rota.claimed(short, 3, SLOW), "nobody may rest now");
            assert_eq!(places(&rota), []);
        }
        assert!(!rota.claimed(&[], 3, SLOW), "nothing was seen from the front");
    }

    #[test]
    fn a_tenant_for_each_slot_may_not_be_all() {
        let [a, b] = tenants();
        let mut rota = Rota::new(Dialect::Postgres);
        rota.claimed(&[job(a, 0, 1), job(b, 0, 1)], 2, SLOW);
        assert_eq!(places(&rota), []);
        assert_eq!(rota.after(), b);
    }

    #[test]
    fn looks_take_a_part_of_the_time_and_none_is_put_off_for_long() {
        let [a] = tenants();
        let mut rota = Rota::new(Dialect::Postgres);
        rota.claimed(&[job(a, 0, 1), job(a, 0, 2)], 2, Duration::ZERO);
        assert_eq!(rota.marks().len(), 1);
        rota.advance(false);
        assert_eq!(rota.marks(), [], "ten times nothing is over");
        let before = Instant::now();
        rota.claimed(&[job(a, 0, 3), job(a, 0, 4)], 2, Duration::from_secs(60));
        assert!(rota.look_at <= Instant::now() + LONGEST);
        let next = rota.look_at;
        assert!(next >= before + LONGEST);
        rota.claimed(&[job(a, 0, 5), job(a, 0, 6)], 2, Duration::from_secs(60));
        assert_eq!(rota.look_at, next, "only a look from the front counts as one");
    }

    #[test]
    fn sqlite_leaves_nothing_to_walk_past() {
        let [a] = tenants();
        let mut rota = Rota::new(Dialect::Sqlite);
        assert!(!rota.claimed(&[job(a, 0, 1), job(a, 0, 2)], 2, SLOW));
        assert_eq!(rota.marks(), []);
    }
}
