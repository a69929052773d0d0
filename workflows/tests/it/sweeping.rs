//! Removal of unpublished segments, of segments that cannot be removed, and of unneeded related data of trace runs.

use std::time::Duration;

use futures::TryStreamExt;
use object_store::path::Path;
use towpath_domain::{JobId, RunIndexId, SegmentId, TraceRunId};
use towpath_store::feedback::{self, Attachment};
use towpath_store::pending_patches::{self, Bounds, Usage};
use towpath_store::{Error, on, run_index, segments, wal_segments};
use towpath_traces::accept::Route;
use towpath_traces::flush;
use towpath_traces::objects::Objects;
use towpath_workflows::delete_project;
use uuid::Uuid;

use crate::fixture::{Database, PROJECT, WorkflowFixture, on_both_databases};

const DELETING: &str = "SELECT count(*) FROM segment WHERE state = 'deleting'";
/// Longer than any write.
const LATER: Duration = Duration::from_secs(2 * 60 * 60);

on_both_databases! {
    an_object_that_is_written_after_its_intent_was_given_up_is_removed_too,
    objects_that_cannot_be_removed_keep_nothing_else,
    index_files_that_cannot_be_removed_keep_nothing_else,
    a_file_that_is_sent_again_outlasts_the_one_it_replaces,
    a_file_that_is_sent_again_outlasts_its_deleted_project,
    files_whose_trace_run_never_came_are_collected,
    a_sweep_goes_on_until_it_has_caught_up,
    patches_that_wait_are_bounded,
    patches_that_waited_too_long_go,
}

impl WorkflowFixture {
    /// Objects in a folder; one whose name is a non-empty folder cannot be removed.
    fn objects_in_a_folder(&mut self) -> std::path::PathBuf {
        let root = self.folder.path().join("objects");
        self.world.objects = Objects::folder(&root).unwrap();
        root
    }

    /// Segments that were begun and abandoned, in this order.
    async fn given_up(&self, paths: impl Iterator<Item = String>) {
        for path in paths {
            let intended = self
                .store()
                .write(async |tx| segments::intend(tx, self.tenant, SegmentId::new(), &path, None).await);
            intended.await.unwrap();
        }
    }
}

const DAYS: Duration = Duration::from_secs(24 * 60 * 60);
const FILES: &str = "SELECT count(*) FROM attachment";
const WASTE: &str = "SELECT count(*) FROM attachment_waste";

impl WorkflowFixture {
    async fn fold_open(&self) {
        self.wait(Duration::from_secs(3)).await;
        self.drive().await;
    }

    /// Sends a trace run, or only an attachment of it.
    async fn file(&self, run: TraceRunId, project: Option<&str>, bytes: &str) {
        let part = |name: String, kind: &str, body: &str| {
            format!(
                "--x7f\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\
                 Content-Type: {kind}; length={}\r\n\r\n{body}\r\n",
                body.len()
            )
        };
        let post = project.map(|project| {
            let body = format!(
                r#"{{"id":"{run}","name":"a","run_type":"chain","session_name":"{project}",
                     "start_time":"2026-03-01T10:00:00Z"}}"#
            );
            part(format!("post.{run}"), "application/json", &body)
        });
        let file = part(format!("attachment.{run}.photo"), "image/png", bytes);
        let body = format!("{}{file}--x7f--\r\n", post.unwrap_or_default());
        self.submit(Route::Multipart, "multipart/form-data; boundary=x7f", body)
            .await;
    }

    async fn attachments(&self, run: TraceRunId) -> Vec<Attachment> {
        self.store()
            .read(async |tx| feedback::attachments(tx, self.tenant, run).await)
            .await
            .unwrap()
    }

    /// The bytes of the only attachment of a run.
    async fn bytes(&self, run: TraceRunId) -> String {
        let files = self.attachments(run).await;
        assert_eq!(files.len(), 1, "{files:?}");
        let bytes = self.world.objects.get(&Path::from(files[0].path.as_str())).await;
        String::from_utf8(bytes.unwrap().to_vec()).unwrap()
    }

    async fn stored_files(&self) -> usize {
        let listed = self.world.objects.store().list(Some(&"attachments".into()));
        listed.try_collect::<Vec<_>>().await.unwrap().len()
    }

    async fn delete_project(&self, project: &str) {
        let deleted = self.store().write(async |tx| {
            let project = towpath_store::projects::by_name(tx, self.tenant, project).await?;
            delete_project::delete(tx, self.tenant, project.expect("it is there").id).await
        });
        deleted.await.unwrap();
    }

    async fn waiting(&self) -> Usage {
        let usage = self
            .store()
            .read(async |tx| pending_patches::usage(tx, self.tenant).await);
        usage.await.unwrap()
    }
}

