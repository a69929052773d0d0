//! Mean scores of experiments, and how they compare.

use std::collections::{BTreeMap, BTreeSet};

/// A score of an experiment, or of a run of one.
pub(super) struct Score {
    pub(super) key: String,
    pub(super) value: String,
    /// How many examples have a better score than in the first experiment, and how many a worse one.
    pub(super) changes: Option<String>,
    /// Compared with the first experiment.
    pub(super) tone: &'static str,
}

/// The mean score of each key.
pub(super) fn mean_scores(stats: &serde_json::Value) -> BTreeMap<String, f64> {
    let keys = stats.as_object().into_iter().flatten();
    keys.filter_map(|(key, stats)| Some((key.clone(), stats["avg"].as_f64()?)))
        .collect()
}

/// Scores, each compared with that of the first experiment.
pub(super) fn compared_scores(
    scores: &BTreeMap<String, f64>,
    first: Option<&BTreeMap<String, f64>>,
    lower: &BTreeSet<String>,
) -> Vec<Score> {
    let compared = scores.iter().map(|(key, value)| Score {
        key: key.clone(),
        value: format!("{value:.2}"),
        changes: None,
        tone: score_tone(first.and_then(|first| first.get(key)), *value, lower.contains(key)),
    });
    compared.collect()
}

/// Color of a score compared with another one.
pub(super) fn score_tone(before: Option<&f64>, now: f64, lower_is_better: bool) -> &'static str {
    let Some(before) = before else { return "" };
    match now.total_cmp(before) {
        std::cmp::Ordering::Equal => "",
        ordering if ordering.is_gt() != lower_is_better => "good",
        _ => "bad",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_good_or_bad_as_the_key_says() {
        assert_eq!(score_tone(None, 1.0, false), "");
        assert_eq!(score_tone(Some(&1.0), 1.0, false), "");
        assert_eq!(score_tone(Some(&0.5), 1.0, false), "good");
        assert_eq!(score_tone(Some(&0.5), 1.0, true), "bad");
        assert_eq!(score_tone(Some(&0.5), 0.1, true), "good");
        assert_eq!(score_tone(Some(&0.5), 0.1, false), "bad");
    }
}
