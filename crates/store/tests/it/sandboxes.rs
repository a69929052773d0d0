//! What requests about sandboxes do to each other.

use towpath_domain::sandbox::{BoxConfig, Lifetime, TemplateResources};
use towpath_domain::{BoxId, TemplateId, TenantId};
use towpath_store::sandboxes::boxes::{self, NewBox};
use towpath_store::sandboxes::templates::{self, Template};
use towpath_store::{Error, Result, Store, Tx};

use crate::database::{Database, waiting};

async fn record_template(store: &Store, tenant: TenantId) -> Template {
    let resources = TemplateResources::default();
    let made = store.write(async |tx| templates::insert(tx, tenant, "python", "host", &resources).await);
    made.await.unwrap()
}

async fn insert_box(tx: &mut Tx<'_>, tenant: TenantId, template: TemplateId) -> Result<()> {
    templates::hold(tx, tenant, template).await?;
    let new = NewBox {
        id: BoxId::new(),
        name: "yard",
        config: &BoxConfig::default(),
        template_name: "python",
        template: Some(template),
        snapshot: None,
        pool: None,
        node: None,
        lifetime: Lifetime {
            idle_ttl_seconds: 0,
            ttl_seconds: 0,
            delete_after_stop_seconds: 0,
        },
        attachments: &[],
        request: b"",
        created_by: "test",
    };
    boxes::insert(tx, tenant, &new).await.map(drop)
}

/// The box is recorded and not committed: a removal of its template that comes now waits, and then names the box.
#[tokio::test]
async fn a_template_is_not_deleted_under_a_box_that_is_being_recorded() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = database.store.clone();
    store.migrate().await.unwrap();
    let tenant = TenantId::new();
    let template = record_template(&store, tenant).await.id;
    let removing = store.write(async |tx| {
        insert_box(tx, tenant, template).await?;
        let other = store.clone();
        let removing = tokio::spawn(async move {
            other
                .write(async |tx| templates::delete(tx, tenant, template).await)
                .await
        });
        waiting(&store, 1, || removing.is_finished()).await;
        Ok(removing)
    });
    let removed = removing.await.unwrap().await.unwrap();
    assert_eq!(removed.unwrap(), [("box".to_owned(), "yard".to_owned())]);
    let kept = store.read(async |tx| templates::get(tx, tenant, template).await);
    assert_eq!(kept.await.unwrap().name, "python");
}

/// The template is deleted and that is not committed: a box of it that comes now waits, and then finds no template.
#[tokio::test]
async fn a_box_is_not_recorded_on_a_template_that_is_being_deleted() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = database.store.clone();
    store.migrate().await.unwrap();
    let tenant = TenantId::new();
    let template = record_template(&store, tenant).await.id;
    let recording = store.write(async |tx| {
        assert!(templates::delete(tx, tenant, template).await?.is_empty());
        let other = store.clone();
        let recording =
            tokio::spawn(async move { other.write(async |tx| insert_box(tx, tenant, template).await).await });
        waiting(&store, 1, || recording.is_finished()).await;
        Ok(recording)
    });
    let recorded = recording.await.unwrap().await.unwrap();
    assert!(matches!(recorded, Err(Error::NotFound)), "{recorded:?}");
}
