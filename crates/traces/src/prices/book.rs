//! The price tables of all workspaces.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use chrono::NaiveDate;
use towpath_domain::TenantId;
use towpath_store::{Error, Result, Store, model_prices};

use super::table::{bundled, pattern, read};
use super::{ModelPrice, PriceTable, TokenPrice, default_match_path};

/// Tables of workspaces that are kept in memory.
const MAX_TABLES: usize = 256;
/// Prices of all these workspaces together: each has a compiled pattern.
const MAX_KEPT_PRICES: usize = 4096;
/// Most prices of the server's file: patterns stay in memory.
const MAX_FILE_PRICES: usize = 1000;

/// Finds the prices of workspaces. Clones share the tables.
#[derive(Clone, Debug)]
pub struct PriceBook {
    common: Arc<CommonPrices>,
    /// Tables of workspaces with their own prices.
    tables: Arc<Mutex<HashMap<TenantId, Arc<PriceTable>>>>,
}

/// Prices that apply to every workspace.
#[derive(Debug)]
struct CommonPrices {
    as_of: NaiveDate,
    /// Prices of the server's file, then the bundled ones.
    sources: Vec<Vec<ModelPrice>>,
    /// The table of workspaces without their own prices.
    table: Arc<PriceTable>,
}

static BUNDLED: LazyLock<Arc<CommonPrices>> =
    LazyLock::new(|| Arc::new(CommonPrices::new(Vec::new()).expect("a test compiles the bundled prices")));

impl CommonPrices {
    fn new(file: Vec<ModelPrice>) -> std::result::Result<Self, regex::Error> {
        let (as_of, bundled) = bundled();
        let sources = vec![file, bundled];
        Ok(Self {
            as_of,
            table: Arc::new(PriceTable::new(0, sources.clone())?),
            sources,
        })
    }
}

impl Default for PriceBook {
    fn default() -> Self {
        Self {
            common: Arc::clone(&BUNDLED),
            tables: Arc::default(),
        }
    }
}

impl PriceBook {
    /// The bundled prices, preceded by those of a file.
    ///
    /// # Errors
    /// A text that says what is wrong with the file.
    pub fn with_file(text: &str) -> std::result::Result<Self, String> {
        let (_, prices) = read(text)?;
        if prices.len() > MAX_FILE_PRICES {
            return Err(format!("prices: expected at most {MAX_FILE_PRICES}"));
        }
        let common = CommonPrices::new(prices).map_err(|error| error.to_string())?;
        Ok(Self {
            common: Arc::new(common),
            tables: Arc::default(),
        })
    }

    /// The day of the bundled prices.
    #[must_use]
    pub fn as_of(&self) -> NaiveDate {
        self.common.as_of
    }

    /// Prices that apply to every workspace, the preceding ones first.
    pub fn common(&self) -> impl Iterator<Item = &ModelPrice> {
        self.common.sources.iter().flatten()
    }

    /// The current prices of a workspace.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn table(&self, store: &Store, tenant: TenantId) -> Result<Arc<PriceTable>> {
        let version = store.read(async |tx| model_prices::version(tx, tenant).await).await?;
        if version == 0 {
            return Ok(Arc::clone(&self.common.table));
        }
        if let Some(known) = self.known(tenant, version) {
            return Ok(known);
        }
        // After the version: of later changes, the table has more than its version says, and is read again.
        let rows = store.read(async |tx| model_prices::list(tx, tenant).await).await?;
        // A row that cannot be read must not stop the traces of anyone.
        let own = rows.iter().filter_map(|row| match price(row) {
            Ok(price) if pattern(&price.match_pattern).is_ok() => Some(price),
            _ => {
                tracing::error!(model_price.id = %row.id, "a stored model price cannot be read; it does not apply");
                None
            }
        });
        let table = PriceTable::with_own(version, own.collect(), &self.common.table)
            .map_err(|_| Error::corrupt("model_price", "match_pattern", tenant))?;
        let table = Arc::new(table);
        self.keep(tenant, &table);
        Ok(table)
    }

    fn keep(&self, tenant: TenantId, table: &Arc<PriceTable>) {
        let own_prices = |table: &Arc<PriceTable>| table.len() - self.common.table.len();
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.remove(&tenant);
        let kept: usize = tables.values().map(own_prices).sum();
        if tables.len() >= MAX_TABLES || kept + own_prices(table) > MAX_KEPT_PRICES {
            tables.clear();
        }
        tables.insert(tenant, Arc::clone(table));
    }

    fn known(&self, tenant: TenantId, version: i64) -> Option<Arc<PriceTable>> {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.get(&tenant).filter(|table| table.version() == version).cloned()
    }
}

/// A stored price.
///
/// # Errors
/// [`Error::Corrupt`]
pub fn price(row: &model_prices::ModelPrice) -> Result<ModelPrice> {
    let corrupt = |column| move || Error::corrupt("model_price", column, row.id);
    let cost = |text: &str, column| TokenPrice::parse(text).ok_or_else(corrupt(column));
    let details = |text: &str, column| serde_json::from_str(text).map_err(|_| corrupt(column)());
    Ok(ModelPrice {
        name: row.name.clone(),
        provider: row.provider.clone(),
        match_pattern: row.match_pattern.clone(),
        match_path: match &row.match_path {
            Some(text) => serde_json::from_str(text).map_err(|_| corrupt("match_path")())?,
            None => default_match_path(),
        },
        start_time: row.start_time,
        prompt_cost: cost(&row.prompt_cost, "prompt_cost")?,
        completion_cost: cost(&row.completion_cost, "completion_cost")?,
        prompt_cost_details: details(&row.prompt_cost_details, "prompt_cost_details")?,
        completion_cost_details: details(&row.completion_cost_details, "completion_cost_details")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"as_of": "2026-01-01", "prices": [
        {"name": "ours", "match_pattern": "^gpt-4o$", "prompt_cost": "1", "completion_cost": "2"}]}"#;

    #[test]
    fn a_file_precedes_the_bundled_prices() {
        let bundled = PriceBook::default();
        let book = PriceBook::with_file(FILE).unwrap();
        assert_eq!(book.as_of(), bundled.as_of(), "the day of the bundled prices");
        let names: Vec<&str> = book.common().map(|price| price.name.as_str()).collect();
        assert_eq!(names[0], "ours");
        assert_eq!(names.len(), bundled.common().count() + 1);
        let found = book.common.table.fitting(None, "gpt-4o");
        assert_eq!(found.len(), 2);
        let first = &book.common().nth(found[0]).map(|price| price.name.as_str());
        assert_eq!(*first, Some("ours"));
        let wrong = PriceBook::with_file(&FILE.replace("gpt-4o$", "(")).unwrap_err();
        assert!(wrong.contains("prices[0].match_pattern"), "{wrong}");
    }
}
