//! The decoders of what strangers send, on bytes that look almost right.

mod bodies;

use proptest::prelude::*;

const FILTERS: [&str; 5] = [
    r#"and(eq(run_type, "llm"), gt(latency, "5s"), in(status, ["error", "pending"]))"#,
    r#"or(not(has(metadata, '{"a": 1}')), and(eq(metadata_key, "k"), gte(metadata_value, 0.5)))"#,
    r#"like(name, "50\\% of _")"#,
    r#"and(gte(start_time, "2026-01-31T12:00:00Z"), search(inputs, "ünï\u00e9"), neq(error, null))"#,
    "has(tags, 'x')",
];
const ORDER: &str =
    "20260227T010203000004Z01890a5d-ac96-774b-bcce-b302099a8057.20260227T010204Z01890a5d-ac96-774b-bcce-b302099a8058";
const RUN: &str = r#"{"id":"01890a5d-ac96-774b-bcce-b302099a8057","trace_id":"01890a5d-ac96-774b-bcce-b302099a8057","name":"n","run_type":"llm","start_time":"2026-02-27T01:02:03Z","end_time":1772154123000,"inputs":{"a":[1,{}]},"extra":{"metadata":{"k":"v"}},"tags":["t"]}"#;
const SPANS: &str = r#"{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"s"}}]},"scopeSpans":[{"spans":[{"traceId":"5b8efff798038103d269b633813fc60c","spanId":"eee19b7ec3c1b174","parentSpanId":"eee19b7ec3c1b173","name":"chat","startTimeUnixNano":"1544712660000000000","endTimeUnixNano":"1544712661000000000","attributes":[{"key":"gen_ai.prompt.0.content","value":{"stringValue":"hi"}},{"key":"gen_ai.usage.input_tokens","value":{"intValue":"3"}}],"events":[{"timeUnixNano":"1544712660500000000","name":"exception","attributes":[]}],"status":{"code":2,"message":"no"}}]}]}]}"#;

fn multipart() -> Vec<u8> {
    let part = |name: &str, data: &str| {
        let length = data.len();
        format!(
            "--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{data}\r\n"
        )
    };
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    let body = part(&format!("post.{id}"), RUN)
        + &part(&format!("post.{id}.outputs"), r#"{"b":null}"#)
        + &part(&format!("attachment.{id}.file"), "bytes")
        + &part(
            "feedback.01890a5d-ac96-774b-bcce-b302099a8059",
            &format!(r#"{{"run_id":"{id}","key":"k","score":1}}"#),
        );
    format!("{body}--b--\r\n").into_bytes()
}

/// Where, what to do there, and with what.
type Change = (prop::sample::Index, u8, u8);

/// Some bytes of `whole` changed, doubled, left out or put in.
fn changed(mut whole: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for (at, how, with) in changes {
        if whole.is_empty() {
            break;
        }
        let at = at.index(whole.len());
        match how % 5 {
            0 => whole[at] = *with,
            1 => whole.truncate(at),
            2 => whole.insert(at, *with),
            3 => drop(whole.remove(at)),
            _ => {
                let piece = whole[at..(at + usize::from(*with)).min(whole.len())].to_vec();
                whole.splice(at..at, piece);
            }
        }
    }
    whole
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(any::<Change>(), 0..6)
}

/// A protobuf message whose fields hold each other, or anything.
fn protobuf() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20),
        Just(vec![0x5b; 16]),
        Just(vec![0xee; 8]),
        Just(b"gen_ai.prompt".to_vec()),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        let field = (1_u8..16, inner).prop_map(|(number, data)| {
            let mut bytes = vec![number << 3 | 2];
            let mut length = data.len();
            while length > 127 {
                bytes.push((length % 128) as u8 | 128);
                length /= 128;
            }
            bytes.push(length as u8);
            bytes.extend(data);
            bytes
        });
        prop::collection::vec(field, 0..5).prop_map(|fields| fields.concat())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn filters(which in 0..FILTERS.len(), changes in changes(), noise in any::<Vec<u8>>()) {
        bodies::filter(&changed(FILTERS[which].as_bytes().to_vec(), &changes));
        bodies::filter(&noise);
    }

    #[test]
    fn dotted_orders(changes in changes(), noise in any::<Vec<u8>>()) {
        bodies::dotted_order(&changed(ORDER.as_bytes().to_vec(), &changes));
        bodies::dotted_order(&noise);
    }

    #[test]
    fn bodies_of_ingest(changes in changes(), noise in any::<Vec<u8>>()) {
        bodies::multipart(&changed(multipart(), &changes));
        bodies::multipart(&changed(RUN.as_bytes().to_vec(), &changes));
        bodies::multipart(&changed(towpath_traces::sample::as_zstd(&multipart()).to_vec(), &changes));
        bodies::multipart(&noise);
    }

    #[test]
    fn spans(changes in changes(), message in protobuf()) {
        bodies::otlp(&changed(SPANS.as_bytes().to_vec(), &changes));
        bodies::otlp(&changed(message, &changes));
    }
}

/// Or the tests above would change what was refused before anything was looked at.
#[test]
fn what_is_changed_there_is_good_before() {
    for text in FILTERS {
        towpath_domain::filter::Filter::parse(text).unwrap();
    }
    assert_eq!(towpath_domain::trace::links(ORDER).flatten().count(), 2);
    let (_, spans) =
        towpath_traces::otlp::to_batch(SPANS.as_bytes(), towpath_traces::otlp::Format::Json, None).unwrap();
    assert_eq!(spans, 1);
}