async fn a_file_that_is_sent_again_outlasts_the_one_it_replaces(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let run = TraceRunId::new();
    fixture.file(run, Some(PROJECT), "first").await;
    fixture.fold_open().await;
    let first = fixture.attachments(run).await;
    fixture.file(run, None, "second").await;
    fixture.fold_open().await;
    assert_ne!(first[0].path, fixture.attachments(run).await[0].path);
    assert_eq!((fixture.stored_files().await, fixture.count(WASTE).await), (2, 1));
    fixture.sweep().await;
    assert_eq!(
        fixture.stored_files().await,
        2,
        "a query may have begun that reads the first"
    );
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert_eq!((fixture.stored_files().await, fixture.count(WASTE).await), (1, 0));
    assert_eq!(fixture.bytes(run).await, "second");
}

/// The attachment was acknowledged and its object written while the attachment that it replaces was being deleted with
/// its project.
async fn a_file_that_is_sent_again_outlasts_its_deleted_project(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let run = TraceRunId::new();
    fixture.file(run, Some(PROJECT), "first").await;
    fixture.file(TraceRunId::new(), Some(PROJECT), "other").await;
    fixture.fold_open().await;
    fixture.delete_project(PROJECT).await;
    fixture.wait(LATER).await;
    fixture.file(run, Some("again"), "second").await;
    fixture.wait(Duration::from_secs(3)).await;
    let claimed = fixture.until("flush_wal").await;
    let (store, objects, mark) = (fixture.store(), &fixture.world.objects, JobId::new());
    let open = store
        .read(async |tx| wal_segments::open(tx, i64::MAX).await)
        .await
        .unwrap();
    let intend = async |tenant, id, path: &Path| {
        store
            .write(async |tx| segments::intend(tx, tenant, id, path.as_ref(), Some(mark)).await)
            .await
    };
    let folded = flush::flush(store, objects, &open, &flush::Options::default(), intend).await;
    let folded = folded.unwrap();
    fixture.sweep().await;
    assert_eq!(fixture.count(FILES).await, 0, "those of the deleted project are gone");
    let recorded = store.write(async |tx| flush::record(tx, mark, &folded).await);
    recorded.await.unwrap();
    fixture.perform(claimed).await;
    for _ in 0..2 {
        fixture.wait(LATER).await;
        fixture.sweep().await;
    }
    assert_eq!((fixture.count(FILES).await, fixture.stored_files().await), (1, 1));
    assert_eq!(fixture.bytes(run).await, "second");
}

async fn files_whose_trace_run_never_came_are_collected(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let (there, late) = (TraceRunId::new(), TraceRunId::new());
    fixture.file(there, Some(PROJECT), "there").await;
    fixture.file(late, None, "late").await;
    fixture.fold_open().await;
    // More than one step handles, of several workspaces.
    let now = fixture.clock.now();
    let orphans: Vec<Attachment> = (1..=2500_i64)
        .map(|number| Attachment {
            tenant_id: fixture.tenant,
            run_id: TraceRunId::new(),
            name: "orphan".to_owned(),
            content_type: "text/plain".to_owned(),
            path: format!("attachments/orphan/{number}"),
            bytes: 1,
            seq: (1 << 50) + number,
            created_at: now,
        })
        .collect();
    let stored = fixture
        .store()
        .write(async |tx| feedback::attach_all(tx, &orphans).await);
    stored.await.unwrap();
    fixture.wait(29 * DAYS).await;
    fixture.sweep().await;
    assert_eq!(fixture.count(FILES).await, 2502, "their trace runs may still come");
    fixture.file(late, Some(PROJECT), "later").await;
    fixture.fold_open().await;
    fixture.wait(2 * DAYS).await;
    fixture.sweep().await;
    assert_eq!(fixture.count(FILES).await, 2);
    assert_eq!(
        (fixture.bytes(there).await, fixture.bytes(late).await),
        ("there".into(), "later".into())
    );
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert_eq!((fixture.count(WASTE).await, fixture.stored_files().await), (0, 2));
    // The walk does not restart: checked attachments are not checked again.
    let cursor = "SELECT count(*) FROM sweep_cursor WHERE name = 'attachments'";
    assert_eq!(fixture.count(cursor).await, 1);
    fixture.wait(31 * DAYS).await;
    fixture.sweep().await;
    assert_eq!(fixture.count(FILES).await, 2);
}

