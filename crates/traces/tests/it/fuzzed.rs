//! The decoders of what strangers send, on bytes that look almost right.

mod bodies;

use proptest::prelude::*;
use towpath_traces::accept::Route;
use towpath_traces::otlp::{Format, Signal};

/// What the fuzz targets begin with.
macro_rules! seed {
    ($path:literal) => {
        include_bytes!(concat!("fuzzed/seeds/", $path)).as_slice()
    };
}
const FILTERS: [&[u8]; 5] = [
    seed!("filter/calls"),
    seed!("filter/metadata"),
    seed!("filter/pattern"),
    seed!("filter/searched"),
    seed!("filter/tags"),
];
const ORDER: &[u8] = seed!("dotted_order/two_links");
/// With the route, the encoding and the operations of each.
const INGEST: [(Route, Option<&str>, usize, &[u8]); 6] = [
    (Route::Multipart, None, 1, seed!("multipart/parts")),
    (Route::Multipart, Some("zstd"), 1, seed!("multipart/parts.zst")),
    (Route::Multipart, Some("gzip"), 1, seed!("multipart/parts.gz")),
    (Route::Batch, None, 2, seed!("multipart/batch.json")),
    (Route::Run, None, 1, seed!("multipart/run.json")),
    (Route::Feedback, None, 0, seed!("multipart/feedback.json")),
];
/// Each is one item.
const OTLP: [(Signal, Format, &[u8]); 3] = [
    (Signal::Traces, Format::Json, seed!("otlp/spans.json")),
    (Signal::Traces, Format::Protobuf, seed!("otlp/spans.protobuf")),
    (Signal::Logs, Format::Json, seed!("otlp/logs.json")),
];

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
        bodies::filter(&changed(FILTERS[which].to_vec(), &changes));
        bodies::filter(&noise);
    }

    #[test]
    fn dotted_orders(changes in changes(), noise in any::<Vec<u8>>()) {
        bodies::dotted_order(&changed(ORDER.to_vec(), &changes));
        bodies::dotted_order(&noise);
    }

    #[test]
    fn bodies_of_ingest(changes in changes(), noise in any::<Vec<u8>>()) {
        for (.., body) in INGEST {
            bodies::multipart(&changed(body.to_vec(), &changes));
        }
        bodies::multipart(&noise);
    }

    #[test]
    fn spans(changes in changes(), message in protobuf()) {
        for (_, _, spans) in OTLP {
            bodies::otlp(&changed(spans.to_vec(), &changes));
        }
        bodies::otlp(&changed(message, &changes));
    }
}

/// Or the tests above would change what was refused before anything was looked at.
#[test]
fn what_is_changed_there_is_good_before() {
    let text = |seed| std::str::from_utf8(seed).unwrap();
    for filter in FILTERS {
        towpath_domain::filter::Filter::parse(text(filter)).unwrap();
    }
    assert_eq!(
        towpath_domain::trace::dotted_order_parts(text(ORDER)).flatten().count(),
        2
    );
    for (route, encoding, operations, body) in INGEST {
        let content_type = if matches!(route, Route::Multipart) {
            bodies::CONTENT_TYPE
        } else {
            "application/json"
        };
        let accepted = bodies::accepted(route, content_type, encoding, body);
        assert_eq!(accepted, Some(operations), "{route:?} {encoding:?}");
    }
    for (signal, format, body) in OTLP {
        assert_eq!(bodies::items(signal, format, body), Some((1, 0)));
    }
}
