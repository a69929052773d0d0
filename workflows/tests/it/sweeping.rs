//! The removal of segments that were begun and never published.

use std::time::Duration;

use object_store::path::Path;
use towpath_domain::SegmentId;
use towpath_store::{Error, segments};

use crate::home::{Database, Home, on_both_databases};

const DELETING: &str = "SELECT count(*) FROM segment WHERE state = 'deleting'";
/// Longer than a writer may take.
const LATER: Duration = Duration::from_secs(2 * 60 * 60);

on_both_databases! {
    an_object_that_is_written_after_its_intent_was_given_up_is_removed_too,
}

async fn an_object_that_is_written_after_its_intent_was_given_up_is_removed_too(on: Database) {
    let home = Home::empty_on(&on, 1).await;
    let (id, path) = (SegmentId::new(), Path::from("segments/late"));
    let intended = home
        .store()
        .write(async |tx| segments::intend(tx, home.tenant, id, path.as_ref(), None).await);
    intended.await.unwrap();
    home.wait(LATER).await;
    home.sweep().await;
    assert_eq!(
        home.count(DELETING).await,
        1,
        "its row stays as long as its writer may write"
    );
    home.world.objects.put(&path, vec!["bytes".into()]).await.unwrap();
    let published = home
        .store()
        .write(async |tx| segments::publish(tx, home.tenant, id, 1, 5, &[]).await);
    assert!(matches!(published.await, Err(Error::Stale)));
    home.wait(LATER).await;
    home.sweep().await;
    assert_eq!((home.objects().await, home.count(DELETING).await), (0, 0));
}
