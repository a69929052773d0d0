//! Pages of lists: `limit` and `offset` in the query.

use crate::errors::ApiError;
use crate::extract::Pairs;

/// Maximum offset. Skipped rows are read.
pub const MAX_OFFSET: i64 = 1_000_000_000;

/// `limit` and `offset` as they were sent: at most 100 results, which is the default.
pub(crate) fn of(sent: &Pairs) -> Result<(i64, i64), ApiError> {
    Ok((
        sent.number("limit", 1..=100)?.unwrap_or(100),
        sent.number("offset", 0..=MAX_OFFSET)?.unwrap_or(0),
    ))
}

/// Checks `limit` and `offset`: `usual` results by default and `most` at most.
pub(crate) fn check(limit: Option<i64>, offset: Option<i64>, usual: i64, most: i64) -> Result<(i64, i64), ApiError> {
    let (limit, offset) = (limit.unwrap_or(usual), offset.unwrap_or(0));
    for (field, number, range) in [("limit", limit, 1..=most), ("offset", offset, 0..=MAX_OFFSET)] {
        if !range.contains(&number) {
            let text = format!("expected {} to {}", range.start(), range.end());
            return Err(ApiError::invalid_at(
                vec!["query".into(), field.into()],
                "value_error",
                text,
            ));
        }
    }
    Ok((limit, offset))
}
