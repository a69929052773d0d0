//! Columns of trace runs: the 29 exported ones and the internal ones of segments.
//!
//! Names and order follow the contract. No sample file of the hosted service was available, so of the `v1` types only
//! the time columns are known (INT64 `TIMESTAMP(NANOS)`, not adjusted to UTC, from a user's report); the others follow
//! the vendor's descriptions ("string", "JSON") or what readers handle best: lists as Parquet lists, costs as decimals,
//! since the query API returns decimal strings.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, AsArray, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit, TimestampNanosecondType};
use arrow::error::ArrowError;
use towpath_domain::Rejection;
use towpath_domain::export::FormatVersion;

use crate::derive::{COST_PRECISION, COST_SCALE};

/// How many columns can be exported.
pub const EXPORTED: usize = 29;

/// Names of the exported columns, in the contract's order.
pub const EXPORT_FIELDS: [&str; EXPORTED] = [
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

/// Positions of columns in a segment.
pub(crate) mod position {
    pub const ID: usize = 0;
    pub const TENANT_ID: usize = 1;
    pub const SESSION_ID: usize = 2;
    pub const TRACE_ID: usize = 3;
    pub const PARENT_RUN_ID: usize = 4;
    pub const PARENT_RUN_IDS: usize = 5;
    pub const REFERENCE_EXAMPLE_ID: usize = 6;
    pub const NAME: usize = 7;
    pub const RUN_TYPE: usize = 8;
    pub const START_TIME: usize = 9;
    pub const END_TIME: usize = 10;
    pub const STATUS: usize = 11;
    pub const IS_ROOT: usize = 12;
    pub const DOTTED_ORDER: usize = 13;
    pub const INPUTS: usize = 15;
    pub const OUTPUTS: usize = 16;
    pub const ERROR: usize = 17;
    pub const EXTRA: usize = 18;
    pub const EVENTS: usize = 19;
    pub const TAGS: usize = 20;
    pub const TOTAL_TOKENS: usize = 22;
    pub const COMPLETION_TOKENS: usize = 24;
    pub const TOTAL_COST: usize = 25;
    pub const COMPLETION_COST: usize = 27;
    pub const FIRST_TOKEN_TIME: usize = 28;
    pub const SORT_TIME: usize = 29;
    pub const SEQ: usize = 30;
    pub const HAS_POST: usize = 31;
    pub const PROVENANCE: usize = 33;
    pub const SERIALIZED: usize = 34;
}

/// Whether the column at this position has another type in `v2_beta` files than in `v1` files and segments.
pub(crate) const fn differs_in_v2(position: usize) -> bool {
    matches!(
        position,
        position::START_TIME | position::END_TIME | position::FIRST_TOKEN_TIME
    )
}

/// What `trace_tier` says: there is one tier, and rows stay.
pub const TRACE_TIER: &str = "longlived";

fn text(name: &str) -> Field {
    Field::new(name, DataType::Utf8, true)
}

/// Nanoseconds without a zone, as in the hosted `v1` files. Values are UTC, in whole microseconds.
fn time(name: &str) -> Field {
    Field::new(name, DataType::Timestamp(TimeUnit::Nanosecond, None), true)
}

/// The element is named as the Parquet specification wants it.
pub(crate) fn list_element() -> FieldRef {
    Arc::new(text("element"))
}

fn texts(name: &str) -> Field {
    Field::new(name, DataType::List(list_element()), true)
}

fn count(name: &str) -> Field {
    Field::new(name, DataType::Int64, true)
}

fn cost(name: &str) -> Field {
    Field::new(name, DataType::Decimal128(COST_PRECISION, COST_SCALE), true)
}

fn exported() -> Vec<Field> {
    let fields: Vec<Field> = EXPORT_FIELDS
        .iter()
        .map(|name| match *name {
            "id" | "tenant_id" | "session_id" => text(name).with_nullable(false),
            "parent_run_ids" | "tags" => texts(name),
            "start_time" | "end_time" | "first_token_time" => time(name),
            "is_root" => Field::new(*name, DataType::Boolean, true),
            "total_tokens" | "prompt_tokens" | "completion_tokens" => count(name),
            "total_cost" | "prompt_cost" | "completion_cost" => cost(name),
            _ => text(name),
        })
        .collect();
    fields
}

static EXPORT_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| Arc::new(Schema::new(exported())));

