//! Rows to columns.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Decimal128Builder, Int64Builder, ListBuilder, RecordBatch, StringArray,
    StringBuilder, TimestampMicrosecondBuilder, TimestampNanosecondBuilder,
};
use towpath_domain::{ProjectId, TenantId, Timestamp};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::extra::Extra;
use super::provenance::Overrides;
use super::{Row, RowReader};
use crate::columnar::{Error, Result};
use crate::derive::{COST_PRECISION, COST_SCALE, Derived, Usage, derive_priced};
use crate::prices::Pricer;
use crate::schema::{TRACE_TIER, list_element, position, segment_schema};

/// Size limit of a batch of several rows: offsets in a text column have 32 bits.
const MOST_BYTES: usize = i32::MAX as usize;

/// Collects rows of one project into a batch of segment columns.
pub struct RowsBuilder {
    tenant: TenantId,
    project: ProjectId,
    rows: usize,
    bytes: usize,
    most_bytes: usize,
    pricer: Pricer,
    ids: StringBuilder,
    trace_ids: StringBuilder,
    parents: StringBuilder,
    ancestors: ListBuilder<StringBuilder>,
    examples: StringBuilder,
    names: StringBuilder,
    run_types: StringBuilder,
    starts: TimestampNanosecondBuilder,
    ends: TimestampNanosecondBuilder,
    statuses: StringBuilder,
    roots: BooleanBuilder,
    dotted_orders: StringBuilder,
    inputs: StringBuilder,
    outputs: StringBuilder,
    errors: StringBuilder,
    extras: StringBuilder,
    events: StringBuilder,
    tags: ListBuilder<StringBuilder>,
    tokens: [Int64Builder; 3],
    costs: [Decimal128Builder; 3],
    first_tokens: TimestampNanosecondBuilder,
    sort_times: TimestampMicrosecondBuilder,
    seqs: Int64Builder,
    have_post: BooleanBuilder,
    have_patch: BooleanBuilder,
    provenances: BinaryBuilder,
    serialized: StringBuilder,
}

impl RowsBuilder {
    /// For rows of this project.
    #[must_use]
    pub fn new(tenant: TenantId, project: ProjectId) -> Self {
        let list = || ListBuilder::new(StringBuilder::new()).with_field(list_element());
        Self {
            tenant,
            project,
            rows: 0,
            bytes: 0,
            most_bytes: MOST_BYTES,
            pricer: Pricer::default(),
            ids: StringBuilder::new(),
            trace_ids: StringBuilder::new(),
            parents: StringBuilder::new(),
            ancestors: list(),
            examples: StringBuilder::new(),
            names: StringBuilder::new(),
            run_types: StringBuilder::new(),
            starts: TimestampNanosecondBuilder::new(),
            ends: TimestampNanosecondBuilder::new(),
            statuses: StringBuilder::new(),
            roots: BooleanBuilder::new(),
            dotted_orders: StringBuilder::new(),
            inputs: StringBuilder::new(),
            outputs: StringBuilder::new(),
            errors: StringBuilder::new(),
            extras: StringBuilder::new(),
            events: StringBuilder::new(),
            tags: list(),
            tokens: std::array::from_fn(|_| Int64Builder::new()),
            costs: cost_columns(),
            first_tokens: TimestampNanosecondBuilder::new(),
            sort_times: TimestampMicrosecondBuilder::new(),
            seqs: Int64Builder::new(),
            have_post: BooleanBuilder::new(),
            have_patch: BooleanBuilder::new(),
            provenances: BinaryBuilder::new(),
            serialized: StringBuilder::new(),
        }
    }

    /// Computes costs that were not sent by these prices.
    #[must_use]
    pub fn with_pricer(mut self, pricer: Pricer) -> Self {
        self.pricer = pricer;
        self
    }

    /// Limits the size of a batch with several rows.
    #[must_use]
    pub const fn with_most_bytes(mut self, bytes: usize) -> Self {
        self.most_bytes = bytes;
        self
    }

