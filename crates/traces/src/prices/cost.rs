//! Costs of tokens.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use towpath_domain::json::{decode, members, pairs};

use super::table::{Model, PriceTable};
use super::{MATCH_PATH, MAX_NAME, ModelPrice, SCALE, TokenPrice};
use crate::derive::{COST_SCALE, Usage, decimal};
use crate::row::Row;

/// Types of runs that call a model themselves. What the runs around them report is the same call again.
pub const PRICED_TYPES: [&str; 2] = ["llm", "embedding"];
/// Models whose prices are remembered.
const MAX_MODELS: usize = 256;
/// More tokens than any call has; with the highest price, its cost is within 128 bits.
const MAX_TOKENS: i64 = 1 << 50;
/// Parameters that are compared with a `match_path`.
const MAX_PARAMETERS: usize = 64;

/// Computes costs. It remembers which prices fit a model.
#[derive(Debug, Default)]
pub struct Pricer {
    table: Arc<PriceTable>,
    fitting: HashMap<(Option<String>, String), Vec<usize>>,
}

impl Pricer {
    #[must_use]
    pub fn new(table: Arc<PriceTable>) -> Self {
        Self {
            table,
            fitting: HashMap::new(),
        }
    }

    /// Sets the costs of a run's tokens, unless the client sent a cost.
    pub fn price(&mut self, row: &Row, usage: &mut Usage) {
        let has_tokens = usage.prompt_tokens.is_some() || usage.completion_tokens.is_some();
        let has_cost = [usage.total_cost, usage.prompt_cost, usage.completion_cost]
            .iter()
            .any(Option::is_some);
        let run_type = row.fields().run_type.as_deref();
        let calls_model = run_type.is_some_and(|kind| PRICED_TYPES.contains(&kind));
        if self.table.is_empty() || !has_tokens || has_cost || !calls_model {
            return;
        }
        let model = model(row);
        let at = row.key().map(|key| key.sort_time).or(row.fields().start_time);
        let fitting: &[usize] = match &model.name {
            Some(name) => {
                let key = (model.provider.clone(), name.clone());
                if self.fitting.len() >= MAX_MODELS && !self.fitting.contains_key(&key) {
                    self.fitting.clear();
                }
                let table = &self.table;
                let find = || table.fitting(model.provider.as_deref(), name);
                self.fitting.entry(key).or_insert_with(find).as_slice()
            }
            None => &[],
        };
        if let Some(price) = self.table.find(&model, at, fitting) {
            apply(price, usage);
        }
    }
}

/// The text of a JSON string; `None` if it is empty or longer than any name.
fn text(raw: Option<&str>) -> Option<String> {
    let text = raw.and_then(decode);
    let text = text.filter(|text| !text.is_empty() && text.len() <= MAX_NAME);
    text.map(Cow::into_owned)
}

/// The model that a run called.
fn model(row: &Row) -> Model {
    let metadata = row.extra_value("metadata");
    let named = metadata
        .as_deref()
        .and_then(|metadata| members(metadata, ["ls_provider", "ls_model_name"]));
    let [provider, name] = named.unwrap_or_default();
    let (provider, name) = (text(provider), text(name));
    if name.is_some() {
        return Model {
            provider,
            name,
            is_named: true,
            parameters: Vec::new(),
        };
    }
    let sent = row.extra_value("invocation_params");
    let sent = sent.as_deref().and_then(pairs).unwrap_or_default();
    let texts = sent
        .into_iter()
        .filter_map(|(key, raw)| Some((key.into_owned(), text(Some(raw))?)));
    let parameters: Vec<(String, String)> = texts
        .filter(|(key, _)| key.len() <= MAX_NAME)
        .take(MAX_PARAMETERS)
        .collect();
    let name = MATCH_PATH
        .iter()
        .find_map(|key| parameters.iter().find(|(name, _)| name == key));
    Model {
        provider,
        name: name.map(|(_, name)| name.clone()),
        is_named: false,
        parameters,
    }
}

