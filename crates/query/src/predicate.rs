//! A filter as an expression over columns.
//!
//! Tests of plain columns become expressions of DataFusion over literals. Tests of JSON, lists and feedback become
//! functions of ours that hold their keys and values ([`judge`]). Whatever is unknown to SQL counts as false, and a
//! negation is made over that, so that a test and its negation are never both false.

mod entries;
mod function;
mod judge;
mod text;

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
use towpath_domain::filter::{Check, Family, Field, Filter, Order, Test, Value, pairs};
use towpath_traces::derive::{COST_PRECISION, COST_SCALE};
use towpath_traces::row::Key;
use towpath_traces::schema::{EXPORT_FIELDS, Selection, export_schema};
use uuid::Uuid;

use crate::Result;
use function::call;
use judge::{Form, Judge};

/// Where each row stands; not among the exported columns.
const STAND: &str = "_stand";
/// Feedback on each row as a JSON list.
const FEEDBACK: &str = "_feedback";
/// Most bytes of feedback that are looked at together, unless it is that of a single run.
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
    /// Compiles a filter; with `traces`, rows of other traces are left out too.
    ///
    /// # Errors
    /// Types that do not fit together, which would be a defect here.
    pub fn new(filter: Option<&Filter>, traces: &[Arc<HashSet<Uuid>>]) -> Result<Self> {
        let mut columns = BTreeSet::new();
        let mut parts: Vec<Expr> = filter.map(|filter| compile(filter, &mut columns)).into_iter().collect();
        for set in traces {
            columns.insert("trace_id");
            parts.push(call(Judge::Trace(Arc::clone(set)), ["trace_id"]));
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

    /// The exported columns it looks at.
    pub fn columns(&self) -> impl Iterator<Item = &'static str> {
        self.columns.iter().copied()
    }

    /// Whether it looks at feedback.
    #[must_use]
    pub const fn needs_feedback(&self) -> bool {
        self.feedback
    }

    /// For which rows it holds. `rows` has at least [`Self::columns`]; `keys` says where each of them stands, `feedback`
    /// what was said about them as a JSON list.
    ///
    /// # Errors
    /// A column is missing, or the feedback on one row is larger than a column can hold.
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

/// The selection that reads what `predicate` and `also` name; never empty.
#[must_use]
pub fn selection(predicate: Option<&Predicate>, also: &[&str]) -> Selection {
    let mut names: Vec<&str> = predicate.into_iter().flat_map(Predicate::columns).collect();
    names.extend(also);
    if names.is_empty() {
        names.push("id");
    }
    Selection::of(&names).expect("columns of predicates are exported ones")
}

fn compile(filter: &Filter, columns: &mut BTreeSet<&'static str>) -> Expr {
    match filter {
        Filter::And(parts) => {
            let scoped = pairs(parts);
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
        Filter::Test(test) => self::test(test, columns),
    }
}

/// One entry for which all of `tests` hold.
fn entry(family: Family, tests: Vec<Test>, columns: &mut BTreeSet<&'static str>) -> Expr {
    let column = match family {
        Family::Metadata => "extra",
        Family::Input => "inputs",
        Family::Output => "outputs",
        Family::Feedback => return call(Judge::Entry { family, tests }, [FEEDBACK]),
    };
    columns.insert(column);
    call(Judge::Entry { family, tests }, [column])
}

fn test(test: &Test, columns: &mut BTreeSet<&'static str>) -> Expr {
    // A list of values is any of them, and a negation the whole of what it negates.
    match &test.check {
        Check::NotEqual(value) => {
            let equal = Test {
                field: test.field,
                check: Check::Equal(value.clone()),
            };
            return is_not_true(self::test(&equal, columns));
        }
        Check::In(values) if !matches!(test.field, Field::Entry(..) | Field::Tags | Field::ThreadId) => {
            return any_of(test.field, values, columns);
        }
        _ => {}
    }
    let mut judged = |judge: Judge, names: &[&'static str]| {
        columns.extend(names);
        call(judge, names.iter().copied())
    };
    match (test.field, &test.check) {
        (Field::Entry(family, _), _) => entry(family, vec![test.clone()], columns),
        (Field::Tags, check) => judged(Judge::Texts(check.clone()), &["tags"]),
        (Field::ThreadId, check) => judged(Judge::Thread(check.clone()), &["extra"]),
        (Field::Everything, Check::Search(text)) => judged(
            Judge::search(
                text,
                &[
                    Form::Plain,
                    Form::Plain,
                    Form::Plain,
                    Form::Json,
                    Form::Json,
                    Form::Metadata,
                ],
            ),
            &["name", "error", "tags", "inputs", "outputs", "extra"],
        ),
        (Field::Inputs, Check::Search(text)) => judged(Judge::search(text, &[Form::Json]), &["inputs"]),
        (Field::Outputs, Check::Search(text)) => judged(Judge::search(text, &[Form::Json]), &["outputs"]),
        (Field::Extra, Check::Search(text)) => judged(Judge::search(text, &[Form::Json]), &["extra"]),
        (Field::Metadata, Check::Search(text)) => judged(Judge::search(text, &[Form::Metadata]), &["extra"]),
        (Field::Inputs, Check::HasJson(wanted)) => judged(Judge::contains(wanted, Form::Json), &["inputs"]),
        (Field::Outputs, Check::HasJson(wanted)) => judged(Judge::contains(wanted, Form::Json), &["outputs"]),
        (Field::Extra, Check::HasJson(wanted)) => judged(Judge::contains(wanted, Form::Json), &["extra"]),
        (Field::Metadata, Check::HasJson(wanted)) => judged(Judge::contains(wanted, Form::Metadata), &["extra"]),
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
        let check = Check::Equal(value.clone());
        test(&Test { field, check }, columns)
    });
    let tests: Vec<Expr> = tests.collect();
    tests.into_iter().reduce(Expr::or).unwrap_or_else(|| lit(false))
}

/// A test of one column.
fn plain(field: Field, check: &Check, columns: &mut BTreeSet<&'static str>) -> Expr {
    let shown = match field {
        Field::StartTime => col(STAND),
        Field::Latency => {
            columns.extend(["start_time", "end_time"]);
            // Whole microseconds, and in them the difference of any two times fits.
            let micros = |name: &str| cast(col(name), DataType::Int64) / lit(1000_i64);
            micros("end_time") - micros("start_time")
        }
        field => {
            let name = column(field).unwrap_or("id");
            columns.insert(name);
            col(name)
        }
    };
    // An empty error is none.
    let there = |shown: Expr| match field {
        Field::Error => shown.not_eq(lit("")),
        _ => shown.is_not_null(),
    };
    let guarded = |shown: Expr, holds: Expr| match field {
        Field::Error => shown.not_eq(lit("")).and(holds),
        _ => holds,
    };
    match check {
        Check::Equal(Value::Null) => is_not_true(there(shown)),
        Check::Equal(value) => guarded(shown.clone(), shown.eq(literal(field, value))),
        Check::Order(order, value) => {
            let value = literal(field, value);
            match order {
                Order::Less => shown.lt(value),
                Order::LessOrEqual => shown.lt_eq(value),
                Order::Greater => shown.gt(value),
                Order::GreaterOrEqual => shown.gt_eq(value),
            }
        }
        Check::Like(pattern) => {
            let like = Like::new(
                false,
                Box::new(shown.clone()),
                Box::new(lit(pattern.clone())),
                None,
                false,
            );
            guarded(shown, Expr::Like(like))
        }
        Check::Search(text) => match column(field) {
            Some(name) => call(Judge::search(text, &[Form::Plain]), [name]),
            None => lit(false),
        },
        // The parser lets these through for other fields only; `test` has taken care of them.
        Check::NotEqual(_) | Check::In(_) | Check::HasText(_) | Check::HasJson(_) => lit(false),
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
        // Columns hold whole microseconds, so the ends of the range equal none of them.
        Value::Time(time) => lit(ScalarValue::TimestampNanosecond(
            Some(time.micros().saturating_mul(1000)),
            None,
        )),
        Value::Span(number) | Value::Count(number) => lit(*number),
        Value::Cost(units) => lit(ScalarValue::Decimal128(Some(*units), COST_PRECISION, COST_SCALE)),
        Value::Number(number) => lit(number.to_f64()),
    }
}

/// The column that shows a field by itself.
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
