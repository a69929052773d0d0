//! Operations of made-up trace runs, the same for the same seed.

use towpath_domain::trace::{DottedOrderPart, format_part};
use towpath_domain::{Timestamp, TraceRunId};
use towpath_traces::operation::{Fields, Operation, Verb};
use uuid::Uuid;

/// Small and repeatable; statistics don't matter here.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at + 1));
        }
    }

    pub fn id(&mut self) -> Uuid {
        uuid::Builder::from_random_bytes(((u128::from(self.next()) << 64) | u128::from(self.next())).to_be_bytes())
            .into_uuid()
    }
}

/// Operations of `runs` trace runs that start between `from` and `to`, in the order a client would send them; many
/// start in the same microsecond, so that ids decide about the order.
pub fn operations(seed: u64, runs: usize, from: Timestamp, to: Timestamp) -> Vec<Operation> {
    let mut random = Random::new(seed);
    let mut out = Vec::new();
    let mut parents: Vec<Vec<DottedOrderPart>> = Vec::new();
    for number in 0..runs {
        let span = usize::try_from(to.micros() - from.micros()).unwrap();
        let step = (span / runs.max(1)).max(1);
        let start = Timestamp::from_micros(from.micros() + (number / 3 * 3 * step) as i64);
        let id = random.id();
        let mut links = match parents.len() {
            0 => Vec::new(),
            _ if random.one_in(4) => Vec::new(),
            known => parents[known - 1 - random.below(known.min(8))].clone(),
        };
        links.truncate(4);
        links.push(DottedOrderPart { start, id });
        parents.push(links.clone());
        out.extend(one_run(&mut random, number, id, start, &links));
    }
    out
}

fn one_run(
    random: &mut Random,
    number: usize,
    id: Uuid,
    start: Timestamp,
    links: &[DottedOrderPart],
) -> Vec<Operation> {
    let order = links.iter().map(format_part).collect::<Vec<_>>().join(".");
    // Some clients know no dotted order; then the start sorts.
    let dotted_order = (!number.is_multiple_of(17)).then_some(order);
    let parent_run_id = links.len().checked_sub(2).map(|at| links[at].id);
    let operation = |verb, fields| Operation {
        verb,
        id: TraceRunId(id),
        project: None,
        fields,
    };
    let post = Fields {
        trace_id: dotted_order.is_some().then(|| links[0].id),
        parent_run_id,
        dotted_order: dotted_order.clone(),
        reference_example_id: random.one_in(20).then(|| random.id()),
        name: Some(["canal", "écluse", "lock", "barge"][random.below(4)].to_owned()),
        run_type: Some(["chain", "llm", "tool"][random.below(3)].to_owned()),
        start_time: Some(start),
        tags: random
            .one_in(3)
            .then(|| (0..random.below(3)).map(|tag| format!("tag {tag}")).collect()),
        inputs: Some(format!(r#"{{"question": "{}", "n": {number}}}"#, text(random))),
        extra: Some(vec![
            ("runtime".to_owned(), r#"{"sdk":"x", "v": 1.10}"#.to_owned()),
            ("metadata".to_owned(), format!(r#"{{"number":{number}}}"#)),
        ]),
        serialized: Some("{\"lc\":1}".to_owned()),
        ..Fields::default()
    };
    let mut out = vec![operation(Verb::Post, post)];
    if random.one_in(10) {
        return out; // still pending
    }
    let end = Timestamp::from_micros(start.micros() + 1 + random.below(5_000_000) as i64);
    let (input, output) = (random.below(1000), random.below(1000));
    let usage = format!(r#"{{"input_tokens":{input},"output_tokens":{output},"total_cost":0.{input:04}}}"#);
    let outputs = match random.below(4) {
        0 => format!(r#"{{"answer":"{}"}}"#, text(random)),
        1 => format!(r#"{{"answer":"{}","usage_metadata":{usage}}}"#, text(random)),
        2 => format!(r#"{{"generations":[[{{"message":{{"kwargs":{{"usage_metadata":{usage}}}}}}}]]}}"#),
        _ => format!(r#"{{"llm_output":{{"token_usage":{{"prompt_tokens":{input},"completion_tokens":{output}}}}}}}"#),
    };
    let token = Timestamp::from_micros(start.micros() + 7);
    out.push(operation(
        Verb::Patch,
        Fields {
            dotted_order: dotted_order.clone(),
            trace_id: dotted_order.is_some().then(|| links[0].id),
            end_time: Some(end),
            outputs: Some(outputs),
            error: random.one_in(8).then(|| "boom\nat line 3".to_owned()),
            events: random
                .one_in(2)
                .then(|| format!(r#"[{{"name":"new_token","time":"{token}","kwargs":{{"token":"a"}}}}]"#)),
            extra: Some(vec![("runtime".to_owned(), format!(r#"{{"sdk":"y","n":{number}}}"#))]),
            ..Fields::default()
        },
    ));
    if random.one_in(5) {
        let tags = Some(vec!["late".to_owned()]);
        let extra = Some(vec![("note".to_owned(), "null".to_owned())]);
        out.push(operation(
            Verb::Patch,
            Fields {
                dotted_order,
                tags,
                extra,
                ..Fields::default()
            },
        ));
    }
    if random.one_in(12) {
        // The client lost the answer and sends everything again.
        out.extend(out.clone());
    }
    out
}

fn text(random: &mut Random) -> String {
    const WORDS: [&str; 8] = ["tow", "path", "lock", "weir", "quay", "über", "\\\"q\\\"", "水"];
    (0..3 + random.below(30))
        .map(|_| WORDS[random.below(8)])
        .collect::<Vec<_>>()
        .join(" ")
}
