//! How long threads live: from whatever touched them last, on both databases.

use std::time::Duration;

use towpath_domain::agent::{ThreadStatus, TtlStrategy};
use towpath_domain::{TenantId, ThreadId};
use towpath_store::Store;
use towpath_store::threads::{self, NewThread, Thread, ThreadOutcome, Ttl};

use super::{migrated, new};
use crate::database::Database;

on_both!(
    whatever_touches_a_thread_lets_its_time_begin_anew,
    a_state_is_written_to_a_thread_that_is_there
);

const MINUTES: f64 = 7.5;

async fn read(store: &Store, tenant: TenantId, id: ThreadId) -> Thread {
    store.read(async |tx| threads::get(tx, tenant, id).await).await.unwrap()
}

async fn made(store: &Store, tenant: TenantId) -> ThreadId {
    let id = ThreadId::new();
    let ttl = Ttl {
        strategy: TtlStrategy::KeepLatest,
        minutes: MINUTES,
    };
    let new = NewThread {
        ttl: Some(ttl),
        ..new(id, "{}")
    };
    store
        .write(async |tx| threads::insert(tx, tenant, &new).await.map(drop))
        .await
        .unwrap();
    id
}

/// How long a thread lives from its last change.
fn lives(thread: &Thread) -> Option<Duration> {
    thread.expires_at.map(|end| end.since(thread.updated_at))
}

async fn whatever_touches_a_thread_lets_its_time_begin_anew(database: Database) {
    let store = &database.store;
    let tenant = TenantId::new();
    let id = made(store, tenant).await;
    let span = Some(Duration::from_secs_f64(MINUTES * 60.0));
    for touch in ["state", "metadata", "busy", "settle", "rested state"] {
        let before = read(store, tenant, id).await.updated_at;
        store
            .write(async |tx| match touch {
                "metadata" => threads::update(tx, tenant, id, r#"{"a":1}"#, None).await.map(drop),
                "busy" => threads::busy(tx, tenant, id, "{}", "{}").await,
                "settle" => threads::settle(tx, tenant, id, ThreadStatus::Idle, &ThreadOutcome::default()).await,
                _ => {
                    if touch == "rested state" {
                        threads::clear_expiry(tx, tenant, id).await?;
                    }
                    threads::set_state(tx, tenant, id, ThreadStatus::Idle, "{}", "{}").await
                }
            })
            .await
            .unwrap();
        let row = read(store, tenant, id).await;
        assert!(row.updated_at > before, "{touch}");
        assert_eq!(lives(&row), span, "{touch}");
    }
    let longer = Ttl {
        strategy: TtlStrategy::Delete,
        minutes: 60.0,
    };
    let row = store
        .write(async |tx| threads::update(tx, tenant, id, "{}", Some(longer)).await)
        .await
        .unwrap();
    assert_eq!(lives(&row), Some(Duration::from_secs(3600)));
    assert_eq!(row.ttl_strategy, Some(TtlStrategy::Delete));
    let copy = store
        .write(async |tx| threads::copy(tx, tenant, id, ThreadId::new()).await)
        .await
        .unwrap();
    assert!(copy.created_at > row.updated_at);
    assert_eq!(
        lives(&copy),
        Some(Duration::from_secs(3600)),
        "a copy has all of its time before it"
    );

    let eternal = ThreadId::new();
    store
        .write(async |tx| {
            threads::insert(tx, tenant, &new(eternal, "{}")).await?;
            threads::set_state(tx, tenant, eternal, ThreadStatus::Idle, "{}", "{}").await
        })
        .await
        .unwrap();
    assert_eq!(
        read(store, tenant, eternal).await.expires_at,
        None,
        "one without a time to live has none"
    );
}

async fn a_state_is_written_to_a_thread_that_is_there(database: Database) {
    let store = &database.store;
    let (tenant, id) = (TenantId::new(), ThreadId::new());
    let written = store
        .write(async |tx| threads::set_state(tx, tenant, id, ThreadStatus::Idle, "{}", "{}").await)
        .await;
    assert!(matches!(written, Err(towpath_store::Error::NotFound)), "{written:?}");
}
