//! The engine's statements in `pg_stat_statements`.
//!
//! PostgreSQL stores their texts with a parameter instead of each constant, so a statement is recognised by fragments
//! without constants that are within one line.

use std::collections::BTreeMap;

/// Names of statements and fragments of their texts. The first entry whose fragments all match counts.
const STATEMENTS: [(&str, &[&str]); 31] = [
    ("turn, behind marks", &["AS mark(", "FROM claimed"]),
    ("turn", &["turn AS MATERIALIZED", "FROM claimed"]),
    ("claim, behind marks", &["AS mark("]),
    ("claim", &["turn AS MATERIALIZED"]),
    ("complete, in lanes", &["ours AS MATERIALIZED"]),
    ("complete", &["locked AS MATERIALIZED", "finished_at = $3"]),
    (
        "complete, lock lanes",
        &["FROM lane WHERE key = ANY", "FOR NO KEY UPDATE"],
    ),
    (
        "record jobs",
        &["INSERT INTO job (", "deadline_at, input, lane, lane_seq"],
    ),
    ("enter lanes", &["INSERT INTO lane (key, places)", "COLLATE"]),
    ("save lanes", &["UPDATE lane SET places = saved.places"]),
    ("record steps", &["INSERT INTO step (job_id, name, output, fence, at)"]),
    ("lock jobs", &["FROM job WHERE id = ANY($1) ORDER BY id FOR UPDATE"]),
    ("count children", &["UPDATE job SET open_children = (SELECT"]),
    ("jobs of a worker", &["AS cancel FROM job"]),
    ("renew a lease", &["UPDATE lease SET alive_until"]),
    ("look for lost workers", &["holder AS ("]),
    ("suspects", &["SELECT DISTINCT pool FROM job"]),
    ("ready due jobs", &["UPDATE job SET state", "ORDER BY run_at LIMIT"]),
    (
        "due, in lanes",
        &[
            "SELECT id, lane, run_at AS at FROM job",
            "NOT lane_held ORDER BY run_at",
        ],
    ),
    ("overdue", &["SELECT id, lane, deadline_at AS at FROM job"]),
    ("archive, look", &["AS leaves"]),
    ("archive, move", &["INSERT INTO job_history"]),
    ("forget", &["DELETE FROM job_history", "attempts AS ("]),
    ("prune lanes, look", &["AS idle"]),
    ("prune lanes, delete", &["DELETE FROM lane WHERE key = ANY"]),
    ("depth of pools", &["served(pool)"]),
    ("oldest ready jobs", &["head(nth"]),
    ("count lanes", &["AS full_lanes"]),
    ("list jobs", &["SELECT 1 FROM job_history WHERE state ="]),
    ("get a job", &["FROM job WHERE id = $1"]),
    ("get a job, from the history", &["FROM job_history WHERE id = $1"]),
];

/// The cost of a statement's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub calls: i64,
    /// Rows that it returned or changed.
    pub rows: i64,
    /// Blocks of tables and indexes that it touched, in memory or on disk.
    pub blocks: i64,
}

/// The costs of the engine's statements.
#[derive(Clone, Debug, Default)]
pub struct Costs(BTreeMap<&'static str, Cost>);

impl Costs {
    /// Adds a statement, if it is one of the engine's: one name may stand for several texts.
    pub(super) fn add(&mut self, text: &str, cost: Cost) {
        if let Some(name) = name(text) {
            let sum = self.0.entry(name).or_default();
            sum.calls += cost.calls;
            sum.rows += cost.rows;
            sum.blocks += cost.blocks;
        }
    }

    /// The costs since `earlier` by statement: all statements, always in the same order.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Vec<(&'static str, Cost)> {
        let of = |costs: &Self, name: &str| costs.0.get(name).copied().unwrap_or_default();
        let difference = |name: &str| {
            let (now, then) = (of(self, name), of(earlier, name));
            Cost {
                calls: now.calls - then.calls,
                rows: now.rows - then.rows,
                blocks: now.blocks - then.blocks,
            }
        };
        STATEMENTS.iter().map(|&(name, _)| (name, difference(name))).collect()
    }
}

fn name(text: &str) -> Option<&'static str> {
    let fits = |fragments: &[&str]| fragments.iter().all(|fragment| text.contains(fragment));
    STATEMENTS
        .iter()
        .find(|(_, fragments)| fits(fragments))
        .map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The source files of the statements.
    const SOURCES: [&str; 15] = [
        include_str!("../gauges.rs"),
        include_str!("../jobs.rs"),
        include_str!("../jobs/bulk.rs"),
        include_str!("../jobs/claim.rs"),
        include_str!("../jobs/family.rs"),
        include_str!("../jobs/history.rs"),
        include_str!("../jobs/lane_completion.rs"),
        include_str!("../jobs/list.rs"),
        include_str!("../jobs/lost.rs"),
        include_str!("../jobs/sweep.rs"),
        include_str!("../lanes.rs"),
        include_str!("../leases.rs"),
        include_str!("../pools.rs"),
        include_str!("../pools/depth.rs"),
        include_str!("../steps.rs"),
    ];

    #[test]
    fn fragments_stand_in_the_statements_of_the_store() {
        for (name, fragments) in STATEMENTS {
            let all = |source: &&str| fragments.iter().all(|fragment| source.contains(fragment));
            assert!(
                SOURCES.iter().any(all),
                "the statement {name:?} has changed: update its entry in STATEMENTS"
            );
        }
    }

    #[test]
    fn the_cost_of_a_statement_is_that_of_all_its_texts() {
        let mut costs = Costs::default();
        let earlier = costs.clone();
        for (text, calls) in [
            ("SELECT id FROM job WHERE id = $1", 2),
            ("SELECT id, state FROM job WHERE id = $1", 3),
            ("SELECT $1", 100),
        ] {
            let blocks = 4 * calls;
            costs.add(
                text,
                Cost {
                    calls,
                    rows: calls,
                    blocks,
                },
            );
        }
        let since = costs.since(&earlier);
        let (_, cost) = since.iter().find(|(name, _)| *name == "get a job").unwrap();
        assert_eq!((cost.calls, cost.rows, cost.blocks), (5, 5, 20));
        assert_eq!(since.len(), STATEMENTS.len());
    }
}