fn apply(price: &ModelPrice, usage: &mut Usage) {
    let (prompt, by_kind) = cost(
        usage.prompt_tokens,
        &usage.prompt_token_details,
        price.prompt_cost,
        &price.prompt_cost_details,
    );
    usage.prompt_cost = prompt;
    usage.prompt_cost_details = by_kind;
    let (completion, by_kind) = cost(
        usage.completion_tokens,
        &usage.completion_token_details,
        price.completion_cost,
        &price.completion_cost_details,
    );
    usage.completion_cost = completion;
    usage.completion_cost_details = by_kind;
    // Of the rounded parts, so that the columns of a run add up.
    usage.total_cost = match (prompt, completion) {
        (Some(prompt), Some(completion)) => Some(decimal::sum(prompt, completion)),
        (prompt, completion) => prompt.or(completion),
    };
}

/// The cost of tokens, and its parts by kind. Kinds without a price cost what other tokens cost. Together the kinds are
/// never more than all tokens.
fn cost(
    tokens: Option<i64>,
    details: &BTreeMap<String, i64>,
    base: TokenPrice,
    by_kind: &BTreeMap<String, TokenPrice>,
) -> (Option<i128>, BTreeMap<String, i128>) {
    let Some(tokens) = tokens else {
        return (None, BTreeMap::new());
    };
    let mut rest = tokens.clamp(0, MAX_TOKENS);
    let mut exact: i128 = 0;
    let mut parts = BTreeMap::new();
    for (kind, price) in by_kind {
        let Some(count) = details.get(kind) else { continue };
        let count = (*count).clamp(0, rest);
        let part = i128::from(count) * price.units();
        exact += part;
        rest -= count;
        parts.insert(kind.clone(), round(part));
    }
    exact += i128::from(rest) * base.units();
    (Some(round(exact)), parts)
}

/// An amount in units of a price to one in units of a cost, half away from zero.
fn round(exact: i128) -> i128 {
    let step = 10_i128.pow(u32::from(SCALE - COST_SCALE.unsigned_abs()));
    decimal::clamp((exact + step / 2) / step)
}

#[cfg(test)]
mod tests {
    use towpath_domain::{Timestamp, TraceRunId};
    use uuid::Uuid;

    use super::*;
    use crate::derive::derive_priced;
    use crate::operation::{Fields, Operation, Verb};
    use crate::prices::table::tests::price;

    fn row(run_type: &str, metadata: &str, parameters: &str, outputs: &str) -> Row {
        let operation = Operation {
            verb: Verb::Post,
            id: TraceRunId(Uuid::from_u128(7)),
            project: None,
            fields: Fields {
                run_type: Some(run_type.to_owned()),
                start_time: Timestamp::parse("2026-03-01T00:00:00Z").ok(),
                outputs: Some(outputs.to_owned()),
                extra: Some(vec![
                    ("invocation_params".to_owned(), parameters.to_owned()),
                    ("metadata".to_owned(), metadata.to_owned()),
                ]),
                ..Fields::default()
            },
        };
        Row::from_operation(operation, 1)
    }

    fn pricer() -> Pricer {
        let unit = |text| TokenPrice::parse(text).unwrap();
        let detailed = ModelPrice {
            provider: Some("anthropic".to_owned()),
            prompt_cost: unit("3e-6"),
            completion_cost: unit("15e-6"),
            prompt_cost_details: BTreeMap::from([
                ("cache_creation".to_owned(), unit("3.75e-6")),
                ("cache_read".to_owned(), unit("0.3e-6")),
            ]),
            completion_cost_details: BTreeMap::from([("reasoning".to_owned(), unit("20e-6"))]),
            ..price("claude", "^claude", "0")
        };
        let tiny = price("tiny", "^tiny$", "1.875e-8");
        Pricer::new(Arc::new(PriceTable::new(1, vec![vec![detailed, tiny]]).unwrap()))
    }

    const CLAUDE: &str = r#"{"ls_provider":"anthropic","ls_model_name":"claude-sonnet"}"#;

