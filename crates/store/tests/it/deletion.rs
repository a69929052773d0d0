//! What deletions leave of datasets, prompts, prices, feedback configs and annotation queues.

use std::collections::BTreeMap;

use towpath_domain::{AnnotationQueueId, DatasetId, ModelPriceId, TenantId};
use towpath_store::{Dialect, annotation_queues, datasets, feedback_configs, model_prices, prompts};
use uuid::Uuid;

use crate::migrations::filled::{self, ROWS};
use crate::migrations::{EmptyDatabase, POSTGRES, RawConnection, SQLITE};
use crate::move_store::LATER;

/// The pairs that made the tables. Both files of a pair make the same ones.
const PAIRS: [&str; 3] = [
    include_str!("../../migrations/sqlite/0020_datasets.sql"),
    include_str!("../../migrations/sqlite/0022_model_prices.sql"),
    include_str!("../../migrations/sqlite/0023_prompts.sql"),
];
/// Stays: segments have costs of earlier prices until they are computed again.
const VERSIONS: &str = "model_price_version";

fn tables() -> Vec<&'static str> {
    let made = PAIRS.iter().flat_map(|text| text.split("CREATE TABLE ").skip(1));
    made.filter_map(|rest| rest.split_whitespace().next()).collect()
}

/// Rows for these tables, of two workspaces that use the same ids.
fn rows() -> String {
    let tables = tables();
    let own = LATER.split_inclusive(";\n").filter(|statement| {
        tables
            .iter()
            .any(|table| statement.contains(&format!("INSERT INTO {table} (")))
    });
    let own: String = own.collect();
    // Ids of prices are unique among all workspaces.
    let other = own.replace("@id1,", "@id2,").replace("@id250,", "@id251,");
    format!("{own}{other} UPDATE project SET reference_dataset_id = @id210 ;")
}

/// The number of rows of a workspace in each table.
async fn count(raw: &mut RawConnection, fresh: &EmptyDatabase, workspace: u32) -> BTreeMap<&'static str, String> {
    let mut counts = BTreeMap::new();
    for table in tables() {
        let text = format!("SELECT CAST(count(*) AS TEXT) FROM {table} WHERE tenant_id = @id{workspace} ");
        let found = raw.texts(filled::rows(&text, fresh.dialect)).await.unwrap();
        counts.insert(table, found.concat());
    }
    counts
}

/// The id that rows write with this number.
fn id(number: u32) -> Uuid {
    format!("{number:032}").parse().unwrap()
}

async fn nothing_is_left_of_what_was_deleted(fresh: EmptyDatabase) {
    let mut raw = fresh.raw().await;
    let migrator = match fresh.dialect {
        Dialect::Sqlite => &SQLITE,
        Dialect::Postgres => &POSTGRES,
    };
    raw.migrate(migrator, 1).await.unwrap();
    raw.execute(filled::rows(ROWS, fresh.dialect)).await;
    let store = fresh.store().await;
    store.migrate().await.unwrap();
    raw.execute(filled::rows(&rows(), fresh.dialect)).await;
    let before = count(&mut raw, &fresh, 1).await;
    assert!(
        before.len() >= 15 && before.values().all(|rows| rows != "0"),
        "{before:?}"
    );
    let others = count(&mut raw, &fresh, 2).await;
    assert_eq!(others, before);

    let (tenant, dataset) = (TenantId(id(1)), DatasetId(id(210)));
    let more = async || {
        let some = store
            .write(async |tx| datasets::delete_batch(tx, tenant, dataset).await)
            .await;
        some.unwrap()
    };
    while more().await {}
    let more = async || {
        let some = store
            .write(async |tx| prompts::commits::delete_batch(tx, tenant, "greeting").await)
            .await;
        some.unwrap()
    };
    while more().await {}
    let deleted = store.write(async |tx| {
        datasets::delete(tx, tenant, dataset).await?;
        prompts::delete(tx, tenant, "greeting").await?;
        model_prices::delete(tx, tenant, ModelPriceId(id(250))).await?;
        feedback_configs::delete(tx, tenant, Some("latency"), None).await?;
        annotation_queues::delete(tx, tenant, AnnotationQueueId(id(215))).await
    });
    deleted.await.unwrap();
    store.close().await;

    let mut left = count(&mut raw, &fresh, 1).await;
    assert_eq!(left.remove(VERSIONS).as_deref(), Some("1"));
    assert!(left.values().all(|rows| rows == "0"), "{left:?}");
    assert_eq!(count(&mut raw, &fresh, 2).await, others);
    let experiments = "SELECT name FROM project WHERE reference_dataset_id IS NULL";
    assert_eq!(raw.texts(experiments).await.unwrap(), ["production"]);
}

#[tokio::test]
async fn nothing_is_left_of_what_was_deleted_on_sqlite() {
    nothing_is_left_of_what_was_deleted(EmptyDatabase::sqlite()).await;
}

#[tokio::test]
async fn nothing_is_left_of_what_was_deleted_on_postgres() {
    if let Some(fresh) = EmptyDatabase::postgres().await {
        nothing_is_left_of_what_was_deleted(fresh).await;
    }
}
