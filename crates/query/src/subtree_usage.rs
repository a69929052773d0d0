//! Tokens and costs of runs together with all runs below them.
//!
//! As for whole traces, model calls count if any of a subtree reports usage, else all of its runs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use towpath_domain::{ProjectId, Timestamp};
use uuid::Uuid;

use crate::predicate::Predicate;
use crate::snapshot::Snapshot;
use crate::trace_usage::{COLUMNS, TraceUsage, UsageColumns, UsageSums};
use crate::{Error, Result};

/// Maximum number of runs in the traces of one request: all are in memory together.
const MAX_RUNS: usize = 100_000;

/// A run of a tree; its sums grow to those of its subtree.
struct TreeNode {
    parent: Option<Uuid>,
    sums: UsageSums,
}

/// Usage of the subtrees of `runs` that have runs below them. Runs in a cycle have no subtree.
fn sum_subtrees(mut nodes: HashMap<Uuid, TreeNode>, runs: &HashSet<Uuid>) -> HashMap<Uuid, TraceUsage> {
    // Children that are not added to their parent yet.
    let mut open: HashMap<Uuid, usize> = HashMap::new();
    for parent in nodes.values().filter_map(|node| node.parent) {
        *open.entry(parent).or_default() += 1;
    }
    let mut complete: Vec<Uuid> = nodes.keys().filter(|id| !open.contains_key(id)).copied().collect();
    let mut usage = HashMap::new();
    while let Some(id) = complete.pop() {
        let Some(TreeNode { parent, sums }) = nodes.remove(&id) else {
            continue;
        };
        if open.contains_key(&id) && runs.contains(&id) {
            usage.insert(id, sums.total());
        }
        let Some(parent) = parent else { continue };
        if let Some(above) = nodes.get_mut(&parent) {
            above.sums.add(&sums);
        }
        if let Some(left) = open.get_mut(&parent) {
            *left -= 1;
            if *left == 0 {
                complete.push(parent);
            }
        }
    }
    usage
}

impl Snapshot {
    /// The usage of each of `runs` together with all runs below it, from the runs of `traces` that start in `range`.
    /// Runs without another run below them are left out.
    ///
    /// # Errors
    /// [`Error::TooManyRuns`]; the catalog or a segment cannot be read.
    pub async fn subtree_usage(
        &self,
        project: ProjectId,
        traces: &BTreeSet<Uuid>,
        runs: &HashSet<Uuid>,
        range: &Range<Timestamp>,
    ) -> Result<HashMap<Uuid, TraceUsage>> {
        if traces.is_empty() {
            return Ok(HashMap::new());
        }
        let projects = [project];
        let extent = self.extent(traces, Some(&projects), range).await?;
        let range = extent.clip_range(range);
        let predicate = Predicate::new(None, &[Arc::new(traces.iter().copied().collect())])?;
        let columns: Vec<&str> = COLUMNS.into_iter().chain(["parent_run_id"]).collect();
        let mut nodes: HashMap<Uuid, TreeNode> = HashMap::new();
        for (project, parts) in self.scope(&projects, &range, Some(&extent)).await? {
            let mut matches = self.matches(project, &parts, range.clone(), &predicate, &columns);
            while let Some(batch) = matches.next().await? {
                if nodes.len() + batch.keys.len() > MAX_RUNS {
                    return Err(Error::TooManyRuns { limit: MAX_RUNS });
                }
                let usage = UsageColumns::of(&batch.rows)?;
                let parents = batch
                    .rows
                    .column_by_name("parent_run_id")
                    .map(AsArray::as_string::<i32>);
                for (at, key) in batch.keys.iter().enumerate() {
                    let parent = parents.filter(|parents| parents.is_valid(at));
                    let mut node = TreeNode {
                        parent: parent.and_then(|parents| parents.value(at).parse().ok()),
                        sums: UsageSums::default(),
                    };
                    usage.add_row(at, &mut node.sums);
                    nodes.insert(key.id.0, node);
                }
            }
        }
        Ok(sum_subtrees(nodes, runs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs with their parents and tokens, each a call of a model.
    fn usage(runs: &[(u128, Option<u128>, i64)], asked: &[u128]) -> HashMap<u128, i64> {
        let nodes = runs.iter().map(|(id, parent, tokens)| {
            let node = TreeNode {
                parent: parent.map(Uuid::from_u128),
                sums: UsageSums::of_model(TraceUsage {
                    tokens: [Some(*tokens), None, None],
                    ..TraceUsage::default()
                }),
            };
            (Uuid::from_u128(*id), node)
        });
        let asked = asked.iter().copied().map(Uuid::from_u128).collect();
        let usage = sum_subtrees(nodes.collect(), &asked).into_iter();
        usage
            .map(|(id, usage)| (id.as_u128(), usage.tokens[0].unwrap()))
            .collect()
    }

    #[test]
    fn a_subtree_has_what_is_below() {
        let runs = [
            (1, None, 1),
            (2, Some(1), 10),
            (3, Some(2), 100),
            (4, Some(1), 1000),
            // Its parent is in another project or not there yet.
            (5, Some(99), 7),
        ];
        assert_eq!(usage(&runs, &[1, 2, 3, 4, 5, 99]), HashMap::from([(1, 1111), (2, 110)]));
        assert_eq!(usage(&runs, &[2]), HashMap::from([(2, 110)]));
        assert_eq!(usage(&[], &[1]), HashMap::new());
    }

    #[test]
    fn cycles_end() {
        let runs = [
            (1, Some(2), 1),
            (2, Some(1), 10),
            (3, Some(3), 100),
            (4, Some(2), 1000),
            (5, Some(4), 10_000),
        ];
        assert_eq!(usage(&runs, &[1, 2, 3, 4, 5]), HashMap::from([(4, 11_000)]));
    }

    #[test]
    fn a_deep_chain_is_summed_once() {
        let runs: Vec<(u128, Option<u128>, i64)> = (1..=MAX_RUNS as u128)
            .map(|id| (id, (id > 1).then(|| id - 1), 1))
            .collect();
        let asked: Vec<u128> = (1..=1000).collect();
        let found = usage(&runs, &asked);
        assert_eq!((found[&1], found[&1000]), (100_000, 99_001));
    }
}
