//! The removal of segments that were begun and never published, and of such as cannot be removed.

use std::time::Duration;

use object_store::path::Path;
use towpath_domain::SegmentId;
use towpath_store::{Error, on, segments};
use towpath_traces::objects::Objects;
use uuid::Uuid;

use crate::home::{Database, Home, on_both_databases};

const DELETING: &str = "SELECT count(*) FROM segment WHERE state = 'deleting'";
/// Longer than a writer may take.
const LATER: Duration = Duration::from_secs(2 * 60 * 60);

on_both_databases! {
    an_object_that_is_written_after_its_intent_was_given_up_is_removed_too,
    objects_that_cannot_be_removed_keep_nothing_else,
}

impl Home {
    /// Objects in a folder, where one of which the name is a folder with something in it cannot be removed.
    fn objects_in_a_folder(&mut self) -> std::path::PathBuf {
        let root = self.folder.path().join("objects");
        self.world.objects = Objects::folder(&root).unwrap();
        root
    }

    /// Segments that were begun and given up, in this order.
    async fn given_up(&self, paths: impl Iterator<Item = String>) {
        for path in paths {
            let intended = self
                .store()
                .write(async |tx| segments::intend(tx, self.tenant, SegmentId::new(), &path, None).await);
            intended.await.unwrap();
        }
    }
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

async fn objects_that_cannot_be_removed_keep_nothing_else(on: Database) {
    const STUCK: usize = 1000;
    let mut home = Home::empty_on(&on, 1).await;
    let root = home.objects_in_a_folder();
    let stuck: Vec<String> = (0..STUCK).map(|number| format!("segments/stuck-{number}")).collect();
    for path in &stuck {
        std::fs::create_dir_all(root.join(path).join("in the way")).unwrap();
    }
    home.given_up(stuck.iter().cloned()).await;
    home.wait(Duration::from_secs(1)).await;
    let behind: Vec<String> = (0..20).map(|number| format!("segments/behind-{number}")).collect();
    for path in &behind {
        home.world
            .objects
            .put(&Path::from(path.as_str()), vec!["bytes".into()])
            .await
            .unwrap();
    }
    home.given_up(behind.iter().cloned()).await;
    let waiting = home.store().write(async |tx| {
        let now = tx.now();
        Ok(on!(tx, |conn| sqlx::query(
            "INSERT INTO pending_patch (tenant_id, run_id, seq, operation, created_at) VALUES ($1, $2, 1, '{}', $3)"
        )
        .bind(home.tenant)
        .bind(Uuid::now_v7())
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?)
    });
    waiting.await.unwrap();

    // Given up, and an hour later to be removed.
    home.wait(LATER).await;
    home.sweep().await;
    home.wait(LATER).await;
    home.sweep().await;
    assert!(
        behind.iter().all(|path| !root.join(path).exists()),
        "those behind are gone"
    );
    assert_eq!(home.count(DELETING).await, STUCK as i64);
    let tried = "SELECT count(*) FROM segment WHERE removal_failures = 1";
    assert_eq!(home.count(tried).await, STUCK as i64, "each was tried once");

    // Patches that nothing came for expire meanwhile.
    home.wait(Duration::from_secs(31 * 24 * 60 * 60)).await;
    home.sweep().await;
    assert_eq!(home.count("SELECT count(*) FROM pending_patch").await, 0);
    let failures = "SELECT max(removal_failures) FROM segment";
    assert_eq!(home.count(failures).await, 2);
    // The pauses grow: the third try is due after two minutes.
    home.sweep().await;
    assert_eq!(home.count(failures).await, 2);
    home.sweep().await;
    assert_eq!(home.count(failures).await, 3);

    // What is no longer in the way is removed when its turn comes.
    for path in &stuck {
        std::fs::remove_dir_all(root.join(path)).unwrap();
    }
    home.wait(Duration::from_secs(5 * 60)).await;
    home.sweep().await;
    assert_eq!(home.count(DELETING).await, 0);
}
