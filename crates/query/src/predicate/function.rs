//! Tests as functions for expressions.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanBuilder};
use arrow::datatypes::DataType;
use datafusion_common::Result;
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, col};

use super::evaluator::{Cell, Evaluator};

/// A call of `judge` with these columns.
pub fn call(judge: Evaluator, columns: impl IntoIterator<Item = &'static str>) -> Expr {
    let args: Vec<Expr> = columns.into_iter().map(col).collect();
    let function = Function {
        evaluator: Arc::new(judge),
        signature: Signature::any(args.len(), Volatility::Immutable),
    };
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::from(function)), args))
}

/// Equal only to itself: nothing here compares expressions by meaning.
struct Function {
    evaluator: Arc<Evaluator>,
    signature: Signature,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("trace_run_test")
    }
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.evaluator, &other.evaluator)
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.evaluator).hash(state);
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &'static str {
        "trace_run_test"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let columns = ColumnarValue::values_to_arrays(&args.args)?;
        let mut held = BooleanBuilder::with_capacity(args.number_rows);
        for row in 0..args.number_rows {
            let cells = columns.iter().map(|column| cell(column, row));
            held.append_value(self.evaluator.matches(cells));
        }
        Ok(ColumnarValue::Array(Arc::new(held.finish())))
    }
}

/// The value of a row in a column of texts, or of lists of texts.
fn cell(column: &ArrayRef, row: usize) -> Cell<'_> {
    if column.is_null(row) {
        return Cell::Nothing;
    }
    if let Some(texts) = column.as_string_opt::<i32>() {
        return Cell::Text(texts.value(row));
    }
    match column.as_list_opt::<i32>() {
        Some(lists) => Cell::Texts(lists.value(row)),
        None => Cell::Nothing,
    }
}
