//! Filters as expressions over columns.
//!
//! Tests of plain columns become DataFusion expressions over literals. Tests of JSON, lists and feedback become
//! functions with their keys and values ([`evaluator`]). SQL's unknown counts as false before a negation, so a test and
//! its negation are never both false.

mod entries;
mod evaluator;
mod function;
mod text;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field as Column, Schema, SchemaRef, TimeUnit};
use datafusion_common::{DFSchema, ScalarValue};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::expr::Like;
use datafusion_expr::{Expr, cast, col, is_not_true, lit};
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};
use towpath_domain::TraceRunId;
use towpath_domain::filter::{Comparison, Condition, Family, Field, Filter, Inequality, Value, group_by_entry};
use towpath_traces::derive::{COST_PRECISION, COST_SCALE};
use towpath_traces::row::Key;
use towpath_traces::schema::{EXPORT_FIELDS, Selection, export_schema};
use uuid::Uuid;

use crate::Result;
use evaluator::{ColumnFormat, Evaluator};
use function::call;

/// The position of each row; not an exported column.
const STAND: &str = "_stand";
/// Feedback on each row as a JSON list.
const FEEDBACK: &str = "_feedback";
/// Maximum bytes of feedback evaluated together, unless a single run has more.
const MOST_BYTES: usize = 1 << 30;

/// A filter ready to be evaluated. Clones share it.
#[derive(Clone, Debug)]
pub struct Predicate {
    expression: Arc<dyn PhysicalExpr>,
    schema: SchemaRef,
    columns: BTreeSet<&'static str>,
    feedback: bool,
}

impl Predicate {
    /// Compiles a filter; with `traces`, rows of other traces are dropped too.
    pub fn new(filter: Option<&Filter>, traces: &[Arc<HashSet<Uuid>>]) -> Result<Self> {
        let mut columns = BTreeSet::new();
        let mut parts: Vec<Expr> = filter.map(|filter| compile(filter, &mut columns)).into_iter().collect();
        for set in traces {
            columns.insert("trace_id");
            parts.push(call(Evaluator::Trace(Arc::clone(set)), ["trace_id"]));
        }
        let expression = parts.into_iter().reduce(Expr::and).unwrap_or_else(|| lit(true));
        let feedback = filter.is_some_and(Filter::needs_feedback);
        let schema = schema(&columns, feedback);
        let named = DFSchema::try_from(schema.clone())?;
        let expression = create_physical_expr(&expression, &named, &ExecutionProps::new(), &Default::default())?;
        Ok(Self {
            expression,
            schema,
            columns,
            feedback,
        })
    }

