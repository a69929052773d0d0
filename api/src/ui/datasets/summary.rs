//! Totals of compared experiments.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use towpath_domain::{ProjectId, TenantId};
use towpath_query::TraceUsage;
use towpath_query::feedback::stats;
use towpath_query::statistics::Statistics;
use towpath_store::feedback::Feedback;
use towpath_store::projects::Project;
use uuid::Uuid;

use super::scores::{Score, compared_scores, mean_scores, score_tone};
use crate::app::App;
use crate::platform::datasets::results::{self, ExperimentFeedback, UsageOfTraces};
use crate::platform::runs::{self, Criteria};
use crate::ui::formatting;
use crate::ui::page::PageError;
use crate::ui::traces::dollars;

/// An experiment as a whole.
pub(super) struct Summary {
    pub(super) name: String,
    pub(super) runs: String,
    pub(super) failed: Option<Measure>,
    pub(super) scores: Vec<Score>,
    /// The median of its root runs.
    pub(super) latency: Option<Measure>,
    pub(super) tokens: String,
    /// Of its traces, like `tokens`.
    pub(super) cost: Option<Measure>,
}

/// A number that is better if it is lower.
pub(super) struct Measure {
    pub(super) text: String,
    /// Compared with the first experiment.
    pub(super) tone: &'static str,
}

/// What is known about an experiment.
struct Totals {
    roots: Statistics,
    usage: TraceUsage,
    scores: BTreeMap<String, f64>,
    by_example: HashMap<Uuid, BTreeMap<String, f64>>,
}

/// The mean scores of each example.
fn scores_by_example(given: &ExperimentFeedback) -> HashMap<Uuid, BTreeMap<String, f64>> {
    let mut by_example: HashMap<Uuid, Vec<&Feedback>> = HashMap::new();
    for feedback in &given.on_runs {
        let example = feedback.run_id.and_then(|run| given.examples.get(&run));
        if let Some(example) = example {
            by_example.entry(*example).or_default().push(feedback);
        }
    }
    let means = by_example
        .into_iter()
        .map(|(example, given)| (example, mean_scores(&stats(given.into_iter()))));
    means.collect()
}

impl Totals {
    async fn read(app: &App, tenant: TenantId, experiment: ProjectId) -> Result<Self, PageError> {
        let read = app.queries.run(move |reader| async move {
            let snapshot = reader.snapshot(tenant).await?;
            let criteria = Criteria {
                projects: vec![experiment],
                is_root: Some(true),
                ..Criteria::default()
            };
            let roots = runs::counted(&snapshot, &criteria).await?;
            let given = results::feedback(reader, tenant, experiment, UsageOfTraces::Read).await?;
            Ok(Self {
                roots,
                usage: given.usage,
                scores: mean_scores(&stats(given.on_runs.iter())),
                by_example: scores_by_example(&given),
            })
        });
        Ok(read.await?)
    }

    fn median_seconds(&self) -> Option<f64> {
        self.roots.latency.at(0.5)
    }

    fn cost(&self) -> Option<i128> {
        let [cost, ..] = self.usage.costs;
        cost
    }

    /// Says how many examples have a better score than in the first experiment, and how many a worse one.
    fn changes(&self, first: &Self, key: &str, lower_is_better: bool) -> String {
        let (mut better, mut worse) = (0_i64, 0_i64);
        for (example, scores) in &self.by_example {
            let before = first.by_example.get(example).and_then(|scores| scores.get(key));
            let Some(now) = scores.get(key) else { continue };
            match score_tone(before, *now, lower_is_better) {
                "good" => better += 1,
                "bad" => worse += 1,
                _ => {}
            }
        }
        format!(
            "{} better, {} worse",
            formatting::count(better),
            formatting::count(worse)
        )
    }

    /// As shown beside the first experiment; `None` for the first one itself.
    fn summary(&self, name: &str, first: Option<&Self>, lower: &BTreeSet<String>) -> Summary {
        let failed = (self.roots.errors > 0).then(|| Measure {
            text: count(self.roots.errors),
            tone: tone(first.map(|first| first.roots.errors as f64), self.roots.errors as f64),
        });
        let [tokens, ..] = self.usage.tokens;
        let mut scores = compared_scores(&self.scores, first.map(|first| &first.scores), lower);
        for score in &mut scores {
            score.changes = first.map(|first| self.changes(first, &score.key, lower.contains(&score.key)));
        }
        Summary {
            name: name.to_owned(),
            runs: count(self.roots.runs),
            failed,
            scores,
            latency: self.median_seconds().map(|seconds| Measure {
                text: formatting::span(Duration::try_from_secs_f64(seconds).unwrap_or_default()),
                tone: tone(first.and_then(Self::median_seconds), seconds),
            }),
            tokens: formatting::count(tokens.unwrap_or_default()),
            cost: self.cost().map(|cost| Measure {
                text: dollars(cost),
                tone: tone(first.and_then(Self::cost).map(|cost| cost as f64), cost as f64),
            }),
        }
    }
}

fn count(number: u64) -> String {
    formatting::count(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Color of a number that is better if it is lower.
fn tone(first: Option<f64>, now: f64) -> &'static str {
    score_tone(first.as_ref(), now, true)
}

/// Totals of experiments; those after the first are compared with it.
pub(super) async fn summaries(
    app: &App,
    tenant: TenantId,
    experiments: &[Project],
    lower: &BTreeSet<String>,
) -> Result<Vec<Summary>, PageError> {
    let mut totals: Vec<Totals> = Vec::with_capacity(experiments.len());
    for experiment in experiments {
        totals.push(Totals::read(app, tenant, experiment.id).await?);
    }
    let shown = experiments
        .iter()
        .zip(&totals)
        .enumerate()
        .map(|(at, (experiment, own))| {
            let first = (at > 0).then(|| totals.first()).flatten();
            own.summary(&experiment.name, first, lower)
        });
    Ok(shown.collect())
}
