//! Columns back to rows.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, ListArray, RecordBatch, StringArray, TimestampMicrosecondArray,
    TimestampNanosecondArray,
};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType, TimestampNanosecondType};
use towpath_domain::{Timestamp, TraceRunId};
use uuid::Uuid;

use super::extra::{self, Extra};
use super::provenance::{COLUMNS, EXTRA, FIELDS, UNSET};
use super::{Key, Provenance, Row};
use crate::columnar::{Error, Result};
use crate::operation::Fields;

/// Reads rows from a batch of a segment.
///
/// Missing field columns are read as not set. That is fine for showing a row, but not for writing it again.
pub struct RowReader<'a> {
    ids: &'a StringArray,
    sort_times: &'a TimestampMicrosecondArray,
    seqs: &'a arrow::array::Int64Array,
    provenances: &'a BinaryArray,
    trace_ids: Option<&'a StringArray>,
    parents: Option<&'a StringArray>,
    examples: Option<&'a StringArray>,
    names: Option<&'a StringArray>,
    run_types: Option<&'a StringArray>,
    starts: Option<&'a TimestampNanosecondArray>,
    ends: Option<&'a TimestampNanosecondArray>,
    statuses: Option<&'a StringArray>,
    dotted_orders: Option<&'a StringArray>,
    inputs: Option<&'a StringArray>,
    outputs: Option<&'a StringArray>,
    errors: Option<&'a StringArray>,
    extras: Option<&'a StringArray>,
    events: Option<&'a StringArray>,
    tags: Option<&'a ListArray>,
    serialized: Option<&'a StringArray>,
}

impl<'a> RowReader<'a> {
    /// Looks at a batch.
    pub fn new(batch: &'a RecordBatch) -> Result<Self> {
        let typed = |name: &str| batch.column_by_name(name);
        Ok(Self {
            ids: required("id", string(typed("id"), "id")?)?,
            sort_times: required("_tp_sort_time", sort_times(batch))?,
            seqs: required(
                "_tp_seq",
                typed("_tp_seq").and_then(|column| column.as_primitive_opt::<Int64Type>()),
            )?,
            provenances: required(
                "_tp_provenance",
                typed("_tp_provenance").and_then(|column| column.as_binary_opt()),
            )?,
            trace_ids: string(typed("trace_id"), "trace_id")?,
            parents: string(typed("parent_run_id"), "parent_run_id")?,
            examples: string(typed("reference_example_id"), "reference_example_id")?,
            names: string(typed("name"), "name")?,
            run_types: string(typed("run_type"), "run_type")?,
            starts: time(typed("start_time"), "start_time")?,
            ends: time(typed("end_time"), "end_time")?,
            statuses: string(typed("status"), "status")?,
            dotted_orders: string(typed("dotted_order"), "dotted_order")?,
            inputs: string(typed("inputs"), "inputs")?,
            outputs: string(typed("outputs"), "outputs")?,
            errors: string(typed("error"), "error")?,
            extras: string(typed("extra"), "extra")?,
            events: string(typed("events"), "events")?,
            tags: typed("tags")
                .map(|column| required("tags", column.as_list_opt()))
                .transpose()?,
            serialized: string(typed("_tp_serialized"), "_tp_serialized")?,
        })
    }

    /// The row at `index`.
    pub fn row(&self, index: usize) -> Result<Row> {
        let id = id(self.ids.value(index))?;
        let texts = |column: Option<&StringArray>| value(column, index).map(ToOwned::to_owned);
        let ids = |column: Option<&StringArray>| value(column, index).map(self::id).transpose();
        let times = |column: Option<&TimestampNanosecondArray>| {
            column
                .filter(|column| column.is_valid(index))
                .map(|column| Timestamp::from_micros(column.value(index) / 1000))
        };
        let mut fields = Fields {
            trace_id: ids(self.trace_ids)?,
            parent_run_id: ids(self.parents)?,
            dotted_order: texts(self.dotted_orders),
            reference_example_id: ids(self.examples)?,
            name: texts(self.names),
            run_type: texts(self.run_types),
            start_time: times(self.starts),
            end_time: times(self.ends),
            status: texts(self.statuses),
            error: texts(self.errors),
            tags: self.tags.filter(|column| column.is_valid(index)).map(|column| {
                column
                    .value(index)
                    .as_string::<i32>()
                    .iter()
                    .flatten()
                    .map(ToOwned::to_owned)
                    .collect()
            }),
            inputs: texts(self.inputs),
            outputs: texts(self.outputs),
            events: texts(self.events),
            serialized: texts(self.serialized),
            extra: None,
        };
        let keys = value(self.extras, index)
            .map(extra::parse)
            .transpose()
            .map_err(|error| Error::Columns(format!("extra of {id}: {error}")))?;
        let corrupt = || Error::Columns(format!("provenance of {id}"));
        let stored = self.provenances.value(index);
        let (mut provenance, sources, overrides) =
            Provenance::decode(stored, self.seqs.value(index)).ok_or_else(corrupt)?;
        // Where `extra` was not read, its keys are not known either.
        let extra = match keys.filter(|_| provenance.is_set(EXTRA)) {
            Some(keys) => Some(Extra::restore(keys, sources, provenance.sources[EXTRA]).ok_or_else(corrupt)?),
            None => None,
        };
        if extra.is_none() {
            provenance.sources[EXTRA] = UNSET;
        }
        for (at, bytes) in overrides {
            put_back(&mut fields, at, &bytes).ok_or_else(corrupt)?;
        }
        drop_derived(&mut fields, &mut provenance);
        Ok(Row {
            id: TraceRunId(id),
            sort_time: Some(Timestamp::from_micros(self.sort_times.value(index))),
            fields,
            extra,
            provenance,
        })
    }
}

