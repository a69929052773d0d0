//! Organisations, workspaces and keys.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_domain::{KeyId, OrganizationId, Secret, TenantId, Timestamp};
use towpath_store::Error;
use towpath_store::access::{self, KeyHash, NewKey};

use crate::database::Database;

const FIRST: &str = "the operator's own key, long enough";

async fn keys_open_what_they_should(database: Database) {
    let store = &database.store;
    store.migrate().await.unwrap();
    let tenant = TenantId::new();
    assert!(!store.read(access::has_keys).await.unwrap());

    // Several processes that start at once on an empty database come to one organisation, workspace and key.
    let starts = (0..8).map(|_| async {
        let start = store.write(async |tx| access::ensure_first(tx, &Secret::new(FIRST), tenant).await);
        start.await.unwrap()
    });
    let principals = futures::future::join_all(starts).await;
    assert!(
        principals.iter().all(|principal| *principal == principals[0]),
        "{principals:?}"
    );
    let organization = principals[0].organization;
    assert_eq!(principals[0].workspaces, [tenant]);
    assert_eq!(
        store
            .read(async |tx| access::list_keys(tx, Some(organization), None, 10).await)
            .await
            .unwrap()
            .len(),
        1
    );
    assert!(store.read(access::has_keys).await.unwrap());

    let (second, wide, bound) = store
        .write(async |tx| {
            let second = access::create_workspace(tx, organization, "second").await?;
            let wide = access::create_key(
                tx,
                NewKey {
                    organization,
                    workspace: None,
                    name: "wide",
                    operator: true,
                },
            )
            .await?;
            let bound = NewKey {
                organization,
                workspace: Some(second.id),
                name: "bound",
                operator: false,
            };
            Ok((second.id, wide, access::create_key(tx, bound).await?))
        })
        .await
        .unwrap();
    let opens = async |secret: &Secret| {
        let hash = KeyHash::of(secret.reveal().as_bytes());
        let principal = store
            .read(async |tx| access::authenticate(tx, &hash).await)
            .await
            .unwrap();
        principal.map(|principal| principal.workspaces)
    };
    let mut both = vec![tenant, second];
    both.sort();
    assert_eq!(opens(&wide.1).await, Some(both));
    assert_eq!(opens(&bound.1).await, Some(vec![second]));
    assert_eq!(opens(&Secret::new("tp_unknown")).await, None);

    let revoked = store
        .write(async |tx| access::revoke_key(tx, organization, wide.0.id).await)
        .await
        .unwrap();
    let again = store
        .write(async |tx| access::revoke_key(tx, organization, wide.0.id).await)
        .await
        .unwrap();
    assert_eq!(revoked.revoked_at, again.revoked_at);
    assert_eq!(opens(&wide.1).await, None);
    // A revoked key does not come back through the operator's environment.
    let back = store
        .write(async |tx| access::ensure_first(tx, &wide.1, tenant).await)
        .await;
    assert!(matches!(back, Err(Error::Rejected(_))), "{back:?}");

    // Nor does a secret that was replaced: it opens its key until the overlap is over, and is never a new key.
    let replaced = &bound.1;
    let (rotated, secret) = store
        .write(async |tx| access::rotate_key(tx, bound.0.id, Duration::ZERO).await)
        .await
        .unwrap();
    assert_eq!(rotated.id, bound.0.id);
    assert_eq!(opens(&secret).await, Some(vec![second]));
    assert_eq!(opens(replaced).await, None);
    let back = store
        .write(async |tx| access::ensure_first(tx, replaced, tenant).await)
        .await;
    assert!(matches!(back, Err(Error::Rejected(_))), "{back:?}");
    let (_, again) = store
        .write(async |tx| access::rotate_key(tx, bound.0.id, Duration::from_secs(3600)).await)
        .await
        .unwrap();
    for valid in [&secret, &again] {
        assert_eq!(opens(valid).await, Some(vec![second]), "both work during the overlap");
    }

    // A rotation at once ends what earlier ones left open.
    store
        .write(async |tx| access::rotate_key(tx, bound.0.id, Duration::ZERO).await)
        .await
        .unwrap();
    for ended in [&secret, &again] {
        assert_eq!(opens(ended).await, None, "an earlier overlap goes on");
    }

    let foreign = OrganizationId::new();
    let tried = store
        .write(async |tx| access::revoke_key(tx, foreign, bound.0.id).await)
        .await;
    assert!(matches!(tried, Err(Error::NotFound)));
    let tried = store
        .write(async |tx| access::create_workspace(tx, foreign, "x").await.map(drop))
        .await;
    assert!(matches!(tried, Err(Error::NotFound)));
    let new = NewKey {
        organization: foreign,
        workspace: None,
        name: "x",
        operator: false,
    };
    let tried = store
        .write(async |tx| access::create_key(tx, new).await.map(drop))
        .await;
    assert!(matches!(tried, Err(Error::NotFound)));
    store.close().await;
}

async fn uses_of_keys_are_recorded_together(database: Database) {
    let store = &database.store;
    store.migrate().await.unwrap();
    let first = store
        .write(async |tx| access::ensure_first(tx, &Secret::new(FIRST), TenantId::new()).await)
        .await;
    let organization = first.unwrap().organization;
    let mut keys = Vec::new();
    for _ in 0..20 {
        let new = NewKey {
            organization,
            workspace: None,
            name: "one of many",
            operator: false,
        };
        let made = store.write(async |tx| access::create_key(tx, new).await).await;
        keys.push(made.unwrap().0.id);
    }
    let at = |text: &str| Timestamp::parse(text).unwrap();
    let (early, late) = (at("2026-03-01T12:00:00Z"), at("2026-03-01T12:01:00Z"));
    let record = async |keys: &[KeyId], used_at: Timestamp| {
        let uses: BTreeMap<_, _> = keys.iter().map(|key| (*key, used_at)).collect();
        let sent = store.statements();
        store
            .write(async |tx| access::record_uses(tx, &uses).await)
            .await
            .unwrap();
        store.statements() - sent
    };
    let used = async |key: KeyId| {
        let found = store.read(async |tx| access::key(tx, key).await).await;
        found.unwrap().unwrap().last_used_at
    };
    let one = record(&keys[..1], late).await;
    assert_eq!(
        record(&keys, early).await,
        one,
        "as many statements for 20 keys as for one"
    );
    assert_eq!(used(keys[0]).await, Some(late), "a later use was recorded before");
    for key in &keys[1..] {
        assert_eq!(used(*key).await, Some(early));
    }
    // One that is gone stops no other.
    record(&[KeyId::new(), keys[1]], late).await;
    assert_eq!(used(keys[1]).await, Some(late));
    store.close().await;
}

#[tokio::test]
async fn uses_of_keys_are_recorded_together_on_sqlite() {
    uses_of_keys_are_recorded_together(Database::sqlite().await).await;
}

#[tokio::test]
async fn uses_of_keys_are_recorded_together_on_postgres() {
    if let Some(database) = Database::postgres().await {
        uses_of_keys_are_recorded_together(database).await;
    }
}

#[tokio::test]
async fn keys_open_what_they_should_on_sqlite() {
    keys_open_what_they_should(Database::sqlite().await).await;
}

#[tokio::test]
async fn keys_open_what_they_should_on_postgres() {
    if let Some(database) = Database::postgres().await {
        keys_open_what_they_should(database).await;
    }
}