static SEGMENT_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let internal = [
        // The sort time in microseconds UTC, see `Operation::sort_time`.
        Field::new("_tp_sort_time", DataType::Timestamp(TimeUnit::Microsecond, None), false),
        // Highest sequence of the row's operations.
        Field::new("_tp_seq", DataType::Int64, false),
        Field::new("_tp_has_post", DataType::Boolean, false),
        Field::new("_tp_has_patch", DataType::Boolean, false),
        // See `row/provenance.rs`.
        Field::new("_tp_provenance", DataType::Binary, false),
        // Sent by clients, not exported; kept for the API that reads trace runs.
        text("_tp_serialized"),
    ];
    Arc::new(Schema::new([exported(), internal.to_vec()].concat()))
});

/// Schema of an exported `v1` file with all fields.
#[must_use]
pub fn export_schema() -> SchemaRef {
    EXPORT_SCHEMA.clone()
}

/// Schema of a segment: the exported columns, then internal ones named `_tp_…`.
#[must_use]
pub fn segment_schema() -> SchemaRef {
    SEGMENT_SCHEMA.clone()
}

/// A time in `v2_beta`: what Spark, BigQuery and Athena read.
fn time_v2(name: &str) -> Field {
    Field::new(
        name,
        DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        true,
    )
}

/// The selected ones of the 29 columns of an export, in the contract's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(Vec<usize>);

impl Selection {
    #[must_use]
    pub fn all() -> Self {
        Self((0..EXPORTED).collect())
    }

