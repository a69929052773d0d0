//! Columns as JSON, the way a reader would print them.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Decimal128Type, Int64Type, TimeUnit, TimestampNanosecondType};
use serde_json::{Map, Value, json};

/// Every row of a batch. `extra` is parsed, since the order of its keys says nothing.
pub fn rows(batch: &RecordBatch) -> Vec<Map<String, Value>> {
    (0..batch.num_rows())
        .map(|row| {
            let schema = batch.schema();
            let columns = schema.fields().iter().zip(batch.columns());
            columns
                .map(|(field, column)| {
                    let shown = value(column, row);
                    let shown = match (field.name().as_str(), shown.as_str()) {
                        ("extra", Some(text)) => serde_json::from_str(text).unwrap(),
                        _ => shown,
                    };
                    (field.name().clone(), shown)
                })
                .collect()
        })
        .collect()
}

fn value(column: &ArrayRef, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    match column.data_type() {
        DataType::Utf8 => json!(column.as_string::<i32>().value(row)),
        DataType::Boolean => json!(column.as_boolean().value(row)),
        DataType::Int64 => json!(column.as_primitive::<Int64Type>().value(row)),
        DataType::Timestamp(TimeUnit::Nanosecond, None) => {
            json!(column.as_primitive::<TimestampNanosecondType>().value(row))
        }
        DataType::Decimal128(20, 10) => json!(column.as_primitive::<Decimal128Type>().value_as_string(row)),
        DataType::List(_) => {
            let list = column.as_list::<i32>().value(row);
            json!(list.as_string::<i32>().iter().collect::<Vec<_>>())
        }
        other => panic!("unexpected type {other}"),
    }
}
