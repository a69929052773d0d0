//! Quarantined trace data: retried, dropped, maintained by the sweep, and reported by exports.

use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use towpath_domain::export::ExportStatus;
use towpath_domain::{Clock, ProjectId, QuarantineId, TenantId, Timestamp, WalSegmentId};
use towpath_store::projects::{self, ProjectChange};
use towpath_store::quarantine::{self as stored, Entry, Kind, Quota};
use towpath_store::{Error as StoreError, segments};
use towpath_traces::sample::SampleOperations;
use towpath_traces::wal::{self, frame};
use towpath_workflows::quarantine::{self, Error};

use crate::fixture::{Database, PROJECT, WorkflowFixture, on_both_databases, time};

const ENTRIES: &str = "SELECT count(*) FROM quarantine";
const OPEN_UNITS: &str = "SELECT count(*) FROM wal_unit WHERE state = 'open'";
const ROWS: &str = "SELECT CAST(coalesce(sum(rows), 0) AS bigint) FROM segment WHERE state = 'live'";
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

on_both_databases! {
    a_retried_entry_is_folded_into_the_project_its_name_meant,
    an_entry_whose_object_is_not_there_stays_as_it_is,
    a_dropped_entry_takes_its_object_along_unless_something_needs_it,
    missing_objects_that_are_back_are_folded_within_an_hour,
    missing_objects_are_looked_for_some_at_a_time,
    an_object_that_a_missing_entry_names_is_not_swept,
    objects_that_nothing_names_go_after_a_day,
    a_workspace_is_kept_within_its_quota,
    an_export_says_how_many_operations_may_be_missing,
    what_leaves_quarantine_while_an_export_waits_is_told_too,
}

impl WorkflowFixture {
    async fn known_project(&self) -> ProjectId {
        self.store()
            .write(async |tx| projects::ensure(tx, self.tenant, PROJECT).await)
            .await
            .unwrap()
    }

