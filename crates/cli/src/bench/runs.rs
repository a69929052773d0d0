//! Trace runs for the benchmarks of ingest and export: 2 to 4 KB of JSON each, made of sentences, eight in a trace.
//! They only depend on their number, so any process creates the same.

use std::fmt::Write as _;

use towpath_domain::trace::{DottedOrderPart, format_part};
use towpath_domain::{Timestamp, TraceRunId};
use towpath_traces::operation::{Fields, Operation, Verb};
use uuid::Uuid;

/// Runs of one trace.
pub const TREE: u64 = 8;

const WORDS: [&str; 96] = [
    "the",
    "canal",
    "keeper",
    "answered",
    "that",
    "a",
    "barge",
    "had",
    "passed",
    "before",
    "dawn",
    "and",
    "no",
    "lock",
    "was",
    "opened",
    "without",
    "notice",
    "because",
    "water",
    "in",
    "upper",
    "reach",
    "stood",
    "lower",
    "than",
    "it",
    "should",
    "model",
    "returned",
    "three",
    "documents",
    "about",
    "freight",
    "rates",
    "between",
    "harbours",
    "which",
    "of",
    "them",
    "mentions",
    "towing",
    "horses",
    "please",
    "summarise",
    "report",
    "for",
    "an",
    "engineer",
    "who",
    "has",
    "never",
    "seen",
    "this",
    "river",
    "retrieval",
    "found",
    "seven",
    "passages",
    "with",
    "score",
    "above",
    "threshold",
    "tool",
    "call",
    "failed",
    "once",
    "then",
    "succeeded",
    "after",
    "waiting",
    "two",
    "seconds",
    "user",
    "asked",
    "again",
    "whether",
    "bridge",
    "can",
    "carry",
    "heavier",
    "loads",
    "during",
    "winter",
    "months",
    "agent",
    "plans",
    "next",
    "step",
    "from",
    "notes",
    "kept",
    "earlier",
    "today",
    "by",
    "colleague",
];
const NAMES: [&str; 8] = [
    "agent",
    "plan",
    "retrieve",
    "ChatModel",
    "tool_call",
    "rerank",
    "summarise",
    "answer",
];
const KINDS: [&str; 8] = ["chain", "chain", "retriever", "llm", "tool", "chain", "llm", "chain"];

pub struct Runs {
    sentences: Vec<String>,
    first: Timestamp,
    /// Distance of traces in microseconds.
    step: i64,
}

impl Runs {
    /// Traces begin at `first` and then every `step` microseconds.
    pub fn new(first: Timestamp, step: i64) -> Self {
        let sentences = (0..4096).map(sentence).collect();
        Self { sentences, first, step }
    }

    fn start(&self, index: u64) -> Timestamp {
        let trace = i64::try_from(index / TREE).unwrap_or(i64::MAX);
        let within = i64::try_from(index % TREE).unwrap_or(0);
        Timestamp::from_micros(self.first.micros() + trace * self.step + within * 1_300)
    }