    /// Those named, whatever order they are named in.
    pub fn of<S: AsRef<str>>(names: &[S]) -> Result<Self, Rejection> {
        if names.is_empty() {
            return Err(Rejection::invalid(
                "export_fields",
                "name at least one field, or omit it for all",
            ));
        }
        let mut columns = names
            .iter()
            .map(|name| {
                let name = name.as_ref();
                EXPORT_FIELDS.iter().position(|known| *known == name).ok_or_else(|| {
                    Rejection::invalid(
                        "export_fields",
                        format!(
                            "`{name}` is not an exportable field; expected one of {}",
                            EXPORT_FIELDS.join(", ")
                        ),
                    )
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        columns.sort_unstable();
        columns.dedup();
        Ok(Self(columns))
    }

    /// These positions, which ascend.
    pub(crate) const fn at(positions: Vec<usize>) -> Self {
        Self(positions)
    }

    /// Everything a segment has: for writing its rows again.
    pub(crate) fn stored() -> Self {
        Self((0..SEGMENT_SCHEMA.fields().len()).collect())
    }

    /// Names in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|at| SEGMENT_SCHEMA.field(*at).name().as_str())
    }

    /// Schema of these columns as segments and `v1` files have them.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        let schema = SEGMENT_SCHEMA
            .project(&self.0)
            .expect("positions come from the list of fields");
        Arc::new(schema)
    }

    /// Schema of a file with these columns.
    #[must_use]
    pub fn schema_of(&self, version: FormatVersion) -> SchemaRef {
        let schema = self.schema();
        if version == FormatVersion::V1 {
            return schema;
        }
        let fields = self.0.iter().zip(schema.fields()).map(|(at, field)| {
            if differs_in_v2(*at) {
                Arc::new(time_v2(field.name()))
            } else {
                Arc::clone(field)
            }
        });
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// Positions in a segment, ascending.
    pub(crate) fn positions(&self) -> &[usize] {
        &self.0
    }
}

/// The columns of a batch with the types of `version`.
pub(crate) fn convert(
    rows: RecordBatch,
    schema: &SchemaRef,
    version: FormatVersion,
) -> Result<RecordBatch, ArrowError> {
    if version == FormatVersion::V1 {
        return Ok(rows);
    }
    let columns = rows.columns().iter().map(converted).collect();
    RecordBatch::try_new(Arc::clone(schema), columns)
}

/// Nanoseconds to microseconds: values are whole microseconds, so nothing is lost. Other columns stay.
fn converted(column: &ArrayRef) -> ArrayRef {
    match column.as_primitive_opt::<TimestampNanosecondType>() {
        Some(nanos) => {
            let micros: TimestampMicrosecondArray = nanos.unary(|nanos| nanos.div_euclid(1000));
            Arc::new(micros.with_timezone("UTC"))
        }
        None => Arc::clone(column),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_v2_are_whole_microseconds_with_a_zone() {
        let selection = Selection::of(&["id", "start_time", "end_time"]).unwrap();
        let schema = selection.schema_of(FormatVersion::V2Beta);
        let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let types: Vec<_> = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        assert_eq!(types, [DataType::Utf8, utc.clone(), utc]);
        let ids: ArrayRef = Arc::new(arrow::array::StringArray::from(vec!["a", "b"]));
        let times = || -> ArrayRef { Arc::new(arrow::array::TimestampNanosecondArray::from(vec![Some(-2_000), None])) };
        let rows = RecordBatch::try_new(selection.schema(), vec![ids, times(), times()]).unwrap();
        let rows = convert(rows, &schema, FormatVersion::V2Beta).unwrap();
        let micros = rows
            .column(1)
            .as_primitive::<arrow::datatypes::TimestampMicrosecondType>();
        assert_eq!(micros.iter().collect::<Vec<_>>(), [Some(-2), None]);
    }

    #[test]
    fn positions_are_those_of_the_schema() {
        let schema = segment_schema();
        for (position, name) in [
            (position::ID, "id"),
            (position::TENANT_ID, "tenant_id"),
            (position::SESSION_ID, "session_id"),
            (position::TRACE_ID, "trace_id"),
            (position::PARENT_RUN_ID, "parent_run_id"),
            (position::PARENT_RUN_IDS, "parent_run_ids"),
            (position::START_TIME, "start_time"),
            (position::END_TIME, "end_time"),
            (position::STATUS, "status"),
            (position::IS_ROOT, "is_root"),
            (position::DOTTED_ORDER, "dotted_order"),
            (position::OUTPUTS, "outputs"),
            (position::ERROR, "error"),
            (position::EXTRA, "extra"),
            (position::EVENTS, "events"),
            (position::TOTAL_TOKENS, "total_tokens"),
            (position::COMPLETION_TOKENS, "completion_tokens"),
            (position::TOTAL_COST, "total_cost"),
            (position::COMPLETION_COST, "completion_cost"),
            (position::FIRST_TOKEN_TIME, "first_token_time"),
            (position::SORT_TIME, "_tp_sort_time"),
            (position::SEQ, "_tp_seq"),
            (position::PROVENANCE, "_tp_provenance"),
        ] {
            assert_eq!(schema.field(position).name(), name);
        }
        assert_eq!(schema.fields().len(), position::PROVENANCE + 2);
        assert_eq!(export_schema().fields().len(), EXPORTED);
        let required: Vec<_> = export_schema()
            .fields()
            .iter()
            .filter(|f| !f.is_nullable())
            .map(|f| f.name().clone())
            .collect();
        assert_eq!(required, ["id", "tenant_id", "session_id"]);
    }

    #[test]
    fn a_selection_keeps_the_contracts_order() {
        let selection = Selection::of(&["outputs", "id", "outputs"]).unwrap();
        assert_eq!(selection.names().collect::<Vec<_>>(), ["id", "outputs"]);
        assert_eq!(selection.schema().field(1).name(), "outputs");
        assert!(Selection::of::<&str>(&[]).is_err());
        let refused = Selection::of(&["id", "_tp_seq"]).unwrap_err();
        assert_eq!(refused.field, "export_fields");
        assert!(refused.message.contains("`_tp_seq`"));
    }
}