    #[test]
    fn kinds_have_their_own_prices() {
        let outputs = r#"{"usage_metadata":{"input_tokens":1000,"output_tokens":100,"total_tokens":1100,
            "input_token_details":{"cache_read":600,"cache_creation":300,"audio":5},"output_token_details":{"reasoning":40}}}"#;
        let row = row("llm", CLAUDE, "{}", outputs);
        let usage = derive_priced(&row, &mut pricer()).usage;
        // 600 × 0.0000003 + 300 × 0.00000375 + 100 × 0.000003
        assert_eq!(usage.prompt_cost, Some(16_050_000));
        // 40 × 0.00002 + 60 × 0.000015
        assert_eq!(usage.completion_cost, Some(17_000_000));
        assert_eq!(usage.total_cost, Some(33_050_000));
        assert_eq!(
            usage.prompt_cost_details,
            BTreeMap::from([
                ("cache_creation".to_owned(), 11_250_000),
                ("cache_read".to_owned(), 1_800_000)
            ])
        );
        assert_eq!(
            usage.completion_cost_details,
            BTreeMap::from([("reasoning".to_owned(), 8_000_000)])
        );
    }

    #[test]
    fn a_cost_is_rounded_once() {
        let of = |tokens: i64| {
            let outputs = format!(r#"{{"usage_metadata":{{"input_tokens":{tokens},"output_tokens":0}}}}"#);
            let row = row("llm", "{}", r#"{"temperature":1,"model_name":"tiny"}"#, &outputs);
            derive_priced(&row, &mut pricer()).usage
        };
        // 0.00000001875 and three times as much
        assert_eq!(of(1).prompt_cost, Some(188));
        assert_eq!(of(3).prompt_cost, Some(563));
        assert_eq!(of(3).completion_cost, Some(0));
        assert_eq!(of(3).total_cost, Some(563));
        assert_eq!(of(-5).prompt_cost, Some(0));
        assert_eq!(of(i64::MAX).prompt_cost, Some(i128::from(MAX_TOKENS) * 1875 / 10));
    }

    #[test]
    fn kinds_are_never_more_than_all_tokens() {
        let outputs = r#"{"usage_metadata":{"input_tokens":10,"output_tokens":0,
            "input_token_details":{"cache_read":900,"cache_creation":4}}}"#;
        let row = row("llm", CLAUDE, "{}", outputs);
        let usage = derive_priced(&row, &mut pricer()).usage;
        // 4 × 0.00000375 + 6 × 0.0000003
        assert_eq!(usage.prompt_cost, Some(168_000));
    }

    #[test]
    fn what_the_client_sent_wins() {
        let sent = r#"{"usage_metadata":{"input_tokens":10,"output_tokens":5,"total_cost":0.5}}"#;
        let row = row("llm", CLAUDE, "{}", sent);
        let usage = derive_priced(&row, &mut pricer()).usage;
        assert_eq!((usage.total_cost, usage.prompt_cost), (Some(5_000_000_000), None));
    }

    #[test]
    fn only_calls_of_known_models_cost_something() {
        let outputs = r#"{"usage_metadata":{"input_tokens":10,"output_tokens":5}}"#;
        for (run_type, metadata, outputs) in [
            ("chain", CLAUDE, outputs),
            (
                "llm",
                r#"{"ls_provider":"openai","ls_model_name":"claude-sonnet"}"#,
                outputs,
            ),
            ("llm", r#"{"ls_model_name":"claude-sonnet"}"#, outputs),
            ("llm", r#"{"ls_provider":"anthropic"}"#, outputs),
            ("llm", r#"{"ls_provider":"anthropic","ls_model_name":7}"#, outputs),
            ("llm", "[]", outputs),
            ("llm", CLAUDE, r#"{"usage_metadata":{"total_tokens":15}}"#),
            ("llm", CLAUDE, "{}"),
        ] {
            let row = row(run_type, metadata, "{}", outputs);
            let usage = derive_priced(&row, &mut pricer()).usage;
            assert_eq!(usage.total_cost, None, "{run_type} {metadata} {outputs}");
        }
        let unpriced = row("llm", CLAUDE, "{}", outputs);
        assert_eq!(derive_priced(&unpriced, &mut Pricer::default()).usage.total_cost, None);
    }

    #[test]
    fn more_models_than_are_remembered_have_prices() {
        let mut pricer = pricer();
        for number in 0..2 * MAX_MODELS {
            let metadata = format!(r#"{{"ls_provider":"anthropic","ls_model_name":"claude-{number}"}}"#);
            let row = row("llm", &metadata, "{}", r#"{"usage_metadata":{"input_tokens":1}}"#);
            let usage = derive_priced(&row, &mut pricer).usage;
            assert_eq!(usage.total_cost, Some(30_000), "{number}");
            assert!(pricer.fitting.len() <= MAX_MODELS);
        }
    }
}