    /// The complete post of a run.
    pub fn post(&self, index: u64) -> Operation {
        let root = index - index % TREE;
        let link = |index| DottedOrderPart {
            start: self.start(index),
            id: id(index),
        };
        let mut links = vec![link(root)];
        if index != root {
            links.push(link(index));
        }
        let start = self.start(index);
        let at = usize::try_from(index % TREE).unwrap_or(0);
        let tokens = 200 + pseudo_random(index, 3) % 900;
        let end = Timestamp::from_micros(start.micros() + 20_000 + (pseudo_random(index, 4) % 3_000_000).cast_signed());
        let answer = self.text(index, 11, 500 + pseudo_random(index, 5) % 1200);
        let usage = format!(
            r#"{{"input_tokens":{tokens},"output_tokens":{},"total_tokens":{}}}"#,
            tokens / 3,
            tokens + tokens / 3
        );
        let outputs = if KINDS[at] == "llm" {
            format!(r#"{{"generations":[{{"text":"{answer}"}}],"usage_metadata":{usage}}}"#)
        } else {
            format!(r#"{{"answer":"{answer}"}}"#)
        };
        let fields = Fields {
            trace_id: Some(id(root)),
            parent_run_id: (index != root).then(|| id(root)),
            dotted_order: Some(links.iter().map(format_part).collect::<Vec<_>>().join(".")),
            name: Some(NAMES[at].to_owned()),
            run_type: Some(KINDS[at].to_owned()),
            start_time: Some(start),
            end_time: Some(end),
            error: pseudo_random(index, 6)
                .is_multiple_of(50)
                .then(|| "TimeoutError: the tool did not answer".to_owned()),
            tags: Some(vec![
                "production".to_owned(),
                format!("variant-{}", pseudo_random(index, 7) % 4),
            ]),
            inputs: Some(format!(
                r#"{{"messages":[{{"role":"user","content":"{}"}}],"number":{index}}}"#,
                self.text(index, 12, 500 + pseudo_random(index, 8) % 1000)
            )),
            outputs: Some(outputs),
            extra: Some(vec![
                (
                    "metadata".to_owned(),
                    format!(
                        r#"{{"thread_id":"{}","user":"user-{}","revision":"r{}"}}"#,
                        id(root ^ 0x5555),
                        pseudo_random(root, 9) % 5000,
                        pseudo_random(root, 10) % 12
                    ),
                ),
                (
                    "runtime".to_owned(),
                    r#"{"library":"langsmith","platform":"linux","runtime":"python","sdk_version":"0.14.17"}"#
                        .to_owned(),
                ),
            ]),
            events: Some("[]".to_owned()),
            ..Fields::default()
        };
        Operation {
            verb: Verb::Post,
            id: TraceRunId(id(index)),
            project: None,
            fields,
        }
    }

    /// A later patch of a run.
    pub fn patch(&self, index: u64) -> Operation {
        let post = self.post(index);
        let fields = Fields {
            dotted_order: post.fields.dotted_order,
            trace_id: post.fields.trace_id,
            extra: Some(vec![(
                "reviewed".to_owned(),
                format!("{}", pseudo_random(index, 13) % 5),
            )]),
            ..Fields::default()
        };
        Operation {
            verb: Verb::Patch,
            fields,
            ..post
        }
    }

    /// Sentences of about `bytes` bytes.
    fn text(&self, index: u64, purpose: u64, bytes: u64) -> String {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut text = String::with_capacity(bytes + 128);
        let mut at = 0;
        while text.len() < bytes {
            let pick = usize::try_from(pseudo_random(index, purpose << 16 | at)).unwrap_or(0) % self.sentences.len();
            text.push_str(&self.sentences[pick]);
            at += 1;
        }
        text
    }
}

fn sentence(number: u64) -> String {
    let mut text = String::new();
    for at in 0..8 + pseudo_random(number, 1) % 12 {
        let pick = usize::try_from(pseudo_random(number, 100 + at)).unwrap_or(0) % WORDS.len();
        let _ = write!(text, "{}{}", if at > 0 { " " } else { "" }, WORDS[pick]);
    }
    text.push_str(". ");
    text
}

fn id(index: u64) -> Uuid {
    let random = (u128::from(pseudo_random(index, 1)) << 64) | u128::from(pseudo_random(index, 2));
    uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid()
}

/// A deterministic number that depends on `number` and `purpose`.
fn pseudo_random(number: u64, purpose: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ purpose.wrapping_mul(0xd1b5_4a32_d192_ed03);
    for _ in 0..2 {
        mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
    }
    mixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_two_to_four_kilobytes_of_json_and_are_the_same_again() {
        let first = Timestamp::from_micros(1_772_323_200_000_000);
        let (one, two) = (Runs::new(first, 1000), Runs::new(first, 1000));
        let mut bytes = 0;
        for index in 0..1000 {
            let post = one.post(index);
            assert_eq!(post, two.post(index));
            assert_eq!(post.sort_time(), one.patch(index).sort_time());
            for text in [&post.fields.inputs, &post.fields.outputs] {
                let text = text.as_deref().unwrap();
                serde_json::from_str::<serde_json::Value>(text).unwrap();
                bytes += text.len();
            }
        }
        assert!((2000..4000).contains(&(bytes / 1000)), "{}", bytes / 1000);
    }
}
