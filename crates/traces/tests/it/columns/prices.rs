//! Costs of rows that are merged, copied and compacted.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::Decimal128Type;
use towpath_domain::export::FormatVersion;
use towpath_domain::{SegmentId, TraceRunId};
use towpath_traces::compact::{Day, Pricing, PricingScope, compact};
use towpath_traces::flush::{FlushError, NewSegment};
use towpath_traces::objects::Objects;
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::prices::{ModelPrice, PriceTable};
use towpath_traces::scan::Request;
use towpath_traces::schema::Selection;
use uuid::Uuid;

use super::splices::{export, options, rows};
use super::world::{PROJECT, TENANT, World, time};

/// Prices with one for the model of the rows: so many dollars per token.
fn prices(version: i64, cost: &str) -> Arc<PriceTable> {
    let price =
        format!(r#"{{"name":"barge","match_pattern":"^barge$","prompt_cost":"{cost}","completion_cost":"{cost}"}}"#);
    let price: ModelPrice = serde_json::from_str(&price).unwrap();
    Arc::new(PriceTable::new(version, vec![vec![price]]).unwrap())
}

/// A post without tokens, and a patch that says that it called a model with five tokens.
fn call(number: i64) -> [Operation; 2] {
    let id = TraceRunId(Uuid::from_u128(u128::from(number.unsigned_abs()) + 1));
    let start = time("2026-05-01T10:00:00Z").micros() + number;
    let of = |verb, fields| Operation {
        verb,
        id,
        project: None,
        fields,
    };
    [
        of(
            Verb::Post,
            Fields {
                run_type: Some("chain".to_owned()),
                start_time: Some(towpath_domain::Timestamp::from_micros(start)),
                extra: Some(vec![("metadata".to_owned(), r#"{"ls_model_name":"barge"}"#.to_owned())]),
                outputs: Some(r#"{"usage_metadata":{"input_tokens":2,"output_tokens":3}}"#.to_owned()),
                ..Fields::default()
            },
        ),
        of(
            Verb::Patch,
            Fields {
                run_type: Some("llm".to_owned()),
                ..Fields::default()
            },
        ),
    ]
}

/// Posts in one segment, patches in another, neither with a cost.
async fn world() -> World {
    let mut world = World::empty();
    let calls = (0..40).map(call);
    world.accepted = calls
        .flatten()
        .enumerate()
        .map(|(seq, operation)| (i64::try_from(seq).unwrap(), operation))
        .collect();
    for verb in [Verb::Post, Verb::Patch] {
        let said = world.accepted.iter().filter(|(_, operation)| operation.verb == verb);
        let said = said.cloned().collect();
        world.write(PROJECT, said).await;
    }
    world
}

/// The total costs of the rows of a request.
async fn costs(world: &World, request: Request) -> Vec<Option<i128>> {
    let mut costs = Vec::new();
    for batch in world.read(request).await {
        let column = batch.rows.column_by_name("total_cost").unwrap();
        costs.extend(column.as_primitive::<Decimal128Type>().iter());
    }
    costs
}

#[tokio::test]
async fn merged_rows_have_the_costs_of_the_given_prices() {
    let world = world().await;
    let priced = |prices| Request {
        prices,
        ..world.request()
    };
    assert_eq!(costs(&world, world.request()).await, [None; 40]);
    assert_eq!(costs(&world, priced(prices(1, "0.1"))).await, [Some(5_000_000_000); 40]);
    // Alone, or with columns from which a cost does not follow.
    let selection = Selection::of(&["total_cost"]).unwrap();
    let request = Request {
        selection: selection.clone(),
        ..priced(prices(1, "0.2"))
    };
    assert_eq!(costs(&world, request.clone()).await, [Some(10_000_000_000); 40]);
    // A type that was patched changes the costs of a copied row group.
    for selection in [selection, Selection::all()] {
        let options = options(selection.clone(), FormatVersion::V1);
        let request = Request {
            selection,
            ..request.clone()
        };
        let (scanned, _) = rows(&world, &export(&world, request.clone(), &options, None).await).await;
        let (copied, _) = rows(&world, &export(&world, request, &options, Some(1)).await).await;
        assert!(copied == scanned);
    }
}

async fn compacted(objects: &Objects, request: Request, pricing: &Pricing) -> Vec<NewSegment> {
    let day = Day {
        tenant: TENANT,
        project: PROJECT,
        day: time("2026-05-01").day(),
    };
    let intend = async |_, _: SegmentId, _: &object_store::path::Path| Ok::<_, std::convert::Infallible>(());
    let made: Result<Vec<_>, FlushError<_>> = compact(objects, &day, request.parts, pricing, intend).await;
    made.unwrap()
}

#[tokio::test]
async fn a_compaction_computes_costs_again_if_told_so() {
    let mut world = world().await;
    let objects = Objects::from_store(Arc::clone(&world.store));
    let pricing = |version: i64, cost: &str, scope| Pricing {
        prices: prices(version, cost),
        scope,
    };
    for (version, cost, scope, expected) in [
        (1, "0.1", PricingScope::Merged, 5_000_000_000),
        // What need not be merged stays.
        (2, "0.2", PricingScope::Merged, 5_000_000_000),
        (3, "0.3", PricingScope::All, 15_000_000_000),
    ] {
        let made = compacted(&objects, world.request(), &pricing(version, cost, scope)).await;
        world.segments = made.into_iter().map(|segment| segment.written).collect();
        assert!(world.segments.iter().all(|segment| segment.price_version == version));
        assert_eq!(costs(&world, world.request()).await, [Some(expected); 40], "{version}");
    }
}
