//! Interrupted files that cannot be recreated because their rows have changed: another file replaces them, and the
//! manifest is correct for each file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use towpath_domain::export::ExportStatus;
use towpath_domain::{ExportId, TraceRunId};
use towpath_durable::Signal;
use towpath_store::feedback;
use uuid::Uuid;

use crate::exports::batches;
use crate::fixture::{DAY_ROWS, Database, WorkflowFixture, kill, on_both_databases};

/// The call that makes the first file visible, for single and multipart uploads.
const WHOLE: &str = "00000.parquet?";
const IN_PARTS: &str = "00000.parquet?uploadId";

on_both_databases! {
    feedback_that_is_taken_back_does_not_fail_a_filtered_export,
    feedback_that_changes_an_interrupted_file_replaces_it,
    a_file_may_end_inside_of_a_row_group_that_is_copied_later,
    a_file_of_a_frozen_worker_takes_the_place_of_none_on_record,
    a_file_nobody_recorded_goes_with_a_cancelled_export,
}

impl WorkflowFixture {
    /// Feedback on trace runs of these numbers; its id is the number.
    async fn judge(&self, runs: &[u64]) {
        let project = self.project().await;
        for number in runs {
            let run = self.sample.expected(*number, self.tenant, project).id;
            self.give(Uuid::from_u128(u128::from(*number)), run, "1").await;
        }
        // In the tables, so that it can be deleted.
        self.drain().await;
    }

    async fn take_back(&self, number: u64) {
        let tenant = self.tenant;
        let taken = self.store().write(async |tx| {
            let mut row = feedback::find(tx, tenant, Uuid::from_u128(u128::from(number)))
                .await?
                .expect("it was given");
            row.deleted = true;
            feedback::change(tx, &row).await
        });
        taken.await.unwrap();
    }

    /// As when the trace run is deleted for good.
    async fn forget(&self, number: u64) {
        let project = self.project().await;
        let run = TraceRunId(self.sample.expected(number, self.tenant, project).id);
        let forgotten = self.store().write(async |tx| {
            let given = feedback::of_run(tx, self.tenant, run).await?;
            feedback::forget(tx, self.tenant, &given).await
        });
        forgotten.await.unwrap();
    }

    /// The trace runs of the day in the order of their export.
    async fn in_order(&self) -> Vec<u64> {
        let project = self.project().await;
        let mut order: Vec<u64> = (0..DAY_ROWS).collect();
        order.sort_by_key(|number| {
            let run = self.sample.expected(*number, self.tenant, project);
            (run.start, run.id)
        });
        order
    }

    /// Kills the worker at the call that makes the first file visible.
    async fn interrupt(&self, call: &'static str, done: bool) {
        let part = self.until("export_part").await;
        self.s3.hang_at(call, done);
        self.perform_until_hung(part, async || Signal::Lost).await;
        assert!(!self.s3.unhang(), "it was interrupted");
        self.boot().await;
    }

    /// Only the files in the manifest exist, with the listed content. Returns the ids of all rows.
    fn listed(&self, export: ExportId) -> BTreeSet<String> {
        let manifest = self.manifest(export).expect("the export completed");
        let mut sizes = BTreeMap::new();
        let mut ids = BTreeSet::new();
        let days = manifest["partitions"].as_array().unwrap();
        for file in days.iter().flat_map(|day| day["files"].as_array().unwrap()) {
            let path = file["path"].as_str().unwrap();
            let bytes = self.s3.object(path).expect("what is listed is there");
            assert_eq!(file["bytes"], bytes.len(), "{path}");
            let mut rows = 0;
            for batch in batches(&bytes) {
                let column = batch.column_by_name("id").unwrap().as_string::<i32>();
                for id in column {
                    assert!(ids.insert(id.unwrap().to_owned()), "a row is doubled");
                }
                rows += batch.num_rows();
            }
            assert_eq!(file["rows"], rows, "{path}");
            sizes.insert(path.to_owned(), bytes.len());
        }
        let there = self.s3.keys().into_iter();
        let there: Vec<_> = there
            .filter(|key| key.contains(&export.to_string()) && key.ends_with(".parquet"))
            .collect();
        assert!(there.iter().eq(sizes.keys()), "{there:?} is there, {sizes:?} is listed");
        ids
    }
}

async fn feedback_that_is_taken_back_does_not_fail_a_filtered_export(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    let order = fixture.in_order().await;
    let mut left = vec![order[3], order[4], order[5], order[900]];
    fixture.judge(&left).await;
    // The last row of the file, an earlier one, and all rows.
    for taken in [vec![order[900]], vec![order[4]], vec![order[3], order[5]]] {
        for done in [false, true] {
            let export = fixture
                .export_as(|asked| {
                    asked.filter = Some("eq(feedback_key, \"good\")".to_owned());
                    asked.export_fields = Some(vec!["id".to_owned()]);
                })
                .await;
            fixture.interrupt(WHOLE, done).await;
            if done {
                for number in &taken {
                    fixture.take_back(*number).await;
                    left.retain(|known| known != number);
                }
            }
            fixture.drain().await;
            let run = fixture.runs(export).await.remove(0);
            assert_eq!(
                (fixture.read(export).await.status, run.errors.as_str()),
                (ExportStatus::Completed, "{}")
            );
            assert_eq!(
                fixture.listed(export).len(),
                left.len(),
                "without {taken:?}, done: {done}"
            );
            fixture.assert_tidy().await;
        }
    }
    assert!(left.is_empty());
}

