//! Boxes and what belongs to them.

pub mod boxes;
pub mod hosts;
pub mod pools;
pub mod registries;
pub mod snapshots;
pub mod templates;
pub mod tokens;
pub mod volumes;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

fn written<T: Serialize>(value: &T, table: &'static str, column: &'static str, row: &impl ToString) -> Result<String> {
    serde_json::to_string(value).map_err(|_| Error::corrupt(table, column, row.to_string()))
}

fn read<T: DeserializeOwned>(text: &str, table: &'static str, column: &'static str, row: &impl ToString) -> Result<T> {
    serde_json::from_str(text).map_err(|_| Error::corrupt(table, column, row.to_string()))
}