    /// The exported columns it reads.
    pub fn columns(&self) -> impl Iterator<Item = &'static str> {
        self.columns.iter().copied()
    }

    /// Whether it reads feedback.
    #[must_use]
    pub const fn needs_feedback(&self) -> bool {
        self.feedback
    }

    /// Evaluates rows. `rows` has at least [`Self::columns`]; `keys` are their positions, `feedback` their feedback as
    /// JSON lists.
    pub fn evaluate(
        &self,
        rows: &RecordBatch,
        keys: &[Key],
        feedback: &HashMap<TraceRunId, String>,
    ) -> Result<BooleanArray> {
        self.evaluate_within(MOST_BYTES, rows, keys, feedback)
    }

    fn evaluate_within(
        &self,
        most_bytes: usize,
        rows: &RecordBatch,
        keys: &[Key],
        feedback: &HashMap<TraceRunId, String>,
    ) -> Result<BooleanArray> {
        let given = keys.iter().filter_map(|key| feedback.get(&key.id));
        let bytes: usize = given.map(String::len).sum();
        if self.feedback && bytes > most_bytes && keys.len() > 1 {
            let (some, others) = keys.split_at(keys.len() / 2);
            let after = rows.slice(some.len(), others.len());
            let some = self.evaluate_within(most_bytes, &rows.slice(0, some.len()), some, feedback)?;
            let others = self.evaluate_within(most_bytes, &after, others, feedback)?;
            return Ok(some.iter().chain(&others).collect());
        }
        if self.feedback && i32::try_from(bytes).is_err() {
            let what = "feedback on a trace run is larger than a column can hold".to_owned();
            return Err(towpath_traces::columnar::Error::Columns(what).into());
        }
        let columns = self.schema.fields().iter().map(|field| -> Result<ArrayRef> {
            Ok(match field.name().as_str() {
                STAND => Arc::new(TimestampMicrosecondArray::from_iter_values(
                    keys.iter().map(|key| key.sort_time.micros()),
                )),
                FEEDBACK => Arc::new(StringArray::from_iter(
                    keys.iter().map(|key| feedback.get(&key.id).map(String::as_str)),
                )),
                name => rows
                    .column_by_name(name)
                    .cloned()
                    .ok_or_else(|| towpath_traces::columnar::Error::Columns(format!("column {name} is missing")))?,
            })
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        let held = self.expression.evaluate(&batch)?.into_array(rows.num_rows())?;
        let held = held.as_boolean();
        Ok(if held.null_count() == 0 {
            held.clone()
        } else {
            held.iter().map(|held| Some(held == Some(true))).collect()
        })
    }
}

/// Columns of `names` in the contract's order, then those that are added.
fn schema(names: &BTreeSet<&'static str>, feedback: bool) -> SchemaRef {
    let exported = export_schema();
    let mut fields: Vec<Column> = EXPORT_FIELDS
        .iter()
        .enumerate()
        .filter(|(_, name)| names.contains(*name))
        .map(|(at, _)| exported.field(at).clone())
        .collect();
    fields.push(Column::new(
        STAND,
        DataType::Timestamp(TimeUnit::Microsecond, None),
        false,
    ));
    if feedback {
        fields.push(Column::new(FEEDBACK, DataType::Utf8, true));
    }
    Arc::new(Schema::new(fields))
}

/// The selection with the columns of `predicate` and `also`; never empty.
#[must_use]
pub fn selection(predicate: Option<&Predicate>, also: &[&str]) -> Selection {
    let mut names: Vec<&str> = predicate.into_iter().flat_map(Predicate::columns).collect();
    names.extend(also);
    if names.is_empty() {
        names.push("id");
    }
    Selection::of(&names).expect("columns of predicates are exported ones")
}

/// The thread of a trace run, from its `extra`.
pub(crate) fn thread_of(extra: &str) -> Option<String> {
    let metadata = evaluator::metadata(extra)?;
    towpath_domain::trace::thread_id(&metadata).map(Cow::into_owned)
}

fn compile(filter: &Filter, columns: &mut BTreeSet<&'static str>) -> Expr {
    match filter {
        Filter::And(parts) => {
            let scoped = group_by_entry(parts);
            let mut all: Vec<Expr> = scoped.others.into_iter().map(|part| compile(part, columns)).collect();
            for (family, tests) in scoped.entries {
                all.push(entry(family, tests.into_iter().cloned().collect(), columns));
            }
            all.into_iter().reduce(Expr::and).unwrap_or_else(|| lit(true))
        }
        Filter::Or(parts) => {
            let any: Vec<Expr> = parts.iter().map(|part| compile(part, columns)).collect();
            any.into_iter().reduce(Expr::or).unwrap_or_else(|| lit(false))
        }
        Filter::Not(inner) => is_not_true(compile(inner, columns)),
        Filter::Condition(test) => self::test(test, columns),
    }
}

/// One entry that passes all `tests`.
fn entry(family: Family, tests: Vec<Condition>, columns: &mut BTreeSet<&'static str>) -> Expr {
    let column = match family {
        Family::Metadata => "extra",
        Family::Input => "inputs",
        Family::Output => "outputs",
        Family::Feedback => return call(Evaluator::Entry { family, tests }, [FEEDBACK]),
    };
    columns.insert(column);
    call(Evaluator::Entry { family, tests }, [column])
}

fn test(test: &Condition, columns: &mut BTreeSet<&'static str>) -> Expr {
    // A list of values matches any of them, and a negation covers the whole test.
    match &test.comparison {
        Comparison::NotEqual(value) => {
            let equal = Condition {
                field: test.field,
                comparison: Comparison::Equal(value.clone()),
            };
            return is_not_true(self::test(&equal, columns));
        }
        Comparison::In(values) if !matches!(test.field, Field::Entry(..) | Field::Tags | Field::ThreadId) => {
            return any_of(test.field, values, columns);
        }
        _ => {}
    }
    let mut judged = |judge: Evaluator, names: &[&'static str]| {
        columns.extend(names);
        call(judge, names.iter().copied())
    };
    match (test.field, &test.comparison) {
        (Field::Entry(family, _), _) => entry(family, vec![test.clone()], columns),
        (Field::Tags, check) => judged(Evaluator::Texts(check.clone()), &["tags"]),
        (Field::ThreadId, check) => judged(Evaluator::Thread(check.clone()), &["extra"]),
        (Field::Everything, Comparison::Search(text)) => judged(
            Evaluator::search(
                text,
                &[
                    ColumnFormat::Plain,
                    ColumnFormat::Plain,
                    ColumnFormat::Plain,
                    ColumnFormat::Json,
                    ColumnFormat::Json,
                    ColumnFormat::Metadata,
                ],
            ),
            &["name", "error", "tags", "inputs", "outputs", "extra"],
        ),
        (Field::Inputs, Comparison::Search(text)) => {
            judged(Evaluator::search(text, &[ColumnFormat::Json]), &["inputs"])
        }
        (Field::Outputs, Comparison::Search(text)) => {
            judged(Evaluator::search(text, &[ColumnFormat::Json]), &["outputs"])
        }
        (Field::Extra, Comparison::Search(text)) => judged(Evaluator::search(text, &[ColumnFormat::Json]), &["extra"]),
        (Field::Metadata, Comparison::Search(text)) => {
            judged(Evaluator::search(text, &[ColumnFormat::Metadata]), &["extra"])
        }
        (Field::Inputs, Comparison::HasJson(wanted)) => {
            judged(Evaluator::contains(wanted, ColumnFormat::Json), &["inputs"])
        }
        (Field::Outputs, Comparison::HasJson(wanted)) => {
            judged(Evaluator::contains(wanted, ColumnFormat::Json), &["outputs"])
        }
        (Field::Extra, Comparison::HasJson(wanted)) => {
            judged(Evaluator::contains(wanted, ColumnFormat::Json), &["extra"])
        }
        (Field::Metadata, Comparison::HasJson(wanted)) => {
            judged(Evaluator::contains(wanted, ColumnFormat::Metadata), &["extra"])
        }
        (field, check) => plain(field, check, columns),
    }
}

fn any_of(field: Field, values: &[Value], columns: &mut BTreeSet<&'static str>) -> Expr {
    let plain = |value: &Value| match value {
        Value::Text(text) if field != Field::Error => Some(lit(text.clone())),
        Value::Id(id) => Some(lit(id.to_string())),
        _ => None,
    };
    if let (Some(list), Some(column)) = (
        values
            .iter()
            .map(plain)
            .collect::<Option<Vec<_>>>()
            .filter(|list| !list.is_empty()),
        column(field),
    ) {
        columns.insert(column);
        return col(column).in_list(list, false);
    }
    let tests = values.iter().map(|value| {
        let check = Comparison::Equal(value.clone());
        test(
            &Condition {
                field,
                comparison: check,
            },
            columns,
        )
    });
    let tests: Vec<Expr> = tests.collect();
    tests.into_iter().reduce(Expr::or).unwrap_or_else(|| lit(false))
}

/// A test of one column.
fn plain(field: Field, check: &Comparison, columns: &mut BTreeSet<&'static str>) -> Expr {
    let shown = match field {
        Field::StartTime => col(STAND),
        Field::Latency => {
            columns.extend(["start_time", "end_time"]);
            // In whole microseconds the difference of any two times fits.
            let micros = |name: &str| cast(col(name), DataType::Int64) / lit(1000_i64);
            micros("end_time") - micros("start_time")
        }
        field => {
            let name = column(field).unwrap_or("id");
            columns.insert(name);
            col(name)
        }
    };
    // An empty error counts as no error.
    let there = |shown: Expr| match field {
        Field::Error => shown.not_eq(lit("")),
        _ => shown.is_not_null(),
    };
    let guarded = |shown: Expr, holds: Expr| match field {
        Field::Error => shown.not_eq(lit("")).and(holds),
        _ => holds,
    };
    match check {
        Comparison::Equal(Value::Null) => is_not_true(there(shown)),
        Comparison::Equal(value) => guarded(shown.clone(), shown.eq(literal(field, value))),
        Comparison::Inequality(order, value) => {
            let value = literal(field, value);
            match order {
                Inequality::Less => shown.lt(value),
                Inequality::LessOrEqual => shown.lt_eq(value),
                Inequality::Greater => shown.gt(value),
                Inequality::GreaterOrEqual => shown.gt_eq(value),
            }
        }
        Comparison::Like(pattern) => {
            let like = Like::new(
                false,
                Box::new(shown.clone()),
                Box::new(lit(pattern.clone())),
                None,
                false,
            );
            guarded(shown, Expr::Like(like))
        }
        Comparison::Search(text) => match column(field) {
            Some(name) => call(Evaluator::search(text, &[ColumnFormat::Plain]), [name]),
            None => lit(false),
        },
        // The parser accepts these for other fields only, which `test` handles.
        Comparison::NotEqual(_) | Comparison::In(_) | Comparison::HasText(_) | Comparison::HasJson(_) => lit(false),
    }
}

fn literal(field: Field, value: &Value) -> Expr {
    match value {
        Value::Null => lit(ScalarValue::Null),
        Value::Bool(value) => lit(*value),
        Value::Text(text) => lit(text.clone()),
        Value::Id(id) => lit(id.to_string()),
        Value::Time(time) if field == Field::StartTime => {
            lit(ScalarValue::TimestampMicrosecond(Some(time.micros()), None))
        }
        // Columns have whole microseconds, so values beyond the range equal none of them.
        Value::Time(time) => lit(ScalarValue::TimestampNanosecond(
            Some(time.micros().saturating_mul(1000)),
            None,
        )),
        Value::Span(number) | Value::Count(number) => lit(*number),
        Value::Cost(units) => lit(ScalarValue::Decimal128(Some(*units), COST_PRECISION, COST_SCALE)),
        Value::Number(number) => lit(number.to_f64()),
    }
}

/// The plain column of a field, if it has one.
const fn column(field: Field) -> Option<&'static str> {
    Some(match field {
        Field::Id => "id",
        Field::TraceId => "trace_id",
        Field::ParentRunId => "parent_run_id",
        Field::ReferenceExample => "reference_example_id",
        Field::SessionId => "session_id",
        Field::Name => "name",
        Field::RunType => "run_type",
        Field::Status => "status",
        Field::Error => "error",
        Field::IsRoot | Field::ExecutionOrder => "is_root",
        Field::EndTime => "end_time",
        Field::FirstTokenTime => "first_token_time",
        Field::TotalTokens => "total_tokens",
        Field::PromptTokens => "prompt_tokens",
        Field::CompletionTokens => "completion_tokens",
        Field::TotalCost => "total_cost",
        Field::PromptCost => "prompt_cost",
        Field::CompletionCost => "completion_cost",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::RecordBatchOptions;
    use towpath_domain::Timestamp;

    use super::*;

    #[test]
    fn feedback_is_looked_at_in_pieces() {
        let filter = Filter::parse(r#"and(eq(feedback_key, "good"), gt(feedback_score, 3))"#).unwrap();
        let predicate = Predicate::new(Some(&filter), &[]).unwrap();
        let keys: Vec<Key> = (0..9)
            .map(|number| Key {
                sort_time: Timestamp::from_micros(number),
                id: TraceRunId(Uuid::from_u128(number as u128)),
            })
            .collect();
        // Every third run has none.
        let given = keys.iter().enumerate().filter(|(number, _)| number % 3 > 0);
        let given: HashMap<TraceRunId, String> = given
            .map(|(number, key)| (key.id, format!(r#"[{{"key":"good","score":{number}}}]"#)))
            .collect();
        let options = RecordBatchOptions::new().with_row_count(Some(keys.len()));
        let rows = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options).unwrap();
        let whole = predicate.evaluate(&rows, &keys, &given).unwrap();
        let held: Vec<_> = whole.iter().flatten().collect();
        assert_eq!(held, [false, false, false, false, true, true, false, true, true]);
        for most_bytes in [0, 1, 30, 100] {
            let pieces = predicate.evaluate_within(most_bytes, &rows, &keys, &given).unwrap();
            assert_eq!(pieces, whole, "{most_bytes}");
        }
    }
}