async fn feedback_that_changes_an_interrupted_file_replaces_it(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    let order = fixture.in_order().await;
    let [first, forgotten, second] = [order[3], order[700], order[1200]];
    fixture.judge(&[first, forgotten, second]).await;
    for (change, number) in [
        ("in the other file", second),
        // It is deleted with its trace run: the next attempt cannot see that there was any.
        ("forgotten", forgotten),
        ("taken back", first),
    ] {
        let export = fixture.export(1).await;
        fixture.interrupt(IN_PARTS, true).await;
        if change == "forgotten" {
            fixture.forget(number).await;
        } else {
            fixture.take_back(number).await;
        }
        fixture.drain().await;
        assert_eq!(fixture.read(export).await.status, ExportStatus::Completed, "{change}");
        assert_eq!(fixture.listed(export).len() as u64, DAY_ROWS, "{change}");
        let run = fixture.runs(export).await.remove(0);
        let same_names = fixture
            .s3
            .object(&format!("{}/{}-00000.parquet", run.prefix, run.id))
            .is_some();
        assert_eq!(same_names, change == "in the other file", "{change}");
        fixture.assert_tidy().await;
    }
}

async fn a_file_may_end_inside_of_a_row_group_that_is_copied_later(on: Database) {
    let mut fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drain().await;
    fixture.world.sizes.splice_rows = u64::MAX;
    let whole = fixture.export(1).await;
    fixture.drain().await;
    let expected = fixture.files(whole);
    assert_eq!(expected.len(), 2);
    let export = fixture.export(1).await;
    fixture.interrupt(IN_PARTS, true).await;
    fixture.world.sizes.splice_rows = 1;
    fixture.drain().await;
    let run = fixture.runs(export).await.remove(0);
    assert_eq!(
        (fixture.read(export).await.status, run.errors.as_str()),
        (ExportStatus::Completed, "{}")
    );
    assert_eq!(fixture.listed(export).len() as u64, DAY_ROWS);
    assert!(
        fixture.files(export) == expected,
        "the row group was read row by row again"
    );
    fixture.assert_tidy().await;
}

async fn a_file_of_a_frozen_worker_takes_the_place_of_none_on_record(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.judge(&[3, 4, 5, 6]).await;
    // It wakes after the end of the run and checks, or dies after its write.
    for (taken, dies) in [(3, false), (4, true)] {
        let export = fixture
            .export_as(|asked| {
                asked.filter = Some("eq(feedback_key, \"good\")".to_owned());
                asked.export_fields = Some(vec!["id".to_owned(), "feedback_stats".to_owned()]);
            })
            .await;
        let part = fixture.until("export_part").await;
        fixture.s3.hang_at(WHOLE, false);
        let frozen = fixture.freeze(part).await;
        fixture.boot().await;
        fixture.take_back(taken).await;
        fixture.drive().await;
        assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
        let rows = fixture.listed(export).len();
        let run = fixture.runs(export).await.remove(0);
        let late = format!("{}/{}-00000.parquet", run.prefix, run.id);
        assert_eq!(fixture.s3.object(&late), None, "it was given up");
        fixture.s3.thaw();
        if dies {
            let patience = Instant::now();
            while fixture.s3.object(&late).is_none() {
                assert!(patience.elapsed() < Duration::from_secs(180), "no file appears");
                tokio::task::yield_now().await;
            }
            kill(frozen);
        } else {
            frozen.await;
            assert_eq!(fixture.s3.object(&late), None, "it was taken back");
        }
        fixture.drain().await;
        assert_eq!(fixture.listed(export).len(), rows, "dies: {dies}");
        fixture.assert_tidy().await;
    }
}

async fn a_file_nobody_recorded_goes_with_a_cancelled_export(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drain().await;
    // Visible before the export is cancelled, or made visible by a worker that was suspended then.
    for done in [true, false] {
        let export = fixture.export(1).await;
        let part = fixture.until("export_part").await;
        fixture.s3.hang_at(IN_PARTS, done);
        let frozen = fixture.freeze(part).await;
        fixture.cancel(export).await.unwrap();
        fixture.boot().await;
        fixture.drive().await;
        assert_eq!(fixture.files(export).len(), 0, "done: {done}");
        fixture.s3.thaw();
        frozen.await;
        fixture.drain().await;
        assert_eq!(fixture.files(export).len(), 0, "done: {done}");
        assert_eq!(fixture.read(export).await.status, ExportStatus::Cancelled);
        fixture.assert_tidy().await;
    }
}
