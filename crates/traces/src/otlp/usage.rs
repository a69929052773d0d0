//! Numbers of tokens, under the names of every convention that has them.

use serde_json::{Map, Value, json};

use super::mapping::{Attributes, get};

/// The attributes with the number of one kind of tokens.
type Kind = (&'static str, &'static [&'static str]);

const INPUT: [Kind; 3] = [
    (
        "cache_read",
        &[
            "gen_ai.usage.cache_read.input_tokens",
            "gen_ai.usage.cache_read_input_tokens",
            "llm.token_count.prompt_details.cache_read",
        ],
    ),
    (
        "cache_creation",
        &[
            "gen_ai.usage.cache_creation.input_tokens",
            "gen_ai.usage.cache_creation_input_tokens",
            "llm.token_count.prompt_details.cache_write",
        ],
    ),
    ("audio", &["llm.token_count.prompt_details.audio"]),
];

const OUTPUT: [Kind; 2] = [
    (
        "reasoning",
        &[
            "gen_ai.usage.reasoning.output_tokens",
            "gen_ai.usage.reasoning_tokens",
            "llm.token_count.completion_details.reasoning",
        ],
    ),
    ("audio", &["llm.token_count.completion_details.audio"]),
];

/// `usage_metadata` of a run. Tokens of the cache are among the input tokens.
pub fn of(attributes: &Attributes) -> Option<Value> {
    let count = |names: &[&str]| names.iter().find_map(|name| get(attributes, name)?.as_i64());
    let input = count(&[
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.prompt_tokens",
        "llm.token_count.prompt",
    ]);
    let output = count(&[
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
        "llm.token_count.completion",
    ]);
    let total = count(&[
        "gen_ai.usage.total_tokens",
        "llm.usage.total_tokens",
        "llm.token_count.total",
    ]);
    input.or(output).or(total)?;
    let (input, output) = (input.unwrap_or_default(), output.unwrap_or_default());
    let mut usage = json!({
        "input_tokens": input,
        "output_tokens": output,
        "total_tokens": total.unwrap_or_else(|| input.saturating_add(output)),
    });
    for (field, kinds) in [
        ("input_token_details", &INPUT[..]),
        ("output_token_details", &OUTPUT[..]),
    ] {
        let counts = kinds
            .iter()
            .filter_map(|(kind, names)| Some(((*kind).to_owned(), json!(count(names)?))));
        let details: Map<String, Value> = counts.collect();
        if !details.is_empty() {
            usage[field] = Value::Object(details);
        }
    }
    Some(usage)
}
