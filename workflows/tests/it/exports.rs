use std::collections::HashMap;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Decimal128Type, Int64Type, TimestampNanosecondType};
use axum::body::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use towpath_domain::export::{DestinationConfig, DestinationKind, ExportStatus};
use towpath_domain::{Timestamp, TraceRunId};
use towpath_store::feedback;
use towpath_traces::accept::Route;
use towpath_traces::sample::{Cell, SampleOperations};
use uuid::Uuid;

use crate::fixture::{DAY_ROWS, Database, FILE_ROWS, WorkflowFixture, on_both_databases, time};

on_both_databases! {
    a_filter_sees_what_came_late_and_leaves_in_only_what_passes,
    a_filter_on_traces_sees_all_of_them,
    feedback_is_told_of_the_runs_it_is_on_and_the_others_are_copied,
    json_that_other_readers_refuse_is_filtered_and_exported_as_it_was_sent,
}

pub fn batches(file: &Bytes) -> Vec<RecordBatch> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file.clone())
        .unwrap()
        .build()
        .unwrap();
    reader.map(Result::unwrap).collect()
}

fn cell(batch: &RecordBatch, column: &str, row: usize) -> Cell {
    let column = batch.column_by_name(column).unwrap();
    if column.is_null(row) {
        return Cell::Null;
    }
    match column.data_type() {
        DataType::Utf8 => Cell::Text(column.as_string::<i32>().value(row).to_owned()),
        DataType::Boolean => Cell::Bool(column.as_boolean().value(row)),
        DataType::Int64 => Cell::Int(column.as_primitive::<Int64Type>().value(row)),
        DataType::Decimal128(..) => Cell::Decimal(column.as_primitive::<Decimal128Type>().value(row)),
        DataType::Timestamp(..) => {
            let nanos = column.as_primitive::<TimestampNanosecondType>().value(row);
            Cell::Time(Timestamp::from_micros(nanos / 1000))
        }
        DataType::List(_) => {
            let texts = column.as_list::<i32>().value(row);
            Cell::List(
                texts
                    .as_string::<i32>()
                    .iter()
                    .map(|text| text.unwrap().to_owned())
                    .collect(),
            )
        }
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_right_after_the_last_acknowledgement_misses_nothing() {
    let fixture = WorkflowFixture::new(2).await;
    // Three days, the last one without a trace run. Nothing is flushed yet.
    let export = fixture.export(3).await;
    fixture.drain().await;

    let row = fixture.read(export).await;
    assert_eq!(row.status, ExportStatus::Completed);
    assert!(row.started_at.is_some() && row.finished_at.is_some());
    let runs = fixture.runs(export).await;
    assert!(
        runs.iter()
            .all(|run| run.status == ExportStatus::Completed && run.pending_upload.is_none())
    );
    assert_eq!(runs.iter().map(|run| run.files_written).collect::<Vec<_>>(), [2, 2, 0]);
    assert_eq!(
        runs.iter().map(|run| run.rows_written).sum::<i64>(),
        2 * DAY_ROWS as i64
    );

    let project = fixture.project().await;
    let mut expected: HashMap<Uuid, _> = (0..2 * DAY_ROWS)
        .map(|index| fixture.sample.expected(index, fixture.tenant, project))
        .map(|run| (run.id, run))
        .collect();
    for (name, file) in fixture.files(export) {
        let batches = batches(&file);
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        assert!(rows as u64 <= FILE_ROWS, "{name}");
        for batch in batches {
            for row in 0..batch.num_rows() {
                let Cell::Text(id) = cell(&batch, "id", row) else {
                    panic!("no id")
                };
                let run = expected.remove(&id.parse::<Uuid>().unwrap()).expect("each run once");
                assert!(name.contains(&format!("day={:02}", chrono::Datelike::day(&run.start.day()))));
                for (column, value) in run.columns {
                    assert_eq!(cell(&batch, column, row), value, "{column} of {id}");
                }
            }
        }
    }
    assert!(expected.is_empty(), "{} trace runs are missing", expected.len());

    let manifest = fixture.manifest(export).unwrap();
    assert_eq!(manifest["rows"], 2 * DAY_ROWS);
    assert_eq!(manifest["fields"].as_array().unwrap().len(), 29);
    assert_eq!(manifest["filter"], serde_json::Value::Null);
    let listed = manifest["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|part| part["files"].as_array().unwrap());
    let mut listed: Vec<_> = listed.map(|file| file["path"].as_str().unwrap().to_owned()).collect();
    listed.push(format!("p/q/export_id={export}/_manifest.json"));
    listed.sort();
    assert_eq!(listed, fixture.s3.keys());
    fixture.assert_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_and_a_choice_of_fields_are_kept() {
    let fixture = WorkflowFixture::new(1).await;
    let (from, to) = (time("2026-03-01T06:00:00Z"), time("2026-03-01T18:00:00Z"));
    let export = fixture
        .export_as(|asked| {
            (asked.start_time, asked.end_time) = (from, Some(to));
            asked.export_fields = Some(vec!["outputs".to_owned(), "id".to_owned()]);
            asked.compression = Some("snappy".to_owned());
        })
        .await;
    fixture.drain().await;
    let mut ids: Vec<String> = Vec::new();
    for file in fixture.files(export).values() {
        for batch in batches(file) {
            let names: Vec<_> = batch
                .schema()
                .fields()
                .iter()
                .map(|field| field.name().clone())
                .collect();
            assert_eq!(names, ["id", "outputs"]);
            ids.extend(
                batch
                    .column(0)
                    .as_string::<i32>()
                    .iter()
                    .map(|id| id.unwrap().to_owned()),
            );
        }
    }
    let project = fixture.project().await;
    let wanted = (0..DAY_ROWS).map(|index| fixture.sample.expected(index, fixture.tenant, project));
    let mut wanted: Vec<_> = wanted
        .filter(|run| (from..to).contains(&run.start))
        .map(|run| run.id.to_string())
        .collect();
    ids.sort();
    wanted.sort();
    assert_eq!(ids, wanted);
}

async fn a_filter_sees_what_came_late_and_leaves_in_only_what_passes(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.send(0..DAY_ROWS, SampleOperations::Posts).await;
    // The posts are flushed before the patches arrive, so they are in different segments.
    fixture.export(1).await;
    fixture.drain().await;
    fixture.send(0..DAY_ROWS, SampleOperations::Patches).await;
    let filter = "and( eq(status, \"success\"),in(run_type, [\"llm\", \"tool\"]))";
    let export = fixture
        .export_as(|asked| {
            asked.filter = Some(filter.to_owned());
            asked.export_fields = Some(vec!["id".to_owned(), "name".to_owned()]);
        })
        .await;
    fixture.drain().await;
    assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
    let mut ids: Vec<String> = Vec::new();
    for file in fixture.files(export).values() {
        for batch in batches(file) {
            let schema = batch.schema();
            let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            assert_eq!(names, ["id", "name"]);
            let column = batch.column(0).as_string::<i32>();
            ids.extend(column.iter().map(|id| id.unwrap().to_owned()));
        }
    }
    let project = fixture.project().await;
    let text = |text: &str| Cell::Text(text.to_owned());
    let mut wanted = Vec::new();
    for index in 0..DAY_ROWS {
        let run = fixture.sample.expected(index, fixture.tenant, project);
        let columns: HashMap<_, _> = run.columns.into_iter().collect();
        let kind = &columns["run_type"];
        if columns["status"] == text("success") && (*kind == text("llm") || *kind == text("tool")) {
            wanted.push(run.id.to_string());
        }
    }
    assert!(!wanted.is_empty() && (wanted.len() as u64) < DAY_ROWS);
    ids.sort();
    wanted.sort();
    assert_eq!(ids, wanted);
    let manifest = fixture.manifest(export).unwrap();
    assert_eq!(manifest["rows"], wanted.len());
    assert_eq!(manifest["filter"], filter, "as it was sent");
}

async fn a_filter_on_traces_sees_all_of_them(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 2).await;
    fixture.send(0..2 * DAY_ROWS, SampleOperations::Posts).await;
    fixture.export(1).await;
    fixture.drain().await;
    fixture.send(0..2 * DAY_ROWS, SampleOperations::Patches).await;
    let project = fixture.project().await;
    let runs = (0..2 * DAY_ROWS).map(|index| fixture.sample.expected(index, fixture.tenant, project));
    let runs: Vec<(Uuid, HashMap<_, _>)> = runs.map(|run| (run.id, run.columns.into_iter().collect())).collect();
    let trace = |index: usize| match &runs[index].1["trace_id"] {
        Cell::Text(trace) => trace.clone(),
        other => panic!("{other:?}"),
    };
    let traces = [trace(3), trace(700), trace(2000)];
    let filter = |traces: &[String]| format!("and(in(trace_id, {traces:?}), neq(end_time, null))");
    let export = async |traces: &[String]| {
        let export = fixture
            .export_as(|asked| {
                asked.end_time = Some(time("2026-03-03"));
                asked.filter = Some(filter(traces));
            })
            .await;
        fixture.drain().await;
        assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
        let mut ids: Vec<String> = Vec::new();
        for batch in fixture.files(export).values().flat_map(batches) {
            let column = batch.column_by_name("id").unwrap().as_string::<i32>();
            ids.extend(column.iter().map(|id| id.unwrap().to_owned()));
        }
        ids.sort();
        assert_eq!(fixture.manifest(export).unwrap()["rows"], ids.len());
        ids
    };
    let wanted = runs.iter().filter(|(_, columns)| {
        let of = |trace: &String| columns["trace_id"] == Cell::Text(trace.clone());
        traces.iter().any(of) && columns["end_time"] != Cell::Null
    });
    let mut wanted: Vec<String> = wanted.map(|(id, _)| id.to_string()).collect();
    wanted.sort();
    assert!(wanted.len() >= 3, "{wanted:?}");
    assert_eq!(export(&traces).await, wanted);
    // A missing export.
    assert_eq!(export(&[Uuid::from_u128(1).to_string()]).await, Vec::<String>::new());
}

async fn feedback_is_told_of_the_runs_it_is_on_and_the_others_are_copied(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drain().await;
    let project = fixture.project().await;
    let told = fixture.sample.expected(3, fixture.tenant, project).id;
    let taken_back = fixture.sample.expected(4, fixture.tenant, project).id;
    // Sent like any client does: in the log when the export begins, and in no table.
    for (id, run, score) in [(1, told, "1"), (2, told, "0.5"), (3, taken_back, "0")] {
        fixture.give(Uuid::from_u128(id), run, score).await;
    }
    let export = fixture.export(1).await;
    fixture.drain().await;
    let mut stats: HashMap<String, Option<String>> = HashMap::new();
    for batch in fixture.files(export).values().flat_map(batches) {
        let (ids, texts) = (batch.column_by_name("id"), batch.column_by_name("feedback_stats"));
        let (ids, texts) = (ids.unwrap().as_string::<i32>(), texts.unwrap().as_string::<i32>());
        let rows = ids.iter().zip(texts.iter());
        stats.extend(rows.map(|(id, text)| (id.unwrap().to_owned(), text.map(str::to_owned))));
    }
    assert_eq!(stats.len() as u64, DAY_ROWS);
    let of = |run: Uuid| {
        stats[&run.to_string()]
            .as_deref()
            .map(serde_json::from_str::<serde_json::Value>)
    };
    let seen = of(told).unwrap().unwrap();
    assert_eq!(seen["good"]["n"], 2);
    assert_eq!(seen["good"]["avg"], 0.75);
    assert_eq!(of(taken_back).unwrap().unwrap()["good"]["n"], 1);
    assert_eq!(stats.values().flatten().count(), 2);

    // Deleted feedback is not exported.
    let tenant = fixture.tenant;
    let mut row = fixture
        .store()
        .read(async |tx| feedback::find(tx, tenant, Uuid::from_u128(3)).await)
        .await
        .unwrap()
        .unwrap();
    row.deleted = true;
    fixture
        .store()
        .write(async |tx| feedback::change(tx, &row).await)
        .await
        .unwrap();
    let export = fixture.export(1).await;
    fixture.drain().await;
    let told: usize = fixture
        .files(export)
        .values()
        .flat_map(batches)
        .map(|batch| batch.num_rows() - batch.column_by_name("feedback_stats").unwrap().null_count())
        .sum();
    assert_eq!(told, 1);
}

async fn json_that_other_readers_refuse_is_filtered_and_exported_as_it_was_sent(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let inputs = r#"{"cut":"\ud83d","out":1e999,"\ude00":{"k":12345678901234567890123}}"#;
    let outputs = r#"{"\ud83d":1e999,"usage_metadata":{"input_tokens":3,"output_tokens":4}}"#;
    let run = |id: Uuid, k: &str| {
        format!(
            r#"{{"id":"{id}","trace_id":"{id}","dotted_order":"20260301T100000000000Z{id}","name":"r","status":"Completed",
                "session_name":"canal","inputs":{inputs},"outputs":{outputs},
                "extra":{{"metadata":{{"cut":"\ud83d","k":"{k}","out":1e999}}}}}}"#
        )
    };
    let [first, second] = [1, 2].map(|number| Uuid::from_u128(0x0194_fdc2_0000_7000_8000_0000_0000_0000 + number));
    fixture.send_json(Route::Run, run(first, "v")).await;
    fixture.send_json(Route::Run, run(second, "w")).await;
    fixture
        .give(Uuid::from_u128(1), first, r#"1,"comment":"cut \ud83d","out":1e999"#)
        .await;
    fixture.give(Uuid::from_u128(2), first, "0").await;
    fixture.give(Uuid::from_u128(3), second, r#"0.25,"\ud83d":1"#).await;
    for (filter, expected) in [
        (r#"and(eq(metadata_key, "k"), eq(metadata_value, "v"))"#, vec![first]),
        (
            r#"not(and(eq(metadata_key, "k"), eq(metadata_value, "v")))"#,
            vec![second],
        ),
        (
            r#"and(eq(input_key, "\ufffd.k"), gt(input_value, 1))"#,
            vec![first, second],
        ),
        (r#"and(eq(feedback_key, "good"), eq(feedback_score, 1))"#, vec![first]),
        (
            r#"and(eq(total_tokens, 7), eq(status, "success"))"#,
            vec![first, second],
        ),
    ] {
        let export = fixture.export_as(|asked| asked.filter = Some(filter.to_owned())).await;
        fixture.drain().await;
        assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
        let mut exported = Vec::new();
        for batch in fixture.files(export).values().flat_map(batches) {
            for row in 0..batch.num_rows() {
                let Cell::Text(id) = cell(&batch, "id", row) else {
                    panic!("no id")
                };
                exported.push(id.parse::<Uuid>().unwrap());
                assert_eq!(cell(&batch, "inputs", row), Cell::Text(inputs.to_owned()));
                assert_eq!(cell(&batch, "outputs", row), Cell::Text(outputs.to_owned()));
                let Cell::Text(stats) = cell(&batch, "feedback_stats", row) else {
                    panic!("no feedback")
                };
                let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
                let expected = if id == first.to_string() {
                    serde_json::json!({"n": 2, "avg": 0.5, "values": {}, "comments": ["cut \u{fffd}"]})
                } else {
                    serde_json::json!({"n": 1, "avg": 0.25, "values": {}, "comments": []})
                };
                assert_eq!(stats["good"], expected);
            }
        }
        exported.sort();
        assert_eq!(exported, expected, "{filter}");
    }
    let rows = fixture
        .store()
        .read(async |tx| feedback::of_run(tx, fixture.tenant, TraceRunId(first)).await);
    assert_eq!(rows.await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn v2_beta_has_times_in_utc_and_a_folder_of_keys_and_values() {
    let fixture = WorkflowFixture::new(2).await;
    let plain = fixture.export(2).await;
    let rich = fixture
        .export_as(|asked| {
            asked.end_time = Some(time("2026-03-03"));
            asked.format_version = Some("v2_beta".to_owned());
        })
        .await;
    fixture.drain().await;
    for run in fixture.runs(rich).await {
        assert!(
            run.prefix.contains("/resource=runs/year=2026/month=03/day=0"),
            "{}",
            run.prefix
        );
    }
    assert_eq!(fixture.manifest(rich).unwrap()["format_version"], "v2_beta");
    assert_eq!(fixture.manifest(plain).unwrap()["format_version"], "v1");
    let (plain, rich) = (fixture.files(plain), fixture.files(rich));
    assert_eq!(plain.len(), 4);
    assert!(plain.keys().eq(rich.keys()));
    for (plain, rich) in plain.values().zip(rich.values()) {
        let schema = batches(rich)[0].schema();
        for name in ["start_time", "end_time", "first_token_time"] {
            let utc = DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, Some("UTC".into()));
            assert_eq!(schema.field_with_name(name).unwrap().data_type(), &utc);
        }
        let (plain, rich) = (batches(plain), batches(rich));
        assert_eq!(plain.len(), rich.len());
        for (plain, rich) in plain.iter().zip(&rich) {
            for (name, plain) in plain
                .schema()
                .fields()
                .iter()
                .map(|field| field.name())
                .zip(plain.columns())
            {
                let rich = rich.column_by_name(name).unwrap();
                match plain.as_primitive_opt::<TimestampNanosecondType>() {
                    Some(nanos) => {
                        let micros = rich.as_primitive::<arrow::datatypes::TimestampMicrosecondType>();
                        let expected = nanos.iter().map(|nanos| nanos.map(|nanos| nanos / 1000));
                        assert!(micros.iter().eq(expected), "{name}");
                    }
                    None => assert_eq!(plain, rich, "{name}"),
                }
            }
        }
    }
    fixture.assert_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_planning_is_for_the_next_export() {
    let fixture = WorkflowFixture::empty(1).await;
    fixture.send(0..100, SampleOperations::Posts).await;
    let first = fixture.export(1).await;
    let part = fixture.until("export_part").await;
    fixture.send(0..200, SampleOperations::Both).await;
    fixture.perform(part).await;
    fixture.drain().await;
    assert_eq!(fixture.runs(first).await[0].rows_written, 100);

    // Patches of runs in an older segment, and new runs: one row each.
    let second = fixture.export(1).await;
    fixture.drain().await;
    assert_eq!(fixture.runs(second).await[0].rows_written, 200);
    let project = fixture.project().await;
    for batch in fixture.files(second).values().flat_map(batches) {
        for row in 0..batch.num_rows() {
            let Cell::Text(id) = cell(&batch, "id", row) else {
                panic!("no id")
            };
            let id: TraceRunId = id.parse().unwrap();
            let runs = (0..200).map(|index| fixture.sample.expected(index, fixture.tenant, project));
            let run = runs.into_iter().find(|run| run.id == id.0).unwrap();
            for (column, value) in run.columns {
                assert_eq!(cell(&batch, column, row), value, "{column} of {id}");
            }
        }
    }
    fixture.assert_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_gets_the_same_files_as_a_bucket() {
    let mut fixture = WorkflowFixture::new(1).await;
    let to_bucket = fixture.export(1).await;
    let config = DestinationConfig {
        prefix: "team".to_owned(),
        ..DestinationConfig::default()
    };
    fixture.destination = fixture.add_destination(DestinationKind::File, &config).await;
    let to_folder = fixture.export(1).await;
    fixture.drain().await;

    let run = fixture.runs(to_folder).await.remove(0);
    let root = fixture.folder.path().join("exports");
    assert!(
        run.prefix
            .starts_with(&format!("team/export_id={to_folder}/tenant_id=")),
        "{}",
        run.prefix
    );
    assert!(
        run.prefix.ends_with("/runs/year=2026/month=03/day=01"),
        "{}",
        run.prefix
    );
    for (name, file) in fixture.files(to_bucket) {
        let (_, number) = name.rsplit_once('/').unwrap();
        let path = root.join(&run.prefix).join(format!("{}-{number}", run.id));
        assert_eq!(Bytes::from(std::fs::read(path).unwrap()), file, "{name}");
    }
    assert!(root.join(format!("team/export_id={to_folder}/_manifest.json")).exists());
    assert_eq!(std::fs::read_dir(root.join("team/tmp")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifteen_exports_run_and_the_sixteenth_waits() {
    let fixture = WorkflowFixture::new(1).await;
    fixture.drain().await;
    let mut all = Vec::new();
    for _ in 0..16 {
        all.push(fixture.export(1).await);
    }
    let mut jobs = Vec::new();
    while let Some(job) = fixture.claim().await {
        if job.kind == "run_export" {
            fixture.perform(job).await;
        } else {
            jobs.push(job);
        }
    }
    for export in &all[..15] {
        assert_eq!(fixture.read(*export).await.status, ExportStatus::Running);
    }
    assert_eq!(fixture.read(all[15]).await.status, ExportStatus::Created);
    for job in jobs {
        fixture.perform(job).await;
    }
    fixture.drain().await;
    for export in all {
        assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
    }
    fixture.assert_tidy().await;
}