    /// An entry with one request of these trace runs, and its object.
    async fn quarantined(&self, kind: Kind, runs: std::ops::Range<u64>) -> Entry {
        let (id, project) = (QuarantineId::new(), self.known_project().await);
        let path = match kind {
            Kind::Missing => wal::object_path(WalSegmentId::new()),
            Kind::Damaged | Kind::Rejected => Path::from(format!("quarantine/{}/{id}.unit", self.tenant)),
        };
        let pieces = frame::write(std::iter::once(
            &self.accept(runs.clone(), SampleOperations::Posts).frame,
        ));
        let frames: usize = pieces.iter().skip(1).map(Bytes::len).sum();
        let entry = Entry {
            id,
            tenant_id: self.tenant,
            kind,
            reason: "for a test".to_owned(),
            path: path.to_string(),
            byte_offset: pieces[0].len() as i64,
            bytes: frames as i64,
            decoded_bytes: 0,
            items: (runs.end - runs.start) as i64,
            names: format!(r#"{{"{PROJECT}":"{project}"}}"#),
            projects: None,
            first_start: None,
            last_start: None,
            accepted_at: self.clock.now(),
            created_at: self.clock.now(),
        };
        self.world.objects.put(&path, pieces).await.unwrap();
        self.put(std::slice::from_ref(&entry)).await;
        entry
    }

    async fn put(&self, entries: &[Entry]) {
        self.store()
            .write(async |tx| stored::put_all(tx, entries).await)
            .await
            .unwrap();
    }

    /// Removes the object of an entry, and returns a way to restore it.
    async fn lose(&self, entry: &Entry) -> Bytes {
        let path = Path::from(entry.path.as_str());
        let bytes = self.world.objects.get(&path).await.unwrap();
        self.world.objects.delete(&path).await.unwrap();
        bytes
    }

    async fn has(&self, path: &str) -> bool {
        self.world.objects.store().head(&Path::from(path)).await.is_ok()
    }

    async fn retry(&self, entry: &Entry) -> Result<Entry, Error> {
        quarantine::retry(self.store(), &self.world.objects, entry.id).await
    }

    async fn discard(&self, entry: &Entry) {
        quarantine::discard(self.store(), &self.world.objects, entry.id)
            .await
            .unwrap();
    }

    async fn folded(&self) {
        self.wait(Duration::from_secs(3)).await;
        self.drive().await;
        assert_eq!(self.count(OPEN_UNITS).await, 0);
    }
}

async fn a_retried_entry_is_folded_into_the_project_its_name_meant(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let entry = fixture.quarantined(Kind::Rejected, 0..10).await;
    // Of all projects with the name, the one that was meant at acceptance.
    let project = fixture.known_project().await;
    let renamed = fixture.store().write(async |tx| {
        let change = ProjectChange {
            name: Some("lock".to_owned()),
            ..ProjectChange::default()
        };
        projects::update(tx, fixture.tenant, project, &change).await?;
        projects::ensure(tx, fixture.tenant, PROJECT).await
    });
    let other = renamed.await.unwrap();
    assert_eq!(fixture.retry(&entry).await.unwrap().items, 10);
    assert_eq!((fixture.count(ENTRIES).await, fixture.count(OPEN_UNITS).await), (0, 1));
    assert!(matches!(
        fixture.retry(&entry).await,
        Err(Error::Store(StoreError::NotFound))
    ));
    fixture.folded().await;
    assert_eq!(fixture.count(ROWS).await, 10);
    let parts = fixture.store().read(async |tx| {
        let day = time("2026-03-01").day();
        let own = segments::live_parts(tx, fixture.tenant, project, day, day).await?;
        let others = segments::live_parts(tx, fixture.tenant, other, day, day).await?;
        Ok((own.len(), others.len()))
    });
    assert_eq!(parts.await.unwrap(), (1, 0));
}

async fn an_entry_whose_object_is_not_there_stays_as_it_is(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    for kind in [Kind::Missing, Kind::Rejected] {
        let entry = fixture.quarantined(kind, 0..10).await;
        let bytes = fixture.lose(&entry).await;
        let refusal = async || match fixture.retry(&entry).await {
            Err(Error::Store(StoreError::Rejected(rejection))) => rejection.message,
            other => panic!("{other:?}"),
        };
        let text = refusal().await;
        assert!(
            text.contains(&entry.path) && text.contains("missing in the object store"),
            "{text}"
        );
        let path = Path::from(entry.path.as_str());
        let short = bytes.slice(..bytes.len() - 1);
        fixture.world.objects.put(&path, vec![short]).await.unwrap();
        let text = refusal().await;
        assert!(text.contains(&format!("{} bytes", bytes.len() - 1)), "{text}");
        assert_eq!((fixture.count(ENTRIES).await, fixture.count(OPEN_UNITS).await), (1, 0));
        fixture.world.objects.put(&path, vec![bytes]).await.unwrap();
        fixture.retry(&entry).await.unwrap();
        fixture.folded().await;
        assert_eq!(fixture.count(ENTRIES).await, 0);
    }
}

async fn a_dropped_entry_takes_its_object_along_unless_something_needs_it(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let entry = fixture.quarantined(Kind::Rejected, 0..10).await;
    let twin = Entry {
        id: QuarantineId::new(),
        ..entry.clone()
    };
    fixture.put(std::slice::from_ref(&twin)).await;
    fixture.discard(&entry).await;
    assert!(fixture.has(&entry.path).await, "another entry names it");
    fixture.discard(&twin).await;
    assert!(!fixture.has(&entry.path).await);
    assert_eq!(fixture.count(ENTRIES).await, 0);
    let again = quarantine::discard(fixture.store(), &fixture.world.objects, entry.id).await;
    assert!(matches!(again, Err(StoreError::NotFound)));

    // A segment of another workspace is in the same object.
    let needed = fixture.quarantined(Kind::Rejected, 0..10).await;
    let twin = Entry {
        id: QuarantineId::new(),
        ..needed.clone()
    };
    fixture.put(std::slice::from_ref(&twin)).await;
    fixture.retry(&needed).await.unwrap();
    fixture.discard(&twin).await;
    assert!(fixture.has(&needed.path).await, "a unit names it");
    fixture.folded().await;
    assert_eq!(fixture.count(ROWS).await, 10);
}

async fn missing_objects_that_are_back_are_folded_within_an_hour(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let entry = fixture.quarantined(Kind::Missing, 0..10).await;
    let bytes = fixture.lose(&entry).await;
    fixture.sweep().await;
    let path = Path::from(entry.path.as_str());
    fixture.world.objects.put(&path, vec![bytes]).await.unwrap();
    fixture.sweep().await;
    assert_eq!(fixture.count(ENTRIES).await, 1, "it was looked for a minute ago");
    fixture.wait(HOUR).await;
    fixture.sweep().await;
    assert_eq!(fixture.count(ENTRIES).await, 0);
    fixture.folded().await;
    assert_eq!(fixture.count(ROWS).await, 10);
}

async fn missing_objects_are_looked_for_some_at_a_time(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let first = fixture.quarantined(Kind::Missing, 0..1).await;
    fixture.lose(&first).await;
    let absent: Vec<Entry> = (0..1100)
        .map(|_| Entry {
            id: QuarantineId::new(),
            ..first.clone()
        })
        .collect();
    fixture.put(&absent).await;
    let last = fixture.quarantined(Kind::Missing, 1..2).await;
    assert!(absent.iter().all(|entry| entry.id < last.id));
    for _ in 0..2 {
        fixture.sweep().await;
        assert_eq!(fixture.count(ENTRIES).await, 1102);
    }
    fixture.sweep().await;
    assert_eq!(
        fixture.count(ENTRIES).await,
        1101,
        "the last ones come in the same hour"
    );
}

async fn an_object_that_a_missing_entry_names_is_not_swept(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let entry = fixture.quarantined(Kind::Missing, 0..10).await;
    let ahead = Timestamp::from_micros(9_000_000_000_000_000);
    let orphans = async || {
        wal::sweep::orphans(fixture.store(), &fixture.world.objects, ahead)
            .await
            .unwrap()
    };
    assert_eq!(orphans().await, 0);
    assert!(fixture.has(&entry.path).await);
    fixture
        .store()
        .write(async |tx| stored::remove(tx, entry.id).await)
        .await
        .unwrap();
    assert_eq!(orphans().await, 1);
}

async fn objects_that_nothing_names_go_after_a_day(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let kept = fixture.quarantined(Kind::Rejected, 0..10).await;
    let retried = fixture.quarantined(Kind::Rejected, 10..20).await;
    let orphan = format!("quarantine/{}/{}.unit", fixture.tenant, QuarantineId::new());
    let foreign = format!("quarantine/{}.unit", QuarantineId::new());
    for path in [&orphan, &foreign] {
        let path = Path::from(path.as_str());
        fixture.world.objects.put(&path, vec!["bytes".into()]).await.unwrap();
    }
    // Objects have the machine's time.
    fixture
        .wait(Clock::system().now().since(fixture.clock.now()) + DAY / 2)
        .await;
    fixture.sweep().await;
    assert!(fixture.has(&orphan).await, "its entry may still come");
    fixture.wait(DAY).await;
    fixture.retry(&retried).await.unwrap();
    sweep_without_folding(&fixture).await;
    assert!(!fixture.has(&orphan).await);
    for path in [&kept.path, &retried.path, &foreign] {
        assert!(fixture.has(path).await, "{path}");
    }
}

/// Sweeps while a WAL segment is open.
async fn sweep_without_folding(fixture: &WorkflowFixture) {
    fixture.wait(Duration::from_secs(61)).await;
    while towpath_durable::ready_due(fixture.store()).await.unwrap() > 0 {}
    while let Some(job) = fixture.claim_from("sweeps").await {
        fixture.perform(job).await;
    }
    assert_eq!(fixture.count(OPEN_UNITS).await, 1);
}

async fn a_workspace_is_kept_within_its_quota(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    let mut entries = Vec::new();
    for run in 0..4 {
        entries.push(fixture.quarantined(Kind::Rejected, run..run + 1).await);
        fixture.wait(Duration::from_secs(1)).await;
    }
    let other = Entry {
        id: QuarantineId::new(),
        tenant_id: TenantId::new(),
        ..entries[0].clone()
    };
    fixture.put(&[other]).await;
    fixture.world.retention.quarantine = Quota {
        entries: 3,
        bytes: 1 << 30,
    };
    fixture.sweep().await;
    assert_eq!(fixture.count(ENTRIES).await, 4);
    // Its object is also that of the other workspace's entry.
    assert!(fixture.has(&entries[0].path).await);
    fixture.world.retention.quarantine = Quota {
        entries: 100,
        bytes: entries[3].bytes + entries[2].bytes / 2,
    };
    fixture.sweep().await;
    for (entry, is_kept) in entries[1..].iter().zip([false, false, true]) {
        assert_eq!(fixture.has(&entry.path).await, is_kept, "{entry:?}");
        let found = fixture.store().read(async |tx| stored::get(tx, entry.id).await).await;
        assert_eq!(found.is_ok(), is_kept, "{entry:?}");
    }
}

async fn an_export_says_how_many_operations_may_be_missing(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.send(0..20, SampleOperations::Both).await;
    let whole = fixture.export(1).await;
    fixture.drain().await;
    assert_eq!(fixture.read(whole).await.missing_operations, 0);
    assert_eq!(fixture.manifest(whole).unwrap()["missing_operations"], 0);

    let entry = fixture.quarantined(Kind::Rejected, 20..30).await;
    let project = fixture.project().await;
    let (first, last) = (Some(time("2026-03-01T10:00:00Z")), Some(time("2026-03-01T11:00:00Z")));
    let of = |items, tenant_id, projects: Option<ProjectId>, first_start, last_start| Entry {
        id: QuarantineId::new(),
        tenant_id,
        items,
        projects: projects.map(|project| format!(r#"["{project}"]"#)),
        first_start,
        last_start,
        ..entry.clone()
    };
    let (early, late) = (Some(time("2026-02-27")), Some(time("2026-02-28")));
    fixture
        .put(&[
            of(100, fixture.tenant, Some(project), first, last),
            of(1000, fixture.tenant, None, early, last),
            of(1, fixture.tenant, Some(project), early, late),
            of(2, fixture.tenant, Some(ProjectId::new()), first, last),
            of(4, TenantId::new(), None, None, None),
        ])
        .await;
    let export = fixture.export(1).await;
    // It was planned without them, and stays so.
    let part = fixture.until("export_part").await;
    fixture.discard(&entry).await;
    fixture.perform(part).await;
    fixture.drain().await;
    let row = fixture.read(export).await;
    assert_eq!((row.status, row.missing_operations), (ExportStatus::Completed, 1110));
    assert_eq!(fixture.manifest(export).unwrap()["missing_operations"], 1110);
    assert_eq!(fixture.read(whole).await.missing_operations, 0);
}

async fn what_leaves_quarantine_while_an_export_waits_is_told_too(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.send(0..20, SampleOperations::Both).await;
    let entry = fixture.quarantined(Kind::Rejected, 20..30).await;
    let export = fixture.export(1).await;
    let begun = fixture.until("run_export").await;
    fixture.perform(begun).await;
    assert_eq!(fixture.read(export).await.status, ExportStatus::Running);
    // Whether it is flushed before the export is planned is not defined here.
    fixture.discard(&entry).await;
    fixture.drain().await;
    assert_eq!(fixture.manifest(export).unwrap()["missing_operations"], 10);
}