/// Whatever the amount: a sweep is only bounded by its time.
async fn a_sweep_goes_on_until_it_has_caught_up(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let now = fixture.clock.now();
    let orphans: Vec<Attachment> = (1..=11_500_i64)
        .map(|number| Attachment {
            tenant_id: fixture.tenant,
            run_id: TraceRunId::new(),
            name: "orphan".to_owned(),
            content_type: "text/plain".to_owned(),
            path: format!("attachments/orphan/{number}"),
            bytes: 1,
            seq: (1 << 50) + number,
            created_at: now,
        })
        .collect();
    for orphans in orphans.chunks(2_500) {
        let stored = fixture
            .store()
            .write(async |tx| feedback::attach_all(tx, orphans).await);
        stored.await.unwrap();
    }
    fixture.wait(31 * DAYS).await;
    fixture.sweep().await;
    assert_eq!(fixture.count(FILES).await, 0, "one sweep is enough");
}

async fn patches_that_wait_are_bounded(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.world.sizes.pending = Bounds {
        patches: 5,
        bytes: 1 << 20,
    };
    let runs: Vec<TraceRunId> = (0..12).map(|_| TraceRunId::new()).collect();
    for run in &runs {
        fixture
            .submit(Route::Patch(*run), "application/json", r#"{"outputs":{"a":1}}"#)
            .await;
    }
    fixture.fold_open().await;
    assert_eq!(fixture.waiting().await.patches, 5);
    // The newest ones stayed, and are applied.
    for run in &runs {
        let post = format!(
            r#"{{"id":"{run}","name":"a","run_type":"chain","session_name":"{PROJECT}",
                 "start_time":"2026-03-01T10:00:00Z"}}"#
        );
        fixture.submit(Route::Run, "application/json", post).await;
    }
    fixture.fold_open().await;
    assert_eq!(fixture.waiting().await, Usage::default());
    let patched = "SELECT CAST(sum(rows) AS bigint) FROM segment WHERE state = 'live'";
    assert_eq!(fixture.count(patched).await, 12);
    // By size as well; and a sweep continues when limits were lowered.
    let large = format!(r#"{{"outputs":{{"a":"{}"}}}}"#, "x".repeat(400_000));
    for _ in 0..4 {
        fixture
            .submit(Route::Patch(TraceRunId::new()), "application/json", large.clone())
            .await;
    }
    fixture.fold_open().await;
    let waiting = fixture.waiting().await;
    assert_eq!(waiting.patches, 2);
    assert!((800_000..1 << 20).contains(&waiting.bytes), "{waiting:?}");
    fixture.world.sizes.pending.patches = 1;
    fixture.sweep().await;
    assert_eq!(fixture.waiting().await.patches, 1);
}

async fn patches_that_waited_too_long_go(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture
        .submit(
            Route::Patch(TraceRunId::new()),
            "application/json",
            r#"{"outputs":{"a":1}}"#,
        )
        .await;
    fixture.fold_open().await;
    fixture.wait(29 * DAYS).await;
    fixture
        .submit(
            Route::Patch(TraceRunId::new()),
            "application/json",
            r#"{"outputs":{"a":1}}"#,
        )
        .await;
    fixture.fold_open().await;
    fixture.sweep().await;
    assert_eq!(fixture.waiting().await.patches, 2);
    fixture.wait(2 * DAYS).await;
    fixture.sweep().await;
    assert_eq!(fixture.waiting().await.patches, 1);
    assert_eq!(fixture.count("SELECT count(*) FROM pending_patch").await, 1);
}

async fn an_object_that_is_written_after_its_intent_was_given_up_is_removed_too(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let (id, path) = (SegmentId::new(), Path::from("segments/late"));
    let intended = fixture
        .store()
        .write(async |tx| segments::intend(tx, fixture.tenant, id, path.as_ref(), None).await);
    intended.await.unwrap();
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert_eq!(
        fixture.count(DELETING).await,
        1,
        "its row stays as long as its writer may write"
    );
    fixture.world.objects.put(&path, vec!["bytes".into()]).await.unwrap();
    let published = fixture
        .store()
        .write(async |tx| segments::publish(tx, fixture.tenant, id, 1, 5, &[]).await);
    assert!(matches!(published.await, Err(Error::Stale)));
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert_eq!((fixture.objects().await, fixture.count(DELETING).await), (0, 0));
}

