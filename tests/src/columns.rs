//! Reading exported Parquet files back as plain values, and comparing them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Decimal128Type, Int64Type, TimeUnit, TimestampNanosecondType};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};

/// The columns of an export, in the contract's order.
pub const COLUMNS: [&str; 29] = [
    "id",
    "tenant_id",
    "session_id",
    "trace_id",
    "parent_run_id",
    "parent_run_ids",
    "reference_example_id",
    "name",
    "run_type",
    "start_time",
    "end_time",
    "status",
    "is_root",
    "dotted_order",
    "trace_tier",
    "inputs",
    "outputs",
    "error",
    "extra",
    "events",
    "tags",
    "feedback_stats",
    "total_tokens",
    "prompt_tokens",
    "completion_tokens",
    "total_cost",
    "prompt_cost",
    "completion_cost",
    "first_token_time",
];

/// Texts of JSON compare by what they say.
const JSON: [&str; 5] = ["inputs", "outputs", "extra", "events", "feedback_stats"];

/// One row: column to value; a column that is absent is null. Times are nanoseconds, costs are multiples of 10⁻¹⁰ as
/// text.
pub type Columns = BTreeMap<String, Value>;

/// Every Parquet file below `folder`, sorted.
///
/// # Panics
/// If a folder cannot be read.
#[must_use]
pub fn parquet_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry.expect("a readable folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "parquet") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// How a text of JSON is shown.
type ReadJson = fn(&str, &str) -> Value;

/// All rows of these files.
///
/// # Panics
/// If a file is not what an export writes.
#[must_use]
pub fn read_rows(files: &[PathBuf]) -> Vec<Columns> {
    let mut rows = Vec::new();
    let parsed: ReadJson =
        |name, text| serde_json::from_str(text).unwrap_or_else(|error| panic!("{name} is no JSON ({error}): {text}"));
    visit(files, parsed, |row| rows.push(row));
    rows
}

/// Hands over the rows of these files one by one, with the columns of JSON as the texts that they are.
///
/// # Panics
/// If a file is not what an export writes.
pub fn visit_rows(files: &[PathBuf], each: impl FnMut(Columns)) {
    visit(files, |_, text| json!(text), each);
}

fn visit(files: &[PathBuf], read_json: ReadJson, mut each: impl FnMut(Columns)) {
    for path in files {
        let file = File::open(path).expect("a listed file");
        let builder = ParquetRecordBatchReaderBuilder::try_new(file)
            .unwrap_or_else(|error| panic!("{} is no Parquet file: {error}", path.display()));
        let names: Vec<String> = builder
            .schema()
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect();
        assert_eq!(names, COLUMNS, "{}", path.display());
        for batch in builder.build().expect("a readable file") {
            let batch = batch.expect("readable pages");
            for at in 0..batch.num_rows() {
                let cells = names
                    .iter()
                    .zip(batch.columns())
                    .filter(|(_, column)| column.is_valid(at));
                each(
                    cells
                        .map(|(name, column)| (name.clone(), cell(name, column, at, read_json)))
                        .collect(),
                );
            }
        }
    }
}

fn cell(name: &str, column: &ArrayRef, at: usize, read_json: ReadJson) -> Value {
    match column.data_type() {
        DataType::Utf8 => {
            let text = column.as_string::<i32>().value(at);
            if JSON.contains(&name) {
                read_json(name, text)
            } else {
                json!(text)
            }
        }
        DataType::Boolean => json!(column.as_boolean().value(at)),
        DataType::Int64 => json!(column.as_primitive::<Int64Type>().value(at)),
        DataType::Timestamp(TimeUnit::Nanosecond, None) => {
            json!(column.as_primitive::<TimestampNanosecondType>().value(at))
        }
        DataType::Decimal128(20, 10) => json!(column.as_primitive::<Decimal128Type>().value(at).to_string()),
        DataType::List(_) => {
            let items = column.as_list::<i32>().value(at);
            json!(items.as_string::<i32>().iter().collect::<Vec<_>>())
        }
        other => panic!("{name} has the type {other}"),
    }
}

/// What is wrong between the rows read and the rows wanted; empty when nothing is. At most a few differences of each
/// kind are named.
#[must_use]
pub fn differences(rows: &[Columns], wanted: &BTreeMap<String, Columns>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = BTreeMap::new();
    for row in rows {
        let id = row["id"].as_str().unwrap_or_default();
        if seen.insert(id.to_owned(), ()).is_some() {
            wrong.push(format!("row {id} came twice"));
        }
        let Some(want) = wanted.get(id) else {
            wrong.push(format!("row {id} was never sent"));
            continue;
        };
        for name in COLUMNS {
            let (got, want) = (
                row.get(name).unwrap_or(&Value::Null),
                want.get(name).unwrap_or(&Value::Null),
            );
            if got != want {
                wrong.push(format!("row {id}, {name}: got {got}, wanted {want}"));
            }
        }
    }
    wrong.extend(
        wanted
            .keys()
            .filter(|id| !seen.contains_key(*id))
            .map(|id| format!("row {id} is missing")),
    );
    let more = wrong.len().saturating_sub(12);
    wrong.truncate(12);
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, name: Value) -> Columns {
        BTreeMap::from([("id".to_owned(), json!(id)), ("name".to_owned(), name)])
    }

    #[test]
    fn every_kind_of_difference_is_seen() {
        let wanted = BTreeMap::from([
            ("a".to_owned(), row("a", json!("x"))),
            ("b".to_owned(), row("b", json!("y"))),
        ]);
        let (a, b) = (row("a", json!("x")), row("b", json!("y")));
        assert_eq!(differences(&[b.clone(), a.clone()], &wanted), Vec::<String>::new());
        for (rows, said) in [
            (vec![a.clone()], "row b is missing"),
            (vec![a.clone(), b.clone(), a.clone()], "row a came twice"),
            (
                vec![a.clone(), b.clone(), row("c", Value::Null)],
                "row c was never sent",
            ),
            (
                vec![a.clone(), row("b", json!("z"))],
                "row b, name: got \"z\", wanted \"y\"",
            ),
            (vec![a, row("b", Value::Null)], "row b, name: got null, wanted \"y\""),
        ] {
            assert_eq!(differences(&rows, &wanted), [said]);
        }
    }
}