    /// Rows collected so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds a row.
    pub fn push(&mut self, row: &Row) -> Result<()> {
        let sort_time = row.sort_time.ok_or(Error::NoLocation(row.id))?;
        let bytes = self.bytes.saturating_add(row.weight());
        if self.rows > 0 && bytes > self.most_bytes {
            let what = format!(
                "trace run {} makes a batch larger than {} bytes",
                row.id, self.most_bytes
            );
            return Err(Error::Columns(what));
        }
        self.bytes = bytes;
        let (fields, derived) = (row.fields(), derive_priced(row, &mut self.pricer));
        self.ids.append_value(text(row.id.0, &mut buffer()));
        append_id(&mut self.trace_ids, derived.trace_id);
        append_id(&mut self.parents, derived.parent_run_id);
        if let Some(ids) = &derived.parent_run_ids {
            for id in ids {
                self.ancestors.values().append_value(text(*id, &mut buffer()));
            }
        }
        self.ancestors.append(derived.parent_run_ids.is_some());
        append_id(&mut self.examples, fields.reference_example_id);
        self.names.append_option(fields.name.as_deref());
        self.run_types.append_option(fields.run_type.as_deref());
        self.starts.append_option(derived.start_time.and_then(nanos));
        self.ends.append_option(fields.end_time.and_then(nanos));
        self.statuses.append_value(&derived.status);
        self.roots.append_option(derived.is_root);
        self.dotted_orders.append_option(fields.dotted_order.as_deref());
        self.inputs.append_option(fields.inputs.as_deref());
        self.outputs.append_option(fields.outputs.as_deref());
        self.errors.append_option(fields.error.as_deref());
        self.extras.append_option(row.extra.as_ref().map(Extra::text));
        self.events.append_option(fields.events.as_deref());
        if let Some(tags) = &fields.tags {
            for tag in tags {
                self.tags.values().append_value(tag);
            }
        }
        self.tags.append(fields.tags.is_some());
        let usage = &derived.usage;
        let tokens = [usage.total_tokens, usage.prompt_tokens, usage.completion_tokens];
        self.tokens
            .iter_mut()
            .zip(tokens)
            .for_each(|(column, value)| column.append_option(value));
        append_costs(&mut self.costs, usage);
        self.first_tokens
            .append_option(derived.first_token_time.and_then(nanos));
        self.sort_times.append_value(sort_time.micros());
        self.seqs.append_value(row.provenance.newest);
        self.have_post.append_value(row.has_post());
        self.have_patch.append_value(row.has_patch());
        self.provenances
            .append_value(row.provenance.encode(row.extra.as_ref(), &overrides(row, &derived)));
        self.serialized.append_option(fields.serialized.as_deref());
        self.rows += 1;
        Ok(())
    }

    /// The rows as a batch in insertion order; the builder is empty afterwards.
    pub fn finish(&mut self) -> Result<RecordBatch> {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let same =
            |value: &str| -> ArrayRef { Arc::new(StringArray::from_iter_values(std::iter::repeat_n(value, rows))) };
        let [total_tokens, prompt_tokens, completion_tokens] = self.tokens.each_mut().map(Int64Builder::finish);
        let [total_cost, prompt_cost, completion_cost] = self.costs.each_mut().map(Decimal128Builder::finish);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.ids.finish()),
            same(text(self.tenant.0, &mut buffer())),
            same(text(self.project.0, &mut buffer())),
            Arc::new(self.trace_ids.finish()),
            Arc::new(self.parents.finish()),
            Arc::new(self.ancestors.finish()),
            Arc::new(self.examples.finish()),
            Arc::new(self.names.finish()),
            Arc::new(self.run_types.finish()),
            Arc::new(self.starts.finish()),
            Arc::new(self.ends.finish()),
            Arc::new(self.statuses.finish()),
            Arc::new(self.roots.finish()),
            Arc::new(self.dotted_orders.finish()),
            same(TRACE_TIER),
            Arc::new(self.inputs.finish()),
            Arc::new(self.outputs.finish()),
            Arc::new(self.errors.finish()),
            Arc::new(self.extras.finish()),
            Arc::new(self.events.finish()),
            Arc::new(self.tags.finish()),
            // No feedback is joined yet.
            Arc::new(StringArray::new_null(rows)),
            Arc::new(total_tokens),
            Arc::new(prompt_tokens),
            Arc::new(completion_tokens),
            Arc::new(total_cost),
            Arc::new(prompt_cost),
            Arc::new(completion_cost),
            Arc::new(self.first_tokens.finish()),
            Arc::new(self.sort_times.finish()),
            Arc::new(self.seqs.finish()),
            Arc::new(self.have_post.finish()),
            Arc::new(self.have_patch.finish()),
            Arc::new(self.provenances.finish()),
            Arc::new(self.serialized.finish()),
        ];
        Ok(RecordBatch::try_new(segment_schema(), columns)?)
    }
}

