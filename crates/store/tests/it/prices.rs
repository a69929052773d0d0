//! Prices of models of workspaces, and which costs are of earlier ones.

use chrono::Days;
use towpath_domain::{ModelPriceId, ProjectId, SegmentId, TenantId, Timestamp};
use towpath_store::model_prices::{self, NewModelPrice, OutdatedDay};
use towpath_store::segments::{self, Part};
use towpath_store::{Error, Store};

use crate::database::Database;

fn new(name: &str) -> NewModelPrice {
    NewModelPrice {
        name: name.to_owned(),
        provider: Some("acme".to_owned()),
        match_pattern: format!("^{name}$"),
        match_path: None,
        start_time: Some(Timestamp::from_micros(7)),
        prompt_cost: "0.000000000000000001".to_owned(),
        completion_cost: "2".to_owned(),
        prompt_cost_details: r#"{"cache_read":"0.5"}"#.to_owned(),
        completion_cost_details: "{}".to_owned(),
    }
}

async fn each_workspace_has_its_own_prices(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (tenant, other) = (TenantId::new(), TenantId::new());
    let version = async |tenant| {
        let read = store.read(async |tx| model_prices::version(tx, tenant).await).await;
        read.unwrap()
    };
    assert_eq!(version(tenant).await, 0);
    let made = store
        .write(async |tx| model_prices::create(tx, tenant, &new("a")).await)
        .await
        .unwrap();
    assert_eq!(
        (made.tenant_id, made.start_time),
        (tenant, Some(Timestamp::from_micros(7)))
    );
    assert_eq!(made.prompt_cost, "0.000000000000000001");
    let changed = store
        .write(async |tx| model_prices::update(tx, tenant, made.id, &new("b")).await)
        .await
        .unwrap();
    assert_eq!((changed.id, changed.name.as_str()), (made.id, "b"));
    assert_eq!((version(tenant).await, version(other).await), (2, 0));

    for id in [made.id, ModelPriceId::new()] {
        let foreign = store
            .write(async |tx| model_prices::update(tx, other, id, &new("c")).await)
            .await;
        assert!(matches!(foreign, Err(Error::NotFound)));
        let foreign = store.write(async |tx| model_prices::delete(tx, other, id).await).await;
        assert!(matches!(foreign, Err(Error::NotFound)));
    }
    assert_eq!(version(other).await, 0, "what failed has changed nothing");
    let listed = |tenant| store.read(async move |tx| model_prices::list(tx, tenant).await);
    assert_eq!(listed(tenant).await.unwrap(), [changed]);
    assert!(listed(other).await.unwrap().is_empty());

    store
        .write(async |tx| model_prices::delete(tx, tenant, made.id).await)
        .await
        .unwrap();
    assert!(listed(tenant).await.unwrap().is_empty());
    assert_eq!(version(tenant).await, 3);
    store.close().await;
}

async fn prices_of_a_workspace_are_bounded(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let tenant = TenantId::new();
    store
        .write(async |tx| {
            for _ in 0..500 {
                model_prices::create(tx, tenant, &new("a")).await?;
            }
            Ok(())
        })
        .await
        .unwrap();
    let refused = store
        .write(async |tx| model_prices::create(tx, tenant, &new("a")).await)
        .await;
    assert!(matches!(refused, Err(Error::Rejected(_))), "{refused:?}");
    store.close().await;
}

/// A live segment with a row group for each of these days, whose costs are of a version.
async fn add_segment(store: &Store, tenant: TenantId, days: &[OutdatedDay], version: i64) -> SegmentId {
    let id = SegmentId::new();
    let parts: Vec<Part> = days
        .iter()
        .zip(0..)
        .map(|(at, row_group)| Part {
            segment_id: id,
            tenant_id: tenant,
            project_id: at.project_id,
            day: at.day,
            row_group,
            rows: 1,
            min_sort_time: Timestamp::start_of(at.day),
            max_sort_time: Timestamp::start_of(at.day),
            min_seq: 1,
            max_seq: 1,
        })
        .collect();
    store
        .write(async |tx| {
            segments::intend(tx, tenant, id, &format!("segments/{id}"), None).await?;
            segments::publish(tx, tenant, id, 1, 1, &parts).await?;
            segments::set_price_version(tx, tenant, id, version).await
        })
        .await
        .unwrap();
    id
}

async fn outdated_costs_are_found(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (tenant, other) = (TenantId::new(), TenantId::new());
    let (project, today) = (ProjectId::new(), store.clock().now().day());
    let days: Vec<OutdatedDay> = (0..3)
        .map(|day| OutdatedDay {
            project_id: project,
            day: today + Days::new(day),
        })
        .collect();
    let outdated = async |segments, limit| {
        let read = store.read(async |tx| {
            let version = model_prices::version(tx, tenant).await?;
            model_prices::outdated_days(tx, tenant, version, segments, limit).await
        });
        read.await.unwrap()
    };
    let workspaces = async || {
        let read = store.read(async |tx| model_prices::outdated_workspaces(tx, TenantId::nil(), 10).await);
        read.await.unwrap()
    };
    add_segment(&store, tenant, &days[..2], 0).await;
    add_segment(&store, other, &days, 0).await;
    assert!(outdated(9, 9).await.is_empty(), "prices were never changed");
    assert!(workspaces().await.is_empty());

    for _ in 0..2 {
        store
            .write(async |tx| model_prices::bump(tx, tenant).await)
            .await
            .unwrap();
    }
    add_segment(&store, tenant, &days[1..], 1).await;
    add_segment(&store, tenant, &days, 2).await;
    assert_eq!(outdated(9, 9).await, days);
    assert_eq!(outdated(9, 2).await, days[..2]);
    assert_eq!(outdated(1, 9).await, days[..2], "those of the earliest prices first");
    assert_eq!(workspaces().await, [tenant]);
    store
        .write(async |tx| model_prices::repricing_failed(tx, tenant, 2).await)
        .await
        .unwrap();
    assert!(workspaces().await.is_empty(), "only the next prices are tried");
    store
        .write(async |tx| model_prices::bump(tx, tenant).await)
        .await
        .unwrap();
    assert_eq!(workspaces().await, [tenant]);
    store.close().await;
}

#[tokio::test]
async fn prices_on_sqlite() {
    each_workspace_has_its_own_prices(Database::sqlite().await).await;
    prices_of_a_workspace_are_bounded(Database::sqlite().await).await;
    outdated_costs_are_found(Database::sqlite().await).await;
}

#[tokio::test]
async fn prices_on_postgres() {
    let (one, two, three) = tokio::join!(Database::postgres(), Database::postgres(), Database::postgres());
    if let (Some(one), Some(two), Some(three)) = (one, two, three) {
        each_workspace_has_its_own_prices(one).await;
        prices_of_a_workspace_are_bounded(two).await;
        outdated_costs_are_found(three).await;
    }
}