async fn objects_that_cannot_be_removed_keep_nothing_else(on: Database) {
    const STUCK: usize = 1000;
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    let root = fixture.objects_in_a_folder();
    let stuck: Vec<String> = (0..STUCK).map(|number| format!("segments/stuck-{number}")).collect();
    for path in &stuck {
        std::fs::create_dir_all(root.join(path).join("in the way")).unwrap();
    }
    fixture.given_up(stuck.iter().cloned()).await;
    fixture.wait(Duration::from_secs(1)).await;
    let behind: Vec<String> = (0..20).map(|number| format!("segments/behind-{number}")).collect();
    for path in &behind {
        fixture
            .world
            .objects
            .put(&Path::from(path.as_str()), vec!["bytes".into()])
            .await
            .unwrap();
    }
    fixture.given_up(behind.iter().cloned()).await;
    let waiting = fixture.store().write(async |tx| {
        let now = tx.now();
        Ok(on!(tx, |conn| sqlx::query(
            "INSERT INTO pending_patch (tenant_id, run_id, seq, operation, created_at) VALUES ($1, $2, 1, '{}', $3)"
        )
        .bind(fixture.tenant)
        .bind(Uuid::now_v7())
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?)
    });
    waiting.await.unwrap();

    // Abandoned, and to be removed an hour later.
    fixture.wait(LATER).await;
    fixture.sweep().await;
    fixture.wait(LATER).await;
    fixture.sweep().await;
    assert!(
        behind.iter().all(|path| !root.join(path).exists()),
        "those behind are gone"
    );
    assert_eq!(fixture.count(DELETING).await, STUCK as i64);
    let tried = "SELECT count(*) FROM segment WHERE removal_failures = 1";
    assert_eq!(fixture.count(tried).await, STUCK as i64, "each was tried once");

    // Patches without a trace run expire meanwhile.
    fixture.wait(Duration::from_secs(31 * 24 * 60 * 60)).await;
    fixture.sweep().await;
    assert_eq!(fixture.count("SELECT count(*) FROM pending_patch").await, 0);
    let failures = "SELECT max(removal_failures) FROM segment";
    assert_eq!(fixture.count(failures).await, 2);
    // The pauses grow: the third attempt is due after two minutes.
    fixture.sweep().await;
    assert_eq!(fixture.count(failures).await, 2);
    fixture.sweep().await;
    assert_eq!(fixture.count(failures).await, 3);

    // Segments that can be removed again are removed when they are due.
    for path in &stuck {
        std::fs::remove_dir_all(root.join(path)).unwrap();
    }
    fixture.wait(Duration::from_secs(5 * 60)).await;
    fixture.sweep().await;
    assert_eq!(fixture.count(DELETING).await, 0);
}

async fn index_files_that_cannot_be_removed_keep_nothing_else(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    let root = fixture.objects_in_a_folder();
    let intend = async |fixture: &WorkflowFixture, path: &str| {
        let intended = fixture
            .store()
            .write(async |tx| run_index::intend(tx, fixture.tenant, RunIndexId::new(), path, None).await);
        intended.await.unwrap();
    };
    std::fs::create_dir_all(root.join("run_index/stuck").join("in the way")).unwrap();
    intend(&fixture, "run_index/stuck").await;
    fixture.wait(LATER).await;
    fixture.sweep().await;
    let behind = Path::from("run_index/behind");
    fixture.world.objects.put(&behind, vec!["bytes".into()]).await.unwrap();
    intend(&fixture, behind.as_ref()).await;
    // Abandoned, and to be removed an hour later.
    for _ in 0..2 {
        fixture.wait(LATER).await;
        fixture.sweep().await;
    }
    let deleting = "SELECT count(*) FROM run_index WHERE state = 'deleting'";
    assert_eq!(fixture.count(deleting).await, 1, "the one behind is gone");
    assert!(!root.join("run_index/behind").exists());
    std::fs::remove_dir_all(root.join("run_index/stuck")).unwrap();
    fixture.sweep().await;
    assert_eq!(fixture.count(deleting).await, 0);
}