/// Columns of total, prompt and completion cost.
fn cost_columns() -> [Decimal128Builder; 3] {
    std::array::from_fn(|_| {
        Decimal128Builder::new()
            .with_precision_and_scale(COST_PRECISION, COST_SCALE)
            .expect("20 digits, 10 of them behind the point, fit into 128 bits")
    })
}

fn append_costs(columns: &mut [Decimal128Builder; 3], usage: &Usage) {
    let costs = [usage.total_cost, usage.prompt_cost, usage.completion_cost];
    columns
        .iter_mut()
        .zip(costs)
        .for_each(|(column, value)| column.append_option(value));
}

/// Stored rows with their costs computed again.
pub(crate) fn repriced(rows: &RecordBatch, pricer: &mut Pricer) -> Result<RecordBatch> {
    let reader = RowReader::new(rows)?;
    let mut costs = cost_columns();
    for index in 0..rows.num_rows() {
        let row = reader.row(index)?;
        append_costs(&mut costs, &derive_priced(&row, pricer).usage);
    }
    let mut columns = rows.columns().to_vec();
    for (at, mut column) in (position::TOTAL_COST..).zip(costs) {
        columns[at] = Arc::new(column.finish());
    }
    Ok(RecordBatch::try_new(rows.schema(), columns)?)
}

/// What was sent, for columns that show something else.
fn overrides(row: &Row, derived: &Derived<'_>) -> Overrides {
    let fields = row.fields();
    let mut overrides = Overrides::new();
    let mut keep = |at, differs: bool, bytes: &dyn Fn() -> Vec<u8>| {
        if differs {
            overrides.push((at, bytes()));
        }
    };
    let id = |id: Option<Uuid>| id.unwrap_or_default().as_bytes().to_vec();
    let time = |time: Option<Timestamp>| time.map_or(0, Timestamp::micros).to_le_bytes().to_vec();
    let unshown = |time: Option<Timestamp>| time.is_some_and(|time| nanos(time).is_none());
    let start_differs = fields.start_time.is_some() && fields.start_time != derived.start_time;
    // Positions as in `for_each_field`, ascending.
    keep(
        0,
        fields.trace_id.is_some() && fields.trace_id != derived.trace_id,
        &|| id(fields.trace_id),
    );
    keep(
        1,
        fields.parent_run_id.is_some() && fields.parent_run_id != derived.parent_run_id,
        &|| id(fields.parent_run_id),
    );
    keep(6, start_differs || unshown(fields.start_time), &|| {
        time(fields.start_time)
    });
    keep(7, unshown(fields.end_time), &|| time(fields.end_time));
    let status = fields.status.as_deref();
    keep(8, status.is_some_and(|status| status != derived.status), &|| {
        status.unwrap_or_default().into()
    });
    overrides
}

/// Nanoseconds since the epoch, `None` outside the years 1677 to 2262, which 64 bits cannot hold.
fn nanos(time: Timestamp) -> Option<i64> {
    time.micros().checked_mul(1000)
}

const fn buffer() -> [u8; Hyphenated::LENGTH] {
    [0; Hyphenated::LENGTH]
}

fn text(id: Uuid, buffer: &mut [u8; Hyphenated::LENGTH]) -> &str {
    id.hyphenated().encode_lower(buffer)
}

fn append_id(column: &mut StringBuilder, id: Option<Uuid>) {
    match id {
        Some(id) => column.append_value(text(id, &mut buffer())),
        None => column.append_null(),
    }
}