/// Where each row of a batch is.
pub(crate) fn keys(batch: &RecordBatch) -> Result<Vec<Key>> {
    let ids = required("id", string(batch.column_by_name("id"), "id")?)?;
    let times = required("_tp_sort_time", sort_times(batch))?;
    let key = |index| {
        let sort_time = Timestamp::from_micros(times.value(index));
        Ok(Key {
            sort_time,
            id: TraceRunId(id(ids.value(index))?),
        })
    };
    (0..batch.num_rows()).map(key).collect()
}

/// The shown `start_time` of each row of a batch: its sort time. Null outside the years that the column can hold.
pub(crate) fn starts(batch: &RecordBatch) -> Result<ArrayRef> {
    let times = required("_tp_sort_time", sort_times(batch))?;
    let nanos: TimestampNanosecondArray = times.unary_opt(|micros| micros.checked_mul(1000));
    Ok(Arc::new(nanos))
}

/// The columns that the rows of a batch set themselves, by position. `None` if one of them has a post: it may replace
/// another post and so every column.
pub(crate) fn patched(batch: &RecordBatch) -> Result<Option<BTreeSet<usize>>> {
    let posts = batch
        .column_by_name("_tp_has_post")
        .and_then(|column| column.as_boolean_opt());
    if required("_tp_has_post", posts)?.true_count() > 0 {
        return Ok(None);
    }
    let newest = batch
        .column_by_name("_tp_seq")
        .and_then(|column| column.as_primitive_opt::<Int64Type>());
    let newest = required("_tp_seq", newest)?;
    let provenances = batch
        .column_by_name("_tp_provenance")
        .and_then(|column| column.as_binary_opt::<i32>());
    let provenances = required("_tp_provenance", provenances)?;
    let mut columns = BTreeSet::new();
    for (newest, stored) in newest.values().iter().zip(provenances) {
        let provenance = stored.and_then(|stored| Provenance::decode(stored, *newest));
        let (provenance, ..) = provenance.ok_or_else(|| Error::Columns("a provenance".to_owned()))?;
        columns.extend((0..FIELDS).filter(|at| provenance.is_set(*at)).map(|at| COLUMNS[at]));
    }
    Ok(Some(columns))
}

/// Lowest and highest sequence of the operations in a batch.
pub(crate) fn seqs(batch: &RecordBatch) -> Result<(i64, i64)> {
    let newest = batch
        .column_by_name("_tp_seq")
        .and_then(|column| column.as_primitive_opt::<Int64Type>());
    let newest = required("_tp_seq", newest)?;
    let provenances = batch
        .column_by_name("_tp_provenance")
        .and_then(|column| column.as_binary_opt::<i32>());
    let provenances = required("_tp_provenance", provenances)?;
    let (mut low, mut high) = (i64::MAX, i64::MIN);
    for (newest, stored) in newest.values().iter().zip(provenances) {
        let oldest = stored.and_then(|stored| Provenance::oldest_of(stored, *newest));
        low = low.min(oldest.ok_or_else(|| Error::Columns("a provenance".to_owned()))?);
        high = high.max(*newest);
    }
    Ok((low, high))
}

/// A value as sent replaces the derived one its column shows.
fn put_back(fields: &mut Fields, at: usize, bytes: &[u8]) -> Option<()> {
    let time = || Some(Timestamp::from_micros(i64::from_le_bytes(bytes.try_into().ok()?)));
    match at {
        0 => fields.trace_id = Some(Uuid::from_slice(bytes).ok()?),
        1 => fields.parent_run_id = Some(Uuid::from_slice(bytes).ok()?),
        6 => fields.start_time = Some(time()?),
        7 => fields.end_time = Some(time()?),
        8 => fields.status = Some(std::str::from_utf8(bytes).ok()?.to_owned()),
        _ => return None,
    }
    Some(())
}

/// Unsent values are derived; a source without its value was not read.
fn drop_derived(fields: &mut Fields, provenance: &mut Provenance) {
    macro_rules! agree {
        ($at:literal, $field:ident) => {
            if !provenance.is_set($at) {
                fields.$field = None;
            } else if fields.$field.is_none() {
                provenance.sources[$at] = UNSET;
            }
        };
    }
    for_each_field!(agree);
}

fn required<T>(name: &str, column: Option<T>) -> Result<T> {
    column.ok_or_else(|| Error::Columns(format!("column {name} is missing or of another type")))
}

fn string<'a>(column: Option<&'a ArrayRef>, name: &str) -> Result<Option<&'a StringArray>> {
    column
        .map(|column| required(name, column.as_string_opt::<i32>()))
        .transpose()
}

fn time<'a>(column: Option<&'a ArrayRef>, name: &str) -> Result<Option<&'a TimestampNanosecondArray>> {
    column
        .map(|column| required(name, column.as_primitive_opt::<TimestampNanosecondType>()))
        .transpose()
}

fn sort_times(batch: &RecordBatch) -> Option<&TimestampMicrosecondArray> {
    batch
        .column_by_name("_tp_sort_time")?
        .as_primitive_opt::<TimestampMicrosecondType>()
}

fn value(column: Option<&StringArray>, index: usize) -> Option<&str> {
    column
        .filter(|column| column.is_valid(index))
        .map(|column| column.value(index))
}

fn id(text: &str) -> Result<Uuid> {
    text.parse()
        .map_err(|_| Error::Columns(format!("`{text}` is not an id")))
}
