//! A separate database with the tables of the engine.

use towpath_store::{Options, Store};

pub struct Database {
    pub uri: String,
    _whole: towpath_testing::Database,
}

impl Database {
    pub async fn sqlite() -> Self {
        towpath_testing::Database::sqlite(migrate).await.into()
    }

    /// On the server that `TOWPATH_TEST_POSTGRES` names.
    pub async fn postgres() -> Option<Self> {
        Some(towpath_testing::Database::postgres(migrate).await?.into())
    }
}

impl From<towpath_testing::Database> for Database {
    fn from(whole: towpath_testing::Database) -> Self {
        Self {
            uri: whole.uri.clone(),
            _whole: whole,
        }
    }
}

async fn migrate(uri: &str) {
    let store = Store::open(uri, Options::default()).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
}
